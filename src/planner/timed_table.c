/* The table of a layout on a cluster, with the times of its ranks and links. */
#include "planner/search_cluster.h"

#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>

const char *sli_candidate_schedule(const sli_candidate *candidate)
{
    bool is_other =
        candidate->pipeline_ranks == 1 && sl_schedule_virtual_stages(candidate->schedule) > 1;
    return is_other ? sl_schedule_names[0] : candidate->schedule;
}

/* The table as a run writes it; *out is NULL where the schedule does not take these numbers. */
static sl_status write_table(const sli_candidate *candidate, sl_schedule **out)
{
    const sl_schedule_options options = {.ranks = candidate->pipeline_ranks,
                                         .virtual_stages = candidate->pipeline_ranks > 1
                                                               ? candidate->virtual_stages
                                                               : 0,
                                         .micros = candidate->chunks};
    sl_status status;
    SL_TRY_OR_FAIL(sl_schedule_write(sli_candidate_schedule(candidate), &options, out));
    status = sl_schedule_recompute(*out, candidate->recompute);
fail:
    return status == SL_ERR_INVALID || status == SL_ERR_UNSUPPORTED ? SL_OK : status;
}

static void fill_link(const sli_cluster_searcher *search, const sli_device_grid *grid, int from,
                      int to, sl_link_cost *links)
{
    sl_link_cost *link = &links[from * grid->pipeline_ranks + to];
    if (from != to && link->seconds_per_byte <= 0)
        *link = sli_devices_rank_link(&search->devices, grid, from, to);
}

/* The links between the ranks of neighbouring stages, and with a split head between the last
 * stage's and all others. */
static void fill_links(const sli_cluster_searcher *search, const sli_device_grid *grid,
                       const sl_schedule *table, bool splits, sl_link_cost *links)
{
    const int *placement = sl_schedule_placement(table);
    int last = sl_schedule_stages(table) - 1;
    for (int s = 0; s < last; s++)
        fill_link(search, grid, placement[s], placement[s + 1], links);
    for (int rank = 0; splits && rank < grid->pipeline_ranks; rank++) {
        fill_link(search, grid, placement[last], rank, links);
        fill_link(search, grid, rank, placement[last], links);
    }
}

sli_evaluated_micros sli_find_evaluated(const sli_cluster_job *job, const sli_candidate *candidate)
{
    int64_t all = job->eval_rows > 0 ? job->eval_rows : 1;
    int count = sl_micro_batches(all, candidate->chunks, NULL);
    return (sli_evaluated_micros){(all + count - 1) / count, count};
}

/* `each`: the ranks have times of their own. */
static sl_status allocate(sli_timed_table *out, size_t ranks, size_t modules, bool each)
{
    out->devices = calloc(ranks, sizeof *out->devices);
    out->modules = calloc((each ? ranks : 1) * modules, sizeof *out->modules);
    out->of_ranks = calloc(ranks, sizeof *out->of_ranks);
    out->links = calloc(ranks * ranks, sizeof *out->links);
    return out->devices && out->modules && out->of_ranks && out->links
               ? SL_OK
               : sli_no_memory(NULL, "the times of %zu ranks", ranks);
}

void sli_timed_table_scale(sli_timed_table *timed, int rank, double factor)
{
    int modules = sl_module_child_count(timed->layout.model);
    sl_module_profile *times = timed->modules + (timed->of_ranks[rank] - timed->modules);
    for (int i = 0; i < modules; i++) {
        const sl_module_profile *counted = &timed->size->modules[i];
        times[i] = (sl_module_profile){counted->forward * factor, counted->backward * factor,
                                       counted->backward_input * factor,
                                       counted->backward_weight * factor, counted->output_bytes};
    }
}

/* What of the layout its candidate says. */
static void describe_layout(const sli_cluster_searcher *search, const sli_candidate *candidate,
                            sli_timed_table *out)
{
    const sli_cluster_job *job = search->job;
    const sli_evaluated_micros evaluated = sli_find_evaluated(job, candidate);
    int ranks = candidate->replicas * candidate->pipeline_ranks;
    out->layout = (sli_layout){.model = job->model,
                               .table = out->table,
                               .replicas = candidate->replicas,
                               .shards = sli_cluster_search_shards(search, candidate),
                               .accumulate = 1,
                               .head_blocks = candidate->splits_vocabulary ? job->head_blocks : 0,
                               .row_tokens = job->row_tokens,
                               .micro_rows = out->size->rows,
                               .eval_micro_rows = evaluated.rows,
                               .eval_micros = evaluated.count,
                               .precision = job->precision,
                               .optimizer = job->optimizer,
                               .zero = candidate->zero,
                               .keeps_best = job->keeps_best,
                               .ranks = ranks,
                               .processes = true,
                               .ranks_here = ranks,
                               .devices = out->devices,
                               .has_own_memory = true};
}

sl_status sli_timed_table_open(sli_cluster_searcher *search, const sli_candidate *candidate,
                               size_t grid, bool each, sli_timed_table *out)
{
    const sli_grid_costs *costs = &search->grids[grid];
    const sli_used_devices used = sli_cluster_search_used(search, candidate);
    *out = (sli_timed_table){0};
    SL_TRY(write_table(candidate, &out->table));
    if (!out->table)
        return SL_OK;
    SL_TRY(sli_cluster_search_size(search, candidate, &out->size));
    int ranks = candidate->pipeline_ranks;
    size_t modules = (size_t)search->modules;
    SL_TRY(allocate(out, (size_t)ranks, modules, each));
    describe_layout(search, candidate, out);
    for (int rank = 0; rank < ranks; rank++) {
        out->of_ranks[rank] = out->modules + (each ? (size_t)rank * modules : 0);
        snprintf(out->devices[rank].name, sizeof out->devices[rank].name, "%s",
                 used.is_cuda ? "cuda:0" : "cpu:0");
        if (rank == 0 || each)
            sli_timed_table_scale(out, rank, costs->jitter);
    }
    fill_links(search, &costs->grid, out->table, candidate->splits_vocabulary, out->links);
    out->speed = (sli_layout_speed){.profiles = out->of_ranks,
                                    .links = out->links,
                                    .reduce = costs->reduce,
                                    .gather = costs->gather,
                                    .update = sli_cluster_update_speed(used.memory_bytes_per_s,
                                                                       used.flops_f32,
                                                                       &search->job->optimizer),
                                    .hides_exchange = used.is_cuda};
    return SL_OK;
}

void sli_timed_table_close(sli_timed_table *timed)
{
    sl_schedule_destroy(&timed->table);
    free(timed->devices);
    free(timed->modules);
    free(timed->of_ranks);
    free(timed->links);
    *timed = (sli_timed_table){0};
}
