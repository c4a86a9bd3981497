/* Passes: the record of one micro-batch through one stage. */
#include "nn/module.h"

#include "core/memory.h"
#include "nn/layers.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

sl_status sl_pass_create(const sl_pass_options *options, sl_pass **out)
{
    *out = NULL;
    if (!options->device)
        return sl_error(SL_ERR_INVALID, "sl_pass_create: a pass needs a device");
    if (options->caches && (options->training || options->keep))
        return sl_error(SL_ERR_INVALID, "sl_pass_create: a pass with a cache is for evaluation "
                                        "without backward");
    sl_pass *pass = calloc(1, sizeof *pass);
    if (!pass)
        return sli_no_memory("sl_pass_create", "a pass");
    pass->options = *options;
    pass->key = sli_philox_key_make(options->seed, SLI_RANDOM_DROPOUT);
    *out = pass;
    return SL_OK;
}

void sl_pass_destroy(sl_pass **pass)
{
    if (!pass || !*pass)
        return;
    while ((*pass)->count > 0)
        sl_tensor_destroy(&(*pass)->saved[--(*pass)->count]);
    while ((*pass)->deferred_next < (*pass)->deferred_count)
        sl_tensor_destroy(&(*pass)->deferred[(*pass)->deferred_next++]);
    for (int i = 0; i < (*pass)->skip_count; i++) {
        sl_tensor_destroy(&(*pass)->skips[i].tensor);
        sl_tensor_destroy(&(*pass)->skips[i].grad);
    }
    while ((*pass)->input_count > 0)
        sl_tensor_destroy(&(*pass)->inputs[--(*pass)->input_count].tensor);
    free((*pass)->inputs);
    free((*pass)->documents);
    free((*pass)->saved);
    free((*pass)->deferred);
    free((*pass)->skips);
    free(*pass);
    *pass = NULL;
}

sl_device *sl_pass_device(const sl_pass *pass)
{
    return pass->options.device;
}

bool sli_pass_keeps(const sl_pass *pass)
{
    return pass->options.keep;
}

int sli_pass_depth(const sl_pass *pass)
{
    return pass->count;
}

/* Is this tensor kept in bf16? */
static bool is_converted(const sl_pass *pass, const sl_tensor *tensor)
{
    return sli_pass_is_bf16(pass) && tensor && sl_tensor_dtype(tensor) == SL_F32;
}

sl_status sli_pass_save_exact(sl_pass *pass, sl_tensor **tensor)
{
    if (!pass->options.keep) {
        sl_tensor_destroy(tensor);
        return SL_OK;
    }
    if (!*tensor)
        return sl_error(SL_ERR_INVALID, "sl_pass_save: there is no tensor to save");
    sl_status status = sli_array_reserve(&pass->saved, &pass->capacity, (size_t)pass->count + 1,
                                         sizeof *pass->saved, INT_MAX, "saved tensors");
    if (status != SL_OK) {
        sl_tensor_destroy(tensor);
        return status;
    }
    pass->saved[pass->count++] = *tensor;
    *tensor = NULL;
    return SL_OK;
}

sl_status sl_pass_save(sl_pass *pass, sl_tensor **tensor)
{
    if (!pass->options.keep || !is_converted(pass, *tensor))
        return sli_pass_save_exact(pass, tensor);
    sl_status status = sl_pass_save_alias(pass, *tensor);
    sl_tensor_destroy(tensor);
    return status;
}

sl_status sli_pass_operand(const sl_pass *pass, const sl_tensor *tensor, bool is_kept,
                           sl_tensor **out)
{
    sl_memory_category category = is_kept ? SL_MEMORY_ACTIVATIONS : SL_MEMORY_WORKSPACE;
    if (pass->wide && tensor == pass->wide)
        return sl_tensor_alias(pass->narrow, out);
    return is_converted(pass, tensor) ? sli_tensor_as(tensor, SL_BF16, category, out)
                                      : sl_tensor_alias(tensor, out);
}

sl_status sl_pass_save_alias(sl_pass *pass, const sl_tensor *tensor)
{
    if (!pass->options.keep)
        return SL_OK;
    sl_tensor *operand;
    SL_TRY(sli_pass_operand(pass, tensor, true, &operand));
    return sli_pass_save_exact(pass, &operand);
}

sl_status sli_pass_round(const sl_pass *pass, sl_tensor *tensor)
{
    return sli_pass_is_bf16(pass) ? sli_tensor_convert(tensor, tensor) : SL_OK;
}

