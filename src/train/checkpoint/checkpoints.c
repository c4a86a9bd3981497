/* When a run's state is saved, and the copy of it, for which the run waits. */
#include "core/clock.h"
#include "core/replace.h"
#include "text/vocab.h"
#include "train/checkpoint/saver.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Creation --------------------------------------------------------------------------- */

/* Files with the names of checkpoints are not the run's: they stay, and no checkpoint can have the
 * name. */
static sl_status report_others(const sli_checkpoints *checkpoints)
{
    const char *directory = checkpoints->options->directory;
    int64_t *steps;
    size_t count;
    SL_TRY(sli_save_directory_list(directory, true, &steps, &count));
    sl_status status = SL_OK;
    for (size_t i = 0; i < count && status == SL_OK; i++) {
        sl_checkpoint_event event = {
            .kind = SL_CHECKPOINT_SKIPPED,
            .reason = "it is no directory, and stays: no checkpoint of this step can be saved"};
        char *path;
        status = sli_save_directory_step(directory, steps[i], &path);
        event.path = path;
        if (status == SL_OK)
            status = sli_report_checkpoint(checkpoints->run, &event);
        free(path);
    }
    free(steps);
    return status;
}

/* What the first replica alone saves. */
static sl_status open_directory(sli_checkpoints *checkpoints)
{
    const sl_save_options *options = checkpoints->options;
    const sli_run *run = checkpoints->run;
    char checksum[SLI_CHECKSUM_BYTES];
    int directory;
    SL_TRY(sli_save_directory_open(options->directory, options->resume, &directory));
    checkpoints->directory = directory;
    SL_TRY(report_others(checkpoints));
    SL_TRY(sli_vocab_text(sl_corpus_vocab(run->corpus), &checkpoints->vocab,
                          &checkpoints->vocab_bytes));
    sli_checksum_of(checkpoints->vocab, checkpoints->vocab_bytes, checksum);
    sli_model_metadata_write(&run->options.model, checksum, &checkpoints->metadata);
    return sli_draw_number(options->directory, &checkpoints->number);
}

/* Where each replica can write its shard of the optimizers' state, the group is that of all savers.
 */
static sl_status join_savers(sli_checkpoints *checkpoints)
{
    const sli_run *run = checkpoints->run;
    const sli_replica *replica = &run->replica;
    bool is_shared;
    if (!sli_pipe_optimizer_is_sharded(run->optimizer) ||
        sl_optimizer_state_bytes(&run->options.optimizer) == 0)
        return SL_OK;
    SL_TRY(sli_save_directory_is_shared(checkpoints->options->directory, replica,
                                        checkpoints->number, &is_shared));
    if (!is_shared)
        return SL_OK;
    SL_TRY(sl_group_split(replica->group, 0, &checkpoints->group));
    checkpoints->all = calloc((size_t)replica->count, sizeof *checkpoints->all);
    return checkpoints->all ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for saving checkpoints");
}

/* Every replica, where there is a directory. */
static sl_status prepare(sli_checkpoints *checkpoints)
{
    const sli_replica *replica = &checkpoints->run->replica;
    if (replica->rank == 0)
        SL_TRY(open_directory(checkpoints));
    int64_t number = (int64_t)checkpoints->number;
    if (replica->group)
        SL_TRY(sl_group_broadcast(replica->group, &number, 1, SL_I64, 0, NULL));
    checkpoints->number = (uint64_t)number;
    SL_TRY(join_savers(checkpoints));
    checkpoints->writes = replica->rank == 0 || checkpoints->group;
    return SL_OK;
}

sl_status sli_checkpoints_create(const sli_run *run, sli_checkpoints **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the checkpoints' record");
    (*out)->run = run;
    (*out)->options = &run->options.checkpoints;
    (*out)->directory = -1;
    sl_status status = (*out)->options->directory ? prepare(*out) : SL_OK;
    if (status != SL_OK)
        sli_checkpoints_destroy(out);
    return status;
}

