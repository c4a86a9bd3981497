/* What --precision bf16 promises of `sluice train`, `eval` and `generate`: it decides what products
 * are computed from, in any pipe and on any processor; weights stay f32, so a run goes on in
 * another precision; and there is a warning where bf16 is slow. */
#include "core/bf16.h"
#include "io/safetensors/format.h"
#include "sluice/safetensors.h"
#include "support/modules.h"
#include "support/program.h"
#include "train/small_run.h"

#include <math.h>

/* Where and how a command runs in bf16: SL_ISA (NULL: unset) and further options. */
enum { PLACES = 3 };
static const struct {
    const char *isa, *options;
} places[PLACES] = {{NULL, ""}, {NULL, "--devices cpu:0,cpu:1"}, {"baseline", ""}};

/* A tensor's values, malloc'ed. */
static float *read_values(const sli_safetensors_reader *reader, const sl_safetensors_info *info,
                          int64_t *count)
{
    float *values = malloc(info->bytes);
    assert_non_null(values);
    check_ok(sli_safetensors_read(reader, info, values));
    *count = (int64_t)(info->bytes / sizeof *values);
    return values;
}

static void choose_isa(const char *isa)
{
    if (isa)
        setenv("SL_ISA", isa, 1);
    else
        unsetenv("SL_ISA");
}

/* ---- Models --------------------------------------------------------------------------------- */

/* A model whose best word is `exact` in f32 and `rounded` in bf16, after any text.
 *
 * The decoder sees ones, and but for two words its weights are 0. Those of `exact` are larger than
 * those of `rounded`, which bf16 rounds them to; equal logits are ordered by id. */
enum { ROUNDED = 5, EXACT = 9 };

static void set_parameter(const test_pipe *pipe, const char *name, float value)
{
    sl_tensor *tensor = sl_parameter_value(find_parameter(pipe, name));
    for (int64_t i = 0; i < sl_tensor_count(tensor); i++)
        sl_tensor_f32(tensor)[i] = value;
}

static void save_model_of_two_words(const char *from, const char *to)
{
    sl_saved_model *saved;
    sl_module *model;
    check_ok(sl_saved_model_open(from, &saved));
    sl_model_options options = *sl_saved_model_options(saved);
    check_ok(sl_transformer_lm_create(&options, &model));
    SCOPED(test_pipe) pipe = open_pipe(model, NULL, (sl_pipe_options){.stages = 1}, 1, 1);
    set_parameter(&pipe, "2.norm2.weight", 0);
    set_parameter(&pipe, "2.norm2.bias", 1);
    set_parameter(&pipe, "3.decoder.bias", 0);
    set_parameter(&pipe, "3.decoder.weight", 0);
    sl_tensor *weight = sl_parameter_value(find_parameter(&pipe, "3.decoder.weight"));
    for (int64_t i = 0; i < options.emsize; i++) {
        sl_tensor_f32(weight)[ROUNDED * options.emsize + i] = 0.5f;
        sl_tensor_f32(weight)[EXACT * options.emsize + i] = 0.5f * (1 + 0x1.8p-9f);
    }
    check_ok(sl_model_save(pipe.pipe, &options, sl_saved_model_vocab(saved), NULL, to));
    sl_saved_model_close(&saved);
}

static int set_up(void **state)
{
    static program_run trained;
    char from[512];
    corpus_create_trained(state, &trained);
    scratch *dir = *state;
    snprintf(from, sizeof from, "%s/model", dir->directory);
    save_model_of_two_words(from, scratch_path(dir, "two"));
    return 0;
}

static int tear_down(void **state)
{
    scratch *dir = *state;
    scratch_remove_tree(dir, "f32");
    scratch_remove_tree(dir, "bf16");
    return scratch_remove(state);
}

/* ---- eval ----------------------------------------------------------------------------------- */

static void evaluate(void **state, program_run *run, const char *model, const char *precision,
                     int place)
{
    scratch *dir = *state;
    const char *at = dir->directory;
    choose_isa(places[place].isa);
    program_start(run,
                  "eval --init %s/%s --data %s --precision %s --logits %s/logits-%s-%d " TINY_BATCH
                  " %s",
                  at, model, at, precision, at, precision, place, places[place].options);
    choose_isa(NULL);
    assert_int_equal(run->status, 0);
}

/* The logits that an evaluation wrote. */
static float *read_logits(void **state, const char *precision, int place, int64_t *count)
{
    scratch *dir = *state;
    char name[64];
    sli_safetensors_reader *reader;
    snprintf(name, sizeof name, "logits-%s-%d", precision, place);
    check_ok(sli_safetensors_open(scratch_path(dir, name), &reader));
    float *values = read_values(reader, sli_safetensors_find(reader, "logits"), count);
    sli_safetensors_close(&reader);
    return values;
}

