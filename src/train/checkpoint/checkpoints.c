/* Saving a run's checkpoints.
 *
 *     this file          when a save is due; copies the state, for which the run waits
 *     tensors.h          the run's tensors by name, and their copies
 *     saver.h            a thread that writes the copy while the run goes on
 *     save_directory.h   --save-dir: names, the newest, the oldest to be removed
 *     run_state.h        what state.json says of the run
 *     resume.h           the way back
 *     io/checkpoint/     the format: writer.h and reader.h
 *
 * The first replica saves what is the same on all. Where the optimizers' state is sharded and all
 * see the directory, every replica's saver writes its shard. When it is on disk, they tell the
 * first one, over a group of their own, and the first completes the checkpoint:
 *
 *     replica 0    |- model, own shard -|       |- state.json, rename -|
 *     replica 1    |- own shard -|              ^
 *     replica 2    |- own shard ----------------| reports
 *
 * No step waits for a disk. Where the others do not see the directory, the first replica gathers
 * the optimizers' state for each save. */
#include "train/checkpoint/checkpoints.h"

#include "core/clock.h"
#include "core/replace.h"
#include "text/vocab.h"
#include "train/checkpoint/run_state.h"
#include "train/checkpoint/save_directory.h"
#include "train/checkpoint/saver.h"
#include "train/checkpoint/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sli_checkpoints {
    sli_checkpoints_run run;
    const sl_save_options *options;
    sli_saver *saver; /* the first replica's where there is a directory, or everybody's */
    bool has_shards;  /* everybody's saver writes its shard */
    uint64_t number;  /* drawn for this run; counts its saves */
    /* The first replica's, where there is a directory: */
    bool has_directory;
    int directory; /* as long as it is open, no other run saves there */
    sli_model_metadata metadata;
    char *vocab;
    bool end_saved;      /* or saving it has begun */
    double copy_seconds; /* of the save under way */
    bool failed;         /* the last one that has ended */
};

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status report_other(const sli_checkpoints *checkpoints, int64_t step)
{
    char *path;
    SL_TRY(sli_save_directory_step(checkpoints->options->directory, step, &path));
    sl_status status = sli_report_checkpoint(
        checkpoints->run.reports,
        &(sl_checkpoint_event){
            .kind = SL_CHECKPOINT_SKIPPED,
            .path = path,
            .reason = "it is no directory, and stays: no checkpoint of this step can be saved"});
    free(path);
    return status;
}

/* Files with the names of checkpoints are not the run's: they stay, and no checkpoint can have the
 * name. */
static sl_status report_others(const sli_checkpoints *checkpoints)
{
    int64_t *steps;
    size_t count;
    SL_TRY(sli_save_directory_list(checkpoints->options->directory, true, &steps, &count));
    sl_status status = SL_OK;
    for (size_t i = 0; i < count && status == SL_OK; i++)
        status = report_other(checkpoints, steps[i]);
    free(steps);
    return status;
}

/* What the first replica alone saves. */
static sl_status create_directory(sli_checkpoints *checkpoints, sli_saver_options *to)
{
    const sli_shared *shared = checkpoints->run.shared;
    size_t vocab_bytes;
    char checksum[SLI_CHECKSUM_BYTES];
    SL_TRY(sli_save_directory_open(checkpoints->options->directory, checkpoints->options->resume,
                                   &checkpoints->directory));
    checkpoints->has_directory = true;
    SL_TRY(report_others(checkpoints));
    SL_TRY(sli_vocab_text(sl_corpus_vocab(shared->corpus), &checkpoints->vocab, &vocab_bytes));
    sli_checksum_of(checkpoints->vocab, vocab_bytes, checksum);
    sli_model_metadata_write(&shared->options.model, checksum, &checkpoints->metadata);
    to->metadata = checkpoints->metadata.rows;
    to->metadata_count = checkpoints->metadata.count;
    to->file = (sl_checkpoint_file){"model.vocab.txt", checkpoints->vocab, vocab_bytes};
    return SL_OK;
}

/* The same on every replica. */
static sl_status draw_number(sli_checkpoints *checkpoints)
{
    const sli_replica *replicas = checkpoints->run.replicas;
    int64_t number = 0;
    if (replicas->rank == 0)
        SL_TRY(sli_draw_number(checkpoints->options->directory, &checkpoints->number));
    number = (int64_t)checkpoints->number;
    if (replicas->group)
        SL_TRY(sl_group_broadcast(replicas->group, &number, 1, SL_I64, 0, NULL));
    checkpoints->number = (uint64_t)number;
    return SL_OK;
}

