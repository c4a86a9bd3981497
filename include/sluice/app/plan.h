/* The best plans of a run, on this machine as a profile finds it, or by what a run has measured of
 * itself.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_APP_PLAN_H
#define SLUICE_APP_PLAN_H

#include "sluice/app/train.h"

SL_API_BEGIN

/* Options of a run that are not searched; flags, which can be combined. Devices, a table, given
 * virtual stages, a placement and accumulation steps are never searched. */
typedef enum sl_plan_kept {
    SL_KEEP_REPLICAS = 1,
    SL_KEEP_PIPELINE_RANKS = 2,
    SL_KEEP_SCHEDULE = 4,
    SL_KEEP_CHUNKS = 8,
    SL_KEEP_RECOMPUTE = 16,
    SL_KEEP_BALANCE = 32, /* SL_BALANCE_AUTO is a search as well */
    SL_KEEP_ZERO = 64,
    SL_KEEP_SHARDS = 128,
    SL_KEEP_BATCH_SIZE = 256,
    SL_KEEP_SPLIT_VOCABULARY = 512 /* one that is set is kept without this */
} sl_plan_kept;

/* What a run has measured of its own steps. */
typedef struct sl_run_measures {
    double step_seconds;              /* of a step, without waiting for data */
    double exchange_seconds;          /* of it: waiting for the gradients of other replicas */
    double update_seconds;            /* of it: the norm of the gradients and the optimizer */
    const double *forward, *backward; /* [stages] of a micro-batch, as in sl_utilization; NULL:
                                         there is one stage, which has the rest of the step */
    int64_t activation_bytes;         /* the most that its devices held beside parameters,
                                         gradients and the optimizer's state; 0: not known */
    bool shares_cores;                /* its pipeline ranks have all cores together */
    double one_stage;    /* as in sl_run_info; 0: not known, and taken to follow from its cores */
    const double *links; /* [stages - 1] of a tensor to the next stage, in seconds; NULL: no time */
    int processes;       /* whose ranks they are; 0: all are threads of one */
    int host_processes;  /* of several on the host that has most; 0: all */
    bool has_own_memory; /* each device has, as GPUs; else their host's is meant */
    int64_t memory_bytes;  /* of the host, or of the device, that has least; 0: this host's */
    int64_t process_bytes; /* that a process held before its model; 0: as much as this one */
} sl_run_measures;

/* So many hosts and GPUs of a process a meter can tell apart. */
enum { SL_METER_HOSTS = 1024, SL_METER_GPUS = 256 };

/* Makes such measures of what a run's reporters are told, or its log tells. Begins with zeros; the
 * measures point into it. */
typedef struct sl_run_meter {
    /* The caller's, as in sl_run_info: */
    bool is_oversubscribed;
    int processes;
    int64_t process_bytes;
    double one_stage;
    /* The functions': */
    int64_t steps;
    double step_seconds, exchange_seconds, update_seconds; /* of all steps together */
    double forward[SL_MAX_STAGES], backward[SL_MAX_STAGES], links[SL_MAX_STAGES];
    bool has_stages, has_links, shares_cores;
    bool is_mixed; /* only some ranks share cores */
    double activation_bytes;
    int64_t memory_bytes;
    int devices, gpus;
    bool shares_gpus;
    char device[32];             /* that was added last */
    int rank;                    /* whose it is */
    bool has_gpu[SL_METER_GPUS]; /* of its process so far, by the numbers in their names */
    int hosts;                   /* with devices of several processes */
    struct {
        char name[64];
        int processes;
    } host[SL_METER_HOSTS];
    bool has_more_hosts;
    int host_processes; /* of the host that has most */
} sl_run_meter;

/* What a pipeline rank's device had, in bytes at their peaks. */
typedef struct sl_run_device {
    const char *host, *name;
    int rank; /* of the run, whose it is */
    double total, parameters, gradients, optimizer;
    double usable; /* that it can have, as in sl_memory_stats; 0: not known */
} sl_run_device;

