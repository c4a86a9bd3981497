/* Models by name. */
#include "models/config.h"
#include "support/modules.h"

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
        cmocka_unit_test(other_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
