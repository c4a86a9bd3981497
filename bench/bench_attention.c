/* Attention of long rows, of SmolLM2-135M's shape with a causal mask, beside products of its
 * layers.
 *
 *   bench_attention                        tables: rates, packed documents, memory
 *   bench_attention POSITIONS PRECISION    forward and backward of one row, as a line of JSON
 *
 * Times are of the processor, of all threads together. A round runs a product (a row's positions by
 * the first weight of the feed-forward part), attention and its backward, one after the other;
 * ratios are of a round, and the median of the rounds is told. Operations are those of the pairs
 * that the mask leaves, a multiply-add being two: two products forward and four backward, although
 * backward makes the scores again. */
#include "support.h"

#include "device/device.h"
#include "nn/layers.h"
#include "nn/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEADS = 9, KEY_HEADS = 3, HEAD_WIDTH = 64, HIDDEN = 1536, WIDTH = HEADS * HEAD_WIDTH };
enum { QKV = (HEADS + 2 * KEY_HEADS) * HEAD_WIDTH, DOCUMENTS = 6, ROUNDS = 3 };

typedef enum timed { PRODUCT, FORWARD, BACKWARD, TIMED } timed;

typedef struct row {
    sl_device *device;
    int64_t positions;
    bool bf16;
    float *qkv, *out, *log_sum_exp, *grad_out, *grad_qkv;
    void *a, *b; /* of the product, in the row's precision */
    float *c;
} row;

/* ---- Data ------------------------------------------------------------------------------- */

static void *allocate(const row *r, int64_t elements, size_t size)
{
    void *memory;
    bench_check(
        sli_device_allocate(r->device, SL_MEMORY_ACTIVATIONS, (size_t)elements * size, &memory));
    return memory;
}

static void release(const row *r, void *memory, int64_t elements, size_t size)
{
    sli_device_release(r->device, SL_MEMORY_ACTIVATIONS, memory, (size_t)elements * size);
}

