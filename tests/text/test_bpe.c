#include "text/bpe.h"

#include "io/scratch.h"
#include "support/check.h"
#include "text/drawn_texts.h"

#include <time.h>

/* ---- Small tokenizers ---------------------------------------------------------------------- */

/* `tokens` have the ids from 256 on, each with a blank behind it. */
static sl_status parse_merging(const char *tokens, const char *merges, sli_bpe **out)
{
    static char text[BPE_TEXT_BYTES];
    const sli_named_text vocab = {"V", text, write_vocab(text, tokens)};
    return sli_bpe_parse_vocab(&vocab, &(sli_named_text){"M", merges, strlen(merges)},
                               sli_splitter_find("gpt2"), out);
}

static sli_bpe *merging(const char *tokens, const char *merges)
{
    sli_bpe *bpe;
    check_ok(parse_merging(tokens, merges, &bpe));
    return bpe;
}

static sli_bpe *ranking(const char *tokens)
{
    static char text[BPE_TEXT_BYTES];
    sli_bpe *bpe;
    check_ok(sli_bpe_parse_ranks(&(sli_named_text){"R", text, write_ranks(text, tokens)},
                                 sli_splitter_find("cl100k"), &bpe));
    return bpe;
}

/* `expected`: the tokens' texts, each with a | behind it. */
static void expect_tokens(const sli_bpe *bpe, const char *text, const char *expected)
{
    sl_tokens tokens;
    char found[512] = "";
    size_t used = 0;
    check_ok(sli_bpe_encode(bpe, text, strlen(text), false, false, &tokens));
    for (int64_t i = 0; i < tokens.count; i++)
        used += (size_t)snprintf(found + used, sizeof found - used, "%s|",
                                 sli_bpe_token(bpe, tokens.ids[i]).text);
    sl_tokens_free(&tokens);
    assert_string_equal(found, expected);
}

/* ---- Merging ------------------------------------------------------------------------------- */

static void lowest_rank_merges_first_and_the_leftmost_of_equals(void **state)
{
    SCOPED(sli_bpe) *bpe = merging("ab bc abc aa ", "#version: 0.2\nb c\na b\na bc\na a\n");
    expect_tokens(bpe, "ab", "ab|");
    expect_tokens(bpe, "abc", "abc|");
    expect_tokens(bpe, "abcab", "abc|ab|");
    expect_tokens(bpe, "aaa", "aa|a|");
    expect_tokens(bpe, "aaaab", "aa|a|ab|");
    expect_tokens(bpe, "ab ab", "ab| |ab|");
    expect_tokens(bpe, "", "");
}

/* With merges a token must be made; of a rank file it is that of its bytes. */
static void token_that_no_merges_make_is_taken_of_a_rank_file_alone(void **state)
{
    SCOPED(sli_bpe) *merges = merging("wxyz wx ", "w x\n"), *ranks = ranking("wxyz wx ");
    expect_tokens(merges, "wxyz", "wx|y|z|");
    expect_tokens(ranks, "wxyz", "wxyz|");
    expect_tokens(ranks, "wxyzw", "wx|y|z|w|");
}

static void ranks_of_a_rank_file_order_its_merges(void **state)
{
    SCOPED(sli_bpe) *bpe = ranking("bc ab abc abcab ");
    expect_tokens(bpe, "abab", "ab|ab|");
    expect_tokens(bpe, "abcd", "abc|d|");
    expect_tokens(bpe, "dabcab", "d|abcab|");
}

/* One step at a time, in the plainest way. */
static int merge_plainly(const char (*merges)[2], int merge_count, int32_t *ids, int count)
{
    for (;;) {
        int best = merge_count, at = -1;
        for (int i = 0; i + 1 < count; i++)
            for (int m = 0; m < best; m++)
                if (ids[i] == (unsigned char)merges[m][0] &&
                    ids[i + 1] == (unsigned char)merges[m][1]) {
                    best = m;
                    at = i;
                }
        if (at < 0)
            return count;
        ids[at] = 'A' + best; /* as a token of the drawn tokenizer is called */
        for (int i = at + 1; i + 1 < count; i++)
            ids[i] = ids[i + 1];
        count--;
    }
}

