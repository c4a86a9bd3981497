/* Files that appear whole: under a temporary name until they are committed. */
#include "core/replace.h"

#include "io/scratch.h"
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define NUMBER "0123456789abcdef"

/* ---- Files ------------------------------------------------------------------------------ */

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
    scratch *dir = *state;
    char *path = scratch_path(dir, "file");
    write_file(path, "a longer old content", 20);
    sli_replace_file *file;
    check_ok(sli_replace_file_create(path, &file));
    check_ok(sli_replace_file_reserve(file, 3));
    check_ok(sli_replace_file_write(file, 1, "ew", 2));
    check_ok(sli_replace_file_write(file, 0, "n", 1));
    assert_content(path, "a longer old content");
    assert_int_equal(scratch_entries(dir, 0), 2);
    check_ok(sli_replace_file_commit(file));
    sli_replace_file_destroy(&file);
    assert_null(file);
    assert_content(path, "new");
    assert_int_equal(scratch_entries(dir, 0), 1);
}

static void whole_file_is_written_at_once(void **state)
{
    scratch *dir = *state;
    char *path = scratch_path(dir, "file");
    check_ok(sli_file_write(path, "old", 3));
    check_ok(sli_file_write(path, "newer", 5));
    assert_content(path, "newer");
    assert_int_equal(scratch_entries(dir, 0), 1);
    check_error(sli_file_write(dir->directory, "new", 3), SL_ERR_INVALID, "it is a directory");
}

static void what_is_left_can_be_opened_again(void **state)
{
    scratch *dir = *state;
    char *path = scratch_path(dir, "file"), temporary[SLI_TEMPORARY_BYTES];
    sli_replace_file *file;
    write_file(path, "old", 3);
    check_ok(sli_replace_file_create(path, &file));
    check_ok(sli_replace_file_write(file, 0, "newest", 6));
    strcpy(temporary, sli_replace_file_temporary(file));
    sli_replace_file_leave(&file);
    assert_null(file);
    assert_int_equal(scratch_entries(dir, 0), 2);
    check_error(sli_replace_file_reopen(path, ".other." NUMBER ".tmp", 3, &file), SL_ERR_FORMAT,
                "expected its temporary name");
    check_error(sli_replace_file_reopen(path, ".file." NUMBER ".tmp", 3, &file), SL_ERR_NOT_FOUND,
                "what was written of it cannot be opened");
    check_ok(sli_replace_file_reopen(path, temporary, 3, &file));
    check_ok(sli_replace_file_write(file, 3, "er", 2));
    assert_content(path, "old");
    check_ok(sli_replace_file_commit(file));
    sli_replace_file_destroy(&file);
    assert_content(path, "newer");
    assert_int_equal(scratch_entries(dir, 0), 1);
    check_ok(sli_replace_file_create(path, &file));
    sli_replace_file_leave(&file);
    check_ok(sli_file_write(path, "last", 4)); /* anew: what was left goes */
    assert_int_equal(scratch_entries(dir, 0), 1);
}

static void commit_gives_the_mode_that_the_umask_asks_for(void **state)
{
    char *path = scratch_path(*state, "file");
    mode_t before = umask(027);
    sli_replace_file *file;
    check_ok(sli_replace_file_create(path, &file));
    check_ok(sli_replace_file_commit(file));
    sli_replace_file_destroy(&file);
    umask(before);
    struct stat found;
    assert_int_equal(stat(path, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0640);
}

static void check_replaces_target(scratch *dir, const char *link)
{
    struct stat found;
    check_ok(sli_file_write(link, "new", 3));
    assert_int_equal(lstat(link, &found), 0);
    assert_true(S_ISLNK(found.st_mode));
    assert_content(scratch_path(dir, "target"), "new");
    assert_int_equal(scratch_entries(dir, 0), 2);
}

static void commit_through_a_symbolic_link_replaces_its_target(void **state)
{
    scratch *dir = *state;
    write_file(scratch_path(dir, "target"), "old", 3);
    char *path = scratch_path(dir, "link");
    assert_int_equal(symlink("target", path), 0);
    check_replaces_target(dir, path);
}

static void commit_through_a_link_to_nothing_makes_its_target(void **state)
{
    scratch *dir = *state;
    char *path = scratch_path(dir, "link");
    assert_int_equal(symlink("target", path), 0);
    sli_replace_file *file;
    check_ok(sli_replace_file_create(path, &file));
    sli_replace_file_destroy(&file);
    assert_int_equal(scratch_entries(dir, 0), 1); /* the link */
    check_replaces_target(dir, path);
}

static void commit_in_the_working_directory_needs_no_slash(void **state)
{
    scratch *dir = *state;
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(dir->directory), 0);
    sli_replace_file *file;
    sl_status status = sli_replace_file_create("bare", &file);
    if (status == SL_OK)
        status = sli_replace_file_commit(file);
    sli_replace_file_destroy(&file);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(status, SL_OK);
    assert_content(scratch_path(dir, "bare"), "");
}

