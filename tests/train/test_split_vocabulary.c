/* Runs whose vocabulary is split over the pipeline's ranks: numbers, memory, checkpoints. */
#include "plans.h"
#include "small_run.h"

#include <math.h>

enum { RANKS = 4 };

static small_record *shared_record; /* of the first rank */

static sl_train_options split_options(scratch *dir)
{
    sl_train_options options = small_options(dir);
    options.model.nlayers = 8;
    options.split_vocabulary = true;
    return options;
}

static void run_has_the_same_bits_for_any_number_of_ranks(void **state)
{
    static small_record one, whole;
    sl_train_options options = split_options(*state);
    for (int mode = 0; mode < 4; mode += IS_SANITIZED ? 3 : 1) {
        options.model.tie = mode % 2;
        options.precision = mode / 2 ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        double tolerance = mode / 2 ? 2e-2 : 1e-5;
        options.pipeline_ranks = options.replicas = 1;
        options.split_vocabulary = false;
        options.balance_kind = SL_BALANCE_LAYERS;
        check_ok(small_run(&options, &whole));
        options.split_vocabulary = true;
        check_ok(small_run(&options, &one));
        for (int i = 0; i < one.step_count; i++)
            assert_float_equal(one.steps[i].loss, whole.steps[i].loss,
                               tolerance * whole.steps[i].loss);
        for (options.pipeline_ranks = 2; options.pipeline_ranks <= RANKS;
             options.pipeline_ranks += 2)
            for (int i = 0; sl_schedule_names[i]; i++) {
                options.schedule = sl_schedule_names[i];
                options.balance_kind = i % 2 ? SL_BALANCE_AUTO : SL_BALANCE_LAYERS;
                check_same_run(&options, &one);
            }
        options.schedule = NULL;
    }
}

/* One of two ranks with a stage each. */
static sl_status run_half(sl_group *group, void *arg)
{
    static small_record record;
    sl_run_result result;
    const sl_train_options *options = arg;
    sl_reporter reporter = small_reporter(sl_group_rank(group) == 0 ? shared_record : &record);
    return run_as_rank(options, group, 2, &reporter, 1, &result);
}

static void frozen_bias_of_a_split_head_is_let_be_in_other_processes(void **state)
{
    static small_record one, two;
    sl_train_options options = split_options(*state);
    options.replicas = 1;
    options.model.freeze = "*.decoder.bias";
    check_ok(small_run(&options, &one));
    options.pipeline_ranks = 2;
    shared_record = &two;
    check_ok(sl_spawn(run_half, &options, 2, NULL));
    assert_int_equal(two.step_count, one.step_count);
    for (int i = 0; i < one.step_count; i++)
        check_same_step(&two.steps[i], &one.steps[i]);
}

/* The file has the whole head, whoever trained it; and a run keeps the option. */
static void run_resumes_with_other_ranks_and_not_without_the_option(void **state)
{
    static small_record whole, first, second;
    char directory[512];
    scratch *dir = *state;
    sl_train_options options = split_options(dir);
    snprintf(directory, sizeof directory, "%s", scratch_path(dir, "checkpoints"));
    options.epochs = 2;
    check_ok(small_run(&options, &whole));
    options.checkpoints.directory = directory;
    options.pipeline_ranks = 2;
    options.schedule = "1f1b";
    options.epochs = 1;
    check_ok(small_run(&options, &first));
    options.checkpoints.resume = directory;
    options.epochs = 2;
    options.split_vocabulary = false;
    check_error(small_run(&options, &second), SL_ERR_INVALID,
                "was made with split-vocabulary true, this run has");
    options.split_vocabulary = true;
    options.pipeline_ranks = RANKS;
    options.schedule = "zb-h1";
    check_ok(small_run(&options, &second));
    assert_int_equal(first.step_count + second.step_count, whole.step_count);
    for (int i = 0; i < second.step_count; i++)
        check_same_step(&second.steps[i], &whole.steps[first.step_count + i]);
}

/* Of each rank, of one device each. */
static void check_memory(const sl_train_options *options)
{
    static small_record record;
    sl_train_options sized = *options;
    sl_corpus *corpus;
    int64_t activations[SL_MAX_STAGES] = {0}, workspace[SL_MAX_STAGES] = {0}, least[SL_MAX_STAGES];
    check_ok(sl_corpus_load(options->data, NULL, &corpus));
    sized.model.ntokens = sl_vocab_size(sl_corpus_vocab(corpus));
    sl_corpus_destroy(&corpus);
    sl_plan plan = plan_of_launch(&sized, NULL);
    for (int s = 0; s < plan.stages; s++) {
        int rank = plan.stage[s].rank;
        activations[rank] += plan.stage[s].activation_bytes;
        if (workspace[rank] < plan.stage[s].workspace_bytes)
            workspace[rank] = plan.stage[s].workspace_bytes;
        least[rank] = activations[rank] * 3 / 4;
    }
    small_run_for_peaks(options, least, options->pipeline_ranks, &record);
    for (int rank = 0; rank < options->pipeline_ranks; rank++) {
        int64_t taken = (int64_t)record.peak_activations[rank],
                worked = (int64_t)record.memory[rank].peak_bytes[SL_MEMORY_WORKSPACE];
        if (taken > activations[rank] || taken < least[rank] || worked > workspace[rank] * 9 / 8)
            fail_msg("%s, %s, rank %d of %d: planned %d and %d bytes, taken %d and %d",
                     options->schedule, sl_precision_names[options->precision], rank,
                     options->pipeline_ranks, (int)activations[rank], (int)workspace[rank],
                     (int)taken, (int)worked);
    }
}

