/* What sluice plan shows: the plans that it has found, as a table, as JSON, and as options. */
#define _GNU_SOURCE /* asprintf */
#include "cli/cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- A plan as options -------------------------------------------------------------------- */

enum { MOST_WORDS = 32 };

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

/* All that was searched, and what was given of that. */
static void list_words(const sl_train_options *run, plan_words *words)
{
    char *balance = cli_balance_text(run->balance, run->balance_count);
    words->count = 0;
    add_option(words, "dp", "%d", run->replicas);
    add_option(words, "pp", "%d", run->pipeline_ranks);
    if (run->devices)
        add_option(words, "devices", "%s", run->devices);
    add_option(words, "schedule", "%s", run->schedule);
    add_option(words, "chunks", "%d", run->chunks);
    add_option(words, "recompute", "%s", sl_recompute_name(run->recompute));
    add_option(words, "balance", "%s", balance);
    free(balance);
    if (run->virtual_stages > 0)
        add_option(words, "virtual", "%d", run->virtual_stages);
    if (run->placement)
        add_option(words, "placement", "%s", run->placement);
    if (run->accumulate > 1)
        add_option(words, "accumulate", "%d", run->accumulate);
    if (run->slices > 1)
        add_option(words, "slices", "%d", run->slices);
    if (run->split_vocabulary)
        add_option(words, "split-vocabulary", NULL);
    if (run->near_replicas)
        add_option(words, "near-replicas", NULL);
    if (run->zero)
        add_option(words, "zero", NULL);
    add_option(words, "shards", "%d", run->shards);
    add_option(words, "batch-size", "%" PRId64, run->batch_size);
}

/* ---- Printing ----------------------------------------------------------------------------- */

/* Takes the item over; where it is NULL the list is freed, and NULL from then on. */
static void append(json_t **list, json_t *item)
{
    if (*list && json_array_append_new(*list, item) == 0)
        return;
    if (!*list)
        json_decref(item);
    json_decref(*list);
    *list = NULL;
}

/* NULL where there is no memory, and so of all that follow. */
static json_t *describe_plan(const sl_found_plan *plan)
{
    plan_words words;
    json_t *texts = json_array();
    list_words(&plan->options, &words);
    for (int w = 0; w < words.count; w++)
        append(&texts, json_string(words.words[w]));
    clear_words(&words);
    return json_pack("{s:f, s:f, s:I, s:f, s:o*, s:o*, s:s*, s:o}", "step_ms",
                     1e3 * plan->costs.seconds, "tokens_per_s", plan->tokens_per_s, "memory_bytes",
                     (json_int_t)plan->memory_bytes, "bubble", plan->costs.bubble, "mfu",
                     plan->mfu > 0 ? json_real(plan->mfu) : NULL, "spread",
                     plan->spread >= 0 ? json_real(plan->spread) : NULL, "device", plan->device,
                     "options", texts);
}

/* The line of a log's run is not known. */
static cli_change describe_change(const cli_plans *found, const sl_found_plan *plan)
{
    return cli_describe_change(&(cli_changed_line){found->run, true, true}, plan);
}

/* The run of a log as it is, and what to change in it. */
static json_t *describe_changes(const cli_plans *found)
{
    json_t *changes = json_array();
    for (int i = 0; i < found->change_count; i++) {
        const sl_found_plan *plan = &found->changes[i];
        json_t *change = describe_plan(plan),
               *more = json_pack("{s:f, s:s}", "gain",
                                 found->logged->costs.seconds / plan->costs.seconds, "change",
                                 describe_change(found, plan).options.text);
        append(&changes, json_object_update(change, more) == 0 ? json_incref(change) : NULL);
        json_decref(change);
        json_decref(more);
    }
    json_t *logged = describe_plan(found->logged);
    return json_pack("{s:o, s:o}", "run", logged, "changes", changes);
}

/* Where each plan's step goes. */
static json_t *describe_times(const cli_plan_bar *bars, int count)
{
    json_t *list = json_array();
    for (int p = 0; p < count; p++) {
        double parts[CLI_PLAN_PARTS];
        json_t *times = json_object();
        bool is_whole = times;
        cli_plan_find_parts(&bars[p], parts);
        for (int i = 0; i < CLI_PLAN_PARTS; i++)
            is_whole &=
                json_object_set_new(times, cli_plan_part_names[i], json_real(1e3 * parts[i])) == 0;
        append(&list, is_whole ? json_incref(times) : NULL);
        json_decref(times);
    }
    return list;
}

static json_t *describe_helps(const cli_plan_bar *plan, const sl_plan_helps *planned)
{
    cli_plan_help helps[CLI_PLAN_HELPS];
    json_t *list = json_array();
    int count = cli_plan_helps(plan, planned, helps);
    for (int i = 0; i < count; i++)
        append(&list, json_pack("{s:s, s:f, s:b}", "what", helps[i].name, "gain", helps[i].gain,
                                "at_least", helps[i].is_lower_bound));
    return list;
}

static json_t *describe_table(const sl_schedule *table, const sl_simulation *simulation)
{
    char *text = NULL;
    json_t *object =
        sl_schedule_json(table, simulation, &text) == SL_OK ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return object;
}

json_t *cli_plan_bars_json(const cli_plan_bar *bars, int count, const sl_plan_helps *helps,
                           const sl_schedule *table, const sl_simulation *simulation)
{
    json_t *members = json_pack("{s:o, s:o}", "time_ms", describe_times(bars, count), "helps",
                                describe_helps(&bars[0], helps));
    if (table)
        cli_add_members(&members,
                        json_pack("{s:o}", "pipeline", describe_table(table, simulation)));
    return members;
}

