/* The device's matrix products on the shapes of training, against the best dnnl_sgemm rate of the
 * same run on the same cores (bench_sgemm_rate).
 *
 *   bench_gemm [ROWS]...        rows of a batch or micro-batch; default: 700 105 88 */
#include "support.h"

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>

enum { VOCABULARY = 28782, MAX_ROUNDS = 200, MIN_ROUNDS = 5 };

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

/* Best and median seconds of one product. */
static void measure(sl_device *device, const product *p, double *best, double *median)
{
    int64_t sizes[4] = {p->m * p->k, p->k * p->n, p->m * p->n, p->n};
    float *a = array(device, sizes[0]), *b = array(device, sizes[1]), *c = array(device, sizes[2]);
    float *bias = array(device, sizes[3]);
    sli_gemm gemm = {.transpose_a = p->transpose_a, .transpose_b = p->transpose_b};
    gemm.m = p->m;
    gemm.n = p->n;
    gemm.k = p->k;
    gemm.a = a;
    gemm.lda = p->transpose_a ? p->m : p->k;
    gemm.b = b;
    gemm.ldb = p->transpose_b ? p->k : p->n;
    gemm.c = c;
    gemm.ldc = p->n;
    gemm.bias = p->bias ? bias : NULL;
    double seconds[MAX_ROUNDS], start = bench_now();
    int rounds = 0;
    bench_check(sli_device_get_ops(device)->gemm(device, &gemm)); /* warms up */
    while (rounds < MAX_ROUNDS && (rounds < MIN_ROUNDS || bench_now() - start < 0.2)) {
        double before = bench_now();
        bench_check(sli_device_get_ops(device)->gemm(device, &gemm));
        seconds[rounds++] = bench_now() - before;
    }
    *median = bench_median(seconds, rounds);
    *best = seconds[0];
    float *arrays[4] = {a, b, c, bias};
    for (int i = 0; i < 4; i++)
        sli_device_release(device, SL_MEMORY_WORKSPACE, arrays[i],
                           (size_t)sizes[i] * sizeof(float));
}

static void report(sl_device *device, const product *p, int64_t width, int64_t rows, double bound)
{
    double best, median, flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    measure(device, p, &best, &median);
    printf("%5d rows  width %5d  %-12s %6d x %6d x %6d %c%c  %7.1f GFLOP/s  ratio %.3f (median "
           "%.3f)\n",
           (int)rows, (int)width, p->name, (int)p->m, (int)p->n, (int)p->k,
           p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', 1e-9 * flop / best,
           flop / best / bound, flop / median / bound);
    printf("{\"bench\":\"gemm\",\"rows\":%d,\"width\":%d,\"product\":\"%s\",\"m\":%d,\"n\":%d,"
           "\"k\":%d,\"gflops\":%.2f,\"median_gflops\":%.2f,\"sgemm_gflops\":%.2f,\"ratio\":%.4f}"
           "\n",
           (int)rows, (int)width, p->name, (int)p->m, (int)p->n, (int)p->k, 1e-9 * flop / best,
           1e-9 * flop / median, 1e-9 * bound, flop / best / bound);
    fflush(stdout);
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
            report(device, &products[p], width, rows, bound);
    }
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
        report_width(device, rows, 200, bound);
    }
    sl_device_list_destroy(&devices);
    return 0;
}
