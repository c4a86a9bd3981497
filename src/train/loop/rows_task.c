/* Rows of ids or of token files as the data of a task. Row s of a split is its sample s; a batch's
 * rows are as long as the longest of those that are loaded together, the others padded without a
 * loss. An evaluation's last batch may lack rows, which are then all padding; training leaves out
 * what does not fill a batch. */
#include "train/loop/rows_task.h"

#include "core/error.h"
#include "tensor/tensor.h"
#include "text/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PADDING = 0 };

/* ---- Reading ---------------------------------------------------------------------------- */

sl_status sli_data_is_rows(const char *data, bool *out)
{
    char *path;
    *out = false;
    if (!data)
        return SL_OK;
    SL_TRY(sl_rows_path(data, SL_SPLIT_TRAIN, &path));
    *out = path != NULL;
    free(path);
    return SL_OK;
}

/* A row has at most the tokens of --seq-len, and as many as the model has positions. */
static sl_status pack_rows(const sl_train_options *options, sli_rows_task *task)
{
    sl_rows **rows = &task->rows[SL_SPLIT_TRAIN], *packed;
    int64_t positions = sl_model_positions(task->model);
    if ((*rows)->length > 0)
        return sl_error(SL_ERR_INVALID,
                        "%s: pack is for rows of JSON lines, and these are token files, whose rows "
                        "are full",
                        task->paths[SL_SPLIT_TRAIN]);
    SL_TRY(sli_rows_pack(*rows, options->bptt < positions ? options->bptt : positions, &packed));
    task->documents = (*rows)->count;
    sl_rows_destroy(rows);
    *rows = packed;
    return SL_OK;
}

sl_status sli_rows_task_read(const sl_train_options *options, const sl_vocab *vocab,
                             sl_model_options *model, sli_rows_task *out)
{
    const char *data = options->data;
    *out = (sli_rows_task){.model = model};
    if (vocab && model->ntokens == 0)
        model->ntokens = sl_vocab_size(vocab);
    if (vocab && sl_vocab_size(vocab) > model->ntokens)
        return sl_error(SL_ERR_INVALID,
                        "the tokenizer has %" PRId32 " tokens, more than the model's %" PRId64,
                        sl_vocab_size(vocab), model->ntokens);
    for (int split = 0; split < SL_SPLITS; split++) {
        SL_TRY(sl_rows_path(data, (sl_split)split, &out->paths[split]));
        bool one_file = out->paths[split] && strcmp(out->paths[split], data) == 0;
        if (!out->paths[split] || (one_file && split != SL_SPLIT_TRAIN))
            continue;
        const sl_rows_options reading = {.ntokens = model->ntokens,
                                         .positions = sl_model_positions(model),
                                         .vocab = vocab,
                                         .length = options->bptt,
                                         .token_type = options->token_type,
                                         .no_mask_prompt = !options->mask_prompt};
        SL_TRY(sl_rows_read(out->paths[split], &reading, &out->rows[split]));
        if (model->ntokens == 0)
            model->ntokens = (int64_t)out->rows[split]->largest + 1;
    }
    if (options->pack)
        SL_TRY(pack_rows(options, out));
    return options->group_by_length ? sli_length_groups_create(&out->groups) : SL_OK;
}

void sli_rows_task_clear(sli_rows_task *rows)
{
    for (int split = 0; split < SL_SPLITS; split++) {
        free(rows->paths[split]);
        sl_rows_destroy(&rows->rows[split]);
    }
    sli_length_groups_destroy(&rows->groups);
    *rows = (sli_rows_task){0};
}

int64_t sli_rows_task_longest(const sli_rows_task *rows)
{
    int64_t longest = 1;
    for (int split = 0; split < SL_SPLITS; split++)
        if (rows->rows[split] && rows->rows[split]->longest > longest)
            longest = rows->rows[split]->longest;
    return longest;
}

/* ---- The task --------------------------------------------------------------------------- */

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    const sli_rows_task *task = context;
    SL_TRY(sl_transformer_lm_create(task->model, model));
    return sl_cross_entropy_create(loss);
}

static sl_status count_batches(void *context, sl_split split, int64_t rows, int64_t *batches)
{
    const sli_rows_task *task = context;
    const sl_rows *data = task->rows[split];
    *batches = 0;
    if (!data)
        return SL_OK;
    *batches = split == SL_SPLIT_TRAIN ? data->count / rows : (data->count + rows - 1) / rows;
    if (*batches == 0)
        return sl_error(SL_ERR_INVALID, "%s: its %" PRId64 " rows do not fill a batch of %" PRId64,
                        task->paths[split], data->count, rows);
    return SL_OK;
}

/* Which samples some rows are: *out [rows->count], to be freed, also after an error. */
static sl_status find_samples(const sli_rows_task *task, const sl_train_rows *rows, int64_t **out)
{
    *out = malloc((size_t)(rows->count + 1) * sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "the numbers of %" PRId64 " rows", rows->count);
    if (task->groups && rows->split == SL_SPLIT_TRAIN)
        return sli_length_groups_find(task->groups, task->rows[rows->split], rows, *out);
    for (int64_t i = 0; i < rows->count; i++)
        (*out)[i] = sl_train_sample(rows, i);
    return SL_OK;
}

