/* The cluster file: JSON whose members are checked one by one, so that an error can name the
 * member, its line and its range. Members that are not given have defaults, and each number is
 * listed with where it comes from. */
#include "planner/cluster.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MEMBERS = 16, MOST_INPUTS = 1024, MOST_NUMBER_BYTES = 64, PATH_BYTES = 64 };
static const uint64_t most_file_bytes = 1 << 20;

const char *const sli_level_names[SLI_LEVELS] = {"list", "socket", "node", "rack", "spine"};

typedef struct cluster_reader {
    const char *name;
    sli_json json;
    sli_cluster *cluster;
} cluster_reader;

/* A number of an object. */
typedef struct number_field {
    const char *name;
    size_t offset; /* of a double, or of an int where it is a count */
    bool is_count, is_required;
    double least, most, initial;
} number_field;

/* An object of the file that is read. */
typedef struct read_object {
    char path[PATH_BYTES]; /* "nodes[0]"; empty: the whole file */
    int line;
    const char *const *names; /* of its members; then NULL */
    sli_json_value values[MOST_MEMBERS];
} read_object;

/* ---- Errors ------------------------------------------------------------------------------- */

static int line_of(const cluster_reader *reader, const char *at)
{
    int line = 1;
    for (const char *c = reader->json.text; c < at; c++)
        line += *c == '\n';
    return line;
}

/* Enough of a value to recognize it. */
static int shown_length(sli_json_value value)
{
    ptrdiff_t length = value.end - value.begin;
    return (int)(length < MOST_NUMBER_BYTES ? length : MOST_NUMBER_BYTES);
}

static sl_status refuse(const cluster_reader *reader, const read_object *object, const char *member,
                        sli_json_value value, const char *expected)
{
    return sl_error(SL_ERR_FORMAT, "%s:%d: %s%s%s must be %s, got %.*s", reader->name,
                    line_of(reader, value.begin), object->path, *object->path ? "." : "", member,
                    expected, shown_length(value), value.begin);
}

static sl_status refuse_missing(const cluster_reader *reader, const read_object *object,
                                const char *member)
{
    return sl_error(SL_ERR_FORMAT, "%s:%d: %s has no member \"%s\"", reader->name, object->line,
                    *object->path ? object->path : "the cluster", member);
}

/* ---- Objects ------------------------------------------------------------------------------- */

static int find_name(const char *const *names, sli_json_value key)
{
    for (int i = 0; names[i]; i++)
        if (sli_json_equals(key, names[i]))
            return i;
    return -1;
}

static sl_status refuse_member(const cluster_reader *reader, const read_object *object,
                               sli_json_value key, const char *what)
{
    return sl_error(SL_ERR_FORMAT, "%s:%d: %s has a member %.*s%s", reader->name,
                    line_of(reader, key.begin), *object->path ? object->path : "the cluster",
                    shown_length(key), key.begin, what);
}

/* Finds the object's members, `out`'s path and names being set. */
static sl_status open_object(const cluster_reader *reader, sli_json_value value, read_object *out)
{
    sli_json_walk walk;
    out->line = line_of(reader, value.begin);
    memset(out->values, 0, sizeof out->values);
    if (!sli_json_is(value, '{'))
        return sl_error(SL_ERR_FORMAT, "%s:%d: %s must be an object, got %.*s", reader->name,
                        out->line, *out->path ? out->path : "the cluster", shown_length(value),
                        value.begin);
    SL_TRY(sli_json_walk_begin(&reader->json, value, &walk));
    while (sli_json_walk_next(&walk)) {
        int i = find_name(out->names, walk.key);
        if (i < 0)
            return refuse_member(reader, out, walk.key, ", which is not known");
        if (out->values[i].begin)
            return refuse_member(reader, out, walk.key, " twice");
        out->values[i] = walk.value;
    }
    return walk.status;
}

static sli_json_value member(const read_object *object, const char *name)
{
    for (int i = 0; object->names[i]; i++)
        if (strcmp(object->names[i], name) == 0)
            return object->values[i];
    return (sli_json_value){0};
}

/* ---- Numbers ------------------------------------------------------------------------------- */

static sl_status list_input(const cluster_reader *reader, const read_object *object,
                            const char *name, double value, int line)
{
    sli_cluster *cluster = reader->cluster;
    SL_TRY(sli_array_reserve(&cluster->inputs, &cluster->input_capacity, cluster->input_count + 1,
                             sizeof *cluster->inputs, MOST_INPUTS, "numbers"));
    sl_cluster_input *input = &cluster->inputs[cluster->input_count++];
    *input = (sl_cluster_input){.value = value, .line = line};
    snprintf(input->name, sizeof input->name, "%s%s%s", object->path, *object->path ? "." : "",
             name);
    return SL_OK;
}

