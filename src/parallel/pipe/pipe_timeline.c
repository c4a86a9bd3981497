/* When the actions of a pipe's last training step ran, and where its time went.
 *
 * Each process of a pipe traces its own stages on its own clock. Rank 0 of the group compares the
 * clocks when the timeline is gathered:
 *
 *     rank 0   ──sent──────────back──     `there` lies between `sent` and `back`, so the middle of
 *                   ╲          ╱          the two is wrong by at most half the round trip. The
 *     rank 1   ─────there─────            shortest of a few round trips counts. */
#include "parallel/pipe/pipe_timeline.h"

#include "comm/agree.h"
#include "comm/link_time.h"
#include "core/clock.h"
#include "core/error.h"
#include "device/device_base.h"
#include "parallel/pipe/pipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUND_TRIPS = 8 };

/* What all ranks know of the trace of one of them. */
typedef struct rank_trace {
    double start;       /* of the step, on the rank's clock */
    double count;       /* of its actions */
    double offset;      /* its clock less rank 0's */
    double clock_error; /* the most by which `offset` is wrong */
} rank_trace;

enum { RANK_TRACE_NUMBERS = sizeof(rank_trace) / sizeof(double) };

/* ---- One clock -------------------------------------------------------------------------- */

static sl_status measure_clock(sli_pipe_group *group, int rank, rank_trace *trace)
{
    trace->clock_error = INFINITY;
    for (int i = 0; i < ROUND_TRIPS; i++) {
        double there, sent = sli_clock_seconds();
        SL_TRY(sli_pipe_group_send(group, &sent, 1, SL_F64, rank));
        SL_TRY(sli_pipe_group_receive(group, &there, 1, SL_F64, rank));
        double half = (sli_clock_seconds() - sent) / 2;
        if (half < trace->clock_error) {
            trace->clock_error = half;
            trace->offset = there - (sent + half);
        }
    }
    return SL_OK;
}

static sl_status send_clock(sli_pipe_group *group)
{
    for (int i = 0; i < ROUND_TRIPS; i++) {
        double seconds;
        SL_TRY(sli_pipe_group_receive(group, &seconds, 1, SL_F64, 0));
        seconds = sli_clock_seconds();
        SL_TRY(sli_pipe_group_send(group, &seconds, 1, SL_F64, 0));
    }
    return SL_OK;
}

/* Fills in ranks[0 … size - 1] on every rank. */
static sl_status compare_traces(const sl_pipe *pipe, rank_trace *ranks)
{
    sli_pipe_group *group = pipe->group;
    memset(ranks, 0, (size_t)group->size * sizeof *ranks);
    ranks[group->rank].start = pipe->trace_start;
    ranks[group->rank].count = pipe->trace_count;
    for (int r = 1; r < group->size && group->rank == 0; r++)
        SL_TRY(measure_clock(group, r, &ranks[r]));
    if (group->rank > 0)
        SL_TRY(send_clock(group));
    return sli_pipe_group_sum(group, &ranks[0].start, (int64_t)group->size * RANK_TRACE_NUMBERS);
}

/* ---- Gathering -------------------------------------------------------------------------- */

/* The earliest start of a rank, on rank 0's clock. */
static double step_start(const rank_trace *ranks, int count)
{
    double first = INFINITY;
    for (int r = 0; r < count; r++)
        if (ranks[r].count > 0)
            first = fmin(first, ranks[r].start - ranks[r].offset);
    return first;
}

/* The entries of all processes, one after the other. */
static sl_status exchange_entries(const sl_pipe *pipe, const rank_trace *ranks,
                                  sl_timeline_entry *entries)
{
    _Static_assert(sizeof *entries % sizeof(int64_t) == 0, "entries are words");
    sli_pipe_group *group = pipe->group;
    double first = step_start(ranks, group->size);
    for (int r = 0; r < group->size; r++) {
        int count = (int)ranks[r].count;
        double shift = ranks[r].start - ranks[r].offset - first;
        for (int i = 0; i < count && r == group->rank; i++) {
            entries[i] = pipe->trace[i];
            entries[i].start += shift;
            entries[i].end += shift;
        }
        int64_t words = count * (int64_t)(sizeof *entries / sizeof(int64_t));
        if (count > 0)
            SL_TRY(sli_pipe_group_broadcast(group, entries, words, SL_I64, r));
        entries += count;
    }
    return SL_OK;
}

