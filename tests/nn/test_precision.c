/* Layers in bf16 against the same layers in f32: outputs and gradients within rounding, the same
 * bits for backward at once and in halves, and half the bytes kept. (parity/layers compares with
 * PyTorch in double precision.) */
#include "device/device_base.h"
#include "nn/loss.h"
#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/loss.h"
#include "support/check.h"
#include "support/modules.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, TIME = 18, WIDTH = 48, HIDDEN = 80, TOKENS = 300, MOST_ARRAYS = 24 };

/* Relative to the norm of the f32 result. bf16 has 8 bits, so one rounding is off by 2^-9 at most.
 */
static const double OUTPUT_BOUND = 1e-2, GRADIENT_BOUND = 2e-2;

/* What a layer gives: its output, the input's gradient, and each parameter's. */
typedef struct results {
    float *arrays[MOST_ARRAYS];
    int64_t counts[MOST_ARRAYS];
    int count;
    int64_t saved_bytes, deferred_bytes;
} results;

static void add_result(results *r, const sl_tensor *tensor)
{
    assert_int_equal(sl_tensor_dtype(tensor), SL_F32);
    assert_true(r->count < MOST_ARRAYS);
    r->counts[r->count] = sl_tensor_count(tensor);
    r->arrays[r->count++] = tensor_values(tensor);
}

static void add_gradients(results *r, sl_parameter_set *set)
{
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(set, i);
        if (sl_parameter_get_kind(parameter) == SL_PARAMETER_TRAINED)
            add_result(r, gradient_of(parameter));
    }
}

static void free_results(results *r)
{
    for (int i = 0; i < r->count; i++)
        free(r->arrays[i]);
}

/* Parameters of random values, the same in both precisions. */
static sl_parameter_set *parameters_of(sl_module *module, sl_device *device, sl_precision precision)
{
    sl_parameter_set *set;
    const sl_parameter_set_options options = {.device = device, .seed = 3, .precision = precision};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        sl_tensor *value = sl_parameter_value(sl_parameter_set_get(set, i));
        SCOPED(sl_tensor) *noise = random_tensor(device, sl_tensor_shape(value), 50 + (uint64_t)i);
        for (int64_t k = 0; k < sl_tensor_count(value); k++)
            sl_tensor_f32(value)[k] += 0.1f * sl_tensor_f32(noise)[k];
    }
    check_ok(sli_parameter_set_convert(set));
    return set;
}

/* Moves every second ReLU's inputs above 0 and the others below, so far that bf16 sees them there
 * as well: elsewhere a whole gradient comes or goes. */
static void clear_kinks(sl_parameter_set *set)
{
    for (int i = 0; i < sl_parameter_set_count(set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(set, i);
        sl_tensor *value = sl_parameter_value(parameter);
        if (strcmp(sl_parameter_name(parameter), "linear1.bias") == 0)
            for (int64_t k = 0; k < sl_tensor_count(value); k++)
                sl_tensor_f32(value)[k] += k % 2 ? -3 : 3;
    }
    check_ok(sli_parameter_set_convert(set));
}

static sl_tensor *input_of(const module_case *one, sl_device *device)
{
    int32_t ids[ROWS * TIME];
    if (one->id_count == 0)
        return random_tensor(device, &one->in, 7);
    for (int i = 0; i < ROWS * TIME; i++)
        ids[i] = i * i % one->id_count;
    return integer_tensor(device, &one->in, ids);
}

static void run_layer(const module_case *one, bool has_relu, sl_device *device,
                      sl_precision precision, bool halves, results *out)
{
    sl_pass *pass;
    sl_tensor *result, *grad_in = NULL, *in = input_of(one, device);
    sl_parameter_set *set = parameters_of(one->module, device, precision);
    if (has_relu)
        clear_kinks(set);
    const sl_pass_options options = {.device = device,
                                     .training = one->training,
                                     .keep = true,
                                     .seed = 5,
                                     .precision = precision};
    *out = (results){.count = 0};
    check_ok(sl_pass_create(&options, &pass));
    check_ok(sl_module_forward(one->module, pass, in, &result));
    out->saved_bytes = sli_pass_bytes(pass);
    add_result(out, result);
    sl_tensor *grad = random_tensor(device, sl_tensor_shape(result), 9);
    check_ok((halves
                  ? sli_module_backward_input
                  : sl_module_backward)(one->module, pass, grad, one->id_count ? NULL : &grad_in));
    out->deferred_bytes = sli_pass_bytes(pass);
    if (halves)
        check_ok(sli_module_backward_weight(one->module, pass));
    assert_int_equal(sli_pass_depth(pass) + sli_pass_deferred(pass), 0);
    if (grad_in)
        add_result(out, grad_in);
    add_gradients(out, set);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&result);
    sl_tensor_destroy(&grad);
    sl_tensor_destroy(&grad_in);
    sl_pass_destroy(&pass);
    sl_parameter_set_destroy(&set);
}

