/* What the layers use of each other: checks, products with a weight, norms, self-attention. */
#ifndef SLI_NN_LAYERS_H
#define SLI_NN_LAYERS_H

#include "device/device.h"
#include "sluice/layers.h"

/* ---- Checks (checks.c) ------------------------------------------------------------------ */

/* Refuses a shape unless it has at least `dims` dimensions, none of them empty, the last of
 * `width`. */
sl_status sli_shape_check_width(const sl_shape *in, int dims, int64_t width);

/* Slot `widths` of modules whose output has the input's width, whatever it is. */
void sli_width_kept(const sl_module *module, int64_t *in, int64_t *out);

/* Slot `can_continue` of modules that work on each position by itself. */
bool sli_always_continues(const sl_module *module);

/* Refuses a tensor of another data type. `what` begins the error's text: "the input". */
sl_status sli_check_dtype(const char *what, const sl_tensor *tensor, sl_dtype dtype);

/* Refuses a gradient that is not f32, or does not have its output's shape. */
sl_status sli_check_grad(const sl_tensor *grad_out, const sl_shape *output);

/* Rows of the matrix that a shape is: all dimensions but the last. */
int64_t sli_shape_rows(const sl_shape *shape);

/* Refuses a probability unless 0 <= p < 1. `who` begins the error's text. */
sl_status sli_check_dropout(const char *who, float p);

/* The kernels' name of an activation. */
sli_activation sli_activation_of(sl_activation activation);

/* ---- Products with a weight: y = epilogue(x W^T + bias) (linear.c) ---------------------- */

struct sli_linear;

/* What is added to a product, scale B(A dropout(x)) (lora.c). */
typedef struct sli_lora {
    const struct sli_linear *a; /* [in] -> [rank]; NULL: nothing is */
    const struct sli_linear *b; /* [rank] -> [out] */
    const sl_module *module;    /* A's */
    float scale, dropout;
} sli_lora;

typedef struct sli_linear {
    int64_t in, out;
    bool is_conv1d;       /* the weight is [in, out], as that of transformers' Conv1D */
    int64_t column;       /* y is columns of a wider tensor, from this one on */
    float deviation;      /* of the weight's initial values, normal with mean 0; 0: uniform */
    sl_parameter *weight; /* [out, in] */
    sl_parameter *bias;   /* [out], or NULL */
    sli_lora lora;
} sli_linear;

/* What follows the bias, and what its backward needs. */
typedef struct sli_linear_epilogue {
    sli_activation activation;
    sl_tensor *preactivation; /* forward: gets x W^T + bias; NULL: not needed */
    sl_tensor *rounded;       /* bf16, gets the result, where the device stores bf16; the f32 tensor
                                 of the result, or the gradient, is then only room for it; NULL */
    sli_dropout dropout;
} sli_linear_epilogue;

/* Declares `weight_name` and (unless NULL) `bias_name` in `module`, uniform in ±weight_bound (or
 * normal, see `deviation`) and ±bias_bound. */
sl_status sli_linear_declare(sl_module *module, const char *weight_name, float weight_bound,
                             const char *bias_name, float bias_bound, sli_linear *linear);

/* A torch.nn.Linear module with these bounds in place of ±1 / sqrt(in). */
sl_status sli_linear_create(int64_t in, int64_t out_features, bool no_bias, float weight_bound,
                            float bias_bound, sl_module **out);

/* A Linear as described, but for weight and bias, which it declares; the bias is 0. */
sl_status sli_linear_create_as(const sli_linear *description, bool no_bias, sl_module **out);

/* The linear layer of a Linear or a Decoder; NULL for any other module. */
const sli_linear *sli_module_as_linear(const sl_module *module);

bool sli_linear_trains_bias(const sli_linear *linear);

/* The same without a bias, uniform in ±bound. */
sl_status sli_linear_create_bound(const sli_linear *description, float bound, sl_module **out);

/* The bound of torch.nn.Linear's initial values, 1 / sqrt(in). */
float sli_linear_bound(int64_t in);

/* out [rows, out] from in [rows, in]; `epilogue` may be NULL, and must be where `out` is wider than
 * the product. `pass` may be NULL where the layer has no adapter, here and below. */
sl_status sli_linear_forward(const sli_linear *linear, const sl_pass *pass, const sl_tensor *in,
                             const sli_linear_epilogue *epilogue, sl_tensor *out);

/* out = epilogue(in W^T + bias + beta out), without the adapter. */
sl_status sli_linear_product(const sli_linear *linear, const sl_tensor *in, float beta,
                             const sli_linear_epilogue *epilogue, sl_tensor *out);

/* Backward in two steps, in this order.
 *
 * Takes `grad` [rows, out] back through the epilogue (may be NULL), in place, and adds its column
 * sums to the bias's gradient. `saved` is the epilogue's output for RELU, the pre-activation for
 * both GELUs, NULL without activation. */
sl_status sli_linear_backward_epilogue(const sli_linear *linear,
                                       const sli_linear_epilogue *epilogue, const sl_tensor *saved,
                                       sl_tensor *grad);

