/* Modules: creating them, and the tree that they form. */
#include "nn/module.h"

#include "core/memory.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Creation --------------------------------------------------------------------------- */

static void free_state(const sl_module_ops *ops, void *state)
{
    if (ops->destroy_state)
        ops->destroy_state(state);
    else
        free(state);
}

sl_status sl_module_create(const sl_module_ops *ops, void *state, sl_module **out)
{
    *out = NULL;
    sl_module *module = calloc(1, sizeof *module);
    if (!module) {
        free_state(ops, state);
        return sli_no_memory("sl_module_create", "a %s", ops->type);
    }
    module->ops = ops;
    module->state = state;
    module->modules_end = 1;
    *out = module;
    return SL_OK;
}

static void destroy_tree(sl_module *module)
{
    for (int i = 0; i < module->child_count; i++)
        destroy_tree(module->children[i]);
    for (int i = 0; i < module->parameter_count; i++)
        sli_parameter_destroy(module->parameters[i]);
    sli_skip_ends_destroy(module);
    free_state(module->ops, module->state);
    free(module->children);
    free(module->parameters);
    free(module->name);
    free(module);
}

void sl_module_destroy(sl_module **module)
{
    if (!module || !*module)
        return;
    assert(atomic_load(&(*module)->sets) == 0); /* a set borrows the parameters of its tree */
    destroy_tree(*module);
    *module = NULL;
}

/* ---- The tree --------------------------------------------------------------------------- */

sl_module *sli_module_root(sl_module *module)
{
    while (module->parent)
        module = module->parent;
    return module;
}

static void number_below(sl_module *module, uint32_t *modules, uint32_t *parameters)
{
    module->number = (*modules)++;
    for (int i = 0; i < module->parameter_count; i++)
        module->parameters[i]->number = (*parameters)++;
    for (int i = 0; i < module->child_count; i++)
        number_below(module->children[i], modules, parameters);
    module->modules_end = *modules;
    module->parameters_end = *parameters;
}

/* Numbers the last child of `module`, which has just got it: where that is the tree's end, no other
 * module's number changes, and a deep model is not numbered anew for each of its layers. */
static void number_child(sl_module *module)
{
    sl_module *root = sli_module_root(module);
    uint32_t modules = root->modules_end, parameters = root->parameters_end;
    for (const sl_module *node = module; node->parent; node = node->parent)
        if (node != node->parent->children[node->parent->child_count - 1]) {
            sli_module_number_tree(root);
            return;
        }
    number_below(module->children[module->child_count - 1], &modules, &parameters);
    for (; module; module = module->parent) {
        module->modules_end = modules;
        module->parameters_end = parameters;
    }
}

void sli_module_number_tree(sl_module *root)
{
    uint32_t modules = 0, parameters = 0;
    number_below(root, &modules, &parameters);
}

const char *sli_module_path(const sl_module *module, char *text)
{
    size_t end = SLI_PATH_BYTES - 1;
    text[end] = '\0';
    for (; module->parent; module = module->parent) {
        size_t length = strlen(module->name);
        size_t dot = text[end] != '\0';
        if (length + dot > end)
            break; /* deeper than any message needs: the path's end says enough */
        if (dot)
            text[--end] = '.';
        end -= length;
        memcpy(text + end, module->name, length);
    }
    return memmove(text, text + end, SLI_PATH_BYTES - end);
}

/* The end of both sentences: what to do about it. */
#define IN_USE_ADVICE                                                                              \
    "a parameter set or a pipe holds its parameters; put the model together before, or destroy "   \
    "the set or pipe first"

sl_status sli_module_check_open(sl_module *module, const char *what, const char *name)
{
    if (atomic_load(&sli_module_root(module)->sets) == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: %s \"%s\" cannot be added to a model in use: " IN_USE_ADVICE,
                    module->ops->type, what, name);
}

