/* The cluster file: JSON whose members are checked one by one, so that an error can name the
 * member, its line and its range. Members that are not given have defaults, and each number is
 * listed with where it comes from. */
#include "planner/cluster_reader.h"

#include "core/error.h"
#include "core/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t most_file_bytes = 1 << 20;

const char *const sli_level_names[SLI_LEVELS] = {"list", "socket", "node", "rack", "spine"};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- Nodes -------------------------------------------------------------------------------- */

#define NODE(member)        #member, offsetof(sli_node_kind, member)
#define RATE(name, of_node) name, offsetof(sli_node_kind, of_node), false

static const char *const node_names[] = {"name",
                                         "device",
                                         "count",
                                         "devices",
                                         "sockets",
                                         "list_devices",
                                         "memory_bytes",
                                         "flops_f32",
                                         "flops_bf16",
                                         "flops_tf32",
                                         "memory_bytes_per_s",
                                         "efficiency",
                                         "reserved_bytes",
                                         "profile",
                                         "measured",
                                         NULL};

static const sli_number_field node_fields[] = {
    {NODE(count), true, false, 1, SLI_MOST_NODES, 1},
    {NODE(devices), true, true, 1, 1024, 0},
    {NODE(sockets), true, false, 1, 1024, 1},
    {NODE(list_devices), true, false, 1, 1024, 1},
    {NODE(memory_bytes), false, true, 1e6, 1e15, 0},
    {NODE(reserved_bytes), false, false, 0, 1e15, 1e9},
    {RATE("flops_f32", flops[SL_PRECISION_F32]), true, 1e6, 1e18, 0},
};

/* [FLOP, fraction] */
static sl_status read_point(const sli_cluster_reader *reader, const sli_cluster_object *object,
                            sli_json_value value, sli_node_kind *kind)
{
    static const char *const expected =
        "at most 32 pairs of FLOP, which ascend from 1 to 1e+18, and of the fraction of the peak "
        "that is reached, above 0 and at most 1";
    sli_json_walk walk;
    double pair[2];
    int count = 0;
    if (!sli_json_is(value, '[') || kind->points == SLI_MOST_CURVE_POINTS)
        return sli_cluster_refuse(reader, object, "efficiency", value, expected);
    SL_TRY(sli_json_walk_begin(&reader->json, value, &walk));
    for (; sli_json_walk_next(&walk); count++)
        if (count == 2 || !sli_cluster_parse_number(reader, walk.value, &pair[count]))
            return sli_cluster_refuse(reader, object, "efficiency", value, expected);
    SL_TRY(walk.status);
    double before = kind->points > 0 ? kind->curve[kind->points - 1].flop : 0;
    if (count < 2 || pair[0] < 1 || pair[0] <= before || pair[0] > 1e18 || pair[1] <= 0 ||
        pair[1] > 1)
        return sli_cluster_refuse(reader, object, "efficiency", value, expected);
    kind->curve[kind->points++] = (sli_efficiency){pair[0], pair[1]};
    return SL_OK;
}

/* Half of the peak at any size, unless the file says otherwise. */
static sl_status read_efficiency(const sli_cluster_reader *reader, const sli_cluster_object *object,
                                 sli_node_kind *kind)
{
    sli_json_value list = sli_cluster_member(object, "efficiency");
    sli_json_walk walk;
    kind->points = 0;
    if (!list.begin) {
        kind->curve[kind->points++] = (sli_efficiency){1, 0.5};
        return sli_cluster_list_input(reader, object, "efficiency", 0.5, 0);
    }
    if (!sli_json_is(list, '['))
        return sli_cluster_refuse(reader, object, "efficiency", list,
                                  "a list of pairs of FLOP and fraction");
    SL_TRY(sli_json_walk_begin(&reader->json, list, &walk));
    while (sli_json_walk_next(&walk))
        SL_TRY(read_point(reader, object, walk.value, kind));
    SL_TRY(walk.status);
    if (kind->points == 0)
        return sli_cluster_refuse(reader, object, "efficiency", list,
                                  "a list of pairs of FLOP and fraction");
    return sli_cluster_list_input(reader, object, "efficiency",
                                  kind->curve[kind->points - 1].fraction,
                                  sli_cluster_line(reader, list.begin));
}

