/* A run in this process: what comes before training, and then all of its replicas as threads, or
 * the one rank that this process is. */
#include "train/loop/run.h"

#include "comm/group.h"
#include "core/error.h"
#include "core/file.h"
#include "core/threads.h"
#include "device/cores.h"
#include "device/device.h"
#include "models/config.h"
#include "models/lora.h"
#include "text/corpus.h"
#include "train/checkpoint/checkpoints.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- The texts --------------------------------------------------------------------------- */

/* A run that resumes has weights, and can do without a vocabulary that is gone; but of adapters it
 * needs the model that they belong to. */
static sl_status open_init(sli_run *run, const sl_train_options *options)
{
    if (!options->init || run->init)
        return SL_OK;
    sl_status status = run->may_lack_weights
                           ? sli_saved_model_open_config(options->init, &run->init)
                           : sl_saved_model_open(options->init, &run->init);
    if (status != SL_ERR_NOT_FOUND || !run->found.resumes)
        return status;
    return sli_run_has_adapters(run)
               ? sl_error_context(status, "a checkpoint of adapters needs the model that they were "
                                          "made for (--init): ")
               : SL_OK;
}

static sl_status open_tokenizer(sli_run *run, const sl_train_options *options)
{
    return options->tokenizer && !run->tokenizer
               ? sl_vocab_open(options->tokenizer, options->splitter, &run->tokenizer)
               : SL_OK;
}

/* *out is NULL where the text's own words are the vocabulary. */
static sl_status find_vocab(sli_run *run, const sl_train_options *options, const sl_vocab **out)
{
    SL_TRY(open_tokenizer(run, options));
    *out = run->tokenizer;
    if (run->tokenizer || !run->init)
        return SL_OK;
    if (options->model.family != SL_FAMILY_TUTORIALS)
        return sl_error_context(sl_saved_model_need_vocab(run->init, out),
                                "a text needs a tokenizer (--tokenizer), or rows of ids: ");
    *out = sl_saved_model_vocab(run->init); /* its ids mean the tokens of its own vocabulary */
    return SL_OK;
}

sl_status sli_run_kept_tokens(const sl_train_options *options, char **out)
{
    *out = NULL;
    return options->checkpoints.directory
               ? sli_path_join(options->checkpoints.directory, "tokens", out)
               : SL_OK;
}

/* The processes of a host, which may all tokenize at once, share its processors, unless a launcher
 * has bound them to some. */
static int tokenizing_threads(const sli_run *run)
{
    const sl_train_launch *launch = &run->launch;
    int here = launch->local_ranks > 0 ? launch->local_ranks : launch->ranks;
    int processors = sli_usable_processors();
    if (here <= 1 || run->devices.own_cores)
        return processors;
    return processors > here ? processors / here : 1;
}

static sl_status read_corpus(sli_run *run, const sl_train_options *options)
{
    if (!options->data)
        return sl_error(SL_ERR_INVALID, "no data directory was given");
    SL_TRY(sli_train_check_save(options));
    SL_TRY(open_init(run, options));
    const sl_vocab *vocab;
    SL_TRY(find_vocab(run, options, &vocab));
    char *kept = NULL;
    SL_TRY(sli_run_kept_tokens(options, &kept));
    const sli_tokenizing tokenizing = {.kept = kept, .threads = tokenizing_threads(run)};
    sl_status status = sli_corpus_load(options->data, vocab, &tokenizing, &run->corpus);
    free(kept);
    return status;
}

/* The texts are read by rank 0, by the first rank of each replica, which counts tokens, and for the
 * first and the last stage. */
static bool needs_corpus(const sl_plan *plan, int rank)
{
    sli_rank_plan part = sli_plan_rank(plan, rank);
    int first = plan->stage[0].rank - part.first,
        last = plan->stage[plan->stages - 1].rank - part.first;
    return part.rank_in_replica == 0 || (first >= 0 && first < part.count) ||
           (last >= 0 && last < part.count);
}

/* The tutorials' model has a token for each of the text's; others have theirs, which may be more.
 */
