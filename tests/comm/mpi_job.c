#define _GNU_SOURCE /* pipe2 */
#include "mpi_job.h"

#include "core/clock.h"
#include "support/check.h"

#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { ALONE_SECONDS = 20 };

struct mpi_job mpi_job;
bool mpi_job_is_mpich;

void mpi_driver_path(char *path, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, bytes - 16);
    assert_true(length > 0);
    path[length] = '\0';
    snprintf(strrchr(path, '/'), 16, "/mpi_driver");
}

void mpi_job_start(const char *name, int ranks)
{
    char driver[4096], count[16];
    int out[2], err[2];
    mpi_driver_path(driver, sizeof driver);
    snprintf(count, sizeof count, "%d", ranks);
    /* The launcher must leave the survivors of a rank alone. */
    char *open_mpi[] = {
        SLUICE_MPIRUN, "--oversubscribe", "--bind-to", "none", "--enable-recovery", "-n", count,
        driver,        (char *)name,      NULL};
    char *mpich[] = {SLUICE_MPIRUN, "-disable-auto-cleanup", "-n", count, driver, (char *)name,
                     NULL};
    char **words = mpi_job_is_mpich ? mpich : open_mpi;
    memset(&mpi_job, 0, sizeof mpi_job);
    assert_int_equal(pipe2(out, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC | O_NONBLOCK), 0);
    posix_spawn_file_actions_t actions;
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    assert_int_equal(posix_spawn(&mpi_job.mpirun, words[0], &actions, NULL, words, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    mpi_job.out = out[0];
    mpi_job.err = err[0];
}

static void read_some(int fd, char *text)
{
    char some[4096]; /* read also when there is no more room, as mpirun would wait */
    size_t used = strlen(text);
    ssize_t bytes;
    while ((bytes = read(fd, some, sizeof some)) > 0) {
        size_t kept = (size_t)bytes < TEXT_BYTES - 1 - used ? (size_t)bytes : TEXT_BYTES - 1 - used;
        memcpy(text + used, some, kept);
        used += kept;
        text[used] = '\0';
    }
}

bool mpi_job_poll(void)
{
    struct pollfd both[2] = {{mpi_job.out, POLLIN, 0}, {mpi_job.err, POLLIN, 0}};
    bool ended = waitpid(mpi_job.mpirun, &mpi_job.status, WNOHANG) == mpi_job.mpirun;
    if (!ended)
        poll(both, 2, 10);
    read_some(mpi_job.out, mpi_job.out_text);
    read_some(mpi_job.err, mpi_job.err_text);
    return ended;
}

int mpi_job_end(void **state)
{
    if (mpi_job.mpirun > 0) {
        kill(mpi_job.mpirun, SIGTERM);
        double until = sli_clock_seconds() + 5;
        while (waitpid(mpi_job.mpirun, &mpi_job.status, WNOHANG) == 0 &&
               sli_clock_seconds() < until)
            usleep(10000);
        for (int r = 0; r < MAX_RANKS; r++)
            if (mpi_job.ranks[r] > 0)
                kill(mpi_job.ranks[r], SIGKILL);
        kill(mpi_job.mpirun, SIGKILL);
        waitpid(mpi_job.mpirun, &mpi_job.status, 0);
        close(mpi_job.out);
        close(mpi_job.err);
    }
    mpi_job.mpirun = 0;
    return 0;
}

/* Whether no process runs that mpirun has started. */
static bool ranks_have_ended(void)
{
    char pattern[64];
    glob_t lists;
    bool running = false;
    snprintf(pattern, sizeof pattern, "/proc/%d/task/*/children", (int)mpi_job.mpirun);
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
void mpi_job_finish(double seconds)
{
    double until = sli_clock_seconds() + seconds, last_with_ranks = sli_clock_seconds();
    while (!mpi_job_poll()) {
        if (!ranks_have_ended())
            last_with_ranks = sli_clock_seconds();
        else if (sli_clock_seconds() > last_with_ranks + ALONE_SECONDS)
            kill(mpi_job.mpirun, SIGKILL);
        if (sli_clock_seconds() > until)
            fail_msg("the ranks still run after %g s:\n%s%s", seconds, mpi_job.out_text,
                     mpi_job.err_text);
    }
    mpi_job.mpirun = 0;
    close(mpi_job.out);
    close(mpi_job.err);
}

/* ---- What they must say ------------------------------------------------------------------- */

bool rank_says(int rank, const char *text)
{
    char begin[32];
    snprintf(begin, sizeof begin, "rank %d: ", rank);
    for (const char *line = mpi_job.err_text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        size_t length = strcspn(line, "\n");
        const char *at = strncmp(line, begin, strlen(begin)) == 0 ? strstr(line, text) : NULL;
        if (at && at < line + length)
            return true;
    }
    return false;
}

void check_rank_says(int rank, const char *text)
{
    if (!rank_says(rank, text))
        fail_msg("rank %d did not say \"%s\", but all ranks:\n%s", rank, text, mpi_job.err_text);
}

void check_nobody_complains(void)
{
    if (strstr(mpi_job.err_text, "rank "))
        fail_msg("%s", mpi_job.err_text);
    assert_true(WIFEXITED(mpi_job.status));
    assert_int_equal(WEXITSTATUS(mpi_job.status), 0);
}

void mpi_job_run(const char *name, int ranks)
{
    mpi_job_start(name, ranks);
    mpi_job_finish(2 * HANG_SECONDS);
}

void mpi_job_succeed(const char *name, int ranks)
{
    mpi_job_run(name, ranks);
    check_nobody_complains();
}

void mpi_job_capture(const char *command)
{
    memset(&mpi_job, 0, sizeof mpi_job);
    FILE *from = popen(command, "r");
    assert_non_null(from);
    size_t used = fread(mpi_job.err_text, 1, TEXT_BYTES - 1, from);
    mpi_job.err_text[used] = '\0';
    mpi_job.status = pclose(from);
}

void mpi_job_init(void)
{
    mpi_job_capture(SLUICE_MPIRUN " --version 2>&1");
    mpi_job_is_mpich = strstr(mpi_job.err_text, "HYDRA");
    /* mpirun refuses root, which the tests of a container are, without these. */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI keeps some of its memory */
}
