#include "parallel/schedule/play.h"

#include "core/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A play under way. */
typedef struct player {
    const sl_schedule *schedule;
    const sli_play_costs *costs;
    bool goes_backward;
    double
        *departures; /* [results] by number: when they leave for other ranks; negative: not yet */
    int *routes;     /* [2 * stages] the route of a stage's tensors to the next stage, then that
                        of its gradients to the one before. Tensors between the same two ranks
                        have one: the lowest such number; NULL: links are never busy */
    double *taken;   /* [2 * stages] by route, until when it is occupied */
    double *free_at; /* [ranks]: when the rank's last action ended */
    size_t *waits;   /* [ranks]: number of the result that the rank waits for, or NOTHING */
    int *runnable, count; /* stack of ranks that may go on */
} player;

static const size_t NOTHING = SIZE_MAX;

/* ---- Results ---------------------------------------------------------------------------- */

static size_t cell_count(const sl_schedule *schedule)
{
    return sli_schedule_cell(schedule, schedule->stages, 0);
}

static size_t head_result(const sl_schedule *schedule, int rank, int micro)
{
    return 2 * cell_count(schedule) + (size_t)rank * (size_t)schedule->micros + (size_t)micro;
}

size_t sli_result_count(const sl_schedule *schedule)
{
    return head_result(schedule, schedule->splits_head ? schedule->ranks : 0, 0);
}

size_t sli_result_number(const sl_schedule *schedule, sl_action action)
{
    size_t cell = sli_schedule_cell(schedule, action.stage, action.micro);
    if (action.kind == SL_ACTION_FORWARD)
        return cell;
    if (sli_action_is_backward(action.kind))
        return cell_count(schedule) + cell;
    return action.kind == SL_ACTION_HEAD_FORWARD
               ? head_result(schedule, schedule->placement[action.stage], action.micro)
               : NOTHING;
}

/* The result of another stage. */
static sli_wait wait_for(const sl_schedule *schedule, int stage, sl_action_kind kind, int micro,
                         int link)
{
    const sl_action source = {.stage = stage, .kind = kind, .micro = micro};
    return (sli_wait){sli_result_number(schedule, source), schedule->placement[stage], link};
}

bool sli_action_wait(const sl_schedule *schedule, sl_action action, int index, sli_wait *out)
{
    int last = schedule->stages - 1, stage = action.stage, micro = action.micro;
    if (action.kind == SL_ACTION_FORWARD && stage > 0)
        *out = wait_for(schedule, stage - 1, SL_ACTION_FORWARD, micro, stage - 1);
    else if (sli_action_is_backward(action.kind) && stage < last)
        *out = wait_for(schedule, stage + 1, SL_ACTION_BACKWARD, micro, stage);
    else if (action.kind == SL_ACTION_HEAD_FORWARD)
        *out =
            wait_for(schedule, last, SL_ACTION_FORWARD, micro, last + schedule->placement[stage]);
    else if (action.kind == SL_ACTION_HEAD_BACKWARD)
        *out =
            wait_for(schedule, last, SL_ACTION_BACKWARD, micro, last + schedule->placement[stage]);
    else if (sli_action_is_backward(action.kind) && schedule->splits_head) {
        *out =
            (sli_wait){head_result(schedule, index, micro), index, last + schedule->ranks + index};
        return index < schedule->ranks;
    } else
        return false;
    return index == 0;
}

/* ---- Links --------------------------------------------------------------------------------- */

/* The stage that the route's tensors go to; it may not exist. */
static int route_target(const sl_schedule *schedule, int route)
{
    int stage = route % schedule->stages;
    return route < schedule->stages ? stage + 1 : stage - 1;
}

/* `heads` [ranks] and `next` [2 * stages] are lists of each rank's routes to different ranks. */
static void number_routes(player *p, int *heads, int *next)
{
    const sl_schedule *schedule = p->schedule;
    const int *placement = schedule->placement;
    for (int rank = 0; rank < schedule->ranks; rank++)
        heads[rank] = -1;
    for (int route = 0; route < 2 * schedule->stages; route++) {
        int source = placement[route % schedule->stages], target = route_target(schedule, route);
        p->routes[route] = route;
        if (target < 0 || target >= schedule->stages)
            continue;
        int same = heads[source];
        while (same >= 0 && placement[route_target(schedule, same)] != placement[target])
            same = next[same];
        if (same >= 0) {
            p->routes[route] = same;
            continue;
        }
        next[route] = heads[source];
        heads[source] = route;
    }
}

