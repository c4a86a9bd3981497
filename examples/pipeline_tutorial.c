/* Training a Transformer language model with pipeline parallelism, as PyTorch's tutorial of that
 * name: the layers are cut into two stages on two devices, a batch into eight micro-batches.
 *
 * The text is made up here: each token follows from the one before, to be learnt in seconds. */
#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { NTOKENS = 40, TEXT = 7001, COLUMNS = 20, BPTT = 35, STAGES = 2, CHUNKS = 8, EPOCHS = 3 };

typedef struct trainer {
    sl_device_list *devices;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_tensor *input, *targets; /* i32 [COLUMNS, BPTT] */
} trainer;

static void write_text(int32_t *tokens)
{
    for (int i = 0, token = 0; i < TEXT; i++, token = (7 * token + 11) % NTOKENS)
        tokens[i] = i % 50 == 0 ? i / 50 % NTOKENS : token;
}

/* ---- The pipe ---- */

static sl_status open_trainer(trainer *at)
{
    sl_model_options model = {
        .ntokens = NTOKENS, .emsize = 32, .nhid = 64, .nlayers = 4, .nhead = 2};
    SL_TRY(sl_device_list_create("cpu:0,cpu:1", &at->devices, NULL));
    SL_TRY(sl_transformer_lm_create(&model, &at->model));
    SL_TRY(sl_cross_entropy_create(&at->loss));
    sl_device *devices[STAGES];
    for (int s = 0; s < STAGES; s++)
        devices[s] = sl_device_list_get(at->devices, s);
    sl_pipe_options options = {.model = at->model,
                               .loss = at->loss,
                               .stages = STAGES,
                               .devices = devices,
                               .chunks = CHUNKS,
                               .seed = 1};
    SL_TRY(sl_pipe_create(&options, &at->pipe));
    SL_TRY(
        sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = at->pipe}, &at->optimizer));
    sl_shape shape = sl_shape_2d(COLUMNS, BPTT);
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

static sl_status show_pipe(const trainer *at)
{
    sl_schedule *schedule;
    char *grid = NULL;
    printf("Total parameters in model: %lld\n", (long long)sl_module_parameter_elements(at->model));
    sl_schedule_options options = {.ranks = STAGES,
                                   .micros = sl_micro_batches(COLUMNS, CHUNKS, NULL)};
    SL_TRY(sl_schedule_write("gpipe", &options, &schedule));
    sl_status status = sl_schedule_recompute(schedule, SL_RECOMPUTE_EXCEPT_LAST);
    if (status == SL_OK)
        status = sl_schedule_draw(schedule, &grid);
    printf("%s", status == SL_OK ? grid : "");
    sl_schedule_destroy(&schedule);
    free(grid);
    return status;
}

/* ---- Training ---- */

static sl_status train_epoch(trainer *at, const sl_batches *batches, int epoch, double *mean)
{
    int64_t blocks = sl_batches_count(batches);
    *mean = 0;
    for (int64_t i = 0; i < blocks; i++) {
        double loss;
        SL_TRY(sl_batches_block(batches, i, sl_tensor_i32(at->input), sl_tensor_i32(at->targets)));
        uint64_t step = (uint64_t)(epoch * blocks + i);
        sl_pipe_zero_grad(at->pipe);
        SL_TRY(sl_pipe_train(at->pipe,
                             &(sl_pipe_batch){.input = at->input,
                                              .targets = at->targets,
                                              .step = step,
                                              .first_sample = (int64_t)step * COLUMNS},
                             &loss));
        SL_TRY(sl_pipe_optimizer_step(at->optimizer, 2.0, 0.5, NULL));
        *mean += loss / (double)blocks;
    }
    return SL_OK;
}

static sl_status run(trainer *at)
{
    static int32_t text[TEXT];
    sl_batches batches;
    double first = 0, mean = 0;
    write_text(text);
    SL_TRY(open_trainer(at));
    SL_TRY(show_pipe(at));
    SL_TRY(sl_batchify(text, TEXT, COLUMNS, BPTT, &batches));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        SL_TRY(train_epoch(at, &batches, epoch, &mean));
        printf("| epoch %d | loss %.3f | ppl %.2f\n", epoch + 1, mean, exp(mean));
        first = epoch == 0 ? mean : first;
    }
    return mean < first ? SL_OK : sl_error(SL_ERR_NUMERIC, "the loss did not fall");
}

int main(void)
{
    trainer at = {0};
    sl_status status = run(&at);
    if (status != SL_OK)
        fprintf(stderr, "pipeline_tutorial: %s\n", sl_error_text());
    close_trainer(&at);
    return status != SL_OK;
}
