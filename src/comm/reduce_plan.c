#include "comm/reduce_plan.h"

#include "core/sum_tree.h"

/* ---- The tree ----------------------------------------------------------------------------- */

/* Lists every rank's nodes, and the sums after each: core/sum_tree.h's stack. */
static void list_nodes(sli_reduce_plan *plan)
{
    int begins[SLI_SUM_TREE_DEPTH], top = 0, begin = 0, terms = plan->operation->terms;
    for (int r = 0; r < plan->size; r++) {
        int ends[SLI_SUM_TREE_MOST_NODES];
        int count = sli_sum_tree_nodes(sli_sum_tree_first(terms, r, plan->size),
                                       sli_sum_tree_first(terms, r + 1, plan->size), terms, ends);
        plan->first[r] = plan->node_count;
        for (int n = 0; n < count; n++, plan->node_count++) {
            uint8_t *sums = &plan->sums[plan->node_count];
            begins[top++] = begin;
            plan->height = top > plan->height ? top : plan->height;
            *sums = 0;
            for (; top > 1 && sli_sum_tree_has_node(begins[top - 2], ends[n], terms); top--)
                ++*sums;
            begin = ends[n];
        }
    }
    plan->first[plan->size] = plan->node_count;
}

/* ---- Ranges and blocks -------------------------------------------------------------------- */

/* Ranges begin at multiples of 64 elements, so that no two ranks write one cache line; those of
 * reduce_scatter are the caller's. */
static int64_t range_start(const sli_reduce_plan *plan, int owner)
{
    int64_t count = plan->operation->count;
    if (plan->each_owns_all)
        return 0;
    if (plan->operation->kind == SLI_OP_REDUCE_SCATTER)
        return owner * count;
    return owner == plan->size ? count : count / plan->size * owner / 64 * 64;
}

static int64_t range_count(const sli_reduce_plan *plan, int owner)
{
    return plan->each_owns_all ? plan->operation->count
                               : range_start(plan, owner + 1) - range_start(plan, owner);
}

static size_t block_offset(const sli_reduce_plan *plan, int owner, int64_t k)
{
    return (size_t)(range_start(plan, owner) + k * plan->block) * plan->element_bytes;
}

int64_t sli_reduce_count(const sli_reduce_plan *plan, int owner, int64_t k)
{
    int64_t left = range_count(plan, owner) - k * plan->block;
    return left < 0 ? 0 : left < plan->block ? left : plan->block;
}

void sli_reduce_plan_make(const sl_group *group, const sli_operation *operation, bool each_owns_all,
                          int *first, uint8_t *sums, sli_reduce_plan *out)
{
    *out = (sli_reduce_plan){.operation = operation,
                             .rank = group->rank,
                             .size = group->size,
                             .each_owns_all = each_owns_all,
                             .element_bytes = sl_dtype_bytes(operation->dtype),
                             .first = first,
                             .sums = sums,
                             .window = 1};
    list_nodes(out);
}

void sli_reduce_plan_cut(sli_reduce_plan *plan, size_t block_bytes)
{
    int64_t longest = 1, most = (int64_t)(block_bytes / plan->element_bytes);
    for (int owner = 0; owner < plan->size; owner++) {
        int64_t count = range_count(plan, owner);
        longest = count > longest ? count : longest;
    }
    plan->block = most < 1 ? 1 : most < longest ? most : longest;
    plan->blocks = (longest + plan->block - 1) / plan->block;
}

size_t sli_reduce_received_bytes(const sli_reduce_plan *plan)
{
    if (plan->size == 1)
        return 0;
    return (size_t)plan->window * (size_t)plan->node_count * (size_t)plan->block *
           plan->element_bytes;
}

/* ---- Where data are ----------------------------------------------------------------------- */

bool sli_reduce_wants(const sli_reduce_plan *plan, int rank, int owner)
{
    const sli_operation *operation = plan->operation;
    if (plan->each_owns_all || operation->kind == SLI_OP_REDUCE_SCATTER)
        return rank == owner;
    return operation->kind == SLI_OP_ALL_REDUCE || rank == operation->root;
}

const void *sli_reduce_input(const sli_reduce_plan *plan, const sli_operation *operation, int index,
                             int owner, int64_t k)
{
    return (const char *)sli_operation_node(operation, index) + block_offset(plan, owner, k);
}

void *sli_reduce_output(const sli_reduce_plan *plan, const sli_operation *operation, int owner,
                        int64_t k)
{
    bool is_range = operation->kind == SLI_OP_REDUCE_SCATTER; /* `out` has one range alone */
    return (char *)operation->out + block_offset(plan, is_range ? 0 : owner, k);
}

static void *received_node(const sli_reduce_plan *plan, int node, int64_t k)
{
    int64_t block = k % plan->window * plan->node_count + node;
    return plan->received + (size_t)(block * plan->block) * plan->element_bytes;
}

const void *sli_reduce_node(const sli_reduce_plan *plan, int node, int64_t k)
{
    const int *owned = &plan->first[plan->rank];
    return node >= owned[0] && node < owned[1]
               ? sli_reduce_input(plan, plan->operation, node - owned[0], plan->rank, k)
               : received_node(plan, node, k);
}

void *sli_reduce_result(const sli_reduce_plan *plan, int64_t k)
{
    return sli_reduce_wants(plan, plan->rank, plan->rank)
               ? sli_reduce_output(plan, plan->operation, plan->rank, k)
               : received_node(plan, plan->first[plan->rank], k);
}

/* ---- Moves -------------------------------------------------------------------------------- */

int sli_reduce_most_moves(const sli_reduce_plan *plan, sli_reduce_step step)
{
    const int *owned = &plan->first[plan->rank];
    return step == SLI_NODES_IN    ? plan->node_count
           : step == SLI_NODES_OUT ? plan->size * (owned[1] - owned[0])
                                   : plan->size;
}

/* The moves from or to another rank, behind `count` others. */
static int add_moves(const sli_reduce_plan *plan, sli_reduce_step step, int peer, int64_t k,
                     sli_move *out, int count)
{
    bool receives = step == SLI_NODES_IN || step == SLI_RESULTS_IN;
    int owner = step == SLI_NODES_IN || step == SLI_RESULTS_OUT ? plan->rank : peer;
    size_t bytes = (size_t)sli_reduce_count(plan, owner, k) * plan->element_bytes;
    if (bytes == 0)
        return count;
    if (step == SLI_NODES_IN)
        for (int n = plan->first[peer]; n < plan->first[peer + 1]; n++)
            out[count++] = (sli_move){received_node(plan, n, k), bytes, peer, receives};
    else if (step == SLI_NODES_OUT)
        for (int n = 0; n < plan->first[plan->rank + 1] - plan->first[plan->rank]; n++)
            out[count++] = (sli_move){(void *)sli_reduce_input(plan, plan->operation, n, peer, k),
                                      bytes, peer, receives};
    else if (sli_reduce_wants(plan, receives ? plan->rank : peer, owner))
        out[count++] = (sli_move){receives ? sli_reduce_output(plan, plan->operation, owner, k)
                                           : sli_reduce_result(plan, k),
                                  bytes, peer, receives};
    return count;
}

int sli_reduce_moves(const sli_reduce_plan *plan, sli_reduce_step step, int64_t k, sli_move *out)
{
    bool receives = step == SLI_NODES_IN || step == SLI_RESULTS_IN;
    int count = 0;
    for (int i = 1; i < plan->size; i++) { /* not all to the same rank first */
        int peer = (plan->rank + (receives ? plan->size - i : i)) % plan->size;
        count = add_moves(plan, step, peer, k, out, count);
    }
    return count;
}
