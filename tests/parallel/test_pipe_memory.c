/* What a step keeps in memory, against arithmetic.
 *
 * Two stages of MODULES probes each; a probe saves its input and makes an output of the same size,
 * one unit. The batch is the caller's and costs the pipe nothing. So a micro-batch whose
 * activations are kept costs
 *
 *     stage 0   MODULES - 1 units: the inputs of all modules but the first
 *     stage 1   MODULES + 1 units: the inputs of all modules, and the output for the loss
 *
 * and one that waits for its recomputation costs nothing at stage 0 and one unit, its input, at
 * stage 1. Gradients that stage 1 has sent count at stage 0, one unit each; how many of them are on
 * their way at once depends on who is faster, so peaks have a lower and an upper bound. */
#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/model.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 2, MODULES = 30, MICROS = 4, ROWS = 2 * MICROS, COLUMNS = 50 };
enum { UNIT_BYTES = ROWS / MICROS * COLUMNS * (int)sizeof(float) };

typedef struct rig {
    probe probe; /* all modules' */
    sl_device *device;
    sl_tensor *batch;
    test_pipe pipe;
} rig;

static void build(rig *r, const char *kind, sl_recompute recompute)
{
    sl_module *modules[STAGES * MODULES], *model;
    r->probe = (probe){0};
    for (int i = 0; i < STAGES * MODULES; i++)
        modules[i] = probe_module(&r->probe);
    check_ok(create_sequential(modules, STAGES * MODULES, &model));
    sl_pipe_options options = {.stages = STAGES,
                               .chunks = MICROS,
                               .balance = (int[]){MODULES, MODULES},
                               .schedule = kind,
                               .recompute = recompute};
    r->pipe = open_pipe(model, new_mse_loss(), options, STAGES, 1);
    sl_shape shape = sl_shape_2d(ROWS, COLUMNS);
    check_ok(sl_device_create_cpu(1, &r->device));
    r->batch = random_tensor(r->device, &shape, 4);
}

static void rig_destroy(rig *r)
{
    sl_tensor_destroy(&r->batch);
    sl_device_destroy(&r->device);
    test_pipe_destroy(&r->pipe);
}

/* Highest use of activations at each stage during a training step, in units. */
static void measure(const char *kind, sl_recompute recompute, double *units)
{
    SCOPED(rig) r = {0};
    build(&r, kind, recompute);
    for (uint64_t step = 0; step < 2; step++) {
        for (int stage = 0; stage < STAGES; stage++)
            sl_device_reset_peak(r.pipe.devices[stage]);
        pipe_train(&r.pipe, r.batch, r.batch, step);
        check_pipe_is_empty(&r.pipe);
    }
    for (int stage = 0; stage < STAGES; stage++) {
        sl_memory_stats stats;
        sl_device_memory(r.pipe.devices[stage], &stats);
        units[stage] = (double)stats.peak_bytes[SL_MEMORY_ACTIVATIONS] / UNIT_BYTES;
    }
}

typedef struct bounds {
    double low[STAGES], high[STAGES];
} bounds;

static bounds predict(const char *schedule_name, sl_recompute recompute)
{
    const double ones[STAGES] = {1, 1};
    sl_cost_model costs = {.forward = ones, .backward_input = ones, .backward_weight = ones};
    SCOPED(sl_schedule) *schedule = NULL;
    sl_simulation simulation;
    sl_schedule_options options = {.ranks = STAGES, .micros = MICROS};
    check_ok(sl_schedule_write(schedule_name, &options, &schedule));
    check_ok(sl_schedule_recompute(schedule, recompute));
    check_ok(sl_schedule_simulate(schedule, &costs, &simulation));
    /* Inputs at stage 1 besides those of the micro-batches held: all others in gpipe; in 1f1b
     * stage 0 is one micro-batch ahead, or not yet. */
    int held = simulation.peak_held[1];
    bool gpipe = strcmp(schedule_name, "gpipe") == 0;
    int waiting_low = gpipe ? MICROS - held : 0, waiting_high = gpipe ? MICROS - held : 1;
    bounds b;
    b.low[0] = simulation.peak_held[0] * (MODULES - 1) + 1; /* and the output that is being made */
    b.high[0] = b.low[0] + MICROS;
    b.low[1] = held * (MODULES + 1) + waiting_low;
    b.high[1] = held * (MODULES + 1) + waiting_high + 1; /* and the loss's gradient */
    sl_simulation_clear(&simulation);
    return b;
}

