/* Softmax over the last dimension, for layers of one's own. (Attention and the loss have theirs in
 * their kernels.) It works on the host, in the stage's thread. */
#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <math.h>

/* y = softmax(x), with the largest x taken away first, so that no exponential overflows. */
static void softmax_row(const float *x, float *y, int64_t width)
{
    float largest = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < width; i++)
        largest = fmaxf(largest, x[i]);
    for (int64_t i = 0; i < width; i++)
        sum += y[i] = expf(x[i] - largest);
    for (int64_t i = 0; i < width; i++)
        y[i] = (float)(y[i] / sum);
}

/* grad_x = y (grad - sum of grad y), in place. */
static void softmax_backward_row(const float *y, float *grad, int64_t width)
{
    double inner = 0;
    for (int64_t i = 0; i < width; i++)
        inner += (double)grad[i] * y[i];
    for (int64_t i = 0; i < width; i++)
        grad[i] = (float)(y[i] * (grad[i] - inner));
}

/* Runs `row` on each row of both tensors; it writes `out`, and reads it first where `updates`. */
static sl_status for_rows(const sl_tensor *in, sl_tensor *out, bool updates,
                          void (*row)(const float *in, float *out, int64_t width))
{
    sli_host_array read, written;
    int64_t width = sl_tensor_columns(in);
    SL_TRY(sli_tensor_open_host(in, true, &read));
    sl_status status = sli_tensor_open_host(out, updates, &written);
    if (status == SL_OK) {
        for (int64_t i = 0; i < sl_tensor_rows(in); i++)
            row((const float *)read.host + i * width, (float *)written.host + i * width, width);
        status = sli_tensor_close_host(out, &written, true);
    }
    sl_status closed = sli_host_array_close(&read, false);
    return status == SL_OK ? closed : status;
}

static sl_status softmax_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_tensor **out)
{
    (void)module;
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    SL_TRY(sli_pass_create_output(pass, sl_tensor_shape(in), out));
    SL_TRY(for_rows(in, *out, false, softmax_row));
    return sl_pass_save_alias(pass, *out);
}

static sl_status softmax_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                  sl_tensor **grad_in)
{
    (void)module;
    sl_tensor *y;
    SL_TRY(sl_pass_pop(pass, &y));
    sl_status status;
    SL_TRY_OR_FAIL(sli_check_grad(grad_out, sl_tensor_shape(y)));
    if (grad_in) {
        SL_TRY_OR_FAIL(for_rows(y, grad_out, true, softmax_backward_row));
        status = sl_tensor_alias(grad_out, grad_in);
    }

fail:
    sl_tensor_destroy(&y);
    return status;
}

sl_status sl_softmax_create(sl_module **out)
{
    static const sl_module_ops ops = {.type = "Softmax",
                                      .forward = softmax_forward,
                                      .backward = softmax_backward,
                                      .saved_bytes = sli_input_saved_bytes,
                                      .widths = sli_width_kept,
                                      .can_continue = sli_always_continues};
    return sl_module_create(&ops, NULL, out);
}
