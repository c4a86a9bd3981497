/* The validator. First every action by itself, as its row comes to it: a micro-batch goes through
 * these states at a stage, and any other step is a fault.
 *
 *     not seen ──F──▶ kept ─────────────────────────┬──B──▶ done
 *         └──F that discards──▶ discarded ──R──▶ kept again   └──I──▶ half done ──W──▶ done
 *
 * At the end every micro-batch must be done (discarded, in a table or a stage that never goes
 * backward). At each stage, I and B together must ascend over micro-batches, and W and B together:
 * that is the order in which gradients are added up. A micro-batch's slices, each with states of
 * its own, go forward in order; since their numbers descend, they then go backward in reverse.
 *
 * Where the head is split, each rank has S and then T of every micro-batch, both ascending.
 *
 * Then all rows together: the table is played; where it comes to a stop before all rows have ended,
 * ranks wait for each other in a circle, and a pipe would wait for ever. */
#include "core/error.h"
#include "parallel/schedule/play.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef enum micro_state { NOT_SEEN, KEPT, DISCARDED, KEPT_AGAIN, HALF_DONE, DONE } micro_state;

/* What is wrong with an action of this kind in this state, NULL if nothing. */
static const char *find_fault(micro_state state, sl_action_kind kind)
{
    switch (kind) {
    case SL_ACTION_FORWARD:
        return state == NOT_SEEN ? NULL : "runs the micro-batch forward a second time";
    case SL_ACTION_RECOMPUTE:
        return state == DISCARDED    ? NULL
               : state == NOT_SEEN   ? "comes before the micro-batch's forward"
               : state == KEPT_AGAIN ? "comes a second time"
                                     : "comes after the micro-batch's backward";
    case SL_ACTION_BACKWARD:
    case SL_ACTION_BACKWARD_INPUT:
        return state == KEPT || state == KEPT_AGAIN ? NULL
               : state == NOT_SEEN                  ? "comes before the micro-batch's forward"
               : state == DISCARDED                 ? "comes before the R that it needs"
                                                    : "runs the micro-batch backward a second time";
    case SL_ACTION_BACKWARD_WEIGHT:
        return state == HALF_DONE ? NULL
               : state == DONE    ? "adds to the weights a second time"
                                  : "comes before the micro-batch's I";
    case SL_ACTION_HEAD_FORWARD:
    case SL_ACTION_HEAD_BACKWARD:
        break; /* check_head */
    }
    return "has no kind";
}

static micro_state next_state(sl_action action)
{
    switch (action.kind) {
    case SL_ACTION_FORWARD:
        return action.discards ? DISCARDED : KEPT;
    case SL_ACTION_RECOMPUTE:
        return KEPT_AGAIN;
    case SL_ACTION_BACKWARD_INPUT:
        return HALF_DONE;
    case SL_ACTION_BACKWARD:
    case SL_ACTION_BACKWARD_WEIGHT:
    case SL_ACTION_HEAD_FORWARD:
    case SL_ACTION_HEAD_BACKWARD:
        break;
    }
    return DONE;
}

/* ---- The cells -------------------------------------------------------------------------- */

static sl_status check_cell(const sl_schedule *schedule, int rank, int number, sl_action action)
{
    if (!sli_action_letter(action.kind))
        return sl_error(SL_ERR_INVALID, "schedule: rank %d, action %d has no kind (%d)", rank,
                        number, (int)action.kind);
    char text[SLI_ACTION_TEXT_BYTES];
    if (action.stage < 0 || action.stage >= schedule->stages)
        return sl_error(SL_ERR_INVALID,
                        "schedule: rank %d, action %d: %s is of a stage outside 0 to %d", rank,
                        number, sli_action_text(action, text), schedule->stages - 1);
    if (action.micro < 0 || action.micro >= schedule->micros)
        return sl_error(SL_ERR_INVALID,
                        "schedule: rank %d, action %d: %s is of a micro-batch outside 0 to %d",
                        rank, number, sli_action_text(action, text),
                        sl_schedule_micros(schedule) - 1);
    if (schedule->placement[action.stage] != rank)
        return sl_error(SL_ERR_INVALID,
                        "schedule: rank %d, action %d: %s is of a stage that rank %d has", rank,
                        number, sli_action_text(action, text), schedule->placement[action.stage]);
    if (!sli_action_is_of_head(action.kind))
        return SL_OK;
    if (schedule->slices > 1)
        return sl_error(SL_ERR_INVALID,
                        "schedule: rank %d, action %d: %s is of a split head, but the table has "
                        "slices",
                        rank, number, sli_action_text(action, text));
    int first = sli_schedule_first_stage(schedule, rank);
    if (action.stage != first)
        return sl_error(SL_ERR_INVALID,
                        "schedule: rank %d, action %d: %s must be of the rank's first stage, %d",
                        rank, number, sli_action_text(action, text), first);
    return SL_OK;
}

