/* The device's operations in double precision, as device.h words them: the clearest loops, one
 * element at a time. Results are double arrays that the caller allocated. */
#ifndef TESTS_DEVICE_REFERENCE_H
#define TESTS_DEVICE_REFERENCE_H

#include "device/device.h"

#include <math.h>
#include <stdlib.h>

/* 0, or 1 / (1 - p). */
static inline double reference_multiplier(const sli_dropout *d, int64_t row, int64_t column,
                                          int64_t columns)
{
    if (d->p == 0)
        return 1;
    int64_t position = row % d->rows_per_sample;
    uint32_t counter[4] = {(uint32_t)(position * ((columns + 3) / 4) + column / 4),
                           d->first_sample + (uint32_t)(row / d->rows_per_sample), d->site,
                           d->step};
    sli_philox(d->key, counter);
    return sli_uniform_from_bits(counter[column % 4]) >= d->p ? 1 / (1 - (double)d->p) : 0;
}

static inline double reference_normal_integral(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

static inline double reference_activate(sli_activation activation, double x)
{
    if (activation == SLI_ACTIVATION_RELU)
        return x > 0 ? x : 0;
    if (activation == SLI_ACTIVATION_GELU)
        return x * reference_normal_integral(x);
    return x;
}

/* `before` [m, n] is c's content before, with row distance ldc. */
static inline void reference_gemm(const sli_gemm *g, const float *before, double *c,
                                  double *preactivation)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = g->beta != 0 ? (double)before[i * g->ldc + j] : 0;
            for (int64_t l = 0; l < g->k; l++) {
                double a = g->transpose_a ? g->a[l * g->lda + i] : g->a[i * g->lda + l];
                double b = g->transpose_b ? g->b[j * g->ldb + l] : g->b[l * g->ldb + j];
                sum += a * b;
            }
            sum += g->bias ? (double)g->bias[j] : 0;
            preactivation[i * g->n + j] = sum;
            c[i * g->n + j] = reference_activate(g->activation, sum) *
                              reference_multiplier(&g->dropout, i, j, g->n);
        }
}

static inline void reference_epilogue_backward(const sli_epilogue_backward *e, double *grad,
                                               double *grad_bias)
{
    for (int64_t j = 0; j < e->columns; j++)
        grad_bias[j] = e->beta != 0 ? (double)e->grad_bias[j] : 0;
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t j = 0; j < e->columns; j++) {
            int64_t at = i * e->columns + j;
            double g = e->grad[at] * reference_multiplier(&e->dropout, i, j, e->columns);
            if (e->activation == SLI_ACTIVATION_RELU)
                g = e->saved[at] > 0 ? g : 0;
            if (e->activation == SLI_ACTIVATION_GELU) {
                double x = e->saved[at], density = exp(-x * x / 2) / sqrt(2 * acos(-1.0));
                g *= reference_normal_integral(x) + x * density;
            }
            grad[at] = g;
            grad_bias[j] += g;
        }
}

static inline void reference_embedding(const sli_embedding *e, double *out)
{
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t j = 0; j < e->width; j++) {
            double x = (double)e->table[e->ids[i] * e->width + j] * (double)e->scale;
            if (e->positions)
                x += e->positions[i % e->dropout.rows_per_sample * e->width + j];
            out[i * e->width + j] = x * reference_multiplier(&e->dropout, i, j, e->width);
        }
}

static inline void reference_embedding_backward(const sli_embedding_backward *e, double *grad_table)
{
    for (int64_t i = 0; i < e->table_rows * e->width; i++)
        grad_table[i] = e->grad_table[i];
    for (int64_t i = 0; i < e->rows; i++)
        for (int64_t j = 0; j < e->width; j++)
            grad_table[e->ids[i] * e->width + j] +=
                (double)e->scale * e->grad_out[i * e->width + j] *
                reference_multiplier(&e->dropout, i, j, e->width);
}

typedef struct reference_norm {
    double *sum, *out, *normalized, *rstd;
} reference_norm;

static inline void reference_add_norm(const sli_add_norm *a, reference_norm *to)
{
    for (int64_t i = 0; i < a->rows; i++) {
        double *sum = to->sum + i * a->width, mean = 0, variance = 0;
        for (int64_t j = 0; j < a->width; j++) {
            sum[j] = a->x[i * a->width + j] * reference_multiplier(&a->dropout, i, j, a->width) +
                     (a->residual ? (double)a->residual[i * a->width + j] : 0);
            mean += sum[j] / (double)a->width;
        }
        for (int64_t j = 0; j < a->width; j++)
            variance += (sum[j] - mean) * (sum[j] - mean) / (double)a->width;
        to->rstd[i] = 1 / sqrt(variance + (double)a->eps);
        for (int64_t j = 0; j < a->width && a->out; j++) {
            double n = (sum[j] - mean) * to->rstd[i];
            to->normalized[i * a->width + j] = n;
            to->out[i * a->width + j] = n * a->weight[j] + a->bias[j];
        }
    }
}