/* Adds grad^T in to the weight's gradient, unless the weight is frozen, and to those of an adapter;
 * or, while the pass is split, defers both tensors to sli_linear_deferred_weight, and neither may
 * be overwritten. Then grad_in [rows, in] = grad W + beta grad_in, where grad_in is not NULL. `in`
 * is an operand. */
sl_status sli_linear_backward_products(const sli_linear *linear, sl_pass *pass,
                                       const sl_tensor *grad, const sl_tensor *in, float beta,
                                       sl_tensor *grad_in);
sl_status sli_linear_deferred_weight(const sli_linear *linear, sl_pass *pass);

/* Is a gradient of its weight, or of its adapter's, computed? Else `in` may be NULL above. */
bool sli_linear_trains(const sli_linear *linear);

/* Bytes that sli_linear_backward_products defers for `rows` rows. */
int64_t sli_linear_deferred_bytes(const sli_linear *linear, int64_t rows);

/* The products themselves; nothing for the weight where it is frozen. */
sl_status sli_linear_add_weight(const sli_linear *linear, const sl_pass *pass,
                                const sl_tensor *grad, const sl_tensor *in);

/* grad_in [rows, in] = grad W + beta grad_in. */
sl_status sli_linear_backward_input(const sli_linear *linear, const sl_pass *pass,
                                    const sl_tensor *grad, float beta, sl_tensor *grad_in);

/* ---- Adapters of products (lora.c) ------------------------------------------------------ */

/* Gives a Linear an adapter, its children "lora_A" and "lora_B": A begins as torch.nn.Linear's
 * weight does, B with 0. Errors: SL_ERR_INVALID for a rank above the layer's widths. */
sl_status sli_linear_add_lora(sl_module *module, int64_t rank, float scale, float dropout);

/* out = epilogue(out + scale B(A dropout(x))). */
sl_status sli_lora_forward(const sli_linear *linear, const sl_pass *pass, const sl_tensor *x,
                           const sli_linear_epilogue *epilogue, sl_tensor *out);
/* Adds to the gradients of A and B, and to that of x. */
sl_status sli_lora_add_weights(const sli_linear *linear, const sl_pass *pass, const sl_tensor *grad,
                               const sl_tensor *x);
sl_status sli_lora_backward_input(const sli_linear *linear, const sl_pass *pass,
                                  const sl_tensor *grad, sl_tensor *grad_in);

/* Where the parameter is the weight of a layer with an adapter: adds scale B A to it, and makes B
 * 0.
 */
sl_status sli_lora_merge(const sl_parameter *weight);

/* Floating-point operations of its forward; 0 without one. */
int64_t sli_lora_flops(const sli_linear *linear, int64_t rows);

/* ---- Layer norm and RMSNorm, fused with the sum before them (layer_norm.c) -------------- */

typedef struct sli_layer_norm {
    int64_t width;
    float eps;
    sl_parameter *weight, *bias; /* [width]; bias NULL: it is an RMSNorm */
} sli_layer_norm;

/* The state of a LayerNorm or RMSNorm module. */
const sli_layer_norm *sli_layer_norm_of(const sl_module *module);

/* What a norm leaves for its backward; NULL on a pass that does not keep. */
typedef struct sli_norm_saved {
    sl_tensor *normalized; /* the shape of the input */
    sl_tensor *rstd;       /* [rows] */
} sli_norm_saved;

/* sum = residual + dropout(x), out = norm(sum). `residual` and `sum` may be NULL; `sum` may be
 * `residual` (see sli_add_norm). On a device that stores bf16, `out` may be bf16, or `rounded`
 * (else NULL) gets it in bf16 as well. Makes what `saved` holds; on an error it is empty. */
sl_status sli_norm_forward(const sli_layer_norm *norm, const sl_pass *pass, const sl_tensor *x,
                           const sl_tensor *residual, sli_dropout dropout, sl_tensor *sum,
                           sl_tensor *out, sl_tensor *rounded, sli_norm_saved *saved);

/* Pushes both, and the other way round. */
sl_status sli_norm_save(sl_pass *pass, sli_norm_saved *saved);
sl_status sli_norm_pop(sl_pass *pass, sli_norm_saved *saved);
void sli_norm_saved_clear(sli_norm_saved *saved);

/* grad_sum = grad_out through the norm + grad_sum_in; grad_x = dropout'(grad_sum); adds to the
 * gradients of weight and bias. `grad_sum_in` and `grad_x` may be NULL; `grad_sum` may be either of
 * the incoming gradients. */
sl_status sli_norm_backward(const sli_layer_norm *norm, const sli_norm_saved *saved,
                            const sl_tensor *grad_out, const sl_tensor *grad_sum_in,
                            sli_dropout dropout, sl_tensor *grad_sum, sl_tensor *grad_x);

/* RMSNorm of `heads` heads of an f32 matrix, which lie next to each other from a column on, in
 * place, and its gradient. What is saved is cleared by the caller, also after an error. */
sl_status sli_norm_heads_forward(const sli_layer_norm *norm, const sl_pass *pass, sl_tensor *matrix,
                                 int64_t column, int64_t heads, sli_norm_saved *saved);