/* Probes hold nothing for a weights' half, so only tables without one are predicted. */
static void peaks_are_what_the_table_predicts(void **state)
{
    skip_if_sanitized();
    for (int kind = 0; kind < 2; kind++)
        for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++) {
            double units[STAGES];
            measure(test_schedules[kind], (sl_recompute)mode, units);
            bounds b = predict(test_schedules[kind], (sl_recompute)mode);
            for (int stage = 0; stage < STAGES; stage++)
                if (!(units[stage] >= b.low[stage] && units[stage] <= b.high[stage]))
                    fail_msg("%s, %s: stage %d holds %g units, predicted %g to %g",
                             test_schedules[kind], sl_recompute_name((sl_recompute)mode), stage,
                             units[stage], b.low[stage], b.high[stage]);
        }
}

/* ---- Passes, in every schedule and mode --------------------------------------------------- */

/* So many layers a stage that what passes hold outweighs what is on its way: linear ones, and a
 * Transformer whose decoder, which the loss takes over, defers the gradients of many logits. */
enum { LINEARS = 240, WIDTH = 16, LAYERS = 96, TOKENS = 8, WORDS = 1500, MOST_STAGES = 4 };

typedef struct held_case {
    const char *name;
    int virtual_stages;
    bool is_transformer;
} held_case;

static sl_module *build_layers(const held_case *of, int stages, int *balance)
{
    static sl_module *modules[MOST_STAGES * LINEARS];
    sl_module *model;
    for (int s = 0; s < stages; s++)
        balance[s] = of->is_transformer ? LAYERS / stages : LINEARS;
    if (of->is_transformer) {
        balance[0]++;
        balance[stages - 1]++;
        const sl_model_options options = {.ntokens = WORDS,
                                          .emsize = WIDTH,
                                          .nhid = 3 * WIDTH,
                                          .nlayers = LAYERS,
                                          .nhead = 2,
                                          .dropout = 0.1f};
        check_ok(sl_transformer_lm_create(&options, &model));
        return model;
    }
    for (int i = 0; i < stages * LINEARS; i++)
        check_ok(sl_linear_create(WIDTH, WIDTH, false, &modules[i]));
    check_ok(create_sequential(modules, stages * LINEARS, &model));
    return model;
}

static test_pipe open_layers(const held_case *of, sl_recompute recompute)
{
    int stages = STAGES * of->virtual_stages, balance[MOST_STAGES];
    sl_module *model = build_layers(of, stages, balance);
    sl_loss *loss;
    check_ok(of->is_transformer ? sl_cross_entropy_create(&loss) : sl_mse_loss_create(&loss));
    sl_pipe_options options = {.stages = stages,
                               .virtual_stages = of->virtual_stages,
                               .chunks = MICROS,
                               .balance = balance,
                               .schedule = of->name,
                               .recompute = recompute};
    return open_pipe(model, loss, options, STAGES, 1);
}

typedef struct held_bytes {
    double saved[MOST_STAGES], deferred[MOST_STAGES];
} held_bytes;

/* What modules say that they save and defer for one micro-batch; the last stage also keeps its
 * output, the input of the module that the loss takes over. */
static held_bytes add_up_bytes(const held_case *of, const test_pipe *piped)
{
    held_bytes sum = {{0}, {0}};
    sl_shape shape = sl_shape_2d(ROWS / MICROS, of->is_transformer ? TOKENS : WIDTH);
    for (int s = 0, first, count; s < sl_pipe_stages(piped->pipe); s++) {
        sl_pipe_stage_modules(piped->pipe, s, &first, &count);
        for (int i = first; i < first + count; i++) {
            const sl_module *module = sl_module_child(piped->model, i);
            bool taken = of->is_transformer && i + 1 == sl_module_child_count(piped->model);
            sum.saved[s] += taken ? (double)sl_shape_count(&shape) * (double)sizeof(float)
                                  : (double)sl_module_saved_bytes(module, &shape);
            sum.deferred[s] += (double)sl_module_deferred_bytes(module, &shape);
            check_ok(sl_module_output_shape(module, &shape, &shape));
        }
    }
    return sum;
}

