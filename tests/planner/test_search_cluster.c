/* What a cluster costs, and the search for its best layouts against the simulation of all of them.
 */
#include "nn/module.h"
#include "planner/cluster.h"

#include "layouts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Links -------------------------------------------------------------------------------- */

/* Two racks of two nodes of two devices. Seconds and bytes a second: 1 and 4 in a node, 10 and 2
 * in a rack, 100 and 1 beyond. */
static const char racks[] =
    "{\"nodes\": [{\"count\": 4, \"devices\": 2, \"memory_bytes\": 2e9, \"flops_f32\": 1e12}],"
    "\"links\": {\"node\": {\"latency_s\": 1, \"bytes_per_s\": 4, \"message_s\": 0},"
    "\"rack\": {\"nodes\": 2, \"latency_s\": 10, \"bytes_per_s\": 2, \"message_s\": 0},"
    "\"spine\": {\"latency_s\": 100, \"bytes_per_s\": 1, \"message_s\": 2}}}";

static void open_racks(sli_cluster *cluster, sli_devices *devices)
{
    check_ok(sli_cluster_parse("racks", racks, strlen(racks), cluster));
    check_ok(sli_devices_list(cluster, SL_PRECISION_F32, devices));
}

static void links_are_those_of_the_nearest_common_level(void **state)
{
    sli_cluster cluster;
    sli_devices devices;
    open_racks(&cluster, &devices);
    const sli_device_grid pipeline = {1, 8, false}, halves = {2, 4, false}, near = {2, 4, true};
    assert_float_equal(sli_devices_rank_link(&devices, &pipeline, 0, 1).seconds, 1, 0);
    assert_float_equal(sli_devices_rank_link(&devices, &pipeline, 1, 2).seconds, 10, 0);
    assert_float_equal(sli_devices_rank_link(&devices, &pipeline, 3, 4).seconds, 100, 0);
    assert_float_equal(sli_devices_rank_link(&devices, &pipeline, 7, 0).seconds_per_byte, 1, 0);
    assert_float_equal(sli_devices_rank_link(&devices, &halves, 1, 2).seconds, 10, 0);
    assert_float_equal(sli_devices_rank_link(&devices, &near, 0, 1).seconds, 10, 0);
    assert_float_equal(sli_devices_rank_link(&devices, &near, 1, 2).seconds, 100, 0);
    assert_int_equal(sli_devices_count_nodes(&devices, 3), 2);
    assert_int_equal(sli_devices_count_nodes(&devices, 8), 4);
    sli_devices_clear(&devices);
    sli_cluster_clear(&cluster);
}

/* Of 8 replicas one is in the same node, 2 in the same rack, 4 beyond: each gets an eighth of the
 * bytes, twice. */
static void exchange_goes_to_every_replica(void **state)
{
    sli_cluster cluster;
    sli_devices devices;
    sl_link_cost reduce, gather;
    open_racks(&cluster, &devices);
    sli_devices_exchange(&devices, &(sli_device_grid){8, 1, false}, &reduce, &gather);
    assert_float_equal(gather.seconds_per_byte, (1 * 0.25 + 2 * 0.5 + 4 * 1) / 8, 1e-12);
    assert_float_equal(reduce.seconds_per_byte, 2 * gather.seconds_per_byte, 1e-12);
    assert_float_equal(gather.seconds, 100 + 4 * 2, 1e-12);
    sli_devices_exchange(&devices, &(sli_device_grid){2, 4, true}, &reduce, &gather);
    assert_float_equal(gather.seconds_per_byte, 0.25 / 2, 1e-12);
    sli_devices_exchange(&devices, &(sli_device_grid){2, 4, false}, &reduce, &gather);
    assert_float_equal(gather.seconds_per_byte, 1 / 2.0, 1e-12);
    sli_devices_clear(&devices);
    sli_cluster_clear(&cluster);
}

/* ---- Cuts --------------------------------------------------------------------------------- */

static double least_largest(const double *costs, int modules, int stages)
{
    double sum = 0, best = INFINITY;
    if (stages == 1) {
        for (int i = 0; i < modules; i++)
            sum += costs[i];
        return sum;
    }
    for (int i = 0; i <= modules - stages; i++) {
        sum += costs[i];
        best = fmin(best, fmax(sum, least_largest(costs + i + 1, modules - i - 1, stages - 1)));
    }
    return best;
}

