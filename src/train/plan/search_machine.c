/* The best plans of a run on this machine: its layouts are laid out as those of a run, held against
 * the memory by counted operations, and only those that fit are timed. */
#include "train/plan/search_machine.h"

#include "core/error.h"
#include "device/device.h"
#include "nn/module.h"
#include "nn/split_head.h"
#include "train/plan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A search, and what its layouts have in common. */
typedef struct machine_search {
    const sl_plan_search_options *options;
    const sl_train_options *run; /* the options', with what the data say */
    const sli_machine *machine;
    const sl_module *model;
    bool is_counted;       /* operations stand for times */
    int64_t rows;          /* of a step */
    sli_error_copy reason; /* why the last candidate that is no layout, with its schedule's own
                              number of stages and the run's vocabulary, is none */
} machine_search;

bool sli_plan_keeps(const sl_plan_search_options *options, const sl_train_options *run,
                    sl_plan_kept option)
{
    bool is_open = (option == SL_KEEP_REPLICAS && run->replicas < 1) ||
                   (option == SL_KEEP_PIPELINE_RANKS && run->pipeline_ranks < 1) ||
                   (option == SL_KEEP_SCHEDULE && !run->schedule) ||
                   (option == SL_KEEP_CHUNKS && run->chunks < 1) ||
                   (option == SL_KEEP_SHARDS && run->shards < 1) ||
                   (option == SL_KEEP_BATCH_SIZE && run->batch_size < 1);
    return (options->kept & option) != 0 && !is_open;
}

sl_status sli_plan_count_rows(const sl_plan_search_options *options, const sl_train_options *run,
                              int64_t *rows)
{
    int64_t tokens = options->batch_tokens;
    *rows = run->batch_size * (run->shards > 0 ? run->shards : 1);
    if (tokens == 0)
        return SL_OK;
    if (tokens % run->bptt != 0)
        return sl_error(SL_ERR_INVALID,
                        "batch-tokens must be a multiple of the %" PRId64
                        " tokens of a row, got %" PRId64,
                        run->bptt, tokens);
    *rows = tokens / run->bptt;
    return SL_OK;
}

/* The head of slices, or of a table as it is given, is not split unasked. Nor is one whose blocks
 * have few words: they take longer than their part of the head, for which they are planned.
 * (Measured on two cores, bf16: a step 1.5 times as long as planned with 64 words in a block, 1.06
 * times with 256.) */
static bool tries_split(const sl_plan_search_options *options, const sl_train_options *run)
{
    enum { LEAST_WORDS = 256 };
    return !sli_plan_keeps(options, run, SL_KEEP_SPLIT_VOCABULARY) && !run->table &&
           run->slices <= 1 && run->model.ntokens >= LEAST_WORDS * SL_VOCABULARY_BLOCKS;
}

void sli_plan_list_choices(const sl_plan_search_options *options, const sl_train_options *run,
                           sli_search_space *space)
{
    static const sl_recompute recomputes[] = {SL_RECOMPUTE_NEVER, SL_RECOMPUTE_EXCEPT_LAST,
                                              SL_RECOMPUTE_ALWAYS};
    bool keeps_schedule = sli_plan_keeps(options, run, SL_KEEP_SCHEDULE) || run->table,
         keeps_recompute = sli_plan_keeps(options, run, SL_KEEP_RECOMPUTE);
    space->schedules = keeps_schedule ? &run->schedule : sl_schedule_names;
    space->schedule_count = 1;
    while (!keeps_schedule && sl_schedule_names[space->schedule_count])
        space->schedule_count++;
    space->recomputes = keeps_recompute ? &run->recompute : recomputes;
    space->recompute_count = keeps_recompute ? 1 : (int)(sizeof recomputes / sizeof *recomputes);
    space->splits_vocabulary[0] = run->split_vocabulary;
    space->splits_vocabulary[1] = run->split_vocabulary || tries_split(options, run);
}

