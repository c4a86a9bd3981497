/* TransformerEncoderLayer, and the layer of decoders, GPT-2's and Llama's, which is its pre-norm
 * form with other names; forward and backward, on fused kernels. A norm is a layer norm or RMSNorm;
 * the feed-forward part is two products with `act` between them, as drawn, or a SwiGLU, which has
 * no dropout and saves for itself.
 *
 *   post-norm                                  pre-norm
 *   a   = attention(x)                         n1  = norm1(x),        a = attention(n1)
 *   n1  = norm1(x + dropout1(a))               s   = x + dropout1(a), n2 = norm2(s)
 *   h   = dropout(act(linear1(n1)))            h   = dropout(act(linear1(n2)))
 *   out = norm2(n1 + dropout2(linear2(h)))     out = s + dropout2(linear2(h))
 *
 * Saved for backward, oldest first, in floats per position (D width, F feed-forward, H heads):
 *
 *   post-norm                           pre-norm
 *   x (an alias)     D                  normalized1, rstd1   D + 1
 *   qkv, lse         3 D + H            n1                   D   (attention's input)
 *   attended         D                  qkv, lse, attended   4 D + H
 *   normalized1, rstd1   D + 1          normalized2, rstd2   D + 1
 *   n1               D                  n2                   D
 *   pre (GELU only)  F                  pre (GELU only)      F
 *   h                F                  h                    F
 *   normalized2, rstd2   D + 1
 *
 * n1 or n2 before linear1, and after GELU h, are saved where the product that takes them trains. No
 * mask is saved: a mask is a function of its elements' positions, and h is 0 where ReLU's
 * gradient is. Backward works in place on grad_out, which becomes the gradient of each residual sum
 * in turn, and at last that of x. Its other tensors live only from one product to the next; on a
 * split pass, those of the four products that give weights' gradients until backward_weight. */
#include "nn/encoder_layer.h"

#include "nn/layers.h"
#include "nn/module.h"
#include "nn/self_attention.h"

#include <inttypes.h>
#include <stdlib.h>

/* The layer's own dropouts; the attention's belongs to the attention. */
enum { DROPOUT_HIDDEN, DROPOUT_1, DROPOUT_2 };

/* The tensors of a call that do not outlive it; freed by layer_forward and layer_backward. */
typedef struct temporaries {
    sl_tensor *branch; /* out of, or into, the attention or the feed-forward part */
    sl_tensor *normed; /* n1 or n2, or its gradient */
    sl_tensor *h, *pre, *grad_h;
    sl_tensor *operand; /* h, n1 or n2, as products take it */
    sl_tensor *rounded; /* h or grad_h, where the device stores bf16 */
} temporaries;

static void temporaries_clear(temporaries *t)
{
    sl_tensor_destroy(&t->branch);
    sl_tensor_destroy(&t->normed);
    sl_tensor_destroy(&t->h);
    sl_tensor_destroy(&t->pre);
    sl_tensor_destroy(&t->grad_h);
    sl_tensor_destroy(&t->operand);
    sl_tensor_destroy(&t->rounded);
}

static sli_dropout dropout_of(const sl_module *module, const sl_pass *pass, uint32_t which,
                              const sl_tensor *tensor)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    float p = which == DROPOUT_HIDDEN ? layer->hidden_dropout : layer->residual_dropout;
    return sli_pass_dropout(pass, module, which, p, sl_tensor_shape(tensor)->size[1]);
}

static sl_status workspace_like(const sl_tensor *tensor, sl_tensor **out)
{
    return sl_tensor_create(sl_tensor_device(tensor), SL_MEMORY_WORKSPACE, SL_F32,
                            sl_tensor_shape(tensor), out);
}

static sl_shape hidden_shape(const sli_encoder_layer *layer, const sl_shape *x)
{
    return sl_shape_3d(x->size[0], x->size[1], layer->hidden);
}

static sl_status layer_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    return layer->self_attn->ops->output_shape(layer->self_attn, in, out);
}

/* ReLU's gradient needs h as well. */
static bool keeps_h(const sli_encoder_layer *layer)
{
    return layer->activation == SLI_ACTIVATION_RELU || sli_linear_trains(layer->linear2);
}

/* ---- Forward ---------------------------------------------------------------------------- */

/* t->branch = linear2(h), h = dropout(act(linear1(x))). Saves x, the pre-activation (GELU) and h.
 * t->operand may be x as products take it. */
