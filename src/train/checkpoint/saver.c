#include "train/checkpoint/saver.h"

#include "core/clock.h"
#include "io/checkpoint/writer.h"
#include "train/checkpoint/save_directory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REASON_BYTES = 1000 };

typedef enum phase {
    IDLE,
    SHARED, /* the first of two halves: a thread, or `done` */
    ALONE   /* all of a save, or the second half: as above */
} phase;

/* What replica 0 must know of another's first half. */
typedef struct report {
    int64_t status;
    char reason[REASON_BYTES];
    sli_checkpoint_file files[]; /* [most_files] */
} report;

struct sli_saver {
    sli_saver_options options;
    sli_snapshot snapshot;
    size_t most_files; /* of a replica, where there are shards */
    phase phase;
    bool has_thread; /* that was not joined */
    pthread_t thread;
    int targets;
    int64_t step;
    uint64_t id;
    char *path;               /* of the checkpoint, or of the best model where there is only that */
    sli_checkpoint_file *all; /* [files of the shards] once the replicas have told of them */
    /* The thread's, until `done` is true: */
    sli_checkpoint_writer *writer;  /* replica 0's, between the halves */
    sli_checkpoint_file *own_files; /* [most_files] */
    double seconds;
    sl_status status;
    char reason[REASON_BYTES];
    atomic_bool done;
};

sl_status sli_saver_create(const sli_saver_options *options, sli_saver **out)
{
    const sli_shards *shards = options->shards;
    *out = calloc(1, sizeof **out);
    if (*out && shards) {
        (*out)->most_files = sli_shards_most_files(shards, options->replicas);
        (*out)->own_files = calloc((*out)->most_files, sizeof *(*out)->own_files);
        (*out)->all = calloc(shards->plan.files, sizeof *(*out)->all);
    }
    if (!*out || (shards && (!(*out)->own_files || !(*out)->all))) {
        sli_saver_destroy(out);
        return sl_error(SL_ERR_MEMORY, "no memory for saving checkpoints");
    }
    (*out)->options = *options;
    return SL_OK;
}

static void join(sli_saver *saver)
{
    if (saver->has_thread)
        pthread_join(saver->thread, NULL);
    saver->has_thread = false;
}

void sli_saver_destroy(sli_saver **saver)
{
    if (!saver || !*saver)
        return;
    join(*saver);
    sli_checkpoint_writer_destroy(&(*saver)->writer);
    sli_snapshot_clear(&(*saver)->snapshot);
    free((*saver)->path);
    free((*saver)->own_files);
    free((*saver)->all);
    free(*saver);
    *saver = NULL;
}

sli_snapshot *sli_saver_snapshot(sli_saver *saver)
{
    return &saver->snapshot;
}

/* ---- The thread: what one writes -------------------------------------------------------- */

static sl_status write_best(const sli_saver *saver)
{
    const sli_saver_options *options = &saver->options;
    const sl_checkpoint_part model = {"model", saver->snapshot.model.items,
                                      saver->snapshot.model.count, options->metadata,
                                      options->metadata_count};
    char *path;
    SL_TRY(sli_save_directory_best(options->directory, &path));
    sl_status status =
        sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = &model,
                                                           .part_count = 1,
                                                           .files = &options->file,
                                                           .file_count = 1,
                                                           .state = saver->snapshot.state,
                                                           .shard_bytes = options->shard_bytes});
    free(path);
    return status;
}

/* All of the copy, but for what the shards are. */
static sl_status write_copy(const sli_saver *saver, sli_checkpoint_writer *writer)
{
    const sli_saver_options *options = &saver->options;
    const sli_snapshot *of = &saver->snapshot;
    sl_checkpoint_part parts[3];
    size_t count = 0;
    parts[count++] = (sl_checkpoint_part){"model", of->model.items, of->model.count,
                                          options->metadata, options->metadata_count};
    if (!options->shards)
        parts[count++] =
            (sl_checkpoint_part){"optimizer", of->optimizer.items, of->optimizer.count, NULL, 0};
    if (of->best.items)
        parts[count++] = (sl_checkpoint_part){"best", of->best.items, of->best.count,
                                              options->metadata, options->metadata_count};
    return sli_checkpoint_writer_add(writer, &(sl_checkpoint_contents){.parts = parts,
                                                                       .part_count = count,
                                                                       .files = &options->file,
                                                                       .file_count = 1,
                                                                       .shard_bytes =
                                                                           options->shard_bytes});
}

