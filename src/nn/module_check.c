/* Checks a module by differences, and against itself: whole and in halves, once and twice, in f32
 * and in bf16. */
#include "sluice/module_check.h"
#include "tensor/tensor.h"

#include "core/philox.h"
#include "nn/module.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MICROS = 2 }; /* whose halves interleave */

typedef struct module_check {
    sl_module *module;
    const sl_module_check_options *options;
    sl_device *device;
    sl_parameter_set *set; /* in `precision` */
    sl_tensor *input;
    sl_precision precision;
} module_check;

/* What one backward, or one for each of two micro-batches, has given. */
typedef struct gradients {
    float *parameters; /* [parameter_count], of all buckets */
    int64_t parameter_count;
    float *inputs; /* [micro-batches][elements]; NULL: not asked for */
} gradients;

static sl_status fail_memory(void)
{
    return sli_no_memory("sl_module_check", "a copy of a tensor");
}

/* ---- Random values -------------------------------------------------------------------------- */

/* In [-1, 1). `number` tells the module's tensors apart. */
static float random_value(const module_check *check, uint32_t number, int64_t index)
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), number, 0};
    sli_philox(sli_philox_key_make(check->options->seed, SLI_RANDOM_CHECK), counter);
    return 2.0f * sli_uniform_from_bits(counter[0]) - 1.0f;
}

enum {
    INPUT,
    GRADIENT,
    PARAMETERS
}; /* for `number`; micro-batch and parameter number are added in its upper bits */

static sl_status create_random(const module_check *check, const sl_shape *shape, uint32_t number,
                               sl_tensor **out)
{
    SL_TRY(sl_tensor_create(check->device, SL_MEMORY_ACTIVATIONS, SL_F32, shape, out));
    int64_t count = sl_shape_count(shape);
    float *values = malloc((size_t)count * sizeof *values + 1);
    if (!values)
        return fail_memory();
    for (int64_t i = 0; i < count; i++)
        values[i] = random_value(check, number, i);
    sl_status status = sl_tensor_write(*out, values);
    free(values);
    return status;
}

static sl_status create_ids(const module_check *check, const sl_shape *shape, sl_tensor **out)
{
    SL_TRY(sl_tensor_create(check->device, SL_MEMORY_ACTIVATIONS, SL_I32, shape, out));
    int64_t count = sl_shape_count(shape);
    int32_t *ids = malloc((size_t)count * sizeof *ids + 1);
    if (!ids)
        return fail_memory();
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)((random_value(check, INPUT, i) + 1) / 2 * (float)check->options->ids);
    sl_status status = sl_tensor_write(*out, ids);
    free(ids);
    return status;
}

/* Moves the initial values, so that none favours anything: norms' weights are not all 1. */
static sl_status move_parameter(const module_check *check, int index)
{
    sl_parameter *parameter = sl_parameter_set_get(check->set, index);
    sl_tensor *value = sl_parameter_value(parameter);
    if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
        return SL_OK;
    float *values = malloc(sli_tensor_bytes(value) + 1);
    if (!values)
        return fail_memory();
    sl_status status;
    SL_TRY_OR_FAIL(sl_tensor_read(value, values));
    for (int64_t i = 0; i < sl_tensor_count(value); i++)
        values[i] += 0.3f * random_value(check, PARAMETERS + ((uint32_t)index << 8), i);
    status = sl_tensor_write(value, values);
fail:
    free(values);
    return status;
}

static sl_status create_parameters(module_check *check, sl_precision precision)
{
    check->precision = precision;
    SL_TRY(sl_parameter_set_create(check->module, 0, 0,
                                   &(sl_parameter_set_options){.device = check->device,
                                                               .seed = check->options->seed,
                                                               .precision = precision},
                                   &check->set));
    for (int i = 0; i < sl_parameter_set_count(check->set); i++)
        SL_TRY(move_parameter(check, i));
    return sli_parameter_set_convert(check->set);
}