static sl_status feed_forward(const sl_module *module, sl_pass *pass, const sl_tensor *x,
                              temporaries *t)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    sl_shape shape = hidden_shape(layer, sl_tensor_shape(x));
    if (layer->swiglu)
        return sli_swiglu_run_forward(layer->swiglu, pass, x, SL_MEMORY_WORKSPACE, &t->branch);
    bool gelu = layer->activation != SLI_ACTIVATION_RELU;
    SL_TRY(sli_pass_create_tensor(pass, &shape, &t->h));
    if (gelu)
        SL_TRY(sli_pass_create_tensor_if_kept(pass, &shape, &t->pre));
    sli_linear_epilogue epilogue = {.activation = layer->activation,
                                    .preactivation = t->pre,
                                    .dropout = dropout_of(module, pass, DROPOUT_HIDDEN, x)};
    if (sli_pass_stores_bf16(pass))
        SL_TRY(sli_pass_create_stored(pass, &shape, pass->options.keep, &t->rounded));
    epilogue.rounded = t->rounded;
    if (!t->operand)
        SL_TRY(sli_pass_operand(pass, x, pass->options.keep, &t->operand));
    SL_TRY(sli_linear_forward(layer->linear1, pass, t->operand, &epilogue, t->h));
    if (sli_linear_trains(layer->linear1))
        SL_TRY(sli_pass_save_exact(pass, &t->operand));
    sl_tensor_destroy(&t->operand);
    if (gelu)
        SL_TRY(sl_pass_save(pass, &t->pre));
    SL_TRY(t->rounded ? sl_tensor_alias(t->rounded, &t->operand)
                      : sli_pass_operand(pass, t->h, pass->options.keep, &t->operand));
    sl_tensor_destroy(&t->h);
    sl_tensor_destroy(&t->rounded);
    SL_TRY(workspace_like(x, &t->branch));
    SL_TRY(sli_linear_forward(layer->linear2, pass, t->operand, NULL, t->branch));
    return keeps_h(layer) ? sli_pass_save_exact(pass, &t->operand) : SL_OK;
}

/* out = norm(residual + dropout(x)), saving for its backward; `sum` and `rounded` as in
 * sli_norm_forward. */
static sl_status add_norm(sl_pass *pass, const sli_layer_norm *norm, sli_dropout dropout,
                          const sl_tensor *x, const sl_tensor *residual, sl_tensor *sum,
                          sl_tensor *out, sl_tensor *rounded)
{
    sli_norm_saved saved;
    SL_TRY(sli_norm_forward(norm, pass, x, residual, dropout, sum, out, rounded, &saved));
    sl_status status = sli_norm_save(pass, &saved);
    sli_norm_saved_clear(&saved);
    return status;
}

static sl_status forward_post_norm(sl_module *module, sl_pass *pass, const sl_tensor *x,
                                   temporaries *t, sl_tensor **out)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    sli_dropout dropout1 = dropout_of(module, pass, DROPOUT_1, x);
    sli_dropout dropout2 = dropout_of(module, pass, DROPOUT_2, x);
    SL_TRY(sli_self_attention_forward(layer->self_attn, pass, x, SL_MEMORY_WORKSPACE, &t->branch));
    SL_TRY(sli_pass_create_tensor(pass, sl_tensor_shape(x), &t->normed));
    if (sli_pass_stores_bf16(pass))
        SL_TRY(sli_pass_create_stored(pass, sl_tensor_shape(x), pass->options.keep, &t->operand));
    SL_TRY(add_norm(pass, layer->norm1, dropout1, t->branch, x, NULL, t->normed, t->operand));
    sl_tensor_destroy(&t->branch);
    SL_TRY(feed_forward(module, pass, t->normed, t));
    SL_TRY(sli_module_passes_on_bf16(module, pass)
               ? sli_pass_create_stored(pass, sl_tensor_shape(x), true, out)
               : sli_pass_create_output(pass, sl_tensor_shape(x), out));
    return add_norm(pass, layer->norm2, dropout2, t->branch, t->normed, NULL, *out, NULL);
}

/* sum = residual + dropout2(x); `residual` may be NULL, or `sum`. */
static sl_status add_dropout2(const sl_module *module, const sl_pass *pass, const sl_tensor *x,
                              const sl_tensor *residual, sl_tensor *sum)
{
    sli_add_dropout arguments = {
        .rows = sl_tensor_rows(x),
        .width = sl_tensor_columns(x),
        .x = sl_tensor_f32(x),
        .residual = residual ? sl_tensor_f32(residual) : NULL,
        .dropout = dropout_of(module, pass, DROPOUT_2, x),
        .out = sl_tensor_f32(sum),
    };
    return sli_device_add_dropout(sl_pass_device(pass), &arguments);
}

