/* Rows of ids as they lie in memory. */
#ifndef SLI_TEXT_ROWS_H
#define SLI_TEXT_ROWS_H

#include "sluice/app/text.h"

struct sl_rows {
    int64_t count, longest;
    int32_t largest; /* id */
    bool has_targets;
    int64_t *begins;        /* [count + 1] the tokens of row i are those from begins[i] on */
    int32_t *ids, *targets; /* [begins[count]] */
    size_t rows_room, room, targets_room;
};

#endif
