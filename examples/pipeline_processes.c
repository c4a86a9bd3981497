/* A pipeline whose two stages are in two processes, on one machine or on two:
 *
 *     mpirun -n 2 pipeline_processes       a stage in each process
 *     pipeline_processes                   both in one process, with the same losses
 *
 * Every process builds the model, which takes no memory, and makes a pipe with the same options.
 * The pipe has parameters and devices for the process's own stages alone. */
#include "exit_code.h"

#include <sluice/sluice.h>

#include <stdio.h>

enum { STAGES = 2, NTOKENS = 40, TEXT = 4001, COLUMNS = 20, BPTT = 35, CHUNKS = 4, EPOCHS = 2 };

static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    sl_model_options options = {
        .ntokens = NTOKENS, .emsize = 32, .nhid = 64, .nlayers = 4, .nhead = 2, .dropout = 0.1f};
    (void)context;
    SL_TRY(sl_transformer_lm_create(&options, model));
    return sl_cross_entropy_create(loss);
}

/* Without MPI there is this one process. */
static sl_status join_processes(sl_group **group)
{
    sl_status status = sl_group_create_mpi(NULL, group);
    return status == SL_ERR_UNSUPPORTED ? sl_group_create_local(1, NULL, group) : status;
}

static void show_stages(const sl_training *training, int process)
{
    for (int s = 0; s < STAGES; s++) {
        int first, count;
        sl_pipe_stage_modules(training->pipe, s, &first, &count);
        if (sl_pipe_parameters(training->pipe, s))
            printf("process %d has stage %d: modules %d to %d\n", process, s, first,
                   first + count - 1);
    }
    fflush(stdout);
}

/* The process of the first stage has the input, that of the last one the targets. All processes get
 * the loss. */
static sl_status train_step(sl_training *training, const sl_batches *batches, uint64_t step,
                            double *loss)
{
    static int32_t input[COLUMNS * BPTT], targets[COLUMNS * BPTT];
    SL_TRY(sl_batches_block(batches, (int64_t)step % sl_batches_count(batches), input, targets));
    if (training->input)
        SL_TRY(sl_tensor_write(training->input, input));
    if (training->targets)
        SL_TRY(sl_tensor_write(training->targets, targets));
    sl_pipe_batch batch = {.input = training->input,
                           .targets = training->targets,
                           .step = step,
                           .first_sample = (int64_t)step * COLUMNS};
    return sl_training_step(training, &batch, 2.0, 0.5, loss, NULL);
}

static sl_status train(sl_training *training, int process)
{
    static int32_t text[TEXT];
    sl_batches batches;
    for (int i = 0, token = 0; i < TEXT; i++, token = (7 * token + 11) % NTOKENS)
        text[i] = i % 50 == 0 ? i / 50 % NTOKENS : token;
    SL_TRY(sl_batchify(text, TEXT, COLUMNS, BPTT, &batches));
    uint64_t steps = EPOCHS * (uint64_t)sl_batches_count(&batches);
    double first = 0, loss = 0;
    for (uint64_t step = 0; step < steps; step++) {
        SL_TRY(train_step(training, &batches, step, &loss));
        first = step == 0 ? loss : first;
        if (process == 0 && (step + 1) % 4 == 0)
            printf("step %2d, loss %.9f\n", (int)step + 1, loss);
    }
    return loss < first ? SL_OK : sl_error(SL_ERR_NUMERIC, "the loss did not fall");
}

/* With n processes, each has STAGES / n neighbouring stages, and a device of one core for each. */
static sl_status run(sl_group *group)
{
    int process = sl_group_rank(group);
    sl_device *devices[STAGES] = {NULL};
    sl_training_tensor block = {SL_I32, sl_shape_2d(COLUMNS, BPTT)};
    sl_training_options options = {.create_model = create_model,
                                   .pipe = {.stages = STAGES,
                                            .devices = devices,
                                            .group = group,
                                            .chunks = CHUNKS,
                                            .schedule = "1f1b",
                                            .seed = 1},
                                   .input = block,
                                   .targets = block};
    sl_training *training = NULL;
    sl_status status = SL_OK;
    for (int s = 0; s < STAGES && status == SL_OK; s++)
        if (s * sl_group_size(group) / STAGES == process)
            status = sl_device_create_cpu(1, &devices[s]);
    if (status == SL_OK)
        status = sl_training_create(&options, &training);
    if (status == SL_OK) {
        show_stages(training, process);
        status = train(training, process);
    }
    sl_training_destroy(&training);
    for (int s = 0; s < STAGES; s++)
        sl_device_destroy(&devices[s]);
    return status;
}

int main(void)
{
    sl_group *group;
    sl_status status = join_processes(&group);
    if (status == SL_OK)
        status = run(group);
    sl_group_destroy(&group);
    return exit_code("pipeline_processes", status);
}
