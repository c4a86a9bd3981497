/* The head split over all ranks: where S and T go (arXiv 2411.05288, its algorithm 2, in which a
 * micro-batch waits once for all ranks).
 *
 *     rank 0   0F0 0F1 0F2 0S0 0B0 ...             S needs the last stage's F, the last stage's B
 *     rank 1       1F0 1F1 1S0 1B0 1T0 ...         needs the S of every rank, T needs that B
 *
 * The order of forwards and backwards is given. It is played with costs of which only the
 * proportion of the head is known. Whoever can start first, does: S before anything else, then the
 * row's next action; T where its rank would wait otherwise, or before it holds more than it may.
 *
 * Under 1F1B the last stage would wait for the S of ranks that are in the middle of another action.
 * So each forward may move ahead of the one or two backwards before it, in all rows alike: the last
 * stage then runs the next forward meanwhile. The shortest of these tables is taken, and the one
 * that moves least of equals. A moved table may deadlock; then it is none of them. */
#include "core/error.h"
#include "parallel/schedule/table.h"

#include "core/memory.h"
#include "parallel/schedule/play.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MOVES = 2, HELD = 2 };

/* An action that a rank may run next. */
typedef struct choice {
    sl_action action;
    double start; /* INFINITY: there is none */
    bool of_row;
} choice;

static const choice no_choice = {.start = INFINITY};

typedef struct rank_state {
    size_t next, end;        /* in the given row */
    size_t written;          /* where the next action goes */
    int forwards, backwards; /* how many S and T it has */
    double time;
    choice best;     /* of its next actions */
    bool is_changed; /* something has ended since that was found that it may wait for */
} rank_state;

typedef struct placing {
    const sl_schedule *given;            /* its rows; `splits_head` is set */
    const sl_action *rows;               /* [given->count] with forwards moved */
    double stage_cost[SLI_ACTION_KINDS]; /* of one stage, or of one rank's part of the head */
    int most_held;
    rank_state *ranks;
    double *ends;       /* [results] of those that are there; negative: not yet */
    sl_action *actions; /* the table's that is made */
    double makespan;
} placing;

/* ---- Moving forwards -------------------------------------------------------------------- */

/* Moves the forward at `at` ahead of the backward before it, and of its recomputation. */
static void move_forward(sl_action *row, size_t at)
{
    sl_action forward = row[at];
    size_t target = at;
    while (target > 0 && !sli_action_is_backward(row[target - 1].kind) &&
           row[target - 1].kind != SL_ACTION_FORWARD)
        target--;
    if (target == 0 || row[target - 1].kind == SL_ACTION_FORWARD)
        return;
    target--;
    while (target > 0 && row[target - 1].kind == SL_ACTION_RECOMPUTE)
        target--;
    memmove(row + target + 1, row + target, (at - target) * sizeof *row);
    row[target] = forward;
}

/* The first forward goes first, so no forward passes another. */
static void move_forwards(const sl_schedule *schedule, sl_action *rows)
{
    for (int rank = 0; rank < schedule->ranks; rank++)
        for (size_t i = sli_schedule_row(schedule, rank); i < schedule->ends[rank]; i++)
            if (rows[i].kind == SL_ACTION_FORWARD)
                move_forward(rows + sli_schedule_row(schedule, rank),
                             i - sli_schedule_row(schedule, rank));
}

/* ---- Playing ---------------------------------------------------------------------------- */

/* When the action can start on a rank that is free from `time` on; INFINITY: not known yet. */
static double find_start(const placing *p, sl_action action, double time)
{
    sli_wait wait;
    for (int i = 0; sli_action_wait(p->given, action, i, &wait); i++) {
        double end = p->ends[wait.result];
        if (end < 0)
            return INFINITY;
        time = fmax(time, end);
    }
    return time;
}

