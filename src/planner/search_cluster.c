/* The best layouts on a cluster: all are bounded from below, without their tables, and the tables
 * of those with the lowest bounds are simulated, until no other layout can be among the best. */
#include "planner/search_cluster.h"

#include "core/error.h"
#include "core/memory.h"
#include "nn/module.h"
#include "nn/split_head.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory for tables: about 100 bytes an action. */
static const int64_t most_actions = 12 << 20;
enum { MOST_BOUNDED = 1 << 24, MOST_MISFITS = 6 };

/* ---- All layouts ------------------------------------------------------------------------------
 */

static int number_of_stages(const sli_search_space *space, int virtual_stages)
{
    int i = 0;
    while (space->virtual_stages[i] != virtual_stages)
        i++;
    return i;
}

/* CPUs alone split the head, and each rank has a block of it. */
static bool devices_can_split(const sli_cluster_searcher *search, const sli_candidate *candidate)
{
    const sli_used_devices used = sli_cluster_search_used(search, candidate);
    return candidate->pipeline_ranks <= search->head_blocks && !used.is_cuda && !used.is_mixed;
}

/* Whether a schedule takes so many stages of a rank, and the model has enough modules. Interleaved
 * schedules with one stage of a rank are others'. */
static bool is_possible(const sli_cluster_searcher *search, const sli_candidate *candidate)
{
    const sli_search_space *space = &search->job->space;
    int each = sli_stages_of_rank(candidate), own = sl_schedule_virtual_stages(candidate->schedule);
    int64_t stages = (int64_t)candidate->pipeline_ranks * each;
    if (stages > search->modules || stages > SLI_MAX_PLANNED_STAGES ||
        (candidate->splits_vocabulary && !devices_can_split(search, candidate)))
        return false;
    if (candidate->pipeline_ranks == 1)
        return candidate->virtual_stages <= 1;
    return (sli_cluster_search_facts(search, candidate->schedule)
                ->takes[number_of_stages(space, candidate->virtual_stages)] &&
            (own == 1 || each > 1 || space->virtual_count == 1));
}

/* The slower recomputations are tried where the first does not fit. */
static sl_status collect_layout(void *context, sli_search *results, const sli_candidate *candidate)
{
    sli_cluster_searcher *search = context;
    results->fits = true;
    if (!is_possible(search, candidate))
        return SL_OK;
    SL_TRY(sli_array_reserve(&search->layouts, &search->capacity, search->count + 1,
                             sizeof *search->layouts, MOST_BOUNDED, "layouts"));
    sli_bounded_layout *layout = &search->layouts[search->count];
    *layout = (sli_bounded_layout){.candidate = *candidate};
    SL_TRY(sli_cluster_search_grid(search, candidate, &layout->grid));
    SL_TRY(sli_bound_layout(search, layout, false));
    search->count++;
    return SL_OK;
}

/* Of equal bounds the one with fewer ranks, and of these with fewer pipeline ranks. */
static bool is_before(const sli_bounded_layout *x, const sli_bounded_layout *y)
{
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds;
    int ranks = x->candidate.replicas * x->candidate.pipeline_ranks -
                y->candidate.replicas * y->candidate.pipeline_ranks;
    return ranks != 0 ? ranks < 0 : x->candidate.pipeline_ranks < y->candidate.pipeline_ranks;
}

/* Layout i goes down in the heap until none below it comes before it. */
static void sink_layout(sli_cluster_searcher *search, size_t i)
{
    sli_bounded_layout *layouts = search->layouts, sinking = layouts[i];
    for (size_t next = 2 * i + 1; next < search->count; next = 2 * i + 1) {
        if (next + 1 < search->count && is_before(&layouts[next + 1], &layouts[next]))
            next++;
        if (!is_before(&layouts[next], &sinking))
            break;
        layouts[i] = layouts[next];
        i = next;
    }
    layouts[i] = sinking;
}

/* ---- Tables ------------------------------------------------------------------------------- */

