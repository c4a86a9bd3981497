#include "comm/agree.h"
#include "comm/group.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/host.h"
#include "nn/module.h"
#include "parallel/pipe/pipe.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUTCOME_FAILURE, OUTCOME_BUSY, OUTCOME_SENT }; /* where a rank's outcome has what */

/* ---- Creation --------------------------------------------------------------------------- */

/* Machines can have the same name, so a number tells them apart. */
typedef struct host {
    char name[SLI_HOST_NAME_BYTES];
    int64_t number;
} host;

static sl_status name_ranks(sli_pipe_group *group, const int *stage_ranks, int stages)
{
    host *hosts = calloc((size_t)group->size, sizeof *hosts);
    if (!hosts)
        return sli_no_memory("sl_pipe_create", "%d ranks", group->size);
    host *here = &hosts[group->rank];
    sli_host_name(here->name);
    here->number = sli_host_number();
    sl_status status;
    SL_TRY_OR_FAIL(sl_group_all_gather(group->group, here, hosts, sizeof *here / sizeof(int32_t),
                                       SL_I32, NULL));
    for (int r = 0; r < group->size; r++) {
        sli_rank_location_text(group->group, r, hosts[r].name, stage_ranks, stages,
                               group->names[r]);
        while (hosts[group->hosts[r]].number != hosts[r].number)
            group->hosts[r]++;
    }

fail:
    free(hosts);
    return status;
}

static sl_status connect_ranks(sli_pipe_group *group, sl_group *parent, const int *stage_ranks,
                               int stages)
{
    sli_link_options link = {.names = (const char(*)[SLI_LOCATION_BYTES])group->names,
                             .failure = group->failure};
    SL_TRY(sl_group_split(parent, 0, &group->group));
    SL_TRY(sl_group_split(parent, 0, &link.group));
    SL_TRY(sli_link_create(&link, &group->link));
    return name_ranks(group, stage_ranks, stages);
}

sl_status sli_pipe_group_create(sl_group *parent, const int *stage_ranks, int stages,
                                sli_failure *failure, sli_pipe_group **out)
{
    size_t size = (size_t)sl_group_size(parent);
    sli_pipe_group *group = calloc(1, sizeof *group);
    *out = NULL;
    if (group)
        *group = (sli_pipe_group){
            .rank = sl_group_rank(parent),
            .size = (int)size,
            .failure = failure,
            .names = calloc(size, sizeof *group->names),
            .hosts = calloc(size, sizeof *group->hosts),
            .outcomes = calloc(size * (OUTCOME_SENT + size), sizeof *group->outcomes),
        };
    sl_status status;
    SL_TRY_OR_FAIL(group && group->names && group->hosts && group->outcomes
                       ? connect_ranks(group, parent, stage_ranks, stages)
                       : sli_no_memory("sl_pipe_create", "%zu ranks", size));
    *out = group;
    return SL_OK;

fail:
    (void)sli_group_check(parent, status);
    sli_pipe_group_destroy(&group);
    return status;
}

void sli_pipe_group_destroy(sli_pipe_group **group)
{
    sli_error_copy error;
    if (!group || !*group)
        return;
    sli_error_save(&error, SL_ERR_INTERNAL); /* destroying a broken group keeps its error */
    sli_link_destroy(&(*group)->link);
    sl_group_destroy(&(*group)->group);
    (void)sli_error_restore(&error);
    free((*group)->names);
    free((*group)->hosts);
    free((*group)->outcomes);
    free(*group);
    *group = NULL;
}

/* ---- Exchanges -------------------------------------------------------------------------- */

/* Breaks link and group after an error that the other ranks cannot know otherwise. One about a rank
 * then says where that rank is. */
static sl_status break_group(sli_pipe_group *group, sl_status status)
{
    int failed = sli_group_error_rank(group->group);
    if (failed >= 0)
        status = sl_error(status, "%s (%s)", sl_error_text(), group->names[failed]);
    return sli_group_check(group->group, sli_link_break(group->link, status));
}

sl_status sl_pipe_abort(sl_pipe *pipe, sl_status error)
{
    SLI_CHECK_NOT_NULL(pipe);
    return pipe->group ? sli_pipe_group_check(pipe->group, error) : error;
}

sl_group *sl_pipe_group(const sl_pipe *pipe)
{
    return pipe->group ? pipe->group->group : NULL;
}

sl_status sli_pipe_group_check(sli_pipe_group *group, sl_status status)
{
    return status == SL_OK ? SL_OK : break_group(group, status);
}

