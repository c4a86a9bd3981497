/* How a plan (sl_plan) is made. Layout, cut and memory are decided here and nowhere else:
 *
 *     cases.c       which checkpoint a run begins with, and what rule its layout follows
 *     layout.c      replicas, stages, ranks, devices, chunks, shards, the table
 *     search_job.c      the search for a layout where a job has lost processes
 *     cluster_failures.c  what failures cost a plan for a cluster
 *     search_machine.c  the search for the best layouts on this machine
 *     timed_machine.c   how fast it is, measured for a search
 *     run_machine.c     how fast it was in a run, by what that has measured of itself
 *     found_plan.c      the pipeline of a plan that was found
 *     changes.c         what to change in such a run
 *     run_meter.c       what it has measured, by its reporters or its log
 *     plan.c        where the model is cut; what that takes in memory is src/planner's
 *     profile.c         how long the modules of a run take on its devices
 *     complete.c        what is decided by that: the cut, and whether stages share cores
 *     fit_memory.c  what is said of a run that does not fit its host */
#ifndef SLI_TRAIN_PLAN_PLAN_H
#define SLI_TRAIN_PLAN_PLAN_H

#include "planner/layout.h"
#include "sluice/app/train.h"
#include "train/plan/cases.h"

/* What rank 0 has found for all; zeros: nothing. Where a layout was searched, shards and chunks are
 * those of the layout that was asked for, so that no number changes. */
typedef struct sli_findings {
    double lr;                          /* the checkpoint's */
    int start;                          /* sli_start */
    int resumes;                        /* from a checkpoint */
    int shards, chunks;                 /* the checkpoint's, or see above */
    int replicas, pipeline_ranks;       /* of a layout that was searched */
    int drops_balance, drops_placement; /* the options', which fit no layout */
} sli_findings;

/* What a plan is made from. */
typedef struct sli_plan_inputs {
    const sl_train_options *options; /* with valid values (sli_train_options_check_values) */
    const sl_train_launch *launch;
    sli_findings found;
} sli_plan_inputs;

/* The rule that the run's layout follows. */
sli_layout_rule sli_plan_rule(const sl_train_options *options, const sl_train_launch *launch);

/* All of a plan but what follows from the model. */
sl_status sli_plan_layout(const sli_plan_inputs *inputs, sl_plan **out);

/* Whether an error of sli_plan_layout says that no run has such a layout: a search then goes on
 * with the next one. */
bool sli_plan_is_impossible(sl_status status);

/* Refuses a model whose head cannot be split as the plan says. Errors: those of
 * sli_plan_is_impossible. */
sl_status sli_plan_check_head(const sl_plan *plan, const sl_module *model);

/* A found plan's times are those of one kind of devices, which its options may leave open:
 * SL_ERR_INVALID where the run's are others, without `force`. */
sl_status sli_plan_check_kind(const sl_plan *plan);

/* The number of modules of each stage, as the options say; SL_BALANCE_AUTO: by parameters. */
sl_status sli_plan_choose_cut(const sl_plan *plan, const sl_module *model, int *balance);

/* Cuts the model by `balance` [stages], or, where that is NULL, as the options say; and plans the
 * memory. The plan may be a shallow copy, for a cut that is tried. */
sl_status sli_plan_cut(sl_plan *plan, const sl_module *model, const int *balance);

sli_rank_plan sli_plan_rank(const sl_plan *plan, int rank);

/* plan->devices of a rank, [pipeline_ranks_each]. */
sl_device_plan *sli_plan_devices_of(const sl_plan *plan, int rank);

/* The plan as the planner sees it. It borrows the plan and the model. */
sli_layout sli_plan_layout_of(const sl_plan *plan, const sl_module *model);

/* Names this host's devices: as the options do; else each has cores of its own, or with `shared`
 * all of them. */
sl_status sli_plan_name_devices(sl_plan *plan, bool shared);

/* Completes inputs->found as sl_run_create says: for at most so many processes on one host, which
 * has so much memory (0: not checked). Errors: SL_ERR_MEMORY if only memory is too small. */
sl_status sli_plan_search(sli_plan_inputs *inputs, const sl_module *model, int host_processes,
                          uint64_t host_bytes);

/* Each module's operations for one micro-batch of this shape, as times. (search_job.c) */
sl_status sli_count_operations(const sl_module *model, sl_shape shape, sl_module_profile *out);

/* Refuses a plan whose host needs more. */
sl_status sli_plan_check_memory(const sli_plan_inputs *inputs, const sl_plan *plan,
                                const sl_module *model, uint64_t usable_bytes);

/* Refuses values that no layout allows (options.c). */
sl_status sli_train_options_check_values(const sl_train_options *options);

#endif
