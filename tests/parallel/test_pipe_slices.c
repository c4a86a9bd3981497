/* Pipes whose micro-batches are cut into slices: the same bits for any layout, and as whole rows to
 * rounding. */
#include "nn/module.h"
#include "parallel/schedule/table.h"
#include "sluice/group.h"
#include "sluice/model.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, CLASSES = 11, LAYERS = 3, MODULES = LAYERS + 3, MOST_ROWS = 7, MOST_TOKENS = 23 };

/* A model and its batches. */
typedef struct recipe {
    unsigned seed;
    int rows, tokens, chunks, slices;
    bool is_decoder, has_lengths;
    unsigned frozen;   /* bit i: module i is */
    int adapted_layer; /* the first with adapters, which alone are trained then; -1: no layer */
    sl_precision precision;
    int64_t lengths[MOST_ROWS];
} recipe;

static recipe draw_recipe(unsigned *state)
{
    recipe r = {.seed = (unsigned)test_draw(state, 1, 1 << 20),
                .rows = test_draw(state, 1, MOST_ROWS),
                .tokens = test_draw(state, 8, MOST_TOKENS),
                .chunks = test_draw(state, 1, 4),
                .slices = test_draw(state, 2, 4),
                .is_decoder = test_draw(state, 0, 1),
                .has_lengths = test_draw(state, 0, 2) == 0,
                .frozen = (unsigned)(test_draw(state, 0, 2) ? 0 : test_draw(state, 1, 7)),
                .adapted_layer = test_draw(state, 0, 3) ? -1 : test_draw(state, 0, LAYERS - 1)};
    r.precision = r.seed % 3 ? SL_PRECISION_F32 : SL_PRECISION_BF16;
    for (int i = 0; i < r.rows; i++)
        r.lengths[i] = test_draw(state, r.seed % 2 ? 4 : 1, r.tokens);
    return r;
}

static sl_module *build_model(const recipe *r)
{
    sl_module *model;
    unsigned state = r->seed;
    sl_model_options options = {.ntokens = CLASSES,
                                .emsize = 8,
                                .nhid = 12,
                                .nlayers = LAYERS,
                                .nhead = 2,
                                .dropout = 0.2f};
    if (r->is_decoder) {
        options = draw_decoder(&state, LAYERS, CLASSES, MOST_TOKENS);
        options.lora = (sl_lora_options){.adapts = r->adapted_layer >= 0,
                                         .rank = 2,
                                         .dropout = 0.1f,
                                         .first_layer = r->adapted_layer};
    }
    check_ok(sl_transformer_lm_create(&options, &model));
    for (int i = 0; !options.lora.adapts && r->frozen >> i; i++)
        if (r->frozen >> i & 1)
            check_ok(sl_module_freeze(sl_module_child(model, i)));
    return model;
}

static sl_tensor *build_ids(const recipe *r, sl_device *device, unsigned more, bool are_targets)
{
    int32_t ids[MOST_ROWS * MOST_TOKENS];
    unsigned state = r->seed + more;
    sl_shape shape = sl_shape_2d(r->rows, r->tokens);
    for (int row = 0; row < r->rows; row++)
        for (int t = 0; t < r->tokens; t++) {
            bool is_padding = r->has_lengths && t >= r->lengths[row];
            int id = test_draw(&state, 0, CLASSES - 1);
            ids[row * r->tokens + t] = are_targets && is_padding ? -100 : id;
        }
    return integer_tensor(device, &shape, ids);
}

typedef struct result {
    double losses[STEPS], row_losses[MOST_ROWS], evaluated;
    float *values;
    int64_t count;
} result;

static void result_destroy(result *r)
{
    free(r->values);
}

