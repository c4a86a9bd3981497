#define _GNU_SOURCE /* pipe2 */
/* Groups over MPI: mpirun starts mpi_driver's ranks as processes. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SLUICE_MPIRUN
#define SLUICE_MPIRUN     "" /* built without MPI */
#define SLUICE_MPI_PLUGIN ""
#endif
#ifdef __SANITIZE_THREAD__
enum { IS_THREAD_SANITIZED = 1 };
#else
enum { IS_THREAD_SANITIZED = 0 };
#endif

extern char **environ;

/* HANG_SECONDS is far above the 5 s that are promised: a slow machine is no failure. What was
 * really needed is printed. */
enum { MAX_RANKS = 8, TEXT_BYTES = 32768, HANG_SECONDS = 60, ALONE_SECONDS = 20 };

/* One mpirun, with what it has written; one at a time. */
static struct {
    pid_t mpirun; /* 0: none runs */
    int out, err;
    char out_text[TEXT_BYTES], err_text[TEXT_BYTES];
    int status;
    pid_t ranks[MAX_RANKS]; /* of the case `endless` */
} job;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- Running ranks ------------------------------------------------------------------------ */

static void driver_path(char *path, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, bytes - 16);
    assert_true(length > 0);
    path[length] = '\0';
    snprintf(strrchr(path, '/'), 16, "/mpi_driver");
}

static bool is_mpich; /* else Open MPI */

static void start(const char *name, int ranks)
{
    char driver[4096], count[16];
    int out[2], err[2];
    driver_path(driver, sizeof driver);
    snprintf(count, sizeof count, "%d", ranks);
    /* The launcher must leave the survivors of a rank alone. */
    char *open_mpi[] = {
        SLUICE_MPIRUN, "--oversubscribe", "--bind-to", "none", "--enable-recovery", "-n", count,
        driver,        (char *)name,      NULL};
    char *mpich[] = {SLUICE_MPIRUN, "-disable-auto-cleanup", "-n", count, driver, (char *)name,
                     NULL};
    char **words = is_mpich ? mpich : open_mpi;
    memset(&job, 0, sizeof job);
    assert_int_equal(pipe2(out, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC | O_NONBLOCK), 0);
    posix_spawn_file_actions_t actions;
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    assert_int_equal(posix_spawn(&job.mpirun, words[0], &actions, NULL, words, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    job.out = out[0];
    job.err = err[0];
}

static void read_some(int fd, char *text)
{
    size_t used = strlen(text);
    ssize_t bytes;
    while ((bytes = read(fd, text + used, TEXT_BYTES - 1 - used)) > 0) {
        used += (size_t)bytes;
        text[used] = '\0';
    }
}

static bool poll_job(void)
{
    struct pollfd both[2] = {{job.out, POLLIN, 0}, {job.err, POLLIN, 0}};
    bool ended = waitpid(job.mpirun, &job.status, WNOHANG) == job.mpirun;
    if (!ended)
        poll(both, 2, 10);
    read_some(job.out, job.out_text);
    read_some(job.err, job.err_text);
    return ended;
}

/* Ends what runs: also in the teardown of a test that has failed. */
static int end_job(void **state)
{
    (void)state;
    if (job.mpirun > 0) {
        kill(job.mpirun, SIGTERM);
        double until = now() + 5;
        while (waitpid(job.mpirun, &job.status, WNOHANG) == 0 && now() < until)
            usleep(10000);
        for (int r = 0; r < MAX_RANKS; r++)
            if (job.ranks[r] > 0)
                kill(job.ranks[r], SIGKILL);
        kill(job.mpirun, SIGKILL);
        waitpid(job.mpirun, &job.status, 0);
        close(job.out);
        close(job.err);
    }
    job.mpirun = 0;
    return 0;
}

/* Whether no process runs that mpirun has started. */
static bool ranks_have_ended(void)
{
    char pattern[64];
    glob_t lists;
    bool running = false;
    snprintf(pattern, sizeof pattern, "/proc/%d/task/*/children", (int)job.mpirun);
    if (glob(pattern, 0, NULL, &lists) != 0)
        return true;
    for (size_t i = 0; i < lists.gl_pathc; i++) {
        FILE *list = fopen(lists.gl_pathv[i], "r");
        int child;
        while (list && fscanf(list, "%d", &child) == 1)
            running |= process_runs(child);
        if (list)
            fclose(list);
    }
    globfree(&lists);
    return !running;
}

/* Open MPI's mpirun may lock itself up in its own end (PMIx_server_finalize) when a rank was
 * killed: where it stays behind its ranks for ALONE_SECONDS it is killed as well. */
static void finish(double seconds)
{
    double until = now() + seconds, last_with_ranks = now();
    while (!poll_job()) {
        if (!ranks_have_ended())
            last_with_ranks = now();
        else if (now() > last_with_ranks + ALONE_SECONDS)
            kill(job.mpirun, SIGKILL);
        if (now() > until)
            fail_msg("the ranks still run after %g s:\n%s%s", seconds, job.out_text, job.err_text);
    }
    job.mpirun = 0;
    close(job.out);
    close(job.err);
}

/* ---- What they must say ------------------------------------------------------------------- */

static bool rank_says(int rank, const char *text)
{
    char begin[32];
    snprintf(begin, sizeof begin, "rank %d: ", rank);
    for (const char *line = job.err_text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        size_t length = strcspn(line, "\n");
        const char *at = strncmp(line, begin, strlen(begin)) == 0 ? strstr(line, text) : NULL;
        if (at && at < line + length)
            return true;
    }
    return false;
}

/* Fails unless rank `rank` has ended with an error that contains `text`. */
static void check_rank_says(int rank, const char *text)
{
    if (!rank_says(rank, text))
        fail_msg("rank %d did not say \"%s\", but all ranks:\n%s", rank, text, job.err_text);
}

static void check_nobody_complains(void)
{
    if (strstr(job.err_text, "rank "))
        fail_msg("%s", job.err_text);
    assert_true(WIFEXITED(job.status));
    assert_int_equal(WEXITSTATUS(job.status), 0);
}

static void run(const char *name, int ranks)
{
    start(name, ranks);
    finish(2 * HANG_SECONDS);
}

static void every_case_of_the_contract_holds_over_processes(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        run("contract", ranks);
        check_nobody_complains();
    }
}

static void operations_give_the_bits_of_local_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        run("bits", ranks);
        check_nobody_complains();
    }
}

