#include "train/checkpoints.h"

#include "core/clock.h"
#include "text/vocab.h"
#include "train/model_notes.h"
#include "train/run_state.h"
#include "train/save_directory.h"
#include "train/saver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sli_checkpoints {
    sli_checkpoints_run run;
    const sl_save_options *options;
    /* The first replica's, where there is a directory: */
    sli_save_directory *directory;
    sli_saver *saver;
    sli_model_notes notes;
    char *vocab;
    bool end_saved;      /* or saving it has begun */
    double copy_seconds; /* of the save under way */
    char reason[1024];   /* why the last one failed; empty: it did not */
};

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status create_saver(sli_checkpoints *checkpoints)
{
    const sli_shared *shared = checkpoints->run.shared;
    const sl_save_options *options = checkpoints->options;
    size_t vocab_bytes;
    SL_TRY(sli_save_directory_create(options->directory, &checkpoints->directory));
    SL_TRY(sli_vocab_text(sl_corpus_vocab(shared->corpus), &checkpoints->vocab, &vocab_bytes));
    sli_model_notes_write(&shared->options.model, &checkpoints->notes);
    const sli_saver_options saver = {
        .directory = options->directory,
        .keep = options->keep,
        .shard_bytes = options->shard_bytes,
        .notes = checkpoints->notes.notes,
        .note_count = SLI_MODEL_NOTES,
        .file = {"model.vocab.txt", checkpoints->vocab, vocab_bytes},
    };
    return sli_saver_create(&saver, &checkpoints->saver);
}

sl_status sli_checkpoints_create(const sli_checkpoints_run *run, sli_checkpoints **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the checkpoints' record");
    (*out)->run = *run;
    (*out)->options = &run->shared->options.checkpoints;
    if (!(*out)->options->directory || run->peers->rank != 0)
        return SL_OK;
    sl_status status = create_saver(*out);
    if (status != SL_OK)
        sli_checkpoints_destroy(out);
    return status;
}

void sli_checkpoints_destroy(sli_checkpoints **checkpoints)
{
    if (!checkpoints || !*checkpoints)
        return;
    sli_saver_destroy(&(*checkpoints)->saver);
    sli_save_directory_destroy(&(*checkpoints)->directory);
    free((*checkpoints)->vocab);
    free(*checkpoints);
    *checkpoints = NULL;
}

/* ---- What has ended --------------------------------------------------------------------- */

static sl_status report(sli_checkpoints *checkpoints, const sl_checkpoint_event *event)
{
    snprintf(checkpoints->reason, sizeof checkpoints->reason, "%s",
             event->kind == SL_CHECKPOINT_FAILED ? event->reason : "");
    return sli_report_checkpoint(checkpoints->run.reports, event);
}

static sl_status report_ended(sli_checkpoints *checkpoints, bool wait)
{
    sl_checkpoint_event event;
    if (!checkpoints->saver || !sli_saver_ended(checkpoints->saver, wait, &event))
        return SL_OK;
    event.copy_seconds = checkpoints->copy_seconds;
    return report(checkpoints, &event);
}

/* ---- Saving ----------------------------------------------------------------------------- */

/* The functions that list a run's tensors, given its parts. */
static sl_status copy_model(const sli_checkpoints_run *run, sli_snapshot *to)
{
    sli_tensors tensors;
    sl_status status = sli_tensors_of_model(run->peers->pipe, &tensors);
    if (status == SL_OK)
        status = sli_copied_take(run->peers->pipe, &tensors, &to->model);
    sli_tensors_clear(&tensors);
    return status;
}

static sl_status copy_optimizers(const sli_checkpoints_run *run, sl_optimizer *const *whole,
                                 sli_snapshot *to)
{
    sli_tensors tensors;
    sl_status status = sli_tensors_of_optimizer(run->peers->pipe, whole, &tensors);
    if (status == SL_OK)
        status = sli_copied_take(run->peers->pipe, &tensors, &to->optimizer);
    sli_tensors_clear(&tensors);
    return status;
}

/* Nothing, where the best parameters are the model's own, or there are none. */
static sl_status copy_best(const sli_checkpoints_run *run, sli_snapshot *to)
{
    const sli_position *position = run->position;
    sli_tensors tensors;
    sli_copied_forget(&to->best);
    if (!isfinite(position->best_loss) || position->best_step == position->steps)
        return SL_OK;
    sl_status status = sli_tensors_of_best(run->peers->pipe, run->best, &tensors);
    if (status == SL_OK)
        status = sli_copied_take(run->peers->pipe, &tensors, &to->best);
    sli_tensors_clear(&tensors);
    return status;
}

