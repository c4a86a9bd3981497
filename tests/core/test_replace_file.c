#include "io/scratch.h"

#include "core/replace_file.h"

#include <errno.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

static void assert_content(const char *path, const char *expected)
{
    char content[64];
    size_t count = read_file(path, content, sizeof content);
    assert_int_equal(count, strlen(expected));
    assert_memory_equal(content, expected, count);
}

static void assert_create_refused(const char *path, sl_status expected, const char *reason)
{
    sli_replace_file *file = (sli_replace_file *)&file;
    assert_int_equal(sli_replace_file_create(path, &file), expected);
    assert_null(file);
    assert_non_null(strstr(sl_error_text(), reason));
}

static void commit_replaces_the_old_content(void **state)
{
    scratch *in = *state;
    char *path = scratch_path(in, "file");
    write_file(path, "a longer old content", 20);
    sli_replace_file *file;
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    assert_int_equal(sli_replace_file_reserve(file, 3), SL_OK);
    assert_int_equal(sli_replace_file_write(file, 1, "ew", 2), SL_OK);
    assert_int_equal(sli_replace_file_write(file, 0, "n", 1), SL_OK);
    assert_content(path, "a longer old content");
    assert_int_equal(scratch_entries(in, 0), 2);
    assert_int_equal(sli_replace_file_commit(file), SL_OK);
    sli_replace_file_destroy(&file);
    assert_null(file);
    assert_content(path, "new");
    assert_int_equal(scratch_entries(in, 0), 1);
}

static void commit_gives_the_mode_that_the_umask_asks_for(void **state)
{
    char *path = scratch_path(*state, "file");
    mode_t before = umask(027);
    sli_replace_file *file;
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    assert_int_equal(sli_replace_file_commit(file), SL_OK);
    sli_replace_file_destroy(&file);
    umask(before);
    struct stat found;
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0640);
}

static void commit_through_a_symbolic_link_replaces_its_target(void **state)
{
    scratch *in = *state;
    write_file(scratch_path(in, "target"), "old", 3);
    char *path = scratch_path(in, "link");
    assert_int_equal(symlink("target", path), 0);
    sli_replace_file *file;
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    assert_int_equal(sli_replace_file_write(file, 0, "new", 3), SL_OK);
    assert_int_equal(sli_replace_file_commit(file), SL_OK);
    sli_replace_file_destroy(&file);
    struct stat found;
    assert_int_equal(lstat(path, &found), 0);
    assert_true(S_ISLNK(found.st_mode));
    assert_content(scratch_path(in, "target"), "new");
    assert_int_equal(scratch_entries(in, 0), 2);
}

static void commit_through_a_link_to_nothing_makes_its_target(void **state)
{
    scratch *in = *state;
    char *path = scratch_path(in, "link");
    assert_int_equal(symlink("target", path), 0);
    sli_replace_file *file;
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    sli_replace_file_destroy(&file);
    assert_int_equal(scratch_entries(in, 0), 1); /* the link */
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    assert_int_equal(sli_replace_file_write(file, 0, "new", 3), SL_OK);
    assert_int_equal(sli_replace_file_commit(file), SL_OK);
    sli_replace_file_destroy(&file);
    struct stat found;
    assert_int_equal(lstat(path, &found), 0);
    assert_true(S_ISLNK(found.st_mode));
    assert_content(scratch_path(in, "target"), "new");
    assert_int_equal(scratch_entries(in, 0), 2);
}

static void commit_in_the_working_directory_needs_no_slash(void **state)
{
    scratch *in = *state;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(in->directory), 0);
    sli_replace_file *file;
    sl_status status = sli_replace_file_create("bare", &file);
    if (status == SL_OK)
        status = sli_replace_file_commit(file);
    sli_replace_file_destroy(&file);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(status, SL_OK);
    assert_content(scratch_path(in, "bare"), "");
}

