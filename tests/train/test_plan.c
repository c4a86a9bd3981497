/* What a run will need, by arithmetic, against what a run took. */
#include "plans.h"
#include "small_run.h"

#include "train/plan/plan.h"

#include <math.h>

static sl_plan plan_of(const sl_train_options *options, int64_t ntokens)
{
    sl_train_options complete = *options;
    complete.model.ntokens = ntokens;
    return plan_of_launch(&complete, NULL);
}

static void totals_of_the_tutorials_models_are_theirs(void **state)
{
    enum { WIKITEXT2 = 28782 };
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("pipeline-tutorial", &options));
    sl_plan plan = plan_of(&options, WIKITEXT2);
    assert_int_equal(plan.total_parameters, 1444261998);
    assert_int_equal(plan.stages, 2);
    assert_int_equal(plan.stage[0].parameter_elements + plan.stage[1].parameter_elements,
                     plan.total_parameters);
    assert_int_equal(plan.stage[0].first, 0);
    assert_int_equal(plan.stage[0].count, 7);
    assert_int_equal(plan.stage[1].first, 7);
    assert_int_equal(plan.stage[1].count, 7);
    assert_int_equal(plan.stage[1].parameter_bytes, 4 * plan.stage[1].parameter_elements);
    check_ok(sl_train_options_preset("ddp-pipeline", &options));
    plan = plan_of(&options, WIKITEXT2);
    assert_int_equal(plan.total_parameters, 1061924974);
    /* The positional encoding is counted, but has no gradient. */
    assert_int_equal(plan.stage[0].parameter_bytes, 4 * plan.stage[0].parameter_elements);
    assert_int_equal(plan.stage[0].parameter_bytes - plan.stage[0].gradient_bytes, 4 * 5000 * 4096);
}

static void replicas_differ_in_their_devices_and_shard_what_zero_shards(void **state)
{
    static const char *const names[] = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"};
    static const char *const listed[] = {"cpu:0-1", "cpu:2-3", "cpu:4-5", "cpu:6-7"};
    sl_train_options options = {0};
    sl_plan *plan;
    check_ok(sl_train_options_preset("ddp-pipeline", &options));
    options.optimizer.momentum = 0.9f;
    sl_plan whole = plan_of(&options, 100);
    options.zero = true;
    sl_plan sharded = plan_of(&options, 100);
    for (int s = 0; s < 2; s++) {
        int64_t trained = whole.stage[s].gradient_bytes / 4;
        assert_int_equal(whole.stage[s].optimizer_bytes, 4 * trained);
        assert_int_equal(sharded.stage[s].optimizer_bytes, 4 * ((trained + 1) / 2));
        assert_int_equal(sharded.stage[s].gradient_bytes, whole.stage[s].gradient_bytes);
    }
    for (int is_listed = 0; is_listed < 2; is_listed++) {
        options.devices = is_listed ? "cpu:0-1,cpu:2-3;cpu:4-5,cpu:6-7" : NULL;
        check_ok(sl_plan_create(&options, NULL, NULL, NULL, &plan));
        for (int i = 0; i < 4; i++)
            assert_string_equal(plan->devices[i].name, is_listed ? listed[i] : names[i]);
        sl_plan_destroy(&plan);
    }
}

static void check_near(const char *what, double planned, double taken, double tolerance)
{
    if (!(fabs(planned - taken) <= tolerance * taken))
        fail_msg("%s: planned %.0f bytes, taken %.0f", what, planned, taken);
}

enum { CHUNKS = 8, ROWS = 2, TIME = 16, WIDTH = 32 };

/* How much less than planned a stage may take, in units of what stages hand over: a gradient for
 * each later stage, as it depends on which rank is ahead how many wait; what a layer's backward for
 * the input frees before it has deferred everything; and one unit for rounding. */
static int units_below(const sl_train_options *options)
{
    int freed = options->precision == SL_PRECISION_BF16 ? 9 : 7;
    return options->pipeline_ranks + (strcmp(options->schedule, "zb-h1") == 0 ? freed : 0);
}

