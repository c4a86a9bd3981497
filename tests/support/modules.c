#include "modules.h"

#include "core/philox.h"
#include "nn/module.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 17, STEP = 3 };

/* ---- Tensors ---------------------------------------------------------------------------- */

static float random_value(uint64_t seed, int64_t index)
{
    uint32_t counter[4] = {(uint32_t)index, 0, 0, 0};
    sli_philox(sli_philox_key_make(seed, SLI_RANDOM_SAMPLE), counter);
    return 2.0f * sli_uniform_from_bits(counter[0]) - 1.0f;
}

sl_tensor *float_tensor(sl_device *device, const sl_shape *shape, const float *values)
{
    sl_tensor *tensor;
    check_ok(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, shape, &tensor));
    check_ok(sl_tensor_write(tensor, values));
    return tensor;
}

sl_tensor *integer_tensor(sl_device *device, const sl_shape *shape, const int32_t *values)
{
    sl_tensor *tensor;
    check_ok(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_I32, shape, &tensor));
    check_ok(sl_tensor_write(tensor, values));
    return tensor;
}

sl_tensor *random_tensor(sl_device *device, const sl_shape *shape, uint64_t seed)
{
    int64_t count = sl_shape_count(shape);
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = random_value(seed, i);
    sl_tensor *tensor = float_tensor(device, shape, values);
    free(values);
    return tensor;
}

static sl_tensor *case_input(const module_case *one, sl_device *device)
{
    if (one->id_count == 0)
        return random_tensor(device, &one->in, SEED + 1);
    int64_t count = sl_shape_count(&one->in);
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)((i * i + 3 * i) % one->id_count);
    sl_tensor *tensor = integer_tensor(device, &one->in, ids);
    free(ids);
    return tensor;
}

float *tensor_values(const sl_tensor *tensor)
{
    float *values = malloc(sl_tensor_bytes(tensor) + 1);
    check_ok(sl_tensor_read(tensor, values));
    return values;
}

sl_tensor *gradient_of(sl_parameter *parameter)
{
    sl_tensor *grad;
    check_ok(sl_parameter_grad(parameter, &grad));
    return grad;
}

sl_tensor *bucket_gradients(sl_parameter_set *set, int index)
{
    sl_tensor *grads;
    check_ok(sl_parameter_set_bucket_grads(set, index, &grads));
    return grads;
}

int64_t loss_terms(const sl_loss *loss, const sl_tensor *targets)
{
    int64_t terms;
    check_ok(sl_loss_terms(loss, targets, &terms));
    return terms;
}

double relative_distance(const float *a, const float *b, int64_t count)
{
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(size > 0.0 ? difference / size : difference);
}

sl_parameter_set *random_parameters(sl_module *module, sl_device *device)
{
    sl_parameter_set *set;
    sl_parameter_set_options options = {.device = device, .seed = SEED};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(set, i);
        if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
            continue;
        sl_tensor *value = sl_parameter_value(parameter);
        float *values = tensor_values(value);
        for (int64_t k = 0; k < sl_tensor_count(value); k++)
            values[k] += 0.3f * random_value(SEED + 2 + (uint64_t)i, k);
        check_ok(sl_tensor_write(value, values));
        free(values);
    }
    return set;
}

/* ---- Passes ----------------------------------------------------------------------------- */

static int64_t distinct_bytes(sl_tensor *const *tensors, int count)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || sl_tensor_data(tensors[k]) == sl_tensor_data(tensors[i]);
        bytes += seen ? 0 : (int64_t)sl_tensor_bytes(tensors[i]);
    }
    return bytes;
}

int64_t pass_bytes(const sl_pass *pass)
{
    return distinct_bytes(pass->saved, pass->count) +
           distinct_bytes(pass->deferred + pass->deferred_next, sl_pass_deferred(pass));
}

static sl_pass *new_pass(const module_case *one, sl_device *device, bool keep, int64_t first_sample)
{
    sl_pass *pass;
    sl_pass_options options = {.device = device,
                               .training = one->training,
                               .keep = keep,
                               .seed = SEED,
                               .step = STEP,
                               .first_sample = first_sample};
    check_ok(sl_pass_create(&options, &pass));
    return pass;
}

