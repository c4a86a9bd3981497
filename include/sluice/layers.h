/* The layers of Transformer language models, with PyTorch's names, layouts and initial values.
 *
 * Batches come first: token ids are i32 [N, T], activations f32 [N, T, D]. The caller owns a module
 * until it gives it to another one (sl_module_append). Errors of all functions: SL_ERR_INVALID
 * for sizes below 1 and a dropout outside [0, 1), SL_ERR_MEMORY. */
#ifndef SLUICE_LAYERS_H
#define SLUICE_LAYERS_H

#include "sluice/module.h"

SL_API_BEGIN

typedef enum sl_activation {
    SL_ACTIVATION_RELU,
    SL_ACTIVATION_GELU,     /* x times the normal distribution's integral up to x */
    SL_ACTIVATION_GELU_TANH /* GELU(approximate="tanh"), the "gelu_new" of GPT-2: 0.5 x (1 +
                               tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
} sl_activation;
typedef enum sl_mask { SL_MASK_CAUSAL, SL_MASK_NONE } sl_mask;

extern const char *const sl_activation_names[]; /* "relu", "gelu", "gelu_tanh", NULL */
extern const char *const sl_mask_names[];       /* "causal", "none", NULL */

/* torch.nn.Linear: [..., in] -> [..., out]; `weight` [out, in], `bias` [out] (unless no_bias). */
sl_status sl_linear_create(int64_t in_features, int64_t out_features, bool no_bias,
                           sl_module **out);

/* torch.nn.LayerNorm over the last dimension: `weight`, `bias` [width]. eps 0 stands for 1e-5. */
sl_status sl_layer_norm_create(int64_t width, float eps, sl_module **out);

/* torch.nn.RMSNorm over the last dimension (Zhang and Sennrich, "Root Mean Square Layer
 * Normalization", 2019): x / sqrt(mean(x^2) + eps) * weight; `weight` [width]. eps 0 stands for
 * 1e-6, that of transformers' LlamaRMSNorm. */
sl_status sl_rms_norm_create(int64_t width, float eps, sl_module **out);

/* torch.nn.ReLU and GELU, and torch.nn.Dropout, 0 <= p < 1. Dropout needs at least two
 * dimensions: the first counts samples, the last features, and those between them positions. */
sl_status sl_activation_create(sl_activation activation, sl_module **out);
sl_status sl_dropout_create(float p, sl_module **out);

/* torch.nn.Softmax over the last dimension. It has no kernel: it runs in the stage's thread, on a
 * copy where the device's memory is not the host's. */
sl_status sl_softmax_create(sl_module **out);

/* y = x + branch(x), where the branch keeps the shape: the residual connection of He et al., "Deep
 * Residual Learning for Image Recognition" (2016). Takes *branch, whose parameters are then named
 * "branch.…". `created` is the status of the call that made it, as for sl_module_append; on any
 * error *branch is destroyed and NULL. Errors: `created`; of forward, SL_ERR_INVALID for a branch
 * that gives another shape. */
sl_status sl_residual_create(sl_status created, sl_module **branch, sl_module **out);

/* LlamaMLP of transformers, down_proj(silu(gate_proj(x)) * up_proj(x)) (Shazeer, "GLU Variants
 * Improve Transformer", 2020): [..., width] -> [..., width]; `gate_proj.weight` and
 * `up_proj.weight` [hidden, width], `down_proj.weight` [width, hidden], no biases. Initial values
 * are Linear's. */
sl_status sl_swiglu_create(int64_t width, int64_t hidden, sl_module **out);

/* torch.nn.MultiheadAttention as self-attention: [N, T, D] -> [N, T, D]; `in_proj_weight` [3D, D],
 * `in_proj_bias` [3D], `out_proj.weight` [D, D], `out_proj.bias` [D]. `dropout` is applied to the
 * probabilities. Errors: also SL_ERR_INVALID where `heads` does not divide `width`. */
sl_status sl_self_attention_create(int64_t width, int64_t heads, float dropout, sl_mask mask,
                                   sl_module **out);

typedef struct sl_encoder_layer_options {
    int64_t width, heads, feed_forward;
    float dropout; /* of the attention's probabilities, both branches' outputs, the hidden layer */
    sl_mask mask;
    sl_activation activation;
    bool pre_norm; /* norm_first=True */
} sl_encoder_layer_options;

/* torch.nn.TransformerEncoderLayer(batch_first=True), eps 1e-5: `self_attn.*`, `linear1.*`,
 * `linear2.*`, `norm1.*`, `norm2.*`. Errors: as sl_self_attention_create. */
sl_status sl_encoder_layer_create(const sl_encoder_layer_options *options, sl_module **out);

/* Whose decoder a layer is, in transformers' names, order and layouts of weights.
 *
 *   LLAMA   self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj (SwiGLU), input_layernorm,
 *           post_attention_layernorm (RMSNorm), self_attn.{q,k}_norm; weights [out, in]
 *   GPT2    ln_1, attn.{c_attn,c_proj}, ln_2, mlp.{c_fc,c_proj}; weights [in, out] (Conv1D), the
 *           columns of c_attn q's, then k's, then v's */
typedef enum sl_naming { SL_NAMING_LLAMA, SL_NAMING_GPT2 } sl_naming;

typedef enum sl_rotary_kind {
    SL_ROTARY_NONE,
    SL_ROTARY_DEFAULT,
    SL_ROTARY_LINEAR, /* all angles divided by `factor` */
    SL_ROTARY_LLAMA3  /* the slow ones alone */
} sl_rotary_kind;

extern const char *const sl_rotary_names[]; /* "none", "default", "linear", "llama3", NULL */

/* Rotary positions (Su et al., "RoFormer", 2021) with transformers' names and halves: columns i and
 * i + d / 2 of a head of d turn by theta^(-2 i / d) radians for each position. */
typedef struct sl_rotary_options {
    sl_rotary_kind kind;
    double theta;
    double factor;                            /* LINEAR, LLAMA3 */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    int64_t original_positions;               /* LLAMA3: original_max_position_embeddings */
} sl_rotary_options;

typedef struct sl_decoder_layer_options {
    sl_naming naming;
    int64_t width, heads, feed_forward;
    int64_t key_heads;        /* of keys and values, a divisor of heads; 0: heads */
    int64_t head_width;       /* 0: width / heads */
    sl_rotary_options rotary; /* LLAMA: of queries and keys */
    float norm_eps;           /* 0: the norm's own */
    sl_activation activation; /* GPT2 */
    float attention_dropout;  /* of the probabilities */
    float residual_dropout;   /* of both branches' outputs */
    bool qkv_bias, output_bias;
    bool qk_norm; /* LLAMA: an RMSNorm of each head of queries and of keys, as Qwen3 has */
    /* Standard deviations of the weights' normal initial values, and of those of the products to
     * the branches' outputs; 0: uniform in ±1 / sqrt(in). Biases begin as 0. */
    float deviation, output_deviation;
} sl_decoder_layer_options;

/* The layer of a decoder, which sees the positions before each: x += attention(norm1(x)),
 * x += feed_forward(norm2(x)): [N, T, D] -> [N, T, D]. Errors: also SL_ERR_INVALID where `heads`
 * has to divide `width` and does not, for key_heads that do not divide `heads`, and for rotary
 * positions of an odd head_width or of one above 256. */
sl_status sl_decoder_layer_create(const sl_decoder_layer_options *options, sl_module **out);

/* The attention of such a layer alone, causal, with grouped key heads (Ainslie et al., "GQA", 2023)
 * where key_heads is below heads: [N, T, D] -> [N, T, D]; `q_proj.weight`, … `o_proj.weight`, with
 * qk_norm `q_norm.weight` and `k_norm.weight`, or GPT-2's `c_attn.weight` and `c_proj.weight`. Of
 * the options `feed_forward`, `activation` and `residual_dropout` say nothing. Errors: as
 * sl_decoder_layer_create. */
sl_status sl_decoder_attention_create(const sl_decoder_layer_options *options, sl_module **out);

enum { SL_MAX_POSITIONS = 5000 }; /* the positional encoding's length, as in the tutorials */

typedef struct sl_embedding_options {
    int64_t ntokens, width;
    int64_t max_len; /* 0: SL_MAX_POSITIONS */
    float dropout;
    bool position_is_parameter; /* the positional encoding is a frozen parameter, not a buffer */
    bool learned_positions;     /* two trained tables, as GPT-2 has */
} sl_embedding_options;

/* The tutorials' Encoder: i32 [N, T] -> [N, T, D]: embedding * sqrt(D), plus the sinusoidal
 * positional encoding, then dropout. `encoder.weight` [ntokens, D], uniform in ±0.1;
 * `pos_encoder.pe` [max_len, 1, D]. With learned_positions GPT-2's: dropout(wte[id] + wpe[t]), two
 * trained tables `wte.weight` [ntokens, D] and `wpe.weight` [max_len, D], normal with deviation
 * 0.02; position_is_parameter is not used then. Errors: also SL_ERR_INVALID for an odd width
 * without learned_positions; of forward,
 * SL_ERR_INVALID for a T over max_len, and for an id out of range, which the error names with its
 * position. */
sl_status sl_embedding_create(const sl_embedding_options *options, sl_module **out);

/* torch.nn.Embedding: i32 [N, T] -> [N, T, D], the rows of `weight` [ntokens, D] that the ids name.
 * Initial values are uniform in ±0.1, where PyTorch's are normal. Errors: also, of forward,
 * SL_ERR_INVALID for an id out of range, which the error names with its position. */
sl_status sl_token_embedding_create(int64_t ntokens, int64_t width, sl_module **out);

/* The tutorials' Decoder: [N, T, D] -> [N, T, ntokens]; `decoder.weight` uniform in ±0.1,
 * `decoder.bias` 0. */
sl_status sl_decoder_create(int64_t width, int64_t ntokens, sl_module **out);

SL_API_END

#endif
