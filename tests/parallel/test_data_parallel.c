/* DataParallel, held against the same module on one device. */
#include "nn/module.h"
#include "sluice/data_parallel.h"
#include "sluice/layers.h"
#include "sluice/optim.h"
#include "tensor/tensor.h"

#include "support/check.h"
#include "support/modules.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 8, IN = 5, OUT = 3 };

typedef struct lab {
    sl_device *devices[MAX_DEVICES];
    int count;
    sl_module *module;
    sl_data_parallel *parallel;
} lab;

/* Linear, dropout, ReLU, linear. */
static sl_status create_model(void *arg, sl_module **out)
{
    sl_module *modules[4];
    SL_TRY(sl_linear_create(IN, 7, false, &modules[0]));
    SL_TRY(sl_dropout_create(0.3f, &modules[1]));
    SL_TRY(sl_activation_create(SL_ACTIVATION_RELU, &modules[2]));
    SL_TRY(sl_linear_create(7, OUT, false, &modules[3]));
    return create_sequential(modules, 4, out);
}

/* Makes the devices, the module and its replicas. */
static void open_replicas(lab *opened, sl_status (*create)(void *, sl_module **), void *arg)
{
    for (int i = 0; i < opened->count; i++)
        check_ok(sl_device_create_cpu(1, &opened->devices[i]));
    check_ok(create(arg, &opened->module));
    check_ok(sl_data_parallel_create(&(sl_data_parallel_options){.module = opened->module,
                                                                 .replicate = create,
                                                                 .arg = arg,
                                                                 .devices = opened->devices,
                                                                 .device_count = opened->count,
                                                                 .seed = 4},
                                     &opened->parallel));
}

static lab open_lab_in(sl_precision precision, int count)
{
    lab opened = {.count = count};
    for (int i = 0; i < count; i++)
        check_ok(sl_device_create_cpu(1, &opened.devices[i]));
    check_ok(create_model(NULL, &opened.module));
    sl_data_parallel_options options = {.module = opened.module,
                                        .replicate = create_model,
                                        .devices = opened.devices,
                                        .device_count = count,
                                        .output_device = opened.devices[count - 1],
                                        .precision = precision,
                                        .seed = 4};
    check_ok(sl_data_parallel_create(&options, &opened.parallel));
    return opened;
}

static lab open_lab(int count)
{
    return open_lab_in(SL_PRECISION_F32, count);
}

static void lab_destroy(lab *dead)
{
    sl_data_parallel_destroy(&dead->parallel);
    sl_module_destroy(&dead->module);
    for (int i = 0; i < dead->count; i++) {
        assert_int_equal(device_bytes(dead->devices[i]), 0);
        sl_device_destroy(&dead->devices[i]);
    }
}

typedef struct results {
    float *output, *grad_input, *grads;
    int64_t grad_count;
} results;

static float *flat_gradients(sl_parameter_set *set, int64_t *count)
{
    sl_tensor *grads = bucket_gradients(set, 0);
    *count = sl_tensor_count(grads);
    return tensor_values(grads);
}

/* Two steps whose gradients add up; the second one's results. */
static results train(const lab *made, int64_t rows)
{
    results all = {0};
    sl_shape in_shape = sl_shape_2d(rows, IN), out_shape = sl_shape_2d(rows, OUT);
    sl_parameter_set_zero_grad(sl_data_parallel_parameters(made->parallel));
    for (uint64_t step = 0; step < 2; step++) {
        SCOPED(sl_tensor) *input = random_tensor(made->devices[0], &in_shape, 11 + step);
        SCOPED(sl_tensor) *grad = random_tensor(made->devices[0], &out_shape, 31 + step);
        SCOPED(sl_tensor) *grad_input = NULL, *output = NULL;
        sl_pass_options pass = {.training = true, .keep = true, .seed = 8, .step = step};
        check_ok(sl_data_parallel_forward(made->parallel, &pass, input, &output));
        assert_ptr_equal(sl_tensor_device(output), made->devices[made->count - 1]);
        check_ok(sl_data_parallel_backward(made->parallel, grad, &grad_input));
        free(all.output);
        free(all.grad_input);
        all.output = tensor_values(output);
        all.grad_input = tensor_values(grad_input);
    }
    all.grads = flat_gradients(sl_data_parallel_parameters(made->parallel), &all.grad_count);
    return all;
}

