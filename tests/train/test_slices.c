/* Runs whose micro-batches are cut into slices: numbers, memory, checkpoints, plans. */
#include "plans.h"
#include "small_run.h"

#include "sluice/app/text.h"

enum { SLICES = 4, TIME = 32 };

static sl_train_options sliced_options(scratch *dir)
{
    sl_train_options options = small_options(dir);
    options.bptt = 10;
    options.slices = SLICES;
    return options;
}

/* Replicas besides, with ZeRO; the text's last block is shorter. */
static void run_has_the_same_bits_for_any_layout(void **state)
{
    static const char *const names[] = {"gpipe", "1f1b", "zb-h1"};
    static small_record one, whole;
    sl_train_options options = sliced_options(*state);
    options.max_batches = 0;
    options.shards = 2;
    for (int mode = IS_SANITIZED; mode < 2; mode++) {
        options.precision = mode ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        double tolerance = mode ? 2e-2 : 1e-5;
        options.pipeline_ranks = options.replicas = 1;
        options.slices = 0;
        options.zero = false;
        options.schedule = NULL;
        check_ok(small_run(&options, &whole));
        options.slices = SLICES;
        check_ok(small_run(&options, &one));
        for (int i = 0; i < 4; i++)
            assert_float_equal(one.steps[i].loss, whole.steps[i].loss,
                               tolerance * whole.steps[i].loss);
        for (int i = 0; i < 3; i++) {
            options.schedule = names[i];
            options.pipeline_ranks = 1 + i;
            options.replicas = 1 + i % 2;
            options.zero = options.replicas > 1;
            options.recompute = (sl_recompute)i;
            options.balance_kind = i % 2 ? SL_BALANCE_AUTO : SL_BALANCE_LAYERS;
            check_same_run(&options, &one);
        }
    }
}

static void run_resumes_with_its_slices_alone(void **state)
{
    static small_record whole, first, second;
    char directory[512];
    scratch *dir = *state;
    sl_train_options options = sliced_options(dir);
    snprintf(directory, sizeof directory, "%s", scratch_path(dir, "checkpoints"));
    options.epochs = 2;
    check_ok(small_run(&options, &whole));
    options.checkpoints.directory = directory;
    options.epochs = 1;
    check_ok(small_run(&options, &first));
    options.checkpoints.resume = directory;
    options.epochs = 2;
    options.slices = 2;
    check_error(small_run(&options, &second), SL_ERR_INVALID,
                "was made with slices 4, this run has slices 2");
    options.slices = SLICES;
    options.pipeline_ranks = 2;
    options.schedule = "1f1b";
    check_ok(small_run(&options, &second));
    assert_int_equal(first.step_count + second.step_count, whole.step_count);
    for (int i = 0; i < second.step_count; i++)
        check_same_step(&second.steps[i], &whole.steps[first.step_count + i]);
}

/* ---- Memory ------------------------------------------------------------------------------- */

static sl_train_options memory_options(scratch *dir)
{
    sl_train_options options = sliced_options(dir);
    options.model.emsize = options.model.nhid = 32;
    options.model.nlayers = 8;
    sl_corpus *corpus;
    check_ok(sl_corpus_load(options.data, NULL, &corpus));
    options.model.ntokens = sl_vocab_size(sl_corpus_vocab(corpus));
    sl_corpus_destroy(&corpus);
    options.bptt = TIME;
    options.batch_size = 16;
    options.eval_batch_size = 1;
    options.chunks = 4;
    options.max_batches = 3;
    options.eval_max_batches = 1;
    options.recompute = SL_RECOMPUTE_NEVER;
    options.pipeline_ranks = 2;
    options.schedule = "1f1b";
    return options;
}

/* What waits in channels differs from run to run, and is less than planned. */
static void check_planned_activations(const sl_train_options *options)
{
    static small_record record;
    sl_plan plan = plan_of_launch(options, NULL);
    int64_t least[2];
    for (int s = 0; s < 2; s++)
        least[s] = plan.stage[s].activation_bytes * 3 / 4;
    small_run_for_peaks(options, least, 2, &record);
    for (int s = 0; s < 2; s++) {
        int64_t planned = plan.stage[s].activation_bytes;
        int64_t taken = (int64_t)record.peak_activations[s];
        if (taken > planned || taken < least[s])
            fail_msg("%s, %s, %s, stage %d: planned %d bytes, taken %d", options->schedule,
                     sl_recompute_name(options->recompute), sl_precision_names[options->precision],
                     s, (int)planned, (int)taken);
    }
}

