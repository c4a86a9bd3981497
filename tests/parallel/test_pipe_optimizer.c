/* Norm, clipping and update over all stages, and the optimizers' state in checkpoints. */
#include "sluice/pipe_optimizer.h"
#include "tensor/tensor.h"

#include "device/device_base.h"
#include "sluice/layers.h"

#include "io/scratch.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/replicas.h"
#include "support/rig.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ROWS = 6,
    WIDTH = 5,
    MODULES = 6,
    MOST_STAGES = 3,
    VALUES = 4 * WIDTH * (WIDTH + 1) + 2 * WIDTH
};

static const sl_optimizer_options momentum = {.momentum = 0.9f, .dampening = 0.5f};
static const sl_optimizer_options adamw = {.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.1f};
static const sl_optimizer_options narrow = {.kind = SL_OPTIMIZER_ADAMW,
                                            .precision = SL_PRECISION_BF16};

typedef struct setup {
    int stages;
    sl_group *group; /* NULL: no DDP */
    bool zero;
    sl_optimizer_options optimizer;
} setup;

/* Linear, ReLU, Linear, LayerNorm, Linear, Linear in a pipe, with an optimizer. */
static sl_status create_model(sl_module **out)
{
    sl_module *next;
    for (int i = 0; i < MODULES; i++) {
        sl_status created = i == 1   ? sl_activation_create(SL_ACTIVATION_RELU, &next)
                            : i == 3 ? sl_layer_norm_create(WIDTH, 0, &next)
                                     : sl_linear_create(WIDTH, WIDTH, false, &next);
        SL_TRY(sl_sequential_append(out, created, &next));
    }
    return SL_OK;
}

static sl_status open_trainee(const setup *made, rig *out)
{
    const sl_training_options options = {.pipe = {.stages = made->stages,
                                                  .chunks = 2,
                                                  .seed = 3,
                                                  .first_bucket_bytes = 150,
                                                  .bucket_bytes = 150},
                                         .ddp = {.group = made->group},
                                         .optimizer = made->optimizer,
                                         .zero = made->zero};
    sl_module *model = NULL;
    check_ok(create_model(&model));
    return rig_open(model, NULL, &options, out);
}

/* Rows that are functions of the step. */
static sl_status make_gradients(const rig *r, uint64_t step)
{
    sl_shape shape = sl_shape_2d(ROWS, WIDTH);
    SCOPED(sl_tensor) *targets = NULL, *input = NULL;
    double loss;
    SL_TRY(sl_tensor_create(r->devices[0], SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &input));
    SL_TRY(sl_tensor_create(r->devices[0], SL_MEMORY_ACTIVATIONS, SL_F32, &shape, &targets));
    for (int i = 0; i < ROWS * WIDTH; i++) {
        sl_tensor_f32(input)[i] = (float)((i * 7 + (int)step * 3) % 11) / 5 - 1;
        sl_tensor_f32(targets)[i] = (float)((i * 5 + (int)step) % 13) / 3;
    }
    sl_pipe_batch batch = {.input = input, .targets = targets, .step = step};
    sl_pipe_zero_grad(r->pipe);
    return r->ddp ? sl_ddp_train(r->ddp, &batch, &loss) : sl_pipe_train(r->pipe, &batch, &loss);
}

/* Steps first … end - 1. */
static sl_status train(const rig *r, uint64_t first, uint64_t end)
{
    for (uint64_t step = first; step < end; step++) {
        SL_TRY(make_gradients(r, step));
        SL_TRY(sl_pipe_optimizer_step(r->optimizer, 0.05, 0.5, NULL));
    }
    return SL_OK;
}

