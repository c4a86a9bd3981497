/* The device's operations in double precision, as device.h words them: the clearest loops, one
 * element at a time. They read a case's arrays on the host and write to[array] (cases.h). */
#ifndef TESTS_DEVICE_REFERENCE_H
#define TESTS_DEVICE_REFERENCE_H

#include "core/bf16.h"
#include "device/cases.h"

#include <math.h>
#include <stdlib.h>

static inline void put(double *to, int64_t index, double value)
{
    if (to)
        to[index] = value;
}

/* 0, or 1 / (1 - p). */
static inline double multiplier(const sli_dropout *d, int64_t row, int64_t column, int64_t columns)
{
    if (d->p == 0)
        return 1;
    int64_t position = d->first_row + row % d->rows_per_sample;
    int64_t group = position * ((columns + 3) / 4) + column / 4;
    uint32_t counter[4] = {(uint32_t)group, d->first_sample + (uint32_t)(row / d->rows_per_sample),
                           d->site + (uint32_t)(group / (INT64_C(1) << 32) * (1 << 24)), d->step};
    sli_philox(d->key, counter);
    return sli_uniform_from_bits(counter[column % 4]) >= d->p ? 1 / (1 - (double)d->p) : 0;
}

static inline double normal_integral(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

/* 0.5 (1 + tanh(u)), and its derivative. */
static inline double gelu_tanh_factor(double x)
{
    return 0.5 * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static inline double gelu_tanh_factor_slope(double x)
{
    double t = 2 * gelu_tanh_factor(x) - 1;
    return 0.5 * (1 - t * t) * sqrt(2 / acos(-1.0)) * (1 + 3 * 0.044715 * x * x);
}

static inline double activated(sli_activation activation, double x)
{
    if (activation == SLI_ACTIVATION_RELU)
        return x <= 0 ? 0 : x; /* NaN stays */
    if (activation == SLI_ACTIVATION_GELU_TANH)
        return x * gelu_tanh_factor(x);
    return activation == SLI_ACTIVATION_GELU ? x * normal_integral(x) : x;
}

/* ---- Flat arrays ------------------------------------------------------------------------ */

static inline void reference_copy(const op_case *c, double *const *to)
{
    const void *from = c->arguments.flat.from; /* NULL: zeros */
    for (int64_t i = 0; i < c->arguments.flat.count; i++)
        to[FLAT_TO][i] = from ? case_element(CASE_BYTE, from, i) : 0;
}

static inline void reference_add(const op_case *c, double *const *to)
{
    const float *from = c->arguments.flat.from, *before = c->arguments.flat.to;
    for (int64_t i = 0; i < c->arguments.flat.count; i++)
        to[FLAT_TO][i] = (double)(before[i] + from[i]);
}

static inline void reference_norm_terms(const op_case *c, double *const *to)
{
    const flat_arguments *a = &c->arguments.flat;
    double *result = to[FLAT_OUT];
    *result = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double size = fabs((double)((const float *)a->from)[i]);
        if (a->norm != SLI_NORM_INF)
            *result += a->norm == SLI_NORM_L2 ? size * size : size;
        else if (size > *result || isnan(size))
            *result = size;
    }
}

static inline void reference_initialize(const op_case *c, double *const *to)
{
    const flat_arguments *a = &c->arguments.flat;
    double low = a->init.low, high = a->init.high;
    for (int64_t i = 0; i < a->count; i++) {
        uint64_t group = (uint64_t)(a->init.first + i) / 4;
        uint32_t words[4] = {(uint32_t)group, (uint32_t)(group >> 32), a->site, 0};
        sli_philox(sli_philox_key_make(a->seed, SLI_RANDOM_INIT), words);
        const uint32_t *pair = words + i % 4 / 2 * 2;
        double radius = sqrt(-2 * log(1.0 - sli_uniform_from_bits(pair[0])));
        double angle = 2 * acos(-1.0) * sli_uniform_from_bits(pair[1]);
        to[FLAT_TO][i] = low;
        if (a->init.kind == SLI_INIT_UNIFORM)
            to[FLAT_TO][i] += (high - low) * sli_uniform_from_bits(words[i % 4]);
        if (a->init.kind == SLI_INIT_NORMAL)
            to[FLAT_TO][i] += high * radius * (i % 2 ? sin(angle) : cos(angle));
    }
}

/* torch.optim.SGD's documentation, line by line. */
static inline void reference_sgd(const op_case *c, double *const *to)
{
    const sli_sgd *s = &c->arguments.sgd;
    for (int64_t i = 0; i < s->count; i++) {
        double g = (double)s->grad_scale * s->grad[i] + (double)s->weight_decay * s->value[i];
        if (s->momentum != 0) {
            double buffer = (double)s->momentum * s->momentum_buffer[i];
            buffer = s->first ? g : buffer + (1 - (double)s->dampening) * g;
            to[SGD_MOMENTUM][i] = buffer;
            g = s->nesterov ? g + (double)s->momentum * buffer : buffer;
        }
        to[SGD_VALUE][i] = s->value[i] - (double)s->lr * g;
    }
}

static inline double adamw_average(const sli_adamw *s, const void *averages, int64_t index)
{
    return case_element(s->bf16 ? CASE_BF16 : CASE_F32, averages, index);
}

static inline void reference_adamw(const op_case *c, double *const *to)
{
    const sli_adamw *s = &c->arguments.adamw;
    for (int64_t i = 0; i < s->count; i++) {
        double g = (double)s->grad_scale * s->grad[i];
        double m = (double)s->beta1 * adamw_average(s, s->exp_avg, i) + (1 - (double)s->beta1) * g;
        double v =
            (double)s->beta2 * adamw_average(s, s->exp_avg_sq, i) + (1 - (double)s->beta2) * g * g;
        double root = sqrt(v) / sqrt(s->bias_correction2) + (double)s->eps;
        to[ADAMW_VALUE][i] = s->value[i] * (1 - (double)s->lr * s->weight_decay) -
                             s->lr / s->bias_correction1 * m / root;
        to[ADAMW_AVERAGE][i] = m;
        to[ADAMW_SQUARES][i] = v;
    }
}

/* ---- Products and epilogues ------------------------------------------------------------- */

static inline double gemm_element(const sli_gemm *g, const void *matrix, int64_t index)
{
    return g->bf16 ? (double)sli_f32_from_bf16(((const uint16_t *)matrix)[index])
                   : (double)((const float *)matrix)[index];
}

static inline void reference_gemm(const op_case *c, double *const *to)
{
    const sli_gemm *g = &c->arguments.gemm;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = g->beta != 0 ? (double)g->c[i * g->ldc + j] : 0;
            for (int64_t l = 0; l < g->k; l++) {
                int64_t a = g->transpose_a ? l * g->lda + i : i * g->lda + l;
                int64_t b = g->transpose_b ? j * g->ldb + l : l * g->ldb + j;
                sum += gemm_element(g, g->a, a) * gemm_element(g, g->b, b);
            }
            sum += g->bias ? (double)g->bias[j] : 0;
            put(to[GEMM_PRE], i * g->ldc + j, sum);
            to[GEMM_C][i * g->ldc + j] =
                activated(g->activation, sum) * multiplier(&g->dropout, i, j, g->n);
        }
}