static bool is_kept(const machine_search *search, sl_plan_kept option)
{
    return sli_plan_keeps(search->options, search->run, option);
}

/* ---- A candidate's options ------------------------------------------------------------------ */

/* Those of a pipeline, where the options name none: which of them a run takes is otherwise decided
 * by a profile. */
static sl_status name_devices(const machine_search *search, const sli_candidate *candidate,
                              char devices[SL_PLAN_DEVICES_BYTES], sl_train_options *options)
{
    int count = candidate->replicas * candidate->pipeline_ranks;
    char *names;
    if (options->devices || candidate->pipeline_ranks == 1 || search->machine->keeps_devices)
        return SL_OK;
    SL_TRY(sli_device_list_name_cpus(count, candidate->shares_cores, &names));
    bool has_room = strlen(names) < SL_PLAN_DEVICES_BYTES;
    snprintf(devices, SL_PLAN_DEVICES_BYTES, "%s", names);
    free(names);
    options->devices = devices;
    return has_room ? SL_OK
                    : sl_error(SL_ERR_UNSUPPORTED,
                               "%d replicas of %d pipeline ranks have more devices than a plan can "
                               "name",
                               candidate->replicas, candidate->pipeline_ranks);
}

/* False where the rows cannot be divided among shards and micro-batches. */
static bool divide_rows(const machine_search *search, const sli_candidate *candidate,
                        sl_train_options *options)
{
    bool keeps_batch = is_kept(search, SL_KEEP_BATCH_SIZE);
    int64_t kept_batch = options->batch_size;
    int64_t shards = is_kept(search, SL_KEEP_SHARDS) ? options->shards
                     : keeps_batch                   ? search->rows / kept_batch
                                                     : candidate->replicas;
    int accumulate = options->accumulate > 0 ? options->accumulate : 1;
    if (shards < 1 || shards > SL_MAX_REPLICAS || search->rows % shards != 0)
        return false;
    options->shards = (int)shards;
    options->batch_size = search->rows / shards;
    if (keeps_batch && options->batch_size != kept_batch)
        return false;
    return is_kept(search, SL_KEEP_CHUNKS) || options->table ||
           options->batch_size % ((int64_t)candidate->chunks * accumulate) == 0;
}

/* All but the devices. */
static bool make_options(const machine_search *search, const sli_candidate *candidate,
                         sl_train_options *out)
{
    *out = *search->run;
    out->replicas = candidate->replicas;
    out->pipeline_ranks = candidate->pipeline_ranks;
    out->schedule = candidate->schedule;
    if (candidate->virtual_stages > 0)
        out->virtual_stages = candidate->virtual_stages;
    out->chunks = candidate->chunks;
    out->recompute = candidate->recompute;
    out->zero = candidate->zero;
    out->split_vocabulary = candidate->splits_vocabulary;
    if (!is_kept(search, SL_KEEP_BALANCE))
        out->balance_kind = SL_BALANCE_AUTO;
    return divide_rows(search, candidate, out);
}

/* ---- Times -------------------------------------------------------------------------------- */

static void scale_profile(sl_module_profile *times, double factor)
{
    times->forward *= factor;
    times->backward *= factor;
    times->backward_input *= factor;
    times->backward_weight *= factor;
}

/* Devices that work at the same time: those that share their cores are one. */
static int count_devices(const sli_candidate *candidate)
{
    return candidate->replicas * (candidate->shares_cores ? 1 : candidate->pipeline_ranks);
}

/* Gradients in bf16 have half the bytes; a run with measures has exchanged its own. */
static sl_status time_exchange(const machine_search *search, int replicas, sli_layout_speed *speed)
{
    const sli_machine *machine = search->machine;
    double links = machine->links_factor > 0 ? machine->links_factor : 1;
    bool is_halved = search->run->comm_precision == SL_PRECISION_BF16 && !search->options->measures;
    SL_TRY(machine->time_exchange(machine->context, replicas, &speed->reduce, &speed->gather));
    speed->reduce.seconds_per_byte /= is_halved ? 2 * links : links;
    speed->gather.seconds_per_byte /= links;
    return SL_OK;
}

