/* sluice model: what a model consists of and will need, without building it. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    sl_train_options run;
    int64_t ntokens;
    const char *data, *model;
    bool profile;
} settings;

/* clang-format off */
static const sl_option options[] = {
    {.name = "model", .value = "NAME", .group = "Model", FIELD(TEXT, model), .choices = sl_model_names,
     .help = "Show the model of this name, with the sizes that were published"},
    {.name = "init", .value = "DIR", .group = "Vocabulary", FIELD(TEXT, run.init),
     .help = "Take all sizes from the model in DIR, or a checkpoint"},
    {.name = "ntokens", .value = "N", .group = "Vocabulary", FIELD(INT64, ntokens),
     RANGE(1, INT32_MAX), .initial = "28782",
     .help = "Number of types in the vocabulary; the default is WikiText-2's"},
    {.name = "data", .value = "DIR", .group = "Vocabulary", FIELD(TEXT, data),
     .help = "Take the vocabulary's size from the training text of DIR instead of --ntokens"},
    {.name = "profile", .group = "Profile", FIELD(FLAG, profile),
     .help = "Run each module for a moment, and show how long a micro-batch takes in it"},
    {0},
};
/* clang-format on */

/* ---- What is shown ----------------------------------------------------------------------- */

static double milliseconds(double seconds)
{
    return 1e3 * seconds;
}

/* FLOPs are those of the forward of a batch of one shard; `times` may be NULL. */
static void print_modules(const sl_train_options *train, const sl_module *model,
                          const sl_module_profile *times)
{
    char shape_text[SL_SHAPE_TEXT_BYTES];
    sl_shape out, shape = sl_shape_2d(train->batch_size, train->bptt);
    printf("%-4s %-24s %-20s %14s %20s", "name", "type", "output", "parameters", "forward FLOPs");
    if (times)
        printf(" %10s %10s %10s", "F ms", "I ms", "W ms");
    printf("\n");
    for (int i = 0; i < sl_module_child_count(model); i++) {
        const sl_module *module = sl_module_child(model, i);
        int64_t flops = sl_module_flops(module, &shape);
        if (sl_module_output_shape(module, &shape, &out) != SL_OK)
            break;
        shape = out;
        printf("%-4d %-24s %-20s %14s %20s", i, sl_module_type(module),
               sl_shape_text(&shape, shape_text),
               cli_count_text(sl_module_parameter_elements(module)).text,
               cli_count_text(flops).text);
        if (times)
            printf(" %10.3f %10.3f %10.3f", milliseconds(times[i].forward),
                   milliseconds(times[i].backward_input), milliseconds(times[i].backward_weight));
        printf("\n");
    }
    if (times)
        printf(
            "F, I and W: forward and the two halves of backward of one micro-batch. The loss does "
            "the Decoder's\nforward together with its backward.\n");
}

/* A GPU, and what the stages of all replicas hold on it. */
typedef struct gpu {
    char name[32];
    int64_t bytes, best;
} gpu;

/* Adds the stages of a replica to their GPUs. cuda:0/1 is a virtual device of the GPU cuda:0. */
static int add_to_gpus(const sl_plan *plan, int replica, gpu *gpus, int count)
{
    for (int s = 0; s < plan->stages; s++) {
        const sl_stage_plan *stage = &plan->stage[s];
        const char *device =
            plan->devices[replica * plan->options.pipeline_ranks + stage->rank].name;
        int index = 0, length = (int)strcspn(device, "/");
        if (strncmp(device, "cuda:", strlen("cuda:")) != 0)
            continue;
        snprintf(gpus[count].name, sizeof gpus->name, "%.*s", length, device);
        while (strcmp(gpus[index].name, gpus[count].name) != 0)
            index++;
        count += index == count;
        gpus[index].bytes += stage->parameter_bytes + stage->gradient_bytes +
                             stage->optimizer_bytes + stage->activation_bytes +
                             stage->workspace_bytes;
        gpus[index].best += replica == 0 ? stage->best_bytes : 0;
    }
    return count;
}

