#define _GNU_SOURCE /* fallocate */

#include "core/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct sli_replace_file {
    int descriptor;
    char *shown;     /* the path as the caller gave it, for error sentences */
    char *path;      /* where the file will be, symbolic links followed */
    char *temporary; /* its name until then, in the same directory; NULL while there is no file */
};

static sl_status failed(const sli_replace_file *file, const char *doing)
{
    return sl_error(SL_ERR_IO, "%s: %s failed: %s", file->shown, doing, strerror(errno));
}

/* Replacing a device or a pipe by a file would be a nasty surprise, and a directory cannot be. */
static sl_status find_destination(const char *path, char **out)
{
    struct stat present;
    *out = NULL;
    if (path[0] == '\0')
        return sl_error(SL_ERR_INVALID, "the path of a file to write must not be empty");
    if (stat(path, &present) != 0) {
        *out = strdup(path);
    } else if (S_ISREG(present.st_mode)) {
        *out = realpath(path, NULL);
    } else {
        return sl_error(SL_ERR_INVALID, "%s: a file cannot be written there: it is %s", path,
                        S_ISDIR(present.st_mode) ? "a directory" : "no regular file");
    }
    return *out ? SL_OK : sl_error(SL_ERR_MEMORY, "%s: no memory for its path", path);
}

/* "dir/name" becomes "dir/.name.0123456789abcdef.tmp". */
static sl_status name_temporary(const sli_replace_file *file, char **out)
{
    uint64_t random = 0;
    *out = NULL;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return failed(file, "getting a random number");
    const char *slash = strrchr(file->path, '/');
    size_t directory = slash ? (size_t)(slash - file->path) + 1 : 0;
    if (asprintf(out, "%.*s.%.200s.%016llx.tmp", (int)directory, file->path, file->path + directory,
                 (unsigned long long)random) < 0) {
        *out = NULL;
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a temporary name", file->shown);
    }
    return SL_OK;
}

static sl_status open_temporary(sli_replace_file *file)
{
    char *name;
    SL_TRY(name_temporary(file, &name));
    file->descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->descriptor >= 0) {
        file->temporary = name;
        return SL_OK;
    }
    free(name);
    if (errno == ENOENT)
        return sl_error(SL_ERR_NOT_FOUND, "%s: cannot be created: its directory does not exist",
                        file->shown);
    return failed(file, "creating it");
}

sl_status sli_replace_file_create(const char *path, sli_replace_file **out)
{
    *out = NULL;
    sli_replace_file *file = calloc(1, sizeof *file);
    if (!file)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a file's record", path);
    file->descriptor = -1;
    file->shown = strdup(path);
    sl_status status = file->shown
                           ? find_destination(path, &file->path)
                           : sl_error(SL_ERR_MEMORY, "%s: no memory for a file's path", path);
    if (status == SL_OK)
        status = open_temporary(file);
    if (status != SL_OK)
        sli_replace_file_destroy(&file);
    *out = file;
    return status;
}

sl_status sli_replace_file_reserve(sli_replace_file *file, uint64_t bytes)
{
    int result;
    if (bytes == 0)
        return SL_OK;
    if (bytes > INT64_MAX)
        return sl_error(SL_ERR_IO, "%s: a file of %llu bytes is impossible", file->shown,
                        (unsigned long long)bytes);
    do
        result = fallocate(file->descriptor, 0, 0, (off_t)bytes);
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return sl_error(SL_ERR_IO, "%s: there is no room for its %llu bytes: %s", file->shown,
                        (unsigned long long)bytes, strerror(errno));
    return SL_OK;
}

sl_status sli_replace_file_write(sli_replace_file *file, uint64_t offset, const void *data,
                                 size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = pwrite(file->descriptor, from, bytes, (off_t)offset);
        if (written < 0 && errno != EINTR)
            return failed(file, "writing to it");
        if (written > 0) {
            from += written;
            offset += (uint64_t)written;
            bytes -= (size_t)written;
        }
    }
    return SL_OK;
}

/* The new name itself must survive a power cut. */
static sl_status sync_directory(const sli_replace_file *file)
{
    const char *slash = strrchr(file->path, '/');
    char *directory = slash ? strndup(file->path, (size_t)(slash - file->path) + 1) : strdup(".");
    if (!directory)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for its directory's name", file->shown);
    int descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(directory);
    /* Some file systems cannot sync a directory (EINVAL); a directory may be closed to readers. */
    if (descriptor < 0)
        return errno == EACCES ? SL_OK : failed(file, "opening its directory after writing it");
    bool synced = fsync(descriptor) == 0 || errno == EINVAL;
    sl_status status = synced ? SL_OK : failed(file, "syncing its directory after writing it");
    close(descriptor);
    return status;
}

sl_status sli_replace_file_commit(sli_replace_file *file)
{
    if (fsync(file->descriptor) != 0)
        return failed(file, "bringing it to disk");
    int closed = close(file->descriptor);
    file->descriptor = -1;
    if (closed != 0)
        return failed(file, "closing it");
    if (rename(file->temporary, file->path) != 0)
        return failed(file, "giving it its name");
    free(file->temporary);
    file->temporary = NULL;
    return sync_directory(file);
}

void sli_replace_file_destroy(sli_replace_file **file)
{
    if (!file || !*file)
        return;
    if ((*file)->descriptor >= 0)
        close((*file)->descriptor);
    if ((*file)->temporary)
        unlink((*file)->temporary);
    free((*file)->temporary);
    free((*file)->path);
    free((*file)->shown);
    free(*file);
    *file = NULL;
}
