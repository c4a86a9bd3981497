/* A GPT-2 as a model's file of llm.c. */
#include "core/bf16.h"
#include "core/error.h"
#include "core/replace.h"
#include "io/llmc/llmc.h"
#include "train/checkpoint/checkpoints.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB_MULTIPLE = 128 };

typedef struct exporting {
    sli_llmc_sizes sizes;
    sli_tensors tensors;
    sli_replace_file *file;
    uint64_t end;     /* of what is written */
    float *numbers;   /* [elements of the largest tensor] of one, in the file's order */
    uint16_t *narrow; /* the same as bf16 */
} exporting;

/* ---- What llm.c computes ---------------------------------------------------------------- */

static sl_status refuse(const char *what)
{
    return sl_error(SL_ERR_UNSUPPORTED, "llm.c's file is of a GPT-2 %s, and the model has another",
                    what);
}

static sl_status check_model(const sl_pipe *pipe, const sl_model_options *model)
{
    const sl_group *group = sl_pipe_group(pipe);
    if (model->family != SL_FAMILY_GPT2)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "llm.c's file is of a GPT-2, and the model is of the family %s",
                        sl_family_names[model->family]);
    if (!model->tie)
        return refuse("whose head is its embedding");
    if (model->nhid != 4 * model->emsize)
        return refuse("with a feed-forward network of 4 times its width");
    if (model->activation != SL_ACTIVATION_GELU_TANH)
        return refuse("with the activation gelu_new");
    if ((float)model->decoder.norm_eps != 1e-5f)
        return refuse("with norms of epsilon 1e-5");
    if (group && sl_group_size(group) > 1)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "llm.c's file is written by one process, but there are %d",
                        sl_group_size(group));
    return SL_OK;
}

static sli_llmc_sizes sizes_of(const sl_model_options *model, sl_saved_type type)
{
    int64_t blocks = (model->ntokens + VOCAB_MULTIPLE - 1) / VOCAB_MULTIPLE;
    return (sli_llmc_sizes){.positions = model->decoder.positions,
                            .vocab = model->ntokens,
                            .layers = model->nlayers,
                            .heads = model->nhead,
                            .channels = model->emsize,
                            .padded_vocab = blocks * VOCAB_MULTIPLE,
                            .dtype = type == SL_SAVED_BF16 ? SL_BF16 : SL_F32};
}

/* ---- The file --------------------------------------------------------------------------- */

static sl_status write_bytes(exporting *job, const void *data, size_t bytes)
{
    SL_TRY(sli_replace_file_write(job->file, job->end, data, bytes));
    job->end += bytes;
    return SL_OK;
}

static sl_status find_tensor(const exporting *job, const char *name,
                             const sl_safetensors_item **out)
{
    for (size_t i = 0; i < job->tensors.count; i++)
        if (strcmp(job->tensors.items[i].name, name) == 0) {
            *out = &job->tensors.items[i];
            return SL_OK;
        }
    return sl_error(SL_ERR_UNSUPPORTED, "llm.c's file has a tensor \"%s\", and the model has none",
                    name);
}

void sli_transpose(const float *from, int64_t rows, int64_t columns, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[c * rows + r] = from[r * columns + c];
}

/* Rows that the model does not have are 0. */
static sl_status write_tensor(exporting *job, int kind, int64_t index)
{
    char name[SLI_LLMC_NAME_BYTES];
    const sl_safetensors_item *item = NULL;
    sl_shape shape = sli_llmc_shape(&job->sizes, kind);
    int64_t count = sl_shape_count(&shape);
    sli_llmc_name(kind, index, name);
    SL_TRY(find_tensor(job, name, &item));
    int64_t found = sl_shape_count(&item->shape);
    if (sli_llmc_is_transposed(name))
        sli_transpose(item->data, shape.size[1], shape.size[0], job->numbers);
    else
        memcpy(job->numbers, item->data, (size_t)found * sizeof *job->numbers);
    memset(job->numbers + found, 0, (size_t)(count - found) * sizeof *job->numbers);
    if (job->sizes.dtype != SL_BF16)
        return write_bytes(job, job->numbers, (size_t)count * sizeof *job->numbers);
    sli_narrow_to_bf16(job->numbers, job->narrow, count);
    return write_bytes(job, job->narrow, (size_t)count * sizeof *job->narrow);
}

static sl_status make_room(exporting *job)
{
    size_t most = 0;
    for (int k = 0; k < SLI_LLMC_KINDS; k++) {
        sl_shape shape = sli_llmc_shape(&job->sizes, k);
        size_t count = (size_t)sl_shape_count(&shape);
        most = count > most ? count : most;
    }
    job->numbers = malloc(most * sizeof *job->numbers);
    job->narrow = malloc(most * sizeof *job->narrow);
    return job->numbers && job->narrow ? SL_OK
                                       : sli_no_memory(NULL, "a tensor of %zu numbers", most);
}

static sl_status write_all(exporting *job)
{
    int32_t header[SLI_LLMC_HEADER_BYTES / sizeof(int32_t)];
    SL_TRY(make_room(job));
    sli_llmc_print_header(&job->sizes, header);
    SL_TRY(write_bytes(job, header, sizeof header));
    for (int k = 0; k < SLI_LLMC_KINDS; k++)
        for (int64_t i = 0; i < sli_llmc_count(&job->sizes, k); i++)
            SL_TRY(write_tensor(job, k, i));
    return sli_replace_file_commit(job->file);
}

sl_status sl_model_export_llmc(const sl_pipe *pipe, const sl_model_options *model,
                               sl_saved_type type, const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(path);
    SL_TRY(check_model(pipe, model));
    exporting job = {.sizes = sizes_of(model, type)};
    sl_status status;
    SL_TRY_OR_FAIL(sli_tensors_of_model(pipe, &job.tensors));
    SL_TRY_OR_FAIL(sli_adapter_select(&job.tensors, false));
    SL_TRY_OR_FAIL(sli_tensors_open(&job.tensors, true));
    SL_TRY_OR_FAIL(sli_tensors_need_f32(&job.tensors));
    SL_TRY_OR_FAIL(sli_replace_file_create(path, &job.file));
    status = write_all(&job);
fail:
    sli_replace_file_destroy(&job.file);
    sli_tensors_clear(&job.tensors);
    free(job.numbers);
    free(job.narrow);
    return status;
}
