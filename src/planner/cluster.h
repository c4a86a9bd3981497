/* A cluster that is not here, as a file describes it: kinds of nodes, links by level, failures.
 *
 *     cluster.c        reads the file
 *     cluster_links.c  how fast its devices talk to each other
 *     cluster_times.c  how fast they compute, and what failures cost
 *     search_cluster.c which layouts of a model are the best on it */
#ifndef SLI_PLANNER_CLUSTER_H
#define SLI_PLANNER_CLUSTER_H

#include "planner/layout.h"

enum {
    SLI_MOST_NODE_KINDS = 16,
    SLI_MOST_CURVE_POINTS = 32,
    SLI_MOST_NODES = 100000,
    SLI_MOST_CLUSTER_DEVICES = 1 << 17
};

/* What two devices have in common, from the nearest on. */
typedef enum sli_level {
    SLI_LEVEL_LIST, /* a process, whose list of devices has both */
    SLI_LEVEL_SOCKET,
    SLI_LEVEL_NODE,
    SLI_LEVEL_RACK,
    SLI_LEVEL_SPINE,
    SLI_LEVELS
} sli_level;
extern const char *const sli_level_names[SLI_LEVELS];

/* The fraction of a device's peak rate that a module of so many FLOP reaches. */
typedef struct sli_efficiency {
    double flop, fraction;
} sli_efficiency;

typedef struct sli_node_kind {
    char name[64];
    bool is_cuda;
    int count, devices;                  /* nodes of this kind, and devices of a node */
    int sockets, list_devices;           /* a node's sockets, and devices of a process */
    double memory_bytes, reserved_bytes; /* of a device; what a process takes before its model */
    double flops[3];                     /* peak FLOP/s of a device, by sl_precision */
    double memory_bytes_per_s;           /* of a device's memory */
    sli_efficiency curve[SLI_MOST_CURVE_POINTS]; /* [points] by ascending FLOP */
    int points;
} sli_node_kind;

/* A number of the cluster, and where it comes from. */
typedef struct sli_cluster_input {
    char name[96]; /* "nodes[0].memory_bytes" */
    double value;
    int line; /* of the file; 0: it is a default */
} sli_cluster_input;

typedef struct sli_cluster {
    sli_node_kind kinds[SLI_MOST_NODE_KINDS];
    int kind_count, devices; /* `devices` of all nodes together */
    int rack_nodes;
    sl_link_cost links[SLI_LEVELS];     /* for each device, while all others send as well */
    double mtbf_s;                      /* mean time between failures of a node; 0: none fails */
    double restart_s, save_bytes_per_s; /* to start again; that a node writes of a checkpoint */
    double spread; /* standard deviation of a device's time for a step, as a fraction of it */
    sli_cluster_input *inputs;
    size_t input_count, input_capacity;
} sli_cluster;

/* Reads a cluster file's text; `name` is the file's, for errors. The caller clears the result,
 * after an error too. Errors: SL_ERR_FORMAT for text that is no JSON, and for a member that is
 * missing, unknown, twice there or out of its range, by its name and line; SL_ERR_MEMORY. */
sl_status sli_cluster_parse(const char *name, const char *text, size_t bytes, sli_cluster *out);
/* The same from a file. Errors besides: those of reading it. */
sl_status sli_cluster_read(const char *path, sli_cluster *out);
void sli_cluster_clear(sli_cluster *cluster);

#endif
