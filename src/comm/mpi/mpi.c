/* The backend `mpi`: ranks are processes.
 *
 *     transport.h, plugin/   the calls to MPI, in a shared object of their own
 *     process.c              what a process has once: the plugin, the hub and the watch
 *     hub.c, hub_groups.c    rank 0's thread: which ranks live, leave and are late
 *     hub_watch.c            each rank's connection to it
 *     call.c                 one call's messages, and waiting for them
 *     collective.c, reduction.c, message.c    the operations
 *
 * MPI's own collective operations are not used: a rank cannot leave them when another one dies, and
 * their order of addition is not specified. The operations here are made of messages that are
 * polled for, so that every wait can end, and data are combined by the function that the backend
 * `local` uses, so that both give the same bits.
 *
 * Each group has a communicator of its own. Making one is a blocking call of MPI, which every rank
 * makes only when all have prepared the rest (hub.c); it runs on a thread of its own, which stays
 * in the call for good where a rank dies meanwhile. */
#include "comm/group.h"

#include "comm/mpi/call.h"
#include "core/threads.h"

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
    sli_communicator parent, made;
    int code, count;
    int ranks[];
} creation;

static void creation_release(creation *self)
{
    if (atomic_fetch_sub(&self->owners, 1) != 1)
        return;
    sem_destroy(&self->decided);
    free(self);
}

static void *create_communicator(void *argument)
{
    creation *self = argument;
    while (sem_wait(&self->decided) != 0)
        continue;
    if (self->wanted)
        self->code = self->mpi->create(&self->parent, self->ranks, self->count, &self->made);
    atomic_store(&self->done, true);
    creation_release(self);
    return NULL;
}

/* Allocates all that making a communicator of the named ranks of `parent` needs, and starts its
 * thread, which waits for creation_finish. */
static sl_status creation_prepare(const sli_transport *mpi, const sli_communicator *parent,
                                  const int *ranks, int count, creation **out)
{
    *out = NULL;
    pthread_t thread;
    creation *self = calloc(1, sizeof *self + (size_t)count * sizeof(int));
    if (!self)
        return sli_no_memory("sl_group", "%d ranks", count);
    *self = (creation){.mpi = mpi, .parent = *parent, .count = count};
    sem_init(&self->decided, 0, 0);
    atomic_init(&self->owners, 2);
    for (int r = 0; r < count; r++)
        self->ranks[r] = ranks ? ranks[r] : r;
    int code = pthread_create(&thread, NULL, create_communicator, self);
    if (code != 0) {
        atomic_store(&self->owners, 1);
        creation_release(self);
        return sli_no_memory("sl_group", "a thread (error %d)", code);
    }
    pthread_detach(thread);
    *out = self;
    return SL_OK;
}

/* Pauses while a group is made; fails where it breaks, or the one that it is split from. A death
 * that has broken the parent is the cause of what else has happened, so that error comes first. */
static sl_status pause_making(sli_call *call, const sli_call *parent)
{
    sl_status status = sli_call_pause(call), cause = SL_OK;
    if (parent && atomic_load(&parent->state->member.alarm))
        cause = sli_watch_check(parent->state->process->watch, &parent->state->member,
                                parent->operation);
    return cause == SL_OK ? status : cause;
}

/* Whether MPI finishes in a moment, as it does where all ranks live: another rank may have been
 * done before this one, and have broken the group since. */
static bool creation_returns(const creation *self)
{
    sli_running_clock waited = {0};
    while (!atomic_load(&self->done) && sli_running_clock_read(&waited, 0.5) < return_seconds)
        sli_pause_polling(INT_MAX, false);
    return atomic_load(&self->done);
}

