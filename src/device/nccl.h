/* What a device offers the group backend `nccl` (comm/nccl/nccl.c): a communicator of NCCL, over
 * which ranks move bytes between their devices, and a reduction on the device.
 *
 * All functions queue on a stream of the communicator, which first waits for what `begin` finds
 * queued on the device. None waits for another rank. After one that moves data, `is_queued` must
 * have become true before the next such one; when `is_finished`, the memory is the caller's again.
 * One thread at a time uses a communicator. */
#ifndef SLI_DEVICE_NCCL_H
#define SLI_DEVICE_NCCL_H

#include "sluice/device.h"
#include "sluice/dtype.h"

typedef struct sli_nccl sli_nccl;

enum { SLI_NCCL_ID_BYTES = 128, SLI_NCCL_MOST_NODES = 256 };

/* A send, or a receive. */
typedef struct sli_move {
    void *data;   /* of NCCL: memory of the device */
    size_t bytes; /* at least 1 */
    int peer;     /* another rank */
    bool receives;
} sli_move;

/* out[i] = op over the nodes' elements i, in the order of their tree, with the bits of sli_reduce
 * (comm/reduce_plan.h). `out` may be a node. */
typedef struct sli_combine {
    sl_dtype dtype;
    sl_reduce_op op;
    int64_t count; /* at least 1 */
    int terms;
    int node_count;
    const void *nodes[SLI_NCCL_MOST_NODES];
    uint8_t sums[SLI_NCCL_MOST_NODES]; /* how often, after node n, the two newest nodes are added */
    void *out;
} sli_combine;

typedef struct sli_nccl_ops {
    /* Names a communicator. One rank calls, and the others are told. Errors: SL_ERR_UNSUPPORTED
     * where NCCL is missing or too old. */
    sl_status (*name)(sl_device *device, char id[SLI_NCCL_ID_BYTES]);
    /* This rank's end of the communicator; it can be used once it `is_queued`. Where the ranks are
     * threads of this process, NCCL accesses their devices' memory directly.
     * Errors: SL_ERR_UNSUPPORTED where copies between two such devices arrive changed. */
    sl_status (*create)(sl_device *device, const char id[SLI_NCCL_ID_BYTES], int rank, int size,
                        bool ranks_are_threads, sli_nccl **out);
    sl_status (*begin)(sli_nccl *self);
    /* Starts all moves at once; those between the same two ranks keep their order. */
    sl_status (*move)(sli_nccl *self, const sli_move *moves, int count);
    sl_status (*broadcast)(sli_nccl *self, void *data, size_t bytes, int root);
    /* out [size * bytes] = every rank's in [bytes], which may be this rank's range of `out`. */
    sl_status (*all_gather)(sli_nccl *self, const void *in, void *out, size_t bytes);
    sl_status (*copy)(sli_nccl *self, void *to, const void *from, size_t bytes);
    sl_status (*combine)(sli_nccl *self, const sli_combine *arguments);
    sl_status (*is_queued)(sli_nccl *self, bool *out);
    sl_status (*is_finished)(sli_nccl *self, bool *out);
    /* Begins an orderly end, which is complete when it `is_queued`; every rank calls. */
    sl_status (*finalize)(sli_nccl *self);
    /* Frees it. `abort` ends what is queued, whatever the other ranks do. */
    void (*destroy)(sli_nccl **self, bool abort);
} sli_nccl_ops;

#endif
