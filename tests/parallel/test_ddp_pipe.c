/* Replicas of pipes, held against one pipe that gets all the data: over random models, cuts,
 * micro-batches, bucket sizes, and 1 to 8 ranks. */
#include "core/philox.h"
#include "sluice/layers.h"
#include "sluice/pipe_optimizer.h"

#include "support/check.h"
#include "support/modules.h"
#include "support/replicas.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_MODULES = 8, MAX_STAGES = 4, STEPS = 3, CASES = 24 };

/* ---- Random models ---------------------------------------------------------------------- */

/* A module with a parameter that it does not use, between others. */
static sl_status pass_on(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    (void)module;
    (void)pass;
    return sl_tensor_alias(in, out);
}

static sl_status pass_back(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                           sl_tensor **grad_in)
{
    (void)module;
    (void)pass;
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static sl_status idle_create(int64_t size, sl_module **out)
{
    static const sl_module_ops ops = {.type = "Idle", .forward = pass_on, .backward = pass_back};
    SL_TRY(sl_module_create(&ops, NULL, out));
    sl_parameter_spec spec = {.name = "idle",
                              .shape = sl_shape_1d(size),
                              .low = 0.5f,
                              .high = 0.5f};
    sl_parameter *parameter;
    return sl_module_add_parameter(*out, &spec, &parameter);
}

typedef struct replica_case {
    uint64_t seed;
    uint32_t draws;
    int ranks, modules, stages, chunks, accumulate;
    int shards; /* 0: one for each rank */
    int kinds[MAX_MODULES];
    bool frozen[MAX_MODULES];
    int64_t widths[MAX_MODULES + 1];
    int64_t rows; /* of all ranks' batches; divided among them as evenly as possible */
    int64_t first_bucket_bytes, bucket_bytes;
    bool has_idle, has_dropout;
    sl_recompute recompute;
    const char *schedule;
} replica_case;

static int draw(replica_case *one, int from, int to)
{
    uint32_t counter[4] = {one->draws++, 0, 0, 0};
    sli_philox(sli_philox_key_make(one->seed, SLI_RANDOM_SAMPLE), counter);
    return from + (int)(counter[0] % (uint32_t)(to - from + 1));
}

enum { LINEAR, NORM, RELU, DROPOUT, IDLE, KINDS };

static replica_case draw_case(uint64_t seed)
{
    replica_case one = {.seed = seed};
    one.ranks = draw(&one, 1, 8);
    one.modules = draw(&one, 1, MAX_MODULES);
    one.stages = draw(&one, 1, one.modules < MAX_STAGES ? one.modules : MAX_STAGES);
    one.chunks = draw(&one, 1, 4);
    one.accumulate = draw(&one, 1, 3);
    one.rows = draw(&one, one.ranks, 6 * one.ranks);
    one.first_bucket_bytes = draw(&one, 1, 600);
    one.bucket_bytes = draw(&one, 1, 2000);
    one.recompute = (sl_recompute)draw(&one, SL_RECOMPUTE_EXCEPT_LAST, SL_RECOMPUTE_ALWAYS);
    one.schedule = test_schedules[draw(&one, 0, TEST_SCHEDULES - 1)];
    one.widths[0] = draw(&one, 2, 20);
    for (int i = 0; i < one.modules; i++) {
        one.kinds[i] = i == 0 ? LINEAR : draw(&one, LINEAR, KINDS - 1);
        one.widths[i + 1] = one.kinds[i] == LINEAR ? draw(&one, 2, 20) : one.widths[i];
        one.frozen[i] = i > 0 && draw(&one, 0, 4) == 0;
        one.has_idle |= one.kinds[i] == IDLE && !one.frozen[i];
        one.has_dropout |= one.kinds[i] == DROPOUT;
    }
    return one;
}

static sl_status create_layer(const replica_case *one, int i, sl_module **out)
{
    switch (one->kinds[i]) {
    case LINEAR:
        return sl_linear_create(one->widths[i], one->widths[i + 1], false, out);
    case NORM:
        return sl_layer_norm_create(one->widths[i], 0, out);
    case RELU:
        return sl_activation_create(SL_ACTIVATION_RELU, out);
    case DROPOUT:
        return sl_dropout_create(0.2f, out);
    default:
        return idle_create(one->widths[i], out);
    }
}

static sl_status create_model(const replica_case *one, sl_module **out)
{
    sl_module *modules[MAX_MODULES];
    for (int i = 0; i < one->modules; i++) {
        SL_TRY(create_layer(one, i, &modules[i]));
        if (one->frozen[i])
            SL_TRY(sl_module_freeze(modules[i]));
    }
    return sl_sequential_create(modules, one->modules, out);
}

/* ---- Training --------------------------------------------------------------------------- */

typedef struct trainee {
    sl_device *devices[MAX_STAGES];
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_ddp *ddp; /* NULL: alone */
} trainee;

static sl_status open_trainee(const replica_case *one, sl_group *group, uint64_t seed, trainee *out)
{
    *out = (trainee){0};
    for (int i = 0; i < one->stages; i++)
        SL_TRY(sl_device_create_cpu(1, &out->devices[i]));
    int balance[MAX_STAGES];
    for (int i = 0; i < one->stages; i++)
        balance[i] = one->modules / one->stages + (i < one->modules % one->stages);
    SL_TRY(create_model(one, &out->model));
    SL_TRY(sl_mse_loss_create(&out->loss));
    sl_pipe_options options = {
        .model = out->model,
        .loss = out->loss,
        .stages = one->stages,
        .devices = out->devices,
        .balance = balance,
        .chunks = group ? one->chunks : one->chunks * one->accumulate,
        .accumulate = group ? one->accumulate : 1,
        .recompute = one->recompute,
        .schedule = one->schedule,
        .seed = seed,
        .first_bucket_bytes = one->first_bucket_bytes,
        .bucket_bytes = one->bucket_bytes,
    };
    SL_TRY(sl_pipe_create(&options, &out->pipe));
    if (!group)
        return SL_OK;
    sl_ddp_options ddp = {.group = group,
                          .pipe = out->pipe,
                          .find_unused_parameters = one->has_idle,
                          .shards = one->shards};
    return sl_ddp_create(&ddp, &out->ddp);
}

static void trainee_destroy(trainee *dead)
{
    sl_ddp_destroy(&dead->ddp);
    sl_pipe_destroy(&dead->pipe);
    sl_loss_destroy(&dead->loss);
    sl_module_destroy(&dead->model);
    for (int i = 0; i < MAX_STAGES; i++)
        sl_device_destroy(&dead->devices[i]);
}

/* Element i of row `row` of all data. */
static float datum(int64_t row, int64_t i, int which)
{
    return (float)((row * 7919 + i * 104729 + which * 1299709) % 2003) / 1001.5f - 1;
}

static sl_status make_rows(sl_device *device, int64_t first, int64_t rows, int64_t width, int which,
                           sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(rows, width);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < width; i++)
            sl_tensor_f32(*out)[row * width + i] = datum(first + row, i, which);
    return SL_OK;
}

