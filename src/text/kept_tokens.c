#include "text/kept_tokens.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "text/rows.h"
#include "text/token_output.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sl_status sli_kept_identify(const char *path, json_t **out)
{
    char checksum[SLI_CHECKSUM_BYTES];
    int descriptor;
    uint64_t bytes;
    sli_checksum *sum = NULL;
    *out = NULL;
    SL_TRY(sli_file_open(path, &descriptor, &bytes));
    sl_status status;
    SL_TRY_OR_FAIL(sli_checksum_create(&sum));
    SL_TRY_OR_FAIL(sli_file_checksum(path, descriptor, 0, bytes, sum));
    *out = json_pack("{so sI ss}", "path", sli_json_text(path), "bytes", (json_int_t)bytes,
                     "checksum", sli_checksum_text(sum, checksum));
    status = *out ? SL_OK : sli_no_memory(path, "its description");
fail:
    close(descriptor);
    sli_checksum_destroy(&sum);
    return status;
}

sl_status sli_kept_describe(const json_t *file, sli_text_range range, json_t **source)
{
    *source = json_pack("{si si}", "from", (int)range.from, "to", (int)range.to);
    if (*source && json_object_update(*source, (json_t *)file) == 0)
        return SL_OK;
    json_decref(*source);
    *source = NULL;
    return sli_no_memory("the tokens of a text", "a description of the text");
}

static sl_status name_file(const char *directory, sl_split split, char **out)
{
    char name[16];
    snprintf(name, sizeof name, "%s.bin", sl_split_name(split));
    return sli_path_join(directory, name, out);
}

static sl_status read_manifest(const char *path, sli_manifest *out)
{
    char *name;
    *out = (sli_manifest){0};
    SL_TRY(sli_manifest_path(path, &name));
    return sli_manifest_read(name, out);
}

/* ---- Reading ------------------------------------------------------------------------------ */

/* Wherever the text lies. */
static bool is_same_source(const json_t *kept, const json_t *source)
{
    static const char *const keys[] = {"bytes", "checksum", "from", "to"};
    bool is_same = true;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        is_same =
            is_same && json_equal(json_object_get(kept, keys[i]), json_object_get(source, keys[i]));
    return is_same;
}

static sl_status is_current(const json_t *manifest, const sl_vocab *vocab, const json_t *source,
                            bool *out)
{
    json_t *tokenizer;
    SL_TRY(sli_manifest_tokenizer(vocab, &tokenizer));
    const json_t *sources = json_object_get(manifest, "sources");
    *out = json_object_get(manifest, "kept") && json_array_size(sources) == 1 &&
           is_same_source(json_array_get(sources, 0), source) &&
           json_equal(json_object_get(manifest, "tokenizer"), tokenizer);
    json_decref(tokenizer);
    return SL_OK;
}

/* Reads all ids of a file into ids [file->count]. */
static sl_status read_file(const sli_token_file *file, int64_t ntokens, int32_t *ids)
{
    enum { AT_ONCE = 1 << 20 };
    for (int64_t first = 0; first < file->count; first += AT_ONCE) {
        int64_t left = file->count - first;
        SL_TRY(sli_token_file_read(file, first, left < AT_ONCE ? left : AT_ONCE, ntokens,
                                   ids + first));
    }
    return SL_OK;
}

static sl_status read_ids(const sl_rows *rows, int64_t ntokens, sl_tokens *out)
{
    sli_large_array ids = {0};
    size_t bytes = (size_t)rows->tokens * sizeof *out->ids;
    SL_TRY(sli_large_array_reserve(&ids, bytes, "ids of tokens"));
    out->count = rows->tokens;
    sli_tokens_own_ids(out, &ids);
    int64_t done = 0;
    for (size_t i = 0; i < rows->file_count; i++) {
        SL_TRY(read_file(&rows->files[i], ntokens, out->ids + done));
        done += rows->files[i].count;
    }
    return SL_OK;
}

static sl_status read_kept(const char *path, const sl_vocab *vocab, const json_t *manifest,
                           sl_tokens *out)
{
    sl_rows *rows;
    const sl_rows_options options = {.ntokens = sl_vocab_size(vocab), .length = 1};
    SL_TRY(sl_rows_read(path, &options, &rows));
    sl_status status = read_ids(rows, options.ntokens, out);
    sl_rows_destroy(&rows);
    out->line_count =
        json_integer_value(json_object_get(json_object_get(manifest, "kept"), "lines"));
    out->invalid_bytes = json_integer_value(json_object_get(manifest, "invalid_bytes"));
    return status;
}

