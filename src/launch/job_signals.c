/* The signals of a job: they wait until the launcher reads them, also between two attempts. */
#define _GNU_SOURCE
#include "launch/launch.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

static const int numbers[] = {SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP};

static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

sl_status sli_signals_begin(sli_signals *self)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!is_ignored(numbers[i])) /* signalfd would read one that is ignored */
            sigaddset(&blocked, numbers[i]);
    self->checks_readers = !is_ignored(SIGPIPE);
    /* A closed stderr must not end the launcher before the ranks. */
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, &self->pipe_before);
    sigprocmask(SIG_BLOCK, &blocked, &self->mask_before);
    self->fd = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (self->fd >= 0)
        return SL_OK;
    sl_status status = sl_error(SL_ERR_IO, "signals cannot be read: %s", strerror(errno));
    sli_signals_end(self);
    return status;
}

void sli_signals_end(sli_signals *self)
{
    while (sli_signals_read(self)) /* what has come too late */
        continue;
    sigprocmask(SIG_SETMASK, &self->mask_before, NULL);
    sigaction(SIGPIPE, &self->pipe_before, NULL);
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
}

int sli_signals_read(const sli_signals *self)
{
    struct signalfd_siginfo got;
    while (read(self->fd, &got, sizeof got) == sizeof got)
        if (got.ssi_signo != SIGCHLD)
            return (int)got.ssi_signo;
    return 0;
}

bool sli_signals_end_job(void)
{
    sigset_t waiting;
    return sigpending(&waiting) == 0 &&
           (sigismember(&waiting, SIGHUP) == 1 || sigismember(&waiting, SIGINT) == 1 ||
            sigismember(&waiting, SIGTERM) == 1);
}

static struct pollfd poll_reader(int fd)
{
    struct stat file;
    bool matters = fstat(fd, &file) == 0 && (S_ISFIFO(file.st_mode) || S_ISSOCK(file.st_mode));
    return (struct pollfd){.fd = matters ? fd : -1};
}

bool sli_signals_reader_is_gone(const sli_signals *self)
{
    struct pollfd readers[] = {poll_reader(STDOUT_FILENO), poll_reader(STDERR_FILENO)};
    return self->checks_readers && poll(readers, 2, 0) > 0;
}
