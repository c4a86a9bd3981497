/* Runs whose nodes fail: by hand, and against Young's and Daly's formulas. */
#include "planner/failures.h"

#include "layouts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Formulas ------------------------------------------------------------------------------ */

/* The fraction of the time that stays with checkpoints after `interval`, by Daly's model. */
static double useful_with(const sli_cluster *cluster, const sli_failures *failures, double interval)
{
    double mtbf = failures->mtbf_s;
    return interval /
           (mtbf * exp(cluster->restart_s / mtbf) * expm1((interval + failures->save_s) / mtbf));
}

static void checkpoints_are_as_far_apart_as_loses_least(void **state)
{
    const sli_cluster cluster = {.mtbf_s = 864000, .restart_s = 100, .save_bytes_per_s = 1e9};
    sli_failures failures = sli_cluster_failures(&cluster, 10, 6e11);
    assert_float_equal(failures.mtbf_s, 86400, 1e-9);
    assert_float_equal(failures.save_s, 60, 1e-9);
    assert_float_equal(failures.young_s, 3219.938, 1e-3);
    assert_float_equal(failures.interval_s, 3180.06, 0.01);
    double best = useful_with(&cluster, &failures, failures.interval_s);
    assert_float_equal(failures.useful, best, 1e-12);
    assert_true(best > useful_with(&cluster, &failures, failures.interval_s * 1.05));
    assert_true(best > useful_with(&cluster, &failures, failures.interval_s * 0.95));
    const sli_cluster safe = {0};
    assert_float_equal(sli_cluster_failures(&safe, 10, 6e11).useful, 1, 0);
}

/* ---- By hand ------------------------------------------------------------------------------- */

/* Times until the next failure, one after the other; then none. */
typedef struct given_failures {
    const double *seconds;
    int count, next;
} given_failures;

static double next_failure(void *context, double mean)
{
    given_failures *given = context;
    (void)mean;
    return given->next < given->count ? given->seconds[given->next++] : INFINITY;
}

/* On k of 4 nodes k / 4 of the speed; one alone is not enough. */
static sl_status quarter_speed(void *context, int nodes, double *out)
{
    int *asked = context;
    ++*asked;
    *out = nodes > 1 ? nodes / 4.0 : 0;
    return SL_OK;
}

static double play(const sli_failing_run *run, const double *failures, int count)
{
    given_failures given = {failures, count, 0};
    const sli_failure_source source = {next_failure, &given};
    int64_t left = 100;
    double seconds, *speeds;
    check_ok(sli_failing_run_speeds(run, &speeds));
    check_ok(sli_failing_run_play(run, &source, speeds, &left, &seconds));
    free(speeds);
    return seconds;
}

/* Checkpoints after 100 s, each of 10 s; 50 s to start again.
 *
 *     nothing fails   100 +10 100 +10 100              320
 *     after 150 s     100 +10 (40 lost) 50 100 +10 100 410
 *     and after 20 s of the restart                    430
 *     while it saves the second, at 215 s:             215 + 50 + 100 + 10 + 100 = 475 */
static void runs_take_as_long_as_by_hand(void **state)
{
    int asked = 0;
    const sli_failing_run run = {.nodes = 4,
                                 .mtbf_s = 1,
                                 .save_s = 10,
                                 .interval_s = 100,
                                 .restart_s = 50,
                                 .work_s = 300,
                                 .speed = quarter_speed,
                                 .context = &asked};
    assert_float_equal(play(&run, NULL, 0), 320, 1e-9);
    assert_float_equal(play(&run, (const double[]){150}, 1), 410, 1e-9);
    assert_float_equal(play(&run, (const double[]){150, 20}, 2), 430, 1e-9);
    assert_float_equal(play(&run, (const double[]){215}, 1), 475, 1e-9);
    assert_int_equal(asked, 0);
}

