/* Optimizers, learning-rate schedules and gradient clipping. */
#ifndef SLUICE_OPTIM_H
#define SLUICE_OPTIM_H

#include "sluice/module.h"

SL_API_BEGIN

typedef struct sl_optimizer sl_optimizer;

typedef enum sl_optimizer_kind { SL_OPTIMIZER_SGD, SL_OPTIMIZER_ADAMW } sl_optimizer_kind;

/* "sgd" or "adamw"; and both in the order of the enum, then NULL: the choices of an option. */
const char *sl_optimizer_kind_name(sl_optimizer_kind kind);
extern const char *const sl_optimizer_kind_names[];

/* Which parameters decay: all, as in torch.optim without parameter groups; or those with two
 * dimensions or more, which leaves out biases and norms, as is usual for Transformers. */
typedef enum sl_decay_kind { SL_DECAY_ALL, SL_DECAY_MATRICES } sl_decay_kind;

/* "all", "matrices"; then NULL: the choices of an option. */
extern const char *const sl_decay_kind_names[];

typedef struct sl_optimizer_options {
    sl_optimizer_kind kind;
    /* SGD */
    float momentum, dampening;
    bool nesterov;
    /* AdamW; 0 stands for 0.9, 0.999, 1e-8 */
    float beta1, beta2, eps;
    /* AdamW: in what its two averages are kept. BF16: computed in f32 and stored in bf16, rounded
       up or down at random so that means stay right, by a function of the set's seed, the
       parameter's number and element and the steps that it has taken */
    sl_precision precision;
    /* both */
    float weight_decay;
    sl_decay_kind decay;
} sl_optimizer_options;

/* torch.optim.SGD or torch.optim.AdamW for the trained parameters of a set, which it borrows. Its
 * state is on the set's device, one array for each bucket. Errors: SL_ERR_INVALID for negative
 * numbers, Nesterov without momentum or with dampening, averages in tf32, and what the other kind
 * of optimizer has alone. */
sl_status sl_optimizer_create(const sl_optimizer_options *options, sl_parameter_set *set,
                              sl_optimizer **out);
void sl_optimizer_destroy(sl_optimizer **optimizer);

/* One step, with the gradients multiplied by `grad_scale` (the clipping coefficient). As in
 * PyTorch, it skips a parameter that has no gradient since zero_grad: no weight decay, no change of
 * state, and the step does not count for AdamW's bias correction. Must be called by the thread that
 * drives the set's device (sl_pipe_run_on_stages). Errors: SL_ERR_INVALID for a set without
 * gradients; what the device reports, after which the parameters and the state are undefined. */
sl_status sl_optimizer_step(sl_optimizer *optimizer, double lr, double grad_scale);

/* Bytes of state for each element of a parameter: 0, 4 (momentum; AdamW in bf16) or 8 (AdamW). */
int64_t sl_optimizer_state_bytes(const sl_optimizer_options *options);

typedef enum sl_lr_kind {
    SL_LR_CONSTANT,
    SL_LR_STEP,   /* times `gamma` every `step_epochs` epochs: torch.optim.lr_scheduler.StepLR */
    SL_LR_LINEAR, /* by steps, along a line: LinearLR */
    SL_LR_COSINE, /* along half a cosine: CosineAnnealingLR */
    SL_LR_WSD /* constant, then by 1 - sqrt in the last fifth of the steps (Hagele et al., "Scaling
                 Laws and Compute-Optimal Training Beyond Fixed Training Durations", 2024) */
} sl_lr_kind;

extern const char *const sl_lr_names[]; /* "constant", "step", "linear", "cosine", "wsd", NULL */

/* LINEAR, COSINE and WSD fall from lr to min_lr, which they reach at total_steps. Before any of
 * them, the rate rises linearly over the first `warmup_steps` steps, or where that is 0 over
 * `warmup_ratio` of total_steps, rounded to the nearest. */
typedef struct sl_lr_schedule {
    sl_lr_kind kind;
    double lr;
    double gamma;    /* STEP: factor every `step_epochs` epochs; 0 stands for 1 */
    int step_epochs; /* STEP: 0 stands for 1 */
    int64_t warmup_steps;
    int64_t total_steps; /* LINEAR, COSINE, WSD, and with warmup_ratio */
    double min_lr;       /* LINEAR, COSINE, WSD */
    double warmup_ratio; /* 0 to below 1 */
} sl_lr_schedule;

/* The rate of step `step` (from 0) in epoch `epoch` (from 0). */
double sl_lr_at(const sl_lr_schedule *schedule, int64_t step, int64_t epoch);

typedef enum sl_grad_norm_kind {
    SL_GRAD_NORM_L1,
    SL_GRAD_NORM_L2,
    SL_GRAD_NORM_INF
} sl_grad_norm_kind;

SL_API_END

#endif
