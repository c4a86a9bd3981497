/* Who owns the values, gradients and optimizer of a split head (pipe_head.c).
 *
 *     all ranks in one process     the last stage. A rank's part is a view of its rows: parts are
 *                                  of different classes, so ranks write different rows
 *     in several                   the head is cut: each rank owns its part, which is in the set of
 *                                  the rank's first stage. Updates need no exchange. The head's
 *                                  own parameters have memory only while they are evaluated: the
 *                                  last stage then has a copy of the whole head, which it gets
 *                                  before the first forward after a change, until the next step
 *     in several, a tied head      the stage of the parameter that it is tied to. The last stage's
 *                                  process has views. Another one has a copy of its classes'
 *                                  values, which it gets before the first batch after a change, and
 *                                  gradients of its own, which it sends back after the table, as
 *                                  for tied parameters (pipe_tied.c) */
#include "parallel/pipe/pipe_head.h"

#include "core/error.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/pipe/pipe.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

enum { WEIGHT, BIAS }; /* of a part's own */

static const sli_stage *last_stage(const sl_pipe *pipe)
{
    return &pipe->stages[pipe->stage_count - 1];
}

static const sli_linear *find_head(const sl_pipe *pipe)
{
    return sli_pipe_find_head(pipe->model);
}

/* ---- Who owns it ------------------------------------------------------------------------ */

static bool is_in_one_process(const sl_pipe *pipe)
{
    for (int i = 1; i < pipe->rank_count; i++)
        if (pipe->ranks[i].group_rank != pipe->ranks[0].group_rank)
            return false;
    return true;
}

/* The part's rows of one of the head's parameters. */
static sl_parameter cut_parameter(const sl_parameter *whole, const sli_split_head *head)
{
    sli_class_range range = sli_split_head_range(head);
    sl_parameter part = *whole;
    part.first = range.first * (sl_shape_count(&whole->shape) / head->classes);
    part.shape.size[0] = range.end - range.first;
    part.value = part.grad = part.bf16 = NULL;
    return part;
}

static sl_status check_unplaced(const sli_linear *head)
{
    SL_TRY(sli_parameter_check_unplaced(head->weight));
    return head->bias ? sli_parameter_check_unplaced(head->bias) : SL_OK;
}

sl_status sli_pipe_cut_head(sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe);
    pipe->head_is_tied = sli_linear_is_tied(linear);
    pipe->head_is_cut = sli_split_head_is_cut(linear, is_in_one_process(pipe));
    if (!pipe->head_is_cut)
        return SL_OK;
    SL_TRY(check_unplaced(linear)); /* parts' sets do not hold it */
    for (int i = 0; i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        part->own[WEIGHT] = cut_parameter(linear->weight, &part->head);
        if (linear->bias)
            part->own[BIAS] = cut_parameter(linear->bias, &part->head);
        part->own_count = linear->bias ? 2 : 1;
    }
    return SL_OK;
}

int sli_stage_list_parts(const sl_pipe *pipe, sli_stage *stage,
                         sl_parameter *parts[SLI_HEAD_PARAMETERS], int *modules)
{
    *modules = stage->count - (pipe->head_is_cut && stage->is_last);
    if (!pipe->head_is_cut || !stage->part)
        return 0;
    for (int i = 0; i < stage->part->own_count; i++)
        parts[i] = &stage->part->own[i];
    return stage->part->own_count;
}

/* ---- Tensors of parts --------------------------------------------------------------------- */

static const sl_tensor *product_values(const sl_parameter *parameter)
{
    return parameter->bf16 ? parameter->bf16 : parameter->value;
}

/* Handles on a part's own parameters. */
static sl_status alias_own(sli_head_part *part)
{
    const sl_parameter *weight = &part->own[WEIGHT], *bias = &part->own[BIAS];
    SL_TRY(sl_tensor_alias(product_values(weight), &part->weight));
    SL_TRY(sl_tensor_alias(weight->grad, &part->weight_grad));
    if (part->own_count <= BIAS)
        return SL_OK;
    SL_TRY(sl_tensor_alias(bias->value, &part->bias));
    return bias->grad ? sl_tensor_alias(bias->grad, &part->bias_grad) : SL_OK;
}

