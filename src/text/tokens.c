/* Token ids of texts: of words, a line at a time; of a BPE, all of a text at once. And back. */
#include "text/tokens.h"

#include "core/error.h"
#include "core/threads.h"
#include "text/bpe.h"
#include "text/line_reader.h"
#include "text/text_blocks.h"
#include "text/text_encoder.h"

#include <stdlib.h>
#include <string.h>

void sl_tokens_free(sl_tokens *tokens)
{
    sli_large_array_free(&(sli_large_array){.data = tokens->ids,
                                            .bytes = tokens->mapped_bytes,
                                            .is_mapped = tokens->mapped_bytes > 0});
    *tokens = (sl_tokens){0};
}

static const char name_of_ids[] = "ids of tokens";

void sli_tokens_own_ids(sl_tokens *tokens, sli_large_array *ids)
{
    sli_large_array_finish(ids, (size_t)tokens->count * sizeof *tokens->ids);
    tokens->ids = ids->data;
    tokens->mapped_bytes = ids->is_mapped ? ids->bytes : 0;
}

/* ---- Words ------------------------------------------------------------------------------ */

/* Where tokens go: to the ids, as a finished vocabulary or one that is still being counted has
 * them. */
typedef struct token_sink {
    const sl_vocab *vocab;
    sl_vocab_builder *builder; /* NULL where there is a vocabulary */
    sl_tokenizer *tokenizer;
    sl_tokens tokens; /* without their ids */
    sli_large_array ids;
    size_t bytes; /* of the lines, without their ends */
} token_sink;

static sl_status reserve_ids(token_sink *sink, int64_t count)
{
    return sli_large_array_reserve(&sink->ids, (size_t)count * sizeof(int32_t), name_of_ids);
}

static sl_status add_line(token_sink *sink, const char *line, size_t bytes)
{
    sl_token token;
    sink->tokens.line_count++;
    sink->bytes += bytes;
    SL_TRY(sl_tokenizer_start(sink->tokenizer, line, bytes));
    while (sl_tokenizer_next(sink->tokenizer, &token)) {
        int32_t id;
        if (sink->builder)
            SL_TRY(sl_vocab_builder_add(sink->builder, token.text, token.bytes, &id));
        else
            id = sl_vocab_id(sink->vocab, token.text, token.bytes);
        size_t bytes_before = (size_t)sink->tokens.count * sizeof id;
        if (bytes_before + sizeof id > sink->ids.bytes) /* a call for each token would be slower */
            SL_TRY(reserve_ids(sink, sink->tokens.count + 1));
        ((int32_t *)sink->ids.data)[sink->tokens.count++] = id;
    }
    return SL_OK;
}

static sl_status open_sink(token_sink *sink, size_t text_bytes)
{
    SL_TRY(sl_tokenizer_create(&sink->tokenizer));
    return reserve_ids(sink, (int64_t)(text_bytes / 4) + 16); /* English: 5 bytes a token */
}

void sli_tokens_count_unknown(sl_tokens *tokens)
{
    tokens->unknown_count = 0;
    for (int64_t i = 0; i < tokens->count; i++)
        tokens->unknown_count += tokens->ids[i] == SL_VOCAB_UNKNOWN;
}

/* Hands the ids over, or frees them after an error. */
static sl_status close_sink(token_sink *sink, sl_status status, sl_tokens *out)
{
    *out = (sl_tokens){0};
    if (status == SL_OK) {
        *out = sink->tokens;
        out->invalid_bytes = sli_tokenizer_invalid_bytes(sink->tokenizer);
        sli_tokens_own_ids(out, &sink->ids);
        sli_tokens_count_unknown(out);
    } else {
        sli_large_array_free(&sink->ids);
    }
    sl_tokenizer_destroy(&sink->tokenizer);
    return status;
}

sl_status sl_tokens_encode(const sl_vocab *vocab, const char *text, size_t bytes, bool special,
                           sl_tokens *out)
{
    return vocab->bpe && special ? sli_bpe_encode(vocab->bpe, text, bytes, true, false, out)
                                 : sli_tokens_encode_text(vocab, text, bytes, false, out);
}

