#include "comm/mpi/collective.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Below this many bytes the root of a broadcast sends everybody everything. */
enum { SMALL_BROADCAST = 1 << 16 };
/* The most that one message carries. */
static const size_t message_bytes = (size_t)1 << 30;

static size_t operation_bytes(const sli_operation *operation)
{
    return (size_t)operation->count * sl_dtype_bytes(operation->dtype);
}

static int messages_of(size_t bytes)
{
    return (int)((bytes + message_bytes - 1) / message_bytes);
}

static size_t message_size(size_t bytes, int message)
{
    size_t left = bytes - (size_t)message * message_bytes;
    return left < message_bytes ? left : message_bytes;
}

/* Start a block's messages in the slots from *slot on. */
static sl_status send_block(sli_call *call, int *slot, const void *data, size_t bytes, int to)
{
    for (int m = 0; m < messages_of(bytes); m++)
        SL_TRY(sli_call_send(call, (*slot)++, (const char *)data + (size_t)m * message_bytes,
                             message_size(bytes, m), to, SLI_TAG_DATA));
    return SL_OK;
}

static sl_status receive_block(sli_call *call, int *slot, void *data, size_t bytes, int from)
{
    for (int m = 0; m < messages_of(bytes); m++)
        SL_TRY(sli_call_receive(call, (*slot)++, (char *)data + (size_t)m * message_bytes,
                                message_size(bytes, m), from, SLI_TAG_DATA));
    return SL_OK;
}

static void copy_unless_same(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes > 0)
        memcpy(to, from, bytes);
}

/* ---- Broadcast ---------------------------------------------------------------------------- */

static sl_status broadcast_small(sli_call *call)
{
    const sli_operation *mine = call->operation;
    int size = call->group->size, rank = call->group->rank, slot = 0;
    size_t bytes = operation_bytes(mine);
    SL_TRY(sli_call_reserve(call, size * messages_of(bytes)));
    if (rank != mine->root)
        SL_TRY(receive_block(call, &slot, mine->out, bytes, mine->root));
    for (int r = 0; r < size && rank == mine->root; r++)
        if (r != mine->root)
            SL_TRY(send_block(call, &slot, mine->in, bytes, r));
    return sli_call_wait_all(call, slot);
}

/* The root cuts its data into one part for each other rank, which passes it on to the rest: nobody
 * sends or receives much more than everything once. */
static size_t part_start(size_t bytes, int root, int rank, int size)
{
    size_t place = (size_t)(rank > root ? rank - 1 : rank), parts = (size_t)size - 1;
    return place == parts ? bytes : bytes / parts * place / 64 * 64;
}

static size_t part_bytes(size_t bytes, int root, int rank, int size)
{
    size_t place = (size_t)(rank > root ? rank - 1 : rank), parts = (size_t)size - 1;
    size_t end = place + 1 == parts ? bytes : bytes / parts * (place + 1) / 64 * 64;
    return end - part_start(bytes, root, rank, size);
}

static sl_status broadcast_large(sli_call *call)
{
    const sli_operation *mine = call->operation;
    int size = call->group->size, rank = call->group->rank, root = mine->root, slot = 0, own = 0;
    size_t bytes = operation_bytes(mine);
    char *data = mine->out;
    SL_TRY(sli_call_reserve(call, 2 * size * (messages_of(bytes) + 1)));
    if (rank != root)
        SL_TRY(receive_block(call, &own, data + part_start(bytes, root, rank, size),
                             part_bytes(bytes, root, rank, size), root));
    slot = own;
    for (int r = 0; r < size; r++) {
        char *part = data + part_start(bytes, root, r, size);
        if (r == rank || r == root)
            continue;
        if (rank == root)
            SL_TRY(send_block(call, &slot, part, part_bytes(bytes, root, r, size), r));
        else
            SL_TRY(receive_block(call, &slot, part, part_bytes(bytes, root, r, size), r));
    }
    SL_TRY(sli_call_wait_all(call, own));
    for (int r = 0; r < size && rank != root; r++)
        if (r != rank && r != root)
            SL_TRY(send_block(call, &slot, data + part_start(bytes, root, rank, size),
                              part_bytes(bytes, root, rank, size), r));
    return sli_call_wait_all(call, slot);
}

/* ---- Gathering and scattering ------------------------------------------------------------- */

