/* How long it takes to write, prove and simulate a large table, and how much memory.
 *
 *   bench_schedule [SCHEDULE RANKS MICROS]      default: zb-h1 1024 4096 */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static double *unit_costs(int stages)
{
    double *costs = malloc((size_t)stages * sizeof *costs);
    for (int s = 0; costs && s < stages; s++)
        costs[s] = 1;
    return costs;
}

int main(int argc, char **argv)
{
    const char *name = argc > 3 ? argv[1] : "zb-h1";
    sl_schedule_options options = {.ranks = argc > 3 ? (int)strtol(argv[2], NULL, 10) : 1024,
                                   .micros = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 4096};
    sl_schedule *schedule;
    sl_simulation simulation;
    struct rusage usage;
    double start = bench_now();
    bench_check(sl_schedule_write(name, &options, &schedule));
    double written = bench_now();
    double *costs = unit_costs(sl_schedule_stages(schedule));
    bench_check(sl_schedule_simulate(
        schedule,
        &(sl_cost_model){.forward = costs, .backward_input = costs, .backward_weight = costs},
        &simulation));
    double end = bench_now();
    getrusage(RUSAGE_SELF, &usage);
    bench_heading(
        "| schedule | ranks | micro-batches | actions | written in | proven and simulated in | "
        "at most |");
    printf("| %s | %d | %d | %d | %.2f s | %.2f s | %.2f GB |\n", name, options.ranks,
           options.micros, simulation.entry_count, written - start, end - written,
           (double)usage.ru_maxrss * 1024 / 1e9);
    sl_simulation_clear(&simulation);
    sl_schedule_destroy(&schedule);
    free(costs);
    return 0;
}
