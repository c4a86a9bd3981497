#include "train/saver.h"

#include "core/clock.h"
#include "train/save_directory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REASON_BYTES = 1024 };

struct sli_saver {
    sli_saver_options options;
    sli_snapshot snapshot;
    bool writing; /* there is a thread that was not joined */
    pthread_t thread;
    int targets;
    int64_t step;
    char *path; /* of the checkpoint, or of the best model where there is only that */
    /* The thread's, until `done` is true: */
    double seconds;
    sl_status status;
    char reason[REASON_BYTES];
    atomic_bool done;
};

sl_status sli_saver_create(const sli_saver_options *options, sli_saver **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for saving checkpoints");
    (*out)->options = *options;
    return SL_OK;
}

void sli_saver_destroy(sli_saver **saver)
{
    sl_checkpoint_event event;
    if (!saver || !*saver)
        return;
    sli_saver_ended(*saver, true, &event);
    sli_snapshot_clear(&(*saver)->snapshot);
    free((*saver)->path);
    free(*saver);
    *saver = NULL;
}

sli_snapshot *sli_saver_snapshot(sli_saver *saver)
{
    return &saver->snapshot;
}

/* ---- The thread ------------------------------------------------------------------------- */

static sl_status write_best(const sli_saver *saver)
{
    const sli_saver_options *options = &saver->options;
    const sl_checkpoint_part model = {"model", saver->snapshot.model.items,
                                      saver->snapshot.model.count, options->notes,
                                      options->note_count};
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

static sl_status write_step(const sli_saver *saver)
{
    const sli_saver_options *options = &saver->options;
    const sli_snapshot *of = &saver->snapshot;
    const sl_checkpoint_part parts[] = {
        {"model", of->model.items, of->model.count, options->notes, options->note_count},
        {"optimizer", of->optimizer.items, of->optimizer.count, NULL, 0},
        {"best", of->best.items, of->best.count, options->notes, options->note_count},
    };
    SL_TRY(sl_checkpoint_save(saver->path,
                              &(sl_checkpoint_contents){.parts = parts,
                                                        .part_count = of->best.items ? 3 : 2,
                                                        .files = &options->file,
                                                        .file_count = 1,
                                                        .state = of->state,
                                                        .shard_bytes = options->shard_bytes}));
    return sli_save_directory_prune(options->directory, saver->step, options->keep);
}

static void *write_snapshot(void *arg)
{
    sli_saver *saver = arg;
    double start = sli_clock_seconds();
    saver->status = saver->targets & SLI_SAVE_STEP ? write_step(saver) : SL_OK;
    if (saver->status == SL_OK && saver->targets & SLI_SAVE_BEST)
        saver->status = write_best(saver);
    if (saver->status != SL_OK)
        snprintf(saver->reason, sizeof saver->reason, "%s", sl_error_text());
    saver->seconds = sli_clock_seconds() - start;
    atomic_store(&saver->done, true);
    return NULL;
}

/* ---- The run's side --------------------------------------------------------------------- */

sl_status sli_saver_start(sli_saver *saver, int targets, int64_t step)
{
    const char *directory = saver->options.directory;
    free(saver->path);
    saver->path = NULL;
    saver->targets = targets;
    saver->step = step;
    SL_TRY(targets & SLI_SAVE_STEP ? sli_save_directory_step(directory, step, &saver->path)
                                   : sli_save_directory_best(directory, &saver->path));
    atomic_store(&saver->done, false);
    int error = pthread_create(&saver->thread, NULL, write_snapshot, saver);
    if (error != 0)
        return sl_error(SL_ERR_MEMORY, "no thread for saving a checkpoint: %s", strerror(error));
    saver->writing = true;
    return SL_OK;
}

bool sli_saver_ended(sli_saver *saver, bool wait, sl_checkpoint_event *event)
{
    if (!saver->writing || (!wait && !atomic_load(&saver->done)))
        return false;
    pthread_join(saver->thread, NULL);
    saver->writing = false;
    bool saved = saver->status == SL_OK;
    *event = (sl_checkpoint_event){
        .kind = saved ? SL_CHECKPOINT_SAVED : SL_CHECKPOINT_FAILED,
        .path = saver->path,
        .step = saver->step,
        .write_seconds = saver->seconds,
        .reason = saved ? NULL : saver->reason,
    };
    return true;
}
