/* Rows of ids or of token files as the data of a task. Row s of a split is its sample s; samples of
 * several sources are mixed by the sources' weights (text/mixture.h). A batch's rows are as long as
 * the longest of those that are loaded together, the others padded without a loss; a pipe cuts each
 * micro-batch to its longest row. An evaluation's last batch may lack rows, which are then all
 * padding; training leaves out what does not fill a batch. */
#include "train/loop/rows_task.h"

#include "core/error.h"
#include "core/memory.h"
#include "tensor/tensor.h"
#include "text/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PADDING = 0 };

/* ---- Which rows ------------------------------------------------------------------------- */

/* A row of a batch: number `number` of a source's split; past its end there is none. */
typedef struct batch_row {
    const sl_rows *data;
    int64_t number;
    int source;
} batch_row;

static int64_t count_of(const sli_rows_task *task, int source, sl_split split)
{
    const sl_rows *data = task->sources[source].rows[split];
    return data ? data->count : 0;
}

static int64_t whole_batches(int64_t count, int64_t rows)
{
    return (count + rows - 1) / rows;
}

void sli_rows_task_batches(const sli_rows_task *task, sl_split split, int source, int64_t rows,
                           int64_t *first, int64_t *count)
{
    *first = 0;
    for (int i = 0; i < source; i++)
        *first += whole_batches(count_of(task, i, split), rows);
    *count = whole_batches(count_of(task, source, split), rows);
}

/* A batch of an evaluation is one source's. */
static batch_row row_for_evaluation(const sli_rows_task *task, const sl_train_rows *rows,
                                    int64_t place)
{
    int source = 0;
    int64_t first = 0, count;
    while ((count = whole_batches(count_of(task, source, rows->split), rows->batch_rows)) <=
           rows->batch - first) {
        first += count;
        source++;
    }
    return (batch_row){task->sources[source].rows[rows->split], place - first * rows->batch_rows,
                       source};
}

/* Of a mixture the run's samples are numbered through all epochs, and so are those of each source,
 * which is passed again and again, each time in an order of its own. */
static batch_row row_of_mixture(const sli_rows_task *task, const sl_train_rows *rows, int64_t place)
{
    enum { EPOCH_BITS = 40 };
    batch_row row;
    int64_t sample = rows->epoch * task->batches_per_epoch * rows->batch_rows + place;
    sli_mixture_find(&task->mixture, sample, &row.source, &row.number);
    row.data = task->sources[row.source].rows[SL_SPLIT_TRAIN];
    int64_t epoch = row.number / row.data->count;
    row.number %= row.data->count;
    if (rows->shuffled)
        row.number = sl_shuffled(row.number, row.data->count, rows->seed,
                                 (int64_t)row.source << EPOCH_BITS | epoch);
    return row;
}

/* The row at a place of the epoch, or of the split, before any are sorted by length. */
static batch_row row_at(const sli_rows_task *task, const sl_train_rows *rows, int64_t place)
{
    if (rows->split != SL_SPLIT_TRAIN)
        return row_for_evaluation(task, rows, place);
    if (task->count > 1)
        return row_of_mixture(task, rows, place);
    sl_train_rows at = *rows;
    at.batch = 0;
    at.first = place;
    return (batch_row){task->sources[0].rows[SL_SPLIT_TRAIN], sl_train_sample(&at, 0), 0};
}

static int64_t length_of(batch_row row)
{
    return row.number < row.data->count ? sli_rows_length(row.data, row.number) : 0;
}

static int64_t length_at(const void *task, const sl_train_rows *rows, int64_t place)
{
    return length_of(row_at(task, rows, place));
}

static sl_status find_places(const sli_rows_task *task, const sl_train_rows *rows, int64_t *places)
{
    for (int64_t i = 0; i < rows->count; i++)
        places[i] = rows->batch * rows->batch_rows + rows->first + i;
    if (!task->groups || rows->split != SL_SPLIT_TRAIN)
        return SL_OK;
    int64_t batches = task->count > 1 ? task->batches_per_epoch
                                      : count_of(task, 0, SL_SPLIT_TRAIN) / rows->batch_rows;
    return sli_length_groups_find(task->groups, length_at, task, batches, rows, places);
}

/* *out [rows->count], to be freed, also after an error. */
static sl_status find_rows(const sli_rows_task *task, const sl_train_rows *rows, batch_row **out)
{
    *out = malloc((size_t)(rows->count + 1) * sizeof **out);
    int64_t *places = malloc((size_t)(rows->count + 1) * sizeof *places);
    sl_status status = *out && places
                           ? find_places(task, rows, places)
                           : sli_no_memory(NULL, "the numbers of %" PRId64 " rows", rows->count);
    for (int64_t i = 0; i < rows->count && status == SL_OK; i++)
        (*out)[i] = row_at(task, rows, places[i]);
    free(places);
    return status;
}

