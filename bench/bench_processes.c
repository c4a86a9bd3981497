/* A pipe of two stages in two processes, beside one of two threads, in turn.
 *
 *   mpirun -n 2 --bind-to none bench_processes [OPTION…]       options as bench_step's
 *
 * The default is 1f1b with 4 chunks of the tutorials' model at emsize 1024, and 15 steps. Of each,
 * the median time of a step with clipping and update, and the ratio of the rates. */
#include "support.h"

#include <stdio.h>
#include <time.h>

enum { RANKS = 2 };

/* Two threads take a step in process 0. The other one sleeps meanwhile: polling would need a core.
 */
static double step_threads(sl_group *group, bench_trainer *threads, double expected)
{
    double seconds = 0, pause = 0.9 * expected;
    if (threads)
        seconds = bench_trainer_step(threads);
    else
        nanosleep(&(struct timespec){(time_t)pause, (long)(1e9 * (pause - (double)(time_t)pause))},
                  NULL);
    bench_check(sl_group_broadcast(group, &seconds, 1, SL_F64, 0, NULL));
    return seconds;
}

static void report(const bench_setup *setup, double *processes, double *threads, int steps)
{
    double apart = bench_median(processes, steps), together = bench_median(threads, steps);
    printf("emsize %d, %d layers, %d chunks, %s: two processes %.1f ms (%.1f to %.1f), two threads "
           "%.1f ms (%.1f to %.1f), rate of processes / of threads %.3f\n",
           (int)setup->model.emsize, (int)setup->model.nlayers, setup->chunks, setup->schedule,
           1e3 * apart, 1e3 * processes[0], 1e3 * processes[steps - 1], 1e3 * together,
           1e3 * threads[0], 1e3 * threads[steps - 1], together / apart);
}

int main(int argc, char **argv)
{
    static double processes[BENCH_MAX_STEPS], threads[BENCH_MAX_STEPS];
    bench_setup setup = bench_setup_lm(1024, 4, 16);
    int steps = 15;
    sl_group *group;
    setup.chunks = 4;
    setup.schedule = "1f1b";
    bench_setup_parse(argc, argv, &setup, &steps);
    setup.stages = RANKS * setup.virtual_stages;
    setup.devices = "cpu:0,cpu:1";
    bench_check(sl_group_create_mpi(NULL, &group));
    if (sl_group_size(group) != RANKS)
        bench_check(sl_error(SL_ERR_INVALID, "start bench_processes as two processes"));
    bool is_first = sl_group_rank(group) == 0;
    bench_trainer *together = is_first ? bench_trainer_create(&setup) : NULL;
    setup.group = group;
    bench_trainer *apart = bench_trainer_create(&setup);
    double expected = step_threads(group, together, 0);
    bench_trainer_step(apart); /* fills the allocators' caches */
    for (int i = 0; i < steps; i++) {
        expected = threads[i] = step_threads(group, together, expected);
        processes[i] = bench_trainer_step(apart);
    }
    if (is_first)
        report(&setup, processes, threads, steps);
    bench_trainer_destroy(apart);
    if (together)
        bench_trainer_destroy(together);
    sl_group_destroy(&group);
    return 0;
}
