/* Parameters that are frozen by patterns of their names. */
#include "nn/module.h"
#include "sluice/model.h"
#include "support/modules.h"

static const sl_model_options small_options = {.family = SL_FAMILY_LLAMA,
                                               .ntokens = 7,
                                               .emsize = 4,
                                               .nhid = 6,
                                               .nlayers = 2,
                                               .nhead = 2,
                                               .pre_norm = true,
                                               .tie = true,
                                               .decoder = {.positions = 8,
                                                           .norm_eps = 1e-5,
                                                           .deviation = 0.02,
                                                           .rotary = {.kind = SL_ROTARY_DEFAULT,
                                                                      .theta = 1e4}}};

static sl_status create_frozen(const char *patterns, sl_module **out)
{
    sl_model_options options = small_options;
    options.freeze = patterns;
    return sl_transformer_lm_create(&options, out);
}

static int64_t trained_elements(const sl_module *model)
{
    return sli_module_elements(model, SL_PARAMETER_TRAINED);
}

static void names_of_the_form_are_frozen(void **state)
{
    SCOPED(sl_module) *all = NULL, *model = NULL;
    check_ok(create_frozen(NULL, &all));
    check_ok(create_frozen("model.layers.1.*,*.o_proj.weight", &model));
    int64_t layer = sl_module_parameter_elements(sl_module_child(all, 2));
    assert_int_equal(trained_elements(model), trained_elements(all) - layer - 4 * 4);
    assert_int_equal(trained_elements(sl_module_child(model, 2)), 0);
    assert_int_equal(sl_module_parameter_elements(model), sl_module_parameter_elements(all));
}

/* The head's name is another one of the embedding's parameter. */
static void a_tied_parameter_has_both_names(void **state)
{
    SCOPED(sl_module) *model = NULL;
    check_ok(create_frozen("lm_head.weight", &model));
    assert_int_equal(trained_elements(sl_module_child(model, 0)), 0);
}

/* In all orders and halves, what trains gets the gradient that differences have, and nothing else
 * is left. */
static void layers_go_backward_with_frozen_weights(void **state)
{
    static const char *const patterns[] = {"mlp.up_proj.*,self_attn.q_proj.*",
                                           "mlp.*,*.o_proj.weight", "self_attn.*,*norm.weight"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        SCOPED(sl_module) *layer = NULL;
        check_ok(sl_decoder_layer_create(
            &(sl_decoder_layer_options){.width = 8, .heads = 2, .key_heads = 1, .feed_forward = 12},
            &layer));
        check_ok(sli_module_freeze_named(layer, patterns[i]));
        check_module(&(module_case){.module = layer, .in = sl_shape_3d(2, 3, 8)});
    }
}

/* A tied head goes backward, and so does the embedding that it is tied to. */
static void backward_ends_behind_the_frozen_modules(void **state)
{
    static const struct {
        const char *patterns;
        int count;
    } cases[] = {{NULL, 0},
                 {"model.layers.*", 0},
                 {"model.embed_tokens.*", 1},
                 {"model.embed_tokens.*,model.layers.0.*", 2},
                 {"model.embed_tokens.*,model.layers.*", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(sl_module) *model = NULL;
        check_ok(create_frozen(cases[i].patterns, &model));
        assert_int_equal(sli_module_frozen_count(model), cases[i].count);
    }
    SCOPED(sl_module) *bare = NULL, *child = NULL;
    check_ok(sl_activation_create(SL_ACTIVATION_RELU, &child));
    check_ok(sl_sequential_append(&bare, SL_OK, &child));
    child = NULL;
    assert_int_equal(sli_module_frozen_count(bare), 0); /* it has nothing that could be frozen */
}

static void the_last_layers_can_be_trained_alone(void **state)
{
    SCOPED(sl_module) *all = NULL, *model = NULL;
    sl_model_options options = small_options;
    check_ok(sl_transformer_lm_create(&options, &all));
    options.train_layers = 1;
    check_ok(sl_transformer_lm_create(&options, &model));
    assert_int_equal(trained_elements(model),
                     sl_module_parameter_elements(sl_module_child(all, 2)));
    assert_int_equal(trained_elements(sl_module_child(model, 2)), trained_elements(model));
    assert_int_equal(sli_module_frozen_count(model), 2);
    options.train_layers = 3;
    sl_module *none;
    check_error(sl_transformer_lm_create(&options, &none), SL_ERR_INVALID,
                "train-layers: the model has 2 layers, of which 3 cannot be trained");
}

/* With their own saved tensors: those of the encoder and of GPT-2. */
static void feed_forward_parts_go_backward_with_frozen_weights(void **state)
{
    static const char *const patterns[][2] = {{"mlp.c_fc.*", "linear1.*"},
                                              {"mlp.c_proj.*", "linear2.*"},
                                              {"mlp.*", "linear?.*"}};
    for (size_t i = 0; i < 4 * sizeof patterns / sizeof *patterns; i++) {
        SCOPED(sl_module) *layer = NULL;
        sl_activation activation = i % 4 == 3 ? SL_ACTIVATION_RELU : SL_ACTIVATION_GELU_TANH;
        check_ok(
            i & 2 ? sl_encoder_layer_create(&(sl_encoder_layer_options){.width = 8,
                                                                        .heads = 2,
                                                                        .feed_forward = 12,
                                                                        .activation = activation},
                                            &layer)
                  : sl_decoder_layer_create(&(sl_decoder_layer_options){.naming = SL_NAMING_GPT2,
                                                                        .width = 8,
                                                                        .heads = 2,
                                                                        .feed_forward = 12,
                                                                        .activation = activation,
                                                                        .qkv_bias = true,
                                                                        .output_bias = true},
                                            &layer));
        check_ok(sli_module_freeze_named(layer, patterns[i / 4][i / 2 % 2]));
        check_module(&(module_case){.module = layer, .in = sl_shape_3d(2, 3, 8)});
    }
}

static void patterns_that_fit_nothing_or_all_are_refused(void **state)
{
    sl_module *model;
    check_error(create_frozen("*.o_proj.*,model.layer.*", &model), SL_ERR_INVALID,
                "no parameter has a name of the form \"model.layer.*\": give one such as "
                "\"model.embed_tokens.weight\"");
    assert_null(model);
    check_error(create_frozen("model.*", &model), SL_ERR_INVALID,
                "freeze: \"model.*\" leaves no parameter to train");
    assert_null(model);
}

int freeze_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_the_form_are_frozen),
        cmocka_unit_test(a_tied_parameter_has_both_names),
        cmocka_unit_test(layers_go_backward_with_frozen_weights),
        cmocka_unit_test(backward_ends_behind_the_frozen_modules),
        cmocka_unit_test(the_last_layers_can_be_trained_alone),
        cmocka_unit_test(feed_forward_parts_go_backward_with_frozen_weights),
        cmocka_unit_test(patterns_that_fit_nothing_or_all_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
