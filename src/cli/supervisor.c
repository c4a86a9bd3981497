#include "cli/supervisor.h"

#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* The process's, as its environment is. */
static int supervisor = -1;
static atomic_int saving;

/* A shell that was in between may have put another file under the number. */
static bool is_supervisor(int fd)
{
    int family = 0, type = 0;
    socklen_t bytes = sizeof family;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 && family == AF_UNIX &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET;
}

void cli_supervisor_find(void)
{
    int fd;
    char *text = getenv(CLI_SUPERVISOR_VARIABLE);
    if (text && cli_read_number(&text, &fd) && *text == '\0' && is_supervisor(fd) &&
        fcntl(fd, F_SETFD, FD_CLOEXEC) == 0)
        supervisor = fd;
    unsetenv(CLI_SUPERVISOR_VARIABLE);
}

static bool send_packet(const char *text)
{
    return supervisor >= 0 && send(supervisor, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) ==
                                  (ssize_t)strlen(text);
}

bool cli_supervisor_error(const char *text)
{
    char packet[CLI_NOTICE_BYTES];
    snprintf(packet, sizeof packet, "error %s", text);
    return send_packet(packet);
}

/* Of calls at the same time, the last one to look sends what is true then. */
void cli_supervisor_saving(bool begins)
{
    int kept = errno;
    bool told;
    atomic_fetch_add(&saving, begins ? 1 : -1);
    do {
        told = atomic_load(&saving) > 0;
        (void)send_packet(told ? "saving" : "saved");
    } while (told != (atomic_load(&saving) > 0));
    errno = kept;
}
