/* Every allocation of a split fails in turn: then all ranks are told, and none gets a group. Only
 * where this program can put itself before malloc, which sanitizers do themselves. */
#include "sluice/group.h"
#include "support/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

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
    sl_group *pair;
    before_failure = all->failing;
    armed = true;
    sl_status status = sl_group_split(group, sl_group_rank(group) % 2, &pair);
    armed = false;
    atomic_fetch_add(status == SL_OK ? &all->made : &all->refused, 1);
    if (status == SL_OK ? !pair : pair || status != SL_ERR_MEMORY)
        return sl_error(SL_ERR_INTERNAL, "a split's status and group do not agree");
    sl_group_destroy(&pair);
    return status;
}

static void split_without_memory_fails_on_all_ranks(void **state)
{
    (void)state;
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

#else

static void split_without_memory_fails_on_all_ranks(void **state)
{
    (void)state;
    print_message("skipped: this program cannot put itself before malloc\n");
    skip();
}

#endif

int out_of_memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_without_memory_fails_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
