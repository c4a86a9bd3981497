/* libnccl.so.2 without a GPU: what plugin/communicator.c calls, over the streams of the fake CUDA
 * runtime (fake_cuda.h). Ranks are threads or processes; their bytes go through rings in a file in
 * memory.
 *
 * It does not block, as NCCL with ncclConfig_t.blocking = 0: calls stay in progress for a few
 * questions, and a call amid another ends the process. Environment:
 *
 *     FAKE_NCCL_VERSION=N       the version that it says it is
 *     FAKE_NCCL_FAIL=RANK:CALL  that rank's call (from 1) to move data fails
 *     FAKE_NCCL_STOP=RANK:CALL  that rank's call never moves anything */
#define _GNU_SOURCE
#include "device/cuda/fake_cuda.h"
#include "device/cuda/plugin/nccl_api.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_RANKS = 8, RING_BYTES = 1 << 16, MOST_MOVES = 256 };

typedef struct ring {
    atomic_size_t written, read;
    char data[RING_BYTES];
} ring;

typedef struct wires {
    atomic_int joined, left;
    ring rings[MOST_RANKS][MOST_RANKS]; /* from, to */
} wires;

struct ncclComm {
    wires *wires;
    char file[sizeof(ncclUniqueId)];
    int rank, size;
    int lag;   /* questions for which a call is in progress */
    int calls; /* that move data */
    bool leaves;
    atomic_bool aborted;
    atomic_int references; /* the handle and tasks */
};

typedef struct move {
    char *to;
    const char *from;
    size_t bytes, done;
    int peer;
} move;

typedef struct moves {
    ncclComm_t comm;
    cudaStream_t stream;
    int count;
    bool stops;
    move list[MOST_MOVES];
} moves;

/* The calls between GroupStart and GroupEnd. */
static _Thread_local moves pending;

static void release(ncclComm_t comm)
{
    if (atomic_fetch_sub(&comm->references, 1) > 1)
        return;
    munmap(comm->wires, sizeof *comm->wires);
    free(comm);
}

/* ---- Moving ----------------------------------------------------------------------------- */

static void push(ring *r, move *m)
{
    size_t written = atomic_load(&r->written), read = atomic_load(&r->read);
    for (; m->done < m->bytes && written - read < RING_BYTES; written++)
        r->data[written % RING_BYTES] = m->from[m->done++];
    atomic_store(&r->written, written);
}

static void pull(ring *r, move *m)
{
    size_t written = atomic_load(&r->written), read = atomic_load(&r->read);
    for (; m->done < m->bytes && read < written; read++)
        m->to[m->done++] = r->data[read % RING_BYTES];
    atomic_store(&r->read, read);
}

/* Moves between two ranks go in their order. */
static cudaError_t run_moves(void *argument)
{
    moves *all = argument;
    ncclComm_t comm = all->comm;
    bool waits[2][MOST_RANKS] = {{false}}, waits_for_any = false;
    for (int i = 0; i < all->count && !atomic_load(&comm->aborted); i++) {
        move *m = &all->list[i];
        bool receives = m->to != NULL;
        if (!waits[receives][m->peer] && !all->stops) {
            if (receives)
                pull(&comm->wires->rings[m->peer][comm->rank], m);
            else
                push(&comm->wires->rings[comm->rank][m->peer], m);
        }
        waits[receives][m->peer] |= m->done < m->bytes;
        waits_for_any |= m->done < m->bytes;
    }
    if (waits_for_any && !atomic_load(&comm->aborted))
        return cudaErrorNotReady;
    release(comm);
    return cudaSuccess;
}

static bool is_told(const char *variable, ncclComm_t comm)
{
    int rank, call;
    const char *text = getenv(variable);
    return text && sscanf(text, "%d:%d", &rank, &call) == 2 && rank == comm->rank &&
           call == comm->calls;
}

static void check_idle(ncclComm_t comm)
{
    if (comm->lag == 0 && !comm->leaves)
        return;
    fprintf(stderr, "fake NCCL: a call while another one is in progress\n");
    abort();
}

