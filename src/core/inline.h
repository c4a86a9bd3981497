/* SLI_INLINE: for small functions in headers that the kernels of a CUDA device call as well. */
#ifndef SLI_CORE_INLINE_H
#define SLI_CORE_INLINE_H

#ifdef __CUDACC__
#define SLI_INLINE static inline __host__ __device__
#else
#define SLI_INLINE static inline
#endif

#endif
