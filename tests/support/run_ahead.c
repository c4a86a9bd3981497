#define _GNU_SOURCE /* sched_setaffinity, SCHED_BATCH */

#include "support/run_ahead.h"
#include "support/check.h"

#include <sched.h>

void let_stages_run_ahead(void)
{
    const struct sched_param first = {.sched_priority = 1}, none = {0};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    if (sched_setscheduler(0, SCHED_FIFO, &first) != 0)
        assert_int_equal(sched_setscheduler(0, SCHED_BATCH, &none), 0);
}
