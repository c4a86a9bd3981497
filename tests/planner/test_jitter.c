/* Drawn steps against the simulation of all replicas. */
#include "planner/jitter.h"

#include "layouts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 6, DEVICES = 8, WANTED = 12 };

static const int chunks[] = {1, 2, 4}, virtual_stages[] = {1, 2};
static const sl_recompute recomputes[] = {SL_RECOMPUTE_NEVER};

static sli_cluster_job make_job(const sl_module *model)
{
    int schedules = 0;
    while (sl_schedule_names[schedules])
        schedules++;
    return (sli_cluster_job){.model = model,
                             .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                             .row_tokens = 16,
                             .space = {.ranks = DEVICES,
                                       .rows = 8,
                                       .least_replicas = 1,
                                       .most_replicas = 8,
                                       .least_pipeline_ranks = 1,
                                       .most_pipeline_ranks = LAYERS + 2,
                                       .schedules = sl_schedule_names,
                                       .schedule_count = schedules,
                                       .virtual_stages = virtual_stages,
                                       .virtual_count = 2,
                                       .chunks = chunks,
                                       .chunk_count = 3,
                                       .recomputes = recomputes,
                                       .recompute_count = 1,
                                       .zeros = {false, true},
                                       .near_replicas = {false, true}}};
}

static void make_cluster(const char *jitter, const char *device, sli_cluster *out)
{
    char text[768];
    snprintf(text, sizeof text,
             "{\"nodes\": [{\"count\": 4, \"devices\": 2, \"device\": \"%s\", \"memory_bytes\": "
             "2e9, \"flops_f32\": 1e9}], \"links\": {\"node\": {\"latency_s\": 1e-6, "
             "\"bytes_per_s\": 1e9}, \"spine\": {\"latency_s\": 1e-5, \"bytes_per_s\": 1e8}}, "
             "\"jitter\": {%s}}",
             device, jitter);
    check_ok(sli_cluster_parse("jitter", text, strlen(text), out));
}

/* The mean of so many drawn steps, in each of which all replicas are simulated. */
static double simulate_all(const sli_cluster_job *job, const sli_cluster *cluster,
                           const sli_found_layout *found, uint64_t seed, int draws)
{
    sli_found_table table;
    double factors[DEVICES], sum = 0;
    check_ok(sli_found_table_open(job, cluster, found, true, &table));
    for (int draw = 0; draw < draws; draw++) {
        double slowest = 0;
        sli_draw_factors(&table.search.devices,
                         found->candidate.replicas * found->candidate.pipeline_ranks, seed,
                         (uint32_t)draw, factors);
        for (int replica = 0; replica < found->candidate.replicas; replica++) {
            sl_step_costs costs;
            check_ok(sli_time_replica(&table, found->balance, replica, factors, &costs));
            slowest = fmax(slowest, costs.seconds);
        }
        sum += slowest;
    }
    sli_found_table_close(&table);
    return sum / draws;
}

/* Drawn steps are those of the full simulation to 1%, no shorter than without jitter but for what
 * is drawn, and no longer than where all devices are as slow as the slowest. */
static void drawn_steps_are_those_of_all_replicas(void **state)
{
    static const char *const jitters[] = {
        "\"spread\": 0.01", "\"spread\": 0.05", "\"slow_nodes\": 0.3, \"slow_factor\": 1.5",
        "\"spread\": 0.02, \"slow_nodes\": 0.1, \"slow_factor\": 2"};
    static sli_found_layout found[WANTED];
    SCOPED(sl_module) *model = make_model(LAYERS);
    const sli_cluster_job job = make_job(model);
    uint64_t seed = (uint64_t)test_seed(21);
    for (int i = 0; i < 8; i++) {
        sli_cluster cluster;
        sli_cluster_search counts;
        sli_search search = {.wanted = WANTED, .found = found};
        make_cluster(jitters[i / 2], i % 2 ? "cuda" : "cpu", &cluster);
        check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
        assert_int_equal(search.count, WANTED);
        for (int k = 0; k < search.count; k++) {
            sl_step_costs drawn;
            int draws;
            check_ok(sli_draw_step(&job, &cluster, &found[k], seed, &drawn, &draws));
            assert_true(draws >= 4);
            double all = simulate_all(&job, &cluster, &found[k], seed, draws);
            assert_float_equal(drawn.seconds / all, 1, 0.01);
            assert_float_equal(drawn.pipeline + drawn.exchange + drawn.update, drawn.seconds,
                               1e-12);
        }
        sli_cluster_clear(&cluster);
    }
}

