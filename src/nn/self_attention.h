/* Self-attention, for the layer that it is part of. */
#ifndef SLI_NN_SELF_ATTENTION_H
#define SLI_NN_SELF_ATTENTION_H

#include "sluice/module.h"

/* As the module's forward, with *out counted under `category`. */
sl_status sli_self_attention_forward(const sl_module *module, sl_pass *pass, const sl_tensor *in,
                                     sl_memory_category category, sl_tensor **out);

/* The module's backward but for its last product: pops what forward saved, adds to the gradients of
 * the parameters and makes the gradient of the projected input, [N, T, 3 D]. */
sl_status sli_self_attention_backward(const sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                      sl_tensor **grad_qkv);

/* The last product: grad_in = grad_qkv W + beta grad_in, [N, T, D]. */
sl_status sli_self_attention_backward_input(const sl_module *module, const sl_tensor *grad_qkv,
                                            float beta, sl_tensor *grad_in);

#endif
