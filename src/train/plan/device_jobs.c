#include "train/plan/device_jobs.h"

#include "core/clock.h"
#include "device/device.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"
#include "train/plan/profile.h"

#include <stdlib.h>

/* ---- Modules ------------------------------------------------------------------------------ */

/* [rows, row's tokens] */
static sl_status create_ids(const sli_device_job *job, sl_tensor **out)
{
    const sl_shape shape = sl_shape_2d(job->rows, job->options->bptt);
    sli_host_array ids;
    SL_TRY(sl_tensor_create(job->device, SL_MEMORY_WORKSPACE, SL_I32, &shape, out));
    SL_TRY(sli_tensor_open_host(*out, false, &ids));
    sli_draw_ids(job->options->model.ntokens, sl_tensor_count(*out), ids.host);
    return sli_tensor_close_host(*out, &ids, true);
}

/* SL_DOCUMENTS_INPUT of [rows, row's tokens]; *out is NULL where rows are not packed. */
static sl_status create_documents(const sli_device_job *job, sl_tensor **out)
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

sl_status sli_profile_rows(sli_device_job *job)
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
                                                      .rounds = job->passes,
                                                      .precision = job->options->precision},
                                job->profile);
fail:
    sl_tensor_destroy(&numbers);
    sl_tensor_destroy(&ids);
    sl_loss_destroy(&loss);
    sl_module_destroy(&model);
    return status;
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

static sl_status zero_gradients(sl_parameter_set *set)
{
    sl_tensor *grads;
    sl_parameter_set_zero_grad(set);
    for (int i = 0; i < sl_parameter_set_bucket_count(set); i++)
        SL_TRY(sl_parameter_set_bucket_grads(set, i, &grads));
    return SL_OK;
}

/* Adds half of each bucket to the other half. */
static sl_status sum_halves(sl_parameter_set *set)
{
    sl_tensor *grads;
    for (int i = 0; i < sl_parameter_set_bucket_count(set); i++) {
        SL_TRY(sl_parameter_set_bucket_grads(set, i, &grads));
        int64_t half = grads ? sl_tensor_count(grads) / 2 : 0;
        if (half > 0)
            SL_TRY(sli_device_add(sl_tensor_device(grads), half, sl_tensor_f32(grads),
                                  sl_tensor_f32(grads) + half));
    }
    return SL_OK;
}

/* Adds the seconds since *start, and starts anew. */
static sl_status add_seconds(const sli_device_job *job, double *start, double *sum)
{
    SL_TRY(sl_device_synchronize(job->device));
    double now = sli_clock_seconds();
    *sum += now - *start;
    *start = now;
    return SL_OK;
}

/* The parts of an update with gradients of 0. */
static sl_status time_parts(sli_device_job *job, sl_parameter_set *set, sl_optimizer *optimizer,
                            double *terms, sli_update_speed *out)
{
    int count;
    *out = (sli_update_speed){0};
    double start = sli_clock_seconds();
    SL_TRY(zero_gradients(set));
    SL_TRY(add_seconds(job, &start, &out->table_zero));
    SL_TRY(sli_grad_norm_terms(set, SL_GRAD_NORM_L2, terms, sl_parameter_set_count(set), &count));
    SL_TRY(add_seconds(job, &start, &out->undivided));
    SL_TRY(sl_optimizer_step(optimizer, 1e-6, 1));
    SL_TRY(add_seconds(job, &start, &out->optimizer));
    SL_TRY(sli_parameter_set_convert(set));
    SL_TRY(add_seconds(job, &start, &out->undivided));
    SL_TRY(sum_halves(set));
    return add_seconds(job, &start, &out->tie_sum);
}

/* The medians of a few updates, after one that touches all memory. */
static sl_status time_steps(sli_device_job *job, sl_parameter_set *set, sl_optimizer *optimizer,
                            int64_t bytes)
{
    enum { ROUNDS = 5 };
    sli_update_speed parts;
    double steps[ROUNDS], undivided[ROUNDS], zeros[ROUNDS], sums[ROUNDS];
    double *terms = calloc((size_t)sl_parameter_set_count(set) + 1, sizeof *terms);
    sl_status status;
    if (!terms)
        return sli_no_memory(NULL, "the gradient norm");
    SL_TRY_OR_FAIL(time_parts(job, set, optimizer, terms, &parts));
    for (int round = 0; round < ROUNDS; round++) {
        SL_TRY_OR_FAIL(time_parts(job, set, optimizer, terms, &parts));
        steps[round] = parts.optimizer;
        undivided[round] = parts.undivided;
        zeros[round] = parts.table_zero;
        sums[round] = 2 * parts.tie_sum; /* half of the bytes are added */
    }
    job->update = (sli_update_speed){
        .optimizer = sli_median_seconds(steps, ROUNDS) / (double)bytes,
        .undivided = sli_median_seconds(undivided, ROUNDS) / (double)bytes,
        .table_zero = sli_median_seconds(zeros, ROUNDS) / (double)bytes,
        .tie_sum = sli_median_seconds(sums, ROUNDS) / (double)bytes,
    };
fail:
    free(terms);
    return status;
}

sl_status sli_time_update(sli_device_job *job)
{
    sl_module *model = NULL;
    sl_parameter_set *set = NULL;
    sl_optimizer *optimizer = NULL;
    module_range range;
    sl_status status;
    SL_TRY_OR_FAIL(sl_transformer_lm_create(&job->options->model, &model));
    SL_TRY_OR_FAIL(choose_modules(model, &range));
    job->update = (sli_update_speed){0};
    if (range.bytes == 0)
        goto fail; /* nothing is trained there: status is SL_OK */
    SL_TRY_OR_FAIL(
        sl_parameter_set_create(model, range.first, range.count,
                                &(sl_parameter_set_options){.device = job->device,
                                                            .no_init = true,
                                                            .precision = job->options->precision},
                                &set));
    SL_TRY_OR_FAIL(sl_optimizer_create(&job->options->optimizer, set, &optimizer));
    status = time_steps(job, set, optimizer, range.bytes);
fail:
    sl_optimizer_destroy(&optimizer);
    sl_parameter_set_destroy(&set);
    sl_module_destroy(&model);
    return status;
}

/* ---- Work for all devices at once ----------------------------------------------------------- */

static void run_job(void *arg)
{
    sli_device_job *job = arg;
    sli_error_save(&job->error, job->task(job));
    sli_device_empty_cache(job->device);
}

sl_status sli_device_jobs_run(const sl_device_list *list, sli_device_job *jobs, int count)
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
