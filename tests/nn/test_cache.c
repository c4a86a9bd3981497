#include "models/decoder_lm.h"
#include "nn/module.h"
#include "sluice/model.h"
#include "support/modules.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, LENGTH = 70, TOKENS = 13, WIDTH = 8 }; /* longer than a block of attention */
enum { LAYERS = 2, HEADS = 4, KEY_HEADS = 2, HEAD_WIDTH = 8 };

static sl_module *decoder(void)
{
    sl_module *model;
    check_ok(sli_decoder_lm_create(&(sli_decoder_lm){.layer = {.naming = SL_NAMING_LLAMA,
                                                               .width = HEADS * HEAD_WIDTH,
                                                               .heads = HEADS,
                                                               .feed_forward = 24,
                                                               .key_heads = KEY_HEADS,
                                                               .rotary = {.kind = SL_ROTARY_DEFAULT,
                                                                          .theta = 1e4}},
                                                     .ntokens = TOKENS,
                                                     .nlayers = LAYERS,
                                                     .positions = LENGTH},
                                   &model));
    return model;
}

/* The ids of row `row` from position `first` on. */
static sl_tensor *ids_of(sl_device *device, int row, int64_t first, int64_t count)
{
    int32_t values[LENGTH];
    sl_shape shape = sl_shape_2d(1, count);
    for (int64_t t = 0; t < count; t++)
        values[t] = (int32_t)((row * 7 + (first + t) * (first + t) * 5) % TOKENS);
    return integer_tensor(device, &shape, values);
}

static sl_status run_forward(sl_module *model, sl_device *device, sl_cache *const *caches,
                             sl_precision precision, const sl_tensor *ids, sl_tensor **out)
{
    SCOPED(sl_pass) *pass = NULL;
    check_ok(sl_pass_create(
        &(sl_pass_options){.device = device, .precision = precision, .caches = caches}, &pass));
    return sl_module_forward(model, pass, ids, out);
}

/* Each row's logits for its whole text. */
static void run_whole(sl_module *model, sl_device *device, sl_precision precision,
                      sl_tensor *out[ROWS])
{
    for (int row = 0; row < ROWS; row++) {
        SCOPED(sl_tensor) *ids = ids_of(device, row, 0, LENGTH);
        check_ok(run_forward(model, device, NULL, precision, ids, &out[row]));
    }
}

static void check_logits(const sl_tensor *part, int64_t index, const sl_tensor *whole,
                         int64_t first, int64_t count, double tolerance)
{
    assert_true(relative_distance(sl_tensor_f32(part) + index * count * TOKENS,
                                  sl_tensor_f32(whole) + first * TOKENS,
                                  count * TOKENS) < tolerance);
}

/* Row 1 stands `ahead` positions before row 0: their next positions go through the model together.
 */
static void check_parts(sl_module *model, sl_precision precision, double tolerance, int64_t ahead,
                        const int64_t *parts, int count)
{
    SCOPED(sl_device) *device = new_device(2);
    SCOPED(sl_parameter_set) *set = random_parameters(model, device);
    sl_tensor *part, *whole[ROWS];
    sl_cache *caches[ROWS];
    run_whole(model, device, precision, whole);
    for (int row = 0; row < ROWS; row++)
        check_ok(sl_cache_create(model, LENGTH, &caches[row]));
    if (ahead > 0) {
        SCOPED(sl_tensor) *ids = ids_of(device, 1, 0, ahead);
        check_ok(run_forward(model, device, caches + 1, precision, ids, &part));
        check_logits(part, 0, whole[1], 0, ahead, tolerance);
        check_ok(sli_cache_advance(caches[1], ahead));
        sl_tensor_destroy(&part);
    }
    for (int i = 0; i < count; i++) {
        sl_shape shape = sl_shape_2d(ROWS, parts[i]);
        int32_t values[ROWS * LENGTH];
        for (int row = 0; row < ROWS; row++) {
            SCOPED(sl_tensor) *ids = ids_of(device, row, sl_cache_position(caches[row]), parts[i]);
            memcpy(values + row * parts[i], sl_tensor_i32(ids), (size_t)parts[i] * sizeof *values);
        }
        SCOPED(sl_tensor) *ids = integer_tensor(device, &shape, values);
        check_ok(run_forward(model, device, caches, precision, ids, &part));
        for (int row = 0; row < ROWS; row++) {
            check_logits(part, row, whole[row], sl_cache_position(caches[row]), parts[i],
                         tolerance);
            check_ok(sli_cache_advance(caches[row], parts[i]));
        }
        sl_tensor_destroy(&part);
    }
    assert_int_equal(sl_cache_position(caches[1]), LENGTH);
    SCOPED(sl_tensor) *ids = ids_of(device, 1, 0, 1);
    check_error(run_forward(model, device, caches + 1, precision, ids, &part), SL_ERR_INVALID,
                "the cache has 70 of 70 positions, so 1 more do not fit");
    for (int row = 0; row < ROWS; row++) {
        sl_cache_destroy(&caches[row]);
        sl_tensor_destroy(&whole[row]);
    }
}

