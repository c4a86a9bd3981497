/* A group's handle, and the interface that a backend implements.
 *
 * group.c checks arguments, numbers the operations, and runs them in order: at once on the caller's
 * thread, or on the handle's communication thread (thread.c) when the caller does not wait. The
 * arguments that a backend's functions get are valid. */
#ifndef SLI_COMM_GROUP_H
#define SLI_COMM_GROUP_H

#include "comm/agree.h"

#include <stdbool.h>

/* ---- Operations --------------------------------------------------------------------------- */

typedef enum sli_operation_kind {
    SLI_OP_ALL_REDUCE,
    SLI_OP_REDUCE,
    SLI_OP_BROADCAST,
    SLI_OP_ALL_GATHER,
    SLI_OP_REDUCE_SCATTER,
    SLI_OP_GATHER,
    SLI_OP_SCATTER,
    SLI_OP_BARRIER,
    SLI_OP_SPLIT
} sli_operation_kind;

/* A collective operation. */
typedef struct sli_operation {
    sli_operation_kind kind;
    const void *in; /* this rank's input; in-place operations have their data in both */
    void *out;      /* where this rank's result goes */
    int64_t count;
    sl_dtype dtype;
    sl_reduce_op reduce;
    int terms; /* of the tree in which a reduction adds (core/sum_tree.h), which the ranks hold */
    const void *const *nodes; /* this rank's nodes of it, in order; NULL: `in` is the only one */
    int root;
    uint64_t sequence;  /* from 1, the same on every rank */
    bool moves_no_data; /* the ranks wait for each other as in the operation, and compare it */
} sli_operation;

enum { SLI_OPERATION_TEXT_BYTES = 128 };
/* Writes "all_reduce(sum, 100 x f32)" to `text` and returns it. */
const char *sli_operation_text(const sli_operation *operation, char *text);

/* Node `index` of the rank that calls `operation`. */
const void *sli_operation_node(const sli_operation *operation, int index);

/* sl_group_all_reduce of more terms than ranks: each holds those that sli_sum_tree_first says, at
 * least one, added up to the nodes that sli_sum_tree_nodes lists. Every rank's `out`, which may be
 * one of its nodes, becomes the result; an average is the sum times 1 / terms. */
sl_status sli_group_all_reduce_nodes(sl_group *group, const void *const *nodes, int terms,
                                     void *out, int64_t count, sl_dtype dtype, sl_reduce_op op);

/* SL_ERR_INVALID with the error for ranks of the group that do not all call the same: called[r] is
 * rank r's operation. */
sl_status sli_operations_compare(const sl_group *group, const sli_operation *const *called);

/* memcpy of one rank's data, which may be in place already. */
void sli_copy_unless_same(void *target, const void *source, size_t bytes);

enum { SLI_RANK_BYTES = 48 };
/* Writes "rank 1", or "rank 1 (3 of the job)" where the group's numbers are not the job's, and
 * returns `text`. */
const char *sli_rank_text(const sl_group *group, int rank, char text[SLI_RANK_BYTES]);

/* Adds a rank to a list, which is "" at first: "rank 1", "rank 1, 2 (5 of the job)". */
void sli_ranks_text_add(int rank, int job_rank, char *text, size_t bytes);

/* This thread's error is about `rank` of the group. Returns `status`. */
sl_status sli_group_set_error_rank(const sl_group *group, int rank, sl_status status);

/* The group's rank that this thread's error is about; -1: none of them. */
int sli_group_error_rank(const sl_group *group);

/* Point to point. */
typedef struct sli_message {
    void *data; /* read by a send, written by a receive */
    int64_t count;
    sl_dtype dtype;
    int peer; /* SL_ANY_RANK: a receive from any rank */
    int tag;
    int *source; /* of a receive; may be NULL */
} sli_message;

/* The error of a receive to which nothing has come within the group's time limit. */
sl_status sli_message_late(const sl_group *group, const sli_message *message);

/* The error of a message to or from `rank`, which takes no part any more: "recv, tag 3", …, "has
 * left the group". */
sl_status sli_message_absent(const sl_group *group, const char *what, int rank, const char *why);

/* SL_ERR_INVALID where a message from `source` has another count or type than `expected`. */
sl_status sli_message_check(const sl_group *group, const sli_message *expected, int64_t count,
                            sl_dtype dtype, int source);

/* A message under way that is not copied: its data belong to the group until it has ended. All
 * zeros: none. Receives match sends of their rank and tag in the order in which they were started;
 * both sides know the count. */
typedef struct sli_transfer {
    bool is_under_way, receives;
    void *state; /* the backend's */
} sli_transfer;

enum { SLI_TRANSFER_BYTES = 1 << 30 }; /* of one at most: MPI counts them as an int */

/* ---- Backends ----------------------------------------------------------------------------- */

