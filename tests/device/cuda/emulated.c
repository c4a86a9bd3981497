#include "device/cuda/emulated.h"

#include "device/cuda/launchers.h"
#include "device/device_base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory: each array by itself, so that AddressSanitizer knows its ends --------------- */

static sl_status allocate_array(sl_device *device, size_t bytes, void **out)
{
    (void)device;
    if (posix_memalign(out, 64, bytes) != 0)
        return SL_ERR_MEMORY;
    memset(*out, 0xFF, bytes); /* NaN */
    return SL_OK;
}

static void release_array(sl_device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)bytes;
    free(memory);
}

static sl_status status_of(cudaError_t error, const char *operation)
{
    return error == cudaSuccess ? SL_OK
                                : sl_error(SL_ERR_INTERNAL, "%s: CUDA error %d", operation, error);
}

/* ---- Slots ------------------------------------------------------------------------------ */

#define SLOT(name)                                                                                 \
    static sl_status run_##name(sl_device *device, const sli_##name *arguments)                    \
    {                                                                                              \
        (void)device;                                                                              \
        return status_of(sli_launch_##name(arguments, NULL), #name);                               \
    }
SLOT(epilogue)
SLOT(embedding)
SLOT(add_dropout)
SLOT(add_norm)
SLOT(swiglu)
SLOT(swiglu_backward)
SLOT(rotary)
SLOT(cross_entropy)
SLOT(convert)
SLOT(sgd)
SLOT(adamw)

#define SLOT_WITH_SCRATCH(name)                                                                    \
    static sl_status run_##name(sl_device *device, const sli_##name *arguments)                    \
    {                                                                                              \
        void *scratch;                                                                             \
        SL_TRY(allocate_array(device, sli_scratch_##name(arguments), &scratch));                   \
        cudaError_t error = sli_launch_##name(arguments, scratch, NULL);                           \
        free(scratch);                                                                             \
        return status_of(error, #name);                                                            \
    }
SLOT_WITH_SCRATCH(epilogue_backward)
SLOT_WITH_SCRATCH(embedding_backward)
SLOT_WITH_SCRATCH(add_norm_backward)
SLOT_WITH_SCRATCH(attention)
SLOT_WITH_SCRATCH(attention_backward)
SLOT_WITH_SCRATCH(norm_terms)

static sl_status run_add(sl_device *device, int64_t count, float *to, const float *from)
{
    (void)device;
    return status_of(sli_launch_add(count, to, from, NULL), "add");
}

static sl_status run_initialize(sl_device *device, const sli_init *init, uint64_t seed,
                                uint32_t site, int64_t count, float *to)
{
    (void)device;
    return status_of(sli_launch_initialize(init, seed, site, count, to, NULL), "initialize");
}

/* The CPU's product alone, then the kernel for what comes after it. */
static sl_status (*multiply)(sl_device *device, const sli_gemm *arguments);

static sl_status run_gemm(sl_device *device, const sli_gemm *arguments)
{
    sli_gemm product = *arguments;
    product.bias = NULL;
    product.preactivation = NULL;
    product.activation = SLI_ACTIVATION_NONE;
    product.dropout.p = 0;
    product.c_bf16 = NULL;
    SL_TRY(multiply(device, &product));
    return status_of(sli_launch_gemm_epilogue(arguments, NULL), "gemm");
}

static void fill_table(sli_device_ops *table, const sli_device_ops *cpu)
{
    *table = *cpu;
    multiply = cpu->gemm;
    table->allocate = allocate_array;
    table->release = release_array;
    table->gemm = run_gemm;
    table->epilogue = run_epilogue;
    table->epilogue_backward = run_epilogue_backward;
    table->embedding = run_embedding;
    table->embedding_backward = run_embedding_backward;
    table->add_dropout = run_add_dropout;
    table->add_norm = run_add_norm;
    table->add_norm_backward = run_add_norm_backward;
    table->swiglu = run_swiglu;
    table->swiglu_backward = run_swiglu_backward;
    table->rotary = run_rotary;
    table->attention = run_attention;
    table->attention_backward = run_attention_backward;
    table->cross_entropy = run_cross_entropy;
    table->convert = run_convert;
    table->add = run_add;
    table->sgd = run_sgd;
    table->adamw = run_adamw;
    table->norm_terms = run_norm_terms;
    table->initialize = run_initialize;
    table->attention_from = NULL; /* a CUDA device has the defaults */
    table->cross_entropy_bias = NULL;
}

sl_status emulated_device_create(sl_device **out)
{
    static sli_device_ops table;
    SL_TRY(sl_device_create_cpu(1, out));
    fill_table(&table, (*out)->ops);
    (*out)->ops = &table;
    (*out)->stores_bf16 = true;
    snprintf((*out)->name, sizeof(*out)->name, "emulated CUDA");
    return SL_OK;
}
