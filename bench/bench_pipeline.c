/* Schedules on two ranks with a core each, beside one stage on both cores, in turn.
 *
 *   bench_pipeline [OPTION…]                                  options as bench_step's
 *
 * Without --schedule all are compared. The default is an even model: emsize 512, 8 layers, 1,000
 * tokens, 4 chunks, 15 steps. --balance is for the schedules that have so many stages.
 *
 * Of each: the time of a step with clipping and update, how many times the tokens a second of 1f1b
 * and of one stage that is, the bubble, and measured/simulated: the time of sl_pipe_train divided
 * by that of a simulation. The simulation, which also gives the bubble, plays the schedule's table
 * with the mean time of each kind of action at each stage in the same step. What measured/simulated
 * is above 1 is what waking, handing over and uneven actions cost. All are medians over the steps.
 *
 * With --slices K the schedules that can cut micro-batches are compared with themselves without
 * slices, on 2 ranks with a core each and on 4 that share two cores: the time of sl_pipe_train, the
 * idle time of ranks, measured and simulated, the most micro-batches that rank 0 holds by the
 * simulation, the bytes of activations that it held, and measured/simulated. */
#include "support.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = 2, MOST_CONTENDERS = 16 };
#define FOUR_ON_TWO_CORES "cpu:0-0,cpu:1-1,cpu:0-0,cpu:1-1"

typedef struct contender {
    bench_setup setup;
    bench_trainer *trainer;
    double seconds[BENCH_MAX_STEPS];
    double bubble_simulated[BENCH_MAX_STEPS];
    double bubble_measured[BENCH_MAX_STEPS];
    double excess[BENCH_MAX_STEPS]; /* measured / simulated */
} contender;

/* Compares the last step with the simulation of its table. */
static void simulate_step(contender *c, int step)
{
    sl_utilization utilization;
    bench_check(sl_pipe_get_utilization(bench_trainer_pipe(c->trainer), &utilization));
    c->bubble_simulated[step] = utilization.bubble_predicted;
    c->bubble_measured[step] = utilization.bubble_measured;
    c->excess[step] = bench_trainer_train_seconds(c->trainer) / utilization.predicted_seconds;
    sl_utilization_clear(&utilization);
}

static void add_contender(contender *list, int *count, const bench_setup *setup)
{
    contender *added = &list[(*count)++];
    added->setup = *setup;
    if (setup->balance_count != setup->stages)
        added->setup.balance_count = 0;
    added->trainer = bench_trainer_create(&added->setup);
    bench_trainer_step(added->trainer); /* fills the allocator's cache */
}

static void run_step(contender *c, int step)
{
    c->seconds[step] = bench_trainer_step(c->trainer);
    simulate_step(c, step);
}

/* With the seconds of 1f1b (0: it does not run) and of one stage. */
static void report(contender *c, int steps, double one_f_one_b, double one_stage)
{
    const bench_setup *setup = &c->setup;
    double seconds = bench_median(c->seconds, steps);
    double bubble = bench_median(c->bubble_simulated, steps);
    double excess = bench_median(c->excess, steps); /* sorted */
    double tokens = (double)(setup->batch * setup->bptt) / seconds;
    const char *name = setup->stages > 1 ? setup->schedule : "one stage";
    printf("| %s | %.0f ms (%.0f to %.0f) | %.0f |", name, 1e3 * seconds, 1e3 * c->seconds[0],
           1e3 * c->seconds[steps - 1], tokens);
    if (setup->stages > 1)
        printf(" %.2f | %.2f | %.3f | %.3f (%.3f to %.3f) |\n", one_f_one_b / seconds,
               one_stage / seconds, bubble, excess, c->excess[0], c->excess[steps - 1]);
    else
        printf(" %.2f | 1 | | |\n", one_f_one_b / seconds);
}

static void compare(contender *list, int count, int steps)
{
    for (int step = 0; step < steps; step++)
        for (int i = 0; i < count; i++)
            run_step(&list[i], step);
    double one_f_one_b = 0, one_stage = bench_median(list[0].seconds, steps);
    for (int i = 1; i < count; i++)
        if (strcmp(list[i].setup.schedule, "1f1b") == 0)
            one_f_one_b = bench_median(list[i].seconds, steps);
    printf("runs: %d steps of each in turn\n\n", steps);
    bench_heading(
        "| schedule | step | tokens/s | speed / `1f1b`'s | speed / one stage's | bubble | "
        "measured / simulated |");
    for (int i = 0; i < count; i++)
        report(&list[i], steps, one_f_one_b, one_stage);
}

/* ---- Slices ------------------------------------------------------------------------------- */

static sl_status open_table(const bench_setup *setup, sl_schedule **out)
{
    return sl_schedule_open(setup->schedule,
                            &(sl_schedule_options){.ranks = setup->stages,
                                                   .micros = setup->chunks,
                                                   .slices = setup->slices},
                            out);
}

