#include "train/plan/machine.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/threads.h"
#include "device/cores.h"
#include "device/device.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"
#include "train/plan/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 256, LADDER = 24 };

/* A number of rows whose modules take longer than this is the last that is timed. */
static const double longest_seconds = 1;

/* The measurements with one number of devices. */
typedef struct timed_devices {
    int count;
    int rungs;     /* rows 1, 2, 4 … 2^(rungs - 1) are timed */
    bool is_ended; /* more rows take too long to be timed, or do not fit the memory */
    sl_module_profile *ladder[LADDER]; /* [modules] */
    double update_per_byte;            /* negative: not timed */
    bool has_exchange;                 /* reduce and gather are timed */
    sl_link_cost reduce, gather;
    double peak_flops_per_s; /* of all together; 0: not timed */
} timed_devices;

typedef struct timed_machine {
    const sl_train_options *options;
    int64_t document_tokens; /* 0: a row is one */
    char *names; /* of the options' devices, separated by commas; NULL: cpu:0 and so on */
    int modules;
    timed_devices devices[MOST_DEVICES];
    int count;
} timed_machine;

/* ---- Work for all devices at once ----------------------------------------------------------- */

/* What one device does. */
typedef struct device_job {
    const sl_train_options *options;
    sl_device *device;
    sl_status (*task)(struct device_job *job);
    int64_t rows, document_tokens;
    sl_module_profile *profile; /* [modules] */
    double update_per_byte;
    sli_worker *worker;
    sli_error_copy error;
} device_job;

static void run_job(void *arg)
{
    device_job *job = arg;
    sli_error_save(&job->error, job->task(job));
    sli_device_empty_cache(job->device);
}

/* jobs[count] have what their task needs but the device. */
static sl_status run_jobs(const sl_device_list *list, device_job *jobs, int count)
{
    sl_status status = SL_OK;
    for (int i = 0; i < count; i++) {
        jobs[i].device = sl_device_list_get(list, i);
        SL_TRY_OR_FAIL(sli_worker_create(sli_device_bind_thread, jobs[i].device, &jobs[i].worker));
    }
    for (int i = 0; i < count; i++)
        sli_worker_start(jobs[i].worker, run_job, &jobs[i]);
    for (int i = 0; i < count; i++)
        sli_worker_wait(jobs[i].worker);
    for (int i = 0; i < count && status == SL_OK; i++)
        status = sli_error_restore(&jobs[i].error);
fail:
    for (int i = 0; i < count; i++)
        sli_worker_destroy(&jobs[i].worker);
    return status;
}

static sl_status open_devices(const timed_machine *machine, int count, sl_device_list **out)
{
    char *names;
    if (machine->names)
        return sl_device_list_create(machine->names, out, NULL);
    SL_TRY(sli_device_list_name_cpus(count, false, &names));
    sl_status status = sl_device_list_create(names, out, NULL);
    free(names);
    return status;
}

/* Runs the task on all of so many devices. The caller frees *jobs [count]. */
static sl_status run_on_devices(const timed_machine *machine, int count, device_job example,
                                device_job **jobs)
{
    sl_device_list *list = NULL;
    sl_status status;
    *jobs = calloc((size_t)count, sizeof **jobs);
    if (!*jobs)
        return sli_no_memory(NULL, "the times of %d devices", count);
    example.options = machine->options;
    for (int i = 0; i < count; i++) {
        (*jobs)[i] = example;
        (*jobs)[i].profile = calloc((size_t)machine->modules, sizeof *example.profile);
        if (!(*jobs)[i].profile)
            SL_TRY_OR_FAIL(sli_no_memory(NULL, "the times of %d modules", machine->modules));
    }
    SL_TRY_OR_FAIL(open_devices(machine, count, &list));
    status = run_jobs(list, *jobs, count);
fail:
    sl_device_list_destroy(&list);
    return status;
}

static void free_jobs(device_job *jobs, int count)
{
    for (int i = 0; jobs && i < count; i++)
        free(jobs[i].profile);
    free(jobs);
}

/* ---- Modules ------------------------------------------------------------------------------ */

