/* Embedding, residual + norm, cross entropy. */
#include "lab.h"
#include "reference.h"

static const int64_t widths[] = {1, 3, 4, 17, 35, 200, 257, 1024, 1500};
static const int64_t row_counts[] = {0, 1, 2, 7, 35, 100};

static sli_dropout random_dropout(random_source *source)
{
    static const float rates[] = {0, 0.1f, 0.5f};
    return (sli_dropout){.p = rates[random_below(source, 3)],
                         .key = sli_philox_key_make(random_bits(source), SLI_RANDOM_DROPOUT),
                         .step = random_bits(source),
                         .site = random_bits(source),
                         .first_sample = random_bits(source),
                         .rows_per_sample = 1 + random_below(source, 40)};
}

static int32_t *random_ids(random_source *source, int64_t count, int64_t below)
{
    int32_t *ids = malloc(count ? (size_t)count * sizeof *ids : 1);
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)random_below(source, below);
    return ids;
}

/* ---- Embedding -------------------------------------------------------------------------- */

static void run_embedding(sl_device *device, const void *arguments, outputs *out)
{
    sli_embedding e = *(const sli_embedding *)arguments;
    e.out = out->values[0] = floats(e.rows * e.width);
    assert_int_equal(sli_device_embedding(device, &e), SL_OK);
}

static void run_embedding_backward(sl_device *device, const void *arguments, outputs *out)
{
    sli_embedding_backward e = *(const sli_embedding_backward *)arguments;
    e.grad_table = out->values[0] = copy_of(e.grad_table, e.table_rows * e.width);
    assert_int_equal(sli_device_embedding_backward(device, &e), SL_OK);
}

static void check_embedding(const lab *all, random_source *source, int64_t rows, int64_t width)
{
    int64_t table_rows = 1 + random_below(source, 20);
    sli_embedding e = {.rows = rows, .width = width, .table_rows = table_rows, .scale = 1.7f};
    e.dropout = random_dropout(source);
    int32_t *ids = random_ids(source, rows, table_rows);
    float *table = random_floats(source, table_rows * width);
    float *positions = random_floats(source, e.dropout.rows_per_sample * width);
    float *grad_out = random_floats(source, rows * width);
    e.ids = ids;
    e.table = table;
    e.positions = random_below(source, 2) ? positions : NULL;
    outputs out = {.arrays = 1, .count = {rows * width}, .tolerance = {1e-6}};
    out.expected[0] = doubles(rows * width);
    reference_embedding(&e, out.expected[0]);
    check_on_all(all, "embedding", run_embedding, &e, &out);

    sli_embedding_backward back = {.rows = rows, .width = width, .table_rows = table_rows};
    back.ids = ids;
    back.scale = e.scale;
    back.grad_out = grad_out;
    back.dropout = e.dropout;
    back.grad_table = table;
    out = (outputs){.arrays = 1, .count = {table_rows * width}, .tolerance = {1e-5}};
    out.expected[0] = doubles(table_rows * width);
    reference_embedding_backward(&back, out.expected[0]);
    check_on_all(all, "embedding_backward", run_embedding_backward, &back, &out);
    free(ids);
    free(table);
    free(positions);
    free(grad_out);
}

static void embedding_and_its_gradient_match_the_reference(void **state)
{
    random_source source = random_start(__func__);
    for (int i = 0; i < 25; i++) {
        int64_t rows = random_of(&source, row_counts, 6);
        check_embedding(*state, &source, rows, random_of(&source, widths, 9));
    }
}

/* ---- Residual + norm -------------------------------------------------------------------- */

/* Where `sum` goes: its own memory, nowhere, over x or over the residual. */
typedef enum placement { APART, NOWHERE, OVER_X, OVER_RESIDUAL } placement;

typedef struct norm_case {
    sli_add_norm norm;
    placement sum;
    bool keep; /* what backward needs */
} norm_case;

