#include "sluice/layers.h"
#include "support/modules.h"

#include <math.h>

static void gradients_match_differences(void **state)
{
    for (int i = 0; i < 4; i++) {
        bool training = i & 1, learned = i & 2;
        sl_embedding_options options = {.ntokens = 5,
                                        .width = learned ? 3 : 4,
                                        .max_len = 6,
                                        .dropout = 0.3f,
                                        .learned_positions = learned};
        SCOPED(sl_module) *module = NULL;
        check_ok(sl_embedding_create(&options, &module));
        /* Ids repeat, and one is never looked up. */
        module_case one = {.module = module,
                           .in = sl_shape_2d(3, 6),
                           .id_count = 4,
                           .training = training};
        check_module(&one);
        check_samples_are_independent(&one);
    }
}

typedef struct bench {
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
    sl_pass *pass;
} bench;

static bench bench_open(const sl_embedding_options *embedding)
{
    bench one;
    check_ok(sl_device_create_cpu(1, &one.device));
    check_ok(sl_embedding_create(embedding, &one.module));
    sl_parameter_set_options options = {.device = one.device};
    check_ok(sl_parameter_set_create(one.module, 0, 0, &options, &one.set));
    sl_pass_options pass_options = {.device = one.device, .keep = true};
    check_ok(sl_pass_create(&pass_options, &one.pass));
    return one;
}

static void bench_destroy(bench *one)
{
    sl_pass_destroy(&one->pass);
    sl_parameter_set_destroy(&one->set);
    sl_module_destroy(&one->module);
    sl_device_destroy(&one->device);
}

static void positions_are_sines_and_cosines(void **state)
{
    sl_embedding_options options = {.ntokens = 5, .width = 4};
    SCOPED(bench) one = bench_open(&options);
    sl_parameter *pe = sl_parameter_set_get(one.set, 0);
    assert_string_equal(sl_parameter_name(pe), "pos_encoder.pe");
    const sl_shape expected_shape = sl_shape_3d(5000, 1, 4);
    assert_true(sl_shape_equal(sl_parameter_shape(pe), &expected_shape));
    const float *values = sl_tensor_f32(sl_parameter_value(pe));
    const double rows[2][4] = {{0, 1, 0, 1}, {.841471, .540302, .00999983, .99995}};
    for (int row = 0; row < 2; row++)
        for (int i = 0; i < 4; i++)
            assert_float_equal(values[4 * row + i], rows[row][i], 1e-6);
    assert_float_equal(values[4 * 4999], sin(4999.0), 1e-6);
}

static void output_is_scaled_embedding_plus_position(void **state)
{
    sl_embedding_options options = {.ntokens = 5, .width = 4};
    SCOPED(bench) one = bench_open(&options);
    const float *pe = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(one.set, 0)));
    assert_string_equal(sl_parameter_name(sl_parameter_set_get(one.set, 1)), "encoder.weight");
    const float *table = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(one.set, 1)));
    for (int i = 0; i < 20; i++)
        assert_true(fabsf(table[i]) <= 0.1f);
    sl_shape shape = sl_shape_2d(2, 2);
    const int32_t ids[] = {4, 0, 2, 2};
    SCOPED(sl_tensor) *in = integer_tensor(one.device, &shape, ids), *out = NULL;
    check_ok(sl_module_forward(one.module, one.pass, in, &out));
    for (int row = 0; row < 4; row++)
        for (int i = 0; i < 4; i++)
            assert_float_equal(sl_tensor_f32(out)[4 * row + i],
                               2.0f * table[4 * ids[row] + i] + pe[4 * (row % 2) + i], 1e-6);
}

static void learned_positions_are_a_second_table(void **state)
{
    enum { NTOKENS = 40, WIDTH = 25, POSITIONS = 30 };
    sl_embedding_options options = {.ntokens = NTOKENS,
                                    .width = WIDTH,
                                    .max_len = POSITIONS,
                                    .learned_positions = true};
    SCOPED(bench) one = bench_open(&options);
    static const char *const names[] = {"wte.weight", "wpe.weight"};
    const int64_t rows[] = {NTOKENS, POSITIONS};
    assert_int_equal(sl_parameter_set_count(one.set), 2);
    for (int i = 0; i < 2; i++) {
        sl_parameter *table = sl_parameter_set_get(one.set, i);
        const sl_shape shape = sl_shape_2d(rows[i], WIDTH);
        assert_string_equal(sl_parameter_name(table), names[i]);
        assert_int_equal(sl_parameter_get_kind(table), SL_PARAMETER_TRAINED);
        assert_true(sl_shape_equal(sl_parameter_shape(table), &shape));
        const float *values = sl_tensor_f32(sl_parameter_value(table));
        double sum = 0, squares = 0, count = (double)(rows[i] * WIDTH);
        for (int64_t k = 0; k < rows[i] * WIDTH; k++) {
            sum += values[k];
            squares += (double)values[k] * values[k];
        }
        assert_float_equal(sum / count, 0, 4 * 0.02 / sqrt(count));
        assert_float_equal(sqrt(squares / count), 0.02, 4 * 0.02 / sqrt(2 * count));
    }
}

