#include "io/safetensors/format.h"

#include "core/error.h"
#include "core/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors files are little-endian, and tensors are read from them unchanged");

enum { LENGTH_BYTES = 8 }; /* of the number before the header */

/* ---- Descriptors ------------------------------------------------------------------------ */

void sli_safetensors_close_descriptor(sl_safetensors_reader *reader)
{
    close(reader->descriptor);
    reader->descriptor = -1;
}

sl_status sli_safetensors_borrow_descriptor(const sl_safetensors_reader *reader, int *descriptor)
{
    struct stat found;
    uint64_t bytes;
    *descriptor = reader->descriptor;
    if (*descriptor >= 0)
        return SL_OK;
    SL_TRY(sli_file_open(reader->path, descriptor, &bytes));
    if (fstat(*descriptor, &found) == 0 && found.st_dev == reader->device &&
        found.st_ino == reader->inode && bytes == reader->file_bytes)
        return SL_OK;
    close(*descriptor);
    return sl_error(SL_ERR_IO, "%s: the file was replaced by another while it was read",
                    reader->path);
}

void sli_safetensors_return_descriptor(const sl_safetensors_reader *reader, int descriptor)
{
    if (descriptor != reader->descriptor)
        close(descriptor);
}

/* ---- Opening ---------------------------------------------------------------------------- */

static sl_status check_length(uint64_t length, uint64_t file_bytes)
{
    if (length > SLI_SAFETENSORS_HEADER_LIMIT)
        return sl_error(SL_ERR_FORMAT,
                        "its header would have %" PRIu64 " bytes, more than the %" PRIu64
                        " allowed: this is no safetensors file",
                        length, SLI_SAFETENSORS_HEADER_LIMIT);
    if (length > file_bytes - LENGTH_BYTES)
        return sl_error(SL_ERR_FORMAT,
                        "its header should have %" PRIu64 " bytes, but only %" PRIu64
                        " follow: it was cut short, or is no safetensors file",
                        length, file_bytes - LENGTH_BYTES);
    return SL_OK;
}

static sl_status read_header(sl_safetensors_reader *reader)
{
    uint64_t length = 0, file_bytes = reader->file_bytes;
    const char *path = reader->path;
    if (file_bytes < LENGTH_BYTES)
        return sl_error(SL_ERR_FORMAT,
                        "%s: a safetensors file begins with a number of 8 bytes, but the file has "
                        "%" PRIu64,
                        path, file_bytes);
    SL_TRY(sli_file_read_at(path, reader->descriptor, 0, &length, LENGTH_BYTES));
    SL_TRY(sl_error_context(check_length(length, file_bytes), "%s: ", path));
    reader->data_begin = LENGTH_BYTES + length;
    char *text = malloc(length + 1);
    if (!text)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for its header of %" PRIu64 " bytes", path,
                        length);
    sl_status status = sli_file_read_at(path, reader->descriptor, LENGTH_BYTES, text, length);
    if (status == SL_OK)
        status = sl_error_context(sli_safetensors_header_parse(text, length,
                                                               file_bytes - reader->data_begin,
                                                               &reader->header),
                                  "%s: ", path);
    free(text);
    return status;
}

static sl_status open_file(sl_safetensors_reader *reader)
{
    struct stat found;
    SL_TRY(sli_file_open(reader->path, &reader->descriptor, &reader->file_bytes));
    if (fstat(reader->descriptor, &found) != 0)
        return sli_io_error(reader->path, "cannot be examined");
    reader->device = found.st_dev;
    reader->inode = found.st_ino;
    return read_header(reader);
}

sl_status sl_safetensors_open(const char *path, sl_safetensors_reader **out)
{
    *out = NULL;
    sl_safetensors_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a reader", path);
    reader->descriptor = -1;
    reader->path = strdup(path);
    sl_status status = reader->path ? open_file(reader)
                                    : sl_error(SL_ERR_MEMORY, "%s: no memory for a path", path);
    if (status != SL_OK)
        sl_safetensors_close(&reader);
    *out = reader;
    return status;
}

void sl_safetensors_close(sl_safetensors_reader **reader)
{
    if (!reader || !*reader)
        return;
    sli_safetensors_header_clear(&(*reader)->header);
    if ((*reader)->descriptor >= 0)
        close((*reader)->descriptor);
    free((*reader)->path);
    free(*reader);
    *reader = NULL;
}

size_t sl_safetensors_count(const sl_safetensors_reader *reader)
{
    return reader->header.count;
}

const sl_safetensors_info *sl_safetensors_get(const sl_safetensors_reader *reader, size_t index)
{
    return &reader->header.entries[index].info;
}

const sl_safetensors_info *sl_safetensors_find(const sl_safetensors_reader *reader,
                                               const char *name)
{
    const sli_safetensors_entry *entry = sli_safetensors_header_find(&reader->header, name);
    return entry ? &entry->info : NULL;
}

const char *sl_safetensors_metadata(const sl_safetensors_reader *reader, const char *key)
{
    for (size_t i = 0; i < reader->header.metadata_count; i++)
        if (strcmp(reader->header.metadata[i].key, key) == 0)
            return reader->header.metadata[i].value;
    return NULL;
}

sl_status sli_safetensors_read_bytes(const sl_safetensors_reader *reader,
                                     const sl_safetensors_info *info, uint64_t offset,
                                     uint64_t bytes, void *to)
{
    const sli_safetensors_entry *entry = (const sli_safetensors_entry *)info; /* its first field */
    char quoted[SLI_QUOTE_BYTES];
    int descriptor;
    if (!info->readable)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%s: tensor %s: its data type is %s, where F32, F64, I32, I64 and BF16 can "
                        "be read",
                        reader->path, sli_safetensors_quote(info->name, quoted), info->type_name);
    SL_TRY(sli_safetensors_borrow_descriptor(reader, &descriptor));
    sl_status status = sli_file_read_at(reader->path, descriptor,
                                        reader->data_begin + entry->begin + offset, to, bytes);
    sli_safetensors_return_descriptor(reader, descriptor);
    return status;
}

sl_status sl_safetensors_read(const sl_safetensors_reader *reader, const sl_safetensors_info *info,
                              void *to)
{
    return sli_safetensors_read_bytes(reader, info, 0, info->bytes, to);
}
