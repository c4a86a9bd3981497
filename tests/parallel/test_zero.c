/* An optimizer whose state is sharded over ranks, held against the same one whole. */
#include "nn/module.h"
#include "parallel/ddp/zero.h"
#include "tensor/tensor.h"

#include "core/philox.h"
#include "device/device_base.h"
#include "optim/optimizer.h"
#include "sluice/layers.h"

#include "support/check.h"
#include "support/modules.h"
#include "support/replicas.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, LAYERS = 3 };

typedef struct zero_case {
    sl_optimizer_options options;
    int64_t width, bucket_bytes;
} zero_case;

/* A model, its parameters, and gradients that are functions of the step. */
typedef struct replica {
    sl_device *device;
    sl_module *model;
    sl_parameter_set *set;
} replica;

static sl_status open_replica(const zero_case *one, replica *out)
{
    *out = (replica){0};
    sl_module *layers[LAYERS];
    SL_TRY(sl_device_create_cpu(1, &out->device));
    for (int i = 0; i < LAYERS; i++)
        SL_TRY(sl_linear_create(one->width, one->width + i, false, &layers[i]));
    SL_TRY(create_sequential(layers, LAYERS, &out->model));
    sl_parameter_set_options options = {.device = out->device,
                                        .seed = 3,
                                        .first_bucket_bytes = one->bucket_bytes,
                                        .bucket_bytes = one->bucket_bytes};
    return sl_parameter_set_create(out->model, 0, 0, &options, &out->set);
}

static void replica_destroy(replica *dead)
{
    sl_parameter_set_destroy(&dead->set);
    sl_module_destroy(&dead->model);
    sl_device_destroy(&dead->device);
}

static void write_gradients(const replica *r, int step)
{
    for (int i = 0; i < sl_parameter_set_count(r->set); i++) {
        sl_tensor *grad;
        if (sl_parameter_grad(sl_parameter_set_get(r->set, i), &grad) != SL_OK)
            abort();
        for (int64_t k = 0; k < sl_tensor_count(grad); k++) {
            uint32_t counter[4] = {(uint32_t)k, (uint32_t)i, (uint32_t)step, 0};
            sli_philox(sli_philox_key_make(9, SLI_RANDOM_SAMPLE), counter);
            sl_tensor_f32(grad)[k] = sli_uniform_from_bits(counter[0]) - 0.5f;
        }
    }
}

static sl_status same_weights(const replica *a, const replica *b)
{
    for (int i = 0; i < sl_parameter_set_bucket_count(a->set); i++) {
        const sl_tensor *x = sl_parameter_set_bucket_values(a->set, i);
        const sl_tensor *y = sl_parameter_set_bucket_values(b->set, i);
        SL_TRY(expect(memcmp(sl_tensor_data(x), sl_tensor_data(y), sli_tensor_bytes(x)) == 0,
                      "the whole optimizer's weights in bucket %d, bit for bit", i));
    }
    return SL_OK;
}

static sl_status same_state(const replica *r, const sl_optimizer *a, const sl_optimizer *b)
{
    int of_a, of_b, arrays = sli_optimizer_arrays_of(sli_optimizer_options(a));
    const int64_t *steps_a = sli_optimizer_steps(a, &of_a),
                  *steps_b = sli_optimizer_steps(b, &of_b);
    SL_TRY(expect(of_a == of_b && memcmp(steps_a, steps_b, (size_t)of_a * sizeof *steps_a) == 0,
                  "equal numbers of steps"));
    for (int i = 0; i < sl_parameter_set_bucket_count(r->set); i++)
        for (int array = 0; array < arrays; array++) {
            const sl_tensor *x = sli_optimizer_state(a, i, array);
            const sl_tensor *y = sli_optimizer_state(b, i, array);
            SL_TRY(expect(memcmp(sl_tensor_data(x), sl_tensor_data(y), sli_tensor_bytes(x)) == 0,
                          "the whole optimizer's state in bucket %d, bit for bit", i));
        }
    return SL_OK;
}

/* ---- Steps ------------------------------------------------------------------------------ */

static sl_status step_both(const replica *a, sl_optimizer *whole, const replica *b, sli_zero *zero,
                           int step)
{
    write_gradients(a, step);
    write_gradients(b, step);
    double lr = 0.1 / (step + 1), scale = 0.75;
    SL_TRY(sl_optimizer_step(whole, lr, scale));
    SL_TRY(sl_optimizer_step(sli_zero_optimizer(zero), lr, scale));
    SL_TRY(sli_zero_exchange(zero));
    return same_weights(a, b);
}

/* Consolidates on the last rank. */
static sl_status consolidate(sl_group *group, const replica *a, sl_optimizer *whole, sli_zero *zero)
{
    SCOPED(sl_optimizer) *consolidated = NULL;
    int last = sl_group_size(group) - 1;
    SL_TRY(sli_zero_consolidate(zero, last, &consolidated));
    SL_TRY(expect((sl_group_rank(group) == last) == (consolidated != NULL),
                  "the state on the last rank alone"));
    return consolidated ? same_state(a, whole, consolidated) : SL_OK;
}

/* A rank's state is its shards of the whole, to a cache line for each bucket. */
static sl_status check_memory(sl_group *group, const zero_case *one, const replica *whole,
                              const replica *sharded)
{
    sl_memory_stats all, own;
    sl_device_memory(whole->device, &all);
    sl_device_memory(sharded->device, &own);
    uint64_t buckets = (uint64_t)sl_parameter_set_bucket_count(whole->set);
    uint64_t arrays = (uint64_t)sl_optimizer_state_bytes(&one->options) / sizeof(float);
    uint64_t limit = all.current_bytes[SL_MEMORY_OPTIMIZER] / (uint64_t)sl_group_size(group) +
                     64 * buckets * arrays;
    return expect(own.current_bytes[SL_MEMORY_OPTIMIZER] <= limit,
                  "at most %llu bytes of state, got %llu", (unsigned long long)limit,
                  (unsigned long long)own.current_bytes[SL_MEMORY_OPTIMIZER]);
}

