/* Low-rank adaptation of products with a weight (Hu et al., "LoRA", 2021):
 *
 *     y = x W^T + scale B(A dropout(x))        A [rank, in], B [out, rank]
 *
 *     d = dropout(x)              [rows, in]
 *     h = scale d A^T             [rows, rank]      y += h B^T
 *
 *     k = scale grad B            [rows, rank]      grad_B += grad^T h
 *                                                   grad_A += k^T d
 *                                                   grad_x += dropout(k A)
 *
 * Nothing is saved for it: backward has x and grad, and computes h and k again, which are narrow.
 * So either half of backward can run without the other. A and B are children of the product's
 * module, with the names that PEFT gives them. */
#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <inttypes.h>

/* ---- The products ----------------------------------------------------------------------- */

static sl_status scale_in_place(const sli_linear *linear, sl_tensor *tensor)
{
    const sli_epilogue arguments = {.rows = sl_tensor_rows(tensor),
                                    .columns = sl_tensor_columns(tensor),
                                    .x = sl_tensor_f32(tensor),
                                    .scale = linear->lora.scale,
                                    .out = sl_tensor_f32(tensor)};
    return sli_device_epilogue(sl_tensor_device(tensor), &arguments);
}

static sl_status create_narrow(const sli_linear *linear, const sl_tensor *like, sl_tensor **out)
{
    sl_shape shape = *sl_tensor_shape(like);
    shape.size[shape.dims - 1] = linear->lora.a->out;
    return sl_tensor_create(sl_tensor_device(like), SL_MEMORY_WORKSPACE, SL_F32, &shape, out);
}

/* The masks are those of A's module. */
static sli_dropout dropout_of(const sli_linear *linear, const sl_pass *pass, const sl_tensor *x)
{
    const sl_shape *shape = sl_tensor_shape(x);
    int64_t rows = shape->dims > 1 ? sl_tensor_rows(x) / shape->size[0] : 1;
    return sli_pass_dropout(pass, linear->lora.module, 0, linear->lora.dropout, rows);
}

/* out = dropout(x) + residual, which may be NULL. */
static sl_status add_dropped(const sl_tensor *x, const sl_tensor *residual, sli_dropout dropout,
                             sl_tensor *out)
{
    const sli_add_dropout arguments = {.rows = sl_tensor_rows(x),
                                       .width = sl_tensor_columns(x),
                                       .x = sl_tensor_f32(x),
                                       .residual = residual ? sl_tensor_f32(residual) : NULL,
                                       .dropout = dropout,
                                       .out = sl_tensor_f32(out)};
    return sli_device_add_dropout(sl_tensor_device(x), &arguments);
}

/* d: without dropout an alias of x. */
static sl_status drop(const sli_linear *linear, const sl_pass *pass, const sl_tensor *x,
                      sl_tensor **out)
{
    sli_dropout dropout = dropout_of(linear, pass, x);
    sl_tensor *wide = NULL;
    if (dropout.p == 0)
        return sl_tensor_alias(x, out);
    if (sl_tensor_dtype(x) != SL_F32)
        SL_TRY(sli_tensor_as(x, SL_F32, SL_MEMORY_WORKSPACE, &wide));
    sl_status status;
    SL_TRY_OR_FAIL(sl_tensor_create(sl_tensor_device(x), SL_MEMORY_WORKSPACE, SL_F32,
                                    sl_tensor_shape(x), out));
    status = add_dropped(wide ? wide : x, NULL, dropout, *out);
fail:
    sl_tensor_destroy(&wide);
    return status;
}

/* h from d. */
static sl_status reduce_input(const sli_linear *linear, const sl_pass *pass, const sl_tensor *d,
                              sl_tensor **out)
{
    SL_TRY(create_narrow(linear, d, out));
    SL_TRY(sli_linear_forward(linear->lora.a, pass, d, NULL, *out));
    return scale_in_place(linear, *out);
}

/* k from the gradient. */
static sl_status reduce_gradient(const sli_linear *linear, const sl_tensor *grad, sl_tensor **out)
{
    SL_TRY(create_narrow(linear, grad, out));
    SL_TRY(sli_linear_backward_input(linear->lora.b, NULL, grad, 0.0f, *out));
    return scale_in_place(linear, *out);
}

sl_status sli_lora_forward(const sli_linear *linear, const sl_pass *pass, const sl_tensor *x,
                           const sli_linear_epilogue *epilogue, sl_tensor *out)
{
    sl_tensor *d = NULL, *h = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(drop(linear, pass, x, &d));
    SL_TRY_OR_FAIL(reduce_input(linear, pass, d, &h));
    status = sli_linear_product(linear->lora.b, h, 1.0f, epilogue, out);

fail:
    sl_tensor_destroy(&h);
    sl_tensor_destroy(&d);
    return status;
}

