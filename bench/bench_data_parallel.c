/* What data parallelism costs.
 *
 *   bench_data_parallel [EMSIZE NLAYERS NHEAD [STEPS]]        default: 1024 4 16 6
 *
 * DDP, hidden: two replicas on one core each, rows of the batch shared evenly. The figure is the
 * part of a step in which this rank has its own gradients and waits for the exchange: what backward
 * does not hide. With one core a replica, the exchange takes its time from backward's core where it
 * is hidden, so the same steps without any exchange are timed beside it: the whole cost of the
 * exchange.
 *
 * DDP, scaling: two replicas on one core each against one replica on the same two cores, the same
 * rows in all, in turn: the ratio of tokens per second.
 *
 * DataParallel: one batch on one device with all cores, and on two devices with a core each, in
 * turn: forward, loss on the gathered outputs, backward, update. Of a step with two devices, how
 * much goes into copying weights, which a forward of one row on each device shows (it copies as
 * much and computes nearly nothing); and the most bytes that each device had in use. */
#include "sluice/data_parallel.h"
#include "sluice/ddp.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEVICES = 2, REPLICAS = 2, MAX_STEPS = 64 };

static sl_tensor *random_ids(sl_device *device, int64_t rows, int64_t bptt, int64_t ntokens,
                             uint32_t state)
{
    sl_tensor *ids;
    sl_shape shape = sl_shape_2d(rows, bptt);
    bench_check(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_I32, &shape, &ids));
    for (int64_t i = 0; i < sl_tensor_count(ids); i++) {
        state = state * 1664525u + 1013904223u;
        sl_tensor_i32(ids)[i] = (int32_t)((state >> 8) % (uint32_t)ntokens);
    }
    return ids;
}

/* ---- DDP -------------------------------------------------------------------------------- */

typedef struct replica {
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_ddp *ddp; /* NULL: alone */
    sl_tensor *input, *targets;
    uint64_t step;
} replica;

static replica open_replica(const bench_setup *setup, sl_device *device, int64_t rows)
{
    replica r = {0};
    bench_check(sl_transformer_lm_create(&setup->model, &r.model));
    bench_check(sl_cross_entropy_create(&r.loss));
    sl_pipe_options options = {.model = r.model,
                               .loss = r.loss,
                               .stages = 1,
                               .devices = &device,
                               .recompute = SL_RECOMPUTE_NEVER,
                               .seed = 1};
    bench_check(sl_pipe_create(&options, &r.pipe));
    bench_check(
        sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = r.pipe}, &r.optimizer));
    r.input = random_ids(device, rows, setup->bptt, setup->model.ntokens, 1);
    r.targets = random_ids(device, rows, setup->bptt, setup->model.ntokens, 2);
    return r;
}

static void close_replica(replica *r)
{
    sl_ddp_destroy(&r->ddp);
    sl_tensor_destroy(&r->input);
    sl_tensor_destroy(&r->targets);
    sl_pipe_optimizer_destroy(&r->optimizer);
    sl_pipe_destroy(&r->pipe);
    sl_loss_destroy(&r->loss);
    sl_module_destroy(&r->model);
}

/* zero_grad, forward, backward with or without the exchange, clip, update. */
static sl_status train_step(replica *r, bool syncs)
{
    sl_pipe_batch batch = {.input = r->input, .targets = r->targets, .step = r->step++};
    double loss;
    sl_pipe_zero_grad(r->pipe);
    if (r->ddp)
        sl_ddp_set_sync(r->ddp, syncs);
    SL_TRY(r->ddp ? sl_ddp_train(r->ddp, &batch, &loss) : sl_pipe_train(r->pipe, &batch, &loss));
    return sl_pipe_optimizer_step(r->optimizer, 0.01, 0.5, NULL);
}

typedef struct figures {
    double synced[MAX_STEPS], alone[MAX_STEPS]; /* seconds of steps with and without exchange */
    double waited[MAX_STEPS], reduced[MAX_STEPS];
    double one[MAX_STEPS]; /* seconds of one replica's steps on all cores */
} figures;

typedef struct job {
    const bench_setup *setup;
    sl_device_list *devices;
    replica *one; /* on all cores; rank 0 steps it while the others sleep */
    int steps;
    figures *out; /* rank 0's */
} job;

/* Ranks start together and the slower one counts. */
static sl_status timed_step(sl_group *group, replica *r, bool syncs, double *seconds)
{
    SL_TRY(sl_group_barrier(group, NULL));
    double start = bench_now();
    SL_TRY(train_step(r, syncs));
    SL_TRY(sl_group_barrier(group, NULL));
    *seconds = bench_now() - start;
    return SL_OK;
}

