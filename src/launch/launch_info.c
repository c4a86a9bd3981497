#include "sluice/app/launch.h"

#include "core/error.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The variables in which one kind of launcher gives a process its rank. */
typedef struct family {
    const char *rank, *world_size;
    const char *local_rank, *local_world_size;
} family;

static const family families[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

static const char run_id[] = "TORCHELASTIC_RUN_ID";
static const char restart_count[] = "TORCHELASTIC_RESTART_COUNT";
static const char first_world_size[] = "SLUICE_FIRST_WORLD_SIZE";

enum { FAMILIES = sizeof families / sizeof *families };

static const sl_launch_info single_process = {.world_size = 1,
                                              .local_world_size = 1,
                                              .first_world_size = 1};

static const char *get_variable(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* A number from 0 that fits an int at the start of `text`; *end is what follows. */
static bool read_number(const char *text, const char **end, int *out)
{
    char *stop;
    errno = 0;
    long value = strtol(text, &stop, 10);
    if (*text < '0' || *text > '9' || errno != 0 || value > INT_MAX)
        return false;
    *out = (int)value;
    *end = stop;
    return true;
}

static sl_status read_variable(const char *name, const char *beside, int *out)
{
    const char *end, *text = get_variable(name);
    if (!text)
        return sl_error(SL_ERR_INVALID, "environment variable %s is set without %s", beside, name);
    if (!read_number(text, &end, out) || *end)
        return sl_error(SL_ERR_INVALID,
                        "environment variable %s: expected a whole number "
                        "from 0, got \"%s\"",
                        name, text);
    return SL_OK;
}

static sl_status check_below(const char *name, int value, const char *limit_name, int limit)
{
    if (value < limit)
        return SL_OK;
    return sl_error(SL_ERR_INVALID, "environment variable %s must be below %s, got %d and %d", name,
                    limit_name, value, limit);
}

static sl_status check_machine(const sl_launch_info *info, const family *names)
{
    SL_TRY(check_below(names->local_rank, info->local_rank, names->local_world_size,
                       info->local_world_size));
    if (info->local_world_size > info->world_size)
        return sl_error(SL_ERR_INVALID,
                        "environment variable %s must be at most %s, got %d "
                        "and %d",
                        names->local_world_size, names->world_size, info->local_world_size,
                        info->world_size);
    return SL_OK;
}

static sl_status read_world(const family *names, sl_launch_info *info)
{
    SL_TRY(read_variable(names->rank, names->world_size, &info->rank));
    SL_TRY(read_variable(names->world_size, names->rank, &info->world_size));
    return check_below(names->rank, info->rank, names->world_size, info->world_size);
}

static sl_status read_family(const family *names, sl_launch_info *info)
{
    SL_TRY(read_world(names, info));
    if (!get_variable(names->local_rank) && !get_variable(names->local_world_size)) {
        info->local_rank = info->rank;
        info->local_world_size = info->world_size;
        return SL_OK;
    }
    SL_TRY(read_variable(names->local_rank, names->local_world_size, &info->local_rank));
    SL_TRY(read_variable(names->local_world_size, names->local_rank, &info->local_world_size));
    return check_machine(info, names);
}

/* ---- Slurm -------------------------------------------------------------------------------- */

static const family slurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                             "SLURM_STEP_TASKS_PER_NODE"};

/* A batch script and a shell of salloc have a SLURM_PROCID as well, but are not the job's ranks:
 * they have no step number, or one of those at the end of 32 bits that Slurm keeps for them. */
static bool is_in_slurm_step(void)
{
    const unsigned long long reserved = UINT32_MAX - 15;
    const char *step = get_variable("SLURM_STEP_ID");
    return step && get_variable(slurm.rank) && strtoull(step, NULL, 10) < reserved;
}

/* Tasks of node `node` in a list as Slurm writes it, one number a node: "4,2(x3),1" is 4,2,2,2,1.
 * False where the text is no such list or ends before that node. */
static bool read_tasks_of_node(const char *list, int node, int *out)
{
    for (const char *at = list;; at++) {
        int repeated = 1;
        if (!read_number(at, &at, out))
            return false;
        if (strncmp(at, "(x", 2) == 0 && (!read_number(at + 2, &at, &repeated) || *at++ != ')'))
            return false;
        if (node < repeated)
            return *at == ',' || *at == '\0';
        node -= repeated;
        if (*at != ',')
            return false;
    }
}

static sl_status read_slurm(sl_launch_info *info)
{
    int node;
    SL_TRY(read_world(&slurm, info));
    SL_TRY(read_variable(slurm.local_rank, slurm.rank, &info->local_rank));
    SL_TRY(read_variable("SLURM_NODEID", slurm.rank, &node));
    const char *list = get_variable(slurm.local_world_size);
    if (!list || !read_tasks_of_node(list, node, &info->local_world_size))
        return sl_error(SL_ERR_INVALID,
                        "environment variable %s: expected the tasks of each "
                        "node up to SLURM_NODEID %d, such as 4,2(x3), got \"%s\"",
                        slurm.local_world_size, node, list ? list : "");
    return check_machine(info, &slurm);
}

/* ---- All ---------------------------------------------------------------------------------- */

/* Which of several attempts at the job this is. */
static sl_status read_attempt(sl_launch_info *info)
{
    const char *job = get_variable(run_id);
    if (job && strcmp(job, "none") != 0)
        snprintf(info->job, sizeof info->job, "%s", job);
    info->first_world_size = info->world_size;
    if (get_variable(restart_count))
        SL_TRY(read_variable(restart_count, restart_count, &info->restarts));
    if (get_variable(first_world_size))
        SL_TRY(read_variable(first_world_size, restart_count, &info->first_world_size));
    return check_below("RANK", info->rank, first_world_size, info->first_world_size);
}

sl_status sl_launch_info_read(sl_launch_info *out)
{
    sl_launch_info info = {.launched = true};
    int which = 0;
    SLI_CHECK_NOT_NULL(out);
    *out = single_process;
    while (which < FAMILIES && !get_variable(families[which].rank) &&
           !get_variable(families[which].world_size))
        which++;
    if (which < FAMILIES)
        SL_TRY(read_family(&families[which], &info));
    else if (is_in_slurm_step())
        SL_TRY(read_slurm(&info));
    else
        return SL_OK;
    SL_TRY(read_attempt(&info));
    *out = info;
    return SL_OK;
}
