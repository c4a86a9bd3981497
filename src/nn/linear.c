/* Linear: x W^T + bias; and the tutorials' Decoder, a Linear that is named "decoder". */
#include "nn/layers.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- The products ----------------------------------------------------------------------- */

/* A tensor as products with the weight take it: itself, or a copy in their data type. */
typedef struct operand {
    sl_tensor *copy; /* NULL: none */
    const void *data;
} operand;

static sl_status operand_of(const sli_linear *linear, const sl_tensor *tensor, operand *out)
{
    sl_dtype wanted = linear->weight->bf16 ? SL_BF16 : SL_F32;
    out->copy = NULL;
    out->data = sl_tensor_data(tensor);
    if (sl_tensor_dtype(tensor) == wanted)
        return SL_OK;
    SL_TRY(sli_tensor_as(tensor, wanted, SL_MEMORY_WORKSPACE, &out->copy));
    out->data = sl_tensor_data(out->copy);
    return SL_OK;
}

static int64_t weight_columns(const sli_linear *linear)
{
    return linear->is_conv1d ? linear->out : linear->in;
}

/* As operand_of, from the column on where the gradient of the product begins. */
static sl_status gradient_operand(const sli_linear *linear, const sl_tensor *grad, operand *out)
{
    size_t element = linear->weight->bf16 ? sizeof(uint16_t) : sizeof(float);
    SL_TRY(operand_of(linear, grad, out));
    out->data = (const char *)out->data + (size_t)linear->column * element;
    return SL_OK;
}

sl_status sli_linear_product(const sli_linear *linear, const sl_tensor *in, float beta,
                             const sli_linear_epilogue *epilogue, sl_tensor *out)
{
    sl_device *device = sl_tensor_device(in);
    operand a;
    assert(!epilogue || linear->column == 0);
    sli_gemm product = {
        .transpose_b = !linear->is_conv1d,
        .bf16 = linear->weight->bf16,
        .tf32 = linear->weight->tf32,
        .is_forward = true,
        .m = sl_tensor_rows(in),
        .n = linear->out,
        .k = linear->in,
        .lda = linear->in,
        .ldb = weight_columns(linear),
        .beta = beta,
        .c = sl_tensor_f32(out) + linear->column,
        .ldc = sl_tensor_columns(out),
    };
    SL_TRY(sli_parameter_product_values(linear->weight, device, &product.b));
    if (linear->bias)
        SL_TRY(sli_parameter_values(linear->bias, device, &product.bias));
    if (epilogue) {
        product.activation = epilogue->activation;
        product.dropout = epilogue->dropout;
        product.preactivation = sli_tensor_if_f32(epilogue->preactivation);
        product.c_bf16 = sli_tensor_if_bf16(epilogue->rounded);
    }
    SL_TRY(operand_of(linear, in, &a));
    product.a = a.data;
    sl_status status = sli_device_gemm(device, &product);
    sl_tensor_destroy(&a.copy);
    return status;
}

/* The last product has the epilogue. */
sl_status sli_linear_forward(const sli_linear *linear, const sl_pass *pass, const sl_tensor *in,
                             const sli_linear_epilogue *epilogue, sl_tensor *out)
{
    if (!linear->lora.a)
        return sli_linear_product(linear, in, 0.0f, epilogue, out);
    SL_TRY(sli_linear_product(linear, in, 0.0f, NULL, out));
    return sli_lora_forward(linear, pass, in, epilogue, out);
}

sl_status sli_linear_backward_epilogue(const sli_linear *linear,
                                       const sli_linear_epilogue *epilogue, const sl_tensor *saved,
                                       sl_tensor *grad)
{
    bool has_gradient = linear->bias && sli_parameter_is_trained(linear->bias);
    if (!epilogue && !has_gradient)
        return SL_OK;
    sl_device *device = sl_tensor_device(grad);
    sli_epilogue_backward back = {
        .rows = sl_tensor_rows(grad),
        .columns = linear->out,
        .ld = sl_tensor_columns(grad),
        .grad = sli_tensor_if_f32(grad),
        .grad_bf16 = sli_tensor_if_bf16(grad),
        .saved = sli_tensor_if_f32(saved),
        .saved_bf16 = sli_tensor_if_bf16(saved),
    };
    if (epilogue) {
        back.activation = epilogue->activation;
        back.dropout = epilogue->dropout;
        back.result_bf16 = sli_tensor_if_bf16(epilogue->rounded);
    }
    if (back.grad)
        back.grad += linear->column;
    if (back.grad_bf16)
        back.grad_bf16 += linear->column;
    if (has_gradient)
        SL_TRY(sli_parameter_gradient(linear->bias, &back.beta, &back.grad_bias));
    return sli_device_epilogue_backward(device, &back);
}

