/* A layer that adds the batch's further input "noise" [N, D] to all positions of a row while the
 * model trains: [N, T, D] -> [N, T, D]. */
#ifndef EXAMPLES_JITTER_H
#define EXAMPLES_JITTER_H

#include <sluice/module.h>

static sl_status jitter_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    const sl_tensor *noise;
    int64_t D = sl_tensor_columns(in), T = sl_tensor_shape(in)->size[1];
    if (!sl_module_is_training(module, pass))
        return sl_tensor_alias(in, out);
    SL_TRY(sl_pass_input(pass, "noise", &noise));
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(*out)[i] =
            sl_tensor_f32(in)[i] + sl_tensor_f32(noise)[i / (T * D) * D + i % D];
    return SL_OK;
}

static sl_status jitter_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    (void)module, (void)pass;
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static bool jitter_can_continue(const sl_module *module)
{
    (void)module;
    return true;
}

static sl_status jitter_create(sl_module **out)
{
    static const sl_module_ops ops = {.type = "Jitter",
                                      .forward = jitter_forward,
                                      .backward = jitter_backward,
                                      .can_continue = jitter_can_continue};
    return sl_module_create(&ops, NULL, out);
}

#endif
