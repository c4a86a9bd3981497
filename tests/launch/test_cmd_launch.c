/* The program `sluice launch`, run as a user does: shell scripts are what it starts. */
#include "comm/wire/wire.h"
#include "launch/shell_job.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

/* ---- Ranks -------------------------------------------------------------------------------- */

static void ranks_have_torchruns_names(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "echo rank $RANK/$WORLD_SIZE, here $LOCAL_RANK/$LOCAL_WORLD_SIZE, attempt "
                      "$TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS\n");
    setenv("RANK", "9", 1); /* of another job, in which this one is started */
    program_succeed(&run, "launch -n 3 --max-restarts 4 sh %s/job.sh", dir->directory);
    unsetenv("RANK");
    check_line(run.out, "^rank 0/3, here 0/3, attempt 0 of 4$");
    check_line(run.out, "^rank 1/3, here 1/3, attempt 0 of 4$");
    check_line(run.out, "^rank 2/3, here 2/3, attempt 0 of 4$");
    check_all_ended(dir, 3);
}

static void arguments_reach_the_program_as_they_are(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "for word; do echo \"<$word>\"; done\n");
    program_succeed(&run, "launch -n 1 sh %s/job.sh -n --hosts a$b '' *", dir->directory);
    assert_string_equal(run.out, "<-n>\n<--hosts>\n<a b>\n<>\n<*>\n");
}

static void any_number_of_variables_is_exported(void **state)
{
    scratch *dir = *state;
    static const int counts[] = {1, 64, 500};
    write_script(dir, "env | grep -c '^EXPORTED[0-9]*=v$'\n");
    for (int i = 0; i < 3; i++) {
        program_run run;
        char words[16000] = "", expected[16];
        size_t used = 0;
        for (int e = 0; e < counts[i]; e++)
            used += (size_t)snprintf(words + used, sizeof words - used, "-x EXPORTED%d=v ", e);
        snprintf(expected, sizeof expected, "%d\n", counts[i]);
        program_succeed(&run, "launch -n 1 %s sh %s/job.sh", words, dir->directory);
        assert_string_equal(run.out, expected);
    }
}

static void host_file_places_more_processes_than_slots(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "echo rank $RANK\n");
    write_file(scratch_path(dir, "hosts"), "localhost slots=1\n", 18);
    program_succeed(&run, "launch -n 2 --hosts %s/hosts sh %s/job.sh", dir->directory,
                    dir->directory);
    check_line(run.out, "^rank 0$");
    check_line(run.out, "^rank 1$");
}

/* ---- Failures ----------------------------------------------------------------------------- */

static void first_failure_is_named_and_its_status_returned(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "[ $RANK = 1 ] && exit 7\n"
                      "see_end 1; exit 3\n");
    launch(&run, dir, "-n 3");
    check_refused(&run, 7, "rank 1 on ");
    check_text(run.err, " ended with exit status 7\n");
    check_all_ended(dir, 3);
}

static void survivors_may_say_what_they_noticed(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "[ $RANK = 1 ] && { all pid; kill -9 $$; }\n"
                      "see_end 1; echo rank $RANK noticed; exit 1\n");
    launch(&run, dir, "-n 3");
    assert_int_equal(run.status, 128 + SIGKILL);
    check_line(run.out, "^rank 0 noticed$");
    check_line(run.out, "^rank 2 noticed$");
    check_line(run.err, "^sluice: rank 1 on [^ ]+ was killed by signal 9 \\(Killed\\)$");
    check_all_ended(dir, 3);
}

/* By SIGTERM, mpirun ends the ranks that are left. */
static void death_is_named_before_an_end_that_was_heard_first(void **state)
{
    static const char *const ends[] = {"exit 3", "kill -TERM $$"};
    scratch *dir = *state;
    for (int i = 0; i < 2; i++) {
        program_run run;
        write_script(dir,
                     "[ $RANK = 0 ] && { all pid; %s; }\n"
                     "see_end 0; kill -9 $$\n",
                     ends[i]);
        launch(&run, dir, "-n 2");
        check_refused(&run, 128 + SIGKILL, "rank 1 on ");
        check_all_ended(dir, 2);
        scratch_entries(dir, 1);
    }
}

static void survivors_that_go_on_are_ended(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "all pid\n"
                      "[ $RANK = 0 ] && exit 5\n"
                      "trap '' TERM\n"
                      "while :; do sleep 1; done\n");
    launch(&run, dir, "-n 2 --grace 0.1");
    check_refused(&run, 5, "rank 0 on ");
    check_line(run.err, "^sluice: rank 0 on [^ ]+ ended with exit status 5; rank 1 on [^ ]+ did "
                        "not end within 0.1 s, and was ended$");
    check_all_ended(dir, 2);
}

