/* The search's choice, against every layout and every cut. */
#include "layouts.h"

#include <string.h>

enum { MODULES = 5, ROWS = 24, RANKS = 3 };

static const char *const schedules[] = {"gpipe", "1f1b"};
static const int chunks[] = {1, 2, 4};
static const sl_recompute recomputes[] = {SL_RECOMPUTE_NEVER, SL_RECOMPUTE_ALWAYS};

static const sli_search_space whole_space = {.ranks = RANKS,
                                             .least_replicas = 1,
                                             .most_replicas = 3,
                                             .least_pipeline_ranks = 1,
                                             .most_pipeline_ranks = 3,
                                             .schedules = schedules,
                                             .schedule_count = 2,
                                             .chunks = chunks,
                                             .chunk_count = 3,
                                             .recomputes = recomputes,
                                             .recompute_count = 2};

/* A machine whose modules take these seconds for a row, and the best step that was seen. */
typedef struct machine {
    const sl_module *model;
    sl_module_profile row[MODULES];
    sli_layout_speed speed;
    double best; /* of every cut of every candidate; negative: none yet */
    int considered;
} machine;

/* The times of the micro-batches of a layout. */
static void scale_times(const machine *m, const made_layout *made, sl_module_profile *modules,
                        const sl_module_profile **of_ranks, sli_layout_speed *speed)
{
    double rows = (double)made->layout.micro_rows;
    for (int i = 0; i < MODULES; i++)
        modules[i] = (sl_module_profile){rows * m->row[i].forward, rows * m->row[i].backward,
                                         rows * m->row[i].backward_input,
                                         rows * m->row[i].backward_weight, 0};
    for (int rank = 0; rank < LAYOUT_RANKS; rank++)
        of_ranks[rank] = modules;
    *speed = m->speed;
    speed->profiles = of_ranks;
}

static void try_every_cut(machine *m, const made_layout *made, const sli_layout_speed *speed,
                          int *balance, int stage, int left)
{
    int stages = sl_schedule_stages(made->table);
    if (stage + 1 < stages) {
        for (balance[stage] = 1; balance[stage] <= left - (stages - 1 - stage); balance[stage]++)
            try_every_cut(m, made, speed, balance, stage + 1, left - balance[stage]);
        return;
    }
    sl_step_costs costs;
    balance[stage] = left;
    check_ok(sli_layout_time_step(&made->layout, speed, balance, &costs));
    if (m->best < 0 || costs.seconds < m->best)
        m->best = costs.seconds;
}

static sl_status consider(void *context, sli_search *search, const sli_candidate *candidate)
{
    machine *m = context;
    sl_module_profile modules[MODULES];
    const sl_module_profile *of_ranks[LAYOUT_RANKS];
    sli_layout_speed speed;
    made_layout made;
    int balance[SL_MAX_STAGES];
    make_layout(m->model, candidate, ROWS, &made);
    scale_times(m, &made, modules, of_ranks, &speed);
    try_every_cut(m, &made, &speed, balance, 0, MODULES);
    m->considered++;
    sl_status status = sli_search_add(search, candidate, &made.layout, &speed, NULL);
    sl_schedule_destroy(&made.table);
    return status;
}

static void search_machine(machine *m, uint64_t host_bytes, int wanted, sli_found_layout *found,
                           sli_search *out)
{
    m->best = -1;
    m->considered = 0;
    *out = (sli_search){.host_bytes = host_bytes, .wanted = wanted, .found = found};
    check_ok(sli_search_layouts(out, &whole_space, consider, m));
}

