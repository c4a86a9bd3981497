/* The layout of a run: its replicas and stages, its ranks, and the device of each pipeline rank.
 *
 * The devices of a host are in the order of its ranks and their pipeline ranks. By default they are
 * cpu:0, cpu:1 and so on; `devices` may be
 *
 *     cpu:0,cpu:1,cpu:2,cpu:3      divided evenly: two ranks have cpu:0,cpu:1 and cpu:2,cpu:3
 *     cpu:0,cpu:1;cpu:2,cpu:3      the same, with a list for each rank */
#include "train/plan/plan.h"

#include "core/error.h"
#include "device/device.h"
#include "optim/optimizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many of a character a text has before its first `end`. */
static int count_before(const char *text, char wanted, char end)
{
    int count = 0;
    for (; *text && *text != end; text++)
        count += *text == wanted;
    return count;
}

/* The lists in `devices`, one for each rank on this host. */
static int count_lists(const char *devices)
{
    return devices ? 1 + count_before(devices, ';', '\0') : 1;
}

/* The devices in the list that begins here. */
static int count_devices(const char *list)
{
    return 1 + count_before(list, ',', ';');
}

/* ---- Deciding ----------------------------------------------------------------------------- */

sli_layout_rule sli_plan_rule(const sl_train_options *options, const sl_train_launch *launch)
{
    int processes = launch->ranks > 0 ? launch->ranks : 1;
    bool is_given = options->replicas > 0 && !launch->replicas_open,
         is_listed = count_lists(options->devices) > 1;
    const int facts[] = {launch->ranks > 0  ? SLI_PROCESS_RANKS
                         : launch->launched ? SLI_PROCESS_ALONE
                                            : SLI_PROCESS_OWN,
                         is_given    ? SLI_REPLICAS_GIVEN
                         : is_listed ? SLI_REPLICAS_LISTED
                                     : SLI_REPLICAS_OPEN,
                         processes < launch->first_ranks};
    return (sli_layout_rule)sli_case_find(sli_layout_cases, SLI_LAYOUT_CASES, facts);
}

static void decide_replicas(const sli_plan_inputs *inputs, sl_plan *plan)
{
    const sl_train_launch *launch = inputs->launch;
    sl_train_options *options = &plan->options;
    sli_layout_rule rule = sli_plan_rule(inputs->options, launch);
    int lists = count_lists(options->devices);
    plan->by.replicas = options->replicas > 0 || lists > 1 ? SL_BY_OPTIONS : SL_BY_DEFAULT;
    if (inputs->found.replicas > 0) {
        options->replicas = inputs->found.replicas;
        options->pipeline_ranks = inputs->found.pipeline_ranks;
        plan->by.replicas = plan->by.pipeline_ranks = SL_BY_SEARCH;
    } else if (rule == SLI_LAYOUT_PROCESSES || rule == SLI_LAYOUT_ONE) {
        options->replicas = rule == SLI_LAYOUT_ONE ? 1 : launch->ranks;
        plan->by.replicas = SL_BY_LAUNCH;
    } else if (options->replicas == 0) {
        options->replicas = lists;
    }
    if (inputs->found.replicas > 0 || rule == SLI_LAYOUT_ONE)
        options->zero &= options->replicas > 1;
    plan->processes = launch->ranks > 0;
    plan->ranks = !plan->processes             ? options->replicas
                  : inputs->found.replicas > 0 ? options->replicas * options->pipeline_ranks
                                               : launch->ranks;
    plan->ranks_per_replica = plan->ranks > options->replicas ? plan->ranks / options->replicas : 1;
    plan->first_rank = plan->processes ? launch->rank - launch->local_rank : 0;
    plan->ranks_here = launch->local_ranks > 0 ? launch->local_ranks : plan->ranks;
}

