/* What sluice_cuda.so exports: how many GPUs there are, and devices on them. */
#include "device/cuda/plugin/cuda_device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What the library lends ------------------------------------------------------------- */

/* Each thread that opens the object sets it, to the same. */
static const sli_cuda_host *_Atomic host;

sl_status(sl_error)(sl_status status, const char *format, ...) /* the name may be a macro */
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): it is, one line above */
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return host->set_error(status, text);
}

sl_status sli_device_out_of_memory(sl_device *device, const char *what, size_t bytes)
{
    return host->out_of_memory(device, what, bytes);
}

sl_status sli_cuda_check(const sl_device *device, const char *what, cudaError_t code)
{
    if (code == cudaSuccess)
        return SL_OK;
    (void)cudaGetLastError(); /* or the next launch reports it */
    return sl_error(SL_ERR_INTERNAL, "%s: %s: %s", device->name, what, cudaGetErrorString(code));
}

sl_status sli_cuda_enter(sl_device *device)
{
    return sli_cuda_check(device, "choose the GPU", cudaSetDevice(sli_cuda(device)->gpu));
}

/* ---- The table -------------------------------------------------------------------------- */

static void destroy_device(sl_device *device)
{
    sli_cuda_device *dead = sli_cuda(device);
    sli_cuda_pool_disconnect(dead);
    if (sli_cuda_enter(device) == SL_OK) {
        if (dead->stream)
            (void)cudaStreamSynchronize(dead->stream);
        if (dead->copies)
            (void)cudaStreamSynchronize(dead->copies);
        sli_products_destroy(&dead->products);
        sli_pinned_ring_destroy(&dead->ring);
        sli_time_reference_destroy(&dead->reference);
        if (dead->pool)
            (void)cudaMemPoolDestroy(dead->pool);
        if (dead->copies)
            (void)cudaStreamDestroy(dead->copies);
        if (dead->stream)
            (void)cudaStreamDestroy(dead->stream);
    }
    host->finish_device(device);
    free(dead);
}

static const sli_device_ops ops = {
    .destroy = destroy_device,
    .allocate = sli_cuda_allocate,
    .release = sli_cuda_release,
    .empty_cache = sli_cuda_empty_cache,
    .mark = sli_cuda_mark,
    .drop_mark = sli_cuda_drop_mark,
    .deliver = sli_cuda_deliver,
    .release_delivered = sli_cuda_release_delivered,
    .moment = sli_cuda_moment,
    .end_moment = sli_cuda_end_moment,
    .copy = sli_cuda_copy,
    .zero = sli_cuda_zero,
    .write = sli_cuda_write,
    .read = sli_cuda_read,
    .gemm = sli_cuda_gemm,
    .epilogue = sli_cuda_epilogue,
    .epilogue_backward = sli_cuda_epilogue_backward,
    .embedding = sli_cuda_embedding,
    .embedding_backward = sli_cuda_embedding_backward,
    .add_dropout = sli_cuda_add_dropout,
    .add_norm = sli_cuda_add_norm,
    .add_norm_backward = sli_cuda_add_norm_backward,
    .swiglu = sli_cuda_swiglu,
    .swiglu_backward = sli_cuda_swiglu_backward,
    .rotary = sli_cuda_rotary,
    .attention = sli_cuda_attention,
    .attention_backward = sli_cuda_attention_backward,
    .cross_entropy = sli_cuda_cross_entropy,
    .convert = sli_cuda_convert,
    .add = sli_cuda_add,
    .sgd = sli_cuda_sgd,
    .adamw = sli_cuda_adamw,
    .norm_terms = sli_cuda_norm_terms,
    .initialize = sli_cuda_initialize,
    .nccl = &sli_cuda_nccl,
};

/* ---- Devices ---------------------------------------------------------------------------- */

static sl_status count_gpus(int *out)
{
    *out = 0;
    cudaError_t code = cudaGetDeviceCount(out);
    if (code == cudaSuccess)
        return SL_OK;
    (void)cudaGetLastError();
    *out = 0;
    return sl_error(SL_ERR_UNSUPPORTED, "CUDA finds no GPU: %s", cudaGetErrorString(code));
}

/* Kernels are compiled for 8.0 and 9.0. */
static sl_status describe_gpu(sli_cuda_device *device)
{
    sl_device *base = &device->base;
    int major, minor;
    size_t free_bytes, total_bytes;
    SLI_CUDA_TRY(base, "its attributes",
                 cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->gpu));
    SLI_CUDA_TRY(base, "its attributes",
                 cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device->gpu));
    SLI_CUDA_TRY(base, "its memory", cudaMemGetInfo(&free_bytes, &total_bytes));
    snprintf(device->isa, sizeof device->isa, "sm_%d%d", major, minor);
    base->isa = device->isa;
    base->threads = 1; /* that queues its operations */
    base->has_bf16 = base->has_tf32 = base->stores_bf16 = true;
    base->usable_bytes = total_bytes;
    if (major < 8)
        return sl_error(SL_ERR_UNSUPPORTED, "%s: the kernels need a GPU of sm_80 or later, got %s",
                        base->name, device->isa);
    return SL_OK;
}

static sl_status open_gpu(sli_cuda_device *device)
{
    sl_device *base = &device->base;
    SL_TRY(sli_cuda_enter(base));
    SL_TRY(describe_gpu(device));
    SLI_CUDA_TRY(base, "create a stream",
                 cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking));
    SLI_CUDA_TRY(base, "create a stream",
                 cudaStreamCreateWithFlags(&device->copies, cudaStreamNonBlocking));
    SL_TRY(sli_cuda_pool_create(device));
    SL_TRY(sli_pinned_ring_create(base, &device->ring));
    SL_TRY(sli_time_reference_create(base, &device->reference));
    return sli_products_create(base, &device->products);
}

static sl_status create_device(const char *name, int gpu, bool fill, sl_device **out)
{
    int gpus;
    *out = NULL;
    SL_TRY(count_gpus(&gpus));
    if (gpu >= gpus)
        return sl_error(SL_ERR_NOT_FOUND, "%s: the machine has no GPU %d (it has %d)", name, gpu,
                        gpus);
    sli_cuda_device *device = calloc(1, sizeof *device);
    if (!device)
        return sl_error(SL_ERR_MEMORY, "sl_device: no memory for %s", name);
    host->init_device(&device->base, &ops, name);
    device->gpu = gpu;
    device->fill = fill;
    sl_status status;
    SL_TRY_OR_FAIL(open_gpu(device));
    *out = &device->base;
    return SL_OK;
fail:
    destroy_device(&device->base);
    return status;
}

#ifndef SLUICE_VERSION
#error "SLUICE_VERSION is the library's"
#endif

__attribute__((visibility("default"))) const sli_cuda_plugin *
sli_cuda_open(const sli_cuda_host *library);

const sli_cuda_plugin *sli_cuda_open(const sli_cuda_host *library)
{
    static const sli_cuda_plugin plugin = {count_gpus, create_device};
    host = library;
    return strcmp(library->version(), SLUICE_VERSION) == 0 ? &plugin : NULL;
}
