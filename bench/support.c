#include "support.h"

#include <getopt.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_THREADS = 64 };

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

void bench_heading(const char *row)
{
    printf("%s\n|", row);
    for (const char *c = strchr(row, '|') + 1; (c = strchr(c, '|')); c++)
        printf("---|");
    printf("\n");
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
    sgemm_job jobs[MAX_THREADS] = {{0}};
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
    double train_seconds;
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
                         .virtual_stages = 1,
                         .chunks = 1,
                         .recompute = SL_RECOMPUTE_NEVER,
                         .schedule = sl_schedule_names[0]};
}

/* From 1 on. */
static int64_t parse_number(const char *name, const char *text, char **end)
{
    long value = strtol(text, end, 10);
    if (*end == text || (**end && **end != ',') || value < 1 || value > INT32_MAX)
        bench_check(
            sl_error(SL_ERR_INVALID, "--%s must be a number from 1, got \"%s\"", name, text));
    return value;
}

static void parse_balance(const char *text, bench_setup *setup)
{
    char *end = (char *)text - 1;
    setup->balance_count = 0;
    do {
        if (setup->balance_count == BENCH_MAX_STAGES)
            bench_check(
                sl_error(SL_ERR_INVALID, "--balance has more than %d numbers", BENCH_MAX_STAGES));
        setup->balance[setup->balance_count++] = (int)parse_number("balance", end + 1, &end);
    } while (*end);
}

static sl_precision parse_precision(const char *text)
{
    for (int i = 0; sl_precision_names[i]; i++)
        if (strcmp(text, sl_precision_names[i]) == 0)
            return (sl_precision)i;
    bench_check(
        sl_error(SL_ERR_INVALID, "--precision must be f32, bf16 or tf32, got \"%s\"", text));
    return SL_PRECISION_F32;
}

static sl_optimizer_kind parse_optimizer(const char *text)
{
    for (int i = 0; sl_optimizer_kind_names[i]; i++)
        if (strcmp(text, sl_optimizer_kind_names[i]) == 0)
            return (sl_optimizer_kind)i;
    bench_check(sl_error(SL_ERR_INVALID, "--optimizer must be sgd or adamw, got \"%s\"", text));
    return SL_OPTIMIZER_SGD;
}

/* The field that a number is for; NULL: one of those that are no int64_t. */
static int64_t *wide_field(bench_setup *setup, int option)
{
    switch (option) {
    case 'e':
        return &setup->model.emsize;
    case 'f':
        return &setup->model.nhid;
    case 'l':
        return &setup->model.nlayers;
    case 'h':
        return &setup->model.nhead;
    case 'v':
        return &setup->model.ntokens;
    case 'b':
        return &setup->batch;
    case 't':
        return &setup->bptt;
    default:
        return NULL;
    }
}

static void take_model(const char *name, sl_model_options *model)
{
    bench_check(sl_model_options_named(name, model));
    model->dropout = 0;
}

static void parse_option(const struct option *option, bench_setup *setup, int *steps)
{
    char *end;
    int64_t *wide = wide_field(setup, option->val);
    if (option->val == 'd')
        setup->devices = optarg;
    else if (option->val == 'm')
        take_model(optarg, &setup->model);
    else if (option->val == 'k')
        bench_check(sl_recompute_parse(optarg, &setup->recompute));
    else if (option->val == 'S')
        setup->schedule = optarg;
    else if (option->val == 'p')
        setup->precision = parse_precision(optarg);
    else if (option->val == 'o')
        setup->optimizer = parse_optimizer(optarg);
    else if (option->val == 'B')
        parse_balance(optarg, setup);
    else if (wide)
        *wide = parse_number(option->name, optarg, &end);
    else
        *(option->val == 's'   ? &setup->stages
          : option->val == 'V' ? &setup->virtual_stages
          : option->val == 'c' ? &setup->chunks
          : option->val == 'K' ? &setup->slices
                               : steps) = (int)parse_number(option->name, optarg, &end);
}

void bench_setup_parse(int argc, char **argv, bench_setup *setup, int *steps)
{
    static const struct option options[] = {
        {"emsize", 1, NULL, 'e'},    {"nhid", 1, NULL, 'f'},      {"nlayers", 1, NULL, 'l'},
        {"nhead", 1, NULL, 'h'},     {"ntokens", 1, NULL, 'v'},   {"devices", 1, NULL, 'd'},
        {"stages", 1, NULL, 's'},    {"virtual", 1, NULL, 'V'},   {"chunks", 1, NULL, 'c'},
        {"recompute", 1, NULL, 'k'}, {"schedule", 1, NULL, 'S'},  {"batch", 1, NULL, 'b'},
        {"bptt", 1, NULL, 't'},      {"steps", 1, NULL, 'n'},     {"balance", 1, NULL, 'B'},
        {"precision", 1, NULL, 'p'}, {"optimizer", 1, NULL, 'o'}, {"model", 1, NULL, 'm'},
        {"slices", 1, NULL, 'K'},    {NULL, 0, NULL, 0},
    };
    int option, index = 0;
    setup->model.nhid = 0;
    while ((option = getopt_long(argc, argv, "", options, &index)) != -1) {
        if (option == '?')
            exit(2);
        parse_option(&options[index], setup, steps);
    }
    if (setup->model.nhid == 0)
        setup->model.nhid = setup->model.emsize;
    if (optind < argc || *steps > BENCH_MAX_STEPS)
        bench_check(sl_error(SL_ERR_INVALID, "there are only options, and --steps is at most %d",
                             BENCH_MAX_STEPS));
}

