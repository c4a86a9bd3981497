/* Self-attention: one product or three to queries, keys and values, attention between them, one
 * product back. H heads of queries share K heads of keys and values, all of d columns; where
 * PyTorch names the parameters, K = H and H d = D. Saved for backward, oldest first, in floats per
 * position:
 *
 *   in         D              an alias of the input
 *   q_norm, k_norm            the norms of the heads of q and of k, where there are such
 *   qkv        (H + 2 K) d    the heads of q, then those of k, then those of v
 *   lse        H              log of the softmax's sum, from which backward gets the probabilities
 *   attended   H d            again
 *
 * On a pass over a slice of rows, qkv is kept with that of the other slices instead, and beside it
 * its gradient, in f32. */
#include "nn/self_attention.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

const char *const sl_mask_names[] = {"causal", "none", NULL};

/* ---- Forward ---------------------------------------------------------------------------- */

static sl_shape qkv_shape(const sli_self_attention *self, const sl_shape *in)
{
    return sl_shape_3d(in->size[0], in->size[1], sli_qkv_width(self));
}

static sl_shape attended_shape(const sli_self_attention *self, const sl_shape *in)
{
    return sl_shape_3d(in->size[0], in->size[1], sli_attended_width(self));
}

static sl_shape lse_shape(const sli_self_attention *self, const sl_shape *in)
{
    return sl_shape_3d(in->size[0], self->heads, in->size[1]);
}

static sli_dropout probability_dropout(const sl_module *module, const sl_pass *pass, int64_t time)
{
    const sli_self_attention *self = sl_module_state(module);
    sli_dropout dropout = sli_pass_dropout(pass, module, 0, self->dropout, self->heads * time);
    dropout.first_row = 0; /* they are of all positions */
    return dropout;
}

/* Are qkv, its gradient and what is attended bf16 tensors, which a device writes as one product?
 * Else they are f32, and rounded or converted where the pass is bf16. */
static bool stores_bf16(const sli_self_attention *self, const sl_pass *pass)
{
    return sli_pass_stores_bf16(pass) && !pass->options.caches && !pass->slices &&
           self->projection_count == 1 && self->head_width % SLI_BF16_HEAD == 0;
}

static sli_attention attention_of(const sli_self_attention *self, const sl_tensor *qkv)
{
    return (sli_attention){
        .heads = self->heads,
        .key_heads = self->key_heads,
        .head_width = self->head_width,
        .causal = self->mask == SL_MASK_CAUSAL,
        .bf16 = self->projections[0]->weight->bf16,
        .tf32 = self->projections[0]->weight->tf32,
        .qkv = sli_tensor_if_f32(qkv),
        .qkv_bf16 = sli_tensor_if_bf16(qkv),
    };
}

/* On a pass in bf16, qkv has the values of bf16 numbers, so a cache of these loses nothing. */
static sl_dtype cached_type(const sli_self_attention *self, const sl_pass *pass)
{
    return sli_pass_is_bf16(pass) && self->head_width % SLI_BF16_HEAD == 0 ? SL_BF16 : SL_F32;
}

/* The attention of qkv's positions to themselves and, on a pass with caches or over a slice, to
 * earlier ones. A row of probabilities has a dropout for all positions of the slices. */
static sl_status run_attention(const sl_module *module, const sl_pass *pass, const sl_tensor *qkv,
                               sl_tensor *attended, const sl_tensor *lse)
{
    const sli_self_attention *self = sl_module_state(module);
    const sl_shape *shape = sl_tensor_shape(attended);
    sl_tensor *all = NULL;
    if (pass->slices)
        SL_TRY(sli_slices_store(pass, module, qkv, &all));
    sli_attention arguments = attention_of(self, all ? all : qkv);
    if (pass->options.caches)
        return sli_attend_in_caches(pass, module, &arguments, cached_type(self, pass), qkv,
                                    attended);
    arguments.samples = shape->size[0];
    arguments.positions = pass->first_position + shape->size[1];
    arguments.first_query = pass->first_position;
    arguments.room = sl_tensor_shape(all ? all : qkv)->size[1];
    arguments.dropout = probability_dropout(module, pass, arguments.room);
    arguments.out = sli_tensor_if_f32(attended);
    arguments.out_bf16 = sli_tensor_if_bf16(attended);
    arguments.log_sum_exp = lse ? sl_tensor_f32(lse) : NULL;
    return sli_attend(pass, &arguments);
}

