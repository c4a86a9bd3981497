/* ReLU, GELU and Dropout as modules. (The Transformer's layers have theirs fused into kernels.) */
#include "nn/layers.h"
#include "nn/module.h"

#include <stdlib.h>

const char *const sl_activation_names[] = {"relu", "gelu", "gelu_tanh", NULL};

/* ---- Activations ------------------------------------------------------------------------ */

static sli_activation activation_of(const sl_module *module)
{
    return *(const sli_activation *)sl_module_state(module);
}

static sl_status activation_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                    sl_tensor **out)
{
    sl_device *device = sl_pass_device(pass);
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    SL_TRY(sli_pass_create_output(pass, sl_tensor_shape(in), out));
    sli_epilogue arguments = {
        .rows = sl_tensor_rows(in),
        .columns = sl_tensor_columns(in),
        .x = sl_tensor_f32(in),
        .out = sl_tensor_f32(*out),
        .activation = activation_of(module),
    };
    SL_TRY(sli_device_epilogue(device, &arguments));
    return sl_pass_save_alias(pass, in);
}

static sl_status activation_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                     sl_tensor **grad_in)
{
    sl_device *device = sl_pass_device(pass);
    sl_tensor *in;
    SL_TRY(sl_pass_pop(pass, &in));
    sl_status status;
    SL_TRY_OR_FAIL(sli_check_grad(grad_out, sl_tensor_shape(in)));
    sli_epilogue_backward back = {
        .rows = sl_tensor_rows(in),
        .columns = sl_tensor_columns(in),
        .ld = sl_tensor_columns(in),
        .grad = sl_tensor_f32(grad_out),
        .saved = sl_tensor_f32(in),
        .activation = activation_of(module),
    };
    SL_TRY_OR_FAIL(sli_device_epilogue_backward(device, &back));
    if (grad_in)
        status = sl_tensor_alias(grad_out, grad_in);

fail:
    sl_tensor_destroy(&in);
    return status;
}

sli_activation sli_activation_of(sl_activation activation)
{
    switch (activation) {
    case SL_ACTIVATION_GELU:
        return SLI_ACTIVATION_GELU;
    case SL_ACTIVATION_GELU_TANH:
        return SLI_ACTIVATION_GELU_TANH;
    case SL_ACTIVATION_RELU:
        break;
    }
    return SLI_ACTIVATION_RELU;
}

static const sl_module_ops relu_ops = {
    .type = "ReLU",
    .forward = activation_forward,
    .backward = activation_backward,
    .saved_bytes = sli_input_saved_bytes,
    .widths = sli_width_kept,
    .can_continue = sli_always_continues,
};

static const sl_module_ops gelu_ops = {
    .type = "GELU",
    .forward = activation_forward,
    .backward = activation_backward,
    .saved_bytes = sli_input_saved_bytes,
    .widths = sli_width_kept,
    .can_continue = sli_always_continues,
};

sl_status sl_activation_create(sl_activation activation, sl_module **out)
{
    *out = NULL;
    sli_activation *kind = malloc(sizeof *kind);
    if (!kind)
        return sli_no_memory("sl_activation_create", "an activation");
    *kind = sli_activation_of(activation);
    return sl_module_create(activation == SL_ACTIVATION_RELU ? &relu_ops : &gelu_ops, kind, out);
}

/* ---- Dropout. Nothing is saved: backward computes the mask again ------------------------ */

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

static sli_dropout dropout_of(const sl_module *module, const sl_pass *pass, const sl_tensor *tensor)
{
    const float *p = sl_module_state(module);
    int64_t samples = sl_tensor_shape(tensor)->size[0];
    return sli_pass_dropout(pass, module, 0, *p, samples ? sl_tensor_rows(tensor) / samples : 1);
}

/* out = dropout(x); `out` may be `x`. */
static sl_status apply_dropout(sli_dropout mask, const sl_tensor *x, sl_tensor *out)
{
    sli_add_dropout arguments = {
        .rows = sl_tensor_rows(x),
        .width = sl_tensor_columns(x),
        .x = sl_tensor_f32(x),
        .dropout = mask,
        .out = sl_tensor_f32(out),
    };
    return sli_device_add_dropout(sl_tensor_device(x), &arguments);
}

static sl_status dropout_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_tensor **out)
{
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    sli_dropout mask = dropout_of(module, pass, in);
    if (mask.p == 0.0f)
        return sl_tensor_alias(in, out);
    SL_TRY(sli_pass_create_output(pass, sl_tensor_shape(in), out));
    return apply_dropout(mask, in, *out);
}

static sl_status dropout_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                  sl_tensor **grad_in)
{
    sl_shape shape;
    SL_TRY(sli_check_dtype("the gradient", grad_out, SL_F32));
    SL_TRY(dropout_output_shape(module, sl_tensor_shape(grad_out), &shape));
    sli_dropout mask = dropout_of(module, pass, grad_out);
    if (mask.p > 0.0f)
        SL_TRY(apply_dropout(mask, grad_out, grad_out));
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static const sl_module_ops dropout_ops = {
    .type = "Dropout",
    .forward = dropout_forward,
    .backward = dropout_backward,
    .output_shape = dropout_output_shape,
    .widths = sli_width_kept,
    .can_continue = sli_always_continues,
};

sl_status sl_dropout_create(float p, sl_module **out)
{
    *out = NULL;
    SL_TRY(sli_check_dropout("sl_dropout_create", p));
    float *state = malloc(sizeof *state);
    if (!state)
        return sli_no_memory("sl_dropout_create", "a dropout");
    *state = p;
    return sl_module_create(&dropout_ops, state, out);
}