/* Has every micro-batch a position for each slice? */
static bool is_cut(const recipe *r)
{
    int64_t sizes[MOST_ROWS];
    int micros = sl_micro_batches(r->rows, r->chunks, sizes);
    for (int micro = 0, row = 0; micro < micros; micro++) {
        int64_t longest = r->has_lengths ? 0 : r->tokens;
        for (int64_t i = 0; i < sizes[micro]; i++, row++)
            if (r->has_lengths && r->lengths[row] > longest)
                longest = r->lengths[row];
        if (longest < r->slices)
            return false;
    }
    return true;
}

/* Did every action of the step run a slice, or a whole micro-batch? */
static void check_cut(const sl_pipe *pipe, int slices)
{
    const sl_timeline_entry *entries;
    int count = sl_pipe_timeline(pipe, &entries);
    assert_true(count > 0);
    for (int i = 0; i < count; i++)
        assert_int_equal(entries[i].action.slices, slices);
}

/* In a pipe with so many slices. */
static void train_steps(test_pipe *piped, const recipe *r, int slices, sl_device *device,
                        result *out)
{
    SCOPED(sl_tensor) *input = build_ids(r, device, 1, false);
    SCOPED(sl_tensor) *targets = build_ids(r, device, 2, true);
    sl_pipe_batch batch = {.input = input,
                           .targets = targets,
                           .lengths = r->has_lengths ? r->lengths : NULL,
                           .row_losses = out->row_losses};
    for (int step = 0; step < STEPS; step++) {
        batch.step = (uint64_t)step;
        batch.first_sample = step * (int64_t)r->rows;
        sl_pipe_zero_grad(piped->pipe);
        check_ok(sl_pipe_train(piped->pipe, &batch, &out->losses[step]));
        check_cut(piped->pipe, is_cut(r) ? slices : 1);
        check_pipe_is_empty(piped);
        pipe_sgd_step(piped, 0.05f);
    }
    int64_t terms;
    batch.row_losses = NULL;
    check_ok(sl_pipe_evaluate(piped->pipe, &batch, &out->evaluated, &terms));
    out->values = pipe_values(piped->pipe, &out->count);
}

static result train(const recipe *r, sl_pipe_options options, int devices, int threads)
{
    result got = {0};
    SCOPED(sl_device) *device = new_device(1);
    options.seed = r->seed;
    options.precision = r->precision;
    SCOPED(test_pipe) piped =
        open_pipe(build_model(r), new_cross_entropy(), options, devices, threads);
    int slices = options.table ? sl_schedule_slices(options.table) : options.slices;
    train_steps(&piped, r, slices, device, &got);
    return got;
}

static result train_one_stage(const recipe *r, int slices)
{
    return train(r,
                 (sl_pipe_options){.stages = 1,
                                   .chunks = r->chunks,
                                   .slices = slices,
                                   .recompute = SL_RECOMPUTE_NEVER},
                 1, 1);
}

static int module_count(const recipe *r)
{
    SCOPED(sl_module) *model = build_model(r);
    int count = sl_module_child_count(model);
    assert_true(count <= MODULES);
    return count;
}

static void check_same(const recipe *r, const sl_pipe_options *options, const result *got,
                       const result *expected)
{
    size_t bytes = (size_t)expected->count * sizeof(float);
    if (memcmp(got->losses, expected->losses, sizeof got->losses) == 0 &&
        memcmp(got->row_losses, expected->row_losses, sizeof got->row_losses) == 0 &&
        got->evaluated == expected->evaluated && memcmp(got->values, expected->values, bytes) == 0)
        return;
    fail_msg("model %u, %d rows of %d in %d chunks of %d slices, %d stages, %s, %s, %s: losses "
             "%.17g %.17g %.17g, should be %.17g %.17g %.17g",
             r->seed, r->rows, r->tokens, r->chunks, r->slices, options->stages,
             options->schedule ? options->schedule : "a table",
             sl_recompute_name(options->recompute), sl_precision_names[r->precision],
             got->losses[0], got->losses[1], got->losses[2], expected->losses[0],
             expected->losses[1], expected->losses[2]);
}

