/* Losses and weights are the same bits for every number of stages, balance, recompute mode,
 * schedule, table, placement, number of turns that a batch takes, number of devices and number of
 * threads, dropout and all, given the same micro-batches, in f32 and in bf16.
 *
 * Each round draws a model, a batch and a number of chunks; trains a few steps on one stage with
 * one thread; and then in pipes that are drawn as well. */
#include "../examples/rms_norm.h"
#include "../examples/u_net.h"
#include "nn/module.h"
#include "parallel/schedule/table.h"
#include "sluice/model.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEPS = 3,
    MAX_MODULES = 12,
    MAX_SKIPS = 3,
    ROUNDS = 25,
    PIPES_PER_ROUND = 8,
    MOST_TOKENS = 12
};

/* What a round trains. A model is built from its seed again and again. */
typedef struct recipe {
    unsigned seed;
    int rows, chunks, features, classes;
    bool is_language_model, is_classifier;
    sl_precision precision;
} recipe;

/* out = in * gate + shift, of which `gate` [N, 1] and `shift` [1] are inputs of the batch. */
static sl_status gate_rows(sl_pass *pass, bool with_shift, const sl_tensor *in, sl_tensor **out)
{
    const sl_tensor *gate, *shift;
    int64_t columns = sl_tensor_columns(in);
    SL_TRY(sl_pass_input(pass, "gate", &gate));
    SL_TRY(sl_pass_input(pass, "shift", &shift));
    assert_int_equal(sl_tensor_shape(gate)->size[0], sl_tensor_shape(in)->size[0]);
    assert_ptr_equal(sl_tensor_device(gate), sl_pass_device(pass));
    SL_TRY(sl_tensor_create(sl_pass_device(pass), SL_MEMORY_ACTIVATIONS, SL_F32,
                            sl_tensor_shape(in), out));
    for (int64_t i = 0; i < sl_tensor_count(in); i++)
        sl_tensor_f32(*out)[i] = sl_tensor_f32(in)[i] * sl_tensor_f32(gate)[i / columns] +
                                 (with_shift ? sl_tensor_f32(shift)[0] : 0);
    return SL_OK;
}

static sl_status gate_forward(sl_module *module, sl_pass *pass, const sl_tensor *in,
                              sl_tensor **out)
{
    return gate_rows(pass, true, in, out);
}

static sl_status gate_backward(sl_module *module, sl_pass *pass, sl_tensor *grad_out,
                               sl_tensor **grad_in)
{
    return grad_in ? gate_rows(pass, false, grad_out, grad_in) : SL_OK;
}

static const sl_module_ops gate_ops = {.type = "Gate",
                                       .forward = gate_forward,
                                       .backward = gate_backward};

static sl_module *random_module(unsigned *state, int *width, bool is_last, int classes)
{
    sl_module *module;
    int next;
    switch (is_last ? 0 : test_draw(state, 0, 6)) {
    case 0:
        next = is_last ? classes : test_draw(state, 1, 40);
        check_ok(sl_linear_create(*width, next, test_draw(state, 0, 1), &module));
        *width = next;
        break;
    case 1:
        check_ok(sl_layer_norm_create(*width, 0, &module));
        break;
    case 2:
        check_ok(sl_dropout_create((float)test_draw(state, 0, 8) / 10.0f, &module));
        break;
    case 3: /* its backward is one function */
        check_ok(rms_norm_create(*width, &module));
        break;
    case 4:
        check_ok(sl_module_create(&gate_ops, NULL, &module));
        break;
    default:
        check_ok(
            sl_activation_create(test_draw(state, 0, 1) ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU,
                                 &module));
    }
    return module;
}

/* A skip connection, or none, where there is room for both ends before the last of the modules that
 * are left. NULL: none. */
