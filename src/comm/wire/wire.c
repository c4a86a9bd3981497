/* What goes over a connection:
 *
 *     caller   → listener    hello: which protocol, the caller's rank, a nonce
 *     listener → caller      a nonce, and the first message: the listener's proof
 *     caller   → listener    the first message, whose text is its name: the caller's proof
 *     listener → caller      the second message: the rank is in
 *     then messages both ways
 *
 * A nonce is 32 random bytes. From the job's key, both nonces and the rank each side makes two keys
 * of this connection, one for what the caller sends and one for what the listener sends. A message
 * travels as
 *
 *     length of the body (4 bytes) │ body: numbers (40), text │ tag (16)
 *
 * with the lowest bytes of numbers first. The tag is the keyed hash (BLAKE2b) of the message's
 * number on this connection, the length and the body, with the sender's key: no other process can
 * repeat, reflect, swap or alter messages, and the first one proves that its sender knows the job's
 * key. */
#include "comm/wire/wire.h"

#include "core/clock.h"

#include <endian.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char protocol[8] = "sluice01";

const char *sli_wire_state_text(sli_wire_state state)
{
    switch (state) {
    case SLI_WIRE_MESSAGE:
    case SLI_WIRE_NOTHING:
        break;
    case SLI_WIRE_CLOSED:
        return "died";
    case SLI_WIRE_LOST:
    case SLI_WIRE_SILENT:
        return "cannot be reached any more";
    case SLI_WIRE_INVALID:
        return "sent what no rank sends";
    }
    return "is there";
}

/* ---- Messages as bytes -------------------------------------------------------------------- */

static void put32(unsigned char *to, int32_t value)
{
    uint32_t ordered = htole32((uint32_t)value);
    memcpy(to, &ordered, sizeof ordered);
}

static int32_t get32(const unsigned char *from)
{
    uint32_t ordered;
    memcpy(&ordered, from, sizeof ordered);
    return (int32_t)le32toh(ordered);
}

static void put64(unsigned char *to, uint64_t value)
{
    uint64_t ordered = htole64(value);
    memcpy(to, &ordered, sizeof ordered);
}

static uint64_t get64(const unsigned char *from)
{
    uint64_t ordered;
    memcpy(&ordered, from, sizeof ordered);
    return le64toh(ordered);
}

size_t sli_wire_encode(const sli_wire_message *message, unsigned char body[SLI_WIRE_BODY_BYTES])
{
    uint64_t seconds;
    size_t length = strnlen(message->text, sizeof message->text - 1);
    memcpy(&seconds, &message->seconds, sizeof seconds);
    put32(body, message->kind);
    put32(body + 4, message->rank);
    put32(body + 8, message->size);
    put32(body + 12, message->number);
    put64(body + 16, message->group);
    put64(body + 24, message->sequence);
    put64(body + 32, seconds);
    memcpy(body + SLI_WIRE_FIXED_BYTES, message->text, length);
    return SLI_WIRE_FIXED_BYTES + length;
}

bool sli_wire_decode(const unsigned char *body, size_t bytes, int ranks, int kinds,
                     sli_wire_message *out)
{
    if (bytes < SLI_WIRE_FIXED_BYTES || bytes > SLI_WIRE_BODY_BYTES)
        return false;
    size_t length = bytes - SLI_WIRE_FIXED_BYTES;
    uint64_t seconds = get64(body + 32);
    *out = (sli_wire_message){.kind = get32(body),
                              .rank = get32(body + 4),
                              .size = get32(body + 8),
                              .number = get32(body + 12),
                              .group = get64(body + 16),
                              .sequence = get64(body + 24)};
    memcpy(&out->seconds, &seconds, sizeof seconds);
    memcpy(out->text, body + SLI_WIRE_FIXED_BYTES, length);
    bool names_none = out->size == 0 && out->rank == 0;
    bool names_rank =
        out->size > 0 && out->size <= ranks && out->rank >= 0 && out->rank < out->size;
    return out->kind >= 0 && out->kind < kinds && (names_none || names_rank) &&
           isfinite(out->seconds) && out->seconds >= 0 && strlen(out->text) == length;
}

