#include "nn/module.h"

#include "sluice/layers.h"
#include "support/modules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A layer of one's own: out = factor * in^2 ------------------------------------------- */

typedef struct square {
    sl_parameter *factor;
} square;

static sl_status square_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    const square *self = sl_module_state(module);
    float factor = sl_tensor_f32(sl_parameter_value(self->factor))[0];
    const float *x = sl_tensor_f32(in);
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(*out)[i] = factor * x[i] * x[i];
    return sl_pass_save_alias(pass, in);
}

static sl_status square_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    const square *self = sl_module_state(module);
    float factor = sl_tensor_f32(sl_parameter_value(self->factor))[0];
    float *grad = sl_tensor_f32(grad_out);
    sl_tensor *in, *grad_factor;
    SL_TRY(sl_parameter_grad(self->factor, &grad_factor));
    SL_TRY(sl_pass_pop(pass, &in));
    const float *x = sl_tensor_f32(in);
    for (int64_t i = 0; i < sl_tensor_count(in); i++) {
        sl_tensor_f32(grad_factor)[0] += grad[i] * x[i] * x[i];
        grad[i] *= 2.0f * factor * x[i];
    }
    sl_tensor_destroy(&in);
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static int64_t square_saved_bytes(const sl_module *module, const sl_shape *in)
{
    return 4 * sl_shape_count(in);
}

static const sl_module_ops square_ops = {
    .type = "Square",
    .forward = square_forward,
    .backward = square_backward,
    .saved_bytes = square_saved_bytes,
};

static sl_module *new_square(void)
{
    square *self = calloc(1, sizeof *self);
    sl_module *module;
    sl_parameter_spec spec = {.name = "factor", .shape = sl_shape_1d(1), .low = 0.5f, .high = 0.5f};
    check_ok(sl_module_create(&square_ops, self, &module));
    check_ok(sl_module_add_parameter(module, &spec, &self->factor));
    return module;
}

static void own_layer_runs_between_the_librarys(void **state)
{
    sl_module *modules[] = {new_linear(3, 4), new_square(), new_linear(4, 2)};
    SCOPED(sl_module) *model = new_sequential(modules, 3);
    module_case one = {.module = model, .in = sl_shape_2d(5, 3)};
    check_module(&one);
    check_samples_are_independent(&one);
}

/* ---- Halves ----------------------------------------------------------------------------- */

static sl_status square_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                       sl_tensor **grad_in)
{
    const square *self = sl_module_state(module);
    float factor = sl_tensor_f32(sl_parameter_value(self->factor))[0];
    sl_tensor *in;
    SL_TRY(sl_pass_pop(pass, &in));
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), grad_in));
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(*grad_in)[i] =
            sl_tensor_f32(grad_out)[i] * 2.0f * factor * sl_tensor_f32(in)[i];
    SL_TRY(sl_pass_defer(pass, &in));
    return sl_pass_defer_alias(pass, grad_out);
}

static sl_status square_backward_weight(sl_module *module, sl_pass *pass)
{
    const square *self = sl_module_state(module);
    SCOPED(sl_tensor) *grad_out = NULL, *in = NULL;
    sl_tensor *grad_factor;
    SL_TRY(sl_pass_take_deferred(pass, &in));
    SL_TRY(sl_pass_take_deferred(pass, &grad_out));
    SL_TRY(sl_parameter_grad(self->factor, &grad_factor));
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(grad_factor)[0] +=
            sl_tensor_f32(grad_out)[i] * sl_tensor_f32(in)[i] * sl_tensor_f32(in)[i];
    return SL_OK;
}

static int64_t square_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    return 2 * 4 * sl_shape_count(in);
}

static const sl_module_ops halved_square_ops = {
    .type = "HalvedSquare",
    .forward = square_forward,
    .backward_input = square_backward_input,
    .backward_weight = square_backward_weight,
    .saved_bytes = square_saved_bytes,
    .deferred_bytes = square_deferred_bytes,
};

