#include "comm/mpi/note.h"

#include "core/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const uint32_t note_magic = 0x736c6e31; /* "sln1" */
static const double connect_seconds = 2;

/* ---- Notes -------------------------------------------------------------------------------- */

void sli_line_close(sli_line *line)
{
    if (line->fd >= 0)
        close(line->fd);
    line->fd = -1;
    line->used = 0;
}

bool sli_note_send(int fd, const sli_note *note)
{
    sli_note sent = *note;
    sent.magic = note_magic;
    ssize_t bytes;
    do
        bytes = send(fd, &sent, sizeof sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (bytes < 0 && errno == EINTR);
    return bytes == (ssize_t)sizeof sent;
}

sli_line_state sli_note_take(sli_line *line, sli_note *out)
{
    while (line->used < sizeof line->next) {
        ssize_t bytes = recv(line->fd, (char *)&line->next + line->used,
                             sizeof line->next - line->used, MSG_DONTWAIT);
        if (bytes > 0)
            line->used += (size_t)bytes;
        else if (bytes < 0 && errno == EINTR)
            continue;
        else
            return bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? SLI_LINE_NOTHING
                                                                          : SLI_LINE_BROKEN;
    }
    line->used = 0;
    if (line->next.magic != note_magic)
        return SLI_LINE_BROKEN;
    *out = line->next;
    out->text[sizeof out->text - 1] = '\0';
    return SLI_LINE_NOTE;
}

/* ---- Listening ---------------------------------------------------------------------------- */

static void set_port(struct sockaddr_storage *address, in_port_t port)
{
    if (address->ss_family == AF_INET)
        ((struct sockaddr_in *)address)->sin_port = port;
    else
        ((struct sockaddr_in6 *)address)->sin6_port = port;
}

static bool is_usable(const struct ifaddrs *interface, bool loopback)
{
    const struct sockaddr *address = interface->ifa_addr;
    if (!address || !(interface->ifa_flags & IFF_UP) ||
        !!(interface->ifa_flags & IFF_LOOPBACK) != loopback)
        return false;
    if (address->sa_family == AF_INET6) /* a link's own addresses mean nothing to another host */
        return !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return address->sa_family == AF_INET;
}

static void add_interfaces(const struct ifaddrs *first, bool loopback, bool ipv6, in_port_t port,
                           sli_hub_address *out)
{
    for (const struct ifaddrs *at = first; at && out->count < SLI_MAX_HOST_ADDRESSES;
         at = at->ifa_next) {
        if (!is_usable(at, loopback) || (at->ifa_addr->sa_family == AF_INET6 && !ipv6))
            continue;
        struct sockaddr_storage *to = &out->hosts[out->count++];
        memcpy(to, at->ifa_addr,
               at->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                  : sizeof(struct sockaddr_in6));
        set_port(to, port);
    }
}

/* A socket for IPv6 and IPv4, or for IPv4 alone where the kernel has no IPv6. */
static int listening_socket(bool *ipv6, in_port_t *port)
{
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *ipv6 = fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int)) == 0 &&
            bind(fd, (struct sockaddr *)&any6, sizeof any6) == 0;
    if (!*ipv6) {
        if (fd >= 0)
            close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&any4, sizeof any4) != 0)
            goto fail;
    }
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    if (fd < 0 || listen(fd, 1024) != 0 || getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0)
        goto fail;
    *port = *ipv6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                  : ((struct sockaddr_in *)&bound)->sin_port;
    return fd;
fail:
    if (fd >= 0)
        close(fd);
    return -1;
}

sl_status sli_hub_listen(int *fd, sli_hub_address *out)
{
    memset(out, 0, sizeof *out);
    bool ipv6;
    in_port_t port = 0;
    struct ifaddrs *interfaces = NULL;
    *fd = listening_socket(&ipv6, &port);
    if (*fd < 0 || getifaddrs(&interfaces) != 0 ||
        getrandom(out->token, sizeof out->token, 0) != sizeof out->token) {
        sl_status status =
            sl_error(SL_ERR_IO, "cannot listen for the other ranks: %s", strerror(errno));
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        if (interfaces)
            freeifaddrs(interfaces);
        return status;
    }
    add_interfaces(interfaces, true, ipv6, port, out);
    add_interfaces(interfaces, false, ipv6, port, out);
    freeifaddrs(interfaces);
    return SL_OK;
}

/* ---- Calling ------------------------------------------------------------------------------ */

static bool wait_for(int fd, short events, double until)
{
    struct pollfd one = {.fd = fd, .events = events};
    for (;;) {
        double left = until - sli_clock_seconds();
        int code = poll(&one, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
        if (code >= 0 || errno != EINTR)
            return code == 1;
    }
}

static int connect_to(const struct sockaddr_storage *host, double until)
{
    int fd = socket(host->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    socklen_t bytes =
        host->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int error = 0;
    socklen_t error_bytes = sizeof error;
    if (connect(fd, (const struct sockaddr *)host, bytes) != 0 &&
        (errno != EINPROGRESS || !wait_for(fd, POLLOUT, until) ||
         getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0 || error != 0)) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

/* The port may be somebody else's on this host: only the hub answers HELLO. */
static bool is_hub(const sli_hub_address *hub, int rank, sli_line *line, double until)
{
    sli_note hello = {.kind = SLI_NOTE_HELLO, .rank = rank}, answer;
    memcpy(hello.text, hub->token, sizeof hub->token);
    if (!sli_note_send(line->fd, &hello))
        return false;
    sli_line_state state;
    while ((state = sli_note_take(line, &answer)) == SLI_LINE_NOTHING)
        if (!wait_for(line->fd, POLLIN, until))
            return false;
    return state == SLI_LINE_NOTE && answer.kind == SLI_NOTE_HELLO;
}

sl_status sli_hub_call(const sli_hub_address *hub, int rank, sli_line *out)
{
    for (int i = 0; i < hub->count; i++) {
        double until = sli_clock_seconds() + connect_seconds;
        *out = (sli_line){.fd = connect_to(&hub->hosts[i], until)};
        if (out->fd >= 0 && is_hub(hub, rank, out, until))
            return SL_OK;
        sli_line_close(out);
    }
    return sl_error(SL_ERR_IO,
                    "rank %d cannot reach rank 0 by TCP on any of its %d "
                    "addresses",
                    rank, hub->count);
}
