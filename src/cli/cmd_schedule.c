/* sluice schedule: a schedule's table, drawn and simulated. */
#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 4096, MAX_VIRTUAL = 1024, MAX_CHUNKS = 65536, RANKS = 2, CHUNKS = 8 };

typedef struct settings {
    sl_train_options run; /* its schedule is drawn */
    const char *costs, *svg;
    int ranks, virtual_stages, chunks; /* more than one can train with */
    double link, head;
    bool csv, json;
} settings;

static const char *const run_names[] = {"schedule", "placement",        "recompute",
                                        "slices",   "split-vocabulary", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "pp", .value = "P", .group = "Pipeline", FIELD(INT, ranks),
     RANGE(1, MAX_RANKS), .optional = true, .default_value = RANKS,
     .help = "Pipeline ranks; a file has its own"},
    {.name = "virtual", .value = "V", .group = "Pipeline", FIELD(INT, virtual_stages),
     RANGE(1, MAX_VIRTUAL), .optional = true,
     .help = "Stages of a rank; without it the schedule's own number"},
    {.name = "chunks", .value = "M", .group = "Pipeline", FIELD(INT, chunks),
     RANGE(1, MAX_CHUNKS), .optional = true, .default_value = CHUNKS,
     .help = "Micro-batches; a file has its own"},
    {.name = "costs", .value = "F,I,W", FIELD(TEXT, costs), .initial = "1,1,1",
     .help = "Time that a rank needs for one micro-batch, in any unit: forward, backward for the "
             "input, and backward for the weights. The stages of a rank need equal times"},
    {.name = "comm", .value = "C", FIELD(DOUBLE, link),
     .help = "Time to send a result to another rank, in the unit of --costs"},
    {.name = "head", .value = "H", FIELD(DOUBLE, head), .initial = "1",
     .help = "With --split-vocabulary: time of the whole head's forward for one micro-batch, in the "
             "unit of --costs. Its backward for the input and that for the weights take as long"},
    {.name = "csv", FIELD(FLAG, csv),
     .help = "Print the table in PyTorch's CSV instead; PyTorch has no R, S or T and reads tables "
             "with --recompute never and a whole head alone"},
    {.name = "json", FIELD(FLAG, json),
     .help = "Print what the simulation gives as one JSON object instead"},
    {.name = "svg", .value = "FILE", FIELD(TEXT, svg),
     .help = "Write a picture of the simulation, to scale"},
    {0},
};
/* clang-format on */

/* "1,1,0.5" */
static void parse_costs(const char *text, double costs[3])
{
    const char *letter = text;
    for (int i = 0; i < 3; i++) {
        char *end;
        costs[i] = strtod(letter, &end);
        if (end == letter || !(costs[i] >= 0) || *end != (i < 2 ? ',' : '\0'))
            cli_refuse("--costs must be three numbers of 0 or more, F,I,W, got \"%s\"", text);
        letter = end + 1;
    }
}

/* A file says how many ranks and micro-batches there are. */
static sl_status open_table(const settings *parsed, const double costs[3], sl_schedule **out)
{
    const char *schedule = parsed->run.schedule;
    bool named = sl_schedule_has_name(schedule);
    sl_schedule_options wanted = {.ranks = parsed->ranks || !named ? parsed->ranks : RANKS,
                                  .virtual_stages = parsed->virtual_stages,
                                  .micros = parsed->chunks || !named ? parsed->chunks : CHUNKS,
                                  .slices = parsed->run.slices,
                                  .forward = costs[0],
                                  .backward_input = costs[1],
                                  .backward_weight = costs[2],
                                  .link = parsed->link};
    SL_TRY(sl_schedule_open(schedule, &wanted, out));
    if (!parsed->run.placement)
        return SL_OK;
    int stages = sl_schedule_stages(*out); /* as many as the placement must name ranks for */
    int *placement = cli_allocate((size_t)stages, sizeof *placement);
    wanted.ranks = sl_schedule_ranks(*out);
    wanted.virtual_stages = stages / wanted.ranks;
    wanted.placement = placement;
    sl_schedule_destroy(out);
    sl_status status;
    SL_TRY_OR_FAIL(
        sl_placement_parse(parsed->run.placement, wanted.ranks, wanted.virtual_stages, placement));
    SL_TRY_OR_FAIL(sl_schedule_open(schedule, &wanted, out));
fail:
    free(placement);
    return status;
}

