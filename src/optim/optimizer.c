/* Optimizers work on whole buckets: a parameter set's values and gradients are a few flat arrays,
 * and so is the optimizer's state, each array beside the bucket that it belongs to. */
#include "optim/optimizer.h"

#include "device/device.h"
#include "nn/module.h"
#include "sluice/optim.h"

#include <math.h>
#include <stdlib.h>

enum { STATE_ARRAYS = 2 }; /* SGD: the momentum; AdamW: both averages */

struct sl_optimizer {
    sl_optimizer_options options;
    sl_parameter_set *set;
    int shard, shards; /* works on shard `shard` of every bucket */
    int bucket_count;
    sl_tensor **state; /* [bucket_count][STATE_ARRAYS]; NULL where the method has none */
    int64_t *steps;    /* [parameters] that each trained one has taken, in the order of buckets */
    int parameters;
};

int sli_optimizer_arrays_of(const sl_optimizer_options *options)
{
    if (options->kind == SL_OPTIMIZER_ADAMW)
        return 2;
    return options->momentum != 0 ? 1 : 0;
}

sl_dtype sli_optimizer_dtype_of(const sl_optimizer_options *options)
{
    return options->precision == SL_PRECISION_BF16 ? SL_BF16 : SL_F32;
}

const char *const sl_optimizer_kind_names[] = {"sgd", "adamw", NULL};

const char *const sl_decay_kind_names[] = {"all", "matrices", NULL};

const char *sl_optimizer_kind_name(sl_optimizer_kind kind)
{
    return kind <= SL_OPTIMIZER_ADAMW ? sl_optimizer_kind_names[kind] : "unknown";
}

int64_t sl_optimizer_state_bytes(const sl_optimizer_options *options)
{
    return sli_optimizer_arrays_of(options) *
           (int64_t)sl_dtype_bytes(sli_optimizer_dtype_of(options));
}

static sl_status check_not_negative(const char *name, float value)
{
    if (!(value >= 0) || isinf(value))
        return sl_error(SL_ERR_INVALID, "%s must be at least 0, got %g", name, value);
    return SL_OK;
}

/* Given, and not what it would be anyway. */
static bool is_other(float value, float usual)
{
    return value != 0 && value != usual;
}

/* A number that nothing would use is a mistake. */
static sl_status check_method(const sl_optimizer_options *options)
{
    bool sgd = options->momentum != 0 || options->dampening != 0 || options->nesterov;
    bool adamw = is_other(options->beta1, 0.9f) || is_other(options->beta2, 0.999f) ||
                 is_other(options->eps, 1e-8f);
    if (options->kind == SL_OPTIMIZER_ADAMW && sgd)
        return sl_error(SL_ERR_INVALID, "momentum, dampening and nesterov are for sgd, but the "
                                        "optimizer is adamw: leave them out");
    if (options->kind == SL_OPTIMIZER_SGD && adamw)
        return sl_error(SL_ERR_INVALID,
                        "betas and eps are for adamw, but the optimizer is sgd: leave them out");
    if (options->kind == SL_OPTIMIZER_SGD && options->precision != SL_PRECISION_F32)
        return sl_error(SL_ERR_INVALID, "averages in bf16 are for adamw, but the optimizer is sgd: "
                                        "leave the optimizer's precision out");
    return SL_OK;
}

static sl_status check_filled(const sl_optimizer_options *options)
{
    SL_TRY(check_method(options));
    SL_TRY(check_not_negative("weight_decay", options->weight_decay));
    if (options->kind == SL_OPTIMIZER_SGD) {
        SL_TRY(check_not_negative("momentum", options->momentum));
        SL_TRY(check_not_negative("dampening", options->dampening));
        if (options->nesterov && (options->momentum <= 0 || options->dampening != 0))
            return sl_error(SL_ERR_INVALID,
                            "Nesterov momentum requires a momentum and zero dampening");
        return SL_OK;
    }
    if (options->precision != SL_PRECISION_F32 && options->precision != SL_PRECISION_BF16)
        return sl_error(SL_ERR_INVALID, "adamw keeps its averages in f32 or bf16");
    SL_TRY(check_not_negative("eps", options->eps));
    if (!(options->beta1 >= 0 && options->beta1 < 1 && options->beta2 >= 0 && options->beta2 < 1))
        return sl_error(SL_ERR_INVALID, "betas must be in [0, 1), got %g and %g", options->beta1,
                        options->beta2);
    return SL_OK;
}

