/* Writing files and directories atomically: they are written under a temporary name beside the
 * final one, brought to disk and renamed. A reader of the name sees the old content or the new one,
 * always complete.
 *
 *     DIR/NAME   is written as   DIR/.NAME.0123456789abcdef.tmp
 *
 * The writer holds a shared lock on the temporary file or directory (flock). One without a lock is
 * a leftover of a writer that died, and the next writer of NAME removes it. On file systems without
 * locks leftovers stay. */
#ifndef SLI_CORE_REPLACE_H
#define SLI_CORE_REPLACE_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { SLI_TEMPORARY_BYTES = 256 }; /* of a temporary or second name, with its end */

/* ---- Files: error sentences begin with the path ---- */

/* Writes a whole file. Errors: those of sli_replace_file_create and what follows it. */
sl_status sli_file_write(const char *path, const void *data, size_t bytes);

typedef struct sli_replace_file sli_replace_file;

/* Starts the file, and removes leftovers of its writers that died. A symbolic link at `path` is
 * followed: its target is replaced, or created if it does not exist. What it replaces keeps its
 * mode. Errors: SL_ERR_NOT_FOUND (no
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

/* Work that takes hours goes on after its process has died: the file's temporary name is recorded
 * somewhere; another process opens the file under it again, and cuts it to `bytes`. Leaving frees
 * the record and lets the file stay as that of a process that died. Errors: SL_ERR_NOT_FOUND where
 * it is gone; those of sli_replace_file_create. */
const char *sli_replace_file_temporary(const sli_replace_file *file);
sl_status sli_replace_file_reopen(const char *path, const char *temporary, uint64_t bytes,
                                  sli_replace_file **out);
void sli_replace_file_leave(sli_replace_file **file);

/* ---- Directories of files ----
 *
 * Slashes at the end of a path do not count. A link that is replaced or removed goes, and its
 * target stays.
 *
 * Where a file system can exchange two names (renameat2), a reader sees the old directory or the
 * new one at every moment. Others (NFS, Lustre, BeeGFS and most of FUSE) can only rename:
 *
 *     NAME -> .NAME.0123456789abcdef.old      the old one steps aside,
 *     .NAME.0123456789abcdef.tmp -> NAME      the new one takes its name,
 *     and the old one is removed.
 *
 * A kill between the two renames leaves the old one under its second name.
 * sli_replace_directory_find finds it there, and the next writer of NAME gives it its name back. */

typedef struct sli_replace_directory sli_replace_directory;

/* Makes the temporary directory, and removes leftovers of writers of `path` that died. A directory
 * that is replaced keeps its mode; a new file gets that of the older file of its name. Errors begin
 * with `path`: SL_ERR_NOT_FOUND (no parent directory), SL_ERR_INVALID (a path without a name),
 * SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_replace_directory_create(const char *path, sli_replace_directory **out);

/* The same with a temporary name made from `number`, so that several processes can write files
 * there. One process creates the directory, and commits or removes it after the others have ended.
 * The others join it, before or after it is created; they neither commit nor remove it. */
sl_status sli_replace_directory_create_numbered(const char *path, uint64_t number,
                                                sli_replace_directory **out);
sl_status sli_replace_directory_join(const char *path, uint64_t number,
                                     sli_replace_directory **out);

/* The path to write its files to until it is committed. */
const char *sli_replace_directory_temporary(const sli_replace_directory *directory);

/* Brings the directory to disk, whose files must be there already, and renames it; an older
 * directory is removed after that. With `is_new` there must be none: what has appeared under the
 * name stays (but for an empty directory where the file system lacks renameat2's flags), and is an
 * error. Errors: SL_ERR_IO; an older directory is then unchanged, unless the error says that only
 * the parent directory could not be brought to disk. */
sl_status sli_replace_directory_commit(sli_replace_directory *directory, bool is_new);

/* The path under which the directory can be read: `path`, or where that does not exist, the path of
 * its second name; malloc'ed. Errors: those of a path that cannot be resolved, SL_ERR_MEMORY. */
sl_status sli_replace_directory_find(const char *path, char **out);

/* Whether `entry` is a second name, and of what: `of` [SLI_TEMPORARY_BYTES], the name, or where it
 * is too long for that its first 200 bytes and a checksum. */
bool sli_second_name_parse(const char *entry, char *of);

/* Frees the record, and removes the directory if it was not committed; NULL is allowed. */
void sli_replace_directory_destroy(sli_replace_directory **directory);

/* Removes the directory `path` and its files, or the link of that name. It takes a temporary name
 * first, so that no reader sees it half removed. Errors: SL_ERR_INVALID for a file, and for a
 * directory that holds others: both stay as they are. SL_ERR_NOT_FOUND, SL_ERR_IO. */
sl_status sli_remove_directory(const char *path);

/* ---- Temporary names ---- */

/* A random number for a temporary name. Errors, which begin with `shown`: SL_ERR_IO. */
sl_status sli_draw_number(const char *shown, uint64_t *out);

/* The temporary name of `name`, of which 200 bytes are kept, into out [SLI_TEMPORARY_BYTES]. */
void sli_temporary_name(const char *name, uint64_t number, char *out);

/* Whether it is a temporary name, and of what: `of` [SLI_TEMPORARY_BYTES]. */
bool sli_temporary_parse(const char *name, char *of);

/* Locks the file or directory `name` that was created as `descriptor`. Returns false where a sweep
 * has removed it before the lock: the caller creates it again. */
bool sli_temporary_hold(int directory, const char *name, int descriptor);

/* Removes the leftovers in `directory` of the names that `is_ours` accepts, as far as possible. */
void sli_temporary_sweep(int directory, bool (*is_ours)(const void *context, const char *owner),
                         const void *context);

/* The same of `name` alone. */
void sli_temporary_sweep_name(int directory, const char *name);

#endif
