/* What failures cost a plan for a cluster. */
#ifndef SLI_TRAIN_PLAN_CLUSTER_FAILURES_H
#define SLI_TRAIN_PLAN_CLUSTER_FAILURES_H

#include "planner/failures.h"

/* Of a run on so many nodes, whose steps take `work_s` without failures, with checkpoints of so
 * many bytes. */
sl_status sli_plan_failures(const sli_elastic_run *run, int nodes, double saved_bytes,
                            double work_s, uint64_t seed, sl_failure_plan *out);

#endif
