/* Operations on values that random cases do not have: infinities, NaN, extremes, distributions. */
#include "device/cases.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static op_case build(case_kind kind, int64_t a, int64_t b, unsigned flags)
{
    op_case c;
    case_build(&(case_spec){.kind = kind, .size = {a, b}, .flags = flags}, 1, &c);
    return c;
}

/* Of CPUs the one with most threads. */
static sl_device *last_of(const lab_family *family)
{
    return family->members[family->count - 1];
}

/* ---- Cross entropy ---------------------------------------------------------------------- */

enum { CLASSES = 3000 };
typedef enum logits {
    GROWING,
    FAR_BELOW,
    IMPOSSIBLE_FIRST,
    ONE_NAN,
    ONE_INFINITY,
    IMPOSSIBLE
} logits;

/* A row of logits that grow from block to block, which corrects earlier blocks; are further below 0
 * than an exponential reaches; … Its target is in the middle. */
static op_case build_row(logits kind)
{
    op_case c = build(CASE_CROSS_ENTROPY, 1, CLASSES, kind < ONE_NAN ? WITH_GRADIENT : 0);
    float *x = c.arrays[ENTROPY_LOGITS].host;
    *(int32_t *)c.arrays[ENTROPY_TARGETS].host = CLASSES / 2;
    for (int i = 0; i < CLASSES; i++) {
        x[i] = kind == FAR_BELOW || kind == IMPOSSIBLE_FIRST ? -2000.0f - 0.25f * (float)(i % 7)
                                                             : 0.005f * (float)(i - i % 10);
        if (kind == IMPOSSIBLE || (kind <= IMPOSSIBLE_FIRST && kind != FAR_BELOW && i < 600))
            x[i] = -INFINITY;
    }
    if (kind == ONE_NAN || kind == ONE_INFINITY)
        x[CLASSES - 10] = kind == ONE_NAN ? NAN : INFINITY;
    return c;
}

static void cross_entropy_of_extreme_logits_matches_the_reference(void **state)
{
    for (logits kind = GROWING; kind <= IMPOSSIBLE; kind++) {
        op_case c = build_row(kind);
        check_case(*state, &c);
        case_free(&c);
    }
}

enum { ROUNDED_ROWS = 40, ROUNDED_COUNT = ROUNDED_ROWS * CLASSES };

/* The gradient of random rows in bf16, which the kernel rounds itself or a conversion after it, and
 * the sums of its columns. */
static void round_gradient(sl_device *device, bool in_kernel, uint16_t *gradient, float *sums)
{
    op_case c = build(CASE_CROSS_ENTROPY, ROUNDED_ROWS, CLASSES, WITH_GRADIENT);
    enum { ARRAYS = 5 };
    const size_t bytes[ARRAYS] = {ROUNDED_COUNT * sizeof(float), ROUNDED_ROWS * sizeof(int32_t),
                                  CLASSES * sizeof(float), ROUNDED_COUNT * sizeof(uint16_t),
                                  ROUNDED_ROWS * sizeof(double)};
    void *on_device[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        check_ok(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes[i], &on_device[i]));
    check_ok(sli_device_write(device, on_device[0], c.arrays[ENTROPY_LOGITS].host, bytes[0]));
    check_ok(sli_device_write(device, on_device[1], c.arrays[ENTROPY_TARGETS].host, bytes[1]));
    sli_cross_entropy call = {.rows = ROUNDED_ROWS,
                              .classes = CLASSES,
                              .ld = CLASSES,
                              .logits = on_device[0],
                              .targets = on_device[1],
                              .ignore = -100,
                              .grad_scale = 0.125f,
                              .loss = on_device[4],
                              .grad_bias = sums ? on_device[2] : NULL,
                              .rounded = in_kernel ? on_device[3] : NULL};
    check_ok(sli_device_cross_entropy(device, &call));
    sli_convert after = {ROUNDED_COUNT, false, true, on_device[0], on_device[3]};
    if (!in_kernel)
        check_ok(sli_device_convert(device, &after));
    if (sums)
        check_ok(sli_device_read(device, sums, on_device[2], bytes[2]));
    check_ok(sli_device_read(device, gradient, on_device[3], bytes[3]));
    for (int i = 0; i < ARRAYS; i++)
        sli_device_release(device, SL_MEMORY_WORKSPACE, on_device[i], bytes[i]);
    case_free(&c);
}

