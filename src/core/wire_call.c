/* The side of the wire that calls. */
#include "core/clock.h"
#include "core/wire.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const double connect_seconds = 2;  /* for one address */
static const double greeting_seconds = 8; /* then: longer than the listener waits */
static const double pause_seconds = 0.1;  /* between two rounds over all addresses */

enum { WHY_BYTES = 128 };

/* Waits are cut into steps, so that the time in which the process was suspended does not count. */
static const double step_seconds = 0.25;

typedef struct patience {
    sli_running_clock clock;
    double until; /* on the clock: the end of this attempt */
} patience;

static double seconds_of(patience *of)
{
    return sli_running_clock_read(&of->clock, 2 * step_seconds);
}

static bool wait_for(int fd, short events, patience *left)
{
    struct pollfd one = {.fd = fd, .events = events};
    int count;
    do
        count = poll(&one, 1, (int)(1000 * step_seconds));
    while ((count == 0 || (count < 0 && errno == EINTR)) && seconds_of(left) < left->until);
    return count == 1;
}

/* Gives an error of the system, or 0. */
static int connect_to(const sli_wire_socket_address *to, patience *left, int *out)
{
    int error = 0, fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof error;
    if (fd < 0)
        return errno;
    if (connect(fd, &to->any, sli_wire_socket_address_bytes(to)) != 0) {
        error = errno;
        if (error == EINPROGRESS && !wait_for(fd, POLLOUT, left))
            error = ETIMEDOUT;
        else if (error == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
            error = errno;
    }
    *out = error == 0 ? fd : -1;
    if (error != 0)
        close(fd);
    return error;
}

static bool wait_for_bytes(sli_wire_connection *connection, size_t count, patience *left)
{
    sli_wire_state state;
    while ((state = sli_wire_fill(connection, count)) == SLI_WIRE_NOTHING)
        if (!wait_for(connection->fd, POLLIN, left))
            return false;
    return state == SLI_WIRE_MESSAGE;
}

static bool wait_for_message(sli_wire_connection *connection, patience *left)
{
    sli_wire_message message;
    sli_wire_state state;
    while ((state = sli_wire_receive(connection, &message)) == SLI_WIRE_NOTHING)
        if (!wait_for(connection->fd, POLLIN, left))
            return false;
    return state == SLI_WIRE_MESSAGE;
}

/* Who listens there may be a stranger: only the listener's first message shows that it is not. */
static bool shake_hands(const sli_wire_address *to, const sli_wire_call_options *options,
                        sli_wire_connection *connection, patience *left)
{
    unsigned char hello[SLI_WIRE_HELLO_BYTES], nonce[SLI_WIRE_NONCE_BYTES];
    sli_wire_message proof = {.kind = SLI_WIRE_ALIVE};
    snprintf(proof.text, sizeof proof.text, "%s", options->host);
    sli_wire_write_hello(options->rank, hello);
    if (!sli_wire_send_bytes(connection, hello, sizeof hello) ||
        !wait_for_bytes(connection, sizeof nonce, left))
        return false;
    sli_wire_take(connection, nonce, sizeof nonce);
    sli_wire_agree(connection, to->key, false, hello, nonce);
    return wait_for_message(connection, left) && sli_wire_send(connection, &proof) &&
           wait_for_message(connection, left);
}

/* False where another attempt makes sense; `why` says what happened. */
static bool try_address(const sli_wire_address *to, int index, const sli_wire_call_options *options,
                        patience *left, sli_wire_connection *out, char why[WHY_BYTES],
                        bool *refused)
{
    char name[INET6_ADDRSTRLEN];
    const char *address = sli_wire_socket_address_text(&to->at[index], name);
    left->until = seconds_of(left) + connect_seconds;
    *out = (sli_wire_connection){.ranks = options->ranks, .kinds = options->kinds};
    int error = connect_to(&to->at[index], left, &out->fd);
    *refused = error == ECONNREFUSED;
    if (error != 0) {
        snprintf(why, WHY_BYTES, "%s: %s", address, strerror(error));
        return false;
    }
    sli_wire_prepare(out->fd);
    left->until = seconds_of(left) + greeting_seconds;
    if (shake_hands(to, options, out, left))
        return true;
    snprintf(why, WHY_BYTES, "%s: who listens there does not answer as it should", address);
    sli_wire_close(out);
    return false;
}

sl_status sli_wire_call(const sli_wire_address *to, const sli_wire_call_options *options,
                        sli_wire_connection *out)
{
    char host[SLI_HOST_BYTES], why[WHY_BYTES] = "none of its addresses leads there from here";
    patience left = {.until = 0};
    bool again = true;
    out->fd = -1;
    if (sodium_init() < 0)
        return sl_error(SL_ERR_INTERNAL, "libsodium cannot be initialized");
    sli_host_id(host);
    while (again && seconds_of(&left) < options->seconds) {
        again = false;
        for (int i = 0; i < to->count; i++) {
            bool refused;
            if (!sli_wire_address_leads(to, i, host))
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
