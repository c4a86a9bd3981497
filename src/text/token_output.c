#define _GNU_SOURCE
#include "text/token_output.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_NUMBERS = SLI_TOKENS_HEADER_BYTES / 4, MOST_UINT16 = 1 << 16 };

/* ---- The record --------------------------------------------------------------------------- */

/* "DIR/train.bin" -> "DIR/.train.bin.resume" */
sl_status sli_token_output_record_path(const char *path, char **out)
{
    const char *name = sli_path_name(path);
    size_t bytes = strlen(path) + sizeof "..resume";
    *out = malloc(bytes);
    if (!*out)
        return sli_no_memory(path, "the path of a record");
    snprintf(*out, bytes, "%.*s.%s.resume", (int)(name - path), path, name);
    return SL_OK;
}

static json_t *describe_file(const sli_output_file *file, bool record)
{
    char checksum[SLI_CHECKSUM_BYTES];
    json_t *entry =
        json_pack("{so sI ss}", "name", sli_json_text(sli_path_name(file->path)), "tokens",
                  (json_int_t)file->tokens, "checksum", sli_checksum_text(file->sum, checksum));
    if (entry && record && file->file)
        json_object_set_new(entry, "temporary",
                            sli_json_text(sli_replace_file_temporary(file->file)));
    return entry;
}

/* Files and counts; NULL: no memory. */
static json_t *describe_written(const sli_token_output *output, bool record)
{
    json_t *files = json_array();
    for (size_t i = 0; i < output->count; i++)
        json_array_append_new(files, describe_file(&output->files[i], record));
    bool complete = json_array_size(files) == output->count;
    json_t *made = json_pack("{so sI sI}", "files", files, "tokens", (json_int_t)output->tokens,
                             "invalid_bytes", (json_int_t)output->invalid_bytes);
    if (complete)
        return made;
    json_decref(made);
    return NULL;
}

/* NULL: no memory. */
static json_t *make_manifest(const sli_token_output *output, bool record)
{
    json_t *written = describe_written(output, record);
    json_t *made = json_pack("{sO sO}", "tokenizer", output->tokenizer, "sources", output->sources);
    bool complete = made && written && json_object_update(made, written) == 0;
    json_decref(written);
    if (complete && record && output->unfinished) {
        json_object_set_new(made, "unfinished", json_true());
        json_object_set(made, "before", output->before);
    }
    if (complete && output->kept)
        json_object_set(made, "kept", output->kept);
    if (complete)
        return made;
    json_decref(made);
    return NULL;
}

/* Takes the record; NULL: no memory for it. */
static sl_status write_record(sli_token_output *output, json_t *made)
{
    sl_status status = made ? sli_manifest_write(output->record, made)
                            : sli_no_memory(output->path, "a record of it");
    json_decref(made);
    output->recorded = output->recorded || status == SL_OK;
    return status;
}

sl_status sli_token_output_record(sli_token_output *output)
{
    return write_record(output, make_manifest(output, true));
}

sl_status sli_token_output_begin_text(sli_token_output *output)
{
    json_decref(output->before);
    output->before = describe_written(output, true);
    return output->before ? SL_OK : sli_no_memory(output->path, "a record of it");
}

sl_status sli_token_output_drop_text(sli_token_output *output)
{
    if (!output->unfinished || !output->before)
        return SL_OK;
    size_t files = json_array_size(json_object_get(output->before, "files"));
    json_array_remove(output->sources, json_array_size(output->sources) - 1);
    output->unfinished = false;
    json_t *made = make_manifest(output, true);
    if (json_object_update(made, output->before) != 0) {
        json_decref(made);
        made = NULL;
    }
    SL_TRY(write_record(output, made));
    for (size_t i = files; i < output->count; i++)
        sli_replace_file_destroy(&output->files[i].file);
    return SL_OK;
}

/* ---- Files -------------------------------------------------------------------------------- */

static sli_output_file *last_file(const sli_token_output *output)
{
    return &output->files[output->count - 1];
}

/* Takes the path, also after an error. */
static sl_status add_file(sli_token_output *output, char *path)
{
    sl_status status = sli_array_reserve(&output->files, &output->room, output->count + 1,
                                         sizeof *output->files, SIZE_MAX / 256, "token files");
    if (status != SL_OK) {
        free(path);
        return status;
    }
    sli_output_file *file = &output->files[output->count++];
    *file = (sli_output_file){.path = path};
    return sli_checksum_create(&file->sum);
}