static sl_tensor *run_forward(const module_case *one, sl_device *device, const sl_tensor *in,
                              int64_t first_sample)
{
    sl_tensor *out;
    sl_pass *pass = new_pass(one, device, false, first_sample);
    check_ok(sl_module_forward(one->module, pass, in, &out));
    assert_int_equal(sl_pass_depth(pass), 0);
    sl_pass_destroy(&pass);
    return out;
}

/* ---- Gradients -------------------------------------------------------------------------- */

/* The function whose gradient is taken: the output's elements, weighted. */
static double weighted_sum(const module_case *one, sl_device *device, const sl_tensor *in)
{
    sl_tensor *out = run_forward(one, device, in, 0);
    float *values = tensor_values(out);
    double sum = 0.0;
    for (int64_t i = 0; i < sl_tensor_count(out); i++)
        sum += (double)random_value(SEED + 100, i) * values[i];
    free(values);
    sl_tensor_destroy(&out);
    return sum;
}

/* The gradient by central differences with respect to `at`, which is restored. */
static float *differences(const module_case *one, sl_device *device, const sl_tensor *in,
                          sl_tensor *at)
{
    const float step = 1e-3f;
    int64_t count = sl_tensor_count(at);
    float *values = tensor_values(at), *gradient = malloc((size_t)count * sizeof *gradient);
    for (int64_t i = 0; i < count; i++) {
        float middle = values[i], low = middle - step, high = middle + step;
        values[i] = high;
        check_ok(sl_tensor_write(at, values));
        double above = weighted_sum(one, device, in);
        values[i] = low;
        check_ok(sl_tensor_write(at, values));
        double below = weighted_sum(one, device, in);
        values[i] = middle;
        gradient[i] = (float)((above - below) / ((double)high - low));
    }
    check_ok(sl_tensor_write(at, values));
    free(values);
    return gradient;
}

static void check_against_differences(const module_case *one, sl_device *device,
                                      const sl_tensor *in, sl_tensor *at, const float *gradient,
                                      const char *name)
{
    float *expected = differences(one, device, in, at);
    double distance = relative_distance(gradient, expected, sl_tensor_count(at));
    if (!(distance < 5e-3)) {
        print_error("gradient of %s in %s is off by %g\n", name, sl_module_type(one->module),
                    distance);
        fail();
    }
    free(expected);
}

/* Forward and backward on a keeping pass; gives the gradient of the input unless it is NULL. */
static void run_backward(const module_case *one, sl_device *device, const sl_tensor *in,
                         sl_tensor **grad_in)
{
    sl_tensor *out;
    sl_shape shape;
    sl_pass *pass = new_pass(one, device, true, 0);
    check_ok(sl_module_forward(one->module, pass, in, &out));
    check_ok(sl_module_output_shape(one->module, sl_tensor_shape(in), &shape));
    assert_true(sl_shape_equal(&shape, sl_tensor_shape(out)));
    assert_int_equal(pass_bytes(pass), sl_module_saved_bytes(one->module, sl_tensor_shape(in)));
    sl_tensor *grad_out = random_tensor(device, &shape, SEED + 100);
    sl_tensor_destroy(&out);
    check_ok(sl_module_backward(one->module, pass, grad_out, grad_in));
    assert_int_equal(sl_pass_depth(pass), 0);
    sl_tensor_destroy(&grad_out);
    sl_pass_destroy(&pass);
}

static void check_parameters(const module_case *one, sl_device *device, sl_parameter_set *set,
                             const sl_tensor *in)
{
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(set, i);
        if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED) {
            assert_null(gradient_of(parameter));
            continue;
        }
        float *gradient = tensor_values(gradient_of(parameter));
        check_against_differences(one, device, in, sl_parameter_value(parameter), gradient,
                                  sl_parameter_name(parameter));
        free(gradient);
    }
}

/* Each bucket of gradients, malloc'ed, one after the other. */
static float *all_gradients(sl_parameter_set *set, int64_t *count)
{
    float *all = NULL;
    *count = 0;
    for (int i = 0; i < sl_parameter_set_bucket_count(set); i++) {
        const sl_tensor *bucket = bucket_gradients(set, i);
        all = realloc(all, (size_t)(*count + sl_tensor_count(bucket)) * sizeof *all);
        check_ok(sl_tensor_read(bucket, all + *count));
        *count += sl_tensor_count(bucket);
    }
    return all;
}

