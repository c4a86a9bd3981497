/* What a layout of a run costs: the memory of each stage and of a host, and the time of a step.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_APP_PLANNER_H
#define SLUICE_APP_PLANNER_H

#include "sluice/status.h"

#include <stdint.h>

SL_API_BEGIN

enum { SL_DAY_SECONDS = 86400 };
enum { SL_MAX_STAGES = 64, SL_MAX_REPLICAS = 1024, SL_MAX_CHUNKS = 4096, SL_MAX_SLICES = 1024 };

/* ---- Memory ----------------------------------------------------------------------------- */

typedef struct sl_stage_plan {
    int rank;         /* the pipeline rank that runs it */
    int first, count; /* modules */
    int64_t parameter_elements;
    int64_t parameter_bytes, optimizer_bytes;
    int64_t gradient_bytes;   /* with the sums of shards, where a replica has several */
    int64_t activation_bytes; /* peak, from the schedule's table and what modules save, with the
                                 inputs and gradients that may have to wait for the stage */
    int64_t workspace_bytes;  /* peak inside one module or the loss, of one micro-batch */
    int64_t cached_bytes;     /* on a CPU: freed blocks that its cache keeps, and the scratch for a
                                 bias gradient's sums. Of a step, the smaller of the loss's and the
                                 modules' workspace; of an evaluation, where that takes more than a
                                 step, a tensor of each size that its modules and its loss allocate,
                                 but for those in use */
    int64_t best_bytes;  /* the copy of the best parameters, which each process has once, on the
                            devices of its first replica; 0 where there is one validation only, after
                            the last step */
    int64_t saved_bytes; /* what the first replica copies of parameters for a checkpoint, where its
                            processes see one directory */
} sl_stage_plan;

/* Of all ranks on one host together, in its memory: what CUDA devices hold is not in it. */
typedef struct sl_host_plan {
    int64_t parameter_bytes, gradient_bytes, optimizer_bytes;
    int64_t activation_bytes; /* with workspace and what is cached */
    int64_t best_bytes;       /* one copy a process */
    int64_t saved_bytes;      /* the copies from which checkpoints are written */
    int64_t process_bytes;    /* what the processes hold already: the program and its text */
    int64_t total_bytes;
} sl_host_plan;

/* "parameters 1.25 GiB, gradients …": what it needs, in `text`, which is returned. */
enum { SL_HOST_PLAN_BYTES = 320 };
const char *sl_host_plan_text(const sl_host_plan *host, char text[SL_HOST_PLAN_BYTES]);

/* The device of a pipeline rank. */
typedef struct sl_device_plan {
    char name[32]; /* empty: it is on another host, and not known yet */
    int threads;   /* 0: it is not open */
    int rank;      /* the rank of the run that has this device */
} sl_device_plan;

/* The bytes of memory and swap that a process can have: the machine's, or less where a control
 * group limits it. What other processes hold is not subtracted. */
uint64_t sl_usable_memory(void);

/* ---- Time ------------------------------------------------------------------------------- */

/* Where the time of a step goes, in seconds. */
typedef struct sl_step_costs {
    double seconds;   /* of the whole step */
    double pipeline;  /* the tables of all micro-batches that a replica trains */
    double exchange;  /* gradients, and with ZeRO parameters, between replicas, as far as the tables
                         do not hide it. On CPUs nothing does: the exchange and the computation take
                         the same cores */
    double update;    /* the norm of the gradients and the optimizer */
    double bubble;    /* idle fraction of the pipeline ranks during `pipeline`, 0 ... 1 */
    double imbalance; /* the part of `bubble` that the busiest rank does not have */
    double recompute; /* fraction of `pipeline` in which the ranks run forward again */
} sl_step_costs;

/* ---- Clusters ---------------------------------------------------------------------------- */

/* What failures of nodes cost a run: by formula where all nodes run again after a restart, and in
 * simulated runs with random failures, on fewer nodes until those that failed are back. */
typedef struct sl_failure_plan {
    double mtbf_s;           /* of all nodes together; INFINITY: none fails */
    double save_s;           /* of a checkpoint */
    double daly_interval_s;  /* between two checkpoints, by Daly's formula, as they are simulated;
                                INFINITY: none is needed */
    double young_interval_s; /* the same by Young's */
    double simulated_interval_s; /* of five intervals from a half to twice Daly's, the one with the
                                    shortest simulated runs; INFINITY: not looked for */
    double daly_kept_fraction;   /* the expected fraction of the time whose steps stay, by Daly's
                                    model */
    double kept_fraction; /* in simulated runs: what the steps take without failures, as a fraction
                      of what they take with them, and checkpoints; 0 ... 1 */
    double fewer_speed; /* with a node less, as a fraction; 1 where another one replaces it at once;
                           0: the run waits until that one is back */
    double run_s, low_s, high_s; /* of the whole run: the mean, the 5th and the 95th percentile;
                                    INFINITY: it does not end */
    int runs;                    /* that were simulated; 0: no node fails */
    int unfinished; /* of these, that were left before their end, after 1000 times their
                       time without failures or a million failures: the time of their
                       work so far stands for the rest */
} sl_failure_plan;

/* How a cluster differs from its file. A field of 0 changes nothing. */
typedef struct sl_cluster_change {
    double links;    /* every level's bytes_per_s is so many times as large */
    double memory;   /* each device's memory_bytes is so many times as large */
    int nodes;       /* that it has, all of one kind */
    double failures; /* a node fails so many times as often */
} sl_cluster_change;

/* A number of a cluster's file, and where it comes from. */
typedef struct sl_cluster_input {
    char name[96]; /* "nodes[0].memory_bytes" */
    double value;
    int line;          /* of the file; 0: it is a default */
    char measured[64]; /* what has measured it, by the file; empty: it is given */
} sl_cluster_input;

SL_API_END

#endif
