/* Modules that go forward over slices of rows, and backward in reverse, as they go over whole rows:
 * dropout's masks are those of the whole rows, and the sums differ by rounding alone. */
#include "nn/module.h"
#include "sluice/model.h"
#include "support/modules.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, LENGTH = 70, TOKENS = 13, WIDTH = 8 }; /* longer than a block of attention */

/* A step of one micro-batch. */
typedef struct run {
    sl_module *model;
    sl_device *device;
    sl_parameter_set *set;
    sl_precision precision;
    bool splits; /* backward has two halves */
} run;

static sl_pass *new_pass(const run *r)
{
    sl_pass *pass;
    check_ok(sl_pass_create(&(sl_pass_options){.device = r->device,
                                               .training = true,
                                               .keep = true,
                                               .precision = r->precision,
                                               .seed = 5,
                                               .step = 6,
                                               .first_sample = 3},
                            &pass));
    return pass;
}

static sl_tensor *ids_at(sl_device *device, int64_t first, int64_t end)
{
    int32_t values[ROWS * LENGTH], *to = values;
    sl_shape shape = sl_shape_2d(ROWS, end - first);
    for (int64_t n = 0; n < ROWS; n++)
        for (int64_t t = first; t < end; t++)
            *to++ = (int32_t)((n * 7 + t * t * 5) % TOKENS);
    return integer_tensor(device, &shape, values);
}

/* Of the logits, a function of row, position and class. */
static sl_tensor *gradient_at(sl_device *device, int64_t first, int64_t end)
{
    float values[ROWS * LENGTH * TOKENS], *to = values;
    sl_shape shape = sl_shape_3d(ROWS, end - first, TOKENS);
    for (int64_t n = 0; n < ROWS; n++)
        for (int64_t i = first * TOKENS; i < end * TOKENS; i++)
            *to++ = (float)((n * 911 + i * i) % 1009) / 1009 - 0.5f;
    return float_tensor(device, &shape, values);
}

static void go_backward(const run *r, sl_pass *pass, int64_t first, int64_t end)
{
    SCOPED(sl_tensor) *grad = gradient_at(r->device, first, end);
    if (r->splits) {
        check_ok(sli_module_backward_input(r->model, pass, grad, NULL));
        check_ok(sli_module_backward_weight(r->model, pass));
        check_ok(sli_module_sum_tied(r->model));
    } else {
        check_ok(sl_module_backward(r->model, pass, grad, NULL));
    }
    assert_int_equal(sli_pass_depth(pass), 0);
    assert_int_equal(sli_pass_deferred(pass), 0);
}

/* Of all parameters, one after the other; malloc'ed. */
static float *read_gradients(const run *r, int64_t *count)
{
    float *all = NULL;
    *count = 0;
    for (int i = 0; i < sl_parameter_set_count(r->set); i++) {
        sl_parameter *parameter = sl_parameter_set_get(r->set, i);
        if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
            continue;
        FREED float *own = tensor_values(gradient_of(parameter));
        int64_t own_count = sl_shape_count(sl_parameter_shape(parameter));
        all = realloc(all, (size_t)(*count + own_count) * sizeof *all);
        assert_non_null(all);
        memcpy(all + *count, own, (size_t)own_count * sizeof *all);
        *count += own_count;
    }
    return all;
}

/* The logits [ROWS, LENGTH, TOKENS] of whole rows. */
static void run_whole(const run *r, float *logits)
{
    SCOPED(sl_pass) *pass = new_pass(r);
    SCOPED(sl_tensor) *ids = ids_at(r->device, 0, LENGTH), *out = NULL;
    check_ok(sl_module_forward(r->model, pass, ids, &out));
    memcpy(logits, sl_tensor_f32(out), sizeof(float[ROWS][LENGTH][TOKENS]));
    go_backward(r, pass, 0, LENGTH);
}

/* Slice k has positions cuts[k] … cuts[k + 1] - 1. */
static void run_slices(const run *r, const int64_t *cuts, int slices, float *logits)
{
    sl_pass *passes[8];
    sli_slices *kept;
    check_ok(sli_slices_create(r->model, LENGTH, &kept));
    for (int k = 0; k < slices; k++) {
        SCOPED(sl_tensor) *ids = ids_at(r->device, cuts[k], cuts[k + 1]), *out = NULL;
        int64_t length = cuts[k + 1] - cuts[k];
        passes[k] = new_pass(r);
        sli_pass_begin_slice(passes[k], kept, cuts[k], length);
        check_ok(sl_module_forward(r->model, passes[k], ids, &out));
        for (int64_t n = 0; n < ROWS; n++)
            memcpy(logits + (n * LENGTH + cuts[k]) * TOKENS,
                   sl_tensor_f32(out) + n * length * TOKENS,
                   (size_t)(length * TOKENS) * sizeof(float));
    }
    for (int k = slices - 1; k >= 0; k--) {
        go_backward(r, passes[k], cuts[k], cuts[k + 1]);
        sl_pass_destroy(&passes[k]);
    }
    sli_slices_destroy(&kept);
}

