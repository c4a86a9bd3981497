/* The feed-forward network of Llama: down_proj(silu(gate_proj(x)) * up_proj(x)).
 *
 * Saved for backward, oldest first, in floats per position (D width, F hidden):
 *
 *   x         D   as products take it, where gate or up trains
 *   gate, up  F, F
 *   gated     F   silu(gate) * up, as products take it, where down trains */
#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct swiglu {
    int64_t width, hidden;
    const sli_linear *gate, *up; /* [D] -> [F] */
    const sli_linear *down;      /* [F] -> [D] */
} swiglu;

/* The tensors of a call; what it has not saved or given to its caller is freed at its end. */
typedef struct call_tensors {
    sl_tensor *in, *gate, *up, *gated;
    sl_tensor *operand; /* `gated`, as products take it */
    sl_tensor *grad_gated, *grad_gate, *grad_up;
} call_tensors;

static void call_clear(call_tensors *tensors)
{
    sl_tensor_destroy(&tensors->in);
    sl_tensor_destroy(&tensors->gate);
    sl_tensor_destroy(&tensors->up);
    sl_tensor_destroy(&tensors->gated);
    sl_tensor_destroy(&tensors->operand);
    sl_tensor_destroy(&tensors->grad_gated);
    sl_tensor_destroy(&tensors->grad_gate);
    sl_tensor_destroy(&tensors->grad_up);
}

static sl_shape hidden_shape(const swiglu *self, const sl_shape *in)
{
    sl_shape shape = *in;
    shape.size[shape.dims - 1] = self->hidden;
    return shape;
}

static bool keeps_x(const swiglu *self)
{
    return sli_linear_trains(self->gate) || sli_linear_trains(self->up);
}

/* ---- Forward ---------------------------------------------------------------------------- */

/* tensors->gated from in; saves in, gate and up. */
static sl_status run_gate(const swiglu *self, sl_pass *pass, const sl_tensor *in,
                          call_tensors *tensors)
{
    sl_shape shape = hidden_shape(self, sl_tensor_shape(in));
    SL_TRY(sli_pass_operand(pass, in, pass->options.keep && keeps_x(self), &tensors->in));
    SL_TRY(sli_pass_create_tensor(pass, &shape, &tensors->gate));
    SL_TRY(sli_pass_create_tensor(pass, &shape, &tensors->up));
    SL_TRY(sli_pass_create_tensor(pass, &shape, &tensors->gated));
    SL_TRY(sli_linear_forward(self->gate, pass, tensors->in, NULL, tensors->gate));
    SL_TRY(sli_linear_forward(self->up, pass, tensors->in, NULL, tensors->up));
    const sli_swiglu arguments = {.rows = sl_tensor_rows(tensors->gate),
                                  .width = self->hidden,
                                  .gate = sl_tensor_f32(tensors->gate),
                                  .up = sl_tensor_f32(tensors->up),
                                  .out = sl_tensor_f32(tensors->gated)};
    SL_TRY(sli_device_swiglu(sl_pass_device(pass), &arguments));
    if (keeps_x(self))
        SL_TRY(sli_pass_save_exact(pass, &tensors->in));
    SL_TRY(sl_pass_save(pass, &tensors->gate));
    return sl_pass_save(pass, &tensors->up);
}

/* *out from tensors->gated, which it saves. */
static sl_status run_down(const swiglu *self, sl_pass *pass, const sl_shape *shape,
                          sl_memory_category category, call_tensors *tensors, sl_tensor **out)
{
    bool keep = pass->options.keep && sli_linear_trains(self->down);
    SL_TRY(sli_pass_operand(pass, tensors->gated, keep, &tensors->operand));
    sl_tensor_destroy(&tensors->gated);
    SL_TRY(sl_tensor_create(sl_pass_device(pass), category, SL_F32, shape, out));
    SL_TRY(sli_linear_forward(self->down, pass, tensors->operand, NULL, *out));
    return keep ? sli_pass_save_exact(pass, &tensors->operand) : SL_OK;
}

sl_status sli_swiglu_run_forward(const sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_memory_category category, sl_tensor **out)
{
    const swiglu *self = sl_module_state(module);
    call_tensors tensors = {0};
    sl_status status;
    SL_TRY_OR_FAIL(run_gate(self, pass, in, &tensors));
    status = run_down(self, pass, sl_tensor_shape(in), category, &tensors, out);
fail:
    call_clear(&tensors);
    return status;
}

