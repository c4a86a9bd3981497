/* all_reduce, reduce and reduce_scatter.
 *
 * Each rank owns a slice of the elements. It gets every other rank's data for that slice, combines
 * them in the order of ranks, as the backend `local` does (the same function: the same bits), and
 * sends the result to whoever wants it. Slices go in pieces, several under way at a time, so that
 * one piece is combined while the next ones travel:
 *
 *      piece        0        1        2        3
 *      DATA      ──────►  ──────►  ──────►  ──────►       from every rank to the owner
 *      combine           ███      ███      ███      ███
 *      RESULT             ──────►  ──────►  ──────►  ──────►       from the owner to every rank
 *
 * Small data are not worth two steps: everybody sends everybody everything, and all combine all. */
#include "comm/mpi/call.h"

#include "comm/reduce.h"

#include <string.h>

enum {
    SMALL_BYTES = 2048,          /* what MPI takes at once, with room to spare */
    ROW_BYTES = 1 << 21,         /* a piece of each rank together, so that scratch does not grow, */
    LEAST_PIECE_BYTES = 1 << 16, /* until messages would get too small to be worth sending */
    WINDOW = 4,                  /* pieces under way: */
    AHEAD = 2 /* so many are sent before they are combined, the others' results after */
};

typedef struct reduction {
    sli_call *call;
    const sli_operation *mine;
    int rank, size;
    size_t element_bytes;
    int64_t piece;  /* elements */
    int64_t pieces; /* of the longest slice */
    char *scratch;  /* [WINDOW][size][piece] what came; a rank's own part of it holds the result,
                       where there is no other place for it */
    const void **sources; /* [size] */
} reduction;

/* ---- Who owns what ------------------------------------------------------------------------ */

/* As in local.c, but for reduce_scatter, whose slices are the caller's. */
static int64_t slice_start(const reduction *run, int owner)
{
    int64_t count = run->mine->count;
    if (run->mine->kind == SLI_OP_REDUCE_SCATTER)
        return owner * count;
    return owner == run->size ? count : count / run->size * owner / 64 * 64;
}

static int64_t piece_start(const reduction *run, int owner, int64_t k)
{
    return slice_start(run, owner) + k * run->piece;
}

/* 0 where the owner's slice has no piece k. */
static int64_t piece_count(const reduction *run, int owner, int64_t k)
{
    int64_t left = slice_start(run, owner + 1) - piece_start(run, owner, k);
    return left < 0 ? 0 : left < run->piece ? left : run->piece;
}

static size_t piece_bytes(const reduction *run, int owner, int64_t k)
{
    return (size_t)piece_count(run, owner, k) * run->element_bytes;
}

/* Does `rank` get the results of other owners? */
static bool wants_results(const reduction *run, int rank)
{
    return run->mine->kind == SLI_OP_ALL_REDUCE ||
           (run->mine->kind == SLI_OP_REDUCE && rank == run->mine->root);
}

static void *came_from(const reduction *run, int rank, int64_t k)
{
    return run->scratch + ((size_t)(k % WINDOW) * (size_t)run->size + (size_t)rank) *
                              (size_t)run->piece * run->element_bytes;
}

static const void *given(const reduction *run, int owner, int64_t k)
{
    return (const char *)run->mine->in + (size_t)piece_start(run, owner, k) * run->element_bytes;
}

/* Where the result of a piece belongs in this rank's memory. */
static void *result(const reduction *run, int owner, int64_t k)
{
    if (run->mine->kind == SLI_OP_REDUCE_SCATTER)
        return (char *)run->mine->out + (size_t)(k * run->piece) * run->element_bytes;
    if (!wants_results(run, run->rank))
        return came_from(run, run->rank, k);
    return (char *)run->mine->out + (size_t)piece_start(run, owner, k) * run->element_bytes;
}

/* Slots: for each piece of the window and each other rank, one message of each sort. */
enum sort { DATA_IN, DATA_OUT, RESULT_IN, RESULT_OUT, SORTS };

static int slot(const reduction *run, enum sort sort, int rank, int64_t k)
{
    return ((int)(k % WINDOW) * run->size + rank) * SORTS + (int)sort;
}

/* ---- The three steps of a piece ----------------------------------------------------------- */

static sl_status exchange(const reduction *run, int64_t k)
{
    for (int i = 1; i < run->size && piece_count(run, run->rank, k) > 0; i++) {
        int from = (run->rank + run->size - i) % run->size;
        SL_TRY(sli_call_receive(run->call, slot(run, DATA_IN, from, k), came_from(run, from, k),
                                piece_bytes(run, run->rank, k), from, SLI_TAG_DATA));
    }
    for (int i = 1; i < run->size; i++) {
        int to = (run->rank + i) % run->size;
        if (piece_count(run, to, k) > 0)
            SL_TRY(sli_call_send(run->call, slot(run, DATA_OUT, to, k), given(run, to, k),
                                 piece_bytes(run, to, k), to, SLI_TAG_DATA));
    }
    return SL_OK;
}

