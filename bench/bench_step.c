/* A training step of the tutorials' language model: dropout 0.2, SGD and clipping, 28,782 tokens;
 * or of a published one.
 *
 *   bench_step
 *
 * at emsize 1024 with 4 layers and 200 with 2, on one stage with all cores and one chunk: the
 * step's FLOP rate against the best dnnl_sgemm rate of the same run on the same cores.
 *
 *   bench_step --emsize 1024 --nhid 1024 --nlayers 4 --nhead 16 --ntokens 28782
 *              --devices cpu:0,cpu:1 --stages 2 --virtual 1 --balance 3,3 --chunks 4
 *              --recompute never --schedule gpipe --batch 20 --bptt 35 --steps 10
 *              --precision f32 --optimizer sgd
 *
 * under these settings, each of which has a default: one JSON line. --model gpt2 before them takes
 * that model's sizes; --bound before all adds the best dnnl_sgemm rate of the run. */
#include "support.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 15 };

/* Seconds of steps into `seconds`. Returns the best rate of dnnl_sgemm before and after them, on as
 * many threads. */
static double step_with_bound(bench_trainer *trainer, double *seconds, int steps)
{
    int threads = sl_device_thread_count(sl_pipe_device(bench_trainer_pipe(trainer), 0));
    double before = bench_sgemm_rate(threads);
    bench_trainer_step(trainer); /* fills the allocator's cache */
    for (int i = 0; i < steps; i++)
        seconds[i] = bench_trainer_step(trainer);
    double after = bench_sgemm_rate(threads);
    return after > before ? after : before;
}

/* One stage on all cores, against the bound. */
static void compare_with_bound(int64_t emsize, int64_t nlayers, int64_t nhead)
{
    bench_setup setup = bench_setup_lm(emsize, nlayers, nhead);
    bench_trainer *trainer = bench_trainer_create(&setup);
    double seconds[STEPS], bound = step_with_bound(trainer, seconds, STEPS);
    double flop = bench_trainer_flop(trainer);
    double median = bench_median(seconds, STEPS);
    printf("| %d | %d | %.0f ms | %.0f GFLOP/s | %.0f GFLOP/s | %.3f |\n", (int)emsize,
           (int)nlayers, 1e3 * median, 1e-9 * flop / median, 1e-9 * bound, flop / median / bound);
    fflush(stdout);
    bench_trainer_destroy(trainer);
}

/* ---- Settings from the command line ------------------------------------------------------- */

static void measure_settings(int argc, char **argv, bool with_bound)
{
    bench_setup setup = bench_setup_lm(200, 2, 2);
    int steps = 10;
    bench_setup_parse(argc, argv, &setup, &steps);
    bench_trainer *trainer = bench_trainer_create(&setup);
    double seconds[BENCH_MAX_STEPS], bound = 0;
    if (with_bound) {
        bound = step_with_bound(trainer, seconds, steps);
    } else {
        bench_trainer_step(trainer);
        for (int i = 0; i < steps; i++)
            seconds[i] = bench_trainer_step(trainer);
    }
    double median = bench_median(seconds, steps);
    printf("{\"bench\":\"step\",\"emsize\":%d,\"nlayers\":%d,\"parameters\":%" PRId64
           ",\"stages\":%d,\"chunks\":%d,\"recompute\":\"%s\",\"schedule\":\"%s\",\"precision\":\"%"
           "s\","
           "\"ms\":%.2f,\"tokens_per_s\":%.1f,\"gflops\":%.2f,\"peak_bytes\":%" PRIu64,
           (int)setup.model.emsize, (int)setup.model.nlayers,
           sl_module_parameter_elements(sl_pipe_model(bench_trainer_pipe(trainer))), setup.stages,
           setup.chunks, sl_recompute_name(setup.recompute), setup.schedule,
           sl_precision_names[setup.precision], 1e3 * median,
           (double)(setup.batch * setup.bptt) / median, 1e-9 * bench_trainer_flop(trainer) / median,
           bench_trainer_peak_bytes(trainer));
    if (with_bound)
        printf(",\"sgemm_gflops\":%.2f", 1e-9 * bound);
    puts("}");
    bench_trainer_destroy(trainer);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        bool with_bound = strcmp(argv[1], "--bound") == 0;
        measure_settings(argc - with_bound, argv + with_bound, with_bound);
        return 0;
    }
    bench_heading("| emsize | layers | step | rate | `dnnl_sgemm` | ratio |");
    compare_with_bound(1024, 4, 16);
    compare_with_bound(200, 2, 2);
    return 0;
}
