/* Skip connections between stages: which models a pipe refuses, what errors look like, and the way
 * that tensors take. That all pipes give the same bits is test_pipe_invariance.c's. */
#include "../examples/u_net.h"
#include "nn/module.h"
#include "sluice/data_parallel.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"
#include "tensor/tensor.h"

enum { ROWS = 4, WIDTH = 8 };

/* ---- Creation --------------------------------------------------------------------------- */

typedef struct end {
    const char *name; /* NULL: a linear module instead */
    int width;        /* 0: a stash */
} end;

static sl_module *build(const end *ends, int count)
{
    sl_module *modules[8] = {NULL}, *model;
    for (int i = 0; i < count; i++)
        check_ok(ends[i].name ? skip_end_create(ends[i].name, ends[i].width, &modules[i])
                              : sl_linear_create(WIDTH, WIDTH, false, &modules[i]));
    check_ok(create_sequential(modules, count, &model));
    return model;
}

static void check_refused(const end *ends, int count, const char *text)
{
    SCOPED(sl_device) *device = new_device(1);
    sl_pipe *pipe;
    SCOPED(sl_module) *model = build(ends, count);
    for (int stages = 1; stages <= count; stages++) {
        sl_device *devices[8];
        for (int i = 0; i < stages; i++)
            devices[i] = device;
        check_error(
            sl_pipe_create(&(sl_pipe_options){.model = model, .stages = stages, .devices = devices},
                           &pipe),
            SL_ERR_INVALID, text);
        assert_null(pipe);
    }
}

static void models_whose_skips_do_not_match_are_refused(void **state)
{
    check_refused((end[]){{NULL, 0}, {"a", 0}, {NULL, 0}}, 3,
                  "sl_pipe_create: 1 (Stash) stashes \"a\", which no module pops");
    check_refused((end[]){{"b", 0}, {"a", WIDTH}, {"b", WIDTH}}, 3,
                  "sl_pipe_create: 1 (Concat) pops \"a\", which no module stashes");
    check_refused((end[]){{"a", 0}, {NULL, 0}, {"a", 0}, {"a", WIDTH}}, 4,
                  "sl_pipe_create: 2 (Stash) stashes \"a\", and so does 0 (Stash)");
    check_refused((end[]){{"a", 0}, {"a", WIDTH}, {"a", WIDTH}}, 3,
                  "sl_pipe_create: 2 (Concat) pops \"a\", and so does 1 (Concat)");
    check_refused((end[]){{NULL, 0}, {"a", WIDTH}, {"a", 0}}, 3,
                  "sl_pipe_create: 1 (Concat) pops \"a\", which is stashed later, by 2 (Stash)");
}

/* ---- Running ---------------------------------------------------------------------------- */

typedef enum fault {
    NO_FAULT,
    NOTHING_STASHED,
    NOTHING_POPPED,
    NO_GRADIENT,
    WRONG_GRADIENT,
    GRADIENT_LEFT
} fault;

/* A module that passes its input on, and is one end of the skip connection "a". */
typedef struct faulty {
    bool pops;
    fault fault;
} faulty;

static sl_status faulty_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                                sl_tensor **out)
{
    const faulty *f = sl_module_state(module);
    sl_tensor *skip = NULL;
    if (!f->pops && f->fault != NOTHING_STASHED)
        SL_TRY(sl_pass_stash_skip(pass, "a", in));
    if (f->pops && f->fault != NOTHING_POPPED)
        SL_TRY(sl_pass_pop_skip(pass, "a", &skip));
    sl_tensor_destroy(&skip);
    return sl_tensor_alias(in, out);
}