static sl_device *new_frozen_learned(bool freezes_tokens, sl_module **module,
                                     sl_parameter_set **set)
{
    sl_device *device = new_device(1);
    check_ok(sl_embedding_create(
        &(sl_embedding_options){.ntokens = 5, .width = 3, .max_len = 4, .learned_positions = true},
        module));
    check_ok(sl_module_freeze(sl_module_child(*module, freezes_tokens ? 0 : 1)));
    *set = random_parameters(*module, device);
    return device;
}

/* The other table is trained as it is beside a trained one. */
static void one_of_two_tables_may_be_frozen(void **state)
{
    for (int frozen = 0; frozen < 2; frozen++) {
        sl_module *module;
        sl_parameter_set *set;
        sl_device *device = new_frozen_learned(frozen == 0, &module, &set);
        sl_pass *pass;
        const int32_t ids[] = {4, 0, 4, 2};
        const sl_shape shape = sl_shape_2d(2, 2), output = sl_shape_3d(2, 2, 3);
        sl_tensor *in = integer_tensor(device, &shape, ids), *out, *grad_out, *grad;
        check_ok(sl_pass_create(&(sl_pass_options){.device = device, .keep = true}, &pass));
        check_ok(sl_module_forward(module, pass, in, &out));
        grad_out = random_tensor(device, &output, 1);
        check_ok(sl_module_backward(module, pass, grad_out, NULL));
        check_ok(sl_parameter_grad(sl_parameter_set_get(set, frozen), &grad));
        assert_null(grad);
        check_ok(sl_parameter_grad(sl_parameter_set_get(set, 1 - frozen), &grad));
        const float *rows = sl_tensor_f32(grad), *from = sl_tensor_f32(grad_out);
        for (int i = 0; i < 3; i++) /* token 4, or position 0, of both samples */
            assert_float_equal(rows[(frozen == 0 ? 0 : 4) * 3 + i], from[i] + from[6 + i], 1e-6);
        sl_tensor_destroy(&grad_out);
        sl_tensor_destroy(&out);
        sl_tensor_destroy(&in);
        sl_pass_destroy(&pass);
        sl_parameter_set_destroy(&set);
        sl_module_destroy(&module);
        sl_device_destroy(&device);
    }
}

static void bad_ids_are_named(void **state)
{
    sl_embedding_options options = {.ntokens = 5, .width = 4, .max_len = 3};
    SCOPED(bench) one = bench_open(&options);
    sl_shape shape = sl_shape_2d(2, 2), longer = sl_shape_2d(1, 4);
    const int32_t above[] = {4, 0, 2, 5}, below[] = {4, -1, 2, 9}, fine[] = {0, 1, 2, 3};
    SCOPED(sl_tensor) *in = integer_tensor(one.device, &shape, above);
    sl_tensor *out;
    check_error(sl_module_forward(one.module, one.pass, in, &out), SL_ERR_INVALID,
                "Encoder: token id 5 at [1, 1] is not in 0 .. 4");
    assert_null(out);
    check_ok(sl_tensor_write(in, below));
    check_error(sl_module_forward(one.module, one.pass, in, &out), SL_ERR_INVALID,
                "token id -1 at [0, 1] is not in 0 .. 4");
    sl_tensor_destroy(&in);
    in = integer_tensor(one.device, &longer, fine);
    check_error(sl_module_forward(one.module, one.pass, in, &out), SL_ERR_INVALID,
                "a sequence of 4 tokens is longer than the 3 positions");
    sl_tensor_destroy(&in);
    in = random_tensor(one.device, &shape, 1);
    check_error(sl_module_forward(one.module, one.pass, in, &out), SL_ERR_INVALID,
                "the input must be i32, got f32");
    check_error(sl_module_backward(one.module, one.pass, in, &out), SL_ERR_UNSUPPORTED,
                "token ids have no gradient");
}

