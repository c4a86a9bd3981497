/* Rewrites: small passes over a table. */
#include "core/error.h"
#include "parallel/schedule/table.h"

#include <stdlib.h>
#include <string.h>

/* ---- Recomputation ---------------------------------------------------------------------- */

static bool has_recomputations(const sl_schedule *schedule)
{
    for (size_t i = 0; i < schedule->count; i++)
        if (schedule->actions[i].kind == SL_ACTION_RECOMPUTE)
            return true;
    return false;
}

/* The micro-batch that each stage runs forward last, into last[stages]. */
static void find_last_forwards(const sl_schedule *schedule, int *last)
{
    for (size_t i = 0; i < schedule->count; i++) {
        sl_action action = schedule->actions[i];
        if (action.kind == SL_ACTION_FORWARD && action.stage >= 0 &&
            action.stage < schedule->stages)
            last[action.stage] = action.micro;
    }
}

/* Copies actions `first` to `end` - 1, a row; before each cell that goes backward comes what it
 * needs again. `keeps` is the micro-batch of each stage that is not recomputed, NULL: none. */
static size_t copy_row(const sl_schedule *schedule, size_t first, size_t end, const int *keeps,
                       sl_action *out)
{
    const sl_action *actions = schedule->actions;
    size_t written = 0;
    for (size_t i = first; i < end;) {
        size_t next = i + 1 < end && actions[i + 1].joined ? i + 2 : i + 1;
        for (size_t j = i; j < next; j++) {
            sl_action action = {.stage = actions[j].stage,
                                .micro = actions[j].micro,
                                .kind = SL_ACTION_RECOMPUTE};
            bool known = action.stage >= 0 && action.stage < schedule->stages;
            bool kept = keeps && known && keeps[action.stage] == action.micro;
            if (sli_action_is_backward(actions[j].kind) && !kept)
                out[written++] = action;
        }
        while (i < next)
            out[written++] = actions[i++];
    }
    return written;
}

sl_status sl_schedule_recompute(sl_schedule *schedule, sl_recompute mode)
{
    SLI_CHECK_NOT_NULL(schedule);
    if (mode == SL_RECOMPUTE_NEVER || has_recomputations(schedule))
        return SL_OK;
    int *last = calloc((size_t)schedule->stages, sizeof *last);
    sl_action *actions = malloc((2 * schedule->count + 1) * sizeof *actions);
    bool *marks = NULL;
    sl_status status = last && actions
                           ? sli_schedule_allocate_marks(schedule, &marks)
                           : sli_no_memory("schedule", "%zu recomputations", schedule->count);
    if (status != SL_OK) {
        free(last);
        free(actions);
        return status;
    }
    find_last_forwards(schedule, last);
    const int *keeps = mode == SL_RECOMPUTE_EXCEPT_LAST ? last : NULL;
    size_t first = 0, count = 0;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        size_t end = schedule->ends[rank];
        count += copy_row(schedule, first, end, keeps, actions + count);
        schedule->ends[rank] = count;
        first = end;
    }
    free(last);
    free(schedule->actions);
    schedule->actions = actions;
    schedule->count = count;
    sli_schedule_set_marks(schedule, marks);
    return SL_OK;
}

/* ---- Frozen stages ---------------------------------------------------------------------- */

static sl_status count_forward_only(const sl_schedule *schedule, const sl_stage_backward *stages,
                                    int *count)
{
    *count = 0;
    while (*count < schedule->stages && stages[*count] == SL_STAGE_BACKWARD_NONE)
        ++*count;
    if (*count == schedule->stages)
        return sl_error(SL_ERR_INVALID, "schedule: no stage has a backward");
    for (int stage = *count; stage < schedule->stages; stage++)
        if (stages[stage] == SL_STAGE_BACKWARD_NONE)
            return sl_error(SL_ERR_INVALID,
                            "schedule: stage %d has no backward, but stage %d before it has", stage,
                            *count);
    return SL_OK;
}

/* Whether the action stays, of a stage that goes so far backward; *action becomes what it then is.
 */
static bool keep_action(sl_stage_backward backward, sl_action *action)
{
    if (backward == SL_STAGE_BACKWARD_WHOLE || action->kind == SL_ACTION_FORWARD ||
        sli_action_is_of_head(action->kind))
        return true;
    if (backward == SL_STAGE_BACKWARD_NONE)
        return false;
    if (action->kind == SL_ACTION_BACKWARD_INPUT)
        action->kind = SL_ACTION_BACKWARD;
    return action->kind != SL_ACTION_BACKWARD_WEIGHT;
}

