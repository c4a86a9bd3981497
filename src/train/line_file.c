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
    out->path = path;
    out->created = access(path, F_OK) != 0;
    out->descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    return out->descriptor < 0 ? failed() : SL_OK;
}

void sli_line_file_close(const sli_line_file *file)
{
    close(file->descriptor);
}

/* Its size; -1: it is no regular file, and has none. */
static off_t size_of(const sli_line_file *file)
{
    struct stat what;
    return fstat(file->descriptor, &what) == 0 && S_ISREG(what.st_mode) ? what.st_size : -1;
}

sl_status sli_line_file_empty(const sli_line_file *file)
{
    if (size_of(file) > 0 && ftruncate(file->descriptor, 0) != 0)
        return failed();
    return SL_OK;
}

sl_status sli_line_file_end_last(const sli_line_file *file)
{
    char last = '\n';
    off_t size = size_of(file);
    int reader = size > 0 ? open(file->path, O_RDONLY | O_CLOEXEC) : -1;
    if (reader < 0)
        return SL_OK;
    ssize_t count = pread(reader, &last, 1, size - 1);
    close(reader);
    return count != 1 || last == '\n' ? SL_OK : sli_line_file_add(file, "\n", 1);
}

sl_status sli_line_file_add(const sli_line_file *file, const char *line, size_t bytes)
{
    off_t before = size_of(file);
    for (size_t done = 0; done < bytes;) {
        ssize_t count = write(file->descriptor, line + done, bytes - done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0) {
            sl_status status = failed();
            if (before >= 0 && done > 0 && ftruncate(file->descriptor, before) != 0)
                return failed();
            return status;
        }
        done += (size_t)count;
    }
    return SL_OK;
}
