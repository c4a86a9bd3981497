#define _GNU_SOURCE /* asprintf, O_PATH */

#include "core/file.h"

#include "core/error.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINKS = 40 };

const char *sli_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool sli_name_ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), last = strlen(end);
    return length > last && strcmp(name + length - last, end) == 0;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* ---- Paths ------------------------------------------------------------------------------ */

static sl_status no_memory(const char *path)
{
    return sli_no_memory(path, "a path");
}

sl_status sli_path_join(const char *directory, const char *name, char **out)
{
    size_t length = strlen(directory);
    const char *slash = length > 0 && directory[length - 1] == '/' ? "" : "/";
    if (asprintf(out, "%s%s%s", directory, slash, name) >= 0)
        return SL_OK;
    *out = NULL;
    return no_memory(directory);
}

/* A directory that may be entered but not read can neither be listed nor synced. */
static int open_directory(const char *path)
{
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0 && errno == EACCES)
        directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return directory;
}

sl_status sli_path_open_parent(const char *path, const char *shown, int *directory, char **name)
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
        return sl_error(SL_ERR_INVALID, "%s: a path that names a file or directory was expected",
                        shown);
    char *parent = begin > 0 ? strndup(path, begin) : strdup(".");
    sl_status status = SL_OK;
    *name = strndup(path + begin, end - begin);
    if (!parent || !*name)
        status = no_memory(shown);
    else if ((*directory = open_directory(parent)) < 0)
        status = errno == ENOENT
                     ? sl_error(SL_ERR_NOT_FOUND, "%s: its directory does not exist", shown)
                     : sli_io_error(shown, "its directory cannot be opened");
    free(parent);
    if (status != SL_OK) {
        free(*name);
        *name = NULL;
    }
    return status;
}

/* The target of the link at `path`, seen from where `path` is; NULL where it is no link. Returns
 * false where there is no memory. */
static bool read_link(const char *path, char **out)
{
    char target[PATH_MAX];
    const char *slash = strrchr(path, '/');
    *out = NULL;
    ssize_t length = readlink(path, target, sizeof target);
    if (length < 0)
        return true;
    int parent = slash && target[0] != '/' ? (int)(slash - path) + 1 : 0;
    if (asprintf(out, "%.*s%.*s", parent, path, (int)length, target) >= 0)
        return true;
    *out = NULL;
    return false;
}

sl_status sli_path_follow(const char *path, char **out)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    *out = strndup(path, length);
    for (int links = 0; *out && links < MOST_LINKS; links++) {
        char *next;
        bool read = read_link(*out, &next);
        if (read && !next)
            return SL_OK;
        free(*out);
        *out = next;
    }
    if (!*out)
        return no_memory(path);
    free(*out);
    *out = NULL;
    return sl_error(SL_ERR_INVALID, "%s: its links lead in a circle", path);
}

/* Opens the directory that a file written to `path` is, or will be, in. Leaves the error text as it
 * was. */
static bool open_final_parent(const char *path, int *directory, char **name)
{
    sli_error_copy before;
    char *followed;
    *directory = -1;
    *name = NULL;
    sli_error_save(&before, SL_ERR_IO);
    if (sli_path_follow(path, &followed) == SL_OK) {
        (void)sli_path_open_parent(followed, path, directory, name);
        free(followed);
    }
    sli_error_restore(&before);
    return *directory >= 0;
}

static bool find_final_parent(const char *path, struct stat *parent, char **name)
{
    int directory;
    if (!open_final_parent(path, &directory, name))
        return false;
    bool found = fstat(directory, parent) == 0;
    close(directory);
    return found;
}

bool sli_path_same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    char *name_a, *name_b = NULL;
    if (stat(a, &of_a) == 0 && stat(b, &of_b) == 0)
        return is_same(&of_a, &of_b);
    bool same = find_final_parent(a, &of_a, &name_a) && find_final_parent(b, &of_b, &name_b) &&
                is_same(&of_a, &of_b) && strcmp(name_a, name_b) == 0;
    free(name_a);
    free(name_b);
    return same;
}

/* ---- Files ------------------------------------------------------------------------------ */

