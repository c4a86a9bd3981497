/* Reading files of token ids.
 *
 *   llm.c      256 int32: a magic number, a version, the number of tokens (below 2^31), zeros; then
 *              the tokens: uint16 of version 1, or uint32 of version 7
 *   Megatron   FILE.bin has tokens alone; FILE.idx says what they are: "MMIDIDX", two zeros, then
 *              uint64 version 1, uint8 type, uint64 sequences, uint64 documents + 1; then an int32
 *              length for each sequence, an int64 byte offset for each, an int64 first sequence for
 *              each document and one past the last
 *   nanoGPT    tokens alone, of a type that nothing says */
#include "text/token_file.h"

#include "core/error.h"
#include "core/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { IDX_HEAD = 34, NUMBER_DIGITS = 6 };
static const char idx_magic[9] = "MMIDIDX\0";

const char *const sl_token_type_names[] = {"header", "uint16", "uint32", NULL};

static uint64_t number_at(const uint8_t *bytes, int width)
{
    uint64_t number = 0;
    for (int i = width - 1; i >= 0; i--)
        number = number << 8 | bytes[i];
    return number;
}

/* ---- llm.c ------------------------------------------------------------------------------ */

static sl_status read_llmc(sli_token_file *file, uint64_t magic)
{
    bool is_uint16 = magic == SLI_TOKENS_UINT16_MAGIC;
    uint64_t wanted = is_uint16 ? SLI_TOKENS_UINT16_VERSION : SLI_TOKENS_UINT32_VERSION,
             version = number_at(file->bytes + 4, 4);
    uint64_t count = number_at(file->bytes + 8, 4);
    file->width = is_uint16 ? 2 : 4;
    if (version != wanted)
        return sl_error(SL_ERR_FORMAT,
                        "%s: its header must be of version %" PRIu64 ", got %" PRIu64, file->path,
                        wanted, version);
    uint64_t expected = SLI_TOKENS_HEADER_BYTES + count * (uint64_t)file->width;
    if (file->size != expected)
        return sl_error(SL_ERR_FORMAT,
                        "%s: its header says %" PRIu64 " tokens, which are %" PRIu64
                        " bytes, but it has %zu",
                        file->path, count, expected, file->size);
    file->tokens = file->bytes + SLI_TOKENS_HEADER_BYTES;
    file->count = (int64_t)count;
    return SL_OK;
}

/* ---- Megatron --------------------------------------------------------------------------- */

/* The path of the .idx beside a .bin; NULL: there is none. */
static sl_status find_idx(const char *path, char **out)
{
    size_t length = strlen(path), end = strlen(SLI_TOKEN_FILE_END);
    *out = NULL;
    if (!sli_name_ends_with(path, SLI_TOKEN_FILE_END))
        return SL_OK;
    *out = strdup(path);
    if (!*out)
        return sli_no_memory(path, "the path of its index");
    memcpy(*out + length - end, ".idx", end);
    if (access(*out, F_OK) != 0) {
        free(*out);
        *out = NULL;
    }
    return SL_OK;
}

static sl_status check_lengths(const uint8_t *idx, uint64_t sequences, uint64_t documents,
                               sli_token_file *file, const char *path)
{
    const uint8_t *lengths = idx + IDX_HEAD, *offsets = lengths + 4 * sequences,
                  *begins = offsets + 8 * sequences;
    uint64_t tokens = 0;
    for (uint64_t i = 0; i < sequences; i++) {
        if (number_at(offsets + 8 * i, 8) != tokens * (uint64_t)file->width)
            return sl_error(SL_ERR_FORMAT,
                            "%s: sequence %" PRIu64 " must begin at byte %" PRIu64 ", got %" PRIu64,
                            path, i, tokens * (uint64_t)file->width, number_at(offsets + 8 * i, 8));
        tokens += number_at(lengths + 4 * i, 4);
    }
    if (documents == 0 || number_at(begins + 8 * (documents - 1), 8) != sequences)
        return sl_error(SL_ERR_FORMAT, "%s: its documents must end with its %" PRIu64 " sequences",
                        path, sequences);
    if (tokens * (uint64_t)file->width != file->size)
        return sl_error(SL_ERR_FORMAT,
                        "%s: its sequences have %" PRIu64 " tokens of %d bytes, but %s has %zu "
                        "bytes",
                        path, tokens, file->width, file->path, file->size);
    file->tokens = file->bytes;
    file->count = (int64_t)tokens;
    return SL_OK;
}