static void check_near(const char *what, const results *got, const results *expected)
{
    assert_int_equal(got->count, expected->count);
    for (int i = 0; i < got->count; i++) {
        double off = relative_distance(got->arrays[i], expected->arrays[i], got->counts[i]);
        if (!(off <= (i == 0 ? OUTPUT_BOUND : GRADIENT_BOUND)))
            fail_msg("%s: result %d is off by %g", what, i, off);
    }
}

static void check_same(const char *what, const results *one, const results *other)
{
    assert_int_equal(one->count, other->count);
    for (int i = 0; i < one->count; i++)
        if (memcmp(one->arrays[i], other->arrays[i], (size_t)one->counts[i] * sizeof(float)) != 0)
            fail_msg("%s: result %d has other bits in halves", what, i);
}

/* Products of bf16 by the processor where it has them, and by widening to f32. */
enum { WAYS = 2 };

static sl_device *create_device(int way)
{
    sl_device *device = new_device(2);
    device->has_bf16 = device->has_bf16 && way == 0;
    return device;
}

static void check_layer_in(sl_device *device, const char *what, module_case one, bool has_relu)
{
    results exact, rounded, halves;
    run_layer(&one, has_relu, device, SL_PRECISION_F32, false, &exact);
    run_layer(&one, has_relu, device, SL_PRECISION_BF16, false, &rounded);
    run_layer(&one, has_relu, device, SL_PRECISION_BF16, true, &halves);
    check_near(what, &rounded, &exact);
    check_same(what, &rounded, &halves);
    if (one.id_count == 0 && !((double)rounded.saved_bytes <= 0.55 * (double)exact.saved_bytes))
        fail_msg("%s: saves %d bytes, in f32 %d", what, (int)rounded.saved_bytes,
                 (int)exact.saved_bytes);
    free_results(&exact);
    free_results(&rounded);
    free_results(&halves);
    assert_int_equal(device_bytes(device), 0);
    sl_device_destroy(&device);
}

/* Takes the module. */
static void check_layer(const char *what, module_case one, bool has_relu)
{
    for (int way = 0; way < WAYS; way++)
        check_layer_in(create_device(way), what, one, has_relu);
    sl_module_destroy(&one.module);
}

static void layers_in_bf16_agree_with_f32(void **state)
{
    const sl_shape in = sl_shape_3d(ROWS, TIME, WIDTH), ids = sl_shape_2d(ROWS, TIME);
    sl_module *module = new_linear(WIDTH, HIDDEN);
    check_layer("linear", (module_case){.module = module, .in = in}, false);
    check_ok(sl_layer_norm_create(WIDTH, 0, &module));
    check_layer("layer norm", (module_case){.module = module, .in = in}, false);
    check_ok(sl_rms_norm_create(WIDTH, 0, &module));
    check_layer("RMSNorm", (module_case){.module = module, .in = in}, false);
    check_ok(sl_activation_create(SL_ACTIVATION_GELU, &module));
    check_layer("gelu", (module_case){.module = module, .in = in}, false);
    check_ok(sl_self_attention_create(WIDTH, 3, 0.2f, SL_MASK_CAUSAL, &module));
    check_layer("attention", (module_case){.module = module, .in = in, .training = true}, false);
    check_ok(sl_embedding_create(
        &(sl_embedding_options){.ntokens = TOKENS, .width = WIDTH, .dropout = 0.2f}, &module));
    check_layer("embedding",
                (module_case){.module = module, .in = ids, .id_count = TOKENS, .training = true},
                false);
}