static int unit_bytes(const sl_train_options *options)
{
    return ROWS * TIME * WIDTH * (options->precision == SL_PRECISION_BF16 ? 2 : 4);
}

/* A module's own tensors may come to a unit more than what it saves. */
static void check_activations(const char *what, int64_t planned, int64_t taken,
                              const sl_train_options *options)
{
    int unit = unit_bytes(options);
    if (taken > planned + unit || taken < planned - units_below(options) * unit)
        fail_msg("%s: planned %.2f units of %d bytes, taken %.2f", what, (double)planned / unit,
                 unit, (double)taken / unit);
}

typedef struct activations {
    int64_t planned, taken;
} activations;

/* Runs, and compares the bytes of every stage of the first replica. Buckets are padded, so there
 * may be a little more. Returns all stages' activations; with several stages, what a run takes of
 * them differs from run to run. */
static activations check_run(const sl_train_options *options)
{
    static small_record record;
    int64_t least[SL_MAX_STAGES];
    sl_corpus *corpus;
    activations all = {0, 0};
    check_ok(sl_corpus_load(options->data, NULL, &corpus));
    sl_plan plan = plan_of(options, sl_vocab_size(sl_corpus_vocab(corpus)));
    sl_corpus_destroy(&corpus);
    for (int s = 0; s < plan.stages; s++)
        least[s] = plan.stage[s].activation_bytes - units_below(options) * unit_bytes(options);
    small_run_for_peaks(options, least, plan.stages, &record);
    for (int s = 0; s < plan.stages; s++) {
        const sl_stage_plan *stage = &plan.stage[s];
        const uint64_t *taken = record.memory[s].current_bytes;
        char what[96];
        snprintf(what, sizeof what, "stage %d of %d, %s, %s", s, plan.stages,
                 sl_recompute_name(options->recompute), options->schedule);
        check_near(what, (double)stage->parameter_bytes, (double)taken[SL_MEMORY_PARAMETERS], 0.02);
        check_near(what, (double)stage->gradient_bytes, (double)taken[SL_MEMORY_GRADIENTS], 0.02);
        check_near(what, (double)stage->optimizer_bytes, (double)taken[SL_MEMORY_OPTIMIZER], 0.02);
        check_activations(what, stage->activation_bytes, (int64_t)record.peak_activations[s],
                          options);
        all.planned += stage->activation_bytes;
        all.taken += (int64_t)record.peak_activations[s];
    }
    return all;
}

/* The last stage keeps the blocks of its loss and those of a layer, and has the bias's sums. */
static void cached_blocks_are_planned_where_the_loss_is(void **state)
{
    sl_train_options options;
    sl_train_options_default(&options);
    options.pipeline_ranks = 2;
    sl_plan plan = plan_of(&options, 1000);
    assert_int_equal(plan.stage[0].cached_bytes, 0);
    assert_true(plan.stage[1].cached_bytes > 0);
    int64_t of_stages = 0;
    for (int s = 0; s < 2; s++)
        of_stages += plan.stage[s].activation_bytes + plan.stage[s].workspace_bytes +
                     plan.stage[s].cached_bytes;
    assert_int_equal(plan.host.activation_bytes, of_stages);
}

static sl_train_options options_of_units(scratch *dir)
{
    sl_train_options options = small_options(dir);
    options.model.emsize = WIDTH;
    options.model.nhid = 64;
    options.batch_size = ROWS * CHUNKS;
    options.chunks = CHUNKS;
    options.bptt = TIME;
    options.max_batches = options.eval_max_batches = 2;
    options.lr.lr = 1e-3;
    return options;
}

static void planned_bytes_are_those_that_a_run_takes(void **state)
{
    sl_train_options options = options_of_units(*state);
    options.model.nlayers = 12;
    for (int stages = 1; stages <= 3; stages++)
        for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++)
            for (int kind = 0; kind < TEST_SCHEDULES; kind++) {
                options.pipeline_ranks = stages;
                options.recompute = (sl_recompute)mode;
                options.schedule = test_schedules[kind];
                options.model.tie = mode == SL_RECOMPUTE_ALWAYS;
                options.optimizer.kind = stages == 2 ? SL_OPTIMIZER_ADAMW : SL_OPTIMIZER_SGD;
                options.optimizer.momentum = stages == 3 ? 0.9f : 0;
                options.optimizer.precision =
                    stages == 2 && options.model.tie ? SL_PRECISION_BF16 : SL_PRECISION_F32;
                check_run(&options);
            }
}