static sl_status encode_parts(const sl_vocab *vocab, const char *text, size_t bytes, bool continues,
                              sl_tokens *out)
{
    sli_text_encoder *encoder;
    *out = (sl_tokens){0};
    int threads = sli_text_encoder_threads(sli_usable_processors(), bytes);
    SL_TRY(sli_text_encoder_create(vocab, SLI_TEXT_PART_BYTES, threads, &encoder));
    sl_status status = sli_text_encoder_run(encoder, text, bytes, continues, out);
    sli_text_encoder_destroy(&encoder);
    return status;
}

sl_status sli_tokens_encode_text(const sl_vocab *vocab, const char *text, size_t bytes,
                                 bool continues, sl_tokens *out)
{
    if (vocab->bpe)
        return encode_parts(vocab, text, bytes, continues, out);
    token_sink sink = {.vocab = vocab};
    sl_status status;
    SL_TRY_OR_FAIL(open_sink(&sink, bytes));
    status = add_line(&sink, text, bytes);
fail:
    return close_sink(&sink, status, out);
}

/* ---- Files ------------------------------------------------------------------------------ */

const sli_text_range sli_whole_text = {0, 100};

sl_status sli_check_is_text(const char *name, size_t bytes, int64_t invalid, int64_t controls)
{
    if ((size_t)(invalid + controls) <= bytes / 3)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "%s: expected text in UTF-8, but of its %zu bytes at least %lld are not "
                    "UTF-8 and %lld are control characters",
                    name, bytes, (long long)invalid, (long long)controls);
}

