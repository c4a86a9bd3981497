/* When a run's state is saved: the run waits while it is copied, then a thread writes the copy. */
#include "train/checkpoint/checkpoints.h"

#include "comm/agree.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/replace.h"
#include "core/threads.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a save writes, one or both. */
enum {
    STEP = 1, /* the whole copy, as the checkpoint of `step` */
    BEST = 2  /* its model, as the best one; by the first replica alone */
};

struct sli_checkpoints {
    sli_run *run;
    const sl_save_options *options; /* the run's */
    sli_worker *worker; /* of a rank that writes or sends its tensors to the one that does */
    sl_group *first;    /* of the first replica's ranks; NULL: it is one rank's */
    sl_group *every;    /* of all ranks, each of which has a shard of the optimizers' state; NULL:
                           the first replica has all of it */
    bool collects;      /* the ranks do not see one directory: rank 0 writes what they send it */
    uint64_t number;    /* of a save: random for the first one, then 1 more; the same on all */
    bool end_saved;     /* or saving it has begun */

    /* Rank 0's, where there is a directory. */
    int directory; /* as long as it is open, no other run saves there; -1: none */
    sli_model_texts texts;

    /* The copy, filled while nothing is being written: by the first replica all of it, by the
     * others the optimizer alone. */
    sli_tensors model, optimizer, best;
    bool has_best; /* other parameters than the model's */
    sli_error_copy copied;
    char *state; /* of sli_run_state_print */
    double copy_seconds;

    /* The save under way, or the last one. */
    bool under_way; /* from the start until the end was reported */
    int targets;
    int64_t step;
    char *path; /* of the checkpoint, or of the best model where there is only that */

    /* The worker's, until `done` is true. */
    sli_shard_report *reports; /* [ranks] rank 0's */
    double write_seconds;
    sli_error_copy error, pruned; /* of the save; of removing older ones after it */
    atomic_bool done;
};

/* ---- Copying ---------------------------------------------------------------------------- */

/* Copies the listed tensors that are here. */
static sl_status copy_tensors(const sli_checkpoints *checkpoints, sli_tensors *tensors)
{
    return sli_tensors_copy(checkpoints->run->replica.pipe, tensors, checkpoints->collects);
}

/* A model's tensors are whole in its files. All ranks of the replica call it, with their status. */
static sl_status gather_tensors(const sli_checkpoints *checkpoints, sli_tensors *tensors,
                                sl_status status)
{
    return checkpoints->collects
               ? status
               : sli_tensors_gather(checkpoints->run->replica.pipe, tensors, status);
}

/* What is the same on all replicas. What ranks do together comes first, whatever fails on one. */
static sl_status list_model(sli_checkpoints *checkpoints)
{
    const sli_run *run = checkpoints->run;
    const sl_pipe *pipe = run->replica.pipe;
    sl_status status = sli_tensors_of_model(pipe, &checkpoints->model);
    if (status == SL_OK && sli_run_has_adapters(run))
        status = sli_adapter_select(&checkpoints->model, true);
    SL_TRY(gather_tensors(checkpoints, &checkpoints->model, status));
    sli_tensors_empty(&checkpoints->best);
    if (!checkpoints->has_best)
        return SL_OK;
    status = sli_tensors_of_buckets(pipe, run->best->copies, &checkpoints->best);
    return gather_tensors(checkpoints, &checkpoints->best, status);
}

static sl_status copy_model(sli_checkpoints *checkpoints)
{
    SL_TRY(list_model(checkpoints));
    free(checkpoints->state);
    checkpoints->state = NULL;
    SL_TRY(sli_run_state_print(checkpoints->run, &checkpoints->state));
    SL_TRY(copy_tensors(checkpoints, &checkpoints->model));
    return checkpoints->has_best ? copy_tensors(checkpoints, &checkpoints->best) : SL_OK;
}

/* What this rank writes or sends. */
static sl_status copy_state(sli_checkpoints *checkpoints)
{
    double start = sli_clock_seconds();
    const sli_position *position = &checkpoints->run->position;
    checkpoints->has_best = checkpoints->targets & STEP && isfinite(position->best_loss) &&
                            position->best_step != position->steps;
    if (checkpoints->run->replica.index == 0)
        SL_TRY(copy_model(checkpoints));
    if (checkpoints->targets & STEP) {
        SL_TRY(
            sli_tensors_of_optimizer(checkpoints->run->optimizer, false, &checkpoints->optimizer));
        SL_TRY(copy_tensors(checkpoints, &checkpoints->optimizer));
    }
    checkpoints->copy_seconds = sli_clock_seconds() - start;
    sli_replica_add_checkpoint_time(&checkpoints->run->replica, checkpoints->copy_seconds);
    return SL_OK;
}

