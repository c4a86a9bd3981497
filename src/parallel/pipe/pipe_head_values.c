/* Who owns the values, gradients and optimizer of a split head (pipe_head.c).
 *
 *     all ranks in one process     its stage, or that of the embedding that it is tied to. A rank's
 *                                  part is a view of its rows: parts are of different classes, so
 *                                  ranks write different rows
 *     in several                   the head is cut: each rank owns its part, which is in the set of
 *                                  the rank's first stage. Updates need no exchange. The head's
 *                                  own parameters have memory only while they are evaluated: the
 *                                  last stage then has a copy of the whole head, which it gets
 *                                  before the first forward after a change, until the next step
 *
 * An embedding that a cut head is tied to is cut with it: a rank owns the rows of its words, and
 * the first stage gets those that a batch names (pipe_embedding.c). The head's gradient is beside
 * the rows' own, to which it is added after the batch, as for any tied parameter (nn/tied.c). */
#include "parallel/pipe/pipe_head.h"

#include "core/error.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/pipe/pipe.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

enum { WEIGHT = SLI_HEAD_WEIGHT, BIAS = SLI_HEAD_BIAS };

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

/* What is cut, if it is: the head's weight, or the embedding that it is tied to, and the bias;
 * NULL: there is none. */
static void list_whole(const sl_pipe *pipe, sl_parameter *whole[SLI_HEAD_PARAMETERS])
{
    const sli_linear *linear = find_head(pipe);
    whole[WEIGHT] = pipe->embedding ? pipe->embedding : linear->weight;
    whole[BIAS] = linear->bias;
}

/* The part's rows of a parameter. */
static sl_parameter cut_parameter(const sl_parameter *whole, const sli_split_head *head)
{
    sli_class_range range = sli_split_head_range(head);
    sl_parameter part = *whole;
    part.first = range.first * (sl_shape_count(&whole->shape) / head->classes);
    part.shape.size[0] = range.end - range.first;
    part.value = part.grad = part.bf16 = NULL;
    part.in_products = sli_parameter_is_in_products(whole);
    part.ties = NULL;
    part.is_cut = false;
    return part;
}

static void cut(sl_pipe *pipe, int kind, sl_parameter *whole)
{
    for (int i = 0; i < pipe->rank_count; i++) {
        pipe->parts[i].own[kind] = cut_parameter(whole, &pipe->parts[i].head);
        pipe->parts[i].own_count = kind + 1;
    }
    whole->is_cut = true;
}

sl_status sli_pipe_cut_head(sl_pipe *pipe)
{
    sl_parameter *whole[SLI_HEAD_PARAMETERS];
    pipe->embedding = find_head(pipe)->weight->tied_to;
    list_whole(pipe, whole);
    for (int k = 0; k < SLI_HEAD_PARAMETERS && whole[k]; k++)
        SL_TRY(sli_parameter_check_unplaced(whole[k])); /* parts' sets do not hold it */
    pipe->marks_head = true;
    pipe->head_is_cut = !is_in_one_process(pipe);
    for (int k = 0; k < SLI_HEAD_PARAMETERS && whole[k]; k++) {
        whole[k]->has_block_terms = true;
        if (pipe->head_is_cut)
            cut(pipe, k, whole[k]);
    }
    return SL_OK;
}

static void join_head(const sl_pipe *pipe)
{
    sl_parameter *whole[SLI_HEAD_PARAMETERS];
    list_whole(pipe, whole);
    for (int k = 0; k < SLI_HEAD_PARAMETERS && whole[k]; k++)
        whole[k]->is_cut = whole[k]->has_block_terms = false;
}

int sli_stage_list_parts(sli_stage *stage, sl_parameter *parts[SLI_HEAD_PARAMETERS])
{
    int count = stage->part ? stage->part->own_count : 0;
    for (int i = 0; i < count; i++)
        parts[i] = &stage->part->own[i];
    return count;
}

