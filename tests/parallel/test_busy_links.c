/* Tensors that wait for a link. */
#include "parallel/schedule/table.h"
#include "support/check.h"

#include <stdlib.h>

enum { RANKS = 3, MOST_STAGES = 2 * RANKS, MICROS = 6 };

/* ---- By hand ------------------------------------------------------------------------------ */

/* Forwards end at 1, 2, 3, and their tensors leave at 1, 3, 5. They arrive at 3, 5, 7, so that the
 * last one ends at 8. Gradients end at 9, 10, 11, leave at 9, 11, 13 and arrive at 11, 13, 15. */
static void tensors_leave_one_after_the_other(void **state)
{
    static const double one[] = {1, 1}, none[] = {0, 0}, link[] = {2};
    const sl_schedule_options options = {.ranks = 2, .micros = 3};
    SCOPED(sl_schedule) *table = NULL;
    sl_cost_model costs = {.forward = one,
                           .backward_input = one,
                           .backward_weight = none,
                           .links = link};
    sl_simulation simulation;
    check_ok(sl_schedule_write("gpipe", &options, &table));
    check_ok(sl_schedule_simulate(table, &costs, &simulation));
    assert_float_equal(simulation.makespan, 12, 0);
    sl_simulation_clear(&simulation);
    costs.busy = link;
    check_ok(sl_schedule_simulate(table, &costs, &simulation));
    assert_float_equal(simulation.makespan, 16, 0);
    sl_simulation_clear(&simulation);
    costs.busy = (const double[]){-1};
    check_error(sl_schedule_simulate(table, &costs, &simulation), SL_ERR_INVALID,
                "every cost must be a number of 0 or more");
}

/* ---- Of every schedule ---------------------------------------------------------------------- */

typedef struct tensor {
    int source, target; /* ranks */
    double end, busy;   /* of the action that has made it; what it occupies the link for */
    double least_start; /* of the one that needs it, without the tensors before it */
    double start;
} tensor;

static const sl_timeline_entry *find_entry(const sl_simulation *simulation, int stage, int micro,
                                           bool is_back)
{
    for (int i = 0; i < simulation->entry_count; i++) {
        sl_action action = simulation->entries[i].action;
        bool is_wanted =
            is_back ? sli_action_is_backward(action.kind) : action.kind == SL_ACTION_FORWARD;
        if (is_wanted && action.stage == stage && action.micro == micro)
            return &simulation->entries[i];
    }
    fail_msg("no action of stage %d, micro-batch %d", stage, micro);
    return NULL;
}

static int compare_ends(const void *a, const void *b)
{
    double x = ((const tensor *)a)->end, y = ((const tensor *)b)->end;
    return (x > y) - (x < y);
}

static int list_tensors(const sl_schedule *table, const sl_simulation *simulation,
                        const double *link, const double *busy, tensor *tensors)
{
    const int *placement = sl_schedule_placement(table);
    int count = 0;
    for (int s = 0; s + 1 < sl_schedule_stages(table); s++)
        for (int micro = 0; micro < MICROS && placement[s] != placement[s + 1]; micro++)
            for (int back = 0; back < 2; back++) {
                const sl_timeline_entry *made = find_entry(simulation, s + back, micro, back),
                                        *needs = find_entry(simulation, s + !back, micro, back);
                tensors[count++] =
                    (tensor){placement[s + back], placement[s + !back], made->end, busy[s],
                             made->end + link[s], needs->start};
            }
    qsort(tensors, (size_t)count, sizeof *tensors, compare_ends);
    return count;
}

/* Between each two ranks each tensor leaves when its action has ended and the one before it has
 * left the link. */
static void check_tensors(const tensor *tensors, int count)
{
    double taken[RANKS][RANKS] = {{0}};
    for (int i = 0; i < count; i++) {
        const tensor *t = &tensors[i];
        double *until = &taken[t->source][t->target], waits = *until > t->end ? *until - t->end : 0;
        assert_true(t->start >= t->least_start + waits - 1e-9);
        *until = t->end + waits + t->busy;
    }
}

static void links_are_taken_in_turn(void **state)
{
    unsigned draw = test_seed(31);
    for (int n = 0; sl_schedule_names[n]; n++)
        for (int round = 0; round < 4; round++) {
            double forward[MOST_STAGES], input[MOST_STAGES], weight[MOST_STAGES], link[MOST_STAGES],
                busy[MOST_STAGES];
            int own = sl_schedule_virtual_stages(sl_schedule_names[n]);
            const sl_schedule_options options = {.ranks = RANKS,
                                                 .virtual_stages = own == 1 ? 1 : 2,
                                                 .micros = MICROS};
            SCOPED(sl_schedule) *table = NULL;
            sl_simulation without, with;
            tensor tensors[2 * MOST_STAGES * MICROS];
            for (int s = 0; s < MOST_STAGES; s++) {
                forward[s] = test_draw(&draw, 1, 9);
                input[s] = test_draw(&draw, 1, 9);
                weight[s] = test_draw(&draw, 1, 9);
                link[s] = test_draw(&draw, 0, 20);
                busy[s] = test_draw(&draw, 0, (int)link[s]);
            }
            sl_cost_model costs = {.forward = forward,
                                   .backward_input = input,
                                   .backward_weight = weight,
                                   .links = link};
            check_ok(sl_schedule_write(sl_schedule_names[n], &options, &table));
            check_ok(sl_schedule_simulate(table, &costs, &without));
            costs.busy = busy;
            check_ok(sl_schedule_simulate(table, &costs, &with));
            assert_true(with.makespan >= without.makespan);
            check_tensors(tensors, list_tensors(table, &with, link, busy, tensors));
            sl_simulation_clear(&without);
            sl_simulation_clear(&with);
        }
}

int busy_links_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_leave_one_after_the_other),
        cmocka_unit_test(links_are_taken_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
