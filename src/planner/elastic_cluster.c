/* How fast a run on a cluster goes on where some of its nodes are missing. */
#include "planner/failures.h"

/* Devices of the first nodes. */
static int count_devices(const sli_devices *devices, int nodes)
{
    int count = 0;
    for (; count < devices->count; count++) {
        nodes -= devices->units[SLI_LEVEL_NODE][count] == count;
        if (nodes < 0)
            break;
    }
    return count;
}

/* The layout's job where so many replicas train its shards in turn. */
static sli_cluster_job narrow_job(const sli_elastic_run *run, int replicas, int ranks)
{
    const sli_candidate *own = &run->found->candidate;
    sli_cluster_job job = *run->job;
    job.shards = own->replicas;
    job.shard_rows = job.space.rows / own->replicas;
    job.space.rows = 0;
    job.space.ranks = ranks;
    job.space.least_replicas = job.space.most_replicas = replicas;
    job.space.least_pipeline_ranks = own->pipeline_ranks;
    job.space.most_pipeline_ranks = sl_module_child_count(job.model);
    job.space.schedules = &own->schedule;
    job.space.virtual_stages = &own->virtual_stages;
    job.space.chunks = &own->chunks;
    job.space.recomputes = &own->recompute;
    job.space.schedule_count = job.space.virtual_count = job.space.chunk_count = 1;
    job.space.recompute_count = 1;
    job.space.zeros[0] = job.space.zeros[1] = own->zero;
    return job;
}

sl_status sli_elastic_run_speed(void *context, int nodes, double *out)
{
    const sli_elastic_run *run = context;
    const sli_candidate *own = &run->found->candidate;
    int devices = count_devices(run->devices, nodes), before = 0;
    *out = 0;
    for (int in_turn = 1; in_turn <= own->replicas; in_turn++) {
        int replicas = (own->replicas + in_turn - 1) / in_turn;
        sli_found_layout best;
        sli_search results = {.wanted = 1, .holder = "device", .found = &best};
        sli_cluster_search counts;
        if (replicas == before || (int64_t)replicas * own->pipeline_ranks > devices)
            continue;
        before = replicas;
        const sli_cluster_job job = narrow_job(run, replicas, devices);
        SL_TRY(sli_search_cluster(&job, run->cluster, &results, &counts));
        if (results.count == 0)
            continue;
        *out = run->found->costs.seconds / best.costs.seconds;
        return SL_OK;
    }
    return SL_OK;
}