/* ---- Writing the copy ------------------------------------------------------------------- */

/* What a save writes, at one path. */
typedef struct save {
    sli_checkpoints *checkpoints;
    const char *path;
    bool all;           /* else the model alone */
    sl_group *writers;  /* those who write it together; NULL: rank 0 alone */
    sl_metadata shapes; /* of the optimizer's segments */
    sl_metadata base;   /* of adapters */
} save;

static sl_status gather_reports(void *context, const sli_shard_report *own)
{
    _Static_assert(sizeof *own % sizeof(int64_t) == 0, "reports are words");
    const save *job = context;
    return sl_group_gather(job->writers, own,
                           sl_group_rank(job->writers) == 0 ? job->checkpoints->reports : NULL,
                           sizeof *own / sizeof(int64_t), SL_I64, 0, NULL);
}

enum { MODEL, OPTIMIZER, BEST_MODEL, PARTS };

/* The file of a part that this rank writes, of which the ranks of `owners` have some. */
static sli_checkpoint_shard shard_of(const save *job, sl_group *owners)
{
    if (!owners || job->checkpoints->collects)
        return (sli_checkpoint_shard){1, 1};
    bool has_some = owners == job->checkpoints->every || job->checkpoints->run->replica.index == 0;
    return (sli_checkpoint_shard){has_some ? sl_group_rank(owners) + 1 : 0, sl_group_size(owners)};
}

/* Lists the parts, the same on all ranks; gives how many there are. */
static size_t list_parts(const save *job, sl_checkpoint_part parts[PARTS],
                         sli_checkpoint_shard shards[PARTS])
{
    const sli_checkpoints *checkpoints = job->checkpoints;
    bool adapts = sli_run_has_adapters(checkpoints->run);
    const sli_tensors *const lists[PARTS] = {&checkpoints->model, &checkpoints->optimizer,
                                             &checkpoints->best};
    const char *const names[PARTS] = {adapts ? SLI_ADAPTER_PART : SLI_MODEL_PART, "optimizer",
                                      "best"};
    for (int p = 0; p < PARTS; p++) {
        bool has_shapes = p == OPTIMIZER && lists[p]->shapes, has_base = p == MODEL && adapts;
        parts[p] =
            (sl_checkpoint_part){names[p], lists[p]->items, lists[p]->count,
                                 has_base ? &job->base : &job->shapes, has_shapes || has_base};
        shards[p] = shard_of(job, p == OPTIMIZER && checkpoints->every ? checkpoints->every
                                                                       : checkpoints->first);
    }
    return !job->all ? 1 : checkpoints->has_best ? PARTS : BEST_MODEL;
}

/* Writes this rank's part of a save, with this source of what others have; NULL: none is needed. */
static sl_status write_contents(const save *job, const sli_item_source *source)
{
    sli_checkpoints *checkpoints = job->checkpoints;
    bool is_joint = job->writers && !checkpoints->collects;
    sl_checkpoint_part parts[PARTS];
    sli_checkpoint_shard shards[PARTS];
    const sl_checkpoint_contents contents = {.parts = parts,
                                             .part_count = list_parts(job, parts, shards),
                                             .files = checkpoints->texts.files,
                                             .file_count = checkpoints->texts.count,
                                             .state = checkpoints->state,
                                             .shard_bytes = checkpoints->options->shard_bytes};
    return sli_checkpoint_write(
        job->path, &contents,
        &(sli_checkpoint_writing){.source = source,
                                  .id = job->all ? checkpoints->number : ~checkpoints->number,
                                  .shards = shards,
                                  .rank = is_joint ? sl_group_rank(job->writers) : 0,
                                  .ranks = is_joint ? sl_group_size(job->writers) : 1,
                                  .gather = gather_reports,
                                  .context = (void *)job,
                                  .all = checkpoints->reports});
}

/* The ranks send rank 0 what they have, and it writes all. */
static sl_status collect_contents(const save *job)
{
    const sli_checkpoints *checkpoints = job->checkpoints;
    sli_state_stream stream = {.group = job->writers,
                               .stride = checkpoints->first ? sl_group_size(checkpoints->first) : 1,
                               .lists = {&checkpoints->model, &checkpoints->optimizer,
                                         &checkpoints->best}};
    const sli_item_source source = {sli_state_stream_read, &stream};
    if (sl_group_rank(job->writers) > 0)
        return sli_state_stream_serve(&stream);
    return sli_state_stream_end(&stream, write_contents(job, &source));
}