/* Rows `from` to `to` - 1 of the step's, which count as many times as there are of them. */
static sl_status train_on_rows(const replica_case *one, trainee *at, int64_t from, int64_t to,
                               uint64_t step)
{
    int64_t first = (int64_t)step * one->rows + from, rows = to - from;
    SCOPED(sl_tensor) *targets = NULL, *input = NULL;
    double loss;
    SL_TRY(make_rows(at->devices[0], first, rows, one->widths[0], 0, &input));
    SL_TRY(make_rows(at->devices[0], first, rows, one->widths[one->modules], 1, &targets));
    double ranks = at->ddp ? one->ranks : 1;
    sl_pipe_batch batch = {.input = input,
                           .targets = targets,
                           .step = step,
                           .first_sample = first,
                           .weight = (double)rows * ranks / (double)one->rows};
    sl_pipe_zero_grad(at->pipe);
    return at->ddp ? sl_ddp_train(at->ddp, &batch, &loss) : sl_pipe_train(at->pipe, &batch, &loss);
}

/* value -= 0.1 * clipped gradient. */
static sl_status update(const trainee *at, double *norm)
{
    SL_TRY(sl_clip_grad_norm(at->pipe, 0.25, SL_GRAD_NORM_L2, false, norm));
    for (int stage = 0; stage < sl_pipe_stages(at->pipe); stage++) {
        sl_parameter_set *set = sl_pipe_parameters(at->pipe, stage);
        for (int b = 0; b < sl_parameter_set_bucket_count(set); b++) {
            sl_tensor *values = sl_parameter_set_bucket_values(set, b);
            sl_tensor *grads;
            SL_TRY(sl_parameter_set_bucket_grads(set, b, &grads));
            for (int64_t i = 0; i < sl_tensor_count(values); i++)
                sl_tensor_f32(values)[i] -= 0.1f * sl_tensor_f32(grads)[i];
        }
    }
    return SL_OK;
}

