/* Multiple choice: which ending of a text a model finds most probable. A question's rows are its
 * context with each of its endings, padded to the longest:
 *
 *     context context ending ending  -        of an ending's tokens the probabilities
 *     context context ending ending ending    after all that stands before
 *
 * One file has a JSON object on each line, with texts or with ids. The other is llm.c's, of 16-bit
 * numbers: a head as its token files have it, and for each question 65535, its bytes, its index,
 * the label, how many endings, how many ids the context has, and these; then each ending so. */
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "sluice/app/inference.h"
#include "text/line_reader.h"
#include "text/tokens.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ENDINGS = 64, HEADER_BYTES = 1024, MAGIC = 20240522, START = 65535 };

typedef struct question {
    sl_tokens context, endings[MOST_ENDINGS];
    int64_t count, label;
} question;

static void clear_question(question *one)
{
    sl_tokens_free(&one->context);
    for (int i = 0; i < MOST_ENDINGS; i++)
        sl_tokens_free(&one->endings[i]);
}

typedef struct choosing {
    sl_pipe *pipe;
    const sl_choices_options *options;
    sl_choices *result;
} choosing;

/* ---- Scoring ---------------------------------------------------------------------------- */

/* The logarithm of the probability of `id` by the logits of the position before it. */
static double log_probability(const float *logits, int64_t ntokens, int32_t id)
{
    double largest = logits[0];
    for (int64_t i = 1; i < ntokens; i++)
        largest = fmax(largest, logits[i]);
    double total = exp(logits[0] - largest);
    for (int64_t i = 1; i < ntokens; i++)
        total += exp(logits[i] - largest);
    return logits[id] - largest - log(total);
}

/* Each ending's logarithm of its probability. */
static sl_status score_endings(sl_pipe *pipe, const question *one, int64_t length, double *scores)
{
    int64_t before = one->context.count, ntokens;
    float *logits = NULL;
    int32_t *ids = calloc((size_t)(one->count * length), sizeof *ids);
    if (!ids)
        return sli_no_memory(NULL, "the rows of a question");
    for (int64_t i = 0; i < one->count; i++) {
        int32_t *row = ids + i * length;
        memcpy(row, one->context.ids, (size_t)before * sizeof *row);
        memcpy(row + before, one->endings[i].ids, (size_t)one->endings[i].count * sizeof *row);
    }
    sl_status status = sl_compute_logits(pipe, ids, one->count, length, &logits, &ntokens);
    for (int64_t i = 0; i < one->count && status == SL_OK; i++) {
        scores[i] = 0;
        for (int64_t t = 0; t < one->endings[i].count; t++)
            scores[i] += log_probability(logits + (i * length + before + t - 1) * ntokens, ntokens,
                                         one->endings[i].ids[t]);
        if (!isfinite(scores[i])) /* ruined weights */
            status = sl_error(SL_ERR_NUMERIC,
                              "the logarithm of the probability of ending %" PRId64 " is %s", i,
                              isnan(scores[i]) ? "nan" : "infinite");
    }
    free(logits);
    free(ids);
    return status;
}

static sl_status check_ids(const sl_tokens *tokens, int64_t ntokens)
{
    for (int64_t i = 0; i < tokens->count; i++)
        if (tokens->ids[i] < 0 || tokens->ids[i] >= ntokens)
            return sl_error(SL_ERR_FORMAT,
                            "id %" PRId32 " is not in 0 .. %" PRId64 ", the model's vocabulary",
                            tokens->ids[i], ntokens - 1);
    return SL_OK;
}

static sl_status check_question(const choosing *job, const question *one, int64_t *length)
{
    const sl_choices_options *options = job->options;
    *length = 0;
    if (one->count < 2)
        return sl_error(SL_ERR_FORMAT, "it must have at least 2 endings, got %" PRId64, one->count);
    if (one->label < 0 || one->label >= one->count)
        return sl_error(SL_ERR_FORMAT, "its label must be from 0 to %" PRId64 ", got %" PRId64,
                        one->count - 1, one->label);
    if (one->context.count == 0)
        return sl_error(SL_ERR_FORMAT, "its context must have at least one token");
    SL_TRY(check_ids(&one->context, options->ntokens));
    for (int64_t i = 0; i < one->count; i++) {
        int64_t all = one->context.count + one->endings[i].count;
        SL_TRY(check_ids(&one->endings[i], options->ntokens));
        if (one->endings[i].count == 0)
            return sl_error(SL_ERR_FORMAT, "ending %" PRId64 " must have at least one token", i);
        *length = all > *length ? all : *length;
    }
    if (*length > options->positions)
        return sl_error(SL_ERR_FORMAT,
                        "its longest row has %" PRId64 " tokens, and the model at most %" PRId64,
                        *length, options->positions);
    return SL_OK;
}