/* A node is away for 250 s. */
static void fewer_nodes_go_on_until_others_are_back(void **state)
{
    int asked = 0;
    sli_failing_run run = {.nodes = 4,
                           .mtbf_s = 1,
                           .save_s = 10,
                           .interval_s = 100,
                           .restart_s = 50,
                           .repair_s = 250,
                           .work_s = 300,
                           .speed = quarter_speed,
                           .context = &asked};
    /* 150: a node fails with 100 done. 200: three go on for the 200 s until it is back: 100, +10,
     * 90, so 100 + 0.75 * 190 = 242.5 are done at 400. It saves until 410, all four begin at 460,
     * and compute the other 57.5. */
    assert_float_equal(play(&run, (const double[]){150}, 1), 517.5, 1e-9);
    assert_int_equal(asked, 1);
    /* Another one takes its place. */
    run.spares = 1;
    assert_float_equal(play(&run, (const double[]){150}, 1), 410, 1e-9);
    /* Three fail at once, at 150: one is too few, and waits until all are back at 400; from 450 on
     * 210 s. */
    run.spares = 0;
    assert_float_equal(play(&run, (const double[]){150, 0, 0}, 3), 660, 1e-9);
}

/* No run ends whose nodes fail before any checkpoint. */
static void runs_that_get_nowhere_end_without_time(void **state)
{
    const sli_failing_run run = {.nodes = 1000,
                                 .mtbf_s = 100,
                                 .save_s = 10,
                                 .interval_s = 100,
                                 .restart_s = 1,
                                 .work_s = 1e6};
    sli_failure_forecast forecast;
    check_ok(sli_failing_run_forecast(&run, 1, &forecast));
    assert_int_equal(forecast.runs, 0);
    assert_true(isinf(forecast.seconds) && isinf(forecast.high));
    assert_float_equal(forecast.useful, 0, 0);
}

/* ---- Against the formulas ------------------------------------------------------------------ */

static sli_failure_forecast forecast_with(const sli_cluster *cluster, const sli_failures *failures,
                                          int nodes, double work_s)
{
    const sli_failing_run run = {.nodes = nodes,
                                 .mtbf_s = cluster->mtbf_s,
                                 .save_s = failures->save_s,
                                 .interval_s = failures->interval_s,
                                 .restart_s = cluster->restart_s,
                                 .repair_s = cluster->repair_s,
                                 .work_s = work_s};
    sli_failure_forecast forecast;
    check_ok(sli_failing_run_forecast(&run, 7, &forecast));
    assert_int_equal(forecast.runs, SLI_FAILING_RUNS);
    assert_true(forecast.low <= forecast.seconds && forecast.seconds <= forecast.high);
    return forecast;
}

/* Where all nodes run again, a played run is Daly's model. Where failures are rare as well, both
 * lose save / interval + (interval / 2 + restart) / mtbf. */
static void played_runs_lose_what_the_formulas_say(void **state)
{
    static const double mtbfs[] = {864e3, 864e4, 864e5, 864e6};
    for (int i = 0; i < 4; i++) {
        const sli_cluster cluster = {.mtbf_s = mtbfs[i], .restart_s = 300, .save_bytes_per_s = 1e9};
        const sli_failures failures = sli_cluster_failures(&cluster, 10, 6e11);
        const sli_failure_forecast forecast =
            forecast_with(&cluster, &failures, 10, 20000 * failures.interval_s);
        double lost = 1 - forecast.useful, by_daly = 1 - failures.useful,
               first = failures.save_s / failures.interval_s +
                       (failures.interval_s / 2 + cluster.restart_s) / failures.mtbf_s;
        assert_float_equal(lost / by_daly, 1, 0.02);
        if (i > 0)
            assert_float_equal(lost / first, 1, 0.03 + 2 * first);
    }
}

/* Of intervals from a half to twice Daly's, his own loses least, where nodes are back at once. */
static void played_interval_is_near_the_formulas(void **state)
{
    const sli_cluster cluster = {.mtbf_s = 864000, .restart_s = 100, .save_bytes_per_s = 1e9};
    const sli_failures failures = sli_cluster_failures(&cluster, 10, 6e11);
    const sli_failing_run run = {.nodes = 10,
                                 .mtbf_s = cluster.mtbf_s,
                                 .save_s = failures.save_s,
                                 .interval_s = 2 * failures.interval_s,
                                 .restart_s = cluster.restart_s,
                                 .work_s = 1000 * failures.interval_s};
    sli_failure_forecast forecast;
    double interval;
    check_ok(sli_failing_run_forecast(&run, 7, &forecast));
    check_ok(sli_failing_run_find_interval(&run, 7, &forecast, &interval));
    assert_float_equal(interval / failures.interval_s, 1, 0.5);
}

