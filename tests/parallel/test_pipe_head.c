/* Pipes whose head is split over all ranks. */
#include "nn/module.h"
#include "parallel/pipe/pipe.h"
#include "parallel/schedule/table.h"
#include "sluice/layers.h"
#include "sluice/model.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "support/pipes.h"
#include "support/replicas.h"
#include "support/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 37, TOKENS = 5, ROWS = 8, CHUNKS = 4, STEPS = 3, BLOCKS = 8 };

/* The tutorials' model, or a decoder without a bias. */
static sl_module *build_model(bool is_decoder, bool tie)
{
    sl_module *model;
    unsigned seed = 5;
    sl_model_options options = {
        .ntokens = CLASSES, .emsize = 12, .nhid = 16, .nlayers = 8, .nhead = 2, .dropout = 0.2f};
    if (is_decoder)
        options = draw_decoder(&seed, 8, CLASSES, TOKENS);
    options.tie = tie;
    check_ok(sl_transformer_lm_create(&options, &model));
    return model;
}

static sl_tensor *random_ids(sl_device *device, unsigned seed, bool ignores)
{
    int32_t ids[ROWS * TOKENS];
    sl_shape shape = sl_shape_2d(ROWS, TOKENS);
    for (int i = 0; i < ROWS * TOKENS; i++)
        ids[i] = ignores && test_draw(&seed, 0, 4) == 0 ? -100 : test_draw(&seed, 0, CLASSES - 1);
    return integer_tensor(device, &shape, ids);
}

/* What a few steps give. */
typedef struct outcome {
    double losses[STEPS], evaluation;
    float *values; /* malloc'ed */
    int64_t count;
} outcome;

static void train(test_pipe *pipe, outcome *out)
{
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_tensor) *input = random_ids(device, 1, false), *targets = random_ids(device, 2, true);
    const sl_pipe_batch batch = {.input = input, .targets = targets};
    int64_t terms;
    for (int step = 0; step < STEPS; step++) {
        out->losses[step] = pipe_train(pipe, input, targets, (uint64_t)step);
        check_pipe_is_empty(pipe);
        pipe_sgd_step(pipe, 0.2f);
    }
    check_ok(sl_pipe_evaluate(pipe->pipe, &batch, &out->evaluation, &terms));
    out->values = pipe_values(pipe->pipe, &out->count);
}

typedef struct pipe_case {
    const char *schedule;
    int ranks, blocks;
    bool is_decoder, tie;
    sl_precision precision;
    sl_recompute recompute;
} pipe_case;

static test_pipe open_case(const pipe_case *c)
{
    int each = sl_schedule_virtual_stages(c->schedule);
    return open_pipe(build_model(c->is_decoder, c->tie), new_cross_entropy(),
                     (sl_pipe_options){.stages = c->ranks * each,
                                       .virtual_stages = each,
                                       .chunks = CHUNKS,
                                       .schedule = c->schedule,
                                       .recompute = c->recompute,
                                       .precision = c->precision,
                                       .seed = 7,
                                       .head_blocks = c->blocks},
                     c->ranks, 1);
}

static void run_case(const pipe_case *c, outcome *out)
{
    SCOPED(test_pipe) pipe = open_case(c);
    train(&pipe, out);
}

static void check_same(const outcome *a, const outcome *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_true(a->evaluation == b->evaluation);
    assert_memory_equal(a->values, b->values, (size_t)a->count * sizeof *a->values);
}

static void check_near(const outcome *a, const outcome *b, double tolerance)
{
    for (int step = 0; step < STEPS; step++)
        assert_float_equal(a->losses[step], b->losses[step], tolerance);
    for (int64_t i = 0; i < a->count; i++)
        if (fabs((double)a->values[i] - (double)b->values[i]) > tolerance)
            fail_msg("value %ld is %g and %g", (long)i, (double)a->values[i], (double)b->values[i]);
}

