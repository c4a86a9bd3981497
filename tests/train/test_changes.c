/* What to change in runs whose times are made by hand. */
#include "sluice/app/plan.h"

#include "support/check.h"

#include <string.h>

enum { LAYERS = 4, ROWS = 16, STAGES = 2 };

/* Two stages of four micro-batches: all layers, a second each, and the decoder, as long. */
static sl_train_options unbalanced_run(void)
{
    sl_train_options options;
    sl_train_options_default(&options);
    options.model = (sl_model_options){
        .ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = LAYERS, .context = 8};
    options.bptt = 8;
    options.batch_size = options.eval_batch_size = ROWS;
    options.replicas = options.shards = 1;
    options.pipeline_ranks = STAGES;
    options.chunks = 4;
    options.schedule = "gpipe";
    options.recompute = SL_RECOMPUTE_NEVER;
    options.balance_kind = SL_BALANCE_EXPLICIT;
    options.balance_count = STAGES;
    options.balance[0] = 1 + LAYERS;
    options.balance[1] = 1;
    return options;
}

static const double forward[STAGES] = {LAYERS, 1}, backward[STAGES] = {2 * LAYERS, 2};

static sl_run_measures measures_of(double one_stage)
{
    return (sl_run_measures){.step_seconds = 52,
                             .update_seconds = 1,
                             .forward = forward,
                             .backward = backward,
                             .one_stage = one_stage};
}

static sl_found_plan own, changes[SL_PLAN_CHANGES];

static int find(const sl_train_options *run, sl_run_measures measures)
{
    int count;
    check_ok(sl_plan_find_changes(run, &measures, &own, changes, &count));
    for (int i = 0; i < count; i++) {
        assert_true(changes[i].costs.seconds < own.costs.seconds);
        assert_true(i == 0 || changes[i].costs.seconds >= changes[i - 1].costs.seconds);
    }
    return count;
}

static const sl_found_plan *with_ranks(int count, int ranks, const char *schedule, int chunks)
{
    for (int i = 0; i < count; i++)
        if (changes[i].options.pipeline_ranks == ranks && changes[i].options.chunks == chunks &&
            strcmp(changes[i].options.schedule, schedule) == 0)
            return &changes[i];
    return NULL;
}

/* The first stage goes forward until 16, the second one ends its first backward at 19, and the
 * first its last at 51. With three layers in the first stage that is 12 + 2 + 4 + 24. Both cores in
 * one stage work half as long as one for all. */
static void unbalanced_run_is_told_its_cut(void **state)
{
    sl_train_options run = unbalanced_run();
    int count = find(&run, measures_of(0));
    assert_float_equal(own.costs.pipeline, 51, 1e-9);
    assert_float_equal(own.costs.update, 1, 1e-9);
    assert_float_equal(own.costs.bubble, 1 - (48.0 + 12) / 2 / 51, 1e-9);
    assert_float_equal(own.costs.imbalance, (48.0 - 12) / 2 / 51, 1e-9);
    assert_float_equal(own.costs.recompute, 0, 0);
    const sl_found_plan *cut = with_ranks(count, 2, "gpipe", 4);
    assert_non_null(cut);
    assert_float_equal(cut->costs.pipeline, 42, 1e-9);
    const sl_found_plan *one = with_ranks(count, 1, "gpipe", 4);
    assert_non_null(one);
    assert_float_equal(one->costs.pipeline, 30, 1e-9);
    assert_int_equal(one->options.balance[0], 2 + LAYERS);
    assert_ptr_equal(one, &changes[0]);
    for (int i = 0; i < count; i++) {
        assert_int_equal(changes[i].options.shards, 1);
        assert_int_equal(changes[i].options.batch_size, ROWS);
    }
}

/* The profile that has chosen the devices knows better than their cores. */
static void one_stage_is_what_the_profile_has_said(void **state)
{
    sl_train_options run = unbalanced_run();
    int count = find(&run, measures_of(0.9));
    const sl_found_plan *one = with_ranks(count, 1, "gpipe", 4);
    assert_non_null(one);
    assert_float_equal(one->costs.pipeline, 0.9 * 51, 1e-9);
    count = find(&run, measures_of(1.1));
    assert_null(with_ranks(count, 1, "gpipe", 4));
}

