#define _GNU_SOURCE /* renameat2 */

#include "core/replace_directory.h"

#include "core/file_names.h"

#include <assert.h>
#include <dirent.h>
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
    char *temporary; /* NULL while there is none */
    bool joined;     /* another one commits or removes it */
};

static sl_status failed(const char *path, const char *doing)
{
    return sl_error(SL_ERR_IO, "%s: %s failed: %s", path, doing, strerror(errno));
}

/* *out has no temporary directory yet. */
static sl_status create_record(const char *path, sli_replace_directory **out)
{
    *out = calloc(1, sizeof **out);
    if (*out && ((*out)->path = strdup(path)))
        return SL_OK;
    sli_replace_directory_destroy(out);
    return sl_error(SL_ERR_MEMORY, "%s: no memory for a directory's record", path);
}

/* Takes `name` for the temporary directory's. `shared`: it may be there already. */
static sl_status make(sli_replace_directory **directory, char *name, bool shared)
{
    const char *path = (*directory)->path;
    sl_status status = SL_OK;
    if (mkdir(name, 0777) != 0 && !(shared && errno == EEXIST))
        status = errno == ENOENT
                     ? sl_error(SL_ERR_NOT_FOUND,
                                "%s: cannot be created: what should hold it does not exist", path)
                     : failed(path, "creating it");
    if (status == SL_OK) {
        (*directory)->temporary = name;
        return SL_OK;
    }
    free(name);
    sli_replace_directory_destroy(directory);
    return status;
}

sl_status sli_replace_directory_create(const char *path, sli_replace_directory **out)
{
    char *name;
    SL_TRY(create_record(path, out));
    sl_status status = sli_temporary_name(path, path, &name);
    if (status == SL_OK)
        return make(out, name, false);
    sli_replace_directory_destroy(out);
    return status;
}

sl_status sli_replace_directory_create_numbered(const char *path, uint64_t number,
                                                sli_replace_directory **out)
{
    char *name;
    SL_TRY(create_record(path, out));
    sl_status status = sli_numbered_name(path, path, number, &name);
    if (status == SL_OK)
        return make(out, name, true);
    sli_replace_directory_destroy(out);
    return status;
}

sl_status sli_replace_directory_join(const char *path, uint64_t number, sli_replace_directory **out)
{
    SL_TRY(sli_replace_directory_create_numbered(path, number, out));
    (*out)->joined = true;
    return SL_OK;
}

const char *sli_replace_directory_temporary(const sli_replace_directory *directory)
{
    return directory->temporary;
}

/* Removes a directory's files and itself, as far as possible. */
static void empty_and_remove(const char *path)
{
    DIR *open = opendir(path);
    for (struct dirent *entry; open && (entry = readdir(open));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(open), entry->d_name, 0);
    if (open)
        closedir(open);
    rmdir(path);
}

/* Gives the temporary directory its name. One that has the name already changes places with it. */
static bool take_name(const sli_replace_directory *directory, bool *replaced)
{
    const char *from = directory->temporary, *to = directory->path;
    *replaced = false;
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return true;
    if (errno == EEXIST) {
        *replaced = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0;
        return *replaced;
    }
    /* File systems without these flags can replace an empty directory alone. */
    return (errno == EINVAL || errno == ENOSYS) && rename(from, to) == 0;
}

sl_status sli_replace_directory_commit(sli_replace_directory *directory)
{
    bool replaced;
    assert(!directory->joined);
    SL_TRY(sli_sync_directory(directory->temporary, directory->path));
    if (!take_name(directory, &replaced))
        return failed(directory->path, "giving it its name");
    sl_status status = sli_sync_name(directory->path, directory->path);
    if (replaced)
        empty_and_remove(directory->temporary); /* the old one */
    free(directory->temporary);
    directory->temporary = NULL;
    return status;
}

void sli_replace_directory_destroy(sli_replace_directory **directory)
{
    if (!directory || !*directory)
        return;
    if ((*directory)->temporary && !(*directory)->joined)
        empty_and_remove((*directory)->temporary);
    free((*directory)->temporary);
    free((*directory)->path);
    free(*directory);
    *directory = NULL;
}

sl_status sli_remove_directory(const char *path)
{
    char *name;
    SL_TRY(sli_temporary_name(path, path, &name));
    sl_status status = rename(path, name) == 0 ? SL_OK : failed(path, "removing it");
    if (status == SL_OK)
        empty_and_remove(name);
    free(name);
    return status;
}
