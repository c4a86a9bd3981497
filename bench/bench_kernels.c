/* The device's memory-bound kernels on arrays that no cache holds, against what plain loops reach
 * in the same run: a sum for kernels that only read, a fill for those that only write, and a triad
 * (a = b + s c) for the others. Bytes are those that a kernel must move; what a processor reads
 * only to overwrite it is counted for neither side. Kernels with dropout are also bound by how fast
 * random words come.
 *
 *   bench_kernels [NAME]        only kernels whose name begins so */
#include "support.h"

#include "device/device.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 1024, ROWS = 20000, CLASSES = 28782, CLASS_ROWS = 700, ARRAYS = 6, ROUNDS = 9 };
enum { MAX_THREADS = 256 };
static const int64_t elements = (int64_t)ROWS * WIDTH;

typedef struct lab {
    sl_device *device;
    float *arrays[ARRAYS]; /* [ROWS, WIDTH], more than [CLASS_ROWS, CLASSES] */
    float *row_values;     /* [WIDTH] of ones, then two more rows for sums */
    float *rstd;           /* [ROWS] */
    int32_t *ids;          /* [ROWS] */
    double *loss;          /* [ROWS] */
    sli_dropout dropout;
} lab;

/* ---- Bounds ----------------------------------------------------------------------------- */

typedef enum bound { READS, WRITES, MIXED, BOUNDS } bound;

typedef struct plain_job {
    bound kind;
    float *a;
    const float *b, *c;
    int64_t count;
    float sum;
} plain_job;

static void *plain_thread(void *argument)
{
    plain_job *job = argument;
    float sums[16] = {0};
    for (int64_t i = 0; job->kind == MIXED && i < job->count; i++)
        job->a[i] = job->b[i] + 0.5f * job->c[i];
    for (int64_t i = 0; job->kind == READS && i + 16 <= job->count; i += 16)
        for (int l = 0; l < 16; l++)
            sums[l] += job->b[i + l];
    for (int64_t i = 0; job->kind == WRITES && i < job->count; i++)
        job->a[i] = 1;
    for (int l = 0; l < 16; l++)
        job->sum += sums[l];
    return NULL;
}

/* Bytes a second of plain loops on all threads. */
static double plain_rate(const lab *l, bound kind)
{
    static const double bytes[BOUNDS] = {4, 4, 12};
    int threads = sl_device_thread_count(l->device);
    threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t handles[MAX_THREADS];
        plain_job jobs[MAX_THREADS];
        double start = bench_now();
        for (int t = 0; t < threads; t++) {
            int64_t first = elements * t / threads, end = elements * (t + 1) / threads;
            jobs[t] = (plain_job){
                kind, l->arrays[0] + first, l->arrays[1] + first, l->arrays[2] + first, end - first,
                0};
            pthread_create(&handles[t], NULL, plain_thread, &jobs[t]);
        }
        for (int t = 0; t < threads; t++)
            pthread_join(handles[t], NULL);
        double seconds = bench_now() - start;
        best = seconds < best ? seconds : best;
    }
    return bytes[kind] * (double)elements / best;
}

/* ---- Kernels ---------------------------------------------------------------------------- */

static void run_copy(const lab *l)
{
    bench_check(
        sli_device_copy(l->device, l->arrays[0], l->arrays[1], (size_t)elements * sizeof(float)));
}

static void run_zero(const lab *l)
{
    bench_check(sli_device_zero(l->device, l->arrays[0], (size_t)elements * sizeof(float)));
}

static void run_add(const lab *l)
{
    bench_check(sli_device_add(l->device, elements, l->arrays[0], l->arrays[1]));
}

static void run_sgd(const lab *l)
{
    sli_sgd s = {.count = elements, .value = l->arrays[0], .grad = l->arrays[1]};
    s.grad_scale = 1;
    s.lr = 1e-6f;
    bench_check(sli_device_sgd(l->device, &s));
}