static void destroy_without_commit_leaves_the_old_content_and_no_trace(void **state)
{
    scratch *in = *state;
    char *path = scratch_path(in, "file");
    write_file(path, "old", 3);
    sli_replace_file *file;
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    assert_int_equal(sli_replace_file_write(file, 0, "new", 3), SL_OK);
    sli_replace_file_destroy(&file);
    assert_content(path, "old");
    assert_int_equal(scratch_entries(in, 0), 1);
}

static void create_where_no_file_can_be_is_refused(void **state)
{
    scratch *in = *state;
    write_file(scratch_path(in, "file"), "", 0);
    assert_create_refused("", SL_ERR_INVALID, "must not be empty");
    assert_create_refused("/dev/full", SL_ERR_INVALID, "it is no regular file");
    assert_create_refused(in->directory, SL_ERR_INVALID, "it is a directory");
    assert_create_refused(scratch_path(in, "absent/file"), SL_ERR_NOT_FOUND,
                          "its directory does not exist");
    assert_create_refused(scratch_path(in, "file/file"), SL_ERR_IO,
                          "opening its directory failed: Not a directory");
    assert_int_equal(scratch_entries(in, 0), 1);
}

static void commit_over_a_new_directory_fails_and_leaves_no_trace(void **state)
{
    scratch *in = *state;
    char *path = scratch_path(in, "file");
    sli_replace_file *file;
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(sli_replace_file_commit(file), SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "giving it its name failed: Is a directory"));
    sli_replace_file_destroy(&file);
    assert_int_equal(scratch_entries(in, 0), 1);
}

/* A limit on the size of files stands for a disk that fills up after space was reserved. */
static void write_that_fails_leaves_the_old_content_and_no_trace(void **state)
{
    scratch *in = *state;
    char *path = scratch_path(in, "file"), block[4096] = {0};
    write_file(path, "old", 3);
    sli_replace_file *file;
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 6000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    sl_status first = sli_replace_file_write(file, 0, block, sizeof block);
    sl_status second = sli_replace_file_write(file, 4096, block, sizeof block);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    sli_replace_file_destroy(&file);
    assert_int_equal(first, SL_OK);
    assert_int_equal(second, SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "writing to it failed: File too large"));
    assert_content(path, "old");
    assert_int_equal(scratch_entries(in, 0), 1);
}

static int unmount(void **state)
{
    scratch *in = *state;
    umount2(in->directory, MNT_DETACH); /* fails where mounting did */
    return scratch_remove(state);
}

static void full_disk_is_found_before_and_while_writing(void **state)
{
    scratch *in = *state;
    if (mount("sluice-test", in->directory, "tmpfs", 0, "size=16k") != 0) {
        print_message("skipped: mounting a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    char *path = scratch_path(in, "file"), block[16384] = {0};
    write_file(path, "old", 3);
    sli_replace_file *file;
    assert_int_equal(sli_replace_file_create(path, &file), SL_OK);
    assert_int_equal(sli_replace_file_reserve(file, 16384), SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "no room for its 16384 bytes: No space left"));
    assert_int_equal(sli_replace_file_write(file, 0, block, sizeof block), SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "writing to it failed: No space left"));
    sli_replace_file_destroy(&file);
    assert_content(path, "old");
    assert_int_equal(scratch_entries(in, 0), 1);
}

int replace_file_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(commit_replaces_the_old_content),
        TEST(commit_gives_the_mode_that_the_umask_asks_for),
        TEST(commit_through_a_symbolic_link_replaces_its_target),
        TEST(commit_through_a_link_to_nothing_makes_its_target),
        TEST(commit_in_the_working_directory_needs_no_slash),
        TEST(destroy_without_commit_leaves_the_old_content_and_no_trace),
        TEST(create_where_no_file_can_be_is_refused),
        TEST(commit_over_a_new_directory_fails_and_leaves_no_trace),
        TEST(write_that_fails_leaves_the_old_content_and_no_trace),
        cmocka_unit_test_setup_teardown(full_disk_is_found_before_and_while_writing, scratch_create,
                                        unmount),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