static sl_status forward_pre_norm(sl_module *module, sl_pass *pass, const sl_tensor *x,
                                  temporaries *t, sl_tensor **out)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    sli_dropout none = {.p = 0.0f}, dropout1 = dropout_of(module, pass, DROPOUT_1, x);
    SL_TRY(sli_pass_create_tensor(pass, sl_tensor_shape(x), &t->normed));
    SL_TRY(add_norm(pass, layer->norm1, none, x, NULL, NULL, t->normed, NULL));
    SL_TRY(sli_self_attention_forward(layer->self_attn, pass, t->normed, SL_MEMORY_WORKSPACE,
                                      &t->branch));
    sl_tensor_destroy(&t->normed);
    SL_TRY(sli_pass_create_tensor(pass, sl_tensor_shape(x), &t->normed));
    SL_TRY(sli_pass_create_output(pass, sl_tensor_shape(x), out));
    SL_TRY(add_norm(pass, layer->norm2, dropout1, t->branch, x, *out, t->normed, NULL));
    sl_tensor_destroy(&t->branch);
    SL_TRY(feed_forward(module, pass, t->normed, t));
    return add_dropout2(module, pass, t->branch, *out, *out);
}

static sl_status layer_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    temporaries t = {0};
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    sl_status status = layer->pre_norm ? forward_pre_norm(module, pass, in, &t, out)
                                       : forward_post_norm(module, pass, in, &t, out);
    temporaries_clear(&t);
    return status;
}

/* ---- Backward --------------------------------------------------------------------------- */

/* grad_x = gradient of the feed-forward part's input + beta grad_x; adds to the gradients of the
 * parameters. t->branch is the gradient of its output, whose storage may be grad_x's unless the
 * pass is split; destroyed. */
static sl_status feed_forward_backward(const sl_module *module, sl_pass *pass, temporaries *t,
                                       float beta, sl_tensor *grad_x)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    sli_linear_epilogue epilogue = {.activation = layer->activation,
                                    .dropout = dropout_of(module, pass, DROPOUT_HIDDEN, grad_x)};
    bool gelu = layer->activation != SLI_ACTIVATION_RELU;
    if (layer->swiglu) {
        sl_status status = sli_swiglu_run_backward(layer->swiglu, pass, t->branch, beta, grad_x);
        sl_tensor_destroy(&t->branch);
        return status;
    }
    bool stores = sli_pass_stores_bf16(pass);
    if (keeps_h(layer))
        SL_TRY(sli_pass_pop_stored(pass, &t->operand));
    if (gelu)
        SL_TRY(sl_pass_pop(pass, &t->pre));
    else
        SL_TRY(stores ? sl_tensor_alias(t->operand, &t->h)
                      : sli_pass_widen(pass, t->operand, &t->h));
    const sl_tensor *hidden = gelu ? t->pre : t->h;
    sl_shape output = *sl_tensor_shape(hidden); /* but for the width */
    output.size[2] = layer->width;
    if (sl_tensor_dtype(t->branch) == SL_F32)
        SL_TRY(sli_check_grad(t->branch, &output));
    SL_TRY(sli_linear_backward_epilogue(layer->linear2, NULL, NULL, t->branch));
    SL_TRY(sli_pass_create_gradient(pass, hidden, &t->grad_h));
    SL_TRY(
        sli_linear_backward_products(layer->linear2, pass, t->branch, t->operand, 0.0f, t->grad_h));
    sl_tensor_destroy(&t->operand);
    sl_tensor_destroy(&t->branch);
    if (stores)
        SL_TRY(
            sli_pass_create_stored(pass, sl_tensor_shape(t->grad_h), pass->is_split, &t->rounded));
    epilogue.rounded = t->rounded;
    SL_TRY(
        sli_linear_backward_epilogue(layer->linear1, &epilogue, gelu ? t->pre : t->h, t->grad_h));
    sl_tensor_destroy(&t->pre);
    sl_tensor_destroy(&t->h);
    if (sli_linear_trains(layer->linear1))
        SL_TRY(sli_pass_pop_stored(pass, &t->operand));
    const sl_tensor *grad = t->rounded ? t->rounded : t->grad_h;
    sl_status status =
        sli_linear_backward_products(layer->linear1, pass, grad, t->operand, beta, grad_x);
    sl_tensor_destroy(&t->rounded);
    sl_tensor_destroy(&t->operand);
    sl_tensor_destroy(&t->grad_h);
    return status;
}

