#include "device/cpu/cpu_device.h"

#include "core/environment.h"
#include "core/memory.h"
#include "device/cores.h"
#include "device/cpu/amx.h"

#include <stdlib.h>
#include <string.h>

/* ---- Which kernels ---------------------------------------------------------------------- */

static bool runs_everywhere(void)
{
    return true;
}

#ifdef SLI_HAVE_X86_KERNELS
/* The features of x86-64-v3 and -v4 that compilers can test; no processor has these and lacks the
 * levels' other features. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool has_bf16(const sli_cpu_kernels *kernels)
{
    return kernels == &sli_cpu_kernels_avx512 && __builtin_cpu_supports("avx512bf16");
}
#else
static bool has_bf16(const sli_cpu_kernels *kernels)
{
    (void)kernels;
    return false;
}
#endif

/* Best first. */
static const struct {
    const sli_cpu_kernels *kernels;
    bool (*usable)(void);
} choices[] = {
#ifdef SLI_HAVE_X86_KERNELS
    {&sli_cpu_kernels_avx512, has_avx512},
    {&sli_cpu_kernels_avx2, has_avx2},
#endif
    {&sli_cpu_kernels_baseline, runs_everywhere},
};

static sl_status choose_kernels(const char *isa, const sli_cpu_kernels **out)
{
    *out = NULL;
    if (!isa)
        SL_TRY(sli_environment_read("SL_ISA", &isa));
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (isa && strcmp(isa, choices[i].kernels->isa) != 0)
            continue;
        if (choices[i].usable()) {
            *out = choices[i].kernels;
            return SL_OK;
        }
        if (isa)
            return sl_error(SL_ERR_UNSUPPORTED, "this processor has no %s", isa);
    }
    return sl_error(SL_ERR_UNSUPPORTED, "this build has no kernels for %s", isa);
}

/* ---- The table -------------------------------------------------------------------------- */

static void destroy_cpu(sl_device *device)
{
    sli_cpu_device *cpu = sli_cpu(device);
    sli_pool_destroy(&cpu->pool);
    sli_matmul_destroy(&cpu->matmul);
    sli_heights_clear(&cpu->heights);
    sli_memory_cache_destroy(&cpu->memory);
    pthread_mutex_destroy(&cpu->scratch_lock);
    free(cpu->scratch);
    sli_device_finish(device);
    free(cpu);
}

static sl_status allocate_bytes(sl_device *device, size_t bytes, void **out)
{
    *out = sli_memory_cache_allocate(sli_cpu(device)->memory, bytes);
    return *out ? SL_OK : SL_ERR_MEMORY;
}

static sl_status allocate_zero_bytes(sl_device *device, size_t bytes, void **out)
{
    SL_TRY(allocate_bytes(device, bytes, out));
    sli_huge_pages_clear(*out, bytes);
    return SL_OK;
}

static void release_bytes(sl_device *device, void *memory, size_t bytes)
{
    sli_memory_cache_release(sli_cpu(device)->memory, memory, bytes);
}

static void discard_bytes(sl_device *device, void *memory, size_t bytes)
{
    sli_memory_cache_discard(sli_cpu(device)->memory, memory, bytes);
}

static void empty_cache(sl_device *device)
{
    sli_memory_cache_empty(sli_cpu(device)->memory);
}

static void bind_thread(sl_device *device)
{
    if (device->first_core >= 0)
        sli_thread_bind(device->first_core); /* refused: slower, but as correct as before */
}