/* Cut by time, or where that does not fit by what stages hold. */
static sl_status add_cuts(sli_cluster_searcher *search, sli_search *results,
                          const sli_candidate *candidate, const sli_timed_table *timed)
{
    int stages = sl_schedule_stages(timed->table);
    const int *balance = NULL;
    sli_micro_size *size = timed->size;
    bool splits = candidate->splits_vocabulary;
    SL_TRY(sli_cluster_search_cut(search, size->by_time, splits, stages, &balance));
    SL_TRY(sli_search_add(results, candidate, &timed->layout, &timed->speed, balance));
    if (results->fits || stages == 1)
        return SL_OK;
    SL_TRY(sli_cluster_search_cut(search, search->by_bytes, splits, stages, &balance));
    return sli_search_add(results, candidate, &timed->layout, &timed->speed, balance);
}

/* What some rank holds at least of values, gradients and the optimizer's state: an equal part, and
 * the largest module that is not cut. */
static int64_t find_state_bytes(const sli_cluster_searcher *search, const sli_candidate *candidate)
{
    double state = (double)sl_optimizer_state_bytes(&search->job->optimizer) / sizeof(float),
           kept = 1 + state / (candidate->zero ? candidate->replicas : 1), all = 0, largest = 0;
    for (int i = 0; i < search->modules; i++) {
        double gradients = search->gradient_bytes[i + 1] - search->gradient_bytes[i],
               values = search->value_bytes[i + 1] - search->value_bytes[i];
        bool may_be_cut = candidate->splits_vocabulary &&
                          ((i == 0 && search->cuts_embedding) || i + 1 == search->modules);
        all += values + kept * gradients;
        largest = fmax(largest, may_be_cut ? 0 : values + kept * gradients);
    }
    return (int64_t)fmax(all / candidate->pipeline_ranks, largest);
}

/* Those of the candidate's kind with recomputation number `recompute` of the space,
 * [MOST_MISFITS]. */
static sli_misfit *find_misfits(const sli_cluster_searcher *search, const sli_candidate *candidate,
                                int recompute)
{
    const sli_search_space *space = &search->job->space;
    int schedule = 0, each = number_of_stages(space, candidate->virtual_stages);
    while (space->schedules[schedule] != candidate->schedule)
        schedule++;
    size_t kind = ((size_t)candidate->pipeline_ranks - 1) * (size_t)space->schedule_count;
    kind = (kind + (size_t)schedule) * (size_t)space->virtual_count + (size_t)each;
    kind = (2 * kind + candidate->zero) * (size_t)space->recompute_count + (size_t)recompute;
    return search->misfits + kind * MOST_MISFITS;
}

static bool is_misfit(const sli_misfit *misfits, const sli_misfit *layout)
{
    for (int i = 0; i < MOST_MISFITS; i++)
        if (misfits[i].replicas >= layout->replicas &&
            misfits[i].micro_rows <= layout->micro_rows &&
            misfits[i].eval_micro_rows <= layout->eval_micro_rows &&
            misfits[i].eval_micros <= layout->eval_micros &&
            misfits[i].memory_bytes >= layout->memory_bytes &&
            misfits[i].is_cuda == layout->is_cuda)
            return true;
    return false;
}

/* In the place of one that says less, if there is any. */
static void add_misfit(sli_misfit *misfits, const sli_misfit *layout)
{
    for (int i = 0; i < MOST_MISFITS; i++)
        if (misfits[i].replicas == 0 || (misfits[i].replicas <= layout->replicas &&
                                         misfits[i].micro_rows >= layout->micro_rows &&
                                         misfits[i].eval_micro_rows >= layout->eval_micro_rows &&
                                         misfits[i].eval_micros >= layout->eval_micros &&
                                         misfits[i].memory_bytes <= layout->memory_bytes &&
                                         misfits[i].is_cuda == layout->is_cuda)) {
            misfits[i] = *layout;
            return;
        }
}

