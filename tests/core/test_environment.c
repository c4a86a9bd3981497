#include "core/environment.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

static void variable_that_is_unset_or_empty_reads_as_null(void **state)
{
    const char *value = "?";
    unsetenv("SL_ISA");
    assert_int_equal(sli_environment_read("SL_ISA", &value), SL_OK);
    assert_null(value);
    setenv("SL_ISA", "", 1);
    value = "?";
    assert_int_equal(sli_environment_read("SL_ISA", &value), SL_OK);
    assert_null(value);
}

static void variable_with_a_known_value_reads_as_it(void **state)
{
    const char *value;
    setenv("SL_ISA", "avx2", 1);
    assert_int_equal(sli_environment_read("SL_ISA", &value), SL_OK);
    assert_string_equal(value, "avx2");
    unsetenv("SL_ISA");
}

static void variable_with_another_value_is_refused(void **state)
{
    const char *value = "?";
    setenv("SL_ISA", "yes", 1);
    assert_int_equal(sli_environment_read("SL_ISA", &value), SL_ERR_INVALID);
    assert_null(value);
    assert_string_equal(
        sl_error_text(),
        "environment variable SL_ISA must be avx512, avx2 or baseline, got \"yes\"");
    unsetenv("SL_ISA");
}

static void debug_is_a_list_of_words(void **state)
{
    bool memory = false, collectives = true;
    setenv("SL_DEBUG", "memory", 1);
    assert_int_equal(sli_debug_contains("memory", &memory), SL_OK);
    assert_int_equal(sli_debug_contains("collectives", &collectives), SL_OK);
    assert_true(memory && !collectives);
    setenv("SL_DEBUG", "memory,collectives", 1);
    assert_int_equal(sli_debug_contains("collectives", &collectives), SL_OK);
    assert_true(collectives);
    setenv("SL_DEBUG", "collectives,mem", 1);
    assert_int_equal(sli_debug_contains("collectives", &collectives), SL_ERR_INVALID);
    assert_false(collectives);
    assert_string_equal(sl_error_text(), "environment variable SL_DEBUG must be memory, "
                                         "collectives or ddp, got \"mem\"");
    unsetenv("SL_DEBUG");
    assert_int_equal(sli_debug_contains("memory", &memory), SL_OK);
    assert_false(memory);
}

int environment_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variable_that_is_unset_or_empty_reads_as_null),
        cmocka_unit_test(variable_with_a_known_value_reads_as_it),
        cmocka_unit_test(variable_with_another_value_is_refused),
        cmocka_unit_test(debug_is_a_list_of_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