static sl_status read_idx(const uint8_t *idx, size_t bytes, const char *path, sli_token_file *file)
{
    enum { UINT8 = 1, INT32 = 4, UINT16 = 8 };
    if (bytes < IDX_HEAD || memcmp(idx, idx_magic, sizeof idx_magic) != 0)
        return sl_error(SL_ERR_FORMAT, "%s: it does not begin as an index of Megatron", path);
    uint64_t version = number_at(idx + 9, 8), sequences = number_at(idx + 18, 8),
             documents = number_at(idx + 26, 8);
    int type = idx[17];
    file->width = type == UINT16 ? 2 : type == INT32 ? 4 : type == UINT8 ? 1 : 0;
    if (version != 1 || file->width == 0)
        return sl_error(SL_ERR_FORMAT,
                        "%s: expected version 1 and tokens of type 1, 4 or 8 (uint8, int32, "
                        "uint16), got version %" PRIu64 " and type %d",
                        path, version, type);
    uint64_t room = (bytes - IDX_HEAD) / 4;
    if (sequences > room || documents > room || bytes - IDX_HEAD < 12 * sequences + 8 * documents)
        return sl_error(SL_ERR_FORMAT,
                        "%s: it has %zu bytes, too few for %" PRIu64 " sequences in %" PRIu64
                        " documents",
                        path, bytes, sequences, documents);
    return check_lengths(idx, sequences, documents, file, path);
}

static sl_status read_megatron(const char *path, sli_token_file *file)
{
    char *idx;
    size_t bytes;
    SL_TRY(sli_file_read(path, UINT64_C(1) << 36, &idx, &bytes));
    sl_status status = read_idx((const uint8_t *)idx, bytes, path, file);
    free(idx);
    return status;
}

/* ---- Any -------------------------------------------------------------------------------- */

static sl_status read_raw(sl_token_type type, sli_token_file *file)
{
    if (type == SL_TOKENS_BY_HEADER)
        return sl_error(SL_ERR_INVALID,
                        "%s: it has neither llm.c's header nor an .idx beside it: what its tokens "
                        "are must be named (--token-type uint16 or uint32)",
                        file->path);
    file->width = type == SL_TOKENS_UINT16 ? 2 : 4;
    if (file->size % (size_t)file->width != 0)
        return sl_error(SL_ERR_FORMAT, "%s: its %zu bytes are no whole number of %d-byte tokens",
                        file->path, file->size, file->width);
    file->tokens = file->bytes;
    file->count = (int64_t)(file->size / (size_t)file->width);
    return SL_OK;
}

static sl_status read_tokens(sl_token_type type, sli_token_file *file)
{
    uint64_t magic = file->size >= SLI_TOKENS_HEADER_BYTES ? number_at(file->bytes, 4) : 0;
    char *idx;
    SL_TRY(find_idx(file->path, &idx));
    sl_status status = idx ? read_megatron(idx, file)
                       : magic == SLI_TOKENS_UINT16_MAGIC || magic == SLI_TOKENS_UINT32_MAGIC
                           ? read_llmc(file, magic)
                           : read_raw(type, file);
    free(idx);
    SL_TRY(status);
    return file->count > 0 ? SL_OK : sl_error(SL_ERR_FORMAT, "%s: it has no tokens", file->path);
}

/* Whether the digits at the end of `name` [length] can count up, which they then do. */
static bool count_up(char *name, size_t length)
{
    for (size_t i = length; i > length - NUMBER_DIGITS; i--) {
        if (name[i - 1] < '9') {
            name[i - 1]++;
            return true;
        }
        name[i - 1] = '0';
    }
    return false;
}