/* The number of pipeline ranks is the table's or the options', or as `balance` or `devices` has. */
static void decide_stages(const sli_plan_inputs *inputs, sl_plan *plan)
{
    sl_train_options *options = &plan->options;
    const char *devices = options->devices;
    int stages_each = sl_schedule_virtual_stages(options->schedule);
    if (options->table)
        options->virtual_stages =
            sl_schedule_stages(options->table) / sl_schedule_ranks(options->table);
    else if (options->virtual_stages <= 0)
        options->virtual_stages = stages_each > 0 ? stages_each : 1;
    plan->by.placement = options->placement ? SL_BY_OPTIONS : SL_BY_DEFAULT;
    plan->by.balance = options->balance_kind == SL_BALANCE_EXPLICIT ? SL_BY_OPTIONS : SL_BY_DEFAULT;
    if (inputs->found.drops_placement)
        options->placement = NULL;
    if (inputs->found.drops_balance)
        options->balance_kind = SL_BALANCE_AUTO;
    if (plan->by.pipeline_ranks != SL_BY_SEARCH)
        plan->by.pipeline_ranks = SL_BY_OPTIONS;
    if (options->table) {
        options->pipeline_ranks = sl_schedule_ranks(options->table);
    } else if (options->pipeline_ranks == 0 && options->balance_kind == SL_BALANCE_EXPLICIT) {
        int each = options->virtual_stages;
        options->pipeline_ranks = (options->balance_count + each - 1) / each;
    } else if (options->pipeline_ranks == 0) {
        stages_each =
            devices ? count_devices(devices) / (count_lists(devices) > 1 ? 1 : plan->ranks_here)
                    : 1;
        options->pipeline_ranks = plan->ranks_per_replica * (stages_each > 0 ? stages_each : 1);
        plan->by.pipeline_ranks = devices ? SL_BY_OPTIONS : SL_BY_DEFAULT;
    }
    plan->stages = options->pipeline_ranks * options->virtual_stages;
    plan->pipeline_ranks_each = options->pipeline_ranks / plan->ranks_per_replica;
}

/* The first of them that there is. */
static int choose(const sli_plan_inputs *inputs, int given, int found, int otherwise,
                  sl_decider *by)
{
    *by = given > 0                            ? SL_BY_OPTIONS
          : found > 0 && inputs->found.resumes ? SL_BY_CHECKPOINT
                                               : SL_BY_DEFAULT;
    return given > 0 ? given : found > 0 ? found : otherwise;
}

/* A job that has lost processes keeps the shards that it began with. */
static void decide_shards(const sli_plan_inputs *inputs, sl_plan *plan)
{
    sl_train_options *options = &plan->options;
    int first = plan->by.replicas == SL_BY_LAUNCH ? inputs->launch->first_ranks : 0;
    options->shards =
        choose(inputs, options->shards, inputs->found.shards,
               first > options->replicas ? first : options->replicas, &plan->by.shards);
    if (plan->by.shards == SL_BY_DEFAULT && first > options->replicas)
        plan->by.shards = SL_BY_LAUNCH;
    if (plan->by.replicas == SL_BY_LAUNCH && options->replicas == 1)
        options->nccl &= options->shards > 1;
}

static void decide_chunks(const sli_plan_inputs *inputs, sl_plan *plan)
{
    enum { MICROS_PER_RANK = 4 };
    sl_train_options *options = &plan->options;
    if (options->accumulate <= 0)
        options->accumulate = 1;
    int64_t rows = options->batch_size / options->accumulate,
            micros = options->pipeline_ranks > 1 ? MICROS_PER_RANK * options->pipeline_ranks : 1;
    micros = rows < micros && rows > 0 ? rows : rows > 0 ? micros : 1;
    if (options->slices == 0)
        options->slices = options->table ? sl_schedule_slices(options->table) : 1;
    if (options->chunks == 0 && options->table)
        options->chunks = sl_schedule_micros(options->table);
    options->chunks =
        choose(inputs, options->chunks, inputs->found.chunks, (int)micros, &plan->by.chunks);
    rows = options->batch_size;
    plan->micros = sl_micro_batches(rows, options->chunks * options->accumulate, NULL);
    plan->micro_rows = (rows + plan->micros - 1) / plan->micros;
}

