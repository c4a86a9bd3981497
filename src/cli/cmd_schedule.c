/* sluice schedule: a schedule's table, drawn, with its bubble and what it holds. */
#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "sluice/schedule.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_STAGES = 64, MAX_CHUNKS = 256 };

typedef struct settings {
    int stages, chunks;
    sl_recompute recompute;
    sl_schedule_kind schedule;
} settings;

static const char *const checkpoints[] = {"except_last", "never", "always", NULL};
static const char *const schedules[] = {"gpipe", "1f1b", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "pp", .value = "S", .type = SL_OPTION_INT, .offset = offsetof(settings, stages),
     .lowest = 1, .highest = MAX_STAGES,
     .help = "Stages"},
    {.name = "chunks", .value = "M", .type = SL_OPTION_INT, .offset = offsetof(settings, chunks),
     .lowest = 1, .highest = MAX_CHUNKS,
     .help = "Micro-batches"},
    {.name = "checkpoint", .value = "MODE", .type = SL_OPTION_CHOICE,
     .offset = offsetof(settings, recompute), .choices = checkpoints,
     .help = "Recompute activations: never, except_last (of all micro-batches but the last) or "
             "always"},
    {.name = "schedule", .value = "NAME", .type = SL_OPTION_CHOICE,
     .offset = offsetof(settings, schedule), .choices = schedules,
     .help = "gpipe or 1f1b"},
    {0},
};
/* clang-format on */

static void set_defaults(void *to)
{
    *(settings *)to = (settings){.stages = 2, .chunks = 8};
}

static sl_status show(const sl_schedule *schedule)
{
    double forward[MAX_STAGES], backward[MAX_STAGES];
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
    printf("\nWith a backward of twice a forward: %.1f%% of the stages' time is idle.\n"
           "Micro-batches whose activations a stage holds at once:",
           100 * simulation.bubble);
    for (int s = 0; s < stages; s++)
        printf(" %d", simulation.peak_held[s]);
    printf("\n");
    sl_simulation_clear(&simulation);
    return SL_OK;
}

static int run(cli_command_line *line)
{
    settings parsed;
    sl_schedule *schedule;
    cli_set(line, &parsed);
    sl_status status = sl_schedule_create(parsed.schedule, parsed.stages, parsed.chunks,
                                          parsed.recompute, &schedule);
    if (status == SL_OK)
        status = show(schedule);
    sl_schedule_destroy(&schedule);
    return cli_finish(status);
}

const cli_command cmd_schedule = {
    .name = "schedule",
    .summary = "draw a pipeline schedule",
    .doc = "Draws a schedule: a row a stage, a column a clock. With the number of the micro-batch, "
           "F is a forward that keeps its activations, f one that drops them, R their "
           "recomputation, B a backward; .. is a pause.",
    .tables = {{options, 0}},
    .settings_bytes = sizeof(settings),
    .set_defaults = set_defaults,
    .run = run,
};
