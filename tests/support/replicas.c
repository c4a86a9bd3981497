#include "replicas.h"
#include "nn/module.h"

#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sl_status expect(bool condition, const char *what, ...)
{
    if (condition)
        return SL_OK;
    char text[256];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    return sl_error(SL_ERR_INTERNAL, "expected %s", text);
}

void check_ranks(sl_status (*fn)(sl_group *group, void *arg), void *arg, int ranks)
{
    sl_group_options options = {.timeout_seconds = 120, .check_collectives = true};
    check_ok(sl_spawn(fn, arg, ranks, &options));
}

/* ---- The module ------------------------------------------------------------------------- */

typedef struct toy_state {
    toy_options options;
    sl_parameter *w, *unused, *frozen, *buffer;
} toy_state;

static float factor(const toy_state *state)
{
    float w = sl_tensor_f32(sl_parameter_value(state->w))[0];
    return state->options.skips_w ? 1 : state->options.squared ? w * w : w;
}

static sl_status toy_forward(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    toy_state *state = sl_module_state(module);
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(*out)[i] = factor(state) * sl_tensor_f32(in)[i];
    if (state->buffer && sli_pass_keeps(pass))
        sl_tensor_f32(sl_parameter_value(state->buffer))[0] += 1;
    sl_status status = sl_pass_save_alias(pass, in);
    if (status != SL_OK)
        sl_tensor_destroy(out);
    return status;
}

static sl_status toy_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                              sl_tensor **grad_in)
{
    toy_state *state = sl_module_state(module);
    sl_tensor *in;
    SL_TRY(sl_pass_pop(pass, &in));
    float sum = 0, slope = 1, beta;
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sum += sl_tensor_f32(in)[i] * sl_tensor_f32(grad_out)[i];
    if (state->options.squared)
        slope = 2 * sl_tensor_f32(sl_parameter_value(state->w))[0];
    if (!state->options.skips_w) {
        float *grad = sl_tensor_f32(sli_parameter_grad_accumulate(state->w, &beta));
        grad[0] = slope * sum + (beta == 0 ? 0 : grad[0]);
    }
    sl_tensor_destroy(&in);
    for (int64_t i = 0; i < sl_tensor_count(grad_out); i++)
        sl_tensor_f32(grad_out)[i] *= factor(state);
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static const sl_module_ops toy_ops = {.type = "Toy",
                                      .forward = toy_forward,
                                      .backward = toy_backward};

static void declare(sl_module *module, const char *name, sl_parameter_kind kind, int64_t size,
                    float value, sl_parameter **out)
{
    sl_parameter_spec spec = {
        .name = name, .kind = kind, .shape = sl_shape_1d(size), .low = value, .high = value};
    if (sl_module_add_parameter(module, &spec, out) != SL_OK)
        abort();
}

sl_module *toy_module(const toy_options *options)
{
    toy_state *state = calloc(1, sizeof *state);
    sl_module *module;
    if (!state)
        abort();
    state->options = *options;
    if (sl_module_create(&toy_ops, state, &module) != SL_OK)
        abort();
    declare(module, "w", SL_PARAMETER_TRAINED, 1, options->w == 0 ? 1 : options->w, &state->w);
    if (options->with_unused)
        declare(module, "unused", SL_PARAMETER_TRAINED,
                options->unused_size ? options->unused_size : 1, 1, &state->unused);
    if (options->with_frozen)
        declare(module, "frozen", SL_PARAMETER_FROZEN, 2, options->w, &state->frozen);
    if (options->with_buffer)
        declare(module, "buffer", SL_PARAMETER_BUFFER, 1, options->w, &state->buffer);
    return module;
}

/* ---- A replica -------------------------------------------------------------------------- */

sl_status toy_open(sl_group *group, const toy_options *options, const sl_ddp_options *ddp, toy *out)
{
    *out = (toy){0};
    SL_TRY(sl_device_create_cpu(1, &out->device));
    out->module = toy_module(options);
    sl_parameter_set_options placement = {.device = out->device};
    sl_status status = sl_parameter_set_create(out->module, 0, 0, &placement, &out->set);
    sl_ddp_options filled = ddp ? *ddp : (sl_ddp_options){0};
    filled.group = group;
    filled.module = out->module;
    filled.parameters = out->set;
    if (status == SL_OK)
        status = sl_ddp_create(&filled, &out->ddp);
    if (status != SL_OK)
        toy_destroy(out);
    return status;
}

void toy_destroy(toy *replica)
{
    sl_ddp_destroy(&replica->ddp);
    sl_parameter_set_destroy(&replica->set);
    sl_module_destroy(&replica->module);
    sl_device_destroy(&replica->device);
}

sl_status toy_step(toy *replica, float x)
{
    sl_shape shape = sl_shape_1d(1);
    sl_pass_options options = {.device = replica->device,
                               .training = true,
                               .keep = true,
                               .step = replica->steps++};
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *out = NULL, *in = NULL;
    float one = 1;
    SL_TRY(sl_pass_create(&options, &pass));
    SL_TRY(sl_tensor_create(replica->device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &in));
    SL_TRY(sl_tensor_write(in, &x));
    SL_TRY(sl_ddp_forward(replica->ddp, pass, in, &out));
    SL_TRY(sl_tensor_write(out, &one));
    return sl_ddp_backward(replica->ddp, pass, out, NULL);
}

static sl_parameter *find(const toy *replica, const char *name)
{
    for (int i = 0; i < sl_parameter_set_count(replica->set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(replica->set, i);
        if (strcmp(sl_parameter_name(parameter), name) == 0)
            return parameter;
    }
    abort();
}

float toy_grad(const toy *replica, const char *name)
{
    sl_tensor *grad;
    if (sl_parameter_grad(find(replica, name), &grad) != SL_OK)
        abort();
    return sl_tensor_f32(grad)[0];
}

float toy_value(const toy *replica, const char *name)
{
    return sl_tensor_f32(sl_parameter_value(find(replica, name)))[0];
}