/* Also where several ranks share the cores, so that the run is as long as its work. */
static void one_stage_on_shared_cores_is_what_the_profile_has_said(void **state)
{
    sl_train_options run = unbalanced_run();
    sl_run_measures measures = measures_of(0.9);
    measures.shares_cores = true;
    int count = find(&run, measures);
    assert_float_equal(own.costs.pipeline, 51, 1e-9);
    const sl_found_plan *one = with_ranks(count, 1, "gpipe", 4);
    assert_non_null(one);
    assert_float_equal(one->costs.pipeline, 0.9 * 51, 1e-9);
}

/* The encoder and two layers are frozen. All of a stage's backward is that of its trained modules:
 * the first stage goes forward until 16, the second one backward from 18 to 34, and the first ends
 * at 36, of which each works for 24. */
static void frozen_modules_have_no_backward(void **state)
{
    static const double first[STAGES] = {4, 2}, then[STAGES] = {2, 4};
    sl_train_options run = unbalanced_run();
    run.model.train_layers = 2;
    run.balance[0] = LAYERS;
    run.balance[1] = 2;
    find(&run, (sl_run_measures){.step_seconds = 36, .forward = first, .backward = then});
    assert_float_equal(own.costs.pipeline, 36, 1e-9);
    assert_float_equal(own.costs.bubble, 1 - 24.0 / 36, 1e-9);
    assert_float_equal(own.backward[0], 2, 1e-9);
    assert_float_equal(own.forward[0], 4, 1e-9);
}

/* Two replicas of one stage, in which the encoder and two layers are frozen: as two stages of one
 * replica the last two layers and the decoder go backward. The backward of what is trained has
 * twice the operations of its forward, and nothing else has any. */
static void frozen_modules_of_one_stage_have_no_backward(void **state)
{
    static sl_found_plan plans[SL_PLANS_FOUND];
    sl_train_options run = unbalanced_run();
    const sl_run_measures measures = {.step_seconds = 10};
    int count, pipelines = 0;
    run.model.train_layers = 2;
    run.replicas = run.shards = 2;
    run.pipeline_ranks = run.balance_count = 1;
    run.balance[0] = LAYERS + 2;
    check_ok(sl_plan_search(&(sl_plan_search_options){.run = &run, .measures = &measures}, plans,
                            &count, NULL));
    for (int i = 0; i < count; i++) {
        const sl_found_plan *plan = &plans[i];
        double ahead = 0, back = 0;
        for (int s = 0; s < plan->options.balance_count; s++) {
            ahead += plan->forward[s];
            back += plan->backward[s];
        }
        assert_true(back < 2 * ahead * 0.75);
        pipelines += plan->options.pipeline_ranks == 2;
    }
    assert_true(pipelines > 0);
}

/* One stage has no bubble, whatever its micro-batches. */
static void good_run_is_told_nothing(void **state)
{
    sl_train_options run = unbalanced_run();
    run.pipeline_ranks = run.balance_count = 1;
    run.balance[0] = 2 + LAYERS;
    assert_int_equal(find(&run, (sl_run_measures){.step_seconds = 31, .update_seconds = 1}), 0);
    assert_float_equal(own.costs.pipeline, 30, 1e-9);
    run.recompute =
        SL_RECOMPUTE_ALWAYS; /* costs nothing: the last stage's first forward is left out */
    assert_int_equal(find(&run, (sl_run_measures){.step_seconds = 31, .update_seconds = 1}), 0);
    assert_float_equal(own.costs.pipeline, 30, 1e-9);
}

/* Its stages' times are without the last layer. */
static void run_with_a_split_vocabulary_is_not_planned_by_its_times(void **state)
{
    sl_train_options run = unbalanced_run();
    const sl_run_measures measures = measures_of(0);
    int count;
    run.split_vocabulary = true;
    check_error(sl_plan_find_changes(&run, &measures, &own, changes, &count), SL_ERR_UNSUPPORTED,
                "split_vocabulary cannot be planned by what it measured");
}

