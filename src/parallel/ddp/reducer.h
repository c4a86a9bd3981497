/* The reducer: exchanges one parameter set's gradients with the other replicas, bucket by bucket,
 * while backward goes on. */
#ifndef SLI_PARALLEL_DDP_REDUCER_H
#define SLI_PARALLEL_DDP_REDUCER_H

#include "nn/module.h"
#include "parallel/ddp/bucket_exchange.h"
#include "sluice/ddp.h"

typedef struct sli_reducer sli_reducer;

/* Borrows the set and the groups, which the reducer uses alone during a step. `device_group` is
 * over `group`, for the set's device; NULL: buckets go through the host's memory. */
sl_status sli_reducer_create(sl_parameter_set *set, sl_group *group, sl_group *device_group,
                             int stage, sl_precision comm_precision, sli_reducer **out);
void sli_reducer_destroy(sli_reducer **reducer);

/* Sets how many terms a step's sum has over all ranks: at least one for each rank, which is the
 * default. sli_sum_tree_first says which are this rank's. Its last term is what begin and end
 * exchange; sli_reducer_add_term adds the gradients of each term before it. The average is the sum
 * times 1 / terms. Called once, after creation: it allocates the memory of the sums. */
sl_status sli_reducer_set_terms(sli_reducer *reducer, int terms);
sl_status sli_reducer_add_term(sli_reducer *reducer);

/* Between begin and end, the observer must be told of the modules that go backward for the last
 * time. Calls of one reducer come from one thread at a time. */
void sli_reducer_begin(sli_reducer *reducer, const sli_reduction *reduction);
const sli_pass_observer *sli_reducer_observer(const sli_reducer *reducer);

/* Sends the buckets that are left and waits for the end of the exchange. Returns the first error of
 * the step. */
sl_status sli_reducer_end(sli_reducer *reducer);

/* Instead of the end, when backward has failed: breaks the group with the error, whose text is the
 * calling thread's, so that the other replicas' steps end, and waits for the thread. */
void sli_reducer_abort(sli_reducer *reducer, sl_status error);

/* After a step, called by all ranks: buckets are sent from then on in the order in which rank 0's
 * became full in it. */
sl_status sli_reducer_rebuild_order(sli_reducer *reducer);

/* After a step, called by all ranks: a parameter that has a gradient on no rank has none again. */
sl_status sli_reducer_drop_unused(sli_reducer *reducer);

/* The set's trained parameters, and number `index` of them if the last step gave it no gradient,
 * else NULL. */
int sli_reducer_trained_count(const sli_reducer *reducer);
const sl_parameter *sli_reducer_missing(const sli_reducer *reducer, int index);

/* Writes what the last step did with each of the set's buckets, in the order of sending. Its times
 * count from `start`, on sli_clock_seconds' clock. */
void sli_reducer_log(const sli_reducer *reducer, double start, sl_ddp_bucket_log *logs);

#endif
