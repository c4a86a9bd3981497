/* Devices whose n-th operation fails, each n in turn: training through a pipe of two stages, and on
 * replicas, must then end with that error, give no wrong result, hang nowhere and leave nothing
 * behind. */
#include "../examples/u_net.h"
#include "device/device_base.h"
#include "nn/module.h"
#include "sluice/data_parallel.h"
#include "sluice/layers.h"
#include "sluice/model.h"
#include "sluice/pipe_optimizer.h"
#include "support/modules.h"
#include "support/replicas.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- Devices that fail ------------------------------------------------------------------ */

static const char failure_text[] = "the device has fallen off the bus";

static const sli_device_ops *real;
static _Atomic long counted;     /* operations since the last start */
static _Atomic long failing = 0; /* the operation that fails; 0: none */
static bool all_later_fail;      /* it is dead, not hiccuping */
static _Atomic long failures;

static sl_status count_one(void)
{
    long number = ++counted;
    if (failing == 0 || number < failing || (number > failing && !all_later_fail))
        return SL_OK;
    failures++;
    return sl_error(SL_ERR_IO, "%s", failure_text);
}

static sl_status failing_allocate(sl_device *device, size_t bytes, void **out)
{
    SL_TRY(count_one());
    return real->allocate(device, bytes, out);
}

static sl_status failing_copy(sl_device *device, void *to, const void *from, size_t bytes)
{
    SL_TRY(count_one());
    return real->copy(device, to, from, bytes);
}

static sl_status failing_zero(sl_device *device, void *to, size_t bytes)
{
    SL_TRY(count_one());
    return real->zero(device, to, bytes);
}

static sl_status failing_add(sl_device *device, int64_t count, float *to, const float *from)
{
    SL_TRY(count_one());
    return real->add(device, count, to, from);
}

static sl_status failing_initialize(sl_device *device, const sli_init *init, uint64_t seed,
                                    uint32_t site, int64_t count, float *to)
{
    SL_TRY(count_one());
    return real->initialize(device, init, seed, site, count, to);
}

#define FAILING(slot)                                                                              \
    static sl_status failing_##slot(sl_device *device, const sli_##slot *arguments)                \
    {                                                                                              \
        SL_TRY(count_one());                                                                       \
        return real->slot(device, arguments);                                                      \
    }
FAILING(gemm)
FAILING(epilogue)
FAILING(epilogue_backward)
FAILING(embedding)
FAILING(embedding_backward)
FAILING(add_dropout)
FAILING(add_norm)
FAILING(add_norm_backward)
FAILING(swiglu)
FAILING(swiglu_backward)
FAILING(rotary)
FAILING(attention)
FAILING(attention_backward)
FAILING(cross_entropy)
FAILING(sgd)
FAILING(adamw)
FAILING(norm_terms)

static sli_device_ops failing_ops;

static sl_status create_device(sl_device **out)
{
    SL_TRY(sl_device_create_cpu(1, out));
    (*out)->ops = &failing_ops;
    return SL_OK;
}

static int set_up(void **state)
{
    sl_device *device;
    if (sl_device_create_cpu(1, &device) != SL_OK)
        return -1;
    real = device->ops;
    sl_device_destroy(&device);
    failing_ops = (sli_device_ops){
        .destroy = real->destroy,
        .allocate = failing_allocate,
        .release = real->release,
        .copy = failing_copy,
        .zero = failing_zero,
        .gemm = failing_gemm,
        .epilogue = failing_epilogue,
        .epilogue_backward = failing_epilogue_backward,
        .embedding = failing_embedding,
        .embedding_backward = failing_embedding_backward,
        .add_dropout = failing_add_dropout,
        .add_norm = failing_add_norm,
        .add_norm_backward = failing_add_norm_backward,
        .swiglu = failing_swiglu,
        .swiglu_backward = failing_swiglu_backward,
        .rotary = failing_rotary,
        .attention = failing_attention,
        .attention_backward = failing_attention_backward,
        .cross_entropy = failing_cross_entropy,
        .add = failing_add,
        .sgd = failing_sgd,
        .adamw = failing_adamw,
        .norm_terms = failing_norm_terms,
        .initialize = failing_initialize,
    };
    return 0;
}

static void start(long number, bool dies)
{
    counted = failures = 0;
    failing = number;
    all_later_fail = dies;
}

