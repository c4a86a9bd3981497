/* What a training step holds at its peak, beside what arithmetic says.
 *
 *   bench_memory models
 *
 * of published models with AdamW: the plan of all of them, of one row of 1,024 tokens; and beside
 * the plan what a model of each family takes from the system in a step, and when an evaluation has
 * followed: in one stage with such a row, and in two with two rows of 512.
 *
 *   bench_memory [EMSIZE NLAYERS NHEAD CHUNKS]               default: 512 6 8 8, two stages
 *
 * of the tutorials' model, for each precision, schedule and recompute mode: the activations alone.
 *
 * Prediction for a stage: the micro-batches whose activations the table holds at once (the
 * simulator's peak), times what its modules save for one; plus the input of every other micro-batch
 * that is under way; plus the one output that is being made. A loss that takes over the decoder
 * keeps the decoder's input and no more: the logits of a batch never exist at once. What may be
 * there besides, by chance, is an input or a gradient that has come before it is needed. In bf16
 * half of f32's bytes is predicted; what stays f32, such as a layer norm's statistics, is more. */
#include "support.h"

#include "sluice/app/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 2, MAX_MICROS = 64, MODEL_TOKENS = 1024 };

/* In bytes, of one micro-batch at one stage. Token ids, the first stage's input, are the caller's.
 */
typedef struct stage_bytes {
    int64_t input, saved, output;
} stage_bytes;

static stage_bytes count_bytes(sl_pipe *pipe, int stage, const bench_setup *setup, int64_t rows)
{
    int element_bytes = setup->precision == SL_PRECISION_BF16 ? 2 : 4;
    sl_module *model = sl_pipe_model(pipe);
    sl_shape shape = sl_shape_2d(rows, setup->bptt);
    int first, count, decoder = sl_module_child_count(model) - 1;
    sl_pipe_stage_modules(pipe, stage, &first, &count);
    stage_bytes bytes = {0, 0, 0};
    for (int i = 0; i < first + count && i < decoder; i++) {
        sl_module *module = sl_module_child(model, i);
        if (i == first && i > 0)
            bytes.input = sl_shape_count(&shape) * element_bytes;
        if (i >= first)
            bytes.saved += sl_module_saved_bytes(module, &shape) / 4 * element_bytes;
        sl_shape out;
        bench_check(sl_module_output_shape(module, &shape, &out));
        shape = out;
    }
    bytes.output = sl_shape_count(&shape) * element_bytes;
    if (first + count > decoder)
        bytes.saved += bytes.output; /* for the loss */
    return bytes;
}

static void measure(bench_setup setup)
{
    bench_trainer *trainer = bench_trainer_create(&setup);
    sl_pipe *pipe = bench_trainer_pipe(trainer);
    bench_trainer_step(trainer);
    for (int s = 0; s < STAGES; s++)
        sl_device_reset_peak(sl_pipe_device(pipe, s));
    bench_trainer_step(trainer);

    int64_t sizes[MAX_MICROS];
    int micros = sl_micro_batches(setup.batch, setup.chunks, sizes);
    sl_schedule *schedule;
    sl_simulation simulation;
    double unit[STAGES] = {1, 1};
    bench_check(sl_schedule_write(setup.schedule,
                                  &(sl_schedule_options){.ranks = STAGES, .micros = micros},
                                  &schedule));
    bench_check(sl_schedule_recompute(schedule, setup.recompute));
    bench_check(sl_schedule_simulate(
        schedule,
        &(sl_cost_model){.forward = unit, .backward_input = unit, .backward_weight = unit},
        &simulation));
    for (int s = 0; s < STAGES; s++) {
        sl_memory_stats stats;
        sl_device_memory(sl_pipe_device(pipe, s), &stats);
        stage_bytes bytes = count_bytes(pipe, s, &setup, sizes[0]);
        int under_way = strcmp(setup.schedule, "gpipe") == 0 ? micros
                        : micros < STAGES - s                ? micros
                                                             : STAGES - s;
        int held = simulation.peak_held[s];
        double predicted =
            (double)(held * bytes.saved + (under_way - held) * bytes.input + bytes.output);
        double measured = (double)stats.peak_bytes[SL_MEMORY_ACTIVATIONS];
        printf("| %s | %s | %s | %d | %.2f MiB | %.2f MiB |\n", sl_precision_names[setup.precision],
               setup.schedule, sl_recompute_name(setup.recompute), s, measured / 1048576,
               predicted / 1048576);
    }
    fflush(stdout);
    sl_simulation_clear(&simulation);
    sl_schedule_destroy(&schedule);
    bench_trainer_destroy(trainer);
}