static void encoder_layers_in_bf16_agree_with_f32(void **state)
{
    const sl_shape in = sl_shape_3d(ROWS, TIME, WIDTH);
    for (int which = 0; which < 8; which++) {
        char what[64];
        sl_module *module;
        const sl_encoder_layer_options options = {.width = WIDTH,
                                                  .heads = 3,
                                                  .feed_forward = HIDDEN,
                                                  .dropout = which & 1 ? 0.2f : 0,
                                                  .mask = which & 1 ? SL_MASK_CAUSAL : SL_MASK_NONE,
                                                  .activation = which & 2 ? SL_ACTIVATION_GELU
                                                                          : SL_ACTIVATION_RELU,
                                                  .pre_norm = which & 4};
        snprintf(what, sizeof what, "encoder layer %d", which);
        check_ok(sl_encoder_layer_create(&options, &module));
        check_layer(what, (module_case){.module = module, .in = in, .training = true},
                    !(which & 2));
    }
}

enum { MOST_ROWS = 300 };
typedef struct decoder_case {
    int rows, width, tokens;
} decoder_case;

/* The loss works through the decoder, whose input comes in bf16. */
static void run_loss(const decoder_case *one, sl_device *device, sl_precision precision,
                     bool halves, results *out)
{
    int32_t ids[MOST_ROWS];
    double losses[MOST_ROWS];
    float float_losses[MOST_ROWS];
    const sl_shape in_shape = sl_shape_2d(one->rows, one->width), rows = sl_shape_1d(one->rows);
    for (int i = 0; i < one->rows; i++)
        ids[i] = 7 * i % one->tokens;
    sl_module *decoder;
    sl_loss *loss = new_cross_entropy();
    sl_pass *pass;
    check_ok(sl_decoder_create(one->width, one->tokens, &decoder));
    const sl_pass_options options = {.device = device, .keep = true, .precision = precision};
    check_ok(sl_pass_create(&options, &pass));
    sl_parameter_set *set = parameters_of(decoder, device, precision);
    sl_tensor *wide = random_tensor(device, &in_shape, 7), *in = NULL, *grad = NULL;
    sl_tensor *targets = integer_tensor(device, &rows, ids);
    if (precision == SL_PRECISION_BF16)
        check_ok(sli_tensor_as(wide, SL_BF16, SL_MEMORY_ACTIVATIONS, &in));
    sl_loss_call call = {.device = device,
                         .last = decoder,
                         .in = in ? in : wide,
                         .targets = targets,
                         .scale = 1.0 / one->rows,
                         .row_losses = losses,
                         .grad_in = &grad,
                         .pass = halves ? pass : NULL};
    *out = (results){.count = 0};
    check_ok(sl_loss_apply(loss, &call));
    out->deferred_bytes = sli_pass_bytes(pass);
    if (halves)
        check_ok(sli_loss_backward_weight(loss, decoder, pass));
    for (int i = 0; i < one->rows; i++)
        float_losses[i] = (float)losses[i];
    sl_tensor *loss_sums = float_tensor(device, &rows, float_losses);
    add_result(out, loss_sums);
    assert_int_equal(sl_tensor_dtype(grad), in ? SL_BF16 : SL_F32);
    sl_tensor *grad_f32 = grad;
    if (in)
        check_ok(sli_tensor_as(grad, SL_F32, SL_MEMORY_ACTIVATIONS, &grad_f32));
    add_result(out, grad_f32);
    add_gradients(out, set);
    if (in)
        sl_tensor_destroy(&grad_f32);
    sl_tensor_destroy(&loss_sums);
    sl_tensor_destroy(&grad);
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&wide);
    sl_tensor_destroy(&targets);
    sl_pass_destroy(&pass);
    sl_parameter_set_destroy(&set);
    sl_loss_destroy(&loss);
    sl_module_destroy(&decoder);
}

static void check_loss_in(sl_device *device, const decoder_case *one)
{
    results exact, rounded, halves, exact_halves;
    run_loss(one, device, SL_PRECISION_F32, false, &exact);
    run_loss(one, device, SL_PRECISION_F32, true, &exact_halves);
    run_loss(one, device, SL_PRECISION_BF16, false, &rounded);
    run_loss(one, device, SL_PRECISION_BF16, true, &halves);
    check_near("loss", &rounded, &exact);
    check_same("loss", &rounded, &halves);
    assert_int_equal(2 * halves.deferred_bytes, exact_halves.deferred_bytes);
    free_results(&exact);
    free_results(&exact_halves);
    free_results(&rounded);
    free_results(&halves);
    assert_int_equal(device_bytes(device), 0);
    sl_device_destroy(&device);
}