/* False where the value is no number. */
static bool parse_number(const cluster_reader *reader, sli_json_value value, double *out)
{
    json_t *json;
    bool may_be = value.begin < value.end && strchr("-0123456789", *value.begin);
    if (!may_be || sli_json_parse(&reader->json, value, MOST_NUMBER_BYTES, &json) != SL_OK)
        return false;
    *out = json_number_value(json);
    json_decref(json);
    return isfinite(*out);
}

static sl_status refuse_number(const cluster_reader *reader, const read_object *object,
                               const number_field *field, sli_json_value value)
{
    char expected[96];
    snprintf(expected, sizeof expected, "a %s from %g to %g",
             field->is_count ? "whole number" : "number", field->least, field->most);
    return refuse(reader, object, field->name, value, expected);
}

static sl_status read_number(const cluster_reader *reader, const read_object *object,
                             const number_field *field, void *into)
{
    sli_json_value value = member(object, field->name);
    double number = field->initial;
    if (!value.begin && field->is_required)
        return refuse_missing(reader, object, field->name);
    if (value.begin && (!parse_number(reader, value, &number) || number < field->least ||
                        number > field->most || (field->is_count && number != floor(number))))
        return refuse_number(reader, object, field, value);
    char *place = (char *)into + field->offset;
    if (field->is_count)
        *(int *)(void *)place = (int)number;
    else
        *(double *)(void *)place = number;
    return list_input(reader, object, field->name, number,
                      value.begin ? line_of(reader, value.begin) : 0);
}

static sl_status read_numbers(const cluster_reader *reader, const read_object *object,
                              const number_field *fields, size_t count, void *into)
{
    for (size_t i = 0; i < count; i++)
        SL_TRY(read_number(reader, object, &fields[i], into));
    return SL_OK;
}

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
                                         NULL};

static const number_field node_fields[] = {
    {NODE(count), true, false, 1, SLI_MOST_NODES, 1},
    {NODE(devices), true, true, 1, 1024, 0},
    {NODE(sockets), true, false, 1, 1024, 1},
    {NODE(list_devices), true, false, 1, 1024, 1},
    {NODE(memory_bytes), false, true, 1e6, 1e15, 0},
    {NODE(reserved_bytes), false, false, 0, 1e15, 1e9},
    {RATE("flops_f32", flops[SL_PRECISION_F32]), true, 1e6, 1e18, 0},
};

/* [FLOP, fraction] */
static sl_status read_point(const cluster_reader *reader, const read_object *object,
                            sli_json_value value, sli_node_kind *kind)
{
    static const char *const expected =
        "at most 32 pairs of FLOP, which ascend from 1 to 1e+18, and of the fraction of the peak "
        "that is reached, above 0 and at most 1";
    sli_json_walk walk;
    double pair[2];
    int count = 0;
    if (!sli_json_is(value, '[') || kind->points == SLI_MOST_CURVE_POINTS)
        return refuse(reader, object, "efficiency", value, expected);
    SL_TRY(sli_json_walk_begin(&reader->json, value, &walk));
    for (; sli_json_walk_next(&walk); count++)
        if (count == 2 || !parse_number(reader, walk.value, &pair[count]))
            return refuse(reader, object, "efficiency", value, expected);
    SL_TRY(walk.status);
    double before = kind->points > 0 ? kind->curve[kind->points - 1].flop : 0;
    if (count < 2 || pair[0] < 1 || pair[0] <= before || pair[0] > 1e18 || pair[1] <= 0 ||
        pair[1] > 1)
        return refuse(reader, object, "efficiency", value, expected);
    kind->curve[kind->points++] = (sli_efficiency){pair[0], pair[1]};
    return SL_OK;
}

/* Half of the peak at any size, unless the file says otherwise. */
static sl_status read_efficiency(const cluster_reader *reader, const read_object *object,
                                 sli_node_kind *kind)
{
    sli_json_value list = member(object, "efficiency");
    sli_json_walk walk;
    kind->points = 0;
    if (!list.begin) {
        kind->curve[kind->points++] = (sli_efficiency){1, 0.5};
        return list_input(reader, object, "efficiency", 0.5, 0);
    }
    if (!sli_json_is(list, '['))
        return refuse(reader, object, "efficiency", list, "a list of pairs of FLOP and fraction");
    SL_TRY(sli_json_walk_begin(&reader->json, list, &walk));
    while (sli_json_walk_next(&walk))
        SL_TRY(read_point(reader, object, walk.value, kind));
    SL_TRY(walk.status);
    if (kind->points == 0)
        return refuse(reader, object, "efficiency", list, "a list of pairs of FLOP and fraction");
    return list_input(reader, object, "efficiency", kind->curve[kind->points - 1].fraction,
                      line_of(reader, list.begin));
}

