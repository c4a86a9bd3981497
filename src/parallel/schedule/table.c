#include "parallel/schedule/table.h"

#include "core/error.h"
#include "sluice/app/option.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A micro-batch has at most six actions at a stage: F, R, I, W, S and T. */
enum { ACTIONS_PER_MICRO = 6 };

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status check_size(int ranks, int stages, int micros)
{
    if (ranks < 1)
        return sl_error(SL_ERR_INVALID, "schedule: ranks must be at least 1, got %d", ranks);
    if (micros < 1)
        return sl_error(SL_ERR_INVALID, "schedule: micro-batches must be at least 1, got %d",
                        micros);
    if (stages < 1 || stages % ranks != 0)
        return sl_error(SL_ERR_INVALID,
                        "schedule: the stages must be a multiple of the %d rank%s, got %d", ranks,
                        ranks == 1 ? "" : "s", stages);
    if (stages > INT_MAX / ACTIONS_PER_MICRO / micros)
        return sl_error(SL_ERR_INVALID,
                        "schedule: a table of %d stages and %d micro-batches is too large", stages,
                        micros);
    return SL_OK;
}

sl_status sli_schedule_count_slices(const sl_schedule_options *options, int *slices, int *micros)
{
    *slices = options->slices ? options->slices : 1;
    *micros = options->micros;
    if (*slices < 1)
        return sl_error(SL_ERR_INVALID, "schedule: slices must be at least 1, got %d", *slices);
    if (options->micros > 0 && __builtin_mul_overflow(options->micros, *slices, micros))
        return sl_error(SL_ERR_INVALID,
                        "schedule: a table of %d micro-batches of %d slices is too large",
                        options->micros, *slices);
    return SL_OK;
}

/* Every rank must have as many stages as the others; `ends` serves to count them. */
static sl_status check_placement(sl_schedule *schedule)
{
    int ranks = schedule->ranks, each = schedule->stages / ranks;
    for (int stage = 0; stage < schedule->stages; stage++) {
        int rank = schedule->placement[stage];
        if (rank < 0 || rank >= ranks)
            return sl_error(SL_ERR_INVALID,
                            "schedule: stage %d is placed on rank %d, outside 0 to %d", stage, rank,
                            ranks - 1);
        schedule->ends[rank]++;
    }
    for (int rank = 0; rank < ranks; rank++) {
        if (schedule->ends[rank] != (size_t)each)
            return sl_error(SL_ERR_INVALID,
                            "schedule: each of %d ranks must have %d of the %d stages, rank %d has "
                            "%zu",
                            ranks, each, schedule->stages, rank, schedule->ends[rank]);
        schedule->ends[rank] = 0;
    }
    return SL_OK;
}

sl_status sli_schedule_allocate(int ranks, int stages, int micros, const int *placement,
                                size_t capacity, sl_schedule **out)
{
    *out = NULL;
    SL_TRY(check_size(ranks, stages, micros));
    sl_schedule *schedule = calloc(1, sizeof *schedule);
    if (!schedule)
        return sli_no_memory("schedule", "a table");
    schedule->ranks = ranks;
    schedule->stages = stages;
    schedule->micros = micros;
    schedule->slices = 1;
    schedule->placement = malloc((size_t)stages * sizeof *schedule->placement);
    schedule->ends = calloc((size_t)ranks, sizeof *schedule->ends);
    schedule->actions = malloc((capacity + 1) * sizeof *schedule->actions);
    if (!schedule->placement || !schedule->ends || !schedule->actions) {
        sl_schedule_destroy(&schedule);
        return sli_no_memory("schedule", "a table of %zu actions", capacity);
    }
    for (int stage = 0; stage < stages; stage++)
        schedule->placement[stage] = placement ? placement[stage] : stage % ranks;
    sl_status status = check_placement(schedule);
    if (status != SL_OK) {
        sl_schedule_destroy(&schedule);
        return status;
    }
    *out = schedule;
    return SL_OK;
}