/* The longest pipeline of a replica in the first draw. */
static double find_longest(const sli_cluster_job *job, const sli_cluster *cluster,
                           const sli_found_layout *found, uint64_t seed)
{
    sli_found_table table;
    sl_step_costs costs;
    double factors[DEVICES], longest = 0;
    const sli_candidate *candidate = &found->candidate;
    check_ok(sli_found_table_open(job, cluster, found, true, &table));
    sli_draw_factors(&table.search.devices, candidate->replicas * candidate->pipeline_ranks, seed,
                     0, factors);
    for (int replica = 0; replica < candidate->replicas; replica++) {
        check_ok(sli_time_replica(&table, found->balance, replica, factors, &costs));
        longest = fmax(longest, costs.pipeline);
    }
    sli_found_table_close(&table);
    return longest;
}

/* The table is the one that was simulated. */
static void check_entries(const sl_schedule *table, const sl_simulation *simulation)
{
    const sl_timeline_entry *entry = simulation->entries;
    int actions = 0;
    const sl_action *any;
    for (int rank = 0; rank < sl_schedule_ranks(table); rank++)
        actions += sl_schedule_actions(table, rank, &any);
    assert_int_equal(actions, simulation->entry_count);
    for (int rank = 0; rank < sl_schedule_ranks(table); rank++) {
        const sl_action *row;
        for (int i = 0, count = sl_schedule_actions(table, rank, &row); i < count; i++, entry++) {
            assert_int_equal(entry->action.kind, row[i].kind);
            assert_int_equal(entry->action.stage, row[i].stage);
            assert_int_equal(entry->action.micro, row[i].micro);
        }
    }
}

/* A table is drawn with the times of the slowest replica; without jitter with its own. A table that
 * is too large is none. Without jitter first stages are frozen, and some heads are split. */
static void drawn_table_is_that_of_the_first_draw(void **state)
{
    static const char *const jitters[] = {"", "\"spread\": 0.05"};
    static sli_found_layout found[WANTED];
    const uint64_t seed = (uint64_t)test_seed(22);
    for (int i = 0; i < 2; i++) {
        SCOPED(sl_module) *model = make_frozen_model(LAYERS, i == 0 ? LAYERS / 2 : 0);
        sli_cluster_job job = make_job(model);
        job.head_blocks = 8;
        job.space.splits_vocabulary[1] = i == 0;
        sli_cluster cluster;
        sli_cluster_search counts;
        sli_search search = {.wanted = WANTED, .found = found};
        make_cluster(jitters[i], "cpu", &cluster);
        check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
        int split = 0;
        for (int k = 0; k < search.count; k++) {
            SCOPED(sl_schedule) *table = NULL;
            sl_simulation simulation;
            split += found[k].candidate.splits_vocabulary;
            double expected =
                i == 0 ? found[k].costs.pipeline : find_longest(&job, &cluster, &found[k], seed);
            check_ok(
                sli_simulate_found(&job, &cluster, &found[k], seed, 1 << 20, &table, &simulation));
            assert_int_equal(sl_schedule_ranks(table), found[k].candidate.pipeline_ranks);
            assert_float_equal(simulation.makespan / expected, 1, i == 0 ? 1e-9 : 0.01);
            check_entries(table, &simulation);
            sl_simulation_clear(&simulation);
        }
        assert_true(i == 0 ? split > 0 : split == 0);
        sl_schedule *none;
        sl_simulation nothing;
        check_ok(sli_simulate_found(&job, &cluster, &found[0], seed, 1, &none, &nothing));
        assert_null(none);
        assert_int_equal(nothing.entry_count, 0);
        sli_cluster_clear(&cluster);
    }
}

