/* DistributedDataParallel over a module whose gradients can be worked out by hand: PyTorch's
 * answers to the same situations. Rank r usually feeds r + 1, which is its gradient as well. */
#include "nn/module.h"
#include "parallel/ddp/zero.h"
#include "sluice/ddp.h"

#include "sluice/layers.h"
#include "support/check.h"
#include "support/modules.h"
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

/* ---- Construction ----------------------------------------------------------------------- */

static sl_status start_differently(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    toy_options options = {.w = own_x(group),
                           .with_unused = true,
                           .with_frozen = true,
                           .with_buffer = true};
    SL_TRY(toy_open(group, &options, NULL, &replica));
    return expect(toy_value(&replica, "w") == 1 && toy_value(&replica, "frozen") == 1 &&
                      toy_value(&replica, "buffer") == 1,
                  "rank 0's values");
}

static void construction_copies_rank_0s_parameters_and_buffers(void **state)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        check_ranks(start_differently, NULL, ranks);
}

static sl_status open_with_an_extra_parameter(sl_group *group, void *arg)
{
    toy replica;
    toy_options options = {.with_unused = sl_group_rank(group) == 0};
    const char *expected = sl_group_rank(group) == 0
                               ? "Rank 0 has 2 params, while rank 1 has inconsistent 1 params"
                               : "Rank 1 has 1 params, while rank 0 has inconsistent 2 params";
    SL_TRY(expect(toy_open(group, &options, NULL, &replica) == SL_ERR_INVALID &&
                      strstr(sl_error_text(), expected),
                  "\"%s\", got \"%s\"", expected, sl_error_text()));
    return sl_group_barrier(group, NULL);
}

static sl_status open_with_another_shape(sl_group *group, void *arg)
{
    toy replica;
    toy_options options = {.with_unused = true, .unused_size = sl_group_rank(group) == 1 ? 4 : 3};
    const char *expected = "params[1] (unused) in process 1 with sizes [4] appears not to match "
                           "sizes [3] of the same param in process 0";
    SL_TRY(expect(toy_open(group, &options, NULL, &replica) == SL_ERR_INVALID &&
                      strstr(sl_error_text(), expected),
                  "\"%s\", got \"%s\"", expected, sl_error_text()));
    return sl_group_barrier(group, NULL);
}

static sl_status open_with_other_options(sl_group *group, void *arg)
{
    toy replica;
    sl_ddp_options options = {.find_unused_parameters = sl_group_rank(group) == 0};
    return expect(toy_open(group, &(toy_options){0}, &options, &replica) == SL_ERR_INVALID,
                  "options that differ to be refused");
}

static void construction_with_replicas_that_differ_names_the_difference(void **state)
{
    check_ranks(open_with_an_extra_parameter, NULL, 2);
    check_ranks(open_with_another_shape, NULL, 3);
    check_ranks(open_with_other_options, NULL, 2);
}

static sl_status open_wrongly(sl_group *group, void *arg)
{
    sl_ddp *ddp;
    SL_TRY(expect(sl_ddp_create(&(sl_ddp_options){.group = group}, &ddp) == SL_ERR_INVALID && !ddp,
                  "nothing to replicate to be refused"));
    SCOPED(sl_device) *device = NULL;
    SCOPED(sl_module) *module = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    SL_TRY(sl_device_create_cpu(1, &device));
    SL_TRY(create_sequential(NULL, 0, &module));
    SL_TRY(
        sl_parameter_set_create(module, 0, 0, &(sl_parameter_set_options){.device = device}, &set));
    sl_ddp_options options = {.group = group, .module = module, .parameters = set};
    return expect(sl_ddp_create(&options, &ddp) == SL_ERR_INVALID &&
                      strstr(sl_error_text(),
                             "doesn't have any parameters that require a gradient"),
                  "a module without parameters to be refused");
}

static void construction_without_trained_parameters_is_refused(void **state)
{
    check_ranks(open_wrongly, NULL, 2);
}

