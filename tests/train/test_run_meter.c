/* What a run measures of itself. */
#include "sluice/app/plan.h"

#include "support/check.h"

static sl_run_measures measures_of(const sl_run_meter *meter)
{
    sl_run_measures measures;
    check_ok(sl_run_meter_measures(meter, &measures));
    return measures;
}

static void add_device(sl_run_meter *meter, const char *host, int rank, const char *name,
                       double usable)
{
    sl_run_meter_add_device(
        meter, &(sl_run_device){.host = host, .name = name, .rank = rank, .usable = usable});
}

static void steps_are_means_and_memory_is_a_sum(void **state)
{
    sl_run_meter meter = {.one_stage = 0.75, .process_bytes = 7};
    sl_run_meter_add_step(&meter, &(sl_run_step_times){5, 1, 0.5, 0.25});
    sl_run_meter_add_step(&meter, &(sl_run_step_times){8, 2, 1.5, 0.75});
    sl_run_meter_add_device(&meter, &(sl_run_device){"a", "cpu:0", 0, 100, 10, 20, 30, 9e9});
    sl_run_meter_add_device(&meter, &(sl_run_device){"a", "cpu:1", 0, 100, 10, 20, 5, 8e9});
    sl_run_meter_add_device(&meter, /* the peaks were at different times */
                            &(sl_run_device){"a", "cpu:2", 0, 30, 10, 20, 5, 0});
    const sl_run_measures measures = measures_of(&meter);
    assert_float_equal(measures.step_seconds, 5, 1e-12);
    assert_float_equal(measures.exchange_seconds, 1, 1e-12);
    assert_float_equal(measures.update_seconds, 0.5, 1e-12);
    assert_float_equal(measures.one_stage, 0.75, 0);
    assert_int_equal(measures.activation_bytes, 105);
    assert_int_equal(measures.memory_bytes, 8000000000);
    assert_int_equal(measures.process_bytes, 7);
    assert_null(measures.forward);
    assert_null(measures.links);
    assert_false(measures.shares_cores || measures.has_own_memory);
}

/* A rank may have several devices. */
static void processes_are_counted_on_their_hosts(void **state)
{
    sl_run_meter meter = {.processes = 4};
    add_device(&meter, "a", 0, "cpu:0", 0);
    add_device(&meter, "a", 0, "cpu:1", 0);
    add_device(&meter, "b", 1, "cpu:0", 0);
    add_device(&meter, "b", 1, "cpu:1", 0);
    add_device(&meter, "b", 2, "cpu:2", 0);
    add_device(&meter, "b", 2, "cpu:3", 0);
    add_device(&meter, "c", 3, "cpu:0", 0);
    add_device(&meter, "c", 3, "cpu:1", 0);
    const sl_run_measures measures = measures_of(&meter);
    assert_int_equal(measures.processes, 4);
    assert_int_equal(measures.host_processes, 2);
}

/* As mpirun --map-by node starts them. */
static void ranks_of_a_host_may_be_any(void **state)
{
    static const char *const hosts[] = {"a", "b", "a", "c", "b", "b"};
    sl_run_meter meter = {.processes = 6};
    for (int rank = 0; rank < 6; rank++)
        add_device(&meter, hosts[rank], rank, "cpu:0", 0);
    assert_int_equal(measures_of(&meter).host_processes, 3);
}

/* Replicas have ranks of their own. */
static void threads_of_a_process_are_no_processes(void **state)
{
    sl_run_meter meter = {.processes = 1};
    for (int rank = 0; rank < 4; rank++)
        add_device(&meter, "a", rank, "cpu:0", 0);
    assert_int_equal(measures_of(&meter).host_processes, 0);
}

static void more_hosts_than_can_be_told_apart_are_refused(void **state)
{
    sl_run_measures measures;
    char host[16];
    sl_run_meter meter = {.processes = SL_METER_HOSTS + 1};
    for (int rank = 0; rank <= SL_METER_HOSTS; rank++) {
        if (rank == SL_METER_HOSTS)
            assert_int_equal(measures_of(&meter).host_processes, 1);
        snprintf(host, sizeof host, "host%d", rank);
        add_device(&meter, host, rank, "cpu:0", 0);
    }
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_UNSUPPORTED,
                "on more than 1024 hosts");
}

