/* Text from a trained model: each token is drawn from the model's distribution after the last
 * `context` tokens. The pipe runs forward only; the last position's logits are all that is used.
 *
 * As long as the model sees the whole text, a cache has the keys and values of all tokens but the
 * newest. Once the text is longer than the context, each token changes the positions of all that
 * the model sees, and with them the keys and values: then forward runs over the whole context. */
#include "comm/agree.h"
#include "core/error.h"
#include "core/philox.h"
#include "sluice/app/inference.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CONTEXT = 35 };
/* So that the penalty has an f32, and logits of any model stay finite. */
static const double least_penalty = 1e-30, most_penalty = 1e30;

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

/* Candidates by their logits, the largest first; equal ones by id, so that the order is the same
 * everywhere. The first `left` are a heap; behind it are those that were removed, the last one
 * first. */
typedef struct ranking {
    candidate *all;
    int64_t count, left;
} ranking;

static bool comes_before(candidate x, candidate y)
{
    return x.logit != y.logit ? x.logit > y.logit : x.id < y.id;
}

/* Moves the candidate at `index` down to where it belongs. */
static void sift_down(ranking *ranked, int64_t index)
{
    candidate moved = ranked->all[index];
    for (int64_t child = 2 * index + 1; child < ranked->left; child = 2 * index + 1) {
        if (child + 1 < ranked->left && comes_before(ranked->all[child + 1], ranked->all[child]))
            child++;
        if (!comes_before(ranked->all[child], moved))
            break;
        ranked->all[index] = ranked->all[child];
        index = child;
    }
    ranked->all[index] = moved;
}

static void build_ranking(ranking *ranked)
{
    ranked->left = ranked->count;
    for (int64_t end = ranked->count / 2; end > 0; end--)
        sift_down(ranked, end - 1);
}

/* Candidate `rank`, counted from 0. */
static candidate candidate_at(ranking *ranked, int64_t rank)
{
    while (ranked->count - ranked->left <= rank) {
        candidate first = ranked->all[0];
        ranked->all[0] = ranked->all[--ranked->left];
        ranked->all[ranked->left] = first;
        if (ranked->left > 0)
            sift_down(ranked, 0);
    }
    return ranked->all[ranked->count - 1 - rank];
}

/* A number in [0, 1) for the token at `position`. */
static double random_number_at(uint64_t seed, int64_t position)
{
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    sli_philox(sli_philox_key_make(seed, SLI_RANDOM_GENERATE), counter);
    return (double)sli_uniform_from_bits(counter[0]);
}

/* The probability of a candidate, divided by that of the best one. */
static double weight_of(ranking *ranked, candidate one, double temperature)
{
    return exp((one.logit - candidate_at(ranked, 0).logit) / temperature);
}

static bool limits_top_p(const sl_generate_options *options)
{
    return options->top_p > 0 && options->top_p < 1;
}

/* How many of the `most` best ones, whose weights are *total, top_p and min_p keep; *total becomes
 * the weights of these. */
static int64_t keep_probable(ranking *ranked, int64_t most, const sl_generate_options *options,
                             double *total)
{
    double passed = 0;
    int64_t kept = 0;
    for (; kept < most; kept++) {
        double weight = weight_of(ranked, candidate_at(ranked, kept), options->temperature);
        bool is_enough = limits_top_p(options) && passed >= options->top_p * *total;
        if (kept > 0 && (is_enough || weight < options->min_p))
            break;
        passed += weight;
    }
    *total = passed;
    return kept;
}

/* The first of the candidates that are kept at which the cumulated probability passes u. */
static int32_t sample_token(ranking *ranked, const sl_generate_options *options, double u)
{
    double total = 0, passed = 0;
    int64_t most =
        options->top_k > 0 && options->top_k < ranked->count ? options->top_k : ranked->count;
    if (most < ranked->count)
        candidate_at(ranked, most - 1);
    int64_t first = most < ranked->count ? ranked->left : 0;
    float best = candidate_at(ranked, 0).logit;
    for (int64_t i = first; i < ranked->count; i++)
        total += exp((ranked->all[i].logit - best) / options->temperature);
    if (limits_top_p(options) || options->min_p > 0)
        most = keep_probable(ranked, most, options, &total);
    for (int64_t rank = 0; rank < most; rank++) {
        candidate next = candidate_at(ranked, rank);
        passed += weight_of(ranked, next, options->temperature);
        if (u * total < passed)
            return next.id;
    }
    return candidate_at(ranked, most - 1).id;
}

/* What drawing needs beside the logits. */
typedef struct drawing {
    candidate *candidates; /* [ntokens] */
    bool *seen;            /* [ntokens] ids of the text's first `seen_length` */
    int64_t seen_length;
} drawing;