static sl_module *random_skip_end(unsigned *state, int *width, int left, int *widths)
{
    static const char *const names[MAX_SKIPS] = {"a", "b", "c"};
    sl_module *module = NULL;
    int begun = 0, open = 0, which = test_draw(state, 0, MAX_SKIPS - 1);
    for (int i = 0; i < MAX_SKIPS; i++) {
        begun += widths[i] != 0;
        open += widths[i] > 0;
    }
    if (open > 0 && (left - 1 == open || test_draw(state, 0, 3) == 0)) {
        while (widths[which] <= 0)
            which = (which + 1) % MAX_SKIPS;
        check_ok(skip_end_create(names[which], widths[which], &module));
        *width += widths[which];
        widths[which] = -1; /* it is popped */
    } else if (begun < MAX_SKIPS && left - 1 > open + 1 && test_draw(state, 0, 3) == 0) {
        widths[begun] = *width;
        check_ok(skip_end_create(names[begun], 0, &module));
    }
    return module;
}

/* The tutorials' model, or a decoder of another family. */
static sl_module *build_language_model(const recipe *r)
{
    unsigned state = r->seed;
    sl_module *model;
    sl_model_options options;
    if (test_draw(&state, 0, 1))
        options = draw_decoder(&state, test_draw(&state, 1, 4), r->classes, MOST_TOKENS);
    else
        options =
            (sl_model_options){.ntokens = r->classes,
                               .emsize = 4 * test_draw(&state, 1, 5),
                               .nhid = test_draw(&state, 1, 30),
                               .nlayers = test_draw(&state, 1, 4),
                               .nhead = test_draw(&state, 0, 1) ? 4 : 2,
                               .dropout = 0.2f,
                               .mask = test_draw(&state, 0, 1) ? SL_MASK_CAUSAL : SL_MASK_NONE,
                               .pre_norm = test_draw(&state, 0, 1),
                               .tie = test_draw(&state, 0, 1)};
    check_ok(sl_transformer_lm_create(&options, &model));
    return model;
}

static sl_module *build_modules(const recipe *r)
{
    unsigned state = r->seed;
    sl_module *modules[MAX_MODULES], *model;
    if (r->is_language_model)
        return build_language_model(r);
    int count = test_draw(&state, 1, MAX_MODULES), width = r->features, widths[MAX_SKIPS] = {0};
    for (int i = 0; i < count; i++) {
        modules[i] = random_skip_end(&state, &width, count - i, widths);
        if (!modules[i])
            modules[i] = random_module(&state, &width, i + 1 == count, r->classes);
    }
    check_ok(create_sequential(modules, count, &model));
    return model;
}

/* Some modules are frozen, some are in evaluation mode. */
static sl_module *build_model(const recipe *r)
{
    unsigned state = r->seed + 2;
    sl_module *model = build_modules(r);
    for (int i = 0; i < sl_module_child_count(model); i++) {
        if (test_draw(&state, 0, 4) == 0)
            check_ok(sl_module_freeze(sl_module_child(model, i)));
        if (test_draw(&state, 0, 4) == 0)
            sl_module_set_evaluation(sl_module_child(model, i), true);
    }
    return model;
}

static sl_loss *build_loss(const recipe *r)
{
    sl_loss *loss;
    if (r->is_language_model || r->is_classifier)
        check_ok(sl_cross_entropy_create(&loss));
    else
        check_ok(sl_mse_loss_create(&loss));
    return loss;
}

static sl_tensor *random_ids(sl_device *device, const sl_shape *shape, unsigned *state, int high)
{
    int32_t ids[512];
    int64_t count = sl_shape_count(shape);
    assert_true(count <= 512);
    for (int64_t i = 0; i < count; i++)
        ids[i] = test_draw(state, 0, high);
    return integer_tensor(device, shape, ids);
}

typedef struct data {
    sl_device *device;
    sl_tensor *input, *targets, *gate, *shift;
} data;

