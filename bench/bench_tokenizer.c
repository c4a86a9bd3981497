/* How fast a byte-level BPE is, in memory, on the processors that the process may use;
 * bench/compare_tokenizers.py holds it against other libraries.
 *
 *   bench_tokenizer encode FILE REPEATS TOKENIZER [SPLITTER]   ids of the text, all at once
 *   bench_tokenizer scale FILE REPEATS TOKENIZER [SPLITTER]    what threads lose by sharing a text
 *   bench_tokenizer train FILE REPEATS VOCAB_SIZE              a tokenizer of the file
 *   bench_tokenizer save JSON TOKENIZER [SPLITTER]             as a tokenizer.json
 *
 * Prints the seconds of each repeat, and then how many ids or tokens there are; `scale` a ratio for
 * each: the time in which each of n threads encodes a text of its own, to that in which they encode
 * n texts together, one after the other. It is 1 where cutting, joining and waiting cost nothing,
 * however fast n processors are beside one. */
#include "support.h"

#include "core/file.h"
#include "core/threads.h"
#include "text/bpe.h"
#include "text/bpe_train.h"
#include "text/text_encoder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void encode(const char *path, long repeats, const char *tokenizer, const char *splitter)
{
    sl_vocab *vocab;
    char *text;
    size_t bytes;
    int64_t count = 0;
    bench_check(sl_vocab_open(tokenizer, splitter, &vocab));
    bench_check(sli_file_read(path, SIZE_MAX / 8, &text, &bytes));
    for (long i = 0; i < repeats; i++) {
        sl_tokens tokens;
        double start = bench_now();
        bench_check(sl_tokens_encode(vocab, text, bytes, false, &tokens));
        printf("%.6f\n", bench_now() - start);
        count = tokens.count;
        sl_tokens_free(&tokens);
    }
    printf("%" PRId64 "\n", count);
    free(text);
    sl_vocab_destroy(&vocab);
}

typedef struct own_texts {
    const sli_bpe *bpe;
    const char *text;
    size_t bytes;
} own_texts;

static void encode_own(void *argument, int64_t index, int thread)
{
    (void)index;
    (void)thread;
    const own_texts *job = argument;
    sl_tokens tokens;
    bench_check(sli_bpe_encode(job->bpe, job->text, job->bytes, false, false, &tokens));
    sl_tokens_free(&tokens);
}

static double seconds_together(sli_text_encoder *encoder, const own_texts *job, int texts)
{
    double start = bench_now();
    for (int i = 0; i < texts; i++) {
        sl_tokens tokens;
        bench_check(sli_text_encoder_run(encoder, job->text, job->bytes, false, &tokens));
        sl_tokens_free(&tokens);
    }
    return bench_now() - start;
}

static void scale(const char *path, long repeats, const char *tokenizer, const char *splitter)
{
    sl_vocab *vocab;
    char *text;
    size_t bytes;
    sli_pool *pool;
    sli_text_encoder *encoder;
    int threads = sli_usable_processors();
    bench_check(sl_vocab_open(tokenizer, splitter, &vocab));
    bench_check(sli_file_read(path, SIZE_MAX / 8, &text, &bytes));
    bench_check(sli_pool_create(&(sli_pool_options){.threads = threads}, &pool));
    bench_check(sli_text_encoder_create(vocab, SLI_TEXT_PART_BYTES, threads, &encoder));
    own_texts job = {vocab->bpe, text, bytes};
    (void)seconds_together(encoder, &job, 1);
    for (long i = 0; i < repeats; i++) {
        double start = bench_now();
        sli_pool_run(pool, threads, encode_own, &job);
        double apart = bench_now() - start;
        printf("%.4f\n", apart / seconds_together(encoder, &job, threads));
    }
    sli_text_encoder_destroy(&encoder);
    sli_pool_destroy(&pool);
    free(text);
    sl_vocab_destroy(&vocab);
}

static void train(const char *path, long repeats, int32_t vocab_size)
{
    static const char *const special[] = {"<|endoftext|>"};
    const sl_bpe_training training = {.vocab_size = vocab_size,
                                      .special = special,
                                      .special_count = 1};
    int32_t size = 0;
    for (long i = 0; i < repeats; i++) {
        sl_bpe_trained result;
        sl_vocab *vocab;
        double start = bench_now();
        bench_check(sli_bpe_train(&path, 1, &training, &vocab, &result));
        printf("%.6f\n", bench_now() - start);
        size = result.vocab_size;
        sl_vocab_destroy(&vocab);
    }
    printf("%" PRId32 "\n", size);
}

static void save(const char *path, const char *tokenizer, const char *splitter)
{
    sl_vocab *vocab;
    bench_check(sl_vocab_open(tokenizer, splitter, &vocab));
    bench_check(sl_vocab_save(vocab, path));
    sl_vocab_destroy(&vocab);
}

int main(int argc, char **argv)
{
    const char *action = argc > 3 ? argv[1] : "";
    long repeats = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    if (strcmp(action, "save") == 0 && argc <= 5)
        save(argv[2], argv[3], argc > 4 ? argv[4] : NULL);
    else if (strcmp(action, "encode") == 0 && repeats > 0 && argc >= 5 && argc <= 6)
        encode(argv[2], repeats, argv[4], argc > 5 ? argv[5] : NULL);
    else if (strcmp(action, "scale") == 0 && repeats > 0 && argc >= 5 && argc <= 6)
        scale(argv[2], repeats, argv[4], argc > 5 ? argv[5] : NULL);
    else if (strcmp(action, "train") == 0 && repeats > 0 && argc == 5)
        train(argv[2], repeats, (int32_t)strtol(argv[4], NULL, 10));
    else {
        fprintf(stderr, "usage: bench_tokenizer encode FILE REPEATS TOKENIZER [SPLITTER]\n"
                        "       bench_tokenizer scale FILE REPEATS TOKENIZER [SPLITTER]\n"
                        "       bench_tokenizer train FILE REPEATS VOCAB_SIZE\n"
                        "       bench_tokenizer save JSON TOKENIZER [SPLITTER]\n");
        return 2;
    }
    return 0;
}