static void best_layout_is_that_of_all_cuts_of_all_candidates(void **state)
{
    unsigned draw = test_seed(28);
    SCOPED(sl_module) *model = make_model(MODULES - 2);
    for (int round = 0; round < 20; round++) {
        machine m = {.model = model};
        sli_found_layout found[5];
        sli_search search;
        for (int i = 0; i < MODULES; i++) {
            double forward = test_draw(&draw, 1, 40), input = test_draw(&draw, 1, 40),
                   weight = test_draw(&draw, 1, 40);
            m.row[i] = (sl_module_profile){forward, input + weight, input, weight, 0};
        }
        m.speed.reduce.seconds = test_draw(&draw, 0, 4000);
        search_machine(&m, 0, 5, found, &search);
        assert_float_equal(found[0].costs.seconds, m.best, 1e-9 * m.best);
        assert_int_equal(search.count, 5);
        for (int i = 1; i < search.count; i++) {
            assert_true(found[i].costs.seconds >= found[i - 1].costs.seconds);
            for (int k = 0; k < i; k++)
                assert_false(found[i].candidate.replicas == found[k].candidate.replicas &&
                             found[i].candidate.pipeline_ranks ==
                                 found[k].candidate.pipeline_ranks &&
                             strcmp(found[i].candidate.schedule, found[k].candidate.schedule) == 0);
        }
        /* Without a limit of memory only the fastest recomputation is timed: one rank has three
         * numbers of chunks, a pipeline those of two schedules. 1x1 2x1 3x1, 1x2 1x3. */
        assert_int_equal(m.considered, 3 * 3 + 2 * 6);
    }
}

/* Frozen modules go no further than forward: what is left out for being too slow must be slower
 * than that. */
static void best_layout_of_a_frozen_model_is_that_of_all_cuts(void **state)
{
    unsigned draw = test_seed(29);
    for (int frozen = 1; frozen < MODULES; frozen++) {
        SCOPED(sl_module) *model = make_frozen_model(MODULES - 2, frozen);
        machine m = {.model = model};
        sli_found_layout found[1];
        sli_search search;
        for (int i = 0; i < MODULES; i++) {
            double forward = test_draw(&draw, 10, 14), half = test_draw(&draw, 10, 14);
            m.row[i] = (sl_module_profile){forward, 2 * half, half, half, 0};
        }
        m.speed.reduce.seconds = 1e6; /* a pipeline is best */
        search_machine(&m, 0, 1, found, &search);
        assert_int_equal(search.count, 1);
        assert_float_equal(found[0].costs.seconds, m.best, 1e-9 * m.best);
    }
}

/* Not the same as one that does not fit. */
static void layout_whose_memory_cannot_be_planned_is_an_error(void **state)
{
    static const sli_candidate candidate = {.replicas = 1,
                                            .pipeline_ranks = 2,
                                            .schedule = "gpipe",
                                            .chunks = 4};
    SCOPED(sl_module) *model = make_model(MODULES - 2);
    machine m = {.model = model};
    sl_module_profile modules[MODULES];
    const sl_module_profile *of_ranks[LAYOUT_RANKS];
    sli_layout_speed speed;
    sli_found_layout found[1];
    sli_search search = {.wanted = 1, .found = found};
    made_layout made;
    make_layout(model, &candidate, ROWS, &made);
    scale_times(&m, &made, modules, of_ranks, &speed);
    made.layout.row_tokens = 5001; /* more than the model has positions */
    check_error(sli_search_add(&search, &candidate, &made.layout, &speed, NULL), SL_ERR_INVALID,
                "5001");
    assert_int_equal(search.count, 0);
    made.layout.row_tokens = 16;
    check_ok(sli_search_add(&search, &candidate, &made.layout, &speed, NULL));
    assert_int_equal(search.count, 1);
    sl_schedule_destroy(&made.table);
}

