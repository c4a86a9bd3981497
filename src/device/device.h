/* The device interface: what a device must be able to do for training.
 *
 * A device is a table of operations over memory that it owns. The library calls the functions at
 * the end of this file, which check the arguments; an implementation (cpu/) fills the table behind
 * them (device_base.h) and only computes.
 *
 * All matrices are row-major; `ld` is the distance between rows in elements. An operation may be
 * queued when it returns, behind those before it; what gives the host a result has it on return.
 *
 * Numerics that every implementation keeps:
 *  - Shapes alone decide how an operation is cut into ranges, and the ranges' results are added
 *    in a fixed order: the result does not depend on the number of threads.
 *  - A row's result depends on that row alone wherever the mathematics say so; but a matrix
 *    product with another number of rows may round differently.
 *  - Operations documented as "adds" accumulate into what is there.
 *
 * Where a matrix has a field whose name ends in _bf16 beside it, one of the two is given: bf16 only
 * to a device that sli_device_stores_bf16. What is written there is rounded as sli_convert does. */
#ifndef SLI_DEVICE_DEVICE_H
#define SLI_DEVICE_DEVICE_H

#include "core/error.h"
#include "core/philox.h"
#include "sluice/device.h"

/* Inverted dropout on a matrix whose rows are (sample, position) pairs: element (row, column) is
 * kept with probability 1 - p and then scaled by 1 / (1 - p). Whether it is kept is a function of
 * the key, step, site, global sample, position and column (see core/philox.h):
 *   sample   = first_sample + row / rows_per_sample
 *   position = first_row + row % rows_per_sample
 *   group    = position * ceil(columns / 4) + column / 4,  word = column % 4
 *   kept     = sli_uniform_from_bits(word) >= p
 * Groups are below 2^SLI_GROUP_BITS, sites below 2^SLI_SITE_BITS.
 * p = 0 (also an all-zero struct) means no dropout at all. */
typedef struct sli_dropout {
    float p;
    sli_philox_key key;
    uint32_t step;
    uint32_t site;
    uint32_t first_sample;
    int64_t rows_per_sample;
    int64_t first_row; /* so many of a sample's rows come before these */
} sli_dropout;

