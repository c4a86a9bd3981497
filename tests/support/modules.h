/* Checks that every module must pass, what they are made of, and a module that shows its calls. */
#ifndef TESTS_SUPPORT_MODULES_H
#define TESTS_SUPPORT_MODULES_H

#include "sluice/loss.h"
#include "sluice/model.h"
#include "sluice/module.h"
#include "support/check.h"

#include <stdatomic.h>

/* What every test can have. */
sl_device *new_device(int threads);
sl_loss *new_mse_loss(void);
sl_loss *new_cross_entropy(void);
sl_module *new_linear(int64_t in, int64_t out);

/* A sequential of these modules, none or more, which it takes, also when it fails. */
sl_status create_sequential(sl_module *const *modules, int count, sl_module **out);
sl_module *new_sequential(sl_module *const *modules, int count);

/* f32, uniform in [-1, 1) as a function of the seed. */
sl_tensor *random_tensor(sl_device *device, const sl_shape *shape, uint64_t seed);

/* i32, from `count` values. */
sl_tensor *integer_tensor(sl_device *device, const sl_shape *shape, const int32_t *values);

/* f32, from host values. */
sl_tensor *float_tensor(sl_device *device, const sl_shape *shape, const float *values);

/* Its elements, malloc'ed. */
float *tensor_values(const sl_tensor *tensor);

/* What these give, which they must give. */
sl_tensor *gradient_of(sl_parameter *parameter);
sl_tensor *bucket_gradients(sl_parameter_set *set, int index);
int64_t loss_terms(const sl_loss *loss, const sl_tensor *targets);

/* A model of a family that is not the tutorials', with dropout, where the family has it: its heads,
 * biases, norms, rotary positions, layers without them and tie are drawn; rows have at most
 * `positions` tokens. */
sl_model_options draw_decoder(unsigned *state, int layers, int classes, int positions);

/* The tutorials' model, two layers with two heads and dropout; norms and activation by `variant`, 0
 * to 3. */
sl_module *new_language_model(int classes, int width, int variant, sl_mask mask);

/* ||a - b|| / ||b||, or ||a - b|| where b is 0. */
double relative_distance(const float *a, const float *b, int64_t count);

/* All of a module's parameters, with random values that favour nothing: norms' weights near 1. */
sl_parameter_set *random_parameters(sl_module *module, sl_device *device);

typedef struct module_case {
    sl_module *module; /* borrowed */
    sl_shape in;
    int32_t id_count; /* above 0: the input is ids 0 … id_count - 1 and has no gradient */
    bool training;    /* dropout is on */
} module_case;

/* sl_module_check, in both precisions. */
void check_module(const module_case *one);

/* Checks that samples do not depend on which micro-batch they are in, dropout included. */
void check_samples_are_independent(const module_case *one);

/* The names that PyTorch gives the parameters of an nn.TransformerEncoderLayer, in its order. */
enum { LAYER_NAMES = 12 };
extern const char *const layer_names[LAYER_NAMES];

/* ---- A module that passes its input on, and lets a test see, delay and fail its calls ------- */

/* Calls are counted from 1; the counters may be read by any thread. */
typedef struct probe {
    atomic_int forwards, backwards;
    int fail_forward, fail_backward; /* the call that fails with SL_ERR_NUMERIC; 0: none */
    /* (optional) Called in each forward, before anything else. */
    void (*on_forward)(struct probe *probe, int call);
    void *arg;
    bool gives_nothing;  /* forward and backward report success, and no result */
    bool leaves_on_pass; /* backward does not pop */
} probe;

/* Forward makes a copy of its input and saves the input; backward gives the gradient on. The module
 * borrows the probe. */
sl_module *probe_module(probe *probe);

#endif
