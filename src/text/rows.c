/* Rows of ids from JSON lines: {"input_ids": [...], "labels": [...]}, one row a line, or lines of
 * text, whose ids a tokenizer gives. */
#include "text/rows.h"

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/threads.h"
#include "text/line_reader.h"
#include "text/lines.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { IGNORED = SLI_IGNORED_TARGET };
enum { BATCH_BYTES = 8 << 20, PART_BYTES = 1 << 17 }; /* of lines that are parsed side by side */

/* ---- Their arrays ----------------------------------------------------------------------- */

static void point_at_arrays(sl_rows *rows)
{
    rows->begins = rows->arrays[SLI_ROW_BEGINS].data;
    rows->ids = rows->arrays[SLI_ROW_IDS].data;
    rows->targets = rows->arrays[SLI_ROW_TARGETS].data;
    rows->numbers = rows->arrays[SLI_ROW_NUMBERS].data;
}

sl_status sli_rows_reserve(sl_rows *rows, int64_t count, int64_t tokens, bool packed)
{
    sli_large_array *arrays = rows->arrays;
    size_t bytes = (size_t)tokens * sizeof(int32_t);
    SL_TRY(sli_large_array_reserve(&arrays[SLI_ROW_BEGINS],
                                   ((size_t)count + 1) * sizeof *rows->begins,
                                   "beginnings of rows"));
    SL_TRY(sli_large_array_reserve(&arrays[SLI_ROW_IDS], bytes, "ids of tokens"));
    SL_TRY(sli_large_array_reserve(&arrays[SLI_ROW_TARGETS], bytes, "targets"));
    if (packed)
        SL_TRY(sli_large_array_reserve(&arrays[SLI_ROW_NUMBERS], bytes, "numbers of tokens"));
    point_at_arrays(rows);
    return SL_OK;
}

void sli_rows_finish(sl_rows *rows)
{
    size_t tokens = (size_t)rows->begins[rows->count];
    sli_large_array_finish(&rows->arrays[SLI_ROW_BEGINS],
                           ((size_t)rows->count + 1) * sizeof *rows->begins);
    sli_large_array_finish(&rows->arrays[SLI_ROW_IDS], tokens * sizeof *rows->ids);
    sli_large_array_finish(&rows->arrays[SLI_ROW_TARGETS], tokens * sizeof *rows->targets);
    sli_large_array_finish(&rows->arrays[SLI_ROW_NUMBERS], tokens * sizeof *rows->numbers);
    point_at_arrays(rows);
}

/* Frees the arrays, and leaves zeros. */
static void clear_rows(sl_rows *rows)
{
    for (int i = 0; i < SLI_ROW_ARRAYS; i++)
        sli_large_array_free(&rows->arrays[i]);
    *rows = (sl_rows){0};
}

/* ---- Where they are --------------------------------------------------------------------- */

static sl_status copy_path(char **out, const char *folder, const char *name)
{
    size_t bytes = strlen(folder) + strlen(name) + 1;
    *out = malloc(bytes);
    if (!*out)
        return sli_no_memory(folder, "the path of its rows");
    snprintf(*out, bytes, "%s%s", folder, name);
    return SL_OK;
}

/* *path is the first of the names that the directory has; NULL: it has none. */
static sl_status look_in(const char *folder, sl_split split, char **path)
{
    static const char *const forms[] = {"/%s.jsonl", "/%s.bin", "/%s_000000.bin", "/%s_000001.bin"};
    const char *names[] = {sl_split_name(split), split == SL_SPLIT_VALID ? "val" : NULL};
    struct stat about;
    char name[32];
    for (size_t i = 0; i < 2 * sizeof forms / sizeof *forms; i++) {
        if (!names[i % 2])
            continue;
        snprintf(name, sizeof name, forms[i / 2], names[i % 2]);
        SL_TRY(copy_path(path, folder, name));
        if (stat(*path, &about) == 0)
            return SL_OK;
        free(*path);
        *path = NULL;
    }
    return SL_OK;
}

sl_status sl_rows_path(const char *data, sl_split split, char **out)
{
    struct stat about;
    *out = NULL;
    if (stat(data, &about) == 0 && S_ISDIR(about.st_mode))
        return look_in(data, split, out);
    return sli_name_ends_with(data, ".jsonl") || sli_name_ends_with(data, SLI_TOKEN_FILE_END)
               ? copy_path(out, data, "")
               : SL_OK;
}

/* ---- A line ----------------------------------------------------------------------------- */

typedef struct row_parser {
    const char *path;
    int64_t line, ntokens, positions; /* the last two: 0: any */
    sl_rows *rows;                    /* to which a line adds its own */
    sli_line_reading reading;
    sli_scored_ids scored; /* of the line under way */
} row_parser;

