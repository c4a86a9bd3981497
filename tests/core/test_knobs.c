#include "core/knobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void knob_that_is_unset_or_empty_reads_as_null(void **state)
{
    (void)state;
    const char *value = "?";
    unsetenv("SL_ISA");
    assert_int_equal(sli_knob_read(SLI_KNOB_ISA, &value), SL_OK);
    assert_null(value);
    setenv("SL_ISA", "", 1);
    value = "?";
    assert_int_equal(sli_knob_read(SLI_KNOB_ISA, &value), SL_OK);
    assert_null(value);
}

static void knob_with_a_known_value_reads_as_it(void **state)
{
    (void)state;
    const char *value;
    setenv("SL_ISA", "avx2", 1);
    assert_int_equal(sli_knob_read(SLI_KNOB_ISA, &value), SL_OK);
    assert_string_equal(value, "avx2");
    unsetenv("SL_ISA");
}

static void knob_with_another_value_is_refused(void **state)
{
    (void)state;
    const char *value = "?";
    setenv("SL_ISA", "yes", 1);
    assert_int_equal(sli_knob_read(SLI_KNOB_ISA, &value), SL_ERR_INVALID);
    assert_null(value);
    assert_string_equal(
        sl_error_text(),
        "environment variable SL_ISA: expected avx512, avx2 or baseline, got \"yes\"");
    unsetenv("SL_ISA");
}

static void knob_that_is_a_list_contains_its_words(void **state)
{
    (void)state;
    bool memory = false, collectives = true;
    setenv("SL_DEBUG", "memory", 1);
    assert_int_equal(sl_debug_contains("memory", &memory), SL_OK);
    assert_int_equal(sl_debug_contains("collectives", &collectives), SL_OK);
    assert_true(memory && !collectives);
    setenv("SL_DEBUG", "memory,collectives", 1);
    assert_int_equal(sl_debug_contains("collectives", &collectives), SL_OK);
    assert_true(collectives);
    setenv("SL_DEBUG", "collectives,mem", 1);
    assert_int_equal(sl_debug_contains("collectives", &collectives), SL_ERR_INVALID);
    assert_false(collectives);
    assert_string_equal(sl_error_text(),
                        "environment variable SL_DEBUG: expected memory, collectives "
                        "or ddp, got \"collectives,mem\"");
    unsetenv("SL_DEBUG");
    assert_int_equal(sl_debug_contains("memory", &memory), SL_OK);
    assert_false(memory);
}

static void help_names_every_variable_and_its_values(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    sl_environment_print_help(to);
    fclose(to);
    assert_non_null(strstr(text, "  SL_ISA=avx512, avx2 or baseline\n      The instruction"));
    assert_non_null(strstr(text, "  SL_DEBUG=memory, collectives or ddp\n"));
    free(text);
}

int knobs_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knob_that_is_unset_or_empty_reads_as_null),
        cmocka_unit_test(knob_with_a_known_value_reads_as_it),
        cmocka_unit_test(knob_with_another_value_is_refused),
        cmocka_unit_test(knob_that_is_a_list_contains_its_words),
        cmocka_unit_test(help_names_every_variable_and_its_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
