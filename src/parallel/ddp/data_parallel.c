/* DataParallel: replicas on the devices of one process. A batch runs in phases, each of which is
 * one task that all replicas do at the same time, on a thread each.
 *
 *     forward     copy weights │ copy rows, forward  │ gather outputs
 *     backward                 │ copy rows, backward │ add gradients on the first device, gather
 *
 * Weights are copied in a phase of their own, so that no replica reads a buffer of the first one
 * that its forward may change. */
#include "sluice/data_parallel.h"
#include "tensor/tensor.h"

#include "core/error.h"
#include "core/threads.h"
#include "device/device.h"
#include "nn/module.h"
#include "sluice/pipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct dp_replica {
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
    sl_status (*task)(struct dp_replica *replica);
    sli_error_copy error; /* of the last task */
} dp_replica;

struct sl_data_parallel {
    sl_device_list *list; /* where no devices were given */
    sl_device *output_device;
    sl_precision precision;
    dp_replica *replicas; /* [count] */
    int count, used;      /* used: by the batch under way */
    sl_shape output;      /* of it, gathered */
    int64_t *sizes;       /* [count] */

    /* What the replicas' tasks read; written by the caller's thread while they sleep. */
    sl_pass_options pass;
    const sl_tensor *batch; /* input or grad_output */
    bool wants_grad_input;
};

/* ---- Creation --------------------------------------------------------------------------- */

/* "cpu:0,cpu:1,…": one device a core. */
static sl_status create_devices(sl_data_parallel *parallel)
{
    enum { NAME_BYTES = 16 };
    SL_TRY(sli_device_count("cpu", &parallel->count));
    char *names = calloc((size_t)parallel->count, NAME_BYTES);
    if (!names)
        return sli_no_memory("sl_data_parallel_create", "device names");
    size_t used = 0, room = (size_t)parallel->count * NAME_BYTES;
    for (int i = 0; i < parallel->count; i++)
        used += (size_t)snprintf(names + used, room - used, "%scpu:%d", i ? "," : "", i);
    sl_status status = sl_device_list_create(names, &parallel->list, NULL);
    free(names);
    return status;
}

static sl_status list_replicas(sl_data_parallel *parallel, const sl_data_parallel_options *options)
{
    parallel->count = options->device_count;
    if (!options->devices)
        SL_TRY(create_devices(parallel));
    parallel->replicas = calloc((size_t)parallel->count, sizeof *parallel->replicas);
    parallel->sizes = calloc((size_t)parallel->count, sizeof *parallel->sizes);
    if (!parallel->replicas || !parallel->sizes)
        return sli_no_memory("sl_data_parallel_create", "%d replicas", parallel->count);
    for (int i = 0; i < parallel->count; i++) {
        sl_device *device =
            options->devices ? options->devices[i] : sl_device_list_get(parallel->list, i);
        parallel->replicas[i] = (dp_replica){.parallel = parallel, .index = i, .device = device};
    }
    parallel->output_device =
        options->output_device ? options->output_device : parallel->replicas[0].device;
    parallel->precision = options->precision;
    return SL_OK;
}

static sl_status check_same_parameters(const dp_replica *first, const dp_replica *other)
{
    int count = sl_parameter_set_count(first->set);
    if (sl_parameter_set_count(other->set) != count)
        return sl_error(SL_ERR_INVALID,
                        "sl_data_parallel_create: the module has %d parameters, replica %d has %d",
                        count, other->index, sl_parameter_set_count(other->set));
    for (int i = 0; i < count; i++) {
        const sl_parameter *a = sl_parameter_set_get(first->set, i);
        const sl_parameter *b = sl_parameter_set_get(other->set, i);
        if (strcmp(sl_parameter_name(a), sl_parameter_name(b)) != 0 ||
            sl_parameter_get_kind(a) != sl_parameter_get_kind(b) ||
            !sl_shape_equal(sl_parameter_shape(a), sl_parameter_shape(b)))
            return sl_error(SL_ERR_INVALID,
                            "sl_data_parallel_create: parameter %s of replica %d is not as the "
                            "module's %s: name, kind or shape differ",
                            sl_parameter_name(b), other->index, sl_parameter_name(a));
    }
    return SL_OK;
}