void sl_schedule_destroy(sl_schedule **schedule)
{
    if (!schedule || !*schedule)
        return;
    free((*schedule)->placement);
    free((*schedule)->ends);
    free((*schedule)->actions);
    free(*schedule);
    *schedule = NULL;
}

void sli_schedule_append(sl_schedule *schedule, int rank, int stage, sl_action_kind kind, int micro)
{
    schedule->actions[schedule->count++] =
        (sl_action){.stage = stage, .micro = micro, .kind = kind};
    schedule->ends[rank] = schedule->count;
}

sl_status sl_schedule_from_table(const sl_schedule_options *options, const int *counts,
                                 const sl_action *actions, sl_schedule **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(counts);
    int virtual_stages = options->virtual_stages ? options->virtual_stages : 1, stages;
    int slices, micros;
    size_t total = 0;
    SLI_CHECK_NOT_NULL(actions);
    if (__builtin_mul_overflow(options->ranks, virtual_stages, &stages))
        return sl_error(SL_ERR_INVALID, "sl_schedule_from_table: too many stages");
    for (int rank = 0; rank < options->ranks; rank++) {
        if (counts[rank] < 0 || total + (size_t)counts[rank] > INT_MAX)
            return sl_error(SL_ERR_INVALID, "sl_schedule_from_table: rank %d has %d actions", rank,
                            counts[rank]);
        total += (size_t)counts[rank];
    }
    SL_TRY(sli_schedule_count_slices(options, &slices, &micros));
    SL_TRY(sli_schedule_allocate(options->ranks, stages, micros, options->placement, total, out));
    (*out)->slices = slices;
    for (int rank = 0; rank < options->ranks; rank++)
        (*out)->ends[rank] = (*out)->count += (size_t)counts[rank];
    if (total > 0)
        memcpy((*out)->actions, actions, total * sizeof *actions);
    sl_status status = sli_schedule_mark(*out);
    if (status != SL_OK)
        sl_schedule_destroy(out);
    return status;
}

/* ---- What follows from the cells -------------------------------------------------------- */

static bool is_known(const sl_schedule *schedule, sl_action action)
{
    return action.stage >= 0 && action.stage < schedule->stages && action.micro >= 0 &&
           action.micro < schedule->micros;
}

/* The action of each stage after which its gradients are complete: its last W or B. */
static void mark_completions(sl_schedule *schedule, bool *complete)
{
    memset(complete, 0, (size_t)schedule->stages);
    for (size_t i = schedule->count; i-- > 0;) {
        sl_action *action = &schedule->actions[i];
        bool adds = action->kind == SL_ACTION_BACKWARD || action->kind == SL_ACTION_BACKWARD_WEIGHT;
        action->completes = adds && is_known(schedule, *action) && !complete[action->stage];
        if (action->completes)
            complete[action->stage] = true;
    }
}

sl_status sli_schedule_allocate_marks(const sl_schedule *schedule, bool **out)
{
    size_t cells = sli_schedule_cell(schedule, schedule->stages, 0);
    *out = calloc(cells, sizeof **out);
    return *out ? SL_OK : sli_no_memory("schedule", "%zu marks", cells);
}

void sli_schedule_set_marks(sl_schedule *schedule, bool *room)
{
    for (int rank = 1; rank < schedule->ranks; rank++)
        if (schedule->ends[rank] == 0) /* an empty row */
            schedule->ends[rank] = schedule->ends[rank - 1];
    bool forward_only = !sli_schedule_goes_backward(schedule);
    schedule->splits_head = false;
    for (size_t i = schedule->count; i-- > 0;) {
        sl_action *action = &schedule->actions[i];
        action->discards = false;
        action->slices = schedule->slices;
        schedule->splits_head |= sli_action_is_of_head(action->kind);
        if (!is_known(schedule, *action))
            continue;
        bool *recomputes = &room[sli_schedule_cell(schedule, action->stage, action->micro)];
        if (action->kind == SL_ACTION_RECOMPUTE)
            *recomputes = true;
        if (action->kind == SL_ACTION_FORWARD)
            action->discards =
                forward_only || action->stage < schedule->forward_only || *recomputes;
    }
    mark_completions(schedule, room);
    free(room);
}

