#include "text/line_reader.h"

#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_CAPACITY = 1 << 18 }; /* a block stays in the second-level cache */

struct sli_line_reader {
    char *path;
    int descriptor;
    bool at_end;   /* the file has nothing more; the buffer may */
    bool line_end; /* the last line has one */
    uint64_t file_bytes;
    int64_t line_count;
    char *buffer;
    size_t capacity, start, end; /* buffer[start .. end) is read and not yet handed out */
};

sl_status sli_line_reader_open(const char *path, sli_line_reader **out)
{
    *out = NULL;
    sli_line_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return sli_no_memory(path, "a reader of it");
    reader->descriptor = -1;
    reader->capacity = FIRST_CAPACITY;
    reader->buffer = malloc(reader->capacity);
    reader->path = strdup(path);
    sl_status status = reader->buffer && reader->path
                           ? sli_file_open(path, &reader->descriptor, &reader->file_bytes)
                           : sli_no_memory(path, "a reader of it");
    if (status != SL_OK)
        sli_line_reader_close(&reader);
    *out = reader;
    return status;
}

void sli_line_reader_close(sli_line_reader **reader)
{
    if (!reader || !*reader)
        return;
    if ((*reader)->descriptor >= 0)
        close((*reader)->descriptor);
    free((*reader)->buffer);
    free((*reader)->path);
    free(*reader);
    *reader = NULL;
}

/* Moves the bytes not yet handed out to the buffer's front, and makes room behind them. */
static sl_status make_room(sli_line_reader *reader)
{
    reader->end -= reader->start;
    memmove(reader->buffer, reader->buffer + reader->start, reader->end);
    reader->start = 0;
    sl_status status = sli_array_reserve(&reader->buffer, &reader->capacity, reader->end + 1, 1,
                                         SIZE_MAX / 2, "bytes");
    return sl_error_context(status, "%s: line %lld: ", reader->path,
                            (long long)reader->line_count + 1);
}

static sl_status read_more(sli_line_reader *reader)
{
    ssize_t got;
    SL_TRY(make_room(reader));
    do
        got =
            read(reader->descriptor, reader->buffer + reader->end, reader->capacity - reader->end);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return sli_io_error(reader->path, "cannot be read");
    reader->end += (size_t)got;
    reader->at_end = got == 0;
    return SL_OK;
}

sl_status sli_line_reader_next(sli_line_reader *reader, const char **line, size_t *bytes)
{
    size_t searched = 0; /* bytes of the line that are known to hold no line end */
    char *line_end = NULL;
    *line = NULL;
    *bytes = 0;
    for (;;) {
        char *from = reader->buffer + reader->start;
        size_t available = reader->end - reader->start;
        line_end = memchr(from + searched, '\n', available - searched);
        if (line_end || reader->at_end)
            break;
        searched = available;
        SL_TRY(read_more(reader));
    }
    if (!line_end && reader->start == reader->end)
        return SL_OK;
    *line = reader->buffer + reader->start;
    *bytes = line_end ? (size_t)(line_end - *line) : reader->end - reader->start;
    reader->line_end = line_end != NULL;
    reader->start += *bytes + (line_end ? 1 : 0);
    reader->line_count++;
    return SL_OK;
}

bool sli_line_reader_has_end(const sli_line_reader *reader)
{
    return reader->line_end;
}

uint64_t sli_line_reader_file_bytes(const sli_line_reader *reader)
{
    return reader->file_bytes;
}
