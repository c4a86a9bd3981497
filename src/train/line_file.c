#include "train/line_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_status failed(void)
{
    return sl_error(SL_ERR_IO, "%s", strerror(errno));
}

sl_status sli_line_file_open(const char *path, sli_line_file *out)
{
    *out = (sli_line_file){.path = path, .created = access(path, F_OK) != 0};
    out->descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    return out->descriptor < 0 ? failed() : SL_OK;
}

void sli_line_file_close(const sli_line_file *file)
{
    close(file->descriptor);
}

sl_status sli_line_file_empty(sli_line_file *file)
{
    struct stat what;
    if (fstat(file->descriptor, &what) != 0 ||
        (S_ISREG(what.st_mode) && ftruncate(file->descriptor, 0) != 0))
        return failed();
    file->cut = false;
    return SL_OK;
}

/* -1: it is no regular file, and has none. */
static off_t size_of(const sli_line_file *file)
{
    struct stat what;
    return fstat(file->descriptor, &what) == 0 && S_ISREG(what.st_mode) ? what.st_size : -1;
}

void sli_line_file_continue(sli_line_file *file)
{
    char last = '\n';
    off_t size = size_of(file);
    int reader = size > 0 ? open(file->path, O_RDONLY | O_CLOEXEC) : -1;
    if (reader < 0)
        return;
    file->cut = pread(reader, &last, 1, size - 1) == 1 && last != '\n';
    close(reader);
}

/* How many of them; errno says why not all. */
static size_t write_all(const sli_line_file *file, const char *text, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t count = write(file->descriptor, text + done, bytes - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            break;
        done += (size_t)count;
    }
    return done;
}

sl_status sli_line_file_add(sli_line_file *file, const char *line, size_t bytes)
{
    if (file->cut && write_all(file, "\n", 1) != 1)
        return failed();
    file->cut = false;
    off_t before = size_of(file);
    size_t done = write_all(file, line, bytes);
    if (done == bytes)
        return SL_OK;
    sl_status status = failed();
    file->cut = done > 0 && (before < 0 || ftruncate(file->descriptor, before) != 0);
    return status;
}
