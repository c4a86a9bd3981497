/* A pipe over two CUDA devices of a runtime that needs no GPU (cuda/fake_cuda.h): what its host
 * waits for, what it launches, and what it does without memory. */
#include "device/cuda/fake_cuda_state.h"
#include "device/device_base.h"
#include "nn/module.h"
#include "sluice/layers.h"
#include "sluice/model.h"
#include "sluice/pipe_optimizer.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/replicas.h"
#include "support/rig.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 2, ROWS = 4, TIME = 3, TOKENS = 5, WIDTH = 4, CHUNKS = 2 };

typedef struct job {
    fake_cuda_state *cuda;
    sl_device_list *list;
    sl_device *devices[STAGES];
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
    sl_pipe_optimizer *optimizer;
    sl_tensor *input, *targets;
} job;

static void create_pipe(job *j)
{
    const sl_model_options model = {
        .ntokens = TOKENS, .emsize = WIDTH, .nhid = 6, .nlayers = 2, .nhead = 2, .dropout = 0.1f};
    check_ok(sl_transformer_lm_create(&model, &j->model));
    check_ok(sl_cross_entropy_create(&j->loss));
    check_ok(sl_pipe_create(&(sl_pipe_options){.model = j->model,
                                               .loss = j->loss,
                                               .stages = STAGES,
                                               .devices = j->devices,
                                               .chunks = CHUNKS},
                            &j->pipe));
    check_ok(
        sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = j->pipe}, &j->optimizer));
}

/* The batch; id `wrong` (-1: none) is that of the last element but one. */
static void write_ids(sl_tensor *to, int wrong)
{
    int32_t ids[ROWS * TIME];
    for (int i = 0; i < ROWS * TIME; i++)
        ids[i] = i * i % TOKENS;
    if (wrong >= 0)
        ids[ROWS * TIME - 2] = wrong;
    check_ok(sl_tensor_write(to, ids));
}

static int open_job(void **state)
{
    static job j;
    const sl_shape shape = sl_shape_2d(ROWS, TIME);
    memset(&j, 0, sizeof j);
    check_ok(sl_device_list_create("cuda:0/0,cuda:0/1", &j.list, NULL));
    j.cuda = find_fake_cuda();
    for (int s = 0; s < STAGES; s++)
        j.devices[s] = sl_device_list_get(j.list, s);
    create_pipe(&j);
    check_ok(sl_tensor_create(j.devices[0], SL_MEMORY_WORKSPACE, SL_I32, &shape, &j.input));
    check_ok(sl_tensor_create(j.devices[1], SL_MEMORY_WORKSPACE, SL_I32, &shape, &j.targets));
    write_ids(j.input, -1);
    write_ids(j.targets, -1);
    *state = &j;
    return 0;
}

static int close_job(void **state)
{
    job *j = *state;
    sl_tensor_destroy(&j->input);
    sl_tensor_destroy(&j->targets);
    sl_pipe_optimizer_destroy(&j->optimizer);
    sl_pipe_destroy(&j->pipe);
    sl_loss_destroy(&j->loss);
    sl_module_destroy(&j->model);
    sl_device_list_destroy(&j->list);
    return 0;
}

static sl_status train(job *j, double *loss)
{
    sl_pipe_zero_grad(j->pipe);
    return sl_pipe_train(j->pipe, &(sl_pipe_batch){.input = j->input, .targets = j->targets}, loss);
}

/* ---- Waits and launches ----------------------------------------------------------------- */

static long count_buckets(const job *j)
{
    long count = 0;
    for (int s = 0; s < STAGES; s++)
        count += sl_parameter_set_bucket_count(sl_pipe_parameters(j->pipe, s));
    return count;
}

static void a_step_waits_for_losses_and_norms_alone(void **state)
{
    job *j = *state;
    double loss, norm;
    check_ok(train(j, &loss));
    long waits = j->cuda->waits, copies = j->cuda->peer_copies;
    check_ok(train(j, &loss));
    assert_int_equal(j->cuda->waits - waits, CHUNKS);            /* the loss of each micro-batch */
    assert_int_equal(j->cuda->peer_copies - copies, 2 * CHUNKS); /* forward and back */
    waits = j->cuda->waits;
    long norms = j->cuda->norm_launches, updates = j->cuda->sgd_launches;
    check_ok(sl_clip_grad_norm(j->pipe, 1, SL_GRAD_NORM_L2, false, &norm));
    check_ok(sl_pipe_optimizer_step(j->optimizer, 0.1, 0, NULL));
    assert_int_equal(j->cuda->waits - waits, STAGES);
    assert_int_equal(j->cuda->norm_launches - norms, STAGES); /* for all parameters of a stage */
    assert_int_equal(j->cuda->sgd_launches - updates, count_buckets(j));
    assert_true(count_buckets(j) == STAGES);
}

