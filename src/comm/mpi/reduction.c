/* all_reduce, reduce and reduce_scatter.
 *
 * Each rank owns a range of the elements. It receives every other rank's nodes of the tree over the
 * terms (core/sum_tree.h; mostly one node a rank) for that range, combines them as the backend
 * `local` does (the same function: the same bits), and sends the result to the ranks that want it.
 * Ranges go in blocks, several under way at a time, so that one block is combined while the next
 * ones travel:
 *
 *      block        0        1        2        3
 *      DATA      ──────►  ──────►  ──────►  ──────►               from every rank to the owner
 *      combine            ███      ███      ███      ███
 *      RESULT                 ──────►  ──────►  ──────►  ──────►  from the owner to every rank
 *
 * Small data are not worth two steps: every rank sends them to all others, and combines all. */
#include "comm/mpi/call.h"

#include "comm/group.h"

#include <string.h>

enum {
    SMALL_BYTES = 2048,        /* what MPI takes at once, with room to spare */
    ROW_BYTES = 1 << 21,       /* a block of each rank together, so that scratch does not grow, */
    MIN_BLOCK_BYTES = 1 << 16, /* until messages would get too small to be worth sending */
    WINDOW = 4,                /* blocks under way: */
    AHEAD = 2 /* so many are sent before they are combined, the others' results after */
};

typedef struct reduction {
    sli_call *call;
    const sli_operation *mine;
    int rank, size;
    size_t element_bytes;
    int64_t block;         /* elements */
    int64_t blocks;        /* of the longest range */
    sli_nodes nodes;       /* of all ranks */
    const int *first_node; /* [size + 1] of each rank */
    char *scratch; /* [WINDOW][nodes][block] received data; a rank's own first block holds the
                      result where that is not written elsewhere */
} reduction;

static int own_nodes(const reduction *run)
{
    return run->first_node[run->rank + 1] - run->first_node[run->rank];
}

static bool is_own(const reduction *run, int node)
{
    return node >= run->first_node[run->rank] && node < run->first_node[run->rank + 1];
}

/* ---- Ranges and blocks ------------------------------------------------------------------------
 */

/* As in the backend `local`; reduce_scatter's ranges are the caller's. */
static int64_t range_start(const reduction *run, int owner)
{
    int64_t count = run->mine->count;
    if (run->mine->kind == SLI_OP_REDUCE_SCATTER)
        return owner * count;
    return sli_rank_range_start(count, owner, run->size);
}

static int64_t block_start(const reduction *run, int owner, int64_t k)
{
    return range_start(run, owner) + k * run->block;
}

/* 0 where the owner's range has no block k. */
static int64_t block_count(const reduction *run, int owner, int64_t k)
{
    int64_t left = range_start(run, owner + 1) - block_start(run, owner, k);
    return left < 0 ? 0 : left < run->block ? left : run->block;
}

static size_t block_bytes(const reduction *run, int owner, int64_t k)
{
    return (size_t)block_count(run, owner, k) * run->element_bytes;
}

/* Whether `rank` gets the results of other owners. */
static bool wants_results(const reduction *run, int rank)
{
    return run->mine->kind == SLI_OP_ALL_REDUCE ||
           (run->mine->kind == SLI_OP_REDUCE && rank == run->mine->root);
}

static void *received_node(const reduction *run, int node, int64_t k)
{
    return run->scratch + ((size_t)(k % WINDOW) * (size_t)run->nodes.count + (size_t)node) *
                              (size_t)run->block * run->element_bytes;
}

/* The owner's block of this rank's node number `index`. */
static const void *input_for(const reduction *run, int owner, int index, int64_t k)
{
    return (const char *)sli_operation_node(run->mine, index) +
           (size_t)block_start(run, owner, k) * run->element_bytes;
}

/* Where the result of a block goes in this rank's memory. */
static void *result_of(const reduction *run, int owner, int64_t k)
{
    if (run->mine->kind == SLI_OP_REDUCE_SCATTER)
        return (char *)run->mine->out + (size_t)(k * run->block) * run->element_bytes;
    if (!wants_results(run, run->rank))
        return received_node(run, run->first_node[run->rank], k);
    return (char *)run->mine->out + (size_t)block_start(run, owner, k) * run->element_bytes;
}