static data build_data(const recipe *r)
{
    data d;
    unsigned state = r->seed + 1;
    check_ok(sl_device_create_cpu(1, &d.device));
    sl_shape tokens = sl_shape_2d(r->rows, test_draw(&state, 1, MOST_TOKENS));
    sl_shape ids = sl_shape_1d(r->rows), in = sl_shape_2d(r->rows, r->features);
    sl_shape out = sl_shape_2d(r->rows, r->classes);
    sl_shape gate = sl_shape_2d(r->rows, 1), shift = sl_shape_1d(1);
    d.gate = random_tensor(d.device, &gate, r->seed + 3);
    d.shift = random_tensor(d.device, &shift, r->seed + 4);
    if (r->is_language_model) {
        d.input = random_ids(d.device, &tokens, &state, r->classes - 1);
        d.targets = random_ids(d.device, &tokens, &state, r->classes - 1);
    } else {
        d.input = random_tensor(d.device, &in, r->seed);
        d.targets = r->is_classifier ? random_ids(d.device, &ids, &state, r->classes - 1)
                                     : random_tensor(d.device, &out, r->seed + 1);
    }
    return d;
}

static void data_destroy(data *d)
{
    sl_tensor_destroy(&d->input);
    sl_tensor_destroy(&d->targets);
    sl_tensor_destroy(&d->gate);
    sl_tensor_destroy(&d->shift);
    sl_device_destroy(&d->device);
}

/* ---- Training and comparing ------------------------------------------------------------- */

typedef struct result {
    double losses[STEPS], evaluated;
    float *values;
    int64_t count;
} result;

static result train(const recipe *r, const data *d, sl_pipe_options options, int devices,
                    int threads)
{
    result got;
    options.chunks = r->chunks / (options.accumulate ? options.accumulate : 1);
    options.seed = r->seed;
    options.precision = r->precision;
    SCOPED(test_pipe) piped = open_pipe(build_model(r), build_loss(r), options, devices, threads);
    const sl_input inputs[] = {{.name = "gate", .tensor = d->gate},
                               {.name = "shift", .tensor = d->shift, .whole = true}};
    sl_pipe_batch batch = {.input = d->input,
                           .inputs = inputs,
                           .input_count = 2,
                           .targets = d->targets};
    for (int step = 0; step < STEPS; step++) {
        batch.step = (uint64_t)step;
        batch.first_sample = step * (int64_t)r->rows;
        sl_pipe_zero_grad(piped.pipe);
        check_ok(sl_pipe_train(piped.pipe, &batch, &got.losses[step]));
        check_pipe_is_empty(&piped);
        pipe_sgd_step(&piped, 0.05f);
    }
    int64_t terms;
    check_ok(sl_pipe_evaluate(piped.pipe, &batch, &got.evaluated, &terms));
    got.values = pipe_values(piped.pipe, &got.count);
    return got;
}

static int module_count(const recipe *r)
{
    SCOPED(sl_module) *model = build_model(r);
    int count = sl_module_child_count(model);
    return count;
}

/* Draws a schedule and numbers of ranks and stages that it can have; looped-bfs also a placement.
 */
static sl_pipe_options draw_schedule(unsigned *state, int most_stages, int *placement)
{
    static const struct {
        const char *name;
        int least, most; /* stages of a rank */
    } schedules[] = {{"gpipe", 1, 1},       {"1f1b", 1, 1},       {"zb-h1", 1, 1},
                     {"interleaved", 1, 4}, {"looped-bfs", 1, 4}, {"zb-v", 2, 2}};
    int which, each;
    do {
        which = test_draw(state, 0, 5);
        each = test_draw(state, schedules[which].least, schedules[which].most);
    } while (each > most_stages);
    int ranks = test_draw(state, 1, most_stages / each < 4 ? most_stages / each : 4);
    sl_pipe_options options = {.stages = ranks * each,
                               .virtual_stages = each,
                               .schedule = schedules[which].name,
                               .recompute = (sl_recompute)test_draw(state, 0, 2)};
    if (strcmp(schedules[which].name, "looped-bfs") != 0 || test_draw(state, 0, 1))
        return options;
    for (int stage = 0; stage < options.stages; stage++)
        placement[stage] = stage % ranks;
    for (int stage = 0; stage < options.stages; stage++) {
        int other = test_draw(state, 0, options.stages - 1), rank = placement[stage];
        placement[stage] = placement[other];
        placement[other] = rank;
    }
    options.placement = placement;
    return options;
}