static sli_checkpoint_share share_of(const sli_saver *saver)
{
    return (sli_checkpoint_share){&saver->options.shards->part, &saver->options.shards->plan, NULL};
}

/* Of a checkpoint that is not shared, all; of one that is, the first half. */
static sl_status begin_step(sli_saver *saver)
{
    const sli_shards *shards = saver->options.shards;
    if (saver->options.rank == 0) {
        SL_TRY(sli_checkpoint_writer_create(saver->path, saver->id, &saver->writer));
        SL_TRY(write_copy(saver, saver->writer));
    } else {
        SL_TRY(sli_checkpoint_writer_join(saver->path, saver->id, &saver->writer));
    }
    if (!shards)
        return SL_OK;
    const sli_checkpoint_share share = share_of(saver);
    return sli_checkpoint_writer_write_own(saver->writer, &share, saver->options.rank,
                                           saver->own_files);
}

static sl_status end_step(sli_saver *saver)
{
    const sli_saver_options *options = &saver->options;
    if (options->shards) {
        const sli_checkpoint_share share = share_of(saver);
        SL_TRY(sli_checkpoint_writer_list_all(saver->writer, &share, saver->all));
    }
    return sli_checkpoint_writer_commit(saver->writer, saver->snapshot.state);
}

static sl_status unwritten(const sli_saver *saver, sl_status status)
{
    return sl_error_context(status, "%s: the checkpoint cannot be written: ", saver->path);
}

static void tell(const sli_saver *saver, bool begins)
{
    if (saver->options.saving)
        saver->options.saving(saver->options.context, begins);
}

static void note_end(sli_saver *saver, sl_status status, double start)
{
    if (status != SL_OK && saver->status == SL_OK) {
        saver->status = status;
        snprintf(saver->reason, sizeof saver->reason, "%s", sl_error_text());
    }
    saver->seconds += sli_clock_seconds() - start;
    atomic_store(&saver->done, true);
}

static void *write_shared(void *arg)
{
    sli_saver *saver = arg;
    double start = sli_clock_seconds();
    note_end(saver, unwritten(saver, begin_step(saver)), start);
    tell(saver, false);
    return NULL;
}

/* A save that has failed before, in its first half or another's, leaves nothing. */
static sl_status finish_step(sli_saver *saver)
{
    sl_status status = saver->status;
    if (status == SL_OK && !saver->options.shards)
        status = unwritten(saver, begin_step(saver));
    if (status == SL_OK)
        status = unwritten(saver, end_step(saver));
    sli_checkpoint_writer_destroy(&saver->writer);
    return status == SL_OK ? sli_save_directory_prune(saver->options.directory, saver->step,
                                                      saver->options.keep)
                           : status;
}

static void *write_alone(void *arg)
{
    sli_saver *saver = arg;
    double start = sli_clock_seconds();
    sl_status status = saver->targets & SLI_SAVE_STEP ? finish_step(saver) : SL_OK;
    if (status == SL_OK && saver->targets & SLI_SAVE_BEST)
        status = write_best(saver);
    note_end(saver, status, start);
    tell(saver, false);
    return NULL;
}

/* ---- The run's side --------------------------------------------------------------------- */

/* The thread of a phase; without one the phase has ended at once, and has failed. */
static void start_thread(sli_saver *saver, phase next, void *(*write)(void *))
{
    saver->phase = next;
    atomic_store(&saver->done, false);
    tell(saver, true);
    int error = pthread_create(&saver->thread, NULL, write, saver);
    saver->has_thread = error == 0;
    if (error == 0)
        return;
    note_end(saver,
             sl_error(SL_ERR_MEMORY, "no thread for saving a checkpoint: %s", strerror(error)),
             sli_clock_seconds());
    tell(saver, false);
}

