#include "sluice/profile.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/threads.h"
#include "device/device.h"
#include "nn/loss.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <stdlib.h>

typedef struct profiler {
    const sl_profile_options *options;
    sl_module_profile *profiles;
    int modules;
    sl_tensor *in;             /* of the module at hand */
    sl_tensor *other;          /* stands for what other modules use; NULL: nothing does */
    sl_pass *skips;            /* holds what modules have stashed */
    double *row_losses;        /* NULL: there is no loss */
    sl_parameter_set **owners; /* [modules] of those whose parameters the module at hand uses */
    int64_t terms;
    sli_error_copy error; /* the thread's */
} profiler;

/* When the device has done what is queued. */
static sl_status wait_for_device(const profiler *p, double *seconds)
{
    sli_moment moment = sli_device_moment(p->options->device);
    return sli_device_end_moment(p->options->device, &moment, seconds);
}

/* Adds the seconds since *start, and starts anew. */
static sl_status add_seconds(const profiler *p, double *sum, double *start)
{
    double now;
    SL_TRY(wait_for_device(p, &now));
    *sum += now - *start;
    *start = now;
    return SL_OK;
}

/* ---- The caches ------------------------------------------------------------------------- */

/* As many bytes as the values and gradients of the model have, at most 64 MiB. A GPU's caches are
 * small beside what a module uses, so it has none. */
static sl_status create_other(profiler *p)
{
    const sl_profile_options *options = p->options;
    const int64_t most = (64 << 20) / (int64_t)sizeof(float),
                  count = 2 * sl_module_parameter_elements(options->model);
    sl_shape shape = sl_shape_1d(count < most ? count : most);
    if (!sl_device_has_host_memory(options->device) || count == 0)
        return SL_OK;
    return sl_tensor_create_zero(options->device, SL_MEMORY_WORKSPACE, SL_F32, &shape, &p->other);
}

/* In a step other modules are run between a module's forward and backward, between its halves, and
 * between that and the next forward: its weights, gradients and saved tensors have left the nearest
 * caches. (Measured, bf16 on a core with AMX, emsize 256: a layer takes 15% longer so.) */
static sl_status use_other(const profiler *p)
{
    return p->other ? sli_device_add(p->options->device, sl_tensor_count(p->other),
                                     sl_tensor_f32(p->other), sl_tensor_f32(p->other))
                    : SL_OK;
}

/* ---- One micro-batch through a module --------------------------------------------------- */

/* Call of the loss behind `in`; with `last`, which it takes over. */
static sl_status apply_loss(profiler *p, sl_module *last, const sl_tensor *in, sl_pass *pass,
                            sl_tensor **grad)
{
    const sl_profile_options *options = p->options;
    sl_loss_call call = {.device = options->device,
                         .last = last,
                         .in = in,
                         .targets = options->targets,
                         .scale = p->terms > 0 ? 1.0 / (double)p->terms : 1.0,
                         .row_losses = p->row_losses,
                         .grad_in = grad,
                         .pass = pass};
    return sl_loss_apply(options->loss, &call);
}

/* A gradient for a module that others follow: any values will do. */
static sl_status copy_as_gradient(sl_device *device, const sl_tensor *out, sl_tensor **grad)
{
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, sl_tensor_dtype(out),
                            sl_tensor_shape(out), grad));
    return sl_tensor_copy(*grad, out);
}

/* A pass of the module at hand. */
typedef struct module_run {
    const profiler *profiler;
    sl_pass *pass;
} module_run;

/* Puts on the pass what the module pops. */
static sl_status give_skip(const sli_skip_end *end, void *arg)
{
    const module_run *run = arg;
    const sli_pass_skip *stashed = sli_pass_find_skip(run->profiler->skips, end->name);
    sl_tensor *alias;
    if (!end->pops || !stashed)
        return SL_OK;
    SL_TRY(sl_tensor_alias(stashed->tensor, &alias));
    return sli_pass_put_skip(run->pass, end->name, &alias);
}

