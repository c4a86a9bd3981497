/* A tensor whose elements lie in several files, because no rank had all of them.
 *
 *     0.weight.exp_avg  [200, 512], row by row
 *     |------------------------------|----------------------|------------------|
 *     0.weight.exp_avg@0             0.weight.exp_avg@40960 0.weight.exp_avg@80112
 *
 * A segment is a tensor of one dimension in a file, named after the tensor and its first element.
 * The shapes of the tensors are in the file's metadata under "sluice.slices":
 *
 *     {"0.weight.exp_avg": [200, 512], …}
 *
 * Only what is listed there has segments; any other name with an @ is a tensor's own. */
#ifndef SLI_IO_CHECKPOINT_SEGMENTS_H
#define SLI_IO_CHECKPOINT_SEGMENTS_H

#include "sluice/safetensors.h"

#define SLI_SEGMENTS_KEY "sluice.slices"

/* A tensor with segments. */
typedef struct sli_cut_tensor {
    const char *name;
    sl_shape shape;
} sli_cut_tensor;

/* "NAME@BEGIN", malloc'ed. */
sl_status sli_segment_name(const char *tensor, int64_t begin, char **out);

/* The value of the metadata, malloc'ed. */
sl_status sli_cut_tensors_print(const sli_cut_tensor *tensors, size_t count, char **text);

typedef struct sli_cut_tensors {
    char *names;
    sli_cut_tensor *tensors; /* [count], by name */
    size_t count;
} sli_cut_tensors;

/* Reads it. Errors: SL_ERR_FORMAT with one sentence. Cleared by sli_cut_tensors_clear, also after
 * an error. */
sl_status sli_cut_tensors_parse(const char *text, sli_cut_tensors *out);
void sli_cut_tensors_clear(sli_cut_tensors *cut);

/* The tensor that `name` is a segment of, and the segment's first element; NULL where it is none.
 */
const sli_cut_tensor *sli_cut_tensors_find(const sli_cut_tensors *cut, const char *name,
                                           int64_t *begin);

#endif
