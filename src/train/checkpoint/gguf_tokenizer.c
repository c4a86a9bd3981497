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

/* By the names of sluice's splitters; llama.cpp splits by its own patterns of these names. */
static const char *name_of_splitter(const char *splitter)
{
    static const char *const names[][2] = {{"gpt2", "gpt-2"},   {"smollm", "smollm"},
                                           {"qwen2", "qwen2"},  {"cl100k", "llama-bpe"},
                                           {"o200k", "gpt-4o"}, {"qwen3.5", "qwen35"}};
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
static sl_status add_merges(sli_gguf *file, const json_t *merges)
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
    return SL_OK;
}

/* Ids of the model's config.json, else those of the tokenizer. */
static void add_special_ids(sli_gguf *file, const sl_model_options *model, const sl_vocab *vocab)
{
    static const char *const names[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token_id", "tokenizer.ggml.padding_token_id"}};
    json_t *ids = *model->decoder.token_ids ? json_loads(model->decoder.token_ids, 0, NULL) : NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *id = json_object_get(ids, names[i][0]);
        if (json_is_array(id)) /* several ends: the first is the text's */
            id = json_array_get(id, 0);
        int64_t number = json_is_integer(id) ? json_integer_value(id) : -1;
        if (number < 0 && i == 1 && vocab)
            number = sl_vocab_end(vocab);
        if (number >= 0)
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
        sli_gguf_add_text(file, "tokenizer.ggml.pre", name_of_splitter(bpe->split->name));
    add_tokens(file, tokens, ntokens);
    if (bpe->of_characters) {
        score_tokens(bpe, ntokens, tokens);
        add_scores(file, tokens, ntokens);
        sli_gguf_add_flag(file, "tokenizer.ggml.add_space_prefix", bpe->prefix != SLI_PREFIX_NEVER);
        if (bpe->unknown >= 0)
            sli_gguf_add_number(file, "tokenizer.ggml.unknown_token_id", (uint32_t)bpe->unknown);
    }
    free(tokens);
    sl_status status = add_merges(file, json_object_get(json_object_get(json, "model"), "merges"));
    sli_gguf_add_flag(file, "tokenizer.ggml.add_bos_token", bpe->before > 0);
    sli_gguf_add_flag(file, "tokenizer.ggml.add_eos_token", bpe->after > 0);
    return status;
}

sl_status sli_gguf_add_tokenizer(sli_gguf *file, const sl_model_options *model,
                                 const sl_vocab *vocab)
{
    char *text;
    add_special_ids(file, model, vocab);
    if (!vocab) {
        sli_gguf_add_text(file, "tokenizer.ggml.model", "none");
        return SL_OK;
    }
    if (!vocab->bpe)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "a GGUF file has a BPE, but the model's tokenizer is one of words");
    add_template(file, vocab->settings);
    SL_TRY(sli_vocab_print(vocab, &text));
    json_t *json = json_loads(text, 0, NULL);
    free(text);
    if (!json)
        return sli_no_memory(NULL, "a tokenizer");
    sl_status status = add_bpe(file, json, vocab, model->ntokens);
    json_decref(json);
    return status;
}
