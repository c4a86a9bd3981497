#include "plans.h"

#include "train/plan/plan.h"

#include <stdlib.h>
#include <string.h>

static sl_train_options layout_of(int replicas, int stages, const char *devices)
{
    sl_train_options options;
    sl_train_options_default(&options);
    options.model.nlayers = 8;
    options.replicas = replicas;
    options.pipeline_ranks = stages;
    options.devices = devices;
    return options;
}

/* What is asked for, and what comes of it; 0 and NULL: not asked for. */
static const struct good {
    int replicas, local, stages;
    const char *devices;
    int expected_replicas, expected_stages;
    const char *expected;
} goods[] = {
    {0, 0, 0, NULL, 1, 1, "cpu:0"},
    {1, 0, 0, NULL, 1, 1, "cpu:0"},
    {3, 0, 0, NULL, 3, 1, "cpu:0,cpu:1,cpu:2"},
    {2, 0, 2, NULL, 2, 2, "cpu:0,cpu:1,cpu:2,cpu:3"},
    {0, 0, 0, "cpu:0,cpu:1", 1, 2, "cpu:0,cpu:1"},
    {2, 0, 0, "cpu:0,cpu:1", 2, 1, "cpu:0,cpu:1"},
    {2, 0, 2, "cpu:0-1,cpu:2-2,cpu:3-3,cpu:4-4", 2, 2, "cpu:0-1,cpu:2-2,cpu:3-3,cpu:4-4"},
    {0, 0, 0, "cpu:3,cpu:1;cpu:2,cpu:0", 2, 2, "cpu:3,cpu:1,cpu:2,cpu:0"},
    {3, 0, 1, "cpu:2;cpu:1;cpu:0", 3, 1, "cpu:2,cpu:1,cpu:0"},
    {8, 2, 2, NULL, 8, 2, "cpu:0,cpu:1,cpu:2,cpu:3"},
    {8, 2, 0, "cpu:0,cpu:1", 8, 1, "cpu:0,cpu:1"},
    {8, 2, 0, "cpu:0,cpu:1;cpu:2,cpu:3", 8, 2, "cpu:0,cpu:1,cpu:2,cpu:3"},
};

static void devices_go_to_replicas_and_stages(void **state)
{
    for (size_t i = 0; i < sizeof goods / sizeof *goods; i++) {
        const struct good *each = &goods[i];
        sl_train_options options = layout_of(each->replicas, each->stages, each->devices);
        const sl_train_launch launch = {.ranks = each->local ? each->replicas : 0,
                                        .local_ranks = each->local};
        SCOPED(sl_plan) *plan = NULL;
        check_ok(sl_plan_create(&options, &launch, NULL, NULL, &plan));
        assert_int_equal(plan->options.replicas, each->expected_replicas);
        assert_int_equal(plan->stages, each->expected_stages);
        assert_string_equal(plan->device_names, each->expected);
    }
}

static void balance_says_the_stages_of_each_replica(void **state)
{
    sl_train_options options = layout_of(2, 0, NULL);
    options.balance_kind = SL_BALANCE_EXPLICIT;
    options.balance_count = 2;
    options.balance[0] = options.balance[1] = 5;
    sl_plan *plan;
    check_ok(sl_plan_create(&options, NULL, NULL, NULL, &plan));
    assert_string_equal(plan->device_names, "cpu:0,cpu:1,cpu:2,cpu:3");
    sl_plan_destroy(&plan);
    options.devices = "cpu:0,cpu:1";
    check_error(sl_train_options_check(&options), SL_ERR_INVALID, "2 replicas, 2 ranks, devices");
}