static void cross_entropy_rounds_its_gradient_as_a_conversion_does(void **state)
{
    const lab *all = *state;
    FREED uint16_t *expected = malloc(ROUNDED_COUNT * sizeof *expected);
    FREED uint16_t *got = malloc(ROUNDED_COUNT * sizeof *got);
    float expected_sums[CLASSES], sums[CLASSES];
    assert_true(expected && got);
    for (int f = 0; f < all->count; f++)
        for (int with_sums = 0; with_sums < 2; with_sums++) {
            sl_device *device = all->families[f].members[0];
            round_gradient(device, false, expected, with_sums ? expected_sums : NULL);
            round_gradient(device, true, got, with_sums ? sums : NULL);
            assert_memory_equal(got, expected, ROUNDED_COUNT * sizeof *got);
            bool adds_rounded = sli_device_stores_bf16(device);
            for (int i = 0; with_sums && i < CLASSES; i++)
                assert_float_equal(sums[i], expected_sums[i], adds_rounded ? 0x1p-9 : 0);
        }
}

/* ---- Dropout ---------------------------------------------------------------------------- */

/* Drops from rows of ones; malloc'ed [rows, width]. */
static float *drop_ones(sl_device *device, sli_dropout dropout, int64_t rows, int64_t width)
{
    op_case c = build(CASE_ADD_DROPOUT, rows, width, 0);
    c.arguments.add_dropout.dropout = dropout;
    for (int64_t i = 0; i < rows * width; i++)
        ((float *)c.arrays[DROP_X].host)[i] = 1;
    float *out = result_of(device, &c, DROP_OUT);
    case_free(&c);
    return out;
}

static void samples_keep_their_masks_when_a_batch_is_cut(void **state)
{
    const lab *all = *state;
    enum { SAMPLES = 6, POSITIONS = 9, WIDTH = 35 };
    sl_device *device = all->families[0].members[0];
    sli_dropout dropout = {.p = 0.4f, .first_sample = UINT32_MAX, .rows_per_sample = POSITIONS};
    FREED float *whole = drop_ones(device, dropout, SAMPLES * POSITIONS, WIDTH);
    for (int first = 0; first < SAMPLES; first += 2, dropout.first_sample += 2) {
        FREED float *rows = drop_ones(device, dropout, 2 * POSITIONS, WIDTH);
        assert_memory_equal(rows, whole + first * POSITIONS * WIDTH,
                            2 * POSITIONS * WIDTH * sizeof *rows);
    }
}

/* A seed's masks do not depend on the kind of device: the kernels' random numbers are the CPU's. */
static void masks_are_the_same_on_every_kind_of_device(void **state)
{
    enum { ROWS = 40 };
    static const int64_t widths[] = {1, 35, 64, 130};
    static const float rates[] = {0.1f, 0.5f, 0.9f};
    const lab *all = *state;
    SCOPED(sl_device) *cpu = NULL;
    check_ok(sl_device_create_cpu(1, &cpu));
    for (int i = 0; i < 4 * 3; i++) {
        int64_t width = widths[i / 3];
        sli_dropout dropout = {.p = rates[i % 3],
                               .key = {{(uint32_t)all->seed, 5}},
                               .site = (uint32_t)i,
                               .first_sample = 7,
                               .rows_per_sample = 5};
        FREED float *expected = drop_ones(cpu, dropout, ROWS, width);
        for (int f = 0; f < all->count; f++) {
            FREED float *got = drop_ones(all->families[f].members[0], dropout, ROWS, width);
            assert_memory_equal(got, expected, (size_t)(ROWS * width) * sizeof *got);
        }
    }
}

