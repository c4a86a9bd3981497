/* A language model of decoder layers: embedding, layers, norm, head. The root's children have the
 * names that transformers gives them, so that parameters are called as in its files:
 *
 *              LLAMA                 GPT2
 *   embedding  model.embed_tokens    transformer (.wte, .wpe)
 *   layers     model.layers.0 …      transformer.h.0 …
 *   norm       model.norm            transformer.ln_f
 *   head       lm_head               lm_head */
#include "models/decoder_lm.h"
#include "models/family.h"

#include "nn/layers.h"
#include "nn/module.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const struct names {
    const char *embedding, *table, *layer, *norm;
} names_of[] = {
    [SL_NAMING_LLAMA] = {"model.embed_tokens", "model.embed_tokens.weight", "model.layers.",
                         "model.norm"},
    [SL_NAMING_GPT2] = {"transformer", "transformer.wte.weight", "transformer.h.",
                        "transformer.ln_f"},
};

static sl_status check_options(const sli_decoder_lm *options)
{
    const sli_model_size sizes[] = {
        {"ntokens", options->ntokens, INT32_MAX},
        {"nlayers", options->nlayers, SL_MAX_LAYERS},
        {"width", options->layer.width, SL_MAX_WIDTH},
        {"feed_forward", options->layer.feed_forward, SL_MAX_WIDTH},
        {"positions", options->positions, INT32_MAX},
    };
    return sli_check_sizes("sli_decoder_lm_create", sizes, sizeof sizes / sizeof *sizes);
}

static sl_status create_embedding(const sli_decoder_lm *options, sl_module **out)
{
    const sl_embedding_options gpt2 = {.ntokens = options->ntokens,
                                       .width = options->layer.width,
                                       .max_len = options->positions,
                                       .dropout = options->embedding_dropout,
                                       .learned_positions = true};
    return options->layer.naming == SL_NAMING_GPT2
               ? sl_embedding_create(&gpt2, out)
               : sli_token_embedding_create(options->ntokens, options->layer.width,
                                            options->layer.deviation, out);
}

static sl_status append_modules(const sli_decoder_lm *options, sl_module **model)
{
    const sl_decoder_layer_options *layer = &options->layer;
    const sli_linear head = {.in = layer->width,
                             .out = options->ntokens,
                             .deviation = layer->deviation};
    bool is_gpt2 = layer->naming == SL_NAMING_GPT2;
    sl_module *child;
    SL_TRY(sl_sequential_append(model, create_embedding(options, &child), &child));
    for (int64_t i = 1; i <= options->nlayers; i++) {
        sl_decoder_layer_options one = *layer;
        if (options->no_rope_interval > 0 && i % options->no_rope_interval == 0)
            one.rotary.kind = SL_ROTARY_NONE;
        SL_TRY(sl_sequential_append(model, sl_decoder_layer_create(&one, &child), &child));
    }
    SL_TRY(sl_sequential_append(model,
                                is_gpt2
                                    ? sl_layer_norm_create(layer->width, layer->norm_eps, &child)
                                    : sl_rms_norm_create(layer->width, layer->norm_eps, &child),
                                &child));
    return sl_sequential_append(model, sli_linear_create_as(&head, true, &child), &child);
}

static sl_status name_modules(const sli_decoder_lm *options, sl_module *model)
{
    const struct names *names = &names_of[options->layer.naming];
    int layers = (int)options->nlayers;
    SL_TRY(sli_module_name_child(model, 0, names->embedding));
    for (int i = 0; i < layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%d", names->layer, i);
        SL_TRY(sli_module_name_child(model, i + 1, name));
    }
    SL_TRY(sli_module_name_child(model, layers + 1, names->norm));
    SL_TRY(sli_module_name_child(model, layers + 2, "lm_head"));
    return options->tie ? sl_module_tie_parameter(model, "lm_head.weight", names->table) : SL_OK;
}

sl_status sli_decoder_lm_create(const sli_decoder_lm *options, sl_module **out)
{
    *out = NULL;
    SL_TRY(check_options(options));
    SL_TRY(append_modules(options, out));
    sl_status status = name_modules(options, *out);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}