/* Devices are the ranks', and balance has a number for each of their stages. */
static void several_stages_of_a_rank_have_one_device(void **state)
{
    sl_train_options options = layout_of(1, 0, "cpu:0,cpu:1");
    options.schedule = "interleaved";
    options.virtual_stages = 3;
    options.model.nlayers = 8;
    options.balance_kind = SL_BALANCE_EXPLICIT;
    options.balance_count = 6;
    const int balance[] = {2, 1, 2, 1, 2, 2};
    memcpy(options.balance, balance, sizeof balance);
    assert_int_equal(plan_numbers(&options, NULL).stages, 6);
    options.devices = NULL; /* the numbers say how many ranks there are */
    assert_int_equal(plan_numbers(&options, NULL).options.pipeline_ranks, 2);
    options.balance_count = 5;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "balance must give one number for each of 6 stages, got 5 numbers");
}

static void placement_that_is_not_the_tables_is_refused(void **state)
{
    sl_train_options options = layout_of(1, 0, NULL);
    SCOPED(sl_schedule) *table = NULL;
    check_ok(sl_schedule_write("zb-v", &(sl_schedule_options){.ranks = 2, .micros = 3}, &table));
    options.schedule = "a table";
    options.table = table;
    options.chunks = 3;
    options.placement = "v";
    check_ok(sl_train_options_check(&options));
    options.placement = "loop";
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "a table has stage 2 on rank 1, not 0");
    options.placement = NULL;
    options.chunks = 4;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "a table has 3 micro-batches, chunks is 4");
}

static const struct bad {
    int replicas, stages;
    const char *devices, *text;
} bads[] = {
    {-1, 0, NULL, "dp must be at least 1, got -1"},
    {1025, 0, NULL, "dp must be at most 1024, got 1025"},
    {2, 0, "cpu:0,cpu:1,cpu:2",
     "each pipeline rank of each replica needs a device of its own: 2 replicas, 1 rank, devices "
     "\"cpu:0,cpu:1,cpu:2\""},
    {2, 2, "cpu:0,cpu:1", "2 replicas, 2 ranks, devices \"cpu:0,cpu:1\""},
    {3, 0, "cpu:0", "3 replicas, 1 rank, devices \"cpu:0\""},
    {1, 2, "cpu:0",
     "each pipeline rank of each replica needs a device of its own: 1 replica, 2 ranks, devices "
     "\"cpu:0\""},
    {0, 2, "cpu:0,cpu:1;cpu:2",
     "list 2 of \"cpu:0,cpu:1;cpu:2\" has 1 device for 2 pipeline ranks: each needs one"},
    {0, 0, "cpu:0,cpu:1;cpu:2", "list 2 of \"cpu:0,cpu:1;cpu:2\" has 1 device for 2 "},
    {0, 1, "cpu:0,cpu:1;cpu:2", "has 2 devices for 1 pipeline rank: each"},
    {1, 0, "cpu:0;cpu:1", "each of 1 replica needs a list of devices, got 2 lists"},
    {3, 0, "cpu:0;cpu:1", "each of 3 replicas needs a list of devices, got 2 lists"},
    {2, 0, "cpu:0;", "list 2 of the devices is empty: \"cpu:0;\""},
    {2, 0, ";cpu:0", "list 1 of the devices is empty: \";cpu:0\""},
    {0, 0, "cpu:0;;cpu:1", "list 2 of the devices is empty"},
    {0, 0, ";", "list 1 of the devices is empty"},
    {1, 1, "foo",
     "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST; "
     "cuda:NUMBER or cuda:NUMBER/NUMBER, got \"foo\""},
    {2, 1, "cpu:0;cpu:0", "the device \"cpu:0\" is named twice"},
    {2, 1, "cpu:0,cpu:5", "of 2 in the list, the last is cpu:1, got \"cpu:5\""},
};

