#include "core/dtype.h"
#include "sluice/tensor.h"
#include "support/check.h"
#include "tensor/tensor.h"

#include <pthread.h>
#include <string.h>

static int create_device(void **state)
{
    return sl_device_create_cpu(2, (sl_device **)state) == SL_OK ? 0 : -1;
}

static int destroy_device(void **state)
{
    sl_device_destroy((sl_device **)state);
    return 0;
}

static sl_tensor *create(sl_device *device, sl_shape shape)
{
    sl_tensor *tensor;
    assert_int_equal(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &tensor),
                     SL_OK);
    return tensor;
}

/* [rows, columns] holding 0, 1, 2, … */
static sl_tensor *create_counting(sl_device *device, int64_t rows, int64_t columns)
{
    sl_tensor *tensor = create(device, sl_shape_2d(rows, columns));
    for (int64_t i = 0; i < rows * columns; i++)
        sl_tensor_f32(tensor)[i] = (float)i;
    return tensor;
}

static void tensor_knows_its_shape_type_and_size(void **state)
{
    sl_shape shape = {4, {2, 3, 5, 7}};
    sl_tensor *tensor;
    assert_int_equal(sl_tensor_create(*state, SL_MEMORY_GRADIENTS, SL_I64, &shape, &tensor), SL_OK);
    assert_true(sl_shape_equal(sl_tensor_shape(tensor), &shape));
    assert_int_equal(sl_tensor_dtype(tensor), SL_I64);
    assert_ptr_equal(sl_tensor_device(tensor), *state);
    assert_int_equal(sl_tensor_count(tensor), 210);
    assert_int_equal(sli_tensor_bytes(tensor), 1680);
    assert_int_equal(sl_tensor_rows(tensor), 30);
    assert_int_equal(sl_tensor_columns(tensor), 7);
    sl_memory_stats stats;
    sl_device_memory(*state, &stats);
    assert_int_equal(stats.current_bytes[SL_MEMORY_GRADIENTS], 1680);
    sl_tensor_destroy(&tensor);
    assert_null(tensor);
    sl_tensor_destroy(&tensor);
    assert_int_equal(device_bytes(*state), 0);
}

static void scalar_has_one_element(void **state)
{
    SCOPED(sl_tensor) *tensor = create(*state, (sl_shape){0, {0}});
    assert_int_equal(sl_tensor_count(tensor), 1);
    assert_int_equal(sl_tensor_rows(tensor), 1);
    assert_int_equal(sl_tensor_columns(tensor), 1);
    sl_tensor_f32(tensor)[0] = 3;
}

static void empty_tensor_takes_no_memory(void **state)
{
    SCOPED(sl_tensor) *tensor = create(*state, sl_shape_2d(0, 5));
    assert_int_equal(device_bytes(*state), 0);
    assert_null(sl_tensor_data(tensor));
    assert_int_equal(sli_tensor_zero(tensor), SL_OK);
    SCOPED(sl_tensor) *other = create(*state, sl_shape_2d(0, 5));
    assert_int_equal(sl_tensor_copy(other, tensor), SL_OK);
}

static void shapes_print_compare_and_count(void **state)
{
    sl_shape a = sl_shape_3d(20, 35, 200), b = sl_shape_2d(20, 35), c = sl_shape_1d(20);
    char text[SL_SHAPE_TEXT_BYTES];
    assert_string_equal(sl_shape_text(&a, text), "[20, 35, 200]");
    assert_string_equal(sl_shape_text(&(sl_shape){0, {0}}, text), "[]");
    assert_int_equal(sl_shape_count(&a), 140000);
    assert_false(sl_shape_equal(&a, &b));
    assert_false(sl_shape_equal(&b, &c));
    b.size[1] = 36;
    assert_false(sl_shape_equal(&b, &(sl_shape){2, {20, 35}}));
    sl_shape widest = {4, {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}};
    assert_true(strlen(sl_shape_text(&widest, text)) < SL_SHAPE_TEXT_BYTES);
}

static void types_have_names_and_sizes(void **state)
{
    static const struct {
        sl_dtype dtype;
        const char *name;
        size_t bytes;
    } types[] = {{SL_F32, "f32", 4},
                 {SL_F64, "f64", 8},
                 {SL_I32, "i32", 4},
                 {SL_I64, "i64", 8},
                 {SL_BF16, "bf16", 2}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_string_equal(sli_dtype_name(types[i].dtype), types[i].name);
        assert_int_equal(sl_dtype_bytes(types[i].dtype), types[i].bytes);
    }
}

