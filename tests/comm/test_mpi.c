/* Groups over MPI: mpirun starts mpi_driver's ranks as processes. */
#include "core/clock.h"
#include "mpi_job.h"
#include "support/check.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
enum { IS_THREAD_SANITIZED = 1 };
#else
enum { IS_THREAD_SANITIZED = 0 };
#endif

static void every_case_of_the_contract_holds_over_processes(void **state)
{
    for (int ranks = 2; ranks <= 4; ranks++) /* one needs no launcher */
        mpi_job_succeed("contract", ranks);
}

static void operations_give_the_bits_of_local_ranks(void **state)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        mpi_job_succeed("bits", ranks);
}

/* On the fake CUDA runtime and the fake NCCL of tests/device/cuda. */
static void nccl_between_processes_gives_the_bits_of_local_ranks(void **state)
{
    if (!getenv("FAKE_CUDA_ANY_MEMORY")) {
        print_message("skipped: the fake CUDA runtime was not built\n");
        skip();
    }
    mpi_job_succeed("nccl", 2);
}

static void pipes_over_processes_give_the_bits_of_one_stage(void **state)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        mpi_job_succeed("pipes", ranks);
}

/* Between two processes of a host, whose stages send each other activations and gradients. */
static void tensor_of_another_stage_is_copied_once(void **state)
{
    mpi_job_succeed("copied_once", 2);
    if (*mpi_job.out_text) {
        print_message("skipped: %s", mpi_job.out_text);
        skip();
    }
}

static void group_can_be_created_more_than_once(void **state)
{
    mpi_job_succeed("again", 2);
}

static void operation_past_its_time_limit_names_who_never_came(void **state)
{
    mpi_job_run("late", 3);
    for (int rank = 0; rank < 3; rank++) /* the late one learns it as well */
        check_rank_says(rank, "all_reduce(sum, 1000 x f32), operation 2 of the group: rank 2 did "
                              "not come within 0.3 s");
}

static void operation_after_a_rank_left_fails(void **state)
{
    mpi_job_run("leaves", 3);
    for (int rank = 0; rank < 2; rank++)
        check_rank_says(rank, "barrier, operation 2 of the group: rank 2 left the group before it "
                              "came");
}

static void receive_from_a_rank_that_left_gets_what_it_sent_then_fails(void **state)
{
    mpi_job_run("receives_from_a_leaver", 3);
    check_rank_says(0, "recv, tag 3: rank 2 has left the group");
    assert_null(strstr(mpi_job.err_text, "rank 1:"));
}

static void receive_from_anyone_says_so(void **state)
{
    mpi_job_run("receives_from_anyone", 2);
    assert_non_null(
        strstr(mpi_job.err_text, "first: recv, tag 3: nothing came from any rank within"));
    check_rank_says(1, "recv, tag 3: nothing came from any rank within 0.3 s");
    check_rank_says(0, "recv, tag 3: all others have left the group");
}

static void abort_ends_all_ranks_with_its_text(void **state)
{
    mpi_job_run("aborts", 3);
    for (int rank = 0; rank < 3; rank++)
        check_rank_says(rank, "rank 2: the loss is NaN");
}

static void mismatch_in_debug_mode_names_both_calls(void **state)
{
    setenv("SL_DEBUG", "collectives", 1);
    mpi_job_run("mismatch", 3);
    unsetenv("SL_DEBUG");
    for (int rank = 0; rank < 3; rank++)
        check_rank_says(rank, "operation 1 of the group differs: rank 0 called all_reduce(max, 1 x "
                              "f32), rank 1 broadcast(2 x f32, root 0)");
}

/* The victim says how many allocations there were. */
static void check_without_memory(const char *name)
{
    int sessions = 0, makings = 0, splits = 0;
    mpi_job_succeed(name, 2);
    if (!*mpi_job.out_text) {
        print_message("skipped: this program cannot put itself before malloc\n");
        skip();
    }
    assert_int_equal(sscanf(mpi_job.out_text, "failed %d %d %d", &sessions, &makings, &splits), 3);
    assert_true(sessions > 1 && makings > 4 && splits > 6);
}

