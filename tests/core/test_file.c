/* Paths, whole files and directories. What removes and replaces uses names in directories without
 * following links. */
#define _GNU_SOURCE /* MADV_POPULATE_READ */

#include "core/file.h"
#include "core/replace.h"

#include "io/scratch.h"
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

static int open_scratch(scratch *dir)
{
    int directory = open(dir->directory, O_RDONLY | O_DIRECTORY);
    assert_true(directory >= 0);
    return directory;
}

static void make_directory(scratch *dir, const char *name)
{
    assert_int_equal(mkdir(scratch_path(dir, name), 0777), 0);
}

static void make_link(scratch *dir, const char *target, const char *name)
{
    assert_int_equal(symlink(target, scratch_path(dir, name)), 0);
}

static bool exists(scratch *dir, const char *name)
{
    struct stat found;
    return lstat(scratch_path(dir, name), &found) == 0;
}

static void parent_is_found_whatever_slashes_follow(void **state)
{
    static const char *const paths[] = {"name", "name/", "name///", ".//name"};
    scratch *dir = *state;
    struct stat expected, found;
    assert_int_equal(stat(dir->directory, &expected), 0);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        int directory;
        FREED char *name = NULL;
        check_ok(sli_path_open_parent(scratch_path(dir, paths[i]), "it", &directory, &name));
        assert_string_equal(name, "name");
        assert_int_equal(fstat(directory, &found), 0);
        assert_int_equal(found.st_ino, expected.st_ino);
        close(directory);
    }
}

static void path_without_a_name_or_a_parent_is_refused(void **state)
{
    int directory;
    char *name;
    assert_int_equal(sli_path_open_parent("/", "it", &directory, &name), SL_ERR_INVALID);
    assert_int_equal(sli_path_open_parent("", "it", &directory, &name), SL_ERR_INVALID);
    assert_int_equal(sli_path_open_parent(scratch_path(*state, "no/where"), "it", &directory,
                                          &name),
                     SL_ERR_NOT_FOUND);
    assert_null(name);
}

static void links_are_followed_to_where_a_file_will_be(void **state)
{
    scratch *dir = *state;
    char *followed, *expected = strdup(scratch_path(dir, "sub/file"));
    make_directory(dir, "sub");
    make_link(dir, "sub/second", "first");
    make_link(dir, "file", "sub/second"); /* whose target is not there */
    check_ok(sli_path_follow(scratch_path(dir, "first"), &followed));
    assert_string_equal(followed, expected);
    free(followed);
    char *first = strdup(scratch_path(dir, "first"));
    assert_true(sli_path_same_file(first, expected));
    assert_false(sli_path_same_file(first, scratch_path(dir, "sub/other")));
    write_file(expected, "", 0);
    assert_true(sli_path_same_file(first, expected));
    free(first);
    free(expected);
    assert_int_equal(unlink(scratch_path(dir, "sub/file")), 0);
    assert_int_equal(unlink(scratch_path(dir, "sub/second")), 0);
}

static void links_in_a_circle_are_refused(void **state)
{
    scratch *dir = *state;
    char *followed;
    make_link(dir, "b", "a");
    make_link(dir, "a", "b");
    assert_int_equal(sli_path_follow(scratch_path(dir, "a"), &followed), SL_ERR_INVALID);
    assert_null(followed);
}

static void removal_takes_files_links_and_directories_of_files(void **state)
{
    scratch *dir = *state;
    int directory = open_scratch(dir);
    make_directory(dir, "archive");
    write_file(scratch_path(dir, "archive/kept"), "x", 1);
    make_directory(dir, "old");
    write_file(scratch_path(dir, "old/a"), "x", 1);
    make_link(dir, "../archive", "old/inside");
    make_link(dir, "archive", "link");
    write_file(scratch_path(dir, "file"), "x", 1);
    assert_true(sli_directory_remove(directory, "old"));
    assert_true(sli_directory_remove(directory, "link"));
    assert_true(sli_directory_remove(directory, "file"));
    assert_false(sli_directory_remove(directory, "nothing"));
    assert_int_equal(scratch_entries(dir, 0), 1);
    assert_true(exists(dir, "archive/kept"));
    assert_true(sli_directory_remove(directory, "archive"));
    close(directory);
}

static void directories_in_a_directory_stay(void **state)
{
    scratch *dir = *state;
    int directory = open_scratch(dir);
    make_directory(dir, "old");
    assert_true(sli_directory_is_flat(directory, "old"));
    make_directory(dir, "old/mine");
    assert_false(sli_directory_is_flat(directory, "old"));
    write_file(scratch_path(dir, "old/mine/text"), "x", 1);
    assert_false(sli_directory_remove(directory, "old"));
    assert_int_equal(errno, ENOTEMPTY);
    assert_true(exists(dir, "old/mine/text"));
    assert_int_equal(unlink(scratch_path(dir, "old/mine/text")), 0);
    assert_int_equal(rmdir(scratch_path(dir, "old/mine")), 0);
    close(directory);
}

