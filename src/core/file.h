/* Paths, whole files, and directories by descriptor. A path may lead to a
 * directory through links, as a user's does, but names in an open directory are used without
 * following links. */
#ifndef SLI_CORE_FILE_H
#define SLI_CORE_FILE_H

#include "core/checksum.h"
#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- Paths ---- */

/* "DIRECTORY/NAME", malloc'ed, with one slash where the directory ends with one. Errors:
 * SL_ERR_MEMORY. */
sl_status sli_path_join(const char *directory, const char *name, char **out);

/* The path of the file or directory that a write to `path` changes: follows links, also one whose
 * target does not exist; without slashes at the end. Malloc'ed. Errors: SL_ERR_INVALID for links in
 * a circle. */
sl_status sli_path_follow(const char *path, char **out);

/* Whether two paths lead to the same file or directory, which need not exist. Like the other
 * functions here that return no status, it sets no error text. */
bool sli_path_same_file(const char *a, const char *b);

/* Opens the directory that holds `path`; *name, malloc'ed, is the last component of `path` without
 * the slashes after it. Errors begin with `shown`: SL_ERR_NOT_FOUND where there is no such
 * directory, SL_ERR_INVALID for a path without a name, SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_path_open_parent(const char *path, const char *shown, int *directory, char **name);

/* ---- Files ---- */

/* Opens a regular file for reading; *bytes is its size. Errors begin with the path:
 * SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_FORMAT for a directory, device or pipe. */
sl_status sli_file_open(const char *path, int *descriptor, uint64_t *bytes);

/* Reads `bytes` bytes at `offset` of an open file. Errors begin with the path: SL_ERR_IO, also for
 * a file that ends before. */
sl_status sli_file_read_at(const char *path, int descriptor, uint64_t offset, void *to,
                           uint64_t bytes);

/* The last component of a path that does not end with a slash: what stands behind its last one. */
const char *sli_path_name(const char *path);

/* Whether the name of a file or a tensor has this end, and something before it. */
bool sli_name_ends_with(const char *name, const char *end);

/* Reads a whole regular file: *data [*bytes], malloc'ed, with a 0 behind it. Errors: those of the
 * two above, SL_ERR_FORMAT for more than `max_bytes`, SL_ERR_MEMORY. */
sl_status sli_file_read(const char *path, uint64_t max_bytes, char **data, size_t *bytes);

/* Adds `bytes` bytes at `offset` of an open file to a checksum. Errors: as above; SL_ERR_MEMORY. */
sl_status sli_file_checksum(const char *path, int descriptor, uint64_t offset, uint64_t bytes,
                            sli_checksum *sum);

/* A file's bytes in memory. They are read as they are touched; what is written to them stays in
 * this process. A file that somebody cuts short meanwhile ends the process where it is touched.
 * (file_map.c) */
typedef struct sli_file_map sli_file_map;

/* Maps `size` > 0 bytes of an open file; the map outlives the descriptor. NULL: the system cannot,
 * so the file is to be read. Sets no error text. */
sli_file_map *sli_file_map_create(int descriptor, uint64_t size);
char *sli_file_map_bytes(const sli_file_map *map);

/* Reads `bytes` bytes at `offset` before they are touched, as far as the system can: many pages in
 * one call, and with an error where they cannot be read. Any thread may call. Errors: SL_ERR_IO. */
sl_status sli_file_map_load(const sli_file_map *map, const char *path, uint64_t offset,
                            uint64_t bytes);

/* One more holder of the map, which goes when its last holder releases it. Any thread may call. */
sli_file_map *sli_file_map_hold(sli_file_map *map);
void sli_file_map_release(sli_file_map **map);

/* Removes the file at `path` if it is the one that is open as `descriptor`; another one that has
 * taken its name stays. */
void sli_file_remove_open(const char *path, int descriptor);

/* ---- Directories ---- */

/* Calls `visit` for each entry but . and .. while it returns true. Returns true after the last
 * entry; where `visit` returned false, errno is 0. Sets no error text. */
bool sli_directory_walk(int directory, bool (*visit)(void *context, const char *name),
                        void *context);

/* Calls `visit` for each entry but . and .. until it fails. Errors: its own, SL_ERR_IO. */
sl_status sli_directory_visit(int directory, const char *shown,
                              sl_status (*visit)(void *context, const char *name), void *context);

/* Whether the entry is a directory without directories in it; false where that cannot be seen. */
bool sli_directory_is_flat(int directory, const char *name);

/* Removes a file, a link (never its target), or a directory of files. Returns false, with errno,
 * where that fails; some of a directory's files may be removed then. Directories in it stay. */
bool sli_directory_remove(int directory, const char *name);

/* Brings the entries of a directory to disk. Errors: SL_ERR_IO. */
sl_status sli_directory_sync(int directory, const char *shown);

/* ---- Limits ---- */

/* Raises this process's limit on open files (RLIMIT_NOFILE) from the soft to the hard one, which
 * every process may do; children inherit it and can do the same. Returns the limit that holds then:
 * the soft one, unchanged, where the system refuses. */
long sli_raise_descriptor_limit(void);

/* Whether the descriptor is below half of the process's limit. Who keeps files open keeps these
 * alone: as the system gives the lowest free number, half of the limit is left to others. */
bool sli_descriptor_may_stay_open(int descriptor);

#endif