static void results_destroy(results *all)
{
    free(all->output);
    free(all->grad_input);
    free(all->grads);
}

static void devices_together_give_what_one_gives(void **state)
{
    for (int count = 1; count <= MAX_DEVICES; count += count < 3 ? 1 : 5)
        for (int64_t rows = 1; rows <= 30; rows += rows < 3 ? 1 : 9) {
            SCOPED(lab) one = open_lab(1), many = open_lab(count);
            SCOPED(results) expected = train(&one, rows), got = train(&many, rows);
            assert_int_equal(got.grad_count, expected.grad_count);
            assert_true(relative_distance(got.output, expected.output, rows * OUT) < 1e-6);
            assert_true(relative_distance(got.grad_input, expected.grad_input, rows * IN) < 1e-6);
            assert_true(relative_distance(got.grads, expected.grads, got.grad_count) < 1e-6);
        }
}

/* Outputs are the same bits: a row's does not depend on the others. Gradients are added in another
 * order. */
static void devices_together_give_what_one_gives_in_bf16(void **state)
{
    enum { ROWS = 6 };
    SCOPED(lab) f32 = open_lab(1), one = open_lab_in(SL_PRECISION_BF16, 1);
    SCOPED(lab) three = open_lab_in(SL_PRECISION_BF16, 3);
    SCOPED(results) exact = train(&f32, ROWS), expected = train(&one, ROWS),
                    got = train(&three, ROWS);
    assert_memory_equal(got.output, expected.output, ROWS * OUT * sizeof(float));
    assert_memory_equal(got.grad_input, expected.grad_input, ROWS * IN * sizeof(float));
    assert_true(relative_distance(got.grads, expected.grads, got.grad_count) < 1e-6);
    double rounding = relative_distance(exact.output, expected.output, ROWS * OUT);
    assert_true(rounding > 1e-4 && rounding < 0.02);
}

static void weights_that_an_optimizer_changed_reach_all_devices(void **state)
{
    for (sl_precision in = SL_PRECISION_F32; in <= SL_PRECISION_BF16; in++) {
        SCOPED(lab) at = open_lab_in(in, 3);
        sl_shape shape = sl_shape_2d(6, IN);
        SCOPED(sl_tensor) *input = random_tensor(at.devices[0], &shape, 1), *output = NULL;
        sl_tensor *values =
            sl_parameter_set_bucket_values(sl_data_parallel_parameters(at.parallel), 0);
        check_ok(sli_tensor_zero(values));
        check_ok(sl_data_parallel_forward(at.parallel, &(sl_pass_options){0}, input, &output));
        for (int64_t i = 0; i < sl_tensor_count(output); i++)
            assert_true(sl_tensor_f32(output)[i] == 0.0f);
    }
}

/* ---- How rows are shared out ------------------------------------------------------------ */

typedef struct probes {
    probe each[MAX_DEVICES];
    int made;
} probes;

static sl_status create_probe(void *arg, sl_module **out)
{
    probes *all = arg;
    *out = probe_module(&all->each[all->made++]);
    return SL_OK;
}

static int replicas_used(int64_t rows, int devices)
{
    probes all = {0};
    SCOPED(lab) at = {.count = devices};
    open_replicas(&at, create_probe, &all);
    sl_shape shape = sl_shape_2d(rows, 2);
    SCOPED(sl_tensor) *input = random_tensor(at.devices[0], &shape, 1), *output = NULL;
    check_ok(sl_data_parallel_forward(at.parallel, &(sl_pass_options){0}, input, &output));
    assert_memory_equal(sl_tensor_data(output), sl_tensor_data(input), sli_tensor_bytes(input));
    int used = 0;
    for (int i = 0; i < devices; i++)
        used += atomic_load(&all.each[i].forwards);
    return used;
}

