#include "text/tokens.h"

#include "text/line_reader.h"

#include <stdlib.h>

/* Where tokens go: to the ids, as a finished vocabulary or one that is still being counted has
 * them. */
typedef struct sink {
    const sl_vocab *vocab;
    sl_vocab_builder *builder; /* NULL where there is a vocabulary */
    sl_tokenizer *tokenizer;
    sl_tokens tokens;
    int64_t capacity;
} sink;

void sl_tokens_free(sl_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (sl_tokens){0};
}

static sl_status reserve(sink *to, int64_t capacity)
{
    int32_t *ids = (uint64_t)capacity <= SIZE_MAX / sizeof *ids
                       ? realloc(to->tokens.ids, (size_t)capacity * sizeof *ids)
                       : NULL;
    if (!ids)
        return sl_error(SL_ERR_MEMORY, "no memory for %lld token ids", (long long)capacity);
    to->tokens.ids = ids;
    to->capacity = capacity;
    return SL_OK;
}

static sl_status take_line(sink *to, const char *line, size_t bytes)
{
    sl_token token;
    to->tokens.line_count++;
    SL_TRY(sl_tokenizer_start(to->tokenizer, line, bytes));
    while (sl_tokenizer_next(to->tokenizer, &token)) {
        int32_t id;
        if (to->builder)
            SL_TRY(sl_vocab_builder_add(to->builder, token.text, token.bytes, &id));
        else
            id = sl_vocab_id(to->vocab, token.text, token.bytes);
        if (to->tokens.count == to->capacity)
            SL_TRY(reserve(to, to->capacity * 2));
        to->tokens.ids[to->tokens.count++] = id;
    }
    return SL_OK;
}

static sl_status open_sink(sink *to, size_t text_bytes)
{
    SL_TRY(sl_tokenizer_create(&to->tokenizer));
    return reserve(to, (int64_t)(text_bytes / 4) + 16); /* English: 5 bytes a token */
}

/* Hands the ids over, or frees them where the text could not be taken. */
static sl_status close_sink(sink *to, sl_status status, sl_tokens *out)
{
    sl_tokenizer_destroy(&to->tokenizer);
    if (status == SL_OK)
        status = reserve(to, to->tokens.count + 1);
    if (status != SL_OK)
        sl_tokens_free(&to->tokens);
    *out = to->tokens;
    return status;
}

sl_status sl_tokens_encode(const sl_vocab *vocab, const char *text, size_t bytes, sl_tokens *out)
{
    sink to = {.vocab = vocab};
    sl_status status = open_sink(&to, bytes);
    if (status == SL_OK)
        status = take_line(&to, text, bytes);
    return close_sink(&to, status, out);
}

static sl_status take_file(sink *to, sli_line_reader *reader, const char *path)
{
    const char *line;
    size_t bytes;
    SL_TRY(open_sink(to, sli_line_reader_file_bytes(reader)));
    for (;;) {
        SL_TRY(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            break;
        SL_TRY(take_line(to, line, bytes));
    }
    if (to->tokens.line_count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: expected text, but the file is empty", path);
    if (to->tokens.count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: expected text, but none of its %lld lines has a token",
                        path, (long long)to->tokens.line_count);
    return SL_OK;
}

static sl_status read_file(sink *to, const char *path, sl_tokens *out)
{
    sli_line_reader *reader = NULL;
    sl_status status = sli_line_reader_open(path, &reader);
    if (status == SL_OK)
        status = take_file(to, reader, path);
    sli_line_reader_close(&reader);
    return close_sink(to, status, out);
}

sl_status sl_tokens_read(const sl_vocab *vocab, const char *path, sl_tokens *out)
{
    sink to = {.vocab = vocab};
    return read_file(&to, path, out);
}

sl_status sli_tokens_read_counting(sl_vocab_builder *builder, const char *path, sl_tokens *out)
{
    sink to = {.builder = builder};
    return read_file(&to, path, out);
}