static void kept_share_is_one_minus_p_and_independent_of_neighbours(void **state)
{
    const lab *all = *state;
    enum { ROWS = 1000, WIDTH = 300, COUNT = ROWS * WIDTH };
    static const float rates[] = {0.1f, 0.5f, 0.8f};
    for (int r = 0; r < 3; r++) {
        sli_dropout dropout = {.p = rates[r], .rows_per_sample = 20};
        FREED float *out = drop_ones(last_of(&all->families[0]), dropout, ROWS, WIDTH);
        double kept = 0, both = 0, q = 1 - (double)rates[r];
        for (int i = 0; i < COUNT; i++) {
            kept += (out[i] > 0) / (double)COUNT;
            both += (out[i] > 0 && out[i ? i - 1 : COUNT - 1] > 0) / (double)COUNT;
        }
        assert_true(fabs(kept - q) < 5 * sqrt(q * (1 - q) / COUNT));
        assert_true(fabs(both - q * q) < 8 * sqrt(q * q * (1 - q * q) / COUNT));
    }
}

/* ---- Others ----------------------------------------------------------------------------- */

static void norm_term_of_a_nan_is_nan_and_of_an_infinity_infinite(void **state)
{
    enum { COUNT = 40000 };
    static const unsigned norms[] = {0, WITH_L1, WITH_INF};
    for (int n = 0; n < 3; n++) {
        op_case c = build(CASE_NORM_TERMS, COUNT, 0, norms[n]);
        float *x = c.arrays[FLAT_FROM].host;
        x[5] = -INFINITY;
        check_case(*state, &c);
        for (int i = 39; i < COUNT; i += COUNT - 40) {
            x[i] = NAN;
            check_case(*state, &c);
            x[i] = 1;
        }
        case_free(&c);
    }
}

static void norm_terms_of_many_arrays_are_those_of_each_alone(void **state)
{
    enum { ARRAYS = 300, COUNT = 40000 };
    static sli_norm_array arrays[ARRAYS];
    static double together[ARRAYS];
    const lab *all = *state;
    sl_device *device = all->families[0].members[0];
    op_case c = build(CASE_NORM_TERMS, COUNT, 0, 0);
    loaded_case loaded;
    check_ok(case_load(device, &c, &loaded));
    const float *x = loaded.arguments.flat.from;
    for (int i = 0; i < ARRAYS; i++)
        arrays[i] = (sli_norm_array){i % 9 == 0 ? COUNT - i : i % 7 * 100, x + i};
    sli_norm_terms terms = {SLI_NORM_L2, ARRAYS, arrays, together};
    check_ok(sli_device_norm_terms(device, &terms));
    for (int i = 0; i < ARRAYS; i++) {
        double alone;
        check_ok(
            sli_device_norm_terms(device, &(sli_norm_terms){SLI_NORM_L2, 1, &arrays[i], &alone}));
        assert_memory_equal(&alone, &together[i], sizeof alone);
        assert_true(arrays[i].count > 0 ? alone > 0 : alone == 0);
    }
    case_unload(&loaded);
    case_free(&c);
}

static void relu_lets_nan_through(void **state)
{
    op_case c = build(CASE_EPILOGUE, 1, 40, WITH_RELU);
    for (int i = 3; i < 40; i += 7)
        ((float *)c.arrays[EPILOGUE_X].host)[i] = NAN;
    check_case(*state, &c);
    case_free(&c);
}

/* A CPU remembers primitives for some sizes; the first must come out the same when it has been
 * forgotten meanwhile. */
static void gemm_of_many_sizes_stays_the_same(void **state)
{
    const lab *all = *state;
    enum { SIZES = 150 };
    sl_device *device = last_of(&all->families[0]);
    case_spec spec = {.kind = CASE_GEMM, .flags = WITH_TRANSPOSED_B};
    float *first = NULL, *again = NULL;
    for (int i = 0; i <= SIZES; i++) {
        op_case c;
        int64_t size[3] = {64, 160 + i % SIZES, 160};
        memcpy(spec.size, size, sizeof size);
        case_build(&spec, 1, &c);
        free(again);
        again = result_of(device, &c, GEMM_C);
        first = first ? first : result_of(device, &c, GEMM_C);
        case_free(&c);
    }
    assert_memory_equal(again, first, 64 * 160 * sizeof *first);
    free(first);
    free(again);
}

