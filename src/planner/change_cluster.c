/* A cluster with other links, memory, nodes or failures than its file says. */
#include "planner/cluster.h"

#include "core/error.h"

#include <string.h>

/* The numbers whose names begin and end so are multiplied. */
static void scale_inputs(sli_cluster *cluster, const char *begin, const char *end, double factor)
{
    for (size_t i = 0; i < cluster->input_count; i++) {
        sl_cluster_input *input = &cluster->inputs[i];
        size_t length = strlen(input->name), tail = strlen(end);
        if (length >= tail && strncmp(input->name, begin, strlen(begin)) == 0 &&
            strcmp(input->name + length - tail, end) == 0)
            input->value *= factor;
    }
}

static void change_links(sli_cluster *cluster, double factor)
{
    for (int level = 0; level < SLI_LEVELS; level++)
        cluster->links[level].seconds_per_byte /= factor;
    scale_inputs(cluster, "links.", ".bytes_per_s", factor);
}

static void change_memory(sli_cluster *cluster, double factor)
{
    for (int i = 0; i < cluster->kind_count; i++)
        cluster->kinds[i].memory_bytes *= factor;
    scale_inputs(cluster, "nodes[", ".memory_bytes", factor);
}

static sl_status change_nodes(sli_cluster *cluster, int nodes)
{
    sli_node_kind *kind = &cluster->kinds[0];
    int64_t devices = (int64_t)nodes * kind->devices;
    if (cluster->kind_count > 1)
        return sl_error(
            SL_ERR_INVALID,
            "another number of nodes needs a cluster of one kind of nodes, got %d kinds",
            cluster->kind_count);
    if (nodes > SLI_MOST_NODES || devices > SLI_MOST_CLUSTER_DEVICES)
        return sl_error(SL_ERR_INVALID,
                        "a cluster can have at most %d nodes and %d devices, got %d nodes of %d",
                        SLI_MOST_NODES, SLI_MOST_CLUSTER_DEVICES, nodes, kind->devices);
    scale_inputs(cluster, "nodes[0].", ".count", (double)nodes / kind->count);
    kind->count = nodes;
    cluster->devices = (int)devices;
    return SL_OK;
}

static sl_status change_failures(sli_cluster *cluster, double factor)
{
    if (cluster->mtbf_s <= 0)
        return sl_error(SL_ERR_INVALID, "other failures need a cluster with \"failures\"");
    cluster->mtbf_s /= factor;
    scale_inputs(cluster, "failures.", ".mtbf_s", 1 / factor);
    return SL_OK;
}

sl_status sli_cluster_change(sli_cluster *cluster, const sl_cluster_change *change)
{
    if (!(change->links >= 0 && change->memory >= 0 && change->failures >= 0 && change->nodes >= 0))
        return sl_error(SL_ERR_INVALID,
                        "changes of a cluster must not be negative, got links %g, memory %g, "
                        "failures %g, nodes %d",
                        change->links, change->memory, change->failures, change->nodes);
    if (change->links > 0)
        change_links(cluster, change->links);
    if (change->memory > 0)
        change_memory(cluster, change->memory);
    if (change->failures > 0)
        SL_TRY(change_failures(cluster, change->failures));
    return change->nodes > 0 ? change_nodes(cluster, change->nodes) : SL_OK;
}