static void position_counts_only_when_asked(void **state)
{
    sl_embedding_options options = {.ntokens = 5, .width = 4, .max_len = 3};
    SCOPED(bench) one = bench_open(&options);
    assert_int_equal(sl_module_parameter_elements(one.module), 5 * 4);
    assert_int_equal(sl_parameter_get_kind(sl_parameter_set_get(one.set, 0)), SL_PARAMETER_BUFFER);
    bench_destroy(&one);
    options.position_is_parameter = true;
    one = bench_open(&options);
    assert_int_equal(sl_module_parameter_elements(one.module), 5 * 4 + 3 * 4);
    assert_int_equal(sl_parameter_get_kind(sl_parameter_set_get(one.set, 0)), SL_PARAMETER_FROZEN);
}

static void parts_do_not_run_alone(void **state)
{
    sl_embedding_options options = {.ntokens = 5, .width = 4};
    SCOPED(bench) one = bench_open(&options);
    sl_shape shape = sl_shape_2d(1, 2);
    const int32_t ids[] = {1, 2};
    SCOPED(sl_tensor) *in = integer_tensor(one.device, &shape, ids);
    sl_tensor *out;
    check_error(sl_module_forward(sl_module_child(one.module, 1), one.pass, in, &out),
                SL_ERR_UNSUPPORTED, "encoder (Embedding): runs only inside its parent");
}

static void impossible_options_are_refused(void **state)
{
    sl_module *module;
    sl_embedding_options options = {.ntokens = 0, .width = 4};
    check_error(sl_embedding_create(&options, &module), SL_ERR_INVALID, "ntokens must be 1 to");
    options = (sl_embedding_options){.ntokens = 5, .width = 3};
    check_error(sl_embedding_create(&options, &module), SL_ERR_INVALID, "must be even");
    options = (sl_embedding_options){.ntokens = 5, .width = 0, .learned_positions = true};
    check_error(sl_embedding_create(&options, &module), SL_ERR_INVALID, "at least 1, got 0");
    options = (sl_embedding_options){.ntokens = 5, .width = 4, .max_len = -1};
    check_error(sl_embedding_create(&options, &module), SL_ERR_INVALID, "max_len");
    options = (sl_embedding_options){.ntokens = 5, .width = 4, .dropout = 1.0f};
    check_error(sl_embedding_create(&options, &module), SL_ERR_INVALID, "dropout");
    assert_null(module);
}

/* ---- The table alone ------------------------------------------------------------------------ */

static void table_alone_gives_its_rows(void **state)
{
    enum { NTOKENS = 4, WIDTH = 3 };
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    const sl_shape shape = sl_shape_2d(2, 2);
    static const int32_t ids[] = {3, 0, 3, 1};
    check_ok(sl_token_embedding_create(NTOKENS, WIDTH, &module));
    SCOPED(sl_parameter_set) *set = random_parameters(module, device);
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *out = NULL;
    assert_string_equal(sl_parameter_name(sl_parameter_set_get(set, 0)), "weight");
    const float *weight = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, 0)));
    SCOPED(sl_tensor) *in = integer_tensor(device, &shape, ids);
    check_ok(sl_pass_create(&(sl_pass_options){.device = device}, &pass));
    check_ok(sl_module_forward(module, pass, in, &out));
    for (int i = 0; i < 4; i++)
        assert_memory_equal(sl_tensor_f32(out) + i * WIDTH, weight + ids[i] * WIDTH,
                            WIDTH * sizeof(float));
}

static void gradient_of_the_table_alone_matches_differences(void **state)
{
    sl_module *module;
    check_ok(sl_token_embedding_create(5, 3, &module));
    check_module(&(module_case){.module = module, .in = sl_shape_2d(2, 4), .id_count = 5});
    sl_module_destroy(&module);
    check_error(sl_token_embedding_create(0, 3, &module), SL_ERR_INVALID,
                "sl_token_embedding_create: ntokens must be 1 to 2147483647, got 0");
    check_error(sl_token_embedding_create(5, 0, &module), SL_ERR_INVALID, "at least 1, got 0");
}

int embedding_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(positions_are_sines_and_cosines),
        cmocka_unit_test(output_is_scaled_embedding_plus_position),
        cmocka_unit_test(learned_positions_are_a_second_table),
        cmocka_unit_test(one_of_two_tables_may_be_frozen),
        cmocka_unit_test(bad_ids_are_named),
        cmocka_unit_test(position_counts_only_when_asked),
        cmocka_unit_test(parts_do_not_run_alone),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(table_alone_gives_its_rows),
        cmocka_unit_test(gradient_of_the_table_alone_matches_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
