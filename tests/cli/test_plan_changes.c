/* The line at a run's end, of a run whose times are made by hand. */
#include "cli/cli.h"

#include "support/program.h"

#include <stdio.h>
#include <stdlib.h>

static char printed[1024];

/* What src/cli/plan_changes.c has of the rest of the program. */
void cli_screen_print(cli_screen *screen, int rank, const char *format, va_list arguments)
{
    vsnprintf(printed, sizeof printed, format, arguments);
}

void *cli_allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    assert_non_null(memory);
    return memory;
}

enum { STAGES = 2, STEPS = 5, UPDATE = 1 };

/* Nothing but --pp 2 is given, and a profile has let the ranks share all cores: a step takes the
 * time of all work, and in one stage `one_stage` of it. */
static const char *end_of_run(double one_stage)
{
    static double forward[STAGES] = {1, 1}, backward[STAGES] = {2, 2};
    static int cores[STAGES] = {0, 0};
    const sl_stage_info stages[STAGES] = {{.count = 3}, {.first = 3, .count = 3, .rank = 1}};
    const sl_rank_stats ranks[STAGES] = {{.device = "cpu"}, {.device = "cpu"}};
    sl_train_options run;
    sl_train_options_default(&run);
    run.model = (sl_model_options){
        .ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = 4, .context = 8};
    run.bptt = 8;
    run.batch_size = run.eval_batch_size = 16;
    run.replicas = run.shards = 1;
    run.pipeline_ranks = STAGES;
    run.chunks = 4;
    run.schedule = "gpipe";
    run.recompute = SL_RECOMPUTE_NEVER;
    const sl_run_info info = {.options = &run,
                              .processes = 1,
                              .one_stage = one_stage,
                              .stages = stages,
                              .stage_count = STAGES,
                              .ranks = ranks,
                              .rank_count = STAGES};
    sl_utilization utilization = {.ranks = STAGES,
                                  .stages = STAGES,
                                  .forward = forward,
                                  .backward = backward,
                                  .cores = cores};
    cli_run_meter meter = {0};
    const sl_reporter reporter = cli_run_meter_reporter(&meter);
    double work = run.chunks * STAGES * (forward[0] + backward[0]);
    for (int i = 0; i < STEPS; i++)
        check_ok(reporter.step(&meter, &(sl_step_info){.seconds = work + UPDATE,
                                                       .optimizer_seconds = UPDATE}));
    check_ok(reporter.pipeline(&meter, &(sl_pipeline_info){.ends_epoch = true,
                                                           .utilization = &utilization}));
    *printed = '\0';
    check_ok(reporter.finished(&meter, &info, NULL));
    return printed;
}

static void two_ranks_on_shared_cores_are_told_that_one_is_faster(void **state)
{
    assert_string_equal(end_of_run(2.0 / 3),
                        "By what this run measured, a step of 25000.0 ms would take 17000.0 ms "
                        "with --pp 1 --chunks 4 instead of --pp 2 (1.47 times as fast)");
}

static void gain_is_told_where_it_is_more_than_a_tenth(void **state)
{
    check_text(end_of_run(0.905), "(1.10 times as fast)"); /* 25 / 22.72 */
    assert_string_equal(end_of_run(0.906), "");            /* 25 / 22.744 */
    assert_string_equal(end_of_run(1.1), "");
}

int plan_changes_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_on_shared_cores_are_told_that_one_is_faster),
        cmocka_unit_test(gain_is_told_where_it_is_more_than_a_tenth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
