#include "comm/mpi/call.h"

/* Up to this many bytes the root of a broadcast sends all of them to every rank. */
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

/* The root sends each other rank one range of the data, which that rank passes on to the rest: no
 * rank sends or receives much more than all the data once. */
static size_t range_start(size_t bytes, int root, int rank, int size)
{
    size_t index = (size_t)(rank > root ? rank - 1 : rank), ranges = (size_t)size - 1;
    return index == ranges ? bytes : bytes / ranges * index / 64 * 64;
}

static size_t range_bytes(size_t bytes, int root, int rank, int size)
{
    size_t index = (size_t)(rank > root ? rank - 1 : rank), ranges = (size_t)size - 1;
    size_t end = index + 1 == ranges ? bytes : bytes / ranges * (index + 1) / 64 * 64;
    return end - range_start(bytes, root, rank, size);
}

static sl_status broadcast_large(sli_call *call)
{
    const sli_operation *mine = call->operation;
    int size = call->group->size, rank = call->group->rank, root = mine->root, slot = 0, own = 0;
    size_t bytes = operation_bytes(mine);
    char *data = mine->out;
    SL_TRY(sli_call_reserve(call, 2 * size * (messages_of(bytes) + 1)));
    if (rank != root)
        SL_TRY(receive_block(call, &own, data + range_start(bytes, root, rank, size),
                             range_bytes(bytes, root, rank, size), root));
    slot = own;
    for (int r = 0; r < size; r++) {
        char *range = data + range_start(bytes, root, r, size);
        if (r == rank || r == root)
            continue;
        if (rank == root)
            SL_TRY(send_block(call, &slot, range, range_bytes(bytes, root, r, size), r));
        else
            SL_TRY(receive_block(call, &slot, range, range_bytes(bytes, root, r, size), r));
    }
    SL_TRY(sli_call_wait_all(call, own));
    for (int r = 0; r < size && rank != root; r++)
        if (r != rank && r != root)
            SL_TRY(send_block(call, &slot, data + range_start(bytes, root, rank, size),
                              range_bytes(bytes, root, rank, size), r));
    return sli_call_wait_all(call, slot);
}

/* ---- Gathering and scattering ------------------------------------------------------------- */

static sl_status gather_blocks(sli_call *call, bool to_all)
{
    const sli_operation *mine = call->operation;
    int size = call->group->size, rank = call->group->rank, slot = 0;
    size_t bytes = operation_bytes(mine);
    bool receives = to_all || rank == mine->root;
    SL_TRY(sli_call_reserve(call, 2 * size * messages_of(bytes)));
    for (int i = 1; i < size && receives; i++) {
        int from = (rank + size - i) % size;
        SL_TRY(receive_block(call, &slot, (char *)mine->out + (size_t)from * bytes, bytes, from));
    }
    for (int i = 1; i < size; i++) { /* not all to the same rank first */
        int to = (rank + i) % size;
        if (to_all || to == mine->root)
            SL_TRY(send_block(call, &slot, mine->in, bytes, to));
    }
    if (receives)
        sli_copy_unless_same((char *)mine->out + (size_t)rank * bytes, mine->in, bytes);
    return sli_call_wait_all(call, slot);
}

static sl_status scatter_blocks(sli_call *call)
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
    sli_copy_unless_same(mine->out, all + (size_t)rank * bytes, bytes);
    return sli_call_wait_all(call, slot);
}

/* ---- Barrier: after round k a rank has heard from 2^(k+1) - 1 others ------------------------ */

static sl_status run_barrier(sli_call *call)
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

/* ---- Debug mode: do all ranks call the same? -------------------------------------------- */

static sl_status check_operations(sli_call *call)
{
    int size = call->group->size, rank = call->group->rank;
    void *scratch;
    SL_TRY(sli_call_scratch(call, (size_t)size * sizeof(sli_operation), &scratch));
    SL_TRY(sli_call_reserve(call, 2 * size));
    sli_operation *called = scratch;
    const sli_operation *each[size];
    called[rank] = *call->operation;
    for (int r = 0; r < size; r++) {
        each[r] = &called[r];
        if (r == rank)
            continue;
        SL_TRY(sli_call_receive(call, r, &called[r], sizeof *called, r, SLI_TAG_CHECK));
        SL_TRY(sli_call_send(call, size + r, &called[rank], sizeof *called, r, SLI_TAG_CHECK));
    }
    SL_TRY(sli_call_wait_all(call, 2 * size));
    sl_status status = sli_operations_compare(call->group, each);
    if (status != SL_OK)
        status = sli_watch_break(call->state->process->watch, &call->state->member, status);
    return status;
}

/* ---- All of them -------------------------------------------------------------------------- */

sl_status sli_mpi_run(sli_call *call)
{
    const sli_operation *mine = call->operation;
    if (call->group->options.check_collectives)
        SL_TRY(check_operations(call));
    if (mine->moves_no_data)
        return run_barrier(call);
    switch (mine->kind) {
    case SLI_OP_ALL_REDUCE:
    case SLI_OP_REDUCE:
    case SLI_OP_REDUCE_SCATTER:
        return sli_mpi_reduce(call);
    case SLI_OP_BROADCAST:
        return call->group->size > 2 && operation_bytes(mine) > SMALL_BROADCAST
                   ? broadcast_large(call)
                   : broadcast_small(call);
    case SLI_OP_ALL_GATHER:
    case SLI_OP_SPLIT: /* of colors */
        return gather_blocks(call, true);
    case SLI_OP_GATHER:
        return gather_blocks(call, false);
    case SLI_OP_SCATTER:
        return scatter_blocks(call);
    case SLI_OP_BARRIER:
        return run_barrier(call);
    }
    return SL_OK;
}