sl_status sli_module_check_name(const sl_module *module, const char *name)
{
    const char *type = module->ops->type;
    if (!name || !*name || strchr(name, '.'))
        return sl_error(SL_ERR_INVALID,
                        "%s: a name within a module is not empty and has no dot, got \"%s\"", type,
                        name ? name : "");
    bool taken = false;
    for (int i = 0; i < module->child_count && !taken; i++)
        taken = strcmp(module->children[i]->name, name) == 0;
    for (int i = 0; i < module->parameter_count && !taken; i++)
        taken = strcmp(module->parameters[i]->name, name) == 0;
    if (taken)
        return sl_error(SL_ERR_INVALID, "%s: the name \"%s\" is used twice", type, name);
    return SL_OK;
}

/* Makes `child` the last child, or leaves both as they were. */
static sl_status attach_child(sl_module *module, const char *name, sl_module *child)
{
    SL_TRY(sli_module_check_name(module, name));
    SL_TRY(sli_module_check_open(module, "child", name));
    SL_TRY(sli_array_reserve(&module->children, &module->child_capacity,
                             (size_t)module->child_count + 1, sizeof *module->children, INT_MAX,
                             "children"));
    child->name = strdup(name);
    if (!child->name)
        return sli_no_memory("sl_module_append", "the name \"%s\"", name);
    child->parent = module;
    sl_status status = sli_parameters_rename(child);
    if (status != SL_OK) {
        child->parent = NULL;
        return status;
    }
    module->children[module->child_count++] = child;
    number_child(module);
    return SL_OK;
}

sl_status sli_module_add_child(sl_module *module, const char *name, sl_module *child)
{
    if (!child)
        return sl_error(SL_ERR_INVALID, "%s: child \"%s\" is NULL", module->ops->type, name);
    /* None of these may be freed here: it belongs to its parent, or holds `module`, or a parameter
     * set holds its parameters. */
    if (child->parent)
        return sl_error(SL_ERR_INVALID, "%s: module with duplicate children is not supported",
                        module->ops->type);
    if (child == sli_module_root(module))
        return sl_error(SL_ERR_INVALID, "%s: a module cannot be part of itself", module->ops->type);
    if (atomic_load(&child->sets) > 0)
        return sl_error(SL_ERR_INVALID,
                        "%s: a model in use cannot become child \"%s\": " IN_USE_ADVICE,
                        module->ops->type, name);
    sl_status status = attach_child(module, name, child);
    if (status != SL_OK)
        sl_module_destroy(&child);
    return status;
}

sl_status sli_module_name_child(sl_module *module, int index, const char *name)
{
    sl_module *child = module->children[index];
    char *copy = strdup(name);
    if (!copy)
        return sli_no_memory(NULL, "the name \"%s\"", name);
    free(child->name);
    child->name = copy;
    return sli_parameters_rename(child);
}

sl_status sl_module_append(sl_module **module, const char *name, sl_status created,
                           sl_module **child)
{
    sl_status status;
    SL_TRY_OR_FAIL(created);
    SL_TRY_OR_FAIL(sli_module_add_child(*module, name, *child));
    return SL_OK;
fail:
    *child = NULL; /* first: it may lie in the module's state */
    sl_module_destroy(module);
    return status;
}

void *sl_module_state(const sl_module *module)
{
    return module->state;
}

const char *sl_module_type(const sl_module *module)
{
    return module->ops->type;
}

int sl_module_child_count(const sl_module *module)
{
    return module->child_count;
}

sl_module *sl_module_child(const sl_module *module, int index)
{
    return module->children[index];
}

int64_t sli_module_elements(const sl_module *module, sl_parameter_kind kind)
{
    int64_t elements = 0;
    for (int i = 0; i < module->parameter_count; i++)
        if (module->parameters[i]->kind == kind)
            elements += sl_shape_count(&module->parameters[i]->shape);
    for (int i = 0; i < module->child_count; i++)
        elements += sli_module_elements(module->children[i], kind);
    return elements;
}

