/* TransformerEncoderLayer, forward and backward, on fused kernels.
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
 *   x                D, shared          normalized1, rstd1   D + 1
 *   qkv, lse         3 D + H            n1                   D   (attention's input)
 *   attended         D                  qkv, lse, attended   4 D + H
 *   normalized1, rstd1   D + 1          normalized2, rstd2   D + 1
 *   n1               D                  n2                   D
 *   pre (GELU only)  F                  pre (GELU only)      F
 *   h                F                  h                    F
 *   normalized2, rstd2   D + 1
 *
 * No mask is saved: masks are functions of their places, and h is 0 where ReLU's gradient is.
 * Backward works in place on grad_out: it becomes the gradient of each residual sum in turn, and
 * at last that of x. What it needs besides lives only between two products. */
#include "nn/dropout.h"
#include "nn/feed_forward.h"
#include "nn/layer_norm.h"
#include "nn/module.h"
#include "nn/pass.h"
#include "nn/self_attention.h"
#include "nn/shape.h"
#include "sluice/layers.h"

#include <inttypes.h>
#include <stdlib.h>

/* The layer's own dropouts; the attention's belongs to the attention. */
enum { DROPOUT_HIDDEN, DROPOUT_1, DROPOUT_2 };

typedef struct encoder_layer {
    sl_encoder_layer_options options;
    sl_module *self_attn;
    sli_feed_forward feed_forward;
    const sli_layer_norm *norm1, *norm2;
} encoder_layer;

static sli_dropout dropout_of(const sl_module *module, const sl_pass *pass, uint32_t which,
                              const sl_tensor *tensor)
{
    const encoder_layer *layer = sl_module_state(module);
    return sli_pass_dropout(pass, module, which, layer->options.dropout,
                            sl_tensor_shape(tensor)->size[1]);
}

static sl_status workspace_like(const sl_tensor *tensor, sl_tensor **out)
{
    return sl_tensor_create(sl_tensor_device(tensor), SL_MEMORY_WORKSPACE, SL_F32,
                            sl_tensor_shape(tensor), out);
}

static sl_status layer_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const encoder_layer *layer = sl_module_state(module);
    return layer->self_attn->ops->output_shape(layer->self_attn, in, out);
}

/* ---- Forward ---------------------------------------------------------------------------- */

static sl_status feed_forward(const sl_module *module, sl_pass *pass, const sl_tensor *x,
                              sl_tensor **y)
{
    const encoder_layer *layer = sl_module_state(module);
    return sli_feed_forward_run(&layer->feed_forward, pass,
                                dropout_of(module, pass, DROPOUT_HIDDEN, x), x, y);
}

/* out = norm(residual + dropout(x)), saving for its backward; `sum` as in sli_norm_forward. */
static sl_status add_norm(const sl_module *module, sl_pass *pass, const sli_layer_norm *norm,
                          uint32_t which, const sl_tensor *x, const sl_tensor *residual,
                          sl_tensor *sum, sl_tensor *out)
{
    sli_norm_saved saved;
    SL_TRY(sli_norm_forward(norm, pass, x, residual, dropout_of(module, pass, which, x), sum, out,
                            &saved));
    sl_status status = sli_norm_save(pass, &saved);
    sli_norm_saved_clear(&saved);
    return status;
}

static sl_status forward_post_norm(sl_module *module, sl_pass *pass, const sl_tensor *x,
                                   sl_tensor **out)
{
    const encoder_layer *layer = sl_module_state(module);
    sl_tensor *branch = NULL, *n1 = NULL;
    sl_status status =
        sli_self_attention_forward(layer->self_attn, pass, x, SL_MEMORY_WORKSPACE, &branch);
    if (status == SL_OK)
        status = sli_pass_tensor(pass, sl_tensor_shape(x), &n1);
    if (status == SL_OK)
        status = add_norm(module, pass, layer->norm1, DROPOUT_1, branch, x, NULL, n1);
    sl_tensor_destroy(&branch);
    if (status == SL_OK)
        status = feed_forward(module, pass, n1, &branch);
    if (status == SL_OK)
        status = sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                                  sl_tensor_shape(x), out);
    if (status == SL_OK)
        status = add_norm(module, pass, layer->norm2, DROPOUT_2, branch, n1, NULL, *out);
    sl_tensor_destroy(&branch);
    sl_tensor_destroy(&n1);
    return status;
}

