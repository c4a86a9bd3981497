/* Steps with communication hooks, and ranks with different numbers of batches. */
#include "sluice/ddp.h"

#include "comm/group.h"
#include "core/bf16.h"
#include "support/check.h"
#include "support/replicas.h"
#include "support/rig.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static float own_x(const sl_group *group)
{
    return (float)sl_group_rank(group) + 1;
}

static sl_status stop_early(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    int steps = sl_group_rank(group) == 0 ? 1 : 2;
    for (int i = 0; i < steps; i++)
        SL_TRY(toy_step(&replica, 1));
    return SL_OK;
}

static void uneven_inputs_without_join_end_in_an_error(void **state)
{
    check_error(sl_spawn(stop_early, NULL, 2, &(sl_group_options){.timeout_seconds = 60}),
                SL_ERR_CANCELLED, "rank 1: gradients of stage 0, bucket 0: all_reduce");
    assert_non_null(strstr(sl_error_text(), "rank 0 left the group"));
}

/* ---- Join ------------------------------------------------------------------------------- */

typedef struct join_case {
    sl_ddp_join_options options;
    float expected[4]; /* rank 1's gradients */
} join_case;

/* Rank 0 has two batches, rank 1 four. */
static sl_status train_unevenly(sl_group *group, void *arg)
{
    const join_case *one = arg;
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){.with_buffer = true}, NULL, &replica));
    SL_TRY(sl_ddp_join_begin(replica.ddp, &one->options));
    int rank = sl_group_rank(group);
    for (int i = 0; i < 2 + 2 * rank; i++) {
        sl_parameter_set_zero_grad(replica.set);
        SL_TRY(toy_step(&replica, own_x(group)));
        float got = toy_grad(&replica, "w");
        SL_TRY(expect(got == one->expected[i], "%g in step %d, got %g", one->expected[i], i, got));
        float w = toy_value(&replica, "w") - got; /* lr = 1 */
        SL_TRY(sl_tensor_write(sl_parameter_value(sl_parameter_set_get(replica.set, 0)), &w));
    }
    SL_TRY(sl_ddp_join_end(replica.ddp));
    float w = 1 - one->expected[0] - one->expected[1] - one->expected[2] - one->expected[3];
    return expect(toy_value(&replica, "w") == w && toy_value(&replica, "buffer") == 4,
                  "the last rank's values, %g and 4, got %g and %g", w, toy_value(&replica, "w"),
                  toy_value(&replica, "buffer"));
}

static void join_lets_ranks_have_different_numbers_of_batches(void **state)
{
    check_ranks(train_unevenly, &(join_case){.expected = {1.5f, 1.5f, 1, 1}}, 2);
    check_ranks(train_unevenly,
                &(join_case){.options.divide_by_active = true, .expected = {1.5f, 1.5f, 2, 2}}, 2);
}

/* Rank 0, whose forward fails, stays in the group until rank 1's step has ended. */
static sl_status fail_while_joined(sl_group *group, void *arg)
{
    atomic_int *ends = arg;
    toy replica;
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    sl_status status = sl_ddp_join_begin(replica.ddp, NULL);
    if (status == SL_OK && sl_group_rank(group) == 1) {
        status = toy_step(&replica, 1);
        atomic_fetch_add(ends, 1);
    } else if (status == SL_OK) {
        sl_pass *pass;
        sl_tensor *out;
        SL_TRY(sl_pass_create(&(sl_pass_options){.device = replica.device, .keep = true}, &pass));
        status = sl_ddp_forward(replica.ddp, pass, NULL, &out);
        sl_pass_destroy(&pass);
        while (atomic_load(ends) == 0)
            usleep(1000);
    }
    toy_destroy(&replica);
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "there is no input"),
                  "rank 0's error on both ranks, got \"%s\"", sl_error_text());
}

static void forward_that_fails_while_joined_ends_the_others_steps(void **state)
{
    check_ranks(fail_while_joined, &(atomic_int){0}, 2);
}

