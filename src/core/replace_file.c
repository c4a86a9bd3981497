#define _GNU_SOURCE /* fallocate, sync_file_range, O_DIRECTORY, O_NOFOLLOW */

#include "core/replace.h"

#include "core/error.h"
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
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
    return sli_io_error(shown, "no random number can be had");
}

void sli_temporary_name(const char *name, uint64_t number, char *out)
{
    snprintf(out, SLI_TEMPORARY_BYTES, ".%.*s.%0*" PRIx64 "%s", KEPT_BYTES, name, DIGITS, number,
             ending);
}

/* ".NAME.0123456789abcdef" and `last`, which has as many bytes as `ending`. */
static bool parse_name(const char *name, const char *last, char *of)
{
    size_t length = strlen(name);
    if (name[0] != '.' || length <= 1 + ENDING_BYTES || length >= SLI_TEMPORARY_BYTES)
        return false;
    const char *end = name + length - ENDING_BYTES;
    if (end[0] != '.' || strspn(end + 1, "0123456789abcdef") != DIGITS ||
        strcmp(end + 1 + DIGITS, last) != 0)
        return false;
    memcpy(of, name + 1, (size_t)(end - name - 1));
    of[end - name - 1] = '\0';
    return true;
}

bool sli_temporary_parse(const char *name, char *of)
{
    return parse_name(name, ending, of);
}

bool sli_second_name_parse(const char *entry, char *of)
{
    return parse_name(entry, ".old", of);
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
        if (errno == ELOOP) /* no writer makes links */
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
    bool (*is_ours)(const void *context, const char *owner);
    const void *context;
} sweeping;

static bool sweep_entry(void *context, const char *name)
{
    const sweeping *sweep = context;
    char owner[SLI_TEMPORARY_BYTES];
    if (!sli_temporary_parse(name, owner))
        return true;
    /* A leftover of a leftover belongs to the same owner. */
    for (char inner[SLI_TEMPORARY_BYTES]; sli_temporary_parse(owner, inner);)
        memcpy(owner, inner, strlen(inner) + 1);
    if (sweep->is_ours(sweep->context, owner))
        sweep_one(sweep->directory, name);
    return true;
}

void sli_temporary_sweep(int directory, bool (*is_ours)(const void *context, const char *owner),
                         const void *context)
{
    sweeping sweep = {directory, is_ours, context};
    (void)sli_directory_walk(directory, sweep_entry, &sweep);
}

static bool is_name(const void *context, const char *owner)
{
    const char *name = context;
    size_t length = strlen(owner);
    return strncmp(name, owner, length) == 0 && (name[length] == '\0' || length == KEPT_BYTES);
}

void sli_temporary_sweep_name(int directory, const char *name)
{
    sli_temporary_sweep(directory, is_name, name);
}

/* ---- Files ------------------------------------------------------------------------------ */

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

/* After so many bytes the disk is told to write them, so that it works while the rest is prepared.
 */
enum { WRITE_BACK_BYTES = 8 << 20 };

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

static sl_status find_destination(sli_replace_file *file, bool sweeps)
{
    char *path;
    SL_TRY(check_replaceable(file->shown));
    SL_TRY(sli_path_follow(file->shown, &path));
    sl_status status = sli_path_open_parent(path, file->shown, &file->directory, &file->name);
    file->in_temporary = is_in_temporary(path);
    if (status == SL_OK && !file->in_temporary && sweeps)
        sli_temporary_sweep_name(file->directory, file->name);
    free(path);
    return status;
}

/* Readable as well, for the lock. A file that replaces another has its mode, and no wider one while
 * it is written. */
