/* A run in this process: what comes before training, and then all of its replicas as threads, or
 * the one rank that this process is. */
#include "train/loop/run.h"

#include "comm/group.h"
#include "core/error.h"
#include "device/cores.h"
#include "device/device.h"
#include "optim/optimizer.h"
#include "train/checkpoint/checkpoints.h"
#include "train/plan/layout.h"
#include "train/plan/profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- What comes before training ----------------------------------------------------------- */

static sl_status read_corpus(sli_run *run)
{
    const sl_train_options *options = &run->options;
    if (!options->data)
        return sl_error(SL_ERR_INVALID, "no data directory was given");
    SL_TRY(sli_train_check_save(options));
    if (options->init) /* its ids mean the tokens of its own vocabulary */
        SL_TRY(sl_weights_vocab(options->init, &run->vocab));
    SL_TRY(sl_corpus_load(options->data, run->vocab, &run->corpus));
    if (options->init && !run->vocab)
        SL_TRY(sli_weights_vocab_check(options->init, sl_corpus_vocab(run->corpus)));
    run->options.model.ntokens = sl_vocab_size(sl_corpus_vocab(run->corpus));
    return SL_OK;
}

/* The texts are read by rank 0, by the first rank of each replica, which counts tokens, and for the
 * first and the last stage. */
static sl_status needs_corpus(const sl_train_options *options, int rank, bool *out)
{
    sl_schedule *table;
    sli_layout of = sli_layout_of_rank(options, rank);
    SL_TRY(sli_layout_table(options, 1, &table));
    const int *placement = sl_schedule_placement(table);
    int first = placement[0] - of.first,
        last = placement[sli_layout_stages(options) - 1] - of.first;
    *out = of.rank_in_replica == 0 || (first >= 0 && first < of.count) ||
           (last >= 0 && last < of.count);
    sl_schedule_destroy(&table);
    return SL_OK;
}

/* The task of a run on texts. */
static sl_status create_language(sli_run *run, sl_group *group)
{
    const sl_train_options *options = &run->options;
    bool reads = true;
    if (group)
        SL_TRY(needs_corpus(options, sl_group_rank(group), &reads));
    if (reads)
        SL_TRY(read_corpus(run));
    if (group)
        SL_TRY(sl_group_broadcast(group, &run->options.model.ntokens, 1, SL_I64, 0, NULL));
    run->options.model.context = options->bptt;
    run->language = (sli_language){.model = &run->options.model,
                                   .corpus = run->corpus,
                                   .bptt = options->bptt,
                                   .shard_rows = options->batch_size,
                                   .whole_rows = options->shuffle};
    run->language_task = sli_language_task(&run->language);
    run->task = &run->language_task;
    return SL_OK;
}

/* The process has `count` of the host's ranks, from `first` on. */
static sl_status create_devices(sli_run *run, int first, int count, bool own_cores)
{
    char *names;
    sl_train_options *options = &run->options;
    int ranks = sli_layout_pipeline_ranks_of_rank(options);
    options->replicas = sl_train_options_replicas(options);
    options->pipeline_ranks = sli_layout_pipeline_ranks(options);
    SL_TRY(sli_layout_devices(options, &names));
    sl_status status = sli_device_list_create_range(names, first * ranks, count * ranks, own_cores,
                                                    &run->devices, &run->oversubscribed);
    free(names);
    return status;
}

/* Counts every split's batches, so that an impossible one is found before the first epoch. What has
 * no text gets rank 0's numbers. */
