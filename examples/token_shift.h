/* A layer that mixes each position of a text with the one before it, column by column:
 *
 *   y[t] = x[t] + a * x[t - 1]        [N, T, D] -> [N, T, D]
 *
 * It can continue a text, since it keeps the positions in the pass's cache. Its backward has two
 * halves, so that schedules can compute the gradient of `a` later.
 *
 * Source: Peng et al., RWKV: Reinventing RNNs for the Transformer Era (2023). */
#ifndef EXAMPLES_TOKEN_SHIFT_H
#define EXAMPLES_TOKEN_SHIFT_H

#include <sluice/module.h>

#include <stdlib.h>
#include <string.h>

typedef struct token_shift {
    int64_t width;
    sl_parameter *mix; /* [width]; belongs to the module */
} token_shift;

/* x[t - 1] at a row's first position: from the row's cache, where there is one. */
static const float *position_before(const token_shift *shift, const sl_tensor *cached,
                                    int64_t position)
{
    static const float zeros[1024];
    return position == 0 ? zeros : sl_tensor_f32(cached) + (position - 1) * shift->width;
}

static sl_status shift_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    const token_shift *shift = sl_module_state(module);
    const float *mix = sl_tensor_f32(sl_parameter_value(shift->mix));
    int64_t D = shift->width, T = sl_tensor_shape(in)->size[1];
    sl_tensor *cached, *result;
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), &result));
    *out = result;
    for (int64_t n = 0; n < sl_tensor_shape(in)->size[0]; n++) {
        int64_t first = sl_pass_position(pass, n);
        SL_TRY(sl_pass_cache_tensor(pass, module, in, n, D, &cached));
        const float *before = position_before(shift, cached, first);
        for (int64_t t = 0; t < T; t++) {
            const float *x = sl_tensor_f32(in) + (n * T + t) * D;
            float *y = sl_tensor_f32(result) + (n * T + t) * D;
            for (int64_t d = 0; d < D; d++)
                y[d] = x[d] + mix[d] * before[d];
            before = x;
            if (cached)
                memcpy(sl_tensor_f32(cached) + (first + t) * D, x, (size_t)D * sizeof *x);
        }
    }
    return sl_pass_save_alias(pass, in);
}

/* grad_x[t] = grad_y[t] + a * grad_y[t + 1]; what the other half needs is deferred. */
static sl_status shift_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                      sl_tensor **grad_in)
{
    const token_shift *shift = sl_module_state(module);
    const float *mix = sl_tensor_f32(sl_parameter_value(shift->mix));
    int64_t D = shift->width, T = sl_tensor_shape(grad_out)->size[1];
    sl_tensor *in;
    SL_TRY(sl_pass_pop(pass, &in));
    SL_TRY(sl_pass_defer(pass, &in)); /* takes it */
    SL_TRY(sl_pass_defer_alias(pass, grad_out));
    if (!grad_in)
        return SL_OK;
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(grad_out), grad_in));
    const float *y = sl_tensor_f32(grad_out);
    for (int64_t i = 0; i < sl_tensor_count(grad_out); i++)
        sl_tensor_f32(*grad_in)[i] = y[i] + (i / D % T + 1 < T ? mix[i % D] * y[i + D] : 0);
    return SL_OK;
}

static sl_status shift_backward_weight(sl_module *module, sl_pass *pass)
{
    const token_shift *shift = sl_module_state(module);
    int64_t D = shift->width;
    sl_tensor *in, *grad_out = NULL, *grad_mix;
    SL_TRY(sl_pass_take_deferred(pass, &in));
    sl_status status = sl_pass_take_deferred(pass, &grad_out);
    if (status == SL_OK)
        status = sl_parameter_grad(shift->mix, &grad_mix);
    int64_t T = sl_tensor_shape(in)->size[1];
    for (int64_t i = 0; status == SL_OK && grad_mix && i < sl_tensor_count(in); i++)
        if (i / D % T > 0)
            sl_tensor_f32(grad_mix)[i % D] += sl_tensor_f32(grad_out)[i] * sl_tensor_f32(in)[i - D];
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&grad_out);
    return status;
}

static bool shift_can_continue(const sl_module *module)
{
    (void)module;
    return true;
}

/* `width` is 1,024 at most. */
static sl_status token_shift_create(int64_t width, sl_module **out)
{
    static const sl_module_ops ops = {.type = "TokenShift",
                                      .forward = shift_forward,
                                      .backward_input = shift_backward_input,
                                      .backward_weight = shift_backward_weight,
                                      .can_continue = shift_can_continue};
    token_shift *shift = malloc(sizeof *shift);
    *out = NULL;
    if (!shift)
        return sl_error(SL_ERR_MEMORY, "token_shift_create: no memory");
    shift->width = width;
    SL_TRY(sl_module_create(&ops, shift, out)); /* takes the state */
    sl_parameter_spec mix = {.name = "mix", .shape = sl_shape_1d(width), .low = 0.2f, .high = 0.2f};
    sl_status status = sl_module_add_parameter(*out, &mix, &shift->mix);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}

#endif
