/* What would help a plan for a cluster that is made by hand. */
#include "io/scratch.h"
#include "sluice/app/plan.h"
#include "support/check.h"

#include <string.h>

static sl_train_options options_of_model(void)
{
    sl_train_options options;
    sl_train_options_default(&options);
    options.model = (sl_model_options){
        .ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = 4, .context = 8};
    options.bptt = 8;
    options.batch_size = options.eval_batch_size = 16;
    options.schedule = "gpipe";
    options.chunks = 4;
    options.replicas = options.pipeline_ranks = 1;
    return options;
}

/* Plans that keep replicas, pipeline ranks, schedule, chunks and a whole head. */
static void find_plans(const char *path, const char *cluster, const sl_train_options *run,
                       sl_cluster_plans *out)
{
    const sl_plan_search_options options = {.run = run,
                                            .kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS |
                                                    SL_KEEP_SCHEDULE | SL_KEEP_CHUNKS |
                                                    SL_KEEP_SPLIT_VOCABULARY,
                                            .batch_tokens = 16 * run->bptt};
    write_file(path, cluster, strlen(cluster));
    check_ok(sl_plan_search_cluster(&options, path, out));
    assert_false(out->helps.is_lower_bound);
    assert_int_equal(out->count, 1);
}

static void check_most(const sl_plan_helps *helps, sl_plan_help most)
{
    for (int i = 0; i < SL_PLAN_HELPS; i++)
        assert_true(i == (int)most || helps->gain[i] < helps->gain[most]);
    assert_true(helps->gain[most] > 1.01);
}

/* A tenth of a second and more for the gradients: half of what the bytes take is to be had. */
static void links_help_an_exchange(void **state)
{
    static const char cluster[] =
        "{\"nodes\": [{\"count\": 2, \"devices\": 1, \"memory_bytes\": 2e9, \"flops_f32\": 1e11}], "
        "\"links\": {\"spine\": {\"latency_s\": 0, \"bytes_per_s\": 1e5, \"message_s\": 0}}}";
    sl_train_options run = options_of_model();
    sl_cluster_plans plans;
    run.replicas = 2;
    find_plans(scratch_path(*state, "cluster.json"), cluster, &run, &plans);
    const sl_step_costs *costs = &plans.plans[0].costs;
    check_most(&plans.helps, SL_HELP_LINKS);
    assert_float_equal(plans.helps.gain[SL_HELP_LINKS],
                       costs->seconds / (costs->seconds - costs->exchange / 2), 1e-9);
    assert_float_equal(plans.helps.gain[SL_HELP_MEMORY], 1, 1e-12);
    assert_float_equal(plans.helps.gain[SL_HELP_FEWER], 0, 0);
    double exchange = costs->exchange;
    sl_cluster_plans_clear(&plans);
    run.comm_precision = SL_PRECISION_BF16;
    find_plans(scratch_path(*state, "cluster.json"), cluster, &run, &plans);
    assert_float_equal(costs->exchange, exchange / 2, 1e-9);
    sl_cluster_plans_clear(&plans);
}

/* A byte too little for two stages that recompute nothing, and that are as long as each other. */
static void memory_helps_where_the_fastest_layout_does_not_fit(void **state)
{
    static const char format[] = "{\"nodes\": [{\"devices\": 2, \"memory_bytes\": %lld, "
                                 "\"reserved_bytes\": 0, \"flops_f32\": 1e9}]}";
    sl_train_options run = options_of_model();
    sl_cluster_plans plans;
    char cluster[256];
    run.pipeline_ranks = 2;
    run.model.emsize = run.model.nhid = 64;
    snprintf(cluster, sizeof cluster, format, 1LL << 30);
    find_plans(scratch_path(*state, "cluster.json"), cluster, &run, &plans);
    double seconds = plans.plans[0].costs.seconds;
    assert_int_equal(plans.plans[0].recompute, SL_RECOMPUTE_NEVER);
    snprintf(cluster, sizeof cluster, format, (long long)plans.plans[0].memory_bytes - 1);
    sl_cluster_plans_clear(&plans);
    find_plans(scratch_path(*state, "cluster.json"), cluster, &run, &plans);
    check_most(&plans.helps, SL_HELP_MEMORY);
    assert_true(plans.plans[0].costs.seconds > seconds);
    assert_float_equal(plans.helps.gain[SL_HELP_MEMORY], plans.plans[0].costs.seconds / seconds,
                       1e-9);
    sl_cluster_plans_clear(&plans);
}

