/* The backend `mpi`: ranks are processes.
 *
 *     transport.h, plugin/   the calls to MPI, in a shared object of their own
 *     load.c                 finds it
 *     session.c              what a process has once
 *     hub.c, hub_groups.c    rank 0's thread that hears who lives, who leaves and who is late
 *     watch.c                each rank's connection to it; kinds.h: what goes over it
 *     call.c                 one call's messages, and waiting for them
 *     collective.c, reduction.c, message.c    the operations
 *
 * MPI's own collective operations are not used: they cannot be left when a rank dies, and the order
 * in which they add up is their secret. The operations are made of messages that are polled for, so
 * that every wait can end, and data are combined in the order of ranks by the function that the
 * backend `local` uses, so that both give the same bits.
 *
 * Each group has a communicator of its own. To make one is a blocking call of MPI, which every rank
 * makes only when all have prepared the rest (hub.c); it runs on a thread that is left behind where
 * a rank dies meanwhile. */
#include "comm/group.h"

#include "comm/mpi/collective.h"
#include "comm/mpi/message.h"

#include <limits.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Communicators ------------------------------------------------------------------------ */

/* How long MPI may take to return when the group is broken. */
static const double return_seconds = 1;

typedef struct creation {
    atomic_int owners; /* the thread and its starter: the last one frees */
    atomic_bool done;
    sem_t decided; /* posted once `wanted` is set */
    bool wanted;
    const sli_transport *mpi;
    sli_communicator *parent, *made;
    int code, count;
    int ranks[];
} creation;

static void release(creation *one)
{
    if (atomic_fetch_sub(&one->owners, 1) != 1)
        return;
    if (one->made && !one->wanted) /* a broken group's is never used for others */
        one->mpi->free(one->made);
    sem_destroy(&one->decided);
    free(one);
}

static void *create_communicator(void *argument)
{
    creation *one = argument;
    while (sem_wait(&one->decided) != 0)
        continue;
    if (one->wanted)
        one->code = one->mpi->create(one->parent, one->ranks, one->count, one->made);
    atomic_store(&one->done, true);
    release(one);
    return NULL;
}

/* Takes all that making a communicator of the named ranks of `parent` needs, the thread included,
 * which then waits for finish_creation. */
static sl_status prepare_creation(const sli_transport *mpi, sli_communicator *parent,
                                  const int *ranks, int count, creation **out)
{
    *out = NULL;
    pthread_t thread;
    creation *one = calloc(1, sizeof *one + (size_t)count * sizeof(int));
    if (!one)
        return sl_error(SL_ERR_MEMORY, "sl_group: no memory for %d ranks", count);
    *one = (creation){.mpi = mpi, .parent = parent, .made = mpi->reserve(), .count = count};
    sem_init(&one->decided, 0, 0);
    atomic_init(&one->owners, 2);
    for (int r = 0; r < count; r++)
        one->ranks[r] = ranks ? ranks[r] : r;
    int code = one->made ? pthread_create(&thread, NULL, create_communicator, one) : 0;
    if (!one->made || code != 0) {
        atomic_store(&one->owners, 1);
        sl_status status =
            one->made ? sl_error(SL_ERR_MEMORY, "sl_group: cannot start a thread (error %d)", code)
                      : sl_error(SL_ERR_MEMORY, "sl_group: no memory for a communicator");
        release(one);
        return status;
    }
    pthread_detach(thread);
    *out = one;
    return SL_OK;
}

static void decide(creation *one, bool wanted)
{
    one->wanted = wanted;
    sem_post(&one->decided);
}

/* Rests while a group is made; fails where it, or the one that it is split from, is broken. */
static sl_status idle(sli_call *call, const sli_call *parent)
{
    SL_TRY(sli_call_idle(call));
    return parent ? sli_watch_status(parent->state->session->watch, &parent->state->member) : SL_OK;
}

/* Whether MPI still finishes, as it does where all ranks live: another one may have been done
 * before this one, and have broken the group since. */
static bool comes_back(const creation *one)
{
    sli_running_clock waited = {0};
    while (!atomic_load(&one->done) && sli_running_clock_read(&waited, 0.5) < return_seconds)
        sli_rest(INT_MAX);
    return atomic_load(&one->done);
}

