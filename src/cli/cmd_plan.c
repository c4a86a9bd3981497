/* sluice plan: the best layouts of a run on this machine. */
#include "cli/cli.h"
#include "sluice/app/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct settings {
    sl_train_options run;
    const char *model;
    int64_t ntokens, batch_tokens;
    double tokens, profile_seconds;
    const char *cluster, *from, *output, *svg, *csv, *what_if;
    bool json;
} settings;

/* What a run's layout depends on, and its data. */
static const char *const run_names[] = {"preset",
                                        "emsize",
                                        "nhid",
                                        "nlayers",
                                        "nhead",
                                        "dropout",
                                        "mask",
                                        "activation",
                                        "pre-norm",
                                        "tie",
                                        "freeze",
                                        "train-layers",
                                        "lora",
                                        "lora-rank",
                                        "lora-alpha",
                                        "use-rslora",
                                        "lora-dropout",
                                        "lora-targets",
                                        "pp",
                                        "devices",
                                        "balance",
                                        "chunks",
                                        "accumulate",
                                        "recompute",
                                        "slices",
                                        "split-vocabulary",
                                        "schedule",
                                        "virtual",
                                        "placement",
                                        "dp",
                                        "shards",
                                        "near-replicas",
                                        "zero",
                                        "batch-size",
                                        "bptt",
                                        "optimizer",
                                        "optimizer-precision",
                                        "momentum",
                                        "precision",
                                        "comm-precision",
                                        "batch-invariant",
                                        "data",
                                        "tokenizer",
                                        "token-type",
                                        "mask-prompt",
                                        "splitter",
                                        "pack",
                                        "shuffle",
                                        "group-by-length",
                                        "max-batches",
                                        "eval-max-batches",
                                        "epochs",
                                        "eval-every",
                                        "eval-batch-size",
                                        "init",
                                        "adapter",
                                        "force",
                                        NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "model", .value = "NAME", .group = "Model", FIELD(TEXT, model), .choices = sl_model_names,
     .help = "Plan for the model of this name, with the sizes that were published"},
    {.name = "ntokens", .value = "N", .group = "Model", FIELD(INT64, ntokens),
     RANGE(1, INT32_MAX), .initial = "28782",
     .help = "Number of types in the vocabulary, without --data, --init and --model; the default is "
             "WikiText-2's"},
    {.name = "batch-tokens", .value = "N", .group = "Batches", FIELD(INT64, batch_tokens),
     RANGE(1, INT64_MAX), .optional = true,
     .help = "Tokens of a step, the same in all plans; without it those of --batch-size and --shards"},
    {.name = "profile-seconds", .value = "S", .group = "Devices", FIELD(DOUBLE, profile_seconds),
     .initial = "10",
     .help = "Measure this machine once more, however long that takes, and again for a fifth of S seconds, and "
             "for up to S until what is measured agrees to 3%; 0: once"},
    {.name = "from", .value = "LOG", .group = "Files", FIELD(TEXT, from),
     .help = "Plan for the run of this log (train --log-json) by what it has measured, without a profile, "
             "and say what to change in it"},
    {.name = "cluster", .value = "FILE", .group = "Cluster", FIELD(TEXT, cluster),
     .help = "Plan for the cluster that FILE describes (JSON), instead of this machine"},
    {.name = "tokens", .value = "N", .group = "Cluster", FIELD(DOUBLE, tokens), .optional = true,
     .needs = "cluster",
     .help = "Tokens of the whole training, to say how long it takes with failures"},
    {.name = "seed", .value = "S", .group = "Cluster", FIELD(SEED, run.seed),
     .help = "With --cluster: by which seed jitter, slow nodes and failures are drawn"},
    {.name = "what-if", .value = "NAME=N[,N...]", .group = "Cluster", FIELD(TEXT, what_if),
     .is_item = cli_is_what_if, .needs = "cluster",
     .help = "Plan again for changed clusters: links=2 is twice the bytes per second, failures=2 twice as many "
             "failures, nodes=64 that many nodes; several times for all combinations, the first is the chart's "
             "x axis"},
    {.name = "csv", .value = "FILE", .group = "Output", FIELD(TEXT, csv), .needs = "what-if",
     .help = "With --what-if: write one CSV line for each combination to FILE"},
    {.name = "output", .letter = 'o', .value = "FILE", .group = "Output", FIELD(TEXT, output),
     .help = "Write the plans to FILE as well, for sluice train --plan"},
    {.name = "svg", .value = "FILE", .group = "Output", FIELD(TEXT, svg),
     .help = "Write a picture of where each plan's step goes, and of the first one's pipeline; with --what-if "
             "a chart of the tokens a day"},
    {.name = "json", .group = "Output", FIELD(FLAG, json),
     .help = "Print the plans as one JSON object"},
    {0},
};
/* clang-format on */

/* ---- What is kept ------------------------------------------------------------------------- */

