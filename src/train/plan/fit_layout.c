/* Another layout of a run that has lost processes: of those that fit, the one whose step is planned
 * to be the shortest. It counts operations, and times nothing. */
#include "train/plan/plan.h"

#include "core/error.h"
#include "core/memory.h"

#include <stdlib.h>

/* Each module's operations for one micro-batch, as times. */
static sl_status count_operations(const sl_module *model, sl_shape shape, sl_module_profile *out)
{
    for (int i = 0; i < sl_module_child_count(model); i++) {
        const sl_module *module = sl_module_child(model, i);
        double forward = (double)sl_module_flops(module, &shape);
        sl_shape next;
        out[i] = (sl_module_profile){forward, 2 * forward, forward, forward, 0};
        SL_TRY(sl_module_output_shape(module, &shape, &next));
        shape = next;
    }
    return SL_OK;
}

/* The length of a shard's accumulation step, for modules that take so long on any rank. */
static sl_status simulate_shard(const sl_plan *plan, const sl_module *model,
                                const sl_module_profile *times, double *length)
{
    const sl_module_profile *of_ranks[SL_MAX_STAGES];
    int balance[SL_MAX_STAGES];
    for (int rank = 0; rank < SL_MAX_STAGES; rank++)
        of_ranks[rank] = times;
    const sl_partition_costs costs = {.modules = sl_module_child_count(model),
                                      .profiles = of_ranks,
                                      .table = plan->table};
    if (plan->options.balance_kind == SL_BALANCE_AUTO)
        return sl_partition_by_time(&costs, balance, length);
    for (int s = 0; s < plan->stages; s++)
        balance[s] = plan->stage[s].count;
    return sl_partition_simulate(&costs, balance, length);
}

/* The replica with the most shards trains one after the other. */
static sl_status plan_step(const sl_plan *plan, const sl_module *model, double *length)
{
    int replicas = plan->options.replicas;
    int shards = (plan->options.shards + replicas - 1) / replicas;
    sl_shape shape = sl_shape_2d(plan->micro_rows, plan->options.bptt);
    sl_module_profile *times = calloc((size_t)sl_module_child_count(model), sizeof *times);
    if (!times)
        return sli_no_memory(NULL, "the plan of a layout");
    sl_status status;
    SLI_TRY_OR_FAIL(count_operations(model, shape, times));
    SLI_TRY_OR_FAIL(simulate_shard(plan, model, times, length));
    *length *= shards;
fail:
    free(times);
    return status;
}

/* ---- The search --------------------------------------------------------------------------- */

typedef struct layout_search {
    sli_plan_inputs inputs; /* without processes */
    const sl_module *model;
    int processes, host_processes;
    uint64_t host_bytes;
    sli_findings best; /* of those found so far that fit; replicas == 0: none */
    double length;
    sli_findings smallest;  /* of those that only do not fit the memory */
    int64_t smallest_bytes; /* that a host needs for it; 0: there is none */
} layout_search;

/* Whether each host has the memory for its ranks, which are consecutive. */
static bool fits_hosts(layout_search *search, const sl_plan *plan, const sli_findings *trial)
{
    int64_t bytes = 0;
    if (search->host_bytes == 0 || plan->options.force)
        return true;
    for (int first = 0; first < plan->ranks; first += plan->ranks_here) {
        sl_host_plan host;
        int left = plan->ranks - first;
        sli_plan_host(plan, first, left < plan->ranks_here ? left : plan->ranks_here, &host);
        bytes = host.total_bytes > bytes ? host.total_bytes : bytes;
    }
    bool fits = (uint64_t)bytes <= search->host_bytes;
    if (!fits && (search->smallest_bytes == 0 || bytes < search->smallest_bytes)) {
        search->smallest = *trial;
        search->smallest_bytes = bytes;
    }
    return fits;
}

