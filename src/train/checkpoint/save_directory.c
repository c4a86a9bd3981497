/* The directory of a run's checkpoints: their names, the newest, who may save there, and which are
 * removed. */
#include "train/checkpoint/checkpoints.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/replace.h"

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
enum { NAME_BYTES = 32 }; /* of a checkpoint */

/* ---- Names ------------------------------------------------------------------------------ */

static void name_step(int64_t step, char *name)
{
    snprintf(name, NAME_BYTES, "%s%08" PRId64, prefix, step);
}

sl_status sli_save_directory_step(const char *path, int64_t step, char **out)
{
    char name[NAME_BYTES];
    name_step(step, name);
    return sli_path_join(path, name, out);
}

sl_status sli_save_directory_best(const char *path, char **out)
{
    return sli_path_join(path, best_name, out);
}

/* The step of "step-00000040", or -1 for any other name. */
static int64_t step_of(const char *name)
{
    char expected[NAME_BYTES];
    size_t length = sizeof prefix - 1;
    if (strncmp(name, prefix, length) != 0)
        return -1;
    errno = 0;
    long long step = strtoll(name + length, NULL, 10);
    name_step(step, expected);
    return errno == 0 && step >= 0 && strcmp(name, expected) == 0 ? step : -1;
}

static bool is_checkpoint_name(const void *context, const char *name)
{
    (void)context;
    return step_of(name) >= 0 || strcmp(name, best_name) == 0;
}

/* ---- Its checkpoints -------------------------------------------------------------------- */

static sl_status file_error(const char *path, const char *doing)
{
    return sl_error(SL_ERR_IO, "%s: %s failed: %s", path, doing, strerror(errno));
}

/* The steps of entries with a checkpoint's name. */
typedef struct listing {
    const char *path;
    int directory;
    bool others; /* neither directories nor links, instead of these */
    int64_t *steps;
    size_t count, capacity;
} listing;

static int compare_steps(const void *a, const void *b)
{
    const int64_t *left = a, *right = b;
    return (*left < *right) - (*left > *right);
}

static sl_status add_step(void *context, const char *name)
{
    listing *to = context;
    struct stat found;
    char of[SLI_TEMPORARY_BYTES];
    /* Where its replacement was cut off, a checkpoint has its second name alone. */
    bool is_aside = sli_second_name_parse(name, of) &&
                    fstatat(to->directory, of, &found, AT_SYMLINK_NOFOLLOW) != 0;
    int64_t step = step_of(is_aside ? of : name);
    if (step < 0)
        return SL_OK;
    if (fstatat(to->directory, name, &found, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? SL_OK : file_error(to->path, "looking for checkpoints");
    if (to->others == (S_ISDIR(found.st_mode) || S_ISLNK(found.st_mode)))
        return SL_OK;
    SL_TRY(sli_array_reserve(&to->steps, &to->capacity, to->count + 1, sizeof *to->steps,
                             SIZE_MAX / sizeof *to->steps, "checkpoints"));
    to->steps[to->count++] = step;
    return SL_OK;
}

sl_status sli_save_directory_list(const char *path, bool others, int64_t **steps, size_t *count)
{
    listing to = {.path = path, .others = others};
    *steps = NULL;
    *count = 0;
    to.directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to.directory < 0)
        return errno == ENOENT ? SL_OK : file_error(path, "opening the directory of checkpoints");
    sl_status status = sli_directory_visit(to.directory, path, add_step, &to);
    close(to.directory);
    if (status != SL_OK) {
        free(to.steps);
        return status;
    }
    if (to.count > 0)
        qsort(to.steps, to.count, sizeof *to.steps, compare_steps);
    *steps = to.steps;
    *count = to.count;
    return SL_OK;
}

sl_status sl_train_find_checkpoints(const char *directory, char **best, char **newest)
{
    int64_t *steps;
    size_t count;
    SLI_CHECK_NOT_NULL(directory);
    SLI_CHECK_NOT_NULL(best);
    SLI_CHECK_NOT_NULL(newest);
    *best = *newest = NULL;
    SL_TRY(sli_save_directory_list(directory, false, &steps, &count));
    sl_status status = sli_save_directory_best(directory, best);
    if (status == SL_OK && count > 0)
        status = sli_save_directory_step(directory, steps[0], newest);
    char *found = NULL;
    if (status == SL_OK)
        status = sli_replace_directory_find(*best, &found);
    if (status != SL_OK || access(found, F_OK) != 0) {
        free(*best);
        *best = NULL;
    }
    free(found);
    free(steps);
    return status;
}

/* Another run's checkpoints would be overwritten and pruned, or be taken for older ones of this.
 * They are this run's where `resume` is the directory, or one of them, under whatever names. */
static sl_status check_unused(const char *path, const char *resume)
{
    int64_t *steps;
    size_t count;
    SL_TRY(sli_save_directory_list(path, false, &steps, &count));
    bool own = count == 0 || (resume && sli_path_same_file(path, resume));
    sl_status status = SL_OK;
    for (size_t i = 0; i < count && resume && !own && status == SL_OK; i++) {
        char *name;
        status = sli_save_directory_step(path, steps[i], &name);
        own = status == SL_OK && sli_path_same_file(name, resume);
        free(name);
    }
    free(steps);
    if (status != SL_OK || own)
        return status;
    return sl_error(SL_ERR_INVALID,
                    "%s: has checkpoints of another run: resume from one of them, or save to "
                    "another directory",
                    path);
}

/* ---- The directory ---------------------------------------------------------------------- */

static sl_status lock_directory(const char *path, int descriptor)
{
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno == EOPNOTSUPP || errno == ENOLCK ||
        errno == ENOSYS)
        return SL_OK; /* file systems without locks keep no run out */
    if (errno == EWOULDBLOCK)
        return sl_error(SL_ERR_INVALID, "%s: another run saves its checkpoints there", path);
    return file_error(path, "locking it");
}