/* Each schedule with one number of ranks, which differs from model to model. */
static void check_models(pipe_case c, int number, double tolerance)
{
    outcome whole = {0}, one = {0};
    c.ranks = 1;
    c.schedule = "gpipe";
    run_case(&c, &whole);
    c.blocks = BLOCKS;
    run_case(&c, &one);
    check_near(&whole, &one, tolerance);
    for (int kind = 0; sl_schedule_names[kind]; kind++) {
        outcome split = {0};
        c.ranks = 2 + (kind + number) % 3;
        c.schedule = sl_schedule_names[kind];
        run_case(&c, &split);
        check_same(&one, &split);
        free(split.values);
    }
    free(whole.values);
    free(one.values);
}

static void
split_head_gives_the_same_bits_for_any_ranks_and_those_of_the_whole_to_rounding(void **state)
{
    const sl_recompute modes[] = {SL_RECOMPUTE_EXCEPT_LAST, SL_RECOMPUTE_ALWAYS, SL_RECOMPUTE_NEVER,
                                  SL_RECOMPUTE_EXCEPT_LAST};
    for (int model = 0; model < 4; model++) {
        pipe_case c = {.is_decoder = model % 2, .tie = model / 2, .recompute = modes[model]};
        if (!IS_SANITIZED || model < 2)
            check_models(c, model, 1e-5);
        c.precision = SL_PRECISION_BF16;
        if (!IS_SANITIZED || model >= 2)
            check_models(c, model + 1, 0.02);
    }
}

/* Of one of two ranks: what a step after an update gives, where an evaluation comes first, and the
 * step may rely on what that was given; and the norm of its gradients together with those before.
 */
typedef struct later_step {
    bool evaluates, tie;
    sl_precision precision;
    double loss[2], norm[2]; /* of each rank */
} later_step;

static sl_status take_later_step(sl_group *group, void *arg)
{
    later_step *out = arg;
    SCOPED(rig) at = {0};
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_tensor) *input = random_ids(device, 1, false), *targets = random_ids(device, 2, true);
    sl_pipe_batch batch = {.input = input, .targets = targets};
    const sl_pipe_options options = {.stages = 2,
                                     .chunks = CHUNKS,
                                     .schedule = "1f1b",
                                     .precision = out->precision,
                                     .seed = 7,
                                     .group = group,
                                     .head_blocks = BLOCKS};
    int64_t terms;
    double loss;
    SL_TRY(
        rig_open(build_model(false, out->tie), new_cross_entropy(),
                 &(sl_training_options){.pipe = options, .optimizer = {.kind = SL_OPTIMIZER_ADAMW}},
                 &at));
    SL_TRY(sl_pipe_train(at.pipe, &batch, &loss));
    SL_TRY(sl_pipe_optimizer_step(at.optimizer, 0.1, 0, NULL));
    if (out->evaluates)
        SL_TRY(sl_pipe_evaluate(at.pipe, &batch, &loss, &terms));
    batch.same_weights = out->evaluates;
    SL_TRY(sl_pipe_train(at.pipe, &batch, &out->loss[sl_group_rank(group)]));
    return sl_clip_grad_norm(at.pipe, 1, SL_GRAD_NORM_L2, true, &out->norm[sl_group_rank(group)]);
}

static void copies_of_a_head_are_up_to_date_after_an_evaluation(void **state)
{
    for (int mode = 0; mode < 4; mode++) {
        sl_precision in = mode % 2 ? SL_PRECISION_BF16 : SL_PRECISION_F32;
        later_step first = {.precision = in, .tie = mode / 2}, second = first, alone = first;
        second.evaluates = true;
        check_ranks(take_later_step, &first, 2);
        check_ranks(take_later_step, &second, 2);
        assert_true(first.loss[0] == second.loss[0] && first.loss[0] == first.loss[1]);
        check_ranks(take_later_step, &alone, 1);
        assert_true(first.loss[0] == alone.loss[0]);
        assert_true(first.norm[0] == alone.norm[0] && second.norm[1] == alone.norm[0]);
    }
}

