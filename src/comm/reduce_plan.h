/* How a reduction is done, whoever moves the bytes.
 *
 * Each rank owns a range of the elements. It gets every rank's nodes of the tree over the terms
 * (core/sum_tree.h; mostly one node a rank) for that range, adds them in the order of the tree, and
 * its result goes to the ranks that want it:
 *
 *     rank 0   a0 b0 c0  ──┐         ┌─ Σa ───┐          ┌─ Σa Σb Σc
 *     rank 1   a1 b1 c1  ──┤ move to ├─ Σb ───┤ move to  ├─ Σa Σb Σc
 *     rank 2   a2 b2 c2  ──┘ owners  └─ Σc ───┘ everyone └─ Σa Σb Σc
 *
 * For small data two moves cost more than they save: each rank then owns all elements, and nothing
 * moves after the sum. Ranges go in blocks: block k of an owner is the k-th of its range. Every
 * element is added up by one function in one order, so all backends give the same bits. */
#ifndef SLI_COMM_REDUCE_PLAN_H
#define SLI_COMM_REDUCE_PLAN_H

#include "comm/group.h"
#include "device/nccl.h"

typedef struct sli_reduce_plan {
    const sli_operation *operation; /* this rank's */
    int rank, size;
    bool each_owns_all;
    size_t element_bytes;
    int64_t block, blocks; /* elements of a block; blocks of the longest range */
    int node_count;        /* of all ranks */
    int *first;            /* [size + 1] each rank's first node, and node_count */
    uint8_t *sums;  /* [node_count] how often, after node n, the two newest nodes are added */
    int height;     /* the most nodes that this leaves waiting at once */
    char *received; /* [window][node_count][block] of the caller's: others' nodes; where a result
                       has no other place, it replaces this rank's own first node */
    int window;     /* blocks that are under way at once */
} sli_reduce_plan;

/* Plans ranges and sums; the caller gives memory for the two lists. */
void sli_reduce_plan_make(const sl_group *group, const sli_operation *operation, bool each_owns_all,
                          int *first /* [size + 1] */, uint8_t *sums /* [terms] */,
                          sli_reduce_plan *out);

/* Cuts the ranges into blocks of at most so many bytes. */
void sli_reduce_plan_cut(sli_reduce_plan *plan, size_t block_bytes);

/* Of `received`. */
size_t sli_reduce_received_bytes(const sli_reduce_plan *plan);

/* Elements of an owner's block; 0: its range has no block k. */
int64_t sli_reduce_count(const sli_reduce_plan *plan, int owner, int64_t k);

/* Whether `rank` wants the owner's results. */
bool sli_reduce_wants(const sli_reduce_plan *plan, int rank, int owner);

/* An owner's block in the memory of a rank that calls `operation`: of its node number `index`, and
 * of the result that it wants. */
const void *sli_reduce_input(const sli_reduce_plan *plan, const sli_operation *operation, int index,
                             int owner, int64_t k);
void *sli_reduce_output(const sli_reduce_plan *plan, const sli_operation *operation, int owner,
                        int64_t k);

/* What this rank adds up for its own block, and where the result goes. */
const void *sli_reduce_node(const sli_reduce_plan *plan, int node, int64_t k);
void *sli_reduce_result(const sli_reduce_plan *plan, int64_t k);

/* What this rank moves for block k, in the order in which it happens. */
typedef enum sli_reduce_step {
    SLI_NODES_IN,    /* for its own range, into `received` */
    SLI_NODES_OUT,   /* to the other owners */
    SLI_RESULTS_OUT, /* after the sum */
    SLI_RESULTS_IN,  /* replace the nodes, which must be out */
    SLI_REDUCE_STEPS
} sli_reduce_step;

/* The most moves of a step. */
int sli_reduce_most_moves(const sli_reduce_plan *plan, sli_reduce_step step);

/* Lists a step's moves, and gives their number. */
int sli_reduce_moves(const sli_reduce_plan *plan, sli_reduce_step step, int64_t k, sli_move *out);

/* out[i] = op over the nodes' elements i < count, in the order of their tree. `out` may be a node.
 * bf16 is added up in f32 and rounded once, to nearest even; an average is the sum times 1 / terms.
 * (reduce.c) */
void sli_reduce(const sli_reduce_plan *plan, const void *const *nodes, int64_t count, void *out);

#endif
