#include "report/run_file.h"

#include "core/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

sl_status sli_run_file_create(const char *path, sl_reporter_failed *failed, void *context,
                              sl_reporter reporter, sl_run_file **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(path);
    sl_run_file *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a file of the run", path);
    }
    file->failed = failed;
    file->context = context;
    file->reporter = reporter;
    file->reporter.context = file;
    *out = file;
    return SL_OK;
}

static sl_status cannot_write(const char *path)
{
    return sl_error(SL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

sl_status sli_run_file_open(sl_run_file *file, const char *path)
{
    file->file = fopen(path, "we");
    return file->file ? SL_OK : cannot_write(path);
}

sl_status sli_run_file_flush(sl_run_file *file)
{
    bool whole = !ferror(file->file);
    if (fflush(file->file) == 0 && whole)
        return SL_OK;
    sl_status status = cannot_write(file->path);
    (void)fclose(file->file);
    file->file = NULL;
    if (!file->failed)
        return status;
    file->failed(file->context, sl_error_text());
    return SL_OK;
}

void sl_run_file_destroy(sl_run_file **file)
{
    if (!file || !*file)
        return;
    if ((*file)->file)
        (void)fclose((*file)->file); /* flushed after its last record */
    free((*file)->path);
    free(*file);
    *file = NULL;
}

sl_reporter sl_run_file_reporter(const sl_run_file *file)
{
    return file->reporter;
}
