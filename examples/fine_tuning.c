/* Fine-tuning: a model that was trained before gets one more layer, which alone is trained.
 *
 * What the two models have in common is loaded by name and shape, frozen, and runs without dropout.
 * The decoder's weight is tied to the embedding's: it is loaded and frozen with it, in whatever
 * stages the two are. The program fine-tunes twice, in one stage and in two, to the same bits. */
#include <sluice/sluice.h>

#include <stdio.h>

enum { NTOKENS = 30, ROWS = 16, TIME = 12, STEPS = 80, LAYERS = 2, STAGES = 2, CHUNKS = 4 };

typedef struct trainer {
    sl_model_options options;
    sl_device_list *devices;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_tensor *input, *targets; /* i32 [ROWS, TIME] */
} trainer;

/* ---- The trainer ---- */

/* The first `frozen` modules stay as they are loaded. */
static sl_status create_model(trainer *at, int frozen)
{
    SL_TRY(sl_transformer_lm_create(&at->options, &at->model));
    for (int i = 0; i < frozen; i++) {
        SL_TRY(sl_module_freeze(sl_module_child(at->model, i)));
        sl_module_set_evaluation(sl_module_child(at->model, i), true);
    }
    return sl_cross_entropy_create(&at->loss);
}

static sl_status open_trainer(trainer *at, int64_t layers, int frozen, int stages)
{
    sl_shape shape = sl_shape_2d(ROWS, TIME);
    sl_device *devices[STAGES];
    at->options = (sl_model_options){.ntokens = NTOKENS,
                                     .emsize = 16,
                                     .nhid = 32,
                                     .nlayers = layers,
                                     .nhead = 2,
                                     .dropout = 0.1f,
                                     .tie = true};
    SL_TRY(sl_device_list_create(stages == 1 ? "cpu:0" : "cpu:0,cpu:1", &at->devices, NULL));
    for (int s = 0; s < stages; s++)
        devices[s] = sl_device_list_get(at->devices, s);
    SL_TRY(create_model(at, frozen));
    SL_TRY(sl_pipe_create(&(sl_pipe_options){.model = at->model,
                                             .loss = at->loss,
                                             .stages = stages,
                                             .devices = devices,
                                             .chunks = CHUNKS,
                                             .seed = 1},
                          &at->pipe));
    SL_TRY(sl_pipe_optimizer_create(
        &(sl_pipe_optimizer_options){.pipe = at->pipe, .optimizer = {.kind = SL_OPTIMIZER_ADAMW}},
        &at->optimizer));
    SL_TRY(sl_tensor_create(devices[0], SL_MEMORY_ACTIVATIONS, SL_I32, &shape, &at->input));
    return sl_tensor_create(devices[0], SL_MEMORY_ACTIVATIONS, SL_I32, &shape, &at->targets);
}

static void close_trainer(trainer *at)
{
    sl_tensor_destroy(&at->input);
    sl_tensor_destroy(&at->targets);
    sl_pipe_optimizer_destroy(&at->optimizer);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
    sl_device_list_destroy(&at->devices);
}

/* Each token follows from the one before; the rows begin with different ones. */
static void write_batch(trainer *at, int step)
{
    int32_t *input = sl_tensor_i32(at->input), *targets = sl_tensor_i32(at->targets);
    for (int row = 0; row < ROWS; row++) {
        int token = (13 * step + 5 * row) % NTOKENS;
        for (int t = row * TIME; t < (row + 1) * TIME; t++) {
            input[t] = token;
            targets[t] = token = (7 * token + 11) % NTOKENS;
        }
    }
}

static sl_status train(trainer *at, const char *what, double *losses)
{
    for (int step = 0; step < STEPS; step++) {
        write_batch(at, step);
        sl_pipe_batch batch = {.input = at->input, .targets = at->targets, .step = (uint64_t)step};
        sl_pipe_zero_grad(at->pipe);
        SL_TRY(sl_pipe_train(at->pipe, &batch, &losses[step]));
        SL_TRY(sl_pipe_optimizer_step(at->optimizer, 5e-3, 0.5, NULL));
    }
    printf("%s: loss %.4f in the first step, %.4f in the last\n", what, losses[0],
           losses[STEPS - 1]);
    return losses[STEPS - 1] < losses[0] ? SL_OK
                                         : sl_error(SL_ERR_NUMERIC, "the loss did not fall");
}

/* ---- Both trainings ---- */

static sl_status pretrain(trainer *at, const char *path)
{
    double losses[STEPS];
    SL_TRY(open_trainer(at, LAYERS, 0, 1));
    SL_TRY(train(at, "trained", losses));
    return sl_weights_save(at->pipe, &at->options, NULL, path);
}

static sl_status print_left_out(void *context, const char *tensor, const char *reason)
{
    printf("%s%s: %s\n", (const char *)context, tensor, reason);
    return SL_OK;
}

static sl_status fine_tune(trainer *at, const char *path, int stages, double *losses)
{
    SL_TRY(open_trainer(at, LAYERS + 1, LAYERS + 1, stages));
    SL_TRY(sl_weights_load_partial(at->pipe, path, print_left_out, "  left out "));
    return train(at, stages == 1 ? "fine-tuned in one stage" : "fine-tuned in two stages", losses);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "fine_tuning.safetensors";
    static double losses[STAGES][STEPS];
    static trainer first, tuned[STAGES];
    sl_status status = pretrain(&first, path);
    for (int i = 0; i < STAGES && status == SL_OK; i++)
        status = fine_tune(&tuned[i], path, i + 1, losses[i]);
    for (int step = 0; step < STEPS && status == SL_OK; step++)
        if (losses[0][step] != losses[1][step])
            status = sl_error(SL_ERR_NUMERIC, "the losses depend on how the model is cut");
    if (status != SL_OK)
        fprintf(stderr, "fine_tuning: %s\n", sl_error_text());
    close_trainer(&first);
    for (int i = 0; i < STAGES; i++)
        close_trainer(&tuned[i]);
    remove(path);
    return status != SL_OK;
}
