/* Cluster files: what they say, and how bad ones are refused. */
#include "planner/cluster.h"

#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE "\"devices\": 4, \"memory_bytes\": 2e9, \"flops_f32\": 1e12"

static sl_status parse(const char *text, sli_cluster *out)
{
    return sli_cluster_parse("cluster.json", text, strlen(text), out);
}

static const sl_cluster_input *find_input(const sli_cluster *cluster, const char *name)
{
    for (size_t i = 0; i < cluster->input_count; i++)
        if (strcmp(cluster->inputs[i].name, name) == 0)
            return &cluster->inputs[i];
    fail_msg("no number is called %s", name);
    return NULL;
}

static void numbers_say_where_they_come_from(void **state)
{
    sli_cluster cluster;
    check_ok(parse("{\n \"nodes\": [\n  {" NODE ",\n   \"reserved_bytes\": 1e6, \"count\": 3}],\n"
                   " \"links\": {\"node\": {\"latency_s\": 1e-6,\n  \"bytes_per_s\": 1e10}}}",
                   &cluster));
    assert_int_equal(cluster.kind_count, 1);
    assert_int_equal(cluster.devices, 12);
    assert_int_equal(cluster.kinds[0].count, 3);
    assert_float_equal(cluster.kinds[0].flops[SL_PRECISION_BF16], 1e12, 0);
    assert_float_equal(cluster.mtbf_s, 0, 0);
    assert_int_equal(find_input(&cluster, "nodes[0].devices")->line, 3);
    assert_int_equal(find_input(&cluster, "nodes[0].count")->line, 4);
    assert_int_equal(find_input(&cluster, "links.node.bytes_per_s")->line, 6);
    assert_int_equal(find_input(&cluster, "nodes[0].efficiency")->line, 0);
    assert_float_equal(find_input(&cluster, "nodes[0].efficiency")->value, 0.5, 0);
    assert_int_equal(find_input(&cluster, "nodes[0].flops_bf16")->line, 0);
    sli_cluster_clear(&cluster);
}

/* Of the levels whose links are not given, each has the next wider one's. */
static void levels_inherit_the_next_wider_link(void **state)
{
    sli_cluster cluster;
    check_ok(parse("{\"nodes\": [{" NODE "}], \"links\": {"
                   "\"spine\": {\"latency_s\": 1, \"bytes_per_s\": 2},"
                   "\"node\": {\"latency_s\": 3, \"bytes_per_s\": 4}}}",
                   &cluster));
    const double seconds[SLI_LEVELS] = {3, 3, 3, 1, 1};
    for (int level = 0; level < SLI_LEVELS; level++) {
        assert_float_equal(cluster.links[level].seconds, seconds[level], 0);
        assert_float_equal(cluster.links[level].seconds_per_byte, seconds[level] == 3 ? 0.25 : 0.5,
                           0);
    }
    sli_cluster_clear(&cluster);
}

