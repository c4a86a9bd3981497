/* Training a byte-level BPE: what is asked for, and the directory that it becomes. */
#include "text/bpe_train.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char tokenizer_name[] = "tokenizer.json", settings_name[] = "tokenizer_config.json";
static const char mark[] = "trained_by"; /* its member that tells a directory of our own */

enum { MOST_SETTINGS = 1 << 20 };

/* ---- What is asked for -------------------------------------------------------------------- */

static sl_status check_special(const sl_bpe_training *training, int index)
{
    const char *text = training->special[index];
    size_t bytes = strlen(text), printable = 0;
    while (text[printable] > ' ' && text[printable] <= '~')
        printable++;
    if (bytes < 2 || bytes > SLI_BPE_MOST_TOKEN_BYTES || printable < bytes)
        return sl_error(SL_ERR_INVALID,
                        "a special token must be 2 to %d printable ASCII characters without "
                        "blanks, got \"%s\"",
                        SLI_BPE_MOST_TOKEN_BYTES, text);
    for (int i = 0; i < index; i++)
        if (strcmp(training->special[i], text) == 0)
            return sl_error(SL_ERR_INVALID, "special tokens must differ, but \"%s\" comes twice",
                            text);
    return SL_OK;
}

static sl_status check_training(const sl_bpe_training *training, int files,
                                const sli_splitter **split)
{
    const char *splitter = training->splitter ? training->splitter : "gpt2";
    *split = sli_splitter_find(splitter);
    if (!*split)
        return sl_error(SL_ERR_INVALID, "a splitter is one of %s, got \"%s\"", sli_splitter_names,
                        splitter);
    for (int i = 0; i < training->special_count; i++)
        SL_TRY(check_special(training, i));
    if (training->vocab_size < 256 + training->special_count)
        return sl_error(SL_ERR_INVALID,
                        "a vocabulary must have at least %d tokens, of the 256 bytes and the "
                        "special tokens, got %d",
                        256 + training->special_count, training->vocab_size);
    if (files < 1)
        return sl_error(SL_ERR_INVALID, "a tokenizer must be trained on at least one file");
    return SL_OK;
}

/* ---- tokenizer_config.json ---------------------------------------------------------------- */

/* What transformers asks for besides tokenizer.json. */
static sl_status print_settings(const sl_bpe_training *training, char **text)
{
    const char *end = training->special_count > 0 ? training->special[0] : NULL;
    json_t *json = json_pack("{sb sb ss ss ss*}", "add_prefix_space", false,
                             "clean_up_tokenization_spaces", false, "tokenizer_class",
                             "PreTrainedTokenizerFast", mark, "sluice", "eos_token", end);
    *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    json_decref(json);
    return *text ? SL_OK : sli_no_memory(NULL, "a tokenizer's settings");
}

/* ---- Training ----------------------------------------------------------------------------- */

sl_status sli_bpe_train(const char *const *paths, int count, const sl_bpe_training *training,
                        sl_vocab **out, sl_bpe_trained *result)
{
    const sli_splitter *split;
    sli_pieces pieces;
    sli_bpe *bpe = NULL;
    *out = NULL;
    *result = (sl_bpe_trained){0};
    SL_TRY(check_training(training, count, &split));
    sl_status status;
    SL_TRY_OR_FAIL(sli_pieces_init(&pieces));
    for (int i = 0; i < count; i++) {
        int64_t invalid = 0;
        SL_TRY_OR_FAIL(sli_pieces_count(&pieces, split, paths[i], &invalid));
        result->invalid_bytes += invalid;
    }
    SL_TRY_OR_FAIL(sli_bpe_learn(&pieces, training, split, &bpe));
    SL_TRY_OR_FAIL(sli_vocab_of_bpe(bpe, out));
    SL_TRY_OR_FAIL(print_settings(training, &(*out)->settings));
    result->vocab_size = sl_vocab_size(*out);
    result->different_words = pieces.table.count;

fail:
    sli_pieces_free(&pieces);
    if (status != SL_OK)
        sl_vocab_destroy(out);
    return status;
}

/* ---- The directory ------------------------------------------------------------------------ */

static bool is_ours(void *context, const char *name)
{
    *(int *)context += 1;
    return strcmp(name, tokenizer_name) == 0 || strcmp(name, settings_name) == 0;
}

/* Whether tokenizer_config.json has the mark. */
static bool is_marked(const char *directory)
{
    char *path, *text = NULL;
    size_t bytes;
    if (sli_path_join(directory, settings_name, &path) != SL_OK)
        return false;
    sl_status status = sli_file_read(path, MOST_SETTINGS, &text, &bytes);
    json_t *json = status == SL_OK ? json_loadb(text, bytes, 0, NULL) : NULL;
    const char *marked = json_string_value(json_object_get(json, mark));
    bool result = marked && strcmp(marked, "sluice") == 0;
    json_decref(json);
    free(text);
    free(path);
    return result;
}

static sl_status check_directory(const char *directory)
{
    struct stat found;
    int entries = 0;
    if (lstat(directory, &found) != 0)
        return errno == ENOENT ? SL_OK : sli_io_error(directory, "cannot be examined");
    int descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool has_others = descriptor < 0 || !sli_directory_walk(descriptor, is_ours, &entries);
    if (descriptor >= 0)
        close(descriptor);
    if (has_others || (entries > 0 && !is_marked(directory)))
        return sl_error(SL_ERR_INVALID,
                        "%s: it exists and is not a tokenizer that sluice trained, with nothing "
                        "else beside it: move it away, or write elsewhere",
                        directory);
    return SL_OK;
}

static sl_status write_text(const char *directory, const char *name, const char *text)
{
    char *path;
    SL_TRY(sli_path_join(directory, name, &path));
    sl_status status = sli_file_write(path, text, strlen(text));
    free(path);
    return status;
}

static sl_status write_directory(const sl_vocab *vocab, const char *directory)
{
    char *text;
    sli_replace_directory *writing = NULL;
    SL_TRY(sl_error_context(sli_vocab_print(vocab, &text), "%s: ", directory));
    sl_status status;
    SL_TRY_OR_FAIL(sli_replace_directory_create(directory, &writing));
    const char *temporary = sli_replace_directory_temporary(writing);
    SL_TRY_OR_FAIL(write_text(temporary, tokenizer_name, text));
    SL_TRY_OR_FAIL(write_text(temporary, settings_name, vocab->settings));
    SL_TRY_OR_FAIL(check_directory(directory)); /* what may have come there meanwhile */
    status = sli_replace_directory_commit(writing, false);

fail:
    sli_replace_directory_destroy(&writing);
    free(text);
    return status;
}

sl_status sl_bpe_train(const char *const *paths, int count, const sl_bpe_training *training,
                       const char *directory, sl_bpe_trained *result)
{
    sl_bpe_trained trained;
    char *followed;
    sl_vocab *vocab = NULL;
    SL_TRY(sli_path_follow(directory, &followed));
    sl_status status;
    SL_TRY_OR_FAIL(check_directory(followed));
    SL_TRY_OR_FAIL(sli_bpe_train(paths, count, training, &vocab, &trained));
    SL_TRY_OR_FAIL(write_directory(vocab, followed));
    if (result)
        *result = trained;

fail:
    sl_vocab_destroy(&vocab);
    free(followed);
    return status;
}
