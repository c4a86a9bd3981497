#define _GNU_SOURCE /* asprintf */

#include "train/save_directory.h"

#include "core/replace_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "step-", best_name[] = "best";

struct sli_save_directory {
    int descriptor; /* its lock is the run's */
};

/* ---- Names ------------------------------------------------------------------------------ */

static sl_status join(const char *path, const char *name, char **out)
{
    if (asprintf(out, "%s/%s", path, name) >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "%s: no memory for a path", path);
}

sl_status sli_save_directory_step(const char *path, int64_t step, char **out)
{
    char name[32];
    snprintf(name, sizeof name, "%s%08" PRId64, prefix, step);
    return join(path, name, out);
}

sl_status sli_save_directory_best(const char *path, char **out)
{
    return join(path, best_name, out);
}

/* The step of "step-00000040", or -1 for any other name. */
static int64_t step_of(const char *name)
{
    size_t length = sizeof prefix - 1;
    if (strncmp(name, prefix, length) != 0 || strspn(name + length, "0123456789") < 8 ||
        name[length + strspn(name + length, "0123456789")] != '\0')
        return -1;
    errno = 0;
    long long step = strtoll(name + length, NULL, 10);
    return errno == 0 ? step : -1;
}

/* What a save or a removal that was interrupted has left: ".step-00000040.….tmp". */
static bool is_leftover(const char *name)
{
    size_t length = strlen(name);
    bool ours = strncmp(name, ".step-", 6) == 0 || strncmp(name, ".best.", 6) == 0;
    return ours && length > 4 && strcmp(name + length - 4, ".tmp") == 0;
}

/* ---- The directory ---------------------------------------------------------------------- */

static sl_status failed(const char *path, const char *doing)
{
    return sl_error(SL_ERR_IO, "%s: %s failed: %s", path, doing, strerror(errno));
}

static sl_status take_lock(const char *path, int descriptor)
{
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno == EOPNOTSUPP || errno == ENOLCK ||
        errno == ENOSYS)
        return SL_OK; /* file systems without locks have no keeper */
    if (errno == EWOULDBLOCK)
        return sl_error(SL_ERR_INVALID, "%s: another run saves its checkpoints there", path);
    return failed(path, "locking it");
}

static sl_status remove_leftovers(const char *path)
{
    DIR *open = opendir(path);
    if (!open)
        return failed(path, "reading it");
    sl_status status = SL_OK;
    for (struct dirent *entry; status == SL_OK && (entry = readdir(open));) {
        char *name;
        if (!is_leftover(entry->d_name))
            continue;
        status = join(path, entry->d_name, &name);
        if (status == SL_OK)
            status = sli_remove_directory(name);
        free(name);
    }
    closedir(open);
    return status;
}

/* Whether checkpoints can be written is found out before the work. */
static sl_status try_writing(const char *path)
{
    char *name;
    sli_replace_directory *trial;
    SL_TRY(sli_save_directory_step(path, 0, &name));
    sl_status status = sli_replace_directory_create(name, &trial);
    sli_replace_directory_destroy(&trial);
    free(name);
    return status;
}

sl_status sli_save_directory_create(const char *path, sli_save_directory **out)
{
    *out = NULL;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return failed(path, "making the directory for checkpoints");
    sli_save_directory *directory = calloc(1, sizeof *directory);
    if (!directory)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for a directory's record", path);
    directory->descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sl_status status = directory->descriptor >= 0 ? SL_OK : failed(path, "opening the directory");
    if (status == SL_OK)
        status = take_lock(path, directory->descriptor);
    if (status == SL_OK)
        status = remove_leftovers(path);
    if (status == SL_OK)
        status = try_writing(path);
    if (status != SL_OK)
        sli_save_directory_destroy(&directory);
    *out = directory;
    return status;
}

void sli_save_directory_destroy(sli_save_directory **directory)
{
    if (!directory || !*directory)
        return;
    if ((*directory)->descriptor >= 0)
        close((*directory)->descriptor);
    free(*directory);
    *directory = NULL;
}

/* ---- Its checkpoints -------------------------------------------------------------------- */

static int compare_steps(const void *a, const void *b)
{
    const int64_t *left = a, *right = b;
    return (*left < *right) - (*left > *right);
}

static sl_status add_step(int64_t step, int64_t **steps, size_t *count)
{
    int64_t *more = realloc(*steps, (*count + 1) * sizeof **steps);
    if (!more)
        return sl_error(SL_ERR_MEMORY, "no memory for a list of checkpoints");
    more[(*count)++] = step;
    *steps = more;
    return SL_OK;
}

sl_status sli_save_directory_list(const char *path, int64_t **steps, size_t *count)
{
    *steps = NULL;
    *count = 0;
    DIR *open = opendir(path);
    if (!open)
        return errno == ENOENT ? SL_OK : failed(path, "reading the directory of checkpoints");
    sl_status status = SL_OK;
    for (struct dirent *entry; status == SL_OK && (entry = readdir(open));)
        if (step_of(entry->d_name) >= 0)
            status = add_step(step_of(entry->d_name), steps, count);
    closedir(open);
    if (status != SL_OK) {
        free(*steps);
        *steps = NULL;
        *count = 0;
    } else if (*count > 0) {
        qsort(*steps, *count, sizeof **steps, compare_steps);
    }
    return status;
}

static sl_status remove_step(const char *path, int64_t step)
{
    char *name;
    SL_TRY(sli_save_directory_step(path, step, &name));
    sl_status status = sli_remove_directory(name);
    free(name);
    return status;
}

sl_status sli_save_directory_prune(const char *path, int64_t step, int keep)
{
    int64_t *steps;
    size_t count;
    int kept = 0;
    if (keep == 0)
        return SL_OK;
    SL_TRY(sli_save_directory_list(path, &steps, &count));
    sl_status status = SL_OK;
    for (size_t i = 0; i < count && status == SL_OK; i++)
        if (steps[i] <= step && ++kept > keep)
            status = remove_step(path, steps[i]);
    free(steps);
    return status;
}
