/* The backend `nccl`: ranks with CUDA devices, whose data NCCL moves from GPU to GPU.
 *
 * NCCL moves and never adds: its sums depend on the ring or tree that it chooses, on the number of
 * ranks and on their order, and so would the bits of a run. Here NCCL brings each owner the others'
 * nodes for its range, a kernel adds them, and NCCL sends the sums round (comm/reduce_plan.h). That
 * is as many bytes as NCCL's own all-reduce moves, and gives the bits of the backends `local` and
 * `mpi`.
 *
 * Before each collective the ranks wait for each other in the group below (`local` or `mpi`): NCCL
 * is called only when all have come with the same operation, so a rank that is late, leaves or
 * calls something else is named as in that group, and NCCL's own order of calls is the same
 * everywhere. While data move, the group below is asked whether all ranks live; when one does not,
 * the communicator is aborted. A call waits for its result, on the communication thread where the
 * caller does not: meanwhile the device goes on.
 *
 * Messages go by the host's memory over the group below. A send must not wait for its receiver, and
 * a receive chooses by tag or takes any rank's; a send of NCCL waits and has no tag. */
#include "comm/reduce_plan.h"
#include "core/clock.h"
#include "core/threads.h"
#include "device/device_base.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Received data of a reduction, at most: longer ranges go in blocks. */
static const size_t scratch_limit = (size_t)64 << 20;
/* How long leaving may take when others may not leave. */
static const double leave_seconds = 5;
enum { CHECK_EVERY = 64 }; /* polls */

typedef struct nccl_group {
    sl_group *below;
    bool owns_below;
    const sli_nccl_ops *ops;
    sli_nccl *comm; /* NULL: aborted */
    void *scratch;  /* memory of the device */
    size_t scratch_bytes;
} nccl_group;

/* One operation, or the creation of the group (`mine` is NULL). */
typedef struct call {
    sl_group *group;
    nccl_group *state;
    const sli_operation *mine;
    size_t bytes; /* of mine->count elements */
    sli_running_clock waited;
} call;

/* ---- Waiting ------------------------------------------------------------------------------ */

static const char *call_text(const call *c, char text[SLI_OPERATION_TEXT_BYTES])
{
    return c->mine ? sli_operation_text(c->mine, text)
                   : "the creation of a group of the backend nccl";
}

/* Fails when a rank has died, when the group is broken and when the time limit is over. */
static sl_status check_others(call *c)
{
    char text[SLI_OPERATION_TEXT_BYTES], rank[SLI_RANK_BYTES];
    sl_group *below = c->state->below;
    SL_TRY(below->ops->status(below));
    for (int r = 0; r < below->size; r++) {
        bool has_left = false; /* it has all that it needs */
        const char *absence = below->ops->absence(below, r, &has_left);
        if (absence && !has_left)
            return sli_group_set_error_rank(below, r,
                                            sl_error(SL_ERR_CANCELLED, "%s: %s %s",
                                                     call_text(c, text),
                                                     sli_rank_text(below, r, rank), absence));
    }
    double limit = c->group->options.timeout_seconds;
    if (sli_running_clock_read(&c->waited, 1) <= limit)
        return SL_OK;
    return sl_error(SL_ERR_CANCELLED, "%s: NCCL has not finished within %g s", call_text(c, text),
                    limit);
}

static sl_status wait_until(call *c, sl_status (*condition)(sli_nccl *comm, bool *out))
{
    for (int polls = 1;; polls++) {
        bool holds;
        SL_TRY(condition(c->state->comm, &holds));
        if (holds)
            return SL_OK;
        if (polls % CHECK_EVERY == 0 || polls > SLI_EAGER_POLLS)
            SL_TRY(check_others(c));
        sli_pause_polling(polls, true);
    }
}

/* `queued` is the status of a function that moves data. */
static sl_status wait_queued(call *c, sl_status queued)
{
    SL_TRY(queued);
    return wait_until(c, c->state->ops->is_queued);
}

/* Ends what is under way here and on the other ranks; returns the error that broke the group. */
static sl_status break_group(const call *c, sl_status error)
{
    (void)sli_group_check(c->state->below, error);
    c->state->ops->destroy(&c->state->comm, true);
    return sli_group_first_error(c->state->below, error);
}

/* ---- Reductions --------------------------------------------------------------------------- */

