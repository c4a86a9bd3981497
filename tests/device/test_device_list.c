#define _GNU_SOURCE /* sched_getaffinity */

#include "device/cores.h"
#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "support/check.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int core_count(void)
{
    sli_cores found;
    check_ok(sli_cores_find(&found));
    int count = found.core_count;
    assert_true(count >= 1 && count <= found.allowed_count);
    sli_cores_clear(&found);
    return count;
}

static int first_core(sl_device *device)
{
    return device->first_core;
}

static void cpu_alone_is_every_core(void **state)
{
    sl_device_list *list;
    bool shared = true;
    check_ok(sl_device_list_create("cpu", &list, &shared));
    assert_int_equal(sl_device_list_count(list), 1);
    sl_device *device = sl_device_list_get(list, 0);
    assert_string_equal(sl_device_name(device), "cpu");
    assert_int_equal(sl_device_thread_count(device), core_count());
    assert_false(shared);
    sl_device_list_destroy(&list);
    assert_null(list);
}

static void numbered_devices_divide_the_cores_evenly(void **state)
{
    int cores = core_count(), total = 0;
    SCOPED(sl_device_list) *list = NULL;
    bool shared;
    check_ok(sl_device_list_create(" cpu:1, cpu:0 ", &list, &shared));
    assert_string_equal(sl_device_name(sl_device_list_get(list, 0)), "cpu:1");
    for (int i = 0; i < 2; i++) {
        int threads = sl_device_thread_count(sl_device_list_get(list, i));
        assert_true(threads >= 1 && threads <= (cores + 1) / 2);
        total += threads;
    }
    assert_int_equal(shared, cores < 2);
    if (cores >= 2) {
        assert_int_equal(total, cores);
        assert_int_not_equal(first_core(sl_device_list_get(list, 0)),
                             first_core(sl_device_list_get(list, 1)));
    }
}

static void more_devices_than_cores_share_them(void **state)
{
    char names[4096] = "cpu:0";
    int count = core_count() + 1;
    for (int i = 1; i < count; i++)
        sprintf(names + strlen(names), ",cpu:%d", i);
    SCOPED(sl_device_list) *list = NULL;
    bool shared = false;
    check_ok(sl_device_list_create(names, &list, &shared));
    assert_true(shared);
    for (int i = 0; i < count; i++)
        assert_int_equal(sl_device_thread_count(sl_device_list_get(list, i)), 1);
    sl_device_list_destroy(&list);
    check_ok(sl_device_list_create(names, &list, NULL));
}

static void a_range_names_cores(void **state)
{
    sli_cores found;
    check_ok(sli_cores_find(&found));
    char names[64];
    snprintf(names, sizeof names, "cpu:%d-%d", found.allowed[0], found.allowed[0]);
    sl_device_list *list;
    check_ok(sl_device_list_create(names, &list, NULL));
    sl_device *device = sl_device_list_get(list, 0);
    assert_string_equal(sl_device_name(device), names);
    assert_int_equal(sl_device_thread_count(device), 1);
    assert_int_equal(first_core(device), found.allowed[0]);
    sl_device_list_destroy(&list);
    sli_cores_clear(&found);
}

static void the_same_cores_may_have_two_devices(void **state)
{
    sli_cores found;
    check_ok(sli_cores_find(&found));
    char names[128];
    int core = found.allowed[0];
    snprintf(names, sizeof names, "cpu:%d-%d,cpu:%d-%d", core, core, core, core);
    sl_device_list *list;
    bool shared = false;
    check_ok(sl_device_list_create(names, &list, &shared));
    assert_true(shared);
    assert_int_equal(sl_device_list_count(list), 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(first_core(sl_device_list_get(list, i)), core);
    sl_device_list_destroy(&list);
    check_ok(sl_device_list_create("cpu,cpu,cpu", &list, &shared));
    assert_true(shared);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sl_device_thread_count(sl_device_list_get(list, i)), found.core_count);
    sl_device_list_destroy(&list);
    sli_cores_clear(&found);
}

