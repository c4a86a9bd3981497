/* The supervisor of a rank, whose launcher is the test. */
#define _GNU_SOURCE
#include "comm/wire/wire_listener.h"
#include "core/clock.h"
#include "io/scratch.h"
#include "launch/launch.h"
#include "support/program.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

/* What a launcher hears of a rank. */
typedef struct heard {
    uint64_t steps; /* the last that were told */
    int saves;      /* the last kind of message about them */
    int messages;
    int status; /* of the program; -1: not told */
    bool called, ended;
} heard;

static void hear_call(void *owner, int rank, const char *host)
{
    ((heard *)owner)->called = true;
}

static void hear_message(void *owner, int rank, const sli_wire_message *message)
{
    heard *all = owner;
    all->messages++;
    if (message->kind == SLI_RANK_SAVING || message->kind == SLI_RANK_SAVED)
        all->saves = message->kind;
    if (message->kind == SLI_RANK_STEPS)
        all->steps = message->sequence;
    if (message->kind == SLI_RANK_ENDED)
        all->status = message->number;
}

static void hear_end(void *owner, int rank, sli_wire_state why)
{
    ((heard *)owner)->ended = true;
}

/* A rank of one, whose launcher is the test. */
typedef struct launched_rank {
    heard heard;
    sli_wire_listener *listener;
    char script[4096];
    pthread_t thread;
    program_run run;
} launched_rank;

static void *run_rank(void *rank)
{
    launched_rank *self = rank;
    program_start(&self->run, "launch-rank sh %s", self->script);
    return NULL;
}

static void turn_until(sli_wire_listener *listener, const bool *happened, const char *what)
{
    double begin = sli_clock_seconds();
    while (!*happened) {
        if (sli_clock_seconds() > begin + 60)
            fail_msg("the rank has not %s within 60 s", what);
        (void)sli_wire_listener_turn(listener, -1, SLI_WIRE_TURN_SECONDS);
    }
}

/* Answers the rank's call, and reads nothing that it sends then. */
static void launch_rank(launched_rank *self, scratch *dir, const char *script)
{
    *self = (launched_rank){.heard.status = -1};
    sli_wire_listener_options options = {.ranks = 1,
                                         .kinds = SLI_LAUNCH_KINDS,
                                         .this_host = true,
                                         .owner = &self->heard,
                                         .called = hear_call,
                                         .said = hear_message,
                                         .ended = hear_end};
    sli_wire_address address;
    char text[SLI_WIRE_ADDRESS_BYTES];
    snprintf(self->script, sizeof self->script, "%s", scratch_path(dir, "job.sh"));
    write_file(self->script, script, strlen(script));
    check_ok(sli_wire_listen(&options, &address, &self->listener));
    sli_wire_address_print(&address, text);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    setenv("SLUICE_LAUNCHER", text, 1);
    assert_int_equal(pthread_create(&self->thread, NULL, run_rank, self), 0);
    turn_until(self->listener, &self->heard.called, "called");
}

static void wait_for_rank(launched_rank *self)
{
    pthread_join(self->thread, NULL);
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("SLUICE_LAUNCHER");
    assert_int_equal(self->run.status, 0);
}

/* The launcher reads again when the rank's program has ended. Then it finds few messages, with the
 * newest state last: were there more than its receive window holds, the connection would break
 * after 8 s. */
static void rank_of_a_launcher_that_does_not_read_keeps_its_newest_state(void **state)
{
    static const char script[] = "say() { printf \"$1\" >&$SLUICE_LAUNCH_FD; }\n"
                                 "i=0\n"
                                 "while [ $i -lt 1000 ]; do\n"
                                 "    i=$((i + 1)); say saving; say saved; say \"steps $i\"\n"
                                 "done\n";
    static launched_rank rank;
    launch_rank(&rank, *state, script);
    wait_for_rank(&rank);
    turn_until(rank.listener, &rank.heard.ended, "hung up");
    sli_wire_listener_destroy(&rank.listener);
    assert_int_equal(rank.heard.status, 0);
    assert_int_equal(rank.heard.steps, 1000);
    assert_int_equal(rank.heard.saves, SLI_RANK_SAVED);
    assert_in_range(rank.heard.messages, 1, 4 * SLI_WIRE_ANSWER_MESSAGES + 4); /* of 3001 */
}

