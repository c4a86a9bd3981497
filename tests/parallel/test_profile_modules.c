/* Profiles of a model's modules. */
#include "../examples/u_net.h"
#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/pipe.h"
#include "sluice/profile.h"
#include "support/modules.h"

enum { ROWS = 6, WIDTH = 64 };

typedef struct setup {
    sl_device *device;
    sl_module *model;
    sl_loss *loss;
    sl_tensor *input, *targets;
} setup;

static setup open_setup(sl_module *const *modules, int count, sl_loss *loss)
{
    setup made = {.loss = loss};
    sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    check_ok(sl_device_create_cpu(1, &made.device));
    check_ok(create_sequential(modules, count, &made.model));
    made.input = random_tensor(made.device, &shape, 1);
    made.targets = random_tensor(made.device, &shape, 2);
    return made;
}

/* Nothing is left on the device. */
static void setup_destroy(setup *s)
{
    sl_tensor_destroy(&s->input);
    sl_tensor_destroy(&s->targets);
    sl_module_destroy(&s->model);
    sl_loss_destroy(&s->loss);
    assert_int_equal(device_bytes(s->device), 0);
    sl_device_destroy(&s->device);
}

static sl_profile_options options_of(const setup *s, int rounds)
{
    return (sl_profile_options){.model = s->model,
                                .loss = s->loss,
                                .device = s->device,
                                .input = s->input,
                                .targets = s->targets,
                                .rounds = rounds};
}

/* A round runs a module twice forward and twice backward, and the first round is not timed. */
static void modules_run_as_often_as_the_rounds_say(void **state)
{
    enum { MODULES = 3, ROUNDS = 2 };
    probe probes[MODULES] = {{0}};
    sl_module *modules[MODULES];
    sl_loss *loss = new_mse_loss();
    sl_module_profile times[MODULES];
    modules[0] = probe_module(&probes[0]);
    check_ok(sl_linear_create(WIDTH, WIDTH, true, &modules[1]));
    modules[2] = probe_module(&probes[2]);
    sl_memory_stats before, after;
    SCOPED(setup) of = open_setup(modules, MODULES, loss);
    sl_profile_options options = options_of(&of, ROUNDS);
    sl_device_memory(of.device, &before);
    check_ok(sl_profile_modules(&options, times));
    sl_device_memory(of.device, &after);
    assert_int_equal(after.reserved_bytes, before.reserved_bytes);
    for (int i = 0; i < MODULES; i++) {
        assert_true(times[i].forward > 0 && times[i].backward > 0 && times[i].backward_input > 0);
        assert_true(times[i].backward_weight >= 0);
        assert_true(times[i].output_bytes == ROWS * WIDTH * sizeof(float));
    }
    assert_int_equal(atomic_load(&probes[0].forwards), 2 * (1 + ROUNDS));
    assert_int_equal(atomic_load(&probes[0].backwards), 2 * (1 + ROUNDS));
    assert_int_equal(atomic_load(&probes[2].forwards), 2 * (1 + ROUNDS));
}

/* Of equal layers one is run, but for the first, whose input needs no gradient, and the last,
 * behind which the loss is. */
static void module_like_the_one_before_it_has_its_times(void **state)
{
    enum { MODULES = 4 };
    sl_module *modules[MODULES];
    sl_loss *loss = new_cross_entropy();
    sl_module_profile times[MODULES];
    for (int i = 0; i < MODULES; i++)
        check_ok(sl_linear_create(WIDTH, WIDTH, true, &modules[i]));
    SCOPED(setup) of = open_setup(modules, MODULES, loss);
    sl_shape rows = sl_shape_1d(ROWS);
    sl_tensor_destroy(&of.targets);
    of.targets = integer_tensor(of.device, &rows, (int32_t[ROWS]){0, 1, 2, 3, 4, 5});
    sl_profile_options options = options_of(&of, 1);
    check_ok(sl_profile_modules(&options, times));
    assert_memory_equal(&times[1], &times[2], sizeof times[1]);
    assert_true(times[3].forward == 0); /* the loss takes the last one over */
    assert_true(times[3].backward > 0 && times[3].backward_input > 0);
}

/* Frozen layers and those in evaluation mode are run as well as those that are trained. */
static void module_that_trains_otherwise_has_times_of_its_own(void **state)
{
    enum { MODULES = 5 };
    sl_module *modules[MODULES];
    sl_module_profile times[MODULES];
    for (int i = 0; i < MODULES; i++)
        check_ok(sl_linear_create(WIDTH, WIDTH, true, &modules[i]));
    SCOPED(setup) of = open_setup(modules, MODULES, NULL);
    check_ok(sl_module_freeze(modules[2]));
    sl_module_set_evaluation(modules[4], true);
    sl_profile_options options = options_of(&of, 1);
    check_ok(sl_profile_modules(&options, times));
    for (int i = 2; i < MODULES; i++)
        assert_memory_not_equal(&times[i], &times[i - 1], sizeof times[i]);
}

