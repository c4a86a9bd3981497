/* Tensors that a checkpoint has in slices, because no writer had the whole of them.
 *
 *     0.weight.exp_avg  [200, 512], row by row
 *     |------------------------------|----------------------|------------------|
 *     0.weight.exp_avg@0             0.weight.exp_avg@40960 0.weight.exp_avg@80112
 *
 * A slice is a tensor of one dimension, called after the element that it begins with. The shapes of
 * the whole tensors are in the metadata of the part's files, under "sluice.slices":
 *
 *     {"0.weight.exp_avg": [200, 512], …}
 *
 * Only names that stand there are those of slices. A checkpoint's readers see whole tensors. */
#ifndef SLI_IO_CHECKPOINT_SLICES_H
#define SLI_IO_CHECKPOINT_SLICES_H

#include "sluice/safetensors.h"

#include <stdbool.h>

#define SLI_SLICES_KEY "sluice.slices"

typedef struct sli_sliced_tensor {
    const char *name;
    sl_shape shape;
} sli_sliced_tensor;

/* "NAME@OFFSET", malloc'ed. */
sl_status sli_slice_name(const char *tensor, int64_t offset, char **out);

/* The note's value, malloc'ed. */
sl_status sli_slices_print(const sli_sliced_tensor *tensors, size_t count, char **text);

typedef struct sli_slices {
    char *names;
    sli_sliced_tensor *tensors; /* [count], in the order of their names */
    size_t count;
} sli_slices;

/* Reads one. Errors: SL_ERR_FORMAT with one sentence. Cleared by sli_slices_clear, also after an
 * error. */
sl_status sli_slices_parse(const char *text, sli_slices *out);
void sli_slices_clear(sli_slices *slices);

/* The tensor that `name` is a slice of, and where it begins; NULL where it is the name of none. */
const sli_sliced_tensor *sli_slices_find(const sli_slices *slices, const char *name,
                                         int64_t *offset);

#endif