static void largest_stage_is_as_small_as_any_cut_allows(void **state)
{
    enum { MOST = 9 };
    unsigned draw = test_seed(11);
    for (int round = 0; round < 300; round++) {
        int modules = test_draw(&draw, 1, MOST), stages = test_draw(&draw, 1, modules), next = 0;
        int balance[MOST];
        double costs[MOST], largest = 0;
        for (int i = 0; i < modules; i++)
            costs[i] = test_draw(&draw, 0, 20);
        sli_cut_evenly(costs, modules, stages, balance);
        for (int s = 0; s < stages; s++) {
            double sum = 0;
            assert_true(balance[s] > 0);
            for (int i = 0; i < balance[s]; i++)
                sum += costs[next++];
            largest = fmax(largest, sum);
        }
        assert_int_equal(next, modules);
        assert_float_equal(largest, least_largest(costs, modules, stages), 1e-9);
    }
}

/* ---- Search ------------------------------------------------------------------------------- */

enum { WANTED = 3, MOST_SHAPES = 128 };

static const int chunks[] = {1, 2, 4, 8}, virtual_stages[] = {1, 2, 3};
static const sl_recompute recomputes[] = {SL_RECOMPUTE_NEVER, SL_RECOMPUTE_EXCEPT_LAST,
                                          SL_RECOMPUTE_ALWAYS};

static sli_cluster_job make_job(const sl_module *model, int devices, int modules)
{
    int schedules = 0;
    while (sl_schedule_names[schedules])
        schedules++;
    return (sli_cluster_job){.model = model,
                             .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                             .row_tokens = 16,
                             .head_blocks = 8,
                             .space = {.ranks = devices,
                                       .rows = 8,
                                       .least_replicas = 1,
                                       .most_replicas = 8,
                                       .least_pipeline_ranks = 1,
                                       .most_pipeline_ranks = modules,
                                       .schedules = sl_schedule_names,
                                       .schedule_count = schedules,
                                       .virtual_stages = virtual_stages,
                                       .virtual_count = 3,
                                       .chunks = chunks,
                                       .chunk_count = 4,
                                       .recomputes = recomputes,
                                       .recompute_count = 3,
                                       .zeros = {false, true},
                                       .near_replicas = {false, true},
                                       .splits_vocabulary = {false, true}}};
}

static int draw_memory(unsigned *draw)
{
    return test_draw(draw, 0, 2) == 0 ? 2000000 : 1000000 + test_draw(draw, 40, 400) * 1000;
}

static const char *draw_device(unsigned *draw)
{
    return test_draw(draw, 0, 1) ? "cuda" : "cpu";
}

/* Two kinds of nodes, whose memory is little more or less than the model's. */
static void draw_cluster(unsigned *draw, sli_cluster *out)
{
    char text[1024];
    int memory = draw_memory(draw);
    int length = snprintf(
        text, sizeof text,
        "{\"nodes\": [{\"count\": 2, \"devices\": 2, \"device\": \"%s\", \"memory_bytes\": %d, "
        "\"reserved_bytes\": 900000, \"flops_f32\": %d, \"memory_bytes_per_s\": %de7, "
        "\"efficiency\": [[1e5, 0.%d], [1e8, 0.%d]]},"
        "{\"count\": 1, \"devices\": 2, \"device\": \"%s\", \"memory_bytes\": %d, "
        "\"reserved_bytes\": 900000, \"flops_f32\": %d, \"memory_bytes_per_s\": 1e9}],"
        "\"links\": {\"node\": {\"latency_s\": %de-6, \"bytes_per_s\": %de6, \"message_s\": 1e-6},"
        "\"spine\": {\"latency_s\": %de-6, \"bytes_per_s\": %de5, \"message_s\": 1e-6}},"
        "\"jitter\": {\"spread\": 0.0%d}}",
        draw_device(draw), memory, test_draw(draw, 1, 100) * 10000000, test_draw(draw, 10, 1000),
        test_draw(draw, 1, 9), test_draw(draw, 1, 9), draw_device(draw),
        test_draw(draw, 0, 1) ? memory : draw_memory(draw), test_draw(draw, 1, 100) * 10000000,
        test_draw(draw, 0, 20), test_draw(draw, 1, 1000), test_draw(draw, 0, 200),
        test_draw(draw, 1, 1000), test_draw(draw, 0, 5));
    assert_true(length < (int)sizeof text);
    check_ok(sli_cluster_parse("drawn", text, strlen(text), out));
}

