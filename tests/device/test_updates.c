/* Work on flat arrays: copies, sums, optimizer updates, norms, initial values. */
#include "lab.h"

static const int64_t counts[] = {0, 1, 3, 17, 200, 257, 1024, 16384, 16385, 50001};

/* ---- Optimizers ------------------------------------------------------------------------- */

static void run_sgd(sl_device *device, const void *arguments, outputs *out)
{
    sli_sgd s = *(const sli_sgd *)arguments;
    s.value = out->values[0] = copy_of(s.value, s.count);
    out->values[1] = copy_of(s.momentum_buffer, s.count);
    s.momentum_buffer = s.momentum != 0 ? out->values[1] : NULL;
    assert_int_equal(sli_device_sgd(device, &s), SL_OK);
}

/* torch.optim.SGD's documentation, line by line. */
static void reference_sgd(const sli_sgd *s, double *value, double *buffer)
{
    for (int64_t i = 0; i < s->count; i++) {
        double g = (double)s->grad_scale * s->grad[i] + (double)s->weight_decay * s->value[i];
        buffer[i] = s->momentum_buffer[i];
        if (s->momentum != 0) {
            buffer[i] =
                s->first ? g : (double)s->momentum * buffer[i] + (1 - (double)s->dampening) * g;
            g = s->nesterov ? g + (double)s->momentum * buffer[i] : buffer[i];
        }
        value[i] = s->value[i] - (double)s->lr * g;
    }
}

static void sgd_matches_the_reference(void **state)
{
    random_source source = random_start(__func__);
    for (int i = 0; i < 40; i++) {
        int64_t count = random_of(&source, counts, 10);
        float *arrays[3];
        for (int a = 0; a < 3; a++)
            arrays[a] = random_floats(&source, count);
        sli_sgd s = {.count = count, .value = arrays[0], .grad = arrays[1], .lr = 0.1f};
        s.momentum_buffer = arrays[2];
        s.grad_scale = 0.7f;
        s.momentum = i % 2 ? 0.9f : 0;
        s.dampening = i % 3 ? 0.5f : 0;
        s.weight_decay = i % 4 > 1 ? 0.1f : 0;
        s.nesterov = i % 5 > 2;
        s.first = i % 7 > 3;
        outputs out = {.arrays = 2, .count = {count, count}, .tolerance = {1e-6, 1e-6}};
        out.expected[0] = doubles(count);
        out.expected[1] = doubles(count);
        reference_sgd(&s, out.expected[0], out.expected[1]);
        check_on_all(*state, "sgd", run_sgd, &s, &out);
        for (int a = 0; a < 3; a++)
            free(arrays[a]);
    }
}

static void run_adamw(sl_device *device, const void *arguments, outputs *out)
{
    sli_adamw s = *(const sli_adamw *)arguments;
    s.value = out->values[0] = copy_of(s.value, s.count);
    s.exp_avg = out->values[1] = copy_of(s.exp_avg, s.count);
    s.exp_avg_sq = out->values[2] = copy_of(s.exp_avg_sq, s.count);
    assert_int_equal(sli_device_adamw(device, &s), SL_OK);
}

static void adamw_matches_the_reference(void **state)
{
    random_source source = random_start(__func__);
    for (int i = 0; i < 20; i++) {
        int64_t count = random_of(&source, counts, 10);
        float *arrays[4];
        for (int a = 0; a < 4; a++)
            arrays[a] = random_floats(&source, count);
        for (int64_t j = 0; j < count; j++)
            arrays[3][j] = fabsf(arrays[3][j]) + 0.01f;
        sli_adamw s = {.count = count, .value = arrays[0], .grad = arrays[1], .lr = 0.01f};
        s.exp_avg = arrays[2];
        s.exp_avg_sq = arrays[3];
        s.grad_scale = 0.7f;
        s.beta1 = 0.9f;
        s.beta2 = 0.99f;
        s.eps = 1e-8f;
        s.weight_decay = i % 2 ? 0.1f : 0;
        s.bias_correction1 = 1 - pow(0.9, i + 1);
        s.bias_correction2 = 1 - pow(0.99, i + 1);
        outputs out = {.arrays = 3,
                       .count = {count, count, count},
                       .tolerance = {1e-6, 1e-6, 1e-6}};
        for (int a = 0; a < 3; a++)
            out.expected[a] = doubles(count);
        for (int64_t j = 0; j < count; j++) {
            double g = (double)s.grad_scale * s.grad[j];
            double m = (double)s.beta1 * s.exp_avg[j] + (1 - (double)s.beta1) * g;
            double v = (double)s.beta2 * s.exp_avg_sq[j] + (1 - (double)s.beta2) * g * g;
            double root = sqrt(v) / sqrt(s.bias_correction2) + (double)s.eps;
            double decayed = s.value[j] * (1 - (double)s.lr * s.weight_decay);
            out.expected[0][j] = decayed - s.lr / s.bias_correction1 * m / root;
            out.expected[1][j] = m;
            out.expected[2][j] = v;
        }
        check_on_all(*state, "adamw", run_adamw, &s, &out);
        for (int a = 0; a < 4; a++)
            free(arrays[a]);
    }
}