static sl_status count_batches(sli_run *run, sl_group *group)
{
    const sl_train_options *options = &run->options;
    const sl_train_task *task = run->task;
    run->rows = options->shards * options->batch_size;
    for (int split = 0; split < SL_SPLITS && (run->corpus || options->task); split++) {
        int64_t rows = split == SL_SPLIT_TRAIN ? run->rows : options->eval_batch_size;
        int64_t *batches = &run->batches[split];
        SL_TRY(task->count_batches(task->context, (sl_split)split, rows, batches));
        if (*batches < 0)
            return sl_error(SL_ERR_INVALID,
                            "the task's count_batches gave %" PRId64 " batches of the split %s",
                            *batches, sl_split_name((sl_split)split));
    }
    if (group)
        SL_TRY(sl_group_broadcast(group, run->batches, SL_SPLITS, SL_I64, 0, NULL));
    run->batches_per_epoch = run->batches[SL_SPLIT_TRAIN];
    if (run->batches_per_epoch < 1)
        return sl_error(SL_ERR_INVALID,
                        "there are no data to train on: the task has no batch of "
                        "%" PRId64 " rows",
                        run->rows);
    if (options->shuffle && run->batches_per_epoch > SL_MAX_SHUFFLED / run->rows)
        return sl_error(SL_ERR_INVALID,
                        "%" PRId64 " batches of %" PRId64 " rows are too many to shuffle",
                        run->batches_per_epoch, run->rows);
    if (options->shuffle)
        run->shuffled_rows = run->batches_per_epoch * run->rows;
    if (options->max_batches > 0 && run->batches_per_epoch > options->max_batches)
        run->batches_per_epoch = options->max_batches;
    return SL_OK;
}

/* Without a list of devices the ranks of a host's only replica split its cores, or share them if a
 * step is shorter then. `split` is the time of the split step. */
static sl_status try_sharing(sli_run *run, sli_profile_inputs inputs, bool own_cores, double split,
                             int *balance)
{
    sl_train_options *options = &run->options;
    sl_device_list *shared;
    sli_step_times times;
    SL_TRY(sli_layout_shared_devices(options, &run->shared_devices));
    SL_TRY(sli_device_list_create_range(run->shared_devices, 0, options->pipeline_ranks, own_cores,
                                        &shared, NULL));
    int cut[SL_MAX_STAGES] = {0}, cores[SL_MAX_STAGES] = {0};
    inputs.devices = shared;
    inputs.cores = cores; /* all on the same */
    sl_status status = sli_train_profile(&inputs, NULL, cut, &times);
    if (status == SL_OK)
        run->one_stage = sli_one_stage_ratio(split, &times);
    if (status == SL_OK && times.cut < split) {
        sl_device_list_destroy(&run->devices);
        run->devices = shared;
        shared = NULL;
        run->oversubscribed = false;
        options->devices = run->shared_devices;
        memcpy(balance, cut, sizeof cut);
    }
    sl_device_list_destroy(&shared);
    return status;
}

/* Decides by time where the model is cut and what devices its ranks have, where the options leave
 * that open. The first process decides where to cut, since measured times are never the same; all
 * of them measure the links between them. */
static sl_status decide_by_time(sli_run *run, sl_module *model, sl_loss *loss, sl_group *group,
                                bool own_cores)
{
    sl_train_options *options = &run->options;
    sli_step_times times = {0, 0};
    int balance[SL_MAX_STAGES] = {0};
    bool may_share = !options->devices && options->pipeline_ranks > 1 && !run->oversubscribed &&
                     sli_layout_host_ranks(options) == 1 &&
                     sli_layout_pipeline_ranks_of_rank(options) == options->pipeline_ranks;
    bool cuts = options->balance_kind == SL_BALANCE_AUTO && sli_layout_stages(options) > 1;
    sl_link_cost *links = NULL;
    int cores[SL_MAX_STAGES] = {0};
    if (cuts || may_share)
        SL_TRY(sli_find_cores(options, run->devices, group, cores));
    if (cuts && group)
        SL_TRY(sli_measure_links(options, group, &links));
    const sli_profile_inputs inputs = {.options = options,
                                       .task = run->task,
                                       .model = model,
                                       .loss = loss,
                                       .devices = run->devices,
                                       .links = links,
                                       .cores = cores};
    sl_status status = SL_OK;
    if (may_share || (cuts && (!group || sl_group_rank(group) == 0)))
        status = sli_train_profile(&inputs, NULL, balance, &times);
    if (may_share && status == SL_OK)
        status = try_sharing(run, inputs, own_cores, times.cut, balance);
    free(links);
    SL_TRY(status);
    if (!cuts)
        return SL_OK;
    if (group)
        SL_TRY(sl_group_broadcast(group, balance, SL_MAX_STAGES, SL_I32, 0, NULL));
    options->balance_kind = SL_BALANCE_EXPLICIT;
    options->balance_count = sli_layout_stages(options);
    memcpy(options->balance, balance, sizeof balance);
    return SL_OK;
}

