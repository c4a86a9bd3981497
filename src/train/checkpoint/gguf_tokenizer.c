/* The tokenizer in a GGUF file: "gpt2" for a BPE of byte level, "llama" for one of SentencePiece's
 * kind. What it needs is in the tokenizer.json that sluice prints. */
#include "core/error.h"
#include "text/bpe.h"
#include "train/checkpoint/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* llama.cpp's types of tokens. */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

typedef struct token {
    const char *text; /* NULL: no id of the tokenizer */
    int32_t type;
    float score;
} token;

/* By the names of sluice's splitters; llama.cpp splits by its own patterns of these names. Of the
 * two that have cl100k's, llama-bpe takes pieces that are tokens whole, which is its name for
 * ignore_merges, and dbrx does not. */
static const char *name_of_splitter(const char *splitter, bool all_whole)
{
    const char *const names[][2] = {{"gpt2", "gpt-2"},
                                    {"smollm", "smollm"},
                                    {"qwen2", "qwen2"},
                                    {"cl100k", all_whole ? "llama-bpe" : "dbrx"},
                                    {"o200k", "gpt-4o"},
                                    {"qwen3.5", "qwen35"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(splitter, names[i][0]) == 0)
            return names[i][1];
    return "default";
}

static void set_token(token *tokens, int64_t ntokens, int64_t id, const char *text, int32_t type)
{
    if (id >= 0 && id < ntokens)
        tokens[id] = (token){.text = text, .type = type};
}

static void read_tokens(const json_t *json, const sl_vocab *vocab, int64_t ntokens, token *tokens)
{
    const json_t *model = json_object_get(json, "model"),
                 *added = json_object_get(json, "added_tokens");
    const char *name;
    json_t *id;
    size_t i;
    json_t *entry;
    json_object_foreach(json_object_get(model, "vocab"), name, id)
    {
        bool is_byte = vocab->bpe->of_characters && strncmp(name, "<0x", 3) == 0 &&
                       strlen(name) == strlen("<0x00>");
        set_token(tokens, ntokens, json_integer_value(id), name, is_byte ? BYTE : NORMAL);
    }
    json_array_foreach(added, i, entry)
    {
        bool is_special = json_is_true(json_object_get(entry, "special"));
        set_token(tokens, ntokens, json_integer_value(json_object_get(entry, "id")),
                  json_string_value(json_object_get(entry, "content")),
                  is_special ? CONTROL : USER_DEFINED);
    }
    if (vocab->bpe->unknown >= 0 && vocab->bpe->unknown < ntokens)
        tokens[vocab->bpe->unknown].type = UNKNOWN;
}

/* SentencePiece merges the pair whose token has the highest score: here that of the first merge. */
static void score_tokens(const sli_bpe *bpe, int64_t ntokens, token *tokens)
{
    for (int64_t id = 0; id < ntokens; id++)
        tokens[id].score = tokens[id].type == NORMAL ? -(float)bpe->merge_count - 1 : 0;
    for (size_t i = 0; i <= bpe->mask; i++) {
        const sli_merge *merge = &bpe->merges[i];
        if (merge->rank != SLI_NO_MERGE && merge->made < ntokens &&
            tokens[merge->made].type == NORMAL && -(float)merge->rank > tokens[merge->made].score)
            tokens[merge->made].score = -(float)merge->rank;
    }
}

static void add_tokens(sli_gguf *file, const token *tokens, int64_t ntokens)
{
    char padding[32];
    sli_gguf_begin_texts(file, "tokenizer.ggml.tokens", (uint64_t)ntokens);
    for (int64_t id = 0; id < ntokens; id++) {
        snprintf(padding, sizeof padding, "[PAD%" PRId64 "]", id);
        const char *text = tokens[id].text ? tokens[id].text : padding;
        sli_gguf_put_text(file, text, strlen(text));
    }
    sli_gguf_begin_integers(file, "tokenizer.ggml.token_type", (uint64_t)ntokens);
    for (int64_t id = 0; id < ntokens; id++)
        sli_gguf_put_integer(file, tokens[id].text ? tokens[id].type : UNUSED);
}

static void add_scores(sli_gguf *file, const token *tokens, int64_t ntokens)
{
    sli_gguf_begin_floats(file, "tokenizer.ggml.scores", (uint64_t)ntokens);
    for (int64_t id = 0; id < ntokens; id++)
        sli_gguf_put_float(file, tokens[id].score);
}

/* "LEFT RIGHT" each. */
static void add_merges(sli_gguf *file, const json_t *merges)
{
    size_t i;
    json_t *merge;
    sli_gguf_begin_texts(file, "tokenizer.ggml.merges", json_array_size(merges));
    json_array_foreach(merges, i, merge)
    {
        char pair[4 * SLI_BPE_MOST_TOKEN_BYTES + 2];
        int bytes =
            snprintf(pair, sizeof pair, "%s %s", json_string_value(json_array_get(merge, 0)),
                     json_string_value(json_array_get(merge, 1)));
        sli_gguf_put_text(file, pair, (size_t)bytes);
    }
}

/* A file names one token that a text begins with, and one that it ends with. */
static sl_status check_template(const sli_bpe *bpe)
{
    if (bpe->before <= 1 && bpe->after <= 1)
        return SL_OK;
    return sl_error(SL_ERR_UNSUPPORTED,
                    "a GGUF file has one token before a text and one behind it, but the "
                    "tokenizer's template has %zu and %zu",
                    bpe->before, bpe->after);
}

/* The token of the tokenizer's template comes before config.json's, which comes before the
 * tokenizer's end of text. -1: there is none. */
static int64_t special_id(const json_t *ids, const char *name, const sl_vocab *vocab)
{
    const sli_bpe *bpe = vocab ? vocab->bpe : NULL;
    bool is_first = strcmp(name, "bos_token_id") == 0, is_last = strcmp(name, "eos_token_id") == 0;
    if (bpe && is_first && bpe->before > 0)
        return bpe->around[0];
    if (bpe && is_last && bpe->after > 0)
        return bpe->around[bpe->before];
    const json_t *id = json_object_get(ids, name);
    if (json_is_array(id)) /* several ends: the first is the text's */
        id = json_array_get(id, 0);
    if (json_is_integer(id))
        return json_integer_value(id);
    return is_last && vocab ? sl_vocab_end(vocab) : -1;
}

static void add_special_ids(sli_gguf *file, const sl_model_options *model, const sl_vocab *vocab)
{
    static const char *const names[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token_id", "tokenizer.ggml.padding_token_id"}};
    json_t *ids = *model->decoder.token_ids ? json_loads(model->decoder.token_ids, 0, NULL) : NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t number = special_id(ids, names[i][0], vocab);
        if (number >= 0 && number < model->ntokens)
            sli_gguf_add_number(file, names[i][1], (uint32_t)number);
    }
    json_decref(ids);
}

static void add_template(sli_gguf *file, const char *settings)
{
    json_t *json = settings ? json_loads(settings, 0, NULL) : NULL;
    const char *template = json_string_value(json_object_get(json, "chat_template"));
    if (template)
        sli_gguf_add_text(file, "tokenizer.chat_template", template);
    json_decref(json);
}

static sl_status add_bpe(sli_gguf *file, const json_t *json, const sl_vocab *vocab, int64_t ntokens)
{
    const sli_bpe *bpe = vocab->bpe;
    token *tokens = calloc((size_t)ntokens + 1, sizeof *tokens);
    if (!tokens)
        return sli_no_memory(NULL, "%" PRId64 " tokens", ntokens);
    read_tokens(json, vocab, ntokens, tokens);
    sli_gguf_add_text(file, "tokenizer.ggml.model", bpe->of_characters ? "llama" : "gpt2");
    if (!bpe->of_characters)
        sli_gguf_add_text(file, "tokenizer.ggml.pre",
                          name_of_splitter(bpe->split->name, bpe->all_whole));
    add_tokens(file, tokens, ntokens);
    if (bpe->of_characters) {
        score_tokens(bpe, ntokens, tokens);
        add_scores(file, tokens, ntokens);
        sli_gguf_add_flag(file, "tokenizer.ggml.add_space_prefix", bpe->prefix != SLI_PREFIX_NEVER);
        if (bpe->unknown >= 0)
            sli_gguf_add_number(file, "tokenizer.ggml.unknown_token_id", (uint32_t)bpe->unknown);
    }
    free(tokens);
    add_merges(file, json_object_get(json_object_get(json, "model"), "merges"));
    sli_gguf_add_flag(file, "tokenizer.ggml.add_bos_token", bpe->before > 0);
    sli_gguf_add_flag(file, "tokenizer.ggml.add_eos_token", bpe->after > 0);
    return SL_OK;
}

sl_status sli_gguf_add_tokenizer(sli_gguf *file, const sl_model_options *model,
                                 const sl_vocab *vocab)
{
    char *text;
    if (vocab && !vocab->bpe)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "a GGUF file has a BPE, but the model's tokenizer is one of words");
    if (vocab)
        SL_TRY(check_template(vocab->bpe));
    add_special_ids(file, model, vocab);
    if (!vocab) {
        sli_gguf_add_text(file, "tokenizer.ggml.model", "none");
        return SL_OK;
    }
    add_template(file, vocab->settings);
    SL_TRY(sli_vocab_print(vocab, &text));
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    free(text);
    if (!json)
        return sl_error(SL_ERR_UNSUPPORTED, "the tokenizer has no place in a GGUF file: %s",
                        error.text);
    sl_status status = add_bpe(file, json, vocab, model->ntokens);
    json_decref(json);
    return status;
}
