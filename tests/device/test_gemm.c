/* Matrix products with their epilogue, forward and backward. */
#include "lab.h"
#include "reference.h"

static const int64_t sizes[] = {1, 2, 3, 17, 35, 64, 100, 200, 257};

static sli_dropout random_dropout(random_source *source)
{
    static const float rates[] = {0, 0, 0.2f, 0.5f, 0.9f};
    return (sli_dropout){.p = rates[random_below(source, 5)],
                         .key = sli_philox_key_make(random_bits(source), SLI_RANDOM_DROPOUT),
                         .step = random_bits(source),
                         .site = random_bits(source),
                         .first_sample = random_bits(source),
                         .rows_per_sample = 1 + random_below(source, 40)};
}

/* ---- Forward ---------------------------------------------------------------------------- */

typedef struct gemm_case {
    sli_gemm gemm;
    float *before; /* c [m, ldc] */
    bool keep_preactivation;
} gemm_case;

static void run_gemm(sl_device *device, const void *arguments, outputs *out)
{
    const gemm_case *c = arguments;
    sli_gemm gemm = c->gemm;
    int64_t elements = gemm.m * gemm.ldc;
    float *wide = copy_of(c->before, elements), *pre = copy_of(c->before, elements);
    gemm.c = wide;
    gemm.preactivation = c->keep_preactivation ? pre : NULL;
    assert_int_equal(sli_device_gemm(device, &gemm), SL_OK);
    for (int i = 0; i < 2; i++)
        out->values[i] = floats(gemm.m * gemm.n);
    for (int64_t row = 0; row < gemm.m; row++) {
        size_t bytes = (size_t)gemm.n * sizeof(float), gap = (size_t)(gemm.ldc - gemm.n);
        memcpy(out->values[0] + row * gemm.n, wide + row * gemm.ldc, bytes);
        memcpy(out->values[1] + row * gemm.n, (c->keep_preactivation ? pre : wide) + row * gemm.ldc,
               bytes);
        if (gap)
            assert_memory_equal(wide + row * gemm.ldc + gemm.n, c->before + row * gemm.ldc + gemm.n,
                                gap * sizeof(float));
    }
    free(wide);
    free(pre);
}

/* How the matrices lie: transposed or not, dense or with longer rows; whether c is added to. */
typedef struct layout {
    bool transpose_a, transpose_b, dense, add;
} layout;

static void check_layout(const lab *all, random_source *source, int64_t m, int64_t n, int64_t k,
                         layout lies)
{
    gemm_case c = {.gemm = {.m = m, .n = n, .k = k}};
    sli_gemm *g = &c.gemm;
    g->transpose_a = lies.transpose_a;
    g->transpose_b = lies.transpose_b;
    g->lda = (g->transpose_a ? m : k) + (lies.dense ? 0 : 1 + random_below(source, 3));
    g->ldb = (g->transpose_b ? k : n) + (lies.dense ? 0 : 1 + random_below(source, 3));
    g->ldc = n + random_below(source, 2) * 5;
    g->lda = g->lda ? g->lda : 1;
    g->ldb = g->ldb ? g->ldb : 1;
    g->beta = lies.add ? 1 : 0;
    g->activation = (sli_activation)random_below(source, 3);
    g->dropout = random_dropout(source);
    c.keep_preactivation = random_below(source, 2);
    float *a = random_floats(source, (g->transpose_a ? k : m) * g->lda);
    float *b = random_floats(source, (g->transpose_b ? n : k) * g->ldb);
    float *bias = random_floats(source, n);
    g->a = a;
    g->b = b;
    g->bias = random_below(source, 2) ? bias : NULL;
    c.before = random_floats(source, m * g->ldc);
    outputs out = {.arrays = 2, .count = {m * n, m * n}, .tolerance = {2e-5, 2e-5}};
    out.expected[0] = doubles(m * n);
    out.expected[1] = doubles(m * n);
    reference_gemm(g, c.before, out.expected[0], out.expected[1]);
    if (!c.keep_preactivation) {
        free(out.expected[1]);
        out.expected[1] = NULL;
    }
    check_on_all(all, "gemm", run_gemm, &c, &out);
    free(a);
    free(b);
    free(bias);
    free(c.before);
}

