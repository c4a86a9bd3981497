/* What a search on a cluster knows: bound_cluster.c bounds layouts, search_cluster.c simulates
 * them. */
#ifndef SLI_PLANNER_SEARCH_CLUSTER_H
#define SLI_PLANNER_SEARCH_CLUSTER_H

#include "planner/cluster.h"

enum { SLI_MOST_MICRO_SIZES = 64 };

/* A micro-batch of so many rows on the slowest kind of the devices that are used. */
typedef struct sli_micro_size {
    int64_t rows;
    const sli_node_kind *kind;
    sl_module_profile *modules; /* [modules] */
    double *costs;              /* [modules] of forward and backward */
    /* [modules + 1] the sums up to a module: F, B, I */
    double *forward, *backward, *input;
    int **cuts; /* [modules + 1] the balance for so many stages; NULL: not cut yet */
} sli_micro_size;

/* What a schedule's name says of its tables. */
typedef struct sli_schedule_facts {
    bool halves; /* it has I and W apart */
    bool is_v;   /* rank r has stages r and 2 * ranks - 1 - r */
} sli_schedule_facts;

typedef struct sli_bounded_layout {
    sli_candidate candidate;
    double seconds; /* at least */
} sli_bounded_layout;

/* A layout that does not fit with any recomputation. With no more replicas, no fewer rows in a
 * micro-batch and no more memory, no other of its kind does: its ranks hold as many rows or more.
 */
typedef struct sli_misfit {
    int replicas; /* 0: none */
    int64_t micro_rows;
    uint64_t memory_bytes; /* of a device */
} sli_misfit;

typedef struct sli_grid_exchange {
    sli_device_grid grid;
    sl_link_cost reduce, gather;
} sli_grid_exchange;

typedef struct sli_cluster_searcher {
    const sli_cluster_job *job;
    sli_devices devices;
    int modules, frozen;
    double *gradient_bytes, *value_bytes; /* [modules + 1] up to a module */
    double *module_bytes;                 /* [modules] of values, gradients and optimizer */
    int **byte_cuts; /* [modules + 1] by module_bytes, as those of sli_micro_size */
    sli_micro_size sizes[SLI_MOST_MICRO_SIZES];
    int size_count;
    sli_schedule_facts *facts; /* [space.schedule_count] */
    sli_misfit *misfits; /* [modules][schedule_count][virtual_count][2][MOST_MISFITS] by pipeline
                        ranks, schedule, stages of a rank and ZeRO */
    sli_bounded_layout *layouts;
    size_t count, capacity;
    sli_grid_exchange exchanges[2]; /* of the grid that was asked for last, without near replicas
                                   and with them */
    double jitter;
    int jitter_ranks;
    sli_cluster_search *counts;
} sli_cluster_searcher;

void sli_micro_size_clear(sli_micro_size *size, int modules);
void sli_free_cuts(int **cuts, int modules);
/* Those of the candidate's micro-batches, with their times. */
sl_status sli_cluster_search_size(sli_cluster_searcher *search, const sli_candidate *candidate,
                                  sli_micro_size **out);
/* The cut by `costs` [modules] into so many stages, kept in `cuts`. */
sl_status sli_cluster_search_cut(const sli_cluster_searcher *search, int **cuts,
                                 const double *costs, int stages, const int **balance);
sl_status sli_schedule_facts_find(const char *name, sli_schedule_facts *out);
/* A schedule's number where there are several pipeline ranks; one has one stage. */
int sli_stages_of_rank(const sli_candidate *candidate);
int sli_cluster_search_shards(const sli_cluster_searcher *search, const sli_candidate *candidate);
double sli_cluster_search_jitter(sli_cluster_searcher *search, int ranks);
const sli_grid_exchange *sli_cluster_search_exchange(sli_cluster_searcher *search,
                                                     const sli_candidate *candidate);
/* The seconds that a step takes at least. */
sl_status sli_bound_layout(sli_cluster_searcher *search, const sli_candidate *candidate,
                           double *seconds);

#endif