/* ---- Sums and norms --------------------------------------------------------------------- */

static void add_adds_each_element_once(void **state)
{
    const lab *all = *state;
    random_source source = random_start(__func__);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int isa = 0; isa < LAB_ISAS && all->devices[isa][0]; isa++)
            for (int t = 0; t < LAB_THREADS; t++) {
                float *from = random_floats(&source, counts[c]);
                float *to = random_floats(&source, counts[c]), *before = copy_of(to, counts[c]);
                sl_device *device = all->devices[isa][t];
                assert_int_equal(sli_device_add(device, counts[c], to, from), SL_OK);
                for (int64_t i = 0; i < counts[c]; i++)
                    assert_float_equal(to[i], before[i] + from[i], 0);
                free(from);
                free(to);
                free(before);
            }
}

static double reference_norm_term(sli_norm_kind kind, int64_t count, const float *x)
{
    double result = 0;
    for (int64_t i = 0; i < count; i++) {
        double size = fabs((double)x[i]);
        if (kind == SLI_NORM_INF)
            result = size > result ? size : result;
        else
            result += kind == SLI_NORM_L2 ? size * size : size;
    }
    return result;
}

static double norm_term(sl_device *device, sli_norm_kind kind, int64_t count, const float *x)
{
    double result;
    assert_int_equal(sli_device_norm_term(device, kind, count, x, &result), SL_OK);
    return result;
}

static void norm_terms_match_the_reference_whatever_the_threads(void **state)
{
    const lab *all = *state;
    random_source source = random_start(__func__);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int kind = SLI_NORM_L1; kind <= SLI_NORM_INF; kind++) {
            float *x = random_floats(&source, counts[c]);
            double expected = reference_norm_term((sli_norm_kind)kind, counts[c], x);
            for (int isa = 0; isa < LAB_ISAS && all->devices[isa][0]; isa++) {
                double first = 0;
                for (int t = 0; t < LAB_THREADS; t++) {
                    sl_device *device = all->devices[isa][t];
                    double got = norm_term(device, (sli_norm_kind)kind, counts[c], x);
                    assert_true(fabs(got - expected) <= 1e-12 * expected);
                    first = t ? first : got;
                    assert_memory_equal(&got, &first, sizeof got);
                }
            }
            free(x);
        }
}

static void norm_term_of_a_nan_is_nan_and_of_an_infinity_infinite(void **state)
{
    const lab *all = *state;
    enum { COUNT = 40000 };
    float *x = floats(COUNT);
    for (int isa = 0; isa < LAB_ISAS && all->devices[isa][0]; isa++)
        for (int kind = SLI_NORM_L1; kind <= SLI_NORM_INF; kind++) {
            sl_device *device = all->devices[isa][1];
            for (int i = 0; i < COUNT; i++)
                x[i] = 1;
            x[5] = -INFINITY;
            assert_true(isinf(norm_term(device, (sli_norm_kind)kind, COUNT, x)));
            x[39] = NAN;
            assert_true(isnan(norm_term(device, (sli_norm_kind)kind, COUNT, x)));
            x[39] = 1;
            x[39999] = NAN;
            assert_true(isnan(norm_term(device, (sli_norm_kind)kind, COUNT, x)));
        }
    free(x);
}

/* ---- Copies ----------------------------------------------------------------------------- */

static void copies_move_every_byte_and_no_other(void **state)
{
    const lab *all = *state;
    static const size_t sizes[] = {0, 1, 63, 4096, (1 << 18) + 1, (1 << 20) + 7};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int t = 0; t < LAB_THREADS; t++) {
            sl_device *device = all->devices[0][t];
            size_t bytes = sizes[s];
            char *from = malloc(bytes + 1), *to = malloc(bytes + 1);
            for (size_t i = 0; i <= bytes; i++)
                from[i] = (char)(i * 7 + 1);
            memset(to, 42, bytes + 1);
            sl_status (*const functions[])(sl_device *, void *, const void *,
                                           size_t) = {sli_device_write, sli_device_read,
                                                      sli_device_copy};
            for (int f = 0; f < 3; f++) {
                memset(to, 42, bytes + 1);
                assert_int_equal(functions[f](device, to, from, bytes), SL_OK);
                assert_memory_equal(to, from, bytes);
                assert_int_equal(to[bytes], 42);
            }
            assert_int_equal(sli_device_zero(device, to, bytes), SL_OK);
            for (size_t i = 0; i < bytes; i++)
                assert_int_equal(to[i], 0);
            assert_int_equal(to[bytes], 42);
            free(from);
            free(to);
        }
}