/* Writes all of the copy, or its model alone, where every writer has one. */
static sl_status write_copy(sli_checkpoints *checkpoints, const char *path, bool all)
{
    const save job = {.checkpoints = checkpoints,
                      .path = path,
                      .all = all,
                      .writers =
                          all && checkpoints->every ? checkpoints->every : checkpoints->first,
                      .shapes = {SLI_SEGMENTS_KEY, checkpoints->optimizer.shapes},
                      .base = {SLI_ADAPTER_BASE_KEY, checkpoints->run->base}};
    SL_TRY(sli_group_agree(job.writers, sli_error_restore(&checkpoints->copied)));
    return job.writers && checkpoints->collects ? collect_contents(&job)
                                                : write_contents(&job, NULL);
}

static sl_status write_step(sli_checkpoints *checkpoints)
{
    const sl_save_options *options = checkpoints->options;
    const sli_run *run = checkpoints->run;
    SL_TRY(write_copy(checkpoints, checkpoints->path, true));
    if (run->replica.rank == 0)
        sli_error_save(&checkpoints->pruned,
                       sli_save_directory_prune(options->directory, checkpoints->step,
                                                options->keep, &run->identity));
    return SL_OK;
}

static sl_status write_best(sli_checkpoints *checkpoints)
{
    char *best;
    SL_TRY(sli_save_directory_best(checkpoints->options->directory, &best));
    sl_status status = write_copy(checkpoints, best, false);
    free(best);
    return status;
}

/* One after the other, whether or not the first fails: other ranks take part in both. */
static void write_save(void *arg)
{
    sli_checkpoints *checkpoints = arg;
    const sl_save_options *options = checkpoints->options;
    double start = sli_clock_seconds();
    sli_error_copy best = {.status = SL_OK};
    sli_error_save(&checkpoints->error,
                   checkpoints->targets & STEP ? write_step(checkpoints) : SL_OK);
    if (checkpoints->targets & BEST)
        sli_error_save(&best, write_best(checkpoints));
    if (checkpoints->error.status == SL_OK)
        checkpoints->error = best;
    checkpoints->write_seconds = sli_clock_seconds() - start;
    atomic_store(&checkpoints->done, true);
    if (options->saving)
        options->saving(options->context, false);
}

/* Has the worker write the copy to its targets. Where `copied` is an error, there is no copy: with
 * this thread's error text it becomes the save's. */
static void start_save(sli_checkpoints *checkpoints, sl_status copied)
{
    const sl_save_options *options = checkpoints->options;
    free(checkpoints->path);
    checkpoints->path = NULL;
    if (copied == SL_OK)
        copied =
            checkpoints->targets & STEP
                ? sli_save_directory_step(options->directory, checkpoints->step, &checkpoints->path)
                : sli_save_directory_best(options->directory, &checkpoints->path);
    if (copied == SL_OK && checkpoints->run->replica.rank == 0)
        copied = sli_save_directory_check_owner(checkpoints->path, &checkpoints->run->identity);
    checkpoints->pruned.status = SL_OK;
    sli_error_save(&checkpoints->copied, copied);
    atomic_store(&checkpoints->done, false);
    checkpoints->under_way = true;
    if (options->saving)
        options->saving(options->context, true);
    sli_worker_start(checkpoints->worker, write_save, checkpoints);
}

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status report_other(const sli_checkpoints *checkpoints, int64_t step)
{
    char *path;
    SL_TRY(sli_save_directory_step(checkpoints->options->directory, step, &path));
    sl_checkpoint_event event = {
        .kind = SL_CHECKPOINT_SKIPPED,
        .path = path,
        .reason = "it is no directory, and stays: no checkpoint of this step can be saved"};
    sl_status status = sli_report_checkpoint(checkpoints->run, &event);
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
    for (size_t i = 0; i < count; i++)
        SL_TRY_OR_FAIL(report_other(checkpoints, steps[i]));
fail:
    free(steps);
    return status;
}

/* What the first replica alone saves. */
static sl_status open_directory(sli_checkpoints *checkpoints)
{
    const sl_save_options *options = checkpoints->options;
    const sli_run *run = checkpoints->run;
    int directory;
    SL_TRY(sli_save_directory_open(options->directory, checkpoints->run,
                                   &checkpoints->run->identity, &directory));
    checkpoints->directory = directory;
    SL_TRY(report_others(checkpoints));
    if (sli_run_has_adapters(run))
        SL_TRY(sli_adapter_texts_make(sli_run_model(run), &checkpoints->texts));
    else if (sli_run_model(run))
        SL_TRY(sli_model_texts_make(sli_run_model(run), sli_run_vocab(run),
                                    &(sl_model_saving){.generation = sli_run_generation(run)},
                                    &checkpoints->texts));
    return sli_draw_number(options->directory, &checkpoints->number);
}

