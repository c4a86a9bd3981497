#define _GNU_SOURCE /* fallocate, sync_file_range */

#include "core/replace_file.h"

#include "core/directory.h"
#include "core/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sli_replace_file {
    char *shown;                         /* the path as the caller gave it, for error sentences */
    int directory;                       /* that holds it, symbolic links followed */
    char *name;                          /* in it */
    char temporary[SLI_TEMPORARY_BYTES]; /* its name until then */
    bool exists;                         /* under that name */
    bool in_temporary; /* the directory is itself a temporary one, which its writer syncs */
    int descriptor;
    uint64_t given; /* bytes from the start that the disk has been given to write */
};

/* Pieces in which the disk is given what is written, so that it works while the rest is prepared.
 */
enum { DISK_PIECE_BYTES = 8 << 20 };

static sl_status failed(const sli_replace_file *file, const char *doing)
{
    return sl_error(SL_ERR_IO, "%s: %s failed: %s", file->shown, doing, strerror(errno));
}

/* Replacing a device or a pipe by a file would be a nasty surprise, and a directory cannot be. */
static sl_status check_replaceable(const char *path)
{
    struct stat present;
    if (path[0] == '\0')
        return sl_error(SL_ERR_INVALID, "the path of a file to write must not be empty");
    if (stat(path, &present) != 0 || S_ISREG(present.st_mode))
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s: a file cannot be written there: it is %s", path,
                    S_ISDIR(present.st_mode) ? "a directory" : "no regular file");
}

/* A directory that is itself under a temporary name is new, and is removed as a whole. */
static bool is_in_temporary(const char *path)
{
    char name[SLI_TEMPORARY_BYTES], of[SLI_TEMPORARY_BYTES];
    const char *end = strrchr(path, '/'), *begin = end;
    while (begin && begin > path && begin[-1] != '/')
        begin--;
    if (!begin || (size_t)(end - begin) >= sizeof name)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)(end - begin), begin);
    return sli_temporary_parse(name, of);
}

static sl_status find_destination(sli_replace_file *file)
{
    char *path;
    SL_TRY(check_replaceable(file->shown));
    SL_TRY(sli_directory_follow(file->shown, &path));
    sl_status status = sli_directory_open_parent(path, file->shown, &file->directory, &file->name);
    file->in_temporary = is_in_temporary(path);
    if (status == SL_OK && !file->in_temporary)
        sli_temporary_sweep_name(file->directory, file->name);
    free(path);
    return status;
}

/* Readable as well, for the lock. */
static sl_status open_temporary(sli_replace_file *file)
{
    while (!file->exists) {
        uint64_t number;
        SL_TRY(sli_draw_number(file->shown, &number));
        sli_temporary_name(file->name, number, file->temporary);
        file->descriptor =
            openat(file->directory, file->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->descriptor < 0)
            return failed(file, "creating it");
        file->exists = sli_temporary_hold(file->directory, file->temporary, file->descriptor);
        if (!file->exists) {
            close(file->descriptor);
            file->descriptor = -1;
        }
    }
    return SL_OK;
}

sl_status sli_replace_file_create(const char *path, sli_replace_file **out)
{
    *out = NULL;
    sli_replace_file *file = calloc(1, sizeof *file);
    if (!file)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a file's record", path);
    file->descriptor = file->directory = -1;
    file->shown = strdup(path);
    sl_status status = file->shown
                           ? find_destination(file)
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

/* Files are written from front to back, as good as always; what is not given here is left to fsync,
 * whose is also every error. */
static void give_to_disk(sli_replace_file *file, uint64_t end)
{
    if (end < file->given + DISK_PIECE_BYTES)
        return;
    (void)sync_file_range(file->descriptor, (off_t)file->given, (off_t)(end - file->given),
                          SYNC_FILE_RANGE_WRITE);
    file->given = end;
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
    give_to_disk(file, offset);
    return SL_OK;
}

sl_status sli_replace_file_commit(sli_replace_file *file)
{
    if (fsync(file->descriptor) != 0)
        return failed(file, "bringing it to disk");
    if (renameat(file->directory, file->temporary, file->directory, file->name) != 0)
        return failed(file, "giving it its name");
    file->exists = false;
    return file->in_temporary ? SL_OK : sli_directory_sync(file->directory, file->shown);
}

void sli_replace_file_destroy(sli_replace_file **file)
{
    if (!file || !*file)
        return;
    if ((*file)->exists)
        (void)unlinkat((*file)->directory, (*file)->temporary, 0);
    if ((*file)->descriptor >= 0)
        close((*file)->descriptor);
    if ((*file)->directory >= 0)
        close((*file)->directory);
    free((*file)->name);
    free((*file)->shown);
    free(*file);
    *file = NULL;
}
