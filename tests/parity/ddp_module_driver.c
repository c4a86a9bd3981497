/* Training steps of replicas of a module whose layers may go unused, for test_ddp.py:
 *
 *   ddp_module_driver key=value... < records > records
 *
 * The module is two linear layers; its output is the sum of those that a forward uses. `plan` says
 * what a step does, of several with commas each in its turn: `s` and `n` are a forward with and
 * without sync, a digit is the backward of that forward, counted from 0. Reads every parameter
 * under its name, and for forward I of step K on rank R the input `x.K.I.R`, the output's gradient
 * `g.K.I.R`, and `uses.K.I.R`, a bit for each layer. Writes `value.K.R.NAME` after each step of
 * each rank's own optimizer. */
#include "driver.h"
#include "nn/module.h"

#include "sluice/ddp.h"
#include "sluice/layers.h"
#include "sluice/optim.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, MAX_FORWARDS = 4 };

/* ---- The module ------------------------------------------------------------------------- */

typedef struct fork_state {
    int uses; /* of the next forward, or backward */
} fork_state;

static void add(sl_tensor *to, const sl_tensor *source)
{
    for (int64_t i = 0; i < sl_tensor_count(to); i++)
        sl_tensor_f32(to)[i] += sl_tensor_f32(source)[i];
}

static sl_status fork_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                              sl_tensor **out)
{
    const fork_state *state = sl_module_state(module);
    for (int i = 0; i < LAYERS; i++) {
        sl_tensor *more;
        if (!(state->uses >> i & 1))
            continue;
        SL_TRY(sl_module_forward(sl_module_child(module, i), pass, in, &more));
        if (*out)
            add(*out, more);
        else
            SL_TRY(sl_tensor_alias(more, out));
        sl_tensor_destroy(&more);
    }
    return SL_OK;
}

static sl_status fork_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                               sl_tensor **grad_in)
{
    const fork_state *state = sl_module_state(module);
    for (int i = LAYERS - 1; i >= 0; i--)
        if (state->uses >> i & 1)
            SL_TRY(sl_module_backward(sl_module_child(module, i), pass, grad_out, NULL));
    return grad_in ? sl_error(SL_ERR_UNSUPPORTED, "the input is data") : SL_OK;
}

static const sl_module_ops fork_ops = {.type = "Fork",
                                       .forward = fork_forward,
                                       .backward = fork_backward};

static sl_module *create_fork(int64_t width)
{
    static const char *const names[LAYERS] = {"a", "b"};
    sl_module *module, *layer;
    records_check(sl_module_create(&fork_ops, calloc(1, sizeof(fork_state)), &module));
    for (int i = 0; i < LAYERS; i++) {
        records_check(sl_linear_create(width, width, false, &layer));
        records_check(sli_module_add_child(module, names[i], layer));
    }
    return module;
}

/* ---- A rank ----------------------------------------------------------------------------- */

typedef struct replica {
    const job *job;
    int rank;
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
    sl_ddp *ddp;
    sl_optimizer *optimizer;
} replica;

static void open_replica(replica *r, sl_group *group)
{
    char **o = r->job->options;
    records_check(sl_device_create_cpu(1, &r->device));
    r->module = create_fork(option_count(o, "width"));
    const sl_parameter_set_options placement = {.device = r->device,
                                                .seed = (uint64_t)r->rank,
                                                .first_bucket_bytes = 1,
                                                .bucket_bytes = option_count(o, "bucket_bytes")};
    records_check(sl_parameter_set_create(r->module, 0, 0, &placement, &r->set));
    for (int i = 0; i < sl_parameter_set_count(r->set) && r->rank == 0; i++) {
        const sl_parameter *parameter = sl_parameter_set_get(r->set, i);
        const record *value = records_find(r->job->given, sl_parameter_name(parameter));
        records_check(sl_tensor_write(sl_parameter_value(parameter), value->data));
    }
    const sl_ddp_options replication = {.group = group,
                                        .module = r->module,
                                        .parameters = r->set,
                                        .find_unused_parameters =
                                            option_count(o, "find_unused") != 0};
    records_check(sl_ddp_create(&replication, &r->ddp));
    const sl_optimizer_options method = {.kind = option_is(o, "optimizer", "adamw")
                                                     ? SL_OPTIMIZER_ADAMW
                                                     : SL_OPTIMIZER_SGD,
                                         .momentum = (float)option_number(o, "momentum"),
                                         .dampening = (float)option_number(o, "dampening"),
                                         .weight_decay = (float)option_number(o, "weight_decay")};
    records_check(sl_optimizer_create(&method, r->set, &r->optimizer));
}