static void run_add_norm(sl_device *device, const void *arguments, outputs *out)
{
    const norm_case *c = arguments;
    sli_add_norm norm = c->norm;
    int64_t elements = norm.rows * norm.width;
    float *x = copy_of(norm.x, elements);
    float *residual = norm.residual ? copy_of(norm.residual, elements) : NULL;
    for (int i = 0; i < out->arrays; i++) {
        out->values[i] = floats(out->count[i]);
        memset(out->values[i], 0, (size_t)out->count[i] * sizeof(float));
    }
    norm.x = x;
    norm.residual = residual;
    norm.sum = c->sum == APART ? out->values[0] : NULL;
    norm.sum = c->sum == OVER_X ? x : c->sum == OVER_RESIDUAL ? residual : norm.sum;
    norm.out = norm.weight ? out->values[1] : NULL;
    norm.normalized = c->keep ? out->values[2] : NULL;
    norm.rstd = c->keep ? out->values[3] : NULL;
    sli_add_dropout sum_only = {norm.rows, norm.width, x, residual, norm.dropout, norm.sum};
    assert_int_equal(norm.weight ? sli_device_add_norm(device, &norm)
                                 : sli_device_add_dropout(device, &sum_only),
                     SL_OK);
    if (norm.sum && norm.sum != out->values[0] && elements)
        memcpy(out->values[0], norm.sum, (size_t)elements * sizeof(float));
    free(x);
    free(residual);
}

static void drop_expected(outputs *out, int array)
{
    free(out->expected[array]);
    out->expected[array] = NULL;
}

static void check_add_norm(const lab *all, random_source *source, int64_t rows, int64_t width)
{
    int64_t elements = rows * width;
    norm_case c = {.norm = {.rows = rows, .width = width, .eps = 1e-5f}};
    float *x = random_floats(source, elements), *residual = random_floats(source, elements);
    float *weight = random_floats(source, width), *bias = random_floats(source, width);
    c.norm.x = x;
    c.norm.residual = random_below(source, 3) ? residual : NULL;
    c.norm.dropout = random_dropout(source);
    bool with_norm = random_below(source, 4) > 0;
    c.norm.weight = with_norm ? weight : NULL;
    c.norm.bias = bias;
    c.keep = with_norm && random_below(source, 2);
    c.sum = (placement)random_below(source, 4);
    if ((c.sum == OVER_RESIDUAL && !c.norm.residual) || (c.sum == NOWHERE && !with_norm))
        c.sum = APART;
    outputs out = {.arrays = 4,
                   .count = {elements, elements, elements, rows},
                   .tolerance = {1e-6, 2e-5, 2e-5, 2e-5}};
    for (int i = 0; i < 4; i++)
        out.expected[i] = doubles(out.count[i]);
    c.norm.out = with_norm ? x : NULL; /* tells the reference whether there is a norm */
    reference_add_norm(&c.norm, &(reference_norm){out.expected[0], out.expected[1], out.expected[2],
                                                  out.expected[3]});
    if (c.sum == NOWHERE)
        drop_expected(&out, 0);
    if (!with_norm)
        drop_expected(&out, 1);
    if (!c.keep) {
        drop_expected(&out, 2);
        drop_expected(&out, 3);
    }
    check_on_all(all, "add_norm", run_add_norm, &c, &out);
    free(x);
    free(residual);
    free(weight);
    free(bias);
}

static void add_norm_matches_the_reference_also_in_place(void **state)
{
    random_source source = random_start(__func__);
    for (int i = 0; i < 60; i++) {
        int64_t rows = random_of(&source, row_counts, 6), width = random_of(&source, widths, 9);
        check_add_norm(*state, &source, rows, width == 1 ? 3 : width);
    }
    for (int i = 0; i < 4; i++)
        check_add_norm(*state, &source, 300, 257);
}

typedef struct norm_backward_case {
    sli_add_norm_backward norm;
    placement sum; /* OVER_X: grad_sum over grad_out, OVER_RESIDUAL: over grad_sum_in */
    bool grad_x_in_place;
} norm_backward_case;

static void run_add_norm_backward(sl_device *device, const void *arguments, outputs *out)
{
    const norm_backward_case *c = arguments;
    sli_add_norm_backward norm = c->norm;
    int64_t elements = norm.rows * norm.width;
    float *grad_out = norm.grad_out ? copy_of(norm.grad_out, elements) : NULL;
    float *grad_in = norm.grad_sum_in ? copy_of(norm.grad_sum_in, elements) : NULL;
    out->values[0] = floats(elements);
    out->values[1] = floats(elements);
    norm.grad_weight = out->values[2] = copy_of(norm.grad_weight, norm.width);
    norm.grad_bias = out->values[3] = copy_of(norm.grad_bias, norm.width);
    norm.grad_out = grad_out;
    norm.grad_sum_in = grad_in;
    norm.grad_sum = c->sum == OVER_X          ? grad_out
                    : c->sum == OVER_RESIDUAL ? grad_in
                                              : out->values[0];
    norm.grad_x = c->grad_x_in_place ? norm.grad_sum : out->values[1];
    assert_int_equal(sli_device_add_norm_backward(device, &norm), SL_OK);
    if (elements && norm.grad_sum != out->values[0])
        memcpy(out->values[0], norm.grad_sum, (size_t)elements * sizeof(float));
    if (elements && norm.grad_x != out->values[1])
        memcpy(out->values[1], norm.grad_x, (size_t)elements * sizeof(float));
    free(grad_out);
    free(grad_in);
}

