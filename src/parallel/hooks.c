/* Communication hooks that the library brings along. */
#include "sluice/ddp.h"

#include <stdlib.h>
#include <string.h>

sl_status sl_ddp_average_hook(void *arg, sl_ddp_bucket *bucket)
{
    (void)arg;
    return sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_F32,
                               SL_REDUCE_AVERAGE, NULL);
}

/* bf16 is the upper half of f32. Rounds to nearest, ties to even; NaN stays NaN. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

sl_status sl_ddp_bf16_hook(void *arg, sl_ddp_bucket *bucket)
{
    (void)arg;
    if (!bucket->scratch)
        bucket->scratch = malloc((size_t)bucket->count * sizeof(uint16_t));
    uint16_t *narrow = bucket->scratch;
    if (!narrow)
        return sl_error(SL_ERR_MEMORY, "sl_ddp_bf16_hook: no memory for %lld gradients",
                        (long long)bucket->count);
    for (int64_t i = 0; i < bucket->count; i++)
        narrow[i] = to_bf16(bucket->grads[i]);
    SL_TRY(sl_group_all_reduce(bucket->group, narrow, bucket->count, SL_BF16, SL_REDUCE_AVERAGE,
                               NULL));
    for (int64_t i = 0; i < bucket->count; i++)
        bucket->grads[i] = from_bf16(narrow[i]);
    return SL_OK;
}