static void check_loss(const decoder_case *one)
{
    for (int way = 0; way < WAYS; way++)
        check_loss_in(create_device(way), one);
}

static void cross_entropy_behind_a_decoder_in_bf16_agrees_with_f32(void **state)
{
    check_loss(&(decoder_case){ROWS * TIME, WIDTH, TOKENS});
}

/* Two panels of 150 rows, each of two strips. */
static void cross_entropy_in_bf16_panels_agrees_with_f32(void **state)
{
    check_loss(&(decoder_case){MOST_ROWS, 4, 140000});
}

/* What modules of a sequential pass on is bf16, where a pipe may cut it. */
static void outputs_between_modules_are_bf16(void **state)
{
    const sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *model = NULL;
    sl_module *layer;
    sl_tensor *middle, *out, *grad_middle, *grad_in;
    for (int i = 0; i < 2; i++)
        check_ok(
            sl_sequential_append(&model, sl_linear_create(WIDTH, WIDTH, false, &layer), &layer));
    SCOPED(sl_parameter_set) *set = parameters_of(model, device, SL_PRECISION_BF16);
    SCOPED(sl_pass) *pass = NULL;
    check_ok(sl_pass_create(
        &(sl_pass_options){.device = device, .keep = true, .precision = SL_PRECISION_BF16}, &pass));
    sl_tensor *in = random_tensor(device, &shape, 1), *grad = random_tensor(device, &shape, 2);
    check_ok(sl_module_forward(sl_module_child(model, 0), pass, in, &middle));
    check_ok(sl_module_forward(sl_module_child(model, 1), pass, middle, &out));
    check_ok(sl_module_backward(sl_module_child(model, 1), pass, grad, &grad_middle));
    check_ok(sl_module_backward(sl_module_child(model, 0), pass, grad_middle, &grad_in));
    assert_int_equal(sl_tensor_dtype(middle), SL_BF16);
    assert_int_equal(sl_tensor_dtype(out), SL_F32);
    assert_int_equal(sl_tensor_dtype(grad_middle), SL_BF16);
    assert_int_equal(sl_tensor_dtype(grad_in), SL_F32);
    sl_tensor *all[] = {in, middle, out, grad, grad_middle, grad_in};
    for (int i = 0; i < 6; i++)
        sl_tensor_destroy(&all[i]);
}

/* ---- What attention rounds ------------------------------------------------------------------ */

enum { HEAD = 4 };

/* The output's first element at the second of two positions, e0 and e1 + e2, of one head with these
 * first two rows of the weights of q, k and v. 1 + 1/512 is the sum of two products, and 1 in bf16.
 */
static float attend(sl_precision precision, const float rows[3][2][HEAD])
{
    static const float inputs[2][HEAD] = {{1, 0, 0, 0}, {0, 1, 1, 0}};
    float in_proj[3][HEAD][HEAD] = {{{0}}}, out_proj[HEAD][HEAD] = {{0}}, zeros[3 * HEAD] = {0};
    const float *const values[] = {&in_proj[0][0][0], zeros, &out_proj[0][0], zeros};
    const sl_shape shape = sl_shape_3d(1, 2, HEAD);
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *out = NULL;
    for (int matrix = 0; matrix < 3; matrix++)
        memcpy(in_proj[matrix], rows[matrix], sizeof rows[matrix]);
    for (int i = 0; i < HEAD; i++)
        out_proj[i][i] = 1;
    check_ok(sl_self_attention_create(HEAD, 1, 0, SL_MASK_NONE, &module));
    check_ok(sl_parameter_set_create(
        module, 0, 0,
        &(sl_parameter_set_options){.device = device, .precision = precision, .no_gradients = true},
        &set));
    for (int i = 0; i < 4; i++)
        check_ok(sl_tensor_write(sl_parameter_value(sl_parameter_set_get(set, i)), values[i]));
    check_ok(sli_parameter_set_convert(set));
    check_ok(sl_pass_create(&(sl_pass_options){.device = device, .precision = precision}, &pass));
    SCOPED(sl_tensor) *in = float_tensor(device, &shape, &inputs[0][0]);
    check_ok(sl_module_forward(module, pass, in, &out));
    float result = sl_tensor_f32(out)[HEAD];
    return result;
}