static sl_status create_replica(dp_replica *replica, const sl_data_parallel_options *options)
{
    if (replica->index == 0)
        replica->module = options->module;
    else
        SL_TRY(options->replicate(options->arg, &replica->module));
    sl_parameter_set_options placement = {.device = replica->device,
                                          .precision = options->precision,
                                          .seed = options->seed,
                                          .no_init = replica->index > 0};
    SL_TRY(sl_parameter_set_create(replica->module, 0, 0, &placement, &replica->set));
    SL_TRY(check_same_parameters(&replica->parallel->replicas[0], replica));
    return sli_worker_create(sli_device_bind_thread, replica->device, &replica->worker);
}

static sl_status check_options(const sl_data_parallel_options *options)
{
    if (!options->module)
        return sl_error(SL_ERR_INVALID, "sl_data_parallel_create: there is no module");
    if (options->devices && options->device_count < 1)
        return sl_error(SL_ERR_INVALID, "sl_data_parallel_create: at least 1 device, got %d",
                        options->device_count);
    if (!options->replicate && !(options->devices && options->device_count == 1))
        return sl_error(SL_ERR_INVALID,
                        "sl_data_parallel_create: several devices need `replicate`");
    return SL_OK;
}

sl_status sl_data_parallel_create(const sl_data_parallel_options *options, sl_data_parallel **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    SL_TRY(check_options(options));
    sl_data_parallel *parallel = calloc(1, sizeof *parallel);
    if (!parallel)
        return sli_no_memory("sl_data_parallel_create", "the replicas");
    sl_status status;
    SL_TRY_OR_FAIL(list_replicas(parallel, options));
    for (int i = 0; i < parallel->count; i++)
        SL_TRY_OR_FAIL(create_replica(&parallel->replicas[i], options));
    *out = parallel;
    return SL_OK;

fail:
    sl_data_parallel_destroy(&parallel);
    return status;
}

void sl_data_parallel_destroy(sl_data_parallel **parallel)
{
    if (!parallel || !*parallel)
        return;
    sl_data_parallel *dead = *parallel;
    for (int i = 0; dead->replicas && i < dead->count; i++) {
        dp_replica *replica = &dead->replicas[i];
        sli_worker_destroy(&replica->worker);
        sl_pass_destroy(&replica->pass);
        sl_parameter_set_destroy(&replica->set);
        if (i > 0)
            sl_module_destroy(&replica->module);
    }
    free(dead->replicas);
    free(dead->sizes);
    sl_device_list_destroy(&dead->list);
    free(dead);
    *parallel = NULL;
}

/* ---- Tasks ------------------------------------------------------------------------------ */

static void run_task(void *argument)
{
    dp_replica *replica = argument;
    sli_error_save(&replica->error, replica->task(replica));
}

/* Runs the task on the first `count` replicas at once. The error is the lowest failing replica's.
 */
static sl_status run_tasks(sl_data_parallel *parallel, int count, sl_status (*task)(dp_replica *))
{
    for (int i = 0; i < count; i++) {
        parallel->replicas[i].task = task;
        sli_worker_start(parallel->replicas[i].worker, run_task, &parallel->replicas[i]);
    }
    for (int i = 0; i < count; i++)
        sli_worker_wait(parallel->replicas[i].worker);
    for (int i = 0; i < count; i++) {
        const dp_replica *replica = &parallel->replicas[i];
        if (replica->error.status != SL_OK)
            return sl_error(replica->error.status,
                            "sl_data_parallel: in replica %d on device %s: %s", i,
                            sl_device_name(replica->device), replica->error.text);
    }
    return SL_OK;
}

