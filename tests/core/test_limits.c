/* The limit on open files. */
#include "core/limits.h"
#include "support/check.h"

#include <sys/resource.h>

static struct rlimit read_limit(void)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit;
}

static void descriptor_limit_is_raised_to_the_hard_one(void **state)
{
    (void)state;
    struct rlimit limit = read_limit();
    limit.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    long raised = sli_raise_descriptor_limit();
    struct rlimit after = read_limit();
    assert_int_equal(after.rlim_cur, limit.rlim_max);
    assert_int_equal(after.rlim_max, limit.rlim_max);
    assert_int_equal(raised, limit.rlim_max);
    assert_int_equal(sli_raise_descriptor_limit(), raised);
}

int limits_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptor_limit_is_raised_to_the_hard_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
