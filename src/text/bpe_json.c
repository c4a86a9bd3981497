/* A BPE as a tokenizer.json of Hugging Face's library tokenizers, of kind BPE:
 *
 *   added_tokens     found in the text before all else
 *   normalizer       null, or NFC where the splitter composes
 *   pre_tokenizer    how the text is split: by GPT-2's pattern, which ByteLevel has; by that after
 *                    Digits; or by a pattern of Split, and ByteLevel without one
 *   model            "vocab", tokens with ids; "merges", pairs in the order of their ranks
 *   post_processor   special tokens around the text (TemplateProcessing)
 *
 * A BPE of SentencePiece's kind has "byte_fallback". Its white space is U+2581, by the normalizers
 * Prepend and Replace or by the pre-tokenizer Metaspace, and its decoder undoes that.
 *
 * What says something else is refused, printed: its ids would mean other texts. "truncation" and
 * "padding" are left out: they are how a text's ids are used. */
#include "text/bpe.h"

#include "core/error.h"
#include "core/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistr.h>

enum { MOST_RULES = 1 << 16, SHOWN_BYTES = 160 };

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

static bool text_is(const json_t *object, const char *name, const char *wanted)
{
    const char *has = json_string_value(json_object_get(object, name));
    return has && strcmp(has, wanted) == 0;
}

