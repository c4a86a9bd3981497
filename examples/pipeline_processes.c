/* A pipeline whose two stages are in two processes, on one machine or on two:
 *
 *     mpirun -n 2 pipeline_processes       a stage in each process
 *     pipeline_processes                   both in one process, with the same losses
 *
 * Every process builds the model, which takes no memory, and makes a pipe with the same options.
 * The pipe has parameters and devices for the process's own stages alone. */
#include <sluice/sluice.h>

#include <stdio.h>

enum { STAGES = 2, NTOKENS = 40, TEXT = 4001, COLUMNS = 20, BPTT = 35, CHUNKS = 4, EPOCHS = 2 };

typedef struct trainer {
    sl_group *group; /* of all processes */
    sl_device *devices[STAGES];
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_device *device;          /* of the tensors below */
    sl_tensor *input, *targets; /* i32 [COLUMNS, BPTT] */
} trainer;

/* Without MPI there is this one process. */
static sl_status join_processes(trainer *at)
{
    sl_status status = sl_group_create_mpi(NULL, &at->group);
    return status == SL_ERR_UNSUPPORTED ? sl_group_create_local(1, NULL, &at->group) : status;
}

/* With n processes, each has STAGES / n neighbouring stages, and a device of one core for each. */
static sl_status open_pipe(trainer *at)
{
    int processes = sl_group_size(at->group), own = sl_group_rank(at->group);
    sl_model_options model = {
        .ntokens = NTOKENS, .emsize = 32, .nhid = 64, .nlayers = 4, .nhead = 2, .dropout = 0.1f};
    for (int s = 0; s < STAGES; s++)
        if (s * processes / STAGES == own)
            SL_TRY(sl_device_create_cpu(1, &at->devices[s]));
    SL_TRY(sl_transformer_lm_create(&model, &at->model));
    SL_TRY(sl_cross_entropy_create(&at->loss));
    sl_pipe_options options = {.model = at->model,
                               .loss = at->loss,
                               .stages = STAGES,
                               .devices = at->devices,
                               .group = at->group,
                               .chunks = CHUNKS,
                               .schedule = "1f1b",
                               .seed = 1};
    SL_TRY(sl_pipe_create(&options, &at->pipe));
    return sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = at->pipe}, &at->optimizer);
}

static sl_status open_tensors(trainer *at)
{
    sl_shape shape = sl_shape_2d(COLUMNS, BPTT);
    SL_TRY(sl_device_create_cpu(1, &at->device));
    SL_TRY(sl_tensor_create(at->device, SL_MEMORY_ACTIVATIONS, SL_I32, &shape, &at->input));
    return sl_tensor_create(at->device, SL_MEMORY_ACTIVATIONS, SL_I32, &shape, &at->targets);
}

static void close_trainer(trainer *at)
{
    sl_tensor_destroy(&at->input);
    sl_tensor_destroy(&at->targets);
    sl_pipe_optimizer_destroy(&at->optimizer);
    sl_pipe_destroy(&at->pipe);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
    for (int s = 0; s < STAGES; s++)
        sl_device_destroy(&at->devices[s]);
    sl_device_destroy(&at->device);
    sl_group_destroy(&at->group);
}

static void show_stages(const trainer *at)
{
    for (int s = 0; s < STAGES; s++) {
        int first, count;
        sl_pipe_stage_modules(at->pipe, s, &first, &count);
        if (sl_pipe_parameters(at->pipe, s))
            printf("process %d has stage %d: modules %d to %d\n", sl_group_rank(at->group), s,
                   first, first + count - 1);
    }
    fflush(stdout);
}

/* The input is read by the process of the first stage, and the targets by that of the last one. All
 * processes get the loss. */
static sl_status train_step(trainer *at, const sl_batches *batches, uint64_t step, double *loss)
{
    int64_t block = (int64_t)step % sl_batches_count(batches);
    SL_TRY(sl_batches_block(batches, block, sl_tensor_i32(at->input), sl_tensor_i32(at->targets)));
    sl_pipe_batch batch = {.input = at->input,
                           .targets = at->targets,
                           .step = step,
                           .first_sample = (int64_t)step * COLUMNS};
    sl_pipe_zero_grad(at->pipe);
    SL_TRY(sl_pipe_train(at->pipe, &batch, loss));
    return sl_pipe_optimizer_step(at->optimizer, 2.0, 0.5, NULL);
}

static sl_status train(trainer *at)
{
    static int32_t text[TEXT];
    sl_batches batches;
    for (int i = 0, token = 0; i < TEXT; i++, token = (7 * token + 11) % NTOKENS)
        text[i] = i % 50 == 0 ? i / 50 % NTOKENS : token;
    SL_TRY(sl_batchify(text, TEXT, COLUMNS, BPTT, &batches));
    uint64_t steps = EPOCHS * (uint64_t)sl_batches_count(&batches);
    double first = 0, loss = 0;
    for (uint64_t step = 0; step < steps; step++) {
        SL_TRY(train_step(at, &batches, step, &loss));
        first = step == 0 ? loss : first;
        if (sl_group_rank(at->group) == 0 && (step + 1) % 4 == 0)
            printf("step %2d, loss %.9f\n", (int)step + 1, loss);
    }
    return loss < first ? SL_OK : sl_error(SL_ERR_NUMERIC, "the loss did not fall");
}

int main(void)
{
    trainer at = {0};
    sl_status status = join_processes(&at);
    if (status == SL_OK)
        status = open_pipe(&at);
    if (status == SL_OK)
        status = open_tensors(&at);
    if (status == SL_OK) {
        show_stages(&at);
        status = train(&at);
    }
    if (status != SL_OK)
        fprintf(stderr, "pipeline_processes: %s\n", sl_error_text());
    close_trainer(&at);
    return status != SL_OK;
}
