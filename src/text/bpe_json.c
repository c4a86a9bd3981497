/* A byte-level BPE as a tokenizer.json of Hugging Face's library tokenizers, of kind BPE:
 *
 *   added_tokens     found in the text before all else
 *   normalizer       null, or NFC where the splitter composes
 *   pre_tokenizer    how the text is split: by GPT-2's pattern, which ByteLevel has; by that after
 *                    Digits; or by a pattern of Split, and ByteLevel without one
 *   model            "vocab", tokens with ids; "merges", pairs in the order of their ranks
 *   post_processor   special tokens around the text (TemplateProcessing)
 *
 * What says something else is refused, printed: its ids would mean other texts. "truncation" and
 * "padding" are left out: they are how a text's ids are used. */
#include "text/bpe.h"

#include "core/error.h"
#include "core/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistr.h>

enum { MOST_RULES = 1 << 16, MOST_RANK_NUMBER = 24, SHOWN_BYTES = 160 };

/* ---- Refusing ----------------------------------------------------------------------------- */

static sl_status refuse(const char *member, const json_t *has)
{
    char *shown = json_dumps(has, JSON_ENCODE_ANY | JSON_COMPACT);
    sl_status status = sl_error(SL_ERR_UNSUPPORTED, "its \"%s\" is none that sluice has: %.*s",
                                member, SHOWN_BYTES, shown ? shown : "?");
    free(shown);
    return status;
}

/* Null for a member that is not there. */
static sl_status parse_member(const sli_json *json, sli_json_value value, json_t **out)
{
    *out = json_null();
    return value.begin ? sli_json_parse(json, value, MOST_RULES, out) : SL_OK;
}

static bool is_type(const json_t *rule, const char *type)
{
    const char *has = json_string_value(json_object_get(rule, "type"));
    return has && strcmp(has, type) == 0;
}

/* Whether a flag has a value, which is `initial` where it is not there. */
static bool flag_is(const json_t *rule, const char *name, bool initial, bool wanted)
{
    const json_t *flag = json_object_get(rule, name);
    return (flag ? json_is_true(flag) : initial) == wanted;
}

/* Rule `i` of a sequence, or of one rule as a sequence of itself; NULL: there are fewer. */
static const json_t *rule_of(const json_t *rules, const char *list, size_t i)
{
    if (is_type(rules, "Sequence"))
        return json_array_get(json_object_get(rules, list), i);
    return i == 0 && !json_is_null(rules) ? rules : NULL;
}

/* ---- How text is split -------------------------------------------------------------------- */

static bool is_byte_level(const json_t *rule, bool splits)
{
    return is_type(rule, "ByteLevel") && flag_is(rule, "add_prefix_space", true, false) &&
           flag_is(rule, "use_regex", true, splits);
}

static const sli_splitter *splitter_of(const json_t *pre, bool composes)
{
    const json_t *first = rule_of(pre, "pretokenizers", 0),
                 *second = rule_of(pre, "pretokenizers", 1);
    const char *pattern =
                   json_string_value(json_object_get(json_object_get(first, "pattern"), "Regex")),
               *behavior = json_string_value(json_object_get(first, "behavior"));
    if (rule_of(pre, "pretokenizers", 2) || !first)
        return NULL;
    if (!second)
        return is_byte_level(first, true) && !composes ? sli_splitter_find("gpt2") : NULL;
    if (is_type(first, "Digits") && flag_is(first, "individual_digits", false, true))
        return is_byte_level(second, true) && !composes ? sli_splitter_find("smollm") : NULL;
    if (!is_type(first, "Split") || !pattern || !behavior || strcmp(behavior, "Isolated") != 0 ||
        !flag_is(first, "invert", false, false) || !is_byte_level(second, false))
        return NULL;
    return sli_splitter_of_pattern(pattern, composes);
}

static sl_status read_splitter(const json_t *normalizer, const json_t *pre,
                               const sli_splitter **out)
{
    const json_t *first = rule_of(normalizer, "normalizers", 0);
    bool composes = first && is_type(first, "NFC");
    if ((first && !composes) || rule_of(normalizer, "normalizers", 1))
        return refuse("normalizer", normalizer);
    *out = splitter_of(pre, composes);
    if (*out)
        return SL_OK;
    return sl_error_context(refuse("pre_tokenizer", pre), composes ? "with NFC, " : "");
}

static sl_status parse_splitter(const sli_json *json, const sli_json_value *members,
                                const sli_splitter **out)
{
    json_t *normalizer = NULL, *pre = NULL;
    sl_status status = parse_member(json, members[SLI_TOKENIZER_NORMALIZER], &normalizer);
    if (status == SL_OK)
        status = parse_member(json, members[SLI_TOKENIZER_PRE_TOKENIZER], &pre);
    if (status == SL_OK)
        status = read_splitter(normalizer, pre, out);
    json_decref(normalizer);
    json_decref(pre);
    return status;
}