/* The options of the line are kept, those of a preset are not. */
static unsigned find_kept(const cli_line *line)
{
    static const struct {
        const char *name;
        unsigned flag;
    } kept[] = {{"dp", SL_KEEP_REPLICAS},
                {"pp", SL_KEEP_PIPELINE_RANKS},
                {"schedule", SL_KEEP_SCHEDULE},
                {"chunks", SL_KEEP_CHUNKS},
                {"recompute", SL_KEEP_RECOMPUTE},
                {"balance", SL_KEEP_BALANCE},
                {"zero", SL_KEEP_ZERO},
                {"shards", SL_KEEP_SHARDS},
                {"batch-size", SL_KEEP_BATCH_SIZE},
                {"split-vocabulary", SL_KEEP_SPLIT_VOCABULARY}};
    unsigned flags = 0;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (cli_line_value(line, kept[i].name))
            flags |= kept[i].flag;
    return flags;
}

/* ---- The command -------------------------------------------------------------------------- */

static sl_status write_picture(const settings *parsed, const cli_plans *found)
{
    char *text;
    if (!parsed->svg)
        return SL_OK;
    SL_TRY(cli_plans_draw(found, &text));
    sl_status status = sl_train_write_output(parsed->svg, text);
    free(text);
    return status;
}

static sl_status show_plans(const settings *parsed, cli_plans *found)
{
    char *text = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(sl_found_plan_simulate(&found->plans[0], &found->table, &found->simulation));
    cli_simulation_to_ms(found->table, &found->simulation);
    SL_TRY_OR_FAIL(write_picture(parsed, found));
    SL_TRY_OR_FAIL(cli_plans_json(found, &text));
    if (parsed->output)
        SL_TRY_OR_FAIL(sl_train_write_output(parsed->output, text));
    if (parsed->json)
        fputs(text, stdout);
    else
        SL_TRY_OR_FAIL(cli_plans_print(found));
fail:
    free(text);
    sl_simulation_clear(&found->simulation);
    sl_schedule_destroy(&found->table);
    return status;
}

/* Files that are written are none that are read: those of a log's run are known when it is read. */
static sl_status check_output(const settings *parsed, const char *option, const char *path)
{
    if (cli_is_same_file(path, parsed->from) ||
        (parsed->cluster && cli_is_same_file(path, parsed->cluster)))
        return sl_error(SL_ERR_INVALID, "%s: %s is an input and must not be overwritten", option,
                        path);
    return path ? sl_error_context(sl_train_check_output(&parsed->run, path), "%s: ", option)
                : SL_OK;
}

/* None is another one, or an input. */
static sl_status check_outputs(const settings *parsed)
{
    const struct {
        const char *option, *path;
    } files[] = {{"--svg", parsed->svg}, {"--csv", parsed->csv}, {"--output", parsed->output}};
    enum { FILES = sizeof files / sizeof *files };
    for (int i = 0; i < FILES; i++) {
        const char *path = files[i].path;
        for (int k = i + 1; path && k < FILES; k++)
            if (cli_is_same_file(path, files[k].path) ||
                (files[k].path && strcmp(path, files[k].path) == 0))
                return sl_error(SL_ERR_INVALID, "%s and %s must be two files, got %s",
                                files[i].option, files[k].option, path);
        SL_TRY(check_output(parsed, files[i].option, path));
    }
    return SL_OK;
}

/* The options that say what is trained, and how, are the log's. */
static void check_line_of_log(const cli_line *line)
{
    const sl_option *row;
    for (int i = 0; (row = cli_row(line->command, i)); i++) {
        bool is_own = false;
        for (const sl_option *own = options; own->name; own++)
            is_own |= strcmp(own->name, row->name) == 0;
        bool is_free =
            strcmp(row->name, "force") == 0 ||
            (is_own && strcmp(row->name, "model") != 0 && strcmp(row->name, "ntokens") != 0 &&
             strcmp(row->name, "batch-tokens") != 0);
        if (!is_free && cli_line_value(line, row->name))
            cli_refuse("--%s is the run's that --from names: leave it out", row->name);
    }
}

static sl_status search_changes(const sl_train_options *run, const cli_logged_run *logged,
                                cli_plans *found)
{
    const sl_run_measures *measures = &logged->measures;
    const sl_plan_search_options search = {.run = run, .measures = measures};
    SL_TRY(
        sl_plan_find_changes(run, measures, found->logged, found->changes, &found->change_count));
    return sl_plan_search(&search, found->plans, &found->count, &found->helps);
}

/* By the log of a run, which is read. */
static sl_status search_by_log(cli_line *line, settings *parsed, cli_logged_run *logged,
                               cli_plans *found)
{
    sl_train_options *run = &parsed->run;
    check_line_of_log(line);
    SL_TRY(cli_logged_run_read(parsed->from, logged));
    SL_TRY(cli_logged_run_set(logged, line, parsed->from, parsed));
    SL_TRY(check_outputs(parsed));
    SL_TRY(cli_saved_model_apply_sizes(line, run));
    run->model.ntokens = cli_logged_run_tokens(logged);
    return sl_error_context(search_changes(run, logged, found), "%s: ", parsed->from);
}

