/* What failures cost a plan for a cluster: the formulas' numbers, and those of runs that are
 * played.
 */
#include "train/plan/cluster_failures.h"

#include <math.h>

static sli_failing_run make_run(const sli_elastic_run *run, int nodes, double work_s,
                                const sli_failures *failures)
{
    const sli_cluster *cluster = run->cluster;
    return (sli_failing_run){.nodes = nodes,
                             .spares =
                                 sli_devices_count_nodes(run->devices, run->devices->count) - nodes,
                             .mtbf_s = cluster->mtbf_s,
                             .save_s = failures->save_s,
                             .interval_s = failures->interval_s,
                             .restart_s = cluster->restart_s,
                             .repair_s = cluster->repair_s,
                             .work_s = work_s,
                             .speed = sli_elastic_run_speed,
                             .context = (void *)run};
}

sl_status sli_plan_failures(const sli_elastic_run *run, int nodes, double saved_bytes,
                            double work_s, uint64_t seed, sl_failure_plan *out)
{
    const sli_failures failures = sli_cluster_failures(run->cluster, nodes, saved_bytes);
    *out = (sl_failure_plan){.mtbf_s = failures.mtbf_s,
                             .save_s = failures.save_s,
                             .interval_s = failures.interval_s,
                             .young_s = failures.young_s,
                             .played_s = failures.interval_s,
                             .formula_useful = failures.useful,
                             .useful = 1,
                             .fewer_speed = 1,
                             .run_s = work_s,
                             .low_s = work_s,
                             .high_s = work_s};
    if (isinf(failures.mtbf_s))
        return SL_OK;
    const sli_failing_run played = make_run(run, nodes, work_s, &failures);
    sli_failure_forecast forecast;
    SL_TRY(sli_failing_run_forecast(&played, seed, &forecast));
    out->useful = forecast.useful;
    out->fewer_speed = forecast.fewer_speed;
    out->run_s = forecast.seconds;
    out->low_s = forecast.low;
    out->high_s = forecast.high;
    out->runs = forecast.runs;
    return sli_failing_run_find_interval(&played, seed, &forecast, &out->played_s);
}
