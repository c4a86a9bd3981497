/* A schedule of one's own, as a table: checked, drawn, timed, and trained with. A table that would
 * hang a pipe is found to do so, and the drawing shows how far it comes. */
#include "exit_code.h"

#include <sluice/layers.h>
#include <sluice/training.h>

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
    {0, 0, F, 0, 0, 0, 0}, {0, 1, F, 0, 0, 0, 0}, {0, 0, B, 0, 0, 0, 0},
    {0, 1, B, 0, 0, 0, 0},                                               /* rank 0 */
    {1, 0, F, 0, 0, 0, 0}, {1, 0, I, 0, 0, 0, 0}, {1, 1, F, 0, 0, 0, 0}, /* rank 1 */
    {1, 1, I, 0, 0, 0, 0}, {1, 0, W, 0, 0, 0, 0}, {1, 1, W, 0, 0, 0, 0},
};

/* Rank 0 wants a gradient that rank 1 gives only after a second forward. */
static const int wrong_counts[RANKS] = {4, 4};
static const sl_action deadlock[] = {
    {0, 0, F, 0, 0, 0, 0}, {0, 0, B, 0, 0, 0, 0}, {0, 1, F, 0, 0, 0, 0}, {0, 1, B, 0, 0, 0, 0},
    {1, 0, F, 0, 0, 0, 0}, {1, 1, F, 0, 0, 0, 0}, {1, 0, B, 0, 0, 0, 0}, {1, 1, B, 0, 0, 0, 0},
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
static sl_status create_model(void *context, sl_module **model, sl_loss **loss)
{
    sl_module *layer;
    (void)context;
    for (int i = 0; i < RANKS; i++)
        SL_TRY(sl_sequential_append(model, sl_linear_create(WIDTH, WIDTH, false, &layer), &layer));
    return sl_mse_loss_create(loss);
}

/* One step, by a table or, where that is NULL, by a schedule of the library; input and targets are
 * the same. */
static sl_status train(const sl_schedule *table, double *loss)
{
    sl_training_options options = {.create_model = create_model,
                                   .devices = "cpu:0,cpu:1",
                                   .pipe = {.chunks = MICROS,
                                            .recompute = SL_RECOMPUTE_NEVER,
                                            .schedule = "gpipe",
                                            .table = table,
                                            .seed = 1},
                                   .input = {SL_F32, sl_shape_2d(ROWS, WIDTH)}};
    sl_training *training;
    SL_TRY(sl_training_create(&options, &training));
    for (int i = 0; i < ROWS * WIDTH; i++)
        sl_tensor_f32(training->input)[i] = (float)(i % 7) / 7;
    sl_pipe_batch batch = {.input = training->input, .targets = training->input};
    sl_status status = sl_training_step(training, &batch, 0.1, 0, loss, NULL);
    sl_training_destroy(&training);
    return status;
}

static sl_status run(void)
{
    sl_schedule *table;
    sl_schedule_options options = {.ranks = RANKS, .micros = MICROS};
    double own, gpipe;
    SL_TRY(sl_schedule_from_table(&options, counts, zero_bubble, &table));
    sl_status status = show(table);
    if (status == SL_OK)
        status = train(table, &own);
    if (status == SL_OK)
        status = train(NULL, &gpipe);
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
    return exit_code("own_schedule", run());
}