/* Values of all trained parameters in the model's order; malloc'ed. */
static float *all_values(const trainee *at, int64_t *count)
{
    float *all = NULL;
    *count = 0;
    for (int stage = 0; stage < sl_pipe_stages(at->pipe); stage++) {
        const sl_parameter_set *set = sl_pipe_parameters(at->pipe, stage);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            const sl_tensor *value = sl_parameter_value(sl_parameter_set_get(set, i));
            all = realloc(all, (size_t)(*count + sl_tensor_count(value)) * sizeof *all);
            check_ok(sl_tensor_read(value, all + *count));
            *count += sl_tensor_count(value);
        }
    }
    return all;
}

/* ---- Comparing -------------------------------------------------------------------------- */

typedef struct expectation {
    const replica_case *one;
    const float *values; /* of the pipe that got all the data */
    int64_t count;
} expectation;

/* Have all ranks the same bits as rank 0? */
static sl_status same_bits(sl_group *group, const void *data, size_t bytes, const char *what)
{
    int words = (int)(bytes / 4);
    float *first = malloc(bytes);
    memcpy(first, data, bytes);
    sl_status status = sl_group_broadcast(group, first, words, SL_F32, 0, NULL);
    if (status == SL_OK)
        status = expect(memcmp(first, data, bytes) == 0, "%s to be rank 0's, bit for bit", what);
    free(first);
    return status;
}

static sl_status train_replica(sl_group *group, const expectation *wanted, trainee *at)
{
    const replica_case *one = wanted->one;
    int rank = sl_group_rank(group);
    for (uint64_t step = 0; step < STEPS; step++) {
        double norm;
        SL_TRY(train_on_rows(one, at, one->rows * rank / one->ranks,
                             one->rows * (rank + 1) / one->ranks, step));
        SL_TRY(update(at, &norm));
        SL_TRY(same_bits(group, &norm, sizeof norm, "the clipped norm"));
    }
    int64_t count;
    float *values = all_values(at, &count);
    sl_status status = same_bits(group, values, (size_t)count * sizeof *values, "the weights");
    double distance = relative_distance(values, wanted->values, count);
    if (status == SL_OK)
        status = expect(count == wanted->count && distance < 2e-6,
                        "the weights of one pipe with all rows, off by %g", distance);
    free(values);
    return status;
}

/* Each rank starts with weights of its own, and rank 0's must win; but with dropout they need one
 * seed, which then makes their masks those of one pipe with all rows. */
static sl_status run_replica(sl_group *group, void *arg)
{
    const expectation *wanted = arg;
    SCOPED(trainee) at = {0};
    uint64_t own = wanted->one->has_dropout ? 0 : (uint64_t)sl_group_rank(group);
    SL_TRY(open_trainee(wanted->one, group, wanted->one->seed + own, &at));
    return train_replica(group, wanted, &at);
}

static void check_case(const replica_case *one)
{
    SCOPED(trainee) alone = {0};
    check_ok(open_trainee(one, NULL, one->seed, &alone));
    for (uint64_t step = 0; step < STEPS; step++) {
        double norm;
        check_ok(train_on_rows(one, &alone, 0, one->rows, step));
        check_ok(update(&alone, &norm));
    }
    expectation wanted = {.one = one};
    float *values = all_values(&alone, &wanted.count);
    wanted.values = values;
    check_ranks(run_replica, &wanted, one->ranks);
    free(values);
}

