#include "train/evaluate.h"

#include "train/feed.h"

#include <math.h>
#include <stdlib.h>

/* What an evaluation adds up, block by block; 0 for the blocks of other replicas. */
typedef struct sums {
    double *loss; /* [blocks] */
    double *terms;
    int64_t blocks;
} sums;

static sl_status evaluate_blocks(const sli_peers *peers, sli_feed *feed,
                                 const sl_evaluate_options *options, sums *to)
{
    for (int64_t i = peers->rank; i < to->blocks; i += peers->count) {
        int64_t terms;
        SL_TRY(sli_feed_load(feed, i));
        SL_TRY(sl_pipe_evaluate(peers->pipe, feed->input, feed->targets, &to->loss[i], &terms));
        to->terms[i] = (double)terms;
        if (options->progress)
            SL_TRY(options->progress(options->context, i + 1, to->blocks));
    }
    return sli_peers_sum(peers, to->loss, 2 * to->blocks);
}

/* In the order of the blocks, whoever scored them. */
static void add_up(const sums *from, sl_evaluation *out)
{
    double loss = 0, terms = 0;
    for (int64_t i = 0; i < from->blocks; i++) {
        loss += from->loss[i];
        terms += from->terms[i];
    }
    *out = (sl_evaluation){loss / terms, exp(loss / terms), (int64_t)terms};
}

sl_status sli_evaluate(const sli_peers *peers, const sl_tokens *tokens,
                       const sl_evaluate_options *options, sl_evaluation *out)
{
    sl_batches batches;
    sli_feed feed;
    *out = (sl_evaluation){0};
    SL_TRY(sl_batchify(tokens->ids, tokens->count, options->batch_size, options->bptt, &batches));
    int64_t blocks = sl_batches_count(&batches);
    if (options->max_batches > 0 && blocks > options->max_batches)
        blocks = options->max_batches;
    double *values = calloc((size_t)blocks, 2 * sizeof *values);
    if (!values)
        return sl_error(SL_ERR_MEMORY, "no memory for an evaluation's sums");
    sums to = {values, values + blocks, blocks};
    sl_status status = sli_feed_create(peers->pipe, &batches, &feed);
    if (status == SL_OK)
        status = evaluate_blocks(peers, &feed, options, &to);
    if (status == SL_OK)
        add_up(&to, out);
    sli_feed_clear(&feed);
    free(values);
    return status;
}

sl_status sl_evaluate_tokens(sl_pipe *pipe, const sl_tokens *tokens,
                             const sl_evaluate_options *options, sl_evaluation *out)
{
    return sli_evaluate(&(sli_peers){.pipe = pipe, .count = 1}, tokens, options, out);
}
