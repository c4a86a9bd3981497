/* Products of tiles against plain loops, of whole numbers so small that every sum is exact. */
#include "core/bf16.h"
#include "device/cpu/amx.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/ranges.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = SLI_AMX_MOST * (SLI_TILE + SLI_AMX_BLOCK), DRAWS = 400 };

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

static void small_product_is_that_of_plain_loops(void **state)
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
        sli_amx_small_product(&p);
        multiply_plainly(&p, m->expected);
        for (int64_t e = 0; e < p.m * p.n; e++)
            if (p.triangle != SLI_C_UPPER || e % p.n >= e / p.n)
                assert_true(m->c[e] == m->expected[e]);
    }
    free(m);
    if (!can)
        skip();
}

/* ---- Of any size --------------------------------------------------------------------------- */

enum { MOST_ROWS = 2 * SLI_AMX_STRIP, MOST_TERMS = 1100, MOST_VALUES = MOST_ROWS * MOST_TERMS };

/* Small whole numbers, in f32 and in bf16, whose products have exact sums. */
typedef struct numbers {
    float f32[MOST_VALUES];
    uint16_t bf16[MOST_VALUES];
} numbers;

static void draw_numbers(uint32_t *state, numbers *to)
{
    for (int64_t i = 0; i < MOST_VALUES; i++) {
        to->f32[i] = (float)(draw(state, 17) - 8);
        to->bf16[i] = sli_bf16_from_f32(to->f32[i]);
    }
}

static sli_amx_matrix draw_matrix(uint32_t *state, const numbers *from, int64_t rows, int64_t terms)
{
    bool is_bf16 = draw(state, 2), has_term_rows = draw(state, 2);
    int64_t least = has_term_rows ? rows : terms,
            most = MOST_VALUES / (has_term_rows ? terms : rows);
    return (sli_amx_matrix){is_bf16 ? (const void *)from->bf16 : from->f32, is_bf16, has_term_rows,
                            least + draw(state, 1 + (most - least) % 40)};
}

static float element(const numbers *of, const sli_amx_matrix *matrix, int64_t row, int64_t term)
{
    return of->f32[matrix->has_term_rows ? term * matrix->ld + row : row * matrix->ld + term];
}

/* What c is before. */
static float number_of(int64_t i)
{
    return (float)(i % 97);
}

static void check_product(uint32_t *state, const numbers *a, const numbers *b, float *c,
                          uint16_t *room)
{
    enum { CHECKED = 300 };
    int64_t m = 1 + draw(state, MOST_ROWS), n = 1 + draw(state, MOST_ROWS);
    int64_t k = 1 + draw(state, MOST_TERMS), ld = sli_divide_up(n, 16) * 16 + 16 * draw(state, 2);
    sli_amx_product p = {.n = n, .k = k, .adds = draw(state, 2), .room = room};
    p.a = draw_matrix(state, a, m, k);
    p.b = draw_matrix(state, b, n, k);
    for (int64_t i = 0; i < (m + SLI_AMX_BLOCK) * ld; i++)
        c[i] = number_of(i);
    sli_amx_begin(&p);
    for (int64_t row = 0; row < m; row += SLI_AMX_STRIP)
        sli_amx_multiply(&p, row, sli_smaller(m - row, SLI_AMX_STRIP), c + row * ld, ld);
    sli_amx_end();
    for (int drawn = 0; drawn < CHECKED; drawn++) {
        int64_t i = draw(state, m), j = draw(state, n);
        float sum = p.adds ? number_of(i * ld + j) : 0;
        for (int64_t term = 0; term < k; term++)
            sum += element(a, &p.a, i, term) * element(b, &p.b, j, term);
        assert_true(c[i * ld + j] == sum);
    }
}

static void product_is_that_of_plain_loops(void **state)
{
    if (!can_multiply())
        skip();
    enum { ROUNDS = 60, MOST_C = (MOST_ROWS + SLI_AMX_STRIP) * (MOST_ROWS + 32) };
    numbers *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    float *c = malloc(MOST_C * sizeof *c);
    uint16_t *room =
        aligned_alloc(64, (size_t)sli_amx_count_room(MOST_ROWS, MOST_TERMS) * sizeof *room);
    uint32_t seed = 21;
    assert_true(a && b && c && room);
    draw_numbers(&seed, a);
    draw_numbers(&seed, b);
    for (int i = 0; i < ROUNDS; i++)
        check_product(&seed, a, b, c, room);
    free(a);
    free(b);
    free(c);
    free(room);
}

static void elements_are_rounded_to_the_nearest_even(void **state)
{
    if (!can_multiply())
        skip();
    float a[1] = {1}, b[SLI_SMALL_LEAST], c[SLI_AMX_BLOCK * SLI_SMALL_LEAST];
    for (int i = 0; i < SLI_SMALL_LEAST; i++)
        b[i] = 1 + (float)i / 512; /* bf16 has multiples of 1 / 128 here */
    sli_amx_small_product(&(sli_small_product){.m = 1,
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
        cmocka_unit_test(small_product_is_that_of_plain_loops),
        cmocka_unit_test(product_is_that_of_plain_loops),
        cmocka_unit_test(elements_are_rounded_to_the_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
