#include "nn/loss.h"
#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/loss.h"
#include "support/modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A module that only has parameters "p0", "p1", … of these sizes. */
static const sl_module_ops holder_ops = {.type = "Holder"};

static sl_module *new_holder(const int64_t *sizes, int count, sl_parameter_kind kind)
{
    sl_module *module;
    check_ok(sl_module_create(&holder_ops, NULL, &module));
    for (int i = 0; i < count; i++) {
        char name[16];
        sl_parameter *parameter;
        snprintf(name, sizeof name, "p%d", i);
        sl_parameter_spec spec = {.name = name,
                                  .kind = kind,
                                  .shape = sl_shape_1d(sizes[i]),
                                  .low = (float)(i + 1),
                                  .high = (float)(i + 1)};
        check_ok(sl_module_add_parameter(module, &spec, &parameter));
    }
    return module;
}

static int make_device(void **state)
{
    sl_device *device = new_device(1);
    *state = device;
    return 0;
}

/* No test leaves memory behind. */
static int free_device(void **state)
{
    SCOPED(sl_device) *device = *state;
    assert_int_equal(device_bytes(device), 0);
    return 0;
}

/* ---- Buckets ---------------------------------------------------------------------------- */

typedef struct bucket_case {
    int64_t sizes[6]; /* of the parameters, as registered */
    int count;
    int64_t first_limit, limit;
    int64_t padded[6]; /* elements of each bucket */
    int bucket_count;
} bucket_case;

static void check_buckets(sl_device *device, const bucket_case *one)
{
    SCOPED(sl_module) *module = new_holder(one->sizes, one->count, SL_PARAMETER_TRAINED);
    SCOPED(sl_parameter_set) *set = NULL;
    sl_parameter_set_options options = {.device = device,
                                        .first_bucket_bytes = one->first_limit,
                                        .bucket_bytes = one->limit};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    assert_int_equal(sl_parameter_set_bucket_count(set), one->bucket_count);
    for (int i = 0; i < one->bucket_count; i++) {
        assert_int_equal(sl_tensor_count(sl_parameter_set_bucket_values(set, i)), one->padded[i]);
        assert_int_equal(sl_tensor_count(bucket_gradients(set, i)), one->padded[i]);
    }
}

/* The cases of PyTorch's _compute_bucket_assignment_by_size, registered in reverse. Limits are for
 * the parameters' own bytes: 100 floats are 400 bytes, and lie in 112 floats. */