/* What the next best model would replace must be one, and checkpoints can be written: this is found
 * out before the work. */
static sl_status try_writing(const char *path)
{
    char *best;
    sli_replace_directory *trial = NULL;
    SL_TRY(sli_save_directory_best(path, &best));
    sl_status status = sli_checkpoint_check_path(best, false);
    if (status == SL_OK)
        status = sli_replace_directory_create(best, &trial);
    sli_replace_directory_destroy(&trial);
    status = sl_error_context(status, "%s: the best model cannot be written: ", best);
    free(best);
    return status;
}

/* A new directory is to survive a power cut like the checkpoints in it. */
static sl_status make_directory(const char *path)
{
    int holder;
    char *name;
    SL_TRY(sli_path_open_parent(path, path, &holder, &name));
    bool made = mkdirat(holder, name, 0777) == 0;
    sl_status status = made              ? sli_directory_sync(holder, path)
                       : errno == EEXIST ? SL_OK
                                         : file_error(path, "making the directory for checkpoints");
    close(holder);
    free(name);
    return status;
}

sl_status sli_save_directory_open(const char *path, const char *resume, int *descriptor)
{
    SL_TRY(make_directory(path));
    *descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*descriptor < 0)
        return file_error(path, "opening the directory for checkpoints");
    sl_status status = lock_directory(path, *descriptor);
    if (status == SL_OK)
        status = check_unused(path, resume);
    if (status == SL_OK) {
        sli_temporary_sweep(*descriptor, is_checkpoint_name, NULL);
        status = try_writing(path);
    }
    if (status != SL_OK)
        close(*descriptor);
    return status;
}

/* ---- Whether all replicas see it -------------------------------------------------------- */

/* The first replica makes a temporary directory of a name that no one else can guess. */
sl_status sli_save_directory_is_shared(const char *path, const sli_replica *replica,
                                       uint64_t number, bool *out)
{
    char temporary[SLI_TEMPORARY_BYTES], *trial;
    sli_temporary_name(best_name, number, temporary);
    SL_TRY(sli_path_join(path, temporary, &trial));
    bool makes = replica->rank == 0;
    sl_status status = makes && mkdir(trial, 0777) != 0
                           ? file_error(path, "making a directory for a trial")
                           : sl_group_barrier(replica->all, NULL);
    int32_t seen = access(trial, W_OK) == 0;
    if (status == SL_OK)
        status = sl_group_all_reduce(replica->all, &seen, 1, SL_I32, SL_REDUCE_MIN, NULL);
    *out = seen != 0;
    if (makes)
        (void)rmdir(trial);
    free(trial);
    return status;
}

/* ---- Fewer of them ---------------------------------------------------------------------- */

static sl_status remove_step(const char *path, int64_t step)
{
    char *name;
    SL_TRY(sli_save_directory_step(path, step, &name));
    sl_status status = sli_remove_directory(name);
    free(name);
    return status == SL_ERR_INVALID ? SL_OK : status; /* something of the user's, which stays */
}

sl_status sli_save_directory_prune(const char *path, int64_t step, int keep)
{
    int64_t *steps;
    size_t count;
    int kept = 0;
    if (keep == 0)
        return SL_OK;
    SL_TRY(sli_save_directory_list(path, false, &steps, &count));
    sl_status status = SL_OK;
    for (size_t i = 0; i < count && status == SL_OK; i++)
        if (steps[i] <= step && ++kept > keep)
            status = remove_step(path, steps[i]);
    free(steps);
    return status;
}

/* ---- The last step ---------------------------------------------------------------------- */

/* So wide that every number takes the place of the one before it. */
enum { DIGITS = 20, TEXT_BYTES = DIGITS + 2 };

/* The number in the file; -1: it is something else. */
static int64_t read_step(int descriptor)
{
    char text[TEXT_BYTES] = "";
    ssize_t length = pread(descriptor, text, sizeof text, 0);
    char *end;
    long long step = length == TEXT_BYTES - 1 ? strtoll(text, &end, 10) : -1;
    return step > 0 && end == text + DIGITS ? step : -1;
}

static int open_progress(const char *directory, int flags)
{
    char *path;
    if (sli_path_join(directory, "progress", &path) != SL_OK)
        return -1;
    int descriptor = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    free(path);
    return descriptor;
}

int sli_last_step_open(const char *directory)
{
    struct stat found;
    int descriptor = open_progress(directory, O_RDWR | O_CREAT);
    if (descriptor < 0 || (fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) &&
                           (found.st_size == 0 || read_step(descriptor) > 0)))
        return descriptor;
    close(descriptor);
    return -1;
}

void sli_last_step_write(int descriptor, int64_t step)
{
    char text[TEXT_BYTES];
    if (descriptor < 0)
        return;
    int length = snprintf(text, sizeof text, "%0*" PRId64 "\n", DIGITS, step);
    (void)!pwrite(descriptor, text, (size_t)length, 0);
}

int64_t sli_last_step_read(const char *directory)
{
    int descriptor = open_progress(directory, O_RDONLY);
    if (descriptor < 0)
        return 0;
    int64_t step = read_step(descriptor);
    close(descriptor);
    return step > 0 ? step : 0;
}