/* ---- Forward and backward ------------------------------------------------------------------- */

static sl_status create_pass(const module_check *check, bool keep, int micro, sl_pass **out)
{
    return sl_pass_create(&(sl_pass_options){.device = check->device,
                                             .training = check->options->training,
                                             .keep = keep,
                                             .precision = check->precision,
                                             .seed = check->options->seed,
                                             .first_sample = micro},
                          out);
}

/* Refuses what a module does not keep of its promises. */
static sl_status refuse(const module_check *check, const char *what, int64_t expected, int64_t got)
{
    return sl_error(SL_ERR_INVALID, "%s: %s, expected %lld, got %lld",
                    sl_module_type(check->module), what, (long long)expected, (long long)got);
}

static int64_t distinct_bytes(sl_tensor *const *tensors, int count)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || sl_tensor_data(tensors[k]) == sl_tensor_data(tensors[i]);
        bytes += seen ? 0 : (int64_t)sli_tensor_bytes(tensors[i]);
    }
    return bytes;
}

int64_t sli_pass_bytes(const sl_pass *pass)
{
    return distinct_bytes(pass->saved, pass->count) +
           distinct_bytes(pass->deferred + pass->deferred_next, sli_pass_deferred(pass));
}

/* ---- Differences ---------------------------------------------------------------------------- */

/* The function whose gradient is taken: the sum of the output's elements, each times the same
 * element of the output's gradient. */
static sl_status weighted_sum(const module_check *check, double *sum)
{
    sl_pass *pass = NULL;
    sl_tensor *out = NULL;
    float *values = NULL;
    sl_status status;
    *sum = 0;
    SL_TRY_OR_FAIL(create_pass(check, false, 0, &pass));
    SL_TRY_OR_FAIL(sl_module_forward(check->module, pass, check->input, &out));
    values = malloc(sli_tensor_bytes(out) + 1);
    SL_TRY_OR_FAIL(values ? sl_tensor_read(out, values) : fail_memory());
    for (int64_t i = 0; i < sl_tensor_count(out); i++)
        *sum += (double)random_value(check, GRADIENT, i) * values[i];

fail:
    free(values);
    sl_tensor_destroy(&out);
    sl_pass_destroy(&pass);
    return status;
}

/* By central differences, element by element; `tensor` has its values again afterwards. */
static sl_status find_differences(const module_check *check, sl_tensor *tensor, float *values,
                                  float *gradient)
{
    const float step = 1e-3f;
    SL_TRY(sl_tensor_read(tensor, values));
    for (int64_t i = 0; i < sl_tensor_count(tensor); i++) {
        const float middle = values[i], low = middle - step, high = middle + step;
        double above = 0, below = 0;
        values[i] = high;
        SL_TRY(sl_tensor_write(tensor, values));
        SL_TRY(weighted_sum(check, &above));
        values[i] = low;
        SL_TRY(sl_tensor_write(tensor, values));
        SL_TRY(weighted_sum(check, &below));
        values[i] = middle;
        gradient[i] = (float)((above - below) / ((double)high - low));
    }
    return sl_tensor_write(tensor, values);
}

/* ||a - b|| / ||b||, or ||a|| where b is 0. */
static double relative_distance(const float *a, const float *b, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(size > 0 ? difference / size : difference);
}

static sl_status compare(const module_check *check, const char *what, const char *with,
                         const float *got, const float *right, int64_t count, double tolerance)
{
    double distance = relative_distance(got, right, count);
    if (distance <= tolerance)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: backward's gradient of %s is %.3g of its norm away from that of %s, at "
                    "most %g is allowed",
                    sl_module_type(check->module), what, distance, with, tolerance);
}

