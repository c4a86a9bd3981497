/* What self-attention is made of, whichever names its parameters have. */
#ifndef SLI_NN_SELF_ATTENTION_H
#define SLI_NN_SELF_ATTENTION_H

#include "nn/layers.h"

typedef struct sli_self_attention {
    int64_t width, heads, key_heads, head_width;
    float dropout;
    sl_mask mask;
    bool rotates;                     /* queries and keys have rotary positions, */
    sli_rotary rotary;                /* these, but for the tensor and its rows */
    sli_linear in_proj;               /* PyTorch's, whose parameters are the module's own */
    const sli_linear *projections[3]; /* of the input to qkv's columns, each to its own */
    int projection_count;             /* 1 or 3 */
    const sli_layer_norm *norms[2];   /* of q's heads and of k's; NULL: none */
    const sli_linear *out_proj;
} sli_self_attention;

static inline int64_t sli_qkv_width(const sli_self_attention *self)
{
    return (self->heads + 2 * self->key_heads) * self->head_width;
}

static inline int64_t sli_attended_width(const sli_self_attention *self)
{
    return self->heads * self->head_width;
}

/* Those of a module whose state is a sli_self_attention. */
extern const sl_module_ops sli_attention_ops;

#endif