/* Rounding to bf16 moves logits by more than another order of f32's sums does. */
static void eval_in_bf16_agrees_with_f32_and_with_itself_in_a_pipe(void **state)
{
    program_run f32, bf16[PLACES];
    int64_t count;
    evaluate(state, &f32, "model", "f32", 0);
    float *exact = read_logits(state, "f32", 0, &count), *rounded[PLACES];
    double loss = number_after(f32.out, "test loss ");
    for (int i = 0; i < PLACES; i++) {
        evaluate(state, &bf16[i], "model", "bf16", i);
        rounded[i] = read_logits(state, "bf16", i, &count);
        assert_float_equal(number_after(bf16[i].out, "test loss "), loss, 0.01 * loss);
        double off = relative_distance(rounded[i], exact, count);
        if (!(off > 1e-4 && off < 2e-2))
            fail_msg("%s: the logits are off by %g", places[i].isa, off);
    }
    assert_string_equal(bf16[1].out, bf16[0].out);
    assert_memory_equal(rounded[1], rounded[0], (size_t)count * sizeof(float));
    for (int i = 0; i < PLACES; i++)
        free(rounded[i]);
    free(exact);
}

/* Where few targets are the two words, a lower logit of `exact` is a lower loss: by 0.48 x 0.0234,
 * where the logits are 8 and 8.0234 for them and 0 for some 300 other words. */
static void loss_in_bf16_is_that_of_rounded_weights(void **state)
{
    program_run f32, bf16;
    evaluate(state, &f32, "two", "f32", 0);
    double exact = number_after(f32.out, "test loss ");
    for (int i = 0; i < PLACES; i++) {
        evaluate(state, &bf16, "two", "bf16", i);
        double rounded = number_after(bf16.out, "test loss ");
        if (!(exact - rounded > 0.005 && exact - rounded < 0.01 * exact))
            fail_msg("place %d: the loss is %g, in f32 %g", i, rounded, exact);
    }
}

/* ---- generate ------------------------------------------------------------------------------- */

static void check_best_word(void **state, const sl_vocab *vocab, const char *precision, int place,
                            int32_t word)
{
    scratch *dir = *state;
    program_run run;
    char expected[256];
    sl_token token = sl_vocab_token(vocab, word);
    int bytes = (int)token.bytes;
    choose_isa(places[place].isa);
    program_start(&run, "generate --init %s/two --greedy --tokens 3 --precision %s %s",
                  dir->directory, precision, places[place].options);
    choose_isa(NULL);
    assert_int_equal(run.status, 0);
    snprintf(expected, sizeof expected, "the %.*s %.*s %.*s\n", bytes, token.text, bytes,
             token.text, bytes, token.text);
    assert_string_equal(run.out, expected);
}

static void text_in_bf16_is_that_of_rounded_weights(void **state)
{
    sl_saved_model *saved;
    check_ok(sl_saved_model_open(scratch_path(*state, "two"), &saved));
    for (int i = 0; i < PLACES; i++) {
        check_best_word(state, sl_saved_model_vocab(saved), "f32", i, EXACT);
        check_best_word(state, sl_saved_model_vocab(saved), "bf16", i, ROUNDED);
    }
    sl_saved_model_close(&saved);
}

/* ---- Warnings ------------------------------------------------------------------------------- */

/* One warning, and that alone, where the kernels or the processor lack the instructions. */
static void bf16_without_instructions_for_it_is_warned_of(void **state)
{
    static const char *const isas[] = {NULL, "baseline"};
    scratch *dir = *state;
    const char *at = dir->directory;
    for (int i = 0; i < 2; i++) {
        program_run runs[3], f32;
        bool is_slow = isas[i] || !processor_has_bf16();
        choose_isa(isas[i]);
        program_start(&runs[0],
                      "train --data %s --epochs 1 --max-batches 2 --batch-size 8 --precision bf16 "
                      "--quiet " TINY_MODEL " " TINY_BATCH,
                      at);
        program_start(&runs[1], "eval --init %s/model --data %s --precision bf16 " TINY_BATCH, at,
                      at);
        program_start(&runs[2], "generate --init %s/model --precision bf16", at);
        program_start(&f32, "generate --init %s/model", at);
        choose_isa(NULL);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(runs[k].status, 0);
            assert_string_equal(
                runs[k].err,
                is_slow
                    ? "sluice: warning: without AVX-512 BF16, --precision bf16 is slower than f32\n"
                    : "");
        }
        assert_string_equal(f32.err, "");
    }
}