static sl_status compare_with_differences(const module_check *check, const char *what,
                                          sl_tensor *tensor, const float *got)
{
    double tolerance = check->options->tolerance > 0 ? check->options->tolerance : 0.005;
    size_t bytes = sli_tensor_bytes(tensor);
    float *values = malloc(2 * bytes + 1),
          *right = values ? values + sl_tensor_count(tensor) : NULL;
    sl_status status;
    SL_TRY_OR_FAIL(values ? find_differences(check, tensor, values, right) : fail_memory());
    status = compare(check, what, "differences", got, right, sl_tensor_count(tensor), tolerance);
fail:
    free(values);
    return status;
}

/* ---- Backward ------------------------------------------------------------------------------- */

static sl_status check_forward(const module_check *check, const sl_pass *pass, const sl_tensor *out)
{
    sl_shape shape;
    SL_TRY(sl_module_output_shape(check->module, sl_tensor_shape(check->input), &shape));
    if (check->module->ops->output_shape && !sl_shape_equal(&shape, sl_tensor_shape(out)))
        return sl_error(SL_ERR_INVALID, "%s: forward's output has another shape than output_shape",
                        sl_module_type(check->module));
    int64_t saved = sli_pass_bytes(pass);
    int64_t said = sl_module_saved_bytes(check->module, sl_tensor_shape(check->input));
    if (check->module->ops->saved_bytes && check->precision == SL_PRECISION_F32 && saved != said)
        return refuse(check, "bytes that forward saves, by saved_bytes", said, saved);
    return SL_OK;
}

static sl_status forward_micro(const module_check *check, int micro, sl_pass **pass,
                               sl_tensor **grad_out)
{
    sl_tensor *out = NULL;
    SL_TRY(create_pass(check, true, micro, pass));
    SL_TRY(sl_module_forward(check->module, *pass, check->input, &out));
    sl_status status;
    SL_TRY_OR_FAIL(check_forward(check, *pass, out));
    status =
        create_random(check, sl_tensor_shape(out), GRADIENT + ((uint32_t)micro << 8), grad_out);

fail:
    sl_tensor_destroy(&out);
    return status;
}

/* Reads the input's gradient, then sets it to 0, as the module before may overwrite it. */
static sl_status read_input_gradient(const module_check *check, sl_tensor *grad_in, float *values)
{
    if (!sl_shape_equal(sl_tensor_shape(grad_in), sl_tensor_shape(check->input)))
        return sl_error(SL_ERR_INVALID,
                        "%s: the gradient of the input has another shape than the input",
                        sl_module_type(check->module));
    SL_TRY(sl_tensor_read(grad_in, values));
    return sli_tensor_zero(grad_in);
}

/* Backward as a whole, or its first half. `values` gets the input's gradient; NULL: not needed. */
static sl_status backward_micro(const module_check *check, bool halves, sl_pass *pass,
                                sl_tensor **grad_out, float *values)
{
    sl_tensor *grad_in = NULL;
    sl_status status =
        (halves ? sli_module_backward_input : sl_module_backward)(check->module, pass, *grad_out,
                                                                  values ? &grad_in : NULL);
    sl_tensor_destroy(grad_out);
    SL_TRY(status);
    status = values ? read_input_gradient(check, grad_in, values) : SL_OK;
    sl_tensor_destroy(&grad_in);
    SL_TRY(status);
    if (sli_pass_depth(pass) > 0)
        return refuse(check, "tensors of forward that backward leaves", 0, sli_pass_depth(pass));
    int64_t deferred = sli_pass_bytes(pass);
    int64_t said = sl_module_deferred_bytes(check->module, sl_tensor_shape(check->input));
    if (halves && check->module->ops->deferred_bytes && check->precision == SL_PRECISION_F32 &&
        deferred != said)
        return refuse(check, "bytes that backward_input leaves, by deferred_bytes", said, deferred);
    return SL_OK;
}

static sl_status backward_weight_micro(const module_check *check, sl_pass *pass)
{
    SL_TRY(sli_module_backward_weight(check->module, pass));
    int left = sli_pass_deferred(pass);
    return left > 0 ? refuse(check, "tensors that backward_weight leaves", 0, left) : SL_OK;
}