/* Two joined actions are a forward and a backward that does not need it. */
static sl_status check_joined(int rank, int number, const sl_action *actions)
{
    char text[SLI_ACTION_TEXT_BYTES];
    const char *reason = NULL;
    bool goes_backward =
        sli_action_is_backward(actions[0].kind) || actions[0].kind == SL_ACTION_BACKWARD_WEIGHT;
    if (number == 0 || actions[-1].joined || actions[-1].kind != SL_ACTION_FORWARD ||
        !goes_backward)
        reason = "a cell with two has a forward, then a backward";
    else if (actions[-1].stage == actions[0].stage && actions[-1].micro == actions[0].micro)
        reason = "it needs that forward";
    if (!reason)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "schedule: rank %d, action %d: %s cannot be in one cell with the action before "
                    "it: %s",
                    rank, number, sli_action_text(actions[0], text), reason);
}

sl_status sli_schedule_check_cells(const sl_schedule *schedule)
{
    for (int rank = 0; rank < schedule->ranks; rank++) {
        const sl_action *row;
        int count = sl_schedule_actions(schedule, rank, &row);
        for (int i = 0; i < count; i++) {
            SL_TRY(check_cell(schedule, rank, i, row[i]));
            if (row[i].joined)
                SL_TRY(check_joined(rank, i, row + i));
        }
    }
    return SL_OK;
}

/* ---- The drawing below an error --------------------------------------------------------- */

enum { DRAWN_RANKS = 8, DRAWN_CLOCKS = 12 };

/* Puts the last clocks of `play` below the error's text, for ranks around `rank`. */
static sl_status add_drawing(const sl_schedule *schedule, const sli_play *play, int rank,
                             size_t end_clock, sl_status status)
{
    int first = rank - DRAWN_RANKS / 2 > 0 ? rank - DRAWN_RANKS / 2 : 0;
    int end = first + DRAWN_RANKS < schedule->ranks ? first + DRAWN_RANKS : schedule->ranks;
    size_t first_clock = end_clock > DRAWN_CLOCKS ? end_clock - DRAWN_CLOCKS : 0;
    sli_window window = {first, end, first_clock, end_clock};
    char *drawing;
    if (end_clock == 0 || sli_draw_play(schedule, play, &window, &drawing) != SL_OK)
        return status;
    sli_error_add_lines(status, drawing);
    free(drawing);
    return status;
}

/* Draws up to the faulty action, which is the last one drawn. */
static sl_status draw_fault(const sl_schedule *schedule, const sli_play *play, int rank, int number,
                            sl_status status)
{
    size_t index = sli_schedule_row(schedule, rank) + (size_t)number;
    bool ran = (size_t)number < play->done[rank];
    size_t end = ran ? (size_t)play->ends[index] : (size_t)play->makespan;
    return add_drawing(schedule, play, rank, end, status);
}

/* ---- The order at each stage ------------------------------------------------------------ */

typedef struct proof {
    const sl_schedule *schedule;
    const sli_play *play;
    unsigned char *states;         /* [stages][micros] of micro_state */
    int *last_input, *last_weight; /* [stages] the newest micro-batch of I or B, of W or B */
} proof;

static const char *check_order(proof *p, sl_action action)
{
    bool input = sli_action_is_backward(action.kind);
    bool weight = action.kind == SL_ACTION_BACKWARD || action.kind == SL_ACTION_BACKWARD_WEIGHT;
    int input_before = input ? p->last_input[action.stage] : 0;
    int weight_before = weight ? p->last_weight[action.stage] : 0;
    int before = input_before > weight_before ? input_before : weight_before;
    int slices = p->schedule->slices;
    if (before / slices > action.micro / slices)
        return "comes after a higher micro-batch: at each stage, backwards must ascend over "
               "micro-batches";
    if (before > action.micro)
        return "comes after an earlier slice: at each stage, a micro-batch's slices must go "
               "backward from the last to the first";
    if (input)
        p->last_input[action.stage] = action.micro;
    if (weight)
        p->last_weight[action.stage] = action.micro;
    return NULL;
}

/* How many S and T of the row came so far, of micro-batches 0 and up. */
typedef struct head_order {
    int forwards, backwards;
} head_order;

static const char *check_head(sl_action action, head_order *head)
{
    bool forward = action.kind == SL_ACTION_HEAD_FORWARD;
    int *next = forward ? &head->forwards : &head->backwards;
    if (action.micro != *next)
        return "is out of order: on each rank, S and T must ascend over micro-batches";
    if (!forward && action.micro >= head->forwards)
        return "comes before the micro-batch's S";
    ++*next;
    return NULL;
}

static const char *check_action(proof *p, sl_action action, head_order *head)
{
    if (sli_action_is_of_head(action.kind))
        return check_head(action, head);
    unsigned char *state = &p->states[sli_schedule_cell(p->schedule, action.stage, action.micro)];
    const char *fault = find_fault((micro_state)*state, action.kind);
    if (!fault && action.kind == SL_ACTION_FORWARD && sli_action_slice(action) > 0 &&
        state[1] == NOT_SEEN)
        fault = "comes before the forward of the slice before it";
    if (!fault)
        fault = check_order(p, action);
    *state = (unsigned char)next_state(action);
    return fault;
}

