/* What would help a plan, on machines that are made by hand. */
#include "made_machine.h"

/* What helps most; plans[0] is the best one without it. */
static sl_plan_help find_help(const sli_machine *machine, const sl_train_options *run,
                              unsigned kept, sl_found_plan *plans, sl_plan_helps *helps)
{
    const sl_plan_search_options options = {.run = run, .kept = kept};
    int count, most = 0;
    check_ok(sli_plan_search_machine(&options, run, machine, plans, &count));
    check_ok(sli_plan_help_machine(&options, run, machine, &plans[0], helps));
    assert_false(helps->is_of_shape);
    for (int i = 1; i < SL_PLAN_HELPS; i++)
        most = helps->gain[i] > helps->gain[most] ? i : most;
    return (sl_plan_help)most;
}

/* A replica's 8 rows of 18 units, and an exchange of 144: half of that is to be had. One stage has
 * none to lose. */
static void links_help_an_exchange(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}, .reduce_per_byte = 1};
    sl_found_plan plans[SL_PLANS_FOUND];
    sl_plan_helps helps;
    sli_machine machine = machine_of(&made);
    run.replicas = 2;
    run.pipeline_ranks = 1;
    const unsigned kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS;
    find_help(&machine, &run, kept, plans, &helps);
    made.reduce_per_byte = 144 / plans[0].costs.exchange;
    assert_int_equal(find_help(&machine, &run, kept, plans, &helps), SL_HELP_LINKS);
    assert_float_equal(plans[0].costs.exchange, 144, 1e-9);
    assert_float_equal(helps.gain[SL_HELP_LINKS], 288.0 / 216, 1e-9);
    assert_float_equal(helps.gain[SL_HELP_MEMORY], 1, 1e-12);
    assert_float_equal(helps.gain[SL_HELP_FEWER], 0, 0);
}

/* A byte too little for two stages that recompute nothing, and that are as long as each other. */
static void memory_helps_where_the_fastest_layout_does_not_fit(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}};
    sl_found_plan plans[SL_PLANS_FOUND];
    sl_plan_helps helps;
    sli_machine machine = machine_of(&made);
    const unsigned kept =
        SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_SCHEDULE | SL_KEEP_CHUNKS;
    run.replicas = 1;
    run.pipeline_ranks = 2;
    run.schedule = "gpipe";
    run.chunks = 4;
    machine.sharing = SLI_SHARING_NEVER;
    find_help(&machine, &run, kept, plans, &helps);
    double seconds = plans[0].costs.seconds;
    assert_int_equal(plans[0].options.recompute, SL_RECOMPUTE_NEVER);
    machine.host_bytes = (uint64_t)plans[0].memory_bytes - 1;
    assert_int_equal(find_help(&machine, &run, kept, plans, &helps), SL_HELP_MEMORY);
    assert_true(plans[0].costs.seconds > seconds);
    assert_float_equal(helps.gain[SL_HELP_MEMORY], plans[0].costs.seconds / seconds, 1e-12);
    assert_float_equal(helps.gain[SL_HELP_LINKS], 1, 1e-12);
}

/* All work is one module's: a second stage has none, and a core that the first one lacks. */
static void one_stage_helps_a_pipeline_of_one_heavy_module(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {0, 0, 0, 0, 0, 6}};
    sl_found_plan plans[SL_PLANS_FOUND];
    sl_plan_helps helps;
    sli_machine machine = machine_of(&made);
    machine.sharing = SLI_SHARING_NEVER;
    run.replicas = 1;
    run.pipeline_ranks = 2;
    assert_int_equal(find_help(&machine, &run, SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS, plans,
                               &helps),
                     SL_HELP_FEWER);
    assert_float_equal(helps.gain[SL_HELP_FEWER], 1.6, 1e-9);
}

int find_plans_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_help_an_exchange),
        cmocka_unit_test(memory_helps_where_the_fastest_layout_does_not_fit),
        cmocka_unit_test(one_stage_helps_a_pipeline_of_one_heavy_module),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