static void seeds_decide_what_is_drawn(void **state)
{
    const sli_failing_run run = {.nodes = 10,
                                 .mtbf_s = 1e5,
                                 .save_s = 10,
                                 .interval_s = 1000,
                                 .restart_s = 100,
                                 .work_s = 1e5};
    sli_failure_forecast one, again, other;
    check_ok(sli_failing_run_forecast(&run, 1, &one));
    check_ok(sli_failing_run_forecast(&run, 1, &again));
    check_ok(sli_failing_run_forecast(&run, 2, &other));
    assert_memory_equal(&one, &again, sizeof one);
    assert_true(one.seconds != other.seconds);
    assert_float_equal(one.seconds / other.seconds, 1, 0.02);
}

/* ---- Fewer nodes --------------------------------------------------------------------------- */

static const int one_chunk[] = {1}, one_stage[] = {1};

/* Four replicas of a device each, whose step is all computing: two or three of them train the four
 * shards in two turns, since none can train half a shard. */
static void fewer_replicas_train_the_shards_in_turn(void **state)
{
    static const char text[] =
        "{\"nodes\": [{\"count\": 4, \"devices\": 1, \"memory_bytes\": 2e9, \"flops_f32\": 1e6,"
        "\"memory_bytes_per_s\": 1e16}], \"links\": {\"spine\": {\"latency_s\": 0, "
        "\"bytes_per_s\": 1e15, \"message_s\": 0}}}";
    static const char *const schedules[] = {"gpipe"};
    static const sl_recompute never[] = {SL_RECOMPUTE_NEVER};
    sl_module *model = make_model(4);
    sli_cluster cluster;
    sli_devices devices;
    sli_found_layout found;
    sli_cluster_search counts;
    check_ok(sli_cluster_parse("fewer", text, strlen(text), &cluster));
    check_ok(sli_devices_list(&cluster, SL_PRECISION_F32, &devices));
    const sli_cluster_job job = {.model = model,
                                 .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                                 .row_tokens = 16,
                                 .space = {.ranks = 4,
                                           .rows = 4,
                                           .least_replicas = 4,
                                           .most_replicas = 4,
                                           .least_pipeline_ranks = 1,
                                           .most_pipeline_ranks = 1,
                                           .schedules = schedules,
                                           .schedule_count = 1,
                                           .virtual_stages = one_stage,
                                           .virtual_count = 1,
                                           .chunks = one_chunk,
                                           .chunk_count = 1,
                                           .recomputes = never,
                                           .recompute_count = 1}};
    sli_search results = {.wanted = 1, .found = &found};
    check_ok(sli_search_cluster(&job, &cluster, &results, &counts));
    assert_int_equal(results.count, 1);
    sli_elastic_run run = {&job, &cluster, &devices, &found};
    double speed;
    for (int nodes = 1; nodes < 4; nodes++) {
        check_ok(sli_elastic_run_speed(&run, nodes, &speed));
        assert_float_equal(speed, nodes > 1 ? 0.5 : 0.25, 0.001);
    }
    /* A pipeline of two devices does not fit one. */
    found.candidate.replicas = 2;
    found.candidate.pipeline_ranks = 2;
    check_ok(sli_elastic_run_speed(&run, 1, &speed));
    assert_float_equal(speed, 0, 0);
    check_ok(sli_elastic_run_speed(&run, 3, &speed));
    assert_true(speed > 0);
    sli_devices_clear(&devices);
    sli_cluster_clear(&cluster);
    sl_module_destroy(&model);
}

int failures_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_are_as_far_apart_as_loses_least),
        cmocka_unit_test(runs_take_as_long_as_by_hand),
        cmocka_unit_test(fewer_nodes_go_on_until_others_are_back),
        cmocka_unit_test(runs_that_get_nowhere_end_without_time),
        cmocka_unit_test(played_runs_lose_what_the_formulas_say),
        cmocka_unit_test(played_interval_is_near_the_formulas),
        cmocka_unit_test(seeds_decide_what_is_drawn),
        cmocka_unit_test(fewer_replicas_train_the_shards_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
