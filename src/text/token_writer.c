/* Writing token files. Texts are read in blocks, which end where a text may be cut. */
#include "text/token_writer.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/threads.h"
#include "text/text_blocks.h"
#include "text/text_parts.h"
#include "text/token_output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const sli_tokens_limits usual_limits = {.block_bytes = SLI_TEXT_BLOCK_BYTES,
                                               .record_bytes = 1 << 23,
                                               .file_tokens = INT32_MAX};

typedef struct writer {
    const sl_vocab *vocab;
    const sl_tokens_writing *writing;
    const sli_tokens_limits *limits;
    sli_text_encoder *encoder;
    sli_token_output output;
    uint64_t done, bytes; /* of all texts */
    uint64_t recorded;    /* of `done`, when it was last recorded */
    uint64_t resumed;     /* of `done`, by an earlier call */
} writer;

/* A text that is being read. What of it is read and not yet written is in the block. */
typedef struct source {
    sli_text_blocks blocks;
    uint64_t written;  /* bytes in the tokens */
    int64_t invalid;   /* of those */
    sli_checksum *sum; /* of those */
} source;

/* ---- Sources ------------------------------------------------------------------------------ */

static void close_source(source *text)
{
    sli_text_blocks_close(&text->blocks);
    sli_checksum_destroy(&text->sum);
}

/* To be closed only after SL_OK. */
static sl_status open_source(const char *path, source *out)
{
    *out = (source){.written = 0};
    SL_TRY(sli_text_blocks_open(path, &out->blocks));
    sl_status status;
    if (out->blocks.size == 0)
        SLI_TRY_OR_FAIL(sl_error(SL_ERR_FORMAT, "%s: expected text, but the file is empty", path));
    SLI_TRY_OR_FAIL(sli_checksum_create(&out->sum));
    return SL_OK;
fail:
    close_source(out);
    return status;
}

/* The first `bytes` of the block are written. */
static void drop_block(source *text, size_t bytes)
{
    sli_checksum_add(text->sum, text->blocks.block, bytes);
    text->written += bytes;
    sli_text_blocks_drop(&text->blocks, bytes);
}

static json_t *describe_source(const source *text)
{
    char checksum[SLI_CHECKSUM_BYTES];
    return json_pack("{so sI ss}", "path", sli_json_text(text->blocks.path), "bytes",
                     (json_int_t)text->written, "checksum", sli_checksum_text(text->sum, checksum));
}

/* Whether the text begins with what the source of a manifest had; all of that is then passed over.
 */
static sl_status compare_source(source *text, const json_t *recorded, bool *same)
{
    char checksum[SLI_CHECKSUM_BYTES];
    const char *expected = json_string_value(json_object_get(recorded, "checksum"));
    uint64_t bytes = (uint64_t)json_integer_value(json_object_get(recorded, "bytes"));
    *same = false;
    if (!expected || bytes > text->blocks.size)
        return SL_OK;
    SL_TRY(sli_file_checksum(text->blocks.path, text->blocks.descriptor, 0, bytes, text->sum));
    text->blocks.offset = text->written = bytes;
    *same = strcmp(expected, sli_checksum_text(text->sum, checksum)) == 0;
    return SL_OK;
}

/* ---- Writing ------------------------------------------------------------------------------ */

static void report_progress(const writer *job)
{
    if (job->writing && job->writing->progress)
        job->writing->progress(job->writing->context, job->done, job->bytes);
}

/* Sets what is said of the last source, and records all where that is due. */
static sl_status note_source(writer *job, const source *text, bool unfinished)
{
    sli_token_output *output = &job->output;
    size_t count = json_array_size(output->sources);
    json_t *entry = describe_source(text);
    if (!entry || (output->unfinished ? json_array_set_new(output->sources, count - 1, entry)
                                      : json_array_append_new(output->sources, entry)) != 0)
        return sli_no_memory(text->blocks.path, "a record of it");
    output->unfinished = unfinished;
    if (unfinished)
        json_object_set_new(entry, "invalid_bytes", json_integer(text->invalid));
    report_progress(job);
    if (job->done - job->recorded < job->limits->record_bytes)
        return SL_OK;
    job->recorded = job->done;
    return sli_token_output_record(output);
}