/* One join: `steps` steps of this rank. */
static sl_status join(toy *replica, const sl_ddp_join_options *options, int steps)
{
    SL_TRY(sl_ddp_join_begin(replica->ddp, options));
    for (int i = 0; i < steps; i++) {
        sl_parameter_set_zero_grad(replica->set);
        SL_TRY(toy_step(replica, 1));
    }
    return sl_ddp_join_end(replica->ddp);
}

/* Rank 1 is out of data first; the join after that, without the option, lasts to its end. */
static sl_status join_that_fails_early(sl_group *group, void *arg)
{
    const sl_ddp_join_options fails = {.fail_at_first = true};
    int steps = *(int *)arg + (sl_group_rank(group) != 1);
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    for (int i = 0; i < 2; i++) {
        SL_TRY(expect(join(&replica, &fails, steps) == SL_ERR_CANCELLED &&
                          strstr(sl_error_text(), "rank 1 exhausted its inputs"),
                      "all ranks to fail and to name rank 1, got \"%s\"", sl_error_text()));
        SL_TRY(expect(sl_ddp_join_end(replica.ddp) == SL_ERR_INVALID &&
                          strstr(sl_error_text(), "no join is under way"),
                      "the join to have ended, got \"%s\"", sl_error_text()));
        SL_TRY(join(&replica, NULL, sl_group_rank(group)));
    }
    return SL_OK;
}

static void
join_that_stopped_all_ranks_names_the_first_out_of_data_and_can_be_followed(void **state)
{
    (void)state;
    for (int steps = 0; steps <= 2; steps++)
        check_ranks(join_that_fails_early, &steps, 3);
}

/* ---- Hooks ------------------------------------------------------------------------------ */

static sl_status sum_hook(void *arg, sl_ddp_bucket *bucket)
{
    ++*(int *)arg;
    return sl_group_all_reduce(bucket->group, bucket->grads, bucket->count, SL_F32, SL_REDUCE_SUM,
                               NULL);
}

static sl_status constant_hook(void *arg, sl_ddp_bucket *bucket)
{
    ++*(int *)arg;
    for (int64_t i = 0; i < bucket->count; i++)
        bucket->grads[i] = 42;
    return SL_OK;
}

static sl_status failing_hook(void *arg, sl_ddp_bucket *bucket)
{
    return sl_error(SL_ERR_NUMERIC, "bucket %d is bad", bucket->index);
}

typedef struct hook_case {
    sl_ddp_hook hook;
    float factor, expected;
    bool counts;
} hook_case;

static sl_status run_hook(sl_group *group, void *arg)
{
    const hook_case *one = arg;
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    int calls = 0;
    SL_TRY(sl_ddp_register_hook(replica.ddp, one->hook, &calls));
    for (int i = 0; i < 2; i++) {
        sl_ddp_set_sync(replica.ddp, i == 1);
        SL_TRY(toy_step(&replica, i == 1 ? one->factor * own_x(group) : 0));
    }
    SL_TRY(expect(toy_grad(&replica, "w") == one->expected, "%g, got %g", one->expected,
                  toy_grad(&replica, "w")));
    SL_TRY(expect(!one->counts || calls == 1, "one call, got %d", calls));
    return expect(sl_ddp_register_hook(replica.ddp, one->hook, NULL) == SL_ERR_INVALID,
                  "a second hook to be refused");
}

static void hook_replaces_averaging(void **state)
{
    check_ranks(run_hook, &(hook_case){sum_hook, 1, 3, true}, 2);
    check_ranks(run_hook, &(hook_case){constant_hook, 1, 42, true}, 2);
    check_ranks(run_hook, &(hook_case){sl_ddp_average_hook, 1, 1.5f, false}, 2);
}

/* ---- Gradients in bf16 ------------------------------------------------------------------ */

/* A group's table of functions, and the bytes that its all-reduces had to exchange. */
typedef struct counting_ops {
    sli_group_ops ops; /* first: a group points to it */
    const sli_group_ops *real;
    int64_t bytes;
} counting_ops;

