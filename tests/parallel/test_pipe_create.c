#include "nn/module.h"
#include "parallel/schedule/table.h"
#include "sluice/layers.h"
#include "sluice/pipe.h"
#include "support/check.h"
#include "support/modules.h"
#include "tensor/tensor.h"

#include <string.h>

enum { MODULES = 4 };

/* What a test gives sl_pipe_create: four linear layers, of 6, 4, 4 and 2 parameters. */
typedef struct bench {
    sl_module *model;
    sl_device *devices[MODULES + 1];
} bench;

static bench set_up(void)
{
    bench b;
    sl_module *modules[MODULES];
    const int features[MODULES + 1] = {3, 2, 2, 2, 1};
    for (int i = 0; i < MODULES; i++)
        check_ok(sl_linear_create(features[i], features[i + 1], true, &modules[i]));
    check_ok(create_sequential(modules, MODULES, &b.model));
    for (int i = 0; i <= MODULES; i++)
        check_ok(sl_device_create_cpu(1, &b.devices[i]));
    return b;
}

static void bench_destroy(bench *b)
{
    sl_module_destroy(&b->model);
    for (int i = 0; i <= MODULES; i++)
        sl_device_destroy(&b->devices[i]);
}

static void assert_refused(const bench *b, sl_pipe_options options, const char *text)
{
    if (!options.model)
        options.model = b->model;
    if (!options.devices)
        options.devices = b->devices;
    sl_pipe *pipe = (sl_pipe *)&options; /* must be nulled */
    check_error(sl_pipe_create(&options, &pipe), SL_ERR_INVALID, text);
    assert_null(pipe);
}

static void more_micro_batches_than_can_be_counted_are_refused(void **state)
{
    SCOPED(bench) b = set_up();
    SCOPED(sl_schedule) *table = NULL;
    check_ok(
        sl_schedule_write("gpipe", &(sl_schedule_options){.ranks = 1, .micros = 1 << 15}, &table));
    assert_refused(&b, (sl_pipe_options){.stages = 1, .table = table, .accumulate = 1 << 16},
                   "sl_pipe_create: 32768 micro-batches times accumulate 65536 are too many");
}

static void options_that_make_no_sense_are_refused(void **state)
{
    SCOPED(bench) b = set_up();
    assert_refused(&b, (sl_pipe_options){.stages = 1, .model = sl_module_child(b.model, 0)},
                   "sl_pipe_create: module must be a Sequential to be partitioned, got Linear");
    assert_refused(&b, (sl_pipe_options){.stages = 1, .chunks = -1},
                   "sl_pipe_create: chunks must be 0 or more, got -1");
    assert_refused(&b, (sl_pipe_options){.stages = 1, .accumulate = -1},
                   "sl_pipe_create: accumulate must be from 0 to 65536, got -1");
    assert_refused(&b, (sl_pipe_options){.stages = 1, .recompute = (sl_recompute)3},
                   "sl_pipe_create: recompute must be except_last, never or always");
    assert_refused(&b, (sl_pipe_options){.stages = 1, .schedule = "zb-v"},
                   "schedule: zb-v has 2 stages a rank, not 1");
    assert_refused(
        &b, (sl_pipe_options){.stages = 3, .virtual_stages = 2},
        "sl_pipe_create: the stages must be a multiple of the stages a rank, got 3 and 2");
    assert_refused(&b, (sl_pipe_options){.stages = 0},
                   "sl_pipe_create: stages must be at least 1, got 0");
    assert_refused(&b, (sl_pipe_options){.stages = 5},
                   "sl_pipe_create: 5 stages need as many modules, the model has 4");
    assert_refused(&b,
                   (sl_pipe_options){.stages = 2, .devices = (sl_device *[]){b.devices[0], NULL}},
                   "sl_pipe_create: rank 1 has no device");
    assert_refused(
        &b, (sl_pipe_options){.stages = 2, .balance = (int[]){3, 2}},
        "module and sum of balance have different length (module: 4, sum of balance: 5)");
    assert_refused(&b, (sl_pipe_options){.stages = 3, .balance = (int[]){3, 0, 1}},
                   "all balance numbers must be positive, stage 1 has 0");
}

