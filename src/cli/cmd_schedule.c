/* sluice schedule: a schedule's table, drawn, with its bubble and what it holds. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "sluice/schedule.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEY_PP = 0x100, KEY_CHUNKS, KEY_CHECKPOINT, KEY_SCHEDULE };
enum { MAX_STAGES = 64, MAX_CHUNKS = 256 };

typedef struct settings {
    int stages, chunks;
    sl_checkpoint checkpoint;
    sl_schedule_kind schedule;
} settings;

static const struct argp_option options[] = {
    {"pp", KEY_PP, "S", 0, "Stages (default 2)", 1},
    {"chunks", KEY_CHUNKS, "M", 0, "Micro-batches (default 8)", 1},
    {"checkpoint", KEY_CHECKPOINT, "MODE", 0, "never, except_last (default) or always", 1},
    {"schedule", KEY_SCHEDULE, "NAME", 0, "gpipe (default) or 1f1b", 1},
    {0},
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    static const char *const checkpoints[] = {"except_last", "never", "always", NULL};
    static const char *const schedules[] = {"gpipe", "1f1b", NULL};
    settings *to = state->input;
    switch (key) {
    case KEY_PP:
        to->stages = (int)cli_parse_integer("pp", text, 1, MAX_STAGES);
        return 0;
    case KEY_CHUNKS:
        to->chunks = (int)cli_parse_integer("chunks", text, 1, MAX_CHUNKS);
        return 0;
    case KEY_CHECKPOINT:
        to->checkpoint = (sl_checkpoint)cli_parse_choice("checkpoint", text, checkpoints);
        return 0;
    case KEY_SCHEDULE:
        to->schedule = (sl_schedule_kind)cli_parse_choice("schedule", text, schedules);
        return 0;
    case ARGP_KEY_ARG:
        cli_refuse("schedule takes options only", text);
    case ARGP_KEY_ERROR:
        cli_end_at_option(state);
    default:
        return ARGP_ERR_UNKNOWN;
    }
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

int cmd_schedule(int argc, char **argv)
{
    static const struct argp parser = {
        .options = options,
        .parser = parse_option,
        .doc = "Draws a schedule: a row a stage, a column a clock. With the number of the "
               "micro-batch, F is a forward that keeps its activations, f one that drops them, R "
               "their recomputation, B a backward; .. is a pause.",
    };
    settings parsed = {.stages = 2, .chunks = 8};
    sl_schedule *schedule;
    cli_parse(&parser, argc, argv, &parsed);
    sl_status status = sl_schedule_create(parsed.schedule, parsed.stages, parsed.chunks,
                                          parsed.checkpoint, &schedule);
    if (status == SL_OK)
        status = show(schedule);
    sl_schedule_destroy(&schedule);
    return cli_finish(status);
}
