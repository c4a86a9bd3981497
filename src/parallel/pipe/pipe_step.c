/* A step of a pipe: cuts a batch into micro-batches, has every rank run its row of a table for
 * those of each accumulation step, and puts together what comes out. */
#include "parallel/pipe/pipe_step.h"
#include "nn/loss.h"

#include "core/error.h"
#include "parallel/pipe/pipe.h"
#include "parallel/pipe/pipe_head.h"
#include "parallel/pipe/pipe_slices.h"
#include "parallel/pipe/pipe_table.h"
#include "parallel/pipe/pipe_tied.h"
#include "parallel/schedule/table.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Cutting a batch -------------------------------------------------------------------- */

static void drop_micros(sl_pipe *pipe)
{
    for (int micro = 0; micro < pipe->batch_micros * pipe->slices; micro++) {
        sl_tensor_destroy(&pipe->micros[micro].input);
        sl_tensor_destroy(&pipe->micros[micro].targets);
    }
}

/* Rows of a batch as a tensor on `device`. */
static sl_status cut_rows(const sl_tensor *batch, const sli_micro *cut, sl_device *device,
                          sl_tensor **out)
{
    SL_TRY(sli_tensor_narrow(batch, cut->first_row, cut->rows, out));
    if (cut->columns > 0)
        SL_TRY(sli_tensor_trim(out, cut->first_position, cut->columns));
    return sli_tensor_move(out, device);
}

static sl_status cut_input(const sl_pipe *pipe, const sl_tensor *batch, sli_micro *cut)
{
    SL_TRY(cut_rows(batch, cut, pipe->stages[0].device, &cut->input));
    return sli_pipe_number_words(pipe, &cut->input);
}

/* 0 without lengths. */
static int64_t longest_row(const int64_t *lengths, const sli_micro *cut)
{
    int64_t longest = lengths ? 1 : 0;
    for (int64_t row = cut->first_row; lengths && row < cut->first_row + cut->rows; row++)
        longest = lengths[row] > longest ? lengths[row] : longest;
    return longest;
}

static const sli_stage *first_stage(const sl_pipe *pipe)
{
    return &pipe->stages[0];
}

/* Fills pipe->micros; what the stages of this process do not use may be NULL. */
static sl_status cut_batch(sl_pipe *pipe, const sl_pipe_batch *batch, const sli_step *step,
                           const sl_tensor *targets, int64_t first_sample, int micros)
{
    int64_t row = 0;
    for (int i = 0; i < micros * step->slices; i++) {
        int micro = i / step->slices, slice = i % step->slices;
        sli_micro *cut = &pipe->micros[sli_slice_number(micro, slice, step->slices)];
        *cut = (sli_micro){.rows = pipe->sizes[micro],
                           .first_row = row,
                           .first_sample = first_sample + row};
        cut->columns = longest_row(batch->lengths, cut);
        sli_micro_slice(step, slice, cut);
        if (first_stage(pipe)->is_here)
            SL_TRY(cut_input(pipe, batch->input, cut));
        if (targets)
            SL_TRY(cut_rows(targets, cut, sli_last_stage(pipe)->device, &cut->targets));
        if (slice + 1 == step->slices)
            row += cut->rows;
    }
    return SL_OK;
}

static int64_t row_count(const sl_tensor *tensor)
{
    const sl_shape *shape = sl_tensor_shape(tensor);
    return shape->dims > 0 ? shape->size[0] : 0;
}

static sl_status check_caches(const char *who, const sl_pipe *pipe, const sl_pipe_batch *batch,
                              bool has_loss)
{
    char text[SL_SHAPE_TEXT_BYTES];
    if (has_loss)
        return sl_error(SL_ERR_INVALID, "%s: a cache is for sl_pipe_forward", who);
    if (!first_stage(pipe)->is_here)
        return SL_OK;
    const sl_shape *shape = sl_tensor_shape(batch->input);
    if (shape->dims < 2 || shape->size[1] < 1)
        return sl_error(SL_ERR_INVALID, "%s: with a cache the input must be [N, T, ...], got %s",
                        who, sl_shape_text(shape, text));
    SL_TRY(sli_cache_check_rows(who, batch->caches, shape->size[0]));
    for (int64_t row = 0; row < shape->size[0]; row++)
        SL_TRY(sli_cache_check_room(batch->caches[row], shape->size[1]));
    return SL_OK;
}

