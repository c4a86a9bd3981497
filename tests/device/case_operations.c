/* The rows of the operations: what arrays each has, and how it is built, run and computed. */
#include "device/reference.h"

#include <string.h>

/* ---- Running ---------------------------------------------------------------------------- */

#define RUN(slot)                                                                                  \
    static sl_status run_##slot(sl_device *device, const case_arguments *arguments)                \
    {                                                                                              \
        return sli_device_##slot(device, &arguments->slot);                                        \
    }
RUN(sgd)
RUN(adamw)
RUN(epilogue)
RUN(epilogue_backward)
RUN(embedding)
RUN(embedding_backward)
RUN(add_dropout)
RUN(add_norm)
RUN(add_norm_backward)
RUN(swiglu)
RUN(swiglu_backward)
RUN(rotary)
RUN(attention)
RUN(attention_backward)
RUN(cross_entropy)

/* In TF32 where the device has it: the elements are numbers that it has. */
static sl_status run_gemm(sl_device *device, const case_arguments *arguments)
{
    sli_gemm gemm = arguments->gemm;
    gemm.tf32 &= sli_device_has_tf32(device);
    return sli_device_gemm(device, &gemm);
}

#define RUN_FLAT(slot, ...)                                                                        \
    static sl_status run_##slot(sl_device *device, const case_arguments *arguments)                \
    {                                                                                              \
        const flat_arguments *a = &arguments->flat;                                                \
        return sli_device_##slot(device, __VA_ARGS__);                                             \
    }
RUN_FLAT(copy, a->to, a->from, (size_t)a->count)
RUN_FLAT(write, a->to, a->from, (size_t)a->count)
RUN_FLAT(read, a->to, a->from, (size_t)a->count)
RUN_FLAT(zero, a->to, (size_t)a->count)
RUN_FLAT(add, a->count, a->to, a->from)
RUN_FLAT(initialize, &a->init, a->seed, a->site, a->count, a->to)

static sl_status run_norm_terms(sl_device *device, const case_arguments *arguments)
{
    const flat_arguments *a = &arguments->flat;
    const sli_norm_array array = {a->count, a->from};
    return sli_device_norm_terms(device, &(sli_norm_terms){a->norm, 1, &array, a->out});
}

/* ---- Arguments and values --------------------------------------------------------------- */

static void prepare_flat(op_case *c)
{
    flat_arguments *a = &c->arguments.flat;
    bool l1 = case_has(c, WITH_L1), inf = case_has(c, WITH_INF);
    a->site = random_bits(&c->random);
    a->seed = ((uint64_t)random_bits(&c->random) << 32) + random_bits(&c->random);
    a->norm = l1 ? SLI_NORM_L1 : inf ? SLI_NORM_INF : SLI_NORM_L2;
    a->init.kind = l1 ? SLI_INIT_CONSTANT : inf ? SLI_INIT_NORMAL : SLI_INIT_UNIFORM;
    a->init.first = a->site % 2 ? (1ll << 35) + 12 : 0;
    a->init.low = -0.1f;
    a->init.high = 0.3f;
    c->arrays[FLAT_OUT].count = 1;
}

/* As of an embedding: many gradients in a row are 0. */
static void adjust_sgd(op_case *c)
{
    float *grad = c->arrays[SGD_GRAD].host;
    for (int64_t i = 0; i < c->arrays[SGD_GRAD].count && !*c->spec.name; i++)
        if (i / 200 % 2)
            grad[i] = 0;
}

static void prepare_sgd(op_case *c)
{
    sli_sgd *s = &c->arguments.sgd;
    s->grad_scale = 0.7f;
    s->lr = 0.1f;
    s->momentum = case_has(c, WITH_MOMENTUM) ? 0.9f : 0;
    s->dampening = case_has(c, WITH_DAMPENING) ? 0.5f : 0;
    s->weight_decay = case_has(c, WITH_DECAY) ? 0.1f : 0;
    s->nesterov = case_has(c, WITH_NESTEROV);
    s->first = case_has(c, WITH_FIRST_STEP);
}