static sl_status step_one(sl_group *group, const job *all, double *seconds)
{
    double start = bench_now();
    if (sl_group_rank(group) == 0)
        SL_TRY(train_step(all->one, false));
    *seconds = bench_now() - start;
    return SL_OK;
}

static sl_status run_steps(sl_group *group, const job *all, replica *r)
{
    figures own;
    SL_TRY(train_step(r, true));
    SL_TRY(step_one(group, all, &own.one[0]));
    for (int i = 0; i < all->steps; i++) {
        SL_TRY(timed_step(group, r, true, &own.synced[i]));
        own.waited[i] = sl_ddp_get_log(r->ddp)->wait_seconds;
        own.reduced[i] = sl_ddp_get_log(r->ddp)->reduce_seconds;
        SL_TRY(timed_step(group, r, false, &own.alone[i]));
        SL_TRY(step_one(group, all, &own.one[i]));
    }
    if (sl_group_rank(group) == 0)
        *all->out = own;
    return SL_OK;
}

static sl_status run_rank(sl_group *group, void *arg)
{
    const job *all = arg;
    sl_device *device = sl_device_list_get(all->devices, sl_group_rank(group));
    replica r = open_replica(all->setup, device, all->setup->batch / REPLICAS);
    sl_status status = sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = r.pipe}, &r.ddp);
    if (status == SL_OK)
        status = run_steps(group, all, &r);
    close_replica(&r);
    return status;
}

static figures measure(const bench_setup *setup, int steps)
{
    figures out;
    sl_device_list *whole;
    job all = {.setup = setup, .steps = steps, .out = &out};
    bench_check(sl_device_list_create("cpu:0,cpu:1", &all.devices, NULL));
    bench_check(sl_device_list_create("cpu", &whole, NULL));
    replica one = open_replica(setup, sl_device_list_get(whole, 0), setup->batch);
    all.one = &one;
    bench_check(sl_spawn(run_rank, &all, REPLICAS, NULL));
    close_replica(&one);
    sl_device_list_destroy(&whole);
    sl_device_list_destroy(&all.devices);
    return out;
}

static void report(figures *two, int steps)
{
    double synced = bench_median(two->synced, steps), alone = bench_median(two->alone, steps);
    double waited = bench_median(two->waited, steps), reduced = bench_median(two->reduced, steps);
    double one = bench_median(two->one, steps);
    bench_heading(
        "| DDP | a step | exchange | of it not hidden | of the step | without exchange | ratio of "
        "speeds |");
    printf("| `sl_ddp`, %d ranks x 1 core | %.0f ms | %.0f ms | %.0f ms | %.1f%% | %.0f ms | %.3f "
           "|\n\n",
           REPLICAS, 1e3 * synced, 1e3 * reduced, 1e3 * waited, 100 * waited / synced, 1e3 * alone,
           one / synced);
}

/* ---- DataParallel ----------------------------------------------------------------------- */

typedef struct trainer {
    sl_device_list *list;
    sl_module *model;
    sl_loss *loss;
    sl_data_parallel *parallel;
    sl_optimizer *optimizer;
    sl_tensor *input, *targets, *two_rows;
    double *row_losses;
    uint64_t step;
} trainer;

static sl_status create_model(void *arg, sl_module **out)
{
    return sl_transformer_lm_create(arg, out);
}

static trainer open_trainer(bench_setup *setup, const char *names)
{
    trainer t = {0};
    sl_device *devices[DEVICES];
    bench_check(sl_device_list_create(names, &t.list, NULL));
    for (int i = 0; i < sl_device_list_count(t.list); i++)
        devices[i] = sl_device_list_get(t.list, i);
    bench_check(create_model(&setup->model, &t.model));
    bench_check(sl_cross_entropy_create(&t.loss));
    sl_data_parallel_options options = {.module = t.model,
                                        .replicate = create_model,
                                        .arg = &setup->model,
                                        .devices = devices,
                                        .device_count = sl_device_list_count(t.list),
                                        .seed = 1};
    bench_check(sl_data_parallel_create(&options, &t.parallel));
    bench_check(sl_optimizer_create(&(sl_optimizer_options){.kind = SL_OPTIMIZER_SGD},
                                    sl_data_parallel_parameters(t.parallel), &t.optimizer));
    t.input = random_ids(devices[0], setup->batch, setup->bptt, setup->model.ntokens, 1);
    t.targets = random_ids(devices[0], setup->batch, setup->bptt, setup->model.ntokens, 1);
    t.two_rows = random_ids(devices[0], DEVICES, 1, setup->model.ntokens, 1);
    t.row_losses = calloc((size_t)(setup->batch * setup->bptt), sizeof *t.row_losses);
    if (!t.row_losses)
        bench_check(sl_error(SL_ERR_MEMORY, "no memory for the losses"));
    return t;
}

