#include "parallel/failure.h"
#include "support/check.h"

#include <string.h>

static void failure_keeps_the_first_error_and_its_text(void **state)
{
    (void)state;
    sli_failure failure;
    sli_failure_init(&failure);
    assert_false(sli_failure_is_raised(&failure));
    sli_failure_raise(&failure, SL_OK);
    assert_false(sli_failure_is_raised(&failure));
    assert_int_equal(sli_failure_take(&failure), SL_OK);

    sli_failure_raise(&failure, sl_error(SL_ERR_MEMORY, "the first"));
    sli_failure_raise(&failure, sl_error(SL_ERR_INVALID, "the second"));
    assert_true(sli_failure_is_raised(&failure));
    check_error(sli_failure_take(&failure), SL_ERR_MEMORY, "the first");

    assert_false(sli_failure_is_raised(&failure));
    assert_int_equal(sli_failure_take(&failure), SL_OK);
    sli_failure_raise(&failure, sl_error(SL_ERR_IO, "another time"));
    check_error(sli_failure_take(&failure), SL_ERR_IO, "another time");
    sli_failure_destroy(&failure);
}

static void *raise_on_another_thread(void *failure)
{
    sli_failure_raise(failure, sl_error(SL_ERR_NUMERIC, "of the other thread"));
    return NULL;
}

static void failure_brings_the_text_to_the_thread_that_takes_it(void **state)
{
    (void)state;
    sli_failure failure;
    sli_failure_init(&failure);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, raise_on_another_thread, &failure), 0);
    pthread_join(thread, NULL);
    check_error(sli_failure_take(&failure), SL_ERR_NUMERIC, "of the other thread");
    sli_failure_destroy(&failure);
}

int failure_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_keeps_the_first_error_and_its_text),
        cmocka_unit_test(failure_brings_the_text_to_the_thread_that_takes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
