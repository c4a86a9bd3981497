/* The program `sluice eval`, and what is done with saved models, run as a user does on a small
 * trained one; what the program warns of: on standard error, once a job, and the command goes on.
 */
#include "io/safetensors/format.h"
#include "sluice/app/text.h"
#include "sluice/safetensors.h"
#include "support/program.h"
#include "text/tokens.h"

#include <math.h>

static program_run trained;

static int set_up(void **state)
{
    scratch *dir;
    corpus_create_trained(state, &trained);
    dir = *state;
    assert_int_equal(mkdir(scratch_path(dir, "other"), 0700), 0);
    write_file(scratch_path(dir, "other/train.txt"), "the teachers\nsaw zebras\nzebras zebras\n",
               38);
    write_file(scratch_path(dir, "other/valid.txt"), "zebras zebras\nzebras zebras zebras\n", 35);
    write_file(scratch_path(dir, "other/test.txt"), "zebras zebras\nthe teachers zebras\n", 34);
    return 0;
}

static int tear_down(void **state)
{
    scratch_remove_tree(*state, "other");
    return scratch_remove(state);
}

/* ---- train ---------------------------------------------------------------------------------- */

/* A deeper, tied model gets the embedding and the layers. */
static void weights_that_fit_begin_another_model(void **state)
{
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run run;
    program_succeed(&run,
                    "train --data %s --init %s/model --partial --nlayers 3 --tie "
                    "--batch-size 8 --epochs 1 --max-batches 1 --log-json %s/other/log " TINY_BATCH,
                    at, at, at);
    check_line(run.out, "^Not loaded from .*/model: 3.norm2.bias \\(not in the file\\)$");
    check_line(run.out, "^Not loaded from .*/model: 3.decoder.bias \\(not in the model\\)$");
    assert_null(strstr(run.out, "0.encoder.weight"));
    char log[8192];
    log[read_file(scratch_path(dir, "other/log"), log, sizeof log - 1)] = '\0';
    assert_non_null(strstr(log, "\"left_out\":[\"3.self_attn.in_proj_weight\","));
    program_start(&run, "train --data %s --partial", at);
    check_refused(&run, 2, "--partial needs --init DIR|FILE");
}

/* One tensor that fits, and one with this name. */
static void control_characters_in_a_tensors_name_are_escaped(void **state)
{
    enum { EMSIZE = 16 };
    scratch *dir = *state;
    program_run run;
    float zeros[EMSIZE] = {0};
    const sl_safetensors_item items[] = {{"1.norm1.bias", SL_F32, sl_shape_1d(EMSIZE), zeros},
                                         {"\x1b]0;title\x07\n\xc2\x9b", SL_F32, sl_shape_1d(EMSIZE),
                                          zeros}};
    check_ok(
        sl_safetensors_save(scratch_path(dir, "other/hostile.safetensors"), items, 2, NULL, 0));
    program_succeed(&run,
                    "train --data %s --init %s/other/hostile.safetensors --partial " TINY_MODEL
                    " --batch-size 8 --epochs 1 --max-batches 1 " TINY_BATCH,
                    dir->directory, dir->directory);
    check_text(run.out,
               "hostile.safetensors: \\x1b]0;title\\x07\\x0a\\xc2\\x9b (not in the model)\n");
    check_without(run.out, "\x1b");
}

/* ---- eval ----------------------------------------------------------------------------------- */

static void saved_weights_give_the_loss_that_the_run_ended_with(void **state)
{
    scratch *dir = *state;
    program_run run;
    double loss = number_after(trained.out, "| test loss "), tested, perplexity;
    program_succeed(&run, "eval --init %s/model --data %s " TINY_BATCH, dir->directory,
                    dir->directory);
    tested = number_after(run.out, "test loss ");
    perplexity = number_after(run.out, "| test ppl ");
    assert_true(tested - loss <= 0.005 + 1e-4 && loss - tested <= 0.005 + 1e-4);
    /* ppl has two decimals in both */
    assert_float_equal(perplexity, number_after(trained.out, "| test ppl "), 1e-6);
    check_line(run.out, "^test loss [0-9.]+ \\| test ppl [0-9.]+ \\| [0-9]+ tokens$");
}

