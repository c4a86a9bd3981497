/* The layers of decoders: the encoder layer's pre-norm form, put together under the names and with
 * the layouts that transformers gives its parts. */
#include "nn/encoder_layer.h"
#include "nn/module.h"
#include "nn/self_attention.h"

#include <inttypes.h>
#include <stdlib.h>

/* GPT-2's, whose children the layer runs. */
static const sl_module_ops mlp_ops = {.type = "GPT2MLP"};

static sl_status check_attention_options(const sl_decoder_layer_options *options)
{
    int64_t key_heads = options->key_heads > 0 ? options->key_heads : options->heads;
    if (options->width < 1 || options->heads < 1)
        return sl_error(SL_ERR_INVALID,
                        "a decoder's layer: width and heads must be at least 1, got %" PRId64
                        " and %" PRId64,
                        options->width, options->heads);
    if (options->key_heads < 0 || options->head_width < 0)
        return sl_error(SL_ERR_INVALID,
                        "a decoder's layer: key_heads and head_width must not be negative, "
                        "got %" PRId64 " and %" PRId64,
                        options->key_heads, options->head_width);
    if (options->head_width == 0 && options->width % options->heads != 0)
        return sl_error(SL_ERR_INVALID,
                        "a decoder's layer: the heads must divide the width where no "
                        "head_width is given, got %" PRId64 " heads and a width of %" PRId64,
                        options->heads, options->width);
    if (options->heads % key_heads != 0)
        return sl_error(SL_ERR_INVALID,
                        "a decoder's layer: the heads of keys must divide those of queries, "
                        "got %" PRId64 " and %" PRId64,
                        key_heads, options->heads);
    if (options->naming == SL_NAMING_GPT2 && options->rotary.kind != SL_ROTARY_NONE)
        return sl_error(SL_ERR_INVALID, "a decoder's layer: GPT-2's layer has no rotary positions");
    if (options->naming == SL_NAMING_GPT2 && options->qk_norm)
        return sl_error(SL_ERR_INVALID,
                        "a decoder's layer: GPT-2's layer has no norms of queries and keys");
    SL_TRY(sli_rotary_check("a decoder's layer", &options->rotary,
                            options->head_width > 0 ? options->head_width
                                                    : options->width / options->heads));
    return sli_check_dropout("a decoder's layer", options->attention_dropout);
}

static sl_status add_norm_child(const sl_decoder_layer_options *options, sl_module **module,
                                const char *name, const sli_layer_norm **norm)
{
    sl_module *child;
    bool is_gpt2 = options->naming == SL_NAMING_GPT2;
    SL_TRY(sl_module_append(module, name,
                            is_gpt2
                                ? sl_layer_norm_create(options->width, options->norm_eps, &child)
                                : sl_rms_norm_create(options->width, options->norm_eps, &child),
                            &child));
    *norm = sli_layer_norm_of(child);
    return SL_OK;
}

/* ---- Its attention ---------------------------------------------------------------------- */

static void set_rotary(const sl_rotary_options *options, sli_self_attention *self)
{
    self->rotates = true;
    self->rotary = (sli_rotary){.heads = self->heads + self->key_heads,
                                .head_width = self->head_width,
                                .ld = sli_qkv_width(self)};
    sli_rotary_frequencies(options, self->head_width, self->rotary.frequencies);
}

/* GPT2Attention's c_attn, or LlamaAttention's q_proj, k_proj and v_proj. */
static sl_status add_projections(const sl_decoder_layer_options *options, sl_module **module,
                                 sli_self_attention *self)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    bool fused = options->naming == SL_NAMING_GPT2;
    int64_t keys = self->key_heads * self->head_width;
    sli_linear linear = {.in = self->width,
                         .out = fused ? sli_qkv_width(self) : sli_attended_width(self),
                         .is_conv1d = fused,
                         .deviation = options->deviation};
    self->projection_count = fused ? 1 : 3;
    for (int i = 0; i < self->projection_count; i++) {
        sl_module *child;
        SL_TRY(sl_module_append(module, fused ? "c_attn" : names[i],
                                sli_linear_create_as(&linear, !options->qkv_bias, &child), &child));
        self->projections[i] = sli_module_as_linear(child);
        linear.column += linear.out;
        linear.out = keys;
    }
    return SL_OK;
}

static sl_status add_output(const sl_decoder_layer_options *options, sl_module **module,
                            sli_self_attention *self)
{
    bool is_gpt2 = options->naming == SL_NAMING_GPT2;
    const sli_linear linear = {.in = sli_attended_width(self),
                               .out = self->width,
                               .is_conv1d = is_gpt2,
                               .deviation = options->output_deviation};
    sl_module *child;
    SL_TRY(sl_module_append(module, is_gpt2 ? "c_proj" : "o_proj",
                            sli_linear_create_as(&linear, !options->output_bias, &child), &child));
    self->out_proj = sli_module_as_linear(child);
    return SL_OK;
}

