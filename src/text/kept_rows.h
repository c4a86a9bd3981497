/* The rows that a run has made of JSON lines, kept in a file of its own, so that it reads them when
 * it goes on.
 *
 *     a header   HEADER_BYTES: a line of JSON, which says of which lines they are
 *     begins     int64 [rows + 1]
 *     ids        int32 [tokens]
 *     targets    the same
 *     numbers    the same, of packed rows
 *
 * They lie there as in memory, and are mapped. */
#ifndef SLI_TEXT_KEPT_ROWS_H
#define SLI_TEXT_KEPT_ROWS_H

#include "text/rows.h"

#include <jansson.h>

/* What rows are of: the file's content, the tokenizer with its template, and how they are made;
 * `pack`: the most tokens of a packed row, 0: they are not. Reads all of the file. Errors:
 * SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_kept_rows_describe(const char *path, const sl_rows_options *options, int64_t pack,
                                 json_t **out);

/* The rows of such a description, and the number of documents that they were packed of; *out is
 * NULL where they are not kept, or not whole: their checksum is compared. Errors: SL_ERR_INVALID
 * where the file is none that sli_kept_rows_write has written, before any line is read;
 * SL_ERR_MEMORY, SL_ERR_IO. */
sl_status sli_kept_rows_read(const char *path, const json_t *description, sl_rows **out,
                             int64_t *documents);

/* Keeps them, in place of those of other lines. Errors: SL_ERR_INVALID where the file is none that
 * this function has written; those of writing it, after which no run
 * should begin: it could not save its weights there either. */
sl_status sli_kept_rows_write(const char *path, const json_t *description, const sl_rows *rows,
                              int64_t documents);

/* Removes the files of the directory, which need not exist, that sli_kept_rows_write has written
 * and that are not among these [count] paths: those of data that a run does not have any more.
 * Errors: SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_kept_rows_remove_others(const char *directory, char *const *paths, int count);

#endif
