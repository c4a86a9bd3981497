/* Temporary names, and leftovers of writers that died. */
#include "core/temporary.h"

#include "core/replace_directory.h"
#include "core/replace_file.h"
#include "io/scratch.h"
#include "support/check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#define NUMBER "0123456789abcdef"

static bool exists(scratch *in, const char *name)
{
    struct stat found;
    return lstat(scratch_path(in, name), &found) == 0;
}

static void names_are_parsed_back(void **state)
{
    char name[SLI_TEMPORARY_BYTES], of[SLI_TEMPORARY_BYTES], text[300];
    (void)state;
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
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (sli_temporary_parse(names[i], of))
            fail_msg("\"%s\" counts as one of %s", names[i], of);
}

/* Leftovers of "model": a file, a directory with files, one that was being removed twice, a link.
 */
static void make_leftovers(scratch *in)
{
    write_file(scratch_path(in, ".model." NUMBER ".tmp"), "x", 1);
    assert_int_equal(mkdir(scratch_path(in, ".model.1123456789abcdef.tmp"), 0777), 0);
    write_file(scratch_path(in, ".model.1123456789abcdef.tmp/a"), "x", 1);
    assert_int_equal(mkdir(scratch_path(in, "..model." NUMBER ".tmp.2123456789abcdef.tmp"), 0777),
                     0);
    assert_int_equal(symlink("mine", scratch_path(in, ".model.3123456789abcdef.tmp")), 0);
}

static void make_others(scratch *in)
{
    write_file(scratch_path(in, "mine"), "x", 1);
    write_file(scratch_path(in, ".model2." NUMBER ".tmp"), "x", 1);
    write_file(scratch_path(in, ".model.tmp"), "x", 1);
    write_file(scratch_path(in, ".model.notes.tmp"), "x", 1);
}

static void next_file_of_the_name_removes_leftovers_and_nothing_else(void **state)
{
    scratch *in = *state;
    sli_replace_file *file;
    make_leftovers(in);
    make_others(in);
    check_ok(sli_replace_file_create(scratch_path(in, "model"), &file));
    assert_int_equal(scratch_entries(in, 0), 4 + 1);
    check_ok(sli_replace_file_commit(file));
    sli_replace_file_destroy(&file);
    assert_int_equal(scratch_entries(in, 0), 4 + 1);
    assert_true(exists(in, "mine") && exists(in, "model") && exists(in, ".model.notes.tmp"));
}

static void next_directory_of_the_name_removes_leftovers_and_nothing_else(void **state)
{
    scratch *in = *state;
    sli_replace_directory *directory;
    make_leftovers(in);
    make_others(in);
    check_ok(sli_replace_directory_create(scratch_path(in, "model/"), &directory));
    assert_int_equal(scratch_entries(in, 0), 4 + 1);
    check_ok(sli_replace_directory_commit(directory));
    sli_replace_directory_destroy(&directory);
    assert_int_equal(scratch_entries(in, 0), 4 + 1);
    assert_true(exists(in, "mine") && exists(in, "model"));
}

/* The text that a process has written to a pipe; empty where it has ended. */
static void wait_for_word(int from)
{
    char word;
    assert_int_equal(read(from, &word, 1), 1);
}

/* A process that writes both, says so, and waits to be killed. */
static pid_t start_writer(scratch *in, int *said)
{
    int words[2];
    assert_int_equal(pipe(words), 0);
    pid_t writer = fork();
    if (writer == 0) {
        sli_replace_file *file;
        sli_replace_directory *directory;
        bool started = sli_replace_file_create(scratch_path(in, "model"), &file) == SL_OK &&
                       sli_replace_directory_join(scratch_path(in, "best"), 7, &directory) == SL_OK;
        if (started && write(words[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    close(words[1]);
    *said = words[0];
    return writer;
}

static void replace_both(scratch *in)
{
    sli_replace_file *file;
    sli_replace_directory *directory;
    check_ok(sli_replace_file_create(scratch_path(in, "model"), &file));
    sli_replace_file_destroy(&file);
    check_ok(sli_replace_directory_create(scratch_path(in, "best"), &directory));
    sli_replace_directory_destroy(&directory);
}

static void what_a_live_process_writes_is_no_leftover(void **state)
{
    scratch *in = *state;
    int said;
    pid_t writer = start_writer(in, &said);
    assert_true(writer > 0);
    wait_for_word(said);
    replace_both(in);
    int living = scratch_entries(in, 0);
    assert_int_equal(kill(writer, SIGKILL), 0);
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    assert_int_equal(living, 2);
    replace_both(in);
    assert_int_equal(scratch_entries(in, 0), 0);
    close(said);
}

/* A sweep that comes between the creation and its lock takes the file away. */
static void name_that_was_swept_before_its_lock_is_not_held(void **state)
{
    scratch *in = *state;
    int directory = open(in->directory, O_RDONLY | O_DIRECTORY);
    int file = openat(directory, ".model." NUMBER ".tmp", O_RDWR | O_CREAT, 0666);
    sli_temporary_sweep_name(directory, "model");
    assert_false(sli_temporary_hold(directory, ".model." NUMBER ".tmp", file));
    close(file);
    file = openat(directory, ".model." NUMBER ".tmp", O_RDWR | O_CREAT, 0666);
    assert_true(sli_temporary_hold(directory, ".model." NUMBER ".tmp", file));
    sli_temporary_sweep_name(directory, "model");
    assert_int_equal(scratch_entries(in, 0), 1);
    close(file);
    sli_temporary_sweep_name(directory, "model");
    assert_int_equal(scratch_entries(in, 0), 0);
    close(directory);
}

int temporary_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(names_are_parsed_back),
        TEST(other_names_are_not_temporary),
        TEST(next_file_of_the_name_removes_leftovers_and_nothing_else),
        TEST(next_directory_of_the_name_removes_leftovers_and_nothing_else),
        TEST(what_a_live_process_writes_is_no_leftover),
        TEST(name_that_was_swept_before_its_lock_is_not_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
