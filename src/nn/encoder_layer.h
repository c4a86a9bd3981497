/* What a Transformer layer is made of, whichever names its children have. */
#ifndef SLI_NN_ENCODER_LAYER_H
#define SLI_NN_ENCODER_LAYER_H

#include "nn/layers.h"

typedef struct sli_encoder_layer {
    int64_t width, hidden;
    float hidden_dropout, residual_dropout;
    bool pre_norm;
    sli_activation activation;
    sl_module *self_attn;
    sl_module *swiglu;         /* NULL: the two linear layers */
    const sli_linear *linear1; /* [D] -> [F] */
    const sli_linear *linear2; /* [F] -> [D] */
    const sli_layer_norm *norm1, *norm2;
} sli_encoder_layer;

/* Those of a layer with pre_norm whose state is a sli_encoder_layer. */
extern const sl_module_ops sli_decoder_layer_ops;

/* Sets the module's cached_columns: beside the input three tensors of the layer's width, qkv, what
 * is attended where it has another width, and the hidden ones. */
void sli_encoder_layer_count_cached(sl_module *module);

#endif