static sl_status read_texts(const cluster_reader *reader, const read_object *object,
                            sli_node_kind *kind)
{
    sli_json_value name = member(object, "name"), device = member(object, "device");
    snprintf(kind->name, sizeof kind->name, "%s", object->path);
    if (name.begin) {
        char *decoded = malloc((size_t)(name.end - name.begin) + 1), *room = decoded;
        const char *text;
        if (!decoded)
            return sli_no_memory(reader->name, "a name");
        bool is_text = sli_json_is(name, '"') &&
                       sli_json_decode(&reader->json, name, &room, &text) == SL_OK &&
                       strlen(text) < sizeof kind->name;
        if (is_text)
            snprintf(kind->name, sizeof kind->name, "%s", text);
        free(decoded);
        if (!is_text)
            return refuse(reader, object, "name", name, "a text of at most 63 bytes");
    }
    kind->is_cuda = device.begin && sli_json_equals(device, "cuda");
    if (device.begin && !kind->is_cuda && !sli_json_equals(device, "cpu"))
        return refuse(reader, object, "device", device, "\"cpu\" or \"cuda\"");
    return SL_OK;
}

/* Where the file does not say: products in bf16 and tf32 are as fast as those in f32, and memory
 * gives a byte for 20 FLOP. */
static sl_status read_node(const cluster_reader *reader, sli_json_value value, int index,
                           sli_cluster *out)
{
    sli_node_kind *kind = &out->kinds[index];
    read_object object = {.names = node_names};
    snprintf(object.path, sizeof object.path, "nodes[%d]", index);
    SL_TRY(open_object(reader, value, &object));
    SL_TRY(read_texts(reader, &object, kind));
    SL_TRY(read_numbers(reader, &object, node_fields, COUNT_OF(node_fields), kind));
    const number_field rates[] = {{RATE("flops_bf16", flops[SL_PRECISION_BF16]), false, 1e6, 1e18,
                                   kind->flops[SL_PRECISION_F32]},
                                  {RATE("flops_tf32", flops[SL_PRECISION_TF32]), false, 1e6, 1e18,
                                   kind->flops[SL_PRECISION_F32]},
                                  {NODE(memory_bytes_per_s), false, false, 1e6, 1e16,
                                   kind->flops[SL_PRECISION_F32] / 20}};
    SL_TRY(read_numbers(reader, &object, rates, COUNT_OF(rates), kind));
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
    return read_efficiency(reader, &object, kind);
}

static sl_status read_nodes(const cluster_reader *reader, const read_object *object,
                            sli_cluster *out)
{
    sli_json_value list = member(object, "nodes");
    sli_json_walk walk;
    if (!list.begin)
        return refuse_missing(reader, object, "nodes");
    if (!sli_json_is(list, '['))
        return refuse(reader, object, "nodes", list, "a list of kinds of nodes");
    SL_TRY(sli_json_walk_begin(&reader->json, list, &walk));
    while (sli_json_walk_next(&walk)) {
        if (out->kind_count == SLI_MOST_NODE_KINDS)
            return refuse(reader, object, "nodes", walk.value, "at most 16 kinds");
        SL_TRY(read_node(reader, walk.value, out->kind_count, out));
        out->kind_count++;
        if (out->devices > SLI_MOST_CLUSTER_DEVICES)
            return sl_error(SL_ERR_FORMAT,
                            "%s:%d: a cluster must have at most %d devices, got %d or more",
                            reader->name, line_of(reader, walk.value.begin),
                            SLI_MOST_CLUSTER_DEVICES, out->devices);
    }
    SL_TRY(walk.status);
    return out->kind_count > 0 ? SL_OK
                               : refuse(reader, object, "nodes", list, "a list of kinds of nodes");
}

/* ---- Links -------------------------------------------------------------------------------- */

/* 10 Gbit/s, of Ethernet. */
static const double default_latency_s = 2e-5, default_bytes_per_s = 1.25e9,
                    default_message_s = 1e-6;

