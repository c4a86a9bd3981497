/* Replicas of pipes, held against one pipe that gets all the data. Replicas over drawn layouts are
 * test_pipe_group.c's. */
#include "nn/module.h"
#include "sluice/layers.h"

#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"
#include "support/replicas.h"
#include "support/rig.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, MAX_MODULES = 8, SEED = 5 };

/* A module with a parameter that it does not use, between others. */
static sl_status pass_on(sl_module *module, sl_pass *pass, const sl_tensor *in, sl_tensor **out)
{
    return sl_tensor_alias(in, out);
}

static sl_status pass_back(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                           sl_tensor **grad_in)
{
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
    int ranks;
    /* Linear, Frozen linear, Norm, Relu, Dropout, or Idle, which has a parameter that it does not
     * use. */
    const char *modules;
    int64_t rows; /* of all ranks' batches; divided among them as evenly as possible */
    int stages, chunks, accumulate;
    sl_recompute recompute;
    const char *schedule;
    bool finds_unused;
    int shards;           /* 0: one for each rank */
    int64_t bucket_bytes; /* 0: so few that each stage has several buckets */
} replica_case;

static sl_status create_layer(char kind, sl_module **out)
{
    switch (kind) {
    case 'N':
        return sl_layer_norm_create(RIG_WIDTH, 0, out);
    case 'R':
        return sl_activation_create(SL_ACTIVATION_RELU, out);
    case 'D':
        return sl_dropout_create(0.2f, out);
    case 'I':
        return idle_create(RIG_WIDTH, out);
    default:
        return sl_linear_create(RIG_WIDTH, RIG_WIDTH, false, out);
    }
}

static sl_module *create_model(const char *kinds)
{
    sl_module *modules[MAX_MODULES], *model;
    int count = (int)strlen(kinds);
    for (int i = 0; i < count; i++) {
        check_ok(create_layer(kinds[i], &modules[i]));
        if (kinds[i] == 'F')
            check_ok(sl_module_freeze(modules[i]));
    }
    check_ok(create_sequential(modules, count, &model));
    return model;
}

/* ---- Training --------------------------------------------------------------------------- */

/* Without a group: one pipe by itself. */
static sl_status open_trainee(const replica_case *one, sl_group *group, uint64_t seed, rig *out)
{
    int64_t bucket_bytes = one->bucket_bytes ? one->bucket_bytes : 64;
    const sl_training_options options = {.pipe = {.stages = one->stages,
                                                  .chunks = one->chunks,
                                                  .accumulate = group ? one->accumulate : 0,
                                                  .recompute = one->recompute,
                                                  .schedule = one->schedule,
                                                  .seed = seed,
                                                  .first_bucket_bytes = bucket_bytes,
                                                  .bucket_bytes = bucket_bytes},
                                         .ddp = {.group = group,
                                                 .find_unused_parameters = one->finds_unused,
                                                 .shards = one->shards}};
    return rig_open(create_model(one->modules), NULL, &options, out);
}

/* Element i of row `row` of all data. */
static float datum(int64_t row, int64_t i, int which)
{
    return (float)((row * 7919 + i * 104729 + which * 1299709) % 2003) / 1001.5f - 1;
}

static sl_status make_rows(sl_device *device, int64_t first, int64_t rows, int which,
                           sl_tensor **out)
{
    sl_shape shape = sl_shape_2d(rows, RIG_WIDTH);
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, out));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < RIG_WIDTH; i++)
            sl_tensor_f32(*out)[row * RIG_WIDTH + i] = datum(first + row, i, which);
    return SL_OK;
}

