/* Language models: that of PyTorch's tutorials, and decoders of the families that are published as
 * directories of Hugging Face. */
#ifndef SLUICE_MODEL_H
#define SLUICE_MODEL_H

#include "sluice/layers.h"

SL_API_BEGIN

/* Limits of sl_model_options, which catch typing errors. Below them no count of elements or bytes
 * overflows 63 bits. */
enum { SL_MAX_LAYERS = 10000, SL_MAX_WIDTH = 1 << 20 };

/* Whose model it is, by the model_type of its config.json. */
typedef enum sl_family {
    SL_FAMILY_TUTORIALS,
    SL_FAMILY_GPT2,
    SL_FAMILY_LLAMA,
    SL_FAMILY_MISTRAL,
    SL_FAMILY_QWEN2,
    SL_FAMILY_QWEN3,
    SL_FAMILY_SMOLLM3
} sl_family;

/* "sluice_transformer", "gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", NULL. */
extern const char *const sl_family_names[];

/* What families but the tutorials' have besides. */
enum { SL_TOKEN_IDS_BYTES = 256 };

typedef struct sl_decoder_options {
    int64_t key_heads, head_width; /* 0: nhead; emsize / nhead */
    int64_t positions;             /* most tokens of a row */
    double norm_eps, deviation;    /* the norms' epsilon; of the initial values */
    sl_rotary_options rotary;
    int64_t no_rope_interval; /* every so many layers, one has no rotary positions; 0: all have */
    bool qkv_bias, output_bias;
    bool qk_norm;                       /* of the heads of queries and keys */
    char token_ids[SL_TOKEN_IDS_BYTES]; /* bos_token_id, eos_token_id and pad_token_id of its
                                           config.json, which saving keeps: the text of a JSON
                                           object; "": it has none */
} sl_decoder_options;

/* Low-rank adapters (Hu et al., "LoRA", 2021), which alone are trained: the output of some linear
 * layers becomes W x + scale B(A dropout(x)), where scale is alpha / rank. A is [rank, in], drawn
 * as the weight of torch.nn.Linear, B [out, rank], 0. Parameters are named
 * "….q_proj.lora_A.weight". */
enum { SL_LORA_TARGETS_BYTES = 256, SL_LORA_RANK = 8, SL_LORA_ALPHA = 16 };

typedef struct sl_lora_options {
    bool adapts;  /* there are adapters; else nothing here counts */
    bool rslora;  /* scale is alpha / sqrt(rank) */
    int64_t rank; /* 0: SL_LORA_RANK */
    float alpha;  /* 0: SL_LORA_ALPHA */
    float dropout;
    char targets[SL_LORA_TARGETS_BYTES]; /* names of layers, or ends of their paths, with commas
                                            between them; "all-linear": all but the head; "":
                                            q_proj,v_proj, or GPT-2's c_attn */
    int64_t first_layer, layer_end; /* the layers that have them: from this one on, before that; 0:
                                       to the last */
    const char *base; /* (optional) the model that is adapted, for adapter_config.json; borrowed */
} sl_lora_options;

/* Sets the targets from such a text. Errors: SL_ERR_INVALID for an empty name, and for a text that
 * is longer than its room. */
sl_status sl_lora_targets_set(sl_lora_options *options, const char *text);

/* The names are the tutorials'. Other families use pre_norm, a causal mask and no
 * position_is_parameter; the Llama ones neither `activation`. */
typedef struct sl_model_options {
    sl_family family;
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
    sl_decoder_options decoder;
    sl_lora_options lora;
    int64_t train_layers; /* the last so many layers alone are trained, or have adapters; 0: all */
    bool base_is_bf16;    /* with adapters: the frozen weights' numbers are bf16 ones, as those of
                             most published files; where products are of bf16 they are in memory
                             once */
    const char *freeze;   /* parameters that are not trained: patterns of their names, as fnmatch
                             takes them, with commas between them; borrowed; NULL: none */
} sl_model_options;

/* The options of a published model by its name, one of sl_model_names. Errors: SL_ERR_NOT_FOUND. */
sl_status sl_model_options_named(const char *name, sl_model_options *out);
extern const char *const sl_model_names[]; /* "gpt2", "smollm2-135m", ..., NULL */

enum { SL_MAX_CONTEXT = 1 << 20 }; /* of any model */

/* The most tokens that a row may have. */
int64_t sl_model_positions(const sl_model_options *options);

/* i32 [N, T] -> [N, T, ntokens]. The tutorials' is Sequential(Encoder, nlayers x
 * TransformerEncoderLayer, Decoder). Others are Sequential(embedding, nlayers x DecoderLayer, norm,
 * head), with transformers' names and layouts of parameters: "model.layers.0.mlp.up_proj.weight".
 * Errors: SL_ERR_INVALID for sizes below 1, an nhead that does not divide emsize, an odd emsize,
 * a dropout outside [0, 1), layers to train that there are not, an adapter of the tutorials' model,
 * one of a layer that there is not or whose rank is above the layer's widths, a pattern of `freeze`
 * that no name matches, and one that leaves nothing to train. */
sl_status sl_transformer_lm_create(const sl_model_options *options, sl_module **out);

SL_API_END

#endif