static void check_slices(sl_module *model, sl_precision precision, bool splits, double tolerance)
{
    static const int64_t cuts[][6] = {{0, 70}, {0, 35, 70}, {0, 23, 46, 70}, {0, 1, 5, 66, 69, 70}};
    static const int counts[] = {1, 2, 3, 5};
    static float whole[ROWS * LENGTH * TOKENS], sliced[ROWS * LENGTH * TOKENS];
    SCOPED(sl_device) *device = new_device(2);
    SCOPED(sl_parameter_set) *set = random_parameters(model, device);
    const run r = {model, device, set, precision, splits};
    int64_t count, other;
    run_whole(&r, whole);
    FREED float *expected = read_gradients(&r, &count);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        sl_parameter_set_zero_grad(set);
        run_slices(&r, cuts[i], counts[i], sliced);
        FREED float *got = read_gradients(&r, &other);
        double out_error = relative_distance(sliced, whole, ROWS * LENGTH * TOKENS);
        double error = relative_distance(got, expected, count);
        assert_int_equal(other, count);
        if (!(out_error < tolerance) || !(error < tolerance))
            fail_msg("%d slices: logits differ by %g, gradients by %g (limit %g)", counts[i],
                     out_error, error, tolerance);
    }
}

static void the_tutorials_layers_train_over_slices(void **state)
{
    for (int variant = 0; variant < 4; variant++) {
        SCOPED(sl_module) *model = new_language_model(TOKENS, WIDTH, variant, SL_MASK_CAUSAL);
        check_slices(model, SL_PRECISION_F32, variant == 3, 5e-6);
        check_slices(model, SL_PRECISION_BF16, variant == 2, 3e-2);
    }
}

/* Grouped heads, rotary and learned positions, norms of heads, ties. */
static void decoders_train_over_slices(void **state)
{
    unsigned seed = test_seed(20261128);
    for (int round = 0; round < test_rounds(24); round++) {
        sl_model_options options = draw_decoder(&seed, 2, TOKENS, LENGTH);
        SCOPED(sl_module) *model = NULL;
        check_ok(sl_transformer_lm_create(&options, &model));
        check_slices(model, SL_PRECISION_F32, round % 2, 2e-5);
        if (round % 4 == 0)
            check_slices(model, SL_PRECISION_BF16, round % 8, 5e-2);
    }
}

/* A module that keeps a cache of its own and knows nothing of slices. */
static sl_status remember(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    sl_tensor *all;
    SL_TRY(sl_pass_cache_tensor(pass, module, in, 0, 1, &all));
    return sl_tensor_alias(in, out);
}

static bool always(const sl_module *module)
{
    return true;
}

static void caches_that_know_no_slices_are_refused(void **state)
{
    static const sl_module_ops ops = {.type = "Memory",
                                      .forward = remember,
                                      .can_continue = always};
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    sli_slices *kept;
    SCOPED(sl_pass) *pass = NULL;
    sl_shape shape = sl_shape_3d(1, 2, 1);
    SCOPED(sl_tensor) *in = random_tensor(device, &shape, 1), *out = NULL;
    check_ok(sl_module_create(&ops, NULL, &module));
    check_ok(sli_slices_create(module, 4, &kept));
    check_ok(sl_pass_create(&(sl_pass_options){.device = device, .keep = true}, &pass));
    sli_pass_begin_slice(pass, kept, 0, 2);
    check_error(sl_module_forward(module, pass, in, &out), SL_ERR_UNSUPPORTED,
                "sl_pass_cache_tensor: on a pass over a slice of rows a module has no cache");
    sli_slices_destroy(&kept);
}

/* Two layers' queries, keys and values of ROWS rows, in f32. */
static void bytes_of_slices_are_those_of_queries_keys_and_values(void **state)
{
    SCOPED(sl_module) *model = new_language_model(TOKENS, WIDTH, 0, SL_MASK_CAUSAL);
    assert_int_equal(sli_module_slice_bytes(model, ROWS, LENGTH),
                     2 * ROWS * LENGTH * 3 * WIDTH * sizeof(float));
}

int slices_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tutorials_layers_train_over_slices),
        cmocka_unit_test(decoders_train_over_slices),
        cmocka_unit_test(caches_that_know_no_slices_are_refused),
        cmocka_unit_test(bytes_of_slices_are_those_of_queries_keys_and_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
