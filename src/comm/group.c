#include "comm/group.h"
#include "core/dtype.h"

#include "core/environment.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double default_timeout_seconds = 1800;
static const double longest_timeout_seconds = 1e9; /* clocks cannot count to infinity */

/* The options with their defaults filled in. */
static sl_status fill_options(const sl_group_options *options, const char *who,
                              sl_group_options *out)
{
    *out = options ? *options : (sl_group_options){0};
    if (!(out->timeout_seconds >= 0))
        return sl_error(SL_ERR_INVALID, "%s: the time limit must not be negative, got %g s", who,
                        out->timeout_seconds);
    if (out->timeout_seconds == 0)
        out->timeout_seconds = default_timeout_seconds;
    if (out->timeout_seconds > longest_timeout_seconds)
        out->timeout_seconds = longest_timeout_seconds;
    if (!out->check_collectives)
        SL_TRY(sli_debug_contains("collectives", &out->check_collectives));
    return SL_OK;
}

sl_status sl_group_create_local(int size, const sl_group_options *options, sl_group **handles)
{
    sl_group_options filled;
    if (size < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_group_create_local: a group has at least 1 rank, got %d", size);
    for (int r = 0; r < size; r++)
        handles[r] = NULL;
    SL_TRY(fill_options(options, "sl_group_create_local", &filled));
    return sli_local_create(size, &filled, handles);
}

sl_status sl_group_create_mpi(const sl_group_options *options, sl_group **out)
{
    sl_group_options filled;
    *out = NULL;
    SL_TRY(fill_options(options, "sl_group_create_mpi", &filled));
    return sli_mpi_create(&filled, out);
}

sl_status sli_group_check_host(const sl_group *group, const char *who)
{
    if (!group->device)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: expected a group of the backend local or mpi, got one of nccl on %s", who,
                    sl_device_name(group->device));
}

sl_status sli_group_create_nccl(sl_group *below, sl_device *device, sl_group **out)
{
    *out = NULL;
    SL_TRY(sli_group_check_host(below, "the creation of a group of the backend nccl"));
    return sli_nccl_create(below, device, out);
}

void sl_group_destroy(sl_group **group)
{
    if (!group || !*group)
        return;
    sli_error_copy saved;
    /* Destroying a broken group must not replace this thread's error. */
    sli_error_save(&saved, SL_ERR_INTERNAL);
    sli_comm_thread_destroy(&(*group)->thread);
    (*group)->ops->leave(*group);
    (void)sli_error_restore(&saved);
    free(*group);
    *group = NULL;
}

void sl_group_abort(sl_group *group, sl_status error, const char *text)
{
    sli_error_copy saved = {.status = error, .rank = SLI_NO_RANK};
    snprintf(saved.text, sizeof saved.text, "%s", text);
    group->ops->abort(group, &saved);
}

int sl_group_rank(const sl_group *group)
{
    return group->rank;
}

int sl_group_size(const sl_group *group)
{
    return group->size;
}

/* ---- What backends share ------------------------------------------------------------------ */

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

/* "all_reduce", … */
static const char *operation_name(sli_operation_kind kind)
{
    static const char *const names[] = {"all_reduce", "reduce",         "broadcast",
                                        "all_gather", "reduce_scatter", "gather",
                                        "scatter",    "barrier",        "split"};
    return names[kind];
}

const char *sli_operation_text(const sli_operation *operation, char *text)
{
    if (operation->kind == SLI_OP_BARRIER || operation->kind == SLI_OP_SPLIT) {
        snprintf(text, SLI_OPERATION_TEXT_BYTES, "%s", operation_name(operation->kind));
        return text;
    }
    char root[24] = "";
    if (has_root(operation->kind))
        snprintf(root, sizeof root, ", root %d", operation->root);
    snprintf(text, SLI_OPERATION_TEXT_BYTES, "%s(%s%s%" PRId64 " x %s%s)",
             operation_name(operation->kind),
             has_reduction(operation->kind) ? reduce_name(operation->reduce) : "",
             has_reduction(operation->kind) ? ", " : "", operation->count,
             sli_dtype_name(operation->dtype), root);
    return text;
}

