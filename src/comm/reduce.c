#include "comm/group.h"

#include "core/bf16.h"
#include "core/sum_tree.h"

#include <assert.h>
#include <string.h>

/* Nodes are combined in blocks that stay in the first-level cache, so that each is read once and
 * the result written once, whatever their number. */
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

/* to = a op b. bf16 has become f32. */
static void combine_block(sl_dtype dtype, sl_reduce_op op, void *to, const void *a, const void *b,
                          int64_t count)
{
    switch (dtype) {
    case SL_F32:
    case SL_BF16:
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
    }
}

/* total *= 1 / terms. bf16 has become f32. */
static void scale_block(sl_dtype dtype, void *total, int64_t count, int terms)
{
    if (dtype == SL_F64) {
        double *values = total;
        for (int64_t i = 0; i < count; i++)
            values[i] *= 1.0 / terms;
    } else {
        assert(dtype == SL_F32 || dtype == SL_BF16);
        float *values = total;
        for (int64_t i = 0; i < count; i++)
            values[i] *= 1.0f / (float)terms;
    }
}

/* Room for a block of any type, bf16 as f32. */
typedef union block {
    float f32[BLOCK];
    double f64[BLOCK];
    int64_t i64[BLOCK];
} block;

/* The tree's stack (core/sum_tree.h). A node on it is where the caller has it or, as a sum, in the
 * block of its height. */
typedef struct sum_stack {
    const void *data[SLI_SUM_TREE_DEPTH];
    int first[SLI_SUM_TREE_DEPTH], count;
} sum_stack;

/* The whole sum ends in `total`, which may be one of the nodes: it is written last. */
static void add_nodes(sl_dtype dtype, sl_reduce_op op, const sli_nodes *nodes, size_t offset,
                      int64_t count, block *sums, void *total)
{
    int terms = nodes->ends[nodes->count - 1];
    sum_stack stack = {.count = 0};
    assert(nodes->count > 0);
    for (int n = 0; n < nodes->count; n++) {
        int top = stack.count++;
        stack.data[top] = (const char *)nodes->data[n] + offset;
        stack.first[top] = n > 0 ? nodes->ends[n - 1] : 0;
        if (dtype == SL_BF16) {
            sli_widen_bf16(stack.data[top], sums[top].f32, count);
            stack.data[top] = &sums[top];
        }
        for (; top > 0 && sli_sum_tree_has_node(stack.first[top - 1], nodes->ends[n], terms);
             top--, stack.count--) {
            void *to = n == nodes->count - 1 && top == 1 ? total : &sums[top - 1];
            combine_block(dtype, op, to, stack.data[top - 1], stack.data[top], count);
            stack.data[top - 1] = to;
        }
    }
    if (stack.data[0] != total)
        memcpy(total, stack.data[0],
               (size_t)count * (dtype == SL_BF16 ? sizeof(float) : sl_dtype_bytes(dtype)));
}

void sli_reduce(sl_dtype dtype, sl_reduce_op op, const sli_nodes *nodes, int64_t start,
                int64_t count, void *out)
{
    const size_t size = sl_dtype_bytes(dtype);
    int terms = nodes->ends[nodes->count - 1], height = 1;
    for (int64_t width = 1; width < terms; width *= 2)
        height++;
    block sums[height];
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t length = count - done < BLOCK ? count - done : BLOCK;
        void *to = (char *)out + (size_t)done * size;
        void *total = dtype == SL_BF16 ? &sums[0] : to;
        add_nodes(dtype, op, nodes, (size_t)(start + done) * size, length, sums, total);
        if (op == SL_REDUCE_AVERAGE)
            scale_block(dtype, total, length, terms);
        if (dtype == SL_BF16)
            sli_narrow_to_bf16(total, to, length);
    }
}

void sli_nodes_list(int terms, int size, int *ends, int *first)
{
    first[0] = 0;
    for (int r = 0; r < size; r++) {
        int own[SLI_SUM_TREE_MOST_NODES];
        int count = sli_sum_tree_nodes(sli_sum_tree_first(terms, r, size),
                                       sli_sum_tree_first(terms, r + 1, size), terms, own);
        memcpy(ends + first[r], own, (size_t)count * sizeof *own);
        first[r + 1] = first[r] + count;
    }
}