static void what_does_not_go_together_is_refused(void **state)
{
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        sl_train_options options = layout_of(bads[i].replicas, bads[i].stages, bads[i].devices);
        check_error(sl_train_options_check(&options), SL_ERR_INVALID, bads[i].text);
    }
    sl_train_options options = layout_of(2, 1, NULL);
    const sl_train_launch launch = {.ranks = 2, .local_ranks = 3};
    sl_plan *plan;
    check_error(sl_plan_create(&options, &launch, NULL, NULL, &plan), SL_ERR_INVALID,
                "local_ranks must be from 1 to 2, got 3");
    const sl_train_launch outside = {.ranks = 2, .local_ranks = 1, .local_rank = 1};
    check_error(sl_plan_create(&options, &outside, NULL, NULL, &plan), SL_ERR_INVALID,
                "a host's 1 ranks from -1 on are not among 2");
}

static void state_is_sharded_over_several_replicas_only(void **state)
{
    sl_train_options options = layout_of(1, 0, NULL);
    options.zero = true;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID, "there is only one");
    options.replicas = 2;
    check_ok(sl_train_options_check(&options));
}

static void each_replica_needs_a_shard(void **state)
{
    sl_train_options options = layout_of(3, 1, NULL);
    assert_int_equal(plan_numbers(&options, NULL).options.shards, 3);
    for (options.shards = 3; options.shards <= 5; options.shards++)
        check_ok(sl_train_options_check(&options));
    options.shards = 2;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID,
                "3 replicas are too many: the training text has 2 shards, and each replica needs "
                "one");
    options.shards = -1;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID, "shards");
    options.shards = SL_MAX_REPLICAS + 1;
    check_error(sl_train_options_check(&options), SL_ERR_INVALID, "shards");
}

static void chunks_are_four_for_each_rank_as_far_as_the_batch_allows(void **state)
{
    static const struct {
        int ranks, given;
        int64_t rows;
        int expected;
    } cases[] = {{1, 0, 20, 1}, {2, 0, 20, 8}, {3, 0, 20, 12}, {3, 0, 5, 5},
                 {2, 0, 1, 1},  {2, 1, 20, 1}, {2, 30, 20, 30}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_train_options options = layout_of(1, cases[i].ranks, NULL);
        options.chunks = cases[i].given;
        options.batch_size = cases[i].rows;
        assert_int_equal(plan_numbers(&options, NULL).options.chunks, cases[i].expected);
    }
    sl_train_options in_turns = layout_of(1, 2, NULL);
    in_turns.batch_size = 20;
    in_turns.accumulate = 3;
    in_turns.chunks = 0;
    assert_int_equal(plan_numbers(&in_turns, NULL).options.chunks, 6);
}

static void chunks_are_those_of_a_table(void **state)
{
    SCOPED(sl_schedule) *table = NULL;
    sl_train_options options = layout_of(1, 0, NULL);
    check_ok(sl_schedule_write(NULL, &(sl_schedule_options){.ranks = 2, .micros = 5}, &table));
    options.table = table;
    assert_int_equal(plan_numbers(&options, NULL).options.chunks, 5);
    options.chunks = 3;
    assert_int_equal(plan_numbers(&options, NULL).options.chunks, 3);
}

static void profile_gives_the_times_that_decide_and_their_balance(void **state)
{
    sl_train_options options = layout_of(1, 2, NULL);
    SCOPED(sl_module) *model = NULL;
    sl_module_profile times[4] = {0};
    sl_plan *plan;
    options.model =
        (sl_model_options){.ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = 2};
    options.batch_size = 8;
    options.balance_kind = SL_BALANCE_AUTO;
    check_ok(sl_transformer_lm_create(&options.model, &model));
    check_ok(sl_plan_create(&options, NULL, model, times, &plan));
    assert_int_equal(plan->by.balance, SL_BY_PROFILE);
    assert_true(plan->stage[0].count > 0 && plan->stage[1].count > 0);
    assert_int_equal(plan->stage[0].count + plan->stage[1].count, 4);
    for (int i = 0; i < 4; i++)
        assert_true(times[i].backward_input + times[i].backward_weight > 0);
    sl_plan_destroy(&plan);
    options.schedule = "zigzag"; /* not found: another thing than a cut that fits */
    check_error(sl_plan_create(&options, NULL, model, times, &plan), SL_ERR_NOT_FOUND, "zigzag");
}