static void what_a_program_leaves_behind_is_ended(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "setsid sleep 300 & echo $! >pid.left.$RANK\n");
    launch(&run, dir, "-n 2");
    assert_int_equal(run.status, 0);
    check_all_ended(dir, 4);
}

static void program_that_is_none_is_not_started_again(void **state)
{
    program_run run;
    program_start(&run, "launch -n 2 --max-restarts 3 ./there-is-no-such-program");
    check_refused(&run, 127,
                  ": ./there-is-no-such-program cannot be started: No such file or directory\n");
    check_text(run.err, "attempt 1 of 4: rank ");
}

/* How many lines have `part` in them. */
static int count_lines(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); count++)
        at += strcspn(at, "\n");
    return count;
}

/* Every rank finds the same fault by itself, or is told of another's. */
static void error_of_several_ranks_is_shown_once(void **state)
{
    scratch *dir = *state;
    program_run run;
    const char *program = getenv("SLUICE_PROGRAM");
    program_start(&run, "launch -n 3 %s train --data %s --bogus", program, dir->directory);
    assert_int_equal(run.status, 2);
    assert_int_equal(count_lines(run.err, "there is no such option"), 1);
    check_line(run.err, "^sluice: rank [012]: there is no such option .*, got \"--bogus\"$");
    check_line(run.err, "^sluice: rank [012] on [^ ]+ ended with exit status 2$");
}

static void error_of_a_group_is_shown_once(void **state)
{
#ifdef __SANITIZE_THREAD__
    print_message("skipped: MPI is not built for ThreadSanitizer\n");
    skip();
#endif
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "data --synthetic %s/text --tokens 4000", dir->directory);
    program_start(&run,
                  "launch -n 3 %s train --data %s/text --emsize 16 --nhid 16 --nhead 2 --nlayers 1 "
                  "--quiet --lr 1e30 --clip 0",
                  getenv("SLUICE_PROGRAM"), dir->directory);
    char line[600];
    snprintf(line, sizeof line, "rm -r '%s/text'", dir->directory);
    assert_int_equal(system(line), 0);
    assert_int_equal(run.status, 1);
    if (strstr(run.err, "sluice_mpi.so was not found")) {
        print_message("skipped: sluice was built without MPI\n");
        skip();
    }
    assert_int_equal(count_lines(run.err, " is nan in epoch 1"), 1);
    check_line(run.err, "^sluice: rank [012]: the loss is nan in epoch 1");
}

static void errors_that_differ_are_all_shown(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "[ $RANK = 0 ] && exit 0\n"
                 "%s eval --data /nowhere/$RANK --init /nowhere/$RANK\n"
                 "all pid; exit 3\n",
                 getenv("SLUICE_PROGRAM"));
    launch(&run, dir, "-n 3 --grace 20");
    assert_int_equal(run.status, 3);
    check_line(run.err, "^sluice: rank 1: /nowhere/1: .*$");
    check_line(run.err, "^sluice: rank 2: /nowhere/2: .*$");
}

/* ---- Restarts ----------------------------------------------------------------------------- */

static void failed_job_is_started_again(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exec echo done\n"
                      "[ $RANK = 0 ] && exec sleep 60\n"
                      "while [ ! -s pid.0.$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.01; done\n"
                      "exit 4\n");
    launch(&run, dir, "-n 2 --max-restarts 5 --grace 0");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.out, "done\ndone\n");
    check_line(run.err, "^sluice: attempt 1 of 6: rank 1 on .* status 4; .*starting again$");
    check_line(run.err, "^sluice: attempt 2 of 6: rank 1 on .* status 4; .*starting again$");
    check_without(run.err, "attempt 3");
    check_all_ended(dir, 6);
}

static void restarts_end(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "exit 6\n");
    launch(&run, dir, "-n 1 --max-restarts 1");
    assert_int_equal(run.status, 6);
    check_line(run.err, "^sluice: attempt 1 of 2: rank 0 on .* status 6; starting again$");
    check_line(run.err, "^sluice: attempt 2 of 2: rank 0 on .* status 6$");
    check_all_ended(dir, 2);
}

