/* The interpreter: how a rank runs its row of a table. There is one of it, whatever the schedule.
 *
 *     previous stage               this stage                     next stage
 *          ──── forward ────▶  receive → perform → send  ──── forward ────▶
 *          ◀─── gradient ───                             ◀─── gradient ────
 *
 * Skip connections come from earlier stages and go to later ones in the same way (pipe_skip.c), and
 * so do the tensors of a head that is split over all ranks (pipe_head.c).
 *
 * Ranks never look at each other. Each goes along its own row on its own thread, waits at a channel
 * for the tensor that an action needs, performs the action, and sends on what comes out. Two joined
 * actions are one cell: both inputs are received first, and both results are sent at the end. That
 * no rank waits for ever is what the validator has proved of the table.
 *
 * How an error ends the step. Every action has a number, its position when the table is played at
 * unit costs. Numbers ascend along each row, and whatever an action needs has a lower one. The
 * error that is reported is that of the lowest number, however the threads race:
 *
 *   1. A rank that fails keeps its error in the step's failure, unless one with a lower number is
 *      there, and wakes all ranks that wait. Other processes get the number.
 *   2. Each rank goes on along its row until its next action has a higher number than the error:
 *      an action before it may fail as well, and would be the one to report. It waits for tensors
 *      as before; those whose sender has failed never come, and their receivers have higher
 *      numbers.
 *   3. Each rank ends its row there, frees its stages' records (passes, inputs, outputs), and its
 *      thread reports to the pipe that it is done.
 *   4. The caller, who waits for all of them (and for the other processes, which then agree on the
 *      lowest number: pipe_group.c), frees what was sent and not received, and
 *      returns the failure. Nothing of the step is left but gradients of those modules that went
 *      backward; they are undefined until the next zero_grad. */
#include "parallel/pipe/pipe_head.h"
#include "parallel/pipe/pipe_skip.h"
#include "parallel/pipe/processes/link.h"
#include "parallel/pipe/rank.h"
#include "parallel/schedule/timeline.h"

/* A cell has one action or two joined ones. */
enum { MOST_ACTIONS = 2 };

typedef struct cell {
    const sl_action *actions; /* [count] */
    int count;
    size_t index; /* of the first action in the table */
    int number;   /* its lower one */
    sl_tensor *tensors[MOST_ACTIONS];
} cell;

/* Waits for what the action needs; false when the step has failed. */
static bool receive_input(const sli_rank *rank, sli_step *step, sl_action action, int number,
                          sl_tensor **tensor)
{
    const sli_stage *stage = &rank->stages[action.stage];
    switch (action.kind) {
    case SL_ACTION_FORWARD:
        if (stage->from_previous)
            return sli_channel_receive(stage->from_previous, action.micro, number, tensor);
        *tensor = step->micros[action.micro].input;
        step->micros[action.micro].input = NULL;
        return true;
    case SL_ACTION_BACKWARD:
    case SL_ACTION_BACKWARD_INPUT:
        return !stage->from_next ||
               sli_channel_receive(stage->from_next, action.micro, number, tensor);
    case SL_ACTION_RECOMPUTE:
    case SL_ACTION_BACKWARD_WEIGHT:
    case SL_ACTION_HEAD_FORWARD:
    case SL_ACTION_HEAD_BACKWARD:
        break;
    }
    return true;
}

/* Takes the tensor; NULL: there is nothing to send. */
static void send_result(const sli_rank *rank, sl_action action, sl_tensor **tensor)
{
    const sli_stage *stage = &rank->stages[action.stage];
    bool forward = action.kind == SL_ACTION_FORWARD;
    if (*tensor)
        sli_channel_send(forward ? stage->to_next : stage->to_previous, action.micro, tensor);
}

static void fail_step(sli_step *step, sl_action action, int number, sl_status status)
{
    int micro = step->first_micro + sli_action_micro(action);
    if (step->slices > 1)
        sl_error_context(status, "[stage %d micro %d slice %d] ", action.stage, micro,
                         sli_action_slice(action));
    else
        sl_error_context(status, "[stage %d micro %d] ", action.stage, micro);
    sli_failure_raise(step->failure, number, status);
    for (int i = 0; i < step->channel_count; i++)
        sli_channel_wake(step->channels[i]);
    if (step->link)
        sli_link_send_failure(step->link, number);
}

static bool perform_action(sli_rank *rank, sli_step *step, cell *current, int which)
{
    size_t index = current->index + (size_t)which;
    sl_action action = current->actions[which];
    sli_stage *stage = &rank->stages[action.stage];
    sli_action_moments moments = {.action = action};
    sl_status status = sli_stage_receive(stage, action, &current->tensors[which]);
    if (step->moments) /* what a device waits for before it is not the action's */
        moments.start = sli_device_moment(stage->device);
    if (status == SL_OK)
        status = sli_stage_perform(stage, step, action, &current->tensors[which]);
    if (status != SL_OK)
        fail_step(step, action, step->table->order[index], status);
    moments.ended = status == SL_OK;
    if (step->moments) {
        moments.end = sli_device_moment(stage->device);
        step->moments[index] = moments;
    }
    return moments.ended;
}

/* False when the step has failed, here or elsewhere. */
static bool run_cell(sli_rank *rank, sli_step *step, cell *current)
{
    bool goes_on = true;
    for (int i = 0; i < current->count && goes_on; i++)
        goes_on =
            receive_input(rank, step, current->actions[i], current->number, &current->tensors[i]) &&
            sli_stage_receive_skips(&rank->stages[current->actions[i].stage], current->actions[i],
                                    current->number) &&
            sli_stage_receive_head(&rank->stages[current->actions[i].stage], current->actions[i],
                                   current->number);
    if (goes_on) {
        pthread_mutex_lock(rank->device_lock);
        for (int i = 0; i < current->count; i++) /* joined ones do not need each other */
            goes_on = perform_action(rank, step, current, i) && goes_on;
        pthread_mutex_unlock(rank->device_lock);
    }
    for (int i = 0; i < current->count; i++)
        if (goes_on) {
            sli_stage_send_skips(&rank->stages[current->actions[i].stage], current->actions[i]);
            sli_stage_send_head(&rank->stages[current->actions[i].stage], current->actions[i]);
            send_result(rank, current->actions[i], &current->tensors[i]);
        } else {
            sl_tensor_destroy(&current->tensors[i]);
        }
    return goes_on;
}

static int lowest_number(const sli_table *table, size_t index, int count)
{
    int number = table->order[index];
    if (count > 1 && table->order[index + 1] < number)
        number = table->order[index + 1];
    return number;
}

void sli_rank_run(sli_rank *rank, void *arg)
{
    sli_step *step = arg;
    const sl_schedule *schedule = step->table->schedule;
    const sl_action *table, *row;
    sl_schedule_actions(schedule, 0, &table);
    int count = sl_schedule_actions(schedule, rank->index, &row);
    for (int i = 0; i < count;) {
        cell next = {.actions = row + i,
                     .count = i + 1 < count && row[i + 1].joined ? 2 : 1,
                     .index = (size_t)(row + i - table)};
        next.number = lowest_number(step->table, next.index, next.count);
        if (sli_failure_precedes(step->failure, next.number) || !run_cell(rank, step, &next))
            break;
        i += next.count;
    }
    for (int i = 0; i < rank->own_count; i++)
        sli_stage_clear_records(&rank->stages[rank->own[i]],
                                sl_schedule_micros(schedule) * sl_schedule_slices(schedule));
}
