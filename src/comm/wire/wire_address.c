/* The addresses of a listener: finding them, and as text. */
#include "comm/wire/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 4096 };

/* ---- Socket addresses --------------------------------------------------------------------- */

socklen_t sli_wire_socket_address_bytes(const sli_wire_socket_address *address)
{
    return address->any.sa_family == AF_INET ? sizeof address->v4 : sizeof address->v6;
}

const char *sli_wire_socket_address_text(const sli_wire_socket_address *address, char *text)
{
    bool v4 = address->any.sa_family == AF_INET;
    const char *made =
        inet_ntop(address->any.sa_family,
                  v4 ? (const void *)&address->v4.sin_addr : (const void *)&address->v6.sin6_addr,
                  text, INET6_ADDRSTRLEN);
    return made ? made : "?";
}

static int port_of(const sli_wire_socket_address *address)
{
    return ntohs(address->any.sa_family == AF_INET ? address->v4.sin_port : address->v6.sin6_port);
}

static void set_port(sli_wire_socket_address *address, int port)
{
    if (address->any.sa_family == AF_INET)
        address->v4.sin_port = htons((in_port_t)port);
    else
        address->v6.sin6_port = htons((in_port_t)port);
}

static bool is_loopback(const sli_wire_socket_address *address)
{
    return address->any.sa_family == AF_INET ? ntohl(address->v4.sin_addr.s_addr) >> 24 == 127
                                             : IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
}

bool sli_wire_address_is_reachable(const sli_wire_address *address, int index, const char *host)
{
    return !is_loopback(&address->at[index]) || strcmp(address->host, host) == 0;
}

/* ---- Finding ------------------------------------------------------------------------------ */

static bool read_number_address(const char *text, sli_wire_socket_address *out)
{
    *out = (sli_wire_socket_address){.v4 = {.sin_family = AF_INET}};
    if (inet_pton(AF_INET, text, &out->v4.sin_addr) == 1)
        return true;
    *out = (sli_wire_socket_address){.v6 = {.sin6_family = AF_INET6}};
    return inet_pton(AF_INET6, text, &out->v6.sin6_addr) == 1;
}

/* Takes a copy; false for what another host, or this family's socket, cannot reach. */
static bool read_interface(const struct ifaddrs *entry, int family, sli_wire_socket_address *out)
{
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP))
        return false;
    if (entry->ifa_addr->sa_family == AF_INET) {
        memcpy(&out->v4, entry->ifa_addr, sizeof out->v4);
        return true;
    }
    if (entry->ifa_addr->sa_family != AF_INET6 || family != AF_INET6)
        return false;
    memcpy(&out->v6, entry->ifa_addr, sizeof out->v6);
    /* a link's own addresses mean nothing to another host */
    return !IN6_IS_ADDR_LINKLOCAL(&out->v6.sin6_addr);
}

sl_status sli_wire_address_find(sli_wire_address *address, int family, int port, bool this_host)
{
    struct ifaddrs *first = NULL;
    sli_wire_socket_address found = {.v4 = {0}};
    address->count = 0;
    if (!this_host && getifaddrs(&first) != 0)
        return sl_error(SL_ERR_IO, "the network's interfaces cannot be listed: %s",
                        strerror(errno));
    bool known = read_number_address(this_host && family == AF_INET6 ? "::1" : "127.0.0.1",
                                     &address->at[address->count++]);
    for (const struct ifaddrs *entry = first; entry && address->count < SLI_WIRE_MAX_ADDRESSES;
         entry = entry->ifa_next)
        if (read_interface(entry, family, &found) && !is_loopback(&found))
            address->at[address->count++] = found;
    if (first)
        freeifaddrs(first);
    for (int i = 0; i < address->count; i++)
        set_port(&address->at[i], port);
    return known ? SL_OK : sl_error(SL_ERR_INTERNAL, "127.0.0.1 is no address");
}

/* ---- Listening ---------------------------------------------------------------------------- */

static int bind_to(int family, const struct in6_addr *v6, in_addr_t v4)
{
    sli_wire_socket_address local = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(v4)}};
    if (family == AF_INET6)
        local = (sli_wire_socket_address){.v6 = {.sin6_family = AF_INET6, .sin6_addr = *v6}};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if ((family == AF_INET ||
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int)) == 0) &&
        bind(fd, &local.any, sli_wire_socket_address_bytes(&local)) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* On all interfaces one socket for IPv6 and IPv4, or for IPv4 alone where the kernel has no IPv6;
 * on the loopback interface IPv4's address, or else IPv6's. */