/* A second backward doubles the gradients; one after zero_grad gives the first's bits again. */
static void check_accumulation(const module_case *one, sl_device *device, sl_parameter_set *set,
                               const sl_tensor *in)
{
    int64_t count;
    float *once = all_gradients(set, &count);
    run_backward(one, device, in, NULL);
    float *twice = all_gradients(set, &count);
    for (int64_t i = 0; i < count; i++)
        twice[i] /= 2.0f;
    assert_true(relative_distance(twice, once, count) < 1e-6);
    sl_parameter_set_zero_grad(set);
    run_backward(one, device, in, NULL);
    float *again = all_gradients(set, &count);
    if (count)
        assert_memory_equal(again, once, (size_t)count * sizeof *once);
    free(once);
    free(twice);
    free(again);
}

/* A micro-batch on its way: forward has run on the pass. */
typedef struct half_way {
    sl_pass *pass;
    sl_tensor *grad_out, *grad_in;
} half_way;

static half_way run_forward_of(const module_case *one, sl_device *device, const sl_tensor *in,
                               int number)
{
    half_way way = {.pass = new_pass(one, device, true, number)};
    sl_tensor *out;
    check_ok(sl_module_forward(one->module, way.pass, in, &out));
    way.grad_out = random_tensor(device, sl_tensor_shape(out), SEED + 200 + (uint64_t)number);
    sl_tensor_destroy(&out);
    return way;
}

/* The gradient of the input belongs to whoever comes next, who may overwrite it. */
static float *run_input_half(const module_case *one, half_way *way, bool whole)
{
    sl_tensor **grad_in = one->id_count ? NULL : &way->grad_in;
    float *values = NULL;
    check_ok((whole ? sl_module_backward : sl_module_backward_input)(one->module, way->pass,
                                                                     way->grad_out, grad_in));
    assert_int_equal(sl_pass_depth(way->pass), 0);
    sl_tensor_destroy(&way->grad_out);
    if (grad_in) {
        values = tensor_values(way->grad_in);
        check_ok(sl_tensor_zero(way->grad_in));
    }
    sl_tensor_destroy(&way->grad_in);
    return values;
}

enum { HALVED_MICROS = 2 };

/* Gradients after two micro-batches, whole or with all input halves first. */
static float *train_two(const module_case *one, sl_device *device, sl_parameter_set *set,
                        const sl_tensor *in, bool whole, float **grad_in, int64_t *count)
{
    half_way ways[HALVED_MICROS];
    sl_parameter_set_zero_grad(set);
    for (int i = 0; i < HALVED_MICROS; i++)
        ways[i] = run_forward_of(one, device, in, i);
    for (int i = 0; i < HALVED_MICROS; i++) {
        grad_in[i] = run_input_half(one, &ways[i], whole);
        assert_int_equal(pass_bytes(ways[i].pass),
                         whole ? 0 : sl_module_deferred_bytes(one->module, sl_tensor_shape(in)));
    }
    for (int i = 0; i < HALVED_MICROS; i++) {
        if (!whole)
            check_ok(sl_module_backward_weight(one->module, ways[i].pass));
        assert_int_equal(sl_pass_deferred(ways[i].pass), 0);
        sl_pass_destroy(&ways[i].pass);
    }
    return all_gradients(set, count);
}

static void check_halves(const module_case *one, sl_device *device, sl_parameter_set *set,
                         const sl_tensor *in)
{
    int64_t count;
    float *whole_in[HALVED_MICROS], *halved_in[HALVED_MICROS];
    float *whole = train_two(one, device, set, in, true, whole_in, &count);
    float *halved = train_two(one, device, set, in, false, halved_in, &count);
    if (count)
        assert_memory_equal(halved, whole, (size_t)count * sizeof *whole);
    for (int i = 0; i < HALVED_MICROS; i++) {
        if (whole_in[i])
            assert_memory_equal(halved_in[i], whole_in[i], sl_tensor_bytes(in));
        free(whole_in[i]);
        free(halved_in[i]);
    }
    free(whole);
    free(halved);
}

