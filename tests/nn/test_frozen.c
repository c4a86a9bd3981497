/* Every layer with frozen parameters: the gradient of its input is right, backward_weight has
 * nothing to do, and nothing is deferred to it. */
#include "sluice/layers.h"
#include "sluice/loss.h"
#include "support/modules.h"

#include <stdlib.h>

enum { SAMPLES = 2, TIME = 3, WIDTH = 4 };

static void check_frozen(sl_module *module, int32_t id_count)
{
    check_ok(sl_module_freeze(module));
    module_case one = {.module = module, .id_count = id_count, .training = true};
    one.in = id_count ? sl_shape_2d(SAMPLES, TIME) : sl_shape_3d(SAMPLES, TIME, WIDTH);
    assert_int_equal(sl_module_deferred_bytes(module, &one.in), 0);
    check_module(&one);
    sl_module_destroy(&module);
}

static void frozen_layers_compute_the_inputs_gradient_alone(void **state)
{
    (void)state;
    sl_module *module;
    check_ok(sl_linear_create(WIDTH, 5, false, &module));
    check_frozen(module, 0);
    check_ok(sl_layer_norm_create(WIDTH, 0, &module));
    check_frozen(module, 0);
    check_ok(sl_self_attention_create(WIDTH, 2, 0.2f, SL_MASK_CAUSAL, &module));
    check_frozen(module, 0);
    check_ok(sl_decoder_create(WIDTH, 5, &module));
    check_frozen(module, 0);
    check_ok(sl_embedding_create(&(sl_embedding_options){.ntokens = 7, .width = WIDTH}, &module));
    check_frozen(module, 7);
}

static void frozen_encoder_layers_compute_the_inputs_gradient_alone(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        const sl_encoder_layer_options options = {.width = WIDTH,
                                                  .heads = 2,
                                                  .feed_forward = 6,
                                                  .dropout = 0.2f,
                                                  .activation = (sl_activation)(which % 2),
                                                  .pre_norm = which / 2};
        sl_module *module;
        check_ok(sl_encoder_layer_create(&options, &module));
        check_frozen(module, 0);
    }
}

/* The attention is frozen, the rest of its layer is not. */
static void layer_may_be_frozen_in_part(void **state)
{
    (void)state;
    const sl_encoder_layer_options options = {.width = WIDTH, .heads = 2, .feed_forward = 6};
    sl_module *module;
    check_ok(sl_encoder_layer_create(&options, &module));
    check_ok(sl_module_freeze(sl_module_child(module, 0)));
    check_module(&(module_case){.module = module, .in = sl_shape_3d(SAMPLES, TIME, WIDTH)});
    sl_module_destroy(&module);
}

/* A frozen decoder that the loss takes over: the gradient of its input is that of a trained one. */
static void loss_takes_over_a_frozen_decoder(void **state)
{
    (void)state;
    enum { ROWS = 6, CLASSES = 5 };
    float *grads[2];
    sl_shape in_shape = sl_shape_2d(ROWS, WIDTH), shape = sl_shape_1d(ROWS);
    for (int frozen = 0; frozen < 2; frozen++) {
        sl_device *device;
        sl_module *decoder;
        sl_loss *loss;
        sl_pass *pass;
        sl_parameter_set *set;
        check_ok(sl_device_create_cpu(1, &device));
        check_ok(sl_decoder_create(WIDTH, CLASSES, &decoder));
        check_ok(sl_cross_entropy_create(&loss));
        check_ok(
            sl_pass_create(&(sl_pass_options){.device = device, .training = true, .keep = true},
                           &pass));
        if (frozen)
            check_ok(sl_module_freeze(decoder));
        check_ok(sl_parameter_set_create(decoder, 0, 0,
                                         &(sl_parameter_set_options){.device = device, .seed = 1},
                                         &set));
        sl_tensor *in = random_tensor(device, &in_shape, 1), *grad_in;
        sl_tensor *targets = integer_tensor(device, &shape, (int32_t[]){0, 1, 2, 3, 4, 0});
        double row_losses[ROWS];
        sl_loss_call call = {.device = device,
                             .last = decoder,
                             .in = in,
                             .targets = targets,
                             .scale = 1,
                             .row_losses = row_losses,
                             .grad_in = &grad_in,
                             .pass = pass};
        check_ok(sl_loss_apply(loss, &call));
        assert_int_equal(pass_bytes(pass), sl_loss_deferred_bytes(loss, decoder, &in_shape));
        assert_true((pass_bytes(pass) == 0) == frozen);
        check_ok(sl_loss_backward_weight(loss, decoder, pass));
        grads[frozen] = tensor_values(grad_in);
        sl_tensor_destroy(&grad_in);
        sl_tensor_destroy(&in);
        sl_tensor_destroy(&targets);
        sl_pass_destroy(&pass);
        sl_parameter_set_destroy(&set);
        sl_loss_destroy(&loss);
        sl_module_destroy(&decoder);
        sl_device_destroy(&device);
    }
    assert_memory_equal(grads[0], grads[1], ROWS * WIDTH * sizeof(float));
    free(grads[0]);
    free(grads[1]);
}

int frozen_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_layers_compute_the_inputs_gradient_alone),
        cmocka_unit_test(frozen_encoder_layers_compute_the_inputs_gradient_alone),
        cmocka_unit_test(layer_may_be_frozen_in_part),
        cmocka_unit_test(loss_takes_over_a_frozen_decoder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