/* Its update waits for nothing. Parameters of another weight decay are another launch. */
static void adamw_updates_a_bucket_by_one_launch(void **state)
{
    job *j = *state;
    double loss;
    check_ok(train(j, &loss));
    for (sl_decay_kind decay = SL_DECAY_ALL; decay <= SL_DECAY_MATRICES; decay++) {
        const sl_pipe_optimizer_options options = {.pipe = j->pipe,
                                                   .optimizer = {.kind = SL_OPTIMIZER_ADAMW,
                                                                 .weight_decay = 0.1f,
                                                                 .decay = decay}};
        sl_pipe_optimizer *adamw;
        check_ok(sl_pipe_optimizer_create(&options, &adamw));
        long updates = j->cuda->adamw_launches, waits = j->cuda->waits;
        sl_status status = sl_pipe_optimizer_step(adamw, 0.1, 0, NULL);
        updates = j->cuda->adamw_launches - updates;
        waits = j->cuda->waits - waits;
        sl_pipe_optimizer_destroy(&adamw);
        check_ok(status);
        assert_int_equal(waits, 0);
        assert_true(decay == SL_DECAY_ALL ? updates == count_buckets(j)
                                          : updates > count_buckets(j));
    }
}

/* So that the loss waits once a call, however many panels it has. */
static void the_loss_of_a_panel_waits_for_nothing(void **state)
{
    job *j = *state;
    const sl_shape rows = sl_shape_2d(ROWS, TIME), all = sl_shape_2d(ROWS * TIME, TOKENS);
    SCOPED(sl_tensor) *losses = NULL, *logits = NULL;
    double host[ROWS * TIME];
    check_ok(sl_tensor_create(j->devices[1], SL_MEMORY_WORKSPACE, SL_F32, &all, &logits));
    check_ok(sl_tensor_create(j->devices[1], SL_MEMORY_WORKSPACE, SL_F64, &rows, &losses));
    check_ok(sli_tensor_zero(logits));
    long waits = j->cuda->waits;
    check_ok(sli_device_cross_entropy(j->devices[1],
                                      &(sli_cross_entropy){.rows = ROWS * TIME,
                                                           .classes = TOKENS,
                                                           .ld = TOKENS,
                                                           .logits = sl_tensor_f32(logits),
                                                           .targets = sl_tensor_i32(j->targets),
                                                           .ignore = -1,
                                                           .loss = sl_tensor_data(losses)}));
    assert_int_equal(j->cuda->waits, waits);
    check_ok(sl_tensor_read(losses, host));
    for (int i = 0; i < ROWS * TIME; i++)
        assert_float_equal(host[i], log(TOKENS), 1e-6);
}

static void pools_of_a_pipes_gpus_stay_closed(void **state)
{
    job *j = *state; /* two devices on GPU 0 */
    SCOPED(sl_device_list) *other = NULL;
    long before = j->cuda->accesses;
    check_ok(sl_device_list_create("cuda:1,cuda:1/1", &other, NULL));
    assert_int_equal(j->cuda->accesses, before);
}

static void ids_that_the_model_lacks_are_named(void **state)
{
    job *j = *state;
    double first, loss;
    check_ok(train(j, &first));
    write_ids(j->input, TOKENS);
    check_error(train(j, &loss), SL_ERR_INVALID, "token id 5 at [1, 1] is not in 0 .. 4");
    write_ids(j->input, -1);
    write_ids(j->targets, TOKENS + 2);
    check_error(train(j, &loss), SL_ERR_INVALID, "target 7 at row 4 is not in 0 .. 4");
    write_ids(j->targets, -1);
    check_ok(train(j, &loss));
    assert_true(loss == first);
}

/* Of ids that the host has written it knows that they fit, so that it need not wait for the device;
 * but not of those that are copied over them, nor of those around a view that was written. */
