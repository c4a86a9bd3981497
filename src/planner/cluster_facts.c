/* What a search on a cluster finds out once for many layouts: times of micro-batches, cuts, what
 * schedules take, and the costs of grids of devices. */
#include "planner/search_cluster.h"

#include "core/error.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_GRIDS = 1 << 20 };

/* ---- Micro-batches ----------------------------------------------------------------------------
 */

void sli_free_cuts(int **cuts, int modules)
{
    for (int i = 0; cuts && i <= modules; i++)
        free(cuts[i]);
    free(cuts);
}

void sli_micro_size_clear(sli_micro_size *size, int modules)
{
    sli_free_cuts(size->cuts, modules);
    free(size->modules);
    free(size->costs);
    free(size->forward);
    free(size->backward);
    free(size->input);
    free(size->saved);
    free(size->passed);
}

/* What passes keep of a micro-batch. */
static sl_status count_saved(const sli_cluster_searcher *search, sli_micro_size *size)
{
    const sli_cluster_job *job = search->job;
    const sl_device_plan device = {.name = "cuda:0"};
    const sli_layout layout = {.model = job->model,
                               .precision = job->precision,
                               .row_tokens = job->row_tokens,
                               .micro_rows = size->rows,
                               .devices = &device};
    int64_t *saved = calloc(2 * (size_t)search->modules, sizeof *saved);
    if (!saved)
        return sli_no_memory(NULL, "the passes of %d modules", search->modules);
    int64_t *passed = saved + search->modules;
    sl_status status = sli_layout_count_saved(&layout, saved, passed);
    for (int i = 0; i < search->modules && status == SL_OK; i++) {
        size->saved[i + 1] = size->saved[i] + (double)saved[i];
        size->passed[i + 1] = (double)passed[i];
    }
    free(saved);
    return status;
}

static sl_status time_size(const sli_cluster_searcher *search, sli_micro_size *size)
{
    const sli_cluster_job *job = search->job;
    size_t count = (size_t)search->modules + 1;
    size->modules = calloc(count, sizeof *size->modules);
    size->costs = calloc(count, sizeof *size->costs);
    size->forward = calloc(count, sizeof *size->forward);
    size->backward = calloc(count, sizeof *size->backward);
    size->input = calloc(count, sizeof *size->input);
    size->saved = calloc(count, sizeof *size->saved);
    size->passed = calloc(count, sizeof *size->passed);
    size->cuts = calloc(count, sizeof *size->cuts);
    if (!size->modules || !size->costs || !size->forward || !size->backward || !size->input ||
        !size->saved || !size->passed || !size->cuts)
        return sli_no_memory(NULL, "the times of %d modules", search->modules);
    SL_TRY(sli_cluster_time_modules(size->kind, job->model, job->precision, size->rows,
                                    job->row_tokens, size->modules));
    for (int i = 0; i < search->modules; i++) {
        const sl_module_profile *module = &size->modules[i];
        double halves = module->backward_input + module->backward_weight;
        bool goes_back = i >= search->frozen;
        double backward = goes_back ? fmin(module->backward, halves) : 0;
        size->costs[i] = module->forward + backward;
        size->forward[i + 1] = size->forward[i] + module->forward;
        size->backward[i + 1] = size->backward[i] + backward;
        size->input[i + 1] = size->input[i] + fmin(module->backward_input, backward);
    }
    return count_saved(search, size);
}

sl_status sli_cluster_search_size(sli_cluster_searcher *search, const sli_candidate *candidate,
                                  sli_micro_size **out)
{
    double memory;
    int ranks = candidate->replicas * candidate->pipeline_ranks;
    const sli_cluster_job *job = search->job;
    int64_t shard_rows = job->shards > 0 ? job->shard_rows : job->space.rows / candidate->replicas,
            rows = shard_rows / candidate->chunks;
    const sli_node_kind *kind =
        sli_devices_slowest(&search->devices, ranks, job->precision, &memory);
    for (int i = 0; i < search->size_count; i++)
        if (search->sizes[i].rows == rows && search->sizes[i].kind == kind) {
            *out = &search->sizes[i];
            return SL_OK;
        }
    if (search->size_count == SLI_MOST_MICRO_SIZES)
        return sl_error(SL_ERR_UNSUPPORTED, "micro-batches of more than %d sizes",
                        SLI_MOST_MICRO_SIZES);
    *out = &search->sizes[search->size_count++];
    **out = (sli_micro_size){.rows = rows, .kind = kind};
    return time_size(search, *out);
}

