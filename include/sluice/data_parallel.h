/* DataParallel: one batch shared out over several devices, by one process.
 *
 * Counterpart of torch.nn.DataParallel. Each forward cuts the batch's rows into one share a device
 * (as torch.chunk: 30 rows on 8 devices are 4,4,4,4,4,4,4,2; 10 rows are five times 2), copies the
 * module's weights to all devices, runs the replicas at the same time, a thread each, and gathers
 * the outputs on one device. Backward sums the replicas' gradients into those of the first device,
 * where the module itself lives and an optimizer updates it.
 *
 * What that costs: all weights are copied in every step and all gradients added on one device,
 * after backward and not during it; and the output device holds the whole batch's output. sl_ddp
 * costs less; this needs no ranks.
 *
 * NULL is refused (SL_ERR_INVALID names the argument) unless a comment allows it. */
#ifndef SLUICE_DATA_PARALLEL_H
#define SLUICE_DATA_PARALLEL_H

#include "sluice/module.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_data_parallel sl_data_parallel;

typedef struct sl_data_parallel_options {
    sl_module *module; /* unplaced; borrowed. Lives on the first device */
    /* Makes another module like it, which has other parameters of the same names and shapes: called
     * for each device but the first. */
    sl_status (*replicate)(void *arg, sl_module **out);
    void *arg;
    sl_device *const *devices; /* borrowed; NULL: one for each of the machine's allowed cores */
    int device_count;
    sl_device *output_device; /* NULL: the first device */
    uint64_t seed;            /* of initial values */
} sl_data_parallel_options;

/* Errors: SL_ERR_INVALID for a replica whose parameters differ from the module's. */
sl_status sl_data_parallel_create(const sl_data_parallel_options *options, sl_data_parallel **out);
void sl_data_parallel_destroy(sl_data_parallel **parallel); /* NULL is allowed */

/* The module's own, on the first device: for the optimizer, zero_grad, saving. */
sl_parameter_set *sl_data_parallel_parameters(const sl_data_parallel *parallel);
int sl_data_parallel_device_count(const sl_data_parallel *parallel);
sl_device *sl_data_parallel_device(const sl_data_parallel *parallel, int index);

/* input [N, …], N at least 1, on any device -> *output on the output device, which the caller owns:
 * the replicas' outputs one after the other along their rows, so [N, …] where the module keeps
 * rows. A module that gives one number a replica (0-dimensional, or [1]) makes a vector of one a
 * replica. `pass` says how to run; its device is not used, and first_sample is that of the whole
 * batch. With `keep`, the next backward is this forward's. The first rows' replica comes first in
 * every order. Errors: that of the lowest failing replica, "in replica 1 on device cpu:1: " in
 * front; SL_ERR_INVALID for outputs that differ in more than their rows. */
sl_status sl_data_parallel_forward(sl_data_parallel *parallel, const sl_pass_options *pass,
                                   const sl_tensor *input, sl_tensor **output);

/* grad_output of the output's shape -> adds to the gradients of sl_data_parallel_parameters, in the
 * order of devices, and gives the gradient of the input on the output device; NULL: not wanted. */
sl_status sl_data_parallel_backward(sl_data_parallel *parallel, const sl_tensor *grad_output,
                                    sl_tensor **grad_input);

#ifdef __cplusplus
}
#endif
#endif
