#include "sluice/group.h"

#include "comm/contract.h"
#include "support/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The contract of contract.h, which the tests of other backends hold theirs to as well. */
static void every_case_of_the_contract_holds(void **state)
{
    (void)state;
    sl_group_options options = {.timeout_seconds = 60};
    for (const contract_case *one = contract_cases; one->name; one++)
        for (int ranks = one->least_ranks; ranks <= 8; ranks++) {
            sl_status status = sl_spawn(one->run, NULL, ranks, &options);
            if (status != SL_OK)
                print_error("%s, %d ranks: %s\n", one->name, ranks, sl_error_text());
            assert_int_equal(status, SL_OK);
        }
}

static sl_status rank_1_fails(sl_group *group, void *arg)
{
    (void)arg;
    if (sl_group_rank(group) == 1)
        return sl_error(SL_ERR_NUMERIC, "the loss is NaN");
    return sl_group_barrier(group, NULL);
}

static void spawn_with_a_failing_rank_stops_the_others_and_names_it(void **state)
{
    (void)state;
    assert_int_equal(sl_spawn(rank_1_fails, NULL, 4, NULL), SL_ERR_NUMERIC);
    assert_string_equal(sl_error_text(), "rank 1: the loss is NaN");
}

/* Rank 1 breaks the group while it goes on itself; rank 0 is the first to come back with that. */
static sl_status rank_1_breaks_the_group(sl_group *group, void *arg)
{
    atomic_int *ends = arg;
    if (sl_group_rank(group) == 1) {
        sl_group_abort(group, SL_ERR_IO, "the disk is full");
        while (atomic_load(ends) == 0)
            usleep(1000);
        usleep(20000);
        return sl_error(SL_ERR_INTERNAL, "what follows from it");
    }
    sl_status status = sl_group_barrier(group, NULL);
    atomic_fetch_add(ends, 1);
    return status == SL_ERR_IO ? sl_error(SL_ERR_CANCELLED, "the others are gone") : status;
}

static void spawn_blames_the_rank_that_broke_the_group(void **state)
{
    (void)state;
    atomic_int ends = 0;
    assert_int_equal(sl_spawn(rank_1_breaks_the_group, &ends, 2, NULL), SL_ERR_IO);
    assert_string_equal(sl_error_text(), "rank 1: the disk is full");
}

static sl_status rank_2_stays_away(sl_group *group, void *arg)
{
    (void)arg;
    if (sl_group_rank(group) == 2) {
        usleep(600000);
        return SL_OK;
    }
    float x = 0;
    return sl_group_all_reduce(group, &x, 1, SL_F32, SL_REDUCE_SUM, NULL);
}

static void operation_past_its_time_limit_names_who_never_came(void **state)
{
    (void)state;
    sl_group_options options = {.timeout_seconds = 0.1};
    assert_int_equal(sl_spawn(rank_2_stays_away, NULL, 3, &options), SL_ERR_CANCELLED);
    assert_non_null(strstr(sl_error_text(), "all_reduce(sum, 1 x f32), operation 1 of the group: "
                                            "rank 2 did not come within 0.1 s"));
}

static sl_status rank_0_leaves(sl_group *group, void *arg)
{
    (void)arg;
    return sl_group_rank(group) == 0 ? SL_OK : sl_group_barrier(group, NULL);
}

static void operation_after_a_rank_left_fails_at_once(void **state)
{
    (void)state;
    assert_int_equal(sl_spawn(rank_0_leaves, NULL, 3, NULL), SL_ERR_CANCELLED);
    assert_non_null(strstr(sl_error_text(), "barrier, operation 1 of the group: rank 0 left"));
}

static sl_status call_different_things(sl_group *group, void *arg)
{
    (void)arg;
    float x[2] = {0};
    SL_TRY(sl_group_barrier(group, NULL));
    return sl_group_rank(group) == 1
               ? sl_group_broadcast(group, x, 2, SL_F32, 0, NULL)
               : sl_group_all_reduce(group, x, 1, SL_F32, SL_REDUCE_MAX, NULL);
}

static void mismatch_in_debug_mode_names_both_calls(void **state)
{
    (void)state;
    sl_group_options options = {.check_collectives = true};
    assert_int_equal(sl_spawn(call_different_things, NULL, 3, &options), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(),
                           "operation 2 of the group differs: rank 0 called all_reduce(max, 1 x "
                           "f32), rank 1 broadcast(2 x f32, root 0)"));
}

static void mismatch_is_looked_for_where_the_environment_says_so(void **state)
{
    (void)state;
    setenv("SL_DEBUG", "collectives", 1);
    check_error(sl_spawn(call_different_things, NULL, 3, NULL), SL_ERR_INVALID,
                "operation 2 of the group differs");
    unsetenv("SL_DEBUG");
}

static void group_without_a_rank_or_of_an_unknown_backend_is_refused(void **state)
{
    (void)state;
    sl_group *handle;
    check_error(sl_group_create_local(0, NULL, &handle), SL_ERR_INVALID, "at least 1 rank, got 0");
    check_error(sl_group_create("gloo", NULL, &handle), SL_ERR_INVALID, "got \"gloo\"");
    assert_null(handle);
    check_error(sl_group_create("nccl", NULL, &handle), SL_ERR_UNSUPPORTED, "nccl is not built");
    check_ok(sl_group_create("local", NULL, &handle));
    assert_int_equal(sl_group_size(handle), 1);
    sl_group_destroy(&handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_of_the_contract_holds),
        cmocka_unit_test(spawn_with_a_failing_rank_stops_the_others_and_names_it),
        cmocka_unit_test(spawn_blames_the_rank_that_broke_the_group),
        cmocka_unit_test(operation_past_its_time_limit_names_who_never_came),
        cmocka_unit_test(operation_after_a_rank_left_fails_at_once),
        cmocka_unit_test(mismatch_in_debug_mode_names_both_calls),
        cmocka_unit_test(mismatch_is_looked_for_where_the_environment_says_so),
        cmocka_unit_test(group_without_a_rank_or_of_an_unknown_backend_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