/* Where q, k and v are rounded, the scores of both positions are equal, and the values are 1 and
 * -1. */
static void attention_in_bf16_rounds_queries_keys_and_values(void **state)
{
    static const float tiny = 1.0f / 512;
    static const struct {
        float rows[3][2][HEAD];
        float rounded;
    } cases[] = {
        {{{{1, 1, tiny}, {-1, -1}}, {{0, 128}, {0, 128}}, {{0, 1}}}, 0.5f},
        {{{{128, 128}}, {{1, 1, tiny}}, {{0, 1}}}, 0.5f},
        {{{{0}}, {{0}}, {{-1, 1, tiny}}}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_float_equal(attend(SL_PRECISION_BF16, cases[i].rows), cases[i].rounded, 1e-5);
        assert_true(attend(SL_PRECISION_F32, cases[i].rows) > cases[i].rounded + 5e-4f);
    }
}

/* A device may round more than the layer does: it is told of bf16 by a flag. */
typedef struct listening_device {
    sli_device_ops ops; /* first: a device points to it */
    const sli_device_ops *real;
    int calls, in_bf16; /* of attention, forward and backward */
} listening_device;

static listening_device *listener_of(sl_device *device, bool bf16)
{
    listening_device *listener = (listening_device *)device->ops;
    listener->calls++;
    listener->in_bf16 += bf16;
    return listener;
}

static sl_status hear_attention(sl_device *device, const sli_attention *arguments)
{
    return listener_of(device, arguments->bf16)->real->attention(device, arguments);
}

static sl_status hear_attention_backward(sl_device *device, const sli_attention_backward *arguments)
{
    return listener_of(device, arguments->bf16)->real->attention_backward(device, arguments);
}

static void devices_are_told_that_attention_is_in_bf16(void **state)
{
    const sl_shape shape = sl_shape_3d(2, 3, HEAD);
    for (sl_precision precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++) {
        SCOPED(sl_device) *device = new_device(1);
        sl_module *module;
        sl_tensor *out;
        sl_pass *pass;
        listening_device listener = {.ops = *device->ops, .real = device->ops};
        listener.ops.attention = hear_attention;
        listener.ops.attention_backward = hear_attention_backward;
        device->ops = &listener.ops;
        check_ok(sl_self_attention_create(HEAD, 2, 0, SL_MASK_CAUSAL, &module));
        sl_parameter_set *set = parameters_of(module, device, precision);
        check_ok(sl_pass_create(
            &(sl_pass_options){.device = device, .keep = true, .precision = precision}, &pass));
        sl_tensor *in = random_tensor(device, &shape, 1);
        check_ok(sl_module_forward(module, pass, in, &out));
        check_ok(sl_module_backward(module, pass, out, NULL));
        assert_int_equal(listener.calls, 2);
        assert_int_equal(listener.in_bf16, precision == SL_PRECISION_BF16 ? 2 : 0);
        sl_tensor_destroy(&in);
        sl_tensor_destroy(&out);
        sl_pass_destroy(&pass);
        sl_parameter_set_destroy(&set);
        sl_module_destroy(&module);
        device->ops = listener.real;
    }
}

static void a_cpu_refuses_tf32(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    sl_parameter_set *set;
    SCOPED(sl_module) *module = new_linear(4, 3);
    const sl_parameter_set_options options = {.device = device, .precision = SL_PRECISION_TF32};
    check_error(sl_parameter_set_create(module, 0, 0, &options, &set), SL_ERR_UNSUPPORTED,
                "cpu has no products in tf32: use f32 or bf16, or GPUs for all stages");
    assert_null(set);
    assert_false(sli_device_has_tf32(device));
}

int precision_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_in_bf16_agree_with_f32),
        cmocka_unit_test(encoder_layers_in_bf16_agree_with_f32),
        cmocka_unit_test(cross_entropy_behind_a_decoder_in_bf16_agrees_with_f32),
        cmocka_unit_test(cross_entropy_in_bf16_panels_agrees_with_f32),
        cmocka_unit_test(outputs_between_modules_are_bf16),
        cmocka_unit_test(attention_in_bf16_rounds_queries_keys_and_values),
        cmocka_unit_test(devices_are_told_that_attention_is_in_bf16),
        cmocka_unit_test(a_cpu_refuses_tf32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