/* The two steps that end a half of the drawing: sends and receives at once. */
static sl_status move_data(call *c, const sli_reduce_plan *plan, sli_reduce_step first,
                           sli_reduce_step second, int64_t k)
{
    sli_move moves[sli_reduce_most_moves(plan, first) + sli_reduce_most_moves(plan, second)];
    int count = sli_reduce_moves(plan, first, k, moves);
    count += sli_reduce_moves(plan, second, k, moves + count);
    return count == 0 ? SL_OK : wait_queued(c, c->state->ops->move(c->state->comm, moves, count));
}

static sl_status add_block(const call *c, const sli_reduce_plan *plan, int64_t k)
{
    sli_combine sum = {.dtype = c->mine->dtype,
                       .op = c->mine->reduce,
                       .count = sli_reduce_count(plan, plan->rank, k),
                       .terms = c->mine->terms,
                       .node_count = plan->node_count,
                       .out = sli_reduce_result(plan, k)};
    for (int n = 0; n < plan->node_count; n++) {
        sum.nodes[n] = sli_reduce_node(plan, n, k);
        sum.sums[n] = plan->sums[n];
    }
    return sum.count == 0 ? SL_OK : c->state->ops->combine(c->state->comm, &sum);
}

/* Scratch memory comes in the order of the device's queue, so before `begin`. */
static sl_status reserve_scratch(const call *c, size_t bytes)
{
    nccl_group *state = c->state;
    sl_device *device = c->group->device;
    if (bytes <= state->scratch_bytes)
        return SL_OK;
    sli_device_release(device, SL_MEMORY_WORKSPACE, state->scratch, state->scratch_bytes);
    state->scratch_bytes = 0;
    SL_TRY(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &state->scratch));
    state->scratch_bytes = bytes;
    return SL_OK;
}

static sl_status reduce(call *c)
{
    int first[c->group->size + 1];
    uint8_t sums[c->mine->terms];
    sli_reduce_plan plan;
    sli_reduce_plan_make(c->group, c->mine, false, first, sums, &plan);
    if (plan.node_count > SLI_NCCL_MOST_NODES)
        return sl_error(
            SL_ERR_UNSUPPORTED,
            "the backend nccl adds at most %d nodes, this sum has %d: use fewer ranks or shards",
            SLI_NCCL_MOST_NODES, plan.node_count);
    sli_reduce_plan_cut(&plan, scratch_limit / (size_t)plan.node_count);
    SL_TRY(reserve_scratch(c, sli_reduce_received_bytes(&plan)));
    plan.received = c->state->scratch;
    SL_TRY(c->state->ops->begin(c->state->comm));
    for (int64_t k = 0; k < plan.blocks; k++) {
        SL_TRY(move_data(c, &plan, SLI_NODES_IN, SLI_NODES_OUT, k));
        SL_TRY(add_block(c, &plan, k));
        SL_TRY(move_data(c, &plan, SLI_RESULTS_OUT, SLI_RESULTS_IN, k));
    }
    return SL_OK;
}

/* ---- Moving data -------------------------------------------------------------------------- */

static sl_status copy_own(const call *c, void *to, const void *from)
{
    return to == from ? SL_OK : c->state->ops->copy(c->state->comm, to, from, c->bytes);
}

/* The root receives from all, or sends to all, the range of each in `all`. */
static sl_status move_with_root(call *c, void *all, void *own, bool root_receives)
{
    int size = c->group->size, rank = c->group->rank, root = c->mine->root, count = 0;
    sli_move moves[size];
    if (rank != root)
        moves[count++] = (sli_move){own, c->bytes, root, !root_receives};
    for (int r = 0; r < size && rank == root; r++)
        if (r != root)
            moves[count++] =
                (sli_move){(char *)all + (size_t)r * c->bytes, c->bytes, r, root_receives};
    return count == 0 ? SL_OK : wait_queued(c, c->state->ops->move(c->state->comm, moves, count));
}

static sl_status gather(call *c)
{
    char *out = c->mine->out;
    SL_TRY(c->state->ops->begin(c->state->comm));
    if (c->group->rank == c->mine->root)
        SL_TRY(copy_own(c, out + (size_t)c->group->rank * c->bytes, c->mine->in));
    return move_with_root(c, out, (void *)c->mine->in, true);
}

