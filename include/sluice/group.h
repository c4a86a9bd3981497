/* Process groups: collective operations and messages between ranks.
 *
 * Counterpart of torch.distributed. A group is a set of ranks that call the same operations in the
 * same order, each through its own handle. There are two backends. In `local`, ranks are threads
 * of one process, and collectives make no intermediate copies. In `mpi`, ranks are processes, on
 * one host or several. (A third, `nccl`, moves the gradients of CUDA devices: sl_ddp_options.) With
 * each, every rank gets the same bits, in whatever order the ranks arrive.
 *
 * Every operation works on `count` elements of one data type, in host memory. It either blocks
 * (work == NULL) or returns at once with a handle to wait on; its buffers then belong to the group
 * until the wait. Operations of one handle run in the order in which they were called. A handle is
 * used by one thread at a time.
 *
 * Each operation has the group's time limit. When it passes, or a rank leaves or dies, every other
 * rank's call ends with an error that names the operation, its sequence number and the ranks that
 * never came, and the first cause where one failure has led to another. The group is then broken,
 * and every later call on it returns that first error. A receive that is late, or whose message
 * does not match it, leaves the group whole.
 *
 * Errors of operations: SL_ERR_INVALID for an argument, for ranks that call different operations
 * (check_collectives), and for a message whose count or type is not the receive's; SL_ERR_CANCELLED
 * where a rank is late, has left or has died; SL_ERR_IO for an error of MPI; on a broken group the
 * error that broke it, for example the one that a rank gave to sl_group_abort. An operation that
 * returned a handle gives its error in sl_work_wait. */
#ifndef SLUICE_GROUP_H
#define SLUICE_GROUP_H

#include "sluice/tensor.h"

SL_API_BEGIN

typedef struct sl_group sl_group;
typedef struct sl_work sl_work;

/* Functions that take these options accept NULL: all fields are 0. */
typedef struct sl_group_options {
    double timeout_seconds; /* 0: 1,800, PyTorch's default; INFINITY: none */
    bool check_collectives; /* every operation first compares what the ranks call: a mismatch is an
                               error that names it, not a hang (SL_DEBUG=collectives) */
} sl_group_options;

/* The handles of `size` ranks that are threads of this process, into handles[0 … size - 1]: one for
 * each thread, which destroys it. Errors: SL_ERR_INVALID for a size below 1, a negative time limit
 * or an unknown word in SL_DEBUG. */
sl_status sl_group_create_local(int size, const sl_group_options *options, sl_group **handles);

/* This process's handle of a new group of all processes that the launcher (mpirun, srun, sluice
 * launch) has started; a process that was started by itself is a group of one. All processes create
 * the same such groups, in the same order. Results are bit-identical to the local backend with the
 * same number of ranks.
 *
 * MPI is opened by the first call, initialized with MPI_THREAD_MULTIPLE unless the program has done
 * so, and finalized when the process exits. Beside MPI the processes are joined by TCP connections
 * to rank 0, over which they notice when one of them dies. By itself mpirun kills all ranks when
 * one dies; with `mpirun --enable-recovery` the survivors end by themselves, with an error.
 *
 * Different threads may use different groups at the same time. Errors: SL_ERR_UNSUPPORTED where
 * sluice was built without MPI, or none is installed; SL_ERR_IO where rank 0 cannot be reached;
 * SL_ERR_INVALID as sl_group_create_local. */
sl_status sl_group_create_mpi(const sl_group_options *options, sl_group **out);

/* Leaves the group; work handles must be waited for before. Operations that are still under way on
 * this handle end first or fail. Other ranks' later calls that need this rank fail. */
void sl_group_destroy(sl_group **group);

/* Breaks the group: every rank's waiting and later calls end with `error` and "rank R: TEXT", where
 * R is this rank; in a group that sl_group_split has made, "rank R (J of the job): TEXT", where J
 * is its number in the group that was split first, if it has another one there. For a rank that
 * fails and will not make the call that the others wait for. */