sl_status sli_pipe_check_batch(const char *who, const sl_pipe *pipe, const sl_pipe_batch *batch,
                               bool has_loss)
{
    char text[SL_SHAPE_TEXT_BYTES];
    if (!batch)
        return sl_error(SL_ERR_INVALID, "%s: batch is NULL", who);
    if (!batch->input && first_stage(pipe)->is_here)
        return sl_error(SL_ERR_INVALID, "%s: batch->input is NULL", who);
    if (has_loss && !pipe->loss)
        return sl_error(SL_ERR_INVALID, "%s: the pipe was created without a loss", who);
    if (has_loss && !batch->targets && sli_last_stage(pipe)->is_here)
        return sl_error(SL_ERR_INVALID, "%s: the batch has no targets", who);
    if (first_stage(pipe)->is_here && row_count(batch->input) < 1)
        return sl_error(SL_ERR_INVALID, "%s: the input must have at least one row, got %s", who,
                        sl_shape_text(sl_tensor_shape(batch->input), text));
    if (batch->caches)
        SL_TRY(check_caches(who, pipe, batch, has_loss));
    if (batch->last_position && has_loss)
        return sl_error(SL_ERR_INVALID, "%s: the last position alone is for sl_pipe_forward", who);
    if (batch->lengths && !has_loss)
        return sl_error(SL_ERR_INVALID, "%s: lengths of rows are for a batch with a loss", who);
    return sli_inputs_check(who, batch->inputs, batch->input_count);
}

/* Do the targets have the input's rows, and does each of the further inputs make as many
 * micro-batches as the first one? */
static sl_status check_rows(const sli_step *step, const sl_pipe_batch *batch,
                            const sl_tensor *targets)
{
    int micros = sl_micro_batches(step->rows, step->batch_micros, NULL);
    if ((step->positions > 0) != (step->caches != NULL))
        return sl_error(SL_ERR_INVALID, "%s: either all ranks have a cache or none", step->who);
    if (step->caches)
        SL_TRY(sli_cache_check_rows(step->who, step->caches, step->rows));
    if (targets && row_count(targets) != step->rows)
        return sl_error(SL_ERR_INVALID,
                        "%s: the input has %" PRId64 " rows, the targets have %" PRId64, step->who,
                        step->rows, row_count(targets));
    for (int i = 0; i < batch->input_count; i++) {
        const sl_input *input = &batch->inputs[i];
        int own = input->whole
                      ? micros
                      : sl_micro_batches(row_count(input->tensor), step->batch_micros, NULL);
        if (own != micros)
            return sl_error(SL_ERR_INVALID,
                            "%s: the input makes %d micro-batches, but input \"%s\" makes %d",
                            step->who, micros, input->name, own);
    }
    return SL_OK;
}

/* ---- Steps ------------------------------------------------------------------------------ */

static int table_size(const sl_schedule *schedule)
{
    const sl_action *row;
    int count = 0;
    for (int rank = 0; rank < sl_schedule_ranks(schedule); rank++)
        count += sl_schedule_actions(schedule, rank, &row);
    return count;
}

/* Room for the times of the step's actions. */
static sl_status begin_trace(sl_pipe *pipe, const sl_schedule *schedule)
{
    int count = table_size(schedule);
    sl_timeline_entry *trace = realloc(pipe->trace, (size_t)count * sizeof *trace);
    if (!trace)
        return sli_no_memory("sl_pipe", "a trace of %d actions", count);
    pipe->trace = trace;
    sli_action_moments *moments = realloc(pipe->moments, (size_t)count * sizeof *moments);
    if (!moments)
        return sli_no_memory("sl_pipe", "a trace of %d actions", count);
    pipe->moments = moments;
    memset(moments, 0, (size_t)count * sizeof *moments);
    pipe->moment_count = count;
    return SL_OK;
}