/* Merges are drawn among the letters a, b, c and the merges before: A is the first, B the second.
 * In any order, so that one may be there before those of which it is made. */
enum { DRAWN_MERGES = 12, DRAWN_LETTERS = 3, DRAWN_BYTES = 40 };

typedef struct drawn {
    char pairs[DRAWN_MERGES][2];
    char texts[DRAWN_MERGES][8];
    int count;
} drawn;

static void draw_merges(unsigned *seed, drawn *out)
{
    *out = (drawn){.count = 0};
    for (int tries = 0; tries < 200 && out->count < DRAWN_MERGES; tries++) {
        char text[600] = "", pair[2];
        for (int half = 0; half < 2; half++) {
            int draw = test_draw(seed, 0, DRAWN_LETTERS + out->count - 1);
            pair[half] = (char)(draw < DRAWN_LETTERS ? 'a' + draw : 'A' + draw - DRAWN_LETTERS);
            if (draw < DRAWN_LETTERS)
                strncat(text, &"abc"[draw], 1);
            else
                strcat(text, out->texts[draw - DRAWN_LETTERS]);
        }
        bool is_new = strlen(text) < sizeof *out->texts;
        for (int i = 0; i < out->count; i++)
            is_new = is_new && strcmp(text, out->texts[i]) != 0;
        if (!is_new)
            continue;
        memcpy(out->pairs[out->count], pair, 2);
        memcpy(out->texts[out->count++], text, sizeof *out->texts);
    }
}

/* The text of a letter or of a merge, in `room`. */
static const char *text_of(const drawn *d, char name, char room[2])
{
    room[0] = name;
    room[1] = '\0';
    return name >= 'a' ? room : d->texts[name - 'A'];
}

static sli_bpe *tokenizer_of(const drawn *d)
{
    char tokens[4096] = "", merges[4096] = "", room[2];
    for (int i = 0; i < d->count; i++) {
        strcat(strcat(tokens, d->texts[i]), " ");
        strcat(strcat(merges, text_of(d, d->pairs[i][0], room)), " ");
        strcat(strcat(merges, text_of(d, d->pairs[i][1], room)), "\n");
    }
    return merging(tokens, merges);
}

static void drawn_merges_are_those_of_the_plain_way(void **state)
{
    unsigned seed = test_seed(1);
    for (int round = 0; round < 300; round++) {
        drawn d;
        char text[DRAWN_BYTES + 1] = "";
        int32_t plain[DRAWN_BYTES];
        int bytes = test_draw(&seed, 1, DRAWN_BYTES);
        draw_merges(&seed, &d);
        SCOPED(sli_bpe) *bpe = tokenizer_of(&d);
        for (int i = 0; i < bytes; i++)
            plain[i] = text[i] = "abc"[test_draw(&seed, 0, 2)];
        int count = merge_plainly((const char(*)[2])d.pairs, d.count, plain, bytes);
        sl_tokens tokens;
        check_ok(sli_bpe_encode(bpe, text, (size_t)bytes, false, false, &tokens));
        assert_int_equal(tokens.count, count);
        for (int i = 0; i < count; i++)
            assert_int_equal(tokens.ids[i], plain[i] >= 'a' ? plain[i] : 256 + plain[i] - 'A');
        sl_tokens_free(&tokens);
    }
}

