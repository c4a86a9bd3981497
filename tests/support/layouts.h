/* Pipes whose stages are on the ranks of a group, for tests over threads and over processes. */
#ifndef TESTS_SUPPORT_LAYOUTS_H
#define TESTS_SUPPORT_LAYOUTS_H

#include "sluice/group.h"

/* Draws a model, its precision, batches, buckets, replicas, a table and a placement on the ranks of
 * the group, all from the seed; trains, evaluates and runs forward; and compares losses, norms,
 * outputs, gradients, weights and the optimizer's state with those of one replica of one stage in
 * the same precision: they must have the same bits. */
sl_status layout_check(sl_group *group, unsigned seed);

#endif
