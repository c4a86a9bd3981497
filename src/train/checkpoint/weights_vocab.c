/* The vocabulary that lies beside a weights file. The two are one thing in two files: the weights'
 * metadata have the vocabulary's checksum, and only the vocabulary with that checksum is theirs.
 *
 * Two files cannot be replaced in one step. So a save writes the new vocabulary beside the old one,
 *
 *     m.safetensors  m.vocab.txt                       an older pair
 *     m.safetensors  m.vocab.txt  m.vocab.txt.new      sli_weights_vocab_begin
 *     M.safetensors  m.vocab.txt  m.vocab.txt.new      the weights are replaced
 *     M.safetensors  M.vocab.txt                       sli_weights_vocab_end
 *
 * and at each of these moments the weights have their vocabulary beside them, under one name or the
 * other, where sl_weights_vocab finds it. */
#define _GNU_SOURCE /* asprintf */

#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"
#include "text/vocab.h"
#include "train/checkpoint/checkpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Names ------------------------------------------------------------------------------ */

static bool is_directory(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

/* The length of `path` without `ending`, or 0 where it ends otherwise or is nothing else. */
static size_t length_before(const char *path, const char *ending)
{
    size_t length = strlen(path), cut = strlen(ending);
    return length > cut && strcmp(path + length - cut, ending) == 0 ? length - cut : 0;
}

/* Where a vocabulary may be, in the order in which it is searched: one that waits for the end of a
 * save may get its name meanwhile. */
enum {
    WAITING,
    NAMED,
    PLAIN, /* PATH.vocab.txt, whatever PATH ends with */
    NAMES
};

/* Names without .safetensors get another ending, so that no two files of weights share one. */
static sl_status name_vocab_of(const char *path, int which, char **out)
{
    size_t length = strlen(path), before = length_before(path, ".safetensors");
    const char *ending = ".vocab";
    if (before == 0)
        before = length_before(path, ".safetensors.index.json");
    if (which == PLAIN) {
        ending = ".vocab.txt";
    } else if (is_directory(path)) {
        ending = "/model.vocab.txt";
    } else if (before > 0) {
        length = before;
        ending = ".vocab.txt";
    }
    if (asprintf(out, "%.*s%s%s", (int)length, path, ending, which == WAITING ? ".new" : "") >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "no memory for a path");
}

static sl_status name_vocab(const char *path, int which, char **out)
{
    char *found;
    *out = NULL;
    SL_TRY(sli_replace_directory_find(path, &found));
    sl_status status = name_vocab_of(found, which, out);
    free(found);
    return status;
}

sl_status sl_weights_vocab_path(const char *path, char **out)
{
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    return name_vocab(path, NAMED, out);
}

/* ---- Which one fits ---------------------------------------------------------------------- */

/* What the weights say of theirs; "" where they say nothing, or are not there. */
static sl_status read_checksum(const char *path, char checksum[SLI_CHECKSUM_BYTES])
{
    sl_checkpoint_reader *set;
    checksum[0] = '\0';
    sl_status status = sli_checkpoint_open_model(path, &set);
    if (status != SL_OK)
        return status == SL_ERR_NOT_FOUND ? SL_OK : status;
    const char *says = NULL;
    for (size_t i = 0; i < sl_checkpoint_file_count(set); i++)
        if (strcmp(sl_checkpoint_file_get(set, i)->name, "model.vocab.txt") == 0)
            says = sl_checkpoint_file_get(set, i)->checksum;
    if (!says)
        says = sli_model_metadata_vocab(set);
    if (says)
        snprintf(checksum, SLI_CHECKSUM_BYTES, "%s", says);
    sl_checkpoint_close(&set);
    return SL_OK;
}

static sl_status compare_checksum(const char *path, const char *checksum, const sl_vocab *vocab)
{
    char text[SLI_CHECKSUM_BYTES], quoted[SLI_QUOTE_BYTES];
    if (checksum[0] == '\0')
        return SL_OK;
    SL_TRY(sli_vocab_checksum(vocab, text));
    if (strcmp(text, checksum) == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "this vocabulary (checksum %s) is not the one that %s was saved with (%s): "
                    "put that one beside the weights",
                    text, path, sli_safetensors_quote(checksum, quoted));
}

static sl_status load_fitting(const char *path, int which, const char *checksum, sl_vocab **out)
{
    char *name;
    *out = NULL;
    SL_TRY(name_vocab(path, which, &name));
    sl_status status = sl_vocab_load(name, out);
    if (status == SL_OK)
        status = sl_error_context(compare_checksum(path, checksum, *out), "%s: ", name);
    if (status != SL_OK)
        sl_vocab_destroy(out);
    free(name);
    return status;
}

/* The first that fits, and which it is; NULL where there is none. Where others are there, what is
 * wrong with the first of them is the error. Weights that say nothing have one with a name. */
static sl_status find_fitting(const char *path, sl_vocab **out, int *which)
{
    char checksum[SLI_CHECKSUM_BYTES];
    sli_error_copy first = {.status = SL_OK};
    *out = NULL;
    SL_TRY(read_checksum(path, checksum));
    for (*which = checksum[0] ? WAITING : NAMED; *which < NAMES; ++*which) {
        sl_status status = load_fitting(path, *which, checksum, out);
        if (status == SL_OK || status == SL_ERR_MEMORY)
            return status;
        if (status != SL_ERR_NOT_FOUND && *which != WAITING && first.status == SL_OK)
            sli_error_save(&first, status);
    }
    return sli_error_restore(&first);
}

sl_status sl_weights_vocab(const char *path, sl_vocab **out)
{
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    int which;
    return find_fitting(path, out, &which);
}

sl_status sli_weights_vocab_check(const char *path, const sl_vocab *vocab)
{
    char checksum[SLI_CHECKSUM_BYTES];
    SL_TRY(read_checksum(path, checksum));
    return compare_checksum(path, checksum, vocab);
}

/* ---- Saving ----------------------------------------------------------------------------- */

static sl_status save_vocab(const char *path, int which, const sl_vocab *vocab)
{
    char *name;
    SL_TRY(name_vocab(path, which, &name));
    sl_status status = sl_vocab_save(vocab, name);
    free(name);
    return status;
}

/* Ends a save, however far it came: a vocabulary that waits gets its name where the weights are
 * those that it is for, and goes. */
static sl_status end_save(const char *path, const char *waiting)
{
    sl_vocab *vocab;
    int which;
    if (access(waiting, F_OK) != 0)
        return SL_OK;
    sl_status status = find_fitting(path, &vocab, &which);
    if (status == SL_ERR_IO || status == SL_ERR_MEMORY)
        return status;
    status = vocab && which == WAITING ? save_vocab(path, NAMED, vocab) : SL_OK;
    sl_vocab_destroy(&vocab);
    return status == SL_OK ? sli_directory_remove_path(waiting) : status;
}

sl_status sli_weights_vocab_end(const char *path)
{
    char *waiting;
    SL_TRY(name_vocab(path, WAITING, &waiting));
    sl_status status = end_save(path, waiting);
    free(waiting);
    return status;
}

sl_status sli_weights_vocab_begin(const char *path, const sl_vocab *vocab)
{
    char checksum[SLI_CHECKSUM_BYTES];
    sl_vocab *older;
    SL_TRY(sli_weights_vocab_end(path));
    SL_TRY(sli_vocab_checksum(vocab, checksum));
    bool same = load_fitting(path, NAMED, checksum, &older) == SL_OK;
    sl_vocab_destroy(&older);
    return same ? SL_OK : save_vocab(path, WAITING, vocab);
}