static sl_status try_layout(layout_search *search, const sli_findings *trial)
{
    int ranks = trial->replicas * trial->pipeline_ranks, host = search->host_processes;
    const sl_train_launch launch = {.ranks = ranks,
                                    .local_ranks = host > 0 && host < ranks ? host : ranks};
    sli_plan_inputs inputs = search->inputs;
    sl_plan *plan;
    double length = 0;
    inputs.launch = &launch;
    inputs.found = *trial;
    if (sli_plan_layout(&inputs, &plan) != SL_OK)
        return SL_OK; /* there are fewer layers, or a table, a list … of another size */
    sl_status status = sli_plan_cut(plan, search->model, NULL);
    bool fits = status == SL_OK && fits_hosts(search, plan, trial);
    if (fits)
        status = plan_step(plan, search->model, &length);
    sl_plan_destroy(&plan);
    if (status != SL_OK || !fits)
        return status;
    int most = search->best.replicas * search->best.pipeline_ranks;
    if (most == 0 || length < search->length || (length == search->length && ranks > most)) {
        search->length = length;
        search->best = *trial;
    }
    return SL_OK;
}

/* Tries all layouts of at most so many replicas, and, with a pipeline, any longer one. */
static sl_status try_layouts(layout_search *search, sli_findings asked)
{
    int pipeline_ranks = asked.pipeline_ranks, processes = search->processes;
    int least = pipeline_ranks < processes ? pipeline_ranks : processes,
        most = pipeline_ranks > 1 ? processes : 1;
    sli_findings trial = asked;
    for (trial.replicas = 1; trial.replicas <= asked.replicas; trial.replicas++)
        for (int count = least; count <= most && trial.replicas * count <= processes; count++) {
            trial.pipeline_ranks = count;
            SL_TRY(try_layout(search, &trial));
        }
    return SL_OK;
}

static sl_status refuse_all(const layout_search *search)
{
    const sli_findings *smallest = &search->smallest;
    char needed[SLI_BYTES_TEXT_SIZE], usable[SLI_BYTES_TEXT_SIZE];
    return sl_error(SL_ERR_MEMORY,
                    "no layout of at most %d process%s fits the memory: the smallest has %d "
                    "replica%s of %d pipeline rank%s and needs %s of a host that has %s",
                    search->processes, search->processes == 1 ? "" : "es", smallest->replicas,
                    smallest->replicas == 1 ? "" : "s", smallest->pipeline_ranks,
                    smallest->pipeline_ranks == 1 ? "" : "s",
                    sli_bytes_text(search->smallest_bytes, needed),
                    sli_bytes_text((int64_t)search->host_bytes, usable));
}

sl_status sli_plan_search(sli_plan_inputs *inputs, const sl_module *model, int host_processes,
                          uint64_t host_bytes)
{
    static const sl_train_launch threads;
    const sl_train_options *options = inputs->options;
    layout_search search = {.inputs = {options, &threads, inputs->found},
                            .model = model,
                            .processes = inputs->launch->ranks > 0 ? inputs->launch->ranks : 1,
                            .host_processes = host_processes,
                            .host_bytes = host_bytes};
    sl_plan *asked;
    sli_findings layout = inputs->found;
    SL_TRY(sli_plan_layout(&search.inputs, &asked));
    layout.replicas = asked->options.replicas;
    layout.pipeline_ranks = asked->options.pipeline_ranks;
    layout.shards = asked->options.shards;
    layout.chunks = asked->options.chunks;
    sl_plan_destroy(&asked);
    SL_TRY(try_layouts(&search, layout));
    layout.drops_balance = options->balance_kind == SL_BALANCE_EXPLICIT;
    layout.drops_placement = options->placement != NULL;
    if (search.best.replicas == 0 && (layout.drops_balance || layout.drops_placement))
        SL_TRY(try_layouts(&search, layout));
    if (search.best.replicas == 0 && search.smallest_bytes > 0)
        return refuse_all(&search);
    if (search.best.replicas > 0)
        inputs->found = search.best;
    return SL_OK;
}
