/* Dropout as a module of its own; the Transformer's is part of other kernels. Nothing is saved: a
 * mask is a function of its place, and backward computes it again. */
#include "nn/dropout.h"

#include "nn/pass.h"
#include "nn/shape.h"
#include "sluice/layers.h"

#include <stdlib.h>

sl_status sli_check_dropout(const char *who, float p)
{
    if (p >= 0.0f && p < 1.0f)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s: dropout must be at least 0 and below 1, got %g", who,
                    (double)p);
}

static sl_status dropout_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    (void)module;
    *out = *in;
    char text[SL_SHAPE_TEXT_BYTES];
    if (in->dims < 2)
        return sl_error(SL_ERR_INVALID,
                        "the input needs at least 2 dimensions, the first counting samples; got %s",
                        sl_shape_text(in, text));
    return SL_OK;
}

static sli_dropout mask_of(const sl_module *module, const sl_pass *pass, const sl_tensor *tensor)
{
    const float *p = sl_module_state(module);
    int64_t samples = sl_tensor_shape(tensor)->size[0];
    return sli_pass_dropout(pass, module, 0, *p, samples ? sl_tensor_rows(tensor) / samples : 1);
}

/* to = dropout(from); `to` may be `from`. */
static sl_status drop(sli_dropout mask, const sl_tensor *from, sl_tensor *to)
{
    sli_add_dropout arguments = {
        .rows = sl_tensor_rows(from),
        .width = sl_tensor_columns(from),
        .x = sl_tensor_f32(from),
        .dropout = mask,
        .out = sl_tensor_f32(to),
    };
    return sli_device_add_dropout(sl_tensor_device(from), &arguments);
}

static sl_status dropout_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_tensor **out)
{
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    sli_dropout mask = mask_of(module, pass, in);
    if (mask.p == 0.0f)
        return sl_tensor_alias(in, out);
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    sl_status status = drop(mask, in, *out);
    if (status != SL_OK)
        sl_tensor_destroy(out);
    return status;
}

static sl_status dropout_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                  sl_tensor **grad_in)
{
    sl_shape shape;
    SL_TRY(sli_check_dtype("the gradient", grad_out, SL_F32));
    SL_TRY(dropout_output_shape(module, sl_tensor_shape(grad_out), &shape));
    sli_dropout mask = mask_of(module, pass, grad_out);
    if (mask.p > 0.0f)
        SL_TRY(drop(mask, grad_out, grad_out));
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static const sl_module_ops dropout_ops = {
    .type = "Dropout",
    .forward = dropout_forward,
    .backward = dropout_backward,
    .output_shape = dropout_output_shape,
    .widths = sli_width_kept,
};

sl_status sl_dropout_create(float p, sl_module **out)
{
    *out = NULL;
    SL_TRY(sli_check_dropout("sl_dropout_create", p));
    float *state = malloc(sizeof *state);
    if (!state)
        return sl_error(SL_ERR_MEMORY, "sl_dropout_create: no memory for a dropout");
    *state = p;
    return sl_module_create(&dropout_ops, state, out);
}