/* Of one of two ranks. */
static sl_pipe_options options_of_rank(sl_group *group, int blocks)
{
    return (sl_pipe_options){
        .stages = 2, .chunks = CHUNKS, .seed = 7, .group = group, .head_blocks = blocks};
}

static sl_status expect_placed(sl_status status, const char *from)
{
    char got[512];
    snprintf(got, sizeof got, "%s", status == SL_OK ? "" : sl_error_text());
    return expect(strstr(got, "is in a parameter set already") && strstr(got, from),
                  "%s: a placed head, got \"%s\"", from, got);
}

/* Each rank would own its part of the head, which another pipe's last stage has. */
static sl_status create_on_placed_head(sl_group *group, void *arg)
{
    SCOPED(rig) at = {0};
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_loss) *loss = new_cross_entropy();
    SCOPED(sl_tensor) *input = random_ids(device, 1, false), *targets = random_ids(device, 2, true);
    const sl_pipe_batch batch = {.input = input, .targets = targets};
    const sl_training_options first = {.pipe = options_of_rank(group, 0)};
    sl_pipe_options second = options_of_rank(group, BLOCKS);
    sl_pipe *pipe;
    double before, after, trained;
    int64_t terms;
    SL_TRY(rig_open(build_model(false, false), new_cross_entropy(), &first, &at));
    SL_TRY(sl_pipe_evaluate(at.pipe, &batch, &before, &terms));
    second.model = at.model;
    second.loss = loss;
    second.devices = at.devices;
    SL_TRY(expect_placed(sl_pipe_create(&second, &pipe), "sl_pipe_create"));
    SL_TRY(sl_pipe_evaluate(at.pipe, &batch, &after, &terms));
    SL_TRY(expect(before == after, "%a after a refusal, got %a", before, after));
    return sl_pipe_train(at.pipe, &batch, &trained);
}

/* No set takes the head of a pipe whose ranks own their parts; nor does another pipe, also where it
 * has the stages on other ranks. */
static sl_status create_set_of_cut_head(sl_group *group, void *arg)
{
    SCOPED(rig) at = {0};
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_tensor) *input = random_ids(device, 1, false), *targets = random_ids(device, 2, true);
    const sl_pipe_batch batch = {.input = input, .targets = targets};
    const sl_training_options cut = {.pipe = options_of_rank(group, BLOCKS)};
    const sl_parameter_set_options own = {.device = device};
    const int exchanged[] = {1, 0};
    sl_pipe_options other = options_of_rank(group, 0);
    sl_parameter_set *set;
    sl_pipe *pipe;
    double before, after;
    int64_t terms;
    int last;
    other.group_ranks = exchanged;
    SL_TRY(rig_open(build_model(false, arg), new_cross_entropy(), &cut, &at));
    SL_TRY(sl_pipe_evaluate(at.pipe, &batch, &before, &terms));
    last = sl_module_child_count(at.model) - 1;
    SL_TRY(expect_placed(sl_parameter_set_create(at.model, last, 1, &own, &set), "decoder."));
    sl_device *const exchanged_devices[] = {at.devices[1], at.devices[0]};
    other.model = at.model;
    other.devices = exchanged_devices;
    SL_TRY(expect_placed(sl_pipe_create(&other, &pipe), "sl_parameter_set_create"));
    SL_TRY(sl_pipe_evaluate(at.pipe, &batch, &after, &terms));
    return expect(before == after, "%a after a refusal, got %a", before, after);
}

static void head_of_another_set_is_let_be(void **state)
{
    check_ranks(create_on_placed_head, NULL, 2);
    check_ranks(create_set_of_cut_head, NULL, 2);
    check_ranks(create_set_of_cut_head, &(bool){true}, 2); /* its weight is tied, its bias is not */
}

