/* What it takes that the forward of a row has the same bits in any batch.
 *
 *   bench_batch_invariant [--steps 10 --devices cpu:0]
 *
 * Training steps of the tutorials' model at emsize 200 and 1024 and of GPT-2's sizes, in f32 and
 * bf16, and generated tokens, each with sl_device_set_batch_invariant and without by turns. */
#include "support.h"

#include "sluice/app/inference.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 64, MOST = 100 };

/* Steps, or the seconds of a generated text's tokens. */
static double measure(bench_trainer *trainer, bool generates)
{
    if (!generates)
        return bench_trainer_step(trainer);
    int32_t ids[TOKENS + 1] = {1};
    int64_t length = 1;
    double start = bench_now();
    bench_check(sl_generate(bench_trainer_pipe(trainer), &(sl_generate_options){.context = TOKENS},
                            ids, &length, TOKENS));
    return (bench_now() - start) / TOKENS;
}

static void compare(const char *what, const bench_setup *setup, int steps, bool generates)
{
    bench_trainer *trainer = bench_trainer_create(setup);
    sl_device *device = sl_pipe_device(bench_trainer_pipe(trainer), 0);
    double seconds[2][MOST], medians[2];
    for (int i = -1; i < steps; i++)
        for (int with = 0; with < 2; with++) {
            bench_check(sl_device_set_batch_invariant(device, with));
            seconds[with][i < 0 ? 0 : i] = measure(trainer, generates);
        }
    for (int with = 0; with < 2; with++)
        medians[with] = bench_median(seconds[with], steps);
    printf("| %s, %s | %.1f ms | %.1f ms | %.3f |\n", what, sl_precision_names[setup->precision],
           1e3 * medians[0], 1e3 * medians[1], medians[1] / medians[0]);
    fflush(stdout);
    bench_trainer_destroy(trainer);
}

int main(int argc, char **argv)
{
    bench_setup given = bench_setup_lm(200, 2, 2);
    int steps = 10;
    bench_setup_parse(argc, argv, &given, &steps);
    if (steps > MOST)
        bench_check(sl_error(SL_ERR_INVALID, "--steps is at most %d, got %d", MOST, steps));
    bench_setup small = bench_setup_lm(200, 2, 2), wide = bench_setup_lm(1024, 4, 16);
    char *gpt2_words[] = {argv[0], "--model", "gpt2", "--batch", "4", "--bptt", "128", NULL};
    bench_setup gpt2 = small;
    int unused = 1;
    optind = 1;
    bench_setup_parse(7, gpt2_words, &gpt2, &unused);
    small.devices = wide.devices = gpt2.devices = given.devices;
    bench_heading("| | without | with | ratio |");
    for (int i = 0; i < 2; i++) {
        small.precision = wide.precision = gpt2.precision =
            i ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        compare("a step, emsize 200", &small, steps, false);
        compare("a step, emsize 1024", &wide, steps, false);
        compare("a step, GPT-2", &gpt2, steps, false);
        compare("a generated token, emsize 1024", &wide, steps, true);
        compare("a generated token, GPT-2", &gpt2, steps, true);
    }
    return 0;
}
