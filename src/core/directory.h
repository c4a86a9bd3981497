/* Directories by descriptor, for whatever removes or replaces something: a path may lead to a
 * directory through links, as a user's does, but names in it are used without following links. */
#ifndef SLI_CORE_DIRECTORY_H
#define SLI_CORE_DIRECTORY_H

#include "sluice/status.h"

#include <stdbool.h>

/* Opens the directory that holds `path`; *name, malloc'ed, is the last component of `path`,
 * whatever slashes follow it. Error sentences begin with `shown`. Errors: SL_ERR_NOT_FOUND where
 * there is no such directory, SL_ERR_INVALID for a path without a name, SL_ERR_IO, SL_ERR_MEMORY.
 */
sl_status sli_directory_open_parent(const char *path, const char *shown, int *directory,
                                    char **name);

/* The path at which a file that is written to `path` ends up: links at its end are followed, also
 * those whose target is not there. Malloc'ed. Errors: SL_ERR_INVALID for links in a circle. */
sl_status sli_directory_follow(const char *path, char **out);

/* Whether two paths lead to the same file or directory, which need not be there yet. Sets no error
 * text, as do the others that give no status. */
bool sli_directory_same_file(const char *a, const char *b);

/* Calls `visit` for each entry but . and .. while that is true. Whether it came to the end; errno
 * 0: it was `visit` that ended it. Sets no error text. */
bool sli_directory_walk(int directory, bool (*visit)(void *context, const char *name),
                        void *context);

/* Calls `visit` for each entry but . and .. until it fails. Errors: its own, SL_ERR_IO. */
sl_status sli_directory_visit(int directory, const char *shown,
                              sl_status (*visit)(void *context, const char *name), void *context);

/* Whether the entry is a directory without directories in it; false where nobody can tell. */
bool sli_directory_is_flat(int directory, const char *name);

/* Removes a file, a link (never its target), or a directory of files. False, with errno, where that
 * fails; of a directory some files may be removed then. Directories in it stay. */
bool sli_directory_remove(int directory, const char *name);

/* The same of a path. Errors begin with it: SL_ERR_NOT_FOUND, SL_ERR_IO. */
sl_status sli_directory_remove_path(const char *path);

/* Removes the file that `descriptor` is open on, where `path` still leads to it; a link that leads
 * there stays. */
void sli_directory_remove_open(const char *path, int descriptor);

/* Brings the entries of a directory to disk. Errors: SL_ERR_IO. */
sl_status sli_directory_sync(int directory, const char *shown);

#endif
