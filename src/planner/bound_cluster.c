/* What no table of a layout on a cluster can be below, without the table.
 *
 * The bound of a rank is what no order of its actions can avoid: the first forward comes to it
 * through the stages before its first one, then it has all its own work, and the last gradient goes
 * back through those stages. Weights' gradients can be computed meanwhile, where a schedule has
 * them apart. */
#include "planner/search_cluster.h"

#include "core/error.h"

#include <math.h>
#include <stdlib.h>

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
    size->cuts = calloc(count, sizeof *size->cuts);
    if (!size->modules || !size->costs || !size->forward || !size->backward || !size->input ||
        !size->cuts)
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
        size->input[i + 1] = size->input[i] + (goes_back ? module->backward_input : 0);
    }
    return SL_OK;
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
        *cut = calloc((size_t)stages, sizeof **cut);
        if (!*cut)
            return sli_no_memory(NULL, "a cut into %d stages", stages);
        sli_cut_evenly(costs, search->modules, stages, *cut);
    }
    *balance = *cut;
    return SL_OK;
}

/* ---- Schedules --------------------------------------------------------------------------------
 */

sl_status sli_schedule_facts_find(const char *name, sli_schedule_facts *out)
{
    const sl_schedule_options options = {.ranks = 2, .micros = 4};
    sl_schedule *table;
    SL_TRY(sl_schedule_write(name, &options, &table));
    const sl_action *row;
    int count = sl_schedule_actions(table, 0, &row), stages = sl_schedule_stages(table);
    *out = (sli_schedule_facts){.is_v = stages == 4 && sl_schedule_placement(table)[2] == 1};
    for (int i = 0; i < count; i++)
        out->halves = out->halves || row[i].kind == SL_ACTION_BACKWARD_WEIGHT;
    sl_schedule_destroy(&table);
    return SL_OK;
}

static const sli_schedule_facts *facts_of(const sli_cluster_searcher *search, const char *name)
{
    int i = 0;
    while (search->job->space.schedules[i] != name)
        i++;
    return &search->facts[i];
}

/* A schedule's number where there is one rank, which has one stage. */
int sli_stages_of_rank(const sli_candidate *candidate)
{
    return candidate->pipeline_ranks > 1 ? candidate->virtual_stages : 1;
}

/* ---- Bounds ------------------------------------------------------------------------------- */

/* Sums of a rank's stages. */
typedef struct rank_work {
    double forward, backward, input, again; /* `again`: what a recomputation runs */
    double bytes;                           /* of gradients */
} rank_work;

static rank_work sum_rank(const sli_cluster_searcher *search, const sli_micro_size *size,
                          const int *starts, const sli_candidate *candidate, int rank)
{
    rank_work work = {0};
    int ranks = candidate->pipeline_ranks, each = sli_stages_of_rank(candidate),
        stages = ranks * each;
    bool is_v = facts_of(search, candidate->schedule)->is_v;
    for (int k = 0; k < each; k++) {
        int stage = is_v && k % 2 == 1 ? (k + 1) * ranks - 1 - rank : k * ranks + rank;
        int first = starts[stage], last = starts[stage + 1];
        double forward = size->forward[last] - size->forward[first];
        work.forward += forward;
        work.backward += size->backward[last] - size->backward[first];
        work.input += size->input[last] - size->input[first];
        work.bytes += search->gradient_bytes[last] - search->gradient_bytes[first];
        if (stage + 1 < stages && last > search->frozen)
            work.again += forward;
    }
    return work;
}

/* When the rank's table ends at least, and when its gradients are ready at least, but for the last
 * backward. */
typedef struct rank_bound {
    double table, ready;
} rank_bound;

static rank_bound bound_rank(const sli_cluster_searcher *search, const sli_micro_size *size,
                             const sli_candidate *candidate, const rank_work *work, int start)
{
    double micros = candidate->chunks, before = size->forward[start];
    double again = candidate->recompute == SL_RECOMPUTE_NEVER    ? 0
                   : candidate->recompute == SL_RECOMPUTE_ALWAYS ? micros
                                                                 : micros - 1;
    double all = micros * (work->forward + work->backward) + again * work->again;
    double table = all + size->backward[start];
    bool has_one_stage = sli_stages_of_rank(candidate) == 1;
    if (facts_of(search, candidate->schedule)->halves)
        table = fmax(all, micros * (work->forward + work->input) + size->input[start]);
    return (rank_bound){before + table, has_one_stage ? before + all - work->backward : 0};
}