static int64_t length_of(const sl_rows *data, int64_t sample)
{
    return sample < data->count ? sli_rows_length(data, sample) : 0;
}

/* The squares of the lengths of a row's documents. */
static double squares_of(const sl_rows *data, int64_t sample)
{
    double squares = 0;
    int64_t length = length_of(data, sample);
    const int32_t *numbers = length > 0 ? data->numbers + data->begins[sample] : NULL;
    for (int64_t i = 0; i < length; i++)
        if (i + 1 == length || numbers[i + 1] == 0)
            squares += (double)(numbers[i] + 1) * (numbers[i] + 1);
    return squares;
}

static sli_rows_size size_of(const sl_rows *data, const int64_t *samples, int64_t count)
{
    sli_rows_size size = {.longest = 1};
    for (int64_t i = 0; i < count; i++) {
        int64_t length = length_of(data, samples[i]);
        size.tokens += length;
        size.longest = length > size.longest ? length : size.longest;
    }
    for (int64_t i = 0; i < count; i++) {
        double all = (double)size.longest, rest = all - (double)length_of(data, samples[i]);
        size.squares += data->numbers ? squares_of(data, samples[i]) + rest * rest : all * all;
    }
    return size;
}

sl_status sli_rows_task_measure(const sli_rows_task *task, const sl_train_rows *rows,
                                sli_rows_size *out)
{
    int64_t *samples;
    sl_status status = find_samples(task, rows, &samples);
    if (status == SL_OK)
        *out = size_of(task->rows[rows->split], samples, rows->count);
    free(samples);
    return status;
}

/* What is written of a row. */
typedef enum row_part { IDS, TARGETS, NUMBERS } row_part;

/* With padding up to `room`, which is a document of its own. */
static sl_status write_row(const sl_rows *data, int64_t sample, row_part part, int64_t room,
                           int32_t *to)
{
    int64_t length = length_of(data, sample);
    if (length > 0 && part == NUMBERS)
        memcpy(to, data->numbers + data->begins[sample], (size_t)length * sizeof *to);
    else if (length > 0)
        SL_TRY(sli_rows_copy(data, sample, part == TARGETS, to));
    for (int64_t i = length; i < room; i++)
        to[i] = part == NUMBERS   ? (int32_t)(i - length)
                : part == TARGETS ? SLI_IGNORED_TARGET
                                  : PADDING;
    return SL_OK;
}

static sl_status write_rows(const sl_rows *data, const int64_t *samples, row_part part,
                            sl_tensor *tensor)
{
    int64_t room = sl_tensor_columns(tensor), count = sl_tensor_shape(tensor)->size[0];
    sli_host_array array;
    sl_status status = SL_OK;
    SL_TRY(sli_tensor_open_host(tensor, false, &array));
    for (int64_t i = 0; i < count && status == SL_OK; i++)
        status = write_row(data, samples[i], part, room, (int32_t *)array.host + i * room);
    sl_status written = sli_tensor_close_host(tensor, &array, status == SL_OK);
    return status == SL_OK ? written : status;
}

static sl_status load_rows(void *context, const sl_train_rows *rows, sl_device *input_device,
                           sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    const sli_rows_task *task = context;
    const sl_rows *data = task->rows[rows->split];
    int64_t *samples;
    sl_status status = find_samples(task, rows, &samples);
    SLI_TRY_OR_FAIL(status);
    sl_shape shape = sl_shape_2d(rows->count, size_of(data, samples, rows->count).longest);
    SLI_TRY_OR_FAIL(sl_tensor_create(input_device, SL_MEMORY_WORKSPACE, SL_I32, &shape, input));
    SLI_TRY_OR_FAIL(sl_tensor_create(target_device, SL_MEMORY_WORKSPACE, SL_I32, &shape, targets));
    SLI_TRY_OR_FAIL(write_rows(data, samples, IDS, *input));
    status = write_rows(data, samples, TARGETS, *targets);
fail:
    free(samples);
    return status;
}

sl_status sli_rows_task_load_documents(const sli_rows_task *task, const sl_train_rows *rows,
                                       sl_device *device, sl_tensor **out)
{
    const sl_rows *data = task->rows[rows->split];
    int64_t *samples;
    *out = NULL;
    if (!data->numbers)
        return SL_OK;
    sl_status status = find_samples(task, rows, &samples);
    SLI_TRY_OR_FAIL(status);
    sl_shape shape = sl_shape_2d(rows->count, size_of(data, samples, rows->count).longest);
    SLI_TRY_OR_FAIL(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    status = write_rows(data, samples, NUMBERS, *out);
fail:
    free(samples);
    return status;
}

static sl_status count_terms(void *context, const sl_train_rows *rows, int64_t *terms)
{
    const sli_rows_task *task = context;
    const sl_rows *data = task->rows[rows->split];
    int64_t *samples;
    sl_status status = find_samples(task, rows, &samples);
    *terms = 0;
    for (int64_t i = 0; i < rows->count && status == SL_OK; i++)
        *terms += samples[i] < data->count ? sli_rows_targets(data, samples[i]) : 0;
    free(samples);
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
        if (rows->rows[split]) {
            sli_rows_describe(rows->rows[split], rows->data[split], sizeof rows->data[split]);
            task.data[split] = rows->data[split];
        }
    return task;
}
