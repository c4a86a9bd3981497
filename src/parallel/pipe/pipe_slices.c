/* Slices of micro-batches along time (Seq1F1B, arXiv 2406.03488).
 *
 * A slice is to the pipe what a micro-batch is: it has an input, a pass, slots in channels. Only
 * attention looks at other slices: what it keeps of a micro-batch's positions (nn/slices.c) is at
 * the record of the micro-batch's first slice in a stage, which goes forward first and backward
 * last:
 *
 *     forward    slice 0 ──keys, values──▶ slice 1 ──keys, values──▶ slice 2
 *     backward   slice 0 ◀──gradients───── slice 1 ◀──gradients───── slice 2
 *
 * Slice k of K has positions T k / K to T (k + 1) / K - 1 of its micro-batch's T. A batch with a
 * micro-batch of fewer positions than slices, as a text's last one may be, is not cut: its table is
 * that of the last slices' forwards and the first slices' backwards (sli_schedule_join_slices). */
#include "parallel/pipe/pipe_slices.h"

#include "core/error.h"
#include "device/device.h"
#include "nn/module.h"
#include "parallel/schedule/table.h"

#include <inttypes.h>

/* ---- What can be cut -------------------------------------------------------------------- */

sl_status sli_pipe_check_slices(const sl_pipe *pipe)
{
    if (pipe->slices == 1)
        return SL_OK;
    if (pipe->head_blocks > 0)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "sl_pipe_create: a split head cannot be combined with slices");
    for (int i = 0; i < sl_module_child_count(pipe->model); i++) {
        const sl_module *module = sl_module_child(pipe->model, i);
        char path[SLI_PATH_BYTES];
        if (!sl_module_can_continue(module))
            return sl_error(SL_ERR_UNSUPPORTED,
                            "sl_pipe_create: slices need modules that can continue a row, which "
                            "module %s (%s) cannot",
                            sli_module_path(module, path), sl_module_type(module));
    }
    for (int i = 0; i < pipe->rank_count; i++)
        if (pipe->ranks[i].device && !sli_device_takes_slices(pipe->ranks[i].device))
            return sl_error(SL_ERR_UNSUPPORTED,
                            "sl_pipe_create: slices run on CPUs only, rank %d has %s", i,
                            sl_device_name(pipe->ranks[i].device));
    return SL_OK;
}

/* The positions of the micro-batch with the fewest. */
static int64_t fewest_positions(const sl_pipe *pipe, const sl_pipe_batch *batch,
                                const sli_step *step)
{
    int64_t fewest = step->columns, row = 0;
    if (!batch->lengths)
        return fewest;
    int micros = sl_micro_batches(step->rows, step->batch_micros, pipe->sizes);
    for (int micro = 0; micro < micros; micro++) {
        int64_t longest = 1;
        for (int64_t i = 0; i < pipe->sizes[micro]; i++, row++)
            longest = batch->lengths[row] > longest ? batch->lengths[row] : longest;
        fewest = longest < fewest ? longest : fewest;
    }
    return fewest;
}

sl_status sli_pipe_choose_slices(const sl_pipe *pipe, const sl_pipe_batch *batch, sli_step *step)
{
    char text[SL_SHAPE_TEXT_BYTES];
    const sl_shape *shape = sl_tensor_shape(batch->input);
    if (shape->dims < 2)
        return sl_error(SL_ERR_INVALID, "%s: with slices the input must be [N, T, ...], got %s",
                        step->who, sl_shape_text(shape, text));
    if (batch->input_count > 0)
        return sl_error(SL_ERR_UNSUPPORTED, "%s: further inputs cannot be cut into slices",
                        step->who);
    step->columns = shape->size[1];
    step->slices = fewest_positions(pipe, batch, step) < pipe->slices ? 1 : pipe->slices;
    return SL_OK;
}

void sli_micro_slice(const sli_step *step, int index, sli_micro *micro)
{
    if (step->slices == 1)
        return;
    micro->positions = micro->columns > 0 ? micro->columns : step->columns;
    micro->first_position = micro->positions * index / step->slices;
    micro->columns = micro->positions * (index + 1) / step->slices - micro->first_position;
}

/* ---- In a stage ------------------------------------------------------------------------- */

sl_status sli_stage_begin_slice(sli_stage *stage, const sli_step *step, int micro, sl_pass *pass)
{
    const sli_micro *slice = &step->micros[micro];
    int first = sli_slice_number(micro / step->slices, 0, step->slices);
    sli_slices **slices = &stage->records[first].slices;
    if (step->slices == 1)
        return SL_OK;
    if (!*slices)
        SL_TRY(sli_slices_create(stage->model, slice->positions, slices));
    sli_pass_begin_slice(pass, *slices, slice->first_position, slice->columns);
    return SL_OK;
}

void sli_stage_end_slice(sli_stage *stage, const sli_step *step, int micro)
{
    int first = sli_slice_number(micro / step->slices, 0, step->slices);
    int last = sli_slice_number(micro / step->slices, step->slices - 1, step->slices);
    if (micro == (stage->goes_backward ? first : last))
        sli_slices_destroy(&stage->records[first].slices);
}
