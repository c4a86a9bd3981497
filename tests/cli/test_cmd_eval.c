/* The program `sluice eval`, run as a user does. */
#include "cli/corpus.h"

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
    check_refused(&run, 1, "(encoder, layers, decoder): 5 devices, 4 modules\n");
}

int main(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_weights_give_the_loss_that_the_run_ended_with),
        cmocka_unit_test(split_and_stages_are_chosen),
        cmocka_unit_test(batches_are_as_many_as_asked_for),
        cmocka_unit_test(what_cannot_be_evaluated_is_refused),
    };
    return cmocka_run_group_tests(tests, create, scratch_remove);
}
