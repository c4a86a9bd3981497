/* sluice plan --cluster: the best plans for a cluster that is not here, as a table or as JSON. */
#define _GNU_SOURCE /* asprintf */
#include "cli/cli.h"
#include "sluice/app/plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- A plan as options -------------------------------------------------------------------- */

static void add_number(json_t *words, const char *option, int64_t number)
{
    json_array_append_new(words, json_string(option));
    json_array_append_new(words, json_sprintf("%" PRId64, number));
}

static void add_text(json_t *words, const char *option, json_t *text)
{
    json_array_append_new(words, json_string(option));
    json_array_append_new(words, text);
}

/* Those of sluice train. */
static json_t *list_options(const sl_cluster_plan *plan)
{
    json_t *words = json_array();
    char *balance = cli_balance_text(plan->balance, plan->stages);
    add_number(words, "--dp", plan->replicas);
    add_number(words, "--pp", plan->pipeline_ranks);
    if (plan->virtual_stages > 1)
        add_number(words, "--virtual", plan->virtual_stages);
    add_text(words, "--schedule", json_string(plan->schedule));
    add_number(words, "--chunks", plan->chunks);
    add_text(words, "--recompute", json_string(sl_recompute_name(plan->recompute)));
    add_text(words, "--balance", json_string(balance));
    free(balance);
    if (plan->split_vocabulary)
        json_array_append_new(words, json_string("--split-vocabulary"));
    if (plan->near_replicas)
        json_array_append_new(words, json_string("--near-replicas"));
    if (plan->zero)
        json_array_append_new(words, json_string("--zero"));
    add_number(words, "--shards", plan->replicas);
    add_number(words, "--batch-size", plan->batch_size);
    return words;
}

/* Why sluice train does not run it; NULL: it does. */
static json_t *find_limit(const sl_cluster_plan *plan)
{
    if (plan->replicas > SL_MAX_REPLICAS)
        return json_sprintf("sluice train has at most %d replicas", SL_MAX_REPLICAS);
    if (plan->stages > SL_MAX_STAGES)
        return json_sprintf("sluice train has at most %d stages", SL_MAX_STAGES);
    return NULL;
}

double cli_tokens_a_day(const sl_cluster_plan *plan)
{
    return plan->tokens_per_s * SL_DAY_SECONDS * plan->failures.kept_fraction;
}

/* ---- JSON --------------------------------------------------------------------------------- */

/* Finite numbers, else null. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* As a text where it is larger than numbers of the library can be. */
static json_t *describe_seed(uint64_t seed)
{
    return seed <= INT64_MAX ? json_integer((json_int_t)seed) : json_sprintf("%" PRIu64, seed);
}

/* What of a plan depends on failures. */
static json_t *describe_failures(const sl_cluster_plan *plan, double tokens)
{
    const sl_failure_plan *failures = &plan->failures;
    json_t *object =
        json_pack("{s:f, s:f, s:f, s:f, s:i, s:i, s:o, s:o, s:o, s:o}", "kept_fraction",
                  failures->kept_fraction, "daly_kept_fraction", failures->daly_kept_fraction,
                  "tokens_per_day", cli_tokens_a_day(plan), "fewer_speed", failures->fewer_speed,
                  "runs", failures->runs, "unfinished", failures->unfinished, "mtbf_s",
                  number(failures->mtbf_s), "daly_interval_s", number(failures->daly_interval_s),
                  "young_interval_s", number(failures->young_interval_s), "simulated_interval_s",
                  number(failures->simulated_interval_s));
    if (tokens > 0)
        cli_add_members(&object, json_pack("{s:o, s:o, s:o}", "days",
                                           number(failures->run_s / SL_DAY_SECONDS), "days_low",
                                           number(failures->low_s / SL_DAY_SECONDS), "days_high",
                                           number(failures->high_s / SL_DAY_SECONDS)));
    return object;
}

static json_t *describe_plan(const sl_cluster_plan *plan, double tokens)
{
    json_t *limit = find_limit(plan);
    json_t *object =
        json_pack("{s:f, s:i, s:f, s:I, s:f, s:o, s:f, s:f, s:f, s:f, s:i, s:s, s:o*, s:s*}",
                  "step_ms", 1e3 * plan->costs.seconds, "draws", plan->draws, "tokens_per_s",
                  plan->tokens_per_s, "memory_bytes", (json_int_t)plan->memory_bytes, "bubble",
                  plan->costs.bubble, "options", list_options(plan), "pipeline_ms",
                  1e3 * plan->costs.pipeline, "exchange_ms", 1e3 * plan->costs.exchange,
                  "update_ms", 1e3 * plan->costs.update, "mfu", plan->mfu, "nodes_used",
                  plan->nodes_used, "neighbours",
                  plan->near_replicas ? "replicas" : "pipeline ranks", "too_large", limit, "device",
                  plan->device);
    cli_add_members(&object, describe_failures(plan, tokens));
    return object;
}