static sl_status read_parameters(const module_check *check, gradients *out)
{
    int64_t count = 0;
    for (int i = 0; i < sl_parameter_set_bucket_count(check->set); i++)
        count += sl_tensor_count(sl_parameter_set_bucket_values(check->set, i));
    out->parameters = malloc((size_t)count * sizeof *out->parameters + 1);
    if (!out->parameters)
        return fail_memory();
    for (int i = 0; i < sl_parameter_set_bucket_count(check->set); i++) {
        sl_tensor *bucket;
        SL_TRY(sl_parameter_set_bucket_grads(check->set, i, &bucket));
        SL_TRY(sl_tensor_read(bucket, out->parameters + out->parameter_count));
        out->parameter_count += sl_tensor_count(bucket);
    }
    return SL_OK;
}

/* Forward of `micros` micro-batches, then backward of each; in halves, the second ones come last.
 * The parameters' gradients are added to those that are there. */
static sl_status train(const module_check *check, int micros, bool halves, bool with_input,
                       gradients *out)
{
    sl_pass *passes[MICROS] = {NULL};
    sl_tensor *grads_out[MICROS] = {NULL};
    int64_t elements = sl_tensor_count(check->input);
    sl_status status;
    *out = (gradients){0};
    if (with_input && !(out->inputs = calloc((size_t)(micros * elements) + 1, sizeof *out->inputs)))
        return fail_memory();
    for (int m = 0; m < micros; m++)
        SL_TRY_OR_FAIL(forward_micro(check, m, &passes[m], &grads_out[m]));
    for (int m = 0; m < micros; m++)
        SL_TRY_OR_FAIL(backward_micro(check, halves, passes[m], &grads_out[m],
                                      with_input ? out->inputs + m * elements : NULL));
    for (int m = 0; m < micros && halves; m++)
        SL_TRY_OR_FAIL(backward_weight_micro(check, passes[m]));
    status = read_parameters(check, out);

fail:
    for (int m = 0; m < micros; m++) {
        sl_tensor_destroy(&grads_out[m]);
        sl_pass_destroy(&passes[m]);
    }
    return status;
}

static void clear(gradients *all)
{
    free(all->parameters);
    free(all->inputs);
    *all = (gradients){0};
}

/* ---- What must hold ------------------------------------------------------------------------- */

static sl_status require(const module_check *check, bool holds, const char *what)
{
    return holds ? SL_OK : sl_error(SL_ERR_INVALID, "%s: %s", sl_module_type(check->module), what);
}