static atomic_int terminated;

static void count_sigterm(int number)
{
    atomic_fetch_add(&terminated, 1);
}

/* The test has the name of mpirun's daemon. Errors are sent however many wait: here until there is
 * no room for the next one. */
static void rank_ends_the_daemon_of_a_launcher_that_is_lost(void **state)
{
    static const char talks[] = "x=$(printf %1900s x)\n"
                                "while :; do printf \"error $x\" >&$SLUICE_LAUNCH_FD; done\n";
    static launched_rank rank;
    struct sigaction before;
    char name[16];
    prctl(PR_GET_NAME, name);
    prctl(PR_SET_NAME, "orted");
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = count_sigterm}, &before);
    launch_rank(&rank, *state, "exec sleep 600");
    sli_wire_listener_destroy(&rank.listener); /* it hangs up: the daemon ends with mpirun */
    wait_for_rank(&rank);
    int when_closed = atomic_load(&terminated);
    launch_rank(&rank, *state, talks);
    wait_for_rank(&rank);
    sli_wire_listener_destroy(&rank.listener);
    sigaction(SIGTERM, &before, NULL);
    prctl(PR_SET_NAME, name);
    assert_int_equal(when_closed, 0);
    assert_int_equal(atomic_load(&terminated), 1);
}

/* Each of its children ends soon after it, and tells the supervisor so. */
static void program_that_ignores_sigterm_is_killed_whatever_its_children_do(void **state)
{
    static const char script[] = "trap '' TERM; : >\"${0%/*}/ready\"\n"
                                 "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do\n"
                                 "    (sleep 0.1 &)\n"
                                 "    sleep 0.5\n"
                                 "done\n";
    static launched_rank rank;
    launch_rank(&rank, *state, script);
    while (access(scratch_path(*state, "ready"), F_OK) != 0)
        (void)sli_wire_listener_turn(rank.listener, -1, SLI_WIRE_TURN_SECONDS);
    double begin = sli_clock_seconds();
    sli_wire_listener_destroy(&rank.listener);
    wait_for_rank(&rank);
    assert_true(sli_clock_seconds() - begin < 6); /* the script takes 8 s */
}

/* Turns the listener until the rank has told how its program ended; false after `seconds`. */
static bool hears_end(launched_rank *self, double seconds)
{
    double begin = sli_clock_seconds();
    while (self->heard.status < 0 && sli_clock_seconds() - begin < seconds)
        (void)sli_wire_listener_turn(self->listener, -1, SLI_WIRE_TURN_SECONDS);
    return self->heard.status >= 0;
}

/* A killed process stays its supervisor's until the one that traces it has waited for it. */
static void rank_ends_though_what_its_program_left_does_not(void **state)
{
    static const char script[] = "cd \"${0%/*}\"; sleep 600 & echo $! >left.new\n"
                                 "mv left.new left; until [ -e traced ]; do sleep 0.05; done\n";
    static launched_rank rank;
    char text[16] = "";
    scratch *dir = *state;
    launch_rank(&rank, dir, script);
    while (access(scratch_path(dir, "left"), F_OK) != 0)
        (void)sli_wire_listener_turn(rank.listener, -1, SLI_WIRE_TURN_SECONDS);
    read_file(scratch_path(dir, "left"), text, sizeof text - 1);
    pid_t left = atoi(text);
    int refused = ptrace(PTRACE_SEIZE, left, NULL, NULL) == 0 ? 0 : errno;
    write_file(scratch_path(dir, "traced"), "", 0);
    bool ended = hears_end(&rank, 8);
    int status = 0;
    if (!refused)
        assert_int_equal(waitpid(left, &status, __WALL), left);
    sli_wire_listener_destroy(&rank.listener);
    wait_for_rank(&rank);
    if (refused) {
        print_message("skipped: processes cannot be traced here: %s\n", strerror(refused));
        skip();
    }
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_true(ended);
}

int rank_tests(void)
{
    if (!program_exists())
        return 77;
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(rank_of_a_launcher_that_does_not_read_keeps_its_newest_state),
        IN_SCRATCH(rank_ends_the_daemon_of_a_launcher_that_is_lost),
        IN_SCRATCH(program_that_ignores_sigterm_is_killed_whatever_its_children_do),
        IN_SCRATCH(rank_ends_though_what_its_program_left_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