static void prepare_adamw(op_case *c)
{
    sli_adamw *s = &c->arguments.adamw;
    double step = 1 + (double)random_below(&c->random, 20);
    s->grad_scale = 0.7f;
    s->lr = 0.01f;
    s->beta1 = 0.9f;
    s->beta2 = 0.99f;
    s->eps = 1e-8f;
    s->weight_decay = case_has(c, WITH_DECAY) ? 0.1f : 0;
    s->bias_correction1 = 1 - pow(0.9, step);
    s->bias_correction2 = 1 - pow(0.99, step);
}

static void adjust_adamw(op_case *c)
{
    float *squares = c->arrays[ADAMW_SQUARES].host;
    for (int64_t i = 0; i < c->spec.size[0]; i++)
        squares[i] = fabsf(squares[i]) + 0.01f;
}

/* Groups end at 2^32 in some. */
static void prepare_adamw_bf16(op_case *c)
{
    sli_adamw *s = &c->arguments.adamw;
    prepare_adamw(c);
    s->bf16 = true;
    s->rounding =
        (sli_rounding){.key = sli_philox_key_make(random_bits(&c->random), SLI_RANDOM_ROUND),
                       .site = random_bits(&c->random) >> 8,
                       .step = random_bits(&c->random),
                       .first_group = ((int64_t)1 << 32) - random_below(&c->random, 300)};
}

static void adjust_adamw_bf16(op_case *c)
{
    uint16_t *squares = c->arrays[ADAMW_SQUARES].host;
    for (int64_t i = 0; i < c->spec.size[0]; i++)
        squares[i] = sli_bf16_from_f32(fabsf(sli_f32_from_bf16(squares[i])) + 0.01f);
}

static void prepare_gemm(op_case *c)
{
    sli_gemm *g = &c->arguments.gemm;
    int64_t gap = case_has(c, WITH_LONG_ROWS) ? 3 : 0;
    g->transpose_a = case_has(c, WITH_TRANSPOSED_A);
    g->transpose_b = case_has(c, WITH_TRANSPOSED_B);
    g->m = c->spec.size[0];
    g->n = c->spec.size[1];
    g->k = c->spec.size[2];
    g->lda = (g->transpose_a ? g->m : g->k) + gap;
    g->ldb = (g->transpose_b ? g->k : g->n) + gap;
    g->ldc = g->n + 2 * gap;
    c->arrays[GEMM_A].count = (g->transpose_a ? g->k : g->m) * g->lda;
    c->arrays[GEMM_B].count = (g->transpose_b ? g->n : g->k) * g->ldb;
    c->arrays[GEMM_C].count = c->arrays[GEMM_PRE].count = g->m * g->ldc;
}

/* To numbers that the case's precision has. */
static void round_array(const op_case *c, case_array *array)
{
    uint32_t lost = case_is_bf16(c) ? 0xFFFF : case_is_tf32(c) ? 0x1FFF : 0;
    uint32_t *values = array->host;
    for (int64_t i = 0; i < array->count; i++)
        values[i] &= ~lost;
}

/* The array keeps the room of f32. */
static void make_bf16(case_array *array)
{
    for (int64_t i = 0; i < array->count; i++) {
        uint16_t bits = sli_bf16_from_f32(((const float *)array->host)[i]);
        memcpy((uint16_t *)array->host + i, &bits, sizeof bits);
    }
}

static void adjust_gemm(op_case *c)
{
    sli_gemm *gemm = &c->arguments.gemm;
    gemm->bf16 = case_is_bf16(c);
    gemm->tf32 = case_is_tf32(c);
    for (int array = GEMM_A; array <= GEMM_B; array++) {
        round_array(c, &c->arrays[array]);
        if (gemm->bf16)
            make_bf16(&c->arrays[array]);
    }
}

static void prepare_epilogue(op_case *c)
{
    c->arguments.epilogue.scale = case_has(c, WITH_SCALE) ? -1.7f : 0;
}

