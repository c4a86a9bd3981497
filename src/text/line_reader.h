/* A file's lines, one after the other, however long, read in large blocks. */
#ifndef SLI_TEXT_LINE_READER_H
#define SLI_TEXT_LINE_READER_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sli_line_reader sli_line_reader;

/* Errors, each beginning with the path: SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_MEMORY; SL_ERR_FORMAT
 * for a directory, device or pipe. */
sl_status sli_line_reader_open(const char *path, sli_line_reader **out);
void sli_line_reader_close(sli_line_reader **reader);

/* The next line without its line end ('\n' only), or `*line` NULL at the end of the file; a last
 * line may lack its line end. The line lives until the next call. Errors: SL_ERR_IO,
 * SL_ERR_MEMORY. */
sl_status sli_line_reader_next(sli_line_reader *reader, const char **line, size_t *bytes);

/* Whether the line that was given last has a line end, which then stands behind its bytes. */
bool sli_line_reader_has_end(const sli_line_reader *reader);

/* The file's size: to estimate how much memory its content will take. */
uint64_t sli_line_reader_file_bytes(const sli_line_reader *reader);

#endif
