/* The parts of a plan (sl_plan_create). */
#ifndef SLI_TRAIN_PLAN_PLAN_H
#define SLI_TRAIN_PLAN_PLAN_H

#include "train/plan/layout.h"

/* Sets each stage's activations and workspace in a training step with micro-batches of `rows` rows.
 * `schedule` is the step's table with its recomputations; the plan's stages have their modules. */
sl_status sli_plan_training_step(const sl_train_options *options, int64_t rows,
                                 const sl_module *model, const sl_schedule *schedule,
                                 sl_plan *plan);

/* Raises them to what an evaluation needs. */
sl_status sli_plan_evaluation(const sl_train_options *options, const sl_module *model,
                              sl_plan *plan);

#endif
