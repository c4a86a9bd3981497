#include "core/large_array.h"
#include "support/check.h"

#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static int open_descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void fill(sli_large_array *array, size_t from, size_t to)
{
    uint32_t *numbers = array->data;
    for (size_t i = from; i < to; i++)
        numbers[i] = (uint32_t)(i * 2654435761u);
}

static void expect_filled(const sli_large_array *array, size_t count)
{
    const uint32_t *numbers = array->data;
    for (size_t i = 0; i < count; i++)
        if (numbers[i] != (uint32_t)(i * 2654435761u))
            fail_msg("number %zu of %zu is another", i, count);
}

static void what_it_has_stays_as_it_grows(void **state)
{
    enum { MOST = 3 * (SLI_LARGE_BYTES / 4) };
    int before = open_descriptors();
    sli_large_array array = {0};
    (void)state;
    for (size_t count = 0, more = 1; count < MOST; more = 2 * more + 7) {
        size_t end = count + more < MOST ? count + more : MOST;
        check_ok(sli_large_array_reserve(&array, 4 * end, "numbers"));
        assert_true(array.bytes >= 4 * end);
        assert_int_equal(array.is_mapped, end > SLI_LARGE_BYTES / 4);
        fill(&array, count, end);
        count = end;
    }
    expect_filled(&array, MOST);
    sli_large_array_finish(&array, 4 * (MOST - 5000));
    assert_in_range(array.bytes, 4 * (MOST - 5000), 4 * MOST - 1);
    assert_int_equal(open_descriptors(), before);
    expect_filled(&array, MOST - 5000);
    sli_large_array_free(&array);
    assert_null(array.data);
}

static void small_one_is_fitted(void **state)
{
    sli_large_array array = {0};
    (void)state;
    check_ok(sli_large_array_reserve(&array, 1000, "numbers"));
    fill(&array, 0, 250);
    sli_large_array_finish(&array, 400);
    assert_false(array.is_mapped);
    assert_int_equal(array.bytes, 400);
    expect_filled(&array, 100);
    sli_large_array_free(&array);
}

/* It is as it was, and can be used. */
static void no_room_on_a_disk_is_one_sentence(void **state)
{
    struct rlimit before;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    sli_large_array array = {0};
    (void)state;
    check_ok(sli_large_array_reserve(&array, SLI_LARGE_BYTES, "numbers"));
    fill(&array, 0, SLI_LARGE_BYTES / 4);
    assert_int_equal(setenv("TMPDIR", "/nowhere/at/all", true), 0);
    check_error(sli_large_array_reserve(&array, 2 * SLI_LARGE_BYTES, "numbers"), SL_ERR_IO,
                "/nowhere/at/all: no file for numbers that may not fit in memory can be made "
                "there: No such file or directory");
    assert_int_equal(unsetenv("TMPDIR"), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, before.rlim_max}), 0);
    check_error(sli_large_array_reserve(&array, 2 * SLI_LARGE_BYTES, "numbers"), SL_ERR_IO,
                "numbers that may not fit in memory need a file of 32.00 MiB");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(signal(SIGXFSZ, handler) != SIG_ERR);
    assert_int_equal(array.bytes, SLI_LARGE_BYTES);
    expect_filled(&array, SLI_LARGE_BYTES / 4);
    check_ok(sli_large_array_reserve(&array, 2 * SLI_LARGE_BYTES, "numbers"));
    expect_filled(&array, SLI_LARGE_BYTES / 4);
    sli_large_array_free(&array);
}

int large_array_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_has_stays_as_it_grows),
        cmocka_unit_test(small_one_is_fitted),
        cmocka_unit_test(no_room_on_a_disk_is_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
