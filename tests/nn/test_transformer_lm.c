#include "sluice/model.h"
#include "support/modules.h"

#include <stdio.h>

static void parameters_count_as_in_the_tutorials(void **state)
{
    (void)state;
    const struct {
        sl_model_options options;
        int64_t expected;
    } cases[] = {
        {{.ntokens = 28782, .emsize = 4096, .nhid = 4096, .nlayers = 12, .nhead = 16}, 1444261998},
        {{.ntokens = 28782,
          .emsize = 4096,
          .nhid = 4096,
          .nlayers = 8,
          .nhead = 16,
          .position_is_parameter = true},
         1061924974},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_module *model;
        check_ok(sl_transformer_lm_create(&cases[i].options, &model));
        assert_int_equal(sl_module_child_count(model), cases[i].options.nlayers + 2);
        assert_int_equal(sl_module_parameter_elements(model), cases[i].expected);
        sl_module_destroy(&model);
    }
}

static sl_model_options small(void)
{
    return (sl_model_options){
        .ntokens = 7, .emsize = 4, .nhid = 6, .nlayers = 2, .nhead = 2, .dropout = 0.2f};
}

/* The names of the flat nn.Sequential(Encoder, layers, Decoder). */
static void names_are_those_of_the_flat_sequential(void **state)
{
    (void)state;
    sl_device *device;
    sl_module *model;
    sl_model_options options = small();
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_transformer_lm_create(&options, &model));
    sl_parameter_set *set = random_parameters(model, device);
    assert_int_equal(sl_parameter_set_count(set), 2 + 2 * LAYER_NAMES + 2);
    assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, 0)), "0.pos_encoder.pe");
    assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, 1)), "0.encoder.weight");
    for (int i = 0; i < 2 * LAYER_NAMES; i++) {
        char expected[64];
        snprintf(expected, sizeof expected, "%d.%s", 1 + i / LAYER_NAMES,
                 layer_names[i % LAYER_NAMES]);
        assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, 2 + i)), expected);
    }
    assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, 26)), "3.decoder.weight");
    assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, 27)), "3.decoder.bias");
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&model);
    sl_device_destroy(&device);
}

static void gradients_match_differences(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        sl_module *model;
        sl_model_options options = small();
        options.pre_norm = i;
        options.mask = i ? SL_MASK_NONE : SL_MASK_CAUSAL;
        options.activation = SL_ACTIVATION_GELU; /* differences do not see ReLU's kinks */
        check_ok(sl_transformer_lm_create(&options, &model));
        module_case one = {.module = model,
                           .in = sl_shape_2d(3, 4),
                           .id_count = 7,
                           .training = true};
        check_module(&one);
        check_samples_are_independent(&one);
        sl_module_destroy(&model);
    }
}

static void check_refused(const sl_model_options *options, const char *text)
{
    sl_module *model;
    check_error(sl_transformer_lm_create(options, &model), SL_ERR_INVALID, text);
    assert_null(model);
}

static void impossible_options_are_refused_by_name(void **state)
{
    (void)state;
    sl_model_options options = small();
    options.ntokens = 0;
    check_refused(&options, "ntokens must be 1 to 2147483647, got 0");
    options = small();
    options.nhid = -3;
    check_refused(&options, "nhid must be 1 to 1048576, got -3");
    options = small();
    options.emsize = INT32_MAX - 1;
    check_refused(&options, "emsize must be 1 to 1048576, got 2147483646");
    options = small();
    options.nlayers = 100000;
    check_refused(&options, "nlayers must be 1 to 10000, got 100000");
    options = small();
    options.emsize = 5;
    check_refused(&options, "emsize must be even");
    options = small();
    options.nhead = 3;
    check_refused(&options, "nhead must divide emsize, got nhead 3 and emsize 4");
    options = small();
    options.dropout = 1.0f;
    check_refused(&options, "dropout must be at least 0 and below 1, got 1");
}

int transformer_lm_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_count_as_in_the_tutorials),
        cmocka_unit_test(names_are_those_of_the_flat_sequential),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(impossible_options_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
