#include "text/vocab.h"

#include "support/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- Helpers ----------------------------------------------------------------------------- */

static void expect_vocab(const sl_vocab *vocab, const char *const *tokens, int32_t count)
{
    assert_int_equal(sl_vocab_size(vocab), count);
    for (int32_t id = 0; id < count; id++) {
        sl_token token = sl_vocab_token(vocab, id);
        assert_string_equal(token.text, tokens[id]);
        assert_int_equal(token.bytes, strlen(tokens[id]));
        assert_int_equal(sl_vocab_id(vocab, token.text, token.bytes), id);
    }
}

/* ---- Building ---------------------------------------------------------------------------- */

static void tokens_are_ordered_by_frequency_then_code_point(void **state)
{
    /* U+FF5E comes before U+1F600 by code point, and after it as UTF-16 has them. */
    static const char *const expected[] = {
        "<unk>", "c", "b", "B", "a", "aa", "ab", "\xC3\xA9", "\xEF\xBD\x9E", "\xF0\x9F\x98\x80"};
    sl_vocab *vocab = vocab_of("c b \xF0\x9F\x98\x80 c ab aa \xEF\xBD\x9E a c B \xC3\xA9 b");
    expect_vocab(vocab, expected, sizeof expected / sizeof *expected);
    sl_vocab_destroy(&vocab);
    sl_vocab_destroy(&vocab);
}

static void unknown_token_in_the_text_keeps_id_0(void **state)
{
    static const char *const expected[] = {"<unk>", "b", "a"};
    SCOPED(sl_vocab) *vocab = vocab_of("a b <unk> b");
    expect_vocab(vocab, expected, 3);
}

static void vocabulary_of_nothing_has_the_unknown_token(void **state)
{
    static const char *const expected[] = {"<unk>"};
    SCOPED(sl_vocab) *vocab = vocab_of("");
    expect_vocab(vocab, expected, 1);
}

static void token_that_is_not_listed_is_unknown(void **state)
{
    SCOPED(sl_vocab) *vocab = vocab_of("aa bb");
    assert_int_equal(sl_vocab_id(vocab, "a", 1), SL_VOCAB_UNKNOWN);
    assert_int_equal(sl_vocab_id(vocab, "aaa", 3), SL_VOCAB_UNKNOWN);
    assert_int_equal(sl_vocab_id(vocab, "", 0), SL_VOCAB_UNKNOWN);
    assert_null(sl_vocab_token(vocab, -1).text);
    assert_null(sl_vocab_token(vocab, 3).text);
}

static void provisional_numbers_lead_to_final_ids(void **state)
{
    static const char *const words[] = {"x", "y", "y", "<unk>", "x", "y"};
    static const int32_t expected[] = {2, 1, 1, 0, 2, 1};
    int32_t provisional[6], final_ids[3];
    sl_vocab_builder *builder;
    sl_vocab *vocab;
    check_ok(sl_vocab_builder_create(&builder));
    for (int i = 0; i < 6; i++)
        check_ok(sl_vocab_builder_add(builder, words[i], strlen(words[i]), &provisional[i]));
    assert_int_equal(sl_vocab_builder_size(builder), 3);
    check_ok(sl_vocab_builder_finish(builder, final_ids, &vocab));
    for (int i = 0; i < 6; i++)
        assert_int_equal(final_ids[provisional[i]], expected[i]);
    sl_vocab_destroy(&vocab);
    sl_vocab_builder_destroy(&builder);
    sl_vocab_builder_destroy(&builder);
}

static void token_with_white_space_or_without_bytes_is_refused(void **state)
{
    SCOPED(sl_vocab_builder) *builder = NULL;
    check_ok(sl_vocab_builder_create(&builder));
    check_error(sl_vocab_builder_add(builder, "", 0, NULL), SL_ERR_INVALID, "must not be empty");
    check_error(sl_vocab_builder_add(builder, "a b", 3, NULL), SL_ERR_INVALID, "0x20 at byte 1");
    check_error(sl_vocab_builder_add(builder, "ab\n", 3, NULL), SL_ERR_INVALID, "0x0A at byte 2");
    assert_int_equal(sl_vocab_builder_size(builder), 0);
}

/* Tokens of many lengths, more than the tables' first sizes, that are found again. Some ten pairs
 * among so many have the same 32 bits of hash. */
