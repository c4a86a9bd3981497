#define _GNU_SOURCE /* memmem */
/* Messages, addresses and the handshake of the wire. */
#include "comm/wire/wire.h"
#include "support/check.h"

#include <arpa/inet.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 4, KINDS = 3 };

/* ---- Messages ----------------------------------------------------------------------------- */

static const sli_wire_message sound = {.kind = 2,
                                       .rank = 3,
                                       .size = 4,
                                       .number = -7,
                                       .group = 0x0123456789abcdef,
                                       .sequence = UINT64_MAX,
                                       .seconds = 0.3,
                                       .text = "rank 3: no memory"};

static bool passes(const sli_wire_message *message)
{
    size_t bytes = SLI_WIRE_FIXED_BYTES + strlen(message->text);
    return sli_wire_message_is_valid(message, bytes, RANKS, KINDS);
}

static void number_out_of_its_range_is_refused(void **state)
{
    static const int32_t ranks[][2] = {{4096, 4},      {4, 4},         {-1, 4},     {0, -1},
                                       {INT32_MIN, 4}, {0, 5},         {1, 0},      {4096, 4097},
                                       {-1, -1},       {INT32_MAX, 1}, {0, 1 << 30}};
    static const int32_t kinds[] = {-1, KINDS, INT32_MAX, INT32_MIN};
    static const double seconds[] = {NAN, INFINITY, -INFINITY, -1};
    sli_wire_message message = sound;
    assert_true(passes(&message));
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        message.rank = ranks[i][0];
        message.size = ranks[i][1];
        assert_false(passes(&message));
    }
    message = sound;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        message.kind = kinds[i];
        assert_false(passes(&message));
    }
    message = sound;
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        message.seconds = seconds[i];
        assert_false(passes(&message));
    }
    message = sound;
    message.rank = message.size = 0; /* names none */
    assert_true(passes(&message));
}

static void text_of_another_length_is_refused(void **state)
{
    size_t bytes = SLI_WIRE_FIXED_BYTES + strlen(sound.text);
    assert_true(sli_wire_message_is_valid(&sound, bytes, RANKS, KINDS));
    assert_false(sli_wire_message_is_valid(&sound, bytes - 1, RANKS, KINDS));
    assert_false(sli_wire_message_is_valid(&sound, bytes + 1, RANKS, KINDS)); /* ends before */
    sli_wire_message empty = {.kind = 0};
    assert_true(sli_wire_message_is_valid(&empty, SLI_WIRE_FIXED_BYTES, RANKS, KINDS));
}

/* ---- Connections -------------------------------------------------------------------------- */