/* Adds to the gradient of the weight itself. */
static sl_status add_own_weight(const sli_linear *linear, const sl_tensor *grad,
                                const sl_tensor *in)
{
    sl_device *device = sl_tensor_device(grad);
    operand a = {0}, b = {0};
    sl_status status;
    if (!sli_parameter_is_trained(linear->weight))
        return SL_OK;
    sli_gemm product = {
        .transpose_a = true,
        .bf16 = linear->weight->bf16,
        .tf32 = linear->weight->tf32,
        .m = linear->is_conv1d ? linear->in : linear->out,
        .n = weight_columns(linear),
        .k = sl_tensor_rows(grad),
        .ldc = weight_columns(linear),
    };
    SL_TRY(sli_parameter_gradient(linear->weight, &product.beta, &product.c));
    SL_TRY_OR_FAIL(gradient_operand(linear, grad, &a));
    SL_TRY_OR_FAIL(operand_of(linear, in, &b));
    product.a = linear->is_conv1d ? b.data : a.data;
    product.lda = linear->is_conv1d ? linear->in : sl_tensor_columns(grad);
    product.b = linear->is_conv1d ? a.data : b.data;
    product.ldb = linear->is_conv1d ? sl_tensor_columns(grad) : linear->in;
    status = sli_device_gemm(device, &product);

fail:
    sl_tensor_destroy(&b.copy);
    sl_tensor_destroy(&a.copy);
    return status;
}

sl_status sli_linear_add_weight(const sli_linear *linear, const sl_pass *pass,
                                const sl_tensor *grad, const sl_tensor *in)
{
    SL_TRY(add_own_weight(linear, grad, in));
    return linear->lora.a ? sli_lora_add_weights(linear, pass, grad, in) : SL_OK;
}

bool sli_linear_trains(const sli_linear *linear)
{
    const sli_lora *lora = &linear->lora;
    return sli_parameter_is_trained(linear->weight) ||
           (lora->a && (sli_linear_trains(lora->a) || sli_linear_trains(lora->b)));
}

/* Adds to the weights' gradients, or defers. */
static sl_status backward_weight(const sli_linear *linear, sl_pass *pass, const sl_tensor *grad,
                                 const sl_tensor *in)
{
    if (!sli_linear_trains(linear))
        return SL_OK;
    if (!pass->is_split)
        return sli_linear_add_weight(linear, pass, grad, in);
    SL_TRY(sl_pass_defer_alias(pass, grad));
    return sl_pass_defer_alias(pass, in);
}

sl_status sli_linear_deferred_weight(const sli_linear *linear, sl_pass *pass)
{
    sl_tensor *grad, *in;
    if (!sli_linear_trains(linear))
        return SL_OK;
    SL_TRY(sli_pass_take_pair(pass, &grad, &in));
    sl_status status = sli_linear_add_weight(linear, pass, grad, in);
    sl_tensor_destroy(&grad);
    sl_tensor_destroy(&in);
    return status;
}

int64_t sli_linear_deferred_bytes(const sli_linear *linear, int64_t rows)
{
    return sli_linear_trains(linear) ? rows * (linear->in + linear->out) * (int64_t)sizeof(float)
                                     : 0;
}

static sl_status backward_own_input(const sli_linear *linear, const sl_tensor *grad, float beta,
                                    sl_tensor *grad_in)
{
    sl_device *device = sl_tensor_device(grad);
    operand a;
    sli_gemm product = {
        .transpose_b = linear->is_conv1d,
        .bf16 = linear->weight->bf16,
        .tf32 = linear->weight->tf32,
        .m = sl_tensor_rows(grad),
        .n = linear->in,
        .k = linear->out,
        .lda = sl_tensor_columns(grad),
        .ldb = weight_columns(linear),
        .beta = beta,
        .c = sl_tensor_f32(grad_in),
        .ldc = linear->in,
    };
    SL_TRY(sli_parameter_product_values(linear->weight, device, &product.b));
    SL_TRY(gradient_operand(linear, grad, &a));
    product.a = a.data;
    sl_status status = sli_device_gemm(device, &product);
    sl_tensor_destroy(&a.copy);
    return status;
}

