#include "core/bf16.h"
#include "core/philox.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "sluice/layers.h"
#include "sluice/optim.h"
#include "support/modules.h"

#include <math.h>
#include <stdlib.h>

/* A linear layer without bias in one bucket, all of its weights equal. */
typedef struct subject {
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
} subject;

static subject create_subject(int64_t elements, float value)
{
    subject s;
    check_ok(sl_device_create_cpu(2, &s.device));
    check_ok(sl_linear_create(elements, 1, true, &s.module));
    check_ok(sl_parameter_set_create(s.module, 0, 0,
                                     &(sl_parameter_set_options){.device = s.device}, &s.set));
    float *values = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(s.set, 0)));
    for (int64_t i = 0; i < elements; i++)
        values[i] = value;
    return s;
}

static void subject_destroy(subject *s)
{
    sl_parameter_set_destroy(&s->set);
    sl_module_destroy(&s->module);
    sl_device_destroy(&s->device);
}

/* Steps with all gradients 1; checks the first weight after each. */
static void check_steps(const sl_optimizer_options *options, double lr, double grad_scale,
                        const double *expected, int steps)
{
    SCOPED(subject) s = create_subject(37, 1);
    SCOPED(sl_optimizer) *optimizer = NULL;
    sl_parameter *weight = sl_parameter_set_get(s.set, 0);
    check_ok(sl_optimizer_create(options, s.set, &optimizer));
    for (int step = 0; step < steps; step++) {
        sl_parameter_set_zero_grad(s.set);
        float *grad = sl_tensor_f32(gradient_of(weight));
        for (int i = 0; i < 37; i++)
            grad[i] = 1;
        check_ok(sl_optimizer_step(optimizer, lr, grad_scale));
        const float *values = sl_tensor_f32(sl_parameter_value(weight));
        for (int i = 0; i < 37; i++)
            assert_true(fabs(values[i] - expected[step]) < 2e-6);
    }
}

/* The numbers are those of torch.optim with lr 0.1, gradient 1, starting from 1. */
static void sgd_takes_pytorchs_steps(void **state)
{
    const sl_optimizer_options plain = {0}, momentum = {.momentum = 0.9f},
                               nesterov = {.momentum = 0.9f, .nesterov = true},
                               dampening = {.momentum = 0.9f, .dampening = 0.5f},
                               decay = {.momentum = 0.9f, .weight_decay = 0.1f};
    check_steps(&plain, 0.1, 1, (double[]){0.9, 0.8, 0.7}, 3);
    check_steps(&momentum, 0.1, 1, (double[]){0.9, 0.71, 0.439}, 3);
    check_steps(&nesterov, 0.1, 1, (double[]){0.81, 0.539, 0.1951}, 3);
    check_steps(&dampening, 0.1, 1, (double[]){0.9, 0.76, 0.584}, 3);
    check_steps(&decay, 0.1, 1, (double[]){0.89, 0.6821, 0.388169}, 3);
}

static void grad_scale_multiplies_the_gradient_and_nothing_else(void **state)
{
    const sl_optimizer_options decay = {.weight_decay = 0.1f};
    check_steps(&decay, 0.1, 0.5, (double[]){1 - 0.1 * (0.5 + 0.1)}, 1);
}

/* With a constant gradient both averages stay in proportion: each step is lr, and the decay. */
static void adamw_takes_pytorchs_steps(void **state)
{
    const sl_optimizer_options adamw = {.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.01f};
    double expected[3], value = 1;
    for (int step = 0; step < 3; step++)
        expected[step] = value = value * (1 - 0.1 * 0.01) - 0.1;
    check_steps(&adamw, 0.1, 1, expected, 3);
}

/* Of a gradient g = eps, each step is lr g / (sqrt(g^2) + eps), half of lr: eps is added to the
 * root, behind the correction of the average in it. */
static void adamw_adds_eps_to_the_corrected_root(void **state)
{
    const float eps = 1e-8f;
    const sl_optimizer_options adamw = {.kind = SL_OPTIMIZER_ADAMW, .eps = eps};
    check_steps(&adamw, 0.1, eps, (double[]){0.95, 0.9, 0.85}, 3);
}