static sl_status swiglu_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    sl_memory_category category =
        sli_pass_is_bf16(pass) ? SL_MEMORY_WORKSPACE : SL_MEMORY_ACTIVATIONS;
    return sli_swiglu_run_forward(module, pass, in, category, out);
}

/* ---- Backward --------------------------------------------------------------------------- */

static sl_status pop_saved(const swiglu *self, sl_pass *pass, call_tensors *tensors)
{
    if (sli_linear_trains(self->down))
        SL_TRY(sli_pass_pop_stored(pass, &tensors->operand));
    SL_TRY(sl_pass_pop(pass, &tensors->up));
    SL_TRY(sl_pass_pop(pass, &tensors->gate));
    return keeps_x(self) ? sli_pass_pop_stored(pass, &tensors->in) : SL_OK;
}

/* Through the last product: tensors->grad_gated. */
static sl_status backward_down(const swiglu *self, sl_pass *pass, const sl_tensor *grad_out,
                               call_tensors *tensors)
{
    SL_TRY(sl_tensor_create(sl_tensor_device(grad_out), SL_MEMORY_WORKSPACE, SL_F32,
                            sl_tensor_shape(tensors->gate), &tensors->grad_gated));
    SL_TRY(sli_linear_backward_products(self->down, pass, grad_out, tensors->operand, 0.0f,
                                        tensors->grad_gated));
    sl_tensor_destroy(&tensors->operand);
    return SL_OK;
}

/* Through the gate: tensors->grad_gate and grad_up. */
static sl_status backward_gate(const swiglu *self, const sl_pass *pass, call_tensors *tensors)
{
    SL_TRY(sli_pass_create_gradient(pass, tensors->gate, &tensors->grad_gate));
    SL_TRY(sli_pass_create_gradient(pass, tensors->up, &tensors->grad_up));
    const sli_swiglu_backward arguments = {.rows = sl_tensor_rows(tensors->gate),
                                           .width = self->hidden,
                                           .gate = sl_tensor_f32(tensors->gate),
                                           .up = sl_tensor_f32(tensors->up),
                                           .grad_out = sl_tensor_f32(tensors->grad_gated),
                                           .grad_gate = sl_tensor_f32(tensors->grad_gate),
                                           .grad_up = sl_tensor_f32(tensors->grad_up)};
    SL_TRY(sli_device_swiglu_backward(sl_pass_device(pass), &arguments));
    sl_tensor_destroy(&tensors->grad_gated);
    sl_tensor_destroy(&tensors->gate);
    sl_tensor_destroy(&tensors->up);
    return SL_OK;
}

static sl_status run_backward(const swiglu *self, sl_pass *pass, const sl_tensor *grad_out,
                              float beta, sl_tensor *grad_in, call_tensors *tensors)
{
    SL_TRY(pop_saved(self, pass, tensors));
    sl_shape shape = *sl_tensor_shape(tensors->gate); /* the input's, but for the width */
    shape.size[shape.dims - 1] = self->width;
    SL_TRY(sli_check_grad(grad_out, &shape));
    SL_TRY(backward_down(self, pass, grad_out, tensors));
    SL_TRY(backward_gate(self, pass, tensors));
    SL_TRY(sli_linear_backward_products(self->gate, pass, tensors->grad_gate, tensors->in, beta,
                                        grad_in));
    return sli_linear_backward_products(self->up, pass, tensors->grad_up, tensors->in, 1.0f,
                                        grad_in);
}

sl_status sli_swiglu_run_backward(const sl_module *module, sl_pass *pass, const sl_tensor *grad_out,
                                  float beta, sl_tensor *grad_in)
{
    call_tensors tensors = {0};
    sl_status status =
        run_backward(sl_module_state(module), pass, grad_out, beta, grad_in, &tensors);
    call_clear(&tensors);
    return status;
}

static sl_status swiglu_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    if (grad_in)
        SL_TRY(sli_pass_create_output(pass, sl_tensor_shape(grad_out), grad_in));
    return sli_swiglu_run_backward(module, pass, grad_out, 0.0f, grad_in ? *grad_in : NULL);
}

