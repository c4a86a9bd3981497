/* What sl_launch_run and `sluice launch` refuse, and what a program tells its supervisor. */
#include "comm/wire/wire.h"
#include "io/scratch.h"
#include "launch/launch.h"
#include "sluice/app/launch.h"
#include "support/program.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>

static void options_without_sense_are_refused(void **state)
{
    static const struct {
        int processes, least;
        const char *program, *sentence;
    } cases[] = {
        {0, 0, "true", "sl_launch_run: processes must be from 1 to 4096, got 0"},
        {4097, 0, "true", "sl_launch_run: processes must be from 1 to 4096, got 4097"},
        {2, 3, "true", "sl_launch_run: least_processes must be from 0 to 2, got 3"},
        {2, -1, "true", "sl_launch_run: least_processes must be from 0 to 2, got -1"},
        {2, 0, NULL, "sl_launch_run: there is no program to start"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int exit_status = -1;
        sl_launch_options options = {.processes = cases[i].processes,
                                     .least_processes = cases[i].least,
                                     .supervisor = (const char *const[]){"supervisor", NULL}};
        check_error(sl_launch_run(&options, (const char *const[]){cases[i].program, NULL},
                                  &exit_status),
                    SL_ERR_INVALID, cases[i].sentence);
        assert_int_equal(exit_status, 0);
    }
}

static void missing_arguments_are_named(void **state)
{
    int exit_status = -1;
    const sl_launch_options none = {.processes = 1};
    const char *const words[] = {"true", NULL};
    check_error(sl_launch_run(NULL, words, &exit_status), SL_ERR_INVALID, "run: options is NULL");
    check_error(sl_launch_run(&none, NULL, &exit_status), SL_ERR_INVALID, "run: command is NULL");
    check_error(sl_launch_run(&none, words, NULL), SL_ERR_INVALID, "run: exit_status is NULL");
    check_error(sl_launch_run(&none, words, &exit_status), SL_ERR_INVALID,
                "sl_launch_run: options->supervisor is NULL");
    check_error(sl_launch_run_rank(NULL, &exit_status), SL_ERR_INVALID, "command is NULL");
    check_error(sl_launch_run_rank(words, NULL), SL_ERR_INVALID, "exit_status is NULL");
    check_error(sl_launch_info_read(NULL), SL_ERR_INVALID, "sl_launch_info_read: out is NULL");
    assert_int_equal(exit_status, -1);
    sli_launch_link_close(NULL);
}

/* The host does not answer, which is an event. */
static void events_need_no_report(void **state)
{
    int exit_status;
    const char *path = scratch_path(*state, "hosts");
    FILE *to = fopen(path, "w");
    assert_true(to && fputs("nohost\n", to) >= 0 && fclose(to) == 0);
    const sl_launch_options options = {.processes = 1,
                                       .least_processes = 1,
                                       .hosts = path,
                                       .agent = "false",
                                       .supervisor = (const char *const[]){"supervisor", NULL}};
    sl_status status = sl_launch_run(&options, (const char *const[]){"true", NULL}, &exit_status);
    if (status == SL_ERR_NOT_FOUND || status == SL_ERR_UNSUPPORTED) {
        print_message("skipped: %s\n", sl_error_text());
        skip();
    }
    check_error(status, SL_ERR_IO, "answers");
    assert_int_equal(exit_status, 0);
}

static void bad_command_line_is_one_sentence(void **state)
{
    static const struct {
        const char *words, *sentence;
    } cases[] = {
        {"launch", "launch needs a program to start\n"},
        {"launch -n 2", "launch needs a program to start\n"},
        {"launch true", "launch needs -n N, the number of processes\n"},
        {"launch -n 0 true", "--nproc must be a whole number from 1 to 4096, got \"0\"\n"},
        {"launch --nproc two true", "--nproc must be a whole number from 1 to 4096, got \"two\"\n"},
        {"launch -n 2 --hosts /tmp true",
         "--hosts must name a file (Is a directory), got \"/tmp\"\n"},
        {"launch -n 2 --hosts /no/file true",
         "--hosts must name a file (No such file or directory), got \"/no/file\"\n"},
        {"launch -n 2 --max-restarts -1 true",
         "--max-restarts must be a whole number from 0 to 1000000, got \"-1\"\n"},
        {"launch -n 2 --max-restarts 1000001 true",
         "--max-restarts must be a whole number from 0 to 1000000, got \"1000001\"\n"},
        {"launch -n 2 --max-restarts 1 --elastic 2 true",
         "--elastic must be MIN:MAX, two numbers of processes from 1 to 4096, got \"2\"\n"},
        {"launch -n 2 --max-restarts 1 --elastic 0:2 true", "--elastic must be MIN:MAX"},
        {"launch -n 2 --max-restarts 1 --elastic 3:2 true", "--elastic must be MIN:MAX"},
        {"launch -n 2 --max-restarts 1 --elastic 1:4097 true", "--elastic must be MIN:MAX"},
        {"launch -n 2 --max-restarts 1 --elastic 1:2x true", "--elastic must be MIN:MAX"},
        {"launch -n 2 --max-restarts 1 --elastic +1:2 true", "--elastic must be MIN:MAX"},
        {"launch -n 2 --max-restarts 1 --elastic 1:$2 true", "--elastic must be MIN:MAX"},
        {"launch -n 4 --max-restarts 1 --elastic 2:3 true", "-n must be within --elastic MIN:MAX"},
        {"launch -n 1 --max-restarts 1 --elastic 2:3 true", "-n must be within --elastic MIN:MAX"},
        {"launch --elastic 2:3 true", "--elastic needs --max-restarts K\n"},
        {"launch -n 2 --grace soon true",
         "--grace must be a number from 0 to 1000000, got \"soon\"\n"},
        {"launch -n 2 --grace-save -1 true",
         "--grace-save must be a number from 0 to 1000000, got \"-1\"\n"},
        {"launch -n 2 --grace 3e6 true",
         "--grace must be a number from 0 to 1000000, got \"3e6\"\n"},
        {"launch -n 2 -x =1 true", "--export must be NAME or NAME=VALUE, got \"=1\"\n"},
        {"launch -n 2 echo a : b", "an argument that is a single colon\n"},
        {"launch --hostfile a -n 2 true", "there is no such option (see sluice launch --help)"},
        {"launch-rank true", "launch-rank is for sluice launch to call\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program_run run;
        program_start(&run, "%s", cases[i].words);
        check_refused(&run, 2, cases[i].sentence);
    }
}

static void mpirun_that_is_missing_or_another_is_named(void **state)
{
    scratch *dir = *state;
    program_run run;
    char before[4096];
    snprintf(before, sizeof before, "%s", getenv("PATH"));
    setenv("PATH", dir->directory, 1);
    program_start(&run, "launch -n 2 true");
    check_refused(&run, 1, "there is no mpirun on PATH that runs: install Open MPI");
    const char *path = scratch_path(dir, "mpirun");
    static const char script[] = "#!/bin/sh\necho HYDRA build details:\n";
    write_file(path, script, sizeof script - 1);
    assert_int_equal(chmod(path, 0700), 0);
    program_start(&run, "launch -n 2 true");
    setenv("PATH", before, 1);
    check_refused(&run, 1, "must be Open MPI's, and this one says \"HYDRA build details:\"\n");
}

static void rank_without_its_launcher_says_so(void **state)
{
    program_run run;
    sli_wire_address nobody = {.count = 0};
    char text[SLI_WIRE_ADDRESS_BYTES];
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("SLUICE_LAUNCHER", "token 1 127.0.0.1", 1);
    program_start(&run, "launch-rank true");
    check_refused(&run, 1,
                  "environment variable SLUICE_LAUNCHER: this is no address of a listener");
    check_ok(sli_wire_address_find(&nobody, AF_INET, 1, true));
    sli_host_id(nobody.host);
    sli_wire_address_print(&nobody, text);
    setenv("SLUICE_LAUNCHER", text, 1);
    program_start(&run, "launch-rank true");
    check_refused(&run, 1, "rank 1 on ");
    check_text(run.err, " cannot reach its launcher by TCP (127.0.0.1: Connection refused)\n");
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("SLUICE_LAUNCHER");
}

/* ---- A program and its supervisor ---------------------------------------------------------- */

static void set_link(int fd)
{
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    setenv("SLUICE_LAUNCH_FD", text, 1);
}

static void check_packet(int fd, const char *expected)
{
    char packet[4096];
    ssize_t bytes = recv(fd, packet, sizeof packet - 1, MSG_DONTWAIT);
    packet[bytes > 0 ? bytes : 0] = '\0';
    assert_string_equal(packet, expected);
}

static void saves_and_errors_are_packets(void **state)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    set_link(ends[1]);
    sl_launch_link *link = sl_launch_link_open();
    assert_non_null(link);
    assert_null(getenv("SLUICE_LAUNCH_FD"));
    assert_true(fcntl(ends[1], F_GETFD) & FD_CLOEXEC);
    sl_launch_link_saving(link, true);
    sl_launch_link_saving(link, true); /* of two saves the first to end is not the last */
    sl_launch_link_saving(link, false);
    sl_launch_link_saving(link, false);
    sl_launch_link_joining(link, true);
    sl_launch_link_joining(link, false);
    sl_launch_link_steps(link, 4);
    sl_launch_link_processes(link, 2);
    sl_launch_link_role(link, 1, "stage 3");
    assert_true(sl_launch_link_error(link, "the disk is full"));
    check_packet(ends[0], "saving");
    check_packet(ends[0], "saving");
    check_packet(ends[0], "saving");
    check_packet(ends[0], "saved");
    check_packet(ends[0], "joining");
    check_packet(ends[0], "joined");
    check_packet(ends[0], "steps 4");
    check_packet(ends[0], "processes 2");
    check_packet(ends[0], "role 1 stage 3");
    check_packet(ends[0], "error the disk is full");
    close(ends[0]);
    assert_false(sl_launch_link_error(link, "no process reads this"));
    sli_launch_link_close(&link);
    assert_null(link);
}

static void skip_without_mpirun(void)
{
    if (!mpirun_exists())
        skip();
}

static void control_characters_in_an_error_are_escaped(void **state)
{
    static const char script[] =
        "printf 'error two\\nlines\\033[31m\\r\\n' >&$SLUICE_LAUNCH_FD\nexit 3\n";
    program_run run;
    skip_without_mpirun();
    const char *path = scratch_path(*state, "job.sh");
    write_file(path, script, sizeof script - 1);
    program_start(&run, "launch -n 1 sh %s", path);
    assert_int_equal(run.status, 3);
    check_text(run.err, "sluice: rank 0: two\nlines\\x1b[31m\\x0d\nsluice: rank 0 on ");
}

/* The second attempt goes on after step 1 and fails before it has repeated step 2. */
static void time_lost_to_failures_is_reported(void **state)
{
    static const char script[] = "steps() { printf \"steps $1\" >&$SLUICE_LAUNCH_FD; sleep $2; }\n"
                                 "case $TORCHELASTIC_RESTART_COUNT in\n"
                                 "0) steps 0 0; steps 3 0.2; kill -9 $$;;\n"
                                 "1) steps 1 0.2; exit 4;;\n"
                                 "2) steps 2 0.2; steps 3 0; steps 4 0;;\n"
                                 "esac\n";
    program_run run;
    skip_without_mpirun();
    const char *path = scratch_path(*state, "job.sh");
    write_file(path, script, sizeof script - 1);
    program_start(&run, "launch -n 1 --max-restarts 2 sh %s", path);
    assert_int_equal(run.status, 0);
    check_line(run.err, "^sluice: the job is where it was before: [0-9.]+ s were lost "
                        "\\([0-9.]+ s noticing, [0-9.]+ s restarting, [0-9.]+ s repeating 1 "
                        "step\\)$");
    check_line(run.err, "^sluice: 2 failures in [0-9.]+ s: [0-9.]+ s were lost \\([0-9.]+ s "
                        "noticing, [0-9.]+ s restarting, [0-9.]+ s repeating 3 steps\\), "
                        "[0-9.]+% of the time was kept$");
    const char *repeating = strstr(strstr(run.err, "2 failures"), "restarting, ");
    assert_true(strtod(repeating + strlen("restarting, "), NULL) >= 0.59); /* three sleeps */
    check_text(run.err, "starting again\nsluice: the job is where it was before");
    program_start(&run, "launch -n 1 --max-restarts 1 false");
    check_line(run.err, "^sluice: 2 failures in [0-9.]+ s: [0-9.]+ s were lost \\([0-9.]+ s "
                        "noticing, [0-9.]+ s restarting\\)$");
}

static void request_below_the_least_fails_the_job(void **state)
{
    static const char script[] = "printf 'processes 1' >&$SLUICE_LAUNCH_FD\n";
    program_run run;
    skip_without_mpirun();
    const char *path = scratch_path(*state, "job.sh");
    write_file(path, script, sizeof script - 1);
    program_start(&run, "launch -n 2 --max-restarts 1 --elastic 2:2 sh %s", path);
    assert_int_equal(run.status, 1);
    check_line(run.err,
               "^sluice: attempt 1 of 2: rank [01] asked to restart with 1 process, but the job "
               "needs at least 2$");
    program_start(&run, "launch -n 2 sh %s", path);
    assert_int_equal(run.status, 1);
}

static void hosts_without_sense_are_refused(void **state)
{
    static const struct {
        const char *line, *sentence;
    } cases[] = {
        {"slots1 slots=0\n", "slots must be from 1 to 4096, got 0"},
        {"node slots = 4097\n", "slots must be from 1 to 4096, got 4097"},
        {"node max-slots=4 slots=-1\n", "slots must be from 1 to 4096, got -1"},
        {"# node\n\n", "there are no hosts in it"},
        {"-oProxyCommand=./x\n", "begin with \"-\", got \"-oProxyCommand=./x\""},
        {"node\n \f-x@node slots=1\n", "begin with \"-\", got \"-x@node\""},
    };
    program_run run;
    skip_without_mpirun();
    const char *path = scratch_path(*state, "hosts");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(path, cases[i].line, strlen(cases[i].line));
        program_start(&run, "launch -n 1 --max-restarts 1 --elastic 1:1 --hosts %s true", path);
        check_refused(&run, 2, cases[i].sentence);
        program_start(&run, "launch -n 1 --hosts %s true", path);
        check_refused(&run, 2, cases[i].sentence);
    }
    write_file(path, "node.invalid rack=1\n", 20);
    program_start(&run, "launch -n 1 --hosts %s true", path);
    check_refused(&run, 1, "when 0 of 1 processes had started and 0 had ended: mpirun ");
    check_text(run.err, geteuid() == 0 ? ": mpirun --allow-run-as-root --hostfile /"
                                       : ": mpirun --hostfile /");
    check_text(run.err, "/hosts hostname shows why\n");
}

