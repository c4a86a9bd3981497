#include "text/kept_rows.h"

#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"
#include "text/kept_tokens.h"
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADER_BYTES = 2048, ARRAYS = 4 };
static const char first_member[] = "{\"sluice_rows\": 1, ";

/* The arrays of rows, in their order. */
typedef struct row_arrays {
    const void *begin[ARRAYS];
    uint64_t bytes[ARRAYS];
} row_arrays;

static row_arrays arrays_of(const sl_rows *rows, uint64_t count, uint64_t tokens)
{
    uint64_t ids = tokens * sizeof(int32_t);
    return (row_arrays){{rows->begins, rows->ids, rows->targets, rows->numbers},
                        {(count + 1) * sizeof(int64_t), ids, ids, rows->numbers ? ids : 0}};
}

/* ---- What they are of --------------------------------------------------------------------- */

static json_t *describe_template(const sl_vocab *vocab)
{
    char checksum[SLI_CHECKSUM_BYTES];
    const char *settings = vocab->settings ? vocab->settings : "";
    return json_string(sli_checksum_of(settings, strlen(settings), checksum));
}

sl_status sli_kept_rows_describe(const char *path, const sl_rows_options *options, int64_t pack,
                                 json_t **out)
{
    json_t *file, *tokenizer = NULL;
    *out = NULL;
    SL_TRY(sli_kept_identify(path, &file));
    json_object_del(file, "path"); /* it may lie anywhere */
    sl_status status = sli_manifest_tokenizer(options->vocab, &tokenizer);
    if (status == SL_OK) {
        *out = json_pack("{sO sO so sI sI sb sI}", "lines", file, "tokenizer", tokenizer,
                         "settings", describe_template(options->vocab), "ntokens",
                         (json_int_t)options->ntokens, "positions", (json_int_t)options->positions,
                         "mask_prompt", !options->no_mask_prompt, "pack", (json_int_t)pack);
        status = *out ? SL_OK : sli_no_memory(path, "its description");
    }
    json_decref(file);
    json_decref(tokenizer);
    return status;
}

/* ---- Reading ------------------------------------------------------------------------------ */

static int64_t number_of(const json_t *header, const char *key)
{
    return json_integer_value(json_object_get(header, key));
}

/* Sets the arrays, if the file has just the bytes of these. */
static bool find_arrays(const json_t *header, char *map, uint64_t bytes, sl_rows *rows)
{
    int64_t count = number_of(header, "rows"), tokens = number_of(header, "tokens");
    bool packed = json_is_true(json_object_get(header, "packed"));
    if (count < 1 || tokens < count || (uint64_t)count > bytes || (uint64_t)tokens > bytes)
        return false;
    rows->count = count;
    rows->begins = (int64_t *)(void *)(map + HEADER_BYTES);
    rows->ids = (int32_t *)(void *)(rows->begins + count + 1);
    rows->targets = rows->ids + tokens;
    rows->numbers = packed ? rows->targets + tokens : NULL;
    row_arrays arrays = arrays_of(rows, (uint64_t)count, (uint64_t)tokens);
    uint64_t expected = HEADER_BYTES;
    for (int i = 0; i < ARRAYS; i++)
        expected += arrays.bytes[i];
    return expected == bytes;
}

static sl_status has_checksum(const json_t *header, const char *map, uint64_t bytes, bool *out)
{
    char checksum[SLI_CHECKSUM_BYTES];
    const char *expected = json_string_value(json_object_get(header, "checksum"));
    sli_checksum *sum;
    SL_TRY(sli_checksum_create(&sum));
    sli_checksum_add(sum, map + HEADER_BYTES, bytes - HEADER_BYTES);
    sli_checksum_text(sum, checksum);
    sli_checksum_destroy(&sum);
    *out = expected && strcmp(expected, checksum) == 0;
    return SL_OK;
}

/* The rows of a mapped file, which own it then; *out is NULL where it has none of them. */
static sl_status take_rows(char *map, uint64_t bytes, const json_t *description, sl_rows **out,
                           int64_t *documents)
{
    bool is_current = false;
    const char *end = memchr(map, '\n', HEADER_BYTES);
    json_t *header = end ? json_loadb(map, (size_t)(end - map), 0, NULL) : NULL;
    sl_rows *rows = calloc(1, sizeof *rows);
    sl_status status = rows ? SL_OK : sli_no_memory(NULL, "kept rows");
    if (rows && json_equal(json_object_get(header, "of"), description) &&
        find_arrays(header, map, bytes, rows))
        status = has_checksum(header, map, bytes, &is_current);
    if (is_current) {
        rows->map = map;
        rows->map_bytes = bytes;
        rows->longest = number_of(header, "longest");
        rows->largest = (int32_t)number_of(header, "largest");
        rows->has_targets = json_is_true(json_object_get(header, "has_targets"));
        *documents = number_of(header, "documents");
        *out = rows;
    } else {
        free(rows);
    }
    json_decref(header);
    return status;
}

