/* A link takes tensors to and from the other processes of a pipe: those of the channels whose two
 * stages are in two processes.
 *
 *     stage 1's rank ──▶ channel ──▶ link ═══ header, data ═══▶ link ──▶ channel ──▶ stage 2's rank
 *
 * A tensor travels as two transfers of the link's group (comm/group.h): a header (channel,
 * micro-batch, shape), then the data, sent from the tensor's own memory. Each process always has a
 * receive posted for every other process's next header; a header posts the receive of its data,
 * into the tensor that the channel then gets. So no tensor waits behind another.
 *
 * Transfers go on while some thread polls: a rank that waits for a tensor, and the link's own
 * thread while the ranks compute. */
#ifndef SLI_PARALLEL_PIPE_PROCESSES_LINK_H
#define SLI_PARALLEL_PIPE_PROCESSES_LINK_H

#include "comm/location.h"
#include "core/clock.h"
#include "parallel/pipe/channel.h"
#include "sluice/group.h"

typedef struct sli_link_options {
    sl_group *group;                         /* taken, and used for nothing else */
    const char (*names)[SLI_LOCATION_BYTES]; /* [ranks] in errors, as in pipe_group.h */
    sli_failure *failure;                    /* of the steps; borrowed, as the names */
} sli_link_options;

/* Takes the group also when it fails. */
sl_status sli_link_create(const sli_link_options *options, sli_link **out);
void sli_link_destroy(sli_link **link);

/* What the processes must agree on in a step, apart from its table's form. */
typedef struct sli_link_step {
    uint64_t sequence; /* of the steps */
    int32_t kind;      /* of its table: sli_table_kind, or SLI_LINK_EVALUATION */
    int32_t first_micro;
} sli_link_step;

/* Begins a step, whose channels have their numbers as indexes. A broken link fails this
 * step and every later one. */
void sli_link_begin(sli_link *link, const sli_link_step *step, sli_channel *const *channels,
                    int channel_count);

/* Takes the tensor. It is freed when process `rank` has it. One of more than 1 GiB is not sent: an
 * error SLI_FAILURE_OF_CALL ends the step. */
void sli_link_send(sli_link *link, int rank, int channel, int micro, sl_tensor **tensor);

/* Tells the other processes that an error with this number ends the step. */
void sli_link_send_failure(sli_link *link, int number);

/* One wait for a tensor from process `rank`. */
typedef struct sli_link_wait {
    int rank;
    bool spins;
    int polls;    /* without a result */
    bool is_told; /* the others know that this process waits for long */
    sli_running_clock waited;
} sli_link_wait;

/* Lets transfers go on; pauses where none does. Breaks the link when the wait is longer than the
 * group's time limit. */
void sli_link_poll_or_pause(sli_link *link, sli_link_wait *wait);

/* When the tensor has come, or is not wanted any more. */
void sli_link_end_wait(sli_link *link, const sli_link_wait *wait);

/* Ends the step in this process, whose ranks have ended their rows: nothing is received until
 * sli_link_flush. sent[r]: the headers that process r was sent so far. */
void sli_link_stop(sli_link *link, int64_t *sent);

/* Then, when all processes have stopped: waits until all that they have sent is received. `sent`:
 * the headers that each has sent to this one so far. */
sl_status sli_link_flush(sli_link *link, const int64_t *sent);

/* The error of the link, where it is broken: every later step fails with it. */
sl_status sli_link_status(sli_link *link);

/* After another group of the same processes has failed: names the process that has died or left,
 * breaks the link, and returns the error that broke it. */
sl_status sli_link_break(sli_link *link, sl_status status);

#endif
