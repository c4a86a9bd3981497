/* Families' config.json: what is read of those that transformers wrote, and what is refused. */
#include "models/config.h"
#include "support/check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *load_config(const char *family)
{
    char path[4096];
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/models/%s/config.json", source ? source : ".", family);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    return config;
}

static sl_status parse(const json_t *config, sl_model_options *out)
{
    char *text = json_dumps(config, 0);
    sl_status status = sli_config_parse(text, strlen(text), out);
    free(text);
    return status;
}

/* What is printed is read as the same model. */
static void check_printed(const sl_model_options *model)
{
    sl_model_options again;
    char *text, *twice;
    check_ok(sli_config_print(model, SL_F32, &text));
    check_ok(sli_config_parse(text, strlen(text), &again));
    check_ok(sli_config_compare(model, &again));
    assert_string_equal(model->decoder.token_ids, again.decoder.token_ids);
    check_ok(sli_config_print(&again, SL_F32, &twice));
    assert_string_equal(text, twice);
    free(text);
    free(twice);
}

static void gpt2s_members_are_read(void **state)
{
    sl_model_options model;
    json_t *config = load_config("gpt2");
    check_ok(parse(config, &model));
    assert_int_equal(model.family, SL_FAMILY_GPT2);
    assert_int_equal(model.emsize, 32);
    assert_int_equal(model.nhid, 4 * 32); /* n_inner is null */
    assert_int_equal(model.activation, SL_ACTIVATION_GELU_TANH);
    assert_int_equal(model.decoder.positions, 48);
    assert_int_equal(model.context, 48);
    assert_true(model.tie && model.decoder.qkv_bias && model.dropout == 0);
    check_printed(&model);
    json_decref(config);
}

/* Readers of the older spelling find all of it. */
static void older_spelling_of_rotary_positions_is_printed(void **state)
{
    sl_model_options model, again;
    char *text;
    json_t *config = load_config("llama3");
    check_ok(parse(config, &model));
    check_ok(sli_config_print(&model, SL_F32, &text));
    json_t *printed = json_loads(text, 0, NULL);
    assert_int_equal(json_object_del(printed, "rope_parameters"), 0);
    check_ok(parse(printed, &again));
    check_ok(sli_config_compare(&model, &again));
    json_decref(printed);
    json_decref(config);
    free(text);
}

static void both_spellings_of_rotary_positions_are_read(void **state)
{
    sl_model_options newer, older;
    json_t *config = load_config("llama3");
    check_ok(parse(config, &newer));
    assert_int_equal(newer.family, SL_FAMILY_LLAMA);
    assert_int_equal(newer.decoder.key_heads, 2);
    assert_int_equal(newer.decoder.rotary.kind, SL_ROTARY_LLAMA3);
    assert_int_equal(newer.decoder.rotary.original_positions, 128);
    assert_true(newer.decoder.rotary.theta == 10000 && newer.decoder.rotary.factor == 8);
    check_printed(&newer);
    json_t *rope = json_object_get(config, "rope_parameters");
    json_incref(rope);
    json_object_del(config, "rope_parameters");
    json_object_set_new(config, "rope_theta", json_integer(10000));
    json_object_set(rope, "type", json_object_get(rope, "rope_type"));
    json_object_del(rope, "rope_type");
    json_object_set_new(config, "rope_scaling", rope);
    check_ok(parse(config, &older));
    check_ok(sli_config_compare(&newer, &older));
    json_object_set_new(config, "rope_scaling", json_null());
    check_ok(parse(config, &older));
    assert_int_equal(older.decoder.rotary.kind, SL_ROTARY_DEFAULT);
    check_error(sli_config_compare(&newer, &older), SL_ERR_INVALID, "its model has rope_");
    json_decref(config);
}

