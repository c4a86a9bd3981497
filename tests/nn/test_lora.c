/* Low-rank adapters of products, with the weight frozen and trained: what they add, and its
 * gradients by differences. */
#include "nn/layers.h"
#include "nn/module.h"
#include "sluice/model.h"
#include "support/modules.h"

#include <math.h>
#include <stdio.h>

static const float scale = 1.5f;

static void adapt(sl_module *module, int64_t rank, float dropout)
{
    int children = sl_module_child_count(module);
    if (sli_module_as_linear(module)) {
        check_ok(sli_linear_add_lora(module, rank, scale, dropout));
        return;
    }
    for (int i = 0; i < children; i++)
        adapt(sl_module_child(module, i), rank, dropout);
}

/* Llama's layer, with adapters of all its products. */
static sl_module *new_layer(sl_naming naming, float dropout, bool frozen)
{
    sl_module *layer;
    check_ok(sl_decoder_layer_create(
        &(sl_decoder_layer_options){.naming = naming,
                                    .width = 8,
                                    .heads = 2,
                                    .key_heads = naming == SL_NAMING_LLAMA ? 1 : 2,
                                    .feed_forward = 12,
                                    .activation = SL_ACTIVATION_GELU_TANH,
                                    .qkv_bias = naming == SL_NAMING_GPT2,
                                    .output_bias = naming == SL_NAMING_GPT2},
        &layer));
    if (frozen)
        check_ok(sl_module_freeze(layer));
    adapt(layer, 3, dropout);
    return layer;
}

static void layers_have_the_gradients_of_differences(void **state)
{
    for (int i = 0; i < 8; i++) {
        float dropout = i & 2 ? 0.25f : 0;
        SCOPED(sl_module) *layer =
            new_layer(i & 1 ? SL_NAMING_GPT2 : SL_NAMING_LLAMA, dropout, i & 4);
        module_case one = {.module = layer, .in = sl_shape_3d(2, 3, 8), .training = dropout > 0};
        check_module(&one);
        check_samples_are_independent(&one);
    }
}

/* y - x W^T - bias = scale (x A^T) B^T, summed here in double precision. */
static void an_adapter_adds_its_product(void **state)
{
    enum { ROWS = 3, IN = 5, OUT = 4, RANK = 2 };
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_module) *linear = new_linear(IN, OUT);
    check_ok(sli_linear_add_lora(linear, RANK, scale, 0));
    SCOPED(sl_parameter_set) *set = random_parameters(linear, device);
    sl_shape shape = sl_shape_2d(ROWS, IN);
    SCOPED(sl_tensor) *x = random_tensor(device, &shape, 7), *y = NULL;
    const float *in = sl_tensor_f32(x), *values[4];
    static const char *const names[] = {"weight", "bias", "lora_A.weight", "lora_B.weight"};
    for (int i = 0; i < 4; i++) {
        const sl_parameter *parameter = sl_parameter_set_get(set, i);
        assert_string_equal(sl_parameter_name(parameter), names[i]);
        values[i] = sl_tensor_f32(sl_parameter_value(parameter));
    }
    check_ok(sl_pass_create(&(sl_pass_options){.device = device}, &pass));
    check_ok(sl_module_forward(linear, pass, x, &y));
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++) {
            double expected = values[1][o];
            for (int i = 0; i < IN; i++) {
                double weight = values[0][o * IN + i];
                for (int k = 0; k < RANK; k++)
                    weight += scale * (double)values[3][o * RANK + k] * values[2][k * IN + i];
                expected += weight * in[r * IN + i];
            }
            assert_true(fabs(sl_tensor_f32(y)[r * OUT + o] - expected) < 1e-5);
        }
    assert_int_equal(sl_module_flops(linear, &shape), 2 * ROWS * (IN * OUT + RANK * (IN + OUT)));
}

/* A begins uniform in ±1 / sqrt(in), B with 0: a new adapter changes nothing. */
static void a_new_adapter_adds_nothing(void **state)
{
    enum { WIDTH = 64, RANK = 16 };
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *linear = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    check_ok(sl_linear_create(WIDTH, WIDTH, true, &linear));
    check_ok(sli_linear_add_lora(linear, RANK, scale, 0));
    check_ok(sl_parameter_set_create(linear, 0, 0,
                                     &(sl_parameter_set_options){.device = device, .seed = 3},
                                     &set));
    const float *a = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, 1)));
    const float *b = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, 2)));
    double squares = 0, bound = 1.0 / 8;
    for (int i = 0; i < RANK * WIDTH; i++) {
        assert_true(fabs((double)a[i]) <= bound);
        squares += (double)a[i] * a[i];
        assert_true(b[i] == 0);
    }
    assert_true(fabs(squares / (RANK * WIDTH) / (bound * bound / 3) - 1) < 0.1);
}