/* Waits for a saver that writes alone, and gives up what several write. */
void sli_checkpoints_destroy(sli_checkpoints **checkpoints)
{
    sli_checkpoints *of = checkpoints ? *checkpoints : NULL;
    if (!of)
        return;
    if (of->has_thread && of->group)
        sl_group_abort(of->group, SL_ERR_CANCELLED, "the run has ended");
    sli_saver_wait(of);
    sl_group_destroy(&of->group);
    sli_tensor_copy_clear(&of->model);
    sli_tensor_copy_clear(&of->optimizer);
    sli_tensor_copy_clear(&of->best);
    free(of->state);
    free(of->all);
    free(of->path);
    free(of->vocab);
    if (of->directory >= 0)
        close(of->directory);
    free(of);
    *checkpoints = NULL;
}

/* ---- Copying ---------------------------------------------------------------------------- */

/* Copies the tensors that were listed with `listed`, and clears the list. */
static sl_status copy_tensors(const sli_run *run, sl_status listed, sli_tensors *tensors,
                              sli_tensor_copy *to)
{
    sl_status status =
        listed == SL_OK ? sli_tensor_copy_make(run->replica.pipe, tensors, to) : listed;
    sli_tensors_clear(tensors);
    return status;
}

/* What is the same on all replicas. The best parameters are not copied where they are the model's
 * own, or there are none. */
static sl_status copy_model(sli_checkpoints *to, bool with_best)
{
    const sli_run *run = to->run;
    const sl_pipe *pipe = run->replica.pipe;
    sli_tensors tensors;
    free(to->state);
    to->state = NULL;
    SL_TRY(sli_run_state_print(run, &to->state));
    SL_TRY(copy_tensors(run, sli_tensors_of_model(pipe, &tensors), &tensors, &to->model));
    if (!with_best)
        return SL_OK;
    sli_tensor_copy_empty(&to->best);
    if (!isfinite(run->at.best_loss) || run->at.best_step == run->at.steps)
        return SL_OK;
    return copy_tensors(run, sli_tensors_of_best(pipe, run->best, &tensors), &tensors, &to->best);
}

/* All of the optimizers' state, or this replica's shard. */
static sl_status copy_optimizers(sli_checkpoints *to)
{
    const sli_run *run = to->run;
    const sli_replica *replica = &run->replica;
    sl_optimizer *optimizers[SL_MAX_STAGES];
    sli_tensors tensors;
    for (int s = 0; s < sl_pipe_stages(replica->pipe); s++)
        optimizers[s] = to->group ? sli_pipe_optimizer_own(run->optimizer, s)
                                  : sli_pipe_optimizer_whole(run->optimizer, s);
    sl_status listed =
        sli_tensors_of_optimizer(replica->pipe, optimizers, to->group ? replica->rank : 0,
                                 to->group ? replica->count : 1, &tensors);
    return copy_tensors(run, listed, &tensors, &to->optimizer);
}

/* What this replica writes. */
static sl_status copy_state(sli_checkpoints *checkpoints)
{
    double start = sli_clock_seconds();
    bool step = checkpoints->targets & SLI_SAVE_STEP;
    if (checkpoints->run->replica.rank == 0)
        SL_TRY(copy_model(checkpoints, step));
    if (step)
        SL_TRY(copy_optimizers(checkpoints));
    checkpoints->copy_seconds = sli_clock_seconds() - start;
    return SL_OK;
}

/* ---- Saving ----------------------------------------------------------------------------- */

