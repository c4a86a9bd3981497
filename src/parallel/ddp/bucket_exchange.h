/* The exchange of a full bucket of gradients with the other replicas: which terms and nodes of the
 * sum are sent, in which precision, from the host's memory or the device's. When a bucket is full
 * is the reducer's business (parallel/ddp/reducer.h). */
#ifndef SLI_PARALLEL_DDP_BUCKET_EXCHANGE_H
#define SLI_PARALLEL_DDP_BUCKET_EXCHANGE_H

#include "core/sum_tree.h"
#include "sluice/ddp.h"
#include "sluice/module.h"

/* What a step's exchange is. */
typedef struct sli_reduction {
    sl_ddp_hook hook; /* NULL: the average */
    void *hook_arg;
    int divisor; /* the average is the sum divided by it; 0: by the number of ranks */
} sli_reduction;

typedef struct sli_bucket_exchange {
    sl_parameter_set *set;          /* borrowed, as the groups */
    sl_group *group, *device_group; /* the latter over the former, by NCCL; NULL: there is none */
    sl_precision comm_precision;
    sli_reduction reduction; /* of the step under way */

    int terms, first_term, end_term;   /* of all ranks; this one's */
    int64_t elements;                  /* of all buckets */
    int64_t *offsets;                  /* [buckets] where each begins in a node */
    sl_tensor **sums;                  /* [room] the stack's nodes, each [elements] */
    int room, nodes;                   /* on the stack; a step ends with none */
    int ends[SLI_SUM_TREE_MOST_NODES]; /* [nodes] where each ends among the terms */
} sli_bucket_exchange;

sl_status sli_bucket_exchange_init(sli_bucket_exchange *exchange, sl_parameter_set *set,
                                   sl_group *group, sl_group *device_group,
                                   sl_precision comm_precision);

/* Zeroed memory is fine. */
void sli_bucket_exchange_destroy(sli_bucket_exchange *exchange);

/* As sli_reducer_set_terms. */
sl_status sli_bucket_exchange_set_terms(sli_bucket_exchange *exchange, int terms);

/* Adds all buckets' gradients to the stack as the next term. Not for this rank's last term. */
sl_status sli_bucket_exchange_add_term(sli_bucket_exchange *exchange);

/* Replaces the bucket's gradients, in the memory of the set's device, by the average of all terms
 * or by the hook's result. This rank's last term is the bucket's gradients. Blocks until all
 * replicas have sent theirs. */
sl_status sli_bucket_exchange_run(const sli_bucket_exchange *exchange, sl_ddp_bucket *bucket);

/* Bytes of an element as it is sent. */
size_t sli_bucket_exchange_element_bytes(const sli_bucket_exchange *exchange);

#endif