/* Without --bptt rows are as long as those of the training: 8 tokens. */
static void rows_are_those_of_the_training(void **state)
{
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run kept, given, other;
    program_succeed(&kept, "eval --init %s/model --data %s --eval-batch-size 8", at, at);
    program_succeed(&given, "eval --init %s/model --data %s " TINY_BATCH, at, at);
    assert_string_equal(kept.out, given.out);
    program_succeed(&other, "eval --init %s/model --data %s --eval-batch-size 8 --bptt 9", at, at);
    assert_string_not_equal(other.out, given.out);
    program_succeed(&kept, "generate --init %s/model --greedy", at);
    program_succeed(&given, "generate --init %s/model --greedy --context 8", at);
    assert_string_equal(kept.out, given.out);
}

static void split_and_stages_are_chosen(void **state)
{
    scratch *dir = *state;
    program_run one, two;
    program_succeed(&one, "eval --init %s/model --data %s --split valid " TINY_BATCH,
                    dir->directory, dir->directory);
    program_start(&two,
                  "eval --init %s/model --data %s --split valid " TINY_BATCH
                  " --devices cpu:0,cpu:1",
                  dir->directory, dir->directory);
    assert_int_equal(two.status, 0);
    check_text(one.out, "valid loss ");
    assert_string_equal(one.out, two.out);
}

static void batches_are_as_many_as_asked_for(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "eval --init %s/model --data %s " TINY_BATCH " --eval-max-batches 2",
                    dir->directory, dir->directory);
    check_text(run.out, " | 128 tokens\n"); /* 2 blocks of 8 columns of 8 */
}

/* logits of [2, 3, V], ids of [2, 3], and the loss of that batch from both alone. */
static double loss_of_logits(const sli_safetensors_reader *reader)
{
    int64_t targets[6];
    const sl_safetensors_info *of = sli_safetensors_find(reader, "targets"),
                              *scores = sli_safetensors_find(reader, "logits");
    check_ok(sli_safetensors_read(reader, of, targets));
    float *logits = malloc(scores->bytes);
    assert_non_null(logits);
    check_ok(sli_safetensors_read(reader, scores, logits));
    int64_t types = scores->size[2];
    double sum = 0;
    for (int i = 0; i < 6; i++) {
        double total = 0;
        for (int64_t k = 0; k < types; k++)
            total += exp((double)logits[i * types + k]);
        sum += log(total) - (double)logits[i * types + targets[i]];
    }
    free(logits);
    return sum / 6;
}

static void logits_of_the_first_batch_are_written(void **state)
{
    scratch *dir = *state;
    program_run run;
    sl_tokens tokens;
    SCOPED(sl_vocab) *vocab = NULL;
    sl_batches batches;
    sli_safetensors_reader *reader;
    int32_t ids[2][6];
    int64_t found[6];
    program_succeed(&run,
                    "eval --init %s/model --data %s --bptt 3 --eval-batch-size 2 "
                    "--eval-max-batches 1 --split valid --logits %s/logits",
                    dir->directory, dir->directory, dir->directory);
    check_ok(sli_safetensors_open(scratch_path(dir, "logits"), &reader));
    check_ok(sl_vocab_open(scratch_path(dir, "model/tokenizer.json"), NULL, &vocab));
    check_ok(
        sli_tokens_read(vocab, scratch_path(dir, "valid.txt"), "", sli_whole_text, 0, &tokens));
    check_ok(sl_batchify(tokens.ids, tokens.count, 2, 3, &batches));
    check_ok(sl_batches_block(&batches, 0, ids[0], ids[1]));
    assert_int_equal(sli_safetensors_count(reader), 3);
    for (int i = 0; i < 2; i++) {
        const sl_safetensors_info *info =
            sli_safetensors_find(reader, i == 0 ? "inputs" : "targets");
        assert_true(info && info->dtype == SL_I64 && info->dims == 2);
        assert_true(info->size[0] == 2 && info->size[1] == 3);
        check_ok(sli_safetensors_read(reader, info, found));
        for (int k = 0; k < 6; k++)
            assert_int_equal(found[k], ids[i][k]);
    }
    const sl_safetensors_info *logits = sli_safetensors_find(reader, "logits");
    assert_true(logits && logits->dtype == SL_F32 && logits->dims == 3);
    assert_true(logits->size[0] == 2 && logits->size[1] == 3);
    assert_int_equal(logits->size[2], sl_vocab_size(vocab));
    assert_float_equal(number_after(run.out, "valid loss "), loss_of_logits(reader), 0.00006);
    sli_safetensors_close(&reader);
    sl_tokens_free(&tokens);
}