int64_t sli_module_table_elements(const sl_module *module)
{
    int64_t elements = 0;
    for (int i = 0; i < module->parameter_count; i++)
        if (module->parameters[i]->is_table && sli_parameter_is_trained(module->parameters[i]))
            elements += sl_shape_count(&module->parameters[i]->shape);
    for (int i = 0; i < module->child_count; i++)
        elements += sli_module_table_elements(module->children[i]);
    return elements;
}

int64_t sli_parameter_value_bytes(const sl_parameter *parameter, sl_precision precision)
{
    sl_dtype dtype = sli_parameter_dtype(parameter, precision);
    bool has_copy = precision == SL_PRECISION_BF16 && dtype == SL_F32 &&
                    sli_parameter_is_in_products(parameter);
    size_t each = sl_dtype_bytes(dtype) + (has_copy ? sl_dtype_bytes(SL_BF16) : 0);
    return sl_shape_count(&parameter->shape) * (int64_t)each;
}

int64_t sli_module_value_bytes(const sl_module *module, sl_precision precision)
{
    int64_t bytes = 0;
    for (int i = 0; i < module->parameter_count; i++)
        bytes += sli_parameter_value_bytes(module->parameters[i], precision);
    for (int i = 0; i < module->child_count; i++)
        bytes += sli_module_value_bytes(module->children[i], precision);
    return bytes;
}

int64_t sli_input_saved_bytes(const sl_module *module, const sl_shape *in)
{
    (void)module;
    return sl_shape_count(in) * (int64_t)sizeof(float);
}

int64_t sli_module_cached_bytes(const sl_module *module, int64_t rows, sl_precision precision)
{
    int64_t copies = precision == SL_PRECISION_BF16 ? module->operand_columns : 0;
    return rows *
           (module->cached_columns * (int64_t)sizeof(float) + copies * (int64_t)sizeof(uint16_t));
}

int64_t sli_module_exact_bytes(const sl_module *module, int64_t rows)
{
    int64_t bytes = rows * module->exact_columns * (int64_t)sizeof(float);
    for (int i = 0; i < module->child_count; i++)
        bytes += sli_module_exact_bytes(module->children[i], rows);
    return bytes;
}

int64_t sl_module_parameter_elements(const sl_module *module)
{
    return sli_module_elements(module, SL_PARAMETER_TRAINED) +
           sli_module_elements(module, SL_PARAMETER_FROZEN);
}

void sl_module_set_evaluation(sl_module *module, bool evaluation)
{
    module->is_in_evaluation = evaluation;
    for (int i = 0; i < module->child_count; i++)
        sl_module_set_evaluation(module->children[i], evaluation);
}

bool sl_module_is_training(const sl_module *module, const sl_pass *pass)
{
    return pass->options.training && !module->is_in_evaluation;
}

/* A tied parameter's module freezes what it is tied to. */
static sl_status freeze_tied(sl_parameter *tied, void *arg)
{
    const sl_module *frozen = arg;
    uint32_t number = tied->module->number;
    if (number >= frozen->number && number < frozen->modules_end)
        tied->tied_to->kind = SL_PARAMETER_FROZEN;
    return SL_OK;
}

static void freeze_below(sl_module *module)
{
    for (int i = 0; i < module->parameter_count; i++)
        if (module->parameters[i]->kind == SL_PARAMETER_TRAINED)
            module->parameters[i]->kind = SL_PARAMETER_FROZEN;
    for (int i = 0; i < module->child_count; i++)
        freeze_below(module->children[i]);
}

sl_status sl_module_freeze(sl_module *module)
{
    if (atomic_load(&sli_module_root(module)->sets) > 0)
        return sl_error(SL_ERR_INVALID, "%s: a model in use cannot be frozen: " IN_USE_ADVICE,
                        module->ops->type);
    freeze_below(module);
    return sli_module_for_each_tie(sli_module_root(module), freeze_tied, module);
}