static void file_that_is_open_is_removed_by_its_path_and_nothing_else(void **state)
{
    scratch *dir = *state;
    write_file(scratch_path(dir, "file"), "x", 1);
    make_link(dir, "file", "link");
    FREED char *link = strdup(scratch_path(dir, "link"));
    int descriptor = open(link, O_RDONLY);
    assert_int_equal(rename(scratch_path(dir, "file"), link), 0); /* the link is gone */
    make_link(dir, "other", "file");
    write_file(scratch_path(dir, "other"), "y", 1);
    sli_file_remove_open(scratch_path(dir, "file"), descriptor); /* leads elsewhere */
    assert_true(exists(dir, "file") && exists(dir, "other") && exists(dir, "link"));
    assert_int_equal(unlink(scratch_path(dir, "file")), 0);
    make_link(dir, "link", "file");
    sli_file_remove_open(scratch_path(dir, "file"), descriptor);
    assert_true(exists(dir, "file")); /* the link stays, its target goes */
    assert_false(exists(dir, "link"));
    close(descriptor);
}

/* Removes "full" while one descriptor can be opened, which is too few. */
static bool remove_without_descriptors(int directory)
{
    struct rlimit old;
    int lowest = dup(directory);
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    struct rlimit limit = {.rlim_cur = (rlim_t)lowest + 1, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    bool removed = sli_directory_remove(directory, "full");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    return removed;
}

static bool accept_all(const void *context, const char *of)
{
    return true;
}

static void what_has_no_status_keeps_the_callers_error(void **state)
{
    scratch *dir = *state;
    int directory = open_scratch(dir);
    FREED char *circle = strdup(scratch_path(dir, "a"));
    make_link(dir, "b", "a");
    make_link(dir, "a", "b");
    make_directory(dir, "old");
    make_directory(dir, "old/mine");
    make_directory(dir, "full");
    write_file(scratch_path(dir, "full/file"), "x", 1);
    (void)sl_error(SL_ERR_IO, "the first error");
    assert_false(sli_directory_is_flat(directory, "old"));
    assert_string_equal(sl_error_text(), "the first error");
    assert_false(sli_path_same_file(circle, scratch_path(dir, "no/where")));
    assert_false(sli_path_same_file(scratch_path(dir, "no/where"), circle));
    assert_string_equal(sl_error_text(), "the first error");
    sli_file_remove_open(circle, directory);
    sli_file_remove_open(scratch_path(dir, "no/where"), directory);
    assert_string_equal(sl_error_text(), "the first error");
    assert_false(remove_without_descriptors(directory));
    assert_string_equal(sl_error_text(), "the first error");
    sli_temporary_sweep(-1, accept_all, NULL);
    assert_string_equal(sl_error_text(), "the first error");
    assert_int_equal(rmdir(scratch_path(dir, "old/mine")), 0);
    assert_true(sli_directory_remove(directory, "old"));
    assert_true(sli_directory_remove(directory, "full"));
    close(directory);
}

static void whole_file_is_read_up_to_a_maximum(void **state)
{
    scratch *dir = *state;
    char *path, *data;
    size_t bytes;
    check_ok(sli_path_join(dir->directory, "file", &path));
    assert_string_equal(path, scratch_path(dir, "file"));
    write_file(path, "some text", 9);
    check_ok(sli_file_read(path, 9, &data, &bytes));
    assert_int_equal(bytes, 9);
    assert_string_equal(data, "some text"); /* a 0 follows */
    free(data);
    check_error(sli_file_read(path, 8, &data, &bytes), SL_ERR_FORMAT,
                "file: it has 9 bytes, more than the 8 allowed");
    assert_null(data);
    free(path);
}

static void what_is_no_file_is_not_read(void **state)
{
    scratch *dir = *state;
    char *data;
    size_t bytes;
    check_error(sli_file_read(scratch_path(dir, "none"), 9, &data, &bytes), SL_ERR_NOT_FOUND,
                "none: cannot be opened: No such file");
    check_error(sli_file_read(dir->directory, 9, &data, &bytes), SL_ERR_FORMAT, "is a directory");
    assert_int_equal(mkfifo(scratch_path(dir, "pipe"), 0600), 0);
    check_error(sli_file_read(scratch_path(dir, "pipe"), 9, &data, &bytes), SL_ERR_FORMAT,
                "is a device or pipe");
    assert_null(data);
}

static struct rlimit read_limit(void)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit;
}