/* Of each stage, in modes that keep, free and halve, with and without slices. */
static void planned_activations_are_those_that_a_run_takes(void **state)
{
    static const char *const names[] = {"1f1b", "gpipe", "zb-h1"};
    static const sl_precision precisions[] = {SL_PRECISION_F32, SL_PRECISION_BF16};
    skip_if_sanitized();
    sl_train_options options = memory_options(*state);
    for (int i = 0; i < 3; i++)
        for (int mode = SL_RECOMPUTE_NEVER; mode <= SL_RECOMPUTE_ALWAYS; mode++)
            for (int cut = 0; cut < 4; cut++)
                for (int p = 0; p < 2; p++) {
                    options.schedule = names[i];
                    options.recompute = (sl_recompute)mode;
                    options.precision = precisions[p];
                    options.chunks = cut < 2 ? 1 : 4;
                    options.slices = cut % 2 ? SLICES : 1;
                    check_planned_activations(&options);
                }
}

/* A rank of 1F1B holds P + K - 1 slices instead of P micro-batches. */
static void slices_of_1f1b_take_less_memory(void **state)
{
    sl_train_options options = memory_options(*state);
    options.pipeline_ranks = 4;
    options.chunks = 8;
    sl_plan sliced = plan_of_launch(&options, NULL);
    options.slices = 1;
    sl_plan whole = plan_of_launch(&options, NULL);
    assert_true(sliced.stage[0].activation_bytes < 0.8 * (double)whole.stage[0].activation_bytes);
}

/* ---- What is refused ---------------------------------------------------------------------- */

static void check_refused(const sl_train_options *options, sl_status status, const char *text)
{
    sl_plan *plan;
    check_error(sl_plan_create(options, NULL, NULL, NULL, &plan), status, text);
    assert_null(plan);
}

static void what_slices_do_not_go_with_is_refused(void **state)
{
    SCOPED(sl_schedule) *table = NULL;
    const sl_train_options options = sliced_options(*state);
    sl_train_options other = options;
    other.pack = true;
    check_refused(&other, SL_ERR_UNSUPPORTED, "slices cannot be combined with pack");
    other = options;
    other.split_vocabulary = true;
    check_refused(&other, SL_ERR_UNSUPPORTED, "slices cannot be combined with split_vocabulary");
    other = options;
    other.model.mask = SL_MASK_NONE;
    check_refused(&other, SL_ERR_UNSUPPORTED,
                  "slices cannot be combined with a model without causal mask");
    other = options;
    other.slices = 11;
    check_refused(
        &other, SL_ERR_INVALID,
        "slices must be at most bptt (seq-len), the tokens of a row: got 11 slices of 10");
    other = options;
    other.schedule = "zb-v";
    other.pipeline_ranks = 1;
    check_refused(&other, SL_ERR_INVALID, "zb-v does not cut micro-batches into slices");
    check_ok(sl_schedule_write("1f1b", &(sl_schedule_options){.ranks = 2, .micros = 3, .slices = 2},
                               &table));
    other = options;
    other.schedule = "sliced.csv";
    other.table = table;
    check_refused(&other, SL_ERR_INVALID,
                  "the schedule sliced.csv has 2 slices of a micro-batch, not 4");
    other.slices = 0;
    other.model.ntokens = 40;
    assert_int_equal(plan_of_launch(&other, NULL).options.slices, 2);
    other.pack = true;
    check_refused(&other, SL_ERR_UNSUPPORTED, "slices cannot be combined with pack");
}

int slices_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_has_the_same_bits_for_any_layout),
        cmocka_unit_test(run_resumes_with_its_slices_alone),
        cmocka_unit_test(planned_activations_are_those_that_a_run_takes),
        cmocka_unit_test(slices_of_1f1b_take_less_memory),
        cmocka_unit_test(what_slices_do_not_go_with_is_refused),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, scratch_remove);
}