static void zero_tensor_is_zero(void **state)
{
    sl_shape shape = sl_shape_1d(1000);
    SCOPED(sl_tensor) *tensor = NULL;
    assert_int_equal(sl_tensor_create_zero(*state, SL_MEMORY_GRADIENTS, SL_F32, &shape, &tensor),
                     SL_OK);
    for (int i = 0; i < 1000; i++)
        assert_true(sl_tensor_f32(tensor)[i] == 0);
}

/* ---- Views ------------------------------------------------------------------------------ */

static void view_shows_the_same_elements_in_another_shape(void **state)
{
    sl_tensor *tensor = create_counting(*state, 4, 6), *view;
    sl_shape shape = sl_shape_3d(2, 3, 3);
    assert_int_equal(sl_tensor_view(tensor, 6, &shape, &view), SL_OK);
    assert_true(sl_tensor_f32(view)[0] == 6);
    sl_tensor_f32(view)[17] = -1;
    assert_true(sl_tensor_f32(tensor)[23] == -1);
    assert_int_equal(device_bytes(*state), 96);
    sl_tensor_destroy(&tensor);
    assert_int_equal(device_bytes(*state), 96); /* the view still needs it */
    assert_true(sl_tensor_f32(view)[1] == 7);
    sl_tensor_destroy(&view);
    assert_int_equal(device_bytes(*state), 0);
}

static void views_of_views_add_their_offsets(void **state)
{
    SCOPED(sl_tensor) *view = NULL, *part = NULL, *rows = NULL;
    SCOPED(sl_tensor) *tensor = create_counting(*state, 10, 3);
    assert_int_equal(sli_tensor_narrow(tensor, 2, 5, &rows), SL_OK);
    assert_true(sl_shape_equal(sl_tensor_shape(rows), &(sl_shape){2, {5, 3}}));
    assert_int_equal(sli_tensor_narrow(rows, 1, 2, &part), SL_OK);
    assert_true(sl_tensor_f32(part)[0] == 9);
    sl_shape shape = sl_shape_1d(4);
    assert_int_equal(sl_tensor_view(part, 2, &shape, &view), SL_OK);
    assert_true(sl_tensor_f32(view)[3] == 14);
}

static void shared_handle_keeps_the_storage(void **state)
{
    sl_tensor *tensor = create_counting(*state, 2, 2), *other;
    assert_int_equal(sl_tensor_alias(tensor, &other), SL_OK);
    assert_ptr_equal(sl_tensor_data(tensor), sl_tensor_data(other));
    sl_tensor_destroy(&tensor);
    assert_true(sl_tensor_f32(other)[3] == 3);
    sl_tensor_destroy(&other);
    assert_int_equal(device_bytes(*state), 0);
}

static void *destroy_handle(void *argument)
{
    SCOPED(sl_tensor) *tensor = argument;
    sl_tensor_f32(tensor)[0] = 1;
    return NULL;
}

static void handles_may_be_dropped_by_different_threads(void **state)
{
    for (int round = 0; round < 100; round++) {
        sl_tensor *tensor = create_counting(*state, 4, 1), *rows[4];
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            assert_int_equal(sli_tensor_narrow(tensor, i, 1, &rows[i]), SL_OK);
        sl_tensor_destroy(&tensor);
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, destroy_handle, rows[i]), 0);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(device_bytes(*state), 0);
    }
}

/* ---- Copies ----------------------------------------------------------------------------- */

static void content_goes_to_the_host_and_back(void **state)
{
    SCOPED(sl_tensor) *a = create_counting(*state, 3, 5), *b = create(*state, sl_shape_2d(3, 5));
    float host[15];
    assert_int_equal(sl_tensor_read(a, host), SL_OK);
    for (int i = 0; i < 15; i++) {
        assert_true(host[i] == (float)i);
        host[i] *= 2;
    }
    assert_int_equal(sl_tensor_write(b, host), SL_OK);
    assert_int_equal(sl_tensor_copy(a, b), SL_OK);
    assert_memory_equal(sl_tensor_data(a), host, sizeof host);
    assert_int_equal(sli_tensor_zero(b), SL_OK);
    for (int i = 0; i < 15; i++)
        assert_true(sl_tensor_f32(b)[i] == 0);
}

/* ---- Errors ----------------------------------------------------------------------------- */

static void expect_refused(sl_device *device, sl_shape shape, const char *text)
{
    sl_tensor *tensor = (sl_tensor *)&tensor;
    assert_int_equal(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_F32, &shape, &tensor),
                     SL_ERR_INVALID);
    assert_null(tensor);
    assert_string_equal(sl_error_text(), text);
}