/* Two ends whose handshake is done. */
static void connect_ends(sli_wire_connection ends[2])
{
    int fds[2];
    unsigned char key[SLI_WIRE_KEY_BYTES] = "key", nonce[SLI_WIRE_NONCE_BYTES] = "nonce";
    sli_wire_hello hello = sli_wire_hello_of(1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (int i = 0; i < 2; i++) {
        ends[i] = (sli_wire_connection){.fd = fds[i], .ranks = RANKS, .kinds = KINDS};
        sli_wire_derive_keys(&ends[i], key, i == 0, &hello, nonce);
    }
}

static void close_ends(sli_wire_connection ends[2])
{
    sli_wire_close(&ends[0]);
    sli_wire_close(&ends[1]);
}

static void messages_come_in_order_and_whole(void **state)
{
    sli_wire_connection ends[2];
    sli_wire_message read, message = sound;
    connect_ends(ends);
    assert_int_equal(sli_wire_receive(&ends[1], &read), SLI_WIRE_NOTHING);
    for (int i = 0; i < 20; i++) {
        message.number = i;
        memset(message.text, 'a', 25 * (size_t)i);
        assert_true(sli_wire_send(&ends[0], &message));
    }
    for (int i = 0; i < 20; i++) {
        assert_int_equal(sli_wire_receive(&ends[1], &read), SLI_WIRE_MESSAGE);
        assert_int_equal(read.number, i);
    }
    assert_int_equal(sli_wire_receive(&ends[1], &read), SLI_WIRE_NOTHING);
    assert_true(sli_wire_send(&ends[1], &sound));
    assert_int_equal(sli_wire_receive(&ends[0], &read), SLI_WIRE_MESSAGE);
    assert_memory_equal(&read, &sound, sizeof read);
    memset(message.text, 'x', sizeof message.text - 1); /* the longest */
    assert_true(sli_wire_send(&ends[1], &message));
    assert_int_equal(sli_wire_receive(&ends[0], &read), SLI_WIRE_MESSAGE);
    assert_memory_equal(&read, &message, sizeof read);
    sli_wire_close(&ends[0]);
    assert_int_equal(sli_wire_receive(&ends[1], &read), SLI_WIRE_CLOSED);
    close_ends(ends);
}

static void send_raw(sli_wire_connection *end, const void *bytes, size_t count)
{
    assert_int_equal(send(end->fd, bytes, count, 0), count);
}

/* What an end sends, without its sending it. */
static size_t record(sli_wire_connection *end, unsigned char frame[SLI_WIRE_FRAME_BYTES])
{
    int fds[2], fd = end->fd;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    end->fd = fds[0];
    assert_true(sli_wire_send(end, &sound));
    ssize_t bytes = recv(fds[1], frame, SLI_WIRE_FRAME_BYTES, 0);
    assert_true(bytes > 0);
    close(fds[0]);
    close(fds[1]);
    end->fd = fd;
    return (size_t)bytes;
}

/* Two ends that have both said something. */
static void connect_streams(sli_wire_connection ends[2])
{
    sli_wire_message read;
    connect_ends(ends);
    for (int i = 0; i < 2; i++) {
        assert_true(sli_wire_send(&ends[i], &sound));
        assert_int_equal(sli_wire_receive(&ends[1 - i], &read), SLI_WIRE_MESSAGE);
    }
}

/* Whatever stands between the two can alter any bit of what they say. */
static void message_that_is_altered_is_noticed(void **state)
{
    for (size_t at = 0, bytes = 1; at < bytes; at++) {
        sli_wire_connection ends[2];
        unsigned char frame[SLI_WIRE_FRAME_BYTES], more[SLI_WIRE_FRAME_BYTES] = {0};
        sli_wire_message read;
        connect_ends(ends);
        bytes = record(&ends[0], frame); /* with the header of the stream */
        frame[at] ^= 1;
        send_raw(&ends[0], frame, bytes);
        send_raw(&ends[0], more, sizeof more); /* where it is the length that has grown */
        assert_int_equal(sli_wire_receive(&ends[1], &read), SLI_WIRE_INVALID);
        close_ends(ends);
    }
}

/* It can also repeat, drop, swap, shorten, send back and invent messages. */
static void stream_that_was_tampered_with_is_noticed(void **state)
{
    enum { REPEAT, DROP, SWAP, SHORTEN, SEND_BACK, INVENT, CASES };
    for (int what = 0; what < CASES; what++) {
        sli_wire_connection ends[2];
        unsigned char frame[SLI_WIRE_FRAME_BYTES], second[SLI_WIRE_FRAME_BYTES];
        sli_wire_message read;
        connect_streams(ends);
        size_t bytes = record(&ends[0], frame);
        assert_int_equal(record(&ends[0], second), bytes);
        assert_memory_not_equal(frame, second, bytes);
        assert_null(memmem(frame, bytes, sound.text, 4)); /* nobody reads it on the way */
        int to = what == SEND_BACK ? 0 : 1;
        if (what == REPEAT) {
            send_raw(&ends[0], frame, bytes);
            assert_int_equal(sli_wire_receive(&ends[1], &read), SLI_WIRE_MESSAGE);
        }
        if (what == INVENT)
            randombytes_buf(frame + 4, bytes - 4);
        if (what == SHORTEN)
            frame[0]--;
        if (what == DROP || what == SWAP)
            send_raw(&ends[0], second, bytes);
        send_raw(&ends[1 - to], frame, bytes);
        assert_int_equal(sli_wire_receive(&ends[to], &read), SLI_WIRE_INVALID);
        close_ends(ends);
    }
}

static void stream_that_is_sent_back_is_noticed(void **state)
{
    sli_wire_connection ends[2];
    unsigned char frame[SLI_WIRE_FRAME_BYTES];
    sli_wire_message read;
    connect_ends(ends);
    send_raw(&ends[1], frame, record(&ends[0], frame));
    assert_int_equal(sli_wire_receive(&ends[0], &read), SLI_WIRE_INVALID);
    close_ends(ends);
}

/* With the key, but with another nonce on one side, as a recorded connection has. */
static void stream_of_another_connection_is_noticed(void **state)
{
    sli_wire_connection ends[2], others[2];
    unsigned char frame[SLI_WIRE_FRAME_BYTES];
    sli_wire_message read;
    connect_ends(ends);
    connect_ends(others);
    send_raw(&ends[0], frame, record(&others[0], frame));
    assert_int_equal(sli_wire_receive(&ends[1], &read), SLI_WIRE_INVALID);
    close_ends(ends);
    close_ends(others);
}

static void length_that_no_message_has_is_noticed(void **state)
{
    static const int32_t lengths[] = {
        -1, 0, SLI_WIRE_FIXED_BYTES - 1, SLI_WIRE_MOST_BYTES + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        sli_wire_connection ends[2];
        sli_wire_message read;
        connect_streams(ends);
        send_raw(&ends[0], &lengths[i], 4);
        assert_int_equal(sli_wire_receive(&ends[1], &read), SLI_WIRE_INVALID);
        close_ends(ends);
    }
}

static void receiver_that_takes_nothing_is_noticed(void **state)
{
    sli_wire_connection ends[2];
    connect_ends(ends);
    int sent = 0;
    while (sli_wire_send(&ends[0], &sound))
        assert_true(++sent < 1000000);
    close_ends(ends);
}

/* ---- Addresses ---------------------------------------------------------------------------- */

static void address_survives_its_text(void **state)
{
    char text[SLI_WIRE_ADDRESS_BYTES], again[SLI_WIRE_ADDRESS_BYTES];
    sli_wire_address address = {.count = 0}, read;
    randombytes_buf(address.key, sizeof address.key);
    sli_host_id(address.host);
    check_ok(sli_wire_address_find(&address, AF_INET6, 4242, false));
    assert_true(address.count >= 1);
    sli_wire_address_print(&address, text);
    check_ok(sli_wire_address_parse(text, &read));
    assert_memory_equal(read.key, address.key, sizeof read.key);
    assert_string_equal(read.host, address.host);
    assert_int_equal(read.count, address.count);
    assert_int_equal(ntohs(read.at[0].v4.sin_port), 4242);
    sli_wire_address_print(&read, again);
    assert_string_equal(again, text);
}

/* The longest text that there can be has room. */
static void address_of_many_interfaces_has_room(void **state)
{
    char text[SLI_WIRE_ADDRESS_BYTES];
    sli_wire_address address = {.count = SLI_WIRE_MAX_ADDRESSES}, read;
    sli_host_id(address.host);
    for (int i = 0; i < SLI_WIRE_MAX_ADDRESSES; i++) {
        address.at[i].v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = 0xffff};
        memset(&address.at[i].v6.sin6_addr, 0xfe, 16);
    }
    sli_wire_address_print(&address, text);
    check_ok(sli_wire_address_parse(text, &read));
    assert_int_equal(read.count, SLI_WIRE_MAX_ADDRESSES);
}

