/* Draws the next token of a text from the model's logits, by the rules of the options. */
#include "train/loop/draw_token.h"

#include "core/error.h"
#include "core/philox.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct sli_drawing {
    int64_t ntokens;
    candidate *candidates; /* [ntokens] */
    bool *seen;            /* [ntokens] ids of a text */
};

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

static void penalise_repetition(const sl_generate_options *options, const int32_t *ids,
                                int64_t length, const sli_drawing *drawing, float *logits)
{
    float penalty = (float)options->repetition_penalty;
    if (penalty == 0 || penalty == 1)
        return;
    memset(drawing->seen, 0, (size_t)drawing->ntokens * sizeof *drawing->seen);
    for (int64_t i = 0; i < length; i++)
        drawing->seen[ids[i]] = true;
    for (int64_t id = 0; id < drawing->ntokens; id++)
        if (drawing->seen[id])
            logits[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
}

static int32_t choose_token(const sl_generate_options *options, const float *logits,
                            const sli_drawing *drawing, int64_t position)
{
    ranking ranked = {.all = drawing->candidates};
    for (int32_t id = 0; id < drawing->ntokens; id++)
        if (id != options->never)
            ranked.all[ranked.count++] = (candidate){logits[id], id};
    if (ranked.count == 0)
        return options->never;
    build_ranking(&ranked);
    if (options->temperature == 0)
        return candidate_at(&ranked, 0).id;
    return sample_token(&ranked, options, random_number_at(options->seed, position));
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

sl_status sli_drawing_create(int64_t ntokens, sli_drawing **out)
{
    sli_drawing *drawing = calloc(1, sizeof *drawing);
    *out = drawing;
    if (drawing) {
        drawing->ntokens = ntokens;
        drawing->candidates = calloc((size_t)ntokens + 1, sizeof *drawing->candidates);
        drawing->seen = calloc((size_t)ntokens + 1, sizeof *drawing->seen);
    }
    if (drawing && drawing->candidates && drawing->seen)
        return SL_OK;
    sli_drawing_destroy(out);
    return sli_no_memory(NULL, "%" PRId64 " candidates", ntokens);
}

void sli_drawing_destroy(sli_drawing **drawing)
{
    if (!*drawing)
        return;
    free((*drawing)->candidates);
    free((*drawing)->seen);
    free(*drawing);
    *drawing = NULL;
}

sl_status sli_draw_token(const sli_drawing *drawing, const sl_generate_options *options,
                         const int32_t *ids, int64_t length, float *logits, int32_t *out)
{
    penalise_repetition(options, ids, length, drawing, logits);
    SL_TRY(check_finite(logits, drawing->ntokens));
    *out = choose_token(options, logits, drawing, length);
    return SL_OK;
}
