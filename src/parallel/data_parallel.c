/* DataParallel's steps: each is a row of tasks that all replicas do at the same time, one phase
 * after the other.
 *
 *     forward     copy weights │ cut rows, forward  │ gather outputs
 *     backward                 │ cut rows, backward │ add gradients on the first device, gather
 *
 * Weights are copied in a phase of their own, so that no replica reads a buffer of the first one
 * that its forward may change. */
#include "parallel/data_parallel.h"

#include "core/not_null.h"
#include "device/device.h"
#include "nn/parameter.h"
#include "sluice/pipe.h"

#include <stdio.h>

/* ---- All replicas at once --------------------------------------------------------------- */

/* The lowest failing replica's error. */
static sl_status first_error(const sl_data_parallel *parallel)
{
    for (int i = 0; i < parallel->used; i++) {
        const sli_replica *replica = &parallel->replicas[i];
        if (replica->status != SL_OK)
            return sl_error(replica->status, "sl_data_parallel: in replica %d on device %s: %s", i,
                            sl_device_name(replica->device), replica->text);
    }
    return SL_OK;
}

static sl_status run_all(sl_data_parallel *parallel, void (*task)(void *replica))
{
    for (int i = 0; i < parallel->used; i++)
        sli_worker_start(parallel->replicas[i].worker, task, &parallel->replicas[i]);
    for (int i = 0; i < parallel->used; i++)
        sli_worker_wait(parallel->replicas[i].worker);
    return first_error(parallel);
}

static void end_task(sli_replica *replica, sl_status status)
{
    replica->status = status;
    snprintf(replica->text, sizeof replica->text, "%s", status == SL_OK ? "" : sl_error_text());
}

/* ---- Tasks ------------------------------------------------------------------------------ */

static sl_status copy_values(const sl_parameter_set *from, const sl_parameter_set *to)
{
    for (int b = 0; b < sl_parameter_set_bucket_count(from); b++)
        SL_TRY(sl_tensor_copy(sl_parameter_set_bucket_values(to, b),
                              sl_parameter_set_bucket_values(from, b)));
    for (int i = 0; i < sl_parameter_set_count(from); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(from, i);
        if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
            SL_TRY(sl_tensor_copy(sl_parameter_value(sl_parameter_set_get(to, i)),
                                  sl_parameter_value(parameter)));
    }
    return SL_OK;
}

static void copy_weights(void *argument)
{
    sli_replica *replica = argument;
    const sli_replica *first = &replica->parallel->replicas[0];
    end_task(replica, replica == first ? SL_OK : copy_values(first->set, replica->set));
}

/* The batch's elements from `offset` on, in this shape, on the replica's device. */
static sl_status cut(const sli_replica *replica, int64_t offset, const sl_shape *shape,
                     sl_tensor **out)
{
    const sl_tensor *batch = replica->parallel->batch;
    sl_tensor *view;
    *out = NULL;
    SL_TRY(sl_tensor_view(batch, offset, shape, &view));
    sl_status status = sl_tensor_create(replica->device, SL_MEMORY_ACTIVATIONS,
                                        sl_tensor_dtype(batch), shape, out);
    if (status == SL_OK)
        status = sl_tensor_copy(*out, view);
    if (status != SL_OK)
        sl_tensor_destroy(out);
    sl_tensor_destroy(&view);
    return status;
}

static sl_status forward(sli_replica *replica)
{
    sl_pass_options options = replica->parallel->pass;
    options.device = replica->device;
    options.first_sample += replica->first_row;
    sl_tensor *in;
    replica->input = *sl_tensor_shape(replica->parallel->batch);
    replica->input.size[0] = replica->rows;
    int64_t row_elements = sl_shape_count(&replica->input) / replica->rows;
    SL_TRY(cut(replica, replica->first_row * row_elements, &replica->input, &in));
    sl_status status = sl_pass_create(&options, &replica->pass);
    if (status == SL_OK)
        status = sl_module_forward(replica->module, replica->pass, in, &replica->result);
    sl_tensor_destroy(&in);
    if (status != SL_OK || !options.keep)
        sl_pass_destroy(&replica->pass);
    return status;
}

static void forward_task(void *replica)
{
    end_task(replica, forward(replica));
}

static sl_status check_gradient(const sli_replica *replica)
{
    char got[SL_SHAPE_TEXT_BYTES], wanted[SL_SHAPE_TEXT_BYTES];
    const sl_shape *shape = sl_tensor_shape(replica->result);
    if (sl_shape_equal(shape, &replica->input))
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "the gradient of an input of %s is %s",
                    sl_shape_text(&replica->input, wanted), sl_shape_text(shape, got));
}

static sl_status backward(sli_replica *replica)
{
    if (replica->index > 0)
        sl_parameter_set_zero_grad(replica->set);
    sl_tensor *grad;
    SL_TRY(cut(replica, replica->output_offset, &replica->output, &grad));
    sl_status status =
        sl_module_backward(replica->module, replica->pass, grad,
                           replica->parallel->wants_grad_input ? &replica->result : NULL);
    sl_tensor_destroy(&grad);
    sl_pass_destroy(&replica->pass);
    if (status == SL_OK && replica->result)
        status = check_gradient(replica);
    return status;
}

