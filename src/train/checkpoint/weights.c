/* A model's weights as a safetensors file: PyTorch's names and layouts, and in the metadata what is
 * needed to build the model again. */

#include "comm/agree.h"
#include "core/error.h"
#include "core/replace.h"
#include "text/vocab.h"
#include "train/checkpoint/checkpoints.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The model's options as metadata ------------------------------------------------------- */

#define FIELD(field) "sluice." #field, .offset = offsetof(sl_model_options, field)
#define SIZE         .type = SL_OPTION_INT64, .lowest = 1
#define VOCAB_KEY    "sluice.vocab_xxh128"

/* What shapes do not show of a model begins with SHOWN and ends before CONTEXT, which files may
 * leave out; what a model is built from ends before DROPOUT. */
enum { SHOWN = 4, TIE = 8, CONTEXT, DROPOUT, ROWS };
_Static_assert(ROWS + 1 == SLI_MODEL_METADATA, "the rows and the vocabulary");

static const sl_option rows[ROWS] = {
    {.name = FIELD(ntokens), SIZE},
    {.name = FIELD(emsize), SIZE},
    {.name = FIELD(nhid), SIZE},
    {.name = FIELD(nlayers), SIZE},
    {.name = FIELD(nhead), SIZE},
    {.name = FIELD(mask), .type = SL_OPTION_CHOICE, .choices = sl_mask_names},
    {.name = FIELD(activation), .type = SL_OPTION_CHOICE, .choices = sl_activation_names},
    {.name = FIELD(pre_norm), .type = SL_OPTION_FLAG},
    {.name = FIELD(tie), .type = SL_OPTION_FLAG},
    {.name = FIELD(context), SIZE},
    {.name = FIELD(dropout), .type = SL_OPTION_FLOAT},
};

static sl_status print_row(const sl_option *row, const sl_model_options *model, char *out)
{
    char *text;
    SL_TRY(sl_option_text(row, model, &text));
    snprintf(out, SLI_MODEL_METADATA_BYTES, "%s", text);
    free(text);
    return SL_OK;
}

sl_status sli_model_metadata_write(const sl_model_options *model, const char *vocab_checksum,
                                   sli_model_metadata *out)
{
    out->count = 0;
    for (int i = 0; i < ROWS; i++) {
        if (i == CONTEXT && model->context == 0)
            continue;
        char *text = out->text[out->count];
        SL_TRY(print_row(&rows[i], model, text));
        out->rows[out->count++] = (sl_metadata){rows[i].name, text};
    }
    if (!vocab_checksum)
        return SL_OK;
    char *text = out->text[out->count];
    snprintf(text, SLI_MODEL_METADATA_BYTES, "%s", vocab_checksum);
    out->rows[out->count++] = (sl_metadata){VOCAB_KEY, text};
    return SL_OK;
}

const char *sli_model_metadata_vocab(const sl_checkpoint_reader *from)
{
    return sl_checkpoint_metadata(from, SLI_MODEL_PART, VOCAB_KEY);
}

/* ---- Reading ---------------------------------------------------------------------------- */

/* The elements of all tensors of the file. No tensor has as many as the file has bits, but tensors
 * without bytes have none. */
static uint64_t count_elements(const sl_checkpoint_reader *from)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < sl_checkpoint_tensor_count(from, SLI_MODEL_PART); i++) {
        const sl_safetensors_info *info = sl_checkpoint_tensor_get(from, SLI_MODEL_PART, i);
        uint64_t product = info->bytes > 0;
        for (int d = 0; d < info->dims && product; d++)
            product *= (uint64_t)info->size[d];
        elements += product;
    }
    return elements;
}

/* Of a model with so many layers, which is made without memory. */
static sl_status model_elements(const sl_model_options *model, int64_t layers, int64_t *out)
{
    sl_module *module;
    sl_model_options small = *model;
    small.nlayers = layers;
    SL_TRY(sl_transformer_lm_create(&small, &module));
    *out = sl_module_parameter_elements(module);
    sl_module_destroy(&module);
    return SL_OK;
}

/* Whether the model is of the file's size, before one is made; tensors that are missing or too many
 * are named when they are read. All layers have as many elements. */
static sl_status check_elements(const sl_checkpoint_reader *from, const char *path,
                                const sl_model_options *model)
{
    int64_t one = 0, two = 0, others;
    uint64_t found = count_elements(from);
    SL_TRY(sl_error_context(model_elements(model, 1, &one), "%s: ", path));
    SL_TRY(model_elements(model, 2, &two));
    if (!__builtin_mul_overflow(model->nlayers - 1, two - one, &others) &&
        (uint64_t)one + (uint64_t)others <= 2 * found)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "%s: its tensors have %" PRIu64 " elements, far fewer than the model that its "
                    "metadata describe: %" PRId64 " layers, ntokens %" PRId64 ", emsize %" PRId64
                    ", nhid %" PRId64,
                    path, found, model->nlayers, model->ntokens, model->emsize, model->nhid);
}

