/* Do all ranks have the same replica? Found out at construction, where a difference can still be
 * named: later it would be a hang, or a silent mix of unlike gradients. */
#include "parallel/ddp.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers of parameters -------------------------------------------------------------- */

typedef struct summary {
    int64_t trained, parameters, stages, buckets;
    int64_t flags;
} summary;

enum { SUMMARY_WORDS = sizeof(summary) / sizeof(int64_t) };

static summary summarize(const sl_ddp *ddp)
{
    summary own = {
        .trained = ddp->trained_count,
        .stages = ddp->stage_count,
        .flags = ddp->find_unused_parameters << 1 | ddp->broadcasts_buffers,
    };
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        own.parameters += sl_parameter_set_count(sli_ddp_set(ddp, stage));
        own.buckets += sl_parameter_set_bucket_count(sli_ddp_set(ddp, stage));
    }
    return own;
}

static sl_status count_error(int rank, const char *what, int64_t own, int other, int64_t others)
{
    return sl_error(SL_ERR_INVALID,
                    "sl_ddp_create: expects the same model across all ranks, but Rank %d has "
                    "%" PRId64 " %s, while rank %d has inconsistent %" PRId64 " %s",
                    rank, own, what, other, others, what);
}

static sl_status compare_summaries(int rank, const summary *own, int other, const summary *others)
{
    if (own->trained != others->trained)
        return count_error(rank, "params", own->trained, other, others->trained);
    if (own->parameters != others->parameters)
        return count_error(rank, "params and buffers", own->parameters, other, others->parameters);
    if (own->stages != others->stages)
        return count_error(rank, "stages", own->stages, other, others->stages);
    if (own->buckets != others->buckets)
        return count_error(rank, "buckets", own->buckets, other, others->buckets);
    if (own->flags != others->flags)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: options of rank %d differ from those of rank %d", rank,
                        other);
    return SL_OK;
}

static sl_status verify_summaries(const sl_ddp *ddp)
{
    int size = sl_group_size(ddp->group), rank = sl_group_rank(ddp->group);
    summary own = summarize(ddp);
    summary *all = calloc((size_t)size, sizeof *all);
    if (!all)
        return sl_error(SL_ERR_MEMORY, "sl_ddp_create: no memory for %d ranks", size);
    sl_status status = sl_group_all_gather(ddp->group, &own, all, SUMMARY_WORDS, SL_I64, NULL);
    for (int other = 0; other < size && status == SL_OK; other++)
        status = compare_summaries(rank, &own, other, &all[other]);
    free(all);
    return status;
}

/* ---- One parameter after the other ------------------------------------------------------ */

typedef struct description {
    int64_t kind, dims, size[SL_MAX_DIMS];
    int64_t name; /* a hash */
    int64_t stage;
} description;

enum { DESCRIPTION_WORDS = sizeof(description) / sizeof(int64_t) };

/* FNV-1a. */
static int64_t hash(const char *text)
{
    uint64_t value = 14695981039346656037u;
    for (; *text; text++)
        value = (value ^ (unsigned char)*text) * 1099511628211u;
    return (int64_t)(value >> 1);
}

static description describe(const sl_parameter *parameter, int stage)
{
    const sl_shape *shape = sl_parameter_shape(parameter);
    description text = {
        .kind = sl_parameter_get_kind(parameter),
        .dims = shape->dims,
        .name = hash(sl_parameter_name(parameter)),
        .stage = stage,
    };
    for (int i = 0; i < shape->dims; i++)
        text.size[i] = shape->size[i];
    return text;
}

static const char *shape_text(const description *from, char *text)
{
    sl_shape shape = {.dims = (int)from->dims};
    for (int i = 0; i < shape.dims; i++)
        shape.size[i] = from->size[i];
    return sl_shape_text(&shape, text);
}

static sl_status difference(int index, const char *name, const description *own,
                            const description *first)
{
    char here[SL_SHAPE_TEXT_BYTES], there[SL_SHAPE_TEXT_BYTES];
    if (own->dims != first->dims || memcmp(own->size, first->size, sizeof own->size) != 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: params[%d] (%s) in this process with sizes %s appears not "
                        "to match sizes %s of the same param in process 0",
                        index, name, shape_text(own, here), shape_text(first, there));
    return sl_error(SL_ERR_INVALID,
                    "sl_ddp_create: params[%d] (%s) in this process differs from the same param in "
                    "process 0 in its %s",
                    index, name,
                    own->name != first->name   ? "name"
                    : own->kind != first->kind ? "kind"
                                               : "stage");
}

