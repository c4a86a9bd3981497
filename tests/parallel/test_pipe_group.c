/* Pipes whose stages are on several ranks of a group. Over processes: tests/comm/test_mpi.c. */
#include "support/check.h"
#include "support/layouts.h"
#include "support/modules.h"
#include "support/replicas.h"

#include <stdio.h>
#include <string.h>

static sl_status check_layout(sl_group *group, void *arg)
{
    return layout_check(group, *(const unsigned *)arg);
}

static void every_layout_gives_the_bits_of_one_stage(void **state)
{
    (void)state;
    unsigned seed = test_seed(1);
    for (int i = 0; i < 40; i++) {
        unsigned own = seed + (unsigned)i;
        check_ranks(check_layout, &own, 1 + i % 4);
    }
}

int pipe_group_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_gives_the_bits_of_one_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
