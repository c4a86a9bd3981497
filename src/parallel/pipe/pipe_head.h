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

/* Decides who owns the head's parameters, when the parts are there without tensors. Refuses what
 * would be cut and is in a parameter set already. */
sl_status sli_pipe_cut_head(sl_pipe *pipe);

/* Fills `parts` with the stage's parts of cut parameters and returns their number. */
int sli_stage_list_parts(sli_stage *stage, sl_parameter *parts[SLI_HEAD_PARAMETERS]);

/* Gives the parts of this process their tensors, when all parameters are there. */
sl_status sli_pipe_place_head(sl_pipe *pipe);
void sli_pipe_clear_head(sl_pipe *pipe);

/* The terms of a gradient norm of what is cut, or would be, come from the head's blocks, so that
 * they do not depend on who owns it: terms [2 * head_blocks] of weights and biases, of which the
 * stage's part sets its own. */
sl_status sli_stage_head_norm_terms(const sl_pipe *pipe, const sli_stage *stage,
                                    sl_grad_norm_kind kind, double *terms);

/* Before a batch: brings what it needs of a cut head (every process calls it, when values are
 * converted), and says whether gradients are overwritten. */
sl_status sli_pipe_exchange_head(sl_pipe *pipe, const sli_step *step);
void sli_pipe_begin_head(sl_pipe *pipe);

/* After it: the head's gradients, when no action runs any more. Every process calls it. */
sl_status sli_pipe_gather_head(sl_pipe *pipe);

/* ---- Words of a cut embedding (pipe_embedding.c) ------------------------------------------ */

/* Before the exchange, in the process of the first stage: finds the words that the batch's ids
 * name, and makes the stage a table that has room for them. */
sl_status sli_pipe_list_words(sl_pipe *pipe, const sl_tensor *ids, bool has_gradients);

/* Part of the exchange: the first stage gets their rows; and afterwards their owners get the rows
 * of their gradients. */
sl_status sli_pipe_fetch_words(sl_pipe *pipe, const sli_step *step);
sl_status sli_pipe_return_words(sl_pipe *pipe);

/* Replaces each id of a micro-batch by its row in that table. */
sl_status sli_pipe_number_words(const sl_pipe *pipe, sl_tensor **ids);

/* Frees the table. */
void sli_pipe_drop_words(sl_pipe *pipe);

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