/* No search of one shape alone finds a faster layout. */
static void check_shapes(const sli_cluster_job *job, const sli_cluster *cluster,
                         const sli_search *results)
{
    for (int replicas = 1; replicas <= job->space.most_replicas; replicas++)
        for (int ranks = 1; ranks <= job->space.most_pipeline_ranks; ranks++)
            for (int i = 0; i < (ranks > 1 ? job->space.schedule_count : 1); i++) {
                sli_found_layout best;
                sli_cluster_search counts;
                sli_search shape = {.wanted = 1, .found = &best};
                sli_cluster_job one = *job;
                one.space.least_replicas = one.space.most_replicas = replicas;
                one.space.least_pipeline_ranks = one.space.most_pipeline_ranks = ranks;
                one.space.schedules = &job->space.schedules[i];
                one.space.schedule_count = 1;
                check_ok(sli_search_cluster(&one, cluster, &shape, &counts));
                if (shape.count > 0) {
                    assert_true(results->count > 0);
                    assert_true(results->found[0].costs.seconds <=
                                best.costs.seconds * (1 + 1e-12));
                }
            }
}

/* Where as many are wanted as there are shapes, no bound leaves out a layout. */
static int64_t check_search(const sl_module *model, const sli_cluster *cluster, int modules,
                            int shards, int64_t eval_rows, bool looks_at_shapes, int *split)
{
    static sli_found_layout best[WANTED], all[MOST_SHAPES];
    sli_cluster_search counts, all_counts;
    sli_search few = {.wanted = WANTED, .prefers_fewer_ranks = true, .found = best};
    sli_search every = {.wanted = MOST_SHAPES, .prefers_fewer_ranks = true, .found = all};
    sli_cluster_job job = make_job(model, cluster->devices, modules);
    job.eval_rows = eval_rows;
    if (shards > 0) {
        job.shards = job.space.most_replicas = shards;
        job.shard_rows = 8;
        job.space.rows = 0;
    }
    check_ok(sli_search_cluster(&job, cluster, &few, &counts));
    check_ok(sli_search_cluster(&job, cluster, &every, &all_counts));
    assert_true(every.count < MOST_SHAPES);
    assert_int_equal(few.count, every.count < WANTED ? every.count : WANTED);
    for (int i = 0; i < few.count; i++) {
        assert_float_equal(best[i].costs.seconds, all[i].costs.seconds,
                           1e-12 * all[i].costs.seconds);
        *split += best[i].candidate.splits_vocabulary;
    }
    assert_int_equal(counts.layouts, all_counts.layouts);
    assert_true(counts.simulated <= all_counts.simulated);
    if (looks_at_shapes)
        check_shapes(&job, cluster, &few);
    return all_counts.simulated - counts.simulated;
}

/* A layer, or weights of all layers, behind others that are trained. */
static void freeze_in_the_middle(unsigned *draw, sl_module *model, int layers)
{
    if (test_draw(draw, 0, 1))
        check_ok(sl_module_freeze(sl_module_child(model, test_draw(draw, 1, layers))));
    else
        check_ok(sli_module_freeze_named(model, "*linear1*"));
}

/* With a vocabulary that takes longer than some layers, some heads tied to the embedding. */
static sl_module *make_wide_model(unsigned *draw, int layers)
{
    const sl_model_options options = {.ntokens = test_draw(draw, 100, 1000),
                                      .emsize = 16,
                                      .nhid = 16,
                                      .nhead = 2,
                                      .nlayers = layers,
                                      .context = 16,
                                      .tie = test_draw(draw, 0, 1)};
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options, &model));
    return model;
}

/* Some models have frozen modules, some have enough for six pipeline ranks, and some steps have
 * shards that fewer replicas train in turn. */
