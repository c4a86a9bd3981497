/* The end of a training step on all stages of a pipe: gradient norm, clipping, update.
 *
 *     sl_pipe_zero_grad(pipe);
 *     sl_pipe_train(pipe, &batch, &loss);              or sl_ddp_train
 *     sl_pipe_optimizer_step(optimizer, lr, clip, &norm);
 *
 * Norm, weights and state are the same, bit for bit, however the model is cut into stages.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_PIPE_OPTIMIZER_H
#define SLUICE_PIPE_OPTIMIZER_H

#include "sluice/checkpoint.h"
#include "sluice/ddp.h"
#include "sluice/optim.h"

SL_API_BEGIN

/* torch.nn.utils.clip_grad_norm_ over all stages, for those who update parameters by hand: gives
 * the norm of all gradients together, and multiplies them by min(1, max_norm / (norm + 1e-6)). A
 * norm that is not finite is a value here: NaN makes all gradients NaN, and an infinite norm makes
 * the finite ones 0. Errors: SL_ERR_NUMERIC for such a norm where `error_if_nonfinite`, with
 * gradients as they were. */
sl_status sl_clip_grad_norm(sl_pipe *pipe, double max_norm, sl_grad_norm_kind kind,
                            bool error_if_nonfinite, double *norm);

/* An optimizer for each stage. One thread at a time calls its functions. */
typedef struct sl_pipe_optimizer sl_pipe_optimizer;

typedef struct sl_pipe_optimizer_options {
    sl_pipe *pipe; /* borrowed */
    sl_optimizer_options optimizer;
    const sl_ddp *zero;      /* borrowed; the pipe's DDP, over whose ranks the state is sharded
                                (ZeRO stage 1): each rank has and updates an equal shard, to the
                                same bits, in 1 / ranks of the memory; NULL: it has all of it */
    bool error_if_nonfinite; /* a step refuses a norm that is not finite */
} sl_pipe_optimizer_options;

/* With `zero`, every rank of its group calls this function and all below. Errors: as
 * sl_optimizer_create; SL_ERR_INVALID for a `zero` that is not over this pipe. */
sl_status sl_pipe_optimizer_create(const sl_pipe_optimizer_options *options,
                                   sl_pipe_optimizer **out);
void sl_pipe_optimizer_destroy(sl_pipe_optimizer **optimizer);

/* One step of every stage's optimizer. In a pipe of a group, every rank calls it, and either all
 * give a `norm` or none. *norm is the L2 norm of all gradients together; with a
 * `clip` above 0 the update uses gradients scaled as by sl_clip_grad_norm. The gradients themselves
 * stay as they are. `norm` may be NULL. Errors: SL_ERR_NUMERIC where error_if_nonfinite, with *norm
 * set and nothing updated; as sl_optimizer_step, after which parameters and state are undefined.
 * With `zero`, such an error of one rank breaks the groups of sl_ddp_group, and the other ranks'
 * steps end with it. */
sl_status sl_pipe_optimizer_step(sl_pipe_optimizer *optimizer, double lr, double clip,
                                 double *norm);

/* ---- Checkpoints (sluice/checkpoint.h) -------------------------------------------------- */

/* The pipe's parameters and buffers as a part "model" of a checkpoint: f32 under their names, in
 * the model's order. The items' data are the values themselves, so sl_checkpoint_save writes them
 * from there, and sl_checkpoint_read reads into them. The part lives as long as the pipe, but its
 * pointers to values only until sl_saved_model_load. Names do not depend on the cut: another pipe
 * of the same model can read what this one has saved. A pipe of a group has the tensors of its own
 * stages. Where its ranks own parts of a split head (sl_pipe_options.head_blocks), every rank calls
 * this, and the one of the last stage has copies of the whole head, which live until the next call:
 * they can be saved, but only sl_pipe_load reads a head into the pipe. */
sl_status sl_pipe_get_state(sl_pipe *pipe, sl_checkpoint_part *out);

/* Reads those tensors from the part "model" of a checkpoint that a pipe of any cut has saved. In a
 * group, every rank opens the checkpoint and reads what its own stages have; an error is that
 * rank's alone. Errors: as sl_checkpoint_read. */
sl_status sl_pipe_load(sl_pipe *pipe, const sl_checkpoint_reader *reader);

/* The optimizers' state as a part "optimizer", under torch.optim's names: for each trained
 * parameter "0.weight.momentum_buffer", or "0.weight.exp_avg" and "0.weight.exp_avg_sq", f32 or
 * bf16; and "0.weight.step", i64 without dimensions. SGD without momentum has none. A sharded state
 * is gathered on rank 0, which alone can save it: on the other ranks the part is empty. That of a
 * split head, whose parts are ranks', is the last stage's, as in sl_pipe_get_state. The part
 * lives until the next call. */
sl_status sl_pipe_optimizer_get_state(sl_pipe_optimizer *optimizer, sl_checkpoint_part *out);

/* Reads the state from the part "optimizer" that a pipe of any cut, sharded or not, has saved, or a
 * training run (sluice/app/train.h), which has the number of steps as "step" of its state. Every
 * rank opens the checkpoint and reads what it needs. Errors: as sl_checkpoint_read. */
sl_status sl_pipe_optimizer_load(sl_pipe_optimizer *optimizer, const sl_checkpoint_reader *reader);

SL_API_END

#endif
