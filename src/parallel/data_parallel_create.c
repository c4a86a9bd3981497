/* Making DataParallel's replicas, and taking them apart. */
#include "parallel/data_parallel.h"

#include "core/not_null.h"
#include "device/device_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Devices ---------------------------------------------------------------------------- */

/* "cpu:0,cpu:1,…": one device a core. */
static sl_status create_devices(sl_data_parallel *parallel)
{
    enum { NAME_BYTES = 16 };
    SL_TRY(sli_device_count("cpu", &parallel->count));
    char *names = calloc((size_t)parallel->count, NAME_BYTES);
    if (!names)
        return sl_error(SL_ERR_MEMORY, "sl_data_parallel_create: no memory for device names");
    size_t used = 0, room = (size_t)parallel->count * NAME_BYTES;
    for (int i = 0; i < parallel->count; i++)
        used += (size_t)snprintf(names + used, room - used, "%scpu:%d", i ? "," : "", i);
    sl_status status = sl_device_list_create(names, &parallel->list, NULL);
    free(names);
    return status;
}

static sl_status choose_devices(sl_data_parallel *parallel, const sl_data_parallel_options *options)
{
    parallel->count = options->device_count;
    if (!options->devices)
        SL_TRY(create_devices(parallel));
    parallel->replicas = calloc((size_t)parallel->count, sizeof *parallel->replicas);
    parallel->sizes = calloc((size_t)parallel->count, sizeof *parallel->sizes);
    if (!parallel->replicas || !parallel->sizes)
        return sl_error(SL_ERR_MEMORY, "sl_data_parallel_create: no memory for %d replicas",
                        parallel->count);
    for (int i = 0; i < parallel->count; i++) {
        sli_replica *replica = &parallel->replicas[i];
        replica->parallel = parallel;
        replica->index = i;
        replica->device =
            options->devices ? options->devices[i] : sl_device_list_get(parallel->list, i);
    }
    parallel->output_device =
        options->output_device ? options->output_device : parallel->replicas[0].device;
    return SL_OK;
}

/* ---- Replicas --------------------------------------------------------------------------- */

static sl_status check_alike(const sli_replica *first, const sli_replica *other)
{
    int count = sl_parameter_set_count(first->set);
    if (sl_parameter_set_count(other->set) != count)
        return sl_error(SL_ERR_INVALID,
                        "sl_data_parallel_create: the module has %d parameters, replica %d has %d",
                        count, other->index, sl_parameter_set_count(other->set));
    for (int i = 0; i < count; i++) {
        const sl_parameter *a = sl_parameter_set_get(first->set, i);
        const sl_parameter *b = sl_parameter_set_get(other->set, i);
        if (strcmp(sl_parameter_name(a), sl_parameter_name(b)) != 0 ||
            sl_parameter_get_kind(a) != sl_parameter_get_kind(b) ||
            !sl_shape_equal(sl_parameter_shape(a), sl_parameter_shape(b)))
            return sl_error(SL_ERR_INVALID,
                            "sl_data_parallel_create: parameter %s of replica %d is not as the "
                            "module's %s: name, kind or shape differ",
                            sl_parameter_name(b), other->index, sl_parameter_name(a));
    }
    return SL_OK;
}

static sl_status make_replica(sli_replica *replica, const sl_data_parallel_options *options)
{
    if (replica->index == 0)
        replica->module = options->module;
    else
        SL_TRY(options->replicate(options->arg, &replica->module));
    sl_parameter_set_options placement = {.device = replica->device,
                                          .seed = options->seed,
                                          .no_init = replica->index > 0};
    SL_TRY(sl_parameter_set_create(replica->module, 0, 0, &placement, &replica->set));
    SL_TRY(check_alike(&replica->parallel->replicas[0], replica));
    return sli_worker_create(replica->device, &replica->worker);
}

static sl_status check_options(const sl_data_parallel_options *options)
{
    if (!options->module)
        return sl_error(SL_ERR_INVALID, "sl_data_parallel_create: there is no module");
    if (options->devices && options->device_count < 1)
        return sl_error(SL_ERR_INVALID, "sl_data_parallel_create: at least 1 device, got %d",
                        options->device_count);
    if (!options->replicate && !(options->devices && options->device_count == 1))
        return sl_error(SL_ERR_INVALID,
                        "sl_data_parallel_create: several devices need `replicate`");
    return SL_OK;
}

sl_status sl_data_parallel_create(const sl_data_parallel_options *options, sl_data_parallel **out)
{
    SLI_CHECK_NOT_NULL(out);
    *out = NULL;
    SLI_CHECK_NOT_NULL(options);
    SL_TRY(check_options(options));
    sl_data_parallel *parallel = calloc(1, sizeof *parallel);
    if (!parallel)
        return sl_error(SL_ERR_MEMORY, "sl_data_parallel_create: no memory");
    sl_status status = choose_devices(parallel, options);
    for (int i = 0; status == SL_OK && i < parallel->count; i++)
        status = make_replica(&parallel->replicas[i], options);
    if (status != SL_OK)
        sl_data_parallel_destroy(&parallel);
    *out = parallel;
    return status;
}

void sl_data_parallel_destroy(sl_data_parallel **parallel)
{
    if (!parallel || !*parallel)
        return;
    sl_data_parallel *dead = *parallel;
    for (int i = 0; dead->replicas && i < dead->count; i++) {
        sli_replica *replica = &dead->replicas[i];
        sli_worker_destroy(&replica->worker);
        sl_pass_destroy(&replica->pass);
        sl_parameter_set_destroy(&replica->set);
        if (i > 0)
            sl_module_destroy(&replica->module);
    }
    free(dead->replicas);
    free(dead->sizes);
    sl_device_list_destroy(&dead->list);
    free(dead);
    *parallel = NULL;
}
