/* What a search on a cluster knows: cluster_facts.c finds it out, bound_cluster.c bounds layouts by
 * it, search_cluster.c simulates them. */
#ifndef SLI_PLANNER_SEARCH_CLUSTER_H
#define SLI_PLANNER_SEARCH_CLUSTER_H

#include "planner/cluster.h"

/* Cuts by `costs` [modules], of which a split head has none. */
typedef struct sli_cuts {
    double *costs;
    int **cuts; /* [modules + 1] for so many stages their balance, [stages], and then the first
                   module of each, and the end of the modules that are counted, [stages + 1]; NULL:
                   not cut yet */
} sli_cuts;

/* A micro-batch of so many rows on the first kinds of devices: each module takes as long as on the
 * slowest of them. */
typedef struct sli_micro_size {
    int64_t rows;
    int kind_count;
    sl_module_profile *modules; /* [modules] */
    sli_cuts by_time[2];        /* of forward and backward; with a split head */
    /* [modules + 1] the sums up to a module: F, B, I */
    double *forward, *backward, *input;
    double *saved;  /* [modules + 1] the sums up to a module of the bytes that passes keep */
    double *passed; /* [modules + 1] bytes of the tensor that a module gets from the one before */
} sli_micro_size;

/* What a schedule's name says of its tables. */
typedef struct sli_schedule_facts {
    bool halves; /* it has I and W apart */
    bool is_v;   /* rank r has stages r and 2 * ranks - 1 - r */
    bool *takes; /* [space.virtual_count] so many stages of a rank */
} sli_schedule_facts;

typedef struct sli_bounded_layout {
    sli_candidate candidate;
    double seconds; /* at least */
    size_t grid;    /* of sli_cluster_searcher.grids */
    bool is_whole;  /* the bound is that of all ranks and links; else of two ranks */
} sli_bounded_layout;

/* What a layout takes and needs at least. */
typedef struct sli_layout_bound {
    double work;    /* seconds of a step */
    double seconds; /* the same; INFINITY where it does not fit the memory */
    double bytes;   /* of a device */
} sli_layout_bound;

/* A layout that does not fit with some recomputation. With no more replicas, no fewer rows in a
 * micro-batch, of an evaluation too, and no more memory of such devices, no other of its kind does:
 * its ranks hold as many rows or more.
 */
typedef struct sli_misfit {
    int replicas; /* 0: none */
    int64_t micro_rows, eval_micro_rows;
    int eval_micros;
    uint64_t memory_bytes; /* of a device */
    bool is_cuda;
} sli_misfit;

typedef struct sli_grid_costs {
    sli_device_grid grid;
    double jitter;
    sl_link_cost reduce, gather;
    sl_link_cost *hops; /* [pipeline ranks] from each to the next one, from the last to the first;
                           NULL: not asked for yet */
} sli_grid_costs;

typedef struct sli_cluster_searcher {
    const sli_cluster_job *job;
    sli_devices devices;
    int modules, frozen;
    double *gradient_bytes, *value_bytes; /* [modules + 1] up to a module */
    sli_cuts by_bytes[2];   /* of values, gradients and optimizer; with a split head */
    int head_blocks;        /* of a head that is split; 0: it cannot be */
    bool cuts_embedding;    /* where it is, as it is tied to one */
    sli_micro_size **sizes; /* [size_count] by rows and kinds, ascending */
    size_t size_count, size_capacity;
    sli_schedule_facts *facts;   /* [space.schedule_count] */
    sli_misfit *misfits;         /* [modules][schedule_count][virtual_count][2][recompute_count]
                                [MOST_MISFITS] by pipeline ranks, schedule, stages of a rank, ZeRO and
                                recomputation */
    sli_bounded_layout *layouts; /* [count] the lowest bound first, as a heap */
    size_t count, capacity;
    sli_grid_costs *grids; /* [grid_count] */
    size_t grid_count, grid_capacity;
    double jitter;
    int jitter_ranks;
    sli_cluster_search *counts;
} sli_cluster_searcher;

