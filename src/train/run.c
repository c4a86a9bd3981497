/* A run in this process: all of its replicas as threads, or the one that this process is. */
#include "train/run.h"

#include "core/error.h"
#include "device/cores.h"
#include "device/device_list.h"
#include "train/checkpoint/resume.h"
#include "train/checkpoint/weights.h"
#include "train/layout.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- What the replicas of a process have in common ---------------------------------------- */

static sl_status read_corpus(sli_shared *shared)
{
    const sl_train_options *options = &shared->options;
    if (!options->data)
        return sl_error(SL_ERR_INVALID, "no data directory was given");
    SL_TRY(sli_check_save(options));
    if (options->init) /* its ids mean the tokens of its own vocabulary */
        SL_TRY(sl_weights_vocab(options->init, &shared->vocab));
    SL_TRY(sl_corpus_load(options->data, shared->vocab, &shared->corpus));
    if (options->init && !shared->vocab)
        SL_TRY(sli_weights_vocab_check(options->init, sl_corpus_vocab(shared->corpus)));
    return SL_OK;
}

static sl_status create_devices(sli_shared *shared, const sli_local_replicas *replicas)
{
    char *names;
    int ranks = shared->options.stages;
    SL_TRY(sli_layout_devices(&shared->options, &names));
    sl_status status = sli_device_list_create_range(names, replicas->first * ranks,
                                                    replicas->count * ranks, replicas->own_cores,
                                                    &shared->devices, &shared->oversubscribed);
    free(names);
    return status;
}

sl_status sli_shared_create(const sl_train_options *options, const sli_local_replicas *replicas,
                            sli_shared *out)
{
    *out = (sli_shared){.options = *options};
    SL_TRY(sl_train_options_check(options));
    SL_TRY(read_corpus(out));
    out->options.model.ntokens = sl_vocab_size(sl_corpus_vocab(out->corpus));
    out->options.stages = sli_layout_ranks(options);
    out->options.replicas = sl_train_options_replicas(options);
    SL_TRY(create_devices(out, replicas));
    return sli_best_create(sl_device_list_get(out->devices, 0), sli_layout_stages(options),
                           replicas->count > 1, &out->best);
}

void sli_shared_clear(sli_shared *shared)
{
    sli_best_destroy(&shared->best);
    sl_device_list_destroy(&shared->devices);
    sl_corpus_destroy(&shared->corpus);
    sl_vocab_destroy(&shared->vocab);
}

/* Cuts every split, so that an impossible one is found before the first epoch. */
static sl_status cut_splits(sli_shared *shared)
{
    const sl_train_options *options = &shared->options;
    for (int s = 0; s < SL_SPLITS; s++) {
        sl_split split = (sl_split)s;
        const sl_tokens *tokens = sl_corpus_tokens(shared->corpus, split);
        bool is_training = split == SL_SPLIT_TRAIN;
        sl_batches cut;
        sl_status status = sl_batchify(tokens->ids, tokens->count,
                                       is_training ? options->batch_size : options->eval_batch_size,
                                       options->bptt, &cut);
        if (status == SL_OK && is_training)
            status = sl_batches_shards(&cut, options->shards, &shared->batches);
        if (status != SL_OK)
            return sl_error_context(status, "%s: ", sl_corpus_path(shared->corpus, split));
    }
    return SL_OK;
}

sl_status sli_shared_cut(sli_shared *shared, int shards, double lr)
{
    sl_train_options *options = &shared->options;
    options->shards = shards;
    if (options->lr.lr == SL_LR_DEFAULT)
        options->lr.lr = lr;
    SL_TRY(sli_layout_check(options));
    SL_TRY(cut_splits(shared));
    shared->batches_per_epoch = sl_batches_count(&shared->batches);
    if (options->max_batches > 0 && shared->batches_per_epoch > options->max_batches)
        shared->batches_per_epoch = options->max_batches;
    options->lr.total_steps = shared->batches_per_epoch * options->epochs;
    return SL_OK;
}

/* ---- A run ---------------------------------------------------------------------------------- */

typedef struct process {
    sli_shared shared;
    sli_resume from; /* the first replica's */
    const sl_reporter *reporters;
    int reporter_count;
    sl_run_result *result; /* the first replica's */
} process;

/* Whether this host has the memory for its replicas. */
static sl_status check_memory(const sl_train_options *options, sl_group *group)
{
    sl_module *model;
    if (options->force)
        return SL_OK;
    SL_TRY(sl_transformer_lm_create(&options->model, &model));
    sl_status status =
        sl_plan_check_memory(options, model, group ? sli_layout_local_replicas(options) : 1,
                             !group || sl_group_rank(group) == 0, sl_usable_memory());
    sl_module_destroy(&model);
    return status;
}

/* Makes everything that comes before training. The first replica finds the checkpoint to go on
 * from, which says into how many shards the text is cut and the rate that the run began with.
 * `group`: the ranks that are processes; NULL: all are in this one. Cleared by process_clear, also
 * after an error. */