/* Where ssh would read an option, it reads a name. */
static void ssh_is_given_a_host_after_its_options(void **state)
{
    static const char ssh[] = "#!/bin/sh\necho \"$@\" >\"${0%/*}/words\"\nexit 1\n";
    scratch *dir = *state;
    program_run run;
    char before[4096], path[8192], words[256] = "";
    skip_without_mpirun();
    write_file(scratch_path(dir, "ssh"), ssh, sizeof ssh - 1);
    write_file(scratch_path(dir, "hosts"), "node2\n", 6);
    assert_int_equal(chmod(scratch_path(dir, "ssh"), 0700), 0);
    snprintf(before, sizeof before, "%s", getenv("PATH"));
    snprintf(path, sizeof path, "%s:%s", dir->directory, before);
    setenv("PATH", path, 1);
    program_start(&run, "launch -n 1 --max-restarts 1 --elastic 1:1 --hosts %s/hosts true",
                  dir->directory);
    setenv("PATH", before, 1);
    check_text(run.err, "no host of ");
    read_file(scratch_path(dir, "words"), words, sizeof words - 1);
    assert_string_equal(words, "-o BatchMode=yes -- node2 true\n");
}

/* By the launcher, which asks the host, and by mpirun. */
static void agent_is_cut_at_blanks(void **state)
{
    static const char agent[] = "[ \"$1\" = word ] || exit 1\nshift 2\nexec sh -c \"$*\"\n";
    static const char *const elastic[] = {"", "--max-restarts 1 --elastic 1:1"};
    scratch *dir = *state;
    program_run run;
    skip_without_mpirun();
    write_file(scratch_path(dir, "agent"), agent, sizeof agent - 1);
    write_file(scratch_path(dir, "hosts"), "node2 slots=1\n", 14);
    for (int i = 0; i < 2; i++) {
        program_start(&run,
                      "launch -n 1 %s --hosts %s/hosts --launch-agent sh$%s/agent$$word echo here",
                      elastic[i], dir->directory, dir->directory);
        assert_int_equal(run.status, 0);
        assert_string_equal(run.out, "here\n");
    }
    program_start(&run, "launch -n 1 --launch-agent ssh$-p$22$:$rsh true");
    check_refused(&run, 2,
                  "without \":\", at which mpirun begins another one, got \"ssh -p 22 : rsh\"");
    program_start(&run, "launch -n 1 --launch-agent $ true");
    check_refused(&run, 2, "a launch agent is a program and its arguments");
}

