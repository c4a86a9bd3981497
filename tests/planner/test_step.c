#include "layouts.h"

#include "nn/module.h"

#include <math.h>

/* The profiles of all ranks are these. */
static void give_to_ranks(const sl_module_profile *modules, const sl_module_profile **out)
{
    for (int rank = 0; rank < LAYOUT_RANKS; rank++)
        out[rank] = modules;
}

static double bytes_of(const sl_module *model, int first, int count)
{
    int64_t elements = 0;
    for (int i = first; i < first + count; i++)
        elements += sl_module_parameter_elements(sl_module_child(model, i));
    return 4 * (double)elements;
}

/* Two stages of equal modules: GPipe's rows take M + 1 forwards and backwards, of which M are
 * work. The exchange and the update are those of the stage with the most parameters; the
 * embedding's table is in the first. */
static void step_is_the_table_the_exchange_and_the_update(void **state)
{
    enum { MODULES = 6, MICROS = 4, REPLICAS = 2 };
    static const int balance[] = {3, 3};
    sl_module_profile modules[MODULES];
    const sl_module_profile *of_ranks[LAYOUT_RANKS];
    SCOPED(sl_module) *model = make_model(MODULES - 2);
    const sli_candidate candidate = {.replicas = REPLICAS,
                                     .pipeline_ranks = 2,
                                     .schedule = "gpipe",
                                     .chunks = MICROS,
                                     .recompute = SL_RECOMPUTE_NEVER};
    made_layout made;
    sl_step_costs costs;
    for (int i = 0; i < MODULES; i++)
        modules[i] = (sl_module_profile){1, 2, 1, 1, 0};
    give_to_ranks(modules, of_ranks);
    const sli_layout_speed speed = {.profiles = of_ranks,
                                    .reduce = {0.5, 1e-4},
                                    .gather = {0.25, 2e-4},
                                    .update = {.optimizer = 1e-3,
                                               .undivided = 5e-4,
                                               .table_zero = 1e-2}};
    make_layout(model, &candidate, 16, &made);
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    double first = bytes_of(model, 0, 3), last = bytes_of(model, 3, 3),
           most = first > last ? first : last, zeros = 1e-2 * bytes_of(model, 0, 1);
    assert_float_equal(costs.pipeline, (MICROS + 1) * 9, 1e-9);
    assert_float_equal(costs.bubble, 1.0 / (MICROS + 1), 1e-9);
    assert_float_equal(costs.exchange, 0.5 + 1e-4 * most, 1e-9);
    assert_float_equal(costs.update, fmax(15e-4 * first + zeros, 15e-4 * last), 1e-9);
    assert_float_equal(costs.seconds, costs.pipeline + costs.exchange + costs.update, 1e-9);

    made.layout.zero = true;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.exchange, 0.75 + 3e-4 * most, 1e-9);
    assert_float_equal(costs.update, fmax(1e-3 * first + zeros, 1e-3 * last), 1e-9);

    /* On the same cores both stages' are added up. */
    static const int one_set_of_cores[] = {0, 0};
    sli_layout_speed shared = speed;
    shared.cores = one_set_of_cores;
    check_ok(sli_layout_time_step(&made.layout, &shared, balance, &costs));
    assert_float_equal(costs.update, 1e-3 * (first + last) + zeros, 1e-9);
    assert_float_equal(costs.pipeline, 2 * MICROS * 9, 1e-9);

    /* One replica trains all shards in turn, each in two accumulation steps, and exchanges nothing.
     */
    made.layout.zero = false;
    made.layout.replicas = 1;
    made.layout.shards = 3;
    made.layout.accumulate = 2;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.pipeline, 3 * 2 * (MICROS + 1) * 9, 1e-9);
    assert_float_equal(costs.exchange, 0, 0);
    assert_float_equal(costs.update, fmax(15e-4 * first + 3 * zeros, 15e-4 * last), 1e-9);
    sl_schedule_destroy(&made.table);
}

/* A tied head's gradients are added to the embedding's; one in another process gets the values, and
 * sends the gradients. */
static void ties_take_their_time(void **state)
{
    enum { MODULES = 4, TOKENS = 50, WIDTH = 16 };
    static const int balance[] = {2, 2};
    static const sl_link_cost links[] = {{0, 0}, {0.5, 1e-3}, {0.5, 1e-3}, {0, 0}};
    const sl_model_options options = {.ntokens = TOKENS,
                                      .emsize = WIDTH,
                                      .nhid = WIDTH,
                                      .nhead = 2,
                                      .nlayers = MODULES - 2,
                                      .context = 16,
                                      .tie = true};
    const sli_candidate candidate = {.replicas = 1,
                                     .pipeline_ranks = 2,
                                     .schedule = "gpipe",
                                     .chunks = 2};
    sl_module_profile modules[MODULES] = {{1, 2, 1, 1, 0}};
    const sl_module_profile *of_ranks[LAYOUT_RANKS];
    SCOPED(sl_module) *model = NULL;
    made_layout made;
    sl_step_costs costs;
    give_to_ranks(modules, of_ranks);
    const sli_layout_speed speed = {.profiles = of_ranks,
                                    .links = links,
                                    .update = {.optimizer = 1, .tie_sum = 2e-3}};
    const double bytes = 4 * TOKENS * WIDTH;
    check_ok(sl_transformer_lm_create(&options, &model));
    make_layout(model, &candidate, 16, &made);
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.exchange, 2e-3 * bytes, 1e-9);
    made.layout.ranks = 2;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.exchange, 2e-3 * bytes + 2 * (0.5 + 1e-3 * bytes), 1e-9);
    made.layout.accumulate = 3;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.exchange, 3 * 2e-3 * bytes + 4 * (0.5 + 1e-3 * bytes), 1e-9);
    made.layout.accumulate = 1;
    made.layout.head_blocks = 8; /* of two micro-batches of a row of 16 words */
    made.layout.micro_rows = 1;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.exchange, 2e-3 * bytes / 2 + 2 * (0.5 + 1e-3 * 4 * 32 * WIDTH), 1e-9);
    int64_t elements[MODULES];
    for (int i = 0; i < MODULES; i++)
        elements[i] = sli_module_elements(sl_module_child(model, i), SL_PARAMETER_TRAINED);
    double head = (double)(elements[0] + elements[MODULES - 1]); /* of which each rank has half */
    assert_float_equal(costs.update, 4 * ((double)elements[1] + head / 2), 1e-9);
    sl_schedule_destroy(&made.table);
}

