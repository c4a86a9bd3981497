/* A step of each family takes the memory that was planned for it, to within 5%. */
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

static int64_t plan_bytes(const sl_train_options *options)
{
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_plan) *plan = NULL;
    check_ok(sl_transformer_lm_create(&options->model, &model));
    check_ok(sl_plan_create(options, NULL, model, NULL, &plan));
    const sl_stage_plan *stage = &plan->stage[0];
    assert_int_equal(plan->stages, 1);
    return stage->parameter_bytes + stage->gradient_bytes + stage->optimizer_bytes +
           stage->activation_bytes + stage->workspace_bytes;
}

static void check_family(scratch *dir, sl_family family, sl_precision precision, bool adapts)
{
    static small_record record;
    sl_train_options options = small_options(dir);
    options.model = family_options(family);
    options.model.lora.adapts = adapts;
    options.precision = precision;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.bptt = TIME;
    options.batch_size = 8;
    /* the logits of an evaluation have no gradient, of 2 bytes each, so that it may have more */
    options.eval_batch_size = precision == SL_PRECISION_BF16 ? 12 : 8;
    options.chunks = 1;
    options.max_batches = 2;
    options.eval_max_batches = 1;
    options.lr.lr = 1e-3;
    int64_t planned = plan_bytes(&options);
    check_ok(small_run(&options, &record));
    int64_t taken = (int64_t)record.memory[0].peak_total_bytes;
    if (100 * planned < LEAST_PERCENT * taken || 100 * planned > MOST_PERCENT * taken)
        fail_msg("%s, %s%s: planned %.2f MiB, taken %.2f MiB", sl_family_names[family],
                 sl_precision_names[precision], adapts ? ", with adapters" : "",
                 (double)planned / (1 << 20), (double)taken / (1 << 20));
}

static void check_families(scratch *dir, bool adapts)
{
    for (sl_family family = SL_FAMILY_GPT2; family <= SL_FAMILY_SMOLLM3; family++)
        for (sl_precision precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++)
            check_family(dir, family, precision, adapts);
}

static void planned_memory_of_families_is_what_a_step_takes(void **state)
{
    check_families(*state, false);
}

static void planned_memory_of_adapters_is_what_a_step_takes(void **state)
{
    check_families(*state, true);
}

int family_memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planned_memory_of_families_is_what_a_step_takes),
        cmocka_unit_test(planned_memory_of_adapters_is_what_a_step_takes),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, scratch_remove);
}