/* ---- In a model --------------------------------------------------------------------------- */

static const sl_model_options small_options = {.family = SL_FAMILY_LLAMA,
                                               .ntokens = 7,
                                               .emsize = 8,
                                               .nhid = 12,
                                               .nlayers = 2,
                                               .nhead = 2,
                                               .pre_norm = true,
                                               .decoder = {.key_heads = 1,
                                                           .positions = 8,
                                                           .norm_eps = 1e-5,
                                                           .deviation = 0.02,
                                                           .rotary = {.kind = SL_ROTARY_DEFAULT,
                                                                      .theta = 1e4}},
                                               .lora = {.adapts = true, .rank = 2, .alpha = 4}};

static sl_status create_adapted(const char *targets, sl_module **out)
{
    sl_model_options options = small_options;
    snprintf(options.lora.targets, sizeof options.lora.targets, "%s", targets);
    return sl_transformer_lm_create(&options, out);
}

/* Elements of the adapters, each of rank 2, in two layers. */
static void targets_are_names_or_ends_of_paths(void **state)
{
    static const struct {
        const char *targets;
        int64_t widths;
    } cases[] = {{"", 8 + 8 + 8 + 4},
                 {"q_proj", 8 + 8},
                 {"layers.1.self_attn.q_proj,mlp.down_proj", 12 + 8 + (8 + 8) / 2},
                 {"all-linear", 2 * (8 + 8) + 2 * (8 + 4) + 3 * (8 + 12)}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(sl_module) *model = NULL;
        check_ok(create_adapted(cases[i].targets, &model));
        assert_int_equal(sli_module_elements(model, SL_PARAMETER_TRAINED), 2 * 2 * cases[i].widths);
    }
}

static void the_last_layers_can_have_adapters_alone(void **state)
{
    SCOPED(sl_module) *model = NULL;
    sl_module *none;
    sl_model_options options = small_options;
    options.train_layers = 1;
    check_ok(sl_transformer_lm_create(&options, &model));
    assert_int_equal(sli_module_elements(model, SL_PARAMETER_TRAINED), 2 * (8 + 8 + 8 + 4));
    assert_int_equal(sli_module_frozen_count(model), 2);
    options.train_layers = 3;
    check_error(sl_transformer_lm_create(&options, &none), SL_ERR_INVALID,
                "lora: layers -1 to 1 cannot have adapters: the model has layers 0 to 1");
    options.train_layers = 1;
    check_ok(sl_lora_targets_set(&options.lora, "layers.0.self_attn.q_proj"));
    check_error(sl_transformer_lm_create(&options, &none), SL_ERR_INVALID,
                "lora: none of the layers 1 to 1 has one of the targets layers.0.self_attn.q_proj");
}

static void impossible_adapters_are_refused(void **state)
{
    sl_module *model;
    sl_model_options options = small_options;
    check_error(create_adapted("q_proj,qkv", &model), SL_ERR_INVALID,
                "lora: no layer of the model is called \"qkv\": there are "
                "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj, and all-linear");
    assert_null(model);
    check_error(create_adapted("lm_head", &model), SL_ERR_INVALID,
                "no layer of the model is called \"lm_head\"");
    options.lora.rank = 5;
    check_error(sl_transformer_lm_create(&options, &model), SL_ERR_INVALID,
                "lora: the rank must not be above the widths of model.layers.0.self_attn.v_proj, 8 "
                "in and 4 out, got 5");
    options.lora = (sl_lora_options){.adapts = true, .rank = 2, .alpha = -1};
    check_error(sl_transformer_lm_create(&options, &model), SL_ERR_INVALID,
                "lora: alpha must be above 0, got -1");
    options.lora = (sl_lora_options){.adapts = true, .rank = 2, .alpha = 1};
    options.family = SL_FAMILY_TUTORIALS;
    check_error(sl_transformer_lm_create(&options, &model), SL_ERR_INVALID,
                "lora: adapters are for models of published families");
}

int lora_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_have_the_gradients_of_differences),
        cmocka_unit_test(an_adapter_adds_its_product),
        cmocka_unit_test(a_new_adapter_adds_nothing),
        cmocka_unit_test(targets_are_names_or_ends_of_paths),
        cmocka_unit_test(the_last_layers_can_have_adapters_alone),
        cmocka_unit_test(impossible_adapters_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
