/* What the actions of a table mean for a stage.
 *
 * In a step that goes backward, the last stage's output has one reader: the loss, which runs at the
 * beginning of B or I, where value and gradient are computed at once. So an F that discards has
 * nothing to compute there: it only keeps the input, and R gives the output when it is wanted. A
 * loss that takes over the model's last module (cross entropy after the decoder) gets that module's
 * input instead, and a micro-batch's logits never exist as a whole.
 *
 * Where the head is split over all ranks, every F of the last stage computes its output, which
 * their S need; B or I begins with what these gave. So does every F of a slice, whose keys and
 * values the next slices need.
 *
 * Tensors are given back as soon as they have been used: an input when the next module has run
 * (what backward needs, modules have put on the pass), the pass when its last module has gone
 * backward. */
#include "parallel/pipe/stage.h"
#include "nn/layers.h"
#include "nn/loss.h"
#include "parallel/pipe/micro_batch.h"
#include "parallel/pipe/pipe_head.h"
#include "parallel/pipe/pipe_skip.h"
#include "parallel/pipe/pipe_slices.h"

#include "core/error.h"
#include "tensor/tensor.h"

#include <inttypes.h>

/* ---- Running modules -------------------------------------------------------------------- */

/* How many of the stage's modules it runs itself. */
static int own_modules(const sli_stage *stage, const sli_step *step)
{
    return stage->count - (step->loss && stage->loss_takes_last);
}

/* Replaces *tensor [N, T, …] by the last position of each row. */
static sl_status keep_last_position(sl_tensor **tensor)
{
    const sl_shape *shape = sl_tensor_shape(*tensor);
    return sli_tensor_trim(tensor, shape->dims > 1 ? shape->size[1] - 1 : 0, 1);
}

/* Replaces *tensor by what the modules make of it; NULL on an error. `trims`: of the last position
 * of each row alone, before a module whose output at a position depends on that one's input alone,
 * or at the end. */
static sl_status run_forward(const sli_stage *stage, sl_pass *pass, int count, bool trims,
                             sl_tensor **tensor)
{
    bool keep = pass->options.keep;
    for (int i = 0; i < count; i++) {
        sl_module *module = sl_module_child(stage->model, stage->first + i);
        sl_tensor *out;
        if (trims && i == count - 1 && sli_module_as_linear(module))
            SL_TRY(keep_last_position(tensor));
        pass->options.keep = keep && i >= stage->frozen_count;
        sl_status status = sl_module_forward(module, pass, *tensor, &out);
        pass->options.keep = keep;
        sl_tensor_destroy(tensor);
        *tensor = out;
        SL_TRY(status);
    }
    return trims ? keep_last_position(tensor) : SL_OK;
}

/* Replaces the gradient of the output by that of the input; NULL at the stage where backward ends,
 * and on an error. `run` is sl_module_backward or sli_module_backward_input. */
static sl_status run_backward(const sli_stage *stage, int micro, int count, sl_tensor **grad,
                              sl_status (*run)(sl_module *module, sl_pass *pass,
                                               sl_tensor *grad_out, sl_tensor **grad_in))
{
    sl_pass *pass = stage->records[micro].pass;
    sl_status status;
    sli_stage_give_skip_grads(stage, micro);
    for (int i = count - 1; i >= stage->frozen_count; i--) {
        sl_module *module = sl_module_child(stage->model, stage->first + i);
        bool wanted = i > stage->frozen_count || !stage->ends_backward;
        sl_tensor *grad_in = NULL;
        status = run(module, pass, *grad, wanted ? &grad_in : NULL);
        sl_tensor_destroy(grad);
        *grad = grad_in;
        SL_TRY_OR_FAIL(status);
    }
    if (stage->ends_backward)
        sl_tensor_destroy(grad);
    if (sli_pass_depth(pass) != 0)
        SL_TRY_OR_FAIL(
            sl_error(SL_ERR_INVALID,
                     "backward left %d tensors on the pass: it must pop what forward saved",
                     sli_pass_depth(pass)));
    SL_TRY_OR_FAIL(sli_stage_take_skip_grads(stage, micro));
    return SL_OK;

fail:
    sl_tensor_destroy(grad);
    return status;
}