static void check_result(const result *got, const result *expected, const recipe *r,
                         const sl_pipe_options *options, int devices, int threads)
{
    assert_int_equal(got->count, expected->count);
    if (memcmp(got->losses, expected->losses, sizeof got->losses) == 0 &&
        got->evaluated == expected->evaluated &&
        (got->count == 0 || /* all modules are frozen */
         memcmp(got->values, expected->values, (size_t)got->count * sizeof(float)) == 0))
        return;
    char *csv = NULL;
    const sl_schedule *table = options->writer ? options->writer_context : options->table;
    if (table)
        check_ok(sl_schedule_csv(table, &csv));
    fail_msg("model %u (%s, %s), %d rows in %d chunks, %d stages on %d ranks and %d devices of %d "
             "threads, %s, %s: losses %.17g %.17g %.17g, should be %.17g %.17g %.17g",
             r->seed, r->is_language_model ? "transformer" : "perceptron",
             sl_precision_names[r->precision], r->rows, r->chunks, options->stages,
             options->stages / options->virtual_stages, devices, threads,
             sl_recompute_name(options->recompute), csv ? csv : options->schedule, got->losses[0],
             got->losses[1], got->losses[2], expected->losses[0], expected->losses[1],
             expected->losses[2]);
}

static void check_pipe(unsigned *state, const recipe *r, const data *d, sl_pipe_options options,
                       const result *expected)
{
    int modules = module_count(r), balance[MAX_MODULES];
    draw_balance(state, modules, options.stages, balance);
    options.balance = balance;
    options.accumulate = test_draw(state, 0, 4);
    if (options.accumulate && r->chunks % options.accumulate)
        options.accumulate = r->chunks;
    int devices = test_draw(state, 1, options.stages / options.virtual_stages);
    int threads = test_draw(state, 1, 3);
    result got = train(r, d, options, devices, threads);
    check_result(&got, expected, r, &options, devices, threads);
    free(got.values);
}

static void check_random_pipe(unsigned *state, const recipe *r, const data *d,
                              const result *expected)
{
    int modules = module_count(r), placement[MAX_MODULES];
    sl_pipe_options options = draw_schedule(state, modules < 8 ? modules : 8, placement);
    check_pipe(state, r, d, options, expected);
}

/* A writer whose argument is a table of its own. */
static sl_status write_first_micros(const void *context, const sl_schedule_options *options,
                                    sl_schedule **out)
{
    return sl_schedule_first_micros(context, options->micros, out);
}

/* A batch may have fewer micro-batches than the table; evaluation uses the table's placement. */
static void check_random_table(unsigned *state, const recipe *r, const data *d,
                               const result *expected)
{
    int modules = module_count(r), each = test_draw(state, 1, modules < 3 ? modules : 3);
    int ranks = test_draw(state, 1, modules / each < 4 ? modules / each : 4);
    if (ranks * each > TEST_MAX_STAGES)
        each = 2;
    SCOPED(sl_schedule) *table = random_table(state, ranks, each, r->chunks);
    sl_pipe_options options = {.stages = ranks * each,
                               .virtual_stages = each,
                               .table = table,
                               .recompute = (sl_recompute)test_draw(state, 0, 2)};
    if (test_draw(state, 0, 1)) {
        options.table = NULL;
        options.writer = write_first_micros;
        options.writer_context = table;
    }
    check_pipe(state, r, d, options, expected);
}