static const sli_device_ops ops = {
    .destroy = destroy_cpu,
    .allocate = allocate_bytes,
    .allocate_zero = allocate_zero_bytes,
    .release = release_bytes,
    .discard = discard_bytes,
    .empty_cache = empty_cache,
    .bind_thread = bind_thread,
    .copy = sli_cpu_copy,
    .zero = sli_cpu_zero,
    .gemm = sli_cpu_gemm,
    .epilogue = sli_cpu_epilogue,
    .epilogue_backward = sli_cpu_epilogue_backward,
    .embedding = sli_cpu_embedding,
    .embedding_backward = sli_cpu_embedding_backward,
    .add_dropout = sli_cpu_add_dropout,
    .add_norm = sli_cpu_add_norm,
    .add_norm_backward = sli_cpu_add_norm_backward,
    .swiglu = sli_cpu_swiglu,
    .swiglu_backward = sli_cpu_swiglu_backward,
    .rotary = sli_cpu_rotary,
    .attention = sli_cpu_attention,
    .attention_from = sli_cpu_attention,
    .attention_backward = sli_cpu_attention_backward,
    .attention_backward_from = sli_cpu_attention_backward,
    .cross_entropy = sli_cpu_cross_entropy,
    .cross_entropy_bias = sli_cpu_cross_entropy_bias,
    .convert = sli_cpu_convert,
    .add = sli_cpu_add,
    .sgd = sli_cpu_sgd,
    .adamw = sli_cpu_adamw,
    .norm_terms = sli_cpu_norm_terms,
    .initialize = sli_cpu_initialize,
};

/* ---- Life ------------------------------------------------------------------------------- */

static sl_status fill_device(sli_cpu_device *cpu, const sli_cpu_options *options)
{
    bool debug;
    SL_TRY(choose_kernels(options->isa, &cpu->kernels));
    SL_TRY(sli_debug_contains("memory", &debug));
    cpu->base.isa = cpu->kernels->isa;
    cpu->base.has_bf16 = has_bf16(cpu->kernels);
    cpu->has_amx = cpu->base.has_bf16 && sli_matmul_has_amx() && sli_amx_request();
    cpu->base.has_batch_invariance = true;
    cpu->base.threads = options->threads;
    cpu->base.first_core = options->cores ? options->cores[0] : -1;
    cpu->scratch_floats = SLI_SCRATCH_FLOATS;
    if (cpu->has_amx && options->threads * SLI_AMX_THREAD_FLOATS > SLI_SCRATCH_FLOATS)
        cpu->scratch_floats = options->threads * (int64_t)SLI_AMX_THREAD_FLOATS;
    cpu->scratch = sli_huge_pages_alloc((size_t)cpu->scratch_floats * sizeof(float));
    sli_memory_bound *bound = options->bound ? options->bound : &cpu->own_bound;
    if (bound == &cpu->own_bound)
        sli_memory_bound_init(bound);
    cpu->base.usable_bytes = bound->usable_bytes;
    cpu->memory = sli_memory_cache_create(&cpu->base.reserved_bytes, debug, bound);
    if (!cpu->scratch || !cpu->memory)
        return sli_no_memory("sl_device", "%s's own records", cpu->base.name);
    SL_TRY(sli_matmul_create(options->threads, &cpu->matmul));
    sli_pool_options pool = {.threads = options->threads,
                             .cores = options->cores,
                             .spin = !options->shared};
    return sli_pool_create(&pool, &cpu->pool);
}

sl_status sli_cpu_device_create(const sli_cpu_options *options, sl_device **out)
{
    *out = NULL;
    sli_cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return sli_no_memory("sl_device", "%s", options->name);
    sli_device_init(&cpu->base, &ops, options->name);
    pthread_mutex_init(&cpu->scratch_lock, NULL);
    sli_heights_init(&cpu->heights);
    sl_status status = fill_device(cpu, options);
    if (status != SL_OK) {
        destroy_cpu(&cpu->base);
        return status;
    }
    *out = &cpu->base;
    return SL_OK;
}

sl_status sl_device_create_cpu(int threads, sl_device **out)
{
    *out = NULL;
    if (threads < 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_device_create_cpu: threads must be 0 (all cores) or more, got %d",
                        threads);
    sli_cores found;
    SL_TRY(sli_cores_find(&found));
    sli_cpu_options options = {.name = "cpu",
                               .threads = threads ? threads : found.core_count,
                               .shared = threads > found.core_count};
    sli_cores_clear(&found);
    return sli_cpu_device_create(&options, out);
}