static sl_status count_collective(sl_group *group, const sli_operation *operation)
{
    counting_ops *counting = (counting_ops *)group->ops;
    if (operation->kind == SLI_OP_ALL_REDUCE)
        counting->bytes += operation->count * (int64_t)sl_dtype_bytes(operation->dtype);
    return counting->real->collective(group, operation);
}

static float rounded(float value)
{
    return sli_f32_from_bf16(sli_bf16_from_f32(value));
}

enum { BF16_RANKS = 3, BUCKET_ELEMENTS = 16 /* a weight and its padding */ };

/* One step, whose average and whose bytes are those of `arg`, an sl_precision. The ranks' values
 * and their average are no numbers of bf16. */
static sl_status exchange_in(sl_group *group, void *arg)
{
    static const float own[BF16_RANKS] = {1.0003f, 2.013f, 4.05f};
    sl_precision precision = *(sl_precision *)arg;
    bool narrow = precision == SL_PRECISION_BF16;
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){0}, &(sl_ddp_options){.comm_precision = precision},
                    &replica));
    sl_group *stage = sl_ddp_group(replica.ddp, 0);
    counting_ops counting = {*stage->ops, stage->ops, 0};
    counting.ops.collective = count_collective;
    stage->ops = &counting.ops;
    SL_TRY(toy_step(&replica, own[sl_group_rank(group)]));
    stage->ops = counting.real;
    float sum = 0, expected;
    for (int r = 0; r < BF16_RANKS; r++)
        sum += narrow ? rounded(own[r]) : own[r];
    expected = sum * (1.0f / BF16_RANKS);
    expected = narrow ? rounded(expected) : expected;
    int64_t bytes = BUCKET_ELEMENTS * (narrow ? 2 : 4);
    SL_TRY(expect(toy_grad(&replica, "w") == expected, "%.9g, got %.9g", (double)expected,
                  (double)toy_grad(&replica, "w")));
    return expect(counting.bytes == bytes && sl_ddp_get_log(replica.ddp)->buckets[0].bytes == bytes,
                  "%d bytes, got %d", (int)bytes, (int)counting.bytes);
}

static void gradients_in_bf16_take_half_the_bytes(void **state)
{
    for (sl_precision precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++)
        check_ranks(exchange_in, &precision, BF16_RANKS);
}

/* What a pipe computes in, and what its gradients are to be exchanged in. */
typedef struct exchange_case {
    sl_precision pipe;
    sl_ddp_options ddp;
} exchange_case;

/* Takes a step that exchanges nothing, then the same one with the other replica, which has the same
 * rows: so their average in f32 is what the first one gave. */
static sl_status check_exchange(rig *r, sl_ddp *ddp, bool narrow)
{
    double loss;
    sl_tensor *grads;
    sl_parameter_set *set = sl_pipe_parameters(r->pipe, 0);
    SL_TRY(rig_train(r, &loss));
    SL_TRY(sl_parameter_set_bucket_grads(set, 0, &grads));
    int64_t count = sl_tensor_count(grads), differing = 0, rounding = 0;
    int64_t bytes = count * (narrow ? 2 : 4);
    float *own = malloc((size_t)count * sizeof *own);
    check_ok(sl_tensor_read(grads, own));
    sl_group *stage = sl_ddp_group(ddp, 0);
    counting_ops counting = {*stage->ops, stage->ops, 0};
    counting.ops.collective = count_collective;
    stage->ops = &counting.ops;
    r->ddp = ddp;
    sl_status status = rig_train(r, &loss);
    r->ddp = NULL;
    stage->ops = counting.real;
    for (int64_t i = 0; i < count; i++) {
        float expected = narrow ? rounded(own[i]) : own[i];
        differing += sl_tensor_f32(grads)[i] != expected;
        rounding += rounded(own[i]) != own[i];
    }
    free(own);
    if (status == SL_OK)
        status = expect(sl_parameter_set_bucket_count(set) == 1 && counting.bytes == bytes,
                        "%d bytes, got %d", (int)bytes, (int)counting.bytes);
    if (status == SL_OK)
        status = expect(differing == 0 && rounding > 0, "the average, got %d others, %d rounded",
                        (int)differing, (int)rounding);
    return status;
}

