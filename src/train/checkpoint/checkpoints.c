/* Saving, seen by the replicas.
 *
 * The first one saves what all have alike. Where the optimizers' state is sharded, each writes its
 * own slices, if all see the same directory; else the first one gathers them. A save that all
 * contribute to has two halves (train/checkpoint/saver.h): after every step the replicas tell each
 * other, with what else they have to agree on, whether their writing has ended; once all have, they
 * hand their reports to the first one, whose thread completes the checkpoint. So no step waits for
 * a disk. */
#include "train/checkpoint/checkpoints.h"

#include "core/clock.h"
#include "core/replace.h"
#include "text/vocab.h"
#include "train/checkpoint/model_notes.h"
#include "train/checkpoint/run_state.h"
#include "train/checkpoint/save_directory.h"
#include "train/checkpoint/saver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sli_checkpoints {
    sli_checkpoints_run run;
    const sl_save_options *options;
    sli_saver *saver;   /* the first replica's where there is a directory, or everybody's */
    sli_shards *shards; /* of everybody's */
    uint64_t number;    /* drawn for this run; counts its saves */
    /* The first replica's, where there is a directory: */
    sli_save_directory *directory;
    sli_model_notes metadata;
    char *vocab;
    bool end_saved;      /* or saving it has begun */
    double copy_seconds; /* of the save under way */
    char reason[1024];   /* why the last one failed; empty: it did not */
};

/* ---- Creation --------------------------------------------------------------------------- */

/* Files with the names of checkpoints are not the run's: they stay, and no checkpoint can have the
 * name. */
static sl_status report_others(const sli_checkpoints *checkpoints)
{
    const char *directory = checkpoints->options->directory;
    int64_t *steps;
    size_t count;
    SL_TRY(sli_save_directory_list_others(directory, &steps, &count));
    sl_status status = SL_OK;
    for (size_t i = 0; i < count && status == SL_OK; i++) {
        char *path;
        status = sli_save_directory_step(directory, steps[i], &path);
        if (status != SL_OK)
            break;
        const sl_checkpoint_event event = {
            .kind = SL_CHECKPOINT_SKIPPED,
            .path = path,
            .reason = "it is no directory, and stays: no checkpoint of this step can be saved"};
        status = sli_report_checkpoint(checkpoints->run.reports, &event);
        free(path);
    }
    free(steps);
    return status;
}

/* What the first replica alone saves. */
static sl_status create_directory(sli_checkpoints *checkpoints, sli_saver_options *to)
{
    const sli_shared *shared = checkpoints->run.shared;
    size_t vocab_bytes;
    char checksum[SLI_CHECKSUM_BYTES];
    SL_TRY(sli_save_directory_create(checkpoints->options->directory, checkpoints->options->resume,
                                     &checkpoints->directory));
    SL_TRY(report_others(checkpoints));
    SL_TRY(sli_vocab_text(sl_corpus_vocab(shared->corpus), &checkpoints->vocab, &vocab_bytes));
    sli_checksum_of(checkpoints->vocab, vocab_bytes, checksum);
    sli_model_notes_write(&shared->options.model, checksum, &checkpoints->metadata);
    to->metadata = checkpoints->metadata.metadata;
    to->metadata_count = checkpoints->metadata.count;
    to->file = (sl_checkpoint_file){"model.vocab.txt", checkpoints->vocab, vocab_bytes};
    return SL_OK;
}

/* The shards, where each replica has a part of the optimizers' state, and a way to write it. */
static sl_status create_shards(sli_checkpoints *checkpoints)
{
    const sli_checkpoints_run *run = &checkpoints->run;
    const sl_train_options *options = &run->shared->options;
    bool visible;
    if (!options->zero || !run->replicas->ddp || sl_optimizer_state_bytes(&options->optimizer) == 0)
        return sli_draw_number(options->checkpoints.directory, &checkpoints->number);
    SL_TRY(sli_save_directory_is_shared(options->checkpoints.directory, run->replicas, &visible,
                                        &checkpoints->number));
    return visible ? sli_shards_create(run->replicas, run->update, options->checkpoints.shard_bytes,
                                       &checkpoints->shards)
                   : SL_OK;
}

static sl_status create_saver(sli_checkpoints *checkpoints)
{
    const sl_save_options *options = checkpoints->options;
    const sli_replica *replicas = checkpoints->run.replicas;
    sli_saver_options saver = {.directory = options->directory,
                               .keep = options->keep,
                               .shard_bytes = options->shard_bytes,
                               .saving = options->saving,
                               .context = options->context,
                               .rank = replicas->rank,
                               .replicas = replicas->count};
    if (replicas->rank == 0)
        SL_TRY(create_directory(checkpoints, &saver));
    SL_TRY(create_shards(checkpoints));
    saver.shards = checkpoints->shards;
    return replicas->rank == 0 || saver.shards ? sli_saver_create(&saver, &checkpoints->saver)
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
    sli_shards_destroy(&(*checkpoints)->shards);
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
    return checkpoints->run.replicas->rank == 0 ? report(checkpoints, &event) : SL_OK;
}

/* Whether a save is between its halves: on every replica or on none. */
static bool is_shared(const sli_checkpoints *checkpoints)
{
    return checkpoints->saver && sli_saver_is_shared(checkpoints->saver);
}

/* Every replica, once all have written or are to be waited for: the first one gets the reports, and
 * completes the checkpoint. */
