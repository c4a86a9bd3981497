/* A small language model in a pipe, for tests of what is done with models; small training runs on
 * a synthetic text, and what they report. */
#ifndef TESTS_TRAIN_SMALL_RUN_H
#define TESTS_TRAIN_SMALL_RUN_H

#include "io/scratch.h"
#include "sluice/app/train.h"
#include "support/modules.h"
#include "support/pipes.h"
#include "support/run_ahead.h"
#include "synthetic/chain.h"

#include <stdlib.h>
#include <string.h>

/* ---- A model ------------------------------------------------------------------------------ */

enum { SMALL_TOKENS = 11 };

static const sl_model_options small_model_options = {
    .ntokens = SMALL_TOKENS,
    .emsize = 8,
    .nhid = 12,
    .nlayers = 3,
    .nhead = 2,
    .dropout = 0.2f,
};

/* On `stages` devices of one thread, with micro-batches of a third of a batch. */
static inline test_pipe open_small_model(int stages, uint64_t seed)
{
    sl_module *model;
    check_ok(sl_transformer_lm_create(&small_model_options, &model));
    return open_pipe(model, new_cross_entropy(),
                     (sl_pipe_options){.stages = stages, .chunks = 3, .seed = seed}, stages, 1);
}

/* The trained parameter of that name. */
static inline sl_parameter *find_parameter(const test_pipe *pipe, const char *name)
{
    for (int s = 0; s < sl_pipe_stages(pipe->pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe->pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            if (strcmp(sl_parameter_name(sl_parameter_set_get(set, i)), name) == 0)
                return sl_parameter_set_get(set, i);
    }
    fail_msg("there is no parameter %s", name);
    return NULL;
}

/* Random ids, the same every time. */
static inline sl_tokens small_tokens(int64_t count)
{
    sl_tokens made = {.ids = malloc((size_t)count * sizeof *made.ids),
                      .count = count,
                      .line_count = 1};
    assert_non_null(made.ids);
    uint32_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        made.ids[i] = (int32_t)(state >> 8) % SMALL_TOKENS;
    }
    return made;
}

/* ---- A run -------------------------------------------------------------------------------- */

enum { SMALL_MOST_STEPS = 256, SMALL_MOST_EVALS = 16 };

typedef struct small_record {
    sl_step_info steps[SMALL_MOST_STEPS];
    sl_eval_info evals[SMALL_MOST_EVALS];
    int step_count, eval_count, started, finished, evaluated_batches;
    uint64_t peak_activations[SL_MAX_STAGES]; /* of training alone */
    sl_memory_stats memory[SL_MAX_STAGES];    /* after the last step */
    const sl_pipe *pipe;                      /* while the run goes on */
    sl_run_result result;
} small_record;

/* cmocka's set-up: `*state` is a scratch with a corpus of 4,000 tokens. */
static inline int small_corpus_create(void **state)
{
    scratch_create(state);
    scratch *dir = *state;
    check_ok(sli_synthetic_write(dir->directory,
                                 &(sli_synthetic_options){.seed = 1, .train_tokens = 4000}));
    return 0;
}

/* Three layers, dropout on, micro-batches of 3, 3 and 1 rows, and two threads in all. */
static inline sl_train_options small_options(scratch *dir)
{
    sl_train_options options = {0};
    check_ok(sl_train_options_preset("transformer-tutorial", &options));
    options.data = dir->directory;
    options.model.emsize = 16;
    options.model.nhid = 24;
    options.model.nlayers = 3;
    options.model.nhead = 2;
    options.bptt = 9;
    options.batch_size = options.eval_batch_size = 7;
    options.chunks = 3;
    options.epochs = 1;
    options.max_batches = 4;
    options.eval_max_batches = 3;
    return options;
}

static inline sl_status small_started(void *context, const sl_run_info *info)
{
    small_record *record = context;
    record->pipe = info->pipe;
    record->started++;
    for (int s = 0; s < sl_pipe_stages(info->pipe); s++)
        if (sl_pipe_device(info->pipe, s)) /* NULL: another rank's */
            sl_device_reset_peak(sl_pipe_device(info->pipe, s));
    return SL_OK;
}

static inline sl_status small_step(void *context, const sl_step_info *step)
{
    small_record *record = context;
    assert_true(record->step_count < SMALL_MOST_STEPS);
    record->steps[record->step_count++] = *step;
    for (int s = 0; s < sl_pipe_stages(record->pipe); s++) {
        if (!sl_pipe_device(record->pipe, s))
            continue;
        sl_device_memory(sl_pipe_device(record->pipe, s), &record->memory[s]);
        record->peak_activations[s] = record->memory[s].peak_bytes[SL_MEMORY_ACTIVATIONS];
    }
    return SL_OK;
}

