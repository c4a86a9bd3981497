#include "train/loader.h"

sl_status sli_loader_create(const sl_pipe *pipe, const sl_batches *batches, sli_loader *out)
{
    *out = (sli_loader){.batches = *batches};
    sl_shape shape = sl_shape_2d(batches->columns, batches->bptt);
    sl_device *first = sl_pipe_device(pipe, 0);
    sl_device *last = sl_pipe_device(pipe, sl_pipe_stages(pipe) - 1);
    SL_TRY(sl_tensor_create(first, SL_MEMORY_WORKSPACE, SL_I32, &shape, &out->input_room));
    return sl_tensor_create(last, SL_MEMORY_WORKSPACE, SL_I32, &shape, &out->target_room);
}

void sli_loader_clear(sli_loader *loader)
{
    sl_tensor_destroy(&loader->input);
    sl_tensor_destroy(&loader->targets);
    sl_tensor_destroy(&loader->input_room);
    sl_tensor_destroy(&loader->target_room);
}

sl_status sli_loader_load(sli_loader *loader, int64_t index)
{
    const sl_batches *batches = &loader->batches;
    sl_shape shape = sl_shape_2d(batches->columns, sl_batches_block_length(batches, index));
    sl_tensor_destroy(&loader->input);
    sl_tensor_destroy(&loader->targets);
    SL_TRY(sl_tensor_view(loader->input_room, 0, &shape, &loader->input));
    SL_TRY(sl_tensor_view(loader->target_room, 0, &shape, &loader->targets));
    return sl_batches_block(batches, index, sl_tensor_i32(loader->input),
                            sl_tensor_i32(loader->targets));
}
