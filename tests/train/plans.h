/* Plans in tests. */
#ifndef TESTS_TRAIN_PLANS_H
#define TESTS_TRAIN_PLANS_H

#include "sluice/app/train.h"
#include "support/check.h"

/* The plan's numbers: what it points to is gone. */
static inline sl_plan plan_numbers(const sl_train_options *options, const sl_train_launch *launch)
{
    sl_plan *plan, numbers;
    check_ok(sl_plan_create(options, launch, NULL, NULL, &plan));
    numbers = *plan;
    sl_plan_destroy(&plan);
    return numbers;
}

/* With the stages of the model, whose ntokens the options have. */
static inline sl_plan plan_of_launch(const sl_train_options *options, const sl_train_launch *launch)
{
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_plan) *plan = NULL;
    check_ok(sl_transformer_lm_create(&options->model, &model));
    check_ok(sl_plan_create(options, launch, model, NULL, &plan));
    return *plan;
}

/* A run of one rank of the group, of which so many are on one host. */
static inline sl_status run_as_rank(const sl_train_options *options, sl_group *group,
                                    int local_ranks, const sl_reporter *reporters, int count,
                                    sl_run_result *result)
{
    const sl_train_launch launch = {.local_ranks = local_ranks,
                                    .local_rank = sl_group_rank(group) % local_ranks};
    sl_run *run;
    SL_TRY(sl_run_create(options, &launch, group, reporters, count, &run));
    sl_status status = sl_run_train(run, reporters, count, result);
    sl_run_destroy(&run);
    return status;
}

#endif