/* What takes n² steps would take minutes. */
static void long_word_takes_no_longer_than_many_short_ones(void **state)
{
    enum { PAIRS = 1000000 };
    SCOPED(sli_bpe) *bpe = merging("ab abab ", "a b\nab ab\n");
    FREED char *text = malloc(2 * PAIRS);
    sl_tokens tokens;
    assert_non_null(text);
    for (int i = 0; i < 2 * PAIRS; i++)
        text[i] = "ab"[i % 2];
    check_ok(sli_bpe_encode(bpe, text, 2 * PAIRS, false, false, &tokens));
    assert_int_equal(tokens.count, PAIRS / 2);
    for (int64_t i = 0; i < tokens.count; i++)
        assert_int_equal(tokens.ids[i], 257);
    sl_tokens_free(&tokens);
}

/* The seconds that encoding a text [bytes] takes, a word again and again. */
static double encoding_seconds(const sli_bpe *bpe, const char *word, size_t bytes)
{
    FREED char *text = malloc(bytes);
    sl_tokens tokens;
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++)
        text[i] = word[i % strlen(word)];
    clock_t start = clock();
    check_ok(sli_bpe_encode(bpe, text, bytes, false, false, &tokens));
    assert_true(tokens.count > 0);
    sl_tokens_free(&tokens);
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* 16 times the text takes 256 times as long where it takes n² steps. */
static void time_grows_with_the_text(void **state)
{
    skip_if_sanitized();
    static const char *const words[] = {"ab", " ", "\n", " \n", "a", "'s", "1", "\xC3\xA9", "\xFF"};
    enum { FEW = 1 << 15, MANY = 16 * FEW };
    for (int i = 0; sl_splitters[i]; i++) {
        SCOPED(sl_vocab) *vocab = make_vocab(sl_splitters[i], "IAo= 264\nCiA= 265\nICA= 266\n");
        for (size_t j = 0; j < sizeof words / sizeof *words; j++) {
            double few = encoding_seconds(vocab->bpe, words[j], FEW),
                   many = encoding_seconds(vocab->bpe, words[j], MANY);
            if (many > 0.2 && many > 80 * few)
                fail_msg("%s, \"%s\": %g s, and %g s of 16 times as much", sl_splitters[i],
                         words[j], few, many);
        }
    }
}

/* ---- Texts --------------------------------------------------------------------------------- */

/* In a long text short pieces come from a cache; each by itself does not. Words of all lengths
 * about those that it takes, and of more ids than it holds. */
static void pieces_that_come_again_have_the_same_ids(void **state)
{
    enum { WORDS = 6000, MOST_WORD = 20 };
    unsigned seed = test_seed(7);
    SCOPED(sli_bpe) *bpe = merging("ab abab ababab bb ", "a b\nab ab\nabab ab\nb b\n");
    FREED char *text = calloc(WORDS, MOST_WORD);
    FREED int32_t *ids = calloc(WORDS * MOST_WORD, sizeof *ids);
    size_t bytes = 0;
    int64_t count = 0;
    sl_tokens tokens;
    assert_non_null(text);
    assert_non_null(ids);
    for (int word = 0; word < WORDS; word++) {
        char *begin = text + bytes;
        int letters = test_draw(&seed, 1, test_draw(&seed, 1, MOST_WORD - 1));
        text[bytes++] = ' ';
        for (int i = 1; i < letters; i++)
            text[bytes++] = "abc"[test_draw(&seed, 0, 2)];
        check_ok(sli_bpe_encode(bpe, begin, (size_t)(text + bytes - begin), false, false, &tokens));
        memcpy(ids + count, tokens.ids, (size_t)tokens.count * sizeof *ids);
        count += tokens.count;
        sl_tokens_free(&tokens);
    }
    check_ok(sli_bpe_encode(bpe, text, bytes, false, false, &tokens));
    assert_int_equal(tokens.count, count);
    assert_memory_equal(tokens.ids, ids, (size_t)count * sizeof *ids);
    sl_tokens_free(&tokens);
}