/* Values from -1 to 1, rounded to bf16 for a row of it. */
static float *draw(const row *r, int64_t count, uint32_t seed)
{
    float *values = allocate(r, count, sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
    if (r->bf16)
        bench_check(
            sli_device_convert(r->device,
                               &(sli_convert){.count = count, .from = values, .to = values}));
    return values;
}

static void *draw_operand(const row *r, int64_t count, uint32_t seed)
{
    float *values = draw(r, count, seed);
    if (!r->bf16)
        return values;
    uint16_t *narrow = allocate(r, count, sizeof *narrow);
    bench_check(sli_device_convert(
        r->device, &(sli_convert){.count = count, .to_bf16 = true, .from = values, .to = narrow}));
    release(r, values, count, sizeof *values);
    return narrow;
}

static row create_row(sl_device *device, int64_t positions, bool bf16)
{
    row r = {.device = device, .positions = positions, .bf16 = bf16};
    r.qkv = draw(&r, positions * QKV, 1);
    r.grad_out = draw(&r, positions * WIDTH, 2);
    r.out = allocate(&r, positions * WIDTH, sizeof *r.out);
    r.log_sum_exp = allocate(&r, positions * HEADS, sizeof *r.log_sum_exp);
    r.grad_qkv = allocate(&r, positions * QKV, sizeof *r.grad_qkv);
    r.a = draw_operand(&r, positions * WIDTH, 3);
    r.b = draw_operand(&r, HIDDEN * WIDTH, 4);
    r.c = allocate(&r, positions * HIDDEN, sizeof *r.c);
    return r;
}

static void destroy_row(row *r)
{
    size_t operand = r->bf16 ? sizeof(uint16_t) : sizeof(float);
    release(r, r->qkv, r->positions * QKV, sizeof *r->qkv);
    release(r, r->grad_out, r->positions * WIDTH, sizeof *r->grad_out);
    release(r, r->out, r->positions * WIDTH, sizeof *r->out);
    release(r, r->log_sum_exp, r->positions * HEADS, sizeof *r->log_sum_exp);
    release(r, r->grad_qkv, r->positions * QKV, sizeof *r->grad_qkv);
    release(r, r->a, r->positions * WIDTH, operand);
    release(r, r->b, HIDDEN * WIDTH, operand);
    release(r, r->c, r->positions * HIDDEN, sizeof *r->c);
}

/* ---- Timing ----------------------------------------------------------------------------- */

static sl_status multiply(const row *r)
{
    return sli_device_gemm(r->device, &(sli_gemm){.transpose_b = true,
                                                  .bf16 = r->bf16,
                                                  .m = r->positions,
                                                  .n = HIDDEN,
                                                  .k = WIDTH,
                                                  .a = r->a,
                                                  .lda = WIDTH,
                                                  .b = r->b,
                                                  .ldb = WIDTH,
                                                  .c = r->c,
                                                  .ldc = HIDDEN});
}

/* What the arguments of forward and backward both have. */
#define ROW_FIELDS(r)                                                                              \
    .samples = 1, .positions = (r)->positions, .room = (r)->positions, .heads = HEADS,             \
    .key_heads = KEY_HEADS, .head_width = HEAD_WIDTH, .causal = true, .bf16 = (r)->bf16,           \
    .qkv = (r)->qkv, .out = (r)->out, .log_sum_exp = (r)->log_sum_exp

/* `documents` NULL: the row has one. */
static sl_status attend(const row *r, sli_documents *documents)
{
    sl_pass pass = {.options.device = r->device, .documents = documents};
    return sli_attend(&pass, &(sli_attention){ROW_FIELDS(r)});
}

static sl_status attend_backward(const row *r, sli_documents *documents)
{
    sl_pass pass = {.options.device = r->device, .documents = documents};
    return sli_attend_backward(&pass,
                               &(sli_attention_backward){ROW_FIELDS(r), .grad_out = r->grad_out,
                                                         .grad_qkv = r->grad_qkv});
}

/* Of all threads' processor time, which other programs on the cores change least. */
static double processor_seconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

static double seconds_of(const row *r, timed what, sli_documents *documents)
{
    double start = processor_seconds();
    bench_check(what == PRODUCT   ? multiply(r)
                : what == FORWARD ? attend(r, documents)
                                  : attend_backward(r, documents));
    return processor_seconds() - start;
}

static double operations(const row *r, timed what)
{
    double t = (double)r->positions, product = t * (t + 1) / 2 * 2 * WIDTH;
    return what == PRODUCT ? 2 * t * WIDTH * HIDDEN : what == FORWARD ? 2 * product : 4 * product;
}

/* ---- Tables ----------------------------------------------------------------------------- */

/* seconds[what][round]; a first round warms up. */
static void measure_row(const row *r, double seconds[TIMED][ROUNDS])
{
    for (int round = -1; round < ROUNDS; round++)
        for (timed what = PRODUCT; what < TIMED; what++)
            seconds[what][round < 0 ? 0 : round] = seconds_of(r, what, NULL);
}

static void report_rates(sl_device *device, int64_t positions, bool bf16)
{
    row r = create_row(device, positions, bf16);
    double seconds[TIMED][ROUNDS], ratios[TIMED][ROUNDS];
    measure_row(&r, seconds);
    for (timed what = PRODUCT; what < TIMED; what++)
        for (int i = 0; i < ROUNDS; i++)
            ratios[what][i] = operations(&r, what) / seconds[what][i] /
                              (operations(&r, PRODUCT) / seconds[PRODUCT][i]);
    printf("| 1 x %lld | %s | %.3f | %.3f |\n", (long long)positions, bf16 ? "bf16" : "f32",
           bench_median(ratios[FORWARD], ROUNDS), bench_median(ratios[BACKWARD], ROUNDS));
    fflush(stdout);
    destroy_row(&r);
}

/* Half of the row, a quarter and so on; the last two have what is left. */
static sli_documents *cut_documents(int64_t positions)
{
    sli_documents *cut = calloc(1, sizeof *cut + DOCUMENTS * sizeof *cut->all);
    if (!cut)
        bench_check(sl_error(SL_ERR_MEMORY, "no memory for documents"));
    *cut = (sli_documents){.samples = 1, .positions = positions, .count = DOCUMENTS};
    int64_t first = 0;
    for (int i = 0; i < DOCUMENTS; i++) {
        int64_t left = positions - first;
        int64_t length = i < DOCUMENTS - 2 ? left / 2 : i < DOCUMENTS - 1 ? left * 3 / 5 : left;
        cut->all[i] = (sli_document){0, first, length};
        first += length;
    }
    return cut;
}

/* The documents of a row, each in a row of its own. */
static double sum_of_documents(const row *r, timed what, const sli_documents *documents)
{
    double sum = 0;
    for (int i = 0; i < documents->count; i++) {
        const sli_document *document = &documents->all[i];
        row own = *r;
        own.positions = document->length;
        own.qkv += document->first * QKV;
        own.grad_qkv += document->first * QKV;
        own.out += document->first * WIDTH;
        own.grad_out += document->first * WIDTH;
        own.log_sum_exp += document->first * HEADS;
        sum += seconds_of(&own, what, NULL);
    }
    return sum;
}

/* Documents in their row beside the same in rows of their own: each twice, as who comes first finds
 * less in the caches. */
static double packed_ratio(const row *r, timed what, sli_documents *documents)
{
    double packed = seconds_of(r, what, documents);
    double sum = sum_of_documents(r, what, documents);
    sum += sum_of_documents(r, what, documents);
    packed += seconds_of(r, what, documents);
    return packed / sum;
}

static void report_packed(sl_device *device, int64_t positions)
{
    row r = create_row(device, positions, false);
    sli_documents *documents = cut_documents(positions);
    double ratios[TIMED][ROUNDS];
    for (int round = -1; round < ROUNDS; round++)
        for (timed what = FORWARD; what < TIMED; what++)
            ratios[what][round < 0 ? 0 : round] = packed_ratio(&r, what, documents);
    printf("| 1 x %lld | %.3f | %.3f |\n", (long long)positions,
           bench_median(ratios[FORWARD], ROUNDS), bench_median(ratios[BACKWARD], ROUNDS));
    fflush(stdout);
    free(documents);
    destroy_row(&r);
}

static double workspace_of(const row *r, timed what)
{
    sl_memory_stats stats;
    sl_device_reset_peak(r->device);
    seconds_of(r, what, NULL);
    sl_device_memory(r->device, &stats);
    return (double)stats.peak_bytes[SL_MEMORY_WORKSPACE];
}

static void report_memory(sl_device *device, int64_t positions)
{
    row r = create_row(device, positions, false);
    double tensors = (double)positions * (2 * QKV + 2 * WIDTH + HEADS) * sizeof(float);
    double forward = workspace_of(&r, FORWARD), backward = workspace_of(&r, BACKWARD);
    printf("| 1 x %lld | %.1f MB | %.2f MB | %.2f MB |\n", (long long)positions, 1e-6 * tensors,
           1e-6 * forward, 1e-6 * backward);
    fflush(stdout);
    destroy_row(&r);
}

static void report_all(sl_device *device)
{
    printf("runs: 1 run of %d rounds\n\n", ROUNDS);
    bench_heading("| row | precision | attention's rate, the product's being 1 | backward's |");
    report_rates(device, 2048, false);
    report_rates(device, 2048, true);
    report_rates(device, 8192, false);
    report_rates(device, 8192, true);
    bench_heading("| packed row, f32 | attention beside the documents' sum | backward |");
    report_packed(device, 2048);
    bench_heading("| row | its tensors | workspace of attention | of backward |");
    for (int64_t positions = 1024; positions <= 8192; positions *= 2)
        report_memory(device, positions);
}

static void report_row(sl_device *device, int64_t positions, bool bf16)
{
    row r = create_row(device, positions, bf16);
    double seconds[TIMED][ROUNDS];
    measure_row(&r, seconds);
    printf("{\"bench\":\"attention\",\"forward_ms\":%.3f,\"backward_ms\":%.3f}\n",
           1e3 * bench_median(seconds[FORWARD], ROUNDS),
           1e3 * bench_median(seconds[BACKWARD], ROUNDS));
    destroy_row(&r);
}

int main(int argc, char **argv)
{
    sl_device_list *devices;
    bench_check(sl_device_list_create("cpu", &devices, NULL));
    sl_device *device = sl_device_list_get(devices, 0);
    sli_device_bind_thread(device);
    if (argc == 3)
        report_row(device, strtol(argv[1], NULL, 10), strcmp(argv[2], "bf16") == 0);
    else
        report_all(device);
    sl_device_list_destroy(&devices);
    return 0;
}