/* Slots: for each block of the window a message from each node, one to each rank for each own node,
 * and a result from and to each rank. */
static int slots_per_block(const reduction *run)
{
    return run->nodes.count + run->size * own_nodes(run) + 2 * run->size;
}

static int slot_of_block(const reduction *run, int64_t k, int index)
{
    return (int)(k % WINDOW) * slots_per_block(run) + index;
}

static int node_in(const reduction *run, int node, int64_t k)
{
    return slot_of_block(run, k, node);
}

static int node_out(const reduction *run, int to, int index, int64_t k)
{
    return slot_of_block(run, k, run->nodes.count + to * own_nodes(run) + index);
}

static int result_in(const reduction *run, int from, int64_t k)
{
    return slot_of_block(run, k, run->nodes.count + run->size * own_nodes(run) + from);
}

static int result_out(const reduction *run, int to, int64_t k)
{
    return slot_of_block(run, k, run->nodes.count + run->size * (own_nodes(run) + 1) + to);
}

/* ---- The steps of a block ---------------------------------------------------------------------
 */

static sl_status start_exchange(const reduction *run, int64_t k)
{
    for (int i = 1; i < run->size && block_count(run, run->rank, k) > 0; i++) {
        int from = (run->rank + run->size - i) % run->size;
        for (int n = run->first_node[from]; n < run->first_node[from + 1]; n++)
            SL_TRY(sli_call_receive(run->call, node_in(run, n, k), received_node(run, n, k),
                                    block_bytes(run, run->rank, k), from, SLI_TAG_DATA));
    }
    for (int i = 1; i < run->size; i++) {
        int to = (run->rank + i) % run->size;
        for (int n = 0; n < own_nodes(run) && block_count(run, to, k) > 0; n++)
            SL_TRY(sli_call_send(run->call, node_out(run, to, n, k), input_for(run, to, n, k),
                                 block_bytes(run, to, k), to, SLI_TAG_DATA));
    }
    return SL_OK;
}

static sl_status combine_block(const reduction *run, int64_t k)
{
    if (block_count(run, run->rank, k) == 0)
        return SL_OK;
    for (int n = 0; n < run->nodes.count; n++) {
        SL_TRY(sli_call_wait(run->call, node_in(run, n, k)));
        run->nodes.data[n] = is_own(run, n)
                                 ? input_for(run, run->rank, n - run->first_node[run->rank], k)
                                 : received_node(run, n, k);
    }
    void *out = result_of(run, run->rank, k);
    sli_reduce(run->mine->dtype, run->mine->reduce, &run->nodes, 0, block_count(run, run->rank, k),
               out);
    for (int i = 1; i < run->size; i++) {
        int to = (run->rank + i) % run->size;
        if (wants_results(run, to))
            SL_TRY(sli_call_send(run->call, result_out(run, to, k), out,
                                 block_bytes(run, run->rank, k), to, SLI_TAG_RESULT));
    }
    return SL_OK;
}

/* Results replace the input, so only once that has been sent. */
static sl_status start_results(const reduction *run, int64_t k)
{
    for (int i = 1; i < run->size; i++) {
        int owner = (run->rank + i) % run->size;
        for (int n = 0; n < own_nodes(run); n++)
            SL_TRY(sli_call_wait(run->call, node_out(run, owner, n, k)));
        if (wants_results(run, run->rank) && block_count(run, owner, k) > 0)
            SL_TRY(sli_call_receive(run->call, result_in(run, owner, k), result_of(run, owner, k),
                                    block_bytes(run, owner, k), owner, SLI_TAG_RESULT));
    }
    return SL_OK;
}

static sl_status finish_block(const reduction *run, int64_t k)
{
    for (int r = 0; r < run->size; r++) {
        SL_TRY(sli_call_wait(run->call, result_in(run, r, k)));
        SL_TRY(sli_call_wait(run->call, result_out(run, r, k)));
    }
    return SL_OK;
}

