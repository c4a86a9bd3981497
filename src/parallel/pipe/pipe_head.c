/* A head that is split over all ranks by its classes.
 *
 *     last stage   F ──output, targets──▶ S of every rank
 *                  B ◀──sums, numbers───  S of every rank
 *                  B ──────result───────▶ T of every rank
 *
 * The head stays the last stage's parameter: its values, gradients and optimizer are where they are
 * without a split, and evaluation runs it there as a whole. A rank's part of its classes is a view
 * of these tensors where both are in one process. Another process has a copy of its classes'
 * values, which it gets before the first batch after a change, and gradients of its own, which it
 * sends back after the table, as for tied parameters (pipe_tied.c). Parts are of different classes,
 * so ranks that share the tensors write different rows of them. */
#include "parallel/pipe/pipe_head.h"

#include "core/error.h"
#include "nn/layers.h"
#include "nn/loss.h"
#include "nn/module.h"
#include "parallel/pipe/pipe.h"
#include "tensor/tensor.h"

#include <stdlib.h>

static const sli_stage *last_stage(const sl_pipe *pipe)
{
    return &pipe->stages[pipe->stage_count - 1];
}

static const sli_linear *find_head(const sl_module *model)
{
    return sli_module_as_linear(sl_module_child(model, sl_module_child_count(model) - 1));
}

/* ---- Creation --------------------------------------------------------------------------- */

sl_status sli_pipe_check_head(sl_pipe *pipe)
{
    bool on_host = true;
    for (int i = 0; i < pipe->rank_count; i++)
        on_host &= !pipe->ranks[i].device || sl_device_has_host_memory(pipe->ranks[i].device);
    SL_TRY(sl_error_context(sli_split_head_check(pipe->model, pipe->precision, on_host,
                                                 pipe->head_blocks, pipe->rank_count),
                            "sl_pipe_create: "));
    if (!sli_loss_is_cross_entropy(pipe->loss))
        return sl_error(SL_ERR_UNSUPPORTED,
                        "sl_pipe_create: the head cannot be split: the loss must be cross entropy");
    pipe->head_blocks = sli_split_head_blocks(find_head(pipe->model)->out, pipe->head_blocks);
    return SL_OK;
}

sl_status sli_pipe_create_parts(sl_pipe *pipe)
{
    const sli_linear *head = find_head(pipe->model);
    size_t micros = (size_t)pipe->chunks;
    sli_stage *last = &pipe->stages[pipe->stage_count - 1];
    pipe->parts = calloc((size_t)pipe->rank_count, sizeof *pipe->parts);
    if (!pipe->parts)
        return sli_no_memory("sl_pipe_create", "%d parts of the head", pipe->rank_count);
    for (int i = 0; i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        part->head = (sli_split_head){
            .classes = head->out,
            .width = head->in,
            .blocks = pipe->head_blocks,
            .weight_grad_is_stale = true,
            .bias_grad_is_stale = true,
        };
        sli_split_head_find_part(pipe->head_blocks, i, pipe->rank_count, &part->head.first,
                                 &part->head.end);
        part->records = calloc(micros, sizeof *part->records);
        part->of_rank = calloc(micros, sizeof *part->of_rank);
        part->of_last = calloc(micros, sizeof *part->of_last);
        if (!part->records || !part->of_rank || !part->of_last)
            return sli_no_memory("sl_pipe_create", "parts of %zu micro-batches", micros);
        pipe->stages[pipe->ranks[i].own[0]].part = part;
    }
    last->parts = pipe->parts;
    last->part_count = pipe->rank_count;
    return SL_OK;
}

int sli_pipe_head_channels(const sl_pipe *pipe)
{
    return pipe->parts ? SLI_HEAD_CHANNELS * pipe->rank_count : 0;
}

/* A part's classes: the first one, and how many. */
static void find_classes(const sli_split_head *head, int64_t *first, int64_t *count)
{
    *first = sli_split_head_first_class(head->classes, head->blocks, head->first);
    *count = sli_split_head_first_class(head->classes, head->blocks, head->end) - *first;
}

/* A view of the classes' rows of a tensor of the head, for the part's device. */
static sl_status view_classes(const sli_split_head *head, const sl_tensor *whole, sl_device *device,
                              sl_tensor **out)
{
    int64_t first, count;
    find_classes(head, &first, &count);
    SL_TRY(sli_tensor_narrow(whole, first, count, out));
    sli_tensor_hand_over(*out, device);
    return SL_OK;
}