static sl_status parse_decoder(const sli_json *json, sli_json_value value)
{
    json_t *decoder;
    SL_TRY(parse_member(json, value, &decoder));
    sl_status status =
        json_is_null(decoder) || is_type(decoder, "ByteLevel") ? SL_OK : refuse("decoder", decoder);
    json_decref(decoder);
    return status;
}

/* ---- Added tokens ------------------------------------------------------------------------- */

static sl_status add_added(const json_t *entry, sli_added_tokens *added)
{
    const json_t *content = json_object_get(entry, "content"), *id = json_object_get(entry, "id");
    if (!json_is_string(content) || json_string_length(content) == 0 || !json_is_integer(id) ||
        json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return sl_error_context(refuse("added_tokens", entry), "an entry of ");
    return sli_added_tokens_add(
        added,
        &(sli_added_token){.id = (int32_t)json_integer_value(id),
                           .special = flag_is(entry, "special", false, true),
                           .single_word = flag_is(entry, "single_word", false, true),
                           .lstrip = flag_is(entry, "lstrip", false, true),
                           .rstrip = flag_is(entry, "rstrip", false, true),
                           .normalized = flag_is(entry, "normalized", true, true),
                           .content = {json_string_value(content), json_string_length(content)}});
}

/* The entries live in *trees until the tokens are copied. */
static sl_status list_added(const sli_json *json, sli_json_value list, json_t *trees,
                            sli_added_tokens *added)
{
    sli_json_walk walk;
    if (!sli_json_is(list, '['))
        return sl_error(SL_ERR_FORMAT, "its \"added_tokens\" must be an array");
    SL_TRY(sli_json_walk_begin(json, list, &walk));
    while (sli_json_walk_next(&walk)) {
        json_t *entry;
        SL_TRY(sli_json_parse(json, walk.value, MOST_RULES, &entry));
        if (json_array_append_new(trees, entry) != 0)
            return sli_no_memory(NULL, "its added tokens");
        SL_TRY(add_added(entry, added));
    }
    return walk.status;
}

static sl_status parse_added(const sli_json *json, sli_json_value list, sli_added_tokens *added)
{
    json_t *trees = json_array();
    sl_status status = trees ? SL_OK : sli_no_memory(NULL, "its added tokens");
    if (status == SL_OK && list.begin && !sli_json_is(list, 'n'))
        status = list_added(json, list, trees, added);
    if (status == SL_OK)
        status = sli_added_tokens_finish(added);
    json_decref(trees);
    return status;
}

/* ---- The model ---------------------------------------------------------------------------- */

/* "a b", or ["a", "b"]. The parts are decoded to `room`. */
static sl_status split_merge(const sli_json *json, sli_json_value value, char *room,
                             sl_token halves[2])
{
    const char *text;
    sli_json_walk walk;
    int count = 0;
    if (sli_json_is(value, '"')) {
        SL_TRY(sli_json_decode(json, value, &room, &text));
        const char *blank = strchr(text, ' ');
        if (!blank)
            return SL_OK;
        halves[0] = (sl_token){text, (size_t)(blank - text)};
        halves[1] = (sl_token){blank + 1, strlen(blank + 1)};
        return SL_OK;
    }
    if (!sli_json_is(value, '['))
        return SL_OK;
    SL_TRY(sli_json_walk_begin(json, value, &walk));
    while (sli_json_walk_next(&walk) && count < 2 && sli_json_is(walk.value, '"')) {
        SL_TRY(sli_json_decode(json, walk.value, &room, &text));
        halves[count++] = (sl_token){text, strlen(text)};
    }
    return walk.status;
}

static sl_status read_merge(const sli_json *json, sli_json_value value, uint32_t rank, sli_bpe *bpe)
{
    enum { MOST_BYTES = 16 * SLI_BPE_MOST_TOKEN_BYTES };
    char room[MOST_BYTES];
    sl_token halves[2] = {{NULL, 0}, {NULL, 0}};
    const char *expected = "two tokens";
    size_t bytes = (size_t)(value.end - value.begin);
    if (bytes < MOST_BYTES)
        SL_TRY(split_merge(json, value, room, halves));
    if (halves[0].bytes > 0 && halves[1].bytes > 0)
        SL_TRY(sli_bpe_read_merge(bpe, rank, halves[0], halves[1], &expected));
    if (!expected)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT, "its merge %u must be %s, got %.*s", rank, expected,
                    (int)(bytes < SHOWN_BYTES ? bytes : SHOWN_BYTES), value.begin);
}

static sl_status read_merges(const sli_json *json, sli_json_value merges, sli_bpe *bpe)
{
    sli_json_walk walk;
    uint32_t rank = 0;
    if (!sli_json_is(merges, '['))
        return sl_error(SL_ERR_FORMAT, "its model's \"merges\" must be an array");
    SL_TRY(sli_json_walk_begin(json, merges, &walk));
    while (sli_json_walk_next(&walk))
        SL_TRY(read_merge(json, walk.value, rank++, bpe));
    return walk.status;
}