static sl_status bad_line(const row_parser *parser, const char *reason)
{
    return sl_error(SL_ERR_FORMAT, "%s: line %" PRId64 ": %s", parser->path, parser->line, reason);
}

/* An id, or with `ignorable` -100, at a place of the list `key`. */
static sl_status read_id(const row_parser *parser, const char *key, size_t place,
                         const json_t *value, bool ignorable, int32_t *out)
{
    int64_t most = parser->ntokens > 0 ? parser->ntokens - 1 : INT32_MAX;
    json_int_t id = json_integer_value(value);
    *out = (int32_t)id;
    if (json_is_integer(value) && ((id >= 0 && id <= most) || (ignorable && id == IGNORED)))
        return SL_OK;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    sl_error(SL_ERR_FORMAT,
             "%s: line %" PRId64 ": number %zu of \"%s\" must be an id from 0 to %" PRId64
             "%s, got %.40s",
             parser->path, parser->line, place + 1, key, most, ignorable ? ", or -100" : "",
             text ? text : "?");
    free(text);
    return SL_ERR_FORMAT;
}

static sl_status check_lists(const row_parser *parser, const json_t *ids, const json_t *labels)
{
    char reason[160];
    size_t count = json_array_size(ids);
    if (!json_is_array(ids) || count == 0)
        return bad_line(parser, "it must have a list \"input_ids\" that is not empty");
    if (labels && (!json_is_array(labels) || json_array_size(labels) != count)) {
        snprintf(reason, sizeof reason,
                 "\"labels\" must be a list of as many numbers as \"input_ids\", "
                 "%zu, got %zu",
                 count, json_array_size(labels));
        return bad_line(parser, reason);
    }
    if (parser->positions > 0 && (int64_t)count > parser->positions) {
        snprintf(reason, sizeof reason,
                 "its %zu tokens are more than the model's %" PRId64 " positions", count,
                 parser->positions);
        return bad_line(parser, reason);
    }
    return SL_OK;
}

/* The label of a token is the target of the position before it. */
static sl_status add_row(sl_rows *rows, const int32_t *ids, const int32_t *labels, int64_t length)
{
    int64_t begin = rows->count > 0 ? rows->begins[rows->count] : 0;
    SL_TRY(sli_rows_reserve(rows, rows->count + 1, begin + length, false));
    for (int64_t i = 0; i < length; i++) {
        rows->ids[begin + i] = ids[i];
        rows->targets[begin + i] = i + 1 < length ? labels[i + 1] : IGNORED;
        rows->has_targets |= rows->targets[begin + i] != IGNORED;
        rows->largest = ids[i] > rows->largest ? ids[i] : rows->largest;
        rows->largest = labels[i] > rows->largest ? labels[i] : rows->largest;
    }
    rows->begins[0] = 0;
    rows->begins[++rows->count] = begin + length;
    rows->longest = length > rows->longest ? length : rows->longest;
    return SL_OK;
}

static sl_status read_lists(const row_parser *parser, const json_t *ids, const json_t *labels,
                            int32_t *to_ids, int32_t *to_labels)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        SL_TRY(read_id(parser, "input_ids", i, json_array_get(ids, i), false, &to_ids[i]));
        to_labels[i] = to_ids[i];
        if (labels)
            SL_TRY(read_id(parser, "labels", i, json_array_get(labels, i), true, &to_labels[i]));
    }
    return SL_OK;
}

static sl_status add_ids(const row_parser *parser, const json_t *ids, const json_t *labels)
{
    SL_TRY(check_lists(parser, ids, labels));
    size_t count = json_array_size(ids);
    int32_t *numbers = calloc(2 * count, sizeof *numbers);
    if (!numbers)
        return sli_no_memory(parser->path, "a line of %zu ids", count);
    sl_status status;
    SL_TRY_OR_FAIL(read_lists(parser, ids, labels, numbers, numbers + count));
    status = add_row(parser->rows, numbers, numbers + count, (int64_t)count);
fail:
    free(numbers);
    return status;
}

/* A text that is longer than the positions is cut into several rows. */
static sl_status add_scored(const row_parser *parser, const sli_scored_ids *scored)
{
    int64_t count = (int64_t)scored->count,
            most = parser->positions > 0 ? parser->positions : count;
    int32_t *labels = malloc((scored->count + 1) * sizeof *labels);
    sl_status status =
        labels ? SL_OK : sli_no_memory(parser->path, "a line of %zu ids", scored->count);
    for (int64_t i = 0; i < count && status == SL_OK; i++)
        labels[i] = scored->scored[i] ? scored->ids[i] : IGNORED;
    for (int64_t first = 0; first < count && status == SL_OK; first += most)
        status = add_row(parser->rows, scored->ids + first, labels + first,
                         count - first < most ? count - first : most);
    free(labels);
    return status;
}

