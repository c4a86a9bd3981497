/* How fast checkpoints are: saving against plain write and fsync, loading against plain reading,
 * each of the same bytes in the same run; and what saving in the background costs a training run,
 * alone and of two replicas, whose optimizer's state is whole on each or sharded.
 *
 * Usage: bench_checkpoint [DIRECTORY [MIB]]     (default /tmp, 1024); the directory is made where
 * it is not there */
#define _GNU_SOURCE
#include "support.h"

#include "sluice/app/train.h"
#include "sluice/checkpoint.h"
#include "synthetic/chain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 3, TENSORS = 64, PATH_BYTES = 512, BLOCK = 1 << 18 };

static void demand(bool condition, const char *what)
{
    if (condition)
        return;
    perror(what);
    exit(1);
}

static void remove_tree(const char *path)
{
    pid_t child = fork();
    if (child == 0) {
        execlp("rm", "rm", "-rf", path, (char *)NULL);
        _exit(127);
    }
    waitpid(child, NULL, 0);
}

/* ---- Bytes ------------------------------------------------------------------------------ */

static double write_plainly(const char *path, const char *data, size_t bytes)
{
    double start = bench_now();
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    demand(file >= 0, path);
    for (size_t done = 0; done < bytes;) {
        ssize_t written = write(file, data + done, bytes - done);
        demand(written > 0, path);
        done += (size_t)written;
    }
    demand(fsync(file) == 0, path);
    close(file);
    return bench_now() - start;
}

static double read_plainly(const char *path, char *data, size_t bytes)
{
    double start = bench_now();
    int file = open(path, O_RDONLY);
    demand(file >= 0, path);
    for (size_t done = 0; done < bytes;) {
        /* Faster here than one read of everything. */
        ssize_t got = read(file, data + done, bytes - done < BLOCK ? bytes - done : BLOCK);
        demand(got > 0, path);
        done += (size_t)got;
    }
    close(file);
    return bench_now() - start;
}

static void make_items(char *data, size_t bytes, sl_safetensors_item *items,
                       char names[TENSORS][16])
{
    size_t each = bytes / TENSORS;
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], 16, "%d.weight", i);
        items[i] =
            (sl_safetensors_item){names[i], SL_F32, sl_shape_1d((int64_t)(each / sizeof(float))),
                                  data + (size_t)i * each};
    }
}

static double load(const char *path, const sl_safetensors_item *items)
{
    sl_checkpoint_reader *reader;
    double start = bench_now();
    bench_check(sl_checkpoint_open(path, &reader));
    bench_check(sl_checkpoint_read(reader, "model", items, TENSORS));
    sl_checkpoint_close(&reader);
    return bench_now() - start;
}

static void print_rate(const char *what, double *seconds, double *plain, size_t bytes)
{
    double ours = bench_median(seconds, ROUNDS), theirs = bench_median(plain, ROUNDS);
    printf("| %s | %.0f MB/s | %.0f MB/s | %.2f |\n", what, 1e-6 * (double)bytes / ours,
           1e-6 * (double)bytes / theirs, theirs / ours);
}

