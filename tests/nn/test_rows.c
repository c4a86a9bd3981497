/* On a device that is batch invariant, a row's forward has the same bits whatever else its batch
 * has, also where its text comes in parts or in slices, or shares a row with others. */
#include "core/bf16.h"
#include "device/cpu/cpu_device.h"
#include "nn/module.h"
#include "support/modules.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 12, MOST_ROWS = 17, LONG_ROWS = 4, MOST_LENGTH = 150, TOKENS = 53 };

/* One drawn model with a batch of ids [rows, length]. */
typedef struct drawn_case {
    unsigned state;
    sl_module *model;
    sl_device *device;
    sl_parameter_set *set;
    sl_precision precision;
    int64_t rows, length;
    int32_t ids[MOST_ROWS * MOST_LENGTH];
} drawn_case;

static sl_module *draw_model(unsigned *state)
{
    sl_module *model;
    sl_model_options options = draw_decoder(state, 2, TOKENS, MOST_LENGTH);
    if (test_draw(state, 0, 2) == 0)
        options = (sl_model_options){.ntokens = TOKENS,
                                     .emsize = 2 * test_draw(state, 1, 3) * test_draw(state, 1, 60),
                                     .nhid = test_draw(state, 1, 300),
                                     .nlayers = 2,
                                     .nhead = 2,
                                     .mask = SL_MASK_CAUSAL,
                                     .pre_norm = test_draw(state, 0, 1),
                                     .activation = test_draw(state, 0, 1) ? SL_ACTIVATION_GELU
                                                                          : SL_ACTIVATION_RELU};
    options.dropout = 0;
    check_ok(sl_transformer_lm_create(&options, &model));
    return model;
}

static sl_device *draw_device(unsigned *state)
{
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    sl_device *device;
    sli_cpu_options options = {.name = "cpu",
                               .threads = test_draw(state, 1, 3),
                               .shared = true,
                               .isa = isas[test_draw(state, 0, 2)]};
    if (sli_cpu_device_create(&options, &device) != SL_OK) {
        options.isa = NULL;
        check_ok(sli_cpu_device_create(&options, &device));
    }
    check_ok(sl_device_set_batch_invariant(device, true));
    return device;
}

static void draw_case(unsigned seed, drawn_case *c)
{
    c->state = seed;
    c->model = draw_model(&c->state);
    c->device = draw_device(&c->state);
    c->set = random_parameters(c->model, c->device);
    c->precision = test_draw(&c->state, 0, 1) ? SL_PRECISION_BF16 : SL_PRECISION_F32;
    bool is_long = test_draw(&c->state, 0, 1);
    c->rows = test_draw(&c->state, 2, is_long ? LONG_ROWS : MOST_ROWS);
    c->length = test_draw(&c->state, 1, is_long ? MOST_LENGTH : 20);
    for (int64_t i = 0; i < c->rows * c->length; i++)
        c->ids[i] = test_draw(&c->state, 0, TOKENS - 1);
}

static void drawn_case_destroy(drawn_case *c)
{
    sl_parameter_set_destroy(&c->set);
    sl_device_destroy(&c->device);
    sl_module_destroy(&c->model);
}

/* ---- Forwards ---------------------------------------------------------------------------- */

/* The logits of a batch; `numbers` are those of its positions in their documents, or NULL. */
static float *compute(const drawn_case *c, sl_cache *const *caches, bool keep, int64_t rows,
                      int64_t length, const int32_t *ids, const int32_t *numbers)
{
    sl_shape shape = sl_shape_2d(rows, length);
    SCOPED(sl_tensor) *in = integer_tensor(c->device, &shape, ids);
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *out = NULL;
    check_ok(sl_pass_create(&(sl_pass_options){.device = c->device,
                                               .precision = c->precision,
                                               .keep = keep,
                                               .caches = caches},
                            &pass));
    if (numbers) {
        sl_tensor *documents = integer_tensor(c->device, &shape, numbers);
        check_ok(sli_pass_put_input(pass, SL_DOCUMENTS_INPUT, &documents));
    }
    check_ok(sl_module_forward(c->model, pass, in, &out));
    return tensor_values(out);
}

/* Of `rows` rows from `first` on, the positions begin … begin + length - 1. */
static void copy_ids(const drawn_case *c, int64_t first, int64_t rows, int64_t begin,
                     int64_t length, int32_t *to)
{
    for (int64_t n = 0; n < rows; n++)
        memcpy(to + n * length, c->ids + (first + n) * c->length + begin,
               (size_t)length * sizeof *to);
}

