/* A head that is split over all ranks by its classes.
 *
 *     last stage   F ──output, targets──▶ S of every rank
 *                  B ◀──sums, numbers───  S of every rank
 *                  B ──────result───────▶ T of every rank
 *
 * Evaluation runs the head as a whole in the last stage. Where values, gradients and optimizer are,
 * is in pipe_head_values.c. */
#include "parallel/pipe/pipe_head.h"

#include "core/error.h"
#include "nn/layers.h"
#include "nn/loss.h"
#include "nn/module.h"
#include "parallel/pipe/pipe.h"
#include "tensor/tensor.h"

#include <stdlib.h>

const sli_linear *sli_pipe_find_head(const sl_module *model)
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
    pipe->head_blocks =
        sli_split_head_blocks(sli_pipe_find_head(pipe->model)->out, pipe->head_blocks);
    return SL_OK;
}

sl_status sli_pipe_create_parts(sl_pipe *pipe)
{
    const sli_linear *head = sli_pipe_find_head(pipe->model);
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
    return sl_error_context(sli_pipe_cut_head(pipe), "sl_pipe_create: ");
}

int sli_pipe_head_channels(const sl_pipe *pipe)
{
    return pipe->parts ? SLI_HEAD_CHANNELS * pipe->rank_count : 0;
}

void sli_pipe_destroy_head(sl_pipe *pipe)
{
    sli_pipe_clear_head(pipe);
    for (int i = 0; pipe->parts && i < pipe->rank_count; i++) {
        sli_head_part *part = &pipe->parts[i];
        free(part->records);
        free(part->of_rank);
        free(part->of_last);
    }
    free(pipe->parts);
    pipe->parts = NULL;
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
    const sli_linear *head = sli_pipe_find_head(stage->model);
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
    const sli_linear *head = sli_pipe_find_head(stage->model);
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