/* The products' order is that of backward_input. */
sl_status sli_swiglu_run_backward_weight(sl_module *module, sl_pass *pass)
{
    const swiglu *self = sl_module_state(module);
    SL_TRY(sli_linear_deferred_weight(self->down, pass));
    SL_TRY(sli_linear_deferred_weight(self->gate, pass));
    return sli_linear_deferred_weight(self->up, pass);
}

/* ---- The module ------------------------------------------------------------------------- */

static void swiglu_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const swiglu *self = sl_module_state(module);
    *in = *out = self->width;
}

static sl_status swiglu_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const swiglu *self = sl_module_state(module);
    *out = *in;
    return sli_shape_check_width(in, 1, self->width);
}

static int64_t swiglu_forward_bytes(const sl_module *module, const sl_shape *in)
{
    sl_shape hidden = hidden_shape(sl_module_state(module), in);
    int64_t gated = sl_shape_count(&hidden), x = sl_shape_count(in);
    return (gated + (2 * gated > x ? 2 * gated : x)) * (int64_t)sizeof(float);
}

static int64_t swiglu_saved_bytes(const sl_module *module, const sl_shape *in)
{
    const swiglu *self = sl_module_state(module);
    sl_shape hidden = hidden_shape(self, in);
    int64_t x = keeps_x(self) ? sl_shape_count(in) : 0;
    int64_t hiddens = sli_linear_trains(self->down) ? 3 : 2;
    return (x + hiddens * sl_shape_count(&hidden)) * (int64_t)sizeof(float);
}

/* The input of gate and up is one tensor. */
static int64_t swiglu_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    const swiglu *self = sl_module_state(module);
    int64_t rows = sli_shape_rows(in), gate = sli_linear_deferred_bytes(self->gate, rows),
            up = sli_linear_deferred_bytes(self->up, rows);
    int64_t shared = gate > 0 && up > 0 ? sl_shape_count(in) * (int64_t)sizeof(float) : 0;
    return sli_linear_deferred_bytes(self->down, rows) + gate + up - shared;
}

static int64_t swiglu_flops(const sl_module *module, const sl_shape *in)
{
    const swiglu *self = sl_module_state(module);
    int64_t rows = sli_shape_rows(in);
    return 3 * 2 * rows * self->width * self->hidden + sli_lora_flops(self->gate, rows) +
           sli_lora_flops(self->up, rows) + sli_lora_flops(self->down, rows);
}

static const sl_module_ops swiglu_ops = {
    .type = "SwiGLU",
    .forward = swiglu_forward,
    .backward = swiglu_backward,
    .backward_input = swiglu_backward,
    .backward_weight = sli_swiglu_run_backward_weight,
    .output_shape = swiglu_output_shape,
    .widths = swiglu_widths,
    .saved_bytes = swiglu_saved_bytes,
    .forward_bytes = swiglu_forward_bytes,
    .deferred_bytes = swiglu_deferred_bytes,
    .flops = swiglu_flops,
    .can_continue = sli_always_continues,
};

static sl_status add_children(sl_module **module, float deviation, swiglu *self)
{
    const struct {
        const char *name;
        int64_t in, out;
        const sli_linear **linear;
    } children[] = {{"gate_proj", self->width, self->hidden, &self->gate},
                    {"up_proj", self->width, self->hidden, &self->up},
                    {"down_proj", self->hidden, self->width, &self->down}};
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        const sli_linear linear = {.in = children[i].in,
                                   .out = children[i].out,
                                   .deviation = deviation};
        sl_module *child;
        SL_TRY(sl_module_append(module, children[i].name,
                                sli_linear_create_as(&linear, true, &child), &child));
        *children[i].linear = sli_module_as_linear(child);
    }
    return SL_OK;
}

sl_status sl_swiglu_create(int64_t width, int64_t hidden, sl_module **out)
{
    return sli_swiglu_create(width, hidden, 0.0f, out);
}

sl_status sli_swiglu_create(int64_t width, int64_t hidden, float deviation, sl_module **out)
{
    *out = NULL;
    if (width < 1 || hidden < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_swiglu_create: width and hidden must be at least 1, got %" PRId64
                        " and %" PRId64,
                        width, hidden);
    swiglu *self = calloc(1, sizeof *self);
    if (!self)
        return sli_no_memory("sl_swiglu_create", "a feed-forward network");
    *self = (swiglu){.width = width, .hidden = hidden};
    SL_TRY(sl_module_create(&swiglu_ops, self, out));
    return add_children(out, deviation, self);
}