/* ---- Parameters without a gradient ------------------------------------------------------ */

enum { WEIGHTS = 6, OUTS = 2, BUCKET_BYTES = 4 };

/* `steps` steps of a linear layer; the bias has a gradient from step `bias_from` on. What is left
 * of weight and bias. */
static void train_unevenly(const sl_optimizer_options *options, int64_t bucket_bytes, int steps,
                           int bias_from, float *weight, float *bias)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = new_linear(WEIGHTS / OUTS, OUTS);
    SCOPED(sl_parameter_set) *set = NULL;
    SCOPED(sl_optimizer) *optimizer = NULL;
    const sl_parameter_set_options placement = {.device = device,
                                                .first_bucket_bytes = bucket_bytes,
                                                .bucket_bytes = bucket_bytes};
    check_ok(sl_parameter_set_create(module, 0, 0, &placement, &set));
    check_ok(sl_optimizer_create(options, set, &optimizer));
    for (int i = 0; i < 2; i++) {
        float *values = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, i)));
        for (int at = 0; at < (i ? OUTS : WEIGHTS); at++)
            values[at] = 0.5f + (float)at;
    }
    for (int step = 0; step < steps; step++) {
        double terms[2];
        int count;
        sl_parameter_set_zero_grad(set);
        for (int i = 0; i < (step < bias_from ? 1 : 2); i++) {
            float *grad = sl_tensor_f32(gradient_of(sl_parameter_set_get(set, i)));
            for (int at = 0; at < (i ? OUTS : WEIGHTS); at++)
                grad[at] = 0.25f * (float)(step - (i ? bias_from : 0) + at + 1);
        }
        check_ok(sli_grad_norm_terms(set, SL_GRAD_NORM_L2, terms, 2, &count)); /* changes nothing */
        assert_int_equal(count, 2);
        check_ok(sl_optimizer_step(optimizer, 0.1, 1));
    }
    check_ok(sl_tensor_read(sl_parameter_value(sl_parameter_set_get(set, 0)), weight));
    check_ok(sl_tensor_read(sl_parameter_value(sl_parameter_set_get(set, 1)), bias));
}

/* In one bucket and in two: as if its steps began with its first gradient. */
static void parameter_without_a_gradient_is_left_as_it_is(void **state)
{
    const sl_optimizer_options all[] = {
        {.weight_decay = 0.1f},
        {.momentum = 0.9f, .dampening = 0.5f, .weight_decay = 0.1f},
        {.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.1f},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int64_t bytes = 0; bytes <= BUCKET_BYTES; bytes += BUCKET_BYTES) {
            float weight[WEIGHTS], bias[OUTS], expected_weight[WEIGHTS], expected_bias[OUTS];
            train_unevenly(&all[i], bytes, 2, 2, weight, bias);
            assert_true(bias[0] == 0.5f && bias[1] == 1.5f);
            assert_true(weight[0] < 0.5f);
            train_unevenly(&all[i], bytes, 5, 2, weight, bias);
            train_unevenly(&all[i], bytes, 5, 0, expected_weight, expected_bias);
            assert_memory_equal(weight, expected_weight, sizeof weight);
            train_unevenly(&all[i], bytes, 3, 0, expected_weight, expected_bias);
            assert_memory_equal(bias, expected_bias, sizeof bias);
        }
}

/* The first averages of a weight and a bias, whose sums are exact: each has the random bits of the
 * seed, its parameter, its place in it and the step. */