/* A file beside the one that was named, which its owner may not expect to be replaced. */
static sl_status check_next(const sli_token_output *output, const char *path)
{
    if (access(path, F_OK) != 0 || sli_manifest_find_file(output->older.json, path))
        return SL_OK;
    return sl_error(
        SL_ERR_INVALID,
        "%s: it would be read after these tokens or be replaced by more of them, but is "
        "none of an older output: move it away",
        path);
}

static sl_status no_next(const char *path, int64_t file_tokens)
{
    return sl_error(SL_ERR_UNSUPPORTED,
                    "%s: a token file has at most %" PRId64
                    " tokens, and no file comes after one of this name: call it NAME.bin",
                    path, file_tokens);
}

sl_status sli_token_output_check_names(const sli_token_output *output, uint64_t tokens)
{
    char *next = NULL, *path = strdup(last_file(output)->path);
    if (!path)
        return sli_no_memory(output->path, "its path");
    sl_status status = SL_OK;
    uint64_t room = (uint64_t)(output->file_tokens - last_file(output)->tokens);
    while (tokens > room) {
        tokens -= room;
        room = (uint64_t)output->file_tokens;
        SL_TRY_OR_FAIL(sli_token_file_next(path, &next));
        free(path);
        path = next;
        SL_TRY_OR_FAIL(path ? check_next(output, path)
                            : no_next(output->path, output->file_tokens));
    }
fail:
    free(path);
    return status;
}

static sl_status begin_next(sli_token_output *output)
{
    char *path;
    SL_TRY(sli_token_file_next(last_file(output)->path, &path));
    if (!path)
        return no_next(last_file(output)->path, output->file_tokens);
    sl_status status = check_next(output, path);
    if (status != SL_OK) {
        free(path);
        return status;
    }
    SL_TRY(add_file(output, path));
    return sli_replace_file_create(path, &last_file(output)->file);
}

static void pack_ids(const int32_t *ids, int64_t count, int width, uint8_t *packed)
{
    for (int64_t i = 0; i < count; i++)
        for (int b = 0; b < width; b++)
            packed[i * width + b] = (uint8_t)((uint32_t)ids[i] >> 8 * b);
}

static sl_status write_ids(sli_token_output *output, const int32_t *ids, int64_t count)
{
    enum { AT_ONCE = 1 << 13 };
    sli_output_file *file = last_file(output);
    uint8_t packed[4 * AT_ONCE];
    for (int64_t left = count; left > 0; left -= AT_ONCE, ids += AT_ONCE) {
        int64_t here = left < AT_ONCE ? left : AT_ONCE;
        size_t bytes = (size_t)(here * output->width);
        uint64_t offset = SLI_TOKENS_HEADER_BYTES + (uint64_t)(file->tokens * output->width);
        pack_ids(ids, here, output->width, packed);
        SL_TRY(sli_replace_file_write(file->file, offset, packed, bytes));
        sli_checksum_add(file->sum, packed, bytes);
        file->tokens += here;
        output->tokens += here;
    }
    return SL_OK;
}

sl_status sli_token_output_add(sli_token_output *output, const int32_t *ids, int64_t count)
{
    if (count > 0 && !last_file(output)->file)
        return sl_error(SL_ERR_INVALID,
                        "%s: what was written of it ended before this text: begin anew, without "
                        "resuming",
                        output->path);
    while (count > 0) {
        int64_t room = output->file_tokens - last_file(output)->tokens;
        if (room == 0) {
            SL_TRY(begin_next(output));
            continue;
        }
        int64_t here = count < room ? count : room;
        SL_TRY(write_ids(output, ids, here));
        ids += here;
        count -= here;
    }
    return SL_OK;
}

/* ---- Going on ----------------------------------------------------------------------------- */

/* Under its temporary name, or under its own, which it has where giving names was cut off. */
static sl_status open_written(const sli_token_output *output, const json_t *entry,
                              sli_output_file *file, char **found)
{
    const char *temporary = json_string_value(json_object_get(entry, "temporary"));
    uint64_t bytes = SLI_TOKENS_HEADER_BYTES + (uint64_t)(file->tokens * output->width);
    sl_status status = temporary
                           ? sli_replace_file_reopen(file->path, temporary, bytes, &file->file)
                           : SL_ERR_NOT_FOUND;
    if (status == SL_ERR_NOT_FOUND) {
        *found = strdup(file->path);
        return *found ? SL_OK : sli_no_memory(file->path, "its path");
    }
    SL_TRY(status);
    char *followed;
    SL_TRY(sli_path_follow(file->path, &followed));
    int folder = (int)(sli_path_name(followed) - followed);
    if (asprintf(found, "%.*s%s", folder, followed, temporary) < 0) {
        *found = NULL;
        status = sli_no_memory(file->path, "its path");
    }
    free(followed);
    return status;
}

