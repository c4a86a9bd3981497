#define _GNU_SOURCE /* pipe2 */
/* The listener of the wire with too few open files, and with very many ranks. */
#include "core/clock.h"
#include "listener_owner.h"
#include "support/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- Open files --------------------------------------------------------------------------- */

/* Sets the limit to the descriptors that are open, as the lowest free number tells. */
static void allow_no_more_files(void)
{
    struct rlimit limit;
    int next = dup(0);
    assert_true(next >= 0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* In a process of its own, for the limit's sake: what it asserts ends it with a status. */
static int run_short_of_files(int strangers)
{
    owner self;
    sli_wire_connection connection;
    int ends[2];
    start(&self, 2, 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = start_child(); /* the callers */
    if (child == 0) {
        char byte;
        sli_wire_call_options options = {.rank = 0,
                                         .ranks = 2,
                                         .kinds = KINDS,
                                         .host = "",
                                         .whom = "it",
                                         .seconds = PATIENCE_SECONDS};
        sli_wire_message hello = {.kind = HELLO, .number = 0};
        bool done = sli_wire_call(&self.address, &options, &connection) == SL_OK &&
                    sli_wire_send(&connection, &hello);
        for (int i = 0; i < strangers; i++)
            open_stranger(&self);
        (void)!read(ends[0], &byte, 1); /* until the limit is set */
        hello.number = 1;
        options.rank = 1;
        bool second = strangers > 0 &&
                      sli_wire_call(&self.address, &options, &connection) == SL_OK &&
                      sli_wire_send(&connection, &hello);
        if (strangers == 0)
            open_stranger(&self); /* its call stays where it is */
        (void)!read(ends[0], &byte, 1);
        _exit(done && (second || strangers == 0) ? 0 : 1);
    }
    turn_until(&self, &self.said, 1);
    for (int i = 0; i < 8; i++) /* the strangers are accepted */
        sli_wire_listener_turn(self.listener, -1, 1);
    allow_no_more_files();
    (void)!write(ends[1], "", 1);
    double begun = sli_clock_seconds();
    int turns = 0;
    if (strangers > 0)
        turn_until(&self, &self.said, 2);
    assert_true(sli_clock_seconds() - begun < 2.5); /* no stranger's time limit was waited for */
    for (begun = sli_clock_seconds(); sli_clock_seconds() - begun < 1; turns++)
        sli_wire_listener_turn(self.listener, -1, 1);
    if (turns > 100)
        fail_msg("a second of waiting took %d turns", turns);
    (void)!write(ends[1], "", 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(self.wrong, 0);
    return 0;
}

static void check_short_of_files(int strangers)
{
    pid_t child = start_child();
    if (child == 0)
        _exit(run_short_of_files(strangers));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void rank_joins_where_strangers_have_taken_the_last_files(void **state)
{
    check_short_of_files(20);
}

static void listener_without_files_waits_and_does_not_spin(void **state)
{
    check_short_of_files(0);
}

/* ---- Many ranks --------------------------------------------------------------------------- */

/* Ranks from `first` on, `step` apart; stays until its parent hangs up. */
static _Noreturn void be_ranks(const owner *listener, int first, int step)
{
    sli_wire_message message, hello = {.kind = HELLO};
    sli_wire_connection *all = calloc(MANY_RANKS, sizeof *all);
    int last = first;
    for (int r = first; r < MANY_RANKS; r += step) {
        sli_wire_call_options options = {.rank = r,
                                         .ranks = MANY_RANKS,
                                         .kinds = KINDS,
                                         .host = "",
                                         .whom = "it",
                                         .seconds = PATIENCE_SECONDS};
        hello.number = last = r;
        if (!all || sli_wire_call(&listener->address, &options, &all[r]) != SL_OK ||
            !sli_wire_send(&all[r], &hello))
            _exit(1);
    }
    while (all && sli_wire_receive(&all[last], &message) == SLI_WIRE_NOTHING)
        usleep(10000);
    _exit(0);
}

static void more_ranks_than_the_soft_limit_of_files_can_join(void **state)
{
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    if (before.rlim_max < MANY_RANKS + 100) {
        print_message("skipped: the hard limit on open files is %llu\n",
                      (unsigned long long)before.rlim_max);
        skip();
    }
    limit = before;
    limit.rlim_cur = 1024;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    owner self;
    pid_t children[2];
    start(&self, MANY_RANKS, 0); /* which raises the limit */
    for (int i = 0; i < 2; i++) {
        children[i] = start_child();
        if (children[i] == 0)
            be_ranks(&self, i, 2);
    }
    turn_until(&self, &self.said, MANY_RANKS);
    assert_int_equal(sli_wire_listener_connected(self.listener), MANY_RANKS);
    assert_int_equal(self.wrong, 0);
    sli_wire_listener_hang_up(self.listener);
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    sli_wire_listener_destroy(&self.listener);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void more_ranks_than_the_hard_limit_allows_are_refused(void **state)
{
    pid_t child = start_child();
    if (child == 0) {
        struct rlimit low = {200, 200};
        sli_wire_address address;
        sli_wire_listener *listener;
        sli_wire_listener_options options = {.ranks = 200, .kinds = KINDS, .this_host = true};
        setrlimit(RLIMIT_NOFILE, &low);
        check_error(sli_wire_listen(&options, &address, &listener), SL_ERR_UNSUPPORTED,
                    "200 ranks need as many open files at once and 32 more, and this process may "
                    "open 200");
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int wire_limits_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_joins_where_strangers_have_taken_the_last_files),
        cmocka_unit_test(listener_without_files_waits_and_does_not_spin),
        cmocka_unit_test(more_ranks_than_the_soft_limit_of_files_can_join),
        cmocka_unit_test(more_ranks_than_the_hard_limit_allows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