static void best_layouts_are_those_of_the_simulation_of_all(void **state)
{
    enum { MOST_LAYERS = 8, ROUNDS = 60 };
    unsigned draw = test_seed(5);
    int64_t pruned = 0;
    int split = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int layers = test_draw(&draw, 3, MOST_LAYERS);
        SCOPED(sl_module) *model =
            round % 3 == 2
                ? make_wide_model(&draw, layers)
                : make_frozen_model(layers, round % 3 == 0 ? test_draw(&draw, 1, layers) : 0);
        if (round % 4 == 1)
            freeze_in_the_middle(&draw, model, layers);
        sli_cluster cluster;
        draw_cluster(&draw, &cluster);
        pruned +=
            check_search(model, &cluster, layers + 2, round % 5 == 1 ? test_draw(&draw, 1, 6) : 0,
                         test_draw(&draw, 0, 20), round % 4 == 0, &split);
        sli_cluster_clear(&cluster);
    }
    assert_true(pruned > 0);
    assert_true(split > 0);
}

/* ---- Measured times ------------------------------------------------------------------------- */

/* Modules whose times the search cuts evenly, though the first gradient waits for the last stage.
 */
static void measured_times_decide_the_cut(void **state)
{
    static const char text[] =
        "{\"nodes\": [{\"devices\": 3, \"memory_bytes\": 2e9, \"flops_f32\": 1e9, \"profile\": "
        "{\"precision\": \"f32\", \"row_tokens\": 16, \"modules\": ["
        "{\"parameters\": 1, \"trained\": 1, \"seconds\": [[5, 1, 0, 1]]},"
        "{\"count\": 6, \"parameters\": 1, \"trained\": 1, \"seconds\": [[1, 3, 2, 1]]},"
        "{\"parameters\": 1, \"trained\": 1, \"seconds\": [[0, 7, 6, 1]]}]}}]}";
    static sli_found_layout found[WANTED * 4];
    SCOPED(sl_module) *model = make_model(6);
    sli_cluster cluster;
    sli_cluster_search counts;
    sli_search search = {.wanted = WANTED * 4, .found = found};
    int shorter = 0;
    check_ok(sli_cluster_parse("measured", text, strlen(text), &cluster));
    sli_cluster_job job = make_job(model, 3, 3);
    check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
    assert_true(search.count > 4);
    for (int i = 0; i < search.count; i++) {
        sli_found_layout before = found[i];
        int modules = 0;
        check_ok(sli_cluster_recut(&job, &cluster, &found[i]));
        assert_true(found[i].costs.seconds <= before.costs.seconds);
        assert_int_equal(found[i].stages, before.stages);
        shorter += found[i].costs.seconds < before.costs.seconds;
        for (int s = 0; s < found[i].stages; s++)
            modules += found[i].balance[s];
        assert_int_equal(modules, 8);
        assert_true(found[i].host_bytes > 0);
        sli_found_layout again = found[i];
        check_ok(sli_cluster_recut(&job, &cluster, &again));
        assert_true(again.costs.seconds == found[i].costs.seconds);
    }
    assert_true(shorter > 0);
    /* Rates alone are no measurement. */
    sli_kind_profile_clear(&cluster.kinds[0].profile);
    sli_found_layout kept = found[search.count - 1];
    kept.costs.seconds = 1e9;
    check_ok(sli_cluster_recut(&job, &cluster, &kept));
    assert_float_equal(kept.costs.seconds, 1e9, 0);
    sli_cluster_clear(&cluster);
}

/* ---- Several kinds of nodes ----------------------------------------------------------------- */

#define NODES_OF(flops, efficiency, device)                                                        \
    "{\"devices\": 1, \"memory_bytes\": 2e9, \"memory_bytes_per_s\": 1e12, \"flops_f32\": " flops  \
    ", \"efficiency\": [[1, " efficiency "]], \"device\": \"" device "\"}"

/* The step of two replicas, one on a node of each kind, with several buckets of gradients. */
static sl_step_costs time_two_nodes(const char *first, const char *second)
{
    static const sl_model_options wide = {
        .ntokens = 50, .emsize = 256, .nhid = 256, .nhead = 2, .nlayers = 4, .context = 16};
    static const char *const gpipe[] = {"gpipe"};
    static sli_found_layout best;
    char text[1024];
    SCOPED(sl_module) *model;
    sli_cluster cluster;
    sli_cluster_search counts;
    sli_search search = {.wanted = 1, .found = &best};
    check_ok(sl_transformer_lm_create(&wide, &model));
    snprintf(text, sizeof text, "{\"nodes\": [%s, %s]}", first, second);
    check_ok(sli_cluster_parse("two", text, strlen(text), &cluster));
    sli_cluster_job job = make_job(model, 2, 1);
    job.space.least_replicas = job.space.most_replicas = 2;
    job.space.schedules = gpipe;
    job.space.schedule_count = job.space.chunk_count = 1;
    check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
    assert_int_equal(search.count, 1);
    sli_cluster_clear(&cluster);
    return best.costs;
}