/* In the order of backward_input. */
static sl_status run_backward_weight(const sli_stage *stage, sl_pass *pass, int count)
{
    for (int i = count - 1; i >= stage->frozen_count; i--)
        SL_TRY(sli_module_backward_weight(sl_module_child(stage->model, stage->first + i), pass));
    if (sli_pass_deferred(pass) == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "backward left %d deferred tensors on the pass: backward_weight must take "
                    "what backward_input deferred",
                    sli_pass_deferred(pass));
}

static sl_status trim_rows(sl_tensor **rows, int64_t columns)
{
    sl_status status = sli_tensor_trim(rows, 0, columns);
    if (status != SL_OK)
        sl_tensor_destroy(rows);
    return status;
}

/* Puts the micro-batch's rows of the batch's further inputs on the pass. */
static sl_status give_inputs(const sli_stage *stage, const sli_step *step, int micro, sl_pass *pass)
{
    for (int i = 0; i < step->input_count; i++) {
        const sl_input *input = &step->inputs[i];
        sl_tensor *rows;
        if (input->whole)
            SL_TRY(sl_tensor_alias(input->tensor, &rows));
        else
            SL_TRY(sli_micro_rows(input->tensor, step->batch_micros, step->first_micro + micro,
                                  &rows));
        if (!input->whole && step->micros[micro].columns > 0)
            SL_TRY(trim_rows(&rows, step->micros[micro].columns));
        SL_TRY(sli_tensor_move(&rows, stage->device));
        SL_TRY(sli_pass_put_input(pass, input->name, &rows));
    }
    return SL_OK;
}

/* A forward through the stage; a pass that keeps goes to the record. */
static sl_status forward_pass(sli_stage *stage, const sli_step *step, int micro, bool keep,
                              sl_tensor **tensor)
{
    sl_pass_options options = {
        .device = stage->device,
        .training = step->training,
        .keep = keep,
        .precision = step->precision,
        .seed = step->seed,
        .step = step->step,
        .first_sample = step->micros[micro].first_sample,
        .caches = step->caches ? step->caches + step->micros[micro].first_row : NULL,
    };
    sl_pass *pass;
    sl_status status;
    SL_TRY_OR_FAIL(sl_pass_create(&options, &pass));
    SL_TRY_OR_FAIL(sli_stage_begin_slice(stage, step, micro, pass));
    SL_TRY_OR_FAIL(give_inputs(stage, step, micro, pass));
    SL_TRY_OR_FAIL(sli_stage_give_skips(stage, micro, pass, step->backward && !keep));
    SL_TRY_OR_FAIL(run_forward(stage, pass, own_modules(stage, step),
                               step->last_position && stage->is_last, tensor));
    SL_TRY_OR_FAIL(sli_stage_take_skips(stage, micro, pass));
    if (keep)
        stage->records[micro].pass = pass;
    else
        sl_pass_destroy(&pass);
    return SL_OK;

fail:
    sl_pass_destroy(&pass);
    sl_tensor_destroy(tensor);
    return status;
}

/* ---- The end of the pipe ---------------------------------------------------------------- */

static sl_module *last_module(const sli_stage *stage)
{
    return sl_module_child(stage->model, stage->first + stage->count - 1);
}

/* The loss of the last stage's output, which it takes; its gradient if `grad` is given. With a
 * `pass`, what backward_weight of the module that the loss takes over needs is deferred there. */
static sl_status apply_loss(const sli_stage *stage, const sli_step *step, int micro,
                            sl_tensor **output, sl_tensor **grad, sl_pass *pass)
{
    const sli_micro *rows = &step->micros[micro];
    sl_loss_call call = {
        .device = stage->device,
        .last = stage->loss_takes_last ? last_module(stage) : NULL,
        .in = *output,
        .targets = rows->targets,
        .scale = step->scale,
        .row_losses = rows->row_losses,
        .grad_in = grad,
        .pass = stage->loss_takes_last ? pass : NULL,
    };
    sl_status status = sl_loss_apply(step->loss, &call);
    sl_tensor_destroy(output);
    SL_TRY(status);
    if (grad && !*grad)
        return sl_error(SL_ERR_INVALID, "the loss gave no gradient, and reported no error");
    return SL_OK;
}

static sl_status check_output(const sl_tensor *output, int64_t rows)
{
    const sl_shape *shape = sl_tensor_shape(output);
    char text[SL_SHAPE_TEXT_BYTES];
    if (shape->dims == 0 || shape->size[0] != rows)
        return sl_error(SL_ERR_INVALID,
                        "the model's output must have as many rows as its input, %" PRId64
                        ", got %s",
                        rows, sl_shape_text(shape, text));
    return SL_OK;
}

