/* What would help a plan, on machines that are made by hand. */
#include "made_machine.h"

#include <math.h>

/* What helps most; plans[0] is the best one without it. */
static sl_plan_help find_help(const sli_machine *machine, const sl_train_options *run,
                              unsigned kept, sl_found_plan *plans, sl_plan_helps *helps)
{
    const sl_plan_search_options options = {.run = run, .kept = kept};
    int count, most = 0;
    check_ok(sli_plan_search_machine(&options, run, machine, plans, &count));
    check_ok(sli_plan_help_machine(&options, run, machine, &plans[0], helps));
    assert_false(helps->is_lower_bound);
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
    made_machine made = {.seconds_of_row = {6, 0, 0, 0, 0, 0}};
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

/* A balance that is given is one of as many stages as the run has. */
static void one_stage_helps_where_the_balance_is_given(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {6, 0, 0, 0, 0, 0}};
    sl_found_plan plans[SL_PLANS_FOUND];
    sl_plan_helps helps;
    sli_machine machine = machine_of(&made);
    machine.sharing = SLI_SHARING_NEVER;
    run.replicas = 1;
    run.pipeline_ranks = 2;
    run.balance_kind = SL_BALANCE_EXPLICIT;
    run.balance_count = 2;
    run.balance[0] = MODULES - 1;
    run.balance[1] = 1;
    find_help(&machine, &run, SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_BALANCE, plans,
              &helps);
    assert_int_equal(plans[0].options.balance[0], MODULES - 1);
    assert_float_equal(helps.gain[SL_HELP_FEWER], 1.6, 1e-9);
}

/* The ranks of a run of several processes, which has measured itself. */
static void ranks_that_occupy_processes_are_not_fewer(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {6, 0, 0, 0, 0, 0}};
    sl_found_plan plans[SL_PLANS_FOUND];
    sl_plan_helps helps;
    int count;
    sli_machine machine = machine_of(&made);
    const sl_run_measures measures = {.step_seconds = 1};
    const sl_plan_search_options options = {.run = &run,
                                            .measures = &measures,
                                            .kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS};
    machine.sharing = SLI_SHARING_NEVER;
    run.replicas = 1;
    run.pipeline_ranks = 2;
    check_ok(sli_plan_search_machine(&options, &run, &machine, plans, &count));
    check_ok(sli_plan_help_machine(&options, &run, &machine, &plans[0], &helps));
    assert_float_equal(helps.gain[SL_HELP_FEWER], 0, 0);
    assert_float_equal(helps.gain[SL_HELP_LINKS], 1, 1e-12);
}

static void error_of_a_search_for_help_is_passed_on(void **state)
{
    sl_train_options run = options_of_model();
    made_machine made = {.seconds_of_row = {1, 1, 1, 1, 1, 1}};
    sl_found_plan plans[SL_PLANS_FOUND];
    sl_plan_helps helps;
    int count;
    sli_machine machine = machine_of(&made);
    const sl_plan_search_options options = {.run = &run};
    check_ok(sli_plan_search_machine(&options, &run, &machine, plans, &count));
    made.refusal = SL_ERR_MEMORY;
    check_error(sli_plan_help_machine(&options, &run, &machine, &plans[0], &helps), SL_ERR_MEMORY,
                "nothing is timed");
}

static void seconds_of_a_profile_are_finite_and_not_negative(void **state)
{
    static const double bad[] = {-1, NAN, INFINITY};
    sl_train_options run = options_of_model();
    sl_found_plan plans[SL_PLANS_FOUND];
    int count;
    char *text;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const sl_plan_search_options options = {.run = &run, .profile_seconds = bad[i]};
        check_error(sl_plan_search(&options, plans, &count, NULL), SL_ERR_INVALID,
                    "the seconds of a profile must be 0 or more, and finite");
        check_error(sl_profile_machine(&run, 0, bad[i], &text), SL_ERR_INVALID,
                    "the seconds of a profile must be 0 or more, and finite");
    }
}

int find_plans_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_help_an_exchange),
        cmocka_unit_test(memory_helps_where_the_fastest_layout_does_not_fit),
        cmocka_unit_test(one_stage_helps_a_pipeline_of_one_heavy_module),
        cmocka_unit_test(one_stage_helps_where_the_balance_is_given),
        cmocka_unit_test(ranks_that_occupy_processes_are_not_fewer),
        cmocka_unit_test(error_of_a_search_for_help_is_passed_on),
        cmocka_unit_test(seconds_of_a_profile_are_finite_and_not_negative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