static void fill_bars(const sl_cluster_plans *found, cli_plan_bar bars[SL_PLANS_FOUND])
{
    for (int i = 0; i < found->count; i++)
        bars[i] = (cli_plan_bar){.shape = cli_cluster_plan_shape(&found->plans[i]),
                                 .costs = found->plans[i].costs};
}

static sl_status make_json(const sl_cluster_plans *found, const char *path, double tokens,
                           char **text)
{
    json_t *plans = json_array(), *inputs = json_array();
    for (int i = 0; i < found->count; i++)
        json_array_append_new(plans, describe_plan(&found->plans[i], tokens));
    for (size_t i = 0; i < found->input_count; i++) {
        const sl_cluster_input *input = &found->inputs[i];
        json_t *source = input->line == 0   ? json_string("default")
                         : *input->measured ? json_sprintf("%s:%d, measured: %s", path, input->line,
                                                           input->measured)
                                            : json_sprintf("%s:%d", path, input->line);
        json_array_append_new(inputs, json_pack("{s:s, s:f, s:o}", "name", input->name, "value",
                                                input->value, "from", source));
    }
    json_t *root = json_pack("{s:o, s:o, s:I, s:I, s:I, s:b, s:o}", "plans", plans, "inputs",
                             inputs, "layouts", (json_int_t)found->layouts, "simulated",
                             (json_int_t)found->simulated, "left_out", (json_int_t)found->too_large,
                             "cut_off", found->is_cut_off, "seed", describe_seed(found->seed));
    cli_plan_bar bars[SL_PLANS_FOUND];
    fill_bars(found, bars);
    cli_add_members(&root, cli_plan_bars_json(bars, found->count, &found->helps, found->table,
                                              &found->simulation));
    return cli_print_plan_json(root, text);
}

/* Tables of more actions are not drawn. */
static const int64_t most_table_actions = 20000;

/* ---- The table ---------------------------------------------------------------------------- */

cli_change_text cli_cluster_plan_shape(const sl_cluster_plan *plan)
{
    cli_change_text out;
    bool is_pipeline = plan->pipeline_ranks > 1, recomputes = plan->recompute != SL_RECOMPUTE_NEVER;
    char stages[32] = "";
    if (plan->virtual_stages > 1)
        snprintf(stages, sizeof stages, " of %d stages", plan->virtual_stages);
    snprintf(out.text, sizeof out.text, "%d x %d%s%s%s, %d chunk%s%s%s%s%s", plan->replicas,
             plan->pipeline_ranks, is_pipeline ? " " : "", is_pipeline ? plan->schedule : "",
             stages, plan->chunks, plan->chunks == 1 ? "" : "s", recomputes ? ", recompute " : "",
             recomputes ? sl_recompute_name(plan->recompute) : "", plan->zero ? ", zero" : "",
             plan->split_vocabulary ? ", split" : "");
    return out;
}

static void print_checkpoints(const sl_cluster_plan *plan)
{
    const sl_failure_plan *failures = &plan->failures;
    printf(
        "The first: a failure every %s on %d node%s, a checkpoint every %s (Daly; %s by Young, %s "
        "by simulation)\n",
        cli_span_text(failures->mtbf_s).text, plan->nodes_used, plan->nodes_used == 1 ? "" : "s",
        cli_span_text(failures->daly_interval_s).text,
        cli_span_text(failures->young_interval_s).text,
        cli_span_text(failures->simulated_interval_s).text);
    if (failures->fewer_speed <= 0)
        printf("The first: with one node less it waits until that is back\n");
    else if (failures->fewer_speed < 1)
        printf("The first: with one node less it goes on at %.1f%% of its speed\n",
               100 * failures->fewer_speed);
}

static void print_loss(const sl_cluster_plan *plan, uint64_t seed)
{
    const sl_failure_plan *failures = &plan->failures;
    printf("The first: %.1f%% of the time lost in %d simulated run%s, seed %" PRIu64
           " (%.1f%% by Daly's model)\n",
           100 * (1 - failures->kept_fraction), failures->runs, failures->runs == 1 ? "" : "s",
           seed, 100 * (1 - failures->daly_kept_fraction));
    if (failures->unfinished > 0)
        printf("The first: %d of the simulated runs %s left before the end: nodes fail too often\n",
               failures->unfinished, failures->unfinished == 1 ? "was" : "were");
}

static void print_failures(const sl_cluster_plan *plan, double tokens, uint64_t seed)
{
    const sl_failure_plan *failures = &plan->failures;
    if (isfinite(failures->mtbf_s)) {
        print_checkpoints(plan);
        print_loss(plan, seed);
    }
    printf("The first: %.4g tokens a day", cli_tokens_a_day(plan));
    if (tokens > 0 && isinf(failures->run_s))
        printf(", %.4g tokens never", tokens);
    else if (tokens > 0)
        printf(", %s for %.4g tokens", cli_span_text(failures->run_s).text, tokens);
    if (tokens > 0 && failures->runs > 1 && isfinite(failures->run_s))
        printf(" (%s to %s in 90%% of the runs)", cli_span_text(failures->low_s).text,
               cli_span_text(failures->high_s).text);
    printf("\n");
}