/* to = residual + dropout2(x); `residual` may be NULL, or `to`. */
static sl_status dropout_2(const sl_module *module, const sl_pass *pass, const sl_tensor *x,
                           const sl_tensor *residual, sl_tensor *to)
{
    sli_add_dropout arguments = {
        .rows = sl_tensor_rows(x),
        .width = sl_tensor_columns(x),
        .x = sl_tensor_f32(x),
        .residual = residual ? sl_tensor_f32(residual) : NULL,
        .dropout = dropout_of(module, pass, DROPOUT_2, x),
        .out = sl_tensor_f32(to),
    };
    return sli_device_add_dropout(sl_pass_device(pass), &arguments);
}

/* norm1(x), which has no residual and no dropout before it. */
static sl_status first_norm(sl_module *module, sl_pass *pass, const sl_tensor *x, sl_tensor **n1)
{
    const encoder_layer *layer = sl_module_state(module);
    sli_norm_saved saved;
    SL_TRY(sli_pass_tensor(pass, sl_tensor_shape(x), n1));
    SL_TRY(
        sli_norm_forward(layer->norm1, pass, x, NULL, (sli_dropout){.p = 0.0f}, NULL, *n1, &saved));
    sl_status status = sli_norm_save(pass, &saved);
    sli_norm_saved_clear(&saved);
    return status;
}

static sl_status forward_pre_norm(sl_module *module, sl_pass *pass, const sl_tensor *x,
                                  sl_tensor **out)
{
    const encoder_layer *layer = sl_module_state(module);
    sl_tensor *branch = NULL, *normed = NULL;
    sl_status status = first_norm(module, pass, x, &normed);
    if (status == SL_OK)
        status = sli_self_attention_forward(layer->self_attn, pass, normed, SL_MEMORY_WORKSPACE,
                                            &branch);
    sl_tensor_destroy(&normed);
    if (status == SL_OK)
        status = sli_pass_tensor(pass, sl_tensor_shape(x), &normed);
    if (status == SL_OK)
        status = sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                                  sl_tensor_shape(x), out);
    if (status == SL_OK)
        status = add_norm(module, pass, layer->norm2, DROPOUT_1, branch, x, *out, normed);
    sl_tensor_destroy(&branch);
    if (status == SL_OK)
        status = feed_forward(module, pass, normed, &branch);
    if (status == SL_OK)
        status = dropout_2(module, pass, branch, *out, *out);
    sl_tensor_destroy(&branch);
    sl_tensor_destroy(&normed);
    return status;
}

static sl_status layer_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    const encoder_layer *layer = sl_module_state(module);
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    sl_status status = layer->options.pre_norm ? forward_pre_norm(module, pass, in, out)
                                               : forward_post_norm(module, pass, in, out);
    if (status != SL_OK)
        sl_tensor_destroy(out);
    return status;
}

/* ---- Backward --------------------------------------------------------------------------- */

static sl_status feed_forward_backward(const sl_module *module, sl_pass *pass, sl_tensor **grad_y,
                                       float beta, sl_tensor *grad_x)
{
    const encoder_layer *layer = sl_module_state(module);
    return sli_feed_forward_backward(&layer->feed_forward, pass,
                                     dropout_of(module, pass, DROPOUT_HIDDEN, grad_x), grad_y, beta,
                                     grad_x);
}

/* Back through norm(residual + dropout(x)). `grad_sum` holds the sum's gradient from elsewhere when
 * `grad_out` is given, the norm's output's gradient when not; it becomes the residual's. *grad_x
 * is x's: the same tensor without dropout. */
