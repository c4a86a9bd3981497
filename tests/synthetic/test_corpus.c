#include "io/scratch.h"

#include "sluice/app/text.h"
#include "support/check.h"
#include "synthetic/corpus.h"
#include "synthetic/grammar.h"

#include <fcntl.h>
#include <math.h>

enum { TOKENS = 400000, TYPES_MAX = 400 };

static void write_corpus(const char *directory, uint64_t seed, int64_t train, int64_t eval)
{
    const sli_synthetic_options options = {.seed = seed,
                                           .train_tokens = train,
                                           .eval_tokens = eval};
    check_ok(sli_synthetic_write(directory, &options));
}

static double best_perplexity(const char *directory, int64_t bptt)
{
    double perplexity;
    check_ok(sli_synthetic_best_perplexity(directory, bptt, &perplexity));
    return perplexity;
}

/* ---- The text ---------------------------------------------------------------------------- */

static void same_seed_writes_the_same_sentences(void **state)
{
    static const char expected[] =
        "This famous teacher near that house invites these neighbors and obeys that clever farmer "
        "soon.\n"
        "These clever teachers behind my garden repair many mirrors.\n"
        "Every teacher drops this wagon.\n"
        "Several wild dogs slice this muffin often.\n"
        "The cat peels your apples soon.\n"
        "This neighbor nibbles the turnip.\n"
        "One gardener moves your rusty clocks.\n"
        "This painter past every garden feeds one cat and rides the cats.\n";
    scratch *in = *state;
    char text[sizeof expected + 1];
    write_corpus(in->directory, 1, 65, 1);
    size_t bytes = read_file(scratch_path(in, "train.txt"), text, sizeof text);
    text[bytes < sizeof text ? bytes : sizeof text - 1] = '\0';
    assert_string_equal(text, expected);
    read_file(scratch_path(in, "valid.txt"), text, sizeof text);
    assert_memory_not_equal(text, expected, 10);
    write_corpus(in->directory, 2, 65, 1);
    read_file(scratch_path(in, "train.txt"), text, sizeof text);
    assert_memory_not_equal(text, expected, 10);
}

static void splits_are_as_long_as_asked(void **state)
{
    scratch *in = *state;
    sl_corpus *corpus;
    write_corpus(in->directory, 7, 5000, 0);
    check_ok(sl_corpus_load(in->directory, NULL, &corpus));
    for (int split = 0; split < SL_SPLITS; split++) {
        const sl_tokens *tokens = sl_corpus_tokens(corpus, (sl_split)split);
        int64_t wanted = split == SL_SPLIT_TRAIN ? 5000 : 500;
        assert_true(tokens->count >= wanted && tokens->count < wanted + SLI_GRAMMAR_LONGEST);
        assert_string_equal(
            sl_vocab_token(sl_corpus_vocab(corpus), tokens->ids[tokens->count - 1]).text, ".");
    }
    sl_corpus_destroy(&corpus);
}

/* ---- Its entropy, measured --------------------------------------------------------------- */

/* A training text of TOKENS tokens, in ids. */
static sl_corpus *sample(scratch *in)
{
    sl_corpus *corpus;
    write_corpus(in->directory, 3, TOKENS, 1);
    check_ok(sl_corpus_load(in->directory, NULL, &corpus));
    assert_int_equal(sl_vocab_size(sl_corpus_vocab(corpus)), 324);
    return corpus;
}

/* Entropy in nats of `count` counts that add up to `total`. */
static double entropy_of_counts(const int32_t *counts, size_t count, double total)
{
    double entropy = 0;
    for (size_t i = 0; i < count; i++)
        if (counts[i])
            entropy -= counts[i] / total * log(counts[i] / total);
    return entropy;
}

/* From frequencies of words and of pairs of words alone, without the grammar. */
static void entropies_of_words_and_pairs_are_as_stated(void **state)
{
    static int32_t words[TYPES_MAX], pairs[TYPES_MAX * TYPES_MAX];
    scratch *in = *state;
    sl_corpus *corpus = sample(in);
    const sl_tokens *tokens = sl_corpus_tokens(corpus, SL_SPLIT_TRAIN);
    sli_grammar *grammar;
    double stated[2], total = (double)tokens->count - 1;
    memset(words, 0, sizeof words);
    memset(pairs, 0, sizeof pairs);
    for (int64_t i = 0; i + 1 < tokens->count; i++) {
        words[tokens->ids[i]]++;
        pairs[tokens->ids[i] * TYPES_MAX + tokens->ids[i + 1]]++;
    }
    double of_words = entropy_of_counts(words, TYPES_MAX, total);
    double of_pairs = entropy_of_counts(pairs, TYPES_MAX * TYPES_MAX, total);
    check_ok(sli_grammar_create(&grammar));
    check_ok(sli_grammar_context_entropies(grammar, stated, 2));
    assert_true(fabs(of_words - stated[0]) < 0.005);
    /* Rare pairs are missing from a sample, which makes its entropy too low, by about the number of
     * kinds of pairs over twice the sample's size: 0.02 here. */
    assert_true(fabs(of_pairs - of_words - stated[1]) < 0.03);
    assert_true(fabs(log(best_perplexity(in->directory, 1)) - stated[1]) < 1e-12);
    sli_grammar_destroy(&grammar);
    sl_corpus_destroy(&corpus);
}

