#include "comm/reduce_plan.h"

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
    case SL_F16: /* sluice/group.h refuses it */
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

/* The tree's stack (core/sum_tree.h) is of nodes where the caller has them and, as sums, of blocks.
 * The whole sum ends in `total`, which may be one of the nodes: it is written last. */
static void add_nodes(const sli_reduce_plan *plan, const void *const *nodes, size_t offset,
                      int64_t count, block *sums, void *total)
{
    sl_dtype dtype = plan->operation->dtype;
    const void *stack[SLI_SUM_TREE_DEPTH] = {NULL};
    int top = 0; /* the next node's */
    assert(plan->node_count > 0);
    for (int n = 0; n < plan->node_count; n++) {
        stack[top] = (const char *)nodes[n] + offset;
        if (dtype == SL_BF16) {
            sli_widen_bf16(stack[top], sums[top].f32, count);
            stack[top] = &sums[top];
        }
        top++;
        for (int i = 0; i < plan->sums[n]; i++, top--) {
            void *to = n == plan->node_count - 1 && top == 2 ? total : &sums[top - 2];
            combine_block(dtype, plan->operation->reduce, to, stack[top - 2], stack[top - 1],
                          count);
            stack[top - 2] = to;
        }
    }
    if (stack[0] != total)
        memcpy(total, stack[0],
               (size_t)count * (dtype == SL_BF16 ? sizeof(float) : plan->element_bytes));
}

void sli_reduce(const sli_reduce_plan *plan, const void *const *nodes, int64_t count, void *out)
{
    const sli_operation *operation = plan->operation;
    block sums[plan->height];
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t length = count - done < BLOCK ? count - done : BLOCK;
        size_t offset = (size_t)done * plan->element_bytes;
        void *to = (char *)out + offset;
        void *total = operation->dtype == SL_BF16 ? &sums[0] : to;
        add_nodes(plan, nodes, offset, length, sums, total);
        if (operation->reduce == SL_REDUCE_AVERAGE)
            scale_block(operation->dtype, total, length, operation->terms);
        if (operation->dtype == SL_BF16)
            sli_narrow_to_bf16(total, to, length);
    }
}
