/* Two replicas of a two-stage pipeline, as PyTorch's tutorial on training Transformer models using
 * DistributedDataParallel and pipeline parallelism: rank r trains on its own columns of the text,
 * and gradients are averaged stage by stage while backward goes on.
 *
 * The text is made up here (sluice train reads real ones): each token follows from the one before.
 */
#include <sluice/sluice.h>

#include <math.h>
#include <stdio.h>

enum { RANKS = 2, STAGES = 2, NTOKENS = 40, TEXT = 7001, COLUMNS = 10, BPTT = 35, EPOCHS = 2 };

typedef struct replica {
    sl_device *devices[STAGES];
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_ddp *ddp;
    sl_pipe_optimizer *optimizer;
    sl_tensor *input, *targets; /* i32 [COLUMNS, BPTT]: this rank's */
} replica;

static void write_text(int32_t *tokens)
{
    for (int i = 0, token = 0; i < TEXT; i++, token = (7 * token + 11) % NTOKENS)
        tokens[i] = i % 50 == 0 ? i / 50 % NTOKENS : token;
}

static sl_status open_replica(sl_group *group, sl_device_list *list, replica *at)
{
    sl_model_options model = {
        .ntokens = NTOKENS, .emsize = 32, .nhid = 64, .nlayers = 4, .nhead = 2, .dropout = 0.1f};
    for (int s = 0; s < STAGES; s++)
        at->devices[s] = sl_device_list_get(list, sl_group_rank(group) * STAGES + s);
    SL_TRY(sl_transformer_lm_create(&model, &at->model));
    SL_TRY(sl_cross_entropy_create(&at->loss));
    sl_pipe_options options = {.model = at->model,
                               .loss = at->loss,
                               .stages = STAGES,
                               .devices = at->devices,
                               .chunks = 4,
                               .seed = 1};
    SL_TRY(sl_pipe_create(&options, &at->pipe));
    SL_TRY(
        sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = at->pipe}, &at->optimizer));
    sl_shape shape = sl_shape_2d(COLUMNS, BPTT);
    SL_TRY(sl_tensor_create(at->devices[0], SL_MEMORY_ACTIVATIONS, SL_I32, &shape, &at->input));
    SL_TRY(sl_tensor_create(at->devices[0], SL_MEMORY_ACTIVATIONS, SL_I32, &shape, &at->targets));
    return sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = at->pipe}, &at->ddp);
}

static void close_replica(replica *at)
{
    sl_ddp_destroy(&at->ddp);
    sl_tensor_destroy(&at->input);
    sl_tensor_destroy(&at->targets);
    sl_pipe_optimizer_destroy(&at->optimizer);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
}

/* Rows are numbered over both ranks, so that no two have the same dropout. The norm is that of the
 * averaged gradients over both stages: the same number on both ranks. */
static sl_status train_step(replica *at, const sl_batches *own, int rank, uint64_t step,
                            double *loss, double *norm)
{
    int64_t block = (int64_t)step % sl_batches_count(own);
    int64_t first_sample = ((int64_t)step * RANKS + rank) * COLUMNS;
    SL_TRY(sl_batches_block(own, block, sl_tensor_i32(at->input), sl_tensor_i32(at->targets)));
    sl_pipe_zero_grad(at->pipe);
    SL_TRY(sl_ddp_train(at->ddp,
                        &(sl_pipe_batch){.input = at->input,
                                         .targets = at->targets,
                                         .step = step,
                                         .first_sample = first_sample},
                        loss));
    return sl_pipe_optimizer_step(at->optimizer, 2.0, 0.5, norm);
}

static sl_status train(replica *at, int rank)
{
    int32_t text[TEXT];
    sl_batches all, own;
    write_text(text);
    SL_TRY(sl_batchify(text, TEXT, COLUMNS, BPTT, &all));
    SL_TRY(sl_batches_shard(&all, rank, RANKS, &own));
    uint64_t blocks = (uint64_t)sl_batches_count(&own);
    double first = 0, loss = 0, norm = 0;
    for (uint64_t step = 0; step < EPOCHS * blocks; step++) {
        SL_TRY(train_step(at, &own, rank, step, &loss, &norm));
        if (step % 5 == 4)
            printf("[RANK %d]: step %2d, loss %.3f, norm %.9g\n", rank, (int)step + 1, loss, norm);
        first = step == 0 ? loss : first;
    }
    return loss < first ? SL_OK : sl_error(SL_ERR_NUMERIC, "the loss did not fall");
}

static sl_status run_rank(sl_group *group, void *devices)
{
    replica at = {0};
    sl_status status = open_replica(group, devices, &at);
    if (status == SL_OK)
        status = train(&at, sl_group_rank(group));
    if (status == SL_OK && sl_group_rank(group) == 0)
        sl_ddp_log_print(sl_ddp_get_log(at.ddp), stdout);
    close_replica(&at);
    return status;
}

int main(void)
{
    sl_device_list *devices;
    sl_status status = sl_device_list_create("cpu:0,cpu:1,cpu:2,cpu:3", &devices, NULL);
    if (status == SL_OK)
        status = sl_spawn(run_rank, devices, RANKS, NULL);
    if (status != SL_OK)
        fprintf(stderr, "ddp_pipeline: %s\n", sl_error_text());
    sl_device_list_destroy(&devices);
    return status != SL_OK;
}