/* Whichever devices and replicas are between. */
static void gpus_are_shared_where_a_process_names_them_again(void **state)
{
    sl_run_measures measures;
    sl_run_meter meter = {.processes = 1};
    for (int i = 0; i < 4; i++) {
        if (i == 2)
            check_ok(sl_run_meter_measures(&meter, &measures));
        add_device(&meter, "a", i / 2, i % 2 ? "cuda:1" : "cuda:0", 1e9);
    }
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_UNSUPPORTED,
                "its devices share GPUs");
    meter = (sl_run_meter){.processes = 2}; /* each of which sees one GPU */
    add_device(&meter, "a", 0, "cuda:0", 1e9);
    add_device(&meter, "a", 1, "cuda:0", 1e9);
    assert_int_equal(measures_of(&meter).host_processes, 2);
    add_device(&meter, "a", 1, "cuda:1", 1e9);
    add_device(&meter, "a", 1, "cuda:0", 1e9);
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_UNSUPPORTED,
                "its devices share GPUs");
}

static void gpus_have_memory_of_their_own(void **state)
{
    sl_run_meter meter = {.processes = 2};
    add_device(&meter, "a", 0, "cuda:0", 80e9);
    add_device(&meter, "b", 1, "cuda:0", 40e9);
    const sl_run_measures measures = measures_of(&meter);
    assert_true(measures.has_own_memory);
    assert_int_equal(measures.memory_bytes, 40000000000);
}

static void measures_that_say_nothing_of_other_layouts_are_refused(void **state)
{
    sl_run_measures measures;
    sl_run_meter meter = {.is_mixed = true};
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_UNSUPPORTED,
                "only some of its pipeline ranks share cores");
    meter = (sl_run_meter){.is_oversubscribed = true};
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_UNSUPPORTED,
                "its devices share cores");
    meter.shares_cores = true; /* all of them, which is known */
    check_ok(sl_run_meter_measures(&meter, &measures));
    meter = (sl_run_meter){.processes = 2};
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_NOT_FOUND,
                "which of its 2 processes are on one host");
    meter = (sl_run_meter){0};
    add_device(&meter, "a", 0, "cuda:0", 0);
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_NOT_FOUND,
                "how much memory cuda:0 has is not known");
    add_device(&meter, "a", 0, "cpu:0", 1e9);
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_UNSUPPORTED,
                "its devices are CPUs and GPUs");
    meter = (sl_run_meter){0};
    add_device(&meter, "a", 0, "cuda:0/1", 1e9);
    check_error(sl_run_meter_measures(&meter, &measures), SL_ERR_UNSUPPORTED,
                "its devices share GPUs");
}

static void stages_are_those_that_were_set_last(void **state)
{
    double forward[2][2] = {{1, 2}, {3, 4}}, backward[2] = {5, 6}, link = 7;
    int all[] = {0, 0, 0}, some[] = {0, 0, 2};
    sl_run_meter meter = {0};
    sl_utilization utilization = {
        .ranks = 3, .stages = 2, .forward = forward[0], .backward = backward, .cores = some};
    sl_run_meter_set_stages(&meter, &utilization);
    assert_true(meter.is_mixed && !meter.shares_cores);
    utilization.cores = all;
    utilization.links = &link;
    utilization.forward = forward[1];
    sl_run_meter_set_stages(&meter, &utilization);
    assert_true(!meter.is_mixed && meter.shares_cores);
    const sl_run_measures measures = measures_of(&meter);
    assert_float_equal(measures.forward[0], 3, 0);
    assert_float_equal(measures.forward[1], 4, 0);
    assert_float_equal(measures.backward[1], 6, 0);
    assert_float_equal(measures.links[0], 7, 0);
    assert_true(measures.shares_cores);
    utilization.cores = NULL;
    sl_run_meter_set_stages(&meter, &utilization);
    assert_true(!meter.is_mixed && !meter.shares_cores);
}

int run_meter_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_means_and_memory_is_a_sum),
        cmocka_unit_test(processes_are_counted_on_their_hosts),
        cmocka_unit_test(ranks_of_a_host_may_be_any),
        cmocka_unit_test(threads_of_a_process_are_no_processes),
        cmocka_unit_test(more_hosts_than_can_be_told_apart_are_refused),
        cmocka_unit_test(gpus_are_shared_where_a_process_names_them_again),
        cmocka_unit_test(gpus_have_memory_of_their_own),
        cmocka_unit_test(measures_that_say_nothing_of_other_layouts_are_refused),
        cmocka_unit_test(stages_are_those_that_were_set_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