static sl_pipe_options draw_options(unsigned *state, const recipe *r, int *balance)
{
    static const char *const names[] = {"gpipe", "1f1b", "zb-h1"};
    int modules = module_count(r);
    sl_pipe_options options = {.stages = test_draw(state, 1, modules),
                               .slices = r->slices,
                               .schedule = names[test_draw(state, 0, 2)],
                               .recompute = (sl_recompute)test_draw(state, 0, 2),
                               .accumulate = test_draw(state, 1, r->chunks)};
    if (r->chunks % options.accumulate)
        options.accumulate = 1;
    options.chunks = r->chunks / options.accumulate;
    draw_balance(state, modules, options.stages, balance);
    options.balance = balance;
    return options;
}

static void slices_train_to_the_same_bits_in_any_pipe(void **state)
{
    unsigned seed = test_seed(20261128);
    int cut = 0;
    for (int round = 0; round < test_rounds(25); round++) {
        recipe r = draw_recipe(&seed);
        SCOPED(result) expected = train_one_stage(&r, r.slices);
        cut += is_cut(&r);
        for (int i = 0; i < 6; i++) {
            int balance[MODULES];
            sl_pipe_options options = draw_options(&seed, &r, balance);
            SCOPED(result) got =
                train(&r, options, test_draw(&seed, 1, options.stages), test_draw(&seed, 1, 2));
            check_same(&r, &options, &got, &expected);
        }
    }
    assert_true(cut > 0);
}

/* Halves, recomputations and joined cells anywhere that a slice allows. */
static void tables_with_slices_train_to_the_same_bits(void **state)
{
    static const char *const texts[] = {
        "0F0.0,0F0.1,0F1.0,0R0.1,0I0.1,0F1.1,0W0.1,0B0.0,0I1.1,0I1.0,0W1.1,0W1.0\n"
        "1F0.0,1F0.1,1B0.1,1F1.0,(1F1.1;1B0.0)OVERLAP_F_B,1B1.1,1R1.0,1B1.0\n",
        "0F0.0,0F1.0,0F1.1,0F0.1,0B0.1,0B0.0,0B1.1,0B1.0\n"
        "1F0.0,1F1.0,1F1.1,1F0.1,1B0.1,1B0.0,1B1.1,1B1.0\n",
    };
    unsigned seed = test_seed(20261129);
    for (int round = 0; round < test_rounds(8); round++) {
        SCOPED(sl_schedule) *table = NULL;
        const char *text = texts[round % 2];
        check_ok(sli_schedule_parse("table", text, strlen(text), &table));
        recipe r = draw_recipe(&seed);
        r.chunks = r.slices = 2;
        SCOPED(result) expected = train_one_stage(&r, 2);
        sl_pipe_options options = {.stages = 2,
                                   .table = table,
                                   .recompute = (sl_recompute)test_draw(&seed, 0, 2)};
        SCOPED(result) got = train(&r, options, 2, 1);
        check_same(&r, &options, &got, &expected);
    }
}

/* Slices may be more than a row has positions: then it is not cut. */
static void slices_agree_with_whole_rows_to_rounding(void **state)
{
    skip_if_sanitized();
    unsigned seed = test_seed(20261130);
    for (int round = 0; round < test_rounds(25); round++) {
        recipe r = draw_recipe(&seed);
        r.precision = SL_PRECISION_F32;
        if (round % 5 == 0)
            r.slices = 2 * r.tokens;
        SCOPED(result) whole = train_one_stage(&r, 1);
        SCOPED(result) cut = train_one_stage(&r, r.slices);
        for (int step = 0; step < STEPS; step++)
            if (!(fabs(cut.losses[step] - whole.losses[step]) <= 1e-5 * fabs(whole.losses[step])))
                fail_msg("model %u, %d rows of %d: loss %.9g in %d slices, %.9g in one", r.seed,
                         r.rows, r.tokens, cut.losses[step], r.slices, whole.losses[step]);
        for (int row = 0; row < r.rows; row++)
            assert_float_equal(cut.row_losses[row], whole.row_losses[row],
                               1e-4 * (1 + fabs(whole.row_losses[row])));
        if (!is_cut(&r))
            assert_memory_equal(cut.losses, whole.losses, sizeof cut.losses);
    }
}

