/* Layer norm and RMSNorm: alone as modules, and fused with the residual and the dropout before
 * them.
 */

#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- Fused with the sum before it ------------------------------------------------------- */

void sli_norm_saved_clear(sli_norm_saved *saved)
{
    sl_tensor_destroy(&saved->normalized);
    sl_tensor_destroy(&saved->rstd);
}

sl_status sli_norm_save(sl_pass *pass, sli_norm_saved *saved)
{
    SL_TRY(sl_pass_save(pass, &saved->normalized)); /* as it is where it is bf16 */
    return sli_pass_save_exact(pass, &saved->rstd);
}

sl_status sli_norm_pop(sl_pass *pass, sli_norm_saved *saved)
{
    *saved = (sli_norm_saved){NULL, NULL};
    SL_TRY(sl_pass_pop(pass, &saved->rstd));
    sl_status status = sli_pass_stores_bf16(pass) ? sli_pass_pop_stored(pass, &saved->normalized)
                                                  : sl_pass_pop(pass, &saved->normalized);
    if (status != SL_OK)
        sli_norm_saved_clear(saved);
    return status;
}

int64_t sli_norm_saved_bytes(const sl_shape *in)
{
    return (sl_shape_count(in) + sli_shape_rows(in)) * (int64_t)sizeof(float);
}

static sl_status make_saved(const sl_pass *pass, const sl_shape *shape, sli_norm_saved *saved)
{
    sl_shape rows = sl_shape_1d(sli_shape_rows(shape));
    *saved = (sli_norm_saved){NULL, NULL};
    if (pass->options.keep)
        SL_TRY(sli_pass_create_stored(pass, shape, true, &saved->normalized));
    sl_status status = sli_pass_create_exact_if_kept(pass, &rows, &saved->rstd);
    if (status != SL_OK)
        sli_norm_saved_clear(saved);
    return status;
}

sl_status sli_norm_forward(const sli_layer_norm *norm, const sl_pass *pass, const sl_tensor *x,
                           const sl_tensor *residual, sli_dropout dropout, sl_tensor *sum,
                           sl_tensor *out, sl_tensor *rounded, sli_norm_saved *saved)
{
    sl_device *device = sl_tensor_device(x);
    *saved = (sli_norm_saved){NULL, NULL};
    const float *weight, *bias = NULL;
    SL_TRY(sli_parameter_values(norm->weight, device, &weight));
    if (norm->bias)
        SL_TRY(sli_parameter_values(norm->bias, device, &bias));
    SL_TRY(make_saved(pass, sl_tensor_shape(x), saved));
    sli_add_norm arguments = {
        .rows = sl_tensor_rows(x),
        .width = norm->width,
        .x = sl_tensor_f32(x),
        .residual = sli_tensor_if_f32(residual),
        .dropout = dropout,
        .sum = sli_tensor_if_f32(sum),
        .out = sli_tensor_if_f32(out),
        .out_bf16 = rounded ? sli_tensor_if_bf16(rounded) : sli_tensor_if_bf16(out),
        .rms = !norm->bias,
        .weight = weight,
        .bias = bias,
        .eps = norm->eps,
        .normalized = sli_tensor_if_f32(saved->normalized),
        .normalized_bf16 = sli_tensor_if_bf16(saved->normalized),
        .rstd = sli_tensor_if_f32(saved->rstd),
    };
    sl_status status = sli_device_add_norm(device, &arguments);
    if (status != SL_OK)
        sli_norm_saved_clear(saved);
    return status;
}

/* Where the kernel writes the gradients of weight and bias. It computes both: the gradient of a
 * frozen one goes to memory that nobody reads. A tie may freeze one of them alone. */
static sl_status place_gradients(const sli_layer_norm *norm, sl_device *device,
                                 sli_add_norm_backward *arguments, sl_tensor **room)
{
    bool weight = sli_parameter_is_trained(norm->weight);
    bool bias = norm->bias && sli_parameter_is_trained(norm->bias);
    sl_shape shape = sl_shape_2d(2, norm->width);
    if (weight && !norm->bias)
        return sli_parameter_gradient(norm->weight, &arguments->beta, &arguments->grad_weight);
    if (weight && bias)
        return sli_parameter_gradient_pair(norm->weight, norm->bias, &arguments->beta,
                                           &arguments->grad_weight, &arguments->grad_bias);
    SL_TRY(sl_tensor_create_zero(device, SL_MEMORY_WORKSPACE, SL_F32, &shape, room));
    arguments->grad_weight = sl_tensor_f32(*room);
    arguments->grad_bias = norm->bias ? arguments->grad_weight + norm->width : NULL;
    if (weight)
        return sli_parameter_gradient(norm->weight, &arguments->beta, &arguments->grad_weight);
    return bias ? sli_parameter_gradient(norm->bias, &arguments->beta, &arguments->grad_bias)
                : SL_OK;
}