/* The tensors of a call: what forward saves and backward pops, and its gradients. What a call has
 * not saved or given to its caller is freed at its end. */
typedef struct call_tensors {
    sli_norm_saved norms[2];
    sl_tensor *in, *qkv, *lse, *attended;
    sl_tensor *grad_attended, *grad_qkv;
    sl_tensor *operand; /* `attended`, as products take it */
} call_tensors;

static void call_clear(call_tensors *tensors)
{
    sli_norm_saved_clear(&tensors->norms[0]);
    sli_norm_saved_clear(&tensors->norms[1]);
    sl_tensor_destroy(&tensors->in);
    sl_tensor_destroy(&tensors->qkv);
    sl_tensor_destroy(&tensors->lse);
    sl_tensor_destroy(&tensors->attended);
    sl_tensor_destroy(&tensors->grad_attended);
    sl_tensor_destroy(&tensors->grad_qkv);
    sl_tensor_destroy(&tensors->operand);
}

/* The heads of q, and those of k, in qkv. */
static int64_t heads_of(const sli_self_attention *self, int which, int64_t *column)
{
    *column = which == 0 ? 0 : self->heads * self->head_width;
    return which == 0 ? self->heads : self->key_heads;
}

/* Of qkv, in place, or backward of its gradient. */
static sl_status norm_heads(const sli_self_attention *self, const sl_pass *pass, bool backward,
                            call_tensors *tensors)
{
    for (int i = 0; i < 2 && self->norms[0]; i++) {
        int64_t column, heads = heads_of(self, i, &column);
        sli_norm_saved *saved = &tensors->norms[i];
        SL_TRY(
            backward
                ? sli_norm_heads_backward(self->norms[i], saved, tensors->grad_qkv, column, heads)
                : sli_norm_heads_forward(self->norms[i], pass, tensors->qkv, column, heads, saved));
    }
    return SL_OK;
}

/* Turns the queries and keys of qkv, or back, in place. */
static sl_status rotate(const sli_self_attention *self, const sl_pass *pass, sl_tensor *qkv,
                        bool inverse)
{
    sli_rotary arguments = self->rotary;
    if (!self->rotates)
        return SL_OK;
    arguments.rows = sl_tensor_rows(qkv);
    arguments.rows_per_sample = sl_tensor_shape(qkv)->size[1];
    arguments.first_position = pass->first_position;
    arguments.inverse = inverse;
    arguments.x = sl_tensor_f32(qkv);
    return sli_rotate(pass, &arguments);
}

/* tensors->qkv, whose f32 values are those of bf16 numbers on a bf16 pass. */
static sl_status project(const sli_self_attention *self, const sl_pass *pass, call_tensors *tensors)
{
    sl_shape shape = qkv_shape(self, sl_tensor_shape(tensors->in));
    sl_tensor *exact;
    if (!stores_bf16(self, pass)) {
        SL_TRY(sli_pass_create_tensor(pass, &shape, &tensors->qkv));
        for (int i = 0; i < self->projection_count; i++)
            SL_TRY(sli_linear_forward(self->projections[i], pass, tensors->in, NULL, tensors->qkv));
        SL_TRY(norm_heads(self, pass, false, tensors));
        SL_TRY(rotate(self, pass, tensors->qkv, false));
        return sli_pass_round(pass, tensors->qkv);
    }
    SL_TRY(sli_pass_create_stored(pass, &shape, pass->options.keep, &tensors->qkv));
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_WORKSPACE, SL_F32, &shape, &exact));
    sli_linear_epilogue rounding = {.rounded = tensors->qkv};
    sl_status status =
        sli_linear_forward(self->projections[0], pass, tensors->in, &rounding, exact);
    sl_tensor_destroy(&exact);
    return status;
}

