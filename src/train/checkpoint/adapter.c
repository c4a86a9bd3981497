/* Adapters on disk, as PEFT has them: adapter_config.json and adapter_model.safetensors. */
#include "comm/agree.h"
#include "core/bf16.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "models/lora.h"
#include "nn/layers.h"
#include "train/checkpoint/checkpoints.h"

#include <inttypes.h>
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

/* A model with a cut head has no adapters. */
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
    if (kept < tensors->count)
        tensors->count = tensors->entry_count = kept;
    return status;
}

/* ---- The base --------------------------------------------------------------------------- */

/* Numbers of bf16 count as those of f32 that they are. */
static void add_widened(sli_checksum *checksum, const uint16_t *numbers, int64_t count)
{
    float block[SLI_BF16_BLOCK];
    for (int64_t first = 0; first < count; first += SLI_BF16_BLOCK) {
        int64_t some = count - first < SLI_BF16_BLOCK ? count - first : SLI_BF16_BLOCK;
        sli_widen_bf16(numbers + first, block, some);
        sli_checksum_add(checksum, block, (uint64_t)some * sizeof *block);
    }
}

static sl_status add_checksum(const sl_safetensors_item *item, const sli_tensor_entry *entry,
                              uint64_t *sum)
{
    enum { DIGITS = 16 }; /* of a checksum's 32 */
    char text[SLI_CHECKSUM_BYTES];
    sli_checksum *checksum;
    SL_TRY(sli_checksum_create(&checksum));
    sli_checksum_add(checksum, item->name, strlen(item->name));
    if (item->dtype == SL_BF16)
        add_widened(checksum, item->data, entry->count);
    else
        sli_checksum_add(checksum, item->data, (uint64_t)entry->count * sizeof(float));
    sli_checksum_text(checksum, text);
    text[DIGITS] = '\0';
    *sum += strtoull(text, NULL, DIGITS);
    sli_checksum_destroy(&checksum);
    return SL_OK;
}

/* The sum of the tensors' checksums, modulo 2^64, so that each rank can add its own. */
sl_status sli_base_checksum(const sl_pipe *pipe, char text[SLI_BASE_CHECKSUM_BYTES])
{
    sl_group *group = sl_pipe_group(pipe);
    sli_tensors tensors = {0};
    uint64_t sum = 0;
    sl_status status;
    SL_TRY_OR_FAIL(sli_tensors_of_model(pipe, &tensors));
    SL_TRY_OR_FAIL(sli_adapter_select(&tensors, false));
    SL_TRY_OR_FAIL(sli_tensors_open(&tensors, true));
    for (size_t i = 0; i < tensors.count; i++)
        if (tensors.entries[i].count > 0)
            SL_TRY_OR_FAIL(add_checksum(&tensors.items[i], &tensors.entries[i], &sum));
fail:
    sli_tensors_clear(&tensors);
    SL_TRY(sli_group_agree(group, status));
    if (group)
        SL_TRY(sl_group_all_reduce(group, &sum, 1, SL_I64, SL_REDUCE_SUM, NULL));
    snprintf(text, SLI_BASE_CHECKSUM_BYTES, "%016" PRIx64, sum);
    return SL_OK;
}

sl_status sli_base_compare(const char *path, const char *expected, const char *found)
{
    if (strcmp(expected, found) == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: the adapter was made for weights with the checksum %.16s, but those of "
                    "this model have %s: give the model that it was trained with",
                    path, expected, found);
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
    sl_status status;
    SL_TRY_OR_FAIL(sli_file_read(file, MOST_BYTES, &text, &bytes));
    status = sl_error_context(sli_adapter_config_parse(text, bytes, out), "%s: ", file);
fail:
    free(text);
    free(file);
    return status;
}

sl_status sl_adapter_load(const char *path, sl_pipe *pipe)
{
    sl_saved_model *adapter;
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(pipe);
    SL_TRY(sli_adapter_open(path, &adapter));
    sl_status status = sli_saved_model_load_adapter(adapter, true, pipe);
    sl_saved_model_close(&adapter);
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