sl_status sli_lora_add_weights(const sli_linear *linear, const sl_pass *pass, const sl_tensor *grad,
                               const sl_tensor *x)
{
    sl_tensor *d = NULL, *h = NULL, *k = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(drop(linear, pass, x, &d));
    SL_TRY_OR_FAIL(reduce_input(linear, pass, d, &h));
    SL_TRY_OR_FAIL(sli_linear_add_weight(linear->lora.b, pass, grad, h));
    SL_TRY_OR_FAIL(reduce_gradient(linear, grad, &k));
    status = sli_linear_add_weight(linear->lora.a, pass, k, d);

fail:
    sl_tensor_destroy(&k);
    sl_tensor_destroy(&h);
    sl_tensor_destroy(&d);
    return status;
}

sl_status sli_lora_backward_input(const sli_linear *linear, const sl_pass *pass,
                                  const sl_tensor *grad, sl_tensor *grad_in)
{
    sli_dropout dropout = dropout_of(linear, pass, grad_in);
    sl_tensor *k = NULL, *grad_d = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(reduce_gradient(linear, grad, &k));
    if (dropout.p == 0) {
        status = sli_linear_backward_input(linear->lora.a, pass, k, 1.0f, grad_in);
        goto fail;
    }
    SL_TRY_OR_FAIL(sl_tensor_create(sl_tensor_device(grad_in), SL_MEMORY_WORKSPACE, SL_F32,
                                    sl_tensor_shape(grad_in), &grad_d));
    SL_TRY_OR_FAIL(sli_linear_backward_input(linear->lora.a, pass, k, 0.0f, grad_d));
    status = add_dropped(grad_d, grad_in, dropout, grad_in);

fail:
    sl_tensor_destroy(&grad_d);
    sl_tensor_destroy(&k);
    return status;
}

/* ---- Merging ---------------------------------------------------------------------------- */

/* W += (scale B) A, or of a Conv1D, whose weight is [in, out], A^T (scale B)^T. */
static sl_status add_to_weight(const sli_linear *linear, const sl_tensor *a, const sl_tensor *b)
{
    int64_t rank = linear->lora.a->out;
    const sli_gemm product = {
        .transpose_a = linear->is_conv1d,
        .transpose_b = linear->is_conv1d,
        .m = linear->is_conv1d ? linear->in : linear->out,
        .n = linear->is_conv1d ? linear->out : linear->in,
        .k = rank,
        .a = sl_tensor_f32(linear->is_conv1d ? a : b),
        .lda = linear->is_conv1d ? linear->in : rank,
        .b = sl_tensor_f32(linear->is_conv1d ? b : a),
        .ldb = linear->is_conv1d ? rank : linear->in,
        .beta = 1.0f,
        .c = sl_tensor_f32(linear->weight->value),
        .ldc = linear->is_conv1d ? linear->out : linear->in,
    };
    return sli_device_gemm(sl_tensor_device(a), &product);
}

sl_status sli_lora_merge(const sl_parameter *weight)
{
    const sli_linear *linear = sli_module_as_linear(weight->module);
    if (!linear || linear->weight != weight || !linear->lora.a)
        return SL_OK;
    if (sl_tensor_dtype(weight->value) != SL_F32)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%s is in bf16 alone, which an adapter cannot be added to: open the model "
                        "in f32",
                        weight->path);
    sl_tensor *b = linear->lora.b->weight->value;
    SL_TRY(scale_in_place(linear, b));
    SL_TRY(add_to_weight(linear, linear->lora.a->weight->value, b));
    return sli_tensor_zero(b);
}

/* ---- Adding it to a module -------------------------------------------------------------- */

/* Where the bound is 0, the values are. */
static sl_status add_product(sl_module *module, const char *name, const sli_linear *description,
                             float bound, const sli_linear **out)
{
    sl_module *child;
    SL_TRY(sli_linear_create_bound(description, bound, &child));
    const sli_linear *added = sli_module_as_linear(child);
    SL_TRY(sli_module_add_child(module, name, child));
    added->weight->is_adapter = true;
    *out = added;
    return SL_OK;
}

sl_status sli_linear_add_lora(sl_module *module, int64_t rank, float scale, float dropout)
{
    char path[SLI_PATH_BYTES];
    sli_linear *linear = sl_module_state(module);
    int64_t most = linear->in < linear->out ? linear->in : linear->out;
    const sli_linear a = {.in = linear->in, .out = rank},
                     b = {.in = rank, .out = linear->out, .column = linear->column};
    if (rank > most)
        return sl_error(SL_ERR_INVALID,
                        "lora: the rank must not be above the widths of %s, %" PRId64
                        " in and %" PRId64 " out, got %" PRId64,
                        sli_module_path(module, path), linear->in, linear->out, rank);
    sli_lora lora = {.scale = scale, .dropout = dropout};
    SL_TRY(add_product(module, "lora_A", &a, sli_linear_bound(linear->in), &lora.a));
    SL_TRY(add_product(module, "lora_B", &b, 0.0f, &lora.b));
    lora.module = sl_module_child(module, 0);
    linear->lora = lora;
    return SL_OK;
}

int64_t sli_lora_flops(const sli_linear *linear, int64_t rows)
{
    const sli_lora *lora = &linear->lora;
    return lora->a ? 2 * rows * lora->a->out * (linear->in + linear->out) : 0;
}