/* The layout for so many processes, and the plan with it. */
static sl_status search(const sl_train_options *options, const sl_module *model, int processes,
                        int host_processes, uint64_t bytes, sl_plan *numbers)
{
    SCOPED(sl_plan) *plan = NULL;
    const sl_train_launch launch = {.ranks = processes};
    sli_plan_inputs inputs = {.options = options, .launch = &launch};
    SL_TRY(sli_plan_search(&inputs, model, host_processes, bytes));
    if (inputs.found.replicas == 0)
        return SL_ERR_NOT_FOUND;
    SL_TRY(sli_plan_layout(&inputs, &plan));
    *numbers = *plan;
    return SL_OK;
}

/* Of 2 replicas of 2 ranks, 3 ranks become one replica, of 3 ranks if the layers can be divided. */
static void fewer_processes_get_the_layout_with_the_shortest_step(void **state)
{
    static const struct {
        int replicas, ranks, layers, processes, expected_replicas, expected_ranks;
        const char *schedule;
    } cases[] = {
        {2, 2, 6, 3, 1, 3, NULL},   {2, 2, 2, 3, 1, 2, NULL},   {2, 2, 6, 2, 1, 2, NULL},
        {2, 2, 6, 1, 1, 1, NULL},   {1, 4, 6, 3, 1, 3, NULL},   {4, 1, 6, 3, 3, 1, NULL},
        {4, 1, 6, 1, 1, 1, NULL},   {4, 2, 4, 7, 2, 3, NULL},   {4, 2, 4, 4, 2, 2, "1f1b"},
        {2, 2, 8, 3, 1, 3, "zb-v"}, {2, 2, 5, 3, 1, 2, "zb-v"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_train_options options = layout_of(cases[i].replicas, cases[i].ranks, NULL);
        sl_module *model;
        options.model = (sl_model_options){
            .ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = cases[i].layers};
        options.batch_size = 16;
        options.schedule = cases[i].schedule;
        check_ok(sl_transformer_lm_create(&options.model, &model));
        sl_plan plan;
        check_ok(search(&options, model, cases[i].processes, 0, 0, &plan));
        sl_module_destroy(&model);
        if (plan.options.replicas != cases[i].expected_replicas ||
            plan.options.pipeline_ranks != cases[i].expected_ranks)
            fail_msg("case %zu: %d x %d", i, plan.options.replicas, plan.options.pipeline_ranks);
        assert_int_equal(plan.ranks, cases[i].expected_replicas * cases[i].expected_ranks);
        assert_int_equal(plan.by.replicas, SL_BY_SEARCH);
        /* What decides numbers is that of the layout that was asked for. */
        assert_int_equal(plan.options.shards, cases[i].replicas);
        assert_int_equal(plan.options.chunks, plan_numbers(&options, NULL).options.chunks);
    }
    sl_train_options options = layout_of(2, 2, "cpu:0,cpu:1,cpu:2,cpu:3");
    SCOPED(sl_module) *model = NULL;
    sl_plan plan;
    options.model.ntokens = 50;
    check_ok(sl_transformer_lm_create(&options.model, &model));
    assert_int_equal(search(&options, model, 3, 0, 0, &plan), SL_ERR_NOT_FOUND);
}

/* Bytes that one host needs for a layout whose ranks are all on it. */
static int64_t bytes_of_layout(sl_train_options options, sl_module *model, int replicas, int ranks)
{
    SCOPED(sl_plan) *plan = NULL;
    options.replicas = replicas;
    options.pipeline_ranks = ranks;
    check_ok(sl_plan_create(&options, &(sl_train_launch){.ranks = replicas * ranks}, model, NULL,
                            &plan));
    int64_t bytes = plan->host.total_bytes;
    return bytes;
}

/* Two replicas are faster than one, but one host may not have the memory for both. */
static void layout_that_does_not_fit_the_memory_is_not_chosen(void **state)
{
    sl_train_options options = layout_of(2, 1, NULL);
    SCOPED(sl_module) *model = NULL;
    options.model =
        (sl_model_options){.ntokens = 50, .emsize = 256, .nhid = 1024, .nhead = 2, .nlayers = 6};
    options.batch_size = 16;
    options.shards = 2;
    check_ok(sl_transformer_lm_create(&options.model, &model));
    int64_t one = bytes_of_layout(options, model, 1, 1),
            two = bytes_of_layout(options, model, 2, 1);
    int64_t slack = one / 10; /* a process's own memory is not the same every time */
    uint64_t both = (uint64_t)(two + slack), half = (uint64_t)(one / 2);
    sl_plan plan;
    check_ok(search(&options, model, 2, 0, both, &plan));
    assert_int_equal(plan.options.replicas, 2);
    check_ok(search(&options, model, 2, 0, (uint64_t)(one + slack), &plan));
    assert_int_equal(plan.options.replicas, 1);
    check_ok(search(&options, model, 2, 1, (uint64_t)(one + slack), &plan)); /* on two hosts */
    assert_int_equal(plan.options.replicas, 2);
    check_error(
        search(&options, model, 2, 1, half, &plan), SL_ERR_MEMORY,
        "no layout of at most 2 processes fits the memory: the smallest has 2 replicas of 1 "
        "pipeline rank and needs");
    check_error(search(&options, model, 2, 1, 3 << 19, &plan), SL_ERR_MEMORY,
                "MiB of a host that has 1.50 MiB: ");
    options.force = true;
    check_ok(search(&options, model, 2, 1, 3 << 19, &plan));
}

/* One replica less has as many stages; one process less than it needs has not. */
static void balance_and_placement_hold_for_their_number_of_stages(void **state)
{
    sl_train_options asked = layout_of(2, 2, NULL);
    SCOPED(sl_module) *model = NULL;
    asked.model =
        (sl_model_options){.ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = 6};
    asked.batch_size = 16;
    asked.virtual_stages = 2;
    asked.schedule = "interleaved";
    asked.placement = "0,1,0,1";
    asked.balance_kind = SL_BALANCE_EXPLICIT;
    asked.balance_count = 4;
    for (int s = 0; s < 4; s++)
        asked.balance[s] = 2;
    check_ok(sl_transformer_lm_create(&asked.model, &model));
    for (int processes = 1; processes <= 3; processes++) {
        sl_plan plan;
        check_ok(search(&asked, model, processes, 0, 0, &plan));
        bool keeps = processes > 1;
        assert_int_equal(plan.options.replicas, 1);
        assert_int_equal(plan.options.pipeline_ranks, keeps ? 2 : 1);
        assert_int_equal(plan.options.balance_kind, keeps ? SL_BALANCE_EXPLICIT : SL_BALANCE_AUTO);
        assert_int_equal(plan.options.placement != NULL, keeps);
    }
}

int layout_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_go_to_replicas_and_stages),
        cmocka_unit_test(balance_says_the_stages_of_each_replica),
        cmocka_unit_test(several_stages_of_a_rank_have_one_device),
        cmocka_unit_test(placement_that_is_not_the_tables_is_refused),
        cmocka_unit_test(what_does_not_go_together_is_refused),
        cmocka_unit_test(state_is_sharded_over_several_replicas_only),
        cmocka_unit_test(each_replica_needs_a_shard),
        cmocka_unit_test(chunks_are_four_for_each_rank_as_far_as_the_batch_allows),
        cmocka_unit_test(chunks_are_those_of_a_table),
        cmocka_unit_test(fewer_processes_get_the_layout_with_the_shortest_step),
        cmocka_unit_test(layout_that_does_not_fit_the_memory_is_not_chosen),
        cmocka_unit_test(balance_and_placement_hold_for_their_number_of_stages),
        cmocka_unit_test(profile_gives_the_times_that_decide_and_their_balance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
