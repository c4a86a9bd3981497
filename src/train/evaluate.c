#include "train/feed.h"

#include "sluice/train.h"

#include <math.h>

sl_status sl_evaluate_tokens(sl_pipe *pipe, const sl_tokens *tokens, int64_t batch_size,
                             int64_t bptt, int64_t max_batches, double *mean_loss,
                             int64_t *tokens_scored)
{
    sl_batches batches;
    sli_feed feed;
    SL_TRY(sl_batchify(tokens->ids, tokens->count, batch_size, bptt, &batches));
    SL_TRY(sli_feed_create(pipe, &batches, &feed));
    int64_t count = sl_batches_count(&batches), scored = 0;
    if (max_batches > 0 && count > max_batches)
        count = max_batches;
    double sum = 0;
    sl_status status = SL_OK;
    for (int64_t i = 0; i < count && status == SL_OK; i++) {
        double block_sum;
        int64_t block_terms;
        status = sli_feed_load(&feed, i);
        if (status == SL_OK)
            status = sl_pipe_evaluate(pipe, feed.input, feed.targets, &block_sum, &block_terms);
        if (status == SL_OK) {
            sum += block_sum;
            scored += block_terms;
        }
    }
    sli_feed_clear(&feed);
    if (status != SL_OK)
        return status;
    *mean_loss = sum / (double)scored;
    *tokens_scored = scored;
    return SL_OK;
}
