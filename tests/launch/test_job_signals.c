/* What signals do to a job that `sluice launch` runs. */
#include "launch/shell_job.h"
#include "sluice/app/launch.h"

#include <signal.h>

static void signals_reach_every_rank(void **state)
{
    static const char *const names[] = {"INT", "TERM", "HUP"};
    scratch *dir = *state;
    program_run run;
    for (int i = 0; i < 3; i++) {
        write_script(dir,
                     "%strap 'echo rank $RANK got %s; exit 0' %s\n"
                     "touch ready.$RANK\n"
                     "[ $RANK = 0 ] && { all ready; kill -%s $launcher; }\n"
                     "while :; do sleep 0.01; done\n",
                     find_launcher, names[i], names[i], names[i]);
        launch(&run, dir, "-n 2 --max-restarts 3");
        assert_int_equal(run.status, 0); /* as the programs ended */
        for (int rank = 0; rank < 2; rank++) {
            char line[64];
            snprintf(line, sizeof line, "^rank %d got %s$", rank, names[i]);
            check_line(run.out, line);
        }
        check_all_ended(dir, 2);
        scratch_entries(dir, 1);
    }
}

static void requests_reach_rank_0_and_end_nothing(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "%strap 'echo rank $RANK saves; touch saved' USR1\n"
                 "trap 'echo rank $RANK shows; touch shown' USR2\n"
                 "touch ready.$RANK\n"
                 "await() { until [ -e $1 ]; do sleep 0.01; done; }\n"
                 "[ $RANK = 0 ] && { all ready; kill -USR1 $launcher; await saved; }\n"
                 "[ $RANK = 0 ] && { kill -USR2 $launcher; await shown; }\n"
                 "await shown\n",
                 find_launcher);
    launch(&run, dir, "-n 2");
    assert_int_equal(run.status, 0);
    check_line(run.out, "^rank 0 saves$");
    check_line(run.out, "^rank 0 shows$");
    assert_null(strstr(run.out, "rank 1"));
    scratch_entries(dir, 1);
}

static void job_ended_by_a_signal_is_not_started_again(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "%stouch ready.$RANK\n"
                 "[ $RANK = 0 ] && { all ready; kill -TERM $launcher; }\n"
                 "while :; do sleep 0.01; done\n",
                 find_launcher);
    launch(&run, dir, "-n 2 --max-restarts 3");
    check_refused(&run, 128 + SIGTERM, " was killed by signal 15 (Terminated)\n");
    check_text(run.err, "attempt 1 of 4: rank ");
    check_all_ended(dir, 2);
}

static void second_signal_ends_programs_that_ignore_the_first(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "%strap '' TERM\n"
                 "trap 'touch got.$RANK' INT\n"
                 "touch ready.$RANK\n"
                 "[ $RANK = 0 ] && { all ready; kill -INT $launcher; all got; kill -INT "
                 "$launcher; }\n"
                 "while :; do sleep 0.01; done\n",
                 find_launcher);
    launch(&run, dir, "-n 2 --grace 100");
    assert_int_equal(run.status, 128 + SIGINT);
    check_line(run.err, "^sluice: stopped by signal 2 \\(Interrupt\\); rank 0 on [^ ]+ and 1 other "
                        "did not end before the next signal, and were ended$");
    check_all_ended(dir, 2);
}

/* A job that is wrongly started again ends at once. */
static const char only_once[] = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 77\n";