static sl_status take_vocabulary(const sl_corpus *corpus, sl_model_options *model)
{
    int32_t types = sl_vocab_size(sl_corpus_vocab(corpus));
    if (model->family == SL_FAMILY_TUTORIALS) {
        model->ntokens = types;
        return SL_OK;
    }
    if (types <= model->ntokens)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "the text's vocabulary has %" PRId32 " types, more than the model's %" PRId64
                    " tokens",
                    types, model->ntokens);
}

static bool is_special(const void *vocab, int64_t id)
{
    return id >= 0 && id < sl_vocab_size(vocab) && sl_vocab_is_special(vocab, (int32_t)id);
}

/* The ids of special tokens of a model by its name are those of its own tokenizer. */
static void check_token_ids(const sli_run *run, sl_model_options *model)
{
    const sl_vocab *vocab = sli_run_vocab(run);
    if (vocab && !run->init)
        sli_config_drop_unknown_token_ids(model, is_special, vocab);
}

/* The task of a run on texts. */
static sl_status create_language(sli_run *run)
{
    sl_train_options *options = &run->plan->options;
    SL_TRY(sli_check_row_length(options));
    if (!run->corpus && needs_corpus(run->plan, run->launch.rank))
        SL_TRY(read_corpus(run, options));
    if (run->corpus)
        SL_TRY(take_vocabulary(run->corpus, &options->model));
    check_token_ids(run, &options->model);
    if (run->processes)
        SL_TRY(sl_group_broadcast(run->processes, &options->model.ntokens, 1, SL_I64, 0, NULL));
    options->model.context = options->bptt;
    run->language = (sli_language){.model = &options->model,
                                   .corpus = run->corpus,
                                   .bptt = options->bptt,
                                   .shard_rows = options->batch_size,
                                   .whole_rows = options->shuffle};
    run->own_task = sli_language_task(&run->language);
    run->task = &run->own_task;
    return SL_OK;
}

static sl_status read_rows(const sli_run *run, const sl_train_options *options,
                           sl_model_options *model, sli_rows_task *out)
{
    char *kept;
    *out = (sli_rows_task){0};
    SL_TRY(sli_run_kept_tokens(options, &kept));
    const sli_tokenizing tokenizing = {.kept = kept, .threads = tokenizing_threads(run)};
    sl_status status = sli_rows_task_read(options, sli_run_vocab(run), &tokenizing, model, out);
    free(kept);
    return status;
}

/* All ranks read the rows. A plan reckons with the longest. */
static sl_status create_rows(sli_run *run)
{
    sl_train_options *options = &run->plan->options;
    SL_TRY(sli_train_check_save(options));
    SL_TRY(open_init(run, options));
    SL_TRY(open_tokenizer(run, options));
    SL_TRY(read_rows(run, options, &options->model, &run->rows_of_ids));
    check_token_ids(run, &options->model);
    options->bptt = sli_rows_task_longest(&run->rows_of_ids);
    options->model.context = options->bptt;
    run->own_task = sli_rows_task_make(&run->rows_of_ids);
    run->task = &run->own_task;
    return SL_OK;
}

/* Counts every split's batches, so that an impossible one is found before the first epoch. What has
 * no text gets rank 0's numbers. */
static sl_status count_batches(sli_run *run)
{
    sl_train_options *options = &run->plan->options;
    const sl_train_task *task = run->task;
    run->rows = options->shards * options->batch_size;
    for (int split = 0; split < SL_SPLITS && (run->corpus || run->has_rows || options->task);
         split++) {
        int64_t rows = split == SL_SPLIT_TRAIN ? run->rows : options->eval_batch_size;
        int64_t *batches = &run->batches[split];
        SL_TRY(task->count_batches(task->context, (sl_split)split, rows, batches));
        if (*batches < 0)
            return sl_error(SL_ERR_INVALID,
                            "the task's count_batches gave %" PRId64 " batches of the split %s",
                            *batches, sl_split_name((sl_split)split));
    }
    if (run->processes)
        SL_TRY(sl_group_broadcast(run->processes, run->batches, SL_SPLITS, SL_I64, 0, NULL));
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
    run->rows_of_ids.batches_per_epoch = run->batches_per_epoch;
    options->lr.total_steps = run->batches_per_epoch * options->epochs;
    return SL_OK;
}

