#define _GNU_SOURCE /* asprintf */

#include "train/checkpoint/weights_vocab.h"

#include "core/error.h"
#include "core/file.h"
#include "io/safetensors/format.h"
#include "io/safetensors/set.h"
#include "text/vocab.h"
#include "train/checkpoint/model_notes.h"

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

static sl_status join(const char *path, size_t length, const char *ending, char **out)
{
    if (asprintf(out, "%.*s%s", (int)length, path, ending) >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "no memory for a path");
}

/* Names without .safetensors get another ending, so that no two files of weights share one. */
sl_status sl_weights_vocab_path(const char *path, char **out)
{
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    size_t length = strlen(path), before = length_before(path, ".safetensors");
    if (is_directory(path))
        return join(path, length, "/model.vocab.txt", out);
    if (before == 0)
        before = length_before(path, ".safetensors.index.json");
    return before ? join(path, before, ".vocab.txt", out) : join(path, length, ".vocab", out);
}

/* Where a vocabulary may be, in the order in which it is looked for: one that waits may get its
 * name meanwhile. */
typedef enum where {
    WAITING, /* for the end of a save */
    NAMED,
    OLD, /* PATH.vocab.txt, whatever PATH ends with */
    WHERES
} where;

static sl_status find_name(const char *path, where at, char **out)
{
    char *named;
    if (at == OLD)
        return join(path, strlen(path), ".vocab.txt", out);
    SL_TRY(sl_weights_vocab_path(path, &named));
    sl_status status = join(named, strlen(named), at == WAITING ? ".new" : "", out);
    free(named);
    return status;
}

/* ---- Which one fits ---------------------------------------------------------------------- */

/* What the weights say of theirs; "" where they say nothing, or are not there. */
static sl_status read_checksum(const char *path, char checksum[SLI_CHECKSUM_BYTES])
{
    sli_safetensors_set *set;
    checksum[0] = '\0';
    sl_status status = sli_safetensors_set_open(path, &set);
    if (status != SL_OK)
        return status == SL_ERR_NOT_FOUND ? SL_OK : status;
    const char *says = sli_safetensors_set_checksum(set, "model.vocab.txt");
    if (!says)
        says = sli_model_notes_vocab(set);
    if (says)
        snprintf(checksum, SLI_CHECKSUM_BYTES, "%s", says);
    sli_safetensors_set_close(&set);
    return SL_OK;
}

static sl_status check(const char *path, const char *checksum, const sl_vocab *vocab)
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

static sl_status load(const char *path, const char *checksum, where at, sl_vocab **out)
{
    char *name;
    SL_TRY(find_name(path, at, &name));
    sl_status status = sl_vocab_load(name, out);
    if (status == SL_OK) {
        status = sl_error_context(check(path, checksum, *out), "%s: ", name);
        if (status != SL_OK)
            sl_vocab_destroy(out);
    }
    free(name);
    return status;
}

/* The first that fits, and where it is; NULL where there is none. Where others are there, what is
 * wrong with the first of them is the error. Weights that say nothing have the one with a name. */
static sl_status find(const char *path, sl_vocab **out, where *at)
{
    char checksum[SLI_CHECKSUM_BYTES], reason[1024] = "";
    sl_status first = SL_OK;
    *out = NULL;
    SL_TRY(read_checksum(path, checksum));
    for (*at = WAITING; *at < WHERES; ++*at) {
        if (*at == WAITING && checksum[0] == '\0')
            continue;
        sl_status status = load(path, checksum, *at, out);
        if (status == SL_OK || status == SL_ERR_MEMORY)
            return status;
        if (status == SL_ERR_NOT_FOUND || *at == WAITING || first != SL_OK)
            continue;
        first = status;
        snprintf(reason, sizeof reason, "%s", sl_error_text());
    }
    return first == SL_OK ? SL_OK : sl_error(first, "%s", reason);
}

sl_status sl_weights_vocab(const char *path, sl_vocab **out)
{
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    where at;
    return find(path, out, &at);
}

sl_status sli_weights_vocab_check(const char *path, const sl_vocab *vocab)
{
    char checksum[SLI_CHECKSUM_BYTES];
    SL_TRY(read_checksum(path, checksum));
    return check(path, checksum, vocab);
}

/* ---- Saving ----------------------------------------------------------------------------- */

/* Ends a save, however far it came: a vocabulary that waits gets its name where the weights are
 * those that it is for, and goes. */
static sl_status settle(const char *path, const char *named, const char *waiting)
{
    sl_vocab *vocab;
    where at;
    if (access(waiting, F_OK) != 0)
        return SL_OK;
    sl_status status = find(path, &vocab, &at);
    if (status == SL_ERR_IO || status == SL_ERR_MEMORY)
        return status;
    status = vocab && at == WAITING ? sl_vocab_save(vocab, named) : SL_OK;
    sl_vocab_destroy(&vocab);
    return status == SL_OK ? sli_directory_remove_path(waiting) : status;
}

static sl_status is_there(const char *named, const sl_vocab *vocab, bool *out)
{
    char wanted[SLI_CHECKSUM_BYTES] = "", found[SLI_CHECKSUM_BYTES] = "";
    sl_vocab *older;
    *out = false;
    if (sl_vocab_load(named, &older) != SL_OK)
        return SL_OK;
    sl_status status = sli_vocab_checksum(vocab, wanted);
    if (status == SL_OK)
        status = sli_vocab_checksum(older, found);
    *out = status == SL_OK && strcmp(wanted, found) == 0;
    sl_vocab_destroy(&older);
    return status;
}

/* The names that a save writes to, to be freed. */
static sl_status find_names(const char *path, char **named, char **waiting)
{
    *waiting = NULL;
    SL_TRY(find_name(path, NAMED, named));
    sl_status status = find_name(path, WAITING, waiting);
    if (status != SL_OK)
        free(*named);
    return status;
}

sl_status sli_weights_vocab_begin(const char *path, const sl_vocab *vocab)
{
    char *named, *waiting;
    bool there = false;
    SL_TRY(find_names(path, &named, &waiting));
    sl_status status = settle(path, named, waiting);
    if (status == SL_OK)
        status = is_there(named, vocab, &there);
    if (status == SL_OK && !there)
        status = sl_vocab_save(vocab, waiting);
    free(named);
    free(waiting);
    return status;
}

sl_status sli_weights_vocab_end(const char *path)
{
    char *named, *waiting;
    SL_TRY(find_names(path, &named, &waiting));
    sl_status status = settle(path, named, waiting);
    free(named);
    free(waiting);
    return status;
}
