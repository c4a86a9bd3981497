/* A schedule of one's own, as a table: checked, drawn and timed without running anything. A table
 * that would hang a pipe is found to do so, and the drawing shows how far it comes. */
#include <sluice/schedule.h>

#include <stdio.h>
#include <stdlib.h>

enum { STAGES = 2, MICROS = 2 };

/* 1F1B by hand. */
static const int counts[STAGES] = {4, 4};
static const sl_action one_each[] = {
    {SL_ACTION_FORWARD, 1},  {SL_ACTION_FORWARD, 0}, /* stage 0 */
    {SL_ACTION_BACKWARD, 1}, {SL_ACTION_BACKWARD, 0},
    {SL_ACTION_FORWARD, 1},  {SL_ACTION_BACKWARD, 1}, /* stage 1 */
    {SL_ACTION_FORWARD, 0},  {SL_ACTION_BACKWARD, 0},
};

/* Stage 0 wants a gradient that stage 1 gives only after a second forward. */
static const sl_action deadlock[] = {
    {SL_ACTION_FORWARD, 1},  {SL_ACTION_BACKWARD, 1}, /* stage 0 */
    {SL_ACTION_FORWARD, 0},  {SL_ACTION_BACKWARD, 0},
    {SL_ACTION_FORWARD, 1},  {SL_ACTION_FORWARD, 0}, /* stage 1 */
    {SL_ACTION_BACKWARD, 1}, {SL_ACTION_BACKWARD, 0},
};

static sl_status draw(const sl_schedule *schedule)
{
    char *drawing;
    SL_TRY(sl_schedule_draw(schedule, &drawing));
    fputs(drawing, stdout);
    free(drawing);
    return SL_OK;
}

/* Stage 1 has the larger share of the model. */
static sl_status time_it(const sl_schedule *schedule)
{
    const double forward[STAGES] = {1, 1.5}, backward[STAGES] = {2, 3};
    sl_simulation simulation;
    SL_TRY(sl_schedule_simulate(schedule,
                                &(sl_cost_model){.forward = forward, .backward = backward},
                                &simulation));
    printf("takes %g, of which %.1f%% is idle; activations held at once: %d and %d\n\n",
           simulation.makespan, 100 * simulation.bubble, simulation.peak_held[0],
           simulation.peak_held[1]);
    sl_simulation_clear(&simulation);
    return SL_OK;
}

static sl_status show(const sl_action *actions)
{
    sl_schedule *schedule;
    SL_TRY(sl_schedule_from_table(STAGES, MICROS, counts, actions, &schedule));
    sl_status status = sl_schedule_validate(schedule);
    if (status == SL_OK)
        status = draw(schedule);
    if (status == SL_OK)
        status = time_it(schedule);
    sl_schedule_destroy(&schedule);
    return status;
}

int main(void)
{
    if (show(one_each) != SL_OK) {
        fprintf(stderr, "own_schedule: %s\n", sl_error_text());
        return 1;
    }
    if (show(deadlock) != SL_ERR_INVALID) {
        fprintf(stderr, "own_schedule: a table that deadlocks was not refused\n");
        return 1;
    }
    printf("%s", sl_error_text());
    return 0;
}
