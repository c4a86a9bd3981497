/* The attention of later queries by a device that has that of all queries alone. */
#include "device/device_base.h"

#include "core/error.h"

sl_status sli_attend_to_all(sl_device *device, const sli_attention *a)
{
    int64_t width = a->heads * a->head_width, queries = a->positions - a->first_query;
    int64_t qkv_width = (a->heads + 2 * a->key_heads) * a->head_width;
    size_t bytes = (size_t)(a->positions * width) * sizeof(float);
    sli_attention one = *a;
    void *room;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &room));
    one.samples = 1;
    one.first_query = one.room = 0;
    one.out = room;
    sl_status status = SL_OK;
    for (int64_t sample = 0; sample < a->samples; sample++) {
        one.qkv = a->qkv + sample * a->room * qkv_width;
        SL_TRY_OR_FAIL(device->ops->attention(device, &one));
        SL_TRY_OR_FAIL(device->ops->copy(device, a->out + sample * queries * width,
                                         one.out + a->first_query * width,
                                         (size_t)(queries * width) * sizeof(float)));
    }

fail:
    sli_device_release(device, SL_MEMORY_WORKSPACE, room, bytes);
    return status;
}