sl_optimizer_options sli_optimizer_filled(const sl_optimizer_options *options)
{
    sl_optimizer_options filled = *options;
    if (filled.kind != SL_OPTIMIZER_ADAMW)
        return filled;
    if (filled.beta1 == 0)
        filled.beta1 = 0.9f;
    if (filled.beta2 == 0)
        filled.beta2 = 0.999f;
    if (filled.eps == 0)
        filled.eps = 1e-8f;
    return filled;
}

sl_status sli_optimizer_check(const sl_optimizer_options *options)
{
    sl_optimizer_options filled = sli_optimizer_filled(options);
    return check_filled(&filled);
}

/* ---- Shards ----------------------------------------------------------------------------- */

/* Shards begin at multiples of 16 elements, a cache line, so that no two ranks write to the same
 * one.
 */
sli_shard sli_optimizer_shard(const sl_parameter_set *set, int bucket, int index, int shards)
{
    int64_t elements = sl_tensor_count(sl_parameter_set_bucket_values(set, bucket));
    int64_t length = (elements + shards - 1) / shards;
    length = (length + 15) / 16 * 16;
    int64_t start = index * length < elements ? index * length : elements;
    return (sli_shard){start, elements - start < length ? elements - start : length};
}

static sl_status find_bucket(const sl_parameter_set *set, const sl_parameter *parameter,
                             sli_shard_range *out)
{
    const float *first = sl_tensor_f32(sl_parameter_value(parameter));
    for (int b = 0; b < sl_parameter_set_bucket_count(set); b++) {
        const sl_tensor *values = sl_parameter_set_bucket_values(set, b);
        const float *start = sl_tensor_f32(values);
        if (first >= start && first < start + sl_tensor_count(values)) {
            *out = (sli_shard_range){b, 0, sl_shape_count(sl_parameter_shape(parameter)),
                                     first - start};
            return SL_OK;
        }
    }
    return sl_error(SL_ERR_INTERNAL, "parameter %s is in no bucket", sl_parameter_name(parameter));
}

sl_status sli_optimizer_range(const sl_parameter_set *set, const sl_parameter *parameter, int index,
                              int shards, sli_shard_range *out)
{
    SL_TRY(find_bucket(set, parameter, out));
    const sli_shard shard = sli_optimizer_shard(set, out->bucket, index, shards);
    int64_t begin = out->offset, end = begin + out->count;
    int64_t low = shard.start > begin ? shard.start : begin;
    int64_t high = shard.start + shard.count < end ? shard.start + shard.count : end;
    out->first = low - begin;
    out->count = high > low ? high - low : 0;
    out->offset = low - shard.start;
    return SL_OK;
}

static sli_shard own_shard(const sl_optimizer *optimizer, int bucket)
{
    return sli_optimizer_shard(optimizer->set, bucket, optimizer->shard, optimizer->shards);
}

/* ---- Creation --------------------------------------------------------------------------- */

static sl_status create_state(sl_optimizer *optimizer)
{
    int arrays = sli_optimizer_arrays_of(&optimizer->options);
    sl_device *device = sl_parameter_set_device(optimizer->set);
    int buckets = sl_parameter_set_bucket_count(optimizer->set);
    for (int b = 0; b < buckets; b++) {
        sl_parameter *const *unused;
        optimizer->parameters += sli_parameter_set_bucket(optimizer->set, b, &unused);
    }
    optimizer->state = calloc((size_t)buckets * STATE_ARRAYS + 1, sizeof(sl_tensor *));
    optimizer->steps = calloc((size_t)optimizer->parameters + 1, sizeof *optimizer->steps);
    if (!optimizer->state || !optimizer->steps)
        return sli_no_memory("sl_optimizer_create", "%d parameters", optimizer->parameters);
    optimizer->bucket_count = buckets;
    for (int b = 0; b < optimizer->bucket_count; b++) {
        sl_shape shape = sl_shape_1d(own_shard(optimizer, b).count);
        for (int i = 0; i < arrays; i++)
            SL_TRY(sl_tensor_create_zero(device, SL_MEMORY_OPTIMIZER,
                                         sli_optimizer_dtype_of(&optimizer->options), &shape,
                                         &optimizer->state[b * STATE_ARRAYS + i]));
    }
    return SL_OK;
}