/* True where no operation failed, which is the end of the list. */
static bool check_end(const char *who, sl_status status)
{
    long number = failing, failed = failures;
    failing = 0;
    if (failed == 0) {
        check_ok(status);
        return true;
    }
    if (status == SL_OK || !strstr(sl_error_text(), failure_text)) {
        print_error("%s: operation %ld failed, and the step ended with %d (%s)\n", who, number,
                    (int)status, status == SL_OK ? "" : sl_error_text());
        fail();
    }
    return false;
}

static void check_nothing_left(const char *who, long number, sl_device *device)
{
    if (device_bytes(device) != 0)
        fail_msg("%s: operation %ld failed, %ld bytes are left on a device", who, number,
                 (long)device_bytes(device));
}

/* ---- A pipe of two stages --------------------------------------------------------------- */

enum { STAGES = 2, ROWS = 3, TIME = 4, TOKENS = 5, WIDTH = 4, STEPS = 2 };
enum { APART = IS_SANITIZED ? 3 : 1 }; /* operations that fail: each, or every third */

typedef struct plan {
    const char *name;
    sl_status (*create)(sl_module **model, sl_loss **loss);
    bool ids; /* input and targets are tokens; else numbers */
    const char *schedule;
    sl_recompute recompute;
    sl_optimizer_options optimizer;
} plan;

typedef struct run {
    const plan *plan;
    sl_device *devices[STAGES];
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_tensor *input, *targets, *output;
    double losses[STEPS], norm, evaluated;
    bool is_updated; /* an optimizer has begun to change the weights */
} run;

static sl_status create_lm(bool pre_norm, sl_module **model, sl_loss **loss)
{
    sl_model_options options = {.ntokens = TOKENS,
                                .emsize = WIDTH,
                                .nhid = 6,
                                .nlayers = 2,
                                .nhead = 2,
                                .dropout = 0.1f,
                                .activation = pre_norm ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU,
                                .pre_norm = pre_norm};
    SL_TRY(sl_transformer_lm_create(&options, model));
    return sl_cross_entropy_create(loss);
}

static sl_status create_post_norm(sl_module **model, sl_loss **loss)
{
    return create_lm(false, model, loss);
}

static sl_status create_pre_norm(sl_module **model, sl_loss **loss)
{
    return create_lm(true, model, loss);
}

static sl_status create_layers(sl_module **model, sl_loss **loss)
{
    sl_module *modules[6];
    SL_TRY(sl_mse_loss_create(loss));
    SL_TRY(sl_linear_create(WIDTH, WIDTH, false, &modules[0]));
    SL_TRY(sl_activation_create(SL_ACTIVATION_RELU, &modules[1]));
    SL_TRY(sl_layer_norm_create(WIDTH, 0, &modules[2]));
    SL_TRY(sl_dropout_create(0.2f, &modules[3]));
    SL_TRY(sl_activation_create(SL_ACTIVATION_GELU, &modules[4]));
    SL_TRY(sl_linear_create(WIDTH, WIDTH, true, &modules[5]));
    return create_sequential(modules, 6, model);
}

static sl_status create_u_net(sl_module **model, sl_loss **loss)
{
    SL_TRY(sl_mse_loss_create(loss));
    return u_net_create(WIDTH, model);
}

static sl_status create_batch(run *r)
{
    sl_shape shape = sl_shape_3d(ROWS, TIME, WIDTH);
    int32_t ids[ROWS * TIME];
    float numbers[ROWS * TIME * WIDTH];
    for (int i = 0; i < ROWS * TIME; i++)
        ids[i] = i * i % TOKENS;
    for (int i = 0; i < ROWS * TIME * WIDTH; i++)
        numbers[i] = (float)(i % 7) - 3;
    shape.dims = r->plan->ids ? 2 : 3;
    sl_dtype dtype = r->plan->ids ? SL_I32 : SL_F32;
    const void *values = r->plan->ids ? (const void *)ids : numbers;
    SL_TRY(sl_tensor_create(r->devices[0], SL_MEMORY_ACTIVATIONS, dtype, &shape, &r->input));
    SL_TRY(sl_tensor_write(r->input, values));
    SL_TRY(sl_tensor_create(r->devices[1], SL_MEMORY_ACTIVATIONS, dtype, &shape, &r->targets));
    return sl_tensor_write(r->targets, values);
}

static sl_status create_run(run *r)
{
    SL_TRY(create_batch(r));
    SL_TRY(r->plan->create(&r->model, &r->loss));
    SL_TRY(sl_pipe_create(&(sl_pipe_options){.model = r->model,
                                             .loss = r->loss,
                                             .stages = STAGES,
                                             .devices = r->devices,
                                             .chunks = 2,
                                             .schedule = r->plan->schedule,
                                             .recompute = r->plan->recompute,
                                             .first_bucket_bytes = 100,
                                             .bucket_bytes = 200},
                          &r->pipe));
    return sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = r->pipe,
                                                                 .optimizer = r->plan->optimizer},
                                    &r->optimizer);
}

