/* Tied parameters: one value, gradients that add up, and no trace of the tie in any list. */
#include "nn/layers.h"
#include "nn/module.h"
#include "sluice/model.h"
#include "support/modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const sl_model_options tied_options = {
    .ntokens = 7, .emsize = 4, .nhid = 6, .nlayers = 1, .nhead = 2, .tie = true};

static sl_module *new_linears(int64_t in, int64_t middle, int64_t out)
{
    sl_module *layers[2], *model;
    check_ok(sl_linear_create(in, middle, false, &layers[0]));
    check_ok(sl_linear_create(middle, out, false, &layers[1]));
    check_ok(create_sequential(layers, 2, &model));
    return model;
}

/* By differences of the one value, through both modules that use it. */
static void gradient_is_the_sum_of_both_uses(void **state)
{
    SCOPED(sl_module) *model = NULL;
    check_ok(sl_transformer_lm_create(&tied_options, &model));
    check_module(&(module_case){.module = model, .in = sl_shape_2d(2, 3), .id_count = 7});
    sl_module_destroy(&model);
    model = new_linears(4, 4, 4);
    check_ok(sl_module_tie_parameter(model, "1.weight", "0.weight"));
    check_module(&(module_case){.module = model, .in = sl_shape_2d(2, 4)});
}

static void parameter_is_counted_and_listed_once(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *untied = NULL, *model = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    sl_model_options options = tied_options;
    check_ok(sl_transformer_lm_create(&options, &model));
    options.tie = false;
    check_ok(sl_transformer_lm_create(&options, &untied));
    assert_int_equal(sl_module_parameter_elements(model),
                     sl_module_parameter_elements(untied) - 7 * 4);
    assert_int_equal(sl_module_parameter_elements(sl_module_child(model, 2)), 7); /* the bias */
    check_ok(sl_parameter_set_create(model, 0, 0,
                                     &(sl_parameter_set_options){.device = device, .seed = 1},
                                     &set));
    const sl_parameter *last = sl_parameter_set_get(set, sl_parameter_set_count(set) - 1);
    assert_string_equal(sl_parameter_name(last), "2.decoder.bias");
    sl_parameter *owner = sl_parameter_set_get(set, 1);
    assert_string_equal(sl_parameter_name(owner), "0.encoder.weight");
    assert_string_equal(sl_parameter_name(owner->ties), "2.decoder.weight");
    assert_ptr_equal(sl_tensor_data(sl_parameter_value(owner->ties)),
                     sl_tensor_data(sl_parameter_value(owner)));
}

/* A value that is frozen for one of its modules is frozen for both. */
static void freezing_either_module_freezes_the_value(void **state)
{
    for (int which = 0; which <= 2; which += 2) {
        SCOPED(sl_module) *model = NULL;
        check_ok(sl_transformer_lm_create(&tied_options, &model));
        check_ok(sl_module_freeze(sl_module_child(model, which)));
        const sl_parameter *tied = sli_module_as_linear(sl_module_child(model, 2))->weight;
        assert_int_equal(sl_parameter_get_kind(tied), SL_PARAMETER_FROZEN);
        assert_int_equal(sl_parameter_get_kind(tied->tied_to), SL_PARAMETER_FROZEN);
        check_module(&(module_case){.module = model, .in = sl_shape_2d(2, 3), .id_count = 7});
    }
}

/* Through a tie, one parameter of a norm can be frozen without the other. */
static void norm_trains_what_a_tie_leaves_it(void **state)
{
    static const char *const names[][2] = {{"1.weight", "0.weight"}, {"1.bias", "0.bias"}};
    for (int i = 0; i < 2; i++) {
        SCOPED(sl_module) *model = NULL;
        sl_module *norms[2];
        check_ok(sl_layer_norm_create(4, 0.0f, &norms[0]));
        check_ok(sl_layer_norm_create(4, 0.0f, &norms[1]));
        check_ok(create_sequential(norms, 2, &model));
        check_ok(sl_module_tie_parameter(model, names[i][0], names[i][1]));
        check_ok(sl_module_freeze(norms[0]));
        assert_int_equal(sli_module_elements(model, SL_PARAMETER_TRAINED), 4);
        check_module(&(module_case){.module = model, .in = sl_shape_2d(3, 4)});
    }
}