static sl_status open_with_a_part_of_the_parameters(sl_group *group, void *arg)
{
    SCOPED(sl_device) *device = NULL;
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    SCOPED(sl_ddp) *ddp = NULL;
    sl_module *layers[2];
    SL_TRY(sl_device_create_cpu(1, &device));
    for (int i = 0; i < 2; i++)
        SL_TRY(sl_linear_create(3, 3, false, &layers[i]));
    SL_TRY(create_sequential(layers, 2, &model));
    SL_TRY(
        sl_parameter_set_create(model, 0, 1, &(sl_parameter_set_options){.device = device}, &set));
    sl_ddp_options options = {.group = group, .module = model, .parameters = set};
    return expect(sl_ddp_create(&options, &ddp) == SL_ERR_INVALID && !ddp &&
                      strstr(sl_error_text(), "1.weight is not in the given set"),
                  "a set of one layer of two to be refused, got \"%s\"", sl_error_text());
}

static void construction_with_parameters_outside_the_set_is_refused(void **state)
{
    check_ranks(open_with_a_part_of_the_parameters, NULL, 2);
}

static sl_status add_a_parameter(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    sl_parameter *late;
    const sl_parameter_spec spec = {.name = "late", .shape = sl_shape_1d(1)};
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    return expect(sl_module_add_parameter(replica.module, &spec, &late) == SL_ERR_INVALID &&
                      strstr(sl_error_text(),
                             "parameter \"late\" cannot be added to a model in use"),
                  "a parameter of a replica's to be refused, got \"%s\"", sl_error_text());
}

static void replica_takes_no_other_parameter(void **state)
{
    check_ranks(add_a_parameter, NULL, 2);
}

/* ---- Gradients -------------------------------------------------------------------------- */

static sl_status average_twice(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    SL_TRY(toy_step(&replica, own_x(group)));
    SL_TRY(expect(toy_grad(&replica, "w") == 1.5f, "1.5, got %g", toy_grad(&replica, "w")));
    SL_TRY(toy_step(&replica, own_x(group)));
    return expect(toy_grad(&replica, "w") == 3.0f, "3.0, got %g", toy_grad(&replica, "w"));
}

static void gradients_are_averaged_and_add_up_without_zeroing(void **state)
{
    check_ranks(average_twice, NULL, 2);
}

static sl_status use_a_weight_twice(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    toy_options options = {.w = 3, .squared = true, .with_frozen = true};
    SL_TRY(toy_open(group, &options, NULL, &replica));
    SL_TRY(toy_step(&replica, own_x(group)));
    SL_TRY(expect(toy_grad(&replica, "w") == 9, "9, got %g", toy_grad(&replica, "w")));
    return expect(toy_value(&replica, "frozen") == 3, "a frozen parameter to stay");
}

/* y = w (w x) with one w, 3, in two layers: its gradients are 2 w x, 6 and 12. */
static sl_status tie_two_layers(sl_group *group, void *arg)
{
    const sl_shape shape = sl_shape_2d(1, 1);
    SCOPED(sl_device) *device = NULL;
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_parameter_set) *set = NULL;
    SCOPED(sl_ddp) *ddp = NULL;
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *out = NULL, *in = NULL;
    sl_module *layers[2];
    sl_tensor *grad;
    SL_TRY(sl_device_create_cpu(1, &device));
    for (int i = 0; i < 2; i++)
        SL_TRY(sl_linear_create(1, 1, true, &layers[i]));
    SL_TRY(create_sequential(layers, 2, &model));
    SL_TRY(sl_module_tie_parameter(model, "1.weight", "0.weight"));
    SL_TRY(
        sl_parameter_set_create(model, 0, 0, &(sl_parameter_set_options){.device = device}, &set));
    sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(set, 0)))[0] = 3;
    SL_TRY(
        sl_ddp_create(&(sl_ddp_options){.group = group, .module = model, .parameters = set}, &ddp));
    SL_TRY(sl_pass_create(&(sl_pass_options){.device = device, .keep = true}, &pass));
    SL_TRY(sl_tensor_create(device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &in));
    sl_tensor_f32(in)[0] = own_x(group);
    SL_TRY(sl_ddp_forward(ddp, pass, in, &out));
    SL_TRY(expect(sl_tensor_f32(out)[0] == 9 * own_x(group), "w w x"));
    sl_tensor_f32(out)[0] = 1;
    SL_TRY(sl_ddp_backward(ddp, pass, out, NULL));
    SL_TRY(sl_parameter_grad(sl_parameter_set_get(set, 0), &grad));
    SL_TRY(expect(sl_tensor_f32(grad)[0] == 9, "9, got %g", (double)sl_tensor_f32(grad)[0]));
    return SL_OK;
}

