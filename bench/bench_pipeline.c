/* Two stages on two cores against one stage on the same two cores, in turn, against what the
 * schedule's bubble allows.
 *
 *   bench_pipeline [EMSIZE NLAYERS NHEAD CHUNKS [STEPS [MODULES]]]      default: 1024 4 16 4 10 5
 *
 * MODULES are those of the first stage, of NLAYERS + 2; at emsize 1024 the decoder is about as
 * heavy as four layers and the rest. 0: the tutorials' rule.
 *
 * What the bubble allows comes from the schedule's table, played with the mean time of each stage's
 * actions in the real run: it holds the idle time of filling and draining, and of stages that are
 * not equally heavy. The figure: (one stage's time / two stages' time) / (1 - bubble). */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_STEPS = 64, STAGES = 2 };

/* Mean seconds of each kind of action in the last step. */
typedef struct stage_costs {
    double of[SL_ACTION_BACKWARD_WEIGHT + 1][STAGES];
} stage_costs;

static stage_costs traced_costs(const sl_pipe *pipe)
{
    stage_costs costs = {{{0}}};
    int counts[SL_ACTION_BACKWARD_WEIGHT + 1][STAGES] = {{0}};
    const sl_timeline_entry *entries;
    int count = sl_pipe_trace(pipe, &entries);
    for (int i = 0; i < count; i++) {
        sl_action action = entries[i].action;
        costs.of[action.kind][action.stage] += entries[i].end - entries[i].start;
        counts[action.kind][action.stage]++;
    }
    for (int kind = 0; kind <= SL_ACTION_BACKWARD_WEIGHT; kind++)
        for (int s = 0; s < STAGES; s++)
            costs.of[kind][s] /= counts[kind][s] ? counts[kind][s] : 1;
    return costs;
}

static double bubble_of(const bench_setup *setup, const stage_costs *costs)
{
    sl_schedule *schedule;
    sl_simulation simulation;
    sl_schedule_options options = {.ranks = setup->stages,
                                   .micros = sl_micro_batches(setup->batch, setup->chunks, NULL)};
    bench_check(sl_schedule_write(setup->schedule, &options, &schedule));
    bench_check(sl_schedule_recompute(schedule, setup->recompute));
    bench_check(
        sl_schedule_simulate(schedule,
                             &(sl_cost_model){.forward = costs->of[SL_ACTION_FORWARD],
                                              .backward_input = costs->of[SL_ACTION_BACKWARD_INPUT],
                                              .backward_weight =
                                                  costs->of[SL_ACTION_BACKWARD_WEIGHT],
                                              .backward = costs->of[SL_ACTION_BACKWARD]},
                             &simulation));
    double bubble = simulation.bubble;
    sl_simulation_clear(&simulation);
    sl_schedule_destroy(&schedule);
    return bubble;
}

static void compare(const bench_setup *one, const bench_setup *two, int steps)
{
    bench_trainer *single = bench_trainer_create(one), *piped = bench_trainer_create(two);
    double single_seconds[MAX_STEPS], piped_seconds[MAX_STEPS], bubbles[MAX_STEPS];
    bench_trainer_step(single);
    bench_trainer_step(piped);
    for (int i = 0; i < steps; i++) {
        single_seconds[i] = bench_trainer_step(single);
        piped_seconds[i] = bench_trainer_step(piped);
        stage_costs costs = traced_costs(bench_trainer_pipe(piped));
        bubbles[i] = bubble_of(two, &costs);
    }
    double alone = bench_median(single_seconds, steps), both = bench_median(piped_seconds, steps);
    double bubble = bench_median(bubbles, steps);
    printf("emsize %d, %d layers, %d chunks, %s: one stage %.1f ms, two stages %.1f ms, bubble "
           "%.3f (an even one would be %.3f): ratio %.3f\n",
           (int)two->model.emsize, (int)two->model.nlayers, two->chunks, two->schedule, 1e3 * alone,
           1e3 * both, bubble, (STAGES - 1.0) / (two->chunks + STAGES - 1.0),
           alone / both / (1 - bubble));
    printf("{\"bench\":\"pipeline\",\"emsize\":%d,\"nlayers\":%d,\"chunks\":%d,\"schedule\":\"%s\","
           "\"one_stage_ms\":%.2f,\"two_stages_ms\":%.2f,\"bubble\":%.4f,\"ratio\":%.4f}\n",
           (int)two->model.emsize, (int)two->model.nlayers, two->chunks, two->schedule, 1e3 * alone,
           1e3 * both, bubble, alone / both / (1 - bubble));
    fflush(stdout);
    bench_trainer_destroy(single);
    bench_trainer_destroy(piped);
}

int main(int argc, char **argv)
{
    long emsize = argc > 4 ? strtol(argv[1], NULL, 10) : 1024;
    long nlayers = argc > 4 ? strtol(argv[2], NULL, 10) : 4;
    long nhead = argc > 4 ? strtol(argv[3], NULL, 10) : 16;
    long chunks = argc > 4 ? strtol(argv[4], NULL, 10) : 4;
    long steps = argc > 5 ? strtol(argv[5], NULL, 10) : 10;
    long modules = argc > 6 ? strtol(argv[6], NULL, 10) : argc > 1 ? 0 : 5;
    if ((argc > 1 && argc < 5) || steps < 1 || steps > MAX_STEPS || chunks < 1 || modules < 0 ||
        modules > nlayers + 1) {
        fprintf(stderr, "usage: bench_pipeline [EMSIZE NLAYERS NHEAD CHUNKS [STEPS [MODULES]]]\n");
        return 2;
    }
    bench_setup one = bench_setup_lm(emsize, nlayers, nhead);
    one.chunks = (int)chunks;
    bench_setup two = one;
    two.devices = "cpu:0,cpu:1";
    two.stages = STAGES;
    const int balance[STAGES] = {(int)modules, (int)(nlayers + 2 - modules)};
    two.balance = modules > 0 ? balance : NULL;
    const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    for (int i = 0; i < 3; i++) {
        two.schedule = schedules[i];
        compare(&one, &two, (int)steps);
    }
    return 0;
}
