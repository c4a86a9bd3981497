/* The kernels of a CUDA device: one launcher for each slot of sli_device_ops that is neither a
 * product nor a copy.
 *
 * A launcher computes what device.h says at its arguments' struct, whose pointers are all to memory
 * of the device. It enqueues its kernels on `stream`, waits for nothing and
 * allocates nothing; the arguments are copied before it returns. `scratch` is memory of the device,
 * 16-byte aligned, that the kernels use until the stream has passed them; the function
 * sli_scratch_NAME beside the launcher gives its size in bytes, which depends on shapes alone.
 *
 * Rows and counts are at least 1, but for the rows of epilogue_backward and add_norm_backward.
 * Results depend on the arguments alone: sums have a fixed order, and no kernel uses atomics on
 * floats. Compile without fast math.
 *
 * Errors: what the launch returned; cudaErrorInvalidValue for a shape that no kernel has. */
#ifndef SLI_DEVICE_CUDA_LAUNCHERS_H
#define SLI_DEVICE_CUDA_LAUNCHERS_H

#include "device/device.h"
#include "device/nccl.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What comes after gemm's product: the epilogue on c [m, n], in place, with row distance ldc. */
cudaError_t sli_launch_gemm_epilogue(const sli_gemm *arguments, cudaStream_t stream);

cudaError_t sli_launch_epilogue(const sli_epilogue *arguments, cudaStream_t stream);
size_t sli_scratch_epilogue_backward(const sli_epilogue_backward *arguments);
cudaError_t sli_launch_epilogue_backward(const sli_epilogue_backward *arguments, void *scratch,
                                         cudaStream_t stream);

cudaError_t sli_launch_embedding(const sli_embedding *arguments, cudaStream_t stream);
size_t sli_scratch_embedding_backward(const sli_embedding_backward *arguments);
cudaError_t sli_launch_embedding_backward(const sli_embedding_backward *arguments, void *scratch,
                                          cudaStream_t stream);

cudaError_t sli_launch_add_dropout(const sli_add_dropout *arguments, cudaStream_t stream);
cudaError_t sli_launch_swiglu(const sli_swiglu *arguments, cudaStream_t stream);
cudaError_t sli_launch_swiglu_backward(const sli_swiglu_backward *arguments, cudaStream_t stream);
cudaError_t sli_launch_rotary(const sli_rotary *arguments, cudaStream_t stream);
cudaError_t sli_launch_add_norm(const sli_add_norm *arguments, cudaStream_t stream);
size_t sli_scratch_add_norm_backward(const sli_add_norm_backward *arguments);
cudaError_t sli_launch_add_norm_backward(const sli_add_norm_backward *arguments, void *scratch,
                                         cudaStream_t stream);

/* head_width is at most SLI_CUDA_HEAD_WIDTH. */
enum { SLI_CUDA_HEAD_WIDTH = 256 };
size_t sli_scratch_attention(const sli_attention *arguments);
cudaError_t sli_launch_attention(const sli_attention *arguments, void *scratch,
                                 cudaStream_t stream);
size_t sli_scratch_attention_backward(const sli_attention_backward *arguments);
cudaError_t sli_launch_attention_backward(const sli_attention_backward *arguments, void *scratch,
                                          cudaStream_t stream);

cudaError_t sli_launch_cross_entropy(const sli_cross_entropy *arguments, cudaStream_t stream);

cudaError_t sli_launch_convert(const sli_convert *arguments, cudaStream_t stream);
cudaError_t sli_launch_add(int64_t count, float *to, const float *from, cudaStream_t stream);
cudaError_t sli_launch_sgd(const sli_sgd *arguments, cudaStream_t stream);
cudaError_t sli_launch_adamw(const sli_adamw *arguments, cudaStream_t stream);

/* `arrays` is host memory, `out` the device's. */
size_t sli_scratch_norm_terms(const sli_norm_terms *arguments);
cudaError_t sli_launch_norm_terms(const sli_norm_terms *arguments, void *scratch,
                                  cudaStream_t stream);

/* For groups (device/nccl.h). */
cudaError_t sli_launch_combine(const sli_combine *arguments, cudaStream_t stream);

cudaError_t sli_launch_initialize(const sli_init *init, uint64_t seed, uint32_t site, int64_t count,
                                  float *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
