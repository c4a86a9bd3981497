/* How long the modules of a run's model take, and where this says to cut it. */
#include "train/run.h"

#include "core/error.h"
#include "device/device.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* The profile of a model on the devices of the first replica's ranks. */
typedef struct model_profile {
    const sl_train_options *options;
    const sl_train_task *task;
    sl_module *model;
    sl_loss *loss;
    const sl_device_list *devices; /* of this process */
    int64_t micro_rows;            /* of the run's micro-batches */
    int64_t rows;                  /* that are profiled: at most a quarter of the batch's */
    int chunks, ranks;
    const sl_module_profile *times[SL_MAX_STAGES]; /* [ranks][modules] */
    sl_module_profile *room;                       /* where they are */
} model_profile;

static void scale_times(sl_module_profile *times, double factor)
{
    times->forward *= factor;
    times->backward *= factor;
    times->backward_input *= factor;
    times->backward_weight *= factor;
}

static sl_status profile_device(const model_profile *profile, sl_device *device,
                                sl_module_profile *out)
{
    sl_tensor *input, *targets;
    const sl_train_rows rows = {.split = SL_SPLIT_TRAIN,
                                .batch_rows = sli_layout_shards(profile->options) *
                                              profile->options->batch_size,
                                .count = profile->rows};
    sl_status status = sli_task_load(profile->task, &rows, device, device, &input, &targets);
    if (status == SL_OK)
        status = sl_profile_modules(&(sl_profile_options){.model = profile->model,
                                                          .loss = profile->loss,
                                                          .device = device,
                                                          .input = input,
                                                          .targets = targets,
                                                          .precision = profile->options->precision},
                                    out);
    sl_tensor_destroy(&input);
    sl_tensor_destroy(&targets);
    for (int i = 0; i < sl_module_child_count(profile->model) && status == SL_OK; i++)
        scale_times(&out[i], (double)profile->micro_rows / (double)profile->rows);
    return status;
}

/* The first replica's; one in another process is taken to be like one that is here. */
static sl_device *device_of(const model_profile *profile, int rank)
{
    return sl_device_list_get(profile->devices, rank % sl_device_list_count(profile->devices));
}

/* On the device of each of the first replica's ranks, into times[rank]. Ranks whose devices have as
 * many threads share what one of them took. */
static sl_status profile_ranks(model_profile *profile)
{
    size_t modules = (size_t)sl_module_child_count(profile->model);
    profile->room = calloc((size_t)profile->ranks * modules, sizeof *profile->room);
    if (!profile->room)
        return sl_error(SL_ERR_MEMORY, "no memory for the profile of %d ranks", profile->ranks);
    for (int rank = 0; rank < profile->ranks; rank++) {
        int like = 0, threads = sl_device_thread_count(device_of(profile, rank));
        while (sl_device_thread_count(device_of(profile, like)) != threads)
            like++;
        sl_module_profile *own = profile->room + (size_t)rank * modules;
        profile->times[rank] = like < rank ? profile->times[like] : own;
        if (like == rank)
            SL_TRY(profile_device(profile, device_of(profile, rank), own));
    }
    return SL_OK;
}

static sl_status open_profile(model_profile *profile)
{
    const sl_train_options *options = profile->options;
    int64_t rows = options->batch_size;
    profile->chunks = sl_micro_batches(rows, sli_layout_micros(options), NULL);
    profile->micro_rows = (rows + profile->chunks - 1) / profile->chunks;
    profile->rows = profile->micro_rows < (rows + 3) / 4 ? profile->micro_rows : (rows + 3) / 4;
    profile->ranks = sli_layout_pipeline_ranks(options);
    return profile_ranks(profile);
}

/* ---- Times and cuts ----------------------------------------------------------------------- */

/* Each module's times on the device of its stage. */
static sl_status pick_times(const model_profile *profile, const int *balance,
                            sl_module_profile *out)
{
    sl_schedule *table;
    SL_TRY(sli_layout_table(profile->options, 1, &table));
    for (int s = 0, i = 0; s < sli_layout_stages(profile->options); s++)
        for (int end = i + balance[s]; i < end; i++)
            out[i] = profile->times[sl_schedule_placement(table)[s]][i];
    sl_schedule_destroy(&table);
    return SL_OK;
}

