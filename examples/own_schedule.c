/* A schedule of one's own, as a table: checked, drawn, timed, and trained with. A table that would
 * hang a pipe is found to do so, and the drawing shows how far it comes. */
#include <sluice/layers.h>
#include <sluice/pipe.h>

#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 2, MICROS = 2, ROWS = 4, WIDTH = 8 };

#define F SL_ACTION_FORWARD
#define B SL_ACTION_BACKWARD
#define I SL_ACTION_BACKWARD_INPUT
#define W SL_ACTION_BACKWARD_WEIGHT

/* Zero-bubble by hand: rank 1 does its weights' halves when there is nothing else to do. Each
 * action is stage, micro-batch and kind. */
static const int counts[RANKS] = {4, 6};
static const sl_action zero_bubble[] = {
    {0, 0, F, 0, 0, 0}, {0, 1, F, 0, 0, 0}, {0, 0, B, 0, 0, 0}, {0, 1, B, 0, 0, 0}, /* rank 0 */
    {1, 0, F, 0, 0, 0}, {1, 0, I, 0, 0, 0}, {1, 1, F, 0, 0, 0},                     /* rank 1 */
    {1, 1, I, 0, 0, 0}, {1, 0, W, 0, 0, 0}, {1, 1, W, 0, 0, 0},
};

/* Rank 0 wants a gradient that rank 1 gives only after a second forward. */
static const int wrong_counts[RANKS] = {4, 4};
static const sl_action deadlock[] = {
    {0, 0, F, 0, 0, 0}, {0, 0, B, 0, 0, 0}, {0, 1, F, 0, 0, 0}, {0, 1, B, 0, 0, 0},
    {1, 0, F, 0, 0, 0}, {1, 1, F, 0, 0, 0}, {1, 0, B, 0, 0, 0}, {1, 1, B, 0, 0, 0},
};

/* Stage 1 has the larger part of the model. */
static sl_status show(const sl_schedule *schedule)
{
    const double forward[RANKS] = {1, 1.5};
    sl_simulation simulation;
    char *drawing;
    SL_TRY(sl_schedule_draw(schedule, &drawing));
    fputs(drawing, stdout);
    free(drawing);
    SL_TRY(sl_schedule_simulate(
        schedule,
        &(sl_cost_model){.forward = forward, .backward_input = forward, .backward_weight = forward},
        &simulation));
    printf("takes %g, of which %.1f%% is idle; activations held at once: %d and %d\n",
           simulation.makespan, 100 * simulation.bubble, simulation.peak_held[0],
           simulation.peak_held[1]);
    sl_simulation_clear(&simulation);
    return SL_OK;
}

/* A linear layer on each rank. */
static sl_status create_model(sl_module **out)
{
    sl_module *layer;
    for (int i = 0; i < RANKS; i++)
        SL_TRY(sl_sequential_append(out, sl_linear_create(WIDTH, WIDTH, false, &layer), &layer));
    return SL_OK;
}

static sl_status create_input(sl_device *device, sl_tensor **out)
{
    float values[ROWS * WIDTH];
    sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    for (int i = 0; i < ROWS * WIDTH; i++)
        values[i] = (float)(i % 7) / 7;
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    return sl_tensor_write(*out, values);
}

/* One step; input and targets are the same. */
static sl_status train(sl_device *const *devices, const sl_schedule *table, double *loss)
{
    sl_module *model = NULL;
    sl_loss *mean_square = NULL;
    sl_pipe *pipe = NULL;
    sl_tensor *input = NULL;
    sl_status status = create_model(&model);
    if (status == SL_OK)
        status = create_input(devices[0], &input);
    if (status == SL_OK)
        status = sl_mse_loss_create(&mean_square);
    if (status == SL_OK)
        status = sl_pipe_create(&(sl_pipe_options){.model = model,
                                                   .loss = mean_square,
                                                   .stages = RANKS,
                                                   .devices = devices,
                                                   .chunks = MICROS,
                                                   .recompute = SL_RECOMPUTE_NEVER,
                                                   .table = table,
                                                   .seed = 1},
                                &pipe);
    if (status == SL_OK)
        status = sl_pipe_train(pipe, &(sl_pipe_batch){.input = input, .targets = input}, loss);
    sl_pipe_destroy(&pipe);
    sl_tensor_destroy(&input);
    sl_loss_destroy(&mean_square);
    sl_module_destroy(&model);
    return status;
}

static sl_status run(sl_device *const *devices)
{
    sl_schedule *table;
    sl_schedule_options options = {.ranks = RANKS, .micros = MICROS};
    double own, gpipe;
    SL_TRY(sl_schedule_from_table(&options, counts, zero_bubble, &table));
    sl_status status = show(table);
    if (status == SL_OK)
        status = train(devices, table, &own);
    if (status == SL_OK)
        status = train(devices, NULL, &gpipe);
    if (status == SL_OK)
        printf("the loss is %.6f; under gpipe it is %s\n\n", own,
               own == gpipe ? "the same" : "not");
    sl_schedule_destroy(&table);
    SL_TRY(status);
    SL_TRY(sl_schedule_from_table(&options, wrong_counts, deadlock, &table));
    status = sl_schedule_validate(table);
    sl_schedule_destroy(&table);
    printf("%s\n", status == SL_OK ? "a table that deadlocks was not refused" : sl_error_text());
    return status == SL_ERR_INVALID ? SL_OK : SL_ERR_INTERNAL;
}

int main(void)
{
    sl_device *devices[RANKS] = {NULL, NULL};
    sl_status status = SL_OK;
    for (int i = 0; i < RANKS && status == SL_OK; i++)
        status = sl_device_create_cpu(1, &devices[i]);
    if (status == SL_OK)
        status = run(devices);
    if (status != SL_OK)
        fprintf(stderr, "own_schedule: %s\n", sl_error_text());
    for (int i = 0; i < RANKS; i++)
        sl_device_destroy(&devices[i]);
    return status == SL_OK ? 0 : 1;
}
