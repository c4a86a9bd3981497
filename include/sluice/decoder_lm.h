/* The decoder-only Transformers of the GPT-2 and Llama families: what differs between them. */
#ifndef SLUICE_DECODER_LM_H
#define SLUICE_DECODER_LM_H

#include "sluice/layers.h"

SL_API_BEGIN

typedef enum sl_norm_kind { SL_NORM_LAYER, SL_NORM_RMS } sl_norm_kind;

/* How rotary embeddings' frequencies are scaled: `rope_type` of Hugging Face's config.json. */
typedef enum sl_rotary_scaling {
    SL_ROTARY_DEFAULT,
    SL_ROTARY_LINEAR, /* frequency / factor */
    SL_ROTARY_LLAMA3  /* by wavelength, between frequency and frequency / factor */
} sl_rotary_scaling;

/* Rotary position embedding (Su et al., "RoFormer", 2021) of the pairs (i, i + head_width / 2). */
typedef struct sl_rotary_options {
    double theta; /* 0: no rotary embedding */
    sl_rotary_scaling scaling;
    double factor;                  /* LINEAR, LLAMA3 */
    double low_factor, high_factor; /* LLAMA3 */
    int64_t original_positions;     /* LLAMA3 */
} sl_rotary_options;

/* Blocks before whose branches the norm stands: x += attention(norm1 x), x += mlp(norm2 x). */
typedef struct sl_decoder_lm_options {
    int64_t ntokens;      /* rows of the embedding and of the head */
    int64_t width;        /* of the embeddings and of each layer */
    int64_t feed_forward; /* width of the hidden layer */
    int64_t layers;
    int64_t heads;           /* of queries */
    int64_t key_value_heads; /* divides `heads` */
    int64_t head_width;      /* even where there are rotary embeddings */
    int64_t max_positions;   /* the longest row */
    sl_norm_kind norm;
    float norm_eps;
    sl_activation activation;
    bool gated;             /* down(activation(gate x) * up x); else down(activation(up x)) */
    bool learned_positions; /* [max_positions, width], added to the embeddings */
    sl_rotary_options rotary;
    int64_t no_rotary_interval; /* layers k - 1, 2 k - 1, … have none; 0: all have them */
    bool query_bias;            /* of q, k and v */
    bool output_bias;           /* of the attention's output projection */
    bool feed_forward_bias;
    bool query_norm; /* an RMSNorm of each head's q and k, before the rotary embedding */
    bool tie;        /* the head's weight is the embedding's */
    float embedding_dropout, attention_dropout, residual_dropout;
    float deviation;        /* of the normal distribution that weights are drawn from */
    float output_deviation; /* of the two projections that end a block's branches; 0: `deviation` */
} sl_decoder_lm_options;

SL_API_END

#endif
