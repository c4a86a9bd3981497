/* A run's tensors by name, in the model's order: what its checkpoints consist of. Names do not
 * depend on how the model is cut, so what one layout saved another can load.
 *
 * Of a sharded optimizer's state a replica has ranges, which end where its shard of a bucket ends:
 *
 *     a bucket    | 0.weight                | 1.bias | 2.weight           |
 *     shards      |- replica 0 -|--- replica 1 ---|------ replica 2 ------|
 *
 *     replica 1   0.weight.exp_avg from element 112 on, 1.bias.exp_avg, 2.weight.exp_avg up to 48
 */
#ifndef SLI_TRAIN_CHECKPOINT_TENSORS_H
#define SLI_TRAIN_CHECKPOINT_TENSORS_H

#include "sluice/safetensors.h"
#include "train/checkpoint/best.h"
#include "train/update.h"

typedef struct sli_tensor_entry {
    char *name;
    sl_shape shape;       /* of the whole tensor */
    int64_t first, count; /* the elements of it, row by row, that `tensor` has */
    sl_tensor *tensor;    /* the entry's handle on the run's memory; NULL: count is 0; f32 */
    int stage;
    bool is_buffer; /* no parameter that is trained */
} sli_tensor_entry;

typedef struct sli_tensors {
    sli_tensor_entry *entries; /* [count] */
    size_t count;
} sli_tensors;

/* All parameters and buffers. Each of these is cleared by sli_tensors_clear, also after an error.
 */
sl_status sli_tensors_of_model(const sl_pipe *pipe, sli_tensors *out);

/* The best parameters, under the names of the trained ones; a best copy must be kept. */
sl_status sli_tensors_of_best(const sl_pipe *pipe, const sli_best *best, sli_tensors *out);

/* The state of the optimizers[0 … stages - 1], which have shard `rank` of `ranks` of it:
 * "0.weight.exp_avg", … */
sl_status sli_tensors_of_optimizer(const sl_pipe *pipe, sl_optimizer *const *optimizers, int rank,
                                   int ranks, sli_tensors *out);

void sli_tensors_clear(sli_tensors *tensors);

/* The whole tensors as items, free()d by the caller. Where they are whole here, their data are the
 * tensors' own memory, which is the host's. */
sl_status sli_tensors_items(const sli_tensors *tensors, sl_safetensors_item **out);

/* ---- Copies in host memory, from which a checkpoint is written while the run goes on ---- */

typedef struct sli_tensor_copy {
    sl_safetensors_item *items; /* [count]; a range is a segment (io/checkpoint/segments.h) */
    size_t count;
    char *shapes; /* of the tensors with segments, as metadata */
    char *memory; /* the items' data; kept from one copy to the next */
    size_t memory_bytes;
} sli_tensor_copy;

/* Copies the tensors, each stage's on its own worker. */
sl_status sli_tensor_copy_make(sl_pipe *pipe, const sli_tensors *from, sli_tensor_copy *to);
void sli_tensor_copy_empty(sli_tensor_copy *copy); /* keeps the memory */
void sli_tensor_copy_clear(sli_tensor_copy *copy);

#endif