enum { NAME_BYTES = 200, LONG_PATH_BYTES = 2 * NAME_BYTES + 16 };

/* Two modules in modules, with names of so many bytes: their paths differ in the first byte. */
static sl_module *new_deep_model(void)
{
    sl_module *model = new_sequential(NULL, 0);
    for (int i = 0; i < 2; i++) {
        char outer_name[NAME_BYTES + 1], inner_name[NAME_BYTES + 1];
        sl_module *outer, *inner;
        memset(outer_name, 'o', NAME_BYTES);
        memset(inner_name, 'i', NAME_BYTES);
        outer_name[NAME_BYTES] = inner_name[NAME_BYTES] = '\0';
        outer_name[0] = (char)('a' + i);
        check_ok(sl_linear_create(2, 2, false, &inner));
        check_ok(create_sequential(NULL, 0, &outer));
        check_ok(sli_module_add_child(outer, inner_name, inner));
        check_ok(sli_module_add_child(model, outer_name, outer));
    }
    return model;
}

static void names_are_whole_however_long(void **state)
{
    SCOPED(sl_module) *model = new_deep_model();
    char names[2][LONG_PATH_BYTES];
    sl_parameter *weights[2];
    for (int i = 0; i < 2; i++) {
        const sl_module *outer = sl_module_child(model, i), *inner = sl_module_child(outer, 0);
        weights[i] = sli_module_as_linear(inner)->weight;
        snprintf(names[i], sizeof names[i], "%s.%s.weight", outer->name, inner->name);
        assert_string_equal(sl_parameter_name(weights[i]), names[i]);
    }
    check_ok(sl_module_tie_parameter(model, names[1], names[0]));
    assert_ptr_equal(weights[1]->tied_to, weights[0]);
}

static void impossible_ties_are_refused(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *model = new_linears(3, 4, 3);
    sl_module *lm;
    SCOPED(sl_parameter_set) *set = NULL;
    check_error(sl_module_tie_parameter(model, "1.weight", "0.weight"), SL_ERR_INVALID,
                "1.weight has shape [3, 4], but 0.weight has shape [4, 3]");
    check_error(sl_module_tie_parameter(model, "2.weight", "0.weight"), SL_ERR_NOT_FOUND,
                "no parameter 2.weight");
    check_error(sl_module_tie_parameter(model, "1.weight", "weight"), SL_ERR_NOT_FOUND,
                "no parameter weight");
    check_error(sl_module_tie_parameter(model, "1.bias", "1.bias"), SL_ERR_INVALID,
                "they are one parameter");
    sl_module_destroy(&model);
    check_ok(sl_transformer_lm_create(&tied_options, &lm));
    check_error(sl_module_tie_parameter(lm, "2.decoder.weight", "0.encoder.weight"),
                SL_ERR_NOT_FOUND, "no parameter 2.decoder.weight, or it is tied");
    check_error(sl_module_tie_parameter(lm, "0.pos_encoder.pe", "0.encoder.weight"), SL_ERR_INVALID,
                "buffers cannot be tied");
    sl_module_destroy(&lm);
    model = new_linears(4, 4, 4);
    check_ok(sl_module_tie_parameter(model, "1.weight", "0.weight"));
    check_error(sl_module_tie_parameter(model, "0.weight", "1.bias"), SL_ERR_INVALID,
                "another one is tied to it");
    set = random_parameters(model, device);
    check_error(sl_module_tie_parameter(model, "1.bias", "0.bias"), SL_ERR_INVALID,
                "tie \"1.bias\" cannot be added to a model in use");
}

int tied_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_sum_of_both_uses),
        cmocka_unit_test(parameter_is_counted_and_listed_once),
        cmocka_unit_test(freezing_either_module_freezes_the_value),
        cmocka_unit_test(norm_trains_what_a_tie_leaves_it),
        cmocka_unit_test(names_are_whole_however_long),
        cmocka_unit_test(impossible_ties_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