/* Back through norm(residual + dropout(x)): grad_sum, the residual's gradient, from that of the
 * norm's output, which grad_sum may lie over, and from what else reaches the sum (NULL: nothing).
 * *grad_x (NULL: not needed) is x's: without dropout an alias of it, unless the pass is split or
 * stores bf16: biases sum the rounded gradient then, whether the pass is split or not. */
static sl_status add_norm_backward(sl_pass *pass, const sli_layer_norm *norm, sli_dropout dropout,
                                   const sl_tensor *grad_out, const sl_tensor *grad_sum_in,
                                   sl_tensor *grad_sum, sl_tensor **grad_x)
{
    sli_norm_saved saved;
    bool aliases = dropout.p == 0.0f && !pass->is_split && !sli_pass_stores_bf16(pass);
    SL_TRY(sli_norm_pop(pass, &saved));
    sl_status status;
    SL_TRY_OR_FAIL(sli_check_grad(grad_sum, sl_tensor_shape(saved.normalized)));
    if (grad_x)
        SL_TRY_OR_FAIL(aliases ? sl_tensor_alias(grad_sum, grad_x)
                               : sli_pass_create_stored(pass, sl_tensor_shape(grad_sum),
                                                        pass->is_split, grad_x));
    status = sli_norm_backward(norm, &saved, grad_out, grad_sum_in, dropout, grad_sum,
                               grad_x && !aliases ? *grad_x : NULL);

fail:
    sli_norm_saved_clear(&saved);
    return status;
}

/* Back through the attention: grad_in = its gradient + beta grad_in; NULL where it is not needed.
 * t->branch is the gradient of its output; destroyed. */
static sl_status attention_backward(const sli_encoder_layer *layer, sl_pass *pass, temporaries *t,
                                    float beta, sl_tensor *grad_in)
{
    sl_status status =
        sli_self_attention_backward(layer->self_attn, pass, t->branch, beta, grad_in);
    sl_tensor_destroy(&t->branch);
    return status;
}

/* `grad` is the gradient of norm2's sum and of n1's other use, then of norm1's sum, then of x; it
 * may lie over grad_out. */
static sl_status backward_post_norm(const sl_module *module, sl_pass *pass, temporaries *t,
                                    const sl_tensor *grad_out, sl_tensor *grad, bool input_needed)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    sli_dropout dropout1 = dropout_of(module, pass, DROPOUT_1, grad);
    sli_dropout dropout2 = dropout_of(module, pass, DROPOUT_2, grad);
    SL_TRY(add_norm_backward(pass, layer->norm2, dropout2, grad_out, NULL, grad, &t->branch));
    SL_TRY(feed_forward_backward(module, pass, t, 1.0f, grad));
    SL_TRY(add_norm_backward(pass, layer->norm1, dropout1, grad, NULL, grad, &t->branch));
    return attention_backward(layer, pass, t, 1.0f, input_needed ? grad : NULL);
}

/* `grad` is the gradient of out, then of s, then of x; t->normed that of n2, then of n1. */
static sl_status backward_pre_norm(const sl_module *module, sl_pass *pass, temporaries *t,
                                   sl_tensor *grad)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    sli_dropout none = {.p = 0.0f}, dropout1 = dropout_of(module, pass, DROPOUT_1, grad);
    if (dropout_of(module, pass, DROPOUT_2, grad).p > 0.0f || pass->is_split) {
        SL_TRY(sli_pass_create_gradient(pass, grad, &t->branch));
        SL_TRY(add_dropout2(module, pass, grad, NULL, t->branch));
    } else {
        SL_TRY(sl_tensor_alias(grad, &t->branch));
    }
    SL_TRY(workspace_like(grad, &t->normed));
    SL_TRY(feed_forward_backward(module, pass, t, 0.0f, t->normed));
    SL_TRY(add_norm_backward(pass, layer->norm2, dropout1, t->normed, grad, grad, &t->branch));
    SL_TRY(attention_backward(layer, pass, t, 0.0f, t->normed));
    return add_norm_backward(pass, layer->norm1, none, t->normed, grad, grad, NULL);
}

