/* The Transformer language model of PyTorch's tutorials. */
#ifndef SLUICE_MODEL_H
#define SLUICE_MODEL_H

#include "sluice/layers.h"

SL_API_BEGIN

/* Limits of sl_model_options, which catch typing errors. Below them no count of elements or bytes
 * overflows 63 bits. */
enum { SL_MAX_LAYERS = 10000, SL_MAX_WIDTH = 1 << 20 };

/* The names are the tutorials'. */
typedef struct sl_model_options {
    int64_t ntokens; /* tokens of the vocabulary */
    int64_t emsize;  /* width of the embeddings and of each layer; even */
    int64_t nhid;    /* width of the feed-forward networks' hidden layer */
    int64_t nlayers;
    int64_t nhead; /* attention heads; divides emsize */
    float dropout;
    sl_mask mask;
    sl_activation activation;
    bool pre_norm;
    bool position_is_parameter;
    bool tie;        /* the decoder's weight is the embedding's (sl_module_tie_parameter) */
    int64_t context; /* positions of the rows that it was trained on, which weights keep with it; 0:
                        not known. The model is the same for any */
} sl_model_options;

/* Sequential(Encoder, nlayers x TransformerEncoderLayer, Decoder): i32 [N, T] -> [N, T, ntokens].
 * Errors: SL_ERR_INVALID for sizes below 1, an nhead that does not divide emsize, an odd emsize,
 * and a dropout outside [0, 1). */
sl_status sl_transformer_lm_create(const sl_model_options *options, sl_module **out);

SL_API_END

#endif
