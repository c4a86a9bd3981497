/* Queues the launches of kernels (cuda/launchers.h), which the emulation runs at once. The plugin
 * calls fake_launch_NAME where it says sli_launch_NAME (fake_launch.h). */
#include "device/cuda/fake_cuda.h"

#include "device/cuda/launchers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *fake_version(const char *own); /* fake_launch.h would replace what is called here */
const char *fake_version(const char *own)
{
    const char *told = getenv("FAKE_CUDA_VERSION");
    return told ? told : own;
}

static void count_launch(const char *name)
{
    if (strcmp(name, "norm_terms") == 0)
        fake_cuda()->norm_launches++;
    if (strcmp(name, "sgd") == 0)
        fake_cuda()->sgd_launches++;
    if (strcmp(name, "adamw") == 0)
        fake_cuda()->adamw_launches++;
    if (strcmp(name, "cross_entropy") == 0)
        fake_cuda()->entropy_launches++;
}

/* On the stream. */
static void take_time(const char *name)
{
    if (fake_cuda()->update_us > 0 && strcmp(name, "sgd") == 0)
        usleep((useconds_t)fake_cuda()->update_us);
}

/* fake_launch_NAME, which queues run_NAME with the arguments that `...` are. */
#define QUEUE(name, parameters, ...)                                                               \
    cudaError_t fake_launch_##name parameters;                                                     \
    cudaError_t fake_launch_##name parameters                                                      \
    {                                                                                              \
        struct name##_call call = {__VA_ARGS__};                                                   \
        count_launch(#name);                                                                       \
        return fake_enqueue(stream, run_##name, &call, sizeof call);                               \
    }

/* A launcher that takes a struct and the stream. */
#define LAUNCH(name, type)                                                                         \
    struct name##_call {                                                                           \
        type arguments;                                                                            \
    };                                                                                             \
    static cudaError_t run_##name(void *argument)                                                  \
    {                                                                                              \
        take_time(#name);                                                                          \
        return sli_launch_##name(argument, NULL);                                                  \
    }                                                                                              \
    QUEUE(name, (const type *arguments, cudaStream_t stream), *arguments)

/* One that takes scratch memory as well. */
#define LAUNCH_WITH_SCRATCH(name)                                                                  \
    struct name##_call {                                                                           \
        sli_##name arguments;                                                                      \
        void *scratch;                                                                             \
    };                                                                                             \
    static cudaError_t run_##name(void *argument)                                                  \
    {                                                                                              \
        const struct name##_call *call = argument;                                                 \
        return sli_launch_##name(&call->arguments, call->scratch, NULL);                           \
    }                                                                                              \
    QUEUE(name, (const sli_##name *arguments, void *scratch, cudaStream_t stream), *arguments,     \
          scratch)

LAUNCH(gemm_epilogue, sli_gemm)
LAUNCH(epilogue, sli_epilogue)
LAUNCH_WITH_SCRATCH(epilogue_backward)
LAUNCH(embedding, sli_embedding)
LAUNCH_WITH_SCRATCH(embedding_backward)
LAUNCH(add_dropout, sli_add_dropout)
LAUNCH(add_norm, sli_add_norm)
LAUNCH_WITH_SCRATCH(add_norm_backward)
LAUNCH(swiglu, sli_swiglu)
LAUNCH(swiglu_backward, sli_swiglu_backward)
LAUNCH(rotary, sli_rotary)
LAUNCH_WITH_SCRATCH(attention)
LAUNCH_WITH_SCRATCH(attention_backward)
LAUNCH_WITH_SCRATCH(norm_terms)
LAUNCH(cross_entropy, sli_cross_entropy)
LAUNCH(convert, sli_convert)
LAUNCH(sgd, sli_sgd)
LAUNCH(adamw, sli_adamw)
LAUNCH(combine, sli_combine)

struct add_call {
    int64_t count;
    float *to;
    const float *from;
};

static cudaError_t run_add(void *argument)
{
    const struct add_call *call = argument;
    return sli_launch_add(call->count, call->to, call->from, NULL);
}

QUEUE(add, (int64_t count, float *to, const float *from, cudaStream_t stream), count, to, from)

struct initialize_call {
    sli_init init;
    uint64_t seed;
    uint32_t site;
    int64_t count;
    float *to;
};

static cudaError_t run_initialize(void *argument)
{
    const struct initialize_call *call = argument;
    return sli_launch_initialize(&call->init, call->seed, call->site, call->count, call->to, NULL);
}

QUEUE(initialize,
      (const sli_init *init, uint64_t seed, uint32_t site, int64_t count, float *to,
       cudaStream_t stream),
      *init, seed, site, count, to)