static void families_differ_in_biases_and_layers(void **state)
{
    sl_model_options model;
    json_t *config = load_config("qwen2");
    check_ok(parse(config, &model));
    assert_true(model.decoder.qkv_bias && !model.decoder.output_bias);
    assert_int_equal(model.decoder.head_width, 8);
    check_printed(&model);
    json_object_set_new(config, "model_type", json_string("mistral"));
    check_ok(parse(config, &model));
    assert_false(model.decoder.qkv_bias);
    check_printed(&model);
    json_object_set_new(config, "model_type", json_string("smollm3"));
    check_ok(parse(config, &model));
    assert_int_equal(model.decoder.no_rope_interval, 4);
    check_printed(&model);
    json_object_set_new(config, "no_rope_layers", json_pack("[ii]", 1, 1));
    check_ok(parse(config, &model));
    json_object_set_new(config, "no_rope_layers", json_pack("[ii]", 0, 1));
    check_error(parse(config, &model), SL_ERR_UNSUPPORTED, "its no_rope_layers does not");
    json_decref(config);
}

static void both_labels_of_bf16_weights_are_read(void **state)
{
    sl_model_options model;
    json_t *config = load_config("llama3");
    check_ok(parse(config, &model));
    assert_false(model.base_is_bf16);
    json_object_set_new(config, "dtype", json_string("bfloat16"));
    check_ok(parse(config, &model));
    assert_true(model.base_is_bf16);
    json_object_set_new(config, "torch_dtype", json_string("float32"));
    check_ok(parse(config, &model));
    assert_false(model.base_is_bf16);
    json_decref(config);
}

static void ids_of_special_tokens_are_kept(void **state)
{
    sl_model_options model, other;
    char *text;
    json_t *config = load_config("llama3");
    json_object_set_new(config, "eos_token_id", json_pack("[iii]", 2, 5, 7));
    check_ok(parse(config, &model));
    check_printed(&model);
    check_ok(sli_config_print(&model, SL_F32, &text));
    json_t *printed = json_loads(text, 0, NULL);
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_true(
            json_equal(json_object_get(printed, keys[i]), json_object_get(config, keys[i])));
    json_decref(printed);
    free(text);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_del(config, keys[i]);
    check_ok(parse(config, &other)); /* numbers do not depend on them */
    assert_string_equal(other.decoder.token_ids, "");
    check_ok(sli_config_compare(&model, &other));
    check_printed(&other);
    json_object_set_new(config, "eos_token_id", json_string("</s>"));
    check_error(parse(config, &other), SL_ERR_FORMAT,
                "its eos_token_id must be the number of a token, a list of them, or null");
    json_t *many = json_array();
    for (int i = 0; i < 100; i++)
        json_array_append_new(many, json_integer(i));
    json_object_set_new(config, "eos_token_id", many);
    check_error(parse(config, &other), SL_ERR_UNSUPPORTED,
                "its lists of special tokens are too long");
    json_decref(config);
}