static bool has_number(const char *name, size_t length)
{
    bool is_number = length > NUMBER_DIGITS && name[length - NUMBER_DIGITS - 1] == '_';
    for (size_t i = 1; is_number && i <= NUMBER_DIGITS; i++)
        is_number = name[length - i] >= '0' && name[length - i] <= '9';
    return is_number;
}

sl_status sli_token_file_next(const char *path, char **out)
{
    static const char first[] = "_000001";
    size_t length = strlen(path), end = strlen(SLI_TOKEN_FILE_END);
    *out = NULL;
    if (!sli_name_ends_with(path, SLI_TOKEN_FILE_END))
        return SL_OK;
    char *next = malloc(length + sizeof first);
    if (!next)
        return sli_no_memory(path, "the name of the next file");
    memcpy(next, path, length + 1);
    length -= end;
    bool has_next = true;
    if (has_number(next, length))
        has_next = count_up(next, length);
    else
        snprintf(next + length, sizeof first + end, "%s%s", first, SLI_TOKEN_FILE_END);
    if (has_next)
        *out = next;
    else
        free(next);
    return SL_OK;
}

static sl_status map_file(const char *path, sli_token_file *out)
{
    int descriptor;
    uint64_t size;
    SL_TRY(sli_file_open(path, &descriptor, &size));
    void *bytes = size > 0 ? mmap(NULL, size, PROT_READ, MAP_SHARED, descriptor, 0) : NULL;
    close(descriptor);
    if (size == 0)
        return sl_error(SL_ERR_FORMAT, "%s: it has no tokens", path);
    if (bytes == MAP_FAILED)
        return sli_io_error(path, "cannot be mapped");
    *out = (sli_token_file){.path = strdup(path), .bytes = bytes, .size = size};
    return out->path ? SL_OK : sli_no_memory(path, "its record");
}

/* Takes what was read out of this process's memory: rows may come from all over a file that is
 * larger than it. The system keeps the pages while it has room. Around one that is touched Linux
 * maps those in its cache, up to 64 KiB. */
static void drop_pages(const sli_token_file *file, int64_t first, int64_t count)
{
    const uintptr_t window = 1 << 16;
    const uint8_t *begin = file->tokens + first * file->width, *end = begin + count * file->width,
                  *all = file->bytes;
    uintptr_t before = (uintptr_t)begin % window,
              behind = window - 1 - ((uintptr_t)end - 1) % window;
    begin -= (size_t)(begin - all) < before ? (size_t)(begin - all) : before;
    end += (size_t)(all + file->size - end) < behind ? (size_t)(all + file->size - end) : behind;
    (void)madvise((void *)begin, (size_t)(end - begin), MADV_DONTNEED);
}

sl_status sli_token_file_open(const char *path, sl_token_type type, sli_token_file *out)
{
    *out = (sli_token_file){NULL};
    sl_status status;
    SL_TRY_OR_FAIL(map_file(path, out));
    SL_TRY_OR_FAIL(read_tokens(type, out));
    drop_pages(out, 0, 1); /* with the header */
    return SL_OK;
fail:
    sli_token_file_clear(out);
    return status;
}

void sli_token_file_clear(sli_token_file *file)
{
    if (file->bytes)
        munmap((void *)file->bytes, file->size);
    free(file->path);
    *file = (sli_token_file){NULL};
}

sl_status sli_token_file_read(const sli_token_file *file, int64_t first, int64_t count,
                              int64_t ntokens, int32_t *ids)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t id = number_at(file->tokens + (first + i) * file->width, file->width);
        if (id >= (uint64_t)ntokens)
            return sl_error(SL_ERR_FORMAT,
                            "%s: its token %" PRId64 " must be an id from 0 to %" PRId64
                            ", got %" PRIu64,
                            file->path, first + i, ntokens - 1, id);
        ids[i] = (int32_t)id;
    }
    drop_pages(file, first, count);
    return SL_OK;
}
