/* Writing token files. Of the texts one block is encoded while the next is read and the tokens of
 * the one before are written, by one thread at a time each. */
#include "text/token_writer.h"
#include "core/file.h"
#include "core/json.h"
#include "core/threads.h"
#include "text/text_blocks.h"
#include "text/text_encoder.h"
#include "text/token_output.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const sli_tokens_limits usual_limits = {.block_bytes = SLI_TEXT_BLOCK_BYTES,
                                               .record_bytes = 1 << 24,
                                               .file_tokens = INT32_MAX};

/* A text. */
typedef struct source {
    sli_text_blocks blocks;
    bool has_begun;        /* to be read */
    uint64_t written;      /* bytes in the tokens */
    int64_t invalid;       /* of those */
    sli_checksum *sum;     /* of those; NULL: it is not opened, or done with */
    int64_t tokens_before; /* of all, before it */
} source;

typedef struct writer {
    const sl_vocab *vocab;
    const sl_tokens_writing *writing;
    const sli_tokens_limits *limits;
    const char *const *paths; /* [count] */
    source *texts;            /* [count] */
    int64_t count, next;      /* the text that is read next */
    /* Of what is written: */
    sli_token_output output;
    uint64_t done, bytes; /* of all texts */
    uint64_t recorded;    /* of `done`, when it was last recorded */
    uint64_t resumed;     /* of `done`, by an earlier call */
} writer;

/* ---- Sources ------------------------------------------------------------------------------ */