static const sl_tensor *product_values(const sl_parameter *parameter)
{
    return parameter->bf16 ? parameter->bf16 : parameter->value;
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

static bool trains_bias(const sli_linear *linear)
{
    return linear->bias && sli_parameter_is_trained(linear->bias);
}

static sl_status copy_head(const sl_pipe *pipe, const sli_linear *linear, sl_device *device,
                           sli_head_part *part)
{
    int64_t first, count;
    find_classes(&part->head, &first, &count);
    sl_shape weight = sl_shape_2d(count, linear->in), bias = sl_shape_1d(count);
    sl_dtype dtype = pipe->precision == SL_PRECISION_BF16 ? SL_BF16 : SL_F32;
    SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, dtype, &weight, &part->weight));
    if (linear->bias)
        SL_TRY(sl_tensor_create(device, SL_MEMORY_PARAMETERS, SL_F32, &bias, &part->bias));
    if (pipe->inference)
        return SL_OK;
    SL_TRY(sl_tensor_create(device, SL_MEMORY_GRADIENTS, SL_F32, &weight, &part->weight_grad));
    return trains_bias(linear)
               ? sl_tensor_create(device, SL_MEMORY_GRADIENTS, SL_F32, &bias, &part->bias_grad)
               : SL_OK;
}

sl_status sli_pipe_place_head(sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe->model);
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        sl_device *device = pipe->ranks[i].device;
        if (!device)
            continue;
        SL_TRY(last_stage(pipe)->is_here ? view_head(linear, device, part)
                                         : copy_head(pipe, linear, device, part));
        part->head.weight = part->weight;
        part->head.bias = part->bias;
        part->head.weight_grad = part->weight_grad;
        part->head.bias_grad = part->bias_grad;
    }
    return SL_OK;
}

void sli_pipe_destroy_head(sl_pipe *pipe)
{
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        sl_tensor_destroy(&part->weight);
        sl_tensor_destroy(&part->bias);
        sl_tensor_destroy(&part->weight_grad);
        sl_tensor_destroy(&part->bias_grad);
        free(part->records);
        free(part->of_rank);
        free(part->of_last);
    }
    free(pipe->parts);
    pipe->parts = NULL;
}

/* ---- Copies in other processes ------------------------------------------------------------ */

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
    const sli_linear *linear = find_head(pipe->model);
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

/* Parts are in steps that go backward alone. */
sl_status sli_pipe_exchange_head(sl_pipe *pipe, const sli_step *step)
{
    pipe->has_new_weights |= !step->same_weights;
    if (!pipe->parts || !step->backward || !pipe->has_new_weights)
        return SL_OK;
    pipe->has_new_weights = false;
    return sli_pipe_group_check(pipe->group, send_values(pipe));
}

static sl_status send_gradients(const sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe->model);
    for (int i = 0; i < pipe->rank_count; i++) {
        const sli_head_part *part = &pipe->parts[i];
        if (other_process(pipe, i) < 0)
            continue;
        SL_TRY(exchange_rows(pipe, i, false, linear->weight->grad, part->weight_grad));
        if (trains_bias(linear))
            SL_TRY(exchange_rows(pipe, i, false, linear->bias->grad, part->bias_grad));
    }
    return SL_OK;
}

sl_status sli_pipe_gather_head(sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe->model);
    if (!pipe->parts)
        return SL_OK;
    linear->weight->grad_is_stale = false;
    if (linear->bias)
        linear->bias->grad_is_stale = false;
    return pipe->group ? sli_pipe_group_check(pipe->group, send_gradients(pipe)) : SL_OK;
}

/* A copy's gradient is whole as long as the last stage's parameter keeps its own: that of a tied
 * parameter is added to its owner's after each batch. */
void sli_pipe_begin_head(sl_pipe *pipe)
{
    const sli_linear *linear = find_head(pipe->model);
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        sli_split_head *head = &pipe->parts[i].head;
        if (!last_stage(pipe)->is_here) {
            head->weight_grad_is_stale |= linear->weight->tied_to != NULL;
            continue;
        }
        head->weight_grad_is_stale = linear->weight->grad_is_stale;
        head->bias_grad_is_stale = linear->bias && linear->bias->grad_is_stale;
    }
}

