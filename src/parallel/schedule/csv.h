/* Tables as PyTorch's CSV. */
#ifndef SLI_PARALLEL_SCHEDULE_CSV_H
#define SLI_PARALLEL_SCHEDULE_CSV_H

#include "parallel/schedule/table.h"

/* sl_schedule_read of a text; errors begin with `name`. */
sl_status sli_schedule_parse(const char *name, const char *text, size_t bytes, sl_schedule **out);

#endif
