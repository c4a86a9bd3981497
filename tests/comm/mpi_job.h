/* mpirun, started with ranks of mpi_driver, with what they have written. One at a time. */
#ifndef TESTS_COMM_MPI_JOB_H
#define TESTS_COMM_MPI_JOB_H

#include <stdbool.h>
#include <sys/types.h>

#ifndef SLUICE_MPIRUN
#define SLUICE_MPIRUN     "" /* built without MPI */
#define SLUICE_MPI_PLUGIN ""
#endif

/* HANG_SECONDS is far above the 5 s that are promised: a slow machine is no failure. What was
 * really needed is printed. */
enum { MAX_RANKS = 8, TEXT_BYTES = 32768, HANG_SECONDS = 60 };

extern struct mpi_job {
    pid_t mpirun; /* 0: none runs */
    int out, err;
    char out_text[TEXT_BYTES], err_text[TEXT_BYTES];
    int status;
    pid_t ranks[MAX_RANKS]; /* of the case `endless` */
} mpi_job;

extern bool mpi_job_is_mpich; /* else SLUICE_MPIRUN is Open MPI's */

/* Before the first job. */
void mpi_job_init(void);

void mpi_driver_path(char *path, size_t bytes);

/* Starts the driver's case `name`. */
void mpi_job_start(const char *name, int ranks);

/* Reads what has come. True: mpirun has ended. */
bool mpi_job_poll(void);

/* Waits for the end; fails after the time. */
void mpi_job_finish(double seconds);

/* Starts and finishes. */
void mpi_job_run(const char *name, int ranks);

/* Runs a shell's command without mpirun; what it writes is the job's err_text. */
void mpi_job_capture(const char *command);

/* A teardown: ends what runs, also when its test has failed. */
int mpi_job_end(void **state);

/* Whether rank `rank` has ended with an error that contains `text`; the check fails if not. */
bool rank_says(int rank, const char *text);
void check_rank_says(int rank, const char *text);

/* Fails unless all ranks ended well and without a word. The second one starts and finishes first.
 */
void check_nobody_complains(void);
void mpi_job_succeed(const char *name, int ranks);

#endif