static void bad_files_are_refused_by_member_line_and_range(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "cluster.json is not valid JSON"},
        {"[]", "cluster.json:1: the cluster must be an object, got []"},
        {"{}", "cluster.json:1: the cluster has no member \"nodes\""},
        {"{\"nodes\": []}", "nodes must be a list of kinds of nodes, got []"},
        {"{\"nodes\": [7]}", "cluster.json:1: nodes[0] must be an object, got 7"},
        {"{\"nodes\": [\n{\"devices\": 0}]}", "cluster.json:2: nodes[0].devices must be a whole "
                                              "number from 1 to 1024, got 0"},
        {"{\"nodes\": [\n{\"devices\": 1.5}]}", "nodes[0].devices must be a whole number"},
        {"{\"nodes\": [\n{\"devices\": \"8\"}]}", "got \"8\""},
        {"{\"nodes\": [\n{\"devices\": 1e999}]}", "got 1e999"},
        {"{\"nodes\": [\n\n{\"devices\": 8}]}",
         "cluster.json:3: nodes[0] has no member \"memory_bytes\""},
        {"{\"nodes\": [{" NODE ",\n\"memory\": 1}]}",
         "cluster.json:2: nodes[0] has a member \"memory\", which is not known"},
        {"{\"nodes\": [{" NODE ",\n\"devices\": 1}]}",
         "cluster.json:2: nodes[0] has a member \"devices\" twice"},
        {"{\"nodes\": [{" NODE ",\n\"sockets\": 3}]}",
         "nodes[0].devices must be a multiple of its sockets, 3"},
        {"{\"nodes\": [{" NODE ",\n\"reserved_bytes\": 3e9}]}",
         "nodes[0].reserved_bytes must be less than its memory_bytes, 2e+09, got 3e+09"},
        {"{\"nodes\": [{" NODE ",\n\"device\": \"tpu\"}]}",
         "cluster.json:2: nodes[0].device must be \"cpu\" or \"cuda\", got \"tpu\""},
        {"{\"nodes\": [{" NODE ", \"efficiency\":\n[[1e9, 0.5], [1e8, 1]]}]}",
         "cluster.json:2: nodes[0].efficiency must be"},
        {"{\"nodes\": [{" NODE ", \"efficiency\":\n[[1e9, 1.5]]}]}",
         "cluster.json:2: nodes[0].efficiency must be"},
        {"{\"nodes\": [{" NODE ", \"efficiency\": []}]}", "nodes[0].efficiency must be"},
        {"{\"nodes\": [{" NODE ", \"count\": 100000}]}",
         "a cluster must have at most 131072 devices, got 400000"},
        {"{\"nodes\": [{" NODE "}],\n\"links\": {\"rack\": {\"nodes\": 0, "
         "\"latency_s\": 0, \"bytes_per_s\": 1}}}",
         "cluster.json:2: links.rack.nodes must be a whole number from 1 to 100000, got 0"},
        {"{\"nodes\": [{" NODE "}],\n\"links\": {\"node\": {\"latency_s\": "
         "-1, \"bytes_per_s\": 1}}}",
         "cluster.json:2: links.node.latency_s must be a number from 0 to 1000, got -1"},
        {"{\"nodes\": [{" NODE "}],\n\"failures\": {\"restart_s\": 1}}",
         "cluster.json:2: failures has no member \"mtbf_s\""},
        {"{\"nodes\": [{" NODE "}],\n\"jitter\": {\"spread\": 2}}",
         "cluster.json:2: jitter.spread must be a number from 0 to 1, got 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sli_cluster cluster;
        check_error(parse(cases[i].text, &cluster), SL_ERR_FORMAT, cases[i].error);
        sli_cluster_clear(&cluster);
    }
}

/* ---- Profiles ------------------------------------------------------------------------------- */

#define PROFILE(modules)                                                                           \
    "{\"nodes\": [{" NODE ", \"measured\": \"here\",\n\"profile\": {\"precision\": \"bf16\", "     \
    "\"row_tokens\": 16,\n\"modules\": [" modules "]}}]}"
#define TWO_RUNGS "\"parameters\": 4, \"trained\": 3, \"seconds\": [[1, 2, 3, 4], [5, 6, 7, 8]]"

static void profiles_have_each_module(void **state)
{
    sli_cluster cluster;
    check_ok(parse(PROFILE("{\"count\": 2, " TWO_RUNGS "}, {" TWO_RUNGS "}"), &cluster));
    const sli_kind_profile *profile = &cluster.kinds[0].profile;
    assert_int_equal(profile->modules, 3);
    assert_int_equal(profile->rungs, 2);
    assert_int_equal(profile->precision, SL_PRECISION_BF16);
    assert_float_equal(profile->parameters[2], 4, 0);
    assert_float_equal(profile->trained[1], 3, 0);
    for (int i = 0; i < 3; i++) {
        assert_float_equal(profile->times[0][i].forward, 1, 0);
        assert_float_equal(profile->times[1][i].backward_weight, 8, 0);
    }
    assert_int_equal(find_input(&cluster, "nodes[0].profile")->line, 2);
    assert_string_equal(find_input(&cluster, "nodes[0].devices")->measured, "here");
    assert_string_equal(find_input(&cluster, "nodes[0].sockets")->measured, "");
    sli_cluster_clear(&cluster);
}