static void slowest_kind_is_the_one_that_reaches_least(void **state)
{
    const char *slow = NODES_OF("2e9", "0.1", "cpu"), *fast = NODES_OF("1e9", "0.9", "cpu");
    double seconds = time_two_nodes(slow, slow).pipeline;
    assert_float_equal(time_two_nodes(slow, fast).pipeline, seconds, 1e-12);
    assert_float_equal(time_two_nodes(fast, slow).pipeline, seconds, 1e-12);
    assert_true(time_two_nodes(fast, fast).pipeline < seconds / 2);
}

static void exchange_is_hidden_where_all_kinds_can(void **state)
{
    const char *cpu = NODES_OF("2e9", "0.5", "cpu"), *cuda = NODES_OF("1e9", "0.5", "cuda");
    double shown = time_two_nodes(cpu, cpu).exchange;
    assert_true(time_two_nodes(cuda, cuda).exchange < shown);
    assert_float_equal(time_two_nodes(cpu, cuda).exchange, shown, 1e-12);
    assert_float_equal(time_two_nodes(cuda, cpu).exchange, shown, 1e-12);
}

static void used_devices_are_the_first(void **state)
{
    static const char text[] =
        "{\"nodes\": [{\"count\": 2, \"devices\": 2, \"memory_bytes\": 2e9, \"flops_f32\": 1e12},"
        "{\"name\": \"large\", \"device\": \"cuda\", \"devices\": 2, \"memory_bytes\": 8e9, "
        "\"flops_f32\": 3e12, \"memory_bytes_per_s\": 1e9}]}";
    sli_cluster cluster;
    sli_devices devices;
    check_ok(sli_cluster_parse("used", text, strlen(text), &cluster));
    check_ok(sli_devices_list(&cluster, SL_PRECISION_F32, &devices));
    const sli_used_devices two = sli_devices_used(&devices, 2),
                           three = sli_devices_used(&devices, 3);
    assert_int_equal(two.kind_count, 1);
    assert_true(two.is_cuda);
    assert_string_equal(two.least->name, "large");
    assert_float_equal(two.memory_bytes, 7e9, 0);
    assert_float_equal(two.flops, 6e12, 0);
    assert_int_equal(three.kind_count, 2);
    assert_false(three.is_cuda);
    assert_string_equal(three.least->name, "nodes[0]");
    assert_float_equal(three.memory_bytes, 1e9, 0);
    assert_float_equal(three.memory_bytes_per_s, 1e9, 0);
    assert_float_equal(three.flops, 7e12, 0);
    assert_float_equal(three.flops_f32, 1e12, 0);
    sli_devices_clear(&devices);
    sli_cluster_clear(&cluster);
}

/* 110 numbers of micro-batches divide these rows. */
static void any_number_of_micro_batch_sizes_is_searched(void **state)
{
    enum { STEP_ROWS = 55440, MOST = 4096 };
    static const char text[] =
        "{\"nodes\": [{\"devices\": 1, \"memory_bytes\": 1e15, \"flops_f32\": 1e12}]}";
    static int divisors[MOST];
    static sli_found_layout best;
    SCOPED(sl_module) *model = make_model(2);
    sli_cluster cluster;
    sli_cluster_search counts;
    sli_search search = {.wanted = 1, .found = &best};
    check_ok(sli_cluster_parse("one", text, strlen(text), &cluster));
    sli_cluster_job job = make_job(model, 1, 1);
    job.space.rows = STEP_ROWS;
    job.space.chunks = divisors;
    job.space.chunk_count = 0;
    for (int count = 1; count <= MOST; count++)
        if (STEP_ROWS % count == 0)
            divisors[job.space.chunk_count++] = count;
    assert_true(job.space.chunk_count > 64);
    check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
    assert_int_equal(counts.layouts, job.space.chunk_count);
    sli_cluster_clear(&cluster);
}

