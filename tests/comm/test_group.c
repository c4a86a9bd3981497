#include "sluice/group.h"

#include "comm/contract.h"
#include "core/error.h"
#include "support/check.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The contract of contract.h, which the tests of other backends hold theirs to as well. */
static void every_case_of_the_contract_holds(void **state)
{
    sl_group_options options = {.timeout_seconds = 60};
    for (const contract_case *one = contract_cases; one->name; one++)
        for (int ranks = one->least_ranks; ranks <= 8; ranks += ranks < 5 ? 1 : 3) {
            sl_status status = sl_spawn(one->run, NULL, ranks, &options);
            if (status != SL_OK)
                print_error("%s, %d ranks: %s\n", one->name, ranks, sl_error_text());
            assert_int_equal(status, SL_OK);
        }
}

static sl_status rank_1_fails(sl_group *group, void *arg)
{
    if (sl_group_rank(group) == 1)
        return sl_error(SL_ERR_NUMERIC, "the loss is NaN");
    return sl_group_barrier(group, NULL);
}

static void spawn_with_a_failing_rank_stops_the_others_and_names_it(void **state)
{
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
    atomic_int ends = 0;
    assert_int_equal(sl_spawn(rank_1_breaks_the_group, &ends, 2, NULL), SL_ERR_IO);
    assert_string_equal(sl_error_text(), "rank 1: the disk is full");
}

/* Rank 3 of four breaks its half, in which it has another number. */
static sl_status rank_3_breaks_its_half(sl_group *group, void *arg)
{
    sl_group *half;
    int rank = sl_group_rank(group);
    SL_TRY(sl_group_split(group, rank / 2, &half));
    if (rank == 3)
        sl_group_abort(half, SL_ERR_IO, "the disk is full");
    sl_status status = sl_group_barrier(half, NULL);
    bool is_right = rank < 2
                        ? status == SL_OK
                        : strcmp(sl_error_text(), "rank 1 (3 of the job): the disk is full") == 0;
    sl_group_destroy(&half);
    return is_right ? SL_OK : sl_error(SL_ERR_INTERNAL, "got \"%s\"", sl_error_text());
}

static sl_status expect_error(sl_status status, const char *text)
{
    bool is_right = status != SL_OK && strcmp(sl_error_text(), text) == 0 && sli_error_rank() == 3;
    return is_right ? SL_OK
                    : sl_error(SL_ERR_INTERNAL, "of rank %d: \"%s\"", sli_error_rank(),
                               status == SL_OK ? "" : sl_error_text());
}

/* Rank 3 of four leaves its half, for which the other one there waits in every way. */
static sl_status rank_3_leaves_its_half(sl_group *group, void *arg)
{
    SCOPED(sl_group) *half = NULL;
    int number, rank = sl_group_rank(group);
    SL_TRY(sl_group_split(group, rank / 2, &half));
    if (rank == 2)
        SL_TRY(expect_error(sl_group_recv(half, &number, 1, SL_I32, 1, 7, NULL, NULL),
                            "recv, tag 7: rank 1 (3 of the job) has left the group"));
    if (rank == 2)
        SL_TRY(expect_error(sl_group_barrier(half, NULL),
                            "barrier, operation 1 of the group: rank 1 (3 of the job) left the "
                            "group before it came"));
    if (rank == 2)
        SL_TRY(expect_error(sl_group_send(half, &number, 1, SL_I32, 1, 7, NULL),
                            "barrier, operation 1 of the group: rank 1 (3 of the job) left the "
                            "group before it came"));
    return SL_OK;
}

static void error_in_a_subgroup_names_the_rank_of_the_job(void **state)
{
    check_ok(sl_spawn(rank_3_breaks_its_half, NULL, 4, NULL));
    check_ok(sl_spawn(rank_3_leaves_its_half, NULL, 4, NULL));
}

/* Copying is seen where it is well under way: the first bytes may be written last. */
enum {
    BUFFER_BYTES = 1 << 25,
    GATHERING_RANKS = 4,
    BUFFER_WORDS = BUFFER_BYTES / sizeof(int32_t),
    PEEK_AT = 1 << 16
};

/* The race is what the next test is about: the group's thread is writing there. */
__attribute__((no_sanitize("thread"))) static int32_t peek(const volatile int32_t *at)
{
    return *at;
}