static void text_that_is_no_address_is_refused(void **state)
{
#define KEY  "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define HOST "000102030405060708090a0b0c0d0e0f"
    static const char *const wrong[] = {"",
                                        "token 1 127.0.0.1",
                                        KEY,
                                        KEY "," HOST,
                                        KEY "," HOST ",1",
                                        KEY "," HOST ",0,127.0.0.1",
                                        KEY "," HOST ",65536,127.0.0.1",
                                        KEY "," HOST ",-1,127.0.0.1",
                                        KEY "," HOST ",1x,127.0.0.1",
                                        KEY "," HOST ",1,127.0.0",
                                        KEY "," HOST ",1,127.0.0.1,",
                                        KEY "," HOST ",1,localhost",
                                        KEY "," HOST "0,1,127.0.0.1",
                                        KEY "0," HOST ",1,127.0.0.1",
                                        "x" KEY "," HOST ",1,127.0.0.1",
                                        ",,,"};
    sli_wire_address read;
    char many[SLI_WIRE_ADDRESS_BYTES] = KEY "," HOST ",1";
    check_ok(sli_wire_address_parse(KEY "," HOST ",1,127.0.0.1,::1", &read));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_error(sli_wire_address_parse(wrong[i], &read), SL_ERR_FORMAT, "no address");
        assert_int_equal(read.count, 0);
    }
    for (int i = 0; i <= SLI_WIRE_MAX_ADDRESSES; i++)
        strcat(many, ",10.0.0.1");
    check_error(sli_wire_address_parse(many, &read), SL_ERR_FORMAT, "no address");
}

static void loopback_leads_to_its_own_host_alone(void **state)
{
    char host[SLI_HOST_ID_BYTES];
    sli_wire_address read;
    sli_host_id(host);
    check_ok(sli_wire_address_parse(KEY "," HOST ",1,127.0.0.1,::1,10.0.0.1", &read));
    static const bool elsewhere[] = {false, false, true};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sli_wire_address_is_reachable(&read, i, host), elsewhere[i]);
        assert_true(sli_wire_address_is_reachable(&read, i, HOST));
    }
}

/* ---- Strangers that listen ---------------------------------------------------------------- */

typedef struct stranger {
    int fd;
    size_t heard;
    unsigned char bytes[4096]; /* of all calls */
    bool echoes;               /* else it says nothing sensible */
} stranger;

