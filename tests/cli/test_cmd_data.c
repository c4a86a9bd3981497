/* The program `sluice data`, run as a user does. */
#include "io/scratch.h"

#include "support/check.h"

#include <sys/wait.h>

/* What the program printed on both outputs. */
typedef struct outcome {
    int status; /* its exit status */
    char text[8192];
} outcome;

static outcome run_data(const char *arguments)
{
    char command[2048];
    outcome result = {-1, ""};
    const char *program = getenv("SLUICE_PROGRAM");
    assert_non_null(program);
    snprintf(command, sizeof command, "exec 2>&1; '%s' data %s", program, arguments);
    FILE *running = popen(command, "r");
    assert_non_null(running);
    size_t bytes = fread(result.text, 1, sizeof result.text - 1, running);
    result.text[bytes] = '\0';
    int status = pclose(running);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
}

static void expect_text(const outcome *result, const char *text)
{
    if (!strstr(result->text, text))
        fail_msg("expected \"%s\" in: %s", text, result->text);
}

static void expect_outcome(const char *arguments, int status, const char *text)
{
    outcome result = run_data(arguments);
    expect_text(&result, text);
    assert_int_equal(result.status, status);
}

static void write_text(scratch *in, const char *name, const char *text)
{
    write_file(scratch_path(in, name), text, strlen(text));
}

static void directory_is_shown_and_its_vocabulary_written(void **state)
{
    static const char expected[] = "<unk>\nthe\n.\n,\nbird\ncat\ndog\n";
    scratch *in = *state;
    char arguments[1024], vocab[64];
    write_text(in, "train.txt", "The cat.\n\nThe dog, the bird.\n");
    write_text(in, "valid.txt", "the fish");
    write_text(in, "test.txt", "a\nb\nc\nthe");
    snprintf(arguments, sizeof arguments, "'%s' --head 3 --vocab '%s'", in->directory,
             scratch_path(in, "vocab.txt"));
    outcome result = run_data(arguments);
    assert_int_equal(result.status, 0);
    expect_text(&result, "train             3              9              0  ");
    expect_text(&result, "valid             1              2              1  ");
    expect_text(&result, "test              4              4              3  ");
    expect_text(&result, "vocabulary: 7 types, with <unk>");
    expect_text(&result, "       0              0  <unk>\n"
                         "       1              3  the\n"
                         "       2              2  .\n\n");
    assert_null(strstr(result.text, "synthetic"));
    size_t bytes = read_file(scratch_path(in, "vocab.txt"), vocab, sizeof vocab);
    assert_int_equal(bytes, sizeof expected - 1);
    assert_memory_equal(vocab, expected, bytes);
}

static void synthetic_corpus_is_written_and_its_best_perplexity_said(void **state)
{
    scratch *in = *state;
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "--synthetic '%s' --seed 5 --tokens 5000 --head 0",
             in->directory);
    outcome result = run_data(arguments);
    assert_int_equal(result.status, 0);
    expect_text(&result, "the best possible perplexity is 14.1095 (14.4665 in blocks of 35 tokens");
    assert_null(strstr(result.text, "in train"));
    assert_int_equal(scratch_entries(in, 0), 4);
    snprintf(arguments, sizeof arguments, "'%s' --head 0", in->directory);
    outcome shown = run_data(arguments);
    assert_int_equal(shown.status, 0);
    assert_string_equal(shown.text, result.text);
}

static void failure_is_one_sentence_and_status_1(void **state)
{
    scratch *in = *state;
    char arguments[1024];
    expect_outcome("/nowhere", 1, "sluice: /nowhere: expected a directory of text files: ");
    snprintf(arguments, sizeof arguments, "--synthetic '%s' --tokens 10 --head 0", in->directory);
    assert_int_equal(run_data(arguments).status, 0);
    snprintf(arguments, sizeof arguments, "'%s' --vocab '%s/no/vocab'", in->directory,
             in->directory);
    expect_outcome(arguments, 1, "directory does not exist");
    if (access("/dev/full", W_OK) == 0) {
        snprintf(arguments, sizeof arguments, "'%s' >/dev/full", in->directory);
        expect_outcome(arguments, 1, "sluice: standard output cannot be written: ");
    }
}

static void misuse_is_one_sentence_and_status_2(void **state)
{
    (void)state;
    expect_outcome("", 2, "sluice: data: expected a directory of text, or --synthetic DIR\n");
    expect_outcome("a b", 2, "sluice: data: expected one directory, got \"b\"\n");
    expect_outcome("a --synthetic b", 2, "sluice: data: expected one directory, got ");
    expect_outcome("a --seed 1", 2, "expected --synthetic with this option, got \"--seed\"\n");
    expect_outcome("a --head -1", 2, "sluice: --head must be a whole number from 0, got \"-1\"\n");
    expect_outcome("a --head x", 2, "sluice: --head must be a whole number from 0, got \"x\"\n");
    expect_outcome("--synthetic a --tokens 0", 2, "sluice: --tokens must be a whole number from 1");
    expect_outcome("a --bogus", 2, "--bogus");
}

int main(void)
{
    const char *program = getenv("SLUICE_PROGRAM");
    if (!program || access(program, X_OK) != 0) {
        print_message("skipped: SLUICE_PROGRAM does not name a program\n");
        return 77;
    }
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(directory_is_shown_and_its_vocabulary_written),
        WITH_SCRATCH(synthetic_corpus_is_written_and_its_best_perplexity_said),
        WITH_SCRATCH(failure_is_one_sentence_and_status_1),
        cmocka_unit_test(misuse_is_one_sentence_and_status_2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
