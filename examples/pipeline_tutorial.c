/* Training a Transformer language model with pipeline parallelism, as PyTorch's tutorial of that
 * name: the layers are cut into two stages on two devices, a batch into eight micro-batches.
 *
 * The text is made up here: each token follows from the one before, to be learnt in seconds. */
#include "exit_code.h"

#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { NTOKENS = 40, WIDTH = 32, LAYERS = 4, TEXT = 7001, COLUMNS = 20, BPTT = 35 };
enum { STAGES = 2, CHUNKS = 8, EPOCHS = 3 };

static void write_text(int32_t *tokens)
{
    for (int i = 0, token = 0; i < TEXT; i++, token = (7 * token + 11) % NTOKENS)
        tokens[i] = i % 50 == 0 ? i / 50 % NTOKENS : token;
}

/* ---- The pipe ---- */

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    const sl_embedding_options encoder = {.ntokens = NTOKENS, .width = WIDTH};
    const sl_encoder_layer_options layer = {.width = WIDTH, .heads = 2, .feed_forward = 64};
    sl_module *next;
    (void)context;
    SL_TRY(sl_sequential_append(model, sl_embedding_create(&encoder, &next), &next));
    for (int i = 0; i < LAYERS; i++)
        SL_TRY(sl_sequential_append(model, sl_encoder_layer_create(&layer, &next), &next));
    SL_TRY(sl_sequential_append(model, sl_decoder_create(WIDTH, NTOKENS, &next), &next));
    return sl_cross_entropy_create(loss);
}

static sl_status show_pipe(const sl_training *training)
{
    sl_schedule *schedule;
    char *grid = NULL;
    printf("Total parameters in model: %lld\n",
           (long long)sl_module_parameter_elements(training->model));
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

static sl_status train_epoch(sl_training *training, const sl_batches *batches, int epoch,
                             double *mean)
{
    int64_t blocks = sl_batches_count(batches);
    *mean = 0;
    for (int64_t i = 0; i < blocks; i++) {
        double loss;
        SL_TRY(sl_batches_block(batches, i, sl_tensor_i32(training->input),
                                sl_tensor_i32(training->targets)));
        uint64_t step = (uint64_t)(epoch * blocks + i);
        sl_pipe_batch batch = {.input = training->input,
                               .targets = training->targets,
                               .step = step,
                               .first_sample = (int64_t)step * COLUMNS};
        SL_TRY(sl_training_step(training, &batch, 2.0, 0.5, &loss, NULL));
        *mean += loss / (double)blocks;
    }
    return SL_OK;
}

static sl_status train(sl_training *training)
{
    static int32_t text[TEXT];
    sl_batches batches;
    double first = 0, mean = 0;
    write_text(text);
    SL_TRY(show_pipe(training));
    SL_TRY(sl_batchify(text, TEXT, COLUMNS, BPTT, &batches));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        SL_TRY(train_epoch(training, &batches, epoch, &mean));
        printf("| epoch %d | loss %.3f | ppl %.2f\n", epoch + 1, mean, exp(mean));
        first = epoch == 0 ? mean : first;
    }
    return mean < first ? SL_OK : sl_error(SL_ERR_NUMERIC, "the loss did not fall");
}

int main(void)
{
    sl_training_tensor block = {SL_I32, sl_shape_2d(COLUMNS, BPTT)};
    sl_training_options options = {.create_model = create_model,
                                   .devices = "cpu:0,cpu:1",
                                   .pipe = {.chunks = CHUNKS, .seed = 1},
                                   .input = block,
                                   .targets = block};
    sl_training *training;
    sl_status status = sl_training_create(&options, &training);
    if (status == SL_OK)
        status = train(training);
    sl_training_destroy(&training);
    return exit_code("pipeline_tutorial", status);
}
