/* What a product reads and copies, and the memory that it takes. */
#include "core/bf16.h"
#include "device/cases.h"
#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static sl_device *create_cpu(const char *isa)
{
    sl_device *device;
    sli_cpu_options options = {.name = "cpu", .threads = 1, .isa = isa};
    check_ok(sli_cpu_device_create(&options, &device));
    return device;
}

/* ---- What is read ------------------------------------------------------------------------ */

/* Memory whose end is that of a page before one that nobody may read. */
typedef struct guarded {
    char *pages;
    size_t page;
} guarded;

static guarded create_guarded(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guarded made = {.page = page};
    made.pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(made.pages != MAP_FAILED);
    assert_int_equal(mprotect(made.pages + page, page, PROT_NONE), 0);
    return made;
}

/* A bf16 matrix [rows, columns] of ones that ends with its last element. */
static const uint16_t *put_ones(const guarded *g, int64_t rows, int64_t columns, int64_t ld)
{
    int64_t count = (rows - 1) * ld + columns;
    uint16_t *matrix = (uint16_t *)(void *)(g->pages + g->page) - count;
    for (int64_t i = 0; i < count; i++)
        matrix[i] = sli_bf16_from_f32(1.0f);
    return matrix;
}

static void read_to_the_end(const char *isa)
{
    enum { M = 3, N = 5, K = 4, GAP = 7 };
    SCOPED(sl_device) *device = create_cpu(isa);
    guarded a = create_guarded(), b = create_guarded();
    for (int layout = 0; layout < 4; layout++) {
        float c[M * N];
        bool of_a = layout & 1, of_b = layout & 2;
        sli_gemm gemm = {.transpose_a = of_a,
                         .transpose_b = of_b,
                         .bf16 = true,
                         .m = M,
                         .n = N,
                         .k = K,
                         .lda = (of_a ? M : K) + GAP,
                         .ldb = (of_b ? K : N) + GAP,
                         .c = c,
                         .ldc = N};
        gemm.a = put_ones(&a, of_a ? K : M, of_a ? M : K, gemm.lda);
        gemm.b = put_ones(&b, of_b ? N : K, of_b ? K : N, gemm.ldb);
        check_ok(sli_device_gemm(device, &gemm));
        for (int i = 0; i < M * N; i++)
            assert_float_equal(c[i], K, 0);
    }
    munmap(a.pages, 2 * a.page);
    munmap(b.pages, 2 * b.page);
}

/* With the baseline, which has no bf16 and widens the matrices, and as the processor does. */
static void nothing_behind_the_last_row_is_read(void **state)
{
    (void)state;
    read_to_the_end("baseline");
    read_to_the_end(NULL);
}

/* ---- Widened products --------------------------------------------------------------------- */

typedef struct product {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    float beta;
} product;

/* Without pointers; rows are `gap` elements further apart than they need. */
static sli_gemm gemm_of(const product *p, int64_t gap)
{
    return (sli_gemm){.transpose_a = p->transpose_a,
                      .transpose_b = p->transpose_b,
                      .m = p->m,
                      .n = p->n,
                      .k = p->k,
                      .lda = (p->transpose_a ? p->m : p->k) + gap,
                      .ldb = (p->transpose_b ? p->k : p->n) + gap,
                      .ldc = p->n + gap,
                      .beta = p->beta};
}

static const product widened[] = {
    {.m = 40, .n = 60, .k = 90},
    {.m = 100, .n = 1100, .k = 1900, .beta = 1},
    {.m = 300, .n = 1500, .k = 767},
    {.m = 70, .n = 200, .k = 5000},
    {.m = 150, .n = 1030, .k = 300},
    {.m = 360, .n = 512, .k = 500},
    {.m = 1028, .n = 540, .k = 191, .transpose_a = true},
    {.m = 1032, .n = 1036, .k = 230, .transpose_a = true},
    {.m = 120, .n = 500, .k = 2048, .transpose_b = true},
    {.m = 90, .n = 700, .k = 1600, .transpose_b = true, .beta = 1},
    {.m = 1100, .n = 600, .k = 900, .transpose_a = true},
    {.m = 400, .n = 300, .k = 1200, .transpose_a = true, .transpose_b = true},
};
enum { MOST_ELEMENTS = 2100 * 1100 };