/* What a layout's modules and links take. */
typedef struct layout_times {
    sl_module_profile *modules;
    sl_link_cost *links; /* [pipeline ranks][pipeline ranks] */
} layout_times;

static sl_status allocate_times(const machine_search *search, const sl_plan *plan,
                                layout_times *out)
{
    size_t ranks = (size_t)plan->options.pipeline_ranks;
    out->modules = calloc((size_t)sl_module_child_count(search->model), sizeof *out->modules);
    out->links = calloc(ranks * ranks, sizeof *out->links);
    return out->modules && out->links ? SL_OK : sli_no_memory(NULL, "the times of a layout");
}

static void free_times(layout_times *times)
{
    free(times->modules);
    free(times->links);
}

static sl_status time_layout(const machine_search *search, const sli_candidate *candidate,
                             const sl_plan *plan, layout_times *out, sli_layout_speed *speed)
{
    const sli_machine *machine = search->machine;
    sl_module_profile *times = out->modules;
    int devices = count_devices(candidate);
    if (search->is_counted)
        return sli_count_operations(search->model,
                                    sl_shape_2d(plan->micro_rows, plan->options.bptt), times);
    SL_TRY(machine->time_modules(machine->context, devices, plan->micro_rows, times));
    if (machine->one_rank_factor > 0 && candidate->replicas * candidate->pipeline_ranks == 1)
        for (int i = 0; i < sl_module_child_count(search->model); i++)
            scale_profile(&times[i], machine->one_rank_factor);
    SL_TRY(machine->time_update(machine->context, devices, &speed->update));
    if (machine->time_links)
        machine->time_links(machine->context, plan, out->links);
    return candidate->replicas > 1 ? time_exchange(search, candidate->replicas, speed) : SL_OK;
}

/* `balance` NULL: by time. */
static sl_status add_layout(machine_search *search, sli_search *results,
                            const sli_candidate *candidate, const sl_plan *plan, const int *balance)
{
    static const int one_set_of_cores[SL_MAX_STAGES];
    const sli_machine *machine = search->machine;
    sli_layout layout = sli_plan_layout_of(plan, search->model);
    const sl_module_profile *of_ranks[SL_MAX_STAGES];
    layout_times times = {0};
    sl_status status;
    SL_TRY_OR_FAIL(allocate_times(search, plan, &times));
    sli_layout_speed speed = {.profiles = of_ranks,
                              .links = times.links,
                              .cores = candidate->shares_cores ? one_set_of_cores : NULL};
    for (int rank = 0; rank < SL_MAX_STAGES; rank++)
        of_ranks[rank] = times.modules;
    layout.process_bytes = machine->has_own_memory ? 0 : machine->process_bytes;
    layout.has_own_memory = machine->has_own_memory;
    layout.activation_factor = machine->activation_factor;
    SL_TRY_OR_FAIL(time_layout(search, candidate, plan, &times, &speed));
    status = sli_search_add(results, candidate, &layout, &speed, balance);
fail:
    free_times(&times);
    return status;
}

/* By counted operations, since a module that does not fit cannot be timed. One cut is nearly always
 * enough. */
static sl_status check_fits(machine_search *search, const sli_candidate *candidate,
                            const sl_plan *plan, const int *balance, sli_search *results)
{
    bool was_counted = search->is_counted;
    search->is_counted = true;
    sl_status status;
    SL_TRY_OR_FAIL(add_layout(search, results, candidate, plan, balance));
    if (results->count == 0 && plan->options.balance_kind == SL_BALANCE_AUTO)
        status = add_layout(search, results, candidate, plan, NULL);
fail:
    search->is_counted = was_counted;
    return status;
}