/* The first layers keep nothing where nothing before them trains. */
static void frozen_layers_take_no_activations(void **state)
{
    sl_train_options options = options_of_units(*state);
    options.model.nlayers = 8;
    options.recompute = SL_RECOMPUTE_NEVER;
    for (int stages = 1; stages <= 2; stages++)
        for (int kind = 0; kind < TEST_SCHEDULES; kind++) {
            options.pipeline_ranks = stages;
            options.schedule = test_schedules[kind];
            options.model.freeze = NULL;
            activations all = check_run(&options);
            options.model.freeze = "[0-4].*";
            activations half = check_run(&options);
            if (stages == 1 && half.taken > 6 * all.taken / 10)
                fail_msg("%s: activations take %d of %d bytes", options.schedule, (int)half.taken,
                         (int)all.taken);
        }
}

static void check_about_half(const char *what, const sl_train_options *options, int64_t half,
                             int64_t whole)
{
    if (half > 55 * whole / 100)
        fail_msg("%d stages, %s, %s: activations are %s as %d bytes in bf16, %d in f32",
                 options->pipeline_ranks, sl_recompute_name(options->recompute), options->schedule,
                 what, (int)half, (int)whole);
}

static void planned_bytes_in_bf16_are_those_of_a_run_and_about_half_of_f32s(void **state)
{
    sl_train_options options = options_of_units(*state);
    options.model.nlayers = 6;
    for (int stages = 1; stages <= 3; stages++)
        for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++)
            for (int kind = 0; kind < TEST_SCHEDULES; kind++) {
                options.pipeline_ranks = stages;
                options.recompute = (sl_recompute)mode;
                options.schedule = test_schedules[kind];
                options.model.tie = kind == 1;
                options.precision = SL_PRECISION_F32;
                activations whole = check_run(&options);
                options.precision = SL_PRECISION_BF16;
                activations half = check_run(&options);
                check_about_half("planned", &options, half.planned, whole.planned);
                if (stages == 1)
                    check_about_half("taken", &options, half.taken, whole.taken);
            }
}

static void planned_bytes_of_replicas_are_those_that_a_run_takes(void **state)
{
    sl_train_options options = options_of_units(*state);
    options.pipeline_ranks = 2;
    options.optimizer.kind = SL_OPTIMIZER_ADAMW;
    options.zero = true;
    for (options.replicas = 2; options.replicas <= 4; options.replicas++)
        check_run(&options);
    options = options_of_units(*state);
    options.pipeline_ranks = options.replicas = 2;
    options.shards = 3;
    options.batch_size /= 2;
    options.chunks /= 2;
    check_run(&options);
    options.accumulate = options.chunks / 2;
    options.chunks = 2;
    check_run(&options);
    options.replicas = 1;
    options.zero = false;
    for (options.shards = 1; options.shards <= 5; options.shards++)
        check_run(&options);
}