static void tokens_of_any_text_are_its_bytes(void **state)
{
    SCOPED(sli_bpe) *bpe = merging("th the ", "t h\nth e\n");
    static const char text[] = "the\0th\n \xC3\xA9 \xF0\x9F\x98\x80\r\nthe end";
    char decoded[2 * sizeof text];
    size_t used = 0;
    sl_tokens tokens;
    check_ok(sli_bpe_encode(bpe, text, sizeof text - 1, false, false, &tokens));
    for (int64_t i = 0; i < tokens.count; i++) {
        sl_token token = sli_bpe_token(bpe, tokens.ids[i]);
        memcpy(decoded + used, token.text, token.bytes);
        used += token.bytes;
    }
    assert_int_equal(used, sizeof text - 1);
    assert_memory_equal(decoded, text, used);
    assert_int_equal(tokens.line_count, 3);
    assert_int_equal(tokens.invalid_bytes, 0);
    sl_tokens_free(&tokens);
    assert_int_equal(sli_bpe_size(bpe), 258);
    assert_null(sli_bpe_token(bpe, -1).text);
    assert_null(sli_bpe_token(bpe, 258).text);
}

static void bytes_that_are_no_utf8_are_replaced_and_counted(void **state)
{
    SCOPED(sli_bpe) *bpe = merging("", "");
    static const char text[] = "a\xFFz\xE2\x82\xF0\x9F\x98!\xC3";
    static const int32_t expected[] = {'a',  0xEF, 0xBF, 0xBD, 'z',  0xEF, 0xBF, 0xBD,
                                       0xEF, 0xBF, 0xBD, '!',  0xEF, 0xBF, 0xBD};
    sl_tokens tokens;
    check_ok(sli_bpe_encode(bpe, text, sizeof text - 1, false, false, &tokens));
    assert_int_equal(tokens.invalid_bytes, 7);
    assert_int_equal(tokens.count, sizeof expected / sizeof *expected);
    assert_memory_equal(tokens.ids, expected, sizeof expected);
    sl_tokens_free(&tokens);
}

static void expect_bytes(const sli_bpe *bpe, const char *text, const char *expected)
{
    sl_tokens tokens;
    check_ok(sli_bpe_encode(bpe, text, strlen(text), false, false, &tokens));
    assert_int_equal(tokens.count, strlen(expected));
    for (int64_t i = 0; i < tokens.count; i++)
        assert_int_equal(tokens.ids[i], (unsigned char)expected[i]);
    sl_tokens_free(&tokens);
}

/* Where an accent follows a letter, in ASCII or not, and a Hangul syllable is in parts. */
static void qwen2_composes_characters(void **state)
{
    static char text[BPE_TEXT_BYTES];
    SCOPED(sli_bpe) *bpe = NULL;
    const sli_named_text ranks = {"R", text, write_ranks(text, "")};
    check_ok(sli_bpe_parse_ranks(&ranks, sli_splitter_find("qwen2"), &bpe));
    expect_bytes(bpe, "", "");
    expect_bytes(bpe, "plain", "plain");
    expect_bytes(bpe, "xe\xCC\x81y", "x\xC3\xA9y");
    expect_bytes(bpe, "e\xCC\x81", "\xC3\xA9");
    expect_bytes(bpe, "\xCC\x81", "\xCC\x81");
    expect_bytes(bpe, "a\xCC\x81 e\xCC\x81!", "\xC3\xA1 \xC3\xA9!");
    expect_bytes(bpe, "\xC3\xA2\xCC\x81.", "\xE1\xBA\xA5.");
    expect_bytes(bpe, "\xE1\x84\x80\xE1\x85\xA1", "\xEA\xB0\x80");
    expect_bytes(bpe, "e\xCC\xFF", "e\xEF\xBF\xBD\xEF\xBF\xBD");
}

/* ---- Files that are wrong ------------------------------------------------------------------ */

