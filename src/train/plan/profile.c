/* How long the modules of a run's model take, and where this says to cut it. */
#include "train/plan/profile.h"

#include "comm/link_time.h"
#include "core/error.h"
#include "core/host.h"
#include "device/device_base.h"
#include "tensor/tensor.h"
#include "train/loop/language.h"
#include "train/loop/replica.h"
#include "train/loop/rows_task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The profile of a model on the devices of the first replica's ranks. */
typedef struct model_profile {
    sli_profile_inputs inputs;
    int64_t rows; /* that are profiled: at most a quarter of the batch's */
    int pipeline_ranks;
    const sl_module_profile *times[SL_MAX_STAGES]; /* [pipeline_ranks][modules] */
    sl_module_profile *room;                       /* where they are */
} model_profile;

static void scale_costs(sl_module_profile *costs, double factor)
{
    costs->forward *= factor;
    costs->backward *= factor;
    costs->backward_input *= factor;
    costs->backward_weight *= factor;
    costs->output_bytes *= factor;
}

static sl_status profile_device(const model_profile *profile, sl_device *device,
                                sl_module_profile *out)
{
    sl_tensor *input, *targets;
    sli_rows_extra extra = {0};
    const sl_train_options *options = &profile->inputs.plan->options;
    const sl_train_rows rows = {.split = SL_SPLIT_TRAIN,
                                .batch_rows = options->shards * options->batch_size,
                                .count = profile->rows};
    sl_status status;
    SL_TRY_OR_FAIL(sli_task_load(profile->inputs.task, &rows, device, device, &input, &targets));
    if (profile->inputs.rows)
        SL_TRY_OR_FAIL(sli_rows_task_load_extra(profile->inputs.rows, &rows, device, &extra));
    const sl_input documents = {SL_DOCUMENTS_INPUT, extra.documents, false};
    SL_TRY_OR_FAIL(sl_profile_modules(&(sl_profile_options){.model = profile->inputs.model,
                                                            .loss = profile->inputs.loss,
                                                            .device = device,
                                                            .input = input,
                                                            .inputs = &documents,
                                                            .input_count = extra.documents != NULL,
                                                            .targets = targets,
                                                            .precision = options->precision},
                                      out));
    for (int i = 0; i < sl_module_child_count(profile->inputs.model); i++)
        scale_costs(&out[i], (double)profile->inputs.plan->micro_rows / (double)profile->rows);
fail:
    sli_rows_extra_clear(&extra);
    sl_tensor_destroy(&targets);
    sl_tensor_destroy(&input);
    return status;
}

/* The first replica's; one in another process is taken to be like one that is here. */
static sl_device *device_of(const model_profile *profile, int rank)
{
    return sl_device_list_get(profile->inputs.devices,
                              rank % sl_device_list_count(profile->inputs.devices));
}

/* ---- Cores -------------------------------------------------------------------------------- */

/* Where a pipeline rank computes, in words that processes exchange: equal for those on the same
 * cores. */
typedef struct rank_cores {
    int64_t host, process, number; /* -1: any process of the host */
} rank_cores;

enum { RANK_CORES_WORDS = sizeof(rank_cores) / sizeof(int64_t) };

static rank_cores describe_cores(const sl_device_list *devices, int rank, int process)
{
    int index = rank % sl_device_list_count(devices);
    int core_set = sl_device_list_get(devices, index)->core_set;
    return core_set >= 0 ? (rank_cores){sli_host_number(), -1, core_set}
                         : (rank_cores){sli_host_number(), process, index};
}

/* The first of the ranks on the same cores gives them their number. */
static void number_cores(const rank_cores *ranks, int count, int *out)
{
    for (int rank = 0; rank < count; rank++) {
        out[rank] = 0;
        while (memcmp(&ranks[out[rank]], &ranks[rank], sizeof *ranks) != 0)
            out[rank]++;
    }
}