/* Values or gradients of all parameters in the model's order; how many there are. */
static int read_all(const rig *r, bool gradients, float to[VALUES])
{
    int count = 0;
    for (int s = 0; s < sl_pipe_stages(r->pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(r->pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            sl_parameter *parameter = sl_parameter_set_get(set, i);
            sl_tensor *tensor = sl_parameter_value(parameter);
            if (gradients && sl_parameter_grad(parameter, &tensor) != SL_OK)
                abort();
            memcpy(to + count, sl_tensor_f32(tensor), sli_tensor_bytes(tensor));
            count += (int)sl_tensor_count(tensor);
        }
    }
    return count;
}

static bool same_values(const rig *a, const rig *b)
{
    float of_a[VALUES], of_b[VALUES];
    int count = read_all(a, false, of_a);
    return count == read_all(b, false, of_b) && memcmp(of_a, of_b, sizeof *of_a * count) == 0;
}

/* ---- The norm and the step -------------------------------------------------------------- */

/* Steps with SGD are held against value - lr * scale * gradient; returns the norm. */
static double check_step(int stages, double clip)
{
    const double lr = 0.5;
    float before[VALUES], gradients[VALUES], after[VALUES], unscaled[VALUES];
    double norm, squares = 0;
    SCOPED(rig) at = {0};
    check_ok(open_trainee(&(setup){.stages = stages}, &at));
    check_ok(make_gradients(&at, 0));
    int count = read_all(&at, false, before);
    read_all(&at, true, gradients);
    check_ok(sl_pipe_optimizer_step(at.optimizer, lr, clip, &norm));
    read_all(&at, false, after);
    read_all(&at, true, unscaled);
    for (int i = 0; i < count; i++)
        squares += (double)gradients[i] * gradients[i];
    assert_true(norm > 0 && fabs(norm / sqrt(squares) - 1) < 1e-6);
    double scale = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
    for (int i = 0; i < count; i++) {
        assert_true(fabs(after[i] - (before[i] - lr * scale * gradients[i])) < 1e-6);
        assert_true(unscaled[i] == gradients[i]);
    }
    return norm;
}

static void step_is_clipped_by_the_norm_of_all_stages(void **state)
{
    static const double clips[] = {0, 0.01, 1e6};
    for (int i = 0; i < 3; i++) {
        double one = check_step(1, clips[i]);
        assert_true(check_step(2, clips[i]) == one);
        assert_true(check_step(3, clips[i]) == one);
    }
}

static void norm_that_is_not_finite_is_refused_where_asked_for(void **state)
{
    SCOPED(rig) lenient = {0}, at = {0};
    float before[VALUES], after[VALUES];
    double norm;
    SCOPED(sl_pipe_optimizer) *strict = NULL;
    check_ok(open_trainee(&(setup){.stages = 2}, &at));
    check_ok(sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = at.pipe,
                                                                   .error_if_nonfinite = true},
                                      &strict));
    check_ok(open_trainee(&(setup){.stages = 2}, &lenient));
    sl_tensor_f32(sl_parameter_value(sl_parameter_set_get(sl_pipe_parameters(at.pipe, 1), 0)))[0] =
        INFINITY;
    check_ok(make_gradients(&at, 0));
    int count = read_all(&at, false, before);
    check_error(sl_pipe_optimizer_step(strict, 0.1, 0, &norm), SL_ERR_NUMERIC,
                "sl_pipe_optimizer_step: the gradient norm is nan");
    read_all(&at, false, after);
    assert_true(isnan(norm) && memcmp(before, after, sizeof *before * (size_t)count) == 0);
    sl_tensor *grad;
    check_ok(make_gradients(&lenient, 0));
    check_ok(
        sl_parameter_grad(sl_parameter_set_get(sl_pipe_parameters(lenient.pipe, 0), 0), &grad));
    sl_tensor_f32(grad)[0] = NAN;
    check_ok(sl_pipe_optimizer_step(lenient.optimizer, 0.1, 0.5, &norm)); /* as in PyTorch */
    read_all(&lenient, false, after);
    for (int i = 0; i < count; i++)
        assert_true(isnan(after[i]));
}

static void impossible_options_are_refused(void **state)
{
    SCOPED(rig) at = {0};
    sl_pipe_optimizer *optimizer;
    check_ok(open_trainee(&(setup){.stages = 2}, &at));
    check_error(sl_pipe_optimizer_create(
                    &(sl_pipe_optimizer_options){.pipe = at.pipe, .optimizer = {.nesterov = true}},
                    &optimizer),
                SL_ERR_INVALID, "Nesterov momentum requires a momentum");
    assert_null(optimizer);
    check_error(sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){0}, &optimizer),
                SL_ERR_INVALID, "sl_pipe_optimizer_create: options->pipe is NULL");
    check_error(sl_pipe_optimizer_step(NULL, 1, 1, NULL), SL_ERR_INVALID, "optimizer is NULL");
}

static sl_status refuse_sgd(sl_device *device, const sli_sgd *arguments)
{
    return sl_error(SL_ERR_IO, "the device is lost");
}

