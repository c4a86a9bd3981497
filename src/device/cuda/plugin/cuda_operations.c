/* The slots that are kernels of sluice's own (cuda/kernels/). */
#include "device/cuda/launchers.h"
#include "device/cuda/plugin/cuda_device.h"

#include <inttypes.h>

/* One operation: its scratch memory, until `end_operation`. */
typedef struct operation {
    sl_device *device;
    const char *name;
    cudaStream_t stream;
    void *scratch;
} operation;

static sl_status begin_operation(operation *self, sl_device *device, const char *name,
                                 size_t scratch_bytes)
{
    *self = (operation){device, name, sli_cuda(device)->stream, NULL};
    SL_TRY(sli_cuda_enter(device));
    return sli_cuda_scratch(device, scratch_bytes, &self->scratch);
}

static sl_status end_operation(const operation *self, cudaError_t launched)
{
    sli_cuda_scratch_free(self->device, self->scratch);
    return sli_cuda_check(self->device, self->name, launched);
}

/* A slot whose launcher takes the arguments and the stream. */
#define SLOT(name)                                                                                 \
    sl_status sli_cuda_##name(sl_device *device, const sli_##name *arguments)                      \
    {                                                                                              \
        SL_TRY(sli_cuda_enter(device));                                                            \
        return sli_cuda_check(device, #name,                                                       \
                              sli_launch_##name(arguments, sli_cuda(device)->stream));             \
    }

/* An operation whose launcher takes scratch memory as well. */
#define SLOT_WITH_SCRATCH(name)                                                                    \
    sl_status sli_cuda_##name(sl_device *device, const sli_##name *arguments)                      \
    {                                                                                              \
        operation own;                                                                             \
        SL_TRY(begin_operation(&own, device, #name, sli_scratch_##name(arguments)));               \
        return end_operation(&own, sli_launch_##name(arguments, own.scratch, own.stream));         \
    }

SLOT(epilogue)
SLOT_WITH_SCRATCH(epilogue_backward)
SLOT(embedding)
SLOT_WITH_SCRATCH(embedding_backward)
SLOT(add_dropout)
SLOT(add_norm)
SLOT_WITH_SCRATCH(add_norm_backward)
SLOT(swiglu)
SLOT(swiglu_backward)
SLOT(rotary)
SLOT(cross_entropy)
SLOT(convert)
SLOT(sgd)
SLOT(adamw)

static sl_status check_head_width(sl_device *device, int64_t width)
{
    return width <= SLI_CUDA_HEAD_WIDTH
               ? SL_OK
               : sl_error(SL_ERR_UNSUPPORTED,
                          "%s: attention: heads of at most %d columns, got %" PRId64
                          ": use more heads or a CPU",
                          device->name, SLI_CUDA_HEAD_WIDTH, width);
}

sl_status sli_cuda_attention(sl_device *device, const sli_attention *arguments)
{
    operation own;
    SL_TRY(check_head_width(device, arguments->head_width));
    SL_TRY(begin_operation(&own, device, "attention", sli_scratch_attention(arguments)));
    return end_operation(&own, sli_launch_attention(arguments, own.scratch, own.stream));
}

/* Its forward has checked the width. */
SLOT_WITH_SCRATCH(attention_backward)

sl_status sli_cuda_add(sl_device *device, int64_t count, float *to, const float *from)
{
    SL_TRY(sli_cuda_enter(device));
    return sli_cuda_check(device, "add", sli_launch_add(count, to, from, sli_cuda(device)->stream));
}

sl_status sli_cuda_initialize(sl_device *device, const sli_init *init, uint64_t seed, uint32_t site,
                              int64_t count, float *to)
{
    SL_TRY(sli_cuda_enter(device));
    return sli_cuda_check(device, "initialize",
                          sli_launch_initialize(init, seed, site, count, to,
                                                sli_cuda(device)->stream));
}

/* Its results are the host's, which waits for them. */

sl_status sli_cuda_norm_terms(sl_device *device, const sli_norm_terms *arguments)
{
    size_t bytes = (size_t)arguments->count * sizeof(double);
    size_t aligned = (bytes + 15) / 16 * 16; /* the scratch memory behind the results */
    sli_norm_terms on_device = *arguments;
    operation own;
    SL_TRY(
        begin_operation(&own, device, "norm_terms", aligned + sli_scratch_norm_terms(arguments)));
    on_device.out = own.scratch;
    cudaError_t code = sli_launch_norm_terms(&on_device, (char *)own.scratch + aligned, own.stream);
    if (code == cudaSuccess)
        code =
            cudaMemcpyAsync(arguments->out, own.scratch, bytes, cudaMemcpyDeviceToHost, own.stream);
    SL_TRY(end_operation(&own, code));
    return sli_cuda_check(device, "norm_terms", cudaStreamSynchronize(own.stream));
}
