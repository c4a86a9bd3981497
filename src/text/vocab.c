/* Vocabularies, how they are made by counting, and their files: one token a line, the line's number
 * is the id. */
#include "text/vocab.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/replace.h"
#include "text/line_reader.h"

#include <stdlib.h>
#include <string.h>

/* ---- Look-up ---------------------------------------------------------------------------- */

/* Without any token, not even <unk>. */
static sl_status create_empty(sl_vocab **out)
{
    *out = NULL;
    sl_vocab *vocab = calloc(1, sizeof *vocab);
    if (!vocab)
        return sli_no_memory(NULL, "a vocabulary");
    sl_status status = sli_token_table_init(&vocab->tokens);
    if (status != SL_OK)
        sl_vocab_destroy(&vocab);
    *out = vocab;
    return status;
}

void sl_vocab_destroy(sl_vocab **vocab)
{
    if (!vocab || !*vocab)
        return;
    sli_token_table_free(&(*vocab)->tokens);
    free(*vocab);
    *vocab = NULL;
}

int32_t sl_vocab_size(const sl_vocab *vocab)
{
    return vocab->tokens.count;
}

int32_t sl_vocab_id(const sl_vocab *vocab, const char *text, size_t bytes)
{
    int32_t id = sli_token_table_find(&vocab->tokens, text, bytes);
    return id < 0 ? SL_VOCAB_UNKNOWN : id;
}

sl_token sl_vocab_token(const sl_vocab *vocab, int32_t id)
{
    if (id < 0 || id >= vocab->tokens.count)
        return (sl_token){NULL, 0};
    return sli_token_table_get(&vocab->tokens, id);
}

/* ---- Counting --------------------------------------------------------------------------- */

struct sl_vocab_builder {
    sli_token_table tokens; /* in order of first appearance */
    int64_t *counts;        /* [capacity] */
    size_t capacity;
};

sl_status sl_vocab_builder_create(sl_vocab_builder **out)
{
    *out = NULL;
    sl_vocab_builder *builder = calloc(1, sizeof *builder);
    if (!builder)
        return sli_no_memory("sl_vocab_builder_create", "a builder");
    sl_status status = sli_token_table_init(&builder->tokens);
    if (status != SL_OK)
        sl_vocab_builder_destroy(&builder);
    *out = builder;
    return status;
}

void sl_vocab_builder_destroy(sl_vocab_builder **builder)
{
    if (!builder || !*builder)
        return;
    sli_token_table_free(&(*builder)->tokens);
    free((*builder)->counts);
    free(*builder);
    *builder = NULL;
}

static sl_status reserve_counts(sl_vocab_builder *builder)
{
    size_t before = builder->capacity, count = (size_t)builder->tokens.count + 1;
    SL_TRY(sli_array_reserve(&builder->counts, &builder->capacity, count, sizeof *builder->counts,
                             INT32_MAX, "different tokens"));
    memset(builder->counts + before, 0, (builder->capacity - before) * sizeof *builder->counts);
    return SL_OK;
}

sl_status sl_vocab_builder_add(sl_vocab_builder *builder, const char *text, size_t bytes,
                               int32_t *provisional)
{
    int32_t id;
    if ((size_t)builder->tokens.count == builder->capacity) /* the token may be a new one */
        SL_TRY(reserve_counts(builder));
    sl_status status = sli_token_table_add(&builder->tokens, text, bytes, &id);
    if (status != SL_OK)
        return sl_error_context(status, "sl_vocab_builder_add: ");
    builder->counts[id]++;
    if (provisional)
        *provisional = id;
    return SL_OK;
}

int32_t sl_vocab_builder_size(const sl_vocab_builder *builder)
{
    return builder->tokens.count;
}

/* ---- From counts to ids ----------------------------------------------------------------- */

typedef struct counted {
    sl_token token;
    int64_t count;
    int32_t provisional;
} counted;

/* The order of UTF-8's bytes is that of its code points. */
static int by_count_then_text(const void *left, const void *right)
{
    const counted *a = left, *b = right;
    if (a->count != b->count)
        return a->count > b->count ? -1 : 1;
    size_t common = a->token.bytes < b->token.bytes ? a->token.bytes : b->token.bytes;
    int order = memcmp(a->token.text, b->token.text, common);
    if (order != 0)
        return order;
    return a->token.bytes < b->token.bytes ? -1 : 1; /* no two are equal */
}

/* Puts <unk> and then the sorted tokens into the vocabulary. <unk> among them keeps id 0. */
static sl_status add_sorted(const counted *sorted, int32_t count, int32_t *final_ids,
                            sl_vocab *vocab)
{
    int32_t id;
    SL_TRY(sli_token_table_add(&vocab->tokens, SLI_UNKNOWN_TOKEN, SLI_UNKNOWN_TOKEN_BYTES, &id));
    for (int32_t i = 0; i < count; i++) {
        SL_TRY(
            sli_token_table_add(&vocab->tokens, sorted[i].token.text, sorted[i].token.bytes, &id));
        if (final_ids)
            final_ids[sorted[i].provisional] = id;
    }
    return SL_OK;
}

sl_status sl_vocab_builder_finish(const sl_vocab_builder *builder, int32_t *final_ids,
                                  sl_vocab **out)
{
    int32_t count = builder->tokens.count;
    *out = NULL;
    counted *sorted = malloc((size_t)count * sizeof *sorted + 1);
    if (!sorted)
        return sli_no_memory("sl_vocab_builder_finish", "%d tokens", count);
    for (int32_t i = 0; i < count; i++)
        sorted[i] = (counted){sli_token_table_get(&builder->tokens, i), builder->counts[i], i};
    qsort(sorted, (size_t)count, sizeof *sorted, by_count_then_text);
    sl_status status = create_empty(out);
    if (status == SL_OK)
        status = add_sorted(sorted, count, final_ids, *out);
    if (status != SL_OK)
        sl_vocab_destroy(out);
    free(sorted);
    return status;
}

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
        status = create_empty(out);
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
        return sli_no_memory(NULL, "a vocabulary of %zu bytes", *bytes);
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
    sl_status status = sli_file_write(path, text, bytes);
    free(text);
    return status;
}
