/* Whether all replicas see one directory: the first makes a temporary directory of a name that
 * nobody can guess, the others put a file into it, and the first looks for these. */
#define _GNU_SOURCE /* asprintf */

#include "core/replace.h"
#include "train/checkpoint/save_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sl_status trial_path(const char *path, uint64_t number, int rank, char **out)
{
    char *directory, name[SLI_TEMPORARY_BYTES];
    *out = NULL;
    SL_TRY(sli_save_directory_step(path, 0, &directory));
    const char *slash = strrchr(directory, '/');
    sli_temporary_name(slash + 1, number, name);
    int length = asprintf(out, "%.*s/%s/rank-%d", (int)(slash - directory), directory, name, rank);
    free(directory);
    if (length >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "%s: no memory for a path", path);
}

/* The directory must be there: nobody but the first replica makes it. */
static bool put_file(const char *path, uint64_t number, int rank)
{
    char *file;
    if (trial_path(path, number, rank, &file) != SL_OK)
        return false;
    int descriptor = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0)
        close(descriptor);
    free(file);
    return descriptor >= 0;
}

static bool sees_file(const char *path, uint64_t number, int rank)
{
    char *file;
    if (trial_path(path, number, rank, &file) != SL_OK)
        return false;
    bool seen = access(file, F_OK) == 0;
    free(file);
    return seen;
}

/* The others have put their files; all learn what the first one sees of them. */
static sl_status look_for_files(const char *path, const sli_replica *replicas, uint64_t number,
                                bool *out)
{
    int32_t shared = replicas->rank == 0 || put_file(path, number, replicas->rank);
    SL_TRY(sl_group_all_reduce(replicas->group, &shared, 1, SL_I32, SL_REDUCE_MIN, NULL));
    for (int rank = 1; replicas->rank == 0 && rank < replicas->count && shared; rank++)
        shared = sees_file(path, number, rank);
    SL_TRY(sl_group_broadcast(replicas->group, &shared, 1, SL_I32, 0, NULL));
    *out = shared != 0;
    return SL_OK;
}

static sl_status make_trial(const char *path, uint64_t number, sli_replace_directory **out)
{
    char *name;
    SL_TRY(sli_save_directory_step(path, 0, &name));
    sl_status status = sli_replace_directory_create_numbered(name, number, out);
    free(name);
    return status;
}

sl_status sli_save_directory_is_shared(const char *path, const sli_replica *replicas, bool *out,
                                       uint64_t *number)
{
    sli_replace_directory *trial = NULL;
    *number = 0;
    *out = false;
    if (replicas->rank == 0) {
        SL_TRY(sli_draw_number(path, number));
        SL_TRY(make_trial(path, *number, &trial));
    }
    int64_t drawn = (int64_t)*number;
    sl_status status = sl_group_broadcast(replicas->group, &drawn, 1, SL_I64, 0, NULL);
    *number = (uint64_t)drawn;
    if (status == SL_OK)
        status = look_for_files(path, replicas, *number, out);
    sli_replace_directory_destroy(&trial);
    return status;
}
