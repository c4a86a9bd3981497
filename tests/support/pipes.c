#include "pipes.h"

#include "modules.h"

#include <stdlib.h>

test_pipe open_pipe(sl_module *model, sl_loss *loss, sl_pipe_options options, int device_count,
                    int threads)
{
    test_pipe opened = {.device_count = device_count, .model = model, .loss = loss};
    sl_device *devices[TEST_MAX_STAGES];
    for (int i = 0; i < device_count; i++)
        check_ok(sl_device_create_cpu(threads, &opened.devices[i]));
    for (int stage = 0; stage < options.stages; stage++)
        devices[stage] = opened.devices[stage % device_count];
    options.model = model;
    options.loss = loss;
    options.devices = devices;
    check_ok(sl_pipe_create(&options, &opened.pipe));
    return opened;
}

void close_pipe(test_pipe *pipe)
{
    sl_pipe_destroy(&pipe->pipe);
    assert_null(pipe->pipe);
    sl_module_destroy(&pipe->model);
    sl_loss_destroy(&pipe->loss);
    for (int i = 0; i < pipe->device_count; i++) {
        sl_memory_stats stats;
        sl_device_memory(pipe->devices[i], &stats);
        assert_int_equal(stats.current_total_bytes, 0);
        sl_device_destroy(&pipe->devices[i]);
    }
}

void check_pipe_is_empty(const test_pipe *pipe)
{
    for (int i = 0; i < pipe->device_count; i++) {
        sl_memory_stats stats;
        sl_device_memory(pipe->devices[i], &stats);
        assert_int_equal(stats.current_bytes[SL_MEMORY_ACTIVATIONS], 0);
        assert_int_equal(stats.current_bytes[SL_MEMORY_WORKSPACE], 0);
    }
}

typedef sl_tensor *(*tensor_of)(sl_parameter *parameter);

static float *gather(const test_pipe *pipe, tensor_of get, int64_t *count)
{
    float *all = NULL;
    *count = 0;
    for (int stage = 0; stage < sl_pipe_stages(pipe->pipe); stage++) {
        sl_parameter_set *set = sl_pipe_parameters(pipe->pipe, stage);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            sl_parameter *parameter = sl_parameter_set_get(set, i);
            if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
                continue;
            sl_tensor *tensor = get(parameter);
            int64_t more = sl_tensor_count(tensor);
            all = realloc(all, (size_t)(*count + more) * sizeof *all);
            assert_non_null(all);
            check_ok(sl_tensor_read(tensor, all + *count));
            *count += more;
        }
    }
    return all;
}

static sl_tensor *value_of(sl_parameter *parameter)
{
    return sl_parameter_value(parameter);
}

float *pipe_values(const test_pipe *pipe, int64_t *count)
{
    return gather(pipe, value_of, count);
}

float *pipe_gradients(const test_pipe *pipe, int64_t *count)
{
    return gather(pipe, gradient_of, count);
}

typedef struct sgd {
    sl_pipe *pipe;
    float lr;
} sgd;

static sl_status sgd_on_stage(int stage, void *arg)
{
    const sgd *step = arg;
    sl_parameter_set *set = sl_pipe_parameters(step->pipe, stage);
    for (int i = 0; i < sl_parameter_set_bucket_count(set); i++) {
        sl_tensor *values = sl_parameter_set_bucket_values(set, i);
        sl_tensor *grads;
        SL_TRY(sl_parameter_set_bucket_grads(set, i, &grads));
        for (int64_t j = 0; j < sl_tensor_count(values); j++)
            sl_tensor_f32(values)[j] -= step->lr * sl_tensor_f32(grads)[j];
    }
    return SL_OK;
}

void pipe_sgd_step(test_pipe *pipe, float lr)
{
    sgd step = {pipe->pipe, lr};
    check_ok(sl_pipe_run(pipe->pipe, sgd_on_stage, &step));
}

double pipe_train(test_pipe *pipe, const sl_tensor *input, const sl_tensor *targets, uint64_t step)
{
    sl_pipe_batch batch = {.input = input,
                           .targets = targets,
                           .step = step,
                           .first_sample = (int64_t)step * sl_tensor_shape(input)->size[0]};
    double loss = -1;
    check_ok(sl_pipe_train(pipe->pipe, &batch, &loss));
    return loss;
}