/* The stage's, or that of another stage of this process. */
static sl_device *own_device(const bench_trainer *trainer, int stage)
{
    sl_device *device = sl_pipe_device(trainer->pipe, stage);
    for (int s = 0; !device && s < trainer->setup.stages; s++)
        device = sl_pipe_device(trainer->pipe, s);
    return device;
}

/* Ids that lie apart, as a text's do. */
static sl_tensor *create_ids(const bench_setup *setup, int64_t rows, sl_device *device,
                             uint32_t seed)
{
    sl_shape shape = sl_shape_2d(rows, setup->bptt);
    sl_tensor *tensor;
    int32_t *ids = malloc((size_t)sl_shape_count(&shape) * sizeof *ids);
    if (!ids)
        bench_check(sl_error(SL_ERR_MEMORY, "no memory for a batch"));
    for (int64_t i = 0; i < sl_shape_count(&shape); i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)setup->model.ntokens);
    }
    bench_check(sl_tensor_create(device, SL_MEMORY_WORKSPACE, SL_I32, &shape, &tensor));
    bench_check(sl_tensor_write(tensor, ids));
    free(ids);
    return tensor;
}

static void make_batch(bench_trainer *trainer)
{
    const bench_setup *setup = &trainer->setup;
    trainer->input = create_ids(setup, setup->batch, own_device(trainer, 0), 1);
    trainer->targets = create_ids(setup, setup->batch, own_device(trainer, setup->stages - 1), 2);
}

void bench_profile_modules(const bench_setup *setup, sl_module_profile *times)
{
    sl_device_list *list;
    sl_module *model;
    sl_loss *loss;
    int64_t rows = (setup->batch + setup->chunks - 1) / setup->chunks;
    bench_check(sl_device_list_create(setup->devices, &list, NULL));
    bench_check(sl_transformer_lm_create(&setup->model, &model));
    bench_check(sl_cross_entropy_create(&loss));
    sl_device *device = sl_device_list_get(list, 0);
    sl_tensor *input = create_ids(setup, rows, device, 1);
    sl_tensor *targets = create_ids(setup, rows, device, 2);
    bench_check(sl_profile_modules(&(sl_profile_options){.model = model,
                                                         .loss = loss,
                                                         .device = device,
                                                         .input = input,
                                                         .targets = targets,
                                                         .precision = setup->precision},
                                   times));
    sl_tensor_destroy(&input);
    sl_tensor_destroy(&targets);
    sl_loss_destroy(&loss);
    sl_module_destroy(&model);
    sl_device_list_destroy(&list);
}

bench_trainer *bench_trainer_create(const bench_setup *setup)
{
    bench_trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer || setup->stages > BENCH_MAX_STAGES)
        bench_check(
            sl_error(SL_ERR_INVALID, "a benchmark has at most %d stages", BENCH_MAX_STAGES));
    trainer->setup = *setup;
    bench_check(sl_device_list_create(setup->devices, &trainer->devices, NULL));
    bench_check(sl_transformer_lm_create(&setup->model, &trainer->model));
    bench_check(sl_cross_entropy_create(&trainer->loss));
    sl_device *devices[BENCH_MAX_STAGES];
    for (int r = 0; r < setup->stages / setup->virtual_stages; r++)
        devices[r] = sl_device_list_get(trainer->devices, r);
    bench_check(
        sl_pipe_create(&(sl_pipe_options){.model = trainer->model,
                                          .loss = trainer->loss,
                                          .stages = setup->stages,
                                          .virtual_stages = setup->virtual_stages,
                                          .devices = devices,
                                          .balance = setup->balance_count ? setup->balance : NULL,
                                          .chunks = setup->chunks,
                                          .slices = setup->slices,
                                          .recompute = setup->recompute,
                                          .precision = setup->precision,
                                          .schedule = setup->schedule,
                                          .head_blocks = setup->head_blocks,
                                          .group = setup->group,
                                          .seed = 1},
                       &trainer->pipe));
    bench_check(sl_pipe_optimizer_create(
        &(sl_pipe_optimizer_options){.pipe = trainer->pipe,
                                     .optimizer = {.kind = setup->optimizer}},
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
    double train_start = bench_now();
    bench_check(sl_pipe_train(trainer->pipe,
                              &(sl_pipe_batch){.input = trainer->input,
                                               .targets = trainer->targets,
                                               .step = trainer->step++},
                              &loss));
    trainer->train_seconds = bench_now() - train_start;
    bench_check(sl_pipe_optimizer_step(trainer->optimizer, 0.01, 0.5, NULL));
    return bench_now() - start;
}

void bench_trainer_evaluate(bench_trainer *trainer)
{
    double loss;
    int64_t terms;
    bench_check(
        sl_pipe_evaluate(trainer->pipe,
                         &(sl_pipe_batch){.input = trainer->input, .targets = trainer->targets},
                         &loss, &terms));
}

double bench_trainer_train_seconds(const bench_trainer *trainer)
{
    return trainer->train_seconds;
}

sl_pipe *bench_trainer_pipe(const bench_trainer *trainer)
{
    return trainer->pipe;
}

uint64_t bench_trainer_peak_bytes(const bench_trainer *trainer)
{
    uint64_t bytes = 0;
    for (int i = 0; i < sl_device_list_count(trainer->devices); i++) {
        sl_memory_stats memory;
        sl_device_memory(sl_device_list_get(trainer->devices, i), &memory);
        bytes += memory.peak_total_bytes;
    }
    return bytes;
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