/* tensors->attended [N, T, H d] from in; saves in, qkv and lse. */
static sl_status project_and_attend(const sl_module *module, sl_pass *pass, const sl_tensor *in,
                                    call_tensors *tensors)
{
    const sli_self_attention *self = sl_module_state(module);
    sl_shape shape = attended_shape(self, sl_tensor_shape(in));
    sl_shape lse_is = lse_shape(self, sl_tensor_shape(in));
    SL_TRY(sli_pass_operand(pass, in, pass->options.keep, &tensors->in));
    SL_TRY(project(self, pass, tensors));
    SL_TRY(sli_pass_create_exact_if_kept(pass, &lse_is, &tensors->lse));
    SL_TRY(stores_bf16(self, pass)
               ? sli_pass_create_stored(pass, &shape, pass->options.keep, &tensors->attended)
               : sli_pass_create_tensor(pass, &shape, &tensors->attended));
    SL_TRY(run_attention(module, pass, tensors->qkv, tensors->attended, tensors->lse));
    SL_TRY(sli_pass_save_exact(pass, &tensors->in));
    for (int i = 0; i < 2 && self->norms[0]; i++)
        SL_TRY(sli_norm_save(pass, &tensors->norms[i]));
    if (!pass->slices)
        SL_TRY(sl_pass_save(pass, &tensors->qkv));
    return sli_pass_save_exact(pass, &tensors->lse);
}

/* *out from tensors->attended, which it saves. */
static sl_status project_out(const sli_self_attention *self, sl_pass *pass,
                             sl_memory_category category, call_tensors *tensors, sl_tensor **out)
{
    sl_shape shape = *sl_tensor_shape(tensors->attended);
    shape.size[2] = self->width;
    SL_TRY(sl_tensor_create(sl_pass_device(pass), category, SL_F32, &shape, out));
    SL_TRY(sli_pass_operand(pass, tensors->attended, pass->options.keep, &tensors->operand));
    SL_TRY(sli_linear_forward(self->out_proj, pass, tensors->operand, NULL, *out));
    return sli_pass_save_exact(pass, &tensors->operand);
}

sl_status sli_self_attention_forward(const sl_module *module, sl_pass *pass, const sl_tensor *in,
                                     sl_memory_category category, sl_tensor **out)
{
    call_tensors tensors = {0};
    *out = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(project_and_attend(module, pass, in, &tensors));
    status = project_out(sl_module_state(module), pass, category, &tensors, out);
fail:
    call_clear(&tensors);
    return status;
}

static sl_status attention_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                   sl_tensor **out)
{
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    return sli_self_attention_forward(module, pass, in, SL_MEMORY_ACTIVATIONS, out);
}

/* ---- Backward --------------------------------------------------------------------------- */

static sl_status pop_qkv(const sl_module *module, sl_pass *pass, bool stored, call_tensors *tensors)
{
    if (!pass->slices)
        return stored ? sli_pass_pop_stored(pass, &tensors->qkv) : sl_pass_pop(pass, &tensors->qkv);
    return sl_tensor_alias(sli_slices_value(pass, module), &tensors->qkv);
}

static sl_status pop_saved(const sl_module *module, sl_pass *pass, call_tensors *tensors)
{
    const sli_self_attention *self = sl_module_state(module);
    bool stored = stores_bf16(self, pass);
    SL_TRY(sli_pass_pop_stored(pass, &tensors->operand));
    SL_TRY(stored ? sl_tensor_alias(tensors->operand, &tensors->attended)
                  : sli_pass_widen(pass, tensors->operand, &tensors->attended));
    SL_TRY(sl_pass_pop(pass, &tensors->lse));
    SL_TRY(pop_qkv(module, pass, stored, tensors));
    for (int i = 1; i >= 0 && self->norms[0]; i--)
        SL_TRY(sli_norm_pop(pass, &tensors->norms[i]));
    return sli_pass_pop_stored(pass, &tensors->in);
}