/* Whether this host has the memory for its ranks. */
static sl_status check_memory(const sl_train_options *options, const sl_module *model,
                              int first_rank)
{
    if (options->force || options->task)
        return SL_OK;
    return sl_plan_check_memory(options, model, first_rank, sl_usable_memory());
}

/* Decides what depends on the model. Memory is checked as soon as it is known where it is cut.
 * `first`: this rank's number on its host, whose ranks are taken to be consecutive. */
static sl_status plan_run(sli_run *run, int first, sl_group *group, bool own_cores)
{
    int first_rank = group ? sl_group_rank(group) - first : 0;
    const sl_train_task *task = run->task;
    bool is_cut = run->options.balance_kind != SL_BALANCE_AUTO;
    sl_module *model = NULL;
    sl_loss *loss = NULL;
    sl_status status = task->create_model(task->context, &model, &loss);
    if (status == SL_OK && is_cut)
        status = check_memory(&run->options, model, first_rank);
    if (status == SL_OK)
        status = decide_by_time(run, model, loss, group, own_cores);
    if (status == SL_OK && !is_cut)
        status = check_memory(&run->options, model, first_rank);
    sl_loss_destroy(&loss);
    sl_module_destroy(&model);
    return status;
}

sl_status sli_run_create(sli_run *run, int first, int count, sl_group *group, bool own_cores)
{
    sl_train_options *options = &run->options;
    sli_recorded *recorded = &run->from.recorded;
    SL_TRY(sl_train_options_check(options));
    options->optimizer = sli_optimizer_filled(&options->optimizer);
    run->task = options->task;
    if (!run->task)
        SL_TRY(create_language(run, group));
    SL_TRY(create_devices(run, first, count, own_cores));
    recorded->shards = sli_layout_shards(options);
    recorded->lr = sl_train_options_lr(options);
    if (!group || sl_group_rank(group) == 0)
        SL_TRY(sli_resume_open(run));
    run->from.found = run->from.reader;
    if (group && options->checkpoints.resume) {
        int32_t words[] = {run->from.reader != NULL, recorded->shards, recorded->chunks};
        SL_TRY(sl_group_broadcast(group, words, 3, SL_I32, 0, NULL));
        SL_TRY(sl_group_broadcast(group, &recorded->lr, 1, SL_F64, 0, NULL));
        run->from.found = words[0];
        recorded->shards = words[1];
        recorded->chunks = words[2];
    }
    if (options->shards == 0)
        options->shards = recorded->shards;
    if (options->lr.lr == SL_LR_DEFAULT)
        options->lr.lr = recorded->lr;
    if (options->chunks == 0 && !options->table)
        options->chunks = recorded->chunks;
    options->chunks = sl_train_options_chunks(options);
    SL_TRY(sli_layout_check(options));
    SL_TRY(count_batches(run, group));
    options->lr.total_steps = run->batches_per_epoch * options->epochs;
    SL_TRY(plan_run(run, first, group, own_cores));
    SL_TRY(sli_best_create(sli_layout_stages(options), count > 1, &run->best));
    return sli_resume_check(run);
}

