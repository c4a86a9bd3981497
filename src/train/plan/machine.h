/* How fast this machine is for a run's layouts, measured as far as a search asks for it. */
#ifndef SLI_TRAIN_PLAN_MACHINE_H
#define SLI_TRAIN_PLAN_MACHINE_H

#include "planner/layout.h"
#include "sluice/app/plan.h"

/* Whether the pipeline ranks of the only replica use all of its cores. */
typedef enum sli_sharing {
    SLI_SHARING_TRIED, /* both, where the run names no devices */
    SLI_SHARING_NEVER,
    SLI_SHARING_ALWAYS
} sli_sharing;

/* What a search asks of a machine; a test has one of its own. All seconds are those of the slowest
 * device, while as many `devices` as a layout has ranks work at the same time. */
typedef struct sli_machine {
    void *context;
    int cores;         /* devices that it can be divided into */
    int most_replicas; /* whose exchange is known; 0: of any number */
    sli_sharing sharing;
    sl_train_launch launch; /* of all layouts */
    bool keeps_devices;     /* plans name none: they are the run's */
    bool has_own_memory;    /* each device has, as in sli_layout; host_bytes is the least of them */
    uint64_t host_bytes;    /* of memory */
    int64_t process_bytes;  /* that a process has before its model: the program and the text */
    double activation_factor; /* as in sli_layout */
    double links_factor;      /* of the bytes per second between replicas; 0: 1 */
    double one_rank_factor;   /* of the modules' times where one rank of one replica has all cores;
                                 0: 1 */
    /* The modules with a micro-batch of so many rows. */
    sl_status (*time_modules)(void *context, int devices, int64_t rows, sl_module_profile *out);
    /* As in sli_layout_speed. */
    sl_status (*time_update)(void *context, int devices, sli_update_speed *out);
    /* As in sli_layout_speed. */
    sl_status (*time_exchange)(void *context, int replicas, sl_link_cost *reduce,
                               sl_link_cost *gather);
    /* What a tensor takes between ranks of a layout, as in sli_layout_speed, from zeros; NULL:
     * no time. */
    void (*time_links)(void *context, const sl_plan *plan, sl_link_cost *links);
    /* The sum of the devices' best rates of large matrix products, in FLOP/s; NULL: not known. */
    sl_status (*time_peak)(void *context, int devices, double *flops_per_s);
    /* Measures again, in turn, what the search has asked for, until its rounds agree or the time
     * for it is used; *is_measured: since then other times may be the best. NULL: nothing varies.
     */
    sl_status (*measure_again)(void *context, bool *is_measured);
    /* How far the middle rounds of the modules with so many rows are apart, as a fraction of their
     * time; negative: there is one round. NULL: nothing varies. */
    double (*find_spread)(void *context, int devices, int64_t rows);
    void (*close)(void *context); /* NULL: nothing is to be freed */
} sli_machine;

/* This one, for a run with these options (borrowed), whose model is completely described. Modules
 * are timed with random tokens, in documents of `document_tokens` (0: a row is one), on devices
 * that are open for that long: options->devices, or `cpu:0` and so on. Each number of devices is
 * timed with rows that are powers of two, as far as forward and backward take at most about half a
 * second and fit the memory; what lies between is interpolated, what lies beyond in proportion.
 * Measuring again takes at most about `seconds`, or as long as measuring once; 0: all is measured
 * once. */
sl_status sli_machine_open(const sl_train_options *options, int64_t document_tokens, double seconds,
                           sli_machine *out);
void sli_machine_close(sli_machine *machine);

/* The most rows that a machine of sli_machine_open has timed with so many devices; 0: none. */
int64_t sli_machine_timed_rows(const sli_machine *machine, int devices);

/* A run that has measured itself, and its machine as far as its measures say: a search for it has
 * no more ranks or replicas than the run, and all measures are borrowed. To be closed also after an
 * error. Errors: SL_ERR_UNSUPPORTED for a task, and for what its measures do not tell apart.
 * (run_machine.c) */
typedef struct sli_measured_run {
    sl_train_options run; /* its options, without devices */
    unsigned kept;        /* sl_plan_kept, of any search for it */
    sl_module *model;
    sl_plan *plan;
    sli_machine machine;
} sli_measured_run;

sl_status sli_measured_run_open(const sl_train_options *run, const sl_run_measures *measures,
                                sli_measured_run *out);
void sli_measured_run_close(sli_measured_run *measured);

#endif