static void check_add_norm_backward(const lab *all, random_source *source, int64_t rows,
                                    int64_t width)
{
    int64_t elements = rows * width;
    norm_backward_case c = {.norm = {.rows = rows, .width = width}};
    float *arrays[7];
    for (int i = 0; i < 3; i++)
        arrays[i] = random_floats(source, elements);
    for (int i = 3; i < 6; i++)
        arrays[i] = random_floats(source, width);
    arrays[6] = random_floats(source, rows);
    c.norm.grad_out = arrays[0];
    c.norm.grad_sum_in = random_below(source, 2) ? arrays[1] : NULL;
    c.norm.normalized = arrays[2];
    c.norm.weight = arrays[3];
    c.norm.grad_weight = arrays[4];
    c.norm.grad_bias = arrays[5];
    c.norm.rstd = arrays[6];
    c.norm.dropout = random_dropout(source);
    c.norm.beta = (float)random_below(source, 2);
    c.sum = (placement)random_below(source, 4);
    if (c.sum == NOWHERE || (c.sum == OVER_X && !c.norm.grad_out) ||
        (c.sum == OVER_RESIDUAL && !c.norm.grad_sum_in))
        c.sum = APART;
    c.grad_x_in_place = c.norm.dropout.p == 0 && random_below(source, 2);
    outputs out = {.arrays = 4,
                   .count = {elements, elements, width, width},
                   .tolerance = {1e-5, 1e-5, 1e-5, 1e-5}};
    for (int i = 0; i < 4; i++)
        out.expected[i] = doubles(out.count[i]);
    reference_add_norm_backward(&c.norm, out.expected[0], out.expected[1], out.expected[2],
                                out.expected[3]);
    if (!c.norm.grad_out) {
        drop_expected(&out, 2);
        drop_expected(&out, 3);
    }
    check_on_all(all, "add_norm_backward", run_add_norm_backward, &c, &out);
    for (int i = 0; i < 7; i++)
        free(arrays[i]);
}

static void add_norm_backward_matches_the_reference_also_in_place(void **state)
{
    random_source source = random_start(__func__);
    for (int i = 0; i < 60; i++) {
        int64_t rows = random_of(&source, row_counts, 6);
        check_add_norm_backward(*state, &source, rows, random_of(&source, widths, 9));
    }
    for (int i = 0; i < 4; i++)
        check_add_norm_backward(*state, &source, 300, 257);
    check_add_norm_backward(*state, &source, 3, 70000);
}

/* ---- Cross entropy ---------------------------------------------------------------------- */

static void run_cross_entropy(sl_device *device, const void *arguments, outputs *out)
{
    sli_cross_entropy c = *(const sli_cross_entropy *)arguments;
    double *loss = doubles(c.rows);
    c.logits = out->values[0] = copy_of(c.logits, c.rows * c.classes);
    c.loss = loss;
    assert_int_equal(sli_device_cross_entropy(device, &c), SL_OK);
    out->values[1] = floats(c.rows);
    for (int64_t i = 0; i < c.rows; i++)
        out->values[1][i] = (float)loss[i];
    free(loss);
}

static void check_cross_entropy(const lab *all, random_source *source, int64_t rows,
                                int64_t classes, float spread)
{
    sli_cross_entropy c = {.rows = rows, .classes = classes, .ignore = -100};
    float *logits = random_floats(source, rows * classes);
    for (int64_t i = 0; i < rows * classes; i++)
        logits[i] *= spread;
    int32_t *targets = random_ids(source, rows, classes);
    for (int64_t i = 0; i < rows; i++)
        targets[i] = random_below(source, 5) ? targets[i] : c.ignore;
    c.logits = logits;
    c.targets = targets;
    c.grad_scale = random_below(source, 3) ? 0.125f : 0;
    outputs out = {.arrays = 2, .count = {rows * classes, rows}, .tolerance = {1e-6, 1e-6}};
    out.expected[0] = doubles(rows * classes);
    out.expected[1] = doubles(rows);
    reference_cross_entropy(&c, out.expected[0], out.expected[1]);
    check_on_all(all, "cross_entropy", run_cross_entropy, &c, &out);
    free(logits);
    free(targets);
}

