#include "plans.h"
#include "sluice/app/inference.h"

#include "support/replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Presets ------------------------------------------------------------------------------ */

static void first_preset_has_its_tutorials_numbers(void **state)
{
    sl_train_options fresh = {.data = "data"};
    check_ok(sl_train_options_preset("transformer-tutorial", &fresh));
    check_ok(sl_train_options_check(&fresh));
    assert_string_equal(fresh.data, "data");
    assert_string_equal(fresh.preset, "transformer-tutorial");
    assert_int_equal(fresh.optimizer.kind, SL_OPTIMIZER_SGD);
    assert_int_equal(fresh.model.emsize, 200);
    assert_int_equal(fresh.model.nhid, 200);
    assert_int_equal(fresh.model.nlayers, 2);
    assert_int_equal(fresh.model.nhead, 2);
    assert_true(fresh.model.dropout == 0.2f);
    assert_int_equal(fresh.model.mask, SL_MASK_CAUSAL);
    assert_int_equal(fresh.bptt, 35);
    assert_int_equal(fresh.batch_size, 20);
    assert_int_equal(fresh.eval_batch_size, 10);
    assert_int_equal(fresh.epochs, 3);
    assert_int_equal(fresh.max_batches, 0);
    assert_false(fresh.shuffle);
    assert_true(plan_numbers(&fresh, NULL).options.lr.lr == 5.0 && fresh.lr.gamma == 0.95 &&
                fresh.clip == 0.5);
    assert_int_equal(plan_numbers(&fresh, NULL).stages, 1);
}

static void defaults_have_no_tutorials_rates(void **state)
{
    sl_train_options options;
    sl_train_options_default(&options);
    check_ok(sl_train_options_check(&options));
    assert_null(options.preset);
    assert_int_equal(options.optimizer.kind, SL_OPTIMIZER_ADAMW);
    assert_true(plan_numbers(&options, NULL).options.lr.lr == 1e-3 && options.clip == 0);
    assert_true(sl_lr_at(&options.lr, 1000, 100) == sl_lr_at(&options.lr, 0, 0));
}

static void small_preset_is_for_texts_of_ones_own(void **state)
{
    sl_train_options options = {.data = "book.txt"};
    check_ok(sl_train_options_preset("small", &options));
    check_ok(sl_train_options_check(&options));
    assert_string_equal(options.data, "book.txt");
    assert_int_equal(options.optimizer.kind, SL_OPTIMIZER_ADAMW);
    assert_int_equal(options.optimizer.decay, SL_DECAY_MATRICES);
    assert_int_equal(options.lr.kind, SL_LR_COSINE);
    assert_true(options.lr.warmup_steps > 0 && options.lr.gamma == 0 && options.clip == 1);
    assert_true(options.model.pre_norm);
    assert_int_equal(options.max_batches, 0);
    assert_int_equal(plan_numbers(&options, NULL).stages, 1);
}

static void zeros_are_refused_with_the_function_that_gives_defaults(void **state)
{
    const sl_train_options zeros = {.data = "data"};
    assert_int_equal(sl_train_options_check(&zeros), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(), "begin with sl_train_options_default"));
}

static void pipeline_preset_has_its_tutorials_numbers(void **state)
{
    sl_train_options options = {.init = "a", .save = "b"};
    check_ok(sl_train_options_preset("pipeline-tutorial", &options));
    check_ok(sl_train_options_check(&options));
    assert_int_equal(options.model.emsize, 4096);
    assert_int_equal(options.model.nhid, 4096);
    assert_int_equal(options.model.nlayers, 12);
    assert_int_equal(options.model.nhead, 16);
    assert_true(options.model.dropout == 0.2f);
    assert_int_equal(options.model.mask, SL_MASK_CAUSAL);
    assert_false(options.model.position_is_parameter);
    assert_int_equal(options.bptt, 25);
    assert_int_equal(options.batch_size, 20);
    assert_int_equal(options.eval_batch_size, 10);
    assert_int_equal(options.chunks, 8);
    assert_int_equal(options.recompute, SL_RECOMPUTE_EXCEPT_LAST);
    assert_int_equal(plan_numbers(&options, NULL).stages, 2);
    assert_int_equal(options.epochs, 3);
    assert_int_equal(options.max_batches, 50);
    assert_false(options.shuffle);
    assert_true(plan_numbers(&options, NULL).options.lr.lr == 5.0 && options.lr.gamma == 0.95 &&
                options.clip == 0.5);
    assert_string_equal(options.init, "a");
    assert_string_equal(options.save, "b");
}

