/* What tests/support/check.h promises: a test that hangs shows where. */
#define _GNU_SOURCE
#include "support/check.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Neither static nor inlined, so that stacks show their names. */
void *wait_in_a_thread(void *argument);
void wait_in_main(void) __attribute__((noinline));

void *wait_in_a_thread(void *argument)
{
    for (;;)
        pause();
    return argument;
}

void wait_in_main(void)
{
    for (;;)
        pause();
}

static _Noreturn void hang(int error)
{
    pthread_t thread;
    dup2(error, STDERR_FILENO);
    if (pthread_create(&thread, NULL, wait_in_a_thread, NULL) == 0)
        abort_with_stacks_after(1);
    wait_in_main();
    _exit(0);
}

static void stacks_of_all_threads_are_shown_and_the_process_aborts(void **state)
{
    int ends[2], status;
    char text[65536];
    size_t used = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        hang(ends[1]);
    close(ends[1]);
    for (ssize_t bytes; (bytes = read(ends[0], text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)bytes;
    text[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_non_null(strstr(text, "wait_in_main"));
    assert_non_null(strstr(text, "wait_in_a_thread"));
}

int hang_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacks_of_all_threads_are_shown_and_the_process_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