static void planned_memory_is_what_a_run_takes(void **state)
{
    skip_if_sanitized();
    sl_train_options options = split_options(*state);
    options.model.emsize = options.bptt = 32;
    options.batch_size = 16;
    options.chunks = 16;
    options.max_batches = 2;
    options.eval_max_batches = 1;
    options.recompute = SL_RECOMPUTE_NEVER;
    for (options.precision = SL_PRECISION_F32; options.precision <= SL_PRECISION_BF16;
         options.precision++)
        for (options.pipeline_ranks = 2; options.pipeline_ranks <= 8; options.pipeline_ranks *= 2)
            for (int i = 0; sl_schedule_names[i]; i++) {
                options.schedule = sl_schedule_names[i];
                if (options.pipeline_ranks * sl_schedule_virtual_stages(options.schedule) <=
                    options.model.nlayers)
                    check_memory(&options);
            }
}

static sl_train_options planned_options(void)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("pipeline-tutorial", &options));
    options.model.ntokens = 1000;
    options.pipeline_ranks = 2;
    options.replicas = 1;
    options.split_vocabulary = true;
    return options;
}

static void copies_in_other_processes_are_planned_for(void **state)
{
    sl_train_options options = planned_options();
    int64_t elements = 500 * (options.model.emsize + 1);
    sl_plan here = plan_of_launch(&options, NULL),
            apart = plan_of_launch(&options, &(sl_train_launch){.ranks = 2});
    assert_int_equal(apart.stage[0].parameter_bytes, here.stage[0].parameter_bytes + 4 * elements);
    assert_int_equal(apart.stage[0].gradient_bytes, here.stage[0].gradient_bytes + 4 * elements);
    assert_int_equal(apart.stage[1].parameter_bytes, here.stage[1].parameter_bytes);
    assert_int_equal(apart.stage[1].gradient_bytes, here.stage[1].gradient_bytes);
}

static void check_refused(const sl_train_options *options, sl_status status, const char *text)
{
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_plan) *plan = NULL;
    check_ok(sl_transformer_lm_create(&options->model, &model));
    check_error(sl_plan_create(options, NULL, model, NULL, &plan), status, text);
}

static void plan_refuses_what_a_pipe_would(void **state)
{
    sl_train_options options = planned_options();
    options.precision = SL_PRECISION_TF32;
    check_refused(&options, SL_ERR_UNSUPPORTED, "the head cannot be split: the precision must be");
    options.precision = SL_PRECISION_F32;
    options.devices = "cpu:0,cuda:0";
    check_refused(&options, SL_ERR_UNSUPPORTED, "the devices must be CPUs");
    options.devices = NULL;
    options.model.freeze = "*.decoder.weight";
    check_refused(&options, SL_ERR_UNSUPPORTED, "its weight must be trained");
    options.model.freeze = NULL;
    options.model.ntokens = 1;
    check_refused(&options, SL_ERR_INVALID, "1 classes in 1 block are too few for 2 ranks");
}

static void plan_refuses_a_table_that_splits_what_the_run_does_not(void **state)
{
    SCOPED(sl_schedule) *table = NULL;
    sl_train_options options = planned_options();
    check_ok(sl_schedule_write("1f1b", &(sl_schedule_options){.ranks = 2, .micros = 4}, &table));
    check_ok(sl_schedule_split_head(table, 1));
    options.schedule = "split.csv";
    options.table = table;
    options.chunks = 4;
    plan_of_launch(&options, NULL);
    options.split_vocabulary = false;
    check_refused(&options, SL_ERR_INVALID,
                  "the schedule split.csv splits the head over all ranks, and split_vocabulary is "
                  "not set");
}

int split_vocabulary_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(run_has_the_same_bits_for_any_number_of_ranks,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(frozen_bias_of_a_split_head_is_let_be_in_other_processes,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(run_resumes_with_other_ranks_and_not_without_the_option,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(planned_memory_is_what_a_run_takes, small_corpus_create,
                                        scratch_remove),
        cmocka_unit_test(copies_in_other_processes_are_planned_for),
        cmocka_unit_test(plan_refuses_what_a_pipe_would),
        cmocka_unit_test(plan_refuses_a_table_that_splits_what_the_run_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