static void rows_are_shared_out_as_torch_chunk_does(void **state)
{
    assert_int_equal(replicas_used(30, 8), 8);
    assert_int_equal(replicas_used(10, 8), 5);
    assert_int_equal(replicas_used(30, 2), 2);
    assert_int_equal(replicas_used(1, 3), 1);
}

/* ---- One number a replica --------------------------------------------------------------- */

/* The mean of all its input's elements, as a tensor of `dims` (0 or 1) dimensions. */
typedef struct mean {
    int dims;
    sl_shape in;
} mean;

static sl_shape mean_shape(const mean *state)
{
    return state->dims ? sl_shape_1d(1) : (sl_shape){0};
}

static sl_status mean_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                              sl_tensor **out)
{
    mean *state = sl_module_state(module);
    sl_shape shape = mean_shape(state);
    state->in = *sl_tensor_shape(in);
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    sl_tensor_f32(*out)[0] = 0;
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(*out)[0] += sl_tensor_f32(in)[i] / (float)sl_tensor_count(in);
    return SL_OK;
}

static sl_status mean_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                               sl_tensor **grad_in)
{
    const mean *state = sl_module_state(module);
    sl_shape shape = mean_shape(state);
    if (!sl_shape_equal(sl_tensor_shape(grad_out), &shape))
        return sl_error(SL_ERR_INVALID, "the gradient has another shape than the output");
    SL_TRY(
        sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32, &state->in, grad_in));
    for (int64_t i = 0; i < sl_tensor_count(*grad_in); i++)
        sl_tensor_f32(*grad_in)[i] = sl_tensor_f32(grad_out)[0] / (float)sl_tensor_count(*grad_in);
    return SL_OK;
}

static const sl_module_ops mean_ops = {.type = "Mean",
                                       .forward = mean_forward,
                                       .backward = mean_backward};

/* A linear layer and the mean; arg: int *dims. */
static sl_status create_linear_mean(void *arg, sl_module **out)
{
    sl_module *modules[2];
    *out = NULL;
    SL_TRY(sl_linear_create(IN, OUT, false, &modules[0]));
    mean *state = calloc(1, sizeof *state);
    if (!state)
        return sl_error(SL_ERR_MEMORY, "no memory for a state");
    state->dims = *(int *)arg;
    SL_TRY(sl_module_create(&mean_ops, state, &modules[1]));
    return create_sequential(modules, 2, out);
}

/* What one module gives for rows first … first + rows - 1, and its gradients' growth by `grad`. */
static float run_rows(sl_module *module, sl_device *device, const sl_tensor *input, int64_t first,
                      int64_t rows, const sl_tensor *grads, int64_t index, float *grad_input)
{
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *grad_in = NULL, *grad = NULL, *out = NULL, *in = NULL;
    check_ok(sli_tensor_narrow(input, first, rows, &in));
    check_ok(sl_pass_create(&(sl_pass_options){.device = device, .keep = true}, &pass));
    check_ok(sl_module_forward(module, pass, in, &out));
    check_ok(sl_tensor_view(grads, index, sl_tensor_shape(out), &grad));
    check_ok(sl_module_backward(module, pass, grad, &grad_in));
    sl_tensor_read(grad_in, grad_input + first * IN);
    float value = sl_tensor_f32(out)[0];
    return value;
}

