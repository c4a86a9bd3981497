#include "train/feed.h"

sl_status sli_feed_create(const sl_pipe *pipe, const sl_batches *batches, sli_feed *out)
{
    *out = (sli_feed){.batches = batches};
    sl_shape shape = sl_shape_2d(batches->columns, batches->bptt);
    sl_device *first = sl_pipe_device(pipe, 0);
    sl_device *last = sl_pipe_device(pipe, sl_pipe_stages(pipe) - 1);
    sl_status status =
        sl_tensor_create(first, SL_MEMORY_WORKSPACE, SL_I32, &shape, &out->input_room);
    if (status == SL_OK)
        status = sl_tensor_create(last, SL_MEMORY_WORKSPACE, SL_I32, &shape, &out->target_room);
    if (status != SL_OK)
        sli_feed_clear(out);
    return status;
}

void sli_feed_clear(sli_feed *feed)
{
    sl_tensor_destroy(&feed->input);
    sl_tensor_destroy(&feed->targets);
    sl_tensor_destroy(&feed->input_room);
    sl_tensor_destroy(&feed->target_room);
}

sl_status sli_feed_load(sli_feed *feed, int64_t index)
{
    sl_shape shape =
        sl_shape_2d(feed->batches->columns, sl_batches_block_length(feed->batches, index));
    sl_tensor_destroy(&feed->input);
    sl_tensor_destroy(&feed->targets);
    SL_TRY(sl_tensor_view(feed->input_room, 0, &shape, &feed->input));
    SL_TRY(sl_tensor_view(feed->target_room, 0, &shape, &feed->targets));
    return sl_batches_block(feed->batches, index, sl_tensor_i32(feed->input),
                            sl_tensor_i32(feed->targets));
}