static void check_equal(const drawn_case *c, const float *whole, int64_t first, int64_t rows,
                        int64_t begin, int64_t length, const float *part)
{
    for (int64_t n = 0; n < rows; n++)
        assert_memory_equal(part + n * length * TOKENS,
                            whole + ((first + n) * c->length + begin) * TOKENS,
                            (size_t)(length * TOKENS) * sizeof *part);
}

/* ---- What may be beside a row -------------------------------------------------------------- */

/* Some of the batch's rows, and of these the first positions. */
static void check_other_batch(drawn_case *c, const float *whole)
{
    int32_t ids[MOST_ROWS * MOST_LENGTH];
    int64_t first = test_draw(&c->state, 0, (int)c->rows - 1);
    int64_t rows = test_draw(&c->state, 1, (int)(c->rows - first));
    int64_t length =
        test_draw(&c->state, 0, 1) ? c->length : test_draw(&c->state, 1, (int)c->length);
    copy_ids(c, first, rows, 0, length, ids);
    FREED float *part = compute(c, NULL, test_draw(&c->state, 0, 1), rows, length, ids, NULL);
    check_equal(c, whole, first, rows, 0, length, part);
}

/* Rows stand at different positions of their texts; as many more of each come together. */
static void check_cached_parts(drawn_case *c, const float *whole)
{
    int32_t ids[MOST_ROWS * MOST_LENGTH];
    sl_cache *caches[MOST_ROWS];
    for (int64_t n = 0; n < c->rows; n++) {
        int64_t ahead = test_draw(&c->state, 0, (int)c->length - 1);
        check_ok(sl_cache_create(c->model, c->length + test_draw(&c->state, 0, 3), &caches[n]));
        if (ahead == 0)
            continue;
        copy_ids(c, n, 1, 0, ahead, ids);
        FREED float *part = compute(c, caches + n, false, 1, ahead, ids, NULL);
        check_equal(c, whole, n, 1, 0, ahead, part);
        check_ok(sli_cache_advance(caches[n], ahead));
    }
    for (bool ended = false; !ended;) {
        int64_t length = test_draw(&c->state, 1, test_draw(&c->state, 0, 2) ? 3 : MOST_LENGTH);
        for (int64_t n = 0; n < c->rows; n++) {
            int64_t left = c->length - sl_cache_position(caches[n]);
            length = length < left ? length : left;
        }
        for (int64_t n = 0; n < c->rows; n++)
            copy_ids(c, n, 1, sl_cache_position(caches[n]), length, ids + n * length);
        FREED float *part = compute(c, caches, false, c->rows, length, ids, NULL);
        for (int64_t n = 0; n < c->rows; n++) {
            check_equal(c, whole, n, 1, sl_cache_position(caches[n]), length,
                        part + n * length * TOKENS);
            check_ok(sli_cache_advance(caches[n], length));
            ended |= sl_cache_position(caches[n]) == c->length;
        }
    }
    for (int64_t n = 0; n < c->rows; n++)
        sl_cache_destroy(&caches[n]);
}

static void check_slices(drawn_case *c, const float *whole)
{
    int32_t ids[MOST_ROWS * MOST_LENGTH];
    sli_slices *kept;
    sl_pass *passes[MOST_LENGTH];
    int count = 0;
    check_ok(sli_slices_create(c->model, c->length, &kept));
    for (int64_t begin = 0, length; begin < c->length; begin += length, count++) {
        length = test_draw(&c->state, 1, (int)(c->length - begin));
        sl_shape shape = sl_shape_2d(c->rows, length);
        copy_ids(c, 0, c->rows, begin, length, ids);
        SCOPED(sl_tensor) *in = integer_tensor(c->device, &shape, ids), *out = NULL;
        check_ok(sl_pass_create(&(sl_pass_options){.device = c->device,
                                                   .precision = c->precision,
                                                   .keep = true,
                                                   .training = true},
                                &passes[count]));
        sli_pass_begin_slice(passes[count], kept, begin, length);
        check_ok(sl_module_forward(c->model, passes[count], in, &out));
        FREED float *part = tensor_values(out);
        check_equal(c, whole, 0, c->rows, begin, length, part);
    }
    while (count > 0)
        sl_pass_destroy(&passes[--count]);
    sli_slices_destroy(&kept);
}

