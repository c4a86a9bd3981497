/* A vocabulary as a text file: one token a line, the line's number is the id. */
#include "text/vocab.h"

#include "core/replace.h"
#include "text/line_reader.h"

#include <stdlib.h>
#include <string.h>

/* ---- Reading ---------------------------------------------------------------------------- */

enum { SHOWN_BYTES = 40 }; /* of a token in an error sentence */

static sl_status add_line(sl_vocab *vocab, const char *path, const char *line, size_t bytes)
{
    int32_t count = vocab->tokens.count, id;
    int shown = bytes < SHOWN_BYTES ? (int)bytes : SHOWN_BYTES;
    if (count == 0 && (bytes != SLI_UNKNOWN_TOKEN_BYTES ||
                       memcmp(line, SLI_UNKNOWN_TOKEN, SLI_UNKNOWN_TOKEN_BYTES) != 0))
        return sl_error(SL_ERR_FORMAT,
                        "%s: line 1: a vocabulary begins with " SLI_UNKNOWN_TOKEN ", got \"%.*s\"",
                        path, shown, line);
    sl_status status = sli_token_table_add(&vocab->tokens, line, bytes, &id);
    if (status != SL_OK)
        return sl_error_context(status == SL_ERR_INVALID ? SL_ERR_FORMAT : status,
                                "%s: line %lld: ", path, (long long)count + 1);
    if (id < count)
        return sl_error(SL_ERR_FORMAT, "%s: line %lld: the token \"%.*s\" stands in line %lld too",
                        path, (long long)count + 1, shown, line, (long long)id + 1);
    return SL_OK;
}

static sl_status read_lines(sli_line_reader *reader, const char *path, sl_vocab *vocab)
{
    const char *line;
    size_t bytes;
    for (;;) {
        SL_TRY(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            break;
        SL_TRY(add_line(vocab, path, line, bytes));
    }
    if (vocab->tokens.count == 0)
        return sl_error(SL_ERR_FORMAT,
                        "%s: a vocabulary begins with " SLI_UNKNOWN_TOKEN ", but the file is empty",
                        path);
    return SL_OK;
}

sl_status sl_vocab_load(const char *path, sl_vocab **out)
{
    sli_line_reader *reader = NULL;
    *out = NULL;
    sl_status status = sli_line_reader_open(path, &reader);
    if (status == SL_OK)
        status = sli_vocab_create_empty(out);
    if (status == SL_OK)
        status = read_lines(reader, path, *out);
    if (status != SL_OK)
        sl_vocab_destroy(out);
    sli_line_reader_close(&reader);
    return status;
}

/* ---- Writing ---------------------------------------------------------------------------- */

/* The table holds the tokens in the order of their ids with a 0 after each: the file, but for the
 * line ends. Tokens may have zeros of their own, so the ends are known by the starts alone. */
sl_status sli_vocab_text(const sl_vocab *vocab, char **text, size_t *bytes)
{
    const sli_token_table *tokens = &vocab->tokens;
    *bytes = tokens->starts[tokens->count];
    *text = malloc(*bytes);
    if (!*text)
        return sl_error(SL_ERR_MEMORY, "no memory for a vocabulary of %zu bytes", *bytes);
    memcpy(*text, tokens->bytes, *bytes);
    for (int32_t i = 1; i <= tokens->count; i++)
        (*text)[tokens->starts[i] - 1] = '\n';
    return SL_OK;
}

sl_status sli_vocab_checksum(const sl_vocab *vocab, char text[SLI_CHECKSUM_BYTES])
{
    char *content;
    size_t bytes;
    SL_TRY(sli_vocab_text(vocab, &content, &bytes));
    sli_checksum_of(content, bytes, text);
    free(content);
    return SL_OK;
}

sl_status sl_vocab_save(const sl_vocab *vocab, const char *path)
{
    char *text;
    size_t bytes;
    SL_TRY(sl_error_context(sli_vocab_text(vocab, &text, &bytes), "%s: ", path));
    sli_replace_file *file = NULL;
    sl_status status = sli_replace_file_create(path, &file);
    if (status == SL_OK)
        status = sli_replace_file_write(file, 0, text, bytes);
    if (status == SL_OK)
        status = sli_replace_file_commit(file);
    sli_replace_file_destroy(&file);
    free(text);
    return status;
}
