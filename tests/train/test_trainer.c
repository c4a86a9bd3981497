#include "small_run.h"
#include "support/conversions.h"
#include "train/plan/profile.h"

#include <math.h>
#include <string.h>

/* ---- What is reported --------------------------------------------------------------------- */

static void run_reports_every_step_and_evaluation(void **state)
{
    static small_record record;
    sl_train_options options = small_options(*state);
    options.epochs = 2;
    options.lr.gamma = 0.5;
    check_ok(small_run(&options, &record));
    assert_int_equal(record.started, 1);
    assert_int_equal(record.finished, 1);
    assert_int_equal(record.step_count, 2 * 4);
    for (int i = 0; i < record.step_count; i++) {
        const sl_step_info *step = &record.steps[i];
        assert_int_equal(step->step, i + 1);
        assert_int_equal(step->epoch, i / 4 + 1);
        assert_int_equal(step->batch, i % 4 + 1);
        assert_int_equal(step->batches_per_epoch, 4);
        assert_int_equal(step->tokens, 7 * 9);
        assert_true(step->lr == (i < 4 ? 5.0 : 2.5));
        assert_true(step->seconds > 0 && step->grad_norm > 0);
    }
    static const char *const splits[] = {"valid", "valid", "test"};
    assert_int_equal(record.eval_count, 3);
    assert_int_equal(record.evaluated_batches, 3 * 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(record.evals[i].split, splits[i]);
        assert_int_equal(record.evals[i].tokens, 3 * 7 * 9);
        assert_true(record.evals[i].perplexity == exp(record.evals[i].loss));
    }
    assert_int_equal(record.result.steps, 8);
    assert_true(record.result.test_loss == record.evals[2].loss);
}

static void first_loss_is_that_of_a_model_that_knows_nothing(void **state)
{
    static small_record record;
    sl_train_options options = small_options(*state);
    options.lr.lr = 0;
    check_ok(small_run(&options, &record));
    double types = record.steps[0].loss;
    sl_corpus *corpus;
    check_ok(sl_corpus_load(options.data, NULL, &corpus));
    double uniform = log(sl_vocab_size(sl_corpus_vocab(corpus)));
    sl_corpus_destroy(&corpus);
    assert_true(fabs(types - uniform) < 0.1 * uniform);
    assert_true(fabs(record.evals[0].loss - uniform) < 0.1 * uniform);
}

static void attention_learns_what_the_text_allows(void **state)
{
    static small_record record;
    scratch *dir = *state;
    sl_train_options options = small_options(dir);
    check_ok(sli_synthetic_write(dir->directory,
                                 &(sli_synthetic_options){.seed = 1, .train_tokens = 20000}));
    options.model.nlayers = 1;
    options.model.dropout = 0;
    options.model.emsize = options.model.nhid = 32;
    options.optimizer.kind = SL_OPTIMIZER_ADAMW;
    options.lr = (sl_lr_schedule){.kind = SL_LR_COSINE, .lr = 1e-2, .warmup_steps = 10};
    options.batch_size = options.bptt = 16;
    options.epochs = 3;
    options.max_batches = options.eval_max_batches = 0;
    check_ok(small_run(&options, &record));
    const sl_step_info *last = &record.steps[record.step_count - 1];
    assert_true(last->lr < 1e-4); /* the cosine's length came from the data */
    double best = sli_synthetic_best_perplexity(options.bptt);
    assert_true(record.result.test_perplexity > best);
    assert_true(record.result.test_perplexity < 1.35 * best);
    assert_true(record.result.test_perplexity < sli_synthetic_best_perplexity(1));
    assert_true(record.evals[2].loss < record.evals[0].loss);
}

/* Steps 3 and 6 are within epochs of 4; training does not notice. The best of all is what is
 * tested.
 */
