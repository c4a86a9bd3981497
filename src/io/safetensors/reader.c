#include "io/safetensors/reader.h"

#include "io/safetensors/dtype.h"
#include "io/safetensors/header.h"
#include "io/safetensors/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors files are little-endian, and tensors are read from them unchanged");

enum { LENGTH_BYTES = 8 }; /* of the number before the header */

struct sl_safetensors_reader {
    int descriptor; /* -1: released */
    char *path;
    dev_t device; /* with its inode, which file it was */
    ino_t inode;
    uint64_t file_bytes;
    uint64_t data_begin; /* in the file */
    sli_safetensors_header *header;
};

sl_status sli_safetensors_read_raw(int descriptor, uint64_t offset, void *to, uint64_t bytes)
{
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(descriptor, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sl_error(SL_ERR_IO, "reading failed: %s", strerror(errno));
        if (got == 0)
            return sl_error(SL_ERR_IO, "the file became shorter while it was read");
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return SL_OK;
}

/* The caller closes *descriptor, unless it is -1, also after an error. */
static sl_status open_file(const char *path, int *descriptor, struct stat *found)
{
    /* Not blocking: a pipe of that name is refused below, and must not be waited for here. */
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0)
        return sl_error(errno == ENOENT || errno == ENOTDIR ? SL_ERR_NOT_FOUND : SL_ERR_IO,
                        "cannot be opened: %s", strerror(errno));
    if (fstat(*descriptor, found) != 0)
        return sl_error(SL_ERR_IO, "cannot be examined: %s", strerror(errno));
    if (!S_ISREG(found->st_mode))
        return sl_error(SL_ERR_INVALID, "is %s, where a regular file was expected",
                        S_ISDIR(found->st_mode) ? "a directory" : "a device or pipe");
    return SL_OK;
}

/* ---- Many files ------------------------------------------------------------------------- */

void sli_safetensors_release(sl_safetensors_reader *reader)
{
    close(reader->descriptor);
    reader->descriptor = -1;
}

sl_status sli_safetensors_acquire(const sl_safetensors_reader *reader, int *descriptor)
{
    struct stat found;
    *descriptor = reader->descriptor;
    if (*descriptor >= 0)
        return SL_OK;
    sl_status status = open_file(reader->path, descriptor, &found);
    if (status == SL_OK && (found.st_dev != reader->device || found.st_ino != reader->inode ||
                            (uint64_t)found.st_size != reader->file_bytes))
        status = sl_error(SL_ERR_IO, "another file has taken its place while it was read");
    if (status != SL_OK && *descriptor >= 0)
        close(*descriptor);
    return status;
}

void sli_safetensors_give_back(const sl_safetensors_reader *reader, int descriptor)
{
    if (descriptor != reader->descriptor)
        close(descriptor);
}

/* ---- Opening ---------------------------------------------------------------------------- */

static sl_status read_header_length(const sl_safetensors_reader *reader, uint64_t file_bytes,
                                    uint64_t *length)
{
    if (file_bytes < LENGTH_BYTES)
        return sl_error(SL_ERR_FORMAT,
                        "a safetensors file begins with a number of 8 bytes, but the file has "
                        "%" PRIu64,
                        file_bytes);
    SL_TRY(sli_safetensors_read_raw(reader->descriptor, 0, length, LENGTH_BYTES));
    if (*length > SLI_SAFETENSORS_HEADER_LIMIT)
        return sl_error(SL_ERR_FORMAT,
                        "its header would have %" PRIu64 " bytes, more than the %" PRIu64
                        " allowed: this is no safetensors file",
                        *length, SLI_SAFETENSORS_HEADER_LIMIT);
    if (*length > file_bytes - LENGTH_BYTES)
        return sl_error(SL_ERR_FORMAT,
                        "its header should have %" PRIu64 " bytes, but only %" PRIu64
                        " follow: it was cut short, or is no safetensors file",
                        *length, file_bytes - LENGTH_BYTES);
    return SL_OK;
}