sl_status sli_pipe_group_broadcast(sli_pipe_group *group, void *data, int64_t count, sl_dtype dtype,
                                   int root)
{
    return sli_pipe_group_check(group,
                                sl_group_broadcast(group->group, data, count, dtype, root, NULL));
}

sl_status sli_pipe_group_send(sli_pipe_group *group, const void *data, int64_t count,
                              sl_dtype dtype, int rank)
{
    return sli_pipe_group_check(group,
                                sl_group_send(group->group, data, count, dtype, rank, 0, NULL));
}

sl_status sli_pipe_group_receive(sli_pipe_group *group, void *data, int64_t count, sl_dtype dtype,
                                 int rank)
{
    return sli_pipe_group_check(group, sl_group_recv(group->group, data, count, dtype, rank, 0,
                                                     NULL, NULL));
}

sl_status sli_pipe_group_sum(sli_pipe_group *group, double *terms, int64_t count)
{
    return sli_pipe_group_check(group, sl_group_all_reduce(group->group, terms, count, SL_F64,
                                                           SL_REDUCE_SUM, NULL));
}

/* ---- Do all ranks have the same pipe? --------------------------------------------------- */

/* What they must agree on, by name. */
typedef struct trait {
    const char *name;
    int64_t value;
} trait;

static sl_status compare_traits(sli_pipe_group *group, const trait *traits, int count)
{
    int64_t *all = calloc((size_t)group->size * (size_t)count, sizeof *all);
    if (!all)
        return sli_pipe_group_check(group, sli_no_memory(NULL, "%d ranks", group->size));
    int64_t *values = all + (size_t)group->rank * (size_t)count;
    for (int i = 0; i < count; i++)
        values[i] = traits[i].value;
    sl_status status;
    SL_TRY_OR_FAIL(sli_pipe_group_check(group, sl_group_all_gather(group->group, values, all, count,
                                                                   SL_I64, NULL)));
    for (int r = 1; r < group->size; r++)
        for (int i = 0; i < count; i++)
            if (all[r * count + i] != all[i])
                SL_TRY_OR_FAIL(
                    sl_error(SL_ERR_INVALID,
                             "sl_pipe_create: all ranks of the group need the same pipe, but rank "
                             "%d has another %s than rank 0",
                             r, traits[i].name));

fail:
    free(all);
    return status;
}

static void add_number(sli_checksum *sum, int64_t number)
{
    sli_checksum_add(sum, &number, sizeof number);
}

static void add_module(sli_checksum *sum, const sl_module *module)
{
    sli_checksum_add(sum, sl_module_type(module), strlen(sl_module_type(module)) + 1);
    for (int i = 0; i < module->parameter_count; i++) {
        const sl_parameter *parameter = module->parameters[i];
        sli_checksum_add(sum, parameter->path, strlen(parameter->path) + 1);
        for (int d = 0; d < parameter->shape.dims; d++)
            add_number(sum, parameter->shape.size[d]);
    }
    for (int i = 0; i < module->child_count; i++)
        add_module(sum, module->children[i]);
}

static void add_table(sli_checksum *sum, const sl_schedule *table)
{
    const sl_action *row;
    for (int rank = 0; rank < sl_schedule_ranks(table); rank++) {
        int count = sl_schedule_actions(table, rank, &row);
        add_number(sum, count);
        for (int i = 0; i < count; i++) {
            add_number(sum, row[i].stage);
            add_number(sum, (int64_t)row[i].kind);
            add_number(sum, row[i].micro);
        }
    }
}

static void add_stages(sli_checksum *sum, const sl_pipe *pipe)
{
    for (int i = 0; i < pipe->stage_count; i++) {
        add_number(sum, pipe->stages[i].count);
        add_number(sum, pipe->stages[i].group_rank);
    }
}

/* Of all that was added so far: 64 bits. */
static int64_t read_checksum(const sli_checksum *sum)
{
    char text[SLI_CHECKSUM_BYTES];
    sli_checksum_text(sum, text);
    text[16] = '\0';
    return (int64_t)strtoull(text, NULL, 16);
}

