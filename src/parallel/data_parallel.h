/* DataParallel's replicas, for the files that make and run them. */
#ifndef SLI_PARALLEL_DATA_PARALLEL_H
#define SLI_PARALLEL_DATA_PARALLEL_H

#include "parallel/worker.h"
#include "sluice/data_parallel.h"

enum { SLI_REPLICA_TEXT_BYTES = 1024 };

typedef struct sli_replica {
    sl_data_parallel *parallel;
    int index;
    sl_device *device;
    sl_module *module; /* the first replica's is the caller's */
    sl_parameter_set *set;
    sli_worker *worker;

    /* Of the batch under way. */
    int64_t first_row, rows;
    sl_shape input, output; /* of these rows, and what the module made of them */
    int64_t output_offset;  /* elements, in the whole batch's output */
    sl_pass *pass;          /* of a forward that kept, until its backward */
    sl_tensor *result;      /* the output, then the input's gradient; on the replica's device */
    sl_status status;       /* of the last task, with the thread's error text */
    char text[SLI_REPLICA_TEXT_BYTES];
} sli_replica;

struct sl_data_parallel {
    sl_device_list *list; /* where no devices were given */
    sl_device *output_device;
    sli_replica *replicas; /* [count] */
    int count, used;       /* used: by the batch under way */
    sl_shape output;       /* of it, gathered */
    int64_t *sizes;        /* [count] */

    /* What the replicas' tasks read; written by the caller's thread while they sleep. */
    sl_pass_options pass;
    const sl_tensor *batch; /* input or grad_output */
    bool wants_grad_input;
};

#endif