/* Away from ReLU's corner, so that its gradient can be compared with differences. */
static void adjust_epilogue(op_case *c)
{
    const float *bias = c->arrays[EPILOGUE_BIAS].host;
    float *x = c->arrays[EPILOGUE_X].host;
    for (int64_t i = 0; i < c->arrays[EPILOGUE_X].count; i++)
        if (fabsf(x[i] + (bias ? bias[i % c->spec.size[1]] : 0)) < 0.05f)
            x[i] += 0.1f;
}

static void prepare_add_norm(op_case *c)
{
    c->arguments.add_norm.eps = 1e-5f;
    c->arguments.add_norm.rms = !case_has(c, WITH_BIAS);
}

static void prepare_add_norm_backward(op_case *c)
{
    c->arguments.add_norm_backward.rms = !case_has(c, WITH_BIAS);
}

static void adjust_add_norm_backward(op_case *c)
{
    if (c->spec.p == 0 && case_has(c, OVER_SUM) && c->arrays[DNORM_GRAD_X].host)
        c->arrays[DNORM_GRAD_X].over = DNORM_GRAD_SUM;
}

/* Also of its backward, whose gradient of the table has the same index. */
static void prepare_embedding(op_case *c)
{
    c->arrays[EMBEDDING_TABLE].count = case_table_rows(c) * c->spec.size[1];
    c->arrays[EMBEDDING_POSITIONS].count = CASE_MOST_POSITIONS * c->spec.size[1];
}

static void prepare_rotary(op_case *c)
{
    sli_rotary *r = &c->arguments.rotary;
    r->ld = r->heads * r->head_width + (case_has(c, WITH_LONG_ROWS) ? 7 : 0);
    r->rows_per_sample = 1 + random_below(&c->random, 40);
    r->first_position = random_below(&c->random, 3000);
    r->inverse = case_has(c, WITH_GRADIENT);
    for (int64_t i = 0; i < r->head_width / 2; i++)
        r->frequencies[i] = powf(10000, -2 * (float)i / (float)r->head_width);
    c->arrays[ROTARY_X].count = r->rows * r->ld;
}

/* Also of its backward, but for the dropout, which is its forward's. */
static void prepare_attention(op_case *c)
{
    const int64_t *size = c->spec.size;
    int64_t key_heads = case_has(c, WITH_SHARED_KEYS) ? case_key_heads(c) : 0;
    c->arrays[HEADS_QKV].count = size[0] * size[1] * (size[2] + 2 * case_key_heads(c)) * size[3];
    c->arrays[HEADS_GRAD_QKV].count = c->arrays[HEADS_QKV].count;
    if (c->spec.kind == CASE_ATTENTION_BACKWARD) {
        c->arguments.attention_backward.key_heads = key_heads;
        return;
    }
    c->arguments.attention.key_heads = key_heads;
    c->arguments.attention.dropout.rows_per_sample = size[1] * size[2];
    c->arguments.attention.dropout.first_row = 0;
}

static void adjust_attention(op_case *c)
{
    for (int64_t i = 0; i < c->arrays[HEADS_QKV].count; i++)
        ((float *)c->arrays[HEADS_QKV].host)[i] *= 2;
    round_array(c, &c->arrays[HEADS_QKV]);
    c->arguments.attention.bf16 = case_is_bf16(c);
    c->arguments.attention.tf32 = case_is_tf32(c);
}

static void adjust_attention_backward(op_case *c)
{
    round_array(c, &c->arrays[HEADS_GRAD_OUT]);
    c->arguments.attention_backward.bf16 = case_is_bf16(c);
    c->arguments.attention_backward.tf32 = case_is_tf32(c);
}

static void prepare_epilogue_backward(op_case *c)
{
    c->arguments.epilogue_backward.ld = c->spec.size[1];
}