/* With the rest of the arguments filled in. */
static sl_status run_backward(const sli_layer_norm *norm, sl_device *device,
                              sli_add_norm_backward *arguments)
{
    sl_tensor *unused = NULL;
    sl_status status;
    SL_TRY(sli_parameter_values(norm->weight, device, &arguments->weight));
    SL_TRY_OR_FAIL(place_gradients(norm, device, arguments, &unused));
    status = sli_device_add_norm_backward(device, arguments);
fail:
    sl_tensor_destroy(&unused);
    return status;
}

sl_status sli_norm_backward(const sli_layer_norm *norm, const sli_norm_saved *saved,
                            const sl_tensor *grad_out, const sl_tensor *grad_sum_in,
                            sli_dropout dropout, sl_tensor *grad_sum, sl_tensor *grad_x)
{
    sli_add_norm_backward arguments = {
        .rows = sl_tensor_rows(grad_out),
        .width = norm->width,
        .grad_out = sli_tensor_if_f32(grad_out),
        .grad_out_bf16 = sli_tensor_if_bf16(grad_out),
        .grad_sum_in = sli_tensor_if_f32(grad_sum_in),
        .normalized = sli_tensor_if_f32(saved->normalized),
        .normalized_bf16 = sli_tensor_if_bf16(saved->normalized),
        .rstd = sl_tensor_f32(saved->rstd),
        .rms = !norm->bias,
        .dropout = dropout,
        .grad_sum = sl_tensor_f32(grad_sum),
        .grad_x = sli_tensor_if_f32(grad_x),
        .grad_x_bf16 = sli_tensor_if_bf16(grad_x),
    };
    return run_backward(norm, sl_tensor_device(grad_out), &arguments);
}

/* ---- Of heads --------------------------------------------------------------------------- */

static int64_t rows_of(const sl_tensor *matrix, int64_t heads)
{
    return sl_tensor_rows(matrix) * heads;
}

sl_status sli_norm_heads_forward(const sli_layer_norm *norm, const sl_pass *pass, sl_tensor *matrix,
                                 int64_t column, int64_t heads, sli_norm_saved *saved)
{
    sl_shape shape = sl_shape_2d(rows_of(matrix, heads), norm->width);
    const float *weight;
    SL_TRY(sli_parameter_values(norm->weight, sl_tensor_device(matrix), &weight));
    SL_TRY(make_saved(pass, &shape, saved));
    const sli_add_norm arguments = {
        .rows = shape.size[0],
        .width = norm->width,
        .x = sl_tensor_f32(matrix) + column,
        .out = sl_tensor_f32(matrix) + column,
        .rms = true,
        .weight = weight,
        .eps = norm->eps,
        .normalized = sli_tensor_if_f32(saved->normalized),
        .normalized_bf16 = sli_tensor_if_bf16(saved->normalized),
        .rstd = sli_tensor_if_f32(saved->rstd),
        .groups = {heads, sl_tensor_columns(matrix)},
    };
    return sli_device_add_norm(sl_tensor_device(matrix), &arguments);
}

sl_status sli_norm_heads_backward(const sli_layer_norm *norm, const sli_norm_saved *saved,
                                  sl_tensor *grad, int64_t column, int64_t heads)
{
    sli_add_norm_backward arguments = {
        .rows = rows_of(grad, heads),
        .width = norm->width,
        .grad_out = sl_tensor_f32(grad) + column,
        .normalized = sli_tensor_if_f32(saved->normalized),
        .normalized_bf16 = sli_tensor_if_bf16(saved->normalized),
        .rstd = sl_tensor_f32(saved->rstd),
        .rms = true,
        .grad_sum = sl_tensor_f32(grad) + column,
        .groups = {heads, sl_tensor_columns(grad)},
    };
    return run_backward(norm, sl_tensor_device(grad), &arguments);
}