/* ---- The task --------------------------------------------------------------------------- */

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    const sli_rows_task *task = context;
    SL_TRY(sl_transformer_lm_create(task->model, model));
    return sl_cross_entropy_create(loss);
}

/* An epoch of a mixture has as many rows as its sources have together. */
static sl_status count_batches(void *context, sl_split split, int64_t rows, int64_t *batches)
{
    const sli_rows_task *task = context;
    int64_t all = 0;
    *batches = 0;
    for (int i = 0; i < task->count; i++) {
        int64_t count = count_of(task, i, split);
        all += count;
        *batches += split == SL_SPLIT_TRAIN ? 0 : whole_batches(count, rows);
    }
    if (split == SL_SPLIT_TRAIN)
        *batches = all / rows;
    if (*batches == 0 && all > 0)
        return sl_error(SL_ERR_INVALID, "%s: its %" PRId64 " rows do not fill a batch of %" PRId64,
                        task->count > 1 ? "the mixture" : task->sources[0].paths[split], all, rows);
    return SL_OK;
}

/* The squares of the lengths of a row's documents. */
static double squares_of(batch_row row)
{
    double squares = 0;
    int64_t length = length_of(row);
    const int32_t *numbers = length > 0 ? row.data->numbers + row.data->begins[row.number] : NULL;
    for (int64_t i = 0; i < length; i++)
        if (i + 1 == length || numbers[i + 1] == 0)
            squares += (double)(numbers[i] + 1) * (numbers[i] + 1);
    return squares;
}

static int64_t longest_of(const batch_row *found, int64_t count)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < count; i++)
        longest = length_of(found[i]) > longest ? length_of(found[i]) : longest;
    return longest;
}

/* Adds what a micro-batch has. */
static void add_size(const batch_row *found, int64_t count, sli_rows_size *size)
{
    int64_t longest = longest_of(found, count);
    size->padded += count * longest;
    for (int64_t i = 0; i < count; i++) {
        double all = (double)longest, rest = all - (double)length_of(found[i]);
        size->tokens += length_of(found[i]);
        size->squares += found[i].data->numbers ? squares_of(found[i]) + rest * rest : all * all;
    }
}

sl_status sli_rows_task_measure(const sli_rows_task *task, const sl_train_rows *rows, int micros,
                                sli_rows_size *out)
{
    batch_row *found;
    int64_t *sizes = calloc((size_t)micros, sizeof *sizes), first = 0;
    sl_status status;
    *out = (sli_rows_size){0};
    SL_TRY_OR_FAIL(find_rows(task, rows, &found));
    if (!sizes)
        SL_TRY_OR_FAIL(sli_no_memory(NULL, "%d micro-batches", micros));
    int count = sl_micro_batches(rows->count, micros, sizes);
    for (int i = 0; i < count; first += sizes[i++])
        add_size(found + first, sizes[i], out);
fail:
    free(sizes);
    free(found);
    return status;
}

/* What is written of a row. */
typedef enum row_part { IDS, TARGETS, NUMBERS } row_part;

/* With padding up to `room`, which is a document of its own. */
static sl_status write_row(batch_row row, row_part part, int64_t room, int32_t *to)
{
    int64_t length = length_of(row);
    if (length > 0 && part == NUMBERS)
        memcpy(to, row.data->numbers + row.data->begins[row.number], (size_t)length * sizeof *to);
    else if (length > 0)
        SL_TRY(sli_rows_copy(row.data, row.number, part == TARGETS, to));
    for (int64_t i = length; i < room; i++)
        to[i] = part == NUMBERS   ? (int32_t)(i - length)
                : part == TARGETS ? SLI_IGNORED_TARGET
                                  : PADDING;
    return SL_OK;
}

static sl_status write_rows(const batch_row *found, int64_t count, row_part part, int64_t room,
                            int32_t *to)
{
    for (int64_t i = 0; i < count; i++)
        SL_TRY(write_row(found[i], part, room, to + i * room));
    return SL_OK;
}

static sl_status fill_block(const batch_row *found, int64_t count, sli_row_block *block)
{
    int64_t longest = longest_of(found, count);
    size_t each = (size_t)(count * longest);
    SL_TRY(sli_array_reserve(&block->memory, &block->room, 2 * each, sizeof *block->memory,
                             SIZE_MAX / sizeof *block->memory, "rows of a batch"));
    block->rows = count;
    block->columns = longest;
    block->ids = block->memory;
    block->targets = block->ids + each;
    SL_TRY(write_rows(found, count, IDS, longest, block->ids));
    return write_rows(found, count, TARGETS, longest, block->targets);
}

