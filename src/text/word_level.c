/* A vocabulary of words as a tokenizer.json of Hugging Face's library tokenizers, of kind
 * WordLevel:
 *
 *   {"version": "1.0", "added_tokens": [], …,
 *    "normalizer": {…}, "pre_tokenizer": {…},        what sl_tokenizer does, in that library's
 * words "model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "the": 1, …}}}
 *
 * It gives the ids that sluice gives, but for letters that are newer than libunistring's Unicode
 * (14), which it lowers. A file of other rules is refused: its ids would mean other words. */
#include "text/vocab.h"

#include "core/error.h"
#include "core/json.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RULES = 1 << 16, MOST_ID = 16 };

/* ---- The rules -------------------------------------------------------------------------- */

/* A capital sigma that ends a word has a small letter of its own (tokenizer.c), which the library's
 * Lowercase does not know: a cased letter stands before it and none after it, where case-ignorable
 * characters do not count. */
#define CASED       "[\\p{Cased}&&[^\\p{Case_Ignorable}]]"
#define IGNORABLE   "\\p{Case_Ignorable}*"
#define FINAL_SIGMA "(?<=" CASED IGNORABLE ")\u03A3(?!" IGNORABLE CASED ")"
#define WHITE_SPACE                                                                                \
    "[\\x{09}-\\x{0D}\\x{1C}-\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}"  \
    "\\x{202F}\\x{205F}\\x{3000}]+"

static json_t *replace(const char *kind, const char *pattern, const char *content)
{
    return json_pack("{ss s{ss} ss}", "type", "Replace", "pattern", kind, pattern, "content",
                     content);
}

static json_t *normalizer(void)
{
    return json_pack("{ss s[oo{ss}ooo]}", "type", "Sequence", "normalizers",
                     replace("Regex", "\\x{00}", "\uFFFD"), replace("Regex", FINAL_SIGMA, "\u03C2"),
                     "type", "Lowercase", replace("String", "\"", ""),
                     replace("String", "<br />", " "), replace("Regex", "[;:]", " "));
}

static json_t *split(const char *pattern, const char *behavior)
{
    return json_pack("{ss s{ss} ss sb}", "type", "Split", "pattern", "Regex", pattern, "behavior",
                     behavior, "invert", false);
}

static json_t *pre_tokenizer(void)
{
    return json_pack("{ss s[oo]}", "type", "Sequence", "pretokenizers",
                     split(WHITE_SPACE, "Removed"), split("['.,()!?]", "Isolated"));
}

/* ---- Writing ---------------------------------------------------------------------------- */

sl_status sli_words_print(const sl_vocab *vocab, char **text)
{
    json_t *ids = json_object();
    for (int32_t id = 0; id < vocab->tokens.count; id++)
        json_object_set_new(ids, sli_token_table_get(&vocab->tokens, id).text, json_integer(id));
    bool complete = json_object_size(ids) == (size_t)vocab->tokens.count;
    json_t *json = json_pack("{ss sn sn s[] so so sn sn s{ss so ss}}", "version", "1.0",
                             "truncation", "padding", "added_tokens", "normalizer", normalizer(),
                             "pre_tokenizer", pre_tokenizer(), "post_processor", "decoder", "model",
                             "type", "WordLevel", "vocab", ids, "unk_token", SLI_UNKNOWN_TOKEN);
    *text = json && complete ? json_dumps(json, JSON_INDENT(2)) : NULL;
    json_decref(json);
    return *text ? SL_OK : sli_no_memory(NULL, "the text of %d tokens", vocab->tokens.count);
}

/* ---- Reading ---------------------------------------------------------------------------- */

/* A member must equal `expected`, which is released; null, [] and nothing are alike. */
static sl_status check_member(const sli_json *json, sli_json_value value, const char *name,
                              json_t *expected)
{
    json_t *has = NULL;
    sl_status status = value.begin ? sli_json_parse(json, value, MOST_RULES, &has) : SL_OK;
    bool is_empty = !has || json_is_null(has) || (json_is_array(has) && !json_array_size(has));
    bool same = json_is_null(expected) ? is_empty : json_equal(has, expected);
    json_decref(has);
    json_decref(expected);
    SL_TRY(status);
    return same ? SL_OK
                : sl_error(SL_ERR_UNSUPPORTED,
                           "its \"%s\" is not that of sluice's word tokenizer, the only one of "
                           "kind WordLevel that sluice has",
                           name);
}