/* Of one step, as in sl_step_info, or a median of them. */
typedef struct sl_run_step_times {
    double seconds, data_seconds, exchange_seconds, update_seconds;
} sl_run_step_times;

/* No pointer is NULL. */
void sl_run_meter_add_step(sl_run_meter *meter, const sl_run_step_times *times);
/* In the place of what was set before; it has at most SL_MAX_STAGES stages. */
void sl_run_meter_set_stages(sl_run_meter *meter, const sl_utilization *utilization);
/* Those of all replicas, by replica and pipeline rank; the ranks of a host may be any. GPUs of one
 * process with the same name are one; of two processes they are taken to be two, since each may see
 * another GPU by the same number. */
void sl_run_meter_add_device(sl_run_meter *meter, const sl_run_device *device);
/* The means of the steps. Errors: SL_ERR_UNSUPPORTED where they say nothing of other layouts, since
 * devices share their cores or GPUs, or are of two kinds, or there are more than SL_METER_HOSTS
 * hosts; SL_ERR_NOT_FOUND where several processes,
 * or GPUs, have told nothing of their devices. */
sl_status sl_run_meter_measures(const sl_run_meter *meter, sl_run_measures *out);

typedef struct sl_plan_search_options {
    const sl_train_options *run; /* with `data`, they are read, and say what the model's vocabulary
                                    and the longest row are; else model.ntokens and bptt */
    const sl_run_measures *measures; /* of a run with the options `run`, in which nothing is left
                                        open and the balance is explicit: nothing is profiled or
                                        read; borrowed. NULL: this machine is profiled */
    unsigned kept;                   /* sl_plan_kept; what the run leaves open is searched */
    double profile_seconds; /* for measuring the machine again, in turn, for a fifth of it at least,
                               and until the middle half of what was measured is within 3%; 0: all
                               is measured once. More than 0: all is measured twice at least,
                               however long that takes. Finite, and not negative */
    int64_t batch_tokens;   /* tokens of a step, the same in all plans: a multiple of bptt; 0: those
                               of batch_size rows of each of `shards` (0: 1) */
    /* For a cluster: */
    sl_cluster_change change;   /* of what its file says */
    int64_t most_table_actions; /* the first plan's table is wanted as well, if it has at most so
                           many actions; 0: no */
    double tokens;              /* of the whole training, for its failures; 0: those of 30 days */
    bool best_only;             /* the first plan is wanted alone, without its simulated_interval_s,
                                   and what would help it is not */
} sl_plan_search_options;

/* What would train more tokens than the first plan: a search for a machine that has more of
 * something, or the plan itself with one pipeline rank less. */
typedef enum sl_plan_help {
    SL_HELP_LINKS,  /* all links have twice the bytes per second, and the same latency */
    SL_HELP_MEMORY, /* every device, or this host, has twice the memory */
    SL_HELP_FEWER,  /* one pipeline rank less, with otherwise the same options, cut anew */
    SL_PLAN_HELPS
} sl_plan_help;

typedef struct sl_plan_helps {
    /* How many times as many tokens a day, of a cluster with its failures. 0: there is no such
     * layout that fits; failures leave the first plan no tokens; the ranks of a run with measures
     * are kept; or, with twice the memory, not even one row fits this machine, to be timed. */
    double gain[SL_PLAN_HELPS];
    /* Links and memory: the search, which has too many layouts, was for the replicas and pipeline
     * ranks of the first plan alone, so that more could be gained. The gain is then an estimate:
     * with failures or jitter the first plan was chosen among the layouts with the shortest steps,
     * and the others may be ordered among more. */
    bool is_lower_bound;
} sl_plan_helps;

/* The bytes are enough for the names of as many devices as a list can have. */
enum { SL_PLANS_FOUND = 5, SL_PLAN_DEVICES_BYTES = 8192 };

