/* sluice profile: how fast this machine, or a job's links, are, as a cluster file has it. */
#include "cli/cli.h"
#include "sluice/app/plan.h"

#include <stdlib.h>

typedef struct settings {
    sl_train_options run;
    const char *model, *output;
    int64_t ntokens, device_memory;
    double profile_seconds;
    int rack_nodes;
    bool links;
} settings;

static const char *const run_names[] = {
    "preset",  "emsize",     "nhid",       "nlayers",    "nhead",        "dropout",
    "mask",    "activation", "pre-norm",   "tie",        "freeze",       "train-layers",
    "lora",    "lora-rank",  "lora-alpha", "use-rslora", "lora-dropout", "lora-targets",
    "devices", "bptt",       "optimizer",  "momentum",   "precision",    "init",
    "adapter", NULL};

/* clang-format off */
static const sl_option options[] = {
    {.name = "model", .value = "NAME", .group = "Model", FIELD(TEXT, model), .choices = sl_model_names,
     .help = "Profile the model of this name, with the sizes that were published"},
    {.name = "ntokens", .value = "N", .group = "Model", FIELD(INT64, ntokens),
     RANGE(1, INT32_MAX), .initial = "28782",
     .help = "Number of types in the vocabulary, without --init and --model; the default is "
             "WikiText-2's"},
    {.name = "device-memory", .value = "BYTES", .group = "Devices", FIELD(INT64, device_memory),
     RANGE(1, INT64_MAX), .optional = true,
     .help = "Memory of a device; without it the GPU's, or of CPUs an equal part of the machine's"},
    {.name = "profile-seconds", .value = "S", .group = "Devices", FIELD(DOUBLE, profile_seconds),
     .initial = "10",
     .help = "Measure modules and update once more, however long that takes, and again for a fifth of S "
             "seconds, and for up to S until the rounds agree to 3%; 0: once"},
    {.name = "links", .group = "Links", FIELD(FLAG, links),
     .help = "Measure the links between the processes of a job instead, as sluice launch or mpirun "
             "starts them"},
    {.name = "rack-nodes", .value = "N", .group = "Links", FIELD(INT, rack_nodes),
     RANGE(1, 100000), .optional = true, .needs = "links",
     .help = "With --links: each N hosts, in the order of ranks, are a rack"},
    {.name = "output", .letter = 'o', .value = "FILE", .group = "Output", FIELD(TEXT, output),
     .help = "Write to FILE instead of standard output"},
    {0},
};
/* clang-format on */

static sl_status show(const settings *parsed, const char *text)
{
    if (parsed->output)
        return sl_train_write_output(parsed->output, text);
    fputs(text, stdout);
    return SL_OK;
}

/* Every process measures, the first writes. */
static sl_status profile_links(const settings *parsed, const sl_launch_info *launch)
{
    sl_group *group;
    char *text = NULL;
    SL_TRY(cli_group_create(launch, &group));
    sl_status status;
    SL_TRY_OR_FAIL(sl_profile_links(group, parsed->rack_nodes > 0 ? parsed->rack_nodes : 0, &text));
    if (launch->rank == 0)
        SL_TRY_OR_FAIL(show(parsed, text));
fail:
    free(text);
    sl_group_destroy(&group);
    return status;
}

static sl_status profile_machine(cli_line *line, settings *parsed)
{
    char *text;
    sl_train_options *run = &parsed->run;
    const char *vocabulary = run->init ? "init" : parsed->model ? "model" : NULL;
    if (vocabulary && cli_line_value(line, "ntokens"))
        cli_refuse("--%s has a vocabulary's size, so it cannot be combined with --ntokens",
                   vocabulary);
    run->model.ntokens = run->init ? 0 : parsed->ntokens;
    SL_TRY(cli_saved_model_apply_sizes(line, run));
    SL_TRY(sl_profile_machine(run, parsed->device_memory > 0 ? parsed->device_memory : 0,
                              parsed->profile_seconds, &text));
    sl_status status = show(parsed, text);
    free(text);
    return status;
}

static sl_status run_profile(cli_line *line, void *settings_read)
{
    settings *parsed = settings_read;
    sl_launch_info launch;
    SL_TRY(sl_launch_info_read(&launch));
    if (parsed->output)
        SL_TRY(sl_error_context(sl_train_check_output(&parsed->run, parsed->output), "--output: "));
    if (parsed->links)
        return profile_links(parsed, &launch);
    if (launch.world_size > 1)
        return sl_error(SL_ERR_INVALID,
                        "a machine is profiled by one process, and its links with --links by "
                        "several: got %d processes",
                        launch.world_size);
    return profile_machine(line, parsed);
}

const cli_command cmd_profile = {
    .name = "profile",
    .summary = "measure a machine or a job's links for sluice plan --cluster",
    .doc = "Times the modules of a model with micro-batches of 1, 2, 4 ... rows of random tokens, "
           "while all devices work, and measures their memory and their best rate of large "
           "matrix products. Prints a cluster file with this machine as its only node, which "
           "sluice plan --cluster reads for the same model, precision and --seq-len.\n\nWith "
           "--links it measures instead what messages take between the processes of a job, at "
           "each level, and prints the member \"links\" of such a file.",
    .examples = "sluice profile --init SmolLM2-135M --seq-len 512 -o node.json\n"
                "sluice plan --init SmolLM2-135M --seq-len 512 --batch-tokens 131072 --cluster "
                "node.json\n"
                "sluice launch -n 2 sluice profile --links -o links.json\n",
    .run_options = {sl_plan_option_rows, sl_train_option_rows},
    .run_names = run_names,
    .options = options,
    .takes_decoders = true,
    .settings_bytes = sizeof(settings),
    .run = run_profile,
};
