/* sluice schedule: a schedule's table, drawn and simulated. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 4096, MAX_VIRTUAL = 1024, MAX_CHUNKS = 65536, RANKS = 2, CHUNKS = 8 };

typedef struct settings {
    const char *schedule, *placement, *costs, *svg;
    int ranks, virtual_stages, chunks;
    sl_recompute recompute;
    double link;
    bool csv, json;
} settings;

#define FIELD(field) .offset = offsetof(settings, field)

/* Any name: one that is none of the library's is a file's. */
static sl_status parse_schedule(const char *text, void *object)
{
    ((settings *)object)->schedule = text;
    return SL_OK;
}

static char *print_schedule(const void *object)
{
    return strdup(((const settings *)object)->schedule);
}

/* clang-format off */
static const sl_option options[] = {
    {.name = "schedule", .value = "NAME|FILE", .type = SL_OPTION_CUSTOM, .parse = parse_schedule,
     .print = print_schedule, .choices = sl_schedule_names,
     .help = "The schedule, by name or as a file with a table in PyTorch's CSV"},
    {.name = "pp", .value = "P", .type = SL_OPTION_INT, FIELD(ranks), .lowest = 1,
     .highest = MAX_RANKS, .optional = true, .default_value = RANKS,
     .help = "Pipeline ranks; a file has its own"},
    {.name = "virtual", .value = "V", .type = SL_OPTION_INT, FIELD(virtual_stages), .lowest = 1,
     .highest = MAX_VIRTUAL, .optional = true,
     .help = "Stages of a rank; without it the schedule's own number"},
    {.name = "placement", .value = "RULE", .type = SL_OPTION_TEXT, FIELD(placement),
     .help = "loop, v, or the rank of each stage as in 0,1,1,0; without it the schedule's own"},
    {.name = "chunks", .value = "M", .type = SL_OPTION_INT, FIELD(chunks), .lowest = 1,
     .highest = MAX_CHUNKS, .optional = true, .default_value = CHUNKS,
     .help = "Micro-batches; a file has its own"},
    {.name = "checkpoint", .value = "MODE", .type = SL_OPTION_CHOICE, FIELD(recompute),
     .choices = sl_recompute_names,
     .help = "Recompute activations: never, except_last (of all micro-batches but the last) or "
             "always"},
    {.name = "costs", .value = "F,I,W", .type = SL_OPTION_TEXT, FIELD(costs),
     .help = "What forward, backward for the input and backward for the weights of all of a rank's "
             "layers cost for one micro-batch; each of its stages takes an equal part. Without it "
             "1 each"},
    {.name = "comm", .value = "C", .type = SL_OPTION_DOUBLE, FIELD(link),
     .help = "The cost of a result's way to another rank"},
    {.name = "csv", .type = SL_OPTION_FLAG, FIELD(csv),
     .help = "Print the table in PyTorch's CSV instead; PyTorch has no R and reads tables with "
             "--checkpoint never alone"},
    {.name = "json", .type = SL_OPTION_FLAG, FIELD(json),
     .help = "Print what the simulation gives as one JSON object instead"},
    {.name = "svg", .value = "FILE", .type = SL_OPTION_TEXT, FIELD(svg),
     .help = "Write a picture of the simulation, to scale"},
    {0},
};
/* clang-format on */

static void set_defaults(void *to)
{
    ((settings *)to)->schedule = sl_schedule_names[0];
}

/* "1,1,0.5" */
static sl_status parse_costs(const char *text, double costs[3])
{
    const char *at = text;
    for (int i = 0; i < 3; i++) {
        char *end;
        costs[i] = strtod(at, &end);
        if (end == at || !(costs[i] >= 0) || *end != (i < 2 ? ',' : '\0'))
            return sl_error(SL_ERR_INVALID,
                            "--costs must be three numbers of 0 or more, F,I,W, got \"%s\"", text);
        at = end + 1;
    }
    return SL_OK;
}

/* A file says how many ranks and micro-batches there are; a placement as a list, how many stages.
 */
static sl_status open_table(const settings *from, const double costs[3], sl_schedule **out)
{
    bool named = sl_schedule_has_name(from->schedule);
    sl_schedule_options wanted = {.ranks = from->ranks ? from->ranks
                                           : named     ? RANKS
                                                       : 0,
                                  .virtual_stages = from->virtual_stages,
                                  .micros = from->chunks ? from->chunks
                                            : named      ? CHUNKS
                                                         : 0,
                                  .forward = costs[0],
                                  .backward_input = costs[1],
                                  .backward_weight = costs[2],
                                  .link = from->link};
    if (!from->placement)
        return sl_schedule_open(from->schedule, &wanted, out);
    SL_TRY(sl_schedule_open(from->schedule, &wanted, out)); /* says how many stages there are */
    wanted.ranks = sl_schedule_ranks(*out);
    wanted.virtual_stages = sl_schedule_stages(*out) / wanted.ranks;
    sl_schedule_destroy(out);
    int *placement =
        cli_allocate((size_t)wanted.ranks * (size_t)wanted.virtual_stages, sizeof(int));
    sl_status status =
        sl_placement_parse(from->placement, wanted.ranks, wanted.virtual_stages, placement);
    wanted.placement = placement;
    if (status == SL_OK)
        status = sl_schedule_open(from->schedule, &wanted, out);
    free(placement);
    return status;
}

