/* sluice schedule: a schedule's table, drawn, with its bubble and what it holds. */
#include "cli/command.h"
#include "cli/output.h"
#include "sluice/train.h"

#include <stdlib.h>

static const char *const run_names[] = {"pp", "chunks", "checkpoint", "schedule", NULL};

static void set_defaults(void *to)
{
    ((sl_train_options *)to)->stages = 2;
    ((sl_train_options *)to)->chunks = 8;
}

static sl_status show_schedule(const sl_schedule *schedule)
{
    double forward[SL_MAX_STAGES], backward[SL_MAX_STAGES];
    char *drawing;
    sl_simulation simulation;
    int stages = sl_schedule_stages(schedule);
    for (int s = 0; s < stages; s++) {
        forward[s] = 1;
        backward[s] = 2;
    }
    SL_TRY(sl_schedule_validate(schedule));
    SL_TRY(sl_schedule_draw(schedule, &drawing));
    fputs(drawing, stdout);
    free(drawing);
    SL_TRY(sl_schedule_simulate(schedule,
                                &(sl_cost_model){.forward = forward, .backward = backward},
                                &simulation));
    printf("\nIf a backward takes twice as long as a forward, %.1f%% of the stages' time is idle.\n"
           "Micro-batches whose activations a stage holds at once:",
           100 * simulation.bubble);
    for (int s = 0; s < stages; s++)
        printf(" %d", simulation.peak_held[s]);
    printf("\n");
    sl_simulation_clear(&simulation);
    return SL_OK;
}

static int run_schedule(cli_line *line)
{
    sl_train_options parsed;
    sl_schedule *schedule;
    cli_settings_read(line, &parsed);
    sl_status status = sl_schedule_create(parsed.schedule, parsed.stages, parsed.chunks,
                                          parsed.recompute, &schedule);
    if (status == SL_OK)
        status = show_schedule(schedule);
    sl_schedule_destroy(&schedule);
    return cli_finish(status);
}

const cli_command cmd_schedule = {
    .name = "schedule",
    .summary = "draw a pipeline schedule",
    .doc = "Draws a schedule: a row for each stage, a column for each clock cycle. With the number "
           "of the micro-batch, F is a forward that keeps its activations, f one that drops them, "
           "R their recomputation, B a backward; .. is idle time.",
    .run_options = {sl_plan_option_rows},
    .run_names = run_names,
    .settings_bytes = sizeof(sl_train_options),
    .set_defaults = set_defaults,
    .run = run_schedule,
};
