#include "nn/module.h"
#include "sluice/model.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MODULES = 16 };

/* Linear layers of one input feature and `features[i]` outputs, without bias: as many parameters. A
 * 0 stands for an activation. Only the shapes of the tree matter here. */
static sl_module *sequential_of(const int *features, int count)
{
    sl_module *modules[MAX_MODULES], *model;
    for (int i = 0; i < count; i++) {
        if (features[i] > 0)
            check_ok(sl_linear_create(1, features[i], true, &modules[i]));
        else
            check_ok(sl_activation_create(SL_ACTIVATION_RELU, &modules[i]));
    }
    check_ok(create_sequential(modules, count, &model));
    return model;
}

static void check_layers(int layers, int stages, const int *expected)
{
    int features[MAX_MODULES] = {0}, balance[MAX_MODULES];
    SCOPED(sl_module) *model = sequential_of(features, layers + 2);
    check_ok(sl_partition(model, stages, SL_PARTITION_LAYERS, balance));
    for (int stage = 0; stage < stages; stage++)
        if (balance[stage] != expected[stage])
            fail_msg("%d layers, %d stages: stage %d has %d modules, not %d", layers, stages, stage,
                     balance[stage], expected[stage]);
}

static void layers_are_cut_as_the_tutorials_cut_them(void **state)
{
    check_layers(12, 2, (int[]){7, 7}); /* encoder and 6 layers, 6 layers and decoder */
    check_layers(12, 1, (int[]){14});
    check_layers(8, 2, (int[]){5, 5});
    check_layers(7, 2, (int[]){5, 4});    /* ceil(7 / 2) = 4 layers, then 3 */
    check_layers(7, 3, (int[]){4, 3, 2}); /* 3, 3, 1 */
    check_layers(2, 2, (int[]){2, 2});
    check_layers(1, 1, (int[]){3});
}

static void layers_are_spread_evenly_where_the_rule_would_leave_a_stage_empty(void **state)
{
    check_layers(5, 4, (int[]){3, 1, 1, 2});    /* ceil would give 2, 2, 1, 0 */
    check_layers(9, 4, (int[]){4, 2, 2, 3});    /* 3, 3, 3, 0 */
    check_layers(6, 5, (int[]){3, 1, 1, 1, 2}); /* 2, 2, 2, 0, 0 */
    check_layers(4, 4, (int[]){2, 1, 1, 2});
}

static void more_stages_than_there_is_to_cut_are_refused(void **state)
{
    int features[] = {3, 0, 3, 0}, balance[8];
    SCOPED(sl_module) *model = sequential_of(features, 4);
    check_error(sl_partition(model, 3, SL_PARTITION_LAYERS, balance), SL_ERR_INVALID,
                "sl_partition: 3 stages need as many layers between the first and the last module, "
                "the model has 2");
    check_error(sl_partition(model, 5, SL_PARTITION_PARAMETERS, balance), SL_ERR_INVALID,
                "sl_partition: 5 stages need as many modules, the model has 4");
    check_error(sl_partition(model, 0, SL_PARTITION_PARAMETERS, balance), SL_ERR_INVALID,
                "sl_partition: stages must be at least 1, got 0");
    check_error(sl_partition(sl_module_child(model, 1), 1, SL_PARTITION_LAYERS, balance),
                SL_ERR_INVALID, "sl_partition: the model must be a sequential, got ReLU");
    sl_module_destroy(&model);

    int one[] = {3};
    model = sequential_of(one, 1);
    check_error(sl_partition(model, 1, SL_PARTITION_LAYERS, balance), SL_ERR_INVALID,
                "the model has 0");
    check_ok(sl_partition(model, 1, SL_PARTITION_PARAMETERS, balance));
    assert_int_equal(balance[0], 1);
}

typedef struct cost {
    long long largest, squares;
} cost;

static cost cost_of(const int *features, const int *balance, int stages)
{
    cost total = {0, 0};
    for (int stage = 0, module = 0; stage < stages; stage++) {
        long long sum = 0;
        for (int i = 0; i < balance[stage]; i++)
            sum += features[module++];
        total.largest = sum > total.largest ? sum : total.largest;
        total.squares += sum * sum;
    }
    return total;
}

/* Tries every balance from `stage` on. */
static void search(const int *features, int left, int *balance, int stage, int stages, cost *best)
{
    if (stage == stages - 1) {
        balance[stage] = left;
        cost this = cost_of(features, balance, stages);
        if (best->largest < 0 || this.largest < best->largest ||
            (this.largest == best->largest && this.squares < best->squares))
            *best = this;
        return;
    }
    for (int count = 1; count <= left - (stages - 1 - stage); count++) {
        balance[stage] = count;
        search(features, left - count, balance, stage + 1, stages, best);
    }
}

static void parameters_are_cut_as_well_as_any_cut_there_is(void **state)
{
    unsigned seed = 20240517;
    printf("seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 300; round++) {
        int count = 1 + rand() % 9, stages = 1 + rand() % count;
        int features[MAX_MODULES], balance[MAX_MODULES], tried[MAX_MODULES];
        for (int i = 0; i < count; i++)
            features[i] = rand() % 3 ? rand() % 40 : 0;
        SCOPED(sl_module) *model = sequential_of(features, count);
        check_ok(sl_partition(model, stages, SL_PARTITION_PARAMETERS, balance));
        int sum = 0;
        for (int stage = 0; stage < stages; stage++) {
            assert_true(balance[stage] >= 1);
            sum += balance[stage];
        }
        assert_int_equal(sum, count);
        cost best = {-1, -1}, reached = cost_of(features, balance, stages);
        search(features, count, tried, 0, stages, &best);
        assert_int_equal(reached.largest, best.largest);
        assert_int_equal(reached.squares, best.squares);
    }
}

int partition_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_cut_as_the_tutorials_cut_them),
        cmocka_unit_test(layers_are_spread_evenly_where_the_rule_would_leave_a_stage_empty),
        cmocka_unit_test(more_stages_than_there_is_to_cut_are_refused),
        cmocka_unit_test(parameters_are_cut_as_well_as_any_cut_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
