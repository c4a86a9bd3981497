/* Tied parameters: one parameter that several modules use (PyTorch's `b.weight = a.weight`).
 *
 *     embedding ── weight ◀── tied ── decoder       the value is one tensor
 *                    │          │
 *                  grad   +=  grad                  each module adds to a gradient of its own
 *
 * Modules that share a gradient would add to it in an order that depends on how the model is cut
 * and on the schedule. So each has one of its own, and they are summed when the whole model has
 * gone backward: to the same bits everywhere. A tied parameter is in no list of its module: no set,
 * optimizer, exchange or file knows of it, and everything counts the parameter once. */
#include "nn/module.h"

#include <stdlib.h>
#include <string.h>

static sl_parameter *find_parameter(const sl_module *module, const char *name)
{
    for (int i = 0; i < module->parameter_count; i++)
        if (strcmp(module->parameters[i]->path, name) == 0)
            return module->parameters[i];
    for (int i = 0; i < module->child_count; i++) {
        sl_parameter *found = find_parameter(module->children[i], name);
        if (found)
            return found;
    }
    return NULL;
}

static sl_status check_tie(const char *name, const sl_parameter *tied, const char *to,
                           const sl_parameter *owner)
{
    char tied_shape[SL_SHAPE_TEXT_BYTES], owner_shape[SL_SHAPE_TEXT_BYTES];
    if (!tied || !owner)
        return sl_error(SL_ERR_NOT_FOUND,
                        "sl_module_tie_parameter: the model has no parameter %s, or it is tied",
                        tied ? to : name);
    if (tied == owner || tied->ties)
        return sl_error(SL_ERR_INVALID, "sl_module_tie_parameter: %s cannot be tied to %s: %s",
                        name, to,
                        tied == owner ? "they are one parameter" : "another one is tied to it");
    if (tied->kind == SL_PARAMETER_BUFFER || owner->kind == SL_PARAMETER_BUFFER)
        return sl_error(SL_ERR_INVALID,
                        "sl_module_tie_parameter: %s cannot be tied to %s: buffers cannot be tied",
                        name, to);
    if (!sl_shape_equal(&tied->shape, &owner->shape))
        return sl_error(SL_ERR_INVALID,
                        "sl_module_tie_parameter: %s has shape %s, but %s has shape %s", name,
                        sl_shape_text(&tied->shape, tied_shape), to,
                        sl_shape_text(&owner->shape, owner_shape));
    return SL_OK;
}

static void remove_from_module(const sl_parameter *parameter)
{
    sl_module *module = parameter->module;
    int index = 0;
    while (module->parameters[index] != parameter)
        index++;
    module->parameter_count--;
    memmove(&module->parameters[index], &module->parameters[index + 1],
            (size_t)(module->parameter_count - index) * sizeof *module->parameters);
}

sl_status sl_module_tie_parameter(sl_module *model, const char *name, const char *to)
{
    sl_module *root = sli_module_root(model);
    sl_parameter *tied = find_parameter(root, name), *owner = find_parameter(root, to);
    SL_TRY(check_tie(name, tied, to, owner));
    SL_TRY(sli_module_check_open(root, "tie", name));
    remove_from_module(tied);
    sl_parameter **last = &owner->ties;
    while (*last)
        last = &(*last)->next_tie;
    *last = tied;
    tied->tied_to = owner;
    sli_module_number_tree(root);
    return SL_OK;
}

sl_status sli_module_for_each_tie(const sl_module *module,
                                  sl_status (*fn)(sl_parameter *tied, void *arg), void *arg)
{
    for (int i = 0; i < module->parameter_count; i++)
        for (sl_parameter *tied = module->parameters[i]->ties; tied; tied = tied->next_tie)
            SL_TRY(fn(tied, arg));
    for (int i = 0; i < module->child_count; i++)
        SL_TRY(sli_module_for_each_tie(module->children[i], fn, arg));
    return SL_OK;
}

int sli_module_index_in(const sl_module *model, const sl_module *module)
{
    int index = 0;
    while (module && module->parent != model)
        module = module->parent;
    while (module && model->children[index] != module)
        index++;
    return module ? index : -1;
}

static sl_status add_gradient(sl_parameter *tied, void *unused)
{
    (void)unused;
    sl_tensor *sum;
    if (!tied->grad || tied->grad_is_stale)
        return SL_OK;
    SL_TRY(sl_parameter_grad(tied->tied_to, &sum));
    SL_TRY(sli_device_add(sl_tensor_device(sum), sl_tensor_count(sum), sl_tensor_f32(sum),
                          sl_tensor_f32(tied->grad)));
    tied->grad_is_stale = true;
    return SL_OK;
}

sl_status sli_module_sum_tied(const sl_module *module)
{
    return sli_module_for_each_tie(module, add_gradient, NULL);
}