/* A token's id, which names one of `count` that has none yet. */
static sl_status parse_entry(const sli_json_walk *walk, const char **tokens, int64_t count,
                             char **room)
{
    const char *token;
    json_t *number;
    SL_TRY(sli_json_decode(walk->json, walk->key, room, &token));
    SL_TRY(sli_json_parse(walk->json, walk->value, MOST_ID, &number));
    int64_t id = json_is_integer(number) ? json_integer_value(number) : -1;
    json_decref(number);
    if (id < 0 || id >= count || tokens[id])
        return sl_error(SL_ERR_FORMAT,
                        "the ids of its %lld tokens must be 0, 1, 2 and so on, each once, but "
                        "\"%.40s\" has another",
                        (long long)count, token);
    tokens[id] = token;
    return SL_OK;
}

static sl_status add_tokens(const char *const *tokens, int64_t count, sl_vocab *vocab)
{
    int32_t id;
    for (int64_t i = 0; i < count; i++) {
        sl_status status = sli_token_table_add(&vocab->tokens, tokens[i], strlen(tokens[i]), &id);
        if (status != SL_OK)
            return sl_error_context(status == SL_ERR_INVALID ? SL_ERR_FORMAT : status,
                                    "token %lld: ", (long long)i);
        if (id != i)
            return sl_error(SL_ERR_FORMAT, "the token \"%.40s\" is listed twice", tokens[i]);
    }
    return SL_OK;
}

static sl_status parse_vocab(const sli_json *json, sli_json_value list, sl_vocab *vocab)
{
    sli_json_walk walk;
    int64_t count = 0;
    char *strings = NULL;
    const char **tokens = NULL;
    if (!sli_json_is(list, '{'))
        return sl_error(SL_ERR_FORMAT, "its model has no object \"vocab\"");
    SL_TRY(sli_json_walk_begin(json, list, &walk));
    while (sli_json_walk_next(&walk))
        count++;
    SL_TRY(walk.status);
    if (count == 0 || count > INT32_MAX)
        return sl_error(SL_ERR_FORMAT, "it has %lld tokens", (long long)count);
    tokens = calloc((size_t)count, sizeof *tokens);
    char *room = strings = malloc((size_t)(list.end - list.begin));
    sl_status status;
    SL_TRY_OR_FAIL(tokens && strings ? sli_json_walk_begin(json, list, &walk)
                                     : sli_no_memory(NULL, "its %lld tokens", (long long)count));
    while (sli_json_walk_next(&walk))
        SL_TRY_OR_FAIL(parse_entry(&walk, tokens, count, &room));
    if (strcmp(tokens[0], SLI_UNKNOWN_TOKEN) != 0)
        SL_TRY_OR_FAIL(sl_error(SL_ERR_FORMAT,
                                "its token 0 must be " SLI_UNKNOWN_TOKEN ", got \"%.40s\"",
                                tokens[0]));
    status = add_tokens(tokens, count, vocab);
fail:
    free(strings);
    free(tokens);
    return status;
}

sl_status sli_words_parse(const sli_json *json, const sli_json_value *members, sl_vocab *vocab)
{
    if (members[SLI_MODEL_MERGES].begin)
        SL_TRY(sli_json_check(json, members[SLI_MODEL_MERGES])); /* nobody reads them */
    SL_TRY(check_member(json, members[SLI_MODEL_UNK_TOKEN], "unk_token",
                        json_string(SLI_UNKNOWN_TOKEN)));
    SL_TRY(check_member(json, members[SLI_TOKENIZER_NORMALIZER], "normalizer", normalizer()));
    SL_TRY(
        check_member(json, members[SLI_TOKENIZER_PRE_TOKENIZER], "pre_tokenizer", pre_tokenizer()));
    SL_TRY(
        check_member(json, members[SLI_TOKENIZER_POST_PROCESSOR], "post_processor", json_null()));
    SL_TRY(check_member(json, members[SLI_TOKENIZER_ADDED_TOKENS], "added_tokens", json_null()));
    return parse_vocab(json, members[SLI_MODEL_VOCAB], vocab);
}
