/* What a search on a cluster finds out once for many layouts: times of micro-batches, cuts, what
 * schedules take, and the costs of grids of devices. */
#include "planner/search_cluster.h"

#include "core/error.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GRIDS = 1 << 20, MOST_MICRO_SIZES = 1 << 20 };

/* ---- Micro-batches ----------------------------------------------------------------------------
 */

void sli_cuts_free(sli_cuts cuts[2], int modules)
{
    for (int split = 0; split < 2; split++) {
        for (int i = 0; cuts[split].cuts && i <= modules; i++)
            free(cuts[split].cuts[i]);
        free(cuts[split].cuts);
        free(cuts[split].costs);
    }
}

sl_status sli_cuts_allocate(sli_cuts cuts[2], int modules)
{
    size_t count = (size_t)modules + 1;
    for (int split = 0; split < 2; split++) {
        cuts[split].costs = calloc(count, sizeof *cuts[split].costs);
        cuts[split].cuts = calloc(count, sizeof *cuts[split].cuts);
        if (!cuts[split].costs || !cuts[split].cuts)
            return sli_no_memory(NULL, "the cuts of %d modules", modules);
    }
    return SL_OK;
}

void sli_micro_size_destroy(sli_micro_size *size, int modules)
{
    if (!size)
        return;
    sli_cuts_free(size->by_time, modules);
    free(size->modules);
    free(size->forward);
    free(size->backward);
    free(size->input);
    free(size->saved);
    free(size->passed);
    free(size);
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

/* Of each module the longest time on any of the kinds. */
static sl_status time_kinds(const sli_cluster_searcher *search, sli_micro_size *size)
{
    const sli_cluster_job *job = search->job;
    sl_module_profile *own = calloc((size_t)search->modules, sizeof *own);
    if (!own)
        return sli_no_memory(NULL, "the times of %d modules", search->modules);
    sl_status status = SL_OK;
    for (int k = 0; k < size->kind_count && status == SL_OK; k++) {
        status = sli_cluster_time_modules(search->devices.kinds[k], job->model, job->precision,
                                          size->rows, job->row_tokens, own);
        for (int i = 0; i < search->modules; i++) {
            sl_module_profile *slowest = &size->modules[i];
            if (own[i].backward > slowest->backward)
                *slowest = own[i];
        }
    }
    free(own);
    return status;
}

static sl_status time_size(const sli_cluster_searcher *search, sli_micro_size *size)
{
    size_t count = (size_t)search->modules + 1;
    size->modules = calloc(count, sizeof *size->modules);
    size->forward = calloc(count, sizeof *size->forward);
    size->backward = calloc(count, sizeof *size->backward);
    size->input = calloc(count, sizeof *size->input);
    size->saved = calloc(count, sizeof *size->saved);
    size->passed = calloc(count, sizeof *size->passed);
    if (!size->modules || !size->forward || !size->backward || !size->input || !size->saved ||
        !size->passed)
        return sli_no_memory(NULL, "the times of %d modules", search->modules);
    SL_TRY(sli_cuts_allocate(size->by_time, search->modules));
    SL_TRY(time_kinds(search, size));
    for (int i = 0; i < search->modules; i++) {
        const sl_module_profile *module = &size->modules[i];
        double halves = module->backward_input + module->backward_weight;
        bool goes_back = i >= search->frozen;
        double backward = goes_back ? fmin(module->backward, halves) : 0;
        size->by_time[0].costs[i] = module->forward + backward;
        size->by_time[1].costs[i] = i + 1 < search->modules ? module->forward + backward : 0;
        size->forward[i + 1] = size->forward[i] + module->forward;
        size->backward[i + 1] = size->backward[i] + backward;
        size->input[i + 1] = size->input[i] + fmin(module->backward_input, backward);
    }
    return count_saved(search, size);
}

sli_used_devices sli_cluster_search_used(const sli_cluster_searcher *search,
                                         const sli_candidate *candidate)
{
    return sli_devices_used(&search->devices, candidate->replicas * candidate->pipeline_ranks);
}

/* The number of the first size that is not before this one. */
static size_t find_size(const sli_cluster_searcher *search, int64_t rows, int kind_count)
{
    size_t first = 0, end = search->size_count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        const sli_micro_size *size = search->sizes[middle];
        if (size->rows < rows || (size->rows == rows && size->kind_count < kind_count))
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

sl_status sli_cluster_search_size(sli_cluster_searcher *search, const sli_candidate *candidate,
                                  sli_micro_size **out)
{
    const sli_cluster_job *job = search->job;
    int64_t shard_rows = job->shards > 0 ? job->shard_rows : job->space.rows / candidate->replicas,
            rows = shard_rows / candidate->chunks;
    int kind_count = sli_cluster_search_used(search, candidate).kind_count;
    size_t place = find_size(search, rows, kind_count);
    if (place < search->size_count && search->sizes[place]->rows == rows &&
        search->sizes[place]->kind_count == kind_count) {
        *out = search->sizes[place];
        return SL_OK;
    }
    SL_TRY(sli_array_reserve(&search->sizes, &search->size_capacity, search->size_count + 1,
                             sizeof *search->sizes, MOST_MICRO_SIZES, "sizes of micro-batches"));
    sli_micro_size *size = calloc(1, sizeof *size);
    if (!size)
        return sli_no_memory(NULL, "the size of a micro-batch");
    memmove(&search->sizes[place + 1], &search->sizes[place],
            (search->size_count - place) * sizeof *search->sizes);
    search->size_count++;
    search->sizes[place] = *out = size;
    *size = (sli_micro_size){.rows = rows, .kind_count = kind_count};
    return time_size(search, size);
}

sl_status sli_cluster_search_cut(const sli_cluster_searcher *search, sli_cuts cuts[2], bool splits,
                                 int stages, const int **balance)
{
    int **cut = &cuts[splits].cuts[stages];
    if (!*cut) {
        *cut = calloc(2 * (size_t)stages + 1, sizeof **cut);
        if (!*cut)
            return sli_no_memory(NULL, "a cut into %d stages", stages);
        sli_cut_evenly(cuts[splits].costs, search->modules, stages, *cut);
        int *starts = *cut + stages;
        for (int s = 0; s < stages; s++)
            starts[s + 1] = starts[s] + (*cut)[s];
        starts[stages] -= splits;
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

static double find_jitter(sli_cluster_searcher *search, int ranks)
{
    if (ranks != search->jitter_ranks) {
        const sli_cluster *cluster = search->devices.cluster;
        int nodes = cluster->slow_nodes > 0 ? sli_devices_count_nodes(&search->devices, ranks) : 0;
        search->jitter = sli_cluster_jitter(cluster, ranks, nodes);
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
                         .jitter = find_jitter(search, wanted.replicas * wanted.pipeline_ranks)};
    sli_devices_exchange(&search->devices, &wanted, &costs->reduce, &costs->gather);
    if (search->job->comm_precision == SL_PRECISION_BF16)
        costs->reduce.seconds_per_byte /= 2;
    return SL_OK;
}
