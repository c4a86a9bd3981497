#define _GNU_SOURCE /* gettid, tgkill */
#include "support/check.h"

#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const test_schedules[TEST_SCHEDULES] = {"gpipe", "1f1b", "zb-h1"};

void check_ok_at(sl_status status, const char *file, int line)
{
    if (status == SL_OK)
        return;
    print_error("%s: %s\n", sl_status_name(status), sl_error_text());
    _fail(file, line);
}

void check_error_at(sl_status status, sl_status code, const char *text, const char *file, int line)
{
    if (status == code && strstr(sl_error_text(), text))
        return;
    print_error("expected %s: \"%s\"\n     got %s: \"%s\"\n", sl_status_name(code), text,
                sl_status_name(status), status == SL_OK ? "" : sl_error_text());
    _fail(file, line);
}

/* ---- A test that hangs ------------------------------------------------------------------ */

/* The alarm's handler has each other thread print its own stack, one after the other, by a signal
 * that these handle. What handlers may not call (opendir allocates memory) is called nevertheless:
 * the process hangs and is about to abort, and mostly it waits elsewhere than in malloc. */
static const struct timespec moment = {0, 1000000};
static atomic_bool printed;

static void print_own_stack(int number)
{
    void *frames[64];
    (void)number;
    int count = backtrace(frames, sizeof frames / sizeof *frames);
    dprintf(STDERR_FILENO, "thread %d:\n", (int)gettid());
    backtrace_symbols_fd(frames, count, STDERR_FILENO);
    atomic_store(&printed, true);
}

static void print_stack_of(int thread)
{
    enum { MOMENTS = 500 }; /* a thread may block the signal */
    atomic_store(&printed, false);
    if (tgkill(getpid(), thread, SIGUSR2) != 0)
        return;
    for (int i = 0; i < MOMENTS && !atomic_load(&printed); i++)
        nanosleep(&moment, NULL);
}

static void print_stacks_and_abort(int number)
{
    dprintf(STDERR_FILENO, "the test hangs here:\n");
    print_own_stack(number);
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *one; threads && (one = readdir(threads));) {
        int thread = atoi(one->d_name); /* 0 for . and .. */
        if (thread > 0 && thread != gettid())
            print_stack_of(thread);
    }
    abort();
}

void abort_with_stacks_after(unsigned seconds)
{
    void *frame;
    backtrace(&frame, 1); /* loads what it needs now, not in a handler */
    sigaction(SIGUSR2, &(struct sigaction){.sa_handler = print_own_stack}, NULL);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = print_stacks_and_abort}, NULL);
    alarm(seconds);
}
