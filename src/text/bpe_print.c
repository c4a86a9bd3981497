/* Writing a BPE as a tokenizer.json, which bpe_json.c reads and describes. */
#include "text/bpe.h"

#include "core/error.h"
#include "core/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistr.h>

/* ---- Rules -------------------------------------------------------------------------------- */

static json_t *byte_level(bool splits)
{
    return json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", false,
                     "trim_offsets", true, "use_regex", splits);
}

static json_t *pre_tokenizer(const sli_splitter *split)
{
    if (strcmp(split->name, "gpt2") == 0)
        return byte_level(true);
    json_t *first = split->pattern
                        ? json_pack("{ss s{ss} ss sb}", "type", "Split", "pattern", "Regex",
                                    split->pattern, "behavior", "Isolated", "invert", false)
                        : json_pack("{ss sb}", "type", "Digits", "individual_digits", true);
    return json_pack("{ss s[oo]}", "type", "Sequence", "pretokenizers", first,
                     byte_level(!split->pattern));
}

static json_t *replace(const char *from, const char *to)
{
    return json_pack("{ss s{ss} ss}", "type", "Replace", "pattern", "String", from, "content", to);
}

static json_t *normalizer(const sli_bpe *bpe)
{
    if (bpe->prefix == SLI_PREFIX_NORMALIZED)
        return json_pack("{ss s[{ss ss} o]}", "type", "Sequence", "normalizers", "type", "Prepend",
                         "prepend", SLI_WRITTEN_SPACE, replace(" ", SLI_WRITTEN_SPACE));
    return bpe->split->composes ? json_pack("{ss}", "type", "NFC") : json_null();
}

static json_t *metaspace(const sli_bpe *bpe)
{
    static const char *const schemes[] = {"never", "first", "always"};
    if (bpe->prefix == SLI_PREFIX_NORMALIZED)
        return json_null();
    return json_pack("{ss ss ss sb}", "type", "Metaspace", "replacement", SLI_WRITTEN_SPACE,
                     "prepend_scheme", schemes[bpe->prefix], "split",
                     bpe->split == &sli_before_spaces);
}

static json_t *decoder(const sli_bpe *bpe)
{
    if (!bpe->of_characters)
        return byte_level(true);
    json_t *rules = json_pack("[o {ss} {ss}]", replace(SLI_WRITTEN_SPACE, " "), "type",
                              "ByteFallback", "type", "Fuse");
    if (bpe->strips)
        json_array_append_new(rules, json_pack("{ss ss si si}", "type", "Strip", "content", " ",
                                               "start", 1, "stop", 0));
    return json_pack("{ss so}", "type", "Sequence", "decoders", rules);
}

static json_t *added_tokens(const sli_added_tokens *added)
{
    json_t *list = json_array();
    for (size_t i = 0; i < added->count; i++) {
        const sli_added_token *token = &added->all[i];
        json_array_append_new(list, json_pack("{si ss% sb sb sb sb sb}", "id", token->id, "content",
                                              token->content.text, token->content.bytes,
                                              "single_word", token->single_word, "lstrip",
                                              token->lstrip, "rstrip", token->rstrip, "normalized",
                                              token->normalized, "special", token->special));
    }
    return list;
}

static json_t *piece(const char *kind, const char *id)
{
    return json_pack("{s{ss si}}", kind, "id", id, "type_id", 0);
}

static json_t *post_processor(const sli_bpe *bpe)
{
    if (bpe->before + bpe->after == 0)
        return bpe->of_characters ? json_null() : byte_level(true);
    json_t *single = json_array(), *pair = json_array(), *tokens = json_object();
    for (size_t i = 0; i <= bpe->before + bpe->after; i++) {
        if (i == bpe->before) {
            json_array_append_new(single, piece("Sequence", "A"));
            json_array_append_new(pair, piece("Sequence", "A"));
            json_array_append_new(pair, piece("Sequence", "B"));
        }
        if (i == bpe->before + bpe->after)
            break;
        const char *name = sli_bpe_token(bpe, bpe->around[i]).text;
        json_array_append_new(single, piece("SpecialToken", name));
        json_array_append_new(pair, piece("SpecialToken", name));
        json_object_set_new(tokens, name,
                            json_pack("{ss s[i] s[s]}", "id", name, "ids", bpe->around[i], "tokens",
                                      name));
    }
    return json_pack("{ss so so so}", "type", "TemplateProcessing", "single", single, "pair", pair,
                     "special_tokens", tokens);
}

