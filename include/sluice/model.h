/* The Transformer language model of PyTorch's tutorials. */
#ifndef SLUICE_MODEL_H
#define SLUICE_MODEL_H

#include "sluice/layers.h"

SL_API_BEGIN

/* Larger numbers are typing errors: a layer takes a few kB before it has any memory on a device.
 * Below these limits no count of elements or bytes overflows 63 bits. */
enum { SL_MAX_LAYERS = 10000, SL_MAX_WIDTH = 1 << 20 };

typedef struct sl_model_options {
    int64_t ntokens, emsize, nhid, nlayers, nhead;
    float dropout;
    sl_mask mask;
    sl_activation activation;
    bool pre_norm;
    bool position_is_parameter;
    bool tie; /* the decoder's weight is the embedding's (sl_module_tie_parameter) */
} sl_model_options;

/* Sequential(Encoder, nlayers x TransformerEncoderLayer, Decoder): i32 [N, T] -> [N, T, ntokens].
 * Errors: SL_ERR_INVALID for sizes below 1, an nhead that does not divide emsize, an odd emsize,
 * and a dropout outside [0, 1). */
sl_status sl_transformer_lm_create(const sl_model_options *options, sl_module **out);

SL_API_END

#endif