/* Ranks with a difference say which; all others say whose it is. */
static sl_status agree(const sl_ddp *ddp, sl_status own)
{
    char text[512];
    snprintf(text, sizeof text, "%s", own == SL_OK ? "" : sl_error_text());
    int32_t size = sl_group_size(ddp->group);
    int32_t first = own == SL_OK ? size : sl_group_rank(ddp->group);
    SL_TRY(sl_group_all_reduce(ddp->group, &first, 1, SL_I32, SL_REDUCE_MIN, NULL));
    if (own != SL_OK)
        return sl_error(own, "%s", text);
    if (first < size)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: the parameters of rank %d differ from those of rank 0",
                        first);
    return SL_OK;
}

static sl_status compare_parameters(const sl_ddp *ddp, const description *own,
                                    const description *first)
{
    int index = 0;
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        const sl_parameter_set *set = sli_ddp_set(ddp, stage);
        for (int i = 0; i < sl_parameter_set_count(set); i++, index++)
            if (memcmp(&own[index], &first[index], sizeof *own) != 0)
                return difference(index, sl_parameter_name(sl_parameter_set_get(set, i)),
                                  &own[index], &first[index]);
    }
    return SL_OK;
}

static sl_status verify_parameters(const sl_ddp *ddp)
{
    int count = (int)summarize(ddp).parameters, next = 0;
    description *own = calloc((size_t)count * 2, sizeof *own);
    if (!own)
        return sl_error(SL_ERR_MEMORY, "sl_ddp_create: no memory for %d parameters", count);
    description *first = own + count;
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        const sl_parameter_set *set = sli_ddp_set(ddp, stage);
        for (int i = 0; i < sl_parameter_set_count(set); i++, next++)
            first[next] = own[next] = describe(sl_parameter_set_get(set, i), stage);
    }
    sl_status status =
        sl_group_broadcast(ddp->group, first, (int64_t)count * DESCRIPTION_WORDS, SL_I64, 0, NULL);
    if (status == SL_OK)
        status = agree(ddp, compare_parameters(ddp, own, first));
    free(own);
    return status;
}

/* ---- Buckets ---------------------------------------------------------------------------- */

static sl_status compare_buckets(const sl_ddp *ddp, const int64_t *sizes)
{
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        const sl_parameter_set *set = sli_ddp_set(ddp, stage);
        for (int b = 0; b < sl_parameter_set_bucket_count(set); b++, sizes++) {
            int64_t own = sl_tensor_count(sl_parameter_set_bucket_values(set, b));
            if (own != *sizes)
                return sl_error(SL_ERR_INVALID,
                                "sl_ddp_create: bucket %d of stage %d has %" PRId64
                                " elements in this process, %" PRId64
                                " in process 0: the sets were "
                                "created with different bucket sizes",
                                b, stage, own, *sizes);
        }
    }
    return SL_OK;
}

static sl_status verify_buckets(const sl_ddp *ddp)
{
    int count = (int)summarize(ddp).buckets, next = 0;
    int64_t *sizes = calloc((size_t)count, sizeof *sizes);
    if (!sizes)
        return sl_error(SL_ERR_MEMORY, "sl_ddp_create: no memory for %d buckets", count);
    for (int stage = 0; stage < ddp->stage_count; stage++) {
        const sl_parameter_set *set = sli_ddp_set(ddp, stage);
        for (int b = 0; b < sl_parameter_set_bucket_count(set); b++)
            sizes[next++] = sl_tensor_count(sl_parameter_set_bucket_values(set, b));
    }
    sl_status status = sl_group_broadcast(ddp->group, sizes, count, SL_I64, 0, NULL);
    if (status == SL_OK)
        status = agree(ddp, compare_buckets(ddp, sizes));
    free(sizes);
    return status;
}

sl_status sli_ddp_verify(const sl_ddp *ddp)
{
    SL_TRY(verify_summaries(ddp));
    SL_TRY(verify_parameters(ddp));
    return verify_buckets(ddp);
}