static bool is_type(const json_t *rule, const char *type)
{
    return text_is(rule, "type", type);
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

/* ---- White space as SentencePiece has it ---------------------------------------------------- */

static bool is_replace(const json_t *rule, const char *from, const char *to)
{
    return is_type(rule, "Replace") && text_is(json_object_get(rule, "pattern"), "String", from) &&
           text_is(rule, "content", to);
}

static bool is_prepend_and_replace(const json_t *normalizer)
{
    const json_t *first = rule_of(normalizer, "normalizers", 0);
    return is_type(first, "Prepend") && text_is(first, "prepend", SLI_WRITTEN_SPACE) &&
           is_replace(rule_of(normalizer, "normalizers", 1), " ", SLI_WRITTEN_SPACE) &&
           !rule_of(normalizer, "normalizers", 2);
}

/* False: it says something else. Before "prepend_scheme" there was "add_prefix_space". */
static bool read_metaspace(const json_t *rule, sli_bpe *bpe)
{
    static const char *const schemes[] = {"never", "first", "always"};
    const json_t *scheme = json_object_get(rule, "prepend_scheme");
    if (!is_type(rule, "Metaspace") || !text_is(rule, "replacement", SLI_WRITTEN_SPACE))
        return false;
    bpe->split = flag_is(rule, "split", true, true) ? &sli_before_spaces : NULL;
    bpe->prefix =
        flag_is(rule, "add_prefix_space", true, true) ? SLI_PREFIX_ALWAYS : SLI_PREFIX_NEVER;
    for (int i = 0; i < 3; i++)
        if (text_is(rule, "prepend_scheme", schemes[i])) {
            bpe->prefix = (sli_prefix)i;
            return true;
        }
    return !scheme;
}

static sl_status read_spaces(const json_t *normalizer, const json_t *pre, sli_bpe *bpe)
{
    bpe->of_characters = true;
    if (json_is_null(pre) && is_prepend_and_replace(normalizer)) {
        bpe->prefix = SLI_PREFIX_NORMALIZED;
        return SL_OK;
    }
    if (!json_is_null(normalizer))
        return sl_error_context(refuse("normalizer", normalizer), "with byte_fallback, ");
    return read_metaspace(pre, bpe)
               ? SL_OK
               : sl_error_context(refuse("pre_tokenizer", pre), "with byte_fallback, ");
}

static sl_status read_space_decoder(const json_t *decoder, sli_bpe *bpe)
{
    const json_t *strip = rule_of(decoder, "decoders", 3);
    bpe->strips = strip != NULL;
    if (is_replace(rule_of(decoder, "decoders", 0), SLI_WRITTEN_SPACE, " ") &&
        is_type(rule_of(decoder, "decoders", 1), "ByteFallback") &&
        is_type(rule_of(decoder, "decoders", 2), "Fuse") && !rule_of(decoder, "decoders", 4) &&
        (!strip || (is_type(strip, "Strip") && text_is(strip, "content", " ") &&
                    json_integer_value(json_object_get(strip, "start")) == 1 &&
                    json_is_integer(json_object_get(strip, "stop")) &&
                    json_integer_value(json_object_get(strip, "stop")) == 0)))
        return SL_OK;
    return sl_error_context(refuse("decoder", decoder), "with byte_fallback, ");
}

/* ---- The text's rules ----------------------------------------------------------------------- */

static sl_status parse_splitter(const sli_json *json, const sli_json_value *members, sli_bpe *bpe)
{
    bool of_characters = sli_json_is(members[SLI_MODEL_BYTE_FALLBACK], 't');
    json_t *normalizer = NULL, *pre = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(parse_member(json, members[SLI_TOKENIZER_NORMALIZER], &normalizer));
    SL_TRY_OR_FAIL(parse_member(json, members[SLI_TOKENIZER_PRE_TOKENIZER], &pre));
    status = of_characters ? read_spaces(normalizer, pre, bpe)
                           : read_splitter(normalizer, pre, &bpe->split);
fail:
    json_decref(normalizer);
    json_decref(pre);
    return status;
}

static sl_status parse_decoder(const sli_json *json, sli_json_value value, sli_bpe *bpe)
{
    json_t *decoder;
    SL_TRY(parse_member(json, value, &decoder));
    sl_status status = bpe->of_characters ? read_space_decoder(decoder, bpe)
                       : json_is_null(decoder) || is_type(decoder, "ByteLevel")
                           ? SL_OK
                           : refuse("decoder", decoder);
    json_decref(decoder);
    return status;
}

/* ---- Added tokens ------------------------------------------------------------------------- */

/* Whether it is found in a text as it stands, so that the spaces that Prepend and Replace write
 * change neither the token nor what it takes beside it. */
static bool is_plain(const json_t *entry)
{
    const char *content = json_string_value(json_object_get(entry, "content"));
    return flag_is(entry, "normalized", true, false) ||
           (flag_is(entry, "lstrip", false, false) && flag_is(entry, "rstrip", false, false) &&
            content && !strchr(content, ' ') && !strstr(content, SLI_WRITTEN_SPACE));
}

static sl_status add_added(const json_t *entry, sli_prefix prefix, sli_added_tokens *added)
{
    const json_t *content = json_object_get(entry, "content"), *id = json_object_get(entry, "id");
    if (prefix == SLI_PREFIX_NORMALIZED && !is_plain(entry))
        return sl_error_context(refuse("added_tokens", entry), "with Prepend, an entry of ");
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
static sl_status list_added(const sli_json *json, sli_json_value list, json_t *trees, sli_bpe *bpe)
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
        SL_TRY(add_added(entry, bpe->prefix, &bpe->added));
    }
    return walk.status;
}

static sl_status parse_added(const sli_json *json, sli_json_value list, sli_bpe *bpe)
{
    json_t *trees = json_array();
    sl_status status;
    if (!trees)
        return sli_no_memory(NULL, "its added tokens");
    if (list.begin && !sli_json_is(list, 'n'))
        SL_TRY_OR_FAIL(list_added(json, list, trees, bpe));
    status = sli_added_tokens_finish(&bpe->added, bpe->prefix == SLI_PREFIX_NORMALIZED);
fail:
    json_decref(trees);
    return status;
}

/* ---- The model ---------------------------------------------------------------------------- */