/* Where each replica can write its shard of the optimizers' state, *group is that of all savers. */
static sl_status join_savers(sli_checkpoints *checkpoints, sl_group **group)
{
    const sli_checkpoints_run *run = &checkpoints->run;
    const sl_train_options *options = &run->shared->options;
    *group = NULL;
    if (!sli_update_is_sharded(run->update) || sl_optimizer_state_bytes(&options->optimizer) == 0)
        return SL_OK;
    SL_TRY(sli_save_directory_is_shared(checkpoints->options->directory, run->replicas,
                                        checkpoints->number, &checkpoints->has_shards));
    return checkpoints->has_shards ? sl_group_split(run->replicas->group, 0, group) : SL_OK;
}

static sl_status create_saver(sli_checkpoints *checkpoints)
{
    const sl_save_options *options = checkpoints->options;
    const sli_replica *replicas = checkpoints->run.replicas;
    sli_saver_options saver = {.save = options};
    if (replicas->rank == 0)
        SL_TRY(create_directory(checkpoints, &saver));
    SL_TRY(draw_number(checkpoints));
    SL_TRY(join_savers(checkpoints, &saver.group));
    return replicas->rank == 0 || saver.group ? sli_saver_create(&saver, &checkpoints->saver)
                                              : SL_OK;
}

sl_status sli_checkpoints_create(const sli_checkpoints_run *run, sli_checkpoints **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the checkpoints' record");
    (*out)->run = *run;
    (*out)->options = &run->shared->options.checkpoints;
    sl_status status = (*out)->options->directory ? create_saver(*out) : SL_OK;
    if (status != SL_OK)
        sli_checkpoints_destroy(out);
    return status;
}

void sli_checkpoints_destroy(sli_checkpoints **checkpoints)
{
    if (!checkpoints || !*checkpoints)
        return;
    sli_saver_destroy(&(*checkpoints)->saver);
    if ((*checkpoints)->has_directory)
        close((*checkpoints)->directory);
    free((*checkpoints)->vocab);
    free(*checkpoints);
    *checkpoints = NULL;
}

/* ---- What has ended --------------------------------------------------------------------- */

static sl_status report_ended(sli_checkpoints *checkpoints, bool wait)
{
    sl_checkpoint_event event;
    if (!checkpoints->saver || !sli_saver_ended(checkpoints->saver, wait, &event))
        return SL_OK;
    event.copy_seconds = checkpoints->copy_seconds;
    checkpoints->failed = event.kind == SL_CHECKPOINT_FAILED;
    return checkpoints->run.replicas->rank == 0
               ? sli_report_checkpoint(checkpoints->run.reports, &event)
               : SL_OK;
}

/* ---- Saving ----------------------------------------------------------------------------- */

/* Copies the tensors that were listed with `listed`, and clears the list. */
static sl_status copy_tensors(const sli_checkpoints_run *run, sl_status listed,
                              sli_tensors *tensors, sli_tensor_copy *to)
{
    sl_status status =
        listed == SL_OK ? sli_tensor_copy_make(run->replicas->pipe, tensors, to) : listed;
    sli_tensors_clear(tensors);
    return status;
}

static sl_status copy_model(const sli_checkpoints_run *run, sli_snapshot *to)
{
    sli_tensors tensors;
    return copy_tensors(run, sli_tensors_of_model(run->replicas->pipe, &tensors), &tensors,
                        &to->model);
}

/* Nothing, where the best parameters are the model's own, or there are none. */
static sl_status copy_best(const sli_checkpoints_run *run, sli_snapshot *to)
{
    const sli_position *position = run->position;
    sli_tensors tensors;
    sli_tensor_copy_empty(&to->best);
    if (!isfinite(position->best_loss) || position->best_step == position->steps)
        return SL_OK;
    return copy_tensors(run, sli_tensors_of_best(run->replicas->pipe, run->best, &tensors),
                        &tensors, &to->best);
}

/* All of it, from `whole`, or this replica's shard. */
static sl_status copy_optimizers(const sli_checkpoints *checkpoints, sl_optimizer *const *whole,
                                 sli_snapshot *to)
{
    const sli_checkpoints_run *run = &checkpoints->run;
    const sli_replica *replicas = run->replicas;
    sl_optimizer *own[SL_MAX_STAGES];
    sli_tensors tensors;
    for (int s = 0; s < sl_pipe_stages(replicas->pipe); s++)
        own[s] = sli_update_own(run->update, s);
    sl_status listed = checkpoints->has_shards
                           ? sli_tensors_of_optimizer(replicas->pipe, own, replicas->rank,
                                                      replicas->count, &tensors)
                           : sli_tensors_of_optimizer(replicas->pipe, whole, 0, 1, &tensors);
    return copy_tensors(run, listed, &tensors, &to->optimizer);
}

static sl_status copy_state(const sli_checkpoints_run *run, sli_snapshot *to)
{
    free(to->state);
    to->state = NULL;
    return sli_run_state_print(run->shared, run->replicas->pipe, run->position, &to->state);
}

