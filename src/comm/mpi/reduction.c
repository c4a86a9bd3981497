/* all_reduce, reduce and reduce_scatter.
 *
 * Each rank owns a range of the elements. It receives every other rank's data for that range,
 * combines them in the order of ranks, as the backend `local` does (the same function: the same
 * bits), and sends the result to the ranks that want it. Ranges go in blocks, several under way
 * at a time, so that one block is combined while the next ones travel:
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
    int64_t block;  /* elements */
    int64_t blocks; /* of the longest range */
    char *scratch;  /* [WINDOW][size][block] received data; a rank's own block holds the result
                       where that is not written elsewhere */
    const void **sources; /* [size] */
} reduction;

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

static void *received_from(const reduction *run, int rank, int64_t k)
{
    return run->scratch + ((size_t)(k % WINDOW) * (size_t)run->size + (size_t)rank) *
                              (size_t)run->block * run->element_bytes;
}

static const void *input_for(const reduction *run, int owner, int64_t k)
{
    return (const char *)run->mine->in + (size_t)block_start(run, owner, k) * run->element_bytes;
}

/* Where the result of a block goes in this rank's memory. */
static void *result_of(const reduction *run, int owner, int64_t k)
{
    if (run->mine->kind == SLI_OP_REDUCE_SCATTER)
        return (char *)run->mine->out + (size_t)(k * run->block) * run->element_bytes;
    if (!wants_results(run, run->rank))
        return received_from(run, run->rank, k);
    return (char *)run->mine->out + (size_t)block_start(run, owner, k) * run->element_bytes;
}

/* Slots: for each block of the window and each other rank, one message of each sort. */
enum sort { DATA_IN, DATA_OUT, RESULT_IN, RESULT_OUT, SORTS };

static int slot_index(const reduction *run, enum sort sort, int rank, int64_t k)
{
    return ((int)(k % WINDOW) * run->size + rank) * SORTS + (int)sort;
}

/* ---- The steps of a block ---------------------------------------------------------------------
 */

static sl_status start_exchange(const reduction *run, int64_t k)
{
    for (int i = 1; i < run->size && block_count(run, run->rank, k) > 0; i++) {
        int from = (run->rank + run->size - i) % run->size;
        SL_TRY(sli_call_receive(run->call, slot_index(run, DATA_IN, from, k),
                                received_from(run, from, k), block_bytes(run, run->rank, k), from,
                                SLI_TAG_DATA));
    }
    for (int i = 1; i < run->size; i++) {
        int to = (run->rank + i) % run->size;
        if (block_count(run, to, k) > 0)
            SL_TRY(sli_call_send(run->call, slot_index(run, DATA_OUT, to, k), input_for(run, to, k),
                                 block_bytes(run, to, k), to, SLI_TAG_DATA));
    }
    return SL_OK;
}

static sl_status combine_block(const reduction *run, int64_t k)
{
    if (block_count(run, run->rank, k) == 0)
        return SL_OK;
    for (int r = 0; r < run->size; r++) {
        SL_TRY(sli_call_wait(run->call, slot_index(run, DATA_IN, r, k)));
        run->sources[r] = r == run->rank ? input_for(run, r, k) : received_from(run, r, k);
    }
    void *out = result_of(run, run->rank, k);
    sli_reduce(run->mine->dtype, run->mine->reduce, run->sources, run->size, 0,
               block_count(run, run->rank, k), out);
    for (int i = 1; i < run->size; i++) {
        int to = (run->rank + i) % run->size;
        if (wants_results(run, to))
            SL_TRY(sli_call_send(run->call, slot_index(run, RESULT_OUT, to, k), out,
                                 block_bytes(run, run->rank, k), to, SLI_TAG_RESULT));
    }
    return SL_OK;
}

