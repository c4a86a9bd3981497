/* Models on disk: what is read from their directories. */
#include "core/error.h"
#include "core/file.h"
#include "core/threads.h"
#include "io/llmc/llmc.h"
#include "models/config.h"
#include "models/lora.h"
#include "text/vocab.h"
#include "train/checkpoint/checkpoints.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config_name[] = SLI_CONFIG_FILE, tokenizer_name[] = SLI_TOKENIZER_FILE,
                  adapter_name[] = SLI_ADAPTER_CONFIG_FILE;

/* ---- Opening ----------------------------------------------------------------------------- */

struct sl_saved_model {
    char *path; /* as the caller gave it */
    sl_checkpoint_reader *reader;
    const char *part;                      /* that is read */
    const sli_checkpoint_tensors *tensors; /* the reader's; NULL: it is a config.json alone */
    sl_saved_model *adapter; /* a checkpoint's, which belongs to this model; NULL: none */
    bool has_options;
    sl_model_options options;
    sl_vocab *vocab;
    char *generation; /* generation_config.json; NULL: it has none */
    char *
        refused; /* why the tokenizer that is there is not `vocab`; NULL: it is, or there is none */
    _Atomic bool was_mapped; /* by one load, so that no two pipes share memory */
};

/* What is opened beside config.json: the TOKENIZER is read, WEIGHTS must be there. */
enum { CONFIG_ALONE = 0, TOKENIZER = 1, WEIGHTS = 2 };

