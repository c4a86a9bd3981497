#define _GNU_SOURCE /* asprintf */

#include "core/file_names.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static sl_status failed(const char *shown, const char *doing)
{
    return sl_error(SL_ERR_IO, "%s: %s failed: %s", shown, doing, strerror(errno));
}

sl_status sli_draw_number(const char *shown, uint64_t *out)
{
    *out = 0;
    return getrandom(out, sizeof *out, 0) == (ssize_t)sizeof *out
               ? SL_OK
               : failed(shown, "getting a random number");
}

sl_status sli_numbered_name(const char *path, const char *shown, uint64_t number, char **out)
{
    const char *slash = strrchr(path, '/');
    size_t directory = slash ? (size_t)(slash - path) + 1 : 0;
    if (asprintf(out, "%.*s.%.200s.%016llx.tmp", (int)directory, path, path + directory,
                 (unsigned long long)number) >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "%s: no memory for a temporary name", shown);
}

sl_status sli_temporary_name(const char *path, const char *shown, char **out)
{
    uint64_t number;
    *out = NULL;
    SL_TRY(sli_draw_number(shown, &number));
    return sli_numbered_name(path, shown, number, out);
}

sl_status sli_sync_directory(const char *path, const char *shown)
{
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a directory (EINVAL); a directory may be closed to readers. */
    if (descriptor < 0)
        return errno == EACCES ? SL_OK : failed(shown, "opening its directory after writing it");
    bool synced = fsync(descriptor) == 0 || errno == EINVAL;
    sl_status status = synced ? SL_OK : failed(shown, "syncing its directory after writing it");
    close(descriptor);
    return status;
}

sl_status sli_sync_name(const char *path, const char *shown)
{
    const char *slash = strrchr(path, '/');
    char *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    if (!directory)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for its directory's name", shown);
    sl_status status = sli_sync_directory(directory, shown);
    free(directory);
    return status;
}
