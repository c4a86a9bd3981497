/* The backend `local`: ranks are threads of one process.
 *
 * A collective has three phases. Each rank posts its operation and waits until all have (arrive);
 * each then does its range of the work, reading the others' buffers where they lie; and each waits
 * until all are done (depart), since only then may the owner of a buffer touch it again.
 *
 *     rank 0   post ──┐      ┌─ range 0 of all buffers ─┐      ┌─ return
 *     rank 1   post ──┤ meet ├─ range 1                 ─┤ meet ├─ return
 *     rank 2   post ──┘      └─ range 2                 ─┘      └─ return
 *
 * All-reduce: rank r adds up range r of all buffers and writes the sum to all of them
 * (comm/reduce_plan.h). Every element is read once and written once for each rank, by one thread.
 *
 * A rank that leaves, and one whose time runs out, break the group for all ranks: the first to see
 * it writes the error down, and all that wait return it. */
#include "comm/local/local.h"

#include "comm/reduce_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A wait is cut into steps, for the clock to see when the process was suspended. */
static const double step_seconds = 1;

bool sli_local_wait(sli_world *w, sli_running_clock *waited)
{
    struct timespec deadline;
    double left = w->timeout_seconds - sli_running_clock_read(waited, 2 * step_seconds);
    if (left <= 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_nsec += (long)(1e9 * (left < step_seconds ? left : step_seconds));
    deadline.tv_sec += deadline.tv_nsec / 1000000000L;
    deadline.tv_nsec %= 1000000000L;
    (void)pthread_cond_timedwait(&w->changed, &w->lock, &deadline);
    return true;
}

/* ---- Failing, with the lock held ---------------------------------------------------------- */

/* Breaks the group with this thread's error, unless it is broken; returns the error that broke it.
 */
static sl_status break_world(sli_world *w, sl_status error)
{
    if (!w->broken.status) {
        sli_error_save(&w->broken, error);
        pthread_cond_broadcast(&w->changed);
    }
    return sli_error_restore(&w->broken);
}

/* Writes the ranks that have not arrived, or only those that never can: "rank 1, 3". Returns the
 * first of them. */
static int missing_ranks(const sli_world *w, bool only_left, char *text, size_t bytes)
{
    int first = -1;
    text[0] = '\0';
    for (int r = 0; r < w->size; r++)
        if (!w->slots[r].arrived && (w->slots[r].left || !only_left)) {
            sli_ranks_text_add(r, w->job_ranks[r], text, bytes);
            first = first < 0 ? r : first;
        }
    return first;
}

static sl_status break_for_missing(sli_world *w, const sli_operation *operation, bool only_left,
                                   const char *why)
{
    char what[SLI_OPERATION_TEXT_BYTES], ranks[160];
    int first = missing_ranks(w, only_left, ranks, sizeof ranks);
    sl_status status =
        sl_error(SL_ERR_CANCELLED, "%s, operation %" PRIu64 " of the group: %s %s",
                 sli_operation_text(operation, what), operation->sequence, ranks, why);
    return break_world(w, sli_error_set_rank(status, w->job_ranks[first]));
}

static bool any_rank_left(const sli_world *w)
{
    for (int r = 0; r < w->size; r++)
        if (w->slots[r].left && !w->slots[r].arrived)
            return true;
    return false;
}

static sl_status compare_operations(const sl_group *group)
{
    sli_world *w = group->state;
    const sli_operation *called[w->size];
    for (int r = 0; r < w->size; r++)
        called[r] = &w->slots[r].operation;
    sl_status status = sli_operations_compare(group, called);
    return status == SL_OK ? SL_OK : break_world(w, status);
}

/* ---- Meeting ------------------------------------------------------------------------------ */

/* With the lock held: waits until all ranks have arrived (`meetings` changes from `since`), the
 * group breaks or the time limit is over. */
static sl_status wait_for_arrivals(sli_world *w, uint64_t since, const sli_operation *operation)
{
    sli_running_clock waited = {0};
    while (w->meetings == since && !w->broken.status) {
        if (any_rank_left(w))
            return break_for_missing(w, operation, true, "left the group before it came");
        if (!sli_local_wait(w, &waited)) {
            char why[64];
            snprintf(why, sizeof why, "did not come within %g s", w->timeout_seconds);
            return break_for_missing(w, operation, false, why);
        }
    }
    return w->meetings == since ? sli_error_restore(&w->broken) : SL_OK;
}

/* With the lock held: posts this rank's operation. */
static sl_status post_operation(const sl_group *group, const sli_operation *operation)
{
    sli_world *w = group->state;
    int rank = group->rank;
    uint64_t since = w->meetings;
    SL_TRY(sli_error_restore(&w->broken));
    w->slots[rank].operation = *operation;
    w->slots[rank].arrived = true;
    if (++w->arrived < w->size)
        return wait_for_arrivals(w, since, operation);
    w->arrived = 0;
    if (w->check)
        SL_TRY(compare_operations(group));
    w->meetings++;
    pthread_cond_broadcast(&w->changed);
    return SL_OK;
}

static sl_status arrive_at_operation(sl_group *group, const sli_operation *operation)
{
    sli_world *w = group->state;
    pthread_mutex_lock(&w->lock);
    sl_status status = post_operation(group, operation);
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* All ranks have arrived, so all depart: only their own work lies between. Until then others read
 * and write this rank's buffers, so it waits also when the group breaks meanwhile, and however long
 * that takes. */
static void depart_from_operation(sl_group *group)
{
    sli_world *w = group->state;
    pthread_mutex_lock(&w->lock);
    uint64_t since = w->meetings;
    if (++w->departed == w->size) {
        w->departed = 0;
        for (int r = 0; r < w->size; r++)
            w->slots[r].arrived = false;
        w->meetings++;
        pthread_cond_broadcast(&w->changed);
    }
    while (w->meetings == since)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* ---- Each rank's work --------------------------------------------------------------------- */

/* Elements that stay in the second-level cache until every buffer has got them. */
enum { BLOCK = 1 << 14 };

/* Adds up block k of this rank's range of all buffers, for each that wants it. */
static void reduce_block(const sli_world *w, const sli_reduce_plan *plan, int64_t k)
{
    const void *nodes[plan->node_count];
    int64_t count = sli_reduce_count(plan, plan->rank, k);
    void *first = NULL;
    for (int r = 0; r < w->size; r++)
        for (int n = plan->first[r]; n < plan->first[r + 1]; n++)
            nodes[n] =
                sli_reduce_input(plan, &w->slots[r].operation, n - plan->first[r], plan->rank, k);
    for (int r = 0; r < w->size; r++) {
        if (!sli_reduce_wants(plan, r, plan->rank))
            continue;
        void *to = sli_reduce_output(plan, &w->slots[r].operation, plan->rank, k);
        if (first)
            memcpy(to, first, (size_t)count * plan->element_bytes);
        else
            sli_reduce(plan, nodes, count, first = to);
    }
}

static void reduce_range(const sl_group *group, const sli_operation *mine)
{
    int first[group->size + 1];
    uint8_t sums[mine->terms];
    sli_reduce_plan plan;
    sli_reduce_plan_make(group, mine, false, first, sums, &plan);
    sli_reduce_plan_cut(&plan, BLOCK * plan.element_bytes);
    for (int64_t k = 0; sli_reduce_count(&plan, group->rank, k) > 0; k++)
        reduce_block(group->state, &plan, k);
}

static void do_own_work(const sl_group *group, const sli_operation *mine)
{
    const sli_world *w = group->state;
    int rank = group->rank;
    size_t bytes = (size_t)mine->count * sl_dtype_bytes(mine->dtype);
    const sli_rank_slot *slots = w->slots;
    if (mine->moves_no_data)
        return;
    switch (mine->kind) {
    case SLI_OP_ALL_REDUCE:
    case SLI_OP_REDUCE:
    case SLI_OP_REDUCE_SCATTER:
        reduce_range(group, mine);
        break;
    case SLI_OP_BROADCAST:
        sli_copy_unless_same(mine->out, slots[mine->root].operation.in, bytes);
        break;
    case SLI_OP_ALL_GATHER:
        for (int r = 0; r < w->size; r++)
            sli_copy_unless_same((char *)mine->out + (size_t)r * bytes, slots[r].operation.in,
                                 bytes);
        break;
    case SLI_OP_GATHER:
        if (rank == mine->root)
            for (int r = 0; r < w->size; r++)
                sli_copy_unless_same((char *)mine->out + (size_t)r * bytes, slots[r].operation.in,
                                     bytes);
        break;
    case SLI_OP_SCATTER:
        sli_copy_unless_same(mine->out,
                             (const char *)slots[mine->root].operation.in + (size_t)rank * bytes,
                             bytes);
        break;
    case SLI_OP_BARRIER:
    case SLI_OP_SPLIT:
        break;
    }
}

static sl_status local_collective(sl_group *group, const sli_operation *operation)
{
    SL_TRY(arrive_at_operation(group, operation));
    do_own_work(group, operation);
    depart_from_operation(group);
    return SL_OK;
}

/* ---- Making, splitting, leaving ----------------------------------------------------------- */

static void world_free(sli_world *w)
{
    for (sli_queued_message *message = w->queue, *next; message; message = next) {
        next = message->next;
        free(message);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void local_leave(sl_group *group)
{
    sli_world *w = group->state;
    pthread_mutex_lock(&w->lock);
    w->slots[group->rank].left = true;
    bool last = --w->here == 0;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (last)
        world_free(w);
}

static void local_abort(sl_group *group, const sli_error_copy *error)
{
    sli_world *w = group->state;
    char rank[SLI_RANK_BYTES];
    sl_error(error->status, "%s: %s", sli_rank_text(group, group->rank, rank), error->text);
    pthread_mutex_lock(&w->lock);
    (void)break_world(w, sli_error_set_rank(error->status, error->rank));
    pthread_mutex_unlock(&w->lock);
}

/* Called by rank 0 between arrival and departure: makes every sub-group, or none. Each rank then
 * takes its own. */
static sl_status make_subgroups(sli_world *w, const sl_group_options *options)
{
    sl_status status = SL_OK;
    sl_group *handles[w->size];
    for (int first = 0; first < w->size && status == SL_OK; first++) {
        int color = w->slots[first].color, members = 0;
        if (color < 0 || w->slots[first].subgroup)
            continue;
        for (int r = first; r < w->size; r++)
            members += w->slots[r].color == color;
        status = sli_local_create(members, options, handles);
        for (int r = first, next = 0; r < w->size && status == SL_OK; r++)
            if (w->slots[r].color == color) {
                ((sli_world *)handles[0]->state)->job_ranks[next] = w->job_ranks[r];
                w->slots[r].subgroup = handles[next++];
            }
    }
    for (int r = 0; r < w->size && status != SL_OK; r++)
        sl_group_destroy(&w->slots[r].subgroup);
    return status;
}

static sl_status local_split(sl_group *group, int color, uint64_t sequence, sl_group **out)
{
    sli_world *w = group->state;
    sli_rank_slot *slot = &w->slots[group->rank];
    sli_operation operation = {.kind = SLI_OP_SPLIT, .sequence = sequence};
    *out = NULL;
    slot->color = color; /* published by arrive's lock */
    slot->subgroup = NULL;
    SL_TRY(arrive_at_operation(group, &operation));
    if (group->rank == 0 && make_subgroups(w, &group->options) != SL_OK)
        (void)sli_group_check(group, SL_ERR_MEMORY);
    depart_from_operation(group);
    *out = slot->subgroup;
    if (*out || color < 0)
        return SL_OK;
    return sli_local_status(group);
}

static const sli_group_ops local_ops = {.collective = local_collective,
                                        .send = sli_local_send,
                                        .receive = sli_local_receive,
                                        .start = sli_local_start,
                                        .progress = sli_local_progress,
                                        .cancel = sli_local_cancel,
                                        .absence = sli_local_absence,
                                        .status = sli_local_status,
                                        .split = local_split,
                                        .abort = local_abort,
                                        .leave = local_leave,
                                        .ranks_are_threads = true};

static sli_world *world_create(int size, const sl_group_options *options)
{
    size_t slots = (size_t)size * sizeof(sli_rank_slot);
    sli_world *w = calloc(1, sizeof *w + slots + (size_t)size * sizeof *w->job_ranks);
    if (!w)
        return NULL;
    w->job_ranks = (int *)&w->slots[size];
    for (int r = 0; r < size; r++)
        w->job_ranks[r] = r;
    w->size = w->here = size;
    w->timeout_seconds = options->timeout_seconds;
    w->check = options->check_collectives;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return w;
}

sl_status sli_local_create(int size, const sl_group_options *options, sl_group **handles)
{
    sli_world *w = world_create(size, options);
    bool complete = w != NULL;
    for (int r = 0; r < size; r++) {
        handles[r] = complete ? calloc(1, sizeof *handles[r]) : NULL;
        complete &= handles[r] != NULL;
    }
    if (!complete) {
        for (int r = 0; r < size; r++) {
            free(handles[r]);
            handles[r] = NULL;
        }
        if (w)
            world_free(w);
        return sli_no_memory("sl_group_create_local", "%d ranks", size);
    }
    for (int r = 0; r < size; r++)
        *handles[r] = (sl_group){.ops = &local_ops,
                                 .rank = r,
                                 .size = size,
                                 .job_ranks = w->job_ranks,
                                 .options = *options,
                                 .state = w};
    return SL_OK;
}