static void close_source(source *text)
{
    if (text->sum)
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
        SL_TRY_OR_FAIL(sl_error(SL_ERR_FORMAT, "%s: expected text, but the file is empty", path));
    SL_TRY_OR_FAIL(sli_checksum_create(&out->sum));
    return SL_OK;
fail:
    sli_text_blocks_close(&out->blocks);
    return status;
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

/* The next block of the texts. */
static sl_status read_block(void *context, sli_text_block *out)
{
    writer *job = context;
    source *text = &job->texts[job->next];
    if (job->next == job->count)
        return SL_OK;
    if (!text->sum)
        SL_TRY(open_source(job->paths[job->next], text));
    SL_TRY(sli_text_blocks_next(&text->blocks, job->vocab, job->limits->block_bytes, &out->text,
                                &out->bytes));
    out->number = job->next;
    out->begins = !text->has_begun;
    out->ends = sli_text_blocks_is_last(&text->blocks);
    text->has_begun = true;
    if (out->ends) { /* a process may have so many files open */
        sli_text_blocks_close(&text->blocks);
        job->next++;
    }
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

static sl_status add_part(writer *job, source *text, const sli_text_part *part)
{
    SL_TRY(sli_token_output_add(&job->output, part->tokens.ids, part->tokens.count));
    text->invalid += part->tokens.invalid_bytes;
    job->output.invalid_bytes += part->tokens.invalid_bytes;
    sli_checksum_add(text->sum, part->text, part->bytes);
    text->written += part->bytes;
    job->done += part->bytes;
    return SL_OK;
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

static int64_t tokens_before_text(const sli_token_output *output)
{
    return output->unfinished ? json_integer_value(json_object_get(output->before, "tokens"))
                              : output->tokens;
}

/* A text that the tokenizer loses leaves nothing of itself either. */
static sl_status check_has_tokens(writer *job, const source *text)
{
    if (job->output.tokens > text->tokens_before)
        return SL_OK;
    SL_TRY(sli_token_output_drop_text(&job->output));
    return sl_error(SL_ERR_FORMAT, "%s: expected text, but nothing in it is a token",
                    text->blocks.path);
}

static sl_status end_text(writer *job, source *text)
{
    int32_t end = sl_vocab_end(job->vocab);
    SL_TRY(check_has_tokens(job, text));
    if (end >= 0)
        SL_TRY(sli_token_output_add(&job->output, &end, 1));
    SL_TRY(note_source(job, text, false));
    close_source(text);
    return SL_OK;
}

static sl_status write_part(void *context, const sli_text_part *part)
{
    writer *job = context;
    source *text = &job->texts[part->number];
    if (part->begins)
        text->tokens_before = job->output.tokens;
    if (part->begins && !part->ends)
        SL_TRY(sli_token_output_begin_text(&job->output));
    SL_TRY(add_part(job, text, part));
    SL_TRY(check_is_text(job, text));
    return part->ends ? end_text(job, text) : note_source(job, text, true);
}

/* Passes over a text of the record, as far as it is written. */
static sl_status pass_over(writer *job, source *text, const json_t *recorded, bool is_done)
{
    bool same;
    SL_TRY(compare_source(text, recorded, &same));
    if (!same || (is_done ? text->written < text->blocks.size : text->written >= text->blocks.size))
        return sl_error(SL_ERR_INVALID,
                        "%s: it is not the text whose tokens were being written to %s: begin anew, "
                        "without resuming",
                        text->blocks.path, job->output.path);
    text->invalid = json_integer_value(json_object_get(recorded, "invalid_bytes"));
    text->tokens_before = tokens_before_text(&job->output);
    text->has_begun = true;
    job->done += text->written;
    job->recorded = job->resumed = job->done;
    return SL_OK;
}

/* All but the last of them are done, and that one may be. */
static sl_status pass_over_recorded(writer *job)
{
    size_t i, count = json_array_size(job->output.sources);
    json_t *recorded;
    json_array_foreach(job->output.sources, i, recorded)
    {
        source *text = &job->texts[i];
        bool is_done = i + 1 < count || !job->output.unfinished;
        SL_TRY(open_source(job->paths[i], text));
        SL_TRY(pass_over(job, text, recorded, is_done));
        if (!is_done)
            return SL_OK;
        close_source(text);
        job->next++;
    }
    return SL_OK;
}

static sl_status encode_texts(writer *job)
{
    const sli_text_stream stream = {.read = read_block,
                                    .write = write_part,
                                    .context = job,
                                    .batch_bytes = job->limits->block_bytes};
    sli_text_encoder *encoder;
    int threads = sli_text_encoder_threads(sli_usable_processors(), job->bytes);
    SL_TRY(sli_text_encoder_create(job->vocab, SLI_TEXT_PART_BYTES, threads, &encoder));
    sl_status status = sli_text_encoder_stream(encoder, &stream);
    sli_text_encoder_destroy(&encoder);
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
static sl_status measure(writer *job, const char *path)
{
    for (int64_t i = 0; i < job->count; i++) {
        if (sli_path_same_file(job->paths[i], path))
            return sl_error(SL_ERR_INVALID, "%s is an input and must not be overwritten", path);
        SL_TRY(open_source(job->paths[i], &job->texts[i]));
        job->bytes += job->texts[i].blocks.size;
        close_source(&job->texts[i]);
    }
    return SL_OK;
}

/* Whether the manifest that stands there is of these texts by this tokenizer. */
static sl_status find_whole_output(writer *job, bool *out)
{
    const json_t *older = job->output.older.json, *sources = json_object_get(older, "sources");
    *out = json_equal(json_object_get(older, "tokenizer"), job->output.tokenizer) &&
           json_array_size(sources) == (size_t)job->count;
    for (int64_t i = 0; i < job->count && *out; i++) {
        source *text = &job->texts[i];
        SL_TRY(open_source(job->paths[i], text));
        SL_TRY(compare_source(text, json_array_get(sources, (size_t)i), out));
        *out = *out && text->written == text->blocks.size;
        close_source(text);
    }
    return *out ? sli_manifest_has_files(older, job->output.path, out) : SL_OK;
}

static sl_status write_texts(writer *job, sl_tokens_written *out)
{
    bool is_there = false;
    sli_token_output *output = &job->output;
    if (json_array_size(output->sources) > (size_t)job->count)
        return sl_error(SL_ERR_INVALID,
                        "%s: what was written of it is of %zu texts, and there are %" PRId64
                        ": begin anew, without resuming",
                        output->path, json_array_size(output->sources), job->count);
    if (job->writing && job->writing->resume && !output->resumed)
        SL_TRY(find_whole_output(job, &is_there));
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
    SL_TRY(pass_over_recorded(job));
    SL_TRY(encode_texts(job));
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
    writer job = {.vocab = vocab,
                  .writing = writing,
                  .limits = limits,
                  .paths = texts,
                  .count = count,
                  .texts = calloc((size_t)count + 1, sizeof *job.texts)};
    bool resumes = writing && writing->resume;
    *out = (sl_tokens_written){0};
    if (!job.texts)
        return sli_no_memory(path, "%d texts", count);
    sl_status status;
    SL_TRY_OR_FAIL(measure(&job, path));
    SL_TRY_OR_FAIL(sli_token_output_open(path, vocab, limits->file_tokens, resumes, &job.output));
    status = write_texts(&job, out);
    sli_token_output_close(&job.output, status != SL_OK);
fail:
    for (int i = 0; i < count; i++)
        close_source(&job.texts[i]);
    free(job.texts);
    return status;
}

sl_status sl_tokens_write(const sl_vocab *vocab, const char *const *texts, int count,
                          const char *path, const sl_tokens_writing *writing,
                          sl_tokens_written *out)
{
    return sli_tokens_write(vocab, texts, count, path, writing, &usual_limits, out);
}
