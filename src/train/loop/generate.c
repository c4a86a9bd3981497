/* Texts from a trained model: each token is drawn from the model's distribution after the last
 * `context` tokens. The pipe runs forward only; the last position's logits are all that is used.
 *
 * As long as the model sees a whole text, a cache has the keys and values of all tokens but the
 * newest. Once the text is longer than the context, each token changes the positions of all that
 * the model sees, and with them the keys and values: then forward runs over the whole context.
 *
 * Of several texts some are under way at once. Those whose caches lack one token each go through
 * the pipe as one batch, cut into micro-batches; a text's beginning, and one that is longer than
 * the context, by itself. Where a text ends, the next one begins. */
#include "comm/agree.h"
#include "core/error.h"
#include "train/loop/draw_token.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* So that the penalty has an f32, and logits of any model stay finite. */
static const double least_penalty = 1e-30, most_penalty = 1e30;

/* ---- Logits ----------------------------------------------------------------------------- */

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
    SL_TRY_OR_FAIL(sli_group_agree(sl_pipe_group(pipe), status));
    batch.input = input;
    SL_TRY_OR_FAIL(sl_pipe_forward(pipe, &batch, &output));
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

/* ---- Texts under way -------------------------------------------------------------------- */

typedef struct written {
    int64_t number; /* of the text; -1: none */
    int64_t added;
    sl_cache *cache; /* NULL: the model sees the context anew for each token */
} written;

typedef struct writer {
    sl_pipe *pipe;
    const sl_generate_options *options;
    sl_text *texts;
    int64_t count, tokens; /* of texts, and to add to each */
    int64_t begun;         /* texts that have begun */
    int64_t rows;          /* texts at once */
    written *under_way;    /* [rows] */
    bool same_weights;
    sli_drawing *drawing; /* made with the first logits */
    /* [rows] of a batch */
    written **batch;
    sl_cache **caches;
    int32_t *ids;
} writer;

static int64_t context_of(const sl_generate_options *options)
{
    return options->context > 0 ? options->context : SL_DEFAULT_CONTEXT;
}

/* For a text of `length` tokens; none for a model that cannot use one. */
static sl_status create_cache(const writer *self, int64_t length, sl_cache **out)
{
    const sl_module *model = sl_pipe_model(self->pipe);
    int64_t context = context_of(self->options);
    *out = NULL;
    if (!sl_module_can_continue(model))
        return SL_OK;
    return sl_cache_create(model, length < context ? length : context, out);
}

static sl_status begin_texts(writer *self)
{
    for (int64_t i = 0; i < self->rows && self->begun < self->count; i++) {
        written *place = &self->under_way[i];
        if (place->number >= 0)
            continue;
        int64_t length = self->texts[self->begun].length + self->tokens - 1;
        *place = (written){.number = self->begun++};
        if (self->options->begun)
            SL_TRY(self->options->begun(self->options->context_of_added, place->number));
        SL_TRY(create_cache(self, length, &place->cache));
    }
    return SL_OK;
}

/* The first of the ids that have to go through the model. The cache is freed when the text grows
 * longer than the context. */
static int64_t first_unseen(const writer *self, written *place)
{
    int64_t length = self->texts[place->number].length, context = context_of(self->options);
    if (length > context)
        sl_cache_destroy(&place->cache);
    if (place->cache)
        return sl_cache_position(place->cache);
    return length > context ? length - context : 0;
}

/* The first logits say how many tokens there are. Ids before the context have not gone through the
 * model. */
static sl_status check_prompt(writer *self, const written *place, int64_t ntokens)
{
    const sl_text *text = &self->texts[place->number];
    if (place->added > 0)
        return SL_OK;
    for (int64_t i = 0; i < text->length; i++)
        if (text->ids[i] < 0 || text->ids[i] >= ntokens)
            return sl_error(SL_ERR_INVALID,
                            "sl_generate: id %" PRId32 ", number %" PRId64
                            " of the prompt, is not in 0 .. %" PRId64,
                            text->ids[i], i + 1, ntokens - 1);
    return self->drawing ? SL_OK : sli_drawing_create(ntokens, &self->drawing);
}

/* Names the text that an error is of, where there are several. */
static sl_status name_text(const writer *self, const written *place, sl_status status)
{
    return self->count == 1 ? status
                            : sl_error_context(status, "text %" PRId64 " of %" PRId64 ": ",
                                               place->number + 1, self->count);
}

static sl_status end_text(writer *self, written *place)
{
    const sl_generate_options *options = self->options;
    int64_t number = place->number;
    sl_cache_destroy(&place->cache);
    place->number = -1;
    return options->ended ? options->ended(options->context_of_added, number) : SL_OK;
}

static sl_status add_token(writer *self, written *place, float *logits, int64_t ntokens)
{
    const sl_generate_options *options = self->options;
    sl_text *text = &self->texts[place->number];
    int32_t id;
    SL_TRY(sl_pipe_abort(self->pipe, name_text(self, place, check_prompt(self, place, ntokens))));
    SL_TRY(name_text(self, place,
                     sli_draw_token(self->drawing, options, text->ids, text->length, logits, &id)));
    text->ids[text->length++] = id;
    if (options->added)
        SL_TRY(sl_pipe_abort(self->pipe,
                             options->added(options->context_of_added, place->number, id)));
    if (++place->added < self->tokens && !(options->stops && id == options->end))
        return SL_OK;
    return sl_pipe_abort(self->pipe, end_text(self, place));
}

