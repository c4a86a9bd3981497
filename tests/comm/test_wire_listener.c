/* The listener of the wire: ranks, strangers, and silence. */
#include "core/clock.h"
#include "listener_owner.h"
#include "support/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void ranks_call_speak_and_leave(void **state)
{
    owner self;
    rank_call calls[3];
    sli_wire_message message;
    start(&self, 3, 0);
    for (int r = 0; r < 3; r++)
        start_call(&calls[r], &self, r, 3);
    turn_until(&self, &self.said, 3);
    for (int r = 0; r < 3; r++)
        end_call(&calls[r]);
    assert_string_equal(self.name, "here");
    assert_int_equal(sli_wire_listener_connected(self.listener), 3);
    sli_wire_listener_send(self.listener, 1, &(sli_wire_message){.kind = 2, .text = "for 1"});
    assert_int_equal(sli_wire_receive(&calls[1].connection, &message), SLI_WIRE_MESSAGE);
    assert_string_equal(message.text, "for 1");
    sli_wire_close(&calls[2].connection);
    turn_until(&self, &self.ended, 1);
    assert_int_equal(self.why, SLI_WIRE_CLOSED);
    assert_int_equal(self.called, 3);
    sli_wire_listener_hang_up(self.listener);
    assert_int_equal(sli_wire_receive(&calls[0].connection, &message), SLI_WIRE_CLOSED);
    sli_wire_listener_turn(self.listener, -1, 1);
    assert_int_equal(self.ended, 1);
    assert_int_equal(self.wrong, 0);
    for (int r = 0; r < 2; r++)
        sli_wire_close(&calls[r].connection);
    sli_wire_listener_destroy(&self.listener);
}

static void listener_for_this_host_is_on_loopback_alone(void **state)
{
    owner self;
    start(&self, 1, 0);
    assert_int_equal(self.address.count, 1);
    struct sockaddr_in at = self.address.at[0].v4;
    assert_int_equal(ntohl(at.sin_addr.s_addr), INADDR_LOOPBACK);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1); /* of the same interface */
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    sli_wire_listener_destroy(&self.listener);
}

/* Answers a caller that cannot know the key, or is no rank. */
static void check_call_fails(owner *self, const sli_wire_address *to, int rank, int ranks)
{
    sli_wire_connection connection;
    pid_t child = start_child();
    if (child == 0) {
        sli_wire_call_options options = {
            .rank = rank, .ranks = ranks, .kinds = KINDS, .host = "", .whom = "it", .seconds = 0.2};
        _exit(sli_wire_call(to, &options, &connection) == SL_OK ? 1 : 0);
    }
    int status;
    while (waitpid(child, &status, WNOHANG) == 0)
        sli_wire_listener_turn(self->listener, -1, 1);
    assert_int_equal(status, 0);
}

static void caller_without_the_key_or_a_free_rank_is_refused(void **state)
{
    owner self;
    rank_call first;
    start(&self, 2, 0);
    sli_wire_address other = self.address;
    other.key[31] ^= 1;
    check_call_fails(&self, &other, 0, 2);
    check_call_fails(&self, &self.address, 2, 3);
    check_call_fails(&self, &self.address, -1, 2);
    check_call_fails(&self, &self.address, 4096, 5000);
    assert_int_equal(self.called, 0);
    start_call(&first, &self, 0, 2);
    turn_until(&self, &self.said, 1);
    end_call(&first);
    check_call_fails(&self, &self.address, 0, 2); /* it is here */
    sli_wire_close(&first.connection);
    turn_until(&self, &self.ended, 1);
    check_call_fails(&self, &self.address, 0, 2); /* it was here */
    assert_int_equal(self.called, 1);
    assert_int_equal(self.wrong, 0);
    sli_wire_listener_destroy(&self.listener);
}

/* A rank that knows the key and says what no rank says is hung up on; nothing reaches the owner. */
static void hostile_rank_is_hung_up_on(void **state)
{
    static const sli_wire_message hostile[] = {{.kind = HELLO, .rank = 4096, .size = 8192},
                                               {.kind = HELLO, .rank = -1, .size = 2},
                                               {.kind = HELLO, .rank = 1, .size = INT32_MAX},
                                               {.kind = KINDS},
                                               {.kind = HELLO, .seconds = -1}};
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        owner self;
        rank_call rank;
        start(&self, 2, 0);
        start_call(&rank, &self, 1, 2);
        turn_until(&self, &self.said, 1);
        end_call(&rank);
        assert_true(sli_wire_send(&rank.connection, &hostile[i]));
        turn_until(&self, &self.ended, 1);
        assert_int_equal(self.why, SLI_WIRE_INVALID);
        assert_int_equal(self.said, 1);
        sli_wire_close(&rank.connection);
        sli_wire_listener_destroy(&self.listener);
    }
}