static void slow_nodes_are_as_many_as_the_file_says(void **state)
{
    enum { DRAWS = 2000 };
    sli_cluster cluster;
    sli_devices devices;
    double factors[DEVICES];
    int slow = 0;
    make_cluster("\"slow_nodes\": 0.25, \"slow_factor\": 3", "cpu", &cluster);
    check_ok(sli_devices_list(&cluster, SL_PRECISION_F32, &devices));
    for (uint32_t draw = 0; draw < DRAWS; draw++) {
        sli_draw_factors(&devices, DEVICES, 1, draw, factors);
        for (int d = 0; d < DEVICES; d++) {
            assert_true(factors[d] == 1 || factors[d] == 3);
            assert_true(factors[d] == factors[d / 2 * 2]); /* a node has two devices */
            slow += factors[d] == 3;
        }
    }
    assert_float_equal((double)slow / (DRAWS * DEVICES), 0.25, 0.02);
    sli_devices_clear(&devices);
    sli_cluster_clear(&cluster);
}

static void spread_is_that_of_the_draws(void **state)
{
    enum { DRAWS = 2000 };
    sli_cluster cluster;
    sli_devices devices;
    double factors[DEVICES], sum = 0, squares = 0;
    make_cluster("\"spread\": 0.1", "cpu", &cluster);
    check_ok(sli_devices_list(&cluster, SL_PRECISION_F32, &devices));
    for (uint32_t draw = 0; draw < DRAWS; draw++) {
        sli_draw_factors(&devices, DEVICES, 1, draw, factors);
        for (int d = 0; d < DEVICES; d++) {
            sum += factors[d];
            squares += factors[d] * factors[d];
        }
    }
    double mean = sum / (DRAWS * DEVICES), variance = squares / (DRAWS * DEVICES) - mean * mean;
    assert_float_equal(mean, 1, 0.005);
    assert_float_equal(sqrt(variance), 0.1, 0.005);
    sli_devices_clear(&devices);
    sli_cluster_clear(&cluster);
}

/* One seed gives one step, another one another; without jitter there is nothing to draw. */
static void seeds_decide_the_steps(void **state)
{
    static sli_found_layout found;
    SCOPED(sl_module) *model = make_model(LAYERS);
    const sli_cluster_job job = make_job(model);
    sl_step_costs one, again, other;
    int draws;
    for (int i = 0; i < 2; i++) {
        sli_cluster cluster;
        sli_cluster_search counts;
        sli_search search = {.wanted = 1, .found = &found};
        make_cluster(i == 0 ? "\"spread\": 0.1" : "\"slow_factor\": 2", "cpu", &cluster);
        check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
        check_ok(sli_draw_step(&job, &cluster, &found, 1, &one, &draws));
        check_ok(sli_draw_step(&job, &cluster, &found, 1, &again, &draws));
        check_ok(sli_draw_step(&job, &cluster, &found, 2, &other, &draws));
        assert_true(one.seconds == again.seconds);
        assert_true((one.seconds == other.seconds) == (i == 1));
        assert_int_equal(draws > 0, i == 0);
        assert_true(one.seconds <= found.costs.seconds * (1 + 0.1));
        sli_cluster_clear(&cluster);
    }
}

int jitter_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_steps_are_those_of_all_replicas),
        cmocka_unit_test(drawn_table_is_that_of_the_first_draw),
        cmocka_unit_test(slow_nodes_are_as_many_as_the_file_says),
        cmocka_unit_test(spread_is_that_of_the_draws),
        cmocka_unit_test(seeds_decide_the_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