static void json_has_all_digits_of_the_loss(void **state)
{
    scratch *dir = *state;
    program_run text, json;
    const char *at = dir->directory;
    program_succeed(&text, "eval --init %s/model --data %s " TINY_BATCH, at, at);
    program_succeed(&json, "eval --init %s/model --data %s " TINY_BATCH " --json", at, at);
    check_line(json.out, "^\\{\"split\": \"test\", \"loss\": [0-9]\\.[0-9]{12,}, \"perplexity\": "
                         "[0-9.]+, \"targets\": [0-9]+\\}$");
    double loss = number_after(json.out, "\"loss\": ");
    assert_float_equal(loss, number_after(text.out, "test loss "), 0.00006);
    assert_float_equal(number_after(json.out, "\"perplexity\": "), exp(loss), 1e-9);
    char targets[64];
    snprintf(targets, sizeof targets, " | %.0f tokens\n", number_after(json.out, "\"targets\": "));
    check_text(text.out, targets);
}

static void logits_overwrite_nothing_that_is_read(void **state)
{
    static const char *const files[] = {"model/model.safetensors", "model/tokenizer.json",
                                        "train.txt"};
    scratch *dir = *state;
    program_run run;
    for (int i = 0; i < 3; i++) {
        program_start(&run, "eval --init %s/model --data %s " TINY_BATCH " --logits %s/%s",
                      dir->directory, dir->directory, dir->directory, files[i]);
        check_refused(&run, 1, "is an input and must not be overwritten\n");
    }
    program_start(&run, "eval --init %s/model --data %s " TINY_BATCH " --logits %s/no/x",
                  dir->directory, dir->directory, dir->directory);
    check_refused(&run, 1, "/no/x: its directory does not exist");
}

static void what_cannot_be_evaluated_is_refused(void **state)
{
    scratch *dir = *state;
    program_run run;
    const char *at = dir->directory;
    program_start(&run, "eval --data %s", at);
    check_refused(&run, 2, "eval needs --init DIR, and --data DIR|FILE or --task FILE\n");
    program_start(&run, "eval --init %s/none --data %s", at, at);
    check_refused(&run, 1, "/none: cannot be opened");
    program_start(&run, "eval --init %s/train.txt --data %s", at, at);
    check_refused(&run, 1, "this is no safetensors file");
    program_start(&run, "eval --init %s/model --data %s/none", at, at);
    check_refused(&run, 1, "/none");
    program_start(&run, "eval --init %s/model --data %s --split all", at, at);
    check_refused(&run, 2, "--split must be train, valid or test, got \"all\"\n");
    program_start(&run, "eval --init %s/model --data %s --bptt 4000", at, at);
    check_line(run.err, "^sluice: /.*/test\\.txt: [0-9]+ tokens in .*, too few for bptt 4000 and ");
    assert_int_equal(run.status, 1);
    program_start(&run, "eval --init %s/model --data %s --devices gpu", at, at);
    check_refused(&run, 1,
                  "sluice: a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST; "
                  "cuda:NUMBER or cuda:NUMBER/NUMBER, got \"gpu\"");
    program_start(&run, "eval --init %s/model --data %s --devices cpu,cpu,cpu,cpu,cpu", at, at);
    check_refused(&run, 1, "5 stages need as many modules, the model has 4\n");
}

