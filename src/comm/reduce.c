#include "comm/reduce.h"

#include <assert.h>
#include <string.h>

/* Buffers are combined in blocks that stay in the first-level cache, so that each source is read
 * once and the result written once, whatever the number of sources. */
enum { BLOCK = 2048 };

static float bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* The same five loops for each type; the compiler vectorizes them. */
#define DEFINE_COMBINE(TYPE, NAME)                                                                 \
    static void combine_##NAME(sl_reduce_op op, TYPE *total, const TYPE *next, int64_t count)      \
    {                                                                                              \
        switch (op) {                                                                              \
        case SL_REDUCE_SUM:                                                                        \
        case SL_REDUCE_AVERAGE:                                                                    \
            for (int64_t i = 0; i < count; i++)                                                    \
                total[i] = total[i] + next[i];                                                     \
            break;                                                                                 \
        case SL_REDUCE_PRODUCT:                                                                    \
            for (int64_t i = 0; i < count; i++)                                                    \
                total[i] = total[i] * next[i];                                                     \
            break;                                                                                 \
        case SL_REDUCE_MIN:                                                                        \
            for (int64_t i = 0; i < count; i++)                                                    \
                total[i] = next[i] < total[i] ? next[i] : total[i];                                \
            break;                                                                                 \
        case SL_REDUCE_MAX:                                                                        \
            for (int64_t i = 0; i < count; i++)                                                    \
                total[i] = next[i] > total[i] ? next[i] : total[i];                                \
            break;                                                                                 \
        }                                                                                          \
    }

DEFINE_COMBINE(float, f32)
DEFINE_COMBINE(double, f64)
/* Integers wrap as two's complement: combined without a sign where overflow would be undefined. */
DEFINE_COMBINE(int32_t, i32_ordered)
DEFINE_COMBINE(int64_t, i64_ordered)
DEFINE_COMBINE(uint32_t, u32)
DEFINE_COMBINE(uint64_t, u64)

static bool is_ordering(sl_reduce_op op)
{
    return op == SL_REDUCE_MIN || op == SL_REDUCE_MAX;
}

static void combine_block(sl_dtype dtype, sl_reduce_op op, void *total, const void *next,
                          int64_t count)
{
    switch (dtype) {
    case SL_F32:
        combine_f32(op, total, next, count);
        break;
    case SL_F64:
        combine_f64(op, total, next, count);
        break;
    case SL_I32:
        if (is_ordering(op))
            combine_i32_ordered(op, total, next, count);
        else
            combine_u32(op, total, next, count);
        break;
    case SL_I64:
        if (is_ordering(op))
            combine_i64_ordered(op, total, next, count);
        else
            combine_u64(op, total, next, count);
        break;
    case SL_BF16: {
        float wide[BLOCK];
        const uint16_t *narrow = next;
        for (int64_t i = 0; i < count; i++)
            wide[i] = bf16_to_f32(narrow[i]);
        combine_f32(op, total, wide, count);
        break;
    }
    }
}

static void scale_block(sl_dtype dtype, void *total, int64_t count, int sources)
{
    if (dtype == SL_F64) {
        double *values = total;
        for (int64_t i = 0; i < count; i++)
            values[i] *= 1.0 / sources;
    } else {
        assert(dtype == SL_F32 || dtype == SL_BF16); /* both add up in f32 */
        float *values = total;
        for (int64_t i = 0; i < count; i++)
            values[i] *= 1.0f / (float)sources;
    }
}

void sli_reduce(sl_dtype dtype, sl_reduce_op op, const void *const *sources, int source_count,
                int64_t start, int64_t count, void *out)
{
    const size_t size = sl_dtype_bytes(dtype);
    union {
        float f32[BLOCK]; /* bf16 as well */
        double f64[BLOCK];
        uint32_t u32[BLOCK];
        uint64_t u64[BLOCK];
    } total;
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t length = count - done < BLOCK ? count - done : BLOCK;
        size_t offset = (size_t)(start + done) * size;
        if (dtype == SL_BF16) {
            const uint16_t *first = (const uint16_t *)((const char *)sources[0] + offset);
            for (int64_t i = 0; i < length; i++)
                total.f32[i] = bf16_to_f32(first[i]);
        } else {
            memcpy(&total, (const char *)sources[0] + offset, (size_t)length * size);
        }
        for (int s = 1; s < source_count; s++)
            combine_block(dtype, op, &total, (const char *)sources[s] + offset, length);
        if (op == SL_REDUCE_AVERAGE)
            scale_block(dtype, &total, length, source_count);
        char *to = (char *)out + (size_t)done * size;
        if (dtype == SL_BF16)
            for (int64_t i = 0; i < length; i++)
                ((uint16_t *)to)[i] = f32_to_bf16(total.f32[i]);
        else
            memcpy(to, &total, (size_t)length * size);
    }
}
