/* What a checkpoint says of its run beside tensors: how far it has come, the options that decide
 * its numbers, the text it is trained on, and how it was laid out. */
#ifndef SLI_TRAIN_CHECKPOINT_RUN_STATE_H
#define SLI_TRAIN_CHECKPOINT_RUN_STATE_H

#include "train/run.h"

/* How far a run has come. */
typedef struct sli_position {
    int64_t steps;     /* done */
    int64_t epoch;     /* that is under way, from 0; as many as there are: only the test is left */
    int64_t block;     /* the next one of it; as many as there are: validation comes next */
    int64_t best_step; /* after which the best validation was */
    double best_loss;  /* infinite: none yet */
} sli_position;

/* As the text of a JSON object, malloc'ed:
 *
 *   {"step": 40, "epoch": 1, "block": 12, "best_step": 28, "best_loss": 4.9 or null,
 *    "options": {"emsize": 200, …},     by their names on the command line
 *    "layout": {"stages": 2, …},        that another run need not have
 *    "micro_batches": "ascending"}      the order in which their gradients are added
 */
sl_status sli_run_state_print(const sli_shared *shared, const sl_pipe *pipe,
                              const sli_position *position, char **text);

/* What a run that goes on has from its checkpoint, whatever its options leave open. */
typedef struct sli_recorded {
    sli_position position;
    int shards;   /* that its text is cut into */
    double lr;    /* the learning rate it began with */
    bool ascends; /* gradients of micro-batches are added from the first to the last */
} sli_recorded;

/* Errors: SL_ERR_FORMAT, also for the state of what is no run. */
sl_status sli_run_state_read(const char *text, sli_recorded *out);

/* Refuses to continue with other options than the checkpoint's, naming each that differs, and a
 * position that these options cannot have. */
sl_status sli_run_state_check(const char *text, const sli_shared *shared);

#endif
