/* The vocabulary's file, tokenizer.json, and what Hugging Face's library tokenizers makes of it. */
#include "io/scratch.h"
#include "support/vocab.h"
#include "text/vocab.h"

#include <jansson.h>
#include <time.h>
#include <unictype.h>
#include <unistr.h>

/* ---- Writing and reading ------------------------------------------------------------------ */

static void saved_vocabulary_loads_as_it_was(void **state)
{
    char *path = scratch_path(*state, "tokenizer.json");
    SCOPED(sl_vocab) *loaded = NULL;
    SCOPED(sl_vocab) *vocab = vocab_of("b a b \xC3\xA9\\ \" \xEF\xBF\xBD");
    check_ok(sl_vocab_save(vocab, path));
    check_ok(sl_vocab_open(path, NULL, &loaded));
    assert_int_equal(sl_vocab_size(loaded), 6);
    for (int32_t id = 0; id < 6; id++)
        assert_string_equal(sl_vocab_token(loaded, id).text, sl_vocab_token(vocab, id).text);
}

/* Changes a member of a saved vocabulary, a path with dots, and loads it; "" removes it. */
static sl_status load_changed(scratch *dir, const char *member, const char *value)
{
    SCOPED(sl_vocab) *loaded = NULL;
    sl_vocab *vocab = vocab_of("b a b");
    char *path = scratch_path(dir, "tokenizer.json"), key[64];
    check_ok(sl_vocab_save(vocab, path));
    sl_vocab_destroy(&vocab);
    json_t *json = json_load_file(path, 0, NULL), *at = json;
    for (const char *dot; (dot = strchr(member, '.')); member = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - member), member);
        at = json_object_get(at, key);
    }
    if (*value)
        json_object_set_new(at, member, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(at, member);
    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);
    sl_status status = sl_vocab_open(path, NULL, &loaded);
    assert_true((loaded != NULL) == (status == SL_OK));
    return status;
}

static void tokenizer_of_other_rules_is_refused(void **state)
{
    static const char *const changes[][3] = {
        {"model.type", "\"Unigram\"",
         "its model must be of type BPE, or of sluice's WordLevel, got \"Unigram\""},
        {"model.unk_token", "\"[UNK]\"", "its \"unk_token\" is not that"},
        {"normalizer", "null", "its \"normalizer\" is not that"},
        {"normalizer", "{\"type\":\"Lowercase\"}", "its \"normalizer\" is not that"},
        {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "its \"pre_tokenizer\" is not that"},
        {"post_processor", "{\"type\":\"ByteLevel\"}", "its \"post_processor\" is not that"},
        {"added_tokens", "[{\"id\":0}]", "its \"added_tokens\" is not that"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        check_error(load_changed(*state, changes[i][0], changes[i][1]), SL_ERR_UNSUPPORTED,
                    changes[i][2]);
    check_ok(load_changed(*state, "added_tokens", ""));
    check_ok(load_changed(*state, "decoder", "{\"type\":\"WordPiece\"}")); /* ids are the same */
}

static void tokens_that_make_no_sense_are_refused(void **state)
{
    static const char *const vocabularies[][2] = {
        {"", "its model has no object \"vocab\""},
        {"[\"<unk>\"]", "its model has no object \"vocab\""},
        {"{}", "it has 0 tokens"},
        {"{\"<unk>\": 1}", "the ids of its 1 tokens must be 0, 1, 2 and so on"},
        {"{\"<unk>\": 0, \"a\": 2}", "each once, but \"a\" has another"},
        {"{\"<unk>\": 0, \"a\": 0}", "each once, but \"a\" has another"},
        {"{\"<unk>\": 0, \"a\": -1}", "each once, but \"a\" has another"},
        {"{\"<unk>\": 0, \"a\": 1.0}", "each once, but \"a\" has another"},
        {"{\"a\": 0, \"<unk>\": 1}", "its token 0 must be <unk>, got \"a\""},
        {"{\"<unk>\": 0, \"a b\": 1}", "token 1: a token must not contain white space"},
        {"{\"<unk>\": 0, \"\": 1}", "token 1: a token must not be empty"},
    };
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++)
        check_error(load_changed(*state, "model.vocab", vocabularies[i][0]), SL_ERR_FORMAT,
                    vocabularies[i][1]);
    check_error(load_changed(*state, "model", ""), SL_ERR_FORMAT, "it has no object \"model\"");
}

static void text_that_is_no_tokenizer_is_refused(void **state)
{
    static const char *const texts[][2] = {
        {"", "it is not valid JSON at its byte 1"},
        {"<unk>\nthe\n", "it is not valid JSON"},
        {"[]", "must be a JSON object"},
        {"{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"<unk>\": 0}", "is not closed"},
    };
    char *path = scratch_path(*state, "tokenizer.json");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sl_vocab *vocab = (sl_vocab *)path;
        write_file(path, texts[i][0], strlen(texts[i][0]));
        check_error(sl_vocab_open(path, NULL, &vocab), SL_ERR_FORMAT, texts[i][1]);
        assert_non_null(strstr(sl_error_text(), path));
        assert_null(vocab);
    }
}