sl_status sli_schedule_mark(sl_schedule *schedule)
{
    bool *room;
    SL_TRY(sli_schedule_allocate_marks(schedule, &room));
    sli_schedule_set_marks(schedule, room);
    return SL_OK;
}

/* ---- Access ----------------------------------------------------------------------------- */

int sl_schedule_ranks(const sl_schedule *schedule)
{
    return schedule->ranks;
}

int sl_schedule_stages(const sl_schedule *schedule)
{
    return schedule->stages;
}

int sl_schedule_micros(const sl_schedule *schedule)
{
    return schedule->micros / schedule->slices;
}

int sl_schedule_slices(const sl_schedule *schedule)
{
    return schedule->slices;
}

const int *sl_schedule_placement(const sl_schedule *schedule)
{
    return schedule->placement;
}

sl_status sli_schedule_check_placement(const sl_schedule *schedule, const char *name,
                                       const int *placement)
{
    for (int stage = 0; placement && stage < schedule->stages; stage++)
        if (placement[stage] != schedule->placement[stage])
            return sl_error(SL_ERR_INVALID, "schedule: %s has stage %d on rank %d, not %d", name,
                            stage, schedule->placement[stage], placement[stage]);
    return SL_OK;
}

size_t sli_schedule_row(const sl_schedule *schedule, int rank)
{
    return rank > 0 ? schedule->ends[rank - 1] : 0;
}

int sl_schedule_actions(const sl_schedule *schedule, int rank, const sl_action **actions)
{
    assert(rank >= 0 && rank < schedule->ranks);
    size_t start = sli_schedule_row(schedule, rank);
    *actions = schedule->actions + start;
    return (int)(schedule->ends[rank] - start);
}

bool sli_schedule_goes_backward(const sl_schedule *schedule)
{
    for (size_t i = 0; i < schedule->count; i++)
        if (schedule->actions[i].kind != SL_ACTION_FORWARD)
            return true;
    return false;
}

int sli_schedule_first_stage(const sl_schedule *schedule, int rank)
{
    int stage = 0;
    while (schedule->placement[stage] != rank)
        stage++;
    return stage;
}

sl_status sli_schedule_rank_stages(const sl_schedule *schedule, int **out)
{
    int each = schedule->stages / schedule->ranks;
    int *list = malloc((size_t)schedule->stages * sizeof *list);
    int *counts = calloc((size_t)schedule->ranks, sizeof *counts);
    *out = NULL;
    if (!list || !counts) {
        free(list);
        free(counts);
        return sli_no_memory("schedule", "%d stages", schedule->stages);
    }
    for (int stage = 0; stage < schedule->stages; stage++) {
        int rank = schedule->placement[stage];
        list[rank * each + counts[rank]++] = stage;
    }
    free(counts);
    *out = list;
    return SL_OK;
}

/* ---- Names ------------------------------------------------------------------------------ */

const char *const sl_recompute_names[] = {"except_last", "never", "always", NULL};

const char *sl_recompute_name(sl_recompute recompute)
{
    return recompute <= SL_RECOMPUTE_ALWAYS ? sl_recompute_names[recompute] : "unknown";
}

sl_status sl_recompute_parse(const char *text, sl_recompute *out)
{
    const sl_option option = {.name = "recompute",
                              .type = SL_OPTION_CHOICE,
                              .choices = sl_recompute_names};
    int mode;
    SLI_CHECK_NOT_NULL(text);
    SLI_CHECK_NOT_NULL(out);
    if (sl_option_set(&option, &mode, text) != SL_OK)
        return sl_error(SL_ERR_NOT_FOUND, "%s", sl_error_text());
    *out = (sl_recompute)mode;
    return SL_OK;
}