/* Options of the model that would change ids, which must be as if they were not there. */
static sl_status check_model_options(const sli_json *json, sli_json_value model)
{
    static const char *const names[] = {"dropout", "continuing_subword_prefix",
                                        "end_of_word_suffix", "byte_fallback", "unk_token"};
    enum { NAMES = sizeof names / sizeof *names };
    sli_json_value values[NAMES] = {{NULL, NULL}};
    SL_TRY(sli_json_find_members(json, model, names, NAMES, values));
    for (int i = 0; i < NAMES; i++) {
        json_t *has;
        SL_TRY(parse_member(json, values[i], &has));
        bool is_nothing = json_is_null(has) || json_is_false(has) ||
                          (json_is_string(has) && json_string_length(has) == 0) ||
                          (json_is_number(has) && !(json_number_value(has) > 0));
        sl_status status = is_nothing ? SL_OK : refuse(names[i], has);
        json_decref(has);
        SL_TRY(status);
    }
    return SL_OK;
}

static sl_status parse_model(const sli_json *json, sli_json_value model, sli_bpe *bpe)
{
    enum { VOCAB, MERGES, IGNORE_MERGES, KEYS };
    static const char *const keys[KEYS] = {"vocab", "merges", "ignore_merges"};
    sli_json_value values[KEYS] = {{NULL, NULL}};
    SL_TRY(check_model_options(json, model));
    SL_TRY(sli_json_find_members(json, model, keys, KEYS, values));
    if (!values[VOCAB].begin || !values[MERGES].begin)
        return sl_error(SL_ERR_FORMAT, "its model must have \"vocab\" and \"merges\"");
    SL_TRY(sli_bpe_read_tokens(json, values[VOCAB], bpe));
    SL_TRY(sli_bpe_find_bytes(bpe, true));
    SL_TRY(read_merges(json, values[MERGES], bpe));
    SL_TRY(sli_bpe_place_added(bpe));
    return sli_bpe_finish(bpe,
                          values[IGNORE_MERGES].begin && sli_json_is(values[IGNORE_MERGES], 't'));
}

/* ---- Around the text ---------------------------------------------------------------------- */

/* The ids of a special token of a template are added to those around the text. */
static sl_status add_around(const json_t *template, const json_t *piece, size_t *side, sli_bpe *bpe)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *token = name ? json_object_get(json_object_get(template, "special_tokens"), name)
                               : NULL,
                 *ids = json_object_get(token, "ids");
    if (json_array_size(ids) == 0)
        return refuse("post_processor", template);
    int32_t *grown = realloc(bpe->around, (bpe->before + bpe->after + json_array_size(ids)) *
                                              sizeof *bpe->around);
    if (!grown)
        return sli_no_memory(NULL, "its template");
    bpe->around = grown;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= sli_bpe_size(bpe))
            return refuse("post_processor", template);
        bpe->around[bpe->before + bpe->after] = (int32_t)json_integer_value(id);
        ++*side;
    }
    return SL_OK;
}

static sl_status read_template(const json_t *template, sli_bpe *bpe)
{
    const json_t *pieces = json_object_get(template, "single");
    int texts = 0;
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *piece = json_array_get(pieces, i),
                     *special = json_object_get(piece, "SpecialToken");
        texts += json_object_get(piece, "Sequence") != NULL;
        if (special)
            SL_TRY(add_around(template, special, texts ? &bpe->after : &bpe->before, bpe));
    }
    return texts == 1 ? SL_OK : refuse("post_processor", template);
}

static sl_status read_processors(const json_t *rules, sli_bpe *bpe)
{
    const json_t *rule;
    for (size_t i = 0; (rule = rule_of(rules, "processors", i)); i++) {
        bool is_template = is_type(rule, "TemplateProcessing");
        if ((!is_template && !is_type(rule, "ByteLevel")) ||
            (is_template && bpe->before + bpe->after > 0))
            return refuse("post_processor", rules);
        if (is_template)
            SL_TRY(read_template(rule, bpe));
    }
    return SL_OK;
}

static sl_status parse_processors(const sli_json *json, sli_json_value value, sli_bpe *bpe)
{
    json_t *rules;
    SL_TRY(parse_member(json, value, &rules));
    sl_status status = read_processors(rules, bpe);
    json_decref(rules);
    return status;
}

sl_status sli_bpe_parse(const sli_json *json, const sli_json_value *members, sli_bpe **out)
{
    const sli_splitter *split = NULL;
    *out = NULL;
    SL_TRY(parse_splitter(json, members, &split));
    SL_TRY(parse_decoder(json, members[SLI_TOKENIZER_DECODER]));
    SL_TRY(sli_bpe_create(split, out));
    sl_status status = parse_added(json, members[SLI_TOKENIZER_ADDED_TOKENS], &(*out)->added);
    if (status == SL_OK)
        status = parse_model(json, members[SLI_TOKENIZER_MODEL], *out);
    if (status == SL_OK)
        status = parse_processors(json, members[SLI_TOKENIZER_POST_PROCESSOR], *out);
    if (status != SL_OK)
        sli_bpe_destroy(out);
    return status;
}