/* A view of the classes' rows of a tensor of the head, for the part's device. */
static sl_status view_classes(const sli_split_head *head, const sl_tensor *whole, sl_device *device,
                              sl_tensor **out)
{
    sli_class_range range = sli_split_head_range(head);
    SL_TRY(sli_tensor_narrow(whole, range.first, range.end - range.first, out));
    sli_tensor_hand_over(*out, device);
    return SL_OK;
}

static sl_status view_head(const sli_linear *linear, sl_device *device, sli_head_part *part)
{
    const sli_split_head *head = &part->head;
    SL_TRY(view_classes(head, product_values(linear->weight), device, &part->weight));
    if (linear->weight->grad)
        SL_TRY(view_classes(head, linear->weight->grad, device, &part->weight_grad));
    if (!linear->bias)
        return SL_OK;
    SL_TRY(view_classes(head, linear->bias->value, device, &part->bias));
    return linear->bias->grad ? view_classes(head, linear->bias->grad, device, &part->bias_grad)
                              : SL_OK;
}

static sl_status copy_head(const sl_pipe *pipe, const sli_linear *linear, sl_device *device,
                           sli_head_part *part)
{
    sli_class_range range = sli_split_head_range(&part->head);
    int64_t count = range.end - range.first;
    sl_shape weight = sl_shape_2d(count, linear->in), bias = sl_shape_1d(count);
    sl_dtype dtype = pipe->precision == SL_PRECISION_BF16 ? SL_BF16 : SL_F32;
    SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, dtype, &weight, &part->weight));
    if (linear->bias)
        SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, SL_F32, &bias, &part->bias));
    SL_TRY(sl_tensor_create(device, SL_MEMORY_GRADIENTS, SL_F32, &weight, &part->weight_grad));
    return sli_linear_trains_bias(linear)
               ? sl_tensor_create(device, SL_MEMORY_GRADIENTS, SL_F32, &bias, &part->bias_grad)
               : SL_OK;
}

static sl_status place_part(const sl_pipe *pipe, sl_device *device, sli_head_part *part)
{
    const sli_linear *linear = find_head(pipe);
    if (pipe->head_is_cut)
        return alias_own(part);
    return last_stage(pipe)->is_here ? view_head(linear, device, part)
                                     : copy_head(pipe, linear, device, part);
}

sl_status sli_pipe_place_head(sl_pipe *pipe)
{
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        if (!pipe->ranks[i].device)
            continue;
        SL_TRY(place_part(pipe, pipe->ranks[i].device, part));
        part->head.weight = part->weight;
        part->head.bias = part->bias;
        part->head.weight_grad = part->weight_grad;
        part->head.bias_grad = part->bias_grad;
    }
    return SL_OK;
}

static void destroy_whole(sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe);
    pipe->has_whole_head = false;
    if (!pipe->made_whole_head)
        return;
    pipe->made_whole_head = false;
    sl_tensor_destroy(&linear->weight->bf16);
    sl_tensor_destroy(&linear->weight->value);
    if (linear->bias)
        sl_tensor_destroy(&linear->bias->value);
}

void sli_pipe_clear_head(sl_pipe *pipe)
{
    if (pipe->head_is_cut)
        destroy_whole(pipe);
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        sl_tensor_destroy(&part->weight);
        sl_tensor_destroy(&part->bias);
        sl_tensor_destroy(&part->weight_grad);
        sl_tensor_destroy(&part->bias_grad);
    }
}

/* ---- Between processes -------------------------------------------------------------------- */

/* The other process's rank of the group, where this one has just the last stage or just the part;
 * -1: both are in one process, or neither is here. */
static int other_process(const sl_pipe *pipe, int rank)
{
    const sli_stage *last = last_stage(pipe);
    int part = pipe->ranks[rank].group_rank;
    if (part == last->group_rank)
        return -1;
    return last->is_here ? part : pipe->ranks[rank].device ? last->group_rank : -1;
}

/* Sends or receives a part's rows of one of the head's tensors. `whole` is the last stage's, `copy`
 * the part's; the process has one of them. */
static sl_status exchange_rows(const sl_pipe *pipe, int rank, bool to_part, const sl_tensor *whole,
                               sl_tensor *copy)
{
    const sli_split_head *head = &pipe->parts[rank].head;
    bool is_last = last_stage(pipe)->is_here;
    int other = other_process(pipe, rank);
    sl_tensor *rows = NULL;
    if (is_last)
        SL_TRY(view_classes(head, whole, last_stage(pipe)->device, &rows));
    const sl_tensor *data = is_last ? rows : copy;
    int64_t count = sl_tensor_count(data);
    sl_dtype dtype = sl_tensor_dtype(data);
    sl_status status =
        is_last == to_part
            ? sli_pipe_group_send(pipe->group, sl_tensor_data(data), count, dtype, other)
            : sli_pipe_group_receive(pipe->group, sl_tensor_data(data), count, dtype, other);
    sl_tensor_destroy(&rows);
    return status;
}

