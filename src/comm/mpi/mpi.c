/* The backend `mpi`: ranks are processes.
 *
 *     transport.h, plugin/   the calls to MPI, in a shared object of their own
 *     load.c                 finds it
 *     session.c              what a process has once
 *     hub.c, hub_groups.c    rank 0's thread that hears who lives, who leaves and who is late
 *     watch.c, note.c        each rank's connection to it
 *     call.c                 one call's messages, and waiting for them
 *     collective.c, reduction.c, message.c    the operations
 *
 * MPI's own collective operations are not used: they cannot be left when a rank dies, and the order
 * in which they add up is their secret. The operations are made of messages that are polled for, so
 * that every wait can end, and data are combined in the order of ranks by the function that the
 * backend `local` uses, so that both give the same bits.
 *
 * Each group has a communicator of its own. To make one is a blocking call of MPI; it runs on a
 * thread that is left behind where a rank dies meanwhile. */
#include "comm/mpi/mpi.h"

#include "comm/mpi/collective.h"
#include "comm/mpi/message.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Communicators ------------------------------------------------------------------------ */

typedef struct creation {
    atomic_int owners; /* the thread and its starter: the last one frees */
    atomic_bool done;
    const sli_transport *mpi;
    sli_communicator *parent, *made;
    int code, count;
    int ranks[];
} creation;

static void release(creation *one)
{
    if (atomic_fetch_sub(&one->owners, 1) == 1)
        free(one);
}

static void *create_communicator(void *argument)
{
    creation *one = argument;
    one->code = one->mpi->create(one->parent, one->ranks, one->count, &one->made);
    atomic_store(&one->done, true);
    release(one);
    return NULL;
}

/* Makes the group's communicator of the ranks of `parent` that are named. The call is the one that
 * is waited in: what ends it ends this. */
static sl_status make_communicator(sli_call *call, sl_group *group, sli_communicator *parent,
                                   const int *ranks)
{
    sli_mpi_group *state = group->state;
    pthread_t thread;
    creation *one = malloc(sizeof *one + (size_t)group->size * sizeof(int));
    if (!one)
        return sl_error(SL_ERR_MEMORY, "sl_group: no memory for %d ranks", group->size);
    *one = (creation){.mpi = state->session->mpi, .parent = parent, .count = group->size};
    atomic_init(&one->owners, 2);
    for (int r = 0; r < group->size; r++)
        one->ranks[r] = ranks[r];
    int code = pthread_create(&thread, NULL, create_communicator, one);
    if (code != 0) {
        free(one);
        return sl_error(SL_ERR_MEMORY, "sl_group: cannot start a thread (error %d)", code);
    }
    pthread_detach(thread);
    sl_status status = SL_OK;
    while (!atomic_load(&one->done) && status == SL_OK)
        status = sli_call_idle(call);
    if (status != SL_OK) /* the thread stays inside MPI */
        atomic_store(&state->session->unusable, true);
    else if (one->code != 0)
        status = sli_call_mpi_error(call, one->code);
    else
        state->comm = one->made;
    release(one);
    return status;
}

/* ---- Handles ------------------------------------------------------------------------------ */

static void state_free(sli_mpi_group *state)
{
    pthread_mutex_destroy(&state->lock);
    free(state->slots);
    free(state->scratch);
    free(state->processes);
    free(state);
}

static void mpi_leave(sl_group *group)
{
    sli_mpi_group *state = group->state;
    sli_session *session = state->session;
    sli_mpi_flush(group);
    bool broken = sli_watch_status(session->watch, &state->member) != SL_OK;
    sli_watch_leave(session->watch, &state->member);
    /* What failed may have left messages behind; such a communicator is never used for others. */
    if (state->comm && !broken && !atomic_load(&session->unusable))
        session->mpi->free(state->comm);
    state_free(state);
}

static void mpi_abort(sl_group *group, sl_status error, const char *text)
{
    sli_mpi_group *state = group->state;
    char with_rank[SLI_NOTE_TEXT_BYTES];
    snprintf(with_rank, sizeof with_rank, "rank %d: %.480s", group->rank, text);
    (void)sli_watch_break(state->session->watch, &state->member, error, with_rank);
}

/* What fails on one rank alone, for want of memory say, must end the others' waiting too. Does
 * nothing where the group is broken, as it mostly is. */
