/* The backend `local`: ranks are threads of one process.
 *
 * A collective has three phases. Each rank posts its operation and waits until all have (arrive);
 * each then does its own part of the work, reading the others' buffers where they lie; and each
 * waits until all are done (depart), since only then may the owner of a buffer touch it again.
 *
 *     rank 0   post ──┐      ┌─ slice 0 of everybody's buffers ─┐      ┌─ return
 *     rank 1   post ──┤ meet ├─ slice 1                         ─┤ meet ├─ return
 *     rank 2   post ──┘      └─ slice 2                         ─┘      └─ return
 *
 * All-reduce: rank r adds up slice r of all buffers, in the order of ranks, and writes the sum to
 * all of them. Every element is read once and written once for each rank, by one thread, and the
 * order of addition is fixed: all ranks get the same bits, whoever came first.
 *
 * A rank that leaves, and one whose time runs out, break the group for everybody: the first to see
 * it writes the error down, and all who wait return it. */
#include "comm/local.h"

#include "comm/local_world.h"
#include "comm/reduce.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A wait is cut into steps, for the clock to see when the process was suspended. */
static const double step_seconds = 1;

bool sli_local_wait(sli_world *w, sli_running_clock *waited)
{
    struct timespec at;
    double left = w->timeout_seconds - sli_running_clock_read(waited, 2 * step_seconds);
    if (left <= 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += (long)(1e9 * (left < step_seconds ? left : step_seconds));
    at.tv_sec += at.tv_nsec / 1000000000L;
    at.tv_nsec %= 1000000000L;
    (void)pthread_cond_timedwait(&w->changed, &w->lock, &at);
    return true;
}

/* ---- Failing, with the lock held ---------------------------------------------------------- */

sl_status sli_local_broken(const sli_world *w)
{
    return sli_error_restore(&w->error);
}

static void break_world(sli_world *w, sl_status error, const char *text)
{
    if (w->broken)
        return;
    w->broken = true;
    w->error.status = error;
    snprintf(w->error.text, sizeof w->error.text, "%s", text);
    pthread_cond_broadcast(&w->changed);
}

/* Writes the ranks that have not arrived, or only those that never can: "1, 3". */
static void missing_ranks(const sli_world *w, bool only_left, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int r = 0; r < w->size && used < bytes; r++)
        if (!w->slots[r].arrived && (w->slots[r].left || !only_left))
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "", r);
}

static void break_for_missing(sli_world *w, const sli_operation *operation, bool only_left,
                              const char *why)
{
    char what[SLI_OPERATION_TEXT_BYTES], ranks[160], text[SLI_ERROR_BYTES];
    missing_ranks(w, only_left, ranks, sizeof ranks);
    snprintf(text, sizeof text, "%s, operation %" PRIu64 " of the group: rank %s %s",
             sli_operation_text(operation, what), operation->sequence, ranks, why);
    break_world(w, SL_ERR_CANCELLED, text);
}

static bool someone_left(const sli_world *w)
{
    for (int r = 0; r < w->size; r++)
        if (w->slots[r].left && !w->slots[r].arrived)
            return true;
    return false;
}

static void check_mismatch(sli_world *w, const sli_operation *operation)
{
    for (int r = 1; r < w->size; r++) {
        const sli_operation *first = &w->slots[0].operation, *other = &w->slots[r].operation;
        if (sli_operation_matches(first, other))
            continue;
        char a[SLI_OPERATION_TEXT_BYTES], b[SLI_OPERATION_TEXT_BYTES], text[SLI_ERROR_BYTES];
        snprintf(text, sizeof text,
                 "operation %" PRIu64 " of the group differs: rank 0 called %s, rank %d %s",
                 operation->sequence, sli_operation_text(first, a), r,
                 sli_operation_text(other, b));
        break_world(w, SL_ERR_INVALID, text);
        return;
    }
}

/* ---- Meeting ------------------------------------------------------------------------------ */

/* Waits until everybody has arrived (`meetings` changes from `since`), the group breaks or the time
 * limit is over. */
static sl_status wait_for_arrivals(sli_world *w, uint64_t since, const sli_operation *operation)
{
    sli_running_clock waited = {0};
    while (w->meetings == since && !w->broken) {
        if (someone_left(w)) {
            break_for_missing(w, operation, true, "left the group before it came");
            break;
        }
        if (!sli_local_wait(w, &waited)) {
            char why[64];
            snprintf(why, sizeof why, "did not come within %g s", w->timeout_seconds);
            break_for_missing(w, operation, false, why);
        }
    }
    return w->meetings == since ? sli_local_broken(w) : SL_OK;
}

