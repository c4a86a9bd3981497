/* A run whose nodes fail: what that costs by formula, and by playing it with drawn failures. */
#ifndef SLI_PLANNER_FAILURES_H
#define SLI_PLANNER_FAILURES_H

#include "planner/cluster.h"

/* What failures cost a run on so many nodes, which all run again after a restart. */
typedef struct sli_failures {
    double mtbf_s;     /* of the run: any node's; INFINITY: no node fails */
    double save_s;     /* of a checkpoint */
    double interval_s; /* of computing between two checkpoints, by Daly's formula; INFINITY: none */
    double young_s;    /* the same by Young's */
    double useful;     /* the expected fraction of the time in which steps are trained that stay */
} sli_failures;

/* For checkpoints of so many bytes, which the nodes write together. Sources: J. W. Young, "A first
 * order approximation to the optimum checkpoint interval", CACM 17 (1974); J. T. Daly, "A higher
 * order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006). */
sli_failures sli_cluster_failures(const sli_cluster *cluster, int nodes, double saved_bytes);

/* A run as it is played. After a failure the steps since the last checkpoint are lost. The run
 * starts again on the nodes that are left, as sluice launch --elastic does; when a node is back
 * that it can use, it saves and starts again with that one too. Nodes that fail are those in use,
 * each after exponential times, while the run starts again as well. */
typedef struct sli_failing_run {
    int nodes, spares; /* in use; others that replace one of them in the next start */
    double mtbf_s;     /* of a node */
    double save_s, interval_s, restart_s;
    double repair_s; /* until a node that has failed is back */
    double work_s;   /* that the run's steps take on all its nodes */
    /* The speed on fewer nodes as a fraction of that on all of them; 0: it waits for more. It is
     * asked once for each number of nodes. */
    sl_status (*speed)(void *context, int nodes, double *out);
    void *context;
} sli_failing_run;

/* Where times until the next failure come from. */
typedef struct sli_failure_source {
    double (*draw)(void *context, double mean); /* seconds */
    void *context;
} sli_failure_source;

/* Speeds that are known already, [nodes + 1]; NaN: not yet. The caller frees it. */
sl_status sli_failing_run_speeds(const sli_failing_run *run, double **out);

/* One run. Takes its failures from *failures_left; where they do not suffice, *seconds is INFINITY.
 */
sl_status sli_failing_run_play(const sli_failing_run *run, const sli_failure_source *source,
                               double *speeds, int64_t *failures_left, double *seconds);

typedef struct sli_failure_forecast {
    int runs;           /* that were played; fewer than wanted where they have many failures */
    double seconds;     /* of a run, their mean; INFINITY: none ends */
    double low, high;   /* the 5th and the 95th percentile */
    double useful;      /* work_s / seconds */
    double fewer_speed; /* with one node less; 1 where another one replaces it */
} sli_failure_forecast;

enum { SLI_FAILING_RUNS = 1000 };

/* Plays SLI_FAILING_RUNS runs, with failures that are drawn by the seed. */
sl_status sli_failing_run_forecast(const sli_failing_run *run, uint64_t seed,
                                   sli_failure_forecast *out);

/* The interval between checkpoints with the shortest run, among five from a half to twice that of
 * `run`, whose forecast is known. */
sl_status sli_failing_run_find_interval(const sli_failing_run *run, uint64_t seed,
                                        const sli_failure_forecast *known, double *interval_s);

/* A layout of a job on a cluster that can go on with fewer nodes. Borrowed. */
typedef struct sli_elastic_run {
    const sli_cluster_job *job;
    const sli_cluster *cluster;
    const sli_devices *devices;
    const sli_found_layout *found;
} sli_elastic_run;

/* As in sli_failing_run; `context` is a sli_elastic_run. The shards and all that decides numbers
 * are kept: fewer replicas, with as many pipeline ranks or more, train them in turn. Of the fewest
 * shards in turn that fit the nodes and their memory, the layout with the shortest step is taken.
 * (elastic_cluster.c) */
sl_status sli_elastic_run_speed(void *context, int nodes, double *out);

#endif
