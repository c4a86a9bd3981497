#include "train/checkpoint/saver.h"

#include "core/clock.h"
#include "core/error.h"
#include "io/checkpoint/segments.h"
#include "io/checkpoint/writer.h"
#include "train/checkpoint/save_directory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What the first replica must know of another's shard. */
typedef struct report {
    sli_checkpoint_written file;
    sli_error_copy error;
} report;
_Static_assert(sizeof(report) % sizeof(int64_t) == 0, "reports are words");

struct sli_saver {
    sli_saver_options options;
    int rank, ranks; /* in options.group */
    sli_snapshot snapshot;
    report own, *all; /* all [ranks]: the first replica's */
    bool under_way;   /* from the start until the end was told */
    bool has_thread;  /* that was not joined */
    pthread_t thread;
    int targets;
    int64_t step;
    uint64_t id;
    char *path; /* of the checkpoint, or of the best model where there is only that */
    /* The thread's, until `done` is true: */
    double seconds;
    sli_error_copy error;
    atomic_bool done;
};

sl_status sli_saver_create(const sli_saver_options *options, sli_saver **out)
{
    sli_saver *saver = *out = calloc(1, sizeof *saver);
    sl_group *group = options->group;
    int ranks = group ? sl_group_size(group) : 1;
    if (saver)
        saver->all = calloc((size_t)ranks, sizeof *saver->all);
    if (!saver || !saver->all) {
        sl_group_destroy(&group);
        sli_saver_destroy(out);
        return sl_error(SL_ERR_MEMORY, "no memory for saving checkpoints");
    }
    saver->options = *options;
    saver->rank = group ? sl_group_rank(group) : 0;
    saver->ranks = ranks;
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
    if ((*saver)->has_thread && (*saver)->options.group)
        sl_group_abort((*saver)->options.group, SL_ERR_CANCELLED, "the run has ended");
    join(*saver);
    sl_group_destroy(&(*saver)->options.group);
    sli_tensor_copy_clear(&(*saver)->snapshot.model);
    sli_tensor_copy_clear(&(*saver)->snapshot.optimizer);
    sli_tensor_copy_clear(&(*saver)->snapshot.best);
    free((*saver)->snapshot.state);
    free((*saver)->all);
    free((*saver)->path);
    free(*saver);
    *saver = NULL;
}

sli_snapshot *sli_saver_snapshot(sli_saver *saver)
{
    return &saver->snapshot;
}

/* ---- What is written -------------------------------------------------------------------- */

static sl_checkpoint_part model_part(const sli_saver *saver, const char *name,
                                     const sli_tensor_copy *of)
{
    return (sl_checkpoint_part){name, of->items, of->count, saver->options.metadata,
                                saver->options.metadata_count};
}

/* What the first replica writes of a checkpoint, but for its shard. */
static sl_status write_copy(const sli_saver *saver, sli_checkpoint_writer *writer)
{
    const sli_saver_options *options = &saver->options;
    const sli_snapshot *of = &saver->snapshot;
    sl_checkpoint_part parts[3] = {model_part(saver, "model", &of->model)};
    size_t count = 1;
    if (!options->group) {
        parts[count] = (sl_checkpoint_part){.name = "optimizer"};
        parts[count].items = of->optimizer.items;
        parts[count++].count = of->optimizer.count;
    }
    if (of->best.items)
        parts[count++] = model_part(saver, "best", &of->best);
    const sl_checkpoint_contents contents = {.parts = parts,
                                             .part_count = count,
                                             .files = &options->file,
                                             .file_count = 1,
                                             .shard_bytes = options->save->shard_bytes};
    return sli_checkpoint_writer_add(writer, &contents, NULL);
}

static sl_status write_shard(const sli_saver *saver, sli_checkpoint_writer *writer,
                             sli_checkpoint_written *written)
{
    const sli_tensor_copy *of = &saver->snapshot.optimizer;
    const sl_metadata shapes = {SLI_SEGMENTS_KEY, of->shapes};
    const sl_checkpoint_part shard = {"optimizer", of->items, of->count, &shapes,
                                      of->shapes ? 1 : 0};
    return sli_checkpoint_writer_add_shard(writer, &shard, saver->rank, saver->ranks, written);
}

/* All that this replica writes but state.json. */
static sl_status write_files(sli_saver *saver, sli_checkpoint_writer **writer)
{
    SL_TRY(sli_checkpoint_writer_create(saver->path, saver->id, saver->rank != 0, writer));
    if (saver->rank == 0)
        SL_TRY(write_copy(saver, *writer));
    return saver->options.group ? write_shard(saver, *writer, &saver->own.file) : SL_OK;
}

