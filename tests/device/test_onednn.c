/* What a device remembers of oneDNN's primitives. */
#include "device/cpu/onednn.h"
#include "support/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 16, COLUMNS = 64, INNER = 64, OTHERS = 300, LONGEST = INNER + OTHERS };

static float *floats(int64_t count)
{
    float *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(i % 13) - 6.0f;
    return values;
}

/* Runs the size's product; all buffers have room for any size that this test asks for. */
static void multiply(sli_matmul *matmul, const sli_matmul_primitive *size, float *c)
{
    float *a = floats(ROWS * LONGEST), *b = floats(COLUMNS * LONGEST);
    FREED float *scratch = floats(sli_matmul_scratch_floats(size) + 1);
    assert_int_equal(sli_matmul_run(matmul, size, 0, a, b, c, scratch), 0);
    free(a);
    free(b);
}

/* a [m, k] times the transpose of b [COLUMNS, k]. */
static sl_status find_product(sli_matmul *matmul, int64_t m, int64_t k,
                              const sli_matmul_primitive **out)
{
    const sli_matmul_shape shape = {.m = m,
                                    .n = COLUMNS,
                                    .k = k,
                                    .a_row = k,
                                    .a_step = 1,
                                    .b_row = 1,
                                    .b_step = k,
                                    .ldc = COLUMNS};
    return sli_matmul_find(matmul, &shape, out);
}

/* More sizes come than are remembered, each after one that is asked for again and again. */
static void size_is_valid_until_some_others_were_asked_for(void **state)
{
    sli_matmul *matmul;
    const sli_matmul_primitive *size, *other;
    float first[ROWS * COLUMNS], again[ROWS * COLUMNS];
    check_ok(sli_matmul_create(1, &matmul));
    sli_matmul_lock(matmul);
    check_ok(find_product(matmul, ROWS, INNER, &size));
    bool usable = size != NULL;
    if (usable)
        multiply(matmul, size, first);
    for (int i = 1; usable && i <= OTHERS; i++) {
        check_ok(find_product(matmul, ROWS, INNER, &size));
        for (int more = 1; more < SLI_MATMUL_AT_ONCE; more++)
            check_ok(find_product(matmul, ROWS - more, INNER + i, &other));
        multiply(matmul, size, again);
        assert_memory_equal(again, first, sizeof first);
    }
    sli_matmul_unlock(matmul);
    sli_matmul_destroy(&matmul);
    if (!usable) {
        print_message("skipped: oneDNN has no such kernel for this processor\n");
        skip();
    }
}

int onednn_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_is_valid_until_some_others_were_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