static void merges_that_are_wrong_are_refused(void **state)
{
    static const char *const cases[][2] = {
        {"a b\nab\n", "M: line 2 must be two tokens with a space between them, got \"ab\""},
        {"a b\n\n", "M: line 2 must be two tokens with a space"},
        {" b\n", "M: line 1 must be two tokens with a space"},
        {"a \n", "M: line 1 must be two tokens with a space"},
        {"a b\na b\n", "M: line 2 must be a pair that is not there before, got \"a b\""},
        {"a c\n", "M: line 1 must be two tokens of the vocabulary that make a third, got \"a c\""},
        {"ac b\n", "M: line 1 must be two tokens of the vocabulary that"},
        {"a b\r\n", "M: line 1 must be two tokens of the vocabulary that"},
        {"a b\n#version: 2\n", "M: line 2 must be two tokens of the vocabulary that"},
    };
    sli_bpe *bpe;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_error(parse_merging("ab ", cases[i][0], &bpe), SL_ERR_FORMAT, cases[i][1]);
        assert_null(bpe);
    }
}

static void vocabulary_that_is_wrong_is_refused(void **state)
{
    static const char *const cases[][2] = {
        {"[]", "V: the vocabulary must be a JSON object of tokens and ids"},
        {"{", "V: the vocabulary is not valid JSON at its byte"},
        {"", "V: the vocabulary is not valid JSON at its byte"},
        {"{}", "V: every byte must be a token, but none of the 0 is the byte 0x00"},
        {"{\"a\": 1}", "V: the ids of 1 tokens must be 0 to 0, each once, but there is none of 0"},
        {"{\"a\": 0, \"b\": 0}", "each once, but there are two of 0"},
        {"{\"a\": 0, \"a\": 1}", "V: tokens 0 and 1 have the same bytes"},
        {"{\"\": 0}", "V: token 0 must have 1 to 1024 bytes, got 0"},
        {"{\"a\": -1}", "V: the id of \"a\" must be a whole number, got -1"},
        {"{\"a\": 99999999999}", "V: the id of \"a\" must be a whole number, got 99999999999"},
        {"{\"a\": {}}", "V: the id of \"a\" must be a whole number, got {}"},
        {"{\"a\": 00}", "V: the id of \"a\" must be a whole number, got 00"},
        {"{\"\xE2\x82\xAC\": 0}", "V: token 0 must be written in the 256 characters that"},
        {"{\"a b\": 0}", "V: token 0 must be written in the 256 characters that"},
    };
    sli_bpe *bpe;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sli_named_text vocab = {"V", cases[i][0], strlen(cases[i][0])};
        check_error(sli_bpe_parse_vocab(&vocab, &(sli_named_text){"M", "", 0},
                                        sli_splitter_find("gpt2"), &bpe),
                    SL_ERR_FORMAT, cases[i][1]);
        assert_null(bpe);
    }
}

static void ranks_that_are_wrong_are_refused(void **state)
{
    static const char *const cases[][2] = {
        {"YQ== 0\nYg==\n",
         "R: line 2 must be a token in base64, a space and its rank, got \"Yg==\""},
        {"Y* 0\n", "R: line 1 must be a token in base64, a space"},
        {"YQ== x\n", "R: line 1 must be a token in base64, a space"},
        {"YQ== \n", "R: line 1 must be a token in base64, a space"},
        {"YQ== 0\nYg== 2\n", "R: the ids of 2 tokens must be 0 to 1, each once, but there is none"},
        {"YQ== 0\nYQ== 1\n", "R: tokens 0 and 1 have the same bytes"},
        {"YQ== 0\n", "R: every byte must be a token, but none of the 1 is the byte 0x00"},
        {"", "R: every byte must be a token"},
    };
    sli_bpe *bpe;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const sli_named_text ranks = {"R", cases[i][0], strlen(cases[i][0])};
        check_error(sli_bpe_parse_ranks(&ranks, sli_splitter_find("gpt2"), &bpe), SL_ERR_FORMAT,
                    cases[i][1]);
        assert_null(bpe);
    }
}