/* ---- Sending and receiving ---------------------------------------------------------------- */

static void write_tag(unsigned char tag[SLI_WIRE_TAG_BYTES], uint64_t number,
                      const unsigned char *frame, size_t bytes,
                      const unsigned char key[SLI_WIRE_KEY_BYTES])
{
    unsigned char counted[8 + SLI_WIRE_FRAME_BYTES];
    put64(counted, number);
    memcpy(counted + 8, frame, bytes);
    crypto_generichash(tag, SLI_WIRE_TAG_BYTES, counted, 8 + bytes, key, SLI_WIRE_KEY_BYTES);
}

bool sli_wire_send_bytes(const sli_wire_connection *connection, const void *bytes, size_t count)
{
    ssize_t sent;
    do
        sent = send(connection->fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)count;
}

bool sli_wire_send(sli_wire_connection *connection, const sli_wire_message *message)
{
    unsigned char frame[SLI_WIRE_FRAME_BYTES];
    size_t bytes = sli_wire_encode(message, frame + 4);
    put32(frame, (int32_t)bytes);
    write_tag(frame + 4 + bytes, connection->sent++, frame, 4 + bytes, connection->send_key);
    return sli_wire_send_bytes(connection, frame, 4 + bytes + SLI_WIRE_TAG_BYTES);
}

sli_wire_state sli_wire_fill(sli_wire_connection *connection, size_t count)
{
    while (connection->used < count) {
        ssize_t bytes = recv(connection->fd, connection->buffer + connection->used,
                             sizeof connection->buffer - connection->used, MSG_DONTWAIT);
        if (bytes > 0)
            connection->used += (size_t)bytes;
        else if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return SLI_WIRE_NOTHING;
        else if (bytes == 0 || errno == ECONNRESET)
            return SLI_WIRE_CLOSED;
        else if (errno != EINTR)
            return SLI_WIRE_LOST;
    }
    return SLI_WIRE_MESSAGE;
}

void sli_wire_read_bytes(sli_wire_connection *connection, void *to, size_t count)
{
    memcpy(to, connection->buffer, count);
    connection->used -= count;
    memmove(connection->buffer, connection->buffer + count, connection->used);
}

sli_wire_state sli_wire_receive(sli_wire_connection *connection, sli_wire_message *out)
{
    unsigned char frame[SLI_WIRE_FRAME_BYTES], tag[SLI_WIRE_TAG_BYTES];
    sli_wire_state state = sli_wire_fill(connection, 4);
    if (state != SLI_WIRE_MESSAGE)
        return state;
    int32_t length = get32(connection->buffer);
    if (length < SLI_WIRE_FIXED_BYTES || length > SLI_WIRE_BODY_BYTES)
        return SLI_WIRE_INVALID;
    size_t bytes = (size_t)length;
    state = sli_wire_fill(connection, 4 + bytes + SLI_WIRE_TAG_BYTES);
    if (state != SLI_WIRE_MESSAGE)
        return state;
    sli_wire_read_bytes(connection, frame, 4 + bytes + SLI_WIRE_TAG_BYTES);
    write_tag(tag, connection->received++, frame, 4 + bytes, connection->receive_key);
    if (sodium_memcmp(tag, frame + 4 + bytes, sizeof tag) != 0 ||
        !sli_wire_decode(frame + 4, bytes, connection->ranks, connection->kinds, out))
        return SLI_WIRE_INVALID;
    return SLI_WIRE_MESSAGE;
}

void sli_wire_close(sli_wire_connection *connection)
{
    if (connection->fd < 0)
        return;
    close(connection->fd);
    sodium_memzero(connection, sizeof *connection);
    connection->fd = -1;
}

