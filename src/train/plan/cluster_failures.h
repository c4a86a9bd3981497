/* What failures cost a plan for a cluster. */
#ifndef SLI_TRAIN_PLAN_CLUSTER_FAILURES_H
#define SLI_TRAIN_PLAN_CLUSTER_FAILURES_H

#include "planner/failures.h"

/* A plan whose failures are simulated, with what is asked for them. */
typedef struct sli_failing_plan {
    sli_elastic_run elastic;
    sli_failing_run run; /* its context is `elastic`, also where the plan is moved */
    uint64_t seed;
    sli_fewer_speed *speeds;
    sli_simulated_runs simulated;
} sli_failing_plan;

/* What a run on so many nodes takes at least, whose steps take `work_s`: with its checkpoints, as
 * if no node failed. */
sl_status sli_failing_plan_bound(const sli_elastic_run *elastic, int nodes, double work_s,
                                 double *seconds);

/* Simulates the failures of `elastic` by `seed`, which are set: of a run on so many nodes, whose
 * steps take `work_s` without failures. To be cleared, after an error too. */
sl_status sli_failing_plan_simulate(sli_failing_plan *plan, int nodes, double work_s,
                                    sl_failure_plan *out);
/* out->simulated_interval_s of a plan that was simulated. */
sl_status sli_failing_plan_find_interval(sli_failing_plan *plan, sl_failure_plan *out);
void sli_failing_plan_clear(sli_failing_plan *plan);

#endif