void sl_group_abort(sl_group *group, sl_status error, const char *text);

int sl_group_rank(const sl_group *group);
int sl_group_size(const sl_group *group);

/* torch.distributed.new_group, for all groups of a partition at once (MPI_Comm_split): ranks that
 * pass the same `color` form a group, ordered by rank. A rank with a negative color is in no group;
 * its *out is NULL and the status SL_OK. Called by every rank of `group`. It first waits until
 * this rank's started operations have ended (sl_work_wait gives their errors). So no operation may
 * be under way that waits for something another rank sends after the split. */
sl_status sl_group_split(sl_group *group, int color, sl_group **out);

/* data = op over all ranks' data, combined in the order of a tree: `size` ranks are split at the
 * largest power of two below `size`, and so is each half. So 5 ranks give (((0 1) (2 3)) 4), the
 * same bits on every rank and with each backend. A NaN of any rank makes the result NaN, for
 * SL_REDUCE_MIN and SL_REDUCE_MAX as well (torch.minimum, torch.maximum). */
sl_status sl_group_all_reduce(sl_group *group, void *data, int64_t count, sl_dtype dtype,
                              sl_reduce_op op, sl_work **work);

/* As all_reduce, but only `root` gets the result; the others' data stay as they were. */
sl_status sl_group_reduce(sl_group *group, void *data, int64_t count, sl_dtype dtype,
                          sl_reduce_op op, int root, sl_work **work);

/* Root's data replace those of all other ranks. */
sl_status sl_group_broadcast(sl_group *group, void *data, int64_t count, sl_dtype dtype, int root,
                             sl_work **work);

/* out [size * count] = every rank's in [count], in the order of ranks; `in` may be this rank's
 * range of `out`. */
sl_status sl_group_all_gather(sl_group *group, const void *in, void *out, int64_t count,
                              sl_dtype dtype, sl_work **work);

/* out [count] = this rank's range of the reduction of all ranks' in [size * count]. */
sl_status sl_group_reduce_scatter(sl_group *group, const void *in, void *out, int64_t count,
                                  sl_dtype dtype, sl_reduce_op op, sl_work **work);

/* At root: out [size * count] = every rank's in. `out` must be NULL on the other ranks. A rank that
 * passes a wrong `out` breaks the group with that error, because the others cannot detect it. */
sl_status sl_group_gather(sl_group *group, const void *in, void *out, int64_t count, sl_dtype dtype,
                          int root, sl_work **work);

/* out [count] = this rank's range of root's in [size * count]. `in` must be NULL elsewhere, as
 * `out` of sl_group_gather. */
sl_status sl_group_scatter(sl_group *group, const void *in, void *out, int64_t count,
                           sl_dtype dtype, int root, sl_work **work);

sl_status sl_group_barrier(sl_group *group, sl_work **work);

/* Point to point. A receive matches sends of its `from` (or SL_ANY_RANK) and `tag` in the order in
 * which they were posted; counts and types must agree. *source (may be NULL) gets the sender. */
enum { SL_ANY_RANK = -1 };
sl_status sl_group_send(sl_group *group, const void *data, int64_t count, sl_dtype dtype, int to,
                        int tag, sl_work **work);
sl_status sl_group_recv(sl_group *group, void *data, int64_t count, sl_dtype dtype, int from,
                        int tag, int *source, sl_work **work);

/* torch.multiprocessing.spawn, with threads: runs fn(handle, arg) for each of `ranks` ranks of a
 * new local group, each on a thread of its own, and joins them. The first rank to fail breaks the
 * group, which ends the others at their next operation; its error is returned, "rank R: …" in
 * front. Errors of its own: as sl_group_create_local; SL_ERR_MEMORY where a thread does not start.
 */
sl_status sl_spawn(sl_status (*fn)(sl_group *group, void *arg), void *arg, int ranks,
                   const sl_group_options *options);

/* Waits for an operation, frees the handle and nulls it; gives the operation's error. */
sl_status sl_work_wait(sl_work **work);

SL_API_END

#endif
