/* Copies of the CUDA runtime without a GPU: queued work over the devices' memory. */
#include "device/cuda/fake_cuda.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct transfer {
    char *to;
    const char *from;
    size_t bytes, pitch, rows; /* of zeros and other bytes: rows of `bytes` */
    int value;
} transfer;

static cudaError_t copy_bytes(void *argument)
{
    const transfer *copy = argument;
    memmove(copy->to, copy->from, copy->bytes);
    return cudaSuccess;
}

/* Pageable memory of the host is read at once: its bytes lie behind the transfer. */
static cudaError_t copy_own_bytes(void *argument)
{
    const transfer *copy = argument;
    memcpy(copy->to, copy + 1, copy->bytes);
    return cudaSuccess;
}

static cudaError_t copy_pageable(const transfer *copy, cudaStream_t stream)
{
    transfer *whole = malloc(sizeof *copy + copy->bytes);
    assert(whole);
    *whole = *copy;
    memcpy(whole + 1, copy->from, copy->bytes);
    fake_cuda()->pageable_copies++;
    cudaError_t code = fake_enqueue(stream, copy_own_bytes, whole, sizeof *copy + copy->bytes);
    free(whole);
    return code;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    transfer copy = {.to = to, .from = from, .bytes = bytes};
    assert(getenv("FAKE_CUDA_ANY_MEMORY") ||
           (fake_is_device_memory(to) == (kind != cudaMemcpyDeviceToHost) &&
            fake_is_device_memory(from) == (kind != cudaMemcpyHostToDevice)));
    if (kind != cudaMemcpyHostToDevice)
        return fake_enqueue(stream, copy_bytes, &copy, sizeof copy);
    cudaError_t code = fake_is_pinned(from) ? fake_enqueue(stream, copy_bytes, &copy, sizeof copy)
                                            : copy_pageable(&copy, stream);
    if (code == cudaSuccess && !fake_is_device_memory(to))
        return cudaStreamSynchronize(stream); /* the host reads it without asking */
    return code;
}

typedef struct rows_copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, bytes, rows;
} rows_copy;

static cudaError_t copy_rows(void *argument)
{
    const rows_copy *copy = argument;
    for (size_t row = 0; row < copy->rows; row++)
        memcpy(copy->to + row * copy->to_pitch, copy->from + row * copy->from_pitch, copy->bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t bytes, size_t rows, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    rows_copy copy = {to, from, to_pitch, from_pitch, bytes, rows};
    assert(kind == cudaMemcpyDeviceToDevice && bytes <= to_pitch && bytes <= from_pitch);
    assert(fake_is_device_memory(to) && fake_is_device_memory(from));
    return fake_enqueue(stream, copy_rows, &copy, sizeof copy);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_gpu, const void *from, int from_gpu, size_t bytes,
                                cudaStream_t stream)
{
    transfer copy = {.to = to, .from = from, .bytes = bytes};
    assert(fake_is_device_memory(to) && fake_is_device_memory(from));
    fake_cuda()->peer_copies++;
    if (fake_cuda()->zeroing && fake_cuda()->accesses > 0 && to_gpu != from_gpu)
        return cudaMemsetAsync(to, 0, bytes, stream);
    return fake_enqueue(stream, copy_bytes, &copy, sizeof copy);
}

static cudaError_t set_rows(void *argument)
{
    const transfer *set = argument;
    for (size_t row = 0; row < set->rows; row++)
        memset(set->to + row * set->pitch, set->value, set->bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t bytes, size_t rows,
                              cudaStream_t stream)
{
    transfer set = {.to = to, .bytes = bytes, .pitch = pitch, .rows = rows, .value = value};
    assert(fake_is_device_memory(to));
    return fake_enqueue(stream, set_rows, &set, sizeof set);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return cudaMemset2DAsync(to, bytes, value, bytes, 1, stream);
}
