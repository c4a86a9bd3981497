/* A required pointer that is NULL gives an error that names it, in every public function of the
 * pipe, of DataParallel and of DDP. */
#include "nn/module.h"
#include "sluice/data_parallel.h"
#include "sluice/ddp.h"
#include "sluice/layers.h"

#include "support/check.h"
#include "support/modules.h"
#include "support/replicas.h"

#include <string.h>

#define check_null(call, text) check_error(call, SL_ERR_INVALID, text)

typedef struct bench {
    sl_device *device;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_tensor *rows; /* [4, 3]: the input, and the targets */
} bench;

static sl_status open_bench(bench *b)
{
    sl_module *layer;
    sl_shape shape = sl_shape_2d(4, 3);
    SL_TRY(sl_device_create_cpu(1, &b->device));
    SL_TRY(sl_linear_create(3, 3, false, &layer));
    SL_TRY(create_sequential(&layer, 1, &b->model));
    SL_TRY(sl_mse_loss_create(&b->loss));
    SL_TRY(sl_tensor_create_zero(b->device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &b->rows));
    const sl_pipe_options options = {.model = b->model,
                                     .loss = b->loss,
                                     .stages = 1,
                                     .devices = &b->device};
    return sl_pipe_create(&options, &b->pipe);
}

static void bench_destroy(bench *b)
{
    sl_tensor_destroy(&b->rows);
    sl_pipe_destroy(&b->pipe);
    sl_loss_destroy(&b->loss);
    sl_module_destroy(&b->model);
    sl_device_destroy(&b->device);
}

static void pipe_names_what_is_missing(void **state)
{
    SCOPED(bench) b = {0};
    sl_pipe *pipe;
    sl_tensor *output;
    double loss;
    int64_t terms;
    int balance[1];
    check_ok(open_bench(&b));
    check_null(sl_partition(NULL, 1, SL_PARTITION_LAYERS, balance), "sl_partition: model is NULL");
    check_null(sl_partition(b.model, 1, SL_PARTITION_LAYERS, NULL), "balance is NULL");
    check_null(sl_pipe_create(NULL, &pipe), "sl_pipe_create: options is NULL");
    assert_null(pipe);
    check_null(sl_pipe_create(&(sl_pipe_options){0}, NULL), "sl_pipe_create: out is NULL");
    const sl_pipe_batch whole = {.input = b.rows, .targets = b.rows};
    check_null(sl_pipe_forward(b.pipe, NULL, &output), "sl_pipe_forward: batch is NULL");
    assert_null(output);
    check_null(sl_pipe_forward(b.pipe, &(sl_pipe_batch){.targets = b.rows}, &output),
               "sl_pipe_forward: batch->input is NULL");
    check_null(sl_pipe_forward(NULL, &whole, &output), "sl_pipe_forward: pipe is NULL");
    check_null(sl_pipe_forward(b.pipe, &whole, NULL), "sl_pipe_forward: output is NULL");
    check_null(sl_pipe_train(b.pipe, NULL, &loss), "sl_pipe_train: batch is NULL");
    check_null(sl_pipe_train(b.pipe, &(sl_pipe_batch){.targets = b.rows}, &loss),
               "sl_pipe_train: batch->input is NULL");
    check_null(sl_pipe_train(b.pipe, &(sl_pipe_batch){.input = b.rows}, &loss),
               "sl_pipe_train: the batch has no targets");
    check_null(sl_pipe_train(b.pipe, &whole, NULL), "sl_pipe_train: mean_loss is NULL");
    check_null(sl_pipe_train(NULL, &whole, &loss), "sl_pipe_train: pipe is NULL");
    check_null(sl_pipe_evaluate(b.pipe, NULL, &loss, &terms), "sl_pipe_evaluate: batch is NULL");
    check_null(sl_pipe_evaluate(b.pipe, &(sl_pipe_batch){.targets = b.rows}, &loss, &terms),
               "sl_pipe_evaluate: batch->input is NULL");
    check_null(sl_pipe_evaluate(b.pipe, &(sl_pipe_batch){.input = b.rows}, &loss, &terms),
               "sl_pipe_evaluate: the batch has no targets");
    check_null(sl_pipe_evaluate(b.pipe, &whole, NULL, &terms), "loss_sum is NULL");
    check_null(sl_pipe_evaluate(b.pipe, &whole, &loss, NULL), "terms is NULL");
    check_null(sl_pipe_evaluate(NULL, &whole, &loss, &terms), "pipe is NULL");
    sl_pipe_batch further = {.input = b.rows, .targets = b.rows, .input_count = 1};
    check_null(sl_pipe_train(b.pipe, &further, &loss),
               "sl_pipe_train: inputs is NULL, but input_count is 1");
    further.input_count = -1;
    check_null(sl_pipe_train(b.pipe, &further, &loss),
               "sl_pipe_train: input_count must be at least 0, got -1");
    check_null(sl_pipe_run_on_stages(b.pipe, NULL, NULL), "sl_pipe_run_on_stages: fn is NULL");
    check_null(sl_pipe_run_on_stages(NULL, NULL, NULL), "sl_pipe_run_on_stages: pipe is NULL");
    check_ok(sl_pipe_train(b.pipe, &whole, &loss)); /* it is none the worse for it */
}

