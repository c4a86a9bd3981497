#include "nn/split_head_sums.h"

#include "core/error.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* ---- Classes ---------------------------------------------------------------------------- */

int64_t sli_class_range_count(const sli_class_range *range, const sl_tensor *targets)
{
    int64_t count = 0;
    for (int64_t row = 0; row < sl_tensor_count(targets); row++)
        count += sli_class_range_has(range, sl_tensor_i32(targets)[row]);
    return count;
}

/* ---- Nodes ------------------------------------------------------------------------------ */

/* Adds a node to the one before it: rows of the gradient without its targets, and their numbers. */
static void add_node(int64_t rows, int64_t width, float *sums, double *numbers,
                     const float *more_sums, const double *more_numbers)
{
    for (int64_t row = 0; row < rows; row++) {
        double *own = numbers + row * SLI_HEAD_NODE_NUMBERS;
        const double *other = more_numbers + row * SLI_HEAD_NODE_NUMBERS;
        double most = own[SLI_HEAD_NODE_LOG_SUM] > other[SLI_HEAD_NODE_LOG_SUM]
                          ? own[SLI_HEAD_NODE_LOG_SUM]
                          : other[SLI_HEAD_NODE_LOG_SUM];
        double first = exp(own[SLI_HEAD_NODE_LOG_SUM] - most),
               second = exp(other[SLI_HEAD_NODE_LOG_SUM] - most);
        float own_weight = (float)(first / (first + second));
        float other_weight = (float)(second / (first + second));
        float *target = sums + row * width;
        const float *source = more_sums + row * width;
        for (int64_t i = 0; i < width; i++)
            target[i] = own_weight * target[i] + other_weight * source[i];
        own[SLI_HEAD_NODE_LOG_SUM] = most + log(first + second);
        own[SLI_HEAD_NODE_TARGET_LOGIT] += other[SLI_HEAD_NODE_TARGET_LOGIT];
    }
}

void sli_head_nodes_push(sli_head_nodes *nodes, int first, int end)
{
    nodes->first[nodes->count++] = first;
    while (nodes->count > 1 &&
           sli_sum_tree_has_node(nodes->first[nodes->count - 2], end, nodes->blocks)) {
        int top = --nodes->count;
        add_node(nodes->rows, nodes->width, nodes->sums[top - 1], nodes->numbers[top - 1],
                 nodes->sums[top], nodes->numbers[top]);
    }
}

/* ---- Reduction -------------------------------------------------------------------------- */

/* `weight`: the target's, where there is one. */
static void finish_row(const sli_split_head_reduction *reduction, int64_t row, const float *sums,
                       const double *numbers, const float *weight)
{
    int64_t width = sl_tensor_columns(reduction->grad_in);
    int32_t target = sl_tensor_i32(reduction->targets)[row];
    float *grad = sl_tensor_f32(reduction->grad_in) + row * width;
    double *result = (double *)sl_tensor_data(reduction->result) + row * SLI_SPLIT_HEAD_RESULTS;
    reduction->row_losses[row] = 0;
    result[SLI_HEAD_ROW_LOG_SUM] = numbers[SLI_HEAD_NODE_LOG_SUM];
    result[SLI_HEAD_ROW_WEIGHT] = result[SLI_HEAD_ROW_TARGET_WEIGHT] = 0;
    memset(grad, 0, (size_t)width * sizeof *grad);
    if (target < 0)
        return;
    double likelihood = numbers[SLI_HEAD_NODE_TARGET_LOGIT] - numbers[SLI_HEAD_NODE_LOG_SUM];
    reduction->row_losses[row] = -likelihood;
    result[SLI_HEAD_ROW_WEIGHT] = reduction->scale;
    result[SLI_HEAD_ROW_TARGET_WEIGHT] = reduction->scale * expm1(likelihood);
    for (int64_t i = 0; i < width; i++)
        grad[i] = (float)reduction->scale * sums[i];
    for (int64_t i = 0; i < width; i++)
        grad[i] += (float)result[SLI_HEAD_ROW_TARGET_WEIGHT] * weight[i];
}

/* Each row's target has its weight behind the nodes of the part that has its class: weights[part]
 * is where the next one of the part is. */
static void finish_rows(const sli_split_head_reduction *reduction, const sli_head_nodes *nodes,
                        const sli_class_range *ranges, const float **weights)
{
    for (int64_t row = 0; row < nodes->rows; row++) {
        int32_t target = sl_tensor_i32(reduction->targets)[row];
        const float *weight = NULL;
        for (int p = 0; p < reduction->parts && !weight; p++)
            if (sli_class_range_has(&ranges[p], target)) {
                weight = weights[p];
                weights[p] += nodes->width;
            }
        finish_row(reduction, row, nodes->sums[0] + row * nodes->width,
                   nodes->numbers[0] + row * SLI_HEAD_NODE_NUMBERS, weight);
    }
}

sl_status sli_split_head_reduce(const sli_split_head_reduction *reduction)
{
    sli_head_nodes nodes = {.blocks = reduction->blocks,
                            .rows = sl_tensor_rows(reduction->grad_in),
                            .width = sl_tensor_columns(reduction->grad_in)};
    sli_class_range ranges[reduction->parts];
    const float *weights[reduction->parts];
    for (int p = 0; p < reduction->parts; p++) {
        const sl_tensor *given = reduction->sums[p];
        int first, end, ends[SLI_SUM_TREE_MOST_NODES];
        sli_split_head_find_part(reduction->blocks, p, reduction->parts, &first, &end);
        ranges[p] = sli_class_range_of(reduction->classes, reduction->blocks, first, end);
        int count = sli_sum_tree_nodes(first, end, reduction->blocks, ends);
        int64_t rows = count * nodes.rows + sli_class_range_count(&ranges[p], reduction->targets);
        if (sl_tensor_rows(given) != rows)
            return sl_error(SL_ERR_INTERNAL, "a part of the head gave %lld rows, not %lld",
                            (long long)sl_tensor_rows(given), (long long)rows);
        weights[p] = sl_tensor_f32(given) + count * nodes.rows * nodes.width;
        for (int i = 0; i < count; first = ends[i++]) {
            nodes.sums[nodes.count] = sl_tensor_f32(given) + i * nodes.rows * nodes.width;
            nodes.numbers[nodes.count] = (double *)sl_tensor_data(reduction->numbers[p]) +
                                         i * nodes.rows * SLI_HEAD_NODE_NUMBERS;
            sli_head_nodes_push(&nodes, first, ends[i]);
        }
    }
    finish_rows(reduction, &nodes, ranges, weights);
    return SL_OK;
}
