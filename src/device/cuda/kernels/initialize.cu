/* Initial values: a thread for each four elements, which one call of Philox gives numbers for. */
#include "core/philox.h"
#include "device/cuda/kernels/four.h"

#include <math.h>

static inline __device__ four uniform_values(const sli_init &init, const uint32_t *words)
{
    four f;
    for (int i = 0; i < 4; i++) {
        float value = init.low + (init.high - init.low) * sli_uniform_from_bits(words[i]);
        f.x[i] = value < init.high ? value : init.low; /* rounding may reach `high` */
    }
    return f;
}

/* Box and Muller: two uniform numbers give two normal ones. 1 - u is in (0, 1]. */
static inline __device__ four normal_values(const sli_init &init, const uint32_t *words)
{
    four f;
    for (int i = 0; i < 4; i += 2) {
        float radius = sqrtf(-2.0f * logf(1.0f - sli_uniform_from_bits(words[i])));
        float angle = 6.2831855f * sli_uniform_from_bits(words[i + 1]);
        f.x[i] = init.low + init.high * radius * cosf(angle);
        f.x[i + 1] = init.low + init.high * radius * sinf(angle);
    }
    return f;
}

/* Counters: [0], [1] the group of four elements, [2] the parameter, [3] 0. */
static __global__ void initialize(sli_init init, sli_philox_key key, uint32_t site, int64_t count,
                                  float *to, bool aligned)
{
    uint64_t own = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t group = (uint64_t)init.first / 4 + own;
    int64_t at = 4 * (int64_t)own;
    uint32_t words[4] = {(uint32_t)group, (uint32_t)(group >> 32), site, 0};
    four f = {{init.low, init.low, init.low, init.low}};
    if (init.kind != SLI_INIT_CONSTANT)
        sli_philox(key, words);
    if (init.kind == SLI_INIT_UNIFORM)
        f = uniform_values(init, words);
    if (init.kind == SLI_INIT_NORMAL)
        f = normal_values(init, words);
    store_four(to + at, f, count - at, aligned && count - at >= 4);
}

cudaError_t sli_launch_initialize(const sli_init *init, uint64_t seed, uint32_t site, int64_t count,
                                  float *to, cudaStream_t stream)
{
    enum { THREADS = 256 };
    dim3 blocks((unsigned)divide_up(count, 4 * THREADS));
    return launch(stream, blocks, dim3(THREADS), initialize, *init,
                  sli_philox_key_make(seed, SLI_RANDOM_INIT), site, count, to,
                  are_aligned(0, 0, to));
}