static void close_trainer(trainer *t)
{
    free(t->row_losses);
    sl_tensor_destroy(&t->input);
    sl_tensor_destroy(&t->targets);
    sl_tensor_destroy(&t->two_rows);
    sl_optimizer_destroy(&t->optimizer);
    sl_data_parallel_destroy(&t->parallel);
    sl_loss_destroy(&t->loss);
    sl_module_destroy(&t->model);
    sl_device_list_destroy(&t->list);
}

static double train_module(trainer *t)
{
    double start = bench_now();
    sl_tensor *output, *grad = NULL;
    sl_pass_options pass = {.training = true, .keep = true, .seed = 1, .step = t->step++};
    sl_parameter_set_zero_grad(sl_data_parallel_parameters(t->parallel));
    bench_check(sl_data_parallel_forward(t->parallel, &pass, t->input, &output));
    int64_t terms;
    bench_check(sl_loss_terms(t->loss, t->targets, &terms));
    sl_loss_call call = {.device = sl_tensor_device(output),
                         .in = output,
                         .targets = t->targets,
                         .scale = 1.0 / (double)terms,
                         .row_losses = t->row_losses,
                         .grad_in = &grad};
    bench_check(sl_loss_apply(t->loss, &call));
    bench_check(sl_data_parallel_backward(t->parallel, grad, NULL));
    bench_check(sl_optimizer_step(t->optimizer, 0.01, 1));
    sl_tensor_destroy(&output);
    sl_tensor_destroy(&grad);
    return bench_now() - start;
}

/* A forward of one row of one position a device. */
static double copy_weights(trainer *t)
{
    double start = bench_now();
    sl_tensor *output;
    bench_check(sl_data_parallel_forward(t->parallel, &(sl_pass_options){0}, t->two_rows, &output));
    sl_tensor_destroy(&output);
    return bench_now() - start;
}

static double peak_mib(const trainer *t, int device)
{
    sl_memory_stats stats;
    sl_device_memory(sl_device_list_get(t->list, device), &stats);
    return (double)stats.peak_total_bytes / (1 << 20);
}

static void compare_devices(bench_setup *setup, int steps)
{
    double alone[MAX_STEPS], together[MAX_STEPS], copies[MAX_STEPS];
    trainer one = open_trainer(setup, "cpu"), two = open_trainer(setup, "cpu:0,cpu:1");
    train_module(&one);
    train_module(&two);
    for (int i = 0; i < steps; i++) {
        alone[i] = train_module(&one);
        together[i] = train_module(&two);
        copies[i] = copy_weights(&two);
    }
    double single = bench_median(alone, steps), both = bench_median(together, steps);
    double copy = bench_median(copies, steps);
    bench_heading(
        "| DataParallel | a step | copies of weights, at most | peak of the first device | of the "
        "second | ratio of speeds |");
    printf("| `sl_data_parallel`, 2 devices x 1 core | %.0f ms | %.0f ms | %.0f MiB | %.0f MiB | "
           "%.3f |\n",
           1e3 * both, 1e3 * copy, peak_mib(&two, 0), peak_mib(&two, 1), single / both);
    close_trainer(&one);
    close_trainer(&two);
}

int main(int argc, char **argv)
{
    long emsize = argc > 3 ? strtol(argv[1], NULL, 10) : 1024;
    long nlayers = argc > 3 ? strtol(argv[2], NULL, 10) : 4;
    long nhead = argc > 3 ? strtol(argv[3], NULL, 10) : 16;
    long steps = argc > 4 ? strtol(argv[4], NULL, 10) : 6;
    if ((argc > 1 && argc < 4) || steps < 1 || steps > MAX_STEPS) {
        fprintf(stderr,
                "usage: bench_data_parallel [EMSIZE NLAYERS NHEAD [STEPS]], STEPS 1 to %d\n",
                MAX_STEPS);
        return 2;
    }
    bench_setup setup = bench_setup_lm(emsize, nlayers, nhead);
    figures two = measure(&setup, (int)steps);
    report(&two, (int)steps);
    compare_devices(&setup, (int)steps);
    return 0;
}