static void weight_that_is_used_twice_counts_once(void **state)
{
    check_ranks(tie_two_layers, NULL, 2);
    check_ranks(use_a_weight_twice, NULL, 2);
}

static sl_status accumulate(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    float own = own_x(group), after_one = 0, after_two = 0, after_four = 0;
    sl_ddp_set_sync(replica.ddp, false);
    SL_TRY(toy_step(&replica, own));
    after_one = toy_grad(&replica, "w");
    sl_ddp_set_sync(replica.ddp, true);
    SL_TRY(toy_step(&replica, own));
    after_two = toy_grad(&replica, "w");
    sl_parameter_set_zero_grad(replica.set);
    for (int i = 0; i < 4; i++) {
        sl_ddp_set_sync(replica.ddp, i == 3);
        SL_TRY(toy_step(&replica, own));
    }
    after_four = toy_grad(&replica, "w");
    SL_TRY(expect(after_one == own && after_two == 3 && after_four == 6,
                  "%g, 3 and 6, got %g, %g and %g", own, after_one, after_two, after_four));
    return expect(sl_ddp_get_log(replica.ddp)->steps == 2, "two exchanges");
}

static void steps_without_sync_are_averaged_with_the_next_synced_one(void **state)
{
    check_ranks(accumulate, NULL, 2);
}

typedef struct two_passes {
    const char *modes;    /* of the two forwards: S(ync), N(o sync) */
    int order[2];         /* in which they go backward */
    float expected[2][2]; /* [rank][backward]: w's gradient after it */
    int64_t exchanges;
} two_passes;

/* Forward i has x = (rank + 1) * 10^i. */
static sl_status forward_twice_and_backward_twice(sl_group *group, void *arg)
{
    const two_passes *one = arg;
    int rank = sl_group_rank(group);
    const sl_shape shape = sl_shape_1d(1);
    const float ones = 1;
    SCOPED(toy) replica = {0};
    sl_pass *passes[2] = {NULL, NULL};
    sl_tensor *outputs[2] = {NULL, NULL};
    SL_TRY(toy_open(group, &(toy_options){0}, NULL, &replica));
    for (int i = 0; i < 2; i++) {
        SCOPED(sl_tensor) *in = NULL;
        const float x = own_x(group) * (i ? 10.0f : 1.0f);
        SL_TRY(
            sl_pass_create(&(sl_pass_options){.device = replica.device, .keep = true}, &passes[i]));
        SL_TRY(sl_tensor_create(replica.device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &in));
        SL_TRY(sl_tensor_write(in, &x));
        sl_ddp_set_sync(replica.ddp, one->modes[i] == 'S');
        SL_TRY(sl_ddp_forward(replica.ddp, passes[i], in, &outputs[i]));
    }
    for (int i = 0; i < 2; i++) {
        SL_TRY(sl_tensor_write(outputs[one->order[i]], &ones));
        SL_TRY(sl_ddp_backward(replica.ddp, passes[one->order[i]], outputs[one->order[i]], NULL));
        float expected = one->expected[rank][i];
        SL_TRY(expect(toy_grad(&replica, "w") == expected, "%g after backward %d, got %g", expected,
                      i, toy_grad(&replica, "w")));
    }
    SL_TRY(expect(sl_ddp_get_log(replica.ddp)->steps == one->exchanges,
                  "another number of exchanges"));
    for (int i = 0; i < 2; i++) {
        sl_tensor_destroy(&outputs[i]);
        sl_pass_destroy(&passes[i]);
    }
    return SL_OK;
}