static sl_status run_blocks(reduction *run)
{
    for (int64_t k = 0; k < run->blocks && k < AHEAD; k++)
        SL_TRY(start_exchange(run, k));
    for (int64_t k = 0; k < run->blocks; k++) {
        int64_t next = k + AHEAD;
        if (next >= WINDOW)
            SL_TRY(finish_block(run, next - WINDOW));
        if (next < run->blocks)
            SL_TRY(start_exchange(run, next));
        SL_TRY(combine_block(run, k));
        SL_TRY(start_results(run, k));
    }
    for (int64_t k = run->blocks < WINDOW ? 0 : run->blocks - WINDOW; k < run->blocks; k++)
        SL_TRY(finish_block(run, k));
    return SL_OK;
}

/* ---- Small data -------------------------------------------------------------------------------
 */

static sl_status reduce_small(reduction *run)
{
    const sli_operation *mine = run->mine;
    size_t bytes = (size_t)mine->count * run->element_bytes;
    int slots = 0;
    int others = run->nodes.count - own_nodes(run);
    void *scratch;
    SL_TRY(sli_call_reserve(run->call, others + run->size * own_nodes(run)));
    SL_TRY(sli_call_scratch(run->call, (size_t)others * bytes, &scratch));
    for (int r = 0; r < run->size; r++)
        for (int n = run->first_node[r]; n < run->first_node[r + 1]; n++) {
            if (r == run->rank) {
                run->nodes.data[n] = sli_operation_node(mine, n - run->first_node[r]);
                continue;
            }
            char *received = (char *)scratch + (size_t)slots * bytes;
            run->nodes.data[n] = received;
            SL_TRY(sli_call_receive(run->call, slots++, received, bytes, r, SLI_TAG_DATA));
        }
    for (int i = 1; i < run->size; i++)
        for (int n = 0; n < own_nodes(run); n++)
            SL_TRY(sli_call_send(run->call, slots++, sli_operation_node(mine, n), bytes,
                                 (run->rank + i) % run->size, SLI_TAG_DATA));
    SL_TRY(sli_call_wait_all(run->call, slots));
    sli_reduce(mine->dtype, mine->reduce, &run->nodes, 0, mine->count, mine->out);
    return SL_OK;
}

/* ---- Large and small
 * --------------------------------------------------------------------------------- */

static sl_status reduce_large(reduction *run)
{
    void *scratch;
    int bytes = ROW_BYTES / run->nodes.count;
    run->block = (bytes < MIN_BLOCK_BYTES ? MIN_BLOCK_BYTES : bytes) / (int64_t)run->element_bytes;
    for (int owner = 0; owner < run->size; owner++) {
        int64_t count = range_start(run, owner + 1) - range_start(run, owner);
        int64_t blocks = (count + run->block - 1) / run->block;
        run->blocks = blocks > run->blocks ? blocks : run->blocks;
    }
    SL_TRY(sli_call_reserve(run->call, WINDOW * slots_per_block(run)));
    SL_TRY(sli_call_scratch(run->call,
                            (size_t)WINDOW * (size_t)run->nodes.count * (size_t)run->block *
                                run->element_bytes,
                            &scratch));
    run->scratch = scratch;
    return run_blocks(run);
}

sl_status sli_mpi_reduce(sli_call *call)
{
    const sli_operation *mine = call->operation;
    int size = call->group->size, ends[mine->terms], first[size + 1];
    const void *data[mine->terms];
    if (mine->count == 0)
        return SL_OK;
    sli_nodes_list(mine->terms, size, ends, first);
    reduction run = {.call = call,
                     .mine = mine,
                     .rank = call->group->rank,
                     .size = size,
                     .element_bytes = sl_dtype_bytes(mine->dtype),
                     .nodes = {first[size], ends, data},
                     .first_node = first};
    bool is_small = (size_t)mine->count * run.element_bytes <= SMALL_BYTES;
    if (size == 1 || (mine->kind == SLI_OP_ALL_REDUCE && is_small))
        return reduce_small(&run);
    return reduce_large(&run);
}