static int open_socket(bool this_host, int *family)
{
    *family = this_host ? AF_INET : AF_INET6;
    int fd = bind_to(*family, &in6addr_any, INADDR_LOOPBACK);
    if (fd >= 0)
        return fd;
    *family = this_host ? AF_INET6 : AF_INET;
    return bind_to(*family, &in6addr_loopback, INADDR_ANY);
}

sl_status sli_wire_address_open(bool this_host, sli_wire_address *out, int *fd)
{
    int family = AF_INET;
    sli_wire_socket_address bound = {.v4 = {0}};
    socklen_t bytes = sizeof bound;
    *out = (sli_wire_address){.count = 0};
    *fd = open_socket(this_host, &family);
    if (*fd < 0 || getsockname(*fd, &bound.any, &bytes) != 0)
        return sl_error(SL_ERR_IO, "cannot listen for the ranks: %s", strerror(errno));
    sli_host_id(out->host);
    return sli_wire_address_find(out, family, port_of(&bound), this_host);
}

/* ---- As text ------------------------------------------------------------------------------ */

void sli_wire_address_print(const sli_wire_address *address, char text[SLI_WIRE_ADDRESS_BYTES])
{
    char key[2 * SLI_WIRE_KEY_BYTES + 1], name[INET6_ADDRSTRLEN];
    sodium_bin2hex(key, sizeof key, address->key, sizeof address->key);
    size_t used = (size_t)snprintf(text, SLI_WIRE_ADDRESS_BYTES, "%s,%s,%d", key, address->host,
                                   port_of(&address->at[0]));
    for (int i = 0; i < address->count; i++)
        used += (size_t)snprintf(text + used, SLI_WIRE_ADDRESS_BYTES - used, ",%s",
                                 sli_wire_socket_address_text(&address->at[i], name));
}

/* Cuts the text up to the next comma, or all of it, off; NULL at the end. */
static const char *next_word(char **text)
{
    return *text ? strsep(text, ",") : NULL;
}

static bool read_key(const char *text, unsigned char key[SLI_WIRE_KEY_BYTES])
{
    size_t bytes = 0;
    return text && strlen(text) == 2 * SLI_WIRE_KEY_BYTES &&
           sodium_hex2bin(key, SLI_WIRE_KEY_BYTES, text, 2 * SLI_WIRE_KEY_BYTES, NULL, &bytes,
                          NULL) == 0 &&
           bytes == SLI_WIRE_KEY_BYTES;
}

static bool read_port(const char *text, int *port)
{
    char *end;
    if (!text || *text < '1' || *text > '9' || strlen(text) > 5)
        return false;
    *port = (int)strtol(text, &end, 10);
    return *end == '\0' && *port <= 65535;
}

static bool read_all(char *words, sli_wire_address *out)
{
    int port;
    const char *host;
    if (!read_key(next_word(&words), out->key) || !(host = next_word(&words)) ||
        strspn(host, "0123456789abcdef") != SLI_HOST_ID_BYTES - 1 ||
        host[SLI_HOST_ID_BYTES - 1] != '\0' || !read_port(next_word(&words), &port))
        return false;
    memcpy(out->host, host, SLI_HOST_ID_BYTES);
    for (const char *word; (word = next_word(&words));) {
        if (out->count == SLI_WIRE_MAX_ADDRESSES ||
            !read_number_address(word, &out->at[out->count]))
            return false;
        set_port(&out->at[out->count++], port);
    }
    return out->count > 0;
}

sl_status sli_wire_address_parse(const char *text, sli_wire_address *out)
{
    char words[SLI_WIRE_ADDRESS_BYTES];
    *out = (sli_wire_address){.count = 0};
    if (strlen(text) < sizeof words) {
        memcpy(words, text, strlen(text) + 1);
        bool read = read_all(words, out);
        sodium_memzero(words, sizeof words);
        if (read)
            return SL_OK;
    }
    *out = (sli_wire_address){.count = 0};
    return sl_error(SL_ERR_FORMAT, "this is no address of a listener of sluice");
}
