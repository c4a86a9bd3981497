/* sl_module_check finds what is wrong with a module, and nothing with the library's (check_module
 * in every other test of modules). */
#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/module_check.h"
#include "support/modules.h"
#include "tensor/tensor.h"

#include <string.h>

enum { ROWS = 3, WIDTH = 4 };

/* y = w x, in halves, with one fault at a time. */
typedef enum fault {
    NONE,
    GRADIENT_OF_INPUT,
    GRADIENT_OF_WEIGHT,
    OVERWRITES,
    NEEDS_THE_INPUTS,
    LEAVES_SAVED,
    LEAVES_DEFERRED,
    LEAKS,
    SHAPE,
    SAVED_BYTES,
    DEFERRED_BYTES,
    HALVES,
    INPUT_OF_HALVES,
    COARSE_IN_BF16,
} fault;

/* What a module with LEAKS has lost: kept here for LeakSanitizer, which would report it as well. */
static sl_tensor *lost[16];
static size_t lost_count;

typedef struct scale {
    fault has;
    sl_parameter *weight;
} scale;

static sl_status scale_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    const scale *s = sl_module_state(module);
    const float *weight = sl_tensor_f32(sl_parameter_value(s->weight));
    SL_TRY(sl_pass_save_alias(pass, in));
    if (s->has == LEAVES_SAVED)
        SL_TRY(sl_pass_save_alias(pass, in));
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    if (s->has == LEAKS && sli_pass_keeps(pass)) {
        assert_true(lost_count < sizeof lost / sizeof *lost);
        SL_TRY(sl_tensor_alias(*out, &lost[lost_count++]));
    }
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(*out)[i] = sl_tensor_f32(in)[i] * weight[i % WIDTH];
    return SL_OK;
}

static sl_status add_weight_gradient(const scale *s, const sl_tensor *in, const sl_tensor *grad,
                                     float factor)
{
    sl_tensor *weight;
    SL_TRY(sl_parameter_grad(s->weight, &weight));
    if (s->has == OVERWRITES)
        SL_TRY(sli_tensor_zero(weight));
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(weight)[i % WIDTH] += factor * sl_tensor_f32(in)[i] * sl_tensor_f32(grad)[i];
    return SL_OK;
}

static sl_status find_input_gradient(const scale *s, sl_tensor *grad, float factor,
                                     sl_tensor **grad_in)
{
    const float *weight = sl_tensor_f32(sl_parameter_value(s->weight));
    if (!grad_in)
        return SL_OK;
    for (int64_t i = 0; i < sl_tensor_count(grad); i++)
        sl_tensor_f32(grad)[i] *= factor * weight[i % WIDTH];
    return sl_tensor_alias(grad, grad_in);
}

static float input_factor(const scale *s, const sl_pass *pass)
{
    return s->has == GRADIENT_OF_INPUT                          ? 1.02f
           : s->has == COARSE_IN_BF16 && sli_pass_is_bf16(pass) ? 1.1f
                                                                : 1;
}

static sl_status scale_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in)
{
    const scale *s = sl_module_state(module);
    sl_tensor *in;
    SL_TRY(sl_pass_pop(pass, &in));
    sl_status status = SL_OK;
    if (s->has != NEEDS_THE_INPUTS || grad_in)
        status = add_weight_gradient(s, in, grad_out, s->has == GRADIENT_OF_WEIGHT ? 1.02f : 1);
    sl_tensor_destroy(&in);
    return status == SL_OK ? find_input_gradient(s, grad_out, input_factor(s, pass), grad_in)
                           : status;
}

/* Defers the input and, since its own gradient comes next, a copy of the output's. */
static sl_status scale_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                      sl_tensor **grad_in)
{
    const scale *s = sl_module_state(module);
    sl_tensor *in, *grad;
    SL_TRY(sl_pass_pop(pass, &in));
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(grad_out), &grad));
    SL_TRY(sl_tensor_copy(grad, grad_out));
    if (s->has == LEAVES_DEFERRED) {
        sl_tensor *more;
        SL_TRY(sl_tensor_alias(in, &more));
        SL_TRY(sl_pass_defer(pass, &more));
    }
    SL_TRY(sl_pass_defer(pass, &in));
    SL_TRY(sl_pass_defer(pass, &grad));
    return find_input_gradient(s, grad_out,
                               input_factor(s, pass) * (s->has == INPUT_OF_HALVES ? 2 : 1),
                               grad_in);
}