static void more_processes_than_stages_can_be_are_refused(void **state)
{
    static const char *const variables[][2] = {{"RANK", "150"},
                                               {"WORLD_SIZE", "200"},
                                               {"LOCAL_RANK", "150"},
                                               {"LOCAL_WORLD_SIZE", "200"}};
    scratch *dir = *state;
    program_run run;
    for (int i = 0; i < 4; i++)
        setenv(variables[i][0], variables[i][1], 1);
    program_start(&run, "eval --init %s/model --data %s", dir->directory, dir->directory);
    for (int i = 0; i < 4; i++)
        unsetenv(variables[i][0]);
    check_refused(&run, 1,
                  "each process needs a stage, and there can be at most 64, got 200 processes\n");
}

/* Refused before a model of so many layers is built, which would take minutes. */
static void few_bytes_that_ask_for_a_large_model_are_refused(void **state)
{
    static const char config[] =
        "{\"model_type\":\"sluice_transformer\",\"ntokens\":3,\"emsize\":2,\"nhid\":1,"
        "\"nlayers\":9999,\"nhead\":1,\"mask\":\"none\",\"activation\":\"relu\","
        "\"pre_norm\":true,\"tie\":false}";
    scratch *dir = *state;
    program_run run;
    assert_int_equal(mkdir(scratch_path(dir, "hostile"), 0700), 0);
    write_file(scratch_path(dir, "hostile/config.json"), config, sizeof config - 1);
    write_safetensors(scratch_path(dir, "hostile/model.safetensors"), "{}", 2, 0);
    program_start(&run, "generate --init %s/hostile", dir->directory);
    check_refused(&run, 1,
                  "its tensors have 0 elements, far fewer than the model that its config.json");
}

static void model_without_a_file_is_refused(void **state)
{
    static const char *const names[] = {"tokenizer.json", "config.json"};
    scratch *dir = *state;
    program_run run;
    for (int i = 0; i < 2; i++) {
        char away[512], name[64], expected[64];
        snprintf(away, sizeof away, "%s/away", dir->directory);
        snprintf(name, sizeof name, "model/%s", names[i]);
        snprintf(expected, sizeof expected, "/model: it has no %s", names[i]);
        assert_int_equal(rename(scratch_path(dir, name), away), 0);
        program_start(&run, "generate --init %s/model", dir->directory);
        check_refused(&run, 1, expected);
        if (i == 1) {
            program_start(&run, "train --data %s --init %s/model", dir->directory, dir->directory);
            check_refused(&run, 1, "/model: it has no config.json with the model's sizes");
        }
        assert_int_equal(rename(away, scratch_path(dir, name)), 0);
    }
    char file[512];
    snprintf(file, sizeof file, "%s", scratch_path(dir, "model/model.safetensors"));
    assert_int_equal(link(file, scratch_path(dir, "bare")), 0);
    program_start(&run, "generate --init %s/bare", dir->directory);
    check_refused(&run, 1, "/bare: it has no config.json: give the directory");
    program_succeed(&run, "generate --init %s", file);
}

/* Model directories in, model directories out: they have no state, and no checksums. */
static void models_are_shown_verified_converted_and_averaged(void **state)
{
    static const char *const made[] = {"cut", "mean"};
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run run, expected;
    program_succeed(&run, "checkpoint show %s/model", at);
    check_line(run.out, "^  config\\.json +[0-9]+ B *$");
    check_line(run.out, "^  part model +[0-9]+ tensors of [0-9,]+ elements$");
    check_without(run.out, "state");
    program_succeed(&run, "checkpoint verify %s/model", at);
    check_text(run.out, "/model can be read; a model has no checksums to compare\n");
    program_succeed(&run, "checkpoint convert %s/model %s/cut --shard-size 8K", at, at);
    program_succeed(&run, "checkpoint average %s/model %s/cut %s/mean", at, at, at);
    program_succeed(&expected, "eval --init %s/model --data %s", at, at);
    for (int i = 0; i < 2; i++) {
        program_succeed(&run, "eval --init %s/%s --data %s", at, made[i], at);
        assert_string_equal(run.out, expected.out);
        snprintf(dir->path, sizeof dir->path, "%s/%s/state.json", at, made[i]);
        assert_int_not_equal(access(dir->path, F_OK), 0);
        scratch_remove_tree(dir, made[i]);
    }
}