static sl_status send_values(const sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe);
    for (int i = 0; i < pipe->rank_count; i++) {
        const sli_head_part *part = &pipe->parts[i];
        if (other_process(pipe, i) < 0)
            continue;
        SL_TRY(exchange_rows(pipe, i, true, product_values(linear->weight), part->weight));
        if (linear->bias)
            SL_TRY(exchange_rows(pipe, i, true, linear->bias->value, part->bias));
    }
    return SL_OK;
}

/* Memory for the whole head, as products take it. */
static sl_status create_whole(sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe);
    sl_parameter *weight = linear->weight, *bias = linear->bias;
    sl_device *device = last_stage(pipe)->device;
    bool is_narrow = pipe->precision == SL_PRECISION_BF16;
    if (pipe->made_whole_head)
        return SL_OK;
    SL_TRY(check_unplaced(linear));
    pipe->made_whole_head = true;
    SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, is_narrow ? SL_BF16 : SL_F32,
                            &weight->shape, &weight->value));
    if (is_narrow)
        SL_TRY(sl_tensor_alias(weight->value, &weight->bf16));
    return bias ? sl_tensor_create(device, SL_MEMORY_PARAMETERS, SL_F32, &bias->shape, &bias->value)
                : SL_OK;
}

/* Gives the last stage a part's rows of a parameter. */
static sl_status give_rows(const sl_pipe *pipe, int rank, const sl_parameter *parameter,
                           sl_tensor *own)
{
    const sli_stage *last = last_stage(pipe);
    const sli_head_part *part = &pipe->parts[rank];
    sl_tensor *rows;
    if (other_process(pipe, rank) >= 0)
        return exchange_rows(pipe, rank, false, parameter->value, own);
    if (!last->is_here)
        return SL_OK;
    SL_TRY(view_classes(&part->head, parameter->value, last->device, &rows));
    memcpy(sl_tensor_data(rows), sl_tensor_data(own), sli_tensor_bytes(own));
    sl_tensor_destroy(&rows);
    return SL_OK;
}

static sl_status collect_whole(const sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe);
    for (int i = 0; i < pipe->rank_count; i++) {
        const sli_head_part *part = &pipe->parts[i];
        SL_TRY(give_rows(pipe, i, linear->weight, part->weight));
        if (linear->bias)
            SL_TRY(give_rows(pipe, i, linear->bias, part->bias));
    }
    return SL_OK;
}

/* A forward that nothing follows runs the head in the last stage. */
static sl_status exchange_whole(sl_pipe *pipe, const sli_step *step)
{
    if (step->backward)
        destroy_whole(pipe);
    if (step->backward || (pipe->has_whole_head && step->same_weights))
        return SL_OK;
    sl_status status = sli_pipe_agree(pipe, last_stage(pipe)->is_here ? create_whole(pipe) : SL_OK);
    if (status == SL_OK)
        status = sli_pipe_group_check(pipe->group, collect_whole(pipe));
    if (status != SL_OK)
        destroy_whole(pipe);
    pipe->has_whole_head = status == SL_OK;
    return status;
}

/* Copies of parts are needed in steps that go backward alone. */
sl_status sli_pipe_exchange_head(sl_pipe *pipe, const sli_step *step)
{
    if (pipe->head_is_cut)
        return exchange_whole(pipe, step);
    pipe->has_new_weights |= !step->same_weights;
    if (!pipe->parts || !step->backward || !pipe->has_new_weights)
        return SL_OK;
    pipe->has_new_weights = false;
    return sli_pipe_group_check(pipe->group, send_values(pipe));
}

/* ---- Gradients --------------------------------------------------------------------------- */

static sl_status send_gradients(const sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe);
    for (int i = 0; i < pipe->rank_count; i++) {
        const sli_head_part *part = &pipe->parts[i];
        if (other_process(pipe, i) < 0)
            continue;
        SL_TRY(exchange_rows(pipe, i, false, linear->weight->grad, part->weight_grad));
        if (sli_linear_trains_bias(linear))
            SL_TRY(exchange_rows(pipe, i, false, linear->bias->grad, part->bias_grad));
    }
    return SL_OK;
}