static sl_status wrapper_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_tensor **out)
{
    return sl_module_forward(sl_module_child(module, 0), pass, in, out);
}

static sl_status wrapper_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                  sl_tensor **grad_in)
{
    return sl_module_backward(sl_module_child(module, 0), pass, grad_out, grad_in);
}

static int64_t wrapper_saved_bytes(const sl_module *module, const sl_shape *in)
{
    return sl_module_saved_bytes(sl_module_child(module, 0), in);
}

/* One backward, around a module that has two halves. */
static const sl_module_ops wrapper_ops = {
    .type = "Wrapper",
    .forward = wrapper_forward,
    .backward = wrapper_backward,
    .saved_bytes = wrapper_saved_bytes,
};

static sl_module *new_halved_square(void)
{
    square *self = calloc(1, sizeof *self);
    sl_module *module;
    sl_parameter_spec spec = {.name = "factor", .shape = sl_shape_1d(1), .low = 0.5f, .high = 0.5f};
    check_ok(sl_module_create(&halved_square_ops, self, &module));
    check_ok(sl_module_add_parameter(module, &spec, &self->factor));
    return module;
}

static sl_module *new_wrapper(sl_module *child)
{
    sl_module *module;
    check_ok(sl_module_create(&wrapper_ops, NULL, &module));
    check_ok(sli_module_add_child(module, "inner", child));
    return module;
}

static void modules_with_one_backward_and_with_two_halves_work_together(void **state)
{
    sl_module *modules[] = {new_linear(3, 4), new_halved_square(), new_wrapper(new_halved_square()),
                            new_square(), new_wrapper(new_linear(4, 4))};
    SCOPED(sl_module) *model = new_sequential(modules, 5);
    module_case one = {.module = model, .in = sl_shape_2d(5, 3)};
    check_module(&one);
}

/* ---- The tree --------------------------------------------------------------------------- */

static const char *name_of(const sl_module *module, int parameter)
{
    return sl_parameter_name(module->parameters[parameter]);
}

static void names_are_paths_from_the_root(void **state)
{
    sl_module *inner_modules[] = {new_linear(2, 2), new_linear(2, 2)};
    sl_module *inner = new_sequential(inner_modules, 2);
    assert_string_equal(name_of(inner_modules[1], 0), "1.weight");
    sl_module *outer_modules[] = {new_linear(2, 2), inner};
    SCOPED(sl_module) *outer = new_sequential(outer_modules, 2);
    assert_string_equal(name_of(outer_modules[0], 1), "0.bias");
    assert_string_equal(name_of(inner_modules[0], 0), "1.0.weight");
    assert_string_equal(name_of(inner_modules[1], 1), "1.1.bias");
    char path[SLI_PATH_BYTES];
    assert_string_equal(sli_module_path(inner_modules[1], path), "1.1");
    assert_string_equal(sli_module_path(outer, path), "");
}

/* What random functions know modules and parameters by. */
static void numbers_count_in_preorder(void **state)
{
    sl_module *inner_modules[] = {new_linear(2, 2), new_linear(2, 2)};
    sl_module *inner = new_sequential(inner_modules, 2);
    sl_module *outer_modules[] = {new_square(), inner, new_linear(2, 2)};
    SCOPED(sl_module) *outer = new_sequential(outer_modules, 3);
    assert_int_equal(outer->number, 0);
    assert_int_equal(outer_modules[0]->number, 1);
    assert_int_equal(inner->number, 2);
    assert_int_equal(inner_modules[0]->number, 3);
    assert_int_equal(inner_modules[1]->number, 4);
    assert_int_equal(outer_modules[2]->number, 5);
    assert_int_equal(outer_modules[0]->parameters[0]->number, 0);
    assert_int_equal(inner_modules[0]->parameters[1]->number, 2);
    assert_int_equal(outer_modules[2]->parameters[0]->number, 5);
}

