#include "train/feed.h"

#include "sluice/train.h"

#include <math.h>

/* Adds a block's terms to the sums. */
static sl_status evaluate_block(sl_pipe *pipe, sli_feed *feed, int64_t index, double *sum,
                                int64_t *terms)
{
    double block_sum;
    int64_t block_terms;
    SL_TRY(sli_feed_load(feed, index));
    SL_TRY(sl_pipe_evaluate(pipe, feed->input, feed->targets, &block_sum, &block_terms));
    *sum += block_sum;
    *terms += block_terms;
    return SL_OK;
}

sl_status sl_evaluate_tokens(sl_pipe *pipe, const sl_tokens *tokens,
                             const sl_evaluate_options *options, sl_evaluation *out)
{
    sl_batches batches;
    sli_feed feed;
    *out = (sl_evaluation){0};
    SL_TRY(sl_batchify(tokens->ids, tokens->count, options->batch_size, options->bptt, &batches));
    SL_TRY(sli_feed_create(pipe, &batches, &feed));
    int64_t count = sl_batches_count(&batches), terms = 0;
    if (options->max_batches > 0 && count > options->max_batches)
        count = options->max_batches;
    double sum = 0;
    sl_status status = SL_OK;
    for (int64_t i = 0; i < count && status == SL_OK; i++) {
        status = evaluate_block(pipe, &feed, i, &sum, &terms);
        if (status == SL_OK && options->progress)
            status = options->progress(options->context, i + 1, count);
    }
    sli_feed_clear(&feed);
    if (status == SL_OK) {
        double loss = sum / (double)terms;
        *out = (sl_evaluation){loss, exp(loss), terms};
    }
    return status;
}