/* Answers calls until its socket is shut down. */
static void *listen_as_stranger(void *argument)
{
    stranger *self = argument;
    int fd;
    while ((fd = accept(self->fd, NULL, NULL)) >= 0) {
        ssize_t bytes = recv(fd, self->bytes + self->heard, sizeof self->bytes - self->heard, 0);
        self->heard += bytes > 0 ? (size_t)bytes : 0;
        char noise[200];
        memset(noise, 'x', sizeof noise);
        if (bytes > 0)
            (void)!send(fd, self->echoes ? (char *)self->bytes : noise,
                        self->echoes ? (size_t)bytes : sizeof noise, MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        while ((bytes = recv(fd, self->bytes + self->heard, sizeof self->bytes - self->heard, 0)) >
               0)
            self->heard += (size_t)bytes;
        close(fd);
    }
    return NULL;
}

static void stranger_that_listens_learns_nothing_and_is_not_believed(void **state)
{
    for (int echoes = 0; echoes < 2; echoes++) {
        stranger other = {.fd = socket(AF_INET, SOCK_STREAM, 0), .echoes = echoes};
        sli_wire_address address = {.count = 1};
        socklen_t bytes = sizeof address.at[0];
        sli_wire_connection connection;
        pthread_t thread;
        randombytes_buf(address.key, sizeof address.key);
        sli_host_id(address.host);
        address.at[0].v4 =
            (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        assert_int_equal(bind(other.fd, &address.at[0].any, sizeof address.at[0].v4), 0);
        assert_int_equal(listen(other.fd, 8), 0);
        assert_int_equal(getsockname(other.fd, &address.at[0].any, &bytes), 0);
        assert_int_equal(pthread_create(&thread, NULL, listen_as_stranger, &other), 0);
        sli_wire_call_options options = {.rank = 1,
                                         .ranks = RANKS,
                                         .kinds = KINDS,
                                         .host = "me",
                                         .whom = "rank 0",
                                         .seconds = 0.3};
        check_error(
            sli_wire_call(&address, &options, &connection), SL_ERR_IO,
            "rank 1 on me cannot reach rank 0 by TCP (127.0.0.1: who listens there does not "
            "answer as it should)");
        assert_int_equal(connection.fd, -1);
        shutdown(other.fd, SHUT_RDWR);
        pthread_join(thread, NULL);
        close(other.fd);
        assert_true(other.heard >= 2 * sizeof(sli_wire_hello)); /* it was tried again */
        assert_null(memmem(other.bytes, other.heard, address.key, 4));
        /* No proof either: it would be the next step to hand it on. */
        assert_int_equal(other.heard % sizeof(sli_wire_hello), 0);
    }
}

static void call_where_nobody_listens_ends_at_once(void **state)
{
    sli_wire_address address = {.count = 1};
    sli_wire_connection connection;
    socklen_t bytes = sizeof address.at[0];
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound, and does not listen */
    sli_host_id(address.host);
    address.at[0].v4 =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, &address.at[0].any, sizeof address.at[0].v4), 0);
    assert_int_equal(getsockname(fd, &address.at[0].any, &bytes), 0);
    sli_wire_call_options options = {.rank = 3,
                                     .ranks = RANKS,
                                     .kinds = KINDS,
                                     .host = "",
                                     .whom = "its launcher",
                                     .seconds = 250};
    check_error(sli_wire_call(&address, &options, &connection), SL_ERR_IO,
                "rank 3 cannot reach its launcher by TCP (127.0.0.1: Connection refused)");
    address.host[0] = 'x'; /* on another host */
    check_error(sli_wire_call(&address, &options, &connection), SL_ERR_IO,
                "none of its addresses leads there from here");
    close(fd);
}

int wire_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(number_out_of_its_range_is_refused),
        cmocka_unit_test(text_of_another_length_is_refused),
        cmocka_unit_test(messages_come_in_order_and_whole),
        cmocka_unit_test(message_that_is_altered_is_noticed),
        cmocka_unit_test(stream_that_was_tampered_with_is_noticed),
        cmocka_unit_test(stream_that_is_sent_back_is_noticed),
        cmocka_unit_test(stream_of_another_connection_is_noticed),
        cmocka_unit_test(length_that_no_message_has_is_noticed),
        cmocka_unit_test(receiver_that_takes_nothing_is_noticed),
        cmocka_unit_test(address_survives_its_text),
        cmocka_unit_test(address_of_many_interfaces_has_room),
        cmocka_unit_test(text_that_is_no_address_is_refused),
        cmocka_unit_test(loopback_leads_to_its_own_host_alone),
        cmocka_unit_test(stranger_that_listens_learns_nothing_and_is_not_believed),
        cmocka_unit_test(call_where_nobody_listens_ends_at_once),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