/* A host that is gone sends nothing, not even an end: so the kernel asks for signs of life, and
 * breaks the connection after some 8 s without. TCP_USER_TIMEOUT, which ends the wait for an
 * acknowledgement, also counts while the other side's receive window is closed: a side that sends
 * more than fits into it to a process that does not read loses the connection too. */
void sli_wire_set_socket_options(int fd)
{
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){3}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &(int){5}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(int){8000}, sizeof(int));
}

/* ---- The handshake ------------------------------------------------------------------------ */

void sli_wire_write_hello(int rank, unsigned char hello[SLI_WIRE_HELLO_BYTES])
{
    memcpy(hello, protocol, sizeof protocol);
    put32(hello + 8, rank);
    randombytes_buf(hello + 12, SLI_WIRE_NONCE_BYTES);
}

int sli_wire_read_hello(const unsigned char hello[SLI_WIRE_HELLO_BYTES], int ranks)
{
    int32_t rank = get32(hello + 8);
    return memcmp(hello, protocol, sizeof protocol) == 0 && rank >= 0 && rank < ranks ? rank : -1;
}

void sli_wire_derive_keys(sli_wire_connection *connection,
                          const unsigned char key[SLI_WIRE_KEY_BYTES], bool is_listener,
                          const unsigned char hello[SLI_WIRE_HELLO_BYTES],
                          const unsigned char nonce[SLI_WIRE_NONCE_BYTES])
{
    unsigned char said[1 + SLI_WIRE_HELLO_BYTES + SLI_WIRE_NONCE_BYTES];
    memcpy(said + 1, hello, SLI_WIRE_HELLO_BYTES);
    memcpy(said + 1 + SLI_WIRE_HELLO_BYTES, nonce, SLI_WIRE_NONCE_BYTES);
    for (int listener_sends = 0; listener_sends < 2; listener_sends++) {
        bool sends = (listener_sends != 0) == is_listener;
        said[0] = (unsigned char)listener_sends;
        crypto_generichash(sends ? connection->send_key : connection->receive_key,
                           SLI_WIRE_KEY_BYTES, said, sizeof said, key, SLI_WIRE_KEY_BYTES);
    }
    connection->sent = connection->received = 0;
}

/* ---- Calling ------------------------------------------------------------------------------ */

static const double connect_seconds = 2;  /* for one address */
static const double greeting_seconds = 8; /* then: longer than the listener waits */
static const double pause_seconds = 0.1;  /* between two rounds over all addresses */

enum { REASON_BYTES = 128 };

/* Waits are cut into steps, so that the time in which the process was suspended does not count. */
static const double step_seconds = 0.25;

/* How long an attempt may take. */
typedef struct time_limit {
    sli_running_clock clock;
    double until; /* on the clock */
} time_limit;

static double seconds_now(time_limit *of)
{
    return sli_running_clock_read(&of->clock, 2 * step_seconds);
}

static bool wait_for_events(int fd, short events, time_limit *left)
{
    struct pollfd one = {.fd = fd, .events = events};
    int count;
    do
        count = poll(&one, 1, (int)(1000 * step_seconds));
    while ((count == 0 || (count < 0 && errno == EINTR)) && seconds_now(left) < left->until);
    return count == 1;
}