/* Makes the communicator, or where it is not `wanted` only ends the thread. */
static sl_status creation_finish(creation *self, sli_call *call, const sli_call *parent,
                                 bool wanted)
{
    sl_status status = SL_OK;
    self->wanted = wanted;
    sem_post(&self->decided);
    while (wanted && !atomic_load(&self->done) && status == SL_OK)
        status = pause_making(call, parent);
    if (status != SL_OK && creation_returns(self)) /* the group's operations will fail */
        status = SL_OK;
    if (status != SL_OK) /* the thread stays inside MPI */
        atomic_store(&call->state->process->unusable, true);
    else if (wanted && self->code != 0)
        status = sli_call_mpi_error(call, self->code);
    else if (wanted)
        call->state->comm = self->made;
    creation_release(self);
    return status;
}

/* ---- Handles ------------------------------------------------------------------------------ */

static void state_free(sli_mpi_group *state)
{
    if (!state)
        return;
    pthread_mutex_destroy(&state->lock);
    free(state->slots);
    free(state->scratch);
    free(state->processes);
    free(state->last);
    free(state);
}

static void mpi_leave(sl_group *group)
{
    sli_mpi_group *state = group->state;
    sli_mpi_process *process = state->process;
    sli_mpi_flush(group);
    bool broken = sli_watch_status(process->watch, &state->member) != SL_OK;
    sli_watch_leave(process->watch, &state->member);
    /* What failed may have left messages behind; such a communicator is never used for others. */
    if (!broken && !atomic_load(&process->unusable))
        process->mpi->free(&state->comm);
    state_free(state);
}

static void mpi_abort(sl_group *group, const sli_error_copy *error)
{
    sli_mpi_group *state = group->state;
    char rank[SLI_RANK_BYTES];
    sl_error(error->status, "%s: %s", sli_rank_text(group, group->rank, rank), error->text);
    (void)sli_watch_break(state->process->watch, &state->member,
                          sli_error_set_rank(error->status, error->rank));
}

static sl_status mpi_collective(sl_group *group, const sli_operation *operation)
{
    sli_mpi_group *state = group->state;
    sli_call call = sli_call_begin(group, operation);
    atomic_store(&state->member.sequence, operation->sequence);
    sl_status status;
    if (atomic_load(&state->member.alarm))
        SL_TRY_OR_FAIL(sli_watch_check(state->process->watch, &state->member, operation));
    SL_TRY_OR_FAIL(sli_mpi_run(&call));
    return SL_OK;
fail:
    sli_call_cancel(&call);
    return sli_group_check(group, status); /* for want of memory, say */
}

static sl_status mpi_split(sl_group *group, int color, uint64_t sequence, sl_group **out);

static const sli_group_ops mpi_ops = {.collective = mpi_collective,
                                      .send = sli_mpi_send,
                                      .receive = sli_mpi_receive,
                                      .start = sli_mpi_start,
                                      .progress = sli_mpi_progress,
                                      .cancel = sli_mpi_cancel,
                                      .absence = sli_mpi_absence,
                                      .status = sli_mpi_status,
                                      .split = mpi_split,
                                      .abort = mpi_abort,
                                      .leave = mpi_leave};

/* ---- Making ------------------------------------------------------------------------------- */

typedef struct group_plan {
    uint64_t id;
    int rank, size;
    const int *ranks; /* [size] of the parent; NULL: all, in their order */
    sli_call *parent; /* the split that makes the group; NULL: a group of all processes */
} group_plan;

static void free_handle(sl_group *group)
{
    if (group)
        state_free(group->state);
    free(group);
}

/* A handle without its communicator. */
static sl_status make_handle(sli_mpi_process *process, const group_plan *plan,
                             const sl_group_options *options, sl_group **out)
{
    size_t size = (size_t)plan->size;
    *out = calloc(1, sizeof **out);
    sli_mpi_group *state = *out ? calloc(1, sizeof *state) : NULL;
    if (!state)
        return sli_no_memory("sl_group", "%d ranks", plan->size);
    **out = (sl_group){.ops = &mpi_ops,
                       .rank = plan->rank,
                       .size = plan->size,
                       .options = *options,
                       .state = state};
    pthread_mutex_init(&state->lock, NULL);
    state->process = process;
    state->processes = calloc(size, sizeof *state->processes);
    state->last = calloc(size, sizeof *state->last);
    if (!state->processes || !state->last)
        return sli_no_memory("sl_group", "%d ranks", plan->size);
    for (int r = 0; r < plan->size; r++)
        state->processes[r] = plan->parent ? plan->parent->state->processes[plan->ranks[r]] : r;
    (*out)->job_ranks = state->processes;
    state->member = (sli_member){.id = plan->id,
                                 .rank = plan->rank,
                                 .size = plan->size,
                                 .processes = state->processes,
                                 .last = state->last};
    return SL_OK;
}