/* ---- The module ------------------------------------------------------------------------- */

static void norm_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const sli_layer_norm *norm = sl_module_state(module);
    *in = *out = norm->width;
}

static sl_status norm_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const sli_layer_norm *norm = sl_module_state(module);
    *out = *in;
    return sli_shape_check_width(in, 1, norm->width);
}

static sl_status norm_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                              sl_tensor **out)
{
    const sli_layer_norm *norm = sl_module_state(module);
    sli_norm_saved saved;
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    SL_TRY(sli_pass_create_output(pass, sl_tensor_shape(in), out));
    SL_TRY(
        sli_norm_forward(norm, pass, in, NULL, (sli_dropout){.p = 0.0f}, NULL, *out, NULL, &saved));
    sl_status status = sli_norm_save(pass, &saved);
    sli_norm_saved_clear(&saved);
    return status;
}

/* The gradient of the input overwrites the output's. */
static sl_status norm_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                               sl_tensor **grad_in)
{
    const sli_layer_norm *norm = sl_module_state(module);
    sli_norm_saved saved;
    SL_TRY(sli_norm_pop(pass, &saved));
    sl_status status;
    SL_TRY_OR_FAIL(sli_check_grad(grad_out, sl_tensor_shape(saved.normalized)));
    SL_TRY_OR_FAIL(
        sli_norm_backward(norm, &saved, grad_out, NULL, (sli_dropout){.p = 0.0f}, grad_out, NULL));
    if (grad_in)
        status = sl_tensor_alias(grad_out, grad_in);

fail:
    sli_norm_saved_clear(&saved);
    return status;
}

static int64_t norm_saved_bytes(const sl_module *module, const sl_shape *in)
{
    (void)module;
    return sli_norm_saved_bytes(in);
}

static const sl_module_ops norm_ops = {
    .type = "LayerNorm",
    .forward = norm_forward,
    .backward = norm_backward,
    .output_shape = norm_output_shape,
    .widths = norm_widths,
    .saved_bytes = norm_saved_bytes,
    .can_continue = sli_always_continues,
};

static const sl_module_ops rms_norm_ops = {
    .type = "RMSNorm",
    .forward = norm_forward,
    .backward = norm_backward,
    .output_shape = norm_output_shape,
    .widths = norm_widths,
    .saved_bytes = norm_saved_bytes,
    .can_continue = sli_always_continues,
};

const sli_layer_norm *sli_layer_norm_of(const sl_module *module)
{
    return sl_module_state(module);
}

static sl_status declare_parameters(sl_module *module, bool has_bias, sli_layer_norm *norm)
{
    sl_parameter_spec weight = {.name = "weight",
                                .shape = sl_shape_1d(norm->width),
                                .low = 1.0f,
                                .high = 1.0f};
    sl_parameter_spec bias = {.name = "bias", .shape = sl_shape_1d(norm->width)};
    SL_TRY(sl_module_add_parameter(module, &weight, &norm->weight));
    return has_bias ? sl_module_add_parameter(module, &bias, &norm->bias) : SL_OK;
}

static sl_status create(const char *who, const sl_module_ops *ops, int64_t width, float eps,
                        sl_module **out)
{
    *out = NULL;
    if (width < 1)
        return sl_error(SL_ERR_INVALID, "%s: width must be at least 1, got %" PRId64, who, width);
    if (!(eps >= 0.0f) || !isfinite(eps))
        return sl_error(SL_ERR_INVALID, "%s: eps must not be negative, got %g", who, (double)eps);
    sli_layer_norm *norm = calloc(1, sizeof *norm);
    if (!norm)
        return sli_no_memory(who, "a norm");
    norm->width = width;
    norm->eps = eps;
    SL_TRY(sl_module_create(ops, norm, out));
    (*out)->exact_columns = 1;
    sl_status status = declare_parameters(*out, ops == &norm_ops, norm);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}

sl_status sl_layer_norm_create(int64_t width, float eps, sl_module **out)
{
    return create("sl_layer_norm_create", &norm_ops, width, eps == 0.0f ? 1e-5f : eps, out);
}

sl_status sl_rms_norm_create(int64_t width, float eps, sl_module **out)
{
    return create("sl_rms_norm_create", &rms_norm_ops, width, eps == 0.0f ? 1e-6f : eps, out);
}
