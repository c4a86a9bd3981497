/* A cluster that is not here, as a file describes it: kinds of nodes, links by level, failures.
 *
 *     cluster.c        reads the file, whose objects cluster_reader.h opens
 *     cluster_profile.c the measured times of a kind of nodes
 *     cluster_links.c  how fast its devices talk to each other
 *     cluster_times.c  how fast they compute
 *     failures.h       what failures cost
 *     save_cluster.c   how long a checkpoint takes
 *     cluster_facts.c  what a search finds out once for many layouts
 *     bound_cluster.c  how long a layout takes at least
 *     timed_table.c    its table with the times of ranks and links
 *     jitter.h         what jitter and slow nodes add to it
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

/* How long the modules of a model take on a device of a kind, as sluice profile has measured it. */
typedef struct sli_kind_profile {
    int modules, rungs;           /* rungs: 0: there is none */
    sl_module_profile **times;    /* [rungs][modules] of micro-batches of 1, 2, 4 ... rows */
    double *parameters, *trained; /* [modules] elements */
    double row_tokens;            /* of a row */
    sl_precision precision;
    char *model; /* its config.json; NULL: the file does not say it */
    int line;    /* of the file */
} sli_kind_profile;

void sli_kind_profile_clear(sli_kind_profile *profile);

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
    sli_kind_profile profile;
} sli_node_kind;

typedef struct sli_cluster {
    sli_node_kind kinds[SLI_MOST_NODE_KINDS];
    int kind_count, devices; /* `devices` of all nodes together */
    int rack_nodes;
    sl_link_cost links[SLI_LEVELS];     /* for each device, while all others send as well */
    double message_s[SLI_LEVELS];       /* from one message of an exchange to the next */
    double mtbf_s;                      /* mean time between failures of a node; 0: none fails */
    double restart_s, save_bytes_per_s; /* to start again; that a node writes of a checkpoint */
    double repair_s;                    /* until a node that has failed is back */
    double spread; /* standard deviation of a device's time for a step, as a fraction of it */
    double slow_nodes, slow_factor; /* the fraction of nodes that are slow; how many times as long
                                       their devices take */
    sl_cluster_input *inputs;
    size_t input_count, input_capacity;
} sli_cluster;

/* Reads a cluster file's text; `name` is the file's, for errors. The caller clears the result,
 * after an error too. Errors: SL_ERR_FORMAT for text that is no JSON, and for a member that is
 * missing, unknown, twice there or out of its range, by its name and line; SL_ERR_MEMORY. */
sl_status sli_cluster_parse(const char *name, const char *text, size_t bytes, sli_cluster *out);
/* The same from a file. Errors besides: those of reading it. */
sl_status sli_cluster_read(const char *path, sli_cluster *out);
void sli_cluster_clear(sli_cluster *cluster);

/* Changes its numbers, and what is listed of them. Errors: SL_ERR_INVALID for negative changes,
 * other nodes of several kinds or too many, and other failures where no node fails.
 * (change_cluster.c) */
sl_status sli_cluster_change(sli_cluster *cluster, const sl_cluster_change *change);

/* Whether the profiles of its kinds are of this precision, of such rows and of modules like this
 * model's: SL_ERR_INVALID for one of others, with its line of the file `name`. (cluster_profile.c)
 */
sl_status sli_cluster_check_profiles(const sli_cluster *cluster, const char *name,
                                     const sl_module *model, sl_precision precision,
                                     int64_t row_tokens);

/* ---- Links -------------------------------------------------------------------------------- */

/* The devices of a cluster: those of the fastest kind come first, by what they reach of their peak
 * rates, and a node's are neighbours. Device d is in unit units[level][d], which has the number of
 * its first device, but for racks. */
typedef struct sli_devices {
    const sli_cluster *cluster; /* borrowed */
    sl_precision precision;
    int count;
    const sli_node_kind *kinds[SLI_MOST_NODE_KINDS]; /* in the devices' order */
    int *units[SLI_LEVELS];                          /* [count] */
} sli_devices;

/* `precision` decides which kind is the fastest. The caller clears it, after an error too. */
sl_status sli_devices_list(const sli_cluster *cluster, sl_precision precision, sli_devices *out);
void sli_devices_clear(sli_devices *devices);

/* What the first `used` devices are. */
typedef struct sli_used_devices {
    int kind_count;             /* they are of the first so many of sli_devices.kinds */
    const sli_node_kind *least; /* the kind with the least memory of a device */
    double memory_bytes;        /* its memory, without what is reserved */
    double memory_bytes_per_s;  /* of the slowest memory */
    double flops;               /* peak FLOP/s of all together */
    double flops_f32;           /* of the slowest, in f32 */
    bool is_cuda;               /* all are */
    bool is_mixed;              /* some are, and some are not */
} sli_used_devices;
sli_used_devices sli_devices_used(const sli_devices *devices, int used);