sl_status sl_weights_model(const char *path, sl_model_options *out)
{
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    sl_checkpoint_reader *from;
    *out = (sl_model_options){0};
    SL_TRY(sli_checkpoint_open_model(path, &from));
    sl_status status = SL_OK;
    for (int i = 0; i < DROPOUT && status == SL_OK; i++) {
        const char *value = sl_checkpoint_metadata(from, SLI_MODEL_PART, rows[i].name);
        if (!value && (i == TIE || i == CONTEXT)) /* other programs need not say it */
            continue;
        if (!value)
            status = sl_error(SL_ERR_FORMAT,
                              "%s: its metadata do not say \"%s\", as those of sluice's language "
                              "models do: the weights are of another model or of another program",
                              path, rows[i].name);
        else if (sl_option_set(&rows[i], out, value) != SL_OK)
            status = sl_error(SL_ERR_FORMAT, "%s: %s", path, sl_error_text());
    }
    if (status == SL_OK)
        status = check_elements(from, path, out);
    sl_checkpoint_close(&from);
    return status;
}

sl_status sli_weights_check_model(const char *path, const sl_model_options *model)
{
    sl_checkpoint_reader *from;
    char wanted[SLI_MODEL_METADATA_BYTES];
    SL_TRY(sli_checkpoint_open_model(path, &from));
    sl_status status = SL_OK;
    for (int i = SHOWN; i < CONTEXT && status == SL_OK; i++) {
        const char *name = strchr(rows[i].name, '.') + 1,
                   *has = sl_checkpoint_metadata(from, SLI_MODEL_PART, rows[i].name);
        status = print_row(&rows[i], model, wanted);
        if (status == SL_OK && has && strcmp(has, wanted) != 0)
            status = sl_error(SL_ERR_INVALID, "%s: its model has %s %s, expected %s %s", path, name,
                              has, name, wanted);
    }
    sl_checkpoint_close(&from);
    return status;
}

/* ---- Writing ---------------------------------------------------------------------------- */

static sl_status write_weights(const char *path, const sli_tensors *tensors,
                               const sli_item_source *source, const sl_model_options *model,
                               const sl_vocab *vocab)
{
    sli_model_metadata metadata = {.count = 0};
    sli_written_file written;
    char checksum[SLI_CHECKSUM_BYTES];
    if (vocab)
        SL_TRY(sli_vocab_checksum(vocab, checksum));
    if (model)
        SL_TRY(sli_model_metadata_write(model, vocab ? checksum : NULL, &metadata));
    if (vocab)
        SL_TRY(sli_weights_vocab_begin(path, vocab));
    SL_TRY(sli_safetensors_write(path, tensors->items, tensors->count, metadata.rows,
                                 metadata.count, source, &written));
    return vocab ? sli_weights_vocab_end(path) : SL_OK;
}

/* The first rank of the pipe's group writes what all of them have. */
static sl_status write_together(sl_group *group, const char *path, const sli_tensors *tensors,
                                const sl_model_options *model, const sl_vocab *vocab)
{
    sli_state_stream stream = {.group = group, .lists = {tensors}};
    const sli_item_source source = {sli_state_stream_read, &stream};
    if (sl_group_rank(group) > 0)
        return sli_state_stream_serve(&stream);
    return sli_state_stream_end(&stream, write_weights(path, tensors, &source, model, vocab));
}

sl_status sl_weights_save(const sl_pipe *pipe, const sl_model_options *model, const sl_vocab *vocab,
                          const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(path);
    sli_tensors tensors = {0};
    sl_group *group = sl_pipe_group(pipe);
    sl_status status = sli_tensors_of_model(pipe, &tensors);
    if (status == SL_OK)
        status = sli_tensors_open(&tensors, true);
    status = sli_group_agree(group, status);
    if (status == SL_OK && group)
        status = sli_group_agree(group, write_together(group, path, &tensors, model, vocab));
    else if (status == SL_OK)
        status = write_weights(path, &tensors, NULL, model, vocab);
    sli_tensors_clear(&tensors);
    return status;
}

static sl_status try_write(const sl_pipe *pipe, const char *path)
{
    char *vocab_path;
    sli_replace_file *file;
    sli_tensors tensors = {0};
    sl_status status = sli_tensors_of_model(pipe, &tensors);
    if (status == SL_OK)
        status = sli_safetensors_try_write(path, tensors.items, tensors.count);
    sli_tensors_clear(&tensors);
    SL_TRY(status);
    SL_TRY(sl_weights_vocab_path(path, &vocab_path));
    status = sli_replace_file_create(vocab_path, &file);
    sli_replace_file_destroy(&file);
    free(vocab_path);
    return status;
}