/* [rows, row's tokens] */
static sl_status create_ids(const device_job *job, sl_tensor **out)
{
    const sl_shape shape = sl_shape_2d(job->rows, job->options->bptt);
    sli_host_array ids;
    SL_TRY(sl_tensor_create(job->device, SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    SL_TRY(sli_tensor_open_host(*out, false, &ids));
    sli_draw_ids(job->options->model.ntokens, sl_tensor_count(*out), ids.host);
    return sli_tensor_close_host(*out, &ids, true);
}

/* SL_DOCUMENTS_INPUT of [rows, row's tokens]; *out is NULL where rows are not packed. */
static sl_status create_documents(const device_job *job, sl_tensor **out)
{
    const sl_shape shape = sl_shape_2d(job->rows, job->options->bptt);
    sli_host_array numbers;
    *out = NULL;
    if (job->document_tokens == 0)
        return SL_OK;
    SL_TRY(sl_tensor_create(job->device, SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    SL_TRY(sli_tensor_open_host(*out, false, &numbers));
    for (int64_t i = 0; i < sl_tensor_count(*out); i++)
        ((int32_t *)numbers.host)[i] = (int32_t)(i % job->options->bptt % job->document_tokens);
    return sli_tensor_close_host(*out, &numbers, true);
}

static sl_status profile_rows(device_job *job)
{
    sl_module *model = NULL;
    sl_loss *loss = NULL;
    sl_tensor *ids = NULL, *numbers = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(sl_transformer_lm_create(&job->options->model, &model));
    SL_TRY_OR_FAIL(sl_cross_entropy_create(&loss));
    SL_TRY_OR_FAIL(create_ids(job, &ids));
    SL_TRY_OR_FAIL(create_documents(job, &numbers));
    const sl_input documents = {SL_DOCUMENTS_INPUT, numbers, false};
    status = sl_profile_modules(&(sl_profile_options){.model = model,
                                                      .loss = loss,
                                                      .device = job->device,
                                                      .input = ids,
                                                      .inputs = &documents,
                                                      .input_count = numbers != NULL,
                                                      .targets = ids,
                                                      .precision = job->options->precision},
                                job->profile);
fail:
    sl_tensor_destroy(&numbers);
    sl_tensor_destroy(&ids);
    sl_loss_destroy(&loss);
    sl_module_destroy(&model);
    return status;
}

static void raise_to(double *value, double other)
{
    *value = fmax(*value, other);
}

/* Of each module the slowest device's times. */
static void keep_slowest(const sl_module_profile *profile, int modules, sl_module_profile *slowest)
{
    for (int i = 0; i < modules; i++) {
        raise_to(&slowest[i].forward, profile[i].forward);
        raise_to(&slowest[i].backward, profile[i].backward);
        raise_to(&slowest[i].backward_input, profile[i].backward_input);
        raise_to(&slowest[i].backward_weight, profile[i].backward_weight);
        raise_to(&slowest[i].output_bytes, profile[i].output_bytes);
    }
}

/* Whether it takes too long to time these modules: a first round and those that count, of two
 * forwards, a backward and its halves. A module like the one before it is not run. What else takes
 * time, devices that are opened on a busy machine, does not count. */
static bool is_long(const sl_module_profile *times, int modules)
{
    enum { ROUNDS = 1 + SL_PROFILE_ROUNDS };
    double seconds = 0;
    for (int i = 0; i < modules; i++) {
        const sl_module_profile *timed = &times[i];
        bool is_run =
            i == 0 || timed->forward != timed[-1].forward || timed->backward != timed[-1].backward;
        seconds += is_run ? ROUNDS * 2 * (timed->forward + timed->backward) : 0;
    }
    return seconds > longest_seconds;
}

/* Times twice as many rows as were timed last. */
static sl_status add_rung(const timed_machine *machine, timed_devices *devices)
{
    device_job *jobs = NULL;
    sl_module_profile *slowest = calloc((size_t)machine->modules, sizeof *slowest);
    if (!slowest)
        return sli_no_memory(NULL, "the times of %d modules", machine->modules);
    sl_status status = run_on_devices(machine, devices->count,
                                      (device_job){.task = profile_rows,
                                                   .rows = (int64_t)1 << devices->rungs,
                                                   .document_tokens = machine->document_tokens},
                                      &jobs);
    for (int i = 0; i < devices->count && status == SL_OK; i++)
        keep_slowest(jobs[i].profile, machine->modules, slowest);
    free_jobs(jobs, devices->count);
    if (status != SL_OK) {
        free(slowest);
        return status;
    }
    devices->ladder[devices->rungs++] = slowest;
    devices->is_ended = devices->rungs == LADDER || is_long(slowest, machine->modules);
    return SL_OK;
}

static timed_devices *find_devices(timed_machine *machine, int count)
{
    for (int i = 0; i < machine->count; i++)
        if (machine->devices[i].count == count)
            return &machine->devices[i];
    timed_devices *added = &machine->devices[machine->count++];
    *added = (timed_devices){.count = count, .update_per_byte = -1};
    return added;
}

static sl_status time_modules(void *context, int count, int64_t rows, sl_module_profile *out)
{
    timed_machine *machine = context;
    timed_devices *devices = find_devices(machine, count);
    int low = 0;
    while ((int64_t)2 << low <= rows)
        low++;
    bool is_between = rows > (int64_t)1 << low;
    while (devices->rungs < low + 1 + (int)is_between && !devices->is_ended) {
        sl_status status = add_rung(machine, devices);
        if (status == SL_ERR_MEMORY && devices->rungs > 0)
            devices->is_ended = true;
        else if (status != SL_OK)
            return status;
    }
    sli_ladder_times(devices->ladder, devices->rungs, machine->modules, rows, out);
    return SL_OK;
}

/* ---- The update --------------------------------------------------------------------------- */

/* What is updated has at most so many bytes, and if possible not too few to be timed. */
static const int64_t most_bytes = 64 << 20, least_bytes = 1 << 20;

static sl_status count_tie(sl_parameter *tied, void *arg)
{
    (void)tied;
    ++*(int *)arg;
    return SL_OK;
}

/* Neighbouring modules of a model, and the bytes of their trained parameters. */
typedef struct module_range {
    int first, count;
    int64_t bytes;
} module_range;

static int64_t trained_bytes(const sl_module *model, int module)
{
    return sli_module_elements(sl_module_child(model, module), SL_PARAMETER_TRAINED) *
           (int64_t)sizeof(float);
}

/* From `first` on, as many as may be updated; none where `first` is frozen. */
static module_range find_range(const sl_module *model, int first, int modules)
{
    module_range range = {.first = first};
    for (int i = first; i < modules; i++) {
        int64_t bytes = trained_bytes(model, i);
        if ((i == first && bytes == 0) || range.bytes + bytes > most_bytes)
            break;
        range.bytes += bytes;
        range.count = bytes > 0 ? i + 1 - first : range.count;
    }
    return range;
}

/* Those with the most bytes that may be updated, or else the smallest module. A parameter that is
 * tied to one of another module is not in a set of its own: then the last module, which has it, is
 * left out. */
static sl_status choose_modules(const sl_module *model, module_range *out)
{
    int ties = 0, modules = sl_module_child_count(model);
    SL_TRY(sli_module_for_each_tie(model, count_tie, &ties));
    modules -= ties > 0;
    *out = (module_range){0};
    for (int i = 0; i < modules; i++) {
        module_range range = find_range(model, i, modules);
        if (range.bytes > out->bytes)
            *out = range;
    }
    if (out->bytes >= least_bytes)
        return SL_OK;
    for (int i = 0; i < modules; i++) {
        int64_t bytes = trained_bytes(model, i);
        if (bytes > most_bytes && (out->bytes < least_bytes || bytes < out->bytes))
            *out = (module_range){i, 1, bytes};
    }
    return SL_OK;
}

/* The median of a few updates with gradients of 0, after one that touches all memory. */
static sl_status time_steps(device_job *job, sl_parameter_set *set, sl_optimizer *optimizer,
                            int64_t bytes)
{
    enum { ROUNDS = 5 };
    int parameters = sl_parameter_set_count(set), count;
    double *terms = calloc((size_t)parameters + 1, sizeof *terms), seconds[ROUNDS];
    sl_status status;
    if (!terms)
        return sli_no_memory(NULL, "the gradient norm");
    for (int round = -1; round < ROUNDS; round++) {
        double start = sli_clock_seconds();
        SL_TRY_OR_FAIL(sli_grad_norm_terms(set, SL_GRAD_NORM_L2, terms, parameters, &count));
        SL_TRY_OR_FAIL(sl_optimizer_step(optimizer, 1e-6, 1));
        SL_TRY_OR_FAIL(sl_device_synchronize(job->device));
        if (round >= 0)
            seconds[round] = sli_clock_seconds() - start;
    }
    job->update_per_byte = sli_median_seconds(seconds, ROUNDS) / (double)bytes;
fail:
    free(terms);
    return status;
}

static sl_status update_parameters(device_job *job)
{
    sl_module *model = NULL;
    sl_parameter_set *set = NULL;
    sl_optimizer *optimizer = NULL;
    sl_tensor *grads;
    module_range range;
    sl_status status;
    SL_TRY_OR_FAIL(sl_transformer_lm_create(&job->options->model, &model));
    SL_TRY_OR_FAIL(choose_modules(model, &range));
    job->update_per_byte = 0;
    if (range.bytes == 0)
        goto fail; /* nothing is trained there: status is SL_OK */
    SL_TRY_OR_FAIL(
        sl_parameter_set_create(model, range.first, range.count,
                                &(sl_parameter_set_options){.device = job->device,
                                                            .no_init = true,
                                                            .precision = job->options->precision},
                                &set));
    for (int i = 0; i < sl_parameter_set_bucket_count(set); i++)
        SL_TRY_OR_FAIL(sl_parameter_set_bucket_grads(set, i, &grads));
    SL_TRY_OR_FAIL(sl_optimizer_create(&job->options->optimizer, set, &optimizer));
    status = time_steps(job, set, optimizer, range.bytes);
fail:
    sl_optimizer_destroy(&optimizer);
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&model);
    return status;
}

static sl_status time_update(void *context, int count, double *seconds_per_byte)
{
    timed_machine *machine = context;
    timed_devices *devices = find_devices(machine, count);
    device_job *jobs = NULL;
    sl_status status = SL_OK;
    if (devices->update_per_byte < 0) {
        status = run_on_devices(machine, count, (device_job){.task = update_parameters}, &jobs);
        for (int i = 0; i < count && status == SL_OK; i++)
            raise_to(&devices->update_per_byte, jobs[i].update_per_byte);
        free_jobs(jobs, count);
    }
    *seconds_per_byte = devices->update_per_byte;
    return status;
}

/* ---- The exchange ------------------------------------------------------------------------- */

enum { SMALL_FLOATS = 1 << 8, LARGE_FLOATS = 4 << 20 };

typedef struct exchange_times {
    double reduce[2], gather[2]; /* seconds of SMALL_FLOATS and LARGE_FLOATS; the first rank's */
} exchange_times;

/* Every rank's shard of the data goes to all ranks (parallel/ddp/zero.c). */
static sl_status gather_shards(sl_group *group, float *data, int64_t floats)
{
    int ranks = sl_group_size(group);
    for (int rank = 0; rank < ranks; rank++)
        SL_TRY(sl_group_broadcast(group, data + floats / ranks * rank, floats / ranks, SL_F32, rank,
                                  NULL));
    return SL_OK;
}

/* The median of a few rounds, after one that touches all memory. */
static sl_status time_floats(sl_group *group, float *data, int64_t floats, bool reduces,
                             double *out)
{
    enum { ROUNDS = 5 };
    double seconds[ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        SL_TRY(sl_group_barrier(group, NULL));
        double start = sli_clock_seconds();
        SL_TRY(reduces ? sl_group_all_reduce(group, data, floats, SL_F32, SL_REDUCE_SUM, NULL)
                       : gather_shards(group, data, floats));
        if (round >= 0)
            seconds[round] = sli_clock_seconds() - start;
    }
    *out = sli_median_seconds(seconds, ROUNDS);
    return SL_OK;
}

static sl_status time_group(sl_group *group, void *arg)
{
    exchange_times *times = arg, others;
    if (sl_group_rank(group) > 0)
        times = &others;
    float *data = calloc(LARGE_FLOATS, sizeof *data);
    sl_status status = SL_OK;
    if (!data)
        return sli_no_memory(NULL, "%d floats to exchange", LARGE_FLOATS);
    for (int i = 0; i < 2; i++) {
        int64_t floats = i ? LARGE_FLOATS : SMALL_FLOATS;
        SL_TRY_OR_FAIL(time_floats(group, data, floats, true, &times->reduce[i]));
        SL_TRY_OR_FAIL(time_floats(group, data, floats, false, &times->gather[i]));
    }
fail:
    free(data);
    return status;
}

static sl_link_cost cost_of(const double seconds[2])
{
    static const double bytes[] = {SMALL_FLOATS * sizeof(float), LARGE_FLOATS * sizeof(float)};
    return sli_link_fit(bytes, seconds, 2);
}

static sl_status time_exchange(void *context, int replicas, sl_link_cost *reduce,
                               sl_link_cost *gather)
{
    timed_devices *devices = find_devices(context, replicas);
    exchange_times times;
    if (!devices->has_exchange) {
        SL_TRY(sl_spawn(time_group, &times, replicas, NULL));
        devices->reduce = cost_of(times.reduce);
        devices->gather = cost_of(times.gather);
        devices->has_exchange = true;
    }
    *reduce = devices->reduce;
    *gather = devices->gather;
    return SL_OK;
}

/* ---- The peak ------------------------------------------------------------------------------- */

static sl_status time_peak(void *context, int count, double *flops_per_s)
{
    timed_machine *machine = context;
    timed_devices *devices = find_devices(machine, count);
    sl_device *opened[MOST_DEVICES];
    sl_device_list *list = NULL;
    sl_status status = SL_OK;
    if (devices->peak_flops_per_s <= 0)
        status = open_devices(machine, count, &list);
    for (int i = 0; list && i < count; i++)
        opened[i] = sl_device_list_get(list, i);
    if (list)
        status = sli_measure_peak(opened, count, machine->options->precision,
                                  &devices->peak_flops_per_s);
    sl_device_list_destroy(&list);
    *flops_per_s = devices->peak_flops_per_s;
    return status;
}

/* ---- The machine -------------------------------------------------------------------------- */

static void destroy_machine(void *context)
{
    timed_machine *machine = context;
    for (int i = 0; i < machine->count; i++)
        for (int rung = 0; rung < machine->devices[i].rungs; rung++)
            free(machine->devices[i].ladder[rung]);
    free(machine->names);
    free(machine);
}

/* The devices of the options' lists. */
static sl_status count_names(timed_machine *machine, int *count)
{
    machine->names = strdup(machine->options->devices);
    if (!machine->names)
        return sli_no_memory(NULL, "the names of devices");
    *count = 1;
    for (char *name = machine->names; (name = strpbrk(name, ",;")); *name++ = ',')
        ++*count;
    *count = *count < MOST_DEVICES ? *count : MOST_DEVICES;
    return SL_OK;
}

static sl_status count_cores(int *count)
{
    sli_cores cores;
    SL_TRY(sli_cores_find(&cores));
    *count = cores.core_count < MOST_DEVICES ? cores.core_count : MOST_DEVICES;
    sli_cores_clear(&cores);
    return SL_OK;
}

sl_status sli_machine_open(const sl_train_options *options, int64_t document_tokens,
                           sli_machine *out)
{
    sl_module *model = NULL;
    timed_machine *machine = calloc(1, sizeof *machine);
    *out = (sli_machine){.time_modules = time_modules,
                         .time_update = time_update,
                         .time_exchange = time_exchange,
                         .time_peak = time_peak,
                         .close = destroy_machine};
    if (!machine)
        return sli_no_memory(NULL, "the times of a machine");
    machine->options = options;
    machine->document_tokens = document_tokens;
    sl_status status;
    SL_TRY_OR_FAIL(options->devices ? count_names(machine, &out->cores) : count_cores(&out->cores));
    SL_TRY_OR_FAIL(sl_transformer_lm_create(&options->model, &model));
    machine->modules = sl_module_child_count(model);
    sl_module_destroy(&model);
    out->context = machine;
    return SL_OK;
fail:
    destroy_machine(machine);
    return status;
}

int64_t sli_machine_timed_rows(const sli_machine *machine, int devices)
{
    int rungs = find_devices(machine->context, devices)->rungs;
    return rungs > 0 ? (int64_t)1 << (rungs - 1) : 0;
}

void sli_machine_close(sli_machine *machine)
{
    if (machine->context && machine->close)
        machine->close(machine->context);
    machine->context = NULL;
}