void sli_pipe_zero_head(sl_pipe *pipe)
{
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++)
        pipe->parts[i].head.weight_grad_is_stale = pipe->parts[i].head.bias_grad_is_stale = true;
}

/* ---- Between channels and actions --------------------------------------------------------- */

/* A tensor of a micro-batch's, and the channel that carries it. */
typedef struct transfer {
    sli_channel *channel;
    sl_tensor **tensor;
} transfer;

enum { MOST_TRANSFERS = 2 };

/* What the action receives or sends of the part's: how many tensors. `is_last`: it is the last
 * stage's action. */
static int list_transfers(sli_head_part *part, sl_action action, bool is_last, bool sends,
                          transfer out[MOST_TRANSFERS])
{
    sli_channel *const *channels = part->channels;
    sli_head_tensors *tensors = (is_last ? part->of_last : part->of_rank) + action.micro;
    bool is_backward = action.kind == SL_ACTION_BACKWARD || action.kind == SL_ACTION_BACKWARD_INPUT;
    bool gives_input = is_last ? sends && action.kind == SL_ACTION_FORWARD
                               : !sends && action.kind == SL_ACTION_HEAD_FORWARD;
    bool gives_sums =
        is_last ? !sends && is_backward : sends && action.kind == SL_ACTION_HEAD_FORWARD;
    bool gives_result =
        is_last ? sends && is_backward : !sends && action.kind == SL_ACTION_HEAD_BACKWARD;
    if (gives_input) {
        out[0] = (transfer){channels[SLI_HEAD_INPUT], &tensors->input};
        out[1] = (transfer){channels[SLI_HEAD_TARGETS], &tensors->targets};
    } else if (gives_sums) {
        out[0] = (transfer){channels[SLI_HEAD_SUMS], &tensors->sums};
        out[1] = (transfer){channels[SLI_HEAD_NUMBERS], &tensors->numbers};
    } else if (gives_result) {
        out[0] = (transfer){channels[SLI_HEAD_RESULT], &tensors->result};
    }
    return gives_input || gives_sums ? 2 : gives_result;
}

/* The parts that the action has to do with: its rank's own, or for the last stage's all. */
static int list_parts(const sli_stage *stage, sl_action action, sli_head_part **parts,
                      bool *is_last)
{
    *is_last = action.kind != SL_ACTION_HEAD_FORWARD && action.kind != SL_ACTION_HEAD_BACKWARD;
    *parts = *is_last ? stage->parts : stage->part;
    return *is_last ? stage->part_count : 1;
}

bool sli_stage_receive_head(const sli_stage *stage, sl_action action, int number)
{
    transfer transfers[MOST_TRANSFERS];
    sli_head_part *parts;
    bool is_last;
    int count = list_parts(stage, action, &parts, &is_last);
    for (int i = 0; i < count; i++) {
        int tensors = list_transfers(&parts[i], action, is_last, false, transfers);
        for (int t = 0; t < tensors; t++)
            if (!sli_channel_receive(transfers[t].channel, action.micro, number,
                                     transfers[t].tensor))
                return false;
    }
    return true;
}

/* A forward of an evaluation has made nothing ready. */
void sli_stage_send_head(const sli_stage *stage, sl_action action)
{
    transfer transfers[MOST_TRANSFERS];
    sli_head_part *parts;
    bool is_last;
    int count = list_parts(stage, action, &parts, &is_last);
    for (int i = 0; i < count; i++) {
        int tensors = list_transfers(&parts[i], action, is_last, true, transfers);
        for (int t = 0; t < tensors; t++)
            if (*transfers[t].tensor)
                sli_channel_send(transfers[t].channel, action.micro, transfers[t].tensor);
    }
}

static void clear_tensors(sli_head_tensors *tensors)
{
    sl_tensor_destroy(&tensors->input);
    sl_tensor_destroy(&tensors->targets);
    sl_tensor_destroy(&tensors->sums);
    sl_tensor_destroy(&tensors->numbers);
    sl_tensor_destroy(&tensors->result);
}

void sli_stage_drop_head(const sli_stage *stage, int micro)
{
    for (int i = 0; i < stage->part_count; i++)
        clear_tensors(&stage->parts[i].of_last[micro]);
    if (!stage->part)
        return;
    clear_tensors(&stage->part->of_rank[micro]);
    sli_split_head_clear(&stage->part->records[micro]);
}