/* A rank has failed, and the others have their grace. */
static void signal_after_a_failure_stops_the_job(void **state)
{
    static const struct {
        const char *name, *last_line;
    } cases[] = {
        {"HUP", "^sluice: attempt 1 of 4: rank 1 on [^ ]+ ended with exit status 4$"},
        {"TERM", "^sluice: attempt 1 of 4: rank 1 on [^ ]+ ended with exit status 4; rank 0 on "
                 "[^ ]+ did not end before signal 15 \\(Terminated\\), and was ended$"},
    };
    scratch *dir = *state;
    program_run run;
    for (int i = 0; i < 2; i++) {
        write_script(dir,
                     "%s%s[ $RANK = 1 ] && { all pid; exit 4; }\n"
                     "see_end 1; kill -%s $launcher; sleep 1\n",
                     only_once, find_launcher, cases[i].name);
        launch(&run, dir, "-n 2 --max-restarts 3");
        assert_int_equal(run.status, 4);
        check_line(run.err, cases[i].last_line);
        check_without(run.err, "starting again");
        check_all_ended(dir, 2);
        scratch_entries(dir, 1);
    }
}

static void signal_after_a_request_for_fewer_processes_stops_the_job(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "%s%strap 'exit 0' TERM\n"
                 "touch ready.$RANK\n"
                 "[ $RANK = 0 ] && { all ready; printf 'processes 1' >&$SLUICE_LAUNCH_FD; }\n"
                 "[ $RANK = 0 ] && { sleep 0.5; kill -TERM $launcher; }\n"
                 "while :; do sleep 0.01; done\n",
                 only_once, find_launcher);
    launch(&run, dir, "-n 2 --max-restarts 3 --elastic 1:2");
    assert_int_equal(run.status, 0);
    check_without(run.err, "sluice:");
    check_all_ended(dir, 2);
}

/* node2, a host that the agent alone knows, does not answer at first. When it does, the job is to
 * start again with it, and the programs get SIGTERM. */
static void signal_to_a_job_that_grows_stops_it(void **state)
{
    static const char hosts[] = "localhost slots=1\nnode2 slots=1\n";
    static const char agent[] = "#!/bin/sh\n"
                                "[ ! -e \"${0%/*}/lost.$1\" ] || exit 1\n"
                                "shift\nexec sh -c \"$*\"\n";
    static const char *const names[] = {"HUP", "INT"};
    scratch *dir = *state;
    program_run run;
    for (int i = 0; i < 2; i++) {
        write_file(scratch_path(dir, "hosts"), hosts, sizeof hosts - 1);
        write_file(scratch_path(dir, "agent"), agent, sizeof agent - 1);
        write_file(scratch_path(dir, "lost.node2"), "", 0);
        assert_int_equal(chmod(scratch_path(dir, "agent"), 0700), 0);
        write_script(dir,
                     "%s%strap 'echo told; kill -%s $launcher; sleep 0.5; exit 0' TERM\n"
                     "rm lost.node2; printf saved >&$SLUICE_LAUNCH_FD\n"
                     "while :; do sleep 0.01; done\n",
                     only_once, find_launcher, names[i]);
        program_start(&run,
                      "launch -n 2 --max-restarts 3 --elastic 1:2 --hosts %s/hosts "
                      "--launch-agent %s/agent sh %s/job.sh",
                      dir->directory, dir->directory, dir->directory);
        assert_int_equal(run.status, 0);
        assert_string_equal(run.out, "told\n");
        check_without(run.err, "starting again");
        check_all_ended(dir, 1);
        scratch_entries(dir, 1);
    }
}

/* The agent is asked for node2 before each attempt, and sends the launcher a signal before the
 * second one. */