static recipe draw_recipe(unsigned *state, bool is_language_model)
{
    recipe r = {.seed = (unsigned)test_draw(state, 1, 1 << 20),
                .rows = test_draw(state, 1, 20),
                .features = test_draw(state, 1, 20),
                .classes = test_draw(state, 2, 30),
                .is_language_model = is_language_model,
                .is_classifier = test_draw(state, 0, 1)};
    r.chunks = test_draw(state, 1, 9);
    r.precision = r.seed % 3 ? SL_PRECISION_F32 : SL_PRECISION_BF16;
    return r;
}

static const sl_pipe_options one_stage = {.stages = 1, .recompute = SL_RECOMPUTE_NEVER};

static void check_rounds(bool is_language_model)
{
    unsigned state = test_seed(20240518);
    for (int round = 0; round < test_rounds(ROUNDS); round++) {
        recipe r = draw_recipe(&state, is_language_model);
        SCOPED(data) d = build_data(&r);
        result expected = train(&r, &d, one_stage, 1, 1);
        for (int i = 0; i < PIPES_PER_ROUND; i++)
            if (i % 2)
                check_random_table(&state, &r, &d, &expected);
            else
                check_random_pipe(&state, &r, &d, &expected);
        free(expected.values);
    }
}

static void random_models_train_to_the_same_bits_in_any_pipe(void **state)
{
    check_rounds(false);
}

static void transformers_train_to_the_same_bits_in_any_pipe(void **state)
{
    check_rounds(true);
}

/* DualPipeV has cells with two actions, ZB1P several stages a rank and halves. */
static void tables_of_pytorch_train_to_the_same_bits(void **state)
{
    unsigned seed = test_seed(20261127);
    const char *const texts[] = {pytorch_dual_pipe_v, pytorch_zb1p};
    for (int i = 0; i < 2; i++) {
        SCOPED(sl_schedule) *table = NULL;
        recipe r;
        check_ok(sli_schedule_parse("table", texts[i], strlen(texts[i]), &table));
        int stages = sl_schedule_stages(table);
        do
            r = draw_recipe(&seed, false);
        while (module_count(&r) < stages);
        r.chunks = sl_schedule_micros(table);
        r.rows = 2 * r.chunks;
        SCOPED(data) d = build_data(&r);
        result expected = train(&r, &d, one_stage, 1, 1);
        sl_pipe_options options = {.stages = stages,
                                   .virtual_stages = stages / sl_schedule_ranks(table),
                                   .table = table};
        check_pipe(&seed, &r, &d, options, &expected);
        free(expected.values);
    }
}

static void other_chunks_agree_to_rounding_with_dropout_on(void **state)
{
    skip_if_sanitized();
    unsigned draws = test_seed(20240518);
    for (int round = 0; round < test_rounds(ROUNDS); round++) {
        recipe r = draw_recipe(&draws, round % 2);
        SCOPED(data) d = build_data(&r);
        r.precision = SL_PRECISION_F32;
        r.chunks = 1;
        result whole = train(&r, &d, one_stage, 1, 1);
        r.chunks = test_draw(&draws, 2, 20);
        result cut = train(&r, &d, one_stage, 1, 1);
        for (int step = 0; step < STEPS; step++)
            if (!(fabs(cut.losses[step] - whole.losses[step]) <= 1e-5 * fabs(whole.losses[step])))
                fail_msg("model %u, %d rows: loss %.9g in %d chunks, %.9g in one", r.seed, r.rows,
                         cut.losses[step], r.chunks, whole.losses[step]);
        free(whole.values);
        free(cut.values);
    }
}

/* ---- A cache ---------------------------------------------------------------------------- */

enum { CACHED_ROWS = 2, CACHED_LENGTH = 5, CACHED_TOKENS = 9 };