static sl_status faulty_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                                 sl_tensor **grad_in)
{
    const faulty *f = sl_module_state(module);
    sl_tensor *grad = NULL;
    if (f->pops && f->fault == WRONG_GRADIENT)
        SL_TRY(sli_tensor_narrow(grad_out, 0, 1, &grad));
    else if (f->pops && f->fault != NO_GRADIENT)
        SL_TRY(sl_tensor_alias(grad_out, &grad));
    if (grad)
        SL_TRY(sl_pass_stash_skip_grad(pass, "a", &grad));
    if (!f->pops && f->fault != GRADIENT_LEFT)
        SL_TRY(sl_pass_pop_skip_grad(pass, "a", &grad));
    sl_tensor_destroy(&grad);
    return grad_in ? sl_tensor_alias(grad_out, grad_in) : SL_OK;
}

static void keep_state(void *state)
{
    (void)state; /* the test's */
}

static sl_module *faulty_module(faulty *state)
{
    static const sl_module_ops ops = {.type = "Faulty",
                                      .forward = faulty_forward,
                                      .backward = faulty_backward,
                                      .destroy_state = keep_state};
    sl_module *module;
    check_ok(sl_module_create(&ops, state, &module));
    check_ok((state->pops ? sl_module_add_pop : sl_module_add_stash)(module, "a"));
    return module;
}

typedef struct rig {
    faulty ends[2];
    test_pipe pipe;
    sl_tensor *rows;
} rig;

/* Linear, stash, linear, linear, pop, linear; the ends in stages 0 and 2 of 3, or in the only one.
 */
static void open_rig(rig *r, sl_pipe_options options)
{
    sl_module *modules[6], *model;
    *r = (rig){.ends = {{.pops = false}, {.pops = true}}};
    for (int i = 0; i < 6; i++)
        if (i == 1 || i == 4)
            modules[i] = faulty_module(&r->ends[i == 4]);
        else
            check_ok(sl_linear_create(WIDTH, WIDTH, false, &modules[i]));
    check_ok(create_sequential(modules, 6, &model));
    options.balance = options.stages > 1 ? (int[]){2, 2, 2} : (int[]){6};
    options.chunks = 2;
    r->pipe = open_pipe(model, new_mse_loss(), options, options.stages, 1);
    const sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    r->rows = random_tensor(r->pipe.devices[0], &shape, 5);
}

static void rig_destroy(rig *r)
{
    sl_tensor_destroy(&r->rows);
    test_pipe_destroy(&r->pipe);
}

static sl_status train(rig *r, double *loss)
{
    const sl_pipe_batch batch = {.input = r->rows, .targets = r->rows};
    sl_pipe_zero_grad(r->pipe.pipe);
    return sl_pipe_train(r->pipe.pipe, &batch, loss);
}

static void check_faults(rig *r, bool crosses)
{
    static const struct {
        fault fault;
        bool pops;
        const char *crossing, *within; /* errors */
    } cases[] = {
        {NOTHING_STASHED, false, "1 (Faulty) stashed no \"a\"",
         "4 (Faulty): no tensor is stashed as \"a\""},
        {NOTHING_POPPED, true, "the tensor \"a\" was stashed, but not popped",
         "the tensor \"a\" was stashed, but not popped"},
        {NO_GRADIENT, true, "4 (Faulty) stashed no gradient of \"a\"",
         "1 (Faulty): there is no gradient of \"a\""},
        {WRONG_GRADIENT, true, "must have its shape [2, 8], got [1, 8]",
         "must have its shape [2, 8], got [1, 8]"},
        {GRADIENT_LEFT, false, "the gradient of \"a\" was stashed, but not popped",
         "the gradient of \"a\" was stashed, but not popped"},
    };
    double expected, loss;
    check_ok(train(r, &expected));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        r->ends[cases[i].pops].fault = cases[i].fault;
        check_error(train(r, &loss), SL_ERR_INVALID, crosses ? cases[i].crossing : cases[i].within);
        r->ends[cases[i].pops].fault = NO_FAULT;
        check_ok(train(r, &loss));
        assert_true(loss == expected);
    }
}