static void run_sgd_momentum(const lab *l)
{
    sli_sgd s = {.count = elements, .value = l->arrays[0], .grad = l->arrays[1]};
    s.momentum_buffer = l->arrays[2];
    s.grad_scale = 1;
    s.lr = 1e-6f;
    s.momentum = 0.9f;
    bench_check(sli_device_sgd(l->device, &s));
}

static void run_adamw(const lab *l)
{
    sli_adamw s = {.count = elements, .value = l->arrays[0], .grad = l->arrays[1]};
    s.exp_avg = l->arrays[2];
    s.exp_avg_sq = l->arrays[3];
    s.grad_scale = 1;
    s.lr = 1e-6f;
    s.beta1 = 0.9f;
    s.beta2 = 0.999f;
    s.eps = 1e-8f;
    s.bias_correction1 = s.bias_correction2 = 0.5;
    bench_check(sli_device_adamw(l->device, &s));
}

static void run_norm_l2(const lab *l)
{
    double term;
    bench_check(sli_device_norm_term(l->device, SLI_NORM_L2, elements, l->arrays[1], &term));
}

static void run_norm_inf(const lab *l)
{
    double term;
    bench_check(sli_device_norm_term(l->device, SLI_NORM_INF, elements, l->arrays[1], &term));
}

static void run_initialize(const lab *l)
{
    sli_init init = {SLI_INIT_UNIFORM, -0.1f, 0.1f};
    bench_check(sli_device_initialize(l->device, &init, 1, 2, elements, l->arrays[0]));
}

static void epilogue_backward(const lab *l, sli_activation activation, bool dropout)
{
    sli_epilogue_backward e = {.rows = ROWS, .columns = WIDTH, .grad = l->arrays[0]};
    e.saved = l->arrays[1];
    e.activation = activation;
    e.dropout = dropout ? l->dropout : (sli_dropout){.p = 0};
    e.grad_bias = l->row_values + WIDTH;
    bench_check(sli_device_epilogue_backward(l->device, &e));
}

static void run_bias_grad(const lab *l)
{
    epilogue_backward(l, SLI_ACTIVATION_NONE, false);
}

static void run_relu_backward(const lab *l)
{
    epilogue_backward(l, SLI_ACTIVATION_RELU, true);
}

static void run_gelu_backward(const lab *l)
{
    epilogue_backward(l, SLI_ACTIVATION_GELU, false);
}

static void run_dropout_backward(const lab *l)
{
    epilogue_backward(l, SLI_ACTIVATION_NONE, true);
}

static void run_embedding(const lab *l)
{
    sli_embedding e = {.rows = ROWS, .width = WIDTH, .table_rows = ROWS, .ids = l->ids};
    e.scale = 32;
    e.table = l->arrays[1];
    e.dropout.rows_per_sample = 35;
    e.positions = l->arrays[2];
    e.out = l->arrays[0];
    bench_check(sli_device_embedding(l->device, &e));
}

static void run_embedding_backward(const lab *l)
{
    sli_embedding_backward e = {.rows = ROWS, .width = WIDTH, .table_rows = ROWS, .ids = l->ids};
    e.scale = 32;
    e.grad_out = l->arrays[1];
    e.grad_table = l->arrays[0];
    bench_check(sli_device_embedding_backward(l->device, &e));
}

static void add_norm(const lab *l, bool dropout)
{
    sli_add_norm a = {.rows = ROWS, .width = WIDTH, .x = l->arrays[1], .residual = l->arrays[2]};
    a.dropout = dropout ? l->dropout : (sli_dropout){.p = 0};
    a.out = l->arrays[0];
    a.weight = a.bias = l->row_values;
    a.eps = 1e-5f;
    a.normalized = l->arrays[3];
    a.rstd = l->rstd;
    bench_check(sli_device_add_norm(l->device, &a));
}

static void run_add_norm(const lab *l)
{
    add_norm(l, false);
}