/* Runs ids [rows, length] of so many texts, and adds a token to each: one row, or a length of 1. */
static sl_status run_rows(writer *self, written *const *places, sl_cache *const *caches,
                          const int32_t *ids, int64_t rows, int64_t length)
{
    const sl_pipe_batch batch = {.same_weights = self->same_weights,
                                 .last_position = true,
                                 .caches = caches[0] ? caches : NULL};
    int64_t ntokens;
    float *logits;
    SL_TRY(compute_logits(self->pipe, batch, ids, rows, length, rows, &logits, &ntokens));
    self->same_weights = true;
    sl_status status = SL_OK;
    for (int64_t row = 0; row < rows && status == SL_OK; row++)
        status = add_token(self, places[row], logits + row * ntokens, ntokens);
    free(logits);
    return status;
}

/* One more token for each text under way; *any: there was one. */
static sl_status add_tokens(writer *self, bool *any)
{
    int64_t rows = 0;
    *any = false;
    for (int64_t i = 0; i < self->rows; i++) {
        written *place = &self->under_way[i];
        if (place->number < 0)
            continue;
        const sl_text *text = &self->texts[place->number];
        int64_t first = first_unseen(self, place), length = text->length - first;
        *any = true;
        if (place->cache && length == 1) {
            self->ids[rows] = text->ids[first];
            self->caches[rows] = place->cache;
            self->batch[rows++] = place;
        } else {
            sl_cache *cache = place->cache;
            SL_TRY(run_rows(self, &place, &cache, text->ids + first, 1, length));
        }
    }
    return rows > 0 ? run_rows(self, self->batch, self->caches, self->ids, rows, 1) : SL_OK;
}

static sl_status write_texts(writer *self)
{
    for (bool any = true; any;) {
        SL_TRY(sl_pipe_abort(self->pipe, begin_texts(self)));
        SL_TRY(add_tokens(self, &any));
    }
    return SL_OK;
}

static sl_status create_rows(writer *self)
{
    size_t rows = (size_t)self->rows;
    self->under_way = calloc(rows, sizeof *self->under_way);
    self->batch = calloc(rows, sizeof(written *));
    self->caches = calloc(rows, sizeof(sl_cache *));
    self->ids = calloc(rows, sizeof *self->ids);
    if (!self->under_way || !self->batch || !self->caches || !self->ids)
        return sli_no_memory("sl_generate", "%zu texts at once", rows);
    for (size_t i = 0; i < rows; i++)
        self->under_way[i].number = -1;
    return SL_OK;
}

static void clear_rows(writer *self)
{
    for (int64_t i = 0; self->under_way && i < self->rows; i++)
        sl_cache_destroy(&self->under_way[i].cache);
    sli_drawing_destroy(&self->drawing);
    free(self->under_way);
    free(self->batch);
    free(self->caches);
    free(self->ids);
}

/* ---- Public functions ------------------------------------------------------------------- */

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
    if (options->top_k < 0 || options->context < 0 || options->rows < 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_generate: top-k, context and rows must not be negative");
    return SL_OK;
}

static sl_status check_texts(const sl_text *texts, int64_t count, int64_t tokens)
{
    if (count < 0 || tokens < 0)
        return sl_error(SL_ERR_INVALID, "sl_generate: the count must not be negative");
    for (int64_t i = 0; i < count; i++)
        if (texts[i].length < 1)
            return sl_error_context(
                sl_error(SL_ERR_INVALID, "sl_generate: the prompt must have at least one token"),
                count > 1 ? "text %" PRId64 " of %" PRId64 ": " : "", i + 1, count);
    return SL_OK;
}

sl_status sl_generate_texts(sl_pipe *pipe, const sl_generate_options *options, sl_text *texts,
                            int64_t count, int64_t tokens)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(texts);
    SL_TRY(check_options(options));
    SL_TRY(check_texts(texts, count, tokens));
    int64_t rows = options->rows > 0 ? options->rows : 1;
    writer self = {.pipe = pipe,
                   .options = options,
                   .texts = texts,
                   .count = count,
                   .tokens = tokens,
                   .rows = rows < count ? rows : count};
    if (self.rows == 0 || tokens == 0)
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(sli_group_agree(sl_pipe_group(pipe), create_rows(&self)));
    status = write_texts(&self);
fail:
    clear_rows(&self);
    return status;
}

sl_status sl_generate(sl_pipe *pipe, const sl_generate_options *options, int32_t *ids,
                      int64_t *length, int64_t count)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(ids);
    SLI_CHECK_NOT_NULL(length);
    sl_text text = {.ids = ids, .length = *length};
    sl_status status = sl_generate_texts(pipe, options, &text, 1, count);
    *length = text.length;
    return status;
}