sl_status sli_find_cores(const sl_plan *plan, const sl_device_list *devices, sl_group *all,
                         int *cores)
{
    int pipeline_ranks = plan->options.pipeline_ranks;
    int ranks_here = all ? plan->pipeline_ranks_each : pipeline_ranks;
    rank_cores cores_here[SL_MAX_STAGES], of_replica[SL_MAX_STAGES];
    for (int i = 0; i < ranks_here; i++)
        cores_here[i] = describe_cores(devices, i, all ? sl_group_rank(all) : 0);
    if (ranks_here == pipeline_ranks) {
        number_cores(cores_here, pipeline_ranks, cores);
        return SL_OK;
    }
    rank_cores *gathered =
        calloc((size_t)sl_group_size(all) * (size_t)ranks_here, sizeof *gathered);
    if (!gathered)
        return sli_no_memory(NULL, "the cores of %d ranks", pipeline_ranks);
    sl_status status;
    SL_TRY_OR_FAIL(sl_group_all_gather(all, cores_here, gathered,
                                       (int64_t)ranks_here * RANK_CORES_WORDS, SL_I64, NULL));
    for (int rank = 0; rank < pipeline_ranks; rank++)
        of_replica[rank] = gathered[plan->devices[rank].rank * ranks_here + rank % ranks_here];
    number_cores(of_replica, pipeline_ranks, cores);
fail:
    free(gathered);
    return status;
}

static bool has_shared_cores(const model_profile *profile)
{
    for (int rank = 0; rank < profile->pipeline_ranks; rank++)
        if (profile->inputs.cores[rank] != rank)
            return true;
    return false;
}

/* ---- Times -------------------------------------------------------------------------------- */

/* Whether modules are taken to be as fast on both. Of a process's CPU devices those with as many
 * threads are; two GPUs may be of different kinds. */
static bool are_alike(const sl_device *a, const sl_device *b)
{
    return a == b || (sl_device_has_host_memory(a) && sl_device_has_host_memory(b) &&
                      sl_device_thread_count(a) == sl_device_thread_count(b));
}

/* On the device of each of the first replica's ranks, into times[rank]. Ranks whose devices are
 * alike share what one of them took. */
static sl_status profile_pipeline_ranks(model_profile *profile)
{
    size_t modules = (size_t)sl_module_child_count(profile->inputs.model);
    profile->room = calloc((size_t)profile->pipeline_ranks * modules, sizeof *profile->room);
    if (!profile->room)
        return sli_no_memory(NULL, "the profile of %d ranks", profile->pipeline_ranks);
    for (int rank = 0; rank < profile->pipeline_ranks; rank++) {
        int like = 0;
        while (!are_alike(device_of(profile, like), device_of(profile, rank)))
            like++;
        sl_module_profile *measured = profile->room + (size_t)rank * modules;
        profile->times[rank] = like < rank ? profile->times[like] : measured;
        if (like == rank)
            SL_TRY(profile_device(profile, device_of(profile, rank), measured));
    }
    return SL_OK;
}

static sl_status open_profile(model_profile *profile)
{
    const sl_plan *plan = profile->inputs.plan;
    int64_t most = (plan->options.batch_size + 3) / 4;
    profile->rows = plan->micro_rows < most ? plan->micro_rows : most;
    profile->pipeline_ranks = plan->options.pipeline_ranks;
    return profile_pipeline_ranks(profile);
}

/* ---- Cuts ----------------------------------------------------------------------- */

/* Each module's times on the device of its stage. */
static void pick_times(const model_profile *profile, const int *balance, sl_module_profile *out)
{
    const sl_plan *plan = profile->inputs.plan;
    for (int s = 0, i = 0; s < plan->stages; s++)
        for (int end = i + balance[s]; i < end; i++)
            out[i] = profile->times[plan->stage[s].rank][i];
}