static sl_status check_written(const json_t *entry, const sli_output_file *file)
{
    char checksum[SLI_CHECKSUM_BYTES];
    const char *expected = json_string_value(json_object_get(entry, "checksum"));
    sli_checksum_text(file->sum, checksum);
    if (expected && strcmp(expected, checksum) == 0)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "%s: what was written of it is not what its record says: begin anew, without "
                    "resuming",
                    file->path);
}

static sl_status reopen_file(sli_token_output *output, const json_t *entry, char *path)
{
    char *found = NULL;
    int descriptor;
    uint64_t size;
    SL_TRY(add_file(output, path));
    sli_output_file *file = last_file(output);
    file->tokens = json_integer_value(json_object_get(entry, "tokens"));
    if (file->tokens < 0 || file->tokens > output->file_tokens)
        return sl_error(SL_ERR_FORMAT, "%s: its record says %" PRId64 " tokens", path,
                        file->tokens);
    SL_TRY(open_written(output, entry, file, &found));
    sl_status status;
    SL_TRY_OR_FAIL(sli_file_open(found, &descriptor, &size));
    status = sli_file_checksum(found, descriptor, SLI_TOKENS_HEADER_BYTES,
                               (uint64_t)(file->tokens * output->width), file->sum);
    close(descriptor);
fail:
    free(found);
    SL_TRY(status);
    output->tokens += file->tokens;
    return check_written(entry, file);
}

/* The files of a record are those that the same output has. */
static sl_status reopen_files(sli_token_output *output, const json_t *record)
{
    size_t i;
    json_t *entry;
    char *path = strdup(output->path);
    json_array_foreach(json_object_get(record, "files"), i, entry)
    {
        if (i > 0)
            SL_TRY(sli_token_file_next(last_file(output)->path, &path));
        if (!path)
            return sli_no_memory(output->path, "its path");
        SL_TRY(reopen_file(output, entry, path));
        path = NULL;
    }
    free(path);
    return output->count > 0 ? SL_OK
                             : sl_error(SL_ERR_FORMAT, "%s: it names no files", output->record);
}

static sl_status reopen_recorded(sli_token_output *output, const json_t *record)
{
    if (!json_equal(json_object_get(record, "tokenizer"), output->tokenizer))
        return sl_error(SL_ERR_INVALID,
                        "%s: what was written of it is by another tokenizer: begin anew, without "
                        "resuming",
                        output->path);
    SL_TRY(reopen_files(output, record));
    if (json_array_extend(output->sources, json_object_get(record, "sources")) != 0)
        return sl_error(SL_ERR_FORMAT, "%s: it does not say of which texts", output->record);
    output->invalid_bytes = json_integer_value(json_object_get(record, "invalid_bytes"));
    output->unfinished = json_is_true(json_object_get(record, "unfinished"));
    output->before = json_incref(json_object_get(record, "before"));
    output->resumed = true;
    return SL_OK;
}

/* Whether a kill has left the record of files that have their manifest. */
static bool is_complete(const sli_token_output *output, const json_t *record)
{
    static const char *const keys[] = {"tokenizer", "sources", "tokens"};
    bool is_same = !json_object_get(record, "unfinished");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        is_same = is_same && json_equal(json_object_get(record, keys[i]),
                                        json_object_get(output->older.json, keys[i]));
    return is_same;
}

/* ---- Opening and closing ------------------------------------------------------------------ */

/* A file that has a manifest of its own is a further part of a stream that is written part by part:
 * no fault, unless these tokens need its name. */
static sl_status check_first_next(const sli_token_output *output)
{
    char *next, *manifest = NULL;
    SL_TRY(sli_token_file_next(output->path, &next));
    if (!next)
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(sli_manifest_path(next, &manifest));
    if (access(manifest, F_OK) != 0)
        status = check_next(output, next);
fail:
    free(manifest);
    free(next);
    return status;
}

static sl_status begin_anew(sli_token_output *output)
{
    SL_TRY(check_first_next(output));
    char *path = strdup(output->path);
    if (!path)
        return sli_no_memory(output->path, "its path");
    (void)unlink(output->record); /* of what the new file's writer removes */
    SL_TRY(add_file(output, path));
    return sli_replace_file_create(path, &last_file(output)->file);
}

