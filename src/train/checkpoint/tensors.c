#define _GNU_SOURCE /* asprintf */

#include "train/checkpoint/tensors.h"

#include "optim/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sl_status no_memory(void)
{
    return sl_error(SL_ERR_MEMORY, "no memory for the list of a run's tensors");
}

/* Room for `each` entries a parameter. */
static sl_status allocate(const sl_pipe *pipe, int each, sli_tensors *out)
{
    size_t parameters = 0;
    for (int s = 0; s < sl_pipe_stages(pipe); s++)
        parameters += (size_t)sl_parameter_set_count(sl_pipe_parameters(pipe, s));
    *out = (sli_tensors){calloc(parameters * (size_t)each + 1, sizeof *out->entries), 0};
    return out->entries ? SL_OK : no_memory();
}

/* "NAME" or "NAME.SUFFIX". */
static sl_status name_entry(const char *name, const char *suffix, char **out)
{
    if (asprintf(out, "%s%s%s", name, suffix ? "." : "", suffix ? suffix : "") >= 0)
        return SL_OK;
    *out = NULL;
    return no_memory();
}

static sl_status add_shared(sli_tensors *to, const sl_parameter *parameter, int stage)
{
    sli_tensor_entry *entry = &to->entries[to->count++];
    entry->stage = stage;
    SL_TRY(name_entry(sl_parameter_name(parameter), NULL, &entry->name));
    return sl_tensor_alias(sl_parameter_value(parameter), &entry->tensor);
}

sl_status sli_tensors_find_place(const sl_parameter_set *set, const sl_parameter *parameter,
                                 int *bucket, int64_t *offset)
{
    const float *first = sl_tensor_f32(sl_parameter_value(parameter));
    for (int b = 0; b < sl_parameter_set_bucket_count(set); b++) {
        const sl_tensor *values = sl_parameter_set_bucket_values(set, b);
        const float *start = sl_tensor_f32(values);
        if (first >= start && first < start + sl_tensor_count(values)) {
            *bucket = b;
            *offset = first - start;
            return SL_OK;
        }
    }
    return sl_error(SL_ERR_INTERNAL, "parameter %s is in no bucket", sl_parameter_name(parameter));
}

/* The parameter's part of `flat`, which lies as its bucket does. */
static sl_status add_view(sli_tensors *to, const sl_parameter *parameter, const char *suffix,
                          int stage, const sl_tensor *flat, int64_t offset)
{
    sli_tensor_entry *entry = &to->entries[to->count++];
    entry->stage = stage;
    SL_TRY(name_entry(sl_parameter_name(parameter), suffix, &entry->name));
    return sl_tensor_view(flat, offset, sl_parameter_shape(parameter), &entry->tensor);
}

sl_status sli_tensors_add(sli_tensors *to, const char *name, int stage, const sl_tensor *flat,
                          int64_t offset, const sl_shape *shape)
{
    sli_tensor_entry *more = realloc(to->entries, (to->count + 1) * sizeof *more);
    if (!more)
        return no_memory();
    to->entries = more;
    sli_tensor_entry *entry = &to->entries[to->count++];
    *entry = (sli_tensor_entry){.stage = stage};
    SL_TRY(name_entry(name, NULL, &entry->name));
    return sl_tensor_view(flat, offset, shape, &entry->tensor);
}

sl_status sli_tensors_of_model(const sl_pipe *pipe, sli_tensors *out)
{
    SL_TRY(allocate(pipe, 1, out));
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            SL_TRY(add_shared(out, sl_parameter_set_get(set, i), s));
    }
    return SL_OK;
}

sl_status sli_tensors_of_best(const sl_pipe *pipe, const sli_best *best, sli_tensors *out)
{
    SL_TRY(allocate(pipe, 1, out));
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            const sl_parameter *parameter = sl_parameter_set_get(set, i);
            int bucket;
            int64_t offset;
            if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
                continue;
            SL_TRY(sli_tensors_find_place(set, parameter, &bucket, &offset));
            SL_TRY(add_view(out, parameter, NULL, s, sli_best_bucket(best, s, bucket), offset));
        }
    }
    return SL_OK;
}

static sl_status add_state(sli_tensors *to, const sl_parameter_set *set,
                           const sl_parameter *parameter, int stage, const sl_optimizer *whole)
{
    int bucket;
    int64_t offset;
    if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
        return SL_OK;
    SL_TRY(sli_tensors_find_place(set, parameter, &bucket, &offset));
    for (int a = 0; a < sli_optimizer_state_arrays(whole); a++)
        SL_TRY(add_view(to, parameter, sli_optimizer_state_name(whole, a), stage,
                        sli_optimizer_state(whole, bucket, a), offset));
    return SL_OK;
}

sl_status sli_tensors_of_optimizer(const sl_pipe *pipe, sl_optimizer *const *whole,
                                   sli_tensors *out)
{
    enum { MOST_ARRAYS = 2 };
    SL_TRY(allocate(pipe, MOST_ARRAYS, out));
    for (int s = 0; s < sl_pipe_stages(pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            SL_TRY(add_state(out, set, sl_parameter_set_get(set, i), s, whole[s]));
    }
    return SL_OK;
}

void sli_tensors_clear(sli_tensors *tensors)
{
    for (size_t i = 0; i < tensors->count; i++) {
        sl_tensor_destroy(&tensors->entries[i].tensor);
        free(tensors->entries[i].name);
    }
    free(tensors->entries);
    *tensors = (sli_tensors){0};
}

sl_status sli_tensors_items(const sli_tensors *tensors, sl_safetensors_item **out)
{
    *out = calloc(tensors->count + 1, sizeof **out);
    if (!*out)
        return no_memory();
    for (size_t i = 0; i < tensors->count; i++) {
        const sli_tensor_entry *entry = &tensors->entries[i];
        (*out)[i] = (sl_safetensors_item){entry->name, SL_F32, *sl_tensor_shape(entry->tensor),
                                          sl_tensor_data(entry->tensor)};
    }
    return SL_OK;
}