static int list_numbers(const sl_module *module, uint32_t *numbers, int count)
{
    numbers[count++] = module->number;
    for (int i = 0; i < module->parameter_count; i++)
        numbers[count++] = module->parameters[i]->number;
    for (int i = 0; i < module->child_count; i++)
        count = list_numbers(module->children[i], numbers, count);
    return count;
}

/* Children and parameters come to places in the middle of the tree and to its end. */
static void numbers_are_right_wherever_a_tree_grows(void **state)
{
    enum { CHILDREN = 12, MOST = 128 };
    SCOPED(sl_module) *root = new_linear(2, 2);
    sl_module *at[CHILDREN + 1] = {root};
    uint32_t kept[MOST], counted[MOST], random = 7;
    for (int i = 1; i <= CHILDREN; i++) {
        char name[16];
        sl_parameter *parameter;
        snprintf(name, sizeof name, "c%d", i);
        at[i] = i % 3 ? new_linear(2, 2) : new_sequential((sl_module *[]){new_square()}, 1);
        random = random * 1664525u + 1013904223u;
        check_ok(sli_module_add_child(at[(random >> 16) % (uint32_t)i], name, at[i]));
        snprintf(name, sizeof name, "p%d", i);
        sl_parameter_spec spec = {.name = name, .shape = sl_shape_1d(1)};
        if (i % 4 == 0)
            check_ok(sl_module_add_parameter(at[i / 2], &spec, &parameter));
        int count = list_numbers(root, kept, 0);
        sli_module_number_tree(root);
        assert_int_equal(list_numbers(root, counted, 0), count);
        assert_memory_equal(kept, counted, (size_t)count * sizeof *kept);
    }
}

static void child_twice_is_refused_in_pytorchs_words(void **state)
{
    sl_module *owned = new_linear(2, 2);
    SCOPED(sl_module) *first = new_sequential(&owned, 1);
    check_error(sli_module_add_child(first, "a", owned), SL_ERR_INVALID,
                "module with duplicate children is not supported");
    check_error(sli_module_add_child(first, "a", NULL), SL_ERR_INVALID, "is NULL");
}

static void bad_names_and_circles_are_refused(void **state)
{
    SCOPED(sl_module) *module = new_square();
    sl_module *inner = new_linear(2, 2);
    sl_parameter *parameter;
    sl_parameter_spec spec = {.name = "factor", .shape = sl_shape_1d(1)};
    check_error(sl_module_add_parameter(module, &spec, &parameter), SL_ERR_INVALID,
                "the name \"factor\" is used twice");
    check_error(sli_module_add_child(module, "factor", new_square()), SL_ERR_INVALID, "used twice");
    check_error(sli_module_add_child(module, "a.b", new_square()), SL_ERR_INVALID, "has no dot");
    check_error(sli_module_add_child(module, "", new_square()), SL_ERR_INVALID, "not empty");
    spec = (sl_parameter_spec){.name = "empty", .shape = sl_shape_2d(3, 0)};
    check_error(sl_module_add_parameter(module, &spec, &parameter), SL_ERR_INVALID, "[3, 0]");
    spec = (sl_parameter_spec){.name = "range", .shape = sl_shape_1d(1), .low = 1, .high = 0};
    check_error(sl_module_add_parameter(module, &spec, &parameter), SL_ERR_INVALID, "low and high");
    spec = (sl_parameter_spec){.name = "normal", .shape = sl_shape_1d(1), .deviation = -1};
    check_error(sl_module_add_parameter(module, &spec, &parameter), SL_ERR_INVALID,
                "the deviation of \"normal\"'s initial values must not be negative, got -1");
    check_ok(sli_module_add_child(module, "inner", inner));
    check_error(sli_module_add_child(inner, "outer", module), SL_ERR_INVALID, "part of itself");
    assert_int_equal(sl_module_child_count(module), 1);
}