/* ---- Published models --------------------------------------------------------------------- */

/* The bytes of all stages, which get the plan's cut, and the model's parameters. */
static int64_t plan_bytes(bench_setup *setup, int64_t *parameters)
{
    sl_train_options options = {0};
    sl_module *model;
    sl_plan *plan;
    sl_train_options_default(&options);
    options.epochs = 1; /* no copy of the best parameters */
    options.model = setup->model;
    options.bptt = setup->bptt;
    options.batch_size = options.eval_batch_size = setup->batch;
    options.pipeline_ranks = setup->stages;
    options.chunks = setup->chunks;
    options.schedule = setup->schedule;
    options.recompute = setup->recompute;
    options.precision = setup->precision;
    options.optimizer.kind = setup->optimizer;
    bench_check(sl_transformer_lm_create(&options.model, &model));
    bench_check(sl_plan_create(&options, NULL, model, NULL, &plan));
    int64_t bytes = plan->host.total_bytes - plan->host.process_bytes;
    *parameters = plan->total_parameters;
    setup->balance_count = setup->stages;
    for (int s = 0; s < setup->stages; s++)
        setup->balance[s] = plan->stage[s].count;
    sl_plan_destroy(&plan);
    sl_module_destroy(&model);
    return bytes;
}

static bench_setup model_setup(const char *name, int64_t layers)
{
    bench_setup setup = bench_setup_lm(1, 1, 1);
    bench_check(sl_model_options_named(name, &setup.model));
    if (layers > 0)
        setup.model.nlayers = layers;
    setup.bptt = MODEL_TOKENS;
    setup.batch = 1;
    setup.optimizer = SL_OPTIMIZER_ADAMW;
    return setup;
}

/* "124,439,808" */
static const char *with_commas(int64_t count, char text[32])
{
    int64_t unit = 1;
    while (count / unit >= 1000)
        unit *= 1000;
    int used = snprintf(text, 32, "%d", (int)(count / unit));
    for (unit /= 1000; unit > 0; unit /= 1000)
        used += snprintf(text + used, 32 - (size_t)used, ",%03d", (int)(count / unit % 1000));
    return text;
}

static void plan_models(void)
{
    bench_heading("| `--model` | Parameters | memory in f32 | in bf16 |");
    for (int i = 0; sl_model_names[i]; i++) {
        bench_setup setup = model_setup(sl_model_names[i], 0);
        int64_t bytes[2], parameters;
        char text[32];
        for (int in = SL_PRECISION_F32; in <= SL_PRECISION_BF16; in++) {
            setup.precision = (sl_precision)in;
            bytes[in] = plan_bytes(&setup, &parameters);
        }
        printf("| `%s` | %s | %.2f GiB | %.2f GiB |\n", sl_model_names[i],
               with_commas(parameters, text), (double)bytes[0] / (1 << 30),
               (double)bytes[1] / (1 << 30));
    }
}

/* A model of each family: one of sl_model_names, cut; or a shape of its family's own, since the
 * published ones are too large, in the place of that model's. */
typedef struct family_model {
    const char *what, *name;
    int64_t layers;                                              /* 0: all */
    sl_family family;                                            /* with a shape */
    int64_t ntokens, emsize, nhid, nhead, key_heads, head_width; /* 0: the model's own shape */
    bool tie;
} family_model;

static const family_model family_models[] = {
    {.what = "`gpt2`", .name = "gpt2"},
    {.what = "`smollm2-135m` (`llama`)", .name = "smollm2-135m"},
    {.what = "`tinyllama-1.1b` (`llama`), 4 of its layers", .name = "tinyllama-1.1b", .layers = 4},
    {.what = "Mistral 7B (`mistral`), 4 of its layers, a quarter as wide",
     .name = "tinyllama-1.1b",
     .layers = 4,
     .family = SL_FAMILY_MISTRAL,
     .ntokens = 32768,
     .emsize = 1024,
     .nhid = 3584,
     .nhead = 8,
     .key_heads = 2,
     .head_width = 128},
    {.what = "Qwen2.5 0.5B (`qwen2`), 4 of its layers",
     .name = "tinyllama-1.1b",
     .layers = 4,
     .family = SL_FAMILY_QWEN2,
     .ntokens = 151936,
     .emsize = 896,
     .nhid = 4864,
     .nhead = 14,
     .key_heads = 2,
     .head_width = 64,
     .tie = true},
    {.what = "`qwen3-0.6b` (`qwen3`), 4 of its layers", .name = "qwen3-0.6b", .layers = 4},
    {.what = "SmolLM3 3B (`smollm3`), 4 of its layers, half as wide",
     .name = "tinyllama-1.1b",
     .layers = 4,
     .family = SL_FAMILY_SMOLLM3,
     .ntokens = 128256,
     .emsize = 1024,
     .nhid = 5504,
     .nhead = 8,
     .key_heads = 2,
     .head_width = 128,
     .tie = true},
};

