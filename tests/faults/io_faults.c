/* Preloaded into a program: the process is killed, or an error is returned, in place of one of the
 * calls that change the file system. SLUICE_IO_KILL=N kills before the N-th of them, from 1;
 * SLUICE_IO_FAIL=N lets the N-th and all after it in a row of SLUICE_IO_FAILURES (1) fail with
 * ENOSPC. SLUICE_IO_COUNT=FILE: their number is written there at the end. SLUICE_IO_ONLY=TEXT: only
 * calls on paths that have this text count, and not those of libraries on theirs. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long calls;

static long number_of(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

static int is_counted(const char *path)
{
    const char *only = getenv("SLUICE_IO_ONLY");
    return !only || strstr(path, only);
}

static int is_counted_file(int descriptor)
{
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return is_counted(path);
}

/* Whether this call is to fail; does not return where the process is to die. */
static int fails(int counted)
{
    if (!counted)
        return 0;
    long call = atomic_fetch_add(&calls, 1) + 1;
    long first = number_of("SLUICE_IO_FAIL", 0);
    if (call == number_of("SLUICE_IO_KILL", 0))
        kill(getpid(), SIGKILL);
    if (first == 0 || call < first || call >= first + number_of("SLUICE_IO_FAILURES", 1))
        return 0;
    errno = ENOSPC;
    return 1;
}

__attribute__((destructor)) static void write_count(void)
{
    const char *path = getenv("SLUICE_IO_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%ld\n", atomic_load(&calls));
    fclose(file);
}

ssize_t pwrite(int descriptor, const void *data, size_t bytes, off_t offset)
{
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
    /* Half of the bytes come to the file before a kill. */
    int counted = is_counted_file(descriptor);
    if (counted && atomic_load(&calls) + 1 == number_of("SLUICE_IO_KILL", 0))
        real(descriptor, data, bytes / 2, offset);
    return fails(counted) ? -1 : real(descriptor, data, bytes, offset);
}

int fsync(int descriptor)
{
    static int (*real)(int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    return fails(is_counted_file(descriptor)) ? -1 : real(descriptor);
}

int rename(const char *from, const char *to)
{
    static int (*real)(const char *, const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "rename");
    return fails(is_counted(from)) ? -1 : real(from, to);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    static int (*real)(int, const char *, int, const char *, unsigned);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "renameat2");
    return fails(is_counted(from)) ? -1 : real(from_at, from, to_at, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    static int (*real)(const char *, mode_t);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "mkdir");
    return fails(is_counted(path)) ? -1 : real(path, mode);
}

int unlinkat(int at, const char *path, int flags)
{
    static int (*real)(int, const char *, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "unlinkat");
    return fails(is_counted(path)) ? -1 : real(at, path, flags);
}

int rmdir(const char *path)
{
    static int (*real)(const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "rmdir");
    return fails(is_counted(path)) ? -1 : real(path);
}
