/* Saving a model as a directory, or its adapters alone. */
#include "comm/agree.h"
#include "core/bf16.h"
#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"
#include "models/config.h"
#include "train/checkpoint/checkpoints.h"

#include <stdlib.h>
#include <unistd.h>

/* NULL: it is no language model. */
static bool has_adapters(const sl_model_options *model)
{
    return model && model->lora.adapts;
}

const char *const sl_saved_type_names[] = {"f32", "bf16", NULL};

/* What is saved, and where. */
typedef struct saving {
    sl_model_saving settings;
    char *path;
    bool is_adapter; /* alone */
    char base[SLI_BASE_CHECKSUM_BYTES];
    sli_tensors tensors;
    sli_model_texts texts;
} saving;

static sl_dtype type_in_file(sl_dtype dtype, sl_saved_type type)
{
    return dtype == SL_F32 && type == SL_SAVED_BF16 ? SL_BF16 : dtype;
}

/* A source of the items with their f32 numbers as bf16. */
typedef struct narrowing {
    const saving *job;
    const sl_safetensors_item *items; /* the job's, of bf16 where those are f32 */
    const sli_item_source *wide;      /* NULL: the job's items have data */
    uint16_t *numbers;                /* [elements of the largest] */
} narrowing;

static sl_status read_narrow(void *context, const sl_safetensors_item *item, const void **data)
{
    const narrowing *narrowed = context;
    const sl_safetensors_item *wide = &narrowed->job->tensors.items[item - narrowed->items];
    *data = wide->data;
    if (narrowed->wide)
        SL_TRY(narrowed->wide->read(narrowed->wide->context, wide, data));
    if (wide->dtype != SL_F32)
        return SL_OK;
    sli_narrow_to_bf16(*data, narrowed->numbers, sl_shape_count(&wide->shape));
    *data = narrowed->numbers;
    return SL_OK;
}

/* The items as they are in a file: *out, to be freed, and the elements of the largest. */
static sl_status list_narrow(const sli_tensors *tensors, sl_safetensors_item **out,
                             int64_t *elements)
{
    *elements = 1;
    *out = calloc(tensors->count + 1, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "a list of tensors");
    for (size_t i = 0; i < tensors->count; i++) {
        sl_safetensors_item *item = &(*out)[i];
        *item = tensors->items[i];
        item->dtype = type_in_file(item->dtype, SL_SAVED_BF16);
        int64_t count = sl_shape_count(&item->shape);
        *elements = count > *elements ? count : *elements;
    }
    return SL_OK;
}

static sl_status write_items(const saving *job, const sl_safetensors_item *items,
                             const sli_item_source *source)
{
    const sl_metadata base = {SLI_ADAPTER_BASE_KEY, job->base};
    const sl_checkpoint_part part = {job->is_adapter ? SLI_ADAPTER_PART : SLI_MODEL_PART, items,
                                     job->tensors.count, &base, job->is_adapter};
    return sli_checkpoint_write(
        job->path,
        &(sl_checkpoint_contents){.parts = &part,
                                  .part_count = 1,
                                  .files = job->texts.files,
                                  .file_count = job->texts.count,
                                  .shard_bytes = job->is_adapter ? 0 : job->settings.shard_bytes},
        &(sli_checkpoint_writing){.source = source, .is_model = true});
}

static sl_status write_model(const saving *job, const sli_item_source *source)
{
    sl_safetensors_item *items;
    int64_t elements;
    if (job->settings.type != SL_SAVED_BF16)
        return write_items(job, job->tensors.items, source);
    SL_TRY(list_narrow(&job->tensors, &items, &elements));
    narrowing narrowed = {job, items, source, malloc((size_t)elements * sizeof *narrowed.numbers)};
    const sli_item_source narrow = {read_narrow, &narrowed};
    sl_status status = narrowed.numbers ? write_items(job, items, &narrow)
                                        : sli_no_memory(NULL, "a tensor of bf16");
    free(narrowed.numbers);
    free(items);
    return status;
}