static void averages_in_bf16_are_rounded_by_seed_parameter_and_step(void **state)
{
    enum { IN = 16, OUT = 8, SEED = 5, BIAS_ROOM = 16, STEPS = 2 };
    const sl_optimizer_options options = {.kind = SL_OPTIMIZER_ADAMW,
                                          .precision = SL_PRECISION_BF16,
                                          .beta1 = 0.5f,
                                          .beta2 = 0.5f};
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = new_linear(IN, OUT);
    SCOPED(sl_parameter_set) *set = NULL;
    SCOPED(sl_optimizer) *optimizer = NULL;
    float means[2][IN * OUT] = {{0}};
    check_ok(sl_parameter_set_create(module, 0, 0,
                                     &(sl_parameter_set_options){.device = device, .seed = SEED},
                                     &set));
    check_ok(sl_optimizer_create(&options, set, &optimizer));
    const uint16_t *averages = sl_tensor_data(sli_optimizer_state(optimizer, 0, 0));
    for (uint32_t step = 1; step <= STEPS; step++) {
        sl_parameter_set_zero_grad(set);
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < (p ? OUT : IN * OUT); i++)
                sl_tensor_f32(gradient_of(sl_parameter_set_get(set, p)))[i] =
                    1 + (float)((7 * i + p) % 512) / 512;
        check_ok(sl_optimizer_step(optimizer, 0.1, 1));
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < (p ? OUT : IN * OUT); i++) {
                uint32_t number = sl_parameter_set_get(set, p)->number, group = (uint32_t)i / 4;
                uint32_t words[4] = {group, 0, sli_site_of_group(number, group), step};
                sli_philox(sli_philox_key_make(SEED, SLI_RANDOM_ROUND), words);
                float exact = 0.5f * means[p][i] + 0.5f * (1 + (float)((7 * i + p) % 512) / 512);
                uint16_t bits = sli_bf16_at_random(exact, words[i % 4] & 0xffff);
                assert_int_equal(averages[(p ? 0 : BIAS_ROOM) + i], bits);
                means[p][i] = sli_f32_from_bf16(bits);
            }
    }
}

static void frozen_parameters_are_not_decayed(void **state)
{
    const sl_optimizer_options options = {.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.5f};
    SCOPED(sl_device) *device = new_device(1);
    sl_module *layers[2];
    for (int i = 0; i < 2; i++)
        check_ok(sl_linear_create(2, 2, true, &layers[i]));
    SCOPED(sl_module) *model = new_sequential(layers, 2);
    SCOPED(sl_parameter_set) *set = NULL;
    SCOPED(sl_optimizer) *optimizer = NULL;
    check_ok(sl_module_freeze(layers[0]));
    check_ok(sl_parameter_set_create(model, 0, 0,
                                     &(sl_parameter_set_options){.device = device, .seed = 1},
                                     &set));
    check_ok(sl_optimizer_create(&options, set, &optimizer));
    const float *frozen = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, 0)));
    const float *trained = sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, 1)));
    float frozen_before = frozen[0], trained_before = trained[0];
    gradient_of(sl_parameter_set_get(set, 1));
    check_ok(sl_optimizer_step(optimizer, 0.1, 1));
    assert_true(frozen[0] == frozen_before);
    assert_true(trained[0] != trained_before);
}

/* In one bucket and in two: the weight decays, the bias does not. */
static void decay_of_matrices_leaves_biases_out(void **state)
{
    for (int64_t bytes = 0; bytes <= BUCKET_BYTES; bytes += BUCKET_BYTES)
        for (int kind = SL_OPTIMIZER_SGD; kind <= SL_OPTIMIZER_ADAMW; kind++) {
            const sl_optimizer_options none = {.kind = (sl_optimizer_kind)kind},
                                       all = {.kind = none.kind, .weight_decay = 0.1f},
                                       matrices = {.kind = none.kind,
                                                   .weight_decay = 0.1f,
                                                   .decay = SL_DECAY_MATRICES};
            float weight[WEIGHTS], bias[OUTS], decayed[WEIGHTS], kept[OUTS], unused[WEIGHTS];
            train_unevenly(&matrices, bytes, 3, 0, weight, bias);
            train_unevenly(&all, bytes, 3, 0, decayed, unused);
            assert_memory_equal(weight, decayed, sizeof weight);
            assert_memory_not_equal(bias, unused, sizeof bias);
            train_unevenly(&none, bytes, 3, 0, unused, kept);
            assert_memory_equal(bias, kept, sizeof bias);
        }
}