static inline void reference_epilogue(const op_case *c, double *const *to)
{
    const sli_epilogue *e = &c->arguments.epilogue;
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t j = 0; j < e->columns; j++) {
            int64_t at = i * e->columns + j;
            double scale = e->scale != 0 ? (double)e->scale : 1;
            double sum = scale * e->x[at] + (e->bias ? (double)e->bias[j] : 0);
            put(to[EPILOGUE_PRE], at, sum);
            to[EPILOGUE_OUT][at] =
                activated(e->activation, sum) * multiplier(&e->dropout, i, j, e->columns);
        }
}

static inline void reference_epilogue_backward(const op_case *c, double *const *to)
{
    const sli_epilogue_backward *e = &c->arguments.epilogue_backward;
    for (int64_t j = 0; j < e->columns; j++)
        put(to[BACK_GRAD_BIAS], j, e->grad_bias && e->beta != 0 ? (double)e->grad_bias[j] : 0);
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t j = 0; j < e->columns; j++) {
            int64_t at = i * e->ld + j;
            double g = e->grad[at] * multiplier(&e->dropout, i, j, e->columns);
            if (e->activation == SLI_ACTIVATION_RELU)
                g = e->saved[at] > 0 ? g : 0;
            if (e->activation == SLI_ACTIVATION_GELU) {
                double x = e->saved[at], density = exp(-x * x / 2) / sqrt(2 * acos(-1.0));
                g *= normal_integral(x) + x * density;
            }
            if (e->activation == SLI_ACTIVATION_GELU_TANH)
                g *= gelu_tanh_factor(e->saved[at]) +
                     e->saved[at] * gelu_tanh_factor_slope(e->saved[at]);
            to[BACK_GRAD][at] = g;
            if (to[BACK_GRAD_BIAS])
                to[BACK_GRAD_BIAS][j] += g;
        }
}