sl_status sli_file_open(const char *path, int *descriptor, uint64_t *bytes)
{
    struct stat found;
    *bytes = 0;
    /* Not blocking: a pipe of that name is refused, and must not be waited for. */
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0)
        return sli_io_error(path, "cannot be opened");
    sl_status status;
    if (fstat(*descriptor, &found) != 0) {
        status = sli_io_error(path, "cannot be examined");
    } else if (!S_ISREG(found.st_mode)) {
        status = sl_error(SL_ERR_FORMAT, "%s: is %s, where a regular file was expected", path,
                          S_ISDIR(found.st_mode) ? "a directory" : "a device or pipe");
    } else {
        *bytes = (uint64_t)found.st_size;
        return SL_OK;
    }
    close(*descriptor);
    *descriptor = -1;
    return status;
}

sl_status sli_file_read_at(const char *path, int descriptor, uint64_t offset, void *to,
                           uint64_t bytes)
{
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(descriptor, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sli_io_error(path, "cannot be read");
        if (got == 0)
            return sl_error(SL_ERR_IO, "%s: the file became shorter while it was read", path);
        at += got;
        offset += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return SL_OK;
}

sl_status sli_file_checksum(const char *path, int descriptor, uint64_t offset, uint64_t bytes,
                            sli_checksum *sum)
{
    enum { BLOCK = 1 << 20 };
    char *block = malloc(BLOCK);
    sl_status status = block ? SL_OK : sli_no_memory(path, "a block of it");
    for (uint64_t done = 0; done < bytes && status == SL_OK;) {
        uint64_t count = bytes - done < BLOCK ? bytes - done : BLOCK;
        status = sli_file_read_at(path, descriptor, offset + done, block, count);
        sli_checksum_add(sum, block, status == SL_OK ? count : 0);
        done += count;
    }
    free(block);
    return status;
}

sl_status sli_file_read(const char *path, uint64_t max_bytes, char **data, size_t *bytes)
{
    int descriptor;
    uint64_t size;
    *data = NULL;
    *bytes = 0;
    SL_TRY(sli_file_open(path, &descriptor, &size));
    sl_status status;
    if (size > max_bytes)
        SL_TRY_OR_FAIL(sl_error(SL_ERR_FORMAT,
                                "%s: it has %" PRIu64 " bytes, more than the %" PRIu64 " allowed",
                                path, size, max_bytes));
    *data = malloc(size + 1);
    SL_TRY_OR_FAIL(*data ? sli_file_read_at(path, descriptor, 0, *data, size)
                         : sli_no_memory(path, "its %" PRIu64 " bytes", size));
    close(descriptor);
    (*data)[size] = '\0';
    *bytes = size;
    return SL_OK;
fail:
    close(descriptor);
    free(*data);
    *data = NULL;
    return status;
}

void sli_file_remove_open(const char *path, int descriptor)
{
    char *name;
    int directory;
    struct stat open_file, found;
    if (!open_final_parent(path, &directory, &name))
        return;
    if (fstat(descriptor, &open_file) == 0 &&
        fstatat(directory, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && is_same(&open_file, &found))
        (void)unlinkat(directory, name, 0);
    close(directory);
    free(name);
}

/* ---- Directories ------------------------------------------------------------------------ */

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
    visiting *visit_all = context;
    visit_all->status = visit_all->visit(visit_all->context, name);
    return visit_all->status == SL_OK;
}

sl_status sli_directory_visit(int directory, const char *shown,
                              sl_status (*visit)(void *context, const char *name), void *context)
{
    visiting visit_all = {visit, context, SL_OK};
    if (sli_directory_walk(directory, visit_entry, &visit_all) || visit_all.status != SL_OK)
        return visit_all.status;
    return sli_io_error(shown, "the directory cannot be read");
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

sl_status sli_directory_sync(int directory, const char *shown)
{
    /* Some file systems cannot sync a directory (EINVAL); one opened as a path has nothing read. */
    if (fsync(directory) == 0 || errno == EINVAL || errno == EBADF)
        return SL_OK;
    return sli_io_error(shown, "its directory cannot be brought to disk");
}

/* ---- Limits ----------------------------------------------------------------------------- */

long sli_raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 0;
    struct rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (limit.rlim_cur != limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0)
        limit = raised;
    return limit.rlim_cur > LONG_MAX ? LONG_MAX : (long)limit.rlim_cur;
}

bool sli_descriptor_may_stay_open(int descriptor)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)descriptor < limit.rlim_cur / 2;
}
