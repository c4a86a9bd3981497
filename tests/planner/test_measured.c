/* The planner beside steps that others have measured: production steps of ByteDance, all-reduces
 * and iterations of vTrain. The figures are in CSV files here, which say where they are from. */
#include "planner/layout.h"
#include "sluice/model.h"

#include "support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Files -------------------------------------------------------------------------------- */

/* Calls `add` with the fields of each line of numbers, and its first word; gives their number. */
static int read_lines(const char *name, int fields,
                      void (*add)(void *context, int row, const char *word, const double *values),
                      void *context)
{
    enum { MOST_FIELDS = 16 };
    char path[1024], line[256];
    const char *source = getenv("SLUICE_SOURCE_DIR");
    double values[MOST_FIELDS] = {0};
    int rows = 0;
    snprintf(path, sizeof path, "%s/tests/planner/%s", source ? source : ".", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (bool has_names = false; fgets(line, sizeof line, file);) {
        char *rest = line, *field;
        if (line[0] == '#' || !has_names) {
            has_names |= line[0] != '#';
            continue;
        }
        char word[32] = "";
        int count = 0;
        while ((field = strsep(&rest, ",\n")) && *field) {
            if (count == 0)
                snprintf(word, sizeof word, "%s", field);
            values[count++] = strtod(field, NULL);
        }
        assert_int_equal(count, fields);
        add(context, rows++, word, values);
    }
    fclose(file);
    return rows;
}

/* ---- Production steps ------------------------------------------------------------------------ */

enum { STEPS = 64, STAGES = 4, MICROS = 4, ACTIONS = 2 * STAGES * MICROS };

/* Milliseconds of one replica's step. */
typedef struct measured_step {
    double forward[STAGES][MICROS], backward[STAGES][MICROS], send[STAGES], span;
} measured_step;

static void add_stage(void *context, int row, const char *word, const double *values)
{
    measured_step *step = &((measured_step *)context)[row / STAGES];
    int stage = (int)values[2];
    assert_int_equal(stage, row % STAGES);
    memcpy(step->forward[stage], values + 3, sizeof step->forward[stage]);
    memcpy(step->backward[stage], values + 3 + MICROS, sizeof step->backward[stage]);
    step->send[stage] = values[3 + 2 * MICROS];
    step->span = values[4 + 2 * MICROS];
}

static measured_step *read_steps(void)
{
    measured_step *steps = calloc(STEPS, sizeof *steps);
    assert_non_null(steps);
    assert_int_equal(read_lines("bytedance_st.csv", 13, add_stage, steps), STEPS * STAGES);
    return steps;
}

static sl_schedule *production_table(void)
{
    sl_schedule *table;
    check_ok(sl_schedule_write("1f1b", &(sl_schedule_options){.ranks = STAGES, .micros = MICROS},
                               &table));
    return table;
}

static double mean_send(const measured_step *step)
{
    double sum = 0;
    for (int s = 0; s < STAGES; s++)
        sum += step->send[s] / STAGES;
    return sum;
}

static double simulate(const sl_schedule *table, const sl_cost_model *costs)
{
    sl_simulation simulation;
    check_ok(sl_schedule_simulate(table, costs, &simulation));
    double makespan = simulation.makespan;
    sl_simulation_clear(&simulation);
    return makespan;
}

/* Each action with its own time, in the table's order. */
static double replay(const sl_schedule *table, const measured_step *step)
{
    static const double unused[STAGES];
    double seconds[ACTIONS];
    int count = 0;
    for (int rank = 0; rank < STAGES; rank++) {
        const sl_action *row;
        int actions = sl_schedule_actions(table, rank, &row);
        for (int i = 0; i < actions; i++)
            seconds[count++] = row[i].kind == SL_ACTION_FORWARD
                                   ? step->forward[row[i].stage][row[i].micro]
                                   : step->backward[row[i].stage][row[i].micro];
    }
    assert_int_equal(count, ACTIONS);
    return simulate(table, &(sl_cost_model){.forward = unused,
                                            .backward_input = unused,
                                            .backward_weight = unused,
                                            .seconds = seconds,
                                            .link = mean_send(step)});
}

static void production_steps_are_replayed(void **state)
{
    measured_step *steps = read_steps();
    SCOPED(sl_schedule) *table = production_table();
    for (int i = 0; i < STEPS; i++)
        assert_true(fabs(replay(table, &steps[i]) / steps[i].span - 1) <= 0.0015);
    free(steps);
}

static void times_of_actions_must_be_numbers(void **state)
{
    static const double unused[STAGES];
    double seconds[ACTIONS] = {[ACTIONS - 1] = -1};
    SCOPED(sl_schedule) *table = production_table();
    sl_simulation simulation;
    check_error(sl_schedule_simulate(table,
                                     &(sl_cost_model){.forward = unused,
                                                      .backward_input = unused,
                                                      .backward_weight = unused,
                                                      .seconds = seconds},
                                     &simulation),
                SL_ERR_INVALID, "every cost must be a number of 0 or more");
}

/* The means of the first half of the steps. */
static void production_steps_are_predicted_from_those_before(void **state)
{
    double forward[STAGES] = {0}, backward[STAGES] = {0}, half[STAGES], link = 0, error = 0;
    measured_step *steps = read_steps();
    SCOPED(sl_schedule) *table = production_table();
    for (int i = 0; i < STEPS / 2; i++) {
        link += mean_send(&steps[i]) / (STEPS / 2);
        for (int s = 0; s < STAGES; s++)
            for (int m = 0; m < MICROS; m++) {
                forward[s] += steps[i].forward[s][m] / MICROS / (STEPS / 2);
                backward[s] += steps[i].backward[s][m] / MICROS / (STEPS / 2);
            }
    }
    for (int s = 0; s < STAGES; s++)
        half[s] = backward[s] / 2;
    double predicted = simulate(table, &(sl_cost_model){.forward = forward,
                                                        .backward_input = half,
                                                        .backward_weight = half,
                                                        .link = link});
    for (int i = STEPS / 2; i < STEPS; i++)
        error += fabs(predicted / steps[i].span - 1) / (STEPS / 2);
    assert_true(error <= 0.02);
    free(steps);
}

/* ---- All-reduces ---------------------------------------------------------------------------- */

enum { MOST_SIZES = 16, GROUPS = 14 };
static const double least_bytes = 16 << 20;

/* Those of one kind of GPU and one number of them. */
typedef struct measured_group {
    char gpu[32];
    double gpus, bytes[MOST_SIZES], ns[MOST_SIZES];
    int count;
} measured_group;

static void add_all_reduce(void *context, int row, const char *gpu, const double *values)
{
    measured_group *group = context;
    while (group->count > 0 && (group->gpus != values[1] || strcmp(group->gpu, gpu) != 0))
        group++;
    snprintf(group->gpu, sizeof group->gpu, "%s", gpu);
    group->gpus = values[1];
    if (values[2] < least_bytes)
        return;
    group->bytes[group->count] = values[2];
    group->ns[group->count++] = values[3];
}

static void links_are_those_that_were_measured(void **state)
{
    measured_group groups[GROUPS + 1] = {0};
    int count = 0;
    double all = 0;
    read_lines("vtrain_allreduce.csv", 4, add_all_reduce, groups);
    for (; groups[count].count > 0; count++) {
        const measured_group *group = &groups[count];
        const sl_link_cost link = sli_link_fit(group->bytes, group->ns, group->count);
        double error = 0;
        for (int i = 0; i < group->count; i++)
            error +=
                fabs((link.seconds + group->bytes[i] * link.seconds_per_byte) / group->ns[i] - 1) /
                group->count;
        assert_int_equal(group->count, 7);
        assert_true(error <= 0.04);
        all += error;
    }
    assert_int_equal(count, GROUPS);
    assert_true(all / GROUPS <= 0.02);
}

static void line_is_fitted_as_it_is(void **state)
{
    static const double bytes[] = {0, 10, 40}, seconds[] = {3, 8, 23}, falling[] = {5, 4, 3},
                        steep[] = {1, 30, 130};
    sl_link_cost link = sli_link_fit(bytes, seconds, 3);
    assert_float_equal(link.seconds, 3, 1e-9);
    assert_float_equal(link.seconds_per_byte, 0.5, 1e-9);
    link = sli_link_fit(bytes, falling, 3);
    assert_float_equal(link.seconds_per_byte, 0, 0);
    assert_true(link.seconds > 3 && link.seconds < 5);
    link = sli_link_fit(bytes + 1, steep + 1, 2);
    assert_float_equal(link.seconds, 0, 0);
    assert_true(link.seconds_per_byte > 3 && link.seconds_per_byte < 3.25);
    link = sli_link_fit(bytes + 1, seconds, 1);
    assert_float_equal(link.seconds, 3, 1e-9);
    assert_float_equal(link.seconds_per_byte, 0, 0);
}

/* ---- Iterations on many nodes -----------------------------------------------------------------
 */

enum { ITERATIONS = 109, FOLDS = 5, VOCABULARY = 51200 };

/* The fitted constants of the cost model. A layer takes its operations at a peak rate, of which
 * narrow products have less; the exchange and the update are the planner's; the step has a constant
 * part. The last two are the test's own, as the planner has no tensor parallelism: each layer's
 * exchange, and that of a group across nodes by its size. */
enum { RATE, NARROW, EXCHANGE, UPDATE, STEP, TENSOR, TENSOR_FAR, CONSTANTS };

typedef struct iteration {
    double terms[CONSTANTS]; /* of the step, each constant being 1; divided by the measured time */
} iteration;

typedef struct machine_size {
    double batch, micro_batch, width, layers, tokens, tensor, data, pipeline, ms;
} machine_size;

/* The planner's step where a layer takes a third of a second forward, and two backward, each byte
 * is exchanged in one, and updated in one. */
static sl_step_costs unit_step(const machine_size *size)
{
    const sl_model_options options = {.ntokens = VOCABULARY,
                                      .emsize = (int64_t)size->width,
                                      .nhid = 4 * (int64_t)size->width,
                                      .nhead = 16,
                                      .nlayers = (int64_t)size->layers,
                                      .context = (int64_t)size->tokens};
    int ranks = (int)size->pipeline, modules = (int)size->layers + 2,
        each = (int)size->layers / ranks;
    int balance[SL_MAX_STAGES];
    const sl_module_profile *of_ranks[SL_MAX_STAGES];
    sl_module_profile *times = calloc((size_t)modules, sizeof *times);
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_schedule) *table = NULL;
    sl_step_costs costs;
    assert_non_null(times);
    check_ok(sl_transformer_lm_create(&options, &model));
    assert_int_equal(sl_module_child_count(model), modules);
    for (int i = 1; i + 1 < modules; i++)
        times[i] = (sl_module_profile){1.0 / 3, 2.0 / 3, 1.0 / 3, 1.0 / 3, 0};
    for (int rank = 0; rank < ranks; rank++) {
        of_ranks[rank] = times;
        balance[rank] = each + (rank == 0) + (rank + 1 == ranks);
    }
    check_ok(sl_schedule_write("1f1b",
                               &(sl_schedule_options){.ranks = ranks,
                                                      .micros = (int)(size->batch / size->data /
                                                                      size->micro_batch)},
                               &table));
    const sli_layout layout = {.model = model,
                               .table = table,
                               .replicas = (int)size->data,
                               .shards = (int)size->data,
                               .accumulate = 1};
    const sli_layout_speed speed = {.profiles = of_ranks,
                                    .reduce = {0, 1},
                                    .update = {.optimizer = 1}};
    check_ok(sli_layout_time_step(&layout, &speed, balance, &costs));
    free(times);
    return costs;
}