static void elements_count_without_buffers(void **state)
{
    sl_module *module = new_linear(3, 4);
    sl_parameter *parameter;
    sl_parameter_spec spec = {.name = "buffer",
                              .kind = SL_PARAMETER_BUFFER,
                              .shape = sl_shape_1d(100)};
    check_ok(sl_module_add_parameter(module, &spec, &parameter));
    spec =
        (sl_parameter_spec){.name = "frozen", .kind = SL_PARAMETER_FROZEN, .shape = sl_shape_1d(7)};
    check_ok(sl_module_add_parameter(module, &spec, &parameter));
    SCOPED(sl_module) *sequential = new_sequential(&module, 1);
    assert_int_equal(sl_module_parameter_elements(sequential), 3 * 4 + 4 + 7);
}

/* ---- A placed model --------------------------------------------------------------------- */

static void placed_model_takes_no_parameter_and_no_child(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    sl_parameter *parameter;
    sl_parameter_set *set, *second;
    sl_module *modules[] = {new_linear(2, 2), new_linear(2, 2)};
    SCOPED(sl_module) *outer = new_sequential(NULL, 0);
    sl_module *model = new_sequential(modules, 2);
    const sl_parameter_spec spec = {.name = "late", .shape = sl_shape_1d(1)};
    const sl_parameter_set_options options = {.device = device};
    check_ok(sl_parameter_set_create(model, 0, 1, &options, &set));
    check_ok(sl_parameter_set_create(model, 1, 1, &options, &second));

    check_error(sl_module_add_parameter(model, &spec, &parameter), SL_ERR_INVALID,
                "Sequential: parameter \"late\" cannot be added to a model in use");
    assert_null(parameter);
    check_error(sl_module_add_parameter(modules[1], &spec, &parameter), SL_ERR_INVALID,
                "Linear: parameter \"late\" cannot be added to a model in use");
    check_error(sli_module_add_child(modules[0], "late", new_linear(2, 2)), SL_ERR_INVALID,
                "Linear: child \"late\" cannot be added to a model in use");
    check_error(sli_module_add_child(outer, "0", model), SL_ERR_INVALID,
                "Sequential: a model in use cannot become child \"0\"");
    assert_int_equal(sl_module_child_count(outer), 0);

    sl_parameter_set_destroy(&set); /* the second one is left */
    check_error(sl_module_add_parameter(model, &spec, &parameter), SL_ERR_INVALID, "late");
    check_error(sl_parameter_set_create(model, 0, 0, &options, &set), SL_ERR_INVALID,
                "in a parameter set already");
    sl_parameter_set_destroy(&second);
    check_ok(sl_module_add_parameter(model, &spec, &parameter));
    check_ok(sli_module_add_child(outer, "0", model));
}

/* ---- Running ---------------------------------------------------------------------------- */

typedef struct bench {
    sl_device *device;
    sl_pass *pass;
} bench;

static bench bench_open(void)
{
    bench one;
    check_ok(sl_device_create_cpu(1, &one.device));
    sl_pass_options options = {.device = one.device, .keep = true};
    check_ok(sl_pass_create(&options, &one.pass));
    return one;
}

static void bench_destroy(bench *one)
{
    sl_pass_destroy(&one->pass);
    sl_device_destroy(&one->device);
}

static void errors_name_the_innermost_module_once(void **state)
{
    SCOPED(bench) one = bench_open();
    sl_module *inner_modules[] = {new_linear(2, 2), new_linear(5, 2)};
    sl_module *modules[] = {new_linear(2, 2), new_sequential(inner_modules, 2)};
    SCOPED(sl_module) *model = new_sequential(modules, 2);
    SCOPED(sl_parameter_set) *set = random_parameters(model, one.device);
    sl_shape shape = sl_shape_2d(3, 2);
    SCOPED(sl_tensor) *in = random_tensor(one.device, &shape, 1);
    sl_tensor *out;
    check_error(sl_module_forward(model, one.pass, in, &out), SL_ERR_INVALID,
                "1.1 (Linear): the input needs at least 1 dimension, none empty, the last of 5; "
                "got [3, 2]");
    assert_int_equal(strncmp(sl_error_text(), "1.1 (Linear)", 12), 0);
    assert_null(out);
    check_error(sl_module_backward(model, one.pass, in, NULL), SL_ERR_INVALID,
                "1.1 (Linear): nothing is saved on the pass");
    assert_int_equal(strncmp(sl_error_text(), "1.1 (Linear)", 12), 0);
}