/* Who writes, or sends, beside rank 0. */
static sl_status join_savers(sli_checkpoints *checkpoints)
{
    const sli_run *run = checkpoints->run;
    const sli_replica *replica = &run->replica;
    bool is_shared, is_sharded = run->optimizer->ddp != NULL &&
                                 sl_optimizer_state_bytes(&run->options->optimizer) > 0;
    if (!is_sharded && !replica->pipe_group)
        return SL_OK;
    SL_TRY(sli_save_directory_is_shared(checkpoints->options->directory, replica,
                                        checkpoints->number, &is_shared));
    if (replica->pipe_group)
        SL_TRY(sl_group_split(replica->all, replica->index == 0 ? 0 : -1, &checkpoints->first));
    if (is_sharded)
        SL_TRY(sl_group_split(replica->all, 0, &checkpoints->every));
    checkpoints->collects = !is_shared;
    checkpoints->reports =
        calloc((size_t)sl_group_size(replica->all), sizeof *checkpoints->reports);
    return checkpoints->reports ? SL_OK : sli_no_memory(NULL, "saving checkpoints");
}

/* Every replica, where there is a directory. */
static sl_status prepare_saves(sli_checkpoints *checkpoints)
{
    const sli_replica *replica = &checkpoints->run->replica;
    if (replica->rank == 0)
        SL_TRY(open_directory(checkpoints));
    int64_t number = (int64_t)checkpoints->number;
    if (replica->all)
        SL_TRY(sl_group_broadcast(replica->all, &number, 1, SL_I64, 0, NULL));
    checkpoints->number = (uint64_t)number;
    SL_TRY(join_savers(checkpoints));
    return replica->rank == 0 || checkpoints->first || checkpoints->every
               ? sli_worker_create(NULL, NULL, &checkpoints->worker)
               : SL_OK;
}

sl_status sli_checkpoints_create(sli_run *run, sli_checkpoints **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "saving checkpoints");
    (*out)->run = run;
    (*out)->options = &run->options->checkpoints;
    (*out)->directory = -1;
    sl_status status = (*out)->options->directory ? prepare_saves(*out) : SL_OK;
    if (status != SL_OK)
        sli_checkpoints_destroy(out);
    return status;
}

/* Waits for the save under way, also after an error: its copy is complete, and what it writes need
 * not be computed again. A rank that has died, or leaves without having begun it, ends it for all.
 */
void sli_checkpoints_destroy(sli_checkpoints **checkpoints)
{
    sli_checkpoints *dead = checkpoints ? *checkpoints : NULL;
    if (!dead)
        return;
    sli_worker_destroy(&dead->worker);
    sl_group_destroy(&dead->first);
    sl_group_destroy(&dead->every);
    sli_tensors_clear(&dead->model);
    sli_tensors_clear(&dead->optimizer);
    sli_tensors_clear(&dead->best);
    free(dead->state);
    free(dead->reports);
    free(dead->path);
    sli_model_texts_clear(&dead->texts);
    if (dead->directory >= 0)
        close(dead->directory);
    free(dead);
    *checkpoints = NULL;
}

/* ---- Saving ----------------------------------------------------------------------------- */

/* Reports the save under way where it has ended, with `wait` after waiting for it. */
static sl_status report_ended(sli_checkpoints *checkpoints, bool wait)
{
    if (!checkpoints->under_way || (!wait && !atomic_load(&checkpoints->done)))
        return SL_OK;
    sli_worker_wait(checkpoints->worker);
    checkpoints->under_way = false;
    if (checkpoints->run->replica.rank != 0)
        return SL_OK;
    bool saved = checkpoints->error.status == SL_OK;
    SL_TRY(sli_report_checkpoint(checkpoints->run,
                                 &(sl_checkpoint_event){
                                     .kind = saved ? SL_CHECKPOINT_SAVED : SL_CHECKPOINT_FAILED,
                                     .path = checkpoints->path ? checkpoints->path
                                                               : checkpoints->options->directory,
                                     .step = checkpoints->step,
                                     .copy_seconds = checkpoints->copy_seconds,
                                     .write_seconds = checkpoints->write_seconds,
                                     .reason = saved ? NULL : checkpoints->error.text,
                                 }));
    if (checkpoints->pruned.status == SL_OK)
        return SL_OK;
    return sli_report_checkpoint(checkpoints->run,
                                 &(sl_checkpoint_event){.kind = SL_CHECKPOINT_UNPRUNED,
                                                        .path = checkpoints->options->directory,
                                                        .step = checkpoints->step,
                                                        .reason = checkpoints->pruned.text});
}

