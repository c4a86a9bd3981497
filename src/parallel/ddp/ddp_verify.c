/* Do all ranks have the same replica? Answered at construction, where the difference can still be
 * named: later it would be a hang, or a silent mix of unlike gradients. */
#include "core/error.h"
#include "parallel/ddp/ddp.h"

#include "comm/group.h"
#include "nn/module.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Counts and options ----------------------------------------------------------------- */

typedef struct summary {
    int64_t trained, parameters, stages, buckets, options;
} summary;

enum { SUMMARY_WORDS = sizeof(summary) / sizeof(int64_t) };

static summary summarize_sets(const sl_ddp *ddp, int64_t options)
{
    summary sums = {.stages = ddp->stage_count, .options = options};
    for (int s = 0; s < ddp->stage_count; s++) {
        const sl_parameter_set *set = ddp->stages[s].set;
        sums.parameters += sl_parameter_set_count(set);
        sums.buckets += sl_parameter_set_bucket_count(set);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            sums.trained += sl_parameter_set_get(set, i)->kind == SL_PARAMETER_TRAINED;
    }
    return sums;
}

static sl_status compare_summaries(int rank, const summary *mine, int other, const summary *others)
{
    const struct {
        const char *name;
        int64_t mine, others;
    } counts[] = {
        {"params", mine->trained, others->trained},
        {"params and buffers", mine->parameters, others->parameters},
        {"stages", mine->stages, others->stages},
        {"buckets", mine->buckets, others->buckets},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].mine != counts[i].others)
            return sl_error(SL_ERR_INVALID,
                            "sl_ddp_create: expects the same model across all ranks, but Rank %d "
                            "has %" PRId64 " %s, while rank %d has inconsistent %" PRId64 " %s",
                            rank, counts[i].mine, counts[i].name, other, counts[i].others,
                            counts[i].name);
    if (mine->options != others->options)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: options of rank %d differ from those of rank %d", rank,
                        other);
    return SL_OK;
}

static sl_status verify_summaries(sl_group *group, const summary *mine)
{
    int size = sl_group_size(group), rank = sl_group_rank(group);
    summary *all = calloc((size_t)size, sizeof *all);
    if (!all)
        return sli_group_check(group, sli_no_memory("sl_ddp_create", "%d ranks", size));
    sl_status status;
    SL_TRY_OR_FAIL(sl_group_all_gather(group, mine, all, SUMMARY_WORDS, SL_I64, NULL));
    for (int other = 0; other < size; other++)
        SL_TRY_OR_FAIL(compare_summaries(rank, mine, other, &all[other]));

fail:
    free(all);
    return status;
}

/* ---- One parameter after the other ------------------------------------------------------ */

typedef struct description {
    int64_t kind, dims, size[SL_MAX_DIMS];
    int64_t name; /* a hash */
    int64_t stage;
    int64_t bucket; /* of the stage; -1: not trained */
} description;

enum { DESCRIPTION_WORDS = sizeof(description) / sizeof(int64_t) };

/* FNV-1a. */
static int64_t hash_text(const char *text)
{
    uint64_t value = 14695981039346656037u;
    for (; *text; text++)
        value = (value ^ (unsigned char)*text) * 1099511628211u;
    return (int64_t)(value >> 1);
}

/* Describes a stage's parameters, in order of registration. */
static void describe_set(const sl_parameter_set *set, int stage, description *out)
{
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(set, i);
        out[i] = (description){
            .kind = parameter->kind,
            .dims = parameter->shape.dims,
            .name = hash_text(parameter->path),
            .stage = stage,
            .bucket = -1,
        };
        for (int d = 0; d < parameter->shape.dims; d++)
            out[i].size[d] = parameter->shape.size[d];
    }
    for (int b = 0; b < sl_parameter_set_bucket_count(set); b++) {
        sl_parameter *const *in_bucket;
        int count = sli_parameter_set_bucket(set, b, &in_bucket);
        for (int i = 0; i < count; i++)
            out[sli_parameter_set_index(set, in_bucket[i])].bucket = b;
    }
}

static const char *shape_text(const description *parameter, char *text)
{
    sl_shape shape = {.dims = (int)parameter->dims};
    for (int i = 0; i < shape.dims; i++)
        shape.size[i] = parameter->size[i];
    return sl_shape_text(&shape, text);
}

/* The error for parameter `index` of all stages, which differs from rank 0's. */
static sl_status name_difference(int rank, int index, const char *name, const description *mine,
                                 const description *first)
{
    char here[SL_SHAPE_TEXT_BYTES], there[SL_SHAPE_TEXT_BYTES];
    if (mine->dims != first->dims || memcmp(mine->size, first->size, sizeof mine->size) != 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: params[%d] (%s) in process %d with sizes %s appears not "
                        "to match sizes %s of the same param in process 0",
                        index, name, rank, shape_text(mine, here), shape_text(first, there));
    const char *difference = mine->name != first->name     ? "name"
                             : mine->kind != first->kind   ? "kind"
                             : mine->stage != first->stage ? "stage"
                                                           : NULL;
    if (difference)
        return sl_error(SL_ERR_INVALID,
                        "sl_ddp_create: params[%d] (%s) in process %d differs from the same "
                        "param in process 0 in its %s",
                        index, name, rank, difference);
    return sl_error(SL_ERR_INVALID,
                    "sl_ddp_create: params[%d] (%s) is in bucket %" PRId64 " of stage %" PRId64
                    " in process %d, and in bucket %" PRId64
                    " in process 0: the sets were created with different sizes of buckets",
                    index, name, mine->bucket, mine->stage, rank, first->bucket);
}

static sl_status compare_descriptions(const sl_ddp *ddp, const description *mine,
                                      const description *first)
{
    int index = 0;
    for (int s = 0; s < ddp->stage_count; s++)
        for (int i = 0; i < sl_parameter_set_count(ddp->stages[s].set); i++, index++)
            if (memcmp(&mine[index], &first[index], sizeof *mine) != 0)
                return name_difference(sl_group_rank(ddp->group), index,
                                       sl_parameter_set_get(ddp->stages[s].set, i)->path,
                                       &mine[index], &first[index]);
    return SL_OK;
}

sl_status sli_ddp_verify(const sl_ddp *ddp, int64_t options)
{
    summary mine = summarize_sets(ddp, options);
    SL_TRY(verify_summaries(ddp->group, &mine));
    description *described = calloc((size_t)mine.parameters * 2 + 1, sizeof *described);
    if (!described)
        return sli_group_check(ddp->group, sli_no_memory("sl_ddp_create", "%" PRId64 " parameters",
                                                         mine.parameters));
    description *next = described, *first = described + mine.parameters;
    for (int s = 0; s < ddp->stage_count; s++) {
        describe_set(ddp->stages[s].set, ddp->stages[s].index, next);
        next += sl_parameter_set_count(ddp->stages[s].set);
    }
    memcpy(first, described, (size_t)mine.parameters * sizeof *first);
    sl_status status;
    SL_TRY_OR_FAIL(sl_group_broadcast(ddp->group, first, mine.parameters * DESCRIPTION_WORDS,
                                      SL_I64, 0, NULL));
    status = sli_group_agree(ddp->group, compare_descriptions(ddp, described, first));

fail:
    free(described);
    return status;
}