static void buckets_close_when_they_reach_the_limit(void **state)
{
    const bucket_case cases[] = {
        {{50, 100, 200, 100}, 4, 400, 400, {112, 208, 112, 64}, 4},
        {{10, 10, 10, 10}, 4, 40, 80, {16, 32, 16}, 3},
        {{3, 5}, 2, 1 << 20, 1 << 20, {32}, 1},
        {{16}, 1, 1, 1, {16}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_buckets(*state, &cases[i]);
}

static void bucket_limits_are_1_and_25_mib_unless_given(void **state)
{
    const int64_t mib = (1 << 20) / 4;
    const bucket_case one = {{1, 1, 25 * mib - 2, mib, 1, mib - 1}, 6, 0, 0, {0}, 0};
    SCOPED(sl_module) *module = new_holder(one.sizes, one.count, SL_PARAMETER_TRAINED);
    SCOPED(sl_parameter_set) *set = NULL;
    sl_parameter_set_options options = {.device = *state, .no_init = true};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    assert_int_equal(sl_parameter_set_bucket_count(set), 3);
    assert_int_equal(sl_tensor_count(sl_parameter_set_bucket_values(set, 0)), mib + 16);
    assert_int_equal(sl_tensor_count(sl_parameter_set_bucket_values(set, 1)), 26 * mib);
    assert_int_equal(sl_tensor_count(sl_parameter_set_bucket_values(set, 2)), 32);
}

static void without_gradients_in_bf16_each_parameter_is_alone_in_a_bucket(void **state)
{
    const int64_t sizes[] = {3, 17, 16};
    SCOPED(sl_module) *module = new_holder(sizes, 3, SL_PARAMETER_TRAINED);
    SCOPED(sl_parameter_set) *set = NULL;
    sl_parameter_set_options options = {.device = *state,
                                        .no_gradients = true,
                                        .precision = SL_PRECISION_BF16};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    assert_int_equal(sl_parameter_set_bucket_count(set), 3);
    for (int i = 0; i < 3; i++) {
        const sl_tensor *values = sl_parameter_set_bucket_values(set, i);
        assert_int_equal(sl_tensor_count(values), sizes[2 - i]);
        assert_ptr_equal(sl_tensor_data(values),
                         sl_tensor_data(sl_parameter_value(sl_parameter_set_get(set, 2 - i))));
        assert_null(bucket_gradients(set, i));
    }
}

static void buckets_hold_parameters_in_reverse_with_zeros_between(void **state)
{
    const int64_t sizes[] = {3, 17, 16};
    SCOPED(sl_module) *module = new_holder(sizes, 3, SL_PARAMETER_TRAINED);
    SCOPED(sl_parameter_set) *set = NULL;
    sl_parameter_set_options options = {.device = *state};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    const float *values = sl_tensor_f32(sl_parameter_set_bucket_values(set, 0));
    const float *grads = sl_tensor_f32(bucket_gradients(set, 0));
    assert_int_equal(sl_tensor_count(sl_parameter_set_bucket_values(set, 0)), 16 + 32 + 16);
    for (int i = 0; i < 64; i++) {
        float expected = i < 16 ? 3.0f : i < 16 + 17 ? 2.0f : i >= 48 && i < 51 ? 1.0f : 0.0f;
        assert_float_equal(values[i], expected, 0.0);
        assert_float_equal(grads[i], 0.0, 0.0);
    }
    assert_ptr_equal(sl_tensor_data(sl_parameter_value(sl_parameter_set_get(set, 1))), values + 16);
    assert_ptr_equal(sl_tensor_data(gradient_of(sl_parameter_set_get(set, 0))), grads + 48);
}

/* ---- Values ----------------------------------------------------------------------------- */

static float *values_of(sl_parameter_set *set, int parameter)
{
    return tensor_values(sl_parameter_value(sl_parameter_set_get(set, parameter)));
}

static sl_parameter_set *create_set(sl_module *root, int first, int count, sl_device *device,
                                    uint64_t seed)
{
    sl_parameter_set *set;
    sl_parameter_set_options options = {.device = device, .seed = seed};
    check_ok(sl_parameter_set_create(root, first, count, &options, &set));
    return set;
}

static void initial_values_do_not_depend_on_the_cut(void **state)
{
    sl_module *modules[] = {new_linear(5, 7), new_linear(7, 3), new_linear(3, 3)};
    sl_module *model = new_sequential(modules, 3);
    sl_parameter_set *whole = create_set(model, 0, 0, *state, 5);
    assert_int_equal(sl_parameter_set_count(whole), 6);
    float *expected[6];
    for (int i = 0; i < 6; i++)
        expected[i] = values_of(whole, i);
    sl_parameter_set_destroy(&whole);

    sl_parameter_set *first = create_set(model, 0, 1, *state, 5),
                     *second = create_set(model, 1, 2, *state, 5);
    assert_int_equal(sl_parameter_set_count(first), 2);
    assert_string_equal(sl_parameter_name(sl_parameter_set_get(second, 3)), "2.bias");
    for (int i = 0; i < 6; i++) {
        sl_parameter_set *set = i < 2 ? first : second;
        float *values = values_of(set, i < 2 ? i : i - 2);
        const sl_shape *shape = sl_parameter_shape(sl_parameter_set_get(set, i < 2 ? i : i - 2));
        assert_memory_equal(values, expected[i], 4 * (size_t)sl_shape_count(shape));
        free(values);
        free(expected[i]);
    }
    sl_parameter_set_destroy(&first);
    sl_parameter_set_destroy(&second);
    sl_module_destroy(&model);
}

static void initial_values_differ_by_seed_and_parameter(void **state)
{
    sl_module *modules[] = {new_linear(8, 8), new_linear(8, 8)};
    SCOPED(sl_module) *model = new_sequential(modules, 2);
    SCOPED(sl_parameter_set) *set = create_set(model, 0, 0, *state, 1);
    float *first = values_of(set, 0), *other = values_of(set, 2);
    sl_parameter_set_destroy(&set);
    set = create_set(model, 0, 0, *state, 2);
    FREED float *reseeded = values_of(set, 0);
    assert_memory_not_equal(first, other, 64 * 4);
    assert_memory_not_equal(first, reseeded, 64 * 4);
    free(first);
    free(other);
}

static void frozen_parameters_and_buffers_have_values_alone(void **state)
{
    const int64_t sizes[] = {3};
    sl_module *frozen = new_holder(sizes, 1, SL_PARAMETER_FROZEN);
    sl_module *buffer = new_holder(sizes, 1, SL_PARAMETER_BUFFER);
    sl_module *modules[] = {frozen, buffer};
    SCOPED(sl_module) *model = new_sequential(modules, 2);
    SCOPED(sl_parameter_set) *set = create_set(model, 0, 0, *state, 1);
    assert_int_equal(sl_parameter_set_count(set), 2);
    assert_int_equal(sl_parameter_set_bucket_count(set), 0);
    for (int i = 0; i < 2; i++) {
        sl_parameter *parameter = sl_parameter_set_get(set, i);
        float beta, *values = values_of(set, i);
        assert_float_equal(values[2], 1.0, 0.0);
        assert_null(gradient_of(parameter));
        assert_null(sli_parameter_grad_accumulate(parameter, &beta));
        free(values);
    }
}

/* ---- Gradients -------------------------------------------------------------------------- */

static void zero_grad_makes_the_first_contribution_overwrite(void **state)
{
    const int64_t sizes[] = {4};
    SCOPED(sl_module) *module = new_holder(sizes, 1, SL_PARAMETER_TRAINED);
    SCOPED(sl_parameter_set) *set = create_set(module, 0, 0, *state, 1);
    sl_parameter *parameter = sl_parameter_set_get(set, 0);
    float beta, ones[] = {1, 1, 1, 1};
    check_ok(sl_tensor_write(sli_parameter_grad_accumulate(parameter, &beta), ones));
    assert_float_equal(beta, 0.0, 0.0);
    sli_parameter_grad_accumulate(parameter, &beta);
    assert_float_equal(beta, 1.0, 0.0);
    assert_float_equal(sl_tensor_f32(gradient_of(parameter))[3], 1.0, 0.0);

    sl_parameter_set_zero_grad(set);
    assert_float_equal(sl_tensor_f32(bucket_gradients(set, 0))[3], 0.0, 0.0);
    sli_parameter_grad_accumulate(parameter, &beta);
    assert_float_equal(beta, 1.0, 0.0); /* it was zeroed for who looked at it */

    check_ok(sl_tensor_write(gradient_of(parameter), ones));
    sl_parameter_set_zero_grad(set);
    assert_float_equal(sl_tensor_f32(gradient_of(parameter))[0], 0.0, 0.0);
}

/* ---- Memory and mistakes ---------------------------------------------------------------- */

static void memory_is_counted_by_category(void **state)
{
    SCOPED(sl_module) *module = new_linear(10, 30); /* 300 and 30 floats, in 304 and 32 */
    sl_memory_stats before, after;
    sl_device_memory(*state, &before);
    SCOPED(sl_parameter_set) *set = create_set(module, 0, 0, *state, 1);
    sl_device_memory(*state, &after);
    assert_int_equal(after.current_bytes[SL_MEMORY_PARAMETERS], 4 * (304 + 32));
    assert_int_equal(after.current_bytes[SL_MEMORY_GRADIENTS], 4 * (304 + 32));
    assert_int_equal(after.current_total_bytes - before.current_total_bytes, 8 * (304 + 32));
}

static void impossible_sets_are_refused(void **state)
{
    sl_module *modules[] = {new_linear(2, 2), new_linear(2, 2)};
    sl_module *model = new_sequential(modules, 2), *single = new_linear(2, 2);
    sl_parameter_set *set = create_set(model, 0, 1, *state, 1), *other;
    sl_parameter_set_options options = {.device = *state};
    check_error(sl_parameter_set_create(model, 0, 0, &options, &other), SL_ERR_INVALID,
                "parameter 0.weight is in a parameter set already");
    assert_null(other);
    assert_non_null(sl_parameter_value(sl_parameter_set_get(set, 0)));
    check_error(sl_parameter_set_create(model, 1, 2, &options, &other), SL_ERR_INVALID,
                "2 children from child 1 of a sequential of 2");
    check_error(sl_parameter_set_create(single, 0, 1, &options, &other), SL_ERR_INVALID,
                "only a sequential can be divided among sets, got Linear");
    options.bucket_bytes = -1;
    check_error(sl_parameter_set_create(single, 0, 0, &options, &other), SL_ERR_INVALID,
                "must not be negative");
    options.device = NULL;
    check_error(sl_parameter_set_create(single, 0, 0, &options, &other), SL_ERR_INVALID,
                "need a device");
    sl_parameter_set_destroy(&set);
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&model);
    sl_module_destroy(&single);
}

static void impossible_numbers_of_dimensions_are_refused(void **state)
{
    static const int dims[] = {-1, SL_MAX_DIMS + 1};
    SCOPED(sl_module) *module = new_linear(2, 2);
    sl_parameter *parameter;
    for (int i = 0; i < 2; i++) {
        sl_parameter_spec spec = {.name = "late", .shape = {dims[i], {1, 1, 1, 1}}};
        check_error(sl_module_add_parameter(module, &spec, &parameter), SL_ERR_INVALID,
                    i ? "Linear: parameter \"late\" has 0 to 4 dimensions, got 5"
                      : "Linear: parameter \"late\" has 0 to 4 dimensions, got -1");
        assert_null(parameter);
    }
}

/* ---- Layers with frozen parameters ------------------------------------------------------- */

/* Every layer with frozen parameters: the gradient of its input is right, backward_weight has
 * nothing to do, and nothing is deferred to it. */

enum { SAMPLES = 2, TIME = 3, WIDTH = 4 };

static void check_frozen(sl_module *module, int32_t id_count)
{
    check_ok(sl_module_freeze(module));
    module_case one = {.module = module, .id_count = id_count, .training = true};
    one.in = id_count ? sl_shape_2d(SAMPLES, TIME) : sl_shape_3d(SAMPLES, TIME, WIDTH);
    assert_int_equal(sl_module_deferred_bytes(module, &one.in), 0);
    check_module(&one);
    sl_module_destroy(&module);
}

static void frozen_layers_compute_the_inputs_gradient_alone(void **state)
{
    sl_module *module = new_linear(WIDTH, 5);
    check_frozen(module, 0);
    check_ok(sl_layer_norm_create(WIDTH, 0, &module));
    check_frozen(module, 0);
    check_ok(sl_self_attention_create(WIDTH, 2, 0.2f, SL_MASK_CAUSAL, &module));
    check_frozen(module, 0);
    check_ok(sl_decoder_create(WIDTH, 5, &module));
    check_frozen(module, 0);
    check_ok(sl_embedding_create(&(sl_embedding_options){.ntokens = 7, .width = WIDTH}, &module));
    check_frozen(module, 7);
}

static void frozen_encoder_layers_compute_the_inputs_gradient_alone(void **state)
{
    for (int which = 0; which < 4; which++) {
        const sl_encoder_layer_options options = {.width = WIDTH,
                                                  .heads = 2,
                                                  .feed_forward = 6,
                                                  .dropout = 0.2f,
                                                  .activation = (sl_activation)(which % 2),
                                                  .pre_norm = which / 2};
        sl_module *module;
        check_ok(sl_encoder_layer_create(&options, &module));
        check_frozen(module, 0);
    }
}

/* The attention is frozen, the rest of its layer is not. */
static void layer_may_be_frozen_in_part(void **state)
{
    const sl_encoder_layer_options options = {.width = WIDTH, .heads = 2, .feed_forward = 6};
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_encoder_layer_create(&options, &module));
    check_ok(sl_module_freeze(sl_module_child(module, 0)));
    check_module(&(module_case){.module = module, .in = sl_shape_3d(SAMPLES, TIME, WIDTH)});
}

