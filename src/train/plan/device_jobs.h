/* What a profile has devices do, at the same time. */
#ifndef SLI_TRAIN_PLAN_DEVICE_JOBS_H
#define SLI_TRAIN_PLAN_DEVICE_JOBS_H

#include "core/error.h"
#include "core/threads.h"
#include "planner/layout.h"
#include "sluice/app/train.h"
#include "sluice/profile.h"

/* What one device does, and what that gives. */
typedef struct sli_device_job {
    const sl_train_options *options;
    sl_device *device;
    sl_status (*task)(struct sli_device_job *job); /* one of those below */
    int passes;                                    /* that are timed; 0: SL_PROFILE_ROUNDS */
    int64_t rows, document_tokens;                 /* as in sli_machine_open */
    sl_module_profile *profile;                    /* [modules] */
    sli_update_speed update;
    sli_worker *worker;
    sli_error_copy error;
} sli_device_job;

/* The modules' times with `rows` rows of random tokens, into `profile`. */
sl_status sli_profile_rows(sli_device_job *job);

/* The seconds of an update, and of zeros in the gradients, on parameters of neighbouring modules,
 * into `update`; 0: nothing is trained there. */
sl_status sli_time_update(sli_device_job *job);

/* Has each of the first `count` devices of the list do its job: jobs[count] have what their task
 * needs but the device. */
sl_status sli_device_jobs_run(const sl_device_list *list, sli_device_job *jobs, int count);

#endif