static sl_status combine(const reduction *run, int64_t k)
{
    if (piece_count(run, run->rank, k) == 0)
        return SL_OK;
    for (int r = 0; r < run->size; r++) {
        SL_TRY(sli_call_wait(run->call, slot(run, DATA_IN, r, k)));
        run->sources[r] = r == run->rank ? given(run, r, k) : came_from(run, r, k);
    }
    void *out = result(run, run->rank, k);
    sli_reduce(run->mine->dtype, run->mine->reduce, run->sources, run->size, 0,
               piece_count(run, run->rank, k), out);
    for (int i = 1; i < run->size; i++) {
        int to = (run->rank + i) % run->size;
        if (wants_results(run, to))
            SL_TRY(sli_call_send(run->call, slot(run, RESULT_OUT, to, k), out,
                                 piece_bytes(run, run->rank, k), to, SLI_TAG_RESULT));
    }
    return SL_OK;
}

/* Results take the place of what was given, so only once that has been sent. */
static sl_status collect(const reduction *run, int64_t k)
{
    for (int i = 1; i < run->size; i++) {
        int owner = (run->rank + i) % run->size;
        SL_TRY(sli_call_wait(run->call, slot(run, DATA_OUT, owner, k)));
        if (wants_results(run, run->rank) && piece_count(run, owner, k) > 0)
            SL_TRY(sli_call_receive(run->call, slot(run, RESULT_IN, owner, k),
                                    result(run, owner, k), piece_bytes(run, owner, k), owner,
                                    SLI_TAG_RESULT));
    }
    return SL_OK;
}

static sl_status finish(const reduction *run, int64_t k)
{
    for (int r = 0; r < run->size; r++) {
        SL_TRY(sli_call_wait(run->call, slot(run, RESULT_IN, r, k)));
        SL_TRY(sli_call_wait(run->call, slot(run, RESULT_OUT, r, k)));
    }
    return SL_OK;
}

static sl_status in_slices(reduction *run)
{
    for (int64_t k = 0; k < run->pieces && k < AHEAD; k++)
        SL_TRY(exchange(run, k));
    for (int64_t k = 0; k < run->pieces; k++) {
        int64_t next = k + AHEAD;
        if (next >= WINDOW)
            SL_TRY(finish(run, next - WINDOW));
        if (next < run->pieces)
            SL_TRY(exchange(run, next));
        SL_TRY(combine(run, k));
        SL_TRY(collect(run, k));
    }
    for (int64_t k = run->pieces < WINDOW ? 0 : run->pieces - WINDOW; k < run->pieces; k++)
        SL_TRY(finish(run, k));
    return SL_OK;
}

/* Room for `buffers` of `bytes` each, and before them for the pointers to them, in whole cache
 * lines. */
static sl_status prepare(reduction *run, int messages, size_t buffers, size_t bytes)
{
    size_t pointer_bytes = ((size_t)run->size * sizeof *run->sources + 63) / 64 * 64;
    void *scratch;
    SL_TRY(sli_call_reserve(run->call, messages));
    SL_TRY(sli_call_scratch(run->call, pointer_bytes + buffers * bytes, &scratch));
    run->sources = scratch;
    run->scratch = (char *)scratch + pointer_bytes;
    return SL_OK;
}

/* ---- Small data --------------------------------------------------------------------------- */

static sl_status at_once(reduction *run)
{
    const sli_operation *mine = run->mine;
    size_t bytes = (size_t)mine->count * run->element_bytes;
    int slots = 0;
    SL_TRY(prepare(run, 2 * run->size, (size_t)run->size, bytes));
    for (int r = 0; r < run->size; r++) {
        char *came = run->scratch + (size_t)r * bytes;
        run->sources[r] = r == run->rank ? mine->in : came;
        if (r != run->rank)
            SL_TRY(sli_call_receive(run->call, slots++, came, bytes, r, SLI_TAG_DATA));
    }
    for (int i = 1; i < run->size; i++)
        SL_TRY(sli_call_send(run->call, slots++, mine->in, bytes, (run->rank + i) % run->size,
                             SLI_TAG_DATA));
    SL_TRY(sli_call_wait_all(run->call, slots));
    sli_reduce(mine->dtype, mine->reduce, run->sources, run->size, 0, mine->count, mine->out);
    return SL_OK;
}

/* ---- Both --------------------------------------------------------------------------------- */

static sl_status by_pieces(reduction *run)
{
    int bytes = ROW_BYTES / run->size;
    run->piece =
        (bytes < LEAST_PIECE_BYTES ? LEAST_PIECE_BYTES : bytes) / (int64_t)run->element_bytes;
    for (int owner = 0; owner < run->size; owner++) {
        int64_t count = slice_start(run, owner + 1) - slice_start(run, owner);
        int64_t pieces = (count + run->piece - 1) / run->piece;
        run->pieces = pieces > run->pieces ? pieces : run->pieces;
    }
    SL_TRY(prepare(run, WINDOW * run->size * SORTS, (size_t)WINDOW * (size_t)run->size,
                   (size_t)run->piece * run->element_bytes));
    return in_slices(run);
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
        return at_once(&run);
    return by_pieces(&run);
}