static void bad_profiles_are_refused(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {PROFILE(""), "cluster.json:3: nodes[0].profile.modules must be a list of modules, got []"},
        {PROFILE("{\"count\": 0, " TWO_RUNGS "}"),
         "cluster.json:3: nodes[0].profile.modules[0].count must be a whole number from 1 to 4096"},
        {PROFILE("{\"count\": 4096, " TWO_RUNGS "}, {" TWO_RUNGS "}"), "at most 4096 modules"},
        {PROFILE("{" TWO_RUNGS
                 "}, {\"parameters\": 1, \"trained\": 1, \"seconds\": [[1, 2, 3, 4]]}"),
         "modules[1].seconds must be 1 to 24 lists of 4 numbers"},
        {PROFILE("{\"parameters\": 1, \"trained\": 1, \"seconds\": [[1, -2, 3, 4]]}"), "got -2"},
        {PROFILE("{\"parameters\": 1, \"trained\": 1, \"seconds\": [[0, 0, 3, 4]]}"), "not all 0"},
        {PROFILE("{\"parameters\": 1, \"trained\": 1, \"seconds\": []}"), "1 to 24 lists"},
        {PROFILE("{\"parameters\": 1, \"trained\": 1}"), "has no member \"seconds\""},
        {"{\"nodes\": [{" NODE ", \"profile\": {\"precision\": \"f8\"}}]}",
         "nodes[0].profile.precision must be \"f32\", \"bf16\" or \"tf32\", got \"f8\""},
        {"{\"nodes\": [{" NODE ", \"profile\": {\"row_tokens\": 1}}]}",
         "nodes[0].profile has no member \"precision\""},
        {"{\"nodes\": [{" NODE
         ", \"profile\": {\"precision\": \"f32\", \"row_tokens\": 1, \"model\": "
         "1}}]}",
         "nodes[0].profile.model must be an object, as a model's config.json is, got 1"},
        {"{\"nodes\": [{" NODE ", \"measured\": 1}]}",
         "nodes[0].measured must be a text of at most 63 bytes, got 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sli_cluster cluster;
        check_error(parse(cases[i].text, &cluster), SL_ERR_FORMAT, cases[i].error);
        sli_cluster_clear(&cluster);
    }
}

/* Between two rungs in a line, beyond them in proportion. */
static void rows_that_were_not_timed_follow_from_those_that_were(void **state)
{
    sl_module_profile one = {.forward = 2}, two = {.forward = 3}, four = {.forward = 7}, out;
    sl_module_profile *const ladder[] = {&one, &two, &four};
    const double expected[] = {2, 3, 5, 7, 8.75};
    for (int rows = 1; rows <= 5; rows++) {
        sli_ladder_times(ladder, 3, 1, rows, &out);
        assert_float_equal(out.forward, expected[rows - 1], 1e-12);
    }
    sli_ladder_times(ladder, 3, 1, 40, &out);
    assert_float_equal(out.forward, 70, 1e-12);
}

static void examples_are_clusters_of_their_size(void **state)
{
    static const struct {
        const char *name;
        int kinds, devices;
    } examples[] = {{"laptop", 1, 4},
                    {"two_workstations", 2, 4},
                    {"64_nodes", 1, 512},
                    {"1250_nodes", 1, 10000}};
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        char path[512];
        sli_cluster cluster;
        snprintf(path, sizeof path, "%s/examples/clusters/%s.json", getenv("SLUICE_SOURCE_DIR"),
                 examples[i].name);
        check_ok(sli_cluster_read(path, &cluster));
        assert_int_equal(cluster.kind_count, examples[i].kinds);
        assert_int_equal(cluster.devices, examples[i].devices);
        sli_cluster_clear(&cluster);
    }
}

int cluster_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_say_where_they_come_from),
        cmocka_unit_test(levels_inherit_the_next_wider_link),
        cmocka_unit_test(bad_files_are_refused_by_member_line_and_range),
        cmocka_unit_test(profiles_have_each_module),
        cmocka_unit_test(bad_profiles_are_refused),
        cmocka_unit_test(rows_that_were_not_timed_follow_from_those_that_were),
        cmocka_unit_test(examples_are_clusters_of_their_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