static sl_status ask(const choosing *job, const question *one)
{
    double scores[MOST_ENDINGS];
    int64_t length, best = 0, best_mean = 0;
    SL_TRY(check_question(job, one, &length));
    SL_TRY(score_endings(job->pipe, one, length, scores));
    for (int64_t i = 1; i < one->count; i++) {
        double mean = scores[i] / (double)one->endings[i].count;
        if (scores[i] > scores[best])
            best = i;
        if (mean > scores[best_mean] / (double)one->endings[best_mean].count)
            best_mean = i;
    }
    job->result->questions++;
    job->result->right += best == one->label;
    job->result->right_by_mean += best_mean == one->label;
    return SL_OK;
}

/* ---- Lines ------------------------------------------------------------------------------ */

static sl_status read_ids(const json_t *list, sl_tokens *out)
{
    size_t i;
    json_t *id;
    out->ids = calloc(json_array_size(list) + 1, sizeof *out->ids);
    if (!out->ids)
        return sli_no_memory(NULL, "ids");
    json_array_foreach(list, i, id)
    {
        int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > INT32_MAX)
            return sl_error(SL_ERR_FORMAT, "ids must be whole numbers from 0");
        out->ids[out->count++] = (int32_t)value;
    }
    return SL_OK;
}

/* An ending goes on after the context, with a space between them. */
static sl_status read_tokens(const sl_vocab *vocab, const json_t *value, const char *name,
                             bool is_ending, sl_tokens *out)
{
    const char *text = json_string_value(value);
    size_t bytes = json_string_length(value);
    if (json_is_array(value))
        return read_ids(value, out);
    if (!text)
        return sl_error(SL_ERR_FORMAT, "its \"%s\" must be a text, or a list of ids", name);
    if (!vocab)
        return sl_error(SL_ERR_NOT_FOUND, "it has text, and there is no tokenizer that is read");
    char *spaced = malloc(bytes + 2);
    if (!spaced)
        return sli_no_memory(NULL, "a text of %zu bytes", bytes);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, bytes + 1);
    sl_status status =
        sli_tokens_encode_text(vocab, spaced + !is_ending, bytes + is_ending, is_ending, out);
    free(spaced);
    return status;
}

/* HellaSwag's own files call the context "ctx". */
static sl_status read_question(const sl_vocab *vocab, const json_t *json, question *out)
{
    const json_t *context = json_object_get(json, "context"),
                 *endings = json_object_get(json, "endings"),
                 *label = json_object_get(json, "label");
    if (!context)
        context = json_object_get(json, "ctx");
    out->count = (int64_t)json_array_size(endings);
    if (!context || !json_is_array(endings) || !json_is_integer(label))
        return sl_error(SL_ERR_FORMAT,
                        "it must have \"context\", a list \"endings\", and \"label\", the right "
                        "one's number from 0");
    if (out->count > MOST_ENDINGS)
        return sl_error(SL_ERR_UNSUPPORTED, "it must have at most %d endings, got %" PRId64,
                        MOST_ENDINGS, out->count);
    out->label = json_integer_value(label);
    SL_TRY(read_tokens(vocab, context, "context", false, &out->context));
    for (int64_t i = 0; i < out->count; i++)
        SL_TRY(read_tokens(vocab, json_array_get(endings, (size_t)i), "endings", true,
                           &out->endings[i]));
    return SL_OK;
}

static sl_status ask_line(const choosing *job, const char *line, size_t bytes)
{
    question one = {{NULL}, .count = 0};
    json_t *json = json_loadb(line, bytes, 0, NULL);
    sl_status status;
    SL_TRY_OR_FAIL(json_is_object(json) ? read_question(job->options->vocab, json, &one)
                                        : sl_error(SL_ERR_FORMAT, "it must be a JSON object"));
    status = ask(job, &one);
fail:
    json_decref(json);
    clear_question(&one);
    return status;
}

