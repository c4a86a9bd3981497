/* The layer of decoders, under both namings. */
#include "sluice/layers.h"
#include "support/modules.h"
#include "tensor/tensor.h"

static const sl_decoder_layer_options cases[] = {
    {.naming = SL_NAMING_LLAMA, .width = 6, .heads = 2, .feed_forward = 5},
    {.naming = SL_NAMING_LLAMA,
     .width = 6,
     .heads = 4,
     .key_heads = 2,
     .head_width = 2,
     .feed_forward = 7,
     .attention_dropout = 0.2f,
     .rotary = {.kind = SL_ROTARY_LINEAR, .theta = 10, .factor = 2}},
    {.naming = SL_NAMING_LLAMA,
     .width = 5,
     .heads = 3,
     .key_heads = 1,
     .head_width = 4,
     .feed_forward = 3,
     .norm_eps = 1e-3f,
     .qkv_bias = true,
     .output_bias = true,
     .rotary = {.kind = SL_ROTARY_DEFAULT, .theta = 100}},
    {.naming = SL_NAMING_GPT2,
     .width = 6,
     .heads = 3,
     .feed_forward = 7,
     .activation = SL_ACTIVATION_GELU_TANH,
     .attention_dropout = 0.2f,
     .residual_dropout = 0.3f,
     .qkv_bias = true,
     .output_bias = true,
     .deviation = 0.3f,
     .output_deviation = 0.2f},
    {.naming = SL_NAMING_GPT2,
     .width = 4,
     .heads = 1,
     .feed_forward = 4,
     .activation = SL_ACTIVATION_RELU,
     .qkv_bias = true,
     .output_bias = true},
    {.naming = SL_NAMING_LLAMA,
     .width = 5,
     .heads = 4,
     .key_heads = 2,
     .head_width = 6,
     .feed_forward = 3,
     .qk_norm = true,
     .rotary = {.kind = SL_ROTARY_DEFAULT, .theta = 100}},
};
enum { CASES = sizeof cases / sizeof *cases };

static void gradients_match_differences(void **state)
{
    for (int i = 0; i < CASES; i++) {
        SCOPED(sl_module) *module = NULL;
        check_ok(sl_decoder_layer_create(&cases[i], &module));
        module_case one = {.module = module,
                           .in = sl_shape_3d(2, 4, cases[i].width),
                           .training = true};
        check_module(&one);
        check_samples_are_independent(&one);
    }
}

static void gradients_of_the_attention_alone_match_differences(void **state)
{
    for (int i = 0; i < CASES; i++) {
        SCOPED(sl_module) *module = NULL;
        sl_decoder_layer_options options = cases[i];
        options.feed_forward = 0;
        check_ok(sl_decoder_attention_create(&options, &module));
        check_module(&(module_case){.module = module,
                                    .in = sl_shape_3d(2, 4, cases[i].width),
                                    .training = true});
    }
}

/* Freezes leaf number `left` of the tree, counted down; below 0 afterwards: there is one. */
static void freeze_leaf(sl_module *module, int *left)
{
    if (sl_module_child_count(module) == 0 && (*left)-- == 0)
        check_ok(sl_module_freeze(module));
    for (int i = 0; i < sl_module_child_count(module); i++)
        freeze_leaf(sl_module_child(module, i), left);
}

/* Each in turn; of three products that share an operand, one that is frozen takes nothing of what
 * is deferred. */
static void any_module_may_be_frozen(void **state)
{
    for (int i = 1; i < 4; i += 2)
        for (int leaf = 0, left = -1; left < 0; leaf++) {
            SCOPED(sl_module) *module = NULL;
            check_ok(sl_decoder_layer_create(&cases[i], &module));
            left = leaf;
            freeze_leaf(module, &left);
            check_module(&(module_case){.module = module, .in = sl_shape_3d(2, 3, cases[i].width)});
        }
}