/* Rank 1, whose update fails, stays in the group until rank 0's step has ended. */
static sl_status fail_on_one_rank(sl_group *group, void *arg)
{
    atomic_bool *has_ended = arg;
    SCOPED(rig) at = {0};
    sli_device_ops failing;
    sl_status status =
        open_trainee(&(setup){.stages = 2, .group = group, .zero = true, .optimizer = momentum},
                     &at);
    if (status == SL_OK)
        status = make_gradients(&at, 0);
    if (status == SL_OK && sl_group_rank(group) == 1) {
        failing = *at.devices[1]->ops;
        failing.sgd = refuse_sgd;
        at.devices[1]->ops = &failing;
    }
    if (status == SL_OK)
        status = sl_pipe_optimizer_step(at.optimizer, 0.1, 0, NULL);
    status = expect(status == SL_ERR_IO && strstr(sl_error_text(), "the device is lost"),
                    "rank 1's error on both ranks, got \"%s\"", sl_error_text());
    if (sl_group_rank(group) == 0)
        atomic_store(has_ended, true);
    while (!atomic_load(has_ended))
        usleep(1000);
    return status;
}

static void step_that_fails_on_one_rank_ends_the_others_steps(void **state)
{
    atomic_bool has_ended = false;
    check_ok(sl_spawn(fail_on_one_rank, &has_ended, 2, &(sl_group_options){.timeout_seconds = 10}));
}

/* ---- Clipping by hand ------------------------------------------------------------------- */

/* torch.nn.utils.clip_grad_norm_ in a few lines. */
static double clip_reference(float *gradients, int count, double most, sl_grad_norm_kind kind)
{
    double sum = 0, largest = 0;
    for (int i = 0; i < count; i++) {
        double size = fabs((double)gradients[i]);
        sum += kind == SL_GRAD_NORM_L2 ? size * size : size;
        largest = size > largest || isnan(size) ? size : largest;
    }
    double norm = kind == SL_GRAD_NORM_INF ? largest : kind == SL_GRAD_NORM_L2 ? sqrt(sum) : sum;
    double coefficient = most / (norm + 1e-6);
    coefficient = coefficient > 1 ? 1 : coefficient; /* NaN stays */
    for (int i = 0; i < count; i++)
        gradients[i] *= (float)coefficient;
    return norm;
}

static void check_clip(sl_grad_norm_kind kind, double most, float first)
{
    SCOPED(rig) at = {0};
    float expected[VALUES], clipped[VALUES];
    sl_tensor *grad;
    double norm;
    check_ok(open_trainee(&(setup){.stages = 3}, &at));
    check_ok(make_gradients(&at, 0));
    check_ok(sl_parameter_grad(sl_parameter_set_get(sl_pipe_parameters(at.pipe, 0), 0), &grad));
    sl_tensor_f32(grad)[0] = first;
    int count = read_all(&at, true, expected);
    if (!isfinite(first)) {
        check_error(sl_clip_grad_norm(at.pipe, most, kind, true, &norm), SL_ERR_NUMERIC,
                    "sl_clip_grad_norm: the gradient norm is");
        read_all(&at, true, clipped);
        assert_memory_equal(clipped, expected, sizeof *clipped * (size_t)count);
    }
    double wanted = clip_reference(expected, count, most, kind);
    check_ok(sl_clip_grad_norm(at.pipe, most, kind, false, &norm));
    assert_true(norm == wanted || fabs(norm / wanted - 1) < 1e-6 || (isnan(norm) && isnan(wanted)));
    read_all(&at, true, clipped);
    for (int i = 0; i < count; i++)
        assert_true(clipped[i] == expected[i] || (isnan(clipped[i]) && isnan(expected[i])) ||
                    fabsf(clipped[i] / expected[i] - 1) < 1e-5f);
}

static void gradients_are_clipped_as_by_pytorch(void **state)
{
    for (int kind = SL_GRAD_NORM_L1; kind <= SL_GRAD_NORM_INF; kind++) {
        check_clip((sl_grad_norm_kind)kind, 0.125, 0.5f);
        check_clip((sl_grad_norm_kind)kind, 1e6, 0.5f);
        check_clip((sl_grad_norm_kind)kind, 0.125, NAN);
        check_clip((sl_grad_norm_kind)kind, 0.125, INFINITY);
    }
}

/* ---- Checkpoints ------------------------------------------------------------------------ */

/* Every rank calls it; rank 0 writes. */
static sl_status save(const rig *r, const char *path, bool writes)
{
    sl_checkpoint_part parts[2];
    SL_TRY(sl_pipe_get_state(r->pipe, &parts[0]));
    SL_TRY(sl_pipe_optimizer_get_state(r->optimizer, &parts[1]));
    SL_TRY(expect(writes || parts[1].count == 0, "an empty part on a rank that does not write"));
    const sl_checkpoint_contents contents = {.parts = parts, .part_count = 2};
    return writes ? sl_checkpoint_save(path, &contents) : SL_OK;
}

