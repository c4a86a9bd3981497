/* A Transformer of one's own, of the library's layers and those of token_shift.h and jitter.h:
 * blocks with residual connections around branches, and a decoder that shares the embedding's
 * weight.
 *
 * It is trained in two stages under a zero-bubble schedule, on a text in which each token follows
 * from the one before; then it continues a prompt. */
#include "exit_code.h"
#include "jitter.h"
#include "token_shift.h"

#include <sluice/sluice.h>

#include <stdio.h>

enum { NTOKENS = 20, WIDTH = 16, HEADS = 2, BLOCKS = 2, ROWS = 16, TIME = 10, STEPS = 150 };

static int next_token(int token)
{
    return 1 + (5 * token + 3) % (NTOKENS - 1); /* 0 stands for unknown words */
}

/* ---- The model ---- */

static sl_status create_attention(sl_module **branch)
{
    sl_module *next;
    SL_TRY(sl_sequential_append(branch, sl_layer_norm_create(WIDTH, 0, &next), &next));
    SL_TRY(sl_sequential_append(branch, token_shift_create(WIDTH, &next), &next));
    SL_TRY(sl_sequential_append(branch,
                                sl_self_attention_create(WIDTH, HEADS, 0, SL_MASK_CAUSAL, &next),
                                &next));
    return sl_sequential_append(branch, sl_dropout_create(0.05f, &next), &next);
}

/* As Llama's: both query heads share one key head. */
static sl_status create_grouped_attention(sl_module **branch)
{
    const sl_decoder_layer_options options = {.width = WIDTH,
                                              .heads = HEADS,
                                              .key_heads = 1,
                                              .naming = SL_NAMING_LLAMA};
    sl_module *next;
    SL_TRY(sl_sequential_append(branch, sl_rms_norm_create(WIDTH, 0, &next), &next));
    return sl_sequential_append(branch, sl_decoder_attention_create(&options, &next), &next);
}

static sl_status create_feed_forward(sl_module **branch)
{
    sl_module *next;
    SL_TRY(sl_sequential_append(branch, sl_rms_norm_create(WIDTH, 0, &next), &next));
    return sl_sequential_append(branch, sl_swiglu_create(WIDTH, 2 * WIDTH, &next), &next);
}

static sl_status append_residual(sl_module **model, sl_status (*create)(sl_module **branch))
{
    sl_module *branch = NULL, *next;
    sl_status created = create(&branch);
    return sl_sequential_append(model, sl_residual_create(created, &branch, &next), &next);
}

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    const sl_encoder_layer_options last = {.width = WIDTH,
                                           .heads = HEADS,
                                           .feed_forward = 2 * WIDTH,
                                           .pre_norm = true};
    sl_module *next;
    (void)context;
    SL_TRY(sl_sequential_append(model, sl_token_embedding_create(NTOKENS, WIDTH, &next), &next));
    SL_TRY(sl_sequential_append(model, jitter_create(&next), &next));
    for (int i = 0; i < BLOCKS; i++) {
        SL_TRY(append_residual(model, i % 2 ? create_grouped_attention : create_attention));
        SL_TRY(append_residual(model, create_feed_forward));
    }
    SL_TRY(sl_sequential_append(model, sl_encoder_layer_create(&last, &next), &next));
    SL_TRY(sl_sequential_append(model, sl_decoder_create(WIDTH, NTOKENS, &next), &next));
    SL_TRY(sl_module_tie_parameter(*model, "7.decoder.weight", "0.weight"));
    return sl_cross_entropy_create(loss);
}

/* ---- Training and continuing ---- */

static void fill(sl_training *training, sl_tensor *noise, int step)
{
    int32_t *input = sl_tensor_i32(training->input), *targets = sl_tensor_i32(training->targets);
    for (int row = 0; row < ROWS; row++)
        for (int t = row * TIME, token = 1 + (13 * step + 5 * row) % (NTOKENS - 1);
             t < (row + 1) * TIME; t++) {
            input[t] = token;
            targets[t] = token = next_token(token);
        }
    for (int i = 0; i < ROWS * WIDTH; i++)
        sl_tensor_f32(noise)[i] = 0.01f * (float)((31 * i + 17 * step) % 7 - 3);
}

static sl_status train(sl_training *training, sl_tensor *noise)
{
    const sl_input inputs[] = {{.name = "noise", .tensor = noise}};
    sl_pipe_batch batch = {.input = training->input,
                           .targets = training->targets,
                           .inputs = inputs,
                           .input_count = 1};
    double first = 0, loss = 0;
    for (; batch.step < STEPS; batch.step++) {
        fill(training, noise, (int)batch.step);
        SL_TRY(sl_training_step(training, &batch, 0.01, 1, &loss, NULL));
        first = batch.step == 0 ? loss : first;
    }
    printf("loss %.6f in the first step, %.6f in the last\n", first, loss);
    return SL_OK;
}

static sl_status continue_text(sl_pipe *pipe)
{
    int32_t ids[TIME] = {1};
    int64_t length = 1;
    SL_TRY(sl_generate(pipe, &(sl_generate_options){0}, ids, &length, TIME - 1));
    for (int i = 0; i < TIME; i++)
        printf("%d%s", (int)ids[i], i + 1 < TIME ? " " : "\n");
    for (int i = 1; i < TIME; i++)
        if (ids[i] != next_token(ids[i - 1]))
            return sl_error(SL_ERR_NUMERIC, "the text goes on wrongly at position %d", i);
    return SL_OK;
}

int main(void)
{
    sl_training_tensor ids = {SL_I32, sl_shape_2d(ROWS, TIME)};
    sl_training_options options = {.create_model = create_model,
                                   .devices = "cpu:0,cpu:1",
                                   .pipe = {.chunks = 4, .schedule = "zb-h1", .seed = 1},
                                   .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                                   .input = ids,
                                   .targets = ids};
    sl_shape rows = sl_shape_2d(ROWS, WIDTH);
    sl_training *training;
    sl_tensor *noise = NULL;
    sl_status status = sl_training_create(&options, &training);
    if (status == SL_OK)
        status = sl_tensor_create(sl_pipe_device(training->pipe, 0), SL_MEMORY_ACTIVATIONS, SL_F32,
                                  &rows, &noise);
    if (status == SL_OK)
        status = train(training, noise);
    if (status == SL_OK)
        status = continue_text(training->pipe);
    sl_tensor_destroy(&noise);
    sl_training_destroy(&training);
    return exit_code("own_model", status);
}
