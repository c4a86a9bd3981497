/* Machines that are made by hand, and a run to be planned for them. */
#ifndef TRAIN_MADE_MACHINE_H
#define TRAIN_MADE_MACHINE_H

#include "train/plan/search_machine.h"

#include "support/check.h"

enum { MODULES = 6 };

/* A machine whose modules take these seconds for a row on one of its devices, and the same divided
 * by its cores where one device has them all. */
typedef struct made_machine {
    double seconds_of_row[MODULES];
    double reduce_seconds, reduce_per_byte;
    sl_status refusal; /* of time_modules; 0: it times */
    int timed;         /* calls of time_modules */
    int64_t most_rows;
} made_machine;

static sl_status time_modules(void *context, int devices, int64_t rows, sl_module_profile *out)
{
    made_machine *made = context;
    made->timed++;
    if (made->refusal != SL_OK)
        return sl_error(made->refusal, "nothing is timed");
    made->most_rows = rows > made->most_rows ? rows : made->most_rows;
    for (int i = 0; i < MODULES; i++) {
        double unit = (double)rows * made->seconds_of_row[i] / (devices == 1 ? 1.6 : 1);
        out[i] = (sl_module_profile){unit, 2 * unit, unit, unit, 0};
    }
    return SL_OK;
}

static sl_status time_update(void *context, int devices, sli_update_speed *out)
{
    *out = (sli_update_speed){0};
    return SL_OK;
}

static sl_status time_exchange(void *context, int replicas, sl_link_cost *reduce,
                               sl_link_cost *gather)
{
    const made_machine *made = context;
    *reduce = (sl_link_cost){made->reduce_seconds, made->reduce_per_byte};
    *gather = (sl_link_cost){made->reduce_seconds, made->reduce_per_byte};
    return SL_OK;
}

static sli_machine machine_of(made_machine *made)
{
    return (sli_machine){.context = made,
                         .cores = 2,
                         .host_bytes = (uint64_t)1 << 40,
                         .time_modules = time_modules,
                         .time_update = time_update,
                         .time_exchange = time_exchange};
}

static sl_train_options options_of_model(void)
{
    sl_train_options options;
    sl_train_options_default(&options);
    options.model = (sl_model_options){
        .ntokens = 50, .emsize = 16, .nhid = 16, .nhead = 2, .nlayers = MODULES - 2, .context = 8};
    options.bptt = 8;
    options.batch_size = options.eval_batch_size = 16;
    return options;
}

#endif
