/* A byte-level BPE's tokenizer.json. What Hugging Face's library tokenizers makes of such files is
 * compared in bpe_drawn.py. */
#include "io/scratch.h"
#include "support/check.h"
#include "text/bpe.h"
#include "text/bpe_texts.h"

#include <jansson.h>

/* ---- Files --------------------------------------------------------------------------------- */

static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                 "\"trim_offsets\": true, \"use_regex\": true}";

/* The parts of a tokenizer.json; NULL: as in the plainest one. */
typedef struct parts {
    const char *tokens, *merges, *added, *normalizer, *pre_tokenizer, *post_processor, *decoder,
        *options;
    bool of_characters; /* with byte_fallback and the decoder that goes with it */
} parts;

static const char space_decoder[] =
    "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "
    "\"\xE2\x96\x81\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, "
    "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}";

static const char *or_plain(const char *given, const char *plain)
{
    return given ? given : plain;
}

static size_t write_json(char text[BPE_TEXT_BYTES], const parts *p)
{
    static char vocab[BPE_TEXT_BYTES];
    if (p->of_characters)
        write_character_vocab(vocab, or_plain(p->tokens, ""));
    else
        write_vocab(vocab, or_plain(p->tokens, ""));
    return (size_t)snprintf(
        text, BPE_TEXT_BYTES,
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": %s, "
        "\"normalizer\": %s, \"pre_tokenizer\": %s, \"post_processor\": %s, \"decoder\": %s, "
        "\"model\": {\"type\": \"BPE\", \"byte_fallback\": %s, %s \"vocab\": %s, \"merges\": %s}}",
        or_plain(p->added, "[]"), or_plain(p->normalizer, "null"),
        or_plain(p->pre_tokenizer, byte_level), or_plain(p->post_processor, "null"),
        or_plain(p->decoder, p->of_characters ? space_decoder : byte_level),
        p->of_characters ? "true" : "false", or_plain(p->options, ""), vocab,
        or_plain(p->merges, "[]"));
}

static sl_status parse(const parts *p, sl_vocab **out)
{
    static char text[BPE_TEXT_BYTES];
    return sli_vocab_parse(text, write_json(text, p), out);
}

/* `expected`: the ids, each with a blank behind it. */
static void expect_ids(const sl_vocab *vocab, const char *text, bool special, const char *expected)
{
    sl_tokens tokens;
    char found[512] = "";
    size_t used = 0;
    check_ok(sl_tokens_encode(vocab, text, strlen(text), special, &tokens));
    for (int64_t i = 0; i < tokens.count; i++)
        used += (size_t)snprintf(found + used, sizeof found - used, "%d ", tokens.ids[i]);
    sl_tokens_free(&tokens);
    assert_string_equal(found, expected);
}

/* The same of what is written again. */
static void expect(const parts *p, const char *text, bool special, const char *expected)
{
    SCOPED(sl_vocab) *vocab = NULL;
    SCOPED(sl_vocab) *again = NULL;
    char *printed;
    check_ok(parse(p, &vocab));
    expect_ids(vocab, text, special, expected);
    check_ok(sli_vocab_print(vocab, &printed));
    check_ok(sli_vocab_parse(printed, strlen(printed), &again));
    free(printed);
    expect_ids(again, text, special, expected);
    assert_int_equal(sl_vocab_size(again), sl_vocab_size(vocab));
}

/* ---- Models -------------------------------------------------------------------------------- */

static void merges_are_read_in_both_notations(void **state)
{
    expect(&(parts){.tokens = "ab abc ", .merges = "[\"a b\", \"ab c\"]"}, "abcab", false,
           "257 256 ");
    expect(&(parts){.tokens = "ab abc ", .merges = "[[\"a\", \"b\"], [\"ab\", \"c\"]]"}, "abcab",
           false, "257 256 ");
}

