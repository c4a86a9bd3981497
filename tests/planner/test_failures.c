/* Runs whose nodes fail: by hand, and against Young's and Daly's formulas. */
#include "nn/module.h"
#include "planner/failures.h"

#include "layouts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Formulas ------------------------------------------------------------------------------ */

/* The fraction of the time that stays with checkpoints after `interval`, by Daly's model. */
static double kept_fraction_with(const sli_cluster *cluster, const sli_failures *failures,
                                 double interval)
{
    double mtbf = failures->mtbf_s;
    return interval /
           (mtbf * exp(cluster->restart_s / mtbf) * expm1((interval + failures->save_s) / mtbf));
}

static void checkpoints_are_as_far_apart_as_loses_least(void **state)
{
    const sli_cluster cluster = {.mtbf_s = 864000, .restart_s = 100, .save_bytes_per_s = 1e9};
    sli_failures failures = sli_cluster_failures(&cluster, 10, 60);
    assert_float_equal(failures.mtbf_s, 86400, 1e-9);
    assert_float_equal(failures.save_s, 60, 1e-9);
    assert_float_equal(failures.young_interval_s, 3219.938, 1e-3);
    assert_float_equal(failures.daly_interval_s, 3180.06, 0.01);
    double best = kept_fraction_with(&cluster, &failures, failures.daly_interval_s);
    assert_float_equal(failures.kept_fraction, best, 1e-12);
    assert_true(best > kept_fraction_with(&cluster, &failures, failures.daly_interval_s * 1.05));
    assert_true(best > kept_fraction_with(&cluster, &failures, failures.daly_interval_s * 0.95));
    const sli_cluster safe = {0};
    assert_float_equal(sli_cluster_failures(&safe, 10, 60).kept_fraction, 1, 0);
}

/* ---- By hand ------------------------------------------------------------------------------- */

/* Times until the next failure, one after the other; then none. */
typedef struct given_failures {
    const double *seconds;
    int count, next;
    double means[16]; /* [asked] that were asked for */
    int asked;
} given_failures;

static double next_failure(void *context, double mean)
{
    given_failures *given = context;
    assert_true(given->asked < 16);
    given->means[given->asked++] = mean;
    return given->next < given->count ? given->seconds[given->next++] : INFINITY;
}

/* On k of 4 nodes k / 4 of the speed; one alone is not enough. */
static sl_status quarter_speed(void *context, int nodes, sli_fewer_speed *out)
{
    int *asked = context;
    ++*asked;
    *out = (sli_fewer_speed){nodes > 1 ? nodes / 4.0 : 0, nodes};
    return SL_OK;
}

/* Of 4 nodes two or four are used. */
static sl_status half_speed(void *context, int nodes, sli_fewer_speed *out)
{
    (void)context;
    *out = nodes > 1 ? (sli_fewer_speed){0.5, 2} : (sli_fewer_speed){0, 0};
    return SL_OK;
}

/* All four are needed. */
static sl_status no_speed(void *context, int nodes, sli_fewer_speed *out)
{
    (void)context;
    (void)nodes;
    *out = (sli_fewer_speed){0, 0};
    return SL_OK;
}

/* Fewer nodes save an exchange. */
static sl_status double_speed(void *context, int nodes, sli_fewer_speed *out)
{
    (void)context;
    *out = (sli_fewer_speed){2, nodes};
    return SL_OK;
}

static sli_simulated_run simulate_given(const sli_failing_run *run, given_failures *given,
                                        int64_t failures)
{
    const sli_failure_source source = {next_failure, given};
    sli_simulated_run out;
    sli_fewer_speed *speeds;
    check_ok(sli_failing_run_speeds(run, &speeds));
    check_ok(sli_failing_run_simulate(run, &source, speeds, &failures, &out));
    free(speeds);
    return out;
}

static double simulate(const sli_failing_run *run, const double *failures, int count)
{
    given_failures given = {.seconds = failures, .count = count};
    const sli_simulated_run out = simulate_given(run, &given, 100);
    assert_true(out.ends);
    return out.seconds;
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
    assert_float_equal(simulate(&run, NULL, 0), 320, 1e-9);
    assert_float_equal(simulate(&run, (const double[]){150}, 1), 410, 1e-9);
    assert_float_equal(simulate(&run, (const double[]){150, 20}, 2), 430, 1e-9);
    assert_float_equal(simulate(&run, (const double[]){215}, 1), 475, 1e-9);
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
    assert_float_equal(simulate(&run, (const double[]){150}, 1), 517.5, 1e-9);
    assert_int_equal(asked, 1);
    /* Another one takes its place. */
    run.spares = 1;
    assert_float_equal(simulate(&run, (const double[]){150}, 1), 410, 1e-9);
    /* Three fail at once, at 150: one is too few, and waits until all are back at 400; from 450 on
     * 210 s. */
    run.spares = 0;
    assert_float_equal(simulate(&run, (const double[]){150, 0, 0}, 3), 660, 1e-9);
}

