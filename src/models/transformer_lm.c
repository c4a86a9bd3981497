/* A language model by its options: the tutorials' Sequential(Encoder, layers, Decoder), or a
 * decoder. */
#include "models/decoder_lm.h"
#include "models/family.h"
#include "models/lora.h"

#include "nn/layers.h"
#include "nn/module.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static sl_status check_options(const sl_model_options *options)
{
    const sli_model_size sizes[] = {
        {"ntokens", options->ntokens, INT32_MAX}, {"emsize", options->emsize, SL_MAX_WIDTH},
        {"nhid", options->nhid, SL_MAX_WIDTH},    {"nlayers", options->nlayers, SL_MAX_LAYERS},
        {"nhead", options->nhead, INT32_MAX},
    };
    SL_TRY(sli_check_sizes("sl_transformer_lm_create", sizes, sizeof sizes / sizeof *sizes));
    if (options->emsize % 2)
        return sl_error(SL_ERR_INVALID,
                        "sl_transformer_lm_create: emsize must be even (the positional encoding "
                        "needs it), got %" PRId64,
                        options->emsize);
    if (options->emsize % options->nhead)
        return sl_error(SL_ERR_INVALID,
                        "sl_transformer_lm_create: nhead must divide emsize, got nhead %" PRId64
                        " and emsize %" PRId64,
                        options->nhead, options->emsize);
    return sli_check_dropout("sl_transformer_lm_create", options->dropout);
}

static sl_status tie_decoder(const sl_model_options *options, sl_module *model)
{
    char decoder[64];
    snprintf(decoder, sizeof decoder, "%" PRId64 ".decoder.weight", options->nlayers + 1);
    return sl_module_tie_parameter(model, decoder, "0.encoder.weight");
}

static sl_status create_tutorials(const sl_model_options *options, sl_module **out)
{
    sl_embedding_options encoder = {
        .ntokens = options->ntokens,
        .width = options->emsize,
        .dropout = options->dropout,
        .position_is_parameter = options->position_is_parameter,
    };
    sl_encoder_layer_options layer = {
        .width = options->emsize,
        .heads = options->nhead,
        .feed_forward = options->nhid,
        .dropout = options->dropout,
        .mask = options->mask,
        .activation = options->activation,
        .pre_norm = options->pre_norm,
    };
    sl_module *child;
    SL_TRY(check_options(options));
    SL_TRY(sl_sequential_append(out, sl_embedding_create(&encoder, &child), &child));
    for (int64_t i = 0; i < options->nlayers; i++)
        SL_TRY(sl_sequential_append(out, sl_encoder_layer_create(&layer, &child), &child));
    SL_TRY(sl_sequential_append(out, sl_decoder_create(options->emsize, options->ntokens, &child),
                                &child));
    sl_status status = options->tie ? tie_decoder(options, *out) : SL_OK;
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}

/* GPT-2 has dropout in four places; Llama's families in attention alone. The products to a branch's
 * output begin smaller in GPT-2, where 2 nlayers of them are summed. */
static sl_status create_decoder(const sl_model_options *options, sl_module **out)
{
    const sl_decoder_options *decoder = &options->decoder;
    bool is_gpt2 = options->family == SL_FAMILY_GPT2;
    double depth = is_gpt2 ? sqrt(2.0 * (double)options->nlayers) : 1;
    const sli_decoder_lm lm = {.layer = {.naming = is_gpt2 ? SL_NAMING_GPT2 : SL_NAMING_LLAMA,
                                         .width = options->emsize,
                                         .heads = options->nhead,
                                         .feed_forward = options->nhid,
                                         .key_heads = decoder->key_heads,
                                         .head_width = decoder->head_width,
                                         .rotary = decoder->rotary,
                                         .norm_eps = (float)decoder->norm_eps,
                                         .activation = options->activation,
                                         .attention_dropout = options->dropout,
                                         .residual_dropout = is_gpt2 ? options->dropout : 0,
                                         .qkv_bias = decoder->qkv_bias,
                                         .output_bias = decoder->output_bias,
                                         .qk_norm = decoder->qk_norm,
                                         .deviation = (float)decoder->deviation,
                                         .output_deviation = (float)(decoder->deviation / depth)},
                               .ntokens = options->ntokens,
                               .nlayers = options->nlayers,
                               .positions = decoder->positions,
                               .no_rope_interval = decoder->no_rope_interval,
                               .embedding_dropout = options->dropout,
                               .tie = options->tie};
    return sli_decoder_lm_create(&lm, out);
}

/* All but the last layers that are trained. */
static sl_status freeze_layers(const sl_model_options *options, sl_module *model)
{
    int64_t first = options->nlayers - options->train_layers;
    if (first < 0)
        return sl_error(SL_ERR_INVALID,
                        "train-layers: the model has %" PRId64 " layers, of which %" PRId64
                        " cannot be trained",
                        options->nlayers, options->train_layers);
    for (int i = 0; i < sl_module_child_count(model); i++)
        if (i <= first || i > options->nlayers)
            SL_TRY(sl_module_freeze(sl_module_child(model, i)));
    return SL_OK;
}

sl_status sl_transformer_lm_create(const sl_model_options *options, sl_module **out)
{
    *out = NULL;
    SL_TRY(options->family == SL_FAMILY_TUTORIALS ? create_tutorials(options, out)
                                                  : create_decoder(options, out));
    sl_status status;
    if (options->lora.adapts)
        SL_TRY_OR_FAIL(sli_model_add_lora(options, *out));
    else if (options->train_layers > 0)
        SL_TRY_OR_FAIL(freeze_layers(options, *out));
    if (options->freeze)
        SL_TRY_OR_FAIL(sli_module_freeze_named(*out, options->freeze));
    if (options->base_is_bf16 && options->lora.adapts)
        sli_module_narrow_frozen(*out);
    return SL_OK;
fail:
    sl_module_destroy(out);
    return status;
}

int64_t sl_model_positions(const sl_model_options *options)
{
    return options->family == SL_FAMILY_TUTORIALS ? SL_MAX_POSITIONS : options->decoder.positions;
}
