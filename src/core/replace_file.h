/* A file that takes its name only when it is complete: it is written under a temporary name in the
 * same directory (core/temporary.h), brought to disk, then renamed. Whoever opens the name sees the
 * old content or the new, whole. Error sentences begin with the path. */
#ifndef SLI_CORE_REPLACE_FILE_H
#define SLI_CORE_REPLACE_FILE_H

#include "sluice/status.h"

#include <stdint.h>

typedef struct sli_replace_file sli_replace_file;

/* Starts the file, and removes what writers of it that died have left. A symbolic link at `path` is
 * followed: its target is replaced, or made where it is not there. Errors: SL_ERR_NOT_FOUND (no
 * such directory), SL_ERR_INVALID (`path` is a directory or device, or a link in a circle),
 * SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_replace_file_create(const char *path, sli_replace_file **out);

/* Takes disk space for the file's first `bytes`, so that a full disk is found before the work and
 * not in its middle; does nothing where the file system cannot. Errors: SL_ERR_IO. */
sl_status sli_replace_file_reserve(sli_replace_file *file, uint64_t bytes);

/* Writes `bytes` of `data` at `offset`. Errors: SL_ERR_IO. */
sl_status sli_replace_file_write(sli_replace_file *file, uint64_t offset, const void *data,
                                 size_t bytes);

/* Brings the file to disk and renames it. Errors: SL_ERR_IO; an older file is then unchanged,
 * unless the error says that only the directory could not be brought to disk. */
sl_status sli_replace_file_commit(sli_replace_file *file);

/* Frees the record, and removes the file if it was not committed; NULL is allowed. */
void sli_replace_file_destroy(sli_replace_file **file);

#endif