static void impossible_shapes_are_refused(void **state)
{
    expect_refused(*state, sl_shape_2d(3, -1),
                   "sl_tensor_create: sizes must not be negative, got [3, -1]");
    expect_refused(*state, (sl_shape){5, {1, 1, 1, 1}},
                   "sl_tensor_create: a shape has 0 to 4 dimensions, got 5");
    expect_refused(*state, sl_shape_2d(INT64_MAX / 2, 3),
                   "sl_tensor_create: shape [4611686018427387903, 3] has too many elements");
}

static void memory_that_is_not_there_is_an_error(void **state)
{
    sl_shape shape = sl_shape_1d((int64_t)1 << 55);
    sl_tensor *tensor = (sl_tensor *)&tensor;
    assert_int_equal(sl_tensor_create(*state, SL_MEMORY_OPTIMIZER, SL_F32, &shape, &tensor),
                     SL_ERR_MEMORY);
    assert_null(tensor);
    assert_non_null(strstr(sl_error_text(), "bytes of optimizer"));
    assert_int_equal(sl_tensor_create_zero(*state, SL_MEMORY_OPTIMIZER, SL_F32, &shape, &tensor),
                     SL_ERR_MEMORY);
    assert_int_equal(device_bytes(*state), 0);
}

static void views_past_the_end_are_refused(void **state)
{
    SCOPED(sl_tensor) *tensor = create_counting(*state, 4, 6);
    sl_tensor *view = tensor;
    sl_shape shape = sl_shape_1d(10);
    assert_int_equal(sl_tensor_view(tensor, 15, &shape, &view), SL_ERR_INVALID);
    assert_null(view);
    assert_string_equal(sl_error_text(), "sl_tensor_view: [10] at element 15 does not fit in a "
                                         "tensor of [4, 6]");
    assert_int_equal(sl_tensor_view(tensor, -1, &shape, &view), SL_ERR_INVALID);
    assert_int_equal(sl_tensor_view(tensor, INT64_MAX, &shape, &view), SL_ERR_INVALID);
    assert_int_equal(sli_tensor_narrow(tensor, 3, 2, &view), SL_ERR_INVALID);
    assert_null(view);
    assert_string_equal(sl_error_text(),
                        "sli_tensor_narrow: 2 rows from row 3 of a tensor of [4, 6]");
    assert_int_equal(sli_tensor_narrow(tensor, INT64_MAX, INT64_MAX, &view), SL_ERR_INVALID);
    assert_string_equal(sl_error_text(), "sli_tensor_narrow: 9223372036854775807 rows from row "
                                         "9223372036854775807 of a tensor of [4, 6]");
    assert_int_equal(sli_tensor_narrow(tensor, -1, 2, &view), SL_ERR_INVALID);
    assert_int_equal(sli_tensor_narrow(tensor, 0, -1, &view), SL_ERR_INVALID);
    sl_tensor_destroy(&tensor);
    tensor = create(*state, (sl_shape){0, {0}});
    assert_int_equal(sli_tensor_narrow(tensor, 0, 1, &view), SL_ERR_INVALID);
}

static void copies_between_different_shapes_or_types_are_refused(void **state)
{
    SCOPED(sl_tensor) *c = NULL;
    SCOPED(sl_tensor) *a = create(*state, sl_shape_2d(2, 3)),
                      *b = create(*state, sl_shape_2d(3, 2));
    assert_int_equal(sl_tensor_copy(a, b), SL_ERR_INVALID);
    assert_string_equal(sl_error_text(), "sl_tensor_copy: from f32 [3, 2] to f32 [2, 3]");
    sl_shape shape = sl_shape_2d(2, 3);
    assert_int_equal(sl_tensor_create(*state, SL_MEMORY_WORKSPACE, SL_I32, &shape, &c), SL_OK);
    assert_int_equal(sl_tensor_copy(a, c), SL_ERR_INVALID);
}

int tensor_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_knows_its_shape_type_and_size),
        cmocka_unit_test(scalar_has_one_element),
        cmocka_unit_test(empty_tensor_takes_no_memory),
        cmocka_unit_test(shapes_print_compare_and_count),
        cmocka_unit_test(types_have_names_and_sizes),
        cmocka_unit_test(zero_tensor_is_zero),
        cmocka_unit_test(view_shows_the_same_elements_in_another_shape),
        cmocka_unit_test(views_of_views_add_their_offsets),
        cmocka_unit_test(shared_handle_keeps_the_storage),
        cmocka_unit_test(handles_may_be_dropped_by_different_threads),
        cmocka_unit_test(content_goes_to_the_host_and_back),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(memory_that_is_not_there_is_an_error),
        cmocka_unit_test(views_past_the_end_are_refused),
        cmocka_unit_test(copies_between_different_shapes_or_types_are_refused),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
