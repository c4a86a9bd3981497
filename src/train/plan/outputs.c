/* Files that a caller writes beside a run: they must not be files that the run reads. */
#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"
#include "io/checkpoint/format.h"
#include "models/lora.h"
#include "train/checkpoint/checkpoints.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Whether writing `output` would overwrite the file `path`: both lead to one regular file, which
 * need not exist. Devices and pipes are not overwritten. */
static bool overwrites(const char *output, const char *path)
{
    struct stat found;
    if (!output || !path || (stat(output, &found) == 0 && !S_ISREG(found.st_mode)))
        return false;
    return sli_path_same_file(output, path);
}

static sl_status check_input(const char *output, const char *input)
{
    if (!overwrites(output, input))
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s is an input and must not be overwritten", input);
}

/* A table that is a file, by its path. */
static sl_status check_table(const char *output, const sl_train_options *options)
{
    const char *schedule = options->schedule ? options->schedule : sl_schedule_names[0];
    return sl_schedule_has_name(schedule) ? SL_OK : check_input(output, schedule);
}

/* Texts that cannot be found are refused where they are read, and so are weights. */
static sl_status check_texts(const char *output, const char *directory)
{
    for (int split = 0; split < SL_SPLITS; split++) {
        char *path;
        if (sl_split_path(directory, (sl_split)split, &path) != SL_OK)
            continue;
        sl_status status = check_input(output, path);
        free(path);
        SL_TRY(status);
    }
    return SL_OK;
}

static sl_status check_data(const char *output, const char *data)
{
    sl_sources sources;
    sl_status status = SL_OK;
    if (sl_sources_parse(data, &sources) != SL_OK) /* which is said where it is read */
        return SL_OK;
    for (int i = 0; i < sources.count && status == SL_OK; i++)
        status = check_texts(output, sources.source[i].path);
    sl_sources_free(&sources);
    return status;
}

static sl_status check_file(const char *output, const sl_checkpoint_reader *model, size_t index)
{
    char *path;
    SL_TRY(sli_checkpoint_file_path(model, index, &path));
    sl_status status = check_input(output, path);
    free(path);
    return status;
}

/* *base, malloc'ed, is the model that a checkpoint's adapters belong to; NULL: it has none. */
static sl_status check_files(const char *output, const char *init, char **base)
{
    char checksum[SLI_BASE_CHECKSUM_BYTES];
    sl_checkpoint_reader *model;
    *base = NULL;
    SL_TRY(check_input(output, init));
    if (sli_checkpoint_open_config(init, &model) != SL_OK)
        return SL_OK;
    sl_status status = SL_OK;
    (void)sli_run_state_base(sl_checkpoint_state(model), base, checksum);
    for (size_t i = 0; i < sl_checkpoint_file_count(model); i++)
        SL_TRY_OR_FAIL(check_file(output, model, i));
fail:
    sl_checkpoint_close(&model);
    return status;
}

static sl_status check_model(const char *output, const char *init)
{
    char *base, *none = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(check_files(output, init, &base));
    if (base)
        status = check_files(output, base, &none);
fail:
    free(none);
    free(base);
    return status;
}

/* A directory of an adapter alone, or a checkpoint. */
static sl_status check_adapter(const char *output, const char *adapter)
{
    static const char *const names[] = {SLI_ADAPTER_CONFIG_FILE, SLI_ADAPTER_PART ".safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path;
        SL_TRY(sli_path_join(adapter, names[i], &path));
        sl_status status = check_input(output, path);
        free(path);
        SL_TRY(status);
    }
    return check_model(output, adapter);
}

/* The directory that holds the file of this name, links followed; NULL: that cannot be said, and is
 * said where the file is written. */
static char *holder_of(const char *path)
{
    char *followed;
    if (sli_path_follow(path, &followed) != SL_OK)
        return NULL;
    char *end = strrchr(followed, '/'),
         *holder = end ? strndup(followed, (size_t)(end - followed) + 1) : strdup(".");
    free(followed);
    return holder;
}

/* Nothing but checkpoints is written into the directory of checkpoints, and nothing into one of
 * them, whose files have checksums, or into a model's directory, which is replaced whole. */
static sl_status check_place(const char *path, const sl_train_options *options)
{
    const char *directory = options->checkpoints.directory;
    SL_TRY(sli_checkpoint_check_outside(path, true));
    char *holder = holder_of(path);
    if (!holder)
        return SL_OK;
    sl_status status = SL_OK;
    if (directory && (sli_path_same_file(path, directory) || sli_path_same_file(holder, directory)))
        status = sl_error(SL_ERR_INVALID, "%s would lie among the run's checkpoints, in %s", path,
                          directory);
    else if (options->save &&
             (sli_path_same_file(holder, options->save) || sli_path_same_file(path, options->save)))
        status = sl_error(SL_ERR_INVALID, "%s would lie in %s, which the run replaces", path,
                          options->save);
    free(holder);
    return status;
}

sl_status sl_train_check_output(const sl_train_options *options, const char *path)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(path);
    SL_TRY(check_place(path, options));
    SL_TRY(check_table(path, options));
    if (options->data)
        SL_TRY(check_data(path, options->data));
    if (options->adapter)
        SL_TRY(check_adapter(path, options->adapter));
    return options->init ? check_model(path, options->init) : SL_OK;
}

/* What is there already is looked at where the model is written. */
sl_status sli_train_check_save(const sl_train_options *options)
{
    const char *save = options->save, *directory = options->checkpoints.directory;
    if (!save)
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(check_place(save, &(sl_train_options){.checkpoints = {.directory = directory}}));
    if (directory)
        status = check_place(directory, &(sl_train_options){.save = save});
fail:
    return sl_error_context(status, "save: ");
}

static sl_status write_stream(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    bool is_written = file && fputs(text, file) >= 0;
    if (file && fclose(file) != 0)
        is_written = false;
    return is_written ? SL_OK
                      : sl_error(SL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

sl_status sl_train_write_output(const char *path, const char *text)
{
    struct stat found;
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode))
        return write_stream(path, text);
    return sli_file_write(path, text, strlen(text));
}
