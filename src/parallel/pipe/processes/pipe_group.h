/* What the processes of a pipe exchange besides tensors: options, errors, losses. They are the
 * ranks of the group that the pipe's options name; each rank of the group calls the pipe's
 * functions together.
 */
#ifndef SLI_PARALLEL_PIPE_PROCESSES_PIPE_GROUP_H
#define SLI_PARALLEL_PIPE_PROCESSES_PIPE_GROUP_H

#include "parallel/pipe/processes/link.h"
#include "sluice/pipe.h"

typedef struct sli_pipe_group {
    sl_group *group; /* its own, for collective operations */
    sli_link *link;
    sli_failure *failure; /* the pipe's */
    int rank, size;
    uint64_t calls; /* of the pipe's functions that run a table, and of their accumulation steps */
    char (*names)[SLI_LOCATION_BYTES]; /* [size] "rank 1 (3 of the job) on HOST, stage 1" */
    int *hosts;                        /* [size] the first rank on the same host */
    /* [size][2 + size] At the end of a call, from each rank: the number of its failure, how long
     * its actions took in nanoseconds, and how many headers it has sent to each rank. */
    int64_t *outcomes;
} sli_pipe_group;

/* Breaks the group after an error that the other ranks cannot know otherwise, so that they do not
 * wait for this one. Returns the error that broke it first. */
sl_status sli_pipe_group_check(sli_pipe_group *group, sl_status status);

/* Called by every rank of `parent`. stage_ranks[s]: the rank of the group that has stage s. */
sl_status sli_pipe_group_create(sl_group *parent, const int *stage_ranks, int stages,
                                sli_failure *failure, sli_pipe_group **out);
void sli_pipe_group_destroy(sli_pipe_group **group);

/* Do all ranks have the same options and model? Errors: SL_ERR_INVALID, the same on every rank, for
 * the first that differs. */
sl_status sli_pipe_group_compare(const sl_pipe *pipe);

/* Ends a call on all ranks, when the threads of each have ended: takes the failure, and returns
 * that of the lowest number on every rank. `ran_table` and `busy_seconds` as in sli_pipe_end_run.
 */
sl_status sli_pipe_group_end(sli_pipe_group *group, bool ran_table, double *busy_seconds);

/* Called by every process of the pipe with its own status: all return the first one's error. Where
 * there are no others, or no pipe (NULL), it is `status`. */
sl_status sli_pipe_agree(const sl_pipe *pipe, sl_status status);

/* Rank `root`'s data on every rank; data from one rank to another; and sums, in which one rank's
 * term alone is not 0. */
sl_status sli_pipe_group_broadcast(sli_pipe_group *group, void *data, int64_t count, sl_dtype dtype,
                                   int root);
sl_status sli_pipe_group_send(sli_pipe_group *group, const void *data, int64_t count,
                              sl_dtype dtype, int rank);
sl_status sli_pipe_group_receive(sli_pipe_group *group, void *data, int64_t count, sl_dtype dtype,
                                 int rank);
sl_status sli_pipe_group_sum(sli_pipe_group *group, double *terms, int64_t count);

#endif