/* *has_table: whether the schedule takes the layout's numbers. */
static sl_status try_recomputation(sli_cluster_searcher *search, sli_search *results,
                                   const sli_bounded_layout *layout, bool *has_table)
{
    sli_timed_table timed;
    sl_status status =
        sli_timed_table_open(search, &layout->candidate, layout->grid, false, &timed);
    *has_table = timed.table != NULL;
    if (status == SL_OK && timed.table)
        status = add_cuts(search, results, &layout->candidate, &timed);
    sli_timed_table_close(&timed);
    return status;
}

/* From the fastest recomputation on, until one fits, or none could be among the best. A layout with
 * a split head is not compared with those that did not fit: how far its forwards move ahead, and so
 * how many rows it holds, differs. */
static sl_status try_tables(sli_cluster_searcher *search, sli_search *results,
                            sli_bounded_layout layout)
{
    const sli_search_space *space = &search->job->space;
    bool has_table = true, is_simulated = false, splits = layout.candidate.splits_vocabulary;
    sli_micro_size *size;
    SL_TRY(sli_cluster_search_size(search, &layout.candidate, &size));
    const sli_evaluated_micros evaluated = sli_find_evaluated(search->job, &layout.candidate);
    const sli_misfit own = {layout.candidate.replicas,
                            size->rows,
                            evaluated.rows,
                            evaluated.count,
                            results->host_bytes,
                            sli_cluster_search_used(search, &layout.candidate).is_cuda};
    results->fits = false;
    for (int i = 0; i < space->recompute_count && !results->fits && has_table; i++) {
        sli_layout_bound bound;
        sli_misfit *misfits = find_misfits(search, &layout.candidate, i);
        layout.candidate.recompute = space->recomputes[i];
        if (!splits && is_misfit(misfits, &own))
            continue;
        SL_TRY(sli_bound_recomputation(search, &layout, &bound));
        if (!sli_search_may_keep(results, bound.work))
            return SL_OK;
        if (isinf(bound.seconds)) {
            sli_search_leave_out(results, &layout.candidate, (int64_t)bound.bytes);
            continue;
        }
        search->counts->simulated += !is_simulated;
        is_simulated = true;
        SL_TRY(try_recomputation(search, results, &layout, &has_table));
        if (!results->fits && has_table && !splits)
            add_misfit(misfits, &own);
    }
    return SL_OK;
}

static sl_status simulate_layout(sli_cluster_searcher *search, sli_search *results,
                                 const sli_bounded_layout *layout)
{
    const sli_candidate *candidate = &layout->candidate;
    int64_t stages = (int64_t)candidate->pipeline_ranks * sli_stages_of_rank(candidate),
            bytes = find_state_bytes(search, candidate);
    double memory = sli_cluster_search_used(search, candidate).memory_bytes;
    results->host_bytes = (uint64_t)memory;
    if ((double)bytes > memory)
        sli_search_leave_out(results, candidate, bytes);
    else if (3 * stages * candidate->chunks > most_actions)
        search->counts->too_large++;
    else
        return try_tables(search, results, *layout);
    return SL_OK;
}

/* Where nothing fits, the one that lacks least is planned whole, for what it needs. */
static sl_status plan_smallest(sli_cluster_searcher *search, sli_search *results)
{
    const sli_candidate smallest = results->smallest;
    const int64_t bytes = results->smallest_bytes;
    const uint64_t host_bytes = results->host_bytes = results->smallest_host_bytes;
    if (results->count > 0 || bytes == 0)
        return SL_OK;
    const sli_search_space *space = &search->job->space;
    sli_bounded_layout layout = {.candidate = smallest};
    bool has_table = true;
    results->smallest_bytes = 0;
    SL_TRY(sli_cluster_search_grid(search, &smallest, &layout.grid));
    for (int i = 0; i < space->recompute_count && has_table; i++) {
        layout.candidate.recompute = space->recomputes[i];
        SL_TRY(try_recomputation(search, results, &layout, &has_table));
    }
    results->host_bytes = host_bytes;
    if (results->smallest_bytes == 0) /* the schedule does not take its numbers */
        sli_search_leave_out(results, &smallest, bytes);
    return SL_OK;
}