static void model_is_shown_by_its_own_sizes(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "model --init %s/model", dir->directory);
    check_line(run.out, "^1 +TransformerEncoderLayer +\\[[0-9]+, [0-9]+, 16\\] ");
    program_start(&run, "model --init %s/model --nhead 1", dir->directory);
    check_refused(&run, 1, "the model has nhead 2, but nhead is set to 1: remove it");
    program_start(&run, "model --init %s/model --ntokens 9", dir->directory);
    check_refused(&run, 2, "so it cannot be combined with --ntokens");
}

/* ---- Warnings ------------------------------------------------------------------------------- */

/* The command ends well, and all that it says on standard error is `text`. */
static void check_warned(const program_run *run, const char *text)
{
    if (run->status != 0 || strcmp(run->err, text) != 0)
        fail_msg("expected status 0 and \"%s\", got %d and: %s", text, run->status, run->err);
}

static void more_micro_batches_than_rows_are_warned_of(void **state)
{
    static const struct {
        const char *options, *text;
    } cases[] = {
        {"--batch-size 8 --chunks 8", ""},
        {"--batch-size 8 --chunks 9",
         "sluice: warning: --chunks is 9, but a batch has 8 rows: it is cut into 8 "
         "micro-batches of one row\n"},
        {"--batch-size 1 --chunks 2 --quiet",
         "sluice: warning: --chunks is 2, but a batch has 1 row: it is cut into 1 "
         "micro-batch of one row\n"},
        {"--batch-size 4 --chunks 5 --dp 2 --devices cpu:0;cpu:1",
         "sluice: warning: --chunks is 5, but a batch has 4 rows: it is cut into 4 "
         "micro-batches of one row\n"},
    };
    scratch *dir = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program_run run;
        program_start(&run,
                      "train --data %s " TINY_MODEL " " TINY_BATCH " --epochs 1 --max-batches 2 %s",
                      dir->directory, cases[i].options);
        check_warned(&run, cases[i].text);
    }
}

/* Its member is there under another name. */
static void model_without_the_length_of_rows_is_warned_of(void **state)
{
    scratch *dir = *state;
    program_run run, given;
    char text[1024], *at;
    const char *path = scratch_path(dir, "model/config.json");
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_non_null(at = strstr(text, "context"));
    *at = 'C';
    write_file(path, text, strlen(text));
    program_start(&run, "eval --init %s/model --data %s", dir->directory, dir->directory);
    program_start(&given, "eval --init %s/model --data %s --bptt 35", dir->directory,
                  dir->directory);
    *at = 'c';
    write_file(path, text, strlen(text));
    check_warned(&run, "sluice: warning: the model does not say how many tokens a row had in its "
                       "training; 35 are taken (--bptt)\n");
    check_warned(&given, "");
    assert_string_equal(run.out, given.out);
}

static void words_that_the_vocabulary_does_not_have_are_named(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run, "generate --init %s/model --tokens 3 --prompt the$Zebras$of$<unk>",
                  dir->directory);
    check_warned(&run, "sluice: warning: the vocabulary does not have these words of the prompt, "
                       "which the model sees as <unk>: \"zebras\", \"of\"\n");
    program_succeed(&run, "generate --init %s/model --tokens 3 --prompt the", dir->directory);
}

