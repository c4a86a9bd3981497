/* What all_reduce costs, for 16 bytes and from 1 KiB to 256 MiB of f32 added up.
 *
 *   build/bench/bench_all_reduce [RANKS [MIB]]                            default: 2 256
 *
 * The backend `local`, against the memory bandwidth of the same run: as many threads read and write
 * as many bytes, x += 1 over a buffer each. The ratio is bound / all_reduce in time.
 *
 *   mpirun -n 2 --bind-to core build/bench/bench_all_reduce mpi [MIB]
 *
 * The backend `mpi`, against a bare MPI_Allreduce of the same buffers, in turn. The ratio is
 * MPI_Allreduce / all_reduce in time. As root mpirun wants --allow-run-as-root.
 *
 * ROUNDS times, in turn, each is timed over as many operations as take about 10 ms; shown are the
 * best times and the median of the rounds' ratios, which other users of the machine disturb least.
 */
#include "sluice/group.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SLUICE_BENCH_MPI
#include <mpi.h>
#endif

enum { ROUNDS = 11 };
static const double round_seconds = 0.01;

typedef struct contest {
    sl_group *group;
    float *data;
    int64_t count;
    void (*rival)(struct contest *contest);
} contest;

static void all_reduce(contest *run)
{
    bench_check(
        sl_group_all_reduce(run->group, run->data, run->count, SL_F32, SL_REDUCE_SUM, NULL));
}

/* Reads and writes every element once, as all_reduce must for each rank's. */
static void touch(contest *run)
{
    float *data = run->data;
    for (int64_t i = 0; i < run->count; i++)
        data[i] += 1;
}

#ifdef SLUICE_BENCH_MPI
static void bare(contest *run)
{
    MPI_Allreduce(MPI_IN_PLACE, run->data, (int)run->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
#endif

/* Seconds of one operation, the slowest rank's. */
static double time_of(contest *run, void (*operation)(contest *), int64_t times)
{
    bench_check(sl_group_barrier(run->group, NULL));
    double start = bench_now();
    for (int64_t i = 0; i < times; i++)
        operation(run);
    double seconds = (bench_now() - start) / (double)times;
    bench_check(sl_group_all_reduce(run->group, &seconds, 1, SL_F64, SL_REDUCE_MAX, NULL));
    return seconds;
}

static void compare(contest *run)
{
    double ours = 1e9, theirs = 1e9, ratios[ROUNDS];
    int64_t our_times = 1, their_times = 1;
    for (int round = 0; round < ROUNDS; round++) {
        memset(run->data, 0, (size_t)run->count * sizeof *run->data);
        double our = time_of(run, all_reduce, our_times);
        double their = time_of(run, run->rival, their_times);
        our_times = our < round_seconds ? (int64_t)(round_seconds / our) : 1;
        their_times = their < round_seconds ? (int64_t)(round_seconds / their) : 1;
        ratios[round] = their / our;
        ours = our < ours ? our : ours;
        theirs = their < theirs ? their : theirs;
    }
    double kib = (double)run->count * sizeof *run->data / 1024;
    if (sl_group_rank(run->group) == 0)
        printf("| %g %s | %.1f us | %.1f us | %.2f |\n",
               kib < 1      ? 1024 * kib
               : kib < 1024 ? kib
                            : kib / 1024,
               kib < 1      ? "bytes"
               : kib < 1024 ? "KiB"
                            : "MiB",
               ours * 1e6, theirs * 1e6, bench_median(ratios, ROUNDS));
}

static sl_status compare_sizes(sl_group *group, int64_t most_bytes, void (*rival)(contest *))
{
    contest run = {.group = group, .rival = rival, .data = malloc((size_t)most_bytes)};
    if (!run.data)
        return sl_error(SL_ERR_MEMORY, "no memory for %lld bytes", (long long)most_bytes);
    for (int64_t bytes = 16; bytes <= most_bytes; bytes = bytes < 1024 ? 1024 : 4 * bytes) {
        run.count = bytes / (int64_t)sizeof *run.data;
        compare(&run);
    }
    free(run.data);
    return SL_OK;
}

static sl_status run_local(sl_group *group, void *arg)
{
    const int64_t *most_bytes = arg;
    return compare_sizes(group, *most_bytes, touch);
}

static int bench_mpi(int64_t most_bytes)
{
#ifdef SLUICE_BENCH_MPI
    sl_group *group;
    bench_check(sl_group_create_mpi(NULL, &group));
    if (sl_group_rank(group) == 0)
        bench_heading("| size | `mpi` | `MPI_Allreduce` | ratio |");
    bench_check(compare_sizes(group, most_bytes, bare));
    sl_group_destroy(&group);
    return 0;
#else
    (void)most_bytes;
    fprintf(stderr, "bench_all_reduce: built without MPI\n");
    return 1;
#endif
}

int main(int count, char **words)
{
    bool mpi = count > 1 && strcmp(words[1], "mpi") == 0;
    int ranks = count > 1 && !mpi ? (int)strtol(words[1], NULL, 10) : 2;
    int64_t most_bytes = (count > 2 ? strtoll(words[2], NULL, 10) : 256) << 20;
    if (ranks < 1 || most_bytes < 1) {
        fprintf(stderr, "usage: bench_all_reduce [RANKS|mpi [MIB]]\n");
        return 1;
    }
    if (mpi)
        return bench_mpi(most_bytes);
    bench_heading("| size | `local` | memory | ratio |");
    bench_check(sl_spawn(run_local, &most_bytes, ranks, NULL));
    return 0;
}
