/* The best of many layouts: each is cut, held against the memory, and timed. */
#include "planner/layout.h"

#include "core/error.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- One layout --------------------------------------------------------------------------- */

/* Of the host that needs most: each has consecutive ranks. */
static int64_t find_host_bytes(const sli_layout *layout, const sl_stage_plan *stages)
{
    int64_t most = 0;
    for (int first = 0; first < layout->ranks; first += layout->ranks_here) {
        sl_host_plan host;
        int left = layout->ranks - first;
        sli_layout_plan_host(layout, stages, first,
                             left < layout->ranks_here ? left : layout->ranks_here, &host);
        most = host.total_bytes > most ? host.total_bytes : most;
    }
    return most;
}

/* A layout that is cut in several ways. */
typedef struct cut_layout {
    sli_search *search;
    const sli_layout *layout;
    const sli_candidate *candidate;
    int64_t bytes; /* of the cut that was looked at last */
} cut_layout;

static bool cut_fits(void *context, const int *balance)
{
    cut_layout *cut = context;
    sli_search *search = cut->search;
    sl_stage_plan stages[SL_MAX_STAGES];
    if (sli_layout_plan_stages(cut->layout, balance, stages) != SL_OK)
        return false;
    cut->bytes = find_host_bytes(cut->layout, stages);
    if (search->host_bytes == 0 || (uint64_t)cut->bytes <= search->host_bytes)
        return true;
    if (search->smallest_bytes == 0 || cut->bytes < search->smallest_bytes) {
        search->smallest = *cut->candidate;
        search->smallest_bytes = cut->bytes;
    }
    return false;
}

/* SL_ERR_NOT_FOUND: no cut fits. */
static sl_status cut_model(cut_layout *cut, const sli_layout_speed *speed, const int *balance,
                           sli_found_layout *found)
{
    sl_partition_costs costs = sli_layout_partition_costs(cut->layout, speed);
    costs.fits = cut_fits;
    costs.context = cut;
    if (!balance) {
        SL_TRY(sl_partition_by_time(&costs, found->balance, NULL));
        (void)cut_fits(cut, found->balance); /* for its bytes */
        return SL_OK;
    }
    memcpy(found->balance, balance, (size_t)found->stages * sizeof *balance);
    return cut_fits(cut, balance) ? SL_OK : SL_ERR_NOT_FOUND;
}

/* ---- The best ----------------------------------------------------------------------------- */

static int count_ranks(const sli_candidate *candidate)
{
    return candidate->replicas * candidate->pipeline_ranks;
}

static bool is_better(const sli_found_layout *a, const sli_found_layout *b)
{
    return a->costs.seconds < b->costs.seconds ||
           (a->costs.seconds == b->costs.seconds &&
            count_ranks(&a->candidate) > count_ranks(&b->candidate));
}

static bool have_one_shape(const sli_candidate *a, const sli_candidate *b)
{
    bool is_one_schedule = a->schedule == b->schedule ||
                           (a->schedule && b->schedule && strcmp(a->schedule, b->schedule) == 0);
    return a->replicas == b->replicas && a->pipeline_ranks == b->pipeline_ranks && is_one_schedule;
}

/* Of each shape the best one is kept. */
static void keep_layout(sli_search *search, const sli_found_layout *layout)
{
    int place = 0, last = 0;
    while (last < search->count &&
           !have_one_shape(&search->found[last].candidate, &layout->candidate))
        last++;
    if (last < search->count && !is_better(layout, &search->found[last]))
        return;
    while (place < search->count && !is_better(layout, &search->found[place]))
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

sl_status sli_search_add(sli_search *search, const sli_candidate *candidate,
                         const sli_layout *layout, const sli_layout_speed *speed,
                         const int *balance)
{
    sli_found_layout found = {.candidate = *candidate, .stages = sl_schedule_stages(layout->table)};
    cut_layout cut = {.search = search, .layout = layout, .candidate = candidate};
    sl_status status = cut_model(&cut, speed, balance, &found);
    search->fits = status == SL_OK;
    if (status != SL_OK)
        return status == SL_ERR_NOT_FOUND ? SL_OK : status;
    SL_TRY(sli_layout_time_step(layout, speed, found.balance, &found.costs));
    found.host_bytes = cut.bytes;
    keep_layout(search, &found);
    return SL_OK;
}

sl_status sli_search_refuse(const sli_search *search, const char *limit)
{
    const sli_candidate *smallest = &search->smallest;
    char needed[SLI_BYTES_TEXT_SIZE], usable[SLI_BYTES_TEXT_SIZE];
    return sl_error(SL_ERR_MEMORY,
                    "no layout of %s fits the memory: the smallest has %d replica%s of %d pipeline "
                    "rank%s and needs %s of a host that has %s",
                    limit, smallest->replicas, smallest->replicas == 1 ? "" : "s",
                    smallest->pipeline_ranks, smallest->pipeline_ranks == 1 ? "" : "s",
                    sli_bytes_text(search->smallest_bytes, needed),
                    sli_bytes_text((int64_t)search->host_bytes, usable));
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

static sl_status try_sharing(const enumeration *all, sli_candidate candidate)
{
    bool shards_state = all->space->tries_zero && candidate.replicas > 1,
         shares_cores = all->space->tries_shared_cores && candidate.pipeline_ranks > 1;
    for (int zero = 0; zero <= (int)shards_state; zero++)
        for (int shared = 0; shared <= (int)shares_cores; shared++) {
            candidate.zero = zero;
            candidate.shares_cores = shared;
            SL_TRY(try_recomputations(all, candidate));
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
        for (int k = 0; k == 0 || k < space->chunk_count; k++) {
            if (space->chunks)
                candidate.chunks = space->chunks[k];
            SL_TRY(try_sharing(all, candidate));
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
        candidate.pipeline_ranks = space->least_pipeline_ranks;
        for (; candidate.pipeline_ranks <= space->most_pipeline_ranks &&
               count_ranks(&candidate) <= space->ranks;
             candidate.pipeline_ranks++)
            SL_TRY(try_schedules(&all, candidate));
    }
    return SL_OK;
}