const sl_model_options *sli_run_model(const sli_run *run)
{
    return run->options->task ? NULL : &run->options->model;
}

bool sli_run_has_adapters(const sli_run *run)
{
    const sl_model_options *model = sli_run_model(run);
    return model && model->lora.adapts;
}

/* Of rows it is the one that was given, or that of the model that the run began with. */
const sl_vocab *sli_run_vocab(const sli_run *run)
{
    if (run->corpus)
        return sl_corpus_vocab(run->corpus);
    if (run->has_rows && run->tokenizer)
        return run->tokenizer;
    return run->has_rows && run->init ? sl_saved_model_vocab(run->init) : NULL;
}

const char *sli_run_generation(const sli_run *run)
{
    return run->init ? sl_saved_model_generation(run->init) : NULL;
}

/* ---- The plan ---------------------------------------------------------------------------- */

/* Rank 0 finds a checkpoint for all, and a layout where one is to be searched: it has read the
 * text, and counts what its process holds. */
static sl_status find(sli_run *run, sli_plan_inputs *inputs, const int64_t hosts[2])
{
    const sl_train_options *options = inputs->options;
    sl_model_options sizes = options->model;
    sl_module *model;
    SL_TRY(sli_resume_open(run, &options->checkpoints));
    inputs->found = run->found;
    if (sli_plan_rule(options, &run->launch) != SLI_LAYOUT_SEARCHED || options->task)
        return SL_OK;
    if (run->has_rows) {
        sli_rows_task rows;
        SL_TRY(open_init(run, options));
        SL_TRY(open_tokenizer(run, options));
        sl_status status = read_rows(run, options, &sizes, &rows);
        sli_rows_task_clear(&rows);
        SL_TRY(status);
    } else {
        SL_TRY(read_corpus(run, options));
        SL_TRY(take_vocabulary(run->corpus, &sizes));
    }
    SL_TRY(sl_transformer_lm_create(&sizes, &model));
    sl_status status = sli_plan_search(inputs, model, (int)hosts[0], (uint64_t)-hosts[1]);
    sl_module_destroy(&model);
    return status;
}

/* hosts: the most processes of one, and, negative, the least memory. */
static sl_status find_together(sli_run *run, sli_plan_inputs *inputs)
{
    _Static_assert(sizeof run->found % sizeof(int32_t) == 0, "findings are words");
    sl_group *group = run->processes;
    int64_t hosts[] = {run->launch.local_ranks, -(int64_t)sl_usable_memory()};
    if (group)
        SL_TRY(sl_group_all_reduce(group, hosts, 2, SL_I64, SL_REDUCE_MAX, NULL));
    if (run->launch.rank == 0)
        SL_TRY(find(run, inputs, hosts));
    if (group)
        SL_TRY(sl_group_broadcast(group, &inputs->found, sizeof run->found / sizeof(int32_t),
                                  SL_I32, 0, NULL));
    run->found = inputs->found;
    run->asked = sli_resume_asked(&inputs->options->checkpoints, run->found.start);
    return SL_OK;
}

/* What a plan was made for has cores for each of its ranks. */
static sl_status check_planned(const sli_run *run)
{
    const sl_train_options *options = &run->plan->options;
    sli_cores found;
    bool is_planned = options->planned_step_seconds > 0 && !options->force;
    if (!is_planned || !run->devices.oversubscribed ||
        sli_device_list_shares_cores(run->plan->device_names))
        return SL_OK;
    SL_TRY(sli_cores_find(&found));
    int cores = found.core_count;
    sli_cores_clear(&found);
    return sl_error(SL_ERR_INVALID,
                    "the plan is for %d device%s of this host, each with cores of its own, and the "
                    "host has %d core%s: plan for this machine, start the run as processes of "
                    "several hosts, or set force",
                    run->plan->ranks_here * run->plan->pipeline_ranks_each,
                    run->plan->ranks_here * run->plan->pipeline_ranks_each == 1 ? "" : "s", cores,
                    cores == 1 ? "" : "s");
}