/* Through the output's projection: tensors->grad_attended. */
static sl_status backward_out_proj(const sli_self_attention *self, sl_pass *pass,
                                   sl_tensor *grad_out, call_tensors *tensors)
{
    SL_TRY(sli_linear_backward_epilogue(self->out_proj, NULL, NULL, grad_out));
    SL_TRY(sl_tensor_create(sl_tensor_device(grad_out), SL_MEMORY_WORKSPACE, SL_F32,
                            sl_tensor_shape(tensors->operand), &tensors->grad_attended));
    sl_status status = sli_linear_backward_products(self->out_proj, pass, grad_out,
                                                    tensors->operand, 0.0f, tensors->grad_attended);
    sl_tensor_destroy(&tensors->operand);
    return status;
}

/* Where attention's gradient goes: tensors->grad_qkv, or for a slice that of all, in *all,
 * to which all but the last slice's add. */
static sl_status create_grad_qkv(const sl_module *module, const sl_pass *pass,
                                 call_tensors *tensors, sl_tensor **all, bool *adds)
{
    bool is_new;
    *all = NULL;
    *adds = false;
    if (stores_bf16(sl_module_state(module), pass))
        return sli_pass_create_stored(pass, sl_tensor_shape(tensors->qkv), pass->is_split,
                                      &tensors->grad_qkv);
    if (!pass->slices)
        return sli_pass_create_gradient(pass, tensors->qkv, &tensors->grad_qkv);
    SL_TRY(sli_slices_gradient(pass, module, all, &is_new));
    *adds = !is_new;
    return SL_OK;
}

/* Through the attention: tensors->grad_qkv. Frees what only it needs. */
static sl_status backward_attention(const sl_module *module, const sl_pass *pass,
                                    call_tensors *tensors)
{
    const sli_self_attention *self = sl_module_state(module);
    const sl_shape *shape = sl_tensor_shape(tensors->in);
    int64_t earlier = pass->first_position, room = sl_tensor_shape(tensors->qkv)->size[1];
    sl_tensor *all;
    bool adds;
    SL_TRY(create_grad_qkv(module, pass, tensors, &all, &adds));
    sl_tensor *grad_qkv = all ? all : tensors->grad_qkv;
    sli_attention_backward arguments = {
        .samples = shape->size[0],
        .positions = earlier + shape->size[1],
        .first_query = earlier,
        .room = room,
        .adds = adds,
        .heads = self->heads,
        .key_heads = self->key_heads,
        .head_width = self->head_width,
        .causal = self->mask == SL_MASK_CAUSAL,
        .bf16 = self->projections[0]->weight->bf16,
        .tf32 = self->projections[0]->weight->tf32,
        .qkv = sli_tensor_if_f32(tensors->qkv),
        .qkv_bf16 = sli_tensor_if_bf16(tensors->qkv),
        .out = sli_tensor_if_f32(tensors->attended),
        .out_bf16 = sli_tensor_if_bf16(tensors->attended),
        .log_sum_exp = sl_tensor_f32(tensors->lse),
        .dropout = probability_dropout(module, pass, room),
        .grad_out = sl_tensor_f32(tensors->grad_attended),
        .grad_qkv = sli_tensor_if_f32(grad_qkv),
        .grad_qkv_bf16 = sli_tensor_if_bf16(grad_qkv),
    };
    SL_TRY(sli_attend_backward(pass, &arguments));
    if (all)
        SL_TRY(sli_slices_load(pass, all,
                               pass->is_split && !sli_pass_is_bf16(pass) ? SL_MEMORY_ACTIVATIONS
                                                                         : SL_MEMORY_WORKSPACE,
                               &tensors->grad_qkv));
    SL_TRY(rotate(self, pass, tensors->grad_qkv, true));
    SL_TRY(norm_heads(self, pass, true, tensors));
    sl_tensor_destroy(&tensors->grad_attended);
    sl_tensor_destroy(&tensors->qkv);
    sl_tensor_destroy(&tensors->lse);
    sl_tensor_destroy(&tensors->attended);
    return SL_OK;
}