/* Whether the host has the memory for the run when it is cut so. */
static bool cut_fits(void *context, const int *balance)
{
    const model_profile *profile = context;
    sl_train_options options = *profile->options;
    sl_host_plan plan;
    options.balance_kind = SL_BALANCE_EXPLICIT;
    options.balance_count = sli_layout_stages(&options);
    memcpy(options.balance, balance, (size_t)options.balance_count * sizeof *balance);
    return options.force || options.task ||
           (sl_plan_host(&options, profile->model, 0, &plan) == SL_OK &&
            (uint64_t)plan.total_bytes <= sl_usable_memory());
}

/* Cuts the model as the options say, and simulates the table of an accumulation step. By time it is
 * the cut that makes the table the shortest; where none fits, that by parameters. */
static sl_status cut_model(model_profile *profile, int *balance, sli_step_times *times)
{
    sl_schedule *table;
    bool by_time = profile->options->balance_kind == SL_BALANCE_AUTO;
    int stages, steps = sli_layout_accumulation_steps(profile->options),
                micros = (profile->chunks + steps - 1) / steps;
    sl_partition_costs costs = {.modules = sl_module_child_count(profile->model),
                                .profiles = profile->times,
                                .fits = cut_fits,
                                .context = profile};
    SL_TRY(sli_layout_table(profile->options, micros, &table));
    sl_status status = sl_schedule_recompute(table, profile->options->recompute);
    costs.table = table;
    if (status == SL_OK && by_time)
        status = sl_partition_by_time(&costs, balance, NULL);
    if (status == SL_ERR_NOT_FOUND || (status == SL_OK && !by_time))
        status = sli_layout_balance(profile->options, profile->model, balance, &stages);
    if (status == SL_OK)
        status = sli_partition_simulate(&costs, balance, times);
    sl_schedule_destroy(&table);
    return status;
}

sl_status sli_train_profile(const sl_train_options *options, const sl_train_task *task,
                            sl_module *model, sl_loss *loss, const sl_device_list *devices,
                            sl_module_profile *profiles, int *balance, sli_step_times *times)
{
    model_profile profile = {
        .options = options, .task = task, .model = model, .loss = loss, .devices = devices};
    sl_status status = open_profile(&profile);
    if (status == SL_OK)
        status = cut_model(&profile, balance, times);
    if (status == SL_OK && profiles)
        status = pick_times(&profile, balance, profiles);
    free(profile.room);
    return status;
}

/* ---- Without a text ------------------------------------------------------------------------- */

/* Ids that lie apart, as a text's do. */
static sl_status make_ids(const sl_train_options *options, int64_t rows, sl_device *device,
                          uint32_t seed, sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(rows, options->bptt);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    sli_host_array ids;
    SL_TRY(sli_tensor_open_host(*out, false, &ids));
    for (int64_t i = 0; i < sl_shape_count(&shape); i++) {
        seed = seed * 1664525u + 1013904223u;
        ((int32_t *)ids.host)[i] = (int32_t)((seed >> 8) % (uint64_t)options->model.ntokens);
    }
    return sli_tensor_close_host(*out, &ids, true);
}

static sl_status load_random_ids(void *context, const sl_train_rows *rows, sl_device *input_device,
                                 sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    const sl_train_options *const *options = context;
    SL_TRY(make_ids(*options, rows->count, input_device, 1, input));
    return make_ids(*options, rows->count, target_device, 2, targets);
}

sl_status sl_train_profile(const sl_train_options *options, sl_module *model,
                           sl_module_profile *profiles, int *balance)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(model);
    SLI_CHECK_NOT_NULL(profiles);
    SLI_CHECK_NOT_NULL(balance);
    const sl_train_task task = {.context = &options, .load_rows = load_random_ids};
    sli_step_times times;
    char *names;
    sl_loss *loss = NULL;
    sl_device_list *devices = NULL;
    SL_TRY(sli_layout_check(options));
    SL_TRY(sli_layout_devices(options, &names));
    sl_status status = sl_device_list_create(names, &devices, NULL);
    free(names);
    if (status == SL_OK)
        status = sl_cross_entropy_create(&loss);
    if (status == SL_OK)
        status = sli_train_profile(options, &task, model, loss, devices, profiles, balance, &times);
    sl_loss_destroy(&loss);
    sl_device_list_destroy(&devices);
    return status;
}
