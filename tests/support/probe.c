#include "probe.h"

#include "check.h"

static sl_status probe_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    probe *p = sl_module_state(module);
    int call = atomic_fetch_add(&p->forwards, 1) + 1;
    if (p->on_forward)
        p->on_forward(p, call);
    if (call == p->fail_forward)
        return sl_error(SL_ERR_NUMERIC, "the probe fails in forward %d", call);
    if (p->gives_nothing)
        return SL_OK;
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, sl_tensor_dtype(in),
                            sl_tensor_shape(in), out));
    sl_status status = sl_tensor_copy(*out, in);
    if (status == SL_OK)
        status = sl_pass_save_alias(pass, in);
    if (status != SL_OK)
        sl_tensor_destroy(out);
    return status;
}

static sl_status probe_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in)
{
    probe *p = sl_module_state(module);
    int call = atomic_fetch_add(&p->backwards, 1) + 1;
    if (call == p->fail_backward)
        return sl_error(SL_ERR_NUMERIC, "the probe fails in backward %d", call);
    if (p->gives_nothing)
        return SL_OK;
    if (!p->leaves_on_pass) {
        sl_tensor *saved;
        SL_TRY(sl_pass_pop(pass, &saved));
        sl_tensor_destroy(&saved);
    }
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static void keep_state(void *state)
{
    (void)state; /* the test's */
}

sl_module *probe_module(probe *p)
{
    static const sl_module_ops ops = {
        .type = "Probe",
        .forward = probe_forward,
        .backward = probe_backward,
        .destroy_state = keep_state,
    };
    sl_module *module;
    check_ok(sl_module_create(&ops, p, &module));
    return module;
}