/* What is refused has its numbers, and what is said to fit does. */
static void runs_that_do_not_fit_are_refused_with_what_would(void **state)
{
    enum { WIKITEXT2 = 28782 };
    const uint64_t gib = UINT64_C(1) << 30;
    sl_train_options options = {0};
    SCOPED(sl_module) *model = NULL;
    check_ok(sl_train_options_preset("ddp-pipeline", &options));
    options.model.ntokens = WIKITEXT2;
    check_ok(sl_transformer_lm_create(&options.model, &model));
    check_ok(sl_plan_check_memory(&options, NULL, model, 24 * gib));
    check_error(sl_plan_check_memory(&options, NULL, model, 20 * gib + gib / 4), SL_ERR_MEMORY,
                "the run needs 21.");
    static const char *const said[] = {" GiB of memory (parameters 7.91 GiB, gradients 7.76",
                                       "best parameters 3.88 GiB",
                                       "), but this host has 20.25 GiB. It fits with one of: ",
                                       ": activations recomputed always",
                                       ", the schedule 1f1b",
                                       ", a batch size of 5,",
                                       ", 1 replica,",
                                       ", one epoch, which keeps no copy",
                                       ". force starts it anyway"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        if (!strstr(sl_error_text(), said[i]))
            fail_msg("\"%s\" is not in: %s", said[i], sl_error_text());
    assert_null(strstr(sl_error_text(), "chunks"));
    /* As processes each keeps a copy of the best. */
    const sl_train_launch processes = {.ranks = 2};
    check_error(sl_plan_check_memory(&options, &processes, model, 24 * gib), SL_ERR_MEMORY,
                "best parameters 7.76 GiB");
    assert_null(strstr(sl_error_text(), "1 replica"));
    options.checkpoints.directory = "anywhere";
    check_error(sl_plan_check_memory(&options, NULL, model, 24 * gib), SL_ERR_MEMORY,
                "copies for checkpoints 7.84 GiB");
    assert_non_null(strstr(sl_error_text(), ", no checkpoints,"));
    check_error(sl_plan_check_memory(&options, NULL, model, gib), SL_ERR_MEMORY,
                "1.00 GiB. Make the model or the batch smaller, or set force");
}

/* The first replica saves what is the same on all, so the second one's host keeps no copies. */
static void copies_for_checkpoints_are_the_first_replicas(void **state)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("ddp-pipeline", &options));
    options.model.ntokens = 100;
    options.checkpoints.directory = "anywhere";
    for (int rank = 0; rank < 2; rank++) {
        const sl_train_launch launch = {.ranks = 2, .rank = rank, .local_ranks = 1};
        sl_plan plan = plan_of_launch(&options, &launch);
        assert_int_equal(plan.host.saved_bytes > 0, rank == 0);
        assert_true(plan.host.parameter_bytes > 0);
    }
}

static void copies_of_tied_parameters_in_other_processes_are_planned_for(void **state)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("pipeline-tutorial", &options));
    options.model.ntokens = 1000;
    options.model.tie = true;
    options.pipeline_ranks = 2;
    options.replicas = 1;
    options.precision = SL_PRECISION_BF16;
    int64_t elements = 1000 * options.model.emsize;
    sl_plan here = plan_of_launch(&options, NULL),
            apart = plan_of_launch(&options, &(sl_train_launch){.ranks = 2});
    assert_int_equal(apart.stage[0].parameter_bytes, here.stage[0].parameter_bytes);
    assert_int_equal(apart.stage[1].parameter_bytes, here.stage[1].parameter_bytes + 6 * elements);
    assert_int_equal(apart.stage[0].gradient_bytes, here.stage[0].gradient_bytes + 4 * elements);
    assert_int_equal(apart.stage[1].gradient_bytes, here.stage[1].gradient_bytes);
}

/* A backward in halves leaves the gradient of all logits to the second, in their own place, and the
 * loss needs nothing besides. */
static void logits_of_a_backward_in_halves_are_planned_once(void **state)
{
    static const char *const schedules[] = {"gpipe", "zb-h1"};
    const sl_shape one_row = sl_shape_2d(35, 20000);
    sl_train_options options = {0};
    sl_plan plans[2];
    check_ok(sl_train_options_preset("pipeline-tutorial", &options));
    options.model.ntokens = 20000;
    options.model.emsize = options.model.nhid = 16;
    options.model.nhead = options.model.nlayers = 2;
    options.pipeline_ranks = 2;
    options.replicas = options.chunks = 1;
    options.recompute = SL_RECOMPUTE_NEVER;
    options.batch_size = 4;
    options.eval_batch_size = 1;
    options.bptt = 35;
    for (int i = 0; i < 2; i++) {
        options.schedule = schedules[i];
        plans[i] = plan_of_launch(&options, NULL);
    }
    int64_t row_bytes = sl_shape_count(&one_row) * 4;
    assert_int_equal(plans[0].stage[1].workspace_bytes, 4 * row_bytes);
    assert_true(plans[1].stage[1].workspace_bytes < row_bytes);
    assert_true(plans[1].stage[1].activation_bytes > 4 * row_bytes);
}