/* Adds the run's layout to those of a search, cut as the options say, or by time if a cut fits. */
static sl_status add_layout(const model_profile *profile, bool shares_cores, sli_search *search)
{
    const sl_plan *plan = profile->inputs.plan;
    const sl_train_options *options = &plan->options;
    bool by_time = options->balance_kind == SL_BALANCE_AUTO;
    const sli_layout layout = sli_plan_layout_of(plan, profile->inputs.model);
    const sli_layout_speed speed = {.profiles = profile->times,
                                    .links = profile->inputs.links,
                                    .cores =
                                        has_shared_cores(profile) ? profile->inputs.cores : NULL};
    const sli_candidate candidate = {.replicas = options->replicas,
                                     .pipeline_ranks = options->pipeline_ranks,
                                     .schedule = options->schedule,
                                     .chunks = options->chunks,
                                     .recompute = options->recompute,
                                     .zero = options->zero,
                                     .shares_cores = shares_cores};
    int balance[SL_MAX_STAGES];
    bool is_checked = by_time && !options->force && !options->task; /* else elsewhere */
    search->host_bytes = is_checked ? sl_usable_memory() : 0;
    if (by_time)
        return sli_search_add(search, &candidate, &layout, &speed, NULL);
    SL_TRY(sli_plan_choose_cut(plan, profile->inputs.model, balance));
    return sli_search_add(search, &candidate, &layout, &speed, balance);
}

/* Accumulation steps of the shards that a replica trains one after the other. */
static double count_steps(const sl_plan *plan)
{
    const sl_train_options *options = &plan->options;
    int shards = (options->shards + options->replicas - 1) / options->replicas;
    return (double)shards * options->accumulate;
}

sl_status sli_profile_layout(const sli_profile_inputs *inputs, bool shares_cores,
                             sl_module_profile *profiles, sli_search *search, sli_step_times *times)
{
    model_profile profile = {.inputs = *inputs};
    const sl_plan *plan = inputs->plan;
    int balance[SL_MAX_STAGES], micros = sl_schedule_micros(plan->table);
    sl_status status;
    SL_TRY_OR_FAIL(open_profile(&profile));
    SL_TRY_OR_FAIL(add_layout(&profile, shares_cores, search));
    times->cut = search->count > 0 ? search->found[0].costs.pipeline / count_steps(plan) : 0;
    times->one_stage = 0;
    for (int i = 0; i < sl_module_child_count(inputs->model); i++)
        times->one_stage += micros * (profile.times[0][i].forward + profile.times[0][i].backward);
    SL_TRY_OR_FAIL(sli_found_cut(search, plan, inputs->model, balance));
    if (profiles)
        pick_times(&profile, balance, profiles);
fail:
    free(profile.room);
    return status;
}

sl_status sli_found_cut(const sli_search *search, const sl_plan *plan, const sl_module *model,
                        int *balance)
{
    const sli_found_layout *best = search->found;
    if (search->count == 0)
        return sli_plan_choose_cut(plan, model, balance);
    memcpy(balance, best->balance, (size_t)best->stages * sizeof *balance);
    return SL_OK;
}

sl_status sli_profile_model(const sli_profile_inputs *inputs, sl_module_profile *profiles,
                            int *balance, sli_step_times *times)
{
    sli_found_layout best;
    sli_search search = {.wanted = 1, .found = &best};
    SL_TRY(sli_profile_layout(inputs, false, profiles, &search, times));
    return sli_found_cut(&search, inputs->plan, inputs->model, balance);
}

/* ---- Links --------------------------------------------------------------------------------- */

/* From the times of the smallest message and of a large one. */
static sl_status measure_cost(sl_group *group, int first, int other, sl_link_cost *out)
{
    enum { SMALL = sizeof(int32_t), LARGE = 1 << 20 };
    static const double bytes[] = {SMALL, LARGE};
    double seconds[2];
    SL_TRY(sli_measure_link(group, first, other, SMALL, &seconds[0]));
    SL_TRY(sli_measure_link(group, first, other, LARGE, &seconds[1]));
    bool is_timed = seconds[0] > 0 && seconds[1] > 0; /* by the first one */
    *out = is_timed ? sli_link_fit(bytes, seconds, 2) : (sl_link_cost){0, 0};
    return SL_OK;
}