/* Creates the devices `names` under a quota of `quota` cores, and fills in their sets of cores. */
static void find_core_sets(sli_device_name *names, int count, int quota, int *sets)
{
    sl_device *devices[4];
    sli_cores found;
    sli_memory_bound memory;
    bool shared = false;
    sli_memory_bound_init(&memory);
    for (int i = 0; i < count; i++)
        assert_true(sli_cpu_kind.parse(&names[i]));
    check_ok(sli_cores_find(&found));
    sli_cores_limit(&found, quota);
    check_ok(sli_cpu_devices_create(
        &(sli_device_request){.names = names, .count = count, .end = count, .memory = &memory},
        &found, devices, &shared));
    for (int i = 0; i < count; i++) {
        sets[i] = devices[i]->core_set;
        assert_true(sets[i] >= 0);
        sl_device_destroy(&devices[i]);
    }
    sli_cores_clear(&found);
}

static void devices_on_the_same_cores_are_known_without_bound_threads(void **state)
{
    int sets[4];
    for (int quota = 1; quota <= INT_MAX / 2; quota += INT_MAX / 2 - 1) {
        find_core_sets((sli_device_name[]){{.text = "cpu"}, {.text = "cpu"}}, 2, quota, sets);
        assert_int_equal(sets[0], sets[1]);
    }
    find_core_sets((sli_device_name[]){{.text = "cpu:1"}, {.text = "cpu:0"}}, 2, 1, sets);
    assert_int_equal(sets[0], sets[1]);
    if (core_count() < 2)
        return;
    find_core_sets((sli_device_name[]){{.text = "cpu:1"}, {.text = "cpu:0"}}, 2, 2, sets);
    assert_int_not_equal(sets[0], sets[1]);
}

static void devices_with_a_common_core_count_as_on_the_same_ones(void **state)
{
    sli_cores found;
    int sets[4];
    check_ok(sli_cores_find(&found));
    int low = found.allowed[0], high = low;
    for (int i = 0; i < found.allowed_count; i++)
        if (found.allowed[i] == low + 1)
            high = low + 1;
    sli_cores_clear(&found);
    if (high == low) {
        print_message("skipped: this process may not use two cores with neighbouring numbers\n");
        skip();
    }
    sli_device_name names[3] = {{.form = 0}};
    snprintf(names[0].text, sizeof names[0].text, "cpu:%d-%d", high, high);
    snprintf(names[1].text, sizeof names[1].text, "cpu:%d-%d", low, low);
    snprintf(names[2].text, sizeof names[2].text, "cpu:%d-%d", low, high);
    find_core_sets(names, 2, INT_MAX, sets);
    assert_int_not_equal(sets[0], sets[1]);
    find_core_sets(names, 3, INT_MAX, sets);
    assert_int_equal(sets[0], sets[2]);
    assert_int_equal(sets[0], sets[1]); /* by way of the third */
}

static void *bind_and_look(void *argument)
{
    sli_device_bind_thread(argument);
    cpu_set_t *set = malloc(sizeof *set);
    sched_getaffinity(0, sizeof *set, set);
    return set;
}

static void binding_a_thread_leaves_it_the_first_core(void **state)
{
    SCOPED(sl_device_list) *list = NULL;
    check_ok(sl_device_list_create("cpu", &list, NULL));
    sl_device *device = sl_device_list_get(list, 0);
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, bind_and_look, device), 0);
    pthread_join(thread, &result);
    FREED cpu_set_t *set = result;
    assert_int_equal(CPU_COUNT(set), 1);
    assert_true(CPU_ISSET((size_t)first_core(device), set));
}

static void expect_error(const char *names, sl_status status, const char *text)
{
    sl_device_list *list = (sl_device_list *)&list;
    bool shared = true;
    assert_int_equal(sl_device_list_create(names, &list, &shared), status);
    assert_null(list);
    assert_false(shared);
    assert_string_equal(sl_error_text(), text);
}