/* The numbers are PyTorch's; tests/parity/test_ddp.py asks it. */
static void mode_at_forward_decides_what_backward_exchanges(void **state)
{
    two_passes all[] = {
        {"NS", {0, 1}, {{1.5f, 11.5f}, {1.5f, 21.5f}}, 1}, {"NS", {1, 0}, {{15, 16}, {15, 17}}, 1},
        {"SN", {0, 1}, {{1.5f, 11.5f}, {1.5f, 21.5f}}, 1}, {"SN", {1, 0}, {{15, 16}, {15, 17}}, 1},
        {"SS", {0, 1}, {{1.5f, 11.5f}, {1.5f, 21.5f}}, 1}, {"NN", {0, 1}, {{1, 11}, {2, 22}}, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_ranks(forward_twice_and_backward_twice, &all[i], 2);
}

/* ---- Parameters without a gradient ------------------------------------------------------ */

static sl_status leave_one_unused(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){.with_unused = true}, NULL, &replica));
    char expected[80];
    snprintf(expected, sizeof expected,
             "Parameter indices which did not receive grad for rank %d: 1", sl_group_rank(group));
    for (int i = 0; i < 2; i++) {
        sl_parameter_set_zero_grad(replica.set);
        SL_TRY(expect(toy_step(&replica, own_x(group)) == SL_ERR_INVALID &&
                          strstr(sl_error_text(), expected),
                      "\"%s\", got \"%s\"", expected, sl_error_text()));
        SL_TRY(expect(toy_grad(&replica, "w") == 1.5f, "the others' average all the same"));
    }
    return SL_OK;
}

static void unused_parameter_is_an_error_that_names_its_index(void **state)
{
    check_ranks(leave_one_unused, NULL, 2);
}

static sl_status use_w_on_rank_0_alone(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    toy_options options = {.with_unused = true, .skips_w = sl_group_rank(group) == 1};
    SL_TRY(toy_open(group, &options, &(sl_ddp_options){.find_unused_parameters = true}, &replica));
    SL_TRY(toy_step(&replica, 6));
    return expect(toy_grad(&replica, "w") == 3 && toy_grad(&replica, "unused") == 0,
                  "3 and 0, got %g and %g", toy_grad(&replica, "w"), toy_grad(&replica, "unused"));
}

static void unused_parameter_counts_as_zero_where_it_is_allowed(void **state)
{
    check_ranks(use_w_on_rank_0_alone, NULL, 2);
}

/* Rank 0 alone uses w; `unused` has a gradient in a third step alone, made by hand. */
static sl_status decay_what_is_used(sl_group *group, void *arg)
{
    bool sharded = *(bool *)arg;
    SCOPED(toy) replica = {0};
    SCOPED(sl_optimizer) *whole = NULL;
    SCOPED(sli_zero) *zero = NULL;
    const sl_optimizer_options options = {.momentum = 0.5f, .weight_decay = 0.5f};
    toy_options of_toy = {.with_unused = true,
                          .unused_size = 40,
                          .skips_w = sl_group_rank(group) == 1};
    SL_TRY(toy_open(group, &of_toy, &(sl_ddp_options){.find_unused_parameters = true}, &replica));
    SL_TRY(sharded
               ? sli_zero_create(&options, replica.set, sl_ddp_group(replica.ddp, 0), NULL, &zero)
               : sl_optimizer_create(&options, replica.set, &whole));
    const float w[] = {0.75f, 0.4375f, 0.171875f}, unused[] = {1, 1, 0.75f}; /* lr 0.5 */
    for (int step = 0; step < 3; step++) {
        sl_parameter_set_zero_grad(replica.set);
        SL_TRY(toy_step(&replica, 0)); /* a gradient of 0, on rank 0 */
        if (step == 2)
            toy_grad(&replica, "unused"); /* now it has one of 0 */
        SL_TRY(sl_optimizer_step(sharded ? sli_zero_optimizer(zero) : whole, 0.5, 1));
        if (sharded)
            SL_TRY(sli_zero_exchange(zero));
        SL_TRY(expect(toy_value(&replica, "unused") == unused[step] &&
                          toy_value(&replica, "w") == w[step],
                      "%g and %g after step %d, got %g and %g", unused[step], w[step], step,
                      toy_value(&replica, "unused"), toy_value(&replica, "w")));
    }
    return SL_OK;
}

