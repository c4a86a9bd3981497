/* What is left of a job when the processes are killed that `sluice launch` has started it with: its
 * own, mpirun's, and the two between mpirun and each program; and of one with a rank that others
 * wait for in the start of MPI. */
#include "core/clock.h"
#include "launch/shell_job.h"

#include <signal.h>
#include <time.h>

/* Every rank has a child in a session of its own. The shell would say how its others end, and
 * mpirun, which would read it, is killed. */
static const char leave_child[] = "exec 2>/dev/null\n"
                                  "setsid sleep 300 & echo $! >pid.left.$RANK\n"
                                  "touch ready.$RANK\n";

/* Nothing waits for what a killed launcher has started. */
static void check_all_end(scratch *dir, int count)
{
    enum { POLLS = 1500 };
    int running;
    for (int poll = 0; poll < POLLS && count_processes(dir, &running) > 0 && running; poll++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    check_all_ended(dir, count);
}

/* Runs a job of programs that ignore SIGTERM, of which rank 1 kills a process. */
static void run_with_death(program_run *run, scratch *dir, const char *victim, const char *options)
{
    write_script(dir,
                 "%s%strap '' TERM\n"
                 "[ $RANK = 1 ] && { all ready; kill -KILL %s; }\n"
                 "while :; do sleep 0.01; done\n",
                 find_launcher, leave_child, victim);
    launch(run, dir, options);
    check_all_end(dir, 4);
}

static void sessions_end_when_the_launcher_is_killed(void **state)
{
    program_run run;
    run_with_death(&run, *state, "$launcher", "-n 2");
    assert_int_equal(run.status, -1);
}

static void sessions_end_when_a_supervisor_is_killed(void **state)
{
    program_run run;
    run_with_death(&run, *state, "$supervisor", "-n 2 --grace 0.5");
    check_line(run.err, "^sluice: rank 1 on [^ ]+ was lost; rank 0 on [^ ]+ did not end");
}

static void sessions_end_when_a_guard_is_killed(void **state)
{
    program_run run;
    run_with_death(&run, *state, "$guard", "-n 2 --grace 0.5");
    check_line(run.err, "^sluice: mpirun ended with status 137 when 2 of 2 processes had started");
}

static void sessions_end_when_mpirun_is_killed(void **state)
{
    program_run run;
    run_with_death(&run, *state, "$mpirun", "-n 2 --grace 0.5");
    assert_int_equal(run.status, 128 + SIGKILL);
    check_line(run.err, "^sluice: mpirun was killed by signal 9 \\(Killed\\); rank 0 on ");
}

static void sessions_end_when_mpirun_and_the_launcher_are_killed(void **state)
{
    program_run run;
    run_with_death(&run, *state, "$mpirun $launcher", "-n 2");
    assert_int_equal(run.status, -1);
}

/* The programs take their time to end, as those do that save. */
static void attempt_begins_when_nothing_of_the_last_one_runs(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then\n"
                 "    for one in pid.*.0 pid.left.*; do\n"
                 "        [ ! -d /proc/$(cat $one) ] || echo $one runs\n"
                 "    done\n"
                 "    exit 0\n"
                 "fi\n"
                 "%s%strap 'printf saving >&$SLUICE_LAUNCH_FD; sleep 3; echo rank $RANK saved "
                 ">saved.$RANK; exit 0' TERM\n"
                 "[ $RANK = 1 ] && { all ready; kill -KILL $mpirun; }\n"
                 "while :; do sleep 0.01; done\n",
                 find_launcher, leave_child);
    launch(&run, dir, "-n 2 --max-restarts 1 --grace 1");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.out, "");
    check_line(run.err, "^sluice: attempt 1 of 2: mpirun was killed by signal 9 \\(Killed\\); "
                        "starting again$");
    assert_int_equal(access(scratch_path(dir, "saved.0"), F_OK), 0);
    assert_int_equal(access(scratch_path(dir, "saved.1"), F_OK), 0);
    check_all_ended(dir, 6);
}