typedef struct place {
    int group, word;
} place;

static void find_words(const sl_vocab *vocab, place *places)
{
    char word[SLI_GRAMMAR_WORD_BYTES];
    for (int group = 0; group < SLI_GRAMMAR_GROUPS; group++)
        for (int i = 0; i < sli_grammar_word_count(group); i++) {
            sli_grammar_word(group, i, word);
            places[sl_vocab_id(vocab, word, strlen(word))] = (place){group, i};
        }
}

/* -log of the probability of a token in a state, which it moves to the next one. */
static double surprise(const sli_grammar *grammar, place token, int *state)
{
    double edges = 0, words = 0;
    const sli_grammar_edge *taken = NULL;
    for (int e = grammar->first_edge[*state]; e < grammar->first_edge[*state + 1]; e++) {
        edges += grammar->edges[e].weight;
        if (grammar->edges[e].group == token.group)
            taken = &grammar->edges[e];
    }
    for (int i = 0; i < sli_grammar_word_count(token.group); i++)
        words += sli_grammar_word_weight(i);
    assert_non_null(taken); /* the text follows the grammar */
    *state = taken->next;
    return -log(taken->weight / edges * (sli_grammar_word_weight(token.word) / words));
}

/* The best possible model's mean loss on a long text. */
static void mean_surprise_is_the_entropy_rate(void **state)
{
    scratch *in = *state;
    sl_corpus *corpus = sample(in);
    const sl_tokens *tokens = sl_corpus_tokens(corpus, SL_SPLIT_TRAIN);
    place places[TYPES_MAX];
    sli_grammar *grammar;
    int at = SLI_GRAMMAR_START;
    double sum = 0;
    check_ok(sli_grammar_create(&grammar));
    find_words(sl_corpus_vocab(corpus), places);
    for (int64_t i = 0; i < tokens->count; i++)
        sum += surprise(grammar, places[tokens->ids[i]], &at);
    double mean = sum / (double)tokens->count, stated = log(best_perplexity(in->directory, 0));
    if (fabs(mean - stated) > 0.01)
        fail_msg("measured %f nats per token, stated %f", mean, stated);
    sli_grammar_destroy(&grammar);
    sl_corpus_destroy(&corpus);
}

/* ---- Where it goes ------------------------------------------------------------------------ */

static void impossible_requests_are_refused(void **state)
{
    scratch *in = *state;
    char inside[512];
    double perplexity;
    write_file(scratch_path(in, "file"), "", 0);
    snprintf(inside, sizeof inside, "%s/deep/er", in->directory);
    const sli_synthetic_options negative = {.train_tokens = -1}, small = {.train_tokens = 1};
    check_error(sli_synthetic_write(in->directory, &negative), SL_ERR_INVALID,
                "must not be negative, got -1 and 0");
    check_error(sli_synthetic_write(scratch_path(in, "file"), &small), SL_ERR_IO,
                "cannot be made a directory: File exists");
    check_error(sli_synthetic_write(inside, &small), SL_ERR_NOT_FOUND,
                "cannot be made a directory: No such file");
    check_error(sli_synthetic_best_perplexity(in->directory, -1, &perplexity), SL_ERR_INVALID,
                "at least 0, got -1");
}

static void text_that_is_no_synthetic_corpus_is_not_replaced(void **state)
{
    static const char *const names[] = {"test.txt", "wiki.valid.tokens"};
    const sli_synthetic_options small = {.train_tokens = 1};
    scratch *in = *state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        write_file(scratch_path(in, names[i]), "mine", 4);
        check_error(sli_synthetic_write(in->directory, &small), SL_ERR_INVALID,
                    "a synthetic corpus goes where no other text is, got ");
        assert_non_null(strstr(sl_error_text(), names[i]));
        assert_int_equal(scratch_entries(in, 0), 1);
        assert_int_equal(remove(scratch_path(in, names[i])), 0);
    }
}

/* The first bytes of a file, as text. */
static const char *content(const char *path)
{
    static char text[64];
    size_t bytes = read_file(path, text, sizeof text - 1);
    text[bytes < sizeof text ? bytes : sizeof text - 1] = '\0';
    return text;
}