/* Writes what it is asked for, less what its argument says. */
typedef struct shortage {
    int ranks, micros;
    bool table, backward, placement;
} shortage;

static sl_status write_less(const void *context, const sl_schedule_options *options,
                            sl_schedule **out)
{
    const shortage *less = context;
    sl_schedule_options wanted = *options;
    *out = NULL;
    wanted.ranks -= less->ranks;
    wanted.micros -= less->micros;
    wanted.placement = NULL;
    if (less->table)
        return SL_OK;
    return less->backward ? sli_schedule_forward_only(&wanted, out)
                          : sl_schedule_write("1f1b", &wanted, out);
}

static void writers_that_do_not_write_what_is_asked_for_are_refused(void **state)
{
    SCOPED(bench) b = set_up();
    const struct {
        shortage less;
        const char *text;
    } cases[] = {
        {{.table = true}, "sl_pipe_create: the writer gave no table, and reported no error"},
        {{.ranks = 1},
         "sl_pipe_create: the table has 1 rank, 1 stage and 3 micro-batches, the pipe "
         "needs 2, 2 and 3"},
        {{.micros = 1},
         "the table has 2 ranks, 2 stages and 2 micro-batches, the pipe needs 2, 2 "
         "and 3"},
        {{.micros = -1},
         "the table has 2 ranks, 2 stages and 4 micro-batches, the pipe needs 2, 2 "
         "and 3"},
        {{.backward = true}, "sl_pipe_create: the table never goes backward"},
        {{.placement = true}, "sl_pipe_create: schedule: the table has stage 0 on rank 0, not 1"},
    };
    SCOPED(sl_loss) *loss = NULL;
    check_ok(sl_mse_loss_create(&loss));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_pipe_options options = {.stages = 2,
                                   .chunks = 3,
                                   .loss = loss,
                                   .placement = cases[i].less.placement ? (int[]){1, 0} : NULL,
                                   .writer = write_less,
                                   .writer_context = &cases[i].less};
        assert_refused(&b, options, cases[i].text);
    }
}

static void tables_that_do_not_fit_are_refused(void **state)
{
    SCOPED(bench) b = set_up();
    SCOPED(sl_loss) *loss = NULL;
    SCOPED(sl_schedule) *table = NULL, *forward = NULL;
    sl_schedule_options two = {.ranks = 2, .micros = 2};
    check_ok(sl_mse_loss_create(&loss));
    check_ok(sl_schedule_write("1f1b", &two, &table));
    check_ok(sli_schedule_forward_only(&two, &forward));
    assert_refused(
        &b, (sl_pipe_options){.stages = 3, .loss = loss, .table = table},
        "the table has 2 ranks, 2 stages and 2 micro-batches, the pipe needs 3, 3 and 2");
    assert_refused(
        &b, (sl_pipe_options){.stages = 2, .loss = loss, .table = table, .chunks = 3},
        "the table has 2 ranks, 2 stages and 2 micro-batches, the pipe needs 2, 2 and 3");
    assert_refused(&b, (sl_pipe_options){.stages = 2, .loss = loss, .table = forward},
                   "sl_pipe_create: the table never goes backward");
    assert_refused(&b, (sl_pipe_options){.stages = 2, .table = table, .placement = (int[]){1, 0}},
                   "sl_pipe_create: schedule: the table has stage 0 on rank 0, not 1");
}

static void check_cut(const bench *b, int stages, const int *balance, const int *expected)
{
    sl_pipe_options options = {.model = b->model,
                               .devices = b->devices,
                               .stages = stages,
                               .balance = balance};
    SCOPED(sl_pipe) *pipe = NULL;
    check_ok(sl_pipe_create(&options, &pipe));
    assert_int_equal(sl_pipe_stages(pipe), stages);
    assert_ptr_equal(sl_pipe_model(pipe), b->model);
    int next = 0;
    for (int stage = 0; stage < stages; stage++) {
        int first, count;
        sl_pipe_stage_modules(pipe, stage, &first, &count);
        assert_int_equal(first, next);
        assert_int_equal(count, expected[stage]);
        assert_ptr_equal(sl_pipe_device(pipe, stage), b->devices[stage]);
        assert_int_equal(sl_parameter_set_count(sl_pipe_parameters(pipe, stage)), count);
        assert_ptr_equal(sl_parameter_set_device(sl_pipe_parameters(pipe, stage)),
                         b->devices[stage]);
        next += count;
    }
    sl_pipe_destroy(&pipe);
    assert_null(pipe);
}

