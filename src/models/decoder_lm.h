/* Language models of decoder layers. */
#ifndef SLI_MODELS_DECODER_LM_H
#define SLI_MODELS_DECODER_LM_H

#include "sluice/model.h"

typedef struct sli_decoder_lm {
    sl_decoder_layer_options layer;
    int64_t ntokens, nlayers;
    int64_t positions;        /* most tokens of a row; GPT2 has learned so many */
    float embedding_dropout;  /* GPT2 */
    bool tie;                 /* lm_head's weight is the embedding's */
    int64_t no_rope_interval; /* every so many layers one has no rotary positions; 0: none */
} sli_decoder_lm;

/* Sequential(embedding, nlayers x DecoderLayer, norm, Linear without bias): i32 [N, T] ->
 * [N, T, ntokens]: transformers' GPT2LMHeadModel, or the LlamaForCausalLM of several families,
 * whose parameters have the names and layouts that they have there. Errors: SL_ERR_INVALID for
 * sizes below 1, and what sl_decoder_layer_create refuses. */
sl_status sli_decoder_lm_create(const sli_decoder_lm *options, sl_module **out);

#endif
