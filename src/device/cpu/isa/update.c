/* Optimizer updates, and sums of arrays. */
#include "device/cpu/isa/kernel_names.h"

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

void SLI_OF_ISA(sli_adamw)(const sli_adamw *arguments, int64_t first, int64_t count)
{
    float *restrict value = arguments->value + first;
    float *restrict mean = arguments->exp_avg + first;
    float *restrict square = arguments->exp_avg_sq + first;
    const float *restrict grad = arguments->grad + first;
    float scale = arguments->grad_scale, beta1 = arguments->beta1, beta2 = arguments->beta2;
    float keep = 1.0f - arguments->lr * arguments->weight_decay, eps = arguments->eps;
    float step = (float)(arguments->lr / arguments->bias_correction1);
    float root = (float)(1.0 / sqrt(arguments->bias_correction2));
    for (int64_t i = 0; i < count; i++) {
        float g = scale * grad[i];
        float m = beta1 * mean[i] + (1.0f - beta1) * g;
        float v = beta2 * square[i] + (1.0f - beta2) * (g * g);
        mean[i] = m;
        square[i] = v;
        value[i] = keep * value[i] - step * (m / (sqrtf(v) * root + eps));
    }
}