static sl_status layer_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    bool is_bf16 = module->takes_bf16_gradient && sl_tensor_dtype(grad_out) == SL_BF16;
    sl_shape shape;
    temporaries t = {0};
    sl_tensor *grad = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(is_bf16 ? SL_OK : sli_check_dtype("the gradient", grad_out, SL_F32));
    SL_TRY_OR_FAIL(layer_output_shape(module, sl_tensor_shape(grad_out), &shape));
    SL_TRY_OR_FAIL(is_bf16 ? workspace_like(grad_out, &grad) : sl_tensor_alias(grad_out, &grad));
    SL_TRY_OR_FAIL(layer->pre_norm
                       ? backward_pre_norm(module, pass, &t, grad)
                       : backward_post_norm(module, pass, &t, grad_out, grad, grad_in != NULL));
    if (grad_in)
        status = sl_tensor_alias(grad, grad_in);

fail:
    temporaries_clear(&t);
    sl_tensor_destroy(&grad);
    return status;
}

/* The products' order is that of backward_input. */
static sl_status layer_backward_weight(sl_module *module, sl_pass *pass)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    if (layer->swiglu) {
        SL_TRY(sli_swiglu_run_backward_weight(layer->swiglu, pass));
        return sli_self_attention_backward_weight(layer->self_attn, pass);
    }
    SL_TRY(sli_linear_deferred_weight(layer->linear2, pass));
    SL_TRY(sli_linear_deferred_weight(layer->linear1, pass));
    return sli_self_attention_backward_weight(layer->self_attn, pass);
}

/* ---- The module ------------------------------------------------------------------------- */

static void layer_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    *in = *out = layer->width;
}

static int64_t layer_saved_bytes(const sl_module *module, const sl_shape *in)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    sl_shape hidden = hidden_shape(layer, in);
    int64_t others = sl_module_saved_bytes(layer->self_attn, in) + 2 * sli_norm_saved_bytes(in);
    if (layer->swiglu)
        return others + sl_module_saved_bytes(layer->swiglu, in);
    int64_t hiddens = (layer->activation != SLI_ACTIVATION_RELU) + keeps_h(layer);
    int64_t x = sli_linear_trains(layer->linear1) ? sl_shape_count(in) : 0;
    return others + (x + hiddens * sl_shape_count(&hidden)) * (int64_t)sizeof(float);
}

/* A norm's output is there while attention runs, and while the feed-forward part does; if norms
 * stand before, the layer's own output is there with the latter. */
static int64_t layer_forward_bytes(const sl_module *module, const sl_shape *in)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    sl_shape hidden = hidden_shape(layer, in);
    int64_t x = sl_shape_count(in) * (int64_t)sizeof(float);
    int64_t attention = sli_module_forward_bytes(layer->self_attn, in, in);
    int64_t feed_forward = layer->swiglu ? sli_module_forward_bytes(layer->swiglu, in, in)
                                         : x + sl_shape_count(&hidden) * (int64_t)sizeof(float);
    feed_forward += x;
    return (attention > feed_forward ? attention : feed_forward) + (layer->pre_norm ? x : 0);
}

void sli_encoder_layer_count_cached(sl_module *module)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    const sli_self_attention *attention = sl_module_state(layer->self_attn);
    int64_t attended = sli_attended_width(attention), gates = layer->swiglu ? 2 : 0;
    module->operand_columns = layer->hidden + (attended != layer->width ? attended : 0);
    module->cached_columns = 3 * layer->width + sli_qkv_width(attention) + module->operand_columns +
                             gates * layer->hidden;
}

static int64_t layer_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    int64_t rows = sli_shape_rows(in);
    int64_t attention = sl_module_deferred_bytes(layer->self_attn, in);
    if (layer->swiglu)
        return attention + sl_module_deferred_bytes(layer->swiglu, in);
    return attention + sli_linear_deferred_bytes(layer->linear1, rows) +
           sli_linear_deferred_bytes(layer->linear2, rows);
}

/* The most at one of two moments. The feed-forward part's gradients are made while all is still
 * saved, but norm2 where it stands behind. qkv's gradient is made when the norms between it and the
 * output, and what the feed-forward part does not defer, are freed. */
