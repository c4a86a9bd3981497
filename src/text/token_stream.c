/* Rows of token files. The files of a split are one stream, and row s has the tokens from number
 * s · length on; its targets are those one place later, so that a row and the next share a token.
 */
#include "text/rows.h"
#include "text/token_manifest.h"

#include "core/checksum.h"
#include "core/error.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The files -------------------------------------------------------------------------- */

static sl_status add_file(const char *path, const sl_rows_options *options, sli_manifest *manifest,
                          sl_rows *rows)
{
    SL_TRY(sli_array_reserve(&rows->files, &rows->files_room, rows->file_count + 1,
                             sizeof *rows->files, SIZE_MAX / 16, "files of tokens"));
    sli_token_file *file = &rows->files[rows->file_count];
    SL_TRY(sli_token_file_open(path, options->token_type, file));
    rows->tokens += file->count;
    rows->file_count++;
    return sli_manifest_check(file, options->vocab, manifest);
}

/* All files of the stream that begins with this one. */
static sl_status add_files(const char *path, const sl_rows_options *options, sl_rows *rows)
{
    sli_manifest manifest = {0};
    char *name = strdup(path), *next;
    if (!name)
        return sli_no_memory(path, "the names of its files");
    sl_status status;
    do {
        SL_TRY_OR_FAIL(add_file(name, options, &manifest, rows));
        SL_TRY_OR_FAIL(sli_token_file_next(name, &next));
        free(name);
        name = next;
    } while (name && access(name, F_OK) == 0);
fail:
    free(name);
    sli_manifest_clear(&manifest);
    return status;
}

sl_status sli_token_rows_open(const char *path, const sl_rows_options *options, sl_rows *rows)
{
    SL_TRY(add_files(path, options, rows));
    if (options->ntokens == 0)
        return sl_error(SL_ERR_INVALID,
                        "%s: token files do not say how large the vocabulary is: a tokenizer must "
                        "be named, or a model",
                        path);
    rows->length = rows->longest = options->length;
    rows->ntokens = options->ntokens;
    rows->count = (rows->tokens - 1) / rows->length;
    rows->has_targets = true;
    if (rows->count > 0)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "%s: its %lld tokens are no row of %lld and the target behind it", path,
                    (long long)rows->tokens, (long long)rows->length);
}

/* ---- Their tokens ----------------------------------------------------------------------- */

static sl_status read_stream(const sl_rows *rows, int64_t first, int64_t count, int32_t *ids)
{
    for (size_t i = 0; i < rows->file_count && count > 0; i++) {
        const sli_token_file *file = &rows->files[i];
        int64_t here = file->count - first < count ? file->count - first : count;
        if (here > 0) {
            SL_TRY(sli_token_file_read(file, first, here, rows->ntokens, ids));
            ids += here;
            count -= here;
            first += here;
        }
        first -= file->count;
    }
    return SL_OK;
}

sl_status sli_rows_copy(const sl_rows *rows, int64_t row, bool targets, int32_t *to)
{
    if (rows->length > 0)
        return read_stream(rows, row * rows->length + targets, rows->length, to);
    const int32_t *from = (targets ? rows->targets : rows->ids) + rows->begins[row];
    memcpy(to, from, (size_t)sli_rows_length(rows, row) * sizeof *to);
    return SL_OK;
}

int64_t sli_rows_length(const sl_rows *rows, int64_t row)
{
    return rows->length > 0 ? rows->length : rows->begins[row + 1] - rows->begins[row];
}

int64_t sli_rows_targets(const sl_rows *rows, int64_t row)
{
    int64_t count = 0;
    if (rows->length > 0)
        return rows->length;
    for (int64_t i = rows->begins[row]; i < rows->begins[row + 1]; i++)
        count += rows->targets[i] != SLI_IGNORED_TARGET;
    return count;
}

int64_t sli_rows_tokens(const sl_rows *rows)
{
    return rows->length > 0 ? rows->tokens : rows->begins[rows->count];
}

/* Of token files, which may be larger than memory, their lengths and ends tell them apart. */
void sli_rows_describe(const sl_rows *rows, char *text, size_t bytes)
{
    enum { SAMPLE = 1 << 16 };
    char checksum[SLI_CHECKSUM_BYTES] = "";
    if (rows->length == 0) {
        uint64_t all = (uint64_t)rows->begins[rows->count] * sizeof *rows->targets;
        sli_checksum_of(rows->targets, all, checksum);
        snprintf(text, bytes, "%lld rows of checksum %s", (long long)rows->count, checksum);
        return;
    }
    sli_checksum *sum;
    if (sli_checksum_create(&sum) != SL_OK)
        return;
    for (size_t i = 0; i < rows->file_count; i++) {
        const sli_token_file *file = &rows->files[i];
        size_t sample = file->size < SAMPLE ? file->size : SAMPLE;
        sli_checksum_add(sum, file->bytes, sample);
        sli_checksum_add(sum, file->bytes + file->size - sample, sample);
    }
    snprintf(text, bytes, "%lld tokens in files whose ends have checksum %s",
             (long long)rows->tokens, sli_checksum_text(sum, checksum));
    sli_checksum_destroy(&sum);
}