/* Copies the first replica's parameters and buffers to this one, and those of products to bf16. */
static sl_status copy_weights(dp_replica *replica)
{
    const sl_parameter_set *source = replica->parallel->replicas[0].set;
    if (replica->index == 0)
        return sli_parameter_set_convert(replica->set);
    for (int b = 0; b < sl_parameter_set_bucket_count(source); b++)
        SL_TRY(sl_tensor_copy(sl_parameter_set_bucket_values(replica->set, b),
                              sl_parameter_set_bucket_values(source, b)));
    for (int i = 0; i < sl_parameter_set_count(source); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(source, i);
        if (parameter->kind != SL_PARAMETER_TRAINED)
            SL_TRY(sl_tensor_copy(sl_parameter_set_get(replica->set, i)->value, parameter->value));
    }
    return sli_parameter_set_convert(replica->set);
}

/* *out: a copy of the batch's elements from `offset` on, in this shape, on the replica's device. */
static sl_status copy_rows(const dp_replica *replica, int64_t offset, const sl_shape *shape,
                           sl_tensor **out)
{
    const sl_tensor *batch = replica->parallel->batch;
    sl_tensor *view;
    *out = NULL;
    SL_TRY(sl_tensor_view(batch, offset, shape, &view));
    sl_status status;
    SL_TRY_OR_FAIL(sl_tensor_create(replica->device, SL_MEMORY_ACTIVATIONS, sl_tensor_dtype(batch),
                                    shape, out));
    status = sl_tensor_copy(*out, view);

fail:
    if (status != SL_OK)
        sl_tensor_destroy(out);
    sl_tensor_destroy(&view);
    return status;
}

static sl_status run_forward(dp_replica *replica)
{
    sl_pass_options options = replica->parallel->pass;
    options.device = replica->device;
    options.first_sample += replica->first_row;
    sl_tensor *in;
    replica->input = *sl_tensor_shape(replica->parallel->batch);
    replica->input.size[0] = replica->rows;
    int64_t row_elements = sl_shape_count(&replica->input) / replica->rows;
    SL_TRY(copy_rows(replica, replica->first_row * row_elements, &replica->input, &in));
    sl_status status;
    SL_TRY_OR_FAIL(sl_pass_create(&options, &replica->pass));
    status = sl_module_forward(replica->module, replica->pass, in, &replica->result);

fail:
    sl_tensor_destroy(&in);
    if (status != SL_OK || !options.keep)
        sl_pass_destroy(&replica->pass);
    return status;
}

static sl_status check_gradient(const dp_replica *replica)
{
    char got[SL_SHAPE_TEXT_BYTES], wanted[SL_SHAPE_TEXT_BYTES];
    const sl_shape *shape = sl_tensor_shape(replica->result);
    if (sl_shape_equal(shape, &replica->input))
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "the gradient of an input of %s is %s",
                    sl_shape_text(&replica->input, wanted), sl_shape_text(shape, got));
}

static sl_status run_backward(dp_replica *replica)
{
    if (replica->index > 0)
        sl_parameter_set_zero_grad(replica->set);
    sl_tensor *grad;
    SL_TRY(copy_rows(replica, replica->output_offset, &replica->output, &grad));
    sl_status status =
        sl_module_backward(replica->module, replica->pass, grad,
                           replica->parallel->wants_grad_input ? &replica->result : NULL);
    sl_tensor_destroy(&grad);
    sl_pass_destroy(&replica->pass);
    SL_TRY(status);
    return replica->result ? check_gradient(replica) : SL_OK;
}

