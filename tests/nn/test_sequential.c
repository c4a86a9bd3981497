/* Sequences of modules, and the language model that is one. */
#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/model.h"
#include "support/modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A small language model without its ends, with every kind of layer in it. */
static sl_module *new_model(void)
{
    sl_module *modules[5], *inner[2];
    sl_encoder_layer_options layer = {.width = 4, .heads = 2, .feed_forward = 6, .dropout = 0.1f};
    check_ok(sl_linear_create(3, 4, false, &modules[0]));
    check_ok(sl_activation_create(SL_ACTIVATION_GELU, &inner[0]));
    check_ok(sl_dropout_create(0.2f, &inner[1]));
    modules[1] = new_sequential(inner, 2);
    check_ok(sl_encoder_layer_create(&layer, &modules[2]));
    check_ok(sl_layer_norm_create(4, 0.0f, &modules[3]));
    check_ok(sl_decoder_create(4, 5, &modules[4]));
    return new_sequential(modules, 5);
}

static void gradients_flow_through_all_children(void **state)
{
    SCOPED(sl_module) *model = new_model();
    module_case one = {.module = model, .in = sl_shape_3d(2, 3, 3), .training = true};
    check_module(&one);
    check_samples_are_independent(&one);
}

static void empty_sequential_is_the_identity(void **state)
{
    SCOPED(sl_module) *model = new_sequential(NULL, 0);
    module_case one = {.module = model, .in = sl_shape_3d(2, 3, 3)};
    check_module(&one);
}

static void operations_add_up_and_shapes_follow(void **state)
{
    SCOPED(sl_module) *model = new_model();
    sl_shape in = sl_shape_3d(2, 3, 3), out;
    check_ok(sl_module_output_shape(model, &in, &out));
    assert_int_equal(out.size[2], 5);
    int64_t weights = 3 * 4 + (4 * 4 * 4 + 2 * 4 * 6) + 4 * 5, pairs = 2 * (3 * 4 / 2);
    assert_int_equal(sl_module_flops(model, &in), 2 * 6 * weights + 2 * 2 * pairs * 4);
    in = sl_shape_3d(2, 3, 4);
    check_error(sl_module_output_shape(model, &in, &out), SL_ERR_INVALID, "0 (Linear): the input");
    assert_true(sli_module_is_sequential(model));
    assert_false(sli_module_is_sequential(sl_module_child(model, 0)));
}

/* ---- Appending ---- */

static void count_end(void *state)
{
    ++*(int *)state;
}

static sl_status fail_to_create(sl_module **out)
{
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "the third layer fails");
}

/* Two modules, and one that cannot be created. */
static sl_status append_three(const sl_module_ops *ops, int *ends, sl_module **model)
{
    sl_module *next;
    SL_TRY(sl_sequential_append(model, sl_module_create(ops, ends, &next), &next));
    SL_TRY(sl_sequential_append(model, sl_module_create(ops, ends, &next), &next));
    return sl_sequential_append(model, fail_to_create(&next), &next);
}

static void failure_in_the_middle_frees_what_was_appended(void **state)
{
    static const sl_module_ops ops = {.type = "Counted", .destroy_state = count_end};
    sl_module *model = NULL, *child;
    int ends = 0;
    check_error(append_three(&ops, &ends, &model), SL_ERR_MEMORY, "the third layer fails");
    assert_null(model);
    assert_int_equal(ends, 2);
    check_error(sl_sequential_append(&model, fail_to_create(&child), &child), SL_ERR_MEMORY, "");
    check_ok(sl_module_create(&ops, &ends, &model));
    check_ok(sl_module_append(&model, "fc", sl_module_create(&ops, &ends, &child), &child));
    assert_ptr_equal(sl_module_child(model, 0), child);
    check_error(sl_module_append(&model, "fc", sl_module_create(&ops, &ends, &child), &child),
                SL_ERR_INVALID, "the name \"fc\" is used twice");
    assert_true(!model && !child);
    assert_int_equal(ends, 5);
}

static void appended_modules_have_their_numbers_as_names(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    sl_module *layer;
    for (int i = 0; i < 3; i++)
        check_ok(sl_sequential_append(&model, sl_linear_create(4, 4, false, &layer), &layer));
    check_ok(
        sl_parameter_set_create(model, 0, 0, &(sl_parameter_set_options){.device = device}, &set));
    assert_true(sli_module_is_sequential(model));
    assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, 4)), "2.weight");
}

/* ---- The language model ------------------------------------------------------------------ */

static void parameters_count_as_in_the_tutorials(void **state)
{
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
        SCOPED(sl_module) *model = NULL;
        check_ok(sl_transformer_lm_create(&cases[i].options, &model));
        assert_int_equal(sl_module_child_count(model), cases[i].options.nlayers + 2);
        assert_int_equal(sl_module_parameter_elements(model), cases[i].expected);
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
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *model = NULL;
    sl_model_options options = small();
    check_ok(sl_transformer_lm_create(&options, &model));
    SCOPED(sl_parameter_set) *set = random_parameters(model, device);
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
}

static void gradients_match_differences(void **state)
{
    for (int i = 0; i < 2; i++) {
        SCOPED(sl_module) *model = NULL;
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

int sequential_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_flow_through_all_children),
        cmocka_unit_test(empty_sequential_is_the_identity),
        cmocka_unit_test(operations_add_up_and_shapes_follow),
        cmocka_unit_test(failure_in_the_middle_frees_what_was_appended),
        cmocka_unit_test(appended_modules_have_their_numbers_as_names),
        cmocka_unit_test(parameters_count_as_in_the_tutorials),
        cmocka_unit_test(names_are_those_of_the_flat_sequential),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(impossible_options_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