/* A plan that fits the memory. */
typedef struct sl_found_plan {
    sl_train_options options; /* the run's, with what was searched; `devices` may point into this
                                 struct, which is therefore not to be copied */
    char devices[SL_PLAN_DEVICES_BYTES];
    const char *device; /* "cpu" or "cuda": what its devices are; NULL: both */
    bool shares_cores;  /* its pipeline ranks have all cores together */
    sl_step_costs costs;
    double forward[SL_MAX_STAGES], backward_input[SL_MAX_STAGES], backward_weight[SL_MAX_STAGES],
        backward[SL_MAX_STAGES], head_forward[SL_MAX_STAGES], head_backward[SL_MAX_STAGES],
        links[SL_MAX_STAGES]; /* [options.balance_count] as in sl_cost_model, in seconds */
    double tokens_per_s;
    double mfu; /* the model's FLOP, without recomputation, of what its devices do at their best
                   rate of large matrix products, which is measured; 0: it is not */
    int64_t memory_bytes; /* of the host, or of the device with its own, that needs most */
    double spread; /* how far the middle half of the rounds is apart in which its modules were
                      timed, as a fraction of their time; negative: they were timed once, or not */
} sl_found_plan;

/* Profiles this machine, and searches replicas, pipeline ranks, virtual stages, schedule, chunks,
 * recomputation, ZeRO, how pipeline ranks share the cores, and the cut by time, as far as memory
 * allows. Ranks are threads of one process, at most one for each core. plans[0 ... *count - 1] are
 * the best, with the shortest step first, each of another shape (replicas, pipeline ranks,
 * schedule). A replica has one shard, unless `kept` says otherwise. Takes as long as measuring all
 * once, and then profile_seconds, or a second time where that is longer; with measures, as long as
 * simulating the tables of all layouts, the more ranks and micro-batches they have.
 *
 * With measures of a run the plans train its batches, and, but for other chunks, the same bits: its
 * shards, rows and ZeRO are kept, and there are no more ranks or replicas than it had, since these
 * were not measured. Those that occupy processes or GPUs are kept as well, and so are their
 * devices, which the plans do not name. A message takes as long as the run's, and with more rows as
 * much longer; between ranks that have passed none, as long as its slowest.
 *
 * *helps gets what would help the first plan, which are two or three more searches; NULL: that is
 * not wanted. The links of a machine are those between replicas.
 *
 * Errors: SL_ERR_MEMORY where no layout fits: what the smallest needs, and what there is;
 * SL_ERR_INVALID for profile_seconds out of their range; SL_ERR_INVALID or SL_ERR_UNSUPPORTED where
 * no layout has these options: why the last one that was tried has not; those of reading the data
 * and of sl_profile_modules. */
sl_status sl_plan_search(const sl_plan_search_options *options, sl_found_plan plans[SL_PLANS_FOUND],
                         int *count, sl_plan_helps *helps);

/* The table of an accumulation step of a plan that was found, as it runs, and the simulation of it;
 * both are to be freed. Errors: those of sl_plan_create. */
sl_status sl_found_plan_simulate(const sl_found_plan *plan, sl_schedule **table,
                                 sl_simulation *out);

/* ---- What to change in a run --------------------------------------------------------------- */

enum { SL_PLAN_CHANGES = 5 };

/* How a run with these options, as in sl_plan_search_options with measures, would be faster.
 * *own gets the run itself as its measures explain it; changes[0 ... *count - 1] get those that
 * differ from it in one thing and have a shorter step, the best first: the cut, the schedule, the
 * chunks, what is recomputed, or one pipeline rank instead of several. All but other chunks
 * train the same bits. What is not measured is taken to scale: as much time for each row, and for
 * each core. It measures nothing; it takes as long as a search among the schedules.
 *
 * Errors: those of sl_plan_search. */
sl_status sl_plan_find_changes(const sl_train_options *run, const sl_run_measures *measures,
                               sl_found_plan *own, sl_found_plan changes[SL_PLAN_CHANGES],
                               int *count);

/* ---- A cluster that is not here ------------------------------------------------------------- */

/* A plan for a cluster. It may be larger than a run of this version (SL_MAX_STAGES,
 * SL_MAX_REPLICAS, SL_MAX_CHUNKS). */