/* Reads the times of the actions that ended well, and sums them. Devices whose operations are
 * queued are waited for; their errors are those of the next operation. */
static void end_trace(sl_pipe *pipe)
{
    pipe->trace_count = 0;
    pipe->trace_busy_seconds = 0;
    for (int i = 0; i < pipe->moment_count; i++) {
        sli_action_moments *moments = &pipe->moments[i];
        sl_device *device = pipe->stages[moments->action.stage].device;
        double start, end;
        sl_status started = sli_device_end_moment(device, &moments->start, &start);
        sl_status ended = sli_device_end_moment(device, &moments->end, &end);
        if (!moments->ended || started != SL_OK || ended != SL_OK)
            continue;
        pipe->trace[pipe->trace_count++] =
            (sl_timeline_entry){moments->action, start - pipe->trace_start,
                                end - pipe->trace_start};
        pipe->trace_busy_seconds += end - start;
    }
    pipe->moment_count = 0;
}

/* Room for each row's loss, in the order of the batch. */
static sl_status allocate_row_losses(sl_pipe *pipe, sli_step *step, int micros)
{
    int64_t count = 0;
    micros *= step->slices;
    for (int i = 0; i < micros; i++) {
        sli_micro *micro = &pipe->micros[i];
        micro->row_loss_count = sli_loss_rows(step->loss, micro->targets);
        count += micro->row_loss_count;
    }
    step->row_losses = calloc((size_t)count + 1, sizeof *step->row_losses);
    if (!step->row_losses)
        return sli_no_memory("sl_pipe", "the losses of %" PRId64 " rows", count);
    for (int i = 0; i < micros; i++) {
        pipe->micros[i].row_losses = step->row_losses + step->row_loss_count;
        step->row_loss_count += pipe->micros[i].row_loss_count;
    }
    return SL_OK;
}

static sli_table_kind table_kind(const sl_pipe *pipe, const sli_step *step)
{
    if (!step->backward)
        return SLI_TABLE_FORWARD;
    if (!step->training)
        return SLI_TABLE_GRADIENT;
    return step->slices < pipe->slices ? SLI_TABLE_WHOLE : SLI_TABLE_TRAINING;
}

/* Gives every process what the one of the first stage knows of the batch. Its rows are 0 where that
 * process has an error. */
static sl_status broadcast_batch(const sl_pipe *pipe, sli_step *step, int64_t *first_sample)
{
    int64_t words[] = {step->rows,         *first_sample, (int64_t)step->step, step->positions,
                       step->same_weights, step->slices,  step->columns};
    enum { WORDS = sizeof words / sizeof *words };
    SL_TRY(
        sli_pipe_group_broadcast(pipe->group, words, WORDS, SL_I64, first_stage(pipe)->group_rank));
    step->rows = words[0];
    *first_sample = words[1];
    step->step = (uint64_t)words[2];
    step->positions = words[3];
    step->same_weights = words[4] != 0;
    step->slices = (int)words[5];
    step->columns = words[6];
    return SL_OK;
}

static sl_status convert_parameters(int stage, void *pipe)
{
    return sli_parameter_set_convert(sl_pipe_parameters(pipe, stage));
}

/* All ranks have finished before any begins its row: a tied weight is another stage's. */
static sl_status convert_all_parameters(sl_pipe *pipe, const sli_step *step)
{
    if (pipe->precision != SL_PRECISION_BF16 || step->same_weights)
        return SL_OK;
    return sli_pipe_run_here(pipe, convert_parameters, pipe);
}

/* Fills in all but what the caller has (`backward`, `training`, `loss` and `scale`) and what
 * belongs to an accumulation step. *micros: how many the batch has. `status`: the error that this
 * process has with the arguments, which the others learn when the step ends. */