/* Copies a micro-batch's output into the whole batch's. */
static sl_status copy_output(const sli_stage *stage, sli_step *step, int micro,
                             const sl_tensor *output)
{
    sl_shape shape = *sl_tensor_shape(output);
    int64_t rows = shape.size[0];
    shape.size[0] = step->rows;
    if (!step->output)
        SL_TRY(sl_tensor_create(stage->device, SL_MEMORY_ACTIVATIONS, sl_tensor_dtype(output),
                                &shape, &step->output));
    sl_tensor *view;
    SL_TRY(sli_tensor_narrow(step->output, step->micros[micro].first_row, rows, &view));
    sl_status status = sl_tensor_copy(view, output);
    sl_tensor_destroy(&view);
    return status;
}

/* Takes a micro-batch's output as rows of the batch's. The only one of a batch is the batch's. */
static sl_status store_output(const sli_stage *stage, sli_step *step, int micro, sl_tensor **output)
{
    sl_status status;
    SL_TRY_OR_FAIL(check_output(*output, step->micros[micro].rows));
    status = step->micros[micro].rows == step->rows ? sl_tensor_alias(*output, &step->output)
                                                    : copy_output(stage, step, micro, *output);

fail:
    sl_tensor_destroy(output);
    return status;
}

/* The loss of the micro-batch, and the gradient of the last stage's output. `pass` as in
 * apply_loss. */
static sl_status begin_backward(const sli_stage *stage, const sli_step *step, int micro,
                                sl_tensor **grad, sl_pass *pass)
{
    return stage->parts ? sli_stage_reduce_head(stage, step, micro, grad)
                        : apply_loss(stage, step, micro, &stage->records[micro].output, grad, pass);
}

/* Does the action that goes backward complete the gradients of the module that the loss takes over?
 * Those of a split head are complete after the table. */
static bool completes_last(const sli_stage *stage)
{
    return stage->loss_takes_last && !stage->parts;
}

/* ---- Actions ---------------------------------------------------------------------------- */

static sl_status perform_forward(sli_stage *stage, sli_step *step, sl_action action,
                                 sl_tensor **tensor)
{
    int micro = action.micro;
    bool keep = !action.discards;
    bool recomputes = step->backward && stage->goes_backward && !keep;
    sli_record *record = &stage->records[micro];
    if (recomputes && stage->is_last && !stage->parts && step->slices == 1) {
        record->input = *tensor;
        *tensor = NULL;
        return SL_OK;
    }
    sl_status status = recomputes ? sl_tensor_alias(*tensor, &record->input) : SL_OK;
    if (status != SL_OK) {
        sl_tensor_destroy(tensor);
        return status;
    }
    SL_TRY(forward_pass(stage, step, micro, keep, tensor));
    if (!stage->goes_backward)
        sli_stage_end_slice(stage, step, micro);
    if (!stage->is_last)
        return SL_OK;
    if (!step->loss)
        return store_output(stage, step, micro, tensor);
    if (!step->backward)
        return apply_loss(stage, step, micro, tensor, NULL, NULL);
    if (recomputes && !stage->parts) {
        sl_tensor_destroy(tensor); /* R gives it */
        return SL_OK;
    }
    record->output = *tensor;
    *tensor = NULL;
    return stage->parts ? sli_stage_give_output(stage, step, micro) : SL_OK;
}

static sl_status perform_recompute(sli_stage *stage, sli_step *step, int micro)
{
    sli_record *record = &stage->records[micro];
    sl_tensor *tensor = record->input;
    record->input = NULL;
    SL_TRY(forward_pass(stage, step, micro, true, &tensor));
    sli_stage_drop_skips(stage, micro); /* they were sent long ago */
    if (stage->is_last && !stage->parts)
        record->output = tensor;
    else
        sl_tensor_destroy(&tensor); /* so was this */
    return SL_OK;
}

/* If this action completes the stage's gradients, the step's observer is told of each module that
 * goes backward in it. */
static void observe_completion(const sli_stage *stage, const sli_step *step, sl_action action)
{
    if (action.completes && step->observers)
        sli_pass_observe(stage->records[action.micro].pass, step->observers[stage->index]);
}