static sl_status load(const rig *r, const char *path)
{
    sl_checkpoint_reader *reader;
    sl_checkpoint_part model;
    SL_TRY(sl_pipe_get_state(r->pipe, &model));
    SL_TRY(sl_checkpoint_open(path, &reader));
    sl_status status = sl_checkpoint_read(reader, model.name, model.items, model.count);
    if (status == SL_OK)
        status = sl_pipe_optimizer_load(r->optimizer, reader);
    sl_checkpoint_close(&reader);
    return status;
}

static void remove_checkpoint(scratch *dir)
{
    static const char *const files[] = {"state/state.json", "state/model.safetensors",
                                        "state/optimizer.safetensors"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(remove(scratch_path(dir, files[i])), 0);
}

/* Trains, saves, trains on; another cut that loads trains on to the same bits. */
static void check_state(scratch *dir, const sl_optimizer_options *options, int stages,
                        int other_stages)
{
    rig r, other;
    const char *path = scratch_path(dir, "state");
    check_ok(open_trainee(&(setup){.stages = stages, .optimizer = *options}, &r));
    check_ok(open_trainee(&(setup){.stages = other_stages, .optimizer = *options}, &other));
    check_ok(train(&r, 0, 3));
    check_ok(save(&r, path, true));
    check_ok(train(&r, 3, 6));
    check_ok(train(&other, 7, 8)); /* a state that must go */
    check_ok(load(&other, path));
    check_ok(train(&other, 3, 6));
    assert_true(same_values(&r, &other));
    rig_destroy(&r);
    rig_destroy(&other);
    remove_checkpoint(dir);
}

static void saved_state_goes_on_to_the_same_bits_in_any_cut(void **state)
{
    static const sl_optimizer_options plain = {0};
    const sl_optimizer_options *const kinds[] = {&plain, &momentum, &adamw, &narrow};
    for (int i = 0; i < 4; i++) {
        check_state(*state, kinds[i], 1, 3);
        check_state(*state, kinds[i], 3, 2);
    }
}

static void state_has_pytorchs_names(void **state)
{
    static const char *const first[] = {"0.weight.exp_avg", "0.weight.exp_avg_sq", "0.weight.step",
                                        "0.bias.exp_avg"};
    SCOPED(rig) at = {0};
    sl_checkpoint_part part;
    check_ok(open_trainee(&(setup){.stages = 2, .optimizer = adamw}, &at));
    check_ok(train(&at, 0, 2));
    check_ok(sl_pipe_optimizer_get_state(at.optimizer, &part));
    assert_int_equal(part.count, 3 * 10);
    for (int i = 0; i < 4; i++)
        assert_string_equal(part.items[i].name, first[i]);
    assert_string_equal(part.items[29].name, "5.bias.step");
    assert_int_equal(part.items[0].shape.dims, 2);
    assert_true(part.items[2].dtype == SL_I64 && part.items[2].shape.dims == 0);
    assert_int_equal(*(const int64_t *)part.items[2].data, 2);
    check_ok(sl_pipe_get_state(at.pipe, &part));
    assert_string_equal(part.name, "model");
    assert_int_equal(part.count, 10);
    assert_string_equal(part.items[9].name, "5.bias");
}

/* Only where this program can put itself before malloc, which sanitizers do themselves. */
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static _Thread_local bool armed; /* this thread's allocations are counted */
static _Thread_local int before_failure;

void *__libc_malloc(size_t bytes);

void *malloc(size_t bytes)
{
    return armed && before_failure-- <= 0 ? NULL : __libc_malloc(bytes);
}

static void state_after_a_lack_of_memory_is_whole(void **state)
{
    SCOPED(rig) at = {0};
    sl_checkpoint_part part;
    sl_status status = SL_ERR_MEMORY;
    int failures = 0;
    check_ok(open_trainee(&(setup){.stages = 2, .optimizer = adamw}, &at));
    for (; status == SL_ERR_MEMORY; failures++) {
        before_failure = failures;
        armed = true;
        status = sl_pipe_get_state(at.pipe, &part);
        armed = false;
    }
    check_ok(status);
    assert_true(failures > 10); /* each tensor's name and view */
    assert_int_equal(part.count, 10);
    for (size_t i = 0; i < part.count; i++)
        assert_non_null(part.items[i].data);
}

#else

static void state_after_a_lack_of_memory_is_whole(void **state)
{
    print_message("skipped: this program cannot put itself before malloc\n");
    skip();
}

#endif

typedef struct sharded_case {
    const char *path;
    const sl_optimizer_options *optimizer;
} sharded_case;

enum { WHOLE, SHARDED, OTHER_CUT, OTHER_WHOLE, TRAINEES };

/* What the sharded one has saved, another cut in shards, and one that is whole, take up. */
static sl_status train_sharded(sl_group *group, const sharded_case *one, rig *r)
{
    for (int i = 0; i < TRAINEES; i++)
        SL_TRY(open_trainee(&(setup){.stages = i == OTHER_CUT ? 3 : 2,
                                     .group = group,
                                     .zero = i == SHARDED || i == OTHER_CUT,
                                     .optimizer = *one->optimizer},
                            &r[i]));
    SL_TRY(train(&r[WHOLE], 0, 6));
    SL_TRY(train(&r[SHARDED], 0, 3));
    SL_TRY(save(&r[SHARDED], one->path, sl_group_rank(group) == 0));
    SL_TRY(sl_group_barrier(group, NULL));
    for (int i = SHARDED; i < TRAINEES; i++) {
        if (i > SHARDED)
            SL_TRY(load(&r[i], one->path));
        SL_TRY(train(&r[i], 3, 6));
        SL_TRY(expect(same_values(&r[WHOLE], &r[i]), "trainee %d to have the whole one's bits", i));
    }
    return SL_OK;
}

static sl_status run_sharded(sl_group *group, void *arg)
{
    rig r[TRAINEES];
    memset(r, 0, sizeof r);
    sl_status status = train_sharded(group, arg, r);
    for (int i = 0; i < TRAINEES; i++)
        rig_destroy(&r[i]);
    return status;
}

static void sharded_state_goes_on_sharded_and_whole(void **state)
{
    const sl_optimizer_options *const kinds[] = {&momentum, &adamw, &narrow};
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_path(*state, "state"));
    for (int i = 0; i < 3; i++) {
        check_ranks(run_sharded, &(sharded_case){path, kinds[i]}, 3);
        remove_checkpoint(*state);
    }
}

