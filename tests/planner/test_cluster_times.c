/* How long a cluster's devices compute, and what jitter adds to that. */
#include "nn/module.h"
#include "planner/cluster.h"
#include "sluice/model.h"

#include "support/check.h"

#include <math.h>

/* The largest of two draws of a normal distribution is expected at 1 / sqrt(pi). */
static void jitter_is_that_of_the_slowest(void **state)
{
    const sli_cluster none = {0}, some = {.spread = 0.1};
    assert_float_equal(sli_cluster_jitter(&none, 1000, 1000), 1, 0);
    assert_float_equal(sli_cluster_jitter(&some, 1, 1), 1, 1e-6);
    assert_float_equal(sli_cluster_jitter(&some, 2, 2), 1 + 0.1 / sqrt(M_PI), 1e-6);
    /* Of two nodes with one chance in ten each, one is slow 19 times of 100. */
    const sli_cluster slow = {.slow_nodes = 0.1, .slow_factor = 2};
    assert_float_equal(sli_cluster_jitter(&slow, 16, 2), 1.19, 1e-12);
    assert_true(sli_cluster_jitter(&some, 1000, 1000) > 1.32 &&
                sli_cluster_jitter(&some, 1000, 1000) < 1.33);
}

/* ---- What is read and computed -------------------------------------------------------------- */

enum { VOCABULARY = 1000, WIDTH = 64, ROWS = 2, TIME = 16 };

static sl_module *make_wide_model(void)
{
    const sl_model_options options = {.ntokens = VOCABULARY,
                                      .emsize = WIDTH,
                                      .nhid = WIDTH,
                                      .nhead = 2,
                                      .nlayers = 2,
                                      .context = TIME};
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options, &model));
    return model;
}

/* Bytes that a pass reads and writes, where a device's memory moves one a second. */
static void memory_moves_what_a_pass_uses(void **state)
{
    static const sli_node_kind kind = {.flops = {1e18, 1e18, 1e18},
                                       .memory_bytes_per_s = 1,
                                       .curve = {{1, 1}},
                                       .points = 1};
    SCOPED(sl_module) *model = make_wide_model();
    sl_module_profile f32[4], bf16[4];
    const sl_module *decoder = sl_module_child(model, 3);
    const double rows = ROWS * TIME;
    const sl_shape in = sl_shape_3d(ROWS, TIME, WIDTH);
    double saved = (double)sl_module_saved_bytes(decoder, &in);
    check_ok(sli_cluster_time_modules(&kind, model, SL_PRECISION_F32, ROWS, TIME, f32));
    check_ok(sli_cluster_time_modules(&kind, model, SL_PRECISION_BF16, ROWS, TIME, bf16));
    assert_true(f32[0].forward < 4 * rows * (4 * WIDTH) + 1);
    assert_float_equal(f32[3].backward_weight,
                       4 * (VOCABULARY * (WIDTH + 1) + rows * (WIDTH + VOCABULARY)) + saved, 1);
    assert_float_equal(bf16[3].backward_weight,
                       2 * (VOCABULARY * WIDTH + rows * (WIDTH + VOCABULARY)) + 4 * VOCABULARY +
                           saved / 2,
                       1);
}

/* Of a byte of gradients: AdamW's averages in bf16 are half the bytes, but have to be rounded at
 * random, which slow devices take longer for than for moving them. */
static void update_moves_bytes_or_rounds_averages(void **state)
{
    const sl_optimizer_options f32 = {.kind = SL_OPTIMIZER_ADAMW},
                               bf16 = {.kind = SL_OPTIMIZER_ADAMW, .precision = SL_PRECISION_BF16};
    assert_float_equal(sli_cluster_time_update(2, 1e18, &f32), 4, 1e-9);
    assert_float_equal(sli_cluster_time_update(2, 1e18, &bf16), 3, 1e-9);
    assert_float_equal(sli_cluster_time_update(2, 1, &f32), 4, 1e-9);
    double slow = sli_cluster_time_update(1e18, 1, &bf16);
    assert_true(slow > 4);
    assert_float_equal(sli_cluster_time_update(2, 1, &bf16), slow, 1e-9);
    assert_float_equal(sli_cluster_time_update(1e18, 2, &bf16), slow / 2, 1e-9);
}

/* A frozen weight gets no gradient: of a layer's backward the input's half stays, and no more of
 * the other one than what is trained. */
static void frozen_weights_have_no_half(void **state)
{
    static const sli_node_kind kind = {.flops = {1e9, 1e9, 1e9},
                                       .memory_bytes_per_s = 1e15,
                                       .curve = {{1, 1}},
                                       .points = 1};
    SCOPED(sl_module) *whole = make_wide_model();
    SCOPED(sl_module) *frozen = make_wide_model();
    sl_module_profile all[4], some[4];
    const double linear1 = 2.0 * ROWS * TIME * WIDTH * WIDTH / 1e9;
    check_ok(sl_module_freeze(sl_module_child(frozen, 1)));
    check_ok(sli_module_freeze_named(frozen, "*linear1*"));
    check_ok(sli_cluster_time_modules(&kind, whole, SL_PRECISION_F32, ROWS, TIME, all));
    check_ok(sli_cluster_time_modules(&kind, frozen, SL_PRECISION_F32, ROWS, TIME, some));
    for (int i = 1; i < 4; i++) {
        assert_float_equal(some[i].forward, all[i].forward, 1e-12);
        assert_float_equal(some[i].backward_input, all[i].backward_input, 1e-12);
        assert_float_equal(all[i].forward + all[i].backward,
                           i < 3 ? 3 * all[i].forward
                                 : 3 * 2.0 * ROWS * TIME * WIDTH * VOCABULARY / 1e9,
                           1e-9);
    }
    assert_float_equal(some[1].backward_weight, 0, 0);
    assert_float_equal(some[1].backward, some[1].backward_input, 1e-12);
    assert_float_equal(some[2].backward_weight, all[2].backward_weight - linear1, 1e-12);
    assert_float_equal(some[3].backward_weight, all[3].backward_weight, 1e-12);
}

/* The last module's FLOP are a quarter of the way from one point to the other, by their logarithm.
 */
static void efficiency_between_two_points_is_in_proportion(void **state)
{
    const double flop = 2.0 * ROWS * TIME * WIDTH * VOCABULARY;
    const sli_node_kind kind = {.flops = {1e9, 1e9, 1e9},
                                .memory_bytes_per_s = 1e15,
                                .curve = {{flop / 10, 0.2}, {flop * 1000, 0.6}},
                                .points = 2};
    SCOPED(sl_module) *model = make_wide_model();
    sl_module_profile times[4];
    check_ok(sli_cluster_time_modules(&kind, model, SL_PRECISION_F32, ROWS, TIME, times));
    assert_float_equal(times[3].backward, 3 * flop / (0.3 * 1e9), 1e-12);
}

int cluster_times_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jitter_is_that_of_the_slowest),
        cmocka_unit_test(memory_moves_what_a_pass_uses),
        cmocka_unit_test(update_moves_bytes_or_rounds_averages),
        cmocka_unit_test(frozen_weights_have_no_half),
        cmocka_unit_test(efficiency_between_two_points_is_in_proportion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