sl_status sl_schedule_freeze(sl_schedule *schedule, const sl_stage_backward *stages)
{
    SLI_CHECK_NOT_NULL(schedule);
    SLI_CHECK_NOT_NULL(stages);
    int forward_only;
    size_t first = 0, written = 0;
    bool *marks;
    SL_TRY(count_forward_only(schedule, stages, &forward_only));
    SL_TRY(sli_schedule_allocate_marks(schedule, &marks));
    schedule->forward_only = forward_only;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        size_t end = schedule->ends[rank];
        for (size_t i = first; i < end; i++) {
            sl_action action = schedule->actions[i];
            bool known = action.stage >= 0 && action.stage < schedule->stages;
            if (!known || keep_action(stages[action.stage], &action))
                schedule->actions[written++] = action;
        }
        schedule->ends[rank] = written;
        first = end;
    }
    schedule->count = written;
    sli_schedule_set_marks(schedule, marks);
    return SL_OK;
}

/* ---- Numbers of micro-batches ----------------------------------------------------------- */

static bool in_range(int micro, const sl_schedule *schedule)
{
    return micro >= 0 && micro < schedule->micros;
}

sl_status sli_schedule_renumber(sl_schedule *schedule)
{
    SLI_CHECK_NOT_NULL(schedule);
    int slices = schedule->slices, micros = schedule->micros / slices, next = 0;
    int *number = malloc((size_t)micros * sizeof *number);
    if (!number)
        return sli_no_memory("schedule", "%d numbers", micros);
    for (int micro = 0; micro < micros; micro++)
        number[micro] = -1;
    for (size_t i = 0; i < schedule->count; i++) {
        sl_action action = schedule->actions[i];
        if (action.stage == 0 && sli_action_is_backward(action.kind) &&
            in_range(action.micro, schedule) && number[action.micro / slices] < 0)
            number[action.micro / slices] = next++;
    }
    for (size_t i = 0; i < schedule->count && next == micros; i++) {
        int *micro = &schedule->actions[i].micro;
        if (in_range(*micro, schedule))
            *micro = number[*micro / slices] * slices + *micro % slices;
    }
    free(number);
    return SL_OK;
}

/* Of the slices' table, which does not deadlock, these are some of the actions, with all that they
 * need of each other. */
static bool stands_for_all(sl_action action)
{
    bool forward = action.kind == SL_ACTION_FORWARD || action.kind == SL_ACTION_RECOMPUTE;
    return sli_action_slice(action) == (forward ? action.slices - 1 : 0);
}

sl_status sli_schedule_join_slices(sl_schedule *schedule)
{
    bool *marks;
    int slices = schedule->slices;
    size_t first = 0, written = 0;
    SL_TRY(sli_schedule_allocate_marks(schedule, &marks));
    for (int rank = 0; rank < schedule->ranks; rank++) {
        size_t end = schedule->ends[rank];
        bool has_partner = false; /* the action before was kept */
        for (size_t i = first; i < end; i++) {
            sl_action action = schedule->actions[i];
            bool kept = stands_for_all(action);
            action.joined = action.joined && has_partner;
            action.micro /= slices;
            if (kept)
                schedule->actions[written++] = action;
            has_partner = kept;
        }
        schedule->ends[rank] = written;
        first = end;
    }
    schedule->count = written;
    schedule->micros /= slices;
    schedule->slices = 1;
    sli_schedule_set_marks(schedule, marks);
    return SL_OK;
}

sl_status sl_schedule_first_micros(const sl_schedule *schedule, int micros, sl_schedule **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(schedule);
    int slices, numbers;
    SL_TRY(sli_schedule_count_slices(&(sl_schedule_options){.micros = micros,
                                                            .slices = schedule->slices},
                                     &slices, &numbers));
    SL_TRY(sli_schedule_allocate(schedule->ranks, schedule->stages, numbers, schedule->placement,
                                 schedule->count, out));
    (*out)->forward_only = schedule->forward_only;
    (*out)->slices = slices;
    size_t first = 0;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        bool has_partner = false; /* the action before was kept */
        for (size_t i = first; i < schedule->ends[rank]; i++) {
            sl_action action = schedule->actions[i];
            bool kept = action.micro < numbers;
            action.joined = action.joined && has_partner;
            if (kept)
                (*out)->actions[(*out)->count++] = action;
            has_partner = kept;
        }
        (*out)->ends[rank] = (*out)->count;
        first = schedule->ends[rank];
    }
    sl_status status = sli_schedule_mark(*out);
    if (status != SL_OK)
        sl_schedule_destroy(out);
    return status;
}