static sl_status ask_lines(const choosing *job, const char *path, sli_line_reader *reader)
{
    for (int64_t number = 1;; number++) {
        const char *line;
        size_t bytes;
        SL_TRY(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            return SL_OK;
        if (bytes > 0)
            SL_TRY(sl_error_context(ask_line(job, line, bytes), "%s: line %" PRId64 ": ", path,
                                    number));
    }
}

static sl_status ask_json(const choosing *job, const char *path)
{
    sli_line_reader *reader;
    SL_TRY(sli_line_reader_open(path, &reader));
    sl_status status = ask_lines(job, path, reader);
    sli_line_reader_close(&reader);
    return status;
}

/* ---- llm.c's files ---------------------------------------------------------------------- */

/* What of the file is left. */
typedef struct numbers {
    const uint8_t *next, *end;
} numbers;

static bool take(numbers *stream, int64_t *out)
{
    if (stream->end - stream->next < 2)
        return false;
    *out = stream->next[0] | stream->next[1] << 8;
    stream->next += 2;
    return true;
}

static sl_status take_ids(numbers *stream, bool *whole, sl_tokens *out)
{
    int64_t count, id;
    *whole = take(stream, &count);
    if (!*whole)
        return SL_OK;
    out->ids = calloc((size_t)count + 1, sizeof *out->ids);
    if (!out->ids)
        return sli_no_memory(NULL, "ids");
    while (*whole && out->count < count) {
        *whole = take(stream, &id);
        if (*whole)
            out->ids[out->count++] = (int32_t)id;
    }
    return SL_OK;
}

static sl_status take_question(numbers *stream, bool *whole, question *out)
{
    int64_t start = 0, bytes, index;
    *whole = take(stream, &start) && start == START && take(stream, &bytes) &&
             take(stream, &index) && take(stream, &out->label) && take(stream, &out->count) &&
             out->count <= MOST_ENDINGS;
    if (*whole)
        SL_TRY(take_ids(stream, whole, &out->context));
    for (int64_t i = 0; *whole && i < out->count; i++)
        SL_TRY(take_ids(stream, whole, &out->endings[i]));
    return SL_OK;
}

static sl_status ask_all(const choosing *job, const uint8_t *bytes, size_t size)
{
    uint32_t head[3] = {0};
    numbers left = {NULL};
    if (size >= HEADER_BYTES) {
        memcpy(head, bytes, sizeof head);
        left = (numbers){bytes + HEADER_BYTES, bytes + size};
    }
    if (head[0] != MAGIC || head[1] != 1)
        return sl_error(SL_ERR_FORMAT, "it must begin as an evaluation of llm.c, version 1: %d, 1",
                        MAGIC);
    for (uint32_t i = 0; i < head[2]; i++) {
        question one = {{NULL}, .count = 0};
        bool whole;
        sl_status status;
        SL_TRY_OR_FAIL(take_question(&left, &whole, &one));
        status =
            whole ? ask(job, &one) : sl_error(SL_ERR_FORMAT, "it is none, or the file ends in it");
    fail:
        clear_question(&one);
        SL_TRY(sl_error_context(status, "question %u: ", i));
    }
    return SL_OK;
}

static sl_status ask_binary(const choosing *job, const char *path)
{
    char *bytes;
    size_t size;
    SL_TRY(sli_file_read(path, SIZE_MAX / 8, &bytes, &size));
    sl_status status = ask_all(job, (const uint8_t *)bytes, size);
    free(bytes);
    return sl_error_context(status, "%s: ", path);
}

sl_status sl_evaluate_choices(sl_pipe *pipe, const char *path, const sl_choices_options *options,
                              sl_choices *out)
{
    SLI_CHECK_NOT_NULL(pipe);
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(out);
    const choosing job = {.pipe = pipe, .options = options, .result = out};
    *out = (sl_choices){0};
    SL_TRY(sli_name_ends_with(path, ".bin") ? ask_binary(&job, path) : ask_json(&job, path));
    return out->questions > 0 ? SL_OK : sl_error(SL_ERR_FORMAT, "%s: it has no question", path);
}