static inline sl_status small_evaluating(void *context, const sl_evaluating_info *info)
{
    small_record *record = context;
    assert_true(info->batch >= 1 && info->batch <= info->batches);
    record->evaluated_batches++;
    return SL_OK;
}

static inline sl_status small_evaluated(void *context, const sl_eval_info *eval)
{
    small_record *record = context;
    assert_true(record->eval_count < SMALL_MOST_EVALS);
    record->evals[record->eval_count++] = *eval;
    return SL_OK;
}

static inline sl_status small_finished(void *context, const sl_run_info *info,
                                       const sl_run_result *result)
{
    small_record *record = context;
    assert_ptr_equal(info->pipe, record->pipe);
    record->result = *result;
    record->finished++;
    return SL_OK;
}

static inline sl_reporter small_reporter(small_record *record)
{
    *record = (small_record){0};
    return (sl_reporter){.context = record,
                         .started = small_started,
                         .step = small_step,
                         .evaluating = small_evaluating,
                         .evaluated = small_evaluated,
                         .finished = small_finished};
}

/* The run's status; what it reported is in *record. */
static inline sl_status small_run(const sl_train_options *options, small_record *record)
{
    sl_run_result result;
    sl_reporter reporter = small_reporter(record);
    return sl_train_run(options, &reporter, 1, &result);
}

/* Runs until each of the first `count` in peak_activations has had least[] bytes in one of the
 * runs, a few times at most: how much a stage holds depends on how far the one before runs ahead of
 * it. *record is the last run's, with the largest peak_activations of all. */
static inline void small_run_for_peaks(const sl_train_options *options, const int64_t *least,
                                       int count, small_record *record)
{
    enum { MOST_RUNS = 40 };
    uint64_t peaks[SL_MAX_STAGES] = {0};
    let_stages_run_ahead();
    for (int run = 0, reached = 0; run < MOST_RUNS && reached < count; run++) {
        check_ok(small_run(options, record));
        for (int i = reached = 0; i < count; i++) {
            if (peaks[i] < record->peak_activations[i])
                peaks[i] = record->peak_activations[i];
            reached += (int64_t)peaks[i] >= least[i];
        }
    }
    memcpy(record->peak_activations, peaks, sizeof peaks);
}

static inline void check_same_step(const sl_step_info *got, const sl_step_info *expected)
{
    assert_int_equal(got->step, expected->step);
    assert_int_equal(got->epoch, expected->epoch);
    assert_int_equal(got->batch, expected->batch);
    assert_memory_equal(&got->loss, &expected->loss, sizeof got->loss);
    assert_memory_equal(&got->grad_norm, &expected->grad_norm, sizeof got->grad_norm);
    assert_memory_equal(&got->lr, &expected->lr, sizeof got->lr);
}

/* Runs, and expects the same bits of another run. */
static inline void check_same_run(const sl_train_options *options, const small_record *expected)
{
    static small_record found;
    check_ok(small_run(options, &found));
    assert_int_equal(found.step_count, expected->step_count);
    assert_int_equal(found.eval_count, expected->eval_count);
    for (int i = 0; i < found.step_count; i++)
        check_same_step(&found.steps[i], &expected->steps[i]);
    for (int i = 0; i < found.eval_count; i++)
        assert_true(found.evals[i].loss == expected->evals[i].loss);
}

/* `second` goes on where `first` was stopped, and together they are `whole`. */
static inline void check_continued(const small_record *first, const small_record *second,
                                   const small_record *whole)
{
    assert_int_equal(first->step_count + second->step_count, whole->step_count);
    assert_int_equal(first->eval_count + second->eval_count, whole->eval_count);
    for (int i = 0; i < whole->step_count; i++)
        check_same_step(i < first->step_count ? &first->steps[i]
                                              : &second->steps[i - first->step_count],
                        &whole->steps[i]);
    for (int i = 0; i < whole->eval_count; i++) {
        const sl_eval_info *got =
            i < first->eval_count ? &first->evals[i] : &second->evals[i - first->eval_count];
        assert_string_equal(got->split, whole->evals[i].split);
        assert_int_equal(got->epoch, whole->evals[i].epoch);
        assert_int_equal(got->best, whole->evals[i].best);
        assert_memory_equal(&got->loss, &whole->evals[i].loss, sizeof got->loss);
    }
    assert_memory_equal(&second->result.test_loss, &whole->result.test_loss, sizeof(double));
    assert_memory_equal(&second->result.best_valid_loss, &whole->result.best_valid_loss,
                        sizeof(double));
    assert_int_equal(second->result.steps, whole->result.steps);
}

#endif
