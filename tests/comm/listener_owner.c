#include "listener_owner.h"

#include "core/clock.h"
#include "support/check.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void on_call(void *argument, int rank, const char *name)
{
    owner *self = argument;
    self->wrong += self->in[rank]++ != 0;
    self->called++;
    snprintf(self->name, sizeof self->name, "%s", name);
}

static void on_message(void *argument, int rank, const sli_wire_message *message)
{
    owner *self = argument;
    self->wrong += message->kind != HELLO || message->number != rank || self->in[rank] != 1;
    self->said++;
}

static void on_end(void *argument, int rank, sli_wire_state why)
{
    owner *self = argument;
    self->wrong += self->in[rank] != 1;
    self->why = why;
    self->ended++;
}

void start(owner *self, int ranks, double silent_seconds)
{
    *self = (owner){.listener = NULL};
    sli_wire_listener_options options = {.ranks = ranks,
                                         .kinds = KINDS,
                                         .this_host = true,
                                         .silent_seconds = silent_seconds,
                                         .owner = self,
                                         .called = on_call,
                                         .said = on_message,
                                         .ended = on_end};
    check_ok(sli_wire_listen(&options, &self->address, &self->listener));
}

void turn_until(owner *self, const int *count, int wanted)
{
    double until = sli_clock_seconds() + PATIENCE_SECONDS;
    while (*count < wanted) {
        if (sli_clock_seconds() > until)
            fail_msg("only %d of %d", *count, wanted);
        sli_wire_listener_turn(self->listener, -1, 1);
    }
}

/* ---- Ranks, on threads of their own ------------------------------------------------------- */

static void *call(void *argument)
{
    rank_call *self = argument;
    sli_wire_call_options options = {.rank = self->rank,
                                     .ranks = self->ranks,
                                     .kinds = KINDS,
                                     .host = "here",
                                     .whom = "the test",
                                     .seconds = PATIENCE_SECONDS};
    self->status = sli_wire_call(self->to, &options, &self->connection);
    sli_wire_message hello = {.kind = HELLO, .number = self->rank};
    if (self->status == SL_OK && !sli_wire_send(&self->connection, &hello))
        self->status = SL_ERR_IO;
    return NULL;
}

void start_call(rank_call *self, const owner *listener, int rank, int ranks)
{
    *self = (rank_call){.to = &listener->address, .rank = rank, .ranks = ranks};
    assert_int_equal(pthread_create(&self->thread, NULL, call, self), 0);
}

void end_call(rank_call *self)
{
    pthread_join(self->thread, NULL);
    check_ok(self->status);
}

int open_stranger(const owner *listener)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, &listener->address.at[0].any, sizeof listener->address.at[0].v4),
                     0);
    return fd;
}

pid_t start_child(void)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("CMOCKA_TEST_ABORT", "1", 1);
    }
    return child;
}