static const sli_failing_run four_nodes = {.nodes = 4,
                                           .mtbf_s = 1200,
                                           .save_s = 10,
                                           .interval_s = 100,
                                           .restart_s = 50,
                                           .repair_s = 250,
                                           .work_s = 300};

/* The nodes in use fail: four, three while it starts again and runs, and then four again. */
static void nodes_in_use_fail(void **state)
{
    int asked = 0;
    given_failures given = {.seconds = (const double[]){150}, .count = 1};
    sli_failing_run run = four_nodes;
    run.speed = quarter_speed;
    run.context = &asked;
    assert_float_equal(simulate_given(&run, &given, 100).seconds, 517.5, 1e-9);
    const double means[] = {300, 400, 400, 300, 300};
    assert_int_equal(given.asked, 5);
    for (int i = 0; i < 5; i++)
        assert_float_equal(given.means[i], means[i], 1e-9);
    /* Of three nodes two are used. */
    given = (given_failures){.seconds = (const double[]){150}, .count = 1};
    run.speed = half_speed;
    simulate_given(&run, &given, 100);
    assert_float_equal(given.means[1], 600, 1e-9);
    assert_float_equal(given.means[2], 600, 1e-9);
}

/* Two fail, at 150 s and 50 s into the next steps: 100 are done. From 300 on two go on at half the
 * speed. One is back at 400, and three are as slow: it goes on without it until the other one is,
 * at 500: 100, +10, 90, so 195 are done. It saves until 510, and all four begin at 560: 100, +10,
 * 5. */
static void nodes_that_bring_no_speed_stop_nothing(void **state)
{
    sli_failing_run run = four_nodes;
    run.speed = half_speed;
    assert_float_equal(simulate(&run, (const double[]){150, INFINITY, 50}, 3), 675, 1e-9);
}

static void runs_wait_for_as_many_nodes_as_they_need(void **state)
{
    int asked = 0;
    sli_failing_run run = four_nodes;
    run.speed = no_speed;
    /* One fails: it is back at 400, all run from 450 on. */
    assert_float_equal(simulate(&run, (const double[]){150}, 1), 450 + 210, 1e-9);
    /* A second one fails 20 s into that start, and is back at 670. */
    assert_float_equal(simulate(&run, (const double[]){150, 20}, 2), 670 + 50 + 210, 1e-9);
    /* Three fail, at 150, 160 and 170, and the fourth alone waits until 400, and starts once. */
    given_failures given = {.seconds = (const double[]){150, 10, 10}, .count = 3};
    run.speed = quarter_speed;
    run.context = &asked;
    assert_float_equal(simulate_given(&run, &given, 100).seconds, 660, 1e-9);
    assert_int_equal(given.asked, 5);
}

static void fewer_nodes_are_never_faster(void **state)
{
    sli_failing_run run = four_nodes;
    sli_simulated_runs simulated;
    sli_fewer_speed *speeds;
    run.speed = double_speed;
    run.save_s = 1e-3;
    run.work_s = 1e5;
    check_ok(sli_failing_run_speeds(&run, &speeds));
    check_ok(sli_failing_run_simulate_all(&run, 3, speeds, &simulated));
    free(speeds);
    assert_int_equal(simulated.runs, SLI_FAILING_RUNS);
    assert_true(simulated.kept_fraction > 0.5 && simulated.kept_fraction <= 1);
    assert_float_equal(simulated.fewer_speed, 1, 0);
}

static sli_simulated_runs simulate_all(const sli_failing_run *run, uint64_t seed)
{
    sli_simulated_runs out;
    sli_fewer_speed *speeds;
    check_ok(sli_failing_run_speeds(run, &speeds));
    check_ok(sli_failing_run_simulate_all(run, seed, speeds, &out));
    free(speeds);
    assert_true(0 <= out.kept_fraction && out.kept_fraction <= 1);
    return out;
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
    const sli_simulated_runs simulated = simulate_all(&run, 1);
    assert_int_equal(simulated.runs, 1);
    assert_int_equal(simulated.unfinished, 1);
    assert_true(isinf(simulated.seconds) && isinf(simulated.high));
    assert_float_equal(simulated.kept_fraction, 0, 0);
}

