/* Profiles of CUDA devices of a runtime that needs no GPU (cuda/fake_cuda.h), and what is cut by
 * them. */
#include "device/cuda/fake_cuda_state.h"
#include "device/device_base.h"
#include "sluice/layers.h"
#include "support/check.h"
#include "tensor/tensor.h"
#include "train/plan/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ASKED = 4, ROWS = 8, WIDTH = 4, CLASSES = 5, PRODUCT_US = 10000 };

/* The devices that a profile has asked rows for. */
typedef struct asked_devices {
    char names[MOST_ASKED][SLI_DEVICE_NAME_BYTES];
    int count;
} asked_devices;

static sl_status load_zeros(void *context, const sl_train_rows *rows, sl_device *input_device,
                            sl_device *target_device, sl_tensor **input, sl_tensor **targets)
{
    asked_devices *asked = context;
    const sl_shape points = sl_shape_2d(rows->count, WIDTH), classes = sl_shape_1d(rows->count);
    assert_in_range(asked->count, 0, MOST_ASKED - 1);
    snprintf(asked->names[asked->count++], SLI_DEVICE_NAME_BYTES, "%s",
             sl_device_name(input_device));
    SL_TRY(sl_tensor_create(input_device, SL_MEMORY_WORKSPACE, SL_F32, &points, input));
    SL_TRY(sli_tensor_zero(*input));
    SL_TRY(sl_tensor_create(target_device, SL_MEMORY_WORKSPACE, SL_I32, &classes, targets));
    return sli_tensor_zero(*targets);
}

/* A letter for each module of the model: L a linear, N a layer norm, O the linear before the loss.
 * A stage for each device, with `cores` [stages]. */
static void profile(const char *modules, const char *devices, const int *cores, int stages,
                    asked_devices *asked, int *balance)
{
    const sl_train_task task = {.context = asked, .load_rows = load_zeros};
    sl_train_options options;
    sl_module *model = NULL;
    sl_loss *loss;
    sl_device_list *list;
    sli_step_times times;
    sl_plan *plan;
    *asked = (asked_devices){.count = 0};
    sl_train_options_default(&options);
    options.task = &task;
    options.batch_size = ROWS;
    options.pipeline_ranks = stages;
    options.balance_kind = SL_BALANCE_AUTO;
    for (const char *module = modules; *module; module++) {
        sl_module *layer;
        sl_status status =
            *module == 'N'
                ? sl_layer_norm_create(WIDTH, 1e-5f, &layer)
                : sl_linear_create(WIDTH, *module == 'O' ? CLASSES : WIDTH, false, &layer);
        check_ok(sl_sequential_append(&model, status, &layer));
    }
    check_ok(sl_cross_entropy_create(&loss));
    check_ok(sl_device_list_create(devices, &list, NULL));
    const sl_train_launch alone = {0};
    check_ok(sli_plan_layout(&(sli_plan_inputs){.options = &options, .launch = &alone}, &plan));
    sl_status status = sli_profile_model(&(sli_profile_inputs){.plan = plan,
                                                               .task = &task,
                                                               .model = model,
                                                               .loss = loss,
                                                               .devices = list,
                                                               .cores = cores},
                                         NULL, balance, &times);
    sl_plan_destroy(&plan);
    sl_device_list_destroy(&list);
    sl_loss_destroy(&loss);
    sl_module_destroy(&model);
    check_ok(status);
}

/* All of these devices have one thread. */
static void a_profile_of_a_device_is_shared_between_like_cpus_alone(void **state)
{
    const int cores[] = {0, 1, 2, 2};
    int core = allowed_core(0), balance[SL_MAX_STAGES];
    asked_devices asked;
    char names[4 * SLI_DEVICE_NAME_BYTES];
    snprintf(names, sizeof names, "cuda:0,cuda:1,cpu:%d-%d,cpu:%d-%d", core, core, core, core);
    profile("LLLO", names, cores, 4, &asked, balance);
    assert_int_equal(asked.count, 3);
    assert_string_equal(asked.names[0], "cuda:0");
    assert_string_equal(asked.names[1], "cuda:1");
    assert_memory_equal(asked.names[2], "cpu:", 4);
}

/* Norms are queued as quickly as products, and take next to nothing. The linears are the work: of
 * four, two on each side. */
static void a_cut_by_time_balances_what_devices_do(void **state)
{
    const int cores[] = {0, 1};
    int balance[SL_MAX_STAGES];
    asked_devices asked;
    sl_device_list *opened; /* so that there is the object with the runtime */
    check_ok(sl_device_list_create("cuda:0", &opened, NULL));
    find_fake_cuda()->product_us = PRODUCT_US;
    profile("LLLNNNNO", "cuda:0,cuda:1", cores, 2, &asked, balance);
    find_fake_cuda()->product_us = 0;
    sl_device_list_destroy(&opened);
    assert_int_equal(balance[0], 2);
}

/* ---- The optimizer ---------------------------------------------------------------------- */

enum { UPDATE_US = 20000, STEPS = 3 };

static sl_status create_linear(void *context, sl_module **model, sl_loss **loss)
{
    sl_module *layer;
    SL_TRY(sl_sequential_append(model, sl_linear_create(WIDTH, CLASSES, false, &layer), &layer));
    return sl_cross_entropy_create(loss);
}

static sl_status count_batches(void *context, sl_split split, int64_t rows, int64_t *batches)
{
    *batches = split == SL_SPLIT_TRAIN ? STEPS : 0;
    return SL_OK;
}

static sl_status check_update(void *context, const sl_step_info *step)
{
    assert_true(step->optimizer_seconds >= UPDATE_US * 1e-6);
    assert_true(step->seconds >= step->optimizer_seconds);
    ++*(int *)context;
    return SL_OK;
}

/* It is queued at once; its time and the step's are those in which the device does it. */
static void an_optimizers_time_is_the_devices(void **state)
{
    int steps = 0;
    asked_devices asked = {.count = 0};
    const sl_train_task task = {.context = &asked,
                                .create_model = create_linear,
                                .count_batches = count_batches,
                                .load_rows = load_zeros};
    const sl_reporter reporter = {.context = &steps, .step = check_update};
    sl_train_options options;
    sl_run_result result;
    sl_device_list *opened;
    sl_train_options_default(&options);
    options.task = &task;
    options.batch_size = options.eval_batch_size = ROWS;
    options.epochs = 1;
    options.devices = "cuda:0";
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_SGD};
    options.lr.lr = 0.1;
    check_ok(sl_device_list_create("cuda:0", &opened, NULL));
    find_fake_cuda()->update_us = UPDATE_US;
    sl_status status = sl_train_run(&options, &reporter, 1, &result);
    find_fake_cuda()->update_us = 0;
    sl_device_list_destroy(&opened);
    check_ok(status);
    assert_int_equal(steps, STEPS);
}

int cuda_profile_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_of_a_device_is_shared_between_like_cpus_alone),
        cmocka_unit_test(a_cut_by_time_balances_what_devices_do),
        cmocka_unit_test(an_optimizers_time_is_the_devices),
    };
    if (!getenv("FAKE_CUDA_CLOSED")) {
        print_message("skipped: no CUDA toolkit, or no C++ compiler, was found\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
