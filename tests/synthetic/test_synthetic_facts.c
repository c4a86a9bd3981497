#include "io/scratch.h"

#include "support/check.h"
#include "synthetic/facts.h"

#include <fcntl.h>
#include <math.h>

static void write_corpus(const scratch *in)
{
    const sl_synthetic_options options = {.seed = 1, .train_tokens = 100, .eval_tokens = 100};
    check_ok(sl_synthetic_corpus_write(in->directory, &options));
}

static double best_perplexity(const char *directory, int64_t bptt)
{
    double perplexity;
    check_ok(sl_synthetic_corpus_best_perplexity(directory, bptt, &perplexity));
    return perplexity;
}

static void longer_blocks_allow_a_lower_perplexity(void **state)
{
    scratch *in = *state;
    write_corpus(in);
    double all = best_perplexity(in->directory, 0), before = INFINITY;
    for (int64_t bptt = 1; bptt < 100000; bptt *= 2) {
        double now = best_perplexity(in->directory, bptt);
        assert_true(now < before && now > all);
        before = now;
    }
    assert_true(before / all < 1.0001);
}

static void several_blocks_have_the_perplexities_of_each(void **state)
{
    scratch *in = *state;
    const int64_t bptt[] = {0, 35, 7};
    double several[3] = {1, 1, 1};
    check_ok(sli_synthetic_best_perplexities(in->directory, bptt, 3, several));
    for (int i = 0; i < 3; i++)
        assert_true(several[i] == 0);
    write_corpus(in);
    check_ok(sli_synthetic_best_perplexities(in->directory, bptt, 3, several));
    for (int i = 0; i < 3; i++)
        assert_true(several[i] > 1 && several[i] == best_perplexity(in->directory, bptt[i]));
}

static void facts_come_back(void **state)
{
    const int64_t tokens[SL_SPLITS] = {1, 2, 3};
    scratch *in = *state;
    sli_synthetic_facts written = {.entropy_rate = 0.1}, read;
    bool found;
    for (int t = 0; t < SLI_GRAMMAR_LONGEST; t++)
        written.entropies[t] = 1.0 / (t + 3);
    for (int split = 0; split < SL_SPLITS; split++)
        sli_checksum_of(&tokens[split], sizeof *tokens, written.checksums[split]);
    check_ok(sli_synthetic_facts_write(in->directory, &written, UINT64_MAX, tokens));
    check_ok(sli_synthetic_facts_read(in->directory, &read, &found));
    assert_true(found);
    assert_memory_equal(&read, &written, sizeof read);
}

/* ---- Files that are not sluice's ---------------------------------------------------------- */

static void directory_without_facts_has_no_best_perplexity(void **state)
{
    scratch *in = *state;
    assert_true(best_perplexity(in->directory, 35) == 0);
    assert_true(best_perplexity("/nowhere", 35) == 0);
}

static void foreign_files_mean_nothing(void **state)
{
    static const char *const contents[] = {
        "",
        "[]",
        "\"sluice synthetic corpus 1\"",
        "rules of my own",
        "{\"entropy_rate\": 2.0}",
        "{\"format\": 1, \"entropy_rate\": 2.0}",
        "{\"format\": \"bnf\", \"entropy_rate\": \"2\", \"entropy_by_known_tokens\": [1]}",
    };
    scratch *in = *state;
    write_corpus(in);
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        write_file(scratch_path(in, "grammar.json"), contents[i], strlen(contents[i]));
        assert_true(best_perplexity(in->directory, 35) == 0);
    }
}

/* A pipe would keep its reader waiting, and a large file would fill the memory. */
static void unreadable_files_mean_nothing(void **state)
{
    scratch *in = *state;
    char *path = scratch_path(in, "grammar.json");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_true(best_perplexity(in->directory, 35) == 0);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_true(best_perplexity(in->directory, 35) == 0);
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("grammar.json", path), 0);
    assert_true(best_perplexity(in->directory, 35) == 0);
    assert_int_equal(remove(path), 0);
    write_file(path, "{", 1);
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    assert_true(best_perplexity(in->directory, 35) == 0);
}

static void facts_of_other_texts_mean_nothing(void **state)
{
    static const char *const names[] = {"train.txt", "valid.txt", "test.txt"};
    scratch *in = *state;
    for (int i = 0; i < SL_SPLITS; i++) {
        write_corpus(in);
        assert_true(best_perplexity(in->directory, 35) > 1);
        FILE *text = fopen(scratch_path(in, names[i]), "a");
        assert_non_null(text);
        fputs("One word more.\n", text);
        assert_int_equal(fclose(text), 0);
        assert_true(best_perplexity(in->directory, 35) == 0);
        scratch_entries(in, 1);
    }
    write_corpus(in);
    write_file(scratch_path(in, "wiki.train.tokens"), "this is what is read\n", 21);
    write_file(scratch_path(in, "wiki.valid.tokens"), "this is what is read\n", 21);
    write_file(scratch_path(in, "wiki.test.tokens"), "this is what is read\n", 21);
    assert_true(best_perplexity(in->directory, 35) == 0);
}

/* ---- A file that is sluice's, but damaged ------------------------------------------------- */

static void damaged_facts_are_refused(void **state)
{
    static const char *const damage[][2] = {
        {"\"entropy_rate\": ", "\"entropy_rate\": -"},
        {"\"entropy_rate\": ", "\"entropy_rate\": 100"},
        {"\"entropy_rate\"", "\"entropyrate\""},
        {"\"entropy_by_known_tokens\": [", "\"entropy_by_known_tokens\": [1,"},
        {"\"entropy_by_known_tokens\": [", "\"entropy_by_known_tokens\": [\"2\"],\"x\":["},
        {"\"xxh128\"", "\"xxh64\""},
        {"\"xxh128\": {", "\"xxh128\": {\"valid\": \"0\"},\"x\": {"},
    };
    scratch *in = *state;
    char text[4096], changed[4096 + 64], *path = scratch_path(in, "grammar.json");
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        double perplexity = -1;
        write_corpus(in);
        text[read_file(path, text, sizeof text)] = '\0';
        char *at = strstr(text, damage[i][0]);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, damage[i][1],
                 at + strlen(damage[i][0]));
        write_file(path, changed, strlen(changed));
        check_error(sl_synthetic_corpus_best_perplexity(in->directory, 35, &perplexity),
                    SL_ERR_FORMAT, "grammar.json: ");
        assert_true(perplexity == 0);
        write_file(path, text, strlen(text));
    }
}

int synthetic_facts_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(longer_blocks_allow_a_lower_perplexity),
        WITH_SCRATCH(several_blocks_have_the_perplexities_of_each),
        WITH_SCRATCH(facts_come_back),
        WITH_SCRATCH(directory_without_facts_has_no_best_perplexity),
        WITH_SCRATCH(foreign_files_mean_nothing),
        WITH_SCRATCH(unreadable_files_mean_nothing),
        WITH_SCRATCH(facts_of_other_texts_mean_nothing),
        WITH_SCRATCH(damaged_facts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