static void close_replica(replica *r)
{
    sl_optimizer_destroy(&r->optimizer);
    sl_ddp_destroy(&r->ddp);
    sl_parameter_set_destroy(&r->set);
    sl_module_destroy(&r->module);
    sl_device_destroy(&r->device);
}

static const record *find(const replica *r, const char *what, int step, int forward)
{
    char name[RECORD_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%d.%d.%d", what, step, forward, r->rank);
    const record *found = records_find(r->job->given, name);
    if (!found)
        records_check(sl_error(SL_ERR_INVALID, "no record %s", name));
    return found;
}

static sl_tensor *tensor(const replica *r, const record *from)
{
    sl_tensor *made;
    records_check(sl_tensor_create(r->device, SL_MEMORY_ACTIVATIONS, SL_F32, &from->shape, &made));
    records_check(sl_tensor_write(made, from->data));
    return made;
}

static void use(const replica *r, int step, int forward)
{
    fork_state *state = sl_module_state(r->module);
    state->uses = *(const int32_t *)find(r, "uses", step, forward)->data;
}

static void go_forward(replica *r, int step, int forward, sl_pass **pass)
{
    sl_tensor *in = tensor(r, find(r, "x", step, forward)), *out;
    use(r, step, forward);
    records_check(sl_pass_create(&(sl_pass_options){.device = r->device, .keep = true}, pass));
    records_check(sl_ddp_forward(r->ddp, *pass, in, &out));
    sl_tensor_destroy(&in);
    sl_tensor_destroy(&out);
}

static void go_backward(replica *r, int step, int forward, sl_pass **pass)
{
    sl_tensor *grad = tensor(r, find(r, "g", step, forward));
    use(r, step, forward);
    records_check(sl_ddp_backward(r->ddp, *pass, grad, NULL));
    sl_tensor_destroy(&grad);
    sl_pass_destroy(pass);
}

static void write_values(const replica *r, int step)
{
    pthread_mutex_lock(r->job->output);
    for (int i = 0; i < sl_parameter_set_count(r->set); i++) {
        const sl_parameter *parameter = sl_parameter_set_get(r->set, i);
        char name[RECORD_NAME_BYTES];
        snprintf(name, sizeof name, "value.%d.%d.%s", step, r->rank, sl_parameter_name(parameter));
        records_write_tensor(stdout, name, sl_parameter_value(parameter));
    }
    pthread_mutex_unlock(r->job->output);
}

/* Where the step's plan begins in the option. */
static const char *plan_of(const replica *r, int step)
{
    const char *plans = option_text(r->job->options, "plan"), *next = plans;
    for (; step > 0; step--) {
        const char *comma = strchr(next, ',');
        next = comma ? comma + 1 : plans;
    }
    return next;
}

static void train_step(replica *r, int step)
{
    sl_pass *passes[MAX_FORWARDS];
    int forwards = 0;
    sl_parameter_set_zero_grad(r->set);
    for (const char *next = plan_of(r, step); *next && *next != ','; next++) {
        if (*next >= '0' && *next < '0' + MAX_FORWARDS) {
            go_backward(r, step, *next - '0', &passes[*next - '0']);
            continue;
        }
        sl_ddp_set_sync(r->ddp, *next == 's');
        go_forward(r, step, forwards, &passes[forwards]);
        forwards++;
    }
    records_check(sl_optimizer_step(r->optimizer, option_number(r->job->options, "lr"), 1));
    write_values(r, step);
}

static sl_status run_rank(sl_group *group, void *arg)
{
    replica r = {.job = arg, .rank = sl_group_rank(group)};
    open_replica(&r, group);
    int steps = (int)option_number(r.job->options, "steps");
    for (int step = 0; step < steps; step++)
        train_step(&r, step);
    close_replica(&r);
    return SL_OK;
}

int main(int argc, char **argv)
{
    return job_run(argv + 1, run_rank);
}
