#include "nn/module.h"
#include "sluice/model.h"
#include "support/modules.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, LENGTH = 70, TOKENS = 13, WIDTH = 8 }; /* longer than a block of attention */

static sl_module *language_model(int variant, sl_mask mask)
{
    sl_module *model;
    check_ok(sl_transformer_lm_create(
        &(sl_model_options){.ntokens = TOKENS,
                            .emsize = WIDTH,
                            .nhid = 12,
                            .nlayers = 2,
                            .nhead = 2,
                            .dropout = 0.1f,
                            .mask = mask,
                            .pre_norm = variant & 1,
                            .activation = variant & 2 ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU},
        &model));
    return model;
}

/* Columns first … first + count - 1 of random ids [ROWS, LENGTH]. */
static sl_tensor *ids_at(sl_device *device, int64_t first, int64_t count)
{
    int32_t values[ROWS * LENGTH];
    sl_shape shape = sl_shape_2d(ROWS, count);
    for (int64_t n = 0; n < ROWS; n++)
        for (int64_t t = 0; t < count; t++)
            values[n * count + t] = (int32_t)((n * 7 + (first + t) * (first + t) * 5) % TOKENS);
    return integer_tensor(device, &shape, values);
}

static sl_status run_forward(sl_module *model, sl_device *device, sl_cache *cache,
                             sl_precision precision, int64_t first, int64_t count, sl_tensor **out)
{
    SCOPED(sl_tensor) *ids = ids_at(device, first, count);
    SCOPED(sl_pass) *pass = NULL;
    check_ok(
        sl_pass_create(&(sl_pass_options){.device = device, .precision = precision, .cache = cache},
                       &pass));
    return sl_module_forward(model, pass, ids, out);
}

/* The text in parts of these lengths gives the logits of the whole. */
static void check_parts(sl_module *model, sl_precision precision, double tolerance,
                        const int64_t *parts, int count)
{
    SCOPED(sl_device) *device = new_device(2);
    sl_tensor *part;
    SCOPED(sl_parameter_set) *set = random_parameters(model, device);
    SCOPED(sl_cache) *cache = NULL;
    SCOPED(sl_tensor) *whole = NULL;
    check_ok(sl_cache_create(model, LENGTH, &cache));
    check_ok(run_forward(model, device, NULL, precision, 0, LENGTH, &whole));
    for (int i = 0; i < count; i++) {
        int64_t first = sl_cache_position(cache);
        check_ok(run_forward(model, device, cache, precision, first, parts[i], &part));
        check_ok(sli_cache_advance(cache, parts[i]));
        for (int64_t n = 0; n < ROWS; n++)
            assert_true(relative_distance(sl_tensor_f32(part) + n * parts[i] * TOKENS,
                                          sl_tensor_f32(whole) + (n * LENGTH + first) * TOKENS,
                                          parts[i] * TOKENS) < tolerance);
        sl_tensor_destroy(&part);
    }
    assert_int_equal(sl_cache_position(cache), LENGTH);
    check_error(run_forward(model, device, cache, precision, 0, 1, &part), SL_ERR_INVALID,
                "the cache has 70 of 70 positions, so 1 more do not fit");
}

static void text_in_parts_has_the_logits_of_the_whole(void **state)
{
    static const int64_t parts[] = {3, 1, 1, 40, 1, 20, 1, 1, 1, 1};
    for (int variant = 0; variant < 4; variant++) {
        SCOPED(sl_module) *model = language_model(variant, SL_MASK_CAUSAL);
        assert_true(sl_module_can_continue(model));
        check_parts(model, SL_PRECISION_F32, 2e-6, parts, sizeof parts / sizeof *parts);
        check_parts(model, SL_PRECISION_BF16, 2e-2, parts, sizeof parts / sizeof *parts);
        check_parts(model, SL_PRECISION_F32, 0x1p-60, (int64_t[]){LENGTH}, 1);
    }
}

static void what_a_cache_cannot_do_is_refused(void **state)
{
    sl_device *device = new_device(1);
    sl_cache *cache;
    sl_pass *pass;
    sl_tensor *out;
    sl_module *model = language_model(0, SL_MASK_NONE);
    check_error(sl_cache_create(model, 0, &cache), SL_ERR_INVALID, "at least 1 position, got 0");
    check_ok(sl_cache_create(model, 4, &cache));
    assert_false(sl_module_can_continue(model));
    check_error(run_forward(model, device, cache, SL_PRECISION_F32, 0, 1, &out), SL_ERR_UNSUPPORTED,
                "cannot run on a pass with a cache");
    check_error(sl_pass_create(&(sl_pass_options){.device = device, .keep = true, .cache = cache},
                               &pass),
                SL_ERR_INVALID, "a pass with a cache is for evaluation without backward");
    check_error(sli_cache_advance(cache, 5), SL_ERR_INVALID, "has 0 of 4 positions");
    check_error(sli_cache_advance(cache, -1), SL_ERR_INVALID, "must not be negative, got -1");
    assert_int_equal(sl_cache_position(cache), 0);
    sl_cache_destroy(&cache);
    sl_cache_destroy(&cache);
    sl_module_destroy(&model);
    sl_device_destroy(&device);
}

int cache_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_in_parts_has_the_logits_of_the_whole),
        cmocka_unit_test(what_a_cache_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
