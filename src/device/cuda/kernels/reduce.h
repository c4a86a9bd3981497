/* Sums and maxima over the threads of a warp or of a block, always in the same order; every thread
 * gets the result. All threads of the block call, whose width is a multiple of 32 and whose height
 * is 1. */
#ifndef SLI_DEVICE_CUDA_KERNELS_REDUCE_H
#define SLI_DEVICE_CUDA_KERNELS_REDUCE_H

#include "device/cuda/kernels/launch.h"

#include <math.h>

constexpr unsigned WARP = 32, ALL_LANES = 0xFFFFFFFF;

struct adding {
    template <class Number> static __device__ Number of(Number a, Number b)
    {
        return a + b;
    }
};

/* NaNs are passed over. */
struct maximizing {
    template <class Number> static __device__ Number of(Number a, Number b)
    {
        return b > a ? b : a;
    }
};

template <class Operation, class Number> static inline __device__ Number reduce_warp(Number x)
{
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        x = Operation::of(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

/* `nothing` is the operation's neutral element. */
template <class Operation, class Number>
static inline __device__ Number reduce_block(Number x, Number nothing)
{
    typedef Number numbers[WARP];
    SHARED(numbers, of_warp);
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    x = reduce_warp<Operation>(x);
    __syncthreads(); /* until the block has read an earlier reduction's */
    if (lane == 0)
        of_warp[warp] = x;
    __syncthreads();
    return reduce_warp<Operation>(lane < blockDim.x / WARP ? of_warp[lane] : nothing);
}

/* Threads for a row of `columns` elements, four each, at most `most`. */
static inline unsigned threads_of_row(int64_t columns, unsigned most)
{
    int64_t threads = divide_up(divide_up(columns, 4), WARP) * WARP;
    return threads < most ? (unsigned)threads : most;
}

#endif