/* ---- Over ranks of a group ---------------------------------------------------------------- */

enum { RANKS = 3 };

typedef struct group_test {
    recipe recipe;
    result expected;
} group_test;

static sl_status train_on_rank(sl_group *group, void *arg)
{
    const group_test *test = arg;
    const recipe *r = &test->recipe;
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *model = build_model(r);
    sl_loss *loss = new_cross_entropy();
    sl_device *devices[RANKS] = {device, device, device};
    sl_pipe *pipe;
    SCOPED(sl_tensor) *input = build_ids(r, device, 1, false);
    SCOPED(sl_tensor) *targets = build_ids(r, device, 2, true);
    sl_pipe_options options = {.model = model,
                               .loss = loss,
                               .stages = RANKS,
                               .devices = devices,
                               .chunks = r->chunks,
                               .slices = r->slices,
                               .schedule = r->seed % 2 ? "1f1b" : "gpipe",
                               .precision = r->precision,
                               .seed = r->seed,
                               .group = group};
    double mean;
    SL_TRY(sl_pipe_create(&options, &pipe));
    sl_pipe_batch batch = {.input = input,
                           .targets = targets,
                           .lengths = r->has_lengths ? r->lengths : NULL};
    sl_status status = sl_pipe_train(pipe, &batch, &mean);
    if (status == SL_OK && mean != test->expected.losses[0])
        status = sl_error(SL_ERR_INTERNAL, "rank %d: loss %.17g, should be %.17g",
                          sl_group_rank(group), mean, test->expected.losses[0]);
    sl_utilization utilization;
    if (status == SL_OK)
        status = sl_pipe_get_utilization(pipe, &utilization);
    if (status == SL_OK)
        sl_utilization_clear(&utilization);
    sl_pipe_destroy(&pipe);
    sl_loss_destroy(&loss);
    return status;
}

static void slices_go_between_ranks_of_a_group(void **state)
{
    unsigned seed = test_seed(20261201);
    sl_group_options options = {.timeout_seconds = 60};
    for (int round = 0; round < test_rounds(12); round++) {
        group_test test = {.recipe = draw_recipe(&seed)};
        if (round == 2)
            test.recipe.slices = 40; /* not cut */
        test.expected = train_one_stage(&test.recipe, test.recipe.slices);
        check_ok(sl_spawn(train_on_rank, &test, RANKS, &options));
        result_destroy(&test.expected);
    }
}

/* ---- What is refused ---------------------------------------------------------------------- */

static void check_refused(sl_model_options model_options, sl_pipe_options options, const char *text)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_module) *model = NULL;
    sl_loss *loss = new_cross_entropy();
    sl_device *devices[] = {device, device};
    sl_pipe *pipe;
    check_ok(sl_transformer_lm_create(&model_options, &model));
    options.model = model;
    options.loss = loss;
    options.devices = devices;
    options.stages = 2;
    sl_status status = sl_pipe_create(&options, &pipe);
    assert_true(status == SL_ERR_INVALID || status == SL_ERR_UNSUPPORTED);
    check_error(status, status, text);
    assert_null(pipe);
    sl_loss_destroy(&loss);
}