static void initial_values_have_their_distribution(void **state)
{
    const lab *all = *state;
    enum { COUNT = 200000 };
    for (int normal = 0; normal < 2; normal++) {
        op_case c = build(CASE_INITIALIZE, COUNT, 0, normal ? WITH_INF : 0);
        c.arguments.flat.init.low = -1;
        c.arguments.flat.init.high = 2;
        float *x = result_of(last_of(&all->families[0]), &c, FLAT_TO);
        double mean = 0, squares = 0;
        for (int i = 0; i < COUNT; i++) {
            mean += x[i] / COUNT;
            squares += x[i] * (double)x[i] / COUNT;
            assert_true(normal || (x[i] >= -1 && x[i] < 2));
        }
        double true_mean = normal ? -1 : 0.5, true_variance = normal ? 4 : 9.0 / 12;
        assert_true(fabs(mean - true_mean) < 5 * sqrt(true_variance / COUNT));
        assert_true(fabs((squares - mean * mean) / true_variance - 1) < 5 * sqrt(2.0 / COUNT));
        free(x);
        case_free(&c);
    }
}

/* ---- Arguments -------------------------------------------------------------------------- */

/* Every array that is not optional is needed, wherever there is something to compute. */
static void arrays_that_are_missing_are_named(void **state)
{
    const lab *all = *state;
    sl_device *device = all->families[0].members[0];
    static const unsigned flags = WITH_MOMENTUM | WITH_RELU | WITH_SAVED;
    for (case_kind kind = 0; kind < CASE_KINDS; kind++) {
        const case_operation *operation = &case_operations[kind];
        case_spec spec = {.kind = kind, .size = {4, 3, 2, 2}, .flags = flags & operation->flags};
        op_case c;
        loaded_case loaded;
        case_build(&spec, 1, &c);
        for (int a = 0; a < CASE_ARRAYS; a++) {
            const case_array_info *info = &operation->arrays[a];
            if (!c.arrays[a].host || (info->when && !info->needed))
                continue;
            check_ok(case_load(device, &c, &loaded));
            memset((char *)&loaded.arguments + info->field, 0, sizeof(void *));
            check_error(case_run(&loaded), SL_ERR_INVALID, info->name);
            check_error(case_run(&loaded), SL_ERR_INVALID, operation->name);
            case_unload(&loaded);
        }
        case_free(&c);
    }
}

static void sizes_and_rates_out_of_range_are_refused(void **state)
{
    const lab *all = *state;
    float x[16] = {0};
    const sli_gemm fine = {
        .m = 2, .n = 2, .k = 2, .a = x, .lda = 2, .b = x, .ldb = 2, .c = x, .ldc = 2};
    static const char *const texts[] = {"gemm: m must be at least 0, got -1",
                                        "gemm: lda must be at least 3, got 2",
                                        "gemm: ldc must be at least 2, got 1",
                                        "gemm: expected a beta of 0 or 1",
                                        "gemm: expected a dropout probability from 0 to 1",
                                        "gemm: rows_per_sample must be at least 1, got 0",
                                        "gemm: expected no transpose_a with is_forward"};
    for (int i = 0; i < 7; i++) {
        sli_gemm bad = fine;
        bad.m = i == 0 ? -1 : 2;
        bad.k = i == 1 ? 3 : 2;
        bad.ldc = i == 2 ? 1 : 2;
        bad.beta = i == 3 ? 0.5f : 0;
        bad.is_forward = bad.transpose_a = i == 6;
        bad.dropout.p = i == 4 ? NAN : i == 5 ? 0.5f : 0;
        check_error(sli_device_gemm(all->families[0].members[0], &bad), SL_ERR_INVALID, texts[i]);
    }
}