static void validations_come_within_epochs_too(void **state)
{
    static small_record without, record;
    static const int64_t steps[] = {3, 4, 6, 8, 8};
    sl_train_options options = small_options(*state);
    options.epochs = 2;
    check_ok(small_run(&options, &without));
    options.eval_every = 3;
    check_ok(small_run(&options, &record));
    assert_int_equal(record.eval_count, 5);
    double best = INFINITY;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(record.evals[i].step, steps[i]);
        assert_int_equal(record.evals[i].ends_epoch, steps[i] % 4 == 0);
        assert_int_equal(record.evals[i].epoch, 1 + i / 2);
        assert_int_equal(record.evals[i].best, record.evals[i].loss < best);
        best = fmin(best, record.evals[i].loss);
    }
    assert_true(record.result.best_valid_loss == best);
    assert_true(record.evals[1].loss == without.evals[0].loss);
    for (int i = 0; i < without.step_count; i++)
        check_same_step(&record.steps[i], &without.steps[i]);
}

/* In one epoch that gets worse: the test has the parameters of the validation within it. */
static void best_parameters_within_an_epoch_are_tested(void **state)
{
    static small_record record, until;
    sl_train_options options = small_options(*state);
    options.lr.lr = 30;
    options.clip = 0;
    options.allow_nan = true;
    options.eval_every = options.max_batches = 1;
    check_ok(small_run(&options, &until)); /* one step only */
    options.max_batches = 4;
    check_ok(small_run(&options, &record));
    assert_true(record.evals[0].best && !record.evals[1].best && !record.evals[3].best);
    assert_true(record.result.test_loss == until.result.test_loss);
}

static sl_status refuse_step(void *context, const sl_step_info *step)
{
    return step->step < 3 ? SL_OK : sl_error(SL_ERR_IO, "the disk is full");
}

static void error_of_a_reporter_ends_the_run(void **state)
{
    static small_record record;
    sl_run_result result;
    sl_train_options options = small_options(*state);
    const sl_reporter reporters[] = {{.step = refuse_step}, small_reporter(&record)};
    check_error(sl_train_run(&options, reporters, 2, &result), SL_ERR_IO, "the disk is full");
    assert_int_equal(record.step_count, 2);
    assert_int_equal(record.finished, 0);
}

/* ---- Numbers that are none ---------------------------------------------------------------- */

static void loss_that_is_no_number_names_its_place(void **state)
{
    static small_record record;
    sl_train_options options = small_options(*state);
    options.lr.lr = 1e30;
    options.clip = 0;
    check_error(small_run(&options, &record), SL_ERR_NUMERIC, "in epoch 1, batch 2 (step 2)");
    assert_int_equal(record.step_count, 1);
    options.allow_nan = true;
    check_ok(small_run(&options, &record));
    assert_int_equal(record.step_count, 4);
    assert_true(!isfinite(record.result.test_loss));
    assert_false(record.evals[0].best);
}

/* ---- The best parameters ------------------------------------------------------------------ */

/* The second epoch's rate ruins the model: what is tested and saved is the first epoch's. */
static void test_uses_the_best_parameters(void **state)
{
    static small_record one_epoch, two_epochs;
    static char first[1 << 20], second[1 << 20];
    scratch *dir = *state;
    sl_train_options options = small_options(dir);
    options.pipeline_ranks = 2;
    options.save = scratch_path(dir, "model");
    check_ok(small_run(&options, &one_epoch));
    scratch weights = *dir;
    scratch_path(&weights, "model/model.safetensors");
    size_t bytes = read_file(weights.path, first, sizeof first);
    assert_true(bytes > 1000 && bytes < sizeof first);
    options.epochs = 2;
    options.lr.gamma = 10;
    check_ok(small_run(&options, &two_epochs));
    assert_true(two_epochs.evals[0].best);
    assert_false(two_epochs.evals[1].best);
    assert_true(two_epochs.evals[1].loss > two_epochs.evals[0].loss);
    assert_true(two_epochs.result.best_valid_loss == two_epochs.evals[0].loss);
    assert_true(two_epochs.result.test_loss == one_epoch.result.test_loss);
    assert_int_equal(read_file(weights.path, second, sizeof second), bytes);
    assert_memory_equal(first, second, bytes);
}

static void test_uses_the_last_parameters_where_they_are_the_best(void **state)
{
    static small_record record, again;
    scratch *dir = *state;
    sl_train_options options = small_options(dir);
    options.epochs = 2;
    options.lr.lr = 0.5;
    options.save = scratch_path(dir, "model");
    check_ok(small_run(&options, &record));
    assert_true(record.evals[0].best && record.evals[1].best);
    options.init = options.save;
    options.save = NULL;
    options.lr.lr = 0;
    options.epochs = 1;
    check_ok(small_run(&options, &again));
    assert_true(again.evals[0].loss == record.evals[1].loss);
    assert_true(again.result.test_loss == record.result.test_loss);
}

