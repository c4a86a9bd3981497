/* What DataParallel costs beside the same module on one device.
 *
 *   bench_data_parallel [EMSIZE NLAYERS NHEAD [STEPS]]        default: 1024 4 16 6
 *
 * One batch on one device with all cores, and on two devices with a core each, in turn: forward,
 * loss on the gathered outputs, backward, update. Of a step with two devices, how much goes into
 * copying weights, which a forward of one row on each device shows (it copies as much and computes
 * nearly nothing); and the most bytes that each device had in use. */
#include "sluice/data_parallel.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEVICES = 2, MAX_STEPS = 64 };

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

static sl_tensor *random_ids(sl_device *device, int64_t rows, int64_t bptt, int64_t ntokens)
{
    sl_tensor *ids;
    sl_shape shape = sl_shape_2d(rows, bptt);
    uint32_t state = 1;
    bench_check(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_I32, &shape, &ids));
    for (int64_t i = 0; i < sl_tensor_count(ids); i++) {
        state = state * 1664525u + 1013904223u;
        sl_tensor_i32(ids)[i] = (int32_t)((state >> 8) % (uint32_t)ntokens);
    }
    return ids;
}

static trainer open_trainer(bench_setup *setup, const char *names)
{
    trainer at = {0};
    sl_device *devices[DEVICES];
    bench_check(sl_device_list_create(names, &at.list, NULL));
    for (int i = 0; i < sl_device_list_count(at.list); i++)
        devices[i] = sl_device_list_get(at.list, i);
    bench_check(create_model(&setup->model, &at.model));
    bench_check(sl_cross_entropy_create(&at.loss));
    sl_data_parallel_options options = {.module = at.model,
                                        .replicate = create_model,
                                        .arg = &setup->model,
                                        .devices = devices,
                                        .device_count = sl_device_list_count(at.list),
                                        .seed = 1};
    bench_check(sl_data_parallel_create(&options, &at.parallel));
    bench_check(sl_optimizer_create(&(sl_optimizer_options){.kind = SL_OPTIMIZER_SGD},
                                    sl_data_parallel_parameters(at.parallel), &at.optimizer));
    at.input = random_ids(devices[0], setup->batch, setup->bptt, setup->model.ntokens);
    at.targets = random_ids(devices[0], setup->batch, setup->bptt, setup->model.ntokens);
    at.two_rows = random_ids(devices[0], DEVICES, 1, setup->model.ntokens);
    at.row_losses = calloc((size_t)(setup->batch * setup->bptt), sizeof *at.row_losses);
    if (!at.row_losses)
        bench_check(sl_error(SL_ERR_MEMORY, "no memory for the losses"));
    return at;
}

static void close_trainer(trainer *at)
{
    free(at->row_losses);
    sl_tensor_destroy(&at->input);
    sl_tensor_destroy(&at->targets);
    sl_tensor_destroy(&at->two_rows);
    sl_optimizer_destroy(&at->optimizer);
    sl_data_parallel_destroy(&at->parallel);
    sl_loss_destroy(&at->loss);
    sl_module_destroy(&at->model);
    sl_device_list_destroy(&at->list);
}

static double train_step(trainer *at)
{
    double start = bench_now();
    sl_tensor *output, *grad;
    sl_pass_options pass = {.training = true, .keep = true, .seed = 1, .step = at->step++};
    sl_parameter_set_zero_grad(sl_data_parallel_parameters(at->parallel));
    bench_check(sl_data_parallel_forward(at->parallel, &pass, at->input, &output));
    int64_t terms;
    bench_check(sl_loss_terms(at->loss, at->targets, &terms));
    sl_loss_call call = {.device = sl_tensor_device(output),
                         .in = output,
                         .targets = at->targets,
                         .scale = 1.0 / (double)terms,
                         .row_losses = at->row_losses,
                         .grad_in = &grad};
    bench_check(sl_loss_apply(at->loss, &call));
    bench_check(sl_data_parallel_backward(at->parallel, grad, NULL));
    bench_check(sl_optimizer_step(at->optimizer, 0.01, 1));
    sl_tensor_destroy(&output);
    sl_tensor_destroy(&grad);
    return bench_now() - start;
}

/* A forward of one row of one position a device. */
static double copy_weights(trainer *at)
{
    double start = bench_now();
    sl_tensor *output;
    bench_check(
        sl_data_parallel_forward(at->parallel, &(sl_pass_options){0}, at->two_rows, &output));
    sl_tensor_destroy(&output);
    return bench_now() - start;
}

static double peak_mib(const trainer *at, int device)
{
    sl_memory_stats stats;
    sl_device_memory(sl_device_list_get(at->list, device), &stats);
    return (double)stats.peak_total_bytes / (1 << 20);
}

static void compare(bench_setup *setup, int steps)
{
    double alone[MAX_STEPS], together[MAX_STEPS], copies[MAX_STEPS];
    trainer one = open_trainer(setup, "cpu"), two = open_trainer(setup, "cpu:0,cpu:1");
    train_step(&one);
    train_step(&two);
    for (int i = 0; i < steps; i++) {
        alone[i] = train_step(&one);
        together[i] = train_step(&two);
        copies[i] = copy_weights(&two);
    }
    double single = bench_median(alone, steps), both = bench_median(together, steps);
    double copy = bench_median(copies, steps);
    printf("emsize %d, %d layers: one device of two cores %.1f ms a step; two devices of one core "
           "%.1f ms, of it copying weights at most %.1f ms; peak %.0f MiB on the first device, "
           "%.0f MiB on the second\n",
           (int)setup->model.emsize, (int)setup->model.nlayers, 1e3 * single, 1e3 * both,
           1e3 * copy, peak_mib(&two, 0), peak_mib(&two, 1));
    printf("{\"bench\":\"data_parallel\",\"emsize\":%d,\"nlayers\":%d,\"one_device_ms\":%.2f,"
           "\"two_devices_ms\":%.2f,\"copy_ms\":%.2f,\"peak_mib\":[%.1f,%.1f],\"ratio\":%.4f}\n",
           (int)setup->model.emsize, (int)setup->model.nlayers, 1e3 * single, 1e3 * both,
           1e3 * copy, peak_mib(&two, 0), peak_mib(&two, 1), single / both);
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
    compare(&setup, (int)steps);
    return 0;
}