/* A layer norm has a bias, and RMSNorm has none. */
static void norms_are_given_their_bias_alone(void **state)
{
    const lab *all = *state;
    sl_device *device = all->families[0].members[0];
    float x[4] = {1, 2, 3, 4}, bias[2] = {0}, rstd[2] = {1, 1};
    for (int rms = 0; rms < 2; rms++) {
        const char *text = rms ? "expected no bias with rms" : "bias must not be NULL";
        sli_add_norm a = {.rows = 2, .width = 2, .x = x, .out = x, .rms = rms, .weight = bias};
        sli_add_norm_backward b = {.rows = 2,
                                   .width = 2,
                                   .grad_out = x,
                                   .normalized = x,
                                   .rstd = rstd,
                                   .rms = rms,
                                   .weight = bias,
                                   .grad_sum = x,
                                   .grad_weight = bias};
        a.bias = rms ? bias : NULL;
        b.grad_bias = rms ? bias : NULL;
        check_error(sli_device_add_norm(device, &a), SL_ERR_INVALID, text);
        check_error(sli_device_add_norm_backward(device, &b), SL_ERR_INVALID, text);
    }
}

enum { NORM_GROUPS = 3, NORM_HEADS = 2, NORM_ROWS = NORM_GROUPS * NORM_HEADS, NORM_MOST = 40 };

/* Copies rows of `width` between a dense matrix and one whose groups lie `ld` apart. */
static void copy_rows(float *dense, float *grouped, int width, int ld, bool to_grouped)
{
    for (int row = 0; row < NORM_ROWS; row++)
        for (int i = 0; i < width; i++) {
            float *a = &dense[row * width + i],
                  *b = &grouped[row / NORM_HEADS * ld + row % NORM_HEADS * width + i];
            *(to_grouped ? b : a) = *(to_grouped ? a : b);
        }
}

/* Runs the norm and its gradient in place on dense rows, or on groups of them. */
static void run_norm(sl_device *device, int width, int ld, float *x, float *grad,
                     float *weight_grad)
{
    float weight[NORM_MOST], normalized[NORM_ROWS * NORM_MOST], rstd[NORM_ROWS];
    const sli_row_groups groups = {ld > 0 ? NORM_HEADS : 0, ld};
    for (int i = 0; i < width; i++)
        weight[i] = 1 + 0.1f * (float)i;
    check_ok(sli_device_add_norm(device, &(sli_add_norm){.rows = NORM_ROWS,
                                                         .width = width,
                                                         .x = x,
                                                         .out = x,
                                                         .rms = true,
                                                         .weight = weight,
                                                         .eps = 1e-6f,
                                                         .normalized = normalized,
                                                         .rstd = rstd,
                                                         .groups = groups}));
    check_ok(
        sli_device_add_norm_backward(device, &(sli_add_norm_backward){.rows = NORM_ROWS,
                                                                      .width = width,
                                                                      .grad_out = grad,
                                                                      .normalized = normalized,
                                                                      .rstd = rstd,
                                                                      .rms = true,
                                                                      .weight = weight,
                                                                      .grad_sum = grad,
                                                                      .grad_weight = weight_grad,
                                                                      .groups = groups}));
}

static void norms_of_groups_of_rows_are_those_of_dense_ones(void **state)
{
    const lab *all = *state;
    static const int widths[] = {12, 5, 32};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        int width = widths[w], ld = NORM_HEADS * width + (width == 12 ? 4 : 3);
        float dense[2][NORM_ROWS * NORM_MOST],
            grouped[2][NORM_GROUPS * (NORM_HEADS * NORM_MOST + 4)];
        float back[NORM_ROWS * NORM_MOST], weight_grads[2][NORM_MOST];
        for (size_t i = 0; i < sizeof *grouped / sizeof **grouped; i++)
            grouped[0][i] = grouped[1][i] = -77;
        for (int i = 0; i < NORM_ROWS * width; i++) {
            dense[0][i] = sinf((float)(7 * i));
            dense[1][i] = cosf((float)(5 * i));
        }
        for (int i = 0; i < 2; i++)
            copy_rows(dense[i], grouped[i], width, ld, true);
        sl_device *device = all->families[0].members[0];
        run_norm(device, width, 0, dense[0], dense[1], weight_grads[0]);
        run_norm(device, width, ld, grouped[0], grouped[1], weight_grads[1]);
        assert_memory_equal(weight_grads[0], weight_grads[1], (size_t)width * sizeof(float));
        for (int i = 0; i < 2; i++) {
            copy_rows(back, grouped[i], width, ld, false);
            assert_memory_equal(back, dense[i], NORM_ROWS * (size_t)width * sizeof(float));
            for (int gap = NORM_HEADS * width; gap < ld; gap++)
                assert_true(grouped[i][gap] == -77.0f);
        }
    }
}