/* ---- The model ---------------------------------------------------------------------------- */

enum { MOST_WRITTEN = 3 * SLI_BPE_MOST_TOKEN_BYTES + 1 };

/* A token as files have it: an added one as itself, others in characters that stand for bytes, or
 * for spaces. */
static size_t write_token(const sli_bpe *bpe, int32_t id, char written[MOST_WRITTEN])
{
    sl_token token = sli_token_table_get(&bpe->tokens, id);
    const sli_added_token *added = sli_added_tokens_find(&bpe->added, token.text, token.bytes);
    size_t used = 0;
    if (added && added->id == id) {
        memcpy(written, token.text, token.bytes);
        used = token.bytes;
    }
    for (size_t i = used; bpe->of_characters && i < token.bytes; i++) {
        const char *character = token.text[i] == ' ' ? SLI_WRITTEN_SPACE : &token.text[i];
        size_t bytes = token.text[i] == ' ' ? strlen(SLI_WRITTEN_SPACE) : 1;
        memcpy(written + used, character, bytes);
        used += bytes;
    }
    for (size_t i = used; !bpe->of_characters && i < token.bytes; i++)
        used += (size_t)u8_uctomb((uint8_t *)written + used,
                                  sli_character_of_byte((uint8_t)token.text[i]),
                                  (int)(MOST_WRITTEN - used));
    written[used] = '\0';
    return used;
}

static json_t *vocabulary(const sli_bpe *bpe)
{
    char written[MOST_WRITTEN];
    json_t *ids = json_object();
    for (int32_t id = 0; id < bpe->tokens.count; id++) {
        size_t bytes = write_token(bpe, id, written);
        json_object_setn_new(ids, written, bytes, json_integer(id));
    }
    return ids;
}

static json_t *merges(const sli_bpe *bpe)
{
    char left[MOST_WRITTEN], right[MOST_WRITTEN];
    sli_merge *sorted = sli_bpe_sorted_merges(bpe);
    json_t *list = json_array();
    for (size_t i = 0; sorted && i < bpe->merge_count; i++) {
        size_t left_bytes = write_token(bpe, sorted[i].left, left),
               right_bytes = write_token(bpe, sorted[i].right, right);
        json_array_append_new(list, json_pack("[s%s%]", left, left_bytes, right, right_bytes));
    }
    free(sorted);
    return list;
}

sl_status sli_bpe_print(const sli_bpe *bpe, char **text)
{
    json_t *ids = vocabulary(bpe), *pairs = merges(bpe);
    bool complete = json_object_size(ids) == (size_t)bpe->tokens.count &&
                    json_array_size(pairs) == bpe->merge_count;
    json_t *model =
        json_pack("{ss sn ss? sn sn sb sb sb so so}", "type", "BPE", "dropout", "unk_token",
                  bpe->unknown >= 0 ? sli_token_table_get(&bpe->tokens, bpe->unknown).text : NULL,
                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", bpe->of_characters,
                  "byte_fallback", bpe->of_characters, "ignore_merges", bpe->all_whole, "vocab",
                  ids, "merges", pairs);
    json_t *json =
        json_pack("{ss sn sn so so so so so so}", "version", "1.0", "truncation", "padding",
                  "added_tokens", added_tokens(&bpe->added), "normalizer", normalizer(bpe),
                  "pre_tokenizer", bpe->of_characters ? metaspace(bpe) : pre_tokenizer(bpe->split),
                  "post_processor", post_processor(bpe), "decoder", decoder(bpe), "model", model);
    *text = json && complete ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    return *text ? SL_OK : sli_no_memory(NULL, "the text of %d tokens", sli_bpe_size(bpe));
}
