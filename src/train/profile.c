/* How long the modules of a run's model take, each on the device of its stage. */
#include "train/run.h"

#include "core/error.h"
#include "device/device_list.h"

#include <stdlib.h>
#include <string.h>

/* One profile, of all modules on one device. */
typedef struct profile {
    const sl_train_options *options;
    sl_module *model;
    sl_loss *loss;
    sl_device_list *devices; /* of the host's replicas */
    int64_t micro_rows;      /* of the run's micro-batches */
    int64_t rows;            /* that are profiled: at most a quarter of the batch's */
} profile;

/* Ids that lie apart, as a text's do. */
static sl_status make_ids(const profile *of, sl_device *device, uint32_t seed, sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(of->rows, of->options->bptt);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    for (int64_t i = 0; i < sl_shape_count(&shape); i++) {
        seed = seed * 1664525u + 1013904223u;
        sl_tensor_i32(*out)[i] = (int32_t)((seed >> 8) % (uint64_t)of->options->model.ntokens);
    }
    return SL_OK;
}

static void scale_times(sl_module_profile *times, double factor)
{
    times->forward *= factor;
    times->backward *= factor;
    times->backward_input *= factor;
    times->backward_weight *= factor;
}

static sl_status profile_device(const profile *of, sl_device *device, sl_module_profile *out)
{
    sl_tensor *input = NULL, *targets = NULL;
    sl_status status = make_ids(of, device, 1, &input);
    if (status == SL_OK)
        status = make_ids(of, device, 2, &targets);
    if (status == SL_OK)
        status = sl_profile_modules(&(sl_profile_options){.model = of->model,
                                                          .loss = of->loss,
                                                          .device = device,
                                                          .input = input,
                                                          .targets = targets},
                                    out);
    sl_tensor_destroy(&input);
    sl_tensor_destroy(&targets);
    for (int i = 0; i < sl_module_child_count(of->model) && status == SL_OK; i++)
        scale_times(&out[i], (double)of->micro_rows / (double)of->rows);
    return status;
}

/* Devices with as many threads are profiled once. `room` [modules]. */
static sl_status profile_stages(const profile *of, const sl_plan *plan, const int *placement,
                                sl_module_profile *room, sl_module_profile *out)
{
    int profiled = 0; /* threads of the device whose times `room` has */
    for (int s = 0; s < plan->stages; s++) {
        sl_device *device = sl_device_list_get(of->devices, placement[s]);
        const sl_stage_plan *stage = &plan->stage[s];
        if (sl_device_thread_count(device) != profiled)
            SL_TRY(profile_device(of, device, room));
        profiled = sl_device_thread_count(device);
        memcpy(out + stage->first, room + stage->first, (size_t)stage->count * sizeof *out);
    }
    return SL_OK;
}

static sl_status profile_plan(profile *of, const sl_plan *plan, sl_module_profile *out)
{
    sl_schedule *table;
    const sl_train_options *options = of->options;
    int64_t rows = sli_layout_rows(options, 0).count;
    int micros = sl_micro_batches(rows, sli_layout_chunks(options, rows), NULL);
    of->micro_rows = (rows + micros - 1) / micros;
    of->rows = of->micro_rows < (rows + 3) / 4 ? of->micro_rows : (rows + 3) / 4;
    sl_module_profile *room = calloc((size_t)sl_module_child_count(of->model), sizeof *room);
    if (!room)
        return sl_error(SL_ERR_MEMORY, "no memory for a profile");
    sl_status status = sli_layout_table(options, 1, &table);
    if (status == SL_OK)
        status = profile_stages(of, plan, sl_schedule_placement(table), room, out);
    sl_schedule_destroy(&table);
    free(room);
    return status;
}

sl_status sl_train_profile(const sl_train_options *options, sl_module *model,
                           sl_module_profile *profiles)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(profiles);
    profile of = {.options = options, .model = model};
    sl_plan plan;
    char *names = NULL;
    SL_TRY(sl_plan_create(options, model, 0, &plan));
    sl_status status = sli_layout_devices(options, &names);
    if (status == SL_OK)
        status = sl_device_list_create(names, &of.devices, NULL);
    if (status == SL_OK)
        status = sl_cross_entropy_create(&of.loss);
    if (status == SL_OK)
        status = profile_plan(&of, &plan, profiles);
    sl_loss_destroy(&of.loss);
    sl_device_list_destroy(&of.devices);
    free(names);
    return status;
}