typedef enum sli_activation {
    SLI_ACTIVATION_NONE,
    SLI_ACTIVATION_RELU,
    SLI_ACTIVATION_GELU,     /* the exact one, with erf, as PyTorch's default */
    SLI_ACTIVATION_GELU_TANH /* 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
} sli_activation;

/* c = epilogue(op(a) op(b) + beta c), [m, n]; op(a) is [m, k], op(b) is [k, n]. k may be 0 (a and b
 * NULL): then c = epilogue(beta c). a and b are both f32, or both bf16 with sums in f32. With
 * `tf32`, the elements of a and b are rounded to TF32 (11 significant bits); sums are f32.
 * The epilogue, in this order, each step optional: add `bias` [n] to every row; store the sum to
 * `preactivation` [m, n] with row distance ldc; apply `activation`; apply `dropout` (columns n). */
typedef struct sli_gemm {
    bool transpose_a, transpose_b;
    bool bf16;       /* a and b are */
    bool tf32;       /* only on a device with has_tf32; never together with bf16 */
    bool is_forward; /* heeds the device's batch_invariant; never together with transpose_a */
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    float beta; /* 0 (c is not read) or 1 */
    float *c;
    int64_t ldc;
    const float *bias;    /* [n] or NULL */
    float *preactivation; /* [m, n] or NULL */
    sli_activation activation;
    sli_dropout dropout;
    uint16_t *c_bf16; /* [m, n] dense, as well as c, which is then only room for the product; a
                         device may round the bias for it */
} sli_gemm;

/* out = epilogue(scale x), dense [rows, columns]: sli_gemm's epilogue without a product. out may be
 * x. */
typedef struct sli_epilogue {
    int64_t rows, columns;
    const float *x;
    float scale; /* 0: 1 */
    float *out;
    const float *bias;    /* [columns] or NULL */
    float *preactivation; /* [rows, columns] or NULL */
    sli_activation activation;
    sli_dropout dropout;
} sli_epilogue;

/* Gradient through an epilogue, in place on `grad` [rows, columns], whose rows and those of `saved`
 * are `ld` elements apart: dropout's, then the
 * activation's. For RELU, `saved` is the epilogue's output (0 where dropout or ReLU made it 0) or,
 * without dropout, the pre-activation: the gradient passes where saved > 0. For both GELUs, it is
 * the pre-activation. Then adds grad's column sums to `grad_bias` [columns] (or stores them when
 * beta is 0); grad_bias may be NULL. With activation NONE and no dropout it only sums. */
typedef struct sli_epilogue_backward {
    int64_t rows, columns, ld;
    float *grad;
    const uint16_t *grad_bf16; /* only for sums */
    const float *saved;        /* NULL with NONE */
    const uint16_t *saved_bf16;
    uint16_t *result_bf16; /* with an f32 grad, which is then not written */
    sli_activation activation;
    sli_dropout dropout;
    float beta;
    float *grad_bias;
} sli_epilogue_backward;

/* out[row] = dropout(table[ids[row]] * scale + positions[row % rows_per_sample]), [rows, width].
 * The table is f32, or bf16 as `table_bf16`. `positions` [>= rows_per_sample, width] may be NULL.
 * rows_per_sample is `dropout`'s own field, set also when p = 0. Ids outside 0 .. table_rows - 1
 * are the caller's mistake. */
typedef struct sli_embedding {
    int64_t rows, width, table_rows;
    const int32_t *ids;
    float scale;
    const float *table;
    const uint16_t *table_bf16;
    const float *positions;
    sli_dropout dropout;
    float *out;
} sli_embedding;

/* Adds scale * dropout'(grad_out[row]) to grad_table[ids[row]], rows in order. */
typedef struct sli_embedding_backward {
    int64_t rows, width, table_rows;
    const int32_t *ids;
    float scale;
    const float *grad_out;
    sli_dropout dropout;
    float *grad_table;
} sli_embedding_backward;

/* out = residual + dropout(x), [rows, width]. residual may be NULL; out may equal x or residual.
 * The gradient of dropout is the same dropout of the gradient. */
typedef struct sli_add_dropout {
    int64_t rows, width;
    const float *x;
    const float *residual;
    sli_dropout dropout;
    float *out;
} sli_add_dropout;

/* Rows that are columns of a wider matrix, as the heads of queries are: `count` rows lie next to
 * each other, and the next so many `ld` elements behind these. 0: all rows are dense. */
typedef struct sli_row_groups {
    int64_t count, ld;
} sli_row_groups;

/* sum = residual + dropout(x); out = layer_norm(sum) * weight + bias, over rows of `width`. With
 * `rms` it is RMSNorm (Zhang and Sennrich, 2019): the mean is taken as 0, and there is no bias.
 * residual may be NULL (sum = dropout(x)). `sum` may be NULL if it is not needed, or equal
 * x or residual (in place). `normalized` gets (sum - mean) * rstd, and rstd [rows] 1 /
 * sqrt(variance + eps); both NULL in evaluation. */
typedef struct sli_add_norm {
    int64_t rows, width;
    const float *x;
    const float *residual;
    sli_dropout dropout;
    float *sum;
    float *out;
    uint16_t *out_bf16; /* instead of out, or as well */
    bool rms;
    const float *weight, *bias; /* [width]; bias NULL with rms */
    float eps;
    float *normalized; /* [rows, width] */
    uint16_t *normalized_bf16;
    float *rstd;           /* [rows] */
    sli_row_groups groups; /* of x and out, which may then be the same, without residual and sum */
} sli_add_norm;

/* Gradient of sli_add_norm:
 *   grad_sum = (grad_out through the norm) + (grad_sum_in, if given)
 *   grad_x   = dropout'(grad_sum)      (may be NULL, or equal grad_sum when p = 0)
 * grad_sum is also the residual's gradient. May run in place: grad_sum may equal grad_out or
 * grad_sum_in. Adds to (beta 1) or stores (beta 0) grad_weight and grad_bias [width],
 * which is NULL with rms. */
typedef struct sli_add_norm_backward {
    int64_t rows, width;
    const float *grad_out;
    const uint16_t *grad_out_bf16;
    const float *grad_sum_in; /* NULL: sum went nowhere else */
    const float *normalized;
    const uint16_t *normalized_bf16;
    const float *rstd;
    bool rms;
    const float *weight;
    sli_dropout dropout;
    float *grad_sum;
    float *grad_x;
    uint16_t *grad_x_bf16;
    float beta;
    float *grad_weight, *grad_bias;
    sli_row_groups groups; /* of grad_out and grad_sum */
} sli_add_norm_backward;

/* out = silu(gate) * up, with silu(x) = x / (1 + e^-x), all dense [rows, width]: Shazeer, "GLU
 * Variants Improve Transformer" (2020). out may be gate or up. */
typedef struct sli_swiglu {
    int64_t rows, width;
    const float *gate, *up;
    float *out;
} sli_swiglu;

/* Gradient of sli_swiglu. */
typedef struct sli_swiglu_backward {
    int64_t rows, width;
    const float *gate, *up;
    const float *grad_out;
    float *grad_gate, *grad_up;
} sli_swiglu_backward;

/* Rotary positions (Su et al., "RoFormer", 2021), in place, of the first `heads` heads of rows that
 * lie `ld` elements apart. Columns i and i + head_width / 2 of a head are a pair, which turns by
 * frequencies[i] radians for each position; a row's position is first_position + row %
 * rows_per_sample, and their product is rounded to f32. `inverse` turns back, which is also the
 * gradient. */
enum { SLI_ROTARY_PAIRS = 128 };

typedef struct sli_rotary {
    int64_t rows, heads, head_width; /* head_width even, at most 2 SLI_ROTARY_PAIRS */
    int64_t ld, rows_per_sample, first_position;
    bool inverse;
    float *x;
    float frequencies[SLI_ROTARY_PAIRS]; /* [head_width / 2] */
} sli_rotary;

/* Multi-head self-attention between the projections. `qkv` [samples, positions, heads +
 * 2 key_heads, head_width] has the heads of q, then those of k, then those of v.
 * -> out [samples, positions, heads * head_width]:
 *   p = softmax(q k^T / sqrt(head_width) + mask), out = dropout(p) v
 * heads / key_heads heads of q that follow each other share one of k and v (Ainslie et al., "GQA",
 * 2023).
 * causal: position i sees 0 .. i. `dropout` is applied to p with, for its row numbering, one row
 * for each (sample, head, query): rows_per_sample = heads * positions, columns = positions.
 * `log_sum_exp` [samples, heads, queries] is stored for backward; NULL in evaluation. It is in q
 * k^T's unit, log(sum of e^(scale * score)) / scale with scale = 1 / sqrt(head_width), and as exact
 * as the largest score is.
 * With `bf16` or `tf32`, a device may round the elements of the products' matrices (q, k, p and v)
 * to it, as sli_gemm does; sums and the softmax are f32.
 * The queries may begin at `first_query`; out and log_sum_exp have no rows for those before it.
 * Then qkv has `room` positions for each sample, of which the first `positions` count; the dropout
 * has rows and columns for all of them. With log_sum_exp or dropout a device must take slices. qkv
 * and out may both be bf16 where all queries and positions count, `bf16` is true, and heads have a
 * multiple of SLI_BF16_HEAD columns.
 * Where a device takes keys, `kv` [samples, room, 2 key_heads, head_width] may have those of all
 * positions, the heads of k before those of v. Then qkv [samples, positions - first_query, …] has
 * the queries' rows alone, of which k and v are not read. */
enum { SLI_BF16_HEAD = 8 };

typedef struct sli_attention {
    int64_t samples, positions, heads, head_width;
    int64_t key_heads;         /* a divisor of heads; 0: heads */
    int64_t first_query, room; /* 0; 0: `positions` */
    bool causal;
    bool bf16, tf32; /* not both */
    const float *qkv;
    const float *kv; /* NULL: they are in qkv */
    const uint16_t *qkv_bf16;
    sli_dropout dropout;
    float *out;
    uint16_t *out_bf16;
    float *log_sum_exp;
} sli_attention;

/* Gradient of sli_attention; probabilities are computed again from qkv and log_sum_exp.
 * grad_qkv has qkv's layout, is bf16 if qkv and out are, and is overwritten. The gradients of a
 * head of k and v are summed over the heads of q that share it, in their order.
 * With first_query and room, on a device that takes slices: out and grad_out have no rows before
 * first_query, and grad_qkv gets the gradients of q from there on, and those of k and v of the
 * first `positions`, to which it `adds` them if that is set. */
typedef struct sli_attention_backward {
    int64_t samples, positions, heads, head_width;
    int64_t key_heads; /* as sli_attention's */
    int64_t first_query, room;
    bool adds;
    bool causal;
    bool bf16, tf32; /* not both */
    const float *qkv;
    const float *out;
    const uint16_t *qkv_bf16, *out_bf16;
    const float *log_sum_exp;
    sli_dropout dropout;
    const float *grad_out;
    float *grad_qkv;
    uint16_t *grad_qkv_bf16;
} sli_attention_backward;

/* Cross entropy of rows of logits, [rows, classes]: loss[row] = log sum exp(logits[row]) -
 * logits[row][target], in double precision's sum; 0 for a row whose target is `ignore`. With
 * grad_scale != 0 the logits are replaced by grad_scale * (softmax - one_hot(target)), or 0 for an
 * ignored row, and grad_bias by beta * grad_bias + the sums of its columns. With `rounded` as well,
 * the gradient is rounded to bf16 there, and what the logits become is not specified; a device that
 * stores bf16 adds the rounded ones to grad_bias. Targets
 * outside 0 .. classes - 1 that are not `ignore` are the caller's mistake. */
typedef struct sli_cross_entropy {
    int64_t rows, classes;
    int64_t ld; /* elements from one row of `logits` to the next, and of `rounded` */
    float *logits;
    const int32_t *targets;
    int32_t ignore;
    float grad_scale;
    double *loss; /* [rows] */
    float beta;
    float *grad_bias;  /* [classes] or NULL; only with grad_scale != 0 */
    uint16_t *rounded; /* [rows, classes] bf16 or NULL; only with grad_scale != 0 */
} sli_cross_entropy;

/* to = from in f32 or bf16, which is rounded to nearest, ties to even; NaN stays. From f32 to f32
 * it rounds to the values that bf16 has; `to` may be `from` then. */
typedef struct sli_convert {
    int64_t count;
    bool from_bf16, to_bf16; /* not both */
    const void *from;
    void *to;
} sli_convert;

/* One step of SGD as torch.optim.SGD: g = grad_scale * grad + weight_decay * w;
 * momentum: m = first ? g : momentum * m + (1 - dampening) * g; g = nesterov ? g + momentum m : m;
 * w -= lr * g. `momentum_buffer` may be NULL when momentum is 0. */
typedef struct sli_sgd {
    int64_t count;
    float *value;
    const float *grad;
    float *momentum_buffer;
    float grad_scale, lr, momentum, dampening, weight_decay;
    bool nesterov, first;
} sli_sgd;

/* Random bits for rounding a parameter's numbers to bf16 (core/bf16.h). Element i has word i % 4 of
 * Philox on the counter {group, 0, site, step}, whose group is first_group + i / 4, as in
 * sli_site_of_group. So it is a function of the parameter, its element and its step. */
typedef struct sli_rounding {
    sli_philox_key key;
    uint32_t site, step; /* the parameter's number, below 2^24; how many steps it has taken */
    int64_t first_group; /* that of element 0 */
} sli_rounding;

/* One step of torch.optim.AdamW; `bias_correction1`, `2` are 1 - beta^t. Averages in bf16 are
 * rounded at random where they are stored, exp_avg by the lower half of an element's word and
 * exp_avg_sq by the upper half; the value changes by what they were before. */
typedef struct sli_adamw {
    int64_t count;
    float *value;
    const float *grad;
    void *exp_avg, *exp_avg_sq; /* f32, or bf16 */
    bool bf16;
    sli_rounding rounding; /* of bf16 */
    float grad_scale, lr, beta1, beta2, eps, weight_decay;
    double bias_correction1, bias_correction2;
} sli_adamw;

/* How initial values are drawn. Element i of the parameter with number `site` is a function of
 * (seed, site, i) alone; the first one that is written is element `first`. UNIFORM is in [low,
 * high); NORMAL has mean `low` and deviation `high`. */
typedef enum sli_init_kind { SLI_INIT_CONSTANT, SLI_INIT_UNIFORM, SLI_INIT_NORMAL } sli_init_kind;

typedef struct sli_init {
    sli_init_kind kind;
    float low, high; /* CONSTANT: both hold the value */
    int64_t first;   /* a multiple of 4 */
} sli_init;

typedef enum sli_norm_kind { SLI_NORM_L1, SLI_NORM_L2, SLI_NORM_INF } sli_norm_kind;

typedef struct sli_norm_array {
    int64_t count; /* may be 0 */
    const float *x;
} sli_norm_array;

/* out[i] = the sum of |x| or of x^2, or the largest |x|, of the array i alone; NaN if any element
 * is NaN; 0 of nothing. */
typedef struct sli_norm_terms {
    sli_norm_kind kind;
    int count;
    const sli_norm_array *arrays; /* [count], host memory */
    double *out;                  /* [count], host memory */
} sli_norm_terms;

/* ---- Operations ------------------------------------------------------------------------- */

/* Each checks its arguments, once for every kind of device, and runs the device's slot of
 * sli_device_ops (device_base.h). Errors: SL_ERR_INVALID for arguments that break what is said at
 * their struct; whatever the device reports. After an error, what would have been written is
 * undefined. An operation on nothing (no rows, no bytes) does nothing, but for a sum over no rows,
 * which is 0. */

/* Between the device's memory and the host's, and within the device's. `read` has the bytes when it
 * returns. */
sl_status sli_device_write(sl_device *device, void *to, const void *host, size_t bytes);
sl_status sli_device_read(sl_device *device, void *host, const void *from, size_t bytes);
sl_status sli_device_copy(sl_device *device, void *to, const void *from, size_t bytes);
sl_status sli_device_zero(sl_device *device, void *to, size_t bytes);

sl_status sli_device_gemm(sl_device *device, const sli_gemm *arguments);
sl_status sli_device_epilogue(sl_device *device, const sli_epilogue *arguments);
sl_status sli_device_epilogue_backward(sl_device *device, const sli_epilogue_backward *arguments);
sl_status sli_device_embedding(sl_device *device, const sli_embedding *arguments);
sl_status sli_device_embedding_backward(sl_device *device, const sli_embedding_backward *arguments);
sl_status sli_device_add_dropout(sl_device *device, const sli_add_dropout *arguments);
sl_status sli_device_add_norm(sl_device *device, const sli_add_norm *arguments);
sl_status sli_device_add_norm_backward(sl_device *device, const sli_add_norm_backward *arguments);
sl_status sli_device_swiglu(sl_device *device, const sli_swiglu *arguments);
sl_status sli_device_swiglu_backward(sl_device *device, const sli_swiglu_backward *arguments);
sl_status sli_device_rotary(sl_device *device, const sli_rotary *arguments);
sl_status sli_device_attention(sl_device *device, const sli_attention *arguments);
sl_status sli_device_attention_backward(sl_device *device, const sli_attention_backward *arguments);
/* Whether attention and its gradient may begin at a later query, with all that training needs. */
bool sli_device_takes_slices(const sl_device *device);
/* Whether attention may have keys and values apart from queries (sli_attention.kv). */
bool sli_device_takes_keys(const sl_device *device);
sl_status sli_device_cross_entropy(sl_device *device, const sli_cross_entropy *arguments);
sl_status sli_device_convert(sl_device *device, const sli_convert *arguments);
sl_status sli_device_sgd(sl_device *device, const sli_sgd *arguments);
sl_status sli_device_adamw(sl_device *device, const sli_adamw *arguments);

/* to += from, both [count]. */
sl_status sli_device_add(sl_device *device, int64_t count, float *to, const float *from);

sl_status sli_device_norm_terms(sl_device *device, const sli_norm_terms *arguments);

/* Writes initial values to `to` [count]. */
sl_status sli_device_initialize(sl_device *device, const sli_init *init, uint64_t seed,
                                uint32_t site, int64_t count, float *to);

/* ---- Memory and threads ----------------------------------------------------------------- */

/* Memory that is counted under a category. `*out` is NULL for 0 bytes. */
sl_status sli_device_allocate(sl_device *device, sl_memory_category category, size_t bytes,
                              void **out);
/* The same, with zeros as its content. */
sl_status sli_device_allocate_zero(sl_device *device, sl_memory_category category, size_t bytes,
                                   void **out);
void sli_device_release(sl_device *device, sl_memory_category category, void *memory, size_t bytes);

/* Gives the memory that the device has cached back to the system: after work of other sizes than
 * those that follow. */
void sli_device_empty_cache(sl_device *device);

/* Memory of one device that another uses counts there: moves its bytes between their accounts, and
 * releases memory of `device` whose bytes count on `counted`. */
void sli_device_recount(sl_device *from, sl_device *to, sl_memory_category category, size_t bytes);
void sli_device_release_counted(sl_device *device, sl_device *counted, sl_memory_category category,
                                void *memory, size_t bytes);

/* The same, and the memory goes back to the system: no cache keeps it. */
void sli_device_discard_counted(sl_device *device, sl_device *counted, sl_memory_category category,
                                void *memory, size_t bytes);

/* A moment in a device's work: when what was queued before it is done. */
typedef struct sli_moment {
    double made; /* when the host asked for it, on sli_clock_seconds' clock */
    void *event; /* NULL: nothing was queued, so that `made` is the moment */
} sli_moment;

sli_moment sli_device_moment(sl_device *device);

/* Waits for the moment, which ends here, and gives its seconds on sli_clock_seconds' clock. An
 * error of what was queued is also the next operation's. */
sl_status sli_device_end_moment(sl_device *device, sli_moment *moment, double *seconds);

/* A mark stands for all that is queued on the device so far; NULL: all of it has finished. See the
 * slots of these names in device_base.h. */
void *sli_device_mark(sl_device *device);
void sli_device_drop_mark(sl_device *device, void *mark);

/* Copies from memory of `device` to that of another device, after the mark. Until its source is
 * released by sli_device_release_delivered, nothing may write it. */
sl_status sli_device_deliver(sl_device *device, void *mark, const void *from, sl_device *to,
                             void *memory, size_t bytes);
void sli_device_release_delivered(sl_device *device, sl_device *counted,
                                  sl_memory_category category, void *memory, size_t bytes);

/* An array of a device for work on the host: the array itself, where the host reaches it, else a
 * copy. */
typedef struct sli_host_array {
    sl_device *device;
    void *memory, *host; /* [bytes] NULL: 0 bytes */
    size_t bytes;
} sli_host_array;

/* With `reads`, the host's array has the content. Errors: SL_ERR_MEMORY; what the device reports.
 */
sl_status sli_host_array_open(sl_device *device, void *memory, size_t bytes, bool reads,
                              sli_host_array *out);

/* With `writes`, the device gets the host's content. The array is closed also after an error. */
sl_status sli_host_array_close(sli_host_array *array, bool writes);

/* Called once on each thread that will drive the device (an sl_device), before its first operation.
 * A CPU device with bound cores binds the thread to the first of them. */
void sli_device_bind_thread(void *device);

/* ---- Lists of devices, for a process that is one of several on a machine (device_list.c)  */

/* As sl_device_list_create, but creates only devices `first` to `first + most - 1` of those named,
 * or fewer where the list ends before. cpu:0, cpu:1, … divide the allowed cores among all devices
 * that are named; with `bound`, where no other process may use these cores, among those created. */
sl_status sli_device_list_create_range(const char *names, int first, int most, bool bound,
                                       sl_device_list **out, bool *oversubscribed);

/* Refuses a list that sl_device_list_create would refuse on every machine. */
sl_status sli_device_list_check(const char *names);

/* The list of so many devices of the CPU: "cpu:0,cpu:1", or with `shared`, where all have the same
 * cores, "cpu,cpu". The caller frees *out. */
sl_status sli_device_list_name_cpus(int count, bool shared, char **out);

/* Whether the devices of such a list, two or more, are all the same CPU, and so have the same
 * cores.
 */
bool sli_device_list_shares_cores(const char *names);

/* The kind of all devices of such a list, "cpu" or "cuda"; NULL: they are of several. */
const char *sli_device_list_kind(const char *names);

/* sl_device_has_host_memory of a device with this name, which need not exist here. */
bool sli_device_name_has_host_memory(const char *name);

/* Bytes of a CPU device's own scratch, which no account has, that the sums of so many rows of
 * `width` columns touch. */
int64_t sli_cpu_sums_bytes(int64_t rows, int64_t width);

/* How many devices of a kind ("cpu") the machine has for this process: cpu:0 to cpu:(count - 1), a
 * core each. Errors: SL_ERR_INVALID for a kind that there is not. */
sl_status sli_device_count(const char *prefix, int *out);

/* Whether it has products in TF32 (GPUs). */
bool sli_device_has_tf32(const sl_device *device);

/* Whether its operations take the matrices whose fields' names end in _bf16 (GPUs, where memory
 * moves slowly beside the products). */
bool sli_device_stores_bf16(const sl_device *device);

#endif