static sl_status process_create(const sl_train_options *options, const sli_local_replicas *replicas,
                                sl_group *group, process *of)
{
    const sl_save_options *checkpoints = &options->checkpoints;
    const sli_reports reports = {of->reporters, of->reporter_count, 0};
    sli_recorded run = {.shards = sli_layout_shards(options), .lr = sl_train_options_lr(options)};
    SL_TRY(sli_shared_create(options, replicas, &of->shared));
    if (!group || sl_group_rank(group) == 0)
        SL_TRY(sli_resume_open(checkpoints, &reports, &of->from));
    if (of->from.reader)
        SL_TRY(sli_resume_recorded(&of->from, &run));
    if (group && checkpoints->resume) {
        SL_TRY(sl_group_broadcast(group, &run.shards, 1, SL_I32, 0, NULL));
        SL_TRY(sl_group_broadcast(group, &run.lr, 1, SL_F64, 0, NULL));
    }
    SL_TRY(sli_shared_cut(&of->shared, run.shards, run.lr));
    SL_TRY(check_memory(&of->shared.options, group));
    return sli_resume_check(&of->from, &of->shared, &reports);
}

static void process_clear(process *of)
{
    sli_resume_clear(&of->from);
    sli_shared_clear(&of->shared);
}

/* Trains the replica whose devices start at `first` of the process's. */
static sl_status train_on(const process *of, sl_group *group, int first, sl_run_result *result)
{
    sl_device *devices[SL_MAX_STAGES];
    int rank = group ? sl_group_rank(group) : 0;
    for (int s = 0; s < of->shared.options.stages; s++)
        devices[s] = sl_device_list_get(of->shared.devices, first + s);
    const sli_reports reports = {of->reporters, of->reporter_count, rank};
    return sli_train_replica(&of->shared, group, devices, rank == 0 ? of->from.reader : NULL,
                             &reports, result);
}

static sl_status run_thread(sl_group *group, void *arg)
{
    const process *of = arg;
    sl_run_result result = {0};
    int rank = sl_group_rank(group);
    SL_TRY(train_on(of, group, rank * of->shared.options.stages, &result));
    if (rank == 0)
        *of->result = result;
    return SL_OK;
}

sl_status sl_train_run(const sl_train_options *options, const sl_reporter *reporters,
                       int reporter_count, sl_run_result *result)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(result);
    sl_train_options here = *options;
    here.local_replicas = 0;
    int replicas = sl_train_options_replicas(&here);
    process of = {.reporters = reporters, .reporter_count = reporter_count, .result = result};
    sl_status status = process_create(&here, &(sli_local_replicas){.count = replicas}, NULL, &of);
    if (status == SL_OK)
        status = replicas == 1 ? train_on(&of, NULL, 0, result)
                               : sl_spawn(run_thread, &of, replicas, NULL);
    process_clear(&of);
    return status;
}

/* ---- A process that is one rank ----------------------------------------------------------- */

static sl_status check_rank(const sl_train_options *options, const sl_group *group,
                            int local_replica)
{
    int replicas = sl_train_options_replicas(options), local = sli_layout_local_replicas(options);
    if (replicas != sl_group_size(group))
        return sl_error(SL_ERR_INVALID, "%d replicas were asked for, but there are %d ranks",
                        replicas, sl_group_size(group));
    if (local_replica < 0 || local_replica >= local)
        return sl_error(SL_ERR_INVALID, "a host's %d replica%s cannot have a number %d", local,
                        local == 1 ? "" : "s", local_replica);
    return SL_OK;
}

/* Whether this process has cores that no other rank on its machine may use, as under
 * `mpirun --bind-to core`. */
static sl_status find_own_cores(sl_group *group, bool *out)
{
    int64_t mine[SLI_CORE_WORDS];
    int ranks = sl_group_size(group);
    int64_t *all = calloc((size_t)ranks * SLI_CORE_WORDS, sizeof *all);
    if (!all)
        return sl_error(SL_ERR_MEMORY, "no memory to compare the cores of %d ranks", ranks);
    sl_status status = sli_cores_describe(mine);
    if (status == SL_OK)
        status = sl_group_all_gather(group, mine, all, SLI_CORE_WORDS, SL_I64, NULL);
    *out = status == SL_OK && sli_cores_are_own(all, ranks, sl_group_rank(group));
    free(all);
    return status;
}

/* Breaks the group with this thread's error, unless another rank has broken it; the error of every
 * rank is then that of the first to do so, "rank R: …". */
static sl_status abort_group(sl_group *group, sl_status error)
{
    sli_error_copy own;
    sli_error_save(&own, error);
    sl_group_abort(group, error, own.text);
    sl_status first = sl_group_barrier(group, NULL);
    return first == SL_OK ? sli_error_restore(&own) : first;
}

sl_status sl_train_run_rank(const sl_train_options *options, sl_group *group, int local_replica,
                            const sl_reporter *reporters, int reporter_count, sl_run_result *result)
{
    SLI_CHECK_NOT_NULL(group);
    if (!options || !result) /* the other ranks wait for this one */
        return abort_group(group, sl_error(SL_ERR_INVALID, "sl_train_run_rank: %s is NULL",
                                           options ? "result" : "options"));
    sl_train_options here = *options;
    process of = {.reporters = reporters, .reporter_count = reporter_count, .result = result};
    sli_local_replicas own = {.first = local_replica, .count = 1};
    here.replicas = here.replicas ? here.replicas : sl_group_size(group);
    sl_status status = check_rank(&here, group, local_replica);
    if (status == SL_OK)
        status = find_own_cores(group, &own.own_cores);
    if (status == SL_OK)
        status = process_create(&here, &own, group, &of);
    if (status == SL_OK)
        status = train_on(&of, sl_group_size(group) > 1 ? group : NULL, 0, result);
    process_clear(&of);
    return status == SL_OK ? SL_OK : abort_group(group, status);
}
