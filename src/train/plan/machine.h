/* How fast this machine is for a run's layouts, measured as far as a search asks for it. */
#ifndef SLI_TRAIN_PLAN_MACHINE_H
#define SLI_TRAIN_PLAN_MACHINE_H

#include "planner/layout.h"
#include "sluice/app/train.h"

/* What a search asks of a machine; a test has one of its own. All seconds are those of the slowest
 * device, while as many `devices` as a layout has ranks work at the same time. */
typedef struct sli_machine {
    void *context;
    int cores;             /* devices that it can be divided into */
    uint64_t host_bytes;   /* of memory */
    int64_t process_bytes; /* that a run has before its model: the program and the text */
    /* The modules with a micro-batch of so many rows. */
    sl_status (*time_modules)(void *context, int devices, int64_t rows, sl_module_profile *out);
    /* The norm and the optimizer, for each byte of gradients. */
    sl_status (*time_update)(void *context, int devices, double *seconds_per_byte);
    /* As in sli_layout_speed. */
    sl_status (*time_exchange)(void *context, int replicas, sl_link_cost *reduce,
                               sl_link_cost *gather);
} sli_machine;

/* This one, for a run with these options (borrowed), whose model is completely described. Modules
 * are timed with random tokens, in documents of `document_tokens` (0: a row is one), on devices
 * that are open for that long: options->devices, or `cpu:0` and so on. Each number of devices is
 * timed once, with rows by powers of two as far as that takes about a second; what lies between is
 * interpolated, what lies beyond in proportion. */
sl_status sli_machine_open(const sl_train_options *options, int64_t document_tokens,
                           sli_machine *out);
void sli_machine_close(sli_machine *machine);

#endif