/* A parameter without a gradient on both keeps none: its elements of the sum do not count. */
static sl_status add_bucket(const dp_replica *first, const dp_replica *other, int bucket)
{
    sl_parameter *const *sums, *const *others;
    sl_tensor *grads;
    int count = sli_parameter_set_bucket(first->set, bucket, &sums);
    (void)sli_parameter_set_bucket(other->set, bucket, &others);
    for (int i = 0; i < count; i++)
        if (!others[i]->grad_is_stale)
            SL_TRY(sl_parameter_grad(sums[i], &grads));
    SL_TRY(sl_parameter_set_bucket_grads(other->set, bucket, &grads));
    return sli_tensor_add(sli_parameter_set_stale_grads(first->set, bucket), grads);
}

/* Adds all other replicas' gradients to the first one's, in the order of devices. */
static sl_status add_gradients(dp_replica *first)
{
    const sl_data_parallel *parallel = first->parallel;
    for (int i = 1; i < parallel->used; i++)
        for (int b = 0; b < sl_parameter_set_bucket_count(first->set); b++)
            SL_TRY(add_bucket(first, &parallel->replicas[i], b));
    return SL_OK;
}

/* ---- A batch ---------------------------------------------------------------------------- */

static void destroy_results(sl_data_parallel *parallel)
{
    for (int i = 0; i < parallel->count; i++)
        sl_tensor_destroy(&parallel->replicas[i].result);
}

static void destroy_passes(sl_data_parallel *parallel)
{
    for (int i = 0; i < parallel->count; i++)
        sl_pass_destroy(&parallel->replicas[i].pass);
}

static void divide_rows(sl_data_parallel *parallel, int64_t rows)
{
    parallel->used = sl_micro_batches(rows, parallel->count, parallel->sizes);
    int64_t row = 0;
    for (int i = 0; i < parallel->used; i++) {
        parallel->replicas[i].first_row = row;
        parallel->replicas[i].rows = parallel->sizes[i];
        row += parallel->sizes[i];
    }
}

/* How many rows of the gathered tensor a result becomes; a number alone becomes one. */
static int64_t rows_of(const sl_shape *result)
{
    return result->dims > 0 ? result->size[0] : 1;
}

/* Results may differ in their rows alone. */
static sl_status check_result(const dp_replica *replica, const sl_shape *first)
{
    const sl_shape *shape = sl_tensor_shape(replica->result);
    sl_shape expected = *first;
    char got[SL_SHAPE_TEXT_BYTES], wanted[SL_SHAPE_TEXT_BYTES];
    if (expected.dims > 0 && shape->dims > 0)
        expected.size[0] = shape->size[0];
    if (sl_shape_equal(shape, &expected) && rows_of(shape) > 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "sl_data_parallel: replica %d made %s of its rows, replica 0 %s: outputs are "
                    "gathered along their rows, and are alike otherwise",
                    replica->index, sl_shape_text(shape, got), sl_shape_text(first, wanted));
}

static sl_status copy_result(const sl_tensor *whole, int64_t offset, const sl_tensor *result)
{
    sl_tensor *view;
    SL_TRY(sl_tensor_view(whole, offset, sl_tensor_shape(result), &view));
    sl_status status = sl_tensor_copy(view, result);
    sl_tensor_destroy(&view);
    return status;
}

/* All replicas' results, one after the other, on the output device. Stores where each lies, for the
 * gradient of what forward gathered. */
static sl_status gather_results(sl_data_parallel *parallel, sl_tensor **out)
{
    const sl_tensor *first = parallel->replicas[0].result;
    sl_shape shape = *sl_tensor_shape(first);
    int64_t rows = 0, offset = 0;
    for (int i = 0; i < parallel->used; i++) {
        SL_TRY(check_result(&parallel->replicas[i], sl_tensor_shape(first)));
        rows += rows_of(sl_tensor_shape(parallel->replicas[i].result));
    }
    if (shape.dims == 0)
        shape = sl_shape_1d(rows);
    shape.size[0] = rows;
    SL_TRY(sl_tensor_create(parallel->output_device, SL_MEMORY_ACTIVATIONS, sl_tensor_dtype(first),
                            &shape, out));
    parallel->output = shape;
    sl_status status;
    for (int i = 0; i < parallel->used; i++) {
        dp_replica *replica = &parallel->replicas[i];
        replica->output = *sl_tensor_shape(replica->result);
        replica->output_offset = offset;
        offset += sl_tensor_count(replica->result);
        SL_TRY_OR_FAIL(copy_result(*out, replica->output_offset, replica->result));
    }
    return SL_OK;

fail:
    sl_tensor_destroy(out);
    return status;
}