/* The batch's rows as documents, whose first positions share one row. */
static void check_documents(drawn_case *c, const float *whole)
{
    int32_t ids[MOST_ROWS * MOST_LENGTH], numbers[MOST_ROWS * MOST_LENGTH];
    int64_t lengths[MOST_ROWS], at = 0;
    for (int64_t n = 0; n < c->rows; n++) {
        int64_t most = (MOST_LENGTH - at) / (c->rows - n);
        lengths[n] = test_draw(&c->state, 1, (int)(most < c->length ? most : c->length));
        copy_ids(c, n, 1, 0, lengths[n], ids + at);
        for (int64_t i = 0; i < lengths[n]; i++)
            numbers[at + i] = (int32_t)i;
        at += lengths[n];
    }
    FREED float *packed = compute(c, NULL, false, 1, at, ids, numbers);
    at = 0;
    for (int64_t n = 0; n < c->rows; n++) {
        check_equal(c, whole, n, 1, 0, lengths[n], packed + at * TOKENS);
        at += lengths[n];
    }
}

static void a_row_has_the_same_bits_in_any_batch(void **state)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 10) : 1;
    print_message("seed %u\n", seed);
    for (unsigned i = 0; i < CASES; i++) {
        SCOPED(drawn_case) c;
        draw_case(seed * CASES + i, &c);
        FREED float *whole = compute(&c, NULL, false, c.rows, c.length, c.ids, NULL);
        for (int again = 0; again < 4; again++)
            check_other_batch(&c, whole);
        check_cached_parts(&c, whole);
        check_slices(&c, whole);
        check_documents(&c, whole);
    }
}

/* ---- Products ------------------------------------------------------------------------------ */

enum { PRODUCTS = 24, MOST_SIZE = 1500, MOST_PRODUCT = 700 };

static void *draw_matrix(unsigned *state, int64_t count, bool bf16)
{
    float *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)test_draw(state, -1000, 1000) / 999;
    for (int64_t i = 0; bf16 && i < count; i++)
        ((uint16_t *)(void *)values)[i] = sli_bf16_from_f32(values[i]);
    return values;
}

/* Rows first … of a product, in a random layout, alone and among all. */
static void check_product(sl_device *device, unsigned *state)
{
    int64_t m = test_draw(state, 1, MOST_PRODUCT), n = test_draw(state, 1, 400);
    int64_t k = test_draw(state, 1, MOST_SIZE), lda = k + test_draw(state, 0, 5);
    int64_t first = test_draw(state, 0, (int)m - 1), rows = test_draw(state, 1, (int)(m - first));
    bool bf16 = test_draw(state, 0, 1), transposed = test_draw(state, 0, 1);
    void *a = draw_matrix(state, m * lda, bf16), *b = draw_matrix(state, n * k, bf16);
    float *c = calloc((size_t)(m * n), sizeof *c);
    FREED float *part = calloc((size_t)(rows * n), sizeof *part);
    assert_true(c && part);
    sli_gemm gemm = {.transpose_b = transposed,
                     .bf16 = bf16,
                     .is_forward = true,
                     .m = m,
                     .n = n,
                     .k = k,
                     .a = a,
                     .lda = lda,
                     .b = b,
                     .ldb = transposed ? k : n,
                     .beta = (float)test_draw(state, 0, 1),
                     .c = c,
                     .ldc = n,
                     .activation = (sli_activation)test_draw(state, 0, 3)};
    check_ok(sli_device_gemm(device, &gemm));
    size_t element = bf16 ? sizeof(uint16_t) : sizeof(float);
    FREED char *dense = malloc((size_t)(rows * k) * element);
    assert_non_null(dense);
    for (int64_t i = 0; i < rows; i++)
        memcpy(dense + (size_t)(i * k) * element,
               (const char *)a + (size_t)((first + i) * lda) * element, (size_t)k * element);
    gemm.m = rows;
    gemm.a = dense;
    gemm.lda = k;
    gemm.c = part;
    check_ok(sli_device_gemm(device, &gemm));
    assert_memory_equal(part, c + first * n, (size_t)(rows * n) * sizeof *part);
    free(a);
    free(b);
    free(c);
}

static void a_row_of_a_product_has_the_same_bits_alone(void **state)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 10) : 1;
    print_message("seed %u\n", seed);
    for (unsigned i = 0; i < PRODUCTS; i++) {
        unsigned drawn = seed * PRODUCTS + i;
        SCOPED(sl_device) *device = draw_device(&drawn);
        check_product(device, &drawn);
    }
}

int rows_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_the_same_bits_in_any_batch),
        cmocka_unit_test(a_row_of_a_product_has_the_same_bits_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
