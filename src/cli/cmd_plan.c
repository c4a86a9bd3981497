/* sluice plan: the best layouts of a run on this machine. */
#define _GNU_SOURCE /* asprintf */
#include "cli/cli.h"
#include "sluice/app/plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    sl_train_options run;
    const char *model;
    int64_t ntokens, batch_tokens;
    const char *output;
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
                                        "schedule",
                                        "virtual",
                                        "placement",
                                        "dp",
                                        "shards",
                                        "zero",
                                        "batch-size",
                                        "bptt",
                                        "optimizer",
                                        "momentum",
                                        "precision",
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
    {.name = "output", .letter = 'o', .value = "FILE", .group = "Output", FIELD(TEXT, output),
     .help = "Write the plans to FILE as well, for sluice train --plan"},
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
                {"batch-size", SL_KEEP_BATCH_SIZE}};
    unsigned flags = 0;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (cli_line_value(line, kept[i].name))
            flags |= kept[i].flag;
    return flags;
}

/* ---- A plan as options -------------------------------------------------------------------- */

enum { MOST_WORDS = 32, BALANCE_BYTES = 12 * SL_MAX_STAGES };

/* Words of a command line. */
typedef struct plan_words {
    char *words[MOST_WORDS]; /* freed by clear_words */
    int count;
} plan_words;

static void clear_words(plan_words *words)
{
    while (words->count > 0)
        free(words->words[--words->count]);
}

static void add_word(plan_words *words, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    size_t bytes = (size_t)vsnprintf(NULL, 0, format, arguments) + 1;
    char *word = cli_allocate(bytes, 1);
    vsnprintf(word, bytes, format, again);
    va_end(again);
    words->words[words->count++] = word;
}

__attribute__((format(printf, 3, 4))) static void add_option(plan_words *words, const char *name,
                                                             const char *format, ...)
{
    va_list arguments;
    size_t bytes = strlen(name) + sizeof "--";
    char *word = cli_allocate(bytes, 1);
    snprintf(word, bytes, "--%s", name);
    words->words[words->count++] = word;
    if (!format)
        return;
    va_start(arguments, format);
    add_word(words, format, arguments);
    va_end(arguments);
}

/* "4,3" */
static void print_balance(const sl_train_options *run, char text[BALANCE_BYTES])
{
    size_t used = 0;
    for (int s = 0; s < run->balance_count && used < BALANCE_BYTES; s++)
        used += (size_t)snprintf(text + used, BALANCE_BYTES - used, "%s%d", s ? "," : "",
                                 run->balance[s]);
}

/* All that was searched, and what the line had of that. */
static void list_words(const cli_line *line, const sl_train_options *run, plan_words *words)
{
    static const char *const given[] = {"virtual", "placement", "accumulate"};
    char balance[BALANCE_BYTES];
    print_balance(run, balance);
    words->count = 0;
    add_option(words, "dp", "%d", run->replicas);
    add_option(words, "pp", "%d", run->pipeline_ranks);
    if (run->devices)
        add_option(words, "devices", "%s", run->devices);
    add_option(words, "schedule", "%s", run->schedule);
    add_option(words, "chunks", "%d", run->chunks);
    add_option(words, "recompute", "%s", sl_recompute_name(run->recompute));
    add_option(words, "balance", "%s", balance);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (cli_line_value(line, given[i]))
            add_option(words, given[i], "%s", cli_line_value(line, given[i]));
    if (run->zero)
        add_option(words, "zero", NULL);
    add_option(words, "shards", "%d", run->shards);
    add_option(words, "batch-size", "%" PRId64, run->batch_size);
}

/* ---- Printing ----------------------------------------------------------------------------- */

static sl_status make_json(const cli_line *line, const sl_found_plan *plans, int count, char **text)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        plan_words words;
        json_t *texts = json_array();
        list_words(line, &plans[i].options, &words);
        for (int w = 0; w < words.count; w++)
            json_array_append_new(texts, json_string(words.words[w]));
        clear_words(&words);
        json_array_append_new(list, json_pack("{s:f, s:f, s:I, s:f, s:o}", "step_ms",
                                              1e3 * plans[i].costs.seconds, "tokens_per_s",
                                              plans[i].tokens_per_s, "memory_bytes",
                                              (json_int_t)plans[i].memory_bytes, "bubble",
                                              plans[i].costs.bubble, "options", texts));
    }
    json_t *root = json_pack("{s:o}", "plans", list);
    char *dumped = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!dumped || asprintf(text, "%s\n", dumped) < 0)
        *text = NULL;
    free(dumped);
    return *text ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for the plans");
}