/* A frozen decoder that the loss takes over: the gradient of its input is that of a trained one. */
static void loss_takes_over_a_frozen_decoder(void **state)
{
    enum { ROWS = 6, CLASSES = 5 };
    float *grads[2];
    sl_shape in_shape = sl_shape_2d(ROWS, WIDTH), shape = sl_shape_1d(ROWS);
    for (int frozen = 0; frozen < 2; frozen++) {
        sl_device *device = new_device(1);
        sl_module *decoder;
        sl_loss *loss = new_cross_entropy();
        sl_pass *pass;
        sl_parameter_set *set;
        check_ok(sl_decoder_create(WIDTH, CLASSES, &decoder));
        check_ok(
            sl_pass_create(&(sl_pass_options){.device = device, .training = true, .keep = true},
                           &pass));
        if (frozen)
            check_ok(sl_module_freeze(decoder));
        check_ok(sl_parameter_set_create(decoder, 0, 0,
                                         &(sl_parameter_set_options){.device = device, .seed = 1},
                                         &set));
        sl_tensor *in = random_tensor(device, &in_shape, 1), *grad_in;
        sl_tensor *targets = integer_tensor(device, &shape, (int32_t[]){0, 1, 2, 3, 4, 0});
        double row_losses[ROWS];
        sl_loss_call call = {.device = device,
                             .last = decoder,
                             .in = in,
                             .targets = targets,
                             .scale = 1,
                             .row_losses = row_losses,
                             .grad_in = &grad_in,
                             .pass = pass};
        check_ok(sl_loss_apply(loss, &call));
        assert_int_equal(sli_pass_bytes(pass), sl_module_deferred_bytes(decoder, &in_shape));
        assert_true((sli_pass_bytes(pass) == 0) == frozen);
        check_ok(sli_loss_backward_weight(loss, decoder, pass));
        grads[frozen] = tensor_values(grad_in);
        sl_tensor_destroy(&grad_in);
        sl_tensor_destroy(&in);
        sl_tensor_destroy(&targets);
        sl_pass_destroy(&pass);
        sl_parameter_set_destroy(&set);
        sl_loss_destroy(&loss);
        sl_module_destroy(&decoder);
        sl_device_destroy(&device);
    }
    assert_memory_equal(grads[0], grads[1], ROWS * WIDTH * sizeof(float));
    free(grads[0]);
    free(grads[1]);
}

int parameter_set_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_device, free_device)
    const struct CMUnitTest tests[] = {
        TEST(buckets_close_when_they_reach_the_limit),
        TEST(bucket_limits_are_1_and_25_mib_unless_given),
        TEST(without_gradients_in_bf16_each_parameter_is_alone_in_a_bucket),
        TEST(buckets_hold_parameters_in_reverse_with_zeros_between),
        TEST(initial_values_do_not_depend_on_the_cut),
        TEST(initial_values_differ_by_seed_and_parameter),
        TEST(frozen_parameters_and_buffers_have_values_alone),
        TEST(zero_grad_makes_the_first_contribution_overwrite),
        TEST(memory_is_counted_by_category),
        TEST(impossible_sets_are_refused),
        cmocka_unit_test(impossible_numbers_of_dimensions_are_refused),
        cmocka_unit_test(frozen_layers_compute_the_inputs_gradient_alone),
        cmocka_unit_test(frozen_encoder_layers_compute_the_inputs_gradient_alone),
        cmocka_unit_test(layer_may_be_frozen_in_part),
        cmocka_unit_test(loss_takes_over_a_frozen_decoder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
