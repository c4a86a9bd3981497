/* A layout of a run as the planner sees it: the facts that its costs depend on. Who decides a run
 * fills it in; the planner knows no options.
 *
 *     memory.c       what each stage and each host holds
 *     activations.c  the part of it that follows from the schedule's table
 *     step.c         how long a step takes
 *     link.c         how long a message takes
 *     ladder.c       how long micro-batches take that were not measured
 *     search.c       which of many layouts are the best */
#ifndef SLI_PLANNER_LAYOUT_H
#define SLI_PLANNER_LAYOUT_H

#include "nn/layers.h"
#include "sluice/app/planner.h"
#include "sluice/module.h"
#include "sluice/optim.h"
#include "sluice/pipe.h"

/* A layout can be planned that has more stages than a run (SL_MAX_STAGES). */
enum { SLI_MAX_PLANNED_STAGES = 4096 };

/* All pointers are borrowed. */
typedef struct sli_layout {
    const sl_module *model;   /* a sequential */
    const sl_schedule *table; /* of an accumulation step, with its recomputations */
    int replicas, shards;     /* of the pipeline; of a batch */
    int accumulate;           /* accumulation steps of a shard's batch */
    int head_blocks;          /* as in sl_pipe_options */

    int64_t row_tokens;      /* of a row; 0: the batches' shapes are not known, and activations and
                                hosts are not planned */
    int64_t micro_rows;      /* of a micro-batch for training */
    int64_t eval_micro_rows; /* and of one of the `eval_micros` of an evaluation's batch */
    int eval_micros;

    sl_precision precision;
    sl_optimizer_options optimizer;
    bool zero;       /* replicas shard the optimizer's state */
    bool keeps_best; /* a copy of the best parameters */
    bool saves;      /* checkpoints, which are copied before they are written */

    int ranks;                     /* of the run: replicas, or several for each */
    bool near_replicas;            /* as in sl_train_options */
    bool processes;                /* the ranks are; else they are threads of one process */
    int first_rank, ranks_here;    /* of this host */
    const sl_device_plan *devices; /* [replicas * pipeline ranks], by replica and pipeline rank */
    int64_t process_bytes;         /* what each process holds already */
    double activation_factor;      /* of activations, which a run has measured; 0: 1 */
    bool has_own_memory; /* each pipeline rank has: a host is one of them, in a process of its own.
                            `devices` then has those of one replica alone, [pipeline ranks] */
} sli_layout;

/* What a rank of a run has: a replica, or some pipeline ranks of one. */
typedef struct sli_rank_plan {
    int replica, rank_in_replica;
    int first, count; /* its pipeline ranks */
} sli_rank_plan;

sli_rank_plan sli_layout_rank(const sli_layout *layout, int rank);

/* A split head, the model's last module, whose classes the ranks of several processes own, each
 * some (parallel/pipe/pipe_head_values.c). */
typedef struct sli_cut_head {
    const sl_module *module; /* NULL: none is */
    const sli_linear *linear;
    const sl_parameter
        *embedding; /* cut with it, the first module's; NULL: it is not tied to one */
} sli_cut_head;

sli_cut_head sli_layout_cut_head(const sli_layout *layout);

/* Elements that are trained of it, with the embedding. */
int64_t sli_cut_head_elements(const sli_cut_head *head);

/* The words that so many rows name, at most. */
int64_t sli_layout_most_words(const sli_layout *layout, int64_t rows, int64_t classes);

/* ---- Memory ----------------------------------------------------------------------------- */

/* Plans the model's stages, stages[s] with balance[s] modules. Errors: those of the modules'
 * shapes. */
sl_status sli_layout_plan_stages(const sli_layout *layout, const int *balance,
                                 sl_stage_plan *stages);

/* The part of it that activations take (activations.c): of a training step, raised to what an
 * evaluation needs. */
sl_status sli_layout_plan_activations(const sli_layout *layout, sl_stage_plan *stages);