/* A run with more failures than are simulated loses what a shorter one of its kind does. */
static void runs_with_too_many_failures_go_on_as_they_began(void **state)
{
    sli_failing_run run = {.nodes = 100,
                           .mtbf_s = 1e5,
                           .save_s = 10,
                           .interval_s = 140,
                           .restart_s = 20,
                           .work_s = 1e5};
    const sli_simulated_runs some = simulate_all(&run, 1);
    assert_int_equal(some.unfinished, 0);
    run.work_s = 1e10;
    const sli_simulated_runs many = simulate_all(&run, 1);
    assert_int_equal(many.runs, 1);
    assert_int_equal(many.unfinished, 1);
    assert_true(some.kept_fraction > 0.5);
    assert_float_equal(many.kept_fraction / some.kept_fraction, 1, 0.01);
}

/* Most failures come before the first checkpoint: within 1000 times its work no run ends. */
static void long_runs_are_left(void **state)
{
    const sli_failing_run run = {
        .nodes = 100, .mtbf_s = 1e3, .save_s = 10, .interval_s = 90, .restart_s = 1, .work_s = 1e4};
    given_failures given = {.seconds = (const double[]){1e7 + 1}, .count = 1};
    assert_true(simulate_given(&run, &given, 100).ends);
    const sli_simulated_runs simulated = simulate_all(&run, 1);
    assert_true(simulated.unfinished > 0);
    assert_true(simulated.kept_fraction < 0.001);
}

/* ---- Against the formulas ------------------------------------------------------------------ */

static sli_simulated_runs simulate_with(const sli_cluster *cluster, const sli_failures *failures,
                                        int nodes, double work_s)
{
    const sli_failing_run run = {.nodes = nodes,
                                 .mtbf_s = cluster->mtbf_s,
                                 .save_s = failures->save_s,
                                 .interval_s = failures->daly_interval_s,
                                 .restart_s = cluster->restart_s,
                                 .repair_s = cluster->repair_s,
                                 .work_s = work_s};
    const sli_simulated_runs simulated = simulate_all(&run, 7);
    assert_int_equal(simulated.runs, SLI_FAILING_RUNS);
    assert_true(simulated.low <= simulated.seconds && simulated.seconds <= simulated.high);
    return simulated;
}

/* Where all nodes run again, a simulated run is Daly's model. Where failures are rare as well, both
 * lose save / interval + (interval / 2 + restart) / mtbf. */
static void simulated_runs_lose_what_the_formulas_say(void **state)
{
    static const double mtbfs[] = {864e3, 864e4, 864e5, 864e6};
    for (int i = 0; i < 4; i++) {
        const sli_cluster cluster = {.mtbf_s = mtbfs[i], .restart_s = 300, .save_bytes_per_s = 1e9};
        const sli_failures failures = sli_cluster_failures(&cluster, 10, 60);
        const sli_simulated_runs simulated =
            simulate_with(&cluster, &failures, 10, 20000 * failures.daly_interval_s);
        double lost = 1 - simulated.kept_fraction, by_daly = 1 - failures.kept_fraction,
               first = failures.save_s / failures.daly_interval_s +
                       (failures.daly_interval_s / 2 + cluster.restart_s) / failures.mtbf_s;
        assert_float_equal(lost / by_daly, 1, 0.02);
        if (i > 0)
            assert_float_equal(lost / first, 1, 0.03 + 2 * first);
    }
}

/* Of intervals from a half to twice Daly's, his own loses least, where nodes are back at once. */
static void simulated_interval_is_near_the_formulas(void **state)
{
    const sli_cluster cluster = {.mtbf_s = 864000, .restart_s = 100, .save_bytes_per_s = 1e9};
    const sli_failures failures = sli_cluster_failures(&cluster, 10, 60);
    const sli_failing_run run = {.nodes = 10,
                                 .mtbf_s = cluster.mtbf_s,
                                 .save_s = failures.save_s,
                                 .interval_s = 2 * failures.daly_interval_s,
                                 .restart_s = cluster.restart_s,
                                 .work_s = 1000 * failures.daly_interval_s};
    sli_simulated_runs simulated;
    sli_fewer_speed *speeds;
    double interval;
    check_ok(sli_failing_run_speeds(&run, &speeds));
    check_ok(sli_failing_run_simulate_all(&run, 7, speeds, &simulated));
    check_ok(sli_failing_run_find_interval(&run, 7, speeds, &simulated, &interval));
    free(speeds);
    assert_float_equal(interval / failures.daly_interval_s, 1, 0.5);
}

