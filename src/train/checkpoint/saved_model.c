/* Models on disk: the directories that are saved, and what is read from them. */
#include "comm/agree.h"
#include "core/bf16.h"
#include "core/error.h"
#include "core/f16.h"
#include "core/file.h"
#include "core/replace.h"
#include "models/config.h"
#include "models/lora.h"
#include "text/vocab.h"
#include "train/checkpoint/checkpoints.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char config_name[] = SLI_CONFIG_FILE, tokenizer_name[] = SLI_TOKENIZER_FILE,
                  adapter_name[] = SLI_ADAPTER_CONFIG_FILE;

/* ---- Saving ------------------------------------------------------------------------------ */

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
    const narrowing *from = context;
    const sl_safetensors_item *wide = &from->job->tensors.items[item - from->items];
    *data = wide->data;
    if (from->wide)
        SL_TRY(from->wide->read(from->wide->context, wide, data));
    if (wide->dtype != SL_F32)
        return SL_OK;
    sli_narrow_to_bf16(*data, from->numbers, sl_shape_count(&wide->shape));
    *data = from->numbers;
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
    narrowing from = {job, items, source, malloc((size_t)elements * sizeof *from.numbers)};
    const sli_item_source narrow = {read_narrow, &from};
    sl_status status =
        from.numbers ? write_items(job, items, &narrow) : sli_no_memory(NULL, "a tensor of bf16");
    free(from.numbers);
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
    SL_TRY(sli_path_join(path, config_name, &config));
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
    sl_status status = sli_group_agree(group, prepare_saving(pipe, model, vocab, path, &job));
    if (status == SL_OK)
        status =
            group ? sli_group_agree(group, write_together(group, &job)) : write_model(&job, NULL);
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
    sl_status status = sli_tensors_of_model(pipe, &tensors);
    if (status == SL_OK)
        status = sli_adapter_select(&tensors, is_adapter);
    for (size_t i = 0; i < tensors.count; i++)
        tensors.items[i].dtype = type_in_file(tensors.items[i].dtype, type);
    if (status == SL_OK)
        status = sli_safetensors_try_write(file, tensors.items, tensors.count);
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
    SLI_TRY_OR_FAIL(sl_error_context(sli_checkpoint_check_path(followed, true, false),
                                     "%s: the model cannot be written: ", path));
    SLI_TRY_OR_FAIL(sli_replace_directory_create(followed, &trial));
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

/* ---- Opening ----------------------------------------------------------------------------- */

struct sl_saved_model {
    char *path; /* as the caller gave it */
    sl_checkpoint_reader *reader;
    const sli_checkpoint_tensors *tensors; /* the reader's */
    bool has_options;
    sl_model_options options;
    sl_vocab *vocab;
    char *generation; /* generation_config.json; NULL: it has none */
    char *
        refused; /* why the tokenizer that is there is not `vocab`; NULL: it is, or there is none */
};

