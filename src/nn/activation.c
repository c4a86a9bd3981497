/* ReLU and GELU as modules of their own; the Transformer's are part of a matrix product. */
#include "device/device.h"
#include "nn/pass.h"
#include "nn/shape.h"
#include "sluice/layers.h"

#include <stdlib.h>

static sli_activation activation_of(const sl_module *module)
{
    return *(const sli_activation *)sl_module_state(module);
}

static sl_status activation_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                    sl_tensor **out)
{
    sl_device *device = sl_pass_device(pass);
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, sl_tensor_shape(in), out));
    sli_epilogue arguments = {
        .rows = sl_tensor_rows(in),
        .columns = sl_tensor_columns(in),
        .x = sl_tensor_f32(in),
        .out = sl_tensor_f32(*out),
        .activation = activation_of(module),
    };
    sl_status status = sli_device_epilogue(device, &arguments);
    if (status == SL_OK)
        status = sl_pass_save_alias(pass, in);
    if (status != SL_OK)
        sl_tensor_destroy(out);
    return status;
}

static sl_status activation_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                     sl_tensor **grad_in)
{
    sl_device *device = sl_pass_device(pass);
    sl_tensor *in;
    SL_TRY(sl_pass_pop(pass, &in));
    sl_status status = sli_check_grad(grad_out, sl_tensor_shape(in));
    if (status == SL_OK) {
        sli_epilogue_backward back = {
            .rows = sl_tensor_rows(in),
            .columns = sl_tensor_columns(in),
            .grad = sl_tensor_f32(grad_out),
            .saved = sl_tensor_f32(in),
            .activation = activation_of(module),
        };
        status = sli_device_epilogue_backward(device, &back);
    }
    sl_tensor_destroy(&in);
    if (status == SL_OK && grad_in)
        status = sl_tensor_alias(grad_out, grad_in);
    return status;
}

static int64_t activation_saved_bytes(const sl_module *module, const sl_shape *in)
{
    (void)module;
    return sl_shape_count(in) * (int64_t)sizeof(float);
}

static const sl_module_ops relu_ops = {
    .type = "ReLU",
    .forward = activation_forward,
    .backward = activation_backward,
    .saved_bytes = activation_saved_bytes,
    .widths = sli_width_kept,
};

static const sl_module_ops gelu_ops = {
    .type = "GELU",
    .forward = activation_forward,
    .backward = activation_backward,
    .saved_bytes = activation_saved_bytes,
    .widths = sli_width_kept,
};

sl_status sl_activation_create(sl_activation activation, sl_module **out)
{
    *out = NULL;
    sli_activation *kind = malloc(sizeof *kind);
    if (!kind)
        return sl_error(SL_ERR_MEMORY, "sl_activation_create: no memory for an activation");
    bool relu = activation == SL_ACTIVATION_RELU;
    *kind = relu ? SLI_ACTIVATION_RELU : SLI_ACTIVATION_GELU;
    return sl_module_create(relu ? &relu_ops : &gelu_ops, kind, out);
}
