#include "io/scratch.h"

#include "sluice/app/text.h"
#include "support/vocab.h"
#include "text/line_reader.h"

#include <time.h>

static void write_splits(scratch *dir)
{
    scratch_write(dir, "train.txt", "\n = The Title = \n \n The cat , the dog .\n");
    scratch_write(dir, "valid.txt", "the bird");
    scratch_write(dir, "test.txt", "Dog .\n\n cat");
}

/* `expected`: the ids' tokens, each with a blank behind it. */
static void expect_tokens(const sl_vocab *vocab, const sl_tokens *tokens, const char *expected)
{
    char text[256] = "";
    size_t used = 0;
    for (int64_t i = 0; i < tokens->count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s ",
                                 sl_vocab_token(vocab, tokens->ids[i]).text);
    assert_string_equal(text, expected);
}

/* ---- Reading ----------------------------------------------------------------------------- */

/* Of 20 lines of 10 bytes, 18 are for training, and one each for validation and test. A line across
 * a border is where it begins. */
static void one_file_is_divided_by_lines(void **state)
{
    scratch *dir = *state;
    char text[512] = "", expected[SL_SPLITS][256] = {"", "", ""}, name[600];
    static const char *const parts[SL_SPLITS] = {"the first 90%", "the next 5%", "the last 5%"};
    for (int i = 0; i < 20; i++) {
        sl_split split = i < 18 ? SL_SPLIT_TRAIN : i == 18 ? SL_SPLIT_VALID : SL_SPLIT_TEST;
        bool is_longer = i == 17;
        sprintf(text + strlen(text), "the w%d%s\n", i, is_longer ? "  x" : i < 10 ? "   " : "  ");
        if (split == SL_SPLIT_TRAIN)
            sprintf(expected[split] + strlen(expected[split]), "the w%d %s", i,
                    is_longer ? "x " : "");
        else
            strcpy(expected[split], "the <unk> ");
    }
    scratch_write(dir, "book.txt", text);
    sl_corpus *corpus;
    check_ok(sl_corpus_load(scratch_path(dir, "book.txt"), NULL, &corpus));
    for (int split = 0; split < SL_SPLITS; split++) {
        sl_tokens tokens;
        expect_tokens(sl_corpus_vocab(corpus), sl_corpus_tokens(corpus, (sl_split)split),
                      expected[split]);
        snprintf(name, sizeof name, "%s (%s)", dir->path, parts[split]);
        assert_string_equal(sl_corpus_name(corpus, (sl_split)split), name);
        check_ok(sl_split_read(sl_corpus_vocab(corpus), dir->path, (sl_split)split, &tokens));
        expect_tokens(sl_corpus_vocab(corpus), &tokens, expected[split]);
        sl_tokens_free(&tokens);
    }
    sl_corpus_destroy(&corpus);
}

static void splits_are_read_with_the_training_texts_vocabulary(void **state)
{
    scratch *dir = *state;
    sl_corpus *corpus;
    write_splits(dir);
    check_ok(sl_corpus_load(dir->directory, NULL, &corpus));
    const sl_vocab *vocab = sl_corpus_vocab(corpus);
    const sl_tokens *train = sl_corpus_tokens(corpus, SL_SPLIT_TRAIN);
    expect_tokens(vocab, train, "= the title = the cat , the dog . ");
    assert_int_equal(train->line_count, 4);
    assert_int_equal(train->unknown_count, 0);
    expect_tokens(vocab, sl_corpus_tokens(corpus, SL_SPLIT_VALID), "the <unk> ");
    assert_int_equal(sl_corpus_tokens(corpus, SL_SPLIT_VALID)->unknown_count, 1);
    expect_tokens(vocab, sl_corpus_tokens(corpus, SL_SPLIT_TEST), "dog . cat ");
    assert_int_equal(sl_corpus_tokens(corpus, SL_SPLIT_TEST)->line_count, 3);
    assert_int_equal(sl_vocab_size(vocab), 8);
    assert_int_equal(sl_vocab_id(vocab, "the", 3), 1);
    assert_int_equal(sl_vocab_id(vocab, "=", 1), 2);
    assert_string_equal(sl_corpus_name(corpus, SL_SPLIT_TEST), scratch_path(dir, "test.txt"));
    sl_corpus_destroy(&corpus);
    sl_corpus_destroy(&corpus);
}