static void model_is_cut_by_balance_by_layers_or_by_parameters(void **state)
{
    SCOPED(bench) b = set_up();
    check_cut(&b, 2, (int[]){1, 3}, (int[]){1, 3});
    check_cut(&b, 2, NULL, (int[]){2, 2});    /* two layers, one for each */
    check_cut(&b, 3, NULL, (int[]){1, 1, 2}); /* too few layers: 6, 4, 4 + 2 parameters */
    check_cut(&b, 4, NULL, (int[]){1, 1, 1, 1});
}

static void model_in_another_pipe_is_refused_and_stays_in_it(void **state)
{
    SCOPED(bench) b = set_up();
    sl_pipe_options options = {.model = b.model, .devices = b.devices, .stages = 2};
    SCOPED(sl_pipe) *second = NULL;
    sl_pipe *pipe;
    check_ok(sl_pipe_create(&options, &pipe));
    check_error(sl_pipe_create(&options, &second), SL_ERR_INVALID, "[stage ");
    assert_null(second);
    assert_non_null(sl_parameter_value(sl_parameter_set_get(sl_pipe_parameters(pipe, 1), 0)));
    sl_pipe_destroy(&pipe);
    check_ok(sl_pipe_create(&options, &second));
}

static void model_in_a_pipe_takes_no_parameter_and_no_child(void **state)
{
    SCOPED(bench) b = set_up();
    sl_pipe_options options = {.model = b.model, .devices = b.devices, .stages = 3};
    const sl_parameter_spec spec = {.name = "late", .shape = sl_shape_1d(1)};
    sl_parameter *parameter;
    sl_module *late;
    SCOPED(sl_pipe) *pipe = NULL;
    check_ok(sl_pipe_create(&options, &pipe));
    check_ok(sl_linear_create(1, 1, true, &late));
    check_error(sli_module_add_child(b.model, "late", late), SL_ERR_INVALID, "a model in use");
    check_error(sl_module_add_parameter(sl_module_child(b.model, 3), &spec, &parameter),
                SL_ERR_INVALID, "a model in use");
    sl_pipe_destroy(&pipe);
    check_ok(sl_module_add_parameter(sl_module_child(b.model, 3), &spec, &parameter));
    check_ok(sl_linear_create(1, 1, true, &late));
    check_ok(sli_module_add_child(b.model, "late", late));
    check_ok(sl_pipe_create(&options, &pipe));
}

/* ---- Widths ----------------------------------------------------------------------------- */

static sl_module *made(sl_status status, sl_module **module)
{
    check_ok(status);
    return *module;
}

static sl_module *linear(int64_t in, int64_t out)
{
    sl_module *module;
    return made(sl_linear_create(in, out, false, &module), &module);
}

static sl_module *decoder(int64_t in, int64_t out)
{
    sl_module *module;
    return made(sl_decoder_create(in, out, &module), &module);
}

static sl_module *embedding(int64_t width)
{
    sl_module *module;
    const sl_embedding_options options = {.ntokens = 9, .width = width};
    return made(sl_embedding_create(&options, &module), &module);
}

static sl_module *encoder_layer(int64_t width)
{
    sl_module *module;
    const sl_encoder_layer_options options = {.width = width, .heads = 2, .feed_forward = 3};
    return made(sl_encoder_layer_create(&options, &module), &module);
}

static sl_module *layer_norm(int64_t width)
{
    sl_module *module;
    return made(sl_layer_norm_create(width, 0, &module), &module);
}

static sl_module *attention(int64_t width)
{
    sl_module *module;
    return made(sl_self_attention_create(width, 2, 0, SL_MASK_NONE, &module), &module);
}

static sl_module *relu(void)
{
    sl_module *module;
    return made(sl_activation_create(SL_ACTIVATION_RELU, &module), &module);
}

static sl_module *dropout(void)
{
    sl_module *module;
    return made(sl_dropout_create(0.5f, &module), &module);
}