/* Copies the entries of all processes in the table's order. */
static void order_entries(const sl_pipe *pipe, const sl_timeline_entry *gathered, int count,
                          sl_timeline_entry *next)
{
    for (int rank = 0; rank < pipe->rank_count; rank++)
        for (int i = 0; i < count; i++)
            if (sl_pipe_rank(pipe, gathered[i].action.stage) == rank)
                *next++ = gathered[i];
}

static sl_status copy_entries(const sl_pipe *pipe, sl_timeline_entry **out, int *count)
{
    *out = calloc((size_t)pipe->trace_count + 1, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "the timeline of %d actions", pipe->trace_count);
    *count = pipe->trace_count;
    if (*count > 0)
        memcpy(*out, pipe->trace, (size_t)*count * sizeof **out);
    return SL_OK;
}

static sl_status gather_entries(const sl_pipe *pipe, sl_status status, sl_timeline_entry **out,
                                int *count, double *clock_error)
{
    sli_pipe_group *group = pipe->group;
    rank_trace ranks[group->size];
    sli_error_copy error;
    sli_error_save(&error, status);
    SL_TRY(compare_traces(pipe, ranks));
    for (int r = 0; r < group->size; r++) {
        *count += (int)ranks[r].count;
        *clock_error = fmax(*clock_error, 2 * ranks[r].clock_error);
    }
    status = sli_error_restore(&error);
    sl_timeline_entry *entries = calloc(2 * (size_t)*count + 1, sizeof *entries);
    if (!entries && status == SL_OK)
        status = sli_no_memory(NULL, "the timeline of %d actions", *count);
    SL_TRY_OR_FAIL(sli_group_agree(group->group, status));
    SL_TRY_OR_FAIL(exchange_entries(pipe, ranks, entries + *count));
    order_entries(pipe, entries + *count, *count, entries);
    *out = entries;
    return SL_OK;

fail:
    free(entries);
    return status;
}

sl_status sli_pipe_gather_timeline(const sl_pipe *pipe, sl_status status, sl_timeline_entry **out,
                                   int *count, double *clock_error)
{
    *out = NULL;
    *count = 0;
    *clock_error = 0;
    if (pipe->group)
        return gather_entries(pipe, status, out, count, clock_error);
    return status == SL_OK ? copy_entries(pipe, out, count) : status;
}

/* ---- The machine ------------------------------------------------------------------------ */

/* What a simulation of the pipe needs to know of where it runs. */
typedef struct machine {
    double *core_numbers; /* [ranks] whole numbers, which are summed over processes */
    double *link_bytes;   /* [stages] of the tensors that come from the stage before in another
                             process; 0: from this one */
    double *links;        /* [stages - 1] that are probed; of one process: 0 */
    int *cores;           /* [ranks] */
    bool has_shared_cores;
} machine;

static void destroy_machine(machine *described)
{
    free(described->core_numbers);
    free(described->link_bytes);
    free(described->links);
    free(described->cores);
}

/* The number of the rank's cores: the same for devices of a host that have cores in common, and for
 * ranks that share a device. */
static int number_cores(const sl_pipe *pipe, const sli_rank *rank)
{
    int host = pipe->group ? pipe->group->hosts[rank->group_rank] : 0;
    if (rank->device->core_set >= 0)
        return host * (SLI_MAX_DEVICE_NUMBER + 1) + rank->device->core_set;
    return -1 - rank->group_rank * pipe->rank_count - (int)(rank->device_lock - pipe->device_locks);
}