/* ---- The search --------------------------------------------------------------------------- */

static sl_status sum_bytes(sli_cluster_searcher *search)
{
    const sli_cluster_job *job = search->job;
    size_t count = (size_t)search->modules + 1;
    double state = (double)sl_optimizer_state_bytes(&job->optimizer) / sizeof(float);
    search->gradient_bytes = calloc(count, sizeof *search->gradient_bytes);
    search->value_bytes = calloc(count, sizeof *search->value_bytes);
    if (!search->gradient_bytes || !search->value_bytes)
        return sli_no_memory(NULL, "the bytes of %d modules", search->modules);
    SL_TRY(sli_cuts_allocate(search->by_bytes, search->modules));
    for (int i = 0; i < search->modules; i++) {
        const sl_module *module = sl_module_child(job->model, i);
        double gradients = (double)sizeof(float) *
                           (double)sli_module_elements(module, SL_PARAMETER_TRAINED),
               values = (double)sli_module_value_bytes(module, job->precision);
        search->gradient_bytes[i + 1] = search->gradient_bytes[i] + gradients;
        search->value_bytes[i + 1] = search->value_bytes[i] + values;
        search->by_bytes[0].costs[i] = values + (1 + state) * gradients;
        bool may_be_cut = (i == 0 && search->cuts_embedding) || i + 1 == search->modules;
        search->by_bytes[1].costs[i] = may_be_cut ? 0 : search->by_bytes[0].costs[i];
    }
    return SL_OK;
}

/* A head that cannot be split has no blocks. That is no error of the search. */
static void find_head_blocks(sli_cluster_searcher *search)
{
    const sli_cluster_job *job = search->job;
    const sli_linear *head = sli_module_as_linear(sl_module_child(job->model, search->modules - 1));
    if (job->head_blocks == 0 ||
        sli_split_head_check(job->model, job->precision, true, job->head_blocks, 1) != SL_OK)
        return;
    search->head_blocks = sli_split_head_blocks(head->out, job->head_blocks);
    search->cuts_embedding = head->weight->tied_to;
}

static sl_status prepare(sli_cluster_searcher *search, const sli_cluster *cluster)
{
    const sli_cluster_job *job = search->job;
    search->modules = sl_module_child_count(job->model);
    search->frozen = sli_module_frozen_count(job->model);
    SL_TRY(sli_devices_list(cluster, job->precision, &search->devices));
    search->facts = calloc((size_t)job->space.schedule_count, sizeof *search->facts);
    search->misfits = calloc((size_t)search->modules * (size_t)job->space.schedule_count *
                                 (size_t)job->space.virtual_count * 2 *
                                 (size_t)job->space.recompute_count * MOST_MISFITS,
                             sizeof *search->misfits);
    find_head_blocks(search);
    SL_TRY(sum_bytes(search));
    if (!search->facts || !search->misfits)
        return sli_no_memory(NULL, "a search");
    for (int i = 0; i < job->space.schedule_count; i++)
        SL_TRY(sli_schedule_facts_find(job->space.schedules[i], &job->space, &search->facts[i]));
    return SL_OK;
}

/* The layout with the lowest bound gets its whole bound, if it has not, and is simulated if that is
 * still the lowest. */
static sl_status take_lowest(sli_cluster_searcher *search, sli_search *results)
{
    sli_bounded_layout *lowest = &search->layouts[0];
    if (lowest->is_whole) {
        SL_TRY(simulate_layout(search, results, lowest));
        *lowest = search->layouts[--search->count];
    } else {
        SL_TRY(sli_bound_layout(search, lowest, true));
    }
    if (search->count > 0)
        sink_layout(search, 0);
    return SL_OK;
}