static void cross_entropy_matches_the_reference(void **state)
{
    static const int64_t classes[] = {1, 3, 17, 200, 513, 1500, 5003};
    random_source source = random_start(__func__);
    for (int i = 0; i < 40; i++) {
        int64_t rows = random_of(&source, row_counts, 6);
        float spread = random_below(&source, 2) ? 4.0f : 60.0f;
        check_cross_entropy(*state, &source, rows, random_of(&source, classes, 7), spread);
    }
    check_cross_entropy(*state, &source, 5, 70001, 10.0f);
}

/* Logits that grow from block to block exercise the correction of earlier blocks. */
static void cross_entropy_of_growing_logits_matches_the_reference(void **state)
{
    enum { CLASSES = 3000 };
    float logits[CLASSES];
    for (int i = 0; i < CLASSES; i++)
        logits[i] = 0.05f * (float)(i / 10);
    for (int i = 0; i < 600; i++)
        logits[i] = -INFINITY;
    int32_t targets[1] = {2000};
    sli_cross_entropy c = {.rows = 1, .classes = CLASSES, .logits = logits, .targets = targets};
    c.ignore = -1;
    c.grad_scale = 1;
    outputs out = {.arrays = 2, .count = {CLASSES, 1}, .tolerance = {1e-6, 1e-6}};
    out.expected[0] = doubles(CLASSES);
    out.expected[1] = doubles(1);
    reference_cross_entropy(&c, out.expected[0], out.expected[1]);
    check_on_all(*state, "cross_entropy", run_cross_entropy, &c, &out);
}

/* All possible classes are further below 0 than an exponential reaches, and a first block of
 * classes may be impossible. */
static void cross_entropy_of_logits_far_below_zero_matches_the_reference(void **state)
{
    enum { CLASSES = 1500 };
    for (int impossible = 0; impossible <= 600; impossible += 600) {
        float logits[CLASSES];
        for (int i = 0; i < CLASSES; i++)
            logits[i] = i < impossible ? -INFINITY : -2000.0f - 0.25f * (float)(i % 7);
        int32_t targets[1] = {1000};
        sli_cross_entropy c = {.rows = 1, .classes = CLASSES, .logits = logits, .targets = targets};
        c.ignore = -1;
        c.grad_scale = 1;
        outputs out = {.arrays = 2, .count = {CLASSES, 1}, .tolerance = {1e-6, 1e-6}};
        out.expected[0] = doubles(CLASSES);
        out.expected[1] = doubles(1);
        reference_cross_entropy(&c, out.expected[0], out.expected[1]);
        check_on_all(*state, "cross_entropy", run_cross_entropy, &c, &out);
    }
}

static void cross_entropy_of_a_nan_or_only_infinities_is_nan(void **state)
{
    const lab *all = *state;
    for (int isa = 0; isa < LAB_ISAS && all->devices[isa][0]; isa++)
        for (int which = 0; which < 3; which++) {
            float logits[700];
            for (int i = 0; i < 700; i++)
                logits[i] = which == 1 ? -INFINITY : 0.5f;
            if (which != 1)
                logits[690] = which == 0 ? NAN : INFINITY;
            int32_t target = 3;
            double loss = 0;
            sli_cross_entropy c = {.rows = 1, .classes = 700, .logits = logits, .ignore = -1};
            c.targets = &target;
            c.loss = &loss;
            sl_device *device = all->devices[isa][0];
            assert_int_equal(sli_device_cross_entropy(device, &c), SL_OK);
            assert_true(isnan(loss));
        }
}

int rows_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_and_its_gradient_match_the_reference),
        cmocka_unit_test(add_norm_matches_the_reference_also_in_place),
        cmocka_unit_test(add_norm_backward_matches_the_reference_also_in_place),
        cmocka_unit_test(cross_entropy_matches_the_reference),
        cmocka_unit_test(cross_entropy_of_growing_logits_matches_the_reference),
        cmocka_unit_test(cross_entropy_of_logits_far_below_zero_matches_the_reference),
        cmocka_unit_test(cross_entropy_of_a_nan_or_only_infinities_is_nan),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