static inline void reference_add_norm_backward(const sli_add_norm_backward *a, double *grad_sum,
                                               double *grad_x, double *grad_weight,
                                               double *grad_bias)
{
    for (int64_t j = 0; j < a->width && a->grad_out; j++) {
        grad_weight[j] = a->beta != 0 ? (double)a->grad_weight[j] : 0;
        grad_bias[j] = a->beta != 0 ? (double)a->grad_bias[j] : 0;
    }
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t at = i * a->width;
        double mean_g = 0, mean_gn = 0;
        for (int64_t j = 0; j < a->width && a->grad_out; j++) {
            double g = a->grad_out[at + j], n = a->normalized[at + j];
            mean_g += g * a->weight[j] / (double)a->width;
            mean_gn += g * a->weight[j] * n / (double)a->width;
            grad_weight[j] += g * n;
            grad_bias[j] += g;
        }
        for (int64_t j = 0; j < a->width; j++) {
            double s = a->grad_sum_in ? (double)a->grad_sum_in[at + j] : 0;
            if (a->grad_out)
                s += a->rstd[i] * ((double)a->grad_out[at + j] * a->weight[j] - mean_g -
                                   a->normalized[at + j] * mean_gn);
            grad_sum[at + j] = s;
            grad_x[at + j] = s * reference_multiplier(&a->dropout, i, j, a->width);
        }
    }
}

/* One row of attention's probabilities before dropout; returns log sum exp. */
static inline double reference_probabilities(const sli_attention *a, int64_t sample, int64_t head,
                                             int64_t query, double *p)
{
    int64_t d = a->head_width, row = 3 * a->heads * d;
    const float *base = a->qkv + sample * a->positions * row + head * d;
    const float *q = base + query * row;
    double max = -INFINITY, sum = 0;
    int64_t seen = a->causal ? query + 1 : a->positions;
    for (int64_t j = 0; j < a->positions; j++) {
        const float *k = base + j * row + a->heads * d;
        p[j] = 0;
        for (int64_t l = 0; l < d; l++)
            p[j] += (double)q[l] * k[l] / sqrt((double)d);
        max = j < seen && p[j] > max ? p[j] : max;
    }
    for (int64_t j = 0; j < a->positions; j++)
        sum += p[j] = j < seen ? exp(p[j] - max) : 0;
    for (int64_t j = 0; j < a->positions; j++)
        p[j] /= sum;
    return max + log(sum);
}

static inline void reference_attention(const sli_attention *a, double *out, double *log_sum_exp)
{
    int64_t d = a->head_width, heads = a->heads, positions = a->positions;
    double *p = malloc((size_t)(positions + 1) * sizeof *p);
    for (int64_t at = 0; at < a->samples * heads * positions; at++) {
        int64_t sample = at / (heads * positions), head = at / positions % heads;
        int64_t query = at % positions;
        log_sum_exp[at] = reference_probabilities(a, sample, head, query, p);
        double *to = out + ((sample * positions + query) * heads + head) * d;
        for (int64_t l = 0; l < d; l++)
            to[l] = 0;
        for (int64_t j = 0; j < positions; j++) {
            const float *v = a->qkv + ((sample * positions + j) * 3 + 2) * heads * d + head * d;
            double weight = p[j] * reference_multiplier(&a->dropout, at, j, positions);
            for (int64_t l = 0; l < d; l++)
                to[l] += weight * v[l];
        }
    }
    free(p);
}

/* By the definition of softmax's gradient, without the forward's output. */
static inline void reference_attention_backward(const sli_attention *a, const float *grad_out,
                                                double *grad_qkv)
{
    int64_t d = a->head_width, heads = a->heads, positions = a->positions, part = heads * d;
    double *p = malloc((size_t)(positions + 1) * sizeof *p);
    double *grad_p = malloc((size_t)(positions + 1) * sizeof *grad_p);
    for (int64_t i = 0; i < a->samples * positions * 3 * part; i++)
        grad_qkv[i] = 0;
    for (int64_t at = 0; at < a->samples * heads * positions; at++) {
        int64_t sample = at / (heads * positions), head = at / positions % heads;
        int64_t query = at % positions, first = sample * positions * 3 * part + head * d;
        reference_probabilities(a, sample, head, query, p);
        const float *g = grad_out + ((sample * positions + query) * heads + head) * d;
        double inner = 0;
        for (int64_t j = 0; j < positions; j++) {
            int64_t key = first + j * 3 * part;
            double multiplier = reference_multiplier(&a->dropout, at, j, positions);
            grad_p[j] = 0;
            for (int64_t l = 0; l < d; l++) {
                grad_p[j] += multiplier * g[l] * a->qkv[key + 2 * part + l];
                grad_qkv[key + 2 * part + l] += p[j] * multiplier * g[l];
            }
            inner += p[j] * grad_p[j];
        }
        for (int64_t j = 0; j < positions; j++) {
            int64_t q = first + query * 3 * part, k = first + j * 3 * part + part;
            double grad_s = p[j] * (grad_p[j] - inner) / sqrt((double)d);
            for (int64_t l = 0; l < d; l++) {
                grad_qkv[q + l] += grad_s * a->qkv[k + l];
                grad_qkv[k + l] += grad_s * a->qkv[q + l];
            }
        }
    }
    free(p);
    free(grad_p);
}

static inline void reference_cross_entropy(const sli_cross_entropy *c, double *logits, double *loss)
{
    for (int64_t i = 0; i < c->rows; i++) {
        const float *x = c->logits + i * c->classes;
        double *to = logits + i * c->classes, max = -INFINITY, sum = 0;
        bool ignored = c->targets[i] == c->ignore;
        for (int64_t j = 0; j < c->classes; j++)
            max = x[j] > max ? (double)x[j] : max;
        for (int64_t j = 0; j < c->classes; j++)
            sum += exp(x[j] - max);
        loss[i] = ignored ? 0 : log(sum) + max - x[c->targets[i]];
        for (int64_t j = 0; j < c->classes; j++) {
            double softmax = exp(x[j] - max) / sum - (j == c->targets[i]);
            double scaled = ignored ? 0 : (double)c->grad_scale * softmax;
            to[j] = c->grad_scale == 0 ? (double)x[j] : scaled;
        }
    }
}

#endif
