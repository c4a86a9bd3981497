/* Every allocation of a training step fails in turn: each time the step must end with
 * SL_ERR_MEMORY and leave nothing behind. Memory of the device and of the host alike; the latter
 * only where this program can put itself before malloc, which sanitizers do themselves. */
#include "device/device_base.h"
#include "sluice/loss.h"
#include "sluice/model.h"
#include "support/check.h"
#include "tensor/tensor.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOST_CAN_FAIL 1
#else
#define HOST_CAN_FAIL 0
#endif

/* ---- Allocations that fail -------------------------------------------------------------- */

static bool armed; /* allocations are counted, and the one at `failing` fails */
static long counted, failing;
static long live; /* host allocations less frees while armed */

static bool this_one_fails(void)
{
    return armed && counted++ == failing;
}

#if HOST_CAN_FAIL
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void __libc_free(void *memory);

void *malloc(size_t bytes)
{
    if (this_one_fails())
        return NULL;
    live += armed;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    if (this_one_fails())
        return NULL;
    live += armed;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    if (this_one_fails())
        return NULL;
    live += armed && !memory;
    return __libc_realloc(memory, bytes);
}

void free(void *memory)
{
    live -= armed && memory;
    __libc_free(memory);
}
#endif

/* The device's own functions, with what they allocate themselves left alone: oneDNN does not
 * promise to survive it. */
static const sli_device_ops *real;

static sl_status failing_allocate(sl_device *device, size_t bytes, void **out)
{
    if (this_one_fails())
        return SL_ERR_MEMORY;
    bool was = armed;
    armed = false;
    sl_status status = real->allocate(device, bytes, out);
    armed = was;
    return status;
}

static void quiet_release(sl_device *device, void *memory, size_t bytes)
{
    bool was = armed;
    armed = false;
    real->release(device, memory, bytes);
    armed = was;
}

static sl_status quiet_gemm(sl_device *device, const sli_gemm *arguments)
{
    bool was = armed;
    armed = false;
    sl_status status = real->gemm(device, arguments);
    armed = was;
    return status;
}

static sl_status quiet_attention(sl_device *device, const sli_attention *arguments)
{
    bool was = armed;
    armed = false;
    sl_status status = real->attention(device, arguments);
    armed = was;
    return status;
}

static sl_status quiet_attention_backward(sl_device *device,
                                          const sli_attention_backward *arguments)
{
    bool was = armed;
    armed = false;
    sl_status status = real->attention_backward(device, arguments);
    armed = was;
    return status;
}

/* ---- What is tried ---------------------------------------------------------------------- */

typedef struct step {
    sl_device *device;
    const sl_tensor *ids;
    sl_model_options options;
    sl_precision precision;
    sl_module *model;
    sl_loss *loss;
    sl_parameter_set *set;
    sl_pass *pass;
    sl_tensor *out, *grad;
} step;

/* The children before the decoder, which the loss takes over, one by one as a stage runs them. */
static sl_status forward(step *one)
{
    const sl_tensor *in = one->ids;
    for (int i = 0; i + 1 < sl_module_child_count(one->model); i++) {
        sl_tensor *next;
        SL_TRY(sl_module_forward(sl_module_child(one->model, i), one->pass, in, &next));
        sl_tensor_destroy(&one->out);
        in = one->out = next;
    }
    return SL_OK;
}

static sl_status backward(step *one)
{
    for (int i = sl_module_child_count(one->model) - 2; i >= 0; i--) {
        sl_tensor *next = NULL;
        SL_TRY(sl_module_backward(sl_module_child(one->model, i), one->pass, one->grad,
                                  i ? &next : NULL));
        sl_tensor_destroy(&one->grad);
        one->grad = next;
    }
    return SL_OK;
}

