#include "cli/run_files.h"

#include "core/file.h"
#include "io/safetensors/set.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file that is written, and the option that says so. */
typedef struct output {
    const char *option, *path; /* path NULL: none */
} output;

/* Under whatever names. What is no regular file cannot be replaced. */
static bool is_same(const char *a, const char *b)
{
    struct stat found;
    if (stat(a, &found) == 0 && !S_ISREG(found.st_mode))
        return false;
    return sli_path_same_file(a, b);
}

static sl_status check_not_read(output to, const char *path)
{
    if (to.path && is_same(to.path, path))
        return sl_error(SL_ERR_INVALID, "%s would overwrite %s, which is read", to.option, path);
    return SL_OK;
}

static sl_status check_different(output a, output b)
{
    if (a.path && b.path && is_same(a.path, b.path))
        return sl_error(SL_ERR_INVALID, "%s and %s would both write %s", a.option, b.option,
                        a.path);
    return SL_OK;
}

/* Texts that cannot be found are refused where they are read. */
static sl_status check_not_text(output to, const char *directory)
{
    sl_status status = SL_OK;
    for (int split = 0; split < SL_SPLITS && status == SL_OK; split++) {
        char *path;
        if (sl_split_path(directory, (sl_split)split, &path) != SL_OK)
            continue;
        status = check_not_read(to, path);
        free(path);
    }
    return status;
}

static sl_status check_not_init(output to, const char *init)
{
    char *vocab;
    sli_safetensors_set *weights;
    SL_TRY(check_not_read(to, init));
    SL_TRY(sl_weights_vocab_path(init, &vocab));
    sl_status status = check_not_read(to, vocab);
    free(vocab);
    SL_TRY(status);
    if (sli_safetensors_set_open(init, &weights) != SL_OK)
        return SL_OK; /* refused where they are read */
    for (size_t i = 0; i < sli_safetensors_set_files(weights) && status == SL_OK; i++)
        status = check_not_read(to, sli_safetensors_set_file(weights, i));
    sli_safetensors_set_close(&weights);
    return status;
}

sl_status cli_check_vocab_file(const char *vocab, const char *directory)
{
    return check_not_text((output){"--vocab", vocab}, directory);
}

sl_status cli_check_logits_file(const char *logits, const char *init, const char *directory)
{
    const output to = {"--logits", logits};
    SL_TRY(check_not_text(to, directory));
    return check_not_init(to, init);
}

sl_status cli_check_train_files(const sl_train_options *options, const char *log_json,
                                const char *config)
{
    char *vocab_path = NULL;
    if (options->save)
        SL_TRY(sl_weights_vocab_path(options->save, &vocab_path));
    const output weights = {"--save", options->save}, log = {"--log-json", log_json},
                 vocab = {"the vocabulary beside --save", vocab_path};
    const output all[] = {weights, vocab, log};
    sl_status status = SL_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == SL_OK; i++)
        status = check_not_text(all[i], options->data);
    for (size_t i = 0; config && i < sizeof all / sizeof *all && status == SL_OK; i++)
        status = check_not_read(all[i], config);
    if (status == SL_OK && options->init && log_json)
        status = check_not_init(log, options->init);
    if (status == SL_OK)
        status = check_different(log, weights);
    if (status == SL_OK)
        status = check_different(log, vocab);
    free(vocab_path);
    return status;
}