static void state_is_counted_as_the_optimizers_memory(void **state)
{
    const struct {
        sl_optimizer_options options;
        int64_t bytes;
    } cases[] = {{{0}, 0},
                 {{.momentum = 0.9f}, 4},
                 {{.kind = SL_OPTIMIZER_ADAMW}, 8},
                 {{.kind = SL_OPTIMIZER_ADAMW, .precision = SL_PRECISION_BF16}, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(subject) s = create_subject(64, 1);
        SCOPED(sl_optimizer) *optimizer = NULL;
        sl_memory_stats stats;
        check_ok(sl_optimizer_create(&cases[i].options, s.set, &optimizer));
        sl_device_memory(s.device, &stats);
        assert_int_equal(stats.current_bytes[SL_MEMORY_OPTIMIZER], 64 * cases[i].bytes);
        assert_int_equal(sl_optimizer_state_bytes(&cases[i].options), cases[i].bytes);
    }
}

static void impossible_options_are_refused(void **state)
{
    SCOPED(subject) s = create_subject(4, 1);
    sl_optimizer *optimizer;
    sl_optimizer_options negative = {.momentum = -1}, nesterov = {.nesterov = true},
                         decay = {.weight_decay = NAN},
                         dampening[] = {{.momentum = 0.9f, .dampening = -0.5f},
                                        {.momentum = 0.9f, .dampening = NAN}},
                         beta = {.kind = SL_OPTIMIZER_ADAMW, .beta1 = 1},
                         narrow = {.momentum = 0.9f, .precision = SL_PRECISION_BF16},
                         tf32 = {.kind = SL_OPTIMIZER_ADAMW, .precision = SL_PRECISION_TF32},
                         of_sgd[] = {{.kind = SL_OPTIMIZER_ADAMW, .momentum = 0.9f},
                                     {.kind = SL_OPTIMIZER_ADAMW, .dampening = 0.5f},
                                     {.kind = SL_OPTIMIZER_ADAMW, .nesterov = true}},
                         of_adamw[] = {{.beta1 = 0.8f}, {.beta2 = 0.9f}, {.eps = 0.1f}};
    check_error(sl_optimizer_create(&negative, s.set, &optimizer), SL_ERR_INVALID,
                "momentum must be at least 0, got -1");
    for (int i = 0; i < 2; i++)
        check_error(sl_optimizer_create(&dampening[i], s.set, &optimizer), SL_ERR_INVALID,
                    i ? "dampening must be at least 0, got nan"
                      : "dampening must be at least 0, got -0.5");
    check_error(sl_optimizer_create(&nesterov, s.set, &optimizer), SL_ERR_INVALID,
                "Nesterov momentum requires a momentum and zero dampening");
    check_error(sl_optimizer_create(&decay, s.set, &optimizer), SL_ERR_INVALID, "weight_decay");
    check_error(sl_optimizer_create(&beta, s.set, &optimizer), SL_ERR_INVALID,
                "betas must be in [0, 1)");
    check_error(sl_optimizer_create(&narrow, s.set, &optimizer), SL_ERR_INVALID,
                "averages in bf16 are for adamw, but the optimizer is sgd: leave the optimizer's "
                "precision out");
    check_error(sl_optimizer_create(&tf32, s.set, &optimizer), SL_ERR_INVALID,
                "adamw keeps its averages in f32 or bf16");
    for (int i = 0; i < 3; i++) {
        check_error(sl_optimizer_create(&of_sgd[i], s.set, &optimizer), SL_ERR_INVALID,
                    "sl_optimizer_create: momentum, dampening and nesterov are for sgd, but the "
                    "optimizer is adamw: leave them out");
        check_error(
            sl_optimizer_create(&of_adamw[i], s.set, &optimizer), SL_ERR_INVALID,
            "sl_optimizer_create: betas and eps are for adamw, but the optimizer is sgd: leave "
            "them out");
    }
    assert_null(optimizer);
}

static void step_without_gradients_is_an_error(void **state)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *module = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    SCOPED(sl_optimizer) *optimizer = NULL;
    check_ok(sl_linear_create(2, 2, true, &module));
    check_ok(sl_parameter_set_create(
        module, 0, 0, &(sl_parameter_set_options){.device = device, .no_gradients = true}, &set));
    check_ok(sl_optimizer_create(&(sl_optimizer_options){0}, set, &optimizer));
    check_error(sl_optimizer_step(optimizer, 1, 1), SL_ERR_INVALID, "created without gradients");
}

