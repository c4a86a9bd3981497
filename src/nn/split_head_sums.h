/* Sums over the blocks of a split head: nodes of the tree, and what its parts give to them. */
#ifndef SLI_NN_SPLIT_HEAD_SUMS_H
#define SLI_NN_SPLIT_HEAD_SUMS_H

#include "nn/split_head.h"

enum {
    SLI_HEAD_NODE_LOG_SUM,
    SLI_HEAD_NODE_TARGET_LOGIT,
    SLI_HEAD_NODE_NUMBERS
}; /* of a node's row */
enum {
    SLI_HEAD_ROW_LOG_SUM,
    SLI_HEAD_ROW_WEIGHT,
    SLI_HEAD_ROW_TARGET_WEIGHT
}; /* of a row's result */

/* Nodes that are not halves of one yet. */
typedef struct sli_head_nodes {
    int blocks; /* of the whole head */
    int64_t rows, width;
    int count, first[SLI_SUM_TREE_MOST_NODES];
    float *sums[SLI_SUM_TREE_MOST_NODES];     /* [rows, D] each */
    double *numbers[SLI_SUM_TREE_MOST_NODES]; /* [rows][SLI_HEAD_NODE_NUMBERS] each */
} sli_head_nodes;

/* Adds the node of blocks first … end - 1, whose data the caller has put where sums[count] and
 * numbers[count] point. */
void sli_head_nodes_push(sli_head_nodes *nodes, int first, int end);

static inline bool sli_class_range_has(const sli_class_range *range, int32_t target)
{
    return target >= range->first && target < range->end;
}

/* How many of the targets are in it. */
int64_t sli_class_range_count(const sli_class_range *range, const sl_tensor *targets);

#endif
