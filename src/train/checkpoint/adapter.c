/* Adapters on disk, as PEFT has them: adapter_config.json and adapter_model.safetensors. */
#include "core/error.h"
#include "core/file.h"
#include "models/lora.h"
#include "nn/layers.h"
#include "train/checkpoint/checkpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Names ------------------------------------------------------------------------------ */

/* "base_model.model." before the parameter's name, which is freed. */
static sl_status add_prefix(sl_safetensors_item *item)
{
    size_t bytes = strlen(item->name) + sizeof SLI_ADAPTER_PREFIX;
    char *name = malloc(bytes);
    if (!name)
        return sli_no_memory(NULL, "the name of %s", item->name);
    snprintf(name, bytes, "%s%s", SLI_ADAPTER_PREFIX, item->name);
    free((char *)item->name);
    item->name = name;
    return SL_OK;
}

sl_status sli_adapter_select(sli_tensors *tensors, bool adapters)
{
    size_t kept = 0;
    sl_status status = SL_OK;
    for (size_t i = 0; i < tensors->count; i++) {
        sl_safetensors_item *item = &tensors->items[i];
        if (sli_is_lora_name(item->name) != adapters) {
            sl_tensor_destroy(&tensors->entries[i].tensor);
            free((char *)item->name);
            continue;
        }
        if (adapters && status == SL_OK)
            status = add_prefix(item);
        tensors->items[kept] = *item;
        tensors->entries[kept++] = tensors->entries[i];
    }
    tensors->count = kept;
    return status;
}

/* ---- Reading ---------------------------------------------------------------------------- */

sl_status sl_adapter_options(const char *path, sl_lora_options *out)
{
    enum { MOST_BYTES = 1 << 16 };
    char *file, *text = NULL;
    size_t bytes;
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(out);
    SL_TRY(sli_path_join(path, SLI_ADAPTER_CONFIG_FILE, &file));
    sl_status status = sli_file_read(file, MOST_BYTES, &text, &bytes);
    if (status == SL_OK)
        status = sl_error_context(sli_adapter_config_parse(text, bytes, out), "%s: ", file);
    free(text);
    free(file);
    return status;
}

sl_status sl_adapter_load(const char *path, sl_pipe *pipe)
{
    char *file;
    sl_saved_model *adapter;
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(pipe);
    SL_TRY(sli_path_join(path, SLI_ADAPTER_PART ".safetensors", &file));
    sl_status status = sl_saved_model_open(file, &adapter);
    if (status == SL_OK)
        status = sli_saved_model_load_adapter(adapter, pipe);
    sl_saved_model_close(&adapter);
    free(file);
    return status;
}

/* ---- Merging ---------------------------------------------------------------------------- */

static sl_status merge_stage(int stage, void *arg)
{
    sl_pipe *pipe = arg;
    const sl_parameter_set *set = sl_pipe_parameters(pipe, stage);
    for (int i = 0; i < sl_parameter_set_count(set); i++)
        SL_TRY(sli_lora_merge(sl_parameter_set_get(set, i)));
    return SL_OK;
}

sl_status sl_adapter_merge(sl_pipe *pipe)
{
    SLI_CHECK_NOT_NULL(pipe);
    return sl_pipe_run_on_stages(pipe, merge_stage, pipe);
}