static void groups_of_rows_stand_alone(void **state)
{
    const lab *all = *state;
    float x[8] = {1}, weight[2] = {1, 1};
    sli_add_norm a = {.rows = 4, .width = 2, .x = x, .out = x, .rms = true, .weight = weight};
    a.groups = (sli_row_groups){2, 3};
    sl_device *device = all->families[0].members[0];
    check_error(sli_device_add_norm(device, &a), SL_ERR_INVALID, "groups.ld");
    a.groups.ld = 4;
    a.residual = x;
    check_error(sli_device_add_norm(device, &a), SL_ERR_INVALID,
                "groups of rows without residual, sum, bf16 and dropout");
}

/* Exact ones, ties, the largest finite ones, what rounds to infinity, and no numbers. */
static void conversion_rounds_to_the_nearest_even_bf16(void **state)
{
    static const struct {
        uint32_t from, to;
    } values[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81},
                  {0x3f818000, 0x3f82}, {0xbf818000, 0xbf82}, {0x00000001, 0x0000},
                  {0x7f7f0000, 0x7f7f}, {0x7f7f8000, 0x7f80}, {0x7f800000, 0x7f80},
                  {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}};
    enum { VALUES = sizeof values / sizeof *values, COUNT = 70001 };
    const lab *all = *state;
    uint32_t *from = malloc(COUNT * sizeof *from), *again = malloc(COUNT * sizeof *again);
    FREED uint16_t *to = malloc(COUNT * sizeof *to);
    assert_true(from && again && to);
    for (int i = 0; i < COUNT; i++)
        from[i] = values[i % VALUES].from;
    sl_device *device = all->families[0].members[0];
    check_ok(sli_device_convert(device, &(sli_convert){COUNT, false, true, from, to}));
    check_ok(sli_device_convert(device, &(sli_convert){COUNT, true, false, to, again}));
    check_ok(sli_device_convert(device, &(sli_convert){COUNT, false, false, from, from}));
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(to[i], values[i % VALUES].to);
        assert_int_equal(again[i], values[i % VALUES].to << 16);
    }
    assert_memory_equal(from, again, COUNT * sizeof *from);
    check_error(sli_device_convert(device, &(sli_convert){COUNT, true, true, from, to}),
                SL_ERR_INVALID, "convert: expected f32 on one side");
    free(from);
    free(again);
}

int values_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_of_extreme_logits_matches_the_reference),
        cmocka_unit_test(cross_entropy_rounds_its_gradient_as_a_conversion_does),
        cmocka_unit_test(samples_keep_their_masks_when_a_batch_is_cut),
        cmocka_unit_test(masks_are_the_same_on_every_kind_of_device),
        cmocka_unit_test(kept_share_is_one_minus_p_and_independent_of_neighbours),
        cmocka_unit_test(norms_of_groups_of_rows_are_those_of_dense_ones),
        cmocka_unit_test(groups_of_rows_stand_alone),
        cmocka_unit_test(norm_term_of_a_nan_is_nan_and_of_an_infinity_infinite),
        cmocka_unit_test(norm_terms_of_many_arrays_are_those_of_each_alone),
        cmocka_unit_test(relu_lets_nan_through),
        cmocka_unit_test(conversion_rounds_to_the_nearest_even_bf16),
        cmocka_unit_test(gemm_of_many_sizes_stays_the_same),
        cmocka_unit_test(initial_values_have_their_distribution),
        cmocka_unit_test(arrays_that_are_missing_are_named),
        cmocka_unit_test(sizes_and_rates_out_of_range_are_refused),
        cmocka_unit_test(norms_are_given_their_bias_alone),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