static void ddp_preset_has_its_tutorials_numbers(void **state)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("ddp-pipeline", &options));
    check_ok(sl_train_options_check(&options));
    assert_int_equal(options.model.emsize, 4096);
    assert_int_equal(options.model.nlayers, 8);
    assert_true(options.model.position_is_parameter);
    assert_int_equal(options.bptt, 35);
    assert_int_equal(options.chunks, 8);
    assert_int_equal(options.recompute, SL_RECOMPUTE_NEVER);
    assert_false(options.shuffle);
    assert_int_equal(plan_numbers(&options, NULL).stages, 2);
}

static void unknown_preset_lists_those_there_are(void **state)
{
    sl_train_options options = {.epochs = 7};
    check_error(sl_train_options_preset("tutorial", &options), SL_ERR_NOT_FOUND,
                "preset must be transformer-tutorial, pipeline-tutorial, ddp-pipeline or small, "
                "got \"tutorial\"");
    assert_int_equal(options.epochs, 7);
}

/* ---- Stages ------------------------------------------------------------------------------- */

static void stages_follow_from_what_is_given(void **state)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("transformer-tutorial", &options));
    options.devices = "cpu:0,cpu:1";
    assert_int_equal(plan_numbers(&options, NULL).stages, 2);
    options.devices = NULL;
    options.balance_kind = SL_BALANCE_EXPLICIT;
    options.balance_count = 3;
    options.balance[0] = options.balance[1] = 1;
    options.balance[2] = 2;
    assert_int_equal(plan_numbers(&options, NULL).stages, 3);
    options.balance_kind = SL_BALANCE_LAYERS;
    options.model.nlayers = options.pipeline_ranks = 4;
    assert_int_equal(plan_numbers(&options, NULL).stages, 4);
}

/* ---- Refusals ----------------------------------------------------------------------------- */

#define CHECK_REFUSED(field, value, text)                                                          \
    do {                                                                                           \
        sl_train_options options = {0};                                                            \
        sl_plan *refused;                                                                          \
        check_ok(sl_train_options_preset("transformer-tutorial", &options));                       \
        options.field = value;                                                                     \
        check_error(sl_train_options_check(&options), SL_ERR_INVALID, text);                       \
        check_error(sl_plan_create(&options, NULL, NULL, NULL, &refused), SL_ERR_INVALID, text);   \
    } while (0)

static void impossible_models_are_refused(void **state)
{
    CHECK_REFUSED(model.emsize, 0, "emsize must be at least 1, got 0");
    CHECK_REFUSED(model.emsize, INT64_MAX,
                  "emsize must be at most 1048576, got 9223372036854775807");
    CHECK_REFUSED(model.nhid, -1, "nhid must be at least 1, got -1");
    CHECK_REFUSED(model.nhid, INT64_MAX, "nhid must be at most 1048576");
    CHECK_REFUSED(model.nlayers, 0, "nlayers must be at least 1, got 0");
    CHECK_REFUSED(model.nlayers, 10001, "nlayers must be at most 10000, got 10001");
    CHECK_REFUSED(model.nhead, 0, "nhead must be at least 1, got 0");
    CHECK_REFUSED(model.nhead, 3, "emsize must be divisible by nhead, got emsize 200 and nhead 3");
    CHECK_REFUSED(model.dropout, 1.0f, "dropout must be at least 0 and below 1, got 1");
    CHECK_REFUSED(model.dropout, -0.1f, "dropout must be at least 0 and below 1, got -0.1");
    CHECK_REFUSED(model.dropout, NAN, "dropout must be at least 0 and below 1");
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("transformer-tutorial", &options));
    options.model.emsize = 9;
    options.model.nhead = 3;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID, "emsize must be even");
}

static void impossible_batches_are_refused(void **state)
{
    CHECK_REFUSED(bptt, 0, "bptt must be at least 1, got 0");
    CHECK_REFUSED(bptt, SL_MAX_CONTEXT + 1, "bptt must be at most 1048576, got 1048577");
    CHECK_REFUSED(batch_size, 0, "batch-size must be at least 1, got 0");
    CHECK_REFUSED(batch_size, INT64_MAX, "batch-size must be at most 1048576, got 9223372036854");
    CHECK_REFUSED(eval_batch_size, 0, "eval-batch-size must be at least 1, got 0");
    CHECK_REFUSED(chunks, -1, "chunks must be at least 1, got -1");
    CHECK_REFUSED(chunks, 4097, "chunks must be at most 4096, got 4097");
    CHECK_REFUSED(max_batches, -1, "max-batches must be at least 0, got -1");
    CHECK_REFUSED(eval_max_batches, -1, "eval-max-batches must be at least 0, got -1");
}

