/* How fast a run's modules, links and devices are, and what follows from that for its plan. */
#ifndef SLI_TRAIN_PLAN_PROFILE_H
#define SLI_TRAIN_PLAN_PROFILE_H

#include "train/plan/plan.h"

/* What a profile is made of. */
typedef struct sli_profile_inputs {
    const sl_plan *plan;              /* without its cut */
    const sl_train_task *task;        /* its first batch is used */
    const struct sli_rows_task *rows; /* of a task of rows; NULL: it is none */
    sl_module *model;
    sl_loss *loss;
    const sl_device_list *devices; /* of this process: first those of the first replica's ranks */
    const sl_link_cost *links;     /* as in sl_partition_costs */
    const int *cores;              /* of sli_find_cores */
} sli_profile_inputs;

/* What an accumulation step takes, in seconds. */
typedef struct sli_step_times {
    double cut;       /* of the best layout of the search; 0: none fits */
    double one_stage; /* on the first rank's device alone, where nothing is recomputed */
} sli_step_times;

/* Times the modules (as sl_plan_create, into `profiles`, which may be NULL), and cuts the model: by
 * these times where the options ask for that. Also the times of a step. */
sl_status sli_profile_model(const sli_profile_inputs *inputs, sl_module_profile *profiles,
                            int *balance, sli_step_times *times);

/* The same for one layout among several of a search, on the devices of `inputs`: adds it, cut as
 * the options say, or by time so that it fits the memory. */
sl_status sli_profile_layout(const sli_profile_inputs *inputs, bool shares_cores,
                             sl_module_profile *profiles, sli_search *search,
                             sli_step_times *times);

/* The cut of the search's best layout; where none fits, that without a profile. */
sl_status sli_found_cut(const sli_search *search, const sl_plan *plan, const sl_module *model,
                        int *balance);

/* Ids that lie apart, as a text's do. */
void sli_draw_ids(int64_t ntokens, int64_t count, int32_t *ids);

/* sli_profile_model with random tokens, on devices that it opens and closes; sets the plan's cut.
 */
sl_status sli_plan_profile(sl_plan *plan, sl_module *model, sl_module_profile *profiles);

/* Measures the links between the processes of the first replica whose stages are neighbours.
 * Every rank of the run calls it and gets the same costs, [pipeline ranks][pipeline ranks], to be
 * freed; NULL where the replica has one process, and after an error. */
sl_status sli_measure_links(const sl_plan *plan, sl_group *all, sl_link_cost **out);

/* Which of the first replica's ranks compute on the same cores, [pipeline ranks] as in
 * sl_partition_costs. `devices` are the process's, as in sli_profile_inputs. Where the replica has
 * several processes, every rank of the run, `all`, calls it; NULL: the replica has one. */
sl_status sli_find_cores(const sl_plan *plan, const sl_device_list *devices, sl_group *all,
                         int *cores);

/* A process's devices. */
typedef struct sli_open_devices {
    sl_device_list *list;
    bool oversubscribed; /* several use the same cores, though that was not found to be faster */
    bool own_cores;      /* no other process of the run may use this one's */
} sli_open_devices;

/* Completes a plan with what depends on the model: the cut, what stages share the host's cores, and
 * memory. What the options leave open is decided by time. `inputs` have no links and cores. Every
 * rank of `group` (NULL: there is one process) calls it, and cuts as rank 0 does, since measured
 * times are never the same. Errors: SL_ERR_MEMORY where the host has too little. (complete.c) */
sl_status sli_plan_complete(const sli_plan_inputs *plan_inputs, sli_profile_inputs inputs,
                            sl_group *group, sl_plan *plan, sli_open_devices *devices);

/* The sum of the best rates of large matrix products in this precision on devices [count], all at
 * the same time, in FLOP/s. Takes about 0.05 s. (peak.c) */
sl_status sli_measure_peak(sl_device *const *devices, int count, sl_precision precision,
                           double *flops_per_s);

#endif