static void destroy_without_commit_leaves_the_old_content_and_no_trace(void **state)
{
    scratch *dir = *state;
    char *path = scratch_path(dir, "file");
    write_file(path, "old", 3);
    sli_replace_file *file;
    check_ok(sli_replace_file_create(path, &file));
    check_ok(sli_replace_file_write(file, 0, "new", 3));
    sli_replace_file_destroy(&file);
    assert_content(path, "old");
    assert_int_equal(scratch_entries(dir, 0), 1);
}

static void create_where_no_file_can_be_is_refused(void **state)
{
    scratch *dir = *state;
    write_file(scratch_path(dir, "file"), "", 0);
    assert_create_refused("", SL_ERR_INVALID, "must not be empty");
    assert_create_refused("/dev/full", SL_ERR_INVALID, "it is no regular file");
    assert_create_refused(dir->directory, SL_ERR_INVALID, "it is a directory");
    assert_create_refused(scratch_path(dir, "absent/file"), SL_ERR_NOT_FOUND,
                          "its directory does not exist");
    assert_create_refused(scratch_path(dir, "file/file"), SL_ERR_NOT_FOUND,
                          "its directory cannot be opened: Not a directory");
    assert_int_equal(scratch_entries(dir, 0), 1);
}

static void commit_over_a_new_directory_fails_and_leaves_no_trace(void **state)
{
    scratch *dir = *state;
    char *path = scratch_path(dir, "file");
    sli_replace_file *file;
    check_ok(sli_replace_file_create(path, &file));
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(sli_replace_file_commit(file), SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "cannot be given its name: Is a directory"));
    sli_replace_file_destroy(&file);
    assert_int_equal(scratch_entries(dir, 0), 1);
}

/* A limit on the size of files stands for a disk that fills up after space was reserved. */
static void write_that_fails_leaves_the_old_content_and_no_trace(void **state)
{
    scratch *dir = *state;
    char *path = scratch_path(dir, "file"), block[4096] = {0};
    write_file(path, "old", 3);
    sli_replace_file *file;
    check_ok(sli_replace_file_create(path, &file));
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
    assert_non_null(strstr(sl_error_text(), "cannot be written: File too large"));
    assert_content(path, "old");
    assert_int_equal(scratch_entries(dir, 0), 1);
}

static int unmount(void **state)
{
    scratch *dir = *state;
    umount2(dir->directory, MNT_DETACH); /* fails where mounting did */
    return scratch_remove(state);
}

static void full_disk_is_found_before_and_while_writing(void **state)
{
    scratch *dir = *state;
    if (mount("sluice-test", dir->directory, "tmpfs", 0, "size=16k") != 0) {
        print_message("skipped: mounting a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    char *path = scratch_path(dir, "file"), block[16384] = {0};
    write_file(path, "old", 3);
    sli_replace_file *file;
    check_ok(sli_replace_file_create(path, &file));
    assert_int_equal(sli_replace_file_reserve(file, 16384), SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "no room for its 16384 bytes: No space left"));
    assert_int_equal(sli_replace_file_write(file, 0, block, sizeof block), SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "cannot be written: No space left"));
    sli_replace_file_destroy(&file);
    assert_content(path, "old");
    assert_int_equal(scratch_entries(dir, 0), 1);
}

/* ---- Temporary names -------------------------------------------------------------------- */

static bool exists(scratch *dir, const char *name)
{
    struct stat found;
    return lstat(scratch_path(dir, name), &found) == 0;
}

static void names_are_parsed_back(void **state)
{
    char name[SLI_TEMPORARY_BYTES], of[SLI_TEMPORARY_BYTES], text[300];
    sli_temporary_name("best", 0x123456789abcdef, name);
    assert_string_equal(name, ".best." NUMBER ".tmp");
    assert_true(sli_temporary_parse(name, of));
    assert_string_equal(of, "best");
    memset(text, 'x', sizeof text);
    text[255] = '\0';
    sli_temporary_name(text, 1, name);
    assert_true(strlen(name) < 255 && sli_temporary_parse(name, of));
    assert_int_equal(strlen(of), 200);
}