/* How many nodes the first `used` devices are on. */
int sli_devices_count_nodes(const sli_devices *devices, int used);
/* How many devices the first nodes have. */
int sli_devices_of_nodes(const sli_devices *devices, int nodes);

/* Where `replicas` of so many pipeline ranks are: neighbouring devices are a replica's, or with
 * `near_replicas` a stage's. */
typedef struct sli_device_grid {
    int replicas, pipeline_ranks;
    bool near_replicas;
} sli_device_grid;

/* The number of a rank's device. */
int sli_devices_find(const sli_device_grid *grid, int replica, int rank);

/* The slowest link between two pipeline ranks of one replica, of all replicas. */
sl_link_cost sli_devices_rank_link(const sli_devices *devices, const sli_device_grid *grid,
                                   int from, int to);

/* The exchange of a bucket between the replicas, as in sli_layout_speed. Each sends every other one
 * the part of its data that this one adds, and later the sums of its own part (comm/reduce_plan.h);
 * the messages of a level go one behind the other. Of the pipeline ranks that of the slowest. */
void sli_devices_exchange(const sli_devices *devices, const sli_device_grid *grid,
                          sl_link_cost *reduce, sl_link_cost *gather);

/* ---- Times -------------------------------------------------------------------------------- */

/* The modules with a micro-batch [micro_rows, row_tokens] on a device of this kind: forward takes
 * as long as its FLOP need at the peak rate and the efficiency of so many, or its bytes, whichever
 * is longer, and backward's halves as much longer as they have more FLOP; or as the kind's profile
 * says, which is of this model. */
sl_status sli_cluster_time_modules(const sli_node_kind *kind, const sl_module *model,
                                   sl_precision precision, int64_t micro_rows, int64_t row_tokens,
                                   sl_module_profile *out);

/* The norm and the optimizer, for each byte of gradients: what they read and write of a device's
 * memory; or the rounding at random of averages in bf16, where that takes longer. */
double sli_cluster_time_update(double memory_bytes_per_s, double flops_f32,
                               const sl_optimizer_options *optimizer);

/* The same in its parts: the norm reads the gradients, and zeros are written to those of tables. */
sli_update_speed sli_cluster_update_speed(double memory_bytes_per_s, double flops_f32,
                                          const sl_optimizer_options *optimizer);

/* How many times as long as without jitter a step is expected to take at most, as all its `ranks`
 * devices, which are on so many nodes, wait for the slowest of them: the expected largest of so
 * many draws of a normal distribution with mean 1 and the cluster's spread, and where a node is
 * slow its factor besides. jitter.h draws what it takes. */
double sli_cluster_jitter(const sli_cluster *cluster, int ranks, int nodes);
bool sli_cluster_has_jitter(const sli_cluster *cluster);

/* ---- Search ------------------------------------------------------------------------------- */

/* What is planned on a cluster. All pointers are borrowed. */
typedef struct sli_cluster_job {
    const sl_module *model;
    sl_precision precision, comm_precision;
    sl_optimizer_options optimizer;
    int64_t row_tokens;
    int64_t eval_rows;      /* of an evaluation's batch; 0: none is evaluated */
    bool keeps_best;        /* a copy of the best parameters */
    int head_blocks;        /* of a head that is split, as in sl_pipe_options */
    int shards;             /* of a step, which fewer replicas train in turn; 0: one of each */
    int64_t shard_rows;     /* of a shard; with `shards`, and space.rows is then 0 */
    sli_search_space space; /* what is tried; `rows`, `schedules`, `virtual_stages`, `chunks` and
                               `recomputes` are set */
} sli_cluster_job;

/* How much was looked at. */
typedef struct sli_cluster_search {
    int64_t layouts;   /* that were bounded */
    int64_t simulated; /* of these, with their tables */
    int64_t too_large; /* of these, left out: their tables have too many actions */
} sli_cluster_search;

/* A candidate's schedule as its table is written: one rank has one stage, in the order that all
 * schedules have there. */
const char *sli_candidate_schedule(const sli_candidate *candidate);

/* The best layouts, with the shortest step first: those whose bounds allow it are simulated, from
 * the lowest bound on, until no other can be among the best. A model is cut so that its slowest
 * stage is as fast as can be, or, where that does not fit the memory, by its parameters. `results`
 * has `wanted` and `found`; its host_bytes are the device's. */
sl_status sli_search_cluster(const sli_cluster_job *job, const sli_cluster *cluster,
                             sli_search *results, sli_cluster_search *counts);

/* Where a kind of nodes has a profile, and the table is not large: cuts a layout that was found so
 * that its simulated step is the shortest (sl_partition_by_time), if that is shorter than it is. */
sl_status sli_cluster_recut(const sli_cluster_job *job, const sli_cluster *cluster,
                            sli_found_layout *found);

/* Modules cut into stages, stage s having balance[s] of them, so that the largest sum of a stage's
 * `costs` [modules] is as small as can be. There are at least as many modules as stages. */
void sli_cut_evenly(const double *costs, int modules, int stages, int *balance);

#endif