static void token_that_no_merges_make_is_taken_where_merges_are_ignored(void **state)
{
    const parts merging = {.tokens = "wxyz ", .merges = "[]"},
                ignoring = {.tokens = "wxyz ", .options = "\"ignore_merges\": true,"};
    expect(&merging, "wxyz", false, "119 120 121 122 ");
    expect(&ignoring, "wxyz", false, "256 ");
}

/* As by tokenizers, whose model has no unknown token then. */
static void byte_that_is_no_token_is_left_out(void **state)
{
    static const char text[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
        "false}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": "
        "1, \"ab\": 2}, \"merges\": [\"a b\"]}}";
    SCOPED(sl_vocab) *vocab = NULL;
    check_ok(sli_vocab_parse(text, sizeof text - 1, &vocab));
    expect_ids(vocab, "abxa", false, "2 0 ");
    expect_ids(vocab, "axb", false, "2 ");
    expect_ids(vocab, "x", false, "");
}

/* ---- Splitting ----------------------------------------------------------------------------- */

#define SPLIT(pattern)                                                                             \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": " \
    "\"" pattern "\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", " \
    "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]}"
#define LLAMA3                                                                                     \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "         \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define QWEN2                                                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "              \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static void pattern_names_the_splitter(void **state)
{
    const char *merges = "[\"1 2\", \"12 3\", \"( a\"]", *tokens = "12 123 (a ";
    expect(&(parts){.tokens = tokens, .merges = merges}, "1234(a", false, "257 52 40 97 ");
    expect(&(parts){.tokens = tokens, .merges = merges, .pre_tokenizer = SPLIT(LLAMA3)}, "1234(a",
           false, "257 52 258 ");
    expect(&(parts){.tokens = tokens,
                    .merges = merges,
                    .pre_tokenizer = SPLIT(QWEN2),
                    .normalizer = "{\"type\": \"NFC\"}"},
           "12(ae\xCC\x81", false, "49 50 258 195 169 ");
    expect(&(parts){.tokens = tokens,
                    .merges = merges,
                    .pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
                                     "\"Digits\", \"individual_digits\": true}, {\"type\": "
                                     "\"ByteLevel\", \"add_prefix_space\": false}]}"},
           "12(a", false, "49 50 40 97 ");
}

/* ---- White space as SentencePiece has it ----------------------------------------------------- */

#define ADDED(id, content, flags) "{\"id\": " id ", \"content\": \"" content "\"" flags "}"
#define SPACE                     "\xE2\x96\x81"
#define PREPEND                                                                                    \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"" SPACE     \
    "\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" SPACE "\"}]}"
#define METASPACE(scheme, split)                                                                   \
    "{\"type\": \"Metaspace\", \"replacement\": \"" SPACE "\", \"prepend_scheme\": \"" scheme      \
    "\", \"split\": " split "}"

/* 256: a space; 257: a; 258: a space and a; 259: two spaces. */
static const char space_tokens[] = SPACE " a " SPACE "a " SPACE SPACE " ",
                  space_merges[] = "[\"" SPACE " " SPACE "\", \"" SPACE " a\"]";

static void space_comes_before_a_text(void **state)
{
    parts p = {.of_characters = true,
               .tokens = space_tokens,
               .merges = space_merges,
               .normalizer = PREPEND,
               .pre_tokenizer = "null"};
    expect(&p, "a a", false, "258 258 ");
    expect(&p, " a" SPACE "a", false, "259 257 258 ");
    expect(&p, "", false, "");
    p.normalizer = NULL;
    p.pre_tokenizer = METASPACE("always", "false");
    expect(&p, "a  a", false, "258 259 257 ");
    expect(&p, " a", false, "258 ");
    p.pre_tokenizer = METASPACE("always", "true");
    expect(&p, "a  a", false, "258 256 258 ");
    p.pre_tokenizer = METASPACE("never", "false");
    expect(&p, "a a", false, "257 258 ");
}

static void characters_that_are_no_token_are_bytes(void **state)
{
    const parts p = {.of_characters = true,
                     .tokens = space_tokens,
                     .merges = space_merges,
                     .normalizer = PREPEND,
                     .pre_tokenizer = "null"};
    expect(&p, "\xC3\xA9\n<0x41>", false, "256 195 169 10 60 48 120 52 49 62 ");
}

