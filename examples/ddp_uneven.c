/* Ranks with different numbers of batches, and a communication hook.
 *
 * Rank 0 has five batches, rank 1 three. Between sl_ddp_join_begin and sl_ddp_join_end, a rank that
 * is out of data takes part in the other's exchanges with gradients of 0; at the end both have the
 * same weights. The hook counts the bytes that are exchanged, and averages as without a hook. */
#include "exit_code.h"
#include "toy_model.h"

#include <stdio.h>

enum { RANKS = 2 };
static const int batches_of_rank[RANKS] = {5, 3};

/* Runs on the stage's communication thread. */
static sl_status count_and_average(void *bytes, sl_ddp_bucket *bucket)
{
    *(int64_t *)bytes += bucket->count * (int64_t)sl_dtype_bytes(SL_F32);
    return sl_ddp_average_hook(NULL, bucket);
}

static sl_status train(sl_training *training, int rank)
{
    sl_pipe_batch batch = {.input = training->input, .targets = training->targets};
    int64_t bytes = 0;
    SL_TRY(sl_ddp_register_hook(training->ddp, count_and_average, &bytes));
    SL_TRY(sl_ddp_join_begin(training->ddp, NULL));
    for (int i = 0; i < batches_of_rank[rank]; i++) {
        double loss;
        toy_fill(training->input, (uint32_t)(1 + 10 * i + rank));
        toy_fill(training->targets, (uint32_t)(100 + 10 * i + rank));
        SL_TRY(sl_training_step(training, &batch, 0.1, 0, &loss, NULL));
        printf("[RANK %d]: batch %d, loss %.6f\n", rank, i + 1, loss);
    }
    SL_TRY(sl_ddp_join_end(training->ddp));
    const sl_tensor *weights =
        sl_parameter_set_bucket_values(sl_pipe_parameters(training->pipe, 0), 0);
    printf("[RANK %d]: exchanged %lld bytes, first weight %.9g\n", rank, (long long)bytes,
           (double)sl_tensor_f32(weights)[0]);
    return SL_OK;
}

static sl_status run_rank(sl_group *group, void *arg)
{
    sl_training_options options = {.create_model = toy_create,
                                   .devices = "cpu",
                                   .ddp = {.group = group},
                                   .input = {SL_F32, sl_shape_2d(TOY_ROWS, TOY_IN)},
                                   .targets = {SL_F32, sl_shape_2d(TOY_ROWS, TOY_OUT)}};
    sl_training *training;
    (void)arg;
    SL_TRY(sl_training_create(&options, &training));
    sl_status status = train(training, sl_group_rank(group));
    sl_training_destroy(&training);
    return status;
}

int main(void)
{
    return exit_code("ddp_uneven", sl_spawn(run_rank, NULL, RANKS, NULL));
}