static void activations_are_what_saved_bytes_says(void **state)
{
    for (int i = 0; i < CASES; i++) {
        SCOPED(sl_device) *device = new_device(1);
        SCOPED(sl_module) *module = NULL;
        SCOPED(sl_pass) *pass = NULL;
        SCOPED(sl_tensor) *out = NULL;
        sl_memory_stats memory;
        check_ok(sl_decoder_layer_create(&cases[i], &module));
        SCOPED(sl_parameter_set) *set = random_parameters(module, device);
        sl_pass_options options = {.device = device, .training = true, .keep = true};
        check_ok(sl_pass_create(&options, &pass));
        sl_shape shape = sl_shape_3d(2, 4, cases[i].width);
        sl_tensor *in = random_tensor(device, &shape, 1);
        check_ok(sl_module_forward(module, pass, in, &out));
        sl_tensor_destroy(&in);
        sl_device_memory(device, &memory);
        assert_int_equal(memory.current_bytes[SL_MEMORY_ACTIVATIONS],
                         sl_module_saved_bytes(module, &shape) + (int64_t)sli_tensor_bytes(out));
        assert_int_equal(memory.current_bytes[SL_MEMORY_WORKSPACE], 0);
    }
}

static void check_names(const sl_decoder_layer_options *options, const char *const *names,
                        int count)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_decoder_layer_create(options, &module));
    SCOPED(sl_parameter_set) *set = random_parameters(module, device);
    assert_int_equal(sl_parameter_set_count(set), count);
    for (int i = 0; i < count; i++)
        assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, i)), names[i]);
}

static void parameters_bear_transformers_names_in_its_order(void **state)
{
    static const char *const llama[] = {"self_attn.q_proj.weight",        "self_attn.q_proj.bias",
                                        "self_attn.k_proj.weight",        "self_attn.k_proj.bias",
                                        "self_attn.v_proj.weight",        "self_attn.v_proj.bias",
                                        "self_attn.o_proj.weight",        "self_attn.o_proj.bias",
                                        "mlp.gate_proj.weight",           "mlp.up_proj.weight",
                                        "mlp.down_proj.weight",           "input_layernorm.weight",
                                        "post_attention_layernorm.weight"};
    static const char *const gpt2[] = {"ln_1.weight",        "ln_1.bias",
                                       "attn.c_attn.weight", "attn.c_attn.bias",
                                       "attn.c_proj.weight", "attn.c_proj.bias",
                                       "ln_2.weight",        "ln_2.bias",
                                       "mlp.c_fc.weight",    "mlp.c_fc.bias",
                                       "mlp.c_proj.weight",  "mlp.c_proj.bias"};
    check_names(&cases[2], llama, 13);
    check_names(&cases[3], gpt2, 12);
}

/* Each weight's elements, twice for each row; and 4 * 5 / 2 pairs of positions in each sample. */
static void operations_are_the_products(void **state)
{
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_decoder_layer_create(&cases[1], &module));
    sl_shape in = sl_shape_3d(2, 4, 6);
    int64_t weights = 6 * 8 + 2 * 6 * 4 + 8 * 6 + 3 * 6 * 7;
    assert_int_equal(sl_module_flops(module, &in), 2 * 8 * weights + 2 * 2 * 2 * 10 * 8);
}

static void impossible_options_are_refused(void **state)
{
    sl_module *module;
    sl_decoder_layer_options options = cases[0];
    options.feed_forward = 0;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID,
                "feed_forward must be at least 1, got 0");
    options = cases[0];
    options.heads = 4;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID,
                "got 4 heads and a width of 6");
    options = cases[1];
    options.key_heads = 3;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID, "got 3 and 4");
    options.key_heads = -1;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID, "negative");
    options = cases[2];
    options.head_width = 3;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID,
                "must be even and at most 256, got 3");
    options.head_width = 4;
    options.rotary.kind = SL_ROTARY_LLAMA3;
    options.rotary.factor = 8;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID, "got 0, 0 and 0");
    options.rotary.factor = 0;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID, "got 100 and 0");
    options = cases[3];
    options.qk_norm = true;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID,
                "GPT-2's layer has no norms of queries and keys");
    options.qk_norm = false;
    options.rotary.kind = SL_ROTARY_DEFAULT;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID, "no rotary");
    options = cases[3];
    options.residual_dropout = 1;
    check_error(sl_decoder_layer_create(&options, &module), SL_ERR_INVALID, "below 1, got 1");
    assert_null(module);
}

int decoder_layer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(gradients_of_the_attention_alone_match_differences),
        cmocka_unit_test(any_module_may_be_frozen),
        cmocka_unit_test(activations_are_what_saved_bytes_says),
        cmocka_unit_test(parameters_bear_transformers_names_in_its_order),
        cmocka_unit_test(operations_are_the_products),
        cmocka_unit_test(impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
