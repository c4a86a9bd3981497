/* The tree in which the shards' or ranks' terms of a sum are added.
 *
 * Terms 0 … n - 1 are split at the largest power of two below n, and so is each half:
 *
 *     n = 5    (((0 1) (2 3)) 4)         n = 7    (((0 1) (2 3)) ((4 5) 6))
 *
 * A node is the sum of some neighbouring terms that is a subtree. The nodes do not depend on which
 * rank adds them, nor do the sum's bits.
 *
 * Nodes are added with a stack: push the next one; while the two on top are the halves of a node,
 * replace them by their sum. From term 0 on it has at most SLI_SUM_TREE_DEPTH nodes. */
#ifndef SLI_CORE_SUM_TREE_H
#define SLI_CORE_SUM_TREE_H

#include <stdbool.h>

enum { SLI_SUM_TREE_DEPTH = 32, SLI_SUM_TREE_MOST_NODES = 2 * SLI_SUM_TREE_DEPTH };

/* Whether terms first … end - 1 make up one node of the tree over `terms` terms. If they do, the
 * two nodes on top of the stack that cover them are its halves. */
bool sli_sum_tree_has_node(int first, int end, int terms);

/* The fewest nodes that terms first … end - 1 add up to: ends[i] is where node i ends and the next
 * one begins. Returns their number. */
int sli_sum_tree_nodes(int first, int end, int terms, int ends[SLI_SUM_TREE_MOST_NODES]);

/* The most nodes that the stack holds while terms first … end - 1 are pushed. */
int sli_sum_tree_height(int first, int end, int terms);

/* The first of holder `index`'s terms; `terms` for `index` = `holders`. Holders have neighbouring
 * terms, as evenly as possible; the first ones have one more. */
int sli_sum_tree_first(int terms, int index, int holders);

/* The sum of all terms; 0 without any. */
double sli_sum_tree_add(const double *values, int terms);

#endif