/* ---- Clipping ---------------------------------------------------------------------------- */

static void coefficient_is_pytorchs(void **state)
{
    /* Gradients [3, 4] with max_norm 0.5 become [0.29999995, 0.39999992]. */
    double coefficient = sli_clip_coefficient(5, 0.5);
    assert_true(fabs(3 * coefficient - 0.29999995) < 1e-8);
    assert_true(fabs(4 * coefficient - 0.39999992) < 1e-8);
    assert_true(sli_clip_coefficient(0.1, 0.5) == 1);
    assert_true(sli_clip_coefficient(0, 0.5) == 1);
    assert_true(isnan(sli_clip_coefficient(NAN, 0.5)));
}

/* Gradients 3, -4 in the weight and 12 in the bias. */
static void check_norm(sl_grad_norm_kind kind, double expected)
{
    SCOPED(sl_device) *device = new_device(2);
    SCOPED(sl_module) *module = new_linear(2, 1);
    SCOPED(sl_parameter_set) *set = NULL;
    check_ok(
        sl_parameter_set_create(module, 0, 0, &(sl_parameter_set_options){.device = device}, &set));
    double terms[2];
    int count;
    check_ok(sli_grad_norm_terms(set, kind, terms, 2, &count));
    assert_int_equal(count, 2);
    assert_true(sli_grad_norm_combine(kind, terms, count) == 0); /* untouched gradients are 0 */
    check_error(sli_grad_norm_terms(set, kind, terms, 1, &count), SL_ERR_INVALID,
                "2 trained parameters give as many terms, there is room for 1");
    assert_int_equal(count, 0);
    float *weight = sl_tensor_f32(gradient_of(sl_parameter_set_get(set, 0)));
    float *bias = sl_tensor_f32(gradient_of(sl_parameter_set_get(set, 1)));
    weight[0] = 3;
    weight[1] = -4;
    bias[0] = 12;
    check_ok(sli_grad_norm_terms(set, kind, terms, 2, &count));
    assert_true(fabs(sli_grad_norm_combine(kind, terms, count) - expected) < 1e-6);
    bias[0] = NAN;
    check_ok(sli_grad_norm_terms(set, kind, terms, 2, &count));
    assert_true(isnan(sli_grad_norm_combine(kind, terms, count)));
}

static void norms_are_over_all_parameters_and_show_nan(void **state)
{
    check_norm(SL_GRAD_NORM_L1, 19);
    check_norm(SL_GRAD_NORM_L2, 13);
    check_norm(SL_GRAD_NORM_INF, 12);
}

static void norm_without_terms_is_zero(void **state)
{
    for (int kind = SL_GRAD_NORM_L1; kind <= SL_GRAD_NORM_INF; kind++)
        assert_true(sli_grad_norm_combine((sl_grad_norm_kind)kind, NULL, 0) == 0);
}

/* ---- Parts of parameters ------------------------------------------------------------------ */

/* Steps with gradients that are functions of the element in the whole parameter. */
static void step_elements(sl_parameter_set *set, sl_parameter *parameter, sl_precision precision)
{
    SCOPED(sl_optimizer) *optimizer = NULL;
    const sl_optimizer_options options = {.kind = SL_OPTIMIZER_ADAMW,
                                          .weight_decay = 0.1f,
                                          .precision = precision};
    check_ok(sl_optimizer_create(&options, set, &optimizer));
    for (int step = 0; step < 3; step++) {
        sl_parameter_set_zero_grad(set);
        float *grad = sl_tensor_f32(gradient_of(parameter));
        for (int64_t i = 0; i < sl_shape_count(sl_parameter_shape(parameter)); i++)
            grad[i] = sinf((float)(parameter->first + i + step));
        check_ok(sl_optimizer_step(optimizer, 0.1, 1));
    }
}

/* Wherever a part begins, it has the bits of the whole one's rows, when it is drawn and after
 * steps, with averages in f32 and bf16. */