static void signal_between_two_attempts_is_handled(void **state)
{
    static const char hosts[] = "localhost slots=1\nnode2 slots=1\n";
    static const char agent[] = "#!/bin/sh\n"
                                "cd \"${0%/*}\"\n"
                                "[ ! -e pid.0.0 ] || kill -$(cat signal) $PPID\n"
                                "exit 1\n";
    static const struct {
        const char *name, *out;
        int status;
    } cases[] = {{"USR1", "again\n", 0}, {"USR2", "again\n", 0}, {"TERM", "", 4}, {"INT", "", 4}};
    scratch *dir = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program_run run;
        write_file(scratch_path(dir, "hosts"), hosts, sizeof hosts - 1);
        write_file(scratch_path(dir, "agent"), agent, sizeof agent - 1);
        write_file(scratch_path(dir, "signal"), cases[i].name, strlen(cases[i].name));
        assert_int_equal(chmod(scratch_path(dir, "agent"), 0700), 0);
        write_script(dir, "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 4\necho again\n");
        program_start(&run,
                      "launch -n 1 --max-restarts 3 --elastic 1:1 --hosts %s/hosts "
                      "--launch-agent %s/agent sh %s/job.sh",
                      dir->directory, dir->directory, dir->directory);
        assert_int_equal(run.status, cases[i].status);
        assert_string_equal(run.out, cases[i].out);
        check_line(run.err, "^sluice: attempt 1 of 4: rank 0 on [^ ]+ ended with exit status 4");
        check_without(run.err, "attempt 2");
        scratch_entries(dir, 1);
    }
}

/* A process of another session plays the terminal's part. */
static void ctrl_z_suspends_the_programs_as_well(void **state)
{
    static const char terminal[] = "cd \"${0%/*}\"\n"
                                   "count() { cat ticks.* | wc -l; }\n"
                                   "until [ -e ticks.0 ] && [ -e ticks.1 ]; do sleep 0.01; done\n"
                                   "kill -TSTP $1; sleep 1\n"
                                   "before=$(count); sleep 1; after=$(count)\n"
                                   "read -r _ _ state _ </proc/$1/stat\n"
                                   "echo \"$state $((after - before))\" >suspended\n"
                                   "kill -CONT $1\n"
                                   "until [ $(count) -gt $after ]; do sleep 0.01; done\n"
                                   "touch stop\n";
    scratch *dir = *state;
    program_run run;
    char seen[16] = "";
    write_file(scratch_path(dir, "terminal.sh"), terminal, sizeof terminal - 1);
    write_script(dir,
                 "%s[ $RANK = 1 ] || setsid sh $PWD/terminal.sh $launcher &\n"
                 "until [ -e stop ]; do echo >>ticks.$RANK; sleep 0.02; done\n",
                 find_launcher);
    launch(&run, dir, "-n 2");
    assert_int_equal(run.status, 0);
    check_without(run.err, "sluice");
    read_file(scratch_path(dir, "suspended"), seen, sizeof seen - 1);
    assert_string_equal(seen, "T 0\n");
}

/* As by a parent process in Python that does not want to wait for its children. */
static void job_runs_where_children_are_ignored(void **state)
{
    int exit_status = -1;
    struct sigaction ignored = {.sa_handler = SIG_IGN}, before, after;
    const char *supervisor[] = {getenv("SLUICE_PROGRAM"), "launch-rank", NULL};
    const sl_launch_options options = {.processes = 1, .supervisor = supervisor};
    sigaction(SIGCHLD, &ignored, &before);
    sl_status status =
        sl_launch_run(&options, (const char *const[]){"sh", "-c", "exit 3", NULL}, &exit_status);
    sigaction(SIGCHLD, &before, &after);
    check_ok(status);
    assert_int_equal(exit_status, 3);
    assert_true(after.sa_handler == SIG_IGN);
}

int job_signals_tests(void)
{
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(signals_reach_every_rank),
        IN_SCRATCH(requests_reach_rank_0_and_end_nothing),
        IN_SCRATCH(job_ended_by_a_signal_is_not_started_again),
        IN_SCRATCH(second_signal_ends_programs_that_ignore_the_first),
        IN_SCRATCH(signal_after_a_failure_stops_the_job),
        IN_SCRATCH(signal_after_a_request_for_fewer_processes_stops_the_job),
        IN_SCRATCH(signal_to_a_job_that_grows_stops_it),
        IN_SCRATCH(signal_between_two_attempts_is_handled),
        IN_SCRATCH(ctrl_z_suspends_the_programs_as_well),
        cmocka_unit_test(job_runs_where_children_are_ignored),
    };
    if (!program_exists() || !mpirun_exists())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
