/* Products with a weight, for every layer that has one: y = epilogue(x W^T + bias). */
#ifndef SLI_NN_LINEAR_H
#define SLI_NN_LINEAR_H

#include "device/device.h"
#include "sluice/module.h"

typedef struct sli_linear {
    int64_t in, out;
    sl_parameter *weight; /* [out, in] */
    sl_parameter *bias;   /* [out], or NULL */
} sli_linear;

/* What follows the bias, and what its backward needs. */
typedef struct sli_linear_epilogue {
    sli_activation activation;
    sl_tensor *preactivation; /* forward: gets x W^T + bias; NULL: nobody needs it */
    sli_dropout dropout;
} sli_linear_epilogue;

/* Declares `weight_name` and (unless NULL) `bias_name` in `module`, uniform in ±weight_bound and
 * ±bias_bound. */
sl_status sli_linear_declare(sl_module *module, const char *weight_name, float weight_bound,
                             const char *bias_name, float bias_bound, sli_linear *linear);

/* A torch.nn.Linear module with these bounds in place of ±1 / sqrt(in). */
sl_status sli_linear_create(int64_t in, int64_t out_features, bool no_bias, float weight_bound,
                            float bias_bound, sl_module **out);

/* The Linear module's own; NULL for any other module. */
const sli_linear *sli_module_as_linear(const sl_module *module);

/* out [rows, out] from in [rows, in]; `epilogue` may be NULL. */
sl_status sli_linear_forward(const sli_linear *linear, const sl_tensor *in,
                             const sli_linear_epilogue *epilogue, sl_tensor *out);

/* Backward in three parts, in this order.
 *
 * Takes `grad` [rows, out] back through the epilogue (may be NULL), in place, and adds its column
 * sums to the bias's gradient. `saved` is the epilogue's output for RELU, the pre-activation for
 * GELU, NULL without activation. */
sl_status sli_linear_backward_epilogue(const sli_linear *linear,
                                       const sli_linear_epilogue *epilogue, const sl_tensor *saved,
                                       sl_tensor *grad);

/* Adds grad^T in to the weight's gradient. */
sl_status sli_linear_backward_weight(const sli_linear *linear, const sl_tensor *grad,
                                     const sl_tensor *in);

/* grad_in [rows, in] = grad W + beta grad_in. */
sl_status sli_linear_backward_input(const sli_linear *linear, const sl_tensor *grad, float beta,
                                    sl_tensor *grad_in);

#endif
