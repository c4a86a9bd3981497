/* What goes over a connection:
 *
 *     caller   → listener    hello: which protocol, the caller's rank, a nonce
 *     listener → caller      a nonce, and the first message: it shows that the listener has the key
 *     caller   → listener    the first message, whose text is its name: so has the caller
 *     listener → caller      the second message: the rank is in
 *     then messages both ways
 *
 * Each side sends a stream of crypto_secretstream, which encrypts messages, and notices when one is
 * altered, missing, repeated or out of order. The stream's key is the keyed hash, with the job's
 * key, of who sends, the hello and the listener's nonce: so a recorded connection is worth nothing,
 * and nothing can be sent back to its sender. A message travels as
 *
 *     (first) header of the stream (24) │ length of the message (4) │ sealed message (length + 17)
 *
 * with the lowest bytes of numbers first, as the processors have them (io/safetensors checks). */
#include "comm/wire/wire.h"

#include "core/clock.h"

#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char protocol[8] = "sluice02";

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

/* ---- Sending and receiving ---------------------------------------------------------------- */

bool sli_wire_message_is_valid(const sli_wire_message *message, size_t bytes, int ranks, int kinds)
{
    int rank = message->rank, size = message->size;
    bool names_none = size == 0 && rank == 0;
    bool names_rank = size > 0 && size <= ranks && rank >= 0 && rank < size;
    return message->kind >= 0 && message->kind < kinds && (names_none || names_rank) &&
           isfinite(message->seconds) && message->seconds >= 0 &&
           SLI_WIRE_FIXED_BYTES + strlen(message->text) == bytes;
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
    unsigned char frame[SLI_WIRE_FRAME_BYTES], *next = frame;
    size_t text = strnlen(message->text, sizeof message->text - 1);
    uint32_t bytes = (uint32_t)(SLI_WIRE_FIXED_BYTES + text);
    if (!connection->sends) {
        crypto_secretstream_xchacha20poly1305_init_push(&connection->send_state, next,
                                                        connection->send_key);
        connection->sends = true;
        next += SLI_WIRE_HEADER_BYTES;
    }
    memcpy(next, &bytes, sizeof bytes);
    next += sizeof bytes;
    crypto_secretstream_xchacha20poly1305_push(&connection->send_state, next, NULL,
                                               (const unsigned char *)message, bytes, NULL, 0, 0);
    next += bytes + SLI_WIRE_SEAL_BYTES;
    return sli_wire_send_bytes(connection, frame, (size_t)(next - frame));
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

void sli_wire_read_bytes(sli_wire_connection *connection, void *out, size_t count)
{
    memcpy(out, connection->buffer, count);
    connection->used -= count;
    memmove(connection->buffer, connection->buffer + count, connection->used);
}

sli_wire_state sli_wire_receive(sli_wire_connection *connection, sli_wire_message *out)
{
    unsigned char frame[SLI_WIRE_FRAME_BYTES];
    const unsigned char *sealed = frame + sizeof(uint32_t);
    uint32_t bytes;
    sli_wire_state state = SLI_WIRE_MESSAGE;
    if (!connection->receives) {
        state = sli_wire_fill(connection, SLI_WIRE_HEADER_BYTES);
        if (state != SLI_WIRE_MESSAGE)
            return state;
        sli_wire_read_bytes(connection, frame, SLI_WIRE_HEADER_BYTES);
        connection->receives =
            crypto_secretstream_xchacha20poly1305_init_pull(&connection->receive_state, frame,
                                                            connection->receive_key) == 0;
    }
    state = sli_wire_fill(connection, sizeof bytes);
    if (state != SLI_WIRE_MESSAGE)
        return state;
    memcpy(&bytes, connection->buffer, sizeof bytes);
    if (bytes < SLI_WIRE_FIXED_BYTES || bytes > SLI_WIRE_MOST_BYTES)
        return SLI_WIRE_INVALID;
    state = sli_wire_fill(connection, sizeof bytes + bytes + SLI_WIRE_SEAL_BYTES);
    if (state != SLI_WIRE_MESSAGE)
        return state;
    sli_wire_read_bytes(connection, frame, sizeof bytes + bytes + SLI_WIRE_SEAL_BYTES);
    memset(out, 0, sizeof *out);
    if (crypto_secretstream_xchacha20poly1305_pull(&connection->receive_state, (unsigned char *)out,
                                                   NULL, NULL, sealed, bytes + SLI_WIRE_SEAL_BYTES,
                                                   NULL, 0) != 0 ||
        !sli_wire_message_is_valid(out, bytes, connection->ranks, connection->kinds))
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

sli_wire_hello sli_wire_hello_of(int rank)
{
    sli_wire_hello hello = {.rank = rank};
    memcpy(hello.protocol, protocol, sizeof protocol);
    randombytes_buf(hello.nonce, sizeof hello.nonce);
    return hello;
}

int sli_wire_hello_rank(const sli_wire_hello *hello, int ranks)
{
    bool is_one = memcmp(hello->protocol, protocol, sizeof protocol) == 0;
    return is_one && hello->rank >= 0 && hello->rank < ranks ? hello->rank : -1;
}

void sli_wire_derive_keys(sli_wire_connection *connection,
                          const unsigned char key[SLI_WIRE_KEY_BYTES], bool is_listener,
                          const sli_wire_hello *hello,
                          const unsigned char nonce[SLI_WIRE_NONCE_BYTES])
{
    struct {
        sli_wire_hello hello;
        unsigned char nonce[SLI_WIRE_NONCE_BYTES];
        int32_t listener_sends;
    } said = {.hello = *hello};
    memcpy(said.nonce, nonce, sizeof said.nonce);
    for (; said.listener_sends < 2; said.listener_sends++)
        crypto_generichash(said.listener_sends == is_listener ? connection->send_key
                                                              : connection->receive_key,
                           SLI_WIRE_KEY_BYTES, (const unsigned char *)&said, sizeof said, key,
                           SLI_WIRE_KEY_BYTES);
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

static double seconds_now(time_limit *limit)
{
    return sli_running_clock_read(&limit->clock, 2 * step_seconds);
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
static int connect_to(const sli_wire_socket_address *peer, time_limit *left, int *out)
{
    int error = 0, fd = socket(peer->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof error;
    if (fd < 0)
        return errno;
    if (connect(fd, &peer->any, sli_wire_socket_address_bytes(peer)) != 0) {
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
static bool shake_hands(const sli_wire_address *address, const sli_wire_call_options *options,
                        sli_wire_connection *connection, time_limit *left)
{
    sli_wire_hello hello = sli_wire_hello_of(options->rank);
    unsigned char nonce[SLI_WIRE_NONCE_BYTES];
    sli_wire_message proof = {.kind = SLI_WIRE_ALIVE};
    snprintf(proof.text, sizeof proof.text, "%s", options->host);
    if (!sli_wire_send_bytes(connection, &hello, sizeof hello) ||
        !wait_for_bytes(connection, sizeof nonce, left))
        return false;
    sli_wire_read_bytes(connection, nonce, sizeof nonce);
    sli_wire_derive_keys(connection, address->key, false, &hello, nonce);
    return wait_for_message(connection, left) && sli_wire_send(connection, &proof) &&
           wait_for_message(connection, left);
}

/* False where another attempt makes sense; `why` says what happened. */
static bool try_address(const sli_wire_address *address, int index,
                        const sli_wire_call_options *options, time_limit *left,
                        sli_wire_connection *out, char why[REASON_BYTES], bool *refused)
{
    char name[INET6_ADDRSTRLEN];
    const char *text = sli_wire_socket_address_text(&address->at[index], name);
    left->until = seconds_now(left) + connect_seconds;
    *out = (sli_wire_connection){.ranks = options->ranks, .kinds = options->kinds};
    int error = connect_to(&address->at[index], left, &out->fd);
    *refused = error == ECONNREFUSED;
    if (error != 0) {
        snprintf(why, REASON_BYTES, "%s: %s", text, strerror(error));
        return false;
    }
    sli_wire_set_socket_options(out->fd);
    left->until = seconds_now(left) + greeting_seconds;
    if (shake_hands(address, options, out, left))
        return true;
    snprintf(why, REASON_BYTES, "%s: who listens there does not answer as it should", text);
    sli_wire_close(out);
    return false;
}

sl_status sli_wire_call(const sli_wire_address *address, const sli_wire_call_options *options,
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
        for (int i = 0; i < address->count; i++) {
            bool refused;
            if (!sli_wire_address_is_reachable(address, i, host))
                continue;
            if (try_address(address, i, options, &left, out, why, &refused))
                return SL_OK;
            again |= !refused;
        }
        if (again)
            nanosleep(&(struct timespec){0, (long)(1e9 * pause_seconds)}, NULL);
    }
    return sl_error(SL_ERR_IO, "rank %d%s%s cannot reach %s by TCP (%s)", options->rank,
                    *options->host ? " on " : "", options->host, options->whom, why);
}
