/* Running a module: what comes before and after its forward and backward. */
#include "nn/module.h"

#include "tensor/tensor.h"

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
    if (!parent || !sli_module_is_sequential(parent))
        return false;
    return parent->children[side < 0 ? 0 : parent->child_count - 1] != module;
}

bool sli_module_passes_on_bf16(const sl_module *module, const sl_pass *pass)
{
    return sli_pass_stores_bf16(pass) && has_neighbour(module, 1);
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
    const sl_tensor *outer_wide = pass->wide, *outer_narrow = pass->narrow;
    SL_TRY(widen(pass, in, &wide));
    pass->wide = wide;
    pass->narrow = in;
    sl_status status = module->ops->forward(module, pass, wide ? wide : in, out);
    pass->wide = outer_wide;
    pass->narrow = outer_narrow;
    sl_tensor_destroy(&wide);
    SL_TRY(status);
    return *out ? convert_for(module, pass, 1, out) : missing_result("output");
}

sl_status sl_module_forward(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    *out = NULL;
    sl_shape shape;
    sli_pass_enter(pass);
    sl_status status;
    SL_TRY_OR_FAIL(check_call(pass, "input", in, module->ops->forward));
    if ((pass->options.caches || pass->slices) && !sl_module_can_continue(module))
        SL_TRY_OR_FAIL(sl_error(SL_ERR_UNSUPPORTED, "cannot run on a pass %s",
                                pass->slices ? "over a slice of rows" : "with a cache"));
    status = sl_module_output_shape(module, sl_tensor_shape(in), &shape);
    if (status != SL_OK)
        sli_pass_error_is_named(pass);
    SL_TRY_OR_FAIL(status);
    status = run_forward(module, pass, in, out);
    if (status != SL_OK)
        sl_tensor_destroy(out);

fail:
    return end_call(module, pass, status);
}

/* Runs backward; with `split` only backward_input, where the module has it. */
static sl_status run_backward(sl_module *module, sl_pass *pass, bool split, sl_tensor *grad_out,
                              sl_tensor **grad_in)
{
    const sl_module_ops *ops = module->ops;
    bool was_split = pass->is_split;
    sl_tensor *wide;
    SL_TRY(check_call(pass, "gradient", grad_out, ops->backward || ops->backward_input));
    if (module->takes_bf16_gradient && sli_pass_stores_bf16(pass))
        wide = NULL;
    else
        SL_TRY(widen(pass, grad_out, &wide));
    pass->is_split = split && ops->backward_input;
    sl_status status = (pass->is_split || !ops->backward
                            ? ops->backward_input
                            : ops->backward)(module, pass, wide ? wide : grad_out, grad_in);
    pass->is_split = was_split;
    sl_tensor_destroy(&wide);
    SL_TRY(status);
    if (!grad_in)
        return SL_OK;
    return *grad_in ? convert_for(module, pass, -1, grad_in)
                    : missing_result("gradient of its input");
}

/* Backward of a module that has only the two halves. What they defer is theirs, whatever other
 * modules have deferred before. */
static sl_status run_halves(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                            sl_tensor **grad_in)
{
    int count = pass->deferred_count, next = pass->deferred_next;
    pass->deferred_next = count;
    sl_status status;
    SL_TRY_OR_FAIL(run_backward(module, pass, true, grad_out, grad_in));
    status = module->ops->backward_weight(module, pass);
fail:
    while (pass->deferred_next < pass->deferred_count)
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
    sl_status status;
    SL_TRY_OR_FAIL(halves ? run_halves(module, pass, grad_out, grad_in)
                          : run_backward(module, pass, false, grad_out, grad_in));
    status = finish_backward(module, pass);
fail:
    if (status != SL_OK && grad_in)
        sl_tensor_destroy(grad_in);
    return end_call(module, pass, status);
}

sl_status sli_module_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
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

sl_status sli_module_backward_weight(sl_module *module, sl_pass *pass)
{
    sli_pass_enter(pass);
    sl_status status;
    if (module->ops->backward_weight)
        SL_TRY_OR_FAIL(module->ops->backward_weight(module, pass));
    status = finish_backward(module, pass);
fail:
    return end_call(module, pass, status);
}

sl_status sl_module_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    *out = *in;
    if (!module->ops->output_shape)
        return SL_OK;
    sl_status status = module->ops->output_shape(module, in, out);
    /* A sequential's error is that of one of its children, which is named already. */
    return sli_module_is_sequential(module) ? status : name_module(module, status);
}

int64_t sl_module_saved_bytes(const sl_module *module, const sl_shape *in)
{
    return module->ops->saved_bytes ? module->ops->saved_bytes(module, in) : 0;
}

int64_t sli_module_forward_bytes(const sl_module *module, const sl_shape *in, const sl_shape *out)
{
    return module->ops->forward_bytes
               ? module->ops->forward_bytes(module, in)
               : sl_module_saved_bytes(module, in) + sl_shape_count(out) * (int64_t)sizeof(float);
}

int64_t sl_module_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    return module->ops->deferred_bytes ? module->ops->deferred_bytes(module, in) : 0;
}

int64_t sli_module_halfway_bytes(const sl_module *module, const sl_shape *in)
{
    return module->ops->halfway_bytes
               ? module->ops->halfway_bytes(module, in)
               : sl_module_saved_bytes(module, in) + sl_module_deferred_bytes(module, in);
}

bool sl_module_can_continue(const sl_module *module)
{
    return module->ops->can_continue && module->ops->can_continue(module);
}

int64_t sl_module_flops(const sl_module *module, const sl_shape *in)
{
    return module->ops->flops ? module->ops->flops(module, in) : 0;
}