static sl_status prepare(sli_saver *saver, int targets, int64_t step, uint64_t id)
{
    const char *directory = saver->options.directory;
    free(saver->path);
    saver->path = NULL;
    saver->targets = targets;
    saver->step = step;
    saver->id = id;
    saver->status = SL_OK;
    saver->seconds = 0;
    return targets & SLI_SAVE_STEP ? sli_save_directory_step(directory, step, &saver->path)
                                   : sli_save_directory_best(directory, &saver->path);
}

static bool has_halves(const sli_saver *saver, int targets)
{
    return saver->options.shards && targets & SLI_SAVE_STEP;
}

void sli_saver_start_failed(sli_saver *saver, int targets, int64_t step, sl_status status,
                            const char *reason)
{
    char kept[REASON_BYTES];
    snprintf(kept, sizeof kept, "%s", reason);
    prepare(saver, targets, step, 0);
    saver->phase = has_halves(saver, targets) ? SHARED : ALONE;
    note_end(saver, sl_error(status, "%s", kept), sli_clock_seconds());
}

sl_status sli_saver_start(sli_saver *saver, int targets, int64_t step, uint64_t id)
{
    SL_TRY(prepare(saver, targets, step, id));
    if (!has_halves(saver, targets)) {
        start_thread(saver, ALONE, write_alone);
        return SL_OK;
    }
    sli_shards_take_data(saver->options.shards, &saver->snapshot.optimizer);
    start_thread(saver, SHARED, write_shared);
    return SL_OK;
}

bool sli_saver_ended(sli_saver *saver, bool wait, sl_checkpoint_event *event)
{
    if (saver->phase != ALONE || (!wait && !atomic_load(&saver->done)))
        return false;
    join(saver);
    sli_checkpoint_writer_destroy(&saver->writer); /* where there was no thread to do it */
    saver->phase = IDLE;
    bool saved = saver->status == SL_OK;
    *event = (sl_checkpoint_event){
        .kind = saved ? SL_CHECKPOINT_SAVED : SL_CHECKPOINT_FAILED,
        .path = saver->path ? saver->path : saver->options.directory,
        .step = saver->step,
        .write_seconds = saver->seconds,
        .reason = saved ? NULL : saver->reason,
    };
    return true;
}

/* ---- Between the halves ----------------------------------------------------------------- */

bool sli_saver_is_shared(const sli_saver *saver)
{
    return saver->phase == SHARED;
}

bool sli_saver_wrote(const sli_saver *saver)
{
    return atomic_load(&saver->done);
}

size_t sli_saver_report_bytes(const sli_saver *saver)
{
    return sizeof(report) + saver->most_files * sizeof(sli_checkpoint_file);
}

void sli_saver_report(sli_saver *saver, void *to)
{
    report *own = to;
    join(saver);
    memset(own, 0, sli_saver_report_bytes(saver));
    own->status = saver->status;
    if (saver->status != SL_OK)
        snprintf(own->reason, sizeof own->reason, "%s", saver->reason);
    else
        memcpy(own->files, saver->own_files, saver->most_files * sizeof *own->files);
}

/* Takes what a replica says of its first half. */
static void take_report(sli_saver *saver, int rank, const report *from)
{
    size_t count, first = sli_checkpoint_plan_first(&saver->options.shards->plan, rank, &count);
    for (size_t i = 0; i < count; i++)
        saver->all[first + i] = from->files[i];
    if (from->status == SL_OK || saver->status != SL_OK)
        return;
    saver->status = (sl_status)from->status;
    snprintf(saver->reason, sizeof saver->reason, "rank %d: %s", rank, from->reason);
}

void sli_saver_complete(sli_saver *saver, const void *reports)
{
    size_t bytes = sli_saver_report_bytes(saver);
    if (saver->options.rank != 0) {
        sli_checkpoint_writer_destroy(&saver->writer);
        saver->phase = IDLE;
        return;
    }
    for (int rank = 0; rank < saver->options.replicas; rank++)
        take_report(saver, rank, (const report *)((const char *)reports + (size_t)rank * bytes));
    start_thread(saver, ALONE, write_alone);
}
