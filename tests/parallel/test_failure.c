#include "parallel/failure.h"
#include "support/check.h"

#include <string.h>

static void failure_keeps_the_error_of_the_lowest_number_and_its_text(void **state)
{
    (void)state;
    sli_failure failure;
    sli_failure_init(&failure);
    assert_false(sli_failure_precedes(&failure, 1000));
    sli_failure_raise(&failure, 0, SL_OK);
    assert_false(sli_failure_precedes(&failure, 1000));
    assert_int_equal(sli_failure_take(&failure), SL_OK);

    sli_failure_raise(&failure, 3, sl_error(SL_ERR_MEMORY, "number 3"));
    sli_failure_raise(&failure, 3, sl_error(SL_ERR_IO, "as low, but later"));
    sli_failure_raise(&failure, 4, sl_error(SL_ERR_INVALID, "number 4"));
    assert_true(sli_failure_precedes(&failure, 3));
    assert_false(sli_failure_precedes(&failure, 2));
    sli_failure_raise(&failure, 1, sl_error(SL_ERR_NUMERIC, "number 1"));
    assert_true(sli_failure_precedes(&failure, 1));
    check_error(sli_failure_take(&failure), SL_ERR_NUMERIC, "number 1");

    assert_false(sli_failure_precedes(&failure, 1000));
    assert_int_equal(sli_failure_take(&failure), SL_OK);
    sli_failure_raise(&failure, 7, sl_error(SL_ERR_IO, "another time"));
    check_error(sli_failure_take(&failure), SL_ERR_IO, "another time");
    sli_failure_destroy(&failure);
}

static void *raise_on_another_thread(void *failure)
{
    sli_failure_raise(failure, 0, sl_error(SL_ERR_NUMERIC, "of the other thread"));
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
        cmocka_unit_test(failure_keeps_the_error_of_the_lowest_number_and_its_text),
        cmocka_unit_test(failure_brings_the_text_to_the_thread_that_takes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