static sl_status add_norms(const sl_decoder_layer_options *options, sl_module **module,
                           sli_self_attention *self)
{
    static const char *const names[] = {"q_norm", "k_norm"};
    for (int i = 0; i < 2; i++) {
        sl_module *child;
        SL_TRY(sl_module_append(module, names[i],
                                sl_rms_norm_create(self->head_width, options->norm_eps, &child),
                                &child));
        self->norms[i] = sli_layer_norm_of(child);
    }
    return SL_OK;
}

sl_status sl_decoder_attention_create(const sl_decoder_layer_options *options, sl_module **out)
{
    *out = NULL;
    SL_TRY(check_attention_options(options));
    sli_self_attention *self = calloc(1, sizeof *self);
    if (!self)
        return sli_no_memory("sl_decoder_attention_create", "self-attention");
    *self = (sli_self_attention){.width = options->width,
                                 .heads = options->heads,
                                 .key_heads =
                                     options->key_heads > 0 ? options->key_heads : options->heads,
                                 .head_width = options->head_width > 0
                                                   ? options->head_width
                                                   : options->width / options->heads,
                                 .dropout = options->attention_dropout,
                                 .mask = SL_MASK_CAUSAL};
    SL_TRY(sl_module_create(&sli_attention_ops, self, out));
    (*out)->kept_width = sli_qkv_width(self);
    (*out)->exact_columns = self->heads + (options->qk_norm ? self->heads + self->key_heads : 0);
    if (options->rotary.kind != SL_ROTARY_NONE)
        set_rotary(&options->rotary, self);
    SL_TRY(add_projections(options, out, self));
    SL_TRY(add_output(options, out, self));
    return options->qk_norm ? add_norms(options, out, self) : SL_OK;
}

/* ---- The layer -------------------------------------------------------------------------- */

static sl_status add_attention(const sl_decoder_layer_options *options, sl_module **module,
                               const char *name, sli_encoder_layer *layer)
{
    return sl_module_append(module, name, sl_decoder_attention_create(options, &layer->self_attn),
                            &layer->self_attn);
}

static sl_status add_mlp(const sl_decoder_layer_options *options, sl_module **module,
                         sli_encoder_layer *layer)
{
    sl_module *mlp, *child;
    const sli_linear linears[] = {{.in = options->width,
                                   .out = options->feed_forward,
                                   .is_conv1d = true,
                                   .deviation = options->deviation},
                                  {.in = options->feed_forward,
                                   .out = options->width,
                                   .is_conv1d = true,
                                   .deviation = options->output_deviation}};
    sl_status status;
    SL_TRY_OR_FAIL(sl_module_create(&mlp_ops, NULL, &mlp));
    SL_TRY_OR_FAIL(
        sl_module_append(&mlp, "c_fc", sli_linear_create_as(&linears[0], false, &child), &child));
    layer->linear1 = sli_module_as_linear(child);
    SL_TRY_OR_FAIL(
        sl_module_append(&mlp, "c_proj", sli_linear_create_as(&linears[1], false, &child), &child));
    layer->linear2 = sli_module_as_linear(child);
fail:
    return sl_module_append(module, "mlp", status, &mlp);
}

/* Each in the order of its state_dict. */
static sl_status add_gpt2_children(const sl_decoder_layer_options *options, sl_module **module,
                                   sli_encoder_layer *layer)
{
    SL_TRY(add_norm_child(options, module, "ln_1", &layer->norm1));
    SL_TRY(add_attention(options, module, "attn", layer));
    SL_TRY(add_norm_child(options, module, "ln_2", &layer->norm2));
    return add_mlp(options, module, layer);
}

static sl_status add_llama_children(const sl_decoder_layer_options *options, sl_module **module,
                                    sli_encoder_layer *layer)
{
    SL_TRY(add_attention(options, module, "self_attn", layer));
    SL_TRY(sl_module_append(module, "mlp",
                            sli_swiglu_create(options->width, options->feed_forward,
                                              options->deviation, &layer->swiglu),
                            &layer->swiglu));
    SL_TRY(add_norm_child(options, module, "input_layernorm", &layer->norm1));
    return add_norm_child(options, module, "post_attention_layernorm", &layer->norm2);
}

sl_status sl_decoder_layer_create(const sl_decoder_layer_options *options, sl_module **out)
{
    *out = NULL;
    if (options->feed_forward < 1)
        return sl_error(SL_ERR_INVALID,
                        "a decoder's layer: feed_forward must be at least 1, got %" PRId64,
                        options->feed_forward);
    SL_TRY(sli_check_dropout("a decoder's layer", options->residual_dropout));
    sli_encoder_layer *layer = calloc(1, sizeof *layer);
    if (!layer)
        return sli_no_memory("sl_decoder_layer_create", "a layer");
    *layer = (sli_encoder_layer){.width = options->width,
                                 .hidden = options->feed_forward,
                                 .residual_dropout = options->residual_dropout,
                                 .pre_norm = true,
                                 .activation = sli_activation_of(options->activation)};
    SL_TRY(sl_module_create(&sli_decoder_layer_ops, layer, out));
    SL_TRY(options->naming == SL_NAMING_GPT2 ? add_gpt2_children(options, out, layer)
                                             : add_llama_children(options, out, layer));
    sli_encoder_layer_count_cached(*out);
    return SL_OK;
}