static void file_that_cannot_be_read_or_written_is_an_error(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_vocab) *vocab = NULL;
    check_error(sl_vocab_open(scratch_path(dir, "missing"), NULL, &vocab), SL_ERR_NOT_FOUND,
                "/missing: ");
    check_error(sl_vocab_open(dir->directory, NULL, &vocab), SL_ERR_NOT_FOUND, "no tokenizer");
    assert_int_equal(mkfifo(scratch_path(dir, "pipe"), 0600), 0);
    check_error(sl_vocab_open(scratch_path(dir, "pipe"), NULL, &vocab), SL_ERR_FORMAT,
                "is a device or pipe");
    vocab = vocab_of("a");
    check_error(sl_vocab_save(vocab, scratch_path(dir, "no/vocab")), SL_ERR_NOT_FOUND,
                "directory does not exist");
    check_error(sl_vocab_save(vocab, dir->directory), SL_ERR_INVALID, "directory");
}

/* ---- Against the library tokenizers --------------------------------------------------------- */

static FILE *start_python(const char *arguments)
{
    char line[8192], path[4096];
    const char *given = getenv("SLUICE_PYTHON"), *source = getenv("SLUICE_SOURCE_DIR");
    source = source ? source : ".";
    snprintf(path, sizeof path, "%s/.venv/bin/python3", source);
    snprintf(line, sizeof line, "'%s' %s", given && *given ? given : path, arguments);
    return popen(line, "r");
}