/* The times of a micro-batch are those of its slices together. The first stage goes forward until
 * 16, the second one half a second longer, and from there on backward in halves: 16.5 + 1 + 32. */
static void slices_are_kept(void **state)
{
    sl_train_options run = unbalanced_run();
    sl_run_measures measures = measures_of(0);
    run.slices = 2;
    measures.step_seconds = 50.5;
    find(&run, measures);
    assert_float_equal(own.costs.pipeline, 49.5, 1e-9);
    assert_float_equal(own.forward[0], 4, 1e-9);
    assert_int_equal(own.options.slices, 2);
}

/* A placement that was given has its number of stages; one rank has all of them. */
static void placement_is_kept_but_for_one_rank(void **state)
{
    static const double each[2 * STAGES] = {3, 1, 1, 1}, twice[2 * STAGES] = {6, 2, 2, 2};
    sl_train_options run = unbalanced_run();
    run.schedule = "looped-bfs";
    run.virtual_stages = 2;
    run.placement = "v";
    run.balance_count = 2 * STAGES;
    memcpy(run.balance, (int[]){3, 1, 1, 1}, 2 * STAGES * sizeof *run.balance);
    const sl_run_measures measures = {.step_seconds = 80, .forward = each, .backward = twice};
    int count = find(&run, measures), alone = 0;
    for (int i = 0; i < count; i++) {
        bool is_alone = changes[i].options.pipeline_ranks == 1;
        alone += is_alone;
        assert_string_equal(changes[i].options.placement, is_alone ? "loop" : "v");
        assert_int_equal(changes[i].options.virtual_stages, is_alone ? 0 : 2);
    }
    assert_int_equal(alone, 1);
}

/* Plans by measures have no more replicas than the run, and its shards. */
static void search_by_measures_keeps_what_was_not_measured(void **state)
{
    static sl_found_plan plans[SL_PLANS_FOUND];
    sl_train_options run = unbalanced_run();
    const sl_run_measures measures = measures_of(0);
    int count;
    check_ok(sl_plan_search(&(sl_plan_search_options){.run = &run, .measures = &measures}, plans,
                            &count, NULL));
    assert_int_equal(count, SL_PLANS_FOUND);
    assert_int_equal(plans[0].options.pipeline_ranks, 1);
    for (int i = 0; i < count; i++)
        assert_int_equal(plans[i].options.replicas, 1);
}

/* Of two processes, each of which has half of the pipeline. The last forward is a second on its
 * way, and so is the first gradient: 16 + 1 + 1 + 2 + 1 + 32. What is cut anew has the same links,
 * and 16 micro-batches of a row have not shorter ones. */
static void processes_have_the_links_that_were_measured(void **state)
{
    static const double second = 1;
    sl_train_options run = unbalanced_run();
    sl_run_measures measures = measures_of(0);
    measures.step_seconds = 54;
    measures.links = &second;
    measures.processes = 2;
    int count = find(&run, measures);
    assert_float_equal(own.costs.pipeline, 53, 1e-9);
    assert_float_equal(own.links[0], 1, 1e-9);
    const sl_found_plan *cut = with_ranks(count, 2, "gpipe", 4);
    assert_non_null(cut);
    assert_float_equal(cut->costs.pipeline, 44, 1e-9);
    const sl_found_plan *chunks = with_ranks(count, 2, "gpipe", 16);
    assert_non_null(chunks);
    assert_float_equal(chunks->costs.pipeline, 50.75, 1e-9);
    for (int i = 0; i < count; i++) {
        assert_int_equal(changes[i].options.pipeline_ranks, 2);
        assert_null(changes[i].options.devices);
    }
    measures.processes = 1; /* threads need no link */
    find(&run, measures);
    assert_float_equal(own.links[0], 0, 0);
}