static void what_cannot_be_cut_is_refused(void **state)
{
    const sl_model_options causal = {
        .ntokens = CLASSES, .emsize = 8, .nhid = 12, .nlayers = 2, .nhead = 2};
    sl_model_options masked = causal;
    masked.mask = SL_MASK_NONE;
    SCOPED(sl_schedule) *table = NULL;
    static const char text[] = "0F0.0,0F0.1,0B0.1,0B0.0\n1F0.0,1F0.1,1B0.1,1B0.0\n";
    check_ok(sli_schedule_parse("table", text, strlen(text), &table));
    check_refused(causal, (sl_pipe_options){.slices = -1}, "slices must be 0 or more, got -1");
    check_refused(masked, (sl_pipe_options){.slices = 2},
                  "slices need modules that can continue a row, which module 1");
    check_refused(causal, (sl_pipe_options){.slices = 2, .head_blocks = 4},
                  "a split head cannot be combined with slices");
    check_refused(causal, (sl_pipe_options){.slices = 2, .schedule = "zb-v", .virtual_stages = 2},
                  "zb-v does not cut micro-batches into slices");
    check_refused(causal, (sl_pipe_options){.slices = 3, .table = table},
                  "the table has 2 slices of a micro-batch, not 3");
    check_refused(causal, (sl_pipe_options){.slices = 1 << 30, .chunks = 8}, "are too many");
}

static void batches_that_cannot_be_cut_are_refused(void **state)
{
    recipe r = {.seed = 3, .rows = 2, .tokens = 8, .slices = 2};
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(test_pipe) piped = open_pipe(build_model(&r), new_cross_entropy(),
                                        (sl_pipe_options){.stages = 2, .slices = 2}, 2, 1);
    SCOPED(sl_tensor) *input = build_ids(&r, device, 1, false);
    SCOPED(sl_tensor) *targets = build_ids(&r, device, 2, true);
    sl_shape line = sl_shape_1d(2);
    SCOPED(sl_tensor) *flat = integer_tensor(device, &line, (int32_t[]){1, 2});
    const sl_input more = {.name = "more", .tensor = input};
    sl_pipe_batch batch = {.input = input, .targets = targets, .inputs = &more, .input_count = 1};
    double mean;
    check_error(sl_pipe_train(piped.pipe, &batch, &mean), SL_ERR_UNSUPPORTED,
                "further inputs cannot be cut into slices");
    batch = (sl_pipe_batch){.input = flat, .targets = flat};
    check_error(sl_pipe_train(piped.pipe, &batch, &mean), SL_ERR_INVALID,
                "with slices the input must be [N, T, ...], got [2]");
    check_pipe_is_empty(&piped);
    batch = (sl_pipe_batch){.input = input, .targets = targets};
    check_ok(sl_pipe_train(piped.pipe, &batch, &mean));
}

/* Nothing of a step that fails in a slice is left. */
static void errors_name_the_slice(void **state)
{
    recipe r = {.seed = 3, .rows = 2, .tokens = 8, .slices = 2};
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(test_pipe) piped =
        open_pipe(build_model(&r), new_cross_entropy(),
                  (sl_pipe_options){.stages = 2, .chunks = 2, .slices = 2}, 2, 1);
    int32_t ids[16] = {[13] = CLASSES};
    sl_shape shape = sl_shape_2d(2, 8);
    SCOPED(sl_tensor) *input = integer_tensor(device, &shape, ids);
    SCOPED(sl_tensor) *targets = build_ids(&r, device, 2, true);
    sl_pipe_batch batch = {.input = input, .targets = targets};
    double mean;
    check_error(sl_pipe_train(piped.pipe, &batch, &mean), SL_ERR_INVALID,
                "[stage 0 micro 1 slice 1] 0 (");
    check_pipe_is_empty(&piped);
}

int pipe_slices_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_train_to_the_same_bits_in_any_pipe),
        cmocka_unit_test(tables_with_slices_train_to_the_same_bits),
        cmocka_unit_test(slices_agree_with_whole_rows_to_rounding),
        cmocka_unit_test(slices_go_between_ranks_of_a_group),
        cmocka_unit_test(what_cannot_be_cut_is_refused),
        cmocka_unit_test(batches_that_cannot_be_cut_are_refused),
        cmocka_unit_test(errors_name_the_slice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