static sl_status add_norm_backward(const sl_module *module, sl_pass *pass,
                                   const sli_layer_norm *norm, uint32_t which,
                                   const sl_tensor *grad_out, sl_tensor *grad_sum,
                                   sl_tensor **grad_x)
{
    sli_dropout dropout = dropout_of(module, pass, which, grad_sum);
    sli_norm_saved saved;
    *grad_x = NULL;
    SL_TRY(sli_norm_pop(pass, &saved));
    sl_status status = sli_check_grad(grad_sum, sl_tensor_shape(saved.normalized));
    if (status == SL_OK)
        status =
            dropout.p > 0.0f ? workspace_like(grad_sum, grad_x) : sl_tensor_alias(grad_sum, grad_x);
    if (status == SL_OK)
        status = sli_norm_backward(norm, &saved, grad_out ? grad_out : grad_sum,
                                   grad_out ? grad_sum : NULL, dropout, grad_sum,
                                   dropout.p > 0.0f ? *grad_x : NULL);
    sli_norm_saved_clear(&saved);
    if (status != SL_OK)
        sl_tensor_destroy(grad_x);
    return status;
}

/* Back through the attention: grad_in = its gradient + beta grad_in, but for a grad_in that nobody
 * needs. Destroys grad_branch. */
static sl_status attention_backward(const encoder_layer *layer, sl_pass *pass,
                                    sl_tensor **grad_branch, float beta, sl_tensor *grad_in)
{
    sl_tensor *grad_qkv;
    sl_status status = sli_self_attention_backward(layer->self_attn, pass, *grad_branch, &grad_qkv);
    sl_tensor_destroy(grad_branch);
    if (status == SL_OK && grad_in)
        status = sli_self_attention_backward_input(layer->self_attn, grad_qkv, beta, grad_in);
    sl_tensor_destroy(&grad_qkv);
    return status;
}

/* `grad` is the gradient of out, then of n1's two uses, then of norm1's sum, then of x. */
static sl_status backward_post_norm(const sl_module *module, sl_pass *pass, sl_tensor *grad,
                                    bool input_needed)
{
    const encoder_layer *layer = sl_module_state(module);
    sl_tensor *branch;
    SL_TRY(add_norm_backward(module, pass, layer->norm2, DROPOUT_2, NULL, grad, &branch));
    SL_TRY(feed_forward_backward(module, pass, &branch, 1.0f, grad));
    SL_TRY(add_norm_backward(module, pass, layer->norm1, DROPOUT_1, NULL, grad, &branch));
    return attention_backward(layer, pass, &branch, 1.0f, input_needed ? grad : NULL);
}

/* grad_y = the gradient through dropout2: the same tensor without dropout. */
static sl_status backward_last(const sl_module *module, const sl_pass *pass, sl_tensor *grad,
                               sl_tensor **grad_y)
{
    if (dropout_of(module, pass, DROPOUT_2, grad).p == 0.0f)
        return sl_tensor_alias(grad, grad_y);
    SL_TRY(workspace_like(grad, grad_y));
    sl_status status = dropout_2(module, pass, grad, NULL, *grad_y);
    if (status != SL_OK)
        sl_tensor_destroy(grad_y);
    return status;
}

static sl_status backward_first_norm(const encoder_layer *layer, sl_pass *pass,
                                     const sl_tensor *grad_n1, sl_tensor *grad)
{
    sli_norm_saved saved;
    SL_TRY(sli_norm_pop(pass, &saved));
    sl_status status = sli_norm_backward(layer->norm1, &saved, grad_n1, grad,
                                         (sli_dropout){.p = 0.0f}, grad, NULL);
    sli_norm_saved_clear(&saved);
    return status;
}

/* `grad` is the gradient of out, then of s, then of x; `normed` that of n2, then of n1. */
static sl_status backward_pre_norm(const sl_module *module, sl_pass *pass, sl_tensor *grad)
{
    const encoder_layer *layer = sl_module_state(module);
    sl_tensor *branch = NULL, *normed = NULL;
    SL_TRY(backward_last(module, pass, grad, &branch));
    sl_status status = workspace_like(grad, &normed);
    if (status == SL_OK)
        status = feed_forward_backward(module, pass, &branch, 0.0f, normed);
    sl_tensor_destroy(&branch);
    if (status == SL_OK)
        status = add_norm_backward(module, pass, layer->norm2, DROPOUT_1, normed, grad, &branch);
    if (status == SL_OK)
        status = attention_backward(layer, pass, &branch, 0.0f, normed);
    if (status == SL_OK)
        status = backward_first_norm(layer, pass, normed, grad);
    sl_tensor_destroy(&normed);
    return status;
}

