#define _GNU_SOURCE /* dladdr */
/* One rank of a group over MPI. Usage: mpi_driver CASE, started by mpirun. What fails is written
 * to standard error as "rank R: TEXT", with exit status 1. */
#include "comm/contract.h"
#include "comm/group.h"
#include "core/error.h"
#include "nn/module.h"
#include "sluice/app/launch.h"
#include "sluice/group.h"
#include "support/layouts.h"
#include "support/modules.h"
#include "support/replicas.h"
#include "support/rig.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int last_rank(const sl_group *group)
{
    return sl_group_size(group) - 1;
}

/* ---- What must succeed -------------------------------------------------------------------- */

static sl_status contract(sl_group *group)
{
    for (const contract_case *one = contract_cases; one->name; one++)
        if (sl_group_size(group) >= one->least_ranks)
            SL_TRY(sl_error_context(one->run(group, NULL), "%s: ", one->name));
    return SL_OK;
}

static sl_status local_digest(sl_group *group, void *arg)
{
    uint64_t *digests = arg;
    return contract_digest(group, 20, &digests[sl_group_rank(group)]);
}

/* Each process runs the same with threads, and compares its rank's. */
static sl_status bits(sl_group *group)
{
    uint64_t local[16], own;
    SL_TRY(contract_digest(group, 20, &own));
    SL_TRY(sl_spawn(local_digest, local, sl_group_size(group), NULL));
    return expect(own == local[sl_group_rank(group)], "the bits of local ranks");
}

/* On a CUDA device for each rank. */
static sl_status nccl(sl_group *below)
{
    char name[32];
    SCOPED(sl_device_list) *devices = NULL;
    SCOPED(sl_group) *group = NULL;
    snprintf(name, sizeof name, "cuda:0/%d", sl_group_rank(below));
    SL_TRY(sl_device_list_create(name, &devices, NULL));
    SL_TRY(sli_group_create_nccl(below, sl_device_list_get(devices, 0), &group));
    return bits(group);
}

static sl_status again(sl_group *group)
{
    SCOPED(sl_group) *other = NULL;
    SL_TRY(sl_group_create_mpi(NULL, &other));
    return sl_group_barrier(other, NULL);
}

/* The seed comes from SLUICE_TEST_SEED. */
static sl_status pipes(sl_group *group)
{
    const char *given = getenv("SLUICE_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : 1;
    for (unsigned i = 0; i < (unsigned)test_rounds(12); i++)
        SL_TRY(layout_check(group, seed + i));
    return SL_OK;
}

/* ---- One copy ----------------------------------------------------------------------------- */

enum { COPY_MICROS = 4, COPY_WIDTH = 4096, MOST_COPIES = 64 };

/* What this process has copied from the memory of others. */
static struct {
    struct iovec to, from;
} copies[MOST_COPIES];
static atomic_int copy_count;

/* In place of libc's: Open MPI copies large messages between processes of a host with it. */
ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count,
                         const struct iovec *from, unsigned long from_count, unsigned long flags)
{
    int number = atomic_fetch_add(&copy_count, 1);
    if (number < MOST_COPIES) {
        copies[number].to = *to;
        copies[number].from = *from;
    }
    return syscall(SYS_process_vm_readv, pid, to, to_count, from, from_count, flags);
}

/* A stage of one module, which records where the tensors are that it gets from the other stage and
 * gives to it, in the order of the micro-batches. */
typedef struct recorder {
    bool is_first;
    int got_count, given_count;
    int64_t got[COPY_MICROS], given[COPY_MICROS];
} recorder;

static void record(int64_t *to, int *count, const sl_tensor *tensor)
{
    if (*count < COPY_MICROS)
        to[(*count)++] = (int64_t)(uintptr_t)sl_tensor_data(tensor);
}

static sl_status record_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    recorder *calls = sl_module_state(module);
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    if (calls->is_first)
        record(calls->given, &calls->given_count, *out);
    else
        record(calls->got, &calls->got_count, in);
    return sl_tensor_copy(*out, in);
}

static sl_status record_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    recorder *calls = sl_module_state(module);
    if (calls->is_first)
        record(calls->got, &calls->got_count, grad_out);
    else
        record(calls->given, &calls->given_count, grad_out);
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static void leave_state(void *state)
{
    (void)state; /* of `copied_once` */
}

/* Whether the tensor that the other process gave came straight to where this one got it. */
static bool was_copied(int64_t given, int64_t got)
{
    for (int i = 0; i < COPY_MICROS; i++)
        if ((int64_t)(uintptr_t)copies[i].from.iov_base == given &&
            (int64_t)(uintptr_t)copies[i].to.iov_base == got &&
            copies[i].to.iov_len == COPY_WIDTH * sizeof(float))
            return true;
    return false;
}