static int64_t layer_halfway_bytes(const sl_module *module, const sl_shape *in)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    const sli_self_attention *attention = sl_module_state(layer->self_attn);
    bool keeps_input = layer->swiglu || layer->activation != SLI_ACTIVATION_RELU; /* of act() */
    int64_t column_bytes = sli_shape_rows(in) * (int64_t)sizeof(float);
    int64_t x_bytes = sl_shape_count(in) * (int64_t)sizeof(float);
    int64_t norm_bytes = sli_norm_saved_bytes(in);
    int64_t hidden_bytes = (layer->swiglu ? 2 : 1) * layer->hidden * column_bytes;
    int64_t at_feed_forward =
        layer_saved_bytes(module, in) + x_bytes + hidden_bytes - (layer->pre_norm ? 0 : norm_bytes);
    int64_t at_qkv = at_feed_forward - norm_bytes - (keeps_input ? hidden_bytes : 0) + x_bytes +
                     sli_qkv_width(attention) * column_bytes;
    return at_feed_forward > at_qkv ? at_feed_forward : at_qkv;
}

static int64_t layer_flops(const sl_module *module, const sl_shape *in)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    int64_t attention = sl_module_flops(layer->self_attn, in), rows = sli_shape_rows(in);
    if (layer->swiglu)
        return attention + sl_module_flops(layer->swiglu, in);
    return attention + 2 * rows * 2 * layer->width * layer->hidden +
           sli_lora_flops(layer->linear1, rows) + sli_lora_flops(layer->linear2, rows);
}

static bool layer_can_continue(const sl_module *module)
{
    const sli_encoder_layer *layer = sl_module_state(module);
    return sl_module_can_continue(layer->self_attn);
}

#define LAYER_FUNCTIONS                                                                            \
    .forward = layer_forward, .backward = layer_backward, .backward_input = layer_backward,        \
    .backward_weight = layer_backward_weight, .output_shape = layer_output_shape,                  \
    .widths = layer_widths, .saved_bytes = layer_saved_bytes,                                      \
    .forward_bytes = layer_forward_bytes, .deferred_bytes = layer_deferred_bytes,                  \
    .halfway_bytes = layer_halfway_bytes, .flops = layer_flops, .can_continue = layer_can_continue

static const sl_module_ops layer_ops = {.type = "TransformerEncoderLayer", LAYER_FUNCTIONS};

const sl_module_ops sli_decoder_layer_ops = {.type = "DecoderLayer", LAYER_FUNCTIONS};

static sl_status check_options(const sl_encoder_layer_options *options)
{
    if (options->width < 1 || options->heads < 1 || options->feed_forward < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_encoder_layer_create: width, heads and feed_forward must be at least "
                        "1, got %" PRId64 ", %" PRId64 " and %" PRId64,
                        options->width, options->heads, options->feed_forward);
    return sli_check_dropout("sl_encoder_layer_create", options->dropout);
}

/* In the order of PyTorch's state_dict. */
static sl_status add_children(const sl_encoder_layer_options *options, sl_module **module,
                              sli_encoder_layer *layer)
{
    int64_t width = options->width, hidden = options->feed_forward;
    sl_module *child;
    SL_TRY(sl_module_append(module, "self_attn",
                            sl_self_attention_create(width, options->heads, options->dropout,
                                                     options->mask, &layer->self_attn),
                            &layer->self_attn));
    SL_TRY(sl_module_append(module, "linear1", sl_linear_create(width, hidden, false, &child),
                            &child));
    layer->linear1 = sli_module_as_linear(child);
    SL_TRY(sl_module_append(module, "linear2", sl_linear_create(hidden, width, false, &child),
                            &child));
    layer->linear2 = sli_module_as_linear(child);
    SL_TRY(sl_module_append(module, "norm1", sl_layer_norm_create(width, 0.0f, &child), &child));
    layer->norm1 = sli_layer_norm_of(child);
    SL_TRY(sl_module_append(module, "norm2", sl_layer_norm_create(width, 0.0f, &child), &child));
    layer->norm2 = sli_layer_norm_of(child);
    sli_encoder_layer_count_cached(*module);
    return SL_OK;
}

sl_status sl_encoder_layer_create(const sl_encoder_layer_options *options, sl_module **out)
{
    *out = NULL;
    SL_TRY(check_options(options));
    sli_encoder_layer *layer = calloc(1, sizeof *layer);
    if (!layer)
        return sli_no_memory("sl_encoder_layer_create", "a layer");
    *layer = (sli_encoder_layer){.width = options->width,
                                 .hidden = options->feed_forward,
                                 .hidden_dropout = options->dropout,
                                 .residual_dropout = options->dropout,
                                 .pre_norm = options->pre_norm,
                                 .activation = sli_activation_of(options->activation)};
    SL_TRY(sl_module_create(&layer_ops, layer, out));
    (*out)->takes_bf16_gradient = !options->pre_norm;
    return add_children(options, out, layer);
}
