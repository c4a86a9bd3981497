/* Numbers of 16 bits in files, which become f32 in the room that these have. */
#include "core/bf16.h"
#include "core/f16.h"
#include "train/checkpoint/checkpoints.h"

bool sli_item_is_narrow(sl_dtype dtype)
{
    return dtype == SL_BF16 || dtype == SL_F16;
}

void sli_item_place_narrow(sl_safetensors_item *item, sl_dtype dtype)
{
    item->dtype = dtype;
    if (item->data)
        item->data = (uint16_t *)item->data + sl_shape_count(&item->shape);
}

void sli_item_widen(const sl_safetensors_item *item)
{
    enum { AT_ONCE = 1024 };
    int64_t all = sl_shape_count(&item->shape);
    const uint16_t *narrow = item->data;
    float *wide = (float *)(void *)(narrow - all);
    for (int64_t done = 0; done < all; done += AT_ONCE) {
        uint16_t some[AT_ONCE];
        int64_t count = all - done < AT_ONCE ? all - done : AT_ONCE;
        memcpy(some, narrow + done, (size_t)count * sizeof *some);
        for (int64_t i = 0; i < count && item->dtype == SL_F16; i++)
            wide[done + i] = sli_f32_from_f16(some[i]);
        for (int64_t i = 0; i < count && item->dtype == SL_BF16; i++)
            wide[done + i] = sli_f32_from_bf16(some[i]);
    }
}