static ncclResult_t queue_pending(void)
{
    ncclComm_t comm = pending.comm;
    if (!comm)
        return ncclSuccess;
    comm->calls++;
    pending.stops = is_told("FAKE_NCCL_STOP", comm);
    if (!is_told("FAKE_NCCL_FAIL", comm)) {
        atomic_fetch_add(&comm->references, 1);
        pending.stream->enqueue(pending.stream, run_moves, &pending, sizeof pending);
        comm->lag = comm->calls % 3;
    }
    bool fails = is_told("FAKE_NCCL_FAIL", comm);
    pending = (moves){0};
    return fails ? (ncclResult_t)2 : comm->lag ? ncclInProgress : ncclSuccess;
}

static void add(void *to, const void *from, size_t bytes, int peer, ncclComm_t comm,
                cudaStream_t stream)
{
    check_idle(comm);
    if (pending.count == MOST_MOVES)
        abort();
    pending.comm = comm;
    pending.stream = stream;
    pending.list[pending.count++] = (move){to, from, bytes, 0, peer};
}

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupStart(void)
{
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupEnd(void)
{
    return queue_pending();
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream)
{
    (void)type;
    add(NULL, data, count, to, comm, stream);
    return ncclSuccess;
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream)
{
    (void)type;
    add(data, NULL, count, from, comm, stream);
    return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    (void)type;
    if (comm->rank != root)
        add(out, NULL, count, root, comm, stream);
    for (int r = 0; r < comm->size && comm->rank == root; r++)
        if (r != root)
            add(NULL, in, count, r, comm, stream);
    return queue_pending();
}

typedef struct own_copy {
    void *to;
    const void *from;
    size_t bytes;
} own_copy;

static cudaError_t copy_own(void *argument)
{
    const own_copy *copy = argument;
    memmove(copy->to, copy->from, copy->bytes);
    return cudaSuccess;
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    own_copy own = {(char *)out + (size_t)comm->rank * count, in, count};
    (void)type;
    check_idle(comm);
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank)
            continue;
        add((char *)out + (size_t)r * count, NULL, count, r, comm, stream);
        add(NULL, in, count, r, comm, stream);
    }
    ncclResult_t code = queue_pending();
    stream->enqueue(stream, copy_own, &own, sizeof own);
    return code;
}

/* ---- Communicators ---------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetVersion(int *version)
{
    const char *told = getenv("FAKE_NCCL_VERSION");
    *version = told ? atoi(told) : 22809;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    snprintf(id->internal, sizeof id->internal, "/dev/shm/fake-nccl-XXXXXX");
    int file = mkstemp(id->internal);
    if (file < 0 || ftruncate(file, sizeof(wires)) != 0)
        return (ncclResult_t)2;
    close(file);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    *comm = NULL;
    if (config->size != sizeof *config || config->magic != NCCL_CONFIG_MAGIC || config->blocking ||
        size > MOST_RANKS)
        return (ncclResult_t)4;
    int file = open(id.internal, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return (ncclResult_t)2;
    void *memory = mmap(NULL, sizeof(wires), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    ncclComm_t made = calloc(1, sizeof *made);
    if (!made || memory == MAP_FAILED)
        abort();
    made->wires = memory;
    made->rank = rank;
    made->size = size;
    memcpy(made->file, id.internal, sizeof made->file);
    atomic_init(&made->references, 1);
    atomic_fetch_add(&made->wires->joined, 1);
    *comm = made;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    bool waits = atomic_load(&comm->wires->joined) < comm->size ||
                 (comm->leaves && atomic_load(&comm->wires->left) < comm->size);
    if (!waits && *comm->file) {
        unlink(comm->file); /* the first of the ranks */
        *comm->file = '\0';
    }
    *state = waits || comm->lag > 0 ? ncclInProgress : ncclSuccess;
    comm->lag -= comm->lag > 0;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    check_idle(comm);
    comm->leaves = true;
    atomic_fetch_add(&comm->wires->left, 1);
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    release(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    atomic_store(&comm->aborted, true);
    if (*comm->file)
        unlink(comm->file);
    release(comm);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code);
const char *ncclGetErrorString(ncclResult_t code)
{
    return (int)code == 2 ? "unhandled system error" : "invalid argument";
}

const char *ncclGetLastError(ncclComm_t comm);
const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? "a cable was pulled" : "";
}