/* Takes from the pass what the module has stashed, and puts a gradient of it there. */
static sl_status take_skip(const sli_skip_end *end, void *arg)
{
    const module_run *run = arg;
    sl_pass *skips = run->profiler->skips;
    sli_pass_skip *stashed = sli_pass_find_skip(run->pass, end->name);
    if (end->pops || !stashed || !stashed->tensor)
        return SL_OK;
    SL_TRY(copy_as_gradient(sl_pass_device(run->pass), stashed->tensor, &stashed->grad));
    if (!sli_pass_find_skip(skips, end->name))
        return sli_pass_put_skip(skips, end->name, &stashed->tensor);
    sl_tensor_destroy(&stashed->tensor); /* of an earlier round */
    return SL_OK;
}

/* The module that the loss takes over has no forward of its own. */
static sl_status run_with_loss(profiler *p, sl_module *module, bool halves, sl_pass *pass,
                               sl_module_profile *times)
{
    sl_tensor *grad = NULL;
    double start;
    SL_TRY(use_other(p));
    SL_TRY(wait_for_device(p, &start));
    SL_TRY(apply_loss(p, module, p->in, halves ? pass : NULL, &grad));
    sl_tensor_destroy(&grad);
    SL_TRY(add_seconds(p, halves ? &times->backward_input : &times->backward, &start));
    if (!halves)
        return SL_OK;
    SL_TRY(use_other(p));
    SL_TRY(wait_for_device(p, &start));
    SL_TRY(sli_loss_backward_weight(p->options->loss, module, pass));
    return add_seconds(p, &times->backward_weight, &start);
}

static sl_status run_backward(profiler *p, int index, bool halves, sl_pass *pass, sl_tensor *grad,
                              sl_module_profile *times)
{
    sl_module *module = sl_module_child(p->options->model, index);
    sl_tensor *grad_in = NULL, **wanted = index > 0 ? &grad_in : NULL;
    double start;
    SL_TRY(wait_for_device(p, &start));
    SL_TRY(halves ? sli_module_backward_input(module, pass, grad, wanted)
                  : sl_module_backward(module, pass, grad, wanted));
    sl_tensor_destroy(&grad_in);
    SL_TRY(add_seconds(p, halves ? &times->backward_input : &times->backward, &start));
    if (!halves)
        return SL_OK;
    SL_TRY(use_other(p));
    SL_TRY(wait_for_device(p, &start));
    SL_TRY(sli_module_backward_weight(module, pass));
    return add_seconds(p, &times->backward_weight, &start);
}

/* Adds what the loss behind the last module takes to its backward. */
static sl_status run_module(profiler *p, int index, bool halves, sl_pass *pass, sl_tensor **out,
                            sl_module_profile *times)
{
    const sl_profile_options *options = p->options;
    sl_module *module = sl_module_child(options->model, index);
    module_run run = {p, pass};
    sl_tensor *grad = NULL;
    sl_tensor_destroy(out);
    SL_TRY(sli_module_for_each_skip_end(module, give_skip, &run));
    double start;
    SL_TRY(use_other(p));
    SL_TRY(wait_for_device(p, &start));
    SL_TRY(sl_module_forward(module, pass, p->in, out));
    SL_TRY(add_seconds(p, &times->forward, &start));
    SL_TRY(sli_module_for_each_skip_end(module, take_skip, &run));
    bool has_loss = options->loss && index + 1 == p->modules;
    if (!has_loss) /* else its backward follows at once */
        SL_TRY(use_other(p));
    SL_TRY(wait_for_device(p, &start));
    sl_status status;
    SL_TRY_OR_FAIL(has_loss ? apply_loss(p, NULL, *out, NULL, &grad)
                            : copy_as_gradient(options->device, *out, &grad));
    if (has_loss)
        SL_TRY_OR_FAIL(add_seconds(p, halves ? &times->backward_input : &times->backward, &start));
    status = run_backward(p, index, halves, pass, grad, times);

fail:
    sl_tensor_destroy(&grad);
    return status;
}

/* ---- A module --------------------------------------------------------------------------- */

static bool takes_over(const profiler *p, int index)
{
    return p->options->loss && index + 1 == p->modules &&
           sli_loss_takes_over(p->options->loss, sl_module_child(p->options->model, index));
}

