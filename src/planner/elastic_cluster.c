/* How fast a run on a cluster goes on where some of its nodes are missing. */
#include "planner/failures.h"

/* Pipeline ranks of a replica, as train/plan/search_job.c has them: at least as many as planned, or
 * all devices where these are fewer. */
static int count_least_ranks(const sli_elastic_run *run, int devices)
{
    int planned = run->found->candidate.pipeline_ranks;
    return planned < devices ? planned : devices;
}

/* A run without a pipeline gets none. */
static int count_most_ranks(const sli_elastic_run *run, int devices)
{
    int modules = sl_module_child_count(run->job->model);
    return run->found->candidate.pipeline_ranks == 1 ? 1 : devices < modules ? devices : modules;
}

/* The layout's job where so many replicas train its shards in turn. */
static sli_cluster_job narrow_job(const sli_elastic_run *run, int replicas, int ranks)
{
    const sli_candidate *planned = &run->found->candidate;
    sli_cluster_job job = *run->job;
    job.shards = planned->replicas;
    job.shard_rows = job.space.rows / planned->replicas;
    job.space.rows = 0;
    job.space.ranks = ranks;
    job.space.least_replicas = job.space.most_replicas = replicas;
    job.space.least_pipeline_ranks = count_least_ranks(run, ranks);
    job.space.most_pipeline_ranks = count_most_ranks(run, ranks / replicas);
    job.space.schedules = &planned->schedule;
    job.space.virtual_stages = &planned->virtual_stages;
    job.space.chunks = &planned->chunks;
    job.space.recomputes = &planned->recompute;
    job.space.schedule_count = job.space.virtual_count = job.space.chunk_count = 1;
    job.space.recompute_count = 1;
    job.space.zeros[0] = job.space.zeros[1] = planned->zero;
    job.space.splits_vocabulary[0] = job.space.splits_vocabulary[1] = planned->splits_vocabulary;
    return job;
}

/* What a step takes at least where a replica trains so many shards in turn: their passes, divided
 * evenly among as many pipeline ranks as there can be. 0: other kinds of nodes may be faster. */
static double bound_seconds(const sli_elastic_run *run, int in_turn, int most_ranks)
{
    const sli_candidate *planned = &run->found->candidate;
    const sl_step_costs *costs = &run->found->costs;
    int ranks = planned->replicas * planned->pipeline_ranks;
    double passes =
        costs->pipeline * (1 - costs->bubble) * planned->pipeline_ranks /
        sli_cluster_jitter(run->cluster, ranks, sli_devices_count_nodes(run->devices, ranks));
    return run->cluster->kind_count == 1 ? in_turn * passes / most_ranks * (1 - 1e-9) : 0;
}

static sl_status find_layout(const sli_elastic_run *run, int devices, sli_search *results)
{
    const sli_candidate *planned = &run->found->candidate;
    sli_cluster_search counts;
    for (int in_turn = 1, before = 0; in_turn <= planned->replicas; in_turn++) {
        int replicas = (planned->replicas + in_turn - 1) / in_turn;
        if (replicas == before || (int64_t)replicas * count_least_ranks(run, devices) > devices)
            continue;
        before = replicas;
        int most_ranks = count_most_ranks(run, devices / replicas);
        if (results->count > 0 &&
            bound_seconds(run, in_turn, most_ranks) > results->found[0].costs.seconds)
            continue;
        const sli_cluster_job job = narrow_job(run, replicas, devices);
        SL_TRY(sli_search_cluster(&job, run->cluster, results, &counts));
    }
    return SL_OK;
}

sl_status sli_elastic_run_speed(void *context, int nodes, sli_fewer_speed *out)
{
    const sli_elastic_run *run = context;
    sli_found_layout best = {0};
    sli_search results = {.wanted = 1,
                          .holder = "device",
                          .prefers_fewer_ranks = true,
                          .found = &best};
    *out = (sli_fewer_speed){0, 0};
    SL_TRY(find_layout(run, sli_devices_of_nodes(run->devices, nodes), &results));
    if (results.count > 0) {
        int used = best.candidate.replicas * best.candidate.pipeline_ranks;
        *out = (sli_fewer_speed){run->found->costs.seconds / best.costs.seconds,
                                 sli_devices_count_nodes(run->devices, used)};
    }
    return SL_OK;
}