static sl_status describe_own(const sl_pipe *pipe, machine *out)
{
    size_t ranks = (size_t)pipe->rank_count, stages = (size_t)pipe->stage_count;
    out->core_numbers = calloc(ranks, sizeof *out->core_numbers);
    out->link_bytes = calloc(stages, sizeof *out->link_bytes);
    out->links = calloc(stages, sizeof *out->links);
    out->cores = calloc(ranks, sizeof *out->cores);
    if (!out->core_numbers || !out->link_bytes || !out->links || !out->cores)
        return sli_no_memory("sl_pipe_get_utilization", "%zu stages", stages);
    for (size_t r = 0; r < ranks; r++)
        if (pipe->ranks[r].device)
            out->core_numbers[r] = number_cores(pipe, &pipe->ranks[r]);
    for (size_t s = 1; s < stages; s++)
        if (pipe->stages[s].is_here && pipe->stages[s - 1].group_rank != pipe->stages[s].group_rank)
            out->link_bytes[s] = (double)sli_channel_last_bytes(pipe->stages[s].from_previous);
    return SL_OK;
}

/* Fills in out->links on every rank. */
static sl_status probe_links(const sl_pipe *pipe, const machine *out)
{
    sli_pipe_group *group = pipe->group;
    for (int s = 1; s < pipe->stage_count; s++) {
        int source = pipe->stages[s - 1].group_rank, target = pipe->stages[s].group_rank;
        if (out->link_bytes[s] > 0 && (group->rank == source || group->rank == target))
            SL_TRY(sli_pipe_group_check(group,
                                        sli_measure_link(group->group, source, target,
                                                         out->link_bytes[s], &out->links[s - 1])));
    }
    return sli_pipe_group_sum(group, out->links, pipe->stage_count);
}

/* Links are probed once, as that takes longer than gathering a timeline. */
static sl_status describe_machine(sl_pipe *pipe, machine *out)
{
    sl_status status = describe_own(pipe, out);
    if (pipe->group) {
        SL_TRY(sli_group_agree(pipe->group->group, status));
        SL_TRY(sli_pipe_group_sum(pipe->group, out->core_numbers, pipe->rank_count));
        SL_TRY(sli_pipe_group_sum(pipe->group, out->link_bytes, pipe->stage_count));
        if (!pipe->links) {
            SL_TRY(probe_links(pipe, out));
            pipe->links = out->links;
            out->links = NULL;
        }
    }
    SL_TRY(status);
    for (int r = 0; r < pipe->rank_count; r++) {
        out->cores[r] = (int)out->core_numbers[r];
        for (int before = 0; before < r; before++)
            out->has_shared_cores = out->has_shared_cores || out->cores[before] == out->cores[r];
    }
    return SL_OK;
}

/* ---- Public functions ------------------------------------------------------------------- */

int sl_pipe_timeline(const sl_pipe *pipe, const sl_timeline_entry **entries)
{
    *entries = pipe->trace;
    return pipe->trace_count;
}

void sl_pipe_step_times(const sl_pipe *pipe, double *seconds, double *busy_seconds)
{
    *seconds = pipe->trace_seconds;
    *busy_seconds = pipe->trace_busy_seconds;
}

sl_status sl_pipe_get_utilization(sl_pipe *pipe, sl_utilization *out)
{
    sl_timeline_entry *entries;
    machine found = {0};
    int count;
    double clock_error;
    if (out)
        *out = (sl_utilization){0};
    SLI_CHECK_NOT_NULL(pipe);
    sl_status status =
        out ? SL_OK : sl_error(SL_ERR_INVALID, "sl_pipe_get_utilization: out is NULL");
    SL_TRY(sli_pipe_gather_timeline(pipe, status, &entries, &count, &clock_error));
    if (count == 0)
        SL_TRY_OR_FAIL(
            sl_error(SL_ERR_INVALID, "sl_pipe_get_utilization: no training step has run"));
    SL_TRY_OR_FAIL(describe_machine(pipe, &found));
    int forward_only = 0;
    while (forward_only < pipe->stage_count &&
           pipe->backward[forward_only] == SL_STAGE_BACKWARD_NONE)
        forward_only++;
    const sl_schedule_options options = {.ranks = pipe->rank_count,
                                         .virtual_stages = pipe->stage_count / pipe->rank_count,
                                         .placement = sl_schedule_placement(pipe->order),
                                         .slices = entries[0].action.slices,
                                         .links = pipe->links ? pipe->links : found.links,
                                         .cores = found.has_shared_cores ? found.cores : NULL,
                                         .forward_only = forward_only};
    status = sl_timeline_utilization(entries, count, &options, out);

fail:
    destroy_machine(&found);
    free(entries);
    return status;
}