static sl_status hand_over(sli_checkpoints *checkpoints)
{
    const sli_replica *replicas = checkpoints->run.replicas;
    size_t bytes = sli_saver_report_bytes(checkpoints->saver);
    char *own = malloc(bytes), *all = NULL;
    if (replicas->rank == 0)
        all = malloc(bytes * (size_t)replicas->count);
    sl_status status = SL_OK;
    if (!own || (replicas->rank == 0 && !all))
        status = sl_error(SL_ERR_MEMORY, "no memory for the replicas' reports on a checkpoint");
    if (status == SL_OK) {
        sli_saver_report(checkpoints->saver, own);
        status = sl_group_gather(replicas->group, own, all, (int64_t)(bytes / sizeof(int64_t)),
                                 SL_I64, 0, NULL);
    }
    if (status == SL_OK)
        sli_saver_complete(checkpoints->saver, all);
    free(own);
    free(all);
    return status;
}

/* Every replica: waits for the save under way, and reports it. */
static sl_status finish(sli_checkpoints *checkpoints)
{
    if (is_shared(checkpoints))
        SL_TRY(hand_over(checkpoints));
    return report_ended(checkpoints, true);
}

/* ---- Saving ----------------------------------------------------------------------------- */

static sl_status copy_model(const sli_checkpoints_run *run, sli_snapshot *to)
{
    sli_tensors tensors;
    sl_status status = sli_tensors_of_model(run->replicas->pipe, &tensors);
    if (status == SL_OK)
        status = sli_copied_take(run->replicas->pipe, &tensors, &to->model);
    sli_tensors_clear(&tensors);
    return status;
}

static sl_status copy_optimizers(const sli_checkpoints_run *run, sl_optimizer *const *whole,
                                 sli_snapshot *to)
{
    sli_tensors tensors;
    sl_status status = sli_tensors_of_optimizer(run->replicas->pipe, whole, &tensors);
    if (status == SL_OK)
        status = sli_copied_take(run->replicas->pipe, &tensors, &to->optimizer);
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
    sl_status status = sli_tensors_of_best(run->replicas->pipe, run->best, &tensors);
    if (status == SL_OK)
        status = sli_copied_take(run->replicas->pipe, &tensors, &to->best);
    sli_tensors_clear(&tensors);
    return status;
}

static sl_status copy_state(const sli_checkpoints_run *run, sli_snapshot *to)
{
    free(to->state);
    to->state = NULL;
    return sli_run_state_print(run->shared, run->replicas->pipe, run->position, &to->state);
}

/* What this replica writes; `whole` are the optimizers, NULL where they are not saved or are in
 * shards. */
static sl_status copy(sli_checkpoints *checkpoints, int targets, sl_optimizer *const *whole)
{
    const sli_checkpoints_run *run = &checkpoints->run;
    sli_snapshot *to = sli_saver_snapshot(checkpoints->saver);
    double start = sli_clock_seconds();
    if (run->replicas->rank == 0) {
        SL_TRY(copy_state(run, to));
        SL_TRY(copy_model(run, to));
        if (targets & SLI_SAVE_STEP)
            SL_TRY(copy_best(run, to));
    }
    if (whole)
        SL_TRY(copy_optimizers(run, whole, to));
    if (checkpoints->shards && targets & SLI_SAVE_STEP)
        SL_TRY(sli_copied_take(run->replicas->pipe, &checkpoints->shards->own, &to->optimizer));
    checkpoints->copy_seconds = sli_clock_seconds() - start;
    return SL_OK;
}

/* A copy that cannot be made is a save that failed, and the run goes on. */
static void copy_and_write(sli_checkpoints *checkpoints, int targets, sl_optimizer *const *whole)
{
    int64_t steps = checkpoints->run.position->steps;
    sl_status status = copy(checkpoints, targets, whole);
    if (status == SL_OK)
        status = sli_saver_start(checkpoints->saver, targets, steps, checkpoints->number);
    if (status != SL_OK)
        sli_saver_start_failed(checkpoints->saver, targets, steps, status, sl_error_text());
}

/* Every replica. Without shards a sharded state is gathered, for the first one to write it. */
static sl_status save(sli_checkpoints *checkpoints, int targets)
{
    sli_update *update = checkpoints->run.update;
    sl_optimizer *whole[SL_MAX_STAGES] = {NULL};
    if (targets == 0 || !checkpoints->options->directory)
        return SL_OK;
    SL_TRY(finish(checkpoints)); /* its copy is in use until then */
    checkpoints->number++;       /* on all, whoever has to write */
    bool gathers = targets & SLI_SAVE_STEP && !checkpoints->shards;
    if (gathers)
        SL_TRY(sli_update_gather(update, whole));
    bool writes = checkpoints->run.replicas->rank == 0 || targets & SLI_SAVE_STEP;
    if (checkpoints->saver && writes)
        copy_and_write(checkpoints, targets, gathers ? whole : NULL);
    if (gathers)
        sli_update_release(update, whole);
    return SL_OK;
}

/* ---- When ------------------------------------------------------------------------------- */

/* The strongest stop or save request of any replica, the same on all of them. In the same exchange
 * they learn whether all have written their files of a save. */
static sl_status ask(sli_checkpoints *checkpoints, sl_train_request *out)
{
    const sl_save_options *options = checkpoints->options;
    sl_group *group = checkpoints->run.replicas->group;
    bool shared = is_shared(checkpoints);
    int32_t wish = options->request ? (int32_t)options->request(options->context) : SL_TRAIN_GO_ON;
    int32_t words[] = {wish, shared && !sli_saver_wrote(checkpoints->saver)};
    if (group && (options->request || shared))
        SL_TRY(sl_group_all_reduce(group, words, 2, SL_I32, SL_REDUCE_MAX, NULL));
    *out = (sl_train_request)words[0];
    return shared && words[1] == 0 ? hand_over(checkpoints) : SL_OK;
}

/* Whoever stops a run relies on its checkpoint. */
static sl_status end_stopped(sli_checkpoints *checkpoints)
{
    SL_TRY(finish(checkpoints));
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
    return finish(checkpoints);
}
