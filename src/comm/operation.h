/* One operation of a group, as a backend gets it: checked, numbered, blocking. */
#ifndef SLI_COMM_OPERATION_H
#define SLI_COMM_OPERATION_H

#include "sluice/group.h"

typedef enum sli_operation_kind {
    SLI_OP_ALL_REDUCE,
    SLI_OP_REDUCE,
    SLI_OP_BROADCAST,
    SLI_OP_ALL_GATHER,
    SLI_OP_REDUCE_SCATTER,
    SLI_OP_GATHER,
    SLI_OP_SCATTER,
    SLI_OP_BARRIER,
    SLI_OP_SPLIT
} sli_operation_kind;

typedef struct sli_operation {
    sli_operation_kind kind;
    const void *in; /* what this rank gives; the in-place operations' data stand in both */
    void *out;      /* where it gets its result */
    int64_t count;
    sl_dtype dtype;
    sl_reduce_op reduce;
    int root;
    uint64_t sequence; /* from 1, the same on every rank */
} sli_operation;

/* "all_reduce", … */
const char *sli_operation_name(sli_operation_kind kind);

enum { SLI_OPERATION_TEXT_BYTES = 128 };
/* Writes "all_reduce(sum, 100 x f32)" to `text` and returns it. */
const char *sli_operation_text(const sli_operation *operation, char *text);

/* Do two ranks call the same? Data and place may differ. */
bool sli_operation_matches(const sli_operation *a, const sli_operation *b);

#endif
