#define _GNU_SOURCE /* O_TMPFILE, mkostemp */

#include "core/large_array.h"
#include "core/error.h"
#include "core/memory.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LEAST_DESCRIPTOR = 3, STEP = 1 << 24 }; /* bytes by which files grow, and a quarter */

/* Why an array is in no file of a directory. */
typedef struct file_failure {
    const char *directory;
    int error;
} file_failure;

int sli_open_unlinked(const char *directory)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/sluice-XXXXXX", directory) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int file = mkostemp(path, O_CLOEXEC);
    if (file >= 0)
        (void)unlink(path);
    return file;
}

/* A file of the directory without a name; -1, with errno: none can be made there. */
static int open_unnamed(const char *directory)
{
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
    if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR))
        file = sli_open_unlinked(directory);
    if (file < 0 || file >= LEAST_DESCRIPTOR)
        return file;
    int moved = fcntl(file, F_DUPFD_CLOEXEC, LEAST_DESCRIPTOR), error = errno;
    close(file);
    errno = error;
    return moved;
}

/* Gives a file of `before` bytes so many of the disk, so that no write to the mapping can fail for
 * want of them, and maps them. The number of an error, or 0. */
static int map_file(int file, size_t before, size_t bytes, void **out)
{
    int error = posix_fallocate(file, (off_t)before, (off_t)(bytes - before));
    if (error != 0)
        return error;
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return *out != MAP_FAILED ? 0 : errno;
}

static size_t whole_steps(size_t bytes)
{
    return (bytes + STEP - 1) / STEP * STEP;
}

/* What is in the array goes to another one. */
static void move(sli_large_array *array, const sli_large_array *room)
{
    if (array->bytes > 0)
        memcpy(room->data, array->data, array->bytes);
    sli_large_array_free(array);
    *array = *room;
}

static int move_to_directory(sli_large_array *array, size_t bytes, const char *directory)
{
    void *mapped;
    int file = open_unnamed(directory);
    if (file < 0)
        return errno;
    int error = map_file(file, 0, bytes, &mapped);
    if (error != 0) {
        close(file);
        return error;
    }
    move(array,
         &(sli_large_array){.data = mapped, .bytes = bytes, .is_mapped = true, .file = file});
    return 0;
}

/* In the first directory that has room; the failure is that of the last one. */
static bool move_to_file(sli_large_array *array, size_t bytes, file_failure *failure)
{
    const char *chosen = getenv("TMPDIR");
    bool is_chosen = chosen && *chosen;
    const char *const directories[] = {is_chosen ? chosen : "/var/tmp", is_chosen ? NULL : "/tmp"};
    for (int i = 0; i < 2 && directories[i]; i++) {
        *failure = (file_failure){directories[i], move_to_directory(array, bytes, directories[i])};
        if (failure->error == 0)
            return true;
    }
    return false;
}

/* The larger mapping stands before the smaller one goes, so that an error leaves that. */
static bool grow_file(sli_large_array *array, size_t bytes)
{
    void *mapped;
    if (map_file(array->file, array->bytes, bytes, &mapped) != 0)
        return false;
    munmap(array->data, array->bytes);
    array->data = mapped;
    array->bytes = bytes;
    return true;
}

static bool grow_memory(sli_large_array *array, size_t bytes)
{
    void *grown = array->is_mapped ? malloc(bytes) : realloc(array->data, bytes);
    if (grown && array->is_mapped) {
        move(array, &(sli_large_array){.data = grown, .bytes = bytes});
    } else if (grown) {
        array->data = grown;
        array->bytes = bytes;
    }
    return grown;
}

/* In a file if there can be one, else in memory, as if it were small. */
static sl_status grow_large(sli_large_array *array, size_t bytes, const char *what)
{
    char text[SLI_BYTES_TEXT_SIZE];
    file_failure failure = {0};
    if ((array->is_mapped && grow_file(array, bytes)) || move_to_file(array, bytes, &failure) ||
        grow_memory(array, bytes))
        return SL_OK;
    return sl_error(SL_ERR_MEMORY,
                    "%s of %s have room neither in a file in %s (%s) nor in memory: set TMPDIR to "
                    "a directory with room",
                    sli_bytes_text((int64_t)bytes, text), what, failure.directory,
                    strerror(failure.error));
}

static sl_status grow_small(sli_large_array *array, size_t bytes, const char *what)
{
    size_t room = array->bytes <= SLI_LARGE_BYTES / 2 ? 2 * array->bytes : SLI_LARGE_BYTES;
    room = room > bytes ? room : bytes;
    return grow_memory(array, room) ? SL_OK : sli_no_memory(NULL, "%zu bytes of %s", room, what);
}

sl_status sli_large_array_reserve(sli_large_array *array, size_t bytes, const char *what)
{
    if (bytes <= array->bytes)
        return SL_OK;
    assert(!array->is_mapped || array->file > 0); /* else it is finished */
    if (bytes > SIZE_MAX / 4)
        return sli_no_memory(NULL, "%zu bytes of %s", bytes, what);
    if (bytes <= SLI_LARGE_BYTES)
        return grow_small(array, bytes, what);
    size_t room = array->bytes + array->bytes / 4;
    return grow_large(array, whole_steps(room > bytes ? room : bytes), what);
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