static void impossible_training_is_refused(void **state)
{
    CHECK_REFUSED(epochs, 0, "epochs must be at least 1, got 0");
    CHECK_REFUSED(lr.lr, -2.0, "lr must be a number from 0, got -2");
    CHECK_REFUSED(lr.lr, NAN, "lr must be a number from 0, got nan");
    CHECK_REFUSED(lr.gamma, INFINITY, "gamma must be a number above 0, got inf");
    CHECK_REFUSED(lr.warmup_steps, -1, "warmup must be at least 0, got -1");
    CHECK_REFUSED(lr.step_epochs, -1, "step-epochs must be at least 1, got -1");
    CHECK_REFUSED(clip, -0.5, "clip must be a number from 0, got -0.5");
    CHECK_REFUSED(optimizer.momentum, -1.0f, "momentum must be a number from 0, got -1");
    CHECK_REFUSED(optimizer.weight_decay, NAN, "weight-decay must be a number from 0, got nan");
    CHECK_REFUSED(optimizer.nesterov, true, "Nesterov momentum requires a momentum");
}

static void nccl_needs_gradients_to_exchange(void **state)
{
    CHECK_REFUSED(nccl, true, "nccl exchanges gradients of replicas, and there is only one");
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("transformer-tutorial", &options));
    options.nccl = true;
    options.shards = 2;
    check_ok(sl_train_options_check(&options));
    options.shards = 0;
    options.checkpoints.resume = "somewhere";
    check_ok(sl_train_options_check(&options));
}

static void each_optimizer_has_a_rate_of_its_own(void **state)
{
    static const char *const presets[] = {"transformer-tutorial", "pipeline-tutorial",
                                          "ddp-pipeline"};
    for (int i = 0; i < 3; i++) {
        sl_train_options options;
        check_ok(sl_train_options_preset(presets[i], memset(&options, 0, sizeof options)));
        assert_true(plan_numbers(&options, NULL).options.lr.lr == 5.0);
        options.optimizer.kind = SL_OPTIMIZER_ADAMW;
        assert_true(plan_numbers(&options, NULL).options.lr.lr == 1e-3);
        options.lr.lr = 0;
        assert_true(plan_numbers(&options, NULL).options.lr.lr == 0);
    }
}

static void numbers_of_the_other_optimizer_are_refused(void **state)
{
    CHECK_REFUSED(optimizer.beta1, 0.8f,
                  "betas and eps are for adamw, but the optimizer is sgd: leave them out");
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("transformer-tutorial", &options));
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW, .momentum = 0.9f};
    check_error(
        sl_train_options_check(&options), SL_ERR_INVALID,
        "momentum, dampening and nesterov are for sgd, but the optimizer is adamw: leave them out");
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW, .beta1 = 1.0f};
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "betas must be at least 0 and below 1, got 1");
}

/* Each for itself is possible; the bytes of all together would not be a number of 63 bits. */
static void options_beyond_any_machine_are_refused(void **state)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("transformer-tutorial", &options));
    options.model.emsize = options.model.nhid = options.batch_size = 1 << 20;
    options.model.nlayers = 10000;
    options.bptt = 5000;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "a batch of 1048576 rows of 5000 tokens has more activations in such a model");
    options.batch_size = 1;
    options.eval_batch_size = 1 << 20;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID, "a batch of 1048576 rows");
}

static void impossible_stages_are_refused(void **state)
{
    CHECK_REFUSED(pipeline_ranks, 3, "there are more stages than layers: 3 stages, 2 layers");
    CHECK_REFUSED(pipeline_ranks, 65, "pp must be at most 64, got 65");
    CHECK_REFUSED(pipeline_ranks, -1, "pp must be at least 1, got -1");
    CHECK_REFUSED(devices, "a,b,c", "there are more stages than layers: 3 stages, 2 layers");
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("transformer-tutorial", &options));
    options.balance_kind = SL_BALANCE_EXPLICIT;
    options.balance_count = 2;
    options.balance[0] = options.balance[1] = 2;
    check_ok(sl_train_options_check(&options));
    options.balance[1] = 3;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "balance must add up to the model's 4 modules (encoder, 2 layers, decoder), got 5");
    options.balance[0] = 0;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "each number of balance must be at least 1, got 0");
    options.pipeline_ranks = 3;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "balance must give one number for each of 3 stages, got 2 numbers");
}