static void part_of_a_parameter_is_as_in_the_whole(void **state)
{
    enum { ROWS = 29 };
    unsigned seed = 1;
    for (int round = 0; round < 24; round++) {
        int width = test_draw(&seed, 1, 37), first = test_draw(&seed, 0, ROWS - 1);
        int rows = test_draw(&seed, 1, ROWS - first);
        sl_precision precision = round % 2 ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        SCOPED(sl_device) *device = new_device(2);
        SCOPED(sl_module) *model = NULL;
        sl_parameter part, *parts[] = {&part};
        SCOPED(sl_parameter_set) *whole = NULL, *cut = NULL;
        sl_module *modules[] = {new_linear(width, ROWS), new_linear(ROWS, 2)};
        const sl_parameter_set_options options = {.device = device, .seed = 7};
        check_ok(create_sequential(modules, 2, &model));
        part = *modules[0]->parameters[0];
        if (round % 3 == 0)
            part.deviation = modules[0]->parameters[0]->deviation = 0.5f;
        part.first = (int64_t)first * width;
        part.shape.size[0] = rows;
        check_ok(sl_parameter_set_create(model, 0, 1, &options, &whole));
        check_ok(sli_parameter_set_create(model, 2, 0, parts, 1, &options, &cut));
        const float *expected = sl_tensor_f32(modules[0]->parameters[0]->value) + part.first;
        size_t bytes = (size_t)(rows * width) * sizeof(float);
        assert_memory_equal(sl_tensor_f32(part.value), expected, bytes);
        step_elements(whole, modules[0]->parameters[0], precision);
        step_elements(cut, &part, precision);
        assert_memory_equal(sl_tensor_f32(part.value), expected, bytes);
    }
}

/* ---- Learning rates ---------------------------------------------------------------------- */

static void assert_near(double got, double expected)
{
    assert_true(fabs(got - expected) <= 1e-12 * fabs(expected));
}

static void step_schedule_without_a_gamma_keeps_the_rate(void **state)
{
    const sl_lr_schedule schedule = {.lr = 5};
    assert_true(sl_lr_at(&schedule, 30, 0) == 5 && sl_lr_at(&schedule, 90, 7) == 5);
}

static void step_schedule_multiplies_by_gamma_every_epoch(void **state)
{
    const sl_lr_schedule schedule = {.kind = SL_LR_STEP, .lr = 5, .gamma = 0.95};
    const double expected[] = {5, 4.75, 4.5125, 4.286875};
    for (int epoch = 0; epoch < 4; epoch++)
        assert_near(sl_lr_at(&schedule, 1000, epoch), expected[epoch]);
}

static void step_schedule_of_three_epochs_multiplies_every_third(void **state)
{
    const sl_lr_schedule schedule = {.kind = SL_LR_STEP, .lr = 1, .gamma = 0.1, .step_epochs = 3};
    const double expected[] = {1, 1, 1, 0.1, 0.1, 0.1, 0.01};
    for (int epoch = 0; epoch < 7; epoch++)
        assert_near(sl_lr_at(&schedule, 0, epoch), expected[epoch]);
}

static void warm_up_rises_linearly_to_the_rate(void **state)
{
    const sl_lr_schedule schedule = {.kind = SL_LR_STEP, .lr = 2, .gamma = 0.5, .warmup_steps = 4};
    const double expected[] = {0.5, 1, 1.5, 2, 2};
    for (int step = 0; step < 5; step++)
        assert_near(sl_lr_at(&schedule, step, 0), expected[step]);
    assert_near(sl_lr_at(&schedule, 9, 1), 1);
}

static void cosine_falls_from_the_rate_to_zero(void **state)
{
    const sl_lr_schedule schedule = {.kind = SL_LR_COSINE,
                                     .lr = 2,
                                     .warmup_steps = 10,
                                     .total_steps = 110};
    assert_near(sl_lr_at(&schedule, 9, 0), 2);
    assert_near(sl_lr_at(&schedule, 10, 0), 2);
    assert_near(sl_lr_at(&schedule, 60, 0), 1);
    assert_near(sl_lr_at(&schedule, 35, 0), 1 + sqrt(0.5));
    assert_true(sl_lr_at(&schedule, 110, 0) == 0);
    assert_true(sl_lr_at(&schedule, 500, 0) == 0);
}