void check_module(const module_case *one)
{
    sl_device *device;
    check_ok(sl_device_create_cpu(2, &device));
    sl_parameter_set *set = random_parameters(one->module, device);
    sl_tensor *in = case_input(one, device), *grad_in = NULL;
    run_backward(one, device, in, one->id_count ? NULL : &grad_in);
    check_parameters(one, device, set, in);
    if (grad_in) {
        assert_true(sl_shape_equal(sl_tensor_shape(grad_in), &one->in));
        float *gradient = tensor_values(grad_in);
        check_against_differences(one, device, in, in, gradient, "the input");
        free(gradient);
    }
    check_accumulation(one, device, set, in);
    check_halves(one, device, set, in);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&grad_in);
    sl_parameter_set_destroy(&set);
    sl_memory_stats memory;
    sl_device_memory(device, &memory);
    assert_int_equal(memory.current_total_bytes, 0);
    sl_device_destroy(&device);
}

void check_samples_are_independent(const module_case *one)
{
    sl_device *device;
    check_ok(sl_device_create_cpu(1, &device));
    sl_parameter_set *set = random_parameters(one->module, device);
    sl_tensor *in = case_input(one, device), *whole = run_forward(one, device, in, 0);
    int64_t samples = one->in.size[0], row = sl_tensor_count(whole) / samples;
    float *expected = tensor_values(whole);
    for (int64_t first = 0; first < samples; first++) {
        sl_tensor *part_in;
        check_ok(sl_tensor_narrow(in, first, 1, &part_in));
        sl_tensor *part = run_forward(one, device, part_in, first);
        float *values = tensor_values(part);
        assert_int_equal(sl_tensor_count(part), row);
        assert_true(relative_distance(values, expected + first * row, row) < 1e-5);
        free(values);
        sl_tensor_destroy(&part);
        sl_tensor_destroy(&part_in);
    }
    free(expected);
    sl_tensor_destroy(&whole);
    sl_tensor_destroy(&in);
    sl_parameter_set_destroy(&set);
    sl_device_destroy(&device);
}

const char *const layer_names[LAYER_NAMES] = {
    "self_attn.in_proj_weight",
    "self_attn.in_proj_bias",
    "self_attn.out_proj.weight",
    "self_attn.out_proj.bias",
    "linear1.weight",
    "linear1.bias",
    "linear2.weight",
    "linear2.bias",
    "norm1.weight",
    "norm1.bias",
    "norm2.weight",
    "norm2.bias",
};

/* ---- The probe -------------------------------------------------------------------------- */

static sl_status probe_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    probe *p = sl_module_state(module);
    int call = atomic_fetch_add(&p->forwards, 1) + 1;
    if (p->on_forward)
        p->on_forward(p, call);
    if (call == p->fail_forward)
        return sl_error(SL_ERR_NUMERIC, "the probe fails in forward %d", call);
    if (p->gives_nothing)
        return SL_OK;
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, sl_tensor_dtype(in),
                            sl_tensor_shape(in), out));
    sl_status status = sl_tensor_copy(*out, in);
    if (status == SL_OK)
        status = sl_pass_save_alias(pass, in);
    if (status != SL_OK)
        sl_tensor_destroy(out);
    return status;
}

static sl_status probe_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in)
{
    probe *p = sl_module_state(module);
    int call = atomic_fetch_add(&p->backwards, 1) + 1;
    if (call == p->fail_backward)
        return sl_error(SL_ERR_NUMERIC, "the probe fails in backward %d", call);
    if (p->gives_nothing)
        return SL_OK;
    if (!p->leaves_on_pass) {
        sl_tensor *saved;
        SL_TRY(sl_pass_pop(pass, &saved));
        sl_tensor_destroy(&saved);
    }
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static void keep_state(void *state)
{
    (void)state; /* the test's */
}

sl_module *probe_module(probe *p)
{
    static const sl_module_ops ops = {
        .type = "Probe",
        .forward = probe_forward,
        .backward = probe_backward,
        .destroy_state = keep_state,
    };
    sl_module *module;
    check_ok(sl_module_create(&ops, p, &module));
    return module;
}