static void split_head_runs_the_table(void **state)
{
    for (int kind = 0; sl_schedule_names[kind]; kind++) {
        pipe_case c = {.schedule = sl_schedule_names[kind],
                       .ranks = 2,
                       .blocks = BLOCKS,
                       .recompute = SL_RECOMPUTE_EXCEPT_LAST};
        SCOPED(test_pipe) pipe = open_case(&c);
        SCOPED(sl_schedule) *table = library_table(sl_schedule_names[kind], 2, CHUNKS);
        outcome out = {0};
        const sl_timeline_entry *entries;
        sl_utilization utilization;
        train(&pipe, &out);
        check_ok(sl_schedule_recompute(table, c.recompute));
        check_ok(sl_schedule_split_head(table, sl_partition_head(pipe.model)));
        int count = sl_pipe_timeline(pipe.pipe, &entries);
        check_timeline(entries, count, table, sl_schedule_stages(table), 0);
        check_ok(sl_pipe_get_utilization(pipe.pipe, &utilization));
        assert_int_equal(utilization.action_count, count);
        assert_true(utilization.predicted_seconds > 0);
        sl_utilization_clear(&utilization);
        free(out.values);
    }
}

/* A target that no class has is the same error as without a split, and the pipe goes on. */
static void wrong_target_ends_the_step_on_all_ranks(void **state)
{
    pipe_case c = {.schedule = "1f1b", .ranks = 4, .blocks = BLOCKS};
    SCOPED(test_pipe) pipe = open_case(&c);
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_tensor) *input = random_ids(device, 1, false), *targets = random_ids(device, 2, true);
    const sl_pipe_batch batch = {.input = input, .targets = targets};
    double loss;
    int32_t right = sl_tensor_i32(targets)[17];
    sl_tensor_i32(targets)[17] = CLASSES;
    check_error(sl_pipe_train(pipe.pipe, &batch, &loss), SL_ERR_INVALID,
                "CrossEntropyLoss: target 37 at row 7 is not in 0 .. 36");
    check_pipe_is_empty(&pipe);
    sl_tensor_i32(targets)[17] = right;
    sl_pipe_zero_grad(pipe.pipe);
    check_ok(sl_pipe_train(pipe.pipe, &batch, &loss));
    check_pipe_is_empty(&pipe);
}

/* Of one of two ranks: wrong calls and words, after an evaluation. The errors are those of a whole
 * embedding, and the pipe goes on. */
static sl_status name_wrong_word(sl_group *group, void *arg)
{
    SCOPED(rig) at = {0};
    SCOPED(sl_device) *device = new_device(1);
    SCOPED(sl_tensor) *input = random_ids(device, 1, false), *targets = random_ids(device, 2, true);
    const sl_pipe_batch batch = {.input = input, .targets = targets};
    const sl_training_options options = {.pipe = options_of_rank(group, BLOCKS)};
    const int32_t wrong[] = {CLASSES, -1, INT32_MAX};
    double loss, again;
    int64_t terms;
    (void)arg;
    SL_TRY(rig_open(build_model(false, true), new_cross_entropy(), &options, &at));
    SL_TRY(sl_pipe_train(at.pipe, &batch, &loss));
    SL_TRY(sl_pipe_evaluate(at.pipe, &batch, &again, &terms));
    SL_TRY(expect(sl_pipe_train(at.pipe, &batch, NULL) == SL_ERR_INVALID, "no place for a loss"));
    for (int i = 0; i < 3; i++) {
        char text[80];
        int32_t right = sl_tensor_i32(input)[17];
        sl_tensor_i32(input)[17] = wrong[i];
        sl_status status = sl_pipe_train(at.pipe, &batch, &again);
        snprintf(text, sizeof text, "token id %d at [1, 2] is not in 0 .. 36", (int)wrong[i]);
        sl_tensor_i32(input)[17] = right;
        SL_TRY(expect(status == SL_ERR_INVALID && strstr(sl_error_text(), text), "%s, got %s", text,
                      sl_error_text()));
    }
    SL_TRY(sl_pipe_train(at.pipe, &batch, &again));
    return expect(loss == again, "the loss %a, got %a", loss, again);
}

