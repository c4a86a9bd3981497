/* What a product of bf16 matrices reads, and the memory that it takes. */
#include "core/bf16.h"
#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "support/check.h"

#include <stdlib.h>
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
static const uint16_t *put_ones(const guarded *to, int64_t rows, int64_t columns, int64_t ld)
{
    int64_t count = (rows - 1) * ld + columns;
    uint16_t *matrix = (uint16_t *)(void *)(to->pages + to->page) - count;
    for (int64_t i = 0; i < count; i++)
        matrix[i] = sli_bf16_from_f32(1.0f);
    return matrix;
}

static void nothing_behind_the_last_row_is_read(void **state)
{
    enum { M = 3, N = 5, K = 4, GAP = 7 };
    (void)state;
    sl_device *device = create_cpu("baseline"); /* which has no bf16: it widens the matrices */
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
    sl_device_destroy(&device);
}

/* ---- Memory ------------------------------------------------------------------------------ */

static void product_of_bf16_has_no_room_for_a_panel_of_f32(void **state)
{
    enum { M = 512, N = 1024, K = 64 }; /* panels of 512 KiB or more */
    (void)state;
    sl_device *device;
    sl_memory_stats memory;
    check_ok(sl_device_create_cpu(1, &device));
    if (!device->has_bf16) {
        sl_device_destroy(&device);
        print_message("skipped: the processor has no products of bf16\n");
        skip();
    }
    uint16_t *a = calloc(M * K, sizeof *a), *b = calloc(K * N, sizeof *b);
    float *c = calloc((size_t)M * N, sizeof *c);
    assert_true(a && b && c);
    check_ok(sli_device_gemm(device, &(sli_gemm){.bf16 = true,
                                                 .m = M,
                                                 .n = N,
                                                 .k = K,
                                                 .a = a,
                                                 .lda = K,
                                                 .b = b,
                                                 .ldb = N,
                                                 .c = c,
                                                 .ldc = N}));
    sl_device_memory(device, &memory);
    assert_true(memory.peak_bytes[SL_MEMORY_WORKSPACE] < 512 << 10);
    free(a);
    free(b);
    free(c);
    sl_device_destroy(&device);
}

int gemm_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_behind_the_last_row_is_read),
        cmocka_unit_test(product_of_bf16_has_no_room_for_a_panel_of_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