static void given_vocabulary_is_used_for_every_split(void **state)
{
    scratch *dir = *state;
    sl_corpus *corpus;
    sl_vocab *vocab;
    write_splits(dir);
    vocab = vocab_of("dog dog .");
    check_ok(sl_corpus_load(dir->directory, vocab, &corpus));
    assert_ptr_equal(sl_corpus_vocab(corpus), vocab);
    expect_tokens(vocab, sl_corpus_tokens(corpus, SL_SPLIT_TRAIN),
                  "<unk> <unk> <unk> <unk> <unk> <unk> <unk> <unk> dog . ");
    expect_tokens(vocab, sl_corpus_tokens(corpus, SL_SPLIT_TEST), "dog . <unk> ");
    sl_corpus_destroy(&corpus);
    sl_vocab_destroy(&vocab);
}

static void wikitext_names_go_before_plain_ones(void **state)
{
    scratch *dir = *state;
    sl_corpus *corpus;
    write_splits(dir);
    scratch_write(dir, "wiki.train.tokens", "a b");
    scratch_write(dir, "wiki.valid.tokens", "b");
    scratch_write(dir, "wiki.test.tokens", "a");
    check_ok(sl_corpus_load(dir->directory, NULL, &corpus));
    expect_tokens(sl_corpus_vocab(corpus), sl_corpus_tokens(corpus, SL_SPLIT_TRAIN), "a b ");
    expect_tokens(sl_corpus_vocab(corpus), sl_corpus_tokens(corpus, SL_SPLIT_VALID), "b ");
    sl_corpus_destroy(&corpus);
}

static void text_in_memory_is_encoded(void **state)
{
    sl_vocab *vocab;
    sl_tokens tokens;
    vocab = vocab_of("the the the cat cat .");
    check_ok(sl_tokens_encode(vocab, "The\n\"CAT\" sat.", 14, false, &tokens));
    expect_tokens(vocab, &tokens, "the cat <unk> . ");
    sl_tokens_free(&tokens);
    assert_null(tokens.ids);
    check_ok(sl_tokens_encode(vocab, "", 0, false, &tokens));
    assert_int_equal(tokens.count, 0);
    sl_tokens_free(&tokens);
    sl_vocab_destroy(&vocab);
}

static void wikitext_2_has_its_known_counts(void **state)
{
    static const int64_t expected[SL_SPLITS] = {2049990, 214417, 241859};
    static const int64_t lines[SL_SPLITS] = {36718, 3760, 4358};
    const char *directory = getenv("SLUICE_DATA");
    sl_corpus *corpus;
    if (!directory || !strstr(directory, "wikitext-2")) {
        print_message("skipped: SLUICE_DATA does not name WikiText-2's directory\n");
        skip();
    }
    check_ok(sl_corpus_load(directory, NULL, &corpus));
    const sl_vocab *vocab = sl_corpus_vocab(corpus);
    assert_int_equal(sl_vocab_size(vocab), 28782);
    for (int split = 0; split < SL_SPLITS; split++) {
        const sl_tokens *tokens = sl_corpus_tokens(corpus, (sl_split)split);
        assert_int_equal(tokens->count, expected[split]);
        assert_int_equal(tokens->line_count, lines[split]);
        for (int64_t i = 0; i < tokens->count; i++)
            assert_true(tokens->ids[i] >= 0 && tokens->ids[i] < 28782);
    }
    assert_string_equal(sl_vocab_token(vocab, 0).text, "<unk>");
    assert_string_equal(sl_vocab_token(vocab, 1).text, "the");
    sl_corpus_destroy(&corpus);
}

/* ---- Errors ------------------------------------------------------------------------------ */

/* Loading must fail, name the path, and say the sentence. */
static void expect_refusal(const char *directory, const char *path, sl_status code,
                           const char *sentence)
{
    sl_corpus *corpus = (sl_corpus *)sentence;
    check_error(sl_corpus_load(directory, NULL, &corpus), code, sentence);
    assert_null(corpus);
    assert_ptr_equal(strstr(sl_error_text(), path), sl_error_text());
}

static void directory_that_is_none_is_refused(void **state)
{
    scratch *dir = *state;
    expect_refusal("/nowhere/at/all", "/nowhere/at/all", SL_ERR_NOT_FOUND, "No such file");
    expect_refusal("/dev/null", "/dev/null", SL_ERR_INVALID,
                   "expected a directory of text files, or a file of text, got a pipe or a device");
    expect_refusal(dir->directory, dir->directory, SL_ERR_NOT_FOUND,
                   "has neither wiki.{train,valid,test}.tokens nor {train,valid,test}.txt");
}

static void part_of_a_file_without_lines_is_refused(void **state)
{
    scratch *dir = *state;
    char name[600];
    scratch_write(dir, "line.txt", "one line without an end");
    snprintf(name, sizeof name, "%s (the next 5%%)", scratch_path(dir, "line.txt"));
    expect_refusal(dir->path, name, SL_ERR_FORMAT,
                   "no line begins there: a text with so few lines");
}