static void group_where_one_rank_lacks_memory_fails_at_once_on_all(void **state)
{
    check_without_memory("first_without_memory");
    mpi_job_end(state);
    check_without_memory("second_without_memory");
}

/* ---- Death -------------------------------------------------------------------------------- */

static void wait_for_pids(int ranks)
{
    int known = 0;
    while (known < ranks) {
        if (mpi_job_poll())
            fail_msg("the ranks ended by themselves:\n%s", mpi_job.err_text);
        known = 0;
        for (char *line = mpi_job.out_text; (line = strstr(line, "pid ")); line++) {
            char *end;
            long rank = strtol(line + 4, &end, 10);
            if (strchr(line, '\n') && rank >= 0 && rank < MAX_RANKS) {
                mpi_job.ranks[rank] = (pid_t)strtol(end, NULL, 10);
                known++;
            }
        }
    }
}

/* All but one have ended, and nothing is left. Each survivor names the lost rank, as a rank of the
 * job or of a sub-group, also where it has noticed only that another survivor left because of it.
 */
static void check_survivors(int ranks, int lost, const char *fate)
{
    char named[64], of_the_job[64];
    snprintf(named, sizeof named, "rank %d %s", lost, fate);
    snprintf(of_the_job, sizeof of_the_job, "%d of the job%s %s", lost, lost == 0 ? "" : ")", fate);
    for (int rank = 0; rank < ranks; rank++) {
        if (rank != lost && !rank_says(rank, of_the_job))
            check_rank_says(rank, named);
        assert_int_equal(kill(mpi_job.ranks[rank], 0), -1);
        assert_int_equal(errno, ESRCH);
    }
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* How many ranks are killed: a tenth of SLUICE_KILLS, and at least one of each number of ranks. */
static int death_count(void)
{
    const char *kills = getenv("SLUICE_KILLS");
    int count = kills ? atoi(kills) / 10 : 0;
    return count > 3 ? count : 3;
}

/* Every survivor names the rank, its host and its stage: by its place in the pipe, one a rank. */
static void check_pipe_survivors(int ranks, int lost)
{
    char named[64], fate[64];
    snprintf(named, sizeof named, "rank %d on ", lost);
    snprintf(fate, sizeof fate, ", stage %d died", lost);
    for (int rank = 0; rank < ranks; rank++) {
        if (rank == lost)
            continue;
        check_rank_says(rank, named);
        check_rank_says(rank, fate);
    }
}

static void death_of_a_stage_is_named_with_host_and_stage(void **state)
{
    if (mpi_job_is_mpich) {
        print_message("skipped: MPICH's launcher ends the survivors before they can tell\n");
        skip();
    }
    uint64_t seed = test_seed(1);
    double slowest = 0;
    for (int i = 0; i < death_count(); i++) {
        int ranks = 2 + i % 3, lost = (int)(random_next(&seed) % (uint64_t)ranks);
        mpi_job_start("endless_pipe", ranks);
        wait_for_pids(ranks);
        usleep((useconds_t)(random_next(&seed) % 50000));
        double killed = sli_clock_seconds();
        kill(mpi_job.ranks[lost], SIGKILL);
        mpi_job_finish(HANG_SECONDS);
        slowest = fmax(slowest, sli_clock_seconds() - killed);
        check_pipe_survivors(ranks, lost);
    }
    print_message("the slowest of %d ends came after %.2f s\n", death_count(), slowest);
}

static void death_of_a_rank_ends_the_others_and_leaves_nothing_behind(void **state)
{
    if (mpi_job_is_mpich) {
        print_message("skipped: MPICH's launcher ends the survivors before they can tell\n");
        skip();
    }
    const char *given = getenv("SLUICE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 1;
    double slowest = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < death_count(); i++) {
        int ranks = 2 + i % 3, lost = (int)(random_next(&seed) % (uint64_t)ranks);
        mpi_job_start("endless", ranks);
        wait_for_pids(ranks);
        usleep((useconds_t)(random_next(&seed) % 50000));
        double killed = sli_clock_seconds();
        kill(mpi_job.ranks[lost], SIGKILL);
        mpi_job_finish(HANG_SECONDS);
        slowest = fmax(slowest, sli_clock_seconds() - killed);
        check_survivors(ranks, lost, "died");
    }
    print_message("the slowest of %d ends came after %.2f s\n", death_count(), slowest);
}

/* Starts three ranks, and stops rank 1 until the others have told an error. */
static void stop_rank_1(const char *name)
{
    mpi_job_start(name, 3);
    wait_for_pids(3);
    kill(mpi_job.ranks[1], SIGSTOP);
    double until = sli_clock_seconds() + HANG_SECONDS;
    while (!(strstr(mpi_job.err_text, "rank 0:") && strstr(mpi_job.err_text, "rank 2:"))) {
        assert_false(mpi_job_poll());
        assert_true(sli_clock_seconds() < until);
    }
    kill(mpi_job.ranks[1], SIGKILL);
    mpi_job_finish(HANG_SECONDS);
}

/* A stopped process answers as little as one behind a link that is cut. */
static void rank_that_falls_silent_is_given_up(void **state)
{
    stop_rank_1("endless");
    check_survivors(3, 1, "cannot be reached any more");
}

/* The time limit is shorter than the hub waits for a rank that is silent. On a busy machine the hub
 * may be first: either names the rank. */
static void stage_that_is_late_is_named_with_host_and_stage(void **state)
{
    stop_rank_1("endless_pipe_with_limit");
    for (int rank = 0; rank < 3; rank += 2) {
        check_rank_says(rank, "rank 1 on ");
        check_rank_says(rank, ", stage 1 ");
        if (!rank_says(rank, "within 3 s"))
            check_rank_says(rank, "cannot be reached any more");
    }
}

/* For longer than the limit of silence, 4 s, and than that of an operation, also 4 s here; and in
 * orders in which each process is the first to wake once. What then runs for as long again has not
 * been given up by anyone. */
static void job_that_was_suspended_as_a_whole_goes_on(void **state)
{
    enum { RANKS = 3, PROCESSES = RANKS + 1 };
    static const int orders[][PROCESSES] = {{0, 1, 2, 3}, {2, 3, 0, 1}};
    mpi_job_start("until_told", RANKS);
    wait_for_pids(RANKS);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        pid_t all[PROCESSES] = {mpi_job.ranks[0], mpi_job.ranks[1], mpi_job.ranks[2],
                                mpi_job.mpirun};
        for (int p = 0; p < PROCESSES; p++)
            kill(all[orders[i][PROCESSES - 1 - p]], SIGSTOP);
        usleep(4500000);
        for (int p = 0; p < PROCESSES; p++) {
            kill(all[orders[i][p]], SIGCONT);
            usleep(300000);
        }
        for (double until = sli_clock_seconds() + 5; sli_clock_seconds() < until;)
            assert_false(mpi_job_poll());
    }
    kill(mpi_job.ranks[0], SIGUSR1);
    mpi_job_finish(HANG_SECONDS);
    check_nobody_complains();
}