/* ---- A run in both -------------------------------------------------------------------------- */

enum { EPOCH_STEPS = 30 };

/* All tensors are f32, and have values that bf16 cannot hold: most of those of matrices, but that
 * an optimizer has nothing for words that never came. */
static void check_file_is_f32(const char *path, bool is_optimizer)
{
    sli_safetensors_reader *reader;
    check_ok(sli_safetensors_open(path, &reader));
    assert_true(sli_safetensors_count(reader) > 0);
    for (size_t i = 0; i < sli_safetensors_count(reader); i++) {
        const sl_safetensors_info *info = sli_safetensors_get(reader, i);
        assert_string_equal(info->type_name, "F32");
        if (info->dims < 2)
            continue; /* of few values */
        int64_t count, longer = 0;
        FREED float *values = read_values(reader, info, &count);
        for (int64_t k = 0; k < count; k++)
            longer += values[k] != sli_f32_from_bf16(sli_bf16_from_f32(values[k]));
        if (!(longer > (is_optimizer ? 0 : count / 2)))
            fail_msg("%s: %d of %d values of %s need more than bf16", path, (int)longer, (int)count,
                     info->name);
    }
    sli_safetensors_close(&reader);
}

/* Loss after the validation of an epoch, or after the test, in the log of a run. */
static double logged_loss(void **state, const char *log, const char *split, int epoch)
{
    static char text[262144];
    char label[128];
    size_t bytes = read_file(scratch_path(*state, log), text, sizeof text - 1);
    assert_true(bytes < sizeof text);
    text[bytes] = '\0';
    snprintf(label, sizeof label, "\"split\":\"%s\",\"epoch\":%d,\"step\":%d,\"loss\":", split,
             epoch, epoch * EPOCH_STEPS);
    return number_after(text, label);
}

/* Trains for three epochs; with `further` options. */
static void train(void **state, const char *precision, const char *log, const char *further)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run,
                  "train --data %s --optimizer adamw --lr 0.01 --epochs 3 --max-batches %d "
                  "--batch-size 8 --precision %s --log-json %s/%s %s " TINY_MODEL " " TINY_BATCH,
                  dir->directory, EPOCH_STEPS, precision, dir->directory, log, further);
    assert_int_equal(run.status, 0);
    check_line(run.out, "^\\| end of epoch   3 ");
}

static void check_near(double got, double expected, double tolerance)
{
    if (!(got != expected && fabs(got - expected) < tolerance * expected))
        fail_msg("the loss is %.9g, and %.9g in one precision", got, expected);
}

/* A run saves after each epoch; another one goes on in the other precision after the second. An
 * epoch changes the loss by more than 5%. */
static void run_goes_on_in_another_precision(void **state)
{
    static const char *const names[] = {"f32", "bf16"};
    scratch *dir = *state;
    for (int i = 0; i < 2; i++) {
        const char *first = names[i], *then = names[1 - i];
        char further[512], path[64], whole[64], changed[64];
        snprintf(whole, sizeof whole, "log-%s", first);
        snprintf(changed, sizeof changed, "log-%s-%s", first, then);
        snprintf(further, sizeof further, "--save-every %d --save-dir %s/%s", EPOCH_STEPS,
                 dir->directory, first);
        train(state, first, whole, further);
        snprintf(path, sizeof path, "%s/step-%08d/model.safetensors", first, 2 * EPOCH_STEPS);
        check_file_is_f32(scratch_path(dir, path), false);
        snprintf(path, sizeof path, "%s/step-%08d/optimizer.safetensors", first, 2 * EPOCH_STEPS);
        check_file_is_f32(scratch_path(dir, path), true);
        snprintf(further, sizeof further, "--resume %s/%s/step-%08d", dir->directory, first,
                 2 * EPOCH_STEPS);
        train(state, then, changed, further);
        double before = logged_loss(state, whole, "valid", 2);
        double after = logged_loss(state, whole, "valid", 3);
        assert_true(before - after > 0.05 * after);
        check_near(logged_loss(state, changed, "valid", 2), before, 1e-3);
        check_near(logged_loss(state, changed, "valid", 3), after, 0.01);
        check_near(logged_loss(state, changed, "test", 3), logged_loss(state, whole, "test", 3),
                   0.01);
    }
}

int precision_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eval_in_bf16_agrees_with_f32_and_with_itself_in_a_pipe),
        cmocka_unit_test(loss_in_bf16_is_that_of_rounded_weights),
        cmocka_unit_test(text_in_bf16_is_that_of_rounded_weights),
        cmocka_unit_test(bf16_without_instructions_for_it_is_warned_of),
        cmocka_unit_test(run_goes_on_in_another_precision),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