sl_status sli_pass_pop_stored(sl_pass *pass, sl_tensor **out)
{
    *out = NULL;
    if (pass->count == 0)
        return sl_error(SL_ERR_INVALID, "nothing is saved on the pass: backward needs a forward "
                                        "with a keeping pass before it");
    *out = pass->saved[--pass->count];
    return SL_OK;
}

sl_status sli_pass_widen(const sl_pass *pass, const sl_tensor *stored, sl_tensor **out)
{
    if (!sli_pass_is_bf16(pass) || sl_tensor_dtype(stored) != SL_BF16)
        return sl_tensor_alias(stored, out);
    return sli_tensor_as(stored, SL_F32, SL_MEMORY_WORKSPACE, out);
}

sl_status sl_pass_pop(sl_pass *pass, sl_tensor **out)
{
    sl_tensor *stored;
    *out = NULL;
    SL_TRY(sli_pass_pop_stored(pass, &stored));
    sl_status status = sli_pass_widen(pass, stored, out);
    sl_tensor_destroy(&stored);
    return status;
}

sl_status sl_pass_defer(sl_pass *pass, sl_tensor **tensor)
{
    if (!*tensor)
        return sl_error(SL_ERR_INVALID, "sl_pass_defer: there is no tensor to defer");
    sl_status status = sli_array_reserve(&pass->deferred, &pass->deferred_capacity,
                                         (size_t)pass->deferred_count + 1, sizeof *pass->deferred,
                                         INT_MAX, "deferred tensors");
    if (status != SL_OK) {
        sl_tensor_destroy(tensor);
        return status;
    }
    pass->deferred[pass->deferred_count++] = *tensor;
    *tensor = NULL;
    return SL_OK;
}

sl_status sl_pass_defer_alias(sl_pass *pass, const sl_tensor *tensor)
{
    sl_tensor *alias;
    SL_TRY(sl_tensor_alias(tensor, &alias));
    return sl_pass_defer(pass, &alias);
}

sl_status sl_pass_take_deferred(sl_pass *pass, sl_tensor **out)
{
    *out = NULL;
    if (sli_pass_deferred(pass) == 0)
        return sl_error(SL_ERR_INVALID, "nothing is deferred on the pass: backward_weight takes "
                                        "what backward_input has put there");
    *out = pass->deferred[pass->deferred_next];
    pass->deferred[pass->deferred_next++] = NULL;
    return SL_OK;
}

sl_status sli_pass_take_pair(sl_pass *pass, sl_tensor **first, sl_tensor **second)
{
    SL_TRY(sl_pass_take_deferred(pass, first));
    sl_status status = sl_pass_take_deferred(pass, second);
    if (status != SL_OK)
        sl_tensor_destroy(first);
    return status;
}

int sli_pass_deferred(const sl_pass *pass)
{
    return pass->deferred_count - pass->deferred_next;
}

sl_status sli_inputs_check(const char *who, const sl_input *inputs, int count)
{
    if (count < 0)
        return sl_error(SL_ERR_INVALID, "%s: input_count must be at least 0, got %d", who, count);
    if (count > 0 && !inputs)
        return sl_error(SL_ERR_INVALID, "%s: inputs is NULL, but input_count is %d", who, count);
    for (int i = 0; i < count; i++)
        if (!inputs[i].name || !inputs[i].tensor)
            return sl_error(SL_ERR_INVALID, "%s: inputs[%d] has no %s", who, i,
                            inputs[i].name ? "tensor" : "name");
    return SL_OK;
}

static const sl_tensor *find_input(const sl_pass *pass, const char *name)
{
    for (int i = 0; i < pass->input_count; i++)
        if (strcmp(pass->inputs[i].name, name) == 0)
            return pass->inputs[i].tensor;
    return NULL;
}

sl_status sli_pass_put_input(sl_pass *pass, const char *name, sl_tensor **tensor)
{
    sl_status status;
    if (find_input(pass, name))
        SL_TRY_OR_FAIL(sl_error(SL_ERR_INVALID, "the pass has two inputs \"%s\"", name));
    SL_TRY_OR_FAIL(sli_array_reserve(&pass->inputs, &pass->input_capacity,
                                     (size_t)pass->input_count + 1, sizeof *pass->inputs, INT_MAX,
                                     "inputs"));
    if (strcmp(name, SL_DOCUMENTS_INPUT) == 0)
        SL_TRY_OR_FAIL(sli_documents_read(*tensor, &pass->documents));
    pass->inputs[pass->input_count].name = name;
    pass->inputs[pass->input_count++].tensor = *tensor;
    *tensor = NULL;
    return SL_OK;
fail:
    sl_tensor_destroy(tensor);
    return status;
}