static choice choose_head(const placing *p, int rank, sl_action_kind kind, int micro)
{
    const sl_action action = {.stage = sli_schedule_first_stage(p->given, rank),
                              .kind = kind,
                              .micro = micro};
    if (micro >= p->given->micros)
        return no_choice;
    return (choice){action, find_start(p, action, p->ranks[rank].time), false};
}

static choice choose_action(const placing *p, int rank)
{
    const rank_state *state = &p->ranks[rank];
    choice row = no_choice, forward = no_choice, backward = no_choice;
    bool is_full = state->forwards - state->backwards >= p->most_held;
    if (state->next < state->end)
        row =
            (choice){p->rows[state->next], find_start(p, p->rows[state->next], state->time), true};
    if (!is_full)
        forward = choose_head(p, rank, SL_ACTION_HEAD_FORWARD, state->forwards);
    if (state->backwards < state->forwards)
        backward = choose_head(p, rank, SL_ACTION_HEAD_BACKWARD, state->backwards);
    bool fits = is_full || row.start == INFINITY ||
                backward.start + p->stage_cost[SL_ACTION_HEAD_BACKWARD] <= row.start;
    choice best = forward;
    if (is_full && backward.start <= row.start)
        best = backward;
    if (row.start < best.start)
        best = row;
    return fits && backward.start < best.start ? backward : best;
}

/* The ranks that may wait for the action: its own, those of the neighbouring stages, and, of a
 * split head, all ranks for the last stage and the last stage's for the others. */
static void note_change(placing *p, int rank, sl_action action)
{
    const sl_schedule *given = p->given;
    int last = given->stages - 1;
    bool is_for_all = action.stage == last && !sli_action_is_of_head(action.kind);
    p->ranks[rank].is_changed = true;
    p->ranks[given->placement[last]].is_changed |= action.kind == SL_ACTION_HEAD_FORWARD;
    if (action.stage > 0)
        p->ranks[given->placement[action.stage - 1]].is_changed = true;
    if (action.stage < last)
        p->ranks[given->placement[action.stage + 1]].is_changed = true;
    for (int i = 0; is_for_all && i < given->ranks; i++)
        p->ranks[i].is_changed = true;
}

static void append(placing *p, int rank, choice chosen)
{
    rank_state *state = &p->ranks[rank];
    size_t result = sli_result_number(p->given, chosen.action);
    state->time = chosen.start + p->stage_cost[chosen.action.kind];
    state->next += chosen.of_row;
    state->forwards += chosen.action.kind == SL_ACTION_HEAD_FORWARD;
    state->backwards += chosen.action.kind == SL_ACTION_HEAD_BACKWARD;
    p->actions[state->written++] = chosen.action;
    if (result < sli_result_count(p->given))
        p->ends[result] = state->time;
    p->makespan = fmax(p->makespan, state->time);
    note_change(p, rank, chosen.action);
}

/* The rank whose next action starts first runs it: whatever is not known yet ends later. */
static sl_status place_all(placing *p)
{
    size_t count = p->given->count + 2 * (size_t)p->given->ranks * (size_t)p->given->micros;
    p->makespan = 0;
    for (size_t i = 0; i < count; i++) {
        choice best = no_choice;
        int chosen = 0;
        for (int rank = 0; rank < p->given->ranks; rank++) {
            rank_state *state = &p->ranks[rank];
            if (state->is_changed)
                state->best = choose_action(p, rank);
            state->is_changed = false;
            if (state->best.start >= best.start)
                continue;
            best = state->best;
            chosen = rank;
        }
        if (best.start == INFINITY)
            return sl_error(SL_ERR_INVALID, "schedule: the head cannot be split: the table "
                                            "deadlocks");
        append(p, chosen, best);
    }
    return SL_OK;
}