/* ---- Opening ------------------------------------------------------------------------------- */

static void expect_opened(const char *path, const char *splitter, const char *text,
                          const char *expected)
{
    SCOPED(sl_vocab) *vocab = NULL;
    check_ok(sl_vocab_open(path, splitter, &vocab));
    assert_false(sl_vocab_has_words(vocab));
    expect_tokens(vocab->bpe, text, expected);
}

static void directory_and_rank_file_are_opened(void **state)
{
    static char text[BPE_TEXT_BYTES];
    scratch *dir = *state;
    sl_vocab *vocab;
    write_file(scratch_path(dir, "vocab.json"), text, write_vocab(text, "ab "));
    check_error(sl_vocab_open(dir->directory, NULL, &vocab), SL_ERR_NOT_FOUND,
                "nor vocab.json with merges.txt");
    write_file(scratch_path(dir, "merges.txt"), "a b\n", 4);
    expect_opened(dir->directory, NULL, "ab(a", "ab|(|a|");
    expect_opened(dir->directory, "cl100k", "12345", "1|2|3|4|5|");
    write_file(scratch_path(dir, "t.model"), text, write_ranks(text, "(a "));
    check_error(sl_vocab_open(dir->path, NULL, &vocab), SL_ERR_INVALID,
                "/t.model: a file of ranks does not say how text is split");
    expect_opened(dir->path, "gpt2", "(a", "(|a|");
    expect_opened(dir->path, "cl100k", "(a", "(a|");
}

static void what_is_no_tokenizer_is_refused(void **state)
{
    scratch *dir = *state;
    sl_vocab *vocab;
    check_error(sl_vocab_open(scratch_path(dir, "none"), NULL, &vocab), SL_ERR_NOT_FOUND,
                "/none: ");
    assert_null(vocab);
    check_error(sl_vocab_open(dir->directory, NULL, &vocab), SL_ERR_NOT_FOUND,
                ": it has no tokenizer: neither tokenizer.json, nor vocab.json");
    check_error(sl_vocab_open(dir->directory, "gpt4", &vocab), SL_ERR_INVALID,
                "a splitter is one of gpt2, smollm, cl100k, qwen2, qwen3.5, o200k, got \"gpt4\"");
    write_file(scratch_path(dir, "tokenizer.json"), "{}", 2);
    check_error(sl_vocab_open(dir->path, "gpt2", &vocab), SL_ERR_INVALID,
                "/tokenizer.json: it says itself how text is split");
    check_error(sl_vocab_open(dir->path, NULL, &vocab), SL_ERR_FORMAT,
                "/tokenizer.json: it has no object \"model\"");
    assert_null(vocab);
}

int bpe_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_rank_merges_first_and_the_leftmost_of_equals),
        cmocka_unit_test(token_that_no_merges_make_is_taken_of_a_rank_file_alone),
        cmocka_unit_test(ranks_of_a_rank_file_order_its_merges),
        cmocka_unit_test(drawn_merges_are_those_of_the_plain_way),
        cmocka_unit_test(long_word_takes_no_longer_than_many_short_ones),
        cmocka_unit_test(time_grows_with_the_text),
        cmocka_unit_test(pieces_that_come_again_have_the_same_ids),
        cmocka_unit_test(tokens_of_any_text_are_its_bytes),
        cmocka_unit_test(bytes_that_are_no_utf8_are_replaced_and_counted),
        cmocka_unit_test(qwen2_composes_characters),
        cmocka_unit_test(merges_that_are_wrong_are_refused),
        cmocka_unit_test(vocabulary_that_is_wrong_is_refused),
        cmocka_unit_test(ranks_that_are_wrong_are_refused),
        cmocka_unit_test_setup_teardown(directory_and_rank_file_are_opened, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(what_is_no_tokenizer_is_refused, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
