/* When buckets are sent, and in which order. */
#include "nn/module.h"
#include "sluice/ddp.h"
#include "sluice/layers.h"

#include "support/check.h"
#include "support/modules.h"
#include "support/replicas.h"
#include "support/rig.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WEIGHTS = 3 };

/* Wakes who waits for it; once it rang, it stays so. */
typedef struct bell {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool rang;
} bell;

static void ring(bell *b)
{
    pthread_mutex_lock(&b->lock);
    b->rang = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static bool rings_within(bell *b, double seconds)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    int64_t nanoseconds = limit.tv_nsec + (int64_t)(seconds * 1e9);
    limit.tv_sec += nanoseconds / 1000000000;
    limit.tv_nsec = nanoseconds % 1000000000;
    int code = 0;
    pthread_mutex_lock(&b->lock);
    while (!b->rang && code == 0)
        code = pthread_cond_timedwait(&b->changed, &b->lock, &limit);
    bool rang = b->rang;
    pthread_mutex_unlock(&b->lock);
    return rang;
}

/* ---- Modules with trained parameters that pass on what they get ------------------------- */

typedef struct scale {
    bell *waits; /* NULL, or: its backward, the weights' half of it, waits for it */
    int skips;   /* backwards that do not */
    sl_parameter *weights[WEIGHTS];
    int count;
} scale;

static sl_status part_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                              sl_tensor **out)
{
    return sl_tensor_alias(in, out);
}

static sl_status part_backward_input(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                     sl_tensor **grad_in)
{
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static sl_status part_backward_weight(sl_module *module, sl_pass *pass)
{
    scale *s = sl_module_state(module);
    if (s->waits && s->skips-- <= 0) /* the limit only keeps a test that fails from hanging */
        SL_TRY(expect(rings_within(s->waits, 60), "the bell to ring"));
    for (int i = 0; i < s->count; i++) {
        sl_tensor *grad;
        SL_TRY(sl_parameter_grad(s->weights[i], &grad));
        sl_tensor_f32(grad)[0] += 1;
    }
    return SL_OK;
}

static sl_status part_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                               sl_tensor **grad_in)
{
    SL_TRY(part_backward_weight(module, pass));
    return part_backward_input(module, pass, grad_out, grad_in);
}

static sl_status create_scale(int weights, bell *waits, sl_module **out)
{
    static const sl_module_ops ops = {.type = "Scale",
                                      .forward = part_forward,
                                      .backward = part_backward,
                                      .backward_input = part_backward_input,
                                      .backward_weight = part_backward_weight};
    scale *s = calloc(1, sizeof *s);
    s->waits = waits;
    s->count = weights;
    SL_TRY(sl_module_create(&ops, s, out));
    static const char *const names[WEIGHTS] = {"a", "b", "c"};
    for (int i = 0; i < weights; i++) {
        sl_parameter_spec spec = {.name = names[i], .shape = sl_shape_1d(1 + i)};
        SL_TRY(sl_module_add_parameter(*out, &spec, &s->weights[i]));
    }
    return SL_OK;
}

/* ---- A replica with a bucket for each parameter ------------------------------------------ */

typedef struct replica {
    sl_device *device;
    sl_module *module;
    sl_parameter_set *set;
    sl_ddp *ddp;
} replica;

static sl_status open_replica(sl_group *group, sl_module *module, replica *out)
{
    *out = (replica){.module = module};
    SL_TRY(sl_device_create_cpu(1, &out->device));
    sl_parameter_set_options placement = {.device = out->device,
                                          .first_bucket_bytes = 1,
                                          .bucket_bytes = 1};
    SL_TRY(sl_parameter_set_create(module, 0, 0, &placement, &out->set));
    sl_ddp_options options = {.group = group, .module = module, .parameters = out->set};
    return sl_ddp_create(&options, &out->ddp);
}

static void replica_destroy(replica *dead)
{
    sl_ddp_destroy(&dead->ddp);
    sl_parameter_set_destroy(&dead->set);
    sl_module_destroy(&dead->module);
    sl_device_destroy(&dead->device);
}

static sl_status step(const replica *r)
{
    SCOPED(sl_pass) *pass = NULL;
    SCOPED(sl_tensor) *out = NULL, *in = NULL;
    sl_shape shape = sl_shape_1d(1);
    sl_pass_options options = {.device = r->device, .training = true, .keep = true};
    sl_parameter_set_zero_grad(r->set);
    SL_TRY(sl_tensor_create_zero(r->device, SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &in));
    SL_TRY(sl_pass_create(&options, &pass));
    SL_TRY(sl_ddp_forward(r->ddp, pass, in, &out));
    return sl_ddp_backward(r->ddp, pass, out, NULL);
}

/* ---- Overlap ---------------------------------------------------------------------------- */