/* Once with backward at once and once in halves. */
static sl_status run_round(profiler *p, int index, sl_tensor **out, sl_module_profile *times)
{
    const sl_profile_options *options = p->options;
    const sl_pass_options pass_options = {.device = options->device,
                                          .training = true,
                                          .keep = true,
                                          .precision = options->precision,
                                          .seed = 1};
    sl_pass *pass = NULL;
    sl_status status = SL_OK;
    for (int halves = 0; halves < 2; halves++) {
        SL_TRY_OR_FAIL(sl_pass_create(&pass_options, &pass));
        for (int i = 0; i < options->input_count; i++)
            SL_TRY_OR_FAIL(
                sli_pass_add_input(pass, options->inputs[i].name, options->inputs[i].tensor));
        SL_TRY_OR_FAIL(
            takes_over(p, index)
                ? run_with_loss(p, sl_module_child(options->model, index), halves, pass, times)
                : run_module(p, index, halves, pass, out, times));
        sl_pass_destroy(&pass);
    }
    times->forward /= 2;

fail:
    sl_pass_destroy(&pass);
    return status;
}

enum { TIMES = 4 };

static double *time_of(sl_module_profile *profile, int which)
{
    double *const times[TIMES] = {&profile->forward, &profile->backward, &profile->backward_input,
                                  &profile->backward_weight};
    return times[which];
}

/* Medians: few of a step's many actions reach the shortest time. `room` has `rounds` values. */
static void keep_medians(sl_module_profile *profiles, int rounds, double *room,
                         sl_module_profile *out)
{
    for (int which = 0; which < TIMES; which++) {
        for (int round = 0; round < rounds; round++)
            room[round] = *time_of(&profiles[round], which);
        *time_of(out, which) = sli_median_seconds(room, rounds);
    }
}

/* After a first round, which is not timed. */
static sl_status run_rounds(profiler *p, int index, int rounds, sl_tensor **out)
{
    sl_module_profile *times = calloc((size_t)rounds + 1, sizeof *times);
    double *room = calloc((size_t)rounds, sizeof *room);
    sl_status status = SL_OK;
    if (!times || !room)
        SL_TRY_OR_FAIL(sli_no_memory("sl_profile_modules", "%d rounds", rounds));
    for (int round = 0; round <= rounds; round++)
        SL_TRY_OR_FAIL(run_round(p, index, out, &times[round]));
    keep_medians(times + 1, rounds, room, &p->profiles[index]);
fail:
    free(room);
    free(times);
    return status;
}

static sl_status count_skip_end(const sli_skip_end *end, void *count)
{
    (void)end;
    ++*(int *)count;
    return SL_OK;
}

/* A module that gives what it takes, and is like the one before it, which does so as well. */
static bool is_like_the_one_before(const profiler *p, int index)
{
    const sl_shape *in = sl_tensor_shape(p->in);
    sl_shape out;
    bool is_last = index + 1 == p->modules;
    int ends = 0;                                   /* those of skip connections have to run */
    if (index < 2 || (is_last && p->options->loss)) /* the first one gives no gradient on */
        return false;
    const sl_module *one = sl_module_child(p->options->model, index - 1);
    const sl_module *other = sl_module_child(p->options->model, index);
    (void)sli_module_for_each_skip_end(other, count_skip_end, &ends);
    return ends == 0 && sl_module_type(one) == sl_module_type(other) &&
           sl_module_parameter_elements(one) == sl_module_parameter_elements(other) &&
           one->is_in_evaluation == other->is_in_evaluation &&
           sl_module_output_shape(one, in, &out) == SL_OK && sl_shape_equal(in, &out) &&
           sl_module_output_shape(other, in, &out) == SL_OK && sl_shape_equal(in, &out) &&
           sl_module_flops(one, in) == sl_module_flops(other, in) &&
           sl_module_saved_bytes(one, in) == sl_module_saved_bytes(other, in) &&
           sl_module_deferred_bytes(one, in) == sl_module_deferred_bytes(other, in); /* frozen: 0 */
}

typedef struct tie_search {
    const profiler *profiler;
    int index; /* of the module whose owners are wanted */
} tie_search;

/* Gives values to the module whose parameter `tied` uses, if the module at hand has `tied`. */
static sl_status create_owner(sl_parameter *tied, void *arg)
{
    const tie_search *search = arg;
    const sl_profile_options *options = search->profiler->options;
    int owner = sli_module_index_in(options->model, tied->tied_to->module);
    sl_parameter_set **set = &search->profiler->owners[owner];
    if (sli_module_index_in(options->model, tied->module) != search->index ||
        owner == search->index || *set)
        return SL_OK;
    return sl_parameter_set_create(options->model, owner, 1,
                                   &(sl_parameter_set_options){.device = options->device,
                                                               .precision = options->precision},
                                   set);
}