static sl_status train(run *r, int step)
{
    sl_pipe_batch batch = {.input = r->input, .targets = r->targets, .step = (uint64_t)step};
    sl_pipe_zero_grad(r->pipe);
    return sl_pipe_train(r->pipe, &batch, &r->losses[step]);
}

static sl_status read_weights(const run *r)
{
    for (int s = 0; s < STAGES; s++) {
        const sl_parameter_set *set = sl_pipe_parameters(r->pipe, s);
        for (int b = 0; b < sl_parameter_set_bucket_count(set); b++) {
            const sl_tensor *values = sl_parameter_set_bucket_values(set, b);
            float *host = malloc(sli_tensor_bytes(values));
            sl_status status = sl_tensor_read(values, host);
            free(host);
            SL_TRY(status);
        }
    }
    return SL_OK;
}

static sl_status run_steps(run *r)
{
    int64_t terms;
    SL_TRY(create_run(r));
    for (int step = 0; step < STEPS; step++) {
        SL_TRY(train(r, step));
        SL_TRY(sl_clip_grad_norm(r->pipe, 1, SL_GRAD_NORM_L2, false, &r->norm));
        r->is_updated = true;
        SL_TRY(sl_pipe_optimizer_step(r->optimizer, 0.1, 0, NULL));
    }
    SL_TRY(sl_pipe_evaluate(r->pipe, &(sl_pipe_batch){.input = r->input, .targets = r->targets},
                            &r->evaluated, &terms));
    SL_TRY(sl_pipe_forward(r->pipe, &(sl_pipe_batch){.input = r->input}, &r->output));
    return read_weights(r);
}

static void destroy_run(run *r)
{
    sl_tensor_destroy(&r->input);
    sl_tensor_destroy(&r->targets);
    sl_tensor_destroy(&r->output);
    sl_pipe_optimizer_destroy(&r->optimizer);
    sl_pipe_destroy(&r->pipe);
    sl_loss_destroy(&r->loss);
    sl_module_destroy(&r->model);
}

/* Runs with operation `number` failing; true where there is no such operation. After a failure
 * before the first update, the pipe must train as if nothing had been. */
static bool attempt(const plan *p, sl_device *const *devices, long number, bool dies, run *results)
{
    run r = {.plan = p, .devices = {devices[0], devices[1]}};
    start(number, dies);
    bool end = check_end(p->name, run_steps(&r));
    if (number == 0)
        *results = r;
    else if (end)
        assert_true(r.losses[0] == results->losses[0] && r.losses[1] == results->losses[1] &&
                    r.norm == results->norm && r.evaluated == results->evaluated);
    else if (r.pipe && r.optimizer && !r.is_updated) {
        check_ok(train(&r, 0));
        assert_true(r.losses[0] == results->losses[0]);
    }
    destroy_run(&r);
    for (int s = 0; s < STAGES; s++)
        check_nothing_left(p->name, number, devices[s]);
    return end;
}

static void check_plan(const plan *p)
{
    sl_device *devices[STAGES];
    run results;
    for (int s = 0; s < STAGES; s++)
        check_ok(create_device(&devices[s]));
    attempt(p, devices, 0, false, &results);
    assert_true(isfinite(results.losses[0]) && results.losses[1] != results.losses[0]);
    long number = 1;
    while (!attempt(p, devices, number, number % 2, &results))
        number += APART;
    assert_in_range(number, 100, 5000);
    print_message("%s: %ld operations failed in turn\n", p->name, (number - 1) / APART);
    for (int s = 0; s < STAGES; s++)
        sl_device_destroy(&devices[s]);
}

static void each_failing_operation_of_a_pipe_ends_the_step(void **state)
{
    static const plan plans[] = {
        {"post-norm",
         create_post_norm,
         true,
         "gpipe",
         SL_RECOMPUTE_EXCEPT_LAST,
         {.kind = SL_OPTIMIZER_SGD, .momentum = 0.9f}},
        {"pre-norm",
         create_pre_norm,
         true,
         "1f1b",
         SL_RECOMPUTE_NEVER,
         {.kind = SL_OPTIMIZER_ADAMW}},
        {"layers", create_layers, false, "1f1b", SL_RECOMPUTE_ALWAYS, {.kind = SL_OPTIMIZER_SGD}},
        {"skip connections",
         create_u_net,
         false,
         "zb-h1",
         SL_RECOMPUTE_EXCEPT_LAST,
         {.kind = SL_OPTIMIZER_SGD}},
    };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        check_plan(&plans[i]);
}