static void many_tokens_are_counted_and_found(void **state)
{
    enum { TOKENS = 300000 };
    uint64_t seed = (uint64_t)time(NULL), random = seed;
    char text[64];
    SCOPED(sl_vocab_builder) *builder = NULL;
    SCOPED(sl_vocab) *vocab = NULL;
    print_message("seed %llu\n", (unsigned long long)seed);
    check_ok(sl_vocab_builder_create(&builder));
    for (int round = 0; round < 2; round++) {
        random = seed;
        for (int32_t i = 0; i < TOKENS; i++) {
            int32_t provisional;
            random = random * 6364136223846793005u + 1442695040888963407u;
            int bytes = snprintf(text, sizeof text, "%d%.*s", i, (int)(random >> 59), /* 0 to 31 */
                                 "abcdefghijklmnopqrstuvwxyzabcdef");
            check_ok(sl_vocab_builder_add(builder, text, (size_t)bytes, &provisional));
            assert_int_equal(provisional, i);
        }
    }
    FREED int32_t *final_ids = calloc(TOKENS, sizeof *final_ids);
    assert_non_null(final_ids);
    check_ok(sl_vocab_builder_finish(builder, final_ids, &vocab));
    assert_int_equal(sl_vocab_size(vocab), TOKENS + 1);
    for (int32_t id = 1; id <= TOKENS; id++) {
        sl_token token = sl_vocab_token(vocab, id);
        assert_int_equal(sl_vocab_id(vocab, token.text, token.bytes), id);
        assert_int_equal(final_ids[strtol(token.text, NULL, 10)], id);
        if (id > 1) /* all are equally frequent */
            assert_true(strcmp(sl_vocab_token(vocab, id - 1).text, token.text) < 0);
    }
}

/* ---- Hashing ----------------------------------------------------------------------------- */

static uint64_t mix_bits(uint64_t word)
{
    word *= 0x9E3779B97F4A7C15u;
    return word ^ (word >> 32);
}

/* Token `number` of those that all collide under a hash without a key which mixes 8 bytes after the
 * other: the second half undoes what the first has done. False where that is no text. */
static bool write_colliding(uint64_t number, char token[16])
{
    uint64_t first, second;
    for (int i = 0; i < 8; i++)
        token[i] = (char)('0' + (number >> 6 * i) % 64);
    memcpy(&first, token, 8);
    second = mix_bits(16 ^ first) ^ 1;
    memcpy(token + 8, &second, 8);
    for (int i = 8; i < 16; i++)
        if (token[i] <= ' ' || token[i] > '~')
            return false;
    return true;
}

static int ascending(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* As tables differ in their hashes, no text can be made for all of them. */
static void tokens_made_to_collide_do_not(void **state)
{
    enum { TOKENS = 1000 };
    uint32_t hashes[2][TOKENS];
    char token[16];
    for (int t = 0; t < 2; t++) {
        sli_token_table table;
        int32_t id;
        int count = 0, differ = 1;
        check_ok(sli_token_table_init(&table));
        for (uint64_t number = 0; table.count < TOKENS; number++)
            if (write_colliding(number, token))
                check_ok(sli_token_table_add(&table, token, sizeof token, &id));
        for (size_t i = 0; i <= table.mask; i++)
            if (table.slots[i].id >= 0)
                hashes[t][count++] = table.slots[i].hash;
        assert_int_equal(count, TOKENS);
        qsort(hashes[t], TOKENS, sizeof *hashes[t], ascending);
        for (int i = 1; i < TOKENS; i++)
            differ += hashes[t][i] != hashes[t][i - 1];
        assert_true(differ > TOKENS - 5);
        sli_token_table_free(&table);
    }
    assert_memory_not_equal(hashes[0], hashes[1], sizeof hashes[0]);
}

int vocab_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_ordered_by_frequency_then_code_point),
        cmocka_unit_test(unknown_token_in_the_text_keeps_id_0),
        cmocka_unit_test(vocabulary_of_nothing_has_the_unknown_token),
        cmocka_unit_test(token_that_is_not_listed_is_unknown),
        cmocka_unit_test(provisional_numbers_lead_to_final_ids),
        cmocka_unit_test(token_with_white_space_or_without_bytes_is_refused),
        cmocka_unit_test(many_tokens_are_counted_and_found),
        cmocka_unit_test(tokens_made_to_collide_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