/* One link after the other, so that none slows another down. */
static sl_status measure_costs(const sl_plan *plan, sl_group *all, sl_link_cost *links)
{
    int pipeline_ranks = plan->options.pipeline_ranks, rank = sl_group_rank(all);
    bool measured[SL_MAX_STAGES][SL_MAX_STAGES] = {{false}};
    for (int s = 1; s < plan->stages; s++) {
        int sender = plan->stage[s - 1].rank, receiver = plan->stage[s].rank;
        int first = plan->devices[sender].rank, other = plan->devices[receiver].rank;
        bool is_known = first == other || measured[sender][receiver];
        measured[sender][receiver] = measured[receiver][sender] = true;
        if (!is_known && (rank == first || rank == other)) {
            SL_TRY(measure_cost(all, first, other, &links[sender * pipeline_ranks + receiver]));
            links[receiver * pipeline_ranks + sender] = links[sender * pipeline_ranks + receiver];
        }
    }
    return SL_OK;
}

sl_status sli_measure_links(const sl_plan *plan, sl_group *all, sl_link_cost **out)
{
    _Static_assert(sizeof **out == 2 * sizeof(double), "costs are summed as numbers");
    int pipeline_ranks = plan->options.pipeline_ranks;
    *out = NULL;
    if (plan->ranks_per_replica == 1)
        return SL_OK;
    sl_link_cost *links = calloc((size_t)pipeline_ranks * (size_t)pipeline_ranks, sizeof *links);
    if (!links)
        return sli_no_memory(NULL, "the links of %d ranks", pipeline_ranks);
    sl_status status;
    SL_TRY_OR_FAIL(measure_costs(plan, all, links));
    SL_TRY_OR_FAIL(sl_group_all_reduce(all, links, 2 * pipeline_ranks * pipeline_ranks, SL_F64,
                                       SL_REDUCE_SUM, NULL));
    *out = links;
    return SL_OK;
fail:
    free(links);
    return status;
}

/* ---- Without a text ------------------------------------------------------------------------- */

/* On devices that are open for that long. */
static sl_status profile_tokens(sl_plan *plan, sl_module *model, const sl_tokens *tokens,
                                sl_module_profile *profiles)
{
    const sl_train_options *options = &plan->options;
    sli_language language = {.tokens = {[SL_SPLIT_TRAIN] = tokens},
                             .bptt = options->bptt,
                             .shard_rows = options->batch_size};
    const sl_train_task task = sli_language_task(&language);
    int cores[SL_MAX_STAGES] = {0}, balance[SL_MAX_STAGES];
    sli_step_times times;
    sl_loss *loss = NULL;
    sl_device_list *devices;
    SL_TRY(sl_device_list_create(plan->device_names, &devices, NULL));
    sl_status status;
    SL_TRY_OR_FAIL(sl_device_list_set_batch_invariant(devices, options->batch_invariant));
    SL_TRY_OR_FAIL(sli_find_cores(plan, devices, NULL, cores));
    SL_TRY_OR_FAIL(sl_cross_entropy_create(&loss));
    SL_TRY_OR_FAIL(sli_profile_model(&(sli_profile_inputs){.plan = plan,
                                                           .task = &task,
                                                           .model = model,
                                                           .loss = loss,
                                                           .devices = devices,
                                                           .cores = cores},
                                     profiles, balance, &times));
    if (options->balance_kind == SL_BALANCE_AUTO)
        plan->by.balance = SL_BY_PROFILE;
    status = sli_plan_cut(plan, model, balance);
fail:
    sl_loss_destroy(&loss);
    sl_device_list_destroy(&devices);
    return status;
}

void sli_draw_ids(int64_t ntokens, int64_t count, int32_t *ids)
{
    uint32_t draw = 1;
    for (int64_t i = 0; i < count; i++) {
        draw = draw * 1664525u + 1013904223u;
        ids[i] = (int32_t)((draw >> 8) % (uint64_t)ntokens);
    }
}

sl_status sli_plan_profile(sl_plan *plan, sl_module *model, sl_module_profile *profiles)
{
    const sl_train_options *options = &plan->options;
    sl_tokens tokens = {.count = options->shards * options->batch_size * (options->bptt + 1)};
    int32_t *ids = malloc((size_t)tokens.count * sizeof *ids);
    if (!ids)
        return sli_no_memory(NULL, "a text to profile with");
    sli_draw_ids(options->model.ntokens, tokens.count, ids);
    tokens.ids = ids;
    sl_status status = profile_tokens(plan, model, &tokens, profiles);
    free(ids);
    return status;
}
