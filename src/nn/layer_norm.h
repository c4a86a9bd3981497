/* Layer norm's weights, for the layers that fuse it with what comes before. */
#ifndef SLI_NN_LAYER_NORM_H
#define SLI_NN_LAYER_NORM_H

#include "device/device.h"
#include "sluice/module.h"

typedef struct sli_layer_norm {
    int64_t width;
    float eps;
    sl_parameter *weight, *bias; /* [width] */
} sli_layer_norm;

/* The state of a LayerNorm module. */
const sli_layer_norm *sli_layer_norm_of(const sl_module *module);

/* What a norm leaves for its backward; NULL on a pass that does not keep. */
typedef struct sli_norm_saved {
    sl_tensor *normalized; /* the shape of the input */
    sl_tensor *rstd;       /* [rows] */
} sli_norm_saved;

/* sum = residual + dropout(x), out = norm(sum). `residual` and `sum` may be NULL; `sum` may be
 * `residual` (see sli_add_norm). Makes what `saved` holds; on an error it is empty. */
sl_status sli_norm_forward(const sli_layer_norm *norm, const sl_pass *pass, const sl_tensor *x,
                           const sl_tensor *residual, sli_dropout dropout, sl_tensor *sum,
                           sl_tensor *out, sli_norm_saved *saved);

/* Pushes both, and the other way round. */
sl_status sli_norm_save(sl_pass *pass, sli_norm_saved *saved);
sl_status sli_norm_pop(sl_pass *pass, sli_norm_saved *saved);
void sli_norm_saved_clear(sli_norm_saved *saved);

/* grad_sum = grad_out through the norm + grad_sum_in; grad_x = dropout'(grad_sum); adds to the
 * gradients of weight and bias. `grad_sum_in` and `grad_x` may be NULL; `grad_sum` may be either of
 * the incoming gradients. */
sl_status sli_norm_backward(const sli_layer_norm *norm, const sli_norm_saved *saved,
                            const sl_tensor *grad_out, const sl_tensor *grad_sum_in,
                            sli_dropout dropout, sl_tensor *grad_sum, sl_tensor *grad_x);

/* Bytes of what sli_norm_forward saves for an input of this shape. */
int64_t sli_norm_saved_bytes(const sl_shape *in);

#endif
