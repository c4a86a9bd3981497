/* Kernels on flat arrays: conversions, sums, optimizer updates, terms of norms, initial values. */
#include "core/bf16.h"
#include "device/cpu/isa/isa.h"
#include "device/cpu/isa/random.h"

void SLI_OF_ISA(sli_convert)(const sli_convert *arguments, int64_t first, int64_t count)
{
    if (arguments->to_bf16) {
        const float *restrict from = (const float *)arguments->from + first;
        uint16_t *restrict to = (uint16_t *)arguments->to + first;
        for (int64_t i = 0; i < count; i++)
            to[i] = sli_bf16_from_f32(from[i]);
    } else if (arguments->from_bf16) {
        const uint16_t *restrict from = (const uint16_t *)arguments->from + first;
        float *restrict to = (float *)arguments->to + first;
        for (int64_t i = 0; i < count; i++)
            to[i] = sli_f32_from_bf16(from[i]);
    } else {
        const float *from = (const float *)arguments->from + first;
        float *to = (float *)arguments->to + first;
        SLI_ELEMENTWISE
        for (int64_t i = 0; i < count; i++)
            to[i] = sli_f32_from_bf16(sli_bf16_from_f32(from[i]));
    }
}

void SLI_OF_ISA(sli_add)(int64_t count, float *to, const float *from)
{
    SLI_ELEMENTWISE
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void sgd_plain(const sli_sgd *arguments, int64_t first, int64_t count)
{
    float *restrict value = arguments->value + first;
    const float *restrict grad = arguments->grad + first;
    float scale = arguments->grad_scale, decay = arguments->weight_decay, lr = arguments->lr;
    for (int64_t i = 0; i < count; i++)
        value[i] -= lr * (scale * grad[i] + decay * value[i]);
}

static void sgd_momentum(const sli_sgd *arguments, int64_t first, int64_t count)
{
    float *restrict value = arguments->value + first;
    float *restrict buffer = arguments->momentum_buffer + first;
    const float *restrict grad = arguments->grad + first;
    float scale = arguments->grad_scale, decay = arguments->weight_decay, lr = arguments->lr;
    float momentum = arguments->momentum, fresh = 1.0f - arguments->dampening;
    /* Nesterov's step is g + momentum m, the plain one 0 g + 1 m. */
    float of_g = arguments->nesterov ? 1.0f : 0.0f, of_m = arguments->nesterov ? momentum : 1.0f;
    for (int64_t i = 0; i < count; i++) {
        float g = scale * grad[i] + decay * value[i];
        float m = arguments->first ? g : momentum * buffer[i] + fresh * g;
        buffer[i] = m;
        value[i] -= lr * (of_g * g + of_m * m);
    }
}

void SLI_OF_ISA(sli_sgd)(const sli_sgd *arguments, int64_t first, int64_t count)
{
    if (arguments->momentum != 0)
        sgd_momentum(arguments, first, count);
    else
        sgd_plain(arguments, first, count);
}

/* What is the same for all elements. */
typedef struct adamw_step {
    float scale, beta1, beta2, eps;
    float keep; /* of the value, after decay */
    float step; /* lr / bias_correction1 */
    float root; /* 1 / sqrt(bias_correction2) */
} adamw_step;

static adamw_step step_of(const sli_adamw *arguments)
{
    return (adamw_step){.scale = arguments->grad_scale,
                        .beta1 = arguments->beta1,
                        .beta2 = arguments->beta2,
                        .eps = arguments->eps,
                        .keep = 1.0f - arguments->lr * arguments->weight_decay,
                        .step = (float)(arguments->lr / arguments->bias_correction1),
                        .root = (float)(1.0 / sqrt(arguments->bias_correction2))};
}

static inline float mean_after(const adamw_step *s, float mean, float grad)
{
    return s->beta1 * mean + (1.0f - s->beta1) * (s->scale * grad);
}

static inline float square_after(const adamw_step *s, float square, float grad)
{
    float g = s->scale * grad;
    return s->beta2 * square + (1.0f - s->beta2) * (g * g);
}

static inline float value_after(const adamw_step *s, float value, float mean, float square)
{
    return s->keep * value - s->step * (mean / (sqrtf(square) * s->root + s->eps));
}

static void adamw_f32(const sli_adamw *arguments, int64_t first, int64_t count)
{
    float *restrict value = arguments->value + first;
    float *restrict mean = (float *)arguments->exp_avg + first;
    float *restrict square = (float *)arguments->exp_avg_sq + first;
    const float *restrict grad = arguments->grad + first;
    const adamw_step s = step_of(arguments);
    for (int64_t i = 0; i < count; i++) {
        float m = mean_after(&s, mean[i], grad[i]), v = square_after(&s, square[i], grad[i]);
        mean[i] = m;
        square[i] = v;
        value[i] = value_after(&s, value[i], m, v);
    }
}

/* `first` is a multiple of four. */
static void adamw_bf16(const sli_adamw *arguments, int64_t first, int64_t count)
{
    const sli_rounding *rounding = &arguments->rounding;
    const adamw_step s = step_of(arguments);
    for (int64_t end = first + count; first < end; first += RUN_WORDS) {
        float *restrict value = arguments->value + first;
        uint16_t *restrict mean = (uint16_t *)arguments->exp_avg + first;
        uint16_t *restrict square = (uint16_t *)arguments->exp_avg_sq + first;
        const float *restrict grad = arguments->grad + first;
        int64_t length = sli_smaller(end - first, RUN_WORDS);
        uint32_t words[RUN_WORDS];
        random_run(rounding->key, (uint64_t)(rounding->first_group + first / 4), 0, rounding->site,
                   rounding->step, words);
        for (int64_t i = 0; i < length; i++) {
            float m = mean_after(&s, sli_f32_from_bf16(mean[i]), grad[i]);
            float v = square_after(&s, sli_f32_from_bf16(square[i]), grad[i]);
            mean[i] = sli_bf16_at_random(m, words[i] & 0xFFFFu);
            square[i] = sli_bf16_at_random(v, words[i] >> 16);
            value[i] = value_after(&s, value[i], m, v);
        }
    }
}

void SLI_OF_ISA(sli_adamw)(const sli_adamw *arguments, int64_t first, int64_t count)
{
    if (arguments->bf16)
        adamw_bf16(arguments, first, count);
    else
        adamw_f32(arguments, first, count);
}

/* ---- Terms of norms --------------------------------------------------------------------- */

static double sum_of_doubles(const double *lanes)
{
    double sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

static double sum_of_squares(int64_t count, const float *x)
{
    double lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += (double)x[i + l] * x[i + l];
    double sum = sum_of_doubles(lanes);
    for (int64_t i = whole; i < count; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

static double sum_of_magnitudes(int64_t count, const float *x)
{
    double lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += (double)fabsf(x[i + l]);
    double sum = sum_of_doubles(lanes);
    for (int64_t i = whole; i < count; i++)
        sum += (double)fabsf(x[i]);
    return sum;
}

/* Without their sign, floats are in order as integers are, and every NaN is above infinity. */
static double largest_magnitude(int64_t count, const float *x)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = bits_of_float(x[i]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    return (double)float_of_bits(largest);
}

double SLI_OF_ISA(sli_norm_term)(sli_norm_kind kind, int64_t count, const float *x)
{
    switch (kind) {
    case SLI_NORM_L1:
        return sum_of_magnitudes(count, x);
    case SLI_NORM_L2:
        return sum_of_squares(count, x);
    case SLI_NORM_INF:
        return largest_magnitude(count, x);
    }
    return NAN;
}

/* ---- Initial values --------------------------------------------------------------------- */

/* Counters: [0], [1] the group of four elements, [2] the parameter, [3] 0. */
static void uniform_run(const sli_init *init, const uint32_t *words, float *out)
{
    float low = init->low, high = init->high, range = high - low;
    for (int i = 0; i < RUN_WORDS; i++) {
        float value = low + range * ((float)(int32_t)(words[i] >> 8) * 0x1p-24f);
        out[i] = value < high ? value : low; /* rounding may reach `high` */
    }
}

/* Box and Muller: two uniform numbers give two normal ones. 1 - u is in (0, 1]. */
static void normal_run(const sli_init *init, const uint32_t *words, float *out)
{
    for (int i = 0; i < RUN_WORDS; i += 2) {
        float radius = sqrtf(-2.0f * logf(1.0f - sli_uniform_from_bits(words[i])));
        float angle = 0x1.921fb6p2f * sli_uniform_from_bits(words[i + 1]);
        out[i] = init->low + init->high * radius * cosf(angle);
        out[i + 1] = init->low + init->high * radius * sinf(angle);
    }
}

void SLI_OF_ISA(sli_initialize)(const sli_init *init, sli_philox_key key, uint32_t site,
                                int64_t first, int64_t count, float *to)
{
    if (init->kind == SLI_INIT_CONSTANT) {
        for (int64_t i = first; i < first + count; i++)
            to[i] = init->low;
        return;
    }
    for (int64_t done = 0; done < count; done += RUN_WORDS) {
        uint64_t group = (uint64_t)(init->first + first + done) / 4;
        uint32_t words[RUN_WORDS];
        float run[RUN_WORDS];
        random_run(key, (uint32_t)group, (uint32_t)(group >> 32), site, 0, words);
        if (init->kind == SLI_INIT_NORMAL)
            normal_run(init, words, run);
        else
            uniform_run(init, words, run);
        int64_t length = sli_smaller(count - done, RUN_WORDS);
        memcpy(to + first + done, run, (size_t)length * sizeof *run);
    }
}