static test_pipe open_language_model(int stages, sl_precision precision)
{
    sl_module *model;
    check_ok(sl_transformer_lm_create(&(sl_model_options){.ntokens = CACHED_TOKENS,
                                                          .emsize = 8,
                                                          .nhid = 6,
                                                          .nlayers = 2,
                                                          .nhead = 2},
                                      &model));
    return open_pipe(model, new_cross_entropy(),
                     (sl_pipe_options){.stages = stages, .chunks = 2, .precision = precision},
                     stages, 1);
}

/* The logits of each position by itself, malloc'ed. */
static float *logits_one_by_one(int stages, sl_precision precision)
{
    enum { EACH = CACHED_ROWS * CACHED_TOKENS };
    SCOPED(test_pipe) piped = open_language_model(stages, precision);
    float *all = malloc(CACHED_LENGTH * EACH * sizeof *all);
    sl_shape shape = sl_shape_2d(CACHED_ROWS, 1);
    sl_cache *caches[CACHED_ROWS];
    for (int n = 0; n < CACHED_ROWS; n++)
        check_ok(sl_cache_create(piped.model, CACHED_LENGTH, &caches[n]));
    for (int t = 0; t < CACHED_LENGTH; t++) {
        const int32_t ids[CACHED_ROWS] = {t * 5 % CACHED_TOKENS, (t * 7 + 1) % CACHED_TOKENS};
        SCOPED(sl_tensor) *input = integer_tensor(piped.devices[0], &shape, ids);
        sl_tensor *output;
        sl_pipe_batch batch = {.input = input, .targets = input, .caches = caches};
        double loss;
        check_error(sl_pipe_train(piped.pipe, &batch, &loss), SL_ERR_INVALID,
                    "a cache is for sl_pipe_forward");
        sl_cache *wrong[CACHED_ROWS] = {caches[0], caches[0]};
        batch.caches = wrong;
        check_error(sl_pipe_forward(piped.pipe, &batch, &output), SL_ERR_INVALID,
                    "sl_pipe_forward: row 1 has the cache of a row before it");
        wrong[0] = NULL;
        check_error(sl_pipe_forward(piped.pipe, &batch, &output), SL_ERR_INVALID,
                    "sl_pipe_forward: the cache of row 0 is NULL");
        batch.caches = caches;
        check_ok(sl_pipe_forward(piped.pipe, &batch, &output));
        for (int n = 0; n < CACHED_ROWS; n++)
            assert_int_equal(sl_cache_position(caches[n]), t + 1);
        check_ok(sl_tensor_read(output, all + (ptrdiff_t)t * EACH));
        sl_tensor_destroy(&output);
        if (t == CACHED_LENGTH - 1)
            check_error(sl_pipe_forward(piped.pipe, &batch, &output), SL_ERR_INVALID,
                        "the cache has 5 of 5 positions, so 1 more do not fit");
    }
    for (int n = 0; n < CACHED_ROWS; n++)
        sl_cache_destroy(&caches[n]);
    return all;
}

static void cache_gives_the_same_bits_in_any_pipe(void **state)
{
    for (sl_precision precision = SL_PRECISION_F32; precision <= SL_PRECISION_BF16; precision++) {
        FREED float *one = logits_one_by_one(1, precision);
        for (int stages = 2; stages <= 4; stages++) {
            FREED float *cut = logits_one_by_one(stages, precision);
            assert_memory_equal(cut, one,
                                CACHED_LENGTH * CACHED_ROWS * CACHED_TOKENS * sizeof *cut);
        }
    }
}

int pipe_invariance_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_models_train_to_the_same_bits_in_any_pipe),
        cmocka_unit_test(transformers_train_to_the_same_bits_in_any_pipe),
        cmocka_unit_test(tables_of_pytorch_train_to_the_same_bits),
        cmocka_unit_test(cache_gives_the_same_bits_in_any_pipe),
        cmocka_unit_test(other_chunks_agree_to_rounding_with_dropout_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
