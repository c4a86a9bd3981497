/* Sequential: children that run one after the other. */
#include "nn/module.h"

#include <inttypes.h>
#include <stdio.h>

static sl_status sequential_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                    sl_tensor **out)
{
    sl_tensor *current;
    SL_TRY(sl_tensor_alias(in, &current));
    for (int i = 0; i < module->child_count; i++) {
        sl_tensor *next;
        sl_status status = sl_module_forward(module->children[i], pass, current, &next);
        sl_tensor_destroy(&current); /* it lives on if the child saved it */
        SL_TRY(status);
        current = next;
    }
    *out = current;
    return SL_OK;
}

/* Goes backward through the children with sl_module_backward or sli_module_backward_input. */
static sl_status go_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                             sl_tensor **grad_in,
                             sl_status (*run)(sl_module *child, sl_pass *pass, sl_tensor *grad_out,
                                              sl_tensor **grad_in))
{
    sl_tensor *current;
    SL_TRY(sl_tensor_alias(grad_out, &current));
    for (int i = module->child_count - 1; i >= 0; i--) {
        sl_tensor *next = NULL;
        bool needed = i > 0 || grad_in;
        sl_status status = run(module->children[i], pass, current, needed ? &next : NULL);
        sl_tensor_destroy(&current);
        SL_TRY(status);
        current = next;
    }
    if (grad_in)
        *grad_in = current;
    else
        sl_tensor_destroy(&current);
    return SL_OK;
}

static sl_status sequential_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                     sl_tensor **grad_in)
{
    return go_backward(module, pass, grad_out, grad_in, sl_module_backward);
}

static sl_status sequential_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                           sl_tensor **grad_in)
{
    return go_backward(module, pass, grad_out, grad_in, sli_module_backward_input);
}

static sl_status sequential_backward_weight(sl_module *module, sl_pass *pass)
{
    for (int i = module->child_count - 1; i >= 0; i--)
        SL_TRY(sli_module_backward_weight(module->children[i], pass));
    return SL_OK;
}

static sl_status sequential_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    *out = *in;
    for (int i = 0; i < module->child_count; i++) {
        sl_shape next;
        SL_TRY(sl_module_output_shape(module->children[i], out, &next));
        *out = next;
    }
    return SL_OK;
}

/* Sums a figure over the children, each with the shape that reaches it. */
static int64_t sum_over_children(const sl_module *module, const sl_shape *in,
                                 int64_t (*figure)(const sl_module *child, const sl_shape *in))
{
    int64_t total = 0;
    sl_shape shape = *in;
    for (int i = 0; i < module->child_count; i++) {
        sl_shape next;
        total += figure(module->children[i], &shape);
        if (sl_module_output_shape(module->children[i], &shape, &next) != SL_OK)
            break;
        shape = next;
    }
    return total;
}

static int64_t sequential_saved_bytes(const sl_module *module, const sl_shape *in)
{
    return sum_over_children(module, in, sl_module_saved_bytes);
}

static int64_t sequential_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    return sum_over_children(module, in, sl_module_deferred_bytes);
}

static int64_t sequential_flops(const sl_module *module, const sl_shape *in)
{
    return sum_over_children(module, in, sl_module_flops);
}

static bool sequential_can_continue(const sl_module *module)
{
    for (int i = 0; i < module->child_count; i++)
        if (!sl_module_can_continue(module->children[i]))
            return false;
    return true;
}

static const sl_module_ops sequential_ops = {
    .type = "Sequential",
    .forward = sequential_forward,
    .backward = sequential_backward,
    .backward_input = sequential_backward_input,
    .backward_weight = sequential_backward_weight,
    .output_shape = sequential_output_shape,
    .saved_bytes = sequential_saved_bytes,
    .deferred_bytes = sequential_deferred_bytes,
    .flops = sequential_flops,
    .can_continue = sequential_can_continue,
};

bool sli_module_is_sequential(const sl_module *module)
{
    return module->ops == &sequential_ops;
}

static bool is_repeated(sl_module *const *modules, int index)
{
    for (int i = 0; i < index; i++)
        if (modules[i] == modules[index])
            return true;
    return false;
}