/* Each member of each family that would change numbers, and those that cannot be. */
static void what_is_not_served_is_refused_by_name(void **state)
{
    static const struct {
        const char *family, *key, *value, *sentence;
        sl_status status;
    } bad[] = {
        {"gpt2", "scale_attn_weights", "false", "its scale_attn_weights is false, and sluice",
         SL_ERR_UNSUPPORTED},
        {"gpt2", "scale_attn_by_inverse_layer_idx", "true", "its scale_attn_by_inverse_layer_idx",
         SL_ERR_UNSUPPORTED},
        {"gpt2", "add_cross_attention", "true", "add_cross_attention", SL_ERR_UNSUPPORTED},
        {"gpt2", "activation_function", "\"silu\"",
         "its activation_function must be \"relu\", \"gelu\", \"gelu_new\" or "
         "\"gelu_pytorch_tanh\", got \"silu\"",
         SL_ERR_UNSUPPORTED},
        {"gpt2", "embd_pdrop", "0.2", "its resid_pdrop is 0 and its embd_pdrop 0.2",
         SL_ERR_UNSUPPORTED},
        {"gpt2", "resid_pdrop", "1", "its resid_pdrop must be below 1, got 1", SL_ERR_FORMAT},
        {"gpt2", "n_embd", "null", "it has no \"n_embd\"", SL_ERR_FORMAT},
        {"gpt2", "n_head", "0", "its n_head must be a whole number from 1", SL_ERR_FORMAT},
        {"gpt2", "n_layer", "2.0", "its n_layer must be a whole number", SL_ERR_FORMAT},
        {"gpt2", "tie_word_embeddings", "1", "must be true or false, got 1", SL_ERR_FORMAT},
        {"gpt2", "quantization_config", "{}", "it has a \"quantization_config\"",
         SL_ERR_UNSUPPORTED},
        {"llama3", "rope_parameters", "null", "it has neither \"rope_theta\" nor", SL_ERR_FORMAT},
        {"llama3", "rope_parameters", "{\"rope_theta\": 1, \"rope_type\": \"yarn\"}",
         "its rope_type must be \"default\", \"linear\" or \"llama3\", got \"yarn\"",
         SL_ERR_UNSUPPORTED},
        {"llama3", "rope_parameters", "{\"rope_theta\": 1, \"rope_type\": \"linear\"}",
         "it has no \"factor\"", SL_ERR_FORMAT},
        {"llama3", "hidden_act", "\"gelu\"", "its hidden_act must be \"silu\", got \"gelu\"",
         SL_ERR_UNSUPPORTED},
        {"llama3", "mlp_bias", "true", "its mlp_bias is true", SL_ERR_UNSUPPORTED},
        {"llama3", "rope_parameters",
         "{\"rope_theta\": 1e4, \"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}",
         "its partial_rotary_factor is 0.5", SL_ERR_UNSUPPORTED},
        {"llama3", "partial_rotary_factor", "0.5", "its partial_rotary_factor is 0.5",
         SL_ERR_UNSUPPORTED},
        {"llama3", "rms_norm_eps", "\"x\"", "its rms_norm_eps must be a number", SL_ERR_FORMAT},
        {"llama3", "quantization_config", "{}", "quantization_config", SL_ERR_UNSUPPORTED},
        {"llama3", "num_key_value_heads", "5", "its num_key_value_heads must be", SL_ERR_FORMAT},
        {"qwen2", "use_sliding_window", "true", "its use_sliding_window", SL_ERR_UNSUPPORTED},
        {"qwen2", "layer_types", "[\"sliding_attention\"]", "layer_types", SL_ERR_UNSUPPORTED},
        {"qwen2", "model_type", "\"qwen3_moe\"", "its model_type is \"qwen3_moe\", and sluice has",
         SL_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sl_model_options model;
        json_t *config = load_config(bad[i].family);
        check_ok(parse(config, &model));
        json_object_set_new(config, bad[i].key, json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
        check_error(parse(config, &model), bad[i].status, bad[i].sentence);
        json_decref(config);
    }
}

static void a_sliding_window_is_refused_where_it_counts(void **state)
{
    sl_model_options model;
    json_t *config = load_config("qwen2");
    json_object_set_new(config, "sliding_window", json_integer(16));
    check_ok(parse(config, &model)); /* use_sliding_window is false */
    json_object_set_new(config, "model_type", json_string("mistral"));
    check_error(parse(config, &model), SL_ERR_UNSUPPORTED, "it has a \"sliding_window\"");
    json_decref(config);
}

int config_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2s_members_are_read),
        cmocka_unit_test(older_spelling_of_rotary_positions_is_printed),
        cmocka_unit_test(both_spellings_of_rotary_positions_are_read),
        cmocka_unit_test(families_differ_in_biases_and_layers),
        cmocka_unit_test(both_labels_of_bf16_weights_are_read),
        cmocka_unit_test(ids_of_special_tokens_are_kept),
        cmocka_unit_test(what_is_not_served_is_refused_by_name),
        cmocka_unit_test(a_sliding_window_is_refused_where_it_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
