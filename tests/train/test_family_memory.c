/* A run of each family takes the memory that was planned for it, to within 5%: a step, an
 * evaluation, and what is cached. */
#include "small_run.h"

#include "sluice/app/plan.h"

enum { WORDS = 3000, WIDTH = 96, TIME = 32, LEAST_PERCENT = 95, MOST_PERCENT = 105 };

static sl_model_options family_options(sl_family family)
{
    bool is_gpt2 = family == SL_FAMILY_GPT2, is_qwen2 = family == SL_FAMILY_QWEN2;
    sl_model_options options = {.family = family,
                                .ntokens = WORDS,
                                .emsize = WIDTH,
                                .nhid = 4 * WIDTH,
                                .nlayers = 4,
                                .nhead = 4,
                                .pre_norm = true,
                                .activation = SL_ACTIVATION_GELU_TANH,
                                .dropout = is_gpt2 ? 0.1f : 0,
                                .tie = family != SL_FAMILY_LLAMA,
                                .decoder = {.positions = TIME,
                                            .norm_eps = 1e-5,
                                            .deviation = 0.02,
                                            .qkv_bias = is_gpt2 || is_qwen2,
                                            .output_bias = is_gpt2,
                                            .qk_norm = family == SL_FAMILY_QWEN3,
                                            .no_rope_interval =
                                                family == SL_FAMILY_SMOLLM3 ? 4 : 0}};
    if (!is_gpt2) {
        options.decoder.key_heads = 2;
        options.decoder.head_width = family == SL_FAMILY_QWEN3 ? 32 : WIDTH / 4;
        options.decoder.rotary = (sl_rotary_options){.kind = SL_ROTARY_DEFAULT, .theta = 10000};
    }
    return options;
}

static sl_stage_plan plan_stage(const sl_train_options *options)
{
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_plan) *plan = NULL;
    check_ok(sl_transformer_lm_create(&options->model, &model));
    check_ok(sl_plan_create(options, NULL, model, NULL, &plan));
    assert_int_equal(plan->stages, 1);
    return plan->stage[0];
}

static sl_status note_memory(void *context, const sl_run_info *info, const sl_run_result *result)
{
    sl_device_memory(sl_pipe_device(info->pipe, 0), context);
    return SL_OK;
}

static void check_within(const sl_train_options *options, const char *what, int64_t planned,
                         uint64_t taken)
{
    if (100 * planned < LEAST_PERCENT * (int64_t)taken ||
        100 * planned > MOST_PERCENT * (int64_t)taken)
        fail_msg("%s, %s%s, evaluations of %d rows, %s: planned %.2f MiB, taken %.2f MiB",
                 sl_family_names[options->model.family], sl_precision_names[options->precision],
                 options->model.lora.adapts ? ", with adapters" : "", (int)options->eval_batch_size,
                 what, (double)planned / (1 << 20), (double)taken / (1 << 20));
}

/* Two steps, and evaluations behind them, on one core: each thread's workspace of attention, which
 * is not planned for, would otherwise count as often as the machine has cores. */
static void check_run(const sl_train_options *given)
{
    char core[32];
    sl_train_options own = *given, *options = &own;
    snprintf(core, sizeof core, "cpu:%d-%d", allowed_core(0), allowed_core(0));
    own.devices = core;
    sl_memory_stats memory;
    sl_run_result result;
    const sl_reporter reporter = {.context = &memory, .finished = note_memory};
    const sl_stage_plan stage = plan_stage(options);
    int64_t planned = stage.parameter_bytes + stage.gradient_bytes + stage.optimizer_bytes +
                      stage.activation_bytes + stage.workspace_bytes;
    check_ok(sl_train_run(options, &reporter, 1, &result));
    check_within(options, "in use", planned, memory.peak_total_bytes);
    if (!IS_SANITIZED) /* else nothing is cached */
        check_within(options, "with what is cached", planned + stage.cached_bytes,
                     memory.peak_reserved_bytes);
}

static void check_family(scratch *dir, sl_family family, sl_precision precision, bool adapts)
{
    static const int64_t eval_rows[] = {8, 40};
    sl_train_options options = small_options(dir);
    options.model = family_options(family);
    options.model.lora.adapts = adapts;
    options.precision = precision;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.bptt = TIME;
    options.batch_size = 8;
    options.chunks = 1;
    options.max_batches = 2;
    options.eval_max_batches = 1;
    options.lr.lr = 1e-3;
    for (size_t i = 0; i < sizeof eval_rows / sizeof *eval_rows; i++) {
        options.eval_batch_size = eval_rows[i];
        check_run(&options);
    }
}

