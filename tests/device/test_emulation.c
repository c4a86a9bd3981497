/* The emulation of CUDA finds what it is for: missing and wrong barriers. */
#include "support/check.h"

#ifdef SLUICE_TEST_EMULATION
#include "device/cuda/emulated.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Any single order of threads finds the race, whichever it is. */
static void check_races(bool (*race)(bool with_barrier))
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        emulation_seed(seed);
        assert_false(race(true));
        assert_true(race(false));
    }
}

static void a_missing_barrier_before_reading_is_found_in_every_order(void **state)
{
    (void)state;
    check_races(race_before_reading);
}

static void a_missing_barrier_before_writing_is_found_in_every_order(void **state)
{
    (void)state;
    check_races(race_before_writing);
}

static void what_a_block_leaves_in_shared_memory_is_nan_to_the_next(void **state)
{
    (void)state;
    assert_true(shared_memory_begins_as_nan());
}

static void threads_that_wait_for_others_in_vain_end_the_process(void **state)
{
    (void)state;
    for (int by_warp = 0; by_warp < 2; by_warp++) {
        pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            deadlock(by_warp);
            _exit(0);
        }
        int status = 0;
        assert_true(child > 0 && waitpid(child, &status, 0) == child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int emulation_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_barrier_before_reading_is_found_in_every_order),
        cmocka_unit_test(a_missing_barrier_before_writing_is_found_in_every_order),
        cmocka_unit_test(what_a_block_leaves_in_shared_memory_is_nan_to_the_next),
        cmocka_unit_test(threads_that_wait_for_others_in_vain_end_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int emulation_tests(void)
{
    print_message("skipped: the build lacks a C++ compiler for emulated kernels\n");
    return 77;
}
#endif
