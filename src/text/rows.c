/* Rows of ids from JSON lines: {"input_ids": [...], "labels": [...]}, one row a line, or lines of
 * text, whose ids a tokenizer gives. */
#include "text/rows.h"

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "text/line_reader.h"
#include "text/lines.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { IGNORED = SLI_IGNORED_TARGET };

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
    sl_rows *rows;
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

static sl_status reserve(sl_rows *rows, int64_t tokens)
{
    SL_TRY(sli_array_reserve(&rows->begins, &rows->rows_room, (size_t)rows->count + 2,
                             sizeof *rows->begins, SIZE_MAX / 16, "rows"));
    SL_TRY(sli_array_reserve(&rows->ids, &rows->room, (size_t)tokens, sizeof *rows->ids,
                             SIZE_MAX / 16, "token ids"));
    return sli_array_reserve(&rows->targets, &rows->targets_room, (size_t)tokens,
                             sizeof *rows->targets, SIZE_MAX / 16, "targets");
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
    SL_TRY(reserve(rows, begin + length));
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
    sl_status status = read_lists(parser, ids, labels, numbers, numbers + count);
    if (status == SL_OK)
        status = add_row(parser->rows, numbers, numbers + count, (int64_t)count);
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

/* ---- A file ----------------------------------------------------------------------------- */

static sl_status read_lines(row_parser *parser, sli_line_reader *reader)
{
    for (;;) {
        const char *line;
        size_t bytes;
        SL_TRY(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            break;
        parser->line++;
        if (!is_blank(line, bytes))
            SL_TRY(parse_line(parser, line, bytes));
    }
    if (parser->rows->count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: it has no rows", parser->path);
    return parser->rows->has_targets
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
    row_parser parser = {.path = path,
                         .ntokens = options->ntokens,
                         .positions = options->positions,
                         .rows = calloc(1, sizeof(sl_rows)),
                         .reading = {.vocab = options->vocab,
                                     .mask_prompt = !options->no_mask_prompt}};
    sl_status status = parser.rows ? read_lines(&parser, reader) : sli_no_memory(path, "its rows");
    sli_line_reader_close(&reader);
    sli_chat_clear(&parser.reading.chat);
    sli_scored_ids_free(&parser.scored);
    if (status == SL_OK)
        *out = parser.rows;
    else
        sl_rows_destroy(&parser.rows);
    return status;
}

void sl_rows_destroy(sl_rows **rows)
{
    if (!rows || !*rows)
        return;
    for (size_t i = 0; i < (*rows)->file_count; i++)
        sli_token_file_clear(&(*rows)->files[i]);
    free((*rows)->files);
    free((*rows)->begins);
    free((*rows)->ids);
    free((*rows)->targets);
    free((*rows)->numbers);
    free(*rows);
    *rows = NULL;
}
