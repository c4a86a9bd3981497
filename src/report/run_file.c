#include "report/run_file.h"

#include "core/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sl_status cannot_write(const char *path)
{
    return sl_error(SL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

sl_status sli_run_file_open(const char *path, sli_run_file *out)
{
    *out = (sli_run_file){.path = strdup(path)};
    if (!out->path)
        return sli_no_memory(path, "a file of the run");
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    out->is_new = fd >= 0;
    if (fd < 0 && errno == EEXIST)
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    out->file = fd >= 0 ? fdopen(fd, "r+") : NULL;
    if (out->file)
        return SL_OK;
    sl_status status = cannot_write(path);
    if (fd >= 0)
        close(fd);
    sli_run_file_close(out);
    return status;
}

sl_status sli_run_file_flush(sli_run_file *run_file)
{
    bool is_whole = !ferror(run_file->file);
    return fflush(run_file->file) == 0 && is_whole ? SL_OK : cannot_write(run_file->path);
}

void sli_run_file_close(sli_run_file *run_file)
{
    if (run_file->file)
        (void)fclose(run_file->file); /* flushed after its last record */
    if (run_file->is_new && !run_file->has_begun)
        (void)unlink(run_file->path);
    if (run_file->made_home && !run_file->has_begun) {
        *strrchr(run_file->path, '/') = '\0';
        (void)rmdir(run_file->path);
    }
    free(run_file->path);
    *run_file = (sli_run_file){.file = NULL};
}
