#include "report/server_address.h"

#include "core/host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SOCKET_BYTES = 256 << 10 }; /* that the system holds of what a browser does not read */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool is_any(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* "[ADDRESS:]PORT", where an address of IPv6 stands in brackets. */
static sl_status find_address(const char *address, struct addrinfo **out)
{
    char host[NI_MAXHOST];
    const char *colon = strrchr(address, ':'), *port = colon ? colon + 1 : address;
    size_t length = colon ? (size_t)(colon - address) : 0;
    bool brackets = length > 1 && address[0] == '[' && address[length - 1] == ']';
    char *end;
    long number = *port >= '0' && *port <= '9' ? strtol(port, &end, 10) : -1;
    bool valid = number >= 0 && number <= UINT16_MAX && *end == '\0' && length < sizeof host &&
                 !(colon && length == 0) && (brackets || !memchr(address, ':', length));
    if (!valid)
        return sl_error(SL_ERR_INVALID, "the address must be [ADDRESS:]PORT, got \"%s\"", address);
    snprintf(host, sizeof host, "%.*s", (int)length - 2 * brackets, address + brackets);
    const struct addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    int error = getaddrinfo(colon ? host : "127.0.0.1", port, &hints, out);
    if (error != 0)
        return sl_error(SL_ERR_INVALID, "the address \"%s\" is not known: %s", address,
                        gai_strerror(error));
    return SL_OK;
}

/* With the address and port that it has in fact, in *bound. */
static int listen_at(const struct addrinfo *address, struct sockaddr_storage *bound)
{
    int enabled = 1, held = SOCKET_BYTES; /* the sockets that it accepts have the same */
    socklen_t bytes = sizeof *bound;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &enabled, sizeof enabled) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &held, sizeof held) == 0 &&
        bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0 &&
        getsockname(fd, (struct sockaddr *)bound, &bytes) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void show_address(const struct sockaddr_storage *bound, char *shown)
{
    char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
    const struct sockaddr *address = (const struct sockaddr *)bound;
    (void)getnameinfo(address, sizeof *bound, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    bool any = is_any(address);
    if (any)
        sli_host_name(host);
    bool brackets = address->sa_family == AF_INET6 && !any;
    snprintf(shown, SLI_SERVER_ADDRESS_BYTES, "%s%.200s%s:%s", brackets ? "[" : "", host,
             brackets ? "]" : "", port);
}

/* Where a run was killed and starts again at once, its former reader has the address until it has
 * ended. */
sl_status sli_server_listen(const char *address, int *socket, char *shown, bool *loopback)
{
    enum { TRY_MS = 100 };
    int tries = 30;
    struct addrinfo *found;
    struct sockaddr_storage bound = {0};
    SL_TRY(find_address(address, &found));
    while ((*socket = listen_at(found, &bound)) < 0 && errno == EADDRINUSE && tries-- > 0)
        (void)poll(NULL, 0, TRY_MS);
    int error = errno;
    freeaddrinfo(found);
    if (*socket < 0)
        return sl_error(SL_ERR_IO, "the page cannot be served at \"%s\": %s", address,
                        strerror(error));
    *loopback = is_loopback((const struct sockaddr *)&bound);
    show_address(&bound, shown);
    return SL_OK;
}
