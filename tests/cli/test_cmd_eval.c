/* The program `sluice eval`, run as a user does. */
#include "cli/corpus.h"
#include "sluice/safetensors.h"
#include "sluice/text.h"

#include <math.h>

static program_run trained;

static int create(void **state)
{
    return corpus_create_trained(state, &trained);
}

static void saved_weights_give_the_loss_that_the_run_ended_with(void **state)
{
    scratch *in = *state;
    program_run run;
    double loss = number_after(trained.out, "| test loss "), tested, perplexity;
    program_succeed(&run, "eval --init %s/model.safetensors --data %s " TINY_BATCH, in->directory,
                    in->directory);
    tested = number_after(run.out, "test loss ");
    perplexity = number_after(run.out, "| test ppl ");
    assert_true(tested - loss <= 0.005 + 1e-4 && loss - tested <= 0.005 + 1e-4);
    /* ppl has two decimals in both */
    assert_float_equal(perplexity, number_after(trained.out, "| test ppl "), 1e-6);
    check_line(run.out, "^test loss [0-9.]+ \\| test ppl [0-9.]+ \\| [0-9]+ tokens$");
}

static void split_and_stages_are_chosen(void **state)
{
    scratch *in = *state;
    program_run one, two;
    program_succeed(&one, "eval --init %s/model.safetensors --data %s --split valid " TINY_BATCH,
                    in->directory, in->directory);
    program_start(&two,
                  "eval --init %s/model.safetensors --data %s --split valid " TINY_BATCH
                  " --devices cpu:0,cpu:1",
                  in->directory, in->directory);
    assert_int_equal(two.status, 0);
    check_text(one.out, "valid loss ");
    assert_string_equal(one.out, two.out);
}

static void batches_are_as_many_as_asked_for(void **state)
{
    scratch *in = *state;
    program_run run;
    program_succeed(&run,
                    "eval --init %s/model.safetensors --data %s " TINY_BATCH
                    " --eval-max-batches 2",
                    in->directory, in->directory);
    check_text(run.out, " | 128 tokens\n"); /* 2 blocks of 8 columns of 8 */
}

/* logits of [2, 3, V], ids of [2, 3], and the loss of that batch from both alone. */
static double loss_of_logits(const sl_safetensors_reader *reader)
{
    int64_t targets[6];
    const sl_safetensors_info *of = sl_safetensors_find(reader, "targets"),
                              *scores = sl_safetensors_find(reader, "logits");
    check_ok(sl_safetensors_read(reader, of, targets));
    float *logits = malloc(scores->bytes);
    assert_non_null(logits);
    check_ok(sl_safetensors_read(reader, scores, logits));
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
    scratch *in = *state;
    program_run run;
    sl_tokens tokens;
    sl_vocab *vocab;
    sl_batches batches;
    sl_safetensors_reader *reader;
    int32_t ids[2][6];
    int64_t found[6];
    program_succeed(&run,
                    "eval --init %s/model.safetensors --data %s --bptt 3 --eval-batch-size 2 "
                    "--eval-max-batches 1 --split valid --logits %s/logits",
                    in->directory, in->directory, in->directory);
    check_ok(sl_safetensors_open(scratch_path(in, "logits"), &reader));
    check_ok(sl_vocab_load(scratch_path(in, "model.vocab.txt"), &vocab));
    check_ok(sl_tokens_read(vocab, scratch_path(in, "valid.txt"), &tokens));
    check_ok(sl_batchify(tokens.ids, tokens.count, 2, 3, &batches));
    check_ok(sl_batches_block(&batches, 0, ids[0], ids[1]));
    assert_int_equal(sl_safetensors_count(reader), 3);
    for (int i = 0; i < 2; i++) {
        const sl_safetensors_info *info =
            sl_safetensors_find(reader, i == 0 ? "inputs" : "targets");
        assert_true(info && info->dtype == SL_I64 && info->dims == 2);
        assert_true(info->size[0] == 2 && info->size[1] == 3);
        check_ok(sl_safetensors_read(reader, info, found));
        for (int k = 0; k < 6; k++)
            assert_int_equal(found[k], ids[i][k]);
    }
    const sl_safetensors_info *logits = sl_safetensors_find(reader, "logits");
    assert_true(logits && logits->dtype == SL_F32 && logits->dims == 3);
    assert_true(logits->size[0] == 2 && logits->size[1] == 3);
    assert_int_equal(logits->size[2], sl_vocab_size(vocab));
    assert_float_equal(number_after(run.out, "valid loss "), loss_of_logits(reader), 0.00006);
    sl_safetensors_close(&reader);
    sl_tokens_free(&tokens);
    sl_vocab_destroy(&vocab);
}

static void logits_overwrite_nothing_that_is_read(void **state)
{
    static const char *const files[] = {"model.safetensors", "model.vocab.txt", "train.txt"};
    scratch *in = *state;
    program_run run;
    for (int i = 0; i < 3; i++) {
        program_start(&run,
                      "eval --init %s/model.safetensors --data %s " TINY_BATCH " --logits %s/%s",
                      in->directory, in->directory, in->directory, files[i]);
        check_refused(&run, 1, "is an input and must not be overwritten\n");
    }
    program_start(&run,
                  "eval --init %s/model.safetensors --data %s " TINY_BATCH " --logits %s/no/x",
                  in->directory, in->directory, in->directory);
    check_refused(&run, 1, "/no/x: its directory does not exist");
}

static void what_cannot_be_evaluated_is_refused(void **state)
{
    scratch *in = *state;
    program_run run;
    const char *at = in->directory;
    program_start(&run, "eval --data %s", at);
    check_refused(&run, 2, "eval needs --init FILE and --data DIR\n");
    program_start(&run, "eval --init %s/none --data %s", at, at);
    check_refused(&run, 1, "/none: cannot be opened");
    program_start(&run, "eval --init %s/train.txt --data %s", at, at);
    check_refused(&run, 1, "this is no safetensors file");
    program_start(&run, "eval --init %s/model.safetensors --data %s/none", at, at);
    check_refused(&run, 1, "/none");
    program_start(&run, "eval --init %s/model.safetensors --data %s --split all", at, at);
    check_refused(&run, 2, "--split must be train, valid or test, got \"all\"\n");
    program_start(&run, "eval --init %s/model.safetensors --data %s --bptt 4000", at, at);
    check_line(run.err, "^sluice: /.*/test\\.txt: [0-9]+ tokens in .*, too few for bptt 4000 and ");
    assert_int_equal(run.status, 1);
    program_start(&run, "eval --init %s/model.safetensors --data %s --devices gpu", at, at);
    check_refused(&run, 1,
                  "sluice: a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST, got \"gpu\"");
    program_start(&run, "eval --init %s/model.safetensors --data %s --devices cpu,cpu,cpu,cpu,cpu",
                  at, at);
    check_refused(&run, 1, "5 stages need as many modules, the model has 4\n");
}

int cmd_eval_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_weights_give_the_loss_that_the_run_ended_with),
        cmocka_unit_test(split_and_stages_are_chosen),
        cmocka_unit_test(batches_are_as_many_as_asked_for),
        cmocka_unit_test(logits_of_the_first_batch_are_written),
        cmocka_unit_test(logits_overwrite_nothing_that_is_read),
        cmocka_unit_test(what_cannot_be_evaluated_is_refused),
    };
    return cmocka_run_group_tests(tests, create, scratch_remove);
}