static sl_status search_layouts(sli_cluster_searcher *search, const sli_cluster *cluster,
                                sli_search *results)
{
    SL_TRY(prepare(search, cluster));
    SL_TRY(sli_search_layouts(results, &search->job->space, collect_layout, search));
    search->counts->layouts = (int64_t)search->count;
    for (size_t i = search->count / 2; i-- > 0;)
        sink_layout(search, i);
    while (search->count > 0 && sli_search_may_keep(results, search->layouts[0].seconds))
        SL_TRY(take_lowest(search, results));
    return plan_smallest(search, results);
}

static void free_search(sli_cluster_searcher *search)
{
    for (size_t i = 0; i < search->size_count; i++)
        sli_micro_size_destroy(search->sizes[i], search->modules);
    free(search->sizes);
    for (int i = 0; i < search->job->space.schedule_count && search->facts; i++)
        free(search->facts[i].takes);
    for (size_t i = 0; i < search->grid_count; i++)
        free(search->grids[i].hops);
    sli_devices_clear(&search->devices);
    free(search->grids);
    free(search->facts);
    free(search->misfits);
    free(search->gradient_bytes);
    free(search->value_bytes);
    sli_cuts_free(search->by_bytes, search->modules);
    free(search->layouts);
}

sl_status sli_search_cluster(const sli_cluster_job *job, const sli_cluster *cluster,
                             sli_search *results, sli_cluster_search *counts)
{
    sli_cluster_searcher search = {.job = job, .counts = counts};
    *counts = (sli_cluster_search){0};
    sl_status status = search_layouts(&search, cluster, results);
    free_search(&search);
    return status;
}

/* ---- The table of one ----------------------------------------------------------------------- */

static int64_t count_actions(const sl_schedule *table)
{
    int64_t count = 0;
    const sl_action *row;
    for (int rank = 0; rank < sl_schedule_ranks(table); rank++)
        count += sl_schedule_actions(table, rank, &row);
    return count;
}

sl_status sli_found_table_open(const sli_cluster_job *job, const sli_cluster *cluster,
                               const sli_found_layout *found, bool each, sli_found_table *out)
{
    size_t grid;
    *out = (sli_found_table){.search = {.job = job}};
    SL_TRY(prepare(&out->search, cluster));
    SL_TRY(sli_cluster_search_grid(&out->search, &found->candidate, &grid));
    SL_TRY(sli_timed_table_open(&out->search, &found->candidate, grid, each, &out->timed));
    out->grid = out->search.grids[grid].grid;
    out->actions = out->timed.table ? count_actions(out->timed.table) : 0;
    return SL_OK;
}

void sli_found_table_close(sli_found_table *table)
{
    sli_timed_table_close(&table->timed);
    free_search(&table->search);
}

/* Up to a thousand cuts are simulated. */
static const int64_t most_recut_actions = 2048;

static bool has_profile(const sli_cluster *cluster)
{
    for (int i = 0; i < cluster->kind_count; i++)
        if (cluster->kinds[i].profile.rungs > 0)
            return true;
    return false;
}

static sl_status recut(sli_found_table *opened, sli_found_layout *found)
{
    sli_found_layout best = {0};
    double memory = sli_cluster_search_used(&opened->search, &found->candidate).memory_bytes;
    sli_search one = {.host_bytes = (uint64_t)memory, .wanted = 1, .found = &best};
    SL_TRY(
        sli_search_add(&one, &found->candidate, &opened->timed.layout, &opened->timed.speed, NULL));
    if (one.count > 0 && best.costs.seconds < found->costs.seconds)
        *found = best;
    return SL_OK;
}

sl_status sli_cluster_recut(const sli_cluster_job *job, const sli_cluster *cluster,
                            sli_found_layout *found)
{
    sli_found_table opened;
    if (found->stages == 1 || found->stages > SL_MAX_STAGES || !has_profile(cluster))
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(sli_found_table_open(job, cluster, found, false, &opened));
    if (opened.actions <= most_recut_actions)
        status = recut(&opened, found);
fail:
    sli_found_table_close(&opened);
    return status;
}