static sl_status consider_plan(machine_search *search, sli_search *results,
                               const sli_candidate *candidate, const sl_plan *plan)
{
    int balance[SL_MAX_STAGES];
    bool by_time = plan->options.balance_kind == SL_BALANCE_AUTO;
    sli_search fits = {.host_bytes = results->host_bytes, .wanted = 1, .asks_fit = true};
    SL_TRY(sli_plan_choose_cut(plan, search->model, balance));
    if (search->is_counted)
        return check_fits(search, candidate, plan, balance, results);
    results->fits = false;
    SL_TRY(check_fits(search, candidate, plan, balance, &fits));
    return fits.count > 0 ? add_layout(search, results, candidate, plan, by_time ? NULL : balance)
                          : SL_OK;
}

static sl_status consider_candidate(void *context, sli_search *results,
                                    const sli_candidate *candidate)
{
    machine_search *search = context;
    char devices[SL_PLAN_DEVICES_BYTES];
    sl_train_options options;
    sl_plan *plan = NULL;
    const sli_plan_inputs inputs = {.options = &options, .launch = &search->machine->launch};
    bool is_answered = search->is_counted && results->count > 0; /* something fits */
    if (is_answered || !make_options(search, candidate, &options))
        return SL_OK;
    sl_status status;
    SL_TRY_OR_FAIL(name_devices(search, candidate, devices, &options));
    SL_TRY_OR_FAIL(sli_plan_layout(&inputs, &plan));
    SL_TRY_OR_FAIL(sli_plan_check_head(plan, search->model));
    status = consider_plan(search, results, candidate, plan);
    sl_plan_destroy(&plan);
    return status;
fail:
    if (candidate->virtual_stages == 0 &&
        candidate->splits_vocabulary == search->run->split_vocabulary)
        sli_error_save(&search->reason, status);
    sl_plan_destroy(&plan);
    return sli_plan_is_impossible(status) ? SL_OK : status;
}

/* ---- The space ---------------------------------------------------------------------------- */

enum { MOST_LISTED_CHUNKS = 64, LISTED_VIRTUAL_STAGES = 7 };

/* Of a rank: the schedule's own number, 1 or 2, and more than that. */
static const int virtual_stages[LISTED_VIRTUAL_STAGES] = {0, 3, 4, 5, 6, 7, 8};

/* Into as many micro-batches a shard's batch may be cut. */
static int list_chunks(const machine_search *search, int *chunks)
{
    int count = 0;
    if (is_kept(search, SL_KEEP_CHUNKS) || search->run->table) {
        chunks[count++] = search->run->chunks;
        return count;
    }
    for (int number = 1; number <= MOST_LISTED_CHUNKS && number <= search->rows; number++)
        if (search->rows % number == 0)
            chunks[count++] = number;
    return count;
}

static sl_status search_space(machine_search *search, sli_search *results)
{
    const sl_train_options *run = search->run;
    int chunks[MOST_LISTED_CHUNKS], cores = search->machine->cores;
    bool keeps_virtual = run->virtual_stages > 0 || run->table || run->placement;
    int known = search->machine->most_replicas, most_replicas = known > 0 ? known : cores;
    sli_sharing sharing = search->machine->sharing;
    bool is_shared = sharing == SLI_SHARING_ALWAYS;
    bool keeps_replicas = is_kept(search, SL_KEEP_REPLICAS),
         keeps_ranks = is_kept(search, SL_KEEP_PIPELINE_RANKS) || run->table;
    int asked = (keeps_replicas ? run->replicas : 1) * (keeps_ranks ? run->pipeline_ranks : 1);
    sli_search_space space = {.ranks = asked > cores ? asked : cores,
                              .least_replicas = keeps_replicas ? run->replicas : 1,
                              .most_replicas = keeps_replicas ? run->replicas : most_replicas,
                              .least_pipeline_ranks = keeps_ranks ? run->pipeline_ranks : 1,
                              .most_pipeline_ranks = keeps_ranks             ? run->pipeline_ranks
                                                     : cores < SL_MAX_STAGES ? cores
                                                                             : SL_MAX_STAGES,
                              .virtual_stages = virtual_stages,
                              .virtual_count = keeps_virtual ? 1 : LISTED_VIRTUAL_STAGES,
                              .chunks = chunks,
                              .chunk_count = list_chunks(search, chunks),
                              .zeros = {is_kept(search, SL_KEEP_ZERO) && run->zero,
                                        run->zero || !is_kept(search, SL_KEEP_ZERO)},
                              .shared = {is_shared, is_shared || (sharing != SLI_SHARING_NEVER &&
                                                                  !run->devices)}};
    sli_plan_list_choices(search->options, run, &space);
    return sli_search_layouts(results, &space, consider_candidate, search);
}

