/* ZB-V: two stages a rank, placed in a V, so that a micro-batch turns at the last rank and ends
 * where it began (Qi et al., "Pipeline parallelism with controllable memory", 2024). Rank 0 goes
 * backward as soon as a micro-batch is through, and no rank has to wait for the weights' halves.
 * For 2 ranks and 2 micro-batches, a clock for each action:
 *
 *     rank 0   0F0 0F1 ... 3F0 3I0 3F1 3I1 0I0 3W0 0I1 3W1 0W0 0W1
 *     rank 1   ... 1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 2W0 1W0 2W1 1W1
 *
 * A rank's forwards and backwards for the input come in this order: forwards of its first stage
 * until the first micro-batch returns; the two stages' forwards in turn; second stage forward and
 * backward; then all four in turn; at last the backwards that are left. Each rank holds at most 2 *
 * ranks micro-batches of a stage, which are half as large as those of a pipe with a stage a rank.
 */
#include "parallel/schedule/writers.h"

/* A rank's row under way: its two stages and how far each is. */
typedef struct row {
    sl_schedule *out;
    int rank, stage[2], forwards[2], backwards[2];
} row;

static void append_forward(row *r, int which)
{
    if (r->forwards[which] < r->out->micros)
        sli_schedule_append(r->out, r->rank, r->stage[which], SL_ACTION_FORWARD,
                            r->forwards[which]);
    r->forwards[which]++;
}

static void append_backward(row *r, int which)
{
    if (r->backwards[which] < r->out->micros)
        sli_schedule_append(r->out, r->rank, r->stage[which], SL_ACTION_BACKWARD_INPUT,
                            r->backwards[which]);
    r->backwards[which]++;
}

/* For at least 2 * ranks - 1 micro-batches, which the order needs; those that are not there are
 * left out. */
static void write_row(sl_schedule *out, int rank)
{
    int ranks = out->ranks, least = 2 * ranks - 1;
    int micros = out->micros > least ? out->micros : least;
    row r = {.out = out, .rank = rank, .stage = {rank, out->stages - 1 - rank}};
    for (int i = 0; i < 2 * (ranks - rank) - 1; i++)
        append_forward(&r, 0);
    for (int i = 0; i < rank; i++) {
        append_forward(&r, 1);
        append_forward(&r, 0);
    }
    for (int i = 0; i < ranks - rank; i++) {
        append_forward(&r, 1);
        append_backward(&r, 1);
    }
    while (r.forwards[1] < micros) {
        if (r.forwards[0] < micros)
            append_forward(&r, 0);
        append_backward(&r, 0);
        append_forward(&r, 1);
        append_backward(&r, 1);
    }
    while (r.backwards[0] < micros) {
        append_backward(&r, 0);
        if (r.backwards[1] < micros)
            append_backward(&r, 1);
    }
}

sl_status sli_write_zb_v(const sli_writer_costs *costs, sl_schedule *out)
{
    for (int rank = 0; rank < out->ranks; rank++)
        write_row(out, rank);
    return sli_insert_weights(costs, 2 * out->ranks, out);
}

int sli_fill_zb_v(const sli_filled_row *filled, int k)
{
    int forwards = k == 0 ? 2 * filled->ranks - filled->rank - 1 : filled->rank + 1;
    return forwards < filled->micros ? forwards : filled->micros;
}