/* The functions that block (collective, send, receive, split) run one at a time for each handle.
 * start, progress and cancel do not; one thread at a time calls them, and no function that blocks
 * runs then: a pipe's link has a group of its own. Any thread may call the others at any time. */
typedef struct sli_group_ops {
    /* Runs one collective operation; fails when the group is or becomes broken. */
    sl_status (*collective)(sl_group *group, const sli_operation *operation);
    /* Never waits for the receiver: the message is delivered or copied. */
    sl_status (*send)(sl_group *group, const sli_message *message);
    sl_status (*receive)(sl_group *group, const sli_message *message);
    /* Starts a transfer, of at most SLI_TRANSFER_BYTES. */
    sl_status (*start)(sl_group *group, const sli_message *message, bool receives,
                       sli_transfer *out);
    /* Lets transfers go on; one that is done is no longer under way. Does not wait. */
    sl_status (*progress)(sl_group *group, sli_transfer *transfer);
    /* Gives up a transfer that is under way. True: its data are the caller's again; false: they may
     * still be read, so they must stay where they are. */
    bool (*cancel)(sl_group *group, sli_transfer *transfer);
    /* Why `rank` takes no part in transfers any more: "has left the group", or how its process
     * ended; NULL where it does. */
    const char *(*absence)(sl_group *group, int rank, bool *has_left);
    /* The error that broke the group. */
    sl_status (*status)(sl_group *group);
    /* A collective that forms the sub-group of `color`. */
    sl_status (*split)(sl_group *group, int color, uint64_t sequence, sl_group **out);
    /* Breaks the group with an error of this rank, unless it is broken. */
    void (*abort)(sl_group *group, const sli_error_copy *error);
    void (*leave)(sl_group *group);
    bool ranks_are_threads; /* of one process */
} sli_group_ops;

/* The backend `local` (local.c): the handles of a new group's ranks. */
sl_status sli_local_create(int size, const sl_group_options *options, sl_group **handles);

/* The backend `mpi` (mpi/mpi.c): this process's handle of a new group of all processes. */
sl_status sli_mpi_create(const sl_group_options *options, sl_group **out);

/* The backend `nccl` (nccl.c): arguments are sli_group_create_nccl's. */
sl_status sli_nccl_create(sl_group *below, sl_device *device, sl_group **out);

/* SL_ERR_INVALID for a group that works on a device's memory. */
sl_status sli_group_check_host(const sl_group *group, const char *who);

/* ---- Handles ------------------------------------------------------------------------------ */

typedef struct sli_comm_thread sli_comm_thread;

struct sl_group {
    const sli_group_ops *ops;
    int rank, size;
    const int *job_ranks;     /* [size] in the group from which splits have made this one; the
                                 backend's */
    sl_group_options options; /* with the default time limit filled in */
    uint64_t sequence;        /* of the newest collective operation */
    sli_comm_thread *thread;  /* NULL until an operation is started without waiting for it */
    sl_device *device;        /* in whose memory the data are; NULL: the host's */
    void *state;              /* the backend's */
};

/* An operation as the communication thread runs it. */
typedef struct sli_task {
    sl_status (*run)(sl_group *group, const struct sli_task *task);
    sli_operation operation;
    sli_message message;
} sli_task;

/* Runs tasks one after the other, in the order in which they were started. */
sl_status sli_comm_thread_create(sl_group *group, sli_comm_thread **out);

/* Finishes what was started, then ends the thread. NULL is allowed. */
void sli_comm_thread_destroy(sli_comm_thread **thread);

/* Starts a task (copied). *work is for sl_work_wait. */
sl_status sli_comm_thread_start(sli_comm_thread *thread, const sli_task *task, sl_work **work);

/* Waits until what was started has run. Its errors are for sl_work_wait. */
void sli_comm_thread_drain(sli_comm_thread *thread);

/* A handle for an operation that is finished already. */
sl_status sli_work_create_finished(sl_work **work);

/* A group of the same ranks whose operations work on memory of `device`, a CUDA device on a GPU
 * that no other rank of the group uses. NCCL moves data between the GPUs. Results are bit-identical
 * to those of `below`: sluice's own kernels add, in the order of the tree. Messages (send, recv) go
 * through host memory. An operation waits for the work that is queued on the device when the
 * operation starts.
 *
 * `below` is borrowed and must outlive the group. Do not run an operation of `below` while one of
 * this group runs. Breaking either breaks both; a failed creation breaks `below`. `below` provides
 * the time limit and the checks of sl_group_options. An all-reduce that is to add more terms than
 * NCCL's kernels can is SL_ERR_UNSUPPORTED. Called by every rank of `below`.
 *
 * Errors, on every rank: SL_ERR_UNSUPPORTED where a device is not a CUDA device or NCCL 2.18 or
 * later (libnccl.so.2) is missing; SL_ERR_IO for an error of NCCL, e.g. two ranks on one GPU. */
sl_status sli_group_create_nccl(sl_group *below, sl_device *device, sl_group **out);

#endif
