#include "sluice/group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Ranks are threads: a failed cmocka assertion may only jump in the main thread. So the ranks
 * return errors, and the tests assert on what sl_spawn gives. */
static sl_status expect(bool condition, const char *what)
{
    return condition ? SL_OK : sl_error(SL_ERR_INTERNAL, "expected %s", what);
}

static void assert_spawn(sl_status (*fn)(sl_group *, void *), void *arg, int ranks)
{
    sl_status status = sl_spawn(fn, arg, ranks, &(sl_group_options){.timeout_seconds = 60});
    if (status != SL_OK)
        print_error("%s\n", sl_error_text());
    assert_int_equal(status, SL_OK);
}

/* Values 2, 3, 4 on three ranks, as in PyTorch's own documentation of the operations. */
static sl_status reduce_each_way(sl_group *group, void *arg)
{
    (void)arg;
    static const struct {
        sl_reduce_op op;
        double expected;
    } cases[] = {{SL_REDUCE_SUM, 9},
                 {SL_REDUCE_PRODUCT, 24},
                 {SL_REDUCE_MIN, 2},
                 {SL_REDUCE_MAX, 4},
                 {SL_REDUCE_AVERAGE, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float f32 = 2 + (float)sl_group_rank(group);
        double f64 = f32;
        SL_TRY(sl_group_all_reduce(group, &f32, 1, SL_F32, cases[i].op, NULL));
        SL_TRY(sl_group_all_reduce(group, &f64, 1, SL_F64, cases[i].op, NULL));
        SL_TRY(expect(f32 == (float)cases[i].expected, "the f32 result"));
        SL_TRY(expect(f64 == cases[i].expected, "the f64 result"));
        uint16_t bf16 = (uint16_t)(sl_group_rank(group) == 0   ? 0x4000
                                   : sl_group_rank(group) == 1 ? 0x4040
                                                               : 0x4080);
        SL_TRY(sl_group_all_reduce(group, &bf16, 1, SL_BF16, cases[i].op, NULL));
        uint32_t wide = (uint32_t)bf16 << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        SL_TRY(expect(value == (float)cases[i].expected, "the bf16 result"));
        if (cases[i].op == SL_REDUCE_AVERAGE)
            continue;
        int32_t i32 = 2 + sl_group_rank(group);
        int64_t i64 = i32;
        SL_TRY(sl_group_all_reduce(group, &i32, 1, SL_I32, cases[i].op, NULL));
        SL_TRY(sl_group_all_reduce(group, &i64, 1, SL_I64, cases[i].op, NULL));
        SL_TRY(expect(i32 == (int32_t)cases[i].expected, "the i32 result"));
        SL_TRY(expect(i64 == (int64_t)cases[i].expected, "the i64 result"));
    }
    return SL_OK;
}

static void all_reduce_gives_pytorchs_results(void **state)
{
    (void)state;
    assert_spawn(reduce_each_way, NULL, 3);
}

enum { LONG = 10007 };

static float element(int rank, int64_t i)
{
    return (float)((i * 7919 + rank * 104729) % 1000003) * 1e-3f;
}

/* Every rank computes the expected bits: the sum in the order of ranks. */
static sl_status reduce_long(sl_group *group, void *arg)
{
    (void)arg;
    float *data = malloc(LONG * sizeof *data);
    if (!data)
        return sl_error(SL_ERR_MEMORY, "no memory");
    for (int64_t i = 0; i < LONG; i++)
        data[i] = element(sl_group_rank(group), i);
    sl_status status = sl_group_all_reduce(group, data, LONG, SL_F32, SL_REDUCE_SUM, NULL);
    for (int64_t i = 0; i < LONG && status == SL_OK; i++) {
        float sum = element(0, i);
        for (int r = 1; r < sl_group_size(group); r++)
            sum += element(r, i);
        status = expect(memcmp(&sum, &data[i], sizeof sum) == 0, "the sum in the order of ranks");
    }
    free(data);
    return status;
}

static void all_reduce_adds_in_the_order_of_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++)
        assert_spawn(reduce_long, NULL, ranks);
}

