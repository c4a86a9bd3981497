/* Products of tiles against plain loops, of whole numbers so small that every sum is exact. */
#include "device/cpu/amx.h"
#include "device/cpu/cpu_device.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = SLI_AMX_MOST * (SLI_TILE + SLI_AMX_ROWS), DRAWS = 400 };

typedef struct matrices {
    float a[MOST], b[MOST], c[MOST], expected[MOST];
} matrices;

static int64_t draw(uint32_t *state, int64_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (int64_t)(*state >> 16) % below;
}

static void draw_values(uint32_t *state, float *to)
{
    for (int64_t i = 0; i < MOST; i++)
        to[i] = (float)(draw(state, 17) - 8);
}

/* Every way in which attention multiplies. */
static sli_small_product draw_product(uint32_t *state, matrices *m)
{
    static const sli_triangle triangles[] = {SLI_WHOLE, SLI_A_LOWER, SLI_A_UPPER, SLI_C_UPPER};
    bool has_wide_c = draw(state, 2), is_transposed = draw(state, 2);
    sli_small_product p = {
        .m = 1 + draw(state, SLI_TILE),
        .n = 16 * (1 + draw(state, has_wide_c ? SLI_AMX_MOST / 16 : SLI_TILE / 16)),
        .k = 1 + draw(state, has_wide_c ? SLI_TILE : SLI_AMX_MOST),
        .a = m->a,
        .b = m->b,
        .c = m->c,
        .triangle = triangles[draw(state, 4)],
        .adds = draw(state, 2),
    };
    if (is_transposed)
        p.k = 1 + (p.k - 1) % SLI_TILE;
    p.a_row = is_transposed ? 1 : p.k + draw(state, 2);
    p.a_step = is_transposed ? SLI_TILE : 1;
    p.ldb = p.n;
    p.ldc = p.n;
    return p;
}

/* The triangle of a that is 0 is made so. */
static void clear_triangle(const sli_small_product *p, float *a)
{
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t k = 0; k < p->k; k++)
            if ((p->triangle == SLI_A_LOWER && k > i) || (p->triangle == SLI_A_UPPER && k < i))
                a[i * p->a_row + k * p->a_step] = 0;
}

static void multiply_plainly(const sli_small_product *p, float *c)
{
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            float sum = p->adds ? c[i * p->ldc + j] : 0;
            for (int64_t k = 0; k < p->k; k++)
                sum += p->a[i * p->a_row + k * p->a_step] * p->b[k * p->ldb + j];
            c[i * p->ldc + j] = sum;
        }
}

static bool can_multiply(void)
{
    SCOPED(sl_device) *device = NULL;
    check_ok(sl_device_create_cpu(1, &device));
    bool can = sli_cpu(device)->has_amx;
    if (!can)
        print_message("skipped: the processor has no AMX\n");
    return can;
}

static void product_is_that_of_plain_loops(void **state)
{
    matrices *m = malloc(sizeof *m);
    uint32_t seed = 20;
    assert_non_null(m);
    bool can = can_multiply();
    for (int i = 0; i < DRAWS && can; i++) {
        draw_values(&seed, m->a);
        draw_values(&seed, m->b);
        draw_values(&seed, m->c);
        sli_small_product p = draw_product(&seed, m);
        clear_triangle(&p, m->a);
        memcpy(m->expected, m->c, sizeof m->c);
        sli_amx_product(&p);
        multiply_plainly(&p, m->expected);
        for (int64_t e = 0; e < p.m * p.n; e++)
            if (p.triangle != SLI_C_UPPER || e % p.n >= e / p.n)
                assert_true(m->c[e] == m->expected[e]);
    }
    free(m);
    if (!can)
        skip();
}

static void elements_are_rounded_to_the_nearest_even(void **state)
{
    if (!can_multiply())
        skip();
    float a[1] = {1}, b[SLI_SMALL_LEAST], c[SLI_AMX_ROWS * SLI_SMALL_LEAST];
    for (int i = 0; i < SLI_SMALL_LEAST; i++)
        b[i] = 1 + (float)i / 512; /* bf16 has multiples of 1 / 128 here */
    sli_amx_product(&(sli_small_product){.m = 1,
                                         .n = SLI_SMALL_LEAST,
                                         .k = 1,
                                         .a = a,
                                         .a_row = 1,
                                         .a_step = 1,
                                         .b = b,
                                         .ldb = SLI_SMALL_LEAST,
                                         .c = c,
                                         .ldc = SLI_SMALL_LEAST});
    static const int expected[SLI_SMALL_LEAST] = {0, 0, 0, 4,  4,  4,  8,  8,
                                                  8, 8, 8, 12, 12, 12, 16, 16};
    for (int i = 0; i < SLI_SMALL_LEAST; i++)
        assert_true(c[i] == 1 + (float)expected[i] / 512);
}

int amx_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_is_that_of_plain_loops),
        cmocka_unit_test(elements_are_rounded_to_the_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