/* As many fewer as have died, however the others end; and not fewer than the least. */
static void elastic_job_goes_on_without_the_dead(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "case $TORCHELASTIC_RESTART_COUNT in\n"
                      "0) all pid\n"
                      "   [ $RANK != 0 ] && kill -9 $$\n"
                      "   see_end 1; see_end 2; exit 3;;\n"
                      "1) [ $RANK = 1 ] && kill -9 $$\n"
                      "   exit 3;;\n"
                      "2) exit 4;;\n"
                      "esac\n"
                      "echo $WORLD_SIZE go on\n");
    launch(&run, dir, "--max-restarts 3 --elastic 2:4");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.out, "2 go on\n2 go on\n");
    check_line(run.err, "^sluice: attempt 1 of 4: rank [123] on .* was killed by signal 9 "
                        "\\(Killed\\); starting again with 2 processes$");
    check_line(run.err, "^sluice: attempt 2 of 4: rank 1 on .* starting again with 2 processes$");
    check_line(run.err, "^sluice: attempt 3 of 4: rank . on .* ended with exit status 4; "
                        "starting again with 2 processes$");
}

static void elastic_job_without_dead_keeps_its_size(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 5\n"
                      "echo $WORLD_SIZE go on\n");
    launch(&run, dir, "-n 2 --max-restarts 1 --elastic 1:3");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.out, "2 go on\n2 go on\n");
    check_text(run.err, " ended with exit status 5; starting again with 2 processes\n");
}

/* ---- Saving ------------------------------------------------------------------------------- */

/* Every rank takes its time to save when it is told to end, some longer than the grace. */
static void grace_begins_again_while_a_program_saves(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "%ssave() {\n"
                 "    printf saving >&$SLUICE_LAUNCH_FD\n"
                 "    sleep $((2 + 2 * RANK))\n"
                 "    printf saved >&$SLUICE_LAUNCH_FD\n"
                 "    echo rank $RANK saved; exit 0\n"
                 "}\n"
                 "trap save TERM\n"
                 "touch ready.$RANK\n"
                 "[ $RANK = 0 ] && { all ready; kill -TERM $launcher; }\n"
                 "while :; do sleep 0.01; done\n",
                 find_launcher);
    launch(&run, dir, "-n 2 --grace 1.5");
    assert_int_equal(run.status, 0);
    check_without(run.err, "sluice");
    check_line(run.out, "^rank 0 saved$");
    check_line(run.out, "^rank 1 saved$");
    check_all_ended(dir, 2);
}

/* The same where it is another rank's failure that ends the job, while one is saving already. */
static void save_under_way_at_a_failure_is_not_cut_off(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir, "if [ $RANK = 0 ]; then\n"
                      "    printf saving >&$SLUICE_LAUNCH_FD; sleep 0.2; touch saves.0\n"
                      "    see_end 1; sleep 2\n"
                      "    echo rank 0 saved; exit 0\n"
                      "fi\n"
                      "while [ ! -e saves.0 ]; do sleep 0.01; done\n"
                      "exit 7\n");
    launch(&run, dir, "-n 2 --grace 0.1");
    assert_int_equal(run.status, 7);
    check_line(run.out, "^rank 0 saved$");
    check_line(run.err, "^sluice: rank 1 on [^ ]+ ended with exit status 7$");
    check_all_ended(dir, 2);
}

/* However often a program says so, and whatever else it does. */
static void saving_adds_a_limited_time(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "%strap '' TERM\n"
                 "touch ready.$RANK\n"
                 "[ $RANK = 0 ] && { all ready; kill -TERM $launcher; }\n"
                 "while :; do\n"
                 "    printf saving >&$SLUICE_LAUNCH_FD; sleep 0.1\n"
                 "    [ $RANK = 0 ] || printf saved >&$SLUICE_LAUNCH_FD\n"
                 "done\n",
                 find_launcher);
    launch(&run, dir, "-n 2 --grace 0.5 --grace-save 1");
    assert_int_equal(run.status, 128 + SIGTERM);
    check_line(run.err,
               "^sluice: stopped by signal 15 \\(Terminated\\); rank 0 on [^ ]+ and 1 other "
               "did not end within 0.5 s and 1 s of saving, and were ended$");
    check_all_ended(dir, 2);
}

static void programs_that_the_launcher_ends_are_not_said_to_have_failed(void **state)
{
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "%strap '' TERM\n"
                 "touch ready.$RANK\n"
                 "[ $RANK = 0 ] && { all ready; kill -TERM $launcher; exit 0; }\n"
                 "while :; do sleep 0.01; done\n",
                 find_launcher);
    launch(&run, dir, "-n 2 --grace 0.3 --max-restarts 2");
    assert_int_equal(run.status, 128 + SIGTERM);
    check_line(run.err, "^sluice: attempt 1 of 3: stopped by signal 15 \\(Terminated\\); rank 1 on "
                        "[^ ]+ did not end within 0.3 s, and was ended$");
    check_without(run.err, "attempt 2");
    check_all_ended(dir, 2);
}

