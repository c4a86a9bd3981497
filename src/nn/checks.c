/* Checks that the layers have in common. */
#include "core/dtype.h"
#include "nn/layers.h"

#include <inttypes.h>

int64_t sli_shape_rows(const sl_shape *shape)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < shape->dims; i++)
        rows *= shape->size[i];
    return rows;
}

sl_status sli_shape_check_width(const sl_shape *in, int dims, int64_t width)
{
    char text[SL_SHAPE_TEXT_BYTES];
    bool fits = in->dims >= dims && in->size[in->dims - 1] == width;
    for (int i = 0; i < in->dims; i++)
        fits = fits && in->size[i] > 0;
    if (fits)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "the input needs at least %d dimension%s, none empty, the last of %" PRId64
                    "; got %s",
                    dims, dims == 1 ? "" : "s", width, sl_shape_text(in, text));
}

void sli_width_kept(const sl_module *module, int64_t *in, int64_t *out)
{
    (void)module, (void)in, (void)out; /* 0 and 0 */
}

bool sli_always_continues(const sl_module *module)
{
    (void)module;
    return true;
}

sl_status sli_check_dtype(const char *what, const sl_tensor *tensor, sl_dtype dtype)
{
    if (sl_tensor_dtype(tensor) == dtype)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s must be %s, got %s", what, sli_dtype_name(dtype),
                    sli_dtype_name(sl_tensor_dtype(tensor)));
}

sl_status sli_check_grad(const sl_tensor *grad_out, const sl_shape *output)
{
    SL_TRY(sli_check_dtype("the gradient", grad_out, SL_F32));
    if (sl_shape_equal(sl_tensor_shape(grad_out), output))
        return SL_OK;
    char have[SL_SHAPE_TEXT_BYTES], want[SL_SHAPE_TEXT_BYTES];
    return sl_error(SL_ERR_INVALID, "the gradient must have the output's shape %s, got %s",
                    sl_shape_text(output, want), sl_shape_text(sl_tensor_shape(grad_out), have));
}

sl_status sli_check_dropout(const char *who, float p)
{
    if (p >= 0.0f && p < 1.0f)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "%s: dropout must be at least 0 and below 1, got %g", who,
                    (double)p);
}
