/* The layout of a run: its replicas and stages, the rank, the modules and the device of each stage.
 *
 * A run has R replicas of P pipeline ranks. Its ranks are R threads or processes, each a replica,
 * or more processes: two for each replica have P / 2 pipeline ranks each, and so on.
 *
 *     R = 2, P = 4      2 ranks                4 ranks                  8 ranks
 *     replica 0         rank 0: 0 1 2 3        rank 0: 0 1              rank 0: 0
 *                                              rank 1: 2 3              rank 1: 1   …
 *     replica 1         rank 1: 0 1 2 3        rank 2: 0 1   …          rank 4: 0   …
 *
 * The devices of a host are in the order of its ranks and their pipeline ranks. By default they are
 * cpu:0, cpu:1 and so on; `devices` may be
 *
 *     cpu:0,cpu:1,cpu:2,cpu:3      divided evenly: two ranks have cpu:0,cpu:1 and cpu:2,cpu:3
 *     cpu:0,cpu:1;cpu:2,cpu:3      the same, with a list for each rank */
#include "train/plan/layout.h"

#include "parallel/schedule/table.h"

#include "device/device.h"

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

int sl_train_options_replicas(const sl_train_options *options)
{
    return options->replicas > 0 ? options->replicas : count_lists(options->devices);
}

const char *sl_train_options_schedule(const sl_train_options *options)
{
    return options->schedule ? options->schedule : sl_schedule_names[0];
}

int sl_train_options_chunks(const sl_train_options *options)
{
    enum { MICROS_PER_RANK = 4 };
    int pipeline_ranks = sli_layout_pipeline_ranks(options);
    if (options->chunks > 0)
        return options->chunks;
    if (options->table)
        return sl_schedule_micros(options->table);
    int64_t rows = options->batch_size / sli_layout_accumulation_steps(options);
    if (pipeline_ranks == 1 || rows < 1)
        return 1;
    return rows < MICROS_PER_RANK * pipeline_ranks ? (int)rows : MICROS_PER_RANK * pipeline_ranks;
}

static int count_ranks(const sl_train_options *options)
{
    return options->ranks > 0 ? options->ranks : sl_train_options_replicas(options);
}

/* At least 1, also where they do not fit the replicas. */
static int ranks_of_replica(const sl_train_options *options)
{
    int ranks = count_ranks(options) / sl_train_options_replicas(options);
    return ranks > 1 ? ranks : 1;
}

int sli_layout_host_ranks(const sl_train_options *options)
{
    return options->local_ranks > 0 ? options->local_ranks : count_ranks(options);
}

int sli_layout_pipeline_ranks_of_rank(const sl_train_options *options)
{
    return sli_layout_pipeline_ranks(options) / ranks_of_replica(options);
}

sli_layout sli_layout_of_rank(const sl_train_options *options, int rank)
{
    int of_replica = ranks_of_replica(options), own = sli_layout_pipeline_ranks_of_rank(options),
        index = rank % of_replica;
    return (sli_layout){rank / of_replica, index, of_replica, index * own, own};
}

int sli_layout_shards(const sl_train_options *options)
{
    return options->shards > 0 ? options->shards : sl_train_options_replicas(options);
}

int sli_layout_accumulation_steps(const sl_train_options *options)
{
    return options->accumulate > 0 ? options->accumulate : 1;
}

int sli_layout_micros(const sl_train_options *options)
{
    return sl_train_options_chunks(options) * sli_layout_accumulation_steps(options);
}

static int virtual_stages(const sl_train_options *options)
{
    if (options->table)
        return sl_schedule_stages(options->table) / sl_schedule_ranks(options->table);
    int own = sl_schedule_virtual_stages(sl_train_options_schedule(options));
    return options->virtual_stages > 0 ? options->virtual_stages : own > 0 ? own : 1;
}

int sli_layout_pipeline_ranks(const sl_train_options *options)
{
    if (options->table)
        return sl_schedule_ranks(options->table);
    if (options->pipeline_ranks > 0)
        return options->pipeline_ranks;
    if (options->balance_kind == SL_BALANCE_EXPLICIT)
        return (options->balance_count + virtual_stages(options) - 1) / virtual_stages(options);
    int own = 1; /* of each rank */
    if (options->devices && count_lists(options->devices) > 1)
        own = count_devices(options->devices);
    else if (options->devices)
        own = count_devices(options->devices) / sli_layout_host_ranks(options);
    return ranks_of_replica(options) * (own > 0 ? own : 1);
}

int sli_layout_stages(const sl_train_options *options)
{
    return sli_layout_pipeline_ranks(options) * virtual_stages(options);
}

sl_status sli_layout_placement(const sl_train_options *options, int room[SL_MAX_STAGES],
                               const int **out)
{
    *out = NULL;
    if (!options->placement)
        return SL_OK;
    *out = room;
    return sl_placement_parse(options->placement, sli_layout_pipeline_ranks(options),
                              virtual_stages(options), room);
}

sl_status sli_layout_table(const sl_train_options *options, int micros, sl_schedule **out)
{
    int room[SL_MAX_STAGES];
    sl_schedule_options wanted = {.ranks = sli_layout_pipeline_ranks(options),
                                  .virtual_stages = virtual_stages(options),
                                  .micros = micros};
    if (options->table)
        return sl_schedule_first_micros(options->table, micros, out);
    SL_TRY(sli_layout_placement(options, room, &wanted.placement));
    return sl_schedule_write(sl_train_options_schedule(options), &wanted, out);
}