static void data_parallel_names_what_is_missing(void **state)
{
    SCOPED(bench) b = {0};
    SCOPED(sl_module) *module = new_linear(3, 3);
    SCOPED(sl_data_parallel) *parallel = NULL;
    SCOPED(sl_tensor) *output = NULL;
    const sl_pass_options pass = {.keep = true};
    check_ok(open_bench(&b));
    const sl_data_parallel_options options = {.module = module,
                                              .devices = &b.device,
                                              .device_count = 1};
    check_null(sl_data_parallel_create(NULL, &parallel), "create: options is NULL");
    check_null(sl_data_parallel_create(&options, NULL), "create: out is NULL");
    check_ok(sl_data_parallel_create(&options, &parallel));
    check_null(sl_data_parallel_forward(NULL, &pass, b.rows, &output), "parallel is NULL");
    check_null(sl_data_parallel_forward(parallel, NULL, b.rows, &output), "pass is NULL");
    check_null(sl_data_parallel_forward(parallel, &pass, NULL, &output),
               "sl_data_parallel_forward: input is NULL");
    assert_null(output);
    check_null(sl_data_parallel_forward(parallel, &pass, b.rows, NULL), "output is NULL");
    check_ok(sl_data_parallel_forward(parallel, &pass, b.rows, &output));
    check_null(sl_data_parallel_backward(parallel, NULL, NULL),
               "sl_data_parallel_backward: grad_output is NULL");
    check_null(sl_data_parallel_backward(NULL, output, NULL), "parallel is NULL");
    check_ok(sl_data_parallel_backward(parallel, output, NULL));
}

static void ddp_names_what_is_missing(void **state)
{
    SCOPED(sl_group) *group = NULL;
    SCOPED(toy) replica = {0};
    SCOPED(sl_pass) *pass = NULL;
    sl_ddp *ddp;
    sl_tensor *out;
    check_ok(sl_group_create_local(1, NULL, &group));
    check_ok(toy_open(group, &(toy_options){0}, NULL, &replica));
    check_ok(sl_pass_create(&(sl_pass_options){.device = replica.device, .keep = true}, &pass));
    sl_shape shape = sl_shape_1d(1);
    SCOPED(sl_tensor) *in = random_tensor(replica.device, &shape, 1);
    check_null(sl_ddp_create(NULL, &ddp), "sl_ddp_create: options is NULL");
    check_null(sl_ddp_create(&(sl_ddp_options){.group = group}, NULL), "out is NULL");
    check_null(sl_ddp_train(NULL, NULL, NULL), "sl_ddp_train: ddp is NULL");
    check_null(sl_ddp_forward(NULL, pass, in, &out), "sl_ddp_forward: ddp is NULL");
    check_null(sl_ddp_forward(replica.ddp, NULL, in, &out), "sl_ddp_forward: pass is NULL");
    check_null(sl_ddp_forward(replica.ddp, pass, in, NULL), "sl_ddp_forward: out is NULL");
    check_null(sl_ddp_backward(NULL, pass, in, NULL), "sl_ddp_backward: ddp is NULL");
    check_null(sl_ddp_backward(replica.ddp, NULL, in, NULL), "sl_ddp_backward: pass is NULL");
    check_null(sl_ddp_join_begin(NULL, NULL), "sl_ddp_join_begin: ddp is NULL");
    check_null(sl_ddp_join_end(NULL), "sl_ddp_join_end: ddp is NULL");
    check_null(sl_ddp_register_hook(NULL, sl_ddp_average_hook, NULL), "ddp is NULL");
    check_null(sl_ddp_register_hook(replica.ddp, NULL, NULL), "hook is NULL");
    check_ok(toy_step(&replica, 1));
    check_null(sl_ddp_forward(replica.ddp, pass, NULL, &out), "there is no input");
    check_null(sl_ddp_backward(replica.ddp, pass, NULL, NULL), "there is no gradient");
}

/* Rank 1's batch lacks something: both ranks get the error, and neither waits. */
static sl_status train_without(sl_group *group, void *arg)
{
    const char *what = arg;
    SCOPED(bench) b = {0};
    SCOPED(sl_ddp) *ddp = NULL;
    double loss;
    SL_TRY(open_bench(&b));
    SL_TRY(sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = b.pipe}, &ddp));
    bool lacks = sl_group_rank(group) == 1;
    const sl_pipe_batch batch = {.input =
                                     lacks && strcmp(what, "batch->input") == 0 ? NULL : b.rows,
                                 .targets = b.rows};
    sl_status status = sl_ddp_train(ddp, lacks && strcmp(what, "batch") == 0 ? NULL : &batch,
                                    lacks && strcmp(what, "mean_loss") == 0 ? NULL : &loss);
    char expected[64];
    snprintf(expected, sizeof expected, "sl_pipe_train: %s is NULL", what);
    status = expect(status == SL_ERR_INVALID && strstr(sl_error_text(), expected),
                    "\"%s\" on every rank, got \"%s\"", expected, sl_error_text());
    return status;
}

static void ddp_step_without_its_batch_fails_on_every_rank(void **state)
{
    check_ranks(train_without, "batch", 2);
    check_ranks(train_without, "batch->input", 2);
    check_ranks(train_without, "mean_loss", 2);
}

static void recompute_parse_names_what_is_missing(void **state)
{
    sl_recompute mode;
    check_null(sl_recompute_parse(NULL, &mode), "sl_recompute_parse: text is NULL");
    check_null(sl_recompute_parse("never", NULL), "sl_recompute_parse: out is NULL");
}

int missing_arguments_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipe_names_what_is_missing),
        cmocka_unit_test(recompute_parse_names_what_is_missing),
        cmocka_unit_test(data_parallel_names_what_is_missing),
        cmocka_unit_test(ddp_names_what_is_missing),
        cmocka_unit_test(ddp_step_without_its_batch_fails_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
