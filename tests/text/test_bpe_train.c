#include "text/bpe_train.h"

#include "io/scratch.h"
#include "support/check.h"

#include <sodium.h>

/* ---- Helpers ----------------------------------------------------------------------------- */

static const char *const one_special[] = {"<|endoftext|>"};

/* Of one file with a text, whose new tokens are `expected`, each with a | behind it. */
static void expect_tokens(scratch *dir, const char *text, sl_bpe_training training,
                          const char *expected)
{
    char made[512] = "";
    size_t used = 0;
    SCOPED(sl_vocab) *vocab = NULL;
    sl_bpe_trained result;
    const char *path = scratch_path(dir, "text");
    write_file(path, text, strlen(text));
    check_ok(sli_bpe_train(&path, 1, &training, &vocab, &result));
    int32_t size = sl_vocab_size(vocab);
    assert_int_equal(result.vocab_size, size);
    for (int32_t id = 256 + training.special_count; id < size; id++)
        used += (size_t)snprintf(made + used, sizeof made - used, "%s|",
                                 sl_vocab_token(vocab, id).text);
    assert_string_equal(made, expected);
}

static sl_bpe_training of_size(int32_t size)
{
    return (sl_bpe_training){.vocab_size = size};
}

/* ---- What is learned ---------------------------------------------------------------------- */

static void most_frequent_pair_comes_first(void **state)
{
    expect_tokens(*state, "ab ab ab cd cd", of_size(257), "ab|");
    /* Of the space with "c" and with "ab", the pairs left, the ids are above those of "c" with "d".
     */
    expect_tokens(*state, "ab ab ab cd cd", of_size(300), "ab|cd| ab| cd|");
}

static void of_equal_pairs_the_one_of_lower_ids_comes_first(void **state)
{
    expect_tokens(*state, "ba", of_size(300), "ba|");
    expect_tokens(*state, "zb\nya", of_size(258), "ya|zb|");
    expect_tokens(*state, "bz\nby", of_size(258), "by|bz|");
}

static void overlapping_pairs_merge_from_the_left(void **state)
{
    expect_tokens(*state, "aaaaa", of_size(300), "aa|aaa|aaaaa|");
    expect_tokens(*state, "aaaa aaaa", of_size(300), "aa|aaaa| aaaa|");
}

static void lines_are_texts_of_their_own(void **state)
{
    /* "\n\n" and "a\n" would be pieces of one text. */
    expect_tokens(*state, "\n\n\n\n", of_size(300), "");
    expect_tokens(*state, "a \r\nb", of_size(300), "\r\n| \r\n|");
}

static void splitter_decides_what_may_merge(void **state)
{
    sl_bpe_training training = {.vocab_size = 300, .splitter = "smollm"};
    expect_tokens(*state, "12 12", training, "");
    training.splitter = "gpt2";
    expect_tokens(*state, "12 12", training, "12| 12|");
    training.splitter = "qwen2"; /* of the text's NFC */
    expect_tokens(*state, "e\xCC\x81", training, "\xC3\xA9|");
}

static void special_tokens_have_the_first_ids_and_are_text_in_files(void **state)
{
    static const char *const special[] = {"<s>", "ab"};
    scratch *dir = *state;
    SCOPED(sl_vocab) *vocab = NULL;
    sl_bpe_trained result;
    const char *path = scratch_path(dir, "text");
    const sl_bpe_training training = {.vocab_size = 259, .special = special, .special_count = 2};
    write_file(path, "abab <s>", 8);
    check_ok(sli_bpe_train(&path, 1, &training, &vocab, &result));
    assert_int_equal(sl_vocab_id(vocab, "<s>", 3), 0);
    assert_int_equal(sl_vocab_id(vocab, "ab", 2), 1);
    assert_int_equal(sl_vocab_id(vocab, "!", 1), 2);
    assert_int_equal(sl_vocab_id(vocab, "\0", 1), 2 + 188);       /* behind those that print */
    assert_string_equal(sl_vocab_token(vocab, 258).text, "abab"); /* "ab" was there */
    assert_int_equal(result.different_words, 4);
    assert_non_null(strstr(vocab->settings, "\"eos_token\": \"<s>\""));
}

