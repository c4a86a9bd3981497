/* Vocabularies, and how they are made by counting. */
#include "text/vocab.h"

#include "core/error.h"
#include "core/memory.h"
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

/* ---- Look-up ---------------------------------------------------------------------------- */

sl_status sli_vocab_create(sl_vocab **out)
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
    sli_bpe_destroy(&(*vocab)->bpe);
    free((*vocab)->settings);
    free(*vocab);
    *vocab = NULL;
}

int32_t sl_vocab_size(const sl_vocab *vocab)
{
    return vocab->bpe ? sli_bpe_size(vocab->bpe) : vocab->tokens.count;
}

bool sl_vocab_has_words(const sl_vocab *vocab)
{
    return !vocab->bpe;
}

int32_t sl_vocab_id(const sl_vocab *vocab, const char *text, size_t bytes)
{
    if (vocab->bpe)
        return sli_bpe_id(vocab->bpe, text, bytes);
    int32_t id = sli_token_table_find(&vocab->tokens, text, bytes);
    return id < 0 ? SL_VOCAB_UNKNOWN : id;
}

sl_token sl_vocab_token(const sl_vocab *vocab, int32_t id)
{
    if (vocab->bpe)
        return sli_bpe_token(vocab->bpe, id);
    if (id < 0 || id >= vocab->tokens.count)
        return (sl_token){NULL, 0};
    return sli_token_table_get(&vocab->tokens, id);
}

int32_t sl_vocab_end(const sl_vocab *vocab)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    json_t *settings = vocab->settings ? json_loads(vocab->settings, 0, NULL) : NULL;
    const json_t *given = json_object_get(settings, "eos_token");
    const char *name =
        json_string_value(json_is_object(given) ? json_object_get(given, "content") : given);
    int32_t id = vocab->bpe && name ? sli_bpe_id(vocab->bpe, name, strlen(name)) : -1;
    json_decref(settings);
    for (size_t i = 0; vocab->bpe && id < 0 && i < sizeof names / sizeof *names; i++)
        id = sli_bpe_id(vocab->bpe, names[i], strlen(names[i]));
    return id;
}

bool sl_vocab_is_special(const sl_vocab *vocab, int32_t id)
{
    sl_token token = sl_vocab_token(vocab, id);
    const sli_added_token *added =
        vocab->bpe && token.text
            ? sli_added_tokens_find(&vocab->bpe->added, token.text, token.bytes)
            : NULL;
    return added && added->special && added->id == id;
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

/* Comparing UTF-8 byte by byte orders it by code points. */
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
    sl_status status;
    SL_TRY_OR_FAIL(sli_vocab_create(out));
    status = add_sorted(sorted, count, final_ids, *out);
fail:
    if (status != SL_OK)
        sl_vocab_destroy(out);
    free(sorted);
    return status;
}