static sl_status read_header(sl_safetensors_reader *reader, uint64_t file_bytes)
{
    uint64_t length = 0;
    SL_TRY(read_header_length(reader, file_bytes, &length));
    reader->data_begin = LENGTH_BYTES + length;
    char *text = malloc(length + 1);
    if (!text)
        return sl_error(SL_ERR_MEMORY, "no memory for its header of %" PRIu64 " bytes", length);
    sl_status status = sli_safetensors_read_raw(reader->descriptor, LENGTH_BYTES, text, length);
    if (status == SL_OK)
        status = sli_safetensors_header_parse(text, length, file_bytes - reader->data_begin,
                                              &reader->header);
    free(text);
    return status;
}

static sl_status open_and_read(sl_safetensors_reader *reader)
{
    struct stat found;
    SL_TRY(open_file(reader->path, &reader->descriptor, &found));
    reader->device = found.st_dev;
    reader->inode = found.st_ino;
    reader->file_bytes = (uint64_t)found.st_size;
    return read_header(reader, reader->file_bytes);
}

sl_status sl_safetensors_open(const char *path, sl_safetensors_reader **out)
{
    *out = NULL;
    sl_safetensors_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a reader", path);
    reader->descriptor = -1;
    reader->path = strdup(path);
    sl_status status = reader->path ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for a path");
    if (status == SL_OK)
        status = open_and_read(reader);
    if (status != SL_OK)
        sl_safetensors_close(&reader);
    *out = reader;
    return sl_error_context(status, "%s: ", path);
}

void sl_safetensors_close(sl_safetensors_reader **reader)
{
    if (!reader || !*reader)
        return;
    sli_safetensors_header_destroy(&(*reader)->header);
    if ((*reader)->descriptor >= 0)
        close((*reader)->descriptor);
    free((*reader)->path);
    free(*reader);
    *reader = NULL;
}

size_t sl_safetensors_count(const sl_safetensors_reader *reader)
{
    return reader->header->count;
}

const sl_safetensors_info *sl_safetensors_get(const sl_safetensors_reader *reader, size_t index)
{
    return &reader->header->entries[index].info;
}

const sl_safetensors_info *sl_safetensors_find(const sl_safetensors_reader *reader,
                                               const char *name)
{
    const sli_safetensors_entry *entry = sli_safetensors_header_find(reader->header, name);
    return entry ? &entry->info : NULL;
}

const char *sl_safetensors_metadata(const sl_safetensors_reader *reader, const char *key)
{
    return sli_safetensors_header_metadata(reader->header, key);
}

static sl_status read_bytes(const sl_safetensors_reader *reader, const sl_safetensors_info *info,
                            uint64_t offset, uint64_t bytes, void *to)
{
    const sli_safetensors_entry *entry = (const sli_safetensors_entry *)info; /* its first field */
    int descriptor;
    if (!info->readable)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "its data type is %s, where F32, F64, I32, I64 and BF16 can be read",
                        info->type_name);
    SL_TRY(sli_safetensors_acquire(reader, &descriptor));
    sl_status status =
        sli_safetensors_read_raw(descriptor, reader->data_begin + entry->begin + offset, to, bytes);
    sli_safetensors_give_back(reader, descriptor);
    return status;
}

sl_status sli_safetensors_read_bytes(const sl_safetensors_reader *reader,
                                     const sl_safetensors_info *info, uint64_t offset,
                                     uint64_t bytes, void *to)
{
    char quoted[SLI_QUOTE_BYTES];
    return sl_error_context(read_bytes(reader, info, offset, bytes, to),
                            "%s: tensor %s: ", reader->path,
                            sli_safetensors_quote(info->name, quoted));
}

sl_status sl_safetensors_read(const sl_safetensors_reader *reader, const sl_safetensors_info *info,
                              void *to)
{
    return sli_safetensors_read_bytes(reader, info, 0, info->bytes, to);
}

uint64_t sli_safetensors_head_bytes(const sl_safetensors_reader *reader)
{
    return reader->data_begin;
}

uint64_t sli_safetensors_file_bytes(const sl_safetensors_reader *reader)
{
    return reader->file_bytes;
}

const sl_metadata *sli_safetensors_all_metadata(const sl_safetensors_reader *reader, size_t *count)
{
    *count = reader->header->metadata_count;
    return reader->header->metadata;
}
