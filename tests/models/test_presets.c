/* Models by name. */
#include "models/config.h"
#include "support/modules.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void parameters_count_as_published(void **state)
{
    static const int64_t totals[] = {124439808,  134515008,  361821120, 596049920,
                                     1100048384, 1235814400, 8030261248};
    for (int i = 0; sl_model_names[i]; i++) {
        sl_model_options options;
        SCOPED(sl_module) *model = NULL;
        check_ok(sl_model_options_named(sl_model_names[i], &options));
        check_ok(sl_transformer_lm_create(&options, &model));
        assert_int_equal(sl_module_parameter_elements(model), totals[i]);
    }
}

static void their_config_is_read_as_the_same_model(void **state)
{
    for (int i = 0; sl_model_names[i]; i++) {
        sl_model_options options, again;
        char *text;
        check_ok(sl_model_options_named(sl_model_names[i], &options));
        check_ok(sli_config_print(&options, SL_F32, &text));
        check_ok(sli_config_parse(text, strlen(text), &again));
        check_ok(sli_config_compare(&options, &again));
        free(text);
    }
}

static void they_have_the_ids_of_their_special_tokens(void **state)
{
    static const char *const begins[] = {"50256", "0", "0", "151643", "1", "128000", "128000"};
    static const char *const ends[] = {"50256", "0", "0", "151645", "2", "128001", "128001"};
    for (int i = 0; sl_model_names[i]; i++) {
        sl_model_options options;
        char *text, bos[64], eos[64];
        check_ok(sl_model_options_named(sl_model_names[i], &options));
        check_ok(sli_config_print(&options, SL_F32, &text));
        snprintf(bos, sizeof bos, "\"bos_token_id\": %s,", begins[i]);
        snprintf(eos, sizeof eos, "\"eos_token_id\": %s\n", ends[i]);
        assert_non_null(strstr(text, bos));
        assert_non_null(strstr(text, eos));
        free(text);
    }
}

/* Mean and standard deviation of a parameter's values. */
static void measure(const sl_parameter *parameter, double *mean, double *deviation)
{
    const float *values = sl_tensor_f32(sl_parameter_value(parameter));
    int64_t count = sl_shape_count(sl_parameter_shape(parameter));
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
    }
    *mean = sum / (double)count;
    *deviation = sqrt(squares / (double)count - *mean * *mean);
}

/* As transformers begins: normal with 0.02, GPT-2's products to a branch's output with
 * 0.02 / sqrt(2 layers); weights of norms 1, biases 0. */
static void first_values_are_those_of_transformers(void **state)
{
    static const char *const names[] = {"gpt2", "qwen3-0.6b"};
    SCOPED(sl_device) *device = new_device(1);
    for (int i = 0; i < 2; i++) {
        SCOPED(sl_module) *model = NULL;
        SCOPED(sl_parameter_set) *set = NULL;
        sl_model_options options;
        check_ok(sl_model_options_named(names[i], &options));
        options.ntokens = 500;
        options.emsize = options.nhid = 128;
        options.nlayers = 3;
        options.nhead = options.decoder.key_heads = 4;
        check_ok(sl_transformer_lm_create(&options, &model));
        check_ok(sl_parameter_set_create(model, 0, 0,
                                         &(sl_parameter_set_options){.device = device, .seed = 1},
                                         &set));
        for (int k = 0; k < sl_parameter_set_count(set); k++) {
            const sl_parameter *parameter = sl_parameter_set_get(set, k);
            const char *name = sl_parameter_name(parameter);
            bool is_vector = sl_parameter_shape(parameter)->dims == 1;
            bool is_norm = is_vector && strstr(name, "weight");
            double mean, deviation,
                expected = is_vector                ? 0
                           : strstr(name, "c_proj") ? 0.02 / sqrt(6)
                                                    : 0.02;
            measure(parameter, &mean, &deviation);
            assert_true(fabs(mean - is_norm) <= 0.05 * expected);
            assert_true(fabs(deviation - expected) <= 0.03 * expected);
        }
    }
}

static bool is_below(const void *most, int64_t id)
{
    return id < *(const int64_t *)most;
}

static void ids_that_a_vocabulary_does_not_have_are_forgotten(void **state)
{
    static const char *const texts[] = {"{\"bos_token_id\":1,\"eos_token_id\":[2,9]}",
                                        "{\"bos_token_id\":null,\"eos_token_id\":9}", ""};
    for (int i = 0; i < 3; i++)
        for (int64_t most = 9; most <= 10; most++) {
            sl_model_options options = {.family = SL_FAMILY_LLAMA};
            snprintf(options.decoder.token_ids, sizeof options.decoder.token_ids, "%s", texts[i]);
            sli_config_drop_unknown_token_ids(&options, is_below, &most);
            assert_string_equal(options.decoder.token_ids, most > 9 ? texts[i] : "");
        }
}

static void other_names_are_refused(void **state)
{
    sl_model_options options;
    check_error(sl_model_options_named("gpt5", &options), SL_ERR_NOT_FOUND,
                "there is no model of the name \"gpt5\"");
}

int presets_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_count_as_published),
        cmocka_unit_test(their_config_is_read_as_the_same_model),
        cmocka_unit_test(they_have_the_ids_of_their_special_tokens),
        cmocka_unit_test(first_values_are_those_of_transformers),
        cmocka_unit_test(ids_that_a_vocabulary_does_not_have_are_forgotten),
        cmocka_unit_test(other_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