static sl_status write_block(writer *job, source *text, size_t bytes)
{
    sl_tokens tokens;
    SL_TRY(
        sli_text_encoder_run(job->encoder, text->blocks.block, bytes, text->written > 0, &tokens));
    sl_status status = sli_token_output_add(&job->output, tokens.ids, tokens.count);
    text->invalid += tokens.invalid_bytes;
    job->output.invalid_bytes += tokens.invalid_bytes;
    sl_tokens_free(&tokens);
    job->done += bytes;
    drop_block(text, bytes);
    return status;
}

/* A text that is none leaves nothing of itself, so that it can be mended and the work go on. */
static sl_status check_is_text(writer *job, const source *text)
{
    if ((uint64_t)text->invalid <= text->blocks.size / 3)
        return SL_OK;
    SL_TRY(sli_token_output_drop_text(&job->output));
    return sl_error(SL_ERR_FORMAT,
                    "%s: expected text in UTF-8, but of its %" PRIu64 " bytes at least %" PRId64
                    " are not UTF-8",
                    text->blocks.path, text->blocks.size, text->invalid);
}

static sl_status write_blocks(writer *job, source *text)
{
    size_t bytes;
    for (;;) {
        SL_TRY(sli_text_blocks_read(&text->blocks, job->vocab, job->limits->block_bytes, &bytes));
        if (bytes == 0)
            return SL_OK;
        bool is_last = sli_text_blocks_is_last(&text->blocks);
        if (text->written == 0 && !is_last)
            SL_TRY(sli_token_output_begin_text(&job->output));
        SL_TRY(write_block(job, text, bytes));
        SL_TRY(check_is_text(job, text));
        if (!is_last)
            SL_TRY(note_source(job, text, true));
    }
}

static int64_t tokens_before_text(const sli_token_output *output)
{
    return output->unfinished ? json_integer_value(json_object_get(output->before, "tokens"))
                              : output->tokens;
}

/* A text that the tokenizer loses leaves nothing of itself either. */
static sl_status check_has_tokens(writer *job, const source *text, int64_t tokens_before)
{
    if (job->output.tokens > tokens_before)
        return SL_OK;
    SL_TRY(sli_token_output_drop_text(&job->output));
    return sl_error(SL_ERR_FORMAT, "%s: expected text, but nothing in it is a token",
                    text->blocks.path);
}

static sl_status end_text(writer *job, const source *text)
{
    int32_t end = sl_vocab_end(job->vocab);
    if (end >= 0)
        SL_TRY(sli_token_output_add(&job->output, &end, 1));
    return note_source(job, text, false);
}

/* Where the record has the text, it is passed over as far as it is written. */
static sl_status pass_over_recorded(writer *job, source *text, int index, bool *is_done)
{
    const json_t *recorded = json_array_get(job->output.sources, (size_t)index);
    bool is_last = (size_t)index + 1 == json_array_size(job->output.sources), same = true;
    *is_done = recorded && !(is_last && job->output.unfinished);
    if (!recorded)
        return SL_OK;
    SL_TRY(compare_source(text, recorded, &same));
    if (!same ||
        (*is_done ? text->written < text->blocks.size : text->written >= text->blocks.size))
        return sl_error(SL_ERR_INVALID,
                        "%s: it is not the text whose tokens were being written to %s: begin anew, "
                        "without resuming",
                        text->blocks.path, job->output.path);
    text->invalid = json_integer_value(json_object_get(recorded, "invalid_bytes"));
    job->done += text->written;
    job->recorded = job->resumed = job->done;
    return SL_OK;
}

static sl_status write_text(writer *job, const char *path, int index)
{
    source text;
    bool is_done = false;
    sl_status status;
    SL_TRY(open_source(path, &text));
    int64_t before = tokens_before_text(&job->output);
    SLI_TRY_OR_FAIL(pass_over_recorded(job, &text, index, &is_done));
    if (!is_done) {
        SLI_TRY_OR_FAIL(write_blocks(job, &text));
        SLI_TRY_OR_FAIL(check_has_tokens(job, &text, before));
        SLI_TRY_OR_FAIL(end_text(job, &text));
    }
    status = SL_OK;
fail:
    close_source(&text);
    return status;
}

/* ---- All ---------------------------------------------------------------------------------- */

