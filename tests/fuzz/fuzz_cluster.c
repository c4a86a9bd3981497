/* Any bytes as a cluster file: reading must end in one sentence that names the file, or in a
 * cluster whose numbers can be computed with. */
#include "fuzz/fuzz.h"

#include "planner/cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_kind(const sli_node_kind *kind)
{
    demand(kind->count > 0 && kind->devices > 0 && kind->points > 0, "with devices");
    demand(kind->devices % kind->sockets == 0 && kind->devices % kind->list_devices == 0, "even");
    demand(kind->memory_bytes > kind->reserved_bytes && kind->memory_bytes_per_s > 0,
           "with memory");
    for (int i = 0; i < kind->points; i++)
        demand(kind->curve[i].flop >= 1 && kind->curve[i].fraction > 0, "efficient");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    sli_cluster cluster;
    sl_status status = sli_cluster_parse("fuzz", (const char *)data, bytes, &cluster);
    demand(status == SL_OK || status == SL_ERR_FORMAT, "refused");
    demand(status == SL_OK || strstr(sl_error_text(), "fuzz"), "an error that names the file");
    if (status == SL_OK) {
        demand(cluster.devices > 0 && cluster.rack_nodes > 0, "with devices");
        for (int i = 0; i < cluster.kind_count; i++)
            check_kind(&cluster.kinds[i]);
        for (int level = 0; level < SLI_LEVELS; level++)
            demand(isfinite(cluster.links[level].seconds) &&
                       isfinite(cluster.links[level].seconds_per_byte),
                   "with links");
    }
    sli_cluster_clear(&cluster);
    return 0;
}