/* Before anything is read or planned for them. */
static sl_status check_precision(const sli_run *run)
{
    for (int i = 0; i < sl_device_list_count(run->devices.list); i++) {
        const sl_device *device = sl_device_list_get(run->devices.list, i);
        if (run->plan->options.precision == SL_PRECISION_TF32 && !sli_device_has_tf32(device))
            return sl_error(SL_ERR_UNSUPPORTED,
                            "%s has no products in tf32: use f32 or bf16, or GPUs for all stages",
                            sl_device_name(device));
    }
    return SL_OK;
}

/* The devices of this process: first those of its first rank. */
static sl_status open_devices(sli_run *run)
{
    sl_plan *plan = run->plan;
    int each = plan->pipeline_ranks_each, ranks = run->processes ? 1 : plan->ranks;
    SL_TRY(sli_plan_check_kind(plan));
    SL_TRY(sli_device_list_create_range(plan->device_names, run->launch.local_rank * each,
                                        ranks * each, run->devices.own_cores, &run->devices.list,
                                        &run->devices.oversubscribed));
    SL_TRY(check_planned(run));
    SL_TRY(check_precision(run));
    return sl_device_list_set_batch_invariant(run->devices.list, plan->options.batch_invariant);
}

/* All ranks learn which devices the others have opened. */
static sl_status share_devices(sli_run *run)
{
    _Static_assert(sizeof(sl_device_plan) % sizeof(int32_t) == 0, "entries are words");
    const sl_plan *plan = run->plan;
    const sl_device_list *list = run->devices.list;
    size_t each = (size_t)plan->pipeline_ranks_each;
    sl_device_plan *mine = sli_plan_devices_of(plan, run->launch.rank);
    for (int i = 0; i < sl_device_list_count(list); i++)
        mine[i].threads = sl_device_thread_count(sl_device_list_get(list, i));
    if (!run->processes)
        return SL_OK;
    sl_device_plan *gathered = calloc((size_t)plan->ranks * each, sizeof *gathered);
    if (!gathered)
        return sli_no_memory(NULL, "the devices of %d processes", plan->ranks);
    sl_status status =
        sl_group_all_gather(run->processes, mine, gathered,
                            (int64_t)(each * sizeof *mine / sizeof(int32_t)), SL_I32, NULL);
    for (int r = 0; status == SL_OK && r < plan->ranks; r++)
        memcpy(sli_plan_devices_of(plan, r), gathered + (size_t)r * each, each * sizeof *mine);
    free(gathered);
    return status;
}

/* Decides what depends on the model. */
static sl_status complete_plan(sli_run *run, const sli_plan_inputs *inputs)
{
    const sl_train_task *task = run->task;
    sli_profile_inputs profile = {.task = task, .rows = run->has_rows ? &run->rows_of_ids : NULL};
    sl_status status;
    SL_TRY_OR_FAIL(task->create_model(task->context, &profile.model, &profile.loss));
    status = sli_plan_complete(inputs, profile, run->processes, run->plan, &run->devices);
fail:
    sl_loss_destroy(&profile.loss);
    sl_module_destroy(&profile.model);
    return status;
}

/* Whether this process has cores that no other rank on its machine may use, as under
 * `mpirun --bind-to core`. */
static sl_status find_own_cores(sl_group *group, bool *out)
{
    int64_t mine[SLI_CORE_WORDS];
    int ranks = sl_group_size(group);
    SL_TRY(sli_cores_describe(mine));
    int64_t *all = calloc((size_t)ranks * SLI_CORE_WORDS, sizeof *all);
    if (!all)
        return sli_no_memory(NULL, "the cores of %d ranks", ranks);
    sl_status status = sl_group_all_gather(group, mine, all, SLI_CORE_WORDS, SL_I64, NULL);
    *out = status == SL_OK && sli_cores_are_own(all, ranks, sl_group_rank(group));
    free(all);
    return status;
}