double sli_cluster_search_jitter(sli_cluster_searcher *search, int ranks)
{
    if (ranks != search->jitter_ranks) {
        search->jitter = sli_cluster_jitter(search->devices.cluster, ranks);
        search->jitter_ranks = ranks;
    }
    return search->jitter;
}

const sli_grid_exchange *sli_cluster_search_exchange(sli_cluster_searcher *search,
                                                     const sli_candidate *candidate)
{
    const sli_device_grid grid = {candidate->replicas, candidate->pipeline_ranks,
                                  candidate->near_replicas};
    sli_grid_exchange *exchange = &search->exchanges[grid.near_replicas];
    if (grid.replicas == exchange->grid.replicas &&
        grid.pipeline_ranks == exchange->grid.pipeline_ranks)
        return exchange;
    exchange->grid = grid;
    sli_devices_exchange(&search->devices, &grid, &exchange->reduce, &exchange->gather);
    return exchange;
}

int sli_cluster_search_shards(const sli_cluster_searcher *search, const sli_candidate *candidate)
{
    return search->job->shards > 0 ? search->job->shards : candidate->replicas;
}

/* When the rank has updated its parameters at least. The last shard's table hides the exchange. */
static double bound_end(const sli_cluster_searcher *search, const sli_micro_size *size,
                        const sli_candidate *candidate, const rank_work *work,
                        const rank_bound *bound, const sli_grid_exchange *exchange)
{
    double table = bound->table * search->jitter, ready = bound->ready * search->jitter;
    int shards = sli_cluster_search_shards(search, candidate);
    double before = (shards - 1) / candidate->replicas * table;
    double reduce = candidate->replicas > 1 ? work->bytes * exchange->reduce.seconds_per_byte : 0,
           gather = candidate->zero ? work->bytes * exchange->gather.seconds_per_byte : 0,
           update = work->bytes * sli_cluster_time_update(size->kind, &search->job->optimizer) /
                    (candidate->zero ? candidate->replicas : 1);
    return before + (size->kind->is_cuda ? fmax(table, ready + reduce) : table + reduce) + gather +
           update;
}

static double bound_cut(sli_cluster_searcher *search, const sli_micro_size *size,
                        const sli_candidate *candidate, const int *balance)
{
    int starts[SLI_MAX_PLANNED_STAGES + 1] = {0};
    int stages = candidate->pipeline_ranks * sli_stages_of_rank(candidate);
    const sli_grid_exchange *exchange = sli_cluster_search_exchange(search, candidate);
    double seconds = 0;
    for (int s = 0; s < stages; s++)
        starts[s + 1] = starts[s] + balance[s];
    for (int rank = 0; rank < candidate->pipeline_ranks; rank++) {
        rank_work work = sum_rank(search, size, starts, candidate, rank);
        rank_bound bound = bound_rank(search, size, candidate, &work, starts[rank]);
        seconds = fmax(seconds, bound_end(search, size, candidate, &work, &bound, exchange));
    }
    return seconds;
}

/* The cut by bytes, which is there for what the other does not fit, may have a shorter exchange. */
sl_status sli_bound_layout(sli_cluster_searcher *search, const sli_candidate *candidate,
                           double *seconds)
{
    sli_micro_size *size;
    const int *balance = NULL;
    int stages = candidate->pipeline_ranks * sli_stages_of_rank(candidate);
    SL_TRY(sli_cluster_search_size(search, candidate, &size));
    (void)sli_cluster_search_jitter(search, candidate->replicas * candidate->pipeline_ranks);
    SL_TRY(sli_cluster_search_cut(search, size->cuts, size->costs, stages, &balance));
    *seconds = bound_cut(search, size, candidate, balance);
    if (stages == 1)
        return SL_OK;
    SL_TRY(
        sli_cluster_search_cut(search, search->byte_cuts, search->module_bytes, stages, &balance));
    *seconds = fmin(*seconds, bound_cut(search, size, candidate, balance));
    return SL_OK;
}
