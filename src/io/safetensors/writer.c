#include "io/safetensors/writer.h"

#include "core/replace.h"
#include "io/safetensors/layout.h"
#include "io/safetensors/text.h"

#include <assert.h>
#include <stdlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors files are little-endian, and tensors are written to them unchanged");

struct sl_safetensors_writer {
    sli_replace_file *file;
    sli_safetensors_layout *layout;
    bool *written; /* [layout->count] */
    sli_checksum *sum;
    uint64_t summed; /* bytes from the file's start that `sum` has */
};

/* Writes and sums in pieces that stay in a core's cache between the two. */
static sl_status write_summed(sl_safetensors_writer *writer, uint64_t offset, const char *data,
                              uint64_t bytes)
{
    enum { PIECE_BYTES = 1 << 18 };
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        if (writer->summed == offset + done) {
            sli_checksum_add(writer->sum, data + done, piece);
            writer->summed += piece;
        }
        SL_TRY(sli_replace_file_write(writer->file, offset + done, data + done, piece));
        done += piece;
    }
    return SL_OK;
}

static sl_status begin(sl_safetensors_writer *writer, const char *path)
{
    const sli_safetensors_layout *layout = writer->layout;
    writer->written = calloc(layout->count + 1, sizeof *writer->written);
    if (!writer->written)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a writer", path);
    SL_TRY(sli_checksum_create(&writer->sum));
    SL_TRY(sli_replace_file_create(path, &writer->file));
    SL_TRY(sli_replace_file_reserve(writer->file, layout->file_bytes));
    return write_summed(writer, 0, layout->head, layout->head_bytes);
}

sl_status sl_safetensors_writer_create(const char *path, const sl_safetensors_item *items,
                                       size_t count, const sl_metadata *metadata,
                                       size_t metadata_count, sl_safetensors_writer **out)
{
    *out = NULL;
    sl_safetensors_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a writer", path);
    sl_status status =
        sli_safetensors_layout_create(items, count, metadata, metadata_count, &writer->layout);
    status = sl_error_context(status, "%s: ", path);
    if (status == SL_OK)
        status = begin(writer, path);
    if (status != SL_OK)
        sl_safetensors_writer_destroy(&writer);
    *out = writer;
    return status;
}

sl_status sl_safetensors_writer_put(sl_safetensors_writer *writer, size_t index, const void *data)
{
    assert(index < writer->layout->count);
    const sli_safetensors_place *place = &writer->layout->places[index];
    SL_TRY(write_summed(writer, place->begin, data, place->bytes));
    writer->written[index] = true;
    return SL_OK;
}

sl_status sl_safetensors_writer_commit(sl_safetensors_writer *writer)
{
    char quoted[SLI_QUOTE_BYTES];
    for (size_t i = 0; i < writer->layout->count; i++)
        if (!writer->written[i])
            return sl_error(SL_ERR_INVALID,
                            "sl_safetensors_writer_commit: tensor %s was declared, not written",
                            sli_safetensors_quote(writer->layout->places[i].name, quoted));
    return sli_replace_file_commit(writer->file);
}

void sl_safetensors_writer_destroy(sl_safetensors_writer **writer)
{
    if (!writer || !*writer)
        return;
    sli_replace_file_destroy(&(*writer)->file);
    sli_safetensors_layout_destroy(&(*writer)->layout);
    sli_checksum_destroy(&(*writer)->sum);
    free((*writer)->written);
    free(*writer);
    *writer = NULL;
}

uint64_t sli_safetensors_writer_bytes(const sl_safetensors_writer *writer)
{
    return writer->layout->file_bytes;
}

sl_status sli_safetensors_writer_checksum(const sl_safetensors_writer *writer, char *text)
{
    if (writer->summed != writer->layout->file_bytes)
        return sl_error(SL_ERR_INTERNAL,
                        "the tensors of a file with a checksum must be put in their order");
    sli_checksum_text(writer->sum, text);
    return SL_OK;
}