static sl_status read_texts(const sli_cluster_reader *reader, const sli_cluster_object *object,
                            sli_node_kind *kind)
{
    sli_json_value name = sli_cluster_member(object, "name"),
                   device = sli_cluster_member(object, "device");
    snprintf(kind->name, sizeof kind->name, "%s", object->path);
    if (name.begin)
        SL_TRY(sli_cluster_read_text(reader, object, "name", kind->name, sizeof kind->name));
    kind->is_cuda = device.begin && sli_json_equals(device, "cuda");
    if (device.begin && !kind->is_cuda && !sli_json_equals(device, "cpu"))
        return sli_cluster_refuse(reader, object, "device", device, "\"cpu\" or \"cuda\"");
    return SL_OK;
}

/* Where the file does not say: products in bf16 and tf32 are as fast as those in f32, and memory
 * gives a byte for 20 FLOP. */
static sl_status read_node(const sli_cluster_reader *reader, sli_json_value value, int index,
                           sli_cluster *out)
{
    sli_node_kind *kind = &out->kinds[index];
    sli_cluster_object object = {.names = node_names};
    snprintf(object.path, sizeof object.path, "nodes[%d]", index);
    SL_TRY(sli_cluster_open_object(reader, value, &object));
    SL_TRY(read_texts(reader, &object, kind));
    SL_TRY(sli_cluster_read_numbers(reader, &object, node_fields, COUNT_OF(node_fields), kind));
    const sli_number_field rates[] = {{RATE("flops_bf16", flops[SL_PRECISION_BF16]), false, 1e6,
                                       1e18, kind->flops[SL_PRECISION_F32]},
                                      {RATE("flops_tf32", flops[SL_PRECISION_TF32]), false, 1e6,
                                       1e18, kind->flops[SL_PRECISION_F32]},
                                      {NODE(memory_bytes_per_s), false, false, 1e6, 1e16,
                                       kind->flops[SL_PRECISION_F32] / 20}};
    SL_TRY(sli_cluster_read_numbers(reader, &object, rates, COUNT_OF(rates), kind));
    if (kind->reserved_bytes >= kind->memory_bytes)
        return sl_error(SL_ERR_FORMAT,
                        "%s:%d: %s.reserved_bytes must be less than its memory_bytes, %g, got %g",
                        reader->name, object.line, object.path, kind->memory_bytes,
                        kind->reserved_bytes);
    if (kind->devices % kind->sockets != 0 || kind->devices % kind->list_devices != 0)
        return sl_error(SL_ERR_FORMAT,
                        "%s:%d: %s.devices must be a multiple of its sockets, %d, and of its "
                        "list_devices, %d, got %d",
                        reader->name, object.line, object.path, kind->sockets, kind->list_devices,
                        kind->devices);
    out->devices += kind->count * kind->devices;
    if (sli_cluster_member(&object, "profile").begin)
        SL_TRY(sli_cluster_read_profile(reader, &object, &kind->profile));
    return read_efficiency(reader, &object, kind);
}

