#include "report/follower.h"

#include "core/error.h"
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
    return sl_error(SL_ERR_MEMORY, "%s: no memory to read the log", path);
}

void sli_follower_clear(sli_follower *follower)
{
    sl_run_history_destroy(&follower->history);
    free(follower->room);
    follower->room = NULL;
}

/* Where the file is not the one that was read. */
static sl_status begin_again(sli_follower *follower, ino_t inode, bool *changed)
{
    sl_run_history *empty;
    SL_TRY(sli_run_history_create(follower->name, &empty));
    sl_run_history_destroy(&follower->history);
    follower->history = empty;
    follower->inode = inode;
    *changed = *changed || follower->offset > 0;
    follower->offset = 0;
    return SL_OK;
}

/* Whether the file may still be the one that was read: the last line's end is where it was. */
static bool is_same_log(const sli_follower *follower, int descriptor, uint64_t size)
{
    char last = '\0';
    return follower->offset > 0 && size >= follower->offset &&
           pread(descriptor, &last, 1, (off_t)follower->offset - 1) == 1 && last == '\n';
}

static sl_status add_lines(sli_follower *follower, int descriptor, uint64_t size, bool *changed)
{
    size_t used = 1;
    while (used > 0 && follower->offset < size) {
        uint64_t left = size - follower->offset;
        size_t bytes = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        if (sli_file_read_at(follower->path, descriptor, follower->offset, follower->room, bytes) !=
            SL_OK)
            return SL_OK; /* it is being cut */
        SL_TRY(sli_run_history_add(follower->history, follower->room, bytes, &used));
        follower->offset += used;
        *changed = *changed || used > 0;
    }
    return SL_OK;
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
        status = sli_io_error(follower->path, "cannot be examined");
    else if (found.st_ino != follower->inode || !is_same_log(follower, descriptor, size))
        status = begin_again(follower, found.st_ino, changed);
    if (status == SL_OK && size > SLI_LOG_MOST_BYTES)
        status = sl_error(SL_ERR_FORMAT, "%s: has more than the %d bytes allowed", follower->path,
                          SLI_LOG_MOST_BYTES);
    if (status == SL_OK)
        status = add_lines(follower, descriptor, size, changed);
    close(descriptor);
    return status;
}