/* Rows `from` to `to` - 1 of the step's, which count as many times as there are of them. */
static sl_status train_on_rows(const replica_case *one, const rig *r, int64_t from, int64_t to,
                               uint64_t step)
{
    int64_t first = (int64_t)step * one->rows + from, rows = to - from;
    SCOPED(sl_tensor) *targets = NULL, *input = NULL;
    double loss;
    SL_TRY(make_rows(r->devices[0], first, rows, 0, &input));
    SL_TRY(make_rows(r->devices[0], first, rows, 1, &targets));
    double ranks = r->ddp ? one->ranks : 1;
    sl_pipe_batch batch = {.input = input,
                           .targets = targets,
                           .step = step,
                           .first_sample = first,
                           .weight = (double)rows * ranks / (double)one->rows};
    sl_pipe_zero_grad(r->pipe);
    return r->ddp ? sl_ddp_train(r->ddp, &batch, &loss) : sl_pipe_train(r->pipe, &batch, &loss);
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
    FREED float *first = malloc(bytes);
    memcpy(first, data, bytes);
    SL_TRY(sl_group_broadcast(group, first, words, SL_F32, 0, NULL));
    return expect(memcmp(first, data, bytes) == 0, "%s to be rank 0's, bit for bit", what);
}

static sl_status train_replica(sl_group *group, const expectation *wanted, const rig *r)
{
    const replica_case *one = wanted->one;
    int rank = sl_group_rank(group);
    for (uint64_t step = 0; step < STEPS; step++) {
        double norm;
        SL_TRY(train_on_rows(one, r, one->rows * rank / one->ranks,
                             one->rows * (rank + 1) / one->ranks, step));
        SL_TRY(sl_pipe_optimizer_step(r->optimizer, 0.1, 0.25, &norm));
        SL_TRY(same_bits(group, &norm, sizeof norm, "the clipped norm"));
    }
    int64_t count;
    FREED float *values = pipe_values(r->pipe, &count);
    SL_TRY(same_bits(group, values, (size_t)count * sizeof *values, "the weights"));
    double distance = relative_distance(values, wanted->values, count);
    return expect(count == wanted->count && distance < 2e-6,
                  "the weights of one pipe with all rows, off by %g", distance);
}

/* Each rank starts with weights of its own, and rank 0's must win; but with dropout they need one
 * seed, which then makes their masks those of one pipe with all rows. */
static sl_status run_replica(sl_group *group, void *arg)
{
    const expectation *wanted = arg;
    SCOPED(rig) at = {0};
    uint64_t own = strchr(wanted->one->modules, 'D') ? 0 : (uint64_t)sl_group_rank(group);
    SL_TRY(open_trainee(wanted->one, group, SEED + own, &at));
    return train_replica(group, wanted, &at);
}

static void check_case(const replica_case *one)
{
    SCOPED(rig) alone = {0};
    check_ok(open_trainee(one, NULL, SEED, &alone));
    for (uint64_t step = 0; step < STEPS; step++) {
        double norm;
        check_ok(train_on_rows(one, &alone, 0, one->rows, step));
        check_ok(sl_pipe_optimizer_step(alone.optimizer, 0.1, 0.25, &norm));
    }
    expectation wanted = {.one = one};
    FREED float *values = pipe_values(alone.pipe, &wanted.count);
    wanted.values = values;
    check_ranks(run_replica, &wanted, one->ranks);
}

/* With ragged rows, modules that are not trained, and every kind of stage. */
static void replicas_of_pipes_equal_one_pipe_with_all_rows(void **state)
{
    static const replica_case cases[] = {
        {1, "LIL", 3, 2, 2, 1, SL_RECOMPUTE_EXCEPT_LAST, "gpipe", true, 0, 0},
        {2, "LRLFNL", 7, 3, 4, 1, SL_RECOMPUTE_NEVER, "1f1b", false, 0, 0},
        {3, "LDNFIL", 8, 2, 2, 2, SL_RECOMPUTE_ALWAYS, "gpipe", true, 0, 600},
        {8, "LNDLRDIL", 43, 4, 3, 3, SL_RECOMPUTE_EXCEPT_LAST, "zb-h1", true, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

/* ---- Pipes only ------------------------------------------------------------------------- */

static const replica_case small_case = {
    .ranks = 2, .modules = "LILL", .rows = 4, .stages = 2, .chunks = 2};

/* Trained in order of registration: 0, 1 (linear), 2 (idle), 3 … */
static sl_status leave_unused(sl_group *group, void *arg)
{
    replica_case *one = arg;
    SCOPED(rig) at = {0};
    SL_TRY(open_trainee(one, group, 1, &at));
    sl_status status = train_on_rows(one, &at, 0, one->rows, 0);
    char expected[100];
    snprintf(expected, sizeof expected,
             "the first is 1.idle; find_unused_parameters allows that. Parameter indices which did "
             "not");
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), expected) &&
                      strstr(sl_error_text(), ": 2"),
                  "\"%s\", got \"%s\"", expected, sl_error_text());
}