static sl_status check_copies(sl_group *group, const recorder *calls)
{
    int64_t given[2][COPY_MICROS];
    int count = atomic_load(&copy_count);
    SL_TRY(sl_group_all_gather(group, calls->given, given, COPY_MICROS, SL_I64, NULL));
    if (count == 0) {
        printf("MPI cannot read another process's memory\n");
        return SL_OK;
    }
    SL_TRY(expect(count == COPY_MICROS, "%d copies, got %d", COPY_MICROS, count));
    for (int m = 0; m < COPY_MICROS; m++)
        SL_TRY(expect(was_copied(given[calls->is_first][m], calls->got[m]),
                      "micro-batch %d comes from the other stage's own tensor", m));
    return SL_OK;
}

/* A training step of two stages. */
static sl_status copied_once(sl_group *group)
{
    static const sl_module_ops ops = {.type = "Recorder",
                                      .forward = record_forward,
                                      .backward = record_backward,
                                      .destroy_state = leave_state};
    recorder stages[2] = {{.is_first = true}, {.is_first = false}};
    int rank = sl_group_rank(group);
    double value;
    SCOPED(rig) at = {0};
    sl_module *modules[2], *model;
    for (int s = 0; s < 2; s++)
        SL_TRY(sl_module_create(&ops, &stages[s], &modules[s]));
    SL_TRY(create_sequential(modules, 2, &model));
    sl_pipe_options options = {.stages = 2,
                               .chunks = COPY_MICROS,
                               .recompute = SL_RECOMPUTE_NEVER,
                               .group = group};
    sl_shape shape = sl_shape_2d(COPY_MICROS, COPY_WIDTH);
    SL_TRY(rig_open(model, NULL, &(sl_training_options){.pipe = options}, &at));
    SCOPED(sl_tensor) *rows = random_tensor(at.devices[rank], &shape, 1);
    sl_pipe_batch batch = {.input = rows, .targets = rows};
    SL_TRY(sl_pipe_train(at.pipe, &batch, &value));
    return check_copies(group, &stages[rank]);
}

/* ---- What must fail ----------------------------------------------------------------------- */

/* Stays away until the others have given up, which breaks the group. */
static sl_status late(sl_group *group)
{
    float x[1000] = {0};
    SL_TRY(sl_group_barrier(group, NULL));
    if (sl_group_rank(group) != last_rank(group))
        return sl_group_all_reduce(group, x, 1000, SL_F32, SL_REDUCE_SUM, NULL);
    for (;;) {
        SL_TRY(sl_group_send(group, NULL, 0, SL_F32, sl_group_rank(group), 0, NULL));
        usleep(1000);
    }
}

static sl_status leaves(sl_group *group)
{
    SL_TRY(sl_group_barrier(group, NULL));
    return sl_group_rank(group) == last_rank(group) ? SL_OK : sl_group_barrier(group, NULL);
}

static sl_status aborts(sl_group *group)
{
    if (sl_group_rank(group) == last_rank(group))
        sl_group_abort(group, SL_ERR_NUMERIC, "the loss is NaN");
    return sl_group_barrier(group, NULL);
}

static sl_status mismatch(sl_group *group)
{
    float x[2] = {0};
    return sl_group_rank(group) == 1
               ? sl_group_broadcast(group, x, 2, SL_F32, 0, NULL)
               : sl_group_all_reduce(group, x, 1, SL_F32, SL_REDUCE_MAX, NULL);
}

static sl_status receives_from_a_leaver(sl_group *group)
{
    int32_t x = 7;
    SL_TRY(sl_group_barrier(group, NULL));
    if (sl_group_rank(group) == last_rank(group))
        return sl_group_send(group, &x, 1, SL_I32, 0, 3, NULL);
    if (sl_group_rank(group) != 0)
        return SL_OK;
    SL_TRY(sl_group_recv(group, &x, 1, SL_I32, last_rank(group), 3, NULL, NULL));
    return sl_group_recv(group, &x, 1, SL_I32, last_rank(group), 3, NULL, NULL);
}

/* No rank sends anything with tag 3. Rank 1 leaves when rank 0 has waited in vain, and tells so. */
static sl_status receives_from_anyone(sl_group *group)
{
    int32_t x;
    sli_error_copy first;
    sli_error_save(&first, sl_group_recv(group, &x, 1, SL_I32, SL_ANY_RANK, 3, NULL, NULL));
    if (sl_group_rank(group) != 0) {
        while (sl_group_recv(group, NULL, 0, SL_I32, 0, 4, NULL, NULL) != SL_OK &&
               strstr(sl_error_text(), "nothing came"))
            continue;
        return sli_error_restore(&first);
    }
    fprintf(stderr, "first: %s\n", first.text);
    SL_TRY(sl_group_send(group, NULL, 0, SL_I32, 1, 4, NULL));
    sl_status status = SL_ERR_CANCELLED;
    while (strstr(sl_error_text(), "nothing came"))
        status = sl_group_recv(group, &x, 1, SL_I32, SL_ANY_RANK, 3, NULL, NULL);
    return status;
}

