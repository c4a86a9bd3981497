/* Which rank a process was started as, as its launcher says in the environment. */
#ifndef SLUICE_LAUNCH_H
#define SLUICE_LAUNCH_H

#include "sluice/status.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_launch_info {
    bool launched;        /* by a launcher; otherwise rank 0 of 1 */
    int rank;             /* of all processes: 0 to world_size - 1 */
    int local_rank;       /* of those on this machine: 0 to local_world_size - 1 */
    int world_size;       /* processes of the job */
    int local_world_size; /* those of them on this machine */
    int restarts;         /* how often the launcher has started the job again */
    int first_world_size; /* processes of its first attempt; world_size where nothing says so */
} sl_launch_info;

/* Reads the environment that the launcher left. Of these, the first whose rank or size is there:
 *
 *   torchrun, sluice launch  RANK WORLD_SIZE; LOCAL_RANK LOCAL_WORLD_SIZE
 *   Open MPI's mpirun        OMPI_COMM_WORLD_RANK …_SIZE; …_LOCAL_RANK …_LOCAL_SIZE
 *   MPICH's mpiexec (Hydra)  PMI_RANK PMI_SIZE; MPI_LOCALRANKID MPI_LOCALNRANKS
 *   srun                     SLURM_PROCID SLURM_STEP_NUM_TASKS; SLURM_LOCALID, and the step's
 *                            SLURM_STEP_TASKS_PER_NODE at SLURM_NODEID. Not in a batch script or
 *                            an interactive shell, which are no ranks
 *
 * Where TORCHELASTIC_RESTART_COUNT is set beside them, as torchrun and sluice launch do, it gives
 * `restarts`; above 0, SLUICE_FIRST_WORLD_SIZE, which sluice launch sets, gives first_world_size. A
 * variable that is empty counts as not set. Where a launcher says nothing of the machine (the last
 * two names of a line), all ranks are taken to be on this one. Not while another thread changes the
 * environment.
 * Errors: SL_ERR_INVALID for a variable that is missing beside the others, is no number, or
 * contradicts another, which the sentence names; `*out` is then rank 0 of 1. */
sl_status sl_launch_info_read(sl_launch_info *out);

#ifdef __cplusplus
}
#endif
#endif
