/* A pipe's tables, for each purpose and number of micro-batches. */
#ifndef SLI_PARALLEL_PIPE_PIPE_TABLE_H
#define SLI_PARALLEL_PIPE_PIPE_TABLE_H

#include "parallel/pipe/step.h"
#include "sluice/pipe.h"

/* Has the table the pipe's size and this placement (NULL: any)? The caller's own may have more
 * micro-batches. */
sl_status sli_pipe_check_table(const sl_pipe *pipe, const sl_schedule *table, const int *placement,
                               int micros);

/* What the writer writes for `micros` micro-batches, not validated. SL_ERR_INVALID for a table of
 * another size or placement (NULL: any). */
sl_status sli_pipe_write_order(const sl_pipe *pipe, const int *placement, int micros,
                               sl_schedule **out);

/* The table of a kind for `micros` micro-batches. */
sl_status sli_pipe_find_table(sl_pipe *pipe, sli_table_kind kind, int micros,
                              const sli_table **out);

/* [count] of one kind; NULL is allowed. */
void sli_tables_destroy(sli_table *tables, int count);

#endif