/* Messages between two nodes take longer than all work: one stage has none. */
static void one_stage_helps_where_messages_take_long(void **state)
{
    static const char cluster[] =
        "{\"nodes\": [{\"count\": 2, \"devices\": 1, \"memory_bytes\": 2e9, \"flops_f32\": 1e11}], "
        "\"links\": {\"spine\": {\"latency_s\": 0.1, \"bytes_per_s\": 1e9}}}";
    sl_train_options run = options_of_model();
    sl_cluster_plans plans;
    run.pipeline_ranks = 2;
    find_plans(scratch_path(*state, "cluster.json"), cluster, &run, &plans);
    check_most(&plans.helps, SL_HELP_FEWER);
    double seconds = plans.plans[0].costs.seconds / plans.helps.gain[SL_HELP_FEWER];
    sl_cluster_plans_clear(&plans);
    run.pipeline_ranks = 1;
    find_plans(scratch_path(*state, "cluster.json"), cluster, &run, &plans);
    assert_float_equal(seconds, plans.plans[0].costs.seconds, 1e-9);
    sl_cluster_plans_clear(&plans);
}

static sl_cluster_plan best_plan(const char *path, const sl_train_options *run, unsigned kept)
{
    const sl_plan_search_options options = {.run = run,
                                            .kept = kept,
                                            .batch_tokens = 16 * run->bptt,
                                            .best_only = true};
    sl_cluster_plans plans;
    check_ok(sl_plan_search_cluster(&options, path, &plans));
    sl_cluster_plan best = plans.plans[0];
    best.balance = NULL;
    sl_cluster_plans_clear(&plans);
    return best;
}

/* Two nodes of two devices, two replicas of two stages. Of a wide model's few tokens gradients are
 * more bytes than activations, and the replicas of a stage are in a node; of a narrow one's many,
 * the ranks of a pipeline. */
static void most_bytes_stay_in_a_node(void **state)
{
    static const char cluster[] =
        "{\"nodes\": [{\"count\": 2, \"devices\": 2, \"memory_bytes\": 2e9, \"flops_f32\": 1e9}], "
        "\"links\": {\"node\": {\"latency_s\": 0, \"bytes_per_s\": 1e12, \"message_s\": 0}, "
        "\"spine\": {\"latency_s\": 0, \"bytes_per_s\": 1e6, \"message_s\": 0}}}";
    const unsigned kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_CHUNKS;
    const char *path = scratch_path(*state, "cluster.json");
    sl_train_options wide = options_of_model(), narrow = wide;
    wide.replicas = wide.pipeline_ranks = narrow.replicas = narrow.pipeline_ranks = 2;
    wide.model.emsize = wide.model.nhid = 64;
    narrow.bptt = narrow.model.context = 128;
    write_file(path, cluster, strlen(cluster));
    assert_true(best_plan(path, &wide, kept).near_replicas);
    assert_false(best_plan(path, &narrow, kept).near_replicas);
}

/* Of two micro-batches a rank has less to wait for with several stages. */
static void few_micro_batches_ask_for_virtual_stages(void **state)
{
    static const char cluster[] =
        "{\"nodes\": [{\"devices\": 2, \"memory_bytes\": 2e9, \"flops_f32\": 1e9}], \"links\": "
        "{\"node\": {\"latency_s\": 0, \"bytes_per_s\": 1e12, \"message_s\": 0}}}";
    const unsigned kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_CHUNKS;
    const char *path = scratch_path(*state, "cluster.json");
    sl_train_options run = options_of_model();
    run.pipeline_ranks = run.chunks = 2;
    run.model.nlayers = 6;
    write_file(path, cluster, strlen(cluster));
    run.virtual_stages = 1;
    const sl_cluster_plan one = best_plan(path, &run, kept);
    run.virtual_stages = 0;
    const sl_cluster_plan best = best_plan(path, &run, kept);
    assert_true(best.virtual_stages > 1);
    assert_true(best.costs.seconds < one.costs.seconds);
    run.schedule = "interleaved";
    assert_true(best_plan(path, &run, kept | SL_KEEP_SCHEDULE).virtual_stages > 2);
}