static sl_status prepare_step(sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step,
                              sl_status status, int *micros)
{
    int64_t first_sample = batch->first_sample;
    const sl_tensor *targets = step->loss && sli_last_stage(pipe)->is_here ? batch->targets : NULL;
    *micros = 0;
    step->rows = status == SL_OK && first_stage(pipe)->is_here ? row_count(batch->input) : 0;
    step->inputs = batch->inputs;
    step->input_count = batch->input_count;
    step->batch_micros = pipe->batch_micros;
    step->caches = batch->caches;
    step->positions = batch->caches && step->rows > 0 ? sl_tensor_shape(batch->input)->size[1] : 0;
    step->precision = pipe->precision;
    step->seed = pipe->seed;
    step->step = batch->step;
    step->same_weights = batch->same_weights;
    step->last_position = batch->last_position;
    step->slices = 1;
    if (pipe->slices > 1 && step->backward && step->training && step->rows > 0)
        status = sli_pipe_choose_slices(pipe, batch, step);
    sli_pipe_drop_words(pipe); /* an earlier step's */
    if (status == SL_OK && first_stage(pipe)->is_here)
        status = sli_pipe_list_words(pipe, batch->input, step->backward);
    if (status != SL_OK)
        step->rows = 0;
    step->failure = &pipe->failure;
    step->channels = pipe->channels;
    step->channel_count = pipe->channel_count;
    if (pipe->group) {
        sli_error_copy own;
        sli_error_save(&own, status);
        SL_TRY(broadcast_batch(pipe, step, &first_sample));
        if (!step->same_weights)
            SL_TRY(sli_pipe_exchange_tied(pipe));
        SL_TRY(sli_pipe_group_check(pipe->group, convert_all_parameters(pipe, step)));
        SL_TRY(sli_pipe_exchange_head(pipe, step));
        status = sli_error_restore(&own);
        step->link = pipe->group->link;
    }
    if (status != SL_OK || step->rows < 1)
        return status;
    if (!pipe->group)
        SL_TRY(convert_all_parameters(pipe, step));
    SL_TRY(check_rows(step, batch, targets));
    if (step->backward)
        sli_pipe_begin_head(pipe);
    *micros = sl_micro_batches(step->rows, step->batch_micros, pipe->sizes);
    SL_TRY(cut_batch(pipe, batch, step, targets, first_sample, *micros));
    return targets ? allocate_row_losses(pipe, step, *micros) : SL_OK;
}

static sl_status prepare_accumulation_step(sl_pipe *pipe, sli_step *step, int first, int micros)
{
    SL_TRY(sli_pipe_find_table(pipe, table_kind(pipe, step), micros, &step->table));
    if (step->backward) {
        SL_TRY(begin_trace(pipe, step->table->schedule));
        step->moments = pipe->moments;
    }
    step->micros = pipe->micros + first * step->slices;
    step->first_micro = first;
    step->start = sli_clock_seconds();
    if (step->backward)
        pipe->trace_start = step->start;
    return SL_OK;
}

static void begin_link_step(const sl_pipe *pipe, const sli_step *step, int first)
{
    bool evaluates = step->loss && !step->backward;
    sli_link_step all = {.sequence = ++pipe->group->calls,
                         .kind = evaluates ? SLI_LINK_EVALUATION : (int32_t)table_kind(pipe, step),
                         .first_micro = first};
    sli_link_begin(step->link, &all, step->channels, step->channel_count);
}

/* Runs the table for `micros` micro-batches of the batch, from `first` on; none where this process
 * has had an error before, its `status`. */
static sl_status run_accumulation_step(sl_pipe *pipe, sli_step *step, int first, int micros,
                                       sl_status status)
{
    if (step->link)
        begin_link_step(pipe, step, first);
    if (status == SL_OK && micros > 0)
        status = prepare_accumulation_step(pipe, step, first, micros);
    if (status == SL_OK && micros > 0)
        sli_pipe_run_ranks(pipe, sli_rank_run, step);
    sli_failure_raise(&pipe->failure, SLI_FAILURE_OF_CALL, status);
    if (status != SL_OK && step->link)
        sli_link_send_failure(step->link, SLI_FAILURE_OF_CALL);
    if (step->backward)
        end_trace(pipe);
    status = sli_pipe_end_run(pipe, true, step->backward ? &pipe->trace_busy_seconds : NULL);
    if (step->backward)
        pipe->trace_seconds = sli_clock_seconds() - pipe->trace_start;
    return status;
}

