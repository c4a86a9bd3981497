/* The cut that a profile chooses against all cuts, measured in turn, in two stages with a core
 * each.
 *
 *   bench_balance [EMSIZE NLAYERS NHEAD [STEPS]]      default: 200, 512 and 1024, 4 layers, 9 steps
 *
 * 8 micro-batches, nothing recomputed, the default schedule. A line for each cut, then the chosen
 * one's median step over the best cut's, and the profile's time over a step's. */
#include "support.h"

#include "sluice/profile.h"

#include <stdio.h>
#include <stdlib.h>

enum { STAGES = 2, CHUNKS = 8, MAX_LAYERS = 30, MAX_STEPS = 64 };

static const char devices[] = "cpu:0,cpu:1";

/* The modules of the first stage in the chosen cut. */
static int choose_cut(const bench_setup *setup, double *profile_seconds)
{
    sl_module_profile times[MAX_LAYERS + 2];
    const sl_module_profile *of_ranks[STAGES] = {times, times};
    sl_schedule *table;
    int balance[STAGES];
    double start = bench_now();
    bench_profile_modules(setup, times);
    *profile_seconds = bench_now() - start;
    bench_check(
        sl_schedule_write(NULL, &(sl_schedule_options){.ranks = STAGES, .micros = CHUNKS}, &table));
    bench_check(sl_schedule_recompute(table, setup->recompute));
    bench_check(sl_partition_by_time(&(sl_partition_costs){.modules = (int)setup->model.nlayers + 2,
                                                           .profiles = of_ranks,
                                                           .table = table},
                                     balance, NULL));
    sl_schedule_destroy(&table);
    return balance[0];
}

/* Medians of each cut's steps into medians[first stage's modules]. */
static void measure_cuts(const bench_setup *setup, int steps, double *medians)
{
    int modules = (int)setup->model.nlayers + 2;
    bench_trainer *trainers[MAX_LAYERS + 2];
    static double seconds[MAX_LAYERS + 2][MAX_STEPS];
    for (int cut = 1; cut < modules; cut++) {
        bench_setup own = *setup;
        own.balance[0] = cut;
        own.balance[1] = modules - cut;
        own.balance_count = STAGES;
        trainers[cut] = bench_trainer_create(&own);
        bench_trainer_step(trainers[cut]);
    }
    for (int i = 0; i < steps; i++)
        for (int cut = 1; cut < modules; cut++)
            seconds[cut][i] = bench_trainer_step(trainers[cut]);
    for (int cut = 1; cut < modules; cut++) {
        medians[cut] = bench_median(seconds[cut], steps);
        bench_trainer_destroy(trainers[cut]);
    }
}

static void compare(long emsize, long nlayers, long nhead, int steps)
{
    bench_setup setup = bench_setup_lm(emsize, nlayers, nhead);
    double medians[MAX_LAYERS + 2] = {0}, profile_seconds;
    int modules = (int)nlayers + 2, best = 1;
    setup.devices = devices;
    setup.stages = STAGES;
    setup.chunks = CHUNKS;
    int chosen = choose_cut(&setup, &profile_seconds);
    measure_cuts(&setup, steps, medians);
    char heading[1024];
    int used = snprintf(heading, sizeof heading, "| emsize |");
    for (int cut = 1; cut < modules; cut++)
        used += snprintf(heading + used, sizeof heading - (size_t)used, " %d, %d |", cut,
                         modules - cut);
    snprintf(heading + used, sizeof heading - (size_t)used,
             " chosen | its step, of the best one's | the profile, in steps |");
    bench_heading(heading);
    printf("| %ld |", emsize);
    for (int cut = 1; cut < modules; cut++) {
        printf(" %.0f ms |", 1e3 * medians[cut]);
        best = medians[cut] < medians[best] ? cut : best;
    }
    printf(" %d, %d | %.3f | %.2f |\n", chosen, modules - chosen, medians[chosen] / medians[best],
           profile_seconds / medians[chosen]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    long emsize = argc > 3 ? strtol(argv[1], NULL, 10) : 0;
    long nlayers = argc > 3 ? strtol(argv[2], NULL, 10) : 4;
    long nhead = argc > 3 ? strtol(argv[3], NULL, 10) : 4;
    long steps = argc > 4 ? strtol(argv[4], NULL, 10) : 9;
    if ((argc > 1 && argc < 4) || steps < 1 || steps > MAX_STEPS || nlayers < 1 ||
        nlayers > MAX_LAYERS) {
        fprintf(stderr, "usage: bench_balance [EMSIZE NLAYERS NHEAD [STEPS]]\n");
        return 2;
    }
    if (emsize > 0) {
        compare(emsize, nlayers, nhead, (int)steps);
        return 0;
    }
    compare(200, nlayers, nhead, (int)steps);
    compare(512, nlayers, nhead, (int)steps);
    compare(1024, nlayers, nhead, (int)steps);
    return 0;
}
