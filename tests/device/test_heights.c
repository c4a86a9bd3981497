/* Which number of rows a panel is multiplied with, by trials that say what they are told. */
#include "device/cpu/heights.h"
#include "device/device_base.h"
#include "support/check.h"

#include <stdlib.h>

/* Heights pass where they are multiples of `grain`, those in place if `in_place` is set. */
typedef struct trials {
    int64_t grain;
    bool in_place;
    int made;
    bool fails;
} trials;

static sl_status try_multiples(void *context, sli_height height, bool *passes)
{
    trials *t = context;
    assert_true(t->made > 0 || (height.rows == SLI_REFERENCE_ROWS && height.is_copied));
    t->made++;
    *passes = height.rows % t->grain == 0 && (height.is_copied || t->in_place);
    return t->fails ? sl_error(SL_ERR_MEMORY, "no memory") : SL_OK;
}

static sli_height find_height(sli_heights *heights, int64_t n, int64_t rows, trials *t)
{
    sli_height height;
    check_ok(
        sli_heights_find(heights, &(sli_height_shape){.n = n}, rows, try_multiples, t, &height));
    assert_true(height.rows <= rows || height.is_copied);
    return height;
}

static sl_status try_reference(void *context, sli_height height, bool *passes)
{
    (void)context;
    *passes = height.rows == SLI_REFERENCE_ROWS && height.is_copied;
    return SL_OK;
}

static int64_t find(sli_heights *heights, int64_t n, int64_t rows, trials *t)
{
    t->in_place = true;
    return find_height(heights, n, rows, t).rows;
}

static void panel_gets_the_next_height_that_passes(void **state)
{
    sli_heights *heights = malloc(sizeof *heights);
    assert_non_null(heights);
    sli_heights_init(heights);
    for (int64_t rows = 1; rows < 60; rows++)
        assert_int_equal(find(heights, 1, rows, &(trials){.grain = 6}), (rows + 5) / 6 * 6);
    for (int64_t rows = 1; rows < 60; rows++)
        assert_int_equal(find(heights, 2, rows, &(trials){.grain = 1}), rows);
    sli_heights_clear(heights);
    free(heights);
}

/* Panels are cut where none of the next heights passes. */
static void height_is_lower_where_none_passes(void **state)
{
    sli_heights *heights = malloc(sizeof *heights);
    assert_non_null(heights);
    sli_heights_init(heights);
    assert_int_equal(find(heights, 1, 7, &(trials){.grain = 1000}), 1);
    assert_int_equal(find(heights, 2, 1, &(trials){.grain = 1000}), 1);
    assert_int_equal(find(heights, 3, 400, &(trials){.grain = 24}), 408);
    sli_heights_clear(heights);
    free(heights);
}

/* Where they are, a panel's rows pass at no height. */
static void reference_is_copied(void **state)
{
    sli_heights *heights = malloc(sizeof *heights);
    assert_non_null(heights);
    sli_heights_init(heights);
    for (int64_t rows = 1; rows < 60; rows++) {
        sli_height height = find_height(heights, 1, rows, &(trials){.grain = 24});
        assert_true(height.is_copied);
        assert_int_equal(height.rows, rows % 24 == 0 ? 24 : (rows + 23) / 24 * 24);
        check_ok(sli_heights_find(heights, &(sli_height_shape){.n = 2}, rows, try_reference, NULL,
                                  &height));
        assert_true(height.is_copied);
        assert_int_equal(height.rows, SLI_REFERENCE_ROWS);
    }
    sli_heights_clear(heights);
    free(heights);
}

/* More shapes come than are remembered. */
static void height_is_tried_once(void **state)
{
    sli_heights *heights = malloc(sizeof *heights);
    trials first = {.grain = 6}, again = {.grain = 6}, others = {.grain = 6};
    assert_non_null(heights);
    sli_heights_init(heights);
    find(heights, 1, 7, &first);
    assert_true(first.made > 1);
    assert_int_equal(find(heights, 1, 7, &again), 12);
    assert_int_equal(again.made, 0);
    for (int i = 0; i < SLI_HEIGHT_ENTRIES; i++)
        find(heights, 2, 7 + i, &others);
    assert_int_equal(find(heights, 1, 7, &again), 12);
    assert_int_equal(again.made, first.made);
    sli_heights_clear(heights);
    free(heights);
}

static void failed_trial_is_an_error(void **state)
{
    sli_heights *heights = malloc(sizeof *heights);
    trials t = {.grain = 6, .fails = true};
    sli_height height;
    assert_non_null(heights);
    sli_heights_init(heights);
    check_error(sli_heights_find(heights, &(sli_height_shape){.n = 1}, 7, try_multiples, &t,
                                 &height),
                SL_ERR_MEMORY, "no memory");
    t.fails = false;
    assert_int_equal(find(heights, 1, 7, &t), 12);
    sli_heights_clear(heights);
    free(heights);
}

static void device_that_cannot_is_refused(void **state)
{
    SCOPED(sl_device) *device = NULL;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_device_set_batch_invariant(device, true));
    check_ok(sl_device_set_batch_invariant(device, false));
    device->has_batch_invariance = false;
    check_ok(sl_device_set_batch_invariant(device, false));
    check_error(sl_device_set_batch_invariant(device, true), SL_ERR_UNSUPPORTED,
                "batch invariance needs CPU devices, got cpu: ");
}

static void list_is_set_whole_or_not(void **state)
{
    SCOPED(sl_device_list) *list = NULL;
    check_ok(sl_device_list_create("cpu,cpu", &list, NULL));
    sl_device *first = sl_device_list_get(list, 0), *second = sl_device_list_get(list, 1);
    second->has_batch_invariance = false;
    check_error(sl_device_list_set_batch_invariant(list, true), SL_ERR_UNSUPPORTED, "needs CPU");
    assert_false(first->batch_invariant);
    second->has_batch_invariance = true;
    check_ok(sl_device_list_set_batch_invariant(list, true));
    assert_true(first->batch_invariant && second->batch_invariant);
}

int heights_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(panel_gets_the_next_height_that_passes),
        cmocka_unit_test(height_is_lower_where_none_passes),
        cmocka_unit_test(reference_is_copied),
        cmocka_unit_test(height_is_tried_once),
        cmocka_unit_test(failed_trial_is_an_error),
        cmocka_unit_test(device_that_cannot_is_refused),
        cmocka_unit_test(list_is_set_whole_or_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
