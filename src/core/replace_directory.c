#define _GNU_SOURCE /* renameat2, asprintf */

#include "core/replace.h"

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sli_replace_directory {
    char *path;
    int parent;                          /* the directory that holds it */
    char *name;                          /* in there */
    char temporary[SLI_TEMPORARY_BYTES]; /* its name until then */
    char *temporary_path;
    int descriptor; /* of the temporary directory, with its lock; -1: there is none */
    bool joined;    /* another one commits or removes it */
    mode_t mode;    /* of the directory that it replaces; 0: none */
};

/* The path of `other` beside `path`, whose last name is `name`. */
static sl_status path_beside(const char *path, const char *name, const char *other, char **out)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    if (asprintf(out, "%.*s%s", (int)(end - strlen(name)), path, other) >= 0)
        return SL_OK;
    *out = NULL;
    return sli_no_memory(path, "a path beside it");
}

/* ---- The second name -------------------------------------------------------------------- */

enum {
    DIGITS = 16, /* of the number in a temporary name */
    MOST_BYTES = SLI_TEMPORARY_BYTES - (int)sizeof "..0123456789abcdef.old", /* of NAME there */
    KEPT_BYTES = 200
};

typedef struct second_name {
    char name[SLI_TEMPORARY_BYTES];  /* the directory's own, as a second name has it */
    char found[SLI_TEMPORARY_BYTES]; /* empty: there is none */
} second_name;

/* A name that is too long for a second name becomes its first bytes and a checksum of all. */
static void shorten_name(const char *name, char *out)
{
    char checksum[SLI_CHECKSUM_BYTES];
    size_t length = strlen(name);
    if (length <= MOST_BYTES)
        snprintf(out, SLI_TEMPORARY_BYTES, "%s", name);
    else
        snprintf(out, SLI_TEMPORARY_BYTES, "%.*s%.*s", KEPT_BYTES, name, DIGITS,
                 sli_checksum_of(name, length, checksum));
}

static bool keep_second_name(void *context, const char *entry)
{
    second_name *wanted = context;
    char of[SLI_TEMPORARY_BYTES];
    if (sli_second_name_parse(entry, of) && strcmp(of, wanted->name) == 0)
        snprintf(wanted->found, sizeof wanted->found, "%s", entry);
    return wanted->found[0] == '\0';
}

static void find_second_name(int parent, const char *name, second_name *out)
{
    *out = (second_name){.found = ""};
    shorten_name(name, out->name);
    (void)sli_directory_walk(parent, keep_second_name, out);
}

