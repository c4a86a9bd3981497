/* Another layout of a run that has lost processes: of those that fit, the one whose step is planned
 * to be the shortest. The plan counts operations; it times nothing. */
#include "core/error.h"
#include "core/memory.h"
#include "train/plan/layout.h"

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
static sl_status simulate_shard(const sl_train_options *options, const sl_module *model,
                                const sl_module_profile *times, double *length)
{
    sl_schedule *table;
    const sl_module_profile *of_ranks[SL_MAX_STAGES];
    int balance[SL_MAX_STAGES], stages;
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
        status = sl_partition_simulate(&costs, balance, length);
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

/* ---- The search --------------------------------------------------------------------------- */

typedef struct layout_search {
    const sl_module *model;
    int processes;
    const sl_train_hosts *hosts;
    sl_train_options best; /* of those found so far that fit; ranks == 0: none */
    double length;
    sl_train_options smallest; /* of those that only do not fit the memory */
    int64_t smallest_bytes;    /* that a host needs for it; 0: there is none */
} layout_search;

/* The most that a host needs: each has consecutive ranks. */
static sl_status plan_hosts(const sl_train_options *trial, const sl_module *model, int64_t *bytes)
{
    *bytes = 0;
    for (int first = 0; first < trial->ranks; first += trial->local_ranks) {
        sl_train_options of_host = *trial;
        sl_host_plan plan;
        if (first + of_host.local_ranks > trial->ranks)
            of_host.local_ranks = trial->ranks - first;
        SL_TRY(sl_plan_host(&of_host, model, first, &plan));
        *bytes = plan.total_bytes > *bytes ? plan.total_bytes : *bytes;
    }
    return SL_OK;
}

static sl_status check_memory(layout_search *search, const sl_train_options *trial, bool *fits)
{
    int64_t bytes;
    *fits = true;
    if (search->hosts->bytes == 0 || trial->force)
        return SL_OK;
    SL_TRY(plan_hosts(trial, search->model, &bytes));
    *fits = (uint64_t)bytes <= search->hosts->bytes;
    if (!*fits && (search->smallest_bytes == 0 || bytes < search->smallest_bytes)) {
        search->smallest = *trial;
        search->smallest_bytes = bytes;
    }
    return SL_OK;
}

static sl_status try_layout(layout_search *search, const sl_train_options *trial)
{
    bool fits;
    double length = 0;
    if (sli_layout_check(trial) != SL_OK)
        return SL_OK; /* there are fewer layers, or a table, a list … of another size */
    SL_TRY(check_memory(search, trial, &fits));
    if (!fits)
        return SL_OK;
    SL_TRY(plan_step(trial, search->model, &length));
    bool has_more = trial->ranks > search->best.ranks;
    if (search->best.ranks == 0 || length < search->length ||
        (length == search->length && has_more)) {
        search->length = length;
        search->best = *trial;
    }
    return SL_OK;
}

/* Tries all layouts of at most so many replicas, and, with a pipeline, any longer one. */
static sl_status try_layouts(layout_search *search, const sl_train_options *asked)
{
    int pipeline_ranks = sli_layout_pipeline_ranks(asked), processes = search->processes;
    int least = pipeline_ranks < processes ? pipeline_ranks : processes,
        most = pipeline_ranks > 1 ? processes : 1;
    int of_host = search->hosts->processes;
    for (int replicas = 1; replicas <= asked->replicas; replicas++)
        for (int count = least; count <= most && replicas * count <= processes; count++) {
            sl_train_options trial = *asked;
            trial.replicas = replicas;
            trial.pipeline_ranks = count;
            trial.ranks = replicas * count;
            trial.local_ranks = of_host > 0 && of_host < trial.ranks ? of_host : trial.ranks;
            trial.zero &= replicas > 1;
            SL_TRY(try_layout(search, &trial));
        }
    return SL_OK;
}

static sl_status refuse_all(const layout_search *search)
{
    const sl_train_options *smallest = &search->smallest;
    char needed[SLI_BYTES_TEXT_SIZE], usable[SLI_BYTES_TEXT_SIZE];
    return sl_error(SL_ERR_MEMORY,
                    "no layout of at most %d process%s fits the memory: the smallest has %d "
                    "replica%s of %d pipeline rank%s and needs %s of a host that has %s",
                    search->processes, search->processes == 1 ? "" : "es", smallest->replicas,
                    smallest->replicas == 1 ? "" : "s", smallest->pipeline_ranks,
                    smallest->pipeline_ranks == 1 ? "" : "s",
                    sli_bytes_text(search->smallest_bytes, needed),
                    sli_bytes_text((int64_t)search->hosts->bytes, usable));
}

sl_status sl_train_fit_layout(sl_train_options *options, const sl_module *model, int processes,
                              const sl_train_hosts *hosts)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(model);
    static const sl_train_hosts unknown;
    layout_search search = {.model = model,
                            .processes = processes,
                            .hosts = hosts ? hosts : &unknown,
                            .best = {.ranks = 0}};
    sl_train_options asked = *options;
    bool is_fixed = options->balance_kind == SL_BALANCE_EXPLICIT || options->placement;
    asked.pipeline_ranks = sli_layout_pipeline_ranks(options);
    asked.replicas = sl_train_options_replicas(options);
    asked.shards = sli_layout_shards(options);
    asked.chunks = sl_train_options_chunks(options);
    SL_TRY(try_layouts(&search, &asked));
    if (search.best.ranks == 0 && is_fixed) {
        asked.placement = NULL;
        if (asked.balance_kind == SL_BALANCE_EXPLICIT)
            asked.balance_kind = SL_BALANCE_AUTO;
        SL_TRY(try_layouts(&search, &asked));
    }
    if (search.best.ranks == 0)
        return search.smallest_bytes > 0 ? refuse_all(&search) : SL_OK;
    options->replicas = search.best.replicas;
    options->pipeline_ranks = search.best.pipeline_ranks;
    options->zero = search.best.zero;
    options->balance_kind = search.best.balance_kind;
    options->placement = search.best.placement;
    return SL_OK;
}
