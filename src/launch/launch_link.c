/* A program's end of the socket to its supervisor (rank.c). */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct sl_launch_link {
    int fd;
    atomic_int saves; /* under way */
};

/* A shell between the two may have opened another file under the number. */
static bool is_packet_socket(int fd)
{
    int family = 0, type = 0;
    socklen_t bytes = sizeof family;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 && family == AF_UNIX &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET;
}

sl_launch_link *sl_launch_link_open(void)
{
    char *end = "", *text = getenv(SLI_LINK_VARIABLE);
    long fd = text ? strtol(text, &end, 10) : -1;
    bool found = text && *text && !*end && fd >= 0 && fd <= INT_MAX && is_packet_socket((int)fd) &&
                 fcntl((int)fd, F_SETFD, FD_CLOEXEC) == 0;
    sl_launch_link *link = found ? calloc(1, sizeof *link) : NULL;
    if (link)
        link->fd = (int)fd;
    unsetenv(SLI_LINK_VARIABLE);
    return link;
}

void sli_launch_link_close(sl_launch_link **link)
{
    if (!link || !*link)
        return;
    close((*link)->fd);
    free(*link);
    *link = NULL;
}

static bool send_packet(const sl_launch_link *link, const char *text)
{
    size_t bytes = strlen(text);
    return link && send(link->fd, text, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

bool sl_launch_link_error(sl_launch_link *link, const char *text)
{
    char packet[SLI_PACKET_BYTES];
    snprintf(packet, sizeof packet, "error %s", text);
    return send_packet(link, packet);
}

void sl_launch_link_joining(sl_launch_link *link, bool begins)
{
    (void)send_packet(link, begins ? "joining" : "joined");
}

void sl_launch_link_steps(sl_launch_link *link, int64_t steps)
{
    char packet[32];
    snprintf(packet, sizeof packet, "steps %" PRId64, steps);
    (void)send_packet(link, packet);
}

void sl_launch_link_role(sl_launch_link *link, int rank, const char *role)
{
    char packet[SLI_PACKET_BYTES];
    snprintf(packet, sizeof packet, "role %d %s", rank, role);
    (void)send_packet(link, packet);
}

void sl_launch_link_processes(sl_launch_link *link, int processes)
{
    char packet[32];
    snprintf(packet, sizeof packet, "processes %d", processes);
    (void)send_packet(link, packet);
}

/* Of several calls at the same time the last one sends the state that is true then. */
void sl_launch_link_saving(sl_launch_link *link, bool begins)
{
    int kept = errno;
    bool sent;
    if (!link)
        return;
    atomic_fetch_add(&link->saves, begins ? 1 : -1);
    do {
        sent = atomic_load(&link->saves) > 0;
        (void)send_packet(link, sent ? "saving" : "saved");
    } while (sent != (atomic_load(&link->saves) > 0));
    errno = kept;
}