/* Bytes that a pass keeps of each module from forward to backward, and of the output that it gives
 * to the next one, [modules] each, of one micro-batch. */
sl_status sli_layout_count_saved(const sli_layout *layout, int64_t *saved, int64_t *passed);

/* What one host holds whose ranks are these. */
void sli_layout_plan_host(const sli_layout *layout, const sl_stage_plan *stages, int first_rank,
                          int ranks, sl_host_plan *out);

/* What the device of a pipeline rank holds that has memory of its own, in the first replica. */
void sli_layout_plan_own_host(const sli_layout *layout, const sl_stage_plan *stages, int rank,
                              sl_host_plan *out);

/* ---- Time ------------------------------------------------------------------------------- */

/* The seconds for a byte of an update, and of what comes between a table and it. */
typedef struct sli_update_speed {
    double optimizer;  /* of gradients; ZeRO divides it among the replicas */
    double undivided;  /* of gradients: the norm, and the copies that products take */
    double table_zero; /* of a table's gradient, for each shard; 0: the profiles include it */
    double tie_sum;    /* of a tied gradient, for its sum with the one that it is tied to, after
                          each table */
} sli_update_speed;

/* How fast what a layout uses is, in seconds. Borrowed. */
typedef struct sli_layout_speed {
    const sl_module_profile *const *profiles; /* [pipeline ranks][modules] of one micro-batch */
    const sl_link_cost *links;                /* as in sl_partition_costs; NULL: no time */
    const int *cores;                         /* the same; NULL: every rank has its own */
    sl_link_cost reduce; /* a bucket's all-reduce between the replicas: in addition to
                            `seconds`, for each byte of gradients */
    sl_link_cost gather; /* the same of parameters that each gets from the one that updates them */
    sli_update_speed update;
    bool hides_exchange; /* gradients are exchanged while the devices compute */
} sli_layout_speed;

/* A ladder has rungs of 1, 2, 4 ... rows: the last one with at most so many. (ladder.c) */
int sli_ladder_rung(int rungs, int64_t rows);

/* The times of micro-batches of so many rows, from those of 1, 2, 4 ... rows,
 * ladder[rungs][modules]: what lies between is interpolated, what lies beyond in proportion.
 * (ladder.c) */
void sli_ladder_times(sl_module_profile *const *ladder, int rungs, int modules, int64_t rows,
                      sl_module_profile *out);

/* The link whose messages of so many bytes [count, 1 or more] take so many seconds, more than 0,
 * with the least squares of relative errors; neither of its costs is negative. (link.c) */
sl_link_cost sli_link_fit(const double *bytes, const double *seconds, int count);

/* The exchange of so many bytes of a stage's gradients, one bucket after the other. */
double sli_exchange_seconds(const sl_link_cost *link, double bytes);

/* What decides where such a layout is cut by time. */
sl_partition_costs sli_layout_partition_costs(const sli_layout *layout,
                                              const sli_layout_speed *speed);

/* The costs of a step with this cut. */
sl_status sli_layout_time_step(const sli_layout *layout, const sli_layout_speed *speed,
                               const int *balance, sl_step_costs *out);

/* ---- Search ----------------------------------------------------------------------------- */

/* A layout among many. What a field does not decide, the caller of the search does. */
typedef struct sli_candidate {
    int replicas, pipeline_ranks;
    const char *schedule;
    int virtual_stages; /* 0: the schedule's own number */
    int chunks;
    sl_recompute recompute;
    bool zero;
    bool shares_cores;  /* the pipeline ranks share all cores of their only replica */
    bool near_replicas; /* neighbouring devices are replicas of a stage, and not a pipeline's ranks
                         */
    bool splits_vocabulary; /* as in sl_train_options */
} sli_candidate;