/* ---- Rows ------------------------------------------------------------------------------- */

static inline void reference_embedding(const op_case *c, double *const *to)
{
    const sli_embedding *e = &c->arguments.embedding;
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t j = 0; j < e->width; j++) {
            double x = (double)e->table[e->ids[i] * e->width + j] * (double)e->scale;
            if (e->positions)
                x += e->positions[i % e->dropout.rows_per_sample * e->width + j];
            to[EMBEDDING_OUT][i * e->width + j] = x * multiplier(&e->dropout, i, j, e->width);
        }
}

static inline void reference_embedding_backward(const op_case *c, double *const *to)
{
    const sli_embedding_backward *e = &c->arguments.embedding_backward;
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t j = 0; j < e->width; j++)
            to[LOOKUP_GRAD_TABLE][e->ids[i] * e->width + j] +=
                (double)e->scale * e->grad_out[i * e->width + j] *
                multiplier(&e->dropout, i, j, e->width);
}

static inline void reference_add_dropout(const op_case *c, double *const *to)
{
    const sli_add_dropout *a = &c->arguments.add_dropout;
    for (int64_t i = 0; i < a->rows; i++)
        for (int64_t j = 0; j < a->width; j++) {
            int64_t at = i * a->width + j;
            to[DROP_OUT][at] = a->x[at] * multiplier(&a->dropout, i, j, a->width) +
                               (a->residual ? (double)a->residual[at] : 0);
        }
}

static inline void reference_swiglu(const op_case *c, double *const *to)
{
    const sli_swiglu *a = &c->arguments.swiglu;
    for (int64_t i = 0; i < a->rows * a->width; i++)
        to[SWIGLU_OUT][i] = a->gate[i] / (1 + exp(-(double)a->gate[i])) * a->up[i];
}

static inline void reference_swiglu_backward(const op_case *c, double *const *to)
{
    const sli_swiglu_backward *a = &c->arguments.swiglu_backward;
    for (int64_t i = 0; i < a->rows * a->width; i++) {
        double gate = a->gate[i], factor = 1 / (1 + exp(-gate));
        to[DSWIGLU_GRAD_GATE][i] =
            a->grad_out[i] * (double)a->up[i] * factor * (1 + gate * (1 - factor));
        to[DSWIGLU_GRAD_UP][i] = a->grad_out[i] * gate * factor;
    }
}

static inline void reference_rotary(const op_case *c, double *const *to)
{
    const sli_rotary *a = &c->arguments.rotary;
    int64_t pairs = a->head_width / 2;
    for (int64_t row = 0; row < a->rows; row++)
        for (int64_t k = 0; k < a->heads * pairs; k++) {
            int64_t first = row * a->ld + k / pairs * a->head_width + k % pairs;
            float position = (float)(a->first_position + row % a->rows_per_sample);
            float angle = position * a->frequencies[k % pairs];
            double cosine = cos((double)angle), sine = sin((double)angle) * (a->inverse ? -1 : 1);
            double x = to[ROTARY_X][first], y = to[ROTARY_X][first + pairs];
            to[ROTARY_X][first] = x * cosine - y * sine;
            to[ROTARY_X][first + pairs] = y * cosine + x * sine;
        }
}

