/* Slices of rows: what modules keep of a micro-batch's positions while its slices go forward one
 * after the other, each adding its own, and backward in reverse. The gradient of what is kept lies
 * beside it. When a slice goes backward, all later ones have added to the gradient of its
 * positions, which is then complete. */
#include "nn/module.h"

#include "core/error.h"

#include <stdlib.h>

struct sli_slices {
    int64_t positions;
    uint32_t module_count;
    sl_tensor *tensors[]; /* [module_count] by the modules' numbers; NULL: not used yet. Then their
                             gradients */
};

sl_status sli_slices_create(const sl_module *model, int64_t positions, sli_slices **out)
{
    uint32_t count = sli_module_root((sl_module *)model)->modules_end;
    sli_slices *slices = *out =
        calloc(1, sizeof *slices + 2 * (size_t)count * sizeof *slices->tensors);
    if (!slices)
        return sli_no_memory(NULL, "the slices of a micro-batch");
    slices->positions = positions;
    slices->module_count = count;
    return SL_OK;
}

void sli_slices_destroy(sli_slices **slices)
{
    if (!*slices)
        return;
    for (size_t i = 0; i < 2 * (size_t)(*slices)->module_count; i++)
        sl_tensor_destroy(&(*slices)->tensors[i]);
    free(*slices);
    *slices = NULL;
}

void sli_pass_begin_slice(sl_pass *pass, sli_slices *slices, int64_t first_position, int64_t length)
{
    pass->slices = slices;
    pass->first_position = first_position;
    pass->slice_length = length;
}

/* Of the first index, a value's or a gradient's; *is_new: it has undefined content. */
static sl_status find_tensor(const sl_pass *pass, size_t index, int64_t rows, int64_t width,
                             sl_tensor **out, bool *is_new)
{
    sl_tensor **tensor = &pass->slices->tensors[index];
    sl_shape shape = sl_shape_3d(rows, pass->slices->positions, width);
    *is_new = !*tensor;
    if (*is_new)
        SL_TRY(
            sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32, &shape, tensor));
    *out = *tensor;
    return SL_OK;
}

/* Copies between the slice's positions [N, T, width] and those of `all`. */
static sl_status copy_positions(const sl_pass *pass, const sl_tensor *positions,
                                const sl_tensor *all, bool into_all)
{
    const sl_shape *shape = sl_tensor_shape(positions);
    int64_t time = shape->size[1], width = shape->size[2], room = sl_tensor_shape(all)->size[1];
    sl_shape rows = sl_shape_2d(time, width);
    for (int64_t n = 0; n < shape->size[0]; n++) {
        sl_tensor *own = NULL, *kept = NULL;
        int64_t first = n * room + pass->first_position;
        sl_status status;
        SL_TRY_OR_FAIL(sl_tensor_view(positions, n * time * width, &rows, &own));
        SL_TRY_OR_FAIL(sl_tensor_view(all, first * width, &rows, &kept));
        status = sl_tensor_copy(into_all ? kept : own, into_all ? own : kept);

    fail:
        sl_tensor_destroy(&own);
        sl_tensor_destroy(&kept);
        SL_TRY(status);
    }
    return SL_OK;
}

sl_status sli_slices_store(const sl_pass *pass, const sl_module *module, const sl_tensor *in,
                           sl_tensor **out)
{
    const sl_shape *shape = sl_tensor_shape(in);
    bool is_new;
    SL_TRY(find_tensor(pass, module->number, shape->size[0], shape->size[2], out, &is_new));
    return copy_positions(pass, in, *out, true);
}

sl_tensor *sli_slices_value(const sl_pass *pass, const sl_module *module)
{
    return pass->slices->tensors[module->number];
}

sl_status sli_slices_gradient(const sl_pass *pass, const sl_module *module, sl_tensor **out,
                              bool *is_new)
{
    const sl_shape *shape = sl_tensor_shape(sli_slices_value(pass, module));
    return find_tensor(pass, (size_t)pass->slices->module_count + module->number, shape->size[0],
                       shape->size[2], out, is_new);
}

sl_status sli_slices_load(const sl_pass *pass, const sl_tensor *all, sl_memory_category category,
                          sl_tensor **out)
{
    sl_shape shape = *sl_tensor_shape(all);
    shape.size[1] = pass->slice_length;
    SL_TRY(sl_tensor_create(sl_pass_device(pass), category, SL_F32, &shape, out));
    return copy_positions(pass, *out, all, false);
}

int64_t sli_module_slice_bytes(const sl_module *module, int64_t rows, int64_t positions)
{
    int64_t bytes = rows * positions * module->kept_width * (int64_t)sizeof(float);
    for (int i = 0; i < module->child_count; i++)
        bytes += sli_module_slice_bytes(module->children[i], rows, positions);
    return bytes;
}
