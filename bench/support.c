#include "support.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_STAGES = 8, MAX_THREADS = 64 };

double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void bench_check(sl_status status)
{
    if (status == SL_OK)
        return;
    fprintf(stderr, "bench: %s (%s)\n", sl_error_text(), sl_status_name(status));
    exit(1);
}

/* ---- The bound -------------------------------------------------------------------------- */

typedef struct sgemm_job {
    long m, n, k;
    float *a, *b, *c;
    int repeats;
} sgemm_job;

static void *sgemm_thread(void *argument)
{
    const sgemm_job *job = argument;
    omp_set_num_threads(1);
    for (int i = 0; i < job->repeats; i++)
        dnnl_sgemm('N', 'N', job->m, job->n, job->k, 1.0f, job->a, job->k, job->b, job->n, 0.0f,
                   job->c, job->n);
    return NULL;
}

static double sgemm_rate_of_shape(long m, long n, long k, int threads)
{
    sgemm_job jobs[MAX_THREADS];
    pthread_t handles[MAX_THREADS];
    for (int t = 0; t < threads; t++) {
        jobs[t] = (sgemm_job){m, n, k, NULL, NULL, NULL, 3};
        jobs[t].a = calloc((size_t)(m * k), sizeof(float));
        jobs[t].b = calloc((size_t)(k * n), sizeof(float));
        jobs[t].c = calloc((size_t)(m * n), sizeof(float));
        if (!jobs[t].a || !jobs[t].b || !jobs[t].c)
            bench_check(sl_error(SL_ERR_MEMORY, "no memory for a %ld x %ld product", m, n));
    }
    double best = 0;
    for (int round = 0; round < 4; round++) { /* the first warms up, and never is the best */
        double start = bench_now();
        for (int t = 1; t < threads; t++)
            pthread_create(&handles[t], NULL, sgemm_thread, &jobs[t]);
        sgemm_thread(&jobs[0]);
        for (int t = 1; t < threads; t++)
            pthread_join(handles[t], NULL);
        double rate = 2.0 * (double)m * (double)n * (double)k * jobs[0].repeats * threads /
                      (bench_now() - start);
        best = rate > best ? rate : best;
    }
    for (int t = 0; t < threads; t++) {
        free(jobs[t].a);
        free(jobs[t].b);
        free(jobs[t].c);
    }
    return best;
}

double bench_sgemm_rate(int threads)
{
    static const long shapes[][3] = {{1024, 1024, 1024},
                                     {700, 1024, 1024},
                                     {350, 2048, 1024},
                                     {2048, 2048, 2048}};
    double best = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        double rate = sgemm_rate_of_shape(shapes[i][0], shapes[i][1], shapes[i][2],
                                          threads < MAX_THREADS ? threads : MAX_THREADS);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- A model that can be stepped -------------------------------------------------------- */

struct bench_trainer {
    bench_setup setup;
    sl_device_list *devices;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_tensor *input, *targets;
    uint64_t step;
};

bench_setup bench_setup_lm(int64_t emsize, int64_t nlayers, int64_t nhead)
{
    return (bench_setup){.model = {.ntokens = 28782,
                                   .emsize = emsize,
                                   .nhid = emsize,
                                   .nlayers = nlayers,
                                   .nhead = nhead,
                                   .dropout = 0.2f},
                         .batch = 20,
                         .bptt = 35,
                         .devices = "cpu:0",
                         .stages = 1,
                         .chunks = 1,
                         .recompute = SL_RECOMPUTE_NEVER};
}

static void make_batch(bench_trainer *trainer)
{
    const bench_setup *setup = &trainer->setup;
    sl_shape shape = sl_shape_2d(setup->batch, setup->bptt);
    int last = setup->stages - 1;
    bench_check(sl_tensor_create(sl_device_list_get(trainer->devices, 0), SL_MEMORY_WORKSPACE,
                                 SL_I32, &shape, &trainer->input));
    bench_check(sl_tensor_create(sl_device_list_get(trainer->devices, last), SL_MEMORY_WORKSPACE,
                                 SL_I32, &shape, &trainer->targets));
    uint32_t state = 1;
    for (int64_t i = 0; i < sl_shape_count(&shape); i++) {
        state = state * 1664525u + 1013904223u;
        sl_tensor_i32(trainer->input)[i] = (int32_t)((state >> 8) % (uint32_t)setup->model.ntokens);
        state = state * 1664525u + 1013904223u;
        sl_tensor_i32(trainer->targets)[i] =
            (int32_t)((state >> 8) % (uint32_t)setup->model.ntokens);
    }
}

bench_trainer *bench_trainer_create(const bench_setup *setup)
{
    bench_trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer || setup->stages > MAX_STAGES)
        bench_check(sl_error(SL_ERR_INVALID, "a benchmark has at most %d stages", MAX_STAGES));
    trainer->setup = *setup;
    bench_check(sl_device_list_create(setup->devices, &trainer->devices, NULL));
    bench_check(sl_transformer_lm_create(&setup->model, &trainer->model));
    bench_check(sl_cross_entropy_create(&trainer->loss));
    sl_device *devices[MAX_STAGES];
    for (int s = 0; s < setup->stages; s++)
        devices[s] = sl_device_list_get(trainer->devices, s);
    bench_check(sl_pipe_create(&(sl_pipe_options){.model = trainer->model,
                                                  .loss = trainer->loss,
                                                  .stages = setup->stages,
                                                  .devices = devices,
                                                  .balance = setup->balance,
                                                  .chunks = setup->chunks,
                                                  .recompute = setup->recompute,
                                                  .writer_arg = setup->schedule,
                                                  .seed = 1},
                               &trainer->pipe));
    bench_check(sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = trainer->pipe},
                                         &trainer->optimizer));
    make_batch(trainer);
    return trainer;
}

void bench_trainer_destroy(bench_trainer *trainer)
{
    sl_tensor_destroy(&trainer->input);
    sl_tensor_destroy(&trainer->targets);
    sl_pipe_optimizer_destroy(&trainer->optimizer);
    sl_pipe_destroy(&trainer->pipe);
    sl_loss_destroy(&trainer->loss);
    sl_module_destroy(&trainer->model);
    sl_device_list_destroy(&trainer->devices);
    free(trainer);
}

double bench_trainer_step(bench_trainer *trainer)
{
    double start = bench_now(), loss;
    sl_pipe_zero_grad(trainer->pipe);
    bench_check(sl_pipe_train(trainer->pipe,
                              &(sl_pipe_batch){.input = trainer->input,
                                               .targets = trainer->targets,
                                               .step = trainer->step++},
                              &loss));
    bench_check(sl_pipe_optimizer_step(trainer->optimizer, 0.01, 0.5, NULL));
    return bench_now() - start;
}

sl_pipe *bench_trainer_pipe(const bench_trainer *trainer)
{
    return trainer->pipe;
}

double bench_trainer_flop(const bench_trainer *trainer)
{
    sl_shape shape = *sl_tensor_shape(trainer->input);
    double forward = 0;
    for (int i = 0; i < sl_module_child_count(trainer->model); i++) {
        sl_module *module = sl_module_child(trainer->model, i);
        sl_shape out;
        forward += (double)sl_module_flops(module, &shape);
        bench_check(sl_module_output_shape(module, &shape, &out));
        shape = out;
    }
    return 3 * forward;
}