sl_status sli_cluster_search_cut(const sli_cluster_searcher *search, int **cuts,
                                 const double *costs, int stages, const int **balance)
{
    int **cut = &cuts[stages];
    if (!*cut) {
        *cut = calloc(2 * (size_t)stages + 1, sizeof **cut);
        if (!*cut)
            return sli_no_memory(NULL, "a cut into %d stages", stages);
        sli_cut_evenly(costs, search->modules, stages, *cut);
        for (int s = 0, *starts = *cut + stages; s < stages; s++)
            starts[s + 1] = starts[s] + (*cut)[s];
    }
    *balance = *cut;
    return SL_OK;
}

/* ---- Schedules --------------------------------------------------------------------------------
 */

sl_status sli_schedule_facts_find(const char *name, const sli_search_space *space,
                                  sli_schedule_facts *out)
{
    sl_schedule_options options = {.ranks = 2, .micros = 4};
    sl_schedule *table;
    SL_TRY(sl_schedule_write(name, &options, &table));
    const sl_action *row;
    int count = sl_schedule_actions(table, 0, &row), stages = sl_schedule_stages(table);
    *out = (sli_schedule_facts){.is_v = stages == 4 && sl_schedule_placement(table)[2] == 1,
                                .takes = calloc((size_t)space->virtual_count, sizeof *out->takes)};
    for (int i = 0; i < count; i++)
        out->halves = out->halves || row[i].kind == SL_ACTION_BACKWARD_WEIGHT;
    sl_schedule_destroy(&table);
    for (int i = 0; i < space->virtual_count && out->takes; i++) {
        options.virtual_stages = space->virtual_stages[i];
        out->takes[i] = sl_schedule_write(name, &options, &table) == SL_OK;
        sl_schedule_destroy(&table);
    }
    return out->takes ? SL_OK : sli_no_memory(NULL, "what a schedule takes");
}

const sli_schedule_facts *sli_cluster_search_facts(const sli_cluster_searcher *search,
                                                   const char *name)
{
    int i = 0;
    while (search->job->space.schedules[i] != name)
        i++;
    return &search->facts[i];
}

int sli_stages_of_rank(const sli_candidate *candidate)
{
    return candidate->pipeline_ranks > 1 ? candidate->virtual_stages : 1;
}

/* ---- Grids -------------------------------------------------------------------------------- */

int sli_cluster_search_shards(const sli_cluster_searcher *search, const sli_candidate *candidate)
{
    return search->job->shards > 0 ? search->job->shards : candidate->replicas;
}

double sli_cluster_search_jitter(sli_cluster_searcher *search, int ranks)
{
    if (ranks != search->jitter_ranks) {
        search->jitter = sli_cluster_jitter(search->devices.cluster, ranks);
        search->jitter_ranks = ranks;
    }
    return search->jitter;
}

/* Candidates of one grid come one behind the other, those of its two placements in turn. */
sl_status sli_cluster_search_grid(sli_cluster_searcher *search, const sli_candidate *candidate,
                                  size_t *out)
{
    const sli_device_grid wanted = {candidate->replicas, candidate->pipeline_ranks,
                                    candidate->near_replicas};
    for (size_t i = search->grid_count; i-- > 0 && i + 2 >= search->grid_count;) {
        const sli_device_grid *grid = &search->grids[i].grid;
        *out = i;
        if (grid->replicas == wanted.replicas && grid->pipeline_ranks == wanted.pipeline_ranks &&
            grid->near_replicas == wanted.near_replicas)
            return SL_OK;
    }
    SL_TRY(sli_array_reserve(&search->grids, &search->grid_capacity, search->grid_count + 1,
                             sizeof *search->grids, MOST_GRIDS, "grids of devices"));
    *out = search->grid_count++;
    sli_grid_costs *costs = &search->grids[*out];
    *costs =
        (sli_grid_costs){.grid = wanted,
                         .jitter = sli_cluster_search_jitter(search, wanted.replicas *
                                                                         wanted.pipeline_ranks)};
    sli_devices_exchange(&search->devices, &wanted, &costs->reduce, &costs->gather);
    return SL_OK;
}