static sl_status open_beside(sli_token_output *output, bool resumes)
{
    char *path;
    sli_manifest record;
    SL_TRY(sli_manifest_path(output->path, &path));
    SL_TRY(sli_manifest_read(path, &output->older));
    SL_TRY(sli_token_output_record_path(output->path, &output->record));
    if (!resumes)
        return begin_anew(output);
    path = strdup(output->record);
    if (!path)
        return sli_no_memory(output->path, "the path of its record");
    sl_status status = sli_manifest_read(path, &record);
    bool is_work = record.json && !is_complete(output, record.json);
    output->recorded = is_work || status != SL_OK;
    SL_TRY_OR_FAIL(status);
    status = is_work ? reopen_recorded(output, record.json) : begin_anew(output);
fail:
    sli_manifest_clear(&record);
    return status;
}

static sl_status open_output(const char *path, const sl_vocab *vocab, int64_t file_tokens,
                             bool resumes, sli_token_output *out)
{
    *out = (sli_token_output){.path = strdup(path),
                              .sources = json_array(),
                              .width = sl_vocab_size(vocab) <= MOST_UINT16 ? 2 : 4,
                              .file_tokens = file_tokens};
    if (!out->path || !out->sources)
        return sli_no_memory(path, "a record of it");
    SL_TRY(sli_claim_create(path, &out->claim));
    SL_TRY(sli_manifest_tokenizer(vocab, &out->tokenizer));
    return open_beside(out, resumes);
}

sl_status sli_token_output_open(const char *path, const sl_vocab *vocab, int64_t file_tokens,
                                bool resumes, sli_token_output *out)
{
    sl_status status = open_output(path, vocab, file_tokens, resumes, out);
    if (status != SL_OK)
        sli_token_output_close(out, resumes);
    return status;
}

static sl_status write_header(const sli_token_output *output, const sli_output_file *file)
{
    bool is_uint16 = output->width == 2;
    uint32_t numbers[HEADER_NUMBERS] = {
        is_uint16 ? SLI_TOKENS_UINT16_MAGIC : SLI_TOKENS_UINT32_MAGIC,
        is_uint16 ? SLI_TOKENS_UINT16_VERSION : SLI_TOKENS_UINT32_VERSION, (uint32_t)file->tokens};
    uint8_t bytes[SLI_TOKENS_HEADER_BYTES];
    for (int i = 0; i < SLI_TOKENS_HEADER_BYTES; i++)
        bytes[i] = (uint8_t)(numbers[i / 4] >> 8 * (i % 4));
    return sli_replace_file_write(file->file, 0, bytes, sizeof bytes);
}

static sl_status name_files(sli_token_output *output)
{
    output->has_begun_naming = true;
    for (size_t i = 0; i < output->count; i++)
        if (output->files[i].file) {
            SL_TRY(write_header(output, &output->files[i]));
            SL_TRY(sli_replace_file_commit(output->files[i].file));
        }
    return SL_OK;
}

/* A kill in between leaves the record, from which another process does the rest. Files that only an
 * older output had would be read as a part of this one. */
sl_status sli_token_output_commit(sli_token_output *output)
{
    char *path = NULL;
    json_t *made = make_manifest(output, false);
    sl_status status;
    SL_TRY_OR_FAIL(made ? SL_OK : sli_no_memory(output->path, "its manifest"));
    SL_TRY_OR_FAIL(sli_token_output_record(output));
    SL_TRY_OR_FAIL(name_files(output));
    SL_TRY_OR_FAIL(sli_manifest_remove_others(output->older.json, made, output->path));
    SL_TRY_OR_FAIL(sli_manifest_path(output->path, &path));
    SL_TRY_OR_FAIL(sli_manifest_write(path, made));
    output->has_begun_naming = false;

fail:
    free(path);
    json_decref(made);
    return status;
}

void sli_token_output_close(sli_token_output *output, bool keep_work)
{
    bool keeps_record = (keep_work || output->has_begun_naming) && output->recorded;
    for (size_t i = 0; i < output->count; i++) {
        if (keeps_record)
            sli_replace_file_leave(&output->files[i].file);
        sli_replace_file_destroy(&output->files[i].file);
        sli_checksum_destroy(&output->files[i].sum);
        free(output->files[i].path);
    }
    if (output->recorded && !keeps_record)
        (void)unlink(output->record);
    free(output->files);
    json_decref(output->tokenizer);
    json_decref(output->sources);
    json_decref(output->kept);
    json_decref(output->before);
    sli_manifest_clear(&output->older);
    sli_claim_destroy(&output->claim);
    free(output->record);
    free(output->path);
    *output = (sli_token_output){0};
}
