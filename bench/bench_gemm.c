/* The device's matrix products and attention on the shapes of training, against the best dnnl_sgemm
 * rate of the same run on the same cores (bench_sgemm_rate).
 *
 *   bench_gemm [ROWS]...        rows of a batch or micro-batch; default: 700 105 88 */
#include "support.h"

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>

enum { VOCABULARY = 28782, POSITIONS = 35, MAX_ROUNDS = 200, MIN_ROUNDS = 5 };

typedef struct product {
    const char *name;
    bool transpose_a, transpose_b;
    bool bias; /* added to every row, as forward does */
    int64_t m, n, k;
} product;

/* In the device's memory, as training's are: large arrays lie on huge pages. */
static float *array(sl_device *device, int64_t count)
{
    void *memory;
    bench_check(
        sli_device_allocate(device, SL_MEMORY_WORKSPACE, (size_t)count * sizeof(float), &memory));
    float *values = memory;
    for (int64_t i = 0; i < count; i++)
        values[i] = 1e-3f * (float)(i % 1009) - 0.5f;
    return values;
}

static void release(sl_device *device, float *values, int64_t count)
{
    sli_device_release(device, SL_MEMORY_WORKSPACE, values, (size_t)count * sizeof(float));
}

typedef struct timing {
    double best, median; /* seconds */
} timing;

/* Runs `run` until there are enough rounds and the time is up. */
static timing measure(sl_device *device, sl_status (*run)(sl_device *, const void *),
                      const void *arguments)
{
    double seconds[MAX_ROUNDS], start = bench_now();
    int rounds = 0;
    bench_check(run(device, arguments)); /* warms up */
    while (rounds < MAX_ROUNDS && (rounds < MIN_ROUNDS || bench_now() - start < 0.2)) {
        double before = bench_now();
        bench_check(run(device, arguments));
        seconds[rounds++] = bench_now() - before;
    }
    timing result = {.median = bench_median(seconds, rounds)};
    result.best = seconds[0];
    return result;
}

static void report(const char *name, const product *p, int64_t width, int64_t rows, double flop,
                   timing t, double bound)
{
    printf("%5d rows  width %5d  %-13s %6d x %6d x %6d %c%c  %7.1f GFLOP/s  ratio %.3f (median "
           "%.3f)\n",
           (int)rows, (int)width, name, (int)p->m, (int)p->n, (int)p->k, p->transpose_a ? 'T' : 'N',
           p->transpose_b ? 'T' : 'N', 1e-9 * flop / t.best, flop / t.best / bound,
           flop / t.median / bound);
    printf("{\"bench\":\"gemm\",\"rows\":%d,\"width\":%d,\"product\":\"%s\",\"m\":%d,\"n\":%d,"
           "\"k\":%d,\"gflops\":%.2f,\"median_gflops\":%.2f,\"sgemm_gflops\":%.2f,\"ratio\":%.4f}"
           "\n",
           (int)rows, (int)width, name, (int)p->m, (int)p->n, (int)p->k, 1e-9 * flop / t.best,
           1e-9 * flop / t.median, 1e-9 * bound, flop / t.best / bound);
    fflush(stdout);
}

/* ---- Products --------------------------------------------------------------------------- */

static sl_status run_gemm(sl_device *device, const void *arguments)
{
    return sli_device_gemm(device, arguments);
}

static void report_product(sl_device *device, const product *p, int64_t width, int64_t rows,
                           double bound)
{
    int64_t sizes[4] = {p->m * p->k, p->k * p->n, p->m * p->n, p->n};
    float *arrays[4];
    for (int i = 0; i < 4; i++)
        arrays[i] = array(device, sizes[i]);
    sli_gemm gemm = {.transpose_a = p->transpose_a, .transpose_b = p->transpose_b};
    gemm.m = p->m;
    gemm.n = p->n;
    gemm.k = p->k;
    gemm.a = arrays[0];
    gemm.lda = p->transpose_a ? p->m : p->k;
    gemm.b = arrays[1];
    gemm.ldb = p->transpose_b ? p->k : p->n;
    gemm.c = arrays[2];
    gemm.ldc = p->n;
    gemm.bias = p->bias ? arrays[3] : NULL;
    timing t = measure(device, run_gemm, &gemm);
    report(p->name, p, width, rows, 2.0 * (double)p->m * (double)p->n * (double)p->k, t, bound);
    for (int i = 0; i < 4; i++)
        release(device, arrays[i], sizes[i]);
}