/* ---- The plugin --------------------------------------------------------------------------- */

static void program_without_a_launcher_is_a_group_of_one(void **state)
{
    char driver[4096], command[4200];
    mpi_driver_path(driver, sizeof driver);
    snprintf(command, sizeof command, "%s contract 2>&1", driver);
    mpi_job_capture(command);
    check_nobody_complains();
}

/* A program that was not told of a plugin takes none that lies beside it or its folder, where
 * others may be able to write. */
static void plugin_beside_a_program_is_not_taken(void **state)
{
    char driver[4096], folder[] = "/tmp/sluice-mpi-XXXXXX", command[16000];
    mpi_driver_path(driver, sizeof driver);
    assert_non_null(mkdtemp(folder));
    snprintf(
        command, sizeof command,
        "cd %s && mkdir -p bin/sluice lib/sluice && cp %s_alone bin/ && cp %s bin/ && "
        "cp %s bin/sluice/ && cp %s lib/sluice/ && cd bin && ./mpi_driver_alone contract 2>&1; "
        "rm -r %s",
        folder, driver, SLUICE_MPI_PLUGIN, SLUICE_MPI_PLUGIN, SLUICE_MPI_PLUGIN, folder);
    mpi_job_capture(command);
    check_rank_says(-1,
                    "sluice_mpi.so was not found, neither on the program's library path nor in ");
}

