/* Groups over NCCL, on the fake CUDA runtime and the fake NCCL of tests/device/cuda. The contract's
 * buffers are the host's: here they count as the devices' (FAKE_CUDA_ANY_MEMORY). */
#include "comm/contract.h"
#include "comm/group.h"
#include "sluice/group.h"
#include "support/check.h"
#include "support/replicas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A rank's device and its group over NCCL, for `run`. */
typedef struct on_devices {
    sl_status (*run)(sl_group *group, void *arg);
    void *arg;
} on_devices;

static sl_status create_device(int rank, sl_device_list **out)
{
    char name[32];
    snprintf(name, sizeof name, "cuda:0/%d", rank);
    return sl_device_list_create(name, out, NULL);
}

static sl_status run_rank(sl_group *below, void *arg)
{
    const on_devices *what = arg;
    SCOPED(sl_device_list) *devices = NULL;
    SCOPED(sl_group) *group = NULL;
    SL_TRY(create_device(sl_group_rank(below), &devices));
    SL_TRY(sli_group_create_nccl(below, sl_device_list_get(devices, 0), &group));
    return what->run(group, what->arg);
}

static sl_status run_ranks(sl_status (*run)(sl_group *group, void *arg), void *arg, int ranks)
{
    return sl_spawn(run_rank, &(on_devices){run, arg}, ranks,
                    &(sl_group_options){.timeout_seconds = 100});
}

static void every_case_of_the_contract_holds(void **state)
{
    for (const contract_case *one = contract_cases; one->name; one++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            if (ranks < one->least_ranks)
                continue;
            sl_status status = run_ranks(one->run, NULL, ranks);
            if (status != SL_OK)
                print_error("%s, %d ranks: %s\n", one->name, ranks, sl_error_text());
            assert_int_equal(status, SL_OK);
        }
}

static sl_status take_digest(sl_group *group, void *arg)
{
    uint64_t *digests = arg;
    return contract_digest(group, 30, &digests[sl_group_rank(group)]);
}

static void operations_give_the_bits_of_local_ranks(void **state)
{
    enum { RANKS = 3 };
    uint64_t local[RANKS], nccl[RANKS];
    check_ok(sl_spawn(take_digest, local, RANKS, NULL));
    check_ok(run_ranks(take_digest, nccl, RANKS));
    assert_memory_equal(nccl, local, sizeof local);
}

/* ---- What fails --------------------------------------------------------------------------- */

/* Every rank's error is `text`; the group stays broken. */
static sl_status add_up(sl_group *group, void *arg)
{
    float x[100] = {0};
    sl_status status = SL_OK;
    for (int i = 0; i < 3 && status == SL_OK; i++)
        status = sl_group_all_reduce(group, x, 100, SL_F32, SL_REDUCE_SUM, NULL);
    SL_TRY(expect(status != SL_OK && strstr(sl_error_text(), arg), "\"%s\", got: %.300s",
                  (const char *)arg, sl_error_text()));
    return expect(sl_group_barrier(group, NULL) != SL_OK && strstr(sl_error_text(), arg),
                  "the same error again, got: %.300s", sl_error_text());
}

/* Each rank is asked, and so are those that the error does not begin with. */
static void check_failure(const char *variable, const char *value, const char *text)
{
    setenv(variable, value, 1);
    sl_status status = run_ranks(add_up, (void *)text, 3);
    unsetenv(variable);
    check_ok(status);
}

static void error_of_nccl_ends_the_ranks_that_wait_for_it(void **state)
{
    check_failure("FAKE_NCCL_FAIL", "1:3",
                  "rank 1: cuda:0/1: NCCL: move data: unhandled system error (a cable was pulled)");
}

/* Rank 2's move never ends; rank 0 gives up, mostly amid its own. */
static sl_status give_up(sl_group *group, void *arg)
{
    float x[100] = {0};
    sl_work *work;
    SL_TRY(sl_group_all_reduce(group, x, 100, SL_F32, SL_REDUCE_SUM, &work));
    if (sl_group_rank(group) == 0) {
        usleep(50000);
        sl_group_abort(group, SL_ERR_IO, "the disk is full");
    }
    return expect(sl_work_wait(&work) == SL_ERR_IO &&
                      strcmp(sl_error_text(), "rank 0: the disk is full") == 0,
                  "rank 0's error, got: %.200s", sl_error_text());
}

