/* The best of many layouts: each is cut, held against the memory, and timed. */
#include "planner/layout.h"

#include "core/error.h"
#include "core/memory.h"
#include "nn/module.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- One layout --------------------------------------------------------------------------- */

/* The host that needs most: each has consecutive ranks. */
static sl_host_plan find_largest_host(const sli_layout *layout, const sl_stage_plan *stages)
{
    sl_host_plan largest = {0};
    if (layout->has_own_memory) {
        for (int rank = 0; rank < sl_schedule_ranks(layout->table); rank++) {
            sl_host_plan host;
            sli_layout_plan_own_host(layout, stages, rank, &host);
            if (host.total_bytes > largest.total_bytes)
                largest = host;
        }
        return largest;
    }
    for (int first = 0; first < layout->ranks; first += layout->ranks_here) {
        sl_host_plan host;
        int left = layout->ranks - first;
        sli_layout_plan_host(layout, stages, first,
                             left < layout->ranks_here ? left : layout->ranks_here, &host);
        if (host.total_bytes > largest.total_bytes)
            largest = host;
    }
    return largest;
}

/* A layout that is cut in several ways. */
typedef struct cut_layout {
    sli_search *search;
    const sli_layout *layout;
    const sli_candidate *candidate;
    sl_host_plan host;    /* of the cut that was looked at last */
    sli_error_copy error; /* of a cut whose memory cannot be planned */
} cut_layout;

void sli_search_leave_out(sli_search *search, const sli_candidate *candidate, int64_t bytes)
{
    int64_t lacks = bytes - (int64_t)search->host_bytes,
            least = search->smallest_bytes - (int64_t)search->smallest_host_bytes;
    if (search->smallest_bytes > 0 && lacks >= least)
        return;
    search->smallest = *candidate;
    search->smallest_bytes = bytes;
    search->smallest_host_bytes = search->host_bytes;
}

static bool cut_fits(void *context, const int *balance)
{
    cut_layout *cut = context;
    sli_search *search = cut->search;
    sl_stage_plan *stages = calloc((size_t)sl_schedule_stages(cut->layout->table), sizeof *stages);
    sl_status status = stages ? sli_layout_plan_stages(cut->layout, balance, stages)
                              : sli_no_memory(NULL, "the plan of stages");
    if (status == SL_OK)
        cut->host = find_largest_host(cut->layout, stages);
    free(stages);
    if (status != SL_OK) {
        sli_error_save(&cut->error, status);
        return false;
    }
    int64_t bytes = cut->host.total_bytes;
    if (search->host_bytes == 0 || (uint64_t)bytes <= search->host_bytes)
        return true;
    sli_search_leave_out(search, cut->candidate, bytes);
    return false;
}

/* Whether to look for a cut: where all ranks are on one host, no cut changes what it holds beside
 * activations. */
static bool can_fit(cut_layout *cut)
{
    int balance[SLI_MAX_PLANNED_STAGES];
    const sli_layout *layout = cut->layout;
    bool is_one_host = layout->ranks_here >= layout->ranks;
    if (sl_partition(layout->model, sl_schedule_stages(layout->table), SL_PARTITION_PARAMETERS,
                     balance) != SL_OK ||
        cut_fits(cut, balance) || !is_one_host)
        return true;
    return (uint64_t)(cut->host.total_bytes - cut->host.activation_bytes) <=
           cut->search->host_bytes;
}

/* SL_ERR_NOT_FOUND: no cut fits. */
static sl_status find_cut(cut_layout *cut, const sli_layout_speed *speed, const int *balance,
                          sli_found_layout *found)
{
    sl_partition_costs costs = sli_layout_partition_costs(cut->layout, speed);
    costs.fits = cut_fits;
    costs.context = cut;
    if (!balance && !can_fit(cut))
        return SL_ERR_NOT_FOUND;
    if (!balance) {
        SL_TRY(sl_partition_by_time(&costs, found->balance, NULL));
        (void)cut_fits(cut, found->balance); /* for its bytes */
        return SL_OK;
    }
    memcpy(found->balance, balance, (size_t)found->stages * sizeof *balance);
    return cut_fits(cut, balance) ? SL_OK : SL_ERR_NOT_FOUND;
}

static sl_status cut_model(cut_layout *cut, const sli_layout_speed *speed, const int *balance,
                           sli_found_layout *found)
{
    sl_status status = find_cut(cut, speed, balance, found);
    return cut->error.status != SL_OK ? sli_error_restore(&cut->error) : status;
}

/* ---- The best ----------------------------------------------------------------------------- */

static int count_ranks(const sli_candidate *candidate)
{
    return candidate->replicas * candidate->pipeline_ranks;
}

/* A sum in another order is as long. */
static const double rounding = 1e-9;

