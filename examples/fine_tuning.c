/* Fine-tuning: a model that was trained before gets one more layer, which alone is trained.
 *
 * What the two models have in common is loaded by name and shape, frozen, and runs without dropout.
 * The decoder's weight is tied to the embedding's: it is loaded and frozen with it, in whatever
 * stages the two are. The program fine-tunes twice, in one stage and in two, to the same bits. */
#include "exit_code.h"

#include <sluice/sluice.h>

#include <stdio.h>

enum { NTOKENS = 30, ROWS = 16, TIME = 12, STEPS = 80, LAYERS = 2, STAGES = 2, CHUNKS = 4 };

typedef struct model_recipe {
    sl_model_options options;
    int frozen; /* the first modules, which stay as they are loaded */
} model_recipe;

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    const model_recipe *recipe = context;
    SL_TRY(sl_transformer_lm_create(&recipe->options, model));
    for (int i = 0; i < recipe->frozen; i++) {
        SL_TRY(sl_module_freeze(sl_module_child(*model, i)));
        sl_module_set_evaluation(sl_module_child(*model, i), true);
    }
    return sl_cross_entropy_create(loss);
}

static sl_status open_training(model_recipe *recipe, int stages, sl_training **out)
{
    sl_training_tensor ids = {SL_I32, sl_shape_2d(ROWS, TIME)};
    sl_training_options options = {.create_model = create_model,
                                   .context = recipe,
                                   .devices = stages == 1 ? "cpu:0" : "cpu:0,cpu:1",
                                   .pipe = {.chunks = CHUNKS, .seed = 1},
                                   .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                                   .input = ids,
                                   .targets = ids};
    return sl_training_create(&options, out);
}

/* ---- Training ---- */

/* Each token follows from the one before; the rows begin with different ones. */
static void write_batch(int32_t *input, int32_t *targets, uint64_t step)
{
    for (int row = 0; row < ROWS; row++) {
        int token = (13 * (int)step + 5 * row) % NTOKENS;
        for (int t = row * TIME; t < (row + 1) * TIME; t++) {
            input[t] = token;
            targets[t] = token = (7 * token + 11) % NTOKENS;
        }
    }
}

static sl_status train(sl_training *training, const char *what, double *losses)
{
    sl_pipe_batch batch = {.input = training->input, .targets = training->targets};
    for (; batch.step < STEPS; batch.step++) {
        write_batch(sl_tensor_i32(training->input), sl_tensor_i32(training->targets), batch.step);
        SL_TRY(sl_training_step(training, &batch, 5e-3, 0.5, &losses[batch.step], NULL));
    }
    printf("%s: loss %.4f in the first step, %.4f in the last\n", what, losses[0],
           losses[STEPS - 1]);
    return losses[STEPS - 1] < losses[0] ? SL_OK
                                         : sl_error(SL_ERR_NUMERIC, "the loss did not fall");
}

/* ---- Both trainings ---- */

static model_recipe recipe_of(int layers, int frozen)
{
    return (model_recipe){{.ntokens = NTOKENS,
                           .emsize = 16,
                           .nhid = 32,
                           .nlayers = layers,
                           .nhead = 2,
                           .dropout = 0.1f,
                           .tie = true},
                          frozen};
}

static sl_status pretrain(const char *path)
{
    double losses[STEPS];
    model_recipe recipe = recipe_of(LAYERS, 0);
    sl_training *training;
    SL_TRY(open_training(&recipe, 1, &training));
    sl_status status = train(training, "trained", losses);
    if (status == SL_OK)
        status = sl_model_save(training->pipe, &recipe.options, NULL, NULL, path);
    sl_training_destroy(&training);
    return status;
}

static sl_status print_left_out(void *context, const char *tensor, const char *reason)
{
    printf("%s%s: %s\n", (const char *)context, tensor, reason);
    return SL_OK;
}

static sl_status fine_tune(const char *path, int stages, double *losses)
{
    model_recipe recipe = recipe_of(LAYERS + 1, LAYERS + 1);
    const char *what = stages == 1 ? "fine-tuned in one stage" : "fine-tuned in two stages";
    sl_training *training;
    sl_saved_model *saved = NULL;
    SL_TRY(open_training(&recipe, stages, &training));
    sl_status status = sl_saved_model_open(path, &saved);
    if (status == SL_OK)
        status = sl_saved_model_load(saved, training->pipe, print_left_out, "  left out ");
    sl_saved_model_close(&saved);
    if (status == SL_OK)
        status = train(training, what, losses);
    sl_training_destroy(&training);
    return status;
}

static void remove_model(const char *path)
{
    static const char *const names[] = {"/config.json", "/model.safetensors", ""};
    char name[4096];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", path, names[i]);
        remove(name);
    }
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "fine_tuning_model";
    static double losses[STAGES][STEPS];
    sl_status status = pretrain(path);
    for (int i = 0; i < STAGES && status == SL_OK; i++)
        status = fine_tune(path, i + 1, losses[i]);
    for (int step = 0; step < STEPS && status == SL_OK; step++)
        if (losses[0][step] != losses[1][step])
            status = sl_error(SL_ERR_NUMERIC, "the losses depend on how the model is cut");
    remove_model(path);
    return exit_code("fine_tuning", status);
}