static void text_after_an_added_token_may_get_a_space(void **state)
{
    parts p = {.of_characters = true,
               .tokens = space_tokens,
               .merges = space_merges,
               .added = "[" ADDED("260", "<e>", ", \"special\": true, \"normalized\": false") "]",
               .normalizer = PREPEND,
               .pre_tokenizer = "null"};
    expect(&p, "a<e>a", true, "258 260 258 ");
    p.added = "[" ADDED("260", "<e>", ", \"special\": true, \"normalized\": true") "]";
    expect(&p, "<e>a<e> a <e>", true, "260 257 60 101 62 258 260 ");
    p.normalizer = NULL;
    p.pre_tokenizer = METASPACE("first", "false");
    expect(&p, "a<e>a", true, "258 260 257 ");
    p.pre_tokenizer = METASPACE("always", "false");
    expect(&p, "a<e>a", true, "258 260 258 ");
}

static void decoded_text_loses_the_space_before_it(void **state)
{
    const parts p = {.of_characters = true,
                     .tokens = space_tokens,
                     .merges = space_merges,
                     .normalizer = PREPEND,
                     .pre_tokenizer = "null"};
    static const int32_t ids[] = {258, 195, 169, 259, 257};
    SCOPED(sl_vocab) *vocab = NULL;
    char *text;
    size_t bytes;
    check_ok(parse(&p, &vocab));
    check_ok(sl_tokens_decode(vocab, ids, 5, &text, &bytes));
    assert_string_equal(text, "a\xC3\xA9  a");
    assert_int_equal(bytes, 6);
    free(text);
}

/* ---- Added tokens -------------------------------------------------------------------------- */

static void special_tokens_are_text_unless_they_are_asked_for(void **state)
{
    const parts p = {
        .added = "[" ADDED("256", "<e>", ", \"special\": true, \"normalized\": false") "]",
        .post_processor =
            "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
            "\"<e>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
            "{\"SpecialToken\": {\"id\": \"<e>\", \"type_id\": 0}}, {\"SpecialToken\": "
            "{\"id\": \"<e>\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": "
            "{\"<e>\": {\"id\": \"<e>\", \"ids\": [256], \"tokens\": [\"<e>\"]}}}"};
    expect(&p, "a<e>", false, "97 60 101 62 ");
    expect(&p, "a<e>", true, "256 97 256 256 256 ");
    expect(&p, "", true, "256 256 256 ");
}

static void flags_of_added_tokens_say_where_they_are_found(void **state)
{
    expect(&(parts){.added = "[" ADDED("256", "ab", "") "," ADDED("257", "abc", "") "]"}, "abcab",
           false, "257 256 ");
    expect(&(parts){.added = "[" ADDED("256", "ab", ", \"single_word\": true") "]"},
           "ab xab ab_ .ab", false, "256 32 120 97 98 32 97 98 95 32 46 256 ");
    expect(&(parts){.added = "[" ADDED("256", "X", ", \"lstrip\": true") "]"}, "a  X \nX", false,
           "97 256 256 ");
    expect(&(parts){.added = "[" ADDED("256", "X", ", \"rstrip\": true") "]"}, "a X \t\nb", false,
           "97 32 256 98 ");
}

/* "e" with an accent is one character of the composed text. */
static void normalized_ones_are_found_in_the_composed_text(void **state)
{
    parts p = {.normalizer = "{\"type\": \"NFC\"}",
               .pre_tokenizer = SPLIT(QWEN2),
               .added = "[" ADDED("256", "\xC3\xA9", ", \"normalized\": true") "]"};
    expect(&p, "ae\xCC\x81", false, "97 256 ");
    p.added = "[" ADDED("256", "\xC3\xA9", ", \"normalized\": false") "]";
    expect(&p, "ae\xCC\x81", false, "97 195 169 ");
}

