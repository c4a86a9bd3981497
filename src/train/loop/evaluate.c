/* Evaluating a split: the mean loss of all its terms, whichever replica evaluates which batch. */
#include "train/loop/evaluate.h"
#include "sluice/app/inference.h"

#include "core/error.h"
#include "train/loop/language.h"
#include "train/loop/rows_task.h"

#include <math.h>
#include <stdlib.h>

/* One split of a task, as a replica evaluates it, and what it adds up, batch by batch: 0 for the
 * batches of other replicas. */
typedef struct split_evaluation {
    const sli_replica *replica;
    const sl_train_task *task;
    const sli_rows_task *rows; /* NULL: it is no task of rows */
    sli_batch_range range;
    const sl_evaluate_options *options;
    int64_t batches;        /* of these, at most */
    double *losses, *terms; /* [batches], the terms behind the losses */
} split_evaluation;

static sl_status evaluate_batch(const split_evaluation *job, int64_t batch)
{
    const sl_evaluate_options *options = job->options;
    const sl_train_rows rows = {.split = job->range.split,
                                .batch = job->range.first + batch,
                                .batch_rows = options->batch_size,
                                .count = options->batch_size};
    sl_tensor *input, *targets;
    sli_rows_extra extra = {0};
    int64_t terms = 0;
    sl_status status;
    SL_TRY_OR_FAIL(sli_replica_load(job->replica, job->task, &rows, &input, &targets));
    if (job->rows)
        SL_TRY_OR_FAIL(
            sli_rows_task_load_extra(job->rows, &rows, sli_replica_device(job->replica), &extra));
    const sl_input documents = {SL_DOCUMENTS_INPUT, extra.documents, false};
    SL_TRY_OR_FAIL(sl_pipe_evaluate(job->replica->pipe,
                                    &(sl_pipe_batch){.input = input,
                                                     .inputs = &documents,
                                                     .input_count = extra.documents != NULL,
                                                     .lengths = extra.lengths,
                                                     .targets = targets,
                                                     .same_weights = batch >= job->replica->count},
                                    &job->losses[batch], &terms));
    job->terms[batch] = (double)terms;
    if (options->progress && !job->replica->is_silent)
        status = options->progress(options->context, batch + 1, job->batches);
fail:
    sli_rows_extra_clear(&extra);
    sl_tensor_destroy(&targets);
    sl_tensor_destroy(&input);
    return status;
}

/* In each round every replica has one batch, or in the last one none. */
static sl_status evaluate_batches(const split_evaluation *job, sli_evaluation_stop *stop,
                                  bool *stopped)
{
    const sli_replica *replica = job->replica;
    for (int64_t first = 0; first < job->batches; first += replica->count) {
        if (stop)
            SL_TRY(stop(job->options->context, stopped));
        if (*stopped)
            return SL_OK;
        if (first + replica->index < job->batches)
            SL_TRY(evaluate_batch(job, first + replica->index));
    }
    if (!replica->group)
        return SL_OK;
    return sl_group_all_reduce(replica->group, job->losses, 2 * job->batches, SL_F64, SL_REDUCE_SUM,
                               NULL);
}

/* In the order of the batches, whichever replica scored them. */
static sl_evaluation mean_of(const split_evaluation *job)
{
    double loss = 0, terms = 0;
    for (int64_t i = 0; i < job->batches; i++) {
        loss += job->losses[i];
        terms += job->terms[i];
    }
    return (sl_evaluation){loss / terms, exp(loss / terms), (int64_t)terms};
}

sl_status sli_evaluate(const sli_replica *replica, const sl_train_task *task,
                       const sli_rows_task *rows, sli_batch_range range,
                       const sl_evaluate_options *options, sli_evaluation_stop *stop,
                       sl_evaluation *out)
{
    split_evaluation job = {.replica = replica,
                            .task = task,
                            .rows = rows,
                            .range = range,
                            .options = options,
                            .batches = range.count};
    bool stopped = false;
    *out = (sl_evaluation){0};
    if (options->max_batches > 0 && job.batches > options->max_batches)
        job.batches = options->max_batches;
    job.losses = calloc((size_t)job.batches, 2 * sizeof *job.losses);
    if (!job.losses)
        return sli_no_memory(NULL, "an evaluation's sums");
    job.terms = job.losses + job.batches;
    sl_status status;
    SL_TRY_OR_FAIL(evaluate_batches(&job, stop, &stopped));
    if (!stopped)
        *out = mean_of(&job);
fail:
    free(job.losses);
    return status;
}

sl_status sl_evaluate_tokens(sl_pipe *pipe, const sl_tokens *tokens,
                             const sl_evaluate_options *options, sl_evaluation *out)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(tokens);
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(out);
    sli_language language = {.tokens = {[SL_SPLIT_TEST] = tokens}, .bptt = options->bptt};
    sl_train_task task = sli_language_task(&language);
    int64_t batches;
    *out = (sl_evaluation){0};
    SL_TRY(task.count_batches(task.context, SL_SPLIT_TEST, options->batch_size, &batches));
    return sli_evaluate(&(sli_replica){.pipe = pipe, .count = 1}, &task, NULL,
                        (sli_batch_range){SL_SPLIT_TEST, 0, batches}, options, NULL, out);
}

sl_status sl_evaluate_rows(sl_pipe *pipe, const sl_rows *rows, const sl_evaluate_options *options,
                           sl_evaluation *out)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(rows);
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(out);
    sli_rows_source source = {.rows = {[SL_SPLIT_TEST] = (sl_rows *)rows}};
    sli_rows_task data = {.sources = &source, .count = 1};
    sl_train_task task = sli_rows_task_make(&data);
    int64_t batches;
    *out = (sl_evaluation){0};
    SL_TRY(task.count_batches(task.context, SL_SPLIT_TEST, options->batch_size, &batches));
    return sli_evaluate(&(sli_replica){.pipe = pipe, .count = 1}, &task, &data,
                        (sli_batch_range){SL_SPLIT_TEST, 0, batches}, options, NULL, out);
}