/* Rank 0 gathers, and breaks the group while buffers are being copied from the others' buffers,
 * which these use for something else as soon as their calls have come back. */
static sl_status break_while_copying(sl_group *group, void *arg)
{
    int32_t *gathered = arg, *own = gathered;
    sl_work *work;
    if (sl_group_rank(group) == 0) {
        SL_TRY(sl_group_gather(group, own, gathered, BUFFER_WORDS, SL_I32, 0, &work));
        while (peek(gathered + BUFFER_WORDS + PEEK_AT) == 0)
            sched_yield();
        sl_group_abort(group, SL_ERR_IO, "the disk is full");
        return sl_work_wait(&work);
    }
    own = malloc(BUFFER_BYTES);
    if (!own)
        return sl_error(SL_ERR_MEMORY, "no memory for a buffer");
    memset(own, 1, BUFFER_BYTES);
    sl_status status = sl_group_gather(group, own, NULL, BUFFER_WORDS, SL_I32, 0, NULL);
    memset(own, 2, BUFFER_BYTES);
    free(own);
    return status;
}

static void buffers_belong_to_their_owner_again_only_when_nobody_reads_them(void **state)
{
    FREED char *gathered = calloc(GATHERING_RANKS, BUFFER_BYTES);
    assert_non_null(gathered);
    check_ok(sl_spawn(break_while_copying, gathered, GATHERING_RANKS, NULL));
    for (int64_t i = BUFFER_BYTES; i < GATHERING_RANKS * (int64_t)BUFFER_BYTES; i++)
        if (gathered[i] != 1)
            fail_msg("byte %lld is %d", (long long)i, gathered[i]);
}

static sl_status meet_once(sl_group *group, void *arg)
{
    return sl_group_barrier(group, NULL);
}

static void time_limit_may_be_infinite(void **state)
{
    sl_group_options options = {.timeout_seconds = INFINITY};
    check_ok(sl_spawn(meet_once, NULL, 3, &options));
}

/* Rank 2 comes back only when the others' calls have ended. */
static sl_status rank_2_stays_away(sl_group *group, void *arg)
{
    atomic_int *ends = arg;
    if (sl_group_rank(group) == 2) {
        while (atomic_load(ends) < 2)
            usleep(1000);
        return SL_OK;
    }
    float x = 0;
    sl_status status = sl_group_all_reduce(group, &x, 1, SL_F32, SL_REDUCE_SUM, NULL);
    atomic_fetch_add(ends, 1);
    return status;
}

static void operation_past_its_time_limit_names_who_never_came(void **state)
{
    atomic_int ends = 0;
    sl_group_options options = {.timeout_seconds = 1};
    assert_int_equal(sl_spawn(rank_2_stays_away, &ends, 3, &options), SL_ERR_CANCELLED);
    assert_non_null(strstr(sl_error_text(), "all_reduce(sum, 1 x f32), operation 1 of the group: "
                                            "rank 2 did not come within 1 s"));
}

/* Rank 0 waits for a message that nobody sends, from anyone or from rank 1. */
static sl_status wait_in_vain(sl_group *group, void *arg)
{
    const int *from = arg;
    int32_t got;
    if (sl_group_rank(group) == 0)
        return sl_group_recv(group, &got, 1, SL_I32, *from, 3, NULL, NULL);
    return SL_OK; /* and leaves */
}

static void message_that_cannot_come_names_its_senders(void **state)
{
    int anyone = SL_ANY_RANK, one = 1;
    check_error(sl_spawn(wait_in_vain, &anyone, 3, NULL), SL_ERR_CANCELLED,
                "recv, tag 3: all others have left the group");
    check_error(sl_spawn(wait_in_vain, &one, 3, NULL), SL_ERR_CANCELLED,
                "recv, tag 3: rank 1 has left the group");
    const sl_group_options options = {.timeout_seconds = 0.01};
    sl_group *handles[2];
    int32_t got;
    check_ok(sl_group_create_local(2, &options, handles));
    check_error(sl_group_recv(handles[0], &got, 1, SL_I32, SL_ANY_RANK, 3, NULL, NULL),
                SL_ERR_CANCELLED, "recv, tag 3: nothing came from any rank within 0.01 s");
    check_error(sl_group_recv(handles[0], &got, 1, SL_I32, 1, 3, NULL, NULL), SL_ERR_CANCELLED,
                "recv, tag 3: nothing came from rank 1 within 0.01 s");
    sl_group_destroy(&handles[0]);
    sl_group_destroy(&handles[1]);
}