/* What this replica writes; `whole` are the optimizers, where they are not in shards. */
static sl_status copy(sli_checkpoints *checkpoints, int targets, sl_optimizer *const *whole)
{
    const sli_checkpoints_run *run = &checkpoints->run;
    sli_snapshot *to = sli_saver_snapshot(checkpoints->saver);
    double start = sli_clock_seconds();
    if (run->replicas->rank == 0) {
        SL_TRY(copy_state(run, to));
        SL_TRY(copy_model(run, to));
    }
    if (targets & SLI_SAVE_STEP) {
        if (run->replicas->rank == 0)
            SL_TRY(copy_best(run, to));
        SL_TRY(copy_optimizers(checkpoints, whole, to));
    }
    checkpoints->copy_seconds = sli_clock_seconds() - start;
    return SL_OK;
}

/* Every replica. A sharded state without savers for it is gathered, for the first one to write. */
static sl_status save(sli_checkpoints *checkpoints, int targets)
{
    const sli_checkpoints_run *run = &checkpoints->run;
    sl_optimizer *whole[SL_MAX_STAGES] = {NULL};
    if (targets == 0 || !checkpoints->options->directory)
        return SL_OK;
    SL_TRY(report_ended(checkpoints, true)); /* its copy is in use until then */
    checkpoints->number++;                   /* on all, whoever has to write */
    bool gathers = targets & SLI_SAVE_STEP && !checkpoints->has_shards;
    int own = run->replicas->rank == 0 ? targets : targets & SLI_SAVE_STEP;
    if (gathers)
        SL_TRY(sli_update_gather(run->update, whole));
    if (checkpoints->saver && own) /* without a copy the save fails, and the run goes on */
        sli_saver_start(checkpoints->saver, own, run->position->steps, checkpoints->number,
                        copy(checkpoints, own, whole));
    if (gathers)
        sli_update_release(run->update, whole);
    return SL_OK;
}

/* ---- When ------------------------------------------------------------------------------- */

/* The strongest stop or save request of any replica, the same on all of them. */
static sl_status ask(const sli_checkpoints *checkpoints, sl_train_request *out)
{
    const sl_save_options *options = checkpoints->options;
    sl_group *group = checkpoints->run.replicas->group;
    int32_t wish = options->request ? (int32_t)options->request(options->context) : SL_TRAIN_GO_ON;
    if (group && options->request)
        SL_TRY(sl_group_all_reduce(group, &wish, 1, SL_I32, SL_REDUCE_MAX, NULL));
    *out = (sl_train_request)wish;
    return SL_OK;
}

/* Whoever stops a run relies on its checkpoint. */
static sl_status end_stopped(sli_checkpoints *checkpoints)
{
    SL_TRY(report_ended(checkpoints, true));
    if (!checkpoints->failed || checkpoints->run.replicas->rank != 0)
        return SL_OK;
    return sl_error(SL_ERR_IO, "the run was stopped, but its state could not be saved: %s",
                    sli_saver_reason(checkpoints->saver));
}

static sl_status save_due(sli_checkpoints *checkpoints, int targets, bool *stop)
{
    sl_train_request request;
    *stop = false;
    SL_TRY(report_ended(checkpoints, false));
    SL_TRY(ask(checkpoints, &request));
    if (request != SL_TRAIN_GO_ON && !checkpoints->end_saved)
        targets |= SLI_SAVE_STEP;
    SL_TRY(save(checkpoints, targets));
    *stop = request == SL_TRAIN_STOP;
    return *stop ? end_stopped(checkpoints) : SL_OK;
}

sl_status sli_checkpoints_after_step(sli_checkpoints *checkpoints, bool *stop)
{
    int64_t every = checkpoints->options->every_steps;
    bool due = every > 0 && checkpoints->run.position->steps % every == 0;
    return save_due(checkpoints, due ? SLI_SAVE_STEP : 0, stop);
}

sl_status sli_checkpoints_after_epoch(sli_checkpoints *checkpoints, bool best, bool *stop)
{
    const sli_checkpoints_run *run = &checkpoints->run;
    bool last = run->position->epoch == run->shared->options.epochs;
    int targets = best ? SLI_SAVE_BEST : 0;
    if (checkpoints->options->every_epoch || last)
        targets |= SLI_SAVE_STEP;
    checkpoints->end_saved = last;
    return save_due(checkpoints, targets, stop);
}

sl_status sli_checkpoints_in_evaluation(sli_checkpoints *checkpoints, bool *stop)
{
    return save_due(checkpoints, 0, stop);
}

sl_status sli_checkpoints_before_test(sli_checkpoints *checkpoints)
{
    const sl_save_options *options = checkpoints->options;
    bool there =
        options->directory && options->resume && strcmp(options->directory, options->resume) == 0;
    bool saved = checkpoints->end_saved || there;
    checkpoints->end_saved = true;
    return saved ? SL_OK : save(checkpoints, SLI_SAVE_STEP);
}

sl_status sli_checkpoints_finish(sli_checkpoints *checkpoints)
{
    return report_ended(checkpoints, true);
}