/* Results replace the input, so only once that has been sent. */
static sl_status start_results(const reduction *run, int64_t k)
{
    for (int i = 1; i < run->size; i++) {
        int owner = (run->rank + i) % run->size;
        SL_TRY(sli_call_wait(run->call, slot_index(run, DATA_OUT, owner, k)));
        if (wants_results(run, run->rank) && block_count(run, owner, k) > 0)
            SL_TRY(sli_call_receive(run->call, slot_index(run, RESULT_IN, owner, k),
                                    result_of(run, owner, k), block_bytes(run, owner, k), owner,
                                    SLI_TAG_RESULT));
    }
    return SL_OK;
}

static sl_status finish_block(const reduction *run, int64_t k)
{
    for (int r = 0; r < run->size; r++) {
        SL_TRY(sli_call_wait(run->call, slot_index(run, RESULT_IN, r, k)));
        SL_TRY(sli_call_wait(run->call, slot_index(run, RESULT_OUT, r, k)));
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

/* Room for `buffers` of `bytes` each, and before them for the pointers to them, in whole cache
 * lines. */
static sl_status reserve_room(reduction *run, int messages, size_t buffers, size_t bytes)
{
    size_t pointer_bytes = ((size_t)run->size * sizeof *run->sources + 63) / 64 * 64;
    void *scratch;
    SL_TRY(sli_call_reserve(run->call, messages));
    SL_TRY(sli_call_scratch(run->call, pointer_bytes + buffers * bytes, &scratch));
    run->sources = scratch;
    run->scratch = (char *)scratch + pointer_bytes;
    return SL_OK;
}

/* ---- Small data -------------------------------------------------------------------------------
 */

static sl_status reduce_small(reduction *run)
{
    const sli_operation *mine = run->mine;
    size_t bytes = (size_t)mine->count * run->element_bytes;
    int slots = 0;
    SL_TRY(reserve_room(run, 2 * run->size, (size_t)run->size, bytes));
    for (int r = 0; r < run->size; r++) {
        char *received = run->scratch + (size_t)r * bytes;
        run->sources[r] = r == run->rank ? mine->in : received;
        if (r != run->rank)
            SL_TRY(sli_call_receive(run->call, slots++, received, bytes, r, SLI_TAG_DATA));
    }
    for (int i = 1; i < run->size; i++)
        SL_TRY(sli_call_send(run->call, slots++, mine->in, bytes, (run->rank + i) % run->size,
                             SLI_TAG_DATA));
    SL_TRY(sli_call_wait_all(run->call, slots));
    sli_reduce(mine->dtype, mine->reduce, run->sources, run->size, 0, mine->count, mine->out);
    return SL_OK;
}

/* ---- Large and small
 * --------------------------------------------------------------------------------- */

static sl_status reduce_large(reduction *run)
{
    int bytes = ROW_BYTES / run->size;
    run->block = (bytes < MIN_BLOCK_BYTES ? MIN_BLOCK_BYTES : bytes) / (int64_t)run->element_bytes;
    for (int owner = 0; owner < run->size; owner++) {
        int64_t count = range_start(run, owner + 1) - range_start(run, owner);
        int64_t blocks = (count + run->block - 1) / run->block;
        run->blocks = blocks > run->blocks ? blocks : run->blocks;
    }
    SL_TRY(reserve_room(run, WINDOW * run->size * SORTS, (size_t)WINDOW * (size_t)run->size,
                        (size_t)run->block * run->element_bytes));
    return run_blocks(run);
}

sl_status sli_mpi_reduce(sli_call *call)
{
    const sli_operation *mine = call->operation;
    reduction run = {.call = call,
                     .mine = mine,
                     .rank = call->group->rank,
                     .size = call->group->size,
                     .element_bytes = sl_dtype_bytes(mine->dtype)};
    if (mine->count == 0)
        return SL_OK;
    if (run.size == 1) {
        sli_reduce(mine->dtype, mine->reduce, &mine->in, 1, 0, mine->count, mine->out);
        return SL_OK;
    }
    if (mine->kind == SLI_OP_ALL_REDUCE && (size_t)mine->count * run.element_bytes <= SMALL_BYTES)
        return reduce_small(&run);
    return reduce_large(&run);
}