static void run_add_norm_dropout(const lab *l)
{
    add_norm(l, true);
}

static void add_norm_backward(const lab *l, bool dropout)
{
    sli_add_norm_backward a = {.rows = ROWS, .width = WIDTH, .grad_out = l->arrays[1]};
    a.normalized = l->arrays[2];
    a.rstd = l->rstd;
    a.weight = l->row_values;
    a.dropout = dropout ? l->dropout : (sli_dropout){.p = 0};
    a.grad_sum = l->arrays[0];
    a.grad_x = dropout ? l->arrays[3] : NULL;
    a.grad_weight = l->row_values + WIDTH;
    a.grad_bias = l->row_values + 2 * WIDTH;
    bench_check(sli_device_add_norm_backward(l->device, &a));
}

static void run_add_norm_backward(const lab *l)
{
    add_norm_backward(l, false);
}

static void run_add_norm_backward_dropout(const lab *l)
{
    add_norm_backward(l, true);
}

static void cross_entropy(const lab *l, float grad_scale)
{
    sli_cross_entropy c = {.rows = CLASS_ROWS, .classes = CLASSES, .logits = l->arrays[0]};
    c.targets = l->ids;
    c.ignore = -100;
    c.grad_scale = grad_scale;
    c.loss = l->loss;
    bench_check(sli_device_cross_entropy(l->device, &c));
}

static void run_cross_entropy(const lab *l)
{
    cross_entropy(l, 0);
}

static void run_cross_entropy_grad(const lab *l)
{
    cross_entropy(l, 1);
}