static void print_gpus(const sl_plan *plan)
{
    int count = 0, replicas = plan->options.replicas;
    gpu *gpus = cli_allocate((size_t)replicas * SL_MAX_STAGES + 1, sizeof *gpus);
    for (int r = 0; r < replicas; r++)
        count = add_to_gpus(plan, r, gpus, count);
    for (int i = 0; i < count; i++)
        printf("On %s: %s, with a copy of the best parameters (%s).\n", gpus[i].name,
               cli_bytes_text(gpus[i].bytes + gpus[i].best).text,
               cli_bytes_text(gpus[i].best).text);
    free(gpus);
}

/* Of a run of the replicas, as threads of one process on this machine. */
static void print_memory(const sl_train_options *train, const sl_plan *plan, sl_module *model)
{
    const sl_host_plan *host = &plan->host;
    print_gpus(plan);
    if (host->total_bytes > host->process_bytes)
        printf("In all: %s, with a copy of the best parameters (%s); this machine has %s.\n",
               cli_bytes_text(host->total_bytes - host->process_bytes).text,
               cli_bytes_text(host->best_bytes).text,
               cli_bytes_text((int64_t)sl_usable_memory()).text);
    if (sl_plan_check_memory(train, NULL, model, sl_usable_memory()) != SL_OK)
        printf("It does not fit: %s.\n", sl_error_text());
}

static sl_status print_model(const settings *parsed, sl_module *model)
{
    sl_plan *plan;
    size_t modules = (size_t)sl_module_child_count(model);
    sl_module_profile *times = parsed->profile ? cli_allocate(modules, sizeof *times) : NULL;
    sl_status status;
    SL_TRY_OR_FAIL(sl_plan_create(&parsed->run, NULL, model, times, &plan));
    print_modules(&parsed->run, model, times);
    printf("\n");
    for (int r = 0; r < plan->options.replicas; r++)
        cli_plan_print_stages(plan, r);
    print_memory(&parsed->run, plan, model);
    printf("Total parameters in model: %s\n", cli_count_text(plan->total_parameters).text);
fail:
    sl_plan_destroy(&plan);
    free(times);
    return status;
}

static sl_status count_types(const char *data, int64_t *ntokens)
{
    sl_corpus *corpus;
    SL_TRY(sl_corpus_load(data, NULL, &corpus));
    *ntokens = sl_vocab_size(sl_corpus_vocab(corpus));
    sl_corpus_destroy(&corpus);
    return SL_OK;
}

static sl_status run_model(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    sl_train_options *train = &parsed->run;
    sl_module *model;
    if (parsed->data && cli_line_value(line, "ntokens"))
        cli_refuse("--data counts the vocabulary's types, so it cannot be combined with --ntokens");
    if ((train->init || parsed->model) && (parsed->data || cli_line_value(line, "ntokens")))
        cli_refuse("--%s has a vocabulary's size, so it cannot be combined with --%s",
                   train->init ? "init" : "model", parsed->data ? "data" : "ntokens");
    if (train->batch_invariant && !parsed->profile)
        cli_refuse(
            "--batch-invariant changes how long modules take, which --profile measures: give "
            "both, or neither");
    if (train->near_replicas)
        cli_refuse("--near-replicas is for runs of several processes, and this plans one");
    train->model.ntokens = train->init ? 0 : parsed->ntokens;
    SL_TRY(cli_saved_model_apply_sizes(line, train));
    SL_TRY(sl_train_options_check(train));
    if (train->init && train->model.ntokens == 0)
        return sl_error(SL_ERR_NOT_FOUND, "%s: it has no config.json", train->init);
    if (parsed->data)
        SL_TRY(count_types(parsed->data, &train->model.ntokens));
    SL_TRY(sl_transformer_lm_create(&train->model, &model));
    sl_status status = print_model(parsed, model);
    sl_module_destroy(&model);
    return status;
}

const cli_command cmd_model = {
    .name = "model",
    .summary = "show a model's layers, stages and memory",
    .doc = "Shows a model's layers, how they are divided among stages, and the bytes that each "
           "stage needs, without allocating them. With --profile it also runs each module.",
    .examples = "sluice model --preset pipeline-tutorial\n"
                "sluice model --data book.txt --preset small --pp 2 --profile\n"
                "sluice model --init RUN/best\n",
    .run_options = {sl_plan_option_rows},
    .options = options,
    .takes_decoders = true,
    .settings_bytes = sizeof(settings),
    .run = run_model,
};