/* A file of the directory; *text is NULL where it is not there. */
static sl_status read_text(const sl_saved_model *model, const char *name, char **text,
                           size_t *bytes)
{
    sl_status status = sli_checkpoint_read_file(model->reader, name, text, bytes);
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

static bool is_adapter_alone(const sl_saved_model *model)
{
    return strcmp(model->part, SLI_ADAPTER_PART) == 0;
}

/* Tensors that published files hold beside a decoder's parameters: the causal mask of GPT-2, the
 * frequencies of rotary positions, a tied head, and the rows that fill up llm.c's embedding. */
static bool is_known_extra(const sl_saved_model *model, const char *name)
{
    const sl_model_options *options = &model->options;
    if (!model->has_options || options->family == SL_FAMILY_TUTORIALS)
        return false;
    return sli_name_ends_with(name, ".attn.bias") ||
           sli_name_ends_with(name, ".attn.masked_bias") ||
           sli_name_ends_with(name, ".rotary_emb.inv_freq") ||
           sli_name_ends_with(name, ".wte.padding") ||
           (options->tie && strcmp(name, "lm_head.weight") == 0);
}

/* Of the matrices alone: norms and biases are small. */
static bool has_bf16_matrices(const sl_saved_model *model)
{
    bool all = !model->reader->is_llmc && !is_adapter_alone(model);
    for (size_t i = 0; i < model->tensors->count && all; i++) {
        const sl_safetensors_info *info = &model->tensors->tensors[i].info;
        bool is_matrix = info->dims > 1 && !is_known_extra(model, info->name);
        all = !is_matrix || (info->readable && info->dtype == SL_BF16);
    }
    return all;
}

static sl_status read_config(sl_saved_model *model)
{
    char *text;
    size_t bytes;
    SL_TRY(read_text(model, config_name, &text, &bytes));
    if (!text)
        return SL_OK;
    bool is_path = strcmp(sli_path_name(model->path), config_name) == 0;
    sl_status status =
        sl_error_context(sli_config_parse(text, bytes, &model->options), "%s%s%s: ", model->path,
                         is_path ? "" : "/", is_path ? "" : config_name);
    free(text);
    SL_TRY(status);
    model->has_options = true;
    if (!model->tensors)
        return SL_OK;
    model->options.base_is_bf16 = has_bf16_matrices(model);
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

static sl_status read_tokenizer(sl_saved_model *model)
{
    const char *name = tokenizer_name;
    char *text;
    size_t bytes;
    SL_TRY(read_text(model, name, &text, &bytes));
    bool is_json = text;
    if (!is_json)
        SL_TRY(read_text(model, name = SLI_SENTENCEPIECE_FILE, &text, &bytes));
    if (!text || (!is_json && !sli_is_sentencepiece(text, bytes))) {
        free(text); /* of ranks, which do not say how text is split */
        return SL_OK;
    }
    sl_status status =
        sl_error_context(sli_vocab_parse(text, bytes, &model->vocab), "%s/%s: ", model->path, name);
    free(text);
    if (status != SL_OK)
        return refuse_tokenizer(model, status);
    SL_TRY(read_text(model, SLI_TOKENIZER_SETTINGS_FILE, &model->vocab->settings, &bytes));
    if (!is_json)
        SL_TRY(sli_vocab_use_settings(model->vocab));
    bool may_be_fewer = model->options.family != SL_FAMILY_TUTORIALS;
    int64_t types = sl_vocab_size(model->vocab), ntokens = model->options.ntokens;
    if (!model->has_options || types == ntokens || (may_be_fewer && types < ntokens))
        return SL_OK;
    return sl_error(SL_ERR_FORMAT, "%s: its %s has %d tokens, but its %s says ntokens %" PRId64,
                    model->path, name, sl_vocab_size(model->vocab), config_name,
                    model->options.ntokens);
}

static sl_status open_reader(sl_saved_model *model, unsigned what)
{
    if (sli_llmc_is_file(model->path))
        return sli_checkpoint_open_llmc(model->path, &model->reader);
    return what & WEIGHTS ? sl_checkpoint_open(model->path, &model->reader)
                          : sli_checkpoint_open_config(model->path, &model->reader);
}

static sl_status read_saved(sl_saved_model *model, unsigned what)
{
    size_t bytes;
    SL_TRY(open_reader(model, what));
    bool is_adapter = sl_checkpoint_tensor_count(model->reader, SLI_ADAPTER_PART) > 0;
    model->part = is_adapter ? SLI_ADAPTER_PART : SLI_MODEL_PART;
    if (!model->reader->is_config_alone)
        SL_TRY(sli_checkpoint_need_part(model->reader, model->part, &model->tensors));
    SL_TRY(read_config(model));
    SL_TRY(read_text(model, SLI_GENERATION_FILE, &model->generation, &bytes));
    return what & TOKENIZER ? read_tokenizer(model) : SL_OK;
}

static sl_status open_one(const char *path, unsigned what, sl_saved_model **out)
{
    sl_saved_model *model = *out = calloc(1, sizeof *model);
    if (!model || !(model->path = strdup(path))) {
        sl_saved_model_close(out);
        return sli_no_memory(path, "its record");
    }
    sl_status status = read_saved(model, what);
    if (status != SL_OK)
        sl_saved_model_close(out);
    return status;
}

/* The options of a checkpoint's adapter become those of the model that it belongs to. */
static sl_status add_adapter(const sl_saved_model *adapter, sl_saved_model *model)
{
    char *text;
    size_t bytes;
    SL_TRY(sli_checkpoint_read_file(adapter->reader, adapter_name, &text, &bytes));
    sl_status status = sl_error_context(sli_adapter_config_parse(text, bytes, &model->options.lora),
                                        "%s/%s: ", adapter->path, adapter_name);
    free(text);
    SL_TRY(status);
    return model->has_options && !is_adapter_alone(model)
               ? SL_OK
               : sl_error(SL_ERR_FORMAT, "%s: it is no model with a %s", model->path, config_name);
}

/* Replaces a checkpoint's adapter by the model that it belongs to, with it. */
static sl_status open_base(unsigned what, sl_saved_model **model)
{
    sl_saved_model *adapter = *model, *base = NULL;
    char *path = NULL, checksum[SLI_BASE_CHECKSUM_BYTES];
    sl_status status =
        sl_error_context(sli_run_state_base(sl_checkpoint_state(adapter->reader), &path, checksum),
                         "%s: ", adapter->path);
    SL_TRY_OR_FAIL(status);
    SL_TRY_OR_FAIL(sl_error_context(open_one(path, what, &base),
                                    "%s: it has adapters alone, and their model cannot be opened "
                                    "(it can be given with --init, and the adapters with "
                                    "--adapter): ",
                                    adapter->path));
    SL_TRY_OR_FAIL(add_adapter(adapter, base));
    base->adapter = adapter;
    *model = base;
    base = NULL;
fail:
    sl_saved_model_close(&base);
    free(path);
    return status;
}

static sl_status open_whole(const char *path, unsigned what, sl_saved_model **out)
{
    SL_TRY(open_one(path, what, out));
    sl_status status = is_adapter_alone(*out) ? open_base(what, out) : SL_OK;
    if (status != SL_OK)
        sl_saved_model_close(out);
    return status;
}

sl_status sl_saved_model_open(const char *path, sl_saved_model **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(path);
    return open_whole(path, TOKENIZER | WEIGHTS, out);
}

sl_status sli_saved_model_open_config(const char *path, sl_saved_model **out)
{
    return open_whole(path, TOKENIZER, out);
}

sl_status sl_saved_model_read_options(const char *path, sl_model_options *out, bool *has)
{
    sl_saved_model *model;
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    SLI_CHECK_NOT_NULL(has);
    SL_TRY(open_whole(path, CONFIG_ALONE, &model));
    *has = model->has_options;
    *out = model->options;
    sl_saved_model_close(&model);
    return SL_OK;
}

sl_status sli_adapter_open(const char *path, sl_saved_model **out)
{
    bool is_checkpoint;
    char *file;
    *out = NULL;
    SL_TRY(sli_resume_is_checkpoint(path, &is_checkpoint));
    if (is_checkpoint)
        return open_one(path, TOKENIZER | WEIGHTS, out);
    SL_TRY(sli_path_join(path, SLI_ADAPTER_PART ".safetensors", &file));
    sl_status status = open_one(file, TOKENIZER | WEIGHTS, out);
    free(file);
    return status;
}

void sl_saved_model_close(sl_saved_model **model)
{
    if (!model || !*model)
        return;
    sl_saved_model_close(&(*model)->adapter);
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

const char *sli_saved_model_path(const sl_saved_model *model)
{
    return model->path;
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

static const char *find_metadata(const sl_saved_model *model, const char *key)
{
    return sli_checkpoint_metadata(model->reader, model->part, key);
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

static const sli_checkpoint_entry *find_tensor(const sl_saved_model *model, const char *name)
{
    const sl_checkpoint_reader *reader = model->reader;
    const sli_checkpoint_entry *found = sli_checkpoint_find_tensor(reader, model->part, name);
    return found ? found : sli_checkpoint_find_tensor(reader, model->part, skip_prefix(name));
}

/* ---- Loading ----------------------------------------------------------------------------- */

/* A tensor whose memory becomes that of a file; NULL: it keeps its own. */
typedef struct mapped_item {
    sl_tensor *tensor;
    sli_file_map *map;
} mapped_item;

typedef struct loading {
    const sl_saved_model *model;
    const sli_checkpoint_tensors *has;
    bool *used;                 /* [has->count] the model has a tensor of that name */
    sl_safetensors_item *items; /* [count] that are read */
    bool *widens;               /* [count] from the file's 16 bits to f32 */
    mapped_item *mapped;        /* [count] */
    size_t count;
    int parameters; /* among them */
    bool maps;      /* items may be the file's memory */
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

static void widen_one(void *argument, int64_t index, int thread)
{
    (void)thread;
    const loading *job = argument;
    if (job->widens[index] && job->items[index].data)
        sli_item_widen(&job->items[index]);
}

static sl_status widen_all(loading *job)
{
    uint64_t bytes = 0;
    sli_pool *pool;
    for (size_t i = 0; i < job->count; i++)
        bytes +=
            job->widens[i] ? (uint64_t)sl_shape_count(&job->items[i].shape) * sizeof(float) : 0;
    SL_TRY(sli_pool_create_for_bytes(bytes, &pool));
    sli_pool_run(pool, (int64_t)job->count, widen_one, job);
    sli_pool_destroy(&pool);
    return SL_OK;
}

static bool is_transposed(const sl_saved_model *model, const char *name)
{
    return model->reader->is_llmc && sli_llmc_is_transposed(name);
}

/* A matrix of f32 that was read as its transpose. */
static sl_status transpose(const sl_safetensors_item *item)
{
    int64_t rows = item->shape.size[0], columns = item->shape.size[1];
    size_t bytes = (size_t)(rows * columns) * sizeof(float);
    float *read = malloc(bytes + 1), *to = item->data;
    if (!read)
        return sli_no_memory(NULL, "%s", item->name);
    memcpy(read, to, bytes);
    sli_transpose(read, rows, columns, to);
    free(read);
    return SL_OK;
}

/* Gives what was read with the file's shape, and widened, the form that the model has. */
static sl_status convert(const sl_saved_model *model, const sl_safetensors_item *item, bool widens)
{
    sl_safetensors_item wide = *item;
    if (!item->data)
        return SL_OK;
    if (widens)
        wide.data = (uint16_t *)item->data - sl_shape_count(&item->shape);
    return is_transposed(model, item->name) ? transpose(&wide) : SL_OK;
}

/* Lets the item be the file's memory, where that has the form of the tensor's own. */
static sl_status map_item(loading *job, const sli_checkpoint_entry *found,
                          const sli_tensor_entry *entry)
{
    sl_safetensors_item *item = &job->items[job->count];
    mapped_item *mapped = &job->mapped[job->count];
    void *data;
    if (!job->maps || item->dtype != SL_F32 || !entry->tensor || !item->data ||
        !sl_device_has_host_memory(sl_tensor_device(entry->tensor)) ||
        !sli_checkpoint_fits(&found->info, item) || is_transposed(job->model, item->name))
        return SL_OK;
    SL_TRY(sli_checkpoint_map(job->model->reader, found, &mapped->map, &data));
    if (!data)
        return SL_OK;
    mapped->tensor = entry->tensor;
    item->data = data;
    return SL_OK;
}

/* Replaces the memory of the tensors whose items are the file's. */
static void use_maps(const loading *job)
{
    for (size_t i = 0; i < job->count; i++)
        if (job->mapped[i].tensor)
            sli_tensor_map(job->mapped[i].tensor, job->mapped[i].map, job->items[i].data);
}

/* Whether the file's tensor is read. A buffer has its value without the file. */
static sl_status choose_item(loading *job, const sl_safetensors_item *item,
                             const sli_tensor_entry *entry)
{
    bool is_buffer = entry->is_buffer;
    sl_safetensors_item chosen = *item;
    const sli_checkpoint_entry *found = find_tensor(job->model, item->name);
    if (entry->count < sl_shape_count(&item->shape))
        chosen.data = NULL; /* a part is read by itself */
    if (!found && is_buffer)
        return SL_OK;
    if (!found && job->left_out)
        return job->left_out(job->context, item->name, "not in the file");
    if (found) {
        job->used[found - job->has->tensors] = true;
        chosen.name = found->info.name;
        bool widens =
            found->info.readable && sli_item_is_narrow(found->info.dtype) && item->dtype == SL_F32;
        if (widens)
            sli_item_place_narrow(&chosen, found->info.dtype);
        job->widens[job->count] = widens;
        if (is_transposed(job->model, chosen.name))
            chosen.shape = sl_shape_2d(item->shape.size[1], item->shape.size[0]);
    }
    if (job->left_out && !sli_checkpoint_fits(&found->info, &chosen))
        return refuse_shape(job, &found->info, item);
    job->items[job->count] = chosen;
    if (found)
        SL_TRY(map_item(job, found, entry));
    job->count++;
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
    const sl_saved_model *model = job->model;
    if (!job->left_out) {
        add_known_extras(job);
        return sl_checkpoint_read(model->reader, model->part, job->items, job->count);
    }
    for (size_t i = 0; i < job->has->count; i++)
        if (!job->used[i] && !is_known_extra(model, job->has->tensors[i].info.name))
            SL_TRY(job->left_out(job->context, job->has->tensors[i].info.name, "not in the model"));
    if (job->parameters == 0)
        return sl_error(SL_ERR_INVALID,
                        "%s: none of its tensors is a parameter of the model with its name and "
                        "shape",
                        path);
    return sli_checkpoint_read_items(model->reader, model->part, job->items, job->count);
}

/* Reads the elements of a part of a tensor, if the entry is one and is not left out. */
static sl_status read_part(const sl_saved_model *model, const sl_safetensors_item *item,
                           const sli_tensor_entry *entry)
{
    const sli_checkpoint_entry *found = find_tensor(model, item->name);
    sl_safetensors_item part = *item;
    bool is_part = entry->count > 0 && entry->count < sl_shape_count(&item->shape);
    bool widens = found && found->info.readable && sli_item_is_narrow(found->info.dtype) &&
                  item->dtype == SL_F32;
    part.dtype = widens ? found->info.dtype : item->dtype;
    if (!is_part || !found || !sli_checkpoint_fits(&found->info, &part))
        return SL_OK;
    part.shape = sl_shape_1d(entry->count);
    if (widens)
        sli_item_place_narrow(&part, part.dtype);
    sl_status status =
        sli_checkpoint_read_elements(model->reader, found, entry->first, entry->count, part.data);
    if (widens && status == SL_OK)
        sli_item_widen(&part);
    return status;
}

static sl_status load_selected(loading *job, sl_pipe *pipe, bool adapters)
{
    const sl_saved_model *model = job->model;
    sli_tensors tensors = {0};
    sl_status status;
    job->used = calloc(job->has->count + 1, sizeof *job->used);
    SL_TRY_OR_FAIL(sli_tensors_of_model(pipe, &tensors));
    SL_TRY_OR_FAIL(sli_adapter_select(&tensors, adapters));
    SL_TRY_OR_FAIL(sli_tensors_open(&tensors, true));
    job->items = calloc(tensors.count + job->has->count + 1, sizeof *job->items);
    job->widens = calloc(tensors.count + job->has->count + 1, sizeof *job->widens);
    job->mapped = calloc(tensors.count + job->has->count + 1, sizeof *job->mapped);
    job->maps =
        tensors.may_be_mapped && !atomic_exchange(&((sl_saved_model *)model)->was_mapped, true);
    if (!job->used || !job->items || !job->widens || !job->mapped)
        SL_TRY_OR_FAIL(sli_no_memory(model->path, "a list of its tensors"));
    for (size_t i = 0; i < tensors.count; i++)
        SL_TRY_OR_FAIL(choose_item(job, &tensors.items[i], &tensors.entries[i]));
    SL_TRY_OR_FAIL(read_chosen(job, model->path));
    for (size_t i = 0; i < tensors.entry_count; i++)
        SL_TRY_OR_FAIL(read_part(model, &tensors.items[i], &tensors.entries[i]));
    use_maps(job);
    SL_TRY_OR_FAIL(widen_all(job));
    for (size_t i = 0; i < job->count; i++)
        SL_TRY_OR_FAIL(convert(model, &job->items[i], job->widens[i]));
    status = sli_tensors_store(&tensors);
fail:
    if (job->maps)
        sli_checkpoint_end_maps(model->reader);
    free(job->used);
    free(job->items);
    free(job->widens);
    free(job->mapped);
    sli_tensors_clear(&tensors);
    return status;
}

/* A checkpoint's adapter belongs to the whole model. */
sl_status sl_saved_model_load(const sl_saved_model *model, sl_pipe *pipe,
                              sl_status (*left_out)(void *context, const char *tensor,
                                                    const char *reason),
                              void *context)
{
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(pipe);
    loading job = {.model = model, .has = model->tensors, .left_out = left_out, .context = context};
    SL_TRY(load_selected(&job, pipe, false));
    return model->adapter ? sli_saved_model_load_adapter(model->adapter, !left_out, pipe) : SL_OK;
}

/* PEFT's adapters do not say what they were made for. */
sl_status sli_saved_model_load_adapter(const sl_saved_model *adapter, bool checks, sl_pipe *pipe)
{
    loading job = {.model = adapter, .has = adapter->tensors};
    const char *expected = find_metadata(adapter, SLI_ADAPTER_BASE_KEY);
    char found[SLI_BASE_CHECKSUM_BYTES];
    SL_TRY(load_selected(&job, pipe, true));
    if (!checks || !expected)
        return SL_OK;
    SL_TRY(sli_base_checksum(pipe, found));
    return sli_base_compare(adapter->path, expected, found);
}