static sl_status silent_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    (void)module, (void)pass, (void)in, (void)out;
    return SL_OK;
}

static sl_status silent_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    (void)module, (void)pass, (void)grad_out, (void)grad_in;
    return SL_OK;
}

static void results_that_are_missing_are_errors(void **state)
{
    static const sl_module_ops silent = {.type = "Silent",
                                         .forward = silent_forward,
                                         .backward = silent_backward};
    SCOPED(bench) one = bench_open();
    SCOPED(sl_module) *module = NULL;
    check_ok(sl_module_create(&silent, NULL, &module));
    sl_shape shape = sl_shape_2d(3, 2);
    SCOPED(sl_tensor) *in = random_tensor(one.device, &shape, 1);
    sl_tensor *out;
    check_error(sl_module_forward(module, one.pass, in, &out), SL_ERR_INVALID,
                "Silent: gave no output, and reported no error");
    check_error(sl_module_backward(module, one.pass, in, &out), SL_ERR_INVALID,
                "Silent: gave no gradient of its input, and reported no error");
    check_ok(sl_module_backward(module, one.pass, in, NULL));
}

static void input_of_another_device_is_refused(void **state)
{
    SCOPED(bench) one = bench_open();
    SCOPED(sl_device) *elsewhere = new_device(1);
    SCOPED(sl_module) *module = new_linear(2, 2);
    sl_parameter_set *set = random_parameters(module, elsewhere);
    sl_shape shape = sl_shape_2d(3, 2);
    sl_tensor *here = random_tensor(one.device, &shape, 1), *out;
    sl_tensor *there = random_tensor(elsewhere, &shape, 1);
    check_error(sl_module_forward(module, one.pass, there, &out), SL_ERR_INVALID,
                "the input is on");
    check_error(sl_module_forward(module, one.pass, here, &out), SL_ERR_INVALID,
                "parameter weight is on");
    sl_tensor_destroy(&here);
    sl_tensor_destroy(&there);
    sl_parameter_set_destroy(&set);
    check_error(sl_module_forward(module, one.pass, NULL, &out), SL_ERR_INVALID, "no input");
}

static void weights_half_without_its_first_half_is_refused(void **state)
{
    SCOPED(bench) one = bench_open();
    SCOPED(sl_module) *module = new_linear(2, 2);
    SCOPED(sl_parameter_set) *set = random_parameters(module, one.device);
    check_error(sli_module_backward_weight(module, one.pass), SL_ERR_INVALID,
                "nothing is deferred on the pass");
}

static void module_without_values_or_gradients_says_so(void **state)
{
    SCOPED(bench) one = bench_open();
    SCOPED(sl_module) *module = new_linear(2, 2);
    SCOPED(sl_parameter_set) *set = NULL;
    SCOPED(sl_tensor) *out = NULL;
    sl_shape shape = sl_shape_2d(3, 2);
    SCOPED(sl_tensor) *in = random_tensor(one.device, &shape, 1);
    check_error(sl_module_forward(module, one.pass, in, &out), SL_ERR_INVALID,
                "parameter weight has no value yet");
    sl_parameter_set_options options = {.device = one.device, .no_gradients = true};
    check_ok(sl_parameter_set_create(module, 0, 0, &options, &set));
    check_ok(sl_module_forward(module, one.pass, in, &out));
    check_error(sl_module_backward(module, one.pass, out, NULL), SL_ERR_INVALID,
                "parameter bias has no gradient");
}