static void unused_parameter_of_a_stage_is_named(void **state)
{
    replica_case one = small_case;
    check_ranks(leave_unused, &one, 2);
}

static sl_status cut_differently(sl_group *group, void *arg)
{
    replica_case one = *(replica_case *)arg;
    one.bucket_bytes = sl_group_rank(group) == 1 ? 1 << 20 : 64;
    SCOPED(rig) at = {0};
    sl_status status = open_trainee(&one, group, 1, &at);
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "buckets"),
                  "other buckets to be refused, got \"%s\"", sl_error_text());
}

static void replicas_with_other_buckets_are_refused(void **state)
{
    replica_case one = small_case;
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
    SCOPED(rig) at = {0};
    int exchanges = 0;
    SL_TRY(open_trainee(one, group, 1, &at));
    SL_TRY(sl_ddp_register_hook(at.ddp, count_exchange, &exchanges));
    SL_TRY(train_on_rows(one, &at, 0, one->rows, 0));
    return expect(exchanges == sl_parameter_set_bucket_count(sl_pipe_parameters(at.pipe, 0)),
                  "an exchange for each bucket, got %d", exchanges);
}

static void accumulation_steps_of_a_batch_have_one_exchange(void **state)
{
    replica_case one = small_case;
    one.modules = "LLLL";
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
    SCOPED(rig) at = {0};
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
        SL_TRY(make_rows(at.devices[0], 0, one->rows, 0, &input));
        status = sl_ddp_train(at.ddp, &(sl_pipe_batch){.input = input}, &loss);
        sl_tensor_destroy(&input);
    }
    const char *expected = sl_group_rank(group) == 0 ? "rank 1: sl_pipe_train: the batch has no"
                                                     : "sl_pipe_train: the batch has no targets";
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), expected),
                  "\"%s\", got \"%s\"", expected, sl_error_text());
}

static void step_that_fails_on_one_rank_ends_on_all_with_its_error(void **state)
{
    replica_case one = small_case;
    check_ranks(fail_on_rank_1, &one, 2);
    one.shards = 4;
    check_ranks(fail_on_rank_1, &one, 2);
}

static sl_status refuse_shards(sl_group *group, void *arg)
{
    replica_case one = small_case;
    rig r;
    for (one.shards = 1; one.shards <= 3;
         one.shards += 2) { /* too few; more, with unused parameters */
        one.finds_unused = one.shards == 3;
        sl_status status = open_trainee(&one, group, 1, &r);
        rig_destroy(&r);
        SL_TRY(expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "shard"),
                      "%d shards to be refused, got \"%s\"", one.shards, sl_error_text()));
    }
    one.finds_unused = false;
    SL_TRY(open_trainee(&one, group, 1, &r));
    sl_status hook = sl_ddp_register_hook(r.ddp, sl_ddp_average_hook, NULL);
    sl_status join = sl_ddp_join_begin(r.ddp, NULL);
    rig_destroy(&r);
    SL_TRY(expect(hook == SL_ERR_INVALID && join == SL_ERR_INVALID,
                  "no hook and no join with more shards than ranks"));
    one.shards = 3 + sl_group_rank(group);
    sl_status status = open_trainee(&one, group, 1, &r);
    rig_destroy(&r);
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "options of rank"),
                  "other shards on another rank to be refused, got \"%s\"", sl_error_text());
}

static void shards_that_cannot_be_are_refused(void **state)
{
    check_ranks(refuse_shards, NULL, 2);
}

int ddp_pipe_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_of_pipes_equal_one_pipe_with_all_rows),
        cmocka_unit_test(unused_parameter_of_a_stage_is_named),
        cmocka_unit_test(replicas_with_other_buckets_are_refused),
        cmocka_unit_test(accumulation_steps_of_a_batch_have_one_exchange),
        cmocka_unit_test(step_that_fails_on_one_rank_ends_on_all_with_its_error),
        cmocka_unit_test(shards_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