static sl_status scale_backward_weight(sl_module *module, sl_pass *pass)
{
    const scale *s = sl_module_state(module);
    SCOPED(sl_tensor) *grad = NULL, *in = NULL;
    SL_TRY(sl_pass_take_deferred(pass, &in));
    SL_TRY(sl_pass_take_deferred(pass, &grad));
    return add_weight_gradient(s, in, grad,
                               s->has == HALVES               ? 2
                               : s->has == GRADIENT_OF_WEIGHT ? 1.02f
                                                              : 1);
}

static sl_status scale_output_shape(const sl_module *module, const sl_shape *in, sl_shape *out)
{
    const scale *s = sl_module_state(module);
    *out = *in;
    out->size[0] += s->has == SHAPE;
    return SL_OK;
}

static int64_t scale_saved_bytes(const sl_module *module, const sl_shape *in)
{
    const scale *s = sl_module_state(module);
    return (int64_t)sizeof(float) * sl_shape_count(in) + (s->has == SAVED_BYTES);
}

static int64_t scale_deferred_bytes(const sl_module *module, const sl_shape *in)
{
    const scale *s = sl_module_state(module);
    return 2 * (int64_t)sizeof(float) * sl_shape_count(in) + (s->has == DEFERRED_BYTES);
}

static void keep_state(void *state)
{
    (void)state; /* the test's */
}

static const sl_module_ops ops = {.type = "Scale",
                                  .forward = scale_forward,
                                  .backward = scale_backward,
                                  .backward_input = scale_backward_input,
                                  .backward_weight = scale_backward_weight,
                                  .output_shape = scale_output_shape,
                                  .saved_bytes = scale_saved_bytes,
                                  .deferred_bytes = scale_deferred_bytes,
                                  .destroy_state = keep_state};

static sl_status check_scale(fault has)
{
    scale state = {.has = has};
    SCOPED(sl_module) *module = NULL;
    const sl_parameter_spec weight = {.name = "weight",
                                      .shape = sl_shape_1d(WIDTH),
                                      .low = 1,
                                      .high = 1};
    check_ok(sl_module_create(&ops, &state, &module));
    check_ok(sl_module_add_parameter(module, &weight, &state.weight));
    return sl_module_check(module, &(sl_module_check_options){.input = sl_shape_2d(ROWS, WIDTH),
                                                              .precision = SL_PRECISION_BF16,
                                                              .seed = 1});
}

static void right_module_passes(void **state)
{
    check_ok(check_scale(NONE));
}

static void each_fault_is_named(void **state)
{
    static const struct {
        fault has;
        const char *text;
    } cases[] = {
        {GRADIENT_OF_INPUT, "Scale: backward's gradient of the input is 0.02 of its norm away from "
                            "that of differences, at most 0.005 is allowed"},
        {GRADIENT_OF_WEIGHT, "Scale: backward's gradient of weight is 0.02 of its norm away"},
        {OVERWRITES, "Scale: a second backward must add to the parameters' gradients"},
        {NEEDS_THE_INPUTS, "Scale: a second backward must add"},
        {LEAVES_SAVED, "Scale: tensors of forward that backward leaves, expected 0, got 1"},
        {LEAVES_DEFERRED, "Scale: "},
        {LEAKS, "Scale: bytes of tensors that nobody has destroyed, expected 0, got "},
        {SHAPE, "Scale: forward's output has another shape than output_shape"},
        {SAVED_BYTES, "Scale: bytes that forward saves, by saved_bytes, expected 49, got 48"},
        {DEFERRED_BYTES,
         "Scale: bytes that backward_input leaves, by deferred_bytes, expected 97, got 96"},
        {HALVES, "Scale: backward_input and backward_weight must give the parameters' gradients"},
        {INPUT_OF_HALVES, "Scale: backward_input must give the input's gradient of backward"},
        {COARSE_IN_BF16, "Scale: backward's gradient of the input in bf16 is 0.1 of its norm away "
                         "from that of f32, at most 0.05 is allowed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(check_scale(cases[i].has), SL_ERR_INVALID, cases[i].text);
}

static void errors_of_the_module_are_its_own(void **state)
{
    SCOPED(sl_module) *module = new_linear(WIDTH, 2);
    check_error(sl_module_check(module,
                                &(sl_module_check_options){.input = sl_shape_2d(ROWS, WIDTH + 1)}),
                SL_ERR_INVALID, "Linear");
    check_ok(
        sl_module_check(module, &(sl_module_check_options){.input = sl_shape_2d(ROWS, WIDTH)}));
}

int module_check_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_module_passes),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(errors_of_the_module_are_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