/* A level without a link has the next wider one's. `spine`: the whole cluster's. */
static sl_status read_level(const cluster_reader *reader, const read_object *links, int level,
                            sli_cluster *out)
{
    static const char *const names[] = {"latency_s", "bytes_per_s", "message_s", "nodes", NULL};
    static const char *const narrow_names[] = {"latency_s", "bytes_per_s", "message_s", NULL};
    struct link {
        double latency_s, bytes_per_s, message_s;
        int nodes;
    } link;
    bool is_widest = level + 1 == SLI_LEVELS;
    const sl_link_cost *wider = is_widest ? NULL : &out->links[level + 1];
    const number_field fields[] = {
        {"latency_s", offsetof(struct link, latency_s), false, true, 0, 1e3, 0},
        {"bytes_per_s", offsetof(struct link, bytes_per_s), false, true, 1, 1e15, 0},
        {"message_s", offsetof(struct link, message_s), false, false, 0, 1e3, default_message_s},
        {"nodes", offsetof(struct link, nodes), true, true, 1, SLI_MOST_NODES, 0}};
    sli_json_value value =
        links->names ? member(links, sli_level_names[level]) : (sli_json_value){0};
    read_object object = {.names = level == SLI_LEVEL_RACK ? names : narrow_names};
    snprintf(object.path, sizeof object.path, "links.%s", sli_level_names[level]);
    if (!value.begin) {
        out->message_s[level] = wider ? out->message_s[level + 1] : default_message_s;
        out->links[level] =
            wider ? *wider : (sl_link_cost){default_latency_s, 1 / default_bytes_per_s};
        SL_TRY(list_input(reader, &object, "latency_s", out->links[level].seconds, 0));
        SL_TRY(list_input(reader, &object, "message_s", out->message_s[level], 0));
        return list_input(reader, &object, "bytes_per_s", 1 / out->links[level].seconds_per_byte,
                          0);
    }
    SL_TRY(open_object(reader, value, &object));
    SL_TRY(
        read_numbers(reader, &object, fields, COUNT_OF(fields) - (level != SLI_LEVEL_RACK), &link));
    out->links[level] = (sl_link_cost){link.latency_s, 1 / link.bytes_per_s};
    out->message_s[level] = link.message_s;
    if (level == SLI_LEVEL_RACK)
        out->rack_nodes = link.nodes;
    return SL_OK;
}

static sl_status read_links(const cluster_reader *reader, const read_object *object,
                            sli_cluster *out)
{
    static const char *const names[] = {"list", "socket", "node", "rack", "spine", NULL};
    sli_json_value value = member(object, "links");
    read_object links = {.path = "links"};
    out->rack_nodes = 1;
    if (value.begin) {
        links.names = names;
        SL_TRY(open_object(reader, value, &links));
    }
    for (int level = SLI_LEVELS; level-- > 0;)
        SL_TRY(read_level(reader, &links, level, out));
    return SL_OK;
}

/* ---- What goes wrong ------------------------------------------------------------------------ */

/* Without `failures` no node fails. */
static sl_status read_failures(const cluster_reader *reader, const read_object *object,
                               sli_cluster *out)
{
    static const char *const names[] = {"mtbf_s", "restart_s", "repair_s", "save_bytes_per_s",
                                        NULL};
    static const number_field fields[] = {
        {"mtbf_s", offsetof(sli_cluster, mtbf_s), false, true, 1, 1e12, 0},
        {"restart_s", offsetof(sli_cluster, restart_s), false, false, 0, 1e7, 300},
        {"repair_s", offsetof(sli_cluster, repair_s), false, false, 0, 1e9, 0},
        {"save_bytes_per_s", offsetof(sli_cluster, save_bytes_per_s), false, false, 1, 1e15, 1e9}};
    sli_json_value value = member(object, "failures");
    read_object failures = {.path = "failures", .names = names};
    if (!value.begin)
        return list_input(reader, object, "failures", 0, 0);
    SL_TRY(open_object(reader, value, &failures));
    return read_numbers(reader, &failures, fields, COUNT_OF(fields), out);
}

static sl_status read_jitter(const cluster_reader *reader, const read_object *object,
                             sli_cluster *out)
{
    static const char *const names[] = {"spread", NULL};
    static const number_field field = {"spread", offsetof(sli_cluster, spread), false, true, 0, 1,
                                       0};
    sli_json_value value = member(object, "jitter");
    read_object jitter = {.path = "jitter", .names = names};
    if (!value.begin)
        return list_input(reader, &jitter, "spread", 0, 0);
    SL_TRY(open_object(reader, value, &jitter));
    return read_number(reader, &jitter, &field, out);
}

/* ---- The file ------------------------------------------------------------------------------ */

sl_status sli_cluster_parse(const char *name, const char *text, size_t bytes, sli_cluster *out)
{
    static const char *const names[] = {"nodes", "links", "failures", "jitter", NULL};
    const cluster_reader reader = {.name = name, .json = {name, text, bytes}, .cluster = out};
    read_object cluster = {.names = names};
    sli_json_value root;
    *out = (sli_cluster){0};
    SL_TRY(sli_json_root(&reader.json, &root));
    SL_TRY(open_object(&reader, root, &cluster));
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
    free(cluster->inputs);
    *cluster = (sli_cluster){0};
}