/* ---- Public functions ------------------------------------------------------------------- */

sl_status sl_data_parallel_forward(sl_data_parallel *parallel, const sl_pass_options *pass,
                                   const sl_tensor *input, sl_tensor **output)
{
    SLI_CHECK_NOT_NULL(output);
    *output = NULL;
    SLI_CHECK_NOT_NULL(parallel);
    SLI_CHECK_NOT_NULL(pass);
    SLI_CHECK_NOT_NULL(input);
    char text[SL_SHAPE_TEXT_BYTES];
    const sl_shape *shape = sl_tensor_shape(input);
    if (shape->dims == 0 || shape->size[0] < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_data_parallel_forward: the input must have at least one row, got %s",
                        sl_shape_text(shape, text));
    destroy_passes(parallel);
    divide_rows(parallel, shape->size[0]);
    parallel->pass = *pass;
    parallel->pass.precision = parallel->precision;
    parallel->batch = input;
    sl_status status;
    SL_TRY_OR_FAIL(run_tasks(parallel, parallel->used, copy_weights));
    SL_TRY_OR_FAIL(run_tasks(parallel, parallel->used, run_forward));
    status = gather_results(parallel, output);

fail:
    destroy_results(parallel);
    if (status != SL_OK)
        destroy_passes(parallel);
    return status;
}

static sl_status check_backward(const sl_data_parallel *parallel, const sl_tensor *grad_output)
{
    char got[SL_SHAPE_TEXT_BYTES], wanted[SL_SHAPE_TEXT_BYTES];
    const sl_shape *shape = sl_tensor_shape(grad_output);
    if (!parallel->replicas[0].pass)
        return sl_error(SL_ERR_INVALID, "sl_data_parallel_backward: there was no forward that "
                                        "kept what backward needs");
    if (!sl_shape_equal(shape, &parallel->output))
        return sl_error(SL_ERR_INVALID,
                        "sl_data_parallel_backward: the gradient must have the output's shape %s, "
                        "got %s",
                        sl_shape_text(&parallel->output, wanted), sl_shape_text(shape, got));
    return SL_OK;
}

sl_status sl_data_parallel_backward(sl_data_parallel *parallel, const sl_tensor *grad_output,
                                    sl_tensor **grad_input)
{
    if (grad_input)
        *grad_input = NULL;
    SLI_CHECK_NOT_NULL(parallel);
    SLI_CHECK_NOT_NULL(grad_output);
    SL_TRY(check_backward(parallel, grad_output));
    parallel->batch = grad_output;
    parallel->wants_grad_input = grad_input != NULL;
    sl_status status;
    SL_TRY_OR_FAIL(run_tasks(parallel, parallel->used, run_backward));
    SL_TRY_OR_FAIL(run_tasks(parallel, 1, add_gradients));
    if (grad_input)
        status = gather_results(parallel, grad_input);

fail:
    destroy_passes(parallel);
    destroy_results(parallel);
    return status;
}

sl_parameter_set *sl_data_parallel_parameters(const sl_data_parallel *parallel)
{
    return parallel->replicas[0].set;
}

sl_device *sl_data_parallel_device(const sl_data_parallel *parallel, int index)
{
    return parallel->replicas[index].device;
}

int sl_data_parallel_device_count(const sl_data_parallel *parallel)
{
    return parallel->count;
}
