/* Rows of ids that are gathered by a thread of their own, while those before them are trained. */
#ifndef SLI_TRAIN_LOOP_READ_AHEAD_H
#define SLI_TRAIN_LOOP_READ_AHEAD_H

#include "train/loop/rows_task.h"

/* One rank's. */
typedef struct sli_read_ahead sli_read_ahead;

/* Borrows the task. Errors: SL_ERR_MEMORY, also where no thread can be started. */
sl_status sli_read_ahead_create(const sli_rows_task *task, sli_read_ahead **out);
void sli_read_ahead_destroy(sli_read_ahead **ahead); /* waits for the thread; NULL is allowed */

/* *block has these rows, and lives until the next call. They are there already if they were `next`
 * of the last call, or are waited for. `next` (NULL: none) are then gathered until the next call.
 * Errors: those of sli_rows_task_gather, of `rows` alone. */
sl_status sli_read_ahead_take(sli_read_ahead *ahead, const sl_train_rows *rows,
                              const sl_train_rows *next, const sli_row_block **block);

#endif