/* ---- Tensors of parts --------------------------------------------------------------------- */

static const sl_tensor *product_values(const sl_parameter *parameter)
{
    return parameter->bf16 ? parameter->bf16 : parameter->value;
}

/* Handles on a part's own parameters. */
static sl_status alias_own(const sl_pipe *pipe, sl_device *device, sli_head_part *part)
{
    const sl_parameter *weight = &part->own[WEIGHT], *bias = &part->own[BIAS];
    SL_TRY(sl_tensor_alias(product_values(weight), &part->weight));
    SL_TRY(pipe->embedding ? sl_tensor_create(device, SL_MEMORY_GRADIENTS, SL_F32, &weight->shape,
                                              &part->weight_grad)
                           : sl_tensor_alias(weight->grad, &part->weight_grad));
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

sl_status sli_pipe_place_head(sl_pipe *pipe)
{
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        if (!pipe->ranks[i].device)
            continue;
        SL_TRY(pipe->head_is_cut ? alias_own(pipe, pipe->ranks[i].device, part)
                                 : view_head(find_head(pipe), pipe->ranks[i].device, part));
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
    sli_pipe_drop_words(pipe);
    if (pipe->head_is_cut)
        destroy_whole(pipe);
    if (pipe->marks_head)
        join_head(pipe);
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        sl_tensor_destroy(&part->weight);
        sl_tensor_destroy(&part->bias);
        sl_tensor_destroy(&part->weight_grad);
        sl_tensor_destroy(&part->bias_grad);
    }
}

/* ---- Between processes -------------------------------------------------------------------- */

/* Memory for the whole head, as products take it. */
static sl_status create_whole(sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe);
    sl_parameter *weight = linear->weight, *bias = linear->bias;
    sl_device *device = sli_last_stage(pipe)->device;
    bool is_narrow = pipe->precision == SL_PRECISION_BF16;
    if (pipe->made_whole_head)
        return SL_OK;
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
                           const sl_tensor *own)
{
    const sli_stage *last = sli_last_stage(pipe);
    bool is_here = pipe->ranks[rank].device;
    sl_tensor *rows;
    sl_status status = SL_OK;
    if (!last->is_here)
        return is_here ? sli_pipe_group_send(pipe->group, sl_tensor_data(own), sl_tensor_count(own),
                                             sl_tensor_dtype(own), last->group_rank)
                       : SL_OK;
    SL_TRY(view_classes(&pipe->parts[rank].head, parameter->value, last->device, &rows));
    if (is_here)
        memcpy(sl_tensor_data(rows), sl_tensor_data(own), sli_tensor_bytes(own));
    else
        status = sli_pipe_group_receive(pipe->group, sl_tensor_data(rows), sl_tensor_count(rows),
                                        sl_tensor_dtype(rows), pipe->ranks[rank].group_rank);
    sl_tensor_destroy(&rows);
    return status;
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
    sl_status status =
        sli_pipe_agree(pipe, sli_last_stage(pipe)->is_here ? create_whole(pipe) : SL_OK);
    if (status == SL_OK)
        status = sli_pipe_group_check(pipe->group, collect_whole(pipe));
    if (status != SL_OK)
        destroy_whole(pipe);
    pipe->has_whole_head = status == SL_OK;
    return status;
}

sl_status sli_pipe_exchange_head(sl_pipe *pipe, const sli_step *step)
{
    if (!pipe->head_is_cut)
        return SL_OK;
    SL_TRY(exchange_whole(pipe, step));
    return pipe->embedding ? sli_pipe_group_check(pipe->group, sli_pipe_fetch_words(pipe, step))
                           : SL_OK;
}

/* ---- Gradients --------------------------------------------------------------------------- */