/* ---- The search --------------------------------------------------------------------------- */

/* What a rank has of the last module's times, at its first stage. */
static void describe_parts(const sl_plan *plan, const sl_module_profile *head, sl_found_plan *out)
{
    int ranks = plan->options.pipeline_ranks;
    bool has_part[SL_MAX_STAGES] = {false};
    for (int s = 0; s < plan->stages; s++) {
        int rank = plan->stage[s].rank;
        double part = sli_split_head_fraction(SL_VOCABULARY_BLOCKS, rank, ranks);
        if (has_part[rank])
            continue;
        has_part[rank] = true;
        out->head_forward[s] = part * (head->forward + head->backward_input);
        out->head_backward[s] = part * head->backward_weight;
    }
}

static double find_spread(const sli_machine *machine, const sli_candidate *candidate, int64_t rows)
{
    return machine->find_spread
               ? machine->find_spread(machine->context, count_devices(candidate), rows)
               : -1;
}

/* The times of its stages, as the search has had them. */
static sl_status describe_stages(const machine_search *search, const sli_found_layout *found,
                                 sl_found_plan *out)
{
    const sli_plan_inputs inputs = {.options = &out->options, .launch = &search->machine->launch};
    int frozen = sli_module_frozen_count(search->model),
        modules = sl_module_child_count(search->model);
    sli_layout_speed unused = {0};
    layout_times taken = {0};
    sl_plan *plan = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(sli_plan_layout(&inputs, &plan));
    SL_TRY_OR_FAIL(allocate_times(search, plan, &taken));
    SL_TRY_OR_FAIL(time_layout(search, &found->candidate, plan, &taken, &unused));
    const sl_module_profile *times = taken.modules;
    out->spread = find_spread(search->machine, &found->candidate, plan->micro_rows);
    out->device =
        search->machine->has_own_memory ? "cuda" : sli_device_list_kind(plan->device_names);
    for (int s = 0, i = 0; s < found->stages; s++)
        for (int end = i + found->balance[s]; i < end; i++) {
            if (out->options.split_vocabulary && i + 1 == modules)
                continue;
            out->forward[s] += times[i].forward;
            out->backward_input[s] += i < frozen ? 0 : times[i].backward_input;
            out->backward_weight[s] += i < frozen ? 0 : times[i].backward_weight;
            out->backward[s] += i < frozen ? 0 : times[i].backward;
        }
    for (int s = 0; s + 1 < found->stages; s++)
        out->links[s] =
            taken
                .links[plan->stage[s].rank * plan->options.pipeline_ranks + plan->stage[s + 1].rank]
                .seconds;
    if (out->options.split_vocabulary)
        describe_parts(plan, &times[modules - 1], out);
fail:
    sl_plan_destroy(&plan);
    free_times(&taken);
    return status;
}

static sl_status describe_mfu(const machine_search *search, const sli_candidate *candidate,
                              sl_found_plan *out)
{
    const sli_machine *machine = search->machine;
    double flop, peak;
    if (!machine->time_peak)
        return SL_OK;
    SL_TRY(machine->time_peak(machine->context, count_devices(candidate), &peak));
    const sl_shape row = sl_shape_2d(1, out->options.bptt);
    SL_TRY(sli_module_count_step_flop(search->model, &row, &flop));
    out->mfu = (double)search->rows * flop / (out->costs.seconds * peak);
    return SL_OK;
}