sl_status sl_optimizer_create(const sl_optimizer_options *options, sl_parameter_set *set,
                              sl_optimizer **out)
{
    return sli_optimizer_create_shard(options, set, 0, 1, out);
}

sl_status sli_optimizer_create_shard(const sl_optimizer_options *options, sl_parameter_set *set,
                                     int index, int shards, sl_optimizer **out)
{
    *out = NULL;
    sl_optimizer_options filled = sli_optimizer_filled(options);
    SL_TRY(sl_error_context(check_filled(&filled), "sl_optimizer_create: "));
    sl_optimizer *optimizer = calloc(1, sizeof *optimizer);
    if (!optimizer)
        return sli_no_memory("sl_optimizer_create", "an optimizer");
    *optimizer = (sl_optimizer){.options = filled, .set = set, .shard = index, .shards = shards};
    sl_status status = create_state(optimizer);
    if (status != SL_OK)
        sl_optimizer_destroy(&optimizer);
    *out = optimizer;
    return status;
}

void sl_optimizer_destroy(sl_optimizer **optimizer)
{
    if (!optimizer || !*optimizer)
        return;
    for (int i = 0; i < (*optimizer)->bucket_count * STATE_ARRAYS; i++)
        sl_tensor_destroy(&(*optimizer)->state[i]);
    free((*optimizer)->state);
    free((*optimizer)->steps);
    free(*optimizer);
    *optimizer = NULL;
}

/* ---- State ------------------------------------------------------------------------------ */

sl_tensor *sli_optimizer_state(const sl_optimizer *optimizer, int bucket, int array)
{
    return optimizer->state[bucket * STATE_ARRAYS + array];
}

const char *sli_optimizer_array_name(const sl_optimizer_options *options, int array)
{
    if (options->kind == SL_OPTIMIZER_SGD)
        return "momentum_buffer";
    return array == 0 ? "exp_avg" : "exp_avg_sq";
}

int64_t *sli_optimizer_steps(const sl_optimizer *optimizer, int *parameters)
{
    *parameters = optimizer->parameters;
    return optimizer->steps;
}

void sli_optimizer_set_steps(sl_optimizer *optimizer, int64_t steps)
{
    for (int i = 0; i < optimizer->parameters; i++)
        optimizer->steps[i] = steps;
}

void sli_optimizer_copy_steps(sl_optimizer *target, const sl_optimizer *source)
{
    for (int i = 0; i < target->parameters; i++)
        target->steps[i] = source->steps[i];
}

const sl_optimizer_options *sli_optimizer_options(const sl_optimizer *optimizer)
{
    return &optimizer->options;
}

/* ---- Steps ------------------------------------------------------------------------------ */

/* Neighbours in a bucket that take their step together: as a rule, all of the bucket. */
typedef struct bucket_run {
    int bucket;
    int64_t start, count; /* elements of the bucket */
    int64_t steps;        /* that its parameters have taken, with this one */
    float lr, grad_scale, weight_decay;
    const sl_parameter *first; /* which begins at element `first_start` of the bucket */
    int64_t first_start;
} bucket_run;

/* Elements of a bucket's array, from the run's first on. `in_shard`: the array has the elements of
 * the optimizer's shard alone. */
static void *elements_of(const sl_optimizer *optimizer, const bucket_run *run,
                         const sl_tensor *array, bool in_shard)
{
    if (!array)
        return NULL;
    int64_t before = in_shard ? own_shard(optimizer, run->bucket).start : 0;
    return (char *)sl_tensor_data(array) +
           (run->start - before) * (int64_t)sl_dtype_bytes(sl_tensor_dtype(array));
}