static void decide_rate(const sli_plan_inputs *inputs, sl_plan *plan)
{
    sl_train_options *options = &plan->options;
    bool is_sgd = options->optimizer.kind == SL_OPTIMIZER_SGD, resumes = inputs->found.resumes;
    options->optimizer = sli_optimizer_filled(&options->optimizer);
    options->lr.step_epochs += options->lr.step_epochs == 0;
    plan->by.lr = options->lr.lr != SL_LR_DEFAULT ? SL_BY_OPTIONS
                  : resumes                       ? SL_BY_CHECKPOINT
                                                  : SL_BY_DEFAULT;
    if (options->lr.lr == SL_LR_DEFAULT)
        options->lr.lr = resumes ? inputs->found.lr : is_sgd ? 5.0 : 1e-3;
}

sli_rank_plan sli_plan_rank(const sl_plan *plan, int rank)
{
    const sli_layout layout = {.table = plan->table,
                               .replicas = plan->options.replicas,
                               .ranks = plan->ranks,
                               .near_replicas = plan->options.near_replicas};
    return sli_layout_rank(&layout, rank);
}

/* ---- Checking --------------------------------------------------------------------------- */

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

/* Says how many processes fit. */
static sl_status refuse_ranks(const sl_plan *plan)
{
    int replicas = plan->options.replicas, pipeline_ranks = plan->options.pipeline_ranks;
    char fit[256] = "1";
    size_t used = 1;
    for (int each = 1; each <= pipeline_ranks && used < sizeof fit; each++)
        if (pipeline_ranks % each == 0 && replicas * each > 1)
            used += (size_t)snprintf(fit + used, sizeof fit - used, "%s%d",
                                     each < pipeline_ranks ? ", " : " or ", replicas * each);
    return sl_error(SL_ERR_INVALID,
                    "%d processes cannot be %d replica%s of %d pipeline rank%s: start %s",
                    plan->ranks, replicas, plural(replicas), pipeline_ranks, plural(pipeline_ranks),
                    fit);
}

static sl_status check_ranks(const sl_plan *plan)
{
    int replicas = plan->options.replicas, shards = plan->options.shards, ranks = plan->ranks,
        here = plan->ranks_here;
    if (ranks % replicas != 0 || plan->options.pipeline_ranks % plan->ranks_per_replica != 0)
        return refuse_ranks(plan);
    if (here < 0 || here > ranks)
        return sl_error(SL_ERR_INVALID, "local_ranks must be from 1 to %d, got %d", ranks, here);
    if (plan->first_rank < 0 || plan->first_rank + here > ranks)
        return sl_error(SL_ERR_INVALID, "a host's %d ranks from %d on are not among %d", here,
                        plan->first_rank, ranks);
    if (replicas > shards)
        return sl_error(SL_ERR_INVALID,
                        "%d replicas are too many: the training text has %d shard%s, and each "
                        "replica needs one",
                        replicas, shards, plural(shards));
    if (plan->options.zero && replicas == 1)
        return sl_error(SL_ERR_INVALID,
                        "zero shards the optimizer's state over replicas, and there is only one");
    /* A run that resumes has its checkpoint's shards. */
    if (plan->options.nccl && shards == 1 && !plan->options.checkpoints.resume)
        return sl_error(SL_ERR_INVALID,
                        "nccl exchanges gradients of replicas, and there is only one");
    return SL_OK;
}

/* Several lists must be as many as this host's ranks, each with a device for each pipeline rank. */
static sl_status check_lists(const char *devices, const char *owners, int count, int pipeline_ranks)
{
    int lists = count_lists(devices);
    const char *list = devices;
    if (lists != count)
        return sl_error(SL_ERR_INVALID, "each of %s needs a list of devices, got %d lists: \"%s\"",
                        owners, lists, devices);
    for (int i = 0; i < lists; i++, list += strcspn(list, ";") + 1) {
        if (strcspn(list, ";") == 0)
            return sl_error(SL_ERR_INVALID, "list %d of the devices is empty: \"%s\"", i + 1,
                            devices);
        if (count_devices(list) != pipeline_ranks)
            return sl_error(
                SL_ERR_INVALID,
                "list %d of \"%s\" has %d device%s for %d pipeline rank%s: each needs one", i + 1,
                devices, count_devices(list), plural(count_devices(list)), pipeline_ranks,
                plural(pipeline_ranks));
    }
    return SL_OK;
}