static void move_that_never_ends_is_aborted_when_a_rank_gives_up(void **state)
{
    setenv("FAKE_NCCL_STOP", "2:2", 1);
    sl_status status = run_ranks(give_up, NULL, 3);
    unsetenv("FAKE_NCCL_STOP");
    check_ok(status);
}

static sl_status leave_early(sl_group *group, void *arg)
{
    float x = 1;
    SL_TRY(sl_group_all_reduce(group, &x, 1, SL_F32, SL_REDUCE_SUM, NULL));
    SL_TRY(sl_group_barrier(group, NULL)); /* all have ended it */
    if (sl_group_rank(group) == 1) {       /* dies with its error */
        sl_group_abort(group, SL_ERR_IO, "the disk is full");
        return SL_OK;
    }
    sl_work *work;
    sl_status status = sl_group_all_reduce(group, &x, 1, SL_F32, SL_REDUCE_SUM, &work);
    if (status == SL_OK)
        status = sl_work_wait(&work);
    return expect(status == SL_ERR_IO && strcmp(sl_error_text(), "rank 1: the disk is full") == 0,
                  "rank 1's error, got: %.200s", sl_error_text());
}

static void rank_that_gives_up_ends_the_others(void **state)
{
    check_ok(run_ranks(leave_early, NULL, 3));
}

static sl_status call_something_else(sl_group *group, void *arg)
{
    float x[2] = {0};
    sl_status status = sl_group_rank(group) == 1
                           ? sl_group_broadcast(group, x, 2, SL_F32, 0, NULL)
                           : sl_group_all_reduce(group, x, 1, SL_F32, SL_REDUCE_MAX, NULL);
    return expect(status == SL_ERR_INVALID &&
                      strstr(sl_error_text(), "differs: rank 0 called all_reduce(max, 1 x f32), "
                                              "rank 1 broadcast(2 x f32, root 0)"),
                  "both calls, got: %.200s", sl_error_text());
}

static void operations_that_differ_are_compared(void **state)
{
    setenv("SL_DEBUG", "collectives", 1);
    sl_status status = run_ranks(call_something_else, NULL, 2);
    unsetenv("SL_DEBUG");
    check_ok(status);
}

static sl_status succeed(sl_group *group, void *arg)
{
    return SL_OK;
}

static void old_library_is_refused_with_its_version(void **state)
{
    setenv("FAKE_NCCL_VERSION", "21403", 1);
    assert_int_equal(run_ranks(succeed, NULL, 2), SL_ERR_UNSUPPORTED);
    unsetenv("FAKE_NCCL_VERSION");
    assert_string_equal(sl_error_text(), "rank 0: cuda:0/0: groups of the backend nccl need "
                                         "libnccl.so.2 of NCCL 2.18 or later: this one is 2.14.3");
}

static void cpu_is_refused(void **state)
{
    SCOPED(sl_device) *device = NULL;
    SCOPED(sl_group) *below = NULL;
    sl_group *group;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_group_create_local(1, NULL, &below));
    assert_int_equal(sli_group_create_nccl(below, device, &group), SL_ERR_UNSUPPORTED);
    assert_string_equal(sl_error_text(), "nccl: cpu is not a CUDA device, and NCCL "
                                         "works on no other");
    assert_null(group);
}

int nccl_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_is_refused),
        cmocka_unit_test(every_case_of_the_contract_holds),
        cmocka_unit_test(operations_give_the_bits_of_local_ranks),
        cmocka_unit_test(error_of_nccl_ends_the_ranks_that_wait_for_it),
        cmocka_unit_test(move_that_never_ends_is_aborted_when_a_rank_gives_up),
        cmocka_unit_test(rank_that_gives_up_ends_the_others),
        cmocka_unit_test(operations_that_differ_are_compared),
        cmocka_unit_test(old_library_is_refused_with_its_version),
    };
    if (!getenv("FAKE_CUDA_ANY_MEMORY")) {
        printf(
            "skipped: the fake CUDA runtime was not built, or the environment does not name it\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