sl_status sli_pipe_gather_head(sl_pipe *pipe)
{
    if (!pipe->parts)
        return SL_OK;
    const sli_linear *linear = find_head(pipe);
    for (int i = 0; i < pipe->rank_count; i++)
        for (int k = 0; k < pipe->parts[i].own_count; k++)
            pipe->parts[i].own[k].grad_is_stale = false;
    linear->weight->grad_is_stale = false;
    if (linear->bias)
        linear->bias->grad_is_stale = false;
    return pipe->group && !pipe->head_is_cut
               ? sli_pipe_group_check(pipe->group, send_gradients(pipe))
               : SL_OK;
}

/* A copy's gradient is whole as long as the last stage's parameter keeps its own: that of a tied
 * parameter is added to its owner's after each batch. */
static void begin_part(const sl_pipe *pipe, sli_head_part *part)
{
    const sli_linear *linear = find_head(pipe);
    sli_split_head *head = &part->head;
    if (pipe->head_is_cut) {
        head->weight_grad_is_stale = part->own[WEIGHT].grad_is_stale;
        head->bias_grad_is_stale = part->own[BIAS].grad_is_stale;
    } else if (last_stage(pipe)->is_here) {
        head->weight_grad_is_stale = linear->weight->grad_is_stale;
        head->bias_grad_is_stale = linear->bias && linear->bias->grad_is_stale;
    } else {
        head->weight_grad_is_stale |= linear->weight->tied_to != NULL;
    }
}

void sli_pipe_begin_head(sl_pipe *pipe)
{
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++)
        begin_part(pipe, &pipe->parts[i]);
}

void sli_pipe_zero_head(sl_pipe *pipe)
{
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++)
        pipe->parts[i].head.weight_grad_is_stale = pipe->parts[i].head.bias_grad_is_stale = true;
}

/* ---- Their norm -------------------------------------------------------------------------- */

void sli_stage_find_normed(const sl_pipe *pipe, const sli_stage *stage, int *first, int *end)
{
    *first = 0;
    *end = sl_parameter_set_count(stage->parameters);
    if (!pipe->parts || pipe->head_is_tied)
        return;
    if (pipe->head_is_cut)
        *first = stage->part ? stage->part->own_count : 0;
    else if (stage->is_last)
        *end -= find_head(pipe)->bias ? 2 : 1;
}

/* Of each of the part's blocks, of `width` elements for a class; `terms` [blocks of the head]. */
static sl_status add_block_terms(const sli_stage *stage, sl_grad_norm_kind kind,
                                 const sl_parameter *parameter, const sl_tensor *grad,
                                 int64_t width, double *terms)
{
    const sli_split_head *head = &stage->part->head;
    int count = head->end - head->first;
    int64_t first = sli_split_head_range(head).first;
    if (!grad || parameter->grad_is_stale)
        return SL_OK;
    sli_norm_array *arrays = calloc((size_t)count, sizeof *arrays);
    if (!arrays)
        return sli_no_memory(NULL, "the gradient norm");
    for (int i = 0; i < count; i++) {
        int block = head->first + i;
        sli_class_range range = sli_class_range_of(head->classes, head->blocks, block, block + 1);
        arrays[i] = (sli_norm_array){(range.end - range.first) * width,
                                     sl_tensor_f32(grad) + (range.first - first) * width};
    }
    sl_status status =
        sli_grad_norm_array_terms(stage->device, kind, arrays, count, terms + head->first);
    free(arrays);
    return status;
}

sl_status sli_stage_head_norm_terms(const sl_pipe *pipe, const sli_stage *stage,
                                    sl_grad_norm_kind kind, double *terms)
{
    const sli_head_part *part = stage->part;
    const sli_linear *linear = find_head(pipe);
    if (!part || pipe->head_is_tied)
        return SL_OK;
    bool is_cut = pipe->head_is_cut;
    SL_TRY(add_block_terms(stage, kind, is_cut ? &part->own[WEIGHT] : linear->weight,
                           part->weight_grad, part->head.width, terms));
    return add_block_terms(stage, kind, is_cut ? &part->own[BIAS] : linear->bias, part->bias_grad,
                           1, terms + pipe->head_blocks);
}