static sl_status write_best(const sli_saver *saver)
{
    const sli_saver_options *options = &saver->options;
    const sl_checkpoint_part model = model_part(saver, "model", &saver->snapshot.model);
    const sl_checkpoint_contents contents = {.parts = &model,
                                             .part_count = 1,
                                             .files = &options->file,
                                             .file_count = 1,
                                             .state = saver->snapshot.state,
                                             .shard_bytes = options->save->shard_bytes};
    char *path;
    SL_TRY(sli_save_directory_best(options->save->directory, &path));
    sl_status status = sl_checkpoint_save(path, &contents);
    free(path);
    return status;
}

/* ---- The thread ------------------------------------------------------------------------- */

/* The first error of a save is the save's. */
static void keep_error(sli_saver *saver, sl_status status)
{
    if (saver->error.status == SL_OK)
        sli_error_save(&saver->error, status);
}

/* Every replica, once it has written its shard or has failed to: the first one hears of all, and
 * lists their files. */
static sl_status exchange_reports(sli_saver *saver, sli_checkpoint_writer *writer)
{
    saver->own.error = saver->error;
    SL_TRY(sl_group_gather(saver->options.group, &saver->own, saver->rank == 0 ? saver->all : NULL,
                           sizeof(report) / sizeof(int64_t), SL_I64, 0, NULL));
    if (saver->rank != 0 || saver->error.status != SL_OK)
        return SL_OK;
    for (int r = 1; r < saver->ranks; r++) {
        const report *other = &saver->all[r];
        SL_TRY(sl_error_context(sli_error_restore(&other->error), "rank %d: ", r));
        SL_TRY(
            sli_checkpoint_writer_list_shard(writer, "optimizer", r, saver->ranks, &other->file));
    }
    return SL_OK;
}

static sl_status unwritten(const sli_saver *saver, sl_status status)
{
    return sl_error_context(status, "%s: the checkpoint cannot be written: ", saver->path);
}

static void save_step(sli_saver *saver)
{
    sli_checkpoint_writer *writer = NULL;
    const sli_saver_options *options = &saver->options;
    if (saver->error.status == SL_OK)
        keep_error(saver, unwritten(saver, write_files(saver, &writer)));
    if (options->group)
        keep_error(saver, exchange_reports(saver, writer));
    bool commits = saver->error.status == SL_OK && saver->rank == 0;
    if (commits)
        keep_error(saver,
                   unwritten(saver, sli_checkpoint_writer_commit(writer, saver->snapshot.state)));
    sli_checkpoint_writer_destroy(&writer);
    if (commits && saver->error.status == SL_OK)
        keep_error(saver, sli_save_directory_prune(options->save->directory, saver->step,
                                                   options->save->keep));
}

static void tell(const sli_saver *saver, bool begins)
{
    const sl_save_options *save = saver->options.save;
    if (save->saving)
        save->saving(save->context, begins);
}

static void *save(void *arg)
{
    sli_saver *saver = arg;
    double start = sli_clock_seconds();
    if (saver->targets & SLI_SAVE_STEP)
        save_step(saver);
    if (saver->targets & SLI_SAVE_BEST && saver->error.status == SL_OK)
        keep_error(saver, write_best(saver));
    saver->seconds = sli_clock_seconds() - start;
    atomic_store(&saver->done, true);
    tell(saver, false);
    return NULL;
}

/* ---- The run's side --------------------------------------------------------------------- */

void sli_saver_start(sli_saver *saver, int targets, int64_t step, uint64_t id, sl_status copied)
{
    const char *directory = saver->options.save->directory;
    free(saver->path);
    saver->path = NULL;
    saver->targets = targets;
    saver->step = step;
    saver->id = id;
    saver->error.status = SL_OK;
    keep_error(saver, copied);
    keep_error(saver, targets & SLI_SAVE_STEP
                          ? sli_save_directory_step(directory, step, &saver->path)
                          : sli_save_directory_best(directory, &saver->path));
    atomic_store(&saver->done, false);
    saver->under_way = true;
    tell(saver, true);
    saver->has_thread = pthread_create(&saver->thread, NULL, save, saver) == 0;
    if (!saver->has_thread) /* the run waits */
        save(saver);
}

bool sli_saver_ended(sli_saver *saver, bool wait, sl_checkpoint_event *event)
{
    if (!saver->under_way || (!wait && !atomic_load(&saver->done)))
        return false;
    join(saver);
    saver->under_way = false;
    bool saved = saver->error.status == SL_OK;
    *event = (sl_checkpoint_event){
        .kind = saved ? SL_CHECKPOINT_SAVED : SL_CHECKPOINT_FAILED,
        .path = saver->path ? saver->path : saver->options.save->directory,
        .step = saver->step,
        .write_seconds = saver->seconds,
        .reason = saved ? NULL : saver->error.text,
    };
    return true;
}

const char *sli_saver_reason(const sli_saver *saver)
{
    return saver->error.text;
}
