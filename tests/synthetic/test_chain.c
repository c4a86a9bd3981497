#include "io/scratch.h"
#include "sluice/app/text.h"
#include "support/check.h"
#include "synthetic/chain.h"

#include <math.h>
#include <stdlib.h>

static void write_text(const char *directory, uint64_t seed, int64_t train, int64_t eval)
{
    const sli_synthetic_options options = {.seed = seed,
                                           .train_tokens = train,
                                           .eval_tokens = eval};
    check_ok(sli_synthetic_write(directory, &options));
}

/* The first bytes of a file, as text. */
static const char *content(const char *path)
{
    static char text[512];
    size_t bytes = read_file(path, text, sizeof text - 1);
    text[bytes < sizeof text ? bytes : sizeof text - 1] = '\0';
    return text;
}

/* ---- The text ---------------------------------------------------------------------------- */

static void same_seed_writes_the_same_sentences(void **state)
{
    static const char expected[] =
        "Clever riders always feed many large lambs near busy hills.\n"
        "Clever shepherds always slowly count few new lambs behind hills.\n"
        "Shepherds sometimes quietly follow few apples behind famous orchards.\n"
        "Cooks never proudly polish several old nets past roads.\n";
    scratch *dir = *state;
    write_text(dir->directory, 1, 40, 1);
    assert_string_equal(content(scratch_path(dir, "train.txt")), expected);
    assert_memory_not_equal(content(scratch_path(dir, "valid.txt")), expected, 10);
    assert_memory_not_equal(content(scratch_path(dir, "test.txt")), expected, 10);
    write_text(dir->directory, 2, 40, 1);
    assert_memory_not_equal(content(scratch_path(dir, "train.txt")), expected, 10);
}

static void splits_are_as_long_as_asked(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_corpus) *corpus = NULL;
    write_text(dir->directory, 7, 5000, 0);
    check_ok(sl_corpus_load(dir->directory, NULL, &corpus));
    for (int split = 0; split < SL_SPLITS; split++) {
        const sl_tokens *tokens = sl_corpus_tokens(corpus, (sl_split)split);
        int64_t wanted = split == SL_SPLIT_TRAIN ? 5000 : 500;
        assert_true(tokens->count >= wanted && tokens->count < wanted + 12);
        assert_string_equal(
            sl_vocab_token(sl_corpus_vocab(corpus), tokens->ids[tokens->count - 1]).text, ".");
    }
}

/* ---- Its entropy, counted ---------------------------------------------------------------- */

enum { TOKENS = 2000000, LONGEST = 4 };

static int compare_keys(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* The entropy in nats of `length` tokens in a row, from how often each sequence comes. Rare ones
 * are missing from a sample, which makes its entropy too low by about the number of kinds over
 * twice the sample's size (Miller 1955). */
static double entropy_of_sequences(const sl_tokens *tokens, int length)
{
    int64_t count = tokens->count - LONGEST, kinds = 0;
    uint64_t *keys = calloc((size_t)count, sizeof *keys);
    double entropy = 0;
    assert_non_null(keys);
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < length; k++)
            keys[i] = keys[i] << 16 | (uint64_t)tokens->ids[i + k];
    qsort(keys, (size_t)count, sizeof *keys, compare_keys);
    for (int64_t i = 0, next; i < count; i = next, kinds++) {
        for (next = i; next < count && keys[next] == keys[i];)
            next++;
        double frequency = (double)(next - i) / (double)count;
        entropy -= frequency * log(frequency);
    }
    free(keys);
    return entropy + (double)(kinds - 1) / (2 * (double)count);
}

/* What the closed form says of a token of which `known` tokens before it are known. */
static double stated_entropy(int64_t known)
{
    double all = (double)known * log(sli_synthetic_best_perplexity(known));
    return known == 1 ? all
                      : all - (double)(known - 1) * log(sli_synthetic_best_perplexity(known - 1));
}

/* Without the chain: from frequencies of one to four words in a row. */
static void entropy_is_that_of_a_long_text(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_corpus) *corpus = NULL;
    double before = 0, counted[LONGEST], rate = log(sli_synthetic_best_perplexity(0));
    write_text(dir->directory, 3, TOKENS, 1);
    check_ok(sl_corpus_load(dir->directory, NULL, &corpus));
    for (int length = 1; length <= LONGEST; length++) {
        double now = entropy_of_sequences(sl_corpus_tokens(corpus, SL_SPLIT_TRAIN), length);
        counted[length - 1] = now - before;
        before = now;
    }
    for (int known = 1; known < LONGEST; known++)
        if (fabs(counted[known] - stated_entropy(known)) > 0.01)
            fail_msg("%d known: counted %f nats, stated %f", known, counted[known],
                     stated_entropy(known));
    assert_true(fabs(stated_entropy(3) - rate) < 1e-12);
    /* Who sees the last word alone, or none, does much worse. */
    assert_true(counted[1] > rate + 0.6);
    assert_true(counted[0] > counted[1] + 1);
}

static void longer_blocks_allow_a_lower_perplexity(void **state)
{
    double all = sli_synthetic_best_perplexity(0), before = INFINITY;
    for (int64_t bptt = 1; bptt < 100000; bptt *= 2) {
        double now = sli_synthetic_best_perplexity(bptt);
        assert_true(now < before && now > all);
        before = now;
    }
    assert_true(before / all < 1.0001);
}

/* ---- Recognizing it ---------------------------------------------------------------------- */

static void texts_are_recognized_by_their_sentences(void **state)
{
    scratch *dir = *state;
    assert_false(sli_synthetic_is_text(dir->directory));
    assert_false(sli_synthetic_is_text("/nowhere"));
    write_text(dir->directory, 1, 3000, 3000);
    assert_true(sli_synthetic_is_text(dir->directory));
    assert_true(sli_synthetic_is_text(scratch_path(dir, "train.txt"))); /* one text, divided */
    assert_int_equal(remove(scratch_path(dir, "test.txt")), 0);
    assert_false(sli_synthetic_is_text(dir->directory));
}