static void memory_of_cuda_devices_is_not_the_hosts(void **state)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("pipeline-tutorial", &options));
    options.model.ntokens = 1000;
    options.pipeline_ranks = 2;
    options.replicas = 1;
    options.devices = "cpu:0,cpu:1";
    sl_host_plan on_cpus = plan_of_launch(&options, NULL).host;
    options.devices = "cpu:0, cuda:0";
    sl_host_plan mixed = plan_of_launch(&options, NULL).host;
    options.devices = "cuda:0,cuda:1";
    sl_host_plan on_cards = plan_of_launch(&options, NULL).host;
    assert_true(mixed.parameter_bytes > 0 && mixed.parameter_bytes < on_cpus.parameter_bytes);
    assert_int_equal(on_cards.total_bytes, on_cards.process_bytes);
}

/* `fits` would fit this memory, were it not refused by sl_train_options_check. */
static void check_not_said(const sl_train_options *options, const sl_train_options *fits,
                           int64_t bytes, const char *refused)
{
    const uint64_t slack = 1 << 24; /* the program grows */
    SCOPED(sl_module) *model = NULL;
    check_ok(sl_train_options_check(options));
    assert_int_equal(sl_train_options_check(fits), SL_ERR_INVALID);
    check_ok(sl_transformer_lm_create(&options->model, &model));
    check_error(sl_plan_check_memory(options, NULL, model, (uint64_t)bytes + slack), SL_ERR_MEMORY,
                "the run needs");
    if (strstr(sl_error_text(), refused))
        fail_msg("\"%s\" is in: %s", refused, sl_error_text());
}

/* Of a run whose values are not checked. */
static int64_t unchecked_bytes(const sl_train_options *options)
{
    static const sl_train_launch alone;
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_plan) *plan = NULL;
    check_ok(sl_transformer_lm_create(&options->model, &model));
    check_ok(sli_plan_layout(&(sli_plan_inputs){.options = options, .launch = &alone}, &plan));
    check_ok(sli_plan_cut(plan, model, NULL));
    int64_t bytes = plan->host.total_bytes;
    return bytes;
}

static void options_that_are_refused_are_not_said_to_fit(void **state)
{
    sl_train_options options = {0}, fits;
    check_ok(sl_train_options_preset("ddp-pipeline", &options));
    options.model.ntokens = 100;
    fits = options;
    fits.replicas = 1;
    int64_t one = unchecked_bytes(&fits);
    options.zero = fits.zero = true; /* of two replicas' optimizers, not of one's */
    check_not_said(&options, &fits, one, "1 replica");
    options.zero = false;
    options.replicas = 1;
    options.batch_size = 16384;
    options.chunks = 4096; /* the most */
    fits = options;
    fits.chunks = 8192;
    check_not_said(&options, &fits, unchecked_bytes(&fits), "8192 chunks");
}

int plan_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_of_the_tutorials_models_are_theirs),
        cmocka_unit_test(replicas_differ_in_their_devices_and_shard_what_zero_shards),
        cmocka_unit_test(runs_that_do_not_fit_are_refused_with_what_would),
        cmocka_unit_test(copies_for_checkpoints_are_the_first_replicas),
        cmocka_unit_test(copies_of_tied_parameters_in_other_processes_are_planned_for),
        cmocka_unit_test(logits_of_a_backward_in_halves_are_planned_once),
        cmocka_unit_test(memory_of_cuda_devices_is_not_the_hosts),
        cmocka_unit_test(cached_blocks_are_planned_where_the_loss_is),
        cmocka_unit_test(options_that_are_refused_are_not_said_to_fit),
        cmocka_unit_test_setup_teardown(frozen_layers_take_no_activations, small_corpus_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(planned_bytes_of_replicas_are_those_that_a_run_takes,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(
            planned_bytes_in_bf16_are_those_of_a_run_and_about_half_of_f32s, small_corpus_create,
            scratch_remove),
        cmocka_unit_test_setup_teardown(planned_bytes_are_those_that_a_run_takes,
                                        small_corpus_create, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