static void start_rows(placing *p)
{
    const sl_schedule *given = p->given;
    size_t more = 2 * (size_t)given->micros;
    for (int rank = 0; rank < given->ranks; rank++) {
        size_t row = sli_schedule_row(given, rank);
        p->ranks[rank] = (rank_state){.next = row,
                                      .end = given->ends[rank],
                                      .written = row + (size_t)rank * more,
                                      .is_changed = true};
    }
    for (size_t i = 0; i < sli_result_count(given); i++)
        p->ends[i] = -1;
}

/* ---- The rewrite ------------------------------------------------------------------------ */

static sl_status check_table(const sl_schedule *schedule, double head)
{
    if (!(head > 0) || !isfinite(head))
        return sl_error(SL_ERR_INVALID, "schedule: the head's part must be above 0, got %g", head);
    if (schedule->slices > 1)
        return sl_error(SL_ERR_INVALID,
                        "schedule: the head of a table with slices cannot be split");
    return sli_schedule_check_cells(schedule);
}

/* A stage's F, I and W take 1 each; the head's forward has one product, S two, T one. */
static void set_costs(placing *p, double head)
{
    double part = head * p->given->stages / p->given->ranks;
    for (int kind = 0; kind < SLI_ACTION_KINDS; kind++)
        p->stage_cost[kind] = 1;
    p->stage_cost[SL_ACTION_BACKWARD] = 2;
    p->stage_cost[SL_ACTION_HEAD_FORWARD] = 2 * part;
    p->stage_cost[SL_ACTION_HEAD_BACKWARD] = part;
}

/* Tries to move forwards 0, 1, … times; *best becomes the actions of the shortest table, `room`
 * another's. */
static sl_status find_best(placing *p, sl_action *rows, sl_action **best, sl_action **room)
{
    double shortest = INFINITY;
    for (int moves = 0; moves <= MOST_MOVES; moves++) {
        p->rows = rows;
        p->actions = *room;
        p->most_held = HELD + moves;
        start_rows(p);
        sl_status status = place_all(p);
        if (moves == 0)
            SL_TRY(status);
        if (status == SL_OK && p->makespan < shortest * (1 - 1e-9)) {
            shortest = p->makespan;
            *room = *best;
            *best = p->actions;
        }
        move_forwards(p->given, rows);
    }
    return SL_OK;
}

sl_status sl_schedule_split_head(sl_schedule *schedule, double head)
{
    SLI_CHECK_NOT_NULL(schedule);
    if (schedule->splits_head || !sli_schedule_goes_backward(schedule))
        return SL_OK;
    SL_TRY(check_table(schedule, head));
    size_t more = 2 * (size_t)schedule->micros, ranks = (size_t)schedule->ranks;
    size_t count = schedule->count + ranks * more;
    schedule->splits_head = true;
    placing p = {.given = schedule,
                 .ranks = malloc(ranks * sizeof *p.ranks),
                 .ends = malloc(sli_result_count(schedule) * sizeof *p.ends)};
    sl_action *rows = malloc((schedule->count + 1) * sizeof *rows);
    sl_action *best = malloc(count * sizeof *best), *room = malloc(count * sizeof *room);
    bool *marks = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(p.ranks && p.ends && rows && best && room
                       ? sli_schedule_allocate_marks(schedule, &marks)
                       : sli_no_memory("schedule", "a table of %zu actions", count));
    memcpy(rows, schedule->actions, schedule->count * sizeof *rows);
    for (size_t i = 0; i < schedule->count; i++)
        rows[i].joined = false;
    set_costs(&p, head);
    SL_TRY_OR_FAIL(find_best(&p, rows, &best, &room));
    for (int rank = 0; rank < schedule->ranks; rank++)
        schedule->ends[rank] += ((size_t)rank + 1) * more;
    free(schedule->actions);
    schedule->actions = best;
    schedule->count = count;
    sli_schedule_set_marks(schedule, marks);
    best = NULL;
    marks = NULL;

fail:
    schedule->splits_head = status == SL_OK;
    free(p.ranks);
    free(p.ends);
    free(rows);
    free(best);
    free(room);
    free(marks);
    return status;
}
