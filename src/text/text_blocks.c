#include "text/text_blocks.h"

#include "core/error.h"
#include "core/file.h"
#include "text/text_parts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How many bytes behind a place say whether a text may be cut there. */
enum { SEEN_BEHIND = 5 };

sl_status sli_text_blocks_open(const char *path, sli_text_blocks *out)
{
    *out = (sli_text_blocks){.path = path};
    SL_TRY(sli_file_open(path, &out->descriptor, &out->size));
    out->end = out->size;
    return SL_OK;
}

void sli_text_blocks_close(sli_text_blocks *text)
{
    if (text->descriptor >= 0)
        close(text->descriptor);
    free(text->block);
    text->descriptor = -1;
    text->block = NULL;
}

sl_status sli_text_blocks_find_line(const sli_text_blocks *text, uint64_t from, uint64_t *out)
{
    char bytes[1 << 14];
    *out = from < text->size ? from : text->size;
    if (from == 0 || from >= text->size)
        return SL_OK;
    for (uint64_t offset = from - 1; offset < text->size; offset += sizeof bytes) {
        uint64_t left = text->size - offset, count = left < sizeof bytes ? left : sizeof bytes;
        SL_TRY(sli_file_read_at(text->path, text->descriptor, offset, bytes, count));
        const char *line_end = memchr(bytes, '\n', count);
        *out = line_end ? offset + (uint64_t)(line_end - bytes) + 1 : text->size;
        if (line_end)
            return SL_OK;
    }
    return SL_OK;
}

/* So many more bytes, behind those that are in the block. */
static sl_status read_more(sli_text_blocks *text, uint64_t most)
{
    uint64_t left = text->end - text->offset, count = left < most ? left : most;
    if (text->bytes + count > text->room) {
        size_t room = text->bytes + (size_t)count;
        char *grown = realloc(text->block, room + 1);
        if (!grown)
            return sli_no_memory(text->path, "%zu bytes of text", room);
        text->block = grown;
        text->room = room;
    }
    SL_TRY(sli_file_read_at(text->path, text->descriptor, text->offset, text->block + text->bytes,
                            count));
    text->bytes += (size_t)count;
    text->offset += count;
    return SL_OK;
}

bool sli_text_blocks_is_last(const sli_text_blocks *text)
{
    return text->offset == text->end;
}

/* Hands the first bytes of the block out; those behind them begin the next one. */
static sl_status hand_out(sli_text_blocks *text, size_t bytes, char **block)
{
    size_t left = text->bytes - bytes;
    char *rest = malloc(left + 1);
    if (!rest)
        return sli_no_memory(text->path, "%zu bytes of text", left);
    memcpy(rest, text->block + bytes, left);
    *block = text->block;
    text->block = rest;
    text->bytes = text->room = left;
    return SL_OK;
}

sl_status sli_text_blocks_next(sli_text_blocks *text, const sl_vocab *vocab, uint64_t block_bytes,
                               char **block, size_t *bytes)
{
    *block = NULL;
    *bytes = 0;
    while (*bytes == 0 && !sli_text_blocks_is_last(text)) {
        SL_TRY(read_more(text, block_bytes));
        *bytes = sli_text_blocks_is_last(text)
                     ? text->bytes
                     : sli_text_last_cut(vocab, text->block, text->uncut, text->bytes);
        text->uncut = *bytes > 0 || text->bytes < SEEN_BEHIND ? 0 : text->bytes - SEEN_BEHIND;
    }
    return *bytes > 0 ? hand_out(text, *bytes, block) : SL_OK;
}