/* Of one micro-batch nothing overlaps: what is recomputed takes as long on shared cores, where all
 * ranks' work is the step's, and on cores of their own, where it is the mean of two. */
static void shared_cores_recompute_as_long(void **state)
{
    enum { MODULES = 6 };
    static const int balance[] = {3, 3}, one_set_of_cores[] = {0, 0};
    sl_module_profile modules[MODULES];
    const sl_module_profile *of_ranks[LAYOUT_RANKS];
    SCOPED(sl_module) *model = make_model(MODULES - 2);
    const sli_candidate candidate = {.replicas = 1,
                                     .pipeline_ranks = 2,
                                     .schedule = "gpipe",
                                     .chunks = 1,
                                     .recompute = SL_RECOMPUTE_ALWAYS};
    made_layout made;
    sl_step_costs own, shared;
    for (int i = 0; i < MODULES; i++)
        modules[i] = (sl_module_profile){1, 2, 1, 1, 0};
    give_to_ranks(modules, of_ranks);
    sli_layout_speed speed = {.profiles = of_ranks};
    make_layout(model, &candidate, 16, &made);
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &own));
    speed.cores = one_set_of_cores;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &shared));
    assert_true(own.recompute > 0);
    assert_float_equal(shared.recompute * shared.pipeline, 2 * own.recompute * own.pipeline, 1e-9);
    sl_schedule_destroy(&made.table);
}

/* A model of 27 MiB of gradients has a bucket of 1 MiB, one of 25 and one more. While the only
 * backward runs, from 3 to 9, they are ready at 5, 7 and 9. Of a second each the last one alone is
 * late; of three each they are sent from 5 to 14. */
static void each_bucket_has_its_own_exchange(void **state)
{
    static const int balance[] = {3};
    const sl_model_options sizes = {
        .ntokens = 50, .emsize = 1024, .nhid = 1370, .nhead = 2, .nlayers = 1, .context = 16};
    const sl_module_profile modules[3] = {{1, 2, 1, 1, 0}, {1, 2, 1, 1, 0}, {1, 2, 1, 1, 0}};
    const sl_module_profile *of_ranks[LAYOUT_RANKS];
    const sli_candidate candidate = {.replicas = 2,
                                     .pipeline_ranks = 1,
                                     .schedule = "gpipe",
                                     .chunks = 1};
    SCOPED(sl_module) *model = NULL;
    made_layout made;
    sl_step_costs costs;
    check_ok(sl_transformer_lm_create(&sizes, &model));
    double mib = bytes_of(model, 0, 3) / (1 << 20);
    assert_true(mib > 26 && mib < 51);
    give_to_ranks(modules, of_ranks);
    make_layout(model, &candidate, 4, &made);
    sli_layout_speed speed = {.profiles = of_ranks, .reduce = {1, 0}};
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.pipeline, 9, 0);
    assert_float_equal(costs.exchange, 3, 0);
    speed.hides_exchange = true;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.exchange, 1, 1e-12);
    speed.reduce.seconds = 3;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.exchange, 5, 1e-12);
    sl_schedule_destroy(&made.table);
}

/* Two ranks whose stages are done at 18 and at 20 seconds: the last backward is that of the first
 * stage. Its only bucket is sent after it, and that of the other before it ends, or not. */
static void hidden_exchange_is_what_ends_after_the_table(void **state)
{
    static const int balance[] = {2, 2};
    const sl_module_profile modules[4] = {{1, 2, 1, 1, 0},
                                          {1, 2, 1, 1, 0},
                                          {1, 2, 1, 1, 0},
                                          {1, 2, 1, 1, 0}};
    const sl_module_profile *of_ranks[LAYOUT_RANKS];
    const sli_candidate candidate = {.replicas = 2,
                                     .pipeline_ranks = 2,
                                     .schedule = "1f1b",
                                     .chunks = 2};
    SCOPED(sl_module) *model = make_model(2);
    made_layout made;
    sl_step_costs costs, shown;
    give_to_ranks(modules, of_ranks);
    make_layout(model, &candidate, 4, &made);
    sli_layout_speed speed = {.profiles = of_ranks, .reduce = {3, 0}};
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &shown));
    assert_float_equal(shown.exchange, 3, 0);
    speed.hides_exchange = true;
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.pipeline, shown.pipeline, 0);
    assert_float_equal(costs.exchange, 3, 1e-9);
    speed.reduce.seconds = 9; /* the other rank's is late by 5, which is less */
    check_ok(sli_layout_time_step(&made.layout, &speed, balance, &costs));
    assert_float_equal(costs.exchange, 9, 1e-9);
    sl_schedule_destroy(&made.table);
}

int step_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_is_the_table_the_exchange_and_the_update),
        cmocka_unit_test(ties_take_their_time),
        cmocka_unit_test(shared_cores_recompute_as_long),
        cmocka_unit_test(each_bucket_has_its_own_exchange),
        cmocka_unit_test(hidden_exchange_is_what_ends_after_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