/* node2 is a host that the agent alone knows; `lost.node2` beside it cuts it off. The job begins
 * without node2, grows when it has saved, since node2 answers, and loses it again. The lines count
 * as one slot each: node2's word is another one. */
static void elastic_job_follows_its_hosts(void **state)
{
    static const char hosts[] = "localhost slots=1\n# node3\nnode2 max_slots=9 # slots=2\n";
    static const char agent[] = "#!/bin/sh\n"
                                "[ ! -e \"${0%/*}/lost.$1\" ] || exit 1\n"
                                "shift\nexec sh -c \"$*\"\n";
    static const char script[] =
        "cd \"${0%/*}\" || exit 99\n"
        "parent() { read -r _ _ _ p _ </proc/$1/stat; echo $p; }\n"
        "echo attempt $TORCHELASTIC_RESTART_COUNT: $RANK of $WORLD_SIZE "
        ">>attempts\n"
        "case $TORCHELASTIC_RESTART_COUNT.$RANK in\n"
        "0.0) rm lost.node2; sleep 6; printf saved >&$SLUICE_LAUNCH_FD\n"
        "     trap 'exit 0' TERM; while :; do sleep 0.05; done;;\n"
        "1.0) while [ ! -e lost.node2 ]; do sleep 0.05; done;;\n"
        "1.1) while ! grep -q '^attempt 1: 0' attempts; do sleep 0.05; done\n"
        "     guard=$(parent $PPID); touch lost.node2; kill -9 $PPID $guard $(parent $guard);;\n"
        "2.0) cat attempts;;\n"
        "esac\n";
    scratch *dir = *state;
    program_run run;
    skip_without_mpirun();
    write_file(scratch_path(dir, "hosts"), hosts, sizeof hosts - 1);
    write_file(scratch_path(dir, "agent"), agent, sizeof agent - 1);
    write_file(scratch_path(dir, "job.sh"), script, sizeof script - 1);
    write_file(scratch_path(dir, "lost.node2"), "", 0);
    assert_int_equal(chmod(scratch_path(dir, "agent"), 0700), 0);
    program_start(&run,
                  "launch -n 2 --max-restarts 1 --elastic 1:2 --hosts %s/hosts --launch-agent "
                  "%s/agent --grace 5 sh %s/job.sh",
                  dir->directory, dir->directory, dir->directory);
    assert_int_equal(run.status, 0);
    check_line(run.out, "^attempt 0: 0 of 1$");
    check_line(run.out, "^attempt 1: 0 of 2$");
    check_line(run.out, "^attempt 1: 1 of 2$");
    check_line(run.out, "^attempt 2: 0 of 1$");
    check_text(run.err, "sluice: warning: host node2 does not answer, and is left out until it "
                        "does\n");
    check_line(run.err, "^sluice: host node2 answers again; starting again with 2 processes$");
    check_line(run.err, "^sluice: attempt 1 of 2: rank 1 on .*; starting again with 1 "
                        "process$");
    check_line(run.err, "^sluice: 1 failure in ");
    write_file(scratch_path(dir, "lost.node2"), "", 0);
    write_file(scratch_path(dir, "hosts"), "node2\n", 6);
    program_start(&run,
                  "launch -n 1 --max-restarts 1 --elastic 1:1 --hosts %s/hosts --launch-agent "
                  "%s/agent true",
                  dir->directory, dir->directory);
    assert_int_equal(run.status, 1);
    check_text(run.err, "launch: no host of ");
}

