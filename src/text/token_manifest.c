#include "text/token_manifest.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/replace.h"
#include "text/vocab.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char mark[] = "sluice_token_files";
enum { VERSION = 1, MOST_BYTES = 1 << 26 };

void sli_manifest_clear(sli_manifest *manifest)
{
    json_decref(manifest->json);
    free(manifest->path);
    *manifest = (sli_manifest){0};
}

sl_status sli_manifest_path(const char *path, char **out)
{
    static const char ending[] = ".manifest.json";
    size_t length = strlen(path);
    if (sli_name_ends_with(path, SLI_TOKEN_FILE_END))
        length -= strlen(SLI_TOKEN_FILE_END);
    *out = malloc(length + sizeof ending);
    if (!*out)
        return sli_no_memory(path, "the path of its manifest");
    memcpy(*out, path, length);
    memcpy(*out + length, ending, sizeof ending);
    return SL_OK;
}

/* ---- The file ----------------------------------------------------------------------------- */

sl_status sli_manifest_read(char *path, sli_manifest *out)
{
    char *text;
    size_t bytes;
    *out = (sli_manifest){.path = path};
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return SL_OK;
    SL_TRY(sli_file_read(path, MOST_BYTES, &text, &bytes));
    json_t *json = json_loadb(text, bytes, 0, NULL);
    free(text);
    if (json_integer_value(json_object_get(json, mark)) == VERSION) {
        out->json = json;
        return SL_OK;
    }
    json_decref(json);
    return sl_error(SL_ERR_FORMAT, "%s: expected what sluice tokenize says of its tokens", path);
}

sl_status sli_manifest_write(const char *path, const json_t *manifest)
{
    json_t *marked = json_pack("{si}", mark, VERSION);
    bool complete = marked && json_object_update(marked, (json_t *)manifest) == 0;
    char *text = complete ? json_dumps(marked, JSON_INDENT(1)) : NULL;
    json_decref(marked);
    if (!text)
        return sli_no_memory(path, "its text");
    size_t bytes = strlen(text);
    if (bytes >= MOST_BYTES) {
        free(text);
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%s: it would have %zu bytes, and at most %d are read: put the texts "
                        "together in fewer files",
                        path, bytes, MOST_BYTES);
    }
    text[bytes] = '\n'; /* instead of the 0 */
    sl_status status = sli_file_write(path, text, bytes + 1);
    free(text);
    return status;
}

sl_status sli_manifest_tokenizer(const sl_vocab *vocab, json_t **out)
{
    char checksum[SL_VOCAB_CHECKSUM_BYTES];
    SL_TRY(sl_vocab_checksum(vocab, checksum));
    *out = json_pack("{ss si si}", "checksum", checksum, "tokens", sl_vocab_size(vocab), "end",
                     sl_vocab_end(vocab));
    return *out ? SL_OK : sli_no_memory("a manifest", "its tokenizer");
}

/* ---- Its files ---------------------------------------------------------------------------- */

static const char *name_of(const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    return name ? name : "";
}

/* Names that are not UTF-8 are compared as JSON has them. */
const json_t *sli_manifest_find_file(const json_t *manifest, const char *path)
{
    size_t i;
    json_t *entry, *name = sli_json_text(sli_path_name(path));
    const json_t *found = NULL;
    json_array_foreach(json_object_get(manifest, "files"), i, entry)
    {
        if (json_equal(json_object_get(entry, "name"), name))
            found = entry;
    }
    json_decref(name);
    return found;
}

/* The path of an entry's file beside `path`, malloc'ed; NULL: its name is that of no file, or would
 * lead to another directory. */
static sl_status path_of(const json_t *entry, const char *path, char **out)
{
    const char *name = name_of(entry);
    size_t folder = (size_t)(sli_path_name(path) - path);
    *out = NULL;
    if (name[0] == '\0' || strchr(name, '/'))
        return SL_OK;
    *out = malloc(folder + strlen(name) + 1);
    if (!*out)
        return sli_no_memory(path, "the path of a file beside it");
    memcpy(*out, path, folder);
    memcpy(*out + folder, name, strlen(name) + 1);
    return SL_OK;
}