static bench_setup family_setup(const family_model *model)
{
    bench_setup setup = model_setup(model->name, model->layers);
    sl_model_options *options = &setup.model;
    if (model->ntokens == 0)
        return setup;
    options->family = model->family;
    options->ntokens = model->ntokens;
    options->emsize = model->emsize;
    options->nhid = model->nhid;
    options->nhead = model->nhead;
    options->tie = model->tie;
    options->decoder.key_heads = model->key_heads;
    options->decoder.head_width = model->head_width;
    options->decoder.qkv_bias = model->family == SL_FAMILY_QWEN2;
    options->decoder.no_rope_interval = model->family == SL_FAMILY_SMOLLM3 ? 4 : 0;
    return setup;
}

/* The most that all devices have had from the system. */
static double taken_bytes(const bench_trainer *trainer, int stages)
{
    double bytes = 0;
    for (int s = 0; s < stages; s++) {
        sl_memory_stats stats;
        sl_device_memory(sl_pipe_device(bench_trainer_pipe(trainer), s), &stats);
        bytes += (double)stats.peak_reserved_bytes;
    }
    return bytes;
}

static void print_taken(int64_t planned, double taken)
{
    printf(" %.2f GiB | %+.1f%% |", taken / (1 << 30), 100 * ((double)planned - taken) / taken);
}

static void measure_model(bench_setup setup, const char *what)
{
    int64_t parameters, planned = plan_bytes(&setup, &parameters);
    bench_trainer *trainer = bench_trainer_create(&setup);
    bench_trainer_step(trainer);
    double of_step = taken_bytes(trainer, setup.stages);
    bench_trainer_evaluate(trainer);
    printf("| %s | %s | %d | %.2f GiB |", what, sl_precision_names[setup.precision], setup.stages,
           (double)planned / (1 << 30));
    print_taken(planned, of_step);
    print_taken(planned, taken_bytes(trainer, setup.stages));
    printf("\n");
    fflush(stdout);
    bench_trainer_destroy(trainer);
}

static void measure_models(void)
{
    bench_heading("| model | precision | stages | planned | a step takes | difference | with an "
                  "evaluation | difference |");
    for (size_t i = 0; i < sizeof family_models / sizeof *family_models; i++)
        for (int in = SL_PRECISION_F32; in <= SL_PRECISION_BF16; in++)
            for (int stages = 1; stages <= STAGES; stages++) {
                bench_setup setup = family_setup(&family_models[i]);
                setup.precision = (sl_precision)in;
                setup.devices = stages == 1 ? "cpu:0" : "cpu:0,cpu:1";
                setup.stages = stages;
                setup.batch = setup.chunks = stages;
                setup.bptt = MODEL_TOKENS / stages;
                measure_model(setup, family_models[i].what);
            }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "models") == 0) {
        printf("runs: one run of each\n");
        plan_models();
        printf("\n");
        measure_models();
        return 0;
    }
    if (argc != 1 && argc != 5) {
        fprintf(stderr, "usage: bench_memory [models | EMSIZE NLAYERS NHEAD CHUNKS]\n");
        return 2;
    }
    bench_setup setup = argc == 5
                            ? bench_setup_lm(strtol(argv[1], NULL, 10), strtol(argv[2], NULL, 10),
                                             strtol(argv[3], NULL, 10))
                            : bench_setup_lm(512, 6, 8);
    setup.chunks = argc == 5 ? (int)strtol(argv[4], NULL, 10) : 8;
    setup.batch = 4 * setup.chunks; /* equal micro-batches, as the arithmetic wants them */
    setup.devices = "cpu:0,cpu:1";
    setup.stages = STAGES;
    if (setup.chunks < 1 || setup.chunks > MAX_MICROS) {
        fprintf(stderr, "bench_memory: CHUNKS must be 1 to %d\n", MAX_MICROS);
        return 2;
    }
    bench_heading("| precision | schedule | checkpoint | stage | peak | predicted |");
    static const char *const schedules[] = {"gpipe", "1f1b"};
    for (sl_precision in = SL_PRECISION_F32; in <= SL_PRECISION_BF16; in++)
        for (int schedule = 0; schedule < 2; schedule++)
            for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++) {
                setup.precision = in;
                setup.schedule = schedules[schedule];
                setup.recompute = (sl_recompute)mode;
                measure(setup);
            }
    return 0;
}
