/* DataParallel: one process divides each batch among several devices.
 *
 * Counterpart of torch.nn.DataParallel. Each forward divides the batch's rows among the devices (as
 * torch.chunk: 30 rows on 8 devices are 4,4,4,4,4,4,4,2; 10 rows are five times 2), copies the
 * module's weights to all devices, runs the replicas at the same time, a thread each, and gathers
 * the outputs on one device. Backward adds the replicas' gradients to those of the first device,
 * where the module itself is and an optimizer updates it.
 *
 * The cost: each step copies all weights; one device adds all gradients, after backward and not
 * during it; and the output device holds the whole batch's output. sl_ddp is faster, but needs a
 * rank for each replica.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_DATA_PARALLEL_H
#define SLUICE_DATA_PARALLEL_H

#include "sluice/module.h"

SL_API_BEGIN

typedef struct sl_data_parallel sl_data_parallel;

typedef struct sl_data_parallel_options {
    sl_module *module; /* borrowed; in no parameter set yet. It is used on the first device */
    /* Creates another module with parameters of the same names and shapes. Called for each device
     * but the first; the modules are destroyed with the sl_data_parallel. */
    sl_status (*replicate)(void *arg, sl_module **out);
    void *arg;
    sl_device *const *devices; /* borrowed; NULL: one for each of the machine's allowed cores */
    int device_count;
    sl_device *output_device; /* NULL: the first device */
    sl_precision precision;   /* of all products */
    uint64_t seed;            /* of initial values */
} sl_data_parallel_options;

/* Errors: SL_ERR_INVALID for a replica whose parameters differ from the module's. */
sl_status sl_data_parallel_create(const sl_data_parallel_options *options, sl_data_parallel **out);
void sl_data_parallel_destroy(sl_data_parallel **parallel);

/* The module's parameters, on the first device: for the optimizer, zero_grad and saving. */
sl_parameter_set *sl_data_parallel_parameters(const sl_data_parallel *parallel);
int sl_data_parallel_device_count(const sl_data_parallel *parallel);
sl_device *sl_data_parallel_device(const sl_data_parallel *parallel, int index);

/* input [N, …], N at least 1, on any device -> *output on the output device; the caller owns it. It
 * has the replicas' outputs one after the other along their rows, so it is [N, …] where the module
 * keeps rows. Where each replica gives one number (0-dimensional, or [1]), it is a vector with one
 * element for each replica. Replicas are in the order of their rows.
 *
 * `pass` says how to run; its device and precision are ignored, and first_sample is that of the
 * batch's first row. With `keep`, the next backward belongs to this forward.
 *
 * Errors: that of the lowest failing replica, after "in replica 1 on device cpu:1: ";
 * SL_ERR_INVALID for outputs that differ in more than their rows. */
sl_status sl_data_parallel_forward(sl_data_parallel *parallel, const sl_pass_options *pass,
                                   const sl_tensor *input, sl_tensor **output);

/* Adds to the gradients of sl_data_parallel_parameters, in the order of devices. `grad_output` has
 * the output's shape. *grad_input becomes the gradient of the input, on the output device, and the
 * caller owns it; NULL: not needed. Errors: as forward. */
sl_status sl_data_parallel_backward(sl_data_parallel *parallel, const sl_tensor *grad_output,
                                    sl_tensor **grad_input);

SL_API_END

#endif
