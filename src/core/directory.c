#define _GNU_SOURCE /* asprintf, O_PATH */

#include "core/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINKS = 40 };

static sl_status failed(const char *shown, const char *doing)
{
    return sl_error(SL_ERR_IO, "%s: %s failed: %s", shown, doing, strerror(errno));
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* ---- Paths ------------------------------------------------------------------------------ */

/* A directory that may be entered but not read can neither be listed nor synced. */
static int open_directory(const char *path)
{
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0 && errno == EACCES)
        directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return directory;
}

/* sli_directory_open_parent without an error text; errno says what SL_ERR_IO was. */
static sl_status open_parent(const char *path, int *directory, char **name)
{
    size_t end = strlen(path);
    *directory = -1;
    *name = NULL;
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (begin == end)
        return SL_ERR_INVALID;
    char *holder = begin > 0 ? strndup(path, begin) : strdup(".");
    *name = strndup(path + begin, end - begin);
    sl_status status = holder && *name ? SL_OK : SL_ERR_MEMORY;
    if (status == SL_OK && (*directory = open_directory(holder)) < 0)
        status = errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO;
    int reason = errno;
    free(holder);
    if (status != SL_OK) {
        free(*name);
        *name = NULL;
    }
    errno = reason;
    return status;
}

sl_status sli_directory_open_parent(const char *path, const char *shown, int *directory,
                                    char **name)
{
    sl_status status = open_parent(path, directory, name);
    if (status == SL_ERR_INVALID)
        return sl_error(status, "%s: a path that names a file or directory was expected", shown);
    if (status == SL_ERR_MEMORY)
        return sl_error(status, "%s: no memory for its path", shown);
    if (status == SL_ERR_NOT_FOUND)
        return sl_error(status, "%s: its directory does not exist", shown);
    return status == SL_OK ? SL_OK : failed(shown, "opening its directory");
}

/* The target of the link at `path`, seen from where `path` is; NULL where it is no link. */
static bool read_link(const char *path, char **out)
{
    char target[PATH_MAX];
    const char *slash = strrchr(path, '/');
    *out = NULL;
    ssize_t length = readlink(path, target, sizeof target);
    if (length < 0)
        return true;
    int holder = slash && target[0] != '/' ? (int)(slash - path) + 1 : 0;
    if (asprintf(out, "%.*s%.*s", holder, path, (int)length, target) >= 0)
        return true;
    *out = NULL;
    return false;
}

/* sli_directory_follow without an error text. */
static sl_status follow(const char *path, char **out)
{
    *out = strdup(path);
    for (int links = 0; *out && links < MOST_LINKS; links++) {
        char *next;
        bool read = read_link(*out, &next);
        if (read && !next)
            return SL_OK;
        free(*out);
        *out = next;
    }
    if (!*out)
        return SL_ERR_MEMORY;
    free(*out);
    *out = NULL;
    return SL_ERR_INVALID;
}

sl_status sli_directory_follow(const char *path, char **out)
{
    sl_status status = follow(path, out);
    if (status == SL_ERR_MEMORY)
        return sl_error(status, "%s: no memory for its path", path);
    return status == SL_OK ? SL_OK : sl_error(status, "%s: its links lead in a circle", path);
}

/* The directory that a file at `path` is, or will be, in. */
static bool find_holder(const char *path, struct stat *holder, char **name)
{
    char *followed;
    int directory;
    *name = NULL;
    if (follow(path, &followed) != SL_OK)
        return false;
    bool found = open_parent(followed, &directory, name) == SL_OK;
    if (found) {
        found = fstat(directory, holder) == 0;
        close(directory);
    }
    free(followed);
    return found;
}

bool sli_directory_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    char *name_a, *name_b = NULL;
    if (stat(a, &of_a) == 0 && stat(b, &of_b) == 0)
        return is_same(&of_a, &of_b);
    bool same = find_holder(a, &of_a, &name_a) && find_holder(b, &of_b, &name_b) &&
                is_same(&of_a, &of_b) && strcmp(name_a, name_b) == 0;
    free(name_a);
    free(name_b);
    return same;
}

/* ---- Entries ---------------------------------------------------------------------------- */

bool sli_directory_walk(int directory, bool (*visit)(void *context, const char *name),
                        void *context)
{
    int own = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = own >= 0 ? fdopendir(own) : NULL;
    if (!entries) {
        int reason = errno;
        if (own >= 0)
            close(own);
        errno = reason;
        return false;
    }
    bool goes_on = true;
    struct dirent *entry;
    while (goes_on && (errno = 0, entry = readdir(entries)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            goes_on = visit(context, entry->d_name);
    int reason = errno;
    closedir(entries);
    errno = reason;
    return goes_on && reason == 0;
}

typedef struct visiting {
    sl_status (*visit)(void *context, const char *name);
    void *context;
    sl_status status;
} visiting;

static bool visit_entry(void *context, const char *name)
{
    visiting *in = context;
    in->status = in->visit(in->context, name);
    return in->status == SL_OK;
}

sl_status sli_directory_visit(int directory, const char *shown,
                              sl_status (*visit)(void *context, const char *name), void *context)
{
    visiting in = {visit, context, SL_OK};
    if (sli_directory_walk(directory, visit_entry, &in) || in.status != SL_OK)
        return in.status;
    return failed(shown, "reading the directory");
}

static int open_entry(int directory, const char *name)
{
    return openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_no_directory(void *context, const char *name)
{
    struct stat found;
    return fstatat(*(const int *)context, name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
           !S_ISDIR(found.st_mode);
}

bool sli_directory_is_flat(int directory, const char *name)
{
    int inside = open_entry(directory, name);
    if (inside < 0)
        return false;
    bool flat = sli_directory_walk(inside, is_no_directory, &inside);
    close(inside);
    return flat;
}

static bool remove_file(void *context, const char *name)
{
    (void)unlinkat(*(const int *)context, name, 0);
    return true;
}

bool sli_directory_remove(int directory, const char *name)
{
    if (unlinkat(directory, name, 0) == 0)
        return true;
    int inside = errno == EISDIR ? open_entry(directory, name) : -1;
    if (inside < 0)
        return false;
    (void)sli_directory_walk(inside, remove_file, &inside);
    close(inside);
    return unlinkat(directory, name, AT_REMOVEDIR) == 0;
}

sl_status sli_directory_remove_path(const char *path)
{
    char *name;
    int directory;
    SL_TRY(sli_directory_open_parent(path, path, &directory, &name));
    sl_status status = sli_directory_remove(directory, name) ? SL_OK
                       : errno == ENOENT ? sl_error(SL_ERR_NOT_FOUND, "%s: it does not exist", path)
                                         : failed(path, "removing it");
    close(directory);
    free(name);
    return status;
}

void sli_directory_remove_open(const char *path, int descriptor)
{
    char *followed, *name;
    int directory;
    struct stat open_file, found;
    if (follow(path, &followed) != SL_OK)
        return;
    if (open_parent(followed, &directory, &name) == SL_OK) {
        if (fstat(descriptor, &open_file) == 0 &&
            fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
            is_same(&open_file, &found))
            (void)unlinkat(directory, name, 0);
        close(directory);
        free(name);
    }
    free(followed);
}

sl_status sli_directory_sync(int directory, const char *shown)
{
    /* Some file systems cannot sync a directory (EINVAL); one opened as a path has nothing read. */
    if (fsync(directory) == 0 || errno == EINVAL || errno == EBADF)
        return SL_OK;
    return failed(shown, "syncing its directory after writing it");
}
