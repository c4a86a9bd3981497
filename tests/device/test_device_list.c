#define _GNU_SOURCE /* sched_getaffinity */

#include "device/cpu/cpu_cores.h"
#include "device/cpu/cpu_device.h"
#include "device/device_list.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int core_count(void)
{
    sli_cpu_cores found;
    assert_int_equal(sli_cpu_cores_find(&found), SL_OK);
    int count = found.core_count;
    assert_true(count >= 1 && count <= found.allowed_count);
    sli_cpu_cores_clear(&found);
    return count;
}

static int first_core(sl_device *device)
{
    return sli_cpu(device)->first_core;
}

static void cpu_alone_is_every_core(void **state)
{
    (void)state;
    sl_device_list *list;
    bool shared = true;
    assert_int_equal(sl_device_list_create("cpu", &list, &shared), SL_OK);
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
    (void)state;
    int cores = core_count(), total = 0;
    sl_device_list *list;
    bool shared;
    assert_int_equal(sl_device_list_create(" cpu:1, cpu:0 ", &list, &shared), SL_OK);
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
    sl_device_list_destroy(&list);
}

static void more_devices_than_cores_share_them(void **state)
{
    (void)state;
    char names[4096] = "cpu:0";
    int count = core_count() + 1;
    for (int i = 1; i < count; i++)
        sprintf(names + strlen(names), ",cpu:%d", i);
    sl_device_list *list;
    bool shared = false;
    assert_int_equal(sl_device_list_create(names, &list, &shared), SL_OK);
    assert_true(shared);
    for (int i = 0; i < count; i++)
        assert_int_equal(sl_device_thread_count(sl_device_list_get(list, i)), 1);
    sl_device_list_destroy(&list);
    assert_int_equal(sl_device_list_create(names, &list, NULL), SL_OK);
    sl_device_list_destroy(&list);
}

static void a_range_names_cores(void **state)
{
    (void)state;
    sli_cpu_cores found;
    assert_int_equal(sli_cpu_cores_find(&found), SL_OK);
    char names[64];
    snprintf(names, sizeof names, "cpu:%d-%d", found.allowed[0], found.allowed[0]);
    sl_device_list *list;
    assert_int_equal(sl_device_list_create(names, &list, NULL), SL_OK);
    sl_device *device = sl_device_list_get(list, 0);
    assert_string_equal(sl_device_name(device), names);
    assert_int_equal(sl_device_thread_count(device), 1);
    assert_int_equal(first_core(device), found.allowed[0]);
    sl_device_list_destroy(&list);
    sli_cpu_cores_clear(&found);
}

static void the_same_cores_may_have_two_devices(void **state)
{
    (void)state;
    sli_cpu_cores found;
    assert_int_equal(sli_cpu_cores_find(&found), SL_OK);
    char names[128];
    int core = found.allowed[0];
    snprintf(names, sizeof names, "cpu:%d-%d,cpu:%d-%d", core, core, core, core);
    sl_device_list *list;
    bool shared = false;
    assert_int_equal(sl_device_list_create(names, &list, &shared), SL_OK);
    assert_true(shared);
    assert_int_equal(sl_device_list_count(list), 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(first_core(sl_device_list_get(list, i)), core);
    sl_device_list_destroy(&list);
    assert_int_equal(sl_device_list_create("cpu,cpu,cpu", &list, &shared), SL_OK);
    assert_true(shared);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sl_device_thread_count(sl_device_list_get(list, i)), found.core_count);
    sl_device_list_destroy(&list);
    sli_cpu_cores_clear(&found);
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
    (void)state;
    sl_device_list *list;
    assert_int_equal(sl_device_list_create("cpu", &list, NULL), SL_OK);
    sl_device *device = sl_device_list_get(list, 0);
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, bind_and_look, device), 0);
    pthread_join(thread, &result);
    cpu_set_t *set = result;
    assert_int_equal(CPU_COUNT(set), 1);
    assert_true(CPU_ISSET((size_t)first_core(device), set));
    free(set);
    sl_device_list_destroy(&list);
}