static sl_simulation simulate_held(const held_case *of, sl_recompute recompute,
                                   const held_bytes *bytes)
{
    const double ones[MOST_STAGES] = {1, 1, 1, 1};
    sl_schedule_options options = {.ranks = STAGES,
                                   .virtual_stages = of->virtual_stages,
                                   .micros = MICROS};
    SCOPED(sl_schedule) *schedule = NULL;
    sl_simulation simulation;
    check_ok(sl_schedule_write(of->name, &options, &schedule));
    check_ok(sl_schedule_recompute(schedule, recompute));
    check_ok(sl_schedule_simulate(schedule,
                                  &(sl_cost_model){.forward = ones,
                                                   .backward_input = ones,
                                                   .backward_weight = ones,
                                                   .held_bytes = bytes->saved,
                                                   .weight_held_bytes = bytes->deferred},
                                  &simulation));
    return simulation;
}

static sl_tensor *make_batch(const held_case *of, sl_device *device)
{
    int32_t ids[ROWS * TOKENS];
    sl_shape rows = sl_shape_2d(ROWS, WIDTH), tokens = sl_shape_2d(ROWS, TOKENS);
    for (int i = 0; i < ROWS * TOKENS; i++)
        ids[i] = i * 61 % WORDS;
    return of->is_transformer ? integer_tensor(device, &tokens, ids)
                              : random_tensor(device, &rows, 4);
}

static void check_held(const held_case *of, sl_recompute recompute)
{
    SCOPED(test_pipe) piped = open_layers(of, recompute);
    held_bytes bytes = add_up_bytes(of, &piped);
    sl_simulation expected = simulate_held(of, recompute, &bytes);
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_tensor) *batch = make_batch(of, device);
    for (int rank = 0; rank < STAGES; rank++)
        sl_device_reset_peak(piped.devices[rank]);
    pipe_train(&piped, batch, batch, 0);
    for (int rank = 0; rank < STAGES; rank++) {
        sl_memory_stats stats;
        sl_device_memory(piped.devices[rank], &stats);
        double ratio = (double)stats.peak_bytes[SL_MEMORY_ACTIVATIONS] / expected.peak_bytes[rank];
        if (!(ratio >= 0.95 && ratio <= 1.05))
            fail_msg("%s, %s, %s: rank %d holds %.3f of what the simulator says", of->name,
                     sl_recompute_name(recompute), of->is_transformer ? "transformer" : "linear",
                     rank, ratio);
    }
    sl_simulation_clear(&expected);
}