static inline void reference_add_norm(const op_case *c, double *const *to)
{
    const sli_add_norm *a = &c->arguments.add_norm;
    double *sum = malloc((size_t)(a->width + 1) * sizeof *sum);
    for (int64_t i = 0; i < a->rows; i++) {
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < a->width; j++) {
            int64_t at = i * a->width + j;
            sum[j] = a->x[at] * multiplier(&a->dropout, i, j, a->width) +
                     (a->residual ? (double)a->residual[at] : 0);
            mean += sum[j] / (double)a->width;
            put(to[NORM_SUM], at, sum[j]);
        }
        if (a->rms)
            mean = 0;
        for (int64_t j = 0; j < a->width; j++)
            variance += (sum[j] - mean) * (sum[j] - mean) / (double)a->width;
        double rstd = 1 / sqrt(variance + (double)a->eps);
        put(to[NORM_RSTD], i, rstd);
        for (int64_t j = 0; j < a->width; j++) {
            double n = (sum[j] - mean) * rstd;
            put(to[NORM_HAT], i * a->width + j, n);
            to[NORM_OUT][i * a->width + j] = n * a->weight[j] + (a->bias ? (double)a->bias[j] : 0);
        }
    }
    free(sum);
}

static inline void reference_add_norm_backward(const op_case *c, double *const *to)
{
    const sli_add_norm_backward *a = &c->arguments.add_norm_backward;
    for (int64_t j = 0; j < a->width; j++) {
        to[DNORM_GRAD_WEIGHT][j] = a->beta != 0 ? (double)a->grad_weight[j] : 0;
        put(to[DNORM_GRAD_BIAS], j, a->grad_bias && a->beta != 0 ? (double)a->grad_bias[j] : 0);
    }
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t at = i * a->width;
        double mean_g = 0, mean_gn = 0;
        for (int64_t j = 0; j < a->width; j++) {
            double g = a->grad_out[at + j], n = a->normalized[at + j];
            mean_g += a->rms ? 0 : g * a->weight[j] / (double)a->width;
            mean_gn += g * a->weight[j] * n / (double)a->width;
            to[DNORM_GRAD_WEIGHT][j] += g * n;
            if (to[DNORM_GRAD_BIAS])
                to[DNORM_GRAD_BIAS][j] += g;
        }
        for (int64_t j = 0; j < a->width; j++) {
            double s = (a->grad_sum_in ? (double)a->grad_sum_in[at + j] : 0) +
                       a->rstd[i] * ((double)a->grad_out[at + j] * a->weight[j] - mean_g -
                                     a->normalized[at + j] * mean_gn);
            to[DNORM_GRAD_SUM][at + j] = s;
            put(to[DNORM_GRAD_X], at + j, s * multiplier(&a->dropout, i, j, a->width));
        }
    }
}

static inline void reference_cross_entropy(const op_case *c, double *const *to)
{
    const sli_cross_entropy *e = &c->arguments.cross_entropy;
    double *sums = e->grad_scale != 0 ? to[ENTROPY_GRAD_BIAS] : NULL;
    for (int64_t j = 0; sums && e->beta == 0 && j < e->classes; j++)
        sums[j] = 0;
    for (int64_t i = 0; i < e->rows; i++) {
        const float *x = e->logits + i * e->ld;
        double max = -INFINITY, sum = 0;
        bool ignored = e->targets[i] == e->ignore;
        for (int64_t j = 0; j < e->classes; j++)
            max = x[j] > max ? (double)x[j] : max;
        for (int64_t j = 0; j < e->classes; j++)
            sum += exp(x[j] - max);
        to[ENTROPY_LOSS][i] = ignored ? 0 : log(sum) + max - x[e->targets[i]];
        for (int64_t j = 0; j < e->classes && e->grad_scale != 0; j++) {
            double softmax = exp(x[j] - max) / sum - (j == e->targets[i]);
            double grad = ignored ? 0 : (double)e->grad_scale * softmax;
            to[ENTROPY_LOGITS][i * e->ld + j] = grad;
            if (sums)
                sums[j] += grad;
        }
    }
}

/* ---- Attention -------------------------------------------------------------------------- */

/* Where a position's row begins in qkv, for a head of queries: its q, k or v (0, 1, 2). */
static inline int64_t qkv_at(const sli_attention *a, int64_t sample, int64_t position, int matrix,
                             int64_t head)
{
    int64_t key_heads = a->key_heads ? a->key_heads : a->heads;
    int64_t key_head = head / (a->heads / key_heads);
    int64_t column = matrix == 0 ? head : a->heads + (matrix - 1) * key_heads + key_head;
    int64_t row = sample * a->positions + position;
    return (row * (a->heads + 2 * key_heads) + column) * a->head_width;
}