static sl_status open_temporary(sli_replace_file *file)
{
    struct stat older;
    bool replaces = fstatat(file->directory, file->name, &older, AT_SYMLINK_NOFOLLOW) == 0;
    mode_t mode = replaces ? older.st_mode & 0777 : 0666;
    while (!file->exists) {
        uint64_t number;
        SL_TRY(sli_draw_number(file->shown, &number));
        sli_temporary_name(file->name, number, file->temporary);
        file->descriptor =
            openat(file->directory, file->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (file->descriptor < 0)
            return sli_io_error(file->shown, "cannot be created");
        if (replaces) /* also what the umask takes; some file systems have no modes */
            (void)fchmod(file->descriptor, mode);
        file->exists = sli_temporary_hold(file->directory, file->temporary, file->descriptor);
        if (!file->exists) {
            close(file->descriptor);
            file->descriptor = -1;
        }
    }
    return SL_OK;
}

/* A temporary file that is there already; its descriptor reads as well, as a lock may need. */
static sl_status open_again(sli_replace_file *file, const char *temporary, uint64_t bytes)
{
    char of[SLI_TEMPORARY_BYTES];
    if (!sli_temporary_parse(temporary, of) || strchr(temporary, '/') || !is_name(file->name, of))
        return sl_error(SL_ERR_FORMAT, "%s: expected its temporary name, got \"%s\"", file->shown,
                        temporary);
    memcpy(file->temporary, temporary, strlen(temporary) + 1);
    file->descriptor =
        openat(file->directory, temporary, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file->descriptor < 0)
        return sli_io_error(file->shown, "what was written of it cannot be opened");
    file->exists = sli_temporary_hold(file->directory, temporary, file->descriptor);
    if (!file->exists)
        return sl_error(SL_ERR_NOT_FOUND, "%s: what was written of it has been removed",
                        file->shown);
    if (ftruncate(file->descriptor, (off_t)bytes) == 0)
        return SL_OK;
    file->exists = false; /* it stays for another try */
    return sli_io_error(file->shown, "cannot be cut");
}

static sl_status create(const char *path, const char *temporary, uint64_t bytes,
                        sli_replace_file **out)
{
    *out = NULL;
    sli_replace_file *file = calloc(1, sizeof *file);
    if (!file)
        return sli_no_memory(path, "a file's record");
    file->descriptor = file->directory = -1;
    file->shown = strdup(path);
    sl_status status;
    SL_TRY_OR_FAIL(file->shown ? find_destination(file, !temporary)
                               : sli_no_memory(path, "a file's path"));
    SL_TRY_OR_FAIL(temporary ? open_again(file, temporary, bytes) : open_temporary(file));
    *out = file;
    return SL_OK;

fail:
    sli_replace_file_destroy(&file);
    return status;
}

sl_status sli_replace_file_create(const char *path, sli_replace_file **out)
{
    return create(path, NULL, 0, out);
}

sl_status sli_replace_file_reopen(const char *path, const char *temporary, uint64_t bytes,
                                  sli_replace_file **out)
{
    return create(path, temporary, bytes, out);
}

const char *sli_replace_file_temporary(const sli_replace_file *file)
{
    return file->temporary;
}

void sli_replace_file_leave(sli_replace_file **file)
{
    if (file && *file)
        (*file)->exists = false;
    sli_replace_file_destroy(file);
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

/* Files are nearly always written from front to back. What is left over, and every error, is
 * fsync's. */
static void give_to_disk(sli_replace_file *file, uint64_t end)
{
    if (end < file->given + WRITE_BACK_BYTES)
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
            return sli_io_error(file->shown, "cannot be written");
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
        return sli_io_error(file->shown, "cannot be brought to disk");
    if (renameat(file->directory, file->temporary, file->directory, file->name) != 0)
        return sli_io_error(file->shown, "cannot be given its name");
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

sl_status sli_file_write(const char *path, const void *data, size_t bytes)
{
    sli_replace_file *file;
    SL_TRY(sli_replace_file_create(path, &file));
    sl_status status;
    SL_TRY_OR_FAIL(sli_replace_file_write(file, 0, data, bytes));
    status = sli_replace_file_commit(file);
fail:
    sli_replace_file_destroy(&file);
    return status;
}
