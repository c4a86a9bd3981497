/* Two replicas of a two-stage pipeline, as PyTorch's tutorial on training Transformer models using
 * DistributedDataParallel and pipeline parallelism: rank r trains on its own columns of the text,
 * and gradients are averaged stage by stage while backward goes on.
 *
 * The text is made up here (sluice train reads real ones): each token follows from the one before.
 */
#include "exit_code.h"

#include <sluice/sluice.h>

#include <stdio.h>

enum { RANKS = 2, STAGES = 2, NTOKENS = 40, TEXT = 7001, COLUMNS = 10, BPTT = 35, EPOCHS = 2 };

static void write_text(int32_t *tokens)
{
    for (int i = 0, token = 0; i < TEXT; i++, token = (7 * token + 11) % NTOKENS)
        tokens[i] = i % 50 == 0 ? i / 50 % NTOKENS : token;
}

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    sl_model_options options = {
        .ntokens = NTOKENS, .emsize = 32, .nhid = 64, .nlayers = 4, .nhead = 2, .dropout = 0.1f};
    (void)context;
    SL_TRY(sl_transformer_lm_create(&options, model));
    return sl_cross_entropy_create(loss);
}

/* Rows are numbered over both ranks, so that no two have the same dropout. The norm is that of the
 * averaged gradients over both stages: the same number on both ranks. */
static sl_status train_step(sl_training *training, const sl_batches *own, int rank, uint64_t step,
                            double *loss, double *norm)
{
    sl_pipe_batch batch = {.input = training->input,
                           .targets = training->targets,
                           .step = step,
                           .first_sample = ((int64_t)step * RANKS + rank) * COLUMNS};
    SL_TRY(sl_batches_block(own, (int64_t)step % sl_batches_count(own),
                            sl_tensor_i32(training->input), sl_tensor_i32(training->targets)));
    return sl_training_step(training, &batch, 2.0, 0.5, loss, norm);
}

static sl_status train(sl_training *training, int rank)
{
    int32_t text[TEXT];
    sl_batches all, own;
    write_text(text);
    SL_TRY(sl_batchify(text, TEXT, COLUMNS, BPTT, &all));
    SL_TRY(sl_batches_shard(&all, rank, RANKS, &own));
    uint64_t blocks = (uint64_t)sl_batches_count(&own);
    double first = 0, loss = 0, norm = 0;
    for (uint64_t step = 0; step < EPOCHS * blocks; step++) {
        SL_TRY(train_step(training, &own, rank, step, &loss, &norm));
        if (step % 5 == 4)
            printf("[RANK %d]: step %2d, loss %.3f, norm %.9g\n", rank, (int)step + 1, loss, norm);
        first = step == 0 ? loss : first;
    }
    return loss < first ? SL_OK : sl_error(SL_ERR_NUMERIC, "the loss did not fall");
}

static sl_status run_rank(sl_group *group, void *list)
{
    int rank = sl_group_rank(group);
    sl_training_tensor block = {SL_I32, sl_shape_2d(COLUMNS, BPTT)};
    sl_device *devices[STAGES];
    for (int s = 0; s < STAGES; s++)
        devices[s] = sl_device_list_get(list, rank * STAGES + s);
    sl_training_options options = {
        .create_model = create_model,
        .pipe = {.stages = STAGES, .devices = devices, .chunks = 4, .seed = 1},
        .ddp = {.group = group},
        .input = block,
        .targets = block};
    sl_training *training;
    SL_TRY(sl_training_create(&options, &training));
    sl_status status = train(training, rank);
    if (status == SL_OK && rank == 0)
        sl_ddp_log_print(sl_ddp_get_log(training->ddp), stdout);
    sl_training_destroy(&training);
    return status;
}

int main(void)
{
    sl_device_list *devices;
    sl_status status = sl_device_list_create("cpu:0,cpu:1,cpu:2,cpu:3", &devices, NULL);
    if (status == SL_OK)
        status = sl_spawn(run_rank, devices, RANKS, NULL);
    sl_device_list_destroy(&devices);
    return exit_code("ddp_pipeline", status);
}
