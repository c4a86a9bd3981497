/* Interleaved 1F1B: several stages a rank in a loop make each of them shorter, and with it the time
 * to fill the pipe (Narayanan et al., "Efficient large-scale language model training on GPU
 * clusters", 2021). Micro-batches run in groups of as many as there are ranks, a group through all
 * stages of a rank before the next group. For 2 ranks of 2 stages and 4 micro-batches, a clock for
 * each action:
 *
 *     rank 0   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ... 2B2 ... 2B3 0B2 0B3
 *     rank 1   ... 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 ...
 *
 * The table is written for the next multiple of the ranks, and micro-batches that are not there are
 * left out: an order that never deadlocks, where a short last group would. */
#include "parallel/schedule/writers.h"

/* The stage and micro-batch of a rank's forward number `number`. */
static sl_action forward_at(const sl_schedule *out, int rank, int64_t number)
{
    int64_t group = number / out->stages, within = number % out->stages;
    return (sl_action){.stage = (int)(within / out->ranks) * out->ranks + rank,
                       .micro = (int)(group * out->ranks + within % out->ranks)};
}

/* Backwards visit the stages in the opposite order. */
static sl_action backward_at(const sl_schedule *out, int rank, int64_t number)
{
    sl_action action = forward_at(out, rank, number);
    action.stage = out->stages - out->ranks + 2 * rank - action.stage;
    return action;
}

static void append_if_there(sl_schedule *out, int rank, sl_action_kind kind, sl_action action)
{
    if (action.micro < out->micros)
        sli_schedule_append(out, rank, action.stage, kind, action.micro);
}

/* How many forwards a rank runs before it goes forward and backward in turn. */
static int64_t count_filling(int ranks, int virtual_stages, int rank)
{
    return (virtual_stages > 1 ? 2 : 1) * (int64_t)(ranks - 1 - rank) +
           (int64_t)(virtual_stages - 1) * ranks;
}

sl_status sli_write_interleaved(const sli_writer_costs *costs, sl_schedule *out)
{
    (void)costs;
    int virtual_stages = out->stages / out->ranks;
    int64_t groups = ((int64_t)out->micros + out->ranks - 1) / out->ranks;
    int64_t total = groups * out->stages;
    for (int rank = 0; rank < out->ranks; rank++) {
        int64_t filling = count_filling(out->ranks, virtual_stages, rank);
        if (filling > total)
            filling = total;
        for (int64_t i = 0; i < total + filling; i++) {
            if (i < total)
                append_if_there(out, rank, SL_ACTION_FORWARD, forward_at(out, rank, i));
            if (i >= filling)
                append_if_there(out, rank, SL_ACTION_BACKWARD, backward_at(out, rank, i - filling));
        }
    }
    return SL_OK;
}

static int64_t between(int64_t number, int64_t least, int64_t most)
{
    return number < least ? least : number > most ? most : number;
}

/* All stages of the first group, and the first stage of the second. */
int sli_fill_interleaved(const sli_filled_row *filled, int k)
{
    int ranks = filled->ranks, behind = filled->micros > ranks ? filled->micros - ranks : 0;
    int64_t forwards = count_filling(ranks, filled->virtual_stages, filled->rank) + 1,
            first = between(forwards - (int64_t)k * ranks, 0, ranks),
            second =
                k == 0 ? between(forwards - (int64_t)filled->virtual_stages * ranks, 0, ranks) : 0;
    return (int)(between(first, 0, filled->micros) + between(second, 0, behind));
}