static void other_sentences_are_not_the_chains(void **state)
{
    static const char *const texts[] = {
        "",
        "\n",
        ".\n",
        "Riders often groom the goats near barns",                  /* the text is cut */
        "Riders often groom the goats near barns.",                 /* here as well */
        "riders often groom the goats near barns.\n",               /* no capital */
        "Riders often groom the goats near barns. \n",              /* no full stop */
        "Riders groom the goats near barns.\n",                     /* no filler */
        "Riders often gladly gladly groom the goats near barns.\n", /* two of one kind */
        "Riders often groom the goats near barns forests.\n",       /* a word more */
        "Riders often groom the goats.\n",                          /* no place */
        "Riders often praise the goats near barns.\n",              /* no successor */
        "Riders often groom the horses near stables.\nRiders often ride.\n",
        "Riders often groom the horses near stables.\nDrivers often groom the goats near barns.\n",
        "Riders often groom the horses near stables.\n\n",
        "Riders often groom the horses near stables.\nMy own text.\n",
    };
    static const char good[] = "Riders often groom the horses near stables.\nBrave riders still "
                               "gladly groom few old goats past windy forests.\n";
    scratch *dir = *state;
    char *path = scratch_path(dir, "text");
    write_file(path, good, sizeof good - 1);
    assert_true(sli_synthetic_is_text(path));
    write_file(path, good, sizeof good); /* with the 0 */
    assert_false(sli_synthetic_is_text(path));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(path, texts[i], strlen(texts[i]));
        if (sli_synthetic_is_text(path))
            fail_msg("taken for the chain's: %s", texts[i]);
    }
    char line[1000];
    memset(line, 'a', sizeof line);
    write_file(path, line, sizeof line);
    assert_false(sli_synthetic_is_text(path));
}

/* ---- Where it goes ------------------------------------------------------------------------ */

static void impossible_requests_are_refused(void **state)
{
    scratch *dir = *state;
    char inside[512];
    write_file(scratch_path(dir, "file"), "", 0);
    snprintf(inside, sizeof inside, "%s/deep/er", dir->directory);
    const sli_synthetic_options negative = {.train_tokens = -1}, small = {.train_tokens = 1};
    check_error(sli_synthetic_write(dir->directory, &negative), SL_ERR_INVALID,
                "must not be negative, got -1 and 0");
    check_error(sli_synthetic_write(scratch_path(dir, "file"), &small), SL_ERR_IO,
                "cannot be made a directory: File exists");
    check_error(sli_synthetic_write(inside, &small), SL_ERR_NOT_FOUND,
                "cannot be made a directory: No such file");
}

static void other_text_is_neither_replaced_nor_hidden(void **state)
{
    static const char *const names[] = {"train.txt", "valid.txt", "test.txt", "wiki.valid.tokens"};
    const sli_synthetic_options small = {.seed = 2, .train_tokens = 10};
    scratch *dir = *state;
    for (int older = 0; older < 2; older++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            if (older)
                write_text(dir->directory, 1, 10, 10);
            int files = older ? (i < SL_SPLITS ? 3 : 4) : 1;
            write_file(scratch_path(dir, names[i]), "mine", 4);
            check_error(sli_synthetic_write(dir->directory, &small), SL_ERR_INVALID,
                        "a synthetic text goes where no other text is, got ");
            assert_non_null(strstr(sl_error_text(), names[i]));
            assert_string_equal(content(scratch_path(dir, names[i])), "mine");
            assert_int_equal(scratch_entries(dir, 1), files); /* the other texts have stayed too */
        }
}

/* A sentence of one's own at the end makes it another text. */
static void changed_synthetic_text_is_not_replaced(void **state)
{
    const sli_synthetic_options small = {.seed = 2, .train_tokens = 10};
    scratch *dir = *state;
    write_text(dir->directory, 1, 3000, 10);
    FILE *text = fopen(scratch_path(dir, "train.txt"), "a");
    assert_non_null(text);
    fputs("One sentence more.\n", text);
    assert_int_equal(fclose(text), 0);
    check_error(sli_synthetic_write(dir->directory, &small), SL_ERR_INVALID, "train.txt");
}

static void older_synthetic_text_is_replaced_complete_or_not(void **state)
{
    static const char *const names[] = {"test.txt", "train.txt", "valid.txt"};
    scratch *dir = *state;
    for (int i = 0; i <= SL_SPLITS; i++) {
        write_text(dir->directory, (uint64_t)i, 10, 10);
        for (int k = 0; k < i; k++)
            assert_int_equal(remove(scratch_path(dir, names[k])), 0);
    }
    write_text(dir->directory, 9, 10, 10);
    assert_true(sli_synthetic_is_text(dir->directory));
    assert_int_equal(scratch_entries(dir, 0), 3);
}

int chain_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(same_seed_writes_the_same_sentences),
        WITH_SCRATCH(splits_are_as_long_as_asked),
        WITH_SCRATCH(entropy_is_that_of_a_long_text),
        cmocka_unit_test(longer_blocks_allow_a_lower_perplexity),
        WITH_SCRATCH(texts_are_recognized_by_their_sentences),
        WITH_SCRATCH(other_sentences_are_not_the_chains),
        WITH_SCRATCH(impossible_requests_are_refused),
        WITH_SCRATCH(other_text_is_neither_replaced_nor_hidden),
        WITH_SCRATCH(changed_synthetic_text_is_not_replaced),
        WITH_SCRATCH(older_synthetic_text_is_replaced_complete_or_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