/* The pipe can be used again after each. */
static void modules_that_do_not_do_what_they_declare_end_the_step(void **state)
{
    for (int crosses = 0; crosses < 2; crosses++)
        for (int schedule = 0; schedule < TEST_SCHEDULES; schedule++) {
            SCOPED(rig) r = {0};
            open_rig(&r, (sl_pipe_options){.stages = crosses ? 3 : 1,
                                           .schedule = test_schedules[schedule],
                                           .recompute = (sl_recompute)schedule});
            check_faults(&r, crosses);
        }
}

/* The stage between the ends never holds the tensor, which is larger than all that it works on. */
static void tensors_do_not_go_through_the_stages_between(void **state)
{
    enum { WIDE = 4096 };
    const int64_t sizes[] = {WIDE, 1, 1, 1};
    sl_module *modules[5], *model;
    check_ok(skip_end_create("wide", 0, &modules[0]));
    for (int i = 1; i < 4; i++)
        check_ok(sl_linear_create(sizes[i - 1], sizes[i], false, &modules[i]));
    check_ok(skip_end_create("wide", WIDE, &modules[4]));
    check_ok(create_sequential(modules, 5, &model));
    SCOPED(test_pipe) pipe =
        open_pipe(model, new_mse_loss(),
                  (sl_pipe_options){.stages = 3, .chunks = 2, .balance = (int[]){2, 1, 2}}, 3, 1);
    const sl_shape in = sl_shape_2d(ROWS, WIDE), out = sl_shape_2d(ROWS, WIDE + 1);
    SCOPED(sl_tensor) *input = random_tensor(pipe.devices[0], &in, 1);
    SCOPED(sl_tensor) *targets = random_tensor(pipe.devices[0], &out, 2);
    sl_memory_stats between;
    (void)pipe_train(&pipe, input, targets, 0);
    sl_device_memory(pipe.devices[1], &between);
    assert_true(between.peak_total_bytes < WIDE);
}

static sl_status replicate(void *arg, sl_module **out)
{
    return u_net_create(WIDTH, out);
}

/* The output and the gradient of the input. */
static void run_replicas(sl_device *const *devices, int count, float **values)
{
    SCOPED(sl_module) *model = NULL;
    SCOPED(sl_data_parallel) *parallel = NULL;
    SCOPED(sl_tensor) *grad = NULL, *out = NULL;
    const sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    SCOPED(sl_tensor) *in = random_tensor(devices[0], &shape, 1);
    check_ok(u_net_create(WIDTH, &model));
    check_ok(sl_data_parallel_create(&(sl_data_parallel_options){.module = model,
                                                                 .replicate = replicate,
                                                                 .devices = devices,
                                                                 .device_count = count,
                                                                 .seed = 3},
                                     &parallel));
    check_ok(sl_data_parallel_forward(parallel, &(sl_pass_options){.keep = true}, in, &out));
    values[0] = tensor_values(out);
    check_ok(sl_data_parallel_backward(parallel, out, &grad));
    values[1] = tensor_values(grad);
}

static void replicas_have_skips_of_their_own(void **state)
{
    sl_device *devices[2];
    float *alone[2], *both[2];
    for (int i = 0; i < 2; i++)
        check_ok(sl_device_create_cpu(1, &devices[i]));
    run_replicas(devices, 1, alone);
    run_replicas(devices, 2, both);
    for (int i = 0; i < 2; i++) {
        assert_true(relative_distance(both[i], alone[i], ROWS * WIDTH) < 1e-6);
        free(alone[i]);
        free(both[i]);
        sl_device_destroy(&devices[i]);
    }
}

int pipe_skip_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_whose_skips_do_not_match_are_refused),
        cmocka_unit_test(modules_that_do_not_do_what_they_declare_end_the_step),
        cmocka_unit_test(tensors_do_not_go_through_the_stages_between),
        cmocka_unit_test(replicas_have_skips_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