static void ids_that_are_copied_are_checked_anew(void **state)
{
    job *j = *state;
    const sl_shape one = sl_shape_1d(1);
    const int32_t wrong[] = {TOKENS}, right[] = {0};
    SCOPED(sl_tensor) *other = NULL, *view = NULL;
    double loss;
    check_ok(sl_tensor_create(j->devices[0], SL_MEMORY_WORKSPACE, SL_I32, sl_tensor_shape(j->input),
                              &other));
    write_ids(other, TOKENS);
    check_ok(sl_tensor_copy(j->input, other));
    check_error(train(j, &loss), SL_ERR_INVALID, "token id 5 at [1, 1] is not in 0 .. 4");
    write_ids(j->input, -1);
    check_ok(train(j, &loss));
    check_ok(sl_tensor_view(j->input, 0, &one, &view));
    check_ok(sl_tensor_write(view, wrong));
    check_error(train(j, &loss), SL_ERR_INVALID, "token id 5 at [0, 0] is not in 0 .. 4");
    write_ids(j->input, TOKENS);
    check_ok(sl_tensor_write(view, right));
    check_error(train(j, &loss), SL_ERR_INVALID, "token id 5 at [1, 1] is not in 0 .. 4");
}

/* ---- Copies from the host --------------------------------------------------------------- */

/* More than the ring of pinned memory has room for, in sizes that do not divide it; and many at
 * once, of which each arrives though the host's memory changes right after the call. */
static void pageable_memory_goes_through_pinned_memory(void **state)
{
    enum { LARGE = 3 << 20, SMALL = 200 };
    job *j = *state;
    const sl_shape shape = sl_shape_1d(LARGE), small = sl_shape_1d(SMALL);
    sl_tensor *large, *view;
    FREED int32_t *host = malloc(LARGE * sizeof *host);
    long before = j->cuda->pageable_copies;
    assert_non_null(host);
    check_ok(sl_tensor_create(j->devices[0], SL_MEMORY_WORKSPACE, SL_I32, &shape, &large));
    for (int i = 0; i < LARGE; i++)
        host[i] = i * 7;
    check_ok(sl_tensor_write(large, host));
    for (int first = 0; first < 100 * SMALL; first += SMALL) {
        check_ok(sl_tensor_view(large, first, &small, &view));
        for (int i = 0; i < SMALL; i++)
            host[i] = first - i;
        check_ok(sl_tensor_write(view, host));
        sl_tensor_destroy(&view);
    }
    memset(host, 0, LARGE * sizeof *host);
    check_ok(sl_tensor_read(large, host));
    for (int i = 0; i < LARGE; i++)
        assert_int_equal(host[i], i < 100 * SMALL ? i / SMALL * SMALL - i % SMALL : i * 7);
    assert_int_equal(j->cuda->pageable_copies, before);
    sl_tensor_destroy(&large);
}

/* ---- Products --------------------------------------------------------------------------- */

/* cuBLASLt has no algorithm for bf16 rows of an odd length, nor for those from an odd element. Of
 * others it is told how far they are aligned: b's less than a's. */
static void odd_bf16_rows_are_padded(void **state)
{
    enum { M = 4, N = 6, K = 7, ROOM = 3 + N * K, PADDED = 64 };
    job *j = *state;
    const sl_shape room = sl_shape_1d(ROOM), out = sl_shape_2d(M, N);
    SCOPED(sl_tensor) *ones = NULL, *sums = NULL;
    uint16_t host[ROOM];
    for (int i = 0; i < ROOM; i++)
        host[i] = 0x3f80; /* 1 */
    check_ok(sl_tensor_create(j->devices[0], SL_MEMORY_WORKSPACE, SL_BF16, &room, &ones));
    check_ok(sl_tensor_create(j->devices[0], SL_MEMORY_WORKSPACE, SL_F32, &out, &sums));
    check_ok(sl_tensor_write(ones, host));
    j->cuda->longest_row = 0;
    for (int bits = 0; bits < 8; bits++) {
        bool of_a = bits & 1, of_b = bits & 2;
        const uint16_t *first = (uint16_t *)sl_tensor_data(ones) + bits / 4;
        check_ok(sli_device_gemm(j->devices[0], &(sli_gemm){.transpose_a = of_a,
                                                            .transpose_b = of_b,
                                                            .bf16 = true,
                                                            .m = M,
                                                            .n = N,
                                                            .k = K,
                                                            .a = first,
                                                            .b = first + 2,
                                                            .c = sl_tensor_f32(sums),
                                                            .lda = of_a ? M : K,
                                                            .ldb = of_b ? K : N,
                                                            .ldc = N}));
        FREED float *values = tensor_values(sums);
        for (int i = 0; i < M * N; i++)
            assert_true(values[i] == K);
    }
    assert_int_equal(j->cuda->longest_row, PADDED);
}

