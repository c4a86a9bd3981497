/* Writes a checkpoint behind a run's back. */
#include "train/checkpoint/saver.h"

#include "core/clock.h"
#include "io/checkpoint/format.h"

#include <stdlib.h>
#include <string.h>

/* ---- What is written -------------------------------------------------------------------- */

static sl_checkpoint_part model_part(const sli_checkpoints *of, const char *name,
                                     const sli_tensor_copy *copy)
{
    return (sl_checkpoint_part){name, copy->items, copy->count, of->metadata.rows,
                                of->metadata.count};
}

static sl_checkpoint_file vocab_file(const sli_checkpoints *of)
{
    return (sl_checkpoint_file){"model.vocab.txt", of->vocab, of->vocab_bytes};
}

/* What the first replica writes of a checkpoint, but for its shard. */
static sl_status write_copy(const sli_checkpoints *of, sli_checkpoint_writer *writer)
{
    const sl_checkpoint_file vocab = vocab_file(of);
    sl_checkpoint_part parts[3] = {model_part(of, "model", &of->model)};
    size_t count = 1;
    const sl_checkpoint_part optimizer = {.name = "optimizer",
                                          .items = of->optimizer.items,
                                          .count = of->optimizer.count};
    if (!of->group)
        parts[count++] = optimizer;
    if (of->best.items)
        parts[count++] = model_part(of, "best", &of->best);
    const sl_checkpoint_contents contents = {.parts = parts,
                                             .part_count = count,
                                             .files = &vocab,
                                             .file_count = 1,
                                             .shard_bytes = of->options->shard_bytes};
    return sli_checkpoint_writer_add(writer, &contents, NULL);
}

static sl_status write_shard(sli_checkpoints *of, sli_checkpoint_writer *writer)
{
    const sli_tensor_copy *copy = &of->optimizer;
    const sl_metadata shapes = {SLI_SEGMENTS_KEY, copy->shapes};
    const sl_checkpoint_part shard = {"optimizer", copy->items, copy->count, &shapes,
                                      copy->shapes ? 1 : 0};
    return sli_checkpoint_writer_add_shard(writer, &shard, of->run->replica.rank,
                                           of->run->replica.count, &of->own.file);
}

/* All that this replica writes but state.json. */
static sl_status write_files(sli_checkpoints *of, sli_checkpoint_writer **writer)
{
    bool is_first = of->run->replica.rank == 0;
    SL_TRY(sli_checkpoint_writer_create(of->path, of->number, !is_first, writer));
    if (is_first)
        SL_TRY(write_copy(of, *writer));
    return of->group ? write_shard(of, *writer) : SL_OK;
}

static sl_status write_best(const sli_checkpoints *of)
{
    const sl_checkpoint_file vocab = vocab_file(of);
    const sl_checkpoint_part model = model_part(of, "model", &of->model);
    const sl_checkpoint_contents contents = {.parts = &model,
                                             .part_count = 1,
                                             .files = &vocab,
                                             .file_count = 1,
                                             .state = of->state,
                                             .shard_bytes = of->options->shard_bytes};
    char *path;
    SL_TRY(sli_save_directory_best(of->options->directory, &path));
    sl_status status = sl_checkpoint_save(path, &contents);
    free(path);
    return status;
}

/* ---- The thread ------------------------------------------------------------------------- */

/* The first error of a save is the save's. */
static void keep_error(sli_checkpoints *of, sl_status status)
{
    if (of->error.status == SL_OK)
        sli_error_save(&of->error, status);
}

/* Every replica, once it has written its shard or has failed to: the first one hears of all, and
 * lists their files. */
static sl_status exchange_reports(sli_checkpoints *of, sli_checkpoint_writer *writer)
{
    _Static_assert(sizeof of->own % sizeof(int64_t) == 0, "reports are words");
    int rank = of->run->replica.rank, ranks = of->run->replica.count;
    of->own.error = of->error;
    SL_TRY(sl_group_gather(of->group, &of->own, rank == 0 ? of->all : NULL,
                           sizeof of->own / sizeof(int64_t), SL_I64, 0, NULL));
    if (rank != 0 || of->error.status != SL_OK)
        return SL_OK;
    for (int r = 1; r < ranks; r++) {
        const sli_shard_report *other = &of->all[r];
        SL_TRY(sl_error_context(sli_error_restore(&other->error), "rank %d: ", r));
        SL_TRY(sli_checkpoint_writer_list_shard(writer, "optimizer", r, ranks, &other->file));
    }
    return SL_OK;
}

static sl_status unwritten(const sli_checkpoints *of, sl_status status)
{
    return sl_error_context(status, "%s: the checkpoint cannot be written: ", of->path);
}

static void save_step(sli_checkpoints *of)
{
    sli_checkpoint_writer *writer = NULL;
    if (of->error.status == SL_OK)
        keep_error(of, unwritten(of, write_files(of, &writer)));
    if (of->group)
        keep_error(of, exchange_reports(of, writer));
    bool commits = of->error.status == SL_OK && of->run->replica.rank == 0;
    if (commits)
        keep_error(of, unwritten(of, sli_checkpoint_writer_commit(writer, of->state)));
    sli_checkpoint_writer_destroy(&writer);
    if (commits && of->error.status == SL_OK)
        keep_error(of,
                   sli_save_directory_prune(of->options->directory, of->step, of->options->keep));
}

static void *save(void *arg)
{
    sli_checkpoints *of = arg;
    const sl_save_options *options = of->options;
    double start = sli_clock_seconds();
    if (of->targets & SLI_SAVE_STEP)
        save_step(of);
    if (of->targets & SLI_SAVE_BEST && of->error.status == SL_OK)
        keep_error(of, write_best(of));
    of->write_seconds = sli_clock_seconds() - start;
    atomic_store(&of->done, true);
    if (options->saving)
        options->saving(options->context, false);
    return NULL;
}

/* ---- The run's side --------------------------------------------------------------------- */

void sli_saver_start(sli_checkpoints *of, sl_status copied)
{
    const sl_save_options *options = of->options;
    free(of->path);
    of->path = NULL;
    of->error.status = SL_OK;
    keep_error(of, copied);
    keep_error(of, of->targets & SLI_SAVE_STEP
                       ? sli_save_directory_step(options->directory, of->step, &of->path)
                       : sli_save_directory_best(options->directory, &of->path));
    atomic_store(&of->done, false);
    of->under_way = true;
    if (options->saving)
        options->saving(options->context, true);
    of->has_thread = pthread_create(&of->thread, NULL, save, of) == 0;
    if (!of->has_thread) /* the run waits */
        save(of);
}

void sli_saver_wait(sli_checkpoints *of)
{
    if (of->has_thread)
        pthread_join(of->thread, NULL);
    of->has_thread = false;
}