static void add_iteration(void *context, int row, const char *word, const double *values)
{
    const machine_size size = {values[0], values[1], values[2], values[3], values[4],
                               values[5], values[6], values[7], values[8]};
    double *terms = ((iteration *)context)[row].terms;
    assert_true(row < ITERATIONS);
    const sl_step_costs unit = unit_step(&size);
    double rows = size.micro_batch * size.tokens;
    double layer = 72 * rows * size.width * size.width * (1 + size.tokens / (6 * size.width)) /
                   size.tensor / 1e12;
    terms[RATE] = unit.pipeline * layer;
    terms[NARROW] = unit.pipeline * layer * 1e3 * size.tensor / size.width;
    terms[EXCHANGE] = unit.exchange / size.tensor / 1e9;
    terms[UPDATE] = unit.update / size.tensor / 1e9;
    terms[STEP] = 1;
    terms[TENSOR] = size.tensor > 1 ? unit.pipeline : 0;
    terms[TENSOR_FAR] = size.tensor > 8 ? unit.pipeline * rows * size.width / 1e9 : 0;
    for (int k = 0; k < CONSTANTS; k++)
        terms[k] /= size.ms;
}

/* The constants of 0 or more whose relative errors have the least squares, of the iterations of the
 * other folds; one after the other is made the best, until none changes. */