static sl_status read_nodes(const sli_cluster_reader *reader, const sli_cluster_object *object,
                            sli_cluster *out)
{
    sli_json_walk walk;
    SL_TRY(sli_cluster_walk_list(reader, object, "nodes", "a list of kinds of nodes", &walk));
    while (sli_json_walk_next(&walk)) {
        if (out->kind_count == SLI_MOST_NODE_KINDS)
            return sli_cluster_refuse(reader, object, "nodes", walk.value, "at most 16 kinds");
        SL_TRY(read_node(reader, walk.value, out->kind_count++, out)); /* cleared, if it fails */
        if (out->devices > SLI_MOST_CLUSTER_DEVICES)
            return sl_error(SL_ERR_FORMAT,
                            "%s:%d: a cluster must have at most %d devices, got %d or more",
                            reader->name, sli_cluster_line(reader, walk.value.begin),
                            SLI_MOST_CLUSTER_DEVICES, out->devices);
    }
    SL_TRY(walk.status);
    return out->kind_count > 0
               ? SL_OK
               : sli_cluster_refuse(reader, object, "nodes", sli_cluster_member(object, "nodes"),
                                    "a list of kinds of nodes");
}

/* ---- Links -------------------------------------------------------------------------------- */

/* 10 Gbit/s, of Ethernet. */
static const double default_latency_s = 2e-5, default_bytes_per_s = 1.25e9,
                    default_message_s = 1e-6;

/* A level without a link has the next wider one's. `spine`: the whole cluster's. */
static sl_status read_level(const sli_cluster_reader *reader, const sli_cluster_object *links,
                            int level, sli_cluster *out)
{
    static const char *const names[] = {"latency_s", "bytes_per_s", "message_s",
                                        "measured",  "nodes",       NULL};
    static const char *const narrow_names[] = {"latency_s", "bytes_per_s", "message_s", "measured",
                                               NULL};
    struct link {
        double latency_s, bytes_per_s, message_s;
        int nodes;
    } link;
    bool is_widest = level + 1 == SLI_LEVELS;
    const sl_link_cost *wider = is_widest ? NULL : &out->links[level + 1];
    const sli_number_field fields[] = {
        {"latency_s", offsetof(struct link, latency_s), false, true, 0, 1e3, 0},
        {"bytes_per_s", offsetof(struct link, bytes_per_s), false, true, 1, 1e15, 0},
        {"message_s", offsetof(struct link, message_s), false, false, 0, 1e3, default_message_s},
        {"nodes", offsetof(struct link, nodes), true, true, 1, SLI_MOST_NODES, 0}};
    sli_json_value value =
        links->names ? sli_cluster_member(links, sli_level_names[level]) : (sli_json_value){0};
    sli_cluster_object object = {.names = level == SLI_LEVEL_RACK ? names : narrow_names};
    snprintf(object.path, sizeof object.path, "links.%s", sli_level_names[level]);
    if (!value.begin) {
        out->message_s[level] = wider ? out->message_s[level + 1] : default_message_s;
        out->links[level] =
            wider ? *wider : (sl_link_cost){default_latency_s, 1 / default_bytes_per_s};
        SL_TRY(sli_cluster_list_input(reader, &object, "latency_s", out->links[level].seconds, 0));
        SL_TRY(sli_cluster_list_input(reader, &object, "message_s", out->message_s[level], 0));
        return sli_cluster_list_input(reader, &object, "bytes_per_s",
                                      1 / out->links[level].seconds_per_byte, 0);
    }
    SL_TRY(sli_cluster_open_object(reader, value, &object));
    SL_TRY(sli_cluster_read_numbers(reader, &object, fields,
                                    COUNT_OF(fields) - (level != SLI_LEVEL_RACK), &link));
    out->links[level] = (sl_link_cost){link.latency_s, 1 / link.bytes_per_s};
    out->message_s[level] = link.message_s;
    if (level == SLI_LEVEL_RACK)
        out->rack_nodes = link.nodes;
    return SL_OK;
}

static sl_status read_links(const sli_cluster_reader *reader, const sli_cluster_object *object,
                            sli_cluster *out)
{
    static const char *const names[] = {"list", "socket", "node", "rack", "spine", NULL};
    sli_json_value value = sli_cluster_member(object, "links");
    sli_cluster_object links = {.path = "links"};
    out->rack_nodes = 1;
    if (value.begin) {
        links.names = names;
        SL_TRY(sli_cluster_open_object(reader, value, &links));
    }
    for (int level = SLI_LEVELS; level-- > 0;)
        SL_TRY(read_level(reader, &links, level, out));
    return SL_OK;
}