/* ---- Missing arguments ------------------------------------------------------------------ */

/* A required pointer that is NULL gives an error that names it, in every public function of
 * sluice/app/train.h that has a status. */
#define check_null(call, text) check_error(call, SL_ERR_INVALID, text)

/* Pointers that are there, and not used. */
static sl_train_options unused_options;
static sl_run_result unused_result;
static int somewhere;

static void options_and_plan_name_what_is_missing(void **state)
{
    sl_plan *plan;
    sl_module *model = (sl_module *)&somewhere;
    check_null(sl_train_options_preset(NULL, &unused_options),
               "sl_train_options_preset: name is NULL");
    check_null(sl_train_options_preset("ddp-pipeline", NULL), "options is NULL");
    check_null(sl_train_options_check(NULL), "options is NULL");
    check_null(sl_plan_create(NULL, NULL, model, NULL, &plan), "sl_plan_create: options is NULL");
    check_null(sl_plan_create(&unused_options, NULL, model, NULL, NULL), "out is NULL");
    check_null(sl_plan_check_memory(NULL, NULL, model, 0), "options is NULL");
    check_null(sl_plan_check_memory(&unused_options, NULL, NULL, 0), "check_memory: model is NULL");
    char *best;
    check_null(sl_train_check_output(NULL, "w"), "sl_train_check_output: options is NULL");
    check_null(sl_train_check_output(&unused_options, NULL), "check_output: path is NULL");
    check_null(sl_train_find_checkpoints(NULL, &best, &best), "checkpoints: directory is NULL");
    check_null(sl_train_find_checkpoints("saved", NULL, &best), "checkpoints: best is NULL");
    check_null(sl_train_find_checkpoints("saved", &best, NULL), "checkpoints: newest is NULL");
}

/* One rank's options are missing: every rank gets the error. */
static sl_status run_without_options(sl_group *group, void *arg)
{
    sl_run *run;
    sl_train_options of_one;
    sl_train_options_default(&of_one);
    bool lacks = sl_group_rank(group) == 1;
    sl_status status = sl_run_create(lacks ? NULL : &of_one, NULL, group, NULL, 0, &run);
    return expect(status != SL_OK, "an error on every rank");
}

static void ranks_of_a_launch_must_be_those_of_the_group(void **state)
{
    sl_group *group;
    sl_run *run;
    sl_train_options options = {0};
    const sl_train_launch of_two = {.ranks = 2};
    check_ok(sl_train_options_preset("transformer-tutorial", &options));
    check_null(sl_run_create(&options, &of_two, NULL, NULL, 0, &run),
               "ranks must be the size of the group, 0, or 0, got 2");
    check_ok(sl_group_create_local(1, NULL, &group));
    check_null(sl_run_create(&options, &of_two, group, NULL, 0, &run),
               "ranks must be the size of the group, 1, or 0, got 2");
    sl_group_destroy(&group);
    assert_null(run);
}

static void runs_name_what_is_missing(void **state)
{
    sl_run *run;
    check_null(sl_train_run(NULL, NULL, 0, &unused_result), "sl_train_run: options is NULL");
    check_null(sl_train_run(&unused_options, NULL, 0, NULL), "sl_train_run: result is NULL");
    sl_train_options_default(&unused_options);
    check_null(sl_train_run(&unused_options, NULL, 0, &unused_result),
               "no data directory was given");
    check_null(sl_run_create(NULL, NULL, NULL, NULL, 0, &run), "sl_run_create: options is NULL");
    check_null(sl_run_create(&unused_options, NULL, NULL, NULL, 0, NULL), "out is NULL");
    check_null(sl_run_train(NULL, NULL, 0, &unused_result), "sl_run_train: run is NULL");
    check_ranks(run_without_options, NULL, 2);
}