static void *state_of(const sl_optimizer *optimizer, const bucket_run *run, int array)
{
    return elements_of(optimizer, run, sli_optimizer_state(optimizer, run->bucket, array), true);
}

static float *values_of(const sl_optimizer *optimizer, const bucket_run *run)
{
    return elements_of(optimizer, run, sl_parameter_set_bucket_values(optimizer->set, run->bucket),
                       false);
}

static const float *grads_of(const sl_optimizer *optimizer, const bucket_run *run)
{
    return elements_of(optimizer, run, sli_parameter_set_stale_grads(optimizer->set, run->bucket),
                       false);
}

static sl_status sgd_run(const sl_optimizer *optimizer, const bucket_run *run)
{
    const sl_optimizer_options *options = &optimizer->options;
    sl_device *device = sl_parameter_set_device(optimizer->set);
    const sli_sgd arguments = {
        .count = run->count,
        .value = values_of(optimizer, run),
        .grad = grads_of(optimizer, run),
        .momentum_buffer = state_of(optimizer, run, 0),
        .grad_scale = run->grad_scale,
        .lr = run->lr,
        .momentum = options->momentum,
        .dampening = options->dampening,
        .weight_decay = run->weight_decay,
        .nesterov = options->nesterov,
        .first = run->steps == 1,
    };
    return sli_device_sgd(device, &arguments);
}

/* For bf16, where a run is of one parameter. A parameter's room and shards begin at multiples of 16
 * elements, and a part's room at the last one before its first element in the whole parameter. */
static sli_rounding rounding_of(const sl_optimizer *optimizer, const bucket_run *run)
{
    uint64_t seed = sli_parameter_set_seed(optimizer->set);
    return (sli_rounding){.key = sli_philox_key_make(seed, SLI_RANDOM_ROUND),
                          .site = run->first->number,
                          .step = (uint32_t)run->steps,
                          .first_group = (run->first->first - sli_parameter_lead(run->first) +
                                          run->start - run->first_start) /
                                         4};
}

static sl_status adamw_run(const sl_optimizer *optimizer, const bucket_run *run)
{
    const sl_optimizer_options *options = &optimizer->options;
    sl_device *device = sl_parameter_set_device(optimizer->set);
    const sli_adamw arguments = {
        .count = run->count,
        .value = values_of(optimizer, run),
        .grad = grads_of(optimizer, run),
        .exp_avg = state_of(optimizer, run, 0),
        .exp_avg_sq = state_of(optimizer, run, 1),
        .bf16 = options->precision == SL_PRECISION_BF16,
        .rounding = rounding_of(optimizer, run),
        .grad_scale = run->grad_scale,
        .lr = run->lr,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .eps = options->eps,
        .weight_decay = run->weight_decay,
        .bias_correction1 = 1 - pow(options->beta1, (double)run->steps),
        .bias_correction2 = 1 - pow(options->beta2, (double)run->steps),
    };
    return sli_device_adamw(device, &arguments);
}

/* Steps the elements of the run that lie in this optimizer's shard. */
static sl_status step_run(const sl_optimizer *optimizer, bucket_run run)
{
    sli_shard shard = own_shard(optimizer, run.bucket);
    int64_t end = run.start + run.count, shard_end = shard.start + shard.count;
    if (shard.start > run.start)
        run.start = shard.start;
    run.count = (shard_end < end ? shard_end : end) - run.start;
    if (run.count <= 0)
        return SL_OK;
    return optimizer->options.kind == SL_OPTIMIZER_SGD ? sgd_run(optimizer, &run)
                                                       : adamw_run(optimizer, &run);
}

static float weight_decay_of(const sl_optimizer *optimizer, const sl_parameter *parameter)
{
    bool is_left_out = optimizer->options.decay == SL_DECAY_MATRICES && parameter->shape.dims < 2;
    return is_left_out ? 0 : optimizer->options.weight_decay;
}

/* Steps a bucket by runs: neighbours that have a gradient, and took as many steps with the same
 * weight decay; each parameter by itself where its number decides the rounding. `steps` counts
 * those of the bucket's parameters. */