static void tokens_have_at_most_1024_bytes(void **state)
{
    static char text[5000];
    scratch *dir = *state;
    SCOPED(sl_vocab) *vocab = NULL;
    sl_bpe_trained result;
    const char *path = scratch_path(dir, "text");
    const sl_bpe_training training = {.vocab_size = 300};
    memset(text, 'a', sizeof text);
    write_file(path, text, sizeof text);
    check_ok(sli_bpe_train(&path, 1, &training, &vocab, &result));
    size_t longest = 0;
    for (int32_t id = 0; id < sl_vocab_size(vocab); id++)
        longest =
            sl_vocab_token(vocab, id).bytes > longest ? sl_vocab_token(vocab, id).bytes : longest;
    assert_int_equal(longest, 1024);
}

static void bytes_that_are_not_utf8_are_replaced_and_counted(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_vocab) *vocab = NULL;
    sl_bpe_trained result;
    const char *path = scratch_path(dir, "text");
    const sl_bpe_training training = {.vocab_size = 258};
    write_file(path,
               "abc\xFF"
               "abc\n",
               8);
    check_ok(sli_bpe_train(&path, 1, &training, &vocab, &result));
    assert_int_equal(result.invalid_bytes, 1);
}

/* With goldens/wikitext2_ids.json's hash of the merges, "LEFT RIGHT" a line. */
static void wikitext2_gives_the_merges_of_tokenizers(void **state)
{
    scratch *dir = *state;
    char path[4096], *text, digits[17];
    const char *data = getenv("SLUICE_DATA"), *file = path;
    const sl_bpe_training training = {.vocab_size = 8192,
                                      .special = one_special,
                                      .special_count = 1};
    sl_bpe_trained result;
    unsigned char hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state sha;
    snprintf(path, sizeof path, "%s/wiki.train.tokens", data ? data : "");
    if (!data || access(path, R_OK) != 0) {
        print_message("skipped: SLUICE_DATA names no WikiText-2\n");
        skip();
    }
    check_ok(sl_bpe_train(&file, 1, &training, scratch_path(dir, "made"), &result));
    assert_int_equal(result.vocab_size, 8192);
    SCOPED(sl_vocab) *vocab = NULL;
    check_ok(sl_vocab_open(dir->path, NULL, &vocab));
    check_ok(sli_vocab_print(vocab, &text));
    json_t *json = json_loads(text, 0, NULL), *merge;
    json_t *merges = json_object_get(json_object_get(json, "model"), "merges");
    size_t i;
    assert_int_equal(json_array_size(merges), 7935);
    crypto_hash_sha256_init(&sha);
    json_array_foreach(merges, i, merge)
    {
        char row[4096];
        int bytes = snprintf(row, sizeof row, "%s%s %s", i > 0 ? "\n" : "",
                             json_string_value(json_array_get(merge, 0)),
                             json_string_value(json_array_get(merge, 1)));
        crypto_hash_sha256_update(&sha, (unsigned char *)row, (unsigned long long)bytes);
    }
    crypto_hash_sha256_final(&sha, hash);
    assert_string_equal(sodium_bin2hex(digits, sizeof digits, hash, 8), "4fb2941264dc93ce");
    json_decref(json);
    free(text);
}

/* ---- What is refused ---------------------------------------------------------------------- */

static void refuse(const sl_bpe_training *training, sl_status code, const char *sentence)
{
    SCOPED(sl_vocab) *vocab = NULL;
    sl_bpe_trained result;
    const char *path = "nowhere";
    check_error(sli_bpe_train(&path, 1, training, &vocab, &result), code, sentence);
    assert_null(vocab);
}

