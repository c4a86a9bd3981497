/* all_reduce, reduce and reduce_scatter, as comm/reduce_plan.h plans them. Several blocks are under
 * way at a time, so that one is added up while the next ones travel:
 *
 *      block        0        1        2        3
 *      DATA      ──────►  ──────►  ──────►  ──────►               from every rank to the owner
 *      sum                ███      ███      ███      ███
 *      RESULT                 ──────►  ──────►  ──────►  ──────►  from the owner to every rank
 *
 * Over TCP, MPI takes turns to send and receive large messages, but not smaller ones. (Measured, 64
 * MiB between two ranks on two hosts over 1 Gbit/s: in blocks of 1 MiB 637 ms, of 256 KiB 562,
 * which is what the link takes for the bytes. For two and four ranks of one host the size makes no
 * difference.) */
#include "comm/mpi/call.h"

#include "comm/reduce_plan.h"

enum {
    SMALL_BYTES = 2048,        /* what MPI takes at once, with room to spare: each owns all */
    ROW_BYTES = 1 << 20,       /* a block of each rank together, so that scratch does not grow, */
    MIN_BLOCK_BYTES = 1 << 16, /* until messages would get too small to be worth sending */
    MOST_BLOCK_BYTES = 1 << 18,
    WINDOW = 8, /* blocks under way, of which the data of */
    AHEAD = 4   /* are sent before the oldest is added up; the others wait for results */
};

typedef struct reduction {
    sli_call *call;
    sli_reduce_plan plan;
    int first_slot[SLI_REDUCE_STEPS + 1]; /* of each step's messages, among those of a block */
} reduction;

static int slot_of(const reduction *run, sli_reduce_step step, int64_t k)
{
    return (int)(k % run->plan.window) * run->first_slot[SLI_REDUCE_STEPS] + run->first_slot[step];
}

static sl_status start_step(const reduction *run, sli_reduce_step step, int64_t k)
{
    sli_move moves[sli_reduce_most_moves(&run->plan, step)];
    int count = sli_reduce_moves(&run->plan, step, k, moves), slot = slot_of(run, step, k);
    int tag = step == SLI_NODES_IN || step == SLI_NODES_OUT ? SLI_TAG_DATA : SLI_TAG_RESULT;
    for (int i = 0; i < count; i++) {
        const sli_move *m = &moves[i];
        SL_TRY(m->receives ? sli_call_receive(run->call, slot + i, m->data, m->bytes, m->peer, tag)
                           : sli_call_send(run->call, slot + i, m->data, m->bytes, m->peer, tag));
    }
    return SL_OK;
}

static sl_status wait_for_step(const reduction *run, sli_reduce_step step, int64_t k)
{
    int end = slot_of(run, step, k) + run->first_slot[step + 1] - run->first_slot[step];
    for (int slot = slot_of(run, step, k); slot < end; slot++)
        SL_TRY(sli_call_wait(run->call, slot));
    return SL_OK;
}

static sl_status start_exchange(const reduction *run, int64_t k)
{
    SL_TRY(start_step(run, SLI_NODES_IN, k));
    return start_step(run, SLI_NODES_OUT, k);
}

static sl_status add_block(const reduction *run, int64_t k)
{
    const sli_reduce_plan *plan = &run->plan;
    const void *nodes[plan->node_count];
    SL_TRY(wait_for_step(run, SLI_NODES_IN, k));
    if (plan->each_owns_all) /* the sum may replace the data that are sent */
        SL_TRY(wait_for_step(run, SLI_NODES_OUT, k));
    for (int n = 0; n < plan->node_count; n++)
        nodes[n] = sli_reduce_node(plan, n, k);
    sli_reduce(plan, nodes, sli_reduce_count(plan, plan->rank, k), sli_reduce_result(plan, k));
    SL_TRY(start_step(run, SLI_RESULTS_OUT, k));
    SL_TRY(wait_for_step(run, SLI_NODES_OUT, k));
    return start_step(run, SLI_RESULTS_IN, k);
}

static sl_status finish_block(const reduction *run, int64_t k)
{
    SL_TRY(wait_for_step(run, SLI_RESULTS_OUT, k));
    return wait_for_step(run, SLI_RESULTS_IN, k);
}

static sl_status run_blocks(const reduction *run)
{
    int64_t blocks = run->plan.blocks;
    for (int64_t k = 0; k < blocks && k < AHEAD; k++)
        SL_TRY(start_exchange(run, k));
    for (int64_t k = 0; k < blocks; k++) {
        int64_t next = k + AHEAD;
        if (next >= WINDOW)
            SL_TRY(finish_block(run, next - WINDOW));
        if (next < blocks)
            SL_TRY(start_exchange(run, next));
        SL_TRY(add_block(run, k));
    }
    for (int64_t k = blocks < WINDOW ? 0 : blocks - WINDOW; k < blocks; k++)
        SL_TRY(finish_block(run, k));
    return SL_OK;
}

sl_status sli_mpi_reduce(sli_call *call)
{
    const sli_operation *mine = call->operation;
    int size = call->group->size, first[size + 1];
    uint8_t sums[mine->terms];
    void *received;
    reduction run = {.call = call};
    sli_reduce_plan *plan = &run.plan;
    size_t bytes = (size_t)mine->count * sl_dtype_bytes(mine->dtype);
    if (mine->count == 0)
        return SL_OK;
    bool is_small = mine->kind == SLI_OP_ALL_REDUCE && bytes <= SMALL_BYTES;
    sli_reduce_plan_make(call->group, mine, is_small, first, sums, plan);
    size_t block = ROW_BYTES / (size_t)plan->node_count;
    block = block > MOST_BLOCK_BYTES ? MOST_BLOCK_BYTES : block;
    block = block < MIN_BLOCK_BYTES ? MIN_BLOCK_BYTES : block;
    sli_reduce_plan_cut(plan, plan->each_owns_all ? bytes : block);
    plan->window = plan->blocks < WINDOW ? (int)plan->blocks : WINDOW;
    for (int step = 0; step < SLI_REDUCE_STEPS; step++)
        run.first_slot[step + 1] =
            run.first_slot[step] + sli_reduce_most_moves(plan, (sli_reduce_step)step);
    SL_TRY(sli_call_reserve(call, plan->window * run.first_slot[SLI_REDUCE_STEPS]));
    SL_TRY(sli_call_scratch(call, sli_reduce_received_bytes(plan), &received));
    plan->received = received;
    return run_blocks(&run);
}