static void check_gemm(const lab *all, random_source *source, int64_t m, int64_t n, int64_t k)
{
    layout lies = {random_below(source, 2), random_below(source, 2), random_below(source, 2),
                   random_below(source, 2)};
    check_layout(all, source, m, n, k, lies);
}

static void gemm_of_random_shapes_matches_the_reference(void **state)
{
    random_source source = random_start(__func__);
    for (int i = 0; i < 40; i++) {
        int64_t m = random_of(&source, sizes, 9), n = random_of(&source, sizes, 9);
        check_gemm(*state, &source, m, n, random_of(&source, sizes, 9));
    }
}

/* Shapes whose panels differ in size, in every layout. */
static void gemm_of_several_panels_matches_the_reference(void **state)
{
    static const int64_t shapes[][3] = {{700, 257, 17}, {361, 1030, 3}, {88, 5000, 8},
                                        {88, 5000, 16}, {3000, 90, 5},  {533, 203, 40}};
    random_source source = random_start(__func__);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int l = 0; l < 16; l++) {
            layout lies = {l & 1, l & 2, l & 4, l & 8};
            check_layout(*state, &source, shapes[i][0], shapes[i][1], shapes[i][2], lies);
        }
}

/* A device remembers primitives for some sizes; the first one must come out the same when it has
 * been forgotten meanwhile. */
static void gemm_of_many_sizes_stays_the_same(void **state)
{
    enum { ROWS = 64, INNER = 160, SIZES = 150, WIDEST = 160 + SIZES };
    const lab *all = *state;
    random_source source = random_start(__func__);
    float *a = random_floats(&source, ROWS * INNER), *b = random_floats(&source, WIDEST * INNER);
    float *first = floats(ROWS * WIDEST), *c = floats(ROWS * WIDEST);
    sl_device *device = all->devices[0][1];
    for (int i = 0; i <= SIZES; i++) {
        sli_gemm gemm = {.transpose_b = true, .m = ROWS, .n = 160 + i % SIZES, .k = INNER};
        gemm.a = a;
        gemm.b = b;
        gemm.c = i ? c : first;
        gemm.lda = gemm.ldb = INNER;
        gemm.ldc = gemm.n;
        assert_int_equal(sli_device_gemm(device, &gemm), SL_OK);
    }
    assert_memory_equal(c, first, ROWS * 160 * sizeof *c);
    free(a);
    free(b);
    free(first);
    free(c);
}

static void gemm_gives_its_workspace_back(void **state)
{
    const lab *all = *state;
    sl_memory_stats stats;
    sl_device_memory(all->devices[0][1], &stats);
    assert_int_equal(stats.current_total_bytes, 0);
}

static void gemm_without_an_inner_dimension_still_runs_the_epilogue(void **state)
{
    random_source source = random_start(__func__);
    for (int i = 0; i < 10; i++)
        check_gemm(*state, &source, 17, 35, 0);
}

static void gemm_without_rows_or_columns_does_nothing(void **state)
{
    random_source source = random_start(__func__);
    check_gemm(*state, &source, 0, 35, 8);
    check_gemm(*state, &source, 17, 0, 8);
}

static void gemm_does_not_read_c_when_beta_is_zero(void **state)
{
    const lab *all = *state;
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 0, 1, 1, 1}, c[4];
    for (int i = 0; i < 4; i++)
        c[i] = NAN;
    sli_gemm gemm = {.m = 2, .n = 2, .k = 3, .a = a, .lda = 3, .b = b, .ldb = 2, .c = c, .ldc = 2};
    sl_device *device = all->devices[0][0];
    assert_int_equal(sli_device_gemm(device, &gemm), SL_OK);
    const float expected[4] = {4, 5, 10, 11};
    assert_memory_equal(c, expected, sizeof c);
}

