#define _GNU_SOURCE /* O_DIRECTORY, O_NOFOLLOW */

#include "core/temporary.h"

#include "core/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char ending[] = ".tmp";
enum { KEPT_BYTES = 200, DIGITS = 16, ENDING_BYTES = 1 + DIGITS + sizeof ending - 1 };

/* ---- Names ------------------------------------------------------------------------------ */

sl_status sli_draw_number(const char *shown, uint64_t *out)
{
    *out = 0;
    if (getrandom(out, sizeof *out, 0) == (ssize_t)sizeof *out)
        return SL_OK;
    return sl_error(SL_ERR_IO, "%s: getting a random number failed: %s", shown, strerror(errno));
}

void sli_temporary_name(const char *name, uint64_t number, char *out)
{
    snprintf(out, SLI_TEMPORARY_BYTES, ".%.*s.%0*" PRIx64 "%s", KEPT_BYTES, name, DIGITS, number,
             ending);
}

bool sli_temporary_parse(const char *name, char *of)
{
    size_t length = strlen(name);
    if (name[0] != '.' || length <= 1 + ENDING_BYTES || length >= SLI_TEMPORARY_BYTES)
        return false;
    const char *end = name + length - ENDING_BYTES;
    if (end[0] != '.' || strspn(end + 1, "0123456789abcdef") != DIGITS ||
        strcmp(end + 1 + DIGITS, ending) != 0)
        return false;
    memcpy(of, name + 1, (size_t)(end - name - 1));
    of[end - name - 1] = '\0';
    return true;
}

/* ---- Locks ------------------------------------------------------------------------------ */

bool sli_temporary_hold(int directory, const char *name, int descriptor)
{
    struct stat found;
    while (flock(descriptor, LOCK_SH) != 0 && errno == EINTR)
        ;
    return fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* Opened for writing where that is possible: some file systems want it for an exclusive lock. */
static int open_leftover(int directory, const char *name)
{
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int descriptor = openat(directory, name, O_RDWR | flags);
    if (descriptor < 0 && errno == EISDIR)
        descriptor = openat(directory, name, O_RDONLY | O_DIRECTORY | flags);
    return descriptor;
}

static void sweep_one(int directory, const char *name)
{
    int descriptor = open_leftover(directory, name);
    if (descriptor < 0) {
        if (errno == ELOOP) /* a link is nobody's work */
            (void)unlinkat(directory, name, 0);
        return;
    }
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0)
        (void)sli_directory_remove(directory, name);
    close(descriptor);
}

/* ---- Sweeping --------------------------------------------------------------------------- */

typedef struct sweeping {
    int directory;
    bool (*is_ours)(const void *context, const char *of);
    const void *context;
} sweeping;

static bool sweep_entry(void *context, const char *name)
{
    const sweeping *in = context;
    char of[SLI_TEMPORARY_BYTES];
    if (!sli_temporary_parse(name, of))
        return true;
    /* A leftover of a leftover belongs to the same owner. */
    for (char inner[SLI_TEMPORARY_BYTES]; sli_temporary_parse(of, inner);)
        memcpy(of, inner, strlen(inner) + 1);
    if (in->is_ours(in->context, of))
        sweep_one(in->directory, name);
    return true;
}

void sli_temporary_sweep(int directory, bool (*is_ours)(const void *context, const char *of),
                         const void *context)
{
    sweeping in = {directory, is_ours, context};
    (void)sli_directory_walk(directory, sweep_entry, &in);
}

static bool is_name(const void *context, const char *of)
{
    const char *name = context;
    size_t length = strlen(of);
    return strncmp(name, of, length) == 0 && (name[length] == '\0' || length == KEPT_BYTES);
}

void sli_temporary_sweep_name(int directory, const char *name)
{
    sli_temporary_sweep(directory, is_name, name);
}
