/* What failures cost a plan for a cluster: the formulas' numbers, and those of simulated runs. */
#include "train/plan/cluster_failures.h"

#include <math.h>
#include <stdlib.h>

static sli_failing_run make_run(sli_elastic_run *elastic, int nodes, double work_s,
                                const sli_failures *failures)
{
    const sli_cluster *cluster = elastic->cluster;
    const sli_devices *devices = elastic->devices;
    return (sli_failing_run){.nodes = nodes,
                             .spares = sli_devices_count_nodes(devices, devices->count) - nodes,
                             .mtbf_s = cluster->mtbf_s,
                             .save_s = failures->save_s,
                             .interval_s = failures->daly_interval_s,
                             .restart_s = cluster->restart_s,
                             .repair_s = cluster->repair_s,
                             .work_s = work_s,
                             .speed = sli_elastic_run_speed,
                             .context = elastic};
}

static sl_status find_failures(const sli_elastic_run *elastic, int nodes, sli_failures *out)
{
    double save_s;
    SL_TRY(sli_cluster_time_save(elastic->job, elastic->devices, elastic->found, &save_s));
    *out = sli_cluster_failures(elastic->cluster, nodes, save_s);
    return SL_OK;
}

sl_status sli_failing_plan_bound(const sli_elastic_run *elastic, int nodes, double work_s,
                                 double *seconds)
{
    sli_failures failures;
    SL_TRY(find_failures(elastic, nodes, &failures));
    double saves = failures.save_s > 0 ? ceil(work_s / failures.daly_interval_s) - 1 : 0;
    *seconds = work_s + fmax(0, saves) * failures.save_s;
    return SL_OK;
}

sl_status sli_failing_plan_simulate(sli_failing_plan *plan, int nodes, double work_s,
                                    sl_failure_plan *out)
{
    const sli_elastic_run *elastic = &plan->elastic;
    sli_simulated_runs *simulated = &plan->simulated;
    sli_failures failures;
    SL_TRY(find_failures(elastic, nodes, &failures));
    *out = (sl_failure_plan){.mtbf_s = failures.mtbf_s,
                             .save_s = failures.save_s,
                             .daly_interval_s = failures.daly_interval_s,
                             .young_interval_s = failures.young_interval_s,
                             .simulated_interval_s = INFINITY,
                             .daly_kept_fraction = failures.kept_fraction,
                             .kept_fraction = 1,
                             .fewer_speed = 1,
                             .run_s = work_s,
                             .low_s = work_s,
                             .high_s = work_s};
    if (isinf(failures.mtbf_s))
        return SL_OK;
    plan->run = make_run(&plan->elastic, nodes, work_s, &failures);
    SL_TRY(sli_failing_run_speeds(&plan->run, &plan->speeds));
    SL_TRY(sli_failing_run_simulate_all(&plan->run, plan->seed, plan->speeds, simulated));
    out->kept_fraction = simulated->kept_fraction;
    out->fewer_speed = simulated->fewer_speed;
    out->run_s = simulated->seconds;
    out->low_s = simulated->low;
    out->high_s = simulated->high;
    out->runs = simulated->runs;
    out->unfinished = simulated->unfinished;
    return SL_OK;
}

sl_status sli_failing_plan_find_interval(sli_failing_plan *plan, sl_failure_plan *out)
{
    if (plan->simulated.runs == 0)
        return SL_OK;
    plan->run.context = &plan->elastic; /* the plan may have been moved */
    return sli_failing_run_find_interval(&plan->run, plan->seed, plan->speeds, &plan->simulated,
                                         &out->simulated_interval_s);
}

void sli_failing_plan_clear(sli_failing_plan *plan)
{
    free(plan->speeds);
    plan->speeds = NULL;
}
