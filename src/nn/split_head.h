/* Cross entropy after a head whose classes are split over several devices (arXiv 2411.05288).
 *
 * The head's V classes are cut into blocks, whose number belongs to the run. Each device has a
 * part: whole blocks that lie next to each other. For each micro-batch, with x [rows, D] and W [V,
 * D]:
 *
 *   forward, on every part    for each block b   p_b = softmax(x W_b^T), its log sum exp, p_b W_b
 *                             added up over blocks, as far as they make nodes of one tree
 *   reduce, on one device     adds the nodes of all parts: loss, and the gradient of x
 *   backward, on every part   dW_b = (w_b p_b)^T x, where w_b is what the block's softmax is of the
 *                             whole one
 *
 * A sum over two nodes weighs each by its part of both: e^(lse_1 - lse) and e^(lse_2 - lse). The
 * targets' classes are left out of p_b and added in reduce and backward, so that p - 1 is exact
 * where p is near 1 and p_b is rounded to bf16. Forward gives their weights besides: who reduces
 * needs no W.
 *
 * Products are of one block, and sums over blocks are in the tree of core/sum_tree.h: no bit
 * depends on how many parts there are. */
#ifndef SLI_NN_SPLIT_HEAD_H
#define SLI_NN_SPLIT_HEAD_H

#include "core/sum_tree.h"
#include "nn/layers.h"

/* A part. Tensors are on its device, which must reach the host's memory. */
typedef struct sli_split_head {
    int64_t classes, width;             /* of the whole head: V, D */
    int blocks;                         /* into which V is cut */
    int first, end;                     /* the part's */
    const sl_tensor *weight;            /* [part's classes, D] f32, or bf16 for products of it */
    const sl_tensor *bias;              /* [part's classes] f32; NULL */
    sl_tensor *weight_grad, *bias_grad; /* f32 */
    /* The next backward overwrites them, the others add to them. */
    bool weight_grad_is_stale, bias_grad_is_stale;
} sli_split_head;

/* The first class of a block; V of block `blocks`. */
int64_t sli_split_head_first_class(int64_t classes, int blocks, int block);

/* The first class of a part, and the one after its last. */
typedef struct sli_class_range {
    int64_t first, end;
} sli_class_range;

/* Those of blocks first … end - 1. */
sli_class_range sli_class_range_of(int64_t classes, int blocks, int first, int end);

/* The part's. */
sli_class_range sli_split_head_range(const sli_split_head *part);

/* Sets the blocks of part `index` of `parts`, first … end - 1, of those that the head is cut into.
 */
void sli_split_head_find_part(int blocks, int index, int parts, int *first, int *end);

/* What its time is of the whole head's. */
double sli_split_head_fraction(int blocks, int index, int parts);

/* What a part keeps of a micro-batch between forward and backward. */
typedef struct sli_split_head_record {
    sl_tensor *in;      /* x as products take it */
    sl_tensor *targets; /* i32 [rows] */
    sl_tensor *softmax; /* of all its blocks, one behind the other: [rows, columns of a block] each,
                           in the data type of products */
    double *log_sums;   /* [blocks][rows] */
} sli_split_head_record;

void sli_split_head_clear(sli_split_head_record *record);

/* Refuses what cannot be split over so many parts: `model`'s last module in that precision.
 * `on_host`: all parts' devices reach the host's memory. */
sl_status sli_split_head_check(const sl_module *model, sl_precision precision, bool on_host,
                               int blocks, int parts);

/* Into so many blocks a head is cut for which `blocks` were asked for: each has a class. */
int sli_split_head_blocks(int64_t classes, int blocks);

/* What the largest of so many parts needs for a micro-batch of so many rows, in bytes. */
typedef struct sli_split_head_bytes {
    int64_t record;    /* without x and the targets */
    int64_t sums;      /* that forward gives */
    int64_t all_sums;  /* that those of all parts give */
    int64_t workspace; /* of forward */
} sli_split_head_bytes;

sli_split_head_bytes sli_split_head_plan(int64_t classes, int64_t width, int blocks, int parts,
                                         int64_t rows, bool bf16);

/* `in` is f32 or bf16. Fills the record, which is empty. *sums [nodes * rows + targets, D] and
 * *numbers [nodes * rows, 2] f64 (log sum exp, and the target's logit or 0) of the part's nodes are
 * the caller's. Behind the nodes' rows stand the weights of those rows' targets that are the
 * part's. */
sl_status sli_split_head_forward(const sli_split_head *part, const sl_tensor *in,
                                 const sl_tensor *targets, sli_split_head_record *record,
                                 sl_tensor **sums, sl_tensor **numbers);

/* What one device makes of all parts'. */
typedef struct sli_split_head_reduction {
    int64_t classes;
    int blocks, parts;
    sl_tensor *const *sums, *const *numbers; /* [parts] in the order of their blocks; their content
                                                is used up */
    const sl_tensor *targets;                /* i32 [rows]; one that is negative has no loss */
    double scale;                            /* of the gradient */
    double *row_losses;                      /* [rows] set */
    sl_tensor *grad_in;                      /* f32 [rows, D] set */
    sl_tensor *result;                       /* f64 [rows, 3] set: what backward takes */
} sli_split_head_reduction;

enum { SLI_SPLIT_HEAD_RESULTS = 3 };

sl_status sli_split_head_reduce(const sli_split_head_reduction *reduction);

/* Adds to the part's gradients, and clears the record. */
sl_status sli_split_head_backward(sli_split_head *part, sli_split_head_record *record,
                                  const sl_tensor *result);

#endif