/* The same as with so many steps, at any time; steps that are given come first. */
static void warmup_is_a_ratio_of_all_steps(void **state)
{
    (void)state;
    for (sl_lr_kind kind = SL_LR_CONSTANT; kind <= SL_LR_WSD; kind++) {
        const sl_lr_schedule steps = {.kind = kind, .lr = 2, .warmup_steps = 7, .total_steps = 100};
        sl_lr_schedule ratio = {.kind = kind, .lr = 2, .warmup_ratio = 0.07, .total_steps = 100};
        for (int64_t step = 0; step < 100; step++)
            assert_true(sl_lr_at(&ratio, step, 0) == sl_lr_at(&steps, step, 0));
        assert_true(sl_lr_at(&ratio, 0, 0) == 2 / 7.0);
        ratio.total_steps = 7; /* 0.49 steps */
        assert_true(sl_lr_at(&ratio, 0, 0) == 2);
        ratio.warmup_steps = 4;
        assert_true(sl_lr_at(&ratio, 0, 0) == 0.5);
    }
}

/* By hand: of 100 steps behind the warm-up, or of all 110 for WSD, which falls from step 88 on. */
static void schedules_fall_to_the_least_rate(void **state)
{
    sl_lr_schedule s = {.lr = 2, .min_lr = 0.5, .warmup_steps = 10, .total_steps = 110};
    const struct {
        sl_lr_kind kind;
        int64_t step;
        double rate;
    } expected[] = {
        {SL_LR_CONSTANT, 10, 2},
        {SL_LR_CONSTANT, 109, 2},
        {SL_LR_CONSTANT, 500, 2},
        {SL_LR_LINEAR, 10, 2},
        {SL_LR_LINEAR, 60, 1.25},
        {SL_LR_LINEAR, 109, 0.515},
        {SL_LR_LINEAR, 110, 0.5},
        {SL_LR_COSINE, 60, 1.25},
        {SL_LR_COSINE, 500, 0.5},
        {SL_LR_WSD, 10, 2},
        {SL_LR_WSD, 88, 2},
        {SL_LR_WSD, 93, 2 - 1.5 * sqrt(5 / 22.0)},
        {SL_LR_WSD, 99, 2 - 1.5 * sqrt(0.5)},
        {SL_LR_WSD, 110, 0.5},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        s.kind = expected[i].kind;
        assert_near(sl_lr_at(&s, 4, 0), 1); /* the warm-up is the same */
        assert_near(sl_lr_at(&s, expected[i].step, 3), expected[i].rate);
    }
}

int optimizer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_takes_pytorchs_steps),
        cmocka_unit_test(grad_scale_multiplies_the_gradient_and_nothing_else),
        cmocka_unit_test(adamw_takes_pytorchs_steps),
        cmocka_unit_test(adamw_adds_eps_to_the_corrected_root),
        cmocka_unit_test(parameter_without_a_gradient_is_left_as_it_is),
        cmocka_unit_test(averages_in_bf16_are_rounded_by_seed_parameter_and_step),
        cmocka_unit_test(frozen_parameters_are_not_decayed),
        cmocka_unit_test(decay_of_matrices_leaves_biases_out),
        cmocka_unit_test(state_is_counted_as_the_optimizers_memory),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(step_without_gradients_is_an_error),
        cmocka_unit_test(coefficient_is_pytorchs),
        cmocka_unit_test(norms_are_over_all_parameters_and_show_nan),
        cmocka_unit_test(norm_without_terms_is_zero),
        cmocka_unit_test(part_of_a_parameter_is_as_in_the_whole),
        cmocka_unit_test(step_schedule_without_a_gamma_keeps_the_rate),
        cmocka_unit_test(step_schedule_multiplies_by_gamma_every_epoch),
        cmocka_unit_test(step_schedule_of_three_epochs_multiplies_every_third),
        cmocka_unit_test(warm_up_rises_linearly_to_the_rate),
        cmocka_unit_test(cosine_falls_from_the_rate_to_zero),
        cmocka_unit_test(warmup_is_a_ratio_of_all_steps),
        cmocka_unit_test(schedules_fall_to_the_least_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
