/* DistributedDataParallel at its smallest: four ranks, each a replica of a small model with weights
 * of its own at first, train one step on data of their own, and have equal weights.
 *
 * The ranks are threads of this process. Nothing would change but the group if they were processes.
 */
#include <sluice/sluice.h>

#include <stdio.h>
#include <string.h>

enum { RANKS = 4, ROWS = 20, IN = 10, OUT = 5 };

/* ---- One rank's replica ---- */

typedef struct replica {
    sl_device *device;
    sl_module *module;
    sl_parameter_set *parameters;
    sl_loss *loss;
    sl_optimizer *optimizer;
    sl_ddp *ddp;
} replica;

/* Linear(10, 10), ReLU, Linear(10, 5). */
static sl_status create_toy_model(sl_module **out)
{
    sl_module *layers[3];
    SL_TRY(sl_linear_create(IN, 10, false, &layers[0]));
    SL_TRY(sl_activation_create(SL_ACTIVATION_RELU, &layers[1]));
    SL_TRY(sl_linear_create(10, OUT, false, &layers[2]));
    return sl_sequential_create(layers, 3, out);
}

static sl_status open_replica(sl_group *group, replica *at)
{
    SL_TRY(sl_device_create_cpu(1, &at->device));
    SL_TRY(create_toy_model(&at->module));
    sl_parameter_set_options placement = {.device = at->device,
                                          .seed = (uint64_t)sl_group_rank(group)};
    SL_TRY(sl_parameter_set_create(at->module, 0, 0, &placement, &at->parameters));
    SL_TRY(sl_mse_loss_create(&at->loss));
    sl_optimizer_options sgd = {.kind = SL_OPTIMIZER_SGD};
    SL_TRY(sl_optimizer_create(&sgd, at->parameters, &at->optimizer));
    sl_ddp_options options = {.group = group, .module = at->module, .parameters = at->parameters};
    return sl_ddp_create(&options, &at->ddp);
}

static void close_replica(replica *at)
{
    sl_ddp_destroy(&at->ddp);
    sl_optimizer_destroy(&at->optimizer);
    sl_loss_destroy(&at->loss);
    sl_parameter_set_destroy(&at->parameters);
    sl_module_destroy(&at->module);
    sl_device_destroy(&at->device);
}

/* ---- A training step ---- */

/* Numbers in [-1, 1) that differ from rank to rank. */
static sl_status random_rows(sl_device *device, int64_t width, uint32_t seed, sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(ROWS, width);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    for (int64_t i = 0; i < ROWS * width; i++) {
        seed = seed * 1664525u + 1013904223u;
        sl_tensor_f32(*out)[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return SL_OK;
}

/* Loss and gradient of the mean over all elements. */
static sl_status apply_loss(replica *at, const sl_tensor *output, const sl_tensor *labels,
                            sl_tensor **grad, double *mean)
{
    double rows[ROWS];
    int64_t terms;
    SL_TRY(sl_loss_terms(at->loss, labels, &terms));
    sl_loss_call call = {.device = at->device,
                         .in = output,
                         .targets = labels,
                         .scale = 1 / (double)terms,
                         .row_losses = rows,
                         .grad_in = grad};
    SL_TRY(sl_loss_apply(at->loss, &call));
    *mean = 0;
    for (int i = 0; i < ROWS; i++)
        *mean += rows[i] / (double)terms;
    return SL_OK;
}

static sl_status train_step(replica *at, int rank, double *loss)
{
    sl_tensor *input = NULL, *labels = NULL, *output = NULL, *grad = NULL;
    sl_pass *pass = NULL;
    sl_pass_options options = {.device = at->device, .training = true, .keep = true};
    sl_status status = random_rows(at->device, IN, 1 + (uint32_t)rank, &input);
    if (status == SL_OK)
        status = random_rows(at->device, OUT, 100 + (uint32_t)rank, &labels);
    if (status == SL_OK)
        status = sl_pass_create(&options, &pass);
    if (status == SL_OK)
        status = sl_ddp_forward(at->ddp, pass, input, &output);
    if (status == SL_OK)
        status = apply_loss(at, output, labels, &grad, loss);
    sl_parameter_set_zero_grad(at->parameters);
    if (status == SL_OK)
        status = sl_ddp_backward(at->ddp, pass, grad, NULL); /* averages the gradients */
    if (status == SL_OK)
        status = sl_optimizer_step(at->optimizer, 0.001, 1);
    sl_tensor_destroy(&input);
    sl_tensor_destroy(&labels);
    sl_tensor_destroy(&output);
    sl_tensor_destroy(&grad);
    sl_pass_destroy(&pass);
    return status;
}

static sl_status demo_basic(sl_group *group, void *arg)
{
    (void)arg;
    replica at = {0};
    int rank = sl_group_rank(group);
    double loss = 0;
    sl_status status = open_replica(group, &at);
    if (status == SL_OK)
        status = train_step(&at, rank, &loss);
    if (status == SL_OK) {
        const sl_tensor *weights = sl_parameter_set_bucket_values(at.parameters, 0);
        printf("[RANK %d]: loss %.6f, first weight afterwards %.9g\n", rank, loss,
               (double)sl_tensor_f32(weights)[0]);
    }
    close_replica(&at);
    return status;
}

int main(void)
{
    sl_status status = sl_spawn(demo_basic, NULL, RANKS, NULL);
    if (status != SL_OK)
        fprintf(stderr, "ddp_basic: %s\n", sl_error_text());
    return status != SL_OK;
}