sl_status sli_kept_rows_read(const char *path, const json_t *description, sl_rows **out,
                             int64_t *documents)
{
    int descriptor;
    uint64_t bytes;
    *out = NULL;
    if (access(path, F_OK) != 0)
        return SL_OK;
    SL_TRY(sli_file_open(path, &descriptor, &bytes));
    void *map =
        bytes > HEADER_BYTES ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    close(descriptor);
    if (map == MAP_FAILED)
        return SL_OK; /* it is read anew */
    sl_status status = take_rows(map, bytes, description, out, documents);
    if (!*out)
        munmap(map, bytes);
    return status;
}

/* ---- Keeping ------------------------------------------------------------------------------ */

static sl_status check_is_kept(const char *path)
{
    char begin[sizeof first_member - 1];
    int descriptor;
    uint64_t bytes;
    if (access(path, F_OK) != 0)
        return SL_OK;
    SL_TRY(sli_file_open(path, &descriptor, &bytes));
    sl_status status = bytes < sizeof begin
                           ? SL_ERR_FORMAT
                           : sli_file_read_at(path, descriptor, 0, begin, sizeof begin);
    close(descriptor);
    if (status == SL_OK && memcmp(begin, first_member, sizeof begin) == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: the run keeps its rows there, but this file is not one that a run has "
                    "kept: move it away",
                    path);
}

/* Fills `header` with the JSON, blanks and a line end. */
static sl_status make_header(const char *path, const json_t *description, const sl_rows *rows,
                             int64_t documents, const char *checksum, char *header)
{
    json_t *json =
        json_pack("{si sO sI sI sI sI sI sb sb ss}", "sluice_rows", 1, "of", description, "rows",
                  (json_int_t)rows->count, "tokens", (json_int_t)rows->begins[rows->count],
                  "documents", (json_int_t)documents, "longest", (json_int_t)rows->longest,
                  "largest", (int)rows->largest, "has_targets", rows->has_targets, "packed",
                  rows->numbers != NULL, "checksum", checksum);
    memset(header, ' ', HEADER_BYTES);
    header[HEADER_BYTES - 1] = '\n';
    size_t used = json ? json_dumpb(json, header, HEADER_BYTES - 1, JSON_PRESERVE_ORDER) : 0;
    json_decref(json);
    return used > 0 && used < HEADER_BYTES ? SL_OK : sli_no_memory(path, "its header");
}

static sl_status write_arrays(sli_replace_file *file, const row_arrays *arrays, sli_checksum *sum)
{
    uint64_t offset = HEADER_BYTES;
    for (int i = 0; i < ARRAYS; i++) {
        SL_TRY(sli_replace_file_write(file, offset, arrays->begin[i], arrays->bytes[i]));
        sli_checksum_add(sum, arrays->begin[i], arrays->bytes[i]);
        offset += arrays->bytes[i];
    }
    return SL_OK;
}

sl_status sli_kept_rows_write(const char *path, const json_t *description, const sl_rows *rows,
                              int64_t documents)
{
    char header[HEADER_BYTES], checksum[SLI_CHECKSUM_BYTES];
    const row_arrays arrays =
        arrays_of(rows, (uint64_t)rows->count, (uint64_t)rows->begins[rows->count]);
    sli_replace_file *file = NULL;
    sli_checksum *sum = NULL;
    SL_TRY(check_is_kept(path));
    sl_status status;
    SLI_TRY_OR_FAIL(sli_checksum_create(&sum));
    SLI_TRY_OR_FAIL(sli_replace_file_create(path, &file));
    SLI_TRY_OR_FAIL(write_arrays(file, &arrays, sum));
    SLI_TRY_OR_FAIL(
        make_header(path, description, rows, documents, sli_checksum_text(sum, checksum), header));
    SLI_TRY_OR_FAIL(sli_replace_file_write(file, 0, header, sizeof header));
    status = sli_replace_file_commit(file);
fail:
    sli_replace_file_destroy(&file);
    sli_checksum_destroy(&sum);
    return status;
}