/* A file of the directory; *text is NULL where it is not there. */
static sl_status read_text(const sl_saved_model *model, const char *name, char **text,
                           size_t *bytes)
{
    sl_status status = sli_checkpoint_read_file(model->reader, name, text, bytes);
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

static sl_status read_config(sl_saved_model *model)
{
    char *text;
    size_t bytes;
    SL_TRY(read_text(model, config_name, &text, &bytes));
    if (!text)
        return SL_OK;
    sl_status status = sl_error_context(sli_config_parse(text, bytes, &model->options),
                                        "%s/%s: ", model->path, config_name);
    free(text);
    SL_TRY(status);
    model->has_options = true;
    return sl_error_context(sli_config_check_size(&model->options, model->reader),
                            "%s: ", model->path);
}

/* A decoder may have a tokenizer of another kind, whose ids the caller then has to give. */
static sl_status refuse_tokenizer(sl_saved_model *model, sl_status status)
{
    if (status != SL_ERR_UNSUPPORTED || model->options.family == SL_FAMILY_TUTORIALS)
        return status;
    model->refused = strdup(sl_error_text());
    return model->refused ? SL_OK : sli_no_memory(model->path, "an error");
}

/* A checkpoint's model has the adapters that its run trains. A directory of Hugging Face may have
 * an adapter beside the model, whose tensors are not the model's. */
static sl_status read_adapter(sl_saved_model *model)
{
    char *text;
    size_t bytes;
    if (!sl_checkpoint_state(model->reader) || !model->has_options)
        return SL_OK;
    SL_TRY(read_text(model, adapter_name, &text, &bytes));
    if (!text)
        return SL_OK;
    sl_status status = sl_error_context(sli_adapter_config_parse(text, bytes, &model->options.lora),
                                        "%s/%s: ", model->path, adapter_name);
    free(text);
    return status;
}

static sl_status read_tokenizer(sl_saved_model *model)
{
    char *text;
    size_t bytes;
    SL_TRY(read_text(model, tokenizer_name, &text, &bytes));
    if (!text)
        return SL_OK;
    sl_status status = sl_error_context(sli_vocab_parse(text, bytes, &model->vocab),
                                        "%s/%s: ", model->path, tokenizer_name);
    free(text);
    if (status != SL_OK)
        return refuse_tokenizer(model, status);
    SL_TRY(read_text(model, SLI_TOKENIZER_SETTINGS_FILE, &model->vocab->settings, &bytes));
    bool may_be_fewer = model->options.family != SL_FAMILY_TUTORIALS;
    int64_t types = sl_vocab_size(model->vocab), ntokens = model->options.ntokens;
    if (!model->has_options || types == ntokens || (may_be_fewer && types < ntokens))
        return SL_OK;
    return sl_error(SL_ERR_FORMAT, "%s: its %s has %d tokens, but its %s says ntokens %" PRId64,
                    model->path, tokenizer_name, sl_vocab_size(model->vocab), config_name,
                    model->options.ntokens);
}

static sl_status read_saved(sl_saved_model *model)
{
    size_t bytes;
    SL_TRY(sl_checkpoint_open(model->path, &model->reader));
    SL_TRY(sli_checkpoint_need_part(model->reader, SLI_MODEL_PART, &model->tensors));
    SL_TRY(read_config(model));
    SL_TRY(read_adapter(model));
    SL_TRY(read_text(model, SLI_GENERATION_FILE, &model->generation, &bytes));
    return read_tokenizer(model);
}

sl_status sl_saved_model_open(const char *path, sl_saved_model **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(path);
    sl_saved_model *model = *out = calloc(1, sizeof *model);
    if (!model || !(model->path = strdup(path))) {
        sl_saved_model_close(out);
        return sli_no_memory(path, "its record");
    }
    sl_status status = read_saved(model);
    if (status != SL_OK)
        sl_saved_model_close(out);
    return status;
}

void sl_saved_model_close(sl_saved_model **model)
{
    if (!model || !*model)
        return;
    sl_checkpoint_close(&(*model)->reader);
    sl_vocab_destroy(&(*model)->vocab);
    free((*model)->generation);
    free((*model)->refused);
    free((*model)->path);
    free(*model);
    *model = NULL;
}

const sl_model_options *sl_saved_model_options(const sl_saved_model *model)
{
    return model->has_options ? &model->options : NULL;
}

const sl_vocab *sl_saved_model_vocab(const sl_saved_model *model)
{
    return model->vocab;
}

const char *sl_saved_model_generation(const sl_saved_model *model)
{
    return model->generation;
}

sl_status sl_saved_model_need_vocab(const sl_saved_model *model, const sl_vocab **out)
{
    *out = model->vocab;
    if (model->vocab)
        return SL_OK;
    if (model->refused)
        return sl_error(SL_ERR_UNSUPPORTED, "%s", model->refused);
    return sl_error(SL_ERR_NOT_FOUND, "%s: it has no %s", model->path, tokenizer_name);
}

const char *sli_saved_model_metadata(const sl_saved_model *model, const char *key)
{
    return sli_checkpoint_metadata(model->reader, SLI_MODEL_PART, key);
}

/* ---- Names in files ---------------------------------------------------------------------- */

/* The first part of a decoder's names, which some published files leave out. */
static const char *skip_prefix(const char *name)
{
    static const char *const prefixes[] = {"transformer.", "model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

static const sli_checkpoint_entry *find_tensor(const sl_checkpoint_reader *reader, const char *name)
{
    const sli_checkpoint_entry *found = sli_checkpoint_find_tensor(reader, SLI_MODEL_PART, name);
    return found ? found : sli_checkpoint_find_tensor(reader, SLI_MODEL_PART, skip_prefix(name));
}

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), last = strlen(end);
    return length >= last && strcmp(name + length - last, end) == 0;
}

/* Tensors that published files hold beside a decoder's parameters: the causal mask of GPT-2, the
 * frequencies of rotary positions, and a tied head. */
static bool is_known_extra(const sl_saved_model *model, const char *name)
{
    const sl_model_options *options = &model->options;
    if (!model->has_options || options->family == SL_FAMILY_TUTORIALS)
        return false;
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
           ends_with(name, ".rotary_emb.inv_freq") ||
           (options->tie && strcmp(name, "lm_head.weight") == 0);
}

/* ---- Loading ----------------------------------------------------------------------------- */

typedef struct loading {
    const sl_saved_model *model;
    const sl_checkpoint_reader *reader;
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

static bool is_narrow(sl_dtype dtype)
{
    return dtype == SL_BF16 || dtype == SL_F16;
}

/* Numbers of 16 bits are read into the second half of the room of their f32, from where they can be
 * widened from the first one on. */
static void place_narrow(sl_safetensors_item *item, sl_dtype dtype)
{
    item->dtype = dtype;
    if (item->data)
        item->data = (uint16_t *)item->data + sl_shape_count(&item->shape);
}

static void widen(const sl_safetensors_item *item)
{
    int64_t count = sl_shape_count(&item->shape);
    const uint16_t *narrow = item->data;
    float *wide = (float *)(void *)(narrow - count);
    for (int64_t i = 0; i < count; i++)
        wide[i] =
            item->dtype == SL_F16 ? sli_f32_from_f16(narrow[i]) : sli_f32_from_bf16(narrow[i]);
}

/* Whether the file's tensor is read. A buffer has its value without the file. */
static sl_status choose_item(loading *job, const sl_safetensors_item *item, bool is_buffer)
{
    sl_safetensors_item chosen = *item;
    const sli_checkpoint_entry *found = find_tensor(job->reader, item->name);
    if (!found && is_buffer)
        return SL_OK;
    if (!found && job->left_out)
        return job->left_out(job->context, item->name, "not in the file");
    if (found) {
        job->used[found - job->has->tensors] = true;
        chosen.name = found->info.name;
        if (found->info.readable && is_narrow(found->info.dtype))
            place_narrow(&chosen, found->info.dtype);
    }
    if (job->left_out && !sli_checkpoint_fits(&found->info, &chosen))
        return refuse_shape(job, &found->info, item);
    job->items[job->count++] = chosen;
    job->parameters += !is_buffer;
    return SL_OK;
}

/* Adds the file's tensors that need not be read, whatever their types and shapes. */
static void add_known_extras(loading *job)
{
    for (size_t i = 0; i < job->has->count; i++) {
        const char *name = job->has->tensors[i].info.name;
        if (!job->used[i] && is_known_extra(job->model, name))
            job->items[job->count++] = (sl_safetensors_item){.name = name, .shape = {.dims = -1}};
    }
}

/* Where nothing may be left out, all that does not fit is an error. */
static sl_status read_chosen(loading *job, const char *path)
{
    if (!job->left_out) {
        add_known_extras(job);
        return sl_checkpoint_read(job->reader, SLI_MODEL_PART, job->items, job->count);
    }
    for (size_t i = 0; i < job->has->count; i++)
        if (!job->used[i] && !is_known_extra(job->model, job->has->tensors[i].info.name))
            SL_TRY(job->left_out(job->context, job->has->tensors[i].info.name, "not in the model"));
    if (job->parameters == 0)
        return sl_error(SL_ERR_INVALID,
                        "%s: none of its tensors is a parameter of the model with its name and "
                        "shape",
                        path);
    return sli_checkpoint_read_items(job->reader, SLI_MODEL_PART, job->items, job->count);
}

/* Which of a pipe's tensors are read. */
typedef enum selection { ALL_TENSORS, BASE_TENSORS, ADAPTER_TENSORS } selection;

static sl_status list_selected(const sl_pipe *pipe, selection chosen, sli_tensors *out)
{
    SL_TRY(sli_tensors_of_model(pipe, out));
    if (chosen != ALL_TENSORS)
        SL_TRY(sli_adapter_select(out, chosen == ADAPTER_TENSORS));
    return sli_tensors_open(out, true);
}

static sl_status load_selected(loading *job, sl_pipe *pipe, selection chosen)
{
    const sl_saved_model *model = job->model;
    sli_tensors tensors = {0};
    sl_status status;
    job->used = calloc(job->has->count + 1, sizeof *job->used);
    SLI_TRY_OR_FAIL(list_selected(pipe, chosen, &tensors));
    job->items = calloc(tensors.count + job->has->count + 1, sizeof *job->items);
    if (!job->used || !job->items)
        SLI_TRY_OR_FAIL(sli_no_memory(model->path, "a list of its tensors"));
    for (size_t i = 0; i < tensors.count; i++)
        SLI_TRY_OR_FAIL(choose_item(job, &tensors.items[i], tensors.entries[i].is_buffer));
    SLI_TRY_OR_FAIL(read_chosen(job, model->path));
    for (size_t i = 0; i < job->count; i++)
        if (is_narrow(job->items[i].dtype) && job->items[i].data)
            widen(&job->items[i]);
    status = sli_tensors_store(&tensors);
fail:
    free(job->used);
    free(job->items);
    sli_tensors_clear(&tensors);
    return status;
}

/* A model without adapters leaves those of the pipe as they are. */
sl_status sl_saved_model_load(const sl_saved_model *model, sl_pipe *pipe,
                              sl_status (*left_out)(void *context, const char *tensor,
                                                    const char *reason),
                              void *context)
{
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(pipe);
    loading job = {.model = model,
                   .reader = model->reader,
                   .has = model->tensors,
                   .left_out = left_out,
                   .context = context};
    return load_selected(&job, pipe, model->options.lora.adapts ? ALL_TENSORS : BASE_TENSORS);
}

sl_status sli_saved_model_load_adapter(const sl_saved_model *adapter, sl_pipe *pipe)
{
    loading job = {.model = adapter, .reader = adapter->reader, .has = adapter->tensors};
    return load_selected(&job, pipe, ADAPTER_TENSORS);
}