static void print_inputs(const sl_cluster_plans *found, const char *path)
{
    printf("\nNumbers that %s does not have, and what they are taken to be:\n", path);
    for (size_t i = 0; i < found->input_count; i++)
        if (found->inputs[i].line == 0)
            printf("  %s = %g\n", found->inputs[i].name, found->inputs[i].value);
}

static sl_status print_table(const sl_cluster_plans *found, const char *path, double tokens)
{
    printf("%-54s %10s %12s %6s %12s %8s %10s %8s\n", "replicas x pipeline ranks", "step ms",
           "tokens/s", "MFU", "memory", "bubble", "exchange", "update");
    for (int i = 0; i < found->count; i++) {
        const sl_cluster_plan *plan = &found->plans[i];
        const sl_step_costs *costs = &plan->costs;
        printf("%-54s %10.1f %12.0f %5.1f%% %12s %7.1f%% %9.1f%% %7.1f%%\n",
               cli_cluster_plan_shape(plan).text, 1e3 * costs->seconds, plan->tokens_per_s,
               100 * plan->mfu, cli_bytes_text(plan->memory_bytes).text, 100 * costs->bubble,
               100 * costs->exchange / costs->seconds, 100 * costs->update / costs->seconds);
    }
    const sl_cluster_plan *best = &found->plans[0];
    json_t *options = list_options(best), *limit = find_limit(best), *word;
    size_t index;
    printf("\n%" PRId64 " layouts were bounded, %" PRId64 " simulated, %" PRId64
           " left out for the size of their tables\n",
           found->layouts, found->simulated, found->too_large);
    if (found->is_cut_off)
        printf(
            "More layouts than were looked at could train most tokens a day with failures: these "
            "have the shortest steps\n");
    printf("The first: neighbouring devices are %s, on %d node%s\n",
           best->near_replicas ? "replicas of a stage" : "ranks of a pipeline", best->nodes_used,
           best->nodes_used == 1 ? "" : "s");
    if (best->draws > 0)
        printf("The first: a step is the mean of %d drawn ones, with jitter, seed %" PRIu64 "\n",
               best->draws, found->seed);
    print_failures(best, tokens, found->seed);
    printf("\nThe options of the first:\n ");
    json_array_foreach(options, index, word)
    {
        printf(" ");
        cli_print_word(stdout, json_string_value(word));
    }
    printf("\n");
    if (limit)
        printf("It is larger than what this version runs: %s\n", json_string_value(limit));
    json_decref(options);
    json_decref(limit);
    cli_plan_bar bars[SL_PLANS_FOUND];
    fill_bars(found, bars);
    sl_status status = cli_plan_print_times(bars, found->count, &found->helps, found->table);
    if (!found->table && best->pipeline_ranks > 1)
        printf("\nIts pipeline is not drawn: a table of more than %" PRId64 " actions\n",
               most_table_actions);
    print_inputs(found, path);
    return status;
}

/* ---- The command -------------------------------------------------------------------------- */

static sl_status write_cluster_picture(const char *path, const sl_cluster_plans *found)
{
    cli_plan_bar bars[SL_PLANS_FOUND];
    char *text, which[96] = "";
    if (!path)
        return SL_OK;
    fill_bars(found, bars);
    if (found->plans[0].draws > 0)
        snprintf(which, sizeof which,
                 " (the slowest replica of the first drawn step, seed %" PRIu64 ")", found->seed);
    SL_TRY(cli_plan_draw(bars, found->count, found->table, &found->simulation, which, &text));
    sl_status status = sl_train_write_output(path, text);
    free(text);
    return status;
}

sl_status cli_plan_cluster(const sl_plan_search_options *options, const cli_cluster_settings *asked)
{
    sl_cluster_plans found;
    sl_plan_search_options search = *options;
    char *text = NULL;
    search.most_table_actions = most_table_actions;
    sl_status status;
    SL_TRY_OR_FAIL(sl_plan_search_cluster(&search, asked->cluster, &found));
    if (found.table)
        cli_simulation_to_ms(found.table, &found.simulation);
    SL_TRY_OR_FAIL(make_json(&found, asked->cluster, asked->tokens, &text));
    if (asked->output)
        SL_TRY_OR_FAIL(sl_train_write_output(asked->output, text));
    SL_TRY_OR_FAIL(write_cluster_picture(asked->svg, &found));
    if (asked->json)
        fputs(text, stdout);
    else
        SL_TRY_OR_FAIL(print_table(&found, asked->cluster, asked->tokens));
fail:
    free(text);
    sl_cluster_plans_clear(&found);
    return status;
}