sl_status sli_pass_add_input(sl_pass *pass, const char *name, const sl_tensor *tensor)
{
    sl_tensor *alias;
    SL_TRY(sl_tensor_alias(tensor, &alias));
    return sli_pass_put_input(pass, name, &alias);
}

sl_status sl_pass_input(const sl_pass *pass, const char *name, const sl_tensor **out)
{
    *out = find_input(pass, name);
    if (!*out)
        return sl_error(SL_ERR_NOT_FOUND, "the batch has no input \"%s\"", name);
    return SL_OK;
}

void sli_pass_observe(sl_pass *pass, const sli_pass_observer *observer)
{
    pass->observer = observer;
}

sl_status sli_pass_went_backward(const sl_pass *pass, const sl_module *module)
{
    if (!pass->observer)
        return SL_OK;
    return pass->observer->went_backward(pass->observer->arg, module);
}

void sli_pass_enter(sl_pass *pass)
{
    pass->calls++;
}

bool sli_pass_leave(sl_pass *pass, sl_status status)
{
    bool name_it = status != SL_OK && !pass->error_is_named;
    pass->calls--;
    pass->error_is_named = status != SL_OK && pass->calls > 0;
    return name_it;
}

void sli_pass_error_is_named(sl_pass *pass)
{
    pass->error_is_named = true;
}

sli_dropout sli_pass_dropout(const sl_pass *pass, const sl_module *module, uint32_t local, float p,
                             int64_t rows_per_sample)
{
    assert(local < SLI_SITES_PER_MODULE);
    return (sli_dropout){
        .p = sl_module_is_training(module, pass) ? p : 0.0f,
        .key = pass->key,
        .step = (uint32_t)pass->options.step,
        .site = module->number * SLI_SITES_PER_MODULE + local,
        .first_sample = (uint32_t)pass->options.first_sample,
        .rows_per_sample = rows_per_sample,
        .first_row = pass->slice_length > 0
                         ? pass->first_position * (rows_per_sample / pass->slice_length)
                         : 0,
    };
}

static sl_status create_f32(const sl_pass *pass, bool is_kept, const sl_shape *shape,
                            sl_tensor **out)
{
    sl_memory_category category = is_kept ? SL_MEMORY_ACTIVATIONS : SL_MEMORY_WORKSPACE;
    return sl_tensor_create(pass->options.device, category, SL_F32, shape, out);
}

sl_status sli_pass_create_output(const sl_pass *pass, const sl_shape *shape, sl_tensor **out)
{
    return create_f32(pass, !sli_pass_is_bf16(pass), shape, out);
}

sl_status sli_pass_create_tensor(const sl_pass *pass, const sl_shape *shape, sl_tensor **out)
{
    return create_f32(pass, pass->options.keep && !sli_pass_is_bf16(pass), shape, out);
}

bool sli_pass_stores_bf16(const sl_pass *pass)
{
    return sli_pass_is_bf16(pass) && sli_device_stores_bf16(pass->options.device);
}

sl_status sli_pass_create_stored(const sl_pass *pass, const sl_shape *shape, bool is_kept,
                                 sl_tensor **out)
{
    if (!sli_pass_stores_bf16(pass))
        return create_f32(pass, is_kept && !sli_pass_is_bf16(pass), shape, out);
    return sl_tensor_create(pass->options.device,
                            is_kept ? SL_MEMORY_ACTIVATIONS : SL_MEMORY_WORKSPACE, SL_BF16, shape,
                            out);
}

sl_status sli_pass_create_tensor_if_kept(const sl_pass *pass, const sl_shape *shape,
                                         sl_tensor **out)
{
    *out = NULL;
    return pass->options.keep ? sli_pass_create_tensor(pass, shape, out) : SL_OK;
}

sl_status sli_pass_create_exact_if_kept(const sl_pass *pass, const sl_shape *shape, sl_tensor **out)
{
    *out = NULL;
    return pass->options.keep ? create_f32(pass, true, shape, out) : SL_OK;
}

sl_status sli_pass_create_gradient(const sl_pass *pass, const sl_tensor *like, sl_tensor **out)
{
    return create_f32(pass, pass->is_split && !sli_pass_is_bf16(pass), sl_tensor_shape(like), out);
}