typedef struct operands {
    uint16_t *a, *b;
    float *wide_a, *wide_b, *c, *wide_c;
} operands;

static void *create_elements(size_t bytes)
{
    void *elements = calloc(MOST_ELEMENTS, bytes);
    assert_non_null(elements);
    return elements;
}

static operands create_operands(void)
{
    operands o = {create_elements(2), create_elements(2), create_elements(4),
                  create_elements(4), create_elements(4), create_elements(4)};
    random_source random = {.state = 3};
    for (int i = 0; i < MOST_ELEMENTS; i++) {
        o.a[i] = sli_bf16_from_f32(random_float(&random));
        o.b[i] = sli_bf16_from_f32(random_float(&random));
        o.wide_a[i] = sli_f32_from_bf16(o.a[i]);
        o.wide_b[i] = sli_f32_from_bf16(o.b[i]);
        o.c[i] = o.wide_c[i] = random_float(&random);
    }
    return o;
}

static void operands_destroy(operands *o)
{
    free(o->a);
    free(o->b);
    free(o->wide_a);
    free(o->wide_b);
    free(o->c);
    free(o->wide_c);
}

static void check_widened(sl_device *device, sli_gemm gemm, operands *o)
{
    gemm.a = o->wide_a;
    gemm.b = o->wide_b;
    gemm.c = o->wide_c;
    check_ok(sli_device_gemm(device, &gemm));
    gemm.bf16 = true;
    gemm.a = o->a;
    gemm.b = o->b;
    gemm.c = o->c;
    check_ok(sli_device_gemm(device, &gemm));
    if (__builtin_cpu_supports("avx512f") || sli_sgemm_is_slowed_by(512, true, 1)) /* AVX2 */
        assert_memory_equal(o->c, o->wide_c, MOST_ELEMENTS * sizeof(float));
    for (int i = 0; i < MOST_ELEMENTS; i++) /* others sum in another order */
        assert_true(fabsf(o->c[i] - o->wide_c[i]) <= 1e-7f * (float)gemm.k);
    memcpy(o->c, o->wide_c, MOST_ELEMENTS * sizeof(float));
}

static void widened_product_is_that_of_f32(void **state)
{
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    SCOPED(operands) o = create_operands();
    for (int i = 0; i < 3; i++) {
        SCOPED(sl_device) *device = NULL;
        sli_cpu_options options = {.name = "cpu", .threads = 2, .shared = true, .isa = isas[i]};
        if (sli_cpu_device_create(&options, &device) != SL_OK)
            continue;
        device->has_bf16 = false;
        for (size_t g = 0; g < 2 * (sizeof widened / sizeof *widened); g++)
            check_widened(device, gemm_of(&widened[g / 2], g % 2 ? 5 : 0), &o);
    }
}

/* ---- Distances ----------------------------------------------------------------------------- */

/* Rows [rows, columns], `ld` apart, of values that depend on their places alone. */
static float *create_rows(int64_t rows, int64_t columns, int64_t ld, uint32_t seed)
{
    random_source random = {.state = seed};
    float *made = calloc((size_t)(rows * ld), sizeof *made);
    assert_non_null(made);
    for (int64_t i = 0; i < rows * columns; i++)
        made[i / columns * ld + i % columns] = random_float(&random);
    return made;
}

/* Rows are copied before they are multiplied where they lie a multiple of 2 KiB apart with AVX2, of
 * 4, 8 or 32 KiB with AVX-512. */
