#include "comm/operation.h"

#include <inttypes.h>
#include <stdio.h>

static const char *reduce_name(sl_reduce_op op)
{
    static const char *const names[] = {"sum", "average", "product", "min", "max"};
    return names[op];
}

static bool has_reduction(sli_operation_kind kind)
{
    return kind == SLI_OP_ALL_REDUCE || kind == SLI_OP_REDUCE || kind == SLI_OP_REDUCE_SCATTER;
}

static bool has_root(sli_operation_kind kind)
{
    return kind == SLI_OP_REDUCE || kind == SLI_OP_BROADCAST || kind == SLI_OP_GATHER ||
           kind == SLI_OP_SCATTER;
}

const char *sli_operation_name(sli_operation_kind kind)
{
    static const char *const names[] = {"all_reduce", "reduce",         "broadcast",
                                        "all_gather", "reduce_scatter", "gather",
                                        "scatter",    "barrier",        "split"};
    return names[kind];
}

const char *sli_operation_text(const sli_operation *operation, char *text)
{
    if (operation->kind == SLI_OP_BARRIER || operation->kind == SLI_OP_SPLIT) {
        snprintf(text, SLI_OPERATION_TEXT_BYTES, "%s", sli_operation_name(operation->kind));
        return text;
    }
    char root[24] = "";
    if (has_root(operation->kind))
        snprintf(root, sizeof root, ", root %d", operation->root);
    snprintf(text, SLI_OPERATION_TEXT_BYTES, "%s(%s%s%" PRId64 " x %s%s)",
             sli_operation_name(operation->kind),
             has_reduction(operation->kind) ? reduce_name(operation->reduce) : "",
             has_reduction(operation->kind) ? ", " : "", operation->count,
             sl_dtype_name(operation->dtype), root);
    return text;
}

bool sli_operation_matches(const sli_operation *a, const sli_operation *b)
{
    return a->kind == b->kind && a->count == b->count && a->dtype == b->dtype &&
           (!has_reduction(a->kind) || a->reduce == b->reduce) &&
           (!has_root(a->kind) || a->root == b->root);
}
