/* SentencePiece's own file of a BPE, made by hand. What the package sentencepiece makes of such
 * files is compared in sentencepiece_drawn.py. */
#include "io/scratch.h"
#include "sluice/app/text.h"
#include "support/check.h"
#include "text/vocab.h"

#include <string.h>

enum { ORDINARY = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE, FILE_BYTES = 1 << 14 };

typedef struct model_text {
    char bytes[FILE_BYTES];
    size_t count;
} model_text;

static void add(model_text *file, const char *bytes, size_t count)
{
    assert_true(file->count + count <= FILE_BYTES);
    memcpy(file->bytes + file->count, bytes, count);
    file->count += count;
}

/* A field of bytes, fewer than 128. */
static void add_field(model_text *file, int number, const char *bytes, size_t count)
{
    const char head[2] = {(char)(number << 3 | 2), (char)count};
    assert_true(count < 128);
    add(file, head, sizeof head);
    add(file, bytes, count);
}

static void add_piece(model_text *file, const char *text, float score, int type)
{
    model_text piece = {.count = 0};
    char rest[7] = {2 << 3 | 5, 0, 0, 0, 0, 3 << 3, (char)type};
    memcpy(rest + 1, &score, sizeof score);
    add_field(&piece, 1, text, strlen(text));
    add(&piece, rest, sizeof rest);
    add_field(file, 1, piece.bytes, piece.count);
}

/* The specifications of a BPE with byte fallback that changes no text: type 3 2, byte_fallback;
 * add_dummy_prefix, no remove_extra_whitespaces. */
static const char plain_trainer[] = {3 << 3, 2, (char)0x98, 2, 1},
                  plain_normalizer[] = {3 << 3, 1, 4 << 3, 0};

/* <unk>, <s> and </s>, the bytes, and some letters. */
static void add_head(model_text *file)
{
    add_piece(file, "<unk>", 0, UNKNOWN);
    add_piece(file, "<s>", 0, CONTROL);
    add_piece(file, "</s>", 0, CONTROL);
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
        add_piece(file, name, 0, BYTE);
    }
    static const char *const letters[] = {"\xE2\x96\x81", "a", "b", "c"};
    for (int i = 0; i < 4; i++) /* ids 259 to 262 */
        add_piece(file, letters[i], -100 - (float)i, ORDINARY);
}

static void add_tail(model_text *file)
{
    add_field(file, 2, plain_trainer, sizeof plain_trainer);
    add_field(file, 3, plain_normalizer, sizeof plain_normalizer);
}

static sl_status parse(const model_text *text, sl_vocab **out)
{
    char *own = malloc(text->count + 1); /* so that reading past its end is seen */
    memcpy(own, text->bytes, text->count);
    sl_status status = sli_vocab_parse(own, text->count, out);
    free(own);
    return status;
}