/* The order of zb-v has two stages on each of several ranks. */
static void one_rank_has_one_stage(void **state)
{
    static const char text[] =
        "{\"nodes\": [{\"devices\": 1, \"memory_bytes\": 2e9, \"flops_f32\": 1e9}]}";
    static const char *const schedules[] = {"interleaved", "zb-v"};
    static sli_found_layout best;
    SCOPED(sl_module) *model = make_model(4);
    sli_cluster cluster;
    sli_cluster_search counts;
    check_ok(sli_cluster_parse("one", text, strlen(text), &cluster));
    for (int i = 0; i < 2; i++) {
        sli_search search = {.wanted = 1, .found = &best};
        sli_cluster_job job = make_job(model, 1, 1);
        job.space.schedules = &schedules[i];
        job.space.schedule_count = 1;
        check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
        assert_int_equal(search.count, 1);
        assert_int_equal(best.stages, 1);
        assert_string_equal(sli_candidate_schedule(&best.candidate), "gpipe");
    }
    sli_cluster_clear(&cluster);
}

/* A batch that is evaluated needs more than a step's micro-batch of a row. */
static void larger_evaluations_need_memory(void **state)
{
    static const char text[] =
        "{\"nodes\": [{\"devices\": 1, \"memory_bytes\": 2e9, \"flops_f32\": 1e9}]}";
    static sli_found_layout best;
    SCOPED(sl_module) *model = make_model(4);
    sli_cluster cluster;
    sli_cluster_search counts;
    int64_t bytes[2];
    check_ok(sli_cluster_parse("one", text, strlen(text), &cluster));
    for (int i = 0; i < 2; i++) {
        sli_search search = {.wanted = 1, .found = &best};
        sli_cluster_job job = make_job(model, 1, 1);
        job.space.rows = 1;
        job.eval_rows = i == 0 ? 1 : 1000;
        check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
        assert_int_equal(search.count, 1);
        bytes[i] = best.host_bytes;
    }
    assert_true(bytes[1] > bytes[0] + (int64_t)sizeof(float) * 999 * 16 * 16);
    sli_cluster_clear(&cluster);
}

static void nothing_that_fits_says_what_is_missing(void **state)
{
    static const char text[] =
        "{\"nodes\": [{\"devices\": 2, \"memory_bytes\": 1e6, \"reserved_bytes\": 999990,"
        "\"flops_f32\": 1e9}]}";
    static sli_found_layout best[WANTED];
    SCOPED(sl_module) *model = make_model(2);
    sli_cluster cluster;
    sli_cluster_search counts;
    sli_search search = {.wanted = WANTED, .holder = "device", .found = best};
    check_ok(sli_cluster_parse("small", text, strlen(text), &cluster));
    const sli_cluster_job job = make_job(model, 2, 4);
    check_ok(sli_search_cluster(&job, &cluster, &search, &counts));
    assert_int_equal(search.count, 0);
    char text_of_missing[128];
    snprintf(text_of_missing, sizeof text_of_missing,
             "KiB of a device that has 10 B: %.2f KiB are missing",
             (double)(search.smallest_bytes - 10) / 1024);
    check_error(sli_search_refuse(&search, "at most 2 devices"), SL_ERR_MEMORY, text_of_missing);
    sli_cluster_clear(&cluster);
}

int search_cluster_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_those_of_the_nearest_common_level),
        cmocka_unit_test(exchange_goes_to_every_replica),
        cmocka_unit_test(largest_stage_is_as_small_as_any_cut_allows),
        cmocka_unit_test(best_layouts_are_those_of_the_simulation_of_all),
        cmocka_unit_test(measured_times_decide_the_cut),
        cmocka_unit_test(slowest_kind_is_the_one_that_reaches_least),
        cmocka_unit_test(exchange_is_hidden_where_all_kinds_can),
        cmocka_unit_test(used_devices_are_the_first),
        cmocka_unit_test(any_number_of_micro_batch_sizes_is_searched),
        cmocka_unit_test(one_rank_has_one_stage),
        cmocka_unit_test(larger_evaluations_need_memory),
        cmocka_unit_test(nothing_that_fits_says_what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