/* GPT-2's <|endoftext|> is one of the vocabulary's. */
static void added_token_may_be_one_of_the_vocabulary(void **state)
{
    expect(&(parts){.tokens = "<e> ", .added = "[" ADDED("256", "<e>", ", \"special\": true") "]"},
           "a<e>", true, "97 256 ");
}

/* ---- What is refused ----------------------------------------------------------------------- */

static void what_would_give_other_ids_is_refused_and_printed(void **state)
{
    static const struct {
        parts p;
        const char *expected;
    } cases[] = {
        {{.normalizer = "{\"type\": \"NFKC\"}"},
         "its \"normalizer\" is none that sluice has: {\"type\":\"NFKC\"}"},
        {{.normalizer = "{\"type\": \"NFC\"}"}, "with NFC, its \"pre_tokenizer\" is none"},
        {{.pre_tokenizer = "null"}, "its \"pre_tokenizer\" is none that sluice has: null"},
        {{.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"},
         "its \"pre_tokenizer\" is none"},
        {{.pre_tokenizer = "{\"type\": \"ByteLevel\"}"}, "its \"pre_tokenizer\" is none"},
        {{.pre_tokenizer = SPLIT("\\\\d")}, "its \"pre_tokenizer\" is none"},
        {{.pre_tokenizer = SPLIT(QWEN2)}, "its \"pre_tokenizer\" is none"},
        {{.decoder = "{\"type\": \"WordPiece\"}"}, "its \"decoder\" is none"},
        {{.post_processor = "{\"type\": \"BertProcessing\"}"}, "its \"post_processor\" is none"},
        {{.post_processor = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
                            "{\"id\": \"x\"}}, {\"Sequence\": {\"id\": \"A\"}}]}"},
         "its \"post_processor\" is none"},
        {{.of_characters = true}, "with byte_fallback, its \"pre_tokenizer\" is none"},
        {{.of_characters = true, .normalizer = "{\"type\": \"NFC\"}"},
         "with byte_fallback, its \"normalizer\" is none"},
        {{.of_characters = true, .pre_tokenizer = METASPACE("last", "true")},
         "with byte_fallback, its \"pre_tokenizer\" is none"},
        {{.of_characters = true, .pre_tokenizer = METASPACE("first", "true"), .decoder = "null"},
         "with byte_fallback, its \"decoder\" is none"},
        {{.of_characters = true,
          .pre_tokenizer = METASPACE("first", "true"),
          .options = "\"unk_token\": \"<unk>\","},
         "its \"unk_token\" is none"},
        {{.of_characters = true,
          .pre_tokenizer = METASPACE("first", "true"),
          .options = "\"ignore_merges\": true,"},
         "its \"ignore_merges\" is none"},
        {{.of_characters = true,
          .normalizer = PREPEND,
          .pre_tokenizer = "null",
          .added = "[" ADDED("256", "x", ", \"lstrip\": true") "]"},
         "with Prepend, an entry of its \"added_tokens\" is none"},
        {{.options = "\"unk_token\": \"<unk>\","}, "its \"unk_token\" is none"},
        {{.options = "\"dropout\": 0.1,"}, "its \"dropout\" is none"},
        {{.options = "\"end_of_word_suffix\": \"</w>\","}, "its \"end_of_word_suffix\" is none"},
    };
    sl_vocab *vocab;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_error(parse(&cases[i].p, &vocab), SL_ERR_UNSUPPORTED, cases[i].expected);
        assert_null(vocab);
    }
}