/* ---- The start of MPI --------------------------------------------------------------------- */

/* Rank 1 does so when rank 0 is in the start of MPI, which nothing but SIGKILL ends. */
static double launch_with_end_of_rank_1(program_run *run, scratch *dir, const char *ends)
{
    write_script(dir,
                 "say() { printf %%s $1 >&$SLUICE_LAUNCH_FD; touch $1.$RANK; }\n"
                 "trap '' TERM\n"
                 "[ $RANK = 0 ] || while [ ! -e joining.0 ]; do sleep 0.01; done\n"
                 "[ $RANK = 0 ] || { %s; }\n"
                 "say joining\n"
                 "while :; do sleep 0.01; done\n",
                 ends);
    double begun = sli_clock_seconds();
    launch(run, dir, "-n 2");
    check_all_ended(dir, 2);
    return sli_clock_seconds() - begun;
}

static void ranks_that_wait_for_one_that_failed_are_ended_soon(void **state)
{
    program_run run;
    double seconds = launch_with_end_of_rank_1(&run, *state, "exit 3");
    assert_int_equal(run.status, 3);
    check_line(run.err, "^sluice: rank 1 on [^ ]+ ended with exit status 3; rank 0 on [^ ]+ "
                        "waited in the start of MPI, and was ended$");
    assert_true(seconds < 5);
}

static void ranks_that_wait_for_one_that_was_killed_are_ended_soon(void **state)
{
    program_run run;
    double seconds = launch_with_end_of_rank_1(&run, *state, "kill -KILL $$");
    assert_int_equal(run.status, 128 + SIGKILL);
    check_line(run.err, "^sluice: rank 1 on [^ ]+ was killed by signal 9 \\(Killed\\); rank 0 on");
    assert_true(seconds < 5);
}

static void rank_that_succeeds_without_mpi_fails_where_others_wait(void **state)
{
    program_run run;
    launch_with_end_of_rank_1(&run, *state, "exit 0");
    assert_int_equal(run.status, 1);
    check_line(run.err, "^sluice: rank 1 on [^ ]+ ended before it had started MPI; rank 0 on [^ ]+ "
                        "waited in the start of MPI, and was ended$");
}

/* Where a rank has started MPI, so have all, or will: they have the time for an error. */
static void ranks_that_do_not_wait_have_the_grace(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "say() { printf %%s $1 >&$SLUICE_LAUNCH_FD; sleep 0.1; }\n"
                      "say joining\n"
                      "[ $RANK = 0 ] || { say joined; exit 3; }\n"
                      "see_end 1; echo rank 0 ends; exit 1\n");
    launch(&run, dir, "-n 2");
    assert_int_equal(run.status, 3);
    check_line(run.out, "^rank 0 ends$");
    check_line(run.err, "^sluice: rank 1 on [^ ]+ ended with exit status 3$");
}

int deaths_tests(void)
{
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(sessions_end_when_the_launcher_is_killed),
        IN_SCRATCH(sessions_end_when_a_supervisor_is_killed),
        IN_SCRATCH(sessions_end_when_a_guard_is_killed),
        IN_SCRATCH(sessions_end_when_mpirun_is_killed),
        IN_SCRATCH(sessions_end_when_mpirun_and_the_launcher_are_killed),
        IN_SCRATCH(attempt_begins_when_nothing_of_the_last_one_runs),
        IN_SCRATCH(ranks_that_wait_for_one_that_failed_are_ended_soon),
        IN_SCRATCH(ranks_that_wait_for_one_that_was_killed_are_ended_soon),
        IN_SCRATCH(rank_that_succeeds_without_mpi_fails_where_others_wait),
        IN_SCRATCH(ranks_that_do_not_wait_have_the_grace),
    };
    if (!program_exists() || !mpirun_exists())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
