/* Skip connections: their ends, which modules declare, and what a pass holds of them.
 *
 *     module 0      1      2      module 3
 *      stash ──────────────────────▶ pop         forward: a tensor
 *       pop  ◀────────────────────── stash       backward: its gradient
 *
 * A pass has an entry for each skip that a module on it has stashed, or that another stage has
 * sent. The tensor is popped in forward, and the entry remains, so that the shape of the gradient
 * can be checked. */
#include "nn/layers.h"
#include "nn/module.h"

#include "core/memory.h"
#include "tensor/tensor.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- Ends ------------------------------------------------------------------------------- */

static sl_status add_end(sl_module *module, const char *name, bool pops)
{
    const char *type = sl_module_type(module);
    sli_skip_end **last = &module->skip_ends;
    if (!name || !*name)
        return sl_error(SL_ERR_INVALID, "%s: a skip connection needs a name", type);
    SL_TRY(sli_module_check_open(module, pops ? "pop" : "stash", name));
    for (; *last; last = &(*last)->next)
        if (strcmp((*last)->name, name) == 0)
            return sl_error(SL_ERR_INVALID, "%s: the skip connection \"%s\" is declared twice",
                            type, name);
    size_t bytes = strlen(name) + 1;
    sli_skip_end *end = malloc(sizeof *end + bytes);
    if (!end)
        return sli_no_memory(type, "the skip connection \"%s\"", name);
    *end = (sli_skip_end){.module = module, .pops = pops};
    memcpy(end->name, name, bytes);
    *last = end;
    return SL_OK;
}

sl_status sl_module_add_stash(sl_module *module, const char *name)
{
    return add_end(module, name, false);
}

sl_status sl_module_add_pop(sl_module *module, const char *name)
{
    return add_end(module, name, true);
}

void sli_skip_ends_destroy(sl_module *module)
{
    while (module->skip_ends) {
        sli_skip_end *dead = module->skip_ends;
        module->skip_ends = dead->next;
        free(dead);
    }
}

sl_status sli_module_for_each_skip_end(const sl_module *module,
                                       sl_status (*fn)(const sli_skip_end *end, void *arg),
                                       void *arg)
{
    for (const sli_skip_end *end = module->skip_ends; end; end = end->next)
        SL_TRY(fn(end, arg));
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(sli_module_for_each_skip_end(module->children[i], fn, arg));
    return SL_OK;
}

/* ---- On a pass -------------------------------------------------------------------------- */

sli_pass_skip *sli_pass_find_skip(const sl_pass *pass, const char *name)
{
    for (int i = 0; i < pass->skip_count; i++)
        if (strcmp(pass->skips[i].name, name) == 0)
            return &pass->skips[i];
    return NULL;
}

static sl_status prepare_skip(sl_pass *pass, const char *name, const sl_tensor *tensor)
{
    SL_TRY(sli_check_dtype("a stashed tensor", tensor, SL_F32));
    if (sli_pass_find_skip(pass, name))
        return sl_error(SL_ERR_INVALID, "\"%s\" is stashed twice", name);
    return sli_array_reserve(&pass->skips, &pass->skip_capacity, (size_t)pass->skip_count + 1,
                             sizeof *pass->skips, INT_MAX, "skip connections");
}

sl_status sli_pass_put_skip(sl_pass *pass, const char *name, sl_tensor **tensor)
{
    sl_status status = prepare_skip(pass, name, *tensor);
    if (status != SL_OK) {
        sl_tensor_destroy(tensor);
        return status;
    }
    pass->skips[pass->skip_count++] =
        (sli_pass_skip){.name = name, .shape = *sl_tensor_shape(*tensor), .tensor = *tensor};
    *tensor = NULL;
    return SL_OK;
}

sl_status sl_pass_stash_skip(sl_pass *pass, const char *name, const sl_tensor *tensor)
{
    sl_tensor *alias;
    SL_TRY(sl_tensor_alias(tensor, &alias));
    return sli_pass_put_skip(pass, name, &alias);
}