static void fit(const iteration *iterations, int fold, double constants[CONSTANTS])
{
    double products[CONSTANTS][CONSTANTS] = {{0}}, sums[CONSTANTS] = {0};
    for (int i = 0; i < ITERATIONS; i++)
        for (int a = 0; a < CONSTANTS && i % FOLDS != fold; a++) {
            sums[a] += iterations[i].terms[a];
            for (int b = 0; b < CONSTANTS; b++)
                products[a][b] += iterations[i].terms[a] * iterations[i].terms[b];
        }
    memset(constants, 0, CONSTANTS * sizeof *constants);
    for (int round = 0; round < 100000; round++)
        for (int a = 0; a < CONSTANTS; a++) {
            double rest = sums[a];
            for (int b = 0; b < CONSTANTS; b++)
                rest -= b == a ? 0 : products[a][b] * constants[b];
            constants[a] = rest > 0 ? rest / products[a][a] : 0;
        }
}

static void iterations_on_many_nodes_are_predicted(void **state)
{
    static iteration iterations[ITERATIONS];
    double error = 0;
    assert_int_equal(read_lines("vtrain_multi_node.csv", 9, add_iteration, iterations), ITERATIONS);
    for (int fold = 0; fold < FOLDS; fold++) {
        double constants[CONSTANTS];
        fit(iterations, fold, constants);
        for (int i = fold; i < ITERATIONS; i += FOLDS) {
            double predicted = 0;
            for (int k = 0; k < CONSTANTS; k++)
                predicted += constants[k] * iterations[i].terms[k];
            error += fabs(predicted - 1) / ITERATIONS;
        }
    }
    assert_true(error <= 0.08);
}

int measured_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(production_steps_are_replayed),
        cmocka_unit_test(times_of_actions_must_be_numbers),
        cmocka_unit_test(production_steps_are_predicted_from_those_before),
        cmocka_unit_test(links_are_those_that_were_measured),
        cmocka_unit_test(line_is_fitted_as_it_is),
        cmocka_unit_test(iterations_on_many_nodes_are_predicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
