/* Communication hooks of DistributedDataParallel. */
#include "sluice/ddp.h"

#include "sluice/layers.h"
#include "sluice/zero.h"
#include "support/check.h"
#include "support/replicas.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static float own_x(const sl_group *group)
{
    return (float)sl_group_rank(group) + 1;
}

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
    (void)arg;
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
    toy replica;
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    int calls = 0;
    sl_status status = sl_ddp_register_hook(replica.ddp, one->hook, &calls);
    for (int i = 0; i < 2 && status == SL_OK; i++) {
        sl_ddp_set_sync(replica.ddp, i == 1);
        status = toy_step(&replica, i == 1 ? one->factor * own_x(group) : 0);
    }
    if (status == SL_OK)
        status = expect(toy_grad(&replica, "w") == one->expected, "%g, got %g", one->expected,
                        toy_grad(&replica, "w"));
    if (status == SL_OK)
        status = expect(!one->counts || calls == 1, "one call, got %d", calls);
    if (status == SL_OK)
        status = expect(sl_ddp_register_hook(replica.ddp, one->hook, NULL) == SL_ERR_INVALID,
                        "a second hook to be refused");
    toy_close(&replica);
    return status;
}

static void hook_replaces_averaging(void **state)
{
    (void)state;
    check_ranks(run_hook, &(hook_case){sum_hook, 1, 3, true}, 2);
    check_ranks(run_hook, &(hook_case){constant_hook, 1, 42, true}, 2);
    check_ranks(run_hook, &(hook_case){sl_ddp_average_hook, 1, 1.5f, false}, 2);
    check_ranks(run_hook, &(hook_case){sl_ddp_bf16_hook, 1.0003f, 1.5f, false}, 2);
    check_ranks(run_hook, &(hook_case){sl_ddp_bf16_hook, INFINITY, INFINITY, false}, 2);
}

static sl_status fail_in_hook(sl_group *group, void *arg)
{
    (void)arg;
    toy replica;
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    sl_status status = SL_OK;
    if (sl_group_rank(group) == 1)
        status = sl_ddp_register_hook(replica.ddp, failing_hook, NULL);
    if (status == SL_OK)
        status = toy_step(&replica, 1);
    toy_close(&replica);
    status = expect(status == SL_ERR_NUMERIC && strstr(sl_error_text(), "bucket 0 is bad"),
                    "every rank to fail with rank 1's error, got \"%s\"", sl_error_text());
    return status;
}

static void hook_that_fails_on_one_rank_ends_the_step_on_all(void **state)
{
    (void)state;
    check_ranks(fail_in_hook, NULL, 3);
}

int ddp_hooks_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hook_replaces_averaging),
        cmocka_unit_test(hook_that_fails_on_one_rank_ends_the_step_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