static sl_status make_group(sli_mpi_process *process, const group_plan *plan,
                            const sl_group_options *options, sl_group **out)
{
    sl_group *group;
    creation *communicator = NULL;
    const sli_communicator *parent = plan->parent ? &plan->parent->state->comm : &process->world;
    sl_status status;
    SL_TRY_OR_FAIL(make_handle(process, plan, options, &group));
    SL_TRY_OR_FAIL(creation_prepare(process->mpi, parent, plan->ranks, plan->size, &communicator));
    sli_call own = sli_call_begin(group, NULL);
    sli_watch_join(process->watch, &own.state->member);
    while (status == SL_OK && !atomic_load(&own.state->member.ready))
        status = pause_making(&own, plan->parent);
    if (status == SL_OK)
        status = creation_finish(communicator, &own, plan->parent, true);
    else
        (void)creation_finish(communicator, &own, plan->parent, false);
    if (status != SL_OK)
        sl_group_destroy(&group);
    *out = group;
    return status;
fail:
    (void)sli_watch_refuse_group(process->watch, plan->id, plan->rank, plan->size, status);
    free_handle(group);
    return status;
}

/* A group's number, the same on every rank and different for other groups: splitmix64's finish. */
static uint64_t mix_number(uint64_t a, uint64_t b)
{
    uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

sl_status sli_mpi_create(const sl_group_options *options, sl_group **out)
{
    *out = NULL;
    sli_mpi_process *process;
    SL_TRY(sli_mpi_process_get(&process));
    group_plan world = {.id = mix_number(0, atomic_fetch_add(&process->groups_made, 1)),
                        .rank = process->rank,
                        .size = process->size};
    return make_group(process, &world, options, out);
}

static sl_status split_by_color(sli_call *call, const int64_t *colors, int *ranks, sl_group **out)
{
    sl_group *group = call->group;
    sli_mpi_group *state = call->state;
    int64_t color = colors[group->rank];
    group_plan subgroup = {.id = mix_number(mix_number(state->member.id, state->splits++),
                                            (uint64_t)color),
                           .ranks = ranks,
                           .parent = call};
    for (int r = 0; r < group->size; r++) {
        if (colors[r] != color)
            continue;
        if (r == group->rank)
            subgroup.rank = subgroup.size;
        ranks[subgroup.size++] = r;
    }
    return color < 0 ? SL_OK : make_group(state->process, &subgroup, &group->options, out);
}

static sl_status mpi_split(sl_group *group, int color, uint64_t sequence, sl_group **out)
{
    *out = NULL;
    int64_t wanted = color;
    int64_t *colors = malloc((size_t)group->size * sizeof *colors);
    int *ranks = calloc((size_t)group->size, sizeof *ranks);
    sli_operation operation = {.kind = SLI_OP_SPLIT,
                               .in = &wanted,
                               .out = colors,
                               .count = 1,
                               .dtype = SL_I64,
                               .sequence = sequence};
    sli_call call = sli_call_begin(group, &operation);
    sl_status status;
    SL_TRY_OR_FAIL(colors && ranks ? SL_OK : sli_no_memory("split", "%d ranks", group->size));
    SL_TRY_OR_FAIL(mpi_collective(group, &operation));
    SL_TRY_OR_FAIL(split_by_color(&call, colors, ranks, out));

fail:
    free(ranks);
    free(colors);
    return sli_group_check(group, status);
}