static void destroy_owners(const profiler *p)
{
    for (int i = 0; i < p->modules; i++)
        sl_parameter_set_destroy(&p->owners[i]);
}

/* Leaves the module's output as the next one's input. */
static sl_status profile_module(profiler *p, int index)
{
    const sl_profile_options *options = p->options;
    sl_parameter_set *parameters = NULL;
    sl_tensor *out = NULL;
    int rounds = options->rounds > 0 ? options->rounds : SL_PROFILE_ROUNDS;
    sl_status status;
    SL_TRY_OR_FAIL(sli_module_for_each_tie(options->model, create_owner, &(tie_search){p, index}));
    SL_TRY_OR_FAIL(
        sl_parameter_set_create(options->model, index, 1,
                                &(sl_parameter_set_options){.device = options->device,
                                                            .precision = options->precision},
                                &parameters));
    status = run_rounds(p, index, rounds, &out);

fail:
    sl_parameter_set_destroy(&parameters);
    destroy_owners(p);
    if (out) {
        p->profiles[index].output_bytes = (double)sli_tensor_bytes(out);
        sl_tensor_destroy(&p->in);
        p->in = out;
    }
    return status;
}

/* ---- All -------------------------------------------------------------------------------- */

static sl_status profile_all(profiler *p)
{
    const sl_profile_options *options = p->options;
    if (options->loss) {
        SL_TRY(sl_loss_terms(options->loss, options->targets, &p->terms));
        int64_t rows = sli_loss_rows(options->loss, options->targets);
        p->row_losses = calloc((size_t)rows + 1, sizeof *p->row_losses);
        if (!p->row_losses)
            return sli_no_memory("sl_profile_modules", "the rows' losses");
    }
    p->owners = calloc((size_t)p->modules + 1, sizeof *p->owners);
    if (!p->owners)
        return sli_no_memory("sl_profile_modules", "%d modules", p->modules);
    SL_TRY(sl_tensor_alias(options->input, &p->in));
    SL_TRY(sl_pass_create(&(sl_pass_options){.device = options->device, .keep = true}, &p->skips));
    SL_TRY(create_other(p));
    for (int i = 0; i < p->modules; i++)
        if (is_like_the_one_before(p, i))
            p->profiles[i] = p->profiles[i - 1];
        else
            SL_TRY(sl_error_context(profile_module(p, i), "sl_profile_modules: "));
    return SL_OK;
}

static void run_profiler(void *arg)
{
    profiler *p = arg;
    sli_error_save(&p->error, profile_all(p));
    sl_tensor_destroy(&p->in);
    sl_tensor_destroy(&p->other);
    sl_pass_destroy(&p->skips);
    free(p->row_losses);
    free(p->owners);
    sli_device_empty_cache(p->options->device);
}

sl_status sl_profile_modules(const sl_profile_options *options, sl_module_profile *profiles)
{
    SLI_CHECK_NOT_NULL(options);
    SLI_CHECK_NOT_NULL(profiles);
    SLI_CHECK_NOT_NULL(options->device);
    SLI_CHECK_NOT_NULL(options->input);
    if (!options->model || !sli_module_is_sequential(options->model))
        return sl_error(SL_ERR_INVALID, "sl_profile_modules: the model must be a sequential");
    if (options->loss && !options->targets)
        return sl_error(SL_ERR_INVALID, "sl_profile_modules: a loss needs targets");
    SL_TRY(sli_inputs_check(__func__, options->inputs, options->input_count));
    profiler p = {.options = options,
                  .profiles = profiles,
                  .modules = sl_module_child_count(options->model)};
    for (int i = 0; i < p.modules; i++)
        profiles[i] = (sl_module_profile){0};
    sli_worker *worker;
    SL_TRY(sli_worker_create(sli_device_bind_thread, options->device, &worker));
    sli_worker_start(worker, run_profiler, &p);
    sli_worker_wait(worker);
    sli_worker_destroy(&worker);
    return sli_error_restore(&p.error);
}
