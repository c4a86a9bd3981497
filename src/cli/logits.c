#include "cli/logits.h"

#include "sluice/safetensors.h"

#include <stdlib.h>

typedef struct batch {
    sl_shape shape;         /* [N, T] */
    int32_t *ids;           /* [2 * N * T]: inputs, then targets */
    int64_t *wide;          /* the same */
    sl_tensor *in, *logits; /* [N, T]; [N, T, V] */
    float *values;          /* of `logits` */
} batch;

static sl_status run(sl_pipe *pipe, batch *of)
{
    SL_TRY(sl_tensor_create(sl_pipe_device(pipe, 0), SL_MEMORY_WORKSPACE, SL_I32, &of->shape,
                            &of->in));
    SL_TRY(sl_tensor_write(of->in, of->ids));
    SL_TRY(sl_pipe_forward(pipe, of->in, &of->logits));
    of->values = malloc(sl_tensor_bytes(of->logits));
    return of->values ? sl_tensor_read(of->logits, of->values)
                      : sl_error(SL_ERR_MEMORY, "no memory for a batch's logits");
}

static sl_status fill(const sl_batches *batches, batch *of)
{
    int64_t count = of->shape.size[0] * of->shape.size[1];
    of->ids = calloc((size_t)count, 2 * sizeof *of->ids);
    of->wide = calloc((size_t)count, 2 * sizeof *of->wide);
    if (!of->ids || !of->wide)
        return sl_error(SL_ERR_MEMORY, "no memory for a batch");
    SL_TRY(sl_batches_block(batches, 0, of->ids, of->ids + count));
    for (int64_t i = 0; i < 2 * count; i++)
        of->wide[i] = of->ids[i];
    return SL_OK;
}

static sl_status save(const char *path, const batch *of)
{
    int64_t count = of->shape.size[0] * of->shape.size[1];
    const sl_safetensors_item items[] = {
        {"inputs", SL_I64, of->shape, of->wide},
        {"targets", SL_I64, of->shape, of->wide + count},
        {"logits", SL_F32, *sl_tensor_shape(of->logits), of->values},
    };
    return sl_safetensors_save(path, items, sizeof items / sizeof *items, NULL, 0);
}

sl_status cli_logits_write(const char *path, sl_pipe *pipe, const sl_batches *batches)
{
    batch of = {.shape = sl_shape_2d(batches->columns, sl_batches_block_length(batches, 0))};
    sl_status status = fill(batches, &of);
    if (status == SL_OK)
        status = run(pipe, &of);
    if (status == SL_OK)
        status = save(path, &of);
    sl_tensor_destroy(&of.in);
    sl_tensor_destroy(&of.logits);
    free(of.values);
    free(of.wide);
    free(of.ids);
    return status;
}
