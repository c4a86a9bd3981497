#define _GNU_SOURCE /* mremap, O_TMPFILE */

#include "core/large_array.h"
#include "core/error.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEAST_DESCRIPTOR = 3, STEP = 1 << 24 }; /* bytes by which files grow, and a quarter */

/* A file of the directory without a name; -1, with errno: none can be made there. */
static int open_unnamed(const char *directory)
{
    char path[4096];
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return file;
    if (snprintf(path, sizeof path, "%s/sluice-XXXXXX", directory) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0)
        (void)unlink(path);
    return file;
}

static sl_status open_file(const char *what, int *out)
{
    const char *chosen = getenv("TMPDIR");
    const char *const directories[] = {chosen && *chosen ? chosen : "/var/tmp", "/tmp"};
    int file = open_unnamed(directories[0]);
    if (file < 0 && !(chosen && *chosen))
        file = open_unnamed(directories[1]);
    *out = file >= 0 && file < LEAST_DESCRIPTOR ? fcntl(file, F_DUPFD_CLOEXEC, LEAST_DESCRIPTOR)
                                                : file;
    if (*out != file && file >= 0)
        close(file);
    if (*out >= 0)
        return SL_OK;
    return sl_error(SL_ERR_IO,
                    "%s: no file for %s that may not fit in memory can be made there: %s "
                    "(TMPDIR names another directory)",
                    directories[0], what, strerror(errno));
}

/* Gives the file so many bytes of the disk, so that no write to the mapping can fail for want of
 * them, and maps them. */
static sl_status map_file(int file, size_t bytes, const char *what, void **out)
{
    char text[SLI_BYTES_TEXT_SIZE];
    int error = posix_fallocate(file, 0, (off_t)bytes);
    if (error != 0)
        return sl_error(SL_ERR_IO,
                        "%s that may not fit in memory need a file of %s in the directory that "
                        "TMPDIR names, else /var/tmp: %s",
                        what, sli_bytes_text((int64_t)bytes, text), strerror(error));
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return *out != MAP_FAILED ? SL_OK : sli_no_memory(NULL, "a mapping of %zu bytes", bytes);
}

static size_t whole_steps(size_t bytes)
{
    return (bytes + STEP - 1) / STEP * STEP;
}

/* What is in memory becomes a file. */
static sl_status move_to_file(sli_large_array *array, size_t bytes, const char *what)
{
    void *mapped = NULL;
    int file = 0;
    SL_TRY(open_file(what, &file));
    sl_status status = map_file(file, bytes, what, &mapped);
    if (status != SL_OK) {
        close(file);
        return status;
    }
    if (array->bytes > 0)
        memcpy(mapped, array->data, array->bytes);
    free(array->data);
    *array = (sli_large_array){.data = mapped, .bytes = bytes, .is_mapped = true, .file = file};
    return SL_OK;
}

/* The new mapping stands before the old one goes, so that an error leaves that. */
static sl_status grow_file(sli_large_array *array, size_t bytes, const char *what)
{
    void *mapped;
    SL_TRY(map_file(array->file, bytes, what, &mapped));
    munmap(array->data, array->bytes);
    array->data = mapped;
    array->bytes = bytes;
    return SL_OK;
}

static sl_status grow_memory(sli_large_array *array, size_t bytes, const char *what)
{
    size_t room = array->bytes <= SLI_LARGE_BYTES / 2 ? 2 * array->bytes : SLI_LARGE_BYTES;
    room = room > bytes ? room : bytes;
    void *grown = realloc(array->data, room);
    if (!grown)
        return sli_no_memory(NULL, "%zu bytes of %s", room, what);
    array->data = grown;
    array->bytes = room;
    return SL_OK;
}

sl_status sli_large_array_reserve(sli_large_array *array, size_t bytes, const char *what)
{
    if (bytes <= array->bytes)
        return SL_OK;
    if (bytes > SIZE_MAX / 4)
        return sli_no_memory(NULL, "%zu bytes of %s", bytes, what);
    if (bytes <= SLI_LARGE_BYTES)
        return grow_memory(array, bytes, what);
    size_t room = array->bytes + array->bytes / 4;
    room = whole_steps(room > bytes ? room : bytes);
    return array->is_mapped ? grow_file(array, room, what) : move_to_file(array, room, what);
}

static void trim_file(sli_large_array *array, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), kept = (bytes + page - 1) / page * page;
    if (kept < array->bytes && ftruncate(array->file, (off_t)kept) == 0) {
        munmap((char *)array->data + kept, array->bytes - kept);
        array->bytes = kept;
    }
    close(array->file);
    array->file = 0;
}

void sli_large_array_finish(sli_large_array *array, size_t bytes)
{
    if (array->is_mapped) {
        trim_file(array, bytes + (bytes == 0));
        return;
    }
    void *fitting = array->data ? realloc(array->data, bytes + (bytes == 0)) : NULL;
    if (fitting)
        *array = (sli_large_array){.data = fitting, .bytes = bytes + (bytes == 0)};
}

void sli_large_array_free(sli_large_array *array)
{
    if (array->is_mapped)
        munmap(array->data, array->bytes);
    else
        free(array->data);
    if (array->file > 0)
        close(array->file);
    *array = (sli_large_array){0};
}