static sl_status open_routes(player *p)
{
    size_t routes = 2 * (size_t)p->schedule->stages, ranks = (size_t)p->schedule->ranks;
    if (!p->costs->busy)
        return SL_OK;
    int *heads = calloc(ranks + routes, sizeof *heads);
    p->routes = calloc(routes, sizeof *p->routes);
    p->taken = calloc(routes, sizeof *p->taken);
    bool has_room = heads && p->routes && p->taken;
    if (has_room)
        number_routes(p, heads, heads + ranks);
    free(heads);
    return has_room ? SL_OK : sli_no_memory("schedule", "the links of %d ranks", (int)ranks);
}

/* When the result of an action that has ended leaves: a rank's results come in the order of its
 * row, and each takes the link to another rank for as long as it is busy. */
static double find_departure(player *p, sl_action action, double end)
{
    const sl_schedule *schedule = p->schedule;
    bool is_back = sli_action_is_backward(action.kind);
    if (!p->routes || (!is_back && action.kind != SL_ACTION_FORWARD))
        return end;
    int route = action.stage + (is_back ? schedule->stages : 0),
        target = route_target(schedule, route);
    if (target < 0 || target >= schedule->stages ||
        schedule->placement[target] == schedule->placement[action.stage])
        return end;
    double *taken = &p->taken[p->routes[route]], leaves = fmax(end, *taken);
    *taken = leaves + p->costs->busy[is_back ? target : action.stage];
    return leaves;
}

/* ---- Cells ------------------------------------------------------------------------------ */

static double link_seconds(const player *p, int link)
{
    const sli_play_costs *costs = p->costs;
    int last = p->schedule->stages - 1;
    if (link >= last && costs->head_links)
        return costs->head_links[link - last];
    return costs->links ? costs->links[link < last ? link : last - 1] : costs->link;
}

/* Moves *start to when the action's inputs are there. False: one does not exist yet, and the rank
 * waits for it. */
static bool input_is_there(const player *p, int rank, sl_action action, double *start)
{
    sli_wait wait;
    for (int i = 0; sli_action_wait(p->schedule, action, i, &wait); i++) {
        double arrival = p->departures[wait.result];
        if (arrival < 0) {
            p->waits[rank] = wait.result;
            return false;
        }
        if (wait.rank != rank)
            arrival += link_seconds(p, wait.link);
        *start = arrival > *start ? arrival : *start;
    }
    return true;
}

static double action_duration(const player *p, size_t index)
{
    sl_action action = p->schedule->actions[index];
    if (p->costs->clocks)
        return 1;
    if (p->costs->seconds)
        return p->costs->seconds[index];
    bool is_skipped =
        p->costs->skips_discarded && p->goes_backward && sli_action_is_empty(p->schedule, action);
    return is_skipped ? 0 : p->costs->costs[action.kind][action.stage];
}

/* Makes the rank runnable if it waits for the result. */
static void wake_rank(player *p, int rank, size_t result)
{
    if (p->waits[rank] != result)
        return;
    p->waits[rank] = NOTHING;
    if (!p->costs->cores) /* start_cells asks all ranks */
        p->runnable[p->count++] = rank;
}

/* Records the result of an action. The ranks that wait for it are then runnable. */
static void give_result(player *p, sl_action action, double end)
{
    const sl_schedule *schedule = p->schedule;
    size_t result = sli_result_number(schedule, action);
    if (result == NOTHING)
        return;
    p->departures[result] = find_departure(p, action, end);
    int last = schedule->stages - 1;
    int target = action.kind == SL_ACTION_FORWARD        ? action.stage + 1
                 : action.kind == SL_ACTION_HEAD_FORWARD ? last
                                                         : action.stage - 1;
    if (target >= 0 && target <= last)
        wake_rank(p, schedule->placement[target], result);
    bool of_last = action.stage == last && action.kind != SL_ACTION_HEAD_FORWARD;
    for (int rank = 0; of_last && schedule->splits_head && rank < schedule->ranks; rank++)
        wake_rank(p, rank, result);
}

static size_t cell_end(const sl_schedule *schedule, size_t first, size_t row_end)
{
    size_t end = first + 1;
    while (end < row_end && schedule->actions[end].joined)
        end++;
    return end;
}

/* The cell that begins with action `first`: its actions are first ... *end - 1. */
static bool run_cell(player *p, sli_play *play, int rank, size_t first, size_t end)
{
    const sl_action *actions = p->schedule->actions;
    double start = p->free_at[rank];
    for (size_t i = first; i < end; i++)
        if (!input_is_there(p, rank, actions[i], &start))
            return false;
    double stop = start;
    for (size_t i = first; i < end; i++) {
        play->starts[i] = p->costs->clocks ? start : stop;
        stop = play->starts[i] + action_duration(p, i);
        play->ends[i] = stop;
    }
    for (size_t i = first; i < end; i++)
        give_result(p, actions[i], stop);
    p->free_at[rank] = stop;
    play->makespan = stop > play->makespan ? stop : play->makespan;
    return true;
}

