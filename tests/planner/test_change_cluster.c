/* Clusters with others than their file has. */
#include "planner/cluster.h"

#include "support/check.h"

#include <string.h>

static const char text[] =
    "{\"nodes\": [{\"count\": 3, \"devices\": 4, \"memory_bytes\": 2e9, \"flops_f32\": 1e12}],"
    "\"links\": {\"node\": {\"latency_s\": 1, \"bytes_per_s\": 8}},"
    "\"failures\": {\"mtbf_s\": 1000}}";

static void open_cluster(const char *of, sli_cluster *out)
{
    check_ok(sli_cluster_parse("cluster.json", of, strlen(of), out));
}

static double find_input(const sli_cluster *cluster, const char *name)
{
    for (size_t i = 0; i < cluster->input_count; i++)
        if (strcmp(cluster->inputs[i].name, name) == 0)
            return cluster->inputs[i].value;
    fail_msg("no number is called %s", name);
    return 0;
}

static void changes_are_in_the_cluster_and_its_list(void **state)
{
    sli_cluster cluster;
    open_cluster(text, &cluster);
    check_ok(sli_cluster_change(
        &cluster, &(sl_cluster_change){.links = 2, .memory = 3, .nodes = 6, .failures = 4}));
    assert_int_equal(cluster.devices, 24);
    assert_int_equal(cluster.kinds[0].count, 6);
    assert_float_equal(cluster.links[SLI_LEVEL_NODE].seconds_per_byte, 1.0 / 16, 1e-12);
    assert_float_equal(cluster.links[SLI_LEVEL_NODE].seconds, 1, 0);
    assert_float_equal(cluster.links[SLI_LEVEL_SPINE].seconds_per_byte, 1 / 2.5e9, 1e-15);
    assert_float_equal(cluster.mtbf_s, 250, 1e-9);
    assert_float_equal(cluster.kinds[0].memory_bytes, 6e9, 0);
    assert_float_equal(find_input(&cluster, "nodes[0].memory_bytes"), 6e9, 0);
    assert_float_equal(find_input(&cluster, "nodes[0].count"), 6, 0);
    assert_float_equal(find_input(&cluster, "nodes[0].devices"), 4, 0);
    assert_float_equal(find_input(&cluster, "links.node.bytes_per_s"), 16, 0);
    assert_float_equal(find_input(&cluster, "links.node.latency_s"), 1, 0);
    assert_float_equal(find_input(&cluster, "failures.mtbf_s"), 250, 0);
    assert_float_equal(find_input(&cluster, "failures.restart_s"), 300, 0);
    sli_cluster_clear(&cluster);
}

static void zeros_change_nothing(void **state)
{
    sli_cluster cluster;
    open_cluster(text, &cluster);
    check_ok(sli_cluster_change(&cluster, &(sl_cluster_change){0}));
    assert_int_equal(cluster.devices, 12);
    assert_float_equal(cluster.links[SLI_LEVEL_NODE].seconds_per_byte, 1.0 / 8, 0);
    assert_float_equal(cluster.mtbf_s, 1000, 0);
    sli_cluster_clear(&cluster);
}

static void impossible_changes_are_refused(void **state)
{
    static const char of_two[] =
        "{\"nodes\": [{\"devices\": 4, \"memory_bytes\": 2e9, \"flops_f32\": 1e12},"
        "{\"devices\": 4, \"memory_bytes\": 2e9, \"flops_f32\": 2e12}]}";
    static const struct {
        const char *of;
        sl_cluster_change change;
        const char *error;
    } cases[] = {{of_two, {.nodes = 2}, "needs a cluster of one kind of nodes, got 2 kinds"},
                 {of_two, {.failures = 2}, "other failures need a cluster with \"failures\""},
                 {text,
                  {.nodes = 100000},
                  "at most 100000 nodes and 131072 devices, got 100000 nodes of 4"},
                 {text, {.links = -1}, "must not be negative, got links -1"},
                 {text, {.memory = -2}, "got links 0, memory -2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sli_cluster cluster;
        open_cluster(cases[i].of, &cluster);
        check_error(sli_cluster_change(&cluster, &cases[i].change), SL_ERR_INVALID, cases[i].error);
        sli_cluster_clear(&cluster);
    }
}

int change_cluster_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_are_in_the_cluster_and_its_list),
        cmocka_unit_test(zeros_change_nothing),
        cmocka_unit_test(impossible_changes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