static sl_status check_row(proof *p, int rank)
{
    const sl_action *row;
    int count = sl_schedule_actions(p->schedule, rank, &row);
    head_order head = {0, 0};
    char text[SLI_ACTION_TEXT_BYTES];
    for (int i = 0; i < count; i++) {
        const char *fault = check_action(p, row[i], &head);
        if (fault)
            return draw_fault(p->schedule, p->play, rank, i,
                              sl_error(SL_ERR_INVALID, "schedule: rank %d, action %d: %s %s", rank,
                                       i, sli_action_text(row[i], text), fault));
    }
    bool has_all = head.forwards == p->schedule->micros && head.backwards == p->schedule->micros;
    if (p->schedule->splits_head && !has_all)
        return draw_fault(p->schedule, p->play, rank, INT_MAX,
                          sl_error(SL_ERR_INVALID,
                                   "schedule: rank %d has %d S and %d T, not one of each of the %d "
                                   "micro-batches",
                                   rank, head.forwards, head.backwards, p->schedule->micros));
    return SL_OK;
}

static sl_status check_end(const proof *p)
{
    const sl_schedule *schedule = p->schedule;
    int forward_only =
        sli_schedule_goes_backward(schedule) ? schedule->forward_only : schedule->stages;
    for (int stage = 0; stage < schedule->stages; stage++)
        for (int micro = 0; micro < schedule->micros; micro++) {
            micro_state state = p->states[sli_schedule_cell(schedule, stage, micro)];
            micro_state wanted = stage < forward_only ? DISCARDED : DONE;
            const sl_action slice = {.micro = micro, .slices = schedule->slices};
            char text[SLI_MICRO_TEXT_BYTES];
            const char *missing = state == NOT_SEEN    ? "forward"
                                  : state == HALF_DONE ? "backward for the weights"
                                                       : "backward";
            if (state != wanted)
                return draw_fault(schedule, p->play, schedule->placement[stage], INT_MAX,
                                  sl_error(SL_ERR_INVALID,
                                           "schedule: stage %d never runs micro-batch %s %s", stage,
                                           sli_action_micro_text(slice, text), missing));
        }
    return SL_OK;
}

static sl_status check_rows(const sl_schedule *schedule, const sli_play *play)
{
    size_t stages = (size_t)schedule->stages;
    proof p = {.schedule = schedule,
               .play = play,
               .states = calloc(sli_schedule_cell(schedule, schedule->stages, 0), 1),
               .last_input = calloc(stages, sizeof(int)),
               .last_weight = calloc(stages, sizeof(int))};
    sl_status status;
    SL_TRY_OR_FAIL(p.states && p.last_input && p.last_weight
                       ? SL_OK
                       : sli_no_memory("schedule", "%d micro-batches", schedule->micros));
    for (int rank = 0; rank < schedule->ranks; rank++)
        SL_TRY_OR_FAIL(check_row(&p, rank));
    status = check_end(&p);

fail:
    free(p.states);
    free(p.last_input);
    free(p.last_weight);
    return status;
}

/* ---- Deadlock --------------------------------------------------------------------------- */

static const char *result_name(sl_action_kind kind)
{
    return kind == SL_ACTION_FORWARD        ? "forward"
           : kind == SL_ACTION_HEAD_FORWARD ? "head's forward"
                                            : "backward";
}

/* The lowest rank that cannot go on says what it waits for. */
static sl_status check_deadlock(const sl_schedule *schedule, const sli_play *play)
{
    for (int rank = 0; rank < schedule->ranks; rank++) {
        const sl_action *row;
        sl_action result;
        if (!sli_play_stuck(schedule, play, rank, &result))
            continue;
        sl_schedule_actions(schedule, rank, &row);
        char text[SLI_ACTION_TEXT_BYTES], micro[SLI_MICRO_TEXT_BYTES];
        return add_drawing(schedule, play, rank, (size_t)play->makespan,
                           sl_error(SL_ERR_INVALID,
                                    "schedule: deadlock: rank %d waits at %s for the %s of "
                                    "micro-batch %s at stage %d, which never comes",
                                    rank, sli_action_text(row[play->done[rank]], text),
                                    result_name(result.kind), sli_action_micro_text(result, micro),
                                    result.stage));
    }
    return SL_OK;
}

sl_status sl_schedule_validate(const sl_schedule *schedule)
{
    SLI_CHECK_NOT_NULL(schedule);
    SL_TRY(sli_schedule_check_cells(schedule));
    sli_play play;
    SL_TRY(sli_schedule_play(schedule, &(sli_play_costs){.clocks = true}, &play));
    sl_status status;
    SL_TRY_OR_FAIL(check_rows(schedule, &play));
    status = check_deadlock(schedule, &play);

fail:
    sli_play_clear(&play);
    return status;
}
