/* A directory of files that takes its name only when it is complete: its files are written under a
 * temporary name beside it (core/temporary.h), brought to disk, then it is renamed. Whoever opens
 * the name sees the old directory or the new one, whole. These directories hold files only.
 *
 * Slashes at the end of a path do not count. A link that is replaced or removed goes, and its
 * target stays.
 *
 * Where a file system lacks renameat2's flags (NFS, among others), a directory can take a free name
 * or that of an empty directory, but not that of an older one with files: that is an error, and the
 * older one stays. */
#ifndef SLI_CORE_REPLACE_DIRECTORY_H
#define SLI_CORE_REPLACE_DIRECTORY_H

#include "sluice/status.h"

#include <stdint.h>

typedef struct sli_replace_directory sli_replace_directory;

/* Makes the temporary directory, and removes what writers of `path` that died have left. Errors
 * begin with `path`: SL_ERR_NOT_FOUND (what should hold it is not there), SL_ERR_INVALID (it has no
 * name), SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_replace_directory_create(const char *path, sli_replace_directory **out);

/* The same with a temporary name that follows from `number`, so that others can write files there
 * as well: one creates it and commits or removes it, after the others have ended. They join it,
 * whoever comes first; a directory that was joined is neither committed nor removed. */
sl_status sli_replace_directory_create_numbered(const char *path, uint64_t number,
                                                sli_replace_directory **out);
sl_status sli_replace_directory_join(const char *path, uint64_t number,
                                     sli_replace_directory **out);

/* Where its files are to be written until then. */
const char *sli_replace_directory_temporary(const sli_replace_directory *directory);

/* Brings the names to disk (the files have come there) and renames; an older directory is removed
 * after that. Errors: SL_ERR_IO; an older directory is then unchanged, unless the error says that
 * only the one around it could not be brought to disk. */
sl_status sli_replace_directory_commit(sli_replace_directory *directory);

/* Frees the record, and removes the directory if it was not committed; NULL is allowed. */
void sli_replace_directory_destroy(sli_replace_directory **directory);

/* Removes the directory `path` and its files, or the link of that name. It takes a temporary name
 * first, so that nobody sees a part of it. Errors: SL_ERR_INVALID for a file, and for a directory
 * that holds others: both stay as they are. SL_ERR_NOT_FOUND, SL_ERR_IO. */
sl_status sli_remove_directory(const char *path);

#endif
