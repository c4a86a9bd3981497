#include "train/layout.h"

#include "device/device_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count_of(const char *text, char wanted)
{
    int count = 0;
    for (; *text; text++)
        count += *text == wanted;
    return count;
}

static bool has_parts(const sl_train_options *options)
{
    return options->devices && strchr(options->devices, ';');
}

int sl_train_options_replicas(const sl_train_options *options)
{
    if (options->replicas > 0)
        return options->replicas;
    return has_parts(options) ? 1 + count_of(options->devices, ';') : 1;
}

int sli_layout_local_replicas(const sl_train_options *options)
{
    return options->local_replicas > 0 ? options->local_replicas
                                       : sl_train_options_replicas(options);
}

int sli_layout_shards(const sl_train_options *options)
{
    return options->shards > 0 ? options->shards : sl_train_options_replicas(options);
}

sli_rows sli_layout_rows(const sl_train_options *options, int replica)
{
    int64_t rows = sli_layout_shards(options) * options->batch_size;
    int64_t each = rows / sl_train_options_replicas(options),
            rest = rows % sl_train_options_replicas(options);
    return (sli_rows){.first = replica * each + (replica < rest ? replica : rest),
                      .count = each + (replica < rest)};
}

int sli_layout_chunks(const sl_train_options *options, int64_t rows)
{
    int64_t size = (options->batch_size + options->chunks - 1) / options->chunks;
    int64_t wanted = (rows + size - 1) / size;
    return wanted > options->chunks ? (int)wanted : options->chunks;
}

/* How many devices are named up to the end of the part, or of the list. */
static int count_devices(const char *part)
{
    int count = 1;
    for (; *part && *part != ';'; part++)
        count += *part == ',';
    return count;
}

int sli_layout_stages(const sl_train_options *options)
{
    if (options->stages > 0)
        return options->stages;
    if (options->balance_kind == SL_BALANCE_EXPLICIT)
        return options->balance_count;
    if (!options->devices)
        return 1;
    int devices = count_devices(options->devices), sharers = sli_layout_local_replicas(options);
    if (has_parts(options))
        return devices;
    return devices < sharers ? 1 : devices / sharers;
}

sl_status sli_layout_balance(const sl_train_options *options, const sl_module *model, int *balance,
                             int *stages)
{
    *stages = sli_layout_stages(options);
    if (options->balance_kind != SL_BALANCE_EXPLICIT)
        return sl_partition(model, *stages,
                            options->balance_kind == SL_BALANCE_LAYERS ? SL_PARTITION_LAYERS
                                                                       : SL_PARTITION_PARAMETERS,
                            balance);
    memcpy(balance, options->balance, (size_t)*stages * sizeof *balance);
    return SL_OK;
}

/* ---- Checking --------------------------------------------------------------------------- */

static sl_status check_shards(const sl_train_options *options)
{
    int replicas = sl_train_options_replicas(options), shards = options->shards;
    if (shards < 0 || shards > SL_MAX_REPLICAS)
        return sl_error(SL_ERR_INVALID, "the number of shards must be from 1 to %d, got %d",
                        SL_MAX_REPLICAS, shards);
    if (shards > 0 && replicas > shards * options->batch_size)
        return sl_error(SL_ERR_INVALID,
                        "%d replicas are too many: a batch has %" PRId64
                        " rows, %d times the batch size, and each replica needs one",
                        replicas, shards * options->batch_size, shards);
    return SL_OK;
}

static sl_status check_numbers(const sl_train_options *options)
{
    int local = options->local_replicas;
    if (local < 0 || local > sl_train_options_replicas(options))
        return sl_error(SL_ERR_INVALID,
                        "the number of replicas on a host must be from 1 to their number, %d, "
                        "got %d",
                        sl_train_options_replicas(options), local);
    return check_shards(options);
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

/* A part for each replica, with a device for each stage. */
static sl_status check_parts(const sl_train_options *options, int replicas, int stages)
{
    const char *list = options->devices, *part = list;
    int parts = 1 + count_of(list, ';');
    for (int i = 0; i < parts; i++, part += strcspn(part, ";") + 1)
        if (strcspn(part, ";") == 0)
            return sl_error(SL_ERR_INVALID, "part %d of the devices is empty: \"%s\"", i, list);
    if (parts != replicas)
        return sl_error(SL_ERR_INVALID,
                        "%d replica%s need%s a part of the devices each, got %d parts: \"%s\"",
                        replicas, plural(replicas), replicas == 1 ? "s" : "", parts, list);
    part = list;
    for (int i = 0; i < parts; i++, part += strcspn(part, ";") + 1)
        if (count_devices(part) != stages)
            return sl_error(SL_ERR_INVALID,
                            "each stage needs a device of its own: %d stage%s, part %d of \"%s\"",
                            stages, plural(stages), i, list);
    return SL_OK;
}

/* One for each stage of each replica on this host. */
static sl_status check_count(const sl_train_options *options)
{
    int replicas = sli_layout_local_replicas(options), stages = sli_layout_stages(options);
    if (has_parts(options))
        return check_parts(options, replicas, stages);
    if (count_devices(options->devices) == replicas * stages)
        return SL_OK;
    if (replicas == 1)
        return sl_error(SL_ERR_INVALID,
                        "each stage needs a device of its own: %d stages, devices \"%s\"", stages,
                        options->devices);
    return sl_error(SL_ERR_INVALID,
                    "each stage of each replica needs a device of its own: %d replicas, %d "
                    "stage%s, devices \"%s\"",
                    replicas, stages, plural(stages), options->devices);
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
    if (sum != modules)
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
    if (stages > options->model.nlayers)
        return sl_error(SL_ERR_INVALID,
                        "there are more stages than layers: %d stages, %" PRId64 " layers", stages,
                        options->model.nlayers);
    return SL_OK;
}

static sl_status check_devices(const sl_train_options *options)
{
    char *names;
    if (!options->devices)
        return SL_OK;
    SL_TRY(check_count(options));
    SL_TRY(sli_layout_devices(options, &names));
    sl_status status = sli_device_list_check(names);
    free(names);
    return status;
}

sl_status sli_layout_check(const sl_train_options *options)
{
    SL_TRY(check_stages(options));
    SL_TRY(check_numbers(options));
    return check_devices(options);
}

/* ---- The list --------------------------------------------------------------------------- */

static char *default_devices(int count)
{
    enum { NAME_BYTES = 16 }; /* "cpu:65535," */
    size_t bytes = (size_t)count * NAME_BYTES + 1, used = 0;
    char *names = calloc(bytes, 1);
    for (int i = 0; i < count && names; i++)
        used += (size_t)snprintf(names + used, bytes - used, "%scpu:%d", i ? "," : "", i);
    return names;
}

sl_status sli_layout_devices(const sl_train_options *options, char **out)
{
    int count = sli_layout_local_replicas(options) * sli_layout_stages(options);
    *out = options->devices ? strdup(options->devices) : default_devices(count);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "no memory for the names of %d devices", count);
    for (char *at = *out; *at; at++)
        *at = *at == ';' ? ',' : *at;
    return SL_OK;
}
