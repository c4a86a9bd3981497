/* Another layout of a run that has lost processes: of those that fit, the one whose step is planned
 * to be the shortest. The plan counts operations; it times nothing, so every process finds the same
 * layout by itself. */
#include "train/run.h"

#include "core/error.h"

#include <math.h>
#include <stdlib.h>

/* Each module's operations for one micro-batch, as times. */
static sl_status count_operations(const sl_module *model, sl_shape shape, sl_module_profile *out)
{
    for (int i = 0; i < sl_module_child_count(model); i++) {
        const sl_module *module = sl_module_child(model, i);
        double forward = (double)sl_module_flops(module, &shape);
        sl_shape next;
        out[i] = (sl_module_profile){forward, 2 * forward, forward, forward};
        SL_TRY(sl_module_output_shape(module, &shape, &next));
        shape = next;
    }
    return SL_OK;
}

/* The length of a shard's accumulation step, for modules that take so long on any rank. */
static sl_status simulate_shard(const sl_train_options *options, const sl_module *model,
                                const sl_module_profile *times, double *length)
{
    sl_schedule *table;
    const sl_module_profile *of_ranks[SL_MAX_STAGES];
    int balance[SL_MAX_STAGES], stages;
    sli_step_times simulated = {0};
    for (int rank = 0; rank < SL_MAX_STAGES; rank++)
        of_ranks[rank] = times;
    SL_TRY(sli_layout_table(options, sl_train_options_chunks(options), &table));
    const sl_partition_costs costs = {.modules = sl_module_child_count(model),
                                      .profiles = of_ranks,
                                      .table = table};
    sl_status status = sl_schedule_recompute(table, options->recompute);
    if (status == SL_OK && options->balance_kind == SL_BALANCE_AUTO)
        status = sl_partition_by_time(&costs, balance, length);
    else if (status == SL_OK &&
             (status = sli_layout_balance(options, model, balance, &stages)) == SL_OK)
        status = sli_partition_simulate(&costs, balance, &simulated);
    if (options->balance_kind != SL_BALANCE_AUTO)
        *length = simulated.parallel;
    sl_schedule_destroy(&table);
    return status;
}

/* The replica with the most shards trains one after the other. */
static sl_status plan_step(const sl_train_options *options, const sl_module *model, double *length)
{
    int replicas = options->replicas, micros = sli_layout_micros(options);
    int shards = (sli_layout_shards(options) + replicas - 1) / replicas;
    sl_shape shape = sl_shape_2d((options->batch_size + micros - 1) / micros, options->bptt);
    sl_module_profile *times = calloc((size_t)sl_module_child_count(model), sizeof *times);
    if (!times)
        return sl_error(SL_ERR_MEMORY, "no memory to plan a layout");
    sl_status status = count_operations(model, shape, times);
    if (status == SL_OK)
        status = simulate_shard(options, model, times, length);
    free(times);
    *length *= shards;
    return status;
}

sl_status sl_train_fit_layout(sl_train_options *options, const sl_module *model, int processes)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(model);
    sl_train_options asked = *options;
    asked.replicas = sl_train_options_replicas(options);
    asked.shards = sli_layout_shards(options);
    asked.chunks = sl_train_options_chunks(options);
    int ranks = sli_layout_pipeline_ranks(options);
    int least = ranks < processes ? ranks : processes, most = ranks > 1 ? processes : 1;
    int used = 0; /* ranks of the best one */
    double best = INFINITY;
    for (int replicas = 1; replicas <= asked.replicas; replicas++)
        for (int count = least; count <= most && replicas * count <= processes; count++) {
            sl_train_options trial = asked;
            double length = 0;
            trial.replicas = replicas;
            trial.pipeline_ranks = count;
            trial.ranks = trial.local_ranks = replicas * count;
            trial.zero &= replicas > 1;
            if (sli_layout_check(&trial) != SL_OK)
                continue; /* there are fewer layers, or a table, a list … of another size */
            SL_TRY(plan_step(&trial, model, &length));
            bool has_more = replicas * count > used;
            if (length < best || (length == best && has_more)) {
                best = length;
                used = replicas * count;
                options->replicas = replicas;
                options->pipeline_ranks = count;
                options->zero = trial.zero;
            }
        }
    return SL_OK;
}
