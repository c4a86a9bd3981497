/* A Transformer layer's feed-forward part: y = linear2(h), h = dropout(act(linear1(x))). */
#ifndef SLI_NN_FEED_FORWARD_H
#define SLI_NN_FEED_FORWARD_H

#include "nn/linear.h"

typedef struct sli_feed_forward {
    const sli_linear *linear1; /* [D] -> [F] */
    const sli_linear *linear2; /* [F] -> [D] */
    sli_activation activation;
} sli_feed_forward;

/* *y [N, T, D], workspace, from x [N, T, D]. Saves x, the pre-activation (GELU) and h. */
sl_status sli_feed_forward_run(const sli_feed_forward *self, sl_pass *pass, sli_dropout dropout,
                               const sl_tensor *x, sl_tensor **y);

/* grad_x = gradient of x + beta grad_x; adds to the gradients of the parameters. Destroys *grad_y,
 * which may share grad_x's storage. */
sl_status sli_feed_forward_backward(const sli_feed_forward *self, sl_pass *pass,
                                    sli_dropout dropout, sl_tensor **grad_y, float beta,
                                    sl_tensor *grad_x);

/* What sli_feed_forward_run saves, x among it. */
int64_t sli_feed_forward_saved_bytes(const sli_feed_forward *self, const sl_shape *x);

#endif