/* What a checkpoint says of adapters, and an adapter of its base. */
static void complete_adapters(sl_train_options *options)
{
    sl_lora_options *lora = &options->model.lora;
    lora->base = options->init;
    lora->rank = sli_lora_rank(lora);
    lora->alpha = sli_lora_alpha(lora);
}

/* The plan first, then what is made by it. */
static sl_status create_run(sli_run *run, const sl_train_options *options)
{
    sli_plan_inputs inputs = {.options = options, .launch = &run->launch};
    int processes = run->processes ? sl_group_size(run->processes) : 0;
    SL_TRY(sli_train_options_check_values(options));
    if (run->processes)
        SL_TRY(find_own_cores(run->processes, &run->devices.own_cores));
    if (!options->task)
        SL_TRY(sli_data_is_rows(options->data, &run->has_rows));
    if ((options->group_by_length || options->pack) && !run->has_rows)
        return sl_error(SL_ERR_INVALID,
                        "%s is for rows of JSON lines, which have lengths of their own, but the "
                        "data are %s",
                        options->pack ? "pack" : "group-by-length",
                        options->task ? "a task's" : "a text");
    SL_TRY(find_together(run, &inputs));
    SL_TRY(sli_plan_layout(&inputs, &run->plan));
    run->options = &run->plan->options;
    complete_adapters(&run->plan->options);
    run->task = options->task;
    run->plan->resumes = run->resume.reader ? run->resume.path : NULL;
    run->plan->resumes_step = run->resume.recorded.position.steps;
    if (run->found.start == SLI_START_AGAIN || run->found.start == SLI_START_OWN)
        run->plan->restart = run->launch.restarts;
    if (run->plan->processes && run->plan->ranks != processes)
        return SL_OK; /* the job is to be started with as many */
    if (!run->task)
        SL_TRY(run->has_rows ? create_rows(run) : create_language(run));
    bool needs_weights = !run->found.resumes || sli_run_has_adapters(run);
    if (needs_weights && sli_plan_rank(run->plan, run->launch.rank).replica == 0)
        SL_TRY(open_init(run, run->options)); /* for the weights */
    SL_TRY(open_devices(run));
    SL_TRY(count_batches(run));
    SL_TRY(complete_plan(run, &inputs));
    SL_TRY(share_devices(run));
    SL_TRY(sli_best_create(run->plan->stages, !run->processes && run->plan->ranks > 1, &run->best));
    if (!run->resume.reader)
        return SL_OK;
    return sl_error_context(sli_run_state_check(sl_checkpoint_state(run->resume.reader), run),
                            "%s: ", run->resume.path);
}

/* ---- A rank among processes ---------------------------------------------------------------- */

/* Breaks the group with this thread's error, unless another rank has broken it; the error of every
 * rank is then that of the first to do so, "rank R: …". One that only says the number of a rank
 * does not replace one that says where it is. */
static sl_status abort_group(sl_group *group, sl_status error)
{
    sli_error_copy mine;
    sli_error_save(&mine, error);
    error = sli_group_first_error(group, error);
    bool names_less = sli_error_rank() != SLI_NO_RANK && mine.rank == SLI_NO_RANK;
    return names_less ? sli_error_restore(&mine) : error;
}

/* This process's rank, and those of its host. */
static sl_status complete_launch(sli_run *run)
{
    sl_train_launch *launch = &run->launch;
    int size = run->processes ? sl_group_size(run->processes) : 0;
    if (launch->ranks != 0 && launch->ranks != size)
        return sl_error(SL_ERR_INVALID, "ranks must be the size of the group, %d, or 0, got %d",
                        size, launch->ranks);
    launch->ranks = size;
    launch->rank = size ? sl_group_rank(run->processes) : 0;
    launch->local_rank = size ? launch->local_rank : 0;
    if (launch->local_ranks == 0)
        launch->local_rank = launch->rank;
    int local = launch->local_ranks ? launch->local_ranks : size;
    if (size && (launch->local_rank < 0 || launch->local_rank >= local))
        return sl_error(SL_ERR_INVALID, "a host's %d rank%s cannot have a number %d", local,
                        local == 1 ? "" : "s", launch->local_rank);
    return SL_OK;
}