static void run_rank(player *p, sli_play *play, int rank)
{
    const sl_schedule *schedule = p->schedule;
    size_t row = sli_schedule_row(schedule, rank), end = schedule->ends[rank];
    for (size_t first = row + play->done[rank]; first < end;) {
        size_t next = cell_end(schedule, first, end);
        if (!run_cell(p, play, rank, first, next))
            return;
        play->done[rank] += next - first;
        first = next;
    }
}

/* ---- Ranks that share cores ------------------------------------------------------------- */

/* Where a rank is in its row. */
typedef struct row_state {
    size_t next, end; /* its next action, or the one that runs; the end of the row */
    bool runs;
    double left;  /* of the action that runs: seconds on cores of its own */
    double speed; /* 1: it has its cores to itself */
} row_state;

static void start_action(const player *p, sli_play *play, row_state *row, double now)
{
    row->runs = true;
    row->left = action_duration(p, row->next);
    play->starts[row->next] = now;
}

/* Starts the next cells of ranks that are free, where their inputs are there. Returns when the
 * first input comes that is on its way; INFINITY: none is. */
static double start_cells(player *p, sli_play *play, row_state *rows, double now)
{
    double first_arrival = INFINITY;
    for (int rank = 0; rank < p->schedule->ranks; rank++) {
        row_state *row = &rows[rank];
        if (row->runs || row->next == row->end)
            continue;
        double start = now;
        bool has_inputs = true;
        size_t end = cell_end(p->schedule, row->next, row->end);
        for (size_t i = row->next; i < end && has_inputs; i++)
            has_inputs = input_is_there(p, rank, p->schedule->actions[i], &start);
        if (has_inputs && start <= now)
            start_action(p, play, row, now);
        else if (has_inputs)
            first_arrival = fmin(first_arrival, start);
    }
    return first_arrival;
}

/* How many ranks run an action on the rank's cores. */
static int sharing_ranks(const player *p, const row_state *rows, int rank)
{
    int count = 0;
    for (int other = 0; other < p->schedule->ranks; other++)
        count += rows[other].runs && p->costs->cores[other] == p->costs->cores[rank];
    return count;
}

/* Ends the action that runs. Results leave with the cell's last one. */
static void end_action(player *p, sli_play *play, int rank, row_state *row, double now)
{
    const sl_action *actions = p->schedule->actions;
    size_t first = row->next;
    play->ends[row->next++] = now;
    play->done[rank]++;
    play->makespan = now;
    if (row->next < row->end && actions[row->next].joined) {
        start_action(p, play, row, now);
        return;
    }
    row->runs = false;
    while (actions[first].joined)
        first--;
    for (size_t i = first; i < row->next; i++)
        give_result(p, actions[i], now);
}

/* Goes from one event to the next: an action's end, or a result's arrival. */
static void play_shared(player *p, sli_play *play, row_state *rows)
{
    const int ranks = p->schedule->ranks;
    double now = 0;
    for (;;) {
        double until = start_cells(p, play, rows, now);
        int ending = -1;
        for (int rank = 0; rank < ranks; rank++) {
            if (!rows[rank].runs)
                continue;
            rows[rank].speed = 1.0 / sharing_ranks(p, rows, rank);
            double end = now + rows[rank].left / rows[rank].speed;
            if (end > until)
                continue;
            until = end;
            ending = rank;
        }
        if (isinf(until))
            return;
        for (int rank = 0; rank < ranks; rank++)
            if (rows[rank].runs)
                rows[rank].left = fmax(0, rows[rank].left - (until - now) * rows[rank].speed);
        now = until;
        if (ending >= 0)
            end_action(p, play, ending, &rows[ending], now);
    }
}

static sl_status play_on_shared_cores(player *p, sli_play *play)
{
    const sl_schedule *schedule = p->schedule;
    row_state *rows = calloc((size_t)schedule->ranks, sizeof *rows);
    if (!rows)
        return sli_no_memory("schedule", "%d ranks", schedule->ranks);
    for (int rank = 0; rank < schedule->ranks; rank++)
        rows[rank] =
            (row_state){.next = sli_schedule_row(schedule, rank), .end = schedule->ends[rank]};
    play_shared(p, play, rows);
    free(rows);
    return SL_OK;
}

/* ---- All -------------------------------------------------------------------------------- */