/* ---- Actions ---------------------------------------------------------------------------- */

sl_status sli_stage_head_forward(const sli_stage *stage, int micro)
{
    sli_head_part *part = stage->part;
    sli_head_tensors *tensors = &part->of_rank[micro];
    sl_status status =
        sli_split_head_forward(&part->head, tensors->input, tensors->targets, &part->records[micro],
                               &tensors->sums, &tensors->numbers);
    sl_tensor_destroy(&tensors->input);
    sl_tensor_destroy(&tensors->targets);
    return status;
}

sl_status sli_stage_head_backward(const sli_stage *stage, int micro)
{
    sli_head_part *part = stage->part;
    sl_status status =
        sli_split_head_backward(&part->head, &part->records[micro], part->of_rank[micro].result);
    sl_tensor_destroy(&part->of_rank[micro].result);
    return status;
}

sl_status sli_stage_give_output(const sli_stage *stage, const sli_step *step, int micro)
{
    const sl_tensor *targets = step->micros[micro].targets;
    const sli_linear *head = find_head(stage->model);
    SL_TRY(sli_cross_entropy_check_targets(targets, stage->records[micro].output, head));
    for (int i = 0; i < stage->part_count; i++) {
        sli_head_tensors *tensors = &stage->parts[i].of_last[micro];
        SL_TRY(sl_tensor_alias(stage->records[micro].output, &tensors->input));
        SL_TRY(sl_tensor_alias(targets, &tensors->targets));
    }
    return SL_OK;
}

/* The results are the same for all parts. */
static sl_status reduce(const sli_stage *stage, const sli_step *step, int micro, sl_tensor *grad,
                        sl_tensor *result)
{
    const sli_micro *rows = &step->micros[micro];
    const sli_linear *head = find_head(stage->model);
    sl_tensor *sums[stage->part_count], *numbers[stage->part_count];
    for (int i = 0; i < stage->part_count; i++) {
        sums[i] = stage->parts[i].of_last[micro].sums;
        numbers[i] = stage->parts[i].of_last[micro].numbers;
    }
    SL_TRY(sli_split_head_reduce(&(sli_split_head_reduction){
        .classes = head->out,
        .blocks = stage->parts->head.blocks,
        .parts = stage->part_count,
        .sums = sums,
        .numbers = numbers,
        .weight = product_values(head->weight),
        .targets = rows->targets,
        .scale = step->scale,
        .row_losses = rows->row_losses,
        .grad_in = grad,
        .result = result,
    }));
    for (int i = 0; i < stage->part_count; i++) {
        sli_head_tensors *tensors = &stage->parts[i].of_last[micro];
        sl_tensor_destroy(&tensors->sums);
        sl_tensor_destroy(&tensors->numbers);
        SL_TRY(sl_tensor_alias(result, &tensors->result));
    }
    return SL_OK;
}

sl_status sli_stage_reduce_head(const sli_stage *stage, const sli_step *step, int micro,
                                sl_tensor **grad)
{
    sl_tensor **output = &stage->records[micro].output, *wide = NULL, *result = NULL;
    bool narrows = sl_tensor_dtype(*output) == SL_BF16;
    const sl_shape *shape = sl_tensor_shape(*output);
    const sl_shape results = sl_shape_2d(sl_tensor_rows(*output), SLI_SPLIT_HEAD_RESULTS);
    sl_status status;
    *grad = NULL;
    SL_TRY_OR_FAIL(sl_tensor_create(stage->device,
                                    narrows ? SL_MEMORY_WORKSPACE : SL_MEMORY_ACTIVATIONS, SL_F32,
                                    shape, &wide));
    SL_TRY_OR_FAIL(
        sl_tensor_create(stage->device, SL_MEMORY_ACTIVATIONS, SL_F64, &results, &result));
    SL_TRY_OR_FAIL(reduce(stage, step, micro, wide, result));
    status = narrows ? sli_tensor_as(wide, SL_BF16, SL_MEMORY_ACTIVATIONS, grad)
                     : sl_tensor_alias(wide, grad);

fail:
    sl_tensor_destroy(&wide);
    sl_tensor_destroy(&result);
    sl_tensor_destroy(output);
    return status;
}
