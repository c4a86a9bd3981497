/* Launching a kernel, in C++ that a compiler without CUDA reads as well: the tests run the kernels
 * on the CPU. */
#ifndef SLI_DEVICE_CUDA_KERNELS_LAUNCH_H
#define SLI_DEVICE_CUDA_KERNELS_LAUNCH_H

#include "device/cuda/launchers.h"

/* A variable in the shared memory of a block. The tests' emulation registers it. */
#ifndef SHARED
#define SHARED(type, name) __shared__ type name
#endif

/* An array in it whose size the launch gives. A kernel has one, of elements of one type. */
#ifndef LAUNCH_SHARED
#define LAUNCH_SHARED(type, name) extern __shared__ __align__(16) type name[]
#endif

/* kernel<<<blocks, threads, shared_bytes, stream>>>(arguments...) */
template <class... Parameters, class... Arguments>
static cudaError_t launch_with_shared(cudaStream_t stream, dim3 blocks, dim3 threads,
                                      size_t shared_bytes, void (*kernel)(Parameters...),
                                      Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... Parameters, class... Arguments>
static cudaError_t launch(cudaStream_t stream, dim3 blocks, dim3 threads,
                          void (*kernel)(Parameters...), Arguments... arguments)
{
    return launch_with_shared(stream, blocks, threads, 0, kernel, arguments...);
}

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