/* In a process of its own, which may run on one core only: 0 if `cpu` is that core. */
static int try_on_one_core(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    sl_device_list *list;
    if (sched_setaffinity(0, sizeof set, &set) != 0 ||
        sl_device_list_create("cpu", &list, NULL) != SL_OK)
        return 1;
    sl_device *device = sl_device_list_get(list, 0);
    bool right = sl_device_thread_count(device) == 1 && first_core(device) == core;
    sl_device_list_destroy(&list);
    return right ? 0 : 2;
}

static void cores_that_the_process_may_not_use_are_left_out(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: ThreadSanitizer has a thread of its own, which keeps its cores\n");
    skip();
#endif
    sli_cpu_cores found;
    assert_int_equal(sli_cpu_cores_find(&found), SL_OK);
    int core = found.allowed[found.allowed_count - 1], result;
    sli_cpu_cores_clear(&found);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(try_on_one_core(core));
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}

static void a_quota_takes_cores_away_and_binds_no_thread(void **state)
{
    (void)state;
    sli_cpu_cores found;
    assert_int_equal(sli_cpu_cores_find(&found), SL_OK);
    int cores = found.core_count;
    sli_cpu_cores_limit(&found, cores + 1);
    assert_int_equal(found.core_count, cores);
    if (found.quota == cores + 1) /* there is no other */
        assert_false(found.limited);
    sli_cpu_cores_limit(&found, 1);
    assert_int_equal(found.core_count, 1);
    assert_int_equal(found.quota, 1);
    if (cores > 1)
        assert_true(found.limited);
    sli_cpu_cores_clear(&found);
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
    (void)state;
    static const char *const names[] = {"gpu:0",   "cuda:0",  "cpu:",      "cpu:x",
                                        "cpu:1-",  "cpu:-1",  "cpu:3-1",   "cpux",
                                        "cpu:0 1", "cpu:0x1", "cpu:1-2-3", "cpu:99999999999",
                                        "CPU"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[200];
        snprintf(text, sizeof text,
                 "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST, got \"%s\"", names[i]);
        expect_error(names[i], SL_ERR_INVALID, text);
    }
    expect_error("", SL_ERR_INVALID, "a name in the list of devices is empty");
    expect_error("cpu:0,,cpu:1", SL_ERR_INVALID, "a name in the list of devices is empty");
}

static void names_that_do_not_go_together_are_refused(void **state)
{
    (void)state;
    expect_error("cpu:0,cpu:0", SL_ERR_INVALID, "the device \"cpu:0\" is named twice");
    expect_error("cpu:0,cpu:00", SL_ERR_INVALID, "the device \"cpu:00\" is named twice");
    expect_error(
        "cpu:0,cpu:2", SL_ERR_INVALID,
        "cpu:NUMBER is an even share of the cores: of 2 in the list, the last is cpu:1, got "
        "\"cpu:2\"");
    expect_error(
        "cpu:1", SL_ERR_INVALID,
        "cpu:NUMBER is an even share of the cores: of 1 in the list, the last is cpu:0, got "
        "\"cpu:1\"");
    expect_error("cpu:0,cpu:0-0", SL_ERR_INVALID,
                 "the devices \"cpu:0\" and \"cpu:0-0\" do not mix: cpu:NUMBER divides "
                 "the cores evenly, cpu:FIRST-LAST names them");
}

static void cores_that_the_machine_lacks_are_not_found(void **state)
{
    (void)state;
    sl_device_list *list;
    assert_int_equal(sl_device_list_create("cpu:65000-65001", &list, NULL), SL_ERR_NOT_FOUND);
    assert_null(list);
    assert_non_null(strstr(sl_error_text(), "no core 65000"));
}

/* As processes on one machine do: each creates its own devices, and all names decide on the cores.
 */
