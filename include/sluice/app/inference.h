/* Using a trained model, by a pipe for inference: the loss of a text, questions of multiple choice,
 * logits, and text. NULL is refused (sluice/status.h). */
#ifndef SLUICE_APP_INFERENCE_H
#define SLUICE_APP_INFERENCE_H

#include "sluice/app/text.h"
#include "sluice/pipe.h"

SL_API_BEGIN

typedef struct sl_evaluate_options {
    int64_t batch_size, bptt;
    int64_t max_batches; /* 0: all */
    /* (optional) Called after each batch, from 1; an error that it returns ends the evaluation. */
    sl_status (*progress)(void *context, int64_t batch, int64_t batches);
    void *context;
} sl_evaluate_options;

typedef struct sl_evaluation {
    double loss, perplexity; /* the mean over all scored tokens, and exp of it */
    int64_t tokens;          /* scored ones */
} sl_evaluation;

/* Scores the tokens of a split: each by its probability after those before it in its block, through
 * the pipe in evaluation mode. In a group, every rank of the pipe calls it, and gets the result.
 * Errors: as sl_batchify and sl_pipe_evaluate. */
sl_status sl_evaluate_tokens(sl_pipe *pipe, const sl_tokens *tokens,
                             const sl_evaluate_options *options, sl_evaluation *out);

/* The same of rows of ids. Every row is evaluated; `bptt` is not used. */
sl_status sl_evaluate_rows(sl_pipe *pipe, const sl_rows *rows, const sl_evaluate_options *options,
                           sl_evaluation *out);

typedef struct sl_choices_options {
    int64_t ntokens, positions; /* of the model: its vocabulary, and the most tokens of a row */
    const sl_vocab *vocab;      /* NULL: questions have ids alone */
} sl_choices_options;

typedef struct sl_choices {
    int64_t questions;
    int64_t right;         /* whose right ending is the most probable */
    int64_t right_by_mean; /* whose right ending has the highest mean over its tokens of the
                              logarithm of their probability */
} sl_choices;

/* Asks questions of multiple choice, one after the other. `path` has JSON lines {"context": TEXT,
 * "endings": [TEXT, …], "label": N}, where texts may be lists of ids, an ending's text follows a
 * space, and "ctx" is the context's other name, as in HellaSwag's files; or, called ….bin, it is an
 * evaluation of llm.c. A context has its own tokens alone: none for the beginning of a text is put
 * before it. The shares are llm.c's acc and acc_norm (dev/data/hellaswag.py; its EvalLoader has the
 * second alone). In a group, every rank of the pipe calls it. Errors, with line or question:
 * SL_ERR_FORMAT, SL_ERR_UNSUPPORTED for more than 64 endings, SL_ERR_NOT_FOUND, also for text
 * without a vocabulary, SL_ERR_NUMERIC for a probability that is not finite, SL_ERR_IO,
 * SL_ERR_MEMORY; those of sl_compute_logits. */
sl_status sl_evaluate_choices(sl_pipe *pipe, const char *path, const sl_choices_options *options,
                              sl_choices *out);

/* The logits of ids [rows, length] by a pipe for inference: *logits [rows, length, *ntokens] is
 * malloc'ed. In a group, every rank of the pipe calls it, and gets them. Errors: SL_ERR_MEMORY, as
 * sl_pipe_forward. */
sl_status sl_compute_logits(sl_pipe *pipe, const int32_t *ids, int64_t rows, int64_t length,
                            float **logits, int64_t *ntokens);

/* The positions of a row where nothing else is known: those of the tutorials. */
enum { SL_DEFAULT_CONTEXT = 35 };

typedef struct sl_generate_options {
    int64_t context;    /* tokens of the past that the model sees; 0: SL_DEFAULT_CONTEXT */
    double temperature; /* 0: greedy */
    int top_k;          /* 0: all */
    double top_p; /* of those, the most probable, as far as the ones before have less than this
                     together; 0 or 1: all */
    double min_p; /* of those, the ones with this share of the best one's probability; 0: all */
    double repetition_penalty; /* divides the logit of an id of the text, or multiplies a negative
                                  one: 1e-30 … 1e30; 0 or 1: none */
    uint64_t seed;
    int32_t never; /* an id that is not drawn where there is another, such as SL_VOCAB_UNKNOWN of
                      words; -1: any may be */
    bool stops;    /* behind the first `end` that is added, such as the end of text */
    int32_t end;
    int64_t rows; /* how many texts are under way at once; 0: 1 */
    /* (optional) Called before a text begins, which may then get other ids with the same content
     * and room for more; with each token that is added to a text; and where a text ends, whose ids
     * are not used after it. Texts are counted from 0. An error that one returns, on any rank, ends
     * all. */
    sl_status (*begun)(void *context, int64_t text);
    sl_status (*added)(void *context, int64_t text, int32_t id);
    sl_status (*ended)(void *context, int64_t text);
    void *context_of_added;
} sl_generate_options;

/* Appends at most `count` tokens to ids[0 … *length - 1] (room for *length + count) and adds to
 * *length. A draw depends on seed and position alone. The rules apply in the order of transformers'
 * (RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper,
 * MinPLogitsWarper). In a group, every rank of the pipe calls it with the same arguments, and gets
 * the tokens. Errors: SL_ERR_INVALID for an empty prompt, an id
 * that the model does not have, and numbers out of range, SL_ERR_NUMERIC for an output of the model
 * that is not finite, as sl_pipe_forward. */
sl_status sl_generate(sl_pipe *pipe, const sl_generate_options *options, int32_t *ids,
                      int64_t *length, int64_t count);

typedef struct sl_text {
    int32_t *ids;   /* [length], once it begins with room for those that are added; borrowed */
    int64_t length; /* grows */
} sl_text;

/* Appends at most `tokens` tokens to each of `count` texts, which may have different lengths: those
 * that sl_generate gives each by itself, but that a product of another number of rows may round
 * differently, for texts with equal prompts as well. `rows` texts at once go through the pipe, in
 * as many micro-batches as it has chunks; where one ends, the next begins. A text that is longer
 * than the context goes through it by itself. After an error the texts have what was added before.
 * Errors: as sl_generate, and those of the functions of `options`. */
sl_status sl_generate_texts(sl_pipe *pipe, const sl_generate_options *options, sl_text *texts,
                            int64_t count, int64_t tokens);

SL_API_END

#endif
