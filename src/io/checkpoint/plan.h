/* How a part's tensors lie in files. */
#ifndef SLI_IO_CHECKPOINT_PLAN_H
#define SLI_IO_CHECKPOINT_PLAN_H

#include "sluice/checkpoint.h"

typedef struct sli_checkpoint_plan {
    sl_safetensors_item *items; /* [count] in the order of the files */
    size_t count;
    size_t *file_of; /* [count], not falling */
    char **names;    /* [files] */
    int *writer_of;  /* [files], not falling */
    size_t files;
    uint64_t bytes; /* of all items */
} sli_checkpoint_plan;

/* Of each writer's items those with larger elements come first, else they stay in their order; each
 * file is filled up to `limit` bytes (0: there is none), and a tensor beyond it has a file of its
 * own. writer_of [part->count] says who writes each item, and does not fall; NULL: writer 0 all of
 * them. A writer without items has no file, but one file there is. Cleared by
 * sli_checkpoint_plan_clear, also after an error. */
sl_status sli_checkpoint_plan_create(const sl_checkpoint_part *part, const int *writer_of,
                                     uint64_t limit, sli_checkpoint_plan *out);
void sli_checkpoint_plan_clear(sli_checkpoint_plan *plan);

/* The first of a writer's files, and how many it has. */
size_t sli_checkpoint_plan_first(const sli_checkpoint_plan *plan, int writer, size_t *count);

#endif