/* ---- Starting from weights ---------------------------------------------------------------- */

/* Saves a trained model as `model`; its validation loss. */
static double save_trained(scratch *dir, sl_train_options *options)
{
    static small_record record;
    *options = small_options(dir);
    options->save = scratch_path(dir, "model");
    check_ok(small_run(options, &record));
    options->init = options->save;
    options->save = NULL;
    options->lr.lr = 0;
    return record.evals[0].loss;
}

static void weights_bring_their_vocabulary(void **state)
{
    static small_record record;
    scratch *dir = *state, *other;
    sl_train_options options;
    double loss = save_trained(dir, &options);
    small_corpus_create((void **)&other);
    FILE *train = fopen(scratch_path(other, "train.txt"), "a");
    assert_non_null(train);
    for (int i = 0; i < 500; i++) /* a word that is now the most frequent: other ids for all */
        fputs("zebra zebra zebra zebra\n", train);
    fclose(train);
    options.data = other->directory;
    char kept[512];
    snprintf(kept, sizeof kept, "%s", options.init);
    options.init = kept;
    check_ok(small_run(&options, &record));
    assert_true(record.evals[0].loss == loss);
    assert_int_equal(remove(scratch_path(dir, "model/tokenizer.json")), 0);
    check_error(small_run(&options, &record), SL_ERR_INVALID, "0.encoder.weight");
    scratch_remove((void **)&other);
}

static void weights_of_another_model_are_refused(void **state)
{
    static small_record record;
    scratch *dir = *state;
    sl_train_options options, other;
    save_trained(dir, &options);
    other = options;
    other.model.nhead = 4;
    check_error(small_run(&other, &record), SL_ERR_INVALID,
                "model: its model has nhead 2, expected nhead 4");
    other = options;
    other.model.mask = SL_MASK_NONE;
    check_error(small_run(&other, &record), SL_ERR_INVALID, "has mask causal, expected mask none");
    other = options;
    other.model.activation = SL_ACTIVATION_GELU;
    check_error(small_run(&other, &record), SL_ERR_INVALID,
                "has activation relu, expected activation gelu");
    other = options;
    other.model.pre_norm = true;
    check_error(small_run(&other, &record), SL_ERR_INVALID,
                "has pre_norm false, expected pre_norm true");
    other = options;
    other.model.nhid = 32;
    check_error(small_run(&other, &record), SL_ERR_INVALID, "1.linear1.bias");
    other = options;
    other.model.dropout = 0.5f; /* is no property of the weights */
    check_ok(small_run(&other, &record));
}

static void place_for_weights_is_tried_before_training(void **state)
{
    static small_record record;
    scratch *dir = *state;
    sl_train_options options = small_options(dir);
    options.save = "/nowhere/model";
    check_error(small_run(&options, &record), SL_ERR_NOT_FOUND, "/nowhere/model");
    assert_int_equal(record.started, 0);
    options.save = scratch_path(dir, "model");
    write_file(options.save, "mine", 4);
    check_error(small_run(&options, &record), SL_ERR_INVALID,
                "a model is a directory, and a file has this name");
    assert_int_equal(record.started, 0);
}

/* ---- Data --------------------------------------------------------------------------------- */

static void data_too_short_for_a_block_name_their_file(void **state)
{
    static small_record record;
    scratch *dir = *state;
    sl_train_options options = small_options(dir);
    options.data = NULL;
    check_error(small_run(&options, &record), SL_ERR_INVALID, "no data directory was given");
    options = small_options(dir);
    options.bptt = 1000;
    check_error(small_run(&options, &record), SL_ERR_INVALID, "/train.txt: ");
    options.bptt = 100; /* valid and test have a tenth of the tokens */
    check_error(small_run(&options, &record), SL_ERR_INVALID, "/valid.txt: ");
    assert_int_equal(record.started, 0);
}

static void unwritable_checkpoint_directory_is_refused_before_training(void **state)
{
    static small_record record;
    sl_run_result result;
    sl_reporter reporter = small_reporter(&record);
    sl_train_options options = small_options(*state);
    options.checkpoints = (sl_save_options){.directory = "/proc/checkpoints"};
    assert_int_equal(sl_train_run(&options, &reporter, 1, &result), SL_ERR_IO);
    assert_int_equal(record.step_count, 0);
}