static void product_does_not_depend_on_the_distance_of_rows(void **state)
{
    static const product products[] = {
        {.m = 90, .n = 512, .k = 1100},
        {.m = 400, .n = 1024, .k = 515, .beta = 1},
        {.m = 512, .n = 200, .k = 700, .transpose_a = true},
        {.m = 1024, .n = 512, .k = 410, .transpose_a = true, .beta = 1},
        {.m = 512, .n = 300, .k = 512, .transpose_a = true, .transpose_b = true},
        {.m = 600, .n = 1536, .k = 300},
        {.m = 60, .n = 2048, .k = 900},
        {.m = 8192, .n = 24, .k = 410, .transpose_a = true, .beta = 1},
        {.m = 40, .n = 8192, .k = 800, .transpose_a = true},
    };
    SCOPED(sl_device) *device = create_cpu(NULL);
    if (!sli_sgemm_is_slowed_by(2048, false, 60)) {
        sl_device_destroy(&device);
        print_message("skipped: no distance slows this processor's products\n");
        skip();
    }
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const product *p = &products[i];
        float *c[2];
        for (int far = 0; far < 2; far++) {
            sli_gemm gemm = gemm_of(p, far ? 16 : 0);
            int64_t a_rows = p->transpose_a ? p->k : p->m, b_rows = p->transpose_b ? p->n : p->k;
            gemm.ldc = p->n;
            gemm.a = create_rows(a_rows, p->m * p->k / a_rows, gemm.lda, 1);
            gemm.b = create_rows(b_rows, p->n * p->k / b_rows, gemm.ldb, 2);
            gemm.c = c[far] = create_rows(p->m, p->n, p->n, 3);
            check_ok(sli_device_gemm(device, &gemm));
            free((void *)gemm.a);
            free((void *)gemm.b);
        }
        if (p->transpose_a)
            assert_memory_equal(c[0], c[1], (size_t)(p->m * p->n) * sizeof(float));
        for (int64_t e = 0; e < p->m * p->n; e++) /* others are cut into other panels */
            assert_true(fabsf(c[0][e] - c[1][e]) <= 1e-6f * (float)p->k);
        free(c[0]);
        free(c[1]);
    }
}

/* ---- Memory ------------------------------------------------------------------------------ */

/* Whole, the matrices would take 5 to 40 MB as f32. Panels for one thread fit into the device's
 * scratch; the last product's for 16 are workspace, at most 4 MiB for each. */
static void widened_product_has_room_for_panels_alone(void **state)
{
    static const product large[] = {{.m = 128, .n = 2048, .k = 4096},
                                    {.m = 64, .n = 2048, .k = 2048, .transpose_b = true},
                                    {.m = 1024, .n = 1024, .k = 700, .transpose_a = true}};
    enum { MOST = 4096 * 2048, FEW = 1, MANY = 16 };
    (void)state;
    uint16_t *a = calloc(MOST, sizeof *a), *b = calloc(MOST, sizeof *b);
    FREED float *c = calloc(MOST, sizeof *c);
    assert_true(a && b && c);
    for (int threads = FEW; threads <= MANY; threads += MANY - FEW) {
        sl_device *device;
        sli_cpu_options options = {.name = "cpu", .threads = threads, .shared = true};
        check_ok(sli_cpu_device_create(&options, &device));
        device->has_bf16 = false;
        for (int i = 0; i < 3; i++) {
            sl_memory_stats memory;
            sli_gemm gemm = gemm_of(&large[i], 0);
            gemm.bf16 = true;
            gemm.a = a;
            gemm.b = b;
            gemm.c = c;
            sl_device_reset_peak(device);
            check_ok(sli_device_gemm(device, &gemm));
            sl_device_memory(device, &memory);
            uint64_t bytes = memory.peak_bytes[SL_MEMORY_WORKSPACE];
            assert_true(threads == MANY || bytes == 0);
            assert_true(threads == FEW || i < 2 || bytes > 0);
            assert_true(bytes < (uint64_t)threads * (4 << 20));
        }
        sl_device_destroy(&device);
    }
    free(a);
    free(b);
}

/* ---- Heights ------------------------------------------------------------------------------ */

enum { HEIGHT_ROWS = 30, HEIGHT_COLUMNS = 64, HEIGHT_INNER = 96, HEIGHT_GAP = 3 };