sl_status sli_linear_backward_input(const sli_linear *linear, const sl_pass *pass,
                                    const sl_tensor *grad, float beta, sl_tensor *grad_in)
{
    SL_TRY(backward_own_input(linear, grad, beta, grad_in));
    return linear->lora.a ? sli_lora_backward_input(linear, pass, grad, grad_in) : SL_OK;
}

sl_status sli_linear_backward_products(const sli_linear *linear, sl_pass *pass,
                                       const sl_tensor *grad, const sl_tensor *in, float beta,
                                       sl_tensor *grad_in)
{
    sl_tensor *narrow;
    SL_TRY(sli_pass_operand(pass, grad, pass->is_split, &narrow));
    sl_status status;
    SL_TRY_OR_FAIL(backward_weight(linear, pass, narrow, in));
    if (grad_in)
        status = sli_linear_backward_input(linear, pass, narrow, beta, grad_in);
fail:
    sl_tensor_destroy(&narrow);
    return status;
}

sl_status sli_linear_declare(sl_module *module, const char *weight_name, float weight_bound,
                             const char *bias_name, float bias_bound, sli_linear *linear)
{
    sl_parameter_spec weight = {
        .name = weight_name,
        .shape = linear->is_conv1d ? sl_shape_2d(linear->in, linear->out)
                                   : sl_shape_2d(linear->out, linear->in),
        .low = linear->deviation > 0 ? 0 : -weight_bound,
        .high = weight_bound,
        .deviation = linear->deviation,
    };
    SL_TRY(sl_module_add_parameter(module, &weight, &linear->weight));
    linear->weight->in_products = true;
    if (!bias_name)
        return SL_OK;
    sl_parameter_spec bias = {
        .name = bias_name,
        .shape = sl_shape_1d(linear->out),
        .low = -bias_bound,
        .high = bias_bound,
    };
    return sl_module_add_parameter(module, &bias, &linear->bias);
}

/* ---- The module ------------------------------------------------------------------------- */

static sl_status linear_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const sli_linear *linear = sl_module_state(module);
    *out = *in;
    SL_TRY(sli_shape_check_width(in, 1, linear->in));
    out->size[out->dims - 1] = linear->out;
    return SL_OK;
}

static void linear_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const sli_linear *linear = sl_module_state(module);
    *in = linear->in;
    *out = linear->out;
}

static sl_status linear_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    const sli_linear *linear = sl_module_state(module);
    sl_shape shape;
    sl_tensor *kept;
    SL_TRY(sli_check_dtype("the input", in, SL_F32));
    SL_TRY(linear_output_shape(module, sl_tensor_shape(in), &shape));
    SL_TRY(sli_pass_operand(pass, in, pass->options.keep, &kept));
    sl_status status;
    SL_TRY_OR_FAIL(sli_pass_create_output(pass, &shape, out));
    SL_TRY_OR_FAIL(sli_linear_forward(linear, pass, kept, NULL, *out));
    status = sli_pass_save_exact(pass, &kept);

fail:
    sl_tensor_destroy(&kept);
    return status;
}

static sl_status linear_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    const sli_linear *linear = sl_module_state(module);
    sl_shape shape;
    sl_tensor *in;
    SL_TRY(sli_pass_pop_stored(pass, &in));
    sl_status status;
    SL_TRY_OR_FAIL(linear_output_shape(module, sl_tensor_shape(in), &shape));
    SL_TRY_OR_FAIL(sli_check_grad(grad_out, &shape));
    SL_TRY_OR_FAIL(sli_linear_backward_epilogue(linear, NULL, NULL, grad_out));
    if (grad_in)
        SL_TRY_OR_FAIL(sli_pass_create_output(pass, sl_tensor_shape(in), grad_in));
    status =
        sli_linear_backward_products(linear, pass, grad_out, in, 0.0f, grad_in ? *grad_in : NULL);

fail:
    sl_tensor_destroy(&in);
    return status;
}

static sl_status linear_backward_weight(sl_module *module, sl_pass *pass)
{
    return sli_linear_deferred_weight(sl_module_state(module), pass);
}

static int64_t linear_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    return sli_linear_deferred_bytes(sl_module_state(module), sli_shape_rows(in));
}