static sl_status describe_found(const machine_search *search, const sli_found_layout *found,
                                sl_found_plan *out)
{
    sl_train_options *options = &out->options;
    *out = (sl_found_plan){.shares_cores = found->candidate.shares_cores};
    (void)make_options(search, &found->candidate, options); /* which could be made before */
    SL_TRY(name_devices(search, &found->candidate, out->devices, options));
    options->balance_kind = SL_BALANCE_EXPLICIT;
    options->balance_count = found->stages;
    memcpy(options->balance, found->balance, (size_t)found->stages * sizeof *found->balance);
    SL_TRY(describe_stages(search, found, out));
    out->costs = found->costs;
    out->memory_bytes = found->host_bytes;
    out->tokens_per_s = (double)search->rows * (double)options->bptt / found->costs.seconds;
    return describe_mfu(search, &found->candidate, out);
}

/* SL_OK where some layout was found. */
static sl_status check_found(const machine_search *search, const sli_search *results)
{
    char limit[48];
    int ranks = search->machine->cores;
    if (results->count > 0)
        return SL_OK;
    snprintf(limit, sizeof limit, "at most %d rank%s", ranks, ranks == 1 ? "" : "s");
    if (results->smallest_bytes > 0)
        return sli_search_refuse(results, limit);
    if (search->reason.status != SL_OK)
        return sli_error_restore(&search->reason);
    return sl_error(SL_ERR_INVALID,
                    "the %" PRId64 " rows of a step cannot be divided among these replicas, shards "
                    "and micro-batches",
                    search->rows);
}

/* First by counted operations, whether anything fits. */
static sl_status find_layouts(machine_search *search, sli_search *results)
{
    search->is_counted = true;
    SL_TRY(search_space(search, results));
    search->is_counted = false;
    if (results->count == 0)
        return SL_OK;
    results->count = 0; /* their length is one of operations */
    return search_space(search, results);
}

/* Where nothing is found, *count is 0, which is an error where it is `refused`. */
static sl_status search_machine(const sl_plan_search_options *options, const sl_train_options *run,
                                const sli_machine *machine, bool refused, sl_found_plan *plans,
                                int *count)
{
    sli_found_layout found[SL_PLANS_FOUND];
    sl_module *model = NULL;
    machine_search search = {.options = options, .run = run, .machine = machine};
    sli_search results = {.host_bytes = run->force ? 0 : machine->host_bytes,
                          .wanted = SL_PLANS_FOUND,
                          .holder = machine->has_own_memory ? "device" : NULL,
                          .prefers_fewer_ranks = true, /* which pass no tensors on */
                          .found = found};
    *count = 0;
    SL_TRY(sli_plan_count_rows(options, run, &search.rows));
    SL_TRY(sl_transformer_lm_create(&run->model, &model));
    search.model = model;
    sl_status status;
    SL_TRY_OR_FAIL(find_layouts(&search, &results));
    if (refused)
        SL_TRY_OR_FAIL(check_found(&search, &results));
    for (; *count < results.count; ++*count)
        SL_TRY_OR_FAIL(describe_found(&search, &found[*count], &plans[*count]));
fail:
    sl_module_destroy(&model);
    return status;
}

sl_status sli_plan_search_machine(const sl_plan_search_options *options,
                                  const sl_train_options *run, const sli_machine *machine,
                                  sl_found_plan *plans, int *count)
{
    return search_machine(options, run, machine, true, plans, count);
}

sl_status sli_plan_search_if_any(const sl_plan_search_options *options, const sl_train_options *run,
                                 const sli_machine *machine, sl_found_plan *plans, int *count)
{
    return search_machine(options, run, machine, false, plans, count);
}