/* Every replica. */
static sl_status save_targets(sli_checkpoints *checkpoints, int targets)
{
    const sli_run *run = checkpoints->run;
    if (targets == 0 || !checkpoints->options->directory)
        return SL_OK;
    SL_TRY(report_ended(checkpoints, true)); /* its copy is in use until then */
    checkpoints->number++;                   /* on all, also on those that write nothing */
    checkpoints->step = run->position.steps;
    checkpoints->targets = run->replica.index == 0 ? targets : targets & STEP;
    if (checkpoints->worker && checkpoints->targets)
        /* without a copy the save fails, and the run goes on */
        start_save(checkpoints, copy_state(checkpoints));
    return SL_OK;
}

/* ---- When ------------------------------------------------------------------------------- */

/* What any rank is asked for: the same flags on all of them. */
static sl_status ask_for_requests(const sli_checkpoints *checkpoints, unsigned *out)
{
    enum { FLAGS = 3 };
    _Static_assert(SL_TRAIN_STOP == 1 << (FLAGS - 1), "every flag is exchanged");
    const sl_save_options *options = checkpoints->options;
    sl_group *group = checkpoints->run->replica.all;
    int32_t flags[FLAGS];
    *out = options->request ? options->request(options->context) : SL_TRAIN_GO_ON;
    if (!group || !options->request)
        return SL_OK;
    for (unsigned i = 0; i < FLAGS; i++)
        flags[i] = *out >> i & 1;
    SL_TRY(sl_group_all_reduce(group, flags, FLAGS, SL_I32, SL_REDUCE_MAX, NULL));
    *out = SL_TRAIN_GO_ON;
    for (unsigned i = 0; i < FLAGS; i++)
        *out |= (unsigned)flags[i] << i;
    return SL_OK;
}

/* Whoever stops a run relies on its checkpoint: a stop waits for it, and fails where it fails. What
 * is due is saved before the ranks meet: the death of one that saves nothing does not prevent it.
 */
static sl_status save_due(sli_checkpoints *checkpoints, int targets, bool *stop)
{
    unsigned requests;
    *stop = false;
    SL_TRY(report_ended(checkpoints, false));
    SL_TRY(save_targets(checkpoints, targets));
    SL_TRY(ask_for_requests(checkpoints, &requests));
    if (requests & SL_TRAIN_REFRESH)
        SL_TRY(sli_run_refresh(checkpoints->run));
    if (requests & (SL_TRAIN_SAVE | SL_TRAIN_STOP) && !(targets & STEP) && !checkpoints->end_saved)
        SL_TRY(save_targets(checkpoints, STEP));
    *stop = requests & SL_TRAIN_STOP;
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
    bool due = every > 0 && checkpoints->run->position.steps % every == 0;
    return save_due(checkpoints, due ? STEP : 0, stop);
}

sl_status sli_checkpoints_after_validation(sli_checkpoints *checkpoints, const sl_eval_info *eval,
                                           bool *stop)
{
    const sli_run *run = checkpoints->run;
    bool last = run->position.epoch == run->options->epochs;
    int targets = eval->best ? BEST : 0;
    if (!eval->ends_epoch) {
        SL_TRY(report_ended(checkpoints, false));
        return save_targets(checkpoints, targets);
    }
    if (checkpoints->options->every_epoch || last)
        targets |= STEP;
    checkpoints->end_saved = last;
    return save_due(checkpoints, targets, stop);
}

sl_status sli_checkpoints_in_evaluation(sli_checkpoints *checkpoints, bool *stop)
{
    return save_due(checkpoints, 0, stop);
}

sl_status sli_checkpoints_before_test(sli_checkpoints *checkpoints)
{
    const char *directory = checkpoints->options->directory, *asked = checkpoints->run->asked;
    bool there = directory && asked && strcmp(directory, asked) == 0;
    bool saved = checkpoints->end_saved || there;
    checkpoints->end_saved = true;
    return saved ? SL_OK : save_targets(checkpoints, STEP);
}

sl_status sli_checkpoints_finish(sli_checkpoints *checkpoints, sli_error_copy *unsaved)
{
    sli_error_save(unsaved, SL_OK);
    SL_TRY(report_ended(checkpoints, true));
    if (checkpoints->run->replica.rank != 0 || checkpoints->error.status == SL_OK)
        return SL_OK;
    sli_error_save(unsaved, sl_error(checkpoints->error.status,
                                     "the run has ended, but its last checkpoint is not saved: %s",
                                     checkpoints->error.text));
    return SL_OK;
}
