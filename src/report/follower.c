#include "report/follower.h"

#include "core/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 21 }; /* more than a line may have */

sl_status sli_follower_create(const char *path, const char *name, sli_follower *out)
{
    *out = (sli_follower){.path = path, .name = name};
    SL_TRY(sli_run_history_create(name, &out->history));
    out->room = malloc(CHUNK_BYTES);
    if (out->room)
        return SL_OK;
    sli_follower_clear(out);
    return sli_no_memory(path, "reading the log");
}

void sli_follower_clear(sli_follower *follower)
{
    sli_run_history_destroy(&follower->history);
    free(follower->room);
    follower->room = NULL;
}

/* Where the file is not the one that was read. */
static sl_status begin_again(sli_follower *follower, ino_t inode, bool *changed)
{
    sli_run_history *empty;
    SL_TRY(sli_run_history_create(follower->name, &empty));
    empty->most_records = follower->history->most_records;
    empty->added = follower->history->added;
    empty->added_context = follower->history->added_context;
    *changed = *changed || follower->error.status != SL_OK;
    follower->error = (sli_error_copy){.status = SL_OK};
    sli_run_history_destroy(&follower->history);
    follower->history = empty;
    follower->inode = inode;
    *changed = *changed || follower->offset > 0;
    follower->offset = 0;
    return SL_OK;
}

/* How many bytes before the offset are compared. */
static size_t end_bytes(const sli_follower *follower)
{
    size_t most = sizeof follower->end;
    return follower->offset < most ? (size_t)follower->offset : most;
}

/* Whether the file may still be the one that was read: the last line is where it was. */
static bool is_same_log(const sli_follower *follower, int descriptor)
{
    char found[sizeof follower->end];
    size_t count = end_bytes(follower);
    return count > 0 &&
           pread(descriptor, found, count, (off_t)(follower->offset - count)) == (ssize_t)count &&
           memcmp(found, follower->end + sizeof found - count, count) == 0;
}

static void add_to_end(sli_follower *follower, const char *text, size_t bytes)
{
    size_t room = sizeof follower->end, added = bytes < room ? bytes : room;
    memmove(follower->end, follower->end + added, room - added);
    memcpy(follower->end + room - added, text + bytes - added, added);
}

/* Of several lines that are wrong, the first makes the error; the records after it are added. */
static sl_status add_lines(sli_follower *follower, int descriptor, uint64_t size, bool *changed)
{
    size_t used = 1;
    sli_error_copy first = {.status = SL_OK};
    while (used > 0 && follower->offset < size) {
        uint64_t left = size - follower->offset;
        size_t bytes = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        if (sli_file_read_at(follower->path, descriptor, follower->offset, follower->room, bytes) !=
            SL_OK)
            break; /* it is being cut */
        sl_status status = sli_run_history_add(follower->history, follower->room, bytes, &used);
        if (first.status == SL_OK)
            sli_error_save(&first, status);
        add_to_end(follower, follower->room, used);
        follower->offset += used;
        *changed = *changed || used > 0;
    }
    if (first.status != SL_OK)
        follower->error = first;
    return sli_error_restore(&first);
}

sl_status sli_follower_update(sli_follower *follower, bool *changed)
{
    int descriptor;
    uint64_t size;
    struct stat found;
    *changed = false;
    sl_status status = sli_file_open(follower->path, &descriptor, &size);
    if (status != SL_OK)
        return follower->inode ? SL_OK : status;
    if (fstat(descriptor, &found) != 0)
        SL_TRY_OR_FAIL(sli_io_error(follower->path, "cannot be examined"));
    if (found.st_ino != follower->inode || !is_same_log(follower, descriptor))
        SL_TRY_OR_FAIL(begin_again(follower, found.st_ino, changed));
    status = add_lines(follower, descriptor, size, changed);
fail:
    close(descriptor);
    return status;
}

sl_status sli_run_history_read(const char *path, sli_run_history **out)
{
    sli_follower follower;
    bool changed;
    *out = NULL;
    SL_TRY(sli_follower_create(path, path, &follower));
    sl_status status;
    SL_TRY_OR_FAIL(sli_follower_update(&follower, &changed));
    SL_TRY_OR_FAIL(sli_run_history_check(follower.history));
    *out = follower.history;
    follower.history = NULL;
fail:
    sli_follower_clear(&follower);
    return status;
}
