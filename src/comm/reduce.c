#include "comm/group.h"

#include "core/bf16.h"

#include <assert.h>
#include <string.h>

/* Buffers are combined in blocks that stay in the first-level cache, so that each source is read
 * once and the result written once, whatever the number of sources. */
enum { BLOCK = 2048 };

/* The same five loops for each type. `to` may be `a` or `b`, but no other element depends on one
 * that is written, so the compiler may vectorize them. Minimum and maximum of values that cannot be
 * ordered are their sum, which is NaN. */
#define COMBINE_LOOP(EXPRESSION)                                                                   \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) to[i] = (EXPRESSION);                 \
    break
#define DEFINE_COMBINE(TYPE, NAME)                                                                 \
    static void combine_##NAME(sl_reduce_op op, TYPE *to, const TYPE *a, const TYPE *b,            \
                               int64_t count)                                                      \
    {                                                                                              \
        switch (op) {                                                                              \
        case SL_REDUCE_SUM:                                                                        \
        case SL_REDUCE_AVERAGE:                                                                    \
            COMBINE_LOOP(a[i] + b[i]);                                                             \
        case SL_REDUCE_PRODUCT:                                                                    \
            COMBINE_LOOP(a[i] * b[i]);                                                             \
        case SL_REDUCE_MIN:                                                                        \
            COMBINE_LOOP(a[i] <= b[i] ? a[i] : b[i] < a[i] ? b[i] : a[i] + b[i]);                  \
        case SL_REDUCE_MAX:                                                                        \
            COMBINE_LOOP(a[i] >= b[i] ? a[i] : b[i] > a[i] ? b[i] : a[i] + b[i]);                  \
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

/* to = a op b. `b` is as it was given, which for bf16 is narrower than `to` and `a`. */
static void combine_block(sl_dtype dtype, sl_reduce_op op, void *to, const void *a, const void *b,
                          int64_t count)
{
    switch (dtype) {
    case SL_F32:
        combine_f32(op, to, a, b, count);
        break;
    case SL_F64:
        combine_f64(op, to, a, b, count);
        break;
    case SL_I32:
        if (is_ordering(op))
            combine_i32_ordered(op, to, a, b, count);
        else
            combine_u32(op, to, a, b, count);
        break;
    case SL_I64:
        if (is_ordering(op))
            combine_i64_ordered(op, to, a, b, count);
        else
            combine_u64(op, to, a, b, count);
        break;
    case SL_BF16: {
        float wide[BLOCK];
        const uint16_t *narrow = b;
        for (int64_t i = 0; i < count; i++)
            wide[i] = sli_f32_from_bf16(narrow[i]);
        combine_f32(op, to, a, wide, count);
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

/* One block, bf16 having become f32 in `total`; what the first sources give goes there too. */
static void reduce_block(sl_dtype dtype, sl_reduce_op op, const void *const *sources,
                         int source_count, size_t offset, int64_t count, void *total, void *out)
{
    const char *so_far = (const char *)sources[0] + offset;
    size_t bytes = (size_t)count * sl_dtype_bytes(dtype);
    bool is_last_in_total = dtype == SL_BF16 || op == SL_REDUCE_AVERAGE;
    if (dtype == SL_BF16) {
        for (int64_t i = 0; i < count; i++)
            ((float *)total)[i] = sli_f32_from_bf16(((const uint16_t *)(const void *)so_far)[i]);
        so_far = total;
    }
    for (int s = 1; s < source_count; s++) {
        void *to = s == source_count - 1 && !is_last_in_total ? out : total;
        combine_block(dtype, op, to, so_far, (const char *)sources[s] + offset, count);
        so_far = to;
    }
    if (op == SL_REDUCE_AVERAGE) {
        if (so_far != total)
            memcpy(total, so_far, bytes);
        scale_block(dtype, total, count, source_count);
        so_far = total;
    }
    if (dtype == SL_BF16)
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)out)[i] = sli_bf16_from_f32(((const float *)(const void *)so_far)[i]);
    else if (so_far != out)
        memcpy(out, so_far, bytes);
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
        reduce_block(dtype, op, sources, source_count, (size_t)(start + done) * size, length,
                     &total, (char *)out + (size_t)done * size);
    }
}