static void mpi_fail(sl_group *group, sl_status error)
{
    char text[SLI_NOTE_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", sl_error_text());
    mpi_abort(group, error, text);
}

static sl_status mpi_collective(sl_group *group, const sli_operation *operation)
{
    sli_mpi_group *state = group->state;
    sli_call call = sli_call_begin(group, operation);
    atomic_store(&state->member.sequence, operation->sequence);
    sl_status status = SL_OK;
    if (atomic_load(&state->member.alarm))
        status = sli_watch_check(state->session->watch, &state->member, operation);
    if (status == SL_OK)
        status = sli_mpi_run(&call);
    if (status != SL_OK) {
        sli_call_cancel(&call);
        mpi_fail(group, status);
    }
    return status;
}

static sl_status mpi_split(sl_group *group, int color, uint64_t sequence, sl_group **out);

static const sli_group_ops mpi_ops = {mpi_collective, sli_mpi_send, sli_mpi_receive,
                                      mpi_split,      mpi_abort,    mpi_leave};

/* ---- Making ------------------------------------------------------------------------------- */

typedef struct plan {
    uint64_t id;
    int rank, size;
    const int *ranks;            /* [size] of the parent */
    const sli_mpi_group *parent; /* NULL: the world */
    sli_call *call;              /* of the parent; NULL without one */
} plan;

static sl_status make_group(sli_session *session, const plan *made, const sl_group_options *options,
                            sl_group **out)
{
    sl_group *group = calloc(1, sizeof *group);
    sli_mpi_group *state = calloc(1, sizeof *state);
    int *processes = malloc((size_t)made->size * sizeof *processes);
    if (!group || !state || !processes) {
        free(group);
        free(state);
        free(processes);
        return sl_error(SL_ERR_MEMORY, "sl_group: no memory for %d ranks", made->size);
    }
    for (int r = 0; r < made->size; r++)
        processes[r] = made->parent ? made->parent->processes[made->ranks[r]] : made->ranks[r];
    state->session = session;
    state->processes = processes;
    state->member = (sli_member){.id = made->id,
                                 .rank = made->rank,
                                 .size = made->size,
                                 .processes = processes};
    pthread_mutex_init(&state->lock, NULL);
    *group = (sl_group){.ops = &mpi_ops,
                        .rank = made->rank,
                        .size = made->size,
                        .options = *options,
                        .state = state};
    sl_status status = sli_watch_join(session->watch, &state->member);
    if (status != SL_OK) {
        state_free(state);
        free(group);
        return status;
    }
    sli_call own = sli_call_begin(group, NULL);
    status = make_communicator(made->call ? made->call : &own, group,
                               made->parent ? made->parent->comm : session->world, made->ranks);
    if (status != SL_OK)
        sl_group_destroy(&group);
    *out = group;
    return status;
}

/* A number that the same makings give on every rank, and others do not: splitmix64's finish. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

sl_status sli_mpi_create(const sl_group_options *options, sl_group **out)
{
    *out = NULL;
    sli_session *session;
    SL_TRY(sli_session_get(&session));
    int *ranks = calloc((size_t)session->size, sizeof *ranks);
    if (!ranks)
        return sl_error(SL_ERR_MEMORY, "sl_group_create_mpi: no memory for %d ranks",
                        session->size);
    for (int r = 0; r < session->size; r++)
        ranks[r] = r;
    plan world = {.id = mix(0, sli_session_count_group(session)),
                  .rank = session->rank,
                  .size = session->size,
                  .ranks = ranks};
    sl_status status = make_group(session, &world, options, out);
    free(ranks);
    return status;
}

static sl_status split_by_color(sli_call *call, const int64_t *colors, int *ranks, sl_group **out)
{
    sl_group *group = call->group;
    sli_mpi_group *state = call->state;
    int64_t color = colors[group->rank];
    plan part = {.id = mix(mix(state->member.id, state->splits++), (uint64_t)color),
                 .ranks = ranks,
                 .parent = state,
                 .call = call};
    for (int r = 0; r < group->size; r++) {
        if (colors[r] != color)
            continue;
        if (r == group->rank)
            part.rank = part.size;
        ranks[part.size++] = r;
    }
    return color < 0 ? SL_OK : make_group(state->session, &part, &group->options, out);
}

static sl_status mpi_split(sl_group *group, int color, uint64_t sequence, sl_group **out)
{
    *out = NULL;
    int64_t own = color;
    int64_t *colors = malloc((size_t)group->size * sizeof *colors);
    int *ranks = calloc((size_t)group->size, sizeof *ranks);
    sl_status status = colors && ranks
                           ? SL_OK
                           : sl_error(SL_ERR_MEMORY, "split: no memory for %d ranks", group->size);
    sli_operation operation = {.kind = SLI_OP_SPLIT,
                               .in = &own,
                               .out = colors,
                               .count = 1,
                               .dtype = SL_I64,
                               .sequence = sequence};
    if (status == SL_OK)
        status = mpi_collective(group, &operation);
    sli_call call = sli_call_begin(group, &operation);
    if (status == SL_OK) {
        status = split_by_color(&call, colors, ranks, out);
        if (status != SL_OK)
            mpi_fail(group, status);
    }
    free(colors);
    free(ranks);
    return status;
}
