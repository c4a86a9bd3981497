/* Seconds a token of generated text, greedy, with the tutorials' model.
 *
 *   bench_generate [--emsize 512 --nlayers 2 --nhead 8 --precision f32 --devices cpu:0 --stages 1
 *                   --steps 512 ...]
 *
 * `--steps` is the number of tokens, all of which the model sees. sl_generate keeps keys and
 * values; beside it the same text by a forward over all tokens for each, at every 16th length: one
 * JSON line. */
#include "support.h"

#include "sluice/app/inference.h"
#include "sluice/app/train.h"

#include <stdio.h>
#include <stdlib.h>

enum { STRIDE = 16 };

/* Seconds of forwards over the whole text for each of the lengths 1 … tokens. */
static double measure_whole(sl_pipe *pipe, const int32_t *ids, int64_t tokens)
{
    double seconds = 0;
    float *logits;
    int64_t ntokens;
    for (int64_t length = STRIDE / 2; length <= tokens; length += STRIDE) {
        double start = bench_now();
        bench_check(sl_compute_logits(pipe, ids, 1, length, &logits, &ntokens));
        seconds += bench_now() - start;
        free(logits);
    }
    return seconds * STRIDE;
}

/* Seconds of tokens first … end - 1, where the text begins with one token. */
static double generate(sl_pipe *pipe, int32_t *ids, int64_t context, int64_t count)
{
    int64_t length = 1;
    double start = bench_now();
    ids[0] = 1;
    bench_check(sl_generate(pipe, &(sl_generate_options){.context = context}, ids, &length, count));
    return bench_now() - start;
}

int main(int argc, char **argv)
{
    bench_setup setup = bench_setup_lm(512, 2, 8);
    int tokens = 512;
    bench_setup_parse(argc, argv, &setup, &tokens);
    bench_trainer *trainer = bench_trainer_create(&setup);
    sl_pipe *pipe = bench_trainer_pipe(trainer);
    int32_t *ids = malloc(((size_t)tokens + 1) * sizeof *ids);
    if (!ids)
        bench_check(sl_error(SL_ERR_MEMORY, "no memory for %d tokens", tokens));
    generate(pipe, ids, tokens, 8);
    double half = generate(pipe, ids, tokens, tokens / 2);
    double cached = generate(pipe, ids, tokens, tokens);
    double whole = measure_whole(pipe, ids, tokens);
    bench_heading("| | a token |");
    printf("| with kept keys and values | %.1f ms |\n| the first %d tokens alone | %.1f ms |\n"
           "| a forward over the whole text for each token | %.0f ms |\n"
           "| without kept keys and values it takes | %.0f times as long |\n",
           1e3 * cached / tokens, tokens / 2, 1e3 * half / (double)(tokens / 2),
           1e3 * whole / tokens, whole / cached);
    free(ids);
    bench_trainer_destroy(trainer);
    return 0;
}