/* On the fake CUDA runtime and the fake NCCL of tests/device/cuda. */
static void nccl_between_processes_gives_the_bits_of_local_ranks(void **state)
{
    (void)state;
    if (!getenv("FAKE_CUDA_ANY_MEMORY"))
        skip();
    run("nccl", 2);
    check_nobody_complains();
}

static void pipes_over_processes_give_the_bits_of_one_stage(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++) {
        run("pipes", ranks);
        check_nobody_complains();
    }
}

static void group_can_be_created_more_than_once(void **state)
{
    (void)state;
    run("again", 2);
    check_nobody_complains();
}

static void operation_past_its_time_limit_names_who_never_came(void **state)
{
    (void)state;
    run("late", 3);
    for (int rank = 0; rank < 3; rank++) /* the late one learns it as well */
        check_rank_says(rank, "all_reduce(sum, 1000 x f32), operation 2 of the group: rank 2 did "
                              "not come within 0.3 s");
}

static void operation_after_a_rank_left_fails(void **state)
{
    (void)state;
    run("leaves", 3);
    for (int rank = 0; rank < 2; rank++)
        check_rank_says(rank, "barrier, operation 2 of the group: rank 2 left the group before it "
                              "came");
}

static void receive_from_a_rank_that_left_gets_what_it_sent_then_fails(void **state)
{
    (void)state;
    run("receives_from_a_leaver", 3);
    check_rank_says(0, "recv, tag 3: rank 2 has left the group");
    assert_null(strstr(job.err_text, "rank 1:"));
}

static void receive_from_anyone_says_so(void **state)
{
    (void)state;
    run("receives_from_anyone", 2);
    assert_non_null(strstr(job.err_text, "first: recv, tag 3: nothing came from any rank within"));
    check_rank_says(1, "recv, tag 3: nothing came from any rank within 0.3 s");
    check_rank_says(0, "recv, tag 3: all others have left the group");
}

static void abort_ends_all_ranks_with_its_text(void **state)
{
    (void)state;
    run("aborts", 3);
    for (int rank = 0; rank < 3; rank++)
        check_rank_says(rank, "rank 2: the loss is NaN");
}

static void mismatch_in_debug_mode_names_both_calls(void **state)
{
    (void)state;
    setenv("SL_DEBUG", "collectives", 1);
    run("mismatch", 3);
    unsetenv("SL_DEBUG");
    for (int rank = 0; rank < 3; rank++)
        check_rank_says(rank, "operation 1 of the group differs: rank 0 called all_reduce(max, 1 x "
                              "f32), rank 1 broadcast(2 x f32, root 0)");
}

/* The victim says how many allocations there were. */
static void check_without_memory(const char *name)
{
    int sessions = 0, makings = 0, splits = 0;
    run(name, 2);
    check_nobody_complains();
    if (!*job.out_text) {
        print_message("skipped: this program cannot put itself before malloc\n");
        skip();
    }
    assert_int_equal(sscanf(job.out_text, "failed %d %d %d", &sessions, &makings, &splits), 3);
    assert_true(sessions > 1 && makings > 4 && splits > 6);
}