sl_status sli_weights_check_save(const sl_pipe *pipe, const char *path)
{
    sl_group *group = sl_pipe_group(pipe);
    bool writes = !group || sl_group_rank(group) == 0;
    return sli_group_agree(group, writes ? try_write(pipe, path) : SL_OK);
}

/* ---- Loading ------------------------------------------------------------------------------ */

typedef struct loading {
    const sl_checkpoint_reader *from;
    const sli_checkpoint_tensors *has;
    bool *used;                 /* [has->count] the model has a tensor of that name */
    sl_safetensors_item *items; /* [count] that are read */
    size_t count;
    int parameters; /* among them */
    sl_status (*left_out)(void *context, const char *tensor, const char *reason);
    void *context;
} loading;

static sl_status refuse_shape(const loading *job, const sl_safetensors_info *info,
                              const sl_safetensors_item *item)
{
    char is[SLI_SIZES_BYTES], wanted[SLI_SIZES_BYTES], reason[2 * SLI_SIZES_BYTES + 64];
    snprintf(reason, sizeof reason, "%s %s in the file, F32 %s in the model", info->type_name,
             sli_safetensors_sizes(info->dims, info->size, is),
             sli_safetensors_sizes(item->shape.dims, item->shape.size, wanted));
    return job->left_out(job->context, item->name, reason);
}

/* Whether the file's tensor is read. A buffer has its value without the file. */
static sl_status choose_item(loading *job, const sl_safetensors_item *item, bool is_buffer)
{
    const sli_checkpoint_entry *found =
        sli_checkpoint_find_tensor(job->from, SLI_MODEL_PART, item->name);
    if (!found && is_buffer)
        return SL_OK;
    if (!found && job->left_out)
        return job->left_out(job->context, item->name, "not in the file");
    if (found)
        job->used[found - job->has->tensors] = true;
    if (job->left_out && !sli_checkpoint_fits(&found->info, item))
        return refuse_shape(job, &found->info, item);
    job->items[job->count++] = *item;
    job->parameters += !is_buffer;
    return SL_OK;
}

/* Where nothing may be left out, all that does not fit is an error. */
static sl_status read_chosen(const loading *job, const char *path)
{
    if (!job->left_out)
        return sl_checkpoint_read(job->from, SLI_MODEL_PART, job->items, job->count);
    for (size_t i = 0; i < job->has->count; i++)
        if (!job->used[i])
            SL_TRY(job->left_out(job->context, job->has->tensors[i].info.name, "not in the model"));
    if (job->parameters == 0)
        return sl_error(SL_ERR_INVALID,
                        "%s: none of its tensors is a parameter of the model with its name and "
                        "shape",
                        path);
    return sli_checkpoint_read_items(job->from, SLI_MODEL_PART, job->items, job->count);
}

/* `left_out` NULL: nothing may be. */
static sl_status load_weights(const sl_pipe *pipe, const char *path,
                              sl_status (*left_out)(void *context, const char *tensor,
                                                    const char *reason),
                              void *context)
{
    sl_checkpoint_reader *from;
    sli_tensors tensors = {0};
    SL_TRY(sli_checkpoint_open_model(path, &from));
    loading job = {.from = from, .left_out = left_out, .context = context};
    sl_status status = sli_checkpoint_need_part(from, SLI_MODEL_PART, &job.has);
    if (status == SL_OK)
        status = sli_tensors_of_model(pipe, &tensors);
    if (status == SL_OK)
        status = sli_tensors_open(&tensors, true);
    if (status != SL_OK)
        goto done;
    job.used = calloc(job.has->count + 1, sizeof *job.used);
    job.items = calloc(tensors.count + 1, sizeof *job.items);
    if (!job.used || !job.items)
        status = sl_error(SL_ERR_MEMORY, "%s: no memory for a list of its tensors", path);
    for (size_t i = 0; i < tensors.count && status == SL_OK; i++)
        status = choose_item(&job, &tensors.items[i], tensors.entries[i].is_buffer);
    if (status == SL_OK)
        status = read_chosen(&job, path);
    if (status == SL_OK)
        status = sli_tensors_store(&tensors);

done:
    free(job.used);
    free(job.items);
    sli_tensors_clear(&tensors);
    sl_checkpoint_close(&from);
    return status;
}

sl_status sl_weights_load(sl_pipe *pipe, const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(path);
    return load_weights(pipe, path, NULL, NULL);
}

sl_status sl_weights_load_partial(sl_pipe *pipe, const char *path,
                                  sl_status (*left_out)(void *context, const char *tensor,
                                                        const char *reason),
                                  void *context)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(left_out);
    return load_weights(pipe, path, left_out, context);
}