/* A sum of the output, for a fixed input. */
static double output_sum(const bench *one, sl_module *module)
{
    sl_shape shape = sl_shape_3d(2, 3, 4);
    SCOPED(sl_tensor) *out = NULL;
    SCOPED(sl_tensor) *in = random_tensor(one->device, &shape, 1);
    check_ok(sl_module_forward(module, one->pass, in, &out));
    double sum = 0;
    for (int64_t i = 0; i < sl_tensor_count(out); i++)
        sum += (double)(i + 1) * sl_tensor_f32(out)[i];
    return sum;
}

static void modules_in_evaluation_have_no_dropout(void **state)
{
    SCOPED(bench) one = bench_open();
    const sl_encoder_layer_options options = {.width = 4,
                                              .heads = 2,
                                              .feed_forward = 8,
                                              .dropout = 0.5f};
    SCOPED(sl_module) *layer = NULL;
    check_ok(sl_encoder_layer_create(&options, &layer));
    SCOPED(sl_parameter_set) *set = random_parameters(layer, one.device);
    one.pass->options.training = true;
    double trained = output_sum(&one, layer);
    sl_module_set_evaluation(sl_module_child(layer, 0), true); /* self_attn alone */
    double without_attentions = output_sum(&one, layer);
    sl_module_set_evaluation(layer, true);
    double evaluated = output_sum(&one, layer);
    assert_true(trained != without_attentions && without_attentions != evaluated);
    one.pass->options.training = false;
    assert_true(output_sum(&one, layer) == evaluated);
    one.pass->options.training = true;
    sl_module_set_evaluation(layer, false);
    assert_true(output_sum(&one, layer) == trained);
    assert_true(sl_module_is_training(sl_module_child(layer, 0), one.pass));
}

static void model_in_use_cannot_be_frozen(void **state)
{
    SCOPED(bench) one = bench_open();
    sl_module *children[] = {new_linear(2, 3), new_linear(3, 2)};
    SCOPED(sl_module) *model = new_sequential(children, 2);
    SCOPED(sl_parameter_set) *set = random_parameters(model, one.device);
    check_error(sl_module_freeze(children[0]), SL_ERR_INVALID,
                "Linear: a model in use cannot be frozen");
    sl_parameter_set_destroy(&set);
    check_ok(sl_module_freeze(children[0]));
    assert_int_equal(sl_module_parameter_elements(model), 17);
    assert_int_equal(sli_module_elements(model, SL_PARAMETER_TRAINED), 8);
    set = random_parameters(model, one.device);
    assert_int_equal(sl_parameter_set_count(set), 4);
    assert_int_equal(sl_tensor_count(sl_parameter_set_bucket_values(set, 0)), 16 + 16);
}

int module_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_layer_runs_between_the_librarys),
        cmocka_unit_test(modules_with_one_backward_and_with_two_halves_work_together),
        cmocka_unit_test(weights_half_without_its_first_half_is_refused),
        cmocka_unit_test(names_are_paths_from_the_root),
        cmocka_unit_test(numbers_count_in_preorder),
        cmocka_unit_test(numbers_are_right_wherever_a_tree_grows),
        cmocka_unit_test(child_twice_is_refused_in_pytorchs_words),
        cmocka_unit_test(bad_names_and_circles_are_refused),
        cmocka_unit_test(elements_count_without_buffers),
        cmocka_unit_test(placed_model_takes_no_parameter_and_no_child),
        cmocka_unit_test(errors_name_the_innermost_module_once),
        cmocka_unit_test(results_that_are_missing_are_errors),
        cmocka_unit_test(input_of_another_device_is_refused),
        cmocka_unit_test(module_without_values_or_gradients_says_so),
        cmocka_unit_test(modules_in_evaluation_have_no_dropout),
        cmocka_unit_test(model_in_use_cannot_be_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