/* One row of attention's probabilities before dropout; returns log sum exp. */
static inline double probabilities(const sli_attention *a, int64_t sample, int64_t head,
                                   int64_t query, double *p)
{
    int64_t d = a->head_width;
    const float *q = a->qkv + qkv_at(a, sample, query, 0, head);
    double max = -INFINITY, sum = 0;
    int64_t seen = a->causal ? query + 1 : a->positions;
    for (int64_t j = 0; j < a->positions; j++) {
        const float *k = a->qkv + qkv_at(a, sample, j, 1, head);
        p[j] = 0;
        for (int64_t l = 0; l < d; l++)
            p[j] += (double)q[l] * k[l] / sqrt((double)d);
        max = j < seen && p[j] > max ? p[j] : max;
    }
    for (int64_t j = 0; j < a->positions; j++)
        sum += p[j] = j < seen ? exp(p[j] - max) : 0;
    for (int64_t j = 0; j < a->positions; j++)
        p[j] /= sum;
    return max + log(sum); /* cppcheck-suppress invalidFunctionArg; there are keys */
}

static inline void reference_attention(const op_case *c, double *const *to)
{
    const sli_attention *a = &c->arguments.attention;
    int64_t d = a->head_width, heads = a->heads, positions = a->positions;
    double *p = malloc((size_t)(positions + 1) * sizeof *p);
    for (int64_t at = 0; at < a->samples * heads * positions; at++) {
        int64_t sample = at / (heads * positions), head = at / positions % heads;
        int64_t query = at % positions;
        double log_sum_exp = probabilities(a, sample, head, query, p);
        put(to[HEADS_LSE], at, log_sum_exp * sqrt((double)d));
        double *out = to[HEADS_OUT] + ((sample * positions + query) * heads + head) * d;
        for (int64_t l = 0; l < d; l++)
            out[l] = 0;
        for (int64_t j = 0; j < positions; j++) {
            const float *v = a->qkv + qkv_at(a, sample, j, 2, head);
            double weight = p[j] * multiplier(&a->dropout, at, j, positions);
            for (int64_t l = 0; l < d; l++)
                out[l] += weight * v[l];
        }
    }
    free(p);
}

/* By the definition of softmax's gradient, without the forward's output. */
static inline void reference_attention_backward(const op_case *c, double *const *to)
{
    const sli_attention_backward *b = &c->arguments.attention_backward;
    sli_attention a = {.positions = b->positions,
                       .heads = b->heads,
                       .key_heads = b->key_heads,
                       .head_width = b->head_width,
                       .causal = b->causal,
                       .qkv = b->qkv};
    int64_t d = a.head_width, heads = a.heads, positions = a.positions;
    double *p = malloc((size_t)(positions + 1) * sizeof *p), *grad_qkv = to[HEADS_GRAD_QKV];
    double *grad_p = malloc((size_t)(positions + 1) * sizeof *grad_p);
    for (int64_t i = 0; i < c->arrays[HEADS_GRAD_QKV].count; i++)
        grad_qkv[i] = 0;
    for (int64_t at = 0; at < b->samples * heads * positions; at++) {
        int64_t sample = at / (heads * positions), head = at / positions % heads;
        int64_t query = at % positions, q = qkv_at(&a, sample, query, 0, head);
        probabilities(&a, sample, head, query, p);
        const float *g = b->grad_out + ((sample * positions + query) * heads + head) * d;
        double inner = 0;
        for (int64_t j = 0; j < positions; j++) {
            int64_t v = qkv_at(&a, sample, j, 2, head);
            double kept = multiplier(&b->dropout, at, j, positions);
            grad_p[j] = 0;
            for (int64_t l = 0; l < d; l++) {
                grad_p[j] += kept * g[l] * a.qkv[v + l];
                grad_qkv[v + l] += p[j] * kept * g[l];
            }
            inner += p[j] * grad_p[j];
        }
        for (int64_t j = 0; j < positions; j++) {
            int64_t k = qkv_at(&a, sample, j, 1, head);
            double grad_s = p[j] * (grad_p[j] - inner) / sqrt((double)d);
            for (int64_t l = 0; l < d; l++) {
                grad_qkv[q + l] += grad_s * a.qkv[k + l];
                grad_qkv[k + l] += grad_s * a.qkv[q + l];
            }
        }
    }
    free(p);
    free(grad_p);
}

#endif