static void unreadable_names_are_refused(void **state)
{
    static const char *const forms[] = {"cpu, cpu:NUMBER or cpu:FIRST-LAST",
                                        "cuda:NUMBER or cuda:NUMBER/NUMBER",
                                        "cpu, cpu:NUMBER or cpu:FIRST-LAST; "
                                        "cuda:NUMBER or cuda:NUMBER/NUMBER"};
    static const struct {
        const char *name;
        int forms;
    } cases[] = {{"gpu:0", 2},     {"cuda", 1},     {"cuda:", 1},     {"cuda:0/", 1},
                 {"cuda:0/1x", 1}, {"cuda:0-1", 1}, {"cpu:", 0},      {"cpu:x", 0},
                 {"cpu:1-", 0},    {"cpu:-1", 0},   {"cpu:3-1", 0},   {"cpux", 2},
                 {"cpu:0 1", 0},   {"cpu:0x1", 0},  {"cpu:1-2-3", 0}, {"cpu:99999999999", 0},
                 {"CPU", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        snprintf(text, sizeof text, "a device is named %s, got \"%s\"", forms[cases[i].forms],
                 cases[i].name);
        expect_error(cases[i].name, SL_ERR_INVALID, text);
    }
    expect_error("", SL_ERR_INVALID, "a name in the list of devices is empty");
    expect_error("cpu:0,,cpu:1", SL_ERR_INVALID, "a name in the list of devices is empty");
}

static void names_that_do_not_go_together_are_refused(void **state)
{
    expect_error("cpu:0,cpu:0", SL_ERR_INVALID, "the device \"cpu:0\" is named twice");
    expect_error("cuda:0/1,cpu,cuda:0/01", SL_ERR_INVALID,
                 "the device \"cuda:0/01\" is named twice");
    expect_error("cpu:0,cpu:00", SL_ERR_INVALID, "the device \"cpu:00\" is named twice");
    expect_error("cpu:0,cpu:2", SL_ERR_INVALID,
                 "cpu:NUMBER divides the cores evenly: of 2 in the list, the last is cpu:1, got "
                 "\"cpu:2\"");
    expect_error("cpu:1", SL_ERR_INVALID,
                 "cpu:NUMBER divides the cores evenly: of 1 in the list, the last is cpu:0, got "
                 "\"cpu:1\"");
    expect_error("cpu:0,cpu:0-0", SL_ERR_INVALID,
                 "the devices \"cpu:0\" and \"cpu:0-0\" do not mix: cpu:NUMBER divides "
                 "the cores evenly, cpu:FIRST-LAST names them");
}

static void cores_that_the_machine_lacks_are_not_found(void **state)
{
    sl_device_list *list;
    assert_int_equal(sl_device_list_create("cpu:65000-65001", &list, NULL), SL_ERR_NOT_FOUND);
    assert_null(list);
    assert_non_null(strstr(sl_error_text(), "no core 65000"));
}

/* As processes on one machine do: each creates its own devices, and all names decide on the cores.
 */
static void range_of_a_list_has_the_whole_lists_cores(void **state)
{
    enum { NAMED = 4 };
    const char *names = "cpu:0,cpu:1,cpu:2,cpu:3";
    SCOPED(sl_device_list) *whole = NULL;
    sl_device_list *range;
    bool shared, range_shared;
    check_ok(sl_device_list_create(names, &whole, &shared));
    for (int first = 0; first <= NAMED; first++)
        for (int most = 0; most <= NAMED + 1; most++) {
            int expected = most < NAMED - first ? most : NAMED - first;
            check_ok(
                sli_device_list_create_range(names, first, most, false, &range, &range_shared));
            assert_int_equal(sl_device_list_count(range), expected);
            assert_true(range_shared == (shared && expected > 0));
            for (int i = 0; i < expected; i++) {
                const sl_device *of_whole = sl_device_list_get(whole, first + i);
                const sl_device *of_range = sl_device_list_get(range, i);
                assert_string_equal(sl_device_name(of_range), sl_device_name(of_whole));
                assert_int_equal(sl_device_thread_count(of_range),
                                 sl_device_thread_count(of_whole));
            }
            sl_device_list_destroy(&range);
        }
}

/* The launcher has bound the process: all allowed cores are for its range of the names. */
static void range_of_a_bound_process_divides_all_its_cores(void **state)
{
    SCOPED(sl_device_list) *range = NULL;
    bool shared;
    check_ok(sli_device_list_create_range("cpu:0,cpu:1,cpu:2,cpu:3", 3, 1, true, &range, &shared));
    assert_int_equal(sl_device_list_count(range), 1);
    assert_false(shared);
    assert_string_equal(sl_device_name(sl_device_list_get(range, 0)), "cpu:3");
    assert_int_equal(sl_device_thread_count(sl_device_list_get(range, 0)), core_count());
}

static void negative_threads_are_refused(void **state)
{
    SCOPED(sl_device) *device = (sl_device *)&device;
    assert_int_equal(sl_device_create_cpu(-1, &device), SL_ERR_INVALID);
    assert_null(device);
    check_ok(sl_device_create_cpu(0, &device));
    assert_int_equal(sl_device_thread_count(device), core_count());
}

static void the_environment_chooses_the_instruction_set(void **state)
{
    sl_device *device;
    setenv("SL_ISA", "baseline", 1);
    check_ok(sl_device_create_cpu(1, &device));
    assert_string_equal(sl_device_isa(device), "baseline");
    sl_device_destroy(&device);
    setenv("SL_ISA", "sse9", 1);
    assert_int_equal(sl_device_create_cpu(1, &device), SL_ERR_INVALID);
    assert_null(device);
    assert_string_equal(sl_error_text(), "environment variable SL_ISA must be avx512, avx2 or "
                                         "baseline, got \"sse9\"");
    unsetenv("SL_ISA");
}

/* ---- Lists of several kinds: the CPU's, and one made up here
 * ----------------------------------------------------------------------------- */

enum { BOARDS = 3 };

static bool parse_board(sli_device_name *name)
{
    const char *rest = name->text + strlen("board");
    return *rest++ == ':' && sli_device_number_parse(&rest, &name->first) && *rest == '\0';
}

static sl_status check_boards(const sli_device_name *names, int count)
{
    for (int i = 1; i < count; i++)
        if (names[i].first == names[i - 1].first)
            return sl_error(SL_ERR_INVALID, "board %d is named twice", names[i].first);
    return SL_OK;
}

static sl_status create_boards(const sli_device_request *request, sl_device **out, bool *shared)
{
    for (int i = request->first; i < request->end; i++) {
        sl_status status = SL_OK;
        sli_cpu_options options = {.name = request->names[i].text, .threads = 1};
        if (request->names[i].first >= BOARDS)
            status = sl_error(SL_ERR_NOT_FOUND, "there is no board %d", request->names[i].first);
        if (status == SL_OK)
            status = sli_cpu_device_create(&options, &out[i - request->first]);
        for (int k = request->first; k < i && status != SL_OK; k++)
            sl_device_destroy(&out[k - request->first]);
        SL_TRY(status);
        *shared = true;
    }
    return SL_OK;
}

static sl_status count_boards(int *out)
{
    *out = BOARDS;
    return SL_OK;
}

static const sli_device_kind board_kind = {.prefix = "board",
                                           .forms = "board:NUMBER",
                                           .parse = parse_board,
                                           .check = check_boards,
                                           .create = create_boards,
                                           .count = count_boards};

static const sli_device_kind *const kinds[] = {&sli_cpu_kind, &board_kind, NULL};

static sl_status create_mixed(const char *names, int first, int most, bool bound,
                              sl_device_list **out, bool *shared)
{
    return sli_device_list_create_of(kinds, names, first, most, bound, out, shared);
}

static void mixed_list_keeps_its_order_in_every_range(void **state)
{
    static const char *const names[] = {"board:2", "cpu:1", "cpu:0", "board:0"};
    sl_device_list *list;
    bool shared;
    for (int first = 0; first <= 4; first++)
        for (int most = 0; most <= 5; most++) {
            int expected = most < 4 - first ? most : 4 - first;
            check_ok(
                create_mixed("board:2, cpu:1 ,cpu:0,board:0", first, most, false, &list, &shared));
            assert_int_equal(sl_device_list_count(list), expected);
            for (int i = 0; i < expected; i++)
                assert_string_equal(sl_device_name(sl_device_list_get(list, i)), names[first + i]);
            sl_device_list_destroy(&list);
        }
}

/* cpu:0 is the only CPU device of the list, so it has all cores, whatever else is there. */
static void cores_are_divided_among_cpu_devices_alone(void **state)
{
    int cores;
    check_ok(sli_device_count("cpu", &cores));
    SCOPED(sl_device_list) *list = NULL;
    bool shared;
    for (int bound = 0; bound < 2; bound++) {
        check_ok(create_mixed("board:0,cpu:0,board:1", 1, 1, bound, &list, &shared));
        assert_int_equal(sl_device_thread_count(sl_device_list_get(list, 0)), cores);
        assert_false(shared);
        sl_device_list_destroy(&list);
    }
    check_ok(create_mixed("board:0,cpu:0", 0, INT_MAX, false, &list, &shared));
    assert_true(shared);
}

static void expect_mixed_error(const char *names, sl_status status, const char *text)
{
    sl_device_list *list = (sl_device_list *)&list;
    bool shared = true;
    check_error(create_mixed(names, 0, INT_MAX, false, &list, &shared), status, text);
    assert_null(list);
    assert_false(shared);
}

static void errors_are_those_of_the_names_kind(void **state)
{
    expect_mixed_error(
        "cpu:0,gpu:0", SL_ERR_INVALID,
        "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST; board:NUMBER, got \"gpu:0\"");
    expect_mixed_error("cpu:0,board", SL_ERR_INVALID,
                       "a device is named board:NUMBER, got \"board\"");
    expect_mixed_error("boards:0", SL_ERR_INVALID, "got \"boards:0\"");
    expect_mixed_error("cpu:x,board:0", SL_ERR_INVALID,
                       "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST, got \"cpu:x\"");
    expect_mixed_error("board:1,cpu:0,board:1", SL_ERR_INVALID, "board 1 is named twice");
    expect_mixed_error("board:1,cpu:1", SL_ERR_INVALID, "of 1 in the list, the last is cpu:0");
    expect_mixed_error("cpu:0,board:0,board:9", SL_ERR_NOT_FOUND, "there is no board 9");
    check_error(sli_device_count("board", &(int){0}), SL_ERR_INVALID,
                "no kind of devices \"board\"");
}

int device_list_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_alone_is_every_core),
        cmocka_unit_test(numbered_devices_divide_the_cores_evenly),
        cmocka_unit_test(more_devices_than_cores_share_them),
        cmocka_unit_test(a_range_names_cores),
        cmocka_unit_test(the_same_cores_may_have_two_devices),
        cmocka_unit_test(devices_on_the_same_cores_are_known_without_bound_threads),
        cmocka_unit_test(devices_with_a_common_core_count_as_on_the_same_ones),
        cmocka_unit_test(binding_a_thread_leaves_it_the_first_core),
        cmocka_unit_test(unreadable_names_are_refused),
        cmocka_unit_test(names_that_do_not_go_together_are_refused),
        cmocka_unit_test(cores_that_the_machine_lacks_are_not_found),
        cmocka_unit_test(range_of_a_list_has_the_whole_lists_cores),
        cmocka_unit_test(range_of_a_bound_process_divides_all_its_cores),
        cmocka_unit_test(mixed_list_keeps_its_order_in_every_range),
        cmocka_unit_test(cores_are_divided_among_cpu_devices_alone),
        cmocka_unit_test(errors_are_those_of_the_names_kind),
        cmocka_unit_test(negative_threads_are_refused),
        cmocka_unit_test(the_environment_chooses_the_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
