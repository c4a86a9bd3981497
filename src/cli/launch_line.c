#define _GNU_SOURCE /* accept4 */
#include "cli/launch_line.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_MS = 2000, WELCOME_MS = 10000, BACKLOG = 1024 };

/* ---- Lines -------------------------------------------------------------------------------- */

void cli_line_close(cli_line *line)
{
    if (line->fd >= 0)
        close(line->fd);
    *line = (cli_line){.fd = -1};
}

void cli_line_send(const cli_line *line, const char *format, ...)
{
    char text[CLI_LINE_BYTES];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text - 1, format, values);
    va_end(values);
    if (line->fd < 0 || length < 0 || length >= (int)sizeof text - 1)
        return;
    text[length] = '\n';
    /* A line that is too full or broken closes on the other side: nothing to do about it here. */
    (void)!send(line->fd, text, (size_t)length + 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Cuts the first line off what has come. */
static bool cut_line(cli_line *line, char text[CLI_LINE_BYTES])
{
    char *end = memchr(line->text, '\n', line->used);
    if (!end)
        return false;
    size_t length = (size_t)(end - line->text);
    memcpy(text, line->text, length);
    text[length] = '\0';
    line->used -= length + 1;
    memmove(line->text, end + 1, line->used);
    return true;
}

cli_line_state cli_line_take(cli_line *line, char text[CLI_LINE_BYTES])
{
    while (!cut_line(line, text)) {
        size_t room = sizeof line->text - line->used;
        ssize_t bytes = recv(line->fd, line->text + line->used, room, MSG_DONTWAIT);
        if (bytes > 0)
            line->used += (size_t)bytes;
        else if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && room > 0)
            return CLI_LINE_NOTHING;
        else if (bytes == 0 || errno == ECONNRESET || room == 0)
            return CLI_LINE_CLOSED;
        else if (errno != EINTR)
            return CLI_LINE_LOST;
    }
    return CLI_LINE_TEXT;
}

bool cli_take_number(char **text, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(*text, &end, 10);
    if (**text < '0' || **text > '9' || errno != 0 || value > INT_MAX)
        return false;
    *out = (int)value;
    *text = end + (*end == ' ');
    return true;
}

bool cli_line_number(char *text, const char *word, int *out)
{
    size_t length = strlen(word);
    char *number = text + length + 1;
    return strncmp(text, word, length) == 0 && text[length] == ' ' &&
           cli_take_number(&number, out) && *number == '\0';
}

/* A host that is gone sends nothing, not even an end: so the kernel asks for signs of life, and
 * breaks the line after some 8 s without. */
static void watch_over(int fd)
{
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){3}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &(int){5}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(int){8000}, sizeof(int));
}

/* ---- Listening ---------------------------------------------------------------------------- */

static bool make_token(char token[CLI_TOKEN_BYTES])
{
    unsigned char bytes[(CLI_TOKEN_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

/* Adds " ADDRESS" for each IPv4 interface that is up, the loopback ones or the others. */
static void add_addresses(const struct ifaddrs *first, bool loopback, char *text, size_t room)
{
    for (const struct ifaddrs *at = first; at; at = at->ifa_next) {
        char name[INET_ADDRSTRLEN];
        size_t used = strlen(text);
        if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET || !(at->ifa_flags & IFF_UP) ||
            !!(at->ifa_flags & IFF_LOOPBACK) != loopback || used + sizeof name + 1 > room)
            continue;
        const struct sockaddr_in *address = (const struct sockaddr_in *)(const void *)at->ifa_addr;
        if (inet_ntop(AF_INET, &address->sin_addr, name, sizeof name))
            snprintf(text + used, room - used, " %s", name);
    }
}

sl_status cli_launcher_listen(cli_launcher *out)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof any;
    struct ifaddrs *interfaces = NULL;
    out->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0 || bind(out->fd, (struct sockaddr *)&any, sizeof any) != 0 ||
        listen(out->fd, BACKLOG) != 0 ||
        getsockname(out->fd, (struct sockaddr *)&any, &bytes) != 0 || !make_token(out->token) ||
        getifaddrs(&interfaces) != 0) {
        sl_error(SL_ERR_IO, "cannot listen for the processes to start: %s", strerror(errno));
        if (out->fd >= 0)
            close(out->fd);
        out->fd = -1;
        return SL_ERR_IO;
    }
    snprintf(out->text, sizeof out->text, "%s %d", out->token, ntohs(any.sin_port));
    add_addresses(interfaces, true, out->text, sizeof out->text);
    add_addresses(interfaces, false, out->text, sizeof out->text);
    freeifaddrs(interfaces);
    return SL_OK;
}

cli_line cli_launcher_accept(const cli_launcher *launcher)
{
    cli_line line = {.fd = accept4(launcher->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)};
    if (line.fd >= 0)
        watch_over(line.fd);
    return line;
}

/* ---- Calling ------------------------------------------------------------------------------ */

static bool wait_for(int fd, short events, int ms)
{
    struct pollfd one = {.fd = fd, .events = events};
    int count;
    do
        count = poll(&one, 1, ms);
    while (count < 0 && errno == EINTR);
    return count == 1;
}

static int connect_to(const char *host, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int error = 0, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof error;
    if (fd < 0)
        return -1;
    if (inet_pton(AF_INET, host, &to.sin_addr) == 1 &&
        (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ||
         (errno == EINPROGRESS && wait_for(fd, POLLOUT, CONNECT_MS) &&
          getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0)))
        return fd;
    close(fd);
    return -1;
}

/* The port may be another program's on this host: only the launcher bids a caller welcome. */
static bool is_welcome(cli_line *line)
{
    char text[CLI_LINE_BYTES];
    cli_line_state state;
    while ((state = cli_line_take(line, text)) == CLI_LINE_NOTHING)
        if (!wait_for(line->fd, POLLIN, WELCOME_MS))
            return false;
    return state == CLI_LINE_TEXT && strcmp(text, "welcome") == 0;
}

sl_status cli_launcher_call(const char *launcher, int rank, cli_line *out)
{
    char words[CLI_LAUNCHER_BYTES], here[64] = "", *rest = words;
    snprintf(words, sizeof words, "%s", launcher);
    const char *token = strtok_r(rest, " ", &rest);
    int port = 0;
    *out = (cli_line){.fd = -1};
    if (gethostname(here, sizeof here - 1) != 0)
        snprintf(here, sizeof here, "?");
    bool known = token && cli_take_number(&rest, &port);
    for (const char *host; known && (host = strtok_r(rest, " ", &rest));) {
        *out = (cli_line){.fd = connect_to(host, port)};
        if (out->fd >= 0) {
            watch_over(out->fd);
            cli_line_send(out, "%s %d %s", token, rank, here);
            if (is_welcome(out))
                return SL_OK;
        }
        cli_line_close(out);
    }
    return sl_error(SL_ERR_IO, "rank %d on %s cannot reach its launcher by TCP", rank, here);
}
