/* Scoring a text: the mean loss per token, whichever replica scores which block. */
#include "train/run.h"

#include "core/error.h"

#include <math.h>
#include <stdlib.h>

/* What an evaluation adds up, block by block; 0 for the blocks of other replicas. */
typedef struct sums {
    double *loss;  /* [blocks] */
    double *terms; /* [blocks], behind `loss` */
    int64_t blocks;
} sums;

static sl_status evaluate_block(const sli_replica *replica, sli_loader *loader,
                                const sl_evaluate_options *options, int64_t block, sums *to)
{
    int64_t terms;
    SL_TRY(sli_loader_load(loader, block));
    SL_TRY(sl_pipe_evaluate(replica->pipe,
                            &(sl_pipe_batch){.input = loader->input, .targets = loader->targets},
                            &to->loss[block], &terms));
    to->terms[block] = (double)terms;
    return options->progress ? options->progress(options->context, block + 1, to->blocks) : SL_OK;
}

/* In each round every replica has one block, or in the last one none. */
static sl_status evaluate_blocks(const sli_replica *replica, sli_loader *loader,
                                 const sl_evaluate_options *options, sli_evaluation_stop *stop,
                                 sums *to, bool *stopped)
{
    for (int64_t first = 0; first < to->blocks; first += replica->count) {
        if (stop)
            SL_TRY(stop(options->context, stopped));
        if (*stopped)
            return SL_OK;
        if (first + replica->rank < to->blocks)
            SL_TRY(evaluate_block(replica, loader, options, first + replica->rank, to));
    }
    if (!replica->group)
        return SL_OK;
    return sl_group_all_reduce(replica->group, to->loss, 2 * to->blocks, SL_F64, SL_REDUCE_SUM,
                               NULL);
}

/* In the order of the blocks, whichever replica scored them. */
static sl_evaluation mean_of(const sums *from)
{
    double loss = 0, terms = 0;
    for (int64_t i = 0; i < from->blocks; i++) {
        loss += from->loss[i];
        terms += from->terms[i];
    }
    return (sl_evaluation){loss / terms, exp(loss / terms), (int64_t)terms};
}

sl_status sli_evaluate(const sli_replica *replica, const sl_tokens *tokens,
                       const sl_evaluate_options *options, sli_evaluation_stop *stop,
                       sl_evaluation *out)
{
    sl_batches batches;
    sli_loader loader;
    bool stopped = false;
    *out = (sl_evaluation){0};
    SL_TRY(sl_batchify(tokens->ids, tokens->count, options->batch_size, options->bptt, &batches));
    int64_t blocks = sl_batches_count(&batches);
    if (options->max_batches > 0 && blocks > options->max_batches)
        blocks = options->max_batches;
    double *values = calloc((size_t)blocks, 2 * sizeof *values);
    if (!values)
        return sl_error(SL_ERR_MEMORY, "no memory for an evaluation's sums");
    sums to = {values, values + blocks, blocks};
    sl_status status = sli_loader_create(replica->pipe, &batches, &loader);
    if (status == SL_OK)
        status = evaluate_blocks(replica, &loader, options, stop, &to, &stopped);
    if (status == SL_OK && !stopped)
        *out = mean_of(&to);
    sli_loader_clear(&loader);
    free(values);
    return status;
}

sl_status sl_evaluate_tokens(sl_pipe *pipe, const sl_tokens *tokens,
                             const sl_evaluate_options *options, sl_evaluation *out)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(tokens);
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(out);
    return sli_evaluate(&(sli_replica){.pipe = pipe, .count = 1}, tokens, options, NULL, out);
}
