/* Skip connections within one pass: what is stashed is popped, its gradient goes back, and misuse
 * is refused. */
#include "../examples/u_net.h"
#include "nn/module.h"
#include "support/modules.h"
#include "tensor/tensor.h"

enum { WIDTH = 8 };

/* Through both ways of each skip; also where modules between the ends are frozen. */
static void gradients_of_a_u_net_agree_with_differences(void **state)
{
    for (int frozen = 0; frozen < 2; frozen++) {
        SCOPED(sl_module) *model = NULL;
        check_ok(u_net_create(WIDTH, &model));
        for (int i = 0; frozen && i < sl_module_child_count(model); i++)
            if (i != 1) /* the first linear module; all of the others are frozen */
                check_ok(sl_module_freeze(sl_module_child(model, i)));
        check_module(&(module_case){.module = model, .in = sl_shape_2d(3, WIDTH)});
        check_samples_are_independent(&(module_case){.module = model, .in = sl_shape_2d(3, WIDTH)});
    }
}

static void wrong_declarations_are_refused(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    sl_module *stash;
    check_ok(skip_end_create("a", 0, &stash));
    check_error(sl_module_add_stash(stash, "a"), SL_ERR_INVALID,
                "Stash: the skip connection \"a\" is declared twice");
    check_error(sl_module_add_pop(stash, "a"), SL_ERR_INVALID,
                "Stash: the skip connection \"a\" is declared twice");
    check_error(sl_module_add_pop(stash, ""), SL_ERR_INVALID, "needs a name");
    check_error(sl_module_add_stash(stash, NULL), SL_ERR_INVALID, "needs a name");
    sl_module_destroy(&stash);
    SCOPED(sl_module) *linear = new_linear(2, 2);
    SCOPED(sl_parameter_set) *set = random_parameters(linear, device);
    check_error(sl_module_add_pop(linear, "a"), SL_ERR_INVALID,
                "pop \"a\" cannot be added to a model in use");
}

typedef struct lab {
    sl_device *device;
    sl_pass *pass;
    sl_tensor *rows; /* [2, 3] */
} lab;

static lab open_lab(bool keep)
{
    lab made;
    const sl_shape shape = sl_shape_2d(2, 3);
    check_ok(sl_device_create_cpu(1, &made.device));
    check_ok(sl_pass_create(&(sl_pass_options){.device = made.device, .keep = keep}, &made.pass));
    made.rows = random_tensor(made.device, &shape, 1);
    return made;
}

static void lab_destroy(lab *made)
{
    sl_tensor_destroy(&made->rows);
    sl_pass_destroy(&made->pass);
    assert_int_equal(device_bytes(made->device), 0);
    sl_device_destroy(&made->device);
}

static void stash_and_pop(const lab *made)
{
    SCOPED(sl_tensor) *popped = NULL;
    check_ok(sl_pass_stash_skip(made->pass, "a", made->rows));
    check_ok(sl_pass_pop_skip(made->pass, "a", &popped));
    assert_ptr_equal(sl_tensor_data(popped), sl_tensor_data(made->rows));
}

static void tensors_are_popped_once(void **state)
{
    SCOPED(lab) at = open_lab(true);
    sl_tensor *popped;
    const sl_shape one = sl_shape_1d(1);
    check_error(sl_pass_pop_skip(at.pass, "a", &popped), SL_ERR_INVALID,
                "no tensor is stashed as \"a\"");
    check_ok(sl_pass_stash_skip(at.pass, "a", at.rows));
    check_error(sl_pass_stash_skip(at.pass, "a", at.rows), SL_ERR_INVALID,
                "\"a\" is stashed twice");
    check_error(sli_pass_check_skips(at.pass), SL_ERR_INVALID,
                "the tensor \"a\" was stashed, but not popped");
    check_ok(sl_pass_pop_skip(at.pass, "a", &popped));
    sl_tensor_destroy(&popped);
    check_error(sl_pass_pop_skip(at.pass, "a", &popped), SL_ERR_INVALID, "it was popped before");
    assert_null(popped);
    SCOPED(sl_tensor) *ids = integer_tensor(at.device, &one, (int32_t[]){1});
    check_error(sl_pass_stash_skip(at.pass, "b", ids), SL_ERR_INVALID,
                "a stashed tensor must be f32, got i32");
}

static void wrong_gradients_are_refused(void **state)
{
    SCOPED(lab) at = open_lab(true);
    sl_tensor *grad, *popped;
    const sl_shape wrong = sl_shape_2d(2, 2), right = sl_shape_2d(2, 3);
    grad = random_tensor(at.device, &right, 2);
    check_error(sl_pass_stash_skip_grad(at.pass, "a", &grad), SL_ERR_INVALID,
                "a gradient of \"a\", which no module has popped");
    assert_null(grad);
    check_error(sl_pass_stash_skip_grad(at.pass, "a", &grad), SL_ERR_INVALID,
                "there is no gradient of \"a\" to stash");
    stash_and_pop(&at);
    check_error(sl_pass_pop_skip_grad(at.pass, "a", &popped), SL_ERR_INVALID,
                "there is no gradient of \"a\": the module that pops it must give one");
    grad = random_tensor(at.device, &wrong, 2);
    check_error(sl_pass_stash_skip_grad(at.pass, "a", &grad), SL_ERR_INVALID,
                "the gradient of \"a\" must have its shape [2, 3], got [2, 2]");
    grad = random_tensor(at.device, &right, 2);
    check_ok(sl_pass_stash_skip_grad(at.pass, "a", &grad));
    grad = random_tensor(at.device, &right, 2);
    check_error(sl_pass_stash_skip_grad(at.pass, "a", &grad), SL_ERR_INVALID,
                "a second gradient of \"a\"");
    check_error(sli_pass_check_skips(at.pass), SL_ERR_INVALID,
                "the gradient of \"a\" was stashed, but not popped");
}

/* The module that pops a gradient may overwrite it, and so may the next module that of the input.
 */
static void gradient_with_another_handle_is_copied(void **state)
{
    SCOPED(lab) at = open_lab(true);
    sl_tensor *grad, *popped;
    stash_and_pop(&at);
    check_ok(sl_tensor_alias(at.rows, &grad));
    check_ok(sl_pass_stash_skip_grad(at.pass, "a", &grad));
    check_ok(sl_pass_pop_skip_grad(at.pass, "a", &popped));
    assert_ptr_not_equal(sl_tensor_data(popped), sl_tensor_data(at.rows));
    assert_memory_equal(sl_tensor_data(popped), sl_tensor_data(at.rows), sli_tensor_bytes(popped));
    sl_tensor_destroy(&popped);
    grad = random_tensor(at.device, sl_tensor_shape(at.rows), 3);
    const void *memory = sl_tensor_data(grad);
    stash_and_pop(&at); /* the pass can be used again */
    check_ok(sl_pass_stash_skip_grad(at.pass, "a", &grad));
    check_ok(sl_pass_pop_skip_grad(at.pass, "a", &popped));
    assert_ptr_equal(sl_tensor_data(popped), memory);
    sl_tensor_destroy(&popped);
    lab_destroy(&at);
    at = open_lab(false);
    stash_and_pop(&at);
    stash_and_pop(&at);
}

int skip_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_a_u_net_agree_with_differences),
        cmocka_unit_test(wrong_declarations_are_refused),
        cmocka_unit_test(tensors_are_popped_once),
        cmocka_unit_test(wrong_gradients_are_refused),
        cmocka_unit_test(gradient_with_another_handle_is_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