/* ---- Weights in bf16 ---------------------------------------------------------------------- */

typedef struct conversion_record {
    conversions converted;
    int steps, evaluations;
} conversion_record;

static sl_status count_from_start(void *context, const sl_run_info *info)
{
    conversion_record *record = context;
    count_conversions(&record->converted, info->pipe);
    return SL_OK;
}

static sl_status expect_each_weight_once(conversion_record *record, const char *when, int number)
{
    int made = take_conversions(&record->converted), weights = record->converted.weights;
    return made == weights ? SL_OK
                           : sl_error(SL_ERR_INTERNAL, "%d conversions of %d weights in %s %d",
                                      made, weights, when, number);
}

static sl_status check_conversions_of_step(void *context, const sl_step_info *step)
{
    conversion_record *record = context;
    record->steps++;
    return expect_each_weight_once(record, "step", (int)step->step);
}

static sl_status check_conversions_of_evaluation(void *context, const sl_eval_info *eval)
{
    conversion_record *record = context;
    return expect_each_weight_once(record, "evaluation", ++record->evaluations);
}

/* The step's shards, 3 micro-batches each, have the same weights, and so have an evaluation's
 * batches; the steps and the evaluations have different ones. */
static void weights_are_converted_to_bf16_once_a_step_of_several_shards(void **state)
{
    enum { WEIGHTS = 4 * 3 + 1 /* the layers' and the decoder's; a look-up needs none */ };
    static conversion_record record;
    sl_run_result result;
    sl_train_options options = small_options(*state);
    sl_reporter reporter = {.context = &record,
                            .started = count_from_start,
                            .step = check_conversions_of_step,
                            .evaluated = check_conversions_of_evaluation};
    options.precision = SL_PRECISION_BF16;
    for (options.shards = 1; options.shards <= 3; options.shards += 2)
        for (options.pipeline_ranks = 1; options.pipeline_ranks <= 2; options.pipeline_ranks++) {
            record = (conversion_record){.steps = 0};
            check_ok(sl_train_run(&options, &reporter, 1, &result));
            assert_int_equal(record.converted.weights, WEIGHTS);
            assert_int_equal(record.steps, 4);
            assert_int_equal(record.evaluations, 2);
        }
}

/* ---- The devices' peak -------------------------------------------------------------------- */

static void measuring_the_peak_leaves_no_memory_on_the_device(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    sl_memory_stats stats;
    double flops_per_s;
    check_ok(sli_measure_peak(&device, 1, SL_PRECISION_F32, &flops_per_s));
    assert_true(flops_per_s > 0);
    sl_device_memory(device, &stats);
    assert_int_equal(stats.peak_total_bytes, 0);
    assert_int_equal(stats.reserved_bytes, 0);
}

int trainer_tests(void)
{
#define WITH_CORPUS(test) cmocka_unit_test_setup_teardown(test, small_corpus_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_CORPUS(run_reports_every_step_and_evaluation),
        WITH_CORPUS(first_loss_is_that_of_a_model_that_knows_nothing),
        WITH_CORPUS(attention_learns_what_the_text_allows),
        WITH_CORPUS(validations_come_within_epochs_too),
        WITH_CORPUS(best_parameters_within_an_epoch_are_tested),
        WITH_CORPUS(error_of_a_reporter_ends_the_run),
        WITH_CORPUS(loss_that_is_no_number_names_its_place),
        WITH_CORPUS(test_uses_the_best_parameters),
        WITH_CORPUS(test_uses_the_last_parameters_where_they_are_the_best),
        WITH_CORPUS(weights_bring_their_vocabulary),
        WITH_CORPUS(weights_of_another_model_are_refused),
        WITH_CORPUS(place_for_weights_is_tried_before_training),
        WITH_CORPUS(data_too_short_for_a_block_name_their_file),
        WITH_CORPUS(unwritable_checkpoint_directory_is_refused_before_training),
        WITH_CORPUS(weights_are_converted_to_bf16_once_a_step_of_several_shards),
        cmocka_unit_test(measuring_the_peak_leaves_no_memory_on_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