/* Reports the save under way where it has ended, with `wait` after waiting for it. */
static sl_status report_ended(sli_checkpoints *checkpoints, bool wait)
{
    if (!checkpoints->under_way || (!wait && !atomic_load(&checkpoints->done)))
        return SL_OK;
    sli_saver_wait(checkpoints);
    checkpoints->under_way = false;
    if (checkpoints->run->replica.rank != 0)
        return SL_OK;
    bool saved = checkpoints->error.status == SL_OK;
    return sli_report_checkpoint(checkpoints->run,
                                 &(sl_checkpoint_event){
                                     .kind = saved ? SL_CHECKPOINT_SAVED : SL_CHECKPOINT_FAILED,
                                     .path = checkpoints->path ? checkpoints->path
                                                               : checkpoints->options->directory,
                                     .step = checkpoints->step,
                                     .copy_seconds = checkpoints->copy_seconds,
                                     .write_seconds = checkpoints->write_seconds,
                                     .reason = saved ? NULL : checkpoints->error.text,
                                 });
}

/* Every replica. A sharded state without savers for it is gathered, for the first one to write. */
static sl_status save(sli_checkpoints *checkpoints, int targets)
{
    const sli_run *run = checkpoints->run;
    if (targets == 0 || !checkpoints->options->directory)
        return SL_OK;
    SL_TRY(report_ended(checkpoints, true)); /* its copy is in use until then */
    checkpoints->number++;                   /* on all, whoever has to write */
    checkpoints->step = run->at.steps;
    checkpoints->targets = run->replica.rank == 0 ? targets : targets & SLI_SAVE_STEP;
    bool gathers = targets & SLI_SAVE_STEP && !checkpoints->group;
    if (gathers)
        SL_TRY(sli_pipe_optimizer_gather(run->optimizer));
    if (checkpoints->writes && checkpoints->targets)
        /* without a copy the save fails, and the run goes on */
        sli_saver_start(checkpoints, copy_state(checkpoints));
    if (gathers)
        sli_pipe_optimizer_release(run->optimizer);
    return SL_OK;
}

/* ---- When ------------------------------------------------------------------------------- */

/* The strongest stop or save request of any replica, the same on all of them. */
static sl_status ask_for_request(const sli_checkpoints *checkpoints, sl_train_request *out)
{
    const sl_save_options *options = checkpoints->options;
    sl_group *group = checkpoints->run->replica.group;
    int32_t request =
        options->request ? (int32_t)options->request(options->context) : SL_TRAIN_GO_ON;
    if (group && options->request)
        SL_TRY(sl_group_all_reduce(group, &request, 1, SL_I32, SL_REDUCE_MAX, NULL));
    *out = (sl_train_request)request;
    return SL_OK;
}

/* Whoever stops a run relies on its checkpoint: a stop waits for it, and fails where it fails. */
static sl_status save_due(sli_checkpoints *checkpoints, int targets, bool *stop)
{
    sl_train_request request;
    *stop = false;
    SL_TRY(report_ended(checkpoints, false));
    SL_TRY(ask_for_request(checkpoints, &request));
    if (request != SL_TRAIN_GO_ON && !checkpoints->end_saved)
        targets |= SLI_SAVE_STEP;
    SL_TRY(save(checkpoints, targets));
    *stop = request == SL_TRAIN_STOP;
    if (!*stop)
        return SL_OK;
    SL_TRY(report_ended(checkpoints, true));
    if (checkpoints->error.status == SL_OK || checkpoints->run->replica.rank != 0)
        return SL_OK;
    return sl_error(SL_ERR_IO, "the run was stopped, but its state could not be saved: %s",
                    checkpoints->error.text);
}

sl_status sli_checkpoints_after_step(sli_checkpoints *checkpoints, bool *stop)
{
    int64_t every = checkpoints->options->every_steps;
    bool due = every > 0 && checkpoints->run->at.steps % every == 0;
    return save_due(checkpoints, due ? SLI_SAVE_STEP : 0, stop);
}

sl_status sli_checkpoints_after_epoch(sli_checkpoints *checkpoints, bool best, bool *stop)
{
    const sli_run *run = checkpoints->run;
    bool last = run->at.epoch == run->options.epochs;
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
