/* Files that a run writes must not be files that it reads. */
#include "core/error.h"
#include "core/file.h"
#include "io/checkpoint/format.h"
#include "train/loop/run.h"

#include <limits.h>
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
    sl_status status = SL_OK;
    for (int split = 0; split < SL_SPLITS && status == SL_OK; split++) {
        char *path;
        if (sl_split_path(directory, (sl_split)split, &path) != SL_OK)
            continue;
        status = check_input(output, path);
        free(path);
    }
    return status;
}

static sl_status check_weights(const char *output, const char *init)
{
    char *vocab;
    sl_checkpoint_reader *weights;
    SL_TRY(check_input(output, init));
    SL_TRY(sl_weights_vocab_path(init, &vocab));
    sl_status status = check_input(output, vocab);
    free(vocab);
    if (status != SL_OK || sli_checkpoint_open_model(init, &weights) != SL_OK)
        return status;
    for (size_t i = 0; i < weights->state.count && status == SL_OK; i++)
        if (sli_checkpoint_has_tensors(weights, i, SLI_MODEL_PART))
            status = check_input(output, weights->files[i].reader->path);
    sl_checkpoint_close(&weights);
    return status;
}

/* Nothing but checkpoints is written into the directory of checkpoints, and nothing into one of
 * them, whose files have checksums. */
static sl_status check_place(const char *path, const sl_train_options *options)
{
    const char *directory = options->checkpoints.directory;
    char *followed;
    SL_TRY(sli_checkpoint_check_outside(path, true));
    if (!directory || sli_path_follow(path, &followed) != SL_OK)
        return SL_OK; /* said where it is written */
    char *end = strrchr(followed, '/');
    if (end)
        end[1] = '\0';
    bool is_among =
        sli_path_same_file(path, directory) || sli_path_same_file(end ? followed : ".", directory);
    free(followed);
    return is_among ? sl_error(SL_ERR_INVALID, "%s would lie among the run's checkpoints, in %s",
                               path, directory)
                    : SL_OK;
}

sl_status sl_train_check_output(const sl_train_options *options, const char *path)
{
    char *vocab = NULL;
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(path);
    SL_TRY(check_place(path, options));
    SL_TRY(check_table(path, options));
    if (options->data)
        SL_TRY(check_texts(path, options->data));
    if (options->init)
        SL_TRY(check_weights(path, options->init));
    if (options->save)
        SL_TRY(sl_weights_vocab_path(options->save, &vocab));
    bool is_written = overwrites(path, options->save) || overwrites(path, vocab);
    free(vocab);
    return is_written ? sl_error(SL_ERR_INVALID, "%s is written by the run itself", path) : SL_OK;
}

/* The file system takes so long a name, with what is added to it while it is written. */
static sl_status check_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strlen(name) + sizeof ".new" - 1 <= NAME_MAX)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: a name of at most %d bytes was expected, got %zu: a file beside it needs "
                    "the others",
                    path, NAME_MAX - (int)(sizeof ".new" - 1), strlen(name));
}

sl_status sli_train_check_save(const sl_train_options *options)
{
    char *vocab;
    if (!options->save)
        return SL_OK;
    SL_TRY(sl_weights_vocab_path(options->save, &vocab));
    const char *const outputs[] = {options->save, vocab};
    sl_status status = SL_OK;
    for (int i = 0; i < 2 && status == SL_OK; i++) {
        status = check_place(outputs[i], options);
        if (status == SL_OK)
            status = check_name(outputs[i]);
        if (status == SL_OK)
            status = check_table(outputs[i], options);
        if (status == SL_OK)
            status = check_texts(outputs[i], options->data);
    }
    free(vocab);
    return sl_error_context(status, "save: ");
}