sl_status sli_norm_heads_backward(const sli_layer_norm *norm, const sli_norm_saved *saved,
                                  sl_tensor *grad, int64_t column, int64_t heads);

/* Bytes of what sli_norm_forward saves for an input of this shape. */
int64_t sli_norm_saved_bytes(const sl_shape *in);

/* ---- Rotary positions (rotary.c) -------------------------------------------------------- */

/* [head_width / 2] radians a position. */
void sli_rotary_frequencies(const sl_rotary_options *options, int64_t head_width,
                            float frequencies[SLI_ROTARY_PAIRS]);

/* Errors: SL_ERR_INVALID for a head_width that cannot be halved, and numbers that are missing. */
sl_status sli_rotary_check(const char *who, const sl_rotary_options *options, int64_t head_width);

/* ---- Self-attention (self_attention.c) -------------------------------------------------- */

/* As the module's forward, with *out counted under `category`. */
sl_status sli_self_attention_forward(const sl_module *module, sl_pass *pass, const sl_tensor *in,
                                     sl_memory_category category, sl_tensor **out);

/* The module's backward: pops what forward saved and adds to the gradients of the parameters.
 * grad_in = gradient of the input + beta grad_in, [N, T, D]; NULL: it is not needed. It may be
 * grad_out, unless the pass is split: grad_out is kept for backward_weight then. */
sl_status sli_self_attention_backward(const sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                      float beta, sl_tensor *grad_in);
sl_status sli_self_attention_backward_weight(sl_module *module, sl_pass *pass);

/* ---- SwiGLU (swiglu.c) ------------------------------------------------------------------ */

/* A SwiGLU whose weights are normal with this deviation; 0: Linear's initial values. */
sl_status sli_swiglu_create(int64_t width, int64_t hidden, float deviation, sl_module **out);

/* As the functions of self-attention: `grad_in` may lie over `grad_out` unless the pass is split.
 */
sl_status sli_swiglu_run_forward(const sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_memory_category category, sl_tensor **out);
sl_status sli_swiglu_run_backward(const sl_module *module, sl_pass *pass, const sl_tensor *grad_out,
                                  float beta, sl_tensor *grad_in);
sl_status sli_swiglu_run_backward_weight(sl_module *module, sl_pass *pass);

/* ---- Documents of packed rows (documents.c) ---------------------------------------------- */

/* Positions `first` … of all rows' N T. */
typedef struct sli_document {
    int64_t sample, first, length;
} sli_document;

typedef struct sli_documents {
    int64_t samples, positions, count;
    sli_document all[]; /* [count] */
} sli_documents;

/* Those of the values of SL_DOCUMENTS_INPUT; to be freed. Errors: SL_ERR_INVALID for another shape
 * or type, and numbers that neither count up nor begin anew. */
sl_status sli_documents_read(const sl_tensor *numbers, sli_documents **out);

/* The operations on a pass's rows [N, T]: where it has documents, on each alone; where it has
 * caches, positions go on behind those in a row's. `has_positions`: forward added positions.
 * Errors: the device's; of forward, SL_ERR_INVALID for documents of other rows. */
sl_status sli_attend(const sl_pass *pass, const sli_attention *rows);
sl_status sli_attend_backward(const sl_pass *pass, const sli_attention_backward *rows);
sl_status sli_rotate(const sl_pass *pass, const sli_rotary *rows);
sl_status sli_embed(const sl_pass *pass, const sli_embedding *rows);
sl_status sli_embed_backward(const sl_pass *pass, const sli_embedding_backward *rows,
                             bool has_positions);

/* ---- Caches (cache.c) -------------------------------------------------------------------- */

/* The attention of each row's positions, f32 [N, T, …] in `qkv`, to those in its cache, which has
 * their keys and values afterwards, in `dtype` (f32 or bf16); and their queries, where the device
 * takes no keys (sli_device_takes_keys). `heads` has what all rows have in common. Errors:
 * those of sl_pass_cache_tensor, and the device's. */
sl_status sli_attend_in_caches(const sl_pass *pass, const sl_module *module,
                               const sli_attention *heads, sl_dtype dtype, const sl_tensor *qkv,
                               sl_tensor *attended);

/* ---- Embedding (embedding.c) ------------------------------------------------------------ */

/* sl_token_embedding_create with normal initial values of this deviation. */
sl_status sli_token_embedding_create(int64_t ntokens, int64_t width, float deviation,
                                     sl_module **out);

/* ---- Cross entropy (cross_entropy.c) ---------------------------------------------------- */

/* Are these the targets of the rows of `in`, which goes into the layer `last`? As
 * sl_cross_entropy_create's loss finds out, with its errors. */
sl_status sli_cross_entropy_check_targets(const sl_tensor *targets, const sl_tensor *in,
                                          const sli_linear *last);

/* Bytes of workspace that the loss of `rows` rows needs when it takes over a linear layer to
 * `classes`. */
int64_t sli_cross_entropy_workspace_bytes(int64_t rows, int64_t classes, sl_precision precision,
                                          bool on_host);

#endif