static void backward_task(void *replica)
{
    end_task(replica, backward(replica));
}

/* A parameter that neither has a gradient for keeps none: what lies in its room does not count. */
static sl_status add_bucket(const sli_replica *first, const sli_replica *other, int bucket)
{
    sl_parameter *const *to, *const *from;
    sl_tensor *grads;
    int count = sli_parameter_set_bucket(first->set, bucket, &to);
    (void)sli_parameter_set_bucket(other->set, bucket, &from);
    for (int i = 0; i < count; i++)
        if (!from[i]->grad_is_stale)
            SL_TRY(sl_parameter_grad(to[i], &grads));
    SL_TRY(sl_parameter_set_bucket_grads(other->set, bucket, &grads));
    return sli_device_add(first->device, sl_tensor_count(grads),
                          sl_tensor_f32(sli_parameter_set_stale_grads(first->set, bucket)),
                          sl_tensor_f32(grads));
}

/* On the first device: its gradients plus all others', in the order of devices. */
static sl_status add_gradients(const sli_replica *first)
{
    const sl_data_parallel *parallel = first->parallel;
    for (int i = 1; i < parallel->used; i++)
        for (int b = 0; b < sl_parameter_set_bucket_count(first->set); b++)
            SL_TRY(add_bucket(first, &parallel->replicas[i], b));
    return SL_OK;
}

static void add_gradients_task(void *replica)
{
    end_task(replica, add_gradients(replica));
}

/* ---- A batch ---------------------------------------------------------------------------- */

static void drop_results(sl_data_parallel *parallel)
{
    for (int i = 0; i < parallel->count; i++)
        sl_tensor_destroy(&parallel->replicas[i].result);
}

static void drop_passes(sl_data_parallel *parallel)
{
    for (int i = 0; i < parallel->count; i++)
        sl_pass_destroy(&parallel->replicas[i].pass);
}

static void share_out(sl_data_parallel *parallel, int64_t rows)
{
    parallel->used = sl_micro_batches(rows, parallel->count, parallel->sizes);
    int64_t row = 0;
    for (int i = 0; i < parallel->used; i++) {
        parallel->replicas[i].first_row = row;
        parallel->replicas[i].rows = parallel->sizes[i];
        row += parallel->sizes[i];
    }
}

/* How many rows of the gathered tensor a result is; a number alone is one. */
static int64_t rows_of(const sl_shape *result)
{
    return result->dims > 0 ? result->size[0] : 1;
}

/* Results may differ in their rows alone. */
static sl_status check_result(const sli_replica *replica, const sl_shape *first)
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

/* All replicas' results, one after the other, on the output device. */
static sl_status gather(const sl_data_parallel *parallel, sl_tensor **out)
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
    sl_status status = SL_OK;
    for (int i = 0; i < parallel->used && status == SL_OK; i++) {
        const sl_tensor *result = parallel->replicas[i].result;
        status = copy_result(*out, offset, result);
        offset += sl_tensor_count(result);
    }
    if (status != SL_OK)
        sl_tensor_destroy(out);
    return status;
}

/* Keeps where each replica's output lies in the gathered one, for its gradient. */
static void note_outputs(sl_data_parallel *parallel, const sl_tensor *gathered)
{
    int64_t offset = 0;
    parallel->output = *sl_tensor_shape(gathered);
    for (int i = 0; i < parallel->used; i++) {
        sli_replica *replica = &parallel->replicas[i];
        replica->output = *sl_tensor_shape(replica->result);
        replica->output_offset = offset;
        offset += sl_tensor_count(replica->result);
    }
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
    drop_passes(parallel);
    share_out(parallel, shape->size[0]);
    parallel->pass = *pass;
    parallel->batch = input;
    sl_status status = run_all(parallel, copy_weights);
    if (status == SL_OK)
        status = run_all(parallel, forward_task);
    if (status == SL_OK)
        status = gather(parallel, output);
    if (status == SL_OK)
        note_outputs(parallel, *output);
    drop_results(parallel);
    if (status != SL_OK)
        drop_passes(parallel);
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
    sl_status status = run_all(parallel, backward_task);
    drop_passes(parallel);
    if (status == SL_OK) {
        sli_worker_start(parallel->replicas[0].worker, add_gradients_task, &parallel->replicas[0]);
        sli_worker_wait(parallel->replicas[0].worker);
        status = first_error(parallel);
    }
    if (status == SL_OK && grad_input)
        status = gather(parallel, grad_input);
    drop_results(parallel);
    return status;
}

sl_parameter_set *sl_data_parallel_parameters(const sl_data_parallel *parallel)
{
    return parallel->replicas[0].set;
}

int sl_data_parallel_device_count(const sl_data_parallel *parallel)
{
    return parallel->count;
}

sl_device *sl_data_parallel_device(const sl_data_parallel *parallel, int index)
{
    return parallel->replicas[index].device;
}