static void penalise_repetition(const sl_generate_options *options, const int32_t *ids,
                                int64_t length, drawing *draw, float *logits, int64_t ntokens)
{
    float penalty = (float)options->repetition_penalty;
    if (penalty == 0 || penalty == 1)
        return;
    for (; draw->seen_length < length; draw->seen_length++)
        draw->seen[ids[draw->seen_length]] = true;
    for (int64_t id = 0; id < ntokens; id++)
        if (draw->seen[id])
            logits[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
}

static int32_t choose_token(const sl_generate_options *options, const float *logits,
                            candidate *candidates, int64_t ntokens, int64_t position)
{
    ranking ranked = {.all = candidates};
    for (int32_t id = 0; id < ntokens; id++)
        if (id != options->never)
            candidates[ranked.count++] = (candidate){logits[id], id};
    if (ranked.count == 0)
        return options->never;
    build_ranking(&ranked);
    if (options->temperature == 0)
        return candidate_at(&ranked, 0).id;
    return sample_token(&ranked, options, random_number_at(options->seed, position));
}

/* Where the first stage is. */
static sl_status create_input(const sl_pipe *pipe, const int32_t *ids, int64_t rows, int64_t length,
                              sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(rows, length);
    *out = NULL;
    if (!sl_pipe_device(pipe, 0))
        return SL_OK;
    SL_TRY(sl_tensor_create(sl_pipe_device(pipe, 0), SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    return sl_tensor_write(*out, ids);
}

/* The last `positions` rows of the output. */
static sl_status read_last(const sl_tensor *output, int64_t positions, float *logits)
{
    int64_t columns = sl_tensor_columns(output);
    sl_shape shape = sl_shape_2d(positions, columns);
    sl_tensor *view;
    SL_TRY(sl_tensor_view(output, sl_tensor_count(output) - positions * columns, &shape, &view));
    sl_status status = sl_tensor_read(view, logits);
    sl_tensor_destroy(&view);
    return status;
}

/* Copies the last `positions` of the last stage's output, on every rank of its group; `output` is
 * NULL elsewhere. */
static sl_status copy_output(sl_pipe *pipe, const sl_tensor *output, int64_t positions,
                             float **logits, int64_t *ntokens)
{
    sl_group *group = sl_pipe_group(pipe);
    int64_t found[] = {output ? sl_tensor_columns(output) : 0, /* and the rank that has it */
                       output && group ? sl_group_rank(group) : 0};
    if (group)
        SL_TRY(
            sl_pipe_abort(pipe, sl_group_all_reduce(group, found, 2, SL_I64, SL_REDUCE_MAX, NULL)));
    *ntokens = found[0];
    int64_t count = positions * *ntokens;
    *logits = malloc((size_t)count * sizeof **logits);
    sl_status status = SL_OK;
    if (!*logits)
        status = sli_no_memory(NULL, "%" PRId64 " logits", count);
    else if (output)
        status = read_last(output, positions, *logits);
    status = sli_group_agree(group, status);
    return status == SL_OK && group
               ? sl_pipe_abort(pipe, sl_group_broadcast(group, *logits, count, SL_F32,
                                                        (int)found[1], NULL))
               : status;
}

/* The last `positions` of sl_compute_logits, by a batch that lacks its input; with a cache the ids
 * are those that follow the positions in it. */
static sl_status compute_logits(sl_pipe *pipe, sl_pipe_batch batch, const int32_t *ids,
                                int64_t rows, int64_t length, int64_t positions, float **logits,
                                int64_t *ntokens)
{
    sl_tensor *input, *output = NULL;
    *logits = NULL;
    sl_status status = create_input(pipe, ids, rows, length, &input);
    SLI_TRY_OR_FAIL(sli_group_agree(sl_pipe_group(pipe), status));
    batch.input = input;
    SLI_TRY_OR_FAIL(sl_pipe_forward(pipe, &batch, &output));
    status = copy_output(pipe, output, positions, logits, ntokens);
fail:
    sl_tensor_destroy(&output);
    sl_tensor_destroy(&input);
    if (status != SL_OK) {
        free(*logits);
        *logits = NULL;
    }
    return status;
}

sl_status sl_compute_logits(sl_pipe *pipe, const int32_t *ids, int64_t rows, int64_t length,
                            float **logits, int64_t *ntokens)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(ids);
    SLI_CHECK_NOT_NULL(logits);
    SLI_CHECK_NOT_NULL(ntokens);
    return compute_logits(pipe, (sl_pipe_batch){0}, ids, rows, length, rows * length, logits,
                          ntokens);
}

/* Ruined weights have no most probable token. */
static sl_status check_finite(const float *logits, int64_t ntokens)
{
    for (int64_t id = 0; id < ntokens; id++)
        if (!isfinite(logits[id]))
            return sl_error(SL_ERR_NUMERIC, "the model's output for token %" PRId64 " is %s", id,
                            isnan(logits[id]) ? "nan" : "infinite");
    return SL_OK;
}

static int64_t context_of(const sl_generate_options *options)
{
    return options->context > 0 ? options->context : DEFAULT_CONTEXT;
}

/* The first token's call allocates. Ids before the context have not gone through the model. */
static sl_status create_drawing(sl_pipe *pipe, const int32_t *ids, int64_t length, int64_t ntokens,
                                drawing *draw)
{
    if (draw->candidates)
        return SL_OK;
    for (int64_t i = 0; i < length; i++)
        if (ids[i] < 0 || ids[i] >= ntokens)
            return sl_pipe_abort(pipe, sl_error(SL_ERR_INVALID,
                                                "sl_generate: id %" PRId32 ", number %" PRId64
                                                " of the prompt, is not in 0 .. %" PRId64,
                                                ids[i], i + 1, ntokens - 1));
    draw->candidates = calloc((size_t)ntokens + 1, sizeof *draw->candidates);
    draw->seen = calloc((size_t)ntokens + 1, sizeof *draw->seen);
    if (draw->candidates && draw->seen)
        return SL_OK;
    return sl_pipe_abort(pipe, sli_no_memory(NULL, "%" PRId64 " candidates", ntokens));
}

/* The batch's cache is freed when the text grows longer than the context. */
static sl_status append_token(sl_pipe *pipe, sl_pipe_batch *batch,
                              const sl_generate_options *options, drawing *draw, int32_t *ids,
                              int64_t *length)
{
    int64_t context = context_of(options), first = *length > context ? *length - context : 0;
    int64_t ntokens;
    if (first > 0)
        sl_cache_destroy(&batch->cache);
    if (batch->cache)
        first = sl_cache_position(batch->cache);
    float *logits;
    SL_TRY(compute_logits(pipe, *batch, ids + first, 1, *length - first, 1, &logits, &ntokens));
    batch->same_weights = true;
    sl_status status;
    SLI_TRY_OR_FAIL(create_drawing(pipe, ids, *length, ntokens, draw));
    penalise_repetition(options, ids, *length, draw, logits, ntokens);
    SLI_TRY_OR_FAIL(check_finite(logits, ntokens));
    ids[*length] = choose_token(options, logits, draw->candidates, ntokens, *length);
    if (options->added)
        options->added(options->context_of_added, ids[*length]);
    ++*length;
fail:
    free(logits);
    return status;
}

/* For a text of `length` tokens; none for a model that cannot use one. */
static sl_status create_cache(const sl_pipe *pipe, const sl_generate_options *options,
                              int64_t length, sl_cache **out)
{
    const sl_module *model = sl_pipe_model(pipe);
    int64_t context = context_of(options);
    *out = NULL;
    if (!sl_module_can_continue(model))
        return SL_OK;
    return sl_cache_create(model, length < context ? length : context, out);
}

static sl_status check_options(const sl_generate_options *options)
{
    const struct {
        const char *name;
        double value, most;
    } numbers[] = {{"temperature", options->temperature, DBL_MAX},
                   {"top-p", options->top_p, 1},
                   {"min-p", options->min_p, 1}};
    double penalty = options->repetition_penalty;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!(numbers[i].value >= 0 && numbers[i].value <= numbers[i].most))
            return sl_error(SL_ERR_INVALID, "sl_generate: %s must be a number from 0%s, got %g",
                            numbers[i].name, numbers[i].most == 1 ? " to 1" : "", numbers[i].value);
    if (penalty != 0 && !(penalty >= least_penalty && penalty <= most_penalty))
        return sl_error(SL_ERR_INVALID,
                        "sl_generate: repetition-penalty must be 0, or from %g to %g, got %g",
                        least_penalty, most_penalty, penalty);
    return SL_OK;
}

sl_status sl_generate(sl_pipe *pipe, const sl_generate_options *options, int32_t *ids,
                      int64_t *length, int64_t count)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(ids);
    SLI_CHECK_NOT_NULL(length);
    if (*length < 1)
        return sl_error(SL_ERR_INVALID, "sl_generate: the prompt must have at least one token");
    SL_TRY(check_options(options));
    if (options->top_k < 0 || options->context < 0 || count < 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_generate: top-k, context and the count must not be negative");
    sl_pipe_batch batch = {0};
    drawing draw = {NULL};
    sl_status status = SL_OK;
    if (count > 0)
        status = create_cache(pipe, options, *length + count - 1, &batch.cache);
    SLI_TRY_OR_FAIL(sli_group_agree(sl_pipe_group(pipe), status));
    for (int64_t i = 0; i < count; i++) {
        SLI_TRY_OR_FAIL(append_token(pipe, &batch, options, &draw, ids, length));
        if (options->stops && ids[*length - 1] == options->end)
            break;
    }
fail:
    free(draw.candidates);
    free(draw.seen);
    sl_cache_destroy(&batch.cache);
    return status;
}