static void text_that_is_mostly_unknown_is_warned_of(void **state)
{
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run run;
    char expected[1024];
    program_start(&run,
                  "eval --init %s/model --data %s/other --split valid "
                  "--eval-batch-size 1 --bptt 1",
                  at, at);
    snprintf(expected, sizeof expected,
             "sluice: warning: 100%% of the tokens in %s/other/valid.txt are <unk>: the vocabulary "
             "of %s/model does not have them\n",
             at, at);
    check_warned(&run, expected);
    program_start(&run,
                  "train --init %s/model --data %s/other --batch-size 1 "
                  "--eval-batch-size 1 --bptt 1 --epochs 1",
                  at, at);
    assert_int_equal(run.status, 0);
    check_text(run.err, expected);
    check_text(run.err, "% of the tokens in ");
    program_start(&run,
                  "train --data %s/other " TINY_MODEL " --batch-size 1 --eval-batch-size 1 "
                  "--bptt 1 --epochs 1 --dp 2 --devices cpu:0;cpu:1",
                  at);
    check_warned(&run, "");
}

static void saved_model_is_cut_into_files(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run,
                    "train --data %s " TINY_MODEL " " TINY_BATCH
                    " --epochs 1 --max-batches 1 --quiet --save %s/many --shard-size 8K",
                    dir->directory, dir->directory);
    assert_int_equal(access(scratch_path(dir, "many/model.safetensors.index.json"), R_OK), 0);
    program_succeed(&run, "generate --init %s/many --tokens 2", dir->directory);
    scratch_remove_tree(dir, "many");
}

/* What validation and test have is said, and "eval" evaluates the same part. */
static void one_file_is_divided_for_training(void **state)
{
    scratch *dir = *state;
    program_run run;
    char last[64];
    program_succeed(&run,
                    "train --data %s/train.txt " TINY_MODEL
                    " --bptt 8 --batch-size 8 --epochs 1 --eval-batch-size 4 "
                    "--max-batches 5 --save %s/one",
                    dir->directory, dir->directory);
    check_line(run.out, "^  train +3,6[0-9]+ tokens  /.*/train\\.txt \\(the first 90%\\)$");
    check_line(run.out, "^  valid +19[0-9] tokens  /.*/train\\.txt \\(the next 5%\\)$");
    check_line(run.out, "^  test +[12][0-9]+ tokens  /.*/train\\.txt \\(the last 5%\\)$");
    snprintf(last, sizeof last, "test ppl %8.2f", number_after(run.out, "| test ppl"));
    program_succeed(&run,
                    "eval --init %s/one --data %s/train.txt --eval-batch-size 4 "
                    "--bptt 8",
                    dir->directory, dir->directory);
    assert_float_equal(number_after(run.out, "test ppl"), number_after(last, "test ppl"), 0.0051);
    scratch_remove_tree(dir, "one");
}

int saved_models_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_that_fit_begin_another_model),
        cmocka_unit_test(control_characters_in_a_tensors_name_are_escaped),
        cmocka_unit_test(saved_weights_give_the_loss_that_the_run_ended_with),
        cmocka_unit_test(rows_are_those_of_the_training),
        cmocka_unit_test(split_and_stages_are_chosen),
        cmocka_unit_test(one_file_is_divided_for_training),
        cmocka_unit_test(saved_model_is_cut_into_files),
        cmocka_unit_test(batches_are_as_many_as_asked_for),
        cmocka_unit_test(logits_of_the_first_batch_are_written),
        cmocka_unit_test(json_has_all_digits_of_the_loss),
        cmocka_unit_test(logits_overwrite_nothing_that_is_read),
        cmocka_unit_test(what_cannot_be_evaluated_is_refused),
        cmocka_unit_test(more_processes_than_stages_can_be_are_refused),
        cmocka_unit_test(few_bytes_that_ask_for_a_large_model_are_refused),
        cmocka_unit_test(model_without_a_file_is_refused),
        cmocka_unit_test(models_are_shown_verified_converted_and_averaged),
        cmocka_unit_test(model_is_shown_by_its_own_sizes),
        cmocka_unit_test(more_micro_batches_than_rows_are_warned_of),
        cmocka_unit_test(model_without_the_length_of_rows_is_warned_of),
        cmocka_unit_test(words_that_the_vocabulary_does_not_have_are_named),
        cmocka_unit_test(text_that_is_mostly_unknown_is_warned_of),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
