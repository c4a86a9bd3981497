/* Directories of files that appear whole: under a temporary name until they are committed. */
#include "core/replace.h"

#include "io/scratch.h"
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>

static void put(sli_replace_directory *directory, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", sli_replace_directory_temporary(directory), name);
    write_file(path, name, strlen(name));
}

static void commit(const char *path, const char *name)
{
    SCOPED(sli_replace_directory) *directory = NULL;
    check_ok(sli_replace_directory_create(path, &directory));
    put(directory, name);
    check_ok(sli_replace_directory_commit(directory, false));
}

static void directory_appears_when_committed(void **state)
{
    sli_replace_directory *directory;
    FREED char *path = strdup(scratch_path(*state, "new"));
    check_ok(sli_replace_directory_create(path, &directory));
    put(directory, "a");
    assert_int_not_equal(access(path, F_OK), 0);
    check_ok(sli_replace_directory_commit(directory, false));
    sli_replace_directory_destroy(&directory);
    assert_int_equal(access(scratch_path(*state, "new/a"), F_OK), 0);
    assert_int_equal(scratch_entries(*state, 0), 1);
    check_ok(sli_remove_directory(path));
    assert_int_equal(scratch_entries(*state, 0), 0);
}

static void directory_replaces_an_older_one(void **state)
{
    FREED char *path = strdup(scratch_path(*state, "same"));
    commit(path, "old");
    commit(path, "new");
    assert_int_equal(access(scratch_path(*state, "same/new"), F_OK), 0);
    assert_int_not_equal(access(scratch_path(*state, "same/old"), F_OK), 0);
    assert_int_equal(scratch_entries(*state, 0), 1);
    check_ok(sli_remove_directory(path));
}

static mode_t mode_of(const char *path)
{
    struct stat found;
    assert_int_equal(stat(path, &found), 0);
    return found.st_mode & 0777;
}

static void what_is_replaced_keeps_its_mode(void **state)
{
    FREED char *path = strdup(scratch_path(*state, "kept"));
    mode_t before = umask(022);
    write_file(path, "old", 3);
    assert_int_equal(chmod(path, 0620), 0);
    check_ok(sli_file_write(path, "new", 3));
    assert_int_equal(mode_of(path), 0620);
    assert_int_equal(remove(path), 0);
    commit(path, "file");
    assert_int_equal(mode_of(path), 0755);
    assert_int_equal(chmod(path, 0770), 0);
    assert_int_equal(chmod(scratch_path(*state, "kept/file"), 0600), 0);
    commit(path, "file");
    umask(before);
    assert_int_equal(mode_of(path), 0770);
    assert_int_equal(mode_of(scratch_path(*state, "kept/file")), 0600);
    check_ok(sli_remove_directory(path));
}

/* Where nothing was when the work began, something may be when it ends. */
static void new_directory_replaces_nothing(void **state)
{
    sli_replace_directory *directory;
    FREED char *path = strdup(scratch_path(*state, "new"));
    check_ok(sli_replace_directory_create(path, &directory));
    put(directory, "mine");
    commit(path, "another's");
    check_error(sli_replace_directory_commit(directory, true), SL_ERR_IO,
                "new: cannot be given its name: File exists");
    sli_replace_directory_destroy(&directory);
    assert_int_equal(access(scratch_path(*state, "new/another's"), F_OK), 0);
    assert_int_equal(scratch_entries(*state, 0), 1);
    check_ok(sli_remove_directory(path));
}

/* Not half of it, either. Root may remove it, so this is another user. */
static void write_protected_directory_is_not_removed(void **state)
{
    enum { NOBODY = 65534 };
    FREED char *path = strdup(scratch_path(*state, "protected"));
    uid_t own = geteuid();
    commit(path, "file");
    if (own == 0) {
        assert_int_equal(chown(path, NOBODY, (gid_t)-1), 0);
        assert_int_equal(chmod(((scratch *)*state)->directory, 0777), 0);
        assert_int_equal(seteuid(NOBODY), 0);
    }
    assert_int_equal(chmod(path, 0555), 0);
    sl_status status = sli_remove_directory(path);
    assert_int_equal(seteuid(own), 0);
    check_error(status, SL_ERR_IO, "protected: cannot be removed: Permission denied");
    assert_int_equal(access(scratch_path(*state, "protected/file"), F_OK), 0);
    assert_int_equal(chmod(path, 0755), 0);
    check_ok(sli_remove_directory(path));
}