static void expect_ids(const sl_vocab *vocab, const char *text, bool special, const char *expected)
{
    sl_tokens tokens;
    char got[256] = "";
    check_ok(sl_tokens_encode(vocab, text, strlen(text), special, &tokens));
    for (int64_t i = 0; i < tokens.count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%d ", tokens.ids[i]);
    assert_string_equal(got, expected);
    sl_tokens_free(&tokens);
}

static void pairs_merge_by_the_scores_of_what_they_make(void **state)
{
    (void)state;
    static model_text text;
    SCOPED(sl_vocab) *vocab = NULL;
    text.count = 0;
    add_head(&text);
    add_piece(&text, "ab", -2, ORDINARY); /* 263 */
    add_piece(&text, "bc", -1, ORDINARY); /* 264, which merges first */
    add_piece(&text,
              "\xE2\x96\x81"
              "a",
              -3, ORDINARY);               /* 265 */
    add_piece(&text, "abc", -4, ORDINARY); /* 266, of a and bc too */
    add_tail(&text);
    check_ok(parse(&text, &vocab));
    assert_int_equal(sl_vocab_size(vocab), 267);
    expect_ids(vocab, "ab", false, "259 263 ");
    expect_ids(vocab, "abc", false, "265 264 ");
    expect_ids(vocab, "aabc", false, "265 266 ");
    expect_ids(vocab, " x", false, "259 259 123 ");
    expect_ids(vocab, "a</s>", true, "1 265 2 ");
    expect_ids(vocab, "", true, "1 ");
    expect_ids(vocab, "", false, "");
    assert_int_equal(sl_vocab_end(vocab), 2);
}

static void equal_scores_merge_from_the_left(void **state)
{
    (void)state;
    static model_text text;
    SCOPED(sl_vocab) *vocab = NULL;
    text.count = 0;
    add_tail(&text); /* in any order: the file is then none by its first byte */
    assert_false(sli_is_sentencepiece(text.bytes, text.count));
    text.count = 0;
    add_head(&text);
    add_piece(&text, "bc", -1, ORDINARY); /* 263 */
    add_piece(&text, "ab", -1, ORDINARY); /* 264 */
    add_tail(&text);
    check_ok(parse(&text, &vocab));
    expect_ids(vocab, "abc", false, "259 264 262 ");
    expect_ids(vocab, "cbc", false, "259 262 263 ");
}

static void expect_refused(const char *trainer, size_t trainer_bytes, const char *normalizer,
                           size_t normalizer_bytes, const char *message)
{
    static model_text text;
    sl_vocab *vocab;
    text.count = 0;
    add_head(&text);
    if (trainer)
        add_field(&text, 2, trainer, trainer_bytes);
    add_field(&text, 3, normalizer, normalizer_bytes);
    check_error(parse(&text, &vocab), SL_ERR_UNSUPPORTED, message);
    assert_null(vocab);
}

static void other_kinds_are_refused(void **state)
{
    (void)state;
    static const char words[] = {3 << 3, 3, (char)0x98, 2, 1}, no_bytes[] = {3 << 3, 2},
                      suffix[] = {3 << 3, 2, (char)0x98, 2, 1, (char)0xC0, 1, 1},
                      map[] = {2 << 3 | 2, 1, 'x', 4 << 3, 0}, spaces[] = {3 << 3, 1},
                      unescaped[] = {4 << 3, 0, 5 << 3, 0};
#define NORMALIZER plain_normalizer, sizeof plain_normalizer
#define TRAINER    plain_trainer, sizeof plain_trainer
    expect_refused(NULL, 0, NORMALIZER, "and it is of unigram");
    expect_refused(words, sizeof words, NORMALIZER, "and it is of words");
    expect_refused(no_bytes, sizeof no_bytes, NORMALIZER, "it has no byte_fallback");
    expect_refused(suffix, sizeof suffix, NORMALIZER, "treat_whitespace_as_suffix");
    expect_refused(TRAINER, map, sizeof map, "precompiled_charsmap");
    expect_refused(TRAINER, spaces, sizeof spaces, "remove_extra_whitespaces");
    expect_refused(TRAINER, unescaped, sizeof unescaped, "escape_whitespaces");
}

static void expect_piece_refused(const char *piece, float score, int type, sl_status code,
                                 const char *message)
{
    static model_text text;
    sl_vocab *vocab;
    text.count = 0;
    add_head(&text);
    add_piece(&text, piece, score, type);
    add_tail(&text);
    check_error(parse(&text, &vocab), code, message);
    assert_null(vocab);
}

static void bad_pieces_are_refused(void **state)
{
    (void)state;
    expect_piece_refused("x", 0, USER_DEFINED, SL_ERR_UNSUPPORTED, "its piece 263 is user-defined");
    expect_piece_refused("x", 0, UNUSED, SL_ERR_UNSUPPORTED, "its piece 263 is unused");
    expect_piece_refused("x", 0, 7, SL_ERR_FORMAT, "a type of 1 to 6 and a score, got 7");
    expect_piece_refused("x", 0.0f / 0.0f, ORDINARY, SL_ERR_FORMAT, "a type of 1 to 6 and a score");
    expect_piece_refused("x y", 0, ORDINARY, SL_ERR_FORMAT, "UTF-8 without spaces");
    expect_piece_refused("\xFF", 0, ORDINARY, SL_ERR_FORMAT, "UTF-8 without spaces");
    expect_piece_refused("", 0, ORDINARY, SL_ERR_FORMAT, "token 263 must have 1 to 1024 bytes");
    expect_piece_refused("a", 0, ORDINARY, SL_ERR_FORMAT, "have the same bytes");
    expect_piece_refused("ax", 0, ORDINARY, SL_ERR_FORMAT,
                         "each character of its piece 263 must be a piece");
}

static void files_that_are_cut_off_are_refused(void **state)
{
    (void)state;
    static model_text text;
    text.count = 0;
    add_head(&text);
    add_tail(&text);
    size_t whole = text.count;
    for (text.count = 1; text.count < whole; text.count++) {
        SCOPED(sl_vocab) *vocab = NULL;
        sl_status status = parse(&text, &vocab); /* between two fields it is another kind */
        assert_true(status == SL_ERR_FORMAT || status == SL_ERR_UNSUPPORTED);
    }
    text.count = whole;
    SCOPED(sl_vocab) *vocab = NULL;
    check_ok(parse(&text, &vocab));
    text.bytes[text.count++] = 4 << 3 | 3; /* a group, which no file has */
    sl_vocab *none;
    check_error(parse(&text, &none), SL_ERR_FORMAT, "it is no whole file of SentencePiece");
}

static void directories_have_it_where_there_is_no_other(void **state)
{
    scratch *dir = *state;
    static model_text text;
    SCOPED(sl_vocab) *vocab = NULL;
    text.count = 0;
    add_head(&text);
    add_tail(&text);
    check_error(sl_vocab_open(dir->directory, NULL, &vocab), SL_ERR_NOT_FOUND,
                "nor tokenizer.model");
    write_file(scratch_path(dir, "tokenizer.model"), text.bytes, text.count);
    check_ok(sl_vocab_open(dir->directory, NULL, &vocab));
    expect_ids(vocab, "a", true, "1 259 260 ");
    sl_vocab_destroy(&vocab);
    write_file(scratch_path(dir, "vocab.json"), "{}", 2); /* half of a pair */
    check_error(sl_vocab_open(dir->directory, "gpt2", &vocab), SL_ERR_INVALID,
                "so no splitter can be named");
    static const char settings[] = "{\"add_bos_token\": false, \"add_eos_token\": true}";
    write_file(scratch_path(dir, "tokenizer_config.json"), settings, sizeof settings - 1);
    check_ok(sl_vocab_open(dir->directory, NULL, &vocab));
    expect_ids(vocab, "a", true, "259 260 2 ");
    sl_vocab_destroy(&vocab);
    write_file(scratch_path(dir, "tokenizer.json"), "\n\n {}", 5);
    check_error(sl_vocab_open(dir->directory, NULL, &vocab), SL_ERR_FORMAT,
                "it has no object \"model\"");
}

int sentencepiece_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_merge_by_the_scores_of_what_they_make),
        cmocka_unit_test(equal_scores_merge_from_the_left),
        cmocka_unit_test(other_kinds_are_refused),
        cmocka_unit_test(bad_pieces_are_refused),
        cmocka_unit_test(files_that_are_cut_off_are_refused),
        cmocka_unit_test_setup_teardown(directories_have_it_where_there_is_no_other, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
