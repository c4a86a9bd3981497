#include "core/large_array.h"
#include "support/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

/* Files of this process can have so many bytes from here on; their former bound. */
static struct rlimit limit_files(rlim_t bytes)
{
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, before.rlim_max}), 0);
    return before;
}

static void grow(sli_large_array *array, size_t from, size_t to, bool is_mapped)
{
    check_ok(sli_large_array_reserve(array, to, "numbers"));
    assert_true(array->bytes >= to);
    assert_int_equal(array->is_mapped, is_mapped);
    assert_int_equal(array->file > 0, is_mapped);
    fill(array, from / 4, to / 4);
    expect_filled(array, to / 4);
}

static void without_a_directory_it_is_in_memory(void **state)
{
    enum { STEP = SLI_LARGE_BYTES };
    int before = open_descriptors();
    sli_large_array array = {0};
    (void)state;
    assert_int_equal(setenv("TMPDIR", "/nowhere/at/all", true), 0);
    grow(&array, 0, 2 * STEP, false);
    grow(&array, 2 * STEP, 3 * STEP, false);
    assert_int_equal(unsetenv("TMPDIR"), 0);
    grow(&array, 3 * STEP, 4 * STEP, true);
    sli_large_array_free(&array);
    assert_int_equal(setenv("TMPDIR", "/proc", true), 0); /* no file can be made in it */
    grow(&array, 0, 2 * STEP, false);
    sli_large_array_finish(&array, STEP);
    assert_int_equal(array.bytes, STEP);
    expect_filled(&array, STEP / 4);
    sli_large_array_free(&array);
    assert_int_equal(unsetenv("TMPDIR"), 0);
    assert_int_equal(open_descriptors(), before);
}

static void where_the_disk_is_full_it_is_in_memory(void **state)
{
    enum { STEP = SLI_LARGE_BYTES };
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    int descriptors = open_descriptors();
    sli_large_array array = {0};
    (void)state;
    struct rlimit before = limit_files(2 * STEP);
    grow(&array, 0, 2 * STEP, true);
    grow(&array, 2 * STEP, 3 * STEP, false);
    assert_int_equal(open_descriptors(), descriptors);
    grow(&array, 3 * STEP, 4 * STEP, false);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    grow(&array, 4 * STEP, 6 * STEP, true);
    sli_large_array_free(&array);
    assert_true(signal(SIGXFSZ, handler) != SIG_ERR);
    assert_int_equal(open_descriptors(), descriptors);
}

/* It is as it was, and can be used. */
static void no_room_at_all_is_one_sentence(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)state;
    skip(); /* a sanitizer ends a program that asks for so much */
#else
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    sli_large_array array = {0};
    (void)state;
    grow(&array, 0, 2 * SLI_LARGE_BYTES, true);
    struct rlimit before = limit_files(1 << 20);
    check_error(sli_large_array_reserve(&array, SIZE_MAX / 8, "numbers"), SL_ERR_MEMORY,
                "of numbers have room neither in a file in /tmp (File too large) nor in memory: "
                "set TMPDIR to a directory with room");
    assert_int_equal(setenv("TMPDIR", "/nowhere", true), 0);
    check_error(sli_large_array_reserve(&array, SIZE_MAX / 8, "numbers"), SL_ERR_MEMORY,
                "in /nowhere (No such file or directory)");
    assert_int_equal(unsetenv("TMPDIR"), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(signal(SIGXFSZ, handler) != SIG_ERR);
    assert_int_equal(array.bytes, 2 * SLI_LARGE_BYTES);
    expect_filled(&array, SLI_LARGE_BYTES / 2);
    grow(&array, 2 * SLI_LARGE_BYTES, 3 * SLI_LARGE_BYTES, true);
    sli_large_array_free(&array);
#endif
}

static void file_without_a_name_is_made_from_one_with(void **state)
{
    char directory[] = "/tmp/sluice-large-XXXXXX", long_name[5000];
    struct stat about;
    (void)state;
    assert_non_null(mkdtemp(directory));
    int file = sli_open_unlinked(directory);
    assert_true(file >= 0);
    assert_int_equal(rmdir(directory), 0); /* it is empty */
    assert_int_equal(fstat(file, &about), 0);
    assert_int_equal(about.st_nlink, 0);
    assert_int_equal(pwrite(file, "data", 4, 0), 4);
    assert_true(fcntl(file, F_GETFD) & FD_CLOEXEC);
    close(file);
    assert_int_equal(sli_open_unlinked(directory), -1);
    assert_int_equal(errno, ENOENT);
    memset(long_name, '/', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(sli_open_unlinked(long_name), -1);
    assert_int_equal(errno, ENAMETOOLONG);
}

int large_array_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_has_stays_as_it_grows),
        cmocka_unit_test(small_one_is_fitted),
        cmocka_unit_test(without_a_directory_it_is_in_memory),
        cmocka_unit_test(where_the_disk_is_full_it_is_in_memory),
        cmocka_unit_test(no_room_at_all_is_one_sentence),
        cmocka_unit_test(file_without_a_name_is_made_from_one_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
