/* A training step's FLOP rate against the best dnnl_sgemm rate of the same run on the same cores:
 * one stage on all cores, one chunk, dropout 0.2, SGD and clipping, 28,782 tokens.
 *
 *   bench_step [EMSIZE NLAYERS NHEAD [STEPS]]       default: both of 1024 4 16 and 200 2 2 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

static void measure(int64_t emsize, int64_t nlayers, int64_t nhead, int steps)
{
    bench_setup setup = bench_setup_lm(emsize, nlayers, nhead);
    bench_trainer *trainer = bench_trainer_create(&setup);
    int threads = sl_device_thread_count(sl_pipe_device(bench_trainer_pipe(trainer), 0));
    double seconds[64], bound = bench_sgemm_rate(threads), flop = bench_trainer_flop(trainer);
    bench_trainer_step(trainer); /* fills the allocator's cache */
    for (int i = 0; i < steps; i++)
        seconds[i] = bench_trainer_step(trainer);
    double after = bench_sgemm_rate(threads);
    bound = after > bound ? after : bound;
    double median = bench_median(seconds, steps), tokens = (double)(setup.batch * setup.bptt);
    printf("emsize %4d, %d layers, %d x %d tokens, %d threads: step %7.1f ms (best %7.1f), "
           "%8.0f tokens/s, %6.1f GFLOP/s of %6.1f: ratio %.3f (best step %.3f)\n",
           (int)emsize, (int)nlayers, (int)setup.batch, (int)setup.bptt, threads, 1e3 * median,
           1e3 * seconds[0], tokens / median, 1e-9 * flop / median, 1e-9 * bound,
           flop / median / bound, flop / seconds[0] / bound);
    printf("{\"bench\":\"step\",\"emsize\":%d,\"nlayers\":%d,\"threads\":%d,\"ms\":%.2f,"
           "\"tokens_per_s\":%.1f,\"gflops\":%.2f,\"sgemm_gflops\":%.2f,\"ratio\":%.4f}\n",
           (int)emsize, (int)nlayers, threads, 1e3 * median, tokens / median, 1e-9 * flop / median,
           1e-9 * bound, flop / median / bound);
    fflush(stdout);
    bench_trainer_destroy(trainer);
}

int main(int argc, char **argv)
{
    int steps = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 15;
    if (steps < 1 || steps > 64 || (argc > 1 && argc < 4)) {
        fprintf(stderr, "usage: bench_step [EMSIZE NLAYERS NHEAD [STEPS (1 to 64)]]\n");
        return 2;
    }
    if (argc >= 4) {
        measure(strtol(argv[1], NULL, 10), strtol(argv[2], NULL, 10), strtol(argv[3], NULL, 10),
                steps);
        return 0;
    }
    measure(1024, 4, 16, steps);
    measure(200, 2, 2, steps);
    return 0;
}