/* Adds the head's gradient to that of the embedding's rows, as nn/tied.c does to a whole one's. */
static sl_status add_to_embedding(int index, void *arg)
{
    const sl_pipe *pipe = arg;
    sli_head_part *part = pipe->stages[index].part;
    sl_tensor *sum;
    if (!part || part->head.weight_grad_is_stale)
        return SL_OK;
    SL_TRY(sl_parameter_grad(&part->own[WEIGHT], &sum));
    part->head.weight_grad_is_stale = true;
    return sli_device_add(pipe->stages[index].device, sl_tensor_count(sum), sl_tensor_f32(sum),
                          sl_tensor_f32(part->weight_grad));
}

static sl_status gather_embedding(sl_pipe *pipe)
{
    SL_TRY(sli_pipe_group_check(pipe->group, sli_pipe_return_words(pipe)));
    return sl_pipe_run_on_stages(pipe, add_to_embedding, pipe);
}

sl_status sli_pipe_gather_head(sl_pipe *pipe)
{
    if (!pipe->parts)
        return SL_OK;
    const sli_linear *linear = find_head(pipe);
    linear->weight->grad_is_stale = false;
    if (linear->bias)
        linear->bias->grad_is_stale = false;
    /* An embedding's rows get their gradient below. */
    for (int i = 0; i < pipe->rank_count; i++)
        for (int k = pipe->embedding ? BIAS : WEIGHT; k < pipe->parts[i].own_count; k++)
            pipe->parts[i].own[k].grad_is_stale = false;
    return pipe->head_is_cut && pipe->embedding ? gather_embedding(pipe) : SL_OK;
}

static void begin_part(const sl_pipe *pipe, sli_head_part *part)
{
    const sli_linear *linear = find_head(pipe);
    sli_split_head *head = &part->head;
    if (!pipe->head_is_cut) {
        head->weight_grad_is_stale = linear->weight->grad_is_stale;
        head->bias_grad_is_stale = linear->bias && linear->bias->grad_is_stale;
    } else {
        head->weight_grad_is_stale = pipe->embedding || part->own[WEIGHT].grad_is_stale;
        head->bias_grad_is_stale = part->own[BIAS].grad_is_stale;
    }
}

void sli_pipe_begin_head(sl_pipe *pipe)
{
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++)
        begin_part(pipe, &pipe->parts[i]);
}

/* ---- Their norm -------------------------------------------------------------------------- */

/* Of each of the part's blocks, of `width` elements for a class; `terms` [blocks of the head]. The
 * parameter is the part's own, or a whole one. */
static sl_status add_block_terms(const sli_stage *stage, sl_grad_norm_kind kind,
                                 const sl_parameter *parameter, bool is_own, int64_t width,
                                 double *terms)
{
    const sli_split_head *head = &stage->part->head;
    int count = head->end - head->first;
    if (!parameter->grad || parameter->grad_is_stale)
        return SL_OK;
    int64_t before = is_own ? sli_split_head_range(head).first : 0;
    sli_norm_array *arrays = calloc((size_t)count, sizeof *arrays);
    if (!arrays)
        return sli_no_memory(NULL, "the gradient norm");
    for (int i = 0; i < count; i++) {
        int block = head->first + i;
        sli_class_range range = sli_class_range_of(head->classes, head->blocks, block, block + 1);
        arrays[i] =
            (sli_norm_array){(range.end - range.first) * width,
                             sl_tensor_f32(parameter->grad) + (range.first - before) * width};
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
    sl_parameter *whole[SLI_HEAD_PARAMETERS];
    if (!part)
        return SL_OK;
    list_whole(pipe, whole);
    bool is_cut = pipe->head_is_cut;
    SL_TRY(add_block_terms(stage, kind, is_cut ? &part->own[WEIGHT] : whole[WEIGHT], is_cut,
                           part->head.width, terms));
    if (!whole[BIAS])
        return SL_OK;
    return add_block_terms(stage, kind, is_cut ? &part->own[BIAS] : whole[BIAS], is_cut, 1,
                           terms + pipe->head_blocks);
}