/* The model's sizes, as the line or what it names has them. */
static sl_status find_model(cli_line *line, settings *parsed)
{
    sl_train_options *run = &parsed->run;
    const char *vocabulary = run->init       ? "init"
                             : parsed->model ? "model"
                             : run->data     ? "data"
                                             : NULL;
    if (vocabulary && cli_line_value(line, "ntokens"))
        cli_refuse("--%s has a vocabulary's size, so it cannot be combined with --ntokens",
                   vocabulary);
    run->model.ntokens = run->init || run->data ? 0 : parsed->ntokens;
    return cli_saved_model_apply_sizes(line, run);
}

static sl_status search_by_profile(cli_line *line, settings *parsed, cli_plans *found)
{
    const sl_plan_search_options search = {.run = &parsed->run,
                                           .kept = find_kept(line),
                                           .profile_seconds = parsed->profile_seconds,
                                           .batch_tokens = parsed->batch_tokens};
    SL_TRY(find_model(line, parsed));
    return sl_plan_search(&search, found->plans, &found->count, &found->helps);
}

static sl_status plan_cluster(cli_line *line, settings *parsed)
{
    const sl_plan_search_options search = {.run = &parsed->run,
                                           .kept = find_kept(line),
                                           .batch_tokens = parsed->batch_tokens,
                                           .tokens = parsed->tokens > 0 ? parsed->tokens : 0};
    const cli_cluster_settings asked = {.cluster = parsed->cluster,
                                        .output = parsed->output,
                                        .svg = parsed->svg,
                                        .csv = parsed->csv,
                                        .what_if = parsed->what_if,
                                        .tokens = parsed->tokens,
                                        .json = parsed->json};
    SL_TRY(find_model(line, parsed));
    return parsed->what_if ? cli_plan_what_if(&search, &asked) : cli_plan_cluster(&search, &asked);
}

static sl_status run_plan(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    bool has_log = parsed->from;
    cli_logged_run logged = {0};
    sl_found_plan *room = cli_allocate(SL_PLANS_FOUND + 1 + SL_PLAN_CHANGES, sizeof *room);
    cli_plans found = {.run = &parsed->run, .plans = room};
    if (has_log) {
        found.logged = room + SL_PLANS_FOUND;
        found.changes = found.logged + 1;
    }
    if (parsed->cluster && has_log)
        cli_refuse("--cluster cannot be combined with --from");
    if (!parsed->cluster && cli_line_value(line, "near-replicas"))
        cli_refuse(has_log ? "--near-replicas is the log's, and cannot be given"
                           : "--near-replicas is for runs of several processes: give --cluster");
    if ((parsed->cluster || has_log) && cli_line_value(line, "profile-seconds"))
        cli_refuse("--profile-seconds cannot be combined with --%s, with which nothing is profiled",
                   has_log ? "from" : "cluster");
    if (parsed->what_if && (parsed->json || parsed->output))
        cli_refuse("--what-if cannot be combined with --%s: --csv writes its points",
                   parsed->json ? "json" : "output");
    sl_status status;
    SL_TRY_OR_FAIL(check_outputs(parsed));
    SL_TRY_OR_FAIL(has_log           ? search_by_log(line, parsed, &logged, &found)
                   : parsed->cluster ? plan_cluster(line, parsed)
                                     : search_by_profile(line, parsed, &found));
    if (!parsed->cluster)
        SL_TRY_OR_FAIL(show_plans(parsed, &found));
fail:
    cli_logged_run_clear(&logged);
    free(room);
    return status;
}

const cli_command cmd_plan = {
    .name = "plan",
    .summary = "find the fastest layout of a run on this machine",
    .doc = "Profiles this machine for a moment, and searches replicas, pipeline ranks, virtual "
           "stages, "
           "schedule, chunks, recomputation, ZeRO and cut for the shortest step that fits the "
           "memory. An "
           "option that is given is kept; those of a preset are not. All plans train the same "
           "tokens a step. The options of a plan are added to those of sluice train.\n\nWith "
           "--cluster nothing is profiled: the plans are those for machines that a file describes.",
    .examples = "sluice plan --data book.txt --preset small --batch-tokens 4096 -o plan.json\n"
                "sluice train --data book.txt --preset small --plan plan.json\n"
                "sluice plan --init SmolLM2-135M --data tokens --batch-tokens 131072 --json\n"
                "sluice plan --preset small --dp 2\n"
                "sluice plan --from run.jsonl\n"
                "sluice plan --model llama-3-8b --precision bf16 --batch-tokens 4194304 --cluster "
                "cluster.json --tokens 15e12\n"
                "sluice plan --model llama-3-8b --precision bf16 --batch-tokens 4194304 --cluster "
                "cluster.json --what-if nodes=32,64,128 --what-if links=1,2 --svg chart.svg\n",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .run_names = run_names,
    .options = options,
    .takes_decoders = true,
    .settings_bytes = sizeof(settings),
    .run = run_plan,
};