static sl_status add_text(row_parser *parser, const json_t *json)
{
    parser->scored.count = 0;
    SL_TRY(sl_error_context(sli_line_encode(&parser->reading, json, &parser->scored),
                            "%s: line %" PRId64 ": ", parser->path, parser->line));
    return add_scored(parser, &parser->scored);
}

static sl_status parse_line(row_parser *parser, const char *line, size_t bytes)
{
    json_error_t error;
    json_t *json = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
    if (!json_is_object(json)) {
        json_decref(json);
        return bad_line(parser, "it must be a JSON object");
    }
    const json_t *ids = json_object_get(json, "input_ids");
    sl_status status =
        ids ? add_ids(parser, ids, json_object_get(json, "labels")) : add_text(parser, json);
    json_decref(json);
    return status;
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r", line[i]) || line[i] == '\0')
            return false;
    return true;
}

/* ---- Lines side by side ----------------------------------------------------------------- */

/* Neighbouring lines of a batch, and their rows. */
typedef struct line_part {
    size_t first, end; /* lines */
    sl_rows rows;
    sli_error_copy error;
} line_part;

/* Lines of a file, one behind the other in `text`. */
typedef struct line_batch {
    char *text;   /* [bytes] */
    size_t *ends; /* [count] of the lines */
    size_t bytes, count, text_room, ends_room;
    int64_t before;   /* lines of the file */
    line_part *parts; /* [part_count] */
    size_t part_count, parts_room;
    row_parser *parsers; /* one for each thread */
} line_batch;

static void clear_batch(line_batch *batch, int threads)
{
    for (size_t i = 0; i < batch->part_count; i++)
        clear_rows(&batch->parts[i].rows);
    for (int i = 0; i < threads && batch->parsers; i++) {
        sli_chat_clear(&batch->parsers[i].reading.chat);
        sli_scored_ids_free(&batch->parsers[i].scored);
    }
    free(batch->text);
    free(batch->ends);
    free(batch->parts);
    free(batch->parsers);
}

static sl_status add_line(line_batch *batch, const char *line, size_t bytes)
{
    SL_TRY(sli_array_reserve(&batch->text, &batch->text_room, batch->bytes + bytes + 1, 1,
                             SIZE_MAX / 16, "bytes of lines"));
    SL_TRY(sli_array_reserve(&batch->ends, &batch->ends_room, batch->count + 1, sizeof *batch->ends,
                             SIZE_MAX / 16, "lines"));
    memcpy(batch->text + batch->bytes, line, bytes);
    batch->bytes += bytes;
    batch->ends[batch->count++] = batch->bytes;
    return SL_OK;
}

