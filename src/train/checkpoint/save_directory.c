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
    listing *list = context;
    struct stat found;
    char checkpoint[SLI_TEMPORARY_BYTES];
    /* Where its replacement was cut off, a checkpoint has its second name alone. */
    bool is_aside = sli_second_name_parse(name, checkpoint) &&
                    fstatat(list->directory, checkpoint, &found, AT_SYMLINK_NOFOLLOW) != 0;
    int64_t step = step_of(is_aside ? checkpoint : name);
    if (step < 0)
        return SL_OK;
    if (fstatat(list->directory, name, &found, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? SL_OK : file_error(list->path, "looking for checkpoints");
    if (list->others == (S_ISDIR(found.st_mode) || S_ISLNK(found.st_mode)))
        return SL_OK;
    SL_TRY(sli_array_reserve(&list->steps, &list->capacity, list->count + 1, sizeof *list->steps,
                             SIZE_MAX / sizeof *list->steps, "checkpoints"));
    list->steps[list->count++] = step;
    return SL_OK;
}

sl_status sli_save_directory_list(const char *path, bool others, int64_t **steps, size_t *count)
{
    listing list = {.path = path, .others = others};
    *steps = NULL;
    *count = 0;
    list.directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (list.directory < 0)
        return errno == ENOENT ? SL_OK : file_error(path, "opening the directory of checkpoints");
    sl_status status = sli_directory_visit(list.directory, path, add_step, &list);
    close(list.directory);
    if (status != SL_OK) {
        free(list.steps);
        return status;
    }
    if (list.count > 0)
        qsort(list.steps, list.count, sizeof *list.steps, compare_steps);
    *steps = list.steps;
    *count = list.count;
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
    sl_status status;
    char *found = NULL;
    SL_TRY_OR_FAIL(sli_save_directory_best(directory, best));
    if (count > 0)
        SL_TRY_OR_FAIL(sli_save_directory_step(directory, steps[0], newest));
    status = sli_replace_directory_find(*best, &found);
fail:
    if (status != SL_OK || access(found, F_OK) != 0) {
        free(*best);
        *best = NULL;
    }
    free(found);
    free(steps);
    return status;
}

/* ---- Whose they are --------------------------------------------------------------------- */

/* False: it is no checkpoint, or one that cannot be read. */
static bool read_owner(const char *checkpoint, sli_owner *out)
{
    sli_checkpoint_state state;
    char *found;
    *out = (sli_owner){{""}, ""};
    if (sli_replace_directory_find(checkpoint, &found) != SL_OK)
        return false;
    bool is_read = sli_checkpoint_state_read(found, &state) == SL_OK;
    is_read = is_read && (!state.run || sli_run_state_owner(state.run, out) == SL_OK);
    sli_checkpoint_state_clear(&state);
    free(found);
    return is_read;
}

static bool is_owner(const char *checkpoint, const sli_identity *identity)
{
    sli_owner owner;
    return read_owner(checkpoint, &owner) && strcmp(owner.identity.text, identity->text) == 0;
}

sl_status sli_save_directory_check_owner(const char *checkpoint, const sli_identity *identity)
{
    sli_owner owner;
    struct stat found;
    if (lstat(checkpoint, &found) == 0 && S_ISLNK(found.st_mode))
        return SL_OK; /* the link goes, and what it leads to stays */
    if (!read_owner(checkpoint, &owner) || strcmp(owner.identity.text, identity->text) == 0)
        return SL_OK;
    return sl_error(SL_ERR_CONFLICT,
                    "%s: is another run's: move it away, or save to another directory", checkpoint);
}

/* Whether `resume` is the directory or one of its checkpoints, under whatever names. */
static sl_status resumes_from(const char *path, const char *resume, const int64_t *steps,
                              size_t count, bool *out)
{
    *out = resume && sli_path_same_file(path, resume);
    for (size_t i = 0; i < count && resume && !*out; i++) {
        char *name;
        SL_TRY(sli_save_directory_step(path, steps[i], &name));
        *out = sli_path_same_file(name, resume);
        free(name);
    }
    return SL_OK;
}

bool sli_save_directory_is_of_job(const char *checkpoint, const char *job)
{
    sli_owner owner;
    return job && *job && read_owner(checkpoint, &owner) && strcmp(owner.job, job) == 0;
}

sl_status sli_save_directory_has_saved(const char *path, const char *job, bool *out)
{
    int64_t *steps;
    size_t count;
    SL_TRY(sli_save_directory_list(path, false, &steps, &count));
    sl_status status = SL_OK;
    *out = !job && count > 0;
    for (size_t i = 0; job && i < count && status == SL_OK && !*out; i++) {
        char *name;
        status = sli_save_directory_step(path, steps[i], &name);
        *out = status == SL_OK && sli_save_directory_is_of_job(name, job);
        free(name);
    }
    free(steps);
    return status;
}

/* That of the job's own `best`, where an earlier attempt has saved no more; else a new one. */
static sl_status draw_identity(const char *path, const char *job, sli_identity *out)
{
    uint64_t number;
    sli_owner owner;
    char *best;
    SL_TRY(sli_save_directory_best(path, &best));
    bool is_own = job && *job && read_owner(best, &owner) && strcmp(owner.job, job) == 0;
    free(best);
    if (is_own) {
        *out = owner.identity;
        return SL_OK;
    }
    SL_TRY(sli_draw_number(path, &number));
    snprintf(out->text, sizeof out->text, "%016" PRIx64, number);
    return SL_OK;
}

/* Another run's checkpoints would be overwritten and pruned, or be taken for older ones of this. */
static sl_status identify_run(const char *path, const sli_run *run, sli_identity *out)
{
    int64_t *steps;
    size_t count;
    bool goes_on;
    SL_TRY(sli_save_directory_list(path, false, &steps, &count));
    sl_status status = resumes_from(path, run->asked, steps, count, &goes_on);
    free(steps);
    SL_TRY(status);
    if (goes_on && run->resume.reader)
        *out = run->resume.recorded.identity;
    else if (goes_on)
        (void)sli_last_step_read(path, out);
    if (count > 0 && !(goes_on && run->resume.reader))
        return sl_error(SL_ERR_CONFLICT,
                        "%s: has checkpoints of another run: resume from one of them, or save to "
                        "another directory",
                        path);
    return *out->text ? SL_OK : draw_identity(path, run->launch.job, out);
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

/* What the next best model would replace must be one of this run, and checkpoints can be written:
 * this is found out before the work. */
static sl_status try_writing(const char *path, const sli_identity *identity)
{
    char *best;
    sli_replace_directory *trial = NULL;
    SL_TRY(sli_save_directory_best(path, &best));
    sl_status status;
    SL_TRY_OR_FAIL(sli_checkpoint_check_path(best, false, false));
    SL_TRY_OR_FAIL(sli_save_directory_check_owner(best, identity));
    status = sli_replace_directory_create(best, &trial);
fail:
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

sl_status sli_save_directory_open(const char *path, const sli_run *run, sli_identity *identity,
                                  int *descriptor)
{
    *identity = (sli_identity){""};
    SL_TRY(sli_checkpoint_check_outside(path, true));
    SL_TRY(make_directory(path));
    *descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*descriptor < 0)
        return file_error(path, "opening the directory for checkpoints");
    sl_status status;
    SL_TRY_OR_FAIL(lock_directory(path, *descriptor));
    SL_TRY_OR_FAIL(identify_run(path, run, identity));
    sli_temporary_sweep(*descriptor, is_checkpoint_name, NULL);
    SL_TRY_OR_FAIL(try_writing(path, identity));
    return SL_OK;
fail:
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
    sl_status status;
    SL_TRY_OR_FAIL(makes && mkdir(trial, 0777) != 0
                       ? file_error(path, "making a directory for a trial")
                       : sl_group_barrier(replica->all, NULL));
    int32_t seen = access(trial, W_OK) == 0;
    status = sl_group_all_reduce(replica->all, &seen, 1, SL_I32, SL_REDUCE_MIN, NULL);
    *out = seen != 0;
fail:
    if (makes)
        (void)rmdir(trial);
    free(trial);
    return status;
}

/* ---- Fewer of them ---------------------------------------------------------------------- */

/* Where there are more of the run's than `keep`, with those that were `*kept` before. */
static sl_status remove_surplus(const char *path, int64_t step, int keep,
                                const sli_identity *identity, int *kept)
{
    char *name;
    sl_status status = SL_OK;
    SL_TRY(sli_save_directory_step(path, step, &name));
    if (is_owner(name, identity) && ++*kept > keep)
        status = sli_remove_directory(name);
    free(name);
    return status == SL_ERR_INVALID ? SL_OK : status; /* something of the user's, which stays */
}

sl_status sli_save_directory_prune(const char *path, int64_t step, int keep,
                                   const sli_identity *identity)
{
    int64_t *steps;
    size_t count;
    int kept = 0;
    if (keep == 0)
        return SL_OK;
    SL_TRY(sli_save_directory_list(path, false, &steps, &count));
    sl_status status = SL_OK;
    for (size_t i = 0; i < count && status == SL_OK; i++)
        if (steps[i] <= step)
            status = remove_surplus(path, steps[i], keep, identity, &kept);
    free(steps);
    return status;
}

/* ---- The last step ---------------------------------------------------------------------- */

/* "00000000000000000040 0123456789abcdef\n": so wide that every text takes the place of the one
 * before it. */
enum { DIGITS = 20, TEXT_BYTES = DIGITS + 1 + sizeof(sli_identity) + 1 };

/* The number in the file; -1: it is something else. */
static int64_t read_step(int descriptor, sli_identity *identity)
{
    char text[TEXT_BYTES] = "";
    ssize_t length = pread(descriptor, text, sizeof text, 0);
    char *end = text;
    long long step = length == TEXT_BYTES - 1 ? strtoll(text, &end, 10) : -1;
    if (step <= 0 || end != text + DIGITS || *end != ' ' || text[TEXT_BYTES - 2] != '\n')
        return -1;
    memcpy(identity->text, end + 1, sizeof identity->text - 1);
    identity->text[sizeof identity->text - 1] = '\0';
    return step;
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
    sli_identity unused;
    int descriptor = open_progress(directory, O_RDWR | O_CREAT);
    if (descriptor < 0 || (fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) &&
                           (found.st_size == 0 || read_step(descriptor, &unused) > 0)))
        return descriptor;
    close(descriptor);
    return -1;
}

void sli_last_step_write(int descriptor, int64_t step, const sli_identity *identity)
{
    char text[TEXT_BYTES];
    if (descriptor < 0)
        return;
    int length = snprintf(text, sizeof text, "%0*" PRId64 " %s\n", DIGITS, step, identity->text);
    (void)!pwrite(descriptor, text, (size_t)length, 0);
}

int64_t sli_last_step_read(const char *directory, sli_identity *identity)
{
    *identity = (sli_identity){""};
    int descriptor = open_progress(directory, O_RDONLY);
    if (descriptor < 0)
        return 0;
    int64_t step = read_step(descriptor, identity);
    close(descriptor);
    return step > 0 ? step : 0;
}
