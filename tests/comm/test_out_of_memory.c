/* Every allocation of a split fails in turn, on all ranks or on one: then all ranks are told, and
 * none gets a group. Allocations of the hub fail. Only where this program can put itself before
 * malloc, which sanitizers do themselves. */
#include "comm/mpi/hub.h"
#include "core/clock.h"
#include "sluice/group.h"
#include "support/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4 };

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static _Thread_local bool armed; /* this thread's allocations are counted */
static _Thread_local int before_failure;

void *__libc_calloc(size_t count, size_t bytes);

void *calloc(size_t count, size_t bytes)
{
    return armed && before_failure-- == 0 ? NULL : __libc_calloc(count, bytes);
}

typedef struct splits {
    int failing; /* this allocation, from 0 */
    atomic_int made, refused;
} splits;

static sl_status split_in_pairs(sl_group *group, void *arg)
{
    splits *all = arg;
    SCOPED(sl_group) *pair = NULL;
    before_failure = all->failing;
    armed = true;
    sl_status status = sl_group_split(group, sl_group_rank(group) % 2, &pair);
    armed = false;
    atomic_fetch_add(status == SL_OK ? &all->made : &all->refused, 1);
    if (status == SL_OK ? !pair : pair || status != SL_ERR_MEMORY)
        return sl_error(SL_ERR_INTERNAL, "a split's status and group do not agree");
    return status;
}

static void split_without_memory_fails_on_all_ranks(void **state)
{
    splits all = {.failing = -1};
    do {
        all = (splits){.failing = all.failing + 1};
        sl_status status = sl_spawn(split_in_pairs, &all, RANKS, NULL);
        if (status != SL_OK)
            check_error(status, SL_ERR_MEMORY, "rank 0: sl_group_create_local: no memory");
        assert_int_equal(status == SL_OK ? all.made : all.refused, RANKS);
    } while (all.refused > 0);
    assert_int_equal(all.failing, 2 * (1 + RANKS / 2)); /* what the groups and their handles take */
}

/* ---- On one rank alone -------------------------------------------------------------------- */

typedef struct lonely {
    int failing; /* this allocation of ... */
    int victim;  /* ... this rank */
    atomic_int made, refused, named;
} lonely;

/* With a communication thread, so that the barrier before the split needs memory as well. */
static sl_status split_where_one_lacks_memory(sl_group *group, void *arg)
{
    lonely *all = arg;
    SCOPED(sl_group) *both = NULL;
    sl_work *work;
    char name[16];
    SL_TRY(sl_group_barrier(group, &work));
    SL_TRY(sl_work_wait(&work));
    before_failure = all->failing;
    armed = sl_group_rank(group) == all->victim;
    sl_status status = sl_group_barrier(group, NULL);
    if (status == SL_OK)
        status = sl_group_split(group, 0, &both);
    armed = false;
    snprintf(name, sizeof name, "rank %d: ", all->victim);
    bool named = sl_group_rank(group) == all->victim || strstr(sl_error_text(), name);
    atomic_fetch_add(status == SL_OK ? &all->made : &all->refused, 1);
    atomic_fetch_add(&all->named, status != SL_OK && named);
    /* The call itself must end on both: sl_spawn would break the group for a rank that returns. */
    for (double until = sli_clock_seconds() + 10; all->made + all->refused < 2;)
        if (sli_clock_seconds() > until)
            return sl_error(SL_ERR_INTERNAL, "the other rank still waits");
    if (status == SL_OK ? !both : both || status != SL_ERR_MEMORY)
        return sl_error(SL_ERR_INTERNAL, "a split's status and group do not agree");
    return status;
}

static void split_where_one_rank_lacks_memory_fails_at_once_on_all(void **state)
{
    static const int failures[] = {1 + 3, 1}; /* a barrier; rank 0 makes the sub-group */
    for (int victim = 0; victim < 2; victim++) {
        lonely all = {.failing = -1};
        do {
            all = (lonely){.failing = all.failing + 1, .victim = victim};
            double begun = sli_clock_seconds();
            sl_status status = sl_spawn(split_where_one_lacks_memory, &all, 2, NULL);
            assert_true(sli_clock_seconds() - begun < 20); /* no time limit: 1,800 s */
            if (status != SL_OK)
                check_error(status, SL_ERR_MEMORY, "no memory");
            assert_int_equal(status == SL_OK ? all.made : all.refused, 2);
            assert_int_equal(all.named, all.refused);
        } while (all.refused > 0);
        assert_int_equal(all.failing, failures[victim]);
    }
}

/* ---- In the hub --------------------------------------------------------------------------- */

typedef struct told {
    int ready, broken;
} told;

static void count_told(void *hub, int process, const sli_wire_message *message)
{
    told *all = hub;
    all->ready += message->kind == SLI_HUB_READY;
    all->broken += message->kind == SLI_HUB_BREAK;
}

/* Two processes make one group after the other. Of each message one drawn allocation fails, or
 * none: both are told each time whether they have a group. */
static void hub_without_memory_tells_all_that_join(void **state)
{
    enum { PAIR = 2, GROUPS = 1000, MOST_ALLOCATIONS = 2 };
    static const int kinds[] = {SLI_HUB_JOIN, SLI_HUB_LEFT};
    told all = {0};
    sli_hub_groups groups = {.processes = PAIR, .send = count_told, .hub = &all};
    check_ok(sli_hub_groups_create(&groups));
    srand(1);
    for (int i = 0; i < GROUPS; i++) {
        for (int step = 0; step < 2 * PAIR; step++) {
            sli_wire_message message = {.kind = kinds[step / PAIR],
                                        .group = (uint64_t)i,
                                        .rank = step % PAIR,
                                        .size = PAIR};
            before_failure = rand() % (MOST_ALLOCATIONS + 1);
            armed = true;
            bool handled = sli_hub_groups_handle(&groups, step % PAIR, &message);
            armed = false;
            assert_true(handled);
        }
        assert_int_equal(all.ready + all.broken, PAIR * (i + 1));
    }
    assert_true(all.ready > 0 && all.broken > 0);
    sli_hub_groups_free(&groups);
}

#else

static void hub_without_memory_tells_all_that_join(void **state)
{
    print_message("skipped: this program cannot put itself before malloc\n");
    skip();
}

static void split_where_one_rank_lacks_memory_fails_at_once_on_all(void **state)
{
    print_message("skipped: this program cannot put itself before malloc\n");
    skip();
}

static void split_without_memory_fails_on_all_ranks(void **state)
{
    print_message("skipped: this program cannot put itself before malloc\n");
    skip();
}

#endif

int out_of_memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_without_memory_fails_on_all_ranks),
        cmocka_unit_test(split_where_one_rank_lacks_memory_fails_at_once_on_all),
        cmocka_unit_test(hub_without_memory_tells_all_that_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