/* The drawing's line ends stay, what a file's name could do to a terminal does not. */
static void drawing_below_an_error_keeps_its_lines(void **state)
{
    static const char table[] = "0F0,0B0\n1B0,1F0\n";
    scratch *dir = *state;
    program_run run;
    skip_without_mpirun();
    write_file(scratch_path(dir, "bad\n\x1b[2J.csv"), table, strlen(table));
    program_start(&run, "launch -n 2 %s schedule --schedule %s/bad\n\x1b[2J.csv",
                  getenv("SLUICE_PROGRAM"), dir->directory);
    assert_int_equal(run.status, 1);
    check_line(run.err, "^sluice: rank [01]: .*/bad\\\\x0a\\\\x1b\\[2J.csv: schedule: ");
    check_text(run.err, "1B0 comes before the micro-batch's forward:\n0F0\n1B0\nsluice: rank ");
    check_without(run.err, "\x1b");
}

static void process_without_a_supervisor_has_no_link(void **state)
{
    int file = open("/dev/null", O_RDWR);
    unsetenv("SLUICE_LAUNCH_FD");
    assert_null(sl_launch_link_open());
    set_link(file); /* a shell has opened another file under the number */
    assert_null(sl_launch_link_open());
    setenv("SLUICE_LAUNCH_FD", "three", 1);
    assert_null(sl_launch_link_open());
    assert_null(getenv("SLUICE_LAUNCH_FD"));
    sl_launch_link_saving(NULL, true);
    sl_launch_link_joining(NULL, true);
    assert_false(sl_launch_link_error(NULL, "not sent"));
    close(file);
}

int launch_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_without_sense_are_refused),
        cmocka_unit_test(missing_arguments_are_named),
        cmocka_unit_test_setup_teardown(events_need_no_report, scratch_create, scratch_remove),
        cmocka_unit_test(bad_command_line_is_one_sentence),
        cmocka_unit_test_setup_teardown(mpirun_that_is_missing_or_another_is_named, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(rank_without_its_launcher_says_so),
        cmocka_unit_test(saves_and_errors_are_packets),
        cmocka_unit_test_setup_teardown(control_characters_in_an_error_are_escaped, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(time_lost_to_failures_is_reported, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(request_below_the_least_fails_the_job, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(hosts_without_sense_are_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(ssh_is_given_a_host_after_its_options, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(agent_is_cut_at_blanks, scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(elastic_job_follows_its_hosts, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(drawing_below_an_error_keeps_its_lines, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(process_without_a_supervisor_has_no_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
