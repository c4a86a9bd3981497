/* Optimizers, learning-rate schedules and gradient clipping. */
#ifndef SLUICE_OPTIM_H
#define SLUICE_OPTIM_H

#include "sluice/module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_optimizer sl_optimizer;

typedef enum sl_optimizer_kind { SL_OPTIMIZER_SGD, SL_OPTIMIZER_ADAMW } sl_optimizer_kind;

/* "sgd" or "adamw"; and all names in the order of the enum, then NULL: the choices of an option. */
const char *sl_optimizer_kind_name(sl_optimizer_kind kind);
extern const char *const sl_optimizer_kind_names[];

typedef struct sl_optimizer_options {
    sl_optimizer_kind kind;
    /* SGD */
    float momentum, dampening;
    bool nesterov;
    /* AdamW; 0 stands for 0.9, 0.999, 1e-8 */
    float beta1, beta2, eps;
    /* both */
    float weight_decay;
} sl_optimizer_options;

/* torch.optim.SGD or torch.optim.AdamW over the trained parameters of a set, which it borrows. Its
 * state lives on the set's device, bucket by bucket. Errors: SL_ERR_INVALID for negative numbers,
 * Nesterov without momentum or with dampening, numbers of the other method. */
sl_status sl_optimizer_create(const sl_optimizer_options *options, sl_parameter_set *set,
                              sl_optimizer **out);
void sl_optimizer_destroy(sl_optimizer **optimizer);

/* One step with the gradients multiplied by `grad_scale` (the clipping coefficient). A parameter
 * that has got no gradient since zero_grad stays as it is, weight decay and state included, and
 * the step does not count among its own (AdamW's bias correction), as in PyTorch. To be called by
 * the thread that drives the set's device. Errors: SL_ERR_INVALID for a set without gradients; what
 * the device reports, after which the parameters and the state are undefined. */
sl_status sl_optimizer_step(sl_optimizer *optimizer, double lr, double grad_scale);

/* Bytes of state per parameter element: 0, 4 (momentum) or 8 (AdamW). */
int64_t sl_optimizer_state_bytes(const sl_optimizer_options *options);

typedef enum sl_lr_kind { SL_LR_STEP, SL_LR_COSINE } sl_lr_kind;

/* torch.optim.lr_scheduler.StepLR (per epoch), or a cosine from lr to 0 over total_steps; either
 * after a linear warm-up over the first `warmup_steps` steps. */
typedef struct sl_lr_schedule {
    sl_lr_kind kind;
    double lr;
    double gamma;    /* STEP: factor every `step_epochs` epochs */
    int step_epochs; /* STEP: 0 stands for 1 */
    int64_t warmup_steps;
    int64_t total_steps; /* COSINE */
} sl_lr_schedule;

/* The rate of step `step` (from 0) in epoch `epoch` (from 0). */
double sl_lr_at(const sl_lr_schedule *schedule, int64_t step, int64_t epoch);

typedef enum sl_grad_norm_kind {
    SL_GRAD_NORM_L1,
    SL_GRAD_NORM_L2,
    SL_GRAD_NORM_INF
} sl_grad_norm_kind;

/* Each trained parameter's contribution to the norm (L1: sum of |g|, L2: sum of g^2, INF: largest
 * |g|; 0 where there is no gradient) into terms[size], in order of registration; *count says how
 * many. sl_parameter_set_count of the set is always enough room. To be called by the thread that
 * drives the set's device. Errors: SL_ERR_INVALID for too little room. */
sl_status sl_grad_norm_terms(sl_parameter_set *set, sl_grad_norm_kind kind, double *terms, int size,
                             int *count);

/* The norm from all stages' terms, in the model's order: so it does not depend on the partition. */
double sl_grad_norm_combine(sl_grad_norm_kind kind, const double *terms, int count);

/* torch.nn.utils.clip_grad_norm_'s coefficient: min(1, max_norm / (norm + 1e-6)). */
double sl_clip_coefficient(double norm, double max_norm);

#ifdef __cplusplus
}
#endif
#endif
