#include "nn/module.h"

#include "sluice/layers.h"
#include "support/modules.h"

static sl_device *device;

static int make_device(void **state)
{
    return sl_device_create_cpu(1, &device);
}

static int free_device(void **state)
{
    sl_device_destroy(&device);
    return 0;
}

static sl_pass *new_pass(bool keep, bool training)
{
    sl_pass *pass;
    sl_pass_options options = {.device = device,
                               .keep = keep,
                               .training = training,
                               .seed = 1,
                               .step = 9,
                               .first_sample = 40};
    check_ok(sl_pass_create(&options, &pass));
    return pass;
}

static void keeping_pass_gives_back_in_reverse(void **state)
{
    sl_pass *pass = new_pass(true, true);
    sl_shape shape = sl_shape_1d(4);
    sl_tensor *first = random_tensor(device, &shape, 1), *second = random_tensor(device, &shape, 2);
    void *first_data = sl_tensor_data(first), *second_data = sl_tensor_data(second);
    check_ok(sl_pass_save(pass, &first));
    assert_null(first);
    check_ok(sl_pass_save_alias(pass, second));
    assert_int_equal(sli_pass_depth(pass), 2);
    sl_tensor *popped;
    check_ok(sl_pass_pop(pass, &popped));
    assert_ptr_equal(sl_tensor_data(popped), second_data);
    sl_tensor_destroy(&popped);
    check_ok(sl_pass_pop(pass, &popped));
    assert_ptr_equal(sl_tensor_data(popped), first_data);
    sl_tensor_destroy(&popped);
    check_error(sl_pass_pop(pass, &popped), SL_ERR_INVALID, "nothing is saved on the pass");
    assert_null(popped);
    sl_tensor_destroy(&second);
    sl_pass_destroy(&pass);
    assert_int_equal(device_bytes(device), 0);
}

static void pass_frees_what_it_holds(void **state)
{
    sl_pass *pass = new_pass(true, true);
    sl_shape shape = sl_shape_1d(4);
    for (int i = 0; i < 20; i++) {
        sl_tensor *tensor = random_tensor(device, &shape, 1);
        check_ok(sl_pass_save(pass, &tensor));
    }
    assert_int_equal(device_bytes(device), 20 * 16);
    sl_pass_destroy(&pass);
    sl_pass_destroy(&pass);
    assert_int_equal(device_bytes(device), 0);
}

static void pass_that_does_not_keep_drops_at_once(void **state)
{
    sl_pass *pass = new_pass(false, true);
    sl_shape shape = sl_shape_1d(4);
    sl_tensor *tensor = random_tensor(device, &shape, 1),
              *shared = random_tensor(device, &shape, 2);
    check_ok(sl_pass_save(pass, &tensor));
    assert_null(tensor);
    check_ok(sl_pass_save_alias(pass, shared));
    assert_int_equal(device_bytes(device), 16);
    assert_int_equal(sli_pass_depth(pass), 0);
    assert_false(sli_pass_keeps(pass));
    sl_tensor_destroy(&shared);
    sl_pass_destroy(&pass);
}

static void mistakes_are_refused(void **state)
{
    sl_pass *pass = new_pass(true, true);
    sl_tensor *none = NULL;
    check_error(sl_pass_save(pass, &none), SL_ERR_INVALID, "no tensor to save");
    sl_pass_destroy(&pass);
    sl_pass_options options = {.keep = true};
    check_error(sl_pass_create(&options, &pass), SL_ERR_INVALID, "needs a device");
    assert_null(pass);
}

/* A mask is known by the seed, its module's number in the root, its number in the module, step and
 * sample. */
static void dropout_is_known_by_its_place(void **state)
{
    SCOPED(sl_module) *root = NULL;
    sl_module *modules[2];
    for (int i = 0; i < 2; i++)
        check_ok(sl_dropout_create(0.5f, &modules[i]));
    check_ok(create_sequential(modules, 2, &root));
    SCOPED(sl_pass) *training = new_pass(true, true), *evaluation = new_pass(true, false);
    SCOPED(sl_pass) *seeded = NULL;
    sl_pass_options options = training->options;
    options.seed++;
    check_ok(sl_pass_create(&options, &seeded));
    sli_dropout mask = sli_pass_dropout(training, modules[1], 3, 0.25f, 35);
    assert_float_equal(mask.p, 0.25, 0.0);
    assert_int_equal(mask.site, 2 * SLI_SITES_PER_MODULE + 3);
    assert_int_equal(mask.step, 9);
    assert_int_equal(mask.first_sample, 40);
    assert_int_equal(mask.rows_per_sample, 35);
    sli_dropout other = sli_pass_dropout(seeded, modules[1], 3, 0.25f, 35);
    assert_memory_not_equal(&mask.key, &other.key, sizeof mask.key);
    mask = sli_pass_dropout(evaluation, modules[1], 3, 0.25f, 35);
    assert_float_equal(mask.p, 0.0, 0.0);
    assert_int_equal(mask.rows_per_sample, 35);
}

int pass_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeping_pass_gives_back_in_reverse),
        cmocka_unit_test(pass_frees_what_it_holds),
        cmocka_unit_test(pass_that_does_not_keep_drops_at_once),
        cmocka_unit_test(mistakes_are_refused),
        cmocka_unit_test(dropout_is_known_by_its_place),
    };
    return cmocka_run_group_tests(tests, make_device, free_device);
}