static void seeds_decide_what_is_drawn(void **state)
{
    const sli_failing_run run = {.nodes = 10,
                                 .mtbf_s = 1e5,
                                 .save_s = 10,
                                 .interval_s = 1000,
                                 .restart_s = 100,
                                 .work_s = 1e5};
    const sli_simulated_runs one = simulate_all(&run, 1), again = simulate_all(&run, 1),
                             other = simulate_all(&run, 2);
    assert_memory_equal(&one, &again, sizeof one);
    assert_true(one.seconds != other.seconds);
    assert_float_equal(one.seconds / other.seconds, 1, 0.02);
}

/* ---- Fewer nodes --------------------------------------------------------------------------- */

/* Four replicas of a device each on as many nodes, on links of so many bytes a second. */
typedef struct quartet {
    sl_module *model;
    sli_cluster cluster;
    sli_devices devices;
    sli_cluster_job job;
    sli_found_layout found;
} quartet;

static void make_quartet(quartet *out, double bytes_per_s)
{
    static const int one_chunk[] = {1}, one_stage[] = {1};
    static const char *const schedules[] = {"gpipe"};
    static const sl_recompute never[] = {SL_RECOMPUTE_NEVER};
    char text[512];
    sli_search results = {.wanted = 1, .found = &out->found};
    sli_cluster_search counts;
    snprintf(text, sizeof text,
             "{\"nodes\": [{\"count\": 4, \"devices\": 1, \"memory_bytes\": 2e9, "
             "\"flops_f32\": 1e6, \"memory_bytes_per_s\": 1e16}], \"links\": {\"spine\": "
             "{\"latency_s\": 0, \"bytes_per_s\": %g, \"message_s\": 0}}}",
             bytes_per_s);
    out->model = make_model(4);
    check_ok(sli_cluster_parse("fewer", text, strlen(text), &out->cluster));
    check_ok(sli_devices_list(&out->cluster, SL_PRECISION_F32, &out->devices));
    out->job = (sli_cluster_job){.model = out->model,
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
    check_ok(sli_search_cluster(&out->job, &out->cluster, &results, &counts));
    assert_int_equal(results.count, 1);
}

static void free_quartet(quartet *q)
{
    sli_devices_clear(&q->devices);
    sli_cluster_clear(&q->cluster);
    sl_module_destroy(&q->model);
}

/* Their step is all computing: two or three of them train the four shards in two turns, since none
 * can train half a shard. */
static void fewer_replicas_train_the_shards_in_turn(void **state)
{
    quartet q;
    sli_fewer_speed speed;
    make_quartet(&q, 1e15);
    sli_elastic_run run = {&q.job, &q.cluster, &q.devices, &q.found};
    for (int nodes = 1; nodes < 4; nodes++) {
        check_ok(sli_elastic_run_speed(&run, nodes, &speed));
        assert_float_equal(speed.fraction, nodes > 1 ? 0.5 : 0.25, 0.001);
        assert_int_equal(speed.nodes_used, nodes > 1 ? 2 : 1);
    }
    free_quartet(&q);
}

/* Two pipelines of two ranks become two shards of one device, as when a job has lost processes. */
static void shorter_pipelines_go_on(void **state)
{
    quartet q;
    sli_fewer_speed one, three;
    make_quartet(&q, 1e15);
    sli_elastic_run run = {&q.job, &q.cluster, &q.devices, &q.found};
    q.found.candidate.replicas = 2;
    q.found.candidate.pipeline_ranks = 2;
    check_ok(sli_elastic_run_speed(&run, 1, &one));
    assert_int_equal(one.nodes_used, 1);
    assert_float_equal(one.fraction, 0.25, 0.001);
    check_ok(sli_elastic_run_speed(&run, 3, &three));
    assert_true(three.fraction > one.fraction);
    /* One of three ranks goes on with two. */
    q.found.candidate.replicas = 1;
    q.found.candidate.pipeline_ranks = 3;
    q.job.space.rows = 1;
    check_ok(sli_elastic_run_speed(&run, 2, &one));
    assert_int_equal(one.nodes_used, 2);
    assert_true(one.fraction > 0);
    free_quartet(&q);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

/* Two replicas of two pipeline ranks, a device a node of 1000 bytes a second: the first replica's
 * ranks write 12 bytes a parameter, or with ZeRO its values and every rank its half of the state.
 */
static void first_replica_writes_the_model(void **state)
{
    static const sl_optimizer_options adamw = {.kind = SL_OPTIMIZER_ADAMW};
    static const char text[] =
        "{\"nodes\": [{\"count\": 2, \"devices\": 2, \"memory_bytes\": 2e9, \"flops_f32\": 1e9}], "
        "\"failures\": {\"mtbf_s\": 1e6, \"save_bytes_per_s\": 1000}}";
    SCOPED(sl_module) *model = make_model(4);
    const sli_cluster_job job = {.model = model, .optimizer = adamw, .head_blocks = 8};
    sli_found_layout found = {
        .candidate = {.replicas = 2, .pipeline_ranks = 2, .schedule = "gpipe", .chunks = 1},
        .stages = 2,
        .balance = {5, 1}};
    double all = 0,
           last = (double)sli_module_elements(sl_module_child(model, 5), SL_PARAMETER_TRAINED),
           seconds;
    sli_cluster cluster;
    sli_devices devices;
    check_ok(sli_cluster_parse("two", text, strlen(text), &cluster));
    check_ok(sli_devices_list(&cluster, SL_PRECISION_F32, &devices));
    for (int i = 0; i < 6; i++)
        all += (double)sli_module_elements(sl_module_child(model, i), SL_PARAMETER_TRAINED);
    check_ok(sli_cluster_time_save(&job, &devices, &found, &seconds));
    assert_float_equal(seconds, 12 * all / 1000, 1e-9);
    found.candidate.zero = true;
    check_ok(sli_cluster_time_save(&job, &devices, &found, &seconds));
    assert_float_equal(seconds, (4 + 4) * all / 1000, 1e-9);
    /* The first node has both replicas' first stage. */
    found.candidate.near_replicas = true;
    check_ok(sli_cluster_time_save(&job, &devices, &found, &seconds));
    assert_float_equal(seconds, 12 * (all - last) / 1000, 1e-9);
    /* And half of a split head. */
    found.candidate.splits_vocabulary = true;
    check_ok(sli_cluster_time_save(&job, &devices, &found, &seconds));
    assert_float_equal(seconds, 12 * (all - last / 2) / 1000, 1e-9);
    cluster.mtbf_s = 0;
    check_ok(sli_cluster_time_save(&job, &devices, &found, &seconds));
    assert_float_equal(seconds, 0, 0);
    sli_devices_clear(&devices);
    sli_cluster_clear(&cluster);
}

/* Their step is nearly all exchange, which one of them alone does not have. */
static void fewer_replicas_have_the_shortest_step(void **state)
{
    quartet q;
    sli_fewer_speed one, three;
    make_quartet(&q, 1e3);
    assert_true(q.found.costs.exchange > 10 * q.found.costs.pipeline);
    sli_elastic_run run = {&q.job, &q.cluster, &q.devices, &q.found};
    check_ok(sli_elastic_run_speed(&run, 1, &one));
    check_ok(sli_elastic_run_speed(&run, 3, &three));
    assert_int_equal(three.nodes_used, 1);
    assert_float_equal(three.fraction, one.fraction, 1e-12);
    assert_float_equal(one.fraction, q.found.costs.seconds / (4 * q.found.costs.pipeline), 0.001);
    free_quartet(&q);
}

int failures_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_are_as_far_apart_as_loses_least),
        cmocka_unit_test(runs_take_as_long_as_by_hand),
        cmocka_unit_test(fewer_nodes_go_on_until_others_are_back),
        cmocka_unit_test(nodes_in_use_fail),
        cmocka_unit_test(nodes_that_bring_no_speed_stop_nothing),
        cmocka_unit_test(runs_wait_for_as_many_nodes_as_they_need),
        cmocka_unit_test(fewer_nodes_are_never_faster),
        cmocka_unit_test(runs_with_too_many_failures_go_on_as_they_began),
        cmocka_unit_test(long_runs_are_left),
        cmocka_unit_test(runs_that_get_nowhere_end_without_time),
        cmocka_unit_test(simulated_runs_lose_what_the_formulas_say),
        cmocka_unit_test(simulated_interval_is_near_the_formulas),
        cmocka_unit_test(seeds_decide_what_is_drawn),
        cmocka_unit_test(fewer_replicas_train_the_shards_in_turn),
        cmocka_unit_test(fewer_replicas_have_the_shortest_step),
        cmocka_unit_test(shorter_pipelines_go_on),
        cmocka_unit_test(first_replica_writes_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