/* Checks all before it takes one: a module that cannot be added may be freed. */
static sl_status check_modules(sl_module *const *modules, int count)
{
    for (int i = 0; i < count; i++) {
        if (!modules[i])
            return sl_error(SL_ERR_INVALID, "Sequential: module %d is NULL", i);
        if (modules[i]->parent || is_repeated(modules, i))
            return sl_error(SL_ERR_INVALID,
                            "Sequential: module with duplicate children is not supported");
    }
    return SL_OK;
}

/* Destroys those that a parent or a parameter set does not hold. All are found first: one may lie
 * in another, and be freed with it. */
static void destroy_own(sl_module *const *modules, int first, int count)
{
    sl_module *chain = NULL; /* linked by `parent`, which they do not have */
    for (int i = first; i < count; i++) {
        sl_module *module = modules[i];
        if (module && !is_repeated(modules, i) && !module->parent && module->sets == 0) {
            module->parent = chain;
            chain = module;
        }
    }
    while (chain) {
        sl_module *module = chain;
        chain = module->parent;
        sl_module_destroy(&module);
    }
}

sl_status sli_sequential_create(sl_module *const *modules, int count, sl_module **out)
{
    *out = NULL;
    int taken = 0;
    sl_module *sequential = NULL;
    sl_status status;
    SLI_TRY_OR_FAIL(check_modules(modules, count));
    SLI_TRY_OR_FAIL(sl_module_create(&sequential_ops, NULL, &sequential));
    while (taken < count) {
        char name[16];
        snprintf(name, sizeof name, "%d", taken);
        SLI_TRY_OR_FAIL(sli_module_add_child(sequential, name, modules[taken++]));
    }
    *out = sequential;
    return SL_OK;

fail:
    destroy_own(modules, taken, count);
    sl_module_destroy(&sequential);
    return status;
}

sl_status sl_sequential_append(sl_module **sequential, sl_status created, sl_module **child)
{
    char name[16];
    if (created == SL_OK && !*sequential) {
        created = sl_module_create(&sequential_ops, NULL, sequential);
        if (created != SL_OK)
            sl_module_destroy(child);
    }
    snprintf(name, sizeof name, "%d", *sequential ? (*sequential)->child_count : 0);
    return sl_module_append(sequential, name, created, child);
}

/* ---- Do the modules fit together? ------------------------------------------------------- */

/* Answered before anything runs, by the widths that modules expect and give. A module that says
 * nothing of them is not checked, nor is what follows it, until a module gives a width again. */

/* How wide the output is after the modules seen so far. */
typedef struct walk {
    int64_t width;          /* 0: not known */
    const sl_module *giver; /* the module that gave it */
} walk;

static sl_status width_mismatch(const walk *walked, const sl_module *module, int64_t expected)
{
    char path[SLI_PATH_BYTES], giver[SLI_PATH_BYTES];
    return sl_error(SL_ERR_INVALID,
                    "%s (%s) expects inputs of width %" PRId64 ", but %s (%s) gives %" PRId64,
                    sli_module_path(module, path), module->ops->type, expected,
                    sli_module_path(walked->giver, giver), walked->giver->ops->type, walked->width);
}

static sl_status follow_widths(walk *walked, const sl_module *module)
{
    if (sli_module_is_sequential(module)) {
        for (int i = 0; i < module->child_count; i++)
            SL_TRY(follow_widths(walked, module->children[i]));
        return SL_OK;
    }
    if (!module->ops->widths) {
        walked->width = 0;
        return SL_OK;
    }
    int64_t in = 0, out = 0;
    module->ops->widths(module, &in, &out);
    if (in > 0 && walked->width > 0 && in != walked->width)
        return width_mismatch(walked, module, in);
    if (out > 0)
        *walked = (walk){out, module};
    else if (walked->width == 0 && in > 0)
        *walked = (walk){in, module};
    return SL_OK;
}

sl_status sli_module_check_widths(const sl_module *sequential)
{
    walk walked = {0, NULL};
    return follow_widths(&walked, sequential);
}