static sl_status check_devices(const sl_plan *plan)
{
    char owners[32];
    const char *devices = plan->options.devices;
    int count = plan->ranks_here, pipeline_ranks = plan->pipeline_ranks_each;
    bool is_replica = plan->ranks_per_replica == 1;
    if (!devices)
        return SL_OK;
    snprintf(owners, sizeof owners, "%d %s%s", count, is_replica ? "replica" : "process",
             count == 1   ? ""
             : is_replica ? "s"
                          : "es");
    if (count_lists(devices) > 1)
        SL_TRY(check_lists(devices, owners, count, pipeline_ranks));
    else if (count_devices(devices) != count * pipeline_ranks)
        return sl_error(SL_ERR_INVALID,
                        "each pipeline rank of each %s needs a device of its own: %s, %d rank%s, "
                        "devices \"%s\"",
                        is_replica ? "replica" : "process", owners, pipeline_ranks,
                        plural(pipeline_ranks), devices);
    return sli_device_list_check(plan->device_names);
}

static sl_status check_balance(const sl_train_options *options, int stages)
{
    bool is_tutorials = options->model.family == SL_FAMILY_TUTORIALS;
    int64_t sum = 0, modules = options->model.nlayers + (is_tutorials ? 2 : 3);
    if (options->balance_count != stages)
        return sl_error(SL_ERR_INVALID,
                        "balance must give one number for each of %d stages, got %d numbers",
                        stages, options->balance_count);
    for (int s = 0; s < stages; s++) {
        if (options->balance[s] < 1)
            return sl_error(SL_ERR_INVALID, "each number of balance must be at least 1, got %d",
                            options->balance[s]);
        sum += options->balance[s];
    }
    if (sum != modules && !options->task)
        return sl_error(SL_ERR_INVALID,
                        "balance must add up to the model's %" PRId64 " modules (%s, %" PRId64
                        " layers, %s), got %" PRId64,
                        modules, is_tutorials ? "encoder" : "embedding", options->model.nlayers,
                        is_tutorials ? "decoder" : "norm, head", sum);
    return SL_OK;
}

static sl_status check_stages(const sl_plan *plan)
{
    const sl_train_options *options = &plan->options;
    int stages = plan->stages;
    if (stages > SL_MAX_STAGES)
        return sl_error(SL_ERR_INVALID, "there can be at most %d stages, got %d", SL_MAX_STAGES,
                        stages);
    if (options->balance_kind == SL_BALANCE_EXPLICIT)
        return check_balance(options, stages);
    if (!options->task && stages > options->model.nlayers)
        return sl_error(SL_ERR_INVALID,
                        "there are more stages than layers: %d stages, %" PRId64 " layers", stages,
                        options->model.nlayers);
    return SL_OK;
}

/* ---- The table and the devices ------------------------------------------------------------- */

static bool splits_head(const sl_schedule *table)
{
    const sl_action *row;
    int count = sl_schedule_actions(table, 0, &row);
    for (int i = 0; i < count; i++)
        if (row[i].kind == SL_ACTION_HEAD_FORWARD)
            return true;
    return false;
}

/* Of a whole accumulation step, as far as the batch has micro-batches. */
static sl_status make_table(sl_plan *plan)
{
    const sl_train_options *options = &plan->options;
    int room[SL_MAX_STAGES], chunks = options->chunks;
    sl_schedule_options wanted = {.ranks = options->pipeline_ranks,
                                  .virtual_stages = options->virtual_stages,
                                  .micros = chunks < plan->micros ? chunks : plan->micros,
                                  .slices = options->slices};
    if (options->placement) {
        SL_TRY(sl_placement_parse(options->placement, wanted.ranks, wanted.virtual_stages, room));
        wanted.placement = room;
    }
    if (!options->table) {
        SL_TRY(sl_schedule_write(options->schedule, &wanted, &plan->table));
    } else if (sl_schedule_micros(options->table) < chunks) {
        return sl_error(SL_ERR_INVALID, "the schedule %s has %d micro-batches, chunks is %d",
                        options->schedule, sl_schedule_micros(options->table), chunks);
    } else if (splits_head(options->table) && !options->split_vocabulary) {
        return sl_error(SL_ERR_INVALID,
                        "the schedule %s splits the head over all ranks, and split_vocabulary is "
                        "not set",
                        options->schedule);
    } else {
        SL_TRY(sl_schedule_first_micros(options->table, wanted.micros, &plan->table));
    }
    const int *placement = sl_schedule_placement(plan->table);
    for (int s = 0; s < plan->stages; s++) {
        if (wanted.placement && wanted.placement[s] != placement[s])
            return sl_error(SL_ERR_INVALID, "schedule: %s has stage %d on rank %d, not %d",
                            options->schedule, s, placement[s], wanted.placement[s]);
        plan->stage[s].rank = placement[s];
    }
    return sl_schedule_recompute(plan->table, options->recompute);
}