static sl_status scatter(call *c)
{
    const char *in = c->mine->in;
    SL_TRY(c->state->ops->begin(c->state->comm));
    if (c->group->rank == c->mine->root)
        SL_TRY(copy_own(c, c->mine->out, in + (size_t)c->group->rank * c->bytes));
    return move_with_root(c, (void *)in, c->mine->out, false);
}

static sl_status broadcast(call *c)
{
    SL_TRY(c->state->ops->begin(c->state->comm));
    return wait_queued(c, c->state->ops->broadcast(c->state->comm, c->mine->out, c->bytes,
                                                   c->mine->root));
}

static sl_status all_gather(call *c)
{
    SL_TRY(c->state->ops->begin(c->state->comm));
    return wait_queued(c, c->state->ops->all_gather(c->state->comm, c->mine->in, c->mine->out,
                                                    c->bytes));
}

static sl_status run_operation(call *c)
{
    switch (c->mine->kind) {
    case SLI_OP_ALL_REDUCE:
    case SLI_OP_REDUCE:
    case SLI_OP_REDUCE_SCATTER:
        return reduce(c);
    case SLI_OP_BROADCAST:
        return broadcast(c);
    case SLI_OP_ALL_GATHER:
        return all_gather(c);
    case SLI_OP_GATHER:
        return gather(c);
    case SLI_OP_SCATTER:
        return scatter(c);
    case SLI_OP_BARRIER:
    case SLI_OP_SPLIT:
        break;
    }
    return SL_OK;
}

/* Waits until all ranks call the same operation. */
static sl_status wait_for_ranks(const nccl_group *state, const sli_operation *operation)
{
    sli_operation called = *operation;
    called.moves_no_data = true;
    called.sequence = ++state->below->sequence;
    return state->below->ops->collective(state->below, &called);
}

static sl_status nccl_collective(sl_group *group, const sli_operation *operation)
{
    nccl_group *state = group->state;
    call c = {.group = group,
              .state = state,
              .mine = operation,
              .bytes = (size_t)operation->count * sl_dtype_bytes(operation->dtype)};
    SL_TRY(wait_for_ranks(state, operation));
    if (operation->count == 0)
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(run_operation(&c));
    SL_TRY_OR_FAIL(wait_until(&c, state->ops->is_finished));
    return SL_OK;
fail:
    return break_group(&c, status);
}

/* ---- Messages ----------------------------------------------------------------------------- */

static sl_status open_message(const sl_group *group, const sli_message *message, bool reads,
                              sli_message *on_host, sli_host_array *array)
{
    size_t bytes = (size_t)message->count * sl_dtype_bytes(message->dtype);
    SL_TRY(sli_host_array_open(group->device, message->data, bytes, reads, array));
    *on_host = *message;
    on_host->data = array->host;
    return SL_OK;
}

static sl_status nccl_send(sl_group *group, const sli_message *message)
{
    sl_group *below = ((nccl_group *)group->state)->below;
    sli_host_array array;
    sli_message on_host;
    SL_TRY(open_message(group, message, true, &on_host, &array));
    sl_status status = below->ops->send(below, &on_host);
    (void)sli_host_array_close(&array, false);
    return status;
}

static sl_status nccl_receive(sl_group *group, const sli_message *message)
{
    sl_group *below = ((nccl_group *)group->state)->below;
    sli_host_array array;
    sli_message on_host;
    SL_TRY(open_message(group, message, false, &on_host, &array));
    sl_status status = below->ops->receive(below, &on_host);
    sl_status written = sli_host_array_close(&array, status == SL_OK);
    return status == SL_OK ? written : status;
}

/* No pipe is made over such a group: sli_group_check_host refuses it. */
static sl_status nccl_start(sl_group *group, const sli_message *message, bool receives,
                            sli_transfer *out)
{
    (void)message;
    (void)receives;
    *out = (sli_transfer){0};
    return sli_group_check_host(group, "a transfer");
}

static sl_status nccl_progress(sl_group *group, sli_transfer *transfer)
{
    (void)transfer;
    return sli_group_check_host(group, "a transfer");
}

static bool nccl_cancel(sl_group *group, sli_transfer *transfer)
{
    (void)group;
    *transfer = (sli_transfer){0};
    return true;
}

/* ---- The group below ---------------------------------------------------------------------- */