static void programs_end_when_their_launcher_is_killed(void **state)
{
    enum { POLLS = 1000 };
    scratch *dir = *state;
    program_run run;
    write_script(dir,
                 "%strap 'touch told.$RANK; exit 1' TERM\n"
                 "touch ready.$RANK\n"
                 "[ $RANK = 0 ] && { all ready; kill -KILL $launcher; }\n"
                 "while :; do sleep 0.01; done\n",
                 find_launcher);
    launch(&run, dir, "-n 2");
    assert_int_equal(run.status, -1);
    for (int poll = 0, running = 1; poll < POLLS && running;
         poll++) { /* no parent waits for them */
        (void)count_processes(dir, &running);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    assert_int_equal(access(scratch_path(dir, "told.0"), F_OK), 0);
    assert_int_equal(access(scratch_path(dir, "told.1"), F_OK), 0);
    check_all_ended(dir, 2);
}

/* mpirun's place is taken by a script, which calls the launcher many times, says nothing sensible,
 * and keeps its connections open as long as mpirun runs. */
static void strangers_that_call_the_launcher_do_not_keep_ranks_out(void **state)
{
    static const char script[] =
        "#!/bin/bash\n"
        "PATH=${PATH#*:}\n"
        "[ \"$1\" != --version ] || exec mpirun --version\n"
        "IFS=, read -r key host port addresses <<<\"$SLUICE_LAUNCHER\"\n"
        "[ \"$addresses\" = 127.0.0.1 ] || exit 98\n" /* all ranks are here */
        "for i in {1..200}; do\n"
        "    exec {fd}<>/dev/tcp/127.0.0.1/$port || exit 99\n"
        "    [ $((i % 2)) = 0 ] || echo \"sluice01 let me in\" >&$fd\n"
        "done\n"
        "exec mpirun \"$@\"\n";
    scratch *dir = *state;
    program_run run;
    char before[4096], path[8192];
    write_file(scratch_path(dir, "mpirun"), script, sizeof script - 1);
    assert_int_equal(chmod(scratch_path(dir, "mpirun"), 0700), 0);
    write_script(dir, "echo rank $RANK of $WORLD_SIZE\n");
    snprintf(before, sizeof before, "%s", getenv("PATH"));
    snprintf(path, sizeof path, "%s:%s", dir->directory, before);
    setenv("PATH", path, 1);
    launch(&run, dir, "-n 2");
    setenv("PATH", before, 1);
    if (run.status != 0)
        fail_msg("status %d: %s", run.status, run.err);
    check_text(run.out, "rank 0 of 2\n");
    check_text(run.out, "rank 1 of 2\n");
}

int cmd_launch_tests(void)
{
    if (!program_exists())
        return 77;
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest with_mpirun[] = {
        IN_SCRATCH(ranks_have_torchruns_names),
        IN_SCRATCH(arguments_reach_the_program_as_they_are),
        IN_SCRATCH(any_number_of_variables_is_exported),
        IN_SCRATCH(host_file_places_more_processes_than_slots),
        IN_SCRATCH(first_failure_is_named_and_its_status_returned),
        IN_SCRATCH(survivors_may_say_what_they_noticed),
        IN_SCRATCH(death_is_named_before_an_end_that_was_heard_first),
        IN_SCRATCH(survivors_that_go_on_are_ended),
        IN_SCRATCH(what_a_program_leaves_behind_is_ended),
        cmocka_unit_test(program_that_is_none_is_not_started_again),
        IN_SCRATCH(error_of_several_ranks_is_shown_once),
        IN_SCRATCH(error_of_a_group_is_shown_once),
        IN_SCRATCH(errors_that_differ_are_all_shown),
        IN_SCRATCH(failed_job_is_started_again),
        IN_SCRATCH(restarts_end),
        IN_SCRATCH(elastic_job_goes_on_without_the_dead),
        IN_SCRATCH(elastic_job_without_dead_keeps_its_size),
        IN_SCRATCH(grace_begins_again_while_a_program_saves),
        IN_SCRATCH(save_under_way_at_a_failure_is_not_cut_off),
        IN_SCRATCH(saving_adds_a_limited_time),
        IN_SCRATCH(programs_that_the_launcher_ends_are_not_said_to_have_failed),
        IN_SCRATCH(strangers_that_call_the_launcher_do_not_keep_ranks_out),
        IN_SCRATCH(programs_end_when_their_launcher_is_killed),
    };
    return mpirun_exists() ? cmocka_run_group_tests(with_mpirun, NULL, NULL) : 77;
}