sl_status sli_rows_task_gather(const sli_rows_task *task, const sl_train_rows *rows,
                               sli_row_block *block)
{
    batch_row *found;
    sl_status status;
    SL_TRY_OR_FAIL(find_rows(task, rows, &found));
    status = fill_block(found, rows->count, block);
fail:
    free(found);
    return status;
}

void sli_row_block_clear(sli_row_block *block)
{
    free(block->memory);
    *block = (sli_row_block){0};
}

static sl_status load_part(const sli_row_block *block, const int32_t *part, sl_device *device,
                           sl_tensor **out)
{
    sli_host_array array;
    sl_shape shape = sl_shape_2d(block->rows, block->columns);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    SL_TRY(sli_tensor_open_host(*out, false, &array));
    memcpy(array.host, part, (size_t)(block->rows * block->columns) * sizeof *part);
    return sli_tensor_close_host(*out, &array, true);
}

sl_status sli_row_block_load(const sli_row_block *block, sl_device *input_device,
                             sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    SL_TRY(load_part(block, block->ids, input_device, input));
    return load_part(block, block->targets, target_device, targets);
}

static sl_status load_rows(void *context, const sl_train_rows *rows, sl_device *input_device,
                           sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    sli_row_block block = {0};
    sl_status status;
    SL_TRY_OR_FAIL(sli_rows_task_gather(context, rows, &block));
    status = sli_row_block_load(&block, input_device, target_device, input, targets);
fail:
    sli_row_block_clear(&block);
    return status;
}

static sl_status load_documents(const batch_row *found, int64_t count, sl_device *device,
                                sl_tensor **out)
{
    sli_host_array array;
    sl_shape shape = sl_shape_2d(count, longest_of(found, count));
    SL_TRY(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    SL_TRY(sli_tensor_open_host(*out, false, &array));
    sl_status status = write_rows(found, count, NUMBERS, shape.size[1], array.host);
    sl_status written = sli_tensor_close_host(*out, &array, status == SL_OK);
    return status == SL_OK ? written : status;
}

sl_status sli_rows_task_load_extra(const sli_rows_task *task, const sl_train_rows *rows,
                                   sl_device *device, sli_rows_extra *out)
{
    batch_row *found;
    sli_rows_extra_clear(out);
    sl_status status;
    SL_TRY_OR_FAIL(find_rows(task, rows, &found));
    out->lengths = malloc((size_t)rows->count * sizeof *out->lengths);
    if (!out->lengths)
        SL_TRY_OR_FAIL(sli_no_memory(NULL, "the lengths of %" PRId64 " rows", rows->count));
    for (int64_t i = 0; i < rows->count; i++)
        out->lengths[i] = length_of(found[i]);
    if (found[0].data->numbers)
        status = load_documents(found, rows->count, device, &out->documents);
fail:
    free(found);
    return status;
}

void sli_rows_extra_clear(sli_rows_extra *extra)
{
    sl_tensor_destroy(&extra->documents);
    free(extra->lengths);
    *extra = (sli_rows_extra){0};
}

static int64_t targets_of(batch_row row)
{
    return row.number < row.data->count ? sli_rows_targets(row.data, row.number) : 0;
}

static sl_status count_terms(void *context, const sl_train_rows *rows, int64_t *terms)
{
    batch_row *found;
    sl_status status = find_rows(context, rows, &found);
    *terms = 0;
    for (int64_t i = 0; i < rows->count && status == SL_OK; i++)
        *terms += targets_of(found[i]);
    free(found);
    return status;
}

sl_train_task sli_rows_task_make(sli_rows_task *rows)
{
    sl_train_task task = {.context = rows,
                          .create_model = create_model,
                          .count_batches = count_batches,
                          .load_rows = load_rows,
                          .count_terms = count_terms};
    for (int split = 0; split < SL_SPLITS; split++)
        task.data[split] = rows->data[split];
    return task;
}

/* ---- Sources ---------------------------------------------------------------------------- */

sl_status sli_rows_task_divide(const sli_rows_task *task, const sl_train_rows *rows,
                               const double *losses, sli_source_part *parts)
{
    batch_row *found;
    sl_status status = find_rows(task, rows, &found);
    for (int64_t i = 0; i < rows->count && status == SL_OK; i++) {
        sli_source_part *part = &parts[found[i].source];
        part->rows++;
        part->targets += targets_of(found[i]);
        part->loss += losses ? losses[i] : 0;
    }
    free(found);
    return status;
}

double sli_rows_task_epochs(const sli_rows_task *task, int source, int64_t samples)
{
    return (double)sli_mixture_count(&task->mixture, source, samples) /
           (double)count_of(task, source, SL_SPLIT_TRAIN);
}