static sl_status exchange_of_pipe(sl_group *group, void *arg)
{
    const exchange_case *one = arg;
    SCOPED(rig) at = {0};
    SCOPED(sl_ddp) *ddp = NULL;
    sl_pipe_options options = {.stages = 1, .chunks = 2, .precision = one->pipe};
    SL_TRY(rig_open(rig_linears(2), NULL, &(sl_training_options){.pipe = options}, &at));
    sl_ddp_options with = one->ddp;
    with.group = group;
    with.pipe = at.pipe;
    SL_TRY(sl_ddp_create(&with, &ddp));
    return check_exchange(&at, ddp, with.comm_precision == SL_PRECISION_BF16);
}

/* Whatever the pipe computes in. */
static void gradients_are_exchanged_in_f32_unless_asked_otherwise(void **state)
{
    const sl_ddp_options asked[] = {{0}, {.comm_precision = SL_PRECISION_BF16}};
    for (sl_precision pipe = SL_PRECISION_F32; pipe <= SL_PRECISION_BF16; pipe++)
        for (int i = 0; i < 2; i++) {
            exchange_case one = {pipe, asked[i]};
            check_ranks(exchange_of_pipe, &one, 2);
        }
}

static sl_status differ_in_precision(sl_group *group, void *arg)
{
    toy replica;
    sl_ddp_options options = {.comm_precision =
                                  sl_group_rank(group) ? SL_PRECISION_BF16 : SL_PRECISION_F32};
    sl_status status = toy_open(group, &(toy_options){0}, &options, &replica);
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "options of rank"),
                  "every rank to refuse it, got \"%s\"", sl_error_text());
}

static sl_status exchange_in_tf32(sl_group *group, void *arg)
{
    toy replica;
    sl_ddp_options options = {.comm_precision = SL_PRECISION_TF32};
    sl_status status = toy_open(group, &(toy_options){0}, &options, &replica);
    return expect(status == SL_ERR_INVALID && strstr(sl_error_text(), "not in tf32"),
                  "every rank to refuse it, got \"%s\"", sl_error_text());
}

static void ranks_with_gradients_of_other_precisions_are_refused(void **state)
{
    check_ranks(differ_in_precision, NULL, 2);
    check_ranks(exchange_in_tf32, NULL, 2);
}

static sl_status fail_in_hook(sl_group *group, void *arg)
{
    toy replica;
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    sl_status status = SL_OK;
    if (sl_group_rank(group) == 1)
        status = sl_ddp_register_hook(replica.ddp, failing_hook, NULL);
    if (status == SL_OK)
        status = toy_step(&replica, 1);
    toy_destroy(&replica);
    status = expect(status == SL_ERR_NUMERIC && strstr(sl_error_text(), "bucket 0 is bad"),
                    "every rank to fail with rank 1's error, got \"%s\"", sl_error_text());
    return status;
}

static void hook_that_fails_on_one_rank_ends_the_step_on_all(void **state)
{
    check_ranks(fail_in_hook, NULL, 3);
}

int ddp_steps_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uneven_inputs_without_join_end_in_an_error),
        cmocka_unit_test(join_lets_ranks_have_different_numbers_of_batches),
        cmocka_unit_test(forward_that_fails_while_joined_ends_the_others_steps),
        cmocka_unit_test(
            join_that_stopped_all_ranks_names_the_first_out_of_data_and_can_be_followed),
        cmocka_unit_test(hook_replaces_averaging),
        cmocka_unit_test(gradients_in_bf16_take_half_the_bytes),
        cmocka_unit_test(gradients_are_exchanged_in_f32_unless_asked_otherwise),
        cmocka_unit_test(ranks_with_gradients_of_other_precisions_are_refused),
        cmocka_unit_test(hook_that_fails_on_one_rank_ends_the_step_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