/* The most micro-batches that rank 0 holds. */
static double simulate_held(const bench_setup *setup)
{
    double costs[BENCH_MAX_STAGES];
    sl_simulation simulation;
    sl_schedule *table;
    bench_check(open_table(setup, &table));
    for (int stage = 0; stage < BENCH_MAX_STAGES; stage++)
        costs[stage] = 1;
    bench_check(sl_schedule_recompute(table, setup->recompute));
    bench_check(sl_schedule_simulate(
        table,
        &(sl_cost_model){.forward = costs, .backward_input = costs, .backward_weight = costs},
        &simulation));
    double held = (double)simulation.peak_held[0] / setup->slices;
    sl_simulation_clear(&simulation);
    sl_schedule_destroy(&table);
    return held;
}

static void report_slices(contender *c, int steps)
{
    const bench_setup *setup = &c->setup;
    sl_memory_stats memory;
    double seconds = bench_median(c->seconds, steps), excess = bench_median(c->excess, steps);
    double measured = bench_median(c->bubble_measured, steps),
           bubble = bench_median(c->bubble_simulated, steps);
    sl_device_memory(sl_pipe_device(bench_trainer_pipe(c->trainer), 0), &memory);
    printf(
        "| %s | %d | %d | %.0f ms (%.0f to %.0f) | %.3f | %.3f | %.2f | %.1f MiB | %.3f (%.3f to "
        "%.3f) |\n",
        setup->schedule, setup->stages, setup->slices, 1e3 * seconds, 1e3 * c->seconds[0],
        1e3 * c->seconds[steps - 1], measured, bubble, simulate_held(setup),
        (double)memory.peak_bytes[SL_MEMORY_ACTIVATIONS] / 0x1p20, excess, c->excess[0],
        c->excess[steps - 1]);
}

static int add_slices(contender *list, bench_setup setup, const char *wanted)
{
    int count = 0, slices = setup.slices;
    sl_schedule *table;
    for (int i = 0; sl_schedule_names[i]; i++) {
        setup.schedule = sl_schedule_names[i];
        setup.slices = slices;
        setup.stages = RANKS;
        if (wanted && strcmp(wanted, setup.schedule) != 0)
            continue;
        if (open_table(&setup, &table) != SL_OK)
            continue;
        sl_schedule_destroy(&table);
        for (; setup.stages <= 2 * RANKS; setup.stages *= 2)
            for (int cut = 0; cut < 2 && count < MOST_CONTENDERS; cut++) {
                setup.devices = setup.stages == RANKS ? "cpu:0,cpu:1" : FOUR_ON_TWO_CORES;
                setup.slices = cut ? slices : 1;
                add_contender(list, &count, &setup);
            }
    }
    if (count == 0) {
        setup.schedule = wanted ? wanted : sl_schedule_names[0];
        bench_check(open_table(&setup, &table)); /* says why it is refused */
        bench_check(sl_error(SL_ERR_NOT_FOUND, "there is no schedule \"%s\"", setup.schedule));
    }
    return count;
}

static void compare_slices(contender *list, int count, int steps)
{
    for (int step = 0; step < steps; step++)
        for (int i = 0; i < count; i++) {
            run_step(&list[i], step);
            list[i].seconds[step] = bench_trainer_train_seconds(list[i].trainer);
        }
    printf("runs: %d steps of each in turn\n\n", steps);
    bench_heading("| schedule | ranks | slices | forward and backward | idle | idle, simulated | "
                  "micro-batches held | activations | measured / simulated |");
    for (int i = 0; i < count; i++)
        report_slices(&list[i], steps);
}

/* ---- Schedules ---------------------------------------------------------------------------- */

static int add_schedules(contender *list, bench_setup setup, const char *wanted)
{
    int count = 0;
    setup.stages = setup.virtual_stages = 1;
    setup.devices = "cpu:0";
    setup.schedule = "1f1b";
    add_contender(list, &count, &setup);
    setup.devices = "cpu:0,cpu:1";
    for (int i = 0; sl_schedule_names[i] && count < MOST_CONTENDERS; i++) {
        if (wanted && strcmp(wanted, sl_schedule_names[i]) != 0)
            continue;
        setup.schedule = sl_schedule_names[i];
        setup.virtual_stages = sl_schedule_virtual_stages(setup.schedule);
        setup.stages = RANKS * setup.virtual_stages;
        add_contender(list, &count, &setup);
    }
    if (count == 1)
        bench_check(sl_error(SL_ERR_NOT_FOUND, "there is no schedule \"%s\"", wanted));
    return count;
}

int main(int argc, char **argv)
{
    static contender list[MOST_CONTENDERS];
    int count, steps = 15;
    bench_setup setup = bench_setup_lm(512, 8, 8);
    setup.model.ntokens = 1000;
    setup.chunks = 4;
    setup.schedule = NULL;
    bench_setup_parse(argc, argv, &setup, &steps);
    if (setup.slices > 0) {
        count = add_slices(list, setup, setup.schedule);
        compare_slices(list, count, steps);
    } else {
        count = add_schedules(list, setup, setup.schedule);
        compare(list, count, steps);
    }
    for (int i = 0; i < count; i++)
        bench_trainer_destroy(list[i].trainer);
    return 0;
}