/* What is left may have a token for each byte. */
static sl_status check_names(const writer *job)
{
    size_t i;
    json_t *recorded;
    uint64_t left = job->bytes;
    json_array_foreach(job->output.sources, i, recorded)
    {
        uint64_t bytes = (uint64_t)json_integer_value(json_object_get(recorded, "bytes"));
        left -= bytes < left ? bytes : left;
    }
    return sli_token_output_check_names(&job->output, left);
}

/* What would be an error after hours is found before. */
static sl_status measure(writer *job, const char *const *texts, int count, const char *path)
{
    for (int i = 0; i < count; i++) {
        if (sli_path_same_file(texts[i], path))
            return sl_error(SL_ERR_INVALID, "%s is an input and must not be overwritten", path);
        source text;
        SL_TRY(open_source(texts[i], &text));
        job->bytes += text.blocks.size;
        close_source(&text);
    }
    return SL_OK;
}

/* Whether the manifest that stands there is of these texts by this tokenizer. */
static sl_status find_whole_output(writer *job, const char *const *texts, int count, bool *out)
{
    const json_t *older = job->output.older.json, *sources = json_object_get(older, "sources");
    *out = json_equal(json_object_get(older, "tokenizer"), job->output.tokenizer) &&
           json_array_size(sources) == (size_t)count;
    for (int i = 0; i < count && *out; i++) {
        source text;
        SL_TRY(open_source(texts[i], &text));
        sl_status status = compare_source(&text, json_array_get(sources, (size_t)i), out);
        *out = *out && text.written == text.blocks.size;
        close_source(&text);
        SL_TRY(status);
    }
    return *out ? sli_manifest_has_files(older, job->output.path, out) : SL_OK;
}

static sl_status write_texts(writer *job, const char *const *texts, int count,
                             sl_tokens_written *out)
{
    bool is_there = false;
    sli_token_output *output = &job->output;
    if (json_array_size(output->sources) > (size_t)count)
        return sl_error(SL_ERR_INVALID,
                        "%s: what was written of it is of %zu texts, and there are %d: begin anew, "
                        "without resuming",
                        output->path, json_array_size(output->sources), count);
    if (job->writing && job->writing->resume && !output->resumed)
        SL_TRY(find_whole_output(job, texts, count, &is_there));
    const json_t *older = output->older.json;
    if (is_there) {
        *out =
            (sl_tokens_written){.tokens = json_integer_value(json_object_get(older, "tokens")),
                                .files = (int64_t)json_array_size(json_object_get(older, "files")),
                                .invalid_bytes =
                                    json_integer_value(json_object_get(older, "invalid_bytes")),
                                .resumed_bytes = job->bytes};
        return SL_OK;
    }
    SL_TRY(check_names(job));
    for (int i = 0; i < count; i++)
        SL_TRY(write_text(job, texts[i], i));
    SL_TRY(sli_token_output_commit(output));
    *out = (sl_tokens_written){.tokens = output->tokens,
                               .files = (int64_t)output->count,
                               .invalid_bytes = output->invalid_bytes,
                               .resumed_bytes = job->resumed};
    return SL_OK;
}

sl_status sli_tokens_write(const sl_vocab *vocab, const char *const *texts, int count,
                           const char *path, const sl_tokens_writing *writing,
                           const sli_tokens_limits *limits, sl_tokens_written *out)
{
    writer job = {.vocab = vocab, .writing = writing, .limits = limits};
    bool resumes = writing && writing->resume;
    *out = (sl_tokens_written){0};
    SL_TRY(measure(&job, texts, count, path));
    SL_TRY(sli_token_output_open(path, vocab, limits->file_tokens, resumes, &job.output));
    sl_status status;
    SLI_TRY_OR_FAIL(
        sli_text_encoder_create(vocab, SLI_TEXT_PART_BYTES, sli_usable_processors(), &job.encoder));
    status = write_texts(&job, texts, count, out);
fail:
    sli_text_encoder_destroy(&job.encoder);
    sli_token_output_close(&job.output, status != SL_OK);
    return status;
}

sl_status sl_tokens_write(const sl_vocab *vocab, const char *const *texts, int count,
                          const char *path, const sl_tokens_writing *writing,
                          sl_tokens_written *out)
{
    return sli_tokens_write(vocab, texts, count, path, writing, &usual_limits, out);
}
