/* The head of a pipe, its last linear module, split over all ranks (nn/split_head.h). */
#ifndef SLI_PARALLEL_PIPE_PIPE_HEAD_H
#define SLI_PARALLEL_PIPE_PIPE_HEAD_H

#include "nn/layers.h"
#include "parallel/pipe/stage.h"
#include "sluice/optim.h"
#include "sluice/pipe.h"

/* The model's last module. */
const sli_linear *sli_pipe_find_head(const sl_module *model);

/* Refuses what cannot be split, when the stages are known. */
sl_status sli_pipe_check_head(sl_pipe *pipe);

/* The ranks' parts without their tensors, before the channels: sets what stages know of them. */
sl_status sli_pipe_create_parts(sl_pipe *pipe);

/* How many channels they have. */
int sli_pipe_head_channels(const sl_pipe *pipe);

void sli_pipe_destroy_head(sl_pipe *pipe);

/* ---- Values and gradients (pipe_head_values.c) -------------------------------------------- */

/* Decides who owns the head's parameters, when the parts are there without tensors. Refuses a head
 * that would be cut and is in a parameter set already. */
sl_status sli_pipe_cut_head(sl_pipe *pipe);

/* Fills `parts` with the stage's parts of a cut head and returns their number. Sets *modules: how
 * many of the stage's modules have their parameters in its set (all, or without a cut head). */
int sli_stage_list_parts(const sl_pipe *pipe, sli_stage *stage,
                         sl_parameter *parts[SLI_HEAD_PARAMETERS], int *modules);

/* Gives the parts of this process their tensors, when all parameters are there. */
sl_status sli_pipe_place_head(sl_pipe *pipe);
void sli_pipe_clear_head(sl_pipe *pipe);
void sli_pipe_zero_head(sl_pipe *pipe); /* the gradients of copies */

/* The terms of a gradient norm that the stage's set gives are those of its parameters first …
 * end - 1; those of a split head that is not tied come from its blocks, so that they do not depend
 * on who owns it: terms [2 * head_blocks] of weights and biases, of which the stage's part sets its
 * own. */
void sli_stage_find_normed(const sl_pipe *pipe, const sli_stage *stage, int *first, int *end);
sl_status sli_stage_head_norm_terms(const sl_pipe *pipe, const sli_stage *stage,
                                    sl_grad_norm_kind kind, double *terms);

/* Before a batch: gives copies the head's values where they need others (every process calls it,
 * when they are converted), and says whether its gradients are overwritten. */
sl_status sli_pipe_exchange_head(sl_pipe *pipe, const sli_step *step);
void sli_pipe_begin_head(sl_pipe *pipe);

/* After it: the head's gradients, when no action runs any more. Every process calls it. */
sl_status sli_pipe_gather_head(sl_pipe *pipe);

/* ---- Actions (as those of pipe_skip.h) ---------------------------------------------------- */

/* Waits for what the action needs of the head's tensors; false when the step has failed. */
bool sli_stage_receive_head(const sli_stage *stage, sl_action action, int number);
/* Sends what it has made. */
void sli_stage_send_head(const sli_stage *stage, sl_action action);

/* S and T of the rank whose first stage it is. */
sl_status sli_stage_head_forward(const sli_stage *stage, int micro);
sl_status sli_stage_head_backward(const sli_stage *stage, int micro);

/* The last stage's: makes its output ready for all parts; and from what they gave the losses and
 * the gradient of the output, *grad. */
sl_status sli_stage_give_output(const sli_stage *stage, const sli_step *step, int micro);
sl_status sli_stage_reduce_head(const sli_stage *stage, const sli_step *step, int micro,
                                sl_tensor **grad);

/* Frees what the stage's part, or the last stage, holds of the micro-batch. */
void sli_stage_drop_head(const sli_stage *stage, int micro);

#endif