static sl_status average_and_ring(void *arg, sl_ddp_bucket *bucket)
{
    SL_TRY(sl_ddp_average_hook(NULL, bucket));
    ring(arg);
    return SL_OK;
}

/* The first module's backward, the last to run, waits until the last module's gradient has been
 * exchanged: a reducer that begins after backward would never get there. */
static sl_status exchange_before_the_end(sl_group *group, void *arg)
{
    bell exchanged = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    sl_module *modules[2], *model;
    SCOPED(replica) at = {0};
    SL_TRY(create_scale(1, &exchanged, &modules[0]));
    SL_TRY(create_scale(1, NULL, &modules[1]));
    SL_TRY(create_sequential(modules, 2, &model));
    SL_TRY(open_replica(group, model, &at));
    SL_TRY(sl_ddp_register_hook(at.ddp, average_and_ring, &exchanged));
    SL_TRY(step(&at));
    const sl_ddp_log *log = sl_ddp_get_log(at.ddp);
    return expect(log->steps == 1 && log->bucket_count == 2 &&
                      log->buckets[0].reduce_start < log->backward_end &&
                      log->buckets[1].ready <= log->backward_end && log->overlap_seconds > 0 &&
                      log->overlap_seconds <= log->reduce_seconds && log->wait_seconds >= 0,
                  "a log that shows the overlap");
}

static void exchange_starts_while_backward_goes_on(void **state)
{
    check_ranks(exchange_before_the_end, NULL, 2);
}

/* The last module of a pipe goes backward inside the loss. The pipe has one stage; `arg` is its
 * schedule. The action that completes the gradients, B or W, does not end before the last module's
 * have been exchanged. */
static sl_status exchange_what_the_loss_took_over(sl_group *group, void *arg)
{
    bell exchanged = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    SCOPED(rig) at = {0};
    SCOPED(sl_tensor) *input = NULL, *targets = NULL;
    sl_module *modules[2], *model;
    sl_loss *loss;
    sl_shape rows = sl_shape_2d(2, 1), labels = sl_shape_1d(2);
    double mean;
    SL_TRY(create_scale(1, &exchanged, &modules[0]));
    SL_TRY(sl_linear_create(1, 3, false, &modules[1]));
    SL_TRY(create_sequential(modules, 2, &model));
    SL_TRY(sl_cross_entropy_create(&loss));
    const sl_training_options options = {.pipe = {.stages = 1,
                                                  .chunks = 2,
                                                  .schedule = arg,
                                                  .first_bucket_bytes = 1,
                                                  .bucket_bytes = 1},
                                         .ddp = {.group = group}};
    SL_TRY(rig_open(model, loss, &options, &at));
    SL_TRY(sl_tensor_create_zero(at.devices[0], SL_MEMORY_ACTIVATIONS, SL_F32, &rows, &input));
    SL_TRY(sl_tensor_create_zero(at.devices[0], SL_MEMORY_ACTIVATIONS, SL_I32, &labels, &targets));
    /* The first backward, of micro-batch 0, completes nothing and must not wait. */
    ((scale *)sl_module_state(modules[0]))->skips = 1;
    SL_TRY(sl_ddp_register_hook(at.ddp, average_and_ring, &exchanged));
    return sl_ddp_train(at.ddp, &(sl_pipe_batch){.input = input, .targets = targets}, &mean);
}

static void exchange_starts_in_the_action_that_completes_the_gradients(void **state)
{
    char schedules[TEST_SCHEDULES][16];
    for (int i = 0; i < TEST_SCHEDULES; i++) {
        snprintf(schedules[i], sizeof schedules[i], "%s", test_schedules[i]);
        check_ranks(exchange_what_the_loss_took_over, schedules[i], 2);
    }
}

/* ---- Modules that run twice ------------------------------------------------------------- */

static sl_status twice_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                               sl_tensor **out)
{
    SCOPED(sl_tensor) *middle = NULL;
    sl_module *child = sl_module_child(module, 0);
    SL_TRY(sl_module_forward(child, pass, in, &middle));
    return sl_module_forward(child, pass, middle, out);
}

/* Between the two it gives an exchange that comes too early the time to happen; one that comes
 * right cannot happen before the end. */
static sl_status twice_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                sl_tensor **grad_in)
{
    SCOPED(sl_tensor) *middle = NULL;
    sl_module *child = sl_module_child(module, 0);
    bell *exchanged = *(bell **)sl_module_state(module);
    SL_TRY(sl_module_backward(child, pass, grad_out, &middle));
    SL_TRY(expect(!rings_within(exchanged, 0.05), "no exchange while gradients still come"));
    return sl_module_backward(child, pass, middle, grad_in);
}