/* Goes on until somebody ends it; tells its process and that it has begun. */
static sl_status endless(sl_group *group)
{
    enum { MANY = 300000 };
    FREED float *data = calloc(MANY, sizeof *data);
    sl_group *half = NULL;
    sl_status status = data ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory");
    printf("pid %d %d\n", sl_group_rank(group), (int)getpid());
    fflush(stdout);
    for (int64_t i = 0; status == SL_OK; i++) {
        status =
            sl_group_all_reduce(group, data, i % 3 == 0 ? MANY : 5, SL_F32, SL_REDUCE_SUM, NULL);
        if (status == SL_OK)
            status = sl_group_broadcast(group, data, MANY, SL_F32, (int)(i % 2), NULL);
        if (status == SL_OK && i % 5 == 0)
            status = sl_group_split(group, sl_group_rank(group) % 2, &half);
        if (status == SL_OK && half)
            status = sl_group_all_reduce(half, data, 1000, SL_F32, SL_REDUCE_MAX, NULL);
        sl_group_destroy(&half);
    }
    return status;
}

/* A pipe of one stage a process, which trains until somebody ends it. */
static sl_status endless_pipe(sl_group *group)
{
    int stages = sl_group_size(group);
    double loss;
    SCOPED(rig) at = {0};
    sl_pipe_options options = {.stages = stages, .chunks = 4, .schedule = "1f1b", .group = group};
    sl_status status =
        rig_open(rig_linears(stages), NULL, &(sl_training_options){.pipe = options}, &at);
    printf("pid %d %d\n", sl_group_rank(group), (int)getpid());
    fflush(stdout);
    while (status == SL_OK) {
        status = rig_train(&at, &loss);
        if (status == SL_OK)
            status = sl_pipe_optimizer_step(at.optimizer, 1e-3, 1, NULL);
    }
    return status;
}

/* Goes on until rank 0 gets SIGUSR1, and then ends well. */
static volatile sig_atomic_t is_told;

static void be_told(int number)
{
    is_told = 1;
}

static sl_status until_told(sl_group *group)
{
    int32_t end = 0;
    signal(SIGUSR1, be_told);
    SL_TRY(sl_group_barrier(group, NULL));
    printf("pid %d %d\n", sl_group_rank(group), (int)getpid());
    fflush(stdout);
    while (!end) {
        end = is_told;
        SL_TRY(sl_group_all_reduce(group, &end, 1, SL_I32, SL_REDUCE_MAX, NULL));
        usleep(1000);
    }
    return SL_OK;
}

/* ---- Without memory ----------------------------------------------------------------------- */

static atomic_int before_failure = -1; /* allocations of sluice until one fails; below 0: none */
static atomic_int failures;

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
enum { CAN_FAIL = 1 };

extern char __executable_start, etext;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);

/* Of sluice's own: libsluice is part of this program, and its plugin is called after it. */
static bool is_ours(const void *caller)
{
    Dl_info info;
    return ((const char *)caller >= &__executable_start && (const char *)caller < &etext) ||
           (dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "sluice_mpi"));
}

static bool must_fail(const void *caller)
{
    if (atomic_load(&before_failure) < 0 || !is_ours(caller) ||
        atomic_fetch_sub(&before_failure, 1) != 0)
        return false;
    atomic_fetch_add(&failures, 1);
    return true;
}

void *malloc(size_t bytes)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return must_fail(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}
#else
enum { CAN_FAIL = 0 };
#endif

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* What the making of `made` gave on this rank while allocation `failing` of rank `victim` failed.
 * False in `again` once there was no such allocation. */
static sl_status check_failure(sl_status status, sl_group *made, int victim, int rank, double begun,
                               bool *again)
{
    char named[16], text[1024];
    snprintf(named, sizeof named, "rank %d", victim);
    snprintf(text, sizeof text, "%s", status == SL_OK ? "" : sl_error_text());
    int32_t failed = atomic_exchange(&failures, 0) > 0;
    *again = true;
    SL_TRY(expect((status == SL_OK) == (made != NULL), "a group where there is no error"));
    if (made) { /* one can do without some allocations */
        SL_TRY(sl_group_broadcast(made, &failed, 1, SL_I32, victim, NULL));
        *again = failed;
        return SL_OK;
    }
    if (now() - begun > 10)
        return sl_error(SL_ERR_INTERNAL, "the failure took %g s: %s", now() - begun, text);
    if (rank == victim)
        return failed && status == SL_ERR_MEMORY
                   ? SL_OK
                   : sl_error(SL_ERR_INTERNAL, "the victim got %d: %s", status, text);
    if (status == SL_ERR_MEMORY && strstr(text, named) && strstr(text, "memory"))
        return SL_OK;
    return sl_error(SL_ERR_INTERNAL, "not named: %s", text);
}

