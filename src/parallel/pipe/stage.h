/* A stage: a run of the model's modules on one device, with its records of the micro-batches that
 * are on their way through it. */
#ifndef SLI_PARALLEL_PIPE_STAGE_H
#define SLI_PARALLEL_PIPE_STAGE_H

#include "nn/split_head.h"
#include "parallel/pipe/step.h"

/* A skip connection from one stage to a later one. */
typedef struct sli_skip {
    const sli_skip_end *stash, *pop; /* of one name */
    int stash_stage, pop_stage;
    sli_channel *forward, *gradient; /* from the stash's stage to the pop's, and back */
} sli_skip;

/* What goes between the last stage and a rank's part of a split head for one micro-batch. */
typedef struct sli_head_tensors {
    sl_tensor *input, *targets, *sums, *numbers, *result;
} sli_head_tensors;

enum {
    SLI_HEAD_INPUT,
    SLI_HEAD_TARGETS,
    SLI_HEAD_SUMS,
    SLI_HEAD_NUMBERS,
    SLI_HEAD_RESULT,
    SLI_HEAD_CHANNELS
};

/* What a part has of its own, in this order. */
enum { SLI_HEAD_WEIGHT, SLI_HEAD_BIAS, SLI_HEAD_PARAMETERS };

/* A rank's part of a split head (pipe_head.c). */
typedef struct sli_head_part {
    sli_split_head head; /* without tensors where the rank is in another process */
    sl_parameter own[SLI_HEAD_PARAMETERS]; /* [own_count] the rank's, with path and number of what
                                              is cut (pipe_head_values.c) */
    int own_count;
    sl_tensor *weight, *bias, *weight_grad, *bias_grad; /* what it has in `head`; owned */
    int64_t first_word, word_count; /* the batch's, of a cut embedding, that are the rank's: of the
                                       pipe's `words` */
    sli_split_head_record *records; /* [chunks] */
    sli_head_tensors *of_rank;      /* [chunks] of the rank's thread */
    sli_head_tensors *of_last;      /* [chunks] of the last stage's */
    sli_channel *channels[SLI_HEAD_CHANNELS];
} sli_head_part;

/* What a stage holds of a micro-batch between its actions.
 *
 *     after F, R              pass, at the last stage also output
 *     after F that discards   input and the skips that arrived (nothing in evaluation)
 *     after I                 pass, with what W needs
 *     after B, W              nothing */
typedef struct sli_record {
    sl_tensor *input;
    sl_pass *pass;
    sl_tensor *output;
    sli_slices *slices; /* at a micro-batch's first slice, what the stage keeps for all of them */
    sl_tensor **skips; /* [skip_count] tensors and gradients that arrived and wait for their action,
                          or come out of it and will be sent */
} sli_record;

typedef struct sli_stage {
    int index;
    bool is_last;
    bool goes_backward; /* something is trained in it or in a stage before it */
    bool ends_backward; /* it is the first one that does: nobody wants the gradient of its input */
    bool is_here;       /* in this process; else it has no parameters and no device */
    int group_rank;     /* its process's */
    sl_device *device;  /* its rank's */
    sl_module *model;
    int first, count;     /* the model's modules that are its own */
    int frozen_count;     /* its first ones, which keep nothing and do not go backward */
    int parameter_count;  /* theirs */
    bool loss_takes_last; /* the loss works through the last module itself, where there is one */
    sl_parameter_set *parameters;
    sli_record *records; /* [table_micros] */
    /* Of the last step with a loss: */
    sl_shape input_shape; /* of its first micro-batch; at first empty */
    bool last_went_backward;

    /* NULL where there is no neighbour. Forward tensors come from the previous stage and go to the
     * next, gradients come from the next and go to the previous. */
    sli_channel *from_previous, *to_next, *from_next, *to_previous;

    sli_head_part *part;  /* of a split head, at its rank's first stage; NULL */
    sli_head_part *parts; /* [part_count] at the last stage, all ranks'; NULL: it is not split */
    int part_count;

    const sli_skip *skips; /* [skip_count] all of the pipe's */
    int skip_count;
    sl_tensor **skip_room; /* what records have as `skips` */
} sli_stage;

/* Brings what the action waited for, `*tensor` (NULL: nothing) and its skips, to the stage's
 * device. A device that queues its work waits there until the senders' devices have come so far. */
sl_status sli_stage_receive(const sli_stage *stage, sl_action action, sl_tensor **tensor);

/* Does what an action asks for, its neighbours apart. `*tensor` comes in as what the action waited
 * for (a forward's input, a backward's gradient; NULL: nothing) and is taken; it goes out as what
 * the neighbour waits for (NULL: nothing, and always on an error). */
sl_status sli_stage_perform(sli_stage *stage, sli_step *step, sl_action action, sl_tensor **tensor);

/* Frees what the records of `micros` micro-batches hold. */
void sli_stage_clear_records(sli_stage *stage, int micros);

#endif