static void prepare_cross_entropy(op_case *c)
{
    sli_cross_entropy *e = &c->arguments.cross_entropy;
    e->ld = c->spec.size[1] + (case_has(c, WITH_LONG_ROWS) ? 3 : 0);
    c->arrays[ENTROPY_LOGITS].count = c->spec.size[0] * e->ld;
    c->arguments.cross_entropy.ignore = -100;
    c->arguments.cross_entropy.grad_scale = case_has(c, WITH_GRADIENT) ? 0.125f : 0;
}

static void adjust_cross_entropy(op_case *c)
{
    float *logits = c->arrays[ENTROPY_LOGITS].host;
    int32_t *targets = c->arrays[ENTROPY_TARGETS].host;
    for (int64_t i = 0; i < c->arrays[ENTROPY_LOGITS].count; i++)
        logits[i] *= i % c->arguments.cross_entropy.ld >= c->spec.size[1] ? 0.0f /* no class */
                     : case_has(c, WITH_WIDE_VALUES)                      ? 60.0f
                                                                          : 4.0f;
    for (int64_t i = 0; i < c->spec.size[0]; i++)
        targets[i] = random_below(&c->random, 5) ? targets[i] : -100;
}

/* ---- The rows --------------------------------------------------------------------------- */

#define OPERATION(slot)  .name = #slot, .run = run_##slot, .reference = reference_##slot
#define ARG(type, field) .field = offsetof(type, field)
#define AT(type, field)  .name = #field, offsetof(type, field)
/* Probabilities, and the gradients of scores, are rounded for the products that take them. */
#define PROBABILITIES .bf16_tolerance = 2e-2, .tf32_tolerance = 2e-3