/* Floats read and written for each element. */
static const struct {
    const char *name;
    void (*run)(const lab *l);
    double reads, writes;
    bool classes; /* over [CLASS_ROWS, CLASSES] */
    bool random;  /* draws a word for each element */
} kernels[] = {
    {"copy", run_copy, 1, 1, false, false},
    {"zero", run_zero, 0, 1, false, false},
    {"add", run_add, 2, 1, false, false},
    {"sgd", run_sgd, 2, 1, false, false},
    {"sgd momentum", run_sgd_momentum, 3, 2, false, false},
    {"adamw", run_adamw, 4, 3, false, false},
    {"norm l2", run_norm_l2, 1, 0, false, false},
    {"norm inf", run_norm_inf, 1, 0, false, false},
    {"bias grad", run_bias_grad, 1, 0, false, false},
    {"relu+dropout backward", run_relu_backward, 2, 1, false, false},
    {"gelu backward", run_gelu_backward, 2, 1, false, false},
    {"embedding", run_embedding, 1, 1, false, false},
    {"embedding backward", run_embedding_backward, 2, 1, false, false},
    {"add+norm", run_add_norm, 2, 2, false, false},
    {"add+norm backward", run_add_norm_backward, 2, 1, false, false},
    {"cross entropy", run_cross_entropy, 1, 0, true, false},
    {"cross entropy, gradient", run_cross_entropy_grad, 1, 1, true, false},
    {"initialize", run_initialize, 0, 1, false, true},
    {"dropout backward", run_dropout_backward, 1, 1, false, true},
    {"dropout+add+norm", run_add_norm_dropout, 2, 2, false, true},
    {"dropout+add+norm backward", run_add_norm_backward_dropout, 2, 2, false, true},
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

static void report(const lab *l, int k, const double rates[BOUNDS])
{
    double seconds[ROUNDS],
        count = kernels[k].classes ? (double)CLASS_ROWS * CLASSES : (double)elements;
    kernels[k].run(l); /* warms up */
    for (int round = 0; round < ROUNDS; round++) {
        double start = bench_now();
        kernels[k].run(l);
        seconds[round] = bench_now() - start;
    }
    double median = bench_median(seconds, ROUNDS);
    bound kind = kernels[k].writes == 0 ? READS : kernels[k].reads == 0 ? WRITES : MIXED;
    double bytes = 4 * count * (kernels[k].reads + kernels[k].writes);
    double best = bytes / seconds[0], ratio = best / rates[kind];
    printf("%-26s %6.2f GB/s  ratio %.3f (median %.3f)  %.2f elements/ns%s\n", kernels[k].name,
           1e-9 * best, ratio, bytes / median / rates[kind], 1e-9 * count / seconds[0],
           kernels[k].random ? ", random" : "");
    printf("{\"bench\":\"kernels\",\"kernel\":\"%s\",\"gb_per_s\":%.3f,\"bound_gb_per_s\":%.3f,"
           "\"ratio\":%.4f,\"elements_per_ns\":%.4f,\"random\":%s}\n",
           kernels[k].name, 1e-9 * best, 1e-9 * rates[kind], ratio, 1e-9 * count / seconds[0],
           kernels[k].random ? "true" : "false");
    fflush(stdout);
}

/* ---- Set-up ----------------------------------------------------------------------------- */

static void *allocate(const lab *l, size_t bytes)
{
    void *memory;
    bench_check(sli_device_allocate(l->device, SL_MEMORY_WORKSPACE, bytes, &memory));
    memset(memory, 0, bytes);
    return memory;
}

static void set_up(lab *l, sl_device *device)
{
    *l = (lab){.device = device};
    for (int i = 0; i < ARRAYS; i++) {
        l->arrays[i] = allocate(l, (size_t)elements * sizeof(float));
        for (int64_t j = 0; j < elements; j++)
            l->arrays[i][j] = (float)(j * 2654435761 % 1009) * 1e-3f + 0.01f;
    }
    l->row_values = allocate(l, 3 * WIDTH * sizeof(float));
    for (int i = 0; i < WIDTH; i++)
        l->row_values[i] = 1;
    l->rstd = allocate(l, ROWS * sizeof(float));
    l->ids = allocate(l, ROWS * sizeof(int32_t));
    l->loss = allocate(l, ROWS * sizeof(double));
    for (int i = 0; i < ROWS; i++) {
        l->rstd[i] = 1;
        l->ids[i] = (int32_t)((int64_t)i * 7919 % ROWS);
    }
    l->dropout = (sli_dropout){.p = 0.2f, .rows_per_sample = 35};
}

static void tear_down(lab *l)
{
    for (int i = 0; i < ARRAYS; i++)
        sli_device_release(l->device, SL_MEMORY_WORKSPACE, l->arrays[i],
                           (size_t)elements * sizeof(float));
    sli_device_release(l->device, SL_MEMORY_WORKSPACE, l->row_values, 3 * WIDTH * sizeof(float));
    sli_device_release(l->device, SL_MEMORY_WORKSPACE, l->rstd, ROWS * sizeof(float));
    sli_device_release(l->device, SL_MEMORY_WORKSPACE, l->ids, ROWS * sizeof(int32_t));
    sli_device_release(l->device, SL_MEMORY_WORKSPACE, l->loss, ROWS * sizeof(double));
}

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : "";
    sl_device_list *devices;
    lab l;
    bench_check(sl_device_list_create("cpu", &devices, NULL));
    set_up(&l, sl_device_list_get(devices, 0));
    double rates[BOUNDS];
    for (int kind = 0; kind < BOUNDS; kind++)
        rates[kind] = plain_rate(&l, (bound)kind);
    /* After the bounds, whose threads would inherit this one's core. */
    sli_device_bind_thread(l.device);
    printf("plain loops on %d threads: sum %.2f, fill %.2f, triad %.2f GB/s; kernels for %s\n",
           sl_device_thread_count(l.device), 1e-9 * rates[READS], 1e-9 * rates[WRITES],
           1e-9 * rates[MIXED], sl_device_isa(l.device));
    for (int k = 0; k < KERNELS; k++)
        if (strncmp(kernels[k].name, wanted, strlen(wanted)) == 0)
            report(&l, k, rates);
    tear_down(&l);
    sl_device_list_destroy(&devices);
    return 0;
}
