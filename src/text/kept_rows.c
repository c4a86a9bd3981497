#include "text/kept_rows.h"

#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"
#include "text/kept_tokens.h"
#include "text/vocab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* VERSION is raised with each change of what rows are made of the same lines: of how a template is
 * rendered, which targets count, or how rows are packed; and of the file's form. */
enum { VERSION = 2, HEADER_BYTES = 2048, ARRAYS = 4 };
static const char first_member[] = "{\"sluice_rows\": ";

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

sl_status sli_kept_rows_describe(const char *path, const sl_rows_options *options, int64_t pack,
                                 json_t **out)
{
    char settings[SL_VOCAB_CHECKSUM_BYTES];
    json_t *file, *tokenizer = NULL;
    *out = NULL;
    SL_TRY(sli_kept_identify(path, &file));
    json_object_del(file, "path"); /* it may lie anywhere */
    sl_status status;
    SL_TRY_OR_FAIL(sli_manifest_tokenizer(options->vocab, &tokenizer));
    *out = json_pack("{sO sO ss sI sI sb sI}", "lines", file, "tokenizer", tokenizer, "settings",
                     sl_vocab_settings_checksum(options->vocab, settings), "ntokens",
                     (json_int_t)options->ntokens, "positions", (json_int_t)options->positions,
                     "mask_prompt", !options->no_mask_prompt, "pack", (json_int_t)pack);
    status = *out ? SL_OK : sli_no_memory(path, "its description");
fail:
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

/* Of the arrays, which were added, and of a header without its own. */
static sl_status sum_header(const char *path, const json_t *header, sli_checksum *sum, char *out)
{
    char *text = json_dumps(header, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return sli_no_memory(path, "its header");
    sli_checksum_add(sum, text, strlen(text));
    sli_checksum_text(sum, out);
    free(text);
    return SL_OK;
}

/* Takes the checksum out of the header. */
static sl_status has_checksum(const char *path, json_t *header, const char *map, uint64_t bytes,
                              bool *out)
{
    char found[SLI_CHECKSUM_BYTES] = "";
    json_t *expected = json_incref(json_object_get(header, "checksum"));
    sli_checksum *sum = NULL;
    json_object_del(header, "checksum");
    *out = false;
    sl_status status;
    SL_TRY_OR_FAIL(sli_checksum_create(&sum));
    sli_checksum_add(sum, map + HEADER_BYTES, bytes - HEADER_BYTES);
    SL_TRY_OR_FAIL(sum_header(path, header, sum, found));
    *out = strcmp(json_string_value(expected), found) == 0;
fail:
    sli_checksum_destroy(&sum);
    json_decref(expected);
    return status;
}

/* The rows of a mapped file, which own it then; *out is NULL where it has none of them. */
static sl_status take_rows(const char *path, char *map, uint64_t bytes, const json_t *description,
                           sl_rows **out, int64_t *documents)
{
    bool is_current = false;
    const char *end = memchr(map, '\n', HEADER_BYTES);
    json_t *header = end ? json_loadb(map, (size_t)(end - map), 0, NULL) : NULL;
    sl_rows *rows = calloc(1, sizeof *rows);
    sl_status status = rows ? SL_OK : sli_no_memory(path, "kept rows");
    if (rows && number_of(header, "sluice_rows") == VERSION &&
        json_is_string(json_object_get(header, "checksum")) &&
        json_equal(json_object_get(header, "of"), description) &&
        find_arrays(header, map, bytes, rows))
        status = has_checksum(path, header, map, bytes, &is_current);
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

/* Refuses a file that begins otherwise. */
static sl_status check_is_kept(const char *path, int descriptor, uint64_t bytes)
{
    char begin[sizeof first_member - 1] = "";
    if (bytes >= sizeof begin)
        SL_TRY(sli_file_read_at(path, descriptor, 0, begin, sizeof begin));
    if (memcmp(begin, first_member, sizeof begin) == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: the run keeps its rows there, but this file is not one that a run has "
                    "kept: move it away",
                    path);
}

/* *descriptor is -1 where there is no file. */
static sl_status open_kept(const char *path, int *descriptor, uint64_t *bytes)
{
    *descriptor = -1;
    if (access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return SL_OK;
    SL_TRY(sli_file_open(path, descriptor, bytes));
    sl_status status = check_is_kept(path, *descriptor, *bytes);
    if (status != SL_OK)
        close(*descriptor);
    return status;
}

sl_status sli_kept_rows_read(const char *path, const json_t *description, sl_rows **out,
                             int64_t *documents)
{
    int descriptor;
    uint64_t bytes;
    *out = NULL;
    SL_TRY(open_kept(path, &descriptor, &bytes));
    if (descriptor < 0)
        return SL_OK;
    void *map = NULL;
    if (bytes > HEADER_BYTES)
        map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    sl_status status = map == MAP_FAILED ? sli_io_error(path, "cannot be mapped") : SL_OK;
    close(descriptor);
    if (!map || status != SL_OK) /* one that is short is made again */
        return status;
    status = take_rows(path, map, bytes, description, out, documents);
    if (!*out)
        munmap(map, bytes);
    return status;
}

/* ---- Keeping ------------------------------------------------------------------------------ */

/* Fills `header` with the JSON, blanks and a line end; `sum` has the arrays. */
static sl_status make_header(const char *path, json_t *json, sli_checksum *sum, char *header)
{
    char checksum[SLI_CHECKSUM_BYTES];
    SL_TRY(sum_header(path, json, sum, checksum));
    if (json_object_set_new(json, "checksum", json_string(checksum)) != 0)
        return sli_no_memory(path, "its header");
    memset(header, ' ', HEADER_BYTES);
    header[HEADER_BYTES - 1] = '\n';
    size_t used = json_dumpb(json, header, HEADER_BYTES - 1, JSON_PRESERVE_ORDER);
    if (used > HEADER_BYTES - 1)
        return sl_error(SL_ERR_UNSUPPORTED, "%s: its header has at most %d bytes, got %zu", path,
                        HEADER_BYTES - 1, used);
    return used > 0 ? SL_OK : sli_no_memory(path, "its header");
}

static json_t *describe_rows(const json_t *description, const sl_rows *rows, int64_t documents)
{
    return json_pack("{si sO sI sI sI sI sI sb sb}", "sluice_rows", VERSION, "of", description,
                     "rows", (json_int_t)rows->count, "tokens",
                     (json_int_t)rows->begins[rows->count], "documents", (json_int_t)documents,
                     "longest", (json_int_t)rows->longest, "largest", (json_int_t)rows->largest,
                     "has_targets", rows->has_targets, "packed", rows->numbers != NULL);
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
    char header[HEADER_BYTES];
    int descriptor;
    uint64_t bytes;
    const row_arrays arrays =
        arrays_of(rows, (uint64_t)rows->count, (uint64_t)rows->begins[rows->count]);
    sli_replace_file *file = NULL;
    sli_checksum *sum = NULL;
    SL_TRY(open_kept(path, &descriptor, &bytes));
    if (descriptor >= 0)
        close(descriptor);
    json_t *json = describe_rows(description, rows, documents);
    sl_status status;
    SL_TRY_OR_FAIL(json ? SL_OK : sli_no_memory(path, "its header"));
    SL_TRY_OR_FAIL(sli_checksum_create(&sum));
    SL_TRY_OR_FAIL(sli_replace_file_create(path, &file));
    SL_TRY_OR_FAIL(write_arrays(file, &arrays, sum));
    SL_TRY_OR_FAIL(make_header(path, json, sum, header));
    SL_TRY_OR_FAIL(sli_replace_file_write(file, 0, header, sizeof header));
    status = sli_replace_file_commit(file);
fail:
    sli_replace_file_destroy(&file);
    sli_checksum_destroy(&sum);
    json_decref(json);
    return status;
}

typedef struct directory_rows {
    const char *directory;
    char *const *paths; /* [count] of those that stay */
    int count;
} directory_rows;

static sl_status remove_kept(const char *path)
{
    int descriptor;
    uint64_t bytes;
    sl_status status = open_kept(path, &descriptor, &bytes);
    if (status == SL_OK && descriptor >= 0) {
        close(descriptor);
        (void)unlink(path);
    }
    return status == SL_ERR_MEMORY ? status : SL_OK; /* another's file stays */
}

static sl_status remove_other(void *context, const char *name)
{
    const directory_rows *rows = context;
    char *path;
    bool stays = false;
    if (!sli_name_ends_with(name, ".rows"))
        return SL_OK;
    SL_TRY(sli_path_join(rows->directory, name, &path));
    for (int i = 0; i < rows->count; i++)
        stays = stays || strcmp(path, rows->paths[i]) == 0;
    sl_status status = stays ? SL_OK : remove_kept(path);
    free(path);
    return status;
}

sl_status sli_kept_rows_remove_others(const char *directory, char *const *paths, int count)
{
    directory_rows rows = {directory, paths, count};
    int opened = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0)
        return errno == ENOENT ? SL_OK : sli_io_error(directory, "cannot be read");
    sl_status status = sli_directory_visit(opened, directory, remove_other, &rows);
    close(opened);
    return status;
}