/* Wherever it lies, one that was told does find it. */
static void program_takes_the_plugin_of_its_build(void **state)
{
    char driver[4096], folder[] = "/tmp/sluice-mpi-XXXXXX", command[9000];
    mpi_driver_path(driver, sizeof driver);
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command, "cp %s %s/ && %s/mpi_driver contract 2>&1; rm -r %s", driver,
             folder, folder, folder);
    mpi_job_capture(command);
    check_nobody_complains();
}

int mpi_tests(void)
{
    if (!*SLUICE_MPIRUN || access(SLUICE_MPIRUN, X_OK) != 0 || IS_THREAD_SANITIZED) {
        print_message(IS_THREAD_SANITIZED ? "skipped: MPI is not built for ThreadSanitizer\n"
                                          : "skipped: built without MPI, or without mpirun\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_case_of_the_contract_holds_over_processes, mpi_job_end),
        cmocka_unit_test_teardown(nccl_between_processes_gives_the_bits_of_local_ranks,
                                  mpi_job_end),
        cmocka_unit_test_teardown(operations_give_the_bits_of_local_ranks, mpi_job_end),
        cmocka_unit_test_teardown(pipes_over_processes_give_the_bits_of_one_stage, mpi_job_end),
        cmocka_unit_test_teardown(tensor_of_another_stage_is_copied_once, mpi_job_end),
        cmocka_unit_test_teardown(group_can_be_created_more_than_once, mpi_job_end),
        cmocka_unit_test_teardown(operation_past_its_time_limit_names_who_never_came, mpi_job_end),
        cmocka_unit_test_teardown(operation_after_a_rank_left_fails, mpi_job_end),
        cmocka_unit_test_teardown(receive_from_a_rank_that_left_gets_what_it_sent_then_fails,
                                  mpi_job_end),
        cmocka_unit_test_teardown(receive_from_anyone_says_so, mpi_job_end),
        cmocka_unit_test_teardown(abort_ends_all_ranks_with_its_text, mpi_job_end),
        cmocka_unit_test_teardown(mismatch_in_debug_mode_names_both_calls, mpi_job_end),
        cmocka_unit_test_teardown(group_where_one_rank_lacks_memory_fails_at_once_on_all,
                                  mpi_job_end),
        cmocka_unit_test_teardown(death_of_a_stage_is_named_with_host_and_stage, mpi_job_end),
        cmocka_unit_test_teardown(death_of_a_rank_ends_the_others_and_leaves_nothing_behind,
                                  mpi_job_end),
        cmocka_unit_test_teardown(rank_that_falls_silent_is_given_up, mpi_job_end),
        cmocka_unit_test_teardown(stage_that_is_late_is_named_with_host_and_stage, mpi_job_end),
        cmocka_unit_test_teardown(job_that_was_suspended_as_a_whole_goes_on, mpi_job_end),
        cmocka_unit_test(program_without_a_launcher_is_a_group_of_one),
        cmocka_unit_test(plugin_beside_a_program_is_not_taken),
        cmocka_unit_test(program_takes_the_plugin_of_its_build),
    };
    mpi_job_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