/* ---- Strangers ---------------------------------------------------------------------------- */

static void silent_strangers_do_not_keep_a_rank_out(void **state)
{
    enum { STRANGERS = 300 };
    owner self;
    rank_call rank;
    int strangers[STRANGERS];
    start(&self, 2, 0);
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = open_stranger(&self);
        if (i % 3 == 0)
            assert_int_equal(send(strangers[i], "hello?", 6, 0), 6);
    }
    double begun = sli_clock_seconds();
    start_call(&rank, &self, 1, 2);
    turn_until(&self, &self.said, 1);
    end_call(&rank);
    assert_true(sli_clock_seconds() - begun < 4); /* no stranger's time limit was waited for */
    assert_int_equal(self.called, 1);
    int still_open = 0;
    bool is_open = false;
    char byte;
    for (int i = 0; i < STRANGERS; i++) {
        is_open = recv(strangers[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
        still_open += is_open;
        assert_false(i == 0 && is_open); /* the oldest went */
    }
    assert_true(is_open && still_open < STRANGERS); /* and the newest did not */
    /* Those that stay have a time limit. */
    while (recv(strangers[STRANGERS - 1], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
        assert_true(sli_clock_seconds() - begun < PATIENCE_SECONDS);
        sli_wire_listener_turn(self.listener, -1, 1);
    }
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    assert_int_equal(self.ended, 0);
    sli_wire_close(&rank.connection);
    sli_wire_listener_destroy(&self.listener);
}

/* The first half of a rank's handshake; the second is a message. */
static sli_wire_connection say_hello(owner *listener, const sli_wire_hello *hello)
{
    unsigned char nonce[SLI_WIRE_NONCE_BYTES];
    sli_wire_message message;
    sli_wire_connection rank = {.fd = open_stranger(listener), .ranks = 2, .kinds = KINDS};
    assert_true(sli_wire_send_bytes(&rank, hello, sizeof *hello));
    while (sli_wire_fill(&rank, sizeof nonce) == SLI_WIRE_NOTHING)
        sli_wire_listener_turn(listener->listener, -1, 1);
    sli_wire_read_bytes(&rank, nonce, sizeof nonce);
    sli_wire_derive_keys(&rank, listener->address.key, false, hello, nonce);
    assert_int_equal(sli_wire_receive(&rank, &message), SLI_WIRE_MESSAGE);
    return rank;
}

/* What a rank sends, without its sending it. */
static size_t record(sli_wire_connection *rank, const sli_wire_message *message,
                     unsigned char frame[SLI_WIRE_FRAME_BYTES])
{
    int fds[2], fd = rank->fd;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    rank->fd = fds[0];
    assert_true(sli_wire_send(rank, message));
    ssize_t bytes = recv(fds[1], frame, SLI_WIRE_FRAME_BYTES, 0);
    assert_true(bytes > 0);
    close(fds[0]);
    close(fds[1]);
    rank->fd = fd;
    return (size_t)bytes;
}

/* Until it is hung up on. */
static void check_stranger_is_refused(owner *self, int fd)
{
    char answer[256];
    ssize_t got;
    while ((got = recv(fd, answer, sizeof answer, MSG_DONTWAIT)) != 0 &&
           (got > 0 || errno == EAGAIN))
        sli_wire_listener_turn(self->listener, -1, 1);
    close(fd);
    assert_int_equal(self->called, 0);
}

/* A stranger has no proof but the listener's own. */
static void proof_that_is_sent_back_does_not_make_a_rank(void **state)
{
    owner self;
    unsigned char answer[SLI_WIRE_NONCE_BYTES + SLI_WIRE_FRAME_BYTES];
    const sli_wire_hello hello = sli_wire_hello_of(1);
    ssize_t bytes;
    start(&self, 2, 0);
    int fd = open_stranger(&self);
    assert_int_equal(send(fd, &hello, sizeof hello, 0), sizeof hello);
    for (int sent = 0; sent<2; sent += bytes> 0) { /* nonce, message */
        sli_wire_listener_turn(self.listener, -1, 0);
        bytes = recv(fd, answer, sent ? sizeof answer : SLI_WIRE_NONCE_BYTES, MSG_DONTWAIT);
    }
    assert_int_equal(send(fd, answer, (size_t)bytes, 0), bytes);
    shutdown(fd, SHUT_WR);
    check_stranger_is_refused(&self, fd);
    sli_wire_listener_destroy(&self.listener);
}

/* A stranger has recorded a rank's handshake, which did not come to its end, and plays it again. */
static void recorded_connection_does_not_become_a_rank(void **state)
{
    owner self;
    unsigned char proof[SLI_WIRE_FRAME_BYTES];
    const sli_wire_message name = {.kind = SLI_WIRE_ALIVE, .text = "here"};
    sli_wire_hello hello = sli_wire_hello_of(1);
    start(&self, 2, 0);
    sli_wire_connection rank = say_hello(&self, &hello);
    size_t bytes = record(&rank, &name, proof);
    sli_wire_close(&rank);
    int fd = open_stranger(&self);
    assert_int_equal(send(fd, &hello, sizeof hello, 0), sizeof hello);
    assert_int_equal(send(fd, proof, bytes, 0), bytes);
    shutdown(fd, SHUT_WR);
    check_stranger_is_refused(&self, fd);
    hello = sli_wire_hello_of(1); /* the rank itself still gets in */
    rank = say_hello(&self, &hello);
    assert_true(sli_wire_send(&rank, &name));
    turn_until(&self, &self.called, 1);
    sli_wire_close(&rank);
    sli_wire_listener_destroy(&self.listener);
}

/* What stands between a rank and the listener ends that connection, and nothing else. */
static void stream_that_was_tampered_with_ends_its_connection_alone(void **state)
{
    enum { ALTER, REPEAT, DROP, SWAP, SEND_BACK, CASES };
    for (int what = 0; what < CASES; what++) {
        owner self;
        rank_call ranks[2];
        unsigned char frame[SLI_WIRE_FRAME_BYTES], second[SLI_WIRE_FRAME_BYTES];
        const sli_wire_message said = {.kind = HELLO, .number = 1};
        start(&self, 2, 0);
        for (int r = 0; r < 2; r++)
            start_call(&ranks[r], &self, r, 2);
        turn_until(&self, &self.said, 2);
        for (int r = 0; r < 2; r++)
            end_call(&ranks[r]);
        sli_wire_connection *rank = &ranks[1].connection;
        size_t bytes = record(rank, &said, frame);
        assert_int_equal(record(rank, &said, second), bytes);
        if (what == ALTER)
            frame[bytes - 1] ^= 0x80;
        if (what == SEND_BACK) {
            sli_wire_listener_send(self.listener, 1, &said);
            assert_int_equal(recv(rank->fd, frame, sizeof frame, 0), bytes);
        }
        if (what == DROP || what == SWAP)
            assert_true(sli_wire_send_bytes(rank, second, bytes));
        if (what != DROP)
            assert_true(sli_wire_send_bytes(rank, frame, bytes));
        if (what == REPEAT)
            assert_true(sli_wire_send_bytes(rank, frame, bytes));
        turn_until(&self, &self.ended, 1);
        assert_int_equal(self.why, SLI_WIRE_INVALID);
        assert_int_equal(self.said, what == REPEAT ? 3 : 2);
        assert_int_equal(sli_wire_listener_connected(self.listener), 1);
        assert_true(sli_wire_send(&ranks[0].connection, &(sli_wire_message){.kind = HELLO}));
        turn_until(&self, &self.said, what == REPEAT ? 4 : 3);
        assert_int_equal(self.ended, 1);
        assert_int_equal(self.wrong, 0);
        for (int r = 0; r < 2; r++)
            sli_wire_close(&ranks[r].connection);
        sli_wire_listener_destroy(&self.listener);
    }
}

/* Between its hello and its proof a rank says nothing: it keeps its place before strangers that
 * have not even said hello, and is alive once it is in. */
static void rank_with_a_slow_handshake_stays_and_is_not_silent(void **state)
{
    enum { STRANGERS = 200 }; /* more than there is room for */
    int strangers[STRANGERS];
    static const double silent_seconds = 1;
    owner self;
    sli_wire_hello hello = sli_wire_hello_of(1);
    start(&self, 2, silent_seconds);
    sli_wire_connection rank = say_hello(&self, &hello);
    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = open_stranger(&self);
    double until = sli_wire_listener_seconds(self.listener) + silent_seconds + 1;
    while (sli_wire_listener_seconds(self.listener) < until)
        sli_wire_listener_turn(self.listener, -1, 1);
    assert_true(sli_wire_send(&rank, &(sli_wire_message){.kind = SLI_WIRE_ALIVE, .text = "slow"}));
    turn_until(&self, &self.called, 1);
    sli_wire_listener_turn(self.listener, -1, 0);
    assert_int_equal(self.ended, 0);
    assert_string_equal(self.name, "slow");
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    sli_wire_close(&rank);
    sli_wire_listener_destroy(&self.listener);
}

/* ---- Silence ------------------------------------------------------------------------------ */

static void rank_that_falls_silent_is_lost_and_one_that_speaks_is_not(void **state)
{
    owner self;
    rank_call ranks[2];
    sli_wire_message message;
    int alive = 0;
    start(&self, 2, 1.5);
    double begun = sli_clock_seconds(); /* rank 0 speaks later */
    for (int r = 0; r < 2; r++)
        start_call(&ranks[r], &self, r, 2);
    turn_until(&self, &self.said, 2);
    for (int r = 0; r < 2; r++)
        end_call(&ranks[r]);
    while (self.ended == 0) {
        assert_true(sli_clock_seconds() - begun < PATIENCE_SECONDS);
        assert_true(sli_wire_send(&ranks[1].connection, &(sli_wire_message){.kind = 0}));
        sli_wire_listener_turn(self.listener, -1, 1);
        while (sli_wire_receive(&ranks[1].connection, &message) == SLI_WIRE_MESSAGE)
            alive += message.kind == SLI_WIRE_ALIVE;
    }
    assert_true(sli_clock_seconds() - begun > 1.2);
    assert_int_equal(self.why, SLI_WIRE_SILENT);
    assert_true(alive >= 2);
    assert_int_equal(sli_wire_listener_connected(self.listener), 1);
    assert_int_equal(self.said, 2); /* signs of life are not the owner's business */
    for (int r = 0; r < 2; r++)
        sli_wire_close(&ranks[r].connection);
    sli_wire_listener_destroy(&self.listener);
}

/* The listener's process does not run for longer than the limit: nobody is lost for that. */
static void time_in_which_the_listener_did_not_run_is_no_silence(void **state)
{
    owner self;
    rank_call rank;
    start(&self, 1, 1.5);
    start_call(&rank, &self, 0, 1);
    turn_until(&self, &self.said, 1);
    end_call(&rank);
    double before = sli_wire_listener_seconds(self.listener);
    usleep(2500000);
    sli_wire_listener_turn(self.listener, -1, 1); /* before it hears of the rank again */
    sli_wire_listener_turn(self.listener, -1, 1);
    assert_int_equal(self.ended, 0);
    assert_true(sli_wire_listener_seconds(self.listener) - before < 2);
    sli_wire_close(&rank.connection);
    sli_wire_listener_destroy(&self.listener);
}

int wire_listener_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_call_speak_and_leave),
        cmocka_unit_test(listener_for_this_host_is_on_loopback_alone),
        cmocka_unit_test(caller_without_the_key_or_a_free_rank_is_refused),
        cmocka_unit_test(hostile_rank_is_hung_up_on),
        cmocka_unit_test(silent_strangers_do_not_keep_a_rank_out),
        cmocka_unit_test(proof_that_is_sent_back_does_not_make_a_rank),
        cmocka_unit_test(recorded_connection_does_not_become_a_rank),
        cmocka_unit_test(stream_that_was_tampered_with_ends_its_connection_alone),
        cmocka_unit_test(rank_with_a_slow_handshake_stays_and_is_not_silent),
        cmocka_unit_test(rank_that_falls_silent_is_lost_and_one_that_speaks_is_not),
        cmocka_unit_test(time_in_which_the_listener_did_not_run_is_no_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
