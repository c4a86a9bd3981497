/* Communication hooks that the library brings along. */
#include "sluice/ddp.h"

#include "core/bf16.h"

#include <stdlib.h>

sl_status sl_ddp_average_hook(void *arg, sl_ddp_bucket *bucket)
{
    (void)arg;
    return sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_F32,
                               SL_REDUCE_AVERAGE, NULL);
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
        narrow[i] = sli_bf16_from_f32(bucket->grads[i]);
    SL_TRY(sl_group_all_reduce(bucket->group, narrow, bucket->count, SL_BF16, SL_REDUCE_AVERAGE,
                               NULL));
    for (int64_t i = 0; i < bucket->count; i++)
        bucket->grads[i] = sli_f32_from_bf16(narrow[i]);
    return SL_OK;
}