static void split_that_is_missing_is_named(void **state)
{
    scratch *dir = *state;
    write_splits(dir);
    assert_int_equal(remove(scratch_path(dir, "valid.txt")), 0);
    expect_refusal(dir->directory, scratch_path(dir, "valid.txt"), SL_ERR_NOT_FOUND,
                   "cannot be found, though other splits' files are there");
    scratch_write(dir, "wiki.test.tokens", "text");
    expect_refusal(dir->directory, scratch_path(dir, "wiki.train.tokens"), SL_ERR_NOT_FOUND,
                   "cannot be found");
}

static void split_without_tokens_is_refused(void **state)
{
    scratch *dir = *state;
    for (int split = 0; split < SL_SPLITS; split++) {
        char name[32], path[512];
        write_splits(dir);
        snprintf(name, sizeof name, "%s.txt", sl_split_name((sl_split)split));
        snprintf(path, sizeof path, "%s", scratch_path(dir, name));
        scratch_write(dir, name, "");
        expect_refusal(dir->directory, path, SL_ERR_FORMAT, "the file is empty");
        scratch_write(dir, name, "\n ;:\n\"\"\n");
        expect_refusal(dir->directory, path, SL_ERR_FORMAT, "none of its 3 lines has a token");
    }
}

static void split_that_cannot_be_read_is_refused(void **state)
{
    scratch *dir = *state;
    char path[512];
    write_splits(dir);
    snprintf(path, sizeof path, "%s", scratch_path(dir, "train.txt"));
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refusal(dir->directory, path, SL_ERR_FORMAT,
                   "is a directory, where a regular file was expected");
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("/proc/self/mem", path), 0);
    expect_refusal(dir->directory, path, SL_ERR_IO, "cannot be read");
    if (geteuid() != 0) { /* root may open anything */
        assert_int_equal(remove(path), 0);
        scratch_write(dir, "train.txt", "text");
        assert_int_equal(chmod(path, 0), 0);
        expect_refusal(dir->directory, path, SL_ERR_IO, "cannot be opened: Permission denied");
    }
}

static void pipe_is_refused_and_not_waited_for(void **state)
{
    scratch *dir = *state;
    char path[512];
    write_splits(dir);
    snprintf(path, sizeof path, "%s", scratch_path(dir, "valid.txt"));
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refusal(dir->directory, path, SL_ERR_FORMAT, "is a device or pipe");
}

static void bytes_that_are_not_utf8_are_counted(void **state)
{
    static const char latin[] = "Stra\xdf"
                                "e nach K\xf6ln\nund zur\xfc"
                                "ck\n";
    scratch *dir = *state;
    sl_corpus *corpus;
    write_splits(dir);
    scratch_write(dir, "test.txt", latin);
    check_ok(sl_corpus_load(dir->directory, NULL, &corpus));
    assert_int_equal(sl_corpus_tokens(corpus, SL_SPLIT_TRAIN)->invalid_bytes, 0);
    assert_int_equal(sl_corpus_tokens(corpus, SL_SPLIT_TEST)->invalid_bytes, 3);
    sl_corpus_destroy(&corpus);
}

static void file_that_is_no_text_is_refused(void **state)
{
    enum { BYTES = 100000 };
    /* English, then Russian, in UTF-16. */
    static const char english[] = "H\0e\0l\0l\0o\0 \0w\0o\0r\0l\0d\0\n";
    static const char russian[] = "\x1f\x04\x40\x04\x38\x04\x32\x04\x35\x04\x42\x04\n";
    scratch *dir = *state;
    uint64_t random = 1;
    char path[512], *noise = malloc(BYTES);
    assert_non_null(noise);
    for (int i = 0; i < BYTES; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        noise[i] = (char)(random >> 56);
    }
    write_splits(dir);
    snprintf(path, sizeof path, "%s", scratch_path(dir, "train.txt"));
    write_file(path, noise, BYTES);
    expect_refusal(dir->directory, path, SL_ERR_FORMAT, "expected text in UTF-8, but of its");
    write_file(path, english, sizeof english - 1);
    expect_refusal(dir->directory, path, SL_ERR_FORMAT,
                   "of its 22 bytes at least 0 are not UTF-8 and 11 are control characters");
    write_file(path, russian, sizeof russian - 1);
    expect_refusal(dir->directory, path, SL_ERR_FORMAT,
                   "of its 12 bytes at least 0 are not UTF-8 and 6 are control characters");
    scratch_write(dir, "train.txt", "\xf0\xd2\xc9\xd7\xc5\xd4, \xcd\xc9\xd2!\n"); /* in KOI8-R */
    expect_refusal(dir->directory, path, SL_ERR_FORMAT,
                   "of its 12 bytes at least 9 are not UTF-8 and 0 are control characters");
    free(noise);
}