/* The next lines of the file; none at its end. */
static sl_status fill_batch(sli_line_reader *reader, line_batch *batch)
{
    batch->before += (int64_t)batch->count;
    batch->bytes = batch->count = 0;
    while (batch->bytes < BATCH_BYTES) {
        const char *line;
        size_t bytes;
        SL_TRY(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            break;
        SL_TRY(add_line(batch, line, bytes));
    }
    return SL_OK;
}

static size_t line_begin(const line_batch *batch, size_t line)
{
    return line > 0 ? batch->ends[line - 1] : 0;
}

static sl_status divide_batch(line_batch *batch)
{
    batch->part_count = 0;
    for (size_t first = 0, end = 0; first < batch->count; first = end) {
        while (end < batch->count && batch->ends[end] - line_begin(batch, first) < PART_BYTES)
            end++;
        end += end < batch->count;
        SL_TRY(sli_array_reserve(&batch->parts, &batch->parts_room, batch->part_count + 1,
                                 sizeof *batch->parts, SIZE_MAX / 256, "parts of lines"));
        batch->parts[batch->part_count++] = (line_part){.first = first, .end = end};
    }
    return SL_OK;
}

static void parse_part(void *argument, int64_t index, int thread)
{
    const line_batch *batch = argument;
    line_part *part = &batch->parts[index];
    row_parser *parser = &batch->parsers[thread];
    sl_status status = SL_OK;
    parser->rows = &part->rows;
    for (size_t line = part->first; line < part->end && status == SL_OK; line++) {
        size_t begin = line_begin(batch, line), bytes = batch->ends[line] - begin;
        parser->line = batch->before + (int64_t)line + 1;
        if (!is_blank(batch->text + begin, bytes))
            status = parse_line(parser, batch->text + begin, bytes);
    }
    (void)sli_error_save(&part->error, status);
}

static sl_status append_rows(sl_rows *rows, const sl_rows *part)
{
    int64_t begin = rows->count > 0 ? rows->begins[rows->count] : 0;
    if (part->count == 0)
        return SL_OK;
    int64_t tokens = part->begins[part->count];
    SL_TRY(sli_rows_reserve(rows, rows->count + part->count, begin + tokens, false));
    memcpy(rows->ids + begin, part->ids, (size_t)tokens * sizeof *rows->ids);
    memcpy(rows->targets + begin, part->targets, (size_t)tokens * sizeof *rows->targets);
    for (int64_t i = 0; i <= part->count; i++)
        rows->begins[rows->count + i] = begin + part->begins[i];
    rows->count += part->count;
    rows->longest = part->longest > rows->longest ? part->longest : rows->longest;
    rows->largest = part->largest > rows->largest ? part->largest : rows->largest;
    rows->has_targets |= part->has_targets;
    return SL_OK;
}

/* The first error of all in the file's order. */
static sl_status take_parts(line_batch *batch, sl_rows *rows)
{
    for (size_t i = 0; i < batch->part_count; i++) {
        line_part *part = &batch->parts[i];
        if (part->error.status != SL_OK)
            return sli_error_restore(&part->error);
        SL_TRY(append_rows(rows, &part->rows));
        clear_rows(&part->rows);
    }
    return SL_OK;
}

static sl_status read_batches(sli_line_reader *reader, sli_pool *pool, line_batch *batch,
                              sl_rows *rows)
{
    do {
        SL_TRY(fill_batch(reader, batch));
        SL_TRY(divide_batch(batch));
        sli_pool_run(pool, (int64_t)batch->part_count, parse_part, batch);
        SL_TRY(take_parts(batch, rows));
    } while (batch->count > 0);
    return SL_OK;
}

static sl_status read_side_by_side(const row_parser *parser, sli_line_reader *reader, int threads,
                                   sl_rows *rows)
{
    sli_pool *pool;
    SL_TRY(sli_pool_create(&(sli_pool_options){.threads = threads}, &pool));
    line_batch batch = {.parsers = malloc((size_t)threads * sizeof *batch.parsers)};
    sl_status status;
    if (!batch.parsers)
        SL_TRY_OR_FAIL(sli_no_memory(parser->path, "its rows"));
    for (int i = 0; i < threads; i++)
        batch.parsers[i] = *parser;
    status = read_batches(reader, pool, &batch, rows);
fail:
    clear_batch(&batch, threads);
    sli_pool_destroy(&pool);
    return status;
}

/* ---- A file ----------------------------------------------------------------------------- */

static sl_status read_lines(const row_parser *parser, sli_line_reader *reader, int most_threads,
                            sl_rows *rows)
{
    uint64_t parts = sli_line_reader_file_bytes(reader) / PART_BYTES + 1;
    int threads = parts < (uint64_t)most_threads ? (int)parts : most_threads;
    SL_TRY(read_side_by_side(parser, reader, threads, rows));
    if (rows->count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: it has no rows", parser->path);
    sli_rows_finish(rows);
    return rows->has_targets
               ? SL_OK
               : sl_error(SL_ERR_FORMAT,
                          "%s: none of its rows has a target: a label behind its first one that is "
                          "an id",
                          parser->path);
}

static sl_status read_token_files(const char *path, const sl_rows_options *options, sl_rows **out)
{
    *out = calloc(1, sizeof **out);
    sl_status status =
        *out ? sli_token_rows_open(path, options, *out) : sli_no_memory(path, "its rows");
    if (status != SL_OK)
        sl_rows_destroy(out);
    return status;
}

sl_status sl_rows_read(const char *path, const sl_rows_options *options, sl_rows **out)
{
    sli_line_reader *reader;
    *out = NULL;
    if (sli_name_ends_with(path, SLI_TOKEN_FILE_END))
        return read_token_files(path, options, out);
    SL_TRY(sli_line_reader_open(path, &reader));
    const row_parser parser = {.path = path,
                               .ntokens = options->ntokens,
                               .positions = options->positions,
                               .reading = {.vocab = options->vocab,
                                           .mask_prompt = !options->no_mask_prompt}};
    int threads = options->threads > 0 ? options->threads : sli_usable_processors();
    *out = calloc(1, sizeof **out);
    sl_status status =
        *out ? read_lines(&parser, reader, threads, *out) : sli_no_memory(path, "its rows");
    sli_line_reader_close(&reader);
    if (status != SL_OK)
        sl_rows_destroy(out);
    return status;
}

void sl_rows_destroy(sl_rows **rows)
{
    if (!rows || !*rows)
        return;
    for (size_t i = 0; i < (*rows)->file_count; i++)
        sli_token_file_clear(&(*rows)->files[i]);
    free((*rows)->files);
    if ((*rows)->map)
        munmap((*rows)->map, (*rows)->map_bytes);
    clear_rows(*rows);
    free(*rows);
    *rows = NULL;
}
