/* The tutorials' Decoder: a linear layer named "decoder". */
#include "nn/decoder.h"

#include "nn/module.h"
#include "sluice/layers.h"

#include <inttypes.h>

static const float WEIGHT_BOUND = 0.1f;

static sl_status decoder_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_tensor **out)
{
    return sl_module_forward(sl_module_child(module, 0), pass, in, out);
}

static sl_status decoder_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                  sl_tensor **grad_in)
{
    return sl_module_backward(sl_module_child(module, 0), pass, grad_out, grad_in);
}

static sl_status decoder_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const sl_module *linear = sl_module_child(module, 0);
    return linear->ops->output_shape(linear, in, out);
}

static void decoder_widths(const sl_module *module, int64_t *in, int64_t *out)
{
    const sl_module *linear = sl_module_child(module, 0);
    linear->ops->widths(linear, in, out);
}

static int64_t decoder_saved_bytes(const sl_module *module, const sl_shape *in)
{
    return sl_module_saved_bytes(sl_module_child(module, 0), in);
}

static int64_t decoder_flops(const sl_module *module, const sl_shape *in)
{
    return sl_module_flops(sl_module_child(module, 0), in);
}

static const sl_module_ops decoder_ops = {
    .type = "Decoder",
    .forward = decoder_forward,
    .backward = decoder_backward,
    .output_shape = decoder_output_shape,
    .widths = decoder_widths,
    .saved_bytes = decoder_saved_bytes,
    .flops = decoder_flops,
};

const sli_linear *sli_linear_within(const sl_module *module)
{
    if (module->ops == &decoder_ops)
        module = module->children[0];
    return sli_module_as_linear(module);
}

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
    sl_status status = sl_module_create(&decoder_ops, NULL, out);
    if (status != SL_OK) {
        sl_module_destroy(&linear);
        return status;
    }
    status = sl_module_add_child(*out, "decoder", linear);
    if (status != SL_OK)
        sl_module_destroy(out);
    return status;
}
