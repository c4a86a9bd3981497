/* How fast text becomes token ids on one core: reading the three files of a corpus, cutting them
 * into tokens, counting these, ordering the vocabulary and looking every token up (sl_corpus_load).
 *
 * It is held against the plainest pass there is over the same files, in the same run: reading them
 * and counting words between white space, with one table look-up a byte.
 *
 *   bench_text [DIR [REPEATS]]      default: SLUICE_DATA, else a synthetic text; 15 repeats */
#include "support.h"

#include "sluice/app/text.h"
#include "synthetic/chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_REPEATS = 1000, DEFAULT_REPEATS = 15, BLOCK_BYTES = 1 << 18 };

typedef struct scan_result {
    int64_t bytes, words;
} scan_result;

/* The bound. */
static void scan_file(const char *path, scan_result *result)
{
    static const unsigned char is_space[256] = {
        ['\t'] = 1, ['\n'] = 1, ['\v'] = 1, ['\f'] = 1, ['\r'] = 1, [' '] = 1};
    static unsigned char block[BLOCK_BYTES];
    unsigned before = 1;
    FILE *file = fopen(path, "rb");
    if (!file)
        bench_check(sl_error(SL_ERR_IO, "%s: cannot be opened", path));
    setvbuf(file, NULL, _IONBF, 0);
    for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;) {
        for (size_t i = 0; i < got; i++) {
            unsigned now = is_space[block[i]];
            result->words += before & (now ^ 1);
            before = now;
        }
        result->bytes += (int64_t)got;
    }
    fclose(file);
}

typedef struct measurement {
    double scan_seconds[MAX_REPEATS], load_seconds[MAX_REPEATS];
    scan_result scanned;
    int64_t tokens;
    int32_t types;
} measurement;

static void measure_once(const char *directory, int repeat, measurement *into)
{
    sl_corpus *corpus;
    double start = bench_now();
    bench_check(sl_corpus_load(directory, NULL, &corpus));
    into->load_seconds[repeat] = bench_now() - start;
    into->types = sl_vocab_size(sl_corpus_vocab(corpus));
    into->tokens = 0;
    into->scanned = (scan_result){0, 0};
    start = bench_now();
    for (int split = 0; split < SL_SPLITS; split++)
        scan_file(sl_corpus_name(corpus, (sl_split)split), &into->scanned);
    into->scan_seconds[repeat] = bench_now() - start;
    for (int split = 0; split < SL_SPLITS; split++)
        into->tokens += sl_corpus_tokens(corpus, (sl_split)split)->count;
    sl_corpus_destroy(&corpus);
}

static void report(measurement *m, int repeats)
{
    double megabytes = 1e-6 * (double)m->scanned.bytes;
    double load = bench_median(m->load_seconds, repeats);
    double scan = bench_median(m->scan_seconds, repeats);
    bench_heading(
        "| tokens | types | tokenizer and vocabulary, on one core | counting words between white "
        "space alone |");
    printf("| %lld | %d | %.0f MB/s | %.0f MB/s |\n", (long long)m->tokens, m->types,
           megabytes / load, megabytes / scan);
}

/* A corpus of ten megabytes in a new directory, whose name is written to `directory`. */
static void make_corpus(char *directory)
{
    const sli_synthetic_options options = {.train_tokens = 2000000};
    if (!mkdtemp(directory))
        bench_check(sl_error(SL_ERR_IO, "%s: cannot be made a directory", directory));
    bench_check(sli_synthetic_write(directory, &options));
}

static void remove_corpus(const char *directory)
{
    static const char *const names[] = {"train.txt", "valid.txt", "test.txt"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        remove(path);
    }
    rmdir(directory);
}

int main(int argc, char **argv)
{
    static measurement measured;
    char synthetic[] = "/tmp/sluice-bench-text-XXXXXX";
    const char *directory = argc > 1 ? argv[1] : getenv("SLUICE_DATA");
    long repeats = argc > 2 ? strtol(argv[2], NULL, 10) : DEFAULT_REPEATS;
    if (argc > 3 || repeats < 1 || repeats > MAX_REPEATS) {
        fprintf(stderr, "usage: bench_text [DIR [REPEATS (1 to %d)]]\n", MAX_REPEATS);
        return 2;
    }
    bool made = !directory || !directory[0];
    if (made)
        make_corpus(synthetic);
    printf("corpus: %s%s\n", made ? "synthetic, " : "", made ? synthetic : directory);
    for (int i = 0; i < repeats; i++)
        measure_once(made ? synthetic : directory, i, &measured);
    if (made)
        remove_corpus(synthetic);
    report(&measured, (int)repeats);
    return 0;
}