/* ---- Initial values --------------------------------------------------------------------- */

typedef struct init_case {
    sli_init init;
    uint64_t seed;
    uint32_t site;
} init_case;

static void run_initialize(sl_device *device, const void *arguments, outputs *out)
{
    const init_case *c = arguments;
    out->values[0] = floats(out->count[0]);
    assert_int_equal(sli_device_initialize(device, &c->init, c->seed, c->site, out->count[0],
                                           out->values[0]),
                     SL_OK);
}

static void reference_words(const init_case *c, int64_t element, uint32_t words[4])
{
    words[0] = (uint32_t)(element / 4);
    words[1] = (uint32_t)((uint64_t)element / 4 >> 32);
    words[2] = c->site;
    words[3] = 0;
    sli_philox(sli_philox_key_make(c->seed, SLI_RANDOM_INIT), words);
}

static double reference_initial(const init_case *c, int64_t element)
{
    uint32_t words[4];
    reference_words(c, element, words);
    double low = c->init.low, high = c->init.high;
    if (c->init.kind == SLI_INIT_CONSTANT)
        return low;
    if (c->init.kind == SLI_INIT_UNIFORM)
        return low + (high - low) * sli_uniform_from_bits(words[element % 4]);
    const uint32_t *pair = words + element % 4 / 2 * 2;
    double radius = sqrt(-2 * log(1.0 - sli_uniform_from_bits(pair[0])));
    double angle = 2 * acos(-1.0) * sli_uniform_from_bits(pair[1]);
    return low + high * radius * (element % 2 ? sin(angle) : cos(angle));
}

static void initial_values_are_functions_of_seed_site_and_index(void **state)
{
    for (int kind = SLI_INIT_CONSTANT; kind <= SLI_INIT_NORMAL; kind++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            init_case one = {.init = {(sli_init_kind)kind, -0.1f, 0.3f}, .seed = 12345678901};
            one.site = 7;
            outputs out = {.arrays = 1, .count = {counts[c]}, .tolerance = {2e-6}};
            out.expected[0] = doubles(counts[c]);
            for (int64_t i = 0; i < counts[c]; i++)
                out.expected[0][i] = reference_initial(&one, i);
            check_on_all(*state, "initialize", run_initialize, &one, &out);
        }
}

static void initial_values_have_their_distribution(void **state)
{
    const lab *all = *state;
    enum { COUNT = 200000 };
    sl_device *device = all->devices[0][1];
    float *x = floats(COUNT);
    for (int kind = SLI_INIT_UNIFORM; kind <= SLI_INIT_NORMAL; kind++) {
        sli_init init = {(sli_init_kind)kind, -1, 2};
        assert_int_equal(sli_device_initialize(device, &init, 1, 1, COUNT, x), SL_OK);
        double mean = 0, variance = 0;
        for (int i = 0; i < COUNT; i++)
            mean += x[i] / COUNT;
        for (int i = 0; i < COUNT; i++) {
            variance += (x[i] - mean) * (x[i] - mean) / COUNT;
            assert_true(kind == SLI_INIT_NORMAL || (x[i] >= -1 && x[i] < 2));
        }
        double true_mean = kind == SLI_INIT_UNIFORM ? 0.5 : -1;
        double true_variance = kind == SLI_INIT_UNIFORM ? 9.0 / 12 : 4;
        assert_true(fabs(mean - true_mean) < 5 * sqrt(true_variance / COUNT));
        assert_true(fabs(variance / true_variance - 1) < 5 * sqrt(2.0 / COUNT));
    }
    free(x);
}

int updates_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_matches_the_reference),
        cmocka_unit_test(adamw_matches_the_reference),
        cmocka_unit_test(add_adds_each_element_once),
        cmocka_unit_test(norm_terms_match_the_reference_whatever_the_threads),
        cmocka_unit_test(norm_term_of_a_nan_is_nan_and_of_an_infinity_infinite),
        cmocka_unit_test(copies_move_every_byte_and_no_other),
        cmocka_unit_test(initial_values_are_functions_of_seed_site_and_index),
        cmocka_unit_test(initial_values_have_their_distribution),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