static void replicas_of_random_pipes_equal_one_pipe_with_all_rows(void **state)
{
    (void)state;
    const char *given = getenv("SLUICE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 1;
    for (int i = 0; i < CASES; i++) {
        replica_case one = draw_case(seed + (uint64_t)i);
        print_message("seed %llu: %d ranks, %d modules, %d stages, %d chunks, %lld rows\n",
                      (unsigned long long)one.seed, one.ranks, one.modules, one.stages, one.chunks,
                      (long long)one.rows);
        check_case(&one);
    }
}

/* ---- Pipes only ------------------------------------------------------------------------- */

static replica_case small_case(void)
{
    replica_case one = {.seed = 5,
                        .ranks = 2,
                        .modules = 4,
                        .stages = 2,
                        .chunks = 2,
                        .rows = 4,
                        .first_bucket_bytes = 64,
                        .bucket_bytes = 64};
    const int kinds[] = {LINEAR, IDLE, LINEAR, LINEAR};
    memcpy(one.kinds, kinds, sizeof kinds);
    for (int i = 0; i <= one.modules; i++)
        one.widths[i] = 8;
    return one;
}

/* Trained in order of registration: 0, 1 (linear), 2 (idle), 3 … */
static sl_status leave_unused(sl_group *group, void *arg)
{
    replica_case *one = arg;
    SCOPED(trainee) at = {0};
    SL_TRY(open_trainee(one, group, 1, &at));
    sl_status status = train_on_rows(one, &at, 0, one->rows, 0);
    char expected[100];
    snprintf(expected, sizeof expected,
             "the first is 1.idle; find_unused_parameters allows that. Parameter indices which did "
             "not");
    status = expect(status == SL_ERR_INVALID && strstr(sl_error_text(), expected) &&
                        strstr(sl_error_text(), ": 2"),
                    "\"%s\", got \"%s\"", expected, sl_error_text());
    return status;
}

static void unused_parameter_of_a_stage_is_named(void **state)
{
    (void)state;
    replica_case one = small_case();
    check_ranks(leave_unused, &one, 2);
}

static sl_status cut_differently(sl_group *group, void *arg)
{
    replica_case one = *(replica_case *)arg;
    one.bucket_bytes = sl_group_rank(group) == 1 ? 1 << 20 : 64;
    one.first_bucket_bytes = one.bucket_bytes;
    trainee at;
    sl_status status = open_trainee(&one, group, 1, &at);
    trainee_destroy(&at);
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "buckets"),
                  "other buckets to be refused, got \"%s\"", sl_error_text());
}

static void replicas_with_other_buckets_are_refused(void **state)
{
    (void)state;
    replica_case one = small_case();
    check_ranks(cut_differently, &one, 2);
}

static sl_status count_exchange(void *arg, sl_ddp_bucket *bucket)
{
    ++*(int *)arg;
    return sl_ddp_average_hook(NULL, bucket);
}

static sl_status accumulate_on_rank(sl_group *group, void *arg)
{
    replica_case *one = arg;
    SCOPED(trainee) at = {0};
    int exchanges = 0;
    SL_TRY(open_trainee(one, group, 1, &at));
    SL_TRY(sl_ddp_register_hook(at.ddp, count_exchange, &exchanges));
    SL_TRY(train_on_rows(one, &at, 0, one->rows, 0));
    return expect(exchanges == sl_parameter_set_bucket_count(sl_pipe_parameters(at.pipe, 0)),
                  "an exchange for each bucket, got %d", exchanges);
}

static void accumulation_steps_of_a_batch_have_one_exchange(void **state)
{
    (void)state;
    replica_case one = small_case();
    one.kinds[1] = LINEAR;
    one.stages = 1;
    one.chunks = 4;
    for (one.accumulate = 1; one.accumulate <= 4; one.accumulate++)
        check_ranks(accumulate_on_rank, &one, 2);
}

/* Rank 1's targets are missing: its step fails before it begins, in its first shard, and rank 0
 * must not wait at the end of its own last one. */
static sl_status fail_on_rank_1(sl_group *group, void *arg)
{
    replica_case *one = arg;
    trainee at;
    SL_TRY(open_trainee(one, group, 1, &at));
    sl_status status;
    if (sl_group_rank(group) == 0) {
        int first, count;
        sl_ddp_shards(at.ddp, &first, &count);
        do
            status = train_on_rows(one, &at, 0, one->rows, 0);
        while (status == SL_OK && --count > 0);
    } else {
        sl_tensor *input;
        double loss;
        SL_TRY(make_rows(at.devices[0], 0, one->rows, one->widths[0], 0, &input));
        status = sl_ddp_train(at.ddp, &(sl_pipe_batch){.input = input}, &loss);
        sl_tensor_destroy(&input);
    }
    trainee_destroy(&at);
    const char *expected = sl_group_rank(group) == 0 ? "rank 1: sl_pipe_train: the batch has no"
                                                     : "sl_pipe_train: the batch has no targets";
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), expected),
                  "\"%s\", got \"%s\"", expected, sl_error_text());
}

static void step_that_fails_on_one_rank_ends_on_all_with_its_error(void **state)
{
    (void)state;
    replica_case one = small_case();
    check_ranks(fail_on_rank_1, &one, 2);
    one.shards = 4;
    check_ranks(fail_on_rank_1, &one, 2);
}