static void text_in_parts_has_the_logits_of_the_whole(void **state)
{
    static const int64_t parts[] = {3, 1, 1, 40, 1, 20, 1, 1, 1, 1};
    static const int64_t ahead[] = {30, 1, 1, 20, 1};
    for (int variant = 0; variant < 4; variant++) {
        SCOPED(sl_module) *model = new_language_model(TOKENS, WIDTH, variant, SL_MASK_CAUSAL);
        assert_true(sl_module_can_continue(model));
        check_parts(model, SL_PRECISION_F32, 2e-6, 0, parts, sizeof parts / sizeof *parts);
        check_parts(model, SL_PRECISION_F32, 2e-6, 17, ahead, sizeof ahead / sizeof *ahead);
        check_parts(model, SL_PRECISION_BF16, 2e-2, 0, parts, sizeof parts / sizeof *parts);
        check_parts(model, SL_PRECISION_BF16, 2e-2, 17, ahead, sizeof ahead / sizeof *ahead);
        check_parts(model, SL_PRECISION_F32, 0x1p-60, LENGTH, NULL, 0);
    }
}

/* A decoder with rotary positions, and heads that share keys. */
static void decoder_in_parts_has_the_logits_of_the_whole(void **state)
{
    static const int64_t ahead[] = {30, 1, 1, 20, 1};
    SCOPED(sl_module) *model = decoder();
    check_parts(model, SL_PRECISION_F32, 2e-6, 17, ahead, sizeof ahead / sizeof *ahead);
    check_parts(model, SL_PRECISION_BF16, 2e-2, 17, ahead, sizeof ahead / sizeof *ahead);
}

static uint64_t bytes_of_cache(sl_precision precision)
{
    SCOPED(sl_module) *model = decoder();
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_parameter_set) *set = random_parameters(model, device);
    SCOPED(sl_cache) *cache = NULL;
    SCOPED(sl_tensor) *ids = ids_of(device, 0, 0, 1);
    sl_tensor *out;
    check_ok(sl_cache_create(model, LENGTH, &cache));
    check_ok(run_forward(model, device, &cache, precision, ids, &out));
    sl_tensor_destroy(&out);
    sl_tensor_destroy(&ids);
    sl_memory_stats stats;
    sl_device_memory(device, &stats);
    return stats.current_bytes[SL_MEMORY_ACTIVATIONS];
}

static void cache_has_keys_and_values_alone_in_the_precision_of_the_pass(void **state)
{
    enum { KEPT = 2 * KEY_HEADS * HEAD_WIDTH };
    assert_int_equal(bytes_of_cache(SL_PRECISION_F32), LAYERS * LENGTH * KEPT * 4);
    assert_int_equal(bytes_of_cache(SL_PRECISION_BF16), LAYERS * LENGTH * KEPT * 2);
}

static void what_a_cache_cannot_do_is_refused(void **state)
{
    sl_device *device = new_device(1);
    sl_cache *cache;
    sl_pass *pass;
    sl_tensor *out, *ids = ids_of(device, 0, 0, 1);
    sl_module *model = new_language_model(TOKENS, WIDTH, 0, SL_MASK_NONE);
    check_error(sl_cache_create(model, 0, &cache), SL_ERR_INVALID, "at least 1 position, got 0");
    check_ok(sl_cache_create(model, 4, &cache));
    assert_false(sl_module_can_continue(model));
    check_error(run_forward(model, device, &cache, SL_PRECISION_F32, ids, &out), SL_ERR_UNSUPPORTED,
                "cannot run on a pass with a cache");
    check_error(sl_pass_create(&(sl_pass_options){.device = device, .keep = true, .caches = &cache},
                               &pass),
                SL_ERR_INVALID, "a pass with a cache is for evaluation without backward");
    check_error(sli_cache_advance(cache, 5), SL_ERR_INVALID, "has 0 of 4 positions");
    check_error(sli_cache_advance(cache, -1), SL_ERR_INVALID, "must not be negative, got -1");
    assert_int_equal(sl_cache_position(cache), 0);
    sl_cache_destroy(&cache);
    sl_cache_destroy(&cache);
    sl_tensor_destroy(&ids);
    sl_module_destroy(&model);
    sl_device_destroy(&device);
}

int cache_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_in_parts_has_the_logits_of_the_whole),
        cmocka_unit_test(decoder_in_parts_has_the_logits_of_the_whole),
        cmocka_unit_test(cache_has_keys_and_values_alone_in_the_precision_of_the_pass),
        cmocka_unit_test(what_a_cache_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
