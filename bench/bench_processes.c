/* A pipe whose ranks are processes, beside one whose ranks are threads, in turn, and beside the
 * simulator.
 *
 *   mpirun -n RANKS --bind-to none bench_processes [OPTION…]     options as bench_step's
 *
 * The default is 1f1b with 4 chunks of the tutorials' model at emsize 1024, and 15 steps; --devices
 * has a device for each rank (default: cpu:0, cpu:1, …). Of each, the median time of a step with
 * clipping and update; the ratio of the rates; and measured/simulated: the time of sl_pipe_train
 * over processes, divided by that of sl_pipe_get_utilization's simulation of the same step. */
#include "support.h"

#include <stdio.h>
#include <time.h>

/* The threads take a step in process 0. The others sleep meanwhile: polling would need a core. */
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

/* The last step's sl_pipe_train over that of the simulation. */
static double compare_with_simulation(const bench_trainer *trainer)
{
    sl_utilization utilization;
    bench_check(sl_pipe_get_utilization(bench_trainer_pipe(trainer), &utilization));
    double ratio = bench_trainer_train_seconds(trainer) / utilization.predicted_seconds;
    sl_utilization_clear(&utilization);
    return ratio;
}

static void report(const bench_setup *setup, double *processes, double *threads, double *simulated,
                   int steps)
{
    double apart = bench_median(processes, steps), together = bench_median(threads, steps);
    double ratio = bench_median(simulated, steps);
    int ranks = setup->stages / setup->virtual_stages;
    printf("runs: %d steps of each in turn\n\n", steps);
    bench_heading(
        "| emsize | layers | schedule | ranks | processes | threads | rate of processes / of "
        "threads | measured / simulated |");
    printf("| %d | %d | %s | %d | %.0f ms (%.0f to %.0f) | %.0f ms (%.0f to %.0f) | %.3f | %.3f "
           "(%.3f to "
           "%.3f) |\n\n",
           (int)setup->model.emsize, (int)setup->model.nlayers, setup->schedule, ranks, 1e3 * apart,
           1e3 * processes[0], 1e3 * processes[steps - 1], 1e3 * together, 1e3 * threads[0],
           1e3 * threads[steps - 1], together / apart, ratio, simulated[0], simulated[steps - 1]);
    printf("{\"bench\":\"processes\",\"ranks\":%d,\"schedule\":\"%s\",\"ms\":%.2f,"
           "\"threads_ms\":%.2f,\"excess\":%.4f}\n",
           ranks, setup->schedule, 1e3 * apart, 1e3 * together, ratio);
}

/* A device for each rank, "cpu:0,cpu:1", as long as `text` lives. */
static void name_devices(bench_setup *setup, int ranks, char *text, size_t bytes)
{
    size_t used = 0;
    for (int r = 0; r < ranks && used < bytes; r++)
        used += (size_t)snprintf(text + used, bytes - used, "%scpu:%d", r ? "," : "", r);
    setup->devices = text;
}

static bench_setup parse_setup(int argc, char **argv, int ranks, int *steps)
{
    static char devices[16 * BENCH_MAX_STAGES];
    bench_setup setup = bench_setup_lm(1024, 4, 16);
    setup.chunks = 4;
    setup.schedule = "1f1b";
    name_devices(&setup, ranks, devices, sizeof devices);
    bench_setup_parse(argc, argv, &setup, steps);
    if (setup.virtual_stages == 1 && sl_schedule_has_name(setup.schedule))
        setup.virtual_stages = sl_schedule_virtual_stages(setup.schedule);
    setup.stages = ranks * setup.virtual_stages;
    return setup;
}

int main(int argc, char **argv)
{
    static double processes[BENCH_MAX_STEPS], threads[BENCH_MAX_STEPS], simulated[BENCH_MAX_STEPS];
    int steps = 15;
    sl_group *group;
    bench_check(sl_group_create_mpi(NULL, &group));
    bench_setup setup = parse_setup(argc, argv, sl_group_size(group), &steps);
    bool is_first = sl_group_rank(group) == 0;
    bench_trainer *together = is_first ? bench_trainer_create(&setup) : NULL;
    setup.group = group;
    bench_trainer *apart = bench_trainer_create(&setup);
    double expected = step_threads(group, together, 0);
    bench_trainer_step(apart); /* fills the allocators' caches */
    for (int i = 0; i < steps; i++) {
        expected = threads[i] = step_threads(group, together, expected);
        processes[i] = bench_trainer_step(apart);
        simulated[i] = compare_with_simulation(apart);
    }
    if (is_first)
        report(&setup, processes, threads, simulated, steps);
    bench_trainer_destroy(apart);
    if (together)
        bench_trainer_destroy(together);
    sl_group_destroy(&group);
    return 0;
}