static sl_status move_around(sl_group *group, void *arg)
{
    (void)arg;
    int rank = sl_group_rank(group), size = sl_group_size(group);
    int32_t own[2] = {rank, 10 * rank}, all[16], part[2], one = rank == 1 ? 42 : 0;
    SL_TRY(sl_group_broadcast(group, &one, 1, SL_I32, 1, NULL));
    SL_TRY(expect(one == 42, "root's value"));
    SL_TRY(sl_group_all_gather(group, own, all, 2, SL_I32, NULL));
    for (int r = 0; r < size; r++)
        SL_TRY(expect(all[2 * r] == r && all[2 * r + 1] == 10 * r, "everybody's values in order"));
    SL_TRY(sl_group_scatter(group, rank == 2 ? all : NULL, part, 2, SL_I32, 2, NULL));
    SL_TRY(expect(part[0] == rank && part[1] == 10 * rank, "the own part"));
    memset(all, 0, sizeof all);
    SL_TRY(sl_group_gather(group, part, rank == 0 ? all : NULL, 2, SL_I32, 0, NULL));
    SL_TRY(expect(rank != 0 || all[2 * size - 1] == 10 * (size - 1), "the last rank's value"));
    int32_t sum = rank;
    SL_TRY(sl_group_reduce(group, &sum, 1, SL_I32, SL_REDUCE_SUM, 1, NULL));
    SL_TRY(expect(sum == (rank == 1 ? size * (size - 1) / 2 : rank), "a sum at the root alone"));
    for (int i = 0; i < size; i++)
        all[i] = rank + i;
    SL_TRY(sl_group_reduce_scatter(group, all, &sum, 1, SL_I32, SL_REDUCE_SUM, NULL));
    return expect(sum == size * (size - 1) / 2 + size * rank, "the own part of the sum");
}

static void data_move_in_the_order_of_ranks(void **state)
{
    (void)state;
    assert_spawn(move_around, NULL, 4);
}

static sl_status start_many(sl_group *group, void *arg)
{
    (void)arg;
    enum { MANY = 20 };
    sl_work *works[MANY];
    double values[MANY], sum = sl_group_rank(group);
    for (int i = 0; i < MANY; i++) {
        values[i] = sl_group_rank(group) * (i + 1);
        SL_TRY(sl_group_all_reduce(group, &values[i], 1, SL_F64, SL_REDUCE_SUM, &works[i]));
    }
    SL_TRY(sl_group_all_reduce(group, &sum, 1, SL_F64, SL_REDUCE_SUM, NULL)); /* keeps its place */
    for (int i = MANY - 1; i >= 0; i--)
        SL_TRY(sl_work_wait(&works[i]));
    for (int i = 0; i < MANY; i++)
        SL_TRY(expect(values[i] == 3.0 * (i + 1), "each sum"));
    return expect(sum == 3, "the waited-for sum");
}

static void started_operations_run_in_order(void **state)
{
    (void)state;
    assert_spawn(start_many, NULL, 3);
}

static sl_status split_mesh(sl_group *group, void *arg)
{
    (void)arg;
    sl_group *row = NULL, *column = NULL, *none = NULL;
    int rank = sl_group_rank(group); /* two replicas of three stages */
    SL_TRY(sl_group_split(group, rank / 3, &row));
    SL_TRY(sl_group_split(group, rank % 3, &column));
    SL_TRY(sl_group_split(group, rank == 5 ? 0 : -1, &none));
    int32_t in_row = rank, in_column = rank;
    sl_status status = sl_group_all_reduce(row, &in_row, 1, SL_I32, SL_REDUCE_SUM, NULL);
    if (status == SL_OK)
        status = sl_group_all_reduce(column, &in_column, 1, SL_I32, SL_REDUCE_SUM, NULL);
    if (status == SL_OK)
        status = expect(sl_group_rank(row) == rank % 3 && sl_group_size(row) == 3 &&
                            sl_group_rank(column) == rank / 3 && sl_group_size(column) == 2,
                        "ranks within row and column");
    if (status == SL_OK)
        status = expect(in_row == (rank < 3 ? 3 : 12) && in_column == 2 * (rank % 3) + 3,
                        "sums of row and column");
    if (status == SL_OK)
        status = expect(rank == 5 ? sl_group_size(none) == 1 : none == NULL, "one member");
    sl_group_destroy(&row);
    sl_group_destroy(&column);
    sl_group_destroy(&none);
    return status;
}