/* Whether two ranks call the same operation; their memory may differ. */
static bool operation_matches(const sli_operation *a, const sli_operation *b)
{
    return a->kind == b->kind && a->count == b->count && a->dtype == b->dtype &&
           (!has_reduction(a->kind) || (a->reduce == b->reduce && a->terms == b->terms)) &&
           (!has_root(a->kind) || a->root == b->root);
}

const void *sli_operation_node(const sli_operation *operation, int index)
{
    return operation->nodes ? operation->nodes[index] : operation->in;
}

sl_status sli_operations_compare(const sl_group *group, const sli_operation *const *called)
{
    for (int r = 1; r < group->size; r++) {
        char a[SLI_OPERATION_TEXT_BYTES], b[SLI_OPERATION_TEXT_BYTES];
        char first[SLI_RANK_BYTES], other[SLI_RANK_BYTES];
        if (!operation_matches(called[0], called[r]))
            return sl_error(SL_ERR_INVALID,
                            "operation %" PRIu64 " of the group differs: %s called %s, %s %s",
                            called[0]->sequence, sli_rank_text(group, 0, first),
                            sli_operation_text(called[0], a), sli_rank_text(group, r, other),
                            sli_operation_text(called[r], b));
    }
    return SL_OK;
}

void sli_copy_unless_same(void *target, const void *source, size_t bytes)
{
    if (target != source && bytes > 0)
        memcpy(target, source, bytes);
}

void sli_ranks_text_add(int rank, int job_rank, char *text, size_t bytes)
{
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%d", used ? ", " : "rank ", rank);
    used = strlen(text);
    if (rank != job_rank)
        snprintf(text + used, bytes - used, " (%d of the job)", job_rank);
}

const char *sli_rank_text(const sl_group *group, int rank, char text[SLI_RANK_BYTES])
{
    text[0] = '\0';
    sli_ranks_text_add(rank, group->job_ranks[rank], text, SLI_RANK_BYTES);
    return text;
}

sl_status sli_group_set_error_rank(const sl_group *group, int rank, sl_status status)
{
    return sli_error_set_rank(status, group->job_ranks[rank]);
}

int sli_group_error_rank(const sl_group *group)
{
    for (int r = 0; r < group->size; r++)
        if (group->job_ranks[r] == sli_error_rank())
            return r;
    return -1;
}

sl_status sli_message_late(const sl_group *group, const sli_message *message)
{
    bool any = message->peer == SL_ANY_RANK;
    char sender[SLI_RANK_BYTES];
    sl_status status =
        sl_error(SL_ERR_CANCELLED, "recv, tag %d: nothing came from %s within %g s", message->tag,
                 any ? "any rank" : sli_rank_text(group, message->peer, sender),
                 group->options.timeout_seconds);
    return any ? status : sli_group_set_error_rank(group, message->peer, status);
}

sl_status sli_message_absent(const sl_group *group, const char *what, int rank, const char *why)
{
    char text[SLI_RANK_BYTES];
    return sli_group_set_error_rank(group, rank,
                                    sl_error(SL_ERR_CANCELLED, "%s: %s %s", what,
                                             sli_rank_text(group, rank, text), why));
}

sl_status sli_message_check(const sl_group *group, const sli_message *expected, int64_t count,
                            sl_dtype dtype, int source)
{
    char text[SLI_RANK_BYTES];
    if (count == expected->count && dtype == expected->dtype)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "recv from %s, tag %d: expected %" PRId64 " x %s, got %" PRId64 " x %s",
                    sli_rank_text(group, source, text), expected->tag, expected->count,
                    sli_dtype_name(expected->dtype), count, sli_dtype_name(dtype));
}

/* ---- Checks ------------------------------------------------------------------------------- */

static sl_status check_rank(const sl_group *group, const char *what, int rank)
{
    if (rank < 0 || rank >= group->size)
        return sl_error(SL_ERR_INVALID, "%s: ranks are 0 to %d, got %d", what, group->size - 1,
                        rank);
    return SL_OK;
}

