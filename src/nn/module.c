/* Modules: the tree that they form, and running one of them. */
#include "nn/module.h"

#include "core/memory.h"
#include "tensor/tensor.h"

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
        return sl_error(SL_ERR_MEMORY, "sl_module_create: no memory for a %s", ops->type);
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
    for (const sl_module *at = module; at->parent; at = at->parent)
        if (at != at->parent->children[at->parent->child_count - 1]) {
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
        return sl_error(SL_ERR_MEMORY, "sl_module_add_child: no memory for the name \"%s\"", name);
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

sl_status sl_module_add_child(sl_module *module, const char *name, sl_module *child)
{
    if (!child)
        return sl_error(SL_ERR_INVALID, "%s: child \"%s\" is NULL", module->ops->type, name);
    /* None of these is ours to free: one belongs to its parent, one holds `module`, one's
     * parameters are a set's. */
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

sl_status sl_module_append(sl_module **module, const char *name, sl_status created,
                           sl_module **child)
{
    sl_status status = created == SL_OK ? sl_module_add_child(*module, name, *child) : created;
    if (status == SL_OK)
        return SL_OK;
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

int64_t sli_module_product_elements(const sl_module *module)
{
    int64_t elements = 0;
    for (int i = 0; i < module->parameter_count; i++)
        if (sli_parameter_is_in_products(module->parameters[i]))
            elements += sl_shape_count(&module->parameters[i]->shape);
    for (int i = 0; i < module->child_count; i++)
        elements += sli_module_product_elements(module->children[i]);
    return elements;
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

/* ---- Running ---------------------------------------------------------------------------- */

/* Puts the module's path and type before an error's text. */
static sl_status name_module(const sl_module *module, sl_status status)
{
    char path[SLI_PATH_BYTES];
    sli_module_path(module, path);
    if (*path)
        return sl_error_context(status, "%s (%s): ", path, module->ops->type);
    return sl_error_context(status, "%s: ", module->ops->type);
}

/* Ends a call that sli_pass_enter began. An error's text names the innermost module only. */
static sl_status end_call(const sl_module *module, sl_pass *pass, sl_status status)
{
    return sli_pass_leave(pass, status) ? name_module(module, status) : status;
}

static sl_status check_call(const sl_pass *pass, const char *what, const sl_tensor *tensor,
                            bool can_run)
{
    if (!can_run)
        return sl_error(SL_ERR_UNSUPPORTED, "runs only inside its parent");
    if (!tensor)
        return sl_error(SL_ERR_INVALID, "there is no %s", what);
    if (sl_tensor_device(tensor) != sl_pass_device(pass))
        return sl_error(SL_ERR_INVALID, "the %s is on %s, the pass on %s", what,
                        sl_device_name(sl_tensor_device(tensor)),
                        sl_device_name(sl_pass_device(pass)));
    return SL_OK;
}

static sl_status missing_result(const char *what)
{
    return sl_error(SL_ERR_INVALID, "gave no %s, and reported no error", what);
}

/* Between two modules of a sequential, where a pipe may cut it, tensors are bf16 on a bf16 pass, so
 * that a cut changes nothing. Modules themselves work on f32. */

/* Is the module a sequential's, with a neighbour before it (-1) or after it (1)? */
static bool has_neighbour(const sl_module *module, int side)
{
    const sl_module *parent = module->parent;
    if (!parent || !sl_module_is_sequential(parent))
        return false;
    return parent->children[side < 0 ? 0 : parent->child_count - 1] != module;
}

/* Makes of *tensor what the neighbour on this side gets. */
static sl_status convert_for(const sl_module *module, const sl_pass *pass, int side,
                             sl_tensor **tensor)
{
    if (!sli_pass_is_bf16(pass) || !has_neighbour(module, side) ||
        sl_tensor_dtype(*tensor) != SL_F32)
        return SL_OK;
    sl_tensor *wide = *tensor;
    sl_status status = sli_tensor_as(wide, SL_BF16, SL_MEMORY_ACTIVATIONS, tensor);
    sl_tensor_destroy(&wide);
    return status;
}

/* Modules take a bf16 tensor as a copy in f32; *out is NULL for others, which they take as it is.
 */
static sl_status widen(const sl_pass *pass, const sl_tensor *tensor, sl_tensor **out)
{
    *out = NULL;
    if (sli_pass_is_bf16(pass) && sl_tensor_dtype(tensor) == SL_BF16)
        return sli_tensor_as(tensor, SL_F32, SL_MEMORY_WORKSPACE, out);
    return SL_OK;
}

static sl_status run_forward(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    sl_tensor *wide;
    SL_TRY(widen(pass, in, &wide));
    sl_status status = module->ops->forward(module, pass, wide ? wide : in, out);
    sl_tensor_destroy(&wide);
    if (status == SL_OK && !*out)
        status = missing_result("output");
    return status == SL_OK ? convert_for(module, pass, 1, out) : status;
}

sl_status sl_module_forward(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    *out = NULL;
    sl_shape shape;
    sli_pass_enter(pass);
    sl_status status = check_call(pass, "input", in, module->ops->forward);
    if (status == SL_OK && pass->options.cache && !sl_module_can_continue(module))
        status = sl_error(SL_ERR_UNSUPPORTED, "cannot run on a pass with a cache");
    if (status != SL_OK)
        return end_call(module, pass, status);
    status = sl_module_output_shape(module, sl_tensor_shape(in), &shape);
    if (status == SL_OK)
        status = run_forward(module, pass, in, out);
    else
        sli_pass_error_is_named(pass);
    return end_call(module, pass, status);
}

/* Runs backward; with `split` only backward_input, where the module has it. */
static sl_status run_backward(sl_module *module, sl_pass *pass, bool split, sl_tensor *grad_out,
                              sl_tensor **grad_in)
{
    const sl_module_ops *ops = module->ops;
    bool was_split = pass->is_split;
    sl_status status = check_call(pass, "gradient", grad_out, ops->backward || ops->backward_input);
    if (status != SL_OK)
        return status;
    sl_tensor *wide;
    SL_TRY(widen(pass, grad_out, &wide));
    pass->is_split = split && ops->backward_input;
    status = (pass->is_split || !ops->backward
                  ? ops->backward_input
                  : ops->backward)(module, pass, wide ? wide : grad_out, grad_in);
    pass->is_split = was_split;
    sl_tensor_destroy(&wide);
    if (status == SL_OK && grad_in && !*grad_in)
        status = missing_result("gradient of its input");
    return status == SL_OK && grad_in ? convert_for(module, pass, -1, grad_in) : status;
}

/* Backward of a module that has only the two halves. What they defer is theirs, whatever other
 * modules have deferred before. */
static sl_status run_halves(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                            sl_tensor **grad_in)
{
    int count = pass->deferred_count, next = pass->deferred_next;
    pass->deferred_next = count;
    sl_status status = run_backward(module, pass, true, grad_out, grad_in);
    if (status == SL_OK)
        status = module->ops->backward_weight(module, pass);
    while (pass->deferred_next < pass->deferred_count) /* after an error */
        sl_tensor_destroy(&pass->deferred[pass->deferred_next++]);
    pass->deferred_count = count;
    pass->deferred_next = next;
    return status;
}

/* The module's gradients of this pass are there. In a pipe no root goes backward: the pipe sums the
 * gradients of tied parameters itself. */
static sl_status finish_backward(const sl_module *module, const sl_pass *pass)
{
    SL_TRY(sli_pass_went_backward(pass, module));
    return module->parent ? SL_OK : sli_module_sum_tied(module);
}

sl_status sl_module_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                             sl_tensor **grad_in)
{
    if (grad_in)
        *grad_in = NULL;
    sli_pass_enter(pass);
    bool halves = !module->ops->backward && module->ops->backward_input;
    sl_status status = halves ? run_halves(module, pass, grad_out, grad_in)
                              : run_backward(module, pass, false, grad_out, grad_in);
    if (status == SL_OK)
        status = finish_backward(module, pass);
    if (status != SL_OK && grad_in)
        sl_tensor_destroy(grad_in);
    return end_call(module, pass, status);
}

sl_status sl_module_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                   sl_tensor **grad_in)
{
    if (grad_in)
        *grad_in = NULL;
    sli_pass_enter(pass);
    sl_status status = run_backward(module, pass, true, grad_out, grad_in);
    if (status != SL_OK && grad_in)
        sl_tensor_destroy(grad_in);
    return end_call(module, pass, status);
}

sl_status sl_module_backward_weight(sl_module *module, sl_pass *pass)
{
    sli_pass_enter(pass);
    sl_status status = SL_OK;
    if (module->ops->backward_weight)
        status = module->ops->backward_weight(module, pass);
    if (status == SL_OK)
        status = finish_backward(module, pass);
    return end_call(module, pass, status);
}

sl_status sl_module_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    *out = *in;
    if (!module->ops->output_shape)
        return SL_OK;
    sl_status status = module->ops->output_shape(module, in, out);
    /* A sequential's error is that of one of its children, which is named already. */
    return sl_module_is_sequential(module) ? status : name_module(module, status);
}

int64_t sl_module_saved_bytes(const sl_module *module, const sl_shape *in)
{
    return module->ops->saved_bytes ? module->ops->saved_bytes(module, in) : 0;
}

int64_t sl_module_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    return module->ops->deferred_bytes ? module->ops->deferred_bytes(module, in) : 0;
}

bool sl_module_can_continue(const sl_module *module)
{
    return module->ops->can_continue && module->ops->can_continue(module);
}

int64_t sl_module_flops(const sl_module *module, const sl_shape *in)
{
    return module->ops->flops ? module->ops->flops(module, in) : 0;
}