static sl_status layer_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in)
{
    const encoder_layer *layer = sl_module_state(module);
    sl_shape shape;
    SL_TRY(sli_check_dtype("the gradient", grad_out, SL_F32));
    SL_TRY(layer_output_shape(module, sl_tensor_shape(grad_out), &shape));
    if (layer->options.pre_norm)
        SL_TRY(backward_pre_norm(module, pass, grad_out));
    else
        SL_TRY(backward_post_norm(module, pass, grad_out, grad_in != NULL));
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

/* ---- The module ------------------------------------------------------------------------- */

static void layer_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const encoder_layer *layer = sl_module_state(module);
    *in = *out = layer->options.width;
}

static int64_t layer_saved_bytes(const sl_module *module, const sl_shape *in)
{
    const encoder_layer *layer = sl_module_state(module);
    return sl_module_saved_bytes(layer->self_attn, in) + 2 * sli_norm_saved_bytes(in) +
           sli_feed_forward_saved_bytes(&layer->feed_forward, in);
}

static int64_t layer_flops(const sl_module *module, const sl_shape *in)
{
    const encoder_layer *layer = sl_module_state(module);
    int64_t products = 2 * 2 * layer->options.width * layer->options.feed_forward;
    return sl_module_flops(layer->self_attn, in) + sli_shape_rows(in) * products;
}

static const sl_module_ops layer_ops = {
    .type = "TransformerEncoderLayer",
    .forward = layer_forward,
    .backward = layer_backward,
    .output_shape = layer_output_shape,
    .widths = layer_widths,
    .saved_bytes = layer_saved_bytes,
    .flops = layer_flops,
};

static sl_status check_options(const sl_encoder_layer_options *options)
{
    if (options->width < 1 || options->heads < 1 || options->feed_forward < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_encoder_layer_create: width, heads and feed_forward must be at least "
                        "1, got %" PRId64 ", %" PRId64 " and %" PRId64,
                        options->width, options->heads, options->feed_forward);
    return sli_check_dropout("sl_encoder_layer_create", options->dropout);
}

/* Adds what `created` made, if it made it: the order is that of PyTorch's state_dict. */
static sl_status add_child(sl_module *module, const char *name, sl_status created, sl_module *child)
{
    return created == SL_OK ? sl_module_add_child(module, name, child) : created;
}

static sl_status add_children(sl_module *module, encoder_layer *layer)
{
    const sl_encoder_layer_options *options = &layer->options;
    int64_t width = options->width, hidden = options->feed_forward;
    sl_module *child;
    sl_status made = sl_self_attention_create(width, options->heads, options->dropout,
                                              options->mask, &layer->self_attn);
    SL_TRY(add_child(module, "self_attn", made, layer->self_attn));
    made = sl_linear_create(width, hidden, false, &child);
    SL_TRY(add_child(module, "linear1", made, child));
    layer->feed_forward.linear1 = sli_module_as_linear(child);
    made = sl_linear_create(hidden, width, false, &child);
    SL_TRY(add_child(module, "linear2", made, child));
    layer->feed_forward.linear2 = sli_module_as_linear(child);
    made = sl_layer_norm_create(width, 0.0f, &child);
    SL_TRY(add_child(module, "norm1", made, child));
    layer->norm1 = sli_layer_norm_of(child);
    made = sl_layer_norm_create(width, 0.0f, &child);
    SL_TRY(add_child(module, "norm2", made, child));
    layer->norm2 = sli_layer_norm_of(child);
    return SL_OK;
}

sl_status sl_encoder_layer_create(const sl_encoder_layer_options *options, sl_module **out)
{
    *out = NULL;
    SL_TRY(check_options(options));
    encoder_layer *layer = calloc(1, sizeof *layer);
    if (!layer)
        return sl_error(SL_ERR_MEMORY, "sl_encoder_layer_create: no memory for a layer");
    layer->options = *options;
    layer->feed_forward.activation =
        options->activation == SL_ACTIVATION_RELU ? SLI_ACTIVATION_RELU : SLI_ACTIVATION_GELU;
    SL_TRY(sl_module_create(&layer_ops, layer, out));
    sl_status status = add_children(*out, layer);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}