static void changed_text_of_a_synthetic_corpus_is_not_replaced(void **state)
{
    static const char *const names[] = {"train.txt", "valid.txt", "test.txt"};
    const sli_synthetic_options small = {.seed = 2, .train_tokens = 10};
    scratch *in = *state;
    for (int i = 0; i < SL_SPLITS; i++) {
        write_corpus(in->directory, 1, 10, 10);
        write_file(scratch_path(in, names[i]), "mine", 4);
        check_error(sli_synthetic_write(in->directory, &small), SL_ERR_INVALID, names[i]);
        assert_string_equal(content(scratch_path(in, names[i])), "mine");
        assert_int_equal(scratch_entries(in, 1), 4); /* the other texts have stayed too */
    }
}

static void foreign_grammar_is_not_replaced_nor_text_beside_it(void **state)
{
    static const char foreign[] = "{\"rules\": [\"S -> NP VP\"]}";
    const sli_synthetic_options small = {.train_tokens = 1};
    scratch *in = *state;
    write_file(scratch_path(in, "grammar.json"), foreign, sizeof foreign - 1);
    check_error(sli_synthetic_write(in->directory, &small), SL_ERR_INVALID, "grammar.json");
    write_file(scratch_path(in, "train.txt"), "mine", 4);
    check_error(sli_synthetic_write(in->directory, &small), SL_ERR_INVALID, in->directory);
    assert_string_equal(content(scratch_path(in, "train.txt")), "mine");
    assert_string_equal(content(scratch_path(in, "grammar.json")), foreign);
    assert_int_equal(scratch_entries(in, 0), 2);
}

static void corpus_that_lacks_texts_is_written_again(void **state)
{
    static const char *const names[] = {"test.txt", "train.txt", "valid.txt"};
    scratch *in = *state;
    for (int i = 0; i <= SL_SPLITS; i++) {
        write_corpus(in->directory, (uint64_t)i, 10, 10);
        for (int k = 0; k < i; k++)
            assert_int_equal(remove(scratch_path(in, names[k])), 0);
    }
    write_corpus(in->directory, 9, 10, 10);
    assert_true(best_perplexity(in->directory, 0) > 1);
    assert_int_equal(scratch_entries(in, 0), 4);
}

/* ---- The facts --------------------------------------------------------------------------- */

static void longer_blocks_allow_a_lower_perplexity(void **state)
{
    scratch *in = *state;
    write_corpus(in->directory, 1, 100, 100);
    double all = best_perplexity(in->directory, 0), before = INFINITY;
    for (int64_t bptt = 1; bptt < 100000; bptt *= 2) {
        double now = best_perplexity(in->directory, bptt);
        assert_true(now < before && now > all);
        before = now;
    }
    assert_true(before / all < 1.0001);
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
    write_corpus(in->directory, 1, 100, 100);
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
        write_corpus(in->directory, 1, 100, 100);
        assert_true(best_perplexity(in->directory, 35) > 1);
        FILE *text = fopen(scratch_path(in, names[i]), "a");
        assert_non_null(text);
        fputs("One word more.\n", text);
        assert_int_equal(fclose(text), 0);
        assert_true(best_perplexity(in->directory, 35) == 0);
        scratch_entries(in, 1);
    }
    write_corpus(in->directory, 1, 100, 100);
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
        write_corpus(in->directory, 1, 100, 100);
        text[read_file(path, text, sizeof text)] = '\0';
        char *at = strstr(text, damage[i][0]);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, damage[i][1],
                 at + strlen(damage[i][0]));
        write_file(path, changed, strlen(changed));
        check_error(sli_synthetic_best_perplexity(in->directory, 35, &perplexity), SL_ERR_FORMAT,
                    "grammar.json: ");
        assert_true(perplexity == 0);
        write_file(path, text, strlen(text));
    }
}

int corpus_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(same_seed_writes_the_same_sentences),
        WITH_SCRATCH(splits_are_as_long_as_asked),
        WITH_SCRATCH(entropies_of_words_and_pairs_are_as_stated),
        WITH_SCRATCH(mean_surprise_is_the_entropy_rate),
        WITH_SCRATCH(impossible_requests_are_refused),
        WITH_SCRATCH(text_that_is_no_synthetic_corpus_is_not_replaced),
        WITH_SCRATCH(changed_text_of_a_synthetic_corpus_is_not_replaced),
        WITH_SCRATCH(foreign_grammar_is_not_replaced_nor_text_beside_it),
        WITH_SCRATCH(corpus_that_lacks_texts_is_written_again),
        WITH_SCRATCH(longer_blocks_allow_a_lower_perplexity),
        WITH_SCRATCH(directory_without_facts_has_no_best_perplexity),
        WITH_SCRATCH(foreign_files_mean_nothing),
        WITH_SCRATCH(unreadable_files_mean_nothing),
        WITH_SCRATCH(facts_of_other_texts_mean_nothing),
        WITH_SCRATCH(damaged_facts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