static sl_status simulate(const sl_schedule *schedule, const settings *parsed,
                          const double costs[3], sl_simulation *out)
{
    int stages = sl_schedule_stages(schedule);
    /* actions of one micro-batch on a rank */
    double each = (double)stages / sl_schedule_ranks(schedule) * sl_schedule_slices(schedule);
    double *forward = cli_allocate(5 * (size_t)stages, sizeof *forward);
    double *input = forward + stages, *weight = input + stages;
    double *head_forward = weight + stages, *head_backward = head_forward + stages;
    double head = parsed->head / sl_schedule_ranks(schedule);
    for (int s = 0; s < stages; s++) {
        forward[s] = costs[0] / each;
        input[s] = costs[1] / each;
        weight[s] = costs[2] / each;
        head_forward[s] = 2 * head;
        head_backward[s] = head;
    }
    sl_status status = sl_schedule_simulate(schedule,
                                            &(sl_cost_model){.forward = forward,
                                                             .backward_input = input,
                                                             .backward_weight = weight,
                                                             .head_forward = head_forward,
                                                             .head_backward = head_backward,
                                                             .link = parsed->link},
                                            out);
    free(forward);
    SL_TRY(status);
    return isfinite(out->makespan)
               ? SL_OK
               : sl_error(SL_ERR_INVALID,
                          "the makespan is not finite: --costs or --comm is too large");
}

/* ---- What is shown ----------------------------------------------------------------------- */

/* Frees the text. */
static void print_text(char *text)
{
    fputs(text, stdout);
    free(text);
}

static sl_status print_table(const sl_schedule *schedule, const sl_simulation *simulation)
{
    char *text;
    SL_TRY(sl_schedule_draw(schedule, &text));
    print_text(text);
    printf("\nMakespan %g. Bubble %.1f%% of the ranks' time (%.1f%% by the Zero Bubble papers' "
           "measure).\n%s whose activations each rank holds at its peak:",
           simulation->makespan, 100 * simulation->bubble, 100 * simulation->bubble_span,
           sl_schedule_slices(schedule) > 1 ? "Slices" : "Micro-batches");
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++)
        printf(" %d", simulation->peak_held[rank]);
    printf("\n");
    return SL_OK;
}

static sl_status show_schedule(const sl_schedule *schedule, const settings *parsed,
                               const sl_simulation *simulation)
{
    char *text;
    if (parsed->svg) {
        SL_TRY(sl_schedule_svg(schedule, simulation, &text));
        sl_status status = sl_train_write_output(parsed->svg, text);
        free(text);
        SL_TRY(status);
    }
    if (parsed->csv) {
        SL_TRY(sl_schedule_csv(schedule, &text));
        print_text(text);
    }
    if (parsed->json) {
        SL_TRY(sl_schedule_json(schedule, simulation, &text));
        print_text(text);
    }
    return parsed->csv || parsed->json ? SL_OK : print_table(schedule, simulation);
}

/* The caller frees the schedule and the simulation, also after an error. */
static sl_status draw(const settings *parsed, const double costs[3], sl_schedule **schedule,
                      sl_simulation *simulation)
{
    SL_TRY(open_table(parsed, costs, schedule));
    SL_TRY(sl_schedule_recompute(*schedule, parsed->run.recompute));
    if (parsed->run.split_vocabulary)
        SL_TRY(sl_schedule_split_head(*schedule,
                                      parsed->head / (costs[0] * sl_schedule_ranks(*schedule))));
    SL_TRY(simulate(*schedule, parsed, costs, simulation));
    return show_schedule(*schedule, parsed, simulation);
}

static sl_status run_schedule(cli_line *line, void *settings_read)
{
    const settings *parsed = settings_read;
    double costs[3];
    sl_schedule *schedule = NULL;
    sl_simulation simulation = {0};
    (void)line;
    parse_costs(parsed->costs, costs);
    if (parsed->run.split_vocabulary && (parsed->head <= 0 || costs[0] <= 0))
        cli_refuse("--split-vocabulary needs times above 0 for a forward, in --costs and --head");
    int64_t chunks = parsed->chunks ? parsed->chunks : CHUNKS;
    if (chunks * parsed->run.slices > MAX_CHUNKS)
        cli_refuse("--chunks times --slices must be at most %d, got %d times %d", MAX_CHUNKS,
                   (int)chunks, parsed->run.slices);
    if (parsed->csv && parsed->json)
        cli_refuse("--csv prints the table alone, so it cannot be combined with --json");
    if (parsed->svg)
        SL_TRY(sl_error_context(sl_train_check_output(&parsed->run, parsed->svg), "--svg: "));
    sl_status status = draw(parsed, costs, &schedule, &simulation);
    sl_simulation_clear(&simulation);
    sl_schedule_destroy(&schedule);
    return status;
}

const cli_command cmd_schedule = {
    .name = "schedule",
    .summary = "draw and simulate a pipeline schedule",
    .doc = "Draws a schedule: a row for each pipeline rank, a column for each clock cycle. A cell "
           "names a stage, an action and a micro-batch: 2F0 is stage 2's forward of micro-batch 0, "
           "with --slices 2F0.1 is that of its slice 1; R runs it again, B is backward, I its half "
           "for the input, W its half for the weights; "
           "S and T "
           "are forward and backward of the rank's part of a split head; "
           "... is idle time.",
    .examples = "sluice schedule --schedule 1f1b --pp 4 --chunks 8\n"
                "sluice schedule --schedule zb-h1 --pp 4 --svg zb-h1.svg\n",
    .run_options = {sl_plan_option_rows},
    .run_names = run_names,
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_schedule,
};