static sl_status refuse_shards(sl_group *group, void *arg)
{
    (void)arg;
    replica_case one = small_case();
    trainee at;
    for (one.shards = 1; one.shards <= 3; one.shards += 2) { /* too few; more, with has_idle */
        one.has_idle = one.shards == 3;
        sl_status status = open_trainee(&one, group, 1, &at);
        trainee_destroy(&at);
        SL_TRY(expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "shard"),
                      "%d shards to be refused, got \"%s\"", one.shards, sl_error_text()));
    }
    one.has_idle = false;
    SL_TRY(open_trainee(&one, group, 1, &at));
    sl_status hook = sl_ddp_register_hook(at.ddp, sl_ddp_average_hook, NULL);
    sl_status join = sl_ddp_join_begin(at.ddp, NULL);
    trainee_destroy(&at);
    SL_TRY(expect(hook == SL_ERR_INVALID && join == SL_ERR_INVALID,
                  "no hook and no join with more shards than ranks"));
    one.shards = 3 + sl_group_rank(group);
    sl_status status = open_trainee(&one, group, 1, &at);
    trainee_destroy(&at);
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "options of rank"),
                  "other shards on another rank to be refused, got \"%s\"", sl_error_text());
}

static void shards_that_cannot_be_are_refused(void **state)
{
    (void)state;
    check_ranks(refuse_shards, NULL, 2);
}

/* ---- Sharded optimizers ----------------------------------------------------------------- */

/* Both train on this rank's rows; `split` has its optimizer's state in shards. */
static sl_status train_both(sl_group *group, const replica_case *one, trainee *whole,
                            trainee *split)
{
    int64_t rank = sl_group_rank(group);
    int64_t from = one->rows * rank / one->ranks, to = one->rows * (rank + 1) / one->ranks;
    trainee *const both[] = {whole, split};
    sl_pipe_optimizer *optimizers[2] = {NULL};
    sl_status status = SL_OK;
    for (int i = 0; i < 2 && status == SL_OK; i++)
        status = sl_pipe_optimizer_create(
            &(sl_pipe_optimizer_options){.pipe = both[i]->pipe,
                                         .optimizer = {.kind = SL_OPTIMIZER_ADAMW,
                                                       .weight_decay = 0.1f},
                                         .zero = i == 1 ? split->ddp : NULL},
            &optimizers[i]);
    for (uint64_t step = 0; step < STEPS; step++)
        for (int i = 0; i < 2 && status == SL_OK; i++) {
            status = train_on_rows(one, both[i], from, to, step);
            if (status == SL_OK)
                status = sl_pipe_optimizer_step(optimizers[i], 0.01, 0.5, NULL);
        }
    for (int i = 0; i < 2; i++)
        sl_pipe_optimizer_destroy(&optimizers[i]);
    return status;
}

static sl_status compare_optimizers(sl_group *group, void *arg)
{
    replica_case *one = arg;
    SCOPED(trainee) split = {0}, whole = {0};
    sl_status status = open_trainee(one, group, 1, &whole);
    if (status == SL_OK)
        status = open_trainee(one, group, 1, &split);
    if (status == SL_OK)
        status = train_both(group, one, &whole, &split);
    if (status == SL_OK) {
        int64_t count;
        float *expected = all_values(&whole, &count), *got = all_values(&split, &count);
        status = expect(memcmp(expected, got, (size_t)count * sizeof *got) == 0,
                        "the whole optimizers' weights, bit for bit");
        free(expected);
        free(got);
    }
    return status;
}

static void stages_with_sharded_optimizers_get_the_whole_ones_bits(void **state)
{
    (void)state;
    replica_case one = small_case();
    one.has_idle = true;
    for (one.ranks = 1; one.ranks <= 3; one.ranks++)
        check_ranks(compare_optimizers, &one, one.ranks);
}

int ddp_pipe_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_of_random_pipes_equal_one_pipe_with_all_rows),
        cmocka_unit_test(unused_parameter_of_a_stage_is_named),
        cmocka_unit_test(replicas_with_other_buckets_are_refused),
        cmocka_unit_test(accumulation_steps_of_a_batch_have_one_exchange),
        cmocka_unit_test(step_that_fails_on_one_rank_ends_on_all_with_its_error),
        cmocka_unit_test(shards_that_cannot_be_are_refused),
        cmocka_unit_test(stages_with_sharded_optimizers_get_the_whole_ones_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
