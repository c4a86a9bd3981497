/* Four floats that follow each other in a row: what a thread reads and writes at once, and what one
 * call of Philox gives numbers for. */
#ifndef SLI_DEVICE_CUDA_KERNELS_FOUR_H
#define SLI_DEVICE_CUDA_KERNELS_FOUR_H

#include "core/bf16.h"
#include "device/cuda/kernels/launch.h"

struct four {
    float x[4];
};

/* The first `count` of four; the others are 0. `whole`: the memory is 16-byte aligned and count 4.
 */
static inline __device__ four load_four(const float *from, int64_t count, bool whole)
{
    four f;
    if (whole) {
        float4 v = *(const float4 *)from;
        f = {{v.x, v.y, v.z, v.w}};
        return f;
    }
    for (int i = 0; i < 4; i++)
        f.x[i] = i < count ? from[i] : 0.0f;
    return f;
}

static inline __device__ void store_four(float *to, four f, int64_t count, bool whole)
{
    if (whole) {
        *(float4 *)to = make_float4(f.x[0], f.x[1], f.x[2], f.x[3]);
        return;
    }
    for (int i = 0; i < 4; i++)
        if (i < count)
            to[i] = f.x[i];
}

/* The same of bf16 elements, whose address is a multiple of 8 where they are whole. */
static inline __device__ four load_four(const uint16_t *from, int64_t count, bool whole)
{
    four f;
    uint2 pairs = {0, 0};
    if (whole)
        pairs = *(const uint2 *)from;
    for (int i = 0; i < 4; i++) {
        uint32_t pair = i < 2 ? pairs.x : pairs.y;
        uint16_t bits = (uint16_t)(pair >> 16 * (i % 2));
        if (!whole)
            bits = i < count ? from[i] : (uint16_t)0;
        f.x[i] = sli_f32_from_bf16(bits);
    }
    return f;
}

static inline __device__ void store_four(uint16_t *to, four f, int64_t count, bool whole)
{
    uint16_t bits[4];
    for (int i = 0; i < 4; i++)
        bits[i] = sli_bf16_from_f32(f.x[i]);
    if (whole) {
        uint2 pairs = {bits[0] | (uint32_t)bits[1] << 16, bits[2] | (uint32_t)bits[3] << 16};
        *(uint2 *)to = pairs;
        return;
    }
    for (int i = 0; i < 4; i++)
        if (i < count)
            to[i] = bits[i];
}

static inline __device__ four multiply(four a, four b)
{
    for (int i = 0; i < 4; i++)
        a.x[i] *= b.x[i];
    return a;
}

static inline __device__ four sum_of(four a, four b)
{
    for (int i = 0; i < 4; i++)
        a.x[i] += b.x[i];
    return a;
}

/* True if rows of this distance can be read whole, by fours, at every one of the addresses; NULL
 * passes. */
template <class... Pointers>
static bool are_aligned(int64_t columns, int64_t ld, Pointers... pointers)
{
    uintptr_t bits = (0 | ... | (uintptr_t)pointers);
    return columns % 4 == 0 && ld % 4 == 0 && bits % sizeof(float4) == 0;
}

/* ---- A matrix in groups of four columns: a thread for each ------------------------------- */

struct matrix_shape {
    int64_t rows, columns;
    bool whole; /* no group is cut, and all are aligned */
};

/* A thread's group; count <= 0: it has none. */
struct matrix_group {
    int64_t row, column, count;
};

static inline __device__ matrix_group group_of_thread(const matrix_shape &shape)
{
    matrix_group g;
    g.row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    g.column = 4 * ((int64_t)blockIdx.y * blockDim.x + threadIdx.x);
    g.count = g.row < shape.rows ? shape.columns - g.column : 0;
    return g;
}

/* Launches kernel(shape, arguments...) on all groups of the matrix. */
template <class... Parameters, class... Arguments>
static cudaError_t launch_groups(cudaStream_t stream, const matrix_shape &shape,
                                 void (*kernel)(Parameters...), Arguments... arguments)
{
    enum { THREADS = 256 };
    int64_t groups = divide_up(shape.columns, 4);
    unsigned wide = 32;
    while (wide < groups && wide < THREADS)
        wide *= 2;
    dim3 threads(wide, THREADS / wide);
    dim3 blocks((unsigned)divide_up(shape.rows, threads.y), (unsigned)divide_up(groups, wide));
    return launch(stream, blocks, threads, kernel, shape, arguments...);
}

#endif
