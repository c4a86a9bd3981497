/* The validator. First every row by itself: a micro-batch goes through these states at a stage, and
 * any other step is a fault.
 *
 *     not seen ──FORWARD──────────────────────────────────→ kept ──BACKWARD──→ done
 *         └──FORWARD_DISCARD──→ discarded ──RECOMPUTE──→ kept again ──BACKWARD──→ done
 *
 * At the end of a row every micro-batch must be done (discarded, in a forward-only table). Then all
 * rows together: the table is played; where it comes to a stop before all rows have ended, there is
 * a cycle of stages that wait for each other, and a pipe would wait for ever. */
#include "parallel/schedule_play.h"

#include <stdlib.h>
#include <string.h>

typedef enum micro_state { NOT_SEEN, KEPT, DISCARDED, KEPT_AGAIN, DONE } micro_state;

static bool has_activations(micro_state state)
{
    return state == KEPT || state == KEPT_AGAIN;
}

/* What is wrong with `action` in this state, NULL if nothing. */
static const char *fault(micro_state state, sl_action_kind kind)
{
    switch (kind) {
    case SL_ACTION_FORWARD:
    case SL_ACTION_FORWARD_DISCARD:
        return state == NOT_SEEN ? NULL : "runs the micro-batch forward a second time";
    case SL_ACTION_RECOMPUTE:
        return state == DISCARDED    ? NULL
               : state == NOT_SEEN   ? "comes before the micro-batch's forward"
               : state == KEPT       ? "follows a FORWARD, which keeps the activations already"
               : state == KEPT_AGAIN ? "comes a second time"
                                     : "comes after the micro-batch's backward";
    case SL_ACTION_BACKWARD:
        return has_activations(state) ? NULL
               : state == NOT_SEEN    ? "comes before the micro-batch's forward"
               : state == DISCARDED   ? "lacks the activations that FORWARD_DISCARD gave up: a "
                                        "RECOMPUTE must come first"
                                      : "comes a second time";
    }
    return "has no kind";
}

static micro_state after(sl_action_kind kind)
{
    switch (kind) {
    case SL_ACTION_FORWARD:
        return KEPT;
    case SL_ACTION_FORWARD_DISCARD:
        return DISCARDED;
    case SL_ACTION_RECOMPUTE:
        return KEPT_AGAIN;
    case SL_ACTION_BACKWARD:
        break;
    }
    return DONE;
}

static sl_status check_row(const sl_schedule *schedule, int stage, bool forward_only,
                           micro_state *states)
{
    for (int micro = 0; micro < schedule->micros; micro++)
        states[micro] = NOT_SEEN;
    const sl_action *row;
    int count = sl_schedule_actions(schedule, stage, &row);
    for (int i = 0; i < count; i++) {
        const char *what = fault(states[row[i].micro], row[i].kind);
        if (what)
            return sl_error(SL_ERR_INVALID, "schedule: stage %d, action %d: %s %d %s", stage, i,
                            sli_action_name(row[i].kind), row[i].micro, what);
        states[row[i].micro] = after(row[i].kind);
    }
    for (int micro = 0; micro < schedule->micros; micro++) {
        if (states[micro] == NOT_SEEN)
            return sl_error(SL_ERR_INVALID, "schedule: stage %d never runs micro-batch %d forward",
                            stage, micro);
        if (!forward_only && states[micro] != DONE)
            return sl_error(SL_ERR_INVALID, "schedule: stage %d never runs micro-batch %d backward",
                            stage, micro);
    }
    return SL_OK;
}

static sl_status check_rows(const sl_schedule *schedule)
{
    micro_state *states = malloc((size_t)schedule->micros * sizeof *states);
    if (!states)
        return sl_error(SL_ERR_MEMORY, "schedule: no memory to validate %d micro-batches",
                        schedule->micros);
    bool forward_only = sli_schedule_is_forward_only(schedule);
    sl_status status = SL_OK;
    for (int stage = 0; stage < schedule->stages && status == SL_OK; stage++)
        status = check_row(schedule, stage, forward_only, states);
    free(states);
    return status;
}

/* The lowest stage that cannot go on says what it waits for, above the drawing. */
static sl_status deadlock_error(const sl_schedule *schedule, int stage, sl_action stuck)
{
    char *drawing;
    SL_TRY(sl_schedule_draw(schedule, &drawing));
    bool backward = stuck.kind == SL_ACTION_BACKWARD;
    sl_status status =
        sl_error(SL_ERR_INVALID,
                 "schedule: deadlock: stage %d waits in %s %d for the %s of "
                 "micro-batch %d at stage %d, which never comes:\n%s",
                 stage, sli_action_name(stuck.kind), stuck.micro, backward ? "backward" : "forward",
                 stuck.micro, sli_action_waits_for(schedule, stage, stuck), drawing);
    free(drawing);
    return status;
}

sl_status sl_schedule_validate(const sl_schedule *schedule)
{
    sli_play_costs unit_costs = {0};
    sli_play play;
    SL_TRY(sli_schedule_play(schedule, &unit_costs, &play)); /* refuses unknown actions */
    sl_status status = check_rows(schedule);
    for (int stage = 0; stage < schedule->stages && status == SL_OK; stage++) {
        const sl_action *row;
        if (play.done[stage] < sl_schedule_actions(schedule, stage, &row))
            status = deadlock_error(schedule, stage, row[play.done[stage]]);
    }
    sli_play_clear(&play);
    return status;
}