static sl_status rank_0_leaves(sl_group *group, void *arg)
{
    return sl_group_rank(group) == 0 ? SL_OK : sl_group_barrier(group, NULL);
}

static void operation_after_a_rank_left_fails_at_once(void **state)
{
    assert_int_equal(sl_spawn(rank_0_leaves, NULL, 3, NULL), SL_ERR_CANCELLED);
    assert_non_null(strstr(sl_error_text(), "barrier, operation 1 of the group: rank 0 left"));
}

static sl_status call_different_things(sl_group *group, void *arg)
{
    float x[2] = {0};
    SL_TRY(sl_group_barrier(group, NULL));
    return sl_group_rank(group) == 1
               ? sl_group_broadcast(group, x, 2, SL_F32, 0, NULL)
               : sl_group_all_reduce(group, x, 1, SL_F32, SL_REDUCE_MAX, NULL);
}

static void mismatch_in_debug_mode_names_both_calls(void **state)
{
    sl_group_options options = {.check_collectives = true};
    assert_int_equal(sl_spawn(call_different_things, NULL, 3, &options), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(),
                           "operation 2 of the group differs: rank 0 called all_reduce(max, 1 x "
                           "f32), rank 1 broadcast(2 x f32, root 0)"));
}

static void mismatch_is_looked_for_where_the_environment_says_so(void **state)
{
    setenv("SL_DEBUG", "collectives", 1);
    check_error(sl_spawn(call_different_things, NULL, 3, NULL), SL_ERR_INVALID,
                "operation 2 of the group differs");
    unsetenv("SL_DEBUG");
}

/* Stops the whole process while the other rank waits for this one. */
static sl_status suspend_then_come(sl_group *group, void *arg)
{
    if (sl_group_rank(group) == 1) {
        usleep(50000);
        kill(getpid(), SIGSTOP);
        usleep(200000); /* the other one looks at its clock meanwhile */
    }
    SL_TRY(sl_group_barrier(group, NULL));
    int32_t x = 0;
    if (sl_group_rank(group) == 1) {
        usleep(50000);
        kill(getpid(), SIGSTOP);
        usleep(200000);
        return sl_group_send(group, &x, 1, SL_I32, 0, 0, NULL);
    }
    return sl_group_recv(group, &x, 1, SL_I32, 1, 0, NULL, NULL);
}

static void time_in_which_the_process_was_suspended_is_no_waiting(void **state)
{
    pid_t child = fork();
    if (child == 0) {
        sl_group_options options = {.timeout_seconds = 3};
        sl_status status = sl_spawn(suspend_then_come, NULL, 2, &options);
        if (status != SL_OK)
            print_error("%s\n", sl_error_text());
        _exit(status == SL_OK ? 0 : 1);
    }
    int status, stops = 0;
    for (; waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status); stops++) {
        sleep(4);
        kill(child, SIGCONT);
    }
    assert_int_equal(stops, 2);
    assert_int_equal(status, 0);
}

static void group_without_a_rank_is_refused(void **state)
{
    sl_group *handle;
    check_error(sl_group_create_local(0, NULL, &handle), SL_ERR_INVALID, "at least 1 rank, got 0");
}

int group_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_of_the_contract_holds),
        cmocka_unit_test(spawn_with_a_failing_rank_stops_the_others_and_names_it),
        cmocka_unit_test(spawn_blames_the_rank_that_broke_the_group),
        cmocka_unit_test(error_in_a_subgroup_names_the_rank_of_the_job),
        cmocka_unit_test(buffers_belong_to_their_owner_again_only_when_nobody_reads_them),
        cmocka_unit_test(time_limit_may_be_infinite),
        cmocka_unit_test(operation_past_its_time_limit_names_who_never_came),
        cmocka_unit_test(message_that_cannot_come_names_its_senders),
        cmocka_unit_test(operation_after_a_rank_left_fails_at_once),
        cmocka_unit_test(mismatch_in_debug_mode_names_both_calls),
        cmocka_unit_test(mismatch_is_looked_for_where_the_environment_says_so),
        cmocka_unit_test(time_in_which_the_process_was_suspended_is_no_waiting),
        cmocka_unit_test(group_without_a_rank_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