/* Of "a b", or ["a", "b"]; halves without bytes of anything else. They are decoded to `room`. */
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
    for (; sli_json_walk_next(&walk); count++) {
        if (count == 2 || !sli_json_is(walk.value, '"')) {
            halves[0] = (sl_token){NULL, 0};
            return SL_OK;
        }
        SL_TRY(sli_json_decode(json, walk.value, &room, &text));
        halves[count] = (sl_token){text, strlen(text)};
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

/* Options of the model that would change ids must be as if they were not there. With byte_fallback
 * no text has the unknown token, which may then be named; and what ignore_merges would take whole
 * is all of a text. */
static sl_status check_model_options(const sli_json *json, const sli_json_value *members,
                                     bool of_characters)
{
    enum { COUNT = 4 };
    const struct {
        sli_tokenizer_member member;
        const char *name;
    } options[COUNT] = {
        {SLI_MODEL_DROPOUT, "dropout"},
        {SLI_MODEL_SUBWORD_PREFIX, "continuing_subword_prefix"},
        {SLI_MODEL_WORD_SUFFIX, "end_of_word_suffix"},
        {of_characters ? SLI_MODEL_IGNORE_MERGES : SLI_MODEL_UNK_TOKEN,
         of_characters ? "ignore_merges" : "unk_token"},
    };
    for (int i = 0; i < COUNT; i++) {
        json_t *has;
        SL_TRY(parse_member(json, members[options[i].member], &has));
        bool is_nothing = json_is_null(has) || json_is_false(has) ||
                          (json_is_string(has) && json_string_length(has) == 0) ||
                          (json_is_number(has) && !(json_number_value(has) > 0));
        sl_status status = is_nothing ? SL_OK : refuse(options[i].name, has);
        json_decref(has);
        SL_TRY(status);
    }
    return SL_OK;
}

static sl_status find_unknown(const sli_json *json, sli_json_value value, sli_bpe *bpe)
{
    json_t *name;
    SL_TRY(sli_json_parse(json, value, MOST_RULES, &name));
    if (json_is_string(name))
        bpe->unknown =
            sli_token_table_find(&bpe->tokens, json_string_value(name), json_string_length(name));
    sl_status status = json_is_null(name) || bpe->unknown >= 0 ? SL_OK : refuse("unk_token", name);
    json_decref(name);
    return status;
}

static sl_status parse_model(const sli_json *json, const sli_json_value *members, sli_bpe *bpe)
{
    SL_TRY(check_model_options(json, members, bpe->of_characters));
    if (!members[SLI_MODEL_VOCAB].begin || !members[SLI_MODEL_MERGES].begin)
        return sl_error(SL_ERR_FORMAT, "its model must have \"vocab\" and \"merges\"");
    SL_TRY(sli_bpe_read_tokens(json, members[SLI_MODEL_VOCAB], bpe));
    SL_TRY(sli_bpe_find_bytes(bpe, true));
    if (bpe->of_characters && members[SLI_MODEL_UNK_TOKEN].begin)
        SL_TRY(find_unknown(json, members[SLI_MODEL_UNK_TOKEN], bpe));
    SL_TRY(read_merges(json, members[SLI_MODEL_MERGES], bpe));
    SL_TRY(sli_bpe_place_added(bpe));
    return sli_bpe_finish(bpe, sli_json_is(members[SLI_MODEL_IGNORE_MERGES], 't'));
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
    SL_TRY(sli_bpe_create(NULL, out));
    sl_status status;
    SL_TRY_OR_FAIL(parse_splitter(json, members, *out));
    SL_TRY_OR_FAIL(parse_decoder(json, members[SLI_TOKENIZER_DECODER], *out));
    SL_TRY_OR_FAIL(parse_added(json, members[SLI_TOKENIZER_ADDED_TOKENS], *out));
    SL_TRY_OR_FAIL(parse_model(json, members, *out));
    SL_TRY_OR_FAIL(parse_processors(json, members[SLI_TOKENIZER_POST_PROCESSOR], *out));
    return SL_OK;

fail:
    sli_bpe_destroy(out);
    return status;
}
