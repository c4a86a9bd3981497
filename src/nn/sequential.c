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

sl_status sli_sequential_create(sl_module **out)
{
    return sl_module_create(&sequential_ops, NULL, out);
}

sl_status sl_sequential_append(sl_module **sequential, sl_status created, sl_module **child)
{
    char name[16];
    if (created == SL_OK && !*sequential) {
        created = sli_sequential_create(sequential);
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