static void values_that_cannot_be_are_refused(void **state)
{
    static const char *const twice[] = {"<s>", "<s>"}, *const bad[] = {"a", "a b", "\xC3\xA9", ""};
    refuse(&(sl_bpe_training){.vocab_size = 255}, SL_ERR_INVALID, "at least 256 tokens");
    refuse(&(sl_bpe_training){.vocab_size = 256, .special = one_special, .special_count = 1},
           SL_ERR_INVALID,
           "a vocabulary must have at least 257 tokens, of the 256 bytes and the special tokens, "
           "got 256");
    refuse(&(sl_bpe_training){.vocab_size = 300, .special = twice, .special_count = 2},
           SL_ERR_INVALID, "special tokens must differ, but \"<s>\" comes twice");
    for (int i = 0; i < 4; i++)
        refuse(&(sl_bpe_training){.vocab_size = 300, .special = &bad[i], .special_count = 1},
               SL_ERR_INVALID, "a special token must be 2 to 1024 printable ASCII characters");
    refuse(&(sl_bpe_training){.vocab_size = 300, .splitter = "gpt4"}, SL_ERR_INVALID,
           "a splitter is one of gpt2, ");
    refuse(&(sl_bpe_training){.vocab_size = 300}, SL_ERR_NOT_FOUND, "nowhere");
    SCOPED(sl_vocab) *vocab = NULL;
    sl_bpe_trained result;
    check_error(sli_bpe_train(NULL, 0, &(sl_bpe_training){.vocab_size = 300}, &vocab, &result),
                SL_ERR_INVALID, "at least one file");
}

static void files_without_text_are_refused(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_vocab) *vocab = NULL;
    sl_bpe_trained result;
    const sl_bpe_training training = {.vocab_size = 300};
    const char *path = scratch_path(dir, "text");
    write_file(path, "", 0);
    check_error(sli_bpe_train(&path, 1, &training, &vocab, &result), SL_ERR_FORMAT,
                "the file is empty");
    write_file(path, "a\xFF\xFE", 3);
    check_error(sli_bpe_train(&path, 1, &training, &vocab, &result), SL_ERR_FORMAT,
                "of its 3 bytes at least 2 are not UTF-8");
}

static void only_a_trained_tokenizer_is_replaced(void **state)
{
    static const char refused[] = "it exists and is not a tokenizer that sluice trained";
    scratch *dir = *state;
    char directory[512], file[600];
    const sl_bpe_training training = {.vocab_size = 257};
    const char *path = file;
    snprintf(file, sizeof file, "%s", scratch_path(dir, "text"));
    write_file(file, "a b", 3);
    snprintf(directory, sizeof directory, "%s", scratch_path(dir, "made"));
    check_ok(sl_bpe_train(&path, 1, &training, directory, NULL));
    check_ok(sl_bpe_train(&path, 1, &training, directory, NULL));
    write_file(scratch_path(dir, "made/notes"), "", 0);
    check_error(sl_bpe_train(&path, 1, &training, directory, NULL), SL_ERR_INVALID, refused);
    assert_int_equal(unlink(scratch_path(dir, "made/notes")), 0);
    write_file(scratch_path(dir, "made/tokenizer_config.json"), "{}", 2);
    check_error(sl_bpe_train(&path, 1, &training, directory, NULL), SL_ERR_INVALID, refused);
    assert_int_equal(unlink(scratch_path(dir, "made/tokenizer_config.json")), 0);
    check_error(sl_bpe_train(&path, 1, &training, directory, NULL), SL_ERR_INVALID, refused);
    assert_int_equal(unlink(scratch_path(dir, "made/tokenizer.json")), 0);
    check_ok(sl_bpe_train(&path, 1, &training, directory, NULL)); /* it is empty */
    check_error(sl_bpe_train(&path, 1, &training, file, NULL), SL_ERR_INVALID, refused);
    check_error(sl_bpe_train(&path, 1, &training, scratch_path(dir, "none/made"), NULL),
                SL_ERR_NOT_FOUND, "none");
}

int bpe_train_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(most_frequent_pair_comes_first),
        WITH_SCRATCH(of_equal_pairs_the_one_of_lower_ids_comes_first),
        WITH_SCRATCH(overlapping_pairs_merge_from_the_left),
        WITH_SCRATCH(lines_are_texts_of_their_own),
        WITH_SCRATCH(splitter_decides_what_may_merge),
        WITH_SCRATCH(special_tokens_have_the_first_ids_and_are_text_in_files),
        WITH_SCRATCH(tokens_have_at_most_1024_bytes),
        WITH_SCRATCH(bytes_that_are_not_utf8_are_replaced_and_counted),
        WITH_SCRATCH(wikitext2_gives_the_merges_of_tokenizers),
        WITH_SCRATCH(values_that_cannot_be_are_refused),
        WITH_SCRATCH(files_without_text_are_refused),
        WITH_SCRATCH(only_a_trained_tokenizer_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