/* Of a vocabulary that takes longer than all layers together each rank has its words, on CPUs. */
static void large_vocabulary_is_split(void **state)
{
    static const char format[] =
        "{\"nodes\": [{\"devices\": 2, \"memory_bytes\": 2e9, \"flops_f32\": 1e9, "
        "\"device\": \"%s\"}], "
        "\"links\": {\"node\": {\"latency_s\": 0, \"bytes_per_s\": %s, \"message_s\": 0}}}";
    const unsigned kept = SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_CHUNKS;
    const char *path = scratch_path(*state, "cluster.json");
    char text[512];
    sl_train_options run = options_of_model();
    run.pipeline_ranks = 2;
    run.model.ntokens = 20000;
    snprintf(text, sizeof text, format, "cpu", "1e12");
    write_file(path, text, strlen(text));
    const sl_cluster_plan whole = best_plan(path, &run, kept | SL_KEEP_SPLIT_VOCABULARY),
                          split = best_plan(path, &run, kept);
    assert_false(whole.split_vocabulary);
    assert_true(split.split_vocabulary);
    assert_true(split.costs.seconds < whole.costs.seconds);
    assert_true(split.costs.pipeline < 0.7 * whole.costs.pipeline);
    snprintf(text, sizeof text, format, "cpu", "1e3"); /* its sums are more bytes */
    write_file(path, text, strlen(text));
    assert_false(best_plan(path, &run, kept).split_vocabulary);
    run.split_vocabulary = true;
    assert_true(best_plan(path, &run, kept).split_vocabulary);
    run.split_vocabulary = false;
    snprintf(text, sizeof text, format, "cuda", "1e12");
    write_file(path, text, strlen(text));
    assert_false(best_plan(path, &run, kept).split_vocabulary);
}

static double kept_tokens_per_s(const sl_cluster_plan *plan)
{
    return plan->tokens_per_s * plan->failures.kept_fraction;
}

/* A node that writes the whole state takes longer than two that write half of it, which outweighs
 * what ZeRO's broadcasts cost. */
static void checkpoints_decide_between_layouts_of_one_shape(void **state)
{
    static const char cluster[] =
        "{\"nodes\": [{\"count\": 2, \"devices\": 1, \"memory_bytes\": 2e9, \"flops_f32\": 1e9, "
        "\"memory_bytes_per_s\": 1e12}], \"failures\": {\"mtbf_s\": 1e4, \"save_bytes_per_s\": "
        "1e3}}";
    const unsigned kept =
        SL_KEEP_REPLICAS | SL_KEEP_PIPELINE_RANKS | SL_KEEP_SCHEDULE | SL_KEEP_CHUNKS;
    const char *path = scratch_path(*state, "cluster.json");
    sl_train_options run = options_of_model();
    run.replicas = 2;
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    write_file(path, cluster, strlen(cluster));
    const sl_cluster_plan whole = best_plan(path, &run, kept | SL_KEEP_ZERO);
    run.zero = true;
    const sl_cluster_plan sharded = best_plan(path, &run, kept | SL_KEEP_ZERO);
    run.zero = false;
    assert_true(sharded.costs.seconds > whole.costs.seconds);
    assert_true(kept_tokens_per_s(&sharded) > kept_tokens_per_s(&whole));
    const sl_cluster_plan best = best_plan(path, &run, kept);
    assert_true(best.zero);
    assert_float_equal(kept_tokens_per_s(&best), kept_tokens_per_s(&sharded), 1e-9);
}

#define WITH_FILES(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)

int search_cluster_tests(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FILES(links_help_an_exchange),
        WITH_FILES(memory_helps_where_the_fastest_layout_does_not_fit),
        WITH_FILES(one_stage_helps_where_messages_take_long),
        WITH_FILES(most_bytes_stay_in_a_node),
        WITH_FILES(few_micro_batches_ask_for_virtual_stages),
        WITH_FILES(large_vocabulary_is_split),
        WITH_FILES(checkpoints_decide_between_layouts_of_one_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