/* 7 rows on 3 devices: 3, 3 and 1. */
static void check_numbers(int dims)
{
    enum { ROWS = 7, REPLICAS = 3 };
    SCOPED(lab) at = {.count = REPLICAS};
    open_replicas(&at, create_linear_mean, &dims);
    SCOPED(sl_module) *single = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    check_ok(create_linear_mean(&dims, &single));
    check_ok(sl_parameter_set_create(
        single, 0, 0, &(sl_parameter_set_options){.device = at.devices[0], .seed = 4}, &set));

    sl_shape in_shape = sl_shape_2d(ROWS, IN), vector = sl_shape_1d(REPLICAS);
    SCOPED(sl_tensor) *input = random_tensor(at.devices[0], &in_shape, 1), *output = NULL,
                      *grad_input = NULL;
    SCOPED(sl_tensor) *grad = random_tensor(at.devices[0], &vector, 2);
    check_ok(
        sl_data_parallel_forward(at.parallel, &(sl_pass_options){.keep = true}, input, &output));
    assert_true(sl_shape_equal(sl_tensor_shape(output), &vector));
    check_error(sl_data_parallel_backward(at.parallel, input, NULL), SL_ERR_INVALID,
                "the gradient must have the output's shape [3], got [7, 5]");
    check_ok(sl_data_parallel_backward(at.parallel, grad, &grad_input));
    float expected[ROWS * IN];
    for (int i = 0; i < REPLICAS; i++)
        assert_true(sl_tensor_f32(output)[i] == run_rows(single, at.devices[0], input, 3 * i,
                                                         i < 2 ? 3 : 1, grad, i, expected));
    assert_memory_equal(sl_tensor_data(grad_input), expected, sizeof expected);
    int64_t count;
    FREED float *got_grads = flat_gradients(sl_data_parallel_parameters(at.parallel), &count);
    FREED float *expected_grads = flat_gradients(set, &count);
    assert_true(relative_distance(got_grads, expected_grads, count) < 1e-6);
}

static void numbers_are_gathered_into_a_vector_of_one_a_replica(void **state)
{
    check_numbers(0);
    check_numbers(1);
}

/* ---- Parameters without a gradient ------------------------------------------------------ */

/* Passes on what it gets. Of its parameters, all 1 at first, "unused" has no gradient, and "once"
 * has one, of 1, in the module that was created second. */
typedef struct seldom {
    sl_parameter *once;
    bool uses_it;
} seldom;

static sl_status copy_of(const sl_tensor *source, sl_tensor **out)
{
    SL_TRY(sl_tensor_create(sl_tensor_device(source), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(source), out));
    return sl_tensor_copy(*out, source);
}

static sl_status seldom_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    return copy_of(in, out);
}

static sl_status seldom_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    const seldom *state = sl_module_state(module);
    if (state->uses_it) {
        float beta;
        float *grad = sl_tensor_f32(sli_parameter_grad_accumulate(state->once, &beta));
        *grad = 1 + (beta == 0.0f ? 0 : *grad);
    }
    return grad_in ? copy_of(grad_out, grad_in) : SL_OK;
}

static const sl_module_ops seldom_ops = {.type = "Seldom",
                                         .forward = seldom_forward,
                                         .backward = seldom_backward};

/* arg: int *, how many were created. */
static sl_status create_seldom(void *arg, sl_module **out)
{
    int *made = arg;
    sl_parameter *unused;
    seldom *state = calloc(1, sizeof *state);
    assert_non_null(state);
    state->uses_it = (*made)++ == 1;
    SL_TRY(sl_module_create(&seldom_ops, state, out));
    sl_parameter_spec spec = {.name = "unused", .shape = sl_shape_1d(1), .low = 1, .high = 1};
    SL_TRY(sl_module_add_parameter(*out, &spec, &unused));
    spec.name = "once";
    return sl_module_add_parameter(*out, &spec, &state->once);
}

static void parameter_that_no_replica_uses_keeps_its_value(void **state)
{
    int made = 0;
    SCOPED(lab) at = {.count = 3};
    SCOPED(sl_optimizer) *optimizer = NULL;
    open_replicas(&at, create_seldom, &made);
    sl_parameter_set *set = sl_data_parallel_parameters(at.parallel);
    sl_optimizer_options decays = {.kind = SL_OPTIMIZER_SGD, .weight_decay = 0.5f};
    check_ok(sl_optimizer_create(&decays, set, &optimizer));
    sl_shape shape = sl_shape_2d(6, 2);
    SCOPED(sl_tensor) *input = random_tensor(at.devices[0], &shape, 1);
    const float once[] = {0.25f, -0.3125f}; /* v - 0.5 * (1 + 0.5 * v) */
    for (int step = 0; step < 2; step++) {
        sl_tensor *output;
        sl_parameter_set_zero_grad(set);
        check_ok(sl_data_parallel_forward(at.parallel, &(sl_pass_options){.keep = true}, input,
                                          &output));
        check_ok(sl_data_parallel_backward(at.parallel, output, NULL));
        check_ok(sl_optimizer_step(optimizer, 0.5, 1));
        sl_tensor_destroy(&output);
        assert_true(sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, 0)))[0] == 1);
        assert_true(sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, 1)))[0] ==
                    once[step]);
    }
}