static void fill_bars(const cli_plans *found, cli_plan_bar bars[SL_PLANS_FOUND])
{
    for (int i = 0; i < found->count; i++)
        bars[i] = (cli_plan_bar){.shape = cli_plan_shape(&found->plans[i]),
                                 .costs = found->plans[i].costs,
                                 .shares_cores = found->plans[i].shares_cores};
}

void cli_add_members(json_t **object, json_t *members)
{
    if (json_object_update(*object, members) != 0) {
        json_decref(*object);
        *object = NULL;
    }
    json_decref(members);
}

sl_status cli_print_plan_json(json_t *root, char **text)
{
    char *dumped = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    if (!dumped || asprintf(text, "%s\n", dumped) < 0)
        *text = NULL;
    free(dumped);
    return *text ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for the plans");
}

sl_status cli_plans_json(const cli_plans *found, char **text)
{
    cli_plan_bar bars[SL_PLANS_FOUND];
    json_t *list = json_array();
    fill_bars(found, bars);
    for (int i = 0; i < found->count; i++)
        append(&list, describe_plan(&found->plans[i]));
    json_t *root = json_pack("{s:o}", "plans", list);
    cli_add_members(&root, cli_plan_bars_json(bars, found->count, &found->helps, found->table,
                                              &found->simulation));
    if (found->logged)
        cli_add_members(&root, describe_changes(found));
    return cli_print_plan_json(root, text);
}

cli_change_text cli_plan_shape(const sl_found_plan *plan)
{
    cli_change_text out;
    const sl_train_options *run = &plan->options;
    bool is_pipeline = run->pipeline_ranks > 1;
    char stages[32] = "";
    if (run->virtual_stages > 1)
        snprintf(stages, sizeof stages, " of %d stages", run->virtual_stages);
    snprintf(out.text, sizeof out.text, "%d x %d%s%s%s%s, %d chunk%s%s%s%s%s", run->replicas,
             run->pipeline_ranks, is_pipeline ? " " : "", is_pipeline ? run->schedule : "", stages,
             is_pipeline && plan->shares_cores ? " on shared cores" : "", run->chunks,
             run->chunks == 1 ? "" : "s",
             run->recompute == SL_RECOMPUTE_NEVER ? "" : ", recompute ",
             run->recompute == SL_RECOMPUTE_NEVER ? "" : sl_recompute_name(run->recompute),
             run->zero ? ", zero" : "", run->split_vocabulary ? ", split" : "");
    return out;
}

/* The column is left out where no plan has it. */
static void print_mfu(const sl_found_plan *plan, bool has_mfu)
{
    if (has_mfu)
        printf(" %6.1f%%", 100 * plan->mfu);
}

static void print_row(const sl_found_plan *plan, bool has_mfu)
{
    const sl_step_costs *costs = &plan->costs;
    printf("%-44s %10.1f %12.0f", cli_plan_shape(plan).text, 1e3 * costs->seconds,
           plan->tokens_per_s);
    print_mfu(plan, has_mfu);
    printf(" %12s %7.1f%% %9.1f%% %9.1f%%\n", cli_bytes_text(plan->memory_bytes).text,
           100 * costs->bubble, 100 * costs->exchange / costs->seconds,
           100 * costs->update / costs->seconds);
}

static void print_changes(const cli_plans *found)
{
    const sl_step_costs *costs = &found->logged->costs;
    printf("\nThe run itself, by what it has measured:\n");
    print_row(found->logged, false);
    printf("\n%s\n", found->change_count > 0 ? "What to change in it:"
                                             : "No change of one thing would make it faster.");
    for (int i = 0; i < found->change_count; i++) {
        const sl_found_plan *plan = &found->changes[i];
        const cli_change change = describe_change(found, plan);
        printf("  %s instead of %s: %.2f times as fast, predicted %.1f ms\n", change.options.text,
               change.replaced.text, costs->seconds / plan->costs.seconds,
               1e3 * plan->costs.seconds);
    }
}

static sl_status print_times(const cli_plans *found)
{
    cli_plan_bar bars[SL_PLANS_FOUND];
    fill_bars(found, bars);
    return cli_plan_print_times(bars, found->count, &found->helps, found->table);
}

sl_status cli_plans_print(const cli_plans *found)
{
    plan_words words;
    bool has_mfu = found->plans[0].mfu > 0;
    printf("%-44s %10s %12s%s %12s %8s %10s %10s\n", "replicas x pipeline ranks", "step ms",
           "tokens/s", has_mfu ? "     MFU" : "", "memory", "bubble", "exchange", "update");
    for (int i = 0; i < found->count; i++)
        print_row(&found->plans[i], has_mfu);
    if (found->logged)
        print_changes(found);
    if (found->plans[0].spread >= 0)
        printf("\nThe times of the first one's modules, added up, vary by %.1f%% between rounds.\n",
               100 * found->plans[0].spread);
    printf("\nThe options of the first:\n ");
    list_words(&found->plans[0].options, &words);
    for (int w = 0; w < words.count; w++) {
        printf(" ");
        cli_print_word(stdout, words.words[w]);
    }
    printf("\n");
    clear_words(&words);
    return print_times(found);
}

sl_status cli_plans_draw(const cli_plans *found, char **text)
{
    cli_plan_bar bars[SL_PLANS_FOUND];
    fill_bars(found, bars);
    return cli_plan_draw(bars, found->count, found->table, &found->simulation, "", text);
}