static void split_gives_each_rank_its_row_and_column(void **state)
{
    (void)state;
    assert_spawn(split_mesh, NULL, 6);
}

static sl_status exchange(sl_group *group, void *arg)
{
    (void)arg;
    int32_t a = 1, b = 2, got = 0;
    int source = -7;
    sl_work *works[2];
    if (sl_group_rank(group) == 0) {
        SL_TRY(sl_group_send(group, &a, 1, SL_I32, 1, 1, &works[0]));
        SL_TRY(sl_group_send(group, &b, 1, SL_I32, 1, 2, &works[1]));
        SL_TRY(sl_work_wait(&works[0]));
        return sl_work_wait(&works[1]);
    }
    SL_TRY(sl_group_recv(group, &got, 1, SL_I32, 0, 2, NULL, NULL));
    SL_TRY(expect(got == 2, "tag 2 first"));
    SL_TRY(sl_group_recv(group, &got, 1, SL_I32, SL_ANY_RANK, 1, &source, NULL));
    return expect(got == 1 && source == 0, "tag 1 from rank 0");
}

static void messages_are_matched_by_tag(void **state)
{
    (void)state;
    assert_spawn(exchange, NULL, 2);
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

static sl_status wrong_arguments(sl_group *group, void *arg)
{
    (void)arg;
    int32_t x[8] = {0};
    bool root = sl_group_rank(group) == 0;
    SL_TRY(
        expect(sl_group_all_reduce(group, x, 1, SL_I32, SL_REDUCE_AVERAGE, NULL) == SL_ERR_INVALID,
               "integers to have no average"));
    SL_TRY(expect(sl_group_broadcast(group, x, 1, SL_I32, 2, NULL) == SL_ERR_INVALID,
                  "root 2 of two ranks to be refused"));
    SL_TRY(expect(sl_group_gather(group, x, root ? NULL : x, 1, SL_I32, 0, NULL) == SL_ERR_INVALID,
                  "gather's output where it does not belong to be refused"));
    SL_TRY(expect(sl_group_all_reduce(group, x, -1, SL_I32, SL_REDUCE_SUM, NULL) == SL_ERR_INVALID,
                  "a negative count to be refused"));
    return sl_group_barrier(group, NULL); /* the group goes on */
}

static void wrong_arguments_are_refused_and_the_group_goes_on(void **state)
{
    (void)state;
    assert_spawn(wrong_arguments, NULL, 2);
    sl_group *handles[1];
    assert_int_equal(sl_group_create_local(0, NULL, handles), SL_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_gives_pytorchs_results),
        cmocka_unit_test(all_reduce_adds_in_the_order_of_ranks),
        cmocka_unit_test(data_move_in_the_order_of_ranks),
        cmocka_unit_test(started_operations_run_in_order),
        cmocka_unit_test(split_gives_each_rank_its_row_and_column),
        cmocka_unit_test(messages_are_matched_by_tag),
        cmocka_unit_test(spawn_with_a_failing_rank_stops_the_others_and_names_it),
        cmocka_unit_test(spawn_blames_the_rank_that_broke_the_group),
        cmocka_unit_test(operation_past_its_time_limit_names_who_never_came),
        cmocka_unit_test(operation_after_a_rank_left_fails_at_once),
        cmocka_unit_test(mismatch_in_debug_mode_names_both_calls),
        cmocka_unit_test(wrong_arguments_are_refused_and_the_group_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
