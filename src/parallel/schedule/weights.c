/* Where backwards for the weights go. The order of forwards and backwards for the input is given.
 * It is played against the costs, and a rank that would have to wait for its next action runs a W
 * first, the oldest that is left:
 *
 *   - where it fits into the waiting time;
 *   - before an I, also where it does not fit, as long as the rank has waited less in all than the
 *     rank that has waited most: that one decides when the step ends;
 *   - before an F for which the rank has no room left: a W gives the activations back.
 *
 * What is left comes at the end. The idea of comparing waiting times is that of the Zero Bubble
 * authors' scheduler. Ranks take turns of two actions, so that their waiting times can be compared.
 */
#include "core/error.h"
#include "parallel/schedule/writers.h"

#include <stdlib.h>

typedef struct rank_state {
    size_t next, end;   /* in the given row */
    size_t next_weight; /* no later I of the row has its W yet */
    size_t written;     /* where the next action goes */
    int pending;        /* I without their W */
    int held;           /* micro-batches of its stages */
    double time, waited;
} rank_state;

typedef struct insertion {
    const sli_writer_costs *costs;
    const sl_schedule *given;
    sl_action *actions; /* the new table's */
    double *ends[2];    /* [stages][micros] of F and of I; negative: not yet */
    rank_state *ranks;
    int most_held;
    double most_waited;
} insertion;

static void append_action(insertion *p, rank_state *rank, sl_action action, double end)
{
    p->actions[rank->written++] = action;
    rank->time = end;
}

static void append_weight(insertion *p, rank_state *rank)
{
    while (p->given->actions[rank->next_weight].kind != SL_ACTION_BACKWARD_INPUT)
        rank->next_weight++;
    sl_action action = p->given->actions[rank->next_weight++];
    action.kind = SL_ACTION_BACKWARD_WEIGHT;
    append_action(p, rank, action, rank->time + p->costs->weight);
    rank->pending--;
    rank->held--;
}

/* When the action's input is there; negative: not known yet. */
static double arrival_of_input(const insertion *p, sl_action action)
{
    const sl_schedule *given = p->given;
    bool forward = action.kind == SL_ACTION_FORWARD;
    int from = forward ? action.stage - 1 : action.stage + 1;
    if (from < 0 || from == given->stages)
        return 0;
    double end = p->ends[!forward][sli_schedule_cell(given, from, action.micro)];
    bool same_rank = given->placement[from] == given->placement[action.stage];
    return end < 0 || same_rank ? end : end + p->costs->link;
}

static void fill_waiting_time(insertion *p, rank_state *rank, bool forward, double input)
{
    double weight = p->costs->weight;
    while (rank->pending > 0 &&
           (rank->time + weight <= input || (forward && rank->held >= p->most_held)))
        append_weight(p, rank);
    double waits = input - rank->time;
    if (rank->pending > 0 && !forward && waits > 0 && waits > p->most_waited - rank->waited)
        append_weight(p, rank);
}

/* False: the rank is at its end, or its next action's input does not come yet. */
static bool append_next(insertion *p, rank_state *rank)
{
    if (rank->next == rank->end)
        return false;
    sl_action action = p->given->actions[rank->next];
    double input = arrival_of_input(p, action);
    if (input < 0)
        return false;
    bool forward = action.kind == SL_ACTION_FORWARD;
    fill_waiting_time(p, rank, forward, input);
    double start = input > rank->time ? input : rank->time;
    if (rank->time > 0) /* waiting before the first action costs nothing */
        rank->waited += start - rank->time;
    if (rank->waited > p->most_waited)
        p->most_waited = rank->waited;
    double end = start + (forward ? p->costs->forward : p->costs->input);
    append_action(p, rank, action, end);
    p->ends[!forward][sli_schedule_cell(p->given, action.stage, action.micro)] = end;
    rank->next++;
    rank->pending += !forward;
    rank->held += forward;
    return true;
}

static void insert_all(insertion *p)
{
    for (bool advanced = true; advanced;) {
        advanced = false;
        for (int rank = 0; rank < p->given->ranks; rank++)
            for (int turn = 0; turn < 2 && append_next(p, &p->ranks[rank]); turn++)
                advanced = true;
    }
    for (int rank = 0; rank < p->given->ranks; rank++)
        while (p->ranks[rank].pending > 0)
            append_weight(p, &p->ranks[rank]);
}

/* A row gets as many W as it has I, which are half of its actions. */
static void set_up_rows(insertion *p)
{
    size_t cells = sli_schedule_cell(p->given, p->given->stages, 0);
    for (size_t i = 0; i < 2 * cells; i++)
        p->ends[0][i] = -1;
    p->ends[1] = p->ends[0] + cells;
    for (int rank = 0; rank < p->given->ranks; rank++) {
        size_t start = sli_schedule_row(p->given, rank), end = p->given->ends[rank];
        p->ranks[rank] =
            (rank_state){.next = start, .end = end, .next_weight = start, .written = start / 2 * 3};
    }
}

sl_status sli_insert_weights(const sli_writer_costs *costs, int most_held, sl_schedule *table)
{
    size_t cells = sli_schedule_cell(table, table->stages, 0);
    insertion p = {.costs = costs,
                   .given = table,
                   .actions = malloc(3 * cells * sizeof *p.actions),
                   .ends = {malloc(2 * cells * sizeof(double))},
                   .ranks = malloc((size_t)table->ranks * sizeof *p.ranks),
                   .most_held = most_held};
    if (!p.actions || !p.ends[0] || !p.ranks) {
        free(p.actions);
        free(p.ends[0]);
        free(p.ranks);
        return sli_no_memory("schedule", "a table of %zu actions", 3 * cells);
    }
    set_up_rows(&p);
    insert_all(&p);
    for (int rank = 0; rank < table->ranks; rank++)
        table->ends[rank] = p.ranks[rank].written;
    table->count = table->ends[table->ranks - 1];
    free(table->actions);
    table->actions = p.actions;
    free(p.ends[0]);
    free(p.ranks);
    return SL_OK;
}