/* Its count and its checksum. */
static bool is_described(const sli_token_file *file, const json_t *entry)
{
    char checksum[SLI_CHECKSUM_BYTES];
    const char *expected = json_string_value(json_object_get(entry, "checksum"));
    return expected && file->count == json_integer_value(json_object_get(entry, "tokens")) &&
           strcmp(expected, sli_checksum_of(file->tokens, (uint64_t)(file->count * file->width),
                                            checksum)) == 0;
}

/* Whether the file stands there with the entry's tokens. */
static bool has_tokens(const json_t *entry, const char *path)
{
    sli_token_file file;
    if (sli_token_file_open(path, SL_TOKENS_BY_HEADER, &file) != SL_OK)
        return false;
    bool is_same = is_described(&file, entry);
    sli_token_file_clear(&file);
    return is_same;
}

sl_status sli_manifest_has_files(const json_t *manifest, const char *path, bool *out)
{
    size_t i;
    json_t *entry;
    *out = true;
    json_array_foreach(json_object_get(manifest, "files"), i, entry)
    {
        char *other;
        SL_TRY(path_of(entry, path, &other));
        *out = *out && other && has_tokens(entry, other);
        free(other);
    }
    return SL_OK;
}

static sl_status remove_one(const json_t *entry, const char *path)
{
    char *other;
    SL_TRY(path_of(entry, path, &other));
    sl_status status = !other || unlink(other) == 0 || errno == ENOENT
                           ? SL_OK
                           : sli_io_error(other, "cannot be removed, which the tokens replace");
    free(other);
    return status;
}

sl_status sli_manifest_remove_others(const json_t *manifest, const json_t *kept, const char *path)
{
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(manifest, "files"), i, entry)
    {
        if (!sli_manifest_find_file(kept, name_of(entry)))
            SL_TRY(remove_one(entry, path));
    }
    return SL_OK;
}

sl_status sli_manifest_remove_files(const json_t *manifest, const char *path)
{
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(manifest, "files"), i, entry)
    {
        char *other;
        SL_TRY(path_of(entry, path, &other));
        bool is_its_own = other && has_tokens(entry, other);
        free(other);
        if (is_its_own)
            SL_TRY(remove_one(entry, path));
    }
    return SL_OK;
}

/* ---- Reading tokens ----------------------------------------------------------------------- */

static sl_status check_tokenizer(const sli_manifest *manifest, const sl_vocab *vocab,
                                 const char *path)
{
    char checksum[SL_VOCAB_CHECKSUM_BYTES];
    const json_t *made = json_object_get(manifest->json, "tokenizer");
    const char *expected = json_string_value(json_object_get(made, "checksum"));
    SL_TRY(sl_vocab_checksum(vocab, checksum));
    if (expected && strcmp(expected, checksum) == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: these are the tokens of another tokenizer: %s says one of %" PRId64
                    " tokens and checksum %s, and that of this run has %" PRId32 " and checksum %s",
                    path, sli_path_name(manifest->path),
                    (int64_t)json_integer_value(json_object_get(made, "tokens")),
                    expected ? expected : "none", sl_vocab_size(vocab), checksum);
}

static sl_status check_described(const sli_manifest *manifest, const sli_token_file *file)
{
    const json_t *entry = sli_manifest_find_file(manifest->json, file->path);
    if (!entry)
        return sl_error(SL_ERR_FORMAT,
                        "%s: it would follow the token files before it, but %s does not list it: "
                        "move it away, or tokenize all again",
                        file->path, sli_path_name(manifest->path));
    int64_t tokens = json_integer_value(json_object_get(entry, "tokens"));
    if (tokens == file->count)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "%s: it has %" PRId64 " tokens, but %s says %" PRId64
                    ": it has been replaced since, or replacing it was cut off: tokenize again",
                    file->path, file->count, sli_path_name(manifest->path), tokens);
}

sl_status sli_manifest_check(const sli_token_file *file, const sl_vocab *vocab,
                             sli_manifest *current)
{
    char *path;
    sli_manifest own;
    SL_TRY(sli_manifest_path(file->path, &path));
    sl_status status = sli_manifest_read(path, &own);
    if (status != SL_OK || !own.json)
        sli_manifest_clear(&own);
    SL_TRY(status);
    if (own.json) {
        sli_manifest_clear(current);
        *current = own;
        if (vocab)
            SL_TRY(check_tokenizer(current, vocab, file->path));
    }
    return current->json ? check_described(current, file) : SL_OK;
}