/* ---- Panels of logits ------------------------------------------------------------------- */

/* On a GPU two panels in f32 and two strips of one in bf16, of 128 rows and of one. A row of logits
 * is padded to a multiple of 64 elements. */
enum { PANELS = 2, PANEL_ROWS = 129, PANEL_WIDTH = 2, CLASSES = 524291, PADDED_CLASSES = 524352 };

typedef struct panel_step {
    double loss;
    float *gradients; /* of all parameters; malloc'ed */
    int64_t count;
} panel_step;

static void train_panels(job *j, panel_step *out)
{
    const sl_shape in = sl_shape_2d(PANEL_ROWS, PANEL_WIDTH), rows = sl_shape_1d(PANEL_ROWS);
    int32_t targets[PANEL_ROWS];
    for (int i = 0; i < PANEL_ROWS; i++)
        targets[i] = i % 7 == 3 ? CLASSES - 1 : i % 11 == 5 ? -100 : i * 1009;
    j->input = random_tensor(j->devices[0], &in, 1);
    j->targets = integer_tensor(j->devices[0], &rows, targets);
    check_ok(train(j, &out->loss));
    sl_tensor *gradients = bucket_gradients(sl_pipe_parameters(j->pipe, 0), 0);
    out->count = sl_tensor_count(gradients);
    out->gradients = tensor_values(gradients);
}

static panel_step step_in_panels(const char *device, const char *schedule, sl_precision precision)
{
    sl_module *layers[2];
    job j = {0};
    panel_step out;
    check_ok(sl_device_list_create(device, &j.list, NULL));
    j.devices[0] = sl_device_list_get(j.list, 0);
    check_ok(sl_linear_create(PANEL_WIDTH, PANEL_WIDTH, true, &layers[0]));
    check_ok(sl_linear_create(PANEL_WIDTH, CLASSES, true, &layers[1]));
    check_ok(create_sequential(layers, 2, &j.model));
    check_ok(sl_cross_entropy_create(&j.loss));
    check_ok(sl_pipe_create(&(sl_pipe_options){.model = j.model,
                                               .loss = j.loss,
                                               .stages = 1,
                                               .devices = j.devices,
                                               .schedule = schedule,
                                               .precision = precision},
                            &j.pipe));
    train_panels(&j, &out);
    close_job(&(void *){&j});
    return out;
}

static void check_step(const panel_step *got, const panel_step *expected, double bound)
{
    assert_true(fabs(got->loss - expected->loss) <= bound * expected->loss);
    assert_int_equal(got->count, expected->count);
    assert_true(relative_distance(got->gradients, expected->gradients, got->count) <= bound);
}

/* gpipe adds the panels' gradients of the weight at once, zb-h1 later. */
static void panels_of_logits_match_the_cpus(void **state)
{
    fake_cuda_state *cuda = find_fake_cuda();
    if (IS_SANITIZED) {
        print_message("skipped: panels of logits have 68 million elements, too many here\n");
        skip();
    }
    for (sl_precision precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++) {
        double bound = precision == SL_PRECISION_F32 ? 1e-5 : 1e-2;
        panel_step cpu = step_in_panels("cpu:0", "zb-h1", precision);
        long before = cuda->entropy_launches;
        cuda->longest_row = 0;
        panel_step deferred = step_in_panels("cuda:0", "zb-h1", precision);
        assert_int_equal(cuda->longest_row, PADDED_CLASSES);
        assert_int_equal(cuda->entropy_launches - before, PANELS);
        check_step(&deferred, &cpu, bound);
        free(cpu.gradients);
        if (precision == SL_PRECISION_F32) {
            panel_step at_once = step_in_panels("cuda:0", "gpipe", precision);
            check_step(&at_once, &deferred, 0);
            free(at_once.gradients);
        }
        free(deferred.gradients);
    }
}

/* ---- Replicas --------------------------------------------------------------------------- */

enum { REPLICAS = 2 };

typedef struct sharded_step {
    bool nccl;
    long waits; /* of both ranks' hosts for their devices */
} sharded_step;

/* No rank works meanwhile. */
static sl_status read_waits(sl_group *group, long *out)
{
    SL_TRY(sl_group_barrier(group, NULL));
    *out = find_fake_cuda()->waits;
    return sl_group_barrier(group, NULL);
}

