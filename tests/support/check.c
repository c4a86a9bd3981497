#define _GNU_SOURCE /* gettid, tgkill */
#include "support/check.h"

#include <dirent.h>
#include <execinfo.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

const char *const test_schedules[TEST_SCHEDULES] = {"gpipe", "1f1b", "zb-h1"};

const char pytorch_dual_pipe_v[] =
    "0F0,0F1,0F2,0F3,0F4,0F5,0F6,7F0,7I0,7W0,7F1,7I1,7W1,7F2,7I2,7W2,7F3,"
    "(0F7;7B3)OVERLAP_F_B,(7F4;0B0)OVERLAP_F_B,(0F8;7B4)OVERLAP_F_B,(7F5;0B1)OVERLAP_F_B,"
    "(0F9;7B5)OVERLAP_F_B,(7F6;0B2)OVERLAP_F_B,7B6,(7F7;0B3)OVERLAP_F_B,7B7,"
    "(7F8;0B4)OVERLAP_F_B,7B8,(7F9;0B5)OVERLAP_F_B,7B9,0I6,0W6,0I7,0W7,0I8,0W8,0I9,0W9\n"
    "1F0,1F1,1F2,1F3,1F4,6F0,1F5,6F1,6I0,6W0,6F2,6I1,6W1,6F3,(1F6;6B2)OVERLAP_F_B,"
    "(6F4;1B0)OVERLAP_F_B,(1F7;6B3)OVERLAP_F_B,(6F5;1B1)OVERLAP_F_B,(1F8;6B4)OVERLAP_F_B,"
    "(6F6;1B2)OVERLAP_F_B,(1F9;6B5)OVERLAP_F_B,(6F7;1B3)OVERLAP_F_B,6B6,(6F8;1B4)OVERLAP_F_B,"
    "6B7,(6F9;1B5)OVERLAP_F_B,6B8,1B6,6I9,1I7,6W9,1I8,1W7,1I9,1W8,1W9\n"
    "2F0,2F1,2F2,5F0,2F3,5F1,2F4,5F2,5I0,5W0,5F3,(2F5;5B1)OVERLAP_F_B,(5F4;2B0)OVERLAP_F_B,"
    "(2F6;5B2)OVERLAP_F_B,(5F5;2B1)OVERLAP_F_B,(2F7;5B3)OVERLAP_F_B,(5F6;2B2)OVERLAP_F_B,"
    "(2F8;5B4)OVERLAP_F_B,(5F7;2B3)OVERLAP_F_B,(2F9;5B5)OVERLAP_F_B,(5F8;2B4)OVERLAP_F_B,5B6,"
    "(5F9;2B5)OVERLAP_F_B,5B7,2B6,5B8,2I7,5I9,2I8,2W7,2I9,5W9,2W8,2W9\n"
    "3F0,4F0,3F1,4F1,3F2,4F2,3F3,4F3,3F4,4B0,(4F4;3B0)OVERLAP_F_B,(3F5;4B1)OVERLAP_F_B,"
    "(4F5;3B1)OVERLAP_F_B,(3F6;4B2)OVERLAP_F_B,(4F6;3B2)OVERLAP_F_B,(3F7;4B3)OVERLAP_F_B,"
    "(4F7;3B3)OVERLAP_F_B,(3F8;4B4)OVERLAP_F_B,(4F8;3B4)OVERLAP_F_B,(3F9;4B5)OVERLAP_F_B,"
    "(4F9;3B5)OVERLAP_F_B,4B6,3B6,4B7,3B7,4I8,3I8,4I9,3I9,4W8,3W8,4W9,3W9\n";

const char pytorch_zb1p[] =
    "0F0,0F1,2F0,,2F1,2B0,2W0,0F2,2B1,2W1,0F3,0B0,0W0,2F2,0B1,0W1,2F3,2B2,2W2,0F4,2B3,2W3,"
    "0F5,0B2,0W2,2F4,0B3,0W3,2F5,2B4,2W4,0F6,2B5,2W5,0F7,0B4,0W4,2F6,0B5,0W5,2F7,2B6,2W6,2B7,"
    "2W7,0B6,0W6,0B7,0W7\n"
    ",1F0,1F1,3F0,3B0,3F1,3B1,3W0,1F2,1B0,3W1,1F3,1B1,1W0,3F2,3B2,1W1,3F3,3B3,3W2,1F4,1B2,"
    "3W3,1F5,1B3,1W2,3F4,3B4,1W3,3F5,3B5,3W4,1F6,1B4,3W5,1F7,1B5,1W4,3F6,3B6,1W5,3F7,3B7,3W6,"
    "1B6,3W7,1B7,1W6,1W7\n";

/* ---- Random numbers --------------------------------------------------------------------- */

unsigned test_seed(unsigned own)
{
    const char *given = getenv("SLUICE_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : own;
    print_message("seed %u\n", seed);
    return seed;
}

int test_rounds(int count)
{
    return IS_SANITIZED ? (count + 3) / 4 : count;
}

void skip_if_sanitized(void)
{
    if (IS_SANITIZED) {
        print_message("skipped: with a sanitizer, numbers that other builds compare\n");
        skip();
    }
}

int test_draw(unsigned *state, int low, int high)
{
    *state = *state * 1664525u + 1013904223u;
    return low + (int)((*state >> 8) % (unsigned)(high - low + 1));
}

void limit_address_space(size_t more)
{
    unsigned long long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%llu", &pages) != 1)
        _exit(2);
    fclose(file);
    rlim_t bytes = pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
    setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes});
}

bool process_runs(int process)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    const char *state = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    fclose(file);
    return state && state[2] != 'Z' && state[2] != 'X';
}

int allowed_core(int index)
{
    cpu_set_t set;
    int core = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (int left = index; core < CPU_SETSIZE && (!CPU_ISSET((size_t)core, &set) || left-- > 0);)
        core++;
    if (core == CPU_SETSIZE) {
        print_message("skipped: it takes %d cores\n", index + 1);
        skip();
    }
    return core;
}

/* The words of the line "flags", of which every core has one. */
bool processor_has_bf16(void)
{
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && getline(&line, &room, file) > 0)
        if (strncmp(line, "flags", strlen("flags")) == 0)
            for (char *rest = line, *word; (word = strtok_r(rest, " \t\n", &rest));)
                found = found || strcmp(word, "avx512_bf16") == 0 || strcmp(word, "amx_bf16") == 0;
    free(line);
    if (file)
        fclose(file);
    return found;
}

/* ---- Checks ----------------------------------------------------------------------------- */

void free_at_end(void *pointer_of)
{
    free(*(void **)pointer_of);
}

uint64_t device_bytes(const sl_device *device)
{
    sl_memory_stats memory;
    sl_device_memory(device, &memory);
    return memory.current_total_bytes;
}

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