/* Gives an error of the system, or 0. */
static int connect_to(const sli_wire_socket_address *to, time_limit *left, int *out)
{
    int error = 0, fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof error;
    if (fd < 0)
        return errno;
    if (connect(fd, &to->any, sli_wire_socket_address_bytes(to)) != 0) {
        error = errno;
        if (error == EINPROGRESS && !wait_for_events(fd, POLLOUT, left))
            error = ETIMEDOUT;
        else if (error == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
            error = errno;
    }
    *out = error == 0 ? fd : -1;
    if (error != 0)
        close(fd);
    return error;
}

static bool wait_for_bytes(sli_wire_connection *connection, size_t count, time_limit *left)
{
    sli_wire_state state;
    while ((state = sli_wire_fill(connection, count)) == SLI_WIRE_NOTHING)
        if (!wait_for_events(connection->fd, POLLIN, left))
            return false;
    return state == SLI_WIRE_MESSAGE;
}

static bool wait_for_message(sli_wire_connection *connection, time_limit *left)
{
    sli_wire_message message;
    sli_wire_state state;
    while ((state = sli_wire_receive(connection, &message)) == SLI_WIRE_NOTHING)
        if (!wait_for_events(connection->fd, POLLIN, left))
            return false;
    return state == SLI_WIRE_MESSAGE;
}

/* A stranger may listen at the address: only the listener's first message shows that it is ours. */
static bool shake_hands(const sli_wire_address *to, const sli_wire_call_options *options,
                        sli_wire_connection *connection, time_limit *left)
{
    unsigned char hello[SLI_WIRE_HELLO_BYTES], nonce[SLI_WIRE_NONCE_BYTES];
    sli_wire_message proof = {.kind = SLI_WIRE_ALIVE};
    snprintf(proof.text, sizeof proof.text, "%s", options->host);
    sli_wire_write_hello(options->rank, hello);
    if (!sli_wire_send_bytes(connection, hello, sizeof hello) ||
        !wait_for_bytes(connection, sizeof nonce, left))
        return false;
    sli_wire_read_bytes(connection, nonce, sizeof nonce);
    sli_wire_derive_keys(connection, to->key, false, hello, nonce);
    return wait_for_message(connection, left) && sli_wire_send(connection, &proof) &&
           wait_for_message(connection, left);
}

/* False where another attempt makes sense; `why` says what happened. */
static bool try_address(const sli_wire_address *to, int index, const sli_wire_call_options *options,
                        time_limit *left, sli_wire_connection *out, char why[REASON_BYTES],
                        bool *refused)
{
    char name[INET6_ADDRSTRLEN];
    const char *address = sli_wire_socket_address_text(&to->at[index], name);
    left->until = seconds_now(left) + connect_seconds;
    *out = (sli_wire_connection){.ranks = options->ranks, .kinds = options->kinds};
    int error = connect_to(&to->at[index], left, &out->fd);
    *refused = error == ECONNREFUSED;
    if (error != 0) {
        snprintf(why, REASON_BYTES, "%s: %s", address, strerror(error));
        return false;
    }
    sli_wire_set_socket_options(out->fd);
    left->until = seconds_now(left) + greeting_seconds;
    if (shake_hands(to, options, out, left))
        return true;
    snprintf(why, REASON_BYTES, "%s: who listens there does not answer as it should", address);
    sli_wire_close(out);
    return false;
}

sl_status sli_wire_call(const sli_wire_address *to, const sli_wire_call_options *options,
                        sli_wire_connection *out)
{
    char host[SLI_HOST_ID_BYTES], why[REASON_BYTES] = "none of its addresses leads there from here";
    time_limit left = {.until = 0};
    bool again = true;
    out->fd = -1;
    if (sodium_init() < 0)
        return sl_error(SL_ERR_INTERNAL, "libsodium cannot be initialized");
    sli_host_id(host);
    while (again && seconds_now(&left) < options->seconds) {
        again = false;
        for (int i = 0; i < to->count; i++) {
            bool refused;
            if (!sli_wire_address_is_reachable(to, i, host))
                continue;
            if (try_address(to, i, options, &left, out, why, &refused))
                return SL_OK;
            again |= !refused;
        }
        if (again)
            nanosleep(&(struct timespec){0, (long)(1e9 * pause_seconds)}, NULL);
    }
    return sl_error(SL_ERR_IO, "rank %d%s%s cannot reach %s by TCP (%s)", options->rank,
                    *options->host ? " on " : "", options->host, options->whom, why);
}