static sl_status run_a_child_twice(sl_group *group, void *arg)
{
    static const sl_module_ops ops = {.type = "Twice",
                                      .forward = twice_forward,
                                      .backward = twice_backward};
    bell exchanged = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    bell **state = malloc(sizeof *state);
    sl_module *child, *twice, *model;
    SCOPED(replica) at = {0};
    *state = &exchanged;
    SL_TRY(create_scale(1, NULL, &child));
    SL_TRY(sl_module_create(&ops, state, &twice));
    SL_TRY(sli_module_add_child(twice, "child", child));
    SL_TRY(create_sequential(&twice, 1, &model));
    SL_TRY(open_replica(group, model, &at));
    SL_TRY(sl_ddp_register_hook(at.ddp, average_and_ring, &exchanged));
    SL_TRY(step(&at));
    sl_tensor *grads;
    SL_TRY(sl_parameter_set_bucket_grads(at.set, 0, &grads));
    return expect(sl_tensor_f32(grads)[0] == 2, "both runs' gradients");
}

static void gradients_of_a_module_that_runs_twice_wait_for_both_runs(void **state)
{
    check_ranks(run_a_child_twice, NULL, 2);
}

/* ---- Order ------------------------------------------------------------------------------ */

static sl_status expect_order(const replica *r, const int *expected)
{
    SL_TRY(step(r));
    const sl_ddp_log *log = sl_ddp_get_log(r->ddp);
    SL_TRY(expect(log->bucket_count == WEIGHTS, "three buckets"));
    for (int i = 0; i < WEIGHTS; i++)
        SL_TRY(
            expect(log->buckets[i].index == expected[i] && log->buckets[i].bytes == 64 &&
                       log->buckets[i].parameters == 1 &&
                       (i == 0 || log->buckets[i].reduce_start >= log->buckets[i - 1].reduce_end),
                   "bucket %d as number %d, got %d", expected[i], i, log->buckets[i].index));
    return SL_OK;
}

/* One module with three parameters is done with all of them at once, and its first is found full
 * first; buckets lie in reverse. */
static sl_status follow_gradients(sl_group *group, void *arg)
{
    sl_module *module;
    SCOPED(replica) at = {0};
    SL_TRY(create_scale(WEIGHTS, NULL, &module));
    SL_TRY(open_replica(group, module, &at));
    SL_TRY(expect_order(&at, (const int[]){0, 1, 2}));
    for (int i = 0; i < 2; i++)
        SL_TRY(expect_order(&at, (const int[]){2, 1, 0}));
    return SL_OK;
}

static void order_of_sending_follows_the_gradients_of_the_first_step(void **state)
{
    check_ranks(follow_gradients, NULL, 1);
    check_ranks(follow_gradients, NULL, 3);
}

/* ---- Failures --------------------------------------------------------------------------- */

static sl_status failing_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                 sl_tensor **out)
{
    return sl_error(SL_ERR_NUMERIC, "cannot go on");
}

static sl_status failing_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                  sl_tensor **grad_in)
{
    return sl_error(SL_ERR_NUMERIC, "cannot go back");
}

/* On rank 1 the middle module fails: in backward, that is after the last module's bucket has been
 * sent. */
static sl_status fail_on_rank_1(sl_group *group, void *arg)
{
    static const sl_module_ops walls[] = {
        {.type = "Wall", .forward = failing_forward, .backward = part_backward},
        {.type = "Wall", .forward = part_forward, .backward = failing_backward},
    };
    const bool *backward = arg;
    int rank = sl_group_rank(group);
    sl_module *modules[3], *model;
    SCOPED(replica) at = {0};
    SL_TRY(create_scale(2, NULL, &modules[0]));
    SL_TRY(rank == 1 ? sl_module_create(&walls[*backward], NULL, &modules[1])
                     : create_scale(0, NULL, &modules[1]));
    SL_TRY(create_scale(1, NULL, &modules[2]));
    SL_TRY(create_sequential(modules, 3, &model));
    sl_status status = open_replica(group, model, &at);
    if (status == SL_OK)
        status = step(&at);
    status = expect(status == SL_ERR_NUMERIC && strstr(sl_error_text(), "cannot go"),
                    "every rank to fail with rank 1's error, got %s", sl_error_text());
    if (status == SL_OK)
        status = sl_group_barrier(group, NULL); /* no rank leaves before all know */
    return status;
}

static void module_that_fails_on_one_rank_ends_the_step_on_all(void **state)
{
    for (int ranks = 2; ranks <= 4; ranks++) {
        check_ranks(fail_on_rank_1, &(bool){false}, ranks);
        check_ranks(fail_on_rank_1, &(bool){true}, ranks);
    }
}

int reducer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchange_starts_while_backward_goes_on),
        cmocka_unit_test(exchange_starts_in_the_action_that_completes_the_gradients),
        cmocka_unit_test(gradients_of_a_module_that_runs_twice_wait_for_both_runs),
        cmocka_unit_test(order_of_sending_follows_the_gradients_of_the_first_step),
        cmocka_unit_test(module_that_fails_on_one_rank_ends_the_step_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