static sl_status run(step *one)
{
    double row_losses[8];
    sl_parameter_set_options set_options = {.device = one->device, .precision = one->precision};
    sl_pass_options pass_options = {.device = one->device,
                                    .training = true,
                                    .keep = true,
                                    .precision = one->precision};
    SL_TRY(sl_transformer_lm_create(&one->options, &one->model));
    SL_TRY(sl_cross_entropy_create(&one->loss));
    SL_TRY(sl_parameter_set_create(one->model, 0, 0, &set_options, &one->set));
    SL_TRY(sl_pass_create(&pass_options, &one->pass));
    SL_TRY(forward(one));
    sl_loss_call call = {.device = one->device,
                         .last = sl_module_child(one->model, sl_module_child_count(one->model) - 1),
                         .in = one->out,
                         .targets = one->ids,
                         .scale = 1.0,
                         .row_losses = row_losses,
                         .grad_in = &one->grad};
    SL_TRY(sl_loss_apply(one->loss, &call));
    return backward(one);
}

static void clean(step *one)
{
    sl_tensor_destroy(&one->out);
    sl_tensor_destroy(&one->grad);
    sl_pass_destroy(&one->pass);
    sl_parameter_set_destroy(&one->set);
    sl_loss_destroy(&one->loss);
    sl_module_destroy(&one->model);
}

/* Runs the step with allocation number `number` failing. */
static sl_status attempt(const step *plan, long number)
{
    step one = *plan;
    counted = live = 0;
    failing = number;
    armed = true;
    sl_status status = run(&one);
    counted = failing + 1; /* cleaning up may not fail */
    clean(&one);
    armed = false;
    sl_memory_stats memory;
    sl_device_memory(plan->device, &memory);
    if (live != 0 || memory.current_total_bytes != sli_tensor_bytes(plan->ids)) {
        print_error("allocation %ld failed: %ld allocations and %ld bytes of the device are left\n",
                    number, live, (long)memory.current_total_bytes);
        fail();
    }
    return status;
}

static sl_model_options tutorials_options(bool pre_norm)
{
    return (sl_model_options){.ntokens = 5,
                              .emsize = 4,
                              .nhid = 6,
                              .nlayers = 2,
                              .nhead = 2,
                              .dropout = 0.1f,
                              .activation = pre_norm ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU,
                              .pre_norm = pre_norm};
}

/* Llama's, with adapters of all products. */
static sl_model_options adapted_options(void)
{
    return (sl_model_options){
        .family = SL_FAMILY_LLAMA,
        .ntokens = 5,
        .emsize = 4,
        .nhid = 6,
        .nlayers = 2,
        .nhead = 2,
        .pre_norm = true,
        .decoder = {.positions = 8, .norm_eps = 1e-5, .deviation = 0.1},
        .lora = {.adapts = true, .rank = 2, .dropout = 0.1f, .targets = "all-linear"}};
}

static void check_step(sl_device *device, const sl_tensor *ids, sl_model_options options,
                       sl_precision precision)
{
    step plan = {.device = device, .ids = ids, .precision = precision, .options = options};
    long number = 0;
    for (; number < 100000; number++) {
        sl_status status = attempt(&plan, number);
        if (status == SL_OK)
            break;
        check_error(status, SL_ERR_MEMORY, "memory");
    }
    assert_in_range(number, HOST_CAN_FAIL ? 300 : 30, 5000);
    print_message("%ld allocations failed in turn\n", number);
}

static void training_step_survives_each_failing_allocation(void **state)
{
    SCOPED(sl_device) *device = NULL;
    SCOPED(sl_tensor) *ids = NULL;
    check_ok(sl_device_create_cpu(1, &device));
    const int32_t tokens[] = {0, 1, 2, 3, 4, 0, 1, 2};
    sl_shape shape = sl_shape_2d(2, 4);
    check_ok(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_I32, &shape, &ids));
    check_ok(sl_tensor_write(ids, tokens));
    real = device->ops;
    sli_device_ops table = *real;
    table.allocate = failing_allocate;
    table.allocate_zero = NULL; /* allocate serves it, too */
    table.release = quiet_release;
    table.gemm = quiet_gemm;
    table.attention = quiet_attention;
    table.attention_backward = quiet_attention_backward;
    device->ops = &table;
    for (sl_precision p = SL_PRECISION_F32; p <= SL_PRECISION_BF16; p++) {
        check_step(device, ids, tutorials_options(false), p);
        check_step(device, ids, tutorials_options(true), p);
        check_step(device, ids, adapted_options(), p);
    }
    device->ops = real;
}

int out_of_memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_step_survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
