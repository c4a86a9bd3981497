/* Preloaded into a program: one of its allocations fails. SLUICE_MEMORY_FAIL=N lets the N-th fail,
 * from 1, in the process whose environment says OMPI_COMM_WORLD_RANK=SLUICE_MEMORY_RANK (in every
 * process where that is not set). SLUICE_MEMORY_COUNT=FILE: their number is written there at the
 * end. SLUICE_MEMORY_LOG=FILE: a line is added there when the allocation fails, the time and where
 * the program asked for it.
 *
 * Only calls from the program's own file count, and not those of libraries: what a library does
 * without memory is its own affair. */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_long calls;
static long failing = -1; /* -1: none */
static uintptr_t begin, end;

/* The first object is the program. */
static int find_program(struct dl_phdr_info *info, size_t bytes, void *argument)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        begin = info->dlpi_addr + part->p_vaddr;
        end = begin + part->p_memsz;
    }
    return 1;
}

__attribute__((constructor)) static void prepare(void)
{
    const char *call = getenv("SLUICE_MEMORY_FAIL"), *wanted = getenv("SLUICE_MEMORY_RANK"),
               *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (call && (!wanted || (rank && strcmp(rank, wanted) == 0)))
        failing = strtol(call, NULL, 10);
    dl_iterate_phdr(find_program, NULL);
}

__attribute__((destructor)) static void write_count(void)
{
    const char *path = getenv("SLUICE_MEMORY_COUNT"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char name[4096];
    if (!path)
        return;
    snprintf(name, sizeof name, "%s.%s", path, rank ? rank : "0");
    FILE *file = fopen(name, "w");
    if (!file)
        return;
    fprintf(file, "%ld\n", atomic_load(&calls));
    fclose(file);
}

/* In one write, without memory. */
static void log_failure(uintptr_t caller, long call)
{
    const char *log = getenv("SLUICE_MEMORY_LOG");
    char line[128];
    struct timespec now;
    int descriptor = log ? open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (descriptor < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    int length = snprintf(line, sizeof line, "%ld.%03ld allocation %ld at +0x%lx\n",
                          (long)now.tv_sec, now.tv_nsec / 1000000, call, (long)(caller - begin));
    (void)!write(descriptor, line, (size_t)length);
    close(descriptor);
}

static bool fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    if (at < begin || at >= end)
        return false;
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (call != failing)
        return false;
    log_failure(at, call);
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    if (fails(__builtin_return_address(0)))
        return ENOMEM;
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}