static void other_names_are_not_temporary(void **state)
{
    static const char *const names[] = {
        "best",
        ".best.tmp",
        ".best.0123.tmp",
        "best." NUMBER ".tmp",
        ".best." NUMBER ".tm",
        ".best." NUMBER "0.tmp",
        ".best.0123456789ABCDEF.tmp",
        "." NUMBER ".tmp",
        ".best-" NUMBER ".tmp",
        "",
        ".",
    };
    char of[SLI_TEMPORARY_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (sli_temporary_parse(names[i], of))
            fail_msg("\"%s\" counts as one of %s", names[i], of);
}

/* Leftovers of "model": a file, a directory with files, one that was being removed twice, a link.
 */
static void make_leftovers(scratch *dir)
{
    write_file(scratch_path(dir, ".model." NUMBER ".tmp"), "x", 1);
    assert_int_equal(mkdir(scratch_path(dir, ".model.1123456789abcdef.tmp"), 0777), 0);
    write_file(scratch_path(dir, ".model.1123456789abcdef.tmp/a"), "x", 1);
    assert_int_equal(mkdir(scratch_path(dir, "..model." NUMBER ".tmp.2123456789abcdef.tmp"), 0777),
                     0);
    assert_int_equal(symlink("mine", scratch_path(dir, ".model.3123456789abcdef.tmp")), 0);
}

static void make_others(scratch *dir)
{
    write_file(scratch_path(dir, "mine"), "x", 1);
    write_file(scratch_path(dir, ".model2." NUMBER ".tmp"), "x", 1);
    write_file(scratch_path(dir, ".model.tmp"), "x", 1);
    write_file(scratch_path(dir, ".model.notes.tmp"), "x", 1);
}

static void next_file_of_the_name_removes_leftovers_and_nothing_else(void **state)
{
    scratch *dir = *state;
    sli_replace_file *file;
    make_leftovers(dir);
    make_others(dir);
    check_ok(sli_replace_file_create(scratch_path(dir, "model"), &file));
    assert_int_equal(scratch_entries(dir, 0), 4 + 1);
    check_ok(sli_replace_file_commit(file));
    sli_replace_file_destroy(&file);
    assert_int_equal(scratch_entries(dir, 0), 4 + 1);
    assert_true(exists(dir, "mine") && exists(dir, "model") && exists(dir, ".model.notes.tmp"));
}

static void next_directory_of_the_name_removes_leftovers_and_nothing_else(void **state)
{
    scratch *dir = *state;
    sli_replace_directory *directory;
    make_leftovers(dir);
    make_others(dir);
    check_ok(sli_replace_directory_create(scratch_path(dir, "model/"), &directory));
    assert_int_equal(scratch_entries(dir, 0), 4 + 1);
    check_ok(sli_replace_directory_commit(directory, false));
    sli_replace_directory_destroy(&directory);
    assert_int_equal(scratch_entries(dir, 0), 4 + 1);
    assert_true(exists(dir, "mine") && exists(dir, "model"));
}

/* The text that a process has written to a pipe; empty where it has ended. */
static void wait_for_word(int from)
{
    char word;
    assert_int_equal(read(from, &word, 1), 1);
}

/* A process that writes both, says so, and waits to be killed. */
static pid_t start_writer(scratch *dir, int *said)
{
    int words[2];
    assert_int_equal(pipe(words), 0);
    pid_t writer = fork();
    if (writer == 0) {
        sli_replace_file *file;
        sli_replace_directory *directory;
        bool started =
            sli_replace_file_create(scratch_path(dir, "model"), &file) == SL_OK &&
            sli_replace_directory_join(scratch_path(dir, "best"), 7, &directory) == SL_OK;
        if (started && write(words[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    close(words[1]);
    *said = words[0];
    return writer;
}

static void replace_both(scratch *dir)
{
    sli_replace_file *file;
    SCOPED(sli_replace_directory) *directory = NULL;
    check_ok(sli_replace_file_create(scratch_path(dir, "model"), &file));
    sli_replace_file_destroy(&file);
    check_ok(sli_replace_directory_create(scratch_path(dir, "best"), &directory));
}

static void what_a_live_process_writes_is_no_leftover(void **state)
{
    scratch *dir = *state;
    int said;
    pid_t writer = start_writer(dir, &said);
    assert_true(writer > 0);
    wait_for_word(said);
    replace_both(dir);
    int living = scratch_entries(dir, 0);
    assert_int_equal(kill(writer, SIGKILL), 0);
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    assert_int_equal(living, 2);
    replace_both(dir);
    assert_int_equal(scratch_entries(dir, 0), 0);
    close(said);
}

/* A sweep that comes between the creation and its lock takes the file away. */
static void name_that_was_swept_before_its_lock_is_not_held(void **state)
{
    scratch *dir = *state;
    int directory = open(dir->directory, O_RDONLY | O_DIRECTORY);
    int file = openat(directory, ".model." NUMBER ".tmp", O_RDWR | O_CREAT, 0666);
    sli_temporary_sweep_name(directory, "model");
    assert_false(sli_temporary_hold(directory, ".model." NUMBER ".tmp", file));
    close(file);
    file = openat(directory, ".model." NUMBER ".tmp", O_RDWR | O_CREAT, 0666);
    assert_true(sli_temporary_hold(directory, ".model." NUMBER ".tmp", file));
    sli_temporary_sweep_name(directory, "model");
    assert_int_equal(scratch_entries(dir, 0), 1);
    close(file);
    sli_temporary_sweep_name(directory, "model");
    assert_int_equal(scratch_entries(dir, 0), 0);
    close(directory);
}

int replace_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(commit_replaces_the_old_content),
        TEST(whole_file_is_written_at_once),
        TEST(what_is_left_can_be_opened_again),
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
        TEST(names_are_parsed_back),
        TEST(other_names_are_not_temporary),
        TEST(next_file_of_the_name_removes_leftovers_and_nothing_else),
        TEST(next_directory_of_the_name_removes_leftovers_and_nothing_else),
        TEST(what_a_live_process_writes_is_no_leftover),
        TEST(name_that_was_swept_before_its_lock_is_not_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