static sl_status copy_state(const sli_checkpoints_run *run, sli_snapshot *to)
{
    free(to->state);
    to->state = NULL;
    return sli_run_state_print(run->shared, run->peers->pipe, run->position, &to->state);
}

/* `whole` are the optimizers; NULL: they are not saved. */
static sl_status copy_and_write(sli_checkpoints *checkpoints, int targets,
                                sl_optimizer *const *whole)
{
    const sli_checkpoints_run *run = &checkpoints->run;
    sli_snapshot *to = sli_saver_snapshot(checkpoints->saver);
    double start = sli_clock_seconds();
    SL_TRY(copy_state(run, to));
    SL_TRY(copy_model(run, to));
    if (whole) {
        SL_TRY(copy_optimizers(run, whole, to));
        SL_TRY(copy_best(run, to));
    }
    checkpoints->copy_seconds = sli_clock_seconds() - start;
    return sli_saver_start(checkpoints->saver, targets, run->position->steps);
}

/* A copy that cannot be made is a save that failed, and the run goes on. */
static sl_status write_or_report(sli_checkpoints *checkpoints, int targets,
                                 sl_optimizer *const *whole)
{
    char reason[1024];
    SL_TRY(report_ended(checkpoints, true)); /* its copy is in use until then */
    if (copy_and_write(checkpoints, targets, whole) == SL_OK)
        return SL_OK;
    snprintf(reason, sizeof reason, "%s", sl_error_text());
    const sl_checkpoint_event event = {.kind = SL_CHECKPOINT_FAILED,
                                       .path = checkpoints->options->directory,
                                       .step = checkpoints->run.position->steps,
                                       .reason = reason};
    return report(checkpoints, &event);
}

/* Every replica: where the optimizers' state is sharded, the first one gets it from the others. */
static sl_status save(sli_checkpoints *checkpoints, int targets)
{
    sli_update *update = checkpoints->run.update;
    sl_optimizer *whole[SL_MAX_STAGES] = {NULL};
    if (targets == 0 || !checkpoints->options->directory)
        return SL_OK;
    bool optimizers = targets & SLI_SAVE_STEP;
    if (optimizers)
        SL_TRY(sli_update_gather(update, whole));
    sl_status status = SL_OK;
    if (checkpoints->saver)
        status = write_or_report(checkpoints, targets, optimizers ? whole : NULL);
    if (optimizers)
        sli_update_release(update, whole);
    return status;
}

/* ---- When ------------------------------------------------------------------------------- */

/* What the run is asked for, on every replica the strongest wish of all. */
static sl_status ask(const sli_checkpoints *checkpoints, sl_train_request *out)
{
    const sl_save_options *options = checkpoints->options;
    sl_group *group = checkpoints->run.peers->group;
    *out = SL_TRAIN_GO_ON;
    if (!options->request)
        return SL_OK;
    int32_t wish = (int32_t)options->request(options->context);
    if (group)
        SL_TRY(sl_group_all_reduce(group, &wish, 1, SL_I32, SL_REDUCE_MAX, NULL));
    *out = (sl_train_request)wish;
    return SL_OK;
}

/* Whoever stops a run relies on its checkpoint. */
static sl_status end_stopped(sli_checkpoints *checkpoints)
{
    SL_TRY(report_ended(checkpoints, true));
    if (checkpoints->reason[0])
        return sl_error(SL_ERR_IO, "the run was stopped, but its state could not be saved: %s",
                        checkpoints->reason);
    return SL_OK;
}

static sl_status save_due(sli_checkpoints *checkpoints, int targets, bool *stop)
{
    sl_train_request request;
    *stop = false;
    SL_TRY(report_ended(checkpoints, false));
    SL_TRY(ask(checkpoints, &request));
    if (request != SL_TRAIN_GO_ON)
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
    sl_train_request request;
    SL_TRY(report_ended(checkpoints, false));
    SL_TRY(ask(checkpoints, &request));
    if (request != SL_TRAIN_GO_ON && !checkpoints->end_saved)
        SL_TRY(save(checkpoints, SLI_SAVE_STEP));
    *stop = request == SL_TRAIN_STOP;
    return *stop ? end_stopped(checkpoints) : SL_OK;
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
