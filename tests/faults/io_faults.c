/* Preloaded into a program: the process is killed, or an error is returned, in place of one of the
 * calls that change the file system. SLUICE_IO_KILL=N kills before the N-th of them, from 1;
 * SLUICE_IO_FAIL=N lets the N-th and all after it in a row of SLUICE_IO_FAILURES (1) fail with
 * ENOSPC. SLUICE_IO_COUNT=FILE: their number is written there at the end. SLUICE_IO_LOG=FILE: each
 * of them is added there as a line, the call and the path.
 *
 * SLUICE_IO_READ=CALL:ERRNO lets every call of a kind that reads (open, read, stat) fail with that
 * number. SLUICE_IO_NO_EXCHANGE: renameat2 with flags fails with EINVAL, as on NFS.
 * SLUICE_IO_DELAY=SECONDS: each fsync takes so long. SLUICE_IO_ONLY=TEXT: only calls on paths that
 * have this text count, and not those of libraries on theirs. */
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

/* ---- Which calls ------------------------------------------------------------------------- */

static long number_of(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

enum { PATH_BYTES = 8192 };

static const char *path_of(int descriptor, char *path)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_BYTES / 2);
    path[length > 0 ? length : 0] = '\0';
    return path;
}

/* Of `name` in the directory `at`. */
static const char *path_in(int at, const char *name, char *path)
{
    if (at == AT_FDCWD || name[0] == '/')
        return name;
    path_of(at, path);
    size_t length = strlen(path);
    snprintf(path + length, PATH_BYTES - length, "/%s", name);
    return path;
}

static int is_counted(const char *path)
{
    const char *only = getenv("SLUICE_IO_ONLY");
    return !only || strstr(path, only);
}

/* ---- Calls that change ------------------------------------------------------------------- */

/* A line of a log in one write: others may add theirs. */
static void log_call(const char *call, const char *path)
{
    const char *log = getenv("SLUICE_IO_LOG");
    char line[PATH_BYTES + 32];
    int descriptor = log ? open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (descriptor < 0)
        return;
    int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    (void)!write(descriptor, line, (size_t)length);
    close(descriptor);
}

/* Whether this call is to fail; does not return where the process is to die. */
static int fails(const char *name, const char *path)
{
    if (!is_counted(path))
        return 0;
    long call = atomic_fetch_add(&calls, 1) + 1;
    long first = number_of("SLUICE_IO_FAIL", 0);
    log_call(name, path);
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

/* The function of that name that the program would have called. */
#define REAL(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real)                                                                                     \
    *(void **)&real = dlsym(RTLD_NEXT, #name)

ssize_t pwrite(int descriptor, const void *data, size_t bytes, off_t offset)
{
    REAL(pwrite);
    char path[PATH_BYTES];
    /* Half of the bytes come to the file before a kill. */
    if (is_counted(path_of(descriptor, path)) &&
        atomic_load(&calls) + 1 == number_of("SLUICE_IO_KILL", 0))
        real(descriptor, data, bytes / 2, offset);
    return fails("pwrite", path) ? -1 : real(descriptor, data, bytes, offset);
}

int fsync(int descriptor)
{
    REAL(fsync);
    char path[PATH_BYTES];
    int counted = is_counted(path_of(descriptor, path));
    for (unsigned left = counted ? (unsigned)number_of("SLUICE_IO_DELAY", 0) : 0; left > 0;)
        left = sleep(left); /* signals do not make it faster */
    return fails("fsync", path) ? -1 : real(descriptor);
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    REAL(renameat);
    char path[PATH_BYTES];
    return fails("rename", path_in(from_at, from, path)) ? -1 : real(from_at, from, to_at, to);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    REAL(renameat2);
    char path[PATH_BYTES];
    if (flags && getenv("SLUICE_IO_NO_EXCHANGE")) {
        errno = EINVAL;
        return -1;
    }
    return fails("rename", path_in(from_at, from, path)) ? -1
                                                         : real(from_at, from, to_at, to, flags);
}

int mkdirat(int at, const char *name, mode_t mode)
{
    REAL(mkdirat);
    char path[PATH_BYTES];
    return fails("mkdir", path_in(at, name, path)) ? -1 : real(at, name, mode);
}

int unlinkat(int at, const char *name, int flags)
{
    REAL(unlinkat);
    char path[PATH_BYTES];
    return fails("unlink", path_in(at, name, path)) ? -1 : real(at, name, flags);
}

/* ---- Calls that read --------------------------------------------------------------------- */

static int read_fails(const char *call, const char *path)
{
    const char *wanted = getenv("SLUICE_IO_READ");
    size_t length = strlen(call);
    if (!wanted || strncmp(wanted, call, length) != 0 || wanted[length] != ':' || !is_counted(path))
        return 0;
    errno = atoi(wanted + length + 1);
    return 1;
}

static mode_t mode_of(int flags, va_list more)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    REAL(open);
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return read_fails("open", path) ? -1 : real(path, flags, mode);
}

int openat(int at, const char *name, int flags, ...)
{
    REAL(openat);
    char path[PATH_BYTES];
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return read_fails("open", path_in(at, name, path)) ? -1 : real(at, name, flags, mode);
}

ssize_t read(int descriptor, void *data, size_t bytes)
{
    REAL(read);
    char path[PATH_BYTES];
    return read_fails("read", path_of(descriptor, path)) ? -1 : real(descriptor, data, bytes);
}

ssize_t pread(int descriptor, void *data, size_t bytes, off_t offset)
{
    REAL(pread);
    char path[PATH_BYTES];
    return read_fails("read", path_of(descriptor, path)) ? -1
                                                         : real(descriptor, data, bytes, offset);
}

int stat(const char *path, struct stat *found)
{
    REAL(stat);
    return read_fails("stat", path) ? -1 : real(path, found);
}

int fstat(int descriptor, struct stat *found)
{
    REAL(fstat);
    char path[PATH_BYTES];
    return read_fails("stat", path_of(descriptor, path)) ? -1 : real(descriptor, found);
}

int fstatat(int at, const char *name, struct stat *found, int flags)
{
    REAL(fstatat);
    char path[PATH_BYTES];
    return read_fails("stat", path_in(at, name, path)) ? -1 : real(at, name, found, flags);
}