/* clang-format off */
const case_operation case_operations[CASE_KINDS] = {
    [CASE_COPY] = {
        OPERATION(copy), .sizes = 1,
        .arrays = {{AT(flat_arguments, to), FLAT, OUT, CASE_BYTE},
                   {AT(flat_arguments, from), FLAT, IN, CASE_BYTE}}},
    [CASE_WRITE] = {
        .name = "write", .run = run_write, .reference = reference_copy, .sizes = 1,
        .arrays = {{AT(flat_arguments, to), FLAT, OUT, CASE_BYTE},
                   {"host", offsetof(flat_arguments, from), FLAT, IN, CASE_BYTE, .on_host = true}}},
    [CASE_READ] = {
        .name = "read", .run = run_read, .reference = reference_copy, .sizes = 1,
        .arrays = {{"host", offsetof(flat_arguments, to), FLAT, OUT, CASE_BYTE, .on_host = true},
                   {AT(flat_arguments, from), FLAT, IN, CASE_BYTE}}},
    [CASE_ZERO] = {
        .name = "zero", .run = run_zero, .reference = reference_copy, .sizes = 1,
        .arrays = {{AT(flat_arguments, to), FLAT, OUT, CASE_BYTE}}},
    [CASE_ADD] = {
        OPERATION(add), .sizes = 1,
        .arrays = {{AT(flat_arguments, to), FLAT, INOUT}, {AT(flat_arguments, from), FLAT, IN}}},
    [CASE_SGD] = {
        OPERATION(sgd), .sizes = 1, .prepare = prepare_sgd, .adjust = adjust_sgd,
        .flags = WITH_MOMENTUM | WITH_NESTEROV | WITH_FIRST_STEP | WITH_DECAY | WITH_DAMPENING,
        .arrays = {{AT(sli_sgd, value), FLAT, INOUT, .tolerance = 1e-6},
                   {AT(sli_sgd, grad), FLAT, IN},
                   {AT(sli_sgd, momentum_buffer), FLAT, INOUT, .tolerance = 1e-6,
                    .when = WITH_MOMENTUM, .needed = true}}},
    [CASE_ADAMW] = {
        OPERATION(adamw), .sizes = 1, .prepare = prepare_adamw, .adjust = adjust_adamw,
        .flags = WITH_DECAY,
        .arrays = {{AT(sli_adamw, value), FLAT, INOUT, .tolerance = 1e-6},
                   {AT(sli_adamw, grad), FLAT, IN},
                   {AT(sli_adamw, exp_avg), FLAT, INOUT, .tolerance = 1e-6},
                   {AT(sli_adamw, exp_avg_sq), FLAT, INOUT, .tolerance = 1e-6}}},
    [CASE_ADAMW_BF16] = {
        OPERATION(adamw), .sizes = 1, .prepare = prepare_adamw_bf16, .adjust = adjust_adamw_bf16,
        .flags = WITH_DECAY,
        .arrays = {{AT(sli_adamw, value), FLAT, INOUT, .tolerance = 1e-6},
                   {AT(sli_adamw, grad), FLAT, IN},
                   {AT(sli_adamw, exp_avg), FLAT, INOUT, CASE_BF16, .tolerance = 0x1p-7},
                   {AT(sli_adamw, exp_avg_sq), FLAT, INOUT, CASE_BF16, .tolerance = 0x1p-7}}},
    [CASE_NORM_TERMS] = {
        OPERATION(norm_terms), .sizes = 1, .prepare = prepare_flat, .flags = WITH_L1 | WITH_INF,
        .arrays = {[FLAT_FROM] = {"x", offsetof(flat_arguments, from), FLAT, IN, .when = 0},
                   {AT(flat_arguments, out), GIVEN, OUT, CASE_F64, .tolerance = 1e-12,
                    .on_host = true}}},
    [CASE_INITIALIZE] = {
        OPERATION(initialize), .sizes = 1, .prepare = prepare_flat, .flags = WITH_L1 | WITH_INF,
        .arrays = {{AT(flat_arguments, to), FLAT, OUT, .tolerance = 2e-6}}},
    [CASE_GEMM] = {
        OPERATION(gemm), .prepare = prepare_gemm, .adjust = adjust_gemm, ARG(sli_gemm, dropout),
        ARG(sli_gemm, beta), ARG(sli_gemm, activation),
        .flags = WITH_BETA | WITH_BIAS | WITH_RELU | WITH_GELU | WITH_TANH | WITH_SAVED |
            WITH_TRANSPOSED_A | WITH_TRANSPOSED_B | WITH_LONG_ROWS | WITH_BF16 |
            WITH_TF32,
        .arrays = {{AT(sli_gemm, a), GIVEN, IN}, {AT(sli_gemm, b), GIVEN, IN},
                   {AT(sli_gemm, c), GIVEN, INOUT, .tolerance = 2e-5, .is_sum = true},
                   {AT(sli_gemm, bias), ROW, IN, .when = WITH_BIAS},
                   {AT(sli_gemm, preactivation), GIVEN, OUT, .tolerance = 2e-5,
                    .when = WITH_SAVED}}},
    [CASE_EPILOGUE] = {
        OPERATION(epilogue), .sizes = 2, .prepare = prepare_epilogue, .adjust = adjust_epilogue,
        ARG(sli_epilogue, dropout),
        ARG(sli_epilogue, activation),
        .flags = WITH_BIAS | WITH_RELU | WITH_GELU | WITH_TANH | WITH_SAVED | WITH_SCALE | OVER_X,
        .arrays = {{AT(sli_epilogue, x), MATRIX, IN},
                   {AT(sli_epilogue, out), MATRIX, OUT, .tolerance = 2e-6, .over_x = 1},
                   {AT(sli_epilogue, bias), ROW, IN, .when = WITH_BIAS},
                   {AT(sli_epilogue, preactivation), MATRIX, OUT, .tolerance = 1e-6,
                    .when = WITH_SAVED}}},
    [CASE_EPILOGUE_BACKWARD] = {
        OPERATION(epilogue_backward), .sizes = 2, .prepare = prepare_epilogue_backward,
        ARG(sli_epilogue_backward, beta),
        ARG(sli_epilogue_backward, dropout), ARG(sli_epilogue_backward, activation),
        .flags = WITH_BETA | WITH_BIAS | WITH_RELU | WITH_GELU | WITH_TANH | WITH_SAVED,
        .writes = WITH_RELU | WITH_GELU,
        .arrays = {{AT(sli_epilogue_backward, grad), MATRIX, INOUT, .tolerance = 2e-6},
                   {AT(sli_epilogue_backward, saved), MATRIX, IN, .when = WITH_RELU | WITH_GELU,
                    .needed = true, .from = 1 + EPILOGUE_OUT},
                   {AT(sli_epilogue_backward, grad_bias), ROW, INOUT, .tolerance = 1e-5,
                    .when = WITH_BIAS, .is_sum = true}},
        .forward = CASE_EPILOGUE, .forward_leaves = OVER_X, .forward_has = WITH_SAVED,
        .output_count = 1, .outputs = {{EPILOGUE_OUT, BACK_GRAD}}, .input_count = 2,
        .inputs = {{EPILOGUE_X, BACK_GRAD}, {EPILOGUE_BIAS, BACK_GRAD_BIAS}}},
    [CASE_EMBEDDING] = {
        OPERATION(embedding), .sizes = 2, .prepare = prepare_embedding, ARG(sli_embedding, scale),
        ARG(sli_embedding, table_rows), .flags = WITH_POSITIONS, ARG(sli_embedding, dropout),
        .arrays = {{AT(sli_embedding, ids), FLAT, IN, CASE_I32},
                   {AT(sli_embedding, table), GIVEN, IN},
                   {AT(sli_embedding, positions), GIVEN, IN, .when = WITH_POSITIONS},
                   {AT(sli_embedding, out), MATRIX, OUT, .tolerance = 1e-6}}},
    [CASE_EMBEDDING_BACKWARD] = {
        OPERATION(embedding_backward), .sizes = 2, .prepare = prepare_embedding,
        ARG(sli_embedding_backward, scale), ARG(sli_embedding_backward, table_rows),
        .flags = WITH_POSITIONS, ARG(sli_embedding_backward, dropout),
        .arrays = {{AT(sli_embedding_backward, ids), FLAT, IN, CASE_I32, .from = 1 + EMBEDDING_IDS},
                   {AT(sli_embedding_backward, grad_table), GIVEN, INOUT, .tolerance = 1e-5},
                   {AT(sli_embedding_backward, grad_out), MATRIX, IN}},
        .forward = CASE_EMBEDDING, .output_count = 1, .outputs = {{EMBEDDING_OUT, LOOKUP_GRAD_OUT}},
        .input_count = 1, .inputs = {{EMBEDDING_TABLE, LOOKUP_GRAD_TABLE}}},
    [CASE_ADD_DROPOUT] = {/* the gradient of dropout is the same dropout of the gradient */
        OPERATION(add_dropout), .sizes = 2, ARG(sli_add_dropout, dropout),
        .flags = WITH_RESIDUAL | OVER_X | OVER_RESIDUAL,
        .arrays = {{AT(sli_add_dropout, x), MATRIX, IN},
                   {AT(sli_add_dropout, residual), MATRIX, IN, .when = WITH_RESIDUAL},
                   {AT(sli_add_dropout, out), MATRIX, OUT, .tolerance = 1e-6,
                    .over_x = 1 + DROP_X, .over_residual = 1 + DROP_RESIDUAL}},
        .forward = CASE_ADD_DROPOUT, .forward_leaves = OVER_X, .output_count = 1,
        .outputs = {{DROP_OUT, DROP_X}}, .input_count = 1, .inputs = {{DROP_X, DROP_OUT}}},
    [CASE_ADD_NORM] = {
        OPERATION(add_norm), .sizes = 2, .prepare = prepare_add_norm, ARG(sli_add_norm, dropout),
        .flags = WITH_RESIDUAL | WITH_SUM | WITH_SAVED | WITH_BIAS | OVER_X | OVER_RESIDUAL,
        .arrays = {{AT(sli_add_norm, x), MATRIX, IN},
                   {AT(sli_add_norm, residual), MATRIX, IN, .when = WITH_RESIDUAL},
                   {AT(sli_add_norm, sum), MATRIX, OUT, .tolerance = 1e-6, .when = WITH_SUM,
                    .over_x = 1 + NORM_X, .over_residual = 1 + NORM_RESIDUAL},
                   {AT(sli_add_norm, out), MATRIX, OUT, .tolerance = 2e-5},
                   {AT(sli_add_norm, weight), ROW, IN},
                   {AT(sli_add_norm, bias), ROW, IN, .when = WITH_BIAS},
                   {AT(sli_add_norm, normalized), MATRIX, OUT, .tolerance = 2e-5,
                    .when = WITH_SAVED},
                   {AT(sli_add_norm, rstd), FLAT, OUT, .tolerance = 2e-5, .when = WITH_SAVED}}},
    [CASE_ADD_NORM_BACKWARD] = {
        OPERATION(add_norm_backward), .sizes = 2, .prepare = prepare_add_norm_backward, .adjust = adjust_add_norm_backward,
        ARG(sli_add_norm_backward, dropout), ARG(sli_add_norm_backward, beta),
        .flags = WITH_BETA | WITH_BIAS | WITH_SUM | WITH_GRADIENT | OVER_X | OVER_RESIDUAL |
            OVER_SUM,
        .arrays = {{AT(sli_add_norm_backward, grad_out), MATRIX, IN},
                   {AT(sli_add_norm_backward, grad_sum_in), MATRIX, IN, .when = WITH_SUM},
                   {AT(sli_add_norm_backward, normalized), MATRIX, IN, .from = 1 + NORM_HAT},
                   {AT(sli_add_norm_backward, rstd), FLAT, IN, .from = 1 + NORM_RSTD},
                   {AT(sli_add_norm_backward, weight), ROW, IN, .from = 1 + NORM_WEIGHT},
                   {AT(sli_add_norm_backward, grad_sum), MATRIX, OUT, .tolerance = 1e-5,
                    .over_x = 1 + DNORM_GRAD_OUT, .over_residual = 1 + DNORM_SUM_IN},
                   {AT(sli_add_norm_backward, grad_x), MATRIX, OUT, .tolerance = 1e-5,
                    .when = WITH_GRADIENT},
                   {AT(sli_add_norm_backward, grad_weight), ROW, INOUT, .tolerance = 1e-5,
                    .is_sum = true},
                   {AT(sli_add_norm_backward, grad_bias), ROW, INOUT, .tolerance = 1e-5,
                    .when = WITH_BIAS, .is_sum = true}},
        .forward = CASE_ADD_NORM, .forward_leaves = OVER_X | OVER_RESIDUAL,
        .forward_has = WITH_SAVED | WITH_RESIDUAL, .output_count = 2,
        .outputs = {{NORM_OUT, DNORM_GRAD_OUT}, {NORM_SUM, DNORM_SUM_IN}}, .input_count = 4,
        .inputs = {{NORM_X, DNORM_GRAD_X}, {NORM_RESIDUAL, DNORM_GRAD_SUM}, {NORM_WEIGHT,
            DNORM_GRAD_WEIGHT}, {NORM_BIAS, DNORM_GRAD_BIAS}}},
    [CASE_SWIGLU] = {
        OPERATION(swiglu), .sizes = 2, .flags = OVER_X,
        .arrays = {{AT(sli_swiglu, gate), MATRIX, IN}, {AT(sli_swiglu, up), MATRIX, IN},
                   {AT(sli_swiglu, out), MATRIX, OUT, .tolerance = 2e-6, .over_x = 1}}},
    [CASE_SWIGLU_BACKWARD] = {
        OPERATION(swiglu_backward), .sizes = 2,
        .arrays = {{AT(sli_swiglu_backward, gate), MATRIX, IN, .from = 1 + SWIGLU_GATE},
                   {AT(sli_swiglu_backward, up), MATRIX, IN, .from = 1 + SWIGLU_UP},
                   {AT(sli_swiglu_backward, grad_out), MATRIX, IN},
                   {AT(sli_swiglu_backward, grad_gate), MATRIX, OUT, .tolerance = 2e-6},
                   {AT(sli_swiglu_backward, grad_up), MATRIX, OUT, .tolerance = 2e-6}},
        .forward = CASE_SWIGLU, .forward_leaves = OVER_X, .output_count = 1,
        .outputs = {{SWIGLU_OUT, DSWIGLU_GRAD_OUT}}, .input_count = 2,
        .inputs = {{SWIGLU_GATE, DSWIGLU_GRAD_GATE}, {SWIGLU_UP, DSWIGLU_GRAD_UP}}},
    [CASE_ROTARY] = {
        OPERATION(rotary), .sizes = 3, .prepare = prepare_rotary,
        .flags = WITH_LONG_ROWS | WITH_GRADIENT,
        .arrays = {{AT(sli_rotary, x), GIVEN, INOUT, .tolerance = 1e-6}}},
    [CASE_ATTENTION] = {
        OPERATION(attention), .sizes = 4, .prepare = prepare_attention, .adjust = adjust_attention,
        ARG(sli_attention, dropout), ARG(sli_attention, causal),
        .flags = WITH_CAUSAL_MASK | WITH_SAVED | WITH_BF16 | WITH_TF32 | WITH_SHARED_KEYS,
        .arrays = {{AT(sli_attention, qkv), GIVEN, IN},
                   {AT(sli_attention, out), HEADS, OUT, .tolerance = 1e-5, PROBABILITIES},
                   {AT(sli_attention, log_sum_exp), QUERIES, OUT, .tolerance = 1e-5,
                    .when = WITH_SAVED}}},
    [CASE_ATTENTION_BACKWARD] = {
        OPERATION(attention_backward), .sizes = 4, .prepare = prepare_attention,
        .adjust = adjust_attention_backward,
        ARG(sli_attention_backward, dropout), ARG(sli_attention_backward, causal),
        .flags = WITH_CAUSAL_MASK | WITH_BF16 | WITH_TF32 | WITH_SHARED_KEYS,
        .arrays = {{AT(sli_attention_backward, qkv), GIVEN, IN, .from = 1 + HEADS_QKV},
                   {AT(sli_attention_backward, out), HEADS, IN, .from = 1 + HEADS_OUT},
                   {AT(sli_attention_backward, log_sum_exp), QUERIES, IN, .from = 1 + HEADS_LSE},
                   {AT(sli_attention_backward, grad_out), HEADS, IN},
                   {AT(sli_attention_backward, grad_qkv), GIVEN, OUT, .tolerance = 2e-5,
                    PROBABILITIES}},
        .forward = CASE_ATTENTION, .forward_has = WITH_SAVED, .output_count = 1,
        .outputs = {{HEADS_OUT, HEADS_GRAD_OUT}}, .input_count = 1,
        .inputs = {{HEADS_QKV, HEADS_GRAD_QKV}}},
    [CASE_CROSS_ENTROPY] = {/* the loss' gradient is one of the operation itself */
        OPERATION(cross_entropy), .sizes = 2, .prepare = prepare_cross_entropy,
        .adjust = adjust_cross_entropy, ARG(sli_cross_entropy, beta),
        .flags = WITH_GRADIENT | WITH_WIDE_VALUES | WITH_BIAS | WITH_BETA | WITH_LONG_ROWS,
        .writes = WITH_GRADIENT,
        .arrays = {{AT(sli_cross_entropy, logits), GIVEN, INOUT, .tolerance = 1e-6},
                   {AT(sli_cross_entropy, targets), FLAT, IN, CASE_I32},
                   {AT(sli_cross_entropy, loss), FLAT, OUT, CASE_F64, .tolerance = 1e-6},
                   {AT(sli_cross_entropy, grad_bias), ROW, INOUT, .tolerance = 1e-5,
                    .when = WITH_BIAS, .is_sum = true}},
        .forward = CASE_CROSS_ENTROPY, .forward_leaves = WITH_GRADIENT, .output_count = 1,
        .outputs = {{ENTROPY_LOSS, -1}}, .input_count = 1,
        .inputs = {{ENTROPY_LOGITS, ENTROPY_LOGITS}}},
};