void sli_run_clear(sli_run *run)
{
    sli_resume_clear(&run->from);
    sli_best_destroy(&run->best);
    sl_device_list_destroy(&run->devices);
    free(run->shared_devices);
    sl_corpus_destroy(&run->corpus);
    sl_vocab_destroy(&run->vocab);
}

/* ---- All replicas in this process ----------------------------------------------------------- */

static sl_status run_thread(sl_group *group, void *arg)
{
    const sli_run *run = arg;
    sl_run_result others;
    int rank = sl_group_rank(group);
    return sli_run_train(run, group, rank * run->options.pipeline_ranks,
                         rank == 0 ? run->result : &others);
}

sl_status sl_train_run(const sl_train_options *options, const sl_reporter *reporters,
                       int reporter_count, sl_run_result *result)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(result);
    sli_run run = {.options = *options,
                   .reporters = reporters,
                   .reporter_count = reporter_count,
                   .result = result};
    if (options->ranks != 0 || options->local_ranks != 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_train_run: ranks and local_ranks must be 0, as every replica is a "
                        "thread of this process, got %d and %d",
                        options->ranks, options->local_ranks);
    int replicas = sl_train_options_replicas(options);
    sl_status status = sli_run_create(&run, 0, replicas, NULL, false);
    if (status == SL_OK)
        status = run.options.shards == 1 ? sli_run_train(&run, NULL, 0, result)
                                         : sl_spawn(run_thread, &run, replicas, NULL);
    sli_run_clear(&run);
    return status;
}

/* ---- A process that is one rank ----------------------------------------------------------- */

/* `given`: options->ranks as the caller set it. */
static sl_status check_rank(const sl_train_options *options, int given, int local_rank)
{
    int local = sli_layout_host_ranks(options);
    if (given != 0 && given != options->ranks)
        return sl_error(SL_ERR_INVALID, "ranks must be the size of the group, %d, or 0, got %d",
                        options->ranks, given);
    if (local_rank < 0 || local_rank >= local)
        return sl_error(SL_ERR_INVALID, "a host's %d rank%s cannot have a number %d", local,
                        local == 1 ? "" : "s", local_rank);
    return sl_train_options_check(options);
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
 * rank is then that of the first to do so, "rank R: …". One that only says the number of a rank
 * does not replace one that says where it is. */
static sl_status abort_group(sl_group *group, sl_status error)
{
    sli_error_copy own;
    sli_error_save(&own, error);
    error = sli_group_first_error(group, error);
    bool names_less = sli_error_rank() != SLI_NO_RANK && own.rank == SLI_NO_RANK;
    return names_less ? sli_error_restore(&own) : error;
}

sl_status sl_train_run_rank(const sl_train_options *options, sl_group *group, int local_rank,
                            const sl_reporter *reporters, int reporter_count, sl_run_result *result)
{
    SLI_CHECK_NOT_NULL(group);
    if (!options || !result) /* the other ranks wait for this one */
        return abort_group(group, sl_error(SL_ERR_INVALID, "sl_train_run_rank: %s is NULL",
                                           options ? "result" : "options"));
    sli_run run = {.options = *options, .reporters = reporters, .reporter_count = reporter_count};
    bool own_cores = false;
    run.options.ranks = sl_group_size(group);
    if (!run.options.replicas)
        run.options.replicas = run.options.ranks;
    sl_status status = check_rank(&run.options, options->ranks, local_rank);
    if (status == SL_OK)
        status = find_own_cores(group, &own_cores);
    if (status == SL_OK)
        status = sli_run_create(&run, local_rank, 1, group, own_cores);
    bool is_alone = run.options.ranks == 1 && run.options.shards == 1;
    if (status == SL_OK)
        status = sli_run_train(&run, is_alone ? NULL : group, 0, result);
    sli_run_clear(&run);
    return status == SL_OK ? SL_OK : abort_group(group, status);
}