static void joined_directory_is_left_to_the_one_that_creates_it(void **state)
{
    FREED char *path = strdup(scratch_path(*state, "both"));
    sli_replace_directory *directory, *joined;
    check_ok(sli_replace_directory_join(path, 7, &joined)); /* may come first */
    put(joined, "theirs");
    sli_replace_directory_destroy(&joined);
    check_ok(sli_replace_directory_create_numbered(path, 7, &directory));
    put(directory, "own");
    check_ok(sli_replace_directory_commit(directory, false));
    sli_replace_directory_destroy(&directory);
    assert_int_equal(access(scratch_path(*state, "both/theirs"), F_OK), 0);
    assert_int_equal(access(scratch_path(*state, "both/own"), F_OK), 0);
    assert_int_equal(scratch_entries(*state, 0), 1);
    check_ok(sli_remove_directory(path));
}

static void directory_not_committed_is_removed(void **state)
{
    sli_replace_directory *directory;
    FREED char *path = strdup(scratch_path(*state, "kept"));
    commit(path, "old");
    check_ok(sli_replace_directory_create(path, &directory));
    put(directory, "new");
    sli_replace_directory_destroy(&directory);
    assert_null(directory);
    assert_int_equal(access(scratch_path(*state, "kept/old"), F_OK), 0);
    assert_int_equal(scratch_entries(*state, 0), 1);
    check_ok(sli_remove_directory(path));
}

static void impossible_place_is_refused(void **state)
{
    sli_replace_directory *directory;
    assert_int_equal(sli_replace_directory_create(scratch_path(*state, "no/where"), &directory),
                     SL_ERR_NOT_FOUND);
    assert_null(directory);
    assert_non_null(strstr(sl_error_text(), "no/where: "));
    assert_int_equal(sli_remove_directory(scratch_path(*state, "nothing")), SL_ERR_NOT_FOUND);
    check_error(sli_remove_directory(scratch_path(*state, "no/where")), SL_ERR_NOT_FOUND,
                "no/where: its directory does not exist");
}

/* A link of the name goes, what it leads to stays. */
static void link_is_replaced_or_removed_and_its_target_stays(void **state)
{
    scratch *dir = *state;
    FREED char *path = strdup(scratch_path(dir, "link"));
    assert_int_equal(mkdir(scratch_path(dir, "archive"), 0777), 0);
    write_file(scratch_path(dir, "archive/kept"), "x", 1);
    assert_int_equal(symlink("archive", path), 0);
    check_ok(sli_remove_directory(path));
    assert_int_equal(scratch_entries(dir, 0), 1);
    assert_int_equal(symlink("archive", path), 0);
    commit(path, "new");
    assert_int_equal(scratch_entries(dir, 0), 2);
    assert_int_equal(access(scratch_path(dir, "link/new"), F_OK), 0);
    assert_int_equal(access(scratch_path(dir, "archive/kept"), F_OK), 0);
    check_ok(sli_remove_directory(path));
    check_ok(sli_remove_directory(scratch_path(dir, "archive")));
}

static void files_and_directories_of_directories_are_not_removed(void **state)
{
    scratch *dir = *state;
    write_file(scratch_path(dir, "file"), "x", 1);
    assert_int_equal(sli_remove_directory(scratch_path(dir, "file")), SL_ERR_INVALID);
    assert_int_equal(mkdir(scratch_path(dir, "old"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(dir, "old/mine"), 0777), 0);
    write_file(scratch_path(dir, "old/a"), "x", 1);
    assert_int_equal(sli_remove_directory(scratch_path(dir, "old")), SL_ERR_INVALID);
    assert_int_equal(access(scratch_path(dir, "old/a"), F_OK), 0);
    assert_int_equal(access(scratch_path(dir, "file"), F_OK), 0);
    assert_int_equal(unlink(scratch_path(dir, "old/a")), 0);
    assert_int_equal(rmdir(scratch_path(dir, "old/mine")), 0);
}

int replace_directory_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(directory_appears_when_committed),
        TEST(directory_replaces_an_older_one),
        TEST(what_is_replaced_keeps_its_mode),
        TEST(new_directory_replaces_nothing),
        TEST(write_protected_directory_is_not_removed),
        TEST(joined_directory_is_left_to_the_one_that_creates_it),
        TEST(directory_not_committed_is_removed),
        TEST(impossible_place_is_refused),
        TEST(link_is_replaced_or_removed_and_its_target_stays),
        TEST(files_and_directories_of_directories_are_not_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