static void check_refused(void **state, const sl_optimizer_options *saved, const char *expected)
{
    SCOPED(rig) r = {0}, other = {0};
    const char *path = scratch_path(*state, "state");
    check_ok(open_trainee(&(setup){.stages = 2, .optimizer = *saved}, &r));
    check_ok(open_trainee(&(setup){.stages = 2, .optimizer = adamw}, &other));
    check_ok(train(&r, 0, 1));
    check_ok(save(&r, path, true));
    check_error(load(&other, path), SL_ERR_INVALID, expected);
    remove_checkpoint(*state);
}

static void state_of_another_optimizer_is_refused(void **state)
{
    check_refused(state, &momentum, "0.weight.exp_avg");
    check_refused(state, &narrow, "\"0.bias.exp_avg\" should be F32 [5], but is BF16 [5]");
}

static sl_status change_a_byte(const char *path)
{
    char name[600];
    snprintf(name, sizeof name, "%s/optimizer.safetensors", path);
    FILE *file = fopen(name, "r+b");
    if (!file)
        return sl_error(SL_ERR_IO, "%s cannot be opened", name);
    bool changed = fseek(file, -3, SEEK_END) == 0 && fputc(0x55, file) == 0x55;
    return expect(fclose(file) == 0 && changed, "a byte of %s to change", name);
}

static sl_status load_damaged(sl_group *group, void *path)
{
    SCOPED(rig) at = {0};
    const setup sharded = {.stages = 2, .group = group, .zero = true, .optimizer = adamw};
    bool is_first = sl_group_rank(group) == 0;
    SL_TRY(open_trainee(&sharded, &at));
    SL_TRY(train(&at, 0, 1));
    SL_TRY(save(&at, path, is_first));
    if (is_first)
        SL_TRY(change_a_byte(path));
    SL_TRY(sl_group_barrier(group, NULL));
    return expect(load(&at, path) == SL_ERR_FORMAT, "damage to be found, got \"%s\"",
                  sl_error_text());
}

static void damaged_state_is_refused_by_every_shard(void **state)
{
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_path(*state, "state"));
    check_ranks(load_damaged, path, 2);
    remove_checkpoint(*state);
}

int pipe_optimizer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_is_clipped_by_the_norm_of_all_stages),
        cmocka_unit_test(norm_that_is_not_finite_is_refused_where_asked_for),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(step_that_fails_on_one_rank_ends_the_others_steps),
        cmocka_unit_test(gradients_are_clipped_as_by_pytorch),
        cmocka_unit_test(saved_state_goes_on_to_the_same_bits_in_any_cut),
        cmocka_unit_test(state_has_pytorchs_names),
        cmocka_unit_test(state_after_a_lack_of_memory_is_whole),
        cmocka_unit_test(sharded_state_goes_on_sharded_and_whole),
        cmocka_unit_test(state_of_another_optimizer_is_refused),
        cmocka_unit_test(damaged_state_is_refused_by_every_shard),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