static sl_status simulate(const sl_schedule *schedule, const settings *from, const double costs[3],
                          sl_simulation *out)
{
    int stages = sl_schedule_stages(schedule), each = stages / sl_schedule_ranks(schedule);
    double *forward = cli_allocate(3 * (size_t)stages, sizeof *forward);
    double *input = forward + stages, *weight = input + stages;
    for (int s = 0; s < stages; s++) {
        forward[s] = costs[0] / each;
        input[s] = costs[1] / each;
        weight[s] = costs[2] / each;
    }
    sl_status status = sl_schedule_simulate(schedule,
                                            &(sl_cost_model){.forward = forward,
                                                             .backward_input = input,
                                                             .backward_weight = weight,
                                                             .link = from->link},
                                            out);
    free(forward);
    return status;
}

/* ---- What is shown ----------------------------------------------------------------------- */

/* Prints a text that `status` is of, and frees it. */
static sl_status print_text(sl_status status, char *text)
{
    if (status == SL_OK)
        fputs(text, stdout);
    free(text);
    return status;
}

static sl_status write_file(const char *path, sl_status status, char *text)
{
    FILE *to = status == SL_OK ? fopen(path, "w") : NULL;
    bool written = to && fputs(text, to) >= 0;
    int error = errno;
    if (to && fclose(to) != 0)
        written = false;
    free(text);
    if (status == SL_OK && !written)
        return sl_error(SL_ERR_IO, "%s: cannot be written: %s", path, strerror(error));
    return status;
}

static sl_status print_table(const sl_schedule *schedule, const sl_simulation *simulation)
{
    char *text;
    sl_status status = sl_schedule_draw(schedule, &text);
    SL_TRY(print_text(status, text));
    printf("\nMakespan %g: %.1f%% of the ranks' time is idle (%.1f%% of the longest span of a "
           "rank).\nActivations that a rank holds at once, of a micro-batch at a stage:",
           simulation->makespan, 100 * simulation->bubble, 100 * simulation->bubble_span);
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++)
        printf(" %d", simulation->peak_held[rank]);
    printf("\n");
    return SL_OK;
}

static sl_status show(const sl_schedule *schedule, const settings *from, const double costs[3])
{
    char *text;
    sl_simulation simulation;
    SL_TRY(simulate(schedule, from, costs, &simulation));
    sl_status status = SL_OK;
    if (from->svg) {
        status = sl_schedule_svg(schedule, &simulation, &text);
        status = write_file(from->svg, status, text);
    }
    if (status == SL_OK && from->csv) {
        status = sl_schedule_csv(schedule, &text);
        status = print_text(status, text);
    }
    if (status == SL_OK && from->json) {
        status = sl_schedule_json(schedule, &simulation, &text);
        status = print_text(status, text);
    }
    if (status == SL_OK && !from->csv && !from->json)
        status = print_table(schedule, &simulation);
    sl_simulation_clear(&simulation);
    return status;
}

static int run(cli_line *line)
{
    settings parsed;
    double costs[3] = {1, 1, 1};
    sl_schedule *schedule = NULL;
    cli_settings_read(line, &parsed);
    sl_status status = parsed.costs ? parse_costs(parsed.costs, costs) : SL_OK;
    if (status == SL_OK)
        status = open_table(&parsed, costs, &schedule);
    if (status == SL_OK)
        status = sl_schedule_recompute(schedule, parsed.recompute);
    if (status == SL_OK)
        status = show(schedule, &parsed, costs);
    sl_schedule_destroy(&schedule);
    return cli_finish(status);
}

const cli_command cmd_schedule = {
    .name = "schedule",
    .summary = "draw and simulate a pipeline schedule",
    .doc = "Draws a schedule: a row for each pipeline rank, a column for each clock cycle. A cell "
           "names a stage, an action and a micro-batch: 2F0 is stage 2's forward of micro-batch 0, "
           "R runs it again, B is backward, I its half for the input, W its half for the weights; "
           "... is idle time.",
    .options = options,
    .settings_bytes = sizeof(settings),
    .set_defaults = set_defaults,
    .run = run,
};