static sl_status perform_backward(sli_stage *stage, sli_step *step, sl_action action,
                                  sl_tensor **tensor)
{
    sli_record *record = &stage->records[action.micro];
    observe_completion(stage, step, action);
    if (stage->is_last)
        SL_TRY(begin_backward(stage, step, action.micro, tensor, NULL));
    sl_status status;
    if (completes_last(stage))
        SL_TRY_OR_FAIL(sli_pass_went_backward(record->pass, last_module(stage)));
    SL_TRY_OR_FAIL(
        run_backward(stage, action.micro, own_modules(stage, step), tensor, sl_module_backward));
    sl_pass_destroy(&record->pass);
    sli_stage_end_slice(stage, step, action.micro);
    return SL_OK;

fail:
    sl_tensor_destroy(tensor);
    sl_pass_destroy(&record->pass);
    return status;
}

static sl_status perform_backward_input(sli_stage *stage, sli_step *step, int micro,
                                        sl_tensor **tensor)
{
    sli_record *record = &stage->records[micro];
    if (stage->is_last)
        SL_TRY(begin_backward(stage, step, micro, tensor, record->pass));
    SL_TRY(run_backward(stage, micro, own_modules(stage, step), tensor, sli_module_backward_input));
    sli_stage_end_slice(stage, step, micro);
    return SL_OK;
}

static sl_status perform_backward_weight(sli_stage *stage, const sli_step *step, sl_action action)
{
    sli_record *record = &stage->records[action.micro];
    observe_completion(stage, step, action);
    sl_status status;
    if (completes_last(stage)) {
        SL_TRY_OR_FAIL(sli_loss_backward_weight(step->loss, last_module(stage), record->pass));
        SL_TRY_OR_FAIL(sli_pass_went_backward(record->pass, last_module(stage)));
    }
    status = run_backward_weight(stage, record->pass, own_modules(stage, step));

fail:
    sl_pass_destroy(&record->pass);
    return status;
}

/* An epoch's last block and evaluations have tensors of other sizes: those that are cached of the
 * steps before would stay beside them. An evaluation of the same shape has them too, in its modules
 * and its loss. Generated texts, whose shapes grow by a token, have no loss. */
static void empty_cache_of_other_sizes(sli_stage *stage, const sli_step *step, int micro,
                                       const sl_tensor *input)
{
    const sl_shape *shape = sl_tensor_shape(input);
    if (!step->loss || step->first_micro + micro > 0 ||
        (step->backward == stage->last_went_backward && sl_shape_equal(shape, &stage->input_shape)))
        return;
    if (stage->input_shape.dims > 0)
        sli_device_empty_cache(stage->device);
    stage->input_shape = *shape;
    stage->last_went_backward = step->backward;
}

sl_status sli_stage_receive(const sli_stage *stage, sl_action action, sl_tensor **tensor)
{
    if (*tensor)
        SL_TRY(sli_tensor_receive(tensor, stage->device));
    return sli_stage_copy_skips(stage, action);
}

sl_status sli_stage_perform(sli_stage *stage, sli_step *step, sl_action action, sl_tensor **tensor)
{
    switch (action.kind) {
    case SL_ACTION_FORWARD:
        empty_cache_of_other_sizes(stage, step, action.micro, *tensor);
        return perform_forward(stage, step, action, tensor);
    case SL_ACTION_RECOMPUTE:
        return perform_recompute(stage, step, action.micro);
    case SL_ACTION_BACKWARD:
        return perform_backward(stage, step, action, tensor);
    case SL_ACTION_BACKWARD_INPUT:
        return perform_backward_input(stage, step, action.micro, tensor);
    case SL_ACTION_BACKWARD_WEIGHT:
        return perform_backward_weight(stage, step, action);
    case SL_ACTION_HEAD_FORWARD:
        return sli_stage_head_forward(stage, action.micro);
    case SL_ACTION_HEAD_BACKWARD:
        return sli_stage_head_backward(stage, action.micro);
    }
    return sl_error(SL_ERR_INTERNAL, "an action without a kind");
}

void sli_stage_clear_records(sli_stage *stage, int micros)
{
    for (int micro = 0; micro < micros; micro++) {
        sl_tensor_destroy(&stage->records[micro].input);
        sl_pass_destroy(&stage->records[micro].pass);
        sl_tensor_destroy(&stage->records[micro].output);
        sli_slices_destroy(&stage->records[micro].slices);
        sli_stage_drop_skips(stage, micro);
        sli_stage_drop_head(stage, micro);
    }
}