static void check_families(scratch *dir, bool adapts)
{
    for (sl_family family = SL_FAMILY_GPT2; family <= SL_FAMILY_SMOLLM3; family++)
        for (sl_precision precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++)
            check_family(dir, family, precision, adapts);
}

static void planned_memory_of_families_is_what_a_run_takes(void **state)
{
    check_families(*state, false);
}

static void planned_memory_of_adapters_is_what_a_run_takes(void **state)
{
    check_families(*state, true);
}

/* The loss of an evaluation has logits of as many rows as fit its bytes, that of a step, whose
 * gradients in bf16 are larger matrices, of fewer: neither may stay cached beside the other. */
static void losses_of_evaluations_and_steps_take_turns(void **state)
{
    sl_train_options options = small_options(*state);
    options.model = family_options(SL_FAMILY_LLAMA);
    options.model.ntokens = 120000;
    options.model.emsize = options.model.nhid = 16;
    options.model.decoder.head_width = 4;
    options.precision = SL_PRECISION_BF16;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.bptt = TIME;
    options.batch_size = options.eval_batch_size = 12;
    options.chunks = 1;
    options.max_batches = options.eval_max_batches = 1;
    options.lr.lr = 1e-3;
    check_run(&options);
}

enum { STAGES = 2 };

typedef struct held {
    int64_t ntokens;
    uint64_t activations[STAGES];
} held;

static sl_status note_stages(void *context, const sl_run_info *info, const sl_run_result *result)
{
    held *out = context;
    sl_memory_stats memory;
    out->ntokens = info->ntokens;
    for (int s = 0; s < STAGES; s++) {
        sl_device_memory(sl_pipe_device(info->pipe, s), &memory);
        out->activations[s] = memory.peak_bytes[SL_MEMORY_ACTIVATIONS];
    }
    return SL_OK;
}

static void check_halves(sl_train_options options)
{
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_plan) *plan = NULL;
    held found;
    sl_run_result result;
    const sl_reporter reporter = {.context = &found, .finished = note_stages};
    check_ok(sl_train_run(&options, &reporter, 1, &result));
    options.model.ntokens = found.ntokens;
    check_ok(sl_transformer_lm_create(&options.model, &model));
    check_ok(sl_plan_create(&options, NULL, model, NULL, &plan));
    for (int s = 0; s < STAGES; s++)
        check_within(&options, "activations of zb-h1", plan->stage[s].activation_bytes,
                     found.activations[s]);
}

/* Of one micro-batch a stage holds most where backward's first half has gone through a part of it:
 * what is saved before that, and deferred behind it. */
static void planned_memory_of_halves_is_what_a_run_takes(void **state)
{
    sl_train_options options = small_options(*state);
    options.pipeline_ranks = STAGES;
    options.schedule = "zb-h1";
    options.chunks = 1;
    options.balance_kind = SL_BALANCE_EXPLICIT;
    options.balance_count = STAGES;
    options.balance[0] = 3;
    options.bptt = TIME;
    options.batch_size = options.eval_batch_size = 8;
    options.max_batches = 2;
    options.eval_max_batches = 1;
    for (sl_family family = SL_FAMILY_TUTORIALS; family <= SL_FAMILY_SMOLLM3; family++)
        for (int pre_norm = 0; pre_norm < (family == SL_FAMILY_TUTORIALS ? 2 : 1); pre_norm++) {
            options.model = family_options(family);
            options.balance[1] =
                family == SL_FAMILY_TUTORIALS ? 3 : 4; /* without and with a norm */
            options.model.decoder = family == SL_FAMILY_TUTORIALS
                                        ? (sl_decoder_options){.positions = 0}
                                        : options.model.decoder;
            options.model.pre_norm = pre_norm || family != SL_FAMILY_TUTORIALS;
            options.model.activation = pre_norm ? SL_ACTIVATION_GELU_TANH : SL_ACTIVATION_RELU;
            check_halves(options);
        }
}

/* With enough tokens for the evaluations. */
static int long_corpus_create(void **state)
{
    scratch_create(state);
    scratch *dir = *state;
    check_ok(sli_synthetic_write(dir->directory,
                                 &(sli_synthetic_options){.seed = 1, .train_tokens = 16000}));
    return 0;
}

int family_memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_memory_of_families_is_what_a_run_takes),
        cmocka_unit_test(planned_memory_of_adapters_is_what_a_run_takes),
        cmocka_unit_test(losses_of_evaluations_and_steps_take_turns),
        cmocka_unit_test(planned_memory_of_halves_is_what_a_run_takes),
    };
    return cmocka_run_group_tests(tests, long_corpus_create, scratch_remove);
}
