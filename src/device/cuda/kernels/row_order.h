/* The rows of a batch in the order of their ids, and of equal ids in the order of the rows: a
 * bitonic sort (Batcher 1968) of 64-bit keys, which no two rows share.
 *
 * A block sorts a span of keys in shared memory. Spans are merged by steps that each compare keys
 * of one distance: a launch for each distance of a span or more, and one for all that are less. */
#ifndef SLI_DEVICE_CUDA_KERNELS_ROW_ORDER_H
#define SLI_DEVICE_CUDA_KERNELS_ROW_ORDER_H

#include "device/cuda/kernels/launch.h"

typedef unsigned long long row_key; /* the id, then the row */

enum { SORT_THREADS = 256, SORT_SPAN = 2 * SORT_THREADS };
constexpr row_key NO_ROW = ~0ULL; /* behind all rows */

static inline __device__ int32_t id_of_key(row_key key)
{
    return (int32_t)(key >> 32);
}

static inline __device__ int64_t row_of_key(row_key key)
{
    return (int64_t)(key & 0xFFFFFFFF);
}

/* Keys of so many rows: a power of two, of a span at least. */
static inline int64_t row_keys_count(int64_t rows)
{
    int64_t count = SORT_SPAN;
    while (count < rows)
        count *= 2;
    return count;
}

/* Orders a pair of keys. `first` is the number of keys[0], on which directions depend. */
static inline __device__ void compare_pair(row_key *keys, int64_t first, int64_t pair,
                                           int64_t distance, int64_t size)
{
    int64_t low = pair / distance * 2 * distance + pair % distance, high = low + distance;
    bool ascending = ((first + low) & size) == 0;
    row_key a = keys[low], b = keys[high];
    if ((a > b) == ascending) {
        keys[low] = b;
        keys[high] = a;
    }
}

/* Steps of `size` for distances below it, in a span. */
static inline __device__ void merge_in_span(row_key *span, int64_t first, int64_t distance,
                                            int64_t size)
{
    for (; distance > 0; distance /= 2) {
        __syncthreads();
        compare_pair(span, first, threadIdx.x, distance, size);
    }
}

static __global__ void sort_spans(const int32_t *ids, int64_t rows, row_key *keys)
{
    typedef row_key span_keys[SORT_SPAN];
    SHARED(span_keys, span);
    int64_t first = (int64_t)blockIdx.x * SORT_SPAN;
    for (unsigned i = threadIdx.x; i < SORT_SPAN; i += SORT_THREADS) {
        int64_t row = first + i;
        span[i] = row < rows ? (row_key)(uint32_t)ids[row] << 32 | (row_key)row : NO_ROW;
    }
    for (int64_t size = 2; size <= SORT_SPAN; size *= 2)
        merge_in_span(span, first, size / 2, size);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < SORT_SPAN; i += SORT_THREADS)
        keys[first + i] = span[i];
}

static __global__ void compare_keys(row_key *keys, int64_t distance, int64_t size)
{
    compare_pair(keys, 0, (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x, distance, size);
}

static __global__ void merge_spans(row_key *keys, int64_t size)
{
    typedef row_key span_keys[SORT_SPAN];
    SHARED(span_keys, span);
    int64_t first = (int64_t)blockIdx.x * SORT_SPAN;
    for (unsigned i = threadIdx.x; i < SORT_SPAN; i += SORT_THREADS)
        span[i] = keys[first + i];
    merge_in_span(span, first, SORT_SPAN / 2, size);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < SORT_SPAN; i += SORT_THREADS)
        keys[first + i] = span[i];
}

/* keys [row_keys_count(rows)] = those of the rows in their order, then NO_ROW. */
static cudaError_t sort_rows(const int32_t *ids, int64_t rows, row_key *keys, cudaStream_t stream)
{
    int64_t count = row_keys_count(rows);
    dim3 blocks((unsigned)(count / SORT_SPAN)), threads(SORT_THREADS);
    cudaError_t error = launch(stream, blocks, threads, sort_spans, ids, rows, keys);
    for (int64_t size = 2 * SORT_SPAN; size <= count && error == cudaSuccess; size *= 2) {
        for (int64_t distance = size / 2; distance >= SORT_SPAN && error == cudaSuccess;
             distance /= 2)
            error = launch(stream, blocks, threads, compare_keys, keys, distance, size);
        if (error == cudaSuccess)
            error = launch(stream, blocks, threads, merge_spans, keys, size);
    }
    return error;
}

#endif