sl_status sli_layout_balance(const sl_train_options *options, const sl_module *model, int *balance,
                             int *stages)
{
    *stages = sli_layout_stages(options);
    if (options->balance_kind != SL_BALANCE_EXPLICIT)
        return sl_partition(model, *stages,
                            options->balance_kind == SL_BALANCE_LAYERS && !options->task
                                ? SL_PARTITION_LAYERS
                                : SL_PARTITION_PARAMETERS,
                            balance);
    memmove(balance, options->balance, (size_t)*stages * sizeof *balance);
    return SL_OK;
}

/* ---- Checking --------------------------------------------------------------------------- */

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

/* Says how many processes fit. */
static sl_status refuse_ranks(const sl_train_options *options)
{
    int replicas = sl_train_options_replicas(options),
        pipeline_ranks = sli_layout_pipeline_ranks(options);
    char fit[256] = "1";
    size_t used = 1;
    for (int each = 1; each <= pipeline_ranks && used < sizeof fit; each++)
        if (pipeline_ranks % each == 0 && replicas * each > 1)
            used += (size_t)snprintf(fit + used, sizeof fit - used, "%s%d",
                                     each < pipeline_ranks ? ", " : " or ", replicas * each);
    return sl_error(SL_ERR_INVALID,
                    "%d processes cannot be %d replica%s of %d pipeline rank%s: start %s",
                    options->ranks, replicas, plural(replicas), pipeline_ranks,
                    plural(pipeline_ranks), fit);
}

static sl_status check_ranks(const sl_train_options *options)
{
    int replicas = sl_train_options_replicas(options), ranks = options->ranks,
        local = options->local_ranks, shards = sli_layout_shards(options);
    if (ranks > 0 && (ranks % replicas != 0 ||
                      sli_layout_pipeline_ranks(options) % ranks_of_replica(options) != 0))
        return refuse_ranks(options);
    if (local < 0 || local > count_ranks(options))
        return sl_error(SL_ERR_INVALID, "local_ranks must be from 1 to %d, got %d",
                        count_ranks(options), local);
    if (replicas > shards)
        return sl_error(SL_ERR_INVALID,
                        "%d replicas are too many: the training text has %d shard%s, and each "
                        "replica needs one",
                        replicas, shards, plural(shards));
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

static sl_status check_devices(const sl_train_options *options)
{
    char *names, owners[32];
    int count = sli_layout_host_ranks(options),
        pipeline_ranks = sli_layout_pipeline_ranks_of_rank(options);
    bool is_replica = ranks_of_replica(options) == 1;
    if (!options->devices)
        return SL_OK;
    snprintf(owners, sizeof owners, "%d %s%s", count, is_replica ? "replica" : "process",
             count == 1   ? ""
             : is_replica ? "s"
                          : "es");
    if (count_lists(options->devices) > 1)
        SL_TRY(check_lists(options->devices, owners, count, pipeline_ranks));
    else if (count_devices(options->devices) != count * pipeline_ranks)
        return sl_error(SL_ERR_INVALID,
                        "each pipeline rank of each %s needs a device of its own: %s, %d rank%s, "
                        "devices \"%s\"",
                        is_replica ? "replica" : "process", owners, pipeline_ranks,
                        plural(pipeline_ranks), options->devices);
    SL_TRY(sli_layout_devices(options, &names));
    sl_status status = sli_device_list_check(names);
    free(names);
    return status;
}

static sl_status check_balance(const sl_train_options *options, int stages)
{
    int64_t sum = 0, modules = options->model.nlayers + 2;
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
                        "balance must add up to the model's %" PRId64 " modules (encoder, %" PRId64
                        " layers, decoder), got %" PRId64,
                        modules, options->model.nlayers, sum);
    return SL_OK;
}

static sl_status check_stages(const sl_train_options *options)
{
    int stages = sli_layout_stages(options);
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

/* Does the table have these chunks and this placement, and can a schedule be written for them? */
static sl_status check_table(const sl_train_options *options)
{
    sl_schedule *table;
    const char *name = sl_train_options_schedule(options);
    int room[SL_MAX_STAGES], chunks = sl_train_options_chunks(options);
    const int *placement;
    SL_TRY(sli_layout_placement(options, room, &placement));
    if (options->table && sl_schedule_micros(options->table) < chunks)
        return sl_error(SL_ERR_INVALID, "the schedule %s has %d micro-batches, chunks is %d", name,
                        sl_schedule_micros(options->table), chunks);
    if (options->table)
        return sli_schedule_check_placement(options->table, name, placement);
    SL_TRY(sli_layout_table(options, chunks, &table));
    sl_schedule_destroy(&table);
    return SL_OK;
}

sl_status sli_layout_check(const sl_train_options *options)
{
    SL_TRY(check_stages(options));
    SL_TRY(check_table(options));
    SL_TRY(check_ranks(options));
    return check_devices(options);
}

/* ---- Devices --------------------------------------------------------------------------- */

/* "cpu:0,cpu:1,…" or "cpu,cpu,…" */
static sl_status print_devices(const sl_train_options *options, bool shared, char **out)
{
    enum { NAME_BYTES = 16 }; /* "cpu:65535," */
    int count = sli_layout_host_ranks(options) * sli_layout_pipeline_ranks_of_rank(options);
    size_t bytes = (size_t)count * NAME_BYTES + 1, used = 0;
    *out = calloc(bytes, 1);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the names of %d devices", count);
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(*out + used, bytes - used, shared ? "%scpu" : "%scpu:%d",
                                 i ? "," : "", i);
    return SL_OK;
}

sl_status sli_layout_shared_devices(const sl_train_options *options, char **out)
{
    return print_devices(options, true, out);
}

sl_status sli_layout_devices(const sl_train_options *options, char **out)
{
    if (!options->devices)
        return print_devices(options, false, out);
    *out = strdup(options->devices);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the names of devices");
    for (char *at = *out; *at; at++)
        *at = *at == ';' ? ',' : *at;
    return SL_OK;
}