static bool is_better(const sli_search *search, const sli_found_layout *a,
                      const sli_found_layout *b)
{
    double difference = a->costs.seconds - b->costs.seconds;
    int more = count_ranks(&a->candidate) - count_ranks(&b->candidate);
    if (fabs(difference) > rounding * b->costs.seconds)
        return difference < 0;
    return search->prefers_fewer_ranks ? more < 0 : more > 0;
}

bool sli_have_one_shape(const sli_candidate *a, const sli_candidate *b)
{
    bool is_one_schedule = a->schedule == b->schedule ||
                           (a->schedule && b->schedule && strcmp(a->schedule, b->schedule) == 0);
    return a->replicas == b->replicas && a->pipeline_ranks == b->pipeline_ranks && is_one_schedule;
}

static bool replaces(const sli_search *search, const sli_candidate *a, const sli_candidate *b)
{
    bool write_alike = a->zero == b->zero && a->near_replicas == b->near_replicas &&
                       a->splits_vocabulary == b->splits_vocabulary;
    return sli_have_one_shape(a, b) && (write_alike || !search->compares_checkpoints);
}

/* Of each shape the best one is kept. */
static void keep_layout(sli_search *search, const sli_found_layout *layout)
{
    int place = 0, last = 0;
    while (last < search->count &&
           !replaces(search, &search->found[last].candidate, &layout->candidate))
        last++;
    if (last < search->count && !is_better(search, layout, &search->found[last]))
        return;
    while (place < search->count && !is_better(search, layout, &search->found[place]))
        place++;
    if (place == search->wanted)
        return;
    if (last == search->count && search->count < search->wanted)
        search->count++;
    if (last == search->wanted)
        last--;
    memmove(&search->found[place + 1], &search->found[place],
            (size_t)(last - place) * sizeof *search->found);
    search->found[place] = *layout;
}

/* No cut is faster, but for rounding: each micro-batch goes forward through every module and
 * backward through those that are not frozen, and ranks can do no more than work all the time. A
 * split head's work is divided among them. */
static double find_bound(const sli_layout *layout, const sli_layout_speed *speed)
{
    int ranks = sl_schedule_ranks(layout->table);
    int shards = (layout->shards + layout->replicas - 1) / layout->replicas,
        frozen = sli_module_frozen_count(layout->model);
    double work = 0, micros = sl_schedule_micros(layout->table) * (double)layout->accumulate;
    for (int i = 0; i < sl_module_child_count(layout->model); i++) {
        double least = INFINITY;
        for (int rank = 0; rank < ranks; rank++) {
            const sl_module_profile *module = &speed->profiles[rank][i];
            double halves = module->backward_input + module->backward_weight,
                   backward = i < frozen ? 0 : fmin(module->backward, halves);
            least = fmin(least, module->forward + backward);
        }
        work += least;
    }
    return shards * micros * work / (speed->cores ? 1 : ranks);
}

bool sli_search_may_keep(const sli_search *search, double seconds)
{
    if (search->most_seconds > 0 && seconds > (1 + rounding) * search->most_seconds)
        return false;
    return search->count < search->wanted ||
           seconds <= (1 + rounding) * search->found[search->count - 1].costs.seconds;
}

/* One that cannot be among the best, or the best of its shape, counts as one that fits: slower ones
 * of its kind need not be tried. */
static bool is_too_slow(const sli_search *search, const sli_candidate *candidate,
                        const sli_layout *layout, const sli_layout_speed *speed)
{
    double bound = find_bound(layout, speed);
    for (int i = 0; i < search->count; i++)
        if (replaces(search, &search->found[i].candidate, candidate) &&
            bound > (1 + rounding) * search->found[i].costs.seconds)
            return true;
    return !sli_search_may_keep(search, bound);
}

sl_status sli_search_add(sli_search *search, const sli_candidate *candidate,
                         const sli_layout *layout, const sli_layout_speed *speed,
                         const int *balance)
{
    sli_found_layout found = {.candidate = *candidate, .stages = sl_schedule_stages(layout->table)};
    cut_layout cut = {.search = search, .layout = layout, .candidate = candidate};
    search->fits = is_too_slow(search, candidate, layout, speed);
    if (search->fits)
        return SL_OK;
    sl_status status = cut_model(&cut, speed, balance, &found);
    search->fits = status == SL_OK;
    if (status != SL_OK)
        return status == SL_ERR_NOT_FOUND ? SL_OK : status;
    if (search->asks_fit) {
        search->count = 1;
        return SL_OK;
    }
    SL_TRY(sli_layout_time_step(layout, speed, found.balance, &found.costs));
    found.host_bytes = cut.host.total_bytes;
    keep_layout(search, &found);
    return SL_OK;
}

