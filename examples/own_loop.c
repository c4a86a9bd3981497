/* A training loop with a loss and an optimizer of one's own: Huber's loss, and Lion.
 *
 * The loss is a table of functions, as a layer is. The optimizer works on the flat bucket of each
 * stage's parameters, on the stage's own thread. Cut in two, the model has the same losses. */
#include "exit_code.h"

#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 32, WIDTH = 16, STEPS = 200, MOST_STAGES = 2 };

/* ---- The loss: x^2 / 2 for a difference x within ±delta, else delta * (|x| - delta / 2) ---- */

static sl_status huber_apply(sl_loss *loss, const sl_loss_call *call)
{
    const float *in = sl_tensor_f32(call->in), *targets = sl_tensor_f32(call->targets);
    float delta = *(const float *)sl_loss_state(loss), *grad = NULL;
    int64_t columns = sl_tensor_columns(call->in);
    if (!sl_shape_equal(sl_tensor_shape(call->in), sl_tensor_shape(call->targets)))
        return sl_error(SL_ERR_INVALID, "expected targets of the input's shape");
    if (call->grad_in) {
        SL_TRY(sl_tensor_create(call->device, SL_MEMORY_ACTIVATIONS, SL_F32,
                                sl_tensor_shape(call->in), call->grad_in));
        grad = sl_tensor_f32(*call->grad_in);
    }
    for (int64_t row = 0; row < sl_tensor_rows(call->in); row++) {
        call->row_losses[row] = 0;
        for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
            float x = in[i] - targets[i], size = fabsf(x);
            call->row_losses[row] += size < delta ? x * x / 2 : delta * (size - delta / 2);
            if (grad)
                grad[i] = (float)call->scale * (size < delta ? x : copysignf(delta, x));
        }
    }
    return SL_OK;
}

static sl_status huber_terms(const sl_loss *loss, const sl_tensor *targets, int64_t *out)
{
    (void)loss;
    *out = sl_tensor_count(targets);
    return SL_OK;
}

static int64_t huber_rows(const sl_loss *loss, const sl_tensor *targets)
{
    (void)loss;
    return sl_tensor_rows(targets);
}

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    static const sl_loss_ops huber = {.type = "Huber",
                                      .apply = huber_apply,
                                      .terms = huber_terms,
                                      .rows = huber_rows};
    sl_module *next;
    float *delta = malloc(sizeof *delta); /* taken */
    (void)context;
    if (!delta)
        return sl_error(SL_ERR_MEMORY, "no memory for a loss");
    *delta = 0.5f;
    SL_TRY(sl_loss_create(&huber, delta, loss));
    SL_TRY(sl_sequential_append(model, sl_linear_create(WIDTH, WIDTH, false, &next), &next));
    SL_TRY(sl_sequential_append(model, sl_activation_create(SL_ACTIVATION_GELU, &next), &next));
    SL_TRY(sl_sequential_append(model, sl_linear_create(WIDTH, WIDTH, false, &next), &next));
    return sl_sequential_append(model, sl_softmax_create(&next), &next);
}

/* ---- The optimizer: Chen et al., Symbolic Discovery of Optimization Algorithms (2023) ---- */

typedef struct lion {
    sl_pipe *pipe;
    sl_tensor *momentum[MOST_STAGES]; /* of a stage's one bucket */
} lion;

static sl_status lion_step(int stage, void *arg)
{
    lion *l = arg;
    sl_parameter_set *set = sl_pipe_parameters(l->pipe, stage);
    sl_tensor *values = sl_parameter_set_bucket_values(set, 0), *grads;
    sl_tensor **momentum = &l->momentum[stage];
    SL_TRY(sl_parameter_set_bucket_grads(set, 0, &grads));
    if (!*momentum)
        SL_TRY(sl_tensor_create_zero(sl_parameter_set_device(set), SL_MEMORY_OPTIMIZER,
                                     sl_tensor_dtype(grads), sl_tensor_shape(grads), momentum));
    for (int64_t i = 0; i < sl_tensor_count(grads); i++) {
        float gradient = sl_tensor_f32(grads)[i], *m = &sl_tensor_f32(*momentum)[i];
        float mixed = 0.9f * *m + 0.1f * gradient;
        sl_tensor_f32(values)[i] -= 0.01f * (float)((mixed > 0) - (mixed < 0));
        *m = 0.99f * *m + 0.01f * gradient;
    }
    return SL_OK;
}

/* ---- The loop ---- */

static sl_status run(sl_training *training, lion *optimizer, double *losses)
{
    sl_pipe *pipe = training->pipe;
    sl_pipe_batch batch = {.input = training->input, .targets = training->targets};
    for (int i = 0; i < ROWS * WIDTH; i++) {
        sl_tensor_f32(training->input)[i] = sinf((float)i);
        sl_tensor_f32(training->targets)[i] = i / WIDTH % WIDTH == i % WIDTH;
    }
    for (; batch.step < STEPS; batch.step++) {
        double norm;
        sl_pipe_zero_grad(pipe);
        SL_TRY(sl_pipe_train(pipe, &batch, &losses[batch.step]));
        SL_TRY(sl_clip_grad_norm(pipe, 1, SL_GRAD_NORM_L2, true, &norm));
        SL_TRY(sl_pipe_run_on_stages(pipe, lion_step, optimizer));
    }
    return SL_OK;
}

static sl_status train(const char *devices, double *losses)
{
    sl_training_tensor rows = {SL_F32, sl_shape_2d(ROWS, WIDTH)};
    sl_training_options options = {.create_model = create_model,
                                   .devices = devices,
                                   .pipe = {.chunks = 4, .seed = 1},
                                   .input = rows,
                                   .targets = rows};
    sl_training *training;
    SL_TRY(sl_training_create(&options, &training));
    lion optimizer = {.pipe = training->pipe};
    sl_status status = run(training, &optimizer, losses);
    for (int s = 0; s < MOST_STAGES; s++)
        sl_tensor_destroy(&optimizer.momentum[s]);
    sl_training_destroy(&training);
    if (status == SL_OK)
        printf("%-12s loss %.6f in the first step, %.6f in the last\n", devices, losses[0],
               losses[STEPS - 1]);
    return status;
}

int main(void)
{
    static double whole[STEPS], cut[STEPS];
    sl_status status = train("cpu:0", whole);
    status = status == SL_OK ? train("cpu:0,cpu:1", cut) : status;
    for (int step = 0; step < STEPS && status == SL_OK; step++)
        if (whole[step] != cut[step])
            status = sl_error(SL_ERR_NUMERIC, "the losses depend on how the model is cut");
    return exit_code("own_loop", status);
}