static void log_and_models_name_what_is_missing(void **state)
{
    sl_run_log *log;
    sl_pipe *pipe = (sl_pipe *)&somewhere;
    sl_model_options model;
    sl_saved_model *saved;
    bool has;
    check_null(sl_run_log_create(NULL, NULL, NULL, NULL, &log), "sl_run_log_create: path is NULL");
    check_null(sl_run_log_create("log", NULL, NULL, NULL, NULL), "sl_run_log_create: out is NULL");
    check_null(sl_model_save(NULL, &model, NULL, NULL, "w"), "sl_model_save: pipe is NULL");
    check_null(sl_model_save(pipe, &model, NULL, NULL, NULL), "sl_model_save: path is NULL");
    check_null(sl_saved_model_open(NULL, &saved), "sl_saved_model_open: path is NULL");
    check_null(sl_saved_model_open("w", NULL), "sl_saved_model_open: out is NULL");
    check_null(sl_saved_model_read_options(NULL, &model, &has),
               "sl_saved_model_read_options: path is NULL");
    check_null(sl_saved_model_read_options("w", NULL, &has),
               "sl_saved_model_read_options: out is NULL");
    check_null(sl_saved_model_read_options("w", &model, NULL),
               "sl_saved_model_read_options: has is NULL");
    check_null(sl_saved_model_load(NULL, pipe, NULL, NULL), "sl_saved_model_load: model is NULL");
}

static void using_a_model_names_what_is_missing(void **state)
{
    sl_pipe *pipe = (sl_pipe *)&somewhere;
    const sl_tokens *tokens = (sl_tokens *)&somewhere;
    const sl_evaluate_options how = {0};
    const sl_generate_options draws = {0};
    sl_evaluation out;
    int32_t ids[2] = {0};
    int64_t length = 1;
    float *logits;
    check_null(sl_evaluate_tokens(NULL, tokens, &how, &out), "sl_evaluate_tokens: pipe is NULL");
    check_null(sl_evaluate_tokens(pipe, NULL, &how, &out), "sl_evaluate_tokens: tokens is NULL");
    check_null(sl_evaluate_tokens(pipe, tokens, NULL, &out), "options is NULL");
    check_null(sl_evaluate_tokens(pipe, tokens, &how, NULL), "sl_evaluate_tokens: out is NULL");
    check_null(sl_generate(NULL, &draws, ids, &length, 1), "sl_generate: pipe is NULL");
    check_null(sl_generate(pipe, NULL, ids, &length, 1), "sl_generate: options is NULL");
    check_null(sl_generate(pipe, &draws, NULL, &length, 1), "sl_generate: ids is NULL");
    check_null(sl_generate(pipe, &draws, ids, NULL, 1), "sl_generate: length is NULL");
    check_null(sl_generate_texts(pipe, &draws, NULL, 1, 1), "sl_generate_texts: texts is NULL");
    check_null(sl_compute_logits(NULL, ids, 1, 2, &logits, &length), "logits: pipe is NULL");
    check_null(sl_compute_logits(pipe, NULL, 1, 2, &logits, &length), "logits: ids is NULL");
    check_null(sl_compute_logits(pipe, ids, 1, 2, NULL, &length), "logits: logits is NULL");
    check_null(sl_compute_logits(pipe, ids, 1, 2, &logits, NULL), "logits: ntokens is NULL");
}

int options_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_preset_has_its_tutorials_numbers),
        cmocka_unit_test(defaults_have_no_tutorials_rates),
        cmocka_unit_test(small_preset_is_for_texts_of_ones_own),
        cmocka_unit_test(zeros_are_refused_with_the_function_that_gives_defaults),
        cmocka_unit_test(pipeline_preset_has_its_tutorials_numbers),
        cmocka_unit_test(ddp_preset_has_its_tutorials_numbers),
        cmocka_unit_test(unknown_preset_lists_those_there_are),
        cmocka_unit_test(stages_follow_from_what_is_given),
        cmocka_unit_test(impossible_models_are_refused),
        cmocka_unit_test(impossible_batches_are_refused),
        cmocka_unit_test(impossible_training_is_refused),
        cmocka_unit_test(nccl_needs_gradients_to_exchange),
        cmocka_unit_test(each_optimizer_has_a_rate_of_its_own),
        cmocka_unit_test(numbers_of_the_other_optimizer_are_refused),
        cmocka_unit_test(options_beyond_any_machine_are_refused),
        cmocka_unit_test(impossible_stages_are_refused),
        cmocka_unit_test(options_and_plan_name_what_is_missing),
        cmocka_unit_test(ranks_of_a_launch_must_be_those_of_the_group),
        cmocka_unit_test(runs_name_what_is_missing),
        cmocka_unit_test(log_and_models_name_what_is_missing),
        cmocka_unit_test(using_a_model_names_what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
