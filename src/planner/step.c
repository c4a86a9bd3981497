/* How long a step takes: the simulated tables of the micro-batches of a replica's shards, then what
 * replicas exchange, then the update. */
#include "planner/layout.h"

#include "nn/module.h"

/* The buckets of a parameter set (sl_parameter_set_options). */
static const double first_bucket_bytes = 1 << 20, bucket_bytes = 25 << 20;

/* One bucket after the other. */
static double exchange_seconds(const sl_link_cost *link, double bytes)
{
    double buckets = 0, rest = bytes;
    for (double room = first_bucket_bytes; rest > 0; room = bucket_bytes, buckets++)
        rest -= room;
    return buckets * link->seconds + bytes * link->seconds_per_byte;
}

/* Bytes of the gradients of modules first ... first + count - 1. */
static double gradient_bytes(const sl_module *model, int first, int count)
{
    int64_t elements = 0;
    for (int i = first; i < first + count; i++)
        elements += sli_module_elements(sl_module_child(model, i), SL_PARAMETER_TRAINED);
    return (double)elements * (double)sizeof(float);
}

/* Pipeline ranks exchange and update at the same time, each for its stages; those on the same cores
 * in turn. */
static void time_update(const sli_layout *layout, const sli_layout_speed *speed, const int *balance,
                        sl_step_costs *out)
{
    const int *placement = sl_schedule_placement(layout->table);
    double exchange[SL_MAX_STAGES] = {0}, update[SL_MAX_STAGES] = {0};
    int owners = layout->zero ? layout->replicas : 1;
    for (int s = 0, first = 0; s < sl_schedule_stages(layout->table); first += balance[s++]) {
        double bytes = gradient_bytes(layout->model, first, balance[s]);
        int rank = speed->cores ? speed->cores[placement[s]] : placement[s];
        if (layout->replicas > 1)
            exchange[rank] += exchange_seconds(&speed->reduce, bytes);
        if (layout->zero)
            exchange[rank] += exchange_seconds(&speed->gather, bytes);
        update[rank] += bytes * speed->update_per_byte / owners;
    }
    for (int rank = 0; rank < sl_schedule_ranks(layout->table); rank++) {
        out->exchange = exchange[rank] > out->exchange ? exchange[rank] : out->exchange;
        out->update = update[rank] > out->update ? update[rank] : out->update;
    }
}

sl_partition_costs sli_layout_partition_costs(const sli_layout *layout,
                                              const sli_layout_speed *speed)
{
    return (sl_partition_costs){.modules = sl_module_child_count(layout->model),
                                .profiles = speed->profiles,
                                .table = layout->table,
                                .model = layout->model,
                                .head_blocks = layout->head_blocks,
                                .links = speed->links,
                                .cores = speed->cores};
}

/* What the ranks do in the pipeline's time. */
static void divide_pipeline(const sl_schedule *table, const sl_simulation *simulation,
                            sl_step_costs *out)
{
    double again = 0, least_idle = simulation->makespan;
    int ranks = sl_schedule_ranks(table);
    if (simulation->makespan <= 0)
        return;
    for (int i = 0; i < simulation->entry_count; i++)
        if (simulation->entries[i].action.kind == SL_ACTION_RECOMPUTE)
            again += simulation->entries[i].end - simulation->entries[i].start;
    for (int rank = 0; rank < ranks; rank++)
        least_idle = simulation->idle[rank] < least_idle ? simulation->idle[rank] : least_idle;
    out->recompute = again / ranks / simulation->makespan;
    out->imbalance = simulation->bubble - least_idle / simulation->makespan;
}

sl_status sli_layout_time_step(const sli_layout *layout, const sli_layout_speed *speed,
                               const int *balance, sl_step_costs *out)
{
    const sl_partition_costs costs = sli_layout_partition_costs(layout, speed);
    /* The replica with the most shards trains one after the other. */
    int shards = (layout->shards + layout->replicas - 1) / layout->replicas;
    sl_simulation simulation;
    SL_TRY(sl_partition_simulate(&costs, balance, &simulation));
    *out = (sl_step_costs){.pipeline = shards * layout->accumulate * simulation.makespan,
                           .bubble = simulation.bubble};
    divide_pipeline(layout->table, &simulation, out);
    sl_simulation_clear(&simulation);
    time_update(layout, speed, balance, out);
    out->seconds = out->pipeline + out->exchange + out->update;
    return SL_OK;
}