/* The micro-batches of an evaluation. */
typedef struct sli_evaluated_micros {
    int64_t rows; /* of the largest */
    int count;
} sli_evaluated_micros;

sli_evaluated_micros sli_find_evaluated(const sli_cluster_job *job, const sli_candidate *candidate);

/* A layout's table and what it is timed with. (timed_table.c) */
typedef struct sli_timed_table {
    sl_schedule *table;                 /* NULL: the schedule does not take these numbers */
    sli_micro_size *size;               /* the search's */
    sl_device_plan *devices;            /* [ranks] */
    sl_module_profile *modules;         /* [modules], or [ranks][modules] */
    const sl_module_profile **of_ranks; /* [ranks] */
    sl_link_cost *links;                /* [ranks][ranks] */
    sli_layout layout;                  /* of these */
    sli_layout_speed speed;
} sli_timed_table;

/* With the times of the grid's jitter, which all ranks share, or with `each` has every one. To be
 * closed, after an error too. */
sl_status sli_timed_table_open(sli_cluster_searcher *search, const sli_candidate *candidate,
                               size_t grid, bool each, sli_timed_table *out);
void sli_timed_table_close(sli_timed_table *timed);
/* Gives a rank that has times of its own those of a device that takes so many times as long. */
void sli_timed_table_scale(sli_timed_table *timed, int rank, double factor);

/* The table of a layout that was found; to be closed, after an error too. */
typedef struct sli_found_table {
    sli_cluster_searcher search;
    sli_timed_table timed;
    sli_device_grid grid;
    int64_t actions;
} sli_found_table;

sl_status sli_found_table_open(const sli_cluster_job *job, const sli_cluster *cluster,
                               const sli_found_layout *found, bool each, sli_found_table *out);
void sli_found_table_close(sli_found_table *table);

void sli_micro_size_destroy(sli_micro_size *size, int modules);
sli_used_devices sli_cluster_search_used(const sli_cluster_searcher *search,
                                         const sli_candidate *candidate);
/* Those of the candidate's micro-batches, with their times. */
sl_status sli_cluster_search_size(sli_cluster_searcher *search, const sli_candidate *candidate,
                                  sli_micro_size **out);
/* Without cuts, of costs of 0. To be freed by sli_cuts_free, also after an error. */
sl_status sli_cuts_allocate(sli_cuts cuts[2], int modules);
void sli_cuts_free(sli_cuts cuts[2], int modules);
/* The cut into so many stages, with a split head that of cuts[1], which has *balance. */
sl_status sli_cluster_search_cut(const sli_cluster_searcher *search, sli_cuts cuts[2], bool splits,
                                 int stages, const int **balance);
sl_status sli_schedule_facts_find(const char *name, const sli_search_space *space,
                                  sli_schedule_facts *out);
const sli_schedule_facts *sli_cluster_search_facts(const sli_cluster_searcher *search,
                                                   const char *name);
/* A candidate's number where there are several pipeline ranks; one has one stage. */
int sli_stages_of_rank(const sli_candidate *candidate);
int sli_cluster_search_shards(const sli_cluster_searcher *search, const sli_candidate *candidate);
/* The grid of the candidate, as a number of search->grids. */
sl_status sli_cluster_search_grid(sli_cluster_searcher *search, const sli_candidate *candidate,
                                  size_t *out);
/* Raises layout->seconds to what a step takes at least with the fastest recomputation that may fit,
 * by the first and the last rank, in time that does not grow with the ranks, or with `is_whole` by
 * all ranks and links. */
sl_status sli_bound_layout(sli_cluster_searcher *search, sli_bounded_layout *layout, bool is_whole);
/* The whole bound with the candidate's own recomputation. */
sl_status sli_bound_recomputation(sli_cluster_searcher *search, const sli_bounded_layout *layout,
                                  sli_layout_bound *out);

#endif