static sl_status arrive(sl_group *group, const sli_operation *operation)
{
    sli_world *w = group->state;
    pthread_mutex_lock(&w->lock);
    sl_status status = SL_OK;
    if (w->broken) {
        status = sli_local_broken(w);
    } else {
        w->slots[group->rank].operation = *operation;
        w->slots[group->rank].arrived = true;
        uint64_t since = w->meetings;
        if (++w->arrived == w->size) {
            if (w->check)
                check_mismatch(w, operation);
            w->arrived = 0;
            if (!w->broken)
                w->meetings++;
            pthread_cond_broadcast(&w->changed);
            status = w->broken ? sli_local_broken(w) : SL_OK;
        } else {
            status = wait_for_arrivals(w, since, operation);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* Everybody has arrived, so everybody departs: only their own part of the work lies between. Until
 * then others read and write this rank's buffers, so it waits also when the group breaks meanwhile,
 * and however long that takes. */
static void depart(sl_group *group)
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

/* ---- Each rank's part of the work --------------------------------------------------------- */

/* Slices begin at multiples of 64 elements, so that no two ranks write one cache line. */
static int64_t slice_start(int64_t count, int part, int parts)
{
    if (part == parts)
        return count;
    return count / parts * part / 64 * 64;
}

/* Elements that stay in the second-level cache until every buffer has got them. */
enum { REDUCE_PIECE = 1 << 14 };

static void reduce_slice(const sli_world *w, int rank, const sli_operation *mine)
{
    const void *sources[w->size];
    for (int r = 0; r < w->size; r++)
        sources[r] = w->slots[r].operation.in;
    int64_t start = slice_start(mine->count, rank, w->size);
    int64_t end = slice_start(mine->count, rank + 1, w->size);
    size_t size = sl_dtype_bytes(mine->dtype);
    int root = mine->kind == SLI_OP_REDUCE ? mine->root : 0;
    for (; start < end; start += REDUCE_PIECE) {
        int64_t count = end - start < REDUCE_PIECE ? end - start : REDUCE_PIECE;
        size_t offset = (size_t)start * size;
        char *to = (char *)w->slots[root].operation.out + offset;
        sli_reduce(mine->dtype, mine->reduce, sources, w->size, start, count, to);
        if (mine->kind == SLI_OP_ALL_REDUCE)
            for (int r = 1; r < w->size; r++)
                memcpy((char *)w->slots[r].operation.out + offset, to, (size_t)count * size);
    }
}

static void reduce_own_part(const sli_world *w, int rank, const sli_operation *mine)
{
    const void *sources[w->size];
    for (int r = 0; r < w->size; r++)
        sources[r] = w->slots[r].operation.in;
    sli_reduce(mine->dtype, mine->reduce, sources, w->size, rank * mine->count, mine->count,
               mine->out);
}

static void copy_unless_same(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes > 0)
        memcpy(to, from, bytes);
}

static void do_part(const sli_world *w, int rank, const sli_operation *mine)
{
    size_t bytes = (size_t)mine->count * sl_dtype_bytes(mine->dtype);
    const sli_rank_slot *slots = w->slots;
    switch (mine->kind) {
    case SLI_OP_ALL_REDUCE:
    case SLI_OP_REDUCE:
        reduce_slice(w, rank, mine);
        break;
    case SLI_OP_REDUCE_SCATTER:
        reduce_own_part(w, rank, mine);
        break;
    case SLI_OP_BROADCAST:
        copy_unless_same(mine->out, slots[mine->root].operation.in, bytes);
        break;
    case SLI_OP_ALL_GATHER:
        for (int r = 0; r < w->size; r++)
            copy_unless_same((char *)mine->out + (size_t)r * bytes, slots[r].operation.in, bytes);
        break;
    case SLI_OP_GATHER:
        if (rank == mine->root)
            for (int r = 0; r < w->size; r++)
                copy_unless_same((char *)mine->out + (size_t)r * bytes, slots[r].operation.in,
                                 bytes);
        break;
    case SLI_OP_SCATTER:
        copy_unless_same(mine->out,
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
    SL_TRY(arrive(group, operation));
    do_part(group->state, group->rank, operation);
    depart(group);
    return SL_OK;
}

/* ---- Making, splitting, leaving ----------------------------------------------------------- */

static void world_free(sli_world *w)
{
    for (sli_queued_message *at = w->queue, *next; at; at = next) {
        next = at->next;
        free(at);
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

static void local_abort(sl_group *group, sl_status error, const char *text)
{
    sli_world *w = group->state;
    char with_rank[SLI_ERROR_BYTES];
    snprintf(with_rank, sizeof with_rank, "rank %d: %s", group->rank, text);
    pthread_mutex_lock(&w->lock);
    break_world(w, error, with_rank);
    pthread_mutex_unlock(&w->lock);
}

/* Between arrival and departure rank 0 alone makes every sub-group, or none; each rank takes its
 * own. */
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
            if (w->slots[r].color == color)
                w->slots[r].subgroup = handles[next++];
    }
    for (int r = 0; r < w->size && status != SL_OK; r++)
        sl_group_destroy(&w->slots[r].subgroup);
    return status;
}

static sl_status local_split(sl_group *group, int color, uint64_t sequence, sl_group **out)
{
    sli_world *w = group->state;
    sli_rank_slot *own = &w->slots[group->rank];
    sli_operation operation = {.kind = SLI_OP_SPLIT, .sequence = sequence};
    *out = NULL;
    own->color = color; /* published by arrive's lock */
    own->subgroup = NULL;
    SL_TRY(arrive(group, &operation));
    if (group->rank == 0 && make_subgroups(w, &group->options) != SL_OK)
        local_abort(group, SL_ERR_MEMORY, sl_error_text());
    depart(group);
    *out = own->subgroup;
    if (*out || color < 0)
        return SL_OK;
    pthread_mutex_lock(&w->lock);
    sl_status status = sli_local_broken(w);
    pthread_mutex_unlock(&w->lock);
    return status;
}

static const sli_group_ops local_ops = {local_collective, sli_local_send, sli_local_receive,
                                        local_split,      local_abort,    local_leave};

static sli_world *world_create(int size, const sl_group_options *options)
{
    sli_world *w = calloc(1, sizeof *w + (size_t)size * sizeof w->slots[0]);
    if (!w)
        return NULL;
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
        return sl_error(SL_ERR_MEMORY, "sl_group_create_local: no memory for %d ranks", size);
    }
    for (int r = 0; r < size; r++)
        *handles[r] =
            (sl_group){.ops = &local_ops, .rank = r, .size = size, .options = *options, .state = w};
    return SL_OK;
}