static void what_is_wrong_is_refused(void **state)
{
    static const struct {
        parts p;
        const char *expected;
    } cases[] = {
        {{.merges = "[\"a b\"]"},
         "its merge 0 must be two tokens of the vocabulary that make a third, got \"a b\""},
        {{.tokens = "ab ", .merges = "[\"a b\", [\"a\", \"b\"]]"},
         "its merge 1 must be a pair that is not there before, got [\"a\", \"b\"]"},
        {{.merges = "[\"ab\"]"}, "its merge 0 must be two tokens, got \"ab\""},
        {{.merges = "[3]"}, "its merge 0 must be two tokens, got 3"},
        {{.merges = "[\"a \\q\"]"}, "it is not valid JSON at its byte"},
        {{.merges = "[[\"a\", \"\xFF\"]]"}, "it is not valid JSON at its byte"},
        {{.options = "\"byte_fallback\": false,"}, "\"byte_fallback\" is listed twice"},
        {{.options = "\"ignore_merges\": tru,"}, "it is not valid JSON at its byte"},
        {{.options = "\"other\": [1,],"}, "it is not valid JSON at its byte"},
        {{.merges = "[[\"a\", \"b\", \"c\"]]"},
         "its merge 0 must be two tokens, got [\"a\", \"b\", \"c\"]"},
        {{.merges = "[[\"a\", \"b\", 3]]"}, "its merge 0 must be two tokens, got"},
        {{.merges = "[[\"a\"]]"}, "its merge 0 must be two tokens, got [\"a\"]"},
        {{.merges = "{}"}, "its model's \"merges\" must be an array"},
        {{.added = "{}"}, "its \"added_tokens\" must be an array"},
        {{.added = "[" ADDED("257", "x", "") "]"},
         "the ids of added tokens must follow those of the 256 others, each once, but \"x\" has "
         "257"},
        {{.added = "[" ADDED("97", "x", "") "]"}, "each once, but \"x\" has 97"},
        {{.added = "[" ADDED("256", "x", "") "," ADDED("256", "y", "") "]"},
         "each once, but \"y\""},
    };
    sl_vocab *vocab;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_error(parse(&cases[i].p, &vocab), SL_ERR_FORMAT, cases[i].expected);
        assert_null(vocab);
    }
    check_error(parse(&(parts){.added = "[{\"id\": 256}]"}, &vocab), SL_ERR_UNSUPPORTED,
                "an entry of its \"added_tokens\" is none");
}

/* ---- A rank file and GPT-2's files, written ------------------------------------------------ */

static void rank_file_is_written_as_a_tokenizer_json(void **state)
{
    static char text[BPE_TEXT_BYTES];
    SCOPED(sl_vocab) *vocab = NULL;
    SCOPED(sl_vocab) *again = NULL;
    scratch *dir = *state;
    write_file(scratch_path(dir, "ranks"), text, write_ranks(text, "ab bc abc xyz "));
    check_ok(sl_vocab_open(dir->path, "cl100k", &vocab));
    check_ok(sl_vocab_save(vocab, scratch_path(dir, "tokenizer.json")));
    check_ok(sl_vocab_open(dir->directory, NULL, &again));
    expect_ids(vocab, "abcbc\nxyz12", false, "258 257 10 259 49 50 ");
    expect_ids(again, "abcbc\nxyz12", false, "258 257 10 259 49 50 ");
}

int bpe_json_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_are_read_in_both_notations),
        cmocka_unit_test(token_that_no_merges_make_is_taken_where_merges_are_ignored),
        cmocka_unit_test(byte_that_is_no_token_is_left_out),
        cmocka_unit_test(pattern_names_the_splitter),
        cmocka_unit_test(space_comes_before_a_text),
        cmocka_unit_test(characters_that_are_no_token_are_bytes),
        cmocka_unit_test(text_after_an_added_token_may_get_a_space),
        cmocka_unit_test(decoded_text_loses_the_space_before_it),
        cmocka_unit_test(special_tokens_are_text_unless_they_are_asked_for),
        cmocka_unit_test(flags_of_added_tokens_say_where_they_are_found),
        cmocka_unit_test(normalized_ones_are_found_in_the_composed_text),
        cmocka_unit_test(added_token_may_be_one_of_the_vocabulary),
        cmocka_unit_test(what_would_give_other_ids_is_refused_and_printed),
        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test_setup_teardown(rank_file_is_written_as_a_tokenizer_json, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