static const char *nccl_absence(sl_group *group, int rank, bool *has_left)
{
    sl_group *below = ((nccl_group *)group->state)->below;
    return below->ops->absence(below, rank, has_left);
}

static sl_status nccl_status(sl_group *group)
{
    sl_group *below = ((nccl_group *)group->state)->below;
    return below->ops->status(below);
}

static void nccl_abort(sl_group *group, const sli_error_copy *error)
{
    sl_group *below = ((nccl_group *)group->state)->below;
    below->ops->abort(below, error);
}

/* Leaves the communicator with the others, or alone where that takes too long. */
static bool leave_with_others(sl_group *group)
{
    nccl_group *state = group->state;
    call c = {.group = group, .state = state};
    if (group->options.timeout_seconds > leave_seconds)
        group->options.timeout_seconds = leave_seconds;
    return state->below->ops->status(state->below) == SL_OK &&
           wait_queued(&c, state->ops->finalize(state->comm)) == SL_OK;
}

static void nccl_leave(sl_group *group)
{
    nccl_group *state = group->state;
    if (state->comm)
        state->ops->destroy(&state->comm, !leave_with_others(group));
    sli_device_release(group->device, SL_MEMORY_WORKSPACE, state->scratch, state->scratch_bytes);
    if (state->owns_below)
        sl_group_destroy(&state->below);
    free(state);
}

static sl_status nccl_split(sl_group *group, int color, uint64_t sequence, sl_group **out);

static const sli_group_ops nccl_ops = {.collective = nccl_collective,
                                       .send = nccl_send,
                                       .receive = nccl_receive,
                                       .start = nccl_start,
                                       .progress = nccl_progress,
                                       .cancel = nccl_cancel,
                                       .absence = nccl_absence,
                                       .status = nccl_status,
                                       .split = nccl_split,
                                       .abort = nccl_abort,
                                       .leave = nccl_leave};

/* ---- Making ------------------------------------------------------------------------------- */

/* Rank 0 names the communicator. What fails on one rank breaks the group below. */
static sl_status join_communicator(call *c, sl_device *device)
{
    sl_group *below = c->state->below;
    char id[SLI_NCCL_ID_BYTES] = "";
    if (!device->ops->nccl)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "nccl: %s is not a CUDA device, and NCCL works on no other", device->name);
    c->state->ops = device->ops->nccl;
    if (below->rank == 0)
        SL_TRY(c->state->ops->name(device, id));
    SL_TRY(sl_group_broadcast(below, id, SLI_NCCL_ID_BYTES / sizeof(int32_t), SL_I32, 0, NULL));
    SL_TRY(c->state->ops->create(device, id, below->rank, below->size,
                                 below->ops->ranks_are_threads, &c->state->comm));
    SL_TRY(wait_until(c, c->state->ops->is_queued));
    return sl_group_barrier(below, NULL);
}

sl_status sli_nccl_create(sl_group *below, sl_device *device, sl_group **out)
{
    sl_group *group = *out = calloc(1, sizeof *group);
    nccl_group *state = group ? calloc(1, sizeof *state) : NULL;
    sl_status status;
    if (!state) {
        free(group);
        *out = NULL;
        return sli_group_check(below, sli_no_memory("nccl", "a group"));
    }
    state->below = below;
    *group = (sl_group){.ops = &nccl_ops,
                        .rank = below->rank,
                        .size = below->size,
                        .job_ranks = below->job_ranks,
                        .options = below->options,
                        .device = device,
                        .state = state};
    call c = {.group = group, .state = state};
    SL_TRY_OR_FAIL(sli_group_check(below, join_communicator(&c, device)));
    return SL_OK;
fail:;
    sli_error_copy error;
    sli_error_save(&error, status);
    if (state->comm)
        state->ops->destroy(&state->comm, true);
    sl_group_destroy(out);
    return sli_error_restore(&error);
}

static sl_status nccl_split(sl_group *group, int color, uint64_t sequence, sl_group **out)
{
    nccl_group *state = group->state;
    sl_group *below;
    (void)sequence;
    *out = NULL;
    SL_TRY(sl_group_split(state->below, color, &below));
    if (!below)
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(sli_nccl_create(below, group->device, out));
    ((nccl_group *)(*out)->state)->owns_below = true;
    return SL_OK;
fail:
    sl_group_destroy(&below);
    return status;
}