/* As the options have them, else as is said of sli_plan_name_devices. */
static sl_status print_devices(const sl_plan *plan, bool shared, char **out)
{
    const char *given = plan->options.devices;
    if (!given)
        return sli_device_list_name_cpus(plan->ranks_here * plan->pipeline_ranks_each, shared, out);
    *out = strdup(given);
    if (!*out)
        return sli_no_memory(NULL, "the names of devices");
    for (char *separator = *out; (separator = strchr(separator, ';'));)
        *separator = ',';
    return SL_OK;
}

sl_device_plan *sli_plan_devices_of(const sl_plan *plan, int rank)
{
    sli_rank_plan part = sli_plan_rank(plan, rank);
    return plan->devices + part.replica * plan->options.pipeline_ranks + part.first;
}

static sl_status create_devices(sl_plan *plan)
{
    int each = plan->pipeline_ranks_each, all = plan->ranks * each;
    plan->devices = calloc((size_t)all, sizeof *plan->devices);
    if (!plan->devices)
        return sli_no_memory(NULL, "the names of %d devices", all);
    for (int i = 0; i < all; i++)
        sli_plan_devices_of(plan, i / each)[i % each].rank = i / each;
    return SL_OK;
}

sl_status sli_plan_name_devices(sl_plan *plan, bool shared)
{
    int each = plan->pipeline_ranks_each, all = plan->ranks * each, index = plan->first_rank * each;
    char *names;
    SL_TRY(print_devices(plan, shared, &names));
    free(plan->device_names);
    plan->device_names = names;
    if (!plan->devices)
        SL_TRY(create_devices(plan));
    for (const char *name = names; *name && index < all; index++) {
        int length = (int)strcspn(name, ",");
        sl_device_plan *device = &sli_plan_devices_of(plan, index / each)[index % each];
        snprintf(device->name, sizeof device->name, "%.*s", length, name);
        name += length;
        name += strspn(name, ", ");
    }
    return SL_OK;
}

/* ---- All -------------------------------------------------------------------------------- */

static sl_status lay_out(const sli_plan_inputs *inputs, sl_plan *plan)
{
    if (!plan->options.schedule)
        plan->options.schedule = sl_schedule_names[0];
    decide_replicas(inputs, plan);
    decide_stages(inputs, plan);
    decide_shards(inputs, plan);
    decide_chunks(inputs, plan);
    decide_rate(inputs, plan);
    SL_TRY(check_stages(plan));
    SL_TRY(make_table(plan));
    SL_TRY(check_ranks(plan));
    plan->by.devices = plan->options.devices ? SL_BY_OPTIONS : SL_BY_DEFAULT;
    SL_TRY(sli_plan_name_devices(plan, false));
    return check_devices(plan);
}

sl_status sli_plan_layout(const sli_plan_inputs *inputs, sl_plan **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sli_no_memory(NULL, "a plan");
    (*out)->options = *inputs->options;
    sl_status status = lay_out(inputs, *out);
    if (status != SL_OK)
        sl_plan_destroy(out);
    return status;
}

bool sli_plan_is_impossible(sl_status status)
{
    return status == SL_ERR_INVALID || status == SL_ERR_NOT_FOUND || status == SL_ERR_UNSUPPORTED;
}

void sl_plan_destroy(sl_plan **plan)
{
    if (!plan || !*plan)
        return;
    sl_schedule_destroy(&(*plan)->table);
    free((*plan)->device_names);
    free((*plan)->devices);
    free(*plan);
    *plan = NULL;
}