/* The connection is finished: the name may be stashed again on this pass. */
static void remove_entry(sl_pass *pass, sli_pass_skip *skip)
{
    *skip = pass->skips[--pass->skip_count];
}

sl_status sl_pass_pop_skip(sl_pass *pass, const char *name, sl_tensor **out)
{
    sli_pass_skip *skip = sli_pass_find_skip(pass, name);
    *out = NULL;
    if (!skip || !skip->tensor)
        return sl_error(SL_ERR_INVALID, "no tensor is stashed as \"%s\", or it was popped before",
                        name);
    *out = skip->tensor;
    skip->tensor = NULL;
    if (!pass->options.keep)
        remove_entry(pass, skip);
    return SL_OK;
}

static sl_status check_grad(const sli_pass_skip *skip, const char *name, const sl_tensor *grad)
{
    char want[SL_SHAPE_TEXT_BYTES], got[SL_SHAPE_TEXT_BYTES];
    if (!skip || skip->tensor)
        return sl_error(SL_ERR_INVALID, "a gradient of \"%s\", which no module has popped", name);
    if (skip->grad)
        return sl_error(SL_ERR_INVALID, "a second gradient of \"%s\"", name);
    SL_TRY(sli_check_dtype("the gradient of a stashed tensor", grad, SL_F32));
    if (!sl_shape_equal(&skip->shape, sl_tensor_shape(grad)))
        return sl_error(SL_ERR_INVALID, "the gradient of \"%s\" must have its shape %s, got %s",
                        name, sl_shape_text(&skip->shape, want),
                        sl_shape_text(sl_tensor_shape(grad), got));
    return SL_OK;
}

/* The module that stashed may run on another thread, and both gradients may be overwritten. */
static sl_status make_unshared(const sl_pass *pass, sl_tensor **tensor)
{
    sl_tensor *copy;
    if (!sli_tensor_is_shared(*tensor))
        return SL_OK;
    SL_TRY(sl_tensor_create(pass->options.device, SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(*tensor), &copy));
    sl_status status;
    SL_TRY_OR_FAIL(sl_tensor_copy(copy, *tensor));
    sl_tensor_destroy(tensor);
    *tensor = copy;
    return SL_OK;
fail:
    sl_tensor_destroy(&copy);
    return status;
}

sl_status sl_pass_stash_skip_grad(sl_pass *pass, const char *name, sl_tensor **grad)
{
    sli_pass_skip *skip = sli_pass_find_skip(pass, name);
    if (!*grad)
        return sl_error(SL_ERR_INVALID, "there is no gradient of \"%s\" to stash", name);
    sl_status status;
    SL_TRY_OR_FAIL(check_grad(skip, name, *grad));
    SL_TRY_OR_FAIL(make_unshared(pass, grad));
    skip->grad = *grad;
    *grad = NULL;

fail:
    sl_tensor_destroy(grad);
    return status;
}

sl_status sl_pass_pop_skip_grad(sl_pass *pass, const char *name, sl_tensor **out)
{
    sli_pass_skip *skip = sli_pass_find_skip(pass, name);
    *out = NULL;
    if (!skip || !skip->grad)
        return sl_error(SL_ERR_INVALID,
                        "there is no gradient of \"%s\": the module that pops it must give one",
                        name);
    *out = skip->grad;
    remove_entry(pass, skip);
    return SL_OK;
}

sl_status sli_pass_check_skips(const sl_pass *pass)
{
    for (int i = 0; i < pass->skip_count; i++)
        if (pass->skips[i].tensor || pass->skips[i].grad)
            return sl_error(SL_ERR_INVALID, "the %s \"%s\" was stashed, but not popped",
                            pass->skips[i].tensor ? "tensor" : "gradient of", pass->skips[i].name);
    return SL_OK;
}