/* Through the products to qkv, whose gradient they take as one operand. */
static sl_status backward_projections(const sli_self_attention *self, sl_pass *pass, float beta,
                                      sl_tensor *grad_in, call_tensors *tensors)
{
    sl_tensor *grad;
    for (int i = 0; i < self->projection_count; i++)
        SL_TRY(sli_linear_backward_epilogue(self->projections[i], NULL, NULL, tensors->grad_qkv));
    SL_TRY(sli_pass_operand(pass, tensors->grad_qkv, pass->is_split, &grad));
    sl_status status = SL_OK;
    for (int i = 0; i < self->projection_count && status == SL_OK; i++)
        status = sli_linear_backward_products(self->projections[i], pass, grad, tensors->in,
                                              i > 0 ? 1.0f : beta, grad_in);
    sl_tensor_destroy(&grad);
    return status;
}

static sl_status run_backward(const sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                              float beta, sl_tensor *grad_in, call_tensors *tensors)
{
    const sli_self_attention *self = sl_module_state(module);
    SL_TRY(pop_saved(module, pass, tensors));
    if (sl_tensor_dtype(grad_out) == SL_F32)
        SL_TRY(sli_check_grad(grad_out, sl_tensor_shape(tensors->in)));
    SL_TRY(backward_out_proj(self, pass, grad_out, tensors));
    SL_TRY(backward_attention(module, pass, tensors));
    return backward_projections(self, pass, beta, grad_in, tensors);
}

sl_status sli_self_attention_backward(const sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                      float beta, sl_tensor *grad_in)
{
    call_tensors tensors = {0};
    sl_status status = run_backward(module, pass, grad_out, beta, grad_in, &tensors);
    call_clear(&tensors);
    return status;
}

/* The gradient of the input overwrites the output's, unless that is deferred. */
static sl_status attention_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                    sl_tensor **grad_in)
{
    if (grad_in)
        SL_TRY(pass->is_split ? sli_pass_create_gradient(pass, grad_out, grad_in)
                              : sl_tensor_alias(grad_out, grad_in));
    return sli_self_attention_backward(module, pass, grad_out, 0.0f, grad_in ? *grad_in : NULL);
}

sl_status sli_self_attention_backward_weight(sl_module *module, sl_pass *pass)
{
    const sli_self_attention *self = sl_module_state(module);
    SL_TRY(sli_linear_deferred_weight(self->out_proj, pass));
    for (int i = 0; i < self->projection_count; i++)
        SL_TRY(sli_linear_deferred_weight(self->projections[i], pass));
    return SL_OK;
}

/* ---- The module ------------------------------------------------------------------------- */

static sl_status attention_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const sli_self_attention *self = sl_module_state(module);
    char text[SL_SHAPE_TEXT_BYTES];
    *out = *in;
    if (in->dims != 3)
        return sl_error(SL_ERR_INVALID, "the input must be [N, T, %" PRId64 "], got %s",
                        self->width, sl_shape_text(in, text));
    return sli_shape_check_width(in, 3, self->width);
}

static void attention_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const sli_self_attention *self = sl_module_state(module);
    *in = *out = self->width;
}

static int64_t attention_saved_bytes(const sl_module *module, const sl_shape *in)
{
    const sli_self_attention *self = sl_module_state(module);
    sl_shape qkv = qkv_shape(self, in), lse = lse_shape(self, in);
    sl_shape attended = attended_shape(self, in);
    int64_t floats = sl_shape_count(in) + sl_shape_count(&qkv) + sl_shape_count(&lse) +
                     sl_shape_count(&attended);
    for (int i = 0; i < 2 && self->norms[0]; i++) {
        int64_t column, heads = heads_of(self, i, &column);
        floats += sli_shape_rows(in) * heads * (self->head_width + 1);
    }
    return floats * (int64_t)sizeof(float);
}

/* qkv is freed before the output's product. */
static int64_t attention_forward_bytes(const sl_module *module, const sl_shape *in)
{
    const sli_self_attention *self = sl_module_state(module);
    sl_shape qkv = qkv_shape(self, in), attended = attended_shape(self, in);
    int64_t before = sl_shape_count(&qkv), after = sl_shape_count(in);
    return (sl_shape_count(&attended) + (before > after ? before : after)) * (int64_t)sizeof(float);
}

