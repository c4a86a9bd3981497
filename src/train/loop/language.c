/* A text as the data of a task (sluice/app/train.h): cut into columns, of which a batch has a
 * block. */
#include "train/loop/language.h"

#include "core/checksum.h"
#include "core/error.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    const sli_language *language = context;
    SL_TRY(sl_transformer_lm_create(language->model, model));
    return sl_cross_entropy_create(loss);
}

/* Cuts a split into a column for each of a batch's `rows`; of the training text, those of the shard
 * that has row `first` of the batch. */
static sl_status cut_split(const sli_language *language, sl_split split, int64_t rows,
                           int64_t first, sl_batches *out)
{
    const sl_tokens *tokens = language->tokens[split];
    int64_t columns = split == SL_SPLIT_TRAIN ? language->shard_rows : rows;
    sl_batches cut;
    sl_status status = sl_batchify(tokens->ids, tokens->count, columns, language->bptt, &cut);
    if (status == SL_OK)
        status = sl_batches_shard(&cut, (int)(first / columns), (int)(rows / columns), out);
    return language->corpus
               ? sl_error_context(status, "%s: ", sl_corpus_name(language->corpus, split))
               : status;
}

static sl_status count_batches(void *context, sl_split split, int64_t rows, int64_t *batches)
{
    sl_batches cut;
    SL_TRY(cut_split(context, split, rows, 0, &cut));
    *batches = sl_batches_count(&cut);
    const sli_language *language = context;
    if (split == SL_SPLIT_TRAIN && language->whole_rows &&
        sl_batches_block_length(&cut, *batches - 1) < language->bptt)
        --*batches; /* one is left: a column has more than bptt tokens */
    return SL_OK;
}

/* Writes the tokens of one row, of whichever column and block it is. */
static sl_status write_row(const sli_language *language, const sl_train_rows *rows, int64_t row,
                           int32_t *ids, int32_t *targets)
{
    int64_t sample = sl_train_sample(rows, row);
    int64_t block = sample / rows->batch_rows, column = sample % rows->batch_rows;
    sl_batches shard;
    SL_TRY(cut_split(language, rows->split, rows->batch_rows, column, &shard));
    shard.tokens += column % shard.columns * shard.stride;
    shard.columns = 1;
    return sl_batches_block(&shard, block, ids, targets);
}

static sl_status load_rows(void *context, const sl_train_rows *rows, sl_device *input_device,
                           sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    sl_batches cut;
    SL_TRY(cut_split(context, rows->split, rows->batch_rows, rows->first, &cut));
    const int64_t length = sl_batches_block_length(&cut, rows->batch);
    sl_shape shape = sl_shape_2d(rows->count, length);
    SL_TRY(sl_tensor_create(input_device, SL_MEMORY_WORKSPACE, SL_I32, &shape, input));
    SL_TRY(sl_tensor_create(target_device, SL_MEMORY_WORKSPACE, SL_I32, &shape, targets));
    sli_host_array ids[2];
    SL_TRY(sli_tensor_open_host(*input, false, &ids[0]));
    sl_status status = sli_tensor_open_host(*targets, false, &ids[1]);
    for (int64_t i = 0; i < rows->count && status == SL_OK; i++)
        status = write_row(context, rows, i, (int32_t *)ids[0].host + i * length,
                           (int32_t *)ids[1].host + i * length);
    for (int i = 0; i < 2; i++) {
        sl_status written =
            sli_tensor_close_host(i == 0 ? *input : *targets, &ids[i], status == SL_OK);
        status = status == SL_OK ? written : status;
    }
    return status;
}

/* A position in the data means something in the same data alone. */
static void describe_data(sli_language *language, sl_split split)
{
    char checksum[SLI_CHECKSUM_BYTES];
    const sl_tokens *tokens = language->tokens[split];
    sli_checksum_of(tokens->ids, (uint64_t)tokens->count * sizeof *tokens->ids, checksum);
    snprintf(language->data[split], sizeof language->data[split],
             "%" PRId64 " tokens of checksum %s", tokens->count, checksum);
}

sl_train_task sli_language_task(sli_language *language)
{
    sl_train_task task = {.context = language,
                          .create_model = create_model,
                          .count_batches = count_batches,
                          .load_rows = load_rows};
    for (int split = 0; split < SL_SPLITS && language->corpus; split++) {
        language->tokens[split] = sl_corpus_tokens(language->corpus, (sl_split)split);
        describe_data(language, (sl_split)split);
        task.data[split] = language->data[split];
    }
    return task;
}