/* A product of small numbers, in f32 or bf16. */
static void multiply_numbers(sl_device *device, bool bf16, bool is_forward, float *c)
{
    enum { A = HEIGHT_ROWS * (HEIGHT_INNER + HEIGHT_GAP), B = HEIGHT_INNER * HEIGHT_COLUMNS };
    static float a[A], b[B];
    sli_gemm gemm = {.transpose_b = true,
                     .bf16 = bf16,
                     .is_forward = is_forward,
                     .m = HEIGHT_ROWS,
                     .n = HEIGHT_COLUMNS,
                     .k = HEIGHT_INNER,
                     .a = a,
                     .lda = HEIGHT_INNER + HEIGHT_GAP,
                     .b = b,
                     .ldb = HEIGHT_INNER,
                     .c = c,
                     .ldc = HEIGHT_COLUMNS};
    for (int i = 0; i < A || i < B; i++) {
        float value = (float)(i % 19 - 9) / 8;
        float *matrices[] = {i < A ? a : NULL, i < B ? b : NULL};
        for (int j = 0; j < 2; j++)
            if (matrices[j] && bf16)
                ((uint16_t *)(void *)matrices[j])[i] = sli_bf16_from_f32(value);
            else if (matrices[j])
                matrices[j][i] = value;
    }
    check_ok(sli_device_gemm(device, &gemm));
}

/* The sums are exact, so any way to multiply has the same. */
static void copied_panels_are_multiplied_as_any(void **state)
{
    (void)state;
    for (int widens = 0; widens < 2; widens++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            static float plain[HEIGHT_ROWS * HEIGHT_COLUMNS], copied[HEIGHT_ROWS * HEIGHT_COLUMNS];
            SCOPED(sl_device) *device = create_cpu(NULL);
            device->has_bf16 &= !widens;
            check_ok(sl_device_set_batch_invariant(device, true));
            multiply_numbers(device, bf16, true, plain);
            sli_heights *heights = &sli_cpu(device)->heights;
            bool uses_amx = bf16 && device->has_bf16 && sli_cpu(device)->has_amx;
            assert_true(uses_amx || heights->next > 0);
            for (int i = 0; i < heights->next; i++)
                heights->entries[i].height = (sli_height){heights->entries[i].rows, true};
            multiply_numbers(device, bf16, true, copied);
            assert_memory_equal(copied, plain, sizeof plain);
        }
}

static uint16_t *create_bf16(int64_t count, uint32_t seed)
{
    random_source random = {.state = seed};
    uint16_t *made = calloc((size_t)count, sizeof *made);
    assert_non_null(made);
    for (int64_t i = 0; i < count; i++)
        made[i] = sli_bf16_from_f32(random_float(&random));
    return made;
}

/* Products whose sums are too long for one copy of b, against f32's: what they are added to and the
 * epilogue are there once. */
static void product_of_bf16_of_long_sums_is_that_of_f32(void **state)
{
    enum { M = 300, N = 600, K = 2200, C = M * N };
    uint16_t *a = create_bf16(M * K, 7), *b = create_bf16(N * K, 8);
    float *made = calloc(4 * C + N, sizeof *made), *bias = made + 4 * C;
    SCOPED(sl_device) *device = create_cpu(NULL);
    bool has_bf16 = device->has_bf16;
    (void)state;
    assert_non_null(made);
    for (int i = 0; i < N; i++)
        bias[i] = (float)(i % 7) / 4;
    for (int adds = 0; adds < 2; adds++) {
        for (int widens = 0; widens < 2; widens++) {
            sli_gemm gemm = {.transpose_b = true, .bf16 = true, .m = M, .n = N, .k = K, .a = a};
            gemm.lda = gemm.ldb = K;
            gemm.ldc = N;
            gemm.b = b;
            gemm.c = made + 2 * widens * C;
            gemm.beta = (float)adds;
            gemm.bias = adds ? NULL : bias;
            gemm.preactivation = adds ? NULL : gemm.c + C;
            gemm.activation = adds ? SLI_ACTIVATION_NONE : SLI_ACTIVATION_RELU;
            device->has_bf16 = has_bf16 && !widens;
            check_ok(sli_device_gemm(device, &gemm));
        }
        for (int64_t i = 0; i < 2 * C; i++)
            assert_true(fabsf(made[i] - made[2 * C + i]) <= 1e-6f * K);
    }
    free(a);
    free(b);
    free(made);
}