/* Each host has its processes, and a GPU its part of the model alone. */
static void memory_is_that_of_one_host_or_gpu(void **state)
{
    static sl_found_plan plans[SL_PLANS_FOUND];
    const int64_t process = (int64_t)1 << 30;
    sl_train_options run = unbalanced_run();
    sl_run_measures measures = measures_of(0);
    const sl_plan_search_options search = {.run = &run, .measures = &measures};
    int count;
    measures.processes = 2;
    measures.process_bytes = process;
    find(&run, measures);
    assert_true(own.memory_bytes > 2 * process && own.memory_bytes < 3 * process);
    measures.host_processes = 1;
    find(&run, measures);
    assert_true(own.memory_bytes > process && own.memory_bytes < 2 * process);
    measures.has_own_memory = true;
    measures.memory_bytes = 1 << 20;
    check_ok(sl_plan_search(&search, plans, &count, NULL));
    assert_true(plans[0].memory_bytes > 0 && plans[0].memory_bytes <= 1 << 20);
    for (int i = 0; i < count; i++)
        assert_int_equal(plans[i].options.pipeline_ranks, STAGES);
    measures.memory_bytes = 1 << 10;
    check_error(sl_plan_search(&search, plans, &count, NULL), SL_ERR_MEMORY,
                "of a device that has 1.00 KiB");
}

/* What activations took besides what is planned scales what is planned. */
static void memory_is_what_the_run_has_measured(void **state)
{
    sl_train_options run = unbalanced_run();
    sl_run_measures measures = measures_of(0);
    find(&run, measures);
    int64_t planned = own.memory_bytes;
    measures.activation_bytes = (int64_t)1 << 30;
    find(&run, measures);
    assert_true(own.memory_bytes > planned + ((int64_t)1 << 29));
    assert_true(own.memory_bytes < planned + ((int64_t)5 << 28));
}

static void what_cannot_be_planned_is_refused(void **state)
{
    static const sl_train_task task;
    int count;
    sl_train_options run = unbalanced_run();
    sl_run_measures measures = measures_of(0);
    run.replicas = run.shards = 2;
    measures.shares_cores = true;
    check_error(sl_plan_find_changes(&run, &measures, &own, changes, &count), SL_ERR_UNSUPPORTED,
                "2 replicas whose pipeline ranks share cores");
    measures.shares_cores = false;
    run = unbalanced_run();
    measures.forward = measures.backward = (const double[STAGES]){0};
    check_error(sl_plan_find_changes(&run, &measures, &own, changes, &count), SL_ERR_INVALID,
                "the stages' times are all 0");
    measures.forward = forward;
    measures.backward = backward;
    run.task = &task;
    check_error(sl_plan_find_changes(&run, &measures, &own, changes, &count), SL_ERR_UNSUPPORTED,
                "language models");
    run = unbalanced_run();
    run.balance_kind = SL_BALANCE_AUTO;
    check_error(sl_plan_find_changes(&run, &measures, &own, changes, &count), SL_ERR_INVALID,
                "balance must be numbers");
    run = unbalanced_run();
    measures.update_seconds = 60;
    check_error(sl_plan_find_changes(&run, &measures, &own, changes, &count), SL_ERR_INVALID,
                "longer than its exchange and its update");
    check_error(sl_plan_find_changes(&run, NULL, &own, changes, &count), SL_ERR_INVALID,
                "measures is NULL");
}

int changes_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unbalanced_run_is_told_its_cut),
        cmocka_unit_test(one_stage_is_what_the_profile_has_said),
        cmocka_unit_test(one_stage_on_shared_cores_is_what_the_profile_has_said),
        cmocka_unit_test(frozen_modules_have_no_backward),
        cmocka_unit_test(frozen_modules_of_one_stage_have_no_backward),
        cmocka_unit_test(good_run_is_told_nothing),
        cmocka_unit_test(run_with_a_split_vocabulary_is_not_planned_by_its_times),
        cmocka_unit_test(slices_are_kept),
        cmocka_unit_test(placement_is_kept_but_for_one_rank),
        cmocka_unit_test(search_by_measures_keeps_what_was_not_measured),
        cmocka_unit_test(processes_have_the_links_that_were_measured),
        cmocka_unit_test(memory_is_that_of_one_host_or_gpu),
        cmocka_unit_test(memory_is_what_the_run_has_measured),
        cmocka_unit_test(what_cannot_be_planned_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