static void bench_bytes(const char *directory, size_t bytes)
{
    static char names[TENSORS][16];
    char path[PATH_BYTES], plain_path[PATH_BYTES], file_path[PATH_BYTES + 32];
    sl_safetensors_item items[TENSORS];
    double saving[ROUNDS], loading[ROUNDS], writing[ROUNDS], reading[ROUNDS];
    char *data = malloc(bytes);
    demand(data != NULL, "memory");
    for (size_t i = 0; i < bytes; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    make_items(data, bytes, items, names);
    snprintf(path, sizeof path, "%s/checkpoint", directory);
    snprintf(plain_path, sizeof plain_path, "%s/plain", directory);
    snprintf(file_path, sizeof file_path, "%s/model.safetensors", path);
    const sl_checkpoint_part part = {"model", items, TENSORS, NULL, 0};
    const sl_checkpoint_contents contents = {.parts = &part, .part_count = 1};
    for (int round = 0; round < ROUNDS; round++) {
        writing[round] = write_plainly(plain_path, data, bytes);
        unlink(plain_path);
        double start = bench_now();
        bench_check(sl_checkpoint_save(path, &contents));
        saving[round] = bench_now() - start;
        read_plainly(file_path, data, bytes); /* the first time is slower, whoever reads */
        reading[round] = read_plainly(file_path, data, bytes);
        loading[round] = load(path, items);
        remove_tree(path);
    }
    bench_heading("| | sluice | plain | ratio |");
    print_rate("saving", saving, writing, bytes);
    print_rate("loading", loading, reading, bytes);
    free(data);
}

/* ---- Training --------------------------------------------------------------------------- */

enum { MOST_REPLICAS = 2 };

/* One replica's: when its steps began and ended, and what its optimizer's state takes. */
typedef struct record {
    const sl_pipe *pipe;
    double start, end;
    uint64_t optimizer_peak;
    double copy_seconds;
    int saved, failed;
} record;

static void read_memory(record *r)
{
    sl_memory_stats stats;
    sl_device_memory(sl_pipe_device(r->pipe, 0), &stats);
    r->optimizer_peak = stats.peak_bytes[SL_MEMORY_OPTIMIZER];
}

static sl_status record_start(void *context, const sl_run_info *info)
{
    record *r = context;
    r->pipe = info->pipe;
    r->start = bench_now();
    return SL_OK;
}

static sl_status record_step(void *context, const sl_step_info *step)
{
    (void)step;
    record *r = context;
    r->end = bench_now();
    return SL_OK;
}

static sl_status record_finish(void *context, const sl_run_info *info, const sl_run_result *result)
{
    (void)info;
    (void)result;
    read_memory(context);
    return SL_OK;
}

static sl_status record_checkpoint(void *context, const sl_checkpoint_event *event)
{
    record *r = context;
    r->saved += event->kind == SL_CHECKPOINT_SAVED;
    r->failed += event->kind == SL_CHECKPOINT_FAILED;
    r->copy_seconds += event->copy_seconds;
    return SL_OK;
}

static void run_training(const char *text, const char *checkpoints, bool zero, int replicas,
                         record *of)
{
    sl_train_options options = {0};
    sl_run_result result;
    sl_reporter reporters[MOST_REPLICAS];
    bench_check(sl_train_options_preset("transformer-tutorial", &options));
    options.data = text;
    options.model.emsize = options.model.nhid = 256;
    options.epochs = 1;
    options.max_batches = 100;
    options.eval_max_batches = 1;
    options.replicas = replicas;
    options.zero = zero;
    options.batch_size /= replicas;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.lr.lr = 1e-3;
    if (checkpoints)
        options.checkpoints =
            (sl_save_options){.directory = checkpoints, .every_steps = 20, .keep = 2};
    for (int r = 0; r < replicas; r++) {
        of[r] = (record){0};
        reporters[r] = (sl_reporter){.context = &of[r],
                                     .started = record_start,
                                     .step = record_step,
                                     .finished = record_finish,
                                     .rank = r,
                                     .checkpoint = record_checkpoint};
    }
    bench_check(sl_train_run(&options, reporters, replicas, &result));
    demand(of[0].failed == 0, "a save failed");
}

/* The same training without and with saves, alternately. */
static void bench_training(const char *text, const char *checkpoints, const char *what, bool zero,
                           int replicas)
{
    double without[ROUNDS], with[ROUNDS];
    record of[MOST_REPLICAS];
    for (int round = 0; round < ROUNDS; round++) {
        run_training(text, NULL, zero, replicas, of);
        without[round] = of[0].end - of[0].start;
        run_training(text, checkpoints, zero, replicas, of);
        with[round] = of[0].end - of[0].start;
        remove_tree(checkpoints);
    }
    double alone = bench_median(without, ROUNDS), saving = bench_median(with, ROUNDS);
    uint64_t most = of[0].optimizer_peak;
    for (int r = 1; r < replicas; r++)
        most = of[r].optimizer_peak > most ? of[r].optimizer_peak : most;
    printf("| %s | %.1f ms | %.1f%% | %.1f ms | %.2f MiB |\n", what, 10 * alone,
           100 * (saving / alone - 1), 1e3 * of[0].copy_seconds / of[0].saved,
           (double)most / (1 << 20));
}

static void bench_trainings(const char *directory)
{
    char text[PATH_BYTES], checkpoints[PATH_BYTES];
    snprintf(text, sizeof text, "%s/text", directory);
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", directory);
    bench_check(sli_synthetic_write(text, &(sli_synthetic_options){.train_tokens = 200000}));
    printf("\n");
    bench_heading(
        "| | a step without saving | slower by | copy | optimizer's state of a replica, at most |");
    bench_training(text, checkpoints, "one replica", false, 1);
    bench_training(text, checkpoints, "two replicas", false, 2);
    bench_training(text, checkpoints, "two with `--zero`", true, 2);
}

int main(int argc, char **argv)
{
    char directory[256];
    setlinebuf(stdout);
    size_t mib = argc > 2 ? strtoul(argv[2], NULL, 10) : 1024;
    snprintf(directory, sizeof directory, "%s/sluice-bench-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    if (argc > 1)
        demand(mkdir(argv[1], 0777) == 0 || errno == EEXIST, argv[1]);
    demand(mib > 0 && mkdtemp(directory) != NULL, directory);
    printf("%zu MiB in %s\n", mib, directory);
    bench_bytes(directory, mib << 20);
    bench_trainings(directory);
    remove_tree(directory);
    return 0;
}