/* The first rank of the pipe's group writes what all of them have. */
static sl_status write_together(sl_group *group, const saving *job)
{
    sli_state_stream stream = {.group = group,
                               .stride = sl_group_size(group),
                               .lists = {&job->tensors}};
    const sli_item_source source = {sli_state_stream_read, &stream};
    if (sl_group_rank(group) > 0)
        return sli_state_stream_serve(&stream);
    return sli_state_stream_end(&stream, write_model(job, &source));
}

/* An adapter does not take the place of a model, which may be its base. */
static sl_status check_replaces(const char *path, bool is_adapter)
{
    char *config;
    if (!is_adapter)
        return SL_OK;
    SL_TRY(sli_path_join(path, SLI_CONFIG_FILE, &config));
    bool is_model = access(config, F_OK) == 0;
    free(config);
    return is_model
               ? sl_error(SL_ERR_INVALID,
                          "%s: it has a model, and an adapter alone is saved: save elsewhere", path)
               : SL_OK;
}

static sl_status prepare_saving(const sl_pipe *pipe, const sl_model_options *model,
                                const sl_vocab *vocab, const char *path, saving *job)
{
    job->is_adapter = has_adapters(model);
    SL_TRY(check_replaces(path, job->is_adapter));
    SL_TRY(sli_tensors_of_model(pipe, &job->tensors));
    SL_TRY(sli_adapter_select(&job->tensors, job->is_adapter));
    SL_TRY(sli_tensors_open(&job->tensors, true));
    SL_TRY(job->is_adapter ? sli_adapter_texts_make(model, &job->texts)
                           : sli_model_texts_make(model, vocab, &job->settings, &job->texts));
    return sli_path_follow(path, &job->path);
}

sl_status sl_model_save(const sl_pipe *pipe, const sl_model_options *model, const sl_vocab *vocab,
                        const sl_model_saving *settings, const char *path)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(path);
    saving job = {.settings = settings ? *settings : (sl_model_saving){0}};
    sl_group *group = sl_pipe_group(pipe);
    if (has_adapters(model))
        SL_TRY(sli_base_checksum(pipe, job.base));
    sl_status status;
    SL_TRY_OR_FAIL(sli_group_agree(group, prepare_saving(pipe, model, vocab, path, &job)));
    status = group ? sli_group_agree(group, write_together(group, &job)) : write_model(&job, NULL);
fail:
    sli_tensors_clear(&job.tensors);
    sli_model_texts_clear(&job.texts);
    free(job.path);
    return status;
}

static sl_status try_tensors(const sl_pipe *pipe, bool is_adapter, sl_saved_type type,
                             const sli_replace_directory *trial)
{
    char *file;
    sli_tensors tensors = {0};
    SL_TRY(sli_path_join(sli_replace_directory_temporary(trial), "model.safetensors", &file));
    sl_status status;
    SL_TRY_OR_FAIL(sli_tensors_of_model(pipe, &tensors));
    SL_TRY_OR_FAIL(sli_adapter_select(&tensors, is_adapter));
    for (size_t i = 0; i < tensors.count; i++)
        tensors.items[i].dtype = type_in_file(tensors.items[i].dtype, type);
    status = sli_safetensors_try_write(file, tensors.items, tensors.count);
fail:
    sli_tensors_clear(&tensors);
    free(file);
    return status;
}

static sl_status try_saving(const sl_pipe *pipe, bool is_adapter, sl_saved_type type,
                            const char *path)
{
    char *followed;
    sli_replace_directory *trial = NULL;
    SL_TRY(check_replaces(path, is_adapter));
    SL_TRY(sli_path_follow(path, &followed));
    sl_status status;
    SL_TRY_OR_FAIL(sl_error_context(sli_checkpoint_check_path(followed, true, false),
                                    "%s: the model cannot be written: ", path));
    SL_TRY_OR_FAIL(sli_replace_directory_create(followed, &trial));
    status = try_tensors(pipe, is_adapter, type, trial);
fail:
    sli_replace_directory_destroy(&trial);
    free(followed);
    return status;
}

sl_status sli_model_check_save(const sl_pipe *pipe, const sl_model_options *model,
                               sl_saved_type type, const char *path)
{
    sl_group *group = sl_pipe_group(pipe);
    bool writes = !group || sl_group_rank(group) == 0;
    return sli_group_agree(group,
                           writes ? try_saving(pipe, has_adapters(model), type, path) : SL_OK);
}