static bool exists(int parent, const char *name)
{
    struct stat found;
    return fstatat(parent, name, &found, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* What a writer that was killed has left aside gets its name back, or goes where there is a newer
 * one. */
static void restore_name(int parent, const char *name)
{
    second_name second;
    for (find_second_name(parent, name, &second); second.found[0];
         find_second_name(parent, name, &second))
        if (exists(parent, name) ? !sli_directory_remove(parent, second.found)
                                 : renameat(parent, second.found, parent, name) != 0)
            return;
}

sl_status sli_replace_directory_find(const char *path, char **out)
{
    int parent;
    char *name;
    second_name second;
    *out = NULL;
    sl_status status = sli_path_open_parent(path, path, &parent, &name);
    if (status == SL_ERR_MEMORY)
        return status;
    second.found[0] = '\0';
    if (status == SL_OK && !exists(parent, name))
        find_second_name(parent, name, &second);
    if (second.found[0])
        status = path_beside(path, name, second.found, out);
    else /* what is wrong with it is said where it is opened */
        status = (*out = strdup(path)) ? SL_OK : sli_no_memory(path, "a path");
    if (parent >= 0)
        close(parent);
    free(name);
    return status;
}

/* ---- Creation --------------------------------------------------------------------------- */

/* *out has no temporary directory yet. */
static sl_status create_record(const char *path, sli_replace_directory **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sli_no_memory(path, "a directory's record");
    (*out)->parent = (*out)->descriptor = -1;
    (*out)->path = strdup(path);
    if (!(*out)->path)
        return sli_no_memory(path, "a directory's record");
    return sli_path_open_parent(path, path, &(*out)->parent, &(*out)->name);
}

/* The temporary name by `number`, and its path beside the directory. */
static sl_status name_temporary(sli_replace_directory *directory, uint64_t number)
{
    sli_temporary_name(directory->name, number, directory->temporary);
    return path_beside(directory->path, directory->name, directory->temporary,
                       &directory->temporary_path);
}

/* Another writer may have made it already. Where it replaces a directory nobody else may look into
 * it until it has the mode of that one. */
static sl_status make_temporary(sli_replace_directory *directory)
{
    struct stat older;
    bool replaces = fstatat(directory->parent, directory->name, &older, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISDIR(older.st_mode);
    mode_t mode = replaces ? S_IRWXU : 0777;
    directory->mode = replaces ? (older.st_mode & 07777) | S_IRWXU : 0;
    while (directory->descriptor < 0) {
        bool made_it = mkdirat(directory->parent, directory->temporary, mode) == 0;
        if (!made_it && errno != EEXIST)
            return sli_io_error(directory->path, "cannot be created");
        int made = openat(directory->parent, directory->temporary,
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (made < 0 && errno != ENOENT)
            return sli_io_error(directory->path, "cannot be opened under a temporary name");
        if (made >= 0 && sli_temporary_hold(directory->parent, directory->temporary, made))
            directory->descriptor = made;
        else if (made >= 0)
            close(made);
    }
    return SL_OK;
}

static sl_status create_numbered(const char *path, uint64_t number, bool joins,
                                 sli_replace_directory **out)
{
    sl_status status;
    SL_TRY_OR_FAIL(create_record(path, out));
    SL_TRY_OR_FAIL(name_temporary(*out, number));
    if (!joins)
        restore_name((*out)->parent, (*out)->name);
    SL_TRY_OR_FAIL(make_temporary(*out));
    (*out)->joined = joins;
    if (!joins) /* its own is locked, also where others came first */
        sli_temporary_sweep_name((*out)->parent, (*out)->name);
    return SL_OK;

fail:
    sli_replace_directory_destroy(out);
    return status;
}

sl_status sli_replace_directory_create(const char *path, sli_replace_directory **out)
{
    uint64_t number;
    *out = NULL;
    SL_TRY(sli_draw_number(path, &number));
    return create_numbered(path, number, false, out);
}

sl_status sli_replace_directory_create_numbered(const char *path, uint64_t number,
                                                sli_replace_directory **out)
{
    return create_numbered(path, number, false, out);
}

sl_status sli_replace_directory_join(const char *path, uint64_t number, sli_replace_directory **out)
{
    return create_numbered(path, number, true, out);
}

const char *sli_replace_directory_temporary(const sli_replace_directory *directory)
{
    return directory->temporary_path;
}

/* ---- Its end ---------------------------------------------------------------------------- */

static void close_descriptor(sli_replace_directory *directory)
{
    if (directory->descriptor >= 0)
        close(directory->descriptor);
    directory->descriptor = -1;
}

typedef struct replacement {
    int older, newer; /* directories */
} replacement;

/* As far as the file system has modes. */
static bool keep_mode(void *context, const char *name)
{
    const replacement *pair = context;
    struct stat older;
    if (fstatat(pair->older, name, &older, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(older.st_mode))
        (void)fchmodat(pair->newer, name, older.st_mode & 0777, 0);
    return true;
}

/* The directory gets the mode of the one that it replaces, and each file that of the older file of
 * its name. */
static void keep_modes(const sli_replace_directory *directory)
{
    replacement pair = {.newer = directory->descriptor};
    pair.older =
        openat(directory->parent, directory->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (pair.older >= 0) {
        (void)sli_directory_walk(pair.newer, keep_mode, &pair);
        close(pair.older);
    }
    if (directory->mode != 0)
        (void)fchmod(pair.newer, directory->mode);
}

/* Without exchanging names: what has the name gets its second one, and is given back its name where
 * the directory cannot take it. *old: what has replaced it, under that name. */
static bool take_name_in_steps(const sli_replace_directory *directory, bool is_new, char *old)
{
    int at = directory->parent;
    const char *from = directory->temporary, *to = directory->name;
    char shortened[SLI_TEMPORARY_BYTES];
    if (renameat(at, from, at, to) == 0) /* a free name, or that of an empty directory */
        return true;
    if (is_new || (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR))
        return false;
    shorten_name(to, shortened);
    snprintf(old, SLI_TEMPORARY_BYTES, ".%.*s.%.*s.old", MOST_BYTES, shortened, DIGITS,
             strrchr(from, '.') - DIGITS);
    if (renameat(at, to, at, old) != 0)
        return false;
    if (renameat(at, from, at, to) == 0)
        return true;
    int reason = errno;
    (void)renameat(at, old, at, to);
    errno = reason;
    return false;
}

/* Gives the temporary directory its name. `old` [SLI_TEMPORARY_BYTES] is the name of what had it
 * before, or empty. */
static bool take_name(const sli_replace_directory *directory, bool is_new, char *old)
{
    int at = directory->parent;
    const char *from = directory->temporary, *to = directory->name;
    *old = '\0';
    if (renameat2(at, from, at, to, RENAME_NOREPLACE) == 0)
        return true;
    if (errno == EEXIST && !is_new && renameat2(at, from, at, to, RENAME_EXCHANGE) == 0) {
        snprintf(old, SLI_TEMPORARY_BYTES, "%s", from);
        return true;
    }
    return (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) &&
           take_name_in_steps(directory, is_new, old);
}

sl_status sli_replace_directory_commit(sli_replace_directory *directory, bool is_new)
{
    char old[SLI_TEMPORARY_BYTES];
    assert(!directory->joined);
    keep_modes(directory);
    SL_TRY(sli_directory_sync(directory->descriptor, directory->path));
    if (!take_name(directory, is_new, old))
        return sli_io_error(directory->path, "cannot be given its name");
    close_descriptor(directory);
    sl_status status = sli_directory_sync(directory->parent, directory->path);
    if (*old)
        (void)sli_directory_remove(directory->parent, old);
    return status;
}

void sli_replace_directory_destroy(sli_replace_directory **directory)
{
    if (!directory || !*directory)
        return;
    if ((*directory)->descriptor >= 0 && !(*directory)->joined)
        (void)sli_directory_remove((*directory)->parent, (*directory)->temporary);
    close_descriptor(*directory);
    if ((*directory)->parent >= 0)
        close((*directory)->parent);
    free((*directory)->temporary_path);
    free((*directory)->name);
    free((*directory)->path);
    free(*directory);
    *directory = NULL;
}

/* ---- Removal ---------------------------------------------------------------------------- */

static sl_status remove_in(int parent, const char *name, const char *path)
{
    struct stat found;
    char temporary[SLI_TEMPORARY_BYTES];
    uint64_t number;
    if (fstatat(parent, name, &found, AT_SYMLINK_NOFOLLOW) != 0)
        return sli_io_error(path, "cannot be removed");
    if (S_ISLNK(found.st_mode))
        return unlinkat(parent, name, 0) == 0 ? SL_OK
                                              : sli_io_error(path, "the link cannot be removed");
    if (!S_ISDIR(found.st_mode) || !sli_directory_is_flat(parent, name))
        return sl_error(SL_ERR_INVALID, "%s: it is no directory of files, and stays", path);
    if (faccessat(parent, name, W_OK | X_OK, AT_EACCESS) != 0)
        return sli_io_error(path, "cannot be removed"); /* or it would be half of it */
    SL_TRY(sli_draw_number(path, &number));
    sli_temporary_name(name, number, temporary);
    if (renameat(parent, name, parent, temporary) != 0)
        return sli_io_error(path, "cannot be removed");
    (void)sli_directory_remove(parent, temporary);
    return SL_OK;
}

sl_status sli_remove_directory(const char *path)
{
    int parent;
    char *name;
    SL_TRY(sli_path_open_parent(path, path, &parent, &name));
    sl_status status = remove_in(parent, name, path);
    close(parent);
    free(name);
    return status;
}