sl_status sli_pipe_group_compare(const sl_pipe *pipe)
{
    sli_checksum *sum;
    SL_TRY(sli_pipe_group_check(pipe->group, sli_checksum_create(&sum)));
    add_table(sum, pipe->order);
    int64_t table = read_checksum(sum);
    add_stages(sum, pipe);
    int64_t stages = read_checksum(sum);
    add_module(sum, pipe->model);
    int64_t model = read_checksum(sum);
    sli_checksum_destroy(&sum);
    const trait traits[] = {
        {"number of stages", pipe->stage_count},
        {"number of pipeline ranks", pipe->rank_count},
        {"number of micro-batches of a batch", pipe->batch_micros},
        {"number of micro-batches of an accumulation step", pipe->chunks},
        {"number of slices of a micro-batch", pipe->slices},
        {"recompute mode", pipe->recompute},
        {"precision", pipe->precision},
        {"seed", (int64_t)pipe->seed},
        {"choice of no_init", pipe->no_init},
        {"choice of inference", pipe->inference},
        {"number of the head's blocks", pipe->head_blocks},
        {"choice of a loss", pipe->loss != NULL},
        {"table", table},
        {"balance or placement", stages},
        {"model", model},
    };
    return compare_traits(pipe->group, traits, sizeof traits / sizeof *traits);
}

/* ---- The end of a call ------------------------------------------------------------------ */

static int64_t *outcome_of(const sli_pipe_group *group, int rank)
{
    return group->outcomes + rank * (OUTCOME_SENT + group->size);
}

static sl_status exchange_outcomes(sli_pipe_group *group, int number, bool ran_table,
                                   const double *busy_seconds)
{
    int64_t count = OUTCOME_SENT + group->size, *outcome = outcome_of(group, group->rank);
    outcome[OUTCOME_FAILURE] = number;
    outcome[OUTCOME_BUSY] = busy_seconds ? llround(1e9 * *busy_seconds) : 0;
    if (!ran_table)
        memset(outcome + OUTCOME_SENT, 0, (size_t)group->size * sizeof *outcome);
    return sli_pipe_group_check(group, sl_group_all_gather(group->group, outcome, group->outcomes,
                                                           count, SL_I64, NULL));
}

static double sum_busy_seconds(const sli_pipe_group *group)
{
    int64_t busy_ns = 0;
    for (int r = 0; r < group->size; r++)
        busy_ns += outcome_of(group, r)[OUTCOME_BUSY];
    return 1e-9 * (double)busy_ns;
}

static sl_status flush_link(sli_pipe_group *group)
{
    int64_t sent[group->size];
    for (int r = 0; r < group->size; r++)
        sent[r] = outcome_of(group, r)[OUTCOME_SENT + group->rank];
    return sli_pipe_group_check(group, sli_link_flush(group->link, sent));
}

/* The rank whose failure has the lowest number; -1: none has failed. */
static int find_first_failure(const sli_pipe_group *group)
{
    int first = -1;
    int64_t lowest = INT_MAX;
    for (int r = 0; r < group->size; r++) {
        int64_t number = outcome_of(group, r)[OUTCOME_FAILURE];
        if (number < lowest) {
            lowest = number;
            first = r;
        }
    }
    return first;
}

/* Where a rank was stopped by another one's error, and none has one, the step still fails: its rows
 * did not end. Any rank's own error comes before this one. */
static void require_error(sli_failure *failure)
{
    if (sli_failure_precedes(failure, INT_MAX - 1))
        sli_failure_raise(failure, INT_MAX - 1,
                          sl_error(SL_ERR_INTERNAL, "the step was stopped without an error"));
}

static sl_status agree_on_failure(sli_pipe_group *group, bool ran_table, double *busy_seconds)
{
    sli_error_copy error;
    require_error(group->failure);
    int number = group->failure->number;
    sli_error_save(&error, sli_failure_take(group->failure));
    sl_status status = sli_link_status(group->link);
    if (status != SL_OK)
        return break_group(group, status);
    SL_TRY(exchange_outcomes(group, number, ran_table, busy_seconds));
    if (ran_table)
        SL_TRY(flush_link(group));
    if (busy_seconds)
        *busy_seconds = sum_busy_seconds(group);
    int first = find_first_failure(group);
    if (first < 0)
        return SL_OK;
    return sli_group_broadcast_error(group->group, &error, first);
}

sl_status sli_pipe_group_end(sli_pipe_group *group, bool ran_table, double *busy_seconds)
{
    sli_error_copy result;
    if (ran_table)
        sli_link_stop(group->link, outcome_of(group, group->rank) + OUTCOME_SENT);
    sli_error_save(&result, agree_on_failure(group, ran_table, busy_seconds));
    (void)sli_failure_take(group->failure); /* what came after this rank's own end */
    return sli_error_restore(&result);
}

sl_status sli_pipe_agree(const sl_pipe *pipe, sl_status status)
{
    if (!pipe || !pipe->group)
        return status;
    sli_failure_raise(pipe->group->failure, 0, status);
    return sli_pipe_group_end(pipe->group, false, NULL);
}