/* Panels of products by AMX depend on the number of threads and of rows; a row's bits do not. */
static void row_of_a_product_by_amx_depends_on_nothing_else(void **state)
{
    enum { M = 700, FEW = 90, N = 850, K = 1300, BYTES = N * sizeof(float) };
    static const struct {
        int threads;
        int64_t rows; /* the last ones */
    } tries[] = {{1, M}, {3, M}, {1, FEW}};
    (void)state;
    uint16_t *a = create_bf16(M * K, 5), *b = create_bf16(N * K, 6);
    float *c = calloc((size_t)3 * M * N, sizeof *c);
    bool has_amx = true;
    assert_non_null(c);
    for (int i = 0; i < 3 && has_amx; i++) {
        SCOPED(sl_device) *device = NULL;
        sli_cpu_options options = {.name = "cpu", .threads = tries[i].threads, .shared = true};
        int64_t first = M - tries[i].rows;
        check_ok(sli_cpu_device_create(&options, &device));
        has_amx = sli_cpu(device)->has_amx;
        check_ok(sl_device_set_batch_invariant(device, true));
        check_ok(sli_device_gemm(device, &(sli_gemm){.transpose_b = true,
                                                     .bf16 = true,
                                                     .is_forward = true,
                                                     .m = tries[i].rows,
                                                     .n = N,
                                                     .k = K,
                                                     .a = a + first * K,
                                                     .lda = K,
                                                     .b = b,
                                                     .ldb = K,
                                                     .c = c + (i * M + first) * N,
                                                     .ldc = N}));
    }
    if (has_amx) {
        assert_memory_equal(c, c + M * N, (size_t)M * BYTES);
        assert_memory_equal(c + (M - FEW) * N, c + (3 * M - FEW) * N, (size_t)FEW * BYTES);
    }
    free(a);
    free(b);
    free(c);
    if (!has_amx) {
        print_message("skipped: the processor has no AMX\n");
        skip();
    }
}

static void product_of_backward_has_no_trials(void **state)
{
    (void)state;
    static float c[HEIGHT_ROWS * HEIGHT_COLUMNS];
    SCOPED(sl_device) *device = create_cpu(NULL);
    check_ok(sl_device_set_batch_invariant(device, true));
    multiply_numbers(device, false, false, c);
    assert_int_equal(sli_cpu(device)->heights.next, 0);
    multiply_numbers(device, false, true, c);
    assert_true(sli_cpu(device)->heights.next > 0);
}

/* The device has what a product without trials leaves. */
static void trials_keep_no_memory(void **state)
{
    (void)state;
    static float c[HEIGHT_ROWS * HEIGHT_COLUMNS];
    SCOPED(sl_device) *device = create_cpu(NULL);
    sl_memory_stats tried, known;
    check_ok(sl_device_set_batch_invariant(device, true));
    multiply_numbers(device, false, true, c);
    sl_device_memory(device, &tried);
    sli_device_empty_cache(device);
    multiply_numbers(device, false, true, c);
    sl_device_memory(device, &known);
    assert_int_equal(tried.current_total_bytes, 0);
    assert_int_equal(tried.reserved_bytes, known.reserved_bytes);
}

int gemm_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_behind_the_last_row_is_read),
        cmocka_unit_test(widened_product_is_that_of_f32),
        cmocka_unit_test(product_does_not_depend_on_the_distance_of_rows),
        cmocka_unit_test(widened_product_has_room_for_panels_alone),
        cmocka_unit_test(copied_panels_are_multiplied_as_any),
        cmocka_unit_test(product_of_bf16_of_long_sums_is_that_of_f32),
        cmocka_unit_test(row_of_a_product_by_amx_depends_on_nothing_else),
        cmocka_unit_test(product_of_backward_has_no_trials),
        cmocka_unit_test(trials_keep_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