static void relu_lets_nan_through(void **state)
{
    const lab *all = *state;
    for (int isa = 0; isa < LAB_ISAS && all->devices[isa][0]; isa++) {
        float a[1] = {1}, b[40], c[40];
        for (int i = 0; i < 40; i++)
            b[i] = i % 7 == 3 ? NAN : -1.0f;
        sli_gemm gemm = {.m = 1, .n = 40, .k = 1, .a = a, .lda = 1, .b = b, .ldb = 40, .c = c};
        gemm.ldc = 40;
        gemm.activation = SLI_ACTIVATION_RELU;
        sl_device *device = all->devices[isa][0];
        assert_int_equal(sli_device_gemm(device, &gemm), SL_OK);
        for (int i = 0; i < 40; i++)
            assert_true(i % 7 == 3 ? isnan(c[i]) : c[i] == 0);
    }
}

/* ---- Backward --------------------------------------------------------------------------- */

static void run_epilogue_backward(sl_device *device, const void *arguments, outputs *out)
{
    sli_epilogue_backward e = *(const sli_epilogue_backward *)arguments;
    e.grad = out->values[0] = copy_of(e.grad, e.rows * e.columns);
    out->values[1] = copy_of(e.grad_bias, e.columns);
    e.grad_bias = out->expected[1] ? out->values[1] : NULL;
    assert_int_equal(sli_device_epilogue_backward(device, &e), SL_OK);
}

static void check_epilogue_backward(const lab *all, random_source *source, int64_t rows,
                                    int64_t columns)
{
    sli_epilogue_backward e = {.rows = rows, .columns = columns};
    float *grad = random_floats(source, rows * columns), *bias = random_floats(source, columns);
    float *saved = random_floats(source, rows * columns);
    e.grad = grad;
    e.activation = (sli_activation)random_below(source, 3);
    e.dropout = random_dropout(source);
    e.beta = (float)random_below(source, 2);
    e.grad_bias = bias;
    bool with_bias = random_below(source, 4) > 0;
    /* The forward's output of ReLU is 0 where dropout cut. */
    for (int64_t i = 0; i < rows * columns && e.activation == SLI_ACTIVATION_RELU; i++)
        saved[i] = (float)reference_activate(e.activation, saved[i]) *
                   (float)reference_multiplier(&e.dropout, i / columns, i % columns, columns);
    e.saved = e.activation == SLI_ACTIVATION_NONE ? NULL : saved;
    outputs out = {.arrays = 2, .count = {rows * columns, columns}, .tolerance = {2e-6, 1e-5}};
    out.expected[0] = doubles(rows * columns);
    out.expected[1] = doubles(columns);
    reference_epilogue_backward(&e, out.expected[0], out.expected[1]);
    if (!with_bias) {
        free(out.expected[1]);
        out.expected[1] = NULL;
    }
    check_on_all(all, "epilogue_backward", run_epilogue_backward, &e, &out);
    free(grad);
    free(bias);
    free(saved);
}

static void epilogue_backward_matches_the_reference(void **state)
{
    random_source source = random_start(__func__);
    for (int i = 0; i < 40; i++) {
        int64_t rows = random_of(&source, sizes, 9);
        check_epilogue_backward(*state, &source, rows, random_of(&source, sizes, 9));
    }
    for (int i = 0; i < 4; i++) {
        check_epilogue_backward(*state, &source, 0, 35);
        check_epilogue_backward(*state, &source, 700, 257);
        check_epilogue_backward(*state, &source, 30, 5003);
        check_epilogue_backward(*state, &source, 5, 33001);
    }
}

int gemm_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_of_random_shapes_matches_the_reference),
        cmocka_unit_test(gemm_of_several_panels_matches_the_reference),
        cmocka_unit_test(gemm_of_many_sizes_stays_the_same),
        cmocka_unit_test(gemm_gives_its_workspace_back),
        cmocka_unit_test(gemm_without_an_inner_dimension_still_runs_the_epilogue),
        cmocka_unit_test(gemm_without_rows_or_columns_does_nothing),
        cmocka_unit_test(gemm_does_not_read_c_when_beta_is_zero),
        cmocka_unit_test(relu_lets_nan_through),
        cmocka_unit_test(epilogue_backward_matches_the_reference),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
