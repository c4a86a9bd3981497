/* Operations on flat arrays: conversions, sums, optimizer updates. A thread has four elements. */
#include "core/bf16.h"
#include "core/philox.h"
#include "device/cuda/kernels/four.h"

struct flat_shape {
    int64_t count;
    bool whole; /* all arrays are aligned */
};

enum { FLAT_THREADS = 256 };

/* A thread's elements; count <= 0: it has none. `whole`: four that can be read at once. */
struct flat_group {
    int64_t at, count;
    bool whole;
};

static inline __device__ flat_group flat_group_of_thread(const flat_shape &shape)
{
    flat_group g;
    g.at = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    g.count = shape.count - g.at;
    g.whole = shape.whole && g.count >= 4;
    return g;
}

template <class... Parameters, class... Arguments>
static cudaError_t launch_flat(cudaStream_t stream, const flat_shape &shape,
                               void (*kernel)(Parameters...), Arguments... arguments)
{
    dim3 blocks((unsigned)divide_up(shape.count, 4 * FLAT_THREADS));
    return launch(stream, blocks, dim3(FLAT_THREADS), kernel, shape, arguments...);
}

/* ---- Sums and conversions --------------------------------------------------------------- */

static __global__ void add(flat_shape shape, float *to, const float *from)
{
    flat_group g = flat_group_of_thread(shape);
    four sum =
        sum_of(load_four(to + g.at, g.count, g.whole), load_four(from + g.at, g.count, g.whole));
    store_four(to + g.at, sum, g.count, g.whole);
}

cudaError_t sli_launch_add(int64_t count, float *to, const float *from, cudaStream_t stream)
{
    return launch_flat(stream, flat_shape{count, are_aligned(0, 0, to, from)}, add, to, from);
}

static __global__ void convert(flat_shape shape, sli_convert a)
{
    flat_group g = flat_group_of_thread(shape);
    four f = a.from_bf16 ? load_four((const uint16_t *)a.from + g.at, g.count, g.whole)
                         : load_four((const float *)a.from + g.at, g.count, g.whole);
    if (a.to_bf16) {
        store_four((uint16_t *)a.to + g.at, f, g.count, g.whole);
        return;
    }
    for (int i = 0; i < 4 && !a.from_bf16; i++)
        f.x[i] = sli_f32_from_bf16(sli_bf16_from_f32(f.x[i]));
    store_four((float *)a.to + g.at, f, g.count, g.whole);
}

cudaError_t sli_launch_convert(const sli_convert *a, cudaStream_t stream)
{
    flat_shape shape = {a->count, are_aligned(0, 0, a->from, a->to)};
    return launch_flat(stream, shape, convert, *a);
}

/* ---- Optimizers ------------------------------------------------------------------------- */

static __global__ void sgd(flat_shape shape, sli_sgd a)
{
    flat_group g = flat_group_of_thread(shape);
    four value = load_four(a.value + g.at, g.count, g.whole);
    four grad = load_four(a.grad + g.at, g.count, g.whole);
    for (int i = 0; i < 4; i++)
        value.x[i] -= a.lr * (a.grad_scale * grad.x[i] + a.weight_decay * value.x[i]);
    store_four(a.value + g.at, value, g.count, g.whole);
}

static __global__ void sgd_momentum(flat_shape shape, sli_sgd a)
{
    flat_group g = flat_group_of_thread(shape);
    float fresh = 1.0f - a.dampening;
    four value = load_four(a.value + g.at, g.count, g.whole);
    four grad = load_four(a.grad + g.at, g.count, g.whole);
    four buffer = load_four(a.momentum_buffer + g.at, g.count, g.whole);
    for (int i = 0; i < 4; i++) {
        float x = a.grad_scale * grad.x[i] + a.weight_decay * value.x[i];
        float m = a.first ? x : a.momentum * buffer.x[i] + fresh * x;
        buffer.x[i] = m;
        value.x[i] -= a.lr * (a.nesterov ? x + a.momentum * m : m);
    }
    store_four(a.momentum_buffer + g.at, buffer, g.count, g.whole);
    store_four(a.value + g.at, value, g.count, g.whole);
}

cudaError_t sli_launch_sgd(const sli_sgd *a, cudaStream_t stream)
{
    bool momentum = a->momentum != 0;
    const float *buffer = momentum ? a->momentum_buffer : NULL;
    flat_shape shape = {a->count, are_aligned(0, 0, a->value, a->grad, buffer)};
    return launch_flat(stream, shape, momentum ? sgd_momentum : sgd, *a);
}

/* What is the same for all elements, computed once. */
struct adamw_step {
    float keep; /* of the value, after decay */
    float step; /* lr / bias_correction1 */
    float root; /* 1 / sqrt(bias_correction2) */
};

/* Of the four elements from element `at` on. */
static inline __device__ void round_averages(const sli_rounding &r, int64_t at, four *mean,
                                             four *square)
{
    uint64_t group = (uint64_t)(r.first_group + at / 4);
    uint32_t words[4] = {(uint32_t)group, 0, sli_site_of_group(r.site, group), r.step};
    sli_philox(r.key, words);
    for (int i = 0; i < 4; i++) {
        mean->x[i] = sli_f32_from_bf16(sli_bf16_at_random(mean->x[i], words[i] & 0xFFFFu));
        square->x[i] = sli_f32_from_bf16(sli_bf16_at_random(square->x[i], words[i] >> 16));
    }
}

template <class Average> static __global__ void adamw(flat_shape shape, sli_adamw a, adamw_step s)
{
    flat_group g = flat_group_of_thread(shape);
    Average *means = (Average *)a.exp_avg + g.at, *squares = (Average *)a.exp_avg_sq + g.at;
    four value = load_four(a.value + g.at, g.count, g.whole);
    four grad = load_four(a.grad + g.at, g.count, g.whole);
    four mean = load_four(means, g.count, g.whole);
    four square = load_four(squares, g.count, g.whole);
    for (int i = 0; i < 4; i++) {
        float x = a.grad_scale * grad.x[i];
        float m = a.beta1 * mean.x[i] + (1.0f - a.beta1) * x;
        float v = a.beta2 * square.x[i] + (1.0f - a.beta2) * (x * x);
        mean.x[i] = m;
        square.x[i] = v;
        value.x[i] = s.keep * value.x[i] - s.step * (m / (sqrtf(v) * s.root + a.eps));
    }
    if (a.bf16)
        round_averages(a.rounding, g.at, &mean, &square);
    store_four(means, mean, g.count, g.whole);
    store_four(squares, square, g.count, g.whole);
    store_four(a.value + g.at, value, g.count, g.whole);
}

cudaError_t sli_launch_adamw(const sli_adamw *a, cudaStream_t stream)
{
    adamw_step step = {1.0f - a->lr * a->weight_decay, (float)(a->lr / a->bias_correction1),
                       (float)(1.0 / sqrt(a->bias_correction2))};
    flat_shape shape = {a->count, are_aligned(0, 0, a->value, a->grad, a->exp_avg, a->exp_avg_sq)};
    return launch_flat(stream, shape, a->bf16 ? adamw<uint16_t> : adamw<float>, *a, step);
}
