/* A run whose nodes fail: what that costs by formula, and in simulated runs. */
#ifndef SLI_PLANNER_FAILURES_H
#define SLI_PLANNER_FAILURES_H

#include "planner/cluster.h"

/* What failures cost a run on so many nodes, which all run again after a restart. */
typedef struct sli_failures {
    double mtbf_s;           /* until one of the run's nodes fails; INFINITY: none does */
    double save_s;           /* of a checkpoint */
    double daly_interval_s;  /* of computing between two checkpoints, by Daly's formula; INFINITY:
                                there are none */
    double young_interval_s; /* the same by Young's */
    double
        kept_fraction; /* the expected fraction of the time in which steps are trained that stay */
} sli_failures;

/* With checkpoints that take `save_s` seconds. Sources: J. W. Young, "A first order approximation
 * to the optimum checkpoint interval", CACM 17 (1974); J. T. Daly, "A higher order estimate of the
 * optimum checkpoint interval for restart dumps", FGCS 22 (2006). */
sli_failures sli_cluster_failures(const sli_cluster *cluster, int nodes, double save_s);

/* Seconds of a checkpoint of a layout that was found, by the node that writes most of it; 0 where
 * no node fails. (save_cluster.c) */
sl_status sli_cluster_time_save(const sli_cluster_job *job, const sli_devices *devices,
                                const sli_found_layout *found, double *seconds);

/* How a run goes on on some of its nodes. */
typedef struct sli_fewer_speed {
    double fraction; /* of the speed on all of them, at most 1; 0: it waits for more nodes */
    int nodes_used;  /* of the nodes that are there */
} sli_fewer_speed;

/* A run as it is simulated. After a failure the steps since the last checkpoint are lost. The run
 * starts again on the nodes that are left, as sluice launch --elastic does, or waits until they are
 * enough; when a node is back that makes it faster, it saves and starts again with that one too.
 * Only nodes in use fail, each after exponential times, while the run starts again as well. */
typedef struct sli_failing_run {
    int nodes, spares; /* in use; others that replace one of them in the next start */
    double mtbf_s;     /* of a node */
    double save_s, interval_s, restart_s;
    double repair_s; /* until a node that has failed is back */
    double work_s;   /* that the run's steps take on all its nodes */
    /* How it goes on on fewer nodes, asked once for each number of them. A fraction above 1 counts
     * as 1: a faster layout would be the plan. */
    sl_status (*speed)(void *context, int nodes, sli_fewer_speed *out);
    void *context;
} sli_failing_run;

/* Where times until the next failure come from. */
typedef struct sli_failure_source {
    double (*draw)(void *context, double mean); /* seconds */
    void *context;
} sli_failure_source;

/* What is known of the speeds, [nodes + 1]: all simulations of a run share it, and the caller frees
 * it. */
sl_status sli_failing_run_speeds(const sli_failing_run *run, sli_fewer_speed **out);

/* A run that was simulated to its end; or, where it has not got there within 1000 times `work_s`
 * and the failures that were left, its time if it goes on like that: INFINITY without any work. */
typedef struct sli_simulated_run {
    double seconds;
    bool ends;
} sli_simulated_run;

/* One run. Takes its failures from *failures_left. */
sl_status sli_failing_run_simulate(const sli_failing_run *run, const sli_failure_source *source,
                                   sli_fewer_speed *speeds, int64_t *failures_left,
                                   sli_simulated_run *out);

typedef struct sli_simulated_runs {
    int runs;             /* fewer than wanted where they have many failures, but 1 or more */
    int unfinished;       /* of these, that did not end */
    double seconds;       /* of a run, their mean; INFINITY: one gets nowhere */
    double low, high;     /* the 5th and the 95th percentile */
    double kept_fraction; /* work_s / seconds, 0 ... 1 */
    double fewer_speed;   /* the fraction with one node less; 1 where another one replaces it */
} sli_simulated_runs;

enum { SLI_FAILING_RUNS = 1000 };

/* Simulates SLI_FAILING_RUNS runs, with random failures by the seed; fewer where they have more
 * than a million failures together. */
sl_status sli_failing_run_simulate_all(const sli_failing_run *run, uint64_t seed,
                                       sli_fewer_speed *speeds, sli_simulated_runs *out);

/* The interval between checkpoints with the shortest run, among five from a half to twice that of
 * `run`, whose simulated runs are known. */
sl_status sli_failing_run_find_interval(const sli_failing_run *run, uint64_t seed,
                                        sli_fewer_speed *speeds, const sli_simulated_runs *known,
                                        double *interval_s);

/* A layout of a job on a cluster that can go on with fewer nodes. Borrowed. */
typedef struct sli_elastic_run {
    const sli_cluster_job *job;
    const sli_cluster *cluster;
    const sli_devices *devices;
    const sli_found_layout *found;
} sli_elastic_run;

/* As in sli_failing_run; `context` is a sli_elastic_run. As when a run that has lost processes goes
 * on, shards and all that decides numbers are kept: fewer replicas train them in turn, with as many
 * pipeline ranks or more where there are several, and of all such layouts that fit the nodes and
 * their memory the one with the shortest step is taken. (elastic_cluster.c) */
sl_status sli_elastic_run_speed(void *context, int nodes, sli_fewer_speed *out);

#endif