static sl_status step_bucket(const sl_optimizer *optimizer, bucket_run next, int64_t *steps)
{
    sl_parameter *const *in;
    int count = sli_parameter_set_bucket(optimizer->set, next.bucket, &in);
    bool alone = optimizer->options.precision == SL_PRECISION_BF16;
    for (int i = 0; i < count;) {
        int first = i;
        bool is_stale = in[first]->grad_is_stale;
        next.steps = steps[first] + 1;
        next.weight_decay = weight_decay_of(optimizer, in[first]);
        next.first = in[first];
        next.first_start = next.start;
        next.count = 0;
        for (; i < count && in[i]->grad_is_stale == is_stale && steps[i] == next.steps - 1 &&
               weight_decay_of(optimizer, in[i]) == next.weight_decay && (i == first || !alone);
             i++)
            next.count += sli_parameter_room(in[i]);
        for (int k = first; k < i && !is_stale; k++)
            steps[k]++;
        if (!is_stale)
            SL_TRY(step_run(optimizer, next));
        next.start += next.count;
    }
    return SL_OK;
}

sl_status sl_optimizer_step(sl_optimizer *optimizer, double lr, double grad_scale)
{
    int64_t *steps = optimizer->steps;
    for (int b = 0; b < optimizer->bucket_count; b++) {
        sl_parameter *const *in;
        if (!sli_parameter_set_stale_grads(optimizer->set, b))
            return sl_error(SL_ERR_INVALID,
                            "sl_optimizer_step: the parameter set was created without gradients");
        SL_TRY(
            step_bucket(optimizer,
                        (bucket_run){.bucket = b, .lr = (float)lr, .grad_scale = (float)grad_scale},
                        steps));
        steps += sli_parameter_set_bucket(optimizer->set, b, &in);
    }
    return SL_OK;
}

/* ---- Learning rates ------------------------------------------------------------------- */

/* torch.optim.lr_scheduler.StepLR's closed form. */
static double step_factor(const sl_lr_schedule *schedule, int64_t epoch)
{
    int64_t period = schedule->step_epochs > 0 ? schedule->step_epochs : 1;
    int64_t decays = epoch / period;
    return schedule->gamma > 0 ? pow(schedule->gamma, (double)decays) : 1;
}

/* From 1 to 0 as x goes from 0 to 1. */
static double falling_factor(sl_lr_kind kind, double x)
{
    const double pi = 3.14159265358979323846, constant = 0.8; /* of WSD's steps */
    if (x >= 1)
        return 0;
    if (kind == SL_LR_LINEAR)
        return 1 - x;
    if (kind == SL_LR_COSINE)
        return 0.5 * (1 + cos(pi * x));
    return x <= constant ? 1 : 1 - sqrt((x - constant) / (1 - constant));
}

static int64_t warmup_steps(const sl_lr_schedule *schedule)
{
    return schedule->warmup_steps > 0
               ? schedule->warmup_steps
               : (int64_t)llround(schedule->warmup_ratio * (double)schedule->total_steps);
}

/* How far the steps behind the warm-up are done; those of WSD from the beginning, as its warm-up is
 * a part of what is constant. */
static double share_done(const sl_lr_schedule *schedule, int64_t step)
{
    int64_t first = schedule->kind == SL_LR_WSD ? 0 : warmup_steps(schedule);
    int64_t length = schedule->total_steps - first;
    return length > 0 ? (double)(step - first) / (double)length : 1;
}

const char *const sl_lr_names[] = {"constant", "step", "linear", "cosine", "wsd", NULL};

double sl_lr_at(const sl_lr_schedule *schedule, int64_t step, int64_t epoch)
{
    double lr = schedule->lr, least = schedule->min_lr;
    int64_t rising = warmup_steps(schedule);
    if (step < rising)
        return lr * (double)(step + 1) / (double)rising;
    if (schedule->kind == SL_LR_CONSTANT)
        return lr;
    if (schedule->kind == SL_LR_STEP)
        return lr * step_factor(schedule, epoch);
    return least + (lr - least) * falling_factor(schedule->kind, share_done(schedule, step));
}