static void wrong_word_is_named_where_the_embedding_is_cut(void **state)
{
    check_ranks(name_wrong_word, NULL, 2);
}

static sl_status open_with(sl_module *model, sl_loss *loss, sl_pipe_options options)
{
    SCOPED(sl_device) *device = new_device(1);
    sl_device *devices[] = {device, device, device, device};
    sl_pipe *pipe;
    options.model = model;
    options.loss = loss;
    options.devices = devices;
    options.stages = options.stages ? options.stages : 2;
    sl_status status = sl_pipe_create(&options, &pipe);
    sl_pipe_destroy(&pipe);
    sl_module_destroy(&model);
    sl_loss_destroy(&loss);
    return status;
}

static void what_cannot_be_split_is_refused(void **state)
{
    sl_module *frozen = build_model(false, false), *adapted, *owner = build_model(false, false);
    unsigned seed = 5;
    sl_model_options lora = draw_decoder(&seed, 2, CLASSES, TOKENS);
    sl_pipe_options options = {.head_blocks = BLOCKS};
    lora.lora = (sl_lora_options){.adapts = true, .rank = 2, .alpha = 2, .targets = "q_proj"};
    check_ok(sl_transformer_lm_create(&lora, &adapted));
    check_ok(sl_module_freeze(sl_module_child(frozen, sl_module_child_count(frozen) - 1)));
    check_error(open_with(frozen, new_cross_entropy(), options), SL_ERR_UNSUPPORTED,
                "its weight must be trained, without an adapter");
    check_error(open_with(adapted, new_cross_entropy(), options), SL_ERR_UNSUPPORTED,
                "its weight must be trained, without an adapter");
    check_error(open_with(build_model(false, false), new_mse_loss(), options), SL_ERR_UNSUPPORTED,
                "the loss must be cross entropy");
    check_ok(sl_module_tie_parameter(owner, "0.encoder.weight", "9.decoder.weight"));
    check_error(open_with(owner, new_cross_entropy(), options), SL_ERR_UNSUPPORTED,
                "it may be tied to the embedding of the first module alone");
    options.head_blocks = -1;
    check_error(open_with(build_model(false, false), new_cross_entropy(), options), SL_ERR_INVALID,
                "head_blocks must be 0 or more, got -1");
    options.head_blocks = 3;
    options.stages = 4;
    check_error(open_with(build_model(false, false), new_cross_entropy(), options), SL_ERR_INVALID,
                "37 classes in 3 blocks are too few for 4 ranks");
    SCOPED(sl_schedule) *table = library_table("1f1b", 2, 2);
    check_ok(sl_schedule_split_head(table, 1));
    options = (sl_pipe_options){.table = table};
    check_error(open_with(build_model(false, false), new_cross_entropy(), options), SL_ERR_INVALID,
                "the table splits the head, but the pipe does not");
    options.head_blocks = BLOCKS;
    check_ok(open_with(build_model(false, false), new_cross_entropy(), options));
}

int pipe_head_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            split_head_gives_the_same_bits_for_any_ranks_and_those_of_the_whole_to_rounding),
        cmocka_unit_test(copies_of_a_head_are_up_to_date_after_an_evaluation),
        cmocka_unit_test(head_of_another_set_is_let_be),
        cmocka_unit_test(split_head_runs_the_table),
        cmocka_unit_test(wrong_target_ends_the_step_on_all_ranks),
        cmocka_unit_test(wrong_word_is_named_where_the_embedding_is_cut),
        cmocka_unit_test(what_cannot_be_split_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