/* What is tried. Lists that are NULL have one entry, the zero value. */
typedef struct sli_search_space {
    int ranks;    /* replicas * pipeline_ranks is at most this */
    int64_t rows; /* of a step, which replicas divide evenly, and chunks a replica's; 0: any */
    int least_replicas, most_replicas;
    int least_pipeline_ranks, most_pipeline_ranks;
    const char *const *schedules; /* [schedule_count]; one replica's single rank has the first */
    int schedule_count;
    const int *virtual_stages; /* [virtual_count] of a schedule with several pipeline ranks */
    int virtual_count;
    const int *chunks; /* [chunk_count] */
    int chunk_count;
    const sl_recompute *recomputes; /* [recompute_count] from the fastest on: of several that fit
                                       the memory, the first alone is timed */
    int recompute_count;
    bool zeros[2];             /* the first and the last value of `zero` with several replicas */
    bool shared[2];            /* the same of `shares_cores` with one replica of several ranks */
    bool near_replicas[2];     /* the same of `near_replicas` with several of several ranks */
    bool splits_vocabulary[2]; /* the same of `splits_vocabulary` with several pipeline ranks; one
                                  has the first */
} sli_search_space;

/* A layout that fits. */
typedef struct sli_found_layout {
    sli_candidate candidate;
    int stages, balance[SLI_MAX_PLANNED_STAGES];
    sl_step_costs costs;
    int64_t host_bytes; /* of the host that needs most */
} sli_found_layout;

typedef struct sli_search {
    uint64_t host_bytes;       /* of each host; 0: memory is not checked */
    int wanted;                /* how many layouts are kept, of different shapes (replicas, pipeline
                                  ranks, schedule); 1 or more */
    bool compares_checkpoints; /* layouts of one shape are kept beside each other where different
                                  ranks write their checkpoints: with and without ZeRO and a split
                                  vocabulary, and in each order of the devices on the nodes */
    bool asks_fit;             /* only whether any layout fits: `count` is then 1, and nothing is
                                  known of the layout */
    double most_seconds;       /* longer steps are not looked for; 0: any */
    const char *holder;        /* what a host is called; NULL: "host" */
    bool prefers_fewer_ranks;  /* of layouts whose steps are equal; else more */
    /* The search's: */
    sli_found_layout *found; /* [wanted] the best first */
    int count;
    sli_candidate smallest;       /* the one that lacks least of those that only do not fit */
    int64_t smallest_bytes;       /* that a host needs for it; 0: there is none */
    uint64_t smallest_host_bytes; /* that the host has */
    bool fits;                    /* the candidate at hand has */
} sli_search;

/* Calls `consider` for each candidate, which adds its layout, or leaves it out where there is none.
 * Ends at the first error. */
sl_status sli_search_layouts(sli_search *search, const sli_search_space *space,
                             sl_status (*consider)(void *context, sli_search *search,
                                                   const sli_candidate *candidate),
                             void *context);

/* Adds a layout, whose fields are the candidate's, to those found, if it is among the best that
 * fit. Cut by `balance`, or where that is NULL so that its simulated table is the shortest. Of
 * equals the number of ranks decides, else the first stays. */
sl_status sli_search_add(sli_search *search, const sli_candidate *candidate,
                         const sli_layout *layout, const sli_layout_speed *speed,
                         const int *balance);

/* SL_ERR_MEMORY where nothing fits: what the smallest layout needs. `limit` names what there is:
 * "at most 3 processes". */
sl_status sli_search_refuse(const sli_search *search, const char *limit);

/* Remembers a layout of which a host would need so many bytes, more than it has. */
void sli_search_leave_out(sli_search *search, const sli_candidate *candidate, int64_t bytes);

/* Whether they have the same replicas, pipeline ranks and schedule. */
bool sli_have_one_shape(const sli_candidate *a, const sli_candidate *b);

/* Whether a layout whose step takes at least so long could be among the best. */
bool sli_search_may_keep(const sli_search *search, double seconds);

#endif
