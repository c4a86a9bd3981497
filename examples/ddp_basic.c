/* DistributedDataParallel at its smallest: four ranks, each a replica of a small model with weights
 * of its own at first, train one step on data of their own, and have equal weights.
 *
 * The ranks are threads of this process. Nothing would change but the group if they were processes.
 * The objects are created one by one, and forward and backward called by hand; the other examples
 * leave that to sl_training. */
#include "exit_code.h"
#include "toy_model.h"

#include <stdio.h>

enum { RANKS = 4 };

/* ---- One rank's replica ---- */

typedef struct replica {
    sl_device *device;
    sl_module *module;
    sl_parameter_set *parameters;
    sl_loss *loss;
    sl_optimizer *optimizer;
    sl_ddp *ddp;
    sl_tensor *input, *labels; /* f32 [TOY_ROWS, TOY_IN] and [TOY_ROWS, TOY_OUT] */
} replica;

static sl_status open_replica(sl_group *group, replica *r)
{
    SL_TRY(sl_device_create_cpu(1, &r->device));
    SL_TRY(toy_model_create(&r->module));
    sl_parameter_set_options placement = {.device = r->device,
                                          .seed = (uint64_t)sl_group_rank(group)};
    SL_TRY(sl_parameter_set_create(r->module, 0, 0, &placement, &r->parameters));
    SL_TRY(sl_mse_loss_create(&r->loss));
    sl_optimizer_options sgd = {.kind = SL_OPTIMIZER_SGD};
    SL_TRY(sl_optimizer_create(&sgd, r->parameters, &r->optimizer));
    sl_shape input = sl_shape_2d(TOY_ROWS, TOY_IN), labels = sl_shape_2d(TOY_ROWS, TOY_OUT);
    SL_TRY(sl_tensor_create(r->device, SL_MEMORY_ACTIVATIONS, SL_F32, &input, &r->input));
    SL_TRY(sl_tensor_create(r->device, SL_MEMORY_ACTIVATIONS, SL_F32, &labels, &r->labels));
    sl_ddp_options options = {.group = group, .module = r->module, .parameters = r->parameters};
    return sl_ddp_create(&options, &r->ddp);
}

static void close_replica(replica *r)
{
    sl_ddp_destroy(&r->ddp);
    sl_tensor_destroy(&r->input);
    sl_tensor_destroy(&r->labels);
    sl_optimizer_destroy(&r->optimizer);
    sl_loss_destroy(&r->loss);
    sl_parameter_set_destroy(&r->parameters);
    sl_module_destroy(&r->module);
    sl_device_destroy(&r->device);
}

/* ---- A training step ---- */

/* Loss and gradient of the mean over all elements. */
static sl_status apply_loss(replica *r, const sl_tensor *output, const sl_tensor *labels,
                            sl_tensor **grad, double *mean)
{
    double rows[TOY_ROWS];
    int64_t terms;
    SL_TRY(sl_loss_terms(r->loss, labels, &terms));
    sl_loss_call call = {.device = r->device,
                         .in = output,
                         .targets = labels,
                         .scale = 1 / (double)terms,
                         .row_losses = rows,
                         .grad_in = grad};
    SL_TRY(sl_loss_apply(r->loss, &call));
    *mean = 0;
    for (int i = 0; i < TOY_ROWS; i++)
        *mean += rows[i] / (double)terms;
    return SL_OK;
}

static void print_sizes(int rank, const sl_tensor *input, const sl_tensor *output)
{
    char in[SL_SHAPE_TEXT_BYTES], out[SL_SHAPE_TEXT_BYTES];
    printf("[RANK %d]: input size %s output size %s\n", rank,
           sl_shape_text(sl_tensor_shape(input), in), sl_shape_text(sl_tensor_shape(output), out));
}

static sl_status train_step(replica *r, int rank, double *loss)
{
    sl_tensor *output = NULL, *grad = NULL;
    sl_pass *pass;
    toy_fill(r->input, 1 + (uint32_t)rank);
    toy_fill(r->labels, 100 + (uint32_t)rank);
    SL_TRY(sl_pass_create(&(sl_pass_options){.device = r->device, .training = true, .keep = true},
                          &pass));
    sl_status status = sl_ddp_forward(r->ddp, pass, r->input, &output);
    if (status == SL_OK)
        print_sizes(rank, r->input, output);
    if (status == SL_OK)
        status = apply_loss(r, output, r->labels, &grad, loss);
    sl_parameter_set_zero_grad(r->parameters);
    if (status == SL_OK)
        status = sl_ddp_backward(r->ddp, pass, grad, NULL); /* averages the gradients */
    if (status == SL_OK)
        status = sl_optimizer_step(r->optimizer, 0.001, 1);
    sl_tensor_destroy(&output);
    sl_tensor_destroy(&grad);
    sl_pass_destroy(&pass);
    return status;
}

static sl_status demo_basic(sl_group *group, void *arg)
{
    (void)arg;
    replica r = {0};
    int rank = sl_group_rank(group);
    double loss = 0;
    sl_status status = open_replica(group, &r);
    if (status == SL_OK)
        status = train_step(&r, rank, &loss);
    if (status == SL_OK) {
        const sl_tensor *weights = sl_parameter_set_bucket_values(r.parameters, 0);
        printf("[RANK %d]: loss %.6f, first weight afterwards %.9g\n", rank, loss,
               (double)sl_tensor_f32(weights)[0]);
    }
    close_replica(&r);
    return status;
}

int main(void)
{
    return exit_code("ddp_basic", sl_spawn(demo_basic, NULL, RANKS, NULL));
}