/* Of one shape the fastest is kept, or with compares_checkpoints one with ZeRO and one without. */
static void layouts_that_others_save_are_kept_apart(void **state)
{
    sli_candidate candidate = {.replicas = 2,
                               .pipeline_ranks = 1,
                               .schedule = "gpipe",
                               .chunks = 4};
    SCOPED(sl_module) *model = make_model(MODULES - 2);
    machine m = {.model = model};
    sl_module_profile modules[MODULES];
    const sl_module_profile *of_ranks[LAYOUT_RANKS];
    sli_layout_speed speed;
    for (int i = 0; i < MODULES; i++)
        m.row[i] = (sl_module_profile){1, 2, 1, 1, 0};
    for (int keeps = 0; keeps < 2; keeps++) {
        sli_found_layout found[3];
        sli_search search = {.wanted = 3, .compares_checkpoints = keeps, .found = found};
        for (int i = 0; i < 4; i++) {
            made_layout made;
            candidate.zero = i % 2;
            make_layout(model, &candidate, ROWS, &made);
            scale_times(&m, &made, modules, of_ranks, &speed);
            speed.reduce.seconds = 4 - i; /* later ones are faster */
            check_ok(sli_search_add(&search, &candidate, &made.layout, &speed, NULL));
            sl_schedule_destroy(&made.table);
        }
        assert_int_equal(search.count, 1 + keeps);
        assert_true(found[0].candidate.zero);
        assert_true(!keeps || !found[1].candidate.zero);
    }
}

/* Equal modules: replicas have no bubble, so they win unless their exchange takes longer than a
 * bubble does. */
static void exchange_decides_between_replicas_and_a_pipeline(void **state)
{
    SCOPED(sl_module) *model = make_model(MODULES - 2);
    machine m = {.model = model};
    sli_found_layout found[1];
    sli_search search;
    for (int i = 0; i < MODULES; i++)
        m.row[i] = (sl_module_profile){1, 2, 1, 1, 0};
    search_machine(&m, 0, 1, found, &search);
    assert_int_equal(found[0].candidate.replicas, 3);
    assert_int_equal(found[0].candidate.pipeline_ranks, 1);
    assert_float_equal(found[0].costs.seconds, MODULES * 3 * ROWS / 3.0, 1e-9);
    m.speed.reduce.seconds = 1e6;
    search_machine(&m, 0, 1, found, &search);
    assert_int_equal(found[0].candidate.replicas, 1);
    assert_int_equal(found[0].candidate.pipeline_ranks, 3);
    assert_int_equal(found[0].candidate.chunks, 4);
}

/* Activations that do not fit are recomputed; replicas that do not fit are not found. */
static void what_does_not_fit_is_not_found(void **state)
{
    SCOPED(sl_module) *model = make_model(MODULES - 2);
    machine m = {.model = model};
    sli_found_layout found[5];
    sli_search search;
    for (int i = 0; i < MODULES; i++)
        m.row[i] = (sl_module_profile){1, 2, 1, 1, 0};
    search_machine(&m, 1000, 5, found, &search);
    assert_int_equal(search.count, 0);
    check_error(sli_search_refuse(&search, "at most 3 ranks"), SL_ERR_MEMORY,
                "no layout of at most 3 ranks fits the memory: the smallest has ");
    /* What each shape needs at least is known from the limit by which it is found. */
    search_machine(&m, 0, 5, found, &search);
    int64_t best = found[0].host_bytes;
    sli_found_layout smaller[5];
    search_machine(&m, (uint64_t)best - 1, 5, smaller, &search);
    for (int i = 0; i < search.count; i++)
        assert_true(smaller[i].host_bytes < best);
    assert_true(smaller[0].costs.seconds >= found[0].costs.seconds);
    assert_true(search.smallest_bytes >= best);
}

int search_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(best_layout_is_that_of_all_cuts_of_all_candidates),
        cmocka_unit_test(best_layout_of_a_frozen_model_is_that_of_all_cuts),
        cmocka_unit_test(layout_whose_memory_cannot_be_planned_is_an_error),
        cmocka_unit_test(layouts_that_others_save_are_kept_apart),
        cmocka_unit_test(exchange_decides_between_replicas_and_a_pipeline),
        cmocka_unit_test(what_does_not_fit_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