static void need_tokenizers(void)
{
    FILE *python = start_python("-c 'import tokenizers' 2>/dev/null");
    if (python && pclose(python) == 0)
        return;
    print_message("skipped: no Python with tokenizers: scripts/test makes one\n");
    skip();
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Mostly what the tokenizer treats in its own way; also a character that is not newer than
 * libunistring's Unicode. */
static void write_piece(uint64_t *random, FILE *to)
{
    static const char *const pieces[] = {
        "'",        "\"",       ".",        "<br />",   ",",
        "(",        ")",        "!",        "?",        ";",
        ":",        " ",        "  ",       "<",        "<br",
        "/>",       "\t",       "\r",       "\x1F",     "A",
        "z",        "Word",     "\xC2\x85", "\xC2\xA0", "\xE3\x80\x80",
        "\xCE\xA3", "\xCE\x91", "\xCC\x81", "\xC4\xB0", "\xC2\xAD",
        "\xFF",     "\xC2",     "\xE2\x80", "<unk>",    "<b\"r />"};
    enum { MOST_CODE = 0x11700 };
    uint32_t code =
        next_random(random) % 8 ? next_random(random) % 1200 : next_random(random) % MOST_CODE;
    uint8_t bytes[4];
    int length = u8_uctomb(bytes, code, 4);
    bool usable = length > 0 && code != '\n' && !uc_is_general_category(code, UC_UNASSIGNED);
    if (usable && next_random(random) % 8 < 2)
        fwrite(bytes, 1, (size_t)length, to);
    else
        fputs(pieces[next_random(random) % (sizeof pieces / sizeof *pieces)], to);
}

/* Half of the lines' tokens are in the vocabulary. */
static sl_vocab *vocab_of_half(const char *text, size_t bytes)
{
    SCOPED(sl_tokenizer) *tokenizer = NULL;
    SCOPED(sl_vocab_builder) *builder = NULL;
    sl_vocab *vocab;
    sl_token token;
    check_ok(sl_tokenizer_create(&tokenizer));
    check_ok(sl_vocab_builder_create(&builder));
    check_ok(sl_tokenizer_start(tokenizer, text, bytes));
    for (int i = 0; sl_tokenizer_next(tokenizer, &token); i++)
        if (i % 2)
            check_ok(sl_vocab_builder_add(builder, token.text, token.bytes, NULL));
    check_ok(sl_vocab_builder_finish(builder, NULL, &vocab));
    return vocab;
}

static void library_tokenizers_gives_the_same_ids(void **state)
{
    enum { LINES = 20000 };
    need_tokenizers();
    scratch *dir = *state;
    uint64_t seed = (uint64_t)time(NULL), random = seed;
    char *text, arguments[2048];
    size_t bytes, known = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    for (int line = 0; line < LINES; line++) {
        for (uint32_t pieces = next_random(&random) % 16; pieces > 0; pieces--)
            write_piece(&random, stream);
        fputc('\n', stream);
    }
    assert_int_equal(fclose(stream), 0);
    sl_vocab *vocab = vocab_of_half(text, bytes);
    const char *source = getenv("SLUICE_SOURCE_DIR");
    check_ok(sl_vocab_save(vocab, scratch_path(dir, "tokenizer.json")));
    write_file(scratch_path(dir, "text"), text, bytes);
    snprintf(arguments, sizeof arguments,
             "'%s/tests/text/tokenizers_reference.py' '%s/tokenizer.json' '%s/text'",
             source ? source : ".", dir->directory, dir->directory);
    FILE *python = start_python(arguments);
    const char *line = text;
    for (int i = 0; i < LINES; i++) {
        const char *end = memchr(line, '\n', (size_t)(text + bytes - line));
        sl_tokens tokens;
        check_ok(sl_tokens_encode(vocab, line, (size_t)(end - line), false, &tokens));
        for (int64_t k = 0; k < tokens.count; k++) {
            int id = -1;
            if (fscanf(python, "%d", &id) != 1 || id != tokens.ids[k])
                fail_msg("line %d: token %lld is %d, and %d in Python: %.*s", i, (long long)k,
                         tokens.ids[k], id, (int)(end - line), line);
            known += id > 0;
        }
        if (fgetc(python) != '\n')
            fail_msg("line %d has %lld tokens, and another number in Python: %.*s", i,
                     (long long)tokens.count, (int)(end - line), line);
        sl_tokens_free(&tokens);
        line = end + 1;
    }
    assert_int_equal(pclose(python), 0);
    assert_true(known > LINES);
    sl_vocab_destroy(&vocab);
    free(text);
}

int word_level_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(saved_vocabulary_loads_as_it_was),
        WITH_SCRATCH(tokenizer_of_other_rules_is_refused),
        WITH_SCRATCH(tokens_that_make_no_sense_are_refused),
        WITH_SCRATCH(text_that_is_no_tokenizer_is_refused),
        WITH_SCRATCH(file_that_cannot_be_read_or_written_is_an_error),
        WITH_SCRATCH(library_tokenizers_gives_the_same_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