/* ---- Lines ------------------------------------------------------------------------------- */

/* Holds the reader's lines against cutting the same text in memory. */
static void expect_lines(const char *path, const char *text, size_t text_bytes)
{
    sli_line_reader *reader;
    const char *line, *expected = text, *end = text + text_bytes;
    size_t bytes;
    write_file(path, text, text_bytes);
    check_ok(sli_line_reader_open(path, &reader));
    assert_int_equal(sli_line_reader_file_bytes(reader), text_bytes);
    for (;;) {
        check_ok(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            break;
        assert_true(expected < end);
        const char *line_end = memchr(expected, '\n', (size_t)(end - expected));
        size_t expected_bytes = (size_t)((line_end ? line_end : end) - expected);
        assert_int_equal(bytes, expected_bytes);
        assert_memory_equal(line, expected, bytes);
        expected += bytes + (line_end ? 1 : 0);
    }
    assert_true(expected == end);
    check_ok(sli_line_reader_next(reader, &line, &bytes)); /* stays at the end */
    assert_null(line);
    sli_line_reader_close(&reader);
    sli_line_reader_close(&reader);
}

static void lines_end_at_line_ends_and_at_the_files_end(void **state)
{
    char *path = scratch_path(*state, "text");
    expect_lines(path, "", 0);
    expect_lines(path, "\n", 1);
    expect_lines(path, "a", 1);
    expect_lines(path, "a\n", 2);
    expect_lines(path, "a\n\nbc", 5);
    expect_lines(path, "a\r\n\0\n", 5);
}

/* Line lengths around the block's size and its multiples, and short ones. */
static void lines_of_any_length_are_whole(void **state)
{
    enum { BYTES = 3 << 20, BLOCK = 1 << 18 };
    char *path = scratch_path(*state, "text"), *text = malloc(BYTES);
    uint64_t seed = (uint64_t)time(NULL), random = seed;
    print_message("seed %llu\n", (unsigned long long)seed);
    assert_non_null(text);
    for (int round = 0; round < 6; round++) {
        for (size_t i = 0; i < BYTES; i++)
            text[i] = (char)('a' + i % 26);
        for (size_t at = 0; at < BYTES;) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t draw = (uint32_t)(random >> 33);
            text[at] = '\n';
            at += draw % 3 == 0 ? BLOCK * (1 + draw % 2) - 2 + draw % 5 : 1 + draw % 50000;
        }
        expect_lines(path, text, BYTES - (size_t)round);
    }
    free(text);
}

static void file_that_cannot_be_opened_or_read_is_an_error(void **state)
{
    scratch *dir = *state;
    sli_line_reader *reader;
    const char *line;
    size_t bytes;
    check_error(sli_line_reader_open(scratch_path(dir, "missing"), &reader), SL_ERR_NOT_FOUND,
                "cannot be opened: No such file");
    assert_null(reader);
    check_error(sli_line_reader_open(dir->directory, &reader), SL_ERR_FORMAT,
                "is a directory, where a regular file was expected");
    /* This process's memory opens, but nothing is mapped at its address 0. */
    check_ok(sli_line_reader_open("/proc/self/mem", &reader));
    check_error(sli_line_reader_next(reader, &line, &bytes), SL_ERR_IO,
                "/proc/self/mem: cannot be read: ");
    assert_null(line);
    sli_line_reader_close(&reader);
}

int corpus_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(splits_are_read_with_the_training_texts_vocabulary),
        WITH_SCRATCH(given_vocabulary_is_used_for_every_split),
        WITH_SCRATCH(one_file_is_divided_by_lines),
        WITH_SCRATCH(part_of_a_file_without_lines_is_refused),
        WITH_SCRATCH(wikitext_names_go_before_plain_ones),
        WITH_SCRATCH(text_in_memory_is_encoded),
        cmocka_unit_test(wikitext_2_has_its_known_counts),
        WITH_SCRATCH(directory_that_is_none_is_refused),
        WITH_SCRATCH(split_that_is_missing_is_named),
        WITH_SCRATCH(split_without_tokens_is_refused),
        WITH_SCRATCH(split_that_cannot_be_read_is_refused),
        WITH_SCRATCH(pipe_is_refused_and_not_waited_for),
        WITH_SCRATCH(bytes_that_are_not_utf8_are_counted),
        WITH_SCRATCH(file_that_is_no_text_is_refused),
        WITH_SCRATCH(lines_end_at_line_ends_and_at_the_files_end),
        WITH_SCRATCH(lines_of_any_length_are_whole),
        WITH_SCRATCH(file_that_cannot_be_opened_or_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