/* Makes it, or where it is not wanted only frees it. */
static sl_status finish_creation(sli_call *call, const sli_call *parent, creation *one, bool wanted)
{
    sli_mpi_group *state = call->state;
    sl_status status = SL_OK;
    decide(one, wanted);
    while (wanted && !atomic_load(&one->done) && status == SL_OK)
        status = idle(call, parent);
    if (status != SL_OK && comes_back(one)) /* the group is made, and its operations will fail */
        status = SL_OK;
    if (status != SL_OK) { /* the thread stays inside MPI */
        atomic_store(&state->session->unusable, true);
    } else if (wanted && one->code != 0) {
        status = sli_call_mpi_error(call, one->code);
    } else if (wanted) {
        state->comm = one->made;
        one->made = NULL;
    }
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
    free(state->stays);
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
    char with_rank[SLI_WIRE_TEXT_BYTES];
    snprintf(with_rank, sizeof with_rank, "rank %d: %.480s", group->rank, text);
    (void)sli_watch_break(state->session->watch, &state->member, error, with_rank);
}

/* What fails on one rank alone, for want of memory say, must end the others' waiting too. Does
 * nothing where the group is broken, as it mostly is. */
static void mpi_fail(sl_group *group, sl_status error)
{
    mpi_abort(group, error, sl_error_text());
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
    const int *ranks;            /* [size] of the parent; NULL: all, in their order */
    const sli_mpi_group *parent; /* NULL: the world */
    sli_call *call;              /* of the parent; NULL without one */
} plan;

/* A handle without its communicator. */
static sl_status make_handle(sli_session *session, const plan *made,
                             const sl_group_options *options, sl_group **out)
{
    size_t size = (size_t)made->size;
    sl_group *group = calloc(1, sizeof *group);
    sli_mpi_group *state = calloc(1, sizeof *state);
    int *processes = calloc(size, sizeof *processes);
    uint64_t *stays = calloc(size, sizeof *stays);
    *out = NULL;
    if (!group || !state || !processes || !stays) {
        free(group);
        free(state);
        free(processes);
        free(stays);
        return sl_error(SL_ERR_MEMORY, "sl_group: no memory for %d ranks", made->size);
    }
    for (int r = 0; r < made->size; r++)
        processes[r] = made->parent ? made->parent->processes[made->ranks[r]] : r;
    state->session = session;
    state->processes = processes;
    state->stays = stays;
    state->member = (sli_member){.id = made->id,
                                 .rank = made->rank,
                                 .size = made->size,
                                 .processes = processes,
                                 .stays = stays};
    pthread_mutex_init(&state->lock, NULL);
    *group = (sl_group){.ops = &mpi_ops,
                        .rank = made->rank,
                        .size = made->size,
                        .options = *options,
                        .state = state};
    *out = group;
    return SL_OK;
}

static sl_status make_group(sli_session *session, const plan *made, const sl_group_options *options,
                            sl_group **out)
{
    sl_group *group;
    creation *communicator = NULL;
    sl_status status = make_handle(session, made, options, &group);
    if (status == SL_OK)
        status = prepare_creation(session->mpi, made->parent ? made->parent->comm : session->world,
                                  made->ranks, made->size, &communicator);
    if (status != SL_OK) {
        (void)sli_watch_refuse(session->watch, made->id, made->rank, made->size, status);
        if (group)
            state_free(group->state);
        free(group);
        return status;
    }
    sli_watch_join(session->watch, &((sli_mpi_group *)group->state)->member);
    sli_call own = sli_call_begin(group, NULL);
    while (status == SL_OK && !atomic_load(&((sli_mpi_group *)group->state)->member.ready))
        status = idle(&own, made->call);
    if (status != SL_OK)
        (void)finish_creation(&own, made->call, communicator, false);
    else
        status = finish_creation(&own, made->call, communicator, true);
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
    plan world = {.id = mix(0, sli_session_count_group(session)),
                  .rank = session->rank,
                  .size = session->size};
    return make_group(session, &world, options, out);
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
    if (status == SL_OK)
        status = split_by_color(&call, colors, ranks, out);
    if (status != SL_OK)
        mpi_fail(group, status);
    free(colors);
    free(ranks);
    return status;
}