/* ---- Replicas --------------------------------------------------------------------------- */

static _Atomic long bytes_left;

/* Rank 1 runs out of data after one step of the two, and takes part in the other's exchange. One
 * parameter gets no gradient: the reducer zeroes it. */
static sl_status train_uneven_rank(sl_group *group, void *arg)
{
    static const toy_options options = {.with_unused = true, .unused_size = 100};
    static const sl_ddp_options unused = {.find_unused_parameters = true};
    SCOPED(toy) replica = {0};
    sl_memory_stats before, after;
    SL_TRY(toy_open(group, &options, &unused, &replica));
    sl_device_memory(replica.device, &before);
    replica.device->ops = &failing_ops;
    SL_TRY(sl_ddp_join_begin(replica.ddp, NULL));
    for (int step = 0; step < 2 - sl_group_rank(group); step++) {
        sl_tensor *grad;
        sl_parameter_set_zero_grad(replica.set);
        SL_TRY(toy_step(&replica, 1));
        SL_TRY(sl_parameter_grad(sl_parameter_set_get(replica.set, 0), &grad));
        SL_TRY(expect(sl_tensor_f32(grad)[0] == (step == 0 ? 1 : 0.5f), "the average, got %g",
                      sl_tensor_f32(grad)[0]));
    }
    SL_TRY(sl_ddp_join_end(replica.ddp));
    sl_device_memory(replica.device, &after);
    bytes_left += (long)(after.current_total_bytes - before.current_total_bytes);
    return SL_OK;
}

static void each_failing_operation_of_a_replica_ends_all(void **state)
{
    sl_group_options options = {.timeout_seconds = 60};
    for (long number = 1;; number++) {
        start(number, number % 2);
        sl_status status = sl_spawn(train_uneven_rank, NULL, 2, &options);
        assert_int_equal(bytes_left, 0);
        if (!check_end("ddp", status))
            continue;
        assert_in_range(number, 10, 100);
        break;
    }
}

static sl_status replicate(void *arg, sl_module **out)
{
    SCOPED(sl_loss) *loss = NULL;
    return create_layers(out, &loss);
}

static sl_status run_data_parallel(sl_device *const *devices, sl_module *model,
                                   sl_data_parallel **parallel, sl_tensor **tensors)
{
    sl_shape shape = sl_shape_3d(ROWS, TIME, WIDTH);
    sl_pass_options pass = {.training = true, .keep = true};
    sl_data_parallel_options options = {.module = model,
                                        .replicate = replicate,
                                        .devices = devices,
                                        .device_count = STAGES};
    SL_TRY(sl_data_parallel_create(&options, parallel));
    SL_TRY(sl_tensor_create_zero(devices[0], SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &tensors[0]));
    SL_TRY(sl_data_parallel_forward(*parallel, &pass, tensors[0], &tensors[1]));
    SL_TRY(sl_data_parallel_backward(*parallel, tensors[1], &tensors[2]));
    return SL_OK;
}

static void each_failing_operation_of_data_parallel_ends_the_step(void **state)
{
    sl_device *devices[STAGES];
    bool end = false;
    for (int s = 0; s < STAGES; s++)
        check_ok(create_device(&devices[s]));
    for (long number = 1; !end; number++) {
        sl_module *model = NULL;
        sl_data_parallel *parallel = NULL;
        sl_tensor *tensors[3] = {NULL, NULL, NULL};
        check_ok(replicate(NULL, &model));
        start(number, number % 2);
        end = check_end("data parallel", run_data_parallel(devices, model, &parallel, tensors));
        for (int i = 0; i < 3; i++)
            sl_tensor_destroy(&tensors[i]);
        sl_data_parallel_destroy(&parallel);
        sl_module_destroy(&model);
        for (int s = 0; s < STAGES; s++)
            check_nothing_left("data parallel", number, devices[s]);
        assert_true(!end || number > 50);
    }
    for (int s = 0; s < STAGES; s++)
        sl_device_destroy(&devices[s]);
}

int failing_device_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failing_operation_of_a_pipe_ends_the_step),
        cmocka_unit_test(each_failing_operation_of_a_replica_ends_all),
        cmocka_unit_test(each_failing_operation_of_data_parallel_ends_the_step),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