static sl_status check_count(const char *what, int64_t count)
{
    if (count < 0)
        return sl_error(SL_ERR_INVALID, "%s: the count must not be negative, got %" PRId64, what,
                        count);
    return SL_OK;
}

static sl_status check_reduced(const sli_operation *operation)
{
    if (operation->dtype == SL_F16)
        return sl_error(SL_ERR_INVALID, "%s: numbers of f16 are not computed with",
                        operation_name(operation->kind));
    if (operation->reduce == SL_REDUCE_AVERAGE &&
        (operation->dtype == SL_I32 || operation->dtype == SL_I64))
        return sl_error(SL_ERR_INVALID, "%s: an average needs a floating-point type, got %s",
                        operation_name(operation->kind), sli_dtype_name(operation->dtype));
    return SL_OK;
}

static sl_status check_buffer(const sl_group *group, const sli_operation *operation,
                              const void *buffer, const char *name)
{
    if (group->rank == operation->root && !buffer && operation->count > 0)
        return sl_error(SL_ERR_INVALID, "%s: `%s` must be given on the root, rank %d",
                        operation_name(operation->kind), name, operation->root);
    if (group->rank != operation->root && buffer)
        return sl_error(SL_ERR_INVALID, "%s: `%s` must be NULL on rank %d, which is not the root",
                        operation_name(operation->kind), name, group->rank);
    return SL_OK;
}

/* Of gather and scatter: a buffer that only the root has. Other wrong arguments are wrong on every
 * rank; this may be one rank's mistake, and the others would wait for it until their time is up. */
static sl_status check_root_only(sl_group *group, const sli_operation *operation,
                                 const void *buffer, const char *name)
{
    return sli_group_check(group->size > 1 ? group : NULL,
                           check_buffer(group, operation, buffer, name));
}

/* ---- Running ------------------------------------------------------------------------------ */

static sl_status run_collective(sl_group *group, const sli_task *task)
{
    return group->ops->collective(group, &task->operation);
}

static sl_status run_receive(sl_group *group, const sli_task *task)
{
    return group->ops->receive(group, &task->message);
}

/* Operations keep their order: once there is a communication thread, all go through it. */
static sl_status submit_task(sl_group *group, const sli_task *task, sl_work **work)
{
    if (work)
        *work = NULL;
    if (!work && !group->thread)
        return task->run(group, task);
    if (!group->thread)
        SL_TRY(sli_comm_thread_create(group, &group->thread));
    sl_work *started;
    SL_TRY(sli_comm_thread_start(group->thread, task, &started));
    if (!work)
        return sl_work_wait(&started);
    *work = started;
    return SL_OK;
}

static sl_status submit_collective(sl_group *group, sli_operation *operation, sl_work **work)
{
    if (work)
        *work = NULL;
    SL_TRY(check_count(operation_name(operation->kind), operation->count));
    SL_TRY(check_rank(group, operation_name(operation->kind), operation->root));
    SL_TRY(check_reduced(operation));
    operation->sequence = ++group->sequence;
    if (operation->terms == 0)
        operation->terms = group->size;
    return sli_group_check(group,
                           submit_task(group,
                                       &(sli_task){.run = run_collective, .operation = *operation},
                                       work));
}

/* ---- The operations ----------------------------------------------------------------------- */

sl_status sl_group_all_reduce(sl_group *group, void *data, int64_t count, sl_dtype dtype,
                              sl_reduce_op op, sl_work **work)
{
    sli_operation operation = {.kind = SLI_OP_ALL_REDUCE,
                               .in = data,
                               .out = data,
                               .count = count,
                               .dtype = dtype,
                               .reduce = op};
    return submit_collective(group, &operation, work);
}

sl_status sli_group_all_reduce_nodes(sl_group *group, const void *const *nodes, int terms,
                                     void *out, int64_t count, sl_dtype dtype, sl_reduce_op op)
{
    assert(terms >= group->size);
    sli_operation operation = {.kind = SLI_OP_ALL_REDUCE,
                               .nodes = nodes,
                               .terms = terms,
                               .out = out,
                               .count = count,
                               .dtype = dtype,
                               .reduce = op};
    return submit_collective(group, &operation, NULL);
}

