/* A run's tensors by name, in the model's order: what its checkpoints consist of. Names do not
 * depend on how the model is cut, so what one layout saved another can load. */
#ifndef SLI_TRAIN_CHECKPOINT_TENSORS_H
#define SLI_TRAIN_CHECKPOINT_TENSORS_H

#include "sluice/safetensors.h"
#include "train/checkpoint/best.h"
#include "train/update.h"

typedef struct sli_tensor_entry {
    char *name;
    sl_tensor *tensor; /* a handle of the entry's own on the run's memory; f32 */
    int stage;
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

/* The state of the optimizers whole[0 … stages - 1]: "0.weight.exp_avg", … */
sl_status sli_tensors_of_optimizer(const sl_pipe *pipe, sl_optimizer *const *whole,
                                   sli_tensors *out);

/* Where a trained parameter's values begin in which bucket of its set. */
sl_status sli_tensors_find_place(const sl_parameter_set *set, const sl_parameter *parameter,
                                 int *bucket, int64_t *offset);

/* Adds the elements of `flat` from `offset` on, as a tensor of that shape. */
sl_status sli_tensors_add(sli_tensors *to, const char *name, int stage, const sl_tensor *flat,
                          int64_t offset, const sl_shape *shape);

void sli_tensors_clear(sli_tensors *tensors);

/* As items whose data are the tensors' own memory, which is the host's; free() the array. */
sl_status sli_tensors_items(const sli_tensors *tensors, sl_safetensors_item **out);

#endif