/* The products to qkv share its gradient, and the input. */
static int64_t attention_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    const sli_self_attention *self = sl_module_state(module);
    int64_t rows = sli_shape_rows(in);
    bool defers = false;
    for (int i = 0; i < self->projection_count; i++)
        defers |= sli_linear_deferred_bytes(self->projections[i], rows) > 0;
    int64_t shared = defers ? rows * (self->width + sli_qkv_width(self)) : 0;
    return sli_linear_deferred_bytes(self->out_proj, rows) + shared * (int64_t)sizeof(float);
}

/* The projections, and two products of every query with every key that it sees. */
static int64_t attention_flops(const sl_module *module, const sl_shape *in)
{
    const sli_self_attention *self = sl_module_state(module);
    int64_t samples = in->size[0], time = in->size[1], width = self->width;
    int64_t pairs = self->mask == SL_MASK_CAUSAL ? time * (time + 1) / 2 : time * time;
    int64_t attended = sli_attended_width(self);
    int64_t adapters = sli_lora_flops(self->out_proj, samples * time);
    for (int i = 0; i < self->projection_count; i++)
        adapters += sli_lora_flops(self->projections[i], samples * time);
    return adapters + samples * (2 * time * width * (sli_qkv_width(self) + attended) +
                                 2 * 2 * pairs * attended);
}

static bool attention_can_continue(const sl_module *module)
{
    const sli_self_attention *self = sl_module_state(module);
    return self->mask == SL_MASK_CAUSAL;
}

const sl_module_ops sli_attention_ops = {
    .type = "SelfAttention",
    .forward = attention_forward,
    .backward = attention_backward,
    .backward_input = attention_backward,
    .backward_weight = sli_self_attention_backward_weight,
    .output_shape = attention_output_shape,
    .widths = attention_widths,
    .saved_bytes = attention_saved_bytes,
    .forward_bytes = attention_forward_bytes,
    .deferred_bytes = attention_deferred_bytes,
    .flops = attention_flops,
    .can_continue = attention_can_continue,
};

static sl_status check_options(int64_t width, int64_t heads, float dropout)
{
    if (width < 1 || heads < 1 || width % heads != 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_self_attention_create: there must be heads that divide the "
                        "width, got %" PRId64 " heads and a width of %" PRId64,
                        heads, width);
    return sli_check_dropout("sl_self_attention_create", dropout);
}

/* xavier_uniform_ for in_proj_weight [3 D, D], Linear's own for out_proj.weight, biases 0. */
static sl_status declare_parameters(sl_module *module, sli_self_attention *self)
{
    double width = (double)self->width;
    sl_module *out_proj;
    SL_TRY(sli_linear_declare(module, "in_proj_weight", (float)sqrt(6.0 / (4.0 * width)),
                              "in_proj_bias", 0.0f, &self->in_proj));
    SL_TRY(sli_linear_create(self->width, self->width, false, (float)(1.0 / sqrt(width)), 0.0f,
                             &out_proj));
    self->out_proj = sli_module_as_linear(out_proj);
    return sli_module_add_child(module, "out_proj", out_proj);
}

sl_status sl_self_attention_create(int64_t width, int64_t heads, float dropout, sl_mask mask,
                                   sl_module **out)
{
    *out = NULL;
    SL_TRY(check_options(width, heads, dropout));
    sli_self_attention *self = calloc(1, sizeof *self);
    if (!self)
        return sli_no_memory("sl_self_attention_create", "self-attention");
    *self = (sli_self_attention){.width = width,
                                 .heads = heads,
                                 .key_heads = heads,
                                 .head_width = width / heads,
                                 .dropout = dropout,
                                 .mask = mask,
                                 .in_proj = {.in = width, .out = 3 * width},
                                 .projections = {&self->in_proj},
                                 .projection_count = 1};
    SL_TRY(sl_module_create(&sli_attention_ops, self, out));
    (*out)->exact_columns = heads;
    (*out)->kept_width = mask == SL_MASK_CAUSAL ? sli_qkv_width(self) : 0;
    sl_status status = declare_parameters(*out, self);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}