/* ---- What goes wrong ------------------------------------------------------------------------ */

/* Without `failures` no node fails. */
static sl_status read_failures(const sli_cluster_reader *reader, const sli_cluster_object *object,
                               sli_cluster *out)
{
    static const char *const names[] = {"mtbf_s", "restart_s", "repair_s", "save_bytes_per_s",
                                        NULL};
    static const sli_number_field fields[] = {
        {"mtbf_s", offsetof(sli_cluster, mtbf_s), false, true, 1, 1e12, 0},
        {"restart_s", offsetof(sli_cluster, restart_s), false, false, 0, 1e7, 300},
        {"repair_s", offsetof(sli_cluster, repair_s), false, false, 0, 1e9, 0},
        {"save_bytes_per_s", offsetof(sli_cluster, save_bytes_per_s), false, false, 1, 1e15, 1e9}};
    sli_json_value value = sli_cluster_member(object, "failures");
    sli_cluster_object failures = {.path = "failures", .names = names};
    if (!value.begin)
        return sli_cluster_list_input(reader, object, "failures", 0, 0);
    SL_TRY(sli_cluster_open_object(reader, value, &failures));
    return sli_cluster_read_numbers(reader, &failures, fields, COUNT_OF(fields), out);
}

static sl_status read_jitter(const sli_cluster_reader *reader, const sli_cluster_object *object,
                             sli_cluster *out)
{
    static const char *const names[] = {"spread", "slow_nodes", "slow_factor", NULL};
    static const sli_number_field fields[] = {
        {"spread", offsetof(sli_cluster, spread), false, false, 0, 1, 0},
        {"slow_nodes", offsetof(sli_cluster, slow_nodes), false, false, 0, 1, 0},
        {"slow_factor", offsetof(sli_cluster, slow_factor), false, false, 1, 1000, 1}};
    sli_json_value value = sli_cluster_member(object, "jitter");
    sli_cluster_object jitter = {.path = "jitter"};
    if (value.begin) {
        jitter.names = names;
        SL_TRY(sli_cluster_open_object(reader, value, &jitter));
    }
    return sli_cluster_read_numbers(reader, &jitter, fields, COUNT_OF(fields), out);
}

/* ---- The file ------------------------------------------------------------------------------ */

sl_status sli_cluster_parse(const char *name, const char *text, size_t bytes, sli_cluster *out)
{
    static const char *const names[] = {"nodes", "links", "failures", "jitter", NULL};
    const sli_cluster_reader reader = {.name = name, .json = {name, text, bytes}, .cluster = out};
    sli_cluster_object cluster = {.names = names};
    sli_json_value root;
    *out = (sli_cluster){0};
    SL_TRY(sli_json_root(&reader.json, &root));
    SL_TRY(sli_cluster_open_object(&reader, root, &cluster));
    SL_TRY(read_nodes(&reader, &cluster, out));
    SL_TRY(read_links(&reader, &cluster, out));
    SL_TRY(read_failures(&reader, &cluster, out));
    return read_jitter(&reader, &cluster, out);
}

sl_status sli_cluster_read(const char *path, sli_cluster *out)
{
    char *text;
    size_t bytes;
    *out = (sli_cluster){0};
    SL_TRY(sli_file_read(path, most_file_bytes, &text, &bytes));
    sl_status status = sli_cluster_parse(path, text, bytes, out);
    free(text);
    return status;
}

void sli_cluster_clear(sli_cluster *cluster)
{
    for (int i = 0; i < cluster->kind_count; i++)
        sli_kind_profile_clear(&cluster->kinds[i].profile);
    free(cluster->inputs);
    *cluster = (sli_cluster){0};
}
