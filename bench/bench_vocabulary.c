/* The head split over all ranks, beside the head in the last stage.
 *
 *   bench_vocabulary [OPTION…]                                options as bench_step's
 *
 * The default is Qwen3-0.6B's shape cut to 8 layers in bf16, 8 x 256 tokens, 8 chunks, 5 steps.
 *
 * The first table is a simulation alone: 8 ranks with cores of their own, from a profile of the
 * modules on this machine, each schedule with the cut that makes its step the shortest.
 *
 * The second one has pipes of 2 and of 4 ranks that share all cores, with and without the split, in
 * turn: the time of sl_pipe_train, and measured/simulated, which is that time divided by the
 * simulation's with the mean time of each kind of action in the same step (docs/pipeline.md). All
 * are medians over the steps. --schedule none leaves it out. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 64, SIMULATED_RANKS = 8, MOST_MODULES = 64, MOST_CONTENDERS = 32 };

static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* ---- Measured ----------------------------------------------------------------------------- */

typedef struct contender {
    bench_setup setup;
    double seconds[BENCH_MAX_STEPS];
    double excess[BENCH_MAX_STEPS]; /* measured / simulated */
} contender;

/* One at a time is in memory: Qwen3-0.6B's optimizer alone takes some GiB. */
static void run_steps(contender *c, int steps)
{
    bench_trainer *trainer = bench_trainer_create(&c->setup);
    bench_trainer_step(trainer); /* fills the allocator's cache */
    for (int step = 0; step < steps; step++) {
        sl_utilization utilization;
        bench_trainer_step(trainer);
        bench_check(sl_pipe_get_utilization(bench_trainer_pipe(trainer), &utilization));
        c->seconds[step] = bench_trainer_train_seconds(trainer);
        c->excess[step] = c->seconds[step] / utilization.predicted_seconds;
        sl_utilization_clear(&utilization);
    }
    bench_trainer_destroy(trainer);
}

static void report(contender *c, int steps)
{
    const bench_setup *setup = &c->setup;
    double seconds = bench_median(c->seconds, steps), excess = bench_median(c->excess, steps);
    printf("| %s | %d | %s | %.0f ms (%.0f to %.0f) | %.3f (%.3f to %.3f) |\n", setup->schedule,
           setup->stages / setup->virtual_stages, setup->head_blocks ? "all ranks" : "last stage",
           1e3 * seconds, 1e3 * c->seconds[0], 1e3 * c->seconds[steps - 1], excess, c->excess[0],
           c->excess[steps - 1]);
    fflush(stdout);
}

static void measure(bench_setup setup, const char *wanted, int steps)
{
    static contender one;
    bench_heading("| schedule | ranks | head | pass forward and backward | measured / simulated |");
    for (int ranks = 2; ranks <= 4; ranks *= 2)
        for (int i = 0; i < SCHEDULES; i++) {
            if (wanted && strcmp(wanted, schedules[i]) != 0)
                continue;
            setup.schedule = schedules[i];
            setup.virtual_stages = sl_schedule_virtual_stages(setup.schedule);
            setup.stages = ranks * setup.virtual_stages;
            setup.devices = ranks == 2 ? "cpu,cpu" : "cpu,cpu,cpu,cpu";
            for (setup.head_blocks = 0; setup.head_blocks <= BLOCKS; setup.head_blocks += BLOCKS) {
                one.setup = setup;
                run_steps(&one, steps);
                report(&one, steps);
            }
        }
    printf("\n");
}

/* ---- Simulated ---------------------------------------------------------------------------- */

/* A step's time if all ranks always had work. */
static double find_work(const sl_partition_costs *costs, int micros)
{
    double seconds = 0;
    for (int i = 0; i < costs->modules; i++)
        seconds += costs->profiles[0][i].forward + costs->profiles[0][i].backward;
    return seconds * micros / SIMULATED_RANKS;
}

static void print_ratio(const char *name, double work, const double seconds[2])
{
    printf("| %s | %.0f%% | %.0f%% | %.2f |\n", name, 100 * work / seconds[0],
           100 * work / seconds[1], seconds[0] / seconds[1]);
}

/* The shortest step; 0: there are fewer modules than stages. */
static double simulate_best(const sl_partition_costs *given, const char *schedule, int micros,
                            sl_recompute recompute, int head_blocks)
{
    int balance[2 * SIMULATED_RANKS * BENCH_MAX_STAGES];
    sl_partition_costs costs = *given;
    sl_schedule *table;
    double seconds = 0;
    bench_check(sl_schedule_write(
        schedule, &(sl_schedule_options){.ranks = SIMULATED_RANKS, .micros = micros}, &table));
    bench_check(sl_schedule_recompute(table, recompute));
    costs.table = table;
    costs.head_blocks = head_blocks;
    if (sl_schedule_stages(table) <= costs.modules)
        bench_check(sl_partition_by_time(&costs, balance, &seconds));
    sl_schedule_destroy(&table);
    return seconds;
}

static void simulate(const bench_setup *setup)
{
    static sl_module_profile times[MOST_MODULES];
    const sl_module_profile *ranks[SIMULATED_RANKS];
    sl_module *model;
    double best[2] = {0, 0};
    for (int i = 0; i < SIMULATED_RANKS; i++)
        ranks[i] = times;
    bench_check(sl_transformer_lm_create(&setup->model, &model));
    const sl_partition_costs costs = {.modules = sl_module_child_count(model),
                                      .profiles = ranks,
                                      .model = model};
    if (costs.modules > MOST_MODULES)
        bench_check(sl_error(SL_ERR_INVALID, "the model has at most %d modules", MOST_MODULES));
    bench_profile_modules(setup, times);
    double work = find_work(&costs, setup->chunks);
    bench_heading("| schedule | ranks' time with work, head in the last stage | split | as fast |");
    for (int i = 0; i < SCHEDULES; i++) {
        double seconds[2];
        for (int split = 0; split < 2; split++) {
            seconds[split] = simulate_best(&costs, schedules[i], setup->chunks, setup->recompute,
                                           split ? BLOCKS : 0);
            if (seconds[split] > 0 && (best[split] == 0 || seconds[split] < best[split]))
                best[split] = seconds[split];
        }
        if (seconds[0] > 0)
            print_ratio(schedules[i], work, seconds);
    }
    print_ratio("the best", work, best);
    sl_module_destroy(&model);
}

int main(int argc, char **argv)
{
    int steps = 5;
    bench_setup setup = bench_setup_lm(1024, 8, 16);
    bench_check(sl_model_options_named("qwen3-0.6b", &setup.model));
    setup.model.nlayers = 8;
    setup.batch = 8;
    setup.bptt = 256;
    setup.chunks = 8;
    setup.precision = SL_PRECISION_BF16;
    setup.recompute = SL_RECOMPUTE_NEVER;
    setup.schedule = NULL;
    bench_setup_parse(argc, argv, &setup, &steps);
    const char *wanted = setup.schedule;
    setup.devices = "cpu";
    simulate(&setup);
    if (wanted && strcmp(wanted, "none") == 0)
        return 0;
    printf("\nruns: %d steps of each\n\n", steps);
    measure(setup, wanted, steps);
    return 0;
}