/* ---- Failures --------------------------------------------------------------------------- */

static void error_is_the_lowest_failing_replicas(void **state)
{
    probes all = {.each = {[1] = {.fail_forward = 1}, [2] = {.fail_forward = 1}}};
    SCOPED(lab) at = {.count = 3};
    open_replicas(&at, create_probe, &all);
    sl_shape shape = sl_shape_2d(6, 2);
    SCOPED(sl_tensor) *input = random_tensor(at.devices[0], &shape, 1), *output = NULL;
    sl_tensor *grad;
    sl_pass_options pass = {.training = true, .keep = true};
    check_error(sl_data_parallel_forward(at.parallel, &pass, input, &output), SL_ERR_NUMERIC,
                "in replica 1 on device");
    assert_null(output);
    check_error(sl_data_parallel_backward(at.parallel, input, &grad), SL_ERR_INVALID,
                "there was no forward");
    check_ok(sl_data_parallel_forward(at.parallel, &pass, input, &output)); /* goes on */
    check_ok(sl_data_parallel_backward(at.parallel, input, NULL));
}

static sl_status create_other(void *arg, sl_module **out)
{
    return sl_linear_create(IN, OUT + 1, false, out);
}

static void construction_with_wrong_options_is_refused(void **state)
{
    SCOPED(lab) at = {.count = 2};
    for (int i = 0; i < at.count; i++)
        check_ok(sl_device_create_cpu(1, &at.devices[i]));
    check_ok(sl_linear_create(IN, OUT, false, &at.module));
    sl_data_parallel_options options = {.module = at.module,
                                        .devices = at.devices,
                                        .device_count = 2};
    check_error(sl_data_parallel_create(&options, &at.parallel), SL_ERR_INVALID, "`replicate`");
    options.replicate = create_other;
    check_error(sl_data_parallel_create(&options, &at.parallel), SL_ERR_INVALID,
                "parameter weight of replica 1 is not as the module's weight");
    options.device_count = 0;
    check_error(sl_data_parallel_create(&options, &at.parallel), SL_ERR_INVALID, "got 0");
    options.module = NULL;
    check_error(sl_data_parallel_create(&options, &at.parallel), SL_ERR_INVALID, "no module");
}

static void devices_are_counted_when_none_are_named(void **state)
{
    SCOPED(sl_device) *all = new_device(0);
    SCOPED(sl_module) *module = NULL;
    SCOPED(sl_data_parallel) *parallel = NULL;
    check_ok(create_model(NULL, &module));
    sl_data_parallel_options options = {.module = module, .replicate = create_model};
    check_ok(sl_data_parallel_create(&options, &parallel));
    assert_int_equal(sl_data_parallel_device_count(parallel), sl_device_thread_count(all));
    assert_string_equal(sl_device_name(sl_data_parallel_device(parallel, 0)), "cpu:0");
}

int data_parallel_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_together_give_what_one_gives),
        cmocka_unit_test(devices_together_give_what_one_gives_in_bf16),
        cmocka_unit_test(weights_that_an_optimizer_changed_reach_all_devices),
        cmocka_unit_test(rows_are_shared_out_as_torch_chunk_does),
        cmocka_unit_test(numbers_are_gathered_into_a_vector_of_one_a_replica),
        cmocka_unit_test(parameter_that_no_replica_uses_keeps_its_value),
        cmocka_unit_test(error_is_the_lowest_failing_replicas),
        cmocka_unit_test(construction_with_wrong_options_is_refused),
        cmocka_unit_test(devices_are_counted_when_none_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