static void part_of_a_list_has_the_whole_lists_cores(void **state)
{
    (void)state;
    enum { NAMED = 4 };
    const char *names = "cpu:0,cpu:1,cpu:2,cpu:3";
    sl_device_list *whole, *part;
    bool shared, part_shared;
    assert_int_equal(sl_device_list_create(names, &whole, &shared), SL_OK);
    for (int first = 0; first <= NAMED; first++)
        for (int most = 0; most <= NAMED + 1; most++) {
            int expected = most < NAMED - first ? most : NAMED - first;
            assert_int_equal(sli_device_list_create_part(names, first, most, false, &part,
                                                         &part_shared),
                             SL_OK);
            assert_int_equal(sl_device_list_count(part), expected);
            assert_true(part_shared == (shared && expected > 0));
            for (int i = 0; i < expected; i++) {
                const sl_device *of_whole = sl_device_list_get(whole, first + i);
                const sl_device *of_part = sl_device_list_get(part, i);
                assert_string_equal(sl_device_name(of_part), sl_device_name(of_whole));
                assert_int_equal(sl_device_thread_count(of_part), sl_device_thread_count(of_whole));
            }
            sl_device_list_destroy(&part);
        }
    sl_device_list_destroy(&whole);
}

/* The launcher has bound the process: all allowed cores are for its part of the names. */
static void part_of_a_bound_process_divides_all_its_cores(void **state)
{
    (void)state;
    sl_device_list *part;
    bool shared;
    assert_int_equal(sli_device_list_create_part("cpu:0,cpu:1,cpu:2,cpu:3", 3, 1, true, &part,
                                                 &shared),
                     SL_OK);
    assert_int_equal(sl_device_list_count(part), 1);
    assert_false(shared);
    assert_string_equal(sl_device_name(sl_device_list_get(part, 0)), "cpu:3");
    assert_int_equal(sl_device_thread_count(sl_device_list_get(part, 0)), core_count());
    sl_device_list_destroy(&part);
}

static void negative_threads_are_refused(void **state)
{
    (void)state;
    sl_device *device = (sl_device *)&device;
    assert_int_equal(sl_device_create_cpu(-1, &device), SL_ERR_INVALID);
    assert_null(device);
    assert_int_equal(sl_device_create_cpu(0, &device), SL_OK);
    assert_int_equal(sl_device_thread_count(device), core_count());
    sl_device_destroy(&device);
}

static void the_environment_chooses_the_instruction_set(void **state)
{
    (void)state;
    sl_device *device;
    setenv("SL_ISA", "baseline", 1);
    assert_int_equal(sl_device_create_cpu(1, &device), SL_OK);
    assert_string_equal(sl_device_isa(device), "baseline");
    sl_device_destroy(&device);
    setenv("SL_ISA", "sse9", 1);
    assert_int_equal(sl_device_create_cpu(1, &device), SL_ERR_INVALID);
    assert_null(device);
    assert_string_equal(sl_error_text(), "environment variable SL_ISA: expected avx512, avx2 or "
                                         "baseline, got \"sse9\"");
    unsetenv("SL_ISA");
}

int device_list_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_alone_is_every_core),
        cmocka_unit_test(numbered_devices_divide_the_cores_evenly),
        cmocka_unit_test(more_devices_than_cores_share_them),
        cmocka_unit_test(a_range_names_cores),
        cmocka_unit_test(the_same_cores_may_have_two_devices),
        cmocka_unit_test(binding_a_thread_leaves_it_the_first_core),
        cmocka_unit_test(cores_that_the_process_may_not_use_are_left_out),
        cmocka_unit_test(a_quota_takes_cores_away_and_binds_no_thread),
        cmocka_unit_test(unreadable_names_are_refused),
        cmocka_unit_test(names_that_do_not_go_together_are_refused),
        cmocka_unit_test(cores_that_the_machine_lacks_are_not_found),
        cmocka_unit_test(part_of_a_list_has_the_whole_lists_cores),
        cmocka_unit_test(part_of_a_bound_process_divides_all_its_cores),
        cmocka_unit_test(negative_threads_are_refused),
        cmocka_unit_test(the_environment_chooses_the_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
