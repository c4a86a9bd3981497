#define _GNU_SOURCE /* renameat2, asprintf */

#include "core/replace.h"

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
};

/* ---- Creation --------------------------------------------------------------------------- */

/* *out has no temporary directory yet. */
static sl_status create_record(const char *path, sli_replace_directory **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a directory's record", path);
    (*out)->parent = (*out)->descriptor = -1;
    (*out)->path = strdup(path);
    if (!(*out)->path)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a directory's record", path);
    return sli_path_open_parent(path, path, &(*out)->parent, &(*out)->name);
}

/* The temporary name by `number`, and its path beside the directory. */
static sl_status name_temporary(sli_replace_directory *directory, uint64_t number)
{
    const char *path = directory->path;
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    sli_temporary_name(directory->name, number, directory->temporary);
    if (asprintf(&directory->temporary_path, "%.*s%s", (int)(end - strlen(directory->name)), path,
                 directory->temporary) >= 0)
        return SL_OK;
    directory->temporary_path = NULL;
    return sl_error(SL_ERR_MEMORY, "%s: no memory for a temporary name", path);
}

/* Another of its writers may have made it. */
static sl_status make_temporary(sli_replace_directory *directory)
{
    while (directory->descriptor < 0) {
        if (mkdirat(directory->parent, directory->temporary, 0777) != 0 && errno != EEXIST)
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
    sl_status status = create_record(path, out);
    if (status == SL_OK)
        status = name_temporary(*out, number);
    if (status == SL_OK)
        status = make_temporary(*out);
    if (status != SL_OK) {
        sli_replace_directory_destroy(out);
        return status;
    }
    (*out)->joined = joins;
    if (!joins) /* its own is locked, also where others came first */
        sli_temporary_sweep_name((*out)->parent, (*out)->name);
    return SL_OK;
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

/* Gives the temporary directory its name. What has the name already gets the temporary name. */
static bool take_name(const sli_replace_directory *directory, bool *replaced)
{
    int at = directory->parent;
    const char *from = directory->temporary, *to = directory->name;
    *replaced = false;
    if (renameat2(at, from, at, to, RENAME_NOREPLACE) == 0)
        return true;
    if (errno == EEXIST) {
        *replaced = renameat2(at, from, at, to, RENAME_EXCHANGE) == 0;
        return *replaced;
    }
    /* File systems without these flags can replace an empty directory alone. */
    return (errno == EINVAL || errno == ENOSYS) && renameat(at, from, at, to) == 0;
}

sl_status sli_replace_directory_commit(sli_replace_directory *directory)
{
    bool replaced;
    assert(!directory->joined);
    SL_TRY(sli_directory_sync(directory->descriptor, directory->path));
    if (!take_name(directory, &replaced))
        return sli_io_error(directory->path, "cannot be given its name");
    close_descriptor(directory);
    sl_status status = sli_directory_sync(directory->parent, directory->path);
    if (replaced)
        (void)sli_directory_remove(directory->parent, directory->temporary); /* the old one */
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
