/* The operations of a process group, as PyTorch's tutorial on writing distributed applications has
 * them: messages, collective operations, and an all-reduce of one's own made of messages.
 *
 * The ranks are threads; under sl_group_create_mpi they would be processes, with the same code. */
#include "exit_code.h"

#include <sluice/group.h>

#include <stdio.h>

enum { RANKS = 4 };

/* Rank 0 sends a number to rank 1, which waits for it. */
static sl_status send_number(sl_group *group, int rank)
{
    float number = rank == 0 ? 1 : 0;
    if (rank == 0)
        SL_TRY(sl_group_send(group, &number, 1, SL_F32, 1, 0, NULL));
    if (rank == 1)
        SL_TRY(sl_group_recv(group, &number, 1, SL_F32, 0, 0, NULL, NULL));
    if (rank < 2)
        printf("[RANK %d]: has %g\n", rank, (double)number);
    return SL_OK;
}

/* Rank 0 scatters numbers 0, 1, 2, 3; each rank squares its own; rank 0 gathers them, and gets
 * their sum. */
static sl_status share_work(sl_group *group, int rank)
{
    const float numbers[RANKS] = {0, 1, 2, 3};
    float own, squares[RANKS];
    SL_TRY(sl_group_scatter(group, rank == 0 ? numbers : NULL, &own, 1, SL_F32, 0, NULL));
    own *= own;
    SL_TRY(sl_group_gather(group, &own, rank == 0 ? squares : NULL, 1, SL_F32, 0, NULL));
    SL_TRY(sl_group_reduce(group, &own, 1, SL_F32, SL_REDUCE_SUM, 0, NULL));
    if (rank == 0)
        printf("[RANK 0]: squares %g %g %g %g, sum %g\n", (double)squares[0], (double)squares[1],
               (double)squares[2], (double)squares[3], (double)own);
    return SL_OK;
}

/* An all-reduce in two halves, as sharded training has it: each rank gets one element of the sum,
 * then all get all. The first half runs while the rank does something else. */
static sl_status reduce_in_halves(sl_group *group, int rank, float sum[RANKS])
{
    float own[RANKS], element;
    sl_work *work;
    for (int i = 0; i < RANKS; i++)
        own[i] = (float)(10 * rank + i);
    SL_TRY(sl_group_reduce_scatter(group, own, &element, 1, SL_F32, SL_REDUCE_SUM, &work));
    /* … */
    SL_TRY(sl_work_wait(&work));
    return sl_group_all_gather(group, &element, sum, 1, SL_F32, NULL);
}

/* The tutorial's ring: what a rank has received goes on to its right neighbour, and is added. */
static sl_status reduce_in_a_ring(sl_group *group, int rank, float sum[RANKS])
{
    float received[RANKS], sent[RANKS];
    for (int i = 0; i < RANKS; i++)
        sum[i] = sent[i] = (float)(10 * rank + i);
    for (int step = 1; step < RANKS; step++) {
        SL_TRY(sl_group_send(group, sent, RANKS, SL_F32, (rank + 1) % RANKS, step, NULL));
        SL_TRY(sl_group_recv(group, received, RANKS, SL_F32, (rank + RANKS - 1) % RANKS, step, NULL,
                             NULL));
        for (int i = 0; i < RANKS; i++)
            sum[i] += sent[i] = received[i];
    }
    return SL_OK;
}

static sl_status run_rank(sl_group *group, void *arg)
{
    int rank = sl_group_rank(group);
    float halves[RANKS], ring[RANKS];
    (void)arg;
    SL_TRY(send_number(group, rank));
    SL_TRY(share_work(group, rank));
    SL_TRY(reduce_in_halves(group, rank, halves));
    SL_TRY(reduce_in_a_ring(group, rank, ring));
    for (int i = 0; i < RANKS; i++)
        if (ring[i] != halves[i])
            return sl_error(SL_ERR_NUMERIC, "the two sums differ");
    printf("[RANK %d]: sums %g %g %g %g\n", rank, (double)ring[0], (double)ring[1], (double)ring[2],
           (double)ring[3]);
    return sl_group_barrier(group, NULL);
}

int main(void)
{
    return exit_code("collectives", sl_spawn(run_rank, NULL, RANKS, NULL));
}