static sl_status run_sharded_step(sl_group *group, job *j, sl_ddp **ddp, sharded_step *step)
{
    const sl_pipe_options pipe = {
        .model = j->model, .loss = j->loss, .stages = 1, .devices = j->devices, .chunks = 1};
    long before, after;
    SL_TRY(sl_pipe_create(&pipe, &j->pipe));
    SL_TRY(
        sl_ddp_create(&(sl_ddp_options){.group = group, .pipe = j->pipe, .nccl = step->nccl}, ddp));
    SL_TRY(sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = j->pipe, .zero = *ddp},
                                    &j->optimizer));
    SL_TRY(read_waits(group, &before));
    SL_TRY(sl_pipe_optimizer_step(j->optimizer, 0.1, 0, NULL));
    SL_TRY(read_waits(group, &after));
    step->waits = after - before; /* the same on both */
    return SL_OK;
}

/* A rank's replica, on a GPU of its own. Devices are opened by both at once. */
static sl_status run_replica(sl_group *group, void *arg)
{
    job j = {0};
    sl_ddp *ddp = NULL;
    sharded_step *steps = arg;
    SL_TRY(sl_device_list_create(sl_group_rank(group) ? "cuda:1" : "cuda:0", &j.list, NULL));
    j.devices[0] = sl_device_list_get(j.list, 0);
    j.model = rig_linears(1);
    sl_status status = sl_mse_loss_create(&j.loss);
    if (status == SL_OK)
        status = run_sharded_step(group, &j, &ddp, &steps[sl_group_rank(group)]);
    sl_pipe_optimizer_destroy(&j.optimizer);
    sl_ddp_destroy(&ddp);
    sl_pipe_destroy(&j.pipe);
    sl_loss_destroy(&j.loss);
    sl_module_destroy(&j.model);
    sl_device_list_destroy(&j.list);
    return status;
}

static void shards_of_weights_stay_on_the_gpus_with_nccl(void **state)
{
    sharded_step by_host[REPLICAS] = {{0}}, by_nccl[REPLICAS] = {{.nccl = true}, {.nccl = true}};
    check_ranks(run_replica, by_host, REPLICAS);
    check_ranks(run_replica, by_nccl, REPLICAS);
    assert_int_equal(by_host[0].waits, REPLICAS); /* each reads its only bucket */
    assert_int_equal(by_nccl[0].waits, 0);
}

/* Of threads with NCCL, where the GPUs can: both ways, and a pattern arrives as it was. */
static void pools_are_opened_for_nccl_between_threads(void **state)
{
    sharded_step steps[REPLICAS] = {{.nccl = true}, {.nccl = true}};
    fake_cuda_state *cuda = find_fake_cuda();
    for (int isolated = 0; isolated < 2; isolated++) {
        long before = cuda->accesses, copies = cuda->peer_copies;
        cuda->isolated = isolated;
        sl_status status = sl_spawn(run_replica, steps, REPLICAS, NULL);
        cuda->isolated = 0;
        check_ok(status);
        assert_int_equal(cuda->accesses - before, isolated ? 0 : 2);
        assert_int_equal(cuda->peer_copies - copies, isolated ? 0 : 2);
    }
}

static void copies_that_arrive_as_zeros_refuse_nccl_between_threads(void **state)
{
    sharded_step steps[REPLICAS] = {{.nccl = true}, {.nccl = true}};
    fake_cuda_state *cuda = find_fake_cuda();
    cuda->zeroing = 1;
    sl_status status = sl_spawn(run_replica, steps, REPLICAS, NULL);
    cuda->zeroing = 0;
    check_error(status, SL_ERR_UNSUPPORTED,
                "arrive changed (word 0 is 00000000, expected 9e3779b1)");
}

/* ---- Memory ----------------------------------------------------------------------------- */

/* Allocations of a step that fail: each, with all after it, or every 7th; after so many the pipe
 * trains on. */
enum { FAILING = IS_SANITIZED ? 7 : 1, TRAINING_ON = 7 };

static void check_missing_memory(sl_status status)
{
    check_error(status, SL_ERR_MEMORY, "it holds these bytes: parameters ");
    assert_non_null(strstr(sl_error_text(), "cuda:0/"));
    assert_non_null(strstr(sl_error_text(), ": no memory for "));
}