/* Whether several devices are listed, which are all "cpu". */
static bool share_cores(const char *devices)
{
    const char *name = devices;
    while (name && strncmp(name, "cpu,", strlen("cpu,")) == 0)
        name += strlen("cpu,");
    return name && name > devices && strcmp(name, "cpu") == 0;
}

/* "1 x 2 SCHEDULE on shared cores, 4 chunks, recompute always" */
static void print_shape(const sl_train_options *run, char *text, size_t bytes)
{
    bool is_pipeline = run->pipeline_ranks > 1;
    snprintf(text, bytes, "%d x %d%s%s%s, %d chunk%s%s%s%s", run->replicas, run->pipeline_ranks,
             is_pipeline ? " " : "", is_pipeline ? run->schedule : "",
             is_pipeline && share_cores(run->devices) ? " on shared cores" : "", run->chunks,
             run->chunks == 1 ? "" : "s",
             run->recompute == SL_RECOMPUTE_NEVER ? "" : ", recompute ",
             run->recompute == SL_RECOMPUTE_NEVER ? "" : sl_recompute_name(run->recompute),
             run->zero ? ", zero" : "");
}

static void print_table(const cli_line *line, const sl_found_plan *plans, int count)
{
    plan_words words;
    printf("%-44s %10s %12s %12s %8s %10s %10s\n", "replicas x pipeline ranks", "step ms",
           "tokens/s", "memory", "bubble", "exchange", "update");
    for (int i = 0; i < count; i++) {
        char shape[96];
        const sl_step_costs *costs = &plans[i].costs;
        print_shape(&plans[i].options, shape, sizeof shape);
        printf("%-44s %10.1f %12.0f %12s %7.1f%% %9.1f%% %9.1f%%\n", shape, 1e3 * costs->seconds,
               plans[i].tokens_per_s, cli_bytes_text(plans[i].memory_bytes).text,
               100 * costs->bubble, 100 * costs->exchange / costs->seconds,
               100 * costs->update / costs->seconds);
    }
    printf("\nThe options of the first:\n ");
    list_words(line, &plans[0].options, &words);
    for (int w = 0; w < words.count; w++) {
        printf(" ");
        cli_print_word(stdout, words.words[w]);
    }
    printf("\n");
    clear_words(&words);
}

/* ---- The command -------------------------------------------------------------------------- */

static sl_status show_plans(const cli_line *line, const settings *parsed,
                            const sl_found_plan *plans, int count)
{
    char *text;
    SL_TRY(make_json(line, plans, count, &text));
    sl_status status = parsed->output ? sl_train_write_output(parsed->output, text) : SL_OK;
    if (status == SL_OK && parsed->json)
        fputs(text, stdout);
    else if (status == SL_OK)
        print_table(line, plans, count);
    free(text);
    return status;
}

static sl_status run_plan(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    sl_train_options *run = &parsed->run;
    const sl_plan_search_options search = {.run = run,
                                           .kept = find_kept(line),
                                           .batch_tokens = parsed->batch_tokens};
    sl_found_plan *plans = cli_allocate(SL_PLANS_FOUND, sizeof *plans);
    int count;
    const char *vocabulary = run->init       ? "init"
                             : parsed->model ? "model"
                             : run->data     ? "data"
                                             : NULL;
    if (vocabulary && cli_line_value(line, "ntokens"))
        cli_refuse("--%s has a vocabulary's size, so it cannot be combined with --ntokens",
                   vocabulary);
    run->model.ntokens = run->init || run->data ? 0 : parsed->ntokens;
    sl_status status =
        parsed->output ? sl_error_context(sl_train_check_output(run, parsed->output), "--output: ")
                       : SL_OK;
    if (status == SL_OK)
        status = cli_saved_model_apply_sizes(line, run);
    if (status == SL_OK)
        status = sl_plan_search(&search, plans, &count);
    if (status == SL_OK)
        status = show_plans(line, parsed, plans, count);
    free(plans);
    return status;
}

const cli_command cmd_plan = {
    .name = "plan",
    .summary = "find the fastest layout of a run on this machine",
    .doc = "Profiles this machine for a moment, and searches replicas, pipeline ranks, schedule, "
           "chunks, recomputation, ZeRO and cut for the shortest step that fits the memory. An "
           "option that is given is kept; those of a preset are not. All plans train the same "
           "tokens a step. The options of a plan are added to those of sluice train.",
    .examples = "sluice plan --data book.txt --preset small --batch-tokens 4096 -o plan.json\n"
                "sluice train --data book.txt --preset small --plan plan.json\n"
                "sluice plan --init SmolLM2-135M --data tokens --batch-tokens 131072 --json\n"
                "sluice plan --preset small --dp 2\n",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .run_names = run_names,
    .options = options,
    .settings_bytes = sizeof(settings),
    .run = run_plan,
};