static sl_status gather(sli_call *call, bool to_all)
{
    const sli_operation *mine = call->operation;
    int size = call->group->size, rank = call->group->rank, slot = 0;
    size_t bytes = operation_bytes(mine);
    bool gets = to_all || rank == mine->root;
    SL_TRY(sli_call_reserve(call, 2 * size * messages_of(bytes)));
    for (int i = 1; i < size && gets; i++) {
        int from = (rank + size - i) % size;
        SL_TRY(receive_block(call, &slot, (char *)mine->out + (size_t)from * bytes, bytes, from));
    }
    for (int i = 1; i < size; i++) { /* not everybody to the same rank first */
        int to = (rank + i) % size;
        if (to_all || to == mine->root)
            SL_TRY(send_block(call, &slot, mine->in, bytes, to));
    }
    if (gets)
        copy_unless_same((char *)mine->out + (size_t)rank * bytes, mine->in, bytes);
    return sli_call_wait_all(call, slot);
}

static sl_status scatter(sli_call *call)
{
    const sli_operation *mine = call->operation;
    int size = call->group->size, rank = call->group->rank, slot = 0;
    size_t bytes = operation_bytes(mine);
    SL_TRY(sli_call_reserve(call, size * messages_of(bytes)));
    if (rank != mine->root) {
        SL_TRY(receive_block(call, &slot, mine->out, bytes, mine->root));
        return sli_call_wait_all(call, slot);
    }
    const char *all = mine->in;
    for (int r = 0; r < size; r++)
        if (r != rank)
            SL_TRY(send_block(call, &slot, all + (size_t)r * bytes, bytes, r));
    copy_unless_same(mine->out, all + (size_t)rank * bytes, bytes);
    return sli_call_wait_all(call, slot);
}

/* ---- Barrier: after round k a rank has heard of 2^(k+1) - 1 others ------------------------ */

static sl_status barrier(sli_call *call)
{
    int size = call->group->size, rank = call->group->rank;
    SL_TRY(sli_call_reserve(call, 2));
    for (int distance = 1; distance < size; distance *= 2) {
        int to = (rank + distance) % size, from = (rank + size - distance) % size;
        SL_TRY(sli_call_receive(call, 0, NULL, 0, from, SLI_TAG_DATA));
        SL_TRY(sli_call_send(call, 1, NULL, 0, to, SLI_TAG_DATA));
        SL_TRY(sli_call_wait_all(call, 2));
    }
    return SL_OK;
}

/* ---- Debug mode: does everybody call the same? -------------------------------------------- */

static sl_status compare(sli_call *call, const sli_operation *called)
{
    for (int r = 1; r < call->group->size; r++) {
        if (sli_operation_matches(&called[0], &called[r]))
            continue;
        char a[SLI_OPERATION_TEXT_BYTES], b[SLI_OPERATION_TEXT_BYTES], text[SLI_WIRE_TEXT_BYTES];
        snprintf(text, sizeof text,
                 "operation %" PRIu64 " of the group differs: rank 0 called %s, rank %d %s",
                 call->operation->sequence, sli_operation_text(&called[0], a), r,
                 sli_operation_text(&called[r], b));
        return sli_watch_break(call->state->session->watch, &call->state->member, SL_ERR_INVALID,
                               text);
    }
    return SL_OK;
}

static sl_status check_operations(sli_call *call)
{
    int size = call->group->size, rank = call->group->rank;
    void *scratch;
    SL_TRY(sli_call_scratch(call, (size_t)size * sizeof(sli_operation), &scratch));
    SL_TRY(sli_call_reserve(call, 2 * size));
    sli_operation *called = scratch;
    called[rank] = *call->operation;
    for (int r = 0; r < size; r++) {
        if (r == rank)
            continue;
        SL_TRY(sli_call_receive(call, r, &called[r], sizeof *called, r, SLI_TAG_CHECK));
        SL_TRY(sli_call_send(call, size + r, &called[rank], sizeof *called, r, SLI_TAG_CHECK));
    }
    SL_TRY(sli_call_wait_all(call, 2 * size));
    return compare(call, called);
}

/* ---- All of them -------------------------------------------------------------------------- */

sl_status sli_mpi_run(sli_call *call)
{
    const sli_operation *mine = call->operation;
    if (call->group->options.check_collectives)
        SL_TRY(check_operations(call));
    switch (mine->kind) {
    case SLI_OP_ALL_REDUCE:
    case SLI_OP_REDUCE:
    case SLI_OP_REDUCE_SCATTER:
        return sli_mpi_reduction(call);
    case SLI_OP_BROADCAST:
        return call->group->size > 2 && operation_bytes(mine) > SMALL_BROADCAST
                   ? broadcast_large(call)
                   : broadcast_small(call);
    case SLI_OP_ALL_GATHER:
    case SLI_OP_SPLIT: /* of colors */
        return gather(call, true);
    case SLI_OP_GATHER:
        return gather(call, false);
    case SLI_OP_SCATTER:
        return scatter(call);
    case SLI_OP_BARRIER:
        return barrier(call);
    }
    return SL_OK;
}