static sl_status allocate_play(const sl_schedule *schedule, player *p, sli_play *out)
{
    size_t ranks = (size_t)schedule->ranks;
    size_t results = sli_result_count(schedule);
    p->departures = malloc(results * sizeof *p->departures);
    p->free_at = calloc(ranks, sizeof *p->free_at);
    p->waits = out->waits = malloc(ranks * sizeof *p->waits);
    p->runnable = malloc(ranks * sizeof *p->runnable);
    out->starts = malloc((schedule->count + 1) * sizeof *out->starts);
    out->ends = malloc((schedule->count + 1) * sizeof *out->ends);
    out->done = calloc(ranks, sizeof *out->done);
    if (!p->departures || !p->free_at || !p->waits || !p->runnable || !out->starts || !out->ends ||
        !out->done)
        return sli_no_memory("schedule", "the times of %zu actions", schedule->count);
    for (size_t i = 0; i < results; i++)
        p->departures[i] = -1;
    for (int rank = schedule->ranks - 1; rank >= 0; rank--) {
        p->waits[rank] = NOTHING;
        p->runnable[p->count++] = rank;
    }
    return SL_OK;
}

sl_status sli_schedule_play(const sl_schedule *schedule, const sli_play_costs *costs, sli_play *out)
{
    player p = {.schedule = schedule,
                .costs = costs,
                .goes_backward = sli_schedule_goes_backward(schedule)};
    *out = (sli_play){0};
    sl_status status;
    SL_TRY_OR_FAIL(allocate_play(schedule, &p, out));
    SL_TRY_OR_FAIL(open_routes(&p));
    if (costs->cores)
        SL_TRY_OR_FAIL(play_on_shared_cores(&p, out));
    while (!costs->cores && p.count > 0)
        run_rank(&p, out, p.runnable[--p.count]);

fail:
    free(p.routes);
    free(p.taken);
    free(p.departures);
    free(p.free_at);
    free(p.runnable);
    if (status != SL_OK)
        sli_play_clear(out);
    return status;
}

bool sli_play_stuck(const sl_schedule *schedule, const sli_play *play, int rank, sl_action *result)
{
    size_t number = play->waits[rank], cells = cell_count(schedule);
    size_t micros = (size_t)schedule->micros;
    if (number == NOTHING)
        return false;
    *result = (sl_action){.micro = (int)(number % micros), .slices = schedule->slices};
    if (number >= 2 * cells) {
        result->kind = SL_ACTION_HEAD_FORWARD;
        result->stage = sli_schedule_first_stage(schedule, (int)((number - 2 * cells) / micros));
    } else {
        result->kind = number < cells ? SL_ACTION_FORWARD : SL_ACTION_BACKWARD_INPUT;
        result->stage = (int)(number % cells / micros);
    }
    return true;
}

void sli_play_clear(sli_play *play)
{
    free(play->starts);
    free(play->ends);
    free(play->done);
    free(play->waits);
    *play = (sli_play){0};
}

/* ---- The order at unit costs ---------------------------------------------------------- */

typedef struct started {
    double start;
    int stage, index; /* of the action in the table */
} started;

static int compare_starts(const void *a, const void *b)
{
    const started *one = a, *other = b;
    if (one->start != other->start)
        return one->start < other->start ? -1 : 1;
    if (one->stage != other->stage)
        return one->stage < other->stage ? -1 : 1;
    return one->index < other->index ? -1 : one->index > other->index;
}

static void sort_by_start(const sl_schedule *schedule, const sli_play *play, started *actions,
                          int *order)
{
    for (size_t i = 0; i < schedule->count; i++)
        actions[i] = (started){play->starts[i], schedule->actions[i].stage, (int)i};
    qsort(actions, schedule->count, sizeof *actions, compare_starts);
    for (size_t i = 0; i < schedule->count; i++)
        order[actions[i].index] = (int)i;
}

sl_status sli_schedule_order(const sl_schedule *schedule, int **order)
{
    size_t stages = (size_t)schedule->stages;
    double *costs = malloc(2 * stages * sizeof *costs);
    started *actions = malloc((schedule->count + 1) * sizeof *actions);
    sli_play play = {0};
    sl_status status;
    *order = malloc((schedule->count + 1) * sizeof **order);
    SL_TRY_OR_FAIL(costs && actions && *order
                       ? SL_OK
                       : sli_no_memory("schedule", "the order of %zu actions", schedule->count));
    for (size_t i = 0; i < stages; i++) {
        costs[i] = 1;
        costs[stages + i] = 2;
    }
    const double *one = costs, *two = costs + stages;
    SL_TRY_OR_FAIL(
        sli_schedule_play(schedule, &(sli_play_costs){.costs = {one, one, two, one, one, one, one}},
                          &play));
    sort_by_start(schedule, &play, actions, *order);

fail:
    sli_play_clear(&play);
    free(costs);
    free(actions);
    if (status != SL_OK) {
        free(*order);
        *order = NULL;
    }
    return status;
}
