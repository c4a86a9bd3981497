/* How far the devices of a cluster are from each other, and what that costs a layout. */
#include "planner/cluster.h"

#include "core/error.h"

#include <math.h>
#include <stdlib.h>

/* ---- Devices ------------------------------------------------------------------------------ */

/* FLOP/s that large modules reach. */
static double reached_flops(const sli_node_kind *kind, sl_precision precision)
{
    double fraction = 0;
    for (int i = 0; i < kind->points; i++)
        fraction = fmax(fraction, kind->curve[i].fraction);
    return fraction * kind->flops[precision];
}

/* The fastest first; of equals the file's order. */
static void sort_kinds(const sli_cluster *cluster, sl_precision precision, sli_devices *out)
{
    for (int i = 0; i < cluster->kind_count; i++) {
        int place = i;
        while (place > 0 && reached_flops(out->kinds[place - 1], precision) <
                                reached_flops(&cluster->kinds[i], precision)) {
            out->kinds[place] = out->kinds[place - 1];
            place--;
        }
        out->kinds[place] = &cluster->kinds[i];
    }
}

/* The devices of a node, whose first one is `device`. */
static void list_node(const sli_node_kind *kind, int rack_nodes, int node, int device,
                      sli_devices *out)
{
    int socket = kind->devices / kind->sockets, list = kind->list_devices;
    for (int d = 0; d < kind->devices; d++) {
        out->units[SLI_LEVEL_LIST][device + d] = device + d / list * list;
        out->units[SLI_LEVEL_SOCKET][device + d] = device + d / socket * socket;
        out->units[SLI_LEVEL_NODE][device + d] = device;
        out->units[SLI_LEVEL_RACK][device + d] = node / rack_nodes;
    }
}

sl_status sli_devices_list(const sli_cluster *cluster, sl_precision precision, sli_devices *out)
{
    *out = (sli_devices){.cluster = cluster, .precision = precision, .count = cluster->devices};
    sort_kinds(cluster, precision, out);
    for (int level = 0; level < SLI_LEVELS; level++) {
        out->units[level] = calloc((size_t)out->count, sizeof *out->units[level]);
        if (!out->units[level])
            return sli_no_memory(NULL, "%d devices of a cluster", out->count);
    }
    int node = 0, device = 0;
    for (int i = 0; i < cluster->kind_count; i++)
        for (int k = 0; k < out->kinds[i]->count; k++, device += out->kinds[i]->devices)
            list_node(out->kinds[i], cluster->rack_nodes, node++, device, out);
    return SL_OK;
}

void sli_devices_clear(sli_devices *devices)
{
    for (int level = 0; level < SLI_LEVELS; level++)
        free(devices->units[level]);
    *devices = (sli_devices){0};
}

sli_used_devices sli_devices_used(const sli_devices *devices, int used)
{
    sli_used_devices out = {.memory_bytes = INFINITY,
                            .memory_bytes_per_s = INFINITY,
                            .flops_f32 = INFINITY,
                            .is_cuda = true};
    for (int left = used; left > 0 && out.kind_count < devices->cluster->kind_count;
         out.kind_count++) {
        const sli_node_kind *kind = devices->kinds[out.kind_count];
        int count = kind->count * kind->devices;
        double memory = kind->memory_bytes - kind->reserved_bytes;
        if (memory < out.memory_bytes) {
            out.least = kind;
            out.memory_bytes = memory;
        }
        out.memory_bytes_per_s = fmin(out.memory_bytes_per_s, kind->memory_bytes_per_s);
        out.flops_f32 = fmin(out.flops_f32, kind->flops[SL_PRECISION_F32]);
        out.flops += (left < count ? left : count) * kind->flops[devices->precision];
        out.is_cuda &= kind->is_cuda;
        out.is_mixed |= kind->is_cuda != devices->kinds[0]->is_cuda;
        left -= count;
    }
    return out;
}

int sli_devices_count_nodes(const sli_devices *devices, int used)
{
    int nodes = 0;
    for (int d = 0; d < used; d++)
        nodes += devices->units[SLI_LEVEL_NODE][d] == d;
    return nodes;
}

int sli_devices_of_nodes(const sli_devices *devices, int nodes)
{
    int used = 0;
    for (; used < devices->count; used++) {
        nodes -= devices->units[SLI_LEVEL_NODE][used] == used;
        if (nodes < 0)
            break;
    }
    return used;
}

int sli_devices_find(const sli_device_grid *grid, int replica, int rank)
{
    return grid->near_replicas ? rank * grid->replicas + replica
                               : replica * grid->pipeline_ranks + rank;
}

/* ---- A replica ------------------------------------------------------------------------------ */

static int level_between(const sli_devices *devices, int a, int b)
{
    int level = SLI_LEVEL_LIST;
    while (level < SLI_LEVEL_SPINE && devices->units[level][a] != devices->units[level][b])
        level++;
    return level;
}

sl_link_cost sli_devices_rank_link(const sli_devices *devices, const sli_device_grid *grid,
                                   int from, int to)
{
    sl_link_cost slowest = {0, 0};
    for (int replica = 0; replica < grid->replicas; replica++) {
        int level = level_between(devices, sli_devices_find(grid, replica, from),
                                  sli_devices_find(grid, replica, to));
        const sl_link_cost *link = &devices->cluster->links[level];
        slowest.seconds = fmax(slowest.seconds, link->seconds);
        slowest.seconds_per_byte = fmax(slowest.seconds_per_byte, link->seconds_per_byte);
    }
    return slowest;
}

/* ---- The replicas of a stage ------------------------------------------------------------------
 */

/* How many replicas the unit has that has fewest of them: replicas ascend, and so do their units.
 */
static int least_in_unit(const int *units, const sli_device_grid *grid, int rank)
{
    int least = grid->replicas, count = 0;
    for (int replica = 0; replica < grid->replicas; replica++) {
        bool begins = replica > 0 && units[sli_devices_find(grid, replica, rank)] !=
                                         units[sli_devices_find(grid, replica - 1, rank)];
        if (begins) {
            least = count < least ? count : least;
            count = 0;
        }
        count++;
    }
    return count < least ? count : least;
}

/* Half of an exchange, of the rank that is farthest from the others: it sends each of them its part
 * of a bucket. */
static sl_link_cost time_half(const sli_devices *devices, const sli_device_grid *grid, int rank)
{
    const sli_cluster *cluster = devices->cluster;
    sl_link_cost half = {0, 0};
    int nearer = 1; /* replicas that the narrower levels have, with the rank's own */
    for (int level = 0; level < SLI_LEVELS; level++) {
        int within = least_in_unit(devices->units[level], grid, rank), others = within - nearer;
        if (others <= 0)
            continue;
        half.seconds = fmax(half.seconds, cluster->links[level].seconds);
        half.seconds += others * cluster->message_s[level];
        half.seconds_per_byte +=
            (double)others / grid->replicas * cluster->links[level].seconds_per_byte;
        nearer = within;
    }
    return half;
}

void sli_devices_exchange(const sli_devices *devices, const sli_device_grid *grid,
                          sl_link_cost *reduce, sl_link_cost *gather)
{
    *gather = (sl_link_cost){0, 0};
    for (int rank = 0; rank < grid->pipeline_ranks; rank++) {
        sl_link_cost half = time_half(devices, grid, rank);
        gather->seconds = fmax(gather->seconds, half.seconds);
        gather->seconds_per_byte = fmax(gather->seconds_per_byte, half.seconds_per_byte);
    }
    *reduce = (sl_link_cost){2 * gather->seconds, 2 * gather->seconds_per_byte};
}