static sl_status make_without_memory(int victim, int rank, int *count)
{
    sl_group_options options = {.timeout_seconds = 60};
    sl_group *group;
    bool again = true;
    for (int failing = 0; again; failing++) {
        double begun = now();
        atomic_store(&before_failure, rank == victim ? failing : -1);
        sl_status status = sl_group_create_mpi(&options, &group);
        atomic_store(&before_failure, -1);
        SL_TRY(check_failure(status, group, victim, rank, begun, &again));
        sl_group_destroy(&group);
        *count = failing;
    }
    return SL_OK;
}

/* Each allocation fails in turn: of the session's making, of a group's, of a split's. */
static sl_status without_memory(int victim, int rank)
{
    sl_group_options options = {.timeout_seconds = 60};
    sl_group *group, *half;
    int sessions = 0, makings = 0, splits = 0;
    SL_TRY(make_without_memory(victim, rank, &sessions));
    SL_TRY(make_without_memory(victim, rank, &makings));
    for (bool again = true; again; splits++) {
        double begun = now();
        half = NULL;
        sl_status status = sl_group_create_mpi(&options, &group);
        atomic_store(&before_failure, rank == victim ? splits : -1);
        if (status == SL_OK) /* else the victim was here already */
            status = sl_group_split(group, 0, &half);
        atomic_store(&before_failure, -1);
        SL_TRY(check_failure(status, half, victim, rank, begun, &again));
        sl_group_destroy(&half);
        sl_group_destroy(&group);
    }
    if (rank == victim)
        printf("failed %d %d %d\n", sessions, makings, splits - 1);
    return SL_OK;
}

static sl_status first_without_memory(int rank)
{
    return without_memory(0, rank);
}

static sl_status second_without_memory(int rank)
{
    return without_memory(1, rank);
}

static const struct {
    const char *name;
    sl_status (*run)(int rank);
} alone[] = {{"first_without_memory", first_without_memory},
             {"second_without_memory", second_without_memory}};

static const struct {
    const char *name;
    sl_status (*run)(sl_group *group);
    double limit_seconds;
} cases[] = {{"contract", contract, 60},
             {"bits", bits, 60},
             {"nccl", nccl, 60},
             {"pipes", pipes, 60},
             {"copied_once", copied_once, 60},
             {"again", again, 60},
             {"late", late, 0.3},
             {"leaves", leaves, 60},
             {"aborts", aborts, 60},
             {"mismatch", mismatch, 60},
             {"receives_from_a_leaver", receives_from_a_leaver, 60},
             {"endless", endless, 60},
             {"endless_pipe", endless_pipe, 60},
             {"endless_pipe_with_limit", endless_pipe, 3},
             {"receives_from_anyone", receives_from_anyone, 0.3},
             {"until_told", until_told, 4}};

static sl_status run(const char *name, int *rank)
{
    size_t i = 0;
    for (size_t a = 0; a < sizeof alone / sizeof *alone; a++)
        if (strcmp(alone[a].name, name) == 0)
            return CAN_FAIL ? alone[a].run(*rank) : SL_OK;
    while (i < sizeof cases / sizeof *cases && strcmp(cases[i].name, name) != 0)
        i++;
    if (i == sizeof cases / sizeof *cases)
        return sl_error(SL_ERR_INVALID, "mpi_driver: no case \"%s\"", name);
    SCOPED(sl_group) *group = NULL;
    sl_group_options options = {.timeout_seconds = cases[i].limit_seconds};
    SL_TRY(sl_group_create_mpi(&options, &group));
    *rank = sl_group_rank(group);
    return cases[i].run(group);
}

int main(int count, char **words)
{
    sl_launch_info launch = {0};
    sl_status status = sl_launch_info_read(&launch);
    int rank = launch.launched ? launch.rank : -1;
    if (status == SL_OK)
        status =
            count == 2 ? run(words[1], &rank) : sl_error(SL_ERR_INVALID, "usage: mpi_driver CASE");
    if (status == SL_OK)
        return 0;
    char line[1200]; /* in one piece, however many write */
    int length = snprintf(line, sizeof line, "rank %d: %s\n", rank, sl_error_text());
    return write(STDERR_FILENO, line, (size_t)length) == length ? 1 : 2;
}