static void memory_that_is_not_there_ends_a_step_and_no_more(void **state)
{
    job *j = *state;
    double first, loss;
    check_ok(train(j, &first));
    for (long number = 1;; number += FAILING) {
        long before = j->cuda->allocations;
        j->cuda->failing = before + number;
        sl_status status = train(j, &loss);
        bool is_enough = j->cuda->allocations - before < number;
        j->cuda->failing = 0;
        if (is_enough) {
            check_ok(status);
            assert_true(loss == first);
            assert_in_range(number, 100, 1000);
            return;
        }
        check_missing_memory(status);
        if (number % TRAINING_ON == 1) {
            check_ok(train(j, &loss));
            assert_true(loss == first);
        }
    }
}

/* ---- Time ------------------------------------------------------------------------------- */

enum { PRODUCT_US = 3000 };

/* Each has products of its own, but the forward that the last stage leaves to its recomputation. */
static void times_of_actions_are_the_devices(void **state)
{
    job *j = *state;
    const sl_timeline_entry *entries;
    double loss;
    j->cuda->product_us = PRODUCT_US;
    sl_status status = train(j, &loss);
    j->cuda->product_us = 0;
    check_ok(status);
    int count = sl_pipe_timeline(j->pipe, &entries);
    assert_int_equal(count, 2 * CHUNKS * STAGES + CHUNKS * (STAGES - 1));
    for (int i = 0; i < count; i++) {
        bool is_left = entries[i].action.discards && entries[i].action.stage == STAGES - 1;
        assert_true(is_left || entries[i].end - entries[i].start >= PRODUCT_US * 1e-6);
    }
}

/* Both hosts queue their actions at once, yet each device is idle while it needs what the other one
 * makes: GPipe's second before its first forward, with the four products of a layer; its first
 * before its backward, with the last forward and backward of a layer and the decoder. */
static void the_bubble_is_the_devices(void **state)
{
    enum { FIRST_FORWARD = 4, LAST_FORWARD_AND_BACKWARD = 5 + 2 * 5 };
    static const int idle[STAGES] = {LAST_FORWARD_AND_BACKWARD, FIRST_FORWARD};
    job *j = *state;
    sl_utilization measured;
    double loss;
    j->cuda->product_us = PRODUCT_US;
    sl_status status = train(j, &loss);
    j->cuda->product_us = 0;
    check_ok(status);
    check_ok(sl_pipe_get_utilization(j->pipe, &measured));
    for (int s = 0; s < STAGES; s++)
        assert_true(measured.idle[s] * measured.seconds >= idle[s] * PRODUCT_US * 1e-6);
    sl_utilization_clear(&measured);
}

int cuda_pipe_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_waits_for_losses_and_norms_alone, open_job,
                                        close_job),
        cmocka_unit_test_setup_teardown(adamw_updates_a_bucket_by_one_launch, open_job, close_job),
        cmocka_unit_test_setup_teardown(the_loss_of_a_panel_waits_for_nothing, open_job, close_job),
        cmocka_unit_test_setup_teardown(pools_of_a_pipes_gpus_stay_closed, open_job, close_job),
        cmocka_unit_test_setup_teardown(ids_that_the_model_lacks_are_named, open_job, close_job),
        cmocka_unit_test_setup_teardown(ids_that_are_copied_are_checked_anew, open_job, close_job),
        cmocka_unit_test(shards_of_weights_stay_on_the_gpus_with_nccl),
        cmocka_unit_test(pools_are_opened_for_nccl_between_threads),
        cmocka_unit_test(copies_that_arrive_as_zeros_refuse_nccl_between_threads),
        cmocka_unit_test_setup_teardown(memory_that_is_not_there_ends_a_step_and_no_more, open_job,
                                        close_job),
        cmocka_unit_test_setup_teardown(pageable_memory_goes_through_pinned_memory, open_job,
                                        close_job),
        cmocka_unit_test_setup_teardown(odd_bf16_rows_are_padded, open_job, close_job),
        cmocka_unit_test_setup_teardown(panels_of_logits_match_the_cpus, open_job, close_job),
        cmocka_unit_test_setup_teardown(times_of_actions_are_the_devices, open_job, close_job),
        cmocka_unit_test_setup_teardown(the_bubble_is_the_devices, open_job, close_job),
    };
    if (!getenv("FAKE_CUDA_CLOSED")) {
        print_message("skipped: no CUDA toolkit, or no C++ compiler, was found\n");
        return 77;
    }
    test_seed(20240229); /* of the orders of queues and threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