static bool same_bits(const float *a, const float *b, int64_t count)
{
    return count == 0 || memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

/* `once` has the gradients that are in the set. */
static sl_status check_accumulation(const module_check *check, const gradients *once)
{
    gradients twice, again = {0};
    int64_t count = once->parameter_count;
    sl_status status;
    SL_TRY_OR_FAIL(train(check, 1, false, false, &twice));
    for (int64_t i = 0; i < count; i++)
        twice.parameters[i] /= 2;
    bool is_double = relative_distance(twice.parameters, once->parameters, count) < 1e-6;
    SL_TRY_OR_FAIL(
        require(check, is_double, "a second backward must add to the parameters' gradients"));
    sl_parameter_set_zero_grad(check->set);
    SL_TRY_OR_FAIL(train(check, 1, false, false, &again));
    status = require(check, same_bits(again.parameters, once->parameters, count),
                     "the parameters' gradients must not depend on whether that of the input is "
                     "asked for");

fail:
    clear(&twice);
    clear(&again);
    return status;
}

static sl_status check_halves(const module_check *check)
{
    gradients whole, halved = {0};
    bool with_input = check->options->ids == 0;
    sl_parameter_set_zero_grad(check->set);
    sl_status status;
    SL_TRY_OR_FAIL(train(check, MICROS, false, with_input, &whole));
    sl_parameter_set_zero_grad(check->set);
    SL_TRY_OR_FAIL(train(check, MICROS, true, with_input, &halved));
    SL_TRY_OR_FAIL(require(check,
                           same_bits(halved.parameters, whole.parameters, whole.parameter_count),
                           "backward_input and backward_weight must give the parameters' "
                           "gradients of backward, bit for bit"));
    int64_t inputs = with_input ? MICROS * sl_tensor_count(check->input) : 0;
    status = require(check, same_bits(halved.inputs, whole.inputs, inputs),
                     "backward_input must give the input's gradient of backward, bit for bit");

fail:
    clear(&whole);
    clear(&halved);
    return status;
}

static sl_status check_differences(const module_check *check, const gradients *got)
{
    if (got->inputs)
        SL_TRY(compare_with_differences(check, "the input", check->input, got->inputs));
    for (int i = 0; i < sl_parameter_set_count(check->set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(check->set, i);
        sl_tensor *grad;
        if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
            continue;
        SL_TRY(sl_parameter_grad(parameter, &grad));
        float *values = malloc(sli_tensor_bytes(grad) + 1);
        sl_status status;
        SL_TRY_OR_FAIL(values ? sl_tensor_read(grad, values) : fail_memory());
        status = compare_with_differences(check, sl_parameter_name(parameter),
                                          sl_parameter_value(parameter), values);

    fail:
        free(values);
        SL_TRY(status);
    }
    return SL_OK;
}

/* All that holds in one precision. *out are the gradients of one backward. */
static sl_status check_precision(module_check *check, sl_precision precision, gradients *out)
{
    *out = (gradients){0};
    SL_TRY(create_parameters(check, precision));
    SL_TRY(train(check, 1, false, check->options->ids == 0, out));
    if (precision == SL_PRECISION_F32)
        SL_TRY(check_differences(check, out));
    SL_TRY(check_accumulation(check, out));
    return check_halves(check);
}

static sl_status check_bf16(module_check *check, const gradients *f32)
{
    double tolerance = check->options->bf16_tolerance > 0 ? check->options->bf16_tolerance : 0.05;
    gradients bf16;
    sl_parameter_set_destroy(&check->set);
    sl_status status;
    SL_TRY_OR_FAIL(check_precision(check, SL_PRECISION_BF16, &bf16));
    SL_TRY_OR_FAIL(compare(check, "all parameters in bf16", "f32", bf16.parameters, f32->parameters,
                           f32->parameter_count, tolerance));
    if (f32->inputs)
        status = compare(check, "the input in bf16", "f32", bf16.inputs, f32->inputs,
                         sl_tensor_count(check->input), tolerance);

fail:
    clear(&bf16);
    return status;
}

sl_status sl_module_check(sl_module *module, const sl_module_check_options *options)
{
    SLI_CHECK_NOT_NULL(module);
    SLI_CHECK_NOT_NULL(options);
    module_check check = {.module = module, .options = options};
    gradients f32 = {0};
    SL_TRY(sl_device_create_cpu(1, &check.device));
    sl_status status;
    SL_TRY_OR_FAIL(options->ids > 0 ? create_ids(&check, &options->input, &check.input)
                                    : create_random(&check, &options->input, INPUT, &check.input));
    SL_TRY_OR_FAIL(check_precision(&check, SL_PRECISION_F32, &f32));
    if (options->precision == SL_PRECISION_BF16)
        status = check_bf16(&check, &f32);

fail:
    clear(&f32);
    sl_parameter_set_destroy(&check.set);
    sl_tensor_destroy(&check.input);
    sl_memory_stats memory;
    sl_device_memory(check.device, &memory);
    if (status == SL_OK && memory.current_total_bytes > 0)
        status = refuse(&check, "bytes of tensors that nobody has destroyed", 0,
                        (int64_t)memory.current_total_bytes);
    sl_device_destroy(&check.device);
    return status;
}