static void parameter_that_no_rank_uses_is_not_decayed(void **state)
{
    check_ranks(decay_what_is_used, &(bool){false}, 2);
    check_ranks(decay_what_is_used, &(bool){true}, 2);
}

/* ---- Buffers ---------------------------------------------------------------------------- */

/* Each forward adds 1. Rank 1 adds another 10 between the steps. */
static sl_status change_buffers(sl_group *group, void *arg)
{
    bool broadcast = *(bool *)arg;
    SCOPED(toy) replica = {0};
    sl_ddp_options options = {.no_buffer_broadcast = !broadcast};
    SL_TRY(toy_open(group, &(toy_options){.with_buffer = true}, &options, &replica));
    SL_TRY(toy_step(&replica, 1));
    if (sl_group_rank(group) == 1)
        for (int i = 0; i < sl_parameter_set_count(replica.set); i++)
            if (sl_parameter_get_kind(sl_parameter_set_get(replica.set, i)) == SL_PARAMETER_BUFFER)
                sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(replica.set, i)))[0] += 10;
    SL_TRY(toy_step(&replica, 1));
    float expected = sl_group_rank(group) == 1 && !broadcast ? 12 : 2;
    return expect(toy_value(&replica, "buffer") == expected, "%g, got %g", expected,
                  toy_value(&replica, "buffer"));
}

static void training_steps_start_from_rank_0s_buffers_unless_told_otherwise(void **state)
{
    check_ranks(change_buffers, &(bool){true}, 2);
    check_ranks(change_buffers, &(bool){false}, 2);
}

/* Rank 1 looks at its own model in between; no rank waits for another. */
static sl_status evaluate_on_one_rank(sl_group *group, void *arg)
{
    SCOPED(toy) replica = {0};
    SL_TRY(toy_open(group, &(toy_options){.with_buffer = true}, NULL, &replica));
    SL_TRY(toy_step(&replica, own_x(group)));
    if (sl_group_rank(group) == 1) {
        SCOPED(sl_pass) *pass = NULL;
        SCOPED(sl_tensor) *out = NULL, *in = NULL;
        sl_shape shape = sl_shape_1d(1);
        SL_TRY(sl_pass_create(&(sl_pass_options){.device = replica.device}, &pass));
        SL_TRY(sl_tensor_create_zero(replica.device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &in));
        SL_TRY(sl_ddp_forward(replica.ddp, pass, in, &out));
    }
    return toy_step(&replica, own_x(group));
}

static void forward_without_backward_on_one_rank_waits_for_nobody(void **state)
{
    check_ranks(evaluate_on_one_rank, NULL, 2);
}

int ddp_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(construction_copies_rank_0s_parameters_and_buffers),
        cmocka_unit_test(construction_with_replicas_that_differ_names_the_difference),
        cmocka_unit_test(construction_without_trained_parameters_is_refused),
        cmocka_unit_test(construction_with_parameters_outside_the_set_is_refused),
        cmocka_unit_test(replica_takes_no_other_parameter),
        cmocka_unit_test(gradients_are_averaged_and_add_up_without_zeroing),
        cmocka_unit_test(weight_that_is_used_twice_counts_once),
        cmocka_unit_test(steps_without_sync_are_averaged_with_the_next_synced_one),
        cmocka_unit_test(mode_at_forward_decides_what_backward_exchanges),
        cmocka_unit_test(unused_parameter_is_an_error_that_names_its_index),
        cmocka_unit_test(unused_parameter_counts_as_zero_where_it_is_allowed),
        cmocka_unit_test(parameter_that_no_rank_uses_is_not_decayed),
        cmocka_unit_test(training_steps_start_from_rank_0s_buffers_unless_told_otherwise),
        cmocka_unit_test(forward_without_backward_on_one_rank_waits_for_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