static void passes_hold_what_the_simulator_says(void **state)
{
    skip_if_sanitized();
    static const held_case cases[] = {{"gpipe", 1, 0},      {"1f1b", 1, 0},  {"interleaved", 2, 0},
                                      {"looped-bfs", 2, 0}, {"zb-h1", 1, 0}, {"zb-v", 2, 0},
                                      {"gpipe", 1, 1},      {"1f1b", 1, 1},  {"interleaved", 2, 1},
                                      {"looped-bfs", 2, 1}, {"zb-h1", 1, 1}, {"zb-v", 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int mode = SL_RECOMPUTE_EXCEPT_LAST; mode <= SL_RECOMPUTE_ALWAYS; mode++)
            check_held(&cases[i], (sl_recompute)mode);
}

static void recomputing_and_1f1b_need_less_than_never_and_gpipe(void **state)
{
    double never[STAGES], except_last[STAGES], always[STAGES], one_each[STAGES];
    measure("gpipe", SL_RECOMPUTE_NEVER, never);
    measure("gpipe", SL_RECOMPUTE_EXCEPT_LAST, except_last);
    measure("gpipe", SL_RECOMPUTE_ALWAYS, always);
    measure("1f1b", SL_RECOMPUTE_NEVER, one_each);
    for (int stage = 0; stage < STAGES; stage++) {
        assert_true(always[stage] < never[stage] / 3);
        assert_true(except_last[stage] < never[stage] / 3);
        assert_true(one_each[stage] < never[stage] / (stage == 0 ? 1.8 : 3.5));
    }
}

static void evaluation_keeps_nothing_but_what_is_on_its_way(void **state)
{
    SCOPED(rig) r = {0};
    build(&r, "gpipe", SL_RECOMPUTE_NEVER);
    double sum;
    int64_t terms;
    check_ok(sl_pipe_evaluate(r.pipe.pipe, &(sl_pipe_batch){.input = r.batch, .targets = r.batch},
                              &sum, &terms));
    check_pipe_is_empty(&r.pipe);
    for (int stage = 0; stage < STAGES; stage++) {
        sl_memory_stats stats;
        sl_device_memory(r.pipe.devices[stage], &stats);
        int most = stage == 0 ? 2 : 2 + MICROS; /* a module's input and output; inputs that wait */
        assert_true(stats.peak_bytes[SL_MEMORY_ACTIVATIONS] <= (uint64_t)(most * UNIT_BYTES));
    }
}

/* A language model whose logits outweigh everything else. */
static void logits_of_a_batch_are_never_held_at_once(void **state)
{
    enum { VOCABULARY = 4000 };
    sl_model_options options = {
        .ntokens = VOCABULARY, .emsize = 8, .nhid = 8, .nlayers = 2, .nhead = 2, .dropout = 0.1f};
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options, &model));
    SCOPED(test_pipe) piped =
        open_pipe(model, new_cross_entropy(),
                  (sl_pipe_options){.stages = 2, .chunks = ROWS, .recompute = SL_RECOMPUTE_NEVER},
                  2, 1);
    sl_device *last = piped.devices[1];
    int32_t values[ROWS * TOKENS];
    for (int i = 0; i < ROWS * TOKENS; i++)
        values[i] = i * 61 % VOCABULARY;
    sl_shape shape = sl_shape_2d(ROWS, TOKENS);
    SCOPED(sl_tensor) *ids = integer_tensor(last, &shape, values);
    sl_memory_stats before, after;
    sl_device_memory(last, &before);
    sl_device_reset_peak(last);
    pipe_train(&piped, ids, ids, 0);
    double sum;
    int64_t terms;
    check_ok(
        sl_pipe_evaluate(piped.pipe, &(sl_pipe_batch){.input = ids, .targets = ids}, &sum, &terms));
    sl_device_memory(last, &after);
    uint64_t logits = (uint64_t)ROWS * TOKENS * VOCABULARY * sizeof(float);
    assert_true(after.peak_total_bytes - before.current_total_bytes < logits / 2);
}

static void logits_of_the_last_position_are_computed_alone(void **state)
{
    enum { VOCABULARY = 3000 };
    sl_module *model;
    check_ok(sl_transformer_lm_create(&(sl_model_options){.ntokens = VOCABULARY,
                                                          .emsize = 8,
                                                          .nhid = 8,
                                                          .nlayers = 1,
                                                          .nhead = 1},
                                      &model));
    SCOPED(test_pipe) piped =
        open_pipe(model, NULL, (sl_pipe_options){.stages = 1, .inference = true}, 1, 1);
    int32_t values[TOKENS] = {0};
    sl_shape shape = sl_shape_2d(1, TOKENS);
    SCOPED(sl_tensor) *ids = integer_tensor(piped.devices[0], &shape, values), *logits = NULL;
    sl_memory_stats before, after;
    sl_device_memory(piped.devices[0], &before);
    sl_device_reset_peak(piped.devices[0]);
    check_ok(sl_pipe_forward(piped.pipe, &(sl_pipe_batch){.input = ids, .last_position = true},
                             &logits));
    sl_device_memory(piped.devices[0], &after);
    assert_true(after.peak_total_bytes - before.current_total_bytes <
                TOKENS * VOCABULARY * sizeof(float) / 2);
}

int pipe_memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peaks_are_what_the_table_predicts),
        cmocka_unit_test(passes_hold_what_the_simulator_says),
        cmocka_unit_test(recomputing_and_1f1b_need_less_than_never_and_gpipe),
        cmocka_unit_test(evaluation_keeps_nothing_but_what_is_on_its_way),
        cmocka_unit_test(logits_of_a_batch_are_never_held_at_once),
        cmocka_unit_test(logits_of_the_last_position_are_computed_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