static void group_where_one_rank_lacks_memory_fails_at_once_on_all(void **state)
{
    (void)state;
    check_without_memory("first_without_memory");
    end_job(state);
    check_without_memory("second_without_memory");
}

/* ---- Death -------------------------------------------------------------------------------- */

static void wait_for_pids(int ranks)
{
    int known = 0;
    while (known < ranks) {
        if (poll_job())
            fail_msg("the ranks ended by themselves:\n%s", job.err_text);
        known = 0;
        for (char *line = job.out_text; (line = strstr(line, "pid ")); line++) {
            char *end;
            long rank = strtol(line + 4, &end, 10);
            if (strchr(line, '\n') && rank >= 0 && rank < MAX_RANKS) {
                job.ranks[rank] = (pid_t)strtol(end, NULL, 10);
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
        assert_int_equal(kill(job.ranks[rank], 0), -1);
        assert_int_equal(errno, ESRCH);
    }
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* How many ranks are killed: a quarter of SLUICE_KILLS, 5 where it is not set. */
static int death_count(void)
{
    const char *kills = getenv("SLUICE_KILLS");
    return kills ? atoi(kills) / 4 : 5;
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
    (void)state;
    if (is_mpich) {
        print_message("skipped: MPICH's launcher ends the survivors before they can tell\n");
        skip();
    }
    uint64_t seed = test_seed(1);
    double slowest = 0;
    for (int i = 0; i < death_count(); i++) {
        int ranks = 2 + i % 3, lost = (int)(random_next(&seed) % (uint64_t)ranks);
        start("endless_pipe", ranks);
        wait_for_pids(ranks);
        usleep((useconds_t)(random_next(&seed) % 50000));
        double killed = now();
        kill(job.ranks[lost], SIGKILL);
        finish(HANG_SECONDS);
        slowest = fmax(slowest, now() - killed);
        check_pipe_survivors(ranks, lost);
    }
    print_message("the slowest of %d ends came after %.2f s\n", death_count(), slowest);
}

static void death_of_a_rank_ends_the_others_and_leaves_nothing_behind(void **state)
{
    (void)state;
    if (is_mpich) {
        print_message("skipped: MPICH's launcher ends the survivors before they can tell\n");
        skip();
    }
    const char *given = getenv("SLUICE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 1;
    double slowest = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < death_count(); i++) {
        int ranks = 2 + i % 3, lost = (int)(random_next(&seed) % (uint64_t)ranks);
        start("endless", ranks);
        wait_for_pids(ranks);
        usleep((useconds_t)(random_next(&seed) % 50000));
        double killed = now();
        kill(job.ranks[lost], SIGKILL);
        finish(HANG_SECONDS);
        slowest = fmax(slowest, now() - killed);
        check_survivors(ranks, lost, "died");
    }
    print_message("the slowest of %d ends came after %.2f s\n", death_count(), slowest);
}

/* Starts three ranks, and stops rank 1 until the others have told an error. */
static void stop_rank_1(const char *name)
{
    start(name, 3);
    wait_for_pids(3);
    kill(job.ranks[1], SIGSTOP);
    double until = now() + HANG_SECONDS;
    while (!(strstr(job.err_text, "rank 0:") && strstr(job.err_text, "rank 2:"))) {
        assert_false(poll_job());
        assert_true(now() < until);
    }
    kill(job.ranks[1], SIGKILL);
    finish(HANG_SECONDS);
}

/* A stopped process answers as little as one behind a link that is cut. */
static void rank_that_falls_silent_is_given_up(void **state)
{
    (void)state;
    stop_rank_1("endless");
    check_survivors(3, 1, "cannot be reached any more");
}

/* The time limit is shorter than the hub waits for a rank that is silent. On a busy machine the hub
 * may be first: either names the rank. */
static void stage_that_is_late_is_named_with_host_and_stage(void **state)
{
    (void)state;
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
    (void)state;
    enum { RANKS = 3, PROCESSES = RANKS + 1 };
    static const int orders[][PROCESSES] = {{0, 1, 2, 3}, {2, 3, 0, 1}};
    start("until_told", RANKS);
    wait_for_pids(RANKS);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        pid_t all[PROCESSES] = {job.ranks[0], job.ranks[1], job.ranks[2], job.mpirun};
        for (int p = 0; p < PROCESSES; p++)
            kill(all[orders[i][PROCESSES - 1 - p]], SIGSTOP);
        usleep(4500000);
        for (int p = 0; p < PROCESSES; p++) {
            kill(all[orders[i][p]], SIGCONT);
            usleep(300000);
        }
        for (double until = now() + 5; now() < until;)
            assert_false(poll_job());
    }
    kill(job.ranks[0], SIGUSR1);
    finish(HANG_SECONDS);
    check_nobody_complains();
}

/* ---- The plugin --------------------------------------------------------------------------- */

static void capture(const char *command)
{
    memset(&job, 0, sizeof job);
    FILE *from = popen(command, "r");
    assert_non_null(from);
    size_t used = fread(job.err_text, 1, TEXT_BYTES - 1, from);
    job.err_text[used] = '\0';
    job.status = pclose(from);
}

static void program_without_a_launcher_is_a_group_of_one(void **state)
{
    (void)state;
    char driver[4096], command[4200];
    driver_path(driver, sizeof driver);
    snprintf(command, sizeof command, "%s contract 2>&1", driver);
    capture(command);
    check_nobody_complains();
}

/* A program that was not told of a plugin takes none that lies beside it or its folder, where
 * others may be able to write. */
static void plugin_beside_a_program_is_not_taken(void **state)
{
    (void)state;
    char driver[4096], folder[] = "/tmp/sluice-mpi-XXXXXX", command[16000];
    driver_path(driver, sizeof driver);
    assert_non_null(mkdtemp(folder));
    snprintf(
        command, sizeof command,
        "cd %s && mkdir -p bin/sluice lib/sluice && cp %s_alone bin/ && cp %s bin/ && "
        "cp %s bin/sluice/ && cp %s lib/sluice/ && cd bin && ./mpi_driver_alone contract 2>&1; "
        "rm -r %s",
        folder, driver, SLUICE_MPI_PLUGIN, SLUICE_MPI_PLUGIN, SLUICE_MPI_PLUGIN, folder);
    capture(command);
    check_rank_says(-1,
                    "sluice_mpi.so was not found, neither on the program's library path nor in ");
}

/* Wherever it lies, one that was told does find it. */
static void program_takes_the_plugin_of_its_build(void **state)
{
    (void)state;
    char driver[4096], folder[] = "/tmp/sluice-mpi-XXXXXX", command[9000];
    driver_path(driver, sizeof driver);
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command, "cp %s %s/ && %s/mpi_driver contract 2>&1; rm -r %s", driver,
             folder, folder, folder);
    capture(command);
    check_nobody_complains();
}

static bool find_mpich(void)
{
    capture(SLUICE_MPIRUN " --version 2>&1");
    return strstr(job.err_text, "HYDRA");
}

int mpi_tests(void)
{
    if (!*SLUICE_MPIRUN || access(SLUICE_MPIRUN, X_OK) != 0 || IS_THREAD_SANITIZED) {
        print_message(IS_THREAD_SANITIZED ? "skipped: MPI is not built for ThreadSanitizer\n"
                                          : "skipped: built without MPI, or without mpirun\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_case_of_the_contract_holds_over_processes, end_job),
        cmocka_unit_test_teardown(nccl_between_processes_gives_the_bits_of_local_ranks, end_job),
        cmocka_unit_test_teardown(operations_give_the_bits_of_local_ranks, end_job),
        cmocka_unit_test_teardown(pipes_over_processes_give_the_bits_of_one_stage, end_job),
        cmocka_unit_test_teardown(group_can_be_created_more_than_once, end_job),
        cmocka_unit_test_teardown(operation_past_its_time_limit_names_who_never_came, end_job),
        cmocka_unit_test_teardown(operation_after_a_rank_left_fails, end_job),
        cmocka_unit_test_teardown(receive_from_a_rank_that_left_gets_what_it_sent_then_fails,
                                  end_job),
        cmocka_unit_test_teardown(receive_from_anyone_says_so, end_job),
        cmocka_unit_test_teardown(abort_ends_all_ranks_with_its_text, end_job),
        cmocka_unit_test_teardown(mismatch_in_debug_mode_names_both_calls, end_job),
        cmocka_unit_test_teardown(group_where_one_rank_lacks_memory_fails_at_once_on_all, end_job),
        cmocka_unit_test_teardown(death_of_a_stage_is_named_with_host_and_stage, end_job),
        cmocka_unit_test_teardown(death_of_a_rank_ends_the_others_and_leaves_nothing_behind,
                                  end_job),
        cmocka_unit_test_teardown(rank_that_falls_silent_is_given_up, end_job),
        cmocka_unit_test_teardown(stage_that_is_late_is_named_with_host_and_stage, end_job),
        cmocka_unit_test_teardown(job_that_was_suspended_as_a_whole_goes_on, end_job),
        cmocka_unit_test(program_without_a_launcher_is_a_group_of_one),
        cmocka_unit_test(plugin_beside_a_program_is_not_taken),
        cmocka_unit_test(program_takes_the_plugin_of_its_build),
    };
    is_mpich = find_mpich();
    /* mpirun refuses root, which the tests of a container are, without these. */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI keeps some of its memory */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
