/* Rows of similar lengths in a batch. */
#ifndef SLI_TRAIN_LOOP_LENGTH_GROUPS_H
#define SLI_TRAIN_LOOP_LENGTH_GROUPS_H

#include "sluice/app/train.h"

/* An order of the rows of an epoch in which those of a batch are nearly equally long: the batches
 * of the epoch, as sl_train_sample has them, are divided into groups of a quarter of them, at most
 * 50, and the rows of each group are sorted by their lengths, the longest first, equal ones as they
 * were. An order depends on the lengths, the size of a batch, the seed and the epoch alone.
 *
 * Source: get_length_grouped_indices of transformers' trainer_pt_utils.py, but that the longest row
 * of all is not made the first one. */
typedef struct sli_length_groups sli_length_groups;

/* One for all threads of a process, which may ask at the same time. Errors: SL_ERR_MEMORY. */
sl_status sli_length_groups_create(sli_length_groups **out);
void sli_length_groups_destroy(sli_length_groups **groups); /* NULL is allowed */

/* How many tokens the row has that has this place of the epoch of `rows` before it is sorted. */
typedef int64_t sli_length_at(const void *data, const sl_train_rows *rows, int64_t place);

/* The places [rows->count] before sorting of some rows of a batch for training, of an epoch of
 * `batches`. Errors: SL_ERR_MEMORY. */
sl_status sli_length_groups_find(sli_length_groups *groups, sli_length_at *length_at,
                                 const void *data, int64_t batches, const sl_train_rows *rows,
                                 int64_t *places);

#endif
