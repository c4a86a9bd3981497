/* A layer of one's own as a table of functions: RMSNorm, which the library has as
 * sl_rms_norm_create with kernels for every device.
 *
 *   out = x / rms(x) * weight, rms(x) = sqrt(mean(x^2) + eps), over the last dimension
 *
 * A layer written outside the library works on its tensors with plain loops, on its stage's thread.
 * What it needs of the library's kernels it takes in as children: sl_linear_create, … */
#ifndef EXAMPLES_RMS_NORM_H
#define EXAMPLES_RMS_NORM_H

#include <sluice/module.h>

#include <math.h>
#include <stdlib.h>

typedef struct rms_norm {
    int64_t width;
    sl_parameter *weight; /* [width]; belongs to the module */
} rms_norm;

/* 1 / rms of a row. */
static float scale_of(const float *x, int64_t width)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += (double)x[i] * x[i];
    return (float)(1 / sqrt(sum / (double)width + 1e-6));
}

static sl_status rms_forward(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    const rms_norm *norm = sl_module_state(module);
    const float *weight = sl_tensor_f32(sl_parameter_value(norm->weight));
    sl_shape rows = sl_shape_1d(sl_tensor_rows(in));
    sl_tensor *scales;
    SL_TRY(sl_pass_save_alias(pass, in)); /* this and the scales are all that backward will need */
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32, &rows, &scales));
    for (int64_t row = 0; row < rows.size[0]; row++) {
        const float *x = sl_tensor_f32(in) + row * norm->width;
        float *y = sl_tensor_f32(*out) + row * norm->width, scale = scale_of(x, norm->width);
        for (int64_t i = 0; i < norm->width; i++)
            y[i] = x[i] * scale * weight[i];
        sl_tensor_f32(scales)[row] = scale;
    }
    return sl_pass_save(pass, &scales); /* takes it */
}

/* With n = x * scale: grad_x = scale * (g - n * mean(g * n)), g = grad_y * weight; in place.
 * grad_weight is NULL where the layer is frozen. */
static void backward_row(const rms_norm *norm, const float *weight, const float *x, float scale,
                         float *grad, float *grad_weight)
{
    double inner = 0;
    for (int64_t i = 0; i < norm->width; i++)
        inner += (double)grad[i] * weight[i] * x[i] * scale;
    float mean = (float)(inner / (double)norm->width);
    for (int64_t i = 0; i < norm->width; i++) {
        if (grad_weight)
            grad_weight[i] += grad[i] * x[i] * scale; /* adds: there are other micro-batches */
        grad[i] = scale * (grad[i] * weight[i] - x[i] * scale * mean);
    }
}

static sl_status rms_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                              sl_tensor **grad_in)
{
    const rms_norm *norm = sl_module_state(module);
    const float *weight = sl_tensor_f32(sl_parameter_value(norm->weight));
    sl_tensor *in = NULL, *scales, *grad_weight;
    SL_TRY(sl_parameter_grad(norm->weight, &grad_weight));
    SL_TRY(sl_pass_pop(pass, &scales)); /* in the reverse order */
    sl_status status = sl_pass_pop(pass, &in);
    for (int64_t row = 0; status == SL_OK && row < sl_tensor_rows(in); row++)
        backward_row(norm, weight, sl_tensor_f32(in) + row * norm->width,
                     sl_tensor_f32(scales)[row], sl_tensor_f32(grad_out) + row * norm->width,
                     grad_weight ? sl_tensor_f32(grad_weight) : NULL);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&scales);
    if (status == SL_OK && grad_in) /* NULL: not needed */
        status = sl_tensor_alias(grad_out, grad_in);
    return status;
}

static sl_status rms_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const rms_norm *norm = sl_module_state(module);
    char text[SL_SHAPE_TEXT_BYTES];
    if (in->dims < 1 || in->size[in->dims - 1] != norm->width)
        return sl_error(SL_ERR_INVALID, "expected rows of %lld, got %s", (long long)norm->width,
                        sl_shape_text(in, text));
    *out = *in;
    return SL_OK;
}

static void rms_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const rms_norm *norm = sl_module_state(module);
    *in = *out = norm->width;
}

static int64_t rms_saved_bytes(const sl_module *module, const sl_shape *in)
{
    const rms_norm *norm = sl_module_state(module);
    int64_t count = sl_shape_count(in);
    return (count + count / norm->width) * (int64_t)sizeof(float);
}

static sl_status rms_norm_create(int64_t width, sl_module **out)
{
    static const sl_module_ops ops = {.type = "RMSNorm",
                                      .forward = rms_forward,
                                      .backward = rms_backward,
                                      .output_shape = rms_output_shape,
                                      .saved_bytes = rms_saved_bytes,
                                      .widths = rms_widths};
    rms_norm *norm = malloc(sizeof *norm);
    *out = NULL;
    if (!norm)
        return sl_error(SL_ERR_MEMORY, "rms_norm_create: no memory");
    norm->width = width;
    SL_TRY(sl_module_create(&ops, norm, out)); /* takes the state */
    sl_parameter_spec weight = {.name = "weight", .shape = sl_shape_1d(width), .low = 1, .high = 1};
    sl_status status = sl_module_add_parameter(*out, &weight, &norm->weight);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}

#endif