static sl_module *pair(sl_module *first, sl_module *second)
{
    sl_module *module, *modules[] = {first, second};
    return made(create_sequential(modules, 2, &module), &module);
}

/* A module that says nothing of its widths. */
static sl_module *stranger(void)
{
    sl_module *module;
    static const sl_module_ops ops = {.type = "Stranger"};
    return made(sl_module_create(&ops, NULL, &module), &module);
}

/* Takes the modules; `text` NULL: they fit. */
static void check_widths(const bench *b, sl_module *const *modules, const char *text)
{
    int count = 0;
    while (modules[count])
        count++;
    SCOPED(sl_module) *model = new_sequential(modules, count);
    SCOPED(sl_loss) *loss = NULL;
    SCOPED(sl_pipe) *pipe = NULL;
    check_ok(sl_cross_entropy_create(&loss));
    sl_pipe_options options = {.model = model,
                               .loss = loss,
                               .devices = b->devices,
                               .stages = count > 1 ? 2 : 1};
    if (text)
        check_error(sl_pipe_create(&options, &pipe), SL_ERR_INVALID, text);
    else
        check_ok(sl_pipe_create(&options, &pipe));
}

#define check_model(b, text, ...) check_widths(b, (sl_module *[]){__VA_ARGS__, NULL}, text)

static void first_module_that_does_not_fit_is_named(void **state)
{
    SCOPED(bench) b = set_up();
    check_model(&b,
                "sl_pipe_create: 2 (Decoder) expects inputs of width 48, but 1 (Linear) gives 32",
                linear(8, 64), linear(64, 32), decoder(48, 9), linear(7, 7));
    check_model(&b, "2 (Linear) expects inputs of width 3, but 0 (Linear) gives 4", linear(2, 4),
                pair(relu(), dropout()), linear(3, 3));
    check_model(&b, "1.1 (Linear) expects inputs of width 5, but 1.0 (Linear) gives 6",
                linear(2, 4), pair(linear(4, 6), linear(5, 6)), linear(6, 1));
    check_model(&b, "2 (LayerNorm) expects inputs of width 9, but 1.1 (Linear) gives 6",
                linear(2, 4), pair(relu(), linear(4, 6)), layer_norm(9));
    check_model(&b,
                "1 (TransformerEncoderLayer) expects inputs of width 6, but 0 (Encoder) gives 4",
                embedding(4), encoder_layer(6), decoder(6, 9));
    check_model(&b, "2 (SelfAttention) expects inputs of width 8, but 1 (LayerNorm) gives 4",
                embedding(4), layer_norm(4), attention(8));
    check_model(&b,
                "2 (Decoder) expects inputs of width 6, but 1 (TransformerEncoderLayer) gives 4",
                embedding(4), encoder_layer(4), decoder(6, 9));
    check_model(&b, "1 (Linear) expects inputs of width 2, but 0 (Decoder) gives 9", decoder(4, 9),
                linear(2, 2));
    check_model(&b, "1 (Linear) expects inputs of width 2, but 0 (SelfAttention) gives 4",
                attention(4), linear(2, 2));
}

static void module_without_widths_is_taken_on_trust(void **state)
{
    SCOPED(bench) b = set_up();
    check_model(&b, NULL, linear(2, 4), stranger(), linear(3, 3));
    check_model(&b, "3 (Linear) expects inputs of width 2, but 2 (Linear) gives 3", linear(2, 4),
                stranger(), linear(3, 3), linear(2, 3));
    check_model(&b, NULL, stranger(), relu(), linear(3, 3));
}

int pipe_create_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_micro_batches_than_can_be_counted_are_refused),
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(model_is_cut_by_balance_by_layers_or_by_parameters),
        cmocka_unit_test(model_in_another_pipe_is_refused_and_stays_in_it),
        cmocka_unit_test(model_in_a_pipe_takes_no_parameter_and_no_child),
        cmocka_unit_test(writers_that_do_not_write_what_is_asked_for_are_refused),
        cmocka_unit_test(tables_that_do_not_fit_are_refused),
        cmocka_unit_test(first_module_that_does_not_fit_is_named),
        cmocka_unit_test(module_without_widths_is_taken_on_trust),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
