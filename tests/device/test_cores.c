#define _GNU_SOURCE /* sched_setaffinity */

#include "device/cores.h"
#include "device/cpu/cpu_device.h"
#include "support/check.h"

#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
    bool right = sl_device_thread_count(device) == 1 && device->first_core == core;
    sl_device_list_destroy(&list);
    return right ? 0 : 2;
}

static void cores_that_the_process_may_not_use_are_left_out(void **state)
{
#ifdef __SANITIZE_THREAD__
    print_message("skipped: ThreadSanitizer has a thread of its own, which keeps its cores\n");
    skip();
#endif
    sli_cores found;
    check_ok(sli_cores_find(&found));
    int core = found.allowed[found.allowed_count - 1], result;
    sli_cores_clear(&found);
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
    sli_cores found;
    check_ok(sli_cores_find(&found));
    int cores = found.core_count;
    sli_cores_limit(&found, cores + 1);
    assert_int_equal(found.core_count, cores);
    if (found.quota == cores + 1) /* there is no other */
        assert_false(found.limited);
    sli_cores_limit(&found, 1);
    assert_int_equal(found.core_count, 1);
    assert_int_equal(found.quota, 1);
    if (cores > 1)
        assert_true(found.limited);
    sli_cores_clear(&found);
}

static void cores_are_own_where_no_process_of_the_machine_has_one_of_them(void **state)
{
    enum { OWN, OTHER, PROCESSES };
    int64_t words[PROCESSES][SLI_CORE_WORDS] = {0};
    check_ok(sli_cores_describe(words[OWN]));
    assert_false(sli_cores_are_own(words[0], 1, OWN));
    memcpy(words[OTHER], words[OWN], sizeof words[OWN]);
    assert_false(sli_cores_are_own(words[0], PROCESSES, OWN));
    memset(&words[OTHER][1], 0, sizeof words[OTHER] - sizeof words[OTHER][0]);
    words[OTHER][SLI_CORE_WORDS - 1] = INT64_MIN; /* the last core that has a bit */
    assert_true(sli_cores_are_own(words[0], PROCESSES, OWN));
    assert_true(sli_cores_are_own(words[0], PROCESSES, OTHER));
    words[OTHER][0]++; /* another machine */
    assert_false(sli_cores_are_own(words[0], PROCESSES, OWN));
}

static void cores_suffice_for_few_threads_and_not_for_many(void **state)
{
    enum { MANY = 5000 };
    static sl_device *devices[MANY];
    SCOPED(sl_device) *device = NULL;
    check_ok(sl_device_create_cpu(1, &device));
    for (int i = 0; i < MANY; i++)
        devices[i] = device;
    assert_true(sli_cores_suffice(devices, 1));
    assert_false(sli_cores_suffice(devices, MANY));
}

int cores_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_that_the_process_may_not_use_are_left_out),
        cmocka_unit_test(a_quota_takes_cores_away_and_binds_no_thread),
        cmocka_unit_test(cores_are_own_where_no_process_of_the_machine_has_one_of_them),
        cmocka_unit_test(cores_suffice_for_few_threads_and_not_for_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