static sl_status reader_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    const sl_tensor *x;
    SL_TRY(sl_pass_input(pass, "x", &x));
    return sl_tensor_alias(in, out);
}

static sl_status reader_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    (void)module, (void)pass;
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

/* What a module stashes is there for the one that pops it, and its gradient for itself. */
static void modules_with_skip_connections_and_inputs_are_run(void **state)
{
    enum { MODULES = 2 };
    static const sl_module_ops reader = {.type = "Reader",
                                         .forward = reader_forward,
                                         .backward = reader_backward};
    sl_module *modules[MODULES];
    sl_module_profile times[MODULES + 13];
    check_ok(sl_module_create(&reader, NULL, &modules[0]));
    check_ok(u_net_create(WIDTH, &modules[1]));
    SCOPED(setup) of = open_setup(modules, MODULES, NULL);
    const sl_input input = {.name = "x", .tensor = of.targets};
    sl_profile_options options = options_of(&of, 1);
    check_error(sl_profile_modules(&options, times), SL_ERR_NOT_FOUND, "no input \"x\"");
    options.input_count = 1;
    check_error(sl_profile_modules(&options, times), SL_ERR_INVALID,
                "sl_profile_modules: inputs is NULL, but input_count is 1");
    options.inputs = &(sl_input){.name = "x"};
    check_error(sl_profile_modules(&options, times), SL_ERR_INVALID, "inputs[0] has no tensor");
    options.inputs = &input;
    check_ok(sl_profile_modules(&options, times));
    sl_module_destroy(&of.model);
    check_ok(u_net_create(WIDTH, &of.model));
    options = options_of(&of, 2);
    check_ok(sl_profile_modules(&options, times));
    for (int i = 0; i < sl_module_child_count(of.model); i++)
        assert_true(times[i].forward > 0 && times[i].backward > 0 && times[i].backward_input > 0);
}

/* The error is the module's, and the model can then be used. */
static void failing_module_ends_the_profile(void **state)
{
    probe failing = {.fail_backward = 2};
    sl_module *module = probe_module(&failing);
    sl_module_profile times;
    SCOPED(setup) of = open_setup(&module, 1, NULL);
    sl_profile_options options = options_of(&of, 1);
    options.targets = NULL;
    check_error(sl_profile_modules(&options, &times), SL_ERR_NUMERIC, "sl_profile_modules: ");
    check_ok(sl_profile_modules(&options, &times));
    options.model = NULL;
    check_error(sl_profile_modules(&options, &times), SL_ERR_INVALID, "must be a sequential");
    options = options_of(&of, 1);
    options.device = NULL;
    check_error(sl_profile_modules(&options, &times), SL_ERR_INVALID, "device is NULL");
    check_ok(sl_mse_loss_create(&of.loss));
    options = options_of(&of, 1);
    options.targets = NULL;
    check_error(sl_profile_modules(&options, &times), SL_ERR_INVALID, "a loss needs targets");
}

/* The values of tied parameters are in other modules. */
static void tied_modules_are_profiled(void **state)
{
    sl_module *modules[3];
    sl_loss *loss = new_mse_loss();
    sl_module_profile times[3];
    for (int i = 0; i < 3; i++)
        check_ok(sl_linear_create(WIDTH, WIDTH, false, &modules[i]));
    SCOPED(setup) of = open_setup(modules, 3, loss);
    check_ok(sl_module_tie_parameter(of.model, "2.weight", "0.weight"));
    check_ok(sl_module_tie_parameter(of.model, "2.bias", "1.bias"));
    sl_profile_options options = options_of(&of, 1);
    check_ok(sl_profile_modules(&options, times));
    assert_true(times[2].forward > 0 && times[2].backward_weight > 0);
}

int profile_modules_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_run_as_often_as_the_rounds_say),
        cmocka_unit_test(module_like_the_one_before_it_has_its_times),
        cmocka_unit_test(module_that_trains_otherwise_has_times_of_its_own),
        cmocka_unit_test(modules_with_skip_connections_and_inputs_are_run),
        cmocka_unit_test(failing_module_ends_the_profile),
        cmocka_unit_test(tied_modules_are_profiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
