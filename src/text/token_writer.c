/* Writing token files. Texts are read in blocks, which end where a text may be cut. */
#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"
#include "text/bpe.h"
#include "text/text_parts.h"
#include "text/token_file.h"
#include "text/tokens.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_NUMBERS = 256, MOST_UINT16 = 1 << 16 };

typedef struct writing {
    const sl_vocab *vocab;
    sli_replace_file *file;
    const char *path;
    int width;
    uint64_t block_bytes, offset; /* of texts; where the next token goes */
    sl_tokens_written *done;
} writing;

/* ---- Tokens ------------------------------------------------------------------------------- */

static sl_status write_ids(writing *job, const int32_t *ids, int64_t count)
{
    uint8_t *bytes = malloc((size_t)(count * job->width) + 1);
    if (!bytes)
        return sli_no_memory(job->path, "%" PRId64 " tokens", count);
    for (int64_t i = 0; i < count; i++)
        for (int b = 0; b < job->width; b++)
            bytes[i * job->width + b] = (uint8_t)((uint32_t)ids[i] >> 8 * b);
    sl_status status =
        job->done->tokens + count > INT32_MAX
            ? sl_error(SL_ERR_UNSUPPORTED,
                       "%s: a token file has at most %d tokens: divide the texts "
                       "between several",
                       job->path, INT32_MAX)
            : sli_replace_file_write(job->file, job->offset, bytes, (size_t)(count * job->width));
    free(bytes);
    SL_TRY(status);
    job->offset += (uint64_t)(count * job->width);
    job->done->tokens += count;
    return SL_OK;
}

static sl_status write_block(writing *job, bool continues, const char *text, size_t bytes)
{
    sl_tokens tokens;
    SL_TRY(sli_tokens_encode_text(job->vocab, text, bytes, continues, &tokens));
    sl_status status = write_ids(job, tokens.ids, tokens.count);
    job->done->invalid_bytes += tokens.invalid_bytes;
    sl_tokens_free(&tokens);
    return status;
}

/* ---- Blocks ------------------------------------------------------------------------------- */

/* What of a file is read and not yet written. */
typedef struct text_block {
    char *text;
    size_t bytes, room;
} text_block;

static sl_status read_block(const char *path, int descriptor, uint64_t most, uint64_t left,
                            uint64_t *offset, text_block *block)
{
    uint64_t count = left < most ? left : most;
    if (block->bytes + count > block->room) {
        size_t room = block->bytes + (size_t)count;
        char *grown = realloc(block->text, room + 1);
        if (!grown)
            return sli_no_memory(path, "%zu bytes of text", room);
        block->text = grown;
        block->room = room;
    }
    SL_TRY(sli_file_read_at(path, descriptor, *offset, block->text + block->bytes, count));
    block->bytes += (size_t)count;
    *offset += count;
    return SL_OK;
}

static sl_status write_blocks(writing *job, const char *path, int descriptor, uint64_t size,
                              text_block *block)
{
    bool continues = false;
    for (uint64_t offset = 0; offset < size;) {
        SL_TRY(read_block(path, descriptor, job->block_bytes, size - offset, &offset, block));
        size_t cut = offset == size ? block->bytes
                                    : sli_text_last_cut(job->vocab, block->text, 0, block->bytes);
        if (cut == 0)
            continue;
        SL_TRY(write_block(job, continues, block->text, cut));
        continues = true;
        block->bytes -= cut;
        memmove(block->text, block->text + cut, block->bytes);
    }
    return SL_OK;
}

static sl_status write_text(writing *job, const char *path)
{
    int descriptor;
    uint64_t size;
    int64_t invalid = job->done->invalid_bytes;
    int32_t end = sl_vocab_end(job->vocab);
    SL_TRY(sli_file_open(path, &descriptor, &size));
    text_block block = {.text = malloc(1)};
    sl_status status =
        !block.text ? sli_no_memory(path, "a block of text")
        : size > 0  ? write_blocks(job, path, descriptor, size, &block)
                    : sl_error(SL_ERR_FORMAT, "%s: expected text, but the file is empty", path);
    close(descriptor);
    free(block.text);
    SL_TRY(status);
    invalid = job->done->invalid_bytes - invalid;
    if ((uint64_t)invalid > size / 3)
        return sl_error(SL_ERR_FORMAT,
                        "%s: expected text in UTF-8, but of its %" PRIu64 " bytes %" PRId64
                        " are not UTF-8",
                        path, size, invalid);
    return end >= 0 ? write_ids(job, &end, 1) : SL_OK;
}

/* ---- The file ----------------------------------------------------------------------------- */

static sl_status write_header(writing *job)
{
    uint32_t numbers[HEADER_NUMBERS] = {job->width == 2 ? 20240520u : 20240801u,
                                        job->width == 2 ? 1u : 7u, (uint32_t)job->done->tokens};
    uint8_t bytes[4 * HEADER_NUMBERS];
    for (int i = 0; i < 4 * HEADER_NUMBERS; i++)
        bytes[i] = (uint8_t)(numbers[i / 4] >> 8 * (i % 4));
    return sli_replace_file_write(job->file, 0, bytes, sizeof bytes);
}

sl_status sli_tokens_write_in_blocks(const sl_vocab *vocab, const char *const *texts, int count,
                                     uint64_t block_bytes, const char *path, sl_tokens_written *out)
{
    *out = (sl_tokens_written){0};
    writing job = {.vocab = vocab,
                   .path = path,
                   .width = sl_vocab_size(vocab) <= MOST_UINT16 ? 2 : 4,
                   .block_bytes = block_bytes,
                   .offset = 4 * HEADER_NUMBERS,
                   .done = out};
    sl_status status = sli_replace_file_create(path, &job.file);
    for (int i = 0; i < count && status == SL_OK; i++)
        status = write_text(&job, texts[i]);
    if (status == SL_OK)
        status = write_header(&job);
    if (status == SL_OK)
        status = sli_replace_file_commit(job.file);
    sli_replace_file_destroy(&job.file);
    return status;
}

sl_status sl_tokens_write(const sl_vocab *vocab, const char *const *texts, int count,
                          const char *path, sl_tokens_written *out)
{
    return sli_tokens_write_in_blocks(vocab, texts, count, 1 << 24, path, out);
}