/* The products of a layer and of the decoder: forward, gradient of the input, of the weight. */
static void report_width(sl_device *device, int64_t rows, int64_t width, double bound)
{
    const struct {
        const char *forward, *input, *weight;
        int64_t out;
    } layers[] = {{"qkv", "qkv dx", "qkv dw", 3 * width},
                  {"linear", "linear dx", "linear dw", width},
                  {"decoder", "decoder dx", "decoder dw", VOCABULARY}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        int64_t out = layers[i].out;
        product products[] = {{layers[i].forward, false, true, true, rows, out, width},
                              {layers[i].input, false, false, false, rows, width, out},
                              {layers[i].weight, true, false, false, out, width, rows}};
        for (int p = 0; p < 3; p++)
            report_product(device, &products[p], width, rows, bound);
    }
}

/* ---- Attention -------------------------------------------------------------------------- */

static sl_status run_attention(sl_device *device, const void *arguments)
{
    return sli_device_attention(device, arguments);
}

static sl_status run_attention_backward(sl_device *device, const void *arguments)
{
    return sli_device_attention_backward(device, arguments);
}

/* Causal, with dropout; counted as if no key were masked, and without the second q k^T of
 * backward. Each head's products are [positions, positions] by its width. */
static void report_attention(sl_device *device, int64_t rows, int64_t width, double bound)
{
    int64_t samples = rows / POSITIONS > 0 ? rows / POSITIONS : 1;
    int64_t heads = width % 64 ? 2 : width / 64, elements = samples * POSITIONS * width;
    int64_t sums = samples * heads * POSITIONS;
    float *qkv = array(device, 3 * elements), *grad_qkv = array(device, 3 * elements);
    float *out = array(device, elements), *log_sum_exp = array(device, sums);
    sli_dropout dropout = {.p = 0.2f, .rows_per_sample = heads * POSITIONS};
    sli_attention forward = {samples, POSITIONS, heads, width / heads, true,
                             qkv,     dropout,   out,   log_sum_exp};
    sli_attention_backward backward = {samples, POSITIONS,   heads,   width / heads, true,    qkv,
                                       out,     log_sum_exp, dropout, out,           grad_qkv};
    product shape = {.m = POSITIONS, .n = POSITIONS, .k = width / heads, .transpose_b = true};
    double flop = 4.0 * (double)elements * POSITIONS;
    report("attention", &shape, width, rows, flop, measure(device, run_attention, &forward), bound);
    report("attention dx", &shape, width, rows, 2 * flop,
           measure(device, run_attention_backward, &backward), bound);
    release(device, qkv, 3 * elements);
    release(device, grad_qkv, 3 * elements);
    release(device, out, elements);
    release(device, log_sum_exp, sums);
}

int main(int argc, char **argv)
{
    static const int64_t defaults[] = {700, 105, 88};
    sl_device_list *devices;
    bench_check(sl_device_list_create("cpu", &devices, NULL));
    sl_device *device = sl_device_list_get(devices, 0);
    /* Before this thread is bound: the bound's own threads would inherit its core. */
    double bound = bench_sgemm_rate(sl_device_thread_count(device));
    sli_device_bind_thread(device);
    printf("best dnnl_sgemm: %.1f GFLOP/s on %d threads\n", 1e-9 * bound,
           sl_device_thread_count(device));
    int count = argc > 1 ? argc - 1 : 3;
    for (int i = 0; i < count; i++) {
        int64_t rows = argc > 1 ? strtol(argv[i + 1], NULL, 10) : defaults[i];
        if (rows < 1 || rows > 100000) {
            fprintf(stderr, "usage: bench_gemm [ROWS (1 to 100000)]...\n");
            return 2;
        }
        report_width(device, rows, 1024, bound);
        report_attention(device, rows, 1024, bound);
        report_width(device, rows, 200, bound);
        report_attention(device, rows, 200, bound);
    }
    sl_device_list_destroy(&devices);
    return 0;
}