/* The saved input is deferred with the gradient. */
static int64_t linear_halfway_bytes(const sl_module *module, const sl_shape *in)
{
    int64_t saved = sl_module_saved_bytes(module, in), deferred = linear_deferred_bytes(module, in);
    return saved > deferred ? saved : deferred;
}

static int64_t linear_flops(const sl_module *module, const sl_shape *in)
{
    const sli_linear *linear = sl_module_state(module);
    int64_t rows = sli_shape_rows(in);
    return 2 * rows * linear->in * linear->out + sli_lora_flops(linear, rows);
}

#define LINEAR_FUNCTIONS                                                                           \
    .forward = linear_forward, .backward = linear_backward, .backward_input = linear_backward,     \
    .backward_weight = linear_backward_weight, .output_shape = linear_output_shape,                \
    .widths = linear_widths, .saved_bytes = sli_input_saved_bytes,                                 \
    .deferred_bytes = linear_deferred_bytes, .halfway_bytes = linear_halfway_bytes,                \
    .flops = linear_flops, .can_continue = sli_always_continues

static const sl_module_ops linear_ops = {.type = "Linear", LINEAR_FUNCTIONS};

/* A Decoder's state is that of its child "decoder", a Linear, which frees it. */
static void keep_state(void *state)
{
    (void)state;
}

static const sl_module_ops decoder_ops = {.type = "Decoder",
                                          .destroy_state = keep_state,
                                          LINEAR_FUNCTIONS};

const sli_linear *sli_module_as_linear(const sl_module *module)
{
    bool is_linear = module->ops == &linear_ops || module->ops == &decoder_ops;
    return is_linear ? sl_module_state(module) : NULL;
}

bool sli_linear_trains_bias(const sli_linear *linear)
{
    return linear->bias && sli_parameter_is_trained(linear->bias);
}

static sl_status create(const sli_linear *description, bool no_bias, float weight_bound,
                        float bias_bound, sl_module **out)
{
    *out = NULL;
    sli_linear *linear = calloc(1, sizeof *linear);
    if (!linear)
        return sli_no_memory("sl_linear_create", "a linear layer");
    *linear = *description;
    SL_TRY(sl_module_create(&linear_ops, linear, out));
    sl_status status = sli_linear_declare(*out, "weight", weight_bound, no_bias ? NULL : "bias",
                                          bias_bound, linear);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}

sl_status sli_linear_create(int64_t in, int64_t out_features, bool no_bias, float weight_bound,
                            float bias_bound, sl_module **out)
{
    const sli_linear description = {.in = in, .out = out_features};
    return create(&description, no_bias, weight_bound, bias_bound, out);
}

sl_status sli_linear_create_as(const sli_linear *description, bool no_bias, sl_module **out)
{
    return create(description, no_bias, sli_linear_bound(description->in), 0.0f, out);
}

sl_status sli_linear_create_bound(const sli_linear *description, float bound, sl_module **out)
{
    return create(description, true, bound, 0.0f, out);
}

float sli_linear_bound(int64_t in)
{
    return (float)(1.0 / sqrt((double)in));
}

sl_status sl_linear_create(int64_t in_features, int64_t out_features, bool no_bias, sl_module **out)
{
    *out = NULL;
    if (in_features < 1 || out_features < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_linear_create: features must be at least 1, got %" PRId64
                        " in and %" PRId64 " out",
                        in_features, out_features);
    float bound = sli_linear_bound(in_features);
    return sli_linear_create(in_features, out_features, no_bias, bound, bound, out);
}

/* ---- The Decoder ------------------------------------------------------------------------ */

static const float WEIGHT_BOUND = 0.1f;

sl_status sl_decoder_create(int64_t width, int64_t ntokens, sl_module **out)
{
    *out = NULL;
    if (width < 1 || ntokens < 1)
        return sl_error(SL_ERR_INVALID,
                        "sl_decoder_create: width and ntokens must be at least 1, got %" PRId64
                        " and %" PRId64,
                        width, ntokens);
    sl_module *linear;
    SL_TRY(sli_linear_create(width, ntokens, false, WEIGHT_BOUND, 0.0f, &linear));
    sl_status status = sl_module_create(&decoder_ops, sl_module_state(linear), out);
    if (status != SL_OK) {
        sl_module_destroy(&linear);
        return status;
    }
    return sl_module_append(out, "decoder", SL_OK, &linear);
}