/* `before`: whether the file has lines before the range. */
static sl_status check_has_tokens(const char *name, const sl_tokens *tokens, bool before)
{
    if (tokens->line_count == 0 && before)
        return sl_error(SL_ERR_FORMAT,
                        "%s: no line begins there: a text with so few lines needs a directory with "
                        "a file for each split",
                        name);
    if (tokens->line_count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: expected text, but the file is empty", name);
    if (tokens->count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: expected text, but none of its %lld lines has a token",
                        name, (long long)tokens->line_count);
    return SL_OK;
}

/* The first byte of the file behind so many hundredths of it. */
static uint64_t bytes_of(uint64_t file_bytes, unsigned hundredths)
{
    return file_bytes / 100 * hundredths + file_bytes % 100 * hundredths / 100;
}

static sl_status add_file(token_sink *sink, sli_line_reader *reader, const char *name,
                          sli_text_range range)
{
    const char *line;
    size_t bytes;
    uint64_t all = sli_line_reader_file_bytes(reader), begin = 0;
    uint64_t first = bytes_of(all, range.from), end = bytes_of(all, range.to);
    SL_TRY(open_sink(sink, end - first));
    while (range.to == sli_whole_text.to || begin < end) { /* a file may grow */
        SL_TRY(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            break;
        if (begin >= first)
            SL_TRY(add_line(sink, line, bytes));
        begin += bytes + 1;
    }
    SL_TRY(check_has_tokens(name, &sink->tokens, begin > 0));
    return sli_check_is_text(name, sink->bytes, sli_tokenizer_invalid_bytes(sink->tokenizer),
                             sli_tokenizer_control_characters(sink->tokenizer));
}

static sl_status read_words(token_sink *sink, const char *path, const char *name,
                            sli_text_range range, sl_tokens *out)
{
    sli_line_reader *reader = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(sli_line_reader_open(path, &reader));
    status = add_file(sink, reader, name, range);
fail:
    sli_line_reader_close(&reader);
    return close_sink(sink, status, out);
}

/* ---- Texts of a BPE ----------------------------------------------------------------------- */

/* A range of a file that is being read, and its tokens. */
typedef struct range_reading {
    const sl_vocab *vocab;
    const char *name;
    sli_text_blocks text;
    int threads;
    uint64_t text_bytes;
    bool has_begun;
    sli_large_array ids;
    sl_tokens sum; /* without its ids */
} range_reading;

static sl_status read_block(void *context, sli_text_block *out)
{
    range_reading *job = context;
    SL_TRY(sli_text_blocks_next(&job->text, job->vocab, SLI_TEXT_BLOCK_BYTES, &out->text,
                                &out->bytes));
    out->begins = !job->has_begun;
    out->ends = sli_text_blocks_is_last(&job->text);
    job->has_begun = true;
    return SL_OK;
}

/* A file of another kind is refused before all of it has become tokens. */
static sl_status add_part(void *context, const sli_text_part *part)
{
    range_reading *job = context;
    const sl_tokens *tokens = &part->tokens;
    size_t count = (size_t)tokens->count, before = (size_t)job->sum.count;
    SL_TRY(sli_large_array_reserve(&job->ids, (before + count + 1) * sizeof *tokens->ids,
                                   name_of_ids));
    if (count > 0)
        memcpy((int32_t *)job->ids.data + before, tokens->ids, count * sizeof *tokens->ids);
    job->sum.count += tokens->count;
    job->sum.line_count += tokens->line_count;
    job->sum.invalid_bytes += tokens->invalid_bytes;
    return sli_check_is_text(job->name, job->text_bytes, job->sum.invalid_bytes, 0);
}

static sl_status encode_range(range_reading *job, sl_tokens *out)
{
    sli_text_encoder *encoder;
    const sli_text_stream stream = {.read = read_block,
                                    .write = add_part,
                                    .context = job,
                                    .batch_bytes = SLI_TEXT_BLOCK_BYTES};
    int threads = sli_text_encoder_threads(job->threads, job->text_bytes);
    SL_TRY(sli_text_encoder_create(job->vocab, SLI_TEXT_PART_BYTES, threads, &encoder));
    sl_status status = sli_text_encoder_stream(encoder, &stream);
    sli_text_encoder_destroy(&encoder);
    if (status != SL_OK) {
        sli_large_array_free(&job->ids);
        return status;
    }
    sli_tokens_own_ids(&job->sum, &job->ids);
    *out = job->sum;
    return SL_OK;
}

static sl_status read_range(range_reading *job, sli_text_range range, sl_tokens *out)
{
    uint64_t first, end;
    sli_text_blocks *text = &job->text;
    SL_TRY(sli_text_blocks_find_line(text, bytes_of(text->size, range.from), &first));
    SL_TRY(sli_text_blocks_find_line(text, bytes_of(text->size, range.to), &end));
    text->offset = first;
    text->end = end;
    job->text_bytes = end - first;
    SL_TRY(encode_range(job, out));
    return check_has_tokens(job->name, out, first > 0);
}

/* All of the range is one text: pieces may cross line ends. */
static sl_status read_text(range_reading *job, const char *path, sli_text_range range,
                           sl_tokens *out)
{
    *out = (sl_tokens){0};
    SL_TRY(sli_text_blocks_open(path, &job->text));
    sl_status status = read_range(job, range, out);
    sli_text_blocks_close(&job->text);
    if (status != SL_OK)
        sl_tokens_free(out);
    return status;
}

sl_status sli_tokens_read(const sl_vocab *vocab, const char *path, const char *name,
                          sli_text_range range, int threads, sl_tokens *out)
{
    range_reading job = {.vocab = vocab,
                         .name = name,
                         .threads = threads > 0 ? threads : sli_usable_processors()};
    if (vocab->bpe)
        return read_text(&job, path, range, out);
    return read_words(&(token_sink){.vocab = vocab}, path, name, range, out);
}

sl_status sli_tokens_count(sl_vocab_builder *builder, const char *path, const char *name,
                           sli_text_range range, sl_tokens *out)
{
    return read_words(&(token_sink){.builder = builder}, path, name, range, out);
}

/* ---- Back to text ------------------------------------------------------------------------- */

sl_status sl_tokens_decode(const sl_vocab *vocab, const int32_t *ids, int64_t count, char **text,
                           size_t *bytes)
{
    size_t most = 1;
    for (int64_t i = 0; i < count; i++)
        most += sl_vocab_token(vocab, ids[i]).bytes + 1;
    char *next = *text = malloc(most);
    if (!next)
        return sli_no_memory("sl_tokens_decode", "a text of %zu bytes", most);
    for (int64_t i = 0; i < count; i++) {
        sl_token token = sl_vocab_token(vocab, ids[i]);
        if (!vocab->bpe && i > 0)
            *next++ = ' ';
        if (token.bytes > 0)
            memcpy(next, token.text, token.bytes);
        next += token.bytes;
    }
    *next = '\0';
    *bytes = (size_t)(next - *text);
    if (vocab->bpe && vocab->bpe->strips && **text == ' ')
        memmove(*text, *text + 1, (*bytes)--);
    return SL_OK;
}