static void descriptor_limit_is_raised_to_the_hard_one(void **state)
{
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

/* A map outlives the descriptor and the file, and keeps what is written to it. */
static void map_has_the_files_bytes_until_its_last_holder_is_gone(void **state)
{
    enum { SIZE = 10000 };
    static char bytes[SIZE];
    scratch *in = *state;
    const char *path = scratch_path(in, "mapped");
    sli_file_map *map, *other;
    int descriptor;
    uint64_t size;
    for (int i = 0; i < SIZE; i++)
        bytes[i] = (char)(i % 251);
    write_file(path, bytes, SIZE);
    check_ok(sli_file_open(path, &descriptor, &size));
    map = sli_file_map_create(descriptor, size);
    assert_non_null(map);
    check_ok(sli_file_map_load(map, path, 5000, 3000));
    close(descriptor);
    other = sli_file_map_hold(map);
    sli_file_map_release(&map);
    assert_null(map);
    sli_file_map_bytes(other)[7] = 99;
    char *data;
    size_t count;
    check_ok(sli_file_read(path, SIZE, &data, &count));
    assert_memory_equal(data, bytes, SIZE);
    free(data);
    assert_int_equal(remove(path), 0);
    bytes[7] = 99;
    assert_memory_equal(sli_file_map_bytes(other), bytes, SIZE);
    sli_file_map_release(&other);
    sli_file_map_release(&other);
}

/* Zeros that take no room on the disk. */
static void map_may_be_larger_than_the_memory(void **state)
{
    struct sysinfo memory;
    assert_int_equal(sysinfo(&memory), 0);
    const uint64_t size = 2 * (memory.totalram + memory.totalswap) * memory.mem_unit;
    char *policy;
    size_t bytes;
    check_ok(sli_file_read("/proc/sys/vm/overcommit_memory", 16, &policy, &bytes));
    bool counts_all = policy[0] == '2';
    free(policy);
    int descriptor = open(scratch_path(*state, "large"), O_RDWR | O_CREAT, 0666);
    assert_true(descriptor >= 0);
    if (counts_all || ftruncate(descriptor, (off_t)size) != 0) {
        close(descriptor);
        skip();
    }
    sli_file_map *map = sli_file_map_create(descriptor, size);
    close(descriptor);
    assert_non_null(map);
    assert_int_equal(sli_file_map_bytes(map)[size - 1], 0);
    sli_file_map_release(&map);
}

static void map_that_the_system_cannot_make_is_null(void **state)
{
    int descriptor = open(scratch_path(*state, "file"), O_RDWR | O_CREAT, 0666);
    assert_true(descriptor >= 0);
    assert_null(sli_file_map_create(descriptor, UINT64_MAX / 4));
    close(descriptor);
}

static bool loads_pages(void)
{
#ifdef MADV_POPULATE_READ
    long page = sysconf(_SC_PAGESIZE);
    void *own = mmap(NULL, (size_t)page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool loads = own != MAP_FAILED && madvise(own, (size_t)page, MADV_POPULATE_READ) == 0;
    munmap(own, (size_t)page);
    return loads;
#else
    return false;
#endif
}

static void map_of_a_file_that_became_shorter_says_so(void **state)
{
    enum { SIZE = 1 << 20 };
    static const char zeros[SIZE];
    const char *path = scratch_path(*state, "shorter");
    int descriptor;
    uint64_t size;
    if (!loads_pages())
        skip();
    write_file(path, zeros, SIZE);
    check_ok(sli_file_open(path, &descriptor, &size));
    sli_file_map *map = sli_file_map_create(descriptor, size);
    close(descriptor);
    assert_non_null(map);
    assert_int_equal(truncate(path, SIZE / 2), 0);
    check_ok(sli_file_map_load(map, path, 100, SIZE / 2 - 100));
    check_error(sli_file_map_load(map, path, 100, SIZE - 100), SL_ERR_IO,
                "shorter: its 1048476 bytes from byte 100 cannot be read: it has become shorter, "
                "or its disk has an error");
    sli_file_map_release(&map);
}

int file_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(parent_is_found_whatever_slashes_follow),
        TEST(path_without_a_name_or_a_parent_is_refused),
        TEST(links_are_followed_to_where_a_file_will_be),
        TEST(links_in_a_circle_are_refused),
        TEST(removal_takes_files_links_and_directories_of_files),
        TEST(directories_in_a_directory_stay),
        TEST(what_has_no_status_keeps_the_callers_error),
        TEST(file_that_is_open_is_removed_by_its_path_and_nothing_else),
        TEST(whole_file_is_read_up_to_a_maximum),
        TEST(what_is_no_file_is_not_read),
        cmocka_unit_test(descriptor_limit_is_raised_to_the_hard_one),
        TEST(map_has_the_files_bytes_until_its_last_holder_is_gone),
        TEST(map_may_be_larger_than_the_memory),
        TEST(map_that_the_system_cannot_make_is_null),
        TEST(map_of_a_file_that_became_shorter_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
