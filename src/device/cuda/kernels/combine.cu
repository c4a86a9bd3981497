/* The sum of several ranks' data, in the order of the tree over their terms: as comm/reduce.c adds
 * on the CPU, with the same bits. A thread has one element, and the tree's stack for it. */
#include "core/bf16.h"
#include "core/sum_tree.h"
#include "device/cuda/kernels/launch.h"

enum { COMBINE_THREADS = 256 };

/* a op b. bf16 elements come as f32; integers wrap. NaN if either is. */
template <class T> static inline __device__ T combined(sl_reduce_op op, T a, T b)
{
    if (op == SL_REDUCE_PRODUCT)
        return a * b;
    if (op == SL_REDUCE_MIN) /* a + b is NaN if either is */
        return a <= b ? a : b < a ? b : a + b;
    if (op == SL_REDUCE_MAX)
        return a >= b ? a : b > a ? b : a + b;
    return a + b;
}

static inline __device__ int32_t combined(sl_reduce_op op, int32_t a, int32_t b)
{
    if (op == SL_REDUCE_MIN)
        return a < b ? a : b;
    if (op == SL_REDUCE_MAX)
        return a > b ? a : b;
    return (int32_t)combined(op, (uint32_t)a, (uint32_t)b);
}

static inline __device__ int64_t combined(sl_reduce_op op, int64_t a, int64_t b)
{
    if (op == SL_REDUCE_MIN)
        return a < b ? a : b;
    if (op == SL_REDUCE_MAX)
        return a > b ? a : b;
    return (int64_t)combined(op, (uint64_t)a, (uint64_t)b);
}

/* How an element is read, averaged and written. */
template <class T> struct plain_element {
    typedef T value;
    static __device__ T load(const void *from, int64_t at)
    {
        return ((const T *)from)[at];
    }
    static __device__ void store(void *to, int64_t at, T x)
    {
        ((T *)to)[at] = x;
    }
};

struct bf16_element {
    typedef float value;
    static __device__ float load(const void *from, int64_t at)
    {
        return sli_f32_from_bf16(((const uint16_t *)from)[at]);
    }
    static __device__ void store(void *to, int64_t at, float x)
    {
        ((uint16_t *)to)[at] = sli_bf16_from_f32(x);
    }
};

template <class Element> static __global__ void combine(sli_combine a)
{
    typedef typename Element::value value;
    value stack[SLI_SUM_TREE_DEPTH];
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int top = 0;
    if (at >= a.count)
        return;
    for (int n = 0; n < a.node_count; n++) {
        stack[top++] = Element::load(a.nodes[n], at);
        for (int sum = 0; sum < a.sums[n]; sum++, top--)
            stack[top - 2] = combined(a.op, stack[top - 2], stack[top - 1]);
    }
    value scale = (value)1 / (value)a.terms;
    Element::store(a.out, at, a.op == SL_REDUCE_AVERAGE ? stack[0] * scale : stack[0]);
}

template <class Element>
static cudaError_t launch_combine(const sli_combine *a, cudaStream_t stream)
{
    dim3 blocks((unsigned)divide_up(a->count, COMBINE_THREADS));
    return launch(stream, blocks, dim3(COMBINE_THREADS), combine<Element>, *a);
}

cudaError_t sli_launch_combine(const sli_combine *a, cudaStream_t stream)
{
    switch (a->dtype) {
    case SL_F32:
        return launch_combine<plain_element<float>>(a, stream);
    case SL_F64:
        return launch_combine<plain_element<double>>(a, stream);
    case SL_I32:
        return launch_combine<plain_element<int32_t>>(a, stream);
    case SL_I64:
        return launch_combine<plain_element<int64_t>>(a, stream);
    case SL_BF16:
        return launch_combine<bf16_element>(a, stream);
    case SL_F16:
        break;
    }
    return cudaErrorInvalidValue;
}
