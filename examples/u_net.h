/* A small U-Net: layers that get narrower and wider again, and skip connections between layers of
 * equal width. Two layers that this file defines make these connections:
 *   Stash   stashes its input under a name; the input is its output too
 *   Concat  pops the stashed tensor and appends it to its input: [..., in] -> [..., in + width]
 * In backward, Concat splits its gradient into one for its input and one for the stashed tensor.
 * Stash pops the latter and adds it to the gradient of its output. */
#ifndef EXAMPLES_U_NET_H
#define EXAMPLES_U_NET_H

#include <sluice/layers.h>

#include <stdlib.h>
#include <string.h>

typedef struct skip_end {
    const char *name; /* borrowed */
    int64_t width;    /* columns of the tensor that Concat pops */
} skip_end;

static sl_status stash_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    const skip_end *end = sl_module_state(module);
    SL_TRY(sl_pass_stash_skip(pass, end->name, in));
    return sl_tensor_alias(in, out);
}

static sl_status stash_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in)
{
    const skip_end *end = sl_module_state(module);
    sl_tensor *grad;
    SL_TRY(sl_pass_pop_skip_grad(pass, end->name, &grad));
    for (int64_t i = 0; i < sl_tensor_count(grad); i++)
        sl_tensor_f32(grad_out)[i] += sl_tensor_f32(grad)[i];
    sl_tensor_destroy(&grad);
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

/* *out is a copy of columns first ... first + width - 1. */
static sl_status copy_columns(sl_pass *pass, const sl_tensor *source, int64_t first, int64_t width,
                              sl_tensor **out)
{
    sl_shape shape = *sl_tensor_shape(source);
    shape.size[shape.dims - 1] = width;
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    for (int64_t row = 0; row < sl_tensor_rows(source); row++)
        memcpy(sl_tensor_f32(*out) + row * width,
               sl_tensor_f32(source) + row * sl_tensor_columns(source) + first,
               (size_t)width * sizeof(float));
    return SL_OK;
}

static sl_status concat_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const skip_end *end = sl_module_state(module);
    if (in->dims > 0)
        out->size[in->dims - 1] += end->width;
    return in->dims > 0 ? SL_OK : sl_error(SL_ERR_INVALID, "expected rows, got a scalar");
}

static sl_status concat_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    const skip_end *end = sl_module_state(module);
    int64_t width = sl_tensor_columns(in), sum = width + end->width;
    sl_shape shape = *sl_tensor_shape(in);
    sl_tensor *skip;
    shape.size[shape.dims - 1] = sum;
    SL_TRY(sl_pass_pop_skip(pass, end->name, &skip));
    sl_status status = SL_OK;
    if (sl_tensor_columns(skip) != end->width || sl_tensor_rows(skip) != sl_tensor_rows(in))
        status = sl_error(SL_ERR_INVALID, "\"%s\" has another shape", end->name);
    if (status == SL_OK)
        status = sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out);
    for (int64_t row = 0; row < sl_tensor_rows(in) && status == SL_OK; row++) {
        float *to = sl_tensor_f32(*out) + row * sum;
        memcpy(to, sl_tensor_f32(in) + row * width, (size_t)width * sizeof *to);
        memcpy(to + width, sl_tensor_f32(skip) + row * end->width, (size_t)end->width * sizeof *to);
    }
    sl_tensor_destroy(&skip);
    return status;
}

static sl_status concat_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    const skip_end *end = sl_module_state(module);
    int64_t width = sl_tensor_columns(grad_out) - end->width;
    sl_tensor *grad;
    SL_TRY(copy_columns(pass, grad_out, width, end->width, &grad));
    SL_TRY(sl_pass_stash_skip_grad(pass, end->name, &grad)); /* takes it */
    return grad_in ? copy_columns(pass, grad_out, 0, width, grad_in) : SL_OK;
}

static const sl_module_ops stash_ops = {.type = "Stash",
                                        .forward = stash_forward,
                                        .backward = stash_backward};
static const sl_module_ops concat_ops = {.type = "Concat",
                                         .forward = concat_forward,
                                         .backward = concat_backward,
                                         .output_shape = concat_output_shape};

/* Creates a Concat for a stashed tensor with `width` columns, or, if `width` is 0, a Stash. */
static sl_status skip_end_create(const char *name, int64_t width, sl_module **out)
{
    skip_end *end = malloc(sizeof *end);
    *out = NULL;
    if (!end)
        return sl_error(SL_ERR_MEMORY, "skip_end_create: no memory");
    *end = (skip_end){name, width};
    SL_TRY(sl_module_create(width ? &concat_ops : &stash_ops, end, out)); /* takes the state */
    sl_status status = (width ? sl_module_add_pop : sl_module_add_stash)(*out, name);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}

static sl_status append_skip_end(sl_module **to, const char *name, int64_t width)
{
    sl_module *next;
    return sl_sequential_append(to, skip_end_create(name, width, &next), &next);
}

static sl_status append_linear(sl_module **to, int64_t in, int64_t out)
{
    sl_module *next;
    SL_TRY(sl_sequential_append(to, sl_linear_create(in, out, false, &next), &next));
    return sl_sequential_append(to, sl_activation_create(SL_ACTIVATION_GELU, &next), &next);
}

/* [N, width] -> [N, width]: 13 modules; `width` is a multiple of 4. */
static inline sl_status u_net_create(int64_t width, sl_module **out)
{
    const int64_t half = width / 2, quarter = width / 4;
    sl_module *last;
    *out = NULL;
    SL_TRY(append_skip_end(out, "whole", 0));
    SL_TRY(append_linear(out, width, half));
    SL_TRY(append_skip_end(out, "half", 0));
    SL_TRY(append_linear(out, half, quarter));
    SL_TRY(append_linear(out, quarter, half));
    SL_TRY(append_skip_end(out, "half", half)); /* [N, half] -> [N, width] */
    SL_TRY(append_linear(out, width, width));
    SL_TRY(append_skip_end(out, "whole", width)); /* [N, width] -> [N, 2 width] */
    return sl_sequential_append(out, sl_linear_create(2 * width, width, false, &last), &last);
}

#endif
