/* The named cases of tests/device/case_list.c, against what the machine reaches in the same run.
 * Products and attention: the best dnnl_sgemm rate on the same cores (bench_sgemm_rate). The others
 * are bound by memory: plain loops over arrays that no cache holds, a sum for kernels that only
 * read, a fill for those that only write, and a triad (a = b + s c) for the rest. Bytes are those
 * that a kernel must move; what a processor reads only to overwrite it is counted for neither side.
 * Kernels with dropout are also bound by how fast random words come.
 *
 *   bench_kernels [NAME]        only cases whose name begins so */
#include "support.h"

#include "device/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN_ROUNDS = 9, MIN_ROUNDS = 9, MAX_ROUNDS = 200 };
static const int64_t elements = 20 << 20;

/* ---- Bounds ----------------------------------------------------------------------------- */

typedef enum bound { READS, WRITES, MIXED, BOUNDS } bound;

/* Bytes a second of plain loops on so many threads; a [3, elements]. */
static double plain_rate(float *a, bound kind, int threads)
{
    static const double bytes[BOUNDS] = {4, 4, 12};
    float *b = a + elements, *c = b + elements, sum = 0;
    double best = 1e9;
    for (int round = 0; round < PLAIN_ROUNDS; round++) {
        double start = bench_now();
        if (kind == READS) {
#pragma omp parallel for simd num_threads(threads) reduction(+ : sum)
            for (int64_t i = 0; i < elements; i++)
                sum += b[i];
        } else {
#pragma omp parallel for simd num_threads(threads)
            for (int64_t i = 0; i < elements; i++)
                a[i] = kind == WRITES ? 1 : b[i] + 0.5f * c[i];
        }
        double seconds = bench_now() - start;
        best = seconds < best ? seconds : best;
    }
    a[0] = sum; /* so that it is wanted */
    return bytes[kind] * (double)elements / best;
}

static void measure_bounds(sl_device *device, double rates[BOUNDS])
{
    size_t bytes = 3 * (size_t)elements * sizeof(float);
    void *memory;
    bench_check(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &memory));
    memset(memory, 0, bytes);
    for (int kind = 0; kind < BOUNDS; kind++)
        rates[kind] = plain_rate(memory, (bound)kind, sl_device_thread_count(device));
    sli_device_release(device, SL_MEMORY_WORKSPACE, memory, bytes);
}

/* ---- Cases ------------------------------------------------------------------------------ */

static void report(sl_device *device, const case_spec *spec, const double rates[BOUNDS],
                   double sgemm_rate)
{
    op_case c;
    loaded_case loaded;
    double seconds[MAX_ROUNDS], start = bench_now();
    int rounds = 0;
    case_build(spec, 1, &c);
    bench_check(case_load(device, &c, &loaded));
    bench_check(case_run(&loaded)); /* warms up */
    while (rounds < MAX_ROUNDS && (rounds < MIN_ROUNDS || bench_now() - start < 0.2)) {
        double before = bench_now();
        bench_check(case_run(&loaded));
        seconds[rounds++] = bench_now() - before;
    }
    case_unload(&loaded);
    double median = bench_median(seconds, rounds); /* sorts */
    double reads = case_bytes(&c, false), writes = case_bytes(&c, true), flop = case_flop(&c);
    bound kind = writes < 0.01 * reads ? READS : reads < 0.01 * writes ? WRITES : MIXED;
    double limit = flop > 0 ? sgemm_rate : rates[kind];
    double work = flop > 0 ? flop : reads + writes;
    const char *unit = flop > 0 ? "GFLOP/s" : "GB/s";
    printf("%-28s %7.2f %s  ratio %.3f (median %.3f)  %.1f us\n", spec->name,
           1e-9 * work / seconds[0], unit, work / seconds[0] / limit, work / median / limit,
           1e6 * seconds[0]);
    printf("{\"bench\":\"kernels\",\"kernel\":\"%s\",\"unit\":\"%s\",\"rate\":%.3f,"
           "\"bound\":%.3f,\"ratio\":%.4f,\"us\":%.2f}\n",
           spec->name, unit, 1e-9 * work / seconds[0], 1e-9 * limit, work / seconds[0] / limit,
           1e6 * seconds[0]);
    fflush(stdout);
    case_free(&c);
}

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : "";
    sl_device_list *devices;
    double rates[BOUNDS];
    size_t count;
    case_spec *list = case_list(1, &count);
    bench_check(sl_device_list_create("cpu", &devices, NULL));
    sl_device *device = sl_device_list_get(devices, 0);
    measure_bounds(device, rates);
    double sgemm_rate = bench_sgemm_rate(sl_device_thread_count(device));
    /* After the bounds, whose threads would inherit this one's core. */
    sli_device_bind_thread(device);
    printf("%d threads: sum %.2f, fill %.2f, triad %.2f GB/s, dnnl_sgemm %.1f GFLOP/s; kernels for "
           "%s\n",
           sl_device_thread_count(device), 1e-9 * rates[READS], 1e-9 * rates[WRITES],
           1e-9 * rates[MIXED], 1e-9 * sgemm_rate, sl_device_isa(device));
    for (size_t i = 0; i < count; i++)
        if (*list[i].name && strncmp(list[i].name, wanted, strlen(wanted)) == 0)
            report(device, &list[i], rates, sgemm_rate);
    sl_device_list_destroy(&devices);
    free(list);
    return 0;
}