/* Gradients are complete in the last accumulation step: it alone has observers. */
static sl_status run_accumulation_steps(sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step,
                                        sl_status status)
{
    const sli_pass_observer *const *observers = step->observers;
    int micros, first = 0;
    status = prepare_step(pipe, batch, step, status, &micros);
    do {
        bool is_last = micros - first <= pipe->chunks;
        step->observers = is_last ? observers : NULL;
        status = run_accumulation_step(pipe, step, first, is_last ? micros - first : pipe->chunks,
                                       status);
        first += pipe->chunks;
    } while (status == SL_OK && first < micros);
    return status;
}

sl_status sli_pipe_run_step(sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step,
                            sl_status status)
{
    status = run_accumulation_steps(pipe, batch, step, status);
    drop_micros(pipe);
    if (status == SL_OK)
        return SL_OK;
    for (int i = 0; i < pipe->channel_count; i++)
        sli_channel_reset(pipe->channels[i]);
    sl_tensor_destroy(&step->output);
    free(step->row_losses);
    return status;
}

/* Gives every process the loss, which the one of the last stage has. */
static sl_status broadcast_loss(const sl_pipe *pipe, double *sum, int64_t *terms)
{
    double words[] = {*sum, (double)*terms};
    SL_TRY(
        sli_pipe_group_broadcast(pipe->group, words, 2, SL_F64, sli_last_stage(pipe)->group_rank));
    *sum = words[0];
    *terms = (int64_t)words[1];
    return SL_OK;
}

/* Adds the losses of each row of a micro-batch or slice, in their order, to the batch's. */
static void sum_rows_of_micro(const sli_micro *micro, double *row_losses)
{
    int64_t each = micro->row_loss_count / micro->rows;
    bool is_even = each * micro->rows == micro->row_loss_count;
    for (int64_t row = 0; row < micro->rows; row++) {
        double *sum = &row_losses[micro->first_row + row];
        for (int64_t i = 0; i < each && is_even; i++)
            *sum += micro->row_losses[row * each + i];
        if (!is_even)
            *sum = NAN;
    }
}

/* Every process gets them. */
static sl_status sum_row_losses(const sl_pipe *pipe, const sli_step *step, double *row_losses)
{
    int micros = sl_micro_batches(step->rows, step->batch_micros, NULL);
    for (int64_t row = 0; row < step->rows; row++)
        row_losses[row] = 0;
    for (int i = 0; i < micros * step->slices && step->row_losses; i++)
        sum_rows_of_micro(
            &pipe->micros[sli_slice_number(i / step->slices, i % step->slices, step->slices)],
            row_losses);
    return pipe->group ? sli_pipe_group_broadcast(pipe->group, row_losses, step->rows, SL_F64,
                                                  sli_last_stage(pipe)->group_rank)
                       : SL_OK;
}

/* The rows' losses are added in the order of the batch, so that the sum depends on nothing else. */
sl_status sli_pipe_run_with_loss(sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step,
                                 sl_status status, double *sum, int64_t *terms)
{
    double weight = batch->weight != 0 ? batch->weight : 1;
    int64_t count = 0;
    if (status == SL_OK && sli_last_stage(pipe)->is_here)
        status = sl_loss_terms(pipe->loss, batch->targets, &count);
    step->loss = pipe->loss;
    /* Without any term there is no gradient either, whatever the scale. */
    step->scale = count > 0 ? weight / (double)count : 1.0;
    SL_TRY(sli_pipe_run_step(pipe, batch, step, status));
    *sum = 0;
    for (int64_t row = 0; row < step->row_loss_count; row++)
        *sum += step->row_losses[row];
    *terms = count;
    if (batch->row_losses)
        status = sum_row_losses(pipe, step, batch->row_losses);
    free(step->row_losses);
    SL_TRY(status);
    return pipe->group ? broadcast_loss(pipe, sum, terms) : SL_OK;
}
