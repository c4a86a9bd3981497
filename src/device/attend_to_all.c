/* The attention of later queries by a device that has that of all queries alone. */
#include "device/device_base.h"

#include "core/error.h"

sl_status sli_attend_to_all(sl_device *device, const sli_attention *a)
{
    int64_t width = a->heads * a->head_width, queries = a->positions - a->first_query;
    int64_t qkv_width = (a->heads + 2 * a->key_heads) * a->head_width;
    size_t bytes = (size_t)(a->positions * width) * sizeof(float);
    size_t wide_bytes = a->qkv_bf16 ? (size_t)(a->positions * qkv_width) * sizeof(float) : 0;
    sli_attention one = *a;
    void *room, *wide = NULL;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &room));
    one.samples = 1;
    one.first_query = one.room = 0;
    one.qkv_bf16 = NULL;
    one.out = room;
    sl_status status;
    SLI_TRY_OR_FAIL(sli_device_allocate(device, SL_MEMORY_WORKSPACE, wide_bytes, &wide));
    for (int64_t sample = 0; sample < a->samples; sample++) {
        int64_t first = sample * a->room * qkv_width;
        one.qkv = wide ? wide : a->qkv + first;
        if (wide)
            SLI_TRY_OR_FAIL(
                device->ops->convert(device, &(sli_convert){.count = a->positions * qkv_width,
                                                            .from_bf16 = true,
                                                            .from = a->qkv_bf16 + first,
                                                            .to = wide}));
        SLI_TRY_OR_FAIL(device->ops->attention(device, &one));
        SLI_TRY_OR_FAIL(device->ops->copy(device, a->out + sample * queries * width,
                                          one.out + a->first_query * width,
                                          (size_t)(queries * width) * sizeof(float)));
    }

fail:
    sli_device_release(device, SL_MEMORY_WORKSPACE, wide, wide_bytes);
    sli_device_release(device, SL_MEMORY_WORKSPACE, room, bytes);
    return status;
}