typedef struct sl_cluster_plan {
    int replicas, pipeline_ranks, virtual_stages;
    const char *schedule;
    int chunks;
    sl_recompute recompute;
    bool zero;
    bool near_replicas; /* neighbouring devices are replicas of a stage; else ranks of a pipeline */
    bool split_vocabulary; /* as in sl_train_options */
    int64_t batch_size;    /* rows of a replica, which has one shard */
    int stages, *balance;  /* [stages] modules of each */
    sl_step_costs costs;   /* the mean of so many drawn steps; with no draws there is no jitter */
    int draws;
    double tokens_per_s;
    double mfu;           /* the model's FLOP, without recomputation, of the devices' peak */
    int64_t memory_bytes; /* of the device that needs most */
    int nodes_used;
    const char *device; /* "cpu" or "cuda": what its devices are; NULL: both */
    sl_failure_plan failures;
} sl_cluster_plan;

typedef struct sl_cluster_plans {
    sl_cluster_plan plans[SL_PLANS_FOUND]; /* those that train most tokens a day with failures, each
                                              of another shape */
    int count;
    sl_schedule *table;       /* of the first, as far as it is wanted; NULL: it is not */
    sl_simulation simulation; /* of it, in seconds: with jitter, of the slowest replica of the first
                                 drawn step; else of any replica */
    int nodes;                /* of the cluster, also where it has no plan */
    sl_cluster_input *inputs; /* [input_count] the numbers that they follow from */
    size_t input_count;
    int64_t layouts;   /* that were bounded */
    int64_t simulated; /* of these, with their tables: no other can be among the best */
    int64_t too_large; /* of these, left out for the size of their tables */
    bool is_cut_off;   /* more layouts than were ordered could be among the best: those with the
                          shortest steps were */
    uint64_t seed;     /* of what is drawn, jitter and failures: the run's */
    sl_plan_helps helps;
} sl_cluster_plans;

/* Searches the best plans of the run `options->run` on the cluster that the file `path` describes
 * (docs/planning.md), as sl_plan_search does, and the devices' order besides.
 * Nothing is profiled or read: the model is complete, with ntokens, and so is bptt. Devices,
 * balance, tables, placements and accumulation steps cannot be given. Clear the result with
 * sl_cluster_plans_clear, after an error too.
 *
 * Errors: SL_ERR_FORMAT for a bad file, with the line; SL_ERR_MEMORY where no layout fits: what the
 * smallest needs of a device; SL_ERR_INVALID where no layout has these options, or the cluster
 * cannot be changed so. */
sl_status sl_plan_search_cluster(const sl_plan_search_options *options, const char *path,
                                 sl_cluster_plans *out);
void sl_cluster_plans_clear(sl_cluster_plans *plans);

/* Measures this machine for a model and a precision: *text gets a cluster file whose only kind of
 * nodes it is, with the times of the model's modules for micro-batches of 1, 2, 4 ... rows while
 * all devices work (`run->devices`, or each core one), their peak rates and their memory. The model
 * is complete, with ntokens, and so is bptt; `run` has no data. `device_memory`: bytes of a device,
 * 0: an equal part of the usable memory, or that of the GPU that has least. `seconds` are as
 * profile_seconds of sl_plan_search_options. The caller frees *text.
 * Errors: SL_ERR_INVALID for seconds out of their range; SL_ERR_INVALID, SL_ERR_UNSUPPORTED for
 * options that cannot be profiled; those of sl_profile_modules. */
sl_status sl_profile_machine(const sl_train_options *run, int64_t device_memory, double seconds,
                             char **text);

/* Measures what messages take between the ranks of a group of processes, and between threads of
 * one: *text gets the member "links" of a cluster file, with a link for each level that has a pair
 * of ranks: `list`, where each has two cores, `node`, and beyond that `rack`, for each so many
 * hosts in the order of ranks (0: racks are not known), and `spine`. Every rank calls it and gets
 * the same text; the caller frees it. Errors, which break the group: those of sl_group_send and
 * sl_spawn; SL_ERR_INVALID for a negative number of hosts. */
sl_status sl_profile_links(sl_group *group, int rack_nodes, char **text);

SL_API_END

#endif