static sl_status train_both(sl_group *group, void *arg)
{
    const zero_case *one = arg;
    SCOPED(replica) b = {0}, a = {0};
    SCOPED(sli_zero) *zero = NULL;
    SCOPED(sl_optimizer) *whole = NULL;
    SL_TRY(open_replica(one, &a));
    SL_TRY(open_replica(one, &b));
    SL_TRY(sl_optimizer_create(&one->options, a.set, &whole));
    SL_TRY(sli_zero_create(&one->options, b.set, group, NULL, &zero));
    SL_TRY(check_memory(group, one, &a, &b));
    for (int step = 0; step < STEPS; step++) {
        SL_TRY(step_both(&a, whole, &b, zero, step));
        if (step == 1)
            SL_TRY(consolidate(group, &a, whole, zero));
    }
    return SL_OK;
}

static void sharded_optimizer_gives_the_whole_ones_bits_with_its_share_of_the_memory(void **state)
{
    const sl_optimizer_options methods[] = {
        {.kind = SL_OPTIMIZER_SGD},
        {.kind = SL_OPTIMIZER_SGD, .momentum = 0.9f, .nesterov = true, .weight_decay = 0.01f},
        {.kind = SL_OPTIMIZER_SGD, .momentum = 0.8f, .dampening = 0.5f},
        {.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.01f},
        {.kind = SL_OPTIMIZER_ADAMW, .precision = SL_PRECISION_BF16},
    };
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        for (int ranks = 1; ranks <= 8; ranks += ranks < 4 ? 1 : 4) {
            zero_case one = {methods[m], 3 + 17 * (ranks % 3), ranks % 2 ? 600 : 1 << 20};
            check_ranks(train_both, &one, ranks);
        }
}

/* ---- Failures --------------------------------------------------------------------------- */

static sl_status refuse_memory(sl_device *device, size_t bytes, void **out)
{
    *out = NULL;
    return SL_ERR_MEMORY;
}

/* Rank 0 has no memory for the whole state. */
static sl_status consolidate_without_memory(const replica *r, sli_zero *zero, bool is_rank_0)
{
    const sli_device_ops *real = r->device->ops;
    sli_device_ops failing = *real;
    sl_optimizer *whole;
    failing.allocate = failing.allocate_zero = refuse_memory;
    r->device->ops = is_rank_0 ? &failing : real;
    sl_status status = sli_zero_consolidate(zero, 0, &whole);
    r->device->ops = real;
    return expect(status == SL_ERR_MEMORY && !whole, "no memory on rank 0, got \"%s\"",
                  sl_error_text());
}

static sl_status fail_and_consolidate(sl_group *group, void *arg)
{
    const zero_case *one = arg;
    bool is_rank_0 = sl_group_rank(group) == 0;
    SCOPED(replica) b = {0}, a = {0};
    SCOPED(sli_zero) *zero = NULL;
    SCOPED(sl_optimizer) *whole = NULL, *consolidated = NULL;
    SL_TRY(open_replica(one, &a));
    SL_TRY(open_replica(one, &b));
    SL_TRY(sl_optimizer_create(&one->options, a.set, &whole));
    SL_TRY(sli_zero_create(&one->options, b.set, group, NULL, &zero));
    for (int step = 0; step < 2; step++) {
        SL_TRY(step_both(&a, whole, &b, zero, step));
        if (step == 0)
            SL_TRY(consolidate_without_memory(&b, zero, is_rank_0));
    }
    SL_TRY(sli_zero_consolidate(zero, 0, &consolidated));
    if (is_rank_0)
        SL_TRY(same_state(&a, whole, consolidated));
    return SL_OK;
}

/* What was sent to the rank that failed is not received later. */
static void consolidation_can_be_called_again_after_a_failure(void **state)
{
    zero_case one = {.options = {.momentum = 0.9f}, .width = 20, .bucket_bytes = 600};
    check_ok(sl_spawn(fail_and_consolidate, &one, 3, &(sl_group_options){.timeout_seconds = 10}));
}

/* ---- Mistakes --------------------------------------------------------------------------- */

static sl_status create_and_consolidate_wrongly(sl_group *group, void *arg)
{
    const zero_case sgd = {.options = {.kind = SL_OPTIMIZER_SGD, .momentum = 0.5f},
                           .width = 4,
                           .bucket_bytes = 1 << 20};
    SCOPED(replica) small = {0};
    sli_zero *zero;
    sl_optimizer *other;
    SL_TRY(open_replica(&sgd, &small));
    SL_TRY(sli_zero_create(&sgd.options, small.set, group, NULL, &zero));
    SL_TRY(expect(sli_zero_consolidate(zero, 2, &other) == SL_ERR_INVALID && !other,
                  "rank 2 of two to be refused"));
    sli_zero_destroy(&zero);
    SL_TRY(expect(sli_zero_create(&(sl_optimizer_options){.weight_decay = -1}, small.set, group,
                                  NULL, &zero) == SL_ERR_INVALID &&
                      !zero,
                  "a negative decay to be refused"));
    return SL_OK;
}

static void wrong_ranks_and_options_are_refused(void **state)
{
    check_ranks(create_and_consolidate_wrongly, NULL, 2);
}

int zero_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharded_optimizer_gives_the_whole_ones_bits_with_its_share_of_the_memory),
        cmocka_unit_test(consolidation_can_be_called_again_after_a_failure),
        cmocka_unit_test(wrong_ranks_and_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