sl_status sl_group_reduce(sl_group *group, void *data, int64_t count, sl_dtype dtype,
                          sl_reduce_op op, int root, sl_work **work)
{
    sli_operation operation = {.kind = SLI_OP_REDUCE,
                               .in = data,
                               .out = data,
                               .count = count,
                               .dtype = dtype,
                               .reduce = op,
                               .root = root};
    return submit_collective(group, &operation, work);
}

sl_status sl_group_broadcast(sl_group *group, void *data, int64_t count, sl_dtype dtype, int root,
                             sl_work **work)
{
    sli_operation operation = {.kind = SLI_OP_BROADCAST,
                               .in = data,
                               .out = data,
                               .count = count,
                               .dtype = dtype,
                               .root = root};
    return submit_collective(group, &operation, work);
}

sl_status sl_group_all_gather(sl_group *group, const void *in, void *out, int64_t count,
                              sl_dtype dtype, sl_work **work)
{
    sli_operation operation = {
        .kind = SLI_OP_ALL_GATHER, .in = in, .out = out, .count = count, .dtype = dtype};
    return submit_collective(group, &operation, work);
}

sl_status sl_group_reduce_scatter(sl_group *group, const void *in, void *out, int64_t count,
                                  sl_dtype dtype, sl_reduce_op op, sl_work **work)
{
    sli_operation operation = {.kind = SLI_OP_REDUCE_SCATTER,
                               .in = in,
                               .out = out,
                               .count = count,
                               .dtype = dtype,
                               .reduce = op};
    return submit_collective(group, &operation, work);
}

sl_status sl_group_gather(sl_group *group, const void *in, void *out, int64_t count, sl_dtype dtype,
                          int root, sl_work **work)
{
    sli_operation operation = {
        .kind = SLI_OP_GATHER, .in = in, .out = out, .count = count, .dtype = dtype, .root = root};
    SL_TRY(check_root_only(group, &operation, out, "out"));
    return submit_collective(group, &operation, work);
}

sl_status sl_group_scatter(sl_group *group, const void *in, void *out, int64_t count,
                           sl_dtype dtype, int root, sl_work **work)
{
    sli_operation operation = {
        .kind = SLI_OP_SCATTER, .in = in, .out = out, .count = count, .dtype = dtype, .root = root};
    SL_TRY(check_root_only(group, &operation, in, "in"));
    return submit_collective(group, &operation, work);
}

sl_status sl_group_barrier(sl_group *group, sl_work **work)
{
    sli_operation operation = {.kind = SLI_OP_BARRIER};
    return submit_collective(group, &operation, work);
}

sl_status sl_group_split(sl_group *group, int color, sl_group **out)
{
    *out = NULL;
    /* What was started comes first. The wait is no collective: other ranks may have no thread. */
    if (group->thread)
        sli_comm_thread_drain(group->thread);
    return group->ops->split(group, color, ++group->sequence, out);
}

sl_status sl_group_send(sl_group *group, const void *data, int64_t count, sl_dtype dtype, int to,
                        int tag, sl_work **work)
{
    if (work)
        *work = NULL;
    SL_TRY(check_count("send", count));
    SL_TRY(check_rank(group, "send", to));
    sli_message message = {(void *)data, count, dtype, to, tag, NULL};
    SL_TRY(group->ops->send(group, &message));
    return work ? sli_work_create_finished(work) : SL_OK;
}

sl_status sl_group_recv(sl_group *group, void *data, int64_t count, sl_dtype dtype, int from,
                        int tag, int *source, sl_work **work)
{
    if (work)
        *work = NULL;
    SL_TRY(check_count("recv", count));
    if (from != SL_ANY_RANK)
        SL_TRY(check_rank(group, "recv", from));
    sli_task task = {.run = run_receive, .message = {data, count, dtype, from, tag, source}};
    if (!work) /* waiting in the queue behind a started collective could wait for ourselves */
        return task.run(group, &task);
    return submit_task(group, &task, work);
}
