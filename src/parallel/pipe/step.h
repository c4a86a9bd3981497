/* A step: one run of a table through the pipe, as all its ranks see it.
 *
 * All ranks read it. Stage 0 takes the inputs of the micro-batches; the last stage writes
 * `row_losses` and `output`; each rank writes those of its own row in `moments`. The pipe's
 * caller reads it only after all ranks have finished. */
#ifndef SLI_PARALLEL_PIPE_STEP_H
#define SLI_PARALLEL_PIPE_STEP_H

#include "core/clock.h"
#include "device/device.h"
#include "nn/module.h"
#include "parallel/pipe/channel.h"
#include "parallel/pipe/failure.h"
#include "sluice/loss.h"
#include "sluice/schedule.h"

typedef struct sli_micro {
    sl_tensor *input;   /* on the first stage's device */
    sl_tensor *targets; /* on the last stage's; NULL without a loss */
    double *row_losses; /* where the last stage writes this micro-batch's; NULL without a loss */
    int64_t row_loss_count;
    int64_t rows;
    int64_t columns;                   /* positions of its rows; 0: all that the batch has */
    int64_t first_position, positions; /* of a slice: its first position, and those of the whole
                                          rows; else 0 */
    int64_t first_row;                 /* within the batch */
    int64_t first_sample;              /* global number of its first row */
} sli_micro;

/* When an action ran, on the device of its stage. */
typedef struct sli_action_moments {
    bool ended; /* well; else there are no moments */
    sl_action action;
    sli_moment start, end;
} sli_action_moments;

/* What a table is for. */
typedef enum sli_table_kind {
    SLI_TABLE_FORWARD,
    SLI_TABLE_TRAINING,
    SLI_TABLE_WHOLE,    /* in a pipe with slices, training of a batch that is not cut into them */
    SLI_TABLE_GRADIENT, /* backward in evaluation mode: as training, without recomputation */
    SLI_TABLE_KINDS
} sli_table_kind;

/* What processes compare in place of a table's kind where a forward has a loss. */
enum { SLI_LINK_EVALUATION = SLI_TABLE_KINDS };

/* A table that is ready to run. */
typedef struct sli_table {
    sl_schedule *schedule; /* NULL: not written yet */
    int *order;            /* [actions] the number of each action, by which errors are compared:
                              sli_schedule_order */
} sli_table;

typedef struct sli_step {
    const char *who; /* the function that runs it, in errors */
    const sli_table *table;
    sli_micro *micros; /* those of the table: of the batch's, from `first_micro` on; slices, by
                          their numbers in the table, where there are any */
    int first_micro;
    int64_t rows;           /* of the whole batch */
    int batch_micros;       /* into which it is cut, as far as its rows allow */
    const sl_input *inputs; /* [input_count] the batch's further ones */
    int input_count;
    sl_cache *const *caches; /* one for each row; NULL: none */
    int64_t positions;       /* with caches: those of the batch; else 0 */
    int slices;              /* of a micro-batch; 1: they are whole */
    int64_t columns;         /* with slices: the positions of the batch's rows */
    bool backward;           /* the table goes backward */
    bool training;           /* modules are in training mode: dropout is on */
    bool same_weights;       /* as the batch says */
    bool last_position;      /* the same */
    sl_loss *loss;           /* NULL: the outputs are wanted */
    double scale;            /* of gradients: weight / terms of the whole batch */
    double *row_losses;      /* of the whole batch, in its order; NULL without a loss */
    int64_t row_loss_count;
    sl_precision precision;
    uint64_t seed, step;
    double start;      /* on sli_clock_seconds' clock */
    sl_tensor *output; /* of the whole batch, on the last stage's device; NULL with a loss */

    /* [stages] what is told of the modules whose gradients are complete; NULL: nothing is. */
    const sli_pass_observer *const *observers;
    sli_action_moments
        *moments; /* [actions of the table] of those that ended well; NULL: not kept */
    sli_failure *failure;
    sli_channel *const *channels; /* all of them */
    int channel_count;
    sli_link *link; /* NULL: all ranks are in this process */
} sli_step;

#endif
