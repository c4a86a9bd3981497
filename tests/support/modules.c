#include "modules.h"
#include "tensor/tensor.h"

#include "core/philox.h"
#include "nn/module.h"
#include "sluice/module_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 17, STEP = 3 };

sl_device *new_device(int threads)
{
    sl_device *device;
    check_ok(sl_device_create_cpu(threads, &device));
    return device;
}

sl_loss *new_mse_loss(void)
{
    sl_loss *loss;
    check_ok(sl_mse_loss_create(&loss));
    return loss;
}

sl_loss *new_cross_entropy(void)
{
    sl_loss *loss;
    check_ok(sl_cross_entropy_create(&loss));
    return loss;
}

sl_status create_sequential(sl_module *const *modules, int count, sl_module **out)
{
    sl_status status = sli_sequential_create(out);
    for (int i = 0; i < count; i++) {
        sl_module *module = modules[i];
        if (status == SL_OK)
            status = sl_sequential_append(out, SL_OK, &module);
        else
            sl_module_destroy(&module);
    }
    return status;
}

sl_module *new_sequential(sl_module *const *modules, int count)
{
    sl_module *sequential;
    check_ok(create_sequential(modules, count, &sequential));
    return sequential;
}

sl_module *new_linear(int64_t in, int64_t out)
{
    sl_module *module;
    check_ok(sl_linear_create(in, out, false, &module));
    return module;
}

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
    float *values = malloc(sli_tensor_bytes(tensor) + 1);
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

static sl_rotary_options draw_rotary(unsigned *state)
{
    return (sl_rotary_options){.kind = (sl_rotary_kind)test_draw(state, SL_ROTARY_DEFAULT,
                                                                 SL_ROTARY_LLAMA3),
                               .theta = test_draw(state, 50, 5000),
                               .factor = 4,
                               .low_freq_factor = 1,
                               .high_freq_factor = 4,
                               .original_positions = 8};
}

static void draw_llama(unsigned *state, sl_model_options *out)
{
    sl_decoder_options *decoder = &out->decoder;
    decoder->head_width = 2 * test_draw(state, 1, 5);
    decoder->rotary = draw_rotary(state);
    decoder->qk_norm = out->family == SL_FAMILY_QWEN3;
    decoder->output_bias = out->family != SL_FAMILY_QWEN2 && test_draw(state, 0, 1);
    decoder->qkv_bias = decoder->output_bias || out->family == SL_FAMILY_QWEN2;
    if (out->family == SL_FAMILY_SMOLLM3)
        decoder->no_rope_interval = test_draw(state, 2, 4);
    out->emsize = test_draw(state, 2, 20);
}

sl_model_options draw_decoder(unsigned *state, int layers, int classes, int positions)
{
    int keys = test_draw(state, 1, 2), heads = keys * test_draw(state, 1, 3);
    sl_model_options drawn = {
        .family = (sl_family)test_draw(state, SL_FAMILY_GPT2, SL_FAMILY_SMOLLM3),
        .ntokens = classes,
        .nhid = test_draw(state, 1, 30),
        .nlayers = layers,
        .nhead = heads,
        .dropout = 0.2f,
        .pre_norm = true,
        .tie = test_draw(state, 0, 1),
        .decoder = {.key_heads = keys, .positions = positions, .norm_eps = 1e-5, .deviation = 0.1}};
    if (drawn.family != SL_FAMILY_GPT2) {
        draw_llama(state, &drawn);
        return drawn;
    }
    drawn.activation = (sl_activation)test_draw(state, SL_ACTIVATION_RELU, SL_ACTIVATION_GELU_TANH);
    drawn.emsize = heads * test_draw(state, 1, 5);
    drawn.decoder.key_heads = 0;
    drawn.decoder.qkv_bias = drawn.decoder.output_bias = true;
    return drawn;
}

sl_module *new_language_model(int classes, int width, int variant, sl_mask mask)
{
    const sl_model_options options = {.ntokens = classes,
                                      .emsize = width,
                                      .nhid = 12,
                                      .nlayers = 2,
                                      .nhead = 2,
                                      .dropout = 0.2f,
                                      .mask = mask,
                                      .pre_norm = variant & 1,
                                      .activation =
                                          variant & 2 ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU};
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options, &model));
    return model;
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
    SCOPED(sl_pass) *pass = new_pass(one, device, false, first_sample);
    check_ok(sl_module_forward(one->module, pass, in, &out));
    assert_int_equal(sli_pass_depth(pass), 0);
    return out;
}

void check_module(const module_case *one)
{
    check_ok(sl_module_check(one->module, &(sl_module_check_options){.input = one->in,
                                                                     .ids = one->id_count,
                                                                     .training = one->training,
                                                                     .precision = SL_PRECISION_BF16,
                                                                     .seed = SEED}));
}

void check_samples_are_independent(const module_case *one)
{
    SCOPED(sl_device) *device = NULL;
    check_ok(sl_device_create_cpu(1, &device));
    SCOPED(sl_parameter_set) *set = random_parameters(one->module, device);
    SCOPED(sl_tensor) *in = case_input(one, device), *whole = run_forward(one, device, in, 0);
    int64_t samples = one->in.size[0], row = sl_tensor_count(whole) / samples;
    float *expected = tensor_values(whole);
    for (int64_t first = 0; first < samples; first++) {
        SCOPED(sl_tensor) *part_in = NULL;
        check_ok(sli_tensor_narrow(in, first, 1, &part_in));
        SCOPED(sl_tensor) *part = run_forward(one, device, part_in, first);
        float *values = tensor_values(part);
        assert_int_equal(sl_tensor_count(part), row);
        assert_true(relative_distance(values, expected + first * row, row) < 1e-5);
        free(values);
    }
    free(expected);
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
        SCOPED(sl_tensor) *saved = NULL;
        SL_TRY(sl_pass_pop(pass, &saved));
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