sl_status sli_kept_read(const char *directory, sl_split split, const sl_vocab *vocab,
                        const json_t *source, sl_tokens *out)
{
    char *path;
    sli_manifest manifest;
    bool is_there = false;
    *out = (sl_tokens){0};
    SL_TRY(name_file(directory, split, &path));
    sl_status status;
    SL_TRY_OR_FAIL(read_manifest(path, &manifest));
    if (manifest.json)
        SL_TRY_OR_FAIL(is_current(manifest.json, vocab, source, &is_there));
    if (is_there)
        SL_TRY_OR_FAIL(sli_manifest_has_files(manifest.json, path, &is_there));
    if (is_there)
        status = read_kept(path, vocab, manifest.json, out);
fail:
    sli_manifest_clear(&manifest);
    free(path);
    if (status == SL_OK)
        return SL_OK;
    sl_tokens_free(out); /* of what is damaged as well */
    return status == SL_ERR_MEMORY || status == SL_ERR_IO ? status : SL_OK;
}

/* ---- Keeping ------------------------------------------------------------------------------ */

/* Empty where there is none of a run: a damaged record says nothing. */
static sl_status read_record(const char *path, sli_manifest *out)
{
    char *name;
    *out = (sli_manifest){0};
    SL_TRY(sli_token_output_record_path(path, &name));
    sl_status status = sli_manifest_read(name, out);
    if (status == SL_ERR_FORMAT || !json_object_get(out->json, "kept"))
        sli_manifest_clear(out);
    return status == SL_ERR_FORMAT ? SL_OK : status;
}

static sl_status refuse_damaged(const char *path, const char *manifest)
{
    return sl_error(SL_ERR_INVALID,
                    "%s: the run keeps its text's tokens there, but this file does not say whose "
                    "%s is: move both away",
                    manifest, sli_path_name(path));
}

/* Leaves there nothing but what is whole and the run's own, or is none of its own: an error. What a
 * run that was cut off has named is its own, though the manifest is not written yet: its record
 * describes the files. */
static sl_status make_room(const char *path)
{
    sli_manifest record, manifest = {0};
    sl_status status;
    SL_TRY_OR_FAIL(read_record(path, &record));
    SL_TRY_OR_FAIL(sli_manifest_remove_files(record.json, path));
    status = read_manifest(path, &manifest);
    bool is_there = access(path, F_OK) == 0;
    if (status == SL_ERR_FORMAT && manifest.path) {
        status = is_there || !record.json     ? refuse_damaged(path, manifest.path)
                 : unlink(manifest.path) == 0 ? SL_OK
                                              : sli_io_error(manifest.path, "is damaged");
        goto fail;
    }
    SL_TRY_OR_FAIL(status);
    if (is_there && !json_object_get(manifest.json, "kept"))
        status = sl_error(SL_ERR_INVALID,
                          "%s: the run keeps its text's tokens there, but this file is not one "
                          "that a run has kept: move it away",
                          path);
fail:
    sli_manifest_clear(&record);
    sli_manifest_clear(&manifest);
    return status;
}

static sl_status write_kept(const char *path, const sl_vocab *vocab, json_t *source,
                            const sl_tokens *tokens)
{
    sli_token_output output;
    SL_TRY(make_room(path));
    SL_TRY(sli_token_output_open(path, vocab, INT32_MAX, false, &output));
    output.kept = json_pack("{sI}", "lines", (json_int_t)tokens->line_count);
    output.invalid_bytes = tokens->invalid_bytes;
    sl_status status;
    if (!output.kept || json_array_append(output.sources, source) != 0)
        SL_TRY_OR_FAIL(sli_no_memory(path, "its manifest"));
    SL_TRY_OR_FAIL(sli_token_output_add(&output, tokens->ids, tokens->count));
    status = sli_token_output_commit(&output);
fail:
    sli_token_output_close(&output, false);
    return status;
}

sl_status sli_kept_write(const char *directory, sl_split split, const sl_vocab *vocab,
                         json_t *source, const sl_tokens *tokens)
{
    char *path;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return sli_io_error(directory, "the tokens of the text cannot be kept there");
    SL_TRY(name_file(directory, split, &path));
    sl_status status = write_kept(path, vocab, source, tokens);
    free(path);
    return status;
}

sl_status sli_kept_remove_record(const char *directory, sl_split split)
{
    char *path;
    sli_manifest record;
    SL_TRY(name_file(directory, split, &path));
    sl_status status = read_record(path, &record);
    if (record.path)
        (void)unlink(record.path);
    sli_manifest_clear(&record);
    free(path);
    return status;
}