/* ---- The run ------------------------------------------------------------------------------ */

sl_status sl_run_create(const sl_train_options *options, const sl_train_launch *launch,
                        sl_group *group, const sl_reporter *reporters, int reporter_count,
                        sl_run **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    sli_run *run = calloc(1, sizeof *run);
    sl_status status;
    if (!options)
        SL_TRY_OR_FAIL(sl_error(SL_ERR_INVALID, "sl_run_create: options is NULL"));
    if (!run)
        SL_TRY_OR_FAIL(sli_no_memory(NULL, "a run"));
    run->launch = launch ? *launch : (sl_train_launch){0};
    run->processes = group;
    run->reporters = reporters;
    run->reporter_count = reporter_count;
    SL_TRY_OR_FAIL(complete_launch(run));
    SL_TRY_OR_FAIL(create_run(run, options));
    *out = run;
    return SL_OK;
fail:
    sl_run_destroy(&run);
    return group ? abort_group(group, status) : status; /* the others wait */
}

sl_status sli_run_create_to_plan(const sl_train_options *options, sl_run **out)
{
    sli_run *run = *out = calloc(1, sizeof *run);
    if (!run)
        return sli_no_memory(NULL, "a run");
    run->may_lack_weights = true;
    sl_status status = create_run(run, options);
    if (status != SL_OK)
        sl_run_destroy(out);
    return status;
}

void sl_run_destroy(sl_run **run)
{
    if (!run || !*run)
        return;
    sli_resume_clear(&(*run)->resume);
    sli_best_destroy(&(*run)->best);
    sl_device_list_destroy(&(*run)->devices.list);
    sl_corpus_destroy(&(*run)->corpus);
    sli_rows_task_clear(&(*run)->rows_of_ids);
    sl_vocab_destroy(&(*run)->tokenizer);
    sl_saved_model_close(&(*run)->init);
    sl_plan_destroy(&(*run)->plan);
    free(*run);
    *run = NULL;
}

const sl_plan *sl_run_plan(const sl_run *run)
{
    return run->plan;
}

static sl_status run_thread(sl_group *group, void *arg)
{
    const sli_run *run = arg;
    sl_run_result others;
    int rank = sl_group_rank(group);
    return sli_run_rank(run, group, rank * run->options->pipeline_ranks,
                        rank == 0 ? run->result : &others);
}

/* A plan of fewer ranks than there are processes does not fit them. */
static sl_status train_ranks(sli_run *run)
{
    int processes = run->processes ? sl_group_size(run->processes) : 0;
    if (processes && run->plan->ranks != processes)
        return sl_error(SL_ERR_INVALID, "the plan is for %d processes, but there are %d",
                        run->plan->ranks, processes);
    bool is_alone = run->options->shards == 1 && run->plan->ranks == 1;
    if (processes || is_alone)
        return sli_run_rank(run, is_alone ? NULL : run->processes, 0, run->result);
    return sl_spawn(run_thread, run, run->plan->ranks, NULL);
}

sl_status sl_run_train(sl_run *run, const sl_reporter *reporters, int reporter_count,
                       sl_run_result *result)
{
    SLI_CHECK_NOT_NULL(run);
    run->reporters = reporters;
    run->reporter_count = reporter_count;
    run->result = result;
    sl_status status =
        result ? train_ranks(run) : sl_error(SL_ERR_INVALID, "sl_run_train: result is NULL");
    return status == SL_OK || !run->processes ? status : abort_group(run->processes, status);
}

sl_status sl_train_run(const sl_train_options *options, const sl_reporter *reporters,
                       int reporter_count, sl_run_result *result)
{
    sl_run *run;
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(result);
    SL_TRY(sl_run_create(options, NULL, NULL, reporters, reporter_count, &run));
    sl_status status = sl_run_train(run, reporters, reporter_count, result);
    sl_run_destroy(&run);
    return status;
}