sl_status sli_search_refuse(const sli_search *search, const char *limit)
{
    const sli_candidate *smallest = &search->smallest;
    char needed[SLI_BYTES_TEXT_SIZE], usable[SLI_BYTES_TEXT_SIZE], lacking[SLI_BYTES_TEXT_SIZE];
    int64_t has = (int64_t)search->smallest_host_bytes;
    return sl_error(SL_ERR_MEMORY,
                    "no layout of %s fits the memory: the smallest has %d replica%s of %d pipeline "
                    "rank%s and needs %s of a %s that has %s: %s are missing",
                    limit, smallest->replicas, smallest->replicas == 1 ? "" : "s",
                    smallest->pipeline_ranks, smallest->pipeline_ranks == 1 ? "" : "s",
                    sli_bytes_text(search->smallest_bytes, needed),
                    search->holder ? search->holder : "host", sli_bytes_text(has, usable),
                    sli_bytes_text(search->smallest_bytes - has, lacking));
}

/* ---- All layouts -------------------------------------------------------------------------- */

/* The candidates of a search, and who takes them. */
typedef struct enumeration {
    sli_search *search;
    const sli_search_space *space;
    sl_status (*consider)(void *context, sli_search *search, const sli_candidate *candidate);
    void *context;
} enumeration;

/* Recomputations cost time and save memory. */
static sl_status try_recomputations(const enumeration *all, sli_candidate candidate)
{
    const sli_search_space *space = all->space;
    all->search->fits = false;
    for (int i = 0; i == 0 || (i < space->recompute_count && !all->search->fits); i++) {
        if (space->recomputes)
            candidate.recompute = space->recomputes[i];
        SL_TRY(all->consider(all->context, all->search, &candidate));
    }
    return SL_OK;
}

/* On shared cores no rank waits for the head, so that a split is tried only where it is asked for.
 */
static sl_status try_places(const enumeration *all, sli_candidate candidate)
{
    const sli_search_space *space = all->space;
    bool is_pipeline = candidate.pipeline_ranks > 1;
    bool may_share = is_pipeline && candidate.replicas == 1;
    bool may_be_near = is_pipeline && candidate.replicas > 1;
    int first_shared = may_share && space->shared[0], last_shared = may_share && space->shared[1],
        first_near = may_be_near && space->near_replicas[0],
        last_near = may_be_near && space->near_replicas[1];
    for (int shared = first_shared; shared <= last_shared; shared++)
        for (int near = first_near; near <= last_near; near++) {
            if (shared && candidate.splits_vocabulary && !space->splits_vocabulary[0])
                continue;
            candidate.shares_cores = shared;
            candidate.near_replicas = near;
            SL_TRY(try_recomputations(all, candidate));
        }
    return SL_OK;
}

static sl_status try_splits(const enumeration *all, sli_candidate candidate)
{
    const bool *splits = all->space->splits_vocabulary;
    int last = candidate.pipeline_ranks > 1 ? splits[1] : splits[0];
    for (int split = splits[0]; split <= last; split++) {
        candidate.splits_vocabulary = split;
        SL_TRY(try_places(all, candidate));
    }
    return SL_OK;
}

static sl_status try_chunks(const enumeration *all, sli_candidate candidate)
{
    const sli_search_space *space = all->space;
    int first_zero = candidate.replicas > 1 && space->zeros[0],
        last_zero = candidate.replicas > 1 && space->zeros[1];
    for (int k = 0; k == 0 || k < space->chunk_count; k++)
        for (int zero = first_zero; zero <= last_zero; zero++) {
            if (space->chunks && space->rows / candidate.replicas % space->chunks[k] != 0)
                break;
            if (space->chunks)
                candidate.chunks = space->chunks[k];
            candidate.zero = zero;
            SL_TRY(try_splits(all, candidate));
        }
    return SL_OK;
}

/* All schedules do the same where there is one rank. */
static sl_status try_schedules(const enumeration *all, sli_candidate candidate)
{
    const sli_search_space *space = all->space;
    for (int i = 0; i == 0 || (i < space->schedule_count && candidate.pipeline_ranks > 1); i++) {
        if (space->schedules)
            candidate.schedule = space->schedules[i];
        for (int k = 0; k == 0 || (k < space->virtual_count && candidate.pipeline_ranks > 1); k++) {
            if (space->virtual_stages)
                candidate.virtual_stages = space->virtual_stages[k];
            SL_TRY(try_chunks(all, candidate));
        }
    }
    return SL_OK;
}

sl_status sli_search_layouts(sli_search *search, const sli_search_space *space,
                             sl_status (*consider)(void *context, sli_search *search,
                                                   const sli_candidate *candidate),
                             void *context)
{
    const enumeration all = {search, space, consider, context};
    sli_candidate candidate = {.replicas = space->least_replicas};
    for (; candidate.replicas <= space->most_replicas; candidate.replicas++) {
        if (space->rows % candidate.replicas != 0)
            continue;
        candidate.pipeline_ranks = space->least_pipeline_ranks;
        for (; candidate.pipeline_ranks <= space->most_pipeline_ranks &&
               count_ranks(&candidate) <= space->ranks;
             candidate.pipeline_ranks++)
            SL_TRY(try_schedules(&all, candidate));
    }
    return SL_OK;
}
