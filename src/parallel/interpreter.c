/* The interpreter: how a stage runs its row of a table. There is one of it, whatever the schedule.
 *
 *     previous stage               this stage                     next stage
 *          ──── forward ────▶  receive → perform → send  ──── forward ────▶
 *          ◀─── gradient ───                             ◀─── gradient ────
 *
 * Stages never look at each other. Each goes along its own row on its own thread, waits at a
 * channel for the tensor that an action needs, performs the action, and sends on what comes out.
 * That no stage waits for ever is what the validator has proved of the table.
 *
 * How an error ends the step. Suppose stage 2 fails in its BACKWARD 3 while stage 1 waits for that
 * gradient, stage 0 is in the middle of a forward, and stage 3 of a backward:
 *
 *   1. Stage 2 keeps its error in the step's failure, with its place in front, and cancels all
 *      channels. Had another stage been first, that one's error would have stayed.
 *   2. Stage 1 wakes: a receive from a cancelled channel ends at once. Stages 0 and 3 finish the
 *      action that they are in, and find the failure raised before the next one.
 *   3. Each stage ends its row there, frees its records (passes, inputs, outputs), and its thread
 *      reports to the pipe that it is done.
 *   4. The caller, who waits for all of them, then frees what was sent and not received, makes the
 *      channels usable again, and returns the failure. Nothing of the step is left but gradients of
 *      those modules that went backward; they are undefined until the next zero_grad. */
#include "parallel/stage.h"

/* Waits for what the action needs; false when the step has failed. */
static bool receive(const sli_stage *stage, sli_step *step, sl_action action, sl_tensor **tensor)
{
    *tensor = NULL;
    switch (action.kind) {
    case SL_ACTION_FORWARD:
    case SL_ACTION_FORWARD_DISCARD:
        if (stage->from_previous)
            return sli_channel_receive(stage->from_previous, action.micro, tensor);
        *tensor = step->micros[action.micro].input;
        step->micros[action.micro].input = NULL;
        return true;
    case SL_ACTION_BACKWARD:
        return !stage->from_next || sli_channel_receive(stage->from_next, action.micro, tensor);
    case SL_ACTION_RECOMPUTE:
        break;
    }
    return true;
}

/* Takes the tensor; NULL: there is nothing to send. */
static void send(const sli_stage *stage, sl_action action, sl_tensor **tensor)
{
    if (!*tensor)
        return;
    bool is_gradient = action.kind == SL_ACTION_BACKWARD;
    sli_channel_send(is_gradient ? stage->to_previous : stage->to_next, action.micro, tensor);
}

/* Ends the step for all stages: stores the error if it is the first, and cancels every channel. */
static void fail_step(sli_step *step, sl_status status)
{
    sli_failure_raise(step->failure, status);
    for (int i = 0; i < step->channel_count; i++)
        sli_channel_cancel(step->channels[i]);
}

/* False when the step has failed, here or elsewhere. */
static bool run_action(sli_stage *stage, sli_step *step, sl_action action)
{
    sl_tensor *tensor;
    if (sli_failure_is_raised(step->failure) || !receive(stage, step, action, &tensor))
        return false;
    pthread_mutex_lock(stage->device_lock);
    double start = sli_clock_seconds();
    sl_status status = sli_stage_perform(stage, step, action, &tensor);
    double end = sli_clock_seconds();
    pthread_mutex_unlock(stage->device_lock);
    if (status != SL_OK) {
        sl_error_context(status, "[stage %d micro %d] ", stage->index, action.micro);
        fail_step(step, status);
        return false;
    }
    stage->entries[stage->entry_count++] =
        (sl_timeline_entry){stage->index, action, start - step->start, end - step->start};
    send(stage, action, &tensor);
    return true;
}

void sli_stage_run(sli_stage *stage, sli_step *step)
{
    const sl_action *row;
    int count = sl_schedule_actions(step->schedule, stage->index, &row);
    stage->entry_count = 0;
    for (int i = 0; i < count; i++)
        if (!run_action(stage, step, row[i]))
            break;
    sli_stage_clear_records(stage, sl_schedule_micros(step->schedule));
}
