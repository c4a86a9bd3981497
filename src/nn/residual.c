/* Residual: y = x + branch(x). Nothing is saved but what the branch saves. */
#include "nn/layers.h"
#include "nn/module.h"

static sl_module *branch_of(const sl_module *module)
{
    return module->children[0];
}

/* sum = x + residual; `sum` may be `residual`. Without dropout the kernel of the layers only adds.
 */
static sl_status add(const sl_pass *pass, const sl_tensor *x, const sl_tensor *residual,
                     sl_tensor *sum)
{
    const sli_add_dropout arguments = {.rows = sl_tensor_rows(x),
                                       .width = sl_tensor_columns(x),
                                       .x = sl_tensor_f32(x),
                                       .residual = sl_tensor_f32(residual),
                                       .out = sl_tensor_f32(sum)};
    return sli_device_add_dropout(sl_pass_device(pass), &arguments);
}

static sl_status residual_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    char expected[SL_SHAPE_TEXT_BYTES], got[SL_SHAPE_TEXT_BYTES];
    SL_TRY(sl_module_output_shape(branch_of(module), in, out));
    if (sl_shape_equal(out, in))
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "the branch must keep the input's shape %s, got %s",
                    sl_shape_text(in, expected), sl_shape_text(out, got));
}

static sl_status residual_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                  sl_tensor **out)
{
    sl_tensor *branch;
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    SL_TRY(sl_module_forward(branch_of(module), pass, in, &branch));
    sl_status status;
    SL_TRY_OR_FAIL(sli_check_dtype("the branch's output", branch, SL_F32));
    SL_TRY_OR_FAIL(sli_pass_create_output(pass, sl_tensor_shape(in), out));
    status = add(pass, branch, in, *out);

fail:
    sl_tensor_destroy(&branch);
    return status;
}

/* Goes backward with sl_module_backward or sli_module_backward_input, which may overwrite grad_out.
 */
static sl_status go_backward(const sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                             sl_tensor **grad_in,
                             sl_status (*run)(sl_module *child, sl_pass *pass, sl_tensor *grad_out,
                                              sl_tensor **grad_in))
{
    sl_tensor *grad_branch;
    if (!grad_in)
        return run(branch_of(module), pass, grad_out, NULL);
    SL_TRY(sli_pass_create_output(pass, sl_tensor_shape(grad_out), grad_in));
    SL_TRY(sl_tensor_copy(*grad_in, grad_out));
    SL_TRY(run(branch_of(module), pass, grad_out, &grad_branch));
    sl_status status = add(pass, grad_branch, *grad_in, *grad_in);
    sl_tensor_destroy(&grad_branch);
    return status;
}

static sl_status residual_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                   sl_tensor **grad_in)
{
    return go_backward(module, pass, grad_out, grad_in, sl_module_backward);
}

static sl_status residual_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                         sl_tensor **grad_in)
{
    return go_backward(module, pass, grad_out, grad_in, sli_module_backward_input);
}

static sl_status residual_backward_weight(sl_module *module, sl_pass *pass)
{
    return sli_module_backward_weight(branch_of(module), pass);
}

static int64_t residual_saved_bytes(const sl_module *module, const sl_shape *in)
{
    return sl_module_saved_bytes(branch_of(module), in);
}

static int64_t residual_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    return sl_module_deferred_bytes(branch_of(module), in);
}

static int64_t residual_flops(const sl_module *module, const sl_shape *in)
{
    return sl_module_flops(branch_of(module), in);
}

static bool residual_can_continue(const sl_module *module)
{
    return sl_module_can_continue(branch_of(module));
}

static const sl_module_ops residual_ops = {
    .type = "Residual",
    .forward = residual_forward,
    .backward = residual_backward,
    .backward_input = residual_backward_input,
    .backward_weight = residual_backward_weight,
    .output_shape = residual_output_shape,
    .saved_bytes = residual_saved_bytes,
    .deferred_bytes = residual_deferred_bytes,
    .flops = residual_flops,
    .widths = sli_width_kept,
    .can_continue = residual_can_continue,
};

sl_status sl_residual_create(sl_status created, sl_module **branch, sl_module **out)
{
    *out = NULL;
    SL_TRY(created);
    sl_status status = sl_module_create(&residual_ops, NULL, out);
    if (status != SL_OK)
        sl_module_destroy(branch);
    SL_TRY(status);
    return sl_module_append(out, "branch", created, branch);
}
